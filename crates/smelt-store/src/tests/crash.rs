//! Crashes after every change, keeps what a disk may keep, and audits what is left.
//!
//! The same sweep on disks that ignore some syncs must find damage, or it proves nothing.

use std::path::Path;

use smelt_random::Random;

use super::script::{Excuses, Promises, ROOT, audit, disk_with_model, half_made, play};
use crate::disk::Disk;
use crate::disk::sim::{Deaf, Left, SimDisk, Trouble};

/// How many changes the script makes on a disk.
fn changes_of(disk: &SimDisk) -> u64 {
    let disk = disk.copy();
    disk.plan(Trouble::Nothing);
    play(&disk, &mut Promises::default()).unwrap();
    disk.changes()
}

/// Enough to find out a disk that does not sync.
const LEFT_BY_A_BROKEN_DISK: [Left; 3] = [Left::Nothing, Left::NamesOnly, Left::Random(1)];

/// Crashes everywhere; gives the number of crashes and what was wrong after them.
fn sweep(start: &SimDisk, kinds: &[Left]) -> (usize, Vec<String>) {
    let (mut crashes, mut wrong) = (0, Vec::new());
    let excuses = Excuses { damaged: half_made(start), ..Excuses::default() };
    for point in 0..=changes_of(start) {
        let disk = start.copy();
        let mut promises = Promises::default();
        disk.plan(Trouble::CrashAfterChange(point));
        let _ = play(&disk, &mut promises);
        for &left in kinds {
            let after = disk.after_crash(left);
            let found = audit(&after, &promises, &excuses);
            let place = disk.met();
            wrong.extend(found.iter().map(|what| format!("{point} ({place}), {left:?}: {what}")));
            crashes += 1;
        }
    }
    (crashes, wrong)
}

#[test]
fn a_crash_anywhere_costs_nothing_promised() {
    let (crashes, wrong) = sweep(&disk_with_model(), &Left::EACH);
    println!("{crashes} crashes of a first run: {} wrong", wrong.len());
    assert!(crashes > 800, "{crashes}");
    assert!(wrong.is_empty(), "{} wrong, the first: {}", wrong.len(), wrong[0]);
}

#[test]
fn a_crash_while_clearing_up_costs_nothing_promised() {
    let (crashes, wrong) = sweep(&untidy_disk(), &Left::EACH);
    println!("{crashes} crashes of a run that clears up: {} wrong", wrong.len());
    assert!(crashes > 450, "{crashes}");
    assert!(wrong.is_empty(), "{} wrong, the first: {}", wrong.len(), wrong[0]);
}

/// A dead run with a working directory, a damaged output, and an action log with a torn end.
fn untidy_disk() -> SimDisk {
    let disk = disk_with_model();
    play(&disk, &mut Promises::default()).unwrap();
    // Damage that leaves no trace in a file's times is looked for once in every boot.
    let disk = disk.after_crash(Left::Everything);
    damage(&disk, "engine");
    damage(&disk, "model.onnx");
    let disk = crashed_at_work(&disk);
    let log = Path::new(ROOT).join("ac.log");
    let torn = [disk.get(&log).unwrap(), b"8 0123456789abcdef {\"seal".to_vec()].concat();
    disk.put(&log, &torn);
    assert!(
        !disk.list(&Path::new(ROOT).join("work")).unwrap().is_empty(),
        "there is work to clear"
    );
    damage(&disk, "model.onnx.data");
    disk
}

/// The disk after a run that died while a stage was at work.
fn crashed_at_work(start: &SimDisk) -> SimDisk {
    let crashed = |point| {
        let disk = start.copy();
        disk.plan(Trouble::CrashAfterChange(point));
        let _ = play(&disk, &mut Promises::default());
        disk.after_crash(Left::Everything)
    };
    let is_at_work = |disk: &SimDisk| {
        let work = Path::new(ROOT).join("work");
        disk.list(&work).unwrap().iter().any(|run| !disk.list(&work.join(run)).unwrap().is_empty())
    };
    (0..changes_of(start)).map(crashed).find(is_at_work).expect("some stage works some time")
}

/// Flips a bit of a sealed file.
fn damage(disk: &SimDisk, name: &str) {
    let out = Path::new(ROOT).join("out");
    for tree in disk.list(&out).unwrap() {
        let path = out.join(tree).join(name);
        if let Some(mut bytes) = disk.get(&path) {
            bytes[3] ^= 1;
            disk.put(&path, &bytes);
        }
    }
}

#[test]
fn a_crash_in_the_run_after_a_crash_costs_nothing_promised() {
    let fresh = disk_with_model();
    let changes = changes_of(&fresh);
    let mut chance = Random::new(1);
    let rounds = if std::env::var_os("SMELT_SOAK").is_some() { 40_000 } else { 400 };
    for round in 0..rounds {
        let (first, second) = (chance.next_u64() % changes, chance.next_u64() % changes);
        let mut promises = Promises::default();
        let mut disk = fresh.copy();
        for point in [first, second] {
            disk.plan(Trouble::CrashAfterChange(point));
            let _ = play(&disk, &mut promises);
            disk = disk.after_crash(Left::Random(chance.next_u64()));
        }
        let wrong = audit(&disk, &promises, &Excuses::default());
        assert!(wrong.is_empty(), "round {round}, after {first} and {second}: {wrong:?}");
    }
}

/// A disk that does not sync must be found out.
#[track_caller]
fn check_is_caught(what: &str, files: Deaf, dirs: Deaf) {
    let disk = disk_with_model();
    disk.ignore_syncs(files, dirs);
    let (crashes, wrong) = sweep(&disk, &LEFT_BY_A_BROKEN_DISK);
    println!("without sync of {what}: {} findings in {crashes} crashes", wrong.len());
    assert!(!wrong.is_empty(), "nobody noticed that {what} are not synced");
}

fn nothing(_: &Path) -> bool {
    false
}

fn is_in(path: &Path, dir: &str) -> bool {
    path.starts_with(Path::new(ROOT).join(dir))
}

#[test]
fn unsynced_output_files_are_caught() {
    check_is_caught("output files", |path| is_in(path, "work"), nothing);
}

#[test]
fn an_unsynced_action_log_is_caught() {
    check_is_caught("the action log", |path| is_in(path, "ac.log"), nothing);
}

#[test]
fn unsynced_journals_are_caught() {
    check_is_caught("journals", |path| is_in(path, "journal"), nothing);
}

#[test]
fn unsynced_directories_inside_outputs_are_caught() {
    check_is_caught("directories in outputs", nothing, |path| is_in(path, "work"));
}

#[test]
fn an_unsynced_out_directory_is_caught() {
    check_is_caught("out/", nothing, |path| path == Path::new(ROOT).join("out"));
}

#[test]
fn an_unsynced_journal_directory_is_caught() {
    check_is_caught("journal/", nothing, |path| path == Path::new(ROOT).join("journal"));
}

#[test]
fn an_unsynced_root_is_caught() {
    check_is_caught("the root", nothing, |path| path == Path::new(ROOT));
}

#[test]
fn unsynced_parents_of_the_root_are_caught() {
    check_is_caught("the root's parents", nothing, |path| Path::new(ROOT).parent() == Some(path));
    check_is_caught("their parents", nothing, |path| path == Path::new("/data"));
}
