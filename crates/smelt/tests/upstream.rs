//! Deployments that another program's server answers, by a stand-in for one (`stand_ins/server.py`) that goes wrong in every
//! way that such servers do.

use std::fs::{self, Permissions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::world::server::{Answer, Server, posted};
use crate::world::{Ended, World, ended, until};

/// A world whose deployment is answered in this way, with more lines of its stage.
fn world(way: &str, more: &str) -> World {
    let program = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/stand_ins/server.py");
    World::new(&format!(
        r#"
smelt = 1
name = "t"
[stage.engine]
kind = "command"
argv = ["sh", "-c", "echo weights > engine.bin"]
outputs = ["engine.bin"]
[stage.deployment]
kind = "deployment"
model = "words"
engine = "engine"
server = ["python3", "{}", "{way}", "{{port}}", "{{engine}}"]
{more}
"#,
        program.display()
    ))
}

/// One that was made of a server that was well, and is served by one that goes wrong.
fn served(way: &str, more: &str, flags: &[&str]) -> (World, Server) {
    let world = world("well", more);
    world.run(&[]);
    let file = world.out("deployment").join("deployment.json");
    let text = fs::read_to_string(&file).unwrap().replace("\"well\"", &format!("{way:?}"));
    let dir = world.path("cache/out/by-hand");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("deployment.json"), text).unwrap();
    let flags = [&["--allow-program"], flags].concat();
    let server = Server::of(&world, &["cache/out/by-hand"], &flags);
    assert!(until(|| server.get("/health").status == 200), "{way}");
    (world, server)
}

fn asked(fields: &Value) -> Value {
    let mut all =
        json!({ "model": "words", "messages": [{ "role": "user", "content": "Count." }] });
    all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    all
}

fn ask(server: &Server, fields: Value) -> Answer {
    server.chat(asked(&fields))
}

fn message(answer: &Answer) -> String {
    answer.json()["error"]["message"].as_str().unwrap_or_default().to_owned()
}

#[track_caller]
fn assert_counts(answer: &Answer) {
    assert_eq!(answer.status, 200, "{}", answer.body);
    let content = &answer.json()["choices"][0]["message"]["content"];
    assert_eq!(content, "one two three");
}

#[test]
fn a_strangers_directory_starts_no_program_unasked() {
    let world = world("well", "");
    world.run(&[]);
    let (dir, seen) = (world.path("unpacked"), world.path("seen"));
    fs::create_dir(&dir).unwrap();
    let made = fs::read_to_string(world.out("deployment").join("deployment.json")).unwrap();
    let mut spec: Value = serde_json::from_str(&made).unwrap();
    let touch = format!("touch {}", seen.display());
    spec["server"] = json!(["sh", "-c", touch, "{port}"]);
    spec["engine"] = json!(".");
    spec.as_object_mut().unwrap().remove("files").unwrap();
    fs::write(dir.join("deployment.json"), spec.to_string()).unwrap();
    let refused = world.smelt(&["serve", "unpacked", "--addr", "127.0.0.1:0"]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains(&format!("sh -c {touch} {{port}}")), "{}", refused.stderr);
    assert!(refused.stderr.contains("--allow-program"), "{}", refused.stderr);
    assert!(!seen.exists());
    // Who trusts it has it started: this one ends at once, and is named.
    let ended = world.smelt(&["serve", "unpacked", "--addr", "127.0.0.1:0", "--allow-program"]);
    assert_ne!(ended.code, Some(0));
    assert!(seen.exists(), "{}", ended.stderr);
}

