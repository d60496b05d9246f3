//! A hub on this machine, with a second port that stands for the hub's storage, and with faults.
//!
//! Speaks what the module under test is said to speak: the revision API, `resolve` with redirects,
//! ranges, entity tags, tokens and error codes.  Every request is written down.  The tests of the
//! command include this file as well.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};
use sha1::Sha1;
use sha2::{Digest as _, Sha256};

pub(super) const COMMIT: &str = "00112233445566778899aabbccddeeff00112233";
pub(super) const REPO: &str = "org/tiny-model";

/// What goes wrong with one request for content.
#[derive(Clone, Copy)]
pub(super) enum Fault {
    /// The connection ends after so many bytes of the body.
    Cut(usize),
    /// One byte is wrong.
    Wrong,
    /// This status instead.
    Status(u16),
    /// The whole file whatever was asked for, as if it had changed.
    Whole,
    /// A body that goes on for one byte more than it should.
    Long,
    /// Nothing more after so many bytes of the body, until the client loses patience or its life.
    Stall(usize),
}

/// A request, as far as tests ask for it.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked {
    pub(super) is_storage: bool,
    pub(super) path: String,
    pub(super) authorization: Option<String>,
    pub(super) range: Option<String>,
    pub(super) if_range: Option<String>,
    is_head: bool,
}

pub(super) struct State {
    /// Name, content, whether it is a large file.
    pub(super) files: Vec<(String, Vec<u8>, bool)>,
    pub(super) commit: String,
    /// Whether the listing has sizes and hashes.
    pub(super) has_blobs: bool,
    /// A size that the listing claims for the file at this place.
    pub(super) claim: Option<(usize, u64)>,
    pub(super) token: Option<&'static str>,
    /// Whether a file that is not there is a bare 404, as mirrors answer.
    pub(super) names_no_errors: bool,
    /// Status and code for everything.
    pub(super) refusal: Option<(u16, &'static str)>,
    /// For the next requests for content of a large file.
    pub(super) faults: VecDeque<Fault>,
    /// For the next requests of any kind.
    pub(super) statuses: VecDeque<u16>,
    pub(super) asked: Vec<Asked>,
    storage: String,
}

pub(super) struct Server {
    pub(super) url: String,
    state: Arc<Mutex<State>>,
}

impl Server {
    pub(super) fn start(files: &[(&str, &[u8], bool)]) -> Self {
        let hub = TcpListener::bind("127.0.0.1:0").unwrap();
        let storage = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = |listener: &TcpListener| format!("http://{}", listener.local_addr().unwrap());
        let own = |(name, bytes, is_large): &(&str, &[u8], bool)| {
            ((*name).to_owned(), bytes.to_vec(), *is_large)
        };
        let state = Arc::new(Mutex::new(State {
            files: files.iter().map(own).collect(),
            commit: COMMIT.to_owned(),
            has_blobs: true,
            claim: None,
            names_no_errors: false,
            token: None,
            refusal: None,
            faults: VecDeque::new(),
            statuses: VecDeque::new(),
            asked: Vec::new(),
            storage: url(&storage),
        }));
        let server = Self { url: url(&hub), state: state.clone() };
        serve(hub, state.clone(), false);
        serve(storage, state, true);
        server
    }

    pub(super) fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
    }

    /// What was asked since the last call.
    pub(super) fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.state.lock().unwrap().asked)
    }
}

fn serve(listener: TcpListener, state: Arc<Mutex<State>>, is_storage: bool) {
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, state) = (stream.unwrap(), state.clone());
            // A client that hangs up in the middle is part of some tests.
            thread::spawn(move || answer(&stream, &state, is_storage).unwrap_or_default());
        }
    });
}

fn read(stream: &TcpStream, is_storage: bool) -> std::io::Result<Asked> {
    let mut lines = BufReader::new(stream).take(64 << 10).lines();
    let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let mut words = first.split(' ');
    let is_head = words.next() == Some("HEAD");
    let path = words.next().unwrap_or_default().to_owned();
    let mut asked = Asked { is_storage, path, is_head, ..Asked::default() };
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(": ") else { break };
        let value = Some(value.to_owned());
        match name.to_ascii_lowercase().as_str() {
            "authorization" => asked.authorization = value,
            "range" => asked.range = value,
            "if-range" => asked.if_range = value,
            _ => {}
        }
    }
    Ok(asked)
}

fn answer(stream: &TcpStream, state: &Mutex<State>, is_storage: bool) -> std::io::Result<()> {
    let asked = read(stream, is_storage)?;
    let mut state = state.lock().unwrap();
    state.asked.push(asked.clone());
    if let Some(status) = state.statuses.pop_front() {
        return send(stream, status, &[], b"", &asked);
    }
    if is_storage {
        let hash = asked.path.trim_start_matches("/lfs/").split('?').next().unwrap_or_default();
        let file = state.files.iter().find(|file| sha256(&file.1) == hash).cloned();
        let fault = state.faults.pop_front();
        drop(state);
        let Some((_, bytes, _)) = file else { return send(stream, 404, &[], b"", &asked) };
        return content(stream, &bytes, "\"storage-tag\"", &asked, fault);
    }
    let may = state.token.is_none_or(|token| {
        asked.authorization.as_deref() == Some(format!("Bearer {token}").as_str())
    });
    if let Some((status, code)) = state.refusal.or((!may).then_some((401, "GatedRepo"))) {
        return send(stream, status, &[("X-Error-Code", code)], b"", &asked);
    }
    if asked.path.starts_with(&format!("/api/models/{REPO}/revision/")) {
        let listing = listing(&state).to_string();
        return send(stream, 200, &[], listing.as_bytes(), &asked);
    }
    if asked.path.starts_with("/api/models/") {
        return send(stream, 404, &[("X-Error-Code", "RepoNotFound")], b"", &asked);
    }
    resolve(stream, &asked, &state)
}

