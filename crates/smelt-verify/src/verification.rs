//! What is asked of a verification.

use std::path::Path;

use smelt_backend::Backends;
use smelt_deploy::DeployError;
use smelt_deploy::spec::sealed_name;
use smelt_runtime::proof::{Half, NamedEngines, Part};

use crate::decoder::OpenCard;

/// What is to be verified; every path is a directory.
#[derive(Debug, Clone, Copy)]
pub struct Verification<'a> {
    /// The tower's engine, of a model that sees.
    pub vision: Option<&'a Path>,
    /// The decoder's.
    pub llm: &'a Path,
    /// The checkpoint whose f32 reference says what is right.
    pub against: &'a Path,
    /// The one that the decoder was built from, where that is another.
    pub weights: Option<&'a Path>,
    /// Golden prompts with their pictures.
    pub prompts: Option<&'a Path>,
    /// A verification of weights only, from which this one goes on.
    pub compared: Option<&'a Path>,
    /// Whether the reference computes all, not a sample.
    pub full: bool,
    /// Whether nothing is computed.
    pub weights_only: bool,
    /// Where `verify.json` will lie.
    pub out: &'a Path,
}

/// What engines run on.
pub struct Device<'a> {
    /// What opens towers.
    pub backends: Backends,
    /// What opens the card, for decoders of GPUs.
    pub open_card: OpenCard<'a>,
}

impl Verification<'_> {
    /// Which half of a verification is asked for, and of which engines; none of a whole one.
    pub(crate) fn half(&self) -> Result<Option<Half>, DeployError> {
        let part = match (self.weights_only, self.compared) {
            (true, _) => Part::Weights,
            (false, Some(_)) => Part::Reference,
            (false, None) => return Ok(None),
        };
        let name = |dir: &Path| sealed_name(dir).map(str::to_owned);
        let (vision, llm) = (self.vision.map(name).transpose()?, name(self.llm)?);
        Ok(Some(Half { part, engines: NamedEngines { vision, llm } }))
    }
}
