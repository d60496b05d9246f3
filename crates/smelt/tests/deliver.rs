//! `smelt deliver` by directories.  `cargo xtask fleet` asks a real registry, and has a server follow it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::world::{Ended, World, ended, refused, text_world};

const NAME: &str = "fleet/demo:prod";
const QUESTION: [&str; 3] = ["--max-tokens", "4", "Hello"];

/// A board whose home is its own.
fn on_board(world: &World, arguments: &[&str]) -> Ended {
    let mut command = world.command(arguments);
    ended(command.env("HOME", world.path("")).env_remove("XDG_CONFIG_HOME"))
}

#[track_caller]
fn ok(world: &World, arguments: &[&str]) -> Ended {
    let ended = on_board(world, arguments);
    assert_eq!(ended.code, Some(0), "{arguments:?}: {}", ended.stderr);
    ended
}

#[track_caller]
fn json(world: &World, arguments: &[&str]) -> Value {
    serde_json::from_str(&ok(world, &[arguments, &["--json"]].concat()).stdout).unwrap()
}

/// A machine with a built model and a key, and what that is.
fn builder() -> (World, String) {
    let world = text_world("llama3-tied-tiny");
    ok(&world, &["run", "p.toml"]);
    let key = ok(&world, &["fleet", "keygen"]).stdout.trim_end().to_owned();
    (world, key)
}

#[track_caller]
fn push(world: &World, place: &str) -> Value {
    json(world, &["deliver", "push", "p.toml", place, "--name", NAME])
}

#[track_caller]
fn believe(world: &World, key: &str) {
    ok(world, &["fleet", "trust", key, "--name", "boss", "--for", "delivery"]);
}

fn place(world: &World) -> String {
    format!("oci:{}:prod", world.path("layout").display())
}

fn answer(world: &World, target: &str) -> String {
    ok(world, &[&["chat", target], &QUESTION[..]].concat()).stdout
}

/// What the board calls the deployment that it took.
fn name(world: &World) -> String {
    let listed = json(world, &["ls"]);
    listed["deployments"][0]["ask"][1].as_str().unwrap().to_owned()
}

#[test]
fn a_deployment_is_handed_over_and_judged_again() {
    let ((here, key), board) = (builder(), World::new(""));
    let place = place(&here);
    let pull = ["deliver", "pull", &place];
    refused(&on_board(&board, &pull), 4, "it is no image layout");
    refused(&on_board(&here, &["deliver", "push", "p.toml", &place]), 2, "--name NAME:TAG");
    let pushed = push(&here, &place);
    assert_eq!((&pushed["version"], &pushed["name"]), (&1.into(), &NAME.into()));
    // Equal bytes are the same version.
    assert_eq!(push(&here, &place)["version"], 1);
    refused(&on_board(&board, &pull), 1, "smelt fleet trust");
    // Whoever may build may not deliver.
    ok(&board, &["fleet", "trust", &key, "--name", "boss"]);
    refused(&on_board(&board, &pull), 1, "not trusted for \"delivery\"");
    assert_eq!(fs::read_dir(board.path("cache/out")).unwrap().count(), 0);
    fs::remove_file(board.path(".config/smelt/trust.toml")).unwrap();
    believe(&board, &key);
    let other = [&pull[..], &["--name", "fleet/demo:test"]].concat();
    refused(&on_board(&board, &other), 1, "--name fleet/demo:prod");
    refused(&on_board(&board, &[&pull[..], &["--least", "2"]].concat()), 1, "1 of 2");
    let took = json(&board, &pull);
    assert_eq!((&took["version"], &took["by"][0]), (&1.into(), &"boss".into()));
    assert_eq!(took["fetched_bytes"], pushed["bytes"]);
    let asked = name(&board);
    assert_eq!(answer(&board, &asked), answer(&here, "p.toml"));
    assert_eq!(json(&board, &pull)["fetched_bytes"], 0);
    assert_eq!(json(&board, &["cache", "fsck"])["doubted"], Value::Array(vec![]));
    // A bundle carries what was signed, and is judged by it.
    ok(&board, &["bundle", &asked, "--out", "x.smelt"]);
    let third = World::new("");
    fs::copy(board.path("x.smelt"), third.path("x.smelt")).unwrap();
    for to in [&[][..], &["--to", "engines"]] {
        let unbundle = [&["unbundle", "x.smelt"], to].concat();
        refused(&on_board(&third, &unbundle), 1, "smelt fleet trust");
    }
    assert!(!third.path("engines").exists());
    believe(&third, &key);
    ok(&third, &["unbundle", "x.smelt"]);
    assert_eq!(answer(&third, &name(&third)), answer(&here, "p.toml"));
    ok(&board, &["fleet", "untrust", "boss"]);
    refused(&on_board(&board, &[&["chat", &asked], &QUESTION[..]].concat()), 1, "revoked");
    assert_eq!(on_board(&board, &["cache", "fsck"]).code, Some(1));
}

