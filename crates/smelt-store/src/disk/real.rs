//! Performs disk operations on the machine's file systems.
//!
//! Thin: each method is one or two system calls.  Files are opened close-on-exec (the standard
//! library's default), so that a child never keeps a lock alive.  Decides nothing.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::sys::statfs;
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};

use super::holder::{LockHolder, held_too_long};
use super::{Disk, DiskFile, FileKind, LockGuard, LockKind, Moment, Open, Stat, Volume, Wait};

/// A lock is asked for again after this, and twice as long each time: most are held for a few system calls.
const LOCK_TICK: Duration = Duration::from_micros(200);
const LOCK_TICK_MAX: Duration = Duration::from_millis(20);
/// Nobody but smelt has any business with a lock of the store.  A run that waits for it looks after nothing meanwhile.
const STRANGER_TIME_MAX: Duration = Duration::from_secs(10);
/// Smelt itself reads an output of many GiB under a lock, where that seems damaged.
const SMELT_TIME_MAX: Duration = Duration::from_secs(3600);
/// Whoever is asked to end still writes down how it did.
const STOPPING_TIME_MAX: Duration = Duration::from_secs(1);

/// The machine's own disk.
pub(crate) struct RealDisk {
    boot: String,
    now_ns: fn() -> i64,
    patience: Patience,
}

impl RealDisk {
    pub(crate) fn new() -> Self {
        Self { boot: boot_id(), now_ns, patience: Patience::default() }
    }

    /// A disk on which every file looks an hour old.
    #[cfg(test)]
    pub(crate) fn an_hour_later() -> Self {
        Self { now_ns: || now_ns() + 3_600_000_000_000, ..Self::new() }
    }
}

/// Identifies this boot.  Where the kernel does not say, every process counts as a boot of its
/// own: more is verified than needed, never less.
fn boot_id() -> String {
    match fs::read_to_string("/proc/sys/kernel/random/boot_id") {
        Ok(text) => text.trim().to_owned(),
        Err(_) => format!("unknown-{}-{}", std::process::id(), now_ns()),
    }
}

fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

impl Disk for RealDisk {
    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        match how {
            // Non-blocking, so that a pipe put in a file's place cannot hang the reader.
            Open::Read => options.read(true).custom_flags(OFlag::O_NONBLOCK.bits()),
            Open::Write => options.read(true).write(true).create(true),
            Open::New => options.read(true).write(true).create_new(true),
        };
        Ok(Box::new(RealFile(options.open(path)?)))
    }

    fn make_mutable(&self, path: &Path) -> io::Result<()> {
        let flags = OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
        let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
        // File systems without such flags say so, and forbid nothing by them.
        let Ok(flags) = ioctl_getflags(&file) else { return Ok(()) };
        let fixed = IFlags::IMMUTABLE | IFlags::APPEND;
        if flags.intersects(fixed) {
            ioctl_setflags(&file, flags - fixed)?;
        }
        Ok(())
    }

    fn lstat(&self, path: &Path) -> io::Result<Stat> {
        fs::symlink_metadata(path).map(|metadata| stat_of(&metadata))
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        fs::metadata(path).map(|metadata| stat_of(&metadata))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name())).collect()
    }

    fn mkdir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn rmdir(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }

    fn chmod(&self, path: &Path, mode: u32) -> io::Result<()> {
        fs::set_permissions(path, Permissions::from_mode(mode))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn lock(&self, path: &Path, kind: LockKind, wait: Wait) -> io::Result<Option<LockGuard>> {
        loop {
            let file = open_to_lock(path, kind)?;
            if !self.patience.take(&file, path, kind, wait)? {
                return Ok(None);
            }
            // Whoever held it may have removed the file meanwhile; a lock without a name
            // protects nothing.
            if still_named(&file, path)? {
                return Ok(Some(Box::new(RealLock { file, kind })));
            }
        }
    }

    fn touch(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.set_modified(SystemTime::now())
    }

    fn volume(&self, path: &Path) -> io::Result<Volume> {
        let found = statfs::statfs(path)?;
        let block_bytes = u64::try_from(found.block_size()).unwrap_or(0);
        let free_bytes = found.blocks_available().saturating_mul(block_bytes);
        let kind = found.filesystem_type();
        let is_memory = [statfs::TMPFS_MAGIC, RAMFS_MAGIC].contains(&kind);
        Ok(Volume { free_bytes, is_memory })
    }

    fn unfit(&self, path: &Path) -> io::Result<Option<(&'static str, &'static str)>> {
        let kind = statfs::statfs(path)?.filesystem_type();
        let device = fs::metadata(path)?.dev();
        // Of a disk of this machine no more is asked.
        let mounts = match libc::major(device) {
            0 => fs::read_to_string("/proc/self/mountinfo").unwrap_or_default(),
            _ => String::new(),
        };
        Ok(unfit(kind).or_else(|| is_9p(&mounts, device).then_some(("9P", NETWORK))))
    }

    fn moment(&self) -> Moment {
        Moment { now_ns: (self.now_ns)(), boot: self.boot.clone() }
    }

    fn stop_on(&self, stop: Arc<AtomicBool>) {
        // One process has one flag.
        let _ = self.patience.stop.set(stop);
    }
}

