//! Compares every weight of an engine with the checkpoint it was built from, row by row.
//!
//! The engine multiplies its weights out as its layers see them, the checkpoint's reader does the
//! same in its own way, and the numbers have to be equal, or rounded where the engine's type is
//! smaller.  So a wrong block or scale has a name before anything is computed with it.

use std::num::NonZero;
use std::ops::Range;
use std::sync::mpsc;
use std::thread;

use serde::{Deserialize, Serialize};
use smelt_backend::VisionEngine;
use smelt_cuda::decoder::PackedWeights;
use smelt_deploy::DeployError;
use smelt_engine::llm::LlmEngine;
use smelt_engine_build::llm::OtherNumbers;
use smelt_model::checkpoint::Checkpoint;
use smelt_model::dtype::Dtype;
use smelt_model::in_order::in_order;
use smelt_model::model::ModelPart;

use crate::bounds::Kept;

/// Numbers of a tensor that a thread has in memory at a time.
const BLOCK_NUMBERS: usize = 1 << 17;
/// Threads that compare; more wait for the disk.
const THREADS_MAX: usize = 8;
/// Tensors that a complaint names.
const NAMED_MAX: usize = 3;

/// How far a stored number may be from the checkpoint's.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Rounding {
    relative: f32,
    absolute: f32,
    /// As a part of the largest number of its row.
    of_row: f32,
}

/// Not at all.
const EXACT: Rounding = Rounding { relative: 0.0, absolute: 0.0, of_row: 0.0 };

impl Rounding {
    /// Of numbers of type `from` kept in type `to`: half a unit in the last place, and half of the
    /// smallest number, or less than any that matters; of 8-bit levels, of which a row's largest
    /// number is 127, half a level and what f32 adds to it.
    fn of(from: Dtype, to: Dtype) -> Self {
        match to {
            _ if from == to => EXACT,
            Dtype::BF16 => Self { relative: 1.0 / 256.0, absolute: f32::MIN_POSITIVE, ..EXACT },
            Dtype::F16 => {
                Self { relative: 1.0 / 2048.0, absolute: 1.0 / (1 << 25) as f32, ..EXACT }
            }
            Dtype::I8 => Self { of_row: 0.5001 / 127.0, ..EXACT },
            _ => EXACT,
        }
    }

    /// The first number of `found` that is not the expected one.
    fn first_fault(self, expected: &[f32], found: &[f32]) -> Option<usize> {
        if self == EXACT && expected == found {
            return None;
        }
        let most = expected.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        let absolute = self.absolute + self.of_row * most;
        let is_near = |(expected, found): (&f32, &f32)| {
            // A number that is none is near nothing.
            (expected - found).abs() <= expected.abs() * self.relative + absolute
        };
        expected.iter().zip(found).position(|pair| !is_near(pair))
    }
}

/// A tensor that is not as it was.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Fault {
    tensor: String,
    rows: usize,
    rows_wrong: usize,
    first_row: usize,
    first_column: usize,
    expected: f32,
    found: f32,
}

impl Fault {
    /// The rows of a tensor that are `wrong`: row, column, number expected and found.
    fn of(
        tensor: &str,
        rows: usize,
        mut wrong: impl Iterator<Item = (usize, usize, f32, f32)>,
    ) -> Option<Self> {
        let (first_row, first_column, expected, found) = wrong.next()?;
        let (tensor, rows_wrong) = (tensor.to_owned(), 1 + wrong.count());
        Some(Self { tensor, rows, rows_wrong, first_row, first_column, expected, found })
    }

    /// This one, with the rows that are wrong behind it.
    fn and(self, later: Self) -> Self {
        Self { rows_wrong: self.rows_wrong + later.rows_wrong, ..self }
    }

    fn words(&self) -> String {
        let Self { tensor, rows, rows_wrong, first_row, first_column, expected, found } = self;
        format!(
            "{tensor} in {rows_wrong} of {rows} rows, first at row {first_row}, column {first_column}: {found} in place of {expected}"
        )
    }
}

