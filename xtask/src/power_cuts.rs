//! Cuts the power of virtual machines in which smelt runs, and looks at what is left on the disk.
//!
//! `workload` says what smelt does and what it promises by that, `recording` runs it in a `machine`
//! with every request to the disk written down, `block_log` makes the disk that a cut leaves, other
//! guests look at such disks, and `judge` decides.  A second recording, in which smelt's syncs do
//! nothing, is the control: its cuts must lose something, or this test could not fail.

mod block_log;
mod judge;
mod machine;
mod recording;
mod workload;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::guest::Machine;
use crate::target;
use crate::tidy::build_smelt;
use block_log::{BLOCK, Cut, Replay};
use judge::{Verdict, judge};
use recording::{DEVICE, Moment, Recording, Syncs};
use workload::FRESH;

/// Cuts that `soak` makes.
pub(crate) const SOAK: &[&str] = &["--points", "200"];

/// Guests are x86-64 Linux, and run smelt as it is built here.
const CAN_RUN: bool = cfg!(all(target_arch = "x86_64", target_os = "linux"));

/// The recordings, by the names of their files: smelt as it is, and the control.
const SUBJECT: &str = "smelt";
const CONTROL: &str = "control";

/// Cuts of the control.  Without syncs nearly all of them lose something.
const CONTROL_POINTS: usize = 4;

/// Guests at once, each on one core.
const GUESTS: usize = 2;
/// Disks of one guest, at most; a guest has room for some 28 devices.
const DISKS: usize = 20;
/// What a guest may take for its start, and for each disk.
const START: Duration = Duration::from_secs(120);
const EACH: Duration = Duration::from_secs(60);

/// What was asked for.
struct Settings {
    points: usize,
    seed: u64,
    /// Cuts the recordings that are there already.
    again: bool,
}

impl Settings {
    fn parse(arguments: &[&str]) -> Result<Self> {
        let mut settings = Self { points: 20, seed: 1, again: false };
        let mut arguments = arguments.iter();
        while let Some(&argument) = arguments.next() {
            let mut number = || arguments.next().and_then(|text| text.parse::<u64>().ok());
            match argument {
                "--points" => {
                    let points = number().filter(|&points| (1..=10_000).contains(&points));
                    settings.points =
                        points.context("--points takes a number up to 10000")? as usize;
                }
                "--seed" => settings.seed = number().context("--seed takes a number")?,
                "--again" => settings.again = true,
                _ => bail!("power-cuts takes --points N, --seed S and --again, not {argument}"),
            }
        }
        Ok(settings)
    }
}

/// `cargo xtask power-cuts [--points N] [--seed S] [--again]`.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    println!("\n$ cargo xtask power-cuts {}", arguments.join(" "));
    let settings = Settings::parse(arguments)?;
    if !CAN_RUN {
        println!("no power was cut: guests are x86-64 Linux, and smelt is not built for that here");
        return Ok(());
    }
    let begin = Instant::now();
    let folder = folder()?;
    let smelt = build_smelt()?;
    let machine = machine::prepare(&smelt, &folder)?;
    let [subject, control] = record(&machine, &folder, settings.again)?;
    println!("recorded: {} in {} s", subject.summary(), begin.elapsed().as_secs());
    let cuts = subject.draw(settings.points, settings.seed)?;
    let control_cuts = control.draw(CONTROL_POINTS, settings.seed)?;
    let mut jobs = Job::split(&control, &control_cuts);
    jobs.extend(Job::split(&subject, &cuts));
    let outcomes = look(&machine, &folder, jobs)?;
    let (subjects, controls): (Vec<_>, Vec<_>) =
        outcomes.iter().partition(|outcome| outcome.recording == SUBJECT);
    tell(&subjects);
    let lossy = controls.iter().filter(|outcome| !outcome.verdict.lost.is_empty()).count();
    println!("control: when syncs do nothing, {lossy} of {CONTROL_POINTS} cuts lose results");
    let bad = subjects.iter().filter(|outcome| !outcome.verdict.is_good()).count();
    println!(
        "{} cuts, {}, seed {}, {}, {} s",
        subjects.len(),
        sums(&subjects),
        settings.seed,
        machine.accelerator.name(),
        begin.elapsed().as_secs()
    );
    ensure!(
        bad == 0,
        "{bad} cuts broke a promise; their disks stay in {}, and --again --points {} --seed {} makes the same cuts",
        folder.display(),
        settings.points,
        settings.seed
    );
    ensure!(lossy > 0, "a store whose syncs do nothing lost nothing: these cuts find no losses");
    Ok(())
}

