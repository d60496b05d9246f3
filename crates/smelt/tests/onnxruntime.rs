//! Pipelines whose graphs ONNX Runtime executes: built, verified, deployed and asked like any other.
//!
//! Where no library of it is (`SMELT_ONNXRUNTIME`), the test says so; `cargo xtask ci` gives it one.

use crate::world::{World, anywhere, data, statuses};
use smelt_engine::onnxruntime::{VARIABLE, find};

const DEMO: &str = include_str!("../../../pipelines/demo.toml");

fn demo() -> World {
    let backend = "kind = \"engine-build\"\nbackend = \"onnxruntime\"";
    World::new(&anywhere(DEMO).replace("kind = \"engine-build\"", backend))
}

#[test]
fn the_demo_answers_by_onnx_runtime_as_it_does_by_ours() {
    if let Err(why) = find() {
        eprintln!("NOT TESTED: {why}");
        return;
    }
    let world = demo();
    let report = world.run(&[]);
    let sealed = statuses(&report);
    assert!(sealed.contains(&"verify sealed".to_owned()), "{sealed:?}");
    let engine = world.out("vision-engine");
    let says = std::fs::read_to_string(engine.join("engine.json")).unwrap();
    assert!(says.contains("\"kind\": \"onnxruntime\""), "{says}");

    let picture = data("shapes-1.png");
    let question = "What is left of the red circle?";
    let chat = ["chat", "p.toml", "--image", picture.to_str().unwrap(), question];
    let ended = world.smelt(&chat);
    assert_eq!((ended.code, ended.stdout.trim()), (Some(0), "a blue circle"), "{}", ended.stderr);

    // Another device may lack what this one had.
    let mut elsewhere = world.command(&chat);
    let ended = crate::world::ended(elsewhere.env(VARIABLE, world.path("nowhere.so")));
    assert_eq!((ended.code, ended.stderr.lines().count()), (Some(5), 1), "{}", ended.stderr);
    assert!(ended.stderr.contains("SMELT_ONNXRUNTIME names "), "{}", ended.stderr);
}

#[test]
fn a_build_without_the_library_says_what_to_do() {
    let world = demo();
    let mut run = world.command(&["run", "p.toml", "--only", "vision-engine"]);
    let ended = crate::world::ended(run.env(VARIABLE, world.path("nowhere.so")));
    assert_eq!(ended.code, Some(5), "{}", ended.stderr);
    assert!(ended.stderr.contains("SMELT_ONNXRUNTIME names "), "{}", ended.stderr);
}
