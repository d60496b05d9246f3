//! Tells Prometheus what services count, and what memory there is.
//!
//! Everything is read when it is asked for; nothing is kept.

use std::fmt::Error;
use std::path::Path;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use smelt_runtime::embed;
use smelt_runtime::service::{DeviceCounts, Histogram, Stats};
use smelt_watch::{Machine, Sample};

use crate::models::{Health, Models, Moves, Running};
use crate::upstream;

/// What the services of all models count.
#[derive(Debug)]
pub(crate) struct OfModels(pub(crate) Arc<Models>);

/// What this process and its machine hold.
#[derive(Debug)]
pub(crate) struct OfMemory;

/// A number of a service: its name, what it is, and how it is found.
type Number<S> = (&'static str, &'static str, fn(&S) -> u64);

const COUNTERS: [Number<Stats>; 14] = [
    ("engine_requests", "Requests that the engine took", |stats| stats.requests),
    ("engine_refused", "Requests refused since too many were there", |stats| stats.refused),
    ("answers_stopped", "Answers that the model or a stop ended", |stats| stats.endings.stop),
    ("answers_cut", "Answers that reached their length", |stats| stats.endings.length),
    ("answers_cancelled", "Answers that nobody waited for", |stats| stats.endings.cancelled),
    ("answers_late", "Answers whose time was over", |stats| stats.endings.deadline),
    ("answers_failed", "Answers on which an engine failed", |stats| stats.endings.failed),
    ("answers_unheld", "Answers whose form could not be held to", |stats| stats.endings.unheld),
    ("engine_prompt_tokens", "Tokens of prompts, once an answer", |stats| stats.prompt_tokens),
    ("engine_cached_tokens", "Those that a slot held already", |stats| stats.cached_tokens),
    ("engine_said_tokens", "Tokens of answers", |stats| stats.said_tokens),
    ("preemptions", "Times an answer gave its slot back", |stats| stats.preemptions),
    ("pictures_seen", "Pictures the vision engine looked at", |stats| stats.pictures_seen),
    ("pictures_cached", "Pictures known from before", |stats| stats.pictures_cached),
];

const GAUGES: [Number<Stats>; 10] = [
    ("answers_looking", "Requests whose pictures are looked at", |stats| stats.looking as u64),
    ("answers_waiting", "Answers that wait for a slot", |stats| stats.waiting as u64),
    ("answers_reading", "Answers whose prompt is read", |stats| stats.reading as u64),
    ("answers_saying", "Answers under way", |stats| stats.saying as u64),
    ("slots_kept", "Slots kept for what they hold", |stats| stats.kept_slots as u64),
    ("kv_blocks_held", "Blocks of keys and values in use", |stats| stats.kv.blocks_held as u64),
    ("kv_blocks", "Blocks of keys and values there may be", |stats| stats.kv.blocks_total as u64),
    ("kv_block_bytes", "Bytes of a block", |stats| stats.kv.block_bytes as u64),
    ("kv_block_tokens", "Tokens of a block", |stats| stats.kv.block_tokens as u64),
    ("picture_cache_bytes", "Bytes of embeddings kept", |stats| stats.picture_cache_bytes as u64),
];

/// What is counted of the devices of models that smelt answers for itself.
const DEVICE_COUNTERS: [Number<DeviceCounts>; 1] =
    [("device_losses", "Times a device of a model was lost", |devices| devices.losses)];

const DEVICE_GAUGES: [Number<DeviceCounts>; 1] =
    [("devices_lost", "Devices that answer no more", |devices| devices.lost as u64)];

/// What is counted of models that give embeddings, or score pairs.
const EMBED_COUNTERS: [Number<embed::Stats>; 6] = [
    ("embed_requests", "Requests that the encoder took", |stats| stats.requests),
    ("embed_refused", "Requests refused since too many were there", |stats| stats.refused),
    ("embed_cancelled", "Requests that nobody waited for", |stats| stats.cancelled),
    ("embed_failed", "Requests on which the encoder failed", |stats| stats.failed),
    ("embed_texts", "Texts that were embedded, or pairs scored", |stats| stats.texts),
    ("embed_tokens", "Their tokens", |stats| stats.tokens),
];

