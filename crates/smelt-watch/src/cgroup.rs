//! Makes a control group for an attempt and reads what the kernel counts in it.
//!
//! Three kinds of kernel: version 2 with memory, version 1 memory (with a version 2 group beside
//! it for pressure and for killing, where that hierarchy is mounted), or neither; then `/proc` is
//! all there is.  Groups are made below our own, so that our own limits go on to hold; where that
//! one hands out no memory control, at the root, which only a privileged user can write to.

mod running;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::ceiling::{Ceiling, Version};
use crate::counters::Counters;
use crate::freezer::Freezer;
use crate::kernel_file;
use crate::machine::number;
use crate::pressure::Pressure;
pub use running::RunningGroup;

/// What tells our groups from others'.
const PREFIX: &str = "smelt-";
/// A group whose processes were just killed is busy until the kernel has let go of them.
const REMOVE_TRIES: u32 = 50;
const REMOVE_PAUSE: Duration = Duration::from_millis(2);
/// What is killed is in its group until the kernel has let go of it.
const KILL_PASSES: u32 = 100;
/// How deep engines put groups: below slices of users and services.
const CONTAINER_DEPTH_MAX: u32 = 8;
/// Machines have some hundred groups.
const GROUPS_SEEN_MAX: u32 = 20_000;
/// A group that is just made has nobody in it yet.
const EMPTY_TIME_MAX: Duration = Duration::from_secs(60);

/// Where groups can be made on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroups {
    version: Version,
    /// The directory that groups which count memory are made in.
    memory: PathBuf,
    /// Where that hierarchy begins.
    top: PathBuf,
    /// With version 1, the one in the hierarchy of version 2.
    unified: Option<PathBuf>,
}

/// The group of one attempt, which must be removed when that has ended, or an engine's of one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    version: Version,
    memory: PathBuf,
    unified: Option<PathBuf>,
}

/// What a group holds now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CgroupUsage {
    /// File pages charged to it.
    pub page_cache_bytes: Option<u64>,
}

impl Cgroups {
    /// Looks for hierarchies that we may make groups in, on the machine whose file system is at
    /// `root`; `None` where there are none.
    pub fn find(root: &Path) -> Option<Self> {
        let text = |path| kernel_file::text(root.join(path)).unwrap_or_default();
        let mounts = mounts(&text("proc/self/mountinfo"));
        let own = text("proc/self/cgroup");
        let places = |mount: &Mount| places(root, mount, &own);
        let top = |mount: &Mount| root.join(mount.at.trim_start_matches('/'));
        let v2 = mounts.iter().find(|mount| mount.is_v2);
        let handed_out = |mount| places(mount).into_iter().find(|dir| hands_out_memory(dir));
        if let Some((mount, memory)) = v2.and_then(|mount| Some((mount, handed_out(mount)?))) {
            return Some(Self { version: Version::V2, memory, top: top(mount), unified: None });
        }
        let v1 = mounts.iter().find(|mount| mount.has_memory)?;
        let is_there = |dir: &PathBuf| dir.join("cgroup.procs").exists();
        let first = |mount: &Mount| places(mount).into_iter().find(is_there);
        let unified = v2.and_then(first);
        Some(Self { version: Version::V1, memory: first(v1)?, top: top(v1), unified })
    }

    /// What the groups above those we make leave of the machine.
    pub fn ceiling(&self) -> Ceiling {
        Ceiling::read(self.version, &self.memory, &self.top)
    }

