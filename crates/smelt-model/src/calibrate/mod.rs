//! Watches what goes into each linear layer of a language model while it reads prompts.
//!
//! Prompts run through the f32 reference layer by layer, some of them at once; what is seen of an
//! input goes to disk before the next layer comes.  [`Calibration`] serves it to the quantisers.
//! Knows nothing of tokenizers: prompts come as tokens.

mod statistics;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::decoder::{Decoder, EMBEDDING, LM_HEAD};
use crate::dtype::Dtype;
use crate::reference::{Prompt, ReferenceError, observe};
use crate::safetensors::{SafetensorsError, TensorSpec, Writer};

use statistics::{FORMAT, Index, Input};

pub use statistics::{Calibration, CalibrationError, INDEX_FILE, ROWS_MAX, STATISTICS_FILE};

/// The most tokens of all prompts: between two layers they take 384 MiB at 2B.
pub const TOKENS_MAX: usize = 65_536;

/// f32 bytes of a block of weight rows.
const BLOCK_BYTES: usize = 1 << 20;

/// The least |x| and |w| that counts for SmoothQuant's scales, as its authors have it.
const SMOOTH_FLOOR: f32 = 1e-5;

/// Why nothing could be seen.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// The checkpoint could not be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The prompts could not be run.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// The numbers could not be written.
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
    /// The system refused the index or the directory.
    #[error("cannot write {}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is nothing to run, or too much.
    #[error("the prompts have {tokens} tokens, but must have 1 to {TOKENS_MAX}; give others")]
    Tokens {
        /// Tokens of all prompts.
        tokens: usize,
    },
    /// An activation is not finite, so nothing can be learnt from it.
    #[error(
        "the input of {linear} is not finite at channel {channel}; the checkpoint's weights are damaged"
    )]
    NotFinite {
        /// The first linear that takes it.
        linear: String,
        /// The channel.
        channel: usize,
    },
}

/// What to keep of what is seen.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Tokens of which activations are kept, at most [`ROWS_MAX`].
    pub rows: usize,
    /// Where the prompts came from, in words, for the record.
    pub prompts: &'a str,
}

/// Runs `prompts` through the language model of `ckpt` and writes what was seen of the inputs of
/// its linears into `out_dir`, which is created if absent.
///
/// For each input: mean |x| and largest |x| of each channel over all tokens, SmoothQuant's scales
/// `sqrt(max|x| / max|w|)` (Xiao et al., 2022, exponent 1/2), and the activations of as many tokens
/// as asked for, drawn once for all inputs by a fixed rule.
///
/// # Errors
/// [`CalibrateError`] naming the file or the linear; what was written until then stays.
pub fn calibrate(
    ckpt: &Checkpoint,
    prompts: &[Prompt<'_>],
    options: Options<'_>,
    out_dir: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), CalibrateError> {
    let tokens = prompts.iter().map(|prompt| prompt.tokens.len()).sum();
    if !(1..=TOKENS_MAX).contains(&tokens) {
        return Err(CalibrateError::Tokens { tokens });
    }
    let kept = drawn(tokens, options.rows.clamp(1, ROWS_MAX));
    let inputs = inputs(ckpt.decoder()?);
    fs::create_dir_all(out_dir).map_err(failed(out_dir))?;
    let specs: Vec<TensorSpec> = inputs.iter().flat_map(|i| i.specs(kept.len())).collect();
    let mut writer = Writer::create(&out_dir.join(STATISTICS_FILE), &specs, &BTreeMap::new())?;
    let mut ended = Ok(());
    let mut open: Vec<Seeing<'_>> = Vec::new();
    let mut expected = inputs.iter();
    observe(ckpt, prompts, progress, &mut |name, x| {
        let at = open.iter().position(|seeing| seeing.input.name == name).unwrap_or_else(|| {
            let input = expected.next().filter(|input| input.name == name);
            let input = input.expect("the reference meets the inputs in the order of the list");
            open.push(Seeing::new(input));
            open.len() - 1
        });
        open[at].take(x, &kept);
        if open[at].tokens == tokens && ended.is_ok() {
            ended = open.remove(at).write(ckpt, &mut writer);
        }
    })?;
    ended?;
    writer.finish()?;
    let prompts = options.prompts.to_owned();
    let index = Index { format: FORMAT, tokens, rows: kept.len(), prompts, inputs };
    let text = serde_json::to_string_pretty(&index).expect("an index is text and numbers");
    let path = out_dir.join(INDEX_FILE);
    fs::write(&path, text + "\n").map_err(failed(&path))
}

/// The inputs of all linears, in the order the reference meets them.
fn inputs(llm: &Decoder) -> Vec<Input> {
    let mut inputs = Vec::new();
    let mut put = |at: &str, names: &[&str], channels| {
        let linear = |name: &&str| format!("{at}.{name}.weight");
        let linears = names.iter().map(linear).collect();
        inputs.push(Input { name: format!("{at}.{}", names[0]), channels, linears });
    };
    for layer in 0..llm.layers {
        let layer = format!("language_model.model.layers.{layer}");
        let (attention, mlp) = (format!("{layer}.self_attn"), format!("{layer}.mlp"));
        put(&attention, &["q_proj", "k_proj", "v_proj"], llm.hidden);
        put(&attention, &["o_proj"], llm.q_width());
        put(&mlp, &["gate_proj", "up_proj"], llm.hidden);
        put(&mlp, &["down_proj"], llm.intermediate);
    }
    put("language_model", &["lm_head"], llm.hidden);
    inputs
}

/// An input while rows of it come in.
struct Seeing<'a> {
    input: &'a Input,
    tokens: usize,
    /// Σ|x| and max|x| of each channel.
    sums: Vec<f64>,
    most: Vec<f32>,
    /// The rows that are kept, as they are stored.
    kept: Vec<u8>,
}

