//! Lists the tensors of a checkpoint for another tool, and where the bytes of each come from.
//!
//! Every tensor of the model becomes one or several stored ones under the names of the source's
//! layout; what the format cannot hold is refused here, before anything is written.
//! Reads no weights.

use std::sync::Arc;

use super::{Format, WriteError, pads};
use crate::checkpoint::{Checkpoint, CheckpointError, PackedFacts};
use crate::decoder::{EMBEDDING, LM_HEAD};
use crate::dtype::Dtype;
use crate::model::ModelPart;
use crate::packed::present::MIDDLE;
use crate::packed::words::WordLayout;
use crate::packed::{awq, compressed_tensors, gptq};
use crate::safetensors::TensorSpec;

/// What is written.
pub(super) struct WritePlan {
    /// The stored tensors, in the order of the file.
    pub(super) items: Vec<Item>,
    /// The packed modules, by their stored names.
    pub(super) packed: Vec<(String, Layer)>,
    /// The stored names of modules that multiply and stay floats.
    pub(super) kept: Vec<String>,
    /// The stored name of the head's module, if the head is packed.
    pub(super) head: Option<String>,
    /// Whether there is a head besides the embedding.
    pub(super) has_head: bool,
    /// Whether some columns were sorted.
    pub(super) has_order: bool,
}

/// What describes the packing of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Layer {
    pub(super) bits: u32,
    /// Nothing for one group a row.
    pub(super) group: Option<usize>,
    pub(super) is_symmetric: bool,
    pub(super) has_order: bool,
}

/// One stored tensor.
pub(super) struct Item {
    pub(super) spec: TensorSpec,
    pub(super) make: Make,
    /// Whether its bytes come from the packed checkpoint, not the whole one.
    pub(super) is_of_packed: bool,
}

/// Where bytes come from.
pub(super) enum Make {
    Given(Vec<u8>),
    /// A range of a canonical tensor's bytes.
    Copy {
        name: String,
        range: std::ops::Range<u64>,
    },
    /// The quants of a canonical weight.
    Words {
        name: String,
        grid: WordLayout,
        columns: usize,
        places: Option<Arc<[u32]>>,
        /// Added to each quant.
        shift: u8,
    },
    /// Canonical zeros.
    Zeros {
        name: String,
        grid: WordLayout,
        groups: usize,
        shift: u8,
    },
    /// A packed weight, multiplied out to f16.
    Floats {
        name: String,
    },
    /// Canonical scales.
    Scales {
        name: String,
        groups: usize,
        dtype: Dtype,
        is_turned: bool,
    },
}

/// Decides what to write.
pub(super) fn plan(
    packed: &Checkpoint,
    whole: &Checkpoint,
    format: Format,
) -> Result<WritePlan, WriteError> {
    let model = whole.model();
    let has = |part: &ModelPart| packed.has(*part) || whole.has(*part);
    let parts: Vec<ModelPart> = model.parts().into_iter().filter(has).collect();
    let mut plan = WritePlan {
        items: Vec::new(),
        packed: Vec::new(),
        kept: Vec::new(),
        head: None,
        has_head: model.llm.is_some() && (packed.has_lm_head() || whole.has_lm_head()),
        has_order: false,
    };
    for (name, shape) in model.tensors(&parts) {
        let is_of_packed = packed.dtype(&name).is_ok();
        let from = if is_of_packed { packed } else { whole };
        let sources = whole.names_of(&name);
        match (from.packed_facts(&name)?, &sources[..]) {
            // No format packs the embedding, and GGUF files do.
            (Some(_), [source]) if name == EMBEDDING => {
                let spec = TensorSpec { name: source.clone(), dtype: Dtype::F16, shape };
                plan.items.push(Item { spec, make: Make::Floats { name }, is_of_packed });
            }
            (Some(facts), [source]) => {
                let task = Task { format, from, name: &name, source, facts, is_of_packed };
                task.run(&mut plan)?;
            }
            _ => keep(&name, &shape, &sources, from, is_of_packed, &mut plan)?,
        }
    }
    if model.llm.is_some() && !plan.has_head {
        // Other tools make a module of a tied head too, and must know that it is not packed.
        let head = whole.names_of(LM_HEAD);
        plan.kept
            .extend(head.iter().filter_map(|name| name.strip_suffix(".weight")).map(str::to_owned));
    }
    check_uniform(&plan, format, packed.is_quantized())?;
    Ok(plan)
}

