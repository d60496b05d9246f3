//! Confines by a mount name space of a program's own, where the kernel has no Landlock that will do.
//!
//! There everything is mounted read-only but the places it may write, `/dev` holds the named devices
//! alone, `/dev/shm` is its own and empty unless it names something there, and no other device node can be opened.  It takes the right
//! to mount: root's, or that of a user name space, which the shim enters before it has threads.
//! Places are mounts of their own here, so a file is moved from one to another by copying it.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getgid, getuid};

use super::Strict;
use super::devices::DEV;
use super::{Bounds, SHARED, Way, devices, queues, seen, system};
use crate::swap_tools::unescaped;

/// Node names and links, a page each at most.
const DEV_SIZE: &str = "mode=755,size=1m";
const SHARED_MODE: &str = "mode=1777";
/// Folders that lead to what may be seen, and nothing else.
const COVER: &str = "mode=755,size=1m";
/// What programs expect beside the nodes.
const LINKS: [(&str, &str); 4] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];
/// Where others keep temporary files.
pub(crate) const TMP: &str = "/tmp";

/// Gives this process, which has one thread, the right to mount in name spaces of its own.  It stays
/// who it is.
pub(super) fn enter_user_namespace() -> io::Result<()> {
    let (user, group) = (getuid(), getgid());
    unshare(CloneFlags::CLONE_NEWUSER)?;
    // Without it no group may be mapped.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}

/// Gives this process, which has one thread, a `/dev/shm` of its own.  What is mounted elsewhere later is
/// seen all the same.
pub(super) fn own_shared() -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    remount(Path::new("/"), MsFlags::MS_REC | MsFlags::MS_SLAVE)?;
    mount_shared()
}

fn mount_shared() -> io::Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    Ok(mount(Some("tmpfs"), SHARED, Some("tmpfs"), flags, Some(SHARED_MODE))?)
}

/// Which right to mount this process has.
pub(super) fn way() -> Way {
    // In the first user name space every user stands for himself.
    const FIRST: &str = "4294967295";
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    if map.split_ascii_whitespace().nth(2) == Some(FIRST) { Way::Mounts } else { Way::UserMounts }
}

/// Whether the kernel that `root` shows lets users have name spaces, by its settings.
pub(super) fn allows_user_namespaces(root: &Path) -> bool {
    let number = |name: &str| {
        let text = fs::read_to_string(root.join("proc/sys").join(name)).ok()?;
        text.trim().parse::<u64>().ok()
    };
    root.join("proc/self/ns/user").symlink_metadata().is_ok()
        && number("user/max_user_namespaces") != Some(0)
        && number("kernel/unprivileged_userns_clone") != Some(0)
        && number("kernel/apparmor_restrict_unprivileged_userns").unwrap_or(0) == 0
}

/// What is seen in a mount name space.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct View<'a> {
    /// What stands at `/tmp`, where that is not the machine's.
    pub(super) tmp: Option<&'a Path>,
    /// What may be seen, where that is not everything.
    pub(super) strict: Option<&'a Strict>,
    /// Whether shared memory is the machine's.
    pub(super) shares: bool,
    /// What is not to be written, though it lies in a place that may be.
    pub(super) store: Option<&'a Path>,
}

impl<'a> View<'a> {
    /// `store` is where that of the bounds really is, if a place holds it.
    pub(super) fn of(bounds: Bounds<'a>, store: Option<&'a Path>) -> Self {
        let Bounds { tmp, strict, shares, .. } = bounds;
        Self { tmp, strict, shares, store }
    }
}

