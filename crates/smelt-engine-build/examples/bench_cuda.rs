//! Times the decoder for GPUs, and a tower of pictures, at true size, on random weights: `cargo xtask bench cuda` carries this
//! to a machine with a card.
//!
//! `bench_cuda compile DIR` compiles the kernels for a card that is not here; `bench_cuda run DIR` makes engines of random
//! weights below DIR on a machine with one, times them, and prints a line of JSON for each figure; `tower` is a part of that.
//! `bench_cuda shapes DIR` times every kernel for each of the model's products, from which the defaults of
//! `smelt_cuda::kernels::product` come; `bench_cuda prompts DIR` times prompts by those and by kernels that run on any card,
//! in turns; `bench_cuda steps DIR` says where the time of a step goes.

use std::convert::Infallible;
use std::error::Error;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use smelt_backend::sampling::{Draw, Sampler, Settings};
use smelt_backend::{Decoder, Graph, KvOptions, KvType, Limits, SlotInput, Tensor};
use smelt_cuda::decoder::{CudaDecoder, DecoderFile, DecoderWriter, KernelImage};
use smelt_cuda::graph::CudaGraph;
use smelt_cuda::kernels::form::{ScaleKind, WeightForm, WeightPart};
use smelt_cuda::kernels::layout::{STRIP_ROWS, padded_columns, padded_rows, part_bytes};
use smelt_cuda::kernels::page::HeadShape;
use smelt_cuda::kernels::product::{ProductShape, default_shape};
use smelt_cuda::kernels::source::{KernelSet, graph_source, source};
use smelt_cuda::nvrtc::{Source, compile};
use smelt_cuda::tactics::{CardTactics, ProductSize, TunedCard};
use smelt_cuda::{CudaTarget, Driver, Processors, Sm, Stopwatch};
use smelt_engine_build::graph;
use smelt_model::checkpoint::Checkpoint;
use smelt_model::dtype::Dtype;
use smelt_model::{export, synthetic};

/// The card that figures are of.
const TARGET: CudaTarget = CudaTarget::Sm90;
/// Forms of the weights that are timed.
const FORMS: [&str; 2] = ["i4g128", "half"];
/// The tower that is timed: what figures call it, whose it is, its heads, and the pixels on a side of a tile.
const TOWER: (&str, &str, usize, usize) = ("internvit-300m", "internvl3-1b", 64, 448);
/// Rows and columns of the model's products.
const PRODUCTS: [(u32, u32); 5] =
    [(4096, 2048), (2048, 2048), (12_288, 2048), (2048, 6144), (151_936, 2048)];
/// Steps whose median is told.
const STEPS: usize = 64;
/// Prompts whose median is told.
const PROMPTS: usize = 7;
/// What products of random levels are multiplied with, so that states stay about as large as they are.
const SCALE: f32 = 0.004;
/// What the last states are multiplied with, so that few tokens have most of the weight, as in models that were trained.
const SHARP: f32 = 6.0;
/// Tokens of a prompt that a step reads.
const CHUNK: usize = 2048;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["compile", dir] => compile_all(Path::new(dir)),
        ["run", dir] => run(Path::new(dir)),
        ["tower", dir] => tower(Path::new(dir), &smelt_cuda::open(0)?),
        ["shapes", dir] => shapes(Path::new(dir)),
        ["prompts", dir] => prompts(Path::new(dir)),
        ["steps", dir] => steps(Path::new(dir)),
        _ => Err("usage: bench_cuda compile|run|tower|shapes|prompts|steps DIR".into()),
    }
}

/// Qwen3-1.7B's sizes.
fn sizes(form: &str) -> DecoderFile {
    DecoderFile {
        family: "qwen3".to_owned(),
        scheme: form.to_owned(),
        hidden: 2048,
        layers: 28,
        heads: 16,
        kv_heads: 8,
        head_dim: 128,
        intermediate: 6144,
        vocab: 151_936,
        eps: 1e-6,
        rotary_factor: 1.0,
        has_places: false,
        deepstack: 0,
        limits: Limits { max_seq_len: 40_960, max_slots: 32 },
        positions: Some(40_960),
    }
}

