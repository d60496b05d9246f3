//! Appends checksummed records to a file and reads back those that are whole.
//!
//! One record is one line, `SEQ CHECK JSON\n`.  Reading passes over what is no record.  Appending
//! locks the file, reads what others added, cuts off a bad tail, writes one line in one call and
//! syncs it; only then is the record acknowledged.
//! Compaction puts a shorter log in the place of the old one; whoever has the old one open finds
//! out by its inode.  Knows nothing of what the records say.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use crate::digest::from_hasher;
use crate::digester::AndSync;
use crate::disk::{
    Disk, DiskError, DiskFile, LockKind, Open, Wait, fault, present, write_all, write_new,
};

/// A record is held in memory whole, and this bounds what a damaged file can make us hold.
pub const RECORD_BYTES_MAX: usize = 8 << 20;
/// The payload, a sequence number of at most 20 digits, 16 digits of checksum, 3 separators.
const LINE_BYTES_MAX: usize = RECORD_BYTES_MAX + 39;
/// How much of a log is read at a time.
const CHUNK_BYTES: usize = 64 << 10;
/// How often a log that is cut while it is read is read again: each cut is the end of another process.
const WHOLE_READS_MAX: usize = 8;
/// How much of a cut tail is kept for a person to look at.
const ASIDE_BYTES_MAX: u64 = 4 << 20;

/// A log that cannot take a record.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// See [`RECORD_BYTES_MAX`].
    #[error(
        "a record of {bytes} bytes does not fit {}: one record is at most {RECORD_BYTES_MAX}",
        path.display()
    )]
    RecordTooLarge {
        /// The log.
        path: PathBuf,
        /// The record's length.
        bytes: usize,
    },
    /// The log has reached its limit.
    #[error(
        "{} has reached its limit of {bytes_max} bytes; move it away (what it lists is built \
         again) or use another store",
        path.display()
    )]
    Full {
        /// The log.
        path: PathBuf,
        /// The limit.
        bytes_max: u64,
    },
    /// A sync failed before: what the disk holds is unknown, and another sync could lie.
    #[error(
        "cannot append to {}: the disk failed to keep an earlier record; check the disk, then \
         run the same command again",
        path.display()
    )]
    Broken {
        /// The log.
        path: PathBuf,
    },
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl LogError {
    /// Whether free space would cure it.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Self::Disk(error) if error.is_disk_full())
    }

    /// Whether the disk itself failed.
    pub fn is_disk_failing(&self) -> bool {
        match self {
            Self::Broken { .. } => true,
            Self::Disk(error) => error.is_failing(),
            _ => false,
        }
    }
}

/// Where a record lies in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordLocation {
    offset: u64,
    line_bytes: u32,
    seq: u64,
}

impl RecordLocation {
    /// The record's number, from 1.
    pub(crate) fn seq(self) -> u64 {
        self.seq
    }
}

/// Called with every record read.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(RecordLocation, &str);

/// An open log.
pub(crate) struct Log {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    /// Where cut tails are kept.
    aside: PathBuf,
    bytes_max: u64,
    how: Open,
    file: Box<dyn DiskFile>,
    inode: u64,
    good: Good,
    broken: bool,
}

/// The part of a log that is known to be whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Good {
    bytes: u64,
    records: u64,
}

impl Good {
    const NOTHING: Self = Self { bytes: 0, records: 0 };
}

