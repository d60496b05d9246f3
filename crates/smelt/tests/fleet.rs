//! `smelt fleet`, and runs that share what they built, where no server answers.  `cargo xtask fleet` asks a real one.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::world::{Ended, World, ended, refused, text_world};

/// Where nobody listens.
fn nowhere() -> String {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    format!("grpc://127.0.0.1:{port}")
}

/// A board whose home is its own.
fn on_board(world: &World, arguments: &[&str]) -> Ended {
    let mut command = world.command(arguments);
    ended(command.env("HOME", world.path("")).env_remove("XDG_CONFIG_HOME"))
}

#[test]
fn a_key_is_made_once_and_for_its_owner_alone() {
    let world = World::new("");
    let made = on_board(&world, &["fleet", "keygen"]);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let key = made.stdout.trim_end();
    assert!(key.starts_with("ed25519:") && made.stderr.contains(&format!("fleet trust {key}")));
    let path = world.path(".config/smelt/fleet.pem");
    let (mode, content) =
        (fs::metadata(&path).unwrap().permissions().mode(), fs::read(&path).unwrap());
    assert_eq!(mode & 0o777, 0o600);
    refused(&on_board(&world, &["fleet", "keygen"]), 2, "is there already");
    assert_eq!(fs::read(&path).unwrap(), content);
}

#[test]
fn keys_are_believed_and_revoked_by_name() {
    let world = World::new("");
    let key = on_board(&world, &["fleet", "keygen"]).stdout.trim_end().to_owned();
    let trust = |more: &[&str]| on_board(&world, &[&["fleet", "trust", &key], more].concat());
    let given = ["--name", "bench", "--for", "device", "--fact", "sm=87", "--until", "2027-06-01"];
    assert_eq!(trust(&given).code, Some(0));
    let file = world.read(".config/smelt/trust.toml");
    for line in [
        "name = \"bench\"",
        &format!("key = \"{key}\""),
        "for = [\"device\"]",
        "until = \"2027-06-01\"",
    ] {
        assert!(file.contains(line), "{line}: {file}");
    }
    refused(&trust(&["--name", "other"]), 2, "bench");
    refused(&trust(&["--name", "other", "--fact", "sm"]), 2, "NAME=VALUE");
    refused(&trust(&["--name", "other", "--until", "tomorrow"]), 2, "2027-06-01");
    refused(&on_board(&world, &["fleet", "trust", "rsa:AAAA", "--name", "other"]), 2, "ed25519");
    refused(&on_board(&world, &["fleet", "untrust", "nobody"]), 2, "there are: bench");
    assert_eq!(world.read(".config/smelt/trust.toml"), file);
    assert_eq!(on_board(&world, &["fleet", "untrust", "bench"]).code, Some(0));
    assert!(world.read(".config/smelt/trust.toml").contains("revoked = "));
    world.write(".config/smelt/trust.toml", "[[key]]\nname = 1\n");
    refused(&on_board(&world, &["fleet", "untrust", "bench"]), 2, "trust.toml: line 2");
}

/// A stage that any machine builds, and one that is built where CUDA is of a version that nobody has.
const ELSEWHERE: &str = "smelt = 1\nname = \"far\"\n\
    [stage.near]\nkind = \"command\"\nargv = [\"sh\", \"-c\", \"echo near > o\"]\noutputs = [\"o\"]\n\
    [stage.far]\nkind = \"command\"\nargv = [\"/opt/nobody/has/this\"]\noutputs = [\"o\"]\ninputs = [\"near\"]\n\
    where = { cuda = \"0.1\" }\n";

#[test]
fn what_is_built_elsewhere_is_not_built_here_and_says_who_would() {
    let world = World::new(ELSEWHERE);
    let planned = on_board(&world, &["plan", "p.toml"]);
    assert_eq!(
        planned.code,
        Some(0),
        "a tool of another machine is not looked for: {}",
        planned.stderr
    );
    assert!(planned.stdout.contains("built where cuda = \"0.1\""), "{}", planned.stdout);
    let run = on_board(&world, &["run", "p.toml"]);
    assert_eq!(run.code, Some(5), "{}", run.stderr);
    let said = "stage far: not started: it is built where cuda = \"0.1\", which is not true here: --worker ssh://HOST names";
    assert!(run.stderr.contains(said), "{}", run.stderr);
    assert!(world.out("near").join("o").exists(), "what needs no other machine is built");
    // A server that is gone is no reason to build it here.
    assert_eq!(on_board(&world, &["fleet", "keygen"]).code, Some(0));
    let gone = on_board(&world, &["run", "p.toml", "--fleet", &nowhere()]);
    assert_eq!(gone.code, Some(1), "{}", gone.stderr);
    assert!(gone.stderr.contains("smelt: stage far: "), "{}", gone.stderr);
    refused(&on_board(&world, &["run", "p.toml", "--check", "far"]), 2, "checked there");
    let doctor = on_board(&world, &["doctor", "p.toml"]);
    assert!(doctor.stdout.contains("a worker with cuda = \"0.1\""), "{}", doctor.stdout);
}

