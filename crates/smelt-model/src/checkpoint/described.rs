//! Describes checkpoints of which no weight is here: what a configuration calls for, and what quantising makes of it.
//!
//! Names, types and shapes of all tensors can be asked, so that what follows from them alone is known before anything
//! is fetched or rounded.  Whoever reads a weight is refused.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::packing::Packing;
use super::weight::{Packed, Weight};
use super::{
    CONFIG_FILE, Checkpoint, CheckpointError, ZERO_SUFFIX, is_linear, packing_of, scale_name,
};
use crate::decoder::LM_HEAD;
use crate::dtype::Dtype;
use crate::model::{Layout, Model, ModelPart};
use crate::packed::quantization::{Method, Quantization};
use crate::safetensors::{Shards, TensorSpec};
use crate::scheme::{IntGrid, Mark};
use crate::synthetic;

impl Checkpoint {
    /// The checkpoint that the configuration at `path` calls for.  Whether its head is stored is told by the bytes of all
    /// its weights, where they are known: published configurations contradict themselves.
    ///
    /// # Errors
    /// [`CheckpointError`] where the configuration is not read.
    pub fn described(
        config: &str,
        path: &Path,
        stored_bytes: Option<u64>,
    ) -> Result<Self, CheckpointError> {
        let quantization = match packing_of(config, path)? {
            Packing::Foreign(quantization) => Some(quantization),
            _ => None,
        };
        let model = Model::parse(config, path)?;
        let [with_head, without] = [true, false].map(|has_head| {
            let of = Described { model: &model, dtype: float_type(config), has_head };
            of.weights(quantization.as_ref())
        });
        let has_head = match stored_bytes {
            Some(stored) => stored.abs_diff(size(&with_head)) < stored.abs_diff(size(&without)),
            None => !is_tied(config),
        };
        let weights = if has_head { with_head } else { without };
        Ok(Self::without_files(config, path, model, weights))
    }

    /// The synthetic checkpoint of that name, as it would be written; nothing where nobody knows the name.
    pub fn described_synthetic(name: &str) -> Option<Self> {
        let config = synthetic::configuration(name, CONFIG_FILE)?;
        let path = Path::new(name);
        let model = Model::parse(&config, path).ok()?;
        let has_head = synthetic::parts(name)?.contains(&ModelPart::Head);
        let of = Described { model: &model, dtype: Dtype::BF16, has_head };
        let weights = of.weights(None);
        Some(Self::without_files(&config, path, model, weights))
    }

    fn without_files(
        config: &str,
        path: &Path,
        model: Model,
        weights: BTreeMap<String, Weight>,
    ) -> Self {
        let (config, files) = (config.to_owned(), Shards::of_readers(path, Vec::new()));
        let (layout, packing) = (Layout::CANONICAL, Packing::Canonical);
        let (path, dir) = (path.to_owned(), path.to_owned());
        let (mark, warnings) = (None, Vec::new());
        Self { path, dir, model, config, files, layout, packing, weights, mark, warnings }
    }

    /// The same model with a decoder of these tensors: each with the shape that the model calls for, and the integers that
    /// it holds.
    pub(crate) fn with_decoder(
        &self,
        tensors: impl IntoIterator<Item = (TensorSpec, Vec<usize>, Option<IntGrid>)>,
        mark: Mark,
    ) -> Self {
        let weight = |(spec, logical, grid): (TensorSpec, Vec<usize>, Option<IntGrid>)| {
            let columns = logical.last().copied().unwrap_or(1);
            let packed = grid.map(|grid| packed(grid, columns));
            (spec.name.clone(), weight(spec, logical, packed))
        };
        let weights = tensors.into_iter().map(weight).collect();
        let made = Self::without_files(&self.config, &self.path, self.model.clone(), weights);
        Self { mark: Some(mark), ..made }
    }

    /// Bytes of all tensors in canonical form.
    pub fn bytes(&self) -> u64 {
        size(&self.weights)
    }
}

/// What is known of a checkpoint's floats.
struct Described<'a> {
    model: &'a Model,
    dtype: Dtype,
    has_head: bool,
}

impl Described<'_> {
    fn weights(&self, quantization: Option<&Quantization>) -> BTreeMap<String, Weight> {
        let mut parts = self.model.parts();
        parts.retain(|part| self.has_head || *part != ModelPart::Head);
        let tensors = self.model.tensors(&parts).into_iter();
        let weights = tensors.flat_map(|(name, shape)| {
            let grid = quantization.and_then(|quantization| self.grid(&name, quantization));
            if let (Some(grid), &[rows, columns]) = (grid, shape.as_slice()) {
                return quantized(&name, [rows, columns], grid);
            }
            vec![float(name, self.dtype, shape)]
        });
        weights.map(|weight| (weight.name.clone(), weight)).collect()
    }

    /// The integers of a tensor that another tool packed.  Heads are floats in these formats.
    fn grid(&self, name: &str, quantization: &Quantization) -> Option<IntGrid> {
        let layout = self.model.layouts.first()?;
        let source = (layout.sources)(name).into_iter().next()?;
        let module = source.strip_suffix(".weight")?;
        if !is_linear(name) || name == LM_HEAD || quantization.keeps(module) {
            return None;
        }
        let grid = |bits: u32, group, has_zero| {
            let bits = u8::try_from(bits).ok()?;
            Some(IntGrid { bits, group, has_zero })
        };
        match &quantization.method {
            Method::Awq { group } => grid(4, *group, true),
            // Its zeros mean the middle in most of the published ones, and are then left out.
            Method::Gptq { bits, group, .. } => grid(*bits, *group, false),
            Method::CompressedTensors { layers } => {
                let layer = layers.first()?;
                grid(layer.bits, layer.group, !layer.is_symmetric)
            }
        }
    }
}

