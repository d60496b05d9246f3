//! Collects garbage on the simulated disk, with something going wrong at every operation, and on
//! the real one beside runs.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;

use super::script::{
    Excuses, Promises, ROOT, audit, broken_promises, disk_with_model, half_made, key, leftovers,
    open, play,
};
use crate::collect::{Limits, What};
use crate::digest::Digest;
use crate::disk::sim::{Failure, Left, SimDisk, Trouble};
use crate::disk::{Disk, Wait};
use crate::output::{Lookup, Output};
use crate::run::Run;
use crate::store::{Store, StoreError};

const NOTHING_MAY_STAY: Limits = Limits { bytes_max: Some(0), age_max: None, takes_open: false };

/// A store with what the script keeps, two outputs that nobody holds, a quarantined one, and an
/// action log with superseded records.
fn full_disk(promises: &mut Promises) -> SimDisk {
    let disk = disk_with_model();
    play(&disk, promises).unwrap();
    let store = open(&disk).unwrap();
    let run = store.begin_run(UNIX_EPOCH + Duration::from_secs(1)).unwrap();
    for name in ["old", "older"] {
        for version in ["1", "2"] {
            make(&disk, &store, &run, name, version);
        }
    }
    run.finish().unwrap();
    disk.put(&Path::new(ROOT).join("quarantine/x/file"), b"damaged");
    disk.put(&Path::new(ROOT).join("trash/y/file"), b"left by a crash");
    disk
}

pub(super) fn make(disk: &SimDisk, store: &Store, run: &Run, name: &str, content: &str) -> Output {
    let dir = run.work_dir(name).unwrap();
    disk.put(&dir.join("file"), format!("{name} {content}").as_bytes());
    store.seal(&key(name), &dir, json!({"stage": name})).unwrap()
}

fn trees(disk: &SimDisk) -> usize {
    disk.list(&Path::new(ROOT).join("out")).unwrap().len()
}

/// Everything that is wrong after a collection that may have been cut.
fn wrong(disk: &SimDisk, promises: &Promises) -> Vec<String> {
    let mut wrong = half_made(disk);
    let store = open(disk).unwrap();
    wrong.extend(broken_promises(disk, &store, promises, false));
    wrong.extend(leftovers(disk, &store));
    let again = store.collect(&NOTHING_MAY_STAY);
    wrong.extend(again.err().map(|error| error.to_string()));
    wrong.extend((trees(disk) != 2).then(|| format!("{} trees are left", trees(disk))));
    for empty in ["trash", "quarantine"] {
        let left = disk.list(&Path::new(ROOT).join(empty)).unwrap().len();
        wrong.extend((left != 0).then(|| format!("{left} things are left in {empty}/")));
    }
    wrong.extend(broken_promises(disk, &store, promises, false));
    wrong
}

#[test]
fn what_nobody_holds_goes_and_what_is_held_stays() {
    let mut promises = Promises::default();
    let disk = full_disk(&mut promises);
    assert_eq!(trees(&disk), 6);
    let store = open(&disk).unwrap();
    let before = disk.get(&Path::new(ROOT).join("ac.log")).unwrap().len();
    let done = store.collect(&NOTHING_MAY_STAY).unwrap();
    assert_eq!(wrong(&disk, &promises), Vec::<String>::new());
    let outputs = done.removed.iter().filter(|victim| matches!(victim.what, What::Output(_)));
    assert_eq!(outputs.count(), 4);
    assert!(done.spared.is_empty() && done.bytes_held > 0);
    assert!(matches!(store.lookup(&key("old")).unwrap(), Lookup::Miss));
    let after = disk.get(&Path::new(ROOT).join("ac.log")).unwrap().len();
    assert!(after < before, "the log is compacted: {before} -> {after}");
    let seals = disk.list(&Path::new(ROOT).join("seals")).unwrap().len();
    assert_eq!(seals, 3, "the copies of removed records go too");
    assert_eq!(audit(&disk, &promises, &Excuses::default()), Vec::<String>::new());
}

#[test]
fn a_crash_anywhere_in_a_collection_leaves_outputs_whole_or_gone() {
    let mut promises = Promises::default();
    let start = full_disk(&mut promises);
    let count = start.copy();
    let store = open(&count).unwrap();
    count.plan(Trouble::Nothing);
    store.collect(&NOTHING_MAY_STAY).unwrap();
    let changes = count.changes();
    let kinds =
        [Left::Nothing, Left::NamesOnly, Left::Everything, Left::Random(1), Left::Random(2)];
    for point in 0..=changes {
        let disk = start.copy();
        let store = open(&disk).unwrap();
        disk.plan(Trouble::CrashAfterChange(point));
        let _ = store.collect(&NOTHING_MAY_STAY);
        for left in kinds {
            let after = disk.after_crash(left);
            let wrong = wrong(&after, &promises);
            assert!(wrong.is_empty(), "{point} ({}), {left:?}: {wrong:?}", disk.met());
        }
    }
    println!("{} crashes in a collection", (changes + 1) * kinds.len() as u64);
    assert!(changes > 20, "{changes}");
}

