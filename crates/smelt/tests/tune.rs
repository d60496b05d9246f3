//! Tuning: what it seals, that engines keep it, and what they say on another machine.

use std::fs;

use crate::world::{World, random, statuses};
use serde_json::Value;

const DEMO: &str = include_str!("../../../pipelines/demo.toml");

fn tuned() -> World {
    let mut demo = random(DEMO);
    for kind in ["kind = \"llm-engine-build\"", "kind = \"engine-build\""] {
        demo = demo.replace(kind, &format!("{kind}\ntactics = \"tune\""));
    }
    World::new(&format!("{demo}\n[stage.tune]\nkind = \"tune\"\n"))
}

#[test]
fn an_engine_keeps_the_tactics_it_was_built_with() {
    let world = tuned();
    let report = world.run(&[]);
    assert!(statuses(&report).contains(&"verify sealed".to_owned()), "{report}");
    let read = |stage: &str, file: &str| -> Value {
        let text = fs::read_to_string(world.out(stage).join(file)).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    let tactics = read("tune", "tactics.json");
    assert!(tactics["threads"].as_u64().unwrap() >= 1, "{tactics}");
    let machine = &tactics["machine"];
    assert!(machine["paths"].as_array().unwrap().contains(&tactics["path"]), "{tactics}");
    let logs = fs::read_dir(world.path("cache/logs")).unwrap();
    let log = logs.map(|run| run.unwrap().path().join("tune.1.log")).find(|log| log.exists());
    let log = fs::read_to_string(log.unwrap()).unwrap();
    let all = log.matches("] a step by").count() + log.matches("] a token among").count();
    assert!(log.contains("[1/") && log.contains(&format!("[{all}/{all}] a token among")), "{log}");
    for engine in ["llm-engine", "vision-engine"] {
        assert_eq!(read(engine, "engine.json")["engine"]["tactics"], tactics, "{engine}");
    }
    // What it would have kept for a later attempt is gone.
    assert_eq!(fs::read_dir(world.path("cache/kept")).unwrap().count(), 0);

    let again = world.run(&[]);
    assert!(statuses(&again).contains(&"tune hit".to_owned()), "{again}");
    let chat = world.smelt(&["chat", "p.toml", "Hello", "--max-tokens", "2"]);
    assert_eq!(chat.code, Some(0), "{}", chat.stderr);
    assert!(!chat.stderr.contains("untuned"), "{}", chat.stderr);
}

#[test]
fn tactics_of_another_machine_are_not_followed_and_chat_says_so() {
    let world = World::new(&random(DEMO).replace(
        "kind = \"llm-engine-build\"",
        "kind = \"llm-engine-build\"\ntactics = \"elsewhere\"",
    ));
    let machine = r#"{"arch":"riscv64","paths":["plain"],"cores":3,"caches":[]}"#;
    let tactics = format!(
        r#"{{"format":1,"machine":{machine},"path":"plain","threads":3,"chunk_tokens":32}}"#
    );
    let make = format!("cat > tactics.json <<'E'\\n{}\\nE", tactics.replace('"', "\\\""));
    let stage = format!(
        "\n[stage.elsewhere]\nkind = \"command\"\noutputs = [\"tactics.json\"]\nargv = [\"sh\", \"-c\", \"{make}\"]\n"
    );
    world.write("p.toml", &(world.read("p.toml") + &stage));
    world.run(&[]);
    let chat = world.smelt(&["chat", "p.toml", "Hello", "--max-tokens", "2"]);
    assert_eq!(chat.code, Some(0), "{}", chat.stderr);
    assert!(chat.stderr.contains("architecture riscv64"), "{}", chat.stderr);
}

#[test]
fn what_is_no_tactics_is_refused() {
    let world = World::new(&random(DEMO).replace(
        "kind = \"llm-engine-build\"",
        "kind = \"llm-engine-build\"\ntactics = \"wrong\"",
    ));
    let stage = "\n[stage.wrong]\nkind = \"command\"\noutputs = [\"tactics.json\"]\nargv = [\"sh\", \"-c\", \"echo '{}' > tactics.json\"]\n";
    world.write("p.toml", &(world.read("p.toml") + stage));
    let run = world.smelt(&["run", "p.toml", "--only", "llm-engine"]);
    assert_eq!(run.code, Some(4), "{}", run.stderr);
    assert!(run.stderr.contains("holds no tactics of this version"), "{}", run.stderr);
}