#[test]
fn another_programs_server_answers_behind_the_same_doors() {
    let world = world("well", "");
    world.run(&[]);
    let again = world.run(&[]);
    assert_eq!(again["stages"][1]["status"], "hit");
    let listed = world.smelt(&["ls"]).stdout;
    assert!(listed.contains("relays to another program's server"), "{listed}");
    let refused = world.smelt(&["chat", "p.toml", "hello"]);
    assert_eq!(refused.code, Some(4), "{}", refused.stderr);
    assert!(refused.stderr.contains("ask it with: smelt serve p.toml"), "{}", refused.stderr);

    let mut server = Server::of(&world, &["p.toml"], &["--api-key", "k", "--model-name", "counts"]);
    assert!(until(|| server.get("/readyz").status == 200));
    assert_eq!(ask(&server, json!({ "model": "counts" })).status, 401);
    let with_key = |path: &str, body: &Value| {
        server.exchange(&posted(path, body.to_string().as_bytes(), "authorization: Bearer k\r\n"))
    };
    let chat = |fields: Value| with_key("/v1/chat/completions", &asked(&fields));
    let named = |mut fields: Value| {
        fields["model"] = "counts".into();
        chat(fields)
    };
    assert_counts(&named(json!({})));
    let stream = named(json!({ "stream": true })).body;
    assert_eq!(stream.matches("\"delta\"").count(), 3, "{stream}");
    assert!(stream.contains("data: [DONE]"), "{stream}");
    // What it says of a request is the client's, with its status.
    let odd = named(json!({ "messages": [] }));
    assert_eq!((odd.status, &message(&odd)[..]), (422, "messages are missing"));
    assert_eq!(chat(json!({ "model": "other" })).status, 404);
    // What it would pass over in silence is refused.
    let held = named(json!({ "response_format": { "type": "json_object" } }));
    assert_eq!((held.status, &held.json()["error"]["param"]), (400, &json!("response_format")));
    assert_counts(&named(json!({ "response_format": null, "temperature": 0.5 })));
    // What smelt makes of a request itself, it cannot make of one for somebody else.
    for path in ["/v1/messages", "/api/chat", "/tokenize"] {
        let body = json!({ "model": "counts", "max_tokens": 5, "prompt": "a",
            "messages": [{ "role": "user", "content": "a" }] });
        let body =
            if path == "/tokenize" { json!({ "model": "counts", "prompt": "a" }) } else { body };
        let refused = with_key(path, &body);
        assert_eq!(refused.status, 400, "{path}: {}", refused.body);
        assert!(refused.body.contains("/v1/chat/completions"), "{path}: {}", refused.body);
    }
    let key = "authorization: Bearer k\r\n";
    let get = |path: &str| {
        server.exchange(
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{key}\r\n")
                .as_bytes(),
        )
    };
    let model = get("/v1/models/counts").json();
    assert_eq!((&model["id"], &model["max_model_len"]), (&json!("counts"), &Value::Null));
    let metrics = get("/metrics").body;
    for line in [
        "smelt_upstream_up{model=\"counts\"} 1",
        "smelt_upstream_restarts_total{model=\"counts\"} 0",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    server.signal(Signal::SIGTERM);
    assert_eq!(server.ended(), Some(0));
    world.assert_nothing_runs();
}

#[test]
fn its_program_is_found_by_the_users_path() {
    let world = world("well", "");
    let program = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/stand_ins/server.py");
    fs::create_dir(world.path("bin")).unwrap();
    let script = format!("#!/bin/sh\nexec python3 {} well \"$@\"\n", program.display());
    fs::write(world.path("bin/words-server"), script).unwrap();
    fs::set_permissions(world.path("bin/words-server"), Permissions::from_mode(0o755)).unwrap();
    let text = world.read("p.toml");
    let line = text.lines().find(|line| line.starts_with("server =")).unwrap();
    world.write("p.toml", &text.replace(line, "server = [\"words-server\", \"{port}\"]"));
    let lacks = world.smelt(&["doctor", "p.toml"]);
    assert!(lacks.stdout.contains("words-server is not here"), "{}", lacks.stdout);
    let path = format!("{}:{}", world.path("bin").display(), std::env::var("PATH").unwrap());
    let run = ended(world.command(&["run", "p.toml"]).env("PATH", path));
    assert_eq!(run.code, Some(0), "{}", run.stderr);
}

#[test]
fn nothing_of_it_outlives_a_server_that_is_killed() {
    let (world, mut server) = served("well", "", &[]);
    assert_counts(&ask(&server, json!({})));
    server.signal(Signal::SIGKILL);
    server.ended();
    world.assert_nothing_runs();
}

#[test]
fn what_is_not_fit_is_not_sealed() {
    let check = |way: &str, more: &str, why: &str| {
        let world = world(way, more);
        let Ended { code, stderr, .. } = world.smelt(&["run", "p.toml"]);
        assert_eq!(code, Some(1), "{way}: {stderr}");
        assert!(stderr.contains(why), "{way}: {stderr}");
        assert_eq!(world.to_build(&[]), ["deployment"], "{way}");
        world.assert_nothing_runs();
    };
    check(
        "ends",
        "",
        "ended with exit code 1, and said last: error: engine file is of TensorRT 10.3",
    );
    check("closed", "start-seconds = 2", "was not well 2 s after its start");
    check("well", "memory = \"1MiB\"", "more than its 1 MiB");
    // One that loads and answers nonsense is found by what it should say.
    let world = self::world("well", "prompts = \"path:golden\"");
    fs::create_dir(world.path("golden")).unwrap();
    let line = |answer: &str| json!({ "question": "Count.", "answer": answer }).to_string();
    world.write("golden/questions.jsonl", &line("one two four"));
    let Ended { code, stderr, .. } = world.smelt(&["run", "p.toml"]);
    let why = "golden prompt 1, \"Count.\", is answered \"one two three\" and not \"one two four\"";
    assert!(code == Some(1) && stderr.contains(why), "{stderr}");
    world.write("golden/questions.jsonl", &line("one two three"));
    world.run(&[]);

    let world = self::world("well", "fields = [\"wings\"]");
    let told = world.smelt(&["plan", "p.toml"]).stdout;
    assert!(told.contains("\"wings\" is none of"), "told before anything is built: {told}");
}

#[test]
fn an_engine_that_lost_a_bit_is_not_served() {
    let world = world("well", "");
    world.run(&[]);
    let deployment = world.out("deployment").display().to_string();
    let weights = world.out("engine").join("engine.bin");
    fs::set_permissions(&weights, Permissions::from_mode(0o644)).unwrap();
    fs::write(&weights, "weightz\n").unwrap();
    let serve = ["serve", &deployment, "--allow-program", "--addr", "127.0.0.1:0"];
    let Ended { code, stderr, .. } = world.smelt(&serve);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("engine.bin is damaged: it has 8 bytes of sha256"), "{stderr}");
    world.assert_nothing_runs();
}