impl Log {
    /// Opens a log, creating it durably if it is missing.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        path: PathBuf,
        aside: PathBuf,
        bytes_max: u64,
    ) -> Result<Self, DiskError> {
        let (file, inode) = open_for_good(disk.as_ref(), &path)?;
        let (how, good) = (Open::Write, Good::NOTHING);
        Ok(Self { disk, path, aside, bytes_max, how, file, inode, good, broken: false })
    }

    /// Opens an existing log for reading; `None` if there is none.
    pub(crate) fn open_to_read(
        disk: Arc<dyn Disk>,
        path: PathBuf,
    ) -> Result<Option<Self>, DiskError> {
        let Some(file) = present(disk.open(&path, Open::Read)).map_err(fault("open", &path))?
        else {
            return Ok(None);
        };
        let inode = file.stat().map_err(fault("look at", &path))?.inode;
        let (how, good) = (Open::Read, Good::NOTHING);
        let (aside, bytes_max) = (PathBuf::new(), 0);
        Ok(Some(Self { disk, path, aside, bytes_max, how, file, inode, good, broken: false }))
    }

    /// How long the part is that is known to be whole.
    pub(crate) fn bytes(&self) -> u64 {
        self.good.bytes
    }

    /// How many records that part has.
    pub(crate) fn records(&self) -> u64 {
        self.good.records
    }

    /// Visits the records added since the last call, and where the log was cut or seems to have
    /// been, those before them again.  A tail that is no record is left alone: it may be one that
    /// another process is just writing.
    pub(crate) fn read_new(&mut self, visit: Visit<'_>) -> Result<(), DiskError> {
        let size = self.follow()?;
        let before = self.good;
        let answer = size.and_then(|size| {
            if size == before.bytes {
                // Asked for at every look-up, and nearly always there is nothing new.
                return Ok(before);
            }
            // Someone may have cut a bad part away that we had read when it was still good.
            if before == Good::NOTHING || size < before.bytes {
                return self.read_whole(visit);
            }
            let scanned = scan(self.file.as_ref(), before, visit)?;
            // Or cut it and grown the log past our place, so that we now read across lines.
            let is_odd = scanned.skipped || (!scanned.is_clean && scanned.good == before);
            if is_odd { self.read_whole(visit) } else { Ok(scanned.good) }
        });
        self.good = answer.map_err(fault("read", &self.path))?;
        Ok(())
    }

    /// Visits all records; how far they go.
    ///
    /// Who reads holds no lock.  What is passed over may be a bad tail that another process cuts just now,
    /// so that we go on behind what it writes there.  What is damaged for good reads the same twice.
    fn read_whole(&self, visit: Visit<'_>) -> io::Result<Good> {
        let file = self.file.as_ref();
        for _ in 0..WHOLE_READS_MAX {
            let scanned = scan(file, Good::NOTHING, visit)?;
            if !scanned.skipped || scan(file, Good::NOTHING, &mut |_, _| {})? == scanned {
                return Ok(scanned.good);
            }
        }
        // The next call reads it again.
        Ok(Good::NOTHING)
    }

    /// Turns to the file that has the log's name now, if it is another one than we have open; its
    /// size.
    fn follow(&mut self) -> Result<io::Result<u64>, DiskError> {
        match present(self.disk.lstat(&self.path)) {
            Ok(Some(stat)) if stat.inode == self.inode => Ok(Ok(stat.size)),
            Ok(Some(_)) => {
                (self.file, self.inode) = match self.how {
                    Open::Read => {
                        let opened = self.disk.open(&self.path, Open::Read);
                        let file = opened.map_err(fault("open", &self.path))?;
                        let inode = file.stat().map_err(fault("look at", &self.path))?.inode;
                        (file, inode)
                    }
                    _ => open_for_good(self.disk.as_ref(), &self.path)?,
                };
                // Nothing is known of the new file, and nothing that was broken is in it.
                (self.good, self.broken) = (Good::NOTHING, false);
                Ok(self.file.stat().map(|stat| stat.size))
            }
            // Moved away by hand: what we have open is all there is to read.
            Ok(None) => Ok(self.file.stat().map(|stat| stat.size)),
            Err(error) => Ok(Err(error)),
        }
    }

    /// Puts a log of those records alone that are `live` in the place of this one, and visits them.
    ///
    /// The old log keeps its name until the new one is whole and durable.  Whoever waits for the
    /// lock meanwhile appends to the new one.
    pub(crate) fn compact(
        &mut self,
        mut live: impl FnMut(RecordLocation, &str) -> bool,
        added: &[String],
        visit: Visit<'_>,
    ) -> Result<(), LogError> {
        if self.broken {
            return Err(LogError::Broken { path: self.path.clone() });
        }
        let lock = self.disk.lock(&self.path, LockKind::Exclusive, Wait::Briefly);
        let _held = lock.map_err(fault("lock", &self.path))?;
        let (size, is_clean) = self.find_end(visit)?;
        if !is_clean {
            self.keep_aside(size);
        }
        let draft = self.path.with_extension("log.new");
        let written = self.write_draft(&draft, &mut live, added);
        if let Err(error) = written {
            // The draft is only in the way; the log stands as it was.
            let _ = self.disk.unlink(&draft);
            return Err(error.into());
        }
        self.disk.rename(&draft, &self.path).map_err(fault("rename to", &self.path))?;
        let parent = self.path.parent().unwrap_or(Path::new("/"));
        if let Err(error) = self.disk.sync_dir(parent) {
            // Records appended to the new file may vanish with its name.
            self.broken = true;
            return Err(fault("sync the directory", parent)(error).into());
        }
        Ok(self.read_new(visit)?)
    }

    /// Writes the draft of a compacted log, synced.
    fn write_draft(
        &self,
        draft: &Path,
        live: &mut dyn FnMut(RecordLocation, &str) -> bool,
        added: &[String],
    ) -> Result<(), DiskError> {
        present(self.disk.unlink(draft)).map_err(fault("remove the leftover", draft))?;
        let opened = self.disk.open(draft, Open::New);
        let mut writer = Writer {
            file: opened.map_err(fault("create", draft))?,
            path: draft,
            written: 0,
            pending: String::new(),
            records: 0,
        };
        let mut outcome = Ok(());
        let mut keep = |place: RecordLocation, text: &str| {
            if outcome.is_ok() && live(place, text) {
                outcome = writer.add(text);
            }
        };
        scan(self.file.as_ref(), Good::NOTHING, &mut keep).map_err(fault("read", &self.path))?;
        outcome?;
        added.iter().try_for_each(|text| writer.add(text))?;
        writer.finish()
    }

    /// Adds one record durably, after visiting those that others added.
    pub(crate) fn append(
        &mut self,
        payload: &str,
        visit: Visit<'_>,
    ) -> Result<RecordLocation, LogError> {
        self.add(payload, AndSync::Yes, visit)
    }

    /// Adds one record that is durable only with the next one, or with [`Log::sync`]: one that a
    /// power cut may take.
    pub(crate) fn append_later(
        &mut self,
        payload: &str,
        visit: Visit<'_>,
    ) -> Result<RecordLocation, LogError> {
        self.add(payload, AndSync::No, visit)
    }

    /// Makes what was added durable.
    pub(crate) fn sync(&mut self) -> Result<(), LogError> {
        let Err(error) = self.file.sync() else { return Ok(()) };
        self.give_up();
        Err(fault("sync", &self.path)(error).into())
    }

    /// Takes no more records: after a failed sync the kernel may believe pages clean that it has
    /// lost, so that no later one is proof.  But others rely on theirs for what they wrote and read,
    /// and of what is written again it is.  Says whether that could be done.
    fn give_up(&mut self) -> bool {
        self.broken = true;
        self.write_again().is_ok()
    }

    fn write_again(&self) -> Result<(), DiskError> {
        let (mut chunk, mut at) = (vec![0; CHUNK_BYTES], 0);
        loop {
            let read = self.file.read_at(at, &mut chunk).map_err(fault("read", &self.path))?;
            if read == 0 {
                return Ok(());
            }
            write_all(self.file.as_ref(), &self.path, at, &chunk[..read])?;
            at += read as u64;
        }
    }

    fn add(
        &mut self,
        payload: &str,
        and_sync: AndSync,
        visit: Visit<'_>,
    ) -> Result<RecordLocation, LogError> {
        debug_assert!(!payload.contains('\n'), "JSON on one line");
        if self.broken {
            return Err(LogError::Broken { path: self.path.clone() });
        }
        if payload.len() > RECORD_BYTES_MAX {
            let path = self.path.clone();
            return Err(LogError::RecordTooLarge { path, bytes: payload.len() });
        }
        let lock = self.disk.lock(&self.path, LockKind::Exclusive, Wait::Briefly);
        let _held = lock.map_err(fault("lock", &self.path))?;
        self.recover(visit)?;
        let line = line(self.good.records + 1, payload);
        if self.good.bytes + line.len() as u64 > self.bytes_max {
            return Err(LogError::Full { path: self.path.clone(), bytes_max: self.bytes_max });
        }
        self.write_line(&line, and_sync)?;
        let place = RecordLocation {
            offset: self.good.bytes,
            line_bytes: u32::try_from(line.len()).expect("a line is little over 8 MiB"),
            seq: self.good.records + 1,
        };
        self.good = Good { bytes: place.offset + line.len() as u64, records: place.seq };
        Ok(place)
    }

    /// Reads one record again; `None` if it is no longer there as it was.
    pub(crate) fn read_again(&self, place: RecordLocation) -> Result<Option<String>, DiskError> {
        let mut line = vec![0; place.line_bytes as usize];
        let mut filled = 0;
        while filled < line.len() {
            let offset = place.offset + filled as u64;
            let read = self.file.read_at(offset, &mut line[filled..]);
            match read.map_err(fault("read", &self.path))? {
                0 => return Ok(None),
                read => filled += read,
            }
        }
        let Some(line) = line.strip_suffix(b"\n") else { return Ok(None) };
        Ok(parse(line).filter(|&(seq, _)| seq == place.seq).map(|(_, text)| text.to_owned()))
    }

    /// Finds the end of the good part and cuts off what follows.  Called with the lock held, so a
    /// bad tail is nobody's work in progress.
    fn recover(&mut self, visit: Visit<'_>) -> Result<(), DiskError> {
        let (size, is_clean) = self.find_end(visit)?;
        if !is_clean {
            self.keep_aside(size);
            let cut = self.file.truncate(self.good.bytes);
            cut.map_err(fault("cut the bad end of", &self.path))?;
        }
        Ok(())
    }

    /// Finds the end of the good part; the size of the file, and whether that is where it ends.
    fn find_end(&mut self, visit: Visit<'_>) -> Result<(u64, bool), DiskError> {
        let size = self.follow()?.map_err(fault("look at", &self.path))?;
        let file = self.file.as_ref();
        let reading = || fault("read", &self.path);
        if size == self.good.bytes {
            return Ok((size, true));
        }
        let from = if size < self.good.bytes { Good::NOTHING } else { self.good };
        let mut scanned = scan(file, from, visit).map_err(reading())?;
        if (scanned.skipped || !scanned.is_clean) && from != Good::NOTHING {
            // Our own idea of the end may be the wrong one, so the whole file decides.
            scanned = scan(file, Good::NOTHING, visit).map_err(reading())?;
        }
        self.good = scanned.good;
        Ok((size, scanned.is_clean))
    }

    /// Copies a tail that holds more than one torn record to the quarantine.  It is only for a
    /// person to look at, so failing to is no failure.
    fn keep_aside(&self, size: u64) {
        let tail_bytes = (size - self.good.bytes).min(ASIDE_BYTES_MAX);
        let mut tail = vec![0; usize::try_from(tail_bytes).expect("at most 4 MiB")];
        let read = self.file.read_at(self.good.bytes, &mut tail).unwrap_or(0);
        tail.truncate(read);
        if !tail.contains(&b'\n') {
            return;
        }
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let path = self.aside.join(format!("{name}.cut-at-{}", self.good.bytes));
        let _ = write_new(self.disk.as_ref(), &path, &tail);
    }

    /// Writes and syncs one line, or takes it back as far as possible: unless it can be written once
    /// more for another's sync, since others may have read it.
    fn write_line(&mut self, line: &str, and_sync: AndSync) -> Result<(), LogError> {
        let (file, at) = (self.file.as_ref(), self.good.bytes);
        if let Err(error) = write_all(file, &self.path, at, line.as_bytes()) {
            // If this fails too, the next append finds the torn line and cuts it.
            let _ = file.truncate(at);
            return Err(error.into());
        }
        if and_sync == AndSync::Yes
            && let Err(error) = file.sync()
        {
            if !self.give_up() {
                let _ = self.file.truncate(at);
            }
            return Err(fault("sync", &self.path)(error).into());
        }
        Ok(())
    }
}

