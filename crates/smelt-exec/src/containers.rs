//! Follows the containers that a stage starts by docker, podman or nerdctl.
//!
//! A container's processes are no children of the stage: an engine's daemon or monitor starts them, in control groups of its
//! own.  So what a stage calls by these names is this program, which has the engine write down the container's id and becomes
//! it.  By the id its group is found, measured, halted and killed.
//!
//! A stage could note anything, so a note is no more than an id: it counts where such a group was made since the stage began.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{str, thread};

use nix::fcntl::OFlag;
use nix::unistd::{AccessFlags, access};
use serde::{Deserialize, Serialize};
use smelt_watch::{Cgroups, Group, Tree};

/// The engines whose words are known.
const ENGINES: [&str; 3] = ["docker", "podman", "nerdctl"];
/// The word by which a name calls this program.
const CALL: &str = "call-container-engine";
/// Names the folder where it is noted what a stage starts.
const NOTES: &str = "SMELT_CONTAINERS";
/// The folder of that name lies among a stage's temporary files, where it may write.
const FOLDER: &str = ".smelt-containers";
/// Flags before an engine's first word that have a value behind them.
const VALUED: [&str; 36] = [
    "--address",
    "--cgroup-manager",
    "--cni-config-dir",
    "--cni-netconfpath",
    "--cni-path",
    "--config",
    "--conmon",
    "--connection",
    "--context",
    "--data-root",
    "--events-backend",
    "--hooks-dir",
    "--host",
    "--hosts-dir",
    "--identity",
    "--imagestore",
    "--log-level",
    "--module",
    "--namespace",
    "--network-cmd-path",
    "--network-config-dir",
    "--out",
    "--root",
    "--runroot",
    "--runtime",
    "--runtime-flag",
    "--snapshotter",
    "--ssh",
    "--storage-driver",
    "--storage-opt",
    "--tlscacert",
    "--tlscert",
    "--tlskey",
    "--tmpdir",
    "--url",
    "--volumepath",
];
/// The same in one letter.
const VALUED_LETTERS: [&str; 5] = ["-H", "-a", "-c", "-l", "-n"];
/// Notes of a stage that are looked at; it may have started a container each second for an hour.
const NOTES_MAX: usize = 4096;
/// Of an id, and the end of its line.
const ID_BYTES_MAX: u64 = 256;
const ID_DIGITS: usize = 64;
/// Files for it that one command line names.
const IDS_NAMED_MAX: usize = 4;
/// Files carry the time of the kernel's last tick.
const CLOCK_STEP: Duration = Duration::from_millis(50);
/// Containers whose group is looked for at each sample, and how often: one that has ended has none, and a note may be of nothing.
const LOOKED_FOR_MAX: usize = 8;
const LOOKS_MAX: u32 = 50;
/// How long engines get to end containers, and monitors then to clear up: a shim that kills has three seconds.
const ENGINES_MAX: Duration = Duration::from_millis(1500);
const MONITORS_MAX: Duration = Duration::from_millis(700);
const TICK: Duration = Duration::from_millis(20);
/// How long a container may take to begin that was asked for before its stage was killed.
const LATE_MAX: Duration = Duration::from_secs(1);
/// Programs that podman leaves behind with a container.
const MONITORS: [&str; 2] = ["conmon", "podman"];
/// Variables that say which daemon or store is meant.
const PLACES: [&str; 5] = [
    "CONTAINERD_ADDRESS",
    "CONTAINERD_NAMESPACE",
    "CONTAINER_HOST",
    "DOCKER_CONTEXT",
    "DOCKER_HOST",
];
/// Variables without which engines find nothing of theirs.
const OWN: [&str; 3] = ["HOME", "PATH", "XDG_RUNTIME_DIR"];

/// How engines are asked to end a container: by programs that no stage chose, for they are confined by nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Engines {
    programs: BTreeMap<String, PathBuf>,
    env: Vec<(String, String)>,
}

impl Engines {
    /// Those of this process; which of their daemons is meant says `stage`, the variables of a pipeline.
    pub(crate) fn of(stage: &[(String, String)]) -> Self {
        let path = env::var("PATH").unwrap_or_default();
        let program = |name: &&str| Some(((*name).to_owned(), found(name, &path, Path::new(""))?));
        let own = |name: &str| env::var(name).ok();
        let said = |name: &str| {
            let said = stage.iter().rfind(|(other, _)| other == name);
            said.map(|(_, value)| value.clone()).or_else(|| own(name))
        };
        let named = |name: &str, value: Option<String>| Some((name.to_owned(), value?));
        let env = OWN.iter().filter_map(|name| named(name, own(name)));
        let env = env.chain(PLACES.iter().filter_map(|name| named(name, said(name))));
        Self { programs: ENGINES.iter().filter_map(program).collect(), env: env.collect() }
    }

