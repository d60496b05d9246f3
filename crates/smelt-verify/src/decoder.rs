//! Opens the decoder that is verified, whatever runs it.
//!
//! One of processors is this program's.  One for GPUs has its weights in a file that any machine reads; what it computes
//! only a card says that agrees.

use std::path::Path;
use std::sync::Arc;

use smelt_backend::{Decoder, Heading, Limits, Witness};
use smelt_cuda::decoder::{CudaDecoder, PackedWeights};
use smelt_cuda::{CardFacts, CudaTarget, Driver, NoCard};
use smelt_deploy::{Blame, DeployError};
use smelt_engine::llm::{Arithmetic, KvOptions, KvType, LlmEngine};
use smelt_engine_build::llm::{compare_for_card, unlike, unlike_for_card};
use smelt_model::checkpoint::Checkpoint;

use crate::bounds::{self, Bound, Kept};
use crate::weights::{self, Weights};

/// The decoder that is verified.
#[derive(Debug)]
pub(crate) enum VerifiedDecoder {
    /// It runs here.
    Processors(Box<LlmEngine>),
    /// Its weights, and the card that runs it, if one was opened.
    Card(Box<PackedWeights>, Option<Box<CudaDecoder>>),
}

/// Opens the card that is here.
pub type OpenCard<'a> = &'a dyn Fn(CudaTarget) -> Result<Arc<dyn Driver>, DeployError>;

impl VerifiedDecoder {
    /// The engine in `dir`; of one for GPUs its card is opened with `open_card` unless weights alone are compared.
    pub(crate) fn open(
        dir: &Path,
        weights_only: bool,
        open_card: OpenCard<'_>,
    ) -> Result<Self, DeployError> {
        let heading = Heading::read(dir).map_err(DeployError::engine)?;
        let Some(target) = CudaTarget::parse(&heading.target) else {
            let exact = KvOptions { kind: Some(KvType::F32), ..KvOptions::default() };
            let llm = LlmEngine::open_with(dir, exact).map_err(DeployError::engine)?;
            return Ok(Self::Processors(Box::new(llm)));
        };
        let weights = Box::new(PackedWeights::open(dir).map_err(DeployError::engine)?);
        if weights_only {
            return Ok(Self::Card(weights, None));
        }
        let driver = open_card(target)?;
        let kv = KvOptions { kind: Some(KvType::F16), ..KvOptions::default() };
        let decoder = CudaDecoder::open(dir, &driver, kv).map_err(DeployError::engine)?;
        Ok(Self::Card(weights, Some(Box::new(decoder))))
    }

    /// How long and how many sequences may be.
    pub(crate) fn limits(&self) -> Limits {
        match self {
            Self::Processors(llm) => llm.limits(),
            Self::Card(weights, _) => weights.sizes().limits,
        }
    }

    /// Bounds of its scheme.
    pub(crate) fn quantised(&self) -> Bound {
        match self {
            Self::Processors(llm) => bounds::quantised(llm.scheme()),
            Self::Card(weights, _) => bounds::quantised(&weights.sizes().scheme),
        }
    }

    /// Whether any weight is kept as levels.
    pub(crate) fn is_packed(&self) -> bool {
        match self {
            Self::Processors(llm) => llm.is_packed(),
            Self::Card(weights, _) => {
                weights.tensors().any(|tensor| !["half", "f32", "u32"].contains(&&tensor.form[..]))
            }
        }
    }

    /// Whether it computes in integers too.
    pub(crate) fn has_integers(&self) -> bool {
        matches!(self, Self::Processors(llm) if llm.is_packed())
    }

    /// Lets one that knows both compute in floats or in integers.
    pub(crate) fn set_arithmetic(&mut self, arithmetic: Arithmetic) {
        if let Self::Processors(llm) = self {
            llm.set_arithmetic(arithmetic);
        }
    }

    /// How far its logits may be from those of the very weights that it has.
    pub(crate) fn same_weights(&self) -> Bound {
        match self {
            Self::Processors(_) => bounds::SAME_WEIGHTS,
            Self::Card(..) => bounds::HALVES,
        }
    }

    /// The same where its weights are the checkpoint's, behind a tower that was kept so.
    pub(crate) fn plain(&self, tower: Option<Kept>) -> Bound {
        match self {
            Self::Processors(_) => bounds::plain(tower),
            Self::Card(..) => bounds::plain_in_halves(tower),
        }
    }