const EMBED_GAUGES: [Number<embed::Stats>; 1] =
    [("embed_waiting", "Texts or pairs that wait for the encoder", |stats| stats.waiting as u64)];

const EMBED_SPREADS: [Spread<embed::Stats>; 1] =
    [("embed_text", "Of a text", Some(Unit::Seconds), |stats| &stats.text_seconds)];

/// What is counted of servers of other programs.
const UPSTREAM_COUNTERS: [Number<upstream::Stats>; 4] = [
    ("upstream_requests", "Requests that were passed on", |stats| stats.requests),
    ("upstream_refused", "Requests refused since too many were there", |stats| stats.refused),
    ("upstream_failed", "Requests that the server failed", |stats| stats.failed),
    ("upstream_restarts", "How often the server was started again", |stats| stats.restarts),
];

const UPSTREAM_GAUGES: [Number<upstream::Stats>; 3] = [
    ("upstream_live", "Requests that the server has, or that wait for it", |stats| stats.live),
    ("upstream_up", "1 while the server is well", |stats| u64::from(stats.is_up)),
    ("upstream_memory_bytes", "What its processes hold", |stats| stats.memory_bytes),
];

/// Numbers of the models' coming and going.
const MOVES: [Number<Moves>; 4] = [
    ("model_loads", "Models that were loaded", |moves| moves.loads),
    ("model_swaps", "Newer deployments that took over", |moves| moves.swaps),
    ("model_swaps_refused", "Newer deployments that were not fit", |moves| moves.swaps_refused),
    ("model_unloads", "Models that left memory", |moves| moves.unloads),
];

/// Times and sizes of a service.
type Spread<S> = (&'static str, &'static str, Option<Unit>, fn(&S) -> &Histogram);

const SPREADS: [Spread<Stats>; 6] = [
    ("batch", "Answers that shared a step", None, |stats| &stats.batch),
    ("queue", "From being taken to a slot", Some(Unit::Seconds), |stats| &stats.queue_seconds),
    ("chunk", "Of a chunk of a prompt", Some(Unit::Seconds), |stats| &stats.chunk_seconds),
    ("step", "Of a decode step", Some(Unit::Seconds), |stats| &stats.step_seconds),
    ("choose", "Of choosing tokens of a step", Some(Unit::Seconds), |stats| &stats.choose_seconds),
    ("vision_part", "Of a part of a picture", Some(Unit::Seconds), |stats| &stats.part_seconds),
];

impl Collector for OfModels {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let models = self.0.all();
        let ready = u64::from(self.0.health() == Health::Ready);
        let help = "1 when there is an answer to be had";
        encoder.encode_descriptor("ready", help, None, MetricType::Gauge)?.encode_gauge(&ready)?;
        let (mut speaking, mut embedding, mut relaying) = (Vec::new(), Vec::new(), Vec::new());
        let mut devices = Vec::new();
        for model in &models {
            if !matches!(model.running, Running::Relays(_)) {
                let counts = DeviceCounts::of(&model.running.replicas());
                devices.push((&model.name[..], counts));
            }
            match &model.running {
                Running::Speaks(service) => speaking.push((&model.name[..], service.stats())),
                Running::Embeds(service) => embedding.push((&model.name[..], service.stats())),
                Running::Scores(service) => embedding.push((&model.name[..], service.stats())),
                Running::Relays(upstream) => relaying.push((&model.name[..], upstream.stats())),
            }
        }
        numbers(&mut encoder, &COUNTERS, MetricType::Counter, &speaking)?;
        numbers(&mut encoder, &GAUGES, MetricType::Gauge, &speaking)?;
        numbers(&mut encoder, &DEVICE_COUNTERS, MetricType::Counter, &devices)?;
        numbers(&mut encoder, &DEVICE_GAUGES, MetricType::Gauge, &devices)?;
        numbers(&mut encoder, &EMBED_COUNTERS, MetricType::Counter, &embedding)?;
        numbers(&mut encoder, &EMBED_GAUGES, MetricType::Gauge, &embedding)?;
        numbers(&mut encoder, &UPSTREAM_COUNTERS, MetricType::Counter, &relaying)?;
        numbers(&mut encoder, &UPSTREAM_GAUGES, MetricType::Gauge, &relaying)?;
        let moves = self.0.moves();
        for (name, help, number) in MOVES {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            metric.encode_counter::<NoLabelSet, _, u64>(&number(&moves), None)?;
        }
        spreads(&mut encoder, &SPREADS, &speaking)?;
        spreads(&mut encoder, &EMBED_SPREADS, &embedding)
    }
}

