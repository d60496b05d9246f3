//! Takes from a thread of root's what a build has no use for, and from all that it starts.
//!
//! What a program of root's may do beyond writing files (mount, make device nodes, mark files as
//! immutable, trace others, load modules) goes around every other confinement.  The list says what
//! stays, so that what a later kernel invents is dropped too.

use std::io;

use nix::errno::Errno;
use nix::sys::prctl::get_no_new_privs;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set,
    set_capabilities,
};
use smelt_plan::kind::CAPABILITIES;

/// What builds and installers use as root: any owner's files, other users, low ports, pinned memory.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::IPC_LOCK)
    // Without it `su` fails on systems that audit.
    .union(CapabilitySet::AUDIT_WRITE);

/// What of it makes a thread another user, who may trace that user's processes and go through their `/proc/PID/root`, wherever that
/// leads.
const BECOMES_OTHERS: CapabilitySet = CapabilitySet::SETGID.union(CapabilitySet::SETUID);

/// Whether this process may do what mounting and unsharing take.
pub(super) fn may_mount() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// Leaves this thread, and what it starts, the usual ones and those `declared` by their names.  Those that make it another user are
/// usual where it `may_become_others`.
pub(super) fn drop_but(declared: &[String], may_become_others: bool) -> io::Result<()> {
    let held = capabilities(None)?;
    if held.permitted.is_empty() && held.inheritable.is_empty() {
        return Ok(());
    }
    let wanted = wanted(declared, may_become_others);
    bound(&held, wanted)?;
    set_capabilities(
        None,
        CapabilitySets {
            effective: held.effective & wanted,
            permitted: held.permitted & wanted,
            inheritable: held.inheritable & wanted,
        },
    )?;
    Ok(())
}

/// Leaves this thread, and what it starts, none.
pub(super) fn drop_all() -> io::Result<()> {
    let none = CapabilitySet::empty();
    bound(&capabilities(None)?, none)?;
    Ok(set_capabilities(
        None,
        CapabilitySets { effective: none, permitted: none, inheritable: none },
    )?)
}

/// A program that root starts gets whatever is in the bounding set, unless its thread gets no new privileges: then it has at most
/// what the thread has (`cap_bprm_creds_from_file` of the kernel), and thirty calls are saved.
/// Who holds no right to bound it leaves it.
fn bound(held: &CapabilitySets, wanted: CapabilitySet) -> io::Result<()> {
    if !held.effective.contains(CapabilitySet::SETPCAP) || get_no_new_privs()? {
        return Ok(());
    }
    let all = (0..u64::BITS).map(|bit| CapabilitySet::from_bits_retain(1 << bit));
    for capability in all.filter(|&capability| !wanted.contains(capability)) {
        match remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // There are no more.
            Err(error) if error.raw_os_error() == Errno::EINVAL as i32 => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Bits are the kernel's numbers, which are the places in the list of names.
fn wanted(declared: &[String], may_become_others: bool) -> CapabilitySet {
    let bit = |name: &String| CAPABILITIES.iter().position(|known| known == name);
    let bits = declared.iter().filter_map(bit).fold(0, |bits, place| bits | 1_u64 << place);
    let kept = if may_become_others { KEPT } else { KEPT - BECOMES_OTHERS };
    kept | CapabilitySet::from_bits_retain(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_at_the_kernel_s_numbers() {
        let check = |name: &str, capability: CapabilitySet| {
            assert_eq!(wanted(&[name.to_owned()], true), KEPT | capability, "{name}");
        };
        check("chown", CapabilitySet::CHOWN);
        check("linux-immutable", CapabilitySet::LINUX_IMMUTABLE);
        check("sys-ptrace", CapabilitySet::SYS_PTRACE);
        check("sys-admin", CapabilitySet::SYS_ADMIN);
        check("mknod", CapabilitySet::MKNOD);
        check("setfcap", CapabilitySet::SETFCAP);
        check("checkpoint-restore", CapabilitySet::CHECKPOINT_RESTORE);
    }

    #[test]
    fn who_is_not_apart_becomes_nobody_else_undeclared() {
        let others = |declared: &[&str]| {
            let declared: Vec<_> = declared.iter().map(|&name| name.to_owned()).collect();
            wanted(&declared, false) & BECOMES_OTHERS
        };
        assert_eq!(wanted(&[], false), KEPT - BECOMES_OTHERS);
        assert_eq!(others(&["sys-nice"]), CapabilitySet::empty());
        assert_eq!(others(&["setuid"]), CapabilitySet::SETUID);
        assert_eq!(others(&["setuid", "setgid"]), BECOMES_OTHERS);
    }

    #[test]
    fn what_goes_around_a_confinement_is_not_kept() {
        let around = CapabilitySet::LINUX_IMMUTABLE
            | CapabilitySet::SYS_ADMIN
            | CapabilitySet::MKNOD
            | CapabilitySet::SYS_RAWIO
            | CapabilitySet::SYS_MODULE
            | CapabilitySet::SYS_PTRACE
            // Opens files by number, past every path.
            | CapabilitySet::DAC_READ_SEARCH;
        assert!((KEPT & around).is_empty());
    }
}