#[test]
fn a_program_signs_whose_key_lies_in_no_file_of_smelt_s() {
    let (here, board) = (text_world("llama3-tied-tiny"), World::new(""));
    ok(&here, &["run", "p.toml"]);
    let (place, script, secret) = (place(&here), here.path("signer"), here.path("secret.pem"));
    let mut genpkey = Command::new("openssl");
    genpkey.args(["genpkey", "-algorithm", "ed25519", "-out"]).arg(&secret);
    assert!(genpkey.status().unwrap().success());
    let text = "#!/bin/sh\ncd \"$(dirname \"$0\")\"\ncase $1 in\n\
        public) openssl pkey -in secret.pem -pubout ;;\n\
        sign) cat > message; openssl pkeyutl -sign -rawin -inkey secret.pem -in message ;;\nesac\n";
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, Permissions::from_mode(0o700)).unwrap();
    let signer = ["--signer", script.to_str().unwrap()];
    let key = ok(&here, &[&["fleet", "keygen"], &signer[..]].concat()).stdout;
    assert!(!here.path(".config/smelt/fleet.pem").exists());
    let push = [&["deliver", "push", "p.toml", &place, "--name", NAME], &signer[..]].concat();
    ok(&here, &push);
    believe(&board, key.trim_end());
    assert_eq!(json(&board, &["deliver", "pull", &place])["by"][0], "boss");
    // What cannot sign is told before anything is sent.
    fs::write(&script, "#!/bin/sh\necho the token is gone >&2; exit 1\n").unwrap();
    let gone = on_board(&here, &push);
    assert_eq!(gone.code, Some(2), "{}", gone.stderr);
    assert!(gone.stderr.contains("/signer public: exit status: 1"), "{}", gone.stderr);
}

#[test]
fn older_versions_are_refused_unless_they_are_meant() {
    let ((here, key), board) = (builder(), World::new(""));
    let place = place(&here);
    let older = format!("oci:{}:prod", here.path("older").display());
    push(&here, &older);
    let pipeline = here.read("p.toml").replace("max-seq-len = 128", "max-seq-len = 64");
    here.write("p.toml", &pipeline);
    ok(&here, &["run", "p.toml"]);
    assert_eq!(push(&here, &place)["version"], 2);
    believe(&board, &key);
    ok(&board, &["deliver", "pull", &place]);
    let pull = ["deliver", "pull", &older];
    refused(&on_board(&board, &pull), 1, "version 2 was taken before");
    assert_eq!(json(&board, &[&pull[..], &["--allow-older"]].concat())["version"], 1);
    refused(&on_board(&board, &pull), 1, "version 2 was taken before");
    // Another one of the same version, by a machine that knows of no other.
    fs::remove_file(here.path("cache/deliveries")).unwrap();
    let again = format!("oci:{}:prod", here.path("again").display());
    push(&here, &again);
    here.write("p.toml", &pipeline.replace("max-seq-len = 64", "max-seq-len = 128"));
    assert_eq!(push(&here, &again)["version"], 2);
    refused(&on_board(&board, &["deliver", "pull", &again]), 1, "another delivery was taken");
    ok(&board, &["deliver", "pull", &place]);
    // What says what was taken is not to be read: nothing is taken.
    fs::write(board.path("cache/deliveries"), "x\n").unwrap();
    refused(&on_board(&board, &["deliver", "pull", &place]), 1, "is damaged");
}

#[test]
fn what_is_no_delivery_is_refused_in_a_line() {
    let (here, key) = builder();
    let place = place(&here);
    push(&here, &place);
    believe(&here, &key);
    for (arguments, code, words) in [
        (&["deliver", "pull", "demo:prod"][..], 2, "oci://REGISTRY/NAME:TAG"),
        (&["deliver", "pull", "oci://registry/demo"], 2, "it has no tag"),
        (&["deliver", "pull", "oci:nowhere:prod"], 4, "no image layout"),
        (&["deliver", "pull", "oci+http://127.0.0.1:1/demo:prod"], 8, "cannot be reached"),
        (&["deliver", "push", "p.toml", "oci:cache:prod", "--name", NAME], 4, "something else"),
        (&["deliver", "push", "p.toml", "oci:x:prod", "--name", "demo"], 2, "NAME:TAG"),
        (&["serve", "oci://registry/demo"], 2, "it has no tag"),
    ] {
        let ended = on_board(&here, arguments);
        assert!(
            ended.code == Some(code) && ended.stderr.contains(words),
            "{arguments:?}: {}",
            ended.stderr
        );
    }
    let none = format!("oci:{}:test", here.path("layout").display());
    refused(&on_board(&here, &["deliver", "pull", &none]), 1, "has no \"test\"");
    let blobs = fs::read_dir(here.path("layout/blobs/sha256")).unwrap();
    let largest = blobs.flatten().max_by_key(|blob| blob.metadata().unwrap().len()).unwrap();
    damage(&largest.path());
    let board = World::new("");
    believe(&board, &key);
    refused(&on_board(&board, &["deliver", "pull", &place]), 4, "other bytes");
    ok(&board, &["cache", "fsck"]);
}

fn damage(path: &Path) {
    let mut content = fs::read(path).unwrap();
    let middle = content.len() / 2;
    content[middle] ^= 1;
    fs::write(path, content).unwrap();
}
