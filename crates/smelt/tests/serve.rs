//! `smelt serve` as its clients and its keepers meet it: hostile requests, signals, keys, TLS, metrics.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use crate::world::server::{Answer, BUILT, DEMO, Server, base64, circles, posted, read, shown};
use crate::world::{World, anywhere, data, text_world, until};
use image::{ImageEncoder as _, codecs::png::PngEncoder};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const ENCODER: &str = include_str!("../../../xtask/conformance/encoder.toml");

/// A sentence encoder, built once for all tests.
static ENCODES: LazyLock<World> = LazyLock::new(|| {
    let here = format!("path:{}/", data("").display());
    let world = World::new(&ENCODER.replace("path:../../tests/data/", &here));
    world.run(&[]);
    world
});

/// A PNG of so many pixels of one colour: some KB that want hundreds of MB.
fn bomb(side: u32) -> Vec<u8> {
    black(side, side)
}

fn black(width: u32, height: u32) -> Vec<u8> {
    let mut file = Vec::new();
    let pixels = vec![0; width as usize * height as usize];
    let encoder = PngEncoder::new(&mut file);
    encoder.write_image(&pixels, width, height, image::ExtendedColorType::L8).unwrap();
    file
}

#[test]
fn a_model_that_reads_text_is_served_and_shown_nothing() {
    let world = text_world("llama3-tiny");
    world.run(&[]);
    let server = Server::of(&world, &["p.toml"], &[]);
    assert!(until(|| server.get("/health").status == 200));
    let ask = |content: Value| {
        let messages = json!([{ "role": "user", "content": content }]);
        server.chat(json!({ "messages": messages, "temperature": 0, "max_tokens": 3 }))
    };
    let answer = ask(json!("w1 w2"));
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.json()["usage"]["prompt_tokens"], 2);
    assert_eq!(answer.json()["usage"]["prompt_tokens_details"]["image_tokens"], 0);
    let same = ask(json!([{ "type": "text", "text": "w1 w2" }])).json();
    assert_eq!(same["choices"][0]["message"], answer.json()["choices"][0]["message"]);
    let body = json!({ "prompt": "w1 w2", "max_tokens": 3, "temperature": 0 }).to_string();
    let completed = server.post("/v1/completions", body.as_bytes()).json();
    assert_eq!(
        completed["choices"][0]["text"],
        answer.json()["choices"][0]["message"]["content"],
        "the template adds nothing"
    );
    let tokens = server.post("/tokenize", json!({ "prompt": "w1 w2" }).to_string().as_bytes());
    assert_eq!(tokens.json()["tokens"], json!([1, 2]), "{}", tokens.body);
    // Refused before anything is fetched or decoded.
    let url = json!({ "url": "data:image/png;base64,AAAA" });
    let answer = ask(json!([
        { "type": "text", "text": "w1" },
        { "type": "image_url", "image_url": url },
    ]));
    let error = &answer.json()["error"];
    assert_eq!(answer.status, 400, "{}", answer.body);
    assert_eq!(error["param"], "messages[0].content[1].image_url.url", "{}", answer.body);
    let why = error["message"].as_str().unwrap();
    assert!(why.contains("\"tiny\" reads text alone; leave pictures and clips out"), "{why}");
    let clip = ask(json!([{ "type": "video_url", "video_url": { "url": "http://x/a.gif" } }]));
    assert_eq!(clip.status, 400, "{}", clip.body);
    assert!(clip.body.contains("reads text alone"), "{}", clip.body);
    let listed = server.get("/v1/models").json();
    assert_eq!(listed["data"][0]["input_modalities"], json!(["text"]));
}