#[test]
fn a_failure_anywhere_in_a_collection_costs_nothing_that_is_held() {
    let mut promises = Promises::default();
    let start = full_disk(&mut promises);
    let count = start.copy();
    let store = open(&count).unwrap();
    count.plan(Trouble::Nothing);
    store.collect(&NOTHING_MAY_STAY).unwrap();
    for failure in [Failure::Eio, Failure::Enospc, Failure::ShortWrite] {
        for point in 1..=count.operations() {
            let disk = start.copy();
            let store = open(&disk).unwrap();
            disk.plan(Trouble::FailAt(point, failure));
            let _ = store.collect(&NOTHING_MAY_STAY);
            let met = disk.met();
            disk.plan(Trouble::Nothing);
            drop(store);
            for after in [disk.after_crash(Left::Random(point)), disk] {
                let wrong = wrong(&after, &promises);
                assert!(wrong.is_empty(), "{failure:?} at {point} ({met}): {wrong:?}");
            }
        }
    }
}

/// A store on the real disk with a run that built `names`.
fn real(names: &[&str]) -> (tempfile::TempDir, Store, Run) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), Wait::No).unwrap();
    let run = store.begin_run(SystemTime::now()).unwrap();
    for name in names {
        real_output(&store, &run, name, &[]);
    }
    (dir, store, run)
}

fn real_output(store: &Store, run: &Run, name: &str, refers: &[Digest]) -> Output {
    let work = run.work_dir(name).unwrap();
    std::fs::write(work.join("file"), name).unwrap();
    store.seal_referring(&key(name), &work, json!(null), refers).unwrap()
}

fn is_there(store: &Store, name: &str) -> bool {
    store.lookup(&key(name)).unwrap().hit().is_some()
}

#[test]
fn a_living_run_holds_what_its_recipes_lead_to_now_and_later() {
    let (_dir, store, run) = real(&["a", "b", "c"]);
    let recipe = |name: &str| Digest::of(format!("recipe of {name}").as_bytes());
    run.hold(&[recipe("a"), recipe("b"), key("c")]).unwrap();
    store.alias(&recipe("a"), &key("a")).unwrap();
    store.collect(&NOTHING_MAY_STAY).unwrap();
    assert!(is_there(&store, "a") && is_there(&store, "c"));
    assert!(!is_there(&store, "b"), "no alias led to it yet");
    real_output(&store, &run, "b", &[]);
    store.alias(&recipe("b"), &key("b")).unwrap();
    store.collect(&NOTHING_MAY_STAY).unwrap();
    assert!(is_there(&store, "b"));
    run.finish().unwrap();
    store.collect(&NOTHING_MAY_STAY).unwrap();
    assert!(!["a", "b", "c"].iter().any(|name| is_there(&store, name)));
}

#[test]
fn the_last_good_run_of_every_pipeline_keeps_its_outputs_and_its_journal() {
    let (_dir, store, run) = real(&["a", "b"]);
    run.journal().append(&json!({"event": "begin"})).unwrap();
    run.keep_for("one", &[key("a")]).unwrap();
    run.keep_for("two", &[key("b")]).unwrap();
    let first = run.id().clone();
    run.finish().unwrap();
    store.collect(&NOTHING_MAY_STAY).unwrap();
    assert!(is_there(&store, "a") && is_there(&store, "b"));
    assert_eq!(store.journals().unwrap(), std::slice::from_ref(&first));
    let next = store.begin_run(SystemTime::now()).unwrap();
    next.keep_for("one", &[key("b")]).unwrap();
    next.finish().unwrap();
    store.collect(&NOTHING_MAY_STAY).unwrap();
    assert!(!is_there(&store, "a") && is_there(&store, "b"));
    assert_eq!(store.journals().unwrap().len(), 2, "the first is still the last good one of two");
    let lists = std::fs::read_dir(store.root().join("roots")).unwrap().count();
    assert_eq!(lists, 3, "two pipelines with one list between them");
}

