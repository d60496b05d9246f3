//! Follows the containers that a stage starts by docker, podman or nerdctl.
//!
//! A container's processes are no children of the stage: an engine's daemon or monitor starts them, in control groups of its
//! own.  So what a stage calls by these names is this program, which has the engine write down the container's id and becomes
//! it.  By the id its group is found, measured, halted and killed.
//!
//! A stage could note anything, so a note is no more than an id: it counts where such a group was made since the stage began.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use std::{str, thread};

use nix::fcntl::OFlag;
use smelt_watch::{Cgroups, Group, Tree};

/// The engines whose words are known.
const ENGINES: [&str; 3] = ["docker", "podman", "nerdctl"];
/// Names the folder where it is noted what a stage starts.
const NOTES: &str = "SMELT_CONTAINERS";
/// The folder of that name lies among a stage's temporary files, where it may write.
const FOLDER: &str = ".smelt-containers";
/// Flags before an engine's first word that have a value behind them.
const VALUED: [&str; 34] = [
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
/// A stage has some containers; one that makes more each second is not followed for ever.
const CONTAINERS_MAX: usize = 64;
/// Ids have 64 digits, and engines know them by twelve.
const ID_BYTES_MAX: u64 = 256;
const ID_DIGITS_MIN: usize = 12;
/// How long an engine may take: a daemon that hangs must not hold up a run.
const PATIENCE: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(20);
/// Programs that podman leaves behind with a container, and how long they may take to clear up.
const MONITORS: [&str; 2] = ["conmon", "podman"];
const MONITORS_MAX: Duration = Duration::from_secs(1);
/// Files carry the time of the kernel's last tick.
const CLOCK_STEP: Duration = Duration::from_millis(50);

/// The variables of a stage.
type Env = [(String, String)];

/// A container that a stage has started.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    ENGINES.into_iter().filter(|name| found(name, path).is_some()).collect()
}

/// Makes the names by which a stage calls engines lead to this program.
pub(crate) fn put_names(folder: &Path, engines: &[&str]) -> io::Result<()> {
    let own = env::current_exe()?;
    engines.iter().try_for_each(|name| symlink(&own, folder.join(name)))
}

/// An engine in a folder of `path`, which is not this program by that name.
fn found(name: &str, path: &str) -> Option<PathBuf> {
    let own = env::current_exe().ok();
    let is_own = |file: &Path| own.is_some() && file.canonicalize().ok() == own;
    let folders = path.split(':').map(Path::new).filter(|folder| folder.is_absolute());
    folders.map(|folder| folder.join(name)).find(|file| file.is_file() && !is_own(file))
}

/// Becomes the engine that a stage has called, if this program was started by such a name; gives why it could not.
pub fn wrapped(arguments: &[OsString]) -> Option<io::Error> {
    let (called, rest) = arguments.split_first()?;
    let name = Path::new(called).file_name().and_then(OsStr::to_str)?;
    let notes = PathBuf::from(env::var_os(NOTES)?);
    if !ENGINES.contains(&name) {
        return None;
    }
    let Some(engine) = found(name, &env::var("PATH").unwrap_or_default()) else {
        return Some(io::Error::other(format!("{name} is in no other folder of PATH")));
    };
    let rest = follow(name, rest, &notes).unwrap_or_else(|| rest.to_vec());
    Some(Command::new(engine).args(rest).exec())
}

/// The arguments by which an engine writes down what it starts, where the supervisor looks; nothing where it starts nothing,
/// or that cannot be noted.
fn follow(name: &str, arguments: &[OsString], notes: &Path) -> Option<Vec<OsString>> {
    let words: Vec<&str> = arguments.iter().map(|word| word.to_str()).collect::<Option<_>>()?;
    let at = starts_at(&words)?;
    let own = notes.join(format!("{name}-{}", std::process::id()));
    fs::create_dir_all(notes).ok()?;
    if let Some(named) = id_file(&words[at..]) {
        symlink(std::path::absolute(named).ok()?, own).ok()?;
        return Some(arguments.to_vec());
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

/// The file that the id is to be written to, where the caller names one.
fn id_file<'a>(words: &[&'a str]) -> Option<&'a str> {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.strip_prefix("--cidfile") {
            Some("") => return words.next().copied(),
            Some(value) if value.starts_with('=') => return Some(&value[1..]),
            _ => {}
        }
    }
    None
}

/// The containers that are noted in a folder, where a stage may write anything.
pub(crate) fn started(notes: &Path) -> Vec<Container> {
    let entries = fs::read_dir(notes).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.take(CONTAINERS_MAX).filter_map(|note| Container::read(&note)).collect()
}

/// What the processes that this one leads have noted.
struct Own {
    notes: PathBuf,
    since: SystemTime,
    env: Vec<(String, String)>,
}

static OWN: Mutex<Option<Own>> = Mutex::new(None);

/// Follows what the processes that this one leads start from now on, as they note it there.
pub(crate) fn follow_own(notes: PathBuf, since: SystemTime, env: Vec<(String, String)>) {
    *OWN.lock().unwrap_or_else(PoisonError::into_inner) = Some(Own { notes, since, env });
}

