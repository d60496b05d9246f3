//! Leads stages, one after another: starts each, reaps it, and kills its whole tree when the
//! supervisor is gone.
//!
//! The supervisor starts `smelt stage shim` with a pipe as its standard input.  A line is an order,
//! answered by a report when the stage is over.  `halt` and `go on` stop and continue the tree where no
//! control group does; `stop` asks it to end and kills it after a grace period, and the end of the pipe, which the kernel closes however the supervisor dies, kills
//! the tree at once.  The shim is a subreaper, so processes that double-fork stay below it, and
//! whatever is below it belongs to the stage it leads.

use std::fs;
use std::io::{self, BufRead, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::resource::{Usage as Usages, UsageWho, getrusage};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{AccessFlags, Pid, access, close, getpgid, getppid, setpgid, setsid};
use smelt_watch::{Disks, Tree, is_stopped};

use crate::confine::{self, AppliedConfinement, Bounds, Prepared, Shared, Space, Strict, TMP};
use crate::containers;
use crate::kept::{KeptFiles, listed};
use crate::log;
use crate::masked::Masked;
use crate::order::{ProcessSpec, ShimOrder, ShimReport};
use crate::readable::readable;

/// What a stage gets to end in order before it is killed.
pub const GRACE: Duration = Duration::from_secs(5);
/// An order is a line of JSON; params and environment lists are bounded far below this.
const ORDER_BYTES_MAX: u64 = 16 << 20;

/// How a stage of smelt's own is started: the file may have been replaced meanwhile.
pub(crate) const OURSELVES: &str = "/proc/self/exe";

/// How much later than the supervisor a shim looks whether a stage's time is over, and how often it then does.
const CLOCK_TICK: Duration = Duration::from_secs(1);

/// How much more than itself a shim lets a stage hold and leads another one: little tools, whose figures the ends of tasks tell.
const SMALL_BYTES_MORE: u64 = 2 << 20;

/// A tree that still grows then is a fork storm, which halting does not cure.
const HALT_PASSES: u32 = 10;

/// Runs the shim to its end; the process then exits with the code returned.  The supervisor of one that `is_mapped` waits for its word
/// and maps its user name space.
pub fn main(space: Space, is_mapped: bool) -> u8 {
    match lead(space, is_mapped) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("smelt: stage shim: {error}");
            1
        }
    }
}

/// Whether the stage was asked to end, or the supervisor is gone; then no other stage is led.
static IS_ENDING: AtomicBool = AtomicBool::new(false);
/// Whether it is to be killed and not asked.
static IS_LOST: AtomicBool = AtomicBool::new(false);
/// Whether a stage is under way, whose time is minded.
static IS_LEADING: AtomicBool = AtomicBool::new(false);
/// Whether a stage was killed because its time was over.
static IS_LATE: AtomicBool = AtomicBool::new(false);

fn lead(space: Space, is_mapped: bool) -> io::Result<()> {
    close_inherited();
    leave_terminal()?;
    prctl::set_child_subreaper(true)?;
    let mut kept = KeptFiles::open();
    let mut ground = confine::prepare(space, is_mapped);
    let (sender, orders) = sync_channel(1);
    thread::spawn(move || obey(&sender));
    while let Ok(ShimOrder { order, log, scratch, store, must_hold, engines, .. }) = orders.recv() {
        let before = Usage::of_children();
        let notes = containers::notes(&scratch);
        containers::follow_led(notes, SystemTime::now(), engines.unwrap_or_default());
        let report = match start(&order, &scratch, &store, must_hold, &ground, &mut kept) {
            Ok((leader, output, held)) => {
                let disks = order.disks(&scratch);
                let copier = copier(output, log, order.secret_values());
                let report = attend(leader, copier, &before, disks);
                ShimReport {
                    writes: Some(held.writes),
                    confined_by: held.way,
                    network: held.network,
                    late: IS_LATE.load(Ordering::SeqCst),
                    ..report
                }
            }
            Err(error) => ShimReport {
                exit: None,
                signal: None,
                cpu_s: 0.0,
                rss_process_peak_bytes: 0,
                carried_bytes: 0,
                major_faults: 0,
                leftovers: 0,
                writes: None,
                confined_by: None,
                network: None,
                short: None,
                late: false,
                spawn_error: Some(error.to_string()),
                log_error: None,
            },
        };
        IS_LEADING.store(false, Ordering::SeqCst);
        let _ = empty(&scratch);
        ground.empty();
        let mut text = serde_json::to_vec(&report)?;
        text.push(b'\n');
        // A supervisor that is gone wants no report.
        let _ = io::stdout().write_all(&text);
        if IS_ENDING.load(Ordering::SeqCst) {
            break;
        }
    }
    Ok(())
}