impl<'a> Seeing<'a> {
    fn new(input: &'a Input) -> Self {
        let channels = input.channels;
        let (sums, most) = (vec![0.0; channels], vec![0.0; channels]);
        Self { input, tokens: 0, sums, most, kept: Vec::new() }
    }

    /// Takes the rows `x` `[rows, channels]`, which follow those before; `kept` are the numbers of the
    /// tokens to keep, rising.
    fn take(&mut self, x: &[f32], kept: &[usize]) {
        for row in x.chunks(self.input.channels) {
            for ((sum, most), x) in self.sums.iter_mut().zip(&mut self.most).zip(row) {
                *sum += f64::from(x.abs());
                *most = most.max(x.abs());
            }
            if kept.binary_search(&self.tokens).is_ok() {
                self.kept.extend(narrow(Dtype::BF16, row));
            }
            self.tokens += 1;
        }
    }

    /// Writes what there is to say.
    fn write(self, ckpt: &Checkpoint, writer: &mut Writer) -> Result<(), CalibrateError> {
        if let Some(channel) = self.sums.iter().position(|sum| !sum.is_finite()) {
            let linear = self.input.linears[0].clone();
            return Err(CalibrateError::NotFinite { linear, channel });
        }
        let count = self.tokens as f64;
        let mean: Vec<f32> = self.sums.iter().map(|sum| (sum / count) as f32).collect();
        let smooth = smooth(&self.most, &largest_weights(ckpt, self.input)?);
        for vector in [mean, self.most, smooth] {
            writer.write(&narrow(Dtype::F32, &vector))?;
        }
        Ok(writer.write(&self.kept)?)
    }
}

fn narrow(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    dtype.narrow(values).expect("F32 and BF16 are floats").0
}

/// The largest |w| of each channel over all linears that take `input`.
fn largest_weights(ckpt: &Checkpoint, input: &Input) -> Result<Vec<f32>, CheckpointError> {
    let mut most = vec![0.0_f32; input.channels];
    let step = (BLOCK_BYTES / size_of::<f32>() / input.channels).max(1);
    let mut block = Vec::new();
    for linear in &input.linears {
        let is_tied = linear == LM_HEAD && !ckpt.has_lm_head();
        let linear = if is_tied { EMBEDDING } else { linear };
        let rows = ckpt.shape(linear)?[0];
        for first in (0..rows).step_by(step) {
            ckpt.read_rows_f32(linear, first..rows.min(first + step), &mut block)?;
            for row in block.chunks(input.channels) {
                most.iter_mut().zip(row).for_each(|(most, w)| *most = most.max(w.abs()));
            }
        }
    }
    Ok(most)
}

fn smooth(most: &[f32], weights: &[f32]) -> Vec<f32> {
    let pairs = most.iter().zip(weights);
    pairs.map(|(x, w)| (x.max(SMOOTH_FLOOR) / w.max(SMOOTH_FLOOR)).sqrt()).collect()
}

