//! The first minute: `smelt demo`, which needs nothing but smelt, and `smelt` alone, which says what is next.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::world::server::Server;
use crate::world::traced::strace;
use crate::world::{Ended, World, data, ended};

/// `smelt demo` in an empty folder, and in no environment at all.
fn bare(world: &World, arguments: &[&str]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_smelt"));
    command.env_clear().current_dir(world.path("")).args(["demo"]).args(arguments);
    ended(&mut command)
}

/// The deployment that the store lists as the demo's.
#[track_caller]
fn deployed(world: &World) -> PathBuf {
    let listed: Value = serde_json::from_str(&world.smelt(&["ls", "--json"]).stdout).unwrap();
    let [built] = &listed["deployments"].as_array().unwrap()[..] else { panic!("{listed}") };
    assert_eq!(built["model"], "demo");
    PathBuf::from(built["path"].as_str().unwrap())
}

/// The directory of a part that the deployment names.
fn part(deployment: &std::path::Path, field: &str) -> PathBuf {
    let spec = fs::read_to_string(deployment.join("deployment.json")).unwrap();
    let spec: Value = serde_json::from_str(&spec).unwrap();
    deployment.join(spec[field].as_str().unwrap())
}

#[test]
fn the_demo_answers_truly_with_nothing_but_smelt() {
    let world = World::new("");
    for _ in 0..2 {
        let first = bare(&world, &[]);
        assert_eq!(
            (first.code, &first.stdout[..]),
            (Some(0), "a blue circle\n"),
            "{}",
            first.stderr
        );
        assert!(first.stderr.contains("asked: What is left of the red circle?"));
        assert!(first.stderr.contains("smelt demo --image FILE"), "{}", first.stderr);
    }
    let quiet = bare(&world, &["-q", "What number is written?"]);
    assert_eq!((&quiet.stdout[..], &quiet.stderr[..]), ("24\n", ""));
    // What is advised works, by its name.
    let picture = data("shapes-1.png").display().to_string();
    let asked = world.smelt(&["chat", "demo", "--image", &picture, "How many circles are there?"]);
    assert_eq!((asked.code, asked.stdout.trim()), (Some(0), "2"), "{}", asked.stderr);
    assert!(world.smelt(&["ls"]).stdout.contains("smelt-demo#deployment"));
    assert_eq!(world.smelt(&["cache", "fsck"]).code, Some(0));
    let runs = world.smelt(&["runs", "--json"]).stdout;
    assert!(!runs.contains("smelt-demo"), "it is no run: {runs}");
}

/// The words of the README: what fits, a build, and a question about a photograph, all by the model's name.
#[test]
fn a_newcomer_goes_from_the_demo_to_a_model_of_their_own() {
    let world = World::new("");
    let photo = data("picture.png").display().to_string();
    let done = |words: &[&str]| {
        let ended = world.smelt(words);
        assert_eq!(ended.code, Some(0), "{words:?}: {}", ended.stderr);
        ended
    };
    assert_eq!(done(&["demo"]).stdout, "a blue circle\n");
    for model in ["synthetic:internvl3-tiny", "synthetic:qwen2_5_vl-tiny"] {
        let fit = done(&["fit", model]);
        assert!(fit.stdout.contains("advised"), "{}", fit.stdout);
        let advice = fit.stderr.lines().last().unwrap();
        assert_eq!(advice, format!("build it with: smelt build {model}"));
        done(&["build", model]);
        let question = ["--image", &photo, "--max-tokens", "4", "Describe this image."];
        let chat = done(&[&["chat", model], &question[..]].concat());
        assert!(chat.stderr.contains("prompt tokens"), "{}", chat.stderr);
        assert!(!chat.stderr.contains("nothing is built"), "{}", chat.stderr);
    }
    let listed = done(&["ls"]).stdout;
    assert!(["internvl3-tiny", "qwen2_5_vl-tiny", "demo"].iter().all(|it| listed.contains(it)));
}