/// Closes what whoever started smelt left open: a stage would inherit it, and write to it.
fn close_inherited() {
    let Ok(open) = fs::read_dir("/proc/self/fd") else { return };
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<i32>().ok();
    // The last is the list's own, which is closed already.
    let open: Vec<i32> = open.flatten().filter_map(number).collect();
    for fd in open.into_iter().filter(|&fd| fd > 2) {
        let _ = close(fd);
    }
}

/// Begins a session of its own, which has no terminal: whoever has the user's could type into his shell.
///
/// The supervisor has started it in a group of its own, so that Ctrl-C does not reach it meanwhile; who leads a group
/// cannot begin a session, so it joins another for a moment.
pub(crate) fn leave_terminal() -> io::Result<()> {
    join_another_group()?;
    setsid()?;
    Ok(())
}

/// Joins the supervisor's group, or a child's where the supervisor's has no number: it began outside of this name space of
/// processes, or with the kernel's first process.
fn join_another_group() -> io::Result<()> {
    let own = Pid::from_raw(0);
    let group = getpgid(Some(getppid()))?;
    if group != own {
        return Ok(setpgid(own, group)?);
    }
    let mut child = Command::new(OURSELVES)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()?;
    // Its group is there until it is waited for, even if it has ended.
    let joined = setpgid(own, Pid::from_raw(child.id().cast_signed()));
    child.wait()?;
    Ok(joined?)
}

/// Starts the leader, which writes nowhere but where it may.
fn start(
    order: &ProcessSpec,
    scratch: &Path,
    store: &Path,
    must_hold: bool,
    ground: &Prepared,
    kept: &mut KeptFiles,
) -> io::Result<(Pid, io::PipeReader, AppliedConfinement)> {
    let (program, arguments) =
        order.argv.split_first().ok_or_else(|| io::Error::other("no program to run"))?;
    fs::create_dir_all(scratch).map_err(|error| {
        let what = format!("cannot make {} for temporary files: {error}", scratch.display());
        io::Error::new(error.kind(), what)
    })?;
    let (reader, writer) = io::pipe()?;
    let program_file = found(program, order);
    let mut command = Command::new(&program_file);
    if program == OURSELVES {
        command.arg0("smelt");
    }
    command
        .args(arguments)
        .env_clear()
        .env("TMPDIR", scratch)
        .envs(order.env.iter().map(|(name, value)| (name, value)))
        .envs(kept.list(order, scratch)?)
        .current_dir(&order.dir)
        // A script that ends its group must not end its shim.
        .process_group(0)
        .stdin(if order.input.is_empty() { Stdio::null() } else { Stdio::piped() })
        .stdout(writer.try_clone()?)
        .stderr(writer);
    let sight = order.strict.as_ref().map(|strict| sight(strict, program_file, scratch));
    let bounds = Bounds {
        places: &order.places(scratch),
        capabilities: &order.capabilities,
        is_apart: ground.is_apart,
        has_own_shared: ground.shared == Shared::Own,
        has_own_queues: ground.has_own_queues(),
        shares: ground.space.shares(),
        // What it names there it must see.
        tmp: (!order.names_beneath(TMP)).then_some(scratch),
        must_hold: must_hold || order.strict.is_some(),
        strict: sight.as_ref(),
        store: Some(store),
    };
    let (mut child, held) = kept.spawn(&mut command, bounds).map_err(|error| {
        io::Error::new(error.kind(), format!("cannot start {program}: {error}"))
    })?;
    if let Some(mut input) = child.stdin.take() {
        let text = order.input.clone();
        // A stage that never reads its input must not hold up the shim.
        thread::spawn(move || input.write_all(text.as_bytes()));
    }
    // The order to end may have come before there was anything to end.
    if IS_LOST.load(Ordering::SeqCst) {
        kill_tree();
    } else if IS_ENDING.load(Ordering::SeqCst) {
        signal_tree(Signal::SIGTERM);
    }
    Ok((Pid::from_raw(child.id().cast_signed()), reader, held))
}

/// What it may read besides what it declares: its own program and the list of its inputs.
fn sight(strict: &Strict, program: PathBuf, scratch: &Path) -> Strict {
    let own = [program, listed(scratch)].into_iter().filter(|path| path.is_absolute());
    let reads = strict.reads.iter().cloned().chain(own).collect();
    Strict { reads, network: strict.network }
}