/// Puts this thread into a mount name space in which only `places`, which are real paths, and shared memory can be
/// written.
pub(super) fn isolate(places: &[PathBuf], view: View<'_>) -> io::Result<()> {
    let View { tmp, strict, shares, store } = view;
    if !shares {
        queues::part();
    }
    unshare(CloneFlags::CLONE_NEWNS)?;
    remount(Path::new("/"), MsFlags::MS_REC | MsFlags::MS_PRIVATE)?;
    let shared = shares.then(|| Node::open(SHARED.into())).transpose()?;
    let (devices, mut places): (Vec<_>, Vec<_>) =
        places.iter().cloned().partition(|place| place.starts_with(DEV));
    match strict {
        Some(strict) => cover(&seen(strict), &places)?,
        None => places.iter().try_for_each(|place| bind(place, place))?,
    }
    // With what it holds of places, which are mounts already.
    store.map_or(Ok(()), |store| bind(store, store))?;
    if let Some(tmp) = tmp {
        bind(tmp, Path::new(TMP))?;
        places.push(TMP.into());
    }
    let devices = devices.into_iter().filter(|device| !device.starts_with(SHARED));
    let opened = devices::named().into_iter().chain(devices).map(Node::open);
    replace_dev(&opened.collect::<io::Result<Vec<_>>>()?)?;
    match shared {
        Some(machines) => machines.put_back()?,
        None => fs::create_dir(SHARED).and_then(|()| mount_shared())?,
    }
    for found in parse(&fs::read("/proc/thread-self/mountinfo")?) {
        found.narrow(&places, store)?;
    }
    Ok(())
}

/// Covers all but the system's directories, and puts back what may be `seen` or written.
fn cover(seen: &[PathBuf], places: &[PathBuf]) -> io::Result<()> {
    let real = |path: &PathBuf| path.canonicalize().ok();
    let mut shown: Vec<_> = seen.iter().cloned().chain(seen.iter().filter_map(real)).collect();
    shown.retain(|path| !system::holds(path));
    shown.extend(places.iter().cloned());
    // Folders before what lies in them.
    shown.sort();
    shown.dedup();
    let nodes: Vec<_> = shown.into_iter().filter_map(|path| Node::behind(path).ok()).collect();
    for entry in fs::read_dir("/")? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        if kind.is_dir() && !system::holds(&path) {
            let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
            mount(Some("tmpfs"), &path, Some("tmpfs"), flags, Some(COVER))?;
        } else if kind.is_file() {
            bind(Path::new("/dev/null"), &path)?;
        }
    }
    nodes.iter().try_for_each(Node::put_back)
}

/// A file or a folder, held while others are put over where it lies.
struct Node {
    path: PathBuf,
    file: File,
    is_dir: bool,
}

impl Node {
    fn open(path: PathBuf) -> io::Result<Self> {
        Self::of(path, OFlag::O_PATH | OFlag::O_NOFOLLOW)
    }

    /// What a link leads to, under the link's name.
    fn behind(path: PathBuf) -> io::Result<Self> {
        Self::of(path, OFlag::O_PATH)
    }

    fn of(path: PathBuf, flags: OFlag) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(&path)?;
        let is_dir = file.metadata()?.is_dir();
        Ok(Self { path, file, is_dir })
    }

    /// Makes it visible where it was.
    fn put_back(&self) -> io::Result<()> {
        if let Some(parent) = self.path.parent() {
            fs::create_dir_all(parent)?;
        }
        match self.is_dir {
            true => fs::create_dir_all(&self.path)?,
            // A program that runs cannot be opened for writing.
            false if self.path.exists() => {}
            false => drop(OpenOptions::new().append(true).create(true).open(&self.path)?),
        }
        let held = PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        bind(&held, &self.path)
    }
}

/// A `/dev` of these nodes alone.
fn replace_dev(nodes: &[Node]) -> io::Result<()> {
    let dev = Path::new(DEV);
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    mount(Some("tmpfs"), dev, Some("tmpfs"), flags, Some(DEV_SIZE))?;
    fs::set_permissions(dev, fs::Permissions::from_mode(0o755))?;
    nodes.iter().try_for_each(Node::put_back)?;
    LINKS.iter().try_for_each(|(name, target)| symlink(target, dev.join(name)))
}

fn bind(from: &Path, to: &Path) -> io::Result<()> {
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    Ok(mount(Some(from), to, None::<&str>, flags, None::<&str>)?)
}

fn remount(at: &Path, flags: MsFlags) -> io::Result<()> {
    Ok(mount(None::<&str>, at, None::<&str>, flags, None::<&str>)?)
}

/// A mount, as the kernel lists it.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    at: PathBuf,
    flags: MsFlags,
}

