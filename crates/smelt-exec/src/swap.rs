//! Has a swap file on a disk while one attempt runs, and sees to it that none stays on.
//!
//! A note in the store says where the file lies before there is one, and is locked as long as this
//! process lives: the next start undoes what a dead one left.  The steps are plain calls of a
//! [`System`], so that every one of them can fail, or be the last, in a test.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use smelt_plan::SwapSpec;

/// The directory of notes, and of swap files that are placed nowhere else, in the store.
pub(crate) const DIR: &str = "swap";
/// The store's disk must still take what is built, its logs and its journal.
const RESERVE_BYTES: u64 = 512 << 20;
/// Taking back what was swapped out can fail for want of memory, which ending processes give back.
const OFF_TRIES: u32 = 3;
const OFF_PAUSE: Duration = Duration::from_millis(500);

/// What is done to the machine.  Errors are lines for a person.
pub(crate) trait System {
    /// What keeps a note from being taken for a dead one's.
    type Held;
    /// Writes a note that survives a power cut, and holds it.
    fn note(&self, note: &Path, swap: &Path) -> Result<Self::Held, String>;
    /// The notes in a directory that nobody alive holds, each with the path it names and held now.
    fn dead_notes(&self, dir: &Path) -> Vec<(PathBuf, PathBuf, Self::Held)>;
    /// Makes a file of that size, for its owner alone, which has all its blocks.
    fn allocate(&self, swap: &Path, bytes: u64) -> Result<(), String>;
    /// Makes the file a swap area.
    fn format(&self, swap: &Path) -> Result<(), String>;
    /// Lets the kernel use it.
    fn turn_on(&self, swap: &Path) -> Result<(), String>;
    /// Whether the kernel uses it.
    fn is_on(&self, swap: &Path) -> bool;
    /// Takes everything back from it.
    fn turn_off(&self, swap: &Path) -> Result<(), String>;
    /// Removes a file; one that is not there is removed.
    fn remove(&self, file: &Path) -> Result<(), String>;
}

/// A swap file that is on.
pub(crate) struct TemporarySwap<S: System> {
    system: S,
    swap: PathBuf,
    note: PathBuf,
    /// `None` once it is off.
    held: Option<S::Held>,
}

impl<S: System> TemporarySwap<S> {
    /// Makes a swap file in `dir` and turns it on; `notes` is the directory of notes, `name` that of
    /// the attempt.  What fails halfway is undone.
    pub(crate) fn on(
        system: S,
        notes: &Path,
        dir: &Path,
        name: &str,
        bytes: u64,
    ) -> Result<Self, String> {
        let note = notes.join(format!("{name}.note"));
        let swap = dir.join(format!("smelt-{name}.swap"));
        let held = Some(system.note(&note, &swap)?);
        let made = Self { system, swap, note, held };
        let system = &made.system;
        // When one fails, dropping what was made undoes the others.
        system.allocate(&made.swap, bytes)?;
        system.format(&made.swap)?;
        system.turn_on(&made.swap)?;
        Ok(made)
    }

    /// Turns it off and removes it; a line on what is left where that fails.
    pub(crate) fn off(mut self) -> Result<(), String> {
        self.undo()
    }

    fn undo(&mut self) -> Result<(), String> {
        if self.held.is_none() {
            return Ok(());
        }
        let undone = undo(&self.system, &self.swap, &self.note);
        self.held = None;
        undone
    }
}

impl<S: System> Drop for TemporarySwap<S> {
    fn drop(&mut self) {
        // Whoever wants to know calls `off`; the next start tries again.
        let _ = self.undo();
    }
}

/// The note goes last, so that whatever is cut short is found again.
fn undo(system: &impl System, swap: &Path, note: &Path) -> Result<(), String> {
    let mut tries = 0;
    while system.is_on(swap) {
        match system.turn_off(swap) {
            Ok(()) => break,
            Err(error) if tries + 1 == OFF_TRIES => return Err(error),
            Err(_) => thread::sleep(OFF_PAUSE),
        }
        tries += 1;
    }
    system.remove(swap)?;
    system.remove(note)
}

/// Undoes what dead processes have left; a line for each.
pub(crate) fn clear_dead(system: &impl System, notes: &Path) -> Vec<String> {
    let dead = system.dead_notes(notes).into_iter();
    dead.map(|(note, swap, _held)| match undo(system, &swap, &note) {
        Ok(()) => format!("removed the swap file {} that a killed run left", swap.display()),
        Err(why) => format!(
            "the swap file {} of a killed run is still there: {why}; turn it off with: swapoff {0}",
            swap.display()
        ),
    })
    .collect()
}

/// How large the file is to be: as said, else as much as the attempt may hold, else as the machine has.
pub(crate) fn wanted_bytes(
    spec: &SwapSpec,
    memory_bytes_max: Option<u64>,
    mem_total_bytes: Option<u64>,
) -> Option<u64> {
    spec.bytes.or(memory_bytes_max).or(mem_total_bytes)
}

/// What a directory lies on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ground {
    /// The file system's name, where swap files work on it, or why they do not.
    pub(crate) file_system: Result<&'static str, String>,
    /// The block device in memory that it is on, such as `zram0`.
    pub(crate) ram_device: Option<String>,
    pub(crate) free_bytes: u64,
}

impl Ground {
    /// Why a swap file of that size may not lie there, if so.
    pub(crate) fn refuses(&self, dir: &Path, bytes: u64) -> Option<String> {
        let dir = dir.display();
        if let Err(why) = &self.file_system {
            return Some(format!("{dir}: {why}"));
        }
        if let Some(device) = &self.ram_device {
            return Some(format!("{dir} is on {device}, which is memory itself; name a disk"));
        }
        let needed = bytes.saturating_add(RESERVE_BYTES);
        if self.free_bytes >= needed {
            return None;
        }
        let mut text = format!("{dir} has {} MiB free", self.free_bytes >> 20);
        let _ = write!(text, ", and {} MiB of swap want {} MiB", bytes >> 20, needed >> 20);
        Some(text + "; ask for less or free some")
    }
}

#[cfg(test)]
mod tests;
