//! Runs checks of `ci` side by side.  Most leave a core idle: they wait for a guest, a browser, one client.
//!
//! Each is a process of its own, so that what it says is told in one piece, when it has ended.

use std::fs::{self, File};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::ci::Took;
use crate::target;

/// How a check that did nothing ends, since it held before or cannot be done here.
const NOT_RUN: u8 = 3;

/// Runs each lane's checks one after the other, all lanes at once; begins none after one has failed.
pub(crate) fn run(lanes: &[Vec<&'static str>]) -> Result<Vec<Took>> {
    run_by(lanes, check)
}

fn run_by(
    lanes: &[Vec<&'static str>],
    check: impl Fn(&str) -> Result<bool> + Sync,
) -> Result<Vec<Took>> {
    let has_failed = AtomicBool::new(false);
    let lane = |names: &[&'static str]| -> Result<Vec<Took>> {
        let mut all = Vec::new();
        for name in names.iter().take_while(|_| !has_failed.load(Ordering::Relaxed)) {
            let begin = Instant::now();
            let has_run = check(name).inspect_err(|_| has_failed.store(true, Ordering::Relaxed))?;
            all.push(Took::since(name, begin, has_run));
        }
        Ok(all)
    };
    let results: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = lanes.iter().map(|names| scope.spawn(|| lane(names))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a lane does not panic")).collect()
    });
    Ok(results.into_iter().collect::<Result<Vec<_>>>()?.concat())
}

/// Runs a check as a process, and tells what it said; whether it did something.
fn check(name: &str) -> Result<bool> {
    let folder = target().join("ci-logs");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let path = folder.join(name.replace(' ', "-"));
    let log = File::create(&path).with_context(|| path.display().to_string())?;
    println!("{name}: begins; it says so far what is in {}", path.display());
    let mut own = Command::new(std::env::current_exe().context("where xtask lies")?);
    own.args(["ci-check", name]).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let status = own.status().context("cannot start xtask")?;
    let said = fs::read(&path).with_context(|| path.display().to_string())?;
    println!("{}", String::from_utf8_lossy(&said).trim_end());
    match status.code().and_then(|code| u8::try_from(code).ok()) {
        Some(0) => Ok(true),
        Some(NOT_RUN) => Ok(false),
        _ => bail!("{name} failed: {status}"),
    }
}

/// How the process of a check ends.
pub(crate) fn exit(result: Result<bool>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(NOT_RUN),
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn lanes_run_at_once_and_each_in_its_order() {
        let both = Barrier::new(2);
        let lanes = [vec!["a", "b"], vec!["c"]];
        let all = run_by(&lanes, |name| {
            // Neither goes on before the other has begun.
            if name != "b" {
                both.wait();
            }
            Ok(name != "c")
        });
        let told: Vec<_> = all.unwrap().iter().map(|one| (one.name, one.has_run())).collect();
        assert_eq!(told, [("a", true), ("b", true), ("c", false)]);
    }

    #[test]
    fn nothing_begins_after_a_failure() {
        let failed = run_by(&[vec!["a", "b"]], |name| {
            assert_eq!(name, "a");
            bail!("{name} failed")
        });
        assert_eq!(failed.unwrap_err().to_string(), "a failed");
    }
}