    /// Begins to end a container, for good where its engine would start it again.
    fn stop(&self, container: &Container) -> Option<Child> {
        let mut command = Command::new(self.programs.get(container.engine)?);
        command.args(["stop", "-t", "0", &container.id]).env_clear();
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().ok()
    }
}

/// A container that a stage has started.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Container {
    /// One of [`ENGINES`].
    engine: &'static str,
    id: String,
}

/// Where a stage with such a folder for temporary files notes what it starts.
pub(crate) fn notes(scratch: &Path) -> PathBuf {
    scratch.join(FOLDER)
}

/// The variable by which it knows where.
pub(crate) fn variable(scratch: &Path) -> (&'static str, PathBuf) {
    (NOTES, notes(scratch))
}

/// The engines that are in folders of `path`.
pub(crate) fn engines_in(path: &str) -> Vec<&'static str> {
    ENGINES.into_iter().filter(|name| found(name, path, Path::new("")).is_some()).collect()
}

/// Makes the names by which a stage calls engines lead to this program, in a folder that runs share.
///
/// Scripts, since who follows a link finds a program of another name.
pub(crate) fn put_names(folder: &Path, engines: &[&str]) -> io::Result<()> {
    let own = env::current_exe()?;
    let own = own.to_str().ok_or_else(|| io::Error::other("the path of smelt is no text"))?;
    let script = format!("#!/bin/sh\nexec '{}' {CALL} \"$0\" \"$@\"\n", own.replace('\'', "'\\''"));
    fs::create_dir_all(folder)?;
    for name in engines {
        let file = folder.join(name);
        if fs::read(&file).is_ok_and(|text| text == script.as_bytes()) {
            continue;
        }
        let draft = folder.join(format!(".{name}-{}", std::process::id()));
        fs::write(&draft, &script)?;
        fs::set_permissions(&draft, Permissions::from_mode(0o755))?;
        fs::rename(draft, file)?;
    }
    Ok(())
}

/// A program in a folder of `path` other than `but`.
fn found(name: &str, path: &str, but: &Path) -> Option<PathBuf> {
    let folders = path.split(':').map(Path::new).filter(|folder| folder.is_absolute());
    let files = folders.filter(|folder| *folder != but).map(|folder| folder.join(name));
    files.into_iter().find(|file| file.is_file() && access(file, AccessFlags::X_OK).is_ok())
}

/// Becomes the engine that a stage has called by one of those names, if that is what this process was started for; gives why
/// it could not.  Its flags are the engine's, so nobody else may read them.
pub fn called(arguments: &[OsString]) -> Option<io::Error> {
    match arguments {
        [_, word, called, rest @ ..] if word == CALL => Some(call(Path::new(called), rest)),
        _ => None,
    }
}

fn call(called: &Path, arguments: &[OsString]) -> io::Error {
    let name = called.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let own = called.parent().unwrap_or(Path::new(""));
    let engine = found(name, &env::var("PATH").unwrap_or_default(), own);
    let Some(engine) = engine.filter(|_| ENGINES.contains(&name)) else {
        return io::Error::other(format!("{name} is in no other folder of PATH"));
    };
    // Who has cleared the environment is not followed.
    let notes = env::var_os(NOTES).map(PathBuf::from);
    let told = notes.and_then(|notes| follow(name, arguments, &notes));
    Command::new(engine).args(told.as_deref().unwrap_or(arguments)).exec()
}

/// The arguments by which an engine writes down what it starts, where the supervisor looks; nothing where it starts nothing,
/// or that cannot be noted.
fn follow(name: &str, arguments: &[OsString], notes: &Path) -> Option<Vec<OsString>> {
    let words: Vec<&str> = arguments.iter().map(|word| word.to_str()).collect::<Option<_>>()?;
    let at = starts_at(&words)?;
    // Numbers of processes come again, in name spaces of their own at once.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let number = format!("{}-{since}", std::process::id());
    let own = notes.join(format!("{name}-{number}"));
    fs::create_dir_all(notes).ok()?;
    // Where another user may not write an engine would refuse to start anything.
    let probe = notes.join(format!(".{number}"));
    File::create_new(&probe).and_then(|_| fs::remove_file(&probe)).ok()?;
    // What the caller names counts for the engine, which takes the last.  Behind an image it is the container's affair.
    for (at, named) in id_files(&words[at..]).enumerate() {
        let note = notes.join(format!("{name}-{number}-{at}"));
        symlink(std::path::absolute(named).ok()?, note).ok()?;
    }
    let (before, behind) = words.split_at(at + 1);
    let all = [before, &["--cidfile", own.to_str()?], behind].concat();
    Some(all.into_iter().map(OsString::from).collect())
}