#[test]
fn hostile_requests_are_answered_and_leave_nothing() {
    let server = Server::start(&["--max-body", "8MiB"]);
    let path = "/v1/chat/completions";
    let refused = |body: &[u8], status: u16| {
        let answer = server.post(path, body);
        assert_eq!(
            answer.status,
            status,
            "{}: {}",
            String::from_utf8_lossy(&body[..body.len().min(80)]),
            answer.body
        );
        assert!(answer.json()["error"]["message"].is_string());
    };
    refused(b"", 400);
    refused(b"{", 400);
    refused(b"[[[[[[", 400);
    refused(b"\xff\xfe{}", 400);
    refused(b"{\"messages\": [{\"role\": \"user\", \"content\": \"\xff\"}]}", 400);
    refused(b"{\"messages\": [{\"role\": \"user\", \"content\": \"\\ud800\"}]}", 400);
    refused("[".repeat(1 << 20).as_bytes(), 400);
    refused(
        format!(
            "{{\"messages\": [{{\"role\": \"user\", \"content\": \"{}\"}}]}}",
            "a ".repeat(3 << 20)
        )
        .as_bytes(),
        400,
    );
    refused(&vec![b'{'; 40 << 20], 413);
    let picture = |bytes: &[u8]| shown("What?", bytes, json!({})).to_string();
    refused(picture(b"no picture").as_bytes(), 400);
    refused(picture(&fs::read(data("shapes-1.png")).unwrap()[..200]).as_bytes(), 400);
    refused(picture(&bomb(12_000)).as_bytes(), 400);
    refused(picture(b"").as_bytes(), 400);
    let wrong = circles(json!({})).to_string().replace("image/png", "application/pdf");
    refused(wrong.as_bytes(), 400);
    refused(circles(json!({ "n": 1e99 })).to_string().as_bytes(), 400);
    refused(circles(json!({ "max_tokens": -1 })).to_string().as_bytes(), 400);

    let chunked = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n";
    assert_eq!(server.exchange(chunked.as_bytes()).status, 400);
    assert_eq!(server.exchange(b"GET / HTTP/9.9\r\n\r\n").status, 400);
    assert_eq!(server.exchange(b"\x16\x03\x01\x02\x00\x01").status, 400);
    let long = format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "a".repeat(100_000));
    assert!([414, 431, 400].contains(&server.exchange(long.as_bytes()).status));

    for cut in [10, 100, 300] {
        let whole = posted(path, circles(json!({ "stream": true })).to_string().as_bytes(), "");
        let mut stream = server.connect();
        stream.write_all(&whole[..cut]).unwrap();
        drop(stream);
        let mut stream = server.connect();
        stream.write_all(&whole).unwrap();
        if cut > 100 {
            stream.shutdown(Shutdown::Both).unwrap();
        }
    }
    server.assert_nothing_is_stuck();
    server.assert_answers();
}

#[test]
fn who_leaves_disturbs_nobody() {
    let server = Server::start(&["--batch", "4", "--queue", "200"]);
    let expect = server.chat(circles(json!({ "logprobs": true }))).json()["choices"].clone();
    let long = circles(json!({ "stream": true, "ignore_eos": true, "max_tokens": 400 }));
    let long = posted("/v1/chat/completions", long.to_string().as_bytes(), "");
    for round in 0..40 {
        let mut leaving = server.connect();
        leaving.write_all(&long).unwrap();
        if round % 2 == 0 {
            _ = leaving.read(&mut [0; 64]);
        }
        let answer = server.chat(circles(json!({ "logprobs": true })));
        assert_eq!(answer.json()["choices"], expect, "round {round}");
    }
    server.assert_nothing_is_stuck();
    let cancelled = || server.metric("smelt_answers_cancelled_total");
    assert!(until(|| cancelled() >= 20.0), "{}", cancelled());
}

#[test]
fn more_than_there_is_room_for_is_told_to_come_again() {
    let server = Server::start(&["--batch", "1", "--queue", "1"]);
    let long = circles(json!({ "stream": true, "ignore_eos": true, "max_tokens": 400 }));
    let long = posted("/v1/chat/completions", long.to_string().as_bytes(), "");
    let mut streams = Vec::new();
    let refused = (0..50).find_map(|_| {
        let mut stream = server.connect();
        stream.write_all(&long).unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).ok().filter(|()| &head[9..] == b"429")?;
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        Some(rest)
    });
    if let Some(refused) = refused {
        assert!(refused.to_lowercase().contains("retry-after: "));
    } else {
        // The engine was faster than we could ask one after the other: ask at once.
        streams.extend((0..50).map(|_| server.connect()));
        streams.iter_mut().for_each(|stream| stream.write_all(&long).unwrap());
        let answers: Vec<Answer> = streams.into_iter().map(read).collect();
        let refused: Vec<&Answer> = answers.iter().filter(|answer| answer.status == 429).collect();
        assert!(!refused.is_empty() && refused.len() < 50);
        assert!(refused.iter().all(|answer| answer.head.contains("retry-after: ")));
        assert!(answers.iter().all(|answer| [200, 429].contains(&answer.status)));
    }
    server.assert_nothing_is_stuck();
    server.assert_answers();
}

#[test]
fn a_server_ends_when_its_answers_are_given() {
    let mut server = Server::start(&["--drain", "50s"]);
    let mut stream = server.connect();
    let long = circles(json!({ "stream": true, "ignore_eos": true, "max_tokens": 400 }));
    stream.write_all(&posted("/v1/chat/completions", long.to_string().as_bytes(), "")).unwrap();
    stream.read_exact(&mut [0; 15]).unwrap();
    server.signal(Signal::SIGTERM);
    let answer = read(stream);
    assert!(answer.body.contains("data: [DONE]"), "{}", answer.body);
    assert!(answer.body.contains("\"finish_reason\":\"length\""), "{}", answer.body);
    assert_eq!(server.ended(), Some(0));
    assert!(TcpStream::connect(&server.addr).is_err());
}

#[test]
fn a_server_that_is_asked_twice_ends_at_once() {
    let mut server = Server::start(&["--drain", "1h"]);
    // An answer that nobody reads, too long for what the system holds, keeps its connection open.
    let long = circles(json!({ "stream": true, "ignore_eos": true, "max_tokens": 400, "n": 16,
        "logprobs": true, "top_logprobs": 20 }));
    let mut stream = server.connect();
    stream.write_all(&posted("/v1/chat/completions", long.to_string().as_bytes(), "")).unwrap();
    // A request that asked for a metric before may still be open, so that their number says nothing.
    assert!(until(|| server.metric("smelt_answers_saying") > 0.0));
    server.signal(Signal::SIGINT);
    assert!(until(|| TcpStream::connect(&server.addr).is_err()));
    server.signal(Signal::SIGINT);
    assert_eq!(server.ended(), Some(6));
}