fn resolve(stream: &TcpStream, asked: &Asked, state: &State) -> std::io::Result<()> {
    let prefix = format!("/{REPO}/resolve/{}/", state.commit);
    let name = asked.path.strip_prefix(&prefix);
    let Some((_, bytes, is_large)) = state.files.iter().find(|file| Some(file.0.as_str()) == name)
    else {
        let code = [("X-Error-Code", "EntryNotFound")];
        let code = if state.names_no_errors { &[] } else { &code[..] };
        return send(stream, 404, code, b"", asked);
    };
    if !is_large {
        return content(stream, bytes, &format!("\"{}\"", git(bytes)), asked, None);
    }
    let hash = sha256(bytes);
    let headers = [
        ("Location", format!("{}/lfs/{hash}?signed=yes", state.storage)),
        ("X-Linked-Etag", format!("\"{hash}\"")),
        ("X-Linked-Size", bytes.len().to_string()),
    ];
    let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));
    send(stream, 302, &headers, b"Found. Redirecting", asked)
}

fn listing(state: &State) -> Value {
    let sibling = |(name, bytes, is_large): &(String, Vec<u8>, bool)| match *is_large {
        _ if !state.has_blobs => json!({ "rfilename": name }),
        true => json!({
            "rfilename": name,
            "size": bytes.len(),
            "blobId": git(b"a pointer"),
            "lfs": { "sha256": sha256(bytes), "size": bytes.len(), "pointerSize": 134 },
        }),
        false => json!({ "rfilename": name, "size": bytes.len(), "blobId": git(bytes) }),
    };
    let mut siblings: Vec<Value> = state.files.iter().map(sibling).collect();
    if let Some((at, bytes)) = state.claim {
        siblings[at]["size"] = json!(bytes);
        if state.files[at].2 {
            siblings[at]["lfs"]["size"] = json!(bytes);
        }
    }
    json!({ "id": REPO, "sha": state.commit, "siblings": siblings })
}

/// Some bytes, or the part that was asked for, spoiled by the fault.
fn content(
    stream: &TcpStream,
    bytes: &[u8],
    etag: &str,
    asked: &Asked,
    fault: Option<Fault>,
) -> std::io::Result<()> {
    let range = asked.range.as_deref().and_then(|range| range.strip_prefix("bytes="));
    let (start, last) = range.and_then(|range| range.split_once('-')).unwrap_or(("0", ""));
    let start: usize = start.parse().unwrap();
    let end = last.parse().map_or(bytes.len(), |last: usize| bytes.len().min(last + 1));
    let is_same = asked.if_range.as_deref().is_none_or(|tag| tag == etag);
    let is_part = range.is_some() && is_same && !matches!(fault, Some(Fault::Whole));
    let (start, end) = if is_part { (start.min(end), end) } else { (0, bytes.len()) };
    let mut part = bytes[start..end].to_vec();
    match fault {
        Some(Fault::Status(status)) => return send(stream, status, &[], b"", asked),
        Some(Fault::Wrong) => part[0] ^= 1,
        Some(Fault::Long) => part.push(0),
        _ => {}
    }
    let range = format!("bytes {start}-{}/{}", end.saturating_sub(1), bytes.len());
    let headers = [("ETag", etag), ("Content-Range", &range)];
    let (status, headers) = if is_part { (206, &headers[..]) } else { (200, &headers[..1]) };
    let mut writer = stream;
    match fault {
        Some(Fault::Cut(count)) => {
            head(stream, status, headers, part.len())?;
            writer.write_all(&part[..count])
        }
        Some(Fault::Stall(count)) => {
            head(stream, status, headers, part.len())?;
            writer.write_all(&part[..count])?;
            writer.read(&mut [0]).map(|_| ())
        }
        _ => send(stream, status, headers, &part, asked),
    }
}

fn send(
    mut stream: &TcpStream,
    status: u16,
    headers: &[(&str, &str)],
    body: &[u8],
    asked: &Asked,
) -> std::io::Result<()> {
    head(stream, status, headers, body.len())?;
    if asked.is_head { Ok(()) } else { stream.write_all(body) }
}

fn head(
    mut stream: &TcpStream,
    status: u16,
    headers: &[(&str, &str)],
    length: usize,
) -> std::io::Result<()> {
    let mut text =
        format!("HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {length}\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{text}\r\n").as_bytes())
}

pub(super) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn git(bytes: &[u8]) -> String {
    let hasher = Sha1::new().chain_update(format!("blob {}\0", bytes.len())).chain_update(bytes);
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