/// By Linux's `magic.h`.
const RAMFS_MAGIC: statfs::FsType = statfs::FsType(0x8584_58f6);

/// Of other machines: their locks may exclude nobody.
const NETWORK: &str = "it is of the network, where locks between runs cannot be trusted, nor that what is synced is kept";
/// Of FAT's kin: a file that was edited within two seconds would pass for the one that was digested.
const FOREIGN: &str =
    "it knows no modes, keeps times to seconds and takes names for one another that differ in case";

/// File systems that cannot keep what a store promises.  tmpfs works until the machine's next start,
/// overlayfs as well as what lies on top.
fn unfit(kind: statfs::FsType) -> Option<(&'static str, &'static str)> {
    // The magic numbers are those of Linux's `magic.h` and of the drivers; libc lacks many.
    let name = match u32::try_from(kind.0 & 0xffff_ffff).ok()? {
        0x6969 => "NFS",
        0x517b => "SMB",
        0xff53_4d42 => "CIFS",
        0xfe53_4d42 => "SMB2",
        0x0102_1997 => "9P",
        0x5346_414f | 0x6b41_4653 => "AFS",
        0x7375_7245 => "Coda",
        0x4d44 => return Some(("vfat", FOREIGN)),
        0x2011_bab0 => return Some(("exFAT", FOREIGN)),
        _ => return None,
    };
    Some((name, NETWORK))
}

/// Whether a device is one of 9P by the lines of `mountinfo`, `31 23 0:28 ROOT POINT OPTIONS … - TYPE SOURCE OPTIONS`:
/// its `statfs` tells what the server's disk is.
fn is_9p(mountinfo: &str, device: u64) -> bool {
    let number = format!("{}:{}", libc::major(device), libc::minor(device));
    let mut lines = mountinfo.lines();
    lines.any(|line| {
        let kind = line.split_once(" - ").and_then(|(_, rest)| rest.split(' ').next());
        kind == Some("9p") && line.split(' ').nth(2) == Some(&number)
    })
}

pub(crate) fn stat_of(metadata: &fs::Metadata) -> Stat {
    let kind = match metadata.file_type() {
        kind if kind.is_file() => FileKind::File,
        kind if kind.is_dir() => FileKind::Dir,
        kind if kind.is_symlink() => FileKind::Link,
        _ => FileKind::Other,
    };
    let ns = |seconds: i64, rest: i64| seconds.saturating_mul(1_000_000_000).saturating_add(rest);
    Stat {
        kind,
        size: metadata.size(),
        mtime_ns: ns(metadata.mtime(), metadata.mtime_nsec()),
        ctime_ns: ns(metadata.ctime(), metadata.ctime_nsec()),
        inode: metadata.ino(),
        links: metadata.nlink(),
        mode: metadata.mode() & 0o7777,
    }
}

struct RealFile(File);

impl DiskFile for RealFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(buffer, offset)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_at(bytes, offset)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_all()
    }

    fn stat(&self) -> io::Result<Stat> {
        self.0.metadata().map(|metadata| stat_of(&metadata))
    }
}

