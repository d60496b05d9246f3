//! `smelt watch`: shows what a machine's memory, boards and attempts do, now and from now on.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, stdout};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use smelt_exec::{ATTEMPT_MARK, LOG_VARIABLE, log_last_line};
use smelt_watch::processes::{Process, family, marked};
use smelt_watch::tegrastats::TegrastatsProcess;
use smelt_watch::{Cgroups, Survey};

use crate::console::{answer, offer};
use crate::exit::{Exit, Failed};
use crate::flags::WatchFlags;
use crate::live::{Foot, Size};
use crate::telling::Doing;
use crate::view::{Change, Stage, View, WatchedProcesses};

/// Looking may take this part of one core: 1 %.
const INTERVAL_PER_COST: u32 = 100;
/// The board's own tool says its first line after its first interval.
const FIRST_LINE: Duration = Duration::from_millis(1500);
const FIRST_LINE_LOOK: Duration = Duration::from_millis(20);
/// The word for the run that began last.
const LATEST: &str = "latest";

pub(crate) fn run(flags: &WatchFlags) -> Result<Exit, Failed> {
    let mut watch = Watch::begin(flags)?;
    let mut screen = Screen::new(flags);
    let interrupts = interrupts()?;
    loop {
        let begin = Instant::now();
        let Some(seen) = watch.look()? else { break };
        let is_heard = screen.show(flags, &seen)?;
        if flags.once || !is_heard {
            break;
        }
        let wait = flags.interval.max(begin.elapsed() * INTERVAL_PER_COST);
        match interrupts.recv_timeout(wait.saturating_sub(begin.elapsed())) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => break,
        }
    }
    screen.end()?;
    watch.end(flags)
}

/// What is looked at.
struct Watch {
    root: PathBuf,
    cgroups: Option<Cgroups>,
    board: Option<TegrastatsProcess>,
    whom: Whom,
    family: WatchedProcesses,
    /// What stages say of their work, by their attempts' marks.
    doing: BTreeMap<String, Doing>,
    began: Instant,
    /// The reading before.
    last: Option<(Instant, Survey)>,
    top: usize,
    has_ended: bool,
}

/// What is watched besides the machine.
enum Whom {
    Nobody,
    Process(u32),
    Run {
        name: String,
        /// Who starts its stages; between two of them nothing else is there.
        supervisor: Option<u32>,
    },
}

/// A reading, to be shown.
struct Reading<'a> {
    survey: &'a Survey,
    change: Option<Change>,
    family: Option<&'a WatchedProcesses>,
    stages: Vec<Stage>,
    top: usize,
}

impl Whom {
    /// Whether an attempt of that mark is watched; all are where nobody is named.
    fn is_of(&self, mark: &str) -> bool {
        match self {
            Self::Run { name, .. } => {
                mark.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('/'))
            }
            _ => true,
        }
    }
}

impl Watch {
    fn begin(flags: &WatchFlags) -> Result<Self, Failed> {
        let root = flags.root.clone().unwrap_or_else(|| PathBuf::from("/"));
        if !root.is_dir() {
            return Err(Failed::usage(format!("--root {}: no such directory", root.display())));
        }
        let whom = whom(flags, &root)?;
        let name = match &whom {
            Whom::Nobody => String::new(),
            Whom::Process(pid) => format!("process {pid}"),
            Whom::Run { name, .. } => format!("run {name}"),
        };
        // A captured tree tells nothing of the board we are on.
        let board =
            flags.root.is_none().then(|| TegrastatsProcess::start(flags.interval).ok()).flatten();
        Ok(Self {
            cgroups: Cgroups::find(&root),
            root,
            board,
            whom,
            family: WatchedProcesses::new(name),
            doing: BTreeMap::new(),
            began: Instant::now(),
            last: None,
            top: flags.top,
            has_ended: false,
        })
    }

    /// Takes a reading; `None` when whoever is watched has ended.
    fn look(&mut self) -> Result<Option<Reading<'_>>, Failed> {
        if self.last.is_none() {
            self.await_board();
        }
        let said = self.board.as_ref().and_then(TegrastatsProcess::latest);
        let survey = Survey::read(&self.root, self.cgroups.as_ref(), said);
        let at = Instant::now();
        let members = members(&self.whom, &self.root, &survey.processes);
        if members.as_ref().is_some_and(Vec::is_empty) && !self.goes_on() {
            self.has_ended = true;
            return Ok(None);
        }
        if let Some(members) = &members {
            self.family.take(members);
        }
        let change = self.last.as_ref().map(|(before_at, before)| {
            Change::between(before, &survey, at.duration_since(*before_at))
        });
        let is_watched = members.is_some();
        let stages = self.stages();
        let (_, survey) = self.last.insert((at, survey));
        let family = is_watched.then_some(&self.family);
        Ok(Some(Reading { survey, change, family, stages, top: self.top }))
    }

    /// How far the stages are that run, of the run that is watched or of all.
    fn stages(&mut self) -> Vec<Stage> {
        let at = self.began.elapsed();
        let mut attempts = marked(&self.root, ATTEMPT_MARK);
        attempts.retain(|(_, mark)| self.whom.is_of(mark));
        let logs = if attempts.is_empty() { Vec::new() } else { marked(&self.root, LOG_VARIABLE) };
        let mut marks: Vec<(String, String)> = attempts
            .into_iter()
            .filter_map(|(pid, mark)| {
                let (_, log) = logs.iter().find(|(of, _)| *of == pid)?;
                Some((mark, log.clone()))
            })
            .collect();
        marks.sort_unstable();
        marks.dedup();
        self.doing.retain(|mark, _| marks.iter().any(|(other, _)| other == mark));
        let stage = |(mark, log): (String, String)| {
            let doing = self.doing.entry(mark.clone()).or_default();
            doing.hear(at, &log_last_line(Path::new(&log)));
            Stage {
                name: mark.split_once('/').map_or(&*mark, |(_, attempt)| attempt).to_owned(),
                done: doing.done(),
                left: doing.left(at),
                words: doing.words(at),
            }
        };
        marks.into_iter().map(stage).collect()
    }

    /// Whether whoever has no processes now may have some later.
    fn goes_on(&self) -> bool {
        match self.whom {
            Whom::Run { supervisor: Some(pid), .. } => is_there(&self.root, pid),
            _ => false,
        }
    }

    fn await_board(&self) {
        let Some(board) = &self.board else { return };
        while board.latest().is_none() && self.began.elapsed() < FIRST_LINE {
            thread::sleep(FIRST_LINE_LOOK);
        }
    }

    /// The last words on whoever was watched.
    fn end(self, flags: &WatchFlags) -> Result<Exit, Failed> {
        let is_known = self.last.is_some();
        if self.has_ended && is_known && !flags.json {
            answer(format_args!("{}\n", self.family.end(self.began.elapsed())))?;
        }
        Ok(Exit::Ok)
    }
}

