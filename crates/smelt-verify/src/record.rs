//! What a verification leaves: `verify.json`.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use smelt_deploy::DeployError;
use smelt_runtime::proof::{self, Half, Part};

use crate::bounds::Finding;
use crate::course::Course;
use crate::golden::Prompted;
use crate::weights::Weights;

/// The version of the file's form.
const FORMAT: u32 = 2;

/// What was found.
#[derive(Debug, Serialize)]
pub(crate) struct Record {
    format: u32,
    /// Which half of a verification it is, and of which engines; none of a whole one.
    #[serde(flatten)]
    pub(crate) half: Option<Half>,
    pub(crate) weights: Vec<Weights>,
    pub(crate) answer: Vec<u32>,
    pub(crate) findings: Vec<Finding>,
    pub(crate) prompts: Vec<Prompted>,
}

/// What a verification says of itself that compared weights alone: as much as another goes on from.
#[derive(Deserialize)]
struct Compared {
    #[serde(flatten)]
    half: Half,
    weights: Vec<Weights>,
}

impl Record {
    /// Nothing was found yet.
    pub(crate) fn new(half: Option<Half>) -> Self {
        let (weights, answer, findings, prompts) = Default::default();
        Self { format: FORMAT, half, weights, answer, findings, prompts }
    }

    /// Where something is wrong: says all of it, keeps the record in `out`, and fails with the first.
    pub(crate) fn conclude(
        &self,
        out: &Path,
        course: &Course<'_>,
        complaints: impl IntoIterator<Item = String>,
    ) -> Result<(), DeployError> {
        let complaints: Vec<String> = complaints.into_iter().collect();
        let Some(first) = complaints.first() else { return Ok(()) };
        complaints.iter().for_each(|complaint| course.say(complaint));
        self.write(out)?;
        Err(DeployError::engine(format!("{first}; build the engine again with --force")))
    }

    /// Writes it into `out`.
    pub(crate) fn write(&self, out: &Path) -> Result<(), DeployError> {
        let text = serde_json::to_string_pretty(self).expect("a record holds only plain data");
        let path = out.join(proof::FILE);
        fs::write(&path, text + "\n").map_err(|error| DeployError::disk("write", &path, &error))
    }
}

/// What the verification in `dir` found that compared the weights of the engines of `half`.
pub(crate) fn compared(dir: &Path, half: Option<&Half>) -> Result<Vec<Weights>, DeployError> {
    let path = dir.join(proof::FILE);
    let bad =
        |why: String| DeployError::pipeline(format!("\"compared\": {}: {why}", path.display()));
    let text = proof::read(dir).map_err(DeployError::pipeline)?;
    let compared: Compared = serde_json::from_str(&text)
        .map_err(|error| bad(format!("it is of no stage with \"weights-only\" ({error})")))?;
    let is_same = half.is_some_and(|half| half.engines == compared.half.engines);
    match is_same && compared.half.part == Part::Weights {
        true => Ok(compared.weights),
        false => Err(bad("it compared the weights of other engines".to_owned())),
    }
}