fn float(name: String, dtype: Dtype, shape: Vec<usize>) -> Weight {
    let spec = TensorSpec { name, dtype, shape: shape.clone() };
    weight(spec, shape, None)
}

/// A packed weight `[rows, columns]` in canonical form, as readers present it.
fn quantized(name: &str, [rows, columns]: [usize; 2], grid: IntGrid) -> Vec<Weight> {
    let groups = grid.groups(columns);
    let dtype = if grid.bits == 4 { Dtype::U8 } else { Dtype::I8 };
    let quants =
        TensorSpec { name: name.to_owned(), dtype, shape: vec![rows, grid.row_bytes(columns)] };
    let shape = if groups == 1 { vec![rows] } else { vec![rows, groups] };
    let mut all = vec![weight(quants, vec![rows, columns], Some(packed(grid, columns)))];
    all.push(float(scale_name(name), Dtype::F16, shape));
    if grid.has_zero {
        all.push(float(format!("{name}{ZERO_SUFFIX}"), Dtype::U8, vec![rows, groups]));
    }
    all
}

fn packed(grid: IntGrid, columns: usize) -> Packed {
    let IntGrid { bits, group, has_zero: has_zeros } = grid;
    let group = group.unwrap_or(columns);
    Packed { bits: bits.into(), group, has_zeros, order: None, form: None }
}

fn weight(spec: TensorSpec, logical: Vec<usize>, packed: Option<Packed>) -> Weight {
    let TensorSpec { name, dtype, shape } = spec;
    Weight { logical, packed, ..Weight::of_pieces(&name, dtype, shape, Vec::new()) }
}

fn size(weights: &BTreeMap<String, Weight>) -> u64 {
    weights.values().map(Weight::size_bytes).sum()
}

/// The objects of a configuration that may speak of its decoder.
fn objects(config: &str) -> [Value; 3] {
    let whole: Value = serde_json::from_str(config).unwrap_or_default();
    let inner = ["text_config", "llm_config"].map(|name| whole[name].clone());
    let [text, llm] = inner;
    [whole, text, llm]
}

/// The type that a configuration says its floats have; bf16, as nearly all have, where it says nothing.
fn float_type(config: &str) -> Dtype {
    let words = objects(config).map(|object| {
        let word = object["torch_dtype"].as_str().or_else(|| object["dtype"].as_str());
        word.map(str::to_owned)
    });
    match words.into_iter().flatten().next().as_deref() {
        Some("float32") => Dtype::F32,
        Some("float16") => Dtype::F16,
        _ => Dtype::BF16,
    }
}

/// Whether a configuration says that the embedding serves as the head.
fn is_tied(config: &str) -> bool {
    let said = objects(config).map(|object| object["tie_word_embeddings"].as_bool());
    said.into_iter().flatten().any(|tied| tied)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names, types and shapes of all tensors.
    fn tensors(checkpoint: &Checkpoint) -> Vec<(String, Dtype, Vec<usize>)> {
        let of = |weight: &Weight| (weight.name.clone(), weight.dtype, weight.shape.clone());
        checkpoint.tensors().map(of).collect()
    }

    #[test]
    fn a_synthetic_model_is_described_as_it_is_written() {
        for name in ["internvl3-tiny", "qwen2_5_vl-tiny", "qwen3_vl-tiny", "smolvlm-tiny"] {
            let dir = tempfile::tempdir().unwrap();
            synthetic::write(name, dir.path(), &mut |_| {}).unwrap();
            let written = Checkpoint::open(dir.path()).unwrap();
            let described = Checkpoint::described_synthetic(name).unwrap();
            assert_eq!(tensors(&described), tensors(&written), "{name}");
            assert_eq!(described.has_lm_head(), written.has_lm_head(), "{name}");
        }
        assert!(Checkpoint::described_synthetic("nobody").is_none());
    }

    #[test]
    fn the_bytes_of_all_weights_tell_whether_the_head_is_stored() {
        for name in ["internvl3-tiny", "qwen2_5_vl-tiny"] {
            let true_one = Checkpoint::described_synthetic(name).unwrap();
            let path = Path::new(CONFIG_FILE);
            let config = synthetic::configuration(name, CONFIG_FILE).unwrap();
            // As published ones do, it says the contrary.
            let [tied, free] = [true, false].map(|is| format!("\"tie_word_embeddings\": {is}"));
            let config = match config.contains(&tied) {
                true => config.replace(&tied, &free),
                false => config.replace(&free, &tied),
            };
            let header = 4_000;
            let stored = Some(true_one.bytes() + header);
            let described = Checkpoint::described(&config, path, stored).unwrap();
            assert_eq!(tensors(&described), tensors(&true_one), "{name}");
        }
    }

    #[test]
    fn what_is_described_cannot_be_read() {
        let described = Checkpoint::described_synthetic("internvl3-tiny").unwrap();
        let norm = crate::decoder::FIRST_NORM;
        assert_eq!(described.shape(norm).unwrap().len(), 1);
        let error = described.read_f32(norm).unwrap_err().to_string();
        assert!(error.contains("lacks tensor") && error.contains(norm), "{error}");
    }
}