/// A lock on a file description of its own, so that two locks of one process exclude each other.
struct RealLock {
    file: File,
    kind: LockKind,
}

impl Drop for RealLock {
    /// Unlocks by name and not by closing: a child between fork and exec still shares the
    /// description, and would keep it locked.  If this fails, closing is all that is left to do.
    fn drop(&mut self) {
        let _ = match self.kind {
            LockKind::Byte(at) => byte_lock(&self.file, at, libc::F_UNLCK, Wait::No).map(drop),
            LockKind::Shared | LockKind::Exclusive => self.file.unlock(),
        };
    }
}

fn open_to_lock(path: &Path, kind: LockKind) -> io::Result<File> {
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    match opened {
        // A shared lock needs no right to write, so a read-only store can be looked at.
        Err(error)
            if kind == LockKind::Shared
                && matches!(
                    error.kind(),
                    io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied
                ) =>
        {
            File::open(path)
        }
        other => other,
    }
}

/// How long locks are waited for that smelt holds while it does one thing.
#[derive(Default)]
struct Patience {
    stop: OnceLock<Arc<AtomicBool>>,
    /// Those that were held for too long: until they are free they are only tried.
    late: Mutex<BTreeSet<PathBuf>>,
}

impl Patience {
    /// Whether it was taken; always, or an error, where it is waited for.
    fn take(&self, file: &File, path: &Path, kind: LockKind, wait: Wait) -> io::Result<bool> {
        match wait {
            Wait::Yes => wait_for(file, kind).map(|()| true),
            Wait::No => try_take(file, kind),
            Wait::Briefly if try_take(file, kind)? => Ok(true),
            Wait::Briefly => self.take_briefly(file, path, kind).map(|()| true),
        }
    }

    fn take_briefly(&self, file: &File, path: &Path, kind: LockKind) -> io::Result<()> {
        let late = || self.late.lock().unwrap_or_else(PoisonError::into_inner);
        let is_late = late().contains(path);
        let (begun, mut tick) = (Instant::now(), LOCK_TICK);
        loop {
            if try_take(file, kind)? {
                if is_late {
                    late().remove(path);
                }
                return Ok(());
            }
            let holder = || LockHolder::of(file);
            if is_late || begun.elapsed() >= self.time_max(&begun, holder) {
                late().insert(path.to_owned());
                return Err(io::Error::new(io::ErrorKind::TimedOut, held_too_long(holder())));
            }
            thread::sleep(tick);
            tick = (tick * 2).min(LOCK_TICK_MAX);
        }
    }

    /// Who holds it is asked for when it matters.
    fn time_max(&self, begun: &Instant, holder: impl Fn() -> Option<LockHolder>) -> Duration {
        let is_stopping = self.stop.get().is_some_and(|stop| stop.load(Ordering::Relaxed));
        match () {
            () if is_stopping => STOPPING_TIME_MAX,
            () if begun.elapsed() < STRANGER_TIME_MAX => STRANGER_TIME_MAX,
            () if holder().is_some_and(LockHolder::is_smelt_at_work) => SMELT_TIME_MAX,
            () => STRANGER_TIME_MAX,
        }
    }
}

fn wait_for(file: &File, kind: LockKind) -> io::Result<()> {
    match kind {
        LockKind::Byte(at) => byte_lock(file, at, libc::F_WRLCK, Wait::Yes).map(drop),
        LockKind::Shared => file.lock_shared(),
        LockKind::Exclusive => file.lock(),
    }
}

fn try_take(file: &File, kind: LockKind) -> io::Result<bool> {
    match kind {
        LockKind::Byte(at) => byte_lock(file, at, libc::F_WRLCK, Wait::No),
        LockKind::Shared => tried(file.try_lock_shared()),
        LockKind::Exclusive => tried(file.try_lock()),
    }
}