/// Opens or creates a log so that its name is durable; its inode.
fn open_for_good(disk: &dyn Disk, path: &Path) -> Result<(Box<dyn DiskFile>, u64), DiskError> {
    let file = disk.open(path, Open::Write).map_err(fault("open", path))?;
    // Always, because whoever created or renamed the file may have died before this line.
    let parent = path.parent().unwrap_or(Path::new("/"));
    disk.sync_dir(parent).map_err(fault("sync the directory", parent))?;
    let inode = file.stat().map_err(fault("look at", path))?.inode;
    Ok((file, inode))
}

/// Writes the lines of a new log, many at a time.
struct Writer<'a> {
    file: Box<dyn DiskFile>,
    path: &'a Path,
    written: u64,
    pending: String,
    records: u64,
}

impl Writer<'_> {
    fn add(&mut self, payload: &str) -> Result<(), DiskError> {
        self.records += 1;
        self.pending += &line(self.records, payload);
        if self.pending.len() < RECORD_BYTES_MAX { Ok(()) } else { self.flush() }
    }

    fn flush(&mut self) -> Result<(), DiskError> {
        write_all(self.file.as_ref(), self.path, self.written, self.pending.as_bytes())?;
        self.written += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }

    fn finish(mut self) -> Result<(), DiskError> {
        self.flush()?;
        self.file.sync().map_err(fault("sync", self.path))
    }
}

