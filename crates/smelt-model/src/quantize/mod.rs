//! Quantises the linear weights of a checkpoint's language model.
//!
//! A checkpoint becomes a directory that [`Checkpoint::open`] opens again: side files byte for
//! byte, a mark that names the schemes, a report of what rounding cost, and the language model's
//! tensors.  `targets` decides what becomes of each, `tensor` reads, rounds and writes it a block
//! of rows at a time, `group` puts values on a grid; `awq` and `gptq` choose by what a `calibrate`
//! stage saw.  Memory does not grow with the model, and bytes are equal on every machine.
//! Knows nothing of engines: how a kernel packs the integers is not decided here.

mod activations;
mod awq;
mod best;
mod carry;
mod eliminate;
mod figures;
mod gains;
mod glob;
mod gptq;
mod group;
mod hessian;
mod layer;
mod report;
mod side_files;
mod targets;
mod tensor;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::calibrate::{Calibration, CalibrationError};
use crate::checkpoint::{CONFIG_FILE, Checkpoint, CheckpointError, WEIGHTS_FILE};
use crate::decoder::EMBEDDING;
use crate::model::block_of;
use crate::safetensors::{SafetensorsError, TensorSpec, Writer};
use crate::scheme::{self, Mark};

use activations::Activations;
pub(crate) use awq::EXPONENTS;
pub(crate) use best::{DAMPINGS, HELD_EVERY, SAMPLE_ROWS};
pub(crate) use carry::is_square;
pub(crate) use group::CLIPS;

use best::Trial;
use figures::Sums;
use gptq::{Basis, Feedback};
use group::{Rounder, UNCLIPPED};
use layer::{Changes, Source};
use report::Draft;
pub(crate) use side_files::{copy_side_files, write_made_files};
use targets::{Target, targets};
use tensor::{Change, Choice};

pub use crate::scheme::{IntGrid, Scheme};
pub use figures::Figures;
pub use report::{REPORT_FILE, Report, TensorReport};

/// How the integers of a weight are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Each value to the nearest integer, the largest of a group being the largest integer.
    Rtn,
    /// The same, each group clipped where its squared error is least, which is weighed by the inputs
    /// where these were seen.
    Mse,
    /// AWQ: inputs scaled by what was seen of them, then clipped where the output error is least.
    Awq,
    /// GPTQ: each input makes up for the errors of those before it.
    Gptq,
    /// GPTQ, the largest inputs first; columns are stored in that order where groups share scales.
    GptqActOrder,
    /// For each weight the way of several that costs its outputs least, measured on activations that
    /// none of them was fitted to.
    Best,
}

impl Method {
    /// Every method, in the order of the enum.
    pub const ALL: [Self; 6] =
        [Self::Rtn, Self::Mse, Self::Awq, Self::Gptq, Self::GptqActOrder, Self::Best];

    /// The words of [`Method::ALL`], as pipelines and flags use them.
    pub const WORDS: [&'static str; 6] = ["rtn", "mse", "awq", "gptq", "gptq-act-order", "best"];

    /// The word pipelines and flags use.
    pub fn name(self) -> &'static str {
        Self::WORDS[self as usize]
    }

    /// The method of a word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.name() == word)
    }

    /// Whether it needs what a `calibrate` stage saw.
    pub fn needs_calibration(self) -> bool {
        matches!(self, Self::Awq | Self::Gptq | Self::GptqActOrder | Self::Best)
    }

    /// Whether it does something with what a `calibrate` stage saw: besides those that need it, `mse` lets
    /// errors count as much as the inputs that they meet.
    pub fn reads_calibration(self) -> bool {
        self != Self::Rtn
    }

    fn reorders(self) -> bool {
        self == Self::GptqActOrder
    }
}

/// Dampings that [`Method::Best`] tries where nothing else is said, and at most.
pub const BUDGET: usize = 3;
/// See [`BUDGET`].
pub const BUDGET_MAX: usize = DAMPINGS.len();

/// What to quantise, and how.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    /// Of the linear weights of the layers.
    pub scheme: Scheme,
    /// Of the head; if not given that of the layers, but 8 bits per output channel where theirs has
    /// 4: the head decides each token at once, and nothing after it makes up for its errors.
    pub head: Option<Scheme>,
    /// Of the embedding; if not given it stays as it is.
    pub embeddings: Option<Scheme>,
    /// How integers are chosen.
    pub method: Method,
    /// Dampings that [`Method::Best`] tries for each weight, 1 to [`BUDGET_MAX`].
    pub budget: usize,
    /// Patterns of the names of tensors that stay as they are: `*` any characters, `?` any one.
    pub exclude: Vec<String>,
    /// Whether weights that another tool packed as integers are rounded once more.
    pub allow_requantize: bool,
    /// What a `calibrate` stage saw of this checkpoint.
    pub calibration: Option<&'a Path>,
    /// Threads to round with; the result does not depend on it.
    pub threads: usize,
}