/// Which word of an engine's arguments says that it starts a container.
fn starts_at(words: &[&str]) -> Option<usize> {
    let mut at = 0;
    let mut is_group = false;
    loop {
        let word = *words.get(at)?;
        match word {
            "container" if !is_group => is_group = true,
            "run" | "create" => return Some(at),
            _ if !word.starts_with('-') => return None,
            _ if VALUED.contains(&word) || VALUED_LETTERS.contains(&word) => at += 1,
            _ => {}
        }
        at += 1;
    }
}

/// The files that the id may be written to, where the caller names some.
fn id_files<'a>(words: &[&'a str]) -> impl Iterator<Item = &'a str> {
    let named = |(at, word): (usize, &&'a str)| match word.strip_prefix("--cidfile")? {
        "" => words.get(at + 1).copied(),
        value => value.strip_prefix('='),
    };
    words.iter().enumerate().filter_map(named).take(IDS_NAMED_MAX).collect::<Vec<_>>().into_iter()
}

/// The notes of a folder, where a stage may write anything.
fn notes_in(notes: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(notes).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).take(NOTES_MAX)
}

/// The containers that are noted in a folder.
fn started(notes: &Path) -> HashSet<Container> {
    notes_in(notes).filter_map(|note| Container::read(&note)).collect()
}

/// The containers of a stage that runs, as they come.
#[derive(Default)]
pub(crate) struct Followed {
    read: HashSet<PathBuf>,
    /// Those whose group was not found yet, and how often it was looked for.
    awaited: VecDeque<(Container, u32)>,
}

impl Followed {
    /// The groups of those that have begun since the last look.
    pub(crate) fn look(
        &mut self,
        notes: &Path,
        cgroups: &Cgroups,
        since: SystemTime,
    ) -> Vec<Group> {
        for note in notes_in(notes).filter(|note| !self.read.contains(note)).collect::<Vec<_>>() {
            // What is not written yet is read again.
            if let Some(container) = Container::read(&note) {
                self.read.insert(note);
                self.awaited.push_back((container, 0));
            }
        }
        let mut groups = Vec::new();
        for _ in 0..self.awaited.len().min(LOOKED_FOR_MAX) {
            let Some((container, looks)) = self.awaited.pop_front() else { break };
            match container.group(cgroups, since) {
                Some(group) => groups.push(group),
                None if looks < LOOKS_MAX => self.awaited.push_back((container, looks + 1)),
                None => {}
            }
        }
        groups
    }
}

/// What the processes that this one leads have noted.
struct Led {
    notes: PathBuf,
    since: SystemTime,
    engines: Engines,
    /// Those that were ended.
    ended: HashSet<Container>,
}

static LED: Mutex<Option<Led>> = Mutex::new(None);

fn led() -> MutexGuard<'static, Option<Led>> {
    LED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Follows what the processes that this one leads start from now on, as they note it there.
pub(crate) fn follow_led(notes: PathBuf, since: SystemTime, engines: Engines) {
    *led() = Some(Led { notes, since, engines, ended: HashSet::new() });
}

/// Ends those that run of what they have started; how many they were.
pub(crate) fn end_led() -> usize {
    led().as_mut().map_or(0, Led::end)
}

/// The same of those that begin although whoever asked for them was killed: an engine had heard it by then.
pub(crate) fn end_late() -> usize {
    let (begin, mut ended) = (Instant::now(), 0);
    while led().as_ref().is_some_and(Led::awaits_any) && begin.elapsed() < LATE_MAX {
        ended += end_led();
        thread::sleep(TICK);
    }
    ended
}

impl Led {
    fn end(&mut self) -> usize {
        let ended = end_of(&self.notes, self.since, &self.engines);
        let count = ended.len();
        self.ended.extend(ended);
        count
    }

    fn awaits_any(&self) -> bool {
        started(&self.notes).iter().any(|container| !self.ended.contains(container))
    }
}

/// Ends those that run and were started `since`; how many they were.  By then whoever started them is dead.
pub(crate) fn end(notes: &Path, since: SystemTime, engines: &Engines) -> usize {
    end_of(notes, since, engines).len()
}

