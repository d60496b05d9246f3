//! Reads rows of a checkpoint's weight in the form in which they are packed for tensor cores.

use std::ops::Range;

use smelt_cuda::kernels::form::{Levels, WeightForm};
use smelt_cuda::kernels::pack::{BlockNumbers, BlockRows, LevelScales, WeightRows, WeightSource};
use smelt_model::checkpoint::{Checkpoint, CheckpointError, Weight};
use smelt_tensor::dtype::Dtype;
use smelt_tensor::packed::{BlockForm, group_of};

/// How the rows of a weight are kept in the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    /// As floats, or in a form that no kernel reads: they are multiplied out.
    Numbers,
    /// Levels, a scale for each group of columns; without a group, for the row.
    Levels { levels: Levels, group: Option<usize>, groups: usize, has_zeros: bool },
    /// A form of ggml's blocks.
    Blocks(BlockForm),
}

/// A weight of a checkpoint.
#[derive(Clone, Debug)]
pub(super) struct Source {
    name: String,
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) form: WeightForm,
    kept: Kept,
    /// Bytes of the order of its columns, if they were sorted.
    order: Option<Vec<u8>>,
}

/// Rows that were read.
#[derive(Debug, Default)]
pub(super) struct Rows {
    numbers: Vec<f32>,
    levels: Vec<u8>,
    scales: Vec<u16>,
    row_scales: Vec<f32>,
    zeros: Vec<u8>,
    high: Vec<u8>,
    factors: Vec<u8>,
    mins: Vec<u16>,
    min_factors: Vec<u8>,
}

/// What ends the name of what belongs to a weight.
const SCALE: &str = "_scale";
const ORDER: &str = "_order";

impl Source {
    /// The weights called `names` as sources of one form: their own, or all multiplied out.
    pub(super) fn alike(
        checkpoint: &Checkpoint,
        names: &[String],
    ) -> Result<Vec<Self>, CheckpointError> {
        let all = names.iter().map(|name| Self::of(checkpoint, name));
        let all: Vec<Self> = all.collect::<Result<_, _>>()?;
        let is_one = all.windows(2).all(|two| two[0].is_like(&two[1]));
        if is_one { Ok(all) } else { Ok(all.into_iter().map(Self::multiplied_out).collect()) }
    }

    /// Whether the weights are of one form as they are kept.
    pub(super) fn are_alike(
        checkpoint: &Checkpoint,
        names: &[String],
    ) -> Result<bool, CheckpointError> {
        let all = names.iter().map(|name| Self::of(checkpoint, name));
        let all: Vec<Self> = all.collect::<Result<_, _>>()?;
        Ok(all.windows(2).all(|two| two[0].is_like(&two[1])))
    }

    fn is_like(&self, other: &Self) -> bool {
        (self.form, self.columns, &self.order) == (other.form, other.columns, &other.order)
    }

    fn of(checkpoint: &Checkpoint, name: &str) -> Result<Self, CheckpointError> {
        let shape = checkpoint.shape(name)?;
        let (rows, columns) = (shape[0], shape.iter().skip(1).product());
        let parts = checkpoint.parts(name)?;
        let own = kept(&parts, checkpoint.form(name)?, columns);
        let form = form(own);
        let has = |suffix: &str| parts.iter().any(|part| part.name.ends_with(suffix));
        let is_ordered = own != Kept::Numbers && has(ORDER);
        let order = is_ordered.then(|| read(checkpoint, &format!("{name}{ORDER}"), 0, columns * 4));
        let order = order.transpose()?;
        Ok(Self { name: name.to_owned(), rows, columns, form, kept: own, order })
    }

    fn multiplied_out(self) -> Self {
        Self { form: form(Kept::Numbers), kept: Kept::Numbers, order: None, ..self }
    }

    /// Whether its columns were sorted.
    pub(super) fn is_ordered(&self) -> bool {
        self.order.is_some()
    }

    /// Reads some of its rows.
    pub(super) fn read(
        &self,
        checkpoint: &Checkpoint,
        rows: Range<usize>,
    ) -> Result<Rows, CheckpointError> {
        let mut out = Rows::default();
        if rows.is_empty() {
            return Ok(out);
        }
        let part = |suffix: &str, row_bytes: usize| {
            let name = format!("{}{suffix}", self.name);
            read(checkpoint, &name, rows.start * row_bytes, rows.len() * row_bytes)
        };
        match self.kept {
            Kept::Numbers => checkpoint.read_rows_f32(&self.name, rows, &mut out.numbers)?,
            Kept::Levels { levels, group, groups, has_zeros } => {
                let width =
                    if levels == Levels::Four { self.columns.div_ceil(2) } else { self.columns };
                out.levels = part("", width)?;
                match group {
                    Some(_) => out.scales = halves(&part(SCALE, groups * 2)?),
                    None => out.row_scales = self.row_scales(checkpoint, rows.clone())?,
                }
                out.zeros = if has_zeros { part("_zero", groups)? } else { Vec::new() };
            }
            Kept::Blocks(form) => {
                let (spans, groups) = (self.columns / form.span, self.columns / form.group);
                out.levels = part("", self.columns / 2)?;
                out.scales = halves(&part(SCALE, spans * 2)?);
                let high = form.word_columns().map(|width| part("_high", self.columns / width * 4));
                out.high = high.transpose()?.unwrap_or_default();
                let factors = |suffix| form.has_factors().then(|| part(suffix, groups)).transpose();
                out.factors = factors("_factor")?.unwrap_or_default();
                if form.has_mins {
                    out.mins = halves(&part("_min", spans * 2)?);
                    out.min_factors = factors("_min_factor")?.unwrap_or_default();
                }
            }
        }
        Ok(out)
    }