    /// The same where it has the integers of the checkpoint.
    pub(crate) fn same_integers(&self) -> Bound {
        match self {
            Self::Processors(_) => bounds::ROUNDED_DECODER,
            Self::Card(..) => bounds::HALVES,
        }
    }

    /// What it has of other sizes or tensors than one of `checkpoint`.
    pub(crate) fn unlike(&self, checkpoint: &Checkpoint) -> Result<Option<String>, DeployError> {
        let found = match self {
            Self::Processors(llm) => unlike(llm, checkpoint),
            Self::Card(weights, _) => unlike_for_card(weights, checkpoint),
        };
        found.map_err(DeployError::model)
    }

    /// Compares every weight with the checkpoint it was built from.
    pub(crate) fn compare(
        &self,
        checkpoint: &Checkpoint,
        told: &dyn Fn(&str),
    ) -> Result<Weights, DeployError> {
        match self {
            Self::Processors(llm) => weights::llm(llm, checkpoint, told),
            Self::Card(packed, _) => {
                let found =
                    compare_for_card(packed, checkpoint, told).map_err(DeployError::engine)?;
                Ok(weights::of_card(packed, found))
            }
        }
    }

    /// Compares the weights with the hash in `engine.json`.
    pub(crate) fn verify_digest(&self, told: &mut dyn Witness) -> Result<(), DeployError> {
        let found = match self {
            Self::Processors(llm) => llm.verify_digest(told),
            Self::Card(weights, _) => weights.verify_digest(told),
        };
        found.map_err(DeployError::engine)
    }

    /// What answers.
    pub(crate) fn decoder(&mut self) -> Result<&mut dyn Decoder, DeployError> {
        match self {
            Self::Processors(llm) => Ok(&mut **llm),
            Self::Card(_, Some(decoder)) => Ok(&mut **decoder),
            Self::Card(_, None) => Err(not_opened()),
        }
    }

    /// The same, to be deployed.
    pub(crate) fn into_decoder(self) -> Result<Box<dyn Decoder>, DeployError> {
        match self {
            Self::Processors(llm) => Ok(llm),
            Self::Card(_, Some(decoder)) => Ok(decoder),
            Self::Card(_, None) => Err(not_opened()),
        }
    }
}

fn not_opened() -> DeployError {
    DeployError::new(Blame::Device, "no card was opened for the llm engine")
}

/// The driver of a machine's card, if that runs engines for `target`.
///
/// # Errors
/// One line with what to do, where there is none.
pub fn open_card(
    target: CudaTarget,
    card: Result<CardFacts, NoCard>,
) -> Result<Arc<dyn Driver>, DeployError> {
    let card = agreeing(target, card)?;
    smelt_cuda::open(card.ordinal).map_err(|why| no_card(target, &why.to_string()))
}

/// The card, if it runs engines for `target`.
fn agreeing(target: CudaTarget, card: Result<CardFacts, NoCard>) -> Result<CardFacts, DeployError> {
    let card = card.map_err(|why| no_card(target, &why.to_string()))?;
    match card.sm == target.sm() {
        true => Ok(card),
        false => Err(no_card(target, &format!("{} is {}", card.name, card.sm))),
    }
}

fn no_card(target: CudaTarget, why: &str) -> DeployError {
    let target = target.word();
    DeployError::new(
        Blame::Device,
        format!(
            "the llm engine is for {target}, and {why}; verify it where such a card is, or its weights alone: weights-only = true"
        ),
    )
}

#[cfg(test)]
mod tests {
    use smelt_cuda::Sm;
    use smelt_cuda::recording;

    use super::*;

    #[test]
    fn a_card_that_does_not_agree_is_told_in_one_line_with_what_to_do() {
        let card = |sm| Ok(recording::card(Sm(sm), 1 << 30, false));
        assert!(agreeing(CudaTarget::Sm90, card(90)).is_ok());
        let others = [card(87), Err(NoCard::NoLibrary)];
        for (card, why) in others.into_iter().zip(["is sm_87", "no libcuda.so.1"]) {
            let refused = agreeing(CudaTarget::Sm90, card).unwrap_err();
            let told = refused.to_string();
            assert_eq!((refused.blame, told.lines().count()), (Blame::Device, 1));
            assert!(told.contains(why) && told.contains("cuda-sm90"), "{told}");
            assert!(told.ends_with("weights-only = true"), "{told}");
        }
    }
}
