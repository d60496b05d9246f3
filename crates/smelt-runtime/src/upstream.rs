//! Deployments that another program's server answers: what one says, and how its server is started.
//!
//! The engine is whatever the server reads: its files are known by their digests, and nothing of what is in them.

mod engine_file;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use smelt_backend::{OpenError, Witness};

pub use engine_file::EngineFile;

use crate::deployment::{DEPLOYMENT_FILE, DeploymentError, FORMAT, write_files};
use crate::embed::{family, read_json};

/// The kind of model in [`Spec::family`].
pub const FAMILY: &str = "upstream";

/// What stands in the server's words for the directory of what it reads, and for the port that it is to open on
/// `127.0.0.1`.
pub const ENGINE: &str = "{engine}";
/// See [`ENGINE`].
pub const PORT: &str = "{port}";
/// What stands there for the model's name, by which the server is to call it: where its file lies is no client's business.
pub const MODEL: &str = "{model}";

/// Fields of a request that change what an answer may be.  One that a server does not know is passed over by it in silence,
/// so it is refused unless the deployment says that its server knows it.
pub const CHANGING: [&str; 22] = [
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "grammar",
    "json_schema",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "functions",
    "function_call",
    "logprobs",
    "top_logprobs",
    "logit_bias",
    "n",
    "best_of",
    "echo",
    "suffix",
    "reasoning_effort",
    "chat_template_kwargs",
];

/// Words of a command at most, and requests at once.
const WORDS_MAX: usize = 256;
const SLOTS_MAX: usize = 1024;
/// The longest start that is waited for: a large model on a slow card.
const START_S_MAX: u64 = 3600;

/// What `deployment.json` says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// The version of the file: [`FORMAT`].
    pub format: u32,
    /// The kind of model: [`FAMILY`].
    pub family: String,
    /// The model's name, as clients ask for it and as its server calls it.
    pub model: String,
    /// The directory of what the server reads, relative to the deployment.
    pub engine: String,
    /// The server's program and its words, with [`ENGINE`] and [`PORT`].
    pub server: Vec<String>,
    /// Where it says that it is well.
    pub health: String,
    /// Requests that it is sent at once.
    pub slots: usize,
    /// Of [`CHANGING`] the fields that it knows.
    pub fields: BTreeSet<String>,
    /// Seconds within which it must be well.
    pub start_s: u64,
    /// Bytes that it may hold, all of its processes.
    pub memory_bytes_max: Option<u64>,
    /// The engine's files; none of a deployment that was made before they were written down.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<EngineFile>,
}

impl Spec {
    /// What the deployment in `dir` says of itself.
    ///
    /// # Errors
    /// [`DeploymentError`] naming the file and what is wrong with it.
    pub fn read(dir: &Path) -> Result<Self, DeploymentError> {
        let path = dir.join(DEPLOYMENT_FILE);
        let bad = |why: String| DeploymentError::Bad { path: path.clone(), why };
        let family = family(dir)?;
        if family != FAMILY {
            return Err(bad(format!("family {family:?} has no server of its own; {FAMILY} has")));
        }
        let spec: Self = read_json(&path)?;
        spec.fault().map_or(Ok(spec), |why| Err(bad(why)))
    }

    /// Writes the deployment into `dir`, which is made if need be.
    ///
    /// # Errors
    /// [`DeploymentError`] if a value is wrong or the disk refuses.
    pub fn write(&self, dir: &Path) -> Result<(), DeploymentError> {
        match self.fault() {
            Some(why) => Err(DeploymentError::Bad { path: dir.join(DEPLOYMENT_FILE), why }),
            None => write_files(dir, self, &[]),
        }
    }