    /// The word for reports.
    pub fn name(&self) -> &'static str {
        match self.version {
            Version::V1 => "cgroup-v1",
            Version::V2 => "cgroup-v2",
        }
    }

    /// The directory that groups are made in.
    pub fn place(&self) -> &Path {
        &self.memory
    }

    /// Makes a group for what is called `name`, a relative path or plain name.
    pub fn create(&self, name: &str) -> io::Result<Group> {
        let name = group_name(name);
        let memory = self.memory.join(&name);
        fs::create_dir(&memory)?;
        // Without its sibling a group still counts memory.
        let unified = self.unified.as_ref().map(|base| base.join(&name));
        let unified = unified.filter(|dir| fs::create_dir(dir).is_ok());
        Ok(Group { version: self.version, memory, unified })
    }

    /// The group that an engine has made for its container `id`: engines have it in the group's name.
    pub fn of_container(&self, id: &str) -> Option<Group> {
        let memory = named_so(&self.top, id)?;
        let is_group = |dir: &&Path| dir.join("cgroup.procs").exists();
        // Engines that count by version 1 may make one there and leave it empty.
        let of_2 = |own: &PathBuf| named_so(own.ancestors().take_while(is_group).last()?, id);
        let unified = self.unified.as_ref().and_then(of_2).filter(|dir| !is_empty(dir));
        Some(Group { version: self.version, memory, unified })
    }

    /// Kills what is left in groups whose names begin like `name`, and removes them.
    pub fn sweep(&self, name: &str) {
        for entry in self.named(&group_name(name)) {
            kill_all(&entry.path());
            remove(&entry.path());
        }
    }

    /// Removes empty groups that killed runs left, whatever store they used: it may never be opened again.
    pub fn sweep_empty(&self) {
        let is_old = |entry: &fs::DirEntry| {
            let made = entry.metadata().and_then(|meta| meta.modified());
            made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age > EMPTY_TIME_MAX))
        };
        for entry in self.named(PREFIX).filter(is_old) {
            remove_empty(&entry.path());
        }
    }

    /// The groups whose names begin so, in each hierarchy.
    fn named(&self, start: &str) -> impl Iterator<Item = fs::DirEntry> {
        let bases = [Some(&self.memory), self.unified.as_ref()].into_iter().flatten();
        let entries = bases.flat_map(fs::read_dir).flatten().flatten();
        entries.filter(move |entry| {
            let is_group = entry.file_type().is_ok_and(|kind| kind.is_dir());
            is_group && entry.file_name().to_str().is_some_and(|name| name.starts_with(start))
        })
    }
}

impl Group {
    /// Moves a process in; its descendants from then on are born there.
    pub fn add(&self, pid: u32) -> io::Result<()> {
        let pid = pid.to_string();
        fs::write(self.memory.join("cgroup.procs"), &pid)?;
        self.unified.as_ref().map_or(Ok(()), |dir| fs::write(dir.join("cgroup.procs"), &pid))
    }

    /// When it was made.
    pub fn made(&self) -> Option<SystemTime> {
        fs::metadata(&self.memory).and_then(|stat| stat.modified()).ok()
    }

    /// Its processes, and those of the groups below it.
    pub fn pids_below(&self) -> Vec<u32> {
        let mut pids = Vec::new();
        let mut open = vec![self.memory.clone()];
        while let Some(dir) = open.pop() {
            pids.extend(read(&dir, "cgroup.procs").lines().filter_map(|it| it.parse::<u32>().ok()));
            open.extend(children(&dir));
        }
        // Those of other process name spaces are 0.
        pids.retain(|pid| *pid > 0);
        pids
    }

