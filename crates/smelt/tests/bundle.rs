//! `smelt bundle` and `smelt unbundle`: what was built here answers there.

use std::fs::{self, OpenOptions};
use std::net::TcpListener;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::world::{Ended, World, ended, statuses, text_world};

const QUESTION: [&str; 4] = ["chat", "--max-tokens", "4", "Hello"];

/// A world in which a model that reads is built.
fn built() -> World {
    let world = text_world("llama3-tied-tiny");
    world.run(&[]);
    world
}

#[track_caller]
fn done(ended: &Ended) {
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[track_caller]
fn bundled(world: &World, more: &[&str]) -> Ended {
    let ended = world.smelt(&[&["bundle", "p.toml", "--out", "x.smelt"], more].concat());
    done(&ended);
    ended
}

/// The answer of a deployment by the words that name it.
#[track_caller]
fn answer(world: &World, target: &str) -> String {
    let [chat, rest @ ..] = QUESTION;
    let ended = world.smelt(&[&[chat, target], &rest[..]].concat());
    done(&ended);
    ended.stdout
}

#[test]
fn a_deployment_answers_in_another_store_by_its_name_and_without_a_store() {
    let (here, there) = (built(), World::new(""));
    bundled(&here, &[]);
    fs::copy(here.path("x.smelt"), there.path("x.smelt")).unwrap();
    let expect = answer(&here, "p.toml");
    // Without a store: a directory that may be anywhere.
    let ended = there.smelt(&["unbundle", "x.smelt", "--to", "engines"]);
    done(&ended);
    assert!(!there.path("cache").exists());
    let named = ended.stderr.lines().find_map(|line| line.strip_prefix("ask it by: smelt chat "));
    let named = named.unwrap_or_else(|| panic!("{}", ended.stderr)).to_owned();
    fs::rename(there.path("engines"), there.path("elsewhere")).unwrap();
    assert_eq!(answer(&there, &named.replace("engines", "elsewhere")), expect);
    // In a store, by the name that `ls` gives it.
    let ended = there.smelt(&["unbundle", "x.smelt"]);
    done(&ended);
    let listed: Value = serde_json::from_str(&there.smelt(&["ls", "--json"]).stdout).unwrap();
    let deployment = &listed["deployments"][0];
    let name = deployment["ask"][1].as_str().unwrap();
    assert!(ended.stderr.contains(&format!("ask it by: smelt chat {name}")), "{}", ended.stderr);
    assert_eq!(answer(&there, name), expect);
    let check = there.smelt(&["cache", "fsck"]);
    assert_eq!(check.code, Some(0), "{}{}", check.stdout, check.stderr);
    // Once more is nothing to do, and the same bundle can be made of it.
    done(&there.smelt(&["unbundle", "x.smelt"]));
    done(&there.smelt(&["bundle", name, "--out", "again.smelt"]));
    let listed = |name: &str| there.smelt(&["unbundle", "--list", "--json", name]).stdout;
    assert_eq!(listed("again.smelt"), listed("x.smelt"));
}

/// Of all that is built every stage is a hit where the sources are the same.
#[test]
fn a_run_finds_what_was_unbundled() {
    let (here, there) = (built(), text_world("llama3-tied-tiny"));
    bundled(&here, &["--all"]);
    fs::copy(here.path("x.smelt"), there.path("x.smelt")).unwrap();
    done(&there.smelt(&["unbundle", "x.smelt"]));
    let statuses = statuses(&there.run(&[]));
    assert!(statuses.iter().all(|status| status.ends_with(" hit")), "{statuses:?}");
    // Single stages go as well, and what is in no store does not.
    done(&here.smelt(&["bundle", "p.toml#llm-engine", "--out", "one.smelt"]));
    let listed = here.smelt(&["unbundle", "--list", "one.smelt"]).stdout;
    assert!(listed.contains("llm-engine") && listed.lines().count() == 2, "{listed}");
}

const SIDES: &str = r#"
smelt = 1
name = "sides"
[stage.checkpoint]
kind = "source"
from = "synthetic:internvl3-tiny"
[stage.quant]
kind = "quantize"
checkpoint = "checkpoint"
scheme = "int8"
on = "host"
[stage.engine]
kind = "llm-engine-build"
checkpoint = "quant"
on = "device"
[stage.report]
kind = "verify"
llm = "engine"
against = "checkpoint"
weights = "quant"
on = "host"
"#;

/// Brings the output of a stage from one side to the other.
fn carry(from: &World, to: &World, stage: &str) {
    let stage = format!("p.toml#{stage}");
    done(&from.smelt(&["bundle", &stage, "--out", "side.smelt"]));
    fs::rename(from.path("side.smelt"), to.path("side.smelt")).unwrap();
    done(&to.smelt(&["unbundle", "side.smelt"]));
    fs::remove_file(to.path("side.smelt")).unwrap();
}

/// The device never has the checkpoint, and the host only what it verifies.
#[test]
fn each_side_builds_what_is_its_own() {
    let (host, device) = (World::new(SIDES), World::new(SIDES));
    let on = |world: &World, side: &str| {
        let ended = world.smelt(&["run", "p.toml", "--json", "--on", side]);
        let report: Value = serde_json::from_str(&ended.stdout).unwrap_or_default();
        let statuses = if report.is_null() { Vec::new() } else { statuses(&report) };
        (ended, statuses)
    };
    // Nothing came yet: nothing is begun, and nothing is fetched.
    let (ended, _) = on(&device, "device");
    assert_eq!(ended.code, Some(5), "{}", ended.stderr);
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    for words in ["engine waits for what the host builds", "smelt bundle p.toml#quant --out"] {
        assert!(ended.stderr.contains(words), "{}", ended.stderr);
    }
    // What waits for the device does not keep the host from the rest.
    let (ended, found) = on(&host, "host");
    assert_eq!(
        (ended.code, found),
        (Some(5), vec!["checkpoint sealed".into(), "quant sealed".into()])
    );
    assert!(ended.stderr.contains("report waits for what the device builds"), "{}", ended.stderr);
    carry(&host, &device, "quant");
    let (ended, found) = on(&device, "device");
    assert_eq!((ended.code, found), (Some(0), vec!["quant hit".into(), "engine sealed".into()]));
    let (ended, found) = on(&device, "device");
    assert_eq!((ended.code, found), (Some(0), vec!["quant hit".into(), "engine hit".into()]));
    carry(&device, &host, "engine");
    let (ended, found) = on(&host, "host");
    let expect = ["checkpoint hit", "quant hit", "engine hit", "report sealed"];
    assert_eq!((ended.code, found), (Some(0), expect.map(str::to_owned).to_vec()));
    // Without sides all is built, as ever, and keys know nothing of them.
    assert_eq!(device.run(&[])["status"], "ok");
    let all = host.run(&[]);
    assert!(statuses(&all).iter().all(|status| status.ends_with(" hit")), "{all}");
    let ended = host.smelt(&["run", "p.toml", "--on", "board"]);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    let none = World::new(&SIDES.replace("on = \"device\"\n", ""));
    let ended = none.smelt(&["run", "p.toml", "--on", "device"]);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("no stage of p.toml is the device's"), "{}", ended.stderr);
}