/// Removes a stage's temporary files.  Most leave none, and making a directory anew costs more than
/// many a stage; what cannot be removed goes with the run's directory.
fn empty(scratch: &Path) -> io::Result<()> {
    if fs::read_dir(scratch)?.next().is_some() {
        fs::remove_dir_all(scratch)?;
    }
    Ok(())
}

/// The program's file by the stage's own `PATH`: with a path the standard library need not fork to
/// look it up.  What is not found is left to fail under its name.
fn found(program: &str, order: &ProcessSpec) -> PathBuf {
    let name = PathBuf::from(program);
    let path = order.env.iter().find(|(name, _)| name == "PATH");
    let Some((_, path)) = path.filter(|_| !program.contains('/')) else { return name };
    let is_program = |file: &PathBuf| {
        fs::metadata(file).is_ok_and(|meta| meta.is_file())
            && access(file, AccessFlags::X_OK).is_ok()
    };
    let files =
        path.split(':').filter(|dir| dir.starts_with('/')).map(|dir| Path::new(dir).join(program));
    files.into_iter().find(is_program).unwrap_or(name)
}

/// The most that this process has held in memory, which its children begin with: a bigger program is more of it.
fn own_peak_bytes() -> u64 {
    getrusage(UsageWho::RUSAGE_SELF).as_ref().map_or(0, rss_peak_bytes)
}

/// Linux counts ru_maxrss in KiB.
fn rss_peak_bytes(usage: &Usages) -> u64 {
    usage.max_rss().max(0).cast_unsigned() * 1024
}

/// What the children of this process have taken that were reaped.
struct Usage {
    cpu_s: f64,
    rss_peak_bytes: u64,
    major_faults: u64,
}

impl Usage {
    fn of_children() -> Self {
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN).ok();
        let seconds =
            |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 * 1e-6;
        Self {
            cpu_s: usage
                .map_or(0.0, |usage| seconds(usage.user_time()) + seconds(usage.system_time())),
            rss_peak_bytes: usage.as_ref().map_or(0, rss_peak_bytes),
            major_faults: usage.map_or(0, |usage| usage.major_page_faults().max(0).cast_unsigned()),
        }
    }
}

/// Copies to the log until nobody writes any more, and says why that could not be kept.
type Copier = JoinHandle<Option<io::Error>>;

/// Copies what a stage writes to its log, without its secrets.
fn copier(mut output: io::PipeReader, log: PathBuf, secrets: Vec<Vec<u8>>) -> Copier {
    thread::spawn(move || {
        let copied = match secrets.is_empty() {
            // The kernel does that by itself.
            true => log::copy(&output, &log),
            false => log::copy(Masked::new(&output, secrets), &log),
        };
        // A full disk must not stop the stage's mouth: what cannot be kept is read all the same.
        let _ = io::copy(&mut output, &mut io::sink());
        copied.err()
    })
}

/// Waits for the leader, then for nobody to be left.
fn attend(leader: Pid, copier: Copier, before: &Usage, mut disks: Disks) -> ShimReport {
    let status = reap_until(leader);
    // Who is left may remove files yet, and so do we.
    let short = disks.look();
    let mut leftovers = containers::end_led() + end_tree();
    if leftovers > 0 || IS_ENDING.load(Ordering::SeqCst) {
        leftovers += containers::end_late();
    }
    // Every writer of the pipe is dead, so the copier comes to the end.
    let log_error = copier.join().ok().flatten();
    let after = Usage::of_children();
    let (exit, signal) = match status {
        Some(WaitStatus::Exited(_, code)) => (Some(code), None),
        Some(WaitStatus::Signaled(_, signal, _)) => (None, Some(signal as i32)),
        _ => (None, None),
    };
    ShimReport {
        exit,
        signal,
        cpu_s: after.cpu_s - before.cpu_s,
        rss_process_peak_bytes: after.rss_peak_bytes,
        carried_bytes: own_peak_bytes() + SMALL_BYTES_MORE,
        major_faults: after.major_faults.saturating_sub(before.major_faults),
        leftovers: leftovers as u32,
        writes: None,
        confined_by: None,
        network: None,
        short,
        late: false,
        spawn_error: None,
        log_error: log_error.map(|error| error.to_string()),
    }
}