    /// Kills all its processes; false where some are left: they are not ours to kill, or multiply faster.
    pub fn kill(&self) -> bool {
        // What is born meanwhile it kills, too, where there is such a file.
        let dir = self.hierarchy_of_2().unwrap_or(&self.memory);
        let _ = fs::write(dir.join("cgroup.kill"), "1");
        for _ in 0..KILL_PASSES {
            let pids = self.pids_below();
            let killed =
                pids.iter().map(|pid| kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL));
            if killed.filter(|killed| *killed == Err(Errno::EPERM)).count() > 0 {
                return false;
            }
            if pids.is_empty() {
                return true;
            }
            thread::sleep(REMOVE_PAUSE);
        }
        false
    }

    /// Halts all its processes, or lets them go on; false where the kernel has no such group, or it is not ours to halt.
    pub fn halt(&self, is_halted: bool) -> bool {
        let text = if is_halted { "1" } else { "0" };
        self.hierarchy_of_2().is_some_and(|dir| fs::write(dir.join("cgroup.freeze"), text).is_ok())
    }

    /// The kernel keeps what is charged to it, page cache included, within `bytes`: it swaps out, drops
    /// caches, and kills where neither helps.
    pub fn limit(&self, bytes: u64) -> io::Result<()> {
        let name = match self.version {
            Version::V1 => "memory.limit_in_bytes",
            Version::V2 => "memory.max",
        };
        fs::write(self.memory.join(name), bytes.to_string())
    }

    /// How to halt all its processes but the one that leads them; `None` where the kernel has no such
    /// group.
    pub fn freezer(&self, leader: u32) -> Option<Freezer> {
        Freezer::of(self.hierarchy_of_2()?, leader)
    }

    /// Writes what its processes hold to swap, as far as there is swap, and drops its cached files.  Takes
    /// as long as the disk; of use only while they are halted.
    pub fn page_out(&self) -> io::Result<()> {
        match self.version {
            Version::V1 => fs::write(self.memory.join("memory.force_empty"), "0"),
            // `memory.reclaim` would say it better, but not on the kernels of the boards (5.15).
            Version::V2 => {
                let high = self.memory.join("memory.high");
                let lowered = fs::write(&high, "0");
                fs::write(&high, "max").and(lowered)
            }
        }
    }

    /// What it holds now.
    pub fn held(&self) -> CgroupUsage {
        self.held_of(&self.stat())
    }

    fn held_of(&self, stat: &str) -> CgroupUsage {
        let name = match self.version {
            Version::V1 => "total_cache",
            Version::V2 => "file",
        };
        CgroupUsage { page_cache_bytes: number(stat, name) }
    }

    fn stat(&self) -> String {
        read(&self.memory, "memory.stat")
    }

    /// The most memory ever charged to it, page cache and the kernel's own included, in bytes.
    pub fn peak_bytes(&self) -> Option<u64> {
        let name = match self.version {
            Version::V1 => "memory.max_usage_in_bytes",
            Version::V2 => "memory.peak",
        };
        read(&self.memory, name).trim().parse().ok()
    }

    /// What is charged to it now, page cache included, in bytes.
    pub fn charged_bytes(&self) -> Option<u64> {
        let name = match self.version {
            Version::V1 => "memory.usage_in_bytes",
            Version::V2 => "memory.current",
        };
        read(&self.memory, name).trim().parse().ok()
    }

    /// Processor time of all that ran in it.
    pub fn cpu(&self) -> Option<Duration> {
        number(&read(self.hierarchy_of_2()?, "cpu.stat"), "usage_usec").map(Duration::from_micros)
    }

    /// What it holds now, and what happened in it since it was made.
    pub fn account(&self) -> (CgroupUsage, Counters) {
        let stat = self.stat();
        (self.held_of(&stat), self.counters_of(&stat))
    }

    fn counters_of(&self, stat: &str) -> Counters {
        let (faults, events) = match self.version {
            Version::V1 => ("total_pgmajfault", "memory.oom_control"),
            Version::V2 => ("pgmajfault", "memory.events"),
        };
        let pressure = self.pressure();
        Counters {
            major_faults: number(stat, faults),
            // Version 2 counts these since Linux 6.11; version 1 does not.
            swap_in_pages: number(stat, "pswpin"),
            swap_out_pages: number(stat, "pswpout"),
            pressure_some_us: pressure.map(|pressure| pressure.some_us),
            pressure_full_us: pressure.map(|pressure| pressure.full_us),
            oom_kills: number(&read(&self.memory, events), "oom_kill"),
            ..Counters::default()
        }
    }

    /// How long its tasks have waited for memory.
    pub fn pressure(&self) -> Option<Pressure> {
        Pressure::parse(&read(self.hierarchy_of_2()?, "memory.pressure"))
    }

    /// Its directory in the hierarchy of version 2.
    fn hierarchy_of_2(&self) -> Option<&Path> {
        match self.version {
            Version::V1 => self.unified.as_deref(),
            Version::V2 => Some(&self.memory),
        }
    }

    /// Removes it, once its processes are gone, with the groups that a container made in it and
    /// what still lives there.  One that stays is in nobody's way and is swept up by a later start.
    pub fn remove(self) {
        for dir in [Some(self.memory), self.unified].into_iter().flatten() {
            // Nearly all are empty, and looking through one costs more than its removal.
            if fs::remove_dir(&dir).is_ok() {
                continue;
            }
            children(&dir).for_each(|child| kill_all(&child));
            remove(&dir);
        }
    }
}

fn group_name(name: &str) -> String {
    format!("{PREFIX}{}", name.replace('/', "."))
}

fn read(dir: &Path, name: &str) -> String {
    kernel_file::text(dir.join(name)).unwrap_or_default()
}

