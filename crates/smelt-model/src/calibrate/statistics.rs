//! Describes what was seen of the inputs of linear layers, and reads and writes it.
//!
//! A directory holds `calibrate.json` (which inputs there are, which weights take them) and
//! `statistics.safetensors`: for each input `NAME.mean` and `NAME.max` of |x| over all tokens, F32
//! `[channels]`; `NAME.smooth`, SmoothQuant's scales, F32 `[channels]`; `NAME.rows`, the activations
//! of some tokens, BF16 `[rows, channels]`.  Knows nothing of how they were seen.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::checkpoint::JSON_BYTES_MAX;
use crate::dtype::Dtype;
use crate::safetensors::{Reader, SafetensorsError, Tensor, TensorSpec};

/// The file that says what was seen.
pub const INDEX_FILE: &str = "calibrate.json";

/// The file of numbers.
pub const STATISTICS_FILE: &str = "statistics.safetensors";

/// The version of the directory's layout.
pub(super) const FORMAT: u32 = 1;

/// The most rows kept of one input: quantisers hold a square of so many numbers, 128 MiB at most.
pub const ROWS_MAX: usize = 4096;

/// Why statistics could not be read.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    /// The system refused the index.
    #[error("cannot read {}: {source}; is it what `smelt calibrate` made?", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The index is no index.
    #[error("{}: {why}; calibrate again", path.display())]
    BadIndex {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The numbers were refused.
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
    /// A tensor of the numbers is missing, or is not what the index says.
    #[error("{}: tensor {tensor} {why}; calibrate again", path.display())]
    BadTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What is wrong.
        why: String,
    },
    /// The statistics are of another model.
    #[error(
        "{} knows no input of {width} channels for {linear}; calibrate with the checkpoint that is quantised",
        dir.display()
    )]
    NoInput {
        /// The directory.
        dir: PathBuf,
        /// The weight.
        linear: String,
        /// The inputs it has.
        width: usize,
    },
}

/// The text of [`INDEX_FILE`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Index {
    pub(super) format: u32,
    /// Tokens that went through the model.
    pub(super) tokens: usize,
    /// Tokens of which activations were kept.
    pub(super) rows: usize,
    /// Where the prompts came from, in words.
    pub(super) prompts: String,
    pub(super) inputs: Vec<Input>,
}

/// An input that some weights share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Input {
    pub(super) name: String,
    pub(super) channels: usize,
    pub(super) linears: Vec<String>,
}

impl Input {
    /// What the file of numbers holds of it, `rows` tokens kept.
    pub(super) fn specs(&self, rows: usize) -> [TensorSpec; 4] {
        let spec = |what: &str, dtype, shape: &[usize]| TensorSpec {
            name: format!("{}.{what}", self.name),
            dtype,
            shape: shape.to_vec(),
        };
        [
            spec("mean", Dtype::F32, &[self.channels]),
            spec("max", Dtype::F32, &[self.channels]),
            spec("smooth", Dtype::F32, &[self.channels]),
            spec("rows", Dtype::BF16, &[rows, self.channels]),
        ]
    }
}

/// What a `calibrate` stage saw of a model.
#[derive(Debug)]
pub struct Calibration {
    dir: PathBuf,
    index: Index,
    numbers: Reader,
}

impl Calibration {
    /// Opens the directory that [`calibrate`](super::calibrate) wrote.
    ///
    /// # Errors
    /// [`CalibrationError`] naming the file and what is wrong with it.
    pub fn open(dir: &Path) -> Result<Self, CalibrationError> {
        let index = read_index(&dir.join(INDEX_FILE))?;
        let numbers = Reader::open(&dir.join(STATISTICS_FILE))?;
        let calibration = Self { dir: dir.to_owned(), index, numbers };
        for input in &calibration.index.inputs {
            for spec in input.specs(calibration.index.rows) {
                calibration.tensor(&spec)?;
            }
        }
        Ok(calibration)
    }

    /// The activations kept of each input.
    pub fn rows(&self) -> usize {
        self.index.rows
    }