/// Each side has a program of its own, and the host pictures and a checkpoint besides.
const OWN_TOOLS: &str = r#"
smelt = 1
name = "tools"
[stage.checkpoint]
kind = "source"
from = "path:model"
[stage.export]
kind = "command"
argv = ["sh", "-c", "date +%s.%N > o"]
tool = ["./exporter"]
inputs = ["checkpoint", "path:pictures"]
outputs = ["o"]
on = "host"
[stage.engine]
kind = "command"
argv = ["sh", "-c", "cp $SMELT_IN_EXPORT/o e"]
tool = ["./builder"]
inputs = ["export"]
outputs = ["e"]
on = "device"
[stage.report]
kind = "command"
argv = ["sh", "-c", "cp $SMELT_IN_ENGINE/e r"]
tool = ["./exporter"]
inputs = ["engine"]
outputs = ["r"]
on = "host"
"#;

/// What one side names and only that side has does not keep the other from its own.
#[test]
fn a_side_needs_nothing_of_what_only_the_other_names() {
    let (host, device) = (World::new(OWN_TOOLS), World::new(OWN_TOOLS));
    ["pictures", "model"].iter().for_each(|dir| fs::create_dir(host.path(dir)).unwrap());
    host.write("exporter", "#!/bin/sh\n# 1\n");
    host.write("pictures/a.txt", "a");
    host.write("model/config.json", "{}");
    device.write("builder", "#!/bin/sh\n");
    let on = |world: &World, side: &str| world.smelt(&["run", "p.toml", "--on", side]);
    for (world, side) in [(&host, "host"), (&device, "device")] {
        let ended = world.smelt(&["doctor", "p.toml", "--on", side]);
        done(&ended);
        assert!(
            ended.stdout.contains(&format!("(command, the {side}'s) needs")),
            "{}",
            ended.stdout
        );
        assert_eq!(world.smelt(&["doctor", "p.toml"]).code, Some(1));
    }
    // Whoever builds all of it needs all of it.
    for (world, code, lacks) in [(&host, 5, "./builder"), (&device, 3, "path:model")] {
        let ended = world.smelt(&["run", "p.toml"]);
        assert_eq!(ended.code, Some(code), "{}", ended.stderr);
        assert!(ended.stderr.contains(lacks), "{}", ended.stderr);
    }
    let brought = || {
        let ended = on(&host, "host");
        assert_eq!(ended.code, Some(5), "{}", ended.stderr);
        assert!(ended.stderr.contains("report waits for what the device"), "{}", ended.stderr);
        carry(&host, &device, "export");
        done(&on(&device, "device"));
        let at = |world: &World, stage: &str, file: &str| {
            let place = world.smelt(&["out", "p.toml", stage]);
            done(&place);
            fs::read_to_string(Path::new(place.stdout.trim()).join(file)).unwrap()
        };
        let exported = at(&host, "export", "o");
        assert_eq!(at(&device, "export", "o"), exported);
        assert_eq!(at(&device, "engine", "e"), exported);
        carry(&device, &host, "engine");
        done(&on(&host, "host"));
        assert_eq!(at(&host, "report", "r"), exported);
        exported
    };
    let first = brought();
    // Of another program of the host's the device hears by what comes, and builds anew of that.  What the host has of
    // the device's was made of something else, and waits.
    host.write("exporter", "#!/bin/sh\n# 2\n");
    assert_ne!(brought(), first);
    for (world, side) in [(&host, "host"), (&device, "device")] {
        let ended = world.smelt(&["run", "p.toml", "--on", side]);
        assert!(!ended.stderr.contains("started"), "{}", ended.stderr);
        done(&ended);
    }
    // A program of its own is missed.
    fs::remove_file(device.path("builder")).unwrap();
    let ended = on(&device, "device");
    assert_eq!(ended.code, Some(5), "{}", ended.stderr);
    assert!(ended.stderr.contains("there is no tool \"./builder\" here"), "{}", ended.stderr);
    // A plan says what it cannot know, and why.
    let plan = device.smelt(&["plan", "p.toml"]);
    done(&plan);
    assert!(plan.stdout.contains("there is no tool \"./exporter\" here"), "{}", plan.stdout);
}

