//! Pipelines whose model comes from a hub: one on this machine that stalls, lies, moves and refuses.

#[allow(dead_code, unreachable_pub)] // Shared with the tests of the crate that downloads.
#[path = "../../smelt-hub/src/tests/server.rs"]
mod server;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::world::{Ended, World, data, ended, statuses, unasked, until, writing};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use server::{COMMIT, Fault, REPO, Server};

const DEMO: &str = include_str!("../../../pipelines/demo.toml");
/// Nobody listens there.
const NOWHERE: &str = "http://127.0.0.1:1";

pub(crate) struct HubWorld {
    world: World,
    server: Server,
    /// The mood's own variables.
    variables: Vec<(&'static str, &'static str)>,
}

/// What a hub, or the way to it, does to who wants its model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mood {
    Whole,
    Gated,
    Private,
    NoRevision,
    Pickled,
    Unreachable,
    Offline,
    NoRoom,
    NoTokenizer,
    Large,
}

impl HubWorld {
    fn new(pipeline: &str) -> Self {
        let golden = data("golden/internvl3-tiny/checkpoint");
        let read = |name: &str| fs::read(golden.join(name)).unwrap();
        let server = Server::start(&[
            ("README.md", b"a model", false),
            ("config.json", &read("config.json"), false),
            ("model.safetensors", &read("model.safetensors"), true),
            ("pytorch_model.bin", b"a pickle", true),
            ("tokenizer.json", &read("tokenizer.json"), false),
            ("tokenizer_config.json", &read("tokenizer_config.json"), false),
        ]);
        let world = World::new(
            &unasked(pipeline).replace("path:../tests/data/shapes-vl", &format!("hf:{REPO}")),
        );
        Self { world, server, variables: Vec::new() }
    }

    pub(crate) fn in_mood(mood: Mood) -> Self {
        let mut hub = Self::demo();
        let without =
            |name: &str| hub.server.set(|state| state.files.retain(|file| file.0 != name));
        match mood {
            Mood::Whole => {}
            Mood::Gated => hub.server.set(|state| state.refusal = Some((403, "GatedRepo"))),
            Mood::Private => hub.server.set(|state| state.refusal = Some((401, ""))),
            Mood::NoRevision => {
                hub.server.set(|state| state.refusal = Some((404, "RevisionNotFound")));
            }
            Mood::Pickled => without("model.safetensors"),
            // The place of the weights, and more than any disk has.
            Mood::NoRoom => hub.server.set(|state| state.claim = Some((2, 500 << 30))),
            Mood::Large => hub.server.set(|state| state.claim = Some((2, 600 << 20))),
            Mood::NoTokenizer => without("tokenizer.json"),
            Mood::Unreachable => hub.variables.push(("HF_ENDPOINT", NOWHERE)),
            Mood::Offline => hub.variables.push(("HF_HUB_OFFLINE", "1")),
        }
        hub
    }

    fn demo() -> Self {
        Self::new(DEMO)
    }

