//! What a collector of traces is told of requests, and what it is not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use crate::world::server::{BUILT, Server, circles, posted};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Stands in every text that a client writes.
const MARK: &str = "zqxmarked";

/// A collector, and all that it is sent, as text.
fn collector() -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let (mut bytes, mut chunk) = (Vec::new(), vec![0; 1 << 16]);
            loop {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                let length = text.to_lowercase().split_once("\r\n\r\n").and_then(|(head, body)| {
                    let length =
                        head.lines().find_map(|line| line.strip_prefix("content-length: "));
                    Some((length?.parse::<usize>().ok()?, body.len()))
                });
                if length.is_some_and(|(length, is)| is >= length) {
                    _ = stream.write_all(
                        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}",
                    );
                    _ = tell.send(text);
                    break;
                }
                match stream.read(&mut chunk).unwrap_or(0) {
                    0 => break,
                    count => bytes.extend_from_slice(&chunk[..count]),
                }
            }
        }
    });
    (url, told)
}

/// Spans of all exports that come until there are so many of requests.
fn spans(told: &Receiver<String>, requests: usize) -> (Vec<Value>, String) {
    let (mut spans, mut all) = (Vec::new(), String::new());
    while spans.iter().filter(|span: &&Value| span["kind"] == 2).count() < requests {
        let text = told.recv_timeout(Duration::from_secs(20)).unwrap();
        let body: Value = serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap();
        let own = body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap();
        spans.extend(own.iter().cloned());
        all += &text;
    }
    (spans, all)
}

fn nanos(span: &Value, key: &str) -> u64 {
    span[key].as_str().unwrap().parse().unwrap()
}

/// Attributes of a span by their names.
fn attributes(span: &Value) -> BTreeMap<String, Value> {
    let all = span["attributes"].as_array().unwrap().iter();
    let value = |one: &Value| one["value"].as_object().unwrap().values().next().unwrap().clone();
    all.map(|one| (one["key"].as_str().unwrap().to_owned(), value(one))).collect()
}

