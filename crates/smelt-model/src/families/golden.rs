//! Reads golden configurations, whole or changed in one place, for the tests of families.

use std::fs;
use std::path::{Path, PathBuf};

use crate::config::ConfigError;
use crate::model::{Model, ModelPart};

/// A folder of `tests/data/golden`.
#[derive(Clone, Copy)]
pub(super) struct Golden(pub(super) &'static str);

impl Golden {
    pub(super) fn path(self, name: &str) -> PathBuf {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/golden");
        root.join(self.0).join(name)
    }

    /// The configuration in the folder's directory `dir`.
    pub(super) fn config(self, dir: &str) -> String {
        fs::read_to_string(self.path(dir).join("config.json")).unwrap()
    }

    pub(super) fn parse(self, json: &str) -> Result<Model, ConfigError> {
        Model::parse(json, Path::new("dir/config.json"))
    }

    /// The model of the checkpoint's configuration after `changes`, each of the text's first such
    /// place that is not part of a longer name.
    pub(super) fn changed(self, changes: &[(&str, &str)]) -> Model {
        let change = |json: String, (from, to): &(&str, &str)| {
            assert!(json.contains(from), "{from:?} is not there");
            json.replacen(from, to, 1)
        };
        let json = changes.iter().fold(self.config("checkpoint"), change);
        self.parse(&json).unwrap()
    }
}

/// Parameters of `model` whose head is tied to its embedding.
pub(super) fn parameters(model: &Model) -> usize {
    let tensors = model.tensors(&[ModelPart::Vision, ModelPart::Llm]);
    tensors.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum()
}

/// Replaces `from`'s first place by `to` in a good configuration; the refusal must hold all
/// `words`.
#[track_caller]
pub(super) fn check_refusal(golden: Golden, from: &str, to: &str, words: &[&str]) {
    let json = golden.config("checkpoint");
    assert!(json.contains(from), "{from:?} is not there");
    let error = golden.parse(&json.replacen(from, to, 1)).unwrap_err().to_string();
    assert!(error.starts_with("dir/config.json: "), "{error}");
    for word in words {
        assert!(error.contains(word), "{word:?} is not in {error:?}");
    }
}