    /// With the hub's variables, and without those of whoever runs the tests.
    pub(crate) fn command(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Command {
        let mut command = self.world.command(arguments);
        let theirs = |name: &str| {
            let name = name.to_ascii_uppercase();
            name.starts_with("HF_") || name.ends_with("_PROXY") || name == "SSL_CERT_FILE"
        };
        std::env::vars().filter(|(name, _)| theirs(name)).for_each(|(name, _)| {
            command.env_remove(name);
        });
        // Relative: the worker runs in a directory of its own.
        command.env("HF_ENDPOINT", &self.server.url).env("HF_HOME", "hf");
        command.envs(self.variables.iter().chain(variables).copied());
        command
    }

    fn smelt(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Ended {
        ended(&mut self.command(arguments, variables))
    }

    /// A run that must end well: what it says, and every stage's name with its status.
    #[track_caller]
    fn run(&self, variables: &[(&str, &str)]) -> (String, Vec<String>) {
        let ended = self.smelt(&["run", "p.toml", "--json"], variables);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let report: Value = serde_json::from_str(&ended.stdout).unwrap();
        (ended.stderr, statuses(&report))
    }

    #[track_caller]
    fn all_are(&self, status: &str, variables: &[(&str, &str)]) -> String {
        let (said, statuses) = self.run(variables);
        assert!(statuses.iter().all(|one| one.ends_with(status)), "{statuses:?}\n{said}");
        said
    }

    /// Whether nothing was fetched and nothing is to be built.
    pub(crate) fn is_untouched(&self) -> bool {
        let fetched = self.fetched();
        fetched.is_empty()
            && !self.world.path("hf").exists()
            && !self.world.path("tiny-model.toml").exists()
    }

    fn folder(&self) -> PathBuf {
        self.world.path("hf/hub/models--org--tiny-model")
    }

    fn view(&self) -> PathBuf {
        self.folder().join("smelt").join(COMMIT)
    }

    /// How often the content of a large file was asked for, and from which byte.
    fn fetched(&self) -> Vec<Option<String>> {
        let asked = self.server.asked().into_iter();
        asked.filter(|asked| asked.is_storage).map(|asked| asked.range).collect()
    }
}

/// `checkpoint` alone is built again; what it led to is the same.
const FETCHED_AGAIN: [&str; 7] = [
    "checkpoint sealed",
    "vision-onnx hit",
    "vision-engine hit",
    "llm-quant hit",
    "llm-engine hit",
    "verify hit",
    "deployment hit",
];

#[test]
fn a_model_is_fetched_once_and_then_found_with_and_without_the_hub() {
    let hub = HubWorld::demo();
    let plan = hub.smelt(&["plan", "p.toml"], &[]);
    assert!(plan.stdout.contains(&format!("hf:{REPO}@main at commit {COMMIT}")), "{}", plan.stdout);
    assert!(!hub.world.path("hf").exists(), "a plan downloads nothing");
    hub.all_are("sealed", &[]);
    assert_eq!(hub.fetched().len(), 1);
    let out = hub.smelt(&["out", "p.toml", "checkpoint"], &[]);
    assert_eq!(Path::new(out.stdout.trim()), hub.view());
    assert!(hub.server.asked().is_empty(), "to use what was built nobody is asked");
    assert_eq!(fs::read_dir(hub.view()).unwrap().count(), 4);
    // Python fetches the rest of the repository into the same snapshot.
    fs::write(hub.folder().join("snapshots").join(COMMIT).join("README.md"), "a model").unwrap();
    hub.all_are("hit", &[]);
    assert!(hub.fetched().is_empty());
    let said = hub.all_are("hit", &[("HF_ENDPOINT", NOWHERE)]);
    assert!(said.contains("which the cache remembers"), "{said}");
    let said = hub.all_are("hit", &[("HF_HUB_OFFLINE", "1")]);
    assert!(said.contains("HF_HUB_OFFLINE is set; going on with commit"), "{said}");
    let out = hub.smelt(&["out", "p.toml", "deployment"], &[("HF_ENDPOINT", NOWHERE)]);
    assert_eq!((out.code, out.stderr.as_str()), (Some(0), ""));
    let chat = hub.smelt(&["chat", "p.toml", "Hello"], &[("HF_ENDPOINT", NOWHERE)]);
    assert_eq!(chat.code, Some(0), "{}", chat.stderr);
    // The same files under a path are the same model.
    let golden = data("golden/internvl3-tiny/checkpoint");
    let set = format!("model=path:{}", golden.display());
    let report = hub.smelt(&["run", "p.toml", "--set", &set, "--json"], &[]);
    let report: Value = serde_json::from_str(&report.stdout).unwrap();
    assert!(statuses(&report).iter().all(|one| one.ends_with("hit")), "{report}");
}

#[test]
fn what_the_files_of_a_hub_tell_is_told_before_anything_is_fetched() {
    let hub = HubWorld::demo();
    let mut files = Vec::new();
    hub.server.set(|state| files = state.files.clone());
    let lines = || {
        let plan = hub.smelt(&["plan", "p.toml"], &[]);
        assert_eq!(plan.code, Some(0), "{}", plan.stderr);
        assert!(!hub.world.path("hf").exists(), "a plan downloads nothing");
        let lines = plan.stdout.lines().filter(|line| line.contains("will be refused"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(lines().is_empty(), "{:?}", lines());
    let check = |name: &str, text: &str, words: &str| {
        hub.server.set(|state| {
            state.files = files.clone();
            state.files.retain(|file| file.0 != name);
            state.files.push((name.to_owned(), text.into(), false));
        });
        let [line] = &lines()[..] else { panic!("{name}: {:?}", lines()) };
        assert!(line.starts_with("deployment will be refused: ") && line.contains(words), "{line}");
    };
    check("tokenizer_config.json", "{", "hf:org/tiny-model/tokenizer_config.json: not JSON");
    check("tokenizer_config.json", "{}", "tokenizer_config.json: names no eos_token");
    let ends = r#"{"eos_token": "<|im_end|>"}"#;
    check("tokenizer_config.json", ends, "hf:org/tiny-model has no chat template");
    check("generation_config.json", "[", "hf:org/tiny-model/generation_config.json: not JSON");
    check("chat_template.jinja", "{% if %}", "hf:org/tiny-model/chat_template.jinja: ");
    check("chat_template.jinja", "always the same", "it never writes what a message says");
    check("preprocessor_config.json", "{", "preprocessor_config.json");
    hub.server.set(|state| {
        state.files = files.clone();
        state.files.retain(|file| file.0 != "tokenizer.json");
    });
    assert_eq!(lines(), ["deployment will be refused: hf:org/tiny-model has no tokenizer.json"]);
}

#[test]
fn a_context_that_a_model_of_a_hub_has_no_positions_for_is_foreseen() {
    let hub = HubWorld::demo();
    for (model, most) in [("hf:org/tiny-model", 32768), ("synthetic:internvl3-tiny", 1024)] {
        let sets = ["--set", "max_seq_len=99999", "--set", &format!("model={model}")];
        let plan = hub.smelt(&[&["plan", "p.toml"], &sets[..]].concat(), &[]);
        let words = format!(
            "deployment will be refused: \"max-seq-len\" is 99999, more than the model's {most} positions"
        );
        assert!(plan.stdout.lines().any(|line| line == words), "{model}: {}", plan.stdout);
    }
}

#[test]
fn a_download_that_was_killed_goes_on_where_it_ended() {
    let hub = HubWorld::demo();
    hub.server.set(|state| state.faults = [Fault::Stall(300_000)].into());
    let mut smelt = hub.command(&["run", "p.toml"], &[]).spawn().unwrap();
    let arrived = || {
        let blobs = fs::read_dir(hub.folder().join("blobs")).into_iter().flatten().flatten();
        blobs.map(|blob| blob.metadata().map_or(0, |meta| meta.len())).max() == Some(300_000)
    };
    assert!(until(arrived), "nothing arrives");
    smelt.kill().unwrap();
    smelt.wait().unwrap();
    hub.world.assert_nothing_runs();
    assert_eq!(hub.fetched(), [None]);
    hub.all_are("sealed", &[]);
    assert_eq!(hub.fetched(), [Some("bytes=300000-".to_owned())]);
}

#[test]
fn a_branch_that_moves_is_built_anew_as_far_as_its_files_changed() {
    let hub = HubWorld::demo();
    hub.run(&[]);
    assert_eq!(hub.fetched().len(), 1);
    let first = COMMIT.to_owned();
    hub.server.set(|state| state.commit = "1".repeat(40));
    assert_eq!(hub.run(&[]).1, FETCHED_AGAIN, "only the commit's name is new");
    assert!(hub.fetched().is_empty(), "its files are all here");
    hub.server.set(|state| {
        state.commit = "2".repeat(40);
        let weights = &mut state.files[2].1;
        let at = weights.len() - 2;
        weights[at] ^= 1;
    });
    let changed = ["checkpoint sealed", "vision-onnx sealed", "vision-engine sealed"];
    assert_eq!(hub.run(&[]).1[..3], changed, "the last tensor is the vision tower's");
    assert_eq!(hub.fetched().len(), 1);
    hub.server.set(|state| state.commit = first);
    hub.all_are("hit", &[]);
}

#[test]
fn wrong_bytes_never_become_a_model() {
    let hub = HubWorld::demo();
    hub.server.set(|state| state.faults = [Fault::Wrong; 9].into());
    let ended = hub.smelt(&["run", "p.toml"], &[]);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let words =
        "smelt: stage checkpoint: model.safetensors of org/tiny-model arrived damaged twice";
    assert!(ended.stderr.contains(words), "{}", ended.stderr);
    assert_eq!(fs::read_dir(hub.world.path("cache/out")).unwrap().count(), 0);
    hub.server.set(|state| state.faults.clear());
    hub.all_are("sealed", &[]);
}

#[test]
fn a_cache_that_was_cleared_or_damaged_is_noticed_and_filled_again() {
    let hub = HubWorld::demo();
    hub.run(&[]);
    fs::remove_dir_all(hub.world.path("hf")).unwrap();
    let (said, statuses) = hub.run(&[]);
    assert_eq!(statuses, FETCHED_AGAIN);
    let words = "checkpoint is not what was recorded and is built again: cannot look at";
    assert_eq!(said.matches(words).count(), 1, "{said}");
    assert_eq!(hub.fetched().len(), 2);
    let blob = fs::canonicalize(hub.view().join("model.safetensors")).unwrap();
    let mut bytes = fs::read(&blob).unwrap();
    bytes[400_000] ^= 1;
    fs::write(&blob, bytes).unwrap();
    let offline = hub.smelt(&["run", "p.toml"], &[("HF_HUB_OFFLINE", "1")]);
    assert_eq!(offline.code, Some(1), "{}", offline.stderr);
    let words = "stage checkpoint: model.safetensors of org/tiny-model is damaged in the cache";
    assert!(offline.stderr.contains(words), "{}", offline.stderr);
    let (said, statuses) = hub.run(&[]);
    assert_eq!(statuses, FETCHED_AGAIN);
    assert!(said.contains("model.safetensors has other content"), "{said}");
    let log = fs::read_dir(hub.world.path("cache/logs")).unwrap().flatten();
    let logs = log.map(|run| fs::read_to_string(run.path().join("checkpoint.1.log")));
    let logs: Vec<String> = logs.map(Result::unwrap_or_default).collect();
    let told = |words: &str| logs.iter().any(|log| log.contains(words));
    assert!(told("model.safetensors is damaged in the cache (its hash is"), "{logs:?}");
    assert!(told("fetching model.safetensors: ") && told("checking tokenizer.json"), "{logs:?}");
    hub.all_are("hit", &[]);
}

#[test]
fn a_cache_that_changes_under_a_stage_spoils_its_attempt() {
    let spoil = "[ -e tokenizer.json ] || echo >> $SMELT_IN_MODEL/tokenizer.json; echo x > o";
    let text = writing(&[&format!("spoil:model:{spoil}")])
        + &format!("[stage.model]\nkind = \"source\"\nfrom = \"hf:{REPO}\"\n");
    let hub = HubWorld::new(&text);
    let ended = hub.smelt(&["run", "p.toml"], &[]);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("was changed while the stage ran"), "{}", ended.stderr);
}

#[test]
fn the_token_reaches_the_worker_and_nothing_that_is_kept() {
    let hub = HubWorld::demo();
    hub.server.set(|state| state.token = Some("hf_secret"));
    let refused = hub.smelt(&["run", "p.toml"], &[]);
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains("accept its licence"), "{}", refused.stderr);
    assert_eq!(refused.stderr.lines().count(), 1, "{}", refused.stderr);
    hub.all_are("sealed", &[("HF_TOKEN", "hf_secret")]);
    let found = Command::new("grep").arg("-rl").arg("hf_secret").arg(hub.world.path("")).output();
    assert_eq!(String::from_utf8(found.unwrap().stdout).unwrap(), "");
    // A token that was stored by Python's login serves as well.
    fs::remove_dir_all(hub.folder()).unwrap();
    fs::write(hub.world.path("hf/token"), "hf_secret\n").unwrap();
    assert_eq!(hub.run(&[]).1, FETCHED_AGAIN);
}

#[test]
fn what_cannot_be_had_is_one_line_with_its_place() {
    let check = |change: fn(&mut server::State), from: &str, code: i32, words: &str| {
        let hub = HubWorld::new(&DEMO.replace("path:../tests/data/shapes-vl", from));
        hub.server.set(change);
        for command in ["plan", "run"] {
            let ended = hub.smelt(&[command, "p.toml"], &[]);
            assert_eq!(ended.code, Some(code), "{}", ended.stderr);
            assert!(ended.stderr.starts_with("smelt: p.toml:27:8: hf:"), "{}", ended.stderr);
            assert!(ended.stderr.contains(words), "{}", ended.stderr);
            assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
        }
    };
    let good = "hf:org/tiny-model";
    check(|_| {}, "hf:tiny", 3, "write ORG/NAME");
    check(|_| {}, "hf:org/tiny@a b", 3, "a revision is a branch, a tag or a commit");
    check(|_| {}, "hf:../x", 3, "does not name a repository");
    check(
        |state| state.refusal = Some((404, "RepoNotFound")),
        good,
        3,
        "has no model org/tiny-model",
    );
    check(
        |state| state.refusal = Some((401, "RepoNotFound")),
        good,
        3,
        "or is private and HF_TOKEN",
    );
    let missing = "has no revision \"v9\"; see http";
    check(|state| state.refusal = Some((404, "RevisionNotFound")), "hf:a/b@v9", 3, missing);
    check(|state| state.refusal = Some((401, "GatedRepo")), good, 1, "then set HF_TOKEN");
    let hub = HubWorld::demo();
    for (variable, words) in
        [(("HF_ENDPOINT", NOWHERE), "Connection refused"), (("HF_HUB_OFFLINE", "1"), "is not in")]
    {
        let ended = hub.smelt(&["run", "p.toml"], &[variable]);
        assert_eq!(ended.code, Some(1), "{}", ended.stderr);
        assert!(ended.stderr.contains(words), "{}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    }
}

#[test]
fn a_hub_that_is_silent_does_not_hold_up_ctrl_c() {
    let hub = HubWorld::demo();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let mut smelt = hub.command(&["run", "p.toml"], &[("HF_ENDPOINT", &endpoint)]).spawn().unwrap();
    let _asked = silent.accept().unwrap();
    let begin = Instant::now();
    kill(Pid::from_raw(smelt.id().cast_signed()), Signal::SIGINT).unwrap();
    assert_eq!(smelt.wait().unwrap().code(), Some(6));
    assert!(begin.elapsed() < Duration::from_secs(5), "the connection's own patience is 30 s");
}

#[test]
fn a_stage_that_cannot_fetch_says_why() {
    let check = |change: fn(&mut server::State), code: i32, words: &str| {
        let hub = HubWorld::demo();
        hub.server.set(change);
        let ended = hub.smelt(&["run", "p.toml"], &[]);
        assert_eq!(ended.code, Some(code), "{}", ended.stderr);
        let mut lines = ended.stderr.lines();
        let line = lines.find(|line| line.starts_with("smelt: stage checkpoint: ")).unwrap();
        assert!(line.contains(words), "{line}");
        assert_eq!(fs::read_dir(hub.world.path("cache/out")).unwrap().count(), 0);
        ended.stderr
    };
    check(|state| drop(state.files.remove(2)), 4, "only pickled weights (pytorch_model.bin)");
    check(|state| drop(state.files.remove(1)), 4, "holds no config.json");
    let said = check(|state| state.claim = Some((2, 500 << 30)), 1, "No space left on device");
    assert!(said.contains("checkpoint failed (disk-full)"), "{said}");
}

#[test]
fn commands_take_what_a_pipeline_takes() {
    let hub = HubWorld::demo();
    let name = format!("hf:{REPO}");
    let golden = data("golden/internvl3-tiny/checkpoint").display().to_string();
    let path = format!("path:{golden}");
    let export = |from: &str, out: &str| {
        let ended = hub.smelt(&["export", from, "--part", "vision", "--out", out], &[]);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        fs::read(hub.world.path(out).join("model.onnx.data")).unwrap()
    };
    let graph = export(&name, "a");
    assert!(graph == export(&golden, "b") && graph == export(&path, "c"));
    assert_eq!(hub.fetched().len(), 1);
    export("synthetic:internvl3-tiny", "d");
    let scheme = ["--scheme", "int8", "--out", "e"];
    let ended = hub.smelt(&[&["quantize", &name], &scheme[..]].concat(), &[]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let made = |name: &str| hub.world.path(name).exists();
    assert!(made("e/config.json") || made("e/smelt-quantize.json"));
    let names = fs::read_dir(hub.world.path("")).unwrap().flatten();
    let left: Vec<_> = names.filter(|name| name.file_name().len() > "p.toml".len()).collect();
    assert!(left.is_empty(), "nothing is left behind: {left:?}");
    let refused = |from: &str, code: i32, words: &str| {
        let ended = hub.smelt(&["export", from, "--part", "vision", "--out", "f"], &[]);
        assert_eq!(ended.code, Some(code), "{}", ended.stderr);
        let line = ended.stderr.lines().last().unwrap();
        assert!(line.contains(words), "{}", ended.stderr);
        assert!(!made("f"));
    };
    refused("hf:tiny", 2, "write ORG/NAME");
    refused("hf:org/other", 2, "has no model org/other");
    refused("synthetic:nothing", 4, "nothing");
    refused("path:nowhere", 4, "nowhere");
}

/// A GGUF file, asked for by its name.
const GGUF: &str = r#"
smelt = 1
name = "gguf"
[params]
model = "hf:org/tiny-model"
[stage.checkpoint]
kind = "source"
from = "${model}"
[stage.llm-engine]
kind = "llm-engine-build"
checkpoint = "checkpoint"
max-seq-len = 128
[stage.verify]
kind = "verify"
llm = "llm-engine"
against = "checkpoint"
[stage.deployment]
kind = "deployment"
model = "tiny"
checkpoint = "checkpoint"
llm = "llm-engine"
verified = "verify"
"#;

/// The parts of the model `smollm.gguf`, as the `gguf` package split it.
const PARTS: [&str; 2] = ["split-00001-of-00002.gguf", "split-00002-of-00002.gguf"];

/// A hub with one model in two files of GGUF, in several parts, and another that nobody asks for.
fn gguf_hub() -> HubWorld {
    let read = |name: &str| fs::read(data("golden/gguf-words").join(name)).unwrap();
    let [first, second] = PARTS.map(read);
    let hub = HubWorld::new(GGUF);
    let parts = PARTS.map(|name| format!("q/{name}"));
    hub.server.set(|state| {
        state.files = [
            ("README.md", b"a model".to_vec(), false),
            ("another.gguf", b"never read".to_vec(), true),
            ("smollm.gguf", read("smollm.gguf"), true),
            (&parts[0], first, true),
            (&parts[1], second, true),
        ]
        .map(|(name, bytes, is_large)| (name.to_owned(), bytes, is_large))
        .into();
    });
    hub
}

impl HubWorld {
    /// What the deployment of `model` says, its engine planned, built and verified first; and how many large
    /// files were fetched.
    #[track_caller]
    fn answer_of(&self, model: &str) -> (String, usize) {
        let set = format!("model={model}");
        let plan = self.smelt(&["plan", "p.toml", "--set", &set], &[]);
        assert_eq!(plan.code, Some(0), "{model}: {}", plan.stderr);
        assert!(plan.stdout.contains(COMMIT), "{model}: {}", plan.stdout);
        assert!(!plan.stdout.contains("refused"), "{model}: {}", plan.stdout);
        assert_eq!(self.fetched().len(), 0, "{model}: a plan fetches nothing");
        let run = self.smelt(&["run", "p.toml", "--set", &set], &[]);
        assert_eq!(run.code, Some(0), "{model}: {}", run.stderr);
        let fetched = self.fetched().len();
        let question =
            ["chat", "p.toml", "--set", &set, "--max-tokens", "8", "Hi there, what is 2?"];
        let chat = self.smelt(&question, &[]);
        assert_eq!(chat.code, Some(0), "{model}: {}", chat.stderr);
        assert!(!chat.stdout.trim().is_empty(), "{model}: {}", chat.stderr);
        (chat.stdout, fetched)
    }
}

#[test]
fn one_gguf_file_of_a_hub_is_planned_built_and_asked() {
    let hub = gguf_hub();
    let (answer, fetched) = hub.answer_of("hf:org/tiny-model:smollm.gguf");
    assert_eq!(fetched, 1, "one of the four files");
    // A path to the same bytes, and a commit that is named, are the same model.
    let pinned = hub.answer_of(&format!("hf:org/tiny-model@{COMMIT}:smollm.gguf"));
    assert_eq!(pinned, (answer.clone(), 0));
    let path = data("golden/gguf-words/smollm.gguf");
    let set = format!("model=path:{}", path.display());
    let report = hub.smelt(&["run", "p.toml", "--set", &set, "--json"], &[]);
    let report: Value = serde_json::from_str(&report.stdout).unwrap();
    let built = statuses(&report);
    assert!(built.contains(&"llm-engine hit".to_owned()), "{built:?}");
    // Without a name nobody guesses, and a wrong one is told of before anything is fetched.
    let refused = |model: &str, words: &str| {
        let set = format!("model={model}");
        let run = hub.smelt(&["run", "p.toml", "--set", &set], &[]);
        assert_ne!(run.code, Some(0), "{model}");
        assert!(run.stderr.contains(words), "{model}: {}", run.stderr);
        assert!(!run.stderr.contains("panicked"), "{model}: {}", run.stderr);
        assert_eq!(hub.fetched().len(), 0, "{model}");
    };
    refused("hf:org/tiny-model", "name one of them, as in hf:");
    refused("hf:org/tiny-model:smolm.gguf", "smolm.gguf");
}

#[test]
fn a_split_gguf_file_answers_as_the_whole_one_does() {
    let hub = gguf_hub();
    let (whole, _) = hub.answer_of("hf:org/tiny-model:smollm.gguf");
    let (split, fetched) = hub.answer_of(&format!("hf:org/tiny-model:q/{}", PARTS[0]));
    assert_eq!((split, fetched), (whole, 2));
}

#[test]
fn fit_fetches_no_weights() {
    let hub = HubWorld::demo();
    let fit = hub.smelt(&["fit", REPO, "--json"], &[]);
    assert_eq!(fit.code, Some(0), "{}", fit.stderr);
    let document: Value = serde_json::from_str(&fit.stdout).unwrap();
    assert_eq!(document["from"], format!("hf:{REPO}"));
    assert_eq!(document["family"], "qwen2");
    assert!(hub.fetched().is_empty() && !hub.world.path("hf").exists());
    // What is built of it afterwards has the sizes that were told.
    hub.all_are("sealed", &[]);
    let here = hub.smelt(&["fit", REPO, "--json"], &[]);
    let here: Value = serde_json::from_str(&here.stdout).unwrap();
    assert_eq!(here["lines"][0]["engines_bytes"], document["lines"][0]["engines_bytes"]);
}

#[test]
fn a_gguf_file_of_a_hub_is_fitted_by_its_header_and_asked_by_its_name() {
    let hub = gguf_hub();
    let fit = |model: &str| hub.smelt(&["fit", model, "--json"], &[]);
    let line = |model: &str| {
        let fit = fit(model);
        assert_eq!(fit.code, Some(0), "{model}: {}", fit.stderr);
        let document: Value = serde_json::from_str(&fit.stdout).unwrap();
        let of = |name: &str| document["lines"][0][name].clone();
        (document["family"].clone(), of("scheme"), of("engines_bytes"), of("serving_bytes"))
    };
    let model = format!("hf:{REPO}:smollm.gguf");
    let told = line(&model);
    let asked = hub.server.asked().into_iter().filter(|asked| asked.is_storage);
    let ranges: Vec<_> = asked.map(|asked| asked.range).collect();
    assert!(!ranges.is_empty() && ranges.iter().all(Option::is_some), "{ranges:?}");
    assert!(!hub.world.path("hf").exists(), "nothing is kept");
    assert_eq!(told, line(&data("golden/gguf-words/smollm.gguf").display().to_string()));
    assert_eq!(told, line(&format!("hf:{REPO}:q/{}", PARTS[0])), "in parts");
    // Of several none is guessed; what cannot be read is one line.
    let refused = |model: &str, variables: &[(&str, &str)], code: i32, words: &str| {
        let fit = hub.smelt(&["fit", model], variables);
        assert_eq!((fit.code, fit.stderr.lines().count()), (Some(code), 1), "{}", fit.stderr);
        assert!(fit.stderr.contains(words), "{}", fit.stderr);
    };
    refused(REPO, &[], 4, "name one of them, as in hf:org/tiny-model:another.gguf");
    refused(
        &format!("hf:{REPO}:another.gguf"),
        &[],
        4,
        "hf:org/tiny-model:another.gguf is no GGUF",
    );
    refused(&format!("hf:{REPO}:absent.gguf"), &[], 2, "has no file absent.gguf");
    refused(&model, &[("HF_HUB_OFFLINE", "1")], 1, "HF_HUB_OFFLINE forbids");
    hub.server.set(|state| state.faults = [Fault::Whole].into());
    refused(&model, &[], 1, "no ranges");
    // Built by that name, and then asked without the hub.
    let question = ["--max-tokens", "4", "Hi there, what is 2?"];
    let first = hub.smelt(&[&["chat", &model], &question[..]].concat(), &[]);
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    let nobody = [("HF_ENDPOINT", NOWHERE)];
    let again = hub.smelt(&[&["chat", "smollm"], &question[..]].concat(), &nobody);
    assert_eq!((again.code, &again.stdout), (Some(0), &first.stdout), "{}", again.stderr);
    assert_eq!(line(&model), told, "as it is when it is here");
}

#[test]
fn a_script_is_told_what_is_fetched_and_not_asked() {
    let hub = HubWorld::in_mood(Mood::NoRoom);
    let chat = hub.smelt(&["chat", REPO, "Hi"], &[]);
    assert_eq!(chat.code, Some(1), "{}", chat.stderr);
    assert!(chat.stderr.contains("org/tiny-model: 500.00 GiB are fetched"), "{}", chat.stderr);
    assert!(chat.stderr.contains("No space left on device"), "it went on: {}", chat.stderr);
    assert!(!chat.stderr.contains("Go on?"), "{}", chat.stderr);
}

#[test]
fn a_model_that_is_far_too_large_is_told_at_once() {
    let config = r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 8192, "num_hidden_layers": 80,
        "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 128256,
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "max_position_embeddings": 131072, "rope_theta": 500000.0,
        "torch_dtype": "bfloat16", "tie_word_embeddings": false}"#;
    let files = [
        ("config.json", config.as_bytes(), false),
        ("model-00001-of-00001.safetensors", &b"x"[..], true),
        ("model.safetensors.index.json", &b"{}"[..], false),
    ];
    let (world, server) = (World::new(""), Server::start(&files));
    let hub = HubWorld { world, server, variables: Vec::new() };
    let begin = Instant::now();
    let fit = hub.smelt(&["fit", REPO, "--for", "8GB"], &[]);
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
    assert_eq!(fit.code, Some(5), "{}", fit.stderr);
    assert!(fit.stderr.contains("nothing fits: the smallest choice holds"), "{}", fit.stderr);
    assert!(fit.stderr.contains("it takes a device with"), "{}", fit.stderr);
    let build = hub.smelt(&["build", REPO, "--memory", "6GiB"], &[]);
    assert_eq!(build.code, Some(5), "{}", build.stderr);
    assert!(hub.fetched().is_empty());
}

#[test]
fn a_model_of_a_hub_is_asked_by_its_name_and_its_checkpoint_is_not_forgotten() {
    let hub = HubWorld::demo();
    let question = ["--max-tokens", "2", "Hello"];
    let first = hub.smelt(&[&["chat", REPO], &question[..]].concat(), &[]);
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    assert_eq!(hub.fetched().len(), 1);
    for name in ["tiny-model", "hf:org/tiny-model", "hf.co/org/tiny-model"] {
        let nobody = [("HF_ENDPOINT", NOWHERE)];
        let again = hub.smelt(&[&["chat", name], &question[..]].concat(), &nobody);
        assert_eq!((again.code, &again.stdout), (Some(0), &first.stdout), "{}", again.stderr);
    }
    let listed: Value = serde_json::from_str(&hub.smelt(&["ls", "--json"], &[]).stdout).unwrap();
    assert_eq!(listed["deployments"][0]["from"], format!("hf:{REPO}"));
    let removed = hub.smelt(&["rm", REPO], &[]);
    assert_eq!(removed.code, Some(0), "{}", removed.stderr);
    let (_, folder) = removed.stderr.trim_end().split_once("rm -r ").unwrap();
    let (folder, _) = folder.split_once(" frees").unwrap();
    assert_eq!(hub.world.path("").join(folder), hub.folder());
    assert!(hub.folder().join("blobs").exists());
}
