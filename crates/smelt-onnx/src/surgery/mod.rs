//! Changes models on disk: a rule proposes a patch, the patch is applied, both sides are checked.
//!
//! A rule is a function from a model to a [`Patch`], or to nothing when there is nothing to
//! do.  [`apply`] reads, checks, patches, writes and checks again; weights that do not change
//! are never loaded.  What a patched model computes is proven by `eval` in tests.

mod dedupe;
mod externalize;
mod extract;
mod fold;
mod head;
mod insert_cast;
mod insert_qdq;
mod new_file;
mod output;
mod patch;
mod quantise;
mod quantize_head;
mod rounding;
mod set_batch;
mod split_head;
mod to_opset;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use dedupe::dedupe;
pub use externalize::{WEIGHT_KEY, externalize, weights};
pub use extract::extract;
pub use fold::{FOLD_BYTES_MAX, FOLD_ELEMENTS_MAX, fold_constants};
pub use insert_cast::insert_cast;
pub use insert_qdq::insert_qdq;
pub use output::{DEAD_BYTES_MAX, OutputError};
pub use patch::{ColumnCut, Making, Patch, PatchError};
pub use quantise::Quantisation;
pub use quantize_head::{HeadScheme, quantize_head};
pub use set_batch::set_batch;
pub use split_head::{PARTS_MAX, split_head};
pub use to_opset::{TARGET_MAX, TARGET_MIN, to_opset};

use crate::encode::located;
use crate::model::Model;
use crate::{CheckError, ElementType, ReadError, check};

/// What to do to a model.
#[derive(Debug, Clone, PartialEq)]
pub enum Rule {
    /// Cut the vocabulary product into parts.
    SplitHead {
        /// The output it gives; `logits` or the only one when not named.
        output: Option<String>,
        /// Into how many.
        parts: Parts,
    },
    /// Round the weight of the vocabulary product to few bits.
    QuantizeHead {
        /// The output it gives; `logits` or the only one when not named.
        output: Option<String>,
        /// To how many bits, with which scales.
        scheme: HeadScheme,
    },
    /// Say the same in another operator set.
    ToOpset {
        /// Its version.
        version: i64,
    },
    /// Fix the batch size.
    SetBatch {
        /// Its size from now on.
        size: usize,
    },
    /// Store equal initializers once.
    Dedupe,
    /// Compute small integer subgraphs that depend on constants only.
    FoldConstants,
    /// Keep only what lies between values.
    Extract {
        /// Values that become inputs, besides the graph's own that are needed.
        inputs: Vec<String>,
        /// Values that become the outputs.
        outputs: Vec<String>,
    },
    /// Compute nodes in another float type.
    InsertCast {
        /// Name, first output or operator of the nodes.
        nodes: String,
        /// The type.
        to: ElementType,
    },
    /// Multiply integers of 8 bits: QuantizeLinear and DequantizeLinear before the products of stored weights.
    InsertQdq {
        /// The magnitude that 8 bits shall say of values, by their names.
        thresholds: BTreeMap<String, f32>,
        /// Name, first output or operator of nodes that stay as they are.
        except: Vec<String>,
    },
    /// Make weights inputs of the graph.
    Externalize {
        /// Their names; all weights outside the model file when empty.
        names: Vec<String>,
    },
}

/// How many parts a head is cut into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parts {
    /// This many.
    Count(usize),
    /// As few as keep each part's stored weight within this many bytes.
    MaxBytes(u64),
}

impl Rule {
    /// What the rule would change in `model`, whose weights lie in `dir`.
    ///
    /// # Errors
    /// When the model is not one the rule understands.
    pub fn patch(&self, model: &Model, dir: &Path) -> Result<Option<Patch>, RuleError> {
        match self {
            Rule::SplitHead { output, parts } => split_head(model, output.as_deref(), *parts),
            Rule::QuantizeHead { output, scheme } => {
                quantize_head(model, output.as_deref(), *scheme)
            }
            Rule::ToOpset { version } => to_opset(model, *version),
            Rule::SetBatch { size } => set_batch(model, *size),
            Rule::Dedupe => dedupe(model, dir),
            Rule::FoldConstants => fold_constants(model),
            Rule::Extract { inputs, outputs } => extract(model, inputs, outputs),
            Rule::InsertCast { nodes, to } => insert_cast(model, nodes, *to),
            Rule::InsertQdq { thresholds, except } => insert_qdq(model, thresholds, except),
            Rule::Externalize { names } => externalize(model, names),
        }
    }
}