#[test]
fn who_has_asked_nothing_whole_is_not_waited_for() {
    let mut server = Server::start(&["--drain", "50s"]);
    let begun = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n";
    let body = format!("{begun}content-type: application/json\r\ncontent-length: 9\r\n\r\n{{");
    let mut streams = [(); 3].map(|()| server.connect());
    streams[0].write_all(begun.as_bytes()).unwrap();
    streams[1].write_all(body.as_bytes()).unwrap();
    assert!(until(|| server.metric("smelt_open_requests") == 2.0));
    let asked = Instant::now();
    server.signal(Signal::SIGTERM);
    assert_eq!(server.ended(), Some(0));
    assert!(asked.elapsed() < Duration::from_secs(20), "{:?}", asked.elapsed());
}

#[test]
fn keys_and_certificates_are_asked_for() {
    BUILT.write("keys", "# mine\nsesame\n");
    let certify = || {
        let made = Command::new("openssl")
            .args([
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
            ])
            .args(["-days", "2", "-subj", "/CN=localhost", "-keyout"])
            .arg(BUILT.path("key.pem"))
            .arg("-out")
            .arg(BUILT.path("cert.pem"))
            .output()
            .expect("this test needs openssl; it is a Debian package");
        assert!(made.status.success());
    };
    certify();
    let tls = ["--tls-cert", "cert.pem", "--tls-key", "key.pem", "--api-key-file", "keys"];
    let server = Server::loading(&tls);
    let asked = |key: &str, path: &str| {
        let mut client = Command::new("openssl");
        client.args(["s_client", "-quiet", "-verify_quiet", "-connect", &server.addr, "-CAfile"]);
        client.arg(BUILT.path("cert.pem")).args(["-verify_return_error"]);
        let mut client = client
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let request = format!(
            "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer {key}\r\n\r\n"
        );
        // One that trusts the certificate no more ends without it.
        let _ = client.stdin.as_mut().unwrap().write_all(request.as_bytes());
        let mut text = String::new();
        client.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        client.wait().unwrap();
        text.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    assert!(until(|| asked("", "/health") == "200"));
    assert_eq!(asked("sesame", "/v1/models"), "200");
    assert_eq!(asked("wrong", "/v1/models"), "401");
    assert_eq!(asked("wrong", "/metrics"), "401");
    // What changes on disk is read again; a client that trusts the new certificate alone is served.
    certify();
    BUILT.write("keys", "another\n");
    assert!(until(|| asked("another", "/v1/models") == "200"));
    assert_eq!(asked("sesame", "/v1/models"), "401");
    // What cannot be read changes nothing.
    BUILT.write("keys", "# nobody\n");
    server.signal(Signal::SIGHUP);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(asked("another", "/v1/models"), "200");
    let mismatched =
        BUILT.smelt(&["serve", "p.toml", "--tls-cert", "key.pem", "--tls-key", "key.pem"]);
    assert_eq!(mismatched.code, Some(2), "{}", mismatched.stderr);
    assert!(mismatched.stderr.contains("holds no certificate"), "{}", mismatched.stderr);
}

#[test]
fn what_cannot_be_served_is_refused_with_one_line() {
    let check = |flags: &[&str], code: i32, says: &str| {
        let ended = BUILT.smelt(&[&["serve", "p.toml", "--addr", "127.0.0.1:0"], flags].concat());
        let line = ended.stderr.lines().last().unwrap_or_default();
        assert_eq!((ended.code, line.contains(says)), (Some(code), true), "{}", ended.stderr);
    };
    check(&["--memory", "1MiB"], 5, "raise --memory");
    check(&["--api-key-file", "nothing"], 2, "cannot read keys");
    check(&["--api-key", "two words"], 2, "visible ASCII");
    check(&["--addr", "127.0.0.1"], 2, "");
    check(&["--golden", "nothing"], 2, "--golden: ");
    check(&["--trace", "nothing/trace.json"], 2, "--trace: ");
    let dir = BUILT.out("deployment").display().to_string();
    let watched = BUILT.smelt(&["serve", &dir, "--watch", "1s"]);
    assert_eq!(watched.code, Some(2), "{}", watched.stderr);
    assert!(watched.stderr.contains("name the pipeline that makes"), "{}", watched.stderr);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let ended = BUILT.smelt(&["serve", "p.toml", "--addr", &addr]);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("cannot listen on"), "{}", ended.stderr);
}