    /// Reads some of its rows as numbers, its columns as they are packed.
    pub(super) fn read_numbers(
        &self,
        checkpoint: &Checkpoint,
        rows: Range<usize>,
    ) -> Result<Vec<f32>, CheckpointError> {
        let mut out = Vec::new();
        checkpoint.read_rows_f32(&self.name, rows, &mut out)?;
        let Some(order) = &self.order else { return Ok(out) };
        let order = words(order);
        let sorted = |row: &[f32]| order.iter().map(|at| row[*at as usize]).collect::<Vec<_>>();
        Ok(out.chunks(self.columns.max(1)).flat_map(sorted).collect())
    }

    /// Scales of rows, of whatever floats they are.
    fn row_scales(
        &self,
        checkpoint: &Checkpoint,
        rows: Range<usize>,
    ) -> Result<Vec<f32>, CheckpointError> {
        let (name, mut out) = (format!("{}{SCALE}", self.name), Vec::new());
        checkpoint.read_rows_f32(&name, rows, &mut out)?;
        Ok(out)
    }
}

impl Rows {
    /// As they are packed.
    pub(super) fn view(&self, source: &Source) -> WeightSource<'_> {
        let scales = |group: Option<usize>| match group {
            Some(group) => LevelScales::Groups { halves: &self.scales, group },
            None => LevelScales::Rows(&self.row_scales),
        };
        let rows = match source.kept {
            Kept::Numbers => WeightRows::Numbers(&self.numbers),
            Kept::Levels { levels: Levels::Four, group, has_zeros, .. } => WeightRows::Nibbles {
                nibbles: &self.levels,
                scales: scales(group),
                zeros: has_zeros.then_some(&self.zeros),
            },
            Kept::Levels { group, .. } => {
                WeightRows::Bytes { bytes: &self.levels, scales: scales(group) }
            }
            Kept::Blocks(form) => WeightRows::Blocks(self.blocks(form)),
        };
        WeightSource { columns: source.columns, rows }
    }

    fn blocks(&self, form: BlockForm) -> BlockRows<'_> {
        let factors = |all| form.has_factors().then_some(all);
        let mins = BlockNumbers { halves: &self.mins, factors: factors(&self.min_factors[..]) };
        BlockRows {
            form,
            nibbles: &self.levels,
            high: &self.high,
            scales: BlockNumbers { halves: &self.scales, factors: factors(&self.factors[..]) },
            mins: form.has_mins.then_some(mins),
        }
    }
}

/// The order of the columns of the weight `name`: which input each takes.
pub(super) fn order(checkpoint: &Checkpoint, name: &str) -> Result<Vec<u32>, CheckpointError> {
    let source = Source::of(checkpoint, name)?;
    Ok(words(&source.order.unwrap_or_default()))
}

/// How a weight is kept that consists of `parts`.
fn kept(parts: &[&Weight], blocks: Option<BlockForm>, columns: usize) -> Kept {
    if let Some(blocks) = blocks {
        return match WeightForm::of_blocks(blocks) {
            Some(_) => Kept::Blocks(blocks),
            None => Kept::Numbers,
        };
    }
    let levels = match parts[0].dtype {
        Dtype::U8 => Levels::Four,
        Dtype::I8 => Levels::Eight,
        _ => return Kept::Numbers,
    };
    let Some(scale) = parts.iter().find(|part| part.name.ends_with(SCALE)) else {
        return Kept::Numbers;
    };
    let groups = scale.shape.get(1).copied().unwrap_or(1);
    let has_zeros = parts.iter().any(|part| part.name.ends_with("_zero"));
    let group = if groups == 1 { Some(None) } else { group_of(columns, groups).map(Some) };
    let is_read = groups == 1 || scale.dtype == Dtype::F16;
    match group
        .filter(|group| is_read && WeightForm::of_levels(levels, *group, has_zeros).is_some())
    {
        Some(group) => Kept::Levels { levels, group, groups, has_zeros },
        None => Kept::Numbers,
    }
}

/// The form that holds what is kept so; halves where there is none.
fn form(kept: Kept) -> WeightForm {
    let own = match kept {
        Kept::Numbers => None,
        Kept::Levels { levels, group, has_zeros, .. } => {
            WeightForm::of_levels(levels, group, has_zeros)
        }
        Kept::Blocks(blocks) => WeightForm::of_blocks(blocks),
    };
    own.unwrap_or(WeightForm::ALL[0])
}

fn read(
    checkpoint: &Checkpoint,
    name: &str,
    at: usize,
    bytes: usize,
) -> Result<Vec<u8>, CheckpointError> {
    let mut out = vec![0; bytes];
    checkpoint.read_bytes(name, at as u64, &mut out)?;
    Ok(out)
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

fn halves(bytes: &[u8]) -> Vec<u16> {
    bytes.as_chunks::<2>().0.iter().map(|half| u16::from_le_bytes(*half)).collect()
}