/// A rule that cannot be applied.
#[derive(Debug, thiserror::Error)]
#[error("{rule}: {why}")]
pub struct RuleError {
    /// The rule.
    pub rule: &'static str,
    /// Why not.
    pub why: String,
}

/// What becomes of the model that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consume {
    /// It stays; its data is copied by the kernel.
    No,
    /// It is used up: its data files are renamed into the new directory and its model file
    /// goes.  Data that nothing refers to any more stays in the renamed file.
    Yes,
}

/// What was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// What the rule changed; `None` when there was nothing to do and the model is the same.
    pub summary: Option<String>,
    /// Nodes before and after.
    pub nodes: [usize; 2],
    /// Initializers before and after.
    pub initializers: [usize; 2],
    /// Bytes of data files that were copied or written.
    pub bytes_written: u64,
    /// Bytes of data files that were renamed.
    pub bytes_renamed: u64,
    /// Bytes in the new data files that no tensor refers to, padding apart.
    pub bytes_dead: u64,
}

/// Why a model was not changed; nothing is left behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApplyError {
    /// The model cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The model was wrong before the rule saw it.
    #[error("{}: the model is wrong as it is: {source}", path.display())]
    Before {
        /// The model file.
        path: PathBuf,
        /// The rule of the format it breaks.
        source: CheckError,
    },
    /// The rule does not fit the model.
    #[error("{}: {source}", path.display())]
    Rule {
        /// The model file.
        path: PathBuf,
        /// Why.
        source: RuleError,
    },
    /// The rule proposed nonsense: a bug of the rule.
    #[error("{}: {source}", path.display())]
    Patch {
        /// The model file.
        path: PathBuf,
        /// What is wrong with the patch.
        source: PatchError,
    },
    /// The new model is wrong: a bug of the rule.
    #[error("{}: the rule would make a wrong model, so nothing is written: {source}", path.display())]
    After {
        /// The model file.
        path: PathBuf,
        /// The rule of the format it breaks.
        source: CheckError,
    },
    /// The new model could not be written.
    #[error(transparent)]
    Output(#[from] OutputError),
}

/// Applies `rule` to the model at `source`, a file or a directory with a `model.onnx`, and
/// writes the result as directory `out_dir`, which must not exist or be empty.
///
/// # Errors
/// When the model is wrong before or after, the rule does not fit, or writing fails; then
/// `out_dir` is as it was and so is the source.
pub fn apply(
    source: &Path,
    rule: &Rule,
    out_dir: &Path,
    consume: Consume,
) -> Result<Report, ApplyError> {
    apply_heard(source, rule, out_dir, consume, &mut |_| {})
}

/// As [`apply`]; `progress` hears what is written, with the share of all bytes that is done.
///
/// # Errors
/// As [`apply`].
pub fn apply_heard(
    source: &Path,
    rule: &Rule,
    out_dir: &Path,
    consume: Consume,
    progress: &mut dyn FnMut(&str),
) -> Result<Report, ApplyError> {
    let (path, dir) = located(source);
    let model = Model::read(&path)?;
    check(&model, &dir).map_err(|source| ApplyError::Before { path: path.clone(), source })?;
    let patch = rule
        .patch(&model, &dir)
        .map_err(|source| ApplyError::Rule { path: path.clone(), source })?;
    let given = patch.clone().unwrap_or_default();
    let next =
        given.apply(&model).map_err(|source| ApplyError::Patch { path: path.clone(), source })?;
    let counts = |model: &Model| [model.graph.nodes.len(), model.graph.initializers.len()];
    let ([nodes, initializers], [nodes_next, initializers_next]) = (counts(&model), counts(&next));
    drop(model);
    let written = output::write(next, &given.makings, &path, out_dir, consume, progress)?;
    Ok(Report {
        summary: patch.map(|patch| patch.summary),
        nodes: [nodes, nodes_next],
        initializers: [initializers, initializers_next],
        bytes_written: written.bytes_written,
        bytes_renamed: written.bytes_renamed,
        bytes_dead: written.bytes_dead,
    })
}
