//! `tune`: which instructions, threads and sizes of work are fastest on this machine, or which kernels on its GPU.

mod timings;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use smelt_backend::KvType;
use smelt_cuda::driver::DriverError;
use smelt_cuda::kernels::product::ProductShape;
use smelt_cuda::kernels::source::{KernelSet, source};
use smelt_cuda::tactics::{CardTactics, ProductSize, TunedCard};
use smelt_cuda::{CudaTarget, Driver, NoCard, Stopwatch};
use smelt_engine::tactics::Tactics;
use smelt_engine_build::llm;
use smelt_plan::Digest;
use smelt_plan::kind::tune::Tune;
use smelt_plan::kind::words::DecoderBackend;

use self::timings::Timings;
use super::Worker;
use super::llm_engine_build::compiled;
use super::request::{Request, say};
use crate::device::fact_of;
use crate::exit::{Exit, Failed};
use crate::version::BUILDER;

pub(super) const WORKER: Worker = Worker { compiles_kernels: true, ..Worker::new(run) };

fn run(request: &Request) -> Result<(), Failed> {
    let params: Tune = request.typed()?;
    match (params.backend, CudaTarget::parse(params.target.word())) {
        (DecoderBackend::Native, None) => {
            if request.optional_input("checkpoint").is_some() {
                let why =
                    "tactics of processors are those of any checkpoint; leave out \"checkpoint\"";
                return Err(Failed::new(Exit::BadPipeline, why));
            }
            Tactics::tune(&mut say).write(&request.out).map_err(Failed::model)
        }
        (DecoderBackend::Native, Some(target)) => {
            of_card(request, target)?.write(&request.out).map_err(Failed::model)
        }
    }
}

/// Times every kernel that could multiply a decoder's weights, on the card that is here.
fn of_card(request: &Request, target: CudaTarget) -> Result<CardTactics, Failed> {
    if request.optional_input("checkpoint").is_none() {
        let why = "tactics of a GPU are those of a decoder: name its \"checkpoint\"";
        return Err(Failed::new(Exit::BadPipeline, why));
    }
    let checkpoint = request.checkpoint("checkpoint")?;
    let sizes: Vec<_> = llm::products(&checkpoint).map_err(Failed::model)?.into_iter().collect();
    let driver = driver(target)?;
    let set = llm::kernel_set(&checkpoint, KvType::F16).map_err(Failed::model)?;
    let kernels = kernels(request.kept.as_deref(), &set, target)?;
    let card = TunedCard::of(driver.card(), target);
    let digest = Digest::of(&kernels).to_string();
    let conditions = ["power-mode", "gpu-driver"].map(fact_of).to_vec();
    let mut timings = Timings::open(request.kept.as_deref(), (&card, &digest), conditions);
    if timings.count() > 0 {
        say(&format!("{} kernels were timed before this was interrupted", timings.count()));
    }
    let stopwatch = Stopwatch::new(&driver, &kernels).map_err(of_driver)?;
    let all: usize = sizes.iter().map(|size| CardTactics::count(&card, size)).sum();
    let mut done = 0;
    let mut time = |size: ProductSize, tokens, shape: ProductShape| {
        let ProductSize { form, rows, columns } = size;
        say(&format!("[{done}/{all}] {} {rows} x {columns} for {tokens}: {shape}", form.name));
        done += 1;
        timings.of((size, tokens, shape.name()), || stopwatch.time(size, tokens, shape))
    };
    CardTactics::tune(card, &sizes, &mut time).map_err(of_driver)
}

/// The code of the kernels: of an earlier attempt, where that had come so far, since compiling takes longer than timing.
fn kernels(kept: Option<&Path>, set: &KernelSet, target: CudaTarget) -> Result<Vec<u8>, Failed> {
    let made_of = Digest::of(format!("{}\n{}\n{BUILDER}", source(set), target.word()).as_bytes());
    let file = kept.map(|folder| folder.join(format!("kernels-{made_of}.cubin")));
    if let Some(image) = file.as_ref().and_then(|file| fs::read(file).ok()) {
        say("the kernels were compiled before this was interrupted");
        return Ok(image);
    }
    let image = compiled(set, target)?;
    if let Some(file) = file {
        // Under its name it is whole.  Without it the next attempt compiles again.
        let draft = file.with_extension("new");
        let _ = fs::write(&draft, &image).and_then(|()| fs::rename(&draft, &file));
    }
    Ok(image)
}

/// The first card that runs kernels for `target`.
fn driver(target: CudaTarget) -> Result<Arc<dyn Driver>, Failed> {
    let absent = |why: NoCard| Failed::new(Exit::DoesNotFit, why);
    let cards = smelt_cuda::cards().map_err(absent)?;
    let own = cards.iter().find(|card| card.sm == target.sm()).ok_or_else(|| {
        let here: Vec<_> =
            cards.iter().map(|card| format!("{} ({})", card.name, card.sm)).collect();
        let (target, here) = (target.word(), here.join(", "));
        let why =
            format!("kernels for {target} are timed on a card that runs them; here is {here}");
        Failed::new(Exit::DoesNotFit, why)
    })?;
    smelt_cuda::open(own.ordinal).map_err(absent)
}

/// A card that fails while kernels are timed.
fn of_driver(error: DriverError) -> Failed {
    Failed::new(Exit::StageFailed, format!("the GPU: {error}"))
}