/// Kills what outlived the leader; says how many there were.
pub(crate) fn end_tree() -> usize {
    // Whatever the leader started comes to us when its parent ends: without a child of ours there is
    // nobody, and nothing to look for.
    if waitpid(None, Some(WaitPidFlag::WNOHANG)) == Err(Errno::ECHILD) {
        return 0;
    }
    let leftovers = Tree::new(std::process::id()).descendants().len();
    kill_tree();
    leftovers
}

/// Reaps whatever ends until the leader has.
pub(crate) fn reap_until(leader: Pid) -> Option<WaitStatus> {
    loop {
        match waitpid(None, None) {
            Ok(status) if status.pid() == Some(leader) => return Some(status),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return None,
        }
    }
}

/// Listens to the supervisor until it is gone, and minds the stage's time meanwhile.
fn obey(orders: &SyncSender<ShimOrder>) {
    let mut input = io::BufReader::new(io::stdin());
    let (mut line, mut over_at) = (String::new(), None);
    loop {
        line.clear();
        if input.buffer().is_empty() {
            mind(&mut over_at);
        }
        match (&mut input).take(ORDER_BYTES_MAX).read_line(&mut line) {
            Ok(1..) if line.trim() == "stop" => stop_tree(),
            Ok(1..) if line.trim() == "halt" => halt_tree(),
            Ok(1..) if line.trim() == "go on" => drop(signal_tree(Signal::SIGCONT)),
            Ok(1..) => match serde_json::from_str::<ShimOrder>(&line) {
                // The shim takes the next order only when it has answered the last.
                Ok(order) => {
                    IS_LATE.store(false, Ordering::SeqCst);
                    IS_LEADING.store(true, Ordering::SeqCst);
                    // A time beyond all clocks is none.
                    over_at = order
                        .time_max
                        .and_then(|max| Instant::now().checked_add(max.saturating_add(CLOCK_TICK)));
                    drop(orders.send(order));
                }
                Err(error) => eprintln!("smelt: stage shim: {error}"),
            },
            Ok(0) | Err(_) => {
                IS_ENDING.store(true, Ordering::SeqCst);
                IS_LOST.store(true, Ordering::SeqCst);
                return kill_tree();
            }
        }
    }
}

/// Minds a stage's time until the supervisor says something, for one that was stopped, by a debugger or by a signal: time goes
/// on for the stage.  One that is at work decides by itself, since it knows what time does not count.
fn mind(over_at: &mut Option<Instant>) {
    let (stdin, supervisor) = (io::stdin(), getppid().as_raw().cast_unsigned());
    while let Some(at) = *over_at
        && IS_LEADING.load(Ordering::SeqCst)
    {
        // A millisecond more, since waiting counts whole ones: nobody looks again and again within the last.
        let left = at.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        if readable(&stdin, left) {
            return;
        }
        if Instant::now() < at || !IS_LEADING.load(Ordering::SeqCst) {
            continue;
        }
        let is_late = is_stopped(supervisor);
        IS_LATE.store(is_late, Ordering::SeqCst);
        *over_at = (!is_late).then(|| Instant::now() + CLOCK_TICK);
        if is_late {
            kill_tree();
        }
    }
}

/// Asks the tree to end; a second thread loses patience, so that this one can still hear the end
/// of the pipe.
pub(crate) fn stop_tree() {
    if IS_ENDING.swap(true, Ordering::SeqCst) {
        return;
    }
    signal_tree(Signal::SIGTERM);
    // One that is halted hears it only when it goes on.
    signal_tree(Signal::SIGCONT);
    thread::spawn(|| {
        thread::sleep(GRACE);
        kill_tree();
    });
}

/// Halts every process below us where no control group does it.  What is born while we look is found by
/// the next pass, until one finds nobody new.
fn halt_tree() {
    let mut halted = 0;
    for _ in 0..HALT_PASSES {
        match signal_tree(Signal::SIGSTOP) {
            all if all == halted => return,
            all => halted = all,
        }
    }
}

/// Kills every process below us, again and again until none is left: a fork storm can outrun one
/// pass, and a killed parent's children come to us.
fn kill_tree() {
    // First, so that their monitors can still clear up.
    containers::end_led();
    let begin = Instant::now();
    while signal_tree(Signal::SIGKILL) > 0 {
        // Whoever cannot die within this is stuck in the kernel, and waiting longer is no cure.
        if begin.elapsed() > GRACE * 2 {
            return;
        }
        // The main thread reaps while it waits for the leader; afterwards nobody else does.
        while waitpid(None, Some(WaitPidFlag::WNOHANG)).is_ok_and(|s| s.pid().is_some()) {}
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