/// Copies a tensor of floats, whose rows are those of `sources` one after another.
fn keep(
    name: &str,
    shape: &[usize],
    sources: &[String],
    from: &Checkpoint,
    is_of_packed: bool,
    plan: &mut WritePlan,
) -> Result<(), CheckpointError> {
    let dtype = from.dtype(name)?;
    let mut piece = shape.to_vec();
    if let Some(rows) = piece.first_mut() {
        *rows /= sources.len();
    }
    let bytes = (piece.iter().product::<usize>() * dtype.size_bytes()) as u64;
    for (index, source) in (0..).zip(sources) {
        let range = index * bytes..(index + 1) * bytes;
        let make = Make::Copy { name: name.to_owned(), range };
        let spec = TensorSpec { name: source.clone(), dtype, shape: piece.clone() };
        plan.items.push(Item { spec, make, is_of_packed });
        let module = source.strip_suffix(".weight").filter(|_| shape.len() >= 2);
        plan.kept.extend(module.filter(|module| !module.contains("embed")).map(str::to_owned));
    }
    Ok(())
}

/// A packed weight to be written.
struct Task<'a> {
    format: Format,
    from: &'a Checkpoint,
    name: &'a str,
    source: &'a str,
    facts: PackedFacts,
    is_of_packed: bool,
}

