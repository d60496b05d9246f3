//! What a stage of smelt's own is asked, and how it speaks while it works.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use smelt_cuda::tactics::CardTactics;
use smelt_engine::tactics::Tactics;
use smelt_model::checkpoint::Checkpoint;
use smelt_plan::Kind;
use smelt_plan::kind;

use crate::checkpoint;
use crate::console::tell;
use crate::exit::Failed;

/// What a stage of smelt's own reads on its standard input.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    pub(crate) params: BTreeMap<String, Value>,
    /// By field; what a field names besides its first is called as [`nth`] says.
    pub(crate) inputs: BTreeMap<String, PathBuf>,
    pub(crate) out: PathBuf,
    /// For a `source` of a hub: what is to lie in the input `from`.
    pub(crate) fetch: Option<Fetch>,
    /// Where it keeps what the next attempt would have to find out again, if its kind does.
    pub(crate) kept: Option<PathBuf>,
}

/// A commit of a hub.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Fetch {
    pub(crate) repo: String,
    pub(crate) revision: String,
    pub(crate) commit: String,
    /// The one GGUF file of several that is meant.
    pub(crate) file: Option<String>,
}

/// What the request calls the `number`-th input of a field, from 1.
fn nth(field: &str, number: usize) -> String {
    if number == 1 { field.to_owned() } else { format!("{field} {number}") }
}

/// Inputs in their order, each by its field, as a request names them.
pub(crate) fn named<'a>(
    inputs: impl Iterator<Item = (&'a str, &'a Path)>,
) -> BTreeMap<String, PathBuf> {
    let (mut named, mut counts) = (BTreeMap::new(), BTreeMap::new());
    for (field, path) in inputs {
        let count: &mut usize = counts.entry(field).or_default();
        *count += 1;
        named.insert(nth(field, *count), path.to_owned());
    }
    named
}

/// Progress goes to the log; the supervisor shows its last line.
pub(crate) fn say(line: &str) {
    tell(line);
}

impl Request {
    /// All params by their types, for `T` the params of its kind.
    pub(crate) fn typed<T: DeserializeOwned>(&self) -> Result<T, Failed> {
        let unread = |error| Failed::usage(format!("the stage's request does not read: {error}"));
        kind::typed(&self.params).map_err(unread)
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

    /// The directories of a field that may name several, in their order.
    pub(crate) fn inputs_of(&self, field: &str) -> Vec<PathBuf> {
        (1..).map_while(|number| self.inputs.get(&nth(field, number)).cloned()).collect()
    }

    /// What a tuned stage found, if the stage names one.
    pub(crate) fn tactics(&self) -> Result<Option<Tactics>, Failed> {
        self.optional_input("tactics").map(Tactics::read).transpose().map_err(Failed::model)
    }

    /// The same of a card.
    pub(crate) fn card_tactics(&self) -> Result<Option<CardTactics>, Failed> {
        let read = self.optional_input("tactics").map(CardTactics::read);
        read.transpose().map_err(Failed::model)
    }

    /// The checkpoint an edge names.
    pub(crate) fn checkpoint(&self, field: &str) -> Result<Checkpoint, Failed> {
        checkpoint::open(self.input(field)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_of_a_field_keep_their_order_and_an_only_one_its_name() {
        let inputs = [("llm", "/b"), ("vision", "/v"), ("llm", "/a"), ("llm", "/b")];
        let inputs = named(inputs.iter().map(|(field, path)| (*field, Path::new(path))));
        let names: Vec<&str> = inputs.keys().map(String::as_str).collect();
        assert_eq!(names, ["llm", "llm 2", "llm 3", "vision"]);
        let (kind, params, out) = (Kind::Deployment, BTreeMap::new(), PathBuf::new());
        let request = Request { kind, params, inputs, out, fetch: None, kept: None };
        assert_eq!(request.inputs_of("llm"), ["/b", "/a", "/b"].map(PathBuf::from));
        assert_eq!(request.inputs_of("vision"), [PathBuf::from("/v")]);
        assert_eq!(request.inputs_of("encoder"), Vec::<PathBuf>::new());
    }
}
