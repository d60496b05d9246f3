//! Writes the weights of a synthetic model: bf16 noise of a trained model's scale.
//!
//! Each value is a pure function of model name, tensor name and index: one 64-bit hash, whose four
//! 16-bit lanes add up to a nearly normal integer, times one f32 step, rounded to bf16.  Integer
//! arithmetic and single correctly rounded f32 operations make the bytes equal on every machine.

use std::collections::BTreeMap;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::sizes::Size;
use crate::dtype::Dtype;
use crate::model::{Model, block_of};
use crate::safetensors::{SafetensorsError, TensorSpec, Writer};

/// Bytes made before they are written.
const CHUNK_BYTES: usize = 1 << 20;

/// Numbers that are made between two words of progress, at most: some tenths of a second.
const NUMBERS_PER_WORD: usize = 16 << 20;

/// The mean of the sum of four 16-bit lanes: 4 * 65535 / 2.
const LANES_MEAN: i32 = 131_070;

/// The standard deviation of the sum of four uniform 16-bit lanes: sqrt(4 * (2^32 - 1) / 12).
const LANES_DEVIATION: f64 = 37_837.227_02;

/// The deviation of embeddings.
pub(crate) const EMBEDDING: f64 = 0.5;

/// A tensor's values: `mean` plus noise of a standard deviation.  No value lies farther from the
/// mean than 3.47 deviations, the reach of four lanes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Noise {
    mean: f32,
    /// One unit of the lanes' sum.
    step: f32,
}

impl Noise {
    fn new(mean: f32, deviation: f64) -> Self {
        Self { mean, step: (deviation / LANES_DEVIATION) as f32 }
    }
}

/// Writes the tensors of `size` to `path`, under the names they are published by; `progress` hears a line for each
/// layer, and some within what is larger.
pub(super) fn write(
    size: &Size,
    path: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), SafetensorsError> {
    let (name, model) = (size.name, &size.model());
    let specs = specs(size, model);
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    let mut writer = Writer::create(path, &specs, &metadata)?;
    let mut chunk = vec![0; CHUNK_BYTES];
    let numbers = |spec: &TensorSpec| spec.shape.iter().product::<usize>();
    let (mut done, all) = (0, specs.iter().map(numbers).sum::<usize>());
    let (mut block, mut told) = ("", 0);
    for spec in &specs {
        let is_new = std::mem::replace(&mut block, block_of(&spec.name)) != block;
        write_tensor((name, model), spec, &mut chunk, &mut writer, &mut |made| {
            // The head of a large model takes as long as half of its layers.
            if made == 0 && is_new || done + made >= told + NUMBERS_PER_WORD {
                told = done + made;
                progress(&format!("[{told}/{all}] {block}"));
            }
        })?;
        done += numbers(spec);
    }
    writer.finish()
}

/// What is stored, a tensor of one source each.
fn specs(size: &Size, model: &Model) -> Vec<TensorSpec> {
    let sources = model.layouts[size.dimensions.layout()].sources;
    let spec = |(name, shape): (String, _)| {
        let name = sources(&name).swap_remove(0);
        TensorSpec { name, dtype: Dtype::BF16, shape }
    };
    model.tensors(size.dimensions.parts()).into_iter().map(spec).collect()
}

/// Writes one tensor; `told` hears before each chunk how many of its numbers are made.
fn write_tensor(
    (model_name, model): (&str, &Model),
    spec: &TensorSpec,
    chunk: &mut [u8],
    writer: &mut Writer,
    told: &mut dyn FnMut(usize),
) -> Result<(), SafetensorsError> {
    let (key, noise) = (key(model_name, &spec.name), noise(&spec.name, &spec.shape, model));
    let elements: usize = spec.shape.iter().product();
    let mut first = 0;
    while first < elements {
        told(first);
        let count = (chunk.len() / 2).min(elements - first);
        let bytes = &mut chunk[..count * 2];
        fill(key, noise, first as u64, bytes);
        writer.write(bytes)?;
        first += count;
    }
    Ok(())
}