#[test]
fn a_worker_works_for_those_alone_that_are_named() {
    let world = World::new("");
    let worker = ["worker", "--fleet", &nowhere()];
    refused(&on_board(&world, &worker), 2, "smelt fleet keygen");
    let key = on_board(&world, &["fleet", "keygen"]).stdout.trim_end().to_owned();
    refused(&on_board(&world, &worker), 2, "--for work");
    // Whoever is believed to build need not be believed to give work.
    let trust = |name: &str, what: &str| {
        on_board(&world, &["fleet", "trust", &key, "--name", name, "--for", what])
    };
    assert_eq!(trust("builder", "device,portable").code, Some(0));
    refused(&on_board(&world, &worker), 2, "--for work");
    assert_eq!(on_board(&world, &["fleet", "untrust", "builder"]).code, Some(0));
    let other = world.path("boss.pem").display().to_string();
    let made = on_board(&world, &["fleet", "keygen", "--out", &other]);
    let boss = made.stdout.trim_end();
    let trusted = on_board(&world, &["fleet", "trust", boss, "--name", "boss", "--for", "work"]);
    assert_eq!(trusted.code, Some(0), "{}", trusted.stderr);
    refused(&on_board(&world, &worker), 8, "grpc://127.0.0.1");
}

#[test]
fn a_peer_that_cannot_listen_says_so_and_one_that_is_stopped_ends_well() {
    let world = World::new("");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let peer = ["fleet", "peer", "--listen", &address];
    refused(&on_board(&world, &peer), 1, "--listen names another address");
    for odd in [["fleet", "peer", "--listen", "nowhere"], ["fleet", "peer", "--rate", "fast"]] {
        assert_eq!(on_board(&world, &odd).code, Some(2));
    }
    let odd = ["cache", "pull", "p.toml", "--fleet", "grpc://h:1", "--fleet-peers", "board"];
    let said = on_board(&world, &odd);
    assert_eq!(said.code, Some(2));
    assert!(said.stderr.contains("write HOST:PORT"), "{}", said.stderr);
    drop(taken);
    let mut command = world.command(&peer);
    let child = command.stderr(Stdio::piped()).spawn().unwrap();
    let begin = Instant::now();
    while TcpStream::connect(&address).is_err() {
        assert!(begin.elapsed() < Duration::from_secs(30), "it does not listen");
        thread::sleep(Duration::from_millis(20));
    }
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success() && said.contains("sent 0 chunks"), "{said}");
}

