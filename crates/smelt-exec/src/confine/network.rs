//! Keeps a strict program from every network, the machine's own loopback included.
//!
//! A network name space of its own has none; it takes the right to make one.  Sockets that no such name space holds, as those
//! between machines and their hosts, the kernel refuses besides, so that both ways mean the same.  Those between processes of a
//! machine have names in the file system: where what is not to be seen is not covered, only pairs are left.

use std::io;

use nix::libc;
use nix::sched::{CloneFlags, unshare};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};
use serde::{Deserialize, Serialize};

use super::Strict;
use super::{filter, in_thread};

/// What a strict program has of networks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    /// The machine's, as it declares.
    Declared,
    /// None: it is in a name space without one.
    NameSpace,
    /// None: the kernel refuses it sockets.  Where it may not mount either, that is all sockets but pairs.
    Filter,
}

impl Network {
    /// For a person.
    pub fn words(self) -> &'static str {
        match self {
            Self::Declared => "the network that they declare",
            Self::NameSpace => "no network (a name space without one)",
            Self::Filter => "no network (the kernel refuses sockets)",
        }
    }
}

/// The way that this machine has, by trying it in a thread that ends.
pub(super) fn find(may_unshare: bool) -> Option<Network> {
    if may_unshare {
        return Some(Network::NameSpace);
    }
    in_thread(|| filter::refuse_sockets(false)).is_ok().then_some(Network::Filter)
}

/// Takes the network from this thread and all that it starts, unless `strict` has it.  Where what it is not to see `is_covered`, it
/// may have sockets that lie where it writes.
pub(super) fn hold(strict: &Strict, is_covered: bool) -> io::Result<Network> {
    if strict.network {
        return Ok(Network::Declared);
    }
    let has_none = is_covered && unshare(CloneFlags::CLONE_NEWNET).is_ok();
    filter::refuse_sockets(is_covered).map_err(|error| {
        io::Error::other(format!("it cannot be kept from the network: {error}"))
    })?;
    Ok(if has_none { Network::NameSpace } else { Network::Filter })
}

/// Takes from this thread, for good, all sockets, other processes, and processes of its own beside threads.
pub(super) fn seal() -> io::Result<()> {
    const THREAD: u64 = libc::CLONE_THREAD as u64;
    let bits = SeccompCmpOp::MaskedEq(THREAD);
    let apply = |calls: Vec<(i64, Vec<SeccompRule>)>, errno: i32| {
        let rules = calls
            .into_iter()
            .flat_map(|(call, rules)| numbers(call).map(move |n| (n, rules.clone())))
            .collect();
        let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(io::Error::other)?;
        let refused = SeccompAction::Errno(errno.cast_unsigned());
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch);
        let filter: BpfProgram = filter.and_then(TryInto::try_into).map_err(io::Error::other)?;
        apply_filter(&filter).map_err(io::Error::other)
    };
    let no_thread = SeccompCondition::new(0, SeccompCmpArgLen::Qword, bits, 0);
    let no_thread = no_thread.and_then(|condition| SeccompRule::new(vec![condition]));
    let mut calls = vec![(libc::SYS_clone, vec![no_thread.map_err(io::Error::other)?])];
    let never = [
        libc::SYS_socket,
        libc::SYS_socketpair,
        libc::SYS_io_uring_setup,
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_kill,
        libc::SYS_bpf,
        libc::SYS_unshare,
        libc::SYS_setns,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_vfork,
    ];
    calls.extend(never.map(|call| (call, Vec::new())));
    apply(calls, libc::EACCES)?;
    // Its flags lie in memory, where no filter looks; libraries then take the older call.
    apply(vec![(libc::SYS_clone3, Vec::new())], libc::ENOSYS)
}

/// A call's numbers: on x86-64 it has another for programs of 32-bit pointers.
fn numbers(call: i64) -> impl Iterator<Item = i64> {
    const X32: i64 = 0x4000_0000;
    let has_x32 = cfg!(target_arch = "x86_64");
    [call].into_iter().chain(has_x32.then_some(call | X32))
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use super::*;

    #[test]
    fn without_rights_sockets_are_refused_but_those_of_the_machine() {
        for local in [true, false] {
            let said = in_thread(|| {
                filter::refuse_sockets(local)?;
                let inet = UdpSocket::bind("127.0.0.1:0").map(drop);
                let unix = UnixDatagram::unbound().is_ok();
                Ok((inet.map_err(|error| error.kind()), UnixStream::pair().is_ok(), unix))
            });
            assert_eq!(said.unwrap(), (Err(io::ErrorKind::PermissionDenied), true, local));
        }
        assert!(UdpSocket::bind("127.0.0.1:0").is_ok(), "whoever starts it has them");
    }
}