/// Kills what lives in a group and those below it.  Only version 2 kills by group.
fn kill_all(dir: &Path) {
    if fs::write(dir.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    children(dir).for_each(|child| kill_all(&child));
    let procs = read(dir, "cgroup.procs");
    let pids = procs.lines().filter_map(|line| line.parse::<i32>().ok());
    // Those of other process name spaces are 0, which would mean ourselves.
    for pid in pids.filter(|&pid| pid > 0) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
}

/// The directory below another one that has `id` in its name.
fn named_so(top: &Path, id: &str) -> Option<PathBuf> {
    let mut open = vec![(top.to_owned(), 0)];
    let mut seen = 0;
    while let Some((dir, depth)) = open.pop() {
        for child in children(&dir) {
            seen += 1;
            if child.file_name().is_some_and(|name| name.to_string_lossy().contains(id)) {
                return Some(child);
            }
            if depth < CONTAINER_DEPTH_MAX && seen < GROUPS_SEEN_MAX {
                open.push((child, depth + 1));
            }
        }
    }
    None
}

fn children(dir: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|e| e.path())
}

/// Removes a group with those below it if nobody is in any: a shim that waits stays in its group, and what a stage has
/// made there is its own as long.
fn remove_empty(dir: &Path) {
    // Nearly all have none below; the kernel refuses it where somebody is in it.
    if fs::remove_dir(dir).is_err() && is_empty(dir) {
        children(dir).for_each(|child| remove_empty(&child));
        let _ = fs::remove_dir(dir);
    }
}

/// Whether nobody is in a group or in those below it.
fn is_empty(dir: &Path) -> bool {
    read(dir, "cgroup.procs").trim().is_empty() && children(dir).all(|child| is_empty(&child))
}

/// With the groups below it: they are removed from the leaves on.
fn remove(dir: &Path) {
    children(dir).for_each(|child| remove(&child));
    for _ in 0..REMOVE_TRIES {
        match fs::remove_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
            _ => return,
        }
        thread::sleep(REMOVE_PAUSE);
    }
}

/// Whether groups made in `dir` will count memory.
fn hands_out_memory(dir: &Path) -> bool {
    read(dir, "cgroup.subtree_control").split_ascii_whitespace().any(|name| name == "memory")
}

/// A mounted hierarchy.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    /// What of the hierarchy is seen at the mount point.
    root: String,
    at: String,
    is_v2: bool,
    /// A hierarchy of version 1 with the memory controller.
    has_memory: bool,
}

/// Reads `/proc/self/mountinfo`: `31 23 0:28 ROOT POINT OPTIONS … - TYPE SOURCE OPTIONS`.
fn mounts(mountinfo: &str) -> Vec<Mount> {
    let mount = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let mut right = right.split(' ');
        let (root, at, kind) = (left.next()?, left.next()?, right.next()?);
        let is_v2 = kind == "cgroup2";
        let has_memory =
            kind == "cgroup" && right.nth(1)?.split(',').any(|controller| controller == "memory");
        (is_v2 || has_memory).then(|| Mount {
            root: root.to_owned(),
            at: at.to_owned(),
            is_v2,
            has_memory,
        })
    };
    mountinfo.lines().filter_map(mount).collect()
}