fn cubin(dir: &Path, form: &str) -> PathBuf {
    dir.join(format!("{form}.{}", TARGET.kernels_file()))
}

fn compile_all(dir: &Path) -> Outcome<()> {
    fs::create_dir_all(dir)?;
    for name in FORMS {
        let form = WeightForm::parse(name).ok_or("a form that is none")?;
        let head = HeadShape { dim: sizes(name).head_dim, kind: KvType::F16 };
        let text = source(&KernelSet { forms: vec![form], head });
        let text = Source { name: format!("{name}.cu"), text, defines: Vec::new() };
        fs::write(cubin(dir, name), compile(&text, TARGET, None)?.image)?;
    }
    let (name, _, head, _) = TOWER;
    let text = graph_source(head);
    let text = Source { name: "graph.cu".to_owned(), text, defines: Vec::new() };
    fs::write(cubin(dir, name), compile(&text, TARGET, None)?.image)?;
    Ok(())
}

/// Times the tower on one tile and on twelve.
fn tower(dir: &Path, driver: &Arc<dyn Driver>) -> Outcome<()> {
    let (name, model, _, side) = TOWER;
    let engine = dir.join("engines").join(name);
    if !engine.join("engine.json").exists() {
        let [checkpoint, onnx] = ["checkpoint", "onnx"].map(|part| dir.join("tower").join(part));
        synthetic::write(model, &checkpoint, &mut |_| {})?;
        export::vision(&Checkpoint::open(&checkpoint)?, Dtype::F16, &onnx, &mut |_| {})?;
        let packed = graph::pack_for_card(&onnx, &engine, &mut |_| {})?;
        packed.finish(TARGET, &fs::read(cubin(dir, name))?)?;
    }
    let begin = Instant::now();
    let tower = CudaGraph::open_all(&engine, driver)?.remove(0).1;
    tell(name, "open", begin.elapsed().as_secs_f64(), "s");
    for tiles in [1, 12] {
        let took = encode(&*tower, tiles, side)?;
        tell(name, &format!("{tiles} tiles"), took * 1e3, "ms");
    }
    Ok(())
}

/// Seconds in which a tower sees so many tiles: pixels come from the host, and features go there.
fn encode(tower: &dyn Graph, tiles: usize, side: usize) -> Outcome<f64> {
    let shape = vec![tiles, 3, side, side];
    let data = Noise(tiles as u64).bytes(shape.iter().product());
    let data: Vec<f32> = data.iter().map(|byte| f32::from(*byte) / 64.0 - 2.0).collect();
    let mut took = Vec::new();
    for _ in 0..=PROMPTS {
        let pixels = Tensor::F32 { shape: shape.clone(), data: data.clone() };
        let begin = Instant::now();
        tower.run(vec![pixels])?;
        took.push(begin.elapsed());
    }
    // The first makes its plan.
    Ok(median(took.split_off(1)))
}

/// Bytes without order, the same every time.
struct Noise(u64);

impl Noise {
    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(len + 8);
        while out.len() < len {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            out.extend_from_slice(&(self.0 ^ self.0 >> 29).to_le_bytes());
        }
        out.truncate(len);
        out
    }
}

/// Writes an engine of random weights of one form.
fn write(dir: &Path, kernels: &Path, name: &str, tactics: Option<&CardTactics>) -> Outcome<()> {
    let (form, sizes) = (WeightForm::parse(name).ok_or("a form that is none")?, sizes(name));
    let mut writer = Random { writer: DecoderWriter::create(dir)?, form, noise: Noise(7) };
    let pairs = sizes.head_dim / 2;
    let frequency = |pair: usize| 1e6f64.powf(-2.0 * pair as f64 / sizes.head_dim as f64) as f32;
    writer.floats("rotary.frequencies", &(0..pairs).map(frequency).collect::<Vec<_>>())?;
    writer.words("rotary.axes", pairs)?;
    writer.weight("embedding", sizes.vocab, sizes.hidden)?;
    for layer in 0..sizes.layers {
        let own = |part: &str| format!("layers.{layer}.{part}");
        let (q, kv) = (sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim);
        writer.floats(&own("input_norm"), &vec![1.0; sizes.hidden])?;
        writer.weight(&own("qkv"), q + 2 * kv, sizes.hidden)?;
        writer.floats(&own("q_norm"), &vec![1.0; sizes.head_dim])?;
        writer.floats(&own("k_norm"), &vec![1.0; sizes.head_dim])?;
        writer.weight(&own("output"), sizes.hidden, q)?;
        writer.floats(&own("mlp_norm"), &vec![1.0; sizes.hidden])?;
        writer.weight(&own("gate_up"), 2 * sizes.intermediate, sizes.hidden)?;
        writer.weight(&own("down"), sizes.hidden, sizes.intermediate)?;
    }
    writer.floats("norm", &vec![SHARP; sizes.hidden])?;
    let image = fs::read(kernels)?;
    writer
        .writer
        .finish(sizes, KernelImage { target: TARGET, image: &image, int8: None, tactics })?;
    Ok(())
}

