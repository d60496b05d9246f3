//! Has the kernel refuse system calls that reach beyond what else is held.
//!
//! A filter binds a thread and all that it starts, for good.  It sees numbers and no memory: no path, no address of a
//! socket, and of a process its number but not whose it is.  The kernel runs programs of 32 bits beside ours, whose calls have
//! other numbers; they are held to the same.

use std::io;
use std::path::Path;

use nix::libc;
use seccompiler::{BpfProgram, apply_filter, sock_filter};

/// Of Linux's `audit.h`: our programs, and those of 32 bits on the same machine.
#[cfg(target_arch = "x86_64")]
const MACHINES: [u32; 2] = [0xc000_003e, 0x4000_0003];
#[cfg(not(target_arch = "x86_64"))]
const MACHINES: [u32; 2] = [0xc000_00b7, 0x4000_0028];

/// A system call, by its numbers in programs of [`MACHINES`].
type Call = [Option<u32>; 2];

/// A call of any machine, of i386 and of arm.
const fn call(own: i64, i386: u32, arm: u32) -> Call {
    [Some(own as u32), Some(if cfg!(target_arch = "x86_64") { i386 } else { arm })]
}

const IOCTL: Call = call(libc::SYS_ioctl, 54, 54);
const PRLIMIT: Call = call(libc::SYS_prlimit64, 340, 369);
const SETPRIORITY: Call = call(libc::SYS_setpriority, 97, 97);
const IOPRIO_SET: Call = call(libc::SYS_ioprio_set, 289, 314);
const FCNTL: Call = call(libc::SYS_fcntl, 55, 55);
/// With lengths of 64 bits, which our own programs have anyway.
const FCNTL64: Call = [None, Some(221)];
const ADD_KEY: Call = call(libc::SYS_add_key, 286, 309);
const REQUEST_KEY: Call = call(libc::SYS_request_key, 287, 310);
const KEYCTL: Call = call(libc::SYS_keyctl, 288, 311);
const SOCKET: Call = call(libc::SYS_socket, 359, 281);
const IO_URING_SETUP: Call = call(libc::SYS_io_uring_setup, 425, 425);
/// All calls of sockets in one, which our own programs have not.
const SOCKETCALL: Call = [None, Some(102)];
pub(super) const OPENAT: Call = call(libc::SYS_openat, 295, 322);
/// Without a folder that the path begins in, which only the older machines have.
#[cfg(target_arch = "x86_64")]
const OPEN: Call = call(libc::SYS_open, 5, 5);
#[cfg(not(target_arch = "x86_64"))]
const OPEN: Call = [None, Some(5)];

/// What an argument is, by its place.
type Argument = (u32, Is);

