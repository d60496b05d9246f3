//! Finds and kills processes that a lost shim or a dead run left behind.
//!
//! Every stage carries `SMELT_ATTEMPT=<run>/<stage>.<n>` in its environment; its descendants
//! inherit it whatever session or parent they move to.  Only processes of the same user can be
//! read, and only they can be ours.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The variable that marks a stage's processes: `RUN/STAGE.N`, and `RUN/shim` for a shim that waits.
pub const MARK: &str = "SMELT_ATTEMPT";

/// SIGKILL is prompt; what is still there after this is stuck in the kernel.
const PATIENCE: Duration = Duration::from_secs(10);

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

/// A zombie's environment is empty, so the dead are not found again.
fn is_marked(pid: i32, is_wanted: impl Fn(&[u8]) -> bool) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|&byte| byte == 0).any(is_wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn marked_processes_die_and_others_live() {
        let spawn = |mark: &str| {
            Command::new("cat")
                .env(MARK, mark)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        };
        let run = format!("test-{}", std::process::id());
        let mut ours = spawn(&format!("{run}/a.1"));
        let mut other = spawn(&format!("other-{run}/a.1"));
        // The child is marked from its exec on, which spawn has waited for.
        assert!(lives(&format!("{run}/a.1")) && !lives(&format!("{run}/a")));
        assert_eq!(kill_marked(&format!("{run}/")), 1);
        assert!(!ours.wait().unwrap().success());
        assert!(other.try_wait().unwrap().is_none(), "another run's stage lives");
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
