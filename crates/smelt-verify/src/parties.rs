//! What is held against what.

use smelt_backend::{Heading, VisionEngine, Witness};
use smelt_cuda::CudaTarget;
use smelt_deploy::DeployError;
use smelt_model::checkpoint::Checkpoint;

use crate::bounds::{self, Bound, Kept};
use crate::course::Course;
use crate::decoder::VerifiedDecoder;
use crate::probe::Extent;
use crate::verification::{Device, Verification};
use crate::weights::{self, Weights};

/// The engines, and what they are compared with.
pub(crate) struct Parties {
    /// One for each grid, from few pixels to many: the last is the model's own.  None of a model that reads
    /// text alone.
    pub(crate) vision: Vec<VisionEngine>,
    /// Whether the tower is for a card, whose products take halves.
    pub(crate) sees_in_halves: bool,
    pub(crate) llm: VerifiedDecoder,
    /// The f32 reference.
    pub(crate) against: Checkpoint,
    /// What the decoder was built from, where that is named.
    pub(crate) weights: Option<Checkpoint>,
    /// How much the reference computes.
    pub(crate) extent: Extent,
}

impl Parties {
    /// Opens everything; an engine that does not open or has another digest is damaged.
    pub(crate) fn open(
        asked: &Verification<'_>,
        device: &Device<'_>,
        witness: &mut dyn Witness,
        say: &dyn Fn(&str),
    ) -> Result<Self, DeployError> {
        let against = Checkpoint::open(asked.against).map_err(DeployError::model)?;
        against.warnings().iter().for_each(|line| say(&format!("warning: {line}")));
        let weights = asked.weights.map(Checkpoint::open).transpose();
        let weights = weights.map_err(DeployError::model)?;
        let vision = asked.vision.map(|dir| device.backends.vision(dir)).transpose();
        let mut vision = vision?.unwrap_or_default();
        vision.sort_by_key(|engine| engine.takes().numbers());
        let heading = asked.vision.map(Heading::read).transpose().map_err(DeployError::engine)?;
        let is_for_card = |heading: &Heading| CudaTarget::parse(&heading.target).is_some();
        let sees_in_halves = heading.as_ref().is_some_and(is_for_card);
        let llm = VerifiedDecoder::open(asked.llm, asked.weights_only, device.open_card)?;
        say("checking digests");
        // The engines of one directory share one file.
        let whole = vision.first().map_or(Ok(()), |engine| engine.verify_digest(witness));
        whole.map_err(DeployError::engine)?;
        llm.verify_digest(witness)?;
        let extent = if asked.full { Extent::Full } else { Extent::Sampled };
        Ok(Self { vision, sees_in_halves, llm, against, weights, extent })
    }

    /// Whether the decoder has the very weights of the reference.
    pub(crate) fn is_plain(&self) -> bool {
        !self.against.is_quantized() && !self.llm.is_packed()
    }

    /// The checkpoint that the decoder was built from, as far as that is known: what is named, or the
    /// reference itself, of plain weights or of those very integers.
    pub(crate) fn own(&self) -> Result<Option<&Checkpoint>, DeployError> {
        let Self { against, weights, .. } = self;
        if weights.is_some() || self.is_plain() {
            return Ok(weights.as_ref().or(Some(against)));
        }
        let is_same = against.is_packed() && self.llm.unlike(against)?.is_none();
        Ok(is_same.then_some(against))
    }

    /// How far the tower, which was `kept` so, may be from the reference.
    pub(crate) fn vision_bound(&self, kept: Option<Kept>) -> Bound {
        match self.sees_in_halves {
            true => bounds::HALVES,
            false => bounds::vision(kept.unwrap_or(Kept::Rounded)),
        }
    }

    /// Compares every weight of tower and decoder.
    pub(crate) fn compare_weights(
        &self,
        course: &mut Course<'_>,
    ) -> Result<Vec<Weights>, DeployError> {
        let Self { vision, llm, against, .. } = self;
        course.begins("comparing the tower's weights");
        let mut compared = Vec::new();
        if let Some(engine) = vision.last() {
            compared.push(weights::vision(engine, against, &|line| course.hears(line))?);
        }
        course.goes_on("comparing the decoder's weights");
        let Some(own) = self.own()? else {
            course.say(
                "the decoder's weights are not compared one by one: \"weights\" does not name them",
            );
            return Ok(compared);
        };
        if let Some(why) = llm.unlike(own)? {
            let path = own.path().display();
            let why = format!("the llm engine was not built from {path}: {why}");
            return Err(DeployError::engine(why));
        }
        compared.push(llm.compare(own, &|line| course.hears(line))?);
        Ok(compared)
    }
}
