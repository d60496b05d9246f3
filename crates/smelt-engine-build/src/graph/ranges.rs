//! Says between which numbers the values of a graph lie, as far as it was run.
//!
//! The graph becomes an engine in a folder of its own, which is run operator by operator over whatever it is given, and
//! every value of floats is counted.  Knows nothing of pictures, and of no program that reads the ranges.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use smelt_backend::{GraphInput, Tensor};
use smelt_engine::graph::GraphEngine;

use super::Precision;
use super::build::build_one;
use super::histogram::{Histogram, Method};
use crate::BuildError;

/// What ranges are kept in.
pub const RANGES_FILE: &str = "ranges.json";
const FORMAT: u32 = 1;
/// A line of some hundred bytes for each value of the largest graph that an engine takes.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Between which numbers the values of a graph lay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ranges {
    format: u32,
    /// How thresholds were chosen.
    pub method: Method,
    /// How often the graph was run.
    pub runs: usize,
    /// By the names of the values.
    pub values: BTreeMap<String, ValueRange>,
}

/// Between which numbers a value lay.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ValueRange {
    /// The least number.
    pub min: f32,
    /// The largest.
    pub max: f32,
    /// The magnitude up to which 8 bits should say its numbers; 0 where all are.
    pub threshold: f32,
}

/// A file that holds no ranges.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", path.display())]
pub struct RangesError {
    /// The file.
    pub path: PathBuf,
    /// Why not.
    pub why: String,
}

impl Ranges {
    /// Reads those in `dir`.
    ///
    /// # Errors
    /// When there are none, or a threshold is no magnitude.
    pub fn read(dir: &Path) -> Result<Self, RangesError> {
        let path = dir.join(RANGES_FILE);
        let fault = |why: String| RangesError { path: path.clone(), why };
        let mut text = String::new();
        let file = File::open(&path).map_err(|error| fault(error.to_string()))?;
        let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
        if read.map_err(|error| fault(error.to_string()))? as u64 > FILE_BYTES_MAX {
            return Err(fault(format!("it has more than {FILE_BYTES_MAX} bytes")));
        }
        let ranges: Self = serde_json::from_str(&text).map_err(|error| fault(error.to_string()))?;
        if ranges.format != FORMAT {
            return Err(fault(format!("it is of format {}, not {FORMAT}", ranges.format)));
        }
        let is_magnitude =
            |range: &ValueRange| range.threshold.is_finite() && range.threshold >= 0.0;
        match ranges.values.iter().find(|(_, range)| !is_magnitude(range)) {
            Some((name, range)) => Err(fault(format!(
                "the threshold of {name:?} is {}, no magnitude",
                range.threshold
            ))),
            None => Ok(ranges),
        }
    }

    /// Writes them into `dir`.
    ///
    /// # Errors
    /// When that fails.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        fs::write(dir.join(RANGES_FILE), text)
    }

    /// The threshold of each value, by its name.
    pub fn thresholds(&self) -> BTreeMap<String, f32> {
        self.values.iter().map(|(name, range)| (name.clone(), range.threshold)).collect()
    }
}

/// A graph that is run to count what flows through it.
pub struct Observer {
    engine: GraphEngine,
    seen: BTreeMap<String, Histogram>,
    runs: usize,
}

impl Observer {
    /// Of the graph `model`, a file or a directory with a `model.onnx`; its engine is built in `scratch`, which takes as many
    /// bytes as the graph's weights.
    ///
    /// # Errors
    /// As [`super::build`].
    pub fn open(
        model: &Path,
        scratch: &Path,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Self, BuildError> {
        build_one(model, &Precision::F32.into(), scratch, progress)?;
        Ok(Self { engine: GraphEngine::open(scratch)?, seen: BTreeMap::new(), runs: 0 })
    }

    /// What the graph reads, in its order.
    pub fn inputs(&self) -> &[GraphInput] {
        self.engine.inputs()
    }

    /// Runs the graph on `inputs` and counts every value of floats.
    ///
    /// # Errors
    /// When the inputs do not fit, an operator fails, or a value holds what is no number.
    pub fn run(&mut self, inputs: Vec<Tensor>) -> Result<(), BuildError> {
        let (seen, mut fault) = (&mut self.seen, None);
        self.engine.observe(inputs, &mut |name, numbers| {
            let counted = seen.entry(name.to_owned()).or_insert_with(Histogram::new).take(numbers);
            if counted.is_err() && fault.is_none() {
                fault = Some(name.to_owned());
            }
        })?;
        self.runs += 1;
        fault.map_or(Ok(()), |name| Err(BuildError::NotANumber { name }))
    }

    /// The ranges of what was counted.
    pub fn ranges(&self, method: Method) -> Ranges {
        let range = |(name, histogram): (&String, &Histogram)| {
            let [min, max] = histogram.bounds();
            (name.clone(), ValueRange { min, max, threshold: histogram.threshold(method) })
        };
        let values = self.seen.iter().filter(|(_, it)| it.bounds()[0] <= it.bounds()[1]);
        Ranges { format: FORMAT, method, runs: self.runs, values: values.map(range).collect() }
    }
}
