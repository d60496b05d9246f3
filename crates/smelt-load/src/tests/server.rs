//! A small server that behaves as the name of the model says; probes of one token are always answered.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

/// A request, as far as tests ask for it.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) model: String,
    pub(super) text: String,
    pub(super) pictures: usize,
    pub(super) key: String,
    pub(super) ignore_eos: bool,
}

#[derive(Default)]
struct State {
    asked: Mutex<Vec<Asked>>,
    now: AtomicUsize,
    most: AtomicUsize,
}

pub(super) struct Server {
    pub(super) url: String,
    state: Arc<State>,
}

impl Server {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let state = Arc::clone(&shared);
                // A client that went away is none of a test's business.
                thread::spawn(move || serve(&stream.unwrap(), &state).unwrap_or_default());
            }
        });
        Self { url, state }
    }

    pub(super) fn asked(&self) -> Vec<Asked> {
        self.state.asked.lock().unwrap().clone()
    }

    pub(super) fn most_at_once(&self) -> usize {
        self.state.most.load(Ordering::SeqCst)
    }
}

/// Answers requests of one connection until it ends.
fn serve(stream: &TcpStream, state: &State) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if line.trim().is_empty() {
                break;
            }
            head.push(line.trim().to_owned());
        }
        let field = |name: &str| {
            let of = |line: &String| {
                let (key, value) = line.split_once(':')?;
                key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
            };
            head.iter().find_map(of).unwrap_or_default()
        };
        let mut body = vec![0; field("content-length").parse().unwrap_or(0)];
        reader.read_exact(&mut body)?;
        let result = answer(stream, state, &head[0], &field("authorization"), &body);
        if !result? {
            return Ok(());
        }
    }
}

/// Whether the connection goes on.
fn answer(
    mut out: &TcpStream,
    state: &State,
    first: &str,
    key: &str,
    body: &[u8],
) -> std::io::Result<bool> {
    if key.is_empty() {
        return document(out, "401 Unauthorized", &json!({ "error": { "message": "no key" } }));
    }
    if first.starts_with("GET /v1/models ") {
        return document(out, "200 OK", &json!({ "data": [{ "id": "good" }, { "id": "b" }] }));
    }
    let body: Value = serde_json::from_slice(body).unwrap();
    let number = note(state, key, &body);
    let tokens = body["max_tokens"].as_u64().unwrap() as usize;
    let usage = json!({ "prompt_tokens": prompt_tokens(&body), "completion_tokens": tokens });
    let model = body["model"].as_str().unwrap();
    match if tokens == 1 && model != "untold" { "good" } else { model } {
        "document" => {
            let whole =
                json!({ "choices": [{ "message": { "content": "words" } }], "usage": usage });
            document(out, "200 OK", &whole)
        }
        "busy" => {
            document(out, "429 Too Many Requests", &json!({ "error": { "message": "try later" } }))
        }
        "half" if number.is_multiple_of(2) => {
            document(out, "503 Service Unavailable", &json!({ "error": "no" }))
        }
        "closed" => Ok(false),
        "hang" => {
            begin(out)?;
            thread::sleep(Duration::from_secs(3));
            Ok(false)
        }
        model => {
            let now = state.now.fetch_add(1, Ordering::SeqCst) + 1;
            state.most.fetch_max(now, Ordering::SeqCst);
            begin(out)?;
            thread::sleep(Duration::from_millis(20));
            for _ in 0..tokens {
                chunk(out, "data: {\"choices\":[{\"delta\":{\"content\":\"x \"}}]}\n\n")?;
                thread::sleep(Duration::from_millis(3));
            }
            // Before the end is told: who hears it may ask again at once.
            state.now.fetch_sub(1, Ordering::SeqCst);
            match model {
                "cut" => {}
                "broken" => chunk(out, "data: {\"choices\":\n\n")?,
                "said" => chunk(out, "data: {\"error\":{\"message\":\"out of memory\"}}\n\n")?,
                "untold" => chunk(out, "data: [DONE]\n\n")?,
                _ => {
                    chunk(out, &format!("data: {}\n\n", json!({ "choices": [], "usage": usage })))?;
                    chunk(out, "data: [DONE]\n\n")?;
                }
            }
            out.write_all(b"0\r\n\r\n")?;
            Ok(true)
        }
    }
}

/// Writes a request down; gives how many there were.
fn note(state: &State, key: &str, body: &Value) -> usize {
    let content = &body["messages"][0]["content"];
    let parts = content.as_array().map_or(&[][..], Vec::as_slice);
    let text = content.as_str().or_else(|| parts.last()?["text"].as_str()).unwrap();
    let is_picture = |part: &&Value| {
        let url = part["image_url"]["url"].as_str();
        url.is_some_and(|url| url.starts_with("data:image/png;base64,"))
    };
    let asked = Asked {
        model: body["model"].as_str().unwrap_or_default().to_owned(),
        text: text.to_owned(),
        pictures: parts.iter().filter(is_picture).count(),
        key: key.to_owned(),
        ignore_eos: body["ignore_eos"] == true,
    };
    let mut all = state.asked.lock().unwrap();
    all.push(asked);
    all.len()
}

fn prompt_tokens(body: &Value) -> usize {
    let content = &body["messages"][0]["content"];
    let words = content.as_str().map_or(0, |text| text.split(' ').count());
    2 * words + 5
}

fn begin(mut out: &TcpStream) -> std::io::Result<()> {
    out.write_all(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
    )
}

fn chunk(mut out: &TcpStream, text: &str) -> std::io::Result<()> {
    out.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes())
}

fn document(mut out: &TcpStream, status: &str, document: &Value) -> std::io::Result<bool> {
    let text = document.to_string();
    write!(
        out,
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{text}",
        text.len()
    )?;
    Ok(true)
}
