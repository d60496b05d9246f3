//! Models by their names: what is built is asked, what is not is built on the way to the answer.

use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::world::server::Server;
use crate::world::{Ended, World, copy, data, until};

const MODEL: &str = "synthetic:internvl3-tiny";
const QUESTION: [&str; 3] = ["--max-tokens", "2", "What?"];

fn chat(world: &World, model: &str) -> Ended {
    world.smelt(&[&["chat", model], &QUESTION[..]].concat())
}

/// The deployments that are listed.
fn listed(world: &World) -> Vec<Value> {
    deployments(&world.smelt(&["ls", "--json"]))
}

fn deployments(listed: &Ended) -> Vec<Value> {
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    listed["deployments"].as_array().unwrap().clone()
}

#[track_caller]
fn answers(ended: &Ended) {
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(ended.stdout.lines().count(), 1, "the answer alone: {}", ended.stdout);
}

#[test]
fn what_is_not_built_is_built_once_and_then_asked_by_all_its_names() {
    let world = World::new("");
    let first = chat(&world, MODEL);
    answers(&first);
    let advice = format!("built first, as by: smelt build {MODEL}");
    assert!(first.stderr.contains(&advice), "{}", first.stderr);
    let [built] = &listed(&world)[..] else { panic!("one is built") };
    assert_eq!(
        (&built["from"], &built["ask"]),
        (&json!(MODEL), &json!(["chat", "internvl3-tiny"]))
    );
    let digest = built["name"].as_str().unwrap();
    for name in [MODEL, "internvl3-tiny", "InternVL3-Tiny", digest, "internvl3-tiny.toml"] {
        let again = chat(&world, name);
        answers(&again);
        assert_eq!(again.stdout, first.stdout, "{name}");
        assert!(!again.stderr.contains("nothing is built"), "{name}: {}", again.stderr);
    }
    let table = world.smelt(&["ls"]);
    assert!(table.stdout.contains(MODEL), "{}", table.stdout);
    assert!(table.stderr.contains("as in: smelt chat internvl3-tiny"), "{}", table.stderr);
    // The pipeline that was written is built, so it is not what is next.
    let next = world.smelt(&[]).stderr;
    assert!(next.contains("smelt chat internvl3-tiny"), "{next}");
    assert!(!next.contains("smelt run internvl3-tiny.toml"), "{next}");
    let removed = world.smelt(&["rm", MODEL]);
    assert_eq!(removed.code, Some(0), "{}", removed.stderr);
    assert!(listed(&world).is_empty());
    let next = world.smelt(&[]).stderr;
    assert!(next.contains("smelt run internvl3-tiny.toml"), "{next}");
}

#[test]
fn what_was_built_again_is_what_its_pipeline_leads_to_now() {
    let world = World::new("");
    answers(&chat(&world, MODEL));
    let text = world.read("internvl3-tiny.toml");
    let context = text.lines().find(|line| line.starts_with("max_seq_len = ")).unwrap();
    world.write("internvl3-tiny.toml", &text.replace(context, "max_seq_len = 600"));
    let build = world.smelt(&["build", MODEL]);
    assert_eq!(build.code, Some(0), "{}", build.stderr);
    assert_eq!(listed(&world).len(), 2);
    let context_of = |model: &str| {
        let told = world.smelt(&[&["-v", "chat", model], &QUESTION[..]].concat());
        answers(&told);
        told.stderr
    };
    assert!(context_of(MODEL).contains("600"), "{}", context_of(MODEL));
    world.write("internvl3-tiny.toml", &text);
    assert_eq!(world.smelt(&["build", MODEL]).code, Some(0));
    assert!(!context_of("internvl3-tiny").contains("600"), "it leads to the first again");
    let removed = world.smelt(&["rm", "internvl3-tiny"]);
    assert_eq!(removed.code, Some(0), "{}", removed.stderr);
    assert!(listed(&world).is_empty(), "all that it was");
}

#[test]
fn of_several_precisions_none_is_guessed() {
    let world = World::new("");
    for (precision, file) in [("int8", "a.toml"), ("int4-g32", "b.toml")] {
        let build = world.smelt(&["build", MODEL, "--precision", precision, "--out", file]);
        assert_eq!(build.code, Some(0), "{}", build.stderr);
    }
    for name in [MODEL, "internvl3-tiny"] {
        let several = chat(&world, name);
        assert_eq!((several.code, several.stderr.lines().count()), (Some(2), 1));
        for built in listed(&world) {
            let digest = built["name"].as_str().unwrap();
            assert!(several.stderr.contains(digest), "{}", several.stderr);
            assert_eq!(built["ask"], json!(["chat", digest]));
        }
    }
    // A pipeline's name means one.
    for name in ["a", "b", "a.toml"] {
        answers(&chat(&world, name));
    }
    assert_eq!(world.smelt(&["rm", "internvl3-tiny"]).code, Some(2));
    assert_eq!(listed(&world).len(), 2);
    assert_eq!(world.smelt(&["rm", "a"]).code, Some(0));
    answers(&chat(&world, "internvl3-tiny"));
}

