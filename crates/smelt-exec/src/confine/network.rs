//! Keeps a strict program from every network, the machine's own loopback included.
//!
//! A network name space of its own has none; it takes the right to make one.  Without that right the kernel
//! refuses all sockets but those between processes of a machine.

use std::io;

use nix::libc;
use nix::sched::{CloneFlags, unshare};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};
use serde::{Deserialize, Serialize};

use super::in_thread;
use crate::order::Strict;

/// What a strict program has of networks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    /// The machine's, as it declares.
    Declared,
    /// None: it is in a name space without one.
    NameSpace,
    /// None: the kernel refuses it sockets.
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
    in_thread(refuse_sockets).is_ok().then_some(Network::Filter)
}

/// Takes the network from this thread and all that it starts, unless `strict` has it.
pub(super) fn hold(strict: &Strict) -> io::Result<Network> {
    if strict.network {
        return Ok(Network::Declared);
    }
    match unshare(CloneFlags::CLONE_NEWNET) {
        Ok(()) => Ok(Network::NameSpace),
        Err(_) => refuse_sockets().map(|()| Network::Filter).map_err(|error| {
            io::Error::other(format!("it cannot be kept from the network: {error}"))
        }),
    }
}

fn refuse_sockets() -> io::Result<()> {
    let filter = filter().map_err(io::Error::other)?;
    apply_filter(&filter).map_err(io::Error::other)
}

/// No sockets but those of `AF_UNIX`, and no rings, by which the kernel itself would make them.
fn filter() -> Result<BpfProgram, seccompiler::BackendError> {
    let other = SeccompCondition::new(
        0,
        SeccompCmpArgLen::Dword,
        SeccompCmpOp::Ne,
        libc::AF_UNIX.cast_unsigned().into(),
    )?;
    let sockets = SeccompRule::new(vec![other])?;
    let calls = [(libc::SYS_socket, vec![sockets]), (libc::SYS_io_uring_setup, Vec::new())];
    let rules =
        calls.into_iter().flat_map(|(call, rules)| numbers(call).map(move |n| (n, rules.clone())));
    let refused = SeccompAction::Errno(libc::EACCES.cast_unsigned());
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    SeccompFilter::new(rules.collect(), SeccompAction::Allow, refused, arch)?.try_into()
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
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn without_rights_sockets_are_refused_but_those_of_the_machine() {
        let said = in_thread(|| {
            refuse_sockets()?;
            let inet = UdpSocket::bind("127.0.0.1:0").map(drop);
            Ok((inet.map_err(|error| error.kind()), UnixStream::pair().is_ok()))
        });
        assert_eq!(said.unwrap(), (Err(io::ErrorKind::PermissionDenied), true));
        assert!(UdpSocket::bind("127.0.0.1:0").is_ok(), "whoever starts it has them");
    }
}
