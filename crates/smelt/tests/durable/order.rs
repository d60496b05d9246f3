//! Proves of a trace that nothing was acknowledged that a power cut could still take.
//!
//! Follows what a disk may still lose: contents and modes that were changed since their last fsync,
//! and names whose directory was not synced since.  A call that changes something counts as done
//! only when it has ended, and an fsync covers only what had ended before it began.  What is changed
//! through shared mappings is not seen.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use super::calls::{Call, calls};

/// The calls a trace must have.
pub(super) const CALLS: &str = "openat,write,pwrite64,writev,pwritev,pwritev2,sendfile,copy_file_range,splice,\
    truncate,ftruncate,fallocate,fsync,fdatasync,mkdir,mkdirat,rename,renameat,renameat2,link,linkat,\
    symlink,symlinkat,unlink,unlinkat,rmdir,chmod,fchmod,fchmodat,chdir";

/// What a trace shows.
#[derive(Debug, Default)]
pub(super) struct TraceReport {
    /// What is out of order, with the line.
    pub(super) faults: Vec<String>,
    /// The stages whose result was acknowledged, by a line to the user and by the journal.
    pub(super) told: BTreeSet<String>,
    pub(super) journalled: BTreeSet<String>,
    /// How many trees were moved to their place.
    pub(super) placed: usize,
}

