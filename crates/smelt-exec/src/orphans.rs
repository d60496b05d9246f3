//! Finds and kills processes that a lost shim or a dead run left behind.
//!
//! Every stage carries `SMELT_ATTEMPT=<run>/<stage>.<n>` in its environment; its descendants
//! inherit it whatever session or parent they move to.  Only processes of the same user can be
//! read, and only they can be ours.

use std::fs::{self, File};
use std::io::{self, Read};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The variable that marks a stage's processes: `RUN/STAGE.N`, and `RUN/shim` for a shim that waits.
pub const MARK: &str = "SMELT_ATTEMPT";

/// SIGKILL is prompt; what is still there after this is stuck in the kernel.
const PATIENCE: Duration = Duration::from_secs(10);

/// A program begins within microseconds of processor time, and may wait for its turn; one that was started without any
/// environment costs all reads.
const READS_MAX: u32 = 20;
const READ_PERIOD: Duration = Duration::from_micros(500);
/// More than most environments have.
const ENVIRONMENT_BYTES: usize = 64 << 10;

/// Kills every process whose mark starts with `prefix` and waits until they are gone.  Returns how
/// many there were.
pub(crate) fn kill_marked(prefix: &str) -> usize {
    let begin = Instant::now();
    let mut killed = std::collections::BTreeSet::new();
    loop {
        let found = kill_once(prefix);
        if found.is_empty() || begin.elapsed() > PATIENCE {
            return killed.len();
        }
        killed.extend(found);
        thread::sleep(Duration::from_millis(2));
    }
}

/// Kills every process whose mark starts with `prefix` and waits for none; those that there were.
pub(crate) fn kill_once(prefix: &str) -> Vec<i32> {
    let wanted = format!("{MARK}={prefix}").into_bytes();
    let is_wanted = |variable: &[u8]| variable.starts_with(&wanted);
    let found: Vec<i32> = processes().filter(|pid| is_marked(*pid, is_wanted)).collect();
    for pid in &found {
        let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
    }
    found
}

/// Whether a process with this mark lives.
pub(crate) fn lives(mark: &str) -> bool {
    let wanted = format!("{MARK}={mark}").into_bytes();
    processes().any(|pid| is_marked(pid, |variable| variable == wanted))
}

fn processes() -> impl Iterator<Item = i32> {
    let own = std::process::id().cast_signed();
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(move |&pid| pid != own)
}

fn is_marked(pid: i32, is_wanted: impl Fn(&[u8]) -> bool) -> bool {
    environment(pid).split(|&byte| byte == 0).any(is_wanted)
}

/// The environment of a process; a zombie's is empty, so the dead are not found again.
///
/// A process that becomes another program has neither environment for a moment: the old one's memory is gone, and the new one's
/// is not filled yet (Linux: `begin_new_exec` comes before `create_elf_tables`).  That moment is waited for.
fn environment(pid: i32) -> Vec<u8> {
    for _ in 0..READS_MAX {
        let environment = environment_now(pid).unwrap_or_default();
        if !environment.is_empty() || !has_program(pid) {
            return environment;
        }
        thread::sleep(READ_PERIOD);
    }
    Vec::new()
}

/// What there is of it now.  The first call reads what usually is all: between two the memory may go.
fn environment_now(pid: i32) -> io::Result<Vec<u8>> {
    let mut file = File::open(format!("/proc/{pid}/environ"))?;
    let mut environment = vec![0; ENVIRONMENT_BYTES];
    let read = file.read(&mut environment)?;
    environment.truncate(read);
    if read == ENVIRONMENT_BYTES {
        file.read_to_end(&mut environment)?;
    }
    Ok(environment)
}

/// Whether a process has a program; zombies and the kernel's have none.
fn has_program(pid: i32) -> bool {
    fs::read_link(format!("/proc/{pid}/exe")).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    /// A marked shell that runs a script, and has begun: a child that is spawned has its parent's environment until then.
    fn spawn(mark: &str, script: &str) -> Child {
        let mut child = Command::new("sh")
            .args(["-c", script])
            .env(MARK, mark)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        child
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_process_is_seen_whenever_it_becomes_another_program() {
        let mark = format!("begin-{}/a.1", std::process::id());
        let child = spawn(
            &mark,
            "echo; exec >/dev/null; export AGAIN='exec sh -c \"$AGAIN\"'; eval \"$AGAIN\"",
        );
        let missed = (0..2000).filter(|_| !lives(&mark)).count();
        end(child);
        assert_eq!(missed, 0);
        assert!(!lives(&mark), "the dead are not found");
    }

    #[test]
    fn marked_processes_die_and_others_live() {
        let run = format!("test-{}", std::process::id());
        let mut ours = spawn(&format!("{run}/a.1"), "echo; exec cat");
        let mut other = spawn(&format!("other-{run}/a.1"), "echo; exec cat");
        assert!(lives(&format!("{run}/a.1")) && !lives(&format!("{run}/a")));
        assert_eq!(kill_marked(&format!("{run}/")), 1);
        assert!(!ours.wait().unwrap().success());
        assert!(other.try_wait().unwrap().is_none(), "another run's stage lives");
        end(other);
    }
}