    /// What is wrong with the values, if anything.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        let Self { format, engine, server, health, slots, fields, start_s, files, .. } = self;
        let has = |what: &str| server.iter().any(|word| word.contains(what));
        let unknown = || fields.iter().find(|field| !CHANGING.contains(&field.as_str()));
        if *format != FORMAT {
            Some(format!("format {format} is not {FORMAT}; deploy again"))
        } else if Path::new(engine).is_absolute() || engine.is_empty() {
            Some(format!("engine is {engine:?}, but must be a relative directory"))
        } else if !(1..=WORDS_MAX).contains(&server.len()) || server[0].is_empty() {
            Some(format!("server is a program and its words, {WORDS_MAX} at most"))
        } else if server[0].contains('/') && !server[0].starts_with('/') {
            let program = &server[0];
            Some(format!(
                "server is {program:?}: a name in the PATH or an absolute path, since it is served from anywhere"
            ))
        } else if !has(PORT) {
            Some(format!("no word of server holds {PORT}, so nobody would know where it listens"))
        } else if !health.starts_with('/') || health.chars().any(|c| c.is_whitespace()) {
            Some(format!("health is {health:?}, but must be a path, such as /health"))
        } else if !(1..=SLOTS_MAX).contains(slots) {
            Some(format!("slots is {slots}, not between 1 and {SLOTS_MAX}"))
        } else if !(1..=START_S_MAX).contains(start_s) {
            Some(format!("start_s is {start_s}, not between 1 and {START_S_MAX}"))
        } else if !files.iter().all(EngineFile::is_below) {
            Some("files: one is not below the engine's directory".to_owned())
        } else {
            unknown().map(|field| format!("fields: {field:?} is none of {}", CHANGING.join(", ")))
        }
    }

    /// Where the engine of a deployment at `dir` lies.
    #[must_use]
    pub fn engine_dir(&self, dir: &Path) -> PathBuf {
        dir.join(&self.engine)
    }

    /// Compares the engine's files in `engine` with what they were; `told` hears of each piece's bytes.
    ///
    /// # Errors
    /// The first that cannot be read or is another.
    pub fn verify_files(&self, engine: &Path, told: &mut dyn Witness) -> Result<(), OpenError> {
        self.files.iter().try_for_each(|file| file.verify(engine, told))
    }

    /// The server's program and words, for an engine in `engine` and a port.
    #[must_use]
    pub fn argv(&self, engine: &Path, port: u16) -> Vec<String> {
        let (engine, port) = (engine.display().to_string(), port.to_string());
        let word = |word: &String| {
            word.replace(ENGINE, &engine).replace(PORT, &port).replace(MODEL, &self.model)
        };
        self.server.iter().map(word).collect()
    }

    /// The first of these fields of a request that the server is not said to know.
    pub fn unknown<'a>(&self, mut given: impl Iterator<Item = &'a str>) -> Option<&'a str> {
        given.find(|field| CHANGING.contains(field) && !self.fields.contains(*field))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> Spec {
        let server = ["llama-server", "-m", "{engine}/{model}.gguf", "--port={port}"];
        Spec {
            format: FORMAT,
            family: FAMILY.to_owned(),
            model: "m".to_owned(),
            engine: "../e".to_owned(),
            server: server.map(str::to_owned).into(),
            health: "/health".to_owned(),
            slots: 1,
            fields: ["tools".to_owned()].into(),
            start_s: 60,
            memory_bytes_max: None,
            files: vec![],
        }
    }

    #[test]
    fn words_are_filled_in() {
        let expect = ["llama-server", "-m", "/x/m.gguf", "--port=81"];
        assert_eq!(spec().argv(Path::new("/x"), 81), expect);
    }

    #[test]
    fn what_was_written_is_read_and_what_is_odd_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        spec().write(dir.path()).unwrap();
        assert_eq!(Spec::read(dir.path()).unwrap(), spec());
        let check = |change: &dyn Fn(&mut Spec), why: &str| {
            let mut odd = spec();
            change(&mut odd);
            let told = odd.write(dir.path()).unwrap_err().to_string();
            assert!(told.contains(why), "{told}");
        };
        check(&|spec| spec.engine = "/e".to_owned(), "must be a relative directory");
        check(&|spec| spec.server.truncate(3), "holds {port}");
        check(&|spec| spec.server.clear(), "a program and its words");
        check(&|spec| spec.server[0] = "./serve".to_owned(), "an absolute path");
        check(&|spec| spec.health = "health".to_owned(), "must be a path");
        check(&|spec| spec.slots = 0, "slots is 0");
        check(&|spec| spec.start_s = 0, "start_s is 0");
        check(&|spec| _ = spec.fields.insert("wings".to_owned()), "\"wings\" is none of");
        assert_eq!(Spec::read(dir.path()).unwrap(), spec(), "nothing was written over it");
    }

    #[test]
    fn fields_that_a_server_would_pass_over_are_named() {
        let unknown = |given: &[&'static str]| spec().unknown(given.iter().copied());
        assert_eq!(unknown(&["model", "messages", "tools", "temperature"]), None);
        assert_eq!(unknown(&["model", "response_format", "n"]), Some("response_format"));
    }
}
