//! Runs a program, with all that it starts, inside a control group of so much memory.
//!
//! The group is removed on every way out but SIGKILL; one that such an end left holds no process
//! for long, and the next start removes it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use signal_hook::consts::{SIGINT, SIGTERM};
use smelt_watch::Cgroups;

use crate::root;

/// What our groups' names begin with.
const NAME: &str = "scale-";

const PERIOD: Duration = Duration::from_millis(100);
/// A group whose processes have just ended is busy until the kernel has let go of them.
const REMOVE_TRIES: u32 = 20;

/// Whoever is in the group waits for a word, so that nothing happens outside.
const WAIT: &str = "read go && exec \"$0\" \"$@\"";

/// What a program took.
pub(super) struct Taken {
    pub(super) status: ExitStatus,
    /// Most that was charged to the group: page cache counts.
    pub(super) peak_bytes: u64,
}

/// A group with a limit; gone when this is dropped.
struct Outer {
    dir: PathBuf,
    is_v2: bool,
}

impl Outer {
    fn make(memory_bytes: u64) -> Result<Self> {
        let cgroups = Cgroups::find(Path::new("/"))
            .context("this machine has no control groups that count memory")?;
        clear(cgroups.place());
        let dir = cgroups.place().join(format!("{NAME}{}", std::process::id()));
        fs::create_dir(&dir)
            .with_context(|| format!("cannot make {}; groups are made by root", dir.display()))?;
        let outer = Self { dir, is_v2: cgroups.name() == "cgroup-v2" };
        outer
            .set(if outer.is_v2 { "memory.max" } else { "memory.limit_in_bytes" }, memory_bytes)?;
        if outer.is_v2 {
            // A group of version 2 holds processes or hands out memory control, never both.
            outer.set("cgroup.subtree_control", "+memory")?;
            fs::create_dir(outer.home())?;
        }
        Ok(outer)
    }

    /// Where processes go.
    fn home(&self) -> PathBuf {
        if self.is_v2 { self.dir.join("run") } else { self.dir.clone() }
    }

    fn set(&self, name: &str, value: impl ToString) -> Result<()> {
        let path = self.dir.join(name);
        fs::write(&path, value.to_string()).with_context(|| path.display().to_string())
    }

    fn peak_bytes(&self) -> Result<u64> {
        let name = if self.is_v2 { "memory.peak" } else { "memory.max_usage_in_bytes" };
        let path = self.dir.join(name);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        text.trim().parse().with_context(|| path.display().to_string())
    }
}

impl Drop for Outer {
    fn drop(&mut self) {
        if !remove(&self.dir) {
            eprintln!("xtask: cannot remove {}; a later start will", self.dir.display());
        }
    }
}

/// Runs `program`, told by `arguments` and `variables`, in the repository's root to its end.  Its
/// standard output is dropped.
pub(super) fn run(
    program: &Path,
    arguments: &[&str],
    variables: &[(&str, &Path)],
    memory_bytes: u64,
) -> Result<Taken> {
    let ends = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&ends)).context("signals")?;
    }
    let outer = Outer::make(memory_bytes)?;
    let mut child = Command::new("sh")
        .args(["-c", WAIT])
        .arg(program)
        .args(arguments)
        .envs(variables.iter().copied())
        .current_dir(root())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .context("cannot start sh")?;
    let joined = fs::write(outer.home().join("cgroup.procs"), child.id().to_string());
    let mut input = child.stdin.take().context("a pipe was asked for")?;
    if joined.is_ok() {
        input.write_all(b"go\n")?;
    }
    // Without a word the shell ends.
    drop(input);
    let status = wait(&mut child, &ends)?;
    joined.context("cannot join the control group")?;
    Ok(Taken { status, peak_bytes: outer.peak_bytes()? })
}

/// Waits for the end; when we are asked to end, the program is asked first.
fn wait(child: &mut Child, ends: &AtomicBool) -> Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            if ends.load(Ordering::Relaxed) {
                bail!("interrupted");
            }
            return Ok(status);
        }
        if ends.load(Ordering::Relaxed) {
            // That it has ended meanwhile is as good.
            let _ = kill(Pid::from_raw(i32::try_from(child.id())?), Signal::SIGTERM);
            let _ = child.wait()?;
            bail!("interrupted");
        }
        sleep(PERIOD);
    }
}

/// Removes what earlier starts left.  A group that is in use stays, as the kernel sees to.
fn clear(place: &Path) {
    let Ok(entries) = fs::read_dir(place) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(NAME)) {
            remove_once(&entry.path());
        }
    }
}

fn remove(dir: &Path) -> bool {
    (0..REMOVE_TRIES).any(|_| {
        let is_gone = remove_once(dir);
        if !is_gone {
            sleep(PERIOD);
        }
        is_gone
    })
}

/// Removes a group with the groups in it; whether it is gone.
fn remove_once(dir: &Path) -> bool {
    for inner in fs::read_dir(dir).into_iter().flatten().flatten() {
        if inner.file_type().is_ok_and(|kind| kind.is_dir()) {
            let _ = fs::remove_dir(inner.path());
        }
    }
    fs::remove_dir(dir).is_ok() || !dir.exists()
}