/// Follows the trace of a run in the store at `store`, which it makes.
pub(super) fn follow(trace: &str, store: &Path) -> TraceReport {
    let calls = calls(trace);
    let mut steps: Vec<(usize, bool, &Call<'_>)> = Vec::new();
    for call in calls.iter().filter(|call| call.is_done) {
        steps.push((call.begin, false, call));
        steps.push((call.end, true, call));
    }
    // A call of one line begins before it ends.
    steps.sort_by_key(|(line, is_end, _)| (*line, *is_end));
    let mut disk = Disk { store: store.to_owned(), ..Disk::default() };
    for (_, is_end, call) in steps {
        match is_end {
            false => disk.begins(call),
            true => disk.ended(call),
        }
    }
    disk.seen
}

/// A result in the action log.
struct Record {
    line: usize,
    is_durable: bool,
}

/// What is on a disk only as long as there is power.
#[derive(Default)]
struct Disk {
    store: PathBuf,
    seen: TraceReport,
    /// Changed contents, and modes; the line of the change.
    contents: BTreeMap<PathBuf, usize>,
    /// New names, in a directory that is not synced.
    names: BTreeMap<PathBuf, usize>,
    /// Every name that was made or opened.
    known: BTreeSet<PathBuf>,
    /// The results in the action log, by stage.
    records: HashMap<String, Record>,
    /// Where each thread is, as far as its calls have shown.
    dirs: HashMap<String, PathBuf>,
}

impl Disk {
    fn fault(&mut self, line: usize, what: impl std::fmt::Display) {
        self.seen.faults.push(format!("line {line}: {what}"));
    }

    /// What must be so before the call may be made.
    fn begins(&mut self, call: &Call<'_>) {
        if let Some((from, to)) = self.renamed(call)
            && to.parent() == Some(&self.store.join("out"))
        {
            self.may_be_placed(call.begin, &from);
        }
        if let (Some(file), Some(text)) = (written(call), call.text(1)) {
            if file == self.store.join("ac.log") && text.contains("{\\\"seal\\\":") {
                self.may_be_recorded(call.begin, text);
            } else if file.starts_with(self.store.join("journal"))
                && text.contains("\\\"outcome\\\":\\\"sealed\\\"")
            {
                match field(text, "stage") {
                    Some(stage) => {
                        self.may_be_told(call.begin, &stage);
                        self.seen.journalled.insert(stage);
                    }
                    None => self.fault(call.begin, "a journal's record that cannot be read"),
                }
            }
        }
        if let Some(stage) = call.text(1).filter(|_| call.name == "write").and_then(told) {
            self.may_be_told(call.begin, stage);
            self.seen.told.insert(stage.to_owned());
        }
    }

    /// A tree moves to its place: it and the way to it must be whole.
    fn may_be_placed(&mut self, line: usize, from: &Path) {
        self.seen.placed += 1;
        let below = |(path, since): (&PathBuf, &usize)| {
            path.starts_with(from).then(|| (path.clone(), *since))
        };
        if let Some((path, since)) = self.contents.iter().find_map(below) {
            self.fault(
                line,
                format!("placed, but {} of line {since} is not synced", path.display()),
            );
        }
        // Its own name is another from now on.
        let mut names = self.names.iter().filter(|(path, _)| *path != from);
        if let Some((path, since)) = names.find_map(below) {
            let dir = path.parent().unwrap_or(&path).display().to_string();
            self.fault(line, format!("placed, but the directory {dir} is not since line {since}"));
        }
        for dir in [self.store.clone(), self.store.join("out")] {
            if let Some(since) = self.names.get(&dir).copied() {
                self.fault(line, format!("placed, but {} is new since {since}", dir.display()));
            }
        }
    }

    /// A result is recorded: its tree must be in its place for good.
    fn may_be_recorded(&mut self, line: usize, text: &str) {
        let (Some(tree), Some(_)) = (field(text, "tree"), field(text, "stage")) else {
            return self.fault(line, "a result that cannot be read");
        };
        let place = self.store.join("out").join(tree);
        if !self.known.contains(&place) {
            self.fault(line, format!("recorded, but {} is not there", place.display()));
        }
        if let Some(since) = self.names.get(&place).copied() {
            self.fault(line, format!("recorded, but out/ is not synced since line {since}"));
        }
    }

    /// A result is acknowledged: its record must be durable.
    fn may_be_told(&mut self, line: usize, stage: &str) {
        let log = self.store.join("ac.log");
        match self.records.get(stage) {
            None => self.fault(line, format!("{stage} is acknowledged, but not recorded")),
            Some(Record { line: since, is_durable: false }) => {
                let what = format!(
                    "{stage} is acknowledged, but its record of line {since} is not synced"
                );
                self.fault(line, what);
            }
            Some(_) => {}
        }
        if self.names.contains_key(&log) {
            self.fault(line, "acknowledged, but the action log has no durable name");
        }
    }

    /// What is so after the call.
    fn ended(&mut self, call: &Call<'_>) {
        if let Some(dir) = call.file(0).filter(|_| call.arguments[0].starts_with("AT_FDCWD")) {
            self.dirs.insert(call.thread.to_owned(), dir);
        }
        if let Some((from, to)) = self.renamed(call) {
            return self.moves(&from, &to, call.end);
        }
        if let Some(file) = written(call) {
            self.changes(&file, call.end);
            if file == self.store.join("ac.log") {
                self.record(call);
            }
            return;
        }
        let here = self.dirs.get(call.thread).cloned();
        let path = match call.name {
            "openat" | "mkdirat" | "unlinkat" | "fchmodat" => call.path(1, call.file(0).as_deref()),
            "link" | "symlink" => call.path(1, here.as_deref()),
            "linkat" => call.path(3, call.file(2).as_deref()),
            "symlinkat" => call.path(2, call.file(1).as_deref()),
            "fchmod" | "fsync" | "fdatasync" => call.file(0),
            _ => call.path(0, here.as_deref()),
        };
        let Some(path) = path else { return };
        match call.name {
            "openat" => self.opens(&path, &call.arguments[2], call.end),
            "mkdir" | "mkdirat" | "link" | "linkat" | "symlink" | "symlinkat" => {
                self.makes(&path, call.end);
            }
            "unlink" | "unlinkat" | "rmdir" => self.removes(&path),
            "chmod" | "fchmod" | "fchmodat" | "truncate" => self.changes(&path, call.end),
            "fsync" | "fdatasync" => self.syncs(&path, call.begin),
            "chdir" => drop(self.dirs.insert(call.thread.to_owned(), path)),
            _ => {}
        }
    }

    fn opens(&mut self, path: &Path, flags: &str, line: usize) {
        if flags.contains("O_CREAT") && !self.known.contains(path) {
            self.makes(path, line);
        }
        self.known.insert(path.to_owned());
        if flags.contains("O_TRUNC") {
            self.changes(path, line);
        }
    }

    fn makes(&mut self, path: &Path, line: usize) {
        self.known.insert(path.to_owned());
        self.names.insert(path.to_owned(), line);
    }

    fn removes(&mut self, path: &Path) {
        self.known.remove(path);
        self.names.remove(path);
        self.contents.remove(path);
    }

    fn changes(&mut self, path: &Path, line: usize) {
        if path.starts_with(self.store.join("out")) {
            self.fault(line, format!("{} is changed after it was placed", path.display()));
        }
        self.contents.insert(path.to_owned(), line);
    }

    fn record(&mut self, call: &Call<'_>) {
        let text = call.text(1).unwrap_or_default();
        if let Some(stage) = field(text, "stage").filter(|_| text.contains("{\\\"seal\\\":")) {
            self.records.insert(stage, Record { line: call.end, is_durable: false });
        }
    }

    /// What had ended before the fsync began is durable.
    fn syncs(&mut self, path: &Path, begin: usize) {
        self.names.retain(|name, since| name.parent() != Some(path) || *since > begin);
        if self.contents.get(path).is_some_and(|since| *since < begin) {
            self.contents.remove(path);
        }
        if path == self.store.join("ac.log") {
            for record in self.records.values_mut().filter(|record| record.line < begin) {
                record.is_durable = true;
            }
        }
    }

    fn renamed(&self, call: &Call<'_>) -> Option<(PathBuf, PathBuf)> {
        let dir = self.dirs.get(call.thread).map(PathBuf::as_path);
        match call.name {
            "rename" => Some((call.path(0, dir)?, call.path(1, dir)?)),
            "renameat" | "renameat2" => Some((
                call.path(1, call.file(0).as_deref())?,
                call.path(3, call.file(2).as_deref())?,
            )),
            _ => None,
        }
    }

    /// Contents go along; that what is below a new name has durable names is for the rules above.
    fn moves(&mut self, from: &Path, to: &Path, line: usize) {
        let moved = |path: &PathBuf| path.strip_prefix(from).ok().map(|rest| to.join(rest));
        let contents = self.contents.iter().filter_map(|(path, line)| Some((moved(path)?, *line)));
        let contents: Vec<_> = contents.collect();
        let known: Vec<_> = self.known.iter().filter_map(moved).collect();
        self.contents.retain(|path, _| !path.starts_with(from));
        self.known.retain(|path| !path.starts_with(from));
        self.names.retain(|path, _| !path.starts_with(from));
        self.contents.extend(contents);
        self.known.extend(known);
        self.makes(to, line);
    }
}

/// The file that the call writes to, where it does.
fn written(call: &Call<'_>) -> Option<PathBuf> {
    match call.name {
        "write" | "pwrite64" | "writev" | "pwritev" | "pwritev2" | "ftruncate" | "fallocate"
        | "sendfile" => call.file(0),
        "copy_file_range" | "splice" => call.file(2),
        _ => None,
    }
}

/// The first text of that name in a record; strace escapes the quotes.
fn field(text: &str, name: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("\\\"{name}\\\":\\\""))?;
    Some(rest.split_once("\\\"")?.0.to_owned())
}

/// The stage that a line of progress calls sealed.
fn told(text: &str) -> Option<&str> {
    text.strip_prefix('[')?.split_once("] ")?.1.split_once(" sealed in ").map(|(stage, _)| stage)
}