/// Where all of this lies.
fn folder() -> Result<PathBuf> {
    let folder = target().join("power-cuts");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder)
}

/// The recordings of smelt as it is, and of the control, made side by side.
fn record(machine: &Machine, folder: &Path, again: bool) -> Result<[Recording; 2]> {
    let both = [(SUBJECT, Syncs::Work), (CONTROL, Syncs::DoNothing)];
    if !again {
        let results = thread::scope(|scope| {
            let make = |(name, syncs)| Recording::make(machine, folder, name, syncs);
            both.map(|one| scope.spawn(move || make(one))).map(|thread| thread.join())
        });
        for result in results {
            result.expect("recording does not panic")?;
        }
    }
    let [smelt, control] = both.map(|(name, _)| {
        Recording::load(folder, name).with_context(|| format!("the recording of {name}"))
    });
    Ok([smelt?, control?])
}

/// Disks that one guest looks at.
struct Job<'a> {
    recording: &'a Recording,
    /// The number of its first cut, which names its files.
    first: usize,
    cuts: &'a [(Moment, Cut)],
}

/// What became of one cut.
struct Outcome {
    recording: &'static str,
    moment: Moment,
    cut: Cut,
    verdict: Verdict,
}

impl<'a> Job<'a> {
    /// Work for all guests, in pieces that one can hold.
    fn split(recording: &'a Recording, cuts: &'a [(Moment, Cut)]) -> Vec<Self> {
        let size = cuts.len().div_ceil(GUESTS).clamp(1, DISKS);
        let chunks = cuts.chunks(size).enumerate();
        chunks.map(|(at, cuts)| Self { recording, first: at * size, cuts }).collect()
    }

    fn disk(&self, folder: &Path, number: usize) -> PathBuf {
        folder.join(format!("{}-{number}.disk", self.recording.name))
    }

    /// Makes the disks, lets a guest look at them, and judges.
    fn look(&self, machine: &Machine, folder: &Path) -> Result<Vec<Outcome>> {
        let Self { recording, first, cuts } = self;
        let name = format!("{}-looks-{first}", recording.name);
        let facts = folder.join(format!("{name}.facts"));
        File::create(&facts)?.set_len(FACTS)?;
        let mut disks = drive(&facts, "facts");
        let mut script = String::new();
        let mut replay = Replay::new(&recording.log, recording.disk.clone());
        for (number, (_, cut)) in (*first..).zip(*cuts) {
            let path = self.disk(folder, number);
            write_sparsely(&path, &replay.after(cut)?)?;
            disks.extend(drive(&path, &format!("cut{number}")));
            let values: String =
                recording.promises(cut).keys().map(|value| format!(" {value}")).collect();
            script.push_str(&format!("check {number} {FRESH}{values}\n"));
        }
        script.push_str("checked\n");
        let limit = START + EACH * u32::try_from(cuts.len())?;
        machine.run(&name, &script, &disks, limit)?;
        let facts = fs::read(&facts)?;
        let facts = facts.split(|&byte| byte == 0).next().unwrap_or_default();
        let mut found = judge::read(&String::from_utf8_lossy(facts))?;
        let outputs = workload::outputs();
        let mut outcomes = Vec::new();
        for (number, (moment, cut)) in (*first..).zip(*cuts) {
            let found = found.remove(&number).unwrap_or_default();
            let verdict = judge(&found, &recording.promises(cut), &outputs);
            // What the control loses is no news.
            if verdict.is_good() || recording.name == CONTROL {
                fs::remove_file(self.disk(folder, number))?;
            }
            outcomes.push(Outcome {
                recording: recording.name,
                moment: *moment,
                cut: *cut,
                verdict,
            });
        }
        Ok(outcomes)
    }
}

