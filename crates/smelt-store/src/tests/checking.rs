//! Damages whole stores, checks and repairs them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use smelt_random::Random;

use super::collecting::make;
use super::script::{
    Excuses, Promises, ROOT, audit, broken_promises, disk_with_model, half_made, open, play,
};
use crate::collect::Limits;
use crate::disk::Disk;
use crate::disk::sim::{Left, SimDisk, Trouble};
use crate::disk::turns::TurnScheduler;
use crate::fsck::Checkup;
use crate::store::{Store, StoreError};

fn alone(disk: &SimDisk) -> Store {
    Store::open_alone_on(Arc::new(disk.clone()), Path::new(ROOT)).unwrap()
}

fn played() -> (SimDisk, Promises) {
    let disk = disk_with_model();
    let mut promises = Promises::default();
    play(&disk, &mut promises).unwrap();
    (disk, promises)
}

fn path(name: &str) -> PathBuf {
    Path::new(ROOT).join(name)
}

/// Repairs, and sees that everything sealed is there and a second look finds nothing.
#[track_caller]
fn repaired(disk: &SimDisk, promises: &Promises) -> Checkup {
    let found = alone(disk).repair().unwrap();
    let again = alone(disk).repair().unwrap();
    assert!(again.is_sound(), "{again:?}");
    let store = open(disk).unwrap();
    // Aliases and references are not in the copies: they are found again by the next run.
    let only_outputs = promises.without_aliases();
    assert_eq!(broken_promises(disk, &store, &only_outputs, false), Vec::<String>::new());
    drop(store);
    assert_eq!(audit(disk, &only_outputs, &Excuses::default()), Vec::<String>::new());
    found
}

#[test]
fn a_sound_store_is_sound() {
    let (disk, promises) = played();
    let found = open(&disk).unwrap().check().unwrap();
    assert!(found.is_sound());
    assert_eq!((found.trees, found.nameless, found.gone, found.strays), (2, 0, 0, 0));
    assert!(found.bytes > 100);
    assert_eq!(repaired(&disk, &promises), found);
}

/// Runs seal, collections remove, and whoever looks sees neither as damage; but damage it sees.
#[test]
fn a_check_beside_builds_and_collections_finds_damage_alone() {
    // Four checks each.
    let seeds = if std::env::var_os("SMELT_SOAK").is_some() { 2500 } else { 400 };
    let (mut checks, mut found) = (0, 0);
    for seed in 0..seeds {
        let (disk, _) = played();
        let turns = Arc::new(TurnScheduler::new(3, seed));
        let everything = Limits { bytes_max: Some(0), ..Limits::default() };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _part = turns.begin(0);
                let disk = disk.for_actor(&turns, 0);
                let store = open(&disk).unwrap();
                let run = store.begin_run(UNIX_EPOCH + Duration::from_secs(9)).unwrap();
                for n in 0..8 {
                    let name = format!("news-{}", n / 2);
                    make(&disk, &store, &run, &name, &n.to_string());
                }
                run.finish().unwrap();
            });
            scope.spawn(|| {
                let _part = turns.begin(1);
                let store = open(&disk.for_actor(&turns, 1)).unwrap();
                (0..3).for_each(|_| drop(store.collect(&everything).unwrap()));
            });
            let _part = turns.begin(2);
            let store = open(&disk.for_actor(&turns, 2)).unwrap();
            for _ in 0..4 {
                let checkup = store.check().unwrap();
                assert!(checkup.is_sound(), "seed {seed}: {checkup:?}");
                checks += 1;
            }
        });
        play(&disk, &mut Promises::default()).unwrap();
        let tree = disk.list(&path("out")).unwrap().pop().unwrap();
        let file = disk.list(&path("out").join(&tree)).unwrap().remove(0);
        disk.corrupt(&path("out").join(&tree).join(&file));
        found += open(&disk).unwrap().check().unwrap().damaged.len();
    }
    println!("{checks} checks, {found} damages found");
    assert_eq!(found as u64, seeds);
}

#[test]
fn repairing_needs_the_store_alone() {
    let (disk, _) = played();
    assert!(matches!(open(&disk).unwrap().repair(), Err(StoreError::Held { .. })));
}