/// What the comparison of an engine's weights found.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Weights {
    what: String,
    tensors: usize,
    /// Tensors of the checkpoint that the engine has under no name, or in another form.
    elsewhere: Vec<String>,
    /// Whether a number had to be rounded.
    rounded: bool,
    /// Whether weights are kept as levels.
    levels: bool,
    faults: Vec<Fault>,
}

impl Weights {
    fn new(what: &'static str) -> Self {
        Self {
            what: what.to_owned(),
            tensors: 0,
            elsewhere: Vec::new(),
            rounded: false,
            levels: false,
            faults: Vec::new(),
        }
    }

    /// How the engine has the numbers of the checkpoint.
    pub(crate) fn kept(&self) -> Kept {
        match (self.levels, self.rounded || !self.elsewhere.is_empty()) {
            (true, _) => Kept::Quantized,
            (false, true) => Kept::Rounded,
            (false, false) if self.faults.is_empty() => Kept::Same,
            (false, false) => Kept::Rounded,
        }
    }

    /// What was found, in a line.
    pub(crate) fn line(&self) -> String {
        let Self { what, tensors, elsewhere, rounded, levels, .. } = self;
        let like = if *levels {
            "the checkpoint's in 8 bits"
        } else if *rounded {
            "the checkpoint's, rounded"
        } else {
            "the checkpoint's"
        };
        let mut line = format!("{what}: {tensors} tensors are {like}");
        if let Some(first) = elsewhere.first() {
            line += &format!("; {} have another form, such as {first}", elsewhere.len());
        }
        line
    }

    /// Tensors that the engine does not have as the checkpoint does.
    pub(crate) fn elsewhere(&self) -> &[String] {
        &self.elsewhere
    }

    /// What a person reads where a weight is wrong.
    pub(crate) fn complaint(&self) -> Option<String> {
        let Self { what, faults, .. } = self;
        if faults.is_empty() {
            return None;
        }
        let named: Vec<String> = faults.iter().take(NAMED_MAX).map(Fault::words).collect();
        let more = faults.len().saturating_sub(NAMED_MAX);
        let more = if more > 0 { format!("; and {more} tensors more") } else { String::new() };
        let named = named.join("; ");
        Some(format!("{what} has other weights than the checkpoint: {named}{more}"))
    }

    /// Compares tensors; `told` hears of each, when its first block has been compared, how many numbers came before it.
    ///
    /// Threads share the blocks of all of them: those of a small model have one each.
    fn take(
        &mut self,
        checkpoint: &Checkpoint,
        tensors: &[Compared<'_>],
        told: &dyn Fn(&str),
    ) -> Result<(), DeployError> {
        let blocks: Vec<(usize, Range<usize>)> = tensors
            .iter()
            .enumerate()
            .flat_map(|(at, one)| one.blocks().map(move |it| (at, it)))
            .collect();
        let compare = |block: &mut Block, index: usize| {
            let (tensor, rows) = &blocks[index];
            block.index = index;
            tensors[*tensor].compare(checkpoint, rows.clone(), block)
        };
        let (mut done, all) = (0, tensors.iter().map(Compared::numbers).sum::<usize>());
        let (to, lines) = mpsc::channel();
        let (blocks, faults) = (&blocks, &mut self.faults);
        let take = move |block: &mut Block| {
            let (tensor, rows) = &blocks[block.index];
            let one = &tensors[*tensor];
            if rows.start == 0 {
                // Whoever hears of it may have gone; the comparison counts.
                let _ = to.send(format!("[{done}/{all}] comparing {}", one.name));
                done += one.numbers();
            }
            if let Some(later) = block.fault.take() {
                let first = faults.pop_if(|first: &mut Fault| first.tensor == later.tensor);
                faults.push(match first {
                    Some(first) => first.and(later),
                    None => later,
                });
            }
            Ok::<(), DeployError>(())
        };
        let threads = thread::available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX);
        thread::scope(|scope| {
            let work = scope.spawn(move || in_order(blocks.len(), threads, compare, take));
            // They end with the work, which has the other end.
            lines.iter().for_each(|line: String| told(&line));
            work.join().expect("what panics is told as such")
        })?;
        self.tensors += tensors.len();
        Ok(())
    }
}