#[test]
fn every_line_of_the_log_is_json() {
    let flags = ["serve", "p.toml", "--addr", "0.0.0.0:0", "--log-json", "--memory", "1MiB"];
    let ended = BUILT.smelt(&flags);
    let levels: Vec<Value> = ended
        .stderr
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect(line)["level"].clone())
        .collect();
    assert_eq!(ended.code, Some(5));
    assert_eq!((levels.first(), levels.last()), (Some(&json!("WARN")), Some(&json!("ERROR"))));
}

/// Every name that begins with `smelt_` in `text`.
fn named(text: &str) -> BTreeSet<&str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c| !is_name(c));
    words.filter(|word| word.starts_with("smelt_")).collect()
}

#[test]
fn dashboards_and_alerts_name_what_is_counted() {
    let server = Server::start(&[]);
    server.assert_answers();
    let text = server.get("/metrics").body;
    let counted: BTreeSet<&str> = named(&text);
    let operation = data("../../crates/smelt-serve/operation");
    for file in ["grafana.json", "alerts.yml"] {
        let text = fs::read_to_string(operation.join(file)).unwrap();
        let names = named(&text);
        assert!(names.len() > 8, "{file}: {names:?}");
        for name in names {
            assert!(counted.contains(name), "{file}: {name} is not in {counted:?}");
        }
    }
    serde_json::from_str::<Value>(&fs::read_to_string(operation.join("grafana.json")).unwrap())
        .unwrap();
    let help = BUILT.smelt(&["serve", "--help"]).stdout;
    for file in ["smelt.service", "Containerfile"] {
        let text = fs::read_to_string(operation.join(file)).unwrap();
        let words = text.split(|c: char| c.is_whitespace() || "\",[]".contains(c));
        let mut flags =
            words.filter(|word| word.starts_with("--addr") || word.starts_with("--log"));
        assert!(flags.clone().count() > 1 && flags.all(|flag| help.contains(flag)), "{file}");
    }
}

/// What is told of the model called `name`.
fn length_of(server: &Server, name: &str) -> Value {
    let models = server.get("/v1/models").json();
    let all = models["data"].as_array().unwrap();
    let found = all.iter().find(|model| model["id"] == name);
    found.map_or(Value::Null, |model| model["max_model_len"].clone())
}

#[test]
fn a_newer_deployment_takes_over_if_it_answers_right_and_no_stream_notices() {
    let world = World::new(&anywhere(DEMO));
    world.run(&[]);
    fs::create_dir(world.path("golden")).unwrap();
    fs::copy(data("shapes-1.png"), world.path("golden/shapes-1.png")).unwrap();
    let ask = |answer: &str| {
        let question = json!({ "task": "count", "images": ["shapes-1.png"],
            "question": "How many circles are there?", "answer": answer });
        world.write("golden/questions.jsonl", &format!("{question}\n"));
    };
    ask("2");
    let server = Server::of(&world, &["p.toml"], &["--golden", "golden"]);
    assert!(until(|| server.get("/health").status == 200));
    let newer = |length: &str| {
        world.write("p.toml", &anywhere(DEMO).replace("max_seq_len = 512", length));
        world.run(&[]);
    };
    assert_eq!(length_of(&server, "shapes-vl"), 512);
    let long = circles(json!({ "stream": true, "ignore_eos": true, "max_tokens": 440 }));
    let expect = server.chat(circles(json!({ "ignore_eos": true, "max_tokens": 440 }))).json();
    newer("max_seq_len = 500");
    let streams: Vec<TcpStream> = (0..4)
        .map(|_| {
            let mut stream = server.connect();
            let request = posted("/v1/chat/completions", long.to_string().as_bytes(), "");
            stream.write_all(&request).unwrap();
            stream
        })
        .collect();
    server.signal(Signal::SIGHUP);
    assert!(until(|| length_of(&server, "shapes-vl") == 500));
    server.assert_answers();
    for stream in streams {
        let answer = read(stream);
        let events = answer.body.lines().filter_map(|line| line.strip_prefix("data: {"));
        let text: String = events
            .filter_map(|event| {
                let event: Value = serde_json::from_str(&format!("{{{event}")).unwrap();
                event["choices"][0]["delta"]["content"].as_str().map(str::to_owned)
            })
            .collect();
        assert_eq!(json!(text), expect["choices"][0]["message"]["content"]);
    }
    // What comes next does not know it.
    ask("3");
    newer("max_seq_len = 490");
    server.signal(Signal::SIGHUP);
    let until_told = || server.metric("smelt_model_swaps_refused_total") == 1.0;
    assert!(until(until_told));
    assert_eq!(length_of(&server, "shapes-vl"), 500);
    server.assert_answers();
    // So is what is damaged before it can be asked anything, once.
    newer("max_seq_len = 480");
    let damaged = world.out("deployment").join("deployment.json");
    let mut permissions = fs::metadata(&damaged).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o644);
    fs::set_permissions(&damaged, permissions).unwrap();
    fs::write(&damaged, "{").unwrap();
    for _ in 0..2 {
        server.signal(Signal::SIGHUP);
        std::thread::sleep(Duration::from_millis(500));
    }
    assert!(until(|| server.metric("smelt_model_swaps_refused_total") == 2.0));
    server.assert_answers();
}