struct Random {
    writer: DecoderWriter,
    form: WeightForm,
    noise: Noise,
}

impl Random {
    fn floats(&mut self, name: &str, numbers: &[f32]) -> io::Result<()> {
        self.writer.begin(name, "f32", &[numbers.len()])?;
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.writer.write(&bytes)
    }

    fn words(&mut self, name: &str, len: usize) -> io::Result<()> {
        self.writer.begin(name, "u32", &[len])?;
        self.writer.write(&vec![0; len * 4])
    }

    /// Any levels; scales that keep states as large as they are.
    fn weight(&mut self, name: &str, rows: usize, columns: usize) -> io::Result<()> {
        let form = self.form;
        for part in form.parts() {
            let part_name = format!("{name}{}", part.suffix());
            self.writer.begin(&part_name, form.name, &[rows, columns])?;
            let bytes = part_bytes(form, part, padded_columns(columns));
            for _ in 0..padded_rows(rows) / STRIP_ROWS {
                let bytes = self.part(part, bytes);
                self.writer.write(&bytes)?;
            }
        }
        Ok(())
    }

    fn part(&mut self, part: WeightPart, len: usize) -> Vec<u8> {
        let halves = |number: f32| half::f16::from_f32(number).to_le_bytes().repeat(len / 2);
        match part {
            // Halves between 1 and 2 with any sign.
            WeightPart::Levels if self.form.scales == ScaleKind::Row => {
                let mut bytes = self.noise.bytes(len);
                bytes.iter_mut().skip(1).step_by(2).for_each(|high| *high = *high & 0x83 | 0x3c);
                bytes
            }
            WeightPart::RowScales => (SCALE * 3.0).to_le_bytes().repeat(len / 4),
            WeightPart::Scales => halves(SCALE),
            _ => self.noise.bytes(len),
        }
    }
}

fn median(mut all: Vec<Duration>) -> f64 {
    all.sort_unstable();
    all[all.len() / 2].as_secs_f64()
}

/// Tokens without order.
fn tokens(count: usize, seed: usize) -> Vec<u32> {
    (0..count).map(|at| ((at * 7919 + seed * 104_729 + 13) % 151_000) as u32).collect()
}

fn prefill(decoder: &mut CudaDecoder, slot: usize, count: usize) -> Outcome<()> {
    for chunk in tokens(count, slot).chunks(CHUNK) {
        decoder.step(&[SlotInput::new(slot, chunk)])?;
    }
    Ok(())
}

/// Where the time of steps went: all of it, the call that puts a step on the card, the wait for it, and, where steps are timed,
/// what it took on the card.
#[derive(Default)]
struct Took {
    all: Vec<Duration>,
    submit: Vec<Duration>,
    wait: Vec<Duration>,
    card: Vec<Duration>,
}

