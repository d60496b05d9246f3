//! Deployments that may be asked when weights were compared, while what they compute is held against the reference:
//! everybody is told that it is not verified, and nothing is sealed that is not true.

use std::fs;
use std::path::Path;

use crate::world::server::Server;
use crate::world::{Ended, World, copy, data, halved, until};
use serde_json::Value;

const DEMO: &str = include_str!("../../../pipelines/demo.toml");

/// What `tests/data/shapes-1.png` shows.
const QUESTION: &str = "What is left of the red circle?";
const ANSWER: &str = "a blue circle";

/// A world whose deployment is made, and not verified.
fn made(pipeline: &str) -> World {
    let world = World::new(pipeline);
    world.run(&["--only", "deployment"]);
    world
}

/// The word for the check of the only deployment.
fn check(world: &World) -> Value {
    let listed: Value = serde_json::from_str(&world.smelt(&["ls", "--json"]).stdout).unwrap();
    assert_eq!(listed["deployments"].as_array().unwrap().len(), 1, "{listed}");
    listed["deployments"][0]["check"].clone()
}

fn json(dir: &Path, file: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(dir.join(file)).unwrap()).unwrap()
}

fn asked(world: &World, more: &[&str]) -> Ended {
    let picture = data("shapes-1.png").display().to_string();
    let arguments = [&["chat", "p.toml", QUESTION, "--image", &picture], more].concat();
    world.smelt(&arguments)
}

#[test]
fn a_deployment_may_be_asked_before_its_check_and_everybody_is_told() {
    let world = made(&halved(DEMO));
    assert_eq!(json(&world.out("deployment"), "deployment.json")["verified"], "weights");
    let weights = json(&world.out("weights"), "verify.json");
    assert_eq!((&weights["part"], &weights["answer"]), (&"weights".into(), &Value::Array(vec![])));
    assert_eq!(check(&world), "open");
    assert!(world.smelt(&["ls"]).stdout.contains("(not checked against the reference)"));
    let ended = asked(&world, &["--no-check"]);
    assert_eq!((ended.code, ended.stdout.trim()), (Some(0), ANSWER), "{}", ended.stderr);
    assert!(ended.stderr.contains("not verified yet: its weights are the checkpoint's"));
    assert!(ended.stderr.contains("; smelt run "), "{}", ended.stderr);
    assert_eq!(check(&world), "open", "it was left out");

    let ended = asked(&world, &[]);
    assert_eq!((ended.code, ended.stdout.trim()), (Some(0), ANSWER), "{}", ended.stderr);
    assert!(ended.stderr.contains("that is done behind this (verify)"), "{}", ended.stderr);
    let told = "verified: it computes what the reference does";
    assert_eq!(ended.stderr.matches(told).count(), 1, "{}", ended.stderr);
    assert_eq!(check(&world), "passed");
    let proof = json(&world.out("verify"), "verify.json");
    let llm = world.out("llm-engine");
    assert_eq!(proof["part"], "reference");
    assert_eq!(proof["engines"]["llm"], llm.file_name().unwrap().to_str().unwrap());
    assert_eq!(proof["weights"], weights["weights"], "as they were compared");
    assert!(!proof["findings"].as_array().unwrap().is_empty(), "{proof}");
    assert!(world.to_build(&[]).is_empty(), "a run finds it");
    assert!(!asked(&world, &[]).stderr.contains("verified"), "there is nothing more to say");
}

/// Golden prompts of which one has another answer than any model gives.
fn with_a_wrong_answer(world: &World) -> String {
    let folder = world.path("golden");
    copy(&data("shapes-golden"), &folder);
    let text = fs::read_to_string(folder.join("questions.jsonl")).unwrap();
    let (first, rest) = text.split_once('\n').unwrap();
    let mut question: Value = serde_json::from_str(first).unwrap();
    question["answer"] = "a purple horse".into();
    fs::write(folder.join("questions.jsonl"), format!("{question}\n{rest}")).unwrap();
    let own = format!("prompts = \"path:{}\"", folder.display());
    let line = |line: &str| if line.starts_with("prompts = ") { own.clone() } else { line.into() };
    halved(DEMO).lines().map(line).collect::<Vec<String>>().join("\n")
}

#[test]
fn engines_that_fail_their_check_are_answered_by_no_more() {
    let world = World::new("");
    let pipeline = with_a_wrong_answer(&world);
    world.write("p.toml", &pipeline);
    world.run(&["--only", "deployment"]);
    let ended = asked(&world, &[]);
    assert_eq!((ended.code, ended.stdout.trim()), (Some(1), ANSWER), "{}", ended.stderr);
    let last = ended.stderr.lines().last().unwrap();
    let expect = "smelt: the engines failed the reference check (stage verify): ";
    assert!(last.starts_with(expect), "{}", ended.stderr);
    assert_eq!(check(&world), "failed");
    assert!(world.smelt(&["ls"]).stdout.contains("(failed the reference check)"));
    assert_eq!(world.to_build(&[]), ["verify"], "nothing is sealed as verified");
    let again = asked(&world, &[]);
    assert_eq!((again.code, &again.stdout[..]), (Some(1), ""), "{}", again.stderr);
    assert!(again.stderr.starts_with(expect), "{}", again.stderr);
}

#[test]
fn a_server_tells_how_the_check_stands() {
    let world = made(&halved(DEMO));
    let server = Server::of(&world, &["p.toml"], &[]);
    assert!(until(|| server.get("/health").status == 200));
    let check = || server.get("/props").json()["check"].clone();
    // It is looked up behind the first answers.
    assert!(until(|| check() == "open"), "{}", check());
    world.run(&[]);
    assert!(until(|| check() == "passed"), "{}", check());
    // Where nothing was to follow there is nothing to say.
    let whole = Server::start(&[]);
    assert!(whole.get("/props").json()["check"].is_null());
}

#[test]
fn halves_of_a_verification_are_of_the_same_engines() {
    let other = "[stage.other]\nkind = \"llm-engine-build\"\ncheckpoint = \"llm-quant\"\nmax-seq-len = 256\n";
    let pipeline = halved(DEMO);
    let (before, after) = pipeline.split_once("[stage.verify]").unwrap();
    let after = after.replacen("llm = \"llm-engine\"", "llm = \"other\"", 1);
    let world = World::new(&format!("{before}[stage.verify]{after}\n{other}"));
    let ended = world.smelt(&["run", "p.toml", "--only", "verify"]);
    assert_ne!(ended.code, Some(0));
    assert!(ended.stderr.contains("compared the weights of other engines"), "{}", ended.stderr);
    // What compares weights alone computes nothing.
    world.write(
        "p.toml",
        &pipeline.replace("weights-only = true", "weights-only = true\nfull = true"),
    );
    let ended = world.smelt(&["plan", "p.toml"]);
    assert_eq!(ended.code, Some(3));
    assert!(ended.stderr.contains("\"weights-only\" computes nothing"), "{}", ended.stderr);
}