/// `count` of the numbers below `total` in rising order, all of them if there are no more.
///
/// Selection sampling (Knuth, volume 2, algorithm S) by a fixed sequence of numbers.
fn drawn(total: usize, count: usize) -> Vec<usize> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut left = count.min(total);
    let mut kept = Vec::with_capacity(left);
    for number in 0..total {
        // Knuth's MMIX generator; its upper half is good enough to draw with.
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let chance = (state >> 33) as usize % (total - number);
        if chance < left {
            kept.push(number);
            left -= 1;
        }
    }
    kept
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> CalibrateError {
    move |source| CalibrateError::Io { path: path.into(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Sample;

    #[test]
    fn numbers_are_drawn_once_in_order_and_always_the_same() {
        for (total, count) in [(1, 1), (7, 7), (7, 20), (1000, 64), (8192, 2048)] {
            let kept = drawn(total, count);
            assert_eq!(kept.len(), count.min(total));
            assert!(kept.windows(2).all(|pair| pair[0] < pair[1]));
            assert!(kept.iter().all(|number| *number < total));
            assert_eq!(kept, drawn(total, count));
        }
        let kept = drawn(10_000, 100);
        assert!(kept.iter().filter(|number| **number < 5000).count().abs_diff(50) < 25);
    }

    /// What the linears of the tiny model are fed by `sequences`.
    fn fed(ckpt: &Checkpoint, sequences: &[&[u32]]) -> Vec<(String, Vec<f32>)> {
        let sequences: Vec<_> =
            sequences.iter().map(|tokens| Prompt::plain(tokens, None)).collect();
        let mut fed: Vec<(String, Vec<f32>)> = Vec::new();
        let mut see = |name: &str, x: &[f32]| match fed.iter_mut().find(|fed| fed.0 == name) {
            Some((_, rows)) => rows.extend(x),
            None => fed.push((name.to_owned(), x.to_vec())),
        };
        observe(ckpt, &sequences, &mut |_| {}, &mut see).unwrap();
        fed
    }

    #[test]
    fn sequences_see_nothing_of_each_other() {
        let sample = Sample::tiny();
        let ckpt = Checkpoint::open(sample.dir()).unwrap();
        let (a, b) = ([5, 6, 7, 8], [300, 6, 20]);
        let together = fed(&ckpt, &[&a, &b]);
        assert_eq!(together.len(), 3 * 4 + 1);
        for (both, (one, other)) in
            together.iter().zip(fed(&ckpt, &[&a]).iter().zip(&fed(&ckpt, &[&b])))
        {
            assert!(both.1 == [one.1.as_slice(), &other.1].concat(), "{}", both.0);
        }
    }

    #[test]
    fn many_prompts_are_seen_as_few_are() {
        let sample = Sample::tiny();
        let ckpt = Checkpoint::open(sample.dir()).unwrap();
        let prompts: Vec<Vec<u32>> = (0..5).map(|n| vec![7 * n + 3; 400]).collect();
        let all: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
        let together = fed(&ckpt, &all);
        let alone: Vec<_> = all.iter().map(|tokens| fed(&ckpt, &[tokens])).collect();
        for (n, (name, x)) in together.iter().enumerate() {
            let parts: Vec<&[f32]> = alone.iter().map(|fed| fed[n].1.as_slice()).collect();
            assert!(*x == parts.concat(), "{name}");
        }
    }

    #[test]
    fn what_is_read_is_what_was_seen() {
        let sample = Sample::tiny();
        let ckpt = Checkpoint::open(sample.dir()).unwrap();
        let tokens: Vec<u32> = (0..50).map(|n| n * 7 % 500).collect();
        let sequences = [Prompt::plain(&tokens, None)];
        let out = sample.dir().join("seen");
        let options = Options { rows: 20, prompts: "test" };
        calibrate(&ckpt, &sequences, options, &out, &mut |_| {}).unwrap();
        let seen = Calibration::open(&out).unwrap();
        for (name, x) in fed(&ckpt, &[&tokens]) {
            let channels = x.len() / tokens.len();
            let linear = format!("{name}.weight");
            assert_eq!(seen.input_of(&linear, channels).unwrap(), name);
            let channel = |n: usize| x.iter().skip(n).step_by(channels).map(|x| x.abs());
            for n in [0, channels / 2, channels - 1] {
                let mean = channel(n).sum::<f32>() / 50.0;
                assert!((seen.mean(&name).unwrap()[n] / mean - 1.0).abs() < 1e-5);
                assert_eq!(seen.largest(&name).unwrap()[n], channel(n).fold(0.0, f32::max));
            }
            let kept = seen.activations(&name).unwrap();
            for (row, kept) in drawn(50, 20).into_iter().zip(kept.chunks(channels)) {
                let x = &x[row * channels..][..channels];
                assert!(x.iter().zip(kept).all(|(x, k)| (x - k).abs() <= x.abs() / 256.0));
            }
        }
        let down = "language_model.model.layers.1.mlp.down_proj";
        let weights = ckpt.read_f32(&format!("{down}.weight")).unwrap();
        let largest = weights.iter().step_by(160).fold(0.0_f32, |most, w| most.max(w.abs()));
        let smooth = (seen.largest(down).unwrap()[0] / largest).sqrt();
        assert_eq!(seen.smooth(down).unwrap()[0], smooth);
    }

    #[test]
    fn too_few_and_too_many_tokens_are_refused() {
        let sample = Sample::tiny();
        let ckpt = Checkpoint::open(sample.dir()).unwrap();
        let out = sample.dir().join("seen");
        for count in [0, TOKENS_MAX + 1] {
            let tokens = vec![1; count];
            let sequences = [Prompt::plain(&tokens, None)];
            let options = Options { rows: 20, prompts: "test" };
            let error = calibrate(&ckpt, &sequences, options, &out, &mut |_| {}).unwrap_err();
            assert!(error.to_string().contains(&format!("have {count} tokens")), "{error}");
            assert!(!out.exists());
        }
    }
}
