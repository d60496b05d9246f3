//! Compares an engine for GPUs with the checkpoint that it may be of: sizes first, then every number.
//!
//! The engine's strips are multiplied out as kernels read them, the checkpoint's reader does the same in its own way, and
//! the numbers have to be equal, or rounded where the engine keeps halves.  What fills rows and columns must be zero.

use smelt_cuda::decoder::{PackedWeights, TensorEntry};
use smelt_cuda::kernels::form::{Levels, WeightForm};
use smelt_cuda::kernels::layout::{STRIP_ROWS, padded_columns, padded_rows};
use smelt_cuda::kernels::pack::read_row;
use smelt_model::checkpoint::{Checkpoint, CheckpointError};

use super::{Content, Weight, What, names, sizes};
use crate::BuildError;

/// How far a number of levels and scales may be off, as a part of the largest of its row: what products of three f32 round.
const PRODUCTS_OF_ROW: f32 = 1e-6;
/// How far a half may be off: half a unit in its last place, and half of the smallest, as a part of the row's largest.
const HALVES_RELATIVE: f32 = 1.0 / 2048.0;
const HALVES_OF_ROW: f32 = 4e-12;

/// A tensor that is not as the checkpoint has it.
#[derive(Clone, Debug, PartialEq)]
pub struct OtherNumbers {
    /// Its name in the engine.
    pub tensor: String,
    /// Rows that it has.
    pub rows: usize,
    /// How many of them are others.
    pub rows_wrong: usize,
    /// The first row that is.
    pub first_row: usize,
    /// The first column of it that is.
    pub first_column: usize,
    /// What the checkpoint has there.
    pub expected: f32,
    /// What the engine has.
    pub found: f32,
}

/// The first size or tensor in which `engine` is not one of `checkpoint`, in words; numbers are not compared.
///
/// # Errors
/// When the checkpoint has no decoder or lacks a tensor.
pub fn unlike_for_card(
    engine: &PackedWeights,
    checkpoint: &Checkpoint,
) -> Result<Option<String>, CheckpointError> {
    let (llm, own) = (checkpoint.decoder()?, engine.sizes());
    let wanted = sizes(llm, checkpoint.scheme_words(), own.limits);
    if let Some(other) = own.unlike(&wanted) {
        return Ok(Some(other));
    }
    let mut known = Vec::new();
    for (name, what) in names(checkpoint, llm)? {
        for (name, form, shape) in what.entries(checkpoint, &name)? {
            let words = |form: &str, shape: &[usize]| format!("{form} {shape:?}");
            match engine.tensor(&name) {
                None => return Ok(Some(format!("it has no tensor {name}"))),
                Some(TensorEntry { form: own, shape: has, .. })
                    if *own != form || *has != shape =>
                {
                    let (own, wanted) = (words(own, has), words(form, &shape));
                    return Ok(Some(format!("its {name} is {own}, not {wanted}")));
                }
                Some(_) => known.push(name),
            }
        }
    }
    let more = engine.tensors().find(|entry| !known.contains(&entry.name));
    Ok(more.map(|entry| format!("it has a tensor {} too many", entry.name)))
}

/// A tensor of an engine: its name, form and shape.
type Entry = (String, &'static str, Vec<usize>);

impl What {
    /// The tensors that it becomes in the engine.
    fn entries(&self, checkpoint: &Checkpoint, name: &str) -> Result<Vec<Entry>, CheckpointError> {
        let plain = |form, len| vec![(name.to_owned(), form, vec![len])];
        Ok(match self.read(checkpoint)? {
            Content::Floats(floats) => plain("f32", floats.len()),
            Content::Words(words) => plain("u32", words.len()),
            Content::Weight(weight) => {
                let (form, shape) = (weight.form(), vec![weight.rows(), weight.columns()]);
                let parts = form.parts().into_iter();
                parts
                    .map(|part| (format!("{name}{}", part.suffix()), form.name, shape.clone()))
                    .collect()
            }
        })
    }
}

/// Compares every number of `engine` with `checkpoint`, of which [`unlike_for_card`] says nothing; gives how many tensors
/// those were, and the ones that are not as they should be.  `told` hears how far it is.
///
/// # Errors
/// When either cannot be read.
pub fn compare_for_card(
    engine: &PackedWeights,
    checkpoint: &Checkpoint,
    told: &dyn Fn(&str),
) -> Result<(usize, Vec<OtherNumbers>), BuildError> {
    let all = names(checkpoint, checkpoint.decoder()?)?;
    let mut others = Vec::new();
    for (done, (name, what)) in all.iter().enumerate() {
        told(&format!("[{done}/{}] comparing {name}", all.len()));
        let mut watch = Watch::new(name);
        match what.read(checkpoint)? {
            Content::Floats(floats) => {
                let found = engine.numbers(name, floats.len())?;
                let found: Vec<f32> = found.into_iter().map(f32::from_le_bytes).collect();
                watch.take_column(&floats, &found);
            }
            Content::Words(words) => {
                let found = engine.numbers(name, words.len())?;
                // What no f32 tells apart is no axis and no column.
                let found: Vec<f32> =
                    found.into_iter().map(|word| u32::from_le_bytes(word) as f32).collect();
                let words: Vec<f32> = words.into_iter().map(|word| word as f32).collect();
                watch.take_column(&words, &found);
            }
            Content::Weight(weight) => weight.compare(engine, checkpoint, &mut watch)?,
        }
        others.extend(watch.other);
    }
    Ok((all.len(), others))
}

/// Takes note of what differs in a tensor.
struct Watch<'a> {
    name: &'a str,
    other: Option<OtherNumbers>,
}

