//! A folder with a pipeline and a store of its own, and the real smelt to run in it.

pub(crate) mod machine;
pub(crate) mod server;
pub(crate) mod side;
pub(crate) mod traced;

use std::fs;
use std::io::{self, Seek as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wait4::{ResourceUsage, Wait4 as _};

/// Long enough for the slowest machine; a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct World {
    folder: tempfile::TempDir,
}

pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl World {
    pub(crate) fn new(pipeline: &str) -> Self {
        let world = Self { folder: tempfile::tempdir().unwrap() };
        world.write("p.toml", pipeline);
        world
    }

    /// A pipeline of `command` stages; each line is `name: needs : shell script`.
    pub(crate) fn of_commands(lines: &[&str]) -> Self {
        Self::new(&commands(lines))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        path.parent().map_or(Ok(()), fs::create_dir_all).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_smelt"));
        self.prepare(&mut command);
        command.args(arguments);
        command
    }

    /// Any program, with this world's folder and store.
    pub(crate) fn prepare(&self, command: &mut Command) {
        command
            .current_dir(self.folder.path())
            .env("SMELT_CACHE", self.path("cache"))
            // Whatever is configured on the machine that tests.
            .env("SMELT_CONFIG", "/dev/null")
            .env("SMELT_TOKENS", self.path("tokens"))
            .env("WORLD", self.folder.path())
            .stdin(Stdio::null());
    }

    pub(crate) fn smelt(&self, arguments: &[&str]) -> Ended {
        ended(&mut self.command(arguments))
    }

    /// The same, with what its processes took: seconds of processors, and the resident bytes of the largest.
    pub(crate) fn measured(&self, arguments: &[&str]) -> (Ended, ResourceUsage) {
        let [mut out, mut err] = [(); 2].map(|()| tempfile::tempfile().unwrap());
        let mut command = self.command(arguments);
        command.stdout(out.try_clone().unwrap()).stderr(err.try_clone().unwrap());
        let used = command.spawn().unwrap().wait4().unwrap();
        let text = |file: &mut fs::File| {
            file.rewind().unwrap();
            io::read_to_string(file).unwrap()
        };
        let ended =
            Ended { code: used.status.code(), stdout: text(&mut out), stderr: text(&mut err) };
        (ended, used.rusage)
    }

    /// `run`, which must end well.
    #[track_caller]
    pub(crate) fn run(&self, arguments: &[&str]) -> Value {
        let all = [&["run", "p.toml", "--json"], arguments].concat();
        let ended = self.smelt(&all);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        serde_json::from_str(&ended.stdout).unwrap()
    }

    /// The stages that `run` would build with these arguments, as `plan` says.
    #[track_caller]
    pub(crate) fn to_build(&self, arguments: &[&str]) -> Vec<String> {
        let all = [&["plan", "p.toml", "--json"], arguments].concat();
        let plan: Value = serde_json::from_str(&self.smelt(&all).stdout).unwrap();
        let stages = plan["stages"].as_array().unwrap().iter();
        let anew = stages.filter(|stage| stage["status"] != "hit");
        anew.map(|stage| stage["name"].as_str().unwrap().to_owned()).collect()
    }

    /// A program of this content in the world's folder.
    pub(crate) fn put_program(&self, name: &str, content: &str) {
        self.write(name, content);
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// The same as [`Self::smelt`], where `PATH` leads to a folder of the world's first.
    pub(crate) fn smelt_by(&self, tools: &str, arguments: &[&str]) -> Ended {
        let path = format!("{}:/usr/bin:/bin", self.path(tools).display());
        ended(self.command(arguments).env("PATH", path))
    }

    /// What became of each stage of a run so, which must succeed.
    #[track_caller]
    pub(crate) fn run_by(&self, tools: &str) -> Vec<String> {
        let ended = self.smelt_by(tools, &["run", "p.toml", "--json"]);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        statuses(&serde_json::from_str(&ended.stdout).unwrap())
    }

    /// `stage` fails in such a run with this class and these words, and is sealed nowhere; the exit code.
    #[track_caller]
    pub(crate) fn fails_by(
        &self,
        tools: &str,
        stage: &str,
        case: &str,
        (class, words): (&str, &str),
    ) -> Option<i32> {
        let ended = self.smelt_by(tools, &["run", "p.toml"]);
        assert_ne!(ended.code, Some(0), "{case}: {}", ended.stderr);
        let failed = format!("{stage} failed");
        let line = ended.stderr.lines().find(|line| line.contains(&failed));
        let line = line.unwrap_or_else(|| panic!("{case}: {}", ended.stderr));
        assert!(line.contains(class), "{case}: {line}");
        assert!(ended.stderr.contains(words), "{case}: {}", ended.stderr);
        let plan = self.smelt_by(tools, &["plan", "p.toml"]).stdout;
        let row = plan.lines().find(|line| line.contains(&format!("{stage} "))).unwrap();
        assert!(row.contains("miss"), "{case}: {plan}");
        self.assert_nothing_runs();
        ended.code
    }

    pub(crate) fn start(&self, arguments: &[&str]) -> Child {
        self.command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// The directory of a stage's sealed output.
    #[track_caller]
    pub(crate) fn out(&self, stage: &str) -> PathBuf {
        let ended = self.smelt(&["out", "p.toml", stage]);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        PathBuf::from(ended.stdout.trim())
    }

    /// Waits until `file` in the world's folder is there.
    #[track_caller]
    pub(crate) fn wait_for(&self, file: &str) {
        let path = self.path(file);
        assert!(until(|| path.exists()), "{} does not appear", path.display());
    }

    /// Processes that carry this world's folder in their environment, besides our own.
    pub(crate) fn processes(&self) -> Vec<String> {
        let mark = format!("WORLD={}", self.folder.path().display());
        let folder = self.folder.path().display().to_string();
        let entries = fs::read_dir("/proc").unwrap().flatten();
        entries
            .filter(|entry| {
                entry.file_name().to_str().is_some_and(|name| name.parse::<u32>().is_ok())
            })
            .filter(|entry| entry.file_name().to_str() != Some(&std::process::id().to_string()))
            .filter(|entry| {
                let text = |name| fs::read(entry.path().join(name)).unwrap_or_default();
                let environment = String::from_utf8_lossy(&text("environ")).into_owned();
                // Stages have a clean environment, but their paths lead into the world.
                environment.contains(&mark) || environment.contains(&folder)
            })
            .map(|entry| {
                let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
                String::from_utf8_lossy(&line).replace('\0', " ")
            })
            .collect()
    }

    /// No process of this world is left, or soon none is.
    #[track_caller]
    pub(crate) fn assert_nothing_runs(&self) {
        let mut left = Vec::new();
        let gone = until(|| {
            left = self.processes();
            left.is_empty()
        });
        assert!(gone, "still running: {left:?}");
    }
}

pub(crate) fn ended(command: &mut Command) -> Ended {
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ended { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

pub(crate) fn until(mut is: impl FnMut() -> bool) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        if is() {
            return true;
        }
        thread::sleep(Duration::from_millis(5));
    }
    false
}

/// Asserts that a command was refused by one line.
#[track_caller]
pub(crate) fn refused(ended: &Ended, code: i32, why: &str) {
    assert_eq!((ended.code, ended.stderr.lines().count()), (Some(code), 1), "{}", ended.stderr);
    assert!(ended.stderr.contains(why), "{}", ended.stderr);
}

pub(crate) fn commands(lines: &[&str]) -> String {
    let mut text = "smelt = 1\nname = \"test\"\n".to_owned();
    for line in lines {
        let [name, needs, script] = line.splitn(3, ':').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let needs: Vec<_> = needs.split_whitespace().map(|need| format!("\"{need}\"")).collect();
        text.push_str(&format!(
            "[stage.{name}]\nkind = \"command\"\ninputs = [{}]\noutputs = [\"o\"]\nargv = [\"sh\", \"-ec\", '''{}''']\n",
            needs.join(", "),
            script.trim(),
        ));
    }
    text
}

/// The same of stages that may write anywhere in the world's folder, to be seen by the test.
pub(crate) fn writing(lines: &[&str]) -> String {
    let kind = "kind = \"command\"\n";
    commands(lines).replace(kind, &format!("{kind}writes = [\".\"]\n"))
}

/// `name status` of every stage of a report.
pub(crate) fn statuses(report: &Value) -> Vec<String> {
    let stages = report["stages"].as_array().unwrap().iter();
    stages
        .map(|stage| {
            format!("{} {}", stage["name"].as_str().unwrap(), stage["status"].as_str().unwrap())
        })
        .collect()
}

/// The demo's pipeline with random weights, which are made in no time and lie nowhere.
pub(crate) fn random(demo: &str) -> String {
    unasked(demo).replace("path:../tests/data/shapes-vl", "synthetic:internvl3-tiny")
}

/// A pipeline without golden prompts, which random weights do not answer.
pub(crate) fn unasked(pipeline: &str) -> String {
    let lines = pipeline.lines().filter(|line| !line.starts_with("prompts = "));
    lines.map(|line| line.to_owned() + "\n").collect()
}

/// The demo's pipeline, of which a deployment may be asked when weights were compared: what is computed is held against
/// the reference behind it, by the stage `verify`.
pub(crate) fn halved(demo: &str) -> String {
    let (before, stages) = demo.split_once("[stage.verify]").unwrap();
    let weights = "\
[stage.weights]
kind = \"verify\"
vision = \"vision-engine\"
llm = \"llm-engine\"
against = \"checkpoint\"
weights = \"llm-quant\"
weights-only = true

[stage.verify]
compared = \"weights\"";
    let stages = stages.replace("verified = \"verify\"", "verified = \"weights\"");
    anywhere(&format!("{before}{weights}{stages}"))
}

/// A pipeline of the repository, to be run from anywhere.
pub(crate) fn anywhere(pipeline: &str) -> String {
    pipeline.replace("path:../tests/data/", &format!("path:{}/", data("").display()))
}

/// The files of a folder in a new one.
pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

/// A decoder of the golden `name`, quantised, verified and deployed by itself; it knows the words `w0` to
/// `w158`.
pub(crate) fn text_world(name: &str) -> World {
    let world = World::new(TEXT);
    let checkpoint = world.path("checkpoint");
    copy(&data(&format!("golden/{name}/checkpoint")), &checkpoint);
    let words = (0..159).map(|at| (format!("w{at}"), at.into()));
    let vocab: serde_json::Map<String, Value> = words.collect();
    let end = json!({"id": 159, "content": "<|end|>", "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": true});
    let tokenizer = json!({"version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [end], "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "w0"}});
    fs::write(checkpoint.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let template = "{% for message in messages %}{{ message.content }} {% endfor %}";
    let config = json!({"eos_token": "<|end|>", "chat_template": template});
    fs::write(checkpoint.join("tokenizer_config.json"), config.to_string()).unwrap();
    world
}

/// The pipeline of [`text_world`].
const TEXT: &str = r#"
smelt = 1
name = "text"
[stage.checkpoint]
kind = "source"
from = "path:checkpoint"
[stage.llm-quant]
kind = "quantize"
checkpoint = "checkpoint"
scheme = "int8"
[stage.llm-engine]
kind = "llm-engine-build"
checkpoint = "llm-quant"
max-seq-len = 128
[stage.verify]
kind = "verify"
llm = "llm-engine"
against = "checkpoint"
weights = "llm-quant"
[stage.deployment]
kind = "deployment"
model = "tiny"
checkpoint = "checkpoint"
llm = "llm-engine"
verified = "verify"
"#;

/// The folder of a file under the repository's `tests/data`.
pub(crate) fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(name)
}