#[test]
fn one_that_dies_is_named_and_started_again() {
    let (_world, server) = served("tenth", "", &[]);
    (0..9).for_each(|_| assert_counts(&ask(&server, json!({}))));
    let broken = ask(&server, json!({}));
    assert_eq!(broken.status, 502, "{}", broken.body);
    let why = "exit code 1, and said last: CUDA error: an illegal memory access was encountered";
    assert!(message(&broken).contains(why), "{}", message(&broken));
    assert!(until(|| ask(&server, json!({})).status == 200));
    assert_eq!(server.metric("smelt_upstream_restarts_total"), 1.0);
    assert_eq!(server.metric("smelt_upstream_failed_total"), 1.0);
}

#[test]
fn nonsense_and_broken_streams_are_no_answers() {
    let (_world, server) = served("nonsense", "", &[]);
    assert_counts(&ask(&server, json!({})));
    let odd = ask(&server, json!({}));
    assert_eq!(odd.status, 502, "{}", odd.body);
    assert!(message(&odd).contains("answers what is no JSON"), "{}", odd.body);

    let (_world, server) = served("cuts", "", &[]);
    ask(&server, json!({}));
    let cut = ask(&server, json!({ "stream": true })).body;
    let last = cut.lines().rfind(|line| line.starts_with("data:")).unwrap();
    assert!(last.contains("broke off") && last.contains("upstream_failed"), "{cut}");
}

#[test]
fn one_that_takes_too_much_is_started_again() {
    let (_world, server) = served("grows", "memory = \"200MiB\"", &[]);
    assert!(until(|| server.metric("smelt_upstream_restarts_total") >= 1.0));
    assert!(server.metric("smelt_upstream_memory_bytes") < 400e6);
}

#[test]
fn one_that_says_much_is_no_trouble() {
    let (_world, server) = served("mute", "", &[]);
    assert_counts(&ask(&server, json!({})));
}

#[test]
fn one_that_hangs_is_named_in_its_time() {
    let (_world, server) = served("hangs", "", &[]);
    assert_counts(&ask(&server, json!({})));
    let begun = Instant::now();
    let told = || message(&ask(&server, json!({})));
    let mut why = String::new();
    while begun.elapsed() < Duration::from_secs(60) && !why.contains("hung") {
        thread::sleep(Duration::from_millis(200));
        if server.metric("smelt_upstream_up") == 0.0 {
            why = told();
        }
    }
    assert!(why.contains("it hung: silent for"), "{why}");
}

#[test]
fn requests_take_turns_and_who_leaves_makes_room() {
    // It ends where it is asked two things at once.
    let (_world, server) = served("well", "", &["--queue", "3"]);
    let all: Vec<Answer> = thread::scope(|scope| {
        let ask = || ask(&server, json!({}));
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    all.iter().for_each(assert_counts);

    let endless =
        asked(&json!({ "stream": true, "messages": [{ "role": "user", "content": "endless" }] }));
    let mut stream = server.connect();
    stream.write_all(&posted("/v1/chat/completions", endless.to_string().as_bytes(), "")).unwrap();
    let mut some = [0; 64];
    stream.read_exact(&mut some).unwrap();
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..3).map(|_| scope.spawn(|| ask(&server, json!({})))).collect();
        assert!(until(|| server.metric("smelt_upstream_live") == 4.0));
        assert_eq!(ask(&server, json!({})).status, 429, "no more may wait");
        drop(stream);
        waiting.into_iter().for_each(|thread| assert_counts(&thread.join().unwrap()));
    });
    assert_eq!(server.metric("smelt_upstream_restarts_total"), 0.0);
}
