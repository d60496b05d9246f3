//! What servers of this machine hold of its memory, and may still take.
//!
//! A server sizes its keys and values when it starts and touches them hours later, so free memory does not tell what it
//! needs.  It says so in a note beside the machine's tokens, locked as long as its process lives: what a killed
//! server held is free at once.  Runs that start a stage leave it what it has not taken yet.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};
use smelt_watch::{Machine, Sample, began_ticks};

use crate::notes::{
    locks_shared, locks_within, make_dir, note, noted, open_file, open_to_look, since_1970,
};

/// More notes than this are no machine's servers: the folder is anybody's.
const SERVERS_MAX: usize = 256;
/// A note is not written again for less: what a server holds goes up and down with each request.
const NEWS_BYTES: u64 = 1 << 20;
/// More than an address with a name has.
const ADDR_CHARS_MAX: usize = 128;
/// Locks of the folder are held for a few system calls; a process that was stopped meanwhile keeps nobody longer.
const LOCK_TIME_MAX: Duration = Duration::from_secs(1);

/// A process that holds an engine for hours.  What counts is what the kernel cannot drop: no mapped weights.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    /// Its process.
    pub pid: u32,
    /// When the process began, in clock ticks since the boot: another one of its number began at another time.
    #[serde(default)]
    pub began_ticks: Option<u64>,
    /// Where it is asked, as `http://127.0.0.1:8000`, or what it is, as `smelt chat`.
    pub name: String,
    /// The most that it may hold, in bytes.
    pub holds_max_bytes: u64,
    /// What it holds now, in bytes: found by who looks.
    #[serde(default)]
    pub holds_bytes: u64,
    /// Since when, in seconds of the Unix era.
    pub since_s: u64,
}

impl Server {
    /// What it may still take, in bytes.
    pub fn may_take_bytes(&self) -> u64 {
        self.holds_max_bytes.saturating_sub(self.holds_bytes)
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.name, self.pid)
    }
}

/// What all of them may still take, in bytes.
pub fn may_take_bytes(servers: &[Server]) -> u64 {
    servers.iter().map(Server::may_take_bytes).fold(0, u64::saturating_add)
}

/// The servers that may still take something, for a person; empty where none may.
pub fn words(servers: &[Server]) -> String {
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let growing = servers.iter().filter(|server| server.may_take_bytes() > 0);
    let word = |one: &Server| format!("{one} may take {} MiB more", mib(one.may_take_bytes()));
    growing.map(word).collect::<Vec<_>>().join(", ")
}

/// The note of this process; it counts until this is dropped or the process ends.
#[derive(Debug)]
pub struct Claim {
    path: PathBuf,
    file: File,
    server: Server,
}

impl Claim {
    /// Tells whoever asks below `dir` that this process, known as `name`, may hold so many bytes.
    ///
    /// # Errors
    /// The folder is not there and cannot be made, or is not anybody's, or somebody holds its lock for a second.
    pub fn open(dir: &Path, name: &str, holds_max_bytes: u64) -> io::Result<Self> {
        let notes = dir.join(FOLDER);
        for dir in [dir, &notes] {
            make_dir(dir)?;
        }
        // Who removes notes of the dead must not find one that is not locked yet.
        let short = open_file(&dir.join("lock"))?;
        locks_within(&short, LOCK_TIME_MAX)?;
        remove_dead(&notes);
        let (pid, now) = (std::process::id(), since_1970());
        // Containers that share the folder may have processes of one number.
        let path = notes.join(format!("{pid}-{}", now.as_nanos()));
        let file = open_file(&path)?;
        // Whoever looks at it just now has a lock that is shared.
        locks_within(&file, LOCK_TIME_MAX)?;
        let (name, since_s) = (name.to_owned(), now.as_secs());
        let began_ticks = began_ticks(pid);
        let holds_bytes = 0;
        let server = Server { pid, began_ticks, name, holds_max_bytes, holds_bytes, since_s };
        note(&file, &server);
        Ok(Self { path, file, server })
    }