/// Steps of so many answers at once behind contexts of so many tokens, with temperature and top-p.
fn decode(decoder: &mut CudaDecoder, streams: usize, context: usize) -> Outcome<Took> {
    let settings = Settings { temperature: 0.8, top_p: 0.95, seed: 5, ..Settings::GREEDY };
    let mut samplers = Vec::new();
    for slot in 0..streams {
        prefill(decoder, slot, context)?;
        samplers.push(Sampler::new(&settings, &[], 151_936)?);
    }
    let (mut last, mut took) = (vec![1_u32; streams], Took::default());
    for step in 0..STEPS + 8 {
        let begin = Instant::now();
        let draws: Vec<[Draw<'_>; 1]> =
            samplers.iter().map(|sampler| [sampler.draw(None)]).collect();
        let runs: Vec<SlotInput<'_>> = last
            .iter()
            .zip(&draws)
            .enumerate()
            .map(|(slot, (token, draw))| {
                SlotInput::new(slot, std::slice::from_ref(token)).choosing(draw)
            })
            .collect();
        let submit = Instant::now();
        decoder.submit(&runs)?;
        let wait = Instant::now();
        let answers = decoder.wait()?;
        let end = Instant::now();
        let chosen = answers.iter().map(|answer| Ok(answer.chosen[0].clone()?.token));
        let chosen: Vec<u32> = chosen.collect::<Outcome<_>>()?;
        drop(draws);
        samplers.iter_mut().zip(&chosen).for_each(|(sampler, token)| sampler.count(*token));
        last = chosen;
        if step >= 8 {
            took.all.push(begin.elapsed());
            took.submit.push(wait - submit);
            took.wait.push(end - wait);
            took.card.extend(decoder.step_time());
        }
    }
    (0..streams).for_each(|slot| decoder.release(slot));
    Ok(took)
}

/// Says where the time of steps goes.
fn steps(dir: &Path) -> Outcome<()> {
    let driver: Arc<dyn Driver> = smelt_cuda::open(0)?;
    for form in FORMS {
        let engine = engine(dir, form)?;
        let mut decoder = CudaDecoder::open(&engine, &driver, KvOptions::default())?;
        decoder.time_steps();
        for (streams, context) in [(1, 512), (8, 512), (32, 512), (1, 2048)] {
            let Took { all, submit, wait, card } = decode(&mut decoder, streams, context)?;
            let parts = [("all", all), ("submit", submit), ("wait", wait), ("on the card", card)];
            for (part, took) in parts {
                let figure = format!("{streams} streams at {context}, {part}");
                tell(form, &figure, median(took) * 1e6, "us");
            }
        }
        tell(form, "1 streams at 512, layers alone", layers(&mut decoder, 512)? * 1e6, "us");
    }
    Ok(())
}

/// Seconds on the card of a step of one stream of which nothing is asked.
fn layers(decoder: &mut CudaDecoder, context: usize) -> Outcome<f64> {
    prefill(decoder, 0, context)?;
    let mut took = Vec::new();
    for step in 0..STEPS {
        decoder.step(&[SlotInput::new(0, &tokens(1, step))])?;
        took.extend(decoder.step_time());
    }
    decoder.release(0);
    Ok(median(took))
}

/// The engine of random weights of a form, made where it is not there.
fn engine(dir: &Path, form: &str) -> Outcome<PathBuf> {
    let engine = dir.join("engines").join(form);
    if !engine.join("engine.json").exists() {
        write(&engine, &cubin(dir, form), form, None)?;
    }
    Ok(engine)
}

/// Tokens a second of reading a prompt up to its first token.
fn prompt(decoder: &mut CudaDecoder, count: usize) -> Outcome<f64> {
    let (tokens, mut took) = (tokens(count, 3), Vec::new());
    for _ in 0..PROMPTS {
        let begin = Instant::now();
        let (draws, run) = ([smelt_backend::sampling::GREEDY], SlotInput::new(0, &tokens));
        decoder.step(&[run.choosing(&draws)])?;
        took.push(begin.elapsed());
        decoder.release(0);
    }
    Ok(count as f64 / median(took))
}

/// Tactics by which a decoder multiplies with none but kernels that run on any card.
fn plain_tactics(form: &str, driver: &Arc<dyn Driver>) -> Outcome<CardTactics> {
    let form = WeightForm::parse(form).ok_or("a form that is none")?;
    let products = PRODUCTS.map(|(rows, columns)| ProductSize { form, rows, columns });
    let any = Processors { sm: Sm(80), ..driver.card().processors() };
    let mut time = |size: ProductSize, tokens, shape: ProductShape| {
        let is_usual = shape == default_shape(size.form, [size.rows, size.columns], tokens, any);
        Ok::<_, Infallible>(Some(if is_usual { 1.0 } else { 2.0 }))
    };
    let card = TunedCard::of(driver.card(), TARGET);
    Ok(CardTactics::tune(card, &products, &mut time)?)
}

/// Times prompts by the default kernels and by those that run on any card, three times in turns.
fn prompts(dir: &Path) -> Outcome<()> {
    let driver: Arc<dyn Driver> = smelt_cuda::open(0)?;
    for form in FORMS {
        let plain = plain_tactics(form, &driver)?;
        let mut decoders = Vec::new();
        for (name, tactics) in [(form.to_owned(), None), (format!("{form}-plain"), Some(&plain))] {
            let engine = dir.join("engines").join(&name);
            if !engine.join("engine.json").exists() {
                write(&engine, &cubin(dir, form), form, tactics)?;
            }
            decoders.push((name, CudaDecoder::open(&engine, &driver, KvOptions::default())?));
        }
        for count in [256, 356, 512, 1024, 2048] {
            for _ in 0..3 {
                for (name, decoder) in &mut decoders {
                    tell(name, &format!("prompt of {count}"), prompt(decoder, count)?, "tok/s");
                }
            }
        }
    }
    Ok(())
}

fn tell(form: &str, figure: &str, value: f64, unit: &str) {
    println!("{}", json!({ "form": form, "figure": figure, "value": value, "unit": unit }));
}

/// Microseconds of every kernel for each product of the model, for some numbers of tokens.
fn shapes(dir: &Path) -> Outcome<()> {
    let driver: Arc<dyn Driver> = smelt_cuda::open(0)?;
    for name in FORMS {
        let stopwatch = Stopwatch::new(&driver, &fs::read(cubin(dir, name))?)?;
        let form = WeightForm::parse(name).ok_or("a form that is none")?;
        for (rows, columns) in PRODUCTS {
            let size = ProductSize { form, rows, columns };
            for tokens in [1, 8, 16, 32, 64, 128, 356, 512, 2048] {
                if rows > 100_000 && tokens > 32 {
                    continue;
                }
                let processors = driver.card().processors();
                let usual = default_shape(form, [rows, columns], tokens, processors);
                let mut told = Vec::new();
                for shape in ProductShape::all_on(form, processors) {
                    if shape.takes(tokens)
                        && !shape.norms()
                        && (tokens <= 64 || shape.is_for_many())
                        && let Some(seconds) = stopwatch.time(size, tokens, shape)?
                    {
                        let mark = if shape == usual { "*" } else { "" };
                        told.push(format!("{mark}{shape} {:.1}", seconds * 1e6));
                    }
                }
                println!("{name} {rows}x{columns} for {tokens}: {}", told.join(", "));
            }
        }
    }
    Ok(())
}

fn run(dir: &Path) -> Outcome<()> {
    let driver: Arc<dyn Driver> = smelt_cuda::open(0)?;
    let card = driver.card();
    let version = card.driver_version();
    println!(
        "{}",
        json!({ "card": card.name, "cuda": version, "processors": card.multiprocessors })
    );
    for form in FORMS {
        let engine = engine(dir, form)?;
        let free = driver.memory_info()?.free_bytes;
        let begin = Instant::now();
        let mut decoder = CudaDecoder::open(&engine, &driver, KvOptions::default())?;
        tell(form, "open", begin.elapsed().as_secs_f64(), "s");
        let weights = fs::metadata(engine.join("weights.bin"))?.len();
        let beside = (free - driver.memory_info()?.free_bytes).saturating_sub(weights);
        tell(form, "memory beside weights", beside as f64 / f64::from(1 << 20), "MiB");
        for (streams, context) in [(1, 512), (8, 512), (32, 512), (1, 8192), (1, 32_768)] {
            let figure = format!("{streams} streams at {context}");
            let took = median(decode(&mut decoder, streams, context)?.all);
            tell(form, &figure, streams as f64 / took, "tok/s");
        }
        for count in [356, 2048] {
            tell(form, &format!("prompt of {count}"), prompt(&mut decoder, count)?, "tok/s");
        }
    }
    tower(dir, &driver)
}
