//! Lets every operation of a run of one pipeline fail in turn, and cuts the power after every change,
//! with everything that a disk may then keep or lose.
//!
//! Each time the promises are checked, and the same run again must end well and build nothing anew
//! that was acknowledged.  Disks that are deaf to some syncs must be found out, or this proves
//! nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex};

use smelt_random::Random;
use smelt_store::sim::{Failure as DiskFailure, Left, SimDisk, Trouble};
use smelt_store::turns::TurnScheduler;

use super::{Drawn, Ledger, ROOT, World, check_between, run};
use crate::report::{RunReport, RunStatus};
use crate::shims::Shims;
use crate::signatures::Signatures;

/// What the last stage reads is read by another, too.
fn pipeline() -> Drawn {
    let words = ["tool-0", "tool-1", "tool-2"].map(str::to_owned).into();
    Drawn { name: "one", needs: vec![vec![], vec![0], vec![0, 1]], words, attempts: 1, rungs: "" }
}

/// A disk, what was promised of it, and the pipeline that is run on it.
struct Scene {
    disk: SimDisk,
    ledger: Ledger,
    pipeline: Drawn,
}

impl Scene {
    /// Nothing was ever built.
    fn new() -> Self {
        let disk = SimDisk::new();
        disk.put(Path::new("/data/there"), b"");
        Self { disk, ledger: Ledger::default(), pipeline: pipeline() }
    }

    /// All was built, and then a tool changed: there are hits, and stages to build.
    fn changed() -> Self {
        let mut scene = Self::new().after(Trouble::Nothing).0;
        scene.pipeline.words[1] += "-changed";
        scene
    }

    /// A copy in which the run has met this trouble, and what came of it.
    fn after(&self, trouble: Trouble) -> (Self, Result<RunReport, String>) {
        let disk = self.disk.copy();
        disk.plan(trouble);
        let world = World {
            ledger: Mutex::new(self.ledger.clone()),
            shims: Shims::new("sim").expect("a process may adopt orphans"),
            signatures: Signatures::none(),
        };
        let turns = Arc::new(TurnScheduler::new(1, 0));
        let seen = disk.for_actor(&turns, 0);
        // The chance of one seed, so that every operation has the same number each time.
        let answer = run(&world, &seen, (&turns, 0), &self.pipeline, Random::new(1), false);
        let mut ledger = world.ledger().clone();
        ledger.end_life(&disk);
        (Self { disk, ledger, pipeline: self.pipeline.clone() }, answer)
    }

    fn with_disk(&self, disk: SimDisk) -> Self {
        Self { disk, ledger: self.ledger.clone(), pipeline: self.pipeline.clone() }
    }

    /// Nothing promised is lost, and another run does what is left to do.
    fn is_sound(&self) {
        self.disk.plan(Trouble::Nothing);
        self.check();
        let (after, answer) = self.after(Trouble::Nothing);
        assert_eq!(answer.expect("nothing goes wrong").status, RunStatus::Ok);
        after.check();
    }

    fn check(&self) {
        let shims = Shims::new("sim").expect("a process may adopt orphans");
        let ledger = Mutex::new(self.ledger.clone());
        check_between(&World { ledger, shims, signatures: Signatures::none() }, &self.disk);
    }
}

/// Fails every operation in turn, for good or once; how many failures were met.
fn sweep(start: &Scene, trouble: impl Fn(u64) -> Trouble) -> usize {
    let (whole, answer) = start.after(Trouble::Nothing);
    assert_eq!(answer.expect("nothing goes wrong").status, RunStatus::Ok);
    let mut count = 0;
    for point in 1..=whole.disk.operations() {
        let (scene, answer) = start.after(trouble(point));
        let met = scene.disk.met();
        if met.is_empty() {
            assert_eq!(answer.expect("nothing went wrong").status, RunStatus::Ok);
            continue;
        }
        count += 1;
        let lost = [Left::Nothing, Left::Random(point)].map(|left| scene.disk.after_crash(left));
        for (at, disk) in lost.into_iter().chain([scene.disk.clone()]).enumerate() {
            let sound = catch_unwind(AssertUnwindSafe(|| scene.with_disk(disk).is_sound()));
            assert!(sound.is_ok(), "{:?} ({met}), then {at}", trouble(point));
        }
    }
    count
}

/// Cuts the power after every change; how often, or after which cut something was wrong.
fn cuts(start: &Scene, kinds: &[Left]) -> Result<usize, String> {
    let mut count = 0;
    for point in 0..=start.after(Trouble::Nothing).0.disk.changes() {
        let (scene, _) = start.after(Trouble::CrashAfterChange(point));
        for &left in kinds {
            count += 1;
            let after = scene.with_disk(scene.disk.after_crash(left));
            if catch_unwind(AssertUnwindSafe(|| after.is_sound())).is_err() {
                return Err(format!("after change {point} ({}), {left:?}", scene.disk.met()));
            }
        }
    }
    Ok(count)
}

#[test]
fn a_failure_anywhere_is_cured_by_another_run() {
    for (what, start) in [("new", Scene::new()), ("changed", Scene::changed())] {
        for failure in [DiskFailure::Eio, DiskFailure::Enospc, DiskFailure::ShortWrite] {
            let count = sweep(&start, |point| Trouble::FailAt(point, failure));
            println!("{what}, {failure:?}: {count} failures");
            assert!(count > 10, "{what}, {failure:?}: {count}");
        }
        let count = sweep(&start, Trouble::FullFrom);
        println!("{what}, full from then on: {count}");
        assert!(count > 50, "{what}: {count}");
    }
}

#[test]
fn a_power_cut_anywhere_costs_nothing_promised() {
    for (what, start) in [("new", Scene::new()), ("changed", Scene::changed())] {
        let count = cuts(&start, &Left::EACH).expect(what);
        println!("{what}: {count} power cuts");
        assert!(count > 300, "{what}: {count}");
    }
}

#[test]
fn disks_that_do_not_sync_are_found_out() {
    let in_work = |path: &Path| path.starts_with(Path::new(ROOT).join("work"));
    let log = |path: &Path| path == Path::new(ROOT).join("ac.log");
    let out = |path: &Path| path == Path::new(ROOT).join("out");
    let none = |_: &Path| false;
    for (what, files, dirs) in [
        ("files", in_work as smelt_store::sim::Deaf, none as smelt_store::sim::Deaf),
        ("directories", none, in_work),
        ("the action log", log, none),
        ("out/", none, out),
    ] {
        let start = Scene::new();
        start.disk.ignore_syncs(files, dirs);
        let found = cuts(&start, &[Left::Nothing, Left::NamesOnly]);
        let found = found.expect_err("nobody noticed that they are not synced");
        println!("deaf to syncs of {what}: found {found}");
    }
}