#[test]
fn a_lost_action_log_is_made_anew_from_what_lies_beside_the_outputs() {
    let (disk, promises) = played();
    disk.unlink(&path("ac.log")).unwrap();
    let found = open(&disk).unwrap().check().unwrap();
    assert_eq!((found.lost, found.is_sound()), (3, false));
    assert_eq!(repaired(&disk, &promises).lost, 3);
}

#[test]
fn a_log_damaged_in_its_middle_loses_nothing_else() {
    let (disk, promises) = played();
    let mut bytes = disk.get(&path("ac.log")).unwrap();
    bytes[20] ^= 1;
    disk.put(&path("ac.log"), &bytes);
    for seal in disk.list(&path("seals")).unwrap() {
        disk.unlink(&path("seals").join(seal)).unwrap();
    }
    let found = open(&disk).unwrap().check().unwrap();
    assert!(found.log_is_damaged && found.lost == 0, "{found:?}");
    repaired(&disk, &promises);
    assert_eq!(disk.list(&path("seals")).unwrap().len(), 3, "the copies are made again");
}

#[test]
fn whatever_befalls_the_log_repair_brings_every_output_back() {
    let (clean, promises) = played();
    let (mut chance, mut lost) = (Random::new(3), 0);
    for _ in 0..100 {
        let disk = clean.copy();
        let mut bytes = disk.get(&path("ac.log")).unwrap();
        for _ in 0..=chance.below(3) {
            super::damage::mutate(&mut bytes, &mut chance);
        }
        disk.put(&path("ac.log"), &bytes);
        if chance.below(2) == 0 {
            // A run between the damage and the repair cuts the log at its first bad line.
            play(&disk, &mut Promises::default()).unwrap();
        }
        let found = repaired(&disk, &promises);
        lost += found.lost;
    }
    println!("100 damaged logs, {lost} results brought back");
    assert!(lost > 30);
}

#[test]
fn damage_that_left_no_trace_is_found_and_moved_away() {
    let (disk, promises) = played();
    let out = path("out");
    let tree = disk.list(&out).unwrap().pop().unwrap();
    let file = disk.list(&out.join(&tree)).unwrap().remove(0);
    // As a disk would, behind the back of times and caches.
    disk.corrupt(&out.join(&tree).join(&file));
    let store = open(&disk).unwrap();
    let found = store.check().unwrap();
    assert_eq!(found.damaged.len(), 1, "{found:?}");
    assert_eq!((found.trees, found.is_sound()), (1, false));
    assert!(half_made(&disk).is_empty());
    assert!(store.check().unwrap().is_sound(), "moved away, so it is no longer there");
    drop(store);
    assert_eq!(audit(&disk, &promises, &Excuses { unreadable: true, damaged: vec![] }).len(), 0);
}

#[test]
fn a_tree_without_a_record_must_be_what_its_name_says() {
    let (disk, _) = played();
    let out = path("out");
    let trees = disk.list(&out).unwrap();
    disk.unlink(&path("ac.log")).unwrap();
    for seal in disk.list(&path("seals")).unwrap() {
        disk.unlink(&path("seals").join(seal)).unwrap();
    }
    disk.put(&out.join(&trees[0]).join("more"), b"not sealed");
    disk.put(&out.join("notes.txt"), b"not a tree");
    let found = open(&disk).unwrap().check().unwrap();
    assert_eq!((found.trees, found.nameless, found.strays), (1, 1, 1));
    assert_eq!(found.damaged.len(), 1);
}

#[test]
fn a_crash_anywhere_in_a_repair_loses_nothing_more() {
    let (start, promises) = played();
    let mut bytes = start.get(&path("ac.log")).unwrap();
    bytes[20] ^= 1;
    start.put(&path("ac.log"), &bytes);
    let count = start.copy();
    let store = alone(&count);
    count.plan(Trouble::Nothing);
    store.repair().unwrap();
    for point in 0..=count.changes() {
        let disk = start.copy();
        let store = alone(&disk);
        disk.plan(Trouble::CrashAfterChange(point));
        let _ = store.repair();
        for left in [Left::Nothing, Left::NamesOnly, Left::Everything, Left::Random(point)] {
            repaired(&disk.after_crash(left), &promises);
        }
    }
}
