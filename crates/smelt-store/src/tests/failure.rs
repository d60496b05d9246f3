//! Fails every operation of a run, one at a time, and audits what is left.
//!
//! After the failure the run may be repeated on the same disk, or power may be lost; neither may
//! cost anything promised.

use std::io;
use std::path::{Path, PathBuf};

use nix::libc::{EACCES, ECANCELED, EIO, ENOSPC};
use serde_json::Value;

use super::script::{
    Excuses, Promises, audit, disk_with_model, is_look_at_sealed, key, open, play,
};
use crate::digester::DigestError;
use crate::disk::sim::{Failure, Left, SimDisk, Trouble};
use crate::disk::{DiskError, fault};
use crate::log::LogError;
use crate::seal::SealError;
use crate::store::StoreError;
use crate::walk::WalkError;

fn operations_of(disk: &SimDisk) -> u64 {
    let disk = disk.copy();
    disk.plan(Trouble::Nothing);
    play(&disk, &mut Promises::default()).unwrap();
    disk.operations()
}

/// What came of the failures that met an operation.
#[derive(Default, Debug, PartialEq, Eq)]
struct Count {
    met: usize,
    reported: usize,
    /// The run went on: a cache was not written, a damaged output was built again, the ballast
    /// made room.
    survived: usize,
}

fn sweep(start: &SimDisk, failure: Failure) -> Count {
    let mut count = Count::default();
    for point in 1..=operations_of(start) {
        let disk = start.copy();
        let mut promises = Promises::default();
        disk.plan(Trouble::FailAt(point, failure));
        let answer = play(&disk, &mut promises);
        let met = disk.met();
        if met.is_empty() {
            assert_eq!(answer, Ok(()), "nothing failed at {point}");
            continue;
        }
        count.met += 1;
        *if answer.is_err() { &mut count.reported } else { &mut count.survived } += 1;
        disk.plan(Trouble::Nothing);
        // A tree that could not be read has been given up, as it should be.
        let excuses = Excuses { unreadable: is_look_at_sealed(&met), ..Excuses::default() };
        for after in [disk.after_crash(Left::Nothing), disk.after_crash(Left::Random(point)), disk]
        {
            let wrong = audit(&after, &promises, &excuses);
            assert!(wrong.is_empty(), "{failure:?} at {point} ({met}): {wrong:?}");
        }
    }
    count
}

/// A failed sync makes the kernel forget what it has not written, of other programs too: here of a
/// record that need not be synced, without which the acknowledged one after it could not be read.
#[test]
fn a_failed_sync_costs_nobody_elses_records() {
    let mut syncs = 0;
    for point in 1..20 {
        let disk = disk_with_model();
        let [ours, theirs] = [open(&disk).unwrap(), open(&disk).unwrap()];
        ours.alias_later(&key("unsynced"), &key("content")).unwrap();
        disk.plan(Trouble::FailAt(point, Failure::Enospc));
        let failed = theirs.alias(&key("failed"), &key("content")).is_err();
        syncs += usize::from(failed && disk.met().starts_with("sync"));
        disk.plan(Trouble::Nothing);
        ours.alias(&key("acknowledged"), &key("content")).unwrap();
        let after = open(&disk.after_crash(Left::Nothing)).unwrap();
        assert_eq!(after.resolve(&key("acknowledged")).unwrap(), Some(key("content")), "{point}");
    }
    assert_eq!(syncs, 1);
}

#[test]
fn an_io_error_anywhere_is_reported_and_cured_by_another_run() {
    let count = sweep(&disk_with_model(), Failure::Eio);
    println!("EIO: {count:?}");
    assert!(count.met > 250 && count.reported > 5 * count.survived, "{count:?}");
}

#[test]
fn a_full_disk_anywhere_is_reported_and_cured_by_another_run() {
    let count = sweep(&disk_with_model(), Failure::Enospc);
    println!("ENOSPC: {count:?}");
    assert!(count.met > 50 && count.reported > 5 * count.survived, "{count:?}");
}

#[test]
fn a_short_write_anywhere_is_reported_and_cured_by_another_run() {
    let count = sweep(&disk_with_model(), Failure::ShortWrite);
    println!("short write: {count:?}");
    assert!(count.met > 15 && count.reported > count.survived, "{count:?}");
}

#[test]
fn a_short_read_anywhere_is_no_failure() {
    let count = sweep(&disk_with_model(), Failure::ShortRead);
    println!("short read: {count:?}");
    assert!(count.met > 30 && count.reported == 0, "{count:?}");
}