/// Our own group's directory in a hierarchy, then those above it up to the hierarchy's root.
fn places(root: &Path, mount: &Mount, own: &str) -> Vec<PathBuf> {
    let at = root.join(mount.at.trim_start_matches('/'));
    let own = own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (id, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let is_it = if mount.is_v2 {
            id == "0"
        } else {
            controllers.split(',').any(|controller| controller == "memory")
        };
        is_it.then_some(path)
    });
    // In a container the mount may begin at our own group, and the path is then seen from above.
    let below = own.map(|path| path.strip_prefix(&mount.root).unwrap_or(path));
    let own = below.map(|path| at.join(path.trim_start_matches('/'))).filter(|dir| dir.is_dir());
    let own = own.unwrap_or_else(|| at.clone());
    own.ancestors().take_while(|dir| dir.starts_with(&at)).map(Path::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// A captured tree: files by path.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    const HYBRID: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
                          36 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                          41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

    #[test]
    fn a_containers_group_is_found_by_its_id_wherever_its_engine_has_put_it() {
        let id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        for place in [
            format!("docker/{id}"),
            format!("system.slice/docker-{id}.scope"),
            format!("user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{id}.scope"),
        ] {
            let root = tree(&[
                ("cgroup.procs", ""),
                ("system.slice/other.scope/cgroup.procs", "5\n"),
                (&format!("{place}/cgroup.procs"), "7\n"),
                (&format!("{place}/container/cgroup.procs"), "8\n0\n"),
                (&format!("{place}/memory.peak"), "4096\n"),
            ]);
            let top = root.path().to_owned();
            let memory = top.join("own");
            let cgroups = Cgroups { version: Version::V2, memory, top, unified: None };
            let group = cgroups.of_container(id).unwrap();
            let mut pids = group.pids_below();
            pids.sort_unstable();
            assert_eq!((pids, group.peak_bytes()), (vec![7, 8], Some(4096)));
            assert!(group.halt(true));
            let frozen = root.path().join(&place).join("cgroup.freeze");
            assert_eq!(fs::read_to_string(frozen).unwrap(), "1");
            assert_eq!(cgroups.of_container(&id.replace('0', "f")), None);
        }
    }

    #[test]
    fn a_session_that_hands_out_no_memory_is_passed_over() {
        let session = "sys/fs/cgroup/user.slice/session-3.scope";
        let root = tree(&[
            ("proc/self/mountinfo", V2),
            ("proc/self/cgroup", "0::/user.slice/session-3.scope\n"),
            (&format!("{session}/cgroup.subtree_control"), "\n"),
            ("sys/fs/cgroup/cgroup.subtree_control", "cpu memory pids\n"),
        ]);
        let found = Cgroups::find(root.path()).unwrap();
        assert_eq!((found.name(), &found.unified), ("cgroup-v2", &None));
        assert_eq!(found.memory, root.path().join("sys/fs/cgroup"));
        fs::write(root.path().join(session).join("cgroup.subtree_control"), "memory").unwrap();
        assert_eq!(Cgroups::find(root.path()).unwrap().memory, root.path().join(session));
    }

    #[test]
    fn version_1_gets_a_sibling_of_version_2() {
        let root = tree(&[
            ("proc/self/mountinfo", HYBRID),
            ("proc/self/cgroup", "4:memory:/a/b\n1:cpu:/c\n0::/\n"),
            ("sys/fs/cgroup/memory/a/b/cgroup.procs", ""),
            ("sys/fs/cgroup/memory/cgroup.procs", ""),
            ("sys/fs/cgroup/unified/cgroup.procs", ""),
            ("sys/fs/cgroup/unified/cgroup.subtree_control", "hugetlb\n"),
        ]);
        let found = Cgroups::find(root.path()).unwrap();
        assert_eq!(found.name(), "cgroup-v1");
        assert_eq!(found.memory, root.path().join("sys/fs/cgroup/memory/a/b"));
        assert_eq!(found.unified, Some(root.path().join("sys/fs/cgroup/unified")));
    }

    /// As a container makes in the group of the stage that starts it.
    #[test]
    fn groups_within_a_group_go_with_it() {
        let name = format!("test-{}/nested", std::process::id());
        let made = Cgroups::find(Path::new("/")).map(|found| (found.create(&name), found));
        let Some((Ok(group), found)) = made else { return println!("not run: no groups here") };
        let inner = group.memory.join("container/init");
        fs::create_dir_all(&inner).unwrap();
        let mut sleeper = Command::new("sleep").arg("100").spawn().unwrap();
        fs::write(inner.join("cgroup.procs"), sleeper.id().to_string()).unwrap();
        let (memory, unified) = (group.memory.clone(), group.unified.clone());
        group.remove();
        assert!(!sleeper.wait().unwrap().success());
        assert!(!memory.exists() && unified.is_none_or(|dir| !dir.exists()));
        // What a killed run left is swept up in the same way.
        let group = found.create(&name).unwrap();
        fs::create_dir(group.memory.join("container")).unwrap();
        found.sweep(&name);
        assert!(!memory.exists());
    }

    #[test]
    fn a_container_sees_its_own_group_as_the_root() {
        let root = tree(&[
            (
                "proc/self/mountinfo",
                "35 31 0:32 /docker/1f /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
            ),
            ("proc/self/cgroup", "4:memory:/docker/1f\n"),
            ("sys/fs/cgroup/memory/cgroup.procs", ""),
        ]);
        let found = Cgroups::find(root.path()).unwrap();
        assert_eq!(found.memory, root.path().join("sys/fs/cgroup/memory"));
    }

    #[test]
    fn a_machine_without_groups_has_none() {
        assert_eq!(Cgroups::find(tree(&[]).path()), None);
        let garbage = tree(&[("proc/self/mountinfo", "1 2 - x\n - cgroup2\n")]);
        assert_eq!(Cgroups::find(garbage.path()), None);
    }

    #[test]
    fn a_captured_group_is_read() {
        let check = |version, files: &[(&str, &str)]| {
            let root = tree(files);
            let dir = |name: &str| root.path().join(name);
            let group = Group { version, memory: dir("m"), unified: Some(dir("u")) };
            let expect = Counters {
                major_faults: Some(7),
                oom_kills: Some(2),
                pressure_some_us: Some(5),
                pressure_full_us: Some(4),
                ..Counters::default()
            };
            let held = CgroupUsage { page_cache_bytes: Some(300) };
            assert_eq!(group.account(), (held, expect));
            assert_eq!(group.held(), held);
            assert_eq!(group.peak_bytes(), Some(4096));
        };
        let pressure = "some avg10=0.00 total=5\nfull avg10=0.00 total=4\n";
        check(
            Version::V1,
            &[
                ("m/memory.stat", "cache 1\ntotal_cache 300\ntotal_pgmajfault 7\n"),
                ("m/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
                ("m/memory.max_usage_in_bytes", "4096\n"),
                ("u/memory.pressure", pressure),
            ],
        );
        check(
            Version::V2,
            &[
                ("m/memory.stat", "anon 9\nfile 300\npgmajfault 7\n"),
                ("m/memory.events", "low 0\noom 1\noom_kill 2\noom_group_kill 0\n"),
                ("m/memory.peak", "4096\n"),
                ("m/memory.pressure", pressure),
            ],
        );
    }

    #[test]
    fn a_real_group_counts_and_is_removed() {
        let Some(cgroups) = Cgroups::find(Path::new("/")) else { return };
        let name = format!("test/{}", std::process::id());
        // Whoever may not make groups measures by /proc alone.
        let Ok(group) = cgroups.create(&name) else { return };
        let mut child = Command::new("sh")
            .args([
                "-c",
                "read go; head -c 30000000 /dev/zero | tail -c 30000000 > /dev/null; read end",
            ])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        group.add(child.id()).unwrap();
        let mut input = child.stdin.take().unwrap();
        io::Write::write_all(&mut input, b"go\nend\n").unwrap();
        child.wait().unwrap();
        assert!(group.peak_bytes().is_some_and(|bytes| bytes > 29_000_000));
        assert_eq!(group.account().1.oom_kills, Some(0));
        let dir = group.memory.clone();
        group.remove();
        assert!(!dir.exists());
    }

    /// As a run leaves them that was killed, whatever its store.
    #[test]
    fn old_and_empty_groups_go() {
        let root = tree(&[
            ("other/x", ""),
            ("smelt-run.lives.1/x", ""),
            ("smelt-run.full.1/container/cgroup.procs", "7\n"),
        ]);
        let here = |name: &str| root.path().join(name);
        let at = |name: &str, seconds| {
            let made = std::time::SystemTime::now() - Duration::from_secs(seconds);
            fs::File::open(here(name)).unwrap().set_modified(made).unwrap();
        };
        let nested = ["smelt-run.nested.1/container/init", "smelt-run.full.1/empty"];
        for name in ["smelt-run.old.1", "smelt-run.new.1", "old"].into_iter().chain(nested) {
            fs::create_dir_all(here(name)).unwrap();
        }
        let old = ["old", "lives", "nested", "full"].map(|name| format!("smelt-run.{name}.1"));
        for name in old.iter().map(String::as_str).chain(["old"]) {
            at(name, 3600);
        }
        let memory = root.path().to_owned();
        Cgroups { version: Version::V2, top: memory.clone(), memory, unified: None }.sweep_empty();
        let left = ["smelt-run.old.1", "smelt-run.new.1", "smelt-run.lives.1", "old"];
        assert_eq!(left.map(|name| here(name).exists()), [false, true, true, true]);
        assert!(!here("smelt-run.nested.1").exists(), "a container's go with it");
        assert!(here("smelt-run.full.1/empty").exists(), "somebody lives beside it");
    }

    #[test]
    fn a_sweep_kills_and_removes_what_was_left() {
        let Some(cgroups) = Cgroups::find(Path::new("/")) else { return };
        let name = format!("swept/{}", std::process::id());
        let Ok(group) = cgroups.create(&format!("{name}/a.1")) else { return };
        let other = cgroups.create("other").ok();
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        group.add(child.id()).unwrap();
        let can_kill = group.unified.as_ref().unwrap_or(&group.memory).join("cgroup.kill").exists();
        if !can_kill {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        cgroups.sweep(&name);
        child.wait().unwrap();
        cgroups.sweep(&name);
        assert!(!group.memory.exists());
        if let Some(other) = other {
            assert!(other.memory.exists(), "another's group stays");
            other.remove();
        }
    }
}
