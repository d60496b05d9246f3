//! Finds the weights of a checkpoint that are not stored as floats.
//!
//! How a checkpoint packs its weights is a [`Packing`]; asked for a tensor of the model, it finds
//! the stored tensors that make it, checked, or says that it is floats.  What the zeros of GPTQ mean
//! can be told only from all of them, so weights are collected first and presented together.
//! Knows nothing of families.

use std::collections::BTreeSet;
use std::sync::Arc;

use smelt_tensor::packed::{BlockForm, group_of};

use crate::dtype::Dtype;
use crate::packed::gguf::Gguf;
use crate::packed::gguf::blocks::{BLOCK, Blocks, Kind, Take};
use crate::packed::present::{self, Made, Recipe};
use crate::packed::quantization::{Method, Quantization};
use crate::packed::stored::{Finder, Stored};
use crate::packed::zeros::{Label, StoredZeros, judge};
use crate::packed::{PackedError, awq, compressed_tensors, gptq};
use crate::safetensors::{SafetensorsError, Shards};

use super::weight::{Packed, Source, Weight};
use super::{FACTOR_SUFFIX, HIGH_SUFFIX, MIN_FACTOR_SUFFIX, MIN_SUFFIX, SCALE_SUFFIX};

/// How the weights of a checkpoint are packed.
#[derive(Debug)]
pub(super) enum Packing {
    /// Not at all.
    Floats,
    /// In the canonical form, as [`crate::quantize`] writes it.
    Canonical,
    /// By another tool, as its configuration says.
    Foreign(Quantization),
    /// In blocks of a GGUF file; with the width of a head.
    Gguf(Gguf, usize),
}

/// A weight that was found packed, and the stored tensors it is made of.
pub(super) struct PackedWeight {
    form: PackedSource,
    /// Names of stored tensors.
    pub(super) claimed: Vec<String>,
}

enum PackedSource {
    /// Made once the meaning of all zeros is known.
    Stored(Stored),
    /// Made already.
    Made(Vec<Made>, Packed),
    /// Floats whose rows have to be moved.
    Moved(Made),
}

/// The tensors that belong to a packed module, whatever the format.
const PARTS: [&str; 10] = [
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
    "weight_packed",
    "weight_scale",
    "weight_zero_point",
    "weight_shape",
    "weight_g_idx",
    "weight",
];

impl Packing {
    /// Whether the stored tensor `source` is there, packed or not.
    pub(super) fn has(&self, files: &Shards, source: &str) -> bool {
        files.get(source).is_some() || self.foreign_quants(files, source).is_some()
    }

    /// The module of the stored name `source`, if its weight is packed by another tool.
    fn foreign_quants<'a>(&self, files: &Shards, source: &'a str) -> Option<&'a str> {
        let Self::Foreign(quantization) = self else { return None };
        let module = source.strip_suffix(".weight").filter(|module| !quantization.keeps(module))?;
        let quants = match quantization.method {
            Method::Awq { .. } => awq::QUANTS,
            Method::Gptq { .. } => gptq::QUANTS,
            Method::CompressedTensors { .. } => compressed_tensors::QUANTS,
        };
        files.get(&format!("{module}.{quants}")).map(|_| module)
    }

    /// The packed weight that the stored name `source` stands for, which the model calls for with
    /// `shape`; nothing if it is stored as floats, or not at all.
    pub(super) fn find(
        &self,
        files: &Shards,
        source: &str,
        shape: &[usize],
    ) -> Result<Option<PackedWeight>, PackedError> {
        match self {
            Self::Floats => Ok(None),
            Self::Foreign(quantization) => {
                let (Some(module), &[rows, columns]) = (self.foreign_quants(files, source), shape)
                else {
                    return Ok(None);
                };
                let finder = Finder { files, module, shape: [rows, columns] };
                foreign(&finder, quantization).map(Some)
            }
            Self::Canonical => canonical(files, source, shape),
            Self::Gguf(gguf, head_dim) => blocks(files, gguf, *head_dim, source, shape),
        }
    }

    /// Biases that the model does not call for and that add nothing, as some GPTQ tools store them;
    /// `module` is a packed module, `is_wanted` whether the model calls for its bias.
    pub(super) fn idle_bias(
        &self,
        files: &Shards,
        source: &str,
        is_wanted: bool,
    ) -> Result<Option<String>, PackedError> {
        let is_gptq =
            matches!(self, Self::Foreign(Quantization { method: Method::Gptq { .. }, .. }));
        let Some(module) = self.foreign_quants(files, source).filter(|_| is_gptq && !is_wanted)
        else {
            return Ok(None);
        };
        let finder = Finder { files, module, shape: [0, 0] };
        Ok(gptq::idle_bias(&finder)?.map(|bias| bias.name.clone()))
    }

    /// The canonical tensors of all the packed weights of a checkpoint, each with the name and the
    /// shape the model has for it; and what to tell the user.
    pub(super) fn present(
        &self,
        files: &Shards,
        found: Vec<(String, Vec<usize>, PackedWeight)>,
    ) -> Result<(Vec<Weight>, Option<&'static str>), SafetensorsError> {
        let mut seen = StoredZeros::default();
        for (_, _, found) in &found {
            if let PackedSource::Stored(stored) = &found.form {
                present::note_zeros(files, stored, &mut seen)?;
            }
        }
        let meaning = judge(&seen, self.label(), self.bits());
        let mut weights = Vec::new();
        for (name, logical, PackedWeight { form, .. }) in found {
            match form {
                PackedSource::Moved(made) => weights.push(weight(&name, &logical, made, None)),
                PackedSource::Made(made, packed) => {
                    named(&name, &logical, made, &packed, &mut weights)
                }
                PackedSource::Stored(stored) => {
                    let packed = packed_of(&stored, meaning.is_symmetric);
                    let made = present::tensors(stored, &meaning);
                    named(&name, &logical, made, &packed, &mut weights);
                }
            }
        }
        Ok((weights, meaning.warning))
    }

    fn label(&self) -> Label {
        match self {
            Self::Foreign(Quantization { method: Method::Gptq { label, .. }, .. }) => *label,
            _ => Label::Real,
        }
    }

    fn bits(&self) -> u32 {
        match self {
            Self::Foreign(Quantization { method: Method::Gptq { bits, .. }, .. }) => *bits,
            _ => 4,
        }
    }
}