/// Whether a log has lines that are no records; a torn one at its end does not count.
pub(crate) fn is_damaged(disk: &dyn Disk, path: &Path) -> Result<bool, DiskError> {
    let opened = present(disk.open(path, Open::Read)).map_err(fault("open", path))?;
    let Some(file) = opened else { return Ok(false) };
    let scanned = scan(file.as_ref(), Good::NOTHING, &mut |_, _| {});
    Ok(scanned.map_err(fault("read", path))?.skipped)
}

/// How far a scan came.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Scanned {
    good: Good,
    /// How many records it visited.
    visited: u64,
    /// Whether the good part ends where the file ends.
    is_clean: bool,
    /// Whether there were lines on the way that are no records.
    skipped: bool,
}

/// Reads records from `from` on until the end of the file.
///
/// What is no record is passed over: a disk that fails may lose a record that need not be durable,
/// and whoever writes the next one cannot know.  A record says what is true by itself, so that none
/// hangs on those before it.
fn scan(file: &dyn DiskFile, from: Good, visit: Visit<'_>) -> io::Result<Scanned> {
    let (mut good, mut visited, mut skipped) = (from, 0, false);
    let mut visit = |place: RecordLocation, text: &str| {
        visited += 1;
        visit(place, text);
    };
    let mut pending = Vec::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut offset = from.bytes;
    loop {
        let read = file.read_at(offset + pending.len() as u64, &mut chunk)?;
        if read == 0 {
            let is_clean = pending.is_empty() && good.bytes == offset;
            return Ok(Scanned { good, visited, is_clean, skipped });
        }
        pending.extend_from_slice(&chunk[..read]);
        let mut taken = 0;
        while let Some(length) = pending[taken..].iter().position(|&byte| byte == b'\n') {
            let at = offset + taken as u64;
            skipped |= !take_line(&pending[taken..taken + length], at, &mut good, &mut visit);
            taken += length + 1;
        }
        if pending.len() - taken > LINE_BYTES_MAX {
            // No record is that long; what follows is looked at afresh.
            (skipped, taken) = (true, pending.len());
        }
        pending.drain(..taken);
        offset += taken as u64;
    }
}