impl Options<'_> {
    /// Plain rounding under `scheme`, on all threads of the machine.
    pub fn plain(scheme: Scheme) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            scheme,
            head: None,
            embeddings: None,
            method: Method::Rtn,
            budget: BUDGET,
            exclude: Vec::new(),
            allow_requantize: false,
            calibration: None,
            threads,
        }
    }

    fn head(&self) -> Scheme {
        self.head.unwrap_or(match self.scheme.grid() {
            Some(IntGrid { bits: 4, .. }) => Scheme::Int8,
            _ => self.scheme,
        })
    }

    /// Whether anything is to be rounded.
    pub fn rounds(&self) -> bool {
        [self.scheme, self.head(), self.embeddings()].iter().any(|scheme| scheme.grid().is_some())
    }

    fn embeddings(&self) -> Scheme {
        self.embeddings.unwrap_or(Scheme::None)
    }

    fn mark(&self) -> Mark {
        Mark {
            scheme: self.scheme,
            head: self.head(),
            embeddings: self.embeddings(),
            method: self.method.name().to_owned(),
            exclude: self.exclude.clone(),
        }
    }
}

/// Why a checkpoint could not be quantised.
#[derive(Debug, thiserror::Error)]
pub enum QuantizeError {
    /// The checkpoint could not be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// What was seen of the checkpoint could not be read.
    #[error(transparent)]
    Calibration(#[from] CalibrationError),
    /// The weights could not be written.
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
    /// The system refused a side file or the directory.
    #[error("cannot write {}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The weights are integers already.
    #[error("{} is already quantised (scheme {scheme}); quantise the original, or what another tool packed with allow-requantize", path.display())]
    AlreadyQuantized {
        /// The checkpoint.
        path: PathBuf,
        /// Its scheme.
        scheme: String,
    },
    /// The result would overwrite the checkpoint.
    #[error("cannot quantise {} into itself; name another directory", dir.display())]
    SameDirectory {
        /// The checkpoint.
        dir: PathBuf,
    },
    /// A weight is infinite or not a number, or too large for the type of its scale.
    #[error(
        "tensor {tensor} has a value in row {row} that is not finite or too large; no scale can hold it"
    )]
    NotFinite {
        /// The tensor.
        tensor: String,
        /// The row.
        row: usize,
    },
    /// The method chooses by activations, and there are none.
    #[error("method {} needs what `smelt calibrate` saw of this checkpoint; name it as calibration", method.name())]
    NoCalibration {
        /// The method.
        method: Method,
    },
    /// A pattern keeps nothing from being rounded.
    #[error(
        "exclude {pattern:?} matches no weight that would be quantised; their names are like {example}"
    )]
    IdlePattern {
        /// The pattern.
        pattern: String,
        /// The first weight that would be quantised.
        example: String,
    },
}

/// Whether the weights of `ckpt` may be rounded as `options` say, or are integers already.
///
/// # Errors
/// [`QuantizeError::AlreadyQuantized`].
pub fn check_unpacked(ckpt: &Checkpoint, options: &Options<'_>) -> Result<(), QuantizeError> {
    let is_packed = ckpt.is_packed() && options.rounds() && !options.allow_requantize;
    match ckpt.is_quantized() || is_packed {
        true => Err(QuantizeError::AlreadyQuantized {
            path: ckpt.path().into(),
            scheme: ckpt.scheme_words(),
        }),
        false => Ok(()),
    }
}

