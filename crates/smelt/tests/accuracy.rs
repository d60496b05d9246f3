//! `smelt bench accuracy` on a tiny model of random weights: what is asked, counted, compared and
//! written.  Its answers are gibberish; how right real answers are is not for this test to say.

use std::fs;

use crate::world::{World, data, random, until};
use serde_json::Value;

const DEMO: &str = include_str!("../../../pipelines/demo.toml");

/// The demo with a second deployment, of the checkpoint's own weights.
const SECOND: &str = r#"
[stage.plain-llm]
kind = "llm-engine-build"
checkpoint = "checkpoint"
max-seq-len = 512

[stage.plain]
kind = "deployment"
checkpoint = "checkpoint"
vision = "vision-engine"
llm = "plain-llm"
"#;

const QUESTIONS: &str = r#"{"task":"see","images":["picture.png"],"question":"What is it?","answer":"a boat"}
{"task":"choose","question":"Which?","choices":["one","two"],"answer":"B"}
{"task":"see","question":"And then?","answer":"nothing"}
"#;

/// Two deployments, built, and questions about a picture.
fn world() -> World {
    let world = World::new(&random(&[DEMO, SECOND].concat()));
    world.write("q.jsonl", QUESTIONS);
    fs::copy(data("picture.png"), world.path("picture.png")).unwrap();
    world
}

#[test]
fn deployments_are_compared_with_the_first() {
    let world = world();
    world.run(&[]);
    let bench = ["bench", "accuracy", "--questions", "q.jsonl", "--json"];
    let targets = ["p.toml#plain", "p.toml#deployment", "p.toml#plain", "--out", "figures"];
    let ended = world.smelt(&[&bench[..], &targets].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    let [plain, int8, again] = &document["targets"].as_array().unwrap()[..] else {
        panic!("{document}");
    };
    assert_eq!(document["baseline"], "p.toml#plain", "named in full, being there twice");
    assert_eq!(int8["target"], "deployment");
    for target in [plain, int8, again] {
        assert_eq!(target["tasks"]["see"]["of"], 2, "{target}");
        assert_eq!(target["exact"]["of"], 3);
        assert!(target["perplexity"].as_f64().unwrap() > 1.0);
        assert!(target["first_token_s"].as_f64().unwrap() > 0.0);
        assert!(target["peak_rss_bytes"].as_u64().unwrap() > 1 << 20);
    }
    assert_eq!((&plain["kl_nats"], &again["kl_nats"]), (&0.0.into(), &0.0.into()));
    assert!(int8["kl_nats"].as_f64().unwrap() > 0.0, "rounding shows");
    assert_eq!(plain["perplexity"], again["perplexity"]);
    assert!(int8["llm_bytes"].as_u64() < plain["llm_bytes"].as_u64());
    let of_file: Value = serde_json::from_str(&world.read("figures/accuracy.json")).unwrap();
    assert_eq!(of_file, document);
    assert_eq!(world.read("figures/accuracy.md").lines().count(), 5);
    assert!(world.read("figures/accuracy.svg").ends_with("</svg>\n"));
    // A pipeline alone is all its deployments; `chat` wants one.
    let table = world.smelt(&[&bench[..4], &["--limit", "1", "p.toml"]].concat());
    assert!(table.stdout.lines().nth(2).unwrap().starts_with("| deployment |"), "{}", table.stdout);
    assert!(table.stdout.lines().nth(3).unwrap().starts_with("| plain | "), "{}", table.stdout);
    let chat = world.smelt(&["chat", "p.toml", "Hi"]);
    assert_eq!(chat.code, Some(2));
    assert!(chat.stderr.contains("p.toml#deployment"), "{}", chat.stderr);
    assert_eq!(world.smelt(&["chat", "p.toml#plain", "Hi"]).code, Some(0));
}

/// What lies in the world's folder.
fn names(world: &World) -> Vec<String> {
    let entries = fs::read_dir(world.path("")).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_stopped_bench_leaves_nothing_behind() {
    let world = world();
    world.run(&[]);
    world.write("many.jsonl", &QUESTIONS.repeat(50_000));
    let before = names(&world);
    let arguments = ["bench", "accuracy", "p.toml#plain", "--questions", "many.jsonl"];
    let mut bench = world.start(&[&arguments[..], &["--out", "figures"]].concat());
    let asks = || names(&world).iter().any(|name| world.path(name).join("logits").exists());
    assert!(until(asks), "the first deployment is asked");
    let pid = nix::unistd::Pid::from_raw(i32::try_from(bench.id()).unwrap());
    // The bench alone, as a service manager would: whoever it started has to notice.
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert_eq!(bench.wait().unwrap().code(), Some(6));
    world.assert_nothing_runs();
    assert_eq!(names(&world), before);
}

#[test]
fn what_building_took_comes_from_the_runs_report() {
    let world = world();
    let report = world.run(&[]);
    world.write("report.json", &report.to_string());
    let bench = ["bench", "accuracy", "p.toml", "--questions", "q.jsonl", "--json", "--report"];
    let ended = world.smelt(&[&bench[..], &["report.json"]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    let stages = report["stages"].as_array().unwrap();
    // `plain` needs neither the quantised decoder nor the proof of the other deployment.
    let needed = ["checkpoint", "vision-onnx", "vision-engine", "plain-llm", "plain"];
    let of_needed = stages.iter().filter(|stage| needed.contains(&stage["name"].as_str().unwrap()));
    let attempts = of_needed.flat_map(|stage| stage["attempts"].as_array().unwrap());
    let most = attempts.map(|attempt| attempt["peak_rss_bytes"].as_u64().unwrap()).max();
    assert_eq!(document["targets"][1]["build_rss_bytes"].as_u64(), most);
    assert!(most > Some(0));
    let refused = world.smelt(&[&bench[..], &["q.jsonl"]].concat());
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("not what `smelt run --json` prints"), "{}", refused.stderr);
}

#[test]
fn what_cannot_be_asked_is_one_line() {
    let world = world();
    let check = |questions: &str, target: &str, code: i32, words: &str| {
        world.write("bad.jsonl", questions);
        let ended = world.smelt(&["bench", "accuracy", target, "--questions", "bad.jsonl"]);
        assert_eq!(ended.code, Some(code), "{}", ended.stderr);
        assert!(ended.stderr.contains(words), "{}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
        assert!(ended.stdout.is_empty());
    };
    check("{\"question\":\"x\",\"answer\":\"y\"}\n{", "p.toml", 2, "bad.jsonl:2: not a question");
    check("", "p.toml", 2, "holds no question");
    check(QUESTIONS, "p.toml#none", 2, "has no deployment \"none\", but deployment, plain");
    check(QUESTIONS, "p.toml", 1, "is not built");
}
