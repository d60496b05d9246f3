//! Holds many streams open whose clients wait, and says what they take of the server's memory.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use smelt_watch::Sample;

use crate::server::{Server, http_get};

/// Longer than any answer takes while this looks on.
const ANSWER_TOKENS: usize = 900;

/// How long the server has to settle with all its clients.
const SETTLE: Duration = Duration::from_secs(3);

/// What `count` clients take in MiB, in anonymous memory without keys and values, which are those of the
/// few that are answered meanwhile.  Each asks for a long answer as a stream, so that all others wait.
pub(super) fn memory_mib(server: &Server, count: usize) -> Result<f64> {
    // As many answers as the server gives at once, so that what those hold is there before.
    drop(ask(server, 8)?);
    thread::sleep(SETTLE);
    let before = own_bytes(server)?;
    let clients = ask(server, count)?;
    thread::sleep(SETTLE);
    let after = own_bytes(server)?;
    let refused = clients.iter().filter(|client| is_refused(client)).count();
    ensure!(refused == 0, "{refused} of {count} clients were refused");
    Ok((after - before) / f64::from(1 << 20))
}

fn ask(server: &Server, count: usize) -> Result<Vec<TcpStream>> {
    let body = format!(
        "{{\"model\":\"bench\",\"messages\":[{{\"role\":\"user\",\"content\":\"hi\"}}],\"stream\":true,\"ignore_eos\":true,\"max_tokens\":{ANSWER_TOKENS}}}"
    );
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let open = |_| -> Result<TcpStream> {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port()))?;
        stream.write_all(request.as_bytes())?;
        Ok(stream)
    };
    (0..count).map(open).collect()
}

/// Whether a client was told anything but that its stream begins.
fn is_refused(client: &TcpStream) -> bool {
    let mut head = [0; 12];
    let mut client = client;
    let told = client.set_nonblocking(true).and_then(|()| client.read(&mut head));
    told.is_ok_and(|count| !head[..count].ends_with(b" 200"))
}

fn own_bytes(server: &Server) -> Result<f64> {
    let metrics = http_get(server.port(), "/metrics")?;
    let metric = |name: &str| -> Result<f64> {
        let line = metrics.lines().find(|line| line.starts_with(name));
        let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
        value.with_context(|| format!("the server counts no {name}"))
    };
    let sample = Sample::of(server.pid()).context("the server has ended")?;
    let kv_bytes = metric("smelt_kv_blocks_held{")? * metric("smelt_kv_block_bytes{")?;
    Ok(sample.rss_anon_bytes as f64 - kv_bytes)
}
