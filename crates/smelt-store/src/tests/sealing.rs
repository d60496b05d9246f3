//! Seals, finds, damages and shares outputs on the real disk.

use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::json;

use super::script::key;
use crate::actions::Entry;
use crate::digest::Digest;
use crate::disk::Wait;
use crate::log::{LogError, RECORD_BYTES_MAX};
use crate::manifest::Manifest;
use crate::output::{Location, Lookup, Output};
use crate::run::{Run, Whole};
use crate::seal::SealError;
use crate::store::{Store, StoreError};

/// A store with a run in a directory of its own.
struct World {
    dir: tempfile::TempDir,
    store: Store,
    run: Run,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Wait::No).unwrap();
        let run = store.begin_run(SystemTime::now()).unwrap();
        Self { dir, store, run }
    }

    /// A working directory with a model, its data in a directory, and a program.
    fn work(&self, name: &str) -> PathBuf {
        let work = self.run.work_dir(name).unwrap();
        fs::write(work.join("model.onnx"), "graph").unwrap();
        fs::create_dir(work.join("data")).unwrap();
        fs::create_dir(work.join("empty")).unwrap();
        fs::write(work.join("data/weights.bin"), vec![7; 3 << 20]).unwrap();
        fs::write(work.join("run.sh"), "#!/bin/sh\n").unwrap();
        fs::set_permissions(work.join("run.sh"), Permissions::from_mode(0o700)).unwrap();
        work
    }

    fn seal(&self, name: &str) -> Output {
        let work = self.work(name);
        let output = self.store.seal(&key(name), &work, json!({"stage": name})).unwrap();
        assert!(!work.exists());
        output
    }

    #[track_caller]
    fn refused(&self, spoil: impl FnOnce(&Path)) -> SealError {
        let work = self.work("refused");
        spoil(&work);
        let refused = self.store.seal(&key("refused"), &work, json!(null)).unwrap_err();
        assert!(self.store.lookup(&key("refused")).unwrap().hit().is_none());
        assert_eq!(fs::read_dir(self.dir.path().join("out")).unwrap().count(), 0);
        assert!(!refused.to_string().contains('\n'));
        refused
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// Writes into a sealed file as a bad disk would.
fn spoil(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::set_permissions(path, Permissions::from_mode(0o644)).unwrap();
    fs::write(path, bytes).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o444)).unwrap();
}

#[test]
fn a_sealed_output_is_read_only_and_plain() {
    let world = World::new();
    let output = world.seal("a");
    let path = output.path();
    assert_eq!(path, world.dir.path().join("out").join(output.digest.to_string()));
    assert_eq!(mode(&path.join("model.onnx")), 0o444);
    assert_eq!(mode(&path.join("data/weights.bin")), 0o444);
    assert_eq!(mode(&path.join("run.sh")), 0o555);
    assert_eq!(mode(&path.join("data")), 0o755);
    assert_eq!(fs::metadata(path.join("data/weights.bin")).unwrap().nlink(), 1);
    let paths: Vec<&str> = output.manifest.files().iter().map(|file| &*file.path).collect();
    assert_eq!(paths, ["data/weights.bin", "model.onnx", "run.sh"]);
    assert_eq!(output.manifest.bytes(), (3 << 20) + 5 + 10);
}

#[test]
fn a_sealed_output_is_found_by_any_store_without_hashing_again() {
    let world = World::new();
    let output = world.seal("a");
    // As closing the store does, and every so many bytes.
    world.store.digester().save_now();
    let other = Store::open(world.dir.path(), Wait::No).unwrap();
    for store in [&world.store, &other] {
        let hashed = store.bytes_hashed();
        assert_eq!(store.lookup(&key("a")).unwrap().hit().as_ref(), Some(&output));
        assert_eq!(store.bytes_hashed(), hashed);
    }
}

#[test]
fn a_record_of_another_store_becomes_visible() {
    let world = World::new();
    let other = Store::open(world.dir.path(), Wait::No).unwrap();
    assert_eq!(other.lookup(&key("a")).unwrap(), Lookup::Miss);
    assert_eq!(other.resolve(&key("recipe")).unwrap(), None);
    let output = world.seal("a");
    world.store.alias(&key("recipe"), &key("a")).unwrap();
    assert_eq!(other.lookup(&key("a")).unwrap().hit(), Some(output));
    assert_eq!(other.resolve(&key("recipe")).unwrap(), Some(key("a")));
}