/// Visits a line if it is a record that comes after the good ones; says whether it is nothing else.
fn take_line(line: &[u8], offset: u64, good: &mut Good, visit: Visit<'_>) -> bool {
    // What a disk has lost reads as zeros, and the end of the line before may be lost with it.
    let lost = line.iter().rposition(|&byte| byte == 0).map_or(0, |at| at + 1);
    let (line, offset) = (&line[lost..], offset + lost as u64);
    let later = good.records + 1..u64::MAX;
    let Some((seq, payload)) = parse(line).filter(|(seq, _)| later.contains(seq)) else {
        return false;
    };
    let line_bytes = u32::try_from(line.len() + 1).expect("a record is little over 1 MiB");
    visit(RecordLocation { offset, line_bytes, seq }, payload);
    *good = Good { bytes: offset + u64::from(line_bytes), records: seq };
    lost == 0
}

fn line(seq: u64, payload: &str) -> String {
    format!("{seq} {} {payload}\n", checksum(seq, payload))
}

/// Takes a line apart (without its newline) if its checksum holds.
fn parse(line: &[u8]) -> Option<(u64, &str)> {
    let mut parts = std::str::from_utf8(line).ok()?.splitn(3, ' ');
    let (seq_text, check, payload) = (parts.next()?, parts.next()?, parts.next()?);
    let seq: u64 = seq_text.parse().ok()?;
    let is_whole = payload.len() <= RECORD_BYTES_MAX
        && seq.to_string() == seq_text
        && checksum(seq, payload) == check;
    is_whole.then_some((seq, payload))
}

fn checksum(seq: u64, payload: &str) -> String {
    let mut hasher = Sha256::new();
    hasher.update(seq.to_le_bytes());
    hasher.update(payload.as_bytes());
    from_hasher(hasher).short()
}
