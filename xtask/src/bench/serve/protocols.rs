//! Asks one server for one token in every protocol, over connections that stay, and says what each takes.
//!
//! All ask the same of the same model, in turns, so that what they differ by is what reading and writing them takes.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::bench::measure::median;
use crate::server::Server;

/// What everybody asks.
const WORDS: &str = "How many circles are there?";

/// A protocol, where it is spoken, and how it asks for a token.
pub(super) struct Protocol {
    pub(super) name: &'static str,
    path: &'static str,
    body: fn() -> Value,
}

/// All that chats can be asked in, chats first.
pub(super) const PROTOCOLS: [Protocol; 4] = [
    Protocol { name: "chats", path: "/v1/chat/completions", body: chat },
    Protocol { name: "Responses", path: "/v1/responses", body: responses },
    Protocol { name: "Messages", path: "/v1/messages", body: chat },
    Protocol { name: "Ollama", path: "/api/chat", body: ollama },
];

fn turns() -> Value {
    json!([{ "role": "user", "content": WORDS }])
}

fn chat() -> Value {
    json!({ "model": "bench", "messages": turns(), "max_tokens": 1, "temperature": 0 })
}

fn responses() -> Value {
    json!({ "model": "bench", "input": turns(), "max_output_tokens": 1, "temperature": 0, "store": false })
}

fn ollama() -> Value {
    let options = json!({ "num_predict": 1, "temperature": 0 });
    json!({ "model": "bench", "messages": turns(), "options": options, "stream": false })
}

/// What a token takes who asks in each protocol, in milliseconds: medians of so many turns.
pub(super) fn token_ms(server: &Server, turns: usize) -> Result<Vec<f64>> {
    let mut clients = PROTOCOLS.iter().map(|protocol| Client::new(server, protocol, ""));
    let mut clients = clients.by_ref().collect::<Result<Vec<_>>>()?;
    in_turns(&mut clients, turns)
}

/// What a token takes in chats under the last key of each server, in milliseconds.
pub(super) fn keyed_ms(servers: &[(&Server, String)], turns: usize) -> Result<Vec<f64>> {
    let client = |(server, key): &(&Server, String)| Client::new(server, &PROTOCOLS[0], key);
    let mut clients = servers.iter().map(client).collect::<Result<Vec<_>>>()?;
    in_turns(&mut clients, turns)
}

/// Medians of what each takes; the first turn warms all up.
fn in_turns(clients: &mut [Client], turns: usize) -> Result<Vec<f64>> {
    let mut taken = vec![Vec::with_capacity(turns); clients.len()];
    for turn in 0..=turns {
        for (client, taken) in clients.iter_mut().zip(&mut taken) {
            let begun = Instant::now();
            client.ask()?;
            if turn > 0 {
                taken.push(begun.elapsed().as_secs_f64() * 1e3);
            }
        }
    }
    Ok(taken.into_iter().map(median).collect())
}

/// A connection that asks the same again and again.
struct Client {
    stream: BufReader<TcpStream>,
    request: Vec<u8>,
}

impl Client {
    fn new(server: &Server, protocol: &Protocol, key: &str) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", server.port()))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let body = (protocol.body)().to_string();
        let key = if key.is_empty() { String::new() } else { format!("x-api-key: {key}\r\n") };
        let request = format!(
            "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{key}Content-Length: {}\r\n\r\n{body}",
            protocol.path,
            body.len()
        );
        Ok(Self { stream: BufReader::new(stream), request: request.into_bytes() })
    }

    /// Asks, and reads all of the answer, which must be one.
    fn ask(&mut self) -> Result<()> {
        self.stream.get_mut().write_all(&self.request)?;
        let (mut head, mut length) = (String::new(), None);
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line)?;
            if line.trim().is_empty() {
                break;
            }
            let line = line.to_lowercase();
            length =
                line.strip_prefix("content-length:").map(str::trim).map(str::to_owned).or(length);
            head.push_str(&line);
        }
        let length: usize = length.context("an answer says how long it is")?.parse()?;
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        let body = String::from_utf8_lossy(&body);
        ensure!(head.starts_with("http/1.1 200"), "{head}{body}");
        Ok(())
    }
}