/// A board that answers: its deployment has tokenizer and template of what was quantised, and the checkpoint stays away.
const ANSWERING: &str = r#"
smelt = 1
name = "answering"
[stage.checkpoint]
kind = "source"
from = "synthetic:internvl3-tiny"
[stage.quant]
kind = "quantize"
checkpoint = "checkpoint"
scheme = "int8"
on = "host"
[stage.vision-onnx]
kind = "onnx-export"
checkpoint = "checkpoint"
part = "vision"
on = "host"
[stage.vision]
kind = "engine-build"
onnx = "vision-onnx"
on = "device"
[stage.llm]
kind = "llm-engine-build"
checkpoint = "quant"
max-seq-len = 512
on = "device"
[stage.deployment]
kind = "deployment"
checkpoint = "quant"
vision = "vision"
llm = "llm"
on = "device"
"#;

#[test]
fn a_board_answers_without_the_checkpoint() {
    let (host, device) = (World::new(ANSWERING), World::new(ANSWERING));
    done(&host.smelt(&["run", "p.toml", "--on", "host"]));
    ["quant", "vision-onnx"].iter().for_each(|stage| carry(&host, &device, stage));
    let ended = device.smelt(&["run", "p.toml", "--on", "device"]);
    done(&ended);
    assert!(!ended.stderr.contains("checkpoint"), "{}", ended.stderr);
    // A collection leaves all that this side has made, and what it was made of.
    device.smelt(&["cache", "gc", "--max-size", "1KiB"]);
    let ended = device.smelt(&["run", "p.toml", "--on", "device"]);
    done(&ended);
    assert!(!ended.stderr.contains("started"), "{}", ended.stderr);
    let answer = answer(&device, "p.toml");
    // All on one machine, with the checkpoint itself.
    let whole =
        ANSWERING.replace("checkpoint = \"quant\"\nvision", "checkpoint = \"checkpoint\"\nvision");
    host.write("p.toml", &whole);
    host.run(&[]);
    assert_eq!(self::answer(&host, "p.toml"), answer);
}