/// Puts rows of a tensor, as the engine has them, into a block.
type Find<'a> = Box<dyn Fn(Range<usize>, &mut [f32]) + Sync + 'a>;

/// A tensor that is compared.
struct Compared<'a> {
    name: String,
    shape: Vec<usize>,
    rounding: Rounding,
    find: Find<'a>,
}

impl Compared<'_> {
    fn numbers(&self) -> usize {
        self.shape.iter().product()
    }

    /// The checkpoint reads rows of the first dimension; a vector's are single numbers.
    fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    fn width(&self) -> usize {
        self.shape.iter().skip(1).product::<usize>().max(1)
    }

    /// The rows that are compared at a time.
    fn blocks(&self) -> impl Iterator<Item = Range<usize>> {
        let (rows, width) = (self.rows(), self.width());
        let some = if self.shape.len() < 2 { rows } else { BLOCK_NUMBERS / width };
        let some = some.max(1);
        (0..rows).step_by(some).map(move |first| first..rows.min(first + some))
    }

    fn compare(
        &self,
        checkpoint: &Checkpoint,
        rows: Range<usize>,
        Block { expected, found, fault, .. }: &mut Block,
    ) -> Result<(), DeployError> {
        let read = checkpoint.read_rows_f32(&self.name, rows.clone(), expected);
        read.map_err(DeployError::model)?;
        found.resize(expected.len(), 0.0);
        (self.find)(rows.clone(), found);
        let pairs = expected.chunks(self.width()).zip(found.chunks(self.width()));
        let wrong = rows.zip(pairs).filter_map(|(row, (expected, found))| {
            let column = self.rounding.first_fault(expected, found)?;
            Some((row, column, expected[column], found[column]))
        });
        *fault = Fault::of(&self.name, self.rows(), wrong);
        Ok(())
    }
}

/// Some rows of a tensor, and what is wrong with them.
#[derive(Default)]
struct Block {
    index: usize,
    expected: Vec<f32>,
    found: Vec<f32>,
    fault: Option<Fault>,
}

/// Compares the decoder with the checkpoint it was built from.
pub(crate) fn llm(
    engine: &LlmEngine,
    checkpoint: &Checkpoint,
    told: &dyn Fn(&str),
) -> Result<Weights, DeployError> {
    let mut parts = vec![ModelPart::Llm];
    parts.extend(checkpoint.has_lm_head().then_some(ModelPart::Head));
    let mut weights = Weights::new("the llm engine");
    let compared = |(name, shape): (String, Vec<usize>)| {
        let tensor = engine.tensor(&name, &shape).map_err(DeployError::engine)?;
        let width = (shape.len() == 2).then(|| shape[1].max(1));
        let find: Find<'_> = Box::new(move |rows, out| match width {
            Some(width) => {
                let lines = out.chunks_exact_mut(width);
                rows.zip(lines).for_each(|(row, line)| tensor.row(row, line));
            }
            None => tensor.row(0, out),
        });
        Ok(Compared { name, shape, rounding: EXACT, find })
    };
    let tensors = checkpoint.model().tensors(&parts).into_iter().map(compared);
    let tensors = tensors.collect::<Result<Vec<_>, DeployError>>()?;
    weights.take(checkpoint, &tensors, told)?;
    Ok(weights)
}

/// What a comparison of an engine for GPUs with its checkpoint found: how many tensors, and which are others.
pub(crate) fn of_card(
    engine: &PackedWeights,
    (tensors, others): (usize, Vec<OtherNumbers>),
) -> Weights {
    let fault = |other: OtherNumbers| {
        let OtherNumbers { tensor, rows, rows_wrong, first_row, first_column, expected, found } =
            other;
        Fault { tensor, rows, rows_wrong, first_row, first_column, expected, found }
    };
    let rounded = engine.tensors().any(|tensor| tensor.form == "half");
    let faults = others.into_iter().map(fault).collect();
    Weights { tensors, rounded, faults, ..Weights::new("the llm engine") }
}