fn foreign(finder: &Finder<'_>, quantization: &Quantization) -> Result<PackedWeight, PackedError> {
    let stored = match &quantization.method {
        Method::Awq { group } => awq::find(finder, *group)?,
        Method::Gptq { bits, group, .. } => gptq::find(finder, *bits, *group)?,
        Method::CompressedTensors { layers } => compressed_tensors::find(finder, layers)?,
    };
    let names = PARTS.map(|part| finder.name(part)).into_iter();
    let claimed = names.filter(|name| finder.files.get(name).is_some()).collect();
    Ok(PackedWeight { form: PackedSource::Stored(stored), claimed })
}

fn packed_of(stored: &Stored, is_symmetric: bool) -> Packed {
    let columns = stored.shape[1];
    Packed {
        bits: stored.quants.1.bits,
        group: group_of(columns, stored.groups).unwrap_or(columns),
        has_zeros: stored.zeros.is_some() && !is_symmetric,
        order: stored.order.as_deref().map(Arc::from),
        form: None,
    }
}

/// Names the canonical tensors of the weight `name`, and appends them to `weights`.
fn named(
    name: &str,
    logical: &[usize],
    all: Vec<Made>,
    packed: &Packed,
    weights: &mut Vec<Weight>,
) {
    for made in all {
        let is_quantized = made.suffix.is_empty();
        let shape = if is_quantized { logical.to_vec() } else { made.shape.clone() };
        weights.push(weight(name, &shape, made, is_quantized.then(|| packed.clone())));
    }
}

fn weight(name: &str, logical: &[usize], made: Made, packed: Option<Packed>) -> Weight {
    let Made { suffix, dtype, shape, recipe } = made;
    let (name, logical, source) =
        (format!("{name}{suffix}"), logical.to_vec(), Source::Made(recipe));
    Weight { name, dtype, shape, logical, source, packed }
}