#[test]
fn other_models_are_loaded_when_they_are_asked_for() {
    let world = World::new(&anywhere(DEMO));
    world.run(&[]);
    let flags = ["--model-name", "first", "--model-name", "second"];
    let server = Server::of(&world, &["p.toml", "p.toml"], &flags);
    assert!(until(|| server.get("/health").status == 200));
    assert_eq!(
        [length_of(&server, "first"), length_of(&server, "second")],
        [json!(512), Value::Null]
    );
    for (model, path) in [("second", "/v1/chat/completions"), ("first", "/v1/chat/completions")] {
        let answer = server.post(path, circles(json!({ "model": model })).to_string().as_bytes());
        assert_eq!(answer.json()["choices"][0]["message"]["content"], "2", "{}", answer.body);
        assert_eq!(answer.json()["model"], model);
    }
    assert_eq!(length_of(&server, "second"), 512);
    let answer = server.chat(circles(json!({ "model": "third" })));
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (404, &json!("model_not_found")));
    let twice = world.smelt(&["serve", "p.toml", "p.toml"]);
    assert_eq!(twice.code, Some(2), "{}", twice.stderr);
    assert!(twice.stderr.contains("tell them apart by --model-name"), "{}", twice.stderr);
}

#[test]
fn who_was_asked_longest_ago_leaves_where_keys_and_values_have_no_room() {
    let (targets, names) =
        (["p.toml", "p.toml"], ["--model-name", "first", "--model-name", "second"]);
    let check = |server: &Server, model: &str| {
        let answer = server.chat(circles(json!({ "model": model })));
        assert_eq!(answer.json()["choices"][0]["message"]["content"], "2", "{}", answer.body);
    };
    let ready = |flags: &[&str]| {
        let server = Server::of(&BUILT, &targets, &[&names, flags].concat());
        assert!(until(|| server.get("/health").status == 200));
        server
    };
    let server = ready(&[]);
    check(&server, "first");
    let one = server.metric("smelt_process_resident_bytes");
    check(&server, "second");
    let both = server.metric("smelt_process_resident_bytes");
    drop(server);
    // A quarter of so small a cap is for pictures, an eighth for requests that are read.
    let cap = (one + both) / 2.0 / 5.0 * 8.0;
    let server = ready(&["--memory", &format!("{}KiB", cap as u64 >> 10)]);
    for model in ["first", "second", "first"] {
        check(&server, model);
    }
    assert_eq!(server.metric("smelt_model_unloads_total"), 2.0, "{one} {both}");
}

fn embed(server: &Server, fields: Value) -> Answer {
    server.post("/v1/embeddings", fields.to_string().as_bytes())
}

#[test]
fn an_encoder_embeds_as_the_command_does() {
    let server = Server::of(&ENCODES, &["p.toml"], &[]);
    assert!(until(|| server.get("/health").status == 200));
    let texts = ["A man is eating food.", "what?"];
    let command = ENCODES.smelt(&["embed", "p.toml", "--json", texts[0], texts[1]]);
    let expect: Value = serde_json::from_str(&command.stdout).unwrap();
    let answer = embed(&server, json!({ "input": texts, "model": "letters" })).json();
    let row = |row: &Value| -> Vec<f32> {
        row.as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
    };
    for (at, text) in texts.iter().enumerate() {
        let (told, one) = (&answer["data"][at], &expect["embeddings"][at]);
        assert_eq!(told["index"], at);
        assert_eq!(row(&told["embedding"]), row(&one["embedding"]), "{text}");
    }
    let count = |at: usize| expect["embeddings"][at]["tokens"].as_u64().unwrap();
    assert_eq!(answer["usage"]["prompt_tokens"], count(0) + count(1));
    let tokens = server.post("/tokenize", json!({ "prompt": texts[1] }).to_string().as_bytes());
    let tokens = &tokens.json()["tokens"];
    assert_eq!(tokens.as_array().unwrap().len() as u64, count(1), "its file cuts at 8");
    let of_tokens = embed(&server, json!({ "input": tokens })).json();
    assert_eq!(of_tokens["data"][0]["embedding"], answer["data"][1]["embedding"]);
    let long = "long ".repeat(20);
    let cut = embed(&server, json!({ "input": long, "truncate_prompt_tokens": -1 })).json();
    assert_eq!(cut["usage"]["total_tokens"], 24);
    let refused = |fields: Value, param: &str| {
        let answer = embed(&server, fields);
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(param)));
        answer.json()["error"]["code"].clone()
    };
    assert_eq!(refused(json!({ "input": ["a", long] }), "input[1]"), "context_length_exceeded");
    refused(json!({ "input": ["a", ""] }), "input[1]");
    refused(json!({ "input": [80] }), "input[0]");
    refused(json!({ "input": "a", "dimensions": 12 }), "dimensions");
    refused(json!({ "input": [1.5] }), "input[0]");
    let chat = server.chat(json!({ "messages": [{ "role": "user", "content": "a" }] }));
    assert_eq!((chat.status, &chat.json()["error"]["code"]), (400, &json!("model_not_suitable")));
    assert!(chat.body.contains("ask it at /v1/embeddings"), "{}", chat.body);
    assert_eq!(length_of(&server, "letters"), 24);
    assert_eq!(server.metric("smelt_embed_texts_total"), 4.0);
    assert_eq!(server.metric("smelt_embed_waiting"), 0.0);
}

