//! Listens to the kernel telling of every task that ends (`TASKSTATS` over generic netlink), so that
//! peaks are known that no sample saw.
//!
//! One socket for the whole process.  A thread empties it some time after something has come, so
//! that many ends cost one wake-up; whoever begins or ends an attempt empties it too, and thereby
//! hears all that happened before.  The kernel tells only those who may administer the network, in
//! the first process namespace; others go on with samples.

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, sendto,
    setsockopt, socket, sockopt,
};

use crate::family::{AttemptProcesses, ExitTotals};
use crate::genetlink::{self, Message, attribute, messages, request, u16_at};
use crate::kernel_file;
use crate::taskstats;

/// Ask for a family's number by its name.
const GET_FAMILY: u8 = 3;
const FAMILY_NAME: u16 = 2;
const FAMILY_ID: u16 = 1;
/// An end takes some 2 KiB there, and the kernel doubles what is asked for: four thousand until the
/// thread comes, forty thousand a second.  It is taken when it is needed.
const SOCKET_BYTES: usize = 4 << 20;
/// A datagram tells of one end in a KiB or two.
const DATAGRAM_BYTES: usize = 16 << 10;
/// How long ends gather before the thread takes them: beside a build of other software there are
/// hundreds a second, and waking up for each would cost more than reading them.
const GATHER_MS: u16 = 100;
/// The kernel answers at once; ends of other tasks may come before its answer.
const ANSWER_MS: u16 = 200;
const ANSWER_DATAGRAMS_MAX: usize = 4096;

/// A subscription; the last copy ends it.
#[derive(Debug, Clone)]
pub struct Exits {
    shared: Arc<Shared>,
    /// The thread ends with this end of its pipe.
    _thread: Arc<PipeWriter>,
}

/// The ends of one attempt's tasks.
#[derive(Debug)]
pub struct Followed {
    shared: Arc<Shared>,
    leader: u32,
}

#[derive(Debug)]
struct Shared {
    socket: OwnedFd,
    /// The number that the kernel gave the family of messages.
    family: u16,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// One for each attempt that runs.
    families: Vec<(u32, AttemptProcesses)>,
    datagram: Vec<u8>,
}

impl Exits {
    /// Subscribes; an error says why the kernel does not tell.
    pub fn listen(root: &Path) -> io::Result<Self> {
        let socket = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            SockProtocol::NetlinkGeneric,
        )?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        let family = family_number(&socket)?;
        // Beyond what everybody may have; the usual size holds a hundred ends.
        let _ = setsockopt(&socket, sockopt::RcvBufForce, &SOCKET_BYTES);
        let processors = kernel_file::text(root.join("sys/devices/system/cpu/possible"))?;
        let processors = format!("{}\0", processors.trim());
        let subscribe = request(
            family,
            taskstats::COMMAND_GET,
            taskstats::ATTRIBUTE_REGISTER,
            processors.as_bytes(),
        );
        ask(&socket, &subscribe, |_| {})?;
        let state = State { families: Vec::new(), datagram: vec![0; DATAGRAM_BYTES] };
        let shared = Arc::new(Shared { socket, family, state: Mutex::new(state) });
        let (reader, writer) = io::pipe()?;
        let of_thread = Arc::clone(&shared);
        thread::Builder::new().name("exits".to_owned()).spawn(move || of_thread.attend(&reader))?;
        Ok(Self { shared, _thread: Arc::new(writer) })
    }

    /// Follows the tree below the process `leader`, which must have no children yet.
    pub fn follow(&self, leader: u32) -> Followed {
        let mut state = self.shared.heard();
        // Who led two attempts at once would be a bug; the older one is then over.
        state.families.retain(|(other, _)| *other != leader);
        state.families.push((leader, AttemptProcesses::new(leader)));
        Followed { shared: Arc::clone(&self.shared), leader }
    }
}

impl Followed {
    /// Takes a sample of the tree: the ids of its processes.
    pub fn saw(&self, pids: &[u32]) {
        let mut state = self.shared.state();
        if let Some((_, family)) = state.families.iter_mut().find(|(id, _)| *id == self.leader) {
            family.saw(pids);
        }
    }

    /// All that was told until now; ends that happened before are in it.
    pub fn told(&self) -> ExitTotals {
        let state = self.shared.heard();
        let family = state.families.iter().find(|(id, _)| *id == self.leader);
        family.map(|(_, family)| family.told()).unwrap_or_default()
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.shared.state().families.retain(|(id, _)| *id != self.leader);
    }
}