fn tried(answer: Result<(), TryLockError>) -> io::Result<bool> {
    match answer {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Locks or unlocks one byte with an open-file-description lock.  Classic `fcntl` locks would be
/// lost as soon as anything in the process closed the same file.
fn byte_lock(file: &File, at: u64, kind: libc::c_int, wait: Wait) -> io::Result<bool> {
    let range = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: libc::off_t::try_from(at).map_err(io::Error::other)?,
        l_len: 1,
        l_pid: 0,
    };
    let asked = match wait {
        Wait::Yes => FcntlArg::F_OFD_SETLKW(&range),
        Wait::No | Wait::Briefly => FcntlArg::F_OFD_SETLK(&range),
    };
    match fcntl(file, asked) {
        Ok(_) => Ok(true),
        Err(nix::Error::EAGAIN | nix::Error::EACCES) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn still_named(file: &File, path: &Path) -> io::Result<bool> {
    let held = file.metadata()?;
    match fs::metadata(path) {
        Ok(named) => Ok(held.ino() == named.ino() && held.dev() == named.dev()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a stage may: it locks what it can read.
    #[test]
    fn whoever_holds_a_lock_for_too_long_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        fs::write(&path, "").unwrap();
        let script = "exec 3< lock; flock -x 3; echo; exec sleep 600";
        let mut other = std::process::Command::new("sh");
        other.args(["-c", script]).current_dir(&folder).stdout(std::process::Stdio::piped());
        let mut other = other.spawn().unwrap();
        io::Read::read_exact(other.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let disk = RealDisk::new();
        let stop = Arc::new(AtomicBool::new(false));
        disk.stop_on(Arc::clone(&stop));
        let take = || disk.lock(&path, LockKind::Exclusive, Wait::Briefly);
        let late = thread::scope(|scope| {
            let waiting = scope.spawn(|| take().map(drop));
            thread::sleep(LOCK_TICK_MAX);
            stop.store(true, Ordering::Relaxed);
            waiting.join().unwrap().unwrap_err()
        });
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        let words = format!("process {} (sleep) holds its lock", other.id());
        assert!(late.to_string().contains(&words), "{late}");
        let begun = Instant::now();
        assert!(take().is_err() && begun.elapsed() < STOPPING_TIME_MAX, "it is only tried now");
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(take().unwrap().is_some());
    }

    #[test]
    fn smelt_at_work_is_waited_for() {
        let own = File::open("/proc/self/exe").unwrap();
        let lock = tempfile::tempfile().unwrap();
        lock.lock().unwrap();
        let patience = Patience::default();
        let now = Instant::now();
        let begun = now.checked_sub(STRANGER_TIME_MAX).unwrap_or(now);
        if begun == now {
            return println!("not run: the machine has just started");
        }
        assert_eq!(patience.time_max(&begun, || LockHolder::of(&lock)), SMELT_TIME_MAX);
        assert_eq!(patience.time_max(&begun, || LockHolder::of(&own)), STRANGER_TIME_MAX);
        assert_eq!(patience.time_max(&now, || unreachable!()), STRANGER_TIME_MAX);
    }

    #[test]
    fn what_keeps_a_store_and_what_does_not() {
        let check = |magic: i64, expect: Option<&str>| {
            assert_eq!(unfit(statfs::FsType(magic)).map(|(name, _)| name), expect, "{magic:x}");
        };
        check(0x6969, Some("NFS"));
        check(0xff53_4d42, Some("CIFS"));
        check(0x4d44, Some("vfat"));
        check(0x2011_bab0, Some("exFAT"));
        // ext4, overlayfs, tmpfs, btrfs, xfs, f2fs.
        for magic in [0xef53, 0x794c_7630, 0x0102_1994, 0x9123_683e, 0x5846_5342, 0xf2f5_2010] {
            check(magic, None);
        }
    }
    #[test]
    fn what_another_machine_shares_is_known_by_its_mount() {
        let mounts = "22 1 254:1 / / rw - ext4 /dev/root rw\n\
            31 22 0:28 / /mnt/a\\040b rw,noatime shared:1 - 9p lent rw,trans=virtio\n\
            32 22 0:29 / /x rw - overlay 9p rw\n";
        let is = |major, minor| is_9p(mounts, libc::makedev(major, minor));
        assert_eq!([is(0, 28), is(0, 29), is(254, 1), is(0, 2)], [true, false, false, false]);
    }
}