impl<'a> Watch<'a> {
    fn new(name: &'a str) -> Self {
        Self { name, other: None }
    }

    /// Numbers that must be the same, each a row of its own.
    fn take_column(&mut self, expected: &[f32], found: &[f32]) {
        let rows = expected.len();
        for (row, (expected, found)) in expected.iter().zip(found).enumerate() {
            self.take_row((row, rows), &[*expected], &[*found], |_| [0.0; 2]);
        }
    }

    /// A row of numbers; `bounds` says how far each may be off by its size and by the row's largest.
    fn take_row(
        &mut self,
        (row, rows): (usize, usize),
        expected: &[f32],
        found: &[f32],
        bounds: impl Fn(f32) -> [f32; 2],
    ) {
        let most = expected.iter().fold(0.0_f32, |most, number| most.max(number.abs()));
        let [relative, absolute] = bounds(most);
        let is_near = |(expected, found): (&f32, &f32)| {
            // A number that is none is near nothing.
            (expected - found).abs() <= expected.abs() * relative + absolute
        };
        let Some(column) = expected.iter().zip(found).position(|pair| !is_near(pair)) else {
            return;
        };
        let other = self.other.get_or_insert_with(|| OtherNumbers {
            tensor: self.name.to_owned(),
            rows,
            rows_wrong: 0,
            first_row: row,
            first_column: column,
            expected: expected[column],
            found: found[column],
        });
        other.rows_wrong += 1;
    }
}

/// How far a number of a row may be off whose largest is `most`.
fn bounds(form: WeightForm, most: f32) -> [f32; 2] {
    match form.levels {
        Levels::Half => [HALVES_RELATIVE, HALVES_OF_ROW * most],
        Levels::Four | Levels::Eight => [PRODUCTS_OF_ROW, PRODUCTS_OF_ROW * most],
    }
}

impl Weight {
    /// Compares strip after strip, rows and columns that only fill included.
    fn compare(
        &self,
        engine: &PackedWeights,
        checkpoint: &Checkpoint,
        watch: &mut Watch<'_>,
    ) -> Result<(), BuildError> {
        let (form, rows, columns) = (self.form(), self.rows(), self.columns());
        let (strips, width) = (padded_rows(rows) / STRIP_ROWS, padded_columns(columns));
        let (mut expected, mut found) = (vec![0.0; width], vec![0.0; width]);
        for index in 0..strips {
            let strip = engine.strip((watch.name, form, columns), index, strips)?;
            let numbers = self.numbers(checkpoint, index)?;
            for row in 0..STRIP_ROWS {
                expected.fill(0.0);
                if let Some(own) = self.row_of(&numbers, index * STRIP_ROWS + row) {
                    expected[..columns].copy_from_slice(own);
                }
                read_row(form, &strip, row, &mut found);
                let place = (index * STRIP_ROWS + row, rows);
                watch.take_row(place, &expected, &found, |most| bounds(form, most));
            }
        }
        Ok(())
    }

    /// The numbers of each source's rows in a strip, and the first of those rows.
    fn numbers(
        &self,
        checkpoint: &Checkpoint,
        strip: usize,
    ) -> Result<Vec<(usize, Vec<f32>)>, CheckpointError> {
        let of_source = |at: usize| {
            let rows = self.rows_in(at, strip);
            Ok((rows.start, self.sources[at].read_numbers(checkpoint, rows)?))
        };
        (0..self.sources.len()).map(of_source).collect()
    }

    /// A row of the weight; none where it only fills.
    fn row_of<'a>(&self, numbers: &'a [(usize, Vec<f32>)], row: usize) -> Option<&'a [f32]> {
        let (at, row) = self.place(row)?;
        let (first, numbers) = &numbers[at];
        numbers.chunks(self.columns()).nth(row - first)
    }
}