#[test]
fn who_leaves_or_comes_too_many_is_not_embedded() {
    let server = Server::of(&ENCODES, &["p.toml"], &["--queue", "0"]);
    assert!(until(|| server.get("/health").status == 200));
    let many = json!({ "input": vec!["a b c d e f g h i j"; 2048] }).to_string();
    let long = posted("/v1/embeddings", many.as_bytes(), "");
    let refused = until(|| {
        let mut leaving = server.connect();
        leaving.write_all(&long).unwrap();
        let waits = until(|| server.metric("smelt_embed_waiting") > 0.0);
        let other = embed(&server, json!({ "input": "a" }));
        waits && other.status == 429 && other.head.contains("retry-after: ")
    });
    assert!(refused, "a request beside one that takes long is refused");
    let free = || server.metric("smelt_embed_waiting") == 0.0;
    assert!(until(free) && server.metric("smelt_embed_cancelled_total") >= 1.0);
    assert_eq!(embed(&server, json!({ "input": "a" })).status, 200);
}

#[test]
fn a_newer_encoder_takes_over() {
    let here = format!("path:{}/", data("").display());
    let pipeline = ENCODER.replace("path:../../tests/data/", &here);
    let world = World::new(&pipeline);
    world.run(&[]);
    let server = Server::of(&world, &["p.toml"], &[]);
    assert!(until(|| server.get("/health").status == 200));
    world.write("p.toml", &pipeline.replace("model = \"letters\"", "model = \"newer\""));
    world.run(&[]);
    server.signal(Signal::SIGHUP);
    assert!(until(|| server.metric("smelt_model_swaps_total") == 1.0));
    assert_eq!(embed(&server, json!({ "input": "a" })).json()["model"], "newer");
}

#[test]
fn an_encoder_is_served_beside_a_model_that_speaks() {
    let encoder = ENCODES.out("deployment").display().to_string();
    let server = Server::of(&BUILT, &["p.toml", &encoder], &[]);
    assert!(until(|| server.get("/health").status == 200));
    let asked = embed(&server, json!({ "input": "a", "model": "letters" }));
    assert_eq!((asked.status, &asked.json()["model"]), (200, &json!("letters")), "{}", asked.body);
    server.assert_answers();
    let wrong = embed(&server, json!({ "input": "a", "model": "shapes-vl" }));
    assert_eq!((wrong.status, &wrong.json()["error"]["param"]), (400, &json!("model")));
}

/// A question about what `part` shows.
fn about(part: Value) -> Value {
    let content = json!([part, { "type": "text", "text": "What is this?" }]);
    json!({ "messages": [{ "role": "user", "content": content }], "temperature": 0, "max_tokens": 2 })
}

#[test]
fn clips_are_frames_equally_far_apart() {
    let server = Server::start(&["--max-frames", "4"]);
    let image_tokens = |part: Value| {
        let answer = server.chat(about(part));
        let usage = &answer.json()["usage"]["prompt_tokens_details"];
        usage["image_tokens"].as_u64().unwrap_or_else(|| panic!("{}", answer.body))
    };
    let uri = |kind: &str, bytes: &[u8]| format!("data:{kind};base64,{}", base64(bytes));
    let file = |name: &str| fs::read(data(name)).unwrap();
    let shapes = uri("image/png", &file("shapes-1.png"));
    let list = |count: usize| json!({ "type": "video", "video": vec![shapes.clone(); count] });
    let one = image_tokens(list(1));
    assert_eq!([2, 4, 9].map(|count| image_tokens(list(count))), [2 * one, 4 * one, 4 * one]);
    let animated = |name: &str, kind: &str, fps: Value| {
        let url = json!({ "url": uri(kind, &file(name)) });
        image_tokens(json!({ "type": "video_url", "video_url": url, "fps": fps }))
    };
    assert_eq!(animated("clips/three.webp", "image/webp", json!(null)), 3 * one);
    // Three quarters of a second.
    assert_eq!(animated("clips/three.png", "image/png", json!(3)), 2 * one);
    let mut jpeg = std::io::Cursor::new(Vec::new());
    image::RgbImage::new(64, 64).write_to(&mut jpeg, image::ImageFormat::Jpeg).unwrap();
    let jpeg = base64(jpeg.get_ref());
    let url = format!("data:video/jpeg;base64,{jpeg},{jpeg}");
    assert_eq!(image_tokens(json!({ "type": "video_url", "video_url": { "url": url } })), 2 * one);
    let refused = |part: Value, field: &str| {
        let answer = server.chat(about(part));
        let param = format!("messages[0].content[0].{field}");
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(param)));
    };
    let film = json!({ "type": "video_url", "video_url": { "url": "data:video/mp4;base64,AA==" } });
    refused(film, "video_url.url");
    let large = uri("image/png", &bomb(5000));
    refused(json!({ "type": "video", "video": vec![large; 4] }), "video");
    // The smallest way of looking at a picture, too, is one tile.
    let picture = json!({ "type": "image_url", "image_url": { "url": uri("image/png", &wide()) } });
    let tiles = |limits: Value| {
        let mut asked = about(picture.clone());
        asked["mm_processor_kwargs"] = limits;
        server.chat(asked).json()["usage"]["prompt_tokens_details"]["image_tokens"].clone()
    };
    assert_eq!(tiles(json!({ "max_dynamic_patch": 1 })), one);
    assert!(tiles(json!(null)).as_u64() > Some(one));
}