/// Only where another process was faster is there something to look at and to try again.
#[test]
fn a_full_disk_is_named_by_whom_it_keeps_from_placing_a_tree() {
    let mut moves = 0;
    for point in 1..60 {
        let disk = SimDisk::new();
        let store = open(&disk).unwrap();
        disk.put(Path::new("/work/file"), b"content");
        disk.plan(Trouble::FailAt(point, Failure::Enospc));
        let sealed = store.seal(&key("a"), Path::new("/work"), Value::Null);
        if disk.met().contains("rename to /data/kept/cache/out/") {
            moves += 1;
            assert!(sealed.unwrap_err().is_disk_full());
        }
    }
    assert_eq!(moves, 1);
}

#[test]
fn failures_in_a_run_that_finds_everything_done_are_cured_too() {
    let disk = disk_with_model();
    play(&disk, &mut Promises::default()).unwrap();
    for failure in [Failure::Eio, Failure::Enospc, Failure::ShortWrite] {
        println!("{failure:?} in a second run: {:?}", sweep(&disk, failure));
    }
}

#[test]
fn the_ballast_makes_room_for_records() {
    let disk = disk_with_model();
    disk.set_free_bytes(1 << 30);
    play(&disk, &mut Promises::default()).unwrap();
    let with_ballast = sweep(&disk, Failure::Enospc);
    disk.set_free_bytes(0);
    disk.plan(Trouble::Nothing);
    let without = {
        let store = super::script::open(&disk).unwrap();
        assert!(crate::ballast::drop_it(&disk, store.layout()));
        drop(store);
        sweep(&disk, Failure::Enospc)
    };
    println!("ENOSPC with ballast: {with_ballast:?}, without: {without:?}");
    assert!(with_ballast.survived > without.survived);
}

/// Who finds a directory that somebody else could not make durable must not take it for granted.
#[test]
fn a_run_after_a_failure_keeps_its_word_through_a_power_cut() {
    let start = disk_with_model();
    for point in 1..=operations_of(&start) {
        let disk = start.copy();
        disk.plan(Trouble::FailAt(point, Failure::Eio));
        let failed = play(&disk, &mut Promises::default());
        let met = disk.met();
        disk.plan(Trouble::Nothing);
        let mut promises = Promises::default();
        let again = play(&disk, &mut promises);
        assert_eq!(again, Ok(()), "after {failed:?} at {point} ({met})");
        for left in [Left::Nothing, Left::Random(point)] {
            let wrong = audit(&disk.after_crash(left), &promises, &Excuses::default());
            assert!(wrong.is_empty(), "{left:?} after EIO at {point} ({met}): {wrong:?}");
        }
    }
}

/// Whether an error says that the disk is full, that it fails, and that somebody stopped it.
fn kinds(error: &SealError) -> [bool; 3] {
    [error.is_disk_full(), error.is_disk_failing(), error.is_stopped()]
}

#[test]
fn what_the_system_answered_is_told_through_every_layer() {
    let disk = |raw| fault("write", Path::new("/f"))(io::Error::from_raw_os_error(raw));
    let layers: [fn(DiskError) -> SealError; 5] = [
        SealError::Disk,
        |error| WalkError::Disk(error).into(),
        |error| DigestError::Disk(error).into(),
        |error| StoreError::Disk(error).into(),
        |error| StoreError::Log(LogError::Disk(error)).into(),
    ];
    for (at, layer) in layers.into_iter().enumerate() {
        assert_eq!(kinds(&layer(disk(ENOSPC))), [true, false, false], "{at}");
        assert_eq!(kinds(&layer(disk(EIO))), [false, true, false], "{at}");
        assert_eq!(kinds(&layer(disk(EACCES))), [false; 3], "{at}");
    }
    // Nothing is stopped while it lists files or writes a record.
    for layer in [layers[0], layers[2], layers[3]] {
        assert_eq!(kinds(&layer(disk(ECANCELED))), [false, false, true]);
    }
    let path = || PathBuf::from("/log");
    assert_eq!(
        kinds(&StoreError::Log(LogError::Broken { path: path() }).into()),
        [false, true, false]
    );
    let large = LogError::RecordTooLarge { path: path(), bytes: 1 };
    assert_eq!(kinds(&StoreError::Log(large).into()), [false; 3]);
    assert_eq!(kinds(&SealError::Empty { path: path() }), [false; 3]);
    let read_only = StoreError::ReadOnly { doing: "seal", path: path() };
    assert_eq!(kinds(&read_only.into()), [false; 3]);
}