#[test]
fn an_alias_follows_the_newest_key_and_is_recorded_once() {
    let world = World::new();
    let size = || fs::metadata(world.dir.path().join("ac.log")).unwrap().len();
    world.store.alias(&key("recipe"), &key("a")).unwrap();
    let once = size();
    world.store.alias(&key("recipe"), &key("a")).unwrap();
    assert_eq!(size(), once);
    world.store.alias(&key("recipe"), &key("b")).unwrap();
    assert_eq!(world.store.resolve(&key("recipe")).unwrap(), Some(key("b")));
}

#[test]
fn equal_content_is_kept_once() {
    let world = World::new();
    let (a, b) = (world.seal("a"), world.seal("b"));
    assert_eq!(a.digest, b.digest);
    assert_eq!(b.record, json!({"stage": "b"}));
    assert_eq!(fs::read_dir(world.dir.path().join("out")).unwrap().count(), 1);
    assert!(world.store.lookup(&key("a")).unwrap().hit().is_some());
}

#[track_caller]
fn check_damage(expect: &str, damage: impl FnOnce(&Path)) {
    let world = World::new();
    let output = world.seal("a");
    damage(output.path());
    let Lookup::Damaged(found) = world.store.lookup(&key("a")).unwrap() else {
        panic!("nothing found")
    };
    assert!(found.what.contains(expect), "{}", found.what);
    assert!(found.moved_to.unwrap().is_dir());
    assert!(!output.path().exists());
    assert_eq!(world.store.lookup(&key("a")).unwrap(), Lookup::Miss, "found once");
    assert_eq!(world.seal("a"), output, "it can be built again");
    assert!(world.store.lookup(&key("a")).unwrap().hit().is_some());
}

#[test]
fn a_flipped_bit_is_found() {
    check_damage("data/weights.bin has other content", |path| {
        spoil(&path.join("data/weights.bin"), |bytes| bytes[2 << 20] ^= 1);
    });
}

#[test]
fn a_truncated_file_is_found() {
    check_damage("data/weights.bin has 12 bytes, 3145728 were sealed", |path| {
        spoil(&path.join("data/weights.bin"), |bytes| bytes.truncate(12));
    });
}

#[test]
fn a_missing_file_is_found() {
    check_damage("model.onnx is missing", |path| {
        fs::remove_file(path.join("model.onnx")).unwrap();
    });
}

#[test]
fn a_file_replaced_by_a_link_is_found() {
    check_damage("model.onnx is now a symbolic link", |path| {
        fs::rename(path.join("model.onnx"), path.join("model")).unwrap();
        symlink("model", path.join("model.onnx")).unwrap();
    });
}

#[test]
fn a_lost_executable_bit_is_found() {
    check_damage("run.sh has another executable bit", |path| {
        fs::set_permissions(path.join("run.sh"), Permissions::from_mode(0o444)).unwrap();
    });
}

#[test]
fn damage_is_found_when_equal_content_is_sealed() {
    let world = World::new();
    let output = world.seal("a");
    spoil(&output.path().join("model.onnx"), |bytes| bytes[0] ^= 1);
    world.seal("b");
    assert!(world.dir.path().join("quarantine").join(output.digest.to_string()).is_dir());
    assert!(world.store.lookup(&key("a")).unwrap().hit().is_some(), "b's tree serves a too");
}

#[test]
fn what_a_tool_leaves_beside_an_output_is_moved_away() {
    let world = World::new();
    let output = world.seal("a");
    fs::create_dir(output.path().join("__pycache__")).unwrap();
    fs::write(output.path().join("__pycache__/x.pyc"), "x").unwrap();
    symlink("/etc", output.path().join("link")).unwrap();
    assert_eq!(world.store.lookup(&key("a")).unwrap().hit(), Some(output.clone()));
    assert!(!output.path().join("__pycache__/x.pyc").exists());
    assert!(!output.path().join("link").exists());
    assert_eq!(fs::read_dir(world.dir.path().join("quarantine")).unwrap().count(), 2);
}

#[test]
fn a_tree_that_is_gone_is_a_miss() {
    let world = World::new();
    fs::remove_dir_all(world.seal("a").path()).unwrap();
    assert_eq!(world.store.lookup(&key("a")).unwrap(), Lookup::Miss);
}

#[test]
fn links_are_refused() {
    let refused = World::new().refused(|work| symlink("model.onnx", work.join("link")).unwrap());
    assert!(matches!(refused, SealError::NotAFile { what: "a symbolic link", .. }), "{refused}");
    let refused = World::new().refused(|work| symlink("data", work.join("link")).unwrap());
    assert!(matches!(refused, SealError::NotAFile { what: "a symbolic link", .. }), "{refused}");
    assert!(refused.to_string().contains("copy what links lead to (cp -rL)"), "{refused}");
}

