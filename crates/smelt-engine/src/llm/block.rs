//! Finds what stands beside the quants of a weight in a form of ggml's blocks.
//!
//! Which of the tensors there are says which form it is; shapes are checked when the engine is
//! opened.  Knows nothing of layers.

use smelt_tensor::dtype::Dtype;
use smelt_tensor::packed::BlockForm;

use super::LlmFile;
use crate::engine_file::{EngineFile, Layout, OpenError, Stored, Weights};
use crate::kernels::striped::{Blocks, Halves};

/// What belongs to a weight in a form of blocks, besides the low four bits of its quants.
#[derive(Debug)]
pub(super) struct Block {
    form: BlockForm,
    scales: Numbers,
    mins: Option<Numbers>,
    high: Option<Stored>,
}

/// Numbers of groups: f16, and the factors that make them.
#[derive(Debug)]
struct Numbers {
    halves: Stored,
    factors: Option<Stored>,
}

impl Block {
    /// What belongs to the weight `name` of `shape`; nothing where it has no such form.
    pub(super) fn find(
        file: &EngineFile<LlmFile>,
        name: &str,
        shape: [usize; 2],
    ) -> Result<Option<Self>, OpenError> {
        let has = |suffix: &str| file.stored(&format!("{name}{suffix}")).is_some();
        let (has_factors, has_mins) = (has("_factor"), has("_min"));
        if !has_factors && !has_mins && !has("_high") {
            return Ok(None);
        }
        let bits = high_bits(file, name, shape[1]).map_or(4, |bits| bits + 4);
        let form = BlockForm::of(bits, has_factors, has_mins);
        let Some(form) = form.filter(|form| Blocks::fits(*form, shape[1])) else {
            return Err(file.damaged(format!("tensor {name:?} is in no form of blocks")));
        };
        let finder = Finder { file, name, shape };
        let mins = || finder.numbers(form, "_min", "_min_factor");
        let high = |width| finder.part("_high", Dtype::U32, width);
        Ok(Some(Self {
            form,
            scales: finder.numbers(form, "_scale", "_factor")?,
            mins: has_mins.then(mins).transpose()?,
            high: form.word_columns().map(high).transpose()?,
        }))
    }

    /// The weight whose quants have `nibbles` as their low four bits.
    pub(super) fn view<'a>(&self, nibbles: &'a [u8], weights: &'a Weights) -> Blocks<'a> {
        let checked = "the type was checked when the engine was opened";
        let numbers = |numbers: &Numbers| Halves {
            halves: weights.halves(&numbers.halves).expect(checked),
            factors: numbers.factors.as_ref().map(|all| weights.raw(all).expect(checked)),
        };
        Blocks {
            form: self.form,
            nibbles,
            high: self.high.as_ref().map_or(&[], |high| weights.words(high).expect(checked)),
            scales: numbers(&self.scales),
            mins: self.mins.as_ref().map(numbers),
        }
    }
}

/// Bits of the quants of `name`, of `columns` columns, that are above four; `None` without any.
fn high_bits(file: &EngineFile<LlmFile>, name: &str, columns: usize) -> Option<u32> {
    let words = file.stored(&format!("{name}_high"))?.shape.get(1).copied().unwrap_or(1);
    Some(if words.checked_mul(32) == Some(columns) { 1 } else { 2 })
}

/// Looks for the parts of one weight.
struct Finder<'a> {
    file: &'a EngineFile<LlmFile>,
    name: &'a str,
    shape: [usize; 2],
}

impl Finder<'_> {
    /// The part `suffix`, one number for `share` columns of a row.
    fn part(&self, suffix: &str, dtype: Dtype, share: usize) -> Result<Stored, OpenError> {
        let [rows, columns] = self.shape;
        let width = columns / share;
        let shape = if width == 1 { vec![rows] } else { vec![rows, width] };
        let name = format!("{}{suffix}", self.name);
        self.file.expect(&name, &shape, &[dtype], Layout::Stripes)
    }

    fn numbers(&self, form: BlockForm, halves: &str, factors: &str) -> Result<Numbers, OpenError> {
        let halves = self.part(halves, Dtype::F16, form.span)?;
        let factors = || self.part(factors, Dtype::I8, form.group);
        Ok(Numbers { halves, factors: form.has_factors().then(factors).transpose()? })
    }
}