#[derive(Debug, Clone, Copy)]
enum Is {
    /// This number of 32 bits.
    Equal(u32),
    /// Any other.
    Other(u32),
    /// One of these.
    OneOf(&'static [u32]),
    /// It has any of these bits.
    Sets(u32),
    /// It has none of these bits.
    Lacks(u32),
    /// An address, and not none.
    Address,
}
use Is::{Address, Equal, Lacks, OneOf, Other, Sets};

/// A call is refused, or asked about, where all of these are so.
type Rule = (Call, &'static [Argument]);

/// What file systems do to files and folders through a descriptor that only reads, so that no rule about paths and writing is asked.
const BY_READERS: [u32; 11] = [
    0x5000_9401, // BTRFS_IOC_SNAP_CREATE
    0x5000_940e, // BTRFS_IOC_SUBVOL_CREATE
    0x5000_940f, // BTRFS_IOC_SNAP_DESTROY
    0x5000_9417, // BTRFS_IOC_SNAP_CREATE_V2
    0x5000_9418, // BTRFS_IOC_SUBVOL_CREATE_V2
    0x4008_941a, // BTRFS_IOC_SUBVOL_SETFLAGS
    0xc0c8_9425, // BTRFS_IOC_SET_RECEIVED_SUBVOL
    0xc0c0_9425, // the same in programs of 32 bits
    0x5000_943f, // BTRFS_IOC_SNAP_DESTROY_V2
    0x4080_6685, // FS_IOC_ENABLE_VERITY
    0x800c_6613, // FS_IOC_SET_ENCRYPTION_POLICY
];

/// The command of `fcntl` that takes a lease.
const SETLEASE: u32 = libc::F_SETLEASE as u32;

/// What no stage needs.
const BEYOND: [Rule; 13] = [
    // Types a letter as if the terminal's user had.
    (IOCTL, &[(1, Equal(0x5412))]),
    // Pastes what is marked on a console, and the like.
    (IOCTL, &[(1, Equal(0x541c))]),
    (IOCTL, &[(1, OneOf(&BY_READERS))]),
    // Sets limits of another process; those of its own it sets by the number 0.
    (PRLIMIT, &[(0, Other(0)), (2, Address)]),
    // Of another group, and of all that its user runs.
    (SETPRIORITY, &[(0, Equal(1)), (1, Other(0))]),
    (SETPRIORITY, &[(0, Equal(2))]),
    (IOPRIO_SET, &[(0, Equal(2)), (1, Other(0))]),
    (IOPRIO_SET, &[(0, Equal(3))]),
    // A lease stops whoever opens the file to write, for as long as `lease-break-time` says, and then whoever takes the next.
    (FCNTL, &[(1, Equal(SETLEASE))]),
    (FCNTL64, &[(1, Equal(SETLEASE))]),
    // The kernel's rings of keys belong to users and sessions, and are of no name space.
    (ADD_KEY, &[]),
    (REQUEST_KEY, &[]),
    (KEYCTL, &[]),
];

const LOCAL: u32 = libc::AF_UNIX as u32;
/// Sockets of other kinds than those between processes of a machine, and rings, by which the kernel itself makes them.
const FOREIGN: [Rule; 3] =
    [(SOCKET, &[(0, Other(LOCAL))]), (SOCKETCALL, &[(0, Equal(1))]), (IO_URING_SETUP, &[])];
/// All but pairs.
const SOCKETS: [Rule; 3] = [(SOCKET, &[]), (SOCKETCALL, &[(0, Equal(1))]), (IO_URING_SETUP, &[])];

const WRITES: u32 = (libc::O_WRONLY | libc::O_RDWR) as u32;
/// What is so opened was not there before.
const MAKES: u32 = (libc::O_EXCL | libc::O_TMPFILE & !libc::O_DIRECTORY) as u32;
/// A file that may be there already, to be written: `fopen` with `w`, as NVIDIA's library opens names, would make one.
const OPENINGS: [Rule; 2] = [
    (OPENAT, &[(2, Sets(WRITES)), (2, Lacks(MAKES))]),
    (OPEN, &[(1, Sets(WRITES)), (1, Lacks(MAKES))]),
];

/// Whether the kernel that `root` shows has filters, by its settings.
pub(super) fn are_there(root: &Path) -> bool {
    root.join("proc/sys/kernel/seccomp/actions_avail").exists()
}

/// Refuses what reaches other processes and terminals past every rule about paths.
pub(super) fn refuse_beyond() -> io::Result<()> {
    refuse(&BEYOND, libc::EPERM)
}

/// Refuses all sockets but those between processes of this machine; without `local` those too, but pairs.
pub(super) fn refuse_sockets(local: bool) -> io::Result<()> {
    refuse(if local { &FOREIGN } else { &SOCKETS }, libc::EACCES)
}

fn refuse(rules: &[Rule], errno: i32) -> io::Result<()> {
    apply_filter(&program(rules, refusal(errno))).map_err(io::Error::other)
}

/// Asks whoever listens before a file that may be there is opened to be written.
pub(super) fn asking() -> BpfProgram {
    program(&OPENINGS, libc::SECCOMP_RET_USER_NOTIF)
}

/// Where the kernel shows a filter the call's number, its machine and its arguments.
const NUMBER: u32 = 0;
const MACHINE: u32 = 4;
const ARGUMENTS: u32 = 16;

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;

fn refusal(errno: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | errno.cast_unsigned()
}

/// Answers so to the calls of these rules, and lets all others be.
fn program(rules: &[Rule], said: u32) -> BpfProgram {
    let [own, narrow] = [0, 1].map(|machine| {
        let mut part = if machine == 0 { without_x32() } else { Vec::new() };
        part.extend(rules.iter().flat_map(|(call, when)| rule(call[machine], when, said)));
        part.push(answer(ALLOW));
        part
    });
    let mut all = vec![load(MACHINE), unless_equal(MACHINES[0], own.len())];
    all.extend(own);
    all.push(unless_equal(MACHINES[1], narrow.len()));
    all.extend(narrow);
    // Neither: no kernel of these machines has such programs.
    all.push(answer(refusal(libc::ENOSYS)));
    all
}

/// Programs of 64 bits with addresses of 32 have other numbers yet; nobody builds them, and most kernels do not know them.
fn without_x32() -> Vec<sock_filter> {
    const X32: u32 = 0x4000_0000;
    if !cfg!(target_arch = "x86_64") {
        return Vec::new();
    }
    vec![load(NUMBER), instruction(JUMP | SHARES_BITS, X32, 0, 1), answer(refusal(libc::ENOSYS))]
}

/// Each test that fails leads behind the rule.
fn rule(number: Option<u32>, when: &[Argument], said: u32) -> Vec<sock_filter> {
    let Some(number) = number else { return Vec::new() };
    let mut tests = vec![answer(said)];
    for &(place, is) in when.iter().rev() {
        let low = ARGUMENTS + 8 * place;
        let rest = tests.len();
        let test = match is {
            Equal(number) => vec![load(low), unless_equal(number, rest)],
            Other(number) => vec![load(low), if_equal(number, rest)],
            OneOf(numbers) => [vec![load(low)], one_of(numbers, rest)].concat(),
            Sets(bits) => vec![load(low), instruction(JUMP | SHARES_BITS, bits, 0, rest)],
            Lacks(bits) => vec![load(low), instruction(JUMP | SHARES_BITS, bits, rest, 0)],
            // Either half will do.
            Address => vec![load(low), unless_equal(0, 2), load(low + 4), if_equal(0, rest)],
        };
        tests.splice(0..0, test);
    }
    let skipped = tests.len();
    [load(NUMBER), unless_equal(number, skipped)].into_iter().chain(tests).collect()
}

/// Of Linux's `bpf_common.h`.
const LOAD: u16 = 0x20;
const JUMP: u16 = 0x05;
const IS_EQUAL: u16 = 0x10;
const SHARES_BITS: u16 = 0x40;
const ANSWER: u16 = 0x06;

fn load(at: u32) -> sock_filter {
    instruction(LOAD, at, 0, 0)
}

fn answer(what: u32) -> sock_filter {
    instruction(ANSWER, what, 0, 0)
}

/// Leaves out so many instructions where what was loaded is another number.
fn unless_equal(number: u32, skipped: usize) -> sock_filter {
    instruction(JUMP | IS_EQUAL, number, 0, skipped)
}

fn if_equal(number: u32, skipped: usize) -> sock_filter {
    instruction(JUMP | IS_EQUAL, number, skipped, 0)
}

/// Leaves out so many instructions where what was loaded is none of these.
fn one_of(numbers: &[u32], skipped: usize) -> Vec<sock_filter> {
    let left = |at: usize| numbers.len() - 1 - at;
    let test = |(at, &number): (usize, &u32)| match left(at) {
        0 => unless_equal(number, skipped),
        left => if_equal(number, left),
    };
    numbers.iter().enumerate().map(test).collect()
}

fn instruction(code: u16, k: u32, if_so: usize, if_not: usize) -> sock_filter {
    let [jt, jf] =
        [if_so, if_not].map(|skipped| u8::try_from(skipped).expect("a filter is that short"));
    sock_filter { code, jt, jf, k }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel would answer to a call of a machine.
    fn answered(rules: &[Rule], machine: u32, number: u32, arguments: [u64; 3]) -> u32 {
        let program = program(rules, refusal(libc::EPERM));
        let word = |at: u32| match at {
            NUMBER => number,
            MACHINE => machine,
            at => {
                let at = at - ARGUMENTS;
                (arguments[at as usize / 8] >> (8 * (at % 8))) as u32
            }
        };
        let (mut at, mut loaded) = (0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at].clone();
            let jump = |so: bool| usize::from(if so { jt } else { jf });
            at += 1;
            match code {
                LOAD => loaded = word(k),
                ANSWER => return k,
                code if code == JUMP | IS_EQUAL => at += jump(loaded == k),
                code if code == JUMP | SHARES_BITS => at += jump(loaded & k != 0),
                code => panic!("{code:x}"),
            }
        }
    }

    #[track_caller]
    fn check(rules: &[Rule], call: Call, arguments: [u64; 3], is_refused: bool) {
        for (machine, number) in MACHINES.into_iter().zip(call) {
            let Some(number) = number else { continue };
            let said = answered(rules, machine, number, arguments);
            assert_eq!(said != ALLOW, is_refused, "{machine:x} {number}: {arguments:x?}");
        }
    }

    #[test]
    fn others_are_out_of_reach_and_oneself_is_not() {
        let [get, set] = [0, 0x7f00_0000_0000];
        check(&BEYOND, IOCTL, [0, 0x5412, 0], true);
        check(&BEYOND, IOCTL, [0, 0x541c, 0], true);
        check(&BEYOND, IOCTL, [0, 0xffff_ffff_0000_5412, 0], true);
        check(&BEYOND, IOCTL, [0, 0x5401, 0], false);
        for request in BY_READERS {
            check(&BEYOND, IOCTL, [0, request.into(), 0], true);
            check(&BEYOND, IOCTL, [0, u64::from(request) | 1 << 40, 0], true);
            check(&BEYOND, IOCTL, [0, u64::from(request) ^ 0x40, 0], false);
        }
        check(&BEYOND, PRLIMIT, [7, 7, set], true);
        check(&BEYOND, PRLIMIT, [7, 7, 1], true);
        check(&BEYOND, PRLIMIT, [7, 7, get], false);
        check(&BEYOND, PRLIMIT, [0, 7, set], false);
        for (call, [one, group, user]) in [(SETPRIORITY, [0, 1, 2]), (IOPRIO_SET, [1, 2, 3])] {
            check(&BEYOND, call, [one, 7, 0], false);
            check(&BEYOND, call, [group, 0, 0], false);
            check(&BEYOND, call, [group, 7, 0], true);
            check(&BEYOND, call, [user, 0, 0], true);
        }
        for call in [FCNTL, FCNTL64] {
            check(&BEYOND, call, [3, 1024, 0], true);
            check(&BEYOND, call, [3, 1025, 0], false);
            check(&BEYOND, call, [3, 37, 1024], false);
        }
        for call in [ADD_KEY, REQUEST_KEY, KEYCTL] {
            check(&BEYOND, call, [0; 3], true);
        }
        check(&BEYOND, SOCKET, [2, 1, 0], false);
    }

    #[test]
    fn sockets_are_those_of_the_machine_or_none() {
        let [local, internet, between_machines] = [1, 2, 40];
        for (rules, with_local) in [(&FOREIGN, false), (&SOCKETS, true)] {
            check(rules, SOCKET, [local, 1, 0], with_local);
            check(rules, SOCKET, [internet, 1, 0], true);
            check(rules, SOCKET, [between_machines, 1, 0], true);
            check(rules, SOCKETCALL, [1, 0, 0], true);
            check(rules, SOCKETCALL, [8, 0, 0], false);
            check(rules, IO_URING_SETUP, [4, 0, 0], true);
        }
    }

    #[test]
    fn files_that_are_there_are_asked_about_where_they_are_written() {
        let flags = |flags: i32| u64::from(flags.cast_unsigned());
        for (asked, is_so) in [
            (libc::O_WRONLY, true),
            (libc::O_RDWR | libc::O_CLOEXEC, true),
            (libc::O_WRONLY | libc::O_TRUNC, true),
            (libc::O_RDONLY | libc::O_DIRECTORY, false),
            (libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC, true),
            (libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL, false),
            (libc::O_RDWR | libc::O_TMPFILE, false),
        ] {
            check(&OPENINGS, OPENAT, [0, 0, flags(asked)], is_so);
            check(&OPENINGS, OPEN, [0, flags(asked), 0], is_so);
        }
    }

    #[test]
    fn what_is_of_no_machine_here_is_unknown() {
        let unknown = refusal(libc::ENOSYS);
        assert_eq!(answered(&BEYOND, 0x1234, 0, [0; 3]), unknown);
        if cfg!(target_arch = "x86_64") {
            assert_eq!(answered(&BEYOND, MACHINES[0], 0x4000_0000, [0; 3]), unknown);
        }
    }
}