#[test]
fn what_somebody_removes_goes_though_a_pipeline_led_to_it_but_not_from_under_anybody() {
    let (_dir, store, run) = real(&["a", "b", "c"]);
    let tree = |name: &str| store.lookup(&key(name)).unwrap().hit().unwrap().digest;
    let [a, b, c] = ["a", "b", "c"].map(tree);
    run.keep_for("one", &[key("a"), key("b"), key("c")]).unwrap();
    run.keep_open("run one", "one", &[key("a")]).unwrap();
    run.hold(&[key("b")]).unwrap();
    store.pin(&c).unwrap();
    assert_eq!(store.remove(&[a, b, c]).unwrap(), [a], "the run lives, and one is pinned");
    assert!(!is_there(&store, "a") && is_there(&store, "b") && is_there(&store, "c"));
    run.finish().unwrap();
    store.unpin(&c).unwrap();
    let holder = store.begin_hold(SystemTime::now()).unwrap();
    holder.hold(&[c]).unwrap();
    assert_eq!(store.remove(&[b, c]).unwrap(), [b], "a server has one");
    drop(holder);
    assert_eq!(store.remove(&[c]).unwrap(), [c]);
    let left = store.inventory().unwrap();
    assert!(left.outputs.is_empty() && left.work_bytes == 0, "{left:?}");
}

#[test]
fn a_crash_anywhere_in_a_removal_leaves_outputs_whole_or_gone() {
    let mut promises = Promises::default();
    let start = full_disk(&mut promises);
    let of = |store: &Store| ["old", "older"].map(|name| store.lookup(&key(name)).unwrap());
    let store = open(&start).unwrap();
    let trees = of(&store).map(|found| found.hit().unwrap().digest);
    drop(store);
    let count = start.copy();
    let store = open(&count).unwrap();
    count.plan(Trouble::Nothing);
    assert_eq!(store.remove(&trees).unwrap(), trees);
    for point in 0..=count.changes() {
        let disk = start.copy();
        let store = open(&disk).unwrap();
        disk.plan(Trouble::CrashAfterChange(point));
        let _ = store.remove(&trees);
        for left in [Left::Nothing, Left::NamesOnly, Left::Everything, Left::Random(1)] {
            let after = disk.after_crash(left);
            let wrong = wrong(&after, &promises);
            assert!(wrong.is_empty(), "{point} ({}), {left:?}: {wrong:?}", disk.met());
        }
    }
}

#[test]
fn a_pipeline_that_is_forgotten_keeps_nothing_from_a_collection() {
    let (_dir, store, run) = real(&["a", "b"]);
    run.keep_for("one", &[key("a")]).unwrap();
    run.keep_for("two", &[key("b")]).unwrap();
    run.finish().unwrap();
    assert!(store.forget_last("one").unwrap());
    assert!(!store.forget_last("one").unwrap() && !store.forget_last("three").unwrap());
    store.collect(&NOTHING_MAY_STAY).unwrap();
    assert!(!is_there(&store, "a") && is_there(&store, "b"));
}

#[test]
fn what_a_holder_makes_can_be_sealed_and_what_it_leaves_goes_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), Wait::No).unwrap();
    let holder = store.begin_hold(SystemTime::now()).unwrap();
    holder.hold(&[key("made")]).unwrap();
    let [work, left] = ["made", "left"].map(|name| holder.work_dir(name).unwrap());
    std::fs::write(work.join("file"), "made").unwrap();
    std::fs::write(left.join("file"), "half").unwrap();
    store.seal(&key("made"), &work, json!(null)).unwrap();
    store.collect(&NOTHING_MAY_STAY).unwrap();
    assert!(is_there(&store, "made"), "it was held before it was there");
    drop(holder);
    assert!(!left.exists());
    assert!(store.journals().unwrap().is_empty(), "it was no run");
}

#[test]
fn what_a_run_claims_stays_whatever_its_recipe_leads_to() {
    let (_dir, store, run) = real(&["a", "b"]);
    let recipe = Digest::of(b"recipe of a");
    run.hold(&[recipe]).unwrap();
    for name in ["a", "later", "a"] {
        run.claim(&key(name)).unwrap();
    }
    // Another run of the recipe, that found other inputs.
    store.alias(&recipe, &key("b")).unwrap();
    real_output(&store, &run, "later", &[]);
    store.collect(&NOTHING_MAY_STAY).unwrap();
    assert!(["a", "b", "later"].iter().all(|name| is_there(&store, name)));
    run.finish().unwrap();
    assert_eq!(std::fs::read_dir(store.root().join("runs")).unwrap().count(), 0);
    store.collect(&NOTHING_MAY_STAY).unwrap();
    assert!(!["a", "b", "later"].iter().any(|name| is_there(&store, name)));
}