/// A weight in canonical form.
fn canonical(
    files: &Shards,
    source: &str,
    shape: &[usize],
) -> Result<Option<PackedWeight>, PackedError> {
    let &[rows, columns] = shape else { return Ok(None) };
    let finder = Finder { files, module: source, shape: [rows, columns] };
    let Some(quants) = files.get(source).filter(|t| matches!(t.dtype, Dtype::I8 | Dtype::U8))
    else {
        return Ok(None);
    };
    let bits = if quants.dtype == Dtype::U8 { 4 } else { 8 };
    let row_bytes = if bits == 4 { columns.div_ceil(2) } else { columns };
    finder.check(quants, &[rows, row_bytes], &[quants.dtype], "I8 or U8")?;
    let mut claimed = vec![source.to_owned()];
    let mut made = vec![plain(quants, "")];
    if let Some(form) = canonical_form(&finder, quants)? {
        for part in form_parts(form, finder.shape) {
            let tensor = companion(&finder, part.suffix)?;
            finder.check(tensor, &part.shape, &[part.dtype], part.dtype.name())?;
            claimed.push(tensor.name.clone());
            made.push(plain(tensor, part.suffix));
        }
        return Ok(Some(PackedWeight { form: PackedSource::Made(made, packed_in(form)), claimed }));
    }
    let scale = companion(&finder, "_scale")?;
    let groups = canonical_groups(&finder, scale)?;
    made.push(plain(scale, "_scale"));
    let zeros = files.get(&format!("{source}_zero"));
    if let Some(zeros) = zeros {
        finder.check(zeros, &[rows, groups], &[Dtype::U8], "U8")?;
        made.push(plain(zeros, "_zero"));
    }
    let order = read_order(&finder)?;
    if let (Some(_), Some(tensor)) = (&order, files.get(&format!("{source}_order"))) {
        made.push(plain(tensor, "_order"));
    }
    claimed.extend(made.iter().skip(1).map(|part| format!("{source}{}", part.suffix)));
    let group = group_of(columns, groups).unwrap_or(columns);
    let packed = Packed { bits, group, has_zeros: zeros.is_some(), order, form: None };
    Ok(Some(PackedWeight { form: PackedSource::Made(made, packed), claimed }))
}

fn packed_in(form: BlockForm) -> Packed {
    let BlockForm { bits, group, .. } = form;
    Packed { bits, group, has_zeros: false, order: None, form: Some(form) }
}

/// A tensor that stands beside the quants of a weight.
struct FormPart {
    suffix: &'static str,
    dtype: Dtype,
    shape: Vec<usize>,
    /// What of a block makes it.
    take: Take,
}

/// What stands beside the quants of a weight `[rows, columns]` in `form`, scales first.
fn form_parts(form: BlockForm, [rows, columns]: [usize; 2]) -> Vec<FormPart> {
    let part = |suffix, dtype, share: usize, take| {
        let width = columns / share;
        let shape = if width == 1 { vec![rows] } else { vec![rows, width] };
        FormPart { suffix, dtype, shape, take }
    };
    let mut parts = vec![part(SCALE_SUFFIX, Dtype::F16, form.span, Take::Scales)];
    if form.has_factors() {
        parts.push(part(FACTOR_SUFFIX, Dtype::I8, form.group, Take::Factors));
    }
    if form.has_mins {
        parts.push(part(MIN_SUFFIX, Dtype::F16, form.span, Take::Mins));
    }
    if form.has_mins && form.has_factors() {
        parts.push(part(MIN_FACTOR_SUFFIX, Dtype::I8, form.group, Take::MinFactors));
    }
    parts.extend(form.word_columns().map(|w| part(HIGH_SUFFIX, Dtype::U32, w, Take::High)));
    parts
}

/// The form of a canonical weight, if what stands beside its quants says that it has one.
fn canonical_form(
    finder: &Finder<'_>,
    quants: &crate::safetensors::Tensor,
) -> Result<Option<BlockForm>, PackedError> {
    let get = |suffix: &str| finder.files.get(&format!("{}{suffix}", finder.module));
    let (high, factors, mins) = (get(HIGH_SUFFIX), get(FACTOR_SUFFIX), get(MIN_SUFFIX));
    if quants.dtype != Dtype::U8 || (high.is_none() && factors.is_none() && mins.is_none()) {
        return Ok(None);
    }
    let columns = finder.shape[1];
    let width = |tensor: &crate::safetensors::Tensor| tensor.shape.get(1).copied().unwrap_or(1);
    let bits = match high.map(width) {
        None => 4,
        Some(words) if words * 32 == columns => 5,
        Some(_) => 6,
    };
    let form = BlockForm::of(bits, factors.is_some(), mins.is_some());
    let fits = |form: &BlockForm| columns.is_multiple_of(form.span.max(BLOCK));
    form.filter(fits).map(Some).ok_or_else(|| PackedError::BadValues {
        path: finder.files.path().into(),
        tensor: quants.name.clone(),
        problem: "has scales, minima and high bits that no form has".to_owned(),
    })
}

fn plain(tensor: &crate::safetensors::Tensor, suffix: &'static str) -> Made {
    let (dtype, shape) = (tensor.dtype, tensor.shape.clone());
    Made { suffix, dtype, shape, recipe: Recipe::Plain(tensor.clone()) }
}

/// The tensor whose name is the weight's with `suffix`.
fn companion<'a>(
    finder: &Finder<'a>,
    suffix: &str,
) -> Result<&'a crate::safetensors::Tensor, PackedError> {
    let tensor = format!("{}{suffix}", finder.module);
    finder.files.get(&tensor).ok_or_else(|| PackedError::Missing {
        path: finder.files.path().into(),
        tensor,
        beside: finder.module.to_owned(),
    })
}

