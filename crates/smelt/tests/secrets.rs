//! Secrets reach the stage that names them, and nothing that smelt keeps.

use std::fs;
use std::path::Path;

use crate::world::{Ended, World, commands, ended};
use serde_json::Value;

const SECRET: &str = "hf_x7Qm29LkPzVw";

/// Stages of which the first is given the secret; it says it, in pieces too, and ends as `script` does.
fn world(script: &str) -> World {
    let says = "printf 'token hf_x7'; sleep 0.05; echo $(echo $TOKEN | cut -c6-).; echo $TOKEN >&2";
    let first = format!("a::{says}; {script}");
    let text = commands(&[&first, "b:a:cp $SMELT_IN_A/o o"]);
    let kind = "kind = \"command\"\n";
    World::new(&text.replacen(kind, &format!("{kind}secrets = [\"TOKEN\"]\n"), 1))
}

fn run(world: &World, value: Option<&str>) -> Ended {
    let mut smelt = world.command(&["run", "p.toml", "--json"]);
    smelt.env_remove("TOKEN").envs(value.map(|value| ("TOKEN", value)));
    ended(&mut smelt)
}

/// The files below a folder that hold the secret.
fn holding(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(holding(&path));
        } else if fs::read(&path)
            .is_ok_and(|bytes| bytes.windows(SECRET.len()).any(|bytes| bytes == SECRET.as_bytes()))
        {
            found.push(path.display().to_string());
        }
    }
    found
}

#[test]
fn a_secret_reaches_its_stage_and_nothing_that_is_kept() {
    let world = world("printf %s \"$TOKEN\" | wc -c > o");
    let ran = run(&world, Some(SECRET));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let length = format!("{}\n", SECRET.len());
    assert_eq!(fs::read_to_string(world.out("b").join("o")).unwrap(), length);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    let log = report["stages"][0]["attempts"][0]["log"].as_str().unwrap();
    assert_eq!(fs::read_to_string(world.path(log)).unwrap(), "token [secret].\n[secret]\n");
    assert_eq!(holding(&world.path("cache")), [""; 0]);
    assert!(!ran.stdout.contains(SECRET) && !ran.stderr.contains(SECRET));
    // Neither another value nor none makes another result.
    for value in [Some("another"), None] {
        let again = run(&world, value);
        assert_eq!(again.code, Some(0), "{}", again.stderr);
        assert!(again.stdout.contains("\"hit\""), "{}", again.stdout);
    }
}

#[test]
fn a_stage_that_fails_tells_no_secret() {
    let world = world("echo \"error: bad token $TOKEN\" >&2; exit 3");
    let ran = run(&world, Some(SECRET));
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("bad token [secret]"), "{}", ran.stderr);
    assert!(!ran.stdout.contains(SECRET) && !ran.stderr.contains(SECRET));
    assert_eq!(holding(&world.path("cache")), [""; 0]);
    let report = world.smelt(&["report", "--json"]).stdout;
    assert!(!report.contains(SECRET), "{report}");
}

#[test]
fn without_it_nothing_is_begun() {
    let world = world("echo x > o");
    let refused = run(&world, None);
    assert_eq!(refused.code, Some(5), "{}", refused.stderr);
    let words = "stage a is given the secret TOKEN, which is not in smelt's environment";
    assert!(refused.stderr.contains(words), "{}", refused.stderr);
    // A stage that nobody wants needs none, and a plan needs none either.
    assert_eq!(world.smelt(&["plan", "p.toml"]).code, Some(0));
    let pipeline = world.read("p.toml").replace("[\"TOKEN\"]", "[\"hf_x.7\"]");
    world.write("p.toml", &pipeline);
    let odd = world.smelt(&["plan", "p.toml"]);
    assert_eq!(odd.code, Some(3), "{}", odd.stderr);
    assert!(
        odd.stderr.contains("takes names of variables") && !odd.stderr.contains("hf_x.7"),
        "{}",
        odd.stderr
    );
}
