//! What a stage of smelt's own is asked, and how it speaks while it works.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use smelt_backend::Witness;
use smelt_cuda::tactics::CardTactics;
use smelt_engine::tactics::Tactics;
use smelt_model::checkpoint::Checkpoint;
use smelt_model::export::GRIDS_FILE;
use smelt_onnx::MODEL_FILE;
use smelt_plan::Kind;
use smelt_plan::kind;
use smelt_store::HashedFile;

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
    /// Large files of the inputs that the store has hashed; nobody has where nothing is said of them.
    #[serde(default)]
    pub(crate) hashed: Vec<HashedFile>,
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

    /// Has inputs compared with their digests: `told` hears of the bytes, and what the store has hashed is not read again.
    pub(crate) fn witness<F: FnMut(u64)>(&self, told: F) -> impl Witness {
        InputsWitness { hashed: &self.hashed, told }
    }

    /// The graph of the input `onnx`, which is one and not several for sizes of pictures, of which `what` is done.
    pub(crate) fn only_graph(&self, what: &str) -> Result<&Path, Failed> {
        let graph = self.input("onnx")?;
        if !graph.join(MODEL_FILE).exists() && graph.join(GRIDS_FILE).exists() {
            return Err(Failed::model(format!(
                "{} holds graphs for several grids and no {MODEL_FILE}; {what}: export one grid for it",
                graph.display()
            )));
        }
        Ok(graph)
    }

    /// The checkpoint an edge names.
    pub(crate) fn checkpoint(&self, field: &str) -> Result<Checkpoint, Failed> {
        checkpoint::open(self.input(field)?)
    }
}

/// Takes the store's word for what it has hashed.
struct InputsWitness<'a, F> {
    hashed: &'a [HashedFile],
    told: F,
}

impl<F: FnMut(u64)> Witness for InputsWitness<'_, F> {
    fn has_read(&mut self, bytes: u64) {
        (self.told)(bytes);
    }

    fn sha256(&mut self, path: &Path, file: &File) -> Option<String> {
        let now = file.metadata().ok()?;
        let digest = self.hashed.iter().find_map(|hashed| hashed.digest_of(path, &now))?;
        Some(digest.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::SystemTime;

    use smelt_store::{Digest, Store, Wait};
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn inputs_of_a_field_keep_their_order_and_an_only_one_its_name() {
        let inputs = [("llm", "/b"), ("vision", "/v"), ("llm", "/a"), ("llm", "/b")];
        let inputs = named(inputs.iter().map(|(field, path)| (*field, Path::new(path))));
        let names: Vec<&str> = inputs.keys().map(String::as_str).collect();
        assert_eq!(names, ["llm", "llm 2", "llm 3", "vision"]);
        let (kind, params, out) = (Kind::Deployment, BTreeMap::new(), PathBuf::new());
        let (hashed, fetch, kept) = (Vec::new(), None, None);
        let request = Request { kind, params, inputs, hashed, out, fetch, kept };
        assert_eq!(request.inputs_of("llm"), ["/b", "/a", "/b"].map(PathBuf::from));
        assert_eq!(request.inputs_of("vision"), [PathBuf::from("/v")]);
        assert_eq!(request.inputs_of("encoder"), Vec::<PathBuf>::new());
    }

    #[test]
    fn what_the_store_has_hashed_is_not_read_again_unless_it_was_changed() {
        let root = TempDir::new().unwrap();
        let store = Store::open(root.path(), Wait::No).unwrap();
        let run = store.begin_run(SystemTime::now()).unwrap();
        let work = run.work_dir("s.1").unwrap();
        let bytes = vec![7; 2 << 20];
        fs::write(work.join("weights"), &bytes).unwrap();
        let engine = store.seal(&Digest::of(b"key"), &work, Value::Null).unwrap();
        let path = engine.path().join("weights");
        let request = Request {
            kind: Kind::Deployment,
            params: BTreeMap::new(),
            inputs: BTreeMap::new(),
            hashed: store.hashed_files(engine.path()),
            out: PathBuf::new(),
            fetch: None,
            kept: None,
        };
        let known = || request.witness(|_| {}).sha256(&path, &File::open(&path).unwrap());
        assert_eq!(known(), Some(Digest::of(&bytes).to_string()));
        File::open(&path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(known(), None);
    }
}
