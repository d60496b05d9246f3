//! Leads one stage: starts it, reaps it, and kills its whole tree when the supervisor is gone.
//!
//! The supervisor starts `smelt stage shim` with a pipe as its standard input.  The first line is
//! the order.  After that, `stop` asks the tree to end and kills it after a grace period, and the
//! end of the pipe, which the kernel closes however the supervisor dies, kills the tree at once.
//! The shim is a subreaper, so processes that double-fork stay below it.

use std::fs;
use std::io::{self, BufRead, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Pid, getppid};
use smelt_watch::Tree;

use crate::log;
use crate::order::{Order, ShimOrder, ShimReport};

/// What a stage gets to end in order before it is killed.
pub const GRACE: Duration = Duration::from_secs(5);
/// An order is a line of JSON; params and environment lists are bounded far below this.
const ORDER_BYTES_MAX: u64 = 16 << 20;
/// Stages are killed before the supervisor when the machine runs out of memory.  Raising needs no
/// capability; lowering the supervisor's would.
const OOM_SCORE_ADJ: &str = "500";

/// Runs the shim to its end; the process then exits with the code returned.
pub fn main() -> u8 {
    match lead() {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("smelt: stage shim: {error}");
            1
        }
    }
}

fn lead() -> io::Result<()> {
    prctl::set_child_subreaper(true)?;
    let mut line = String::new();
    let mut input = io::BufReader::new(io::stdin());
    (&mut input).take(ORDER_BYTES_MAX).read_line(&mut line)?;
    let ShimOrder { order, log } = serde_json::from_str(&line)?;
    let report = match start(&order) {
        Ok((leader, output)) => attend(leader, output, input, &log),
        Err(error) => ShimReport {
            exit: None,
            signal: None,
            cpu_s: 0.0,
            rss_process_peak_bytes: 0,
            major_faults: 0,
            leftovers: 0,
            spawn_error: Some(error.to_string()),
            log_error: None,
        },
    };
    let text = serde_json::to_string(&report)?;
    // A supervisor that is gone wants no report.
    let _ = io::stdout().write_all(text.as_bytes());
    Ok(())
}

/// Starts the leader through [`exec`], which ties its life to ours.
fn start(order: &Order) -> io::Result<(Pid, io::PipeReader)> {
    let (reader, writer) = io::pipe()?;
    let mut command = Command::new("/proc/self/exe");
    command
        .args(["stage", "exec", &std::process::id().to_string(), "--"])
        .args(&order.argv)
        .env_clear()
        .envs(order.env.iter().map(|(name, value)| (name, value)))
        .current_dir(&order.dir)
        .stdin(Stdio::piped())
        .stdout(writer.try_clone()?)
        .stderr(writer);
    let mut child = command.spawn()?;
    let mut input = child.stdin.take().expect("asked for a pipe three lines up");
    let text = order.input.clone();
    // A stage that never reads its input must not hold up the shim.
    thread::spawn(move || input.write_all(text.as_bytes()));
    Ok((Pid::from_raw(child.id().cast_signed()), reader))
}

/// Copies the log, waits for the leader, then for nobody to be left.
fn attend(
    leader: Pid,
    mut output: io::PipeReader,
    orders: impl BufRead + Send + 'static,
    log: &Path,
) -> ShimReport {
    let log = log.to_owned();
    let copier = thread::spawn(move || {
        let error = log::copy(&output, &log).err();
        // A full disk must not stop the stage's mouth: what cannot be kept is read all the same.
        let _ = io::copy(&mut output, &mut io::sink());
        error
    });
    thread::spawn(move || obey(orders));
    let status = reap_until(leader);
    let leftovers = Tree::new(std::process::id()).descendants().len();
    kill_tree();
    // Every writer of the pipe is dead, so the copier comes to the end.
    let log_error = copier.join().ok().flatten();
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).ok();
    let seconds =
        |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 * 1e-6;
    let (exit, signal) = match status {
        Some(WaitStatus::Exited(_, code)) => (Some(code), None),
        Some(WaitStatus::Signaled(_, signal, _)) => (None, Some(signal as i32)),
        _ => (None, None),
    };
    ShimReport {
        exit,
        signal,
        cpu_s: usage.map_or(0.0, |usage| seconds(usage.user_time()) + seconds(usage.system_time())),
        // Linux counts ru_maxrss in KiB.
        rss_process_peak_bytes: usage
            .map_or(0, |usage| usage.max_rss().max(0).cast_unsigned() * 1024),
        major_faults: usage.map_or(0, |usage| usage.major_page_faults().max(0).cast_unsigned()),
        leftovers: leftovers as u32,
        spawn_error: None,
        log_error: log_error.map(|error| error.to_string()),
    }
}

/// Reaps whatever ends until the leader has.
fn reap_until(leader: Pid) -> Option<WaitStatus> {
    loop {
        match waitpid(None, None) {
            Ok(status) if status.pid() == Some(leader) => return Some(status),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return None,
        }
    }
}

/// Listens to the supervisor until it is gone.
fn obey(mut orders: impl BufRead) {
    let mut line = String::new();
    loop {
        line.clear();
        match orders.read_line(&mut line) {
            Ok(1..) if line.trim() == "stop" => stop_tree(),
            Ok(1..) => {}
            Ok(0) | Err(_) => return kill_tree(),
        }
    }
}

/// Asks the tree to end; a second thread loses patience, so that this one can still hear the end
/// of the pipe.
fn stop_tree() {
    static ASKED: AtomicBool = AtomicBool::new(false);
    if ASKED.swap(true, Ordering::Relaxed) {
        return;
    }
    signal_tree(Signal::SIGTERM);
    thread::spawn(|| {
        thread::sleep(GRACE);
        kill_tree();
    });
}

/// Kills every process below us, again and again until none is left: a fork storm can outrun one
/// pass, and a killed parent's children come to us.
fn kill_tree() {
    let begin = Instant::now();
    while signal_tree(Signal::SIGKILL) > 0 {
        // Whoever cannot die within this is stuck in the kernel, and waiting longer is no cure.
        if begin.elapsed() > GRACE * 2 {
            return;
        }
        // The main thread reaps while it waits for the leader; afterwards nobody else does.
        while waitpid(None, Some(nix::sys::wait::WaitPidFlag::WNOHANG))
            .is_ok_and(|s| s.pid().is_some())
        {}
        thread::sleep(Duration::from_millis(1));
    }
}

fn signal_tree(signal: Signal) -> usize {
    let pids = Tree::new(std::process::id()).descendants();
    for &pid in &pids {
        let _ = kill(Pid::from_raw(pid.cast_signed()), signal);
    }
    pids.len()
}

/// Becomes the stage's program; returns only why it could not.
///
/// Between fork and exec nothing may be set without `unsafe`, so this small process sets itself up
/// and then turns into the program: it dies with the shim, and before anything else when memory
/// runs out.
pub fn exec(shim: u32, argv: &[String]) -> String {
    let Some((program, arguments)) = argv.split_first() else {
        return "no program to run".to_owned();
    };
    if let Err(error) = prctl::set_pdeathsig(Signal::SIGKILL) {
        return format!("cannot tie {program} to its shim: {error}");
    }
    if getppid().as_raw() != shim.cast_signed() {
        return format!("the shim of {program} is gone");
    }
    // Not every kernel or container lets us; then the stage runs with the usual score.
    let _ = fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ);
    let error = Command::new(program).args(arguments).exec();
    format!("cannot start {program}: {error}")
}