/// Writes the language model of `ckpt` into `out_dir`, which is created if absent, and says what
/// that cost.
///
/// A weight `[out, in]` under a scheme of 8 bits becomes I8 of the same shape, under one of 4 bits U8
/// `[out, ceil(in / 2)]`, the even column in the low half.  `<name>_scale` is F32 `[out]`, or F16
/// `[out, groups]` where runs of inputs share a scale; `<name>_zero` is U8 `[out, groups]` where the
/// scheme has zero points; `<name>_order` I32 `[in]` says which input each stored column belongs to
/// where the method reorders them.  A weight is `(q - zero) * scale`, the zero of 4 bits without
/// zero points being 8.  Plain rounding takes `scale = max|w| / 127`, or `/ 7.5` for 4 bits, or the
/// range from the least to the largest over 15 with zero points, and rounds ties to even.  A group
/// of zeros has scale 0.  A tied head that is quantised becomes a copy of the embedding.  Norms and
/// biases keep their bytes, except those AWQ divides.
///
/// `progress` hears one line per layer, with the share of the weights that is done.
///
/// # Errors
/// [`QuantizeError`] naming the file or tensor; what was written until then stays.
pub fn quantize(
    ckpt: &Checkpoint,
    options: &Options<'_>,
    out_dir: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<Report, QuantizeError> {
    check_unpacked(ckpt, options)?;
    ckpt.decoder()?;
    let calibration = calibration(options)?;
    let targets = targets(ckpt, options)?;
    fs::create_dir_all(out_dir).map_err(failed(out_dir))?;
    refuse_same_directory(ckpt.dir(), out_dir)?;
    copy_side_files(ckpt.dir(), out_dir)?;
    write_made_files(ckpt, out_dir)?;
    write(&out_dir.join(CONFIG_FILE), ckpt.config())?;
    let mark = options.mark();
    write(&out_dir.join(scheme::MARK_FILE), &mark.text())?;
    let specs: Vec<TensorSpec> = targets.iter().flat_map(Target::specs).collect();
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    let writer = Writer::create(&out_dir.join(WEIGHTS_FILE), &specs, &metadata)?;
    let (method, threads) = (options.method, options.threads.max(1));
    let source = calibration.as_ref().map(|seen| Source { ckpt, calibration: seen, threads });
    let (draft, budget) = (Draft::default(), options.budget);
    let mut work =
        Work { ckpt, method, budget, threads, source, writer, draft, feedback: None, trial: None };
    let (mut done, all) = (0, numbers(&targets));
    for layer in targets.chunk_by(|a, b| block_of(&a.name) == block_of(&b.name)) {
        progress(&format!("[{done}/{all}] {}", block_of(&layer[0].name)));
        work.layer(layer)?;
        done += numbers(layer);
    }
    work.writer.finish()?;
    let report = work.draft.finish(&mark);
    write(&out_dir.join(REPORT_FILE), &report.text())?;
    Ok(report)
}

/// What [`quantize`] would make of `ckpt`, of which no weight need be here: a checkpoint that is only described, too.
///
/// # Errors
/// [`QuantizeError`] where it would be refused for its tensors alone.
pub fn described(ckpt: &Checkpoint, options: &Options<'_>) -> Result<Checkpoint, QuantizeError> {
    check_unpacked(ckpt, options)?;
    ckpt.decoder()?;
    let targets = targets(ckpt, options)?;
    let tensors = targets.iter().flat_map(|target| {
        let specs = target.specs().into_iter().enumerate();
        specs.map(move |(index, spec)| match index {
            0 => (spec, target.shape.clone(), target.grid()),
            _ => (spec.clone(), spec.shape, None),
        })
    });
    Ok(ckpt.with_decoder(tensors, options.mark()))
}

/// How many numbers there are to round: what is only copied takes next to no time.
fn numbers(targets: &[Target]) -> usize {
    let rounded = targets.iter().filter(|target| target.grid().is_some());
    // Where nothing is rounded, any tensor is as good as another.
    rounded.map(|target| target.shape.iter().product::<usize>()).sum::<usize>() + targets.len()
}

fn calibration(options: &Options<'_>) -> Result<Option<Calibration>, QuantizeError> {
    let method = options.method;
    match options.calibration.filter(|_| method.reads_calibration()) {
        Some(dir) => Ok(Some(Calibration::open(dir)?)),
        None if method.needs_calibration() => Err(QuantizeError::NoCalibration { method }),
        None => Ok(None),
    }
}

/// A checkpoint being quantised.
struct Work<'a> {
    ckpt: &'a Checkpoint,
    method: Method,
    budget: usize,
    threads: usize,
    /// What was seen, where the method chooses by it.
    source: Option<Source<'a>>,
    writer: Writer,
    draft: Draft,
    /// The feedback of the last input: linears that share one come one after another.
    feedback: Option<InputFeedback>,
    /// The same of the ways that are tried.
    trial: Option<Trial>,
}

/// What GPTQ knows of one input.
struct InputFeedback {
    input: String,
    group: Option<usize>,
    order: Option<Vec<usize>>,
    feedback: Feedback,
}