#[test]
fn who_only_uses_outputs_holds_them_and_is_no_run() {
    let (_dir, store, run) = real(&["a", "b"]);
    let tree = store.lookup(&key("a")).unwrap().hit().unwrap().digest;
    run.finish().unwrap();
    let holder = store.begin_hold(SystemTime::now()).unwrap();
    holder.hold(&[key("b")]).unwrap();
    holder.hold(&[tree]).unwrap();
    store.collect(&NOTHING_MAY_STAY).unwrap();
    assert!(is_there(&store, "a"));
    assert!(!is_there(&store, "b"), "another took its place");
    assert_eq!(store.journals().unwrap(), []);
    drop(holder);
    assert_eq!(std::fs::read_dir(store.root().join("runs")).unwrap().count(), 0);
    store.collect(&NOTHING_MAY_STAY).unwrap();
    assert!(!is_there(&store, "a"));
}

#[test]
fn an_output_that_a_held_one_names_is_held() {
    let (_dir, store, run) = real(&["other"]);
    let engine = real_output(&store, &run, "engine", &[]);
    real_output(&store, &run, "deployment", &[engine.digest]);
    run.hold(&[key("deployment")]).unwrap();
    store.collect(&NOTHING_MAY_STAY).unwrap();
    assert!(is_there(&store, "engine") && is_there(&store, "deployment"));
    assert!(!is_there(&store, "other"));
}

#[test]
fn a_store_opened_before_a_compaction_follows_it() {
    let (dir, ours, run) = real(&["a"]);
    run.hold(&[key("a"), key("b"), key("c")]).unwrap();
    real_output(&ours, &run, "a", &[]);
    real_output(&ours, &run, "gone", &[]);
    let theirs = Store::open(dir.path(), Wait::No).unwrap();
    assert!(is_there(&theirs, "a") && is_there(&theirs, "gone"));
    ours.collect(&NOTHING_MAY_STAY).unwrap();
    let their_run = theirs.begin_run(SystemTime::now()).unwrap();
    real_output(&theirs, &their_run, "b", &[]);
    real_output(&ours, &run, "c", &[]);
    for store in [&ours, &theirs, &Store::open(dir.path(), Wait::No).unwrap()] {
        assert!(["a", "b", "c"].iter().all(|name| is_there(store, name)));
        assert!(!is_there(store, "gone"));
    }
}

#[test]
fn a_log_that_is_mostly_superseded_is_compacted_by_itself() {
    let (dir, store, _run) = real(&[]);
    let log = dir.path().join("ac.log");
    let size = || std::fs::metadata(&log).unwrap().len();
    let long = "x".repeat(100 << 10);
    let mut largest = 0;
    for n in 0..30 {
        // Each supersedes the last.
        let manifest = crate::manifest::Manifest::new(Vec::new()).unwrap();
        let record = json!({"n": n, "long": long});
        store.record_reference(&key("r"), Path::new("/nowhere"), manifest, record).unwrap();
        largest = size().max(largest);
    }
    assert!(largest < 3 << 19, "3 MiB were written, and {largest} bytes were kept");
}

#[test]
fn damaged_lists_end_a_collection_before_it_removes_anything() {
    let (dir, store, run) = real(&["a"]);
    run.keep_for("one", &[key("a")]).unwrap();
    run.finish().unwrap();
    let roots = dir.path().join("roots");
    for entry in std::fs::read_dir(&roots).unwrap().flatten() {
        std::fs::write(entry.path(), "rubbish").unwrap();
    }
    let refused = store.collect(&NOTHING_MAY_STAY).unwrap_err();
    assert!(matches!(refused, StoreError::BadRoots { .. }), "{refused}");
    assert!(is_there(&store, "a"));
    drop(store);
    let alone = Store::open_exclusive(dir.path(), Wait::No).unwrap();
    assert!(!alone.repair().unwrap().is_sound());
    assert!(alone.repair().unwrap().is_sound());
    alone.collect(&NOTHING_MAY_STAY).unwrap();
}

/// A run that made one output under a recipe and did not say that it ended well.
fn open_run(disk: &SimDisk, store: &Store, second: u64) -> Run {
    let run = store.begin_run(UNIX_EPOCH + Duration::from_secs(second)).unwrap();
    let recipe = Digest::of(b"recipe of made");
    run.keep_open("as it was told", "p", &[recipe]).unwrap();
    let dir = run.work_dir("made").unwrap();
    disk.put(&dir.join("file"), b"made 1");
    store.seal(&key("made"), &dir, json!({"run": run.id().as_str()})).unwrap();
    store.alias_later(&recipe, &key("made")).unwrap();
    run
}