impl Shared {
    /// Empties the socket now and then until the pipe ends.
    fn attend(&self, end: &PipeReader) {
        let end = PollFd::new(end.as_fd(), PollFlags::empty());
        loop {
            let ends = PollFd::new(self.socket.as_fd(), PollFlags::POLLIN);
            let mut fds = [end.clone(), ends];
            let waited = poll(&mut fds, PollTimeout::NONE);
            let mut fds = [end.clone()];
            // Hangs up when the subscription ends; until then it is only a pause.
            match waited.and_then(|_| poll(&mut fds, PollTimeout::from(GATHER_MS))) {
                Ok(0) => drop(self.heard()),
                Err(Errno::EINTR) => {}
                _ => return,
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state after all that has been told until now.
    fn heard(&self) -> MutexGuard<'_, State> {
        let mut state = self.state();
        // As many datagrams as the socket holds; what comes meanwhile is for the next time.
        for _ in 0..SOCKET_BYTES / 256 {
            let State { families, datagram } = &mut *state;
            match recv(self.socket.as_raw_fd(), datagram, MsgFlags::MSG_DONTWAIT) {
                Ok(length) => self.take(families, &datagram[..length]),
                Err(Errno::EINTR) => {}
                // The socket was full; nobody knows of how many ends we did not hear.
                Err(Errno::ENOBUFS) => families.iter_mut().for_each(|(_, f)| f.lost(1)),
                Err(_) => break,
            }
        }
        state
    }

    fn take(&self, families: &mut [(u32, AttemptProcesses)], datagram: &[u8]) {
        if families.is_empty() {
            return;
        }
        for message in messages(datagram) {
            let Message::Command { family, attributes } = message else { continue };
            if family != self.family {
                continue;
            }
            for exit in taskstats::exits(attributes) {
                families.iter_mut().for_each(|(_, family)| family.take(exit));
            }
        }
    }
}

/// The number that this kernel has given to taskstats.
fn family_number(socket: &OwnedFd) -> io::Result<u16> {
    let mut number = None;
    let request = request(genetlink::CONTROL, GET_FAMILY, FAMILY_NAME, taskstats::FAMILY);
    ask(socket, &request, |message| {
        if let Message::Command { attributes, .. } = message {
            number = attribute(attributes, FAMILY_ID).and_then(|id| u16_at(id, 0)).or(number);
        }
    })?;
    number.ok_or_else(|| io::Error::from(Errno::ENOENT))
}

/// Sends a request, shows what comes to `see`, and waits for the answer.
fn ask(socket: &OwnedFd, request: &[u8], mut see: impl FnMut(&Message<'_>)) -> io::Result<()> {
    let fd = socket.as_raw_fd();
    sendto(fd, request, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    let mut datagram = vec![0; DATAGRAM_BYTES];
    for _ in 0..ANSWER_DATAGRAMS_MAX {
        let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
        if poll(&mut fds, PollTimeout::from(ANSWER_MS))? == 0 {
            break;
        }
        let length = recv(fd, &mut datagram, MsgFlags::MSG_DONTWAIT)?;
        for message in messages(&datagram[..length]) {
            match message {
                Message::Answer(0) => return Ok(()),
                Message::Answer(error) => {
                    return Err(io::Error::from_raw_os_error(error.saturating_neg()));
                }
                Message::Command { .. } => see(&message),
            }
        }
    }
    Err(io::Error::from(Errno::ETIMEDOUT))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// Whoever may not listen measures by samples, and has nothing to test here.
    fn exits() -> Option<Exits> {
        Exits::listen(Path::new("/")).ok()
    }

    #[test]
    fn a_spike_that_no_sample_saw_is_told() {
        let Some(exits) = exits() else { return };
        // The shell leads, as a shim does; what it starts is followed.
        let mut leader = Command::new("sh")
            .args(["-c", "read go; sh -c 'head -c 40000000 /dev/zero | tail -c 40000000 | wc -c; true'; true"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let followed = exits.follow(leader.id());
        io::Write::write_all(&mut leader.stdin.take().unwrap(), b"go\n").unwrap();
        leader.wait().unwrap();
        let told = followed.told();
        assert_eq!((told.exits, told.lost), (4, 0), "sh, head, tail, wc");
        assert!(told.rss_process_peak_bytes > 39_000_000, "{told:?}");
        assert!(told.rss_process_peak_bytes < 80_000_000, "{told:?}");
        assert!(told.vms_process_peak_bytes >= told.rss_process_peak_bytes, "{told:?}");
        drop(followed);
        assert!(exits.shared.state().families.is_empty());
    }

    #[test]
    fn a_full_socket_is_told_and_nothing_breaks() {
        let Some(exits) = exits() else { return };
        let followed = exits.follow(std::process::id());
        {
            // Nobody empties it meanwhile.
            let _state = exits.shared.state();
            setsockopt(&exits.shared.socket, sockopt::RcvBufForce, &4096usize).unwrap();
            for _ in 0..40 {
                Command::new("true").status().unwrap();
            }
        }
        assert!(followed.told().lost > 0);
        Command::new("true").status().unwrap();
        assert!(followed.told().exits > 0);
    }
}