#[test]
fn what_does_not_fit_is_shown_smaller_and_told_in_usage() {
    let details = |answer: &Answer| answer.json()["usage"]["prompt_tokens_details"].clone();
    let asked = |fields| shown("What is it?", &wide(), fields);
    let server = Server::start(&["--max-seq-len", "100"]);
    let answer = server.chat(asked(json!({ "max_tokens": 8 })));
    let told = details(&answer);
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!((&told["smaller_images"], &told["image_tokens"]), (&json!(1), &json!(36)));
    assert_eq!(told["wished_image_tokens"], 180);
    // Which tile is looked at is told in comments, which clients pass over; of a picture that is known, none.
    let picture = fs::read(data("picture.png")).unwrap();
    let stream = json!({ "stream": true, "max_tokens": 8 });
    let streamed = server.chat(shown("What is it?", &picture, stream)).body;
    assert!(streamed.contains(": looking at tile 1 of 1\n\n"), "{streamed}");
    assert!(streamed.contains("data: [DONE]"), "{streamed}");
    drop(server);
    // What nobody asks for is not told.
    let server = Server::start(&["--tiles", "1"]);
    let told = details(&server.chat(asked(json!({ "max_tokens": 8 }))));
    assert_eq!((&told["image_tokens"], &told["smaller_images"]), (&json!(36), &Value::Null));
    let all = json!({ "mm_processor_kwargs": { "max_dynamic_patch": 4 }, "max_tokens": 8 });
    assert_eq!(details(&server.chat(asked(all)))["image_tokens"], 180);
    let low = &mut asked(json!({ "max_tokens": 8 }));
    low["messages"][0]["content"][0]["image_url"]["detail"] = json!("low");
    assert_eq!(details(&server.chat(low.take()))["image_tokens"], 36);
}

#[test]
fn six_photographs_of_a_phone_are_answered() {
    let server = Server::start(&["--tiles", "1"]);
    let url = format!("data:image/png;base64,{}", base64(&black(4032, 3024)));
    let picture = json!({ "type": "image_url", "image_url": { "url": url } });
    let ask = |count: usize| {
        let mut content = vec![picture.clone(); count];
        content.push(json!({ "type": "text", "text": "How many circles are there?" }));
        let message = json!({ "role": "user", "content": content });
        server.chat(json!({ "messages": [message], "max_tokens": 2, "temperature": 0 }))
    };
    let answer = ask(6);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let details = &answer.json()["usage"]["prompt_tokens_details"];
    assert_eq!(details["image_tokens"], 6 * 36, "{}", answer.body);
    let refused = ask(10);
    assert_eq!(refused.status, 400, "{}", refused.body);
    assert!(refused.body.contains("together take more than 400 MB"), "{}", refused.body);
}

/// A picture that is cut into tiles.
fn wide() -> Vec<u8> {
    let mut file = std::io::Cursor::new(Vec::new());
    image::RgbImage::new(256, 64).write_to(&mut file, image::ImageFormat::Png).unwrap();
    file.into_inner()
}

/// A question with a tool, of which the template of `hermes.jinja` knows how it is called.
fn with_tool(fields: Value) -> Value {
    let schema = json!({ "type": "object", "properties": { "colour": { "enum": ["red", "blue"] } },
        "required": ["colour"], "additionalProperties": false });
    let tool =
        |name| json!({ "type": "function", "function": { "name": name, "parameters": schema } });
    let all = json!({ "tools": [tool("find"), tool("paint")], "parallel_tool_calls": false,
        "max_tokens": 200 });
    let mut asked = circles(all);
    asked.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    asked
}

/// The tool that the only choice of an answer calls.
#[track_caller]
fn called(answer: &Answer) -> String {
    let choice = &answer.json()["choices"][0];
    let [call] = &choice["message"]["tool_calls"].as_array().unwrap()[..] else {
        panic!("{}", answer.body)
    };
    assert_eq!(choice["finish_reason"], "tool_calls", "{}", answer.body);
    let arguments = call["function"]["arguments"].as_str().unwrap();
    let arguments: Value = serde_json::from_str(arguments).unwrap();
    assert!(["red", "blue"].contains(&arguments["colour"].as_str().unwrap()), "{arguments}");
    call["function"]["name"].as_str().unwrap().to_owned()
}