/// A board has no network: it asks no hub for what its host alone fetches, and waits for no answer.
#[test]
fn a_hub_is_asked_by_the_side_that_fetches() {
    let world = World::new(&SIDES.replace("synthetic:internvl3-tiny", "hf:acme/none"));
    let run = |side: &str, hub: &str| {
        let mut smelt = world.command(&["run", "p.toml", "--on", side]);
        ended(smelt.env("HF_ENDPOINT", hub).env("HF_HOME", world.path("hf")))
    };
    let hub = TcpListener::bind("127.0.0.1:0").unwrap();
    hub.set_nonblocking(true).unwrap();
    let device = run("device", &format!("http://{}", hub.local_addr().unwrap()));
    assert!(hub.accept().is_err(), "nobody asked");
    assert_eq!(device.code, Some(5), "{}", device.stderr);
    assert!(device.stderr.contains("engine waits for what the host builds"), "{}", device.stderr);
    // Nobody listens there.
    let host = run("host", "http://127.0.0.1:9");
    assert_eq!(host.code, Some(1), "{}", host.stderr);
    assert!(host.stderr.contains("hf:acme/none: http://127.0.0.1:9/"), "{}", host.stderr);
    assert_eq!(host.stderr.lines().count(), 1, "{}", host.stderr);
}

