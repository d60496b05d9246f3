//! What a stage of smelt's own is asked, and how it speaks while it works.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use smelt_model::checkpoint::Checkpoint;
use smelt_plan::Kind;

use crate::exit::Failed;
use crate::say::tell;

/// What a stage of smelt's own reads on its standard input.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    pub(crate) params: BTreeMap<String, Value>,
    pub(crate) inputs: BTreeMap<String, PathBuf>,
    pub(crate) out: PathBuf,
}

/// Progress goes to the log; the supervisor shows its last line.
pub(crate) fn say(line: &str) {
    tell(line);
}

impl Request {
    /// A param that the plan has checked to be a word.
    pub(crate) fn word(&self, name: &str) -> Result<&str, Failed> {
        self.params
            .get(name)
            .and_then(Value::as_str)
            .ok_or_else(|| Failed::usage(format!("the stage's request lacks \"{name}\"")))
    }

    /// A param that the plan has checked to be a number.
    pub(crate) fn count(&self, name: &str) -> Result<usize, Failed> {
        self.params
            .get(name)
            .and_then(Value::as_u64)
            .and_then(|count| usize::try_from(count).ok())
            .ok_or_else(|| Failed::usage(format!("the stage's request lacks \"{name}\"")))
    }

    /// A param that the plan has checked to be a list of texts; empty where it is absent.
    pub(crate) fn texts(&self, name: &str) -> Vec<String> {
        let list = self.params.get(name).and_then(Value::as_array);
        let texts = list.into_iter().flatten().filter_map(Value::as_str);
        texts.map(str::to_owned).collect()
    }

    /// The directory of an edge.
    pub(crate) fn input(&self, field: &str) -> Result<&Path, Failed> {
        self.optional_input(field)
            .ok_or_else(|| Failed::usage(format!("the stage's request lacks \"{field}\"")))
    }

    /// The directory of an edge that may be absent.
    pub(crate) fn optional_input(&self, field: &str) -> Option<&Path> {
        self.inputs.get(field).map(PathBuf::as_path)
    }

    /// The checkpoint an edge names.
    pub(crate) fn checkpoint(&self, field: &str) -> Result<Checkpoint, Failed> {
        Checkpoint::open(self.input(field)?).map_err(Failed::model)
    }
}
