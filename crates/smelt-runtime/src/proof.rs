//! Reads what verifications prove of engines that they were done of in halves: weights first, and behind that what the
//! reference computes.
//!
//! A deployment may be made when the first half has ended, and says so in its own file.  That the other half has
//! ended is not written there, since what is sealed never changes: it is an output of its own, `verify.json`, which
//! names the engines by their digests.  Without it, nobody may call them verified.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::deployment::{DeploymentError, Spec, Verified};
use crate::deployment_error::read_text_within;
use crate::engine_dirs::EngineDirs;

/// What a verification leaves.
pub const FILE: &str = "verify.json";
/// It names tensors that have another form, of which a model has some thousand at most.
const BYTES_MAX: u64 = 16 << 20;
/// Outputs that are looked through: a store of more is slow in other ways, too.
const OUTPUTS_MAX: usize = 1 << 16;

/// Which half of a verification was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Every weight was compared, and nothing computed.
    Weights,
    /// What is computed was held against the reference, after the weights were compared.
    Reference,
}

/// Engines by the names of their sealed outputs, which are the digests of their files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedEngines {
    /// The tower, of a model that sees.
    pub vision: Option<String>,
    /// The decoder.
    pub llm: String,
}

/// Half of a verification, as its output says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Half {
    /// Which.
    pub part: Part,
    /// Of which engines.
    pub engines: NamedEngines,
}

impl Half {
    /// What the output in `dir` says; nothing of a whole verification, or of what is none.
    #[must_use]
    pub fn read(dir: &Path) -> Option<Self> {
        serde_json::from_str(&read(dir).ok()?).ok()
    }
}

/// The text of the verification in `dir`.
///
/// # Errors
/// When it cannot be read.
pub fn read(dir: &Path) -> Result<String, DeploymentError> {
    read_text_within(&dir.join(FILE), BYTES_MAX)
}

/// The name of a sealed output; nothing of a path that leads to none.
#[must_use]
pub fn name(sealed: &Path) -> Option<&str> {
    sealed.file_name()?.to_str()
}

/// The engines of which the other half has been proven, too.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Proven(BTreeSet<String>);

impl Proven {
    /// By the sealed outputs in `out`.  What cannot be read proves nothing.
    #[must_use]
    pub fn read(out: &Path) -> Self {
        let entries = fs::read_dir(out).into_iter().flatten().flatten().take(OUTPUTS_MAX);
        let halves = entries.map(|entry| entry.path()).filter(|dir| dir.join(FILE).exists());
        Self::of(halves.filter_map(|dir| Half::read(&dir)))
    }

    fn of(halves: impl Iterator<Item = Half>) -> Self {
        let proven = halves.filter(|half| half.part == Part::Reference).map(|half| half.engines);
        Self(
            proven
                .flat_map(|NamedEngines { vision, llm }| vision.into_iter().chain([llm]))
                .collect(),
        )
    }

    /// Whether a deployment waits for no proof: more was never to follow, or it is there for every engine that it
    /// names.
    #[must_use]
    pub fn covers(&self, spec: &Spec) -> bool {
        let names = |dirs: &EngineDirs| dirs.all().iter().all(|name| self.has(name));
        match spec.verified {
            None => true,
            Some(Verified::Weights) => spec.vision.iter().chain([&spec.llm]).all(names),
        }
    }

    /// Whether the engine is among them that a deployment names as its neighbour.
    fn has(&self, neighbour: &str) -> bool {
        neighbour.strip_prefix("../").is_some_and(|name| self.0.contains(name))
    }
}

#[cfg(test)]
mod tests {
    use crate::deployment::{FORMAT, ModelFamily, Serving};

    use super::*;

    fn spec(vision: Option<EngineDirs>, llm: EngineDirs, verified: Option<Verified>) -> Spec {
        Spec {
            format: FORMAT,
            family: ModelFamily::LLAMA,
            model: "m".to_owned(),
            vision,
            llm,
            image: None,
            router: None,
            clip: None,
            image_tokens: None,
            places_per_second: None,
            eos: vec![0],
            serving: Serving::default(),
            verified,
        }
    }

    fn half(part: Part, vision: Option<&str>, llm: &str) -> Half {
        let engines = NamedEngines { vision: vision.map(str::to_owned), llm: llm.to_owned() };
        Half { part, engines }
    }

    #[test]
    fn what_was_to_be_verified_further_is_proven_engine_by_engine() {
        let halves = [
            half(Part::Weights, None, "w"),
            half(Part::Reference, Some("v"), "a"),
            half(Part::Reference, None, "b"),
        ];
        let proven = Proven::of(halves.into_iter());
        let covers = |vision: Option<&str>, llm: &[&str], verified| {
            let dirs = |names: &[&str]| {
                EngineDirs::from(names.iter().map(|name| format!("../{name}")).collect::<Vec<_>>())
            };
            proven.covers(&spec(vision.map(|name| dirs(&[name])), dirs(llm), verified))
        };
        let half = Some(Verified::Weights);
        assert!(covers(None, &["w"], None), "nothing was to follow");
        assert!(!covers(None, &["w"], half), "weights alone");
        assert!(covers(Some("v"), &["a"], half) && covers(None, &["b"], half));
        assert!(!covers(Some("w"), &["a"], half), "the tower was not held against anything");
        assert!(covers(None, &["a", "b"], half), "one for each device");
        assert!(!covers(None, &["a", "w"], half));
    }

    #[test]
    fn proofs_are_outputs_of_the_store() {
        let out = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            fs::create_dir(out.path().join(name)).unwrap();
            fs::write(out.path().join(name).join(FILE), text).unwrap();
        };
        let whole = r#"{"format":2,"weights":[],"answer":[1],"findings":[],"prompts":[]}"#;
        put("whole", whole);
        let text =
            r#"{"format":2,"part":"reference","engines":{"vision":null,"llm":"a"},"weights":[]}"#;
        put("half", text);
        put("broken", "{");
        fs::create_dir(out.path().join("other")).unwrap();
        assert_eq!(Half::read(&out.path().join("whole")), None);
        assert_eq!(Proven::read(out.path()), Proven(["a".to_owned()].into()));
        assert_eq!(Proven::read(Path::new("/nowhere")), Proven::default());
    }
}