/// Tells numbers of each model.
fn numbers<S>(
    encoder: &mut DescriptorEncoder<'_>,
    numbers: &[Number<S>],
    kind: MetricType,
    stats: &[(&str, S)],
) -> Result<(), Error> {
    for (name, help, number) in numbers {
        let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
        for (model, stats) in stats {
            let labels = [("model", *model)];
            let mut metric = metric.encode_family(&labels)?;
            match kind {
                MetricType::Counter => {
                    metric.encode_counter::<NoLabelSet, _, u64>(&number(stats), None)?;
                }
                _ => metric.encode_gauge(&number(stats))?,
            }
        }
    }
    Ok(())
}

/// Tells times and sizes of each model.
fn spreads<S>(
    encoder: &mut DescriptorEncoder<'_>,
    spreads: &[Spread<S>],
    stats: &[(&str, S)],
) -> Result<(), Error> {
    for (name, help, unit, spread) in spreads {
        let kind = MetricType::Histogram;
        let mut metric = encoder.encode_descriptor(name, help, unit.as_ref(), kind)?;
        for (model, stats) in stats {
            let spread = spread(stats);
            let labels = [("model", *model)];
            let (sum, count) = (spread.sum, spread.count());
            let metric = &mut metric.encode_family(&labels)?;
            metric.encode_histogram::<NoLabelSet>(sum, count, &buckets(spread), None)?;
        }
    }
    Ok(())
}

/// Counts with their upper bounds; without one that is infinite Prometheus knows no quantile.
fn buckets(spread: &Histogram) -> Vec<(f64, u64)> {
    let bounds = spread.bounds.iter().copied().chain([f64::INFINITY]);
    bounds.zip(spread.counts.iter().copied()).collect()
}

impl Collector for OfMemory {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let machine = Machine::read(Path::new("/"));
        let own = Sample::of(std::process::id());
        let gauges = [
            ("process_resident", "Memory that the server holds", own.map(|own| own.rss_bytes)),
            (
                "process_anonymous",
                "Memory of the server that belongs to no file",
                own.map(|own| own.rss_anon_bytes),
            ),
            ("process_swapped", "Memory of the server in swap", own.map(|own| own.swap_bytes)),
            ("machine_memory", "Memory of the machine", machine.mem_total_bytes),
            (
                "machine_available",
                "Memory that a new process could have",
                machine.mem_available_bytes,
            ),
            ("machine_swap_free", "Swap that is not in use", machine.swap_free_bytes),
            ("machine_cma", "Contiguous memory", machine.cma_total_bytes),
            ("machine_cma_free", "Contiguous memory that nothing holds", machine.cma_free_bytes),
        ];
        for (name, help, bytes) in gauges {
            // What this kernel does not say is not said.
            let Some(bytes) = bytes else { continue };
            let unit = Some(&Unit::Bytes);
            let mut metric = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
            metric.encode_gauge(&bytes)?;
        }
        Ok(())
    }
}
