//! What each way to four bits costs a real decoder, by texts that it was not calibrated with.
//!
//! Needs the network and Python's pip, as `pipelines/smollm2-accuracy.toml` does.  `SMELT_SOAK` asks for all methods: those that go
//! through the weights one by one take half a minute each.

use crate::world::{World, data};
use serde_json::Value;

const PIPELINE: &str = include_str!("../../../pipelines/smollm2-accuracy.toml");

/// Of so many texts, some 500 tokens, means differ from those of all texts by a few percent.
const TEXTS: &str = "6";
const NOISE: f64 = 1.05;

const QUICK: [&str; 4] = ["rtn", "mse", "awq", "best"];
const ALL: [&str; 6] = ["rtn", "mse", "gptq", "act-order", "awq", "best"];

#[test]
fn every_method_beats_plain_rounding_and_none_beats_the_best() {
    let world = World::new(PIPELINE);
    let is_soak = std::env::var_os("SMELT_SOAK").is_some();
    let methods = if is_soak { &ALL[..] } else { &QUICK[..] };
    let deployments = methods.iter().map(|method| format!("deployment.{method}"));
    let deployments: Vec<String> = deployments.chain(["file".to_owned()]).collect();
    world.run(&deployments.iter().flat_map(|name| ["--only", name]).collect::<Vec<_>>());
    let targets: Vec<String> =
        deployments.iter().rev().map(|name| format!("p.toml#{name}")).collect();
    let texts = data("held-out/texts.jsonl").display().to_string();
    let named: Vec<&str> = targets.iter().map(String::as_str).collect();
    let of = ["--questions", &texts, "--limit", TEXTS, "--json"];
    let ended = world.smelt(&[&["bench", "accuracy"], &named[..], &of].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    let divergence = |method: &str| {
        let name = format!("deployment.{method}");
        let targets = document["targets"].as_array().unwrap();
        let target = targets.iter().find(|target| target["target"] == name.as_str()).unwrap();
        target["kl_nats"].as_f64().unwrap()
    };
    let (plain, best) = (divergence("rtn"), divergence("best"));
    for &method in methods.iter().filter(|method| **method != "rtn") {
        let cost = divergence(method);
        assert!(cost < plain, "{method}: {cost}, rtn: {plain}");
        assert!(best < cost * NOISE, "{method}: {cost}, best: {best}");
    }
    // Half of what plain rounding costs.
    assert!(best * 2.0 < plain, "best: {best}, rtn: {plain}");
}
