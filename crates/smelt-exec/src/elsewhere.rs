//! What a run asks of whoever has stages built on other machines, and hears.

use smelt_plan::device::{Facts, words};
use smelt_plan::{Digest, Failure, StageId};

/// A stage that is to be built on another machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asking {
    /// Which.
    pub stage: StageId,
    /// Its content key here, under which its output is to be sealed.
    pub key: Digest,
    /// What it is made of.
    pub inputs: Vec<AskingInput>,
}

/// An output that a stage is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AskingInput {
    /// The stage that made it.
    pub stage: StageId,
    /// Its content key; `None` of what was not built.
    pub key: Option<Digest>,
    /// The digest of its files.
    pub tree: Digest,
}

/// How such a stage stands.
#[derive(Debug, Clone, PartialEq)]
pub enum Elsewhere {
    /// It is waited for: for whom, or how far they are.
    Waits(String),
    /// The store has it; who has built it, for a person.
    Built(String),
    /// It could not be built.
    Failed(Failure),
}

/// Why a stage is not built here, and who would.
pub(crate) fn nobody(machine: &Facts) -> String {
    format!(
        "it is built where {}, which is not true here: --worker ssh://HOST names a machine that builds it, --fleet a server whose workers (smelt worker) do",
        words(machine)
    )
}