#[test]
fn tools_are_called_by_a_template_that_knows_them() {
    let template = data("hermes.jinja").display().to_string();
    let server = Server::start(&["--chat-template", &template]);
    server.assert_answers();
    called(&server.chat(with_tool(json!({ "tool_choice": "required" }))));
    for name in ["find", "paint"] {
        let named = json!({ "type": "function", "function": { "name": name } });
        assert_eq!(called(&server.chat(with_tool(json!({ "tool_choice": named })))), name);
    }
    let none = server.chat(with_tool(json!({ "tool_choice": "none" }))).json();
    assert_eq!(none["choices"][0]["message"]["content"], "2");
    assert_eq!(none["choices"][0]["message"]["tool_calls"], Value::Null);
    let form = json!({ "type": "json_schema", "json_schema": { "name": "count", "schema":
        { "type": "object", "properties": { "count": { "enum": [1, 2] } }, "required": ["count"],
          "additionalProperties": false } } });
    let either = server.chat(with_tool(json!({ "response_format": form }))).json();
    let message = &either["choices"][0]["message"];
    let is_called = message["tool_calls"].is_array();
    let said = message["content"].as_str().map(serde_json::from_str::<Value>);
    assert!(is_called || said.is_some_and(|said| said.unwrap()["count"].is_u64()), "{either}");
    // What was called and answered is a part of the conversation.
    let mut asked = with_tool(json!({ "tool_choice": "none" }));
    let call = json!({ "id": "1", "type": "function",
        "function": { "name": "find", "arguments": "{\"colour\": \"red\"}" } });
    let turns = asked["messages"].as_array_mut().unwrap();
    turns.push(json!({ "role": "assistant", "content": null, "tool_calls": [call] }));
    turns.push(json!({ "role": "tool", "tool_call_id": "1", "content": "left" }));
    asked["chat_template_kwargs"] = json!({ "greeting": "Hello!" });
    let tokens = server.post("/tokenize", asked.to_string().as_bytes()).json();
    let prompt =
        server.post("/detokenize", json!({ "tokens": tokens["tokens"] }).to_string().as_bytes());
    let prompt = prompt.json()["prompt"].as_str().unwrap().to_owned();
    assert!(
        prompt.contains("{\"name\": \"find\", \"arguments\": {\"colour\": \"red\"}}"),
        "{prompt}"
    );
    assert!(prompt.contains("<tool_response>\nleft\n</tool_response>"), "{prompt}");
    assert!(prompt.ends_with("assistant\nHello!"), "{prompt}");
    assert_eq!(server.chat(asked).status, 200);
}

#[test]
fn a_template_that_cannot_be_used_is_refused_at_the_start() {
    let check = |name: &str, text: &str, says: &str| {
        BUILT.write(name, text);
        let flags = ["serve", "p.toml", "--addr", "127.0.0.1:0", "--chat-template", name];
        let ended = BUILT.smelt(&flags);
        let line = ended.stderr.lines().last().unwrap_or_default();
        assert!(ended.code == Some(2) && line.contains(says), "{}", ended.stderr);
    };
    check("open.jinja", "{% for message in messages %}", "open.jinja");
    check("deaf.jinja", "{{ messages[0].role }}:", "never writes what a message says");
    check("strict.jinja", "{{ raise_exception('no tools, no talk') }}", "no tools, no talk");
    let missing = BUILT.smelt(&["serve", "p.toml", "--chat-template", "nothing.jinja"]);
    assert!(missing.stderr.contains("no such file"), "{}", missing.stderr);
}

#[test]
fn what_is_served_or_may_be_is_not_collected() {
    let world = World::new(&anywhere(DEMO));
    world.run(&[]);
    let served = world.out("deployment");
    let dir = served.display().to_string();
    let names = ["--model-name", "first", "--model-name", "second"];
    let mut server = Server::of(&world, &[&dir, &dir], &names);
    assert!(until(|| server.get("/health").status == 200));
    // Another run of the pipeline is the last good one from now on, and needs none of this.
    world.write("p.toml", &anywhere(DEMO).replace("max_seq_len = 512", "max_seq_len = 500"));
    world.run(&["--force", "checkpoint"]);
    let collect = || assert_eq!(world.smelt(&["cache", "gc", "--max-size", "0B"]).code, Some(0));
    collect();
    assert!(served.exists());
    for model in ["second", "first"] {
        let answer = server.chat(circles(json!({ "model": model })));
        assert_eq!(answer.json()["choices"][0]["message"]["content"], "2", "{}", answer.body);
    }
    let runs: Value = serde_json::from_str(&world.smelt(&["runs", "--json"]).stdout).unwrap();
    let runs = runs["runs"].as_array().unwrap();
    assert!(runs.iter().all(|run| run["status"] == "ok"), "a server is no run: {runs:?}");
    server.signal(Signal::SIGTERM);
    assert_eq!(server.ended(), Some(0));
    collect();
    assert!(!served.exists(), "nobody serves it any more");
}
