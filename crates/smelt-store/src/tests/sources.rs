//! Digests files outside of the store, each as seldom as possible, on the real disk.

use std::fs::{self, File, FileTimes};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::json;

use super::script::key;
use crate::digester::{AndSync, DigestError};
use crate::disk::{Disk, RealDisk};
use crate::output::{Location, Lookup};
use crate::store::Store;

const SIZE: u64 = 5 << 20;

/// A model of two files beside a store; every file looks an hour old.
struct World {
    dir: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("model/tokens")).unwrap();
        let world = Self { dir };
        fs::write(world.weights(), vec![7; SIZE as usize - 2]).unwrap();
        fs::write(world.model().join("tokens/list"), "{}").unwrap();
        world
    }

    fn model(&self) -> PathBuf {
        self.dir.path().join("model")
    }

    fn weights(&self) -> PathBuf {
        self.model().join("model.safetensors")
    }

    /// A store as a new process would open it.
    fn store(&self) -> Store {
        let disk = Arc::new(RealDisk::an_hour_later());
        Store::open_on(disk, &self.dir.path().join("cache")).unwrap()
    }

    /// What a new process hashes to digest the model.
    fn hashed(&self) -> u64 {
        let store = self.store();
        store.digest_tree(&self.model()).unwrap();
        store.bytes_hashed()
    }
}

#[test]
fn an_untouched_file_is_hashed_once() {
    let world = World::new();
    assert_eq!(world.hashed(), SIZE);
    assert_eq!(world.hashed(), 0);
}

#[test]
fn a_fresh_file_is_not_trusted_to_stay() {
    let world = World::new();
    let store = Store::open(&world.dir.path().join("cache"), crate::disk::Wait::No).unwrap();
    let first = store.digest_tree(&world.model()).unwrap();
    assert_eq!(store.digest_tree(&world.model()).unwrap(), first);
    assert_eq!(store.bytes_hashed(), 2 * SIZE, "its clock may not have ticked since");
}

#[test]
fn a_touched_file_is_hashed_once_more_and_is_the_same() {
    let world = World::new();
    let before = world.store().digest_tree(&world.model()).unwrap();
    let times = FileTimes::new().set_modified(SystemTime::UNIX_EPOCH);
    File::options().write(true).open(world.weights()).unwrap().set_times(times).unwrap();
    assert_eq!(world.hashed(), SIZE - 2);
    assert_eq!(world.hashed(), 0);
    assert_eq!(world.store().digest_tree(&world.model()).unwrap(), before);
}

#[test]
fn other_content_with_the_same_size_and_time_is_found() {
    let world = World::new();
    let before = world.store().digest_tree(&world.model()).unwrap();
    let modified = fs::metadata(world.weights()).unwrap().modified().unwrap();
    fs::write(world.weights(), vec![8; SIZE as usize - 2]).unwrap();
    let times = FileTimes::new().set_modified(modified);
    File::options().write(true).open(world.weights()).unwrap().set_times(times).unwrap();
    assert_eq!(fs::metadata(world.weights()).unwrap().modified().unwrap(), modified);
    let after = world.store().digest_tree(&world.model()).unwrap();
    assert_ne!(after.digest(), before.digest());
}

#[test]
fn a_file_that_changes_while_it_is_read_is_refused() {
    let world = World::new();
    let before = RealDisk::new().lstat(&world.weights()).unwrap();
    fs::write(world.weights(), "shorter").unwrap();
    let refused = world.store().digester().hash(&world.weights(), &before, AndSync::No);
    assert!(matches!(refused, Err(DigestError::Changed { .. })), "{refused:?}");
}

#[test]
fn links_to_files_are_followed() {
    let world = World::new();
    let plain = world.store().digest_tree(&world.model()).unwrap();
    fs::rename(world.weights(), world.dir.path().join("blob")).unwrap();
    symlink("../blob", world.weights()).unwrap();
    let linked = world.store().digest_tree(&world.model()).unwrap();
    assert_eq!(linked, plain);
}

#[test]
fn links_to_directories_are_refused() {
    let world = World::new();
    symlink("..", world.model().join("up")).unwrap();
    let refused = world.store().digest_tree(&world.model()).unwrap_err();
    assert!(matches!(refused, DigestError::NotAFile { .. }), "{refused}");
}

#[test]
fn one_file_is_a_tree_of_one() {
    let world = World::new();
    let manifest = world.store().digest_tree(&world.weights()).unwrap();
    assert_eq!(manifest.files().len(), 1);
    assert_eq!(manifest.files()[0].path, "model.safetensors");
}

#[test]
fn a_missing_source_is_one_line() {
    let world = World::new();
    let refused = world.store().digest_tree(&world.dir.path().join("none")).unwrap_err();
    assert!(refused.to_string().starts_with("cannot look at"), "{refused}");
}

#[test]
fn a_reference_is_a_hit_until_the_source_changes() {
    let world = World::new();
    let store = world.store();
    let manifest = store.digest_tree(&world.model()).unwrap();
    let recorded = store
        .record_reference(&key("model"), &world.model(), manifest.clone(), json!({"n": 1}))
        .unwrap();
    assert_eq!(recorded.location, Location::External(world.model()));
    assert_eq!(recorded.digest, manifest.digest());
    let size = fs::metadata(world.dir.path().join("cache/ac.log")).unwrap().len();
    store.record_reference(&key("model"), &world.model(), manifest, json!({"n": 1})).unwrap();
    assert_eq!(fs::metadata(world.dir.path().join("cache/ac.log")).unwrap().len(), size);
    drop(store);
    let other = world.store();
    assert_eq!(other.lookup(&key("model")).unwrap().hit(), Some(recorded));
    assert_eq!(other.bytes_hashed(), 0);
    fs::write(world.model().join("tokens/list"), "[]").unwrap();
    let changed = |words: &str| {
        let Lookup::Changed(what) = other.lookup(&key("model")).unwrap() else { panic!("{words}") };
        assert!(what.contains(words), "{what}");
    };
    changed("tokens/list has other content");
    assert!(world.model().join("tokens/list").exists(), "a source is never moved");
    fs::remove_dir_all(world.model()).unwrap();
    changed("cannot look at");
}

#[test]
fn a_cache_that_is_rubbish_is_ignored() {
    let world = World::new();
    let before = world.store().digest_tree(&world.model()).unwrap();
    let path = world.dir.path().join("cache/stat");
    for rubbish in [&b""[..], &[0; 100], b"x\n", b"0123456789abcdef {}\n", &[0xff; 100_000]] {
        fs::write(&path, rubbish).unwrap();
        let store = world.store();
        assert_eq!(store.digest_tree(&world.model()).unwrap(), before);
        assert_eq!(store.bytes_hashed(), SIZE);
    }
}