#[test]
fn the_demo_answers_about_pictures_of_one_s_own() {
    let world = World::new("");
    let questions = fs::read_to_string(data("shapes-golden/questions.jsonl")).unwrap();
    for line in questions.lines() {
        let question: Value = serde_json::from_str(line).unwrap();
        let images = question["images"].as_array().unwrap().iter();
        let images = images.map(|name| data("shapes-golden").join(name.as_str().unwrap()));
        let mut arguments = vec![question["question"].as_str().unwrap().to_owned()];
        images
            .for_each(|path| arguments.extend(["--image".to_owned(), path.display().to_string()]));
        let said = bare(&world, &arguments.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(said.stdout.trim(), question["answer"].as_str().unwrap(), "{}", said.stderr);
    }
    let absent = bare(&world, &["--image", "absent.png"]);
    assert_eq!((absent.code, absent.stderr.lines().count()), (Some(4), 1), "{}", absent.stderr);
}

#[test]
fn the_demo_speaks_to_nobody() {
    let world = World::new("");
    let smelt = env!("CARGO_BIN_EXE_smelt");
    let output = strace(&world, &["-f"], "trace=network", &[smelt, "demo"]);
    assert_eq!(output.stdout, b"a blue circle\n");
    let trace = world.read("trace");
    assert!(!trace.contains("AF_INET"), "{trace}");
}

#[test]
fn what_was_damaged_in_the_store_is_made_anew() {
    let world = World::new("");
    bare(&world, &[]);
    let weights = ["vision", "llm"].map(|field| part(&deployed(&world), field).join("weights.bin"));
    for path in &weights {
        let whole = fs::read(path).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
        let mut bytes = whole.clone();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 64;
        fs::write(path, bytes).unwrap();
        assert_eq!(bare(&world, &[]).stdout, "a blue circle\n");
        assert_eq!(fs::read(path).unwrap(), whole);
    }
    fs::remove_dir_all(deployed(&world)).unwrap();
    assert_eq!(bare(&world, &[]).stdout, "a blue circle\n");
}

#[test]
fn smelt_alone_says_what_to_do_next() {
    let world = World::of_commands(&["a::echo a > o"]);
    let next = || {
        let said = world.smelt(&[]);
        assert_eq!((said.code, &said.stdout[..]), (Some(2), ""), "{}", said.stderr);
        said.stderr
    };
    let told = next();
    for advised in ["smelt plan p.toml", "smelt run p.toml", "smelt demo", "smelt --help"] {
        assert!(told.contains(advised), "{told}");
    }
    assert!(!world.path("cache").exists(), "whoever asks makes no store");
    // The advice works, and changes.
    for advised in ["smelt run p.toml", "smelt demo"] {
        let words: Vec<&str> = advised.split(' ').skip(1).collect();
        assert_eq!(world.smelt(&words).code, Some(0), "{advised}");
    }
    let told = next();
    assert!(told.contains("smelt chat demo") && !told.contains("smelt demo "), "{told}");
    let unknown = world.smelt(&["deom"]);
    assert_eq!(unknown.code, Some(2));
    assert!(unknown.stderr.contains("demo"), "{}", unknown.stderr);
}

/// `cargo xtask demo` makes the packed file anew, should this fail.
#[test]
fn the_demo_carries_what_its_pipeline_builds() {
    let world = World::new("");
    bare(&world, &[]);
    let carried = deployed(&world);
    let pipeline = concat!(env!("CARGO_MANIFEST_DIR"), "/demo/demo.toml");
    let other = World::new("");
    let built = other.smelt(&["run", pipeline]);
    assert_eq!(built.code, Some(0), "{}", built.stderr);
    for (stage, dir) in [
        ("deployment", carried.clone()),
        ("vision", part(&carried, "vision").canonicalize().unwrap()),
        ("llm", part(&carried, "llm").canonicalize().unwrap()),
    ] {
        let out = PathBuf::from(other.smelt(&["out", pipeline, stage]).stdout.trim());
        // Names are digests, so equal names are equal bytes.
        assert_eq!(out.file_name(), dir.file_name(), "{stage}: say cargo xtask demo");
    }
    let told = bare(&world, &[]).stderr;
    let picture = told.lines().find_map(|line| line.strip_prefix("picture: ")).unwrap();
    assert_eq!(fs::read(picture).unwrap(), fs::read(data("shapes-1.png")).unwrap());
}

#[test]
fn without_a_place_for_the_store_the_demo_says_so_in_one_line() {
    let world = World::new("");
    for place in ["/proc/smelt", "/dev/null/smelt"] {
        let mut command = world.command(&["demo"]);
        let refused = ended(command.env("SMELT_CACHE", place));
        assert_eq!((refused.code, &refused.stdout[..]), (Some(1), ""), "{}", refused.stderr);
        assert_eq!(refused.stderr.lines().count(), 1, "{}", refused.stderr);
        assert!(refused.stderr.contains("SMELT_CACHE=/var/tmp/smelt smelt demo"));
    }
}

#[test]
fn what_a_server_has_is_removed_when_it_has_ended() {
    let world = World::new("");
    bare(&world, &[]);
    let server = Server::of(&world, &["demo"], &[]);
    assert!(crate::world::until(|| server.get("/health").status == 200));
    let refused = world.smelt(&["rm", "demo"]);
    assert_eq!((refused.code, &refused.stdout[..]), (Some(7), ""), "{}", refused.stderr);
    assert!(refused.stderr.contains("in use by a run or a server"), "{}", refused.stderr);
    drop(server);
    let removed = world.smelt(&["rm", "demo"]);
    assert_eq!((removed.code, &removed.stderr[..]), (Some(0), ""), "{}", removed.stderr);
    assert_eq!(fs::read_dir(world.path("cache/out")).unwrap().count(), 0, "its picture, too");
    assert_eq!(bare(&world, &[]).stdout, "a blue circle\n");
}