#[test]
fn what_cannot_be_bundled_or_unpacked_is_one_line() {
    let world = built();
    bundled(&world, &[]);
    let whole = fs::read(world.path("x.smelt")).unwrap();
    let check = |arguments: &[&str], code: i32, words: &str| {
        let ended = world.smelt(arguments);
        assert_eq!(ended.code, Some(code), "{arguments:?}: {}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
        assert!(ended.stderr.contains(words), "{words}: {}", ended.stderr);
    };
    check(&["unbundle", "nowhere"], 1, "cannot read nowhere");
    check(&["unbundle", "p.toml"], 4, "is no bundle of this version");
    world.write("half.smelt", "");
    fs::write(world.path("half.smelt"), &whole[..whole.len() - 1]).unwrap();
    check(&["unbundle", "half.smelt"], 4, "copy the rest, as by rsync --append");
    check(&["bundle", "nothing", "--out", "y"], 2, "no model is called \"nothing\"");
    check(&["bundle", "p.toml#nothing", "--out", "y"], 2, "nothing");
    world.write("y.smelt", "mine");
    check(&["bundle", "p.toml", "--out", "y.smelt"], 2, "is there already, with other content");
    assert_eq!(world.read("y.smelt"), "mine");
    check(&["bundle", "p.toml", "--set", "nothing=1", "--out", "z"], 2, "nothing");
    // A flipped bit of a weight, into a store and into a folder: neither has anything of that output.
    let file = OpenOptions::new().write(true).open(world.path("x.smelt")).unwrap();
    let at = whole.len() as u64 / 2;
    file.write_all_at(&[whole[at as usize] ^ 1], at).unwrap();
    let other = World::new("");
    for more in [&["--to", "engines"][..], &[]] {
        fs::copy(world.path("x.smelt"), other.path("x.smelt")).unwrap();
        let ended = other.smelt(&[&["unbundle", "x.smelt"], more].concat());
        assert_eq!(ended.code, Some(4), "{}", ended.stderr);
        assert!(ended.stderr.contains("is damaged; copy the bundle again"), "{}", ended.stderr);
    }
    assert_eq!(fs::read_dir(other.path("engines")).unwrap().count(), 0);
    let listed: Value =
        serde_json::from_str(&other.smelt(&["cache", "ls", "--json"]).stdout).unwrap();
    assert_eq!(listed["outputs"].as_array().unwrap().len(), 0);
}

/// Killed at moments spread over its whole time, bundling and unpacking end by the same command in the same result.
#[test]
fn what_is_killed_goes_on() {
    let world = built();
    // Something that takes a while to write and to read.
    let blob = vec![7; 24 << 20];
    fs::write(world.path("blob"), blob).unwrap();
    world.write(
        "large.toml",
        "smelt = 1\nname = \"l\"\n[stage.a]\nkind = \"command\"\ninputs = [\"path:blob\"]\n\
         argv = [\"sh\", \"-c\", \"for i in 1 2 3; do cp $SMELT_INPUTS o$i; done\"]\noutputs = [\"o1\", \"o2\", \"o3\"]\n",
    );
    done(&world.smelt(&["run", "large.toml"]));
    let whole = ["bundle", "large.toml", "--out", "whole.smelt"];
    done(&world.smelt(&whole));
    let expect = fs::read(world.path("whole.smelt")).unwrap();
    let killed = |arguments: &[&str], ms: u64| {
        let mut child = world.start(arguments);
        thread::sleep(Duration::from_millis(ms));
        let _ = child.kill();
        child.wait().unwrap();
    };
    for ms in (5..120).step_by(23) {
        let _ = fs::remove_file(world.path("x.smelt"));
        let bundle = ["bundle", "large.toml", "--out", "x.smelt"];
        killed(&bundle, ms);
        done(&world.smelt(&bundle));
        assert!(fs::read(world.path("x.smelt")).unwrap() == expect, "{ms} ms");
    }
    for ms in (5..200).step_by(39) {
        for place in ["to", "store"] {
            let (folder, cache) = (format!("{place}-{ms}"), format!("cache-{ms}"));
            let arguments = ["unbundle", "whole.smelt", "--to", &folder];
            let arguments = if place == "to" { &arguments[..] } else { &arguments[..2] };
            let run = |is_killed: bool| {
                let mut command = world.command(arguments);
                command.env("SMELT_CACHE", world.path(&cache));
                if !is_killed {
                    return done(&crate::world::ended(&mut command));
                }
                let mut child = command.spawn().unwrap();
                thread::sleep(Duration::from_millis(ms));
                let _ = child.kill();
                child.wait().unwrap();
            };
            run(true);
            run(false);
            let root =
                if place == "to" { world.path(&folder) } else { world.path(&cache).join("out") };
            assert_eq!(files(&root), 3, "{place} {ms} ms");
        }
    }
}

/// How many files of the large one lie below the outputs of `root`, beside nothing else.
fn files(root: &Path) -> usize {
    let outputs: Vec<_> = fs::read_dir(root).unwrap().flatten().collect();
    assert_eq!(outputs.len(), 1, "{outputs:?}");
    fs::read_dir(outputs[0].path()).unwrap().count()
}

/// What answers needs no record of who built it: a deployment's folder alone is in no store.
#[test]
fn a_folder_that_was_unpacked_is_no_store() {
    let world = built();
    bundled(&world, &[]);
    done(&world.smelt(&["unbundle", "x.smelt", "--to", "engines"]));
    let other = World::new("");
    let folders = fs::read_dir(world.path("engines")).unwrap().flatten();
    let deployment =
        folders.map(|entry| entry.path()).find(|dir| dir.join("deployment.json").exists());
    let ended = other.smelt(&["bundle", deployment.unwrap().to_str().unwrap(), "--out", "y"]);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("is in no store"), "{}", ended.stderr);
}