/// Kills those that run of what they have started; how many they were.
pub(crate) fn end_own() -> usize {
    let own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    own.as_ref().map_or(0, |own| end(&own.notes, own.since, &own.env))
}

/// Kills those that run and were started `since`; how many they were.  By then whoever started them is dead; `env` is what he
/// called engines in.
pub(crate) fn end(notes: &Path, since: SystemTime, env: &Env) -> usize {
    let started = started(notes);
    if started.is_empty() {
        return 0;
    }
    let Some(cgroups) = Cgroups::find(Path::new("/")) else { return 0 };
    let ended = started.iter().filter(|container| container.end(&cgroups, since, env)).count();
    if ended > 0 {
        let begin = Instant::now();
        while begin.elapsed() < MONITORS_MAX && is_monitored() {
            thread::sleep(TICK);
        }
    }
    ended
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
        follow_own(notes(&following.folder), SystemTime::now(), of_process());
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
        end_own();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The variables of this process, as far as they are texts.
pub(crate) fn of_process() -> Vec<(String, String)> {
    let text = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    env::vars_os().filter_map(text).collect()
}

impl Container {
    fn read(note: &Path) -> Option<Self> {
        let (engine, _) = note.file_name()?.to_str()?.split_once('-')?;
        let engine = ENGINES.into_iter().find(|known| *known == engine)?;
        let id = read_small(note)?;
        let id = str::from_utf8(&id).ok()?.trim();
        let is_id = id.len() >= ID_DIGITS_MIN && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_id.then(|| Self { engine, id: id.to_owned() })
    }

    /// Its control group, if that was made `since`: what a stage notes may be another's container.
    pub(crate) fn group(&self, cgroups: &Cgroups, since: SystemTime) -> Option<Group> {
        let since = since.checked_sub(CLOCK_STEP)?;
        cgroups.of_container(&self.id).filter(|group| group.made().is_some_and(|at| at >= since))
    }

    /// Kills it; whether it ran.
    fn end(&self, cgroups: &Cgroups, since: SystemTime, env: &Env) -> bool {
        let Some(group) = self.group(cgroups, since) else { return false };
        if group.pids_below().is_empty() {
            return false;
        }
        // Processes of root's are none of ours to kill; their engine does.
        if !group.kill() {
            self.does("kill", env);
        }
        true
    }

    /// Has its engine do something with it.
    pub(crate) fn does(&self, verb: &str, env: &Env) -> bool {
        let path = env.iter().find(|(name, _)| name == "PATH").map_or("", |(_, path)| path);
        let Some(engine) = found(self.engine, path) else { return false };
        let mut command = Command::new(engine);
        command.args([verb, &self.id]).env_clear();
        command.envs(env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(mut child) = command.spawn() else { return false };
        let begin = Instant::now();
        loop {
            match child.try_wait() {
                Ok(Some(status)) => return status.success(),
                Ok(None) if begin.elapsed() < PATIENCE => thread::sleep(TICK),
                // Who reaps whatever ends has reaped this one.
                Err(_) => return true,
                Ok(None) => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return false;
                }
            }
        }
    }
}

/// A small file; what would hold up its reader is none.
fn read_small(path: &Path) -> Option<Vec<u8>> {
    let mut open = fs::OpenOptions::new();
    let file = open.read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path).ok()?;
    let is_small = file.metadata().is_ok_and(|stat| stat.is_file() && stat.len() <= ID_BYTES_MAX);
    let mut bytes = Vec::new();
    is_small.then(|| file.take(ID_BYTES_MAX).read_to_end(&mut bytes).ok())??;
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
    fn an_engine_is_told_where_to_write_the_id_unless_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join(format!("docker-{}", std::process::id()));
        let check = |line: &str, expect: &str| {
            let _ = fs::remove_file(&own);
            let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let told = follow("docker", &arguments, dir.path()).unwrap();
            assert_eq!(words(&told), expect.replace("OWN", own.to_str().unwrap()));
        };
        check("run --rm image", "run --cidfile OWN --rm image");
        check("-D create i", "-D create --cidfile OWN i");
        check("run --cidfile=/id i", "run --cidfile=/id i");
        assert_eq!(fs::read_link(&own).unwrap(), Path::new("/id"));
        check("run --cidfile id i", "run --cidfile id i");
        assert!(fs::read_link(&own).unwrap().ends_with("smelt-exec/id"));
    }

    #[test]
    fn what_starts_nothing_is_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let notes = dir.path().join("notes");
        let arguments = ["ps", "--all"].map(OsString::from);
        assert_eq!(follow("docker", &arguments, &notes), None);
        assert!(!notes.exists());
    }

    /// A stage may write there what it likes.
    #[test]
    fn only_an_id_of_a_known_engine_counts() {
        let dir = tempfile::tempdir().unwrap();
        let id = "0123456789ab".repeat(5);
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
        assert_eq!(started(dir.path()), [Container { engine: "docker", id }]);
        assert_eq!(started(Path::new("/nowhere")), []);
    }
}
