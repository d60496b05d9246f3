//! Collectors of all kinds, and what becomes of the spans that they are sent.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::time::Instant;

use axum::http::HeaderMap;
use serde_json::Value;

use super::*;
use crate::answer::Usage;

/// A collector that gives every request's head and body on, and answers with `answer` and so many answers at most.
fn collector(answers: Vec<Vec<u8>>) -> (String, Receiver<(String, Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            if tell.send(request(&mut stream)).is_err() {
                return;
            }
            // A client that has heard enough may be gone.
            _ = stream.write_all(&answer);
        }
    });
    (url, told)
}

/// The head and the body of a request.
fn request(stream: &mut TcpStream) -> (String, Value) {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        let count = stream.read(&mut chunk).unwrap();
        bytes.extend_from_slice(&chunk[..count]);
        let text = String::from_utf8_lossy(&bytes).to_lowercase();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        if body.len() >= length.unwrap().parse().unwrap() {
            let body = &bytes[head.len() + 4..];
            return (head.to_owned(), serde_json::from_slice(body).unwrap());
        }
    }
}

fn answer(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

fn start(url: &str) -> (Tracer, Sending) {
    let secret =
        |name: &str| (name == "OTEL_EXPORTER_OTLP_HEADERS").then(|| "x-key=right".to_owned());
    let (options, warnings) = TraceOptions::read(Some(url), secret).unwrap();
    assert!(warnings.is_empty());
    Tracer::start(options.unwrap()).unwrap()
}

/// A request ends.
fn tell(tracer: &Tracer) {
    let (context, begun) = (tracer.begin(None), Instant::now());
    tracer.tell(&Answered {
        context: &context,
        operation: "chat",
        route: "/v1/chat/completions",
        status: Some(200),
        broken: None,
        model: Some("m"),
        key: None,
        usage: Usage::default(),
        finishes: &["stop"],
        begun,
        prepared: None,
        ended: begun,
        prompts: Vec::new(),
    });
}

/// Spans of one such request.
const SPANS: u64 = 2;

/// Spans that were sent, and that were dropped.
fn counts(tracer: &Tracer) -> [u64; 2] {
    [tracer.counts.sent.get(), tracer.counts.dropped.get()]
}

#[track_caller]
fn becomes(tracer: &Tracer, expect: [u64; 2]) {
    let patience = Instant::now() + Duration::from_secs(20);
    while counts(tracer) != expect {
        assert!(Instant::now() < patience, "{:?}", counts(tracer));
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_collector_is_sent_what_ended() {
    let (url, told) = collector(vec![answer("200 OK", "", b"{}")]);
    let (tracer, sending) = start(&url);
    tell(&tracer);
    tell(&tracer);
    let (head, body) = told.recv().unwrap();
    assert!(head.starts_with("post /v1/traces ") && head.contains("x-key: right"), "{head}");
    assert!(head.contains("content-type: application/json"), "{head}");
    let spans = body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap();
    let names: Vec<&str> = spans.iter().map(|span| span["name"].as_str().unwrap()).collect();
    let own = "POST /v1/chat/completions";
    assert_eq!(names, [own, "preparing", own, "preparing"]);
    assert_eq!(spans[1]["parentSpanId"], spans[0]["spanId"]);
    becomes(&tracer, [2 * SPANS, 0]);
    drop(sending);
}

#[test]
fn who_ends_sends_the_last() {
    let (url, told) = collector(vec![answer("200 OK", "", b"")]);
    let (tracer, sending) = start(&url);
    tell(&tracer);
    let begun = Instant::now();
    drop(sending);
    assert!(begun.elapsed() < Duration::from_secs(1), "nothing is gathered any more");
    assert!(told.try_recv().is_ok());
    assert_eq!(counts(&tracer), [SPANS, 0]);
}

#[test]
fn a_collector_that_says_nothing_costs_spans_and_nothing_else() {
    // It takes connections and never reads.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (tracer, sending) = start(&format!("http://{}", listener.local_addr().unwrap()));
    let begun = Instant::now();
    for _ in 0..20_000 {
        tell(&tracer);
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "nobody waits: {:?}", begun.elapsed());
    let [sent, dropped] = counts(&tracer);
    // A batch may be on its way beside what waits.
    assert!(sent == 0 && dropped >= 40_000 - 2048 - 512, "{dropped}");
    let begun = Instant::now();
    drop(sending);
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
}

#[test]
fn a_collector_that_is_not_there_is_asked_again_and_left() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let (tracer, sending) = start(&url);
    tell(&tracer);
    let begun = Instant::now();
    drop(sending);
    assert!(begun.elapsed() < Duration::from_secs(3));
    assert_eq!(counts(&tracer), [0, SPANS]);
}

#[test]
fn a_collector_that_is_busy_is_asked_again() {
    let busy = answer("429 Too Many Requests", "retry-after: 1\r\n", b"");
    let (url, told) = collector(vec![busy, answer("200 OK", "", b"")]);
    let (tracer, _sending) = start(&url);
    tell(&tracer);
    let (_, first) = told.recv().unwrap();
    let begun = Instant::now();
    let (_, second) = told.recv().unwrap();
    assert!(begun.elapsed() > Duration::from_millis(900));
    assert_eq!(first, second);
    becomes(&tracer, [SPANS, 0]);
}

#[test]
fn a_collector_that_talks_nonsense_is_not_believed() {
    let elsewhere = "location: http://127.0.0.1:9/\r\n";
    let huge = answer("200 OK", "", &vec![b'x'; 8 << 20]);
    for (one, expect) in [
        (answer("307 Temporary Redirect", elsewhere, b""), [0, SPANS]),
        (answer("404 Not Found", "", b"<html>"), [0, SPANS]),
        (huge, [SPANS, 0]),
        (answer("200 OK", "", b"{\"partialSuccess\":{\"rejectedSpans\":\"1\"}}"), [1, 1]),
        (answer("200 OK", "", b"{\"partialSuccess\":{\"rejectedSpans\":\"999\"}}"), [0, SPANS]),
    ] {
        let (url, _told) = collector(vec![one]);
        let (tracer, _sending) = start(&url);
        tell(&tracer);
        becomes(&tracer, expect);
    }
}

#[test]
fn what_nobody_wants_to_know_is_not_sent() {
    let (url, told) = collector(vec![answer("200 OK", "", b"")]);
    let (tracer, sending) = start(&url);
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
    let headers = HeaderMap::from_iter([("traceparent".parse().unwrap(), parent.parse().unwrap())]);
    let context = tracer.begin(Parent::of(&headers));
    assert!(context.response().starts_with(&parent[..36]));
    let times = [Instant::now(); 2];
    tracer.tell(&Answered {
        context: &context,
        operation: "chat",
        route: "/",
        status: None,
        broken: None,
        model: None,
        key: None,
        usage: Usage::default(),
        finishes: &[],
        begun: times[0],
        prepared: None,
        ended: times[1],
        prompts: Vec::new(),
    });
    drop(sending);
    assert!(told.try_recv().is_err() && counts(&tracer) == [0, 0]);
}
