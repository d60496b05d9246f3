//! Stands between clients and a server of gRPC and counts requests, and bytes each way.
//!
//! What passes is not changed.  It is HTTP/2 without TLS, in which a request is a frame of headers from the client.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use anyhow::Result;
use nix::sys::socket::{Backlog, listen};

/// What a connection begins with, before its first frame.
const PREFACE_BYTES: usize = 24;
/// Of a frame before its content: three of its length, one of its kind.
const HEAD_BYTES: usize = 9;
/// The kind of frame that begins a request.
const HEADERS: u8 = 1;
/// Clients that wait for a connection: as many as Linux lets a server of gRPC have, where 128 are usual for Rust's.  Who finds no
/// place comes back after a second, and after three.
const WAITING_MAX: i32 = 4096;
/// Read at once, in each direction of each connection.
const BUFFER_BYTES: usize = 64 << 10;
/// Of a thread, which holds that and little else; there are two for each connection.
const STACK_BYTES: usize = 256 << 10;

/// The sums of all connections so far.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) requests: u64,
    /// From clients.
    pub(super) up_bytes: u64,
    /// From the server.
    pub(super) down_bytes: u64,
}

#[derive(Default)]
struct Sums {
    is_over: AtomicBool,
    requests: AtomicU64,
    up_bytes: AtomicU64,
    down_bytes: AtomicU64,
}

/// A port that leads to a server; no more of them come through once it is dropped.
pub(super) struct Counted {
    port: u16,
    sums: Arc<Sums>,
}

impl Counted {
    /// Leads to the server at a port of this machine.
    pub(super) fn before(server: u16) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        listen(&listener, Backlog::new(WAITING_MAX)?)?;
        let (port, sums) = (listener.local_addr()?.port(), Arc::<Sums>::default());
        let shared = sums.clone();
        thread::spawn(move || accept(&listener, server, &shared));
        Ok(Self { port, sums })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn counts(&self) -> Counts {
        let of = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
        Counts {
            requests: of(&self.sums.requests),
            up_bytes: of(&self.sums.up_bytes),
            down_bytes: of(&self.sums.down_bytes),
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.sums.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn accept(listener: &TcpListener, server: u16, sums: &Arc<Sums>) {
    for client in listener.incoming().map_while(Result::ok) {
        if sums.is_over.load(Ordering::Relaxed) {
            return;
        }
        // A client that is let go sees that its connection ended.
        let _ = join(client, server, sums);
    }
}

/// Passes on what either side says until it says no more.
fn join(client: TcpStream, server: u16, sums: &Arc<Sums>) -> io::Result<()> {
    let server = TcpStream::connect(("127.0.0.1", server))?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (up, down) = (sums.clone(), sums.clone());
    let mut frames = Frames::default();
    let (from, to) = (client.try_clone()?, server.try_clone()?);
    let thread = || thread::Builder::new().stack_size(STACK_BYTES);
    thread().spawn(move || {
        pass(&from, &to, |part| {
            up.up_bytes.fetch_add(part.len() as u64, Ordering::Relaxed);
            up.requests.fetch_add(frames.requests(part), Ordering::Relaxed);
        });
    })?;
    thread().spawn(move || {
        pass(&server, &client, |part| {
            down.down_bytes.fetch_add(part.len() as u64, Ordering::Relaxed);
        });
    })?;
    Ok(())
}

fn pass(mut from: &TcpStream, mut to: &TcpStream, mut seen: impl FnMut(&[u8])) {
    let mut buffer = vec![0; BUFFER_BYTES];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        seen(&buffer[..count]);
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// Where the frames of a client begin.
struct Frames {
    /// Bytes until the next one.
    skipped: usize,
    /// Of its head, as far as that has come.
    head: Vec<u8>,
}

impl Default for Frames {
    fn default() -> Self {
        Self { skipped: PREFACE_BYTES, head: Vec::with_capacity(HEAD_BYTES) }
    }
}

impl Frames {
    /// How many requests begin in what came next.
    fn requests(&mut self, mut part: &[u8]) -> u64 {
        let mut requests = 0;
        loop {
            let passed = self.skipped.min(part.len());
            self.skipped -= passed;
            part = &part[passed..];
            let taken = (HEAD_BYTES - self.head.len()).min(part.len());
            if taken == 0 {
                return requests;
            }
            self.head.extend_from_slice(&part[..taken]);
            part = &part[taken..];
            if let &[high, middle, low, kind, ..] = &self.head[..]
                && self.head.len() == HEAD_BYTES
            {
                self.skipped = u32::from_be_bytes([0, high, middle, low]) as usize;
                requests += u64::from(kind == HEADERS);
                self.head.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, bytes: usize) -> Vec<u8> {
        let length = &(bytes as u32).to_be_bytes()[1..];
        [length, &[kind, 0, 0, 0, 0, 1], &vec![HEADERS; bytes]].concat()
    }

    #[test]
    fn requests_are_counted_however_they_are_cut() {
        let settings = [vec![HEADERS; PREFACE_BYTES], frame(4, 0)].concat();
        let all = [settings, frame(1, 40), frame(0, 300), frame(1, 0), frame(8, 4)].concat();
        for size in [1, 2, 7, 9, 64, all.len()] {
            let mut frames = Frames::default();
            let counted: u64 = all.chunks(size).map(|part| frames.requests(part)).sum();
            assert_eq!(counted, 2, "parts of {size} bytes");
        }
    }
}
