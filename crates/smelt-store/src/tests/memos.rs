//! Recalls answers as long as nothing they are based on has changed, on the real disk.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::json;

use super::script::key;
use crate::digest::Digest;
use crate::disk::RealDisk;
use crate::memo::Basis;
use crate::output::Output;
use crate::store::Store;

/// A sealed output and a folder outside of the store; every file looks an hour old.
struct World {
    dir: tempfile::TempDir,
    output: Output,
}

const NAME: Digest = Digest::from_bytes([1; 32]);

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = store(&dir);
        fs::create_dir_all(dir.path().join("input/inner")).unwrap();
        fs::write(dir.path().join("input/inner/file"), "one").unwrap();
        let work = dir.path().join("cache/work/run/a.1");
        fs::create_dir_all(&work).unwrap();
        fs::write(work.join("o"), "output").unwrap();
        let output = store.seal(&key("a"), &work, json!(null)).unwrap();
        let world = Self { dir, output };
        assert!(world.keep(&store));
        world
    }

    fn input(&self) -> PathBuf {
        self.dir.path().join("input")
    }

    fn keep(&self, store: &Store) -> bool {
        let before = store.before().unwrap();
        let (input, output) = (self.input(), &self.output);
        let files = store.digest_tree(&input).unwrap();
        let basis =
            [Basis::Sealed(&output.digest, &output.manifest), Basis::Outside(&input, &files)];
        store.keep_answer(&NAME, &before, &basis, b"nothing to do").unwrap()
    }

    /// What a new process recalls.
    fn recalls(&self) -> bool {
        let answer = store(&self.dir).recall(&NAME);
        assert!(answer.as_ref().is_none_or(|answer| answer == b"nothing to do"));
        answer.is_some()
    }
}

fn store(dir: &tempfile::TempDir) -> Store {
    Store::open_on(Arc::new(RealDisk::an_hour_later()), &dir.path().join("cache")).unwrap()
}

/// After `change` the answer must not be recalled.
#[track_caller]
fn check(change: impl FnOnce(&World)) {
    let world = World::new();
    assert!(world.recalls() && world.recalls(), "it must hold until something changes");
    change(&world);
    assert!(!world.recalls());
}

#[test]
fn other_content_is_noticed_whatever_its_size_and_time() {
    check(|world| {
        let path = world.input().join("inner/file");
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        fs::write(&path, "two").unwrap();
        let times = fs::FileTimes::new().set_modified(modified);
        fs::File::options().write(true).open(&path).unwrap().set_times(times).unwrap();
    });
}

#[test]
fn a_new_name_is_noticed() {
    check(|world| fs::write(world.input().join("inner/more"), "").unwrap());
    check(|world| fs::create_dir(world.input().join("dir")).unwrap());
}

#[test]
fn a_missing_file_is_noticed() {
    check(|world| fs::remove_file(world.input().join("inner/file")).unwrap());
    check(|world| fs::remove_dir_all(world.input()).unwrap());
    check(|world| fs::remove_dir_all(world.output.path()).unwrap());
}

#[test]
fn a_new_record_is_noticed() {
    check(|world| store(&world.dir).alias(&key("recipe"), &key("b")).unwrap());
}

#[test]
fn damage_is_no_answer() {
    check(|world| {
        let path = world.dir.path().join("cache/memo").join(NAME.to_string());
        let mut bytes = fs::read(&path).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        fs::write(&path, bytes).unwrap();
    });
}

#[test]
fn a_fresh_file_is_no_basis() {
    let world = World::new();
    let now = Store::open(&world.dir.path().join("cache"), crate::disk::Wait::No).unwrap();
    fs::write(world.input().join("inner/file"), "new").unwrap();
    assert!(!world.keep(&now), "its clock may not have ticked since");
}

#[test]
fn notes_are_whole_or_not_there_and_are_bounded() {
    let world = World::new();
    let store = store(&world.dir);
    let names: Vec<Digest> = (0..40).map(|n| Digest::of(&[n])).collect();
    for name in &names {
        assert!(store.keep_note(name, name.as_bytes()).unwrap());
    }
    assert_eq!(store.note(&names[39]).as_deref(), Some(&names[39].as_bytes()[..]));
    assert_eq!(store.note(&NAME), None);
    assert_eq!(fs::read_dir(world.dir.path().join("cache/notes")).unwrap().count(), 32);
}