/// Room for what a guest finds on its disks.
const FACTS: u64 = 16 << 20;

/// Does all jobs, as many at once as there are guests; outcomes are in the order of the cuts.
fn look(machine: &Machine, folder: &Path, jobs: Vec<Job<'_>>) -> Result<Vec<Outcome>> {
    let queue = Mutex::new(jobs.into_iter());
    let work = || -> Result<Vec<Outcome>> {
        let mut outcomes = Vec::new();
        loop {
            let job = queue.lock().expect("nobody panics with the queue").next();
            let Some(job) = job else { return Ok(outcomes) };
            outcomes.extend(job.look(machine, folder)?);
        }
    };
    let results = thread::scope(|scope| {
        let threads: Vec<_> = (0..GUESTS).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
    });
    let mut outcomes = Vec::new();
    for result in results {
        outcomes.extend(result.expect("looking does not panic")?);
    }
    outcomes.sort_by_key(|outcome| outcome.cut);
    Ok(outcomes)
}

/// A line for every kind of moment, and one for everything that went wrong.
fn tell(outcomes: &[&Outcome]) {
    for moment in Moment::ALL {
        let of_it: Vec<&Outcome> =
            outcomes.iter().copied().filter(|outcome| outcome.moment == moment).collect();
        println!("{:42} {:4} cuts, {}", moment.text(), of_it.len(), sums(&of_it));
    }
    for outcome in outcomes {
        for wrong in outcome.verdict.wrongs() {
            println!("after {} requests, {}: {wrong}", outcome.cut.after, outcome.moment.text());
        }
    }
}

fn sums(outcomes: &[&Outcome]) -> String {
    let sum = |count: fn(&Verdict) -> usize| -> usize {
        outcomes.iter().map(|outcome| count(&outcome.verdict)).sum()
    };
    format!(
        "{} acknowledged results kept, {} lost, {} half-made outputs, {} unsound stores, {} that cannot go on",
        sum(|verdict| verdict.kept),
        sum(|verdict| verdict.lost.len()),
        sum(|verdict| verdict.half_made.len()),
        sum(|verdict| usize::from(!verdict.unsound.is_empty())),
        sum(|verdict| usize::from(!verdict.stuck.is_empty())),
    )
}

/// QEMU's arguments for a disk whose serial number a guest asks for.
fn drive(path: &Path, serial: &str) -> Vec<String> {
    let drive = format!("if=none,id={serial},format=raw,cache=unsafe,file={}", path.display());
    let device = format!("{DEVICE},drive={serial},serial={serial}");
    ["-drive".to_owned(), drive, "-device".to_owned(), device].into()
}

/// Leaves holes where there are zeros, which is nearly everywhere.
fn write_sparsely(path: &Path, disk: &[u8]) -> Result<()> {
    let file = File::create(path).with_context(|| path.display().to_string())?;
    file.set_len(disk.len() as u64)?;
    for (at, block) in disk.chunks(BLOCK).enumerate() {
        if block.iter().any(|&byte| byte != 0) {
            file.write_all_at(block, (at * BLOCK) as u64)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_and_refused() {
        let settings = Settings::parse(&["--points", "200", "--seed", "7", "--again"]).unwrap();
        assert_eq!((settings.points, settings.seed, settings.again), (200, 7, true));
        assert_eq!(Settings::parse(SOAK).unwrap().points, 200);
        for wrong in [&["--points"][..], &["--points", "0"], &["--seed", "x"], &["--what"]] {
            assert!(Settings::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