fn end_of(notes: &Path, since: SystemTime, engines: &Engines) -> Vec<Container> {
    let started = started(notes);
    if started.is_empty() {
        return Vec::new();
    }
    let Some(cgroups) = Cgroups::find(Path::new("/")) else { return Vec::new() };
    let runs = |container: Container| {
        let group = container.group(&cgroups, since)?;
        (!group.pids_below().is_empty()).then_some((container, group))
    };
    let running: Vec<(Container, Group)> = started.into_iter().filter_map(runs).collect();
    // An engine that does it itself starts none of them again; what hangs, or is another one, leaves it to the kernel.
    let asked = running.iter().filter_map(|(container, _)| engines.stop(container));
    wait_for(asked.collect());
    for (_, group) in &running {
        let _ = group.kill();
    }
    let begin = Instant::now();
    while !running.is_empty() && begin.elapsed() < MONITORS_MAX && is_monitored() {
        thread::sleep(TICK);
    }
    running.into_iter().map(|(container, _)| container).collect()
}

/// Waits until all have ended, for so long as engines get, and ends the others.
fn wait_for(mut asked: Vec<Child>) {
    let begin = Instant::now();
    loop {
        // Who reaps whatever ends has reaped one of which nothing is known.
        asked.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        if asked.is_empty() {
            return;
        }
        if begin.elapsed() > ENGINES_MAX {
            break;
        }
        thread::sleep(TICK);
    }
    for mut child in asked {
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Whether a monitor of containers is below this process: it unmounts what they had, and writes down that they have ended.
fn is_monitored() -> bool {
    let is_one = |pid: &u32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        MONITORS.contains(&name.trim())
    };
    Tree::new(std::process::id()).descendants().iter().any(is_one)
}

/// Follows what a program starts that is no stage.
pub(crate) struct Following {
    folder: PathBuf,
    path: String,
}

impl Following {
    /// In a new folder; nothing where there are no engines, or no room for one.
    pub(crate) fn begin(folder: PathBuf) -> Option<Self> {
        let path = env::var("PATH").ok()?;
        let engines = Some(engines_in(&path)).filter(|found| !found.is_empty())?;
        fs::DirBuilder::new().mode(0o700).create(&folder).ok()?;
        let following = Self { path: format!("{}:{path}", folder.display()), folder };
        put_names(&following.folder, &engines).ok()?;
        follow_led(notes(&following.folder), SystemTime::now(), Engines::of(&[]));
        Some(following)
    }

    /// What the program is to be told.
    pub(crate) fn variables(&self) -> [(&'static str, OsString); 2] {
        let (name, notes) = variable(&self.folder);
        [(name, notes.into()), ("PATH", OsString::from(&self.path))]
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        end_led();
        end_late();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Container {
    fn read(note: &Path) -> Option<Self> {
        let (engine, _) = note.file_name()?.to_str()?.split_once('-')?;
        let engine = ENGINES.into_iter().find(|known| *known == engine)?;
        let id = read_small(note)?;
        let id = str::from_utf8(&id).ok()?.trim();
        let is_id = id.len() == ID_DIGITS && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_id.then(|| Self { engine, id: id.to_owned() })
    }

    /// Its control group, if that was made `since`: what a stage notes may be another's container.
    pub(crate) fn group(&self, cgroups: &Cgroups, since: SystemTime) -> Option<Group> {
        let since = since.checked_sub(CLOCK_STEP)?;
        cgroups.of_container(&self.id).filter(|group| group.made().is_some_and(|at| at >= since))
    }
}

/// A small file.  A stage may have put anything there, and opening a device does something.
fn read_small(path: &Path) -> Option<Vec<u8>> {
    let mut look = fs::OpenOptions::new();
    let seen = look.read(true).custom_flags(OFlag::O_PATH.bits()).open(path).ok()?;
    let stat = seen.metadata().ok()?;
    if !stat.is_file() || stat.len() > ID_BYTES_MAX {
        return None;
    }
    let file = File::open(format!("/proc/self/fd/{}", seen.as_raw_fd())).ok()?;
    let mut bytes = Vec::new();
    file.take(ID_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_that_starts_a_container_is_found_behind_the_flags_of_the_engine() {
        let check = |line: &str, expect: Option<usize>| {
            let words: Vec<&str> = line.split(' ').collect();
            assert_eq!(starts_at(&words), expect, "{line}");
        };
        check("run --rm image", Some(0));
        check("--context orin run image", Some(2));
        check("--context=orin -D run image", Some(2));
        check("-H unix:///s container create image", Some(3));
        check("--runtime runc --root /r run image", Some(4));
        check("ps", None);
        check("build --target run .", None);
        check("exec box run", None);
        check("compose run app", None);
        check("--version", None);
        check("--context run", None);
        check("container ls run", None);
    }

    fn words(told: &[OsString]) -> String {
        told.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn an_engine_is_told_where_to_write_the_id_and_so_is_the_supervisor() {
        let check = |line: &str, expect: &str, named: Option<&str>| {
            let dir = tempfile::tempdir().unwrap();
            let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let told = words(&follow("docker", &arguments, dir.path()).unwrap());
            let own = told.split(' ').find(|word| word.starts_with(dir.path().to_str().unwrap()));
            let own = own.unwrap();
            assert_eq!(told, expect.replace("OWN", own));
            // The engine takes the last of two, and neither is lost.
            let links =
                fs::read_dir(dir.path()).unwrap().map(|it| fs::read_link(it.unwrap().path()));
            let links: Vec<PathBuf> = links.collect::<Result<_, _>>().unwrap();
            assert_eq!(links.len(), usize::from(named.is_some()));
            assert!(named.is_none_or(|named| links[0].ends_with(named)), "{links:?}");
        };
        check("run --rm image", "run --cidfile OWN --rm image", None);
        check("-D create i", "-D create --cidfile OWN i", None);
        check("run --cidfile=/id i", "run --cidfile OWN --cidfile=/id i", Some("id"));
        let inner = "run i docker run --cidfile x";
        check(inner, "run --cidfile OWN i docker run --cidfile x", Some("smelt-exec/x"));
        let none = follow("docker", &["run".into(), "i".into()], Path::new("/proc/nowhere"));
        assert_eq!(none, None, "who may not write there is not held up");
    }

    #[test]
    fn a_name_leads_to_this_program_and_is_no_engine_itself() {
        let dir = tempfile::tempdir().unwrap();
        let (own, other) = (dir.path().join("bin"), dir.path().join("other"));
        put_names(&own, &["docker", "podman"]).unwrap();
        put_names(&own, &["docker"]).unwrap();
        let text = fs::read_to_string(own.join("docker")).unwrap();
        assert!(text.contains(env::current_exe().unwrap().to_str().unwrap()), "{text}");
        let path = format!("{}:{}", own.display(), other.display());
        assert_eq!(found("docker", &path, &own), None);
        fs::create_dir(&other).unwrap();
        fs::write(other.join("docker"), "").unwrap();
        assert_eq!(found("docker", &path, &own), None, "nobody may execute it");
        fs::set_permissions(other.join("docker"), Permissions::from_mode(0o755)).unwrap();
        assert_eq!(found("docker", &path, &own), Some(other.join("docker")));
    }

    #[test]
    fn what_starts_nothing_is_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let notes = dir.path().join("notes");
        let arguments = ["ps", "--all"].map(OsString::from);
        assert_eq!(follow("docker", &arguments, &notes), None);
        assert!(!notes.exists());
    }

    #[test]
    fn engines_are_found_by_no_path_of_a_stage_s_and_go_where_it_says() {
        let said = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let stage = [
            said("PATH", "/tmp/evil"),
            said("LD_PRELOAD", "/tmp/evil.so"),
            said("DOCKER_HOST", "unix:///s"),
        ];
        let Engines { programs, env } = Engines::of(&stage);
        assert!(programs.values().all(|program| !program.starts_with("/tmp/evil")));
        assert!(env.contains(&said("DOCKER_HOST", "unix:///s")));
        assert!(!env.iter().any(|(name, value)| name == "LD_PRELOAD" || value == "/tmp/evil"));
    }

    /// A stage may write there what it likes.
    #[test]
    fn only_an_id_of_a_known_engine_counts() {
        let dir = tempfile::tempdir().unwrap();
        let id = "0123456789abcdef".repeat(4);
        let put = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        put("docker-1", &format!("{id}\n"));
        for (name, text) in [
            ("docker-2", ""),
            ("docker-3", "--all"),
            ("docker-4", "0123456789a"),
            ("docker-5", "../../../../etc"),
            ("sh-6", id.as_str()),
            ("docker7", id.as_str()),
            ("podman-8", &"a".repeat(300)),
        ] {
            put(name, text);
        }
        nix::unistd::mkfifo(&dir.path().join("docker-9"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        symlink("/nowhere", dir.path().join("docker-10")).unwrap();
        symlink("/dev/zero", dir.path().join("docker-11")).unwrap();
        let own = Container { engine: "docker", id };
        assert_eq!(started(dir.path()), HashSet::from([own]));
        assert_eq!(started(Path::new("/nowhere")), HashSet::new());
    }
}