/// The groups of a row that the shape of `scale` gives.
fn canonical_groups(
    finder: &Finder<'_>,
    scale: &crate::safetensors::Tensor,
) -> Result<usize, PackedError> {
    const TYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::BF16];
    let [rows, columns] = finder.shape;
    let groups = match scale.shape[..] {
        [_, groups] if groups > 1 && group_of(columns, groups).is_some() => groups,
        _ => 1,
    };
    let shape = if groups == 1 { vec![rows] } else { vec![rows, groups] };
    finder.check(scale, &shape, &TYPES, "F32, F16 or BF16")?;
    Ok(groups)
}

/// The order of the weight's columns, if it has one.
fn read_order(finder: &Finder<'_>) -> Result<Option<Arc<[u32]>>, PackedError> {
    let columns = finder.shape[1];
    let Some(tensor) = finder.files.get(&format!("{}_order", finder.module)) else {
        return Ok(None);
    };
    finder.check_words(tensor, &[columns])?;
    let mut bytes = vec![0; columns * size_of::<u32>()];
    finder.files.read_at(tensor, 0, &mut bytes)?;
    let order: Vec<u32> = bytes.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
    let distinct: BTreeSet<u32> = order.iter().copied().collect();
    let is_permutation = distinct.len() == columns && distinct.last() < Some(&(columns as u32));
    if is_permutation {
        return Ok(Some(order.into()));
    }
    let (path, tensor) = (finder.files.path().into(), tensor.name.clone());
    let problem = format!("does not name each of {columns} input channels once");
    Err(PackedError::BadValues { path, tensor, problem })
}

/// A weight of a GGUF file: quantised blocks, or floats whose rows lie interleaved.
fn blocks(
    files: &Shards,
    gguf: &Gguf,
    head_dim: usize,
    source: &str,
    shape: &[usize],
) -> Result<Option<PackedWeight>, PackedError> {
    let (Some(tensor), Some(&kind)) = (files.get(source), gguf.kinds.get(source)) else {
        return Ok(None);
    };
    let interleaved = gguf.interleaved(source, head_dim);
    let recipe = |take| Recipe::Blocks(Blocks { tensor: tensor.clone(), kind, take, interleaved });
    let finder = Finder { files, module: source, shape: [0, 0] };
    let claimed = vec![source.to_owned()];
    if let Kind::Float(dtype) = kind {
        if interleaved.is_none() {
            return Ok(None);
        }
        finder.check(tensor, shape, &[dtype], "F32, F16 or BF16")?;
        let made = Made { suffix: "", dtype, shape: shape.to_vec(), recipe: recipe(Take::All) };
        return Ok(Some(PackedWeight { form: PackedSource::Moved(made), claimed }));
    }
    let &[rows, columns] = shape else {
        let (path, found) = (files.path().into(), tensor.dtype);
        let (tensor, expected) = (source.to_owned(), "F32, F16 or BF16");
        return Err(PackedError::WrongDtype { path, tensor, found, expected });
    };
    let groups = columns.div_ceil(kind.block_elements());
    finder.check(tensor, &[rows, groups * kind.block_bytes()], &[Dtype::U8], "blocks")?;
    if let Some(form) = kind.form() {
        let shape = vec![rows, columns / 2];
        let quants = Made { suffix: "", dtype: Dtype::U8, shape, recipe: recipe(Take::Quants) };
        let beside = form_parts(form, [rows, columns]).into_iter().map(|part| {
            let FormPart { suffix, dtype, shape, take } = part;
            Made { suffix, dtype, shape, recipe: recipe(take) }
        });
        let made = std::iter::once(quants).chain(beside).collect();
        return Ok(Some(PackedWeight { form: PackedSource::Made(made, packed_in(form)), claimed }));
    }
    let (bits, dtype, row_bytes) = match kind {
        Kind::Q4_0 => (4, Dtype::U8, columns.div_ceil(2)),
        _ => (8, Dtype::I8, columns),
    };
    let quants =
        Made { suffix: "", dtype, shape: vec![rows, row_bytes], recipe: recipe(Take::Quants) };
    let shape = if groups == 1 { vec![rows] } else { vec![rows, groups] };
    let scales = Made { suffix: "_scale", dtype: Dtype::F16, shape, recipe: recipe(Take::Scales) };
    let packed = Packed { bits, group: BLOCK, has_zeros: false, order: None, form: None };
    Ok(Some(PackedWeight { form: PackedSource::Made(vec![quants, scales], packed), claimed }))
}