    /// The name of the input that the weight `linear` `[_, width]` takes.
    ///
    /// # Errors
    /// [`CalibrationError::NoInput`].
    pub fn input_of(&self, linear: &str, width: usize) -> Result<&str, CalibrationError> {
        let takes = |input: &&Input| {
            input.channels == width && input.linears.iter().any(|name| name == linear)
        };
        self.index.inputs.iter().find(takes).map(|input| input.name.as_str()).ok_or_else(|| {
            let (dir, linear) = (self.dir.clone(), linear.to_owned());
            CalibrationError::NoInput { dir, linear, width }
        })
    }

    /// Mean |x| of each channel of the input `name`: `[channels]`.
    ///
    /// # Errors
    /// [`CalibrationError`] if there is no such input, or the reader's.
    pub fn mean(&self, name: &str) -> Result<Vec<f32>, CalibrationError> {
        self.read(name, 0)
    }

    /// Largest |x| of each channel of the input `name`: `[channels]`.
    ///
    /// # Errors
    /// [`CalibrationError`] if there is no such input, or the reader's.
    pub fn largest(&self, name: &str) -> Result<Vec<f32>, CalibrationError> {
        self.read(name, 1)
    }

    /// SmoothQuant's scales of the input `name`, exponent 1/2: `[channels]`.
    ///
    /// # Errors
    /// [`CalibrationError`] if there is no such input, or the reader's.
    pub fn smooth(&self, name: &str) -> Result<Vec<f32>, CalibrationError> {
        self.read(name, 2)
    }

    /// The activations kept of the input `name`: `[rows, channels]`.
    ///
    /// # Errors
    /// [`CalibrationError`] if there is no such input, or the reader's.
    pub fn activations(&self, name: &str) -> Result<Vec<f32>, CalibrationError> {
        self.read(name, 3)
    }

    fn read(&self, name: &str, which: usize) -> Result<Vec<f32>, CalibrationError> {
        let input = self.index.inputs.iter().find(|input| input.name == name);
        let input = input.ok_or_else(|| self.bad(name, "is not there"))?;
        let spec = &input.specs(self.index.rows)[which];
        let tensor = self.tensor(spec)?;
        let mut bytes = vec![0; spec.shape.iter().product::<usize>() * spec.dtype.size_bytes()];
        self.numbers.read_at(tensor, 0, &mut bytes)?;
        let mut values = Vec::new();
        if !spec.dtype.widen(&bytes, &mut values) || values.iter().any(|value| !value.is_finite()) {
            return Err(self.bad(&spec.name, "has a value that is not finite"));
        }
        Ok(values)
    }

    fn tensor(&self, spec: &TensorSpec) -> Result<&Tensor, CalibrationError> {
        let tensor = self.numbers.get(&spec.name);
        let tensor = tensor.ok_or_else(|| self.bad(&spec.name, "is missing"))?;
        if tensor.dtype != spec.dtype || tensor.shape != spec.shape {
            let why = format!("is not {} {:?}", spec.dtype, spec.shape);
            return Err(self.bad(&spec.name, &why));
        }
        Ok(tensor)
    }

    fn bad(&self, tensor: &str, why: &str) -> CalibrationError {
        let (path, tensor) = (self.dir.join(STATISTICS_FILE), tensor.to_owned());
        CalibrationError::BadTensor { path, tensor, why: why.to_owned() }
    }
}

fn read_index(path: &Path) -> Result<Index, CalibrationError> {
    let io = |source| CalibrationError::Io { path: path.into(), source };
    let bad = |why: String| CalibrationError::BadIndex { path: path.into(), why };
    if fs::metadata(path).map_err(io)?.len() > JSON_BYTES_MAX {
        return Err(bad(format!("it has more than {JSON_BYTES_MAX} bytes")));
    }
    let text = fs::read_to_string(path).map_err(io)?;
    let index: Index = serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
    if index.format != FORMAT {
        return Err(bad(format!("format {} is not {FORMAT}", index.format)));
    }
    if !(1..=ROWS_MAX).contains(&index.rows) {
        return Err(bad(format!("rows is {}, but must be 1 to {ROWS_MAX}", index.rows)));
    }
    Ok(index)
}
