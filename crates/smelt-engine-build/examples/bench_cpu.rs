//! Our side of `cargo xtask bench cpu`: makes what is measured, and runs one measured case a process.
//!
//! ```text
//! bench_cpu checkpoint NAME OUT          a synthetic checkpoint of true size
//! bench_cpu vision CHECKPOINT OUT        its vision tower as ONNX in f32
//! bench_cpu llm-engine CHECKPOINT OUT MAX_SEQ_LEN MAX_SLOTS
//! bench_cpu graph-engine ONNX OUT PRECISION
//! bench_cpu bandwidth THREADS            bytes a second that threads read from memory
//! bench_cpu llm ENGINE THREADS PREFILL DECODE SLOTS
//! bench_cpu graph ENGINE THREADS RUNS
//! ```
//!
//! The last three print one line of JSON; times are in seconds.  What a run computes is the same as
//! what `xtask/cpu/llama.py` and `xtask/cpu/ort.py` ask of the rivals: equal tokens, equal pixels,
//! a warm-up that touches every weight before any clock starts.

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use smelt_engine::graph::{GraphEngine, Tensor};
use smelt_engine::llm::{KvOptions, Limits, LlmEngine, Prompt};
use smelt_engine_build::graph::{self, Precision};
use smelt_engine_build::llm;
use smelt_model::checkpoint::Checkpoint;
use smelt_model::dtype::Dtype;
use smelt_model::price::bytes_a_second;
use smelt_model::{export, synthetic};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Far more than the last cache of any processor this runs on.
const BUFFER_BYTES: usize = 1 << 30;
/// The buffer is read for so long; the fastest pass counts, since noise only slows.
const READ_TIME: Duration = Duration::from_millis(500);
/// Tokens of the warm-up: one chunk of a prompt and a few steps.
const WARM_PROMPT: usize = 16;
const WARM_STEPS: usize = 4;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let said = &mut |_: &str| {};
    match arguments[..] {
        ["checkpoint", name, out] => synthetic::write(name, Path::new(out), said)?,
        ["vision", checkpoint, out] => {
            export::vision(
                &Checkpoint::open(checkpoint.as_ref())?,
                Dtype::F32,
                out.as_ref(),
                said,
            )?;
        }
        ["llm-engine", checkpoint, out, max_seq_len, max_slots] => {
            let limits =
                Limits { max_seq_len: max_seq_len.parse()?, max_slots: max_slots.parse()? };
            llm::build(&Checkpoint::open(checkpoint.as_ref())?, limits, out.as_ref(), said)?;
        }
        ["graph-engine", onnx, out, precision] => {
            let precision = Precision::parse(precision).ok_or("an unknown precision")?;
            graph::build(onnx.as_ref(), precision, out.as_ref(), said)?;
        }
        ["bandwidth", threads] => println!("{}", bandwidth(threads.parse()?)),
        ["llm", engine, threads, prefill, decode, slots] => {
            let asked = Asked {
                threads: threads.parse()?,
                prefill: prefill.parse()?,
                decode: decode.parse()?,
                slots: slots.parse()?,
            };
            println!("{}", asked.run(engine.as_ref())?);
        }
        ["graph", engine, threads, runs] => {
            println!("{}", run_graph(engine.as_ref(), threads.parse()?, runs.parse()?)?);
        }
        _ => return Err("see the head of examples/bench_cpu.rs for what it takes".into()),
    }
    Ok(())
}

/// Each thread sums its part of a buffer, all at once, a few times.
fn bandwidth(threads: usize) -> Value {
    json!({ "bytes_per_s": bytes_a_second(threads, BUFFER_BYTES, READ_TIME) })
}

/// One measured run of a decoder.
struct Asked {
    threads: usize,
    /// Tokens of each slot's prompt.
    prefill: usize,
    /// Steps behind it, each of one token a slot.
    decode: usize,
    slots: usize,
}

impl Asked {
    fn run(&self, dir: &Path) -> Result<Value> {
        let begin = Instant::now();
        let kv = KvOptions { max_slots: Some(self.slots), ..KvOptions::default() };
        let mut engine = LlmEngine::open_with(dir, kv)?.with_threads(self.threads);
        let load_s = begin.elapsed().as_secs_f64();
        self.generate(&mut engine, WARM_PROMPT, WARM_STEPS)?;
        let generated = self.generate(&mut engine, self.prefill, self.decode)?;
        let Generated { prefill_s, decode_s, tokens } = generated;
        Ok(json!({
            "load_s": load_s,
            "prefill_s": prefill_s,
            "decode_s": decode_s,
            "tokens": tokens,
        }))
    }

    /// Fills every slot with a prompt, continues all of them greedily, and empties them again.
    fn generate(&self, engine: &mut LlmEngine, prefill: usize, decode: usize) -> Result<Generated> {
        let mut last = Vec::new();
        let begin = Instant::now();
        for slot in 0..self.slots {
            let tokens = prompt(slot, prefill, engine.vocab());
            last.push(engine.prefill(slot, &Prompt::plain(&tokens, None))?);
        }
        let prefill_s = begin.elapsed().as_secs_f64();
        let (mut tokens, mut decode_s) = (Vec::new(), 0.0);
        for _ in 0..decode {
            let step: Vec<_> = last.iter().map(|logits| largest(logits)).enumerate().collect();
            tokens.push(step[0].1);
            let begin = Instant::now();
            last = engine.decode(&step)?;
            decode_s += begin.elapsed().as_secs_f64();
        }
        (0..self.slots).for_each(|slot| engine.release(slot));
        Ok(Generated { prefill_s, decode_s, tokens })
    }
}

/// What a run took, and the tokens of its first slot.
struct Generated {
    /// All slots' prompts.
    prefill_s: f64,
    decode_s: f64,
    tokens: Vec<u32>,
}

/// Tokens that no two slots share; `xtask/cpu/llama.py` has the same rule.
fn prompt(slot: usize, length: usize, vocab: usize) -> Vec<u32> {
    (0..length).map(|place| ((1 + slot * 1009 + place * 7919) % vocab) as u32).collect()
}

/// The place of the largest logit, the first of equals.
fn largest(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (token, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = token;
        }
    }
    best as u32
}

/// Runs a graph of one picture several times, the first time to warm up.
fn run_graph(dir: &Path, threads: usize, runs: usize) -> Result<Value> {
    let begin = Instant::now();
    let engine = GraphEngine::open(dir)?.with_threads(threads);
    let load_s = begin.elapsed().as_secs_f64();
    let [input] = engine.inputs() else { return Err("a picture is one input".into()) };
    let shape: Vec<usize> = input.dims.iter().map(|dim| dim.unwrap_or(1)).collect();
    let count = shape.iter().product();
    let mut times = Vec::new();
    let mut first = Vec::new();
    for _ in 0..=runs {
        // The same ramp as in `xtask/cpu/ort.py`, in the range of normalised pixels.
        let data = (0..count).map(|index: usize| (index % 251) as f32 / 62.5 - 2.0).collect();
        let pixels = Tensor::F32 { shape: shape.clone(), data };
        let begin = Instant::now();
        let outputs = engine.run(vec![pixels])?;
        times.push(begin.elapsed().as_secs_f64());
        first = outputs[0].floats().ok_or("the output is no floats")?[..4].to_vec();
    }
    Ok(json!({ "load_s": load_s, "run_s": times[1..], "first": first }))
}
