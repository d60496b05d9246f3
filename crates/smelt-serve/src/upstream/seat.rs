//! A request's place among those that a server is sent at once.
//!
//! A client may leave in the middle.  Its connection to the server is closed then, but the server goes on until it sees that,
//! and one that must not be asked two things at once would be.  So the place is kept until the server has let go of its end,
//! which the kernel tells, and a little longer: what it was at it ends first.

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep};

use super::watcher::Shared;

/// How often it is looked whether the server has let go.
const LOOK_PERIOD: Duration = Duration::from_millis(50);
/// How long behind that: a step of a large model on a small board.
const SETTLES: Duration = Duration::from_millis(500);
/// A server that holds on for longer has hung, and is ended before.
const LET_GO_TIME_MAX: Duration = Duration::from_secs(150);

/// The kernel's list of connections.
const CONNECTIONS: &str = "/proc/self/net/tcp";

/// A place, until this is dropped.
pub(super) struct Seat(Option<Place>);

struct Place {
    shared: Arc<Shared>,
    permit: Option<OwnedSemaphorePermit>,
    /// Our end and the server's, while an answer is under way.
    connection: Option<[u16; 2]>,
}

impl Seat {
    /// Among those that wait; the request was counted.
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self(Some(Place { shared: Arc::clone(shared), permit: None, connection: None }))
    }

    /// Among those that the server has.
    pub(super) fn takes(&mut self, permit: Option<OwnedSemaphorePermit>) {
        if let Some(place) = &mut self.0 {
            place.permit = permit;
        }
    }

    /// The request goes over the connection between these ends.
    pub(super) fn connects(&mut self, own: Option<SocketAddr>, server: SocketAddr) {
        if let Some(place) = &mut self.0 {
            place.connection = own.map(|own| [own.port(), server.port()]);
        }
    }

    /// The server has answered, or is gone.
    pub(super) fn is_done(&mut self) {
        if let Some(place) = &mut self.0 {
            place.connection = None;
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let Some(place) = self.0.take() else { return };
        match (place.connection, Handle::try_current()) {
            (Some(ends), Ok(runtime)) => drop(runtime.spawn(place.leave(ends))),
            _ => drop(place),
        }
    }
}

impl Place {
    /// Is given up when the server has let go of the connection.
    async fn leave(self, ends: [u16; 2]) {
        let begun = Instant::now();
        while begun.elapsed() < LET_GO_TIME_MAX && is_held(ends) {
            sleep(LOOK_PERIOD).await;
        }
        sleep(SETTLES).await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(self.permit.take());
        self.shared.live.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Whether the server still has its end of the connection.
fn is_held([own, server]: [u16; 2]) -> bool {
    let list = fs::read_to_string(CONNECTIONS).unwrap_or_default();
    is_listed(&list, [server, own])
}

/// Whether a list of connections, as `proc_net_tcp(5)` has it, has the end of one at `from` whose other end is at `to`.
fn is_listed(list: &str, [from, to]: [u16; 2]) -> bool {
    let port = |address: &str| u16::from_str_radix(address.rsplit_once(':')?.1, 16).ok();
    let ends = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        Some([port(words.next()?)?, port(words.next()?)?])
    };
    list.lines().skip(1).any(|line| ends(line) == Some([from, to]))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_kernel_tells_when_a_server_has_let_go() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        let ends = [&ours, &theirs].map(|end| end.local_addr().unwrap().port());
        assert!(is_held(ends));
        drop(ours);
        assert!(is_held(ends), "it has not noticed yet");
        drop(theirs);
        assert!(!is_held(ends));
    }

    #[test]
    fn both_ends_count() {
        let list = "  sl  local_address rem_address   st\n\
            \x20  0: 0100007F:1F90 0100007F:C350 08 00000000:00000000\n   1: odd\n";
        assert!(is_listed(list, [8080, 50000]));
        assert!(!is_listed(list, [50000, 8080]) && !is_listed(list, [8080, 1]));
    }
}