/// Finds whoever is to be watched; an error where there is nobody.
fn whom(flags: &WatchFlags, root: &Path) -> Result<Whom, Failed> {
    if let Some(pid) = flags.pid {
        if !is_there(root, pid) {
            return Err(Failed::new(Exit::StageFailed, format!("there is no process {pid}")));
        }
        return Ok(Whom::Process(pid));
    }
    let Some(text) = &flags.run else { return Ok(Whom::Nobody) };
    let marks = marked(root, ATTEMPT_MARK);
    let mut runs: Vec<&str> =
        marks.iter().filter_map(|(_, mark)| Some(mark.split_once('/')?.0)).collect();
    runs.sort_unstable();
    runs.dedup();
    if text == LATEST {
        // Their names begin with the time.
        let last = runs.last().map(|run| of_run(run, root, &marks));
        return last.ok_or_else(|| Failed::new(Exit::StageFailed, "no run builds anything now"));
    }
    match runs.iter().filter(|run| run.contains(text)).collect::<Vec<_>>()[..] {
        [run] => Ok(of_run(run, root, &marks)),
        [] => Err(Failed::new(Exit::StageFailed, format!("no run {text} builds anything now"))),
        [one, other, ..] => Err(Failed::usage(format!("{text} may be {one} or {other}"))),
    }
}

/// A run, and its supervisor: the parent of the shims, which carry no stage's mark.
fn of_run(name: &str, root: &Path, marks: &[(u32, String)]) -> Whom {
    let shim = format!("{name}/shim");
    let all = Process::read_all(root);
    let is_shim = |process: &&Process| marks.contains(&(process.pid, shim.clone()));
    Whom::Run {
        name: name.to_owned(),
        supervisor: all.iter().find(is_shim).map(|process| process.parent),
    }
}

fn is_there(root: &Path, pid: u32) -> bool {
    root.join(format!("proc/{pid}")).is_dir()
}

/// The processes that are watched; `None` where nobody is.
fn members<'a>(whom: &Whom, root: &Path, all: &'a [Process]) -> Option<Vec<&'a Process>> {
    match whom {
        Whom::Nobody => None,
        Whom::Process(pid) => Some(family(all, *pid)),
        Whom::Run { name, .. } => {
            let start = format!("{name}/");
            let marks = marked(root, ATTEMPT_MARK);
            let is_member = |process: &&Process| {
                marks.iter().any(|(pid, mark)| *pid == process.pid && mark.starts_with(&start))
            };
            Some(all.iter().filter(is_member).collect())
        }
    }
}

/// Where readings go.
struct Screen {
    foot: Foot,
    is_live: bool,
}

impl Screen {
    fn new(flags: &WatchFlags) -> Self {
        let is_live = stdout().is_terminal() && !flags.json && !flags.once;
        Self { foot: Foot::default(), is_live }
    }

    /// Says whether anybody is there to read it.
    fn show(&mut self, flags: &WatchFlags, seen: &Reading<'_>) -> Result<bool, Failed> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let view = View {
            at_s: now.map_or(0, |now| now.as_secs()),
            survey: seen.survey,
            change: seen.change.as_ref(),
            family: seen.family,
            stages: &seen.stages,
            top: seen.top,
        };
        if flags.json {
            return offer(format_args!("{}\n", view.as_json()));
        }
        if self.is_live {
            return offer(self.foot.draw(&view.lines(), Size::of(&stdout())));
        }
        if flags.once {
            return offer(format_args!("{}\n", view.lines().join("\n")));
        }
        offer(format_args!("{}\n", view.line()))
    }

    /// The last reading stays, and the cursor goes below it.
    fn end(&self) -> Result<(), Failed> {
        if self.is_live { answer("\r\n") } else { Ok(()) }
    }
}

/// Hears SIGINT and SIGTERM; either ends the watch in order.
fn interrupts() -> Result<Receiver<()>, Failed> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])
        .map_err(|error| Failed::new(Exit::StageFailed, format!("cannot hear signals: {error}")))?;
    let (sender, receiver) = sync_channel(1);
    thread::spawn(move || {
        for _ in signals.forever() {
            // One is enough; whoever does not listen any more is about to end.
            let _ = sender.try_send(());
        }
    });
    Ok(receiver)
}