/// The number that tells one tensor's noise from another's.
fn key(model: &str, tensor: &str) -> u64 {
    let mut hasher = Sha256::new();
    for part in ["smelt synthetic 1", model, tensor] {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    let digest = hasher.finalize();
    let (words, _) = digest.as_chunks::<8>();
    u64::from_le_bytes(words[0])
}

/// Fills `bytes` with the bf16 values from index `first` on.
fn fill(key: u64, noise: Noise, first: u64, bytes: &mut [u8]) {
    for (out, index) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(first..) {
        let value = noise.mean + normal(hash(key, index)) as f32 * noise.step;
        *out = to_bf16(value).to_le_bytes();
    }
}

/// SplitMix64 at position `index` (Steele, Lea, Flood 2014), which needs no state.
fn hash(key: u64, index: u64) -> u64 {
    let mut z = key.wrapping_add(index.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The sum of the four 16-bit lanes less its mean: nearly normal, and exact in f32.
fn normal(hash: u64) -> i32 {
    let lane = |shift: u32| ((hash >> shift) & 0xFFFF) as i32;
    lane(0) + lane(16) + lane(32) + lane(48) - LANES_MEAN
}

/// Rounds a finite value to the nearest bf16, ties to even.
fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) as u16
}

/// The scale of a tensor, such that activations keep the size they have in a trained model.
fn noise(name: &str, shape: &[usize], model: &Model) -> Noise {
    let inputs: usize = shape.iter().skip(1).product();
    let fan_in = 1.0 / (inputs as f64).sqrt();
    let is = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
    let of_tower = model.vision.as_ref().and_then(|vision| vision.noise(name, shape));
    if let Some([mean, deviation]) = of_tower {
        Noise::new(mean as f32, deviation)
    } else if model.encoder.is_some() && is(&["LayerNorm.weight"]) {
        Noise::new(1.0, 0.03)
    } else if is(&["classifier.weight"]) {
        // Scores of deviation 2, as far apart as those of trained rerankers are.
        Noise::new(0.0, 3.0 * fan_in)
    } else if is(&[
        "norm1.weight",
        "norm2.weight",
        "layernorm.weight",
        "model.norm.weight",
        "mlp1.0.weight",
    ]) {
        Noise::new(1.0, 0.03)
    } else if is(&[".bias"]) {
        Noise::new(0.0, 0.05)
    } else if is(&[".ls1", ".ls2"]) {
        Noise::new(0.2, 0.03)
    } else if is(&["position_embedding"]) {
        Noise::new(0.0, 0.2)
    } else if is(&["class_embedding", "embed_tokens.weight"]) {
        Noise::new(0.0, EMBEDDING)
    } else if is(&["lm_head.weight"]) {
        // Logits of deviation 3, the spread at which greedy choices are clear.
        Noise::new(0.0, 3.0 * fan_in)
    } else if is(&["q_norm.weight", "k_norm.weight"]) {
        // Normed heads score with deviation 1; this sharpens them as the projections below are.
        Noise::new(1.5, 0.1)
    } else if is(&["q_proj.weight", "k_proj.weight"]) {
        // Sharper attention than plain noise has, so that context matters.
        Noise::new(0.0, 1.5 * fan_in)
    } else if is(&["o_proj.weight", "down_proj.weight"]) {
        // All layers together add about twice what the embedding brought.
        let branches = (2 * model.llm.as_ref().map_or(1, |llm| llm.layers)) as f64;
        Noise::new(0.0, 2.0 / branches.sqrt() * fan_in)
    } else {
        Noise::new(0.0, fan_in)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::families;

    const HEAD: &str = "language_model.lm_head.weight";

    fn hex(bytes: &[u8]) -> String {
        Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn head_noise(model: &Model) -> Noise {
        let llm = model.llm.as_ref().unwrap();
        noise(HEAD, &[llm.vocab, llm.hidden], model)
    }

    /// The first MiB of the large head of the 1B model, made without the rest.
    fn head_start() -> Vec<u8> {
        let model = families::synthetic().nth(1).unwrap().model();
        let mut bytes = vec![0; 1 << 20];
        let noise = head_noise(&model);
        fill(key("internvl3-1b", HEAD), noise, 0, &mut bytes);
        bytes
    }

    #[test]
    fn the_large_models_values_are_pinned() {
        assert_eq!(
            hex(&head_start()),
            "69dedf47a4f5e2576f1a1b3c0f277877fa5232dc5688618ee430ec485190bc12"
        );
    }

    #[test]
    fn a_value_depends_on_its_index_alone() {
        let model = families::synthetic().nth(1).unwrap().model();
        let noise = head_noise(&model);
        let mut part = vec![0; 2000];
        fill(key("internvl3-1b", HEAD), noise, 12_345, &mut part);
        assert_eq!(part, head_start()[2 * 12_345..][..2000]);
    }

    #[test]
    fn the_noise_has_its_mean_and_deviation() {
        let mut bytes = vec![0; 2 << 20];
        fill(7, Noise::new(1.0, 0.25), 0, &mut bytes);
        let mut values = Vec::new();
        assert!(Dtype::BF16.widen(&bytes, &mut values));
        let count = values.len() as f64;
        let mean = values.iter().map(|&value| f64::from(value)).sum::<f64>() / count;
        let square = |value: &f32| (f64::from(*value) - mean).powi(2);
        let deviation = (values.iter().map(square).sum::<f64>() / count).sqrt();
        assert!((mean - 1.0).abs() < 0.001, "{mean}");
        assert!((deviation - 0.25).abs() < 0.001, "{deviation}");
    }

    #[test]
    fn rounding_is_to_the_nearest_bf16() {
        for index in 0..100_000 {
            let value = normal(hash(1, index)) as f32 * 1.7e-5;
            assert_eq!(to_bf16(value), half::bf16::from_f32(value).to_bits());
        }
        for tie in [0x3F80_8000, 0x3F81_8000, 0xBF80_8000] {
            let value = f32::from_bits(tie);
            assert_eq!(to_bf16(value), half::bf16::from_f32(value).to_bits());
        }
    }

    #[test]
    fn no_two_tensors_are_alike() {
        let mut keys = BTreeSet::new();
        let mut tensors = 0;
        for size in families::synthetic() {
            for (name, _) in size.model().tensors(size.dimensions.parts()) {
                keys.insert(key(size.name, &name));
                tensors += 1;
            }
        }
        assert_eq!(keys.len(), tensors);
    }
}