#[test]
fn a_request_is_a_span_beneath_its_parent_with_what_it_waited_for_within() {
    let (url, told) = collector();
    let server = Server::start(&["--otlp-endpoint", &url]);
    let body = circles(json!({})).to_string();
    let headers = format!("traceparent: {PARENT}\r\ntracestate: a=1\r\n");
    let answer = server.exchange(&posted("/v1/chat/completions", body.as_bytes(), &headers));
    assert_eq!(answer.status, 200, "{}", answer.body);
    let response = answer.head.lines().find_map(|line| line.strip_prefix("traceresponse: "));
    let (spans, _) = spans(&told, 1);
    let (own, within) = spans.split_first().unwrap();
    assert_eq!(own["name"], "POST /v1/chat/completions");
    assert_eq!(
        (&own["parentSpanId"], &own["traceState"]),
        (&json!("00f067aa0ba902b7"), &json!("a=1"))
    );
    assert_eq!(
        response.unwrap(),
        format!("{}-{}-01", &PARENT[..35], own["spanId"].as_str().unwrap())
    );
    let names: Vec<&str> = within.iter().map(|span| span["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["preparing", "queue", "vision", "queue", "prompt", "decoding"]);
    for span in &spans {
        assert_eq!(span["traceId"], PARENT[3..35]);
        assert!(nanos(span, "startTimeUnixNano") <= nanos(span, "endTimeUnixNano"), "{span}");
    }
    for span in within {
        assert_eq!(span["parentSpanId"], own["spanId"]);
        assert!(nanos(span, "startTimeUnixNano") >= nanos(own, "startTimeUnixNano"));
        assert!(nanos(span, "endTimeUnixNano") <= nanos(own, "endTimeUnixNano"));
    }
    let told = attributes(own);
    assert_eq!(told["http.response.status_code"], "200");
    assert_eq!(
        (&told["gen_ai.operation.name"], &told["gen_ai.request.model"]),
        (&json!("chat"), &json!("shapes-vl"))
    );
    let usage = &answer.json()["usage"];
    for (key, of) in [("input", "prompt_tokens"), ("output", "completion_tokens")] {
        assert_eq!(told[&format!("gen_ai.usage.{key}_tokens")], usage[of].to_string());
    }
    assert_eq!(told["gen_ai.response.finish_reasons"]["values"][0]["stringValue"], "stop");
}

#[test]
fn no_text_of_anybodys_is_told() {
    let (url, told) = collector();
    let server = Server::start(&["--otlp-endpoint", &url]);
    let message = json!([{ "role": "user", "content": MARK, "name": MARK }]);
    let texts = json!({ "max_tokens": 2, "user": MARK, "stop": [MARK], "metadata": { MARK: MARK }, MARK: MARK });
    let with = |more: Value| {
        let mut all = texts.clone();
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all.to_string()
    };
    let asked = [
        ("/v1/chat/completions", with(json!({ "messages": message }))),
        ("/v1/chat/completions", with(json!({ "messages": message, "model": MARK }))),
        ("/v1/chat/completions", with(json!({ "messages": [{ "role": MARK, "content": MARK }] }))),
        ("/v1/completions", with(json!({ "prompt": MARK, "echo": true }))),
        ("/v1/responses", with(json!({ "input": MARK, "instructions": MARK }))),
        ("/v1/messages", with(json!({ "model": "m", "messages": message, "system": MARK }))),
        ("/api/generate", with(json!({ "model": MARK, "prompt": MARK }))),
        ("/v1/embeddings", with(json!({ "input": MARK }))),
    ];
    let headers = format!(
        "traceparent: {MARK}\r\ntracestate: {MARK}=1\r\nx-request-id: {MARK}\r\nuser-agent: {MARK}\r\nauthorization: Bearer {MARK}\r\n"
    );
    for (path, body) in &asked {
        server.exchange(&posted(&format!("{path}?{MARK}={MARK}"), body.as_bytes(), &headers));
    }
    let (spans, text) = spans(&told, asked.len());
    assert!(!text.to_lowercase().contains(MARK), "{text}");
    assert!(!json!(spans).to_string().contains("127.0.0.1"));
}

#[test]
fn a_collector_that_says_nothing_costs_no_request() {
    // It takes connections and never reads.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let mut server = Server::start(&["--otlp-endpoint", &url]);
    let body = json!({ "messages": [{ "role": "robot", "content": "a" }] }).to_string();
    let ask = || assert_eq!(server.post("/v1/chat/completions", body.as_bytes()).status, 400);
    (0..1500).for_each(|_| ask());
    assert!(server.metric("smelt_otlp_spans_dropped_total") > 0.0);
    let before = server.kib("VmRSS");
    (0..1500).for_each(|_| ask());
    assert!(server.kib("VmRSS") < before + (8 << 10), "memory is flat");
    let begun = Instant::now();
    server.assert_answers();
    assert!(begun.elapsed() < Duration::from_secs(10));
    let begun = Instant::now();
    server.signal(Signal::SIGTERM);
    assert_eq!(server.ended(), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[test]
fn who_leaves_and_who_is_turned_away() {
    let (url, told) = collector();
    let server = Server::start(&["--otlp-endpoint", &url, "--api-key", "right"]);
    let body = circles(json!({ "stream": true, "ignore_eos": true, "max_tokens": 400, "n": 8 }));
    let key = "authorization: Bearer right\r\n";
    assert_eq!(server.chat(body.clone()).status, 401);
    let mut stream = server.connect();
    stream.write_all(&posted("/v1/chat/completions", body.to_string().as_bytes(), key)).unwrap();
    stream.read_exact(&mut [0; 64]).unwrap();
    drop(stream);
    let (spans, _) = spans(&told, 1);
    let told = attributes(&spans[0]);
    assert_eq!(
        (&told["error.type"], &spans[0]["status"]["code"]),
        (&json!("cancelled"), &json!(2))
    );
}

#[test]
fn what_was_done_when_is_a_trace_that_chrome_opens() {
    let file = BUILT.path("timeline.json");
    let mut server = Server::start(&["--trace", &file.display().to_string()]);
    let answer = server.chat(circles(json!({ "max_tokens": 4, "user": MARK })));
    assert_eq!(answer.status, 200, "{}", answer.body);
    server.signal(Signal::SIGTERM);
    assert_eq!(server.ended(), Some(0));
    let text = fs::read_to_string(&file).unwrap();
    let trace: Value = serde_json::from_str(&text).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let spans: Vec<&Value> = events.iter().filter(|event| event["ph"] == "X").collect();
    let names: BTreeSet<&str> = spans.iter().map(|span| span["name"].as_str().unwrap()).collect();
    for name in ["load", "warming up", "pixels", "vision", "chunk"] {
        assert!(names.contains(name), "{name}: {names:?}");
    }
    assert!(spans.iter().all(|span| span["ts"].as_f64() >= Some(0.0) && span["dur"].is_f64()));
    let tokens = spans.iter().filter_map(|span| span["args"]["tokens"].as_u64()).sum::<u64>();
    assert_eq!(tokens, answer.json()["usage"]["prompt_tokens"].as_u64().unwrap());
    assert!(!text.contains(MARK) && !text.contains("circles"), "nothing that anybody wrote");
}