impl Task<'_> {
    fn run(&self, plan: &mut WritePlan) -> Result<(), WriteError> {
        self.check()?;
        let Some(module) = self.source.strip_suffix(".weight") else {
            return Err(self.refused("it is no module's weight"));
        };
        let PackedFacts { bits, groups, group, has_zeros, ref order, .. } = self.facts;
        let layer = Layer {
            bits,
            group: (groups > 1).then_some(group),
            is_symmetric: !has_zeros,
            has_order: order.is_some(),
        };
        plan.packed.push((module.to_owned(), layer));
        plan.has_order |= order.is_some();
        if self.name == LM_HEAD {
            plan.head = Some(module.to_owned());
        }
        let items = match self.format {
            Format::CompressedTensors => self.compressed_tensors()?,
            Format::Awq => self.awq()?,
            Format::Gptq => self.gptq()?,
        };
        for (part, dtype, shape, make) in items {
            let spec = TensorSpec { name: format!("{module}.{part}"), dtype, shape };
            plan.items.push(Item { spec, make, is_of_packed: self.is_of_packed });
        }
        Ok(())
    }

    fn check(&self) -> Result<(), WriteError> {
        let PackedFacts { bits, groups, group, shape, ref order, form, .. } = self.facts;
        if let Some(form) = form {
            let why = format!(
                "it is {}, which the format has no place for; start from the unquantised checkpoint",
                form.name
            );
            return Err(self.refused(&why));
        }
        if self.format == Format::Awq && bits != 4 {
            return Err(self.refused(if self.from.is_quantized() {
                "it has 8 bits; use an int4 scheme, or gptq"
            } else {
                "it has 8 bits; use gptq or compressed-tensors"
            }));
        }
        if self.format == Format::Awq && order.is_some() {
            return Err(self.refused("its columns were sorted (act-order); use gptq"));
        }
        if groups > 1 && !shape[1].is_multiple_of(group) {
            return Err(self.refused("its last group is short; choose a group that divides it"));
        }
        let grids = match self.format {
            Format::Awq => [awq::GRID; 2],
            Format::Gptq => [gptq::quants_grid(bits), gptq::zeros_grid(bits)],
            Format::CompressedTensors => return Ok(()),
        };
        if grids.iter().any(|grid| pads(*grid, shape)) {
            let [rows, columns] = shape;
            return Err(self.refused(&format!("{rows}x{columns} does not fill its words")));
        }
        Ok(())
    }

    fn refused(&self, why: &str) -> WriteError {
        let (format, tensor) = (self.format.name(), self.source.to_owned());
        WriteError::CannotHold { format, tensor, why: why.to_owned() }
    }

    /// Quants and, if the format wants it, `zeros` as words of these grids.
    fn words(&self, grid: WordLayout, part: &'static str) -> StoredPart {
        let PackedFacts { bits, shape, ref places, .. } = self.facts;
        // Canonical bytes are signed; stored ones are offset by 128, which turns the sign bit.
        let shift = if bits == 8 { 128 } else { 0 };
        let (name, places) = (self.name.to_owned(), places.clone());
        let make = Make::Words { name, grid, columns: shape[1], places, shift };
        (part, Dtype::I32, grid.stored_shape(shape).to_vec(), make)
    }

    /// Stored zeros: the canonical ones, or the middle of every group.
    fn zeros(&self, grid: WordLayout, part: &'static str, shift: u8) -> StoredPart {
        let PackedFacts { bits, shape, groups, has_zeros, .. } = self.facts;
        let stored = grid.stored_shape([shape[0], groups]);
        let name = format!("{}_zero", self.name);
        let make = if has_zeros {
            Make::Zeros { name, grid, groups, shift }
        } else {
            let middle = if bits == 4 { MIDDLE } else { 128 };
            let quant = middle.wrapping_add(shift);
            Make::Given(grid.pack(&(0..shape[0]), groups, |_, _| quant))
        };
        (part, Dtype::I32, stored.to_vec(), make)
    }

    fn scales(&self, part: &'static str, is_turned: bool) -> Result<StoredPart, CheckpointError> {
        let PackedFacts { shape, groups, .. } = self.facts;
        let name = format!("{}_scale", self.name);
        let stored = self.from.dtype(&name)?;
        let is_short = matches!(stored, Dtype::F16 | Dtype::BF16);
        let dtype = if is_turned || !is_short { Dtype::F16 } else { stored };
        let shape = if is_turned { vec![groups, shape[0]] } else { vec![shape[0], groups] };
        Ok((part, dtype, shape, Make::Scales { name, groups, dtype, is_turned }))
    }

    /// The group of each input channel.
    fn group_index(&self, part: &'static str) -> StoredPart {
        let PackedFacts { shape, group, ref places, .. } = self.facts;
        let group_of = |channel: usize| {
            let place = places.as_ref().map_or(channel, |places| places[channel] as usize);
            (place / group) as i32
        };
        let bytes = (0..shape[1]).flat_map(|channel| group_of(channel).to_le_bytes()).collect();
        (part, Dtype::I32, vec![shape[1]], Make::Given(bytes))
    }

    fn awq(&self) -> Result<Vec<StoredPart>, CheckpointError> {
        let quants = self.words(awq::GRID, "qweight");
        Ok(vec![quants, self.zeros(awq::GRID, "qzeros", 0), self.scales("scales", true)?])
    }

    fn gptq(&self) -> Result<Vec<StoredPart>, CheckpointError> {
        let PackedFacts { bits, has_zeros, .. } = self.facts;
        // Version 1, where every zero is the middle, stores one less.
        let shift = if has_zeros { 0 } else { u8::MAX };
        let quants = self.words(gptq::quants_grid(bits), "qweight");
        let zeros = self.zeros(gptq::zeros_grid(bits), "qzeros", shift);
        Ok(vec![quants, zeros, self.scales("scales", true)?, self.group_index("g_idx")])
    }

    fn compressed_tensors(&self) -> Result<Vec<StoredPart>, CheckpointError> {
        let PackedFacts { bits, shape, has_zeros, ref order, .. } = self.facts;
        let quants = self.words(compressed_tensors::quants_grid(bits), "weight_packed");
        let sizes = shape.iter().flat_map(|&size| (size as i64).to_le_bytes()).collect();
        let sizes = ("weight_shape", Dtype::I64, vec![2], Make::Given(sizes));
        let mut all = vec![quants, self.scales("weight_scale", false)?, sizes];
        if has_zeros {
            all.push(self.zeros(compressed_tensors::zeros_grid(bits), "weight_zero_point", 0));
        }
        if order.is_some() {
            all.push(self.group_index("weight_g_idx"));
        }
        Ok(all)
    }
}

/// A part of a module: its name, type, shape and bytes.
type StoredPart = (&'static str, Dtype, Vec<usize>, Make);

/// AWQ and GPTQ describe all modules at once.  What smelt quantised can be quantised otherwise.
fn check_uniform(plan: &WritePlan, format: Format, is_ours: bool) -> Result<(), WriteError> {
    if format == Format::CompressedTensors {
        return Ok(());
    }
    let same = |a: &Layer, b: &Layer| {
        (a.bits, a.group, a.is_symmetric) == (b.bits, b.group, b.is_symmetric)
    };
    let Some((_, first)) = plan.packed.first() else { return Ok(()) };
    match plan.packed.iter().find(|(_, layer)| !same(layer, first)) {
        None => Ok(()),
        Some((module, _)) => Err(WriteError::CannotHold {
            format: format.name(),
            tensor: format!("{module}.weight"),
            why: if is_ours {
                "it is packed otherwise than the first layer; leave it as floats (the head: \
                 --head none), or use compressed-tensors"
            } else {
                "it is packed otherwise than the first layer; use compressed-tensors"
            }
            .to_owned(),
        }),
    }
}
