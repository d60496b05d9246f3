//! `smelt bench accuracy` on a tiny model of random weights: what is asked, counted, compared and
//! written.  Its answers are gibberish; how right real answers are is not for this test to say.
//! Stages of kind `accuracy` hold the demo's trained model to bounds.

use std::fs;

use crate::world::{World, anywhere, data, random, statuses, until};
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

/// Behind the demo and its second deployment: its engines by themselves, what may be deployed then, and the
/// deployment as it is.
const GATES: &str = r#"
[stage.gate]
kind = "accuracy"
checkpoint = "checkpoint"
vision = "vision-engine"
llm = "llm-engine"
against = "plain"
verified = "verify"
questions = "path:../tests/data/shapes-golden"
min-exact = "1"
max-kl-nats = "0.1"

[stage.release]
kind = "deployment"
checkpoint = "checkpoint"
vision = "vision-engine"
llm = "llm-engine"
verified = "gate"

[stage.whole]
kind = "accuracy"
deployment = "deployment"
questions = "path:../tests/data/shapes-golden"
limit = 2
max-perplexity = "2"
"#;

/// What an `accuracy` stage has sealed.
fn report(world: &World, stage: &str) -> Value {
    let text = fs::read_to_string(world.out(stage).join("accuracy.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn a_gate_has_the_figures_of_the_command_and_lets_a_deployment_through() {
    let world = World::new(&anywhere(&[DEMO, SECOND, GATES].concat()));
    let built = statuses(&world.run(&[]));
    for sealed in ["gate sealed", "release sealed", "whole sealed"] {
        assert!(built.contains(&sealed.to_owned()), "{built:?}");
    }
    let questions = data("shapes-golden/questions.jsonl").display().to_string();
    let bench = ["bench", "accuracy", "p.toml#plain", "p.toml#deployment", "--json"];
    let ended = world.smelt(&[&bench[..], &["--questions", &questions]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let expect: Value = serde_json::from_str(&ended.stdout).unwrap();
    let gate = report(&world, "gate");
    assert_eq!(gate["baseline"], "baseline");
    for (at, name) in ["baseline", "candidate"].into_iter().enumerate() {
        let (found, expect) = (&gate["targets"][at], &expect["targets"][at]);
        assert_eq!(found["target"], name);
        for figure in ["scheme", "exact", "tasks", "answer_tokens", "vision_bytes", "llm_bytes"] {
            assert_eq!(found[figure], expect[figure], "{figure} of {name}");
        }
        for figure in ["image_tokens", "perplexity", "kl_nats"] {
            // The command's went through text once more.
            let [found, expect] = [found, expect].map(|of| of[figure].as_f64().unwrap());
            assert!((found - expect).abs() < 1e-12, "{figure} of {name}: {found}, {expect}");
        }
    }
    let bounds =
        serde_json::json!({ "min_exact": 1.0, "max_perplexity": null, "max_kl_nats": 0.1 });
    assert_eq!(gate["bounds"], bounds);
    let mut files: Vec<_> = fs::read_dir(world.out("gate"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    assert_eq!(files, ["accuracy.json", "accuracy.md"], "logits and the like are gone");
    let whole = report(&world, "whole");
    assert_eq!(whole["targets"].as_array().unwrap().len(), 1);
    assert_eq!(whole["targets"][0]["exact"]["of"], 2);
    let again = statuses(&world.run(&[]));
    assert!(!again.iter().any(|status| status.ends_with(" sealed")), "{again:?}");
}

#[test]
fn a_gate_that_is_missed_says_by_how_much_and_holds_the_deployment_up() {
    let pipeline = anywhere(&[DEMO, SECOND, GATES].concat());
    let strict = pipeline.replace("max-kl-nats = \"0.1\"", "max-kl-nats = \"0\"");
    assert_ne!(strict, pipeline);
    let world = World::new(&strict);
    let ended = world.smelt(&["run", "p.toml", "--json", "--keep-going"]);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("kl_nats is 0.0"), "{}", ended.stderr);
    assert!(ended.stderr.contains("more than max-kl-nats = 0;"), "{}", ended.stderr);
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    let stages = report["stages"].as_array().unwrap();
    let stage = |name: &str| stages.iter().find(|stage| stage["name"] == name).unwrap();
    assert_eq!(stage("gate")["attempts"][0]["class"], "output-invalid", "{report}");
    assert_ne!(stage("release")["status"], "sealed", "{report}");
    assert_eq!(stage("whole")["status"], "sealed", "{report}");
    // Bounds that no figure can reach are told before anything is built.
    world.write("p.toml", &pipeline.replace("min-exact = \"1\"", "min-exact = \"95\""));
    let refused = world.smelt(&["run", "p.toml"]);
    assert_eq!(refused.code, Some(3), "{}", refused.stderr);
    assert!(refused.stderr.contains("must be a share from \"0\" to \"1\""), "{}", refused.stderr);
}