impl Mount {
    /// Read-only but beneath `places`, and in the `store` but beneath those within it; without device nodes but in `/dev`.
    fn narrow(&self, places: &[PathBuf], store: Option<&Path>) -> io::Result<()> {
        let is_dev = self.at.starts_with(DEV);
        if is_dev && self.at != Path::new(DEV) {
            return Ok(());
        }
        let mut flags = self.flags | MsFlags::MS_NOSUID;
        flags.set(MsFlags::MS_NODEV, flags.contains(MsFlags::MS_NODEV) || !is_dev);
        if !self.is_writable(places, store) {
            flags |= MsFlags::MS_RDONLY;
        }
        match remount(&self.at, flags | MsFlags::MS_REMOUNT | MsFlags::MS_BIND) {
            // What lies under another mount cannot be reached by anybody, so not by us.
            Err(error) if hides(&error) => Ok(()),
            Err(error) => Err(io::Error::new(
                error.kind(),
                format!("cannot make {} read-only: {error}", self.at.display()),
            )),
            Ok(()) => Ok(()),
        }
    }

    fn is_writable(&self, places: &[PathBuf], store: Option<&Path>) -> bool {
        let store = store.filter(|store| self.at.starts_with(store));
        let counts =
            |place: &PathBuf| store.is_none_or(|store| place.starts_with(store) && place != store);
        places.iter().any(|place| self.at.starts_with(place) && counts(place))
    }
}

/// Whether nothing is mounted where something was, since another mount covers it.
fn hides(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput)
}

/// The mounts of a `mountinfo`, whose options must be given again to a remount.
fn parse(mountinfo: &[u8]) -> Vec<Mount> {
    let of = |line: &[u8]| {
        let mut fields = line.split(|&byte| byte == b' ').skip(4);
        let (at, options) = (fields.next()?, fields.next()?);
        let options = options.split(|&byte| byte == b',');
        let flags = options.map(flag).fold(MsFlags::empty(), |all, one| all | one);
        let is_strict = !flags.intersects(MsFlags::MS_NOATIME | MsFlags::MS_RELATIME);
        let flags = if is_strict { flags | MsFlags::MS_STRICTATIME } else { flags };
        Some(Mount { at: OsString::from_vec(unescaped(at)).into(), flags })
    };
    mountinfo.split(|&byte| byte == b'\n').filter_map(of).collect()
}

fn flag(option: &[u8]) -> MsFlags {
    match option {
        b"ro" => MsFlags::MS_RDONLY,
        b"nosuid" => MsFlags::MS_NOSUID,
        b"nodev" => MsFlags::MS_NODEV,
        b"noexec" => MsFlags::MS_NOEXEC,
        b"noatime" => MsFlags::MS_NOATIME,
        b"nodiratime" => MsFlags::MS_NODIRATIME,
        b"relatime" => MsFlags::MS_RELATIME,
        _ => MsFlags::empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_in_a_place_is_read_but_for_the_places_in_it() {
        let places = ["/w", "/w/cache/work/a"].map(PathBuf::from);
        let check = |at: &str, store: Option<&str>, is: bool| {
            let mount = Mount { at: at.into(), flags: MsFlags::empty() };
            assert_eq!(mount.is_writable(&places, store.map(Path::new)), is, "{at}, {store:?}");
        };
        for (at, is) in [("/", false), ("/w", true), ("/w/cache", true), ("/w/cache/work/a", true)]
        {
            check(at, None, is);
        }
        check("/w", Some("/w/cache"), true);
        check("/w/cache", Some("/w/cache"), false);
        check("/w/cache/out", Some("/w/cache"), false);
        check("/w/cache/work/a", Some("/w/cache"), true);
        check("/w", Some("/w"), false);
        check("/w/cache/work/a", Some("/w"), true);
    }

    #[test]
    fn mounts_keep_what_they_were_mounted_with() {
        let text = b"24 30 0:22 / /sys rw,nosuid,nodev,noexec,relatime shared:7 - sysfs sysfs rw\n\
                    31 30 8:1 /a\\040b /mnt/a\\040b ro,noatime - ext4 /dev/sda1 rw\n\
                    32 30 8:1 / /plain rw - ext4 /dev/sda1 rw\n\
                    cut short\n";
        let sys =
            MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC | MsFlags::MS_RELATIME;
        let expect = [
            ("/sys", sys),
            ("/mnt/a b", MsFlags::MS_RDONLY | MsFlags::MS_NOATIME),
            ("/plain", MsFlags::MS_STRICTATIME),
        ];
        let expect = expect.map(|(at, flags)| Mount { at: at.into(), flags });
        assert_eq!(parse(text), expect);
    }
}