#[test]
fn hard_links_are_refused() {
    let refused = World::new()
        .refused(|work| fs::hard_link(work.join("model.onnx"), work.join("same")).unwrap());
    assert!(matches!(refused, SealError::HardLink { links: 2, .. }), "{refused}");
}

#[test]
fn pipes_are_refused() {
    let mode = nix::sys::stat::Mode::from_bits_truncate(0o644);
    let refused =
        World::new().refused(|work| nix::unistd::mkfifo(&work.join("pipe"), mode).unwrap());
    assert!(matches!(refused, SealError::NotAFile { .. }), "{refused}");
}

#[test]
fn names_that_are_no_text_are_refused() {
    let refused = World::new().refused(|work| {
        fs::write(work.join(std::ffi::OsStr::from_bytes(b"\xff")), "x").unwrap();
    });
    assert!(matches!(refused, SealError::NotUtf8 { .. }), "{refused}");
}

#[test]
fn nothing_is_refused() {
    let refused = World::new().refused(|work| {
        fs::remove_dir_all(work).unwrap();
        fs::create_dir_all(work.join("empty/inner")).unwrap();
    });
    assert!(matches!(refused, SealError::Empty { .. }), "{refused}");
}

#[test]
fn more_than_a_record_holds_is_refused() {
    let refused = World::new().refused(|work| {
        for n in 0..crate::manifest::FILES_MAX {
            fs::write(work.join(n.to_string()), "").unwrap();
        }
    });
    assert!(matches!(refused, SealError::Walk(_)), "{refused}");
}

#[test]
fn a_refused_seal_leaves_the_files_as_they_were() {
    let world = World::new();
    let work = world.work("a");
    symlink("model.onnx", work.join("link")).unwrap();
    world.store.seal(&key("a"), &work, json!(null)).unwrap_err();
    assert_eq!(mode(&work.join("model.onnx")) & 0o200, 0o200);
    fs::remove_file(work.join("link")).unwrap();
    world.store.seal(&key("a"), &work, json!(null)).unwrap();
}

#[test]
fn a_record_over_the_limit_is_refused_before_anything_is_touched() {
    let world = World::new();
    let work = world.work("a");
    let seal = |letters| world.store.seal(&key("a"), &work, json!("x".repeat(letters)));
    let SealError::Store(StoreError::Log(LogError::RecordTooLarge { bytes, .. })) =
        seal(RECORD_BYTES_MAX).unwrap_err()
    else {
        panic!("refused for something else")
    };
    let largest = 2 * RECORD_BYTES_MAX - bytes;
    seal(largest + 1).unwrap_err();
    assert_eq!(mode(&work.join("model.onnx")) & 0o200, 0o200);
    assert_eq!(world.store.bytes_hashed(), 0);
    assert_eq!(fs::read_dir(world.dir.path().join("out")).unwrap().count(), 0);
    seal(largest).unwrap();
}

#[test]
fn what_was_fetched_is_sealed_if_it_is_what_was_wanted() {
    let world = World::new();
    let work = world.work("a");
    let tree = world.store.digest_tree(&work).unwrap().digest();
    let seal = |tree: Digest| world.store.seal_fetched(&key("a"), &work, (json!(null), &[]), &tree);
    assert!(matches!(seal(key("other")), Err(SealError::Other { .. })));
    assert_eq!(world.store.lookup(&key("a")).unwrap(), Lookup::Miss);
    assert_eq!(fs::read_dir(world.dir.path().join("out")).unwrap().count(), 0);
    assert_eq!(seal(tree).unwrap().digest, tree);
}

#[test]
fn the_largest_record_is_read_from_its_copy() {
    let world = World::new();
    let files = Manifest::new(Vec::new()).unwrap();
    let entry = |letters: usize| Entry::Seal {
        key: key("a"),
        tree: files.digest(),
        files: files.clone(),
        record: json!("x".repeat(letters)),
        refers: Vec::new(),
    };
    let largest = entry(RECORD_BYTES_MAX - entry(0).to_text().len());
    assert_eq!(largest.to_text().len(), RECORD_BYTES_MAX);
    world.store.lay_seal(&key("a"), &largest);
    assert!(world.store.read_seal(&key("a")).unwrap() == Some(largest));
}

#[test]
fn two_stores_may_seal_one_key_at_once() {
    let world = World::new();
    for round in 0..10 {
        let name = format!("round-{round}");
        let outputs = std::thread::scope(|scope| {
            let sealing = [0, 1, 2].map(|_| {
                let (name, root) = (&name, world.dir.path());
                scope.spawn(move || {
                    let store = Store::open(root, Wait::No).unwrap();
                    let run = store.begin_run(SystemTime::now()).unwrap();
                    let work = run.work_dir("stage").unwrap();
                    fs::write(work.join("file"), name).unwrap();
                    store.seal(&key(name), &work, json!(null)).unwrap()
                })
            });
            sealing.map(|thread| thread.join().unwrap())
        });
        assert!(outputs.iter().all(|output| *output == outputs[0]));
        assert_eq!(world.store.lookup(&key(&name)).unwrap().hit().as_ref(), Some(&outputs[0]));
    }
}