#[test]
fn a_server_that_is_gone_holds_no_run_up() {
    let world = text_world("llama3-tied-tiny");
    let (server, begin) = (nowhere(), Instant::now());
    refused(&on_board(&world, &["fleet", "status", "--fleet", &server]), 8, &server);
    refused(&on_board(&world, &["cache", "pull", "p.toml", "--fleet", &server]), 8, &server);
    let run = on_board(&world, &["run", "p.toml", "--json", "--fleet", &server]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let told = run.stderr.lines().filter(|line| line.contains("the fleet is not asked")).count();
    assert_eq!(told, 1, "{}", run.stderr);
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(report["status"], "ok");
    assert!(begin.elapsed() < Duration::from_secs(60));
}

#[test]
fn what_the_fleet_gave_is_told_without_its_server() {
    let world = text_world("llama3-tied-tiny");
    let server = nowhere();
    let status = |more: &[&str]| {
        on_board(&world, &[&["fleet", "status", "--fleet", &server], more].concat())
    };
    refused(&on_board(&world, &["fleet", "status"]), 2, "--fleet grpc://HOST:PORT");
    let said = status(&[]);
    refused(&said, 8, &server);
    assert!(said.stdout.starts_with("here: 0 hits, 0 misses"), "{}", said.stdout);
    // Asking made no store.
    assert!(!world.path("cache").exists());
    world.run(&[]);
    let counts = "{\"hits\":3,\"server_bytes\":2048}\n";
    world.write("cache/counts", counts);
    let said = status(&["--json"]);
    refused(&said, 8, &server);
    let told: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!((&told["counts"]["hits"], &told["answers"]), (&3.into(), &false.into()));
    let metrics = status(&["--metrics"]);
    assert_eq!(metrics.code, Some(0), "{}", metrics.stderr);
    assert!(metrics.stdout.contains("smelt_fleet_hits_total 3\n"), "{}", metrics.stdout);
    assert!(metrics.stdout.contains("} 0\n"), "{}", metrics.stdout);
    assert_eq!(status(&["--metrics", "--json"]).code, Some(2));
    world.write("cache/counts", "{\"hits\":");
    let damaged = status(&["--metrics"]);
    assert!(damaged.stderr.contains("begins anew"), "{}", damaged.stderr);
    assert!(damaged.stdout.contains("smelt_fleet_hits_total 0\n"), "{}", damaged.stdout);
    // Where something must go, age decides without the server.
    let gc = ["cache", "gc", "--max-size", "1B", "--dry-run", "--fleet", &server];
    let told = on_board(&world, &gc);
    assert_eq!(told.code, Some(0), "{}", told.stderr);
    assert_eq!(told.stderr.matches("the fleet is not asked").count(), 1, "{}", told.stderr);
    let roomy = on_board(&world, &["cache", "gc", "--max-size", "9GiB", "--fleet", &server]);
    assert!(!roomy.stderr.contains("the fleet is not asked"), "{}", roomy.stderr);
}

#[test]
fn a_board_is_announced_only_where_that_is_asked_for_and_holds_nothing_up() {
    let world = text_world("llama3-tied-tiny");
    let lock = nowhere().replace("grpc:", "nats:");
    let run = |more: &[&str]| on_board(&world, &[&["run", "p.toml"], more].concat());
    let said = run(&["--heartbeat", "2h"]);
    assert_eq!(said.code, Some(2));
    assert!(said.stderr.contains("10s to 1h"), "{}", said.stderr);
    let beats = ["--heartbeat", "1m", "--fleet-lock", &lock];
    refused(&run(&beats), 2, "smelt fleet keygen");
    assert_eq!(on_board(&world, &["fleet", "keygen"]).code, Some(0));
    refused(&run(&beats[..2]), 2, "--fleet-lock nats://HOST:PORT");
    let peer = ["fleet", "peer", "--listen", "127.0.0.1:0", "--heartbeat", "1m"];
    refused(&on_board(&world, &peer), 2, "--fleet-lock nats://HOST:PORT");
    assert!(fs::read_dir(world.path("cache/out")).map_or(true, |mut all| all.next().is_none()));
    let silent = run(&beats[2..]);
    assert_eq!(silent.code, Some(0), "{}", silent.stderr);
    assert!(!silent.stderr.contains("announced"), "{}", silent.stderr);
    // One that has nothing to do, too.
    for _ in 0..2 {
        let told = run(&beats);
        assert_eq!(told.code, Some(0), "{}", told.stderr);
        let lines = told.stderr.matches("this board is not announced").count();
        assert_eq!(lines, 1, "{}", told.stderr);
    }
}

#[test]
fn an_empty_variable_names_no_fleet() {
    let world = text_world("llama3-tied-tiny");
    let mut command = world.command(&["run", "p.toml"]);
    let run = ended(command.env("SMELT_FLEET", ""));
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(!run.stderr.contains("fleet"), "{}", run.stderr);
    let mut command = world.command(&["run", "p.toml", "--push", "sealed"]);
    command.env("SMELT_FLEET", nowhere()).env("HOME", world.path(""));
    refused(&ended(command.env_remove("XDG_CONFIG_HOME")), 2, "keygen");
}

#[test]
fn what_a_run_lacks_to_publish_is_found_out_before_it_builds() {
    let world = text_world("llama3-tied-tiny");
    let run = |more: &[&str]| on_board(&world, &[&["run", "p.toml"], more].concat());
    refused(&run(&["--push", "sealed"]), 2, "--fleet grpc://HOST:PORT");
    refused(&run(&["--push", "sealed", "--fleet", &nowhere()]), 2, "smelt fleet keygen");
    refused(&on_board(&world, &["cache", "push", "p.toml"]), 2, "--fleet grpc://HOST:PORT");
    world.write("key.pem", "no key");
    let flags = ["--push", "sealed", "--fleet", &nowhere(), "--fleet-key", "key.pem"];
    refused(&run(&flags), 2, "chmod 600");
    assert!(fs::read_dir(world.path("cache/out")).map_or(true, |mut all| all.next().is_none()));
    let wrong = run(&["--fleet", "cache:5200"]);
    assert_eq!(wrong.code, Some(2));
    assert!(wrong.stderr.contains("grpc://HOST:PORT"), "{}", wrong.stderr);
}

#[test]
fn what_is_true_of_an_output_is_printed_as_a_statement() {
    let world = text_world("llama3-tied-tiny");
    refused(&on_board(&world, &["provenance", "p.toml", "llm-engine"]), 1, "smelt run");
    world.run(&[]);
    let printed = on_board(&world, &["provenance", "p.toml", "llm-engine"]);
    assert_eq!(printed.code, Some(0), "{}", printed.stderr);
    let statement: Value = serde_json::from_str(&printed.stdout).unwrap();
    assert_eq!(statement["_type"], "https://in-toto.io/Statement/v1");
    let built = &statement["predicate"]["buildDefinition"];
    assert_eq!(built["externalParameters"]["kind"], "llm-engine-build");
    let tree = built["internalParameters"]["tree"].as_str().unwrap();
    assert!(world.out("llm-engine").ends_with(tree), "{tree}");
    refused(&on_board(&world, &["provenance", "p.toml", "llm-engin"]), 2, "llm-engine");
}