/// Compares the constants of the vision graph with the checkpoint, as far as they keep their names;
/// what a change of the graph has made of the others shows in what it computes.
pub(crate) fn vision(
    engine: &VisionEngine,
    checkpoint: &Checkpoint,
    told: &dyn Fn(&str),
) -> Result<Weights, DeployError> {
    let mut weights = Weights::new("the vision engine");
    let mut tensors = Vec::new();
    for (name, shape) in checkpoint.model().tensors(&[ModelPart::Vision]) {
        let count = shape.iter().product::<usize>();
        let constant = engine.constant(&name).filter(|constant| constant.count() == count);
        let Some(constant) = constant else {
            weights.elsewhere.push(name);
            continue;
        };
        let dtype = checkpoint.dtype(&name).map_err(DeployError::model)?;
        let held = Dtype::parse(constant.dtype()).unwrap_or(dtype);
        let rounding = Rounding::of(dtype, held);
        weights.rounded |= rounding.relative > 0.0;
        weights.levels |= rounding.of_row > 0.0;
        let width = shape.iter().skip(1).product::<usize>().max(1);
        let find: Find<'_> = Box::new(move |rows: Range<usize>, out: &mut [f32]| {
            constant.widen(rows.start * width, out)
        });
        tensors.push(Compared { name, shape, rounding, find });
    }
    weights.take(checkpoint, &tensors, told)?;
    Ok(weights)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_numbers_are_near_and_others_are_not() {
        let exact = Rounding::of(Dtype::BF16, Dtype::F32);
        assert_eq!(exact.first_fault(&[1.0, -0.0], &[1.0, 0.0]), None);
        assert_eq!(exact.first_fault(&[1.0, 2.0], &[1.0, 2.000_000_2]), Some(1));
        for found in [f32::NAN, f32::INFINITY, 0.0] {
            assert_eq!(exact.first_fault(&[1.0], &[found]), Some(0), "{found}");
            let rounded = Rounding::of(Dtype::F32, Dtype::BF16);
            assert_eq!(rounded.first_fault(&[1.0], &[found]), Some(0), "{found}");
        }
    }

    #[test]
    fn a_rounded_number_is_within_half_a_unit() {
        let half = Rounding::of(Dtype::F32, Dtype::F16);
        assert_eq!(half.first_fault(&[1.000_244, 1e-9], &[1.0, 0.0]), None);
        assert_eq!(half.first_fault(&[1.0], &[1.001]), Some(0));
        let brain = Rounding::of(Dtype::F32, Dtype::BF16);
        assert_eq!(brain.first_fault(&[1.003], &[1.0]), None);
        assert_eq!(brain.first_fault(&[1.0], &[1.007_812_5]), Some(0));
    }

    #[test]
    fn a_level_is_within_half_of_one_of_its_row() {
        let levels = Rounding::of(Dtype::BF16, Dtype::I8);
        assert_eq!(levels.first_fault(&[1.27, 0.005], &[1.27, 0.01]), None);
        assert_eq!(levels.first_fault(&[1.27, 0.004], &[1.27, 0.01]), Some(1));
        assert_eq!(levels.first_fault(&[0.0], &[1e-9]), Some(0));
    }

    #[test]
    fn a_complaint_names_the_first_tensors() {
        let fault = |tensor: &str| Fault {
            tensor: tensor.into(),
            rows: 8,
            rows_wrong: 2,
            first_row: 3,
            first_column: 5,
            expected: 0.5,
            found: 0.0,
        };
        let mut weights = Weights::new("the llm engine");
        assert_eq!(weights.complaint(), None);
        weights.faults = ["a", "b", "c", "d"].map(fault).into();
        let complaint = weights.complaint().unwrap();
        let words = "a in 2 of 8 rows, first at row 3, column 5: 0 in place of 0.5; b in";
        assert!(complaint.contains(words), "{complaint}");
        assert!(complaint.ends_with("and 1 tensors more"), "{complaint}");
    }
}