#[test]
fn a_torn_end_of_the_action_log_costs_nothing() {
    for tail in [&b"7 01234567"[..], &[0; 5000], b"\n\n\n", b"2 0123456789abcdef {}\n"] {
        let world = World::new();
        let output = world.seal("a");
        let log = world.dir.path().join("ac.log");
        let whole = fs::read(&log).unwrap();
        fs::write(&log, [&whole, tail].concat()).unwrap();
        let other = Store::open(world.dir.path(), Wait::No).unwrap();
        assert_eq!(other.lookup(&key("a")).unwrap().hit().as_ref(), Some(&output));
        other.alias(&key("recipe"), &key("a")).unwrap();
        assert_eq!(world.store.resolve(&key("recipe")).unwrap(), Some(key("a")));
        let now = fs::read(&log).unwrap();
        assert!(now.starts_with(&whole) && now.ends_with(b"\n"));
        assert_eq!(now.iter().filter(|&&byte| byte == b'\n').count(), 2);
    }
}

#[test]
fn a_working_directory_is_fresh() {
    let world = World::new();
    let work = world.work("a");
    fs::set_permissions(work.join("data"), Permissions::from_mode(0o000)).unwrap();
    assert_eq!(world.run.work_dir("a").unwrap(), work);
    assert_eq!(fs::read_dir(&work).unwrap().count(), 0);
    assert!(world.run.work_dir("../a").is_err());
    let log = world.run.log_path("a.1.log").unwrap();
    fs::write(&log, "text").unwrap();
    assert!(log.starts_with(world.dir.path().join("logs")));
}

#[test]
fn a_journal_is_read_back_in_order() {
    let world = World::new();
    for n in 0..5 {
        world.run.journal().append(&json!({"n": n, "text": "one\ntwo"})).unwrap();
    }
    let mut found = Vec::new();
    world.store.read_journal(world.run.id(), |record| found.push(record)).unwrap();
    let n: Vec<i64> = found.iter().map(|record| record["n"].as_i64().unwrap()).collect();
    assert_eq!(n, [0, 1, 2, 3, 4]);
    assert_eq!(world.store.journals().unwrap(), [world.run.id().clone()]);
}

#[test]
fn a_journal_that_is_no_file_is_damaged_and_holds_nothing() {
    let world = World::new();
    world.run.journal().append(&json!({"n": 1})).unwrap();
    let id = world.run.id();
    let path = world.dir.path().join(format!("journal/{id}.log"));
    let read = || world.store.read_journal(id, |record| panic!("{record}")).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(read(), Whole::Yes, "there is none");
    fs::create_dir(&path).unwrap();
    assert_eq!(read(), Whole::No);
    fs::remove_dir(&path).unwrap();
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(read(), Whole::No);
}

#[test]
fn a_store_is_removed_by_plain_means() {
    let world = World::new();
    let output = world.seal("a");
    assert!(matches!(output.location, Location::Sealed(_)));
    // `rm -r` needs every directory to be writable for its owner.
    assert_eq!(mode(output.path()) & 0o700, 0o700);
    assert_eq!(mode(&output.path().join("data")) & 0o700, 0o700);
}

#[test]
fn a_link_in_the_place_of_the_work_dir_is_refused_and_not_followed() {
    let world = World::new();
    let victim = world.dir.path().join("victim");
    fs::create_dir(&victim).unwrap();
    fs::write(victim.join("f"), "not ours").unwrap();
    fs::set_permissions(victim.join("f"), Permissions::from_mode(0o600)).unwrap();
    let error = world.refused(|work| {
        fs::remove_dir_all(work).unwrap();
        symlink(&victim, work).unwrap();
    });
    assert!(error.to_string().contains("symbolic link"), "{error}");
    let mode = fs::metadata(victim.join("f")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "the foreign file keeps its mode");
}

#[test]
fn hashing_ends_when_it_is_told_to() {
    let world = World::new();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let work = world.work("stopped");
    world.store.stop_on(stop.clone());
    let error = world.store.seal(&key("stopped"), &work, json!({})).unwrap_err();
    assert!(error.is_stopped(), "{error}");
    assert!(world.store.digest_tree(&work).unwrap_err().is_stopped());
    stop.store(false, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(world.store.lookup(&key("stopped")).unwrap(), Lookup::Miss);
    world.seal("afterwards");
}
