//! Says who holds a lock of a file, from the kernel's own list.
//!
//! Anybody who may read a file may lock it, a stage of a run too.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::sys::stat::{major, minor};

/// How often the kernel's list is read for one that is not in it: while others lock and unlock, it is given in pieces that may
/// lack a line.
const LOOKS: usize = 5;

/// A process that holds a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockHolder(u32);

impl LockHolder {
    /// Who holds a lock of the file, where the kernel says so.
    pub fn of(file: &File) -> Option<Self> {
        let stat = file.metadata().ok()?;
        let place = (major(stat.dev()), minor(stat.dev()), stat.ino());
        (0..LOOKS).find_map(|_| Self::look(place))
    }

    fn look(place: (u64, u64, u64)) -> Option<Self> {
        let taker = Self::in_list(&fs::read_to_string("/proc/locks").ok()?, place)?;
        // Whoever took it may be gone, and have left it to what it started or was started by.
        if taker.is_there() { Some(taker) } else { Self::by_descriptors(place) }
    }

    fn is_there(self) -> bool {
        Path::new("/proc").join(self.0.to_string()).exists()
    }

    /// Who has a descriptor that the lock is of.
    fn by_descriptors(place: (u64, u64, u64)) -> Option<Self> {
        let all = fs::read_dir("/proc").ok()?.flatten();
        let mut pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let has = |pid: &u32| {
            let all = fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
            let mut texts = all.flat_map(|entry| fs::read_to_string(entry.path()));
            texts.any(|text| Self::in_list(&text.replace("lock:", ""), place).is_some())
        };
        pids.find(has).map(Self)
    }

    /// Who holds the inode of that device (major, minor), by the lines of `/proc/locks`.  Processes of other name spaces
    /// have no number there.
    fn in_list(locks: &str, (major, minor, inode): (u64, u64, u64)) -> Option<Self> {
        let place = format!("{major:02x}:{minor:02x}:{inode}");
        locks.lines().find_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            // Who waits has an arrow before the kind.
            let [_, "FLOCK", _, _, pid, at, ..] = words[..] else { return None };
            pid.parse().ok().filter(|&pid| at == place && pid > 0).map(Self)
        })
    }

    /// Whether it is smelt, and not stopped.
    pub(crate) fn is_smelt_at_work(self) -> bool {
        let program = |who: &str| fs::read_link(format!("/proc/{who}/exe"));
        let is_smelt = program(&self.0.to_string())
            .is_ok_and(|its| program("self").is_ok_and(|own| its == own));
        is_smelt && !self.is_stopped()
    }

    fn is_stopped(self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0)).unwrap_or_default();
        // Behind the name, which may hold anything.
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        matches!(state, Some('T' | 't'))
    }

    fn name(self) -> String {
        let name = fs::read_to_string(format!("/proc/{}/comm", self.0)).unwrap_or_default();
        let name: String = name.trim().chars().filter(|c| !c.is_control()).collect();
        if name.is_empty() { String::new() } else { format!(" ({name})") }
    }
}

/// What to say of a lock that is held for too long.
pub fn held_too_long(holder: Option<LockHolder>) -> String {
    match holder {
        Some(holder) => format!(
            "process {pid}{name} holds its lock, which nobody needs for long; if it was stopped, let it go on (kill -CONT {pid}) or end it",
            pid = holder.0,
            name = holder.name(),
        ),
        None => "a process that is not seen from here holds its lock, which nobody needs for long: locks of ranges have no owner that the kernel names, nor have processes of other containers; look who has it open (fuser), and let it go on or end it".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::process::{Command, Stdio};

    use super::*;

    /// As `flock 3` of a shell's script does.
    #[test]
    fn a_lock_that_was_left_to_others_is_theirs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let script = "exec 3> lock; flock -x 3; echo; exec sleep 600";
        let mut other = Command::new("sh");
        other.args(["-c", script]).current_dir(&folder).stdout(Stdio::piped());
        let mut other = other.spawn().unwrap();
        other.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let found = LockHolder::of(&File::open(&path).unwrap());
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(found, Some(LockHolder(other.id())));
    }

    #[test]
    fn who_holds_a_lock_is_read_from_the_kernels_lines() {
        let lines = "\
            1: POSIX  ADVISORY  WRITE 11 00:1a:612 0 EOF\n\
            2: FLOCK  ADVISORY  WRITE 22 00:1a:613 0 EOF\n\
            2: -> FLOCK  ADVISORY  WRITE 33 00:1a:614 0 EOF\n\
            3: FLOCK  ADVISORY  WRITE 0 00:1a:615 0 EOF\n\
            4: OFDLCK ADVISORY  WRITE -1 00:1a:612 0 EOF\n";
        assert_eq!(LockHolder::in_list(lines, (0, 0x1a, 613)), Some(LockHolder(22)));
        for inode in [612, 614, 615, 616] {
            assert_eq!(LockHolder::in_list(lines, (0, 0x1a, inode)), None, "{inode}");
        }
        assert_eq!(LockHolder::in_list(lines, (1, 0x1a, 613)), None);
        let of_22 = held_too_long(Some(LockHolder(22)));
        assert!(of_22.contains("kill -CONT 22") && held_too_long(None).contains("not seen"));
        assert!(held_too_long(None).contains("locks of ranges have no owner"));
    }
}
