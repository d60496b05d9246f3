//! Checks what the kernel counts for smelt: memory by control group, and stalls for memory.

use std::path::PathBuf;

use nix::unistd::{AccessFlags, access};
use smelt_watch::Cgroups;
use smelt_watch::pressure::Pressure;

use crate::finding::{Finding, Fix, Severity};
use crate::release::Board;
use crate::tree::Tree;

/// What the kernel counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Accounting {
    /// `cgroup-v1` or `cgroup-v2`, and where groups would be made.
    group: Option<(&'static str, PathBuf)>,
    /// Whether we may make groups there; only known of the device we run on.
    may_make: Option<bool>,
    has_pressure: bool,
}

impl Accounting {
    pub(crate) fn read(tree: &Tree) -> Self {
        let found = Cgroups::find(tree.root());
        let group = found.map(|found| (found.name(), found.place().to_owned()));
        let may_make = group
            .as_ref()
            .filter(|_| tree.is_live())
            .map(|(_, place)| access(place, AccessFlags::W_OK).is_ok());
        // In messages a captured tree's places are those of its device.
        let group = group.map(|(name, place)| {
            let inside = place.strip_prefix(tree.root()).map(|path| PathBuf::from("/").join(path));
            (name, inside.unwrap_or(place))
        });
        let pressure = tree.text("proc/pressure/memory").unwrap_or_default();
        Self { group, may_make, has_pressure: Pressure::parse(&pressure).is_some() }
    }
}

/// `cgroup`: whether an attempt can be counted and killed as a whole.
pub(crate) fn cgroup(accounting: &Accounting) -> Finding {
    const ID: &str = "cgroup";
    let why = "Without groups smelt measures by looking at processes ten times a second: it misses \
               short peaks, and page cache altogether.";
    let Some((name, place)) = &accounting.group else {
        return Finding::new(Severity::Warning, ID, "no control group counts memory")
            .seen("/proc/self/mountinfo: no hierarchy with the memory controller")
            .because(why);
    };
    let place = format!("{name}: {}", place.display());
    if accounting.may_make == Some(false) {
        return Finding::new(Severity::Note, ID, "smelt may not make control groups")
            .seen(format!("{place} is not writable"))
            .because(why)
            .cured_by(
                Fix::now("systemd-run --user --scope -p Delegate=yes smelt run PIPELINE").by_hand(),
            );
    }
    Finding::new(Severity::Ok, ID, format!("memory is counted by {name}")).seen(place)
}

/// `pressure`: whether stalls are counted.
pub(crate) fn pressure(board: &Board, accounting: &Accounting) -> Finding {
    const ID: &str = "pressure";
    if accounting.has_pressure {
        return Finding::new(Severity::Ok, ID, "stalls for memory are counted")
            .seen("/proc/pressure/memory");
    }
    let append = "sudo sed -i.bak '/^ *APPEND /s/$/ psi=1/' /boot/extlinux/extlinux.conf";
    Finding::new(Severity::Note, ID, "stalls for memory are not counted")
        .seen("/proc/pressure/memory is not there")
        .because(
            "A build that thrashes is then known by its swapping and page faults alone. psi=1 on \
             the kernel's command line turns the count on, if the kernel was built with it.",
        )
        .cured_by(board.is_jetson.then(|| Fix::at_boot(append).by_hand()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::tree;

    #[test]
    fn groups_must_be_there_and_writable() {
        let check = |group: Option<&'static str>, may_make, expect| {
            let group = group.map(|name| (name, PathBuf::from("/sys/fs/cgroup")));
            let accounting = Accounting { group, may_make, ..Accounting::default() };
            assert_eq!(cgroup(&accounting).severity, expect);
        };
        check(None, None, Severity::Warning);
        check(Some("cgroup-v2"), Some(true), Severity::Ok);
        check(Some("cgroup-v2"), None, Severity::Ok);
        check(Some("cgroup-v1"), Some(false), Severity::Note);
    }

    #[test]
    fn a_captured_tree_is_read_as_its_device() {
        let stalls = "some avg10=0.00 total=1\nfull avg10=0.00 total=1\n";
        let (_dir, tree) = tree(&[
            ("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/cgroup.subtree_control", "cpu memory\n"),
            ("proc/pressure/memory", stalls),
        ]);
        let found = Accounting::read(&tree);
        assert_eq!(found.group, Some(("cgroup-v2", PathBuf::from("/sys/fs/cgroup"))));
        assert_eq!((found.may_make, found.has_pressure), (None, true));
    }

    #[test]
    fn a_kernel_that_counts_no_stalls_is_noted() {
        let jetson = Board { is_jetson: true, ..Board::default() };
        let counts = |has_pressure| Accounting { has_pressure, ..Accounting::default() };
        assert_eq!(pressure(&jetson, &counts(true)).severity, Severity::Ok);
        let note = pressure(&jetson, &counts(false));
        assert!(note.severity == Severity::Note && !note.fix.unwrap().can_apply);
        assert_eq!(pressure(&Board::default(), &counts(false)).fix, None);
    }
}