    /// It may hold so many bytes from now on.
    pub fn says(&mut self, holds_max_bytes: u64) {
        if self.server.holds_max_bytes.abs_diff(holds_max_bytes) >= NEWS_BYTES {
            self.server.holds_max_bytes = holds_max_bytes;
            note(&self.file, &self.server);
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Of the folder of tokens, where the notes are.
const FOLDER: &str = "served";

/// What this process holds that the kernel cannot drop, in bytes.
pub fn own_bytes() -> u64 {
    held_bytes(std::process::id())
}

/// The servers of this machine by their notes below `dir`, the oldest first.  Notes of other users than root and
/// ours count for root alone: who may write one could keep others from their memory.
pub fn servers(dir: &Path) -> Vec<Server> {
    let own = geteuid().as_raw();
    let total_bytes = Machine::read(Path::new("/")).mem_total_bytes.unwrap_or(u64::MAX);
    let alive = |path: PathBuf| {
        let file = open_to_look(&path).ok()?;
        let is_trusted = trusts(own, file.metadata().ok()?.uid());
        let is_held = is_trusted && locks_shared(&file).is_ok_and(|free| !free);
        if is_held { noted::<Server>(&file) } else { None }
    };
    let seen = |server: Server| Server {
        name: server.name.chars().filter(|char| !char.is_control()).take(ADDR_CHARS_MAX).collect(),
        holds_max_bytes: server.holds_max_bytes.min(total_bytes),
        holds_bytes: held_by(&server),
        ..server
    };
    let mut servers: Vec<_> = notes(&dir.join(FOLDER)).filter_map(alive).map(seen).collect();
    servers.sort_by_key(|server| (server.since_s, server.pid));
    servers
}

/// Whether the user `own` leaves memory to a server by the note of the user `owner`.
fn trusts(own: u32, owner: u32) -> bool {
    own == 0 || owner == 0 || owner == own
}

/// A process that is not seen from here: all of its note counts.
fn held_by(server: &Server) -> u64 {
    let is_seen = server.began_ticks.is_some() && began_ticks(server.pid) == server.began_ticks;
    if is_seen { held_bytes(server.pid) } else { 0 }
}

fn held_bytes(pid: u32) -> u64 {
    Sample::of(pid).map_or(0, |sample| sample.rss_anon_bytes.saturating_add(sample.swap_bytes))
}

fn notes(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.take(SERVERS_MAX).map(|entry| entry.path())
}

fn remove_dead(folder: &Path) {
    for path in notes(folder) {
        if open_to_look(&path).and_then(|file| locks_shared(&file)).unwrap_or(false) {
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_note_counts_as_long_as_it_is_locked() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("tokens");
        assert_eq!(servers(&dir), []);
        let held = own_bytes();
        let mut claim = Claim::open(&dir, "http://a:1", held + 500 * MIB).unwrap();
        let found = servers(&dir);
        assert_eq!((found.len(), found[0].name.as_str()), (1, "http://a:1"));
        let may_take = may_take_bytes(&found);
        assert!((400 * MIB..=500 * MIB).contains(&may_take), "{may_take}");
        assert!(words(&found).starts_with("http://a:1 (pid "), "{}", words(&found));
        claim.says(0);
        assert_eq!((may_take_bytes(&servers(&dir)), words(&servers(&dir))), (0, String::new()));
        // As if it had been killed: its file stays, and is removed by who comes next.
        let note = claim.path.clone();
        let text = fs::read(&note).unwrap();
        drop(claim);
        fs::write(&note, text).unwrap();
        assert_eq!(servers(&dir), []);
        let _next = Claim::open(&dir, "smelt chat", 1).unwrap();
        assert_eq!(fs::read_dir(dir.join(FOLDER)).unwrap().count(), 1);
    }

    #[test]
    fn a_process_of_the_same_number_elsewhere_holds_nothing() {
        let pid = std::process::id();
        let of = |began_ticks| Server { pid, began_ticks, ..Server::default() };
        let began = began_ticks(pid).unwrap();
        assert!(held_by(&of(Some(began))) > 0);
        assert_eq!((held_by(&of(Some(began + 1))), held_by(&of(None))), (0, 0));
        assert_eq!(held_by(&Server { pid: u32::MAX, ..Server::default() }), 0);
    }

    #[test]
    fn notes_of_root_and_our_own_count_and_all_do_for_root() {
        assert!(trusts(1000, 1000) && trusts(1000, 0) && trusts(0, 1001));
        assert!(!trusts(1000, 1001));
    }

    #[test]
    fn a_stopped_run_keeps_no_server_waiting() {
        let folder = tempfile::tempdir().unwrap();
        drop(Claim::open(folder.path(), "first", 1).unwrap());
        let lock = File::open(folder.path().join("lock")).unwrap();
        lock.lock().unwrap();
        let late = Claim::open(folder.path(), "late", 1).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn notes_of_strangers_are_no_danger() {
        let folder = tempfile::tempdir().unwrap();
        let claim = Claim::open(folder.path(), "\u{1b}[2J x", u64::MAX).unwrap();
        let stranger = folder.path().join(FOLDER).join("0-0");
        fs::write(&stranger, [255; 9000]).unwrap();
        let lock = File::open(&stranger).unwrap();
        lock.lock().unwrap();
        let found = servers(folder.path());
        assert_eq!((found.len(), found[0].name.as_str()), (1, "[2J x"));
        let total_bytes = Machine::read(Path::new("/")).mem_total_bytes.unwrap();
        assert_eq!(found[0].holds_max_bytes, total_bytes, "no more than there is");
        drop(claim);
    }
}