/// The trees that are left when nothing may stay.
fn left(store: &Store, disk: &SimDisk, takes_open: bool) -> usize {
    store.collect(&Limits { takes_open, ..NOTHING_MAY_STAY }).unwrap();
    trees(disk)
}

#[test]
fn what_a_run_made_that_did_not_end_well_stays() {
    let disk = disk_with_model();
    let store = open(&disk).unwrap();
    let run = open_run(&disk, &store, 1);
    let id = run.id().clone();
    run.finish().unwrap();
    assert_eq!(left(&store, &disk, false), 1);
    assert_eq!(store.open_runs().unwrap(), std::slice::from_ref(&id));
    // A power cut takes nothing of that, though it may take the alias.
    let after = disk.after_crash(Left::Nothing);
    assert_eq!(left(&open(&after).unwrap(), &after, false), 1);
    // Nor does a newer one of another command.
    let other = store.begin_run(UNIX_EPOCH + Duration::from_secs(2)).unwrap();
    other.keep_open("otherwise", "p", &[]).unwrap();
    other.close_open("otherwise").unwrap();
    other.finish().unwrap();
    assert_eq!(left(&store, &disk, false), 1);
    assert!(store.forget_open(&id).unwrap() && !store.forget_open(&id).unwrap());
    assert_eq!(left(&store, &disk, false), 0);
}

#[test]
fn a_run_that_ended_well_holds_nothing_for_going_on() {
    let disk = disk_with_model();
    let store = open(&disk).unwrap();
    let first = open_run(&disk, &store, 1);
    let second = open_run(&disk, &store, 2);
    // The newer one still waits.
    first.close_open("as it was told").unwrap();
    first.finish().unwrap();
    assert_eq!(store.open_runs().unwrap(), [second.id().clone()]);
    second.close_open("as it was told").unwrap();
    second.finish().unwrap();
    assert_eq!(left(&store, &disk, false), 0);
}

#[test]
fn who_asks_for_it_takes_what_waits_but_nothing_of_runs_that_go_on() {
    let disk = disk_with_model();
    let store = open(&disk).unwrap();
    let run = open_run(&disk, &store, 1);
    run.hold(&[Digest::of(b"recipe of made")]).unwrap();
    assert_eq!(left(&store, &disk, true), 1);
    assert_eq!(store.open_runs().unwrap().len(), 1, "it may still fail");
    run.finish().unwrap();
    assert_eq!(left(&store, &disk, true), 0);
    assert!(store.open_runs().unwrap().is_empty());
}

/// A board without a clock, or one that was wrong once.
#[test]
fn runs_are_in_the_order_in_which_they_began() {
    let disk = disk_with_model();
    let store = open(&disk).unwrap();
    let mut begun = Vec::new();
    // 2031, then 2026 three times, twice at the same moment.
    for second in [1_924_992_000, 1_795_275_753, 1_795_275_753, 1_795_275_754] {
        let run = store.begin_run(UNIX_EPOCH + Duration::from_secs(second)).unwrap();
        run.journal().append(&json!({})).unwrap();
        begun.push(run.id().clone());
        run.finish().unwrap();
    }
    assert_eq!(store.journals().unwrap(), begun);
    assert_eq!(begun[1].as_str(), "20310101-000000-0001");
    // A year beyond 9999 counts for nothing, and leaves names to those that follow.
    for second in [3_188_570_520_000, 1_795_275_755] {
        let run = store.begin_run(UNIX_EPOCH + Duration::from_secs(second)).unwrap();
        run.journal().append(&json!({})).unwrap();
        begun.push(run.id().clone());
        run.finish().unwrap();
    }
    assert_eq!(store.journals().unwrap(), begun);
}

#[test]
fn what_is_pinned_stays() {
    let disk = disk_with_model();
    let store = open(&disk).unwrap();
    let run = store.begin_run(UNIX_EPOCH + Duration::from_secs(1)).unwrap();
    let [kept, _] = ["kept", "gone"].map(|name| make(&disk, &store, &run, name, "1"));
    run.finish().unwrap();
    store.pin(&kept.digest).unwrap();
    assert_eq!(store.pins().unwrap(), [kept.digest]);
    assert_eq!(left(&store, &disk, true), 1);
    assert!(store.lookup(&key("kept")).unwrap().hit().is_some());
    assert!(store.unpin(&kept.digest).unwrap() && !store.unpin(&kept.digest).unwrap());
    assert_eq!(left(&store, &disk, false), 0);
}