impl Work<'_> {
    /// Writes the tensors of one layer.
    fn layer(&mut self, targets: &[Target]) -> Result<(), QuantizeError> {
        let mut changes = match self.source {
            Some(source) if self.method == Method::Awq => {
                source.changes(block_of(&targets[0].name), targets)?
            }
            _ => Changes::default(),
        };
        for target in targets {
            let Some(grid) = target.grid() else {
                match changes.vectors.get(&target.name) {
                    Some(bytes) => self.writer.write(bytes)?,
                    None => tensor::copy(self.ckpt, target, &mut self.writer)?,
                }
                continue;
            };
            let (sums, way) = self.round(target, grid, &mut changes)?;
            self.draft.add(&target.name, target.scheme, &target.shape, (sums, way));
        }
        Ok(())
    }

    fn round(
        &mut self,
        target: &Target,
        grid: IntGrid,
        changes: &mut Changes,
    ) -> Result<(Sums, Option<&'static str>), QuantizeError> {
        let clips = if self.method == Method::Rtn { UNCLIPPED } else { CLIPS };
        let rounder = Rounder { grid, clips };
        let mut choice = Choice::Alone { change: Change::default(), importance: None };
        // Nothing multiplies the embedding, so nothing was seen.
        let source = self.source.filter(|_| target.name != EMBEDDING);
        match (source, self.method) {
            (Some(source), Method::Awq) => {
                let importance = match changes.importance.remove(&target.name) {
                    Some(importance) => importance,
                    None => source.seen(&target.name, target.shape[1])?.square,
                };
                let change = changes.weights.remove(&target.name).unwrap_or_default();
                choice = Choice::Alone { change, importance: Some(importance) };
            }
            (Some(source), Method::Mse) => {
                let importance = Some(source.seen(&target.name, target.shape[1])?.square);
                choice = Choice::Alone { change: Change::default(), importance };
            }
            (Some(source), Method::Gptq | Method::GptqActOrder) => {
                return Ok((self.round_with_feedback(source, target, rounder)?, None));
            }
            (Some(source), Method::Best) => return self.round_best(source, target, rounder),
            _ => {}
        }
        let how = (rounder, &choice);
        let sums = tensor::round(self.ckpt, target, how, &mut self.writer, self.threads)?;
        Ok((sums, None))
    }

    /// Rounds by the way that costs least, and names it.
    fn round_best(
        &mut self,
        source: Source<'_>,
        target: &Target,
        rounder: Rounder,
    ) -> Result<(Sums, Option<&'static str>), QuantizeError> {
        let input = source.calibration.input_of(&target.name, target.shape[1])?;
        let is_known = |known: &Trial| known.input == input && known.grid == rounder.grid;
        let trial = match self.trial.take().filter(is_known) {
            Some(known) => known,
            None => Trial::find(source, target, (input, rounder.grid), self.budget)?,
        };
        let (way, feedback) = trial.choose(source, target, rounder)?;
        let choice = match &feedback {
            Some(feedback) => Choice::Feedback { feedback, order: None },
            None => {
                let importance = Some(trial.importance.clone());
                Choice::Alone { change: Change::default(), importance }
            }
        };
        let how = (rounder, &choice);
        let sums = tensor::round(self.ckpt, target, how, &mut self.writer, self.threads)?;
        self.trial = Some(trial);
        Ok((sums, Some(way.name())))
    }

    fn round_with_feedback(
        &mut self,
        source: Source<'_>,
        target: &Target,
        rounder: Rounder,
    ) -> Result<Sums, QuantizeError> {
        let input = source.calibration.input_of(&target.name, target.shape[1])?;
        let group = rounder.grid.group;
        let is_known = |known: &InputFeedback| known.input == input && known.group == group;
        let known = match self.feedback.take().filter(is_known) {
            Some(known) => known,
            None => InputFeedback::find(source, target, input, group)?,
        };
        let choice = Choice::Feedback { feedback: &known.feedback, order: known.order.as_deref() };
        let how = (rounder, &choice);
        let sums = tensor::round(self.ckpt, target, how, &mut self.writer, self.threads)?;
        self.feedback = Some(known);
        Ok(sums)
    }
}

impl InputFeedback {
    fn find(
        source: Source<'_>,
        target: &Target,
        input: &str,
        group: Option<usize>,
    ) -> Result<Self, QuantizeError> {
        let rows = source.calibration.activations(input)?;
        let mut x = Activations::from_rows(&rows, target.shape[1]);
        drop(rows);
        let order = target.is_ordered.then(|| x.order());
        if let Some(order) = &order {
            x = x.into_reordered(order);
        }
        let feedback = Basis::new(x, group, source.threads).usual(source.threads);
        Ok(Self { input: input.to_owned(), group, order, feedback })
    }
}

fn refuse_same_directory(from: &Path, to: &Path) -> Result<(), QuantizeError> {
    let real = |path: &Path| fs::canonicalize(path).map_err(failed(path));
    if real(from)? == real(to)? {
        return Err(QuantizeError::SameDirectory { dir: from.into() });
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), QuantizeError> {
    fs::write(path, text).map_err(failed(path))
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> QuantizeError {
    move |source| QuantizeError::Io { path: path.into(), source }
}