#[test]
fn a_stage_that_an_answer_does_not_need_does_not_keep_it() {
    let world = World::new("");
    assert_eq!(world.smelt(&["init", MODEL]).code, Some(0));
    let longer = "[stage.longer]\nkind = \"llm-engine-build\"\ncheckpoint = \"checkpoint\"\nmax-seq-len = 99999\n";
    let text = world.read("internvl3-tiny.toml");
    world.write("internvl3-tiny.toml", &format!("{text}\n{longer}"));
    let refused = world.smelt(&["build", MODEL]);
    assert_eq!(refused.code, Some(4), "{}", refused.stderr);
    assert!(refused.stderr.contains("\"max-seq-len\" is 99999"), "{}", refused.stderr);
    answers(&chat(&world, MODEL));
}

#[test]
fn a_server_builds_what_it_is_to_serve() {
    let world = World::new("");
    let server = Server::of(&world, &[MODEL], &[]);
    assert!(until(|| server.get("/health").status == 200));
    let models = server.get("/v1/models").json();
    assert_eq!(models["data"][0]["id"], "internvl3-tiny", "{models}");
}

/// A world in which a directory `mine` is an encoder's checkpoint.
fn with_encoder() -> World {
    let world = World::new("");
    copy(&data("golden/bert-tiny/checkpoint"), &world.path("mine"));
    let files = [data("encoder").join("."), world.path("mine")];
    assert!(Command::new("cp").arg("-rL").args(files).status().unwrap().success());
    world
}

#[test]
fn a_directory_s_model_is_built_and_asked_where_it_lies() {
    let world = with_encoder();
    let embed = world.smelt(&["embed", "mine", "a b"]);
    assert_eq!(embed.code, Some(0), "{}", embed.stderr);
    let row: Vec<f32> = serde_json::from_str(embed.stdout.trim()).unwrap();
    assert!(!row.is_empty());
    let again = world.smelt(&["embed", "./mine", "a b"]);
    assert_eq!(again.stdout, embed.stdout, "{}", again.stderr);
    assert!(!again.stderr.contains("nothing is built"), "{}", again.stderr);
    let wrong = chat(&world, "mine");
    assert_eq!((wrong.code, wrong.stderr.lines().count()), (Some(4), 1), "{}", wrong.stderr);
    assert!(wrong.stderr.contains("smelt embed mine"), "{}", wrong.stderr);
}

#[test]
fn an_encoder_keeps_to_the_memory_that_its_pipeline_remembers() {
    let world = with_encoder();
    let built = world.smelt(&["build", "./mine", "--memory", "1GiB"]);
    assert_eq!(built.code, Some(0), "{}", built.stderr);
    let pipeline = world.read("mine.toml");
    assert!(pipeline.contains("memory = \"1GiB\""), "{pipeline}");
    let server = Server::of(&world, &["mine.toml"], &[]);
    assert!(until(|| server.get("/health").status == 200));
    drop(server);
    let less = world.smelt(&["serve", "mine.toml", "--addr", "127.0.0.1:0", "--memory", "4MiB"]);
    assert_eq!(less.code, Some(5), "{}", less.stderr);
    assert!(less.stderr.contains("raise --memory"), "{}", less.stderr);
}

#[test]
fn a_build_on_the_way_that_is_stopped_goes_on() {
    let world = World::new("");
    let mut command = world.command(&[&["chat", MODEL], &QUESTION[..]].concat());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    assert!(until(|| world.path("cache/ac.log").exists()), "it has begun");
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    let ended = child.wait().unwrap();
    // It may have been done by then.
    assert!([Some(6), Some(0), None].contains(&ended.code()), "{ended}");
    answers(&chat(&world, MODEL));
}

/// A run listens to signals; whoever talks after it is ended by them as ever.
#[test]
fn who_talks_with_what_was_built_on_the_way_is_ended_by_a_signal() {
    let world = World::new("");
    let mut command = world.command(&["chat", MODEL]);
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    // Before its first stage there may be no store.
    let is_built = || {
        let listed = world.smelt(&["ls", "--json"]);
        listed.code == Some(0) && !deployments(&listed).is_empty()
    };
    assert!(until(is_built), "it is built");
    thread::sleep(Duration::from_millis(500));
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert!(until(|| child.try_wait().unwrap().is_some()), "it has ended");
}
