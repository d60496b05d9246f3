//! Takes locks on the real disk: between two stores of one process, and between processes.
//!
//! The other process is this test binary, told by an environment variable to hold things.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::SystemTime;

use super::script::key;
use crate::disk::{LockKind, Wait};
use crate::run::RunId;
use crate::store::{Store, StoreError};

const HOLDER_ENV: &str = "SMELT_STORE_TEST_HOLD";

fn open(root: &Path) -> Store {
    Store::open(root, Wait::No).unwrap()
}

#[test]
fn a_key_is_built_once_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (open(dir.path()), open(dir.path()));
    let held = a.try_lock_key(&key("x")).unwrap();
    assert!(held.is_some());
    assert!(a.try_lock_key(&key("x")).unwrap().is_none(), "the same store");
    assert!(b.try_lock_key(&key("x")).unwrap().is_none(), "another store");
    let other = b.try_lock_key(&key("y")).unwrap();
    assert!(other.is_some(), "another key");
    drop(held);
    assert!(b.try_lock_key(&key("x")).unwrap().is_some());
    assert!(a.try_lock_key(&key("y")).unwrap().is_none(), "dropping one lock keeps the others");
}

#[test]
fn repair_and_runs_exclude_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let run = open(dir.path());
    let refused = Store::open_exclusive(dir.path(), Wait::No);
    assert!(matches!(refused, Err(StoreError::Held { .. })));
    drop(run);
    let repair = Store::open_exclusive(dir.path(), Wait::No).unwrap();
    assert!(matches!(Store::open(dir.path(), Wait::No), Err(StoreError::Held { .. })));
    assert!(matches!(Store::open_read_only(dir.path(), Wait::No), Err(StoreError::Held { .. })));
    let waiting = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| Store::open(dir.path(), Wait::Yes).map(drop));
        drop(repair);
        waiting.join()
    });
    assert!(waiting.unwrap().is_ok());
}

/// The names of the runs that are dead.
fn dead(store: &Store) -> Vec<RunId> {
    store.dead_runs().unwrap().map(|dead| dead.unwrap().id().clone()).collect()
}

#[test]
fn a_live_run_is_not_dead() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (open(dir.path()), open(dir.path()));
    let run = a.begin_run(SystemTime::now()).unwrap();
    run.work_dir("stage").unwrap();
    assert_eq!(dead(&b), []);
    assert!(b.dead_run(run.id()).unwrap().is_none());
    assert!(dir.path().join("work").join(run.id().as_str()).exists());
    let id = run.id().clone();
    assert!(a.is_running(&id).unwrap() && b.is_running(&id).unwrap());
    drop(run);
    assert!(!b.is_running(&id).unwrap());
    assert_eq!(dead(&b), std::slice::from_ref(&id));
    b.dead_run(&id).unwrap().unwrap().clear().unwrap();
    assert_eq!(dead(&b), []);
    assert!(!a.is_running(&id).unwrap());
    assert_eq!(dead(&b), [], "asking leaves nothing behind");
}

/// A run that begins makes its lock file before it has the lock: seen in between, it must not get the lock while somebody
/// kills all that has its name.
#[test]
fn what_is_held_as_dead_comes_to_life_for_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (open(dir.path()), open(dir.path()));
    let id: RunId = "20261121-154233-1a2b".parse().unwrap();
    let lock = dir.path().join("runs").join(format!("{id}.lock"));
    fs::write(&lock, "").unwrap();
    let held = b.dead_runs().unwrap().next().unwrap().unwrap();
    assert_eq!(held.id(), &id);
    let takes = || a.disk().lock(&lock, LockKind::Exclusive, Wait::No).unwrap();
    assert!(takes().is_none(), "what begin_run does with a file that it has just made");
    assert!(a.dead_run(&id).unwrap().is_none(), "one clears up");
    held.clear().unwrap();
    assert!(!lock.exists());
    assert!(takes().is_some());
}

#[test]
fn runs_begun_at_one_moment_differ() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (open(dir.path()), open(dir.path()));
    let now = SystemTime::now();
    let runs = [&a, &b, &a, &b].map(|store| store.begin_run(now).unwrap());
    let mut ids: Vec<&RunId> = runs.iter().map(|run| run.id()).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 4);
    for run in runs {
        run.finish().unwrap();
    }
    assert_eq!(dead(&a), []);
    assert_eq!(a.journals().unwrap().len(), 4);
}

#[test]
fn a_working_directory_without_a_lock_file_is_dead() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let left = dir.path().join("work/20261121-154233-1a2b/stage/inner");
    fs::create_dir_all(&left).unwrap();
    fs::write(left.join("half"), "x").unwrap();
    let dead: Vec<_> = store.dead_runs().unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(dead.len(), 1);
    dead.into_iter().for_each(|dead| dead.clear().unwrap());
    assert_eq!(fs::read_dir(dir.path().join("work")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(dir.path().join("runs")).unwrap().count(), 0);
}

/// Not a test by itself: what the other process does.
#[test]
fn hold_until_killed() {
    let Ok(root) = std::env::var(HOLDER_ENV) else { return };
    let store = open(Path::new(&root));
    let run = store.begin_run(SystemTime::now()).unwrap();
    let _key = store.try_lock_key(&key("held")).unwrap().unwrap();
    fs::write(run.work_dir("stage").unwrap().join("half"), "x").unwrap();
    println!("\nholding {}", run.id());
    let _ = std::io::stdin().read(&mut [0]);
}

fn holder(root: &Path) -> (Child, RunId) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "tests::locks::hold_until_killed", "--nocapture"])
        .env(HOLDER_ENV, root)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut told = lines.map_while(Result::ok);
    let id = told.find_map(|line| line.strip_prefix("holding ").map(|id| id.parse().unwrap()));
    (child, id.expect("the holder says which run it holds"))
}

#[test]
fn a_killed_process_holds_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let (mut child, id) = holder(dir.path());
    assert!(store.try_lock_key(&key("held")).unwrap().is_none());
    assert_eq!(dead(&store), []);
    assert!(matches!(Store::open_exclusive(dir.path(), Wait::No), Err(StoreError::Held { .. })));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(store.try_lock_key(&key("held")).unwrap().is_some());
    assert_eq!(dead(&store), std::slice::from_ref(&id));
    store.dead_run(&id).unwrap().unwrap().clear().unwrap();
    assert!(!dir.path().join("work").join(id.as_str()).exists());
    drop(store);
    Store::open_exclusive(dir.path(), Wait::No).unwrap();
}

#[test]
fn another_format_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("FORMAT"), "smelt-store 2\n").unwrap();
    let refused = Store::open(dir.path(), Wait::No).map(drop).unwrap_err();
    assert!(matches!(&refused, StoreError::OtherFormat { found, .. } if found == "smelt-store 2"));
    assert!(!refused.to_string().contains('\n'), "one line");
}

#[test]
fn a_directory_of_someone_else_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("holiday.jpg"), "x").unwrap();
    let refused = Store::open(dir.path(), Wait::No).map(drop);
    assert!(matches!(refused, Err(StoreError::NotAStore { found, .. }) if found == "holiday.jpg"));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing was created");
}

#[test]
fn a_directory_with_only_a_readme_becomes_a_store() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("README.md"), "x").unwrap();
    fs::write(dir.path().join(".gitignore"), "x").unwrap();
    open(dir.path());
    assert_eq!(fs::read_to_string(dir.path().join("FORMAT")).unwrap(), "smelt-store 1\n");
}

#[test]
fn a_store_open_for_reading_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let missing = Store::open_read_only(&dir.path().join("none"), Wait::No).map(drop);
    assert!(missing.is_err());
    let root = dir.path().join("cache");
    drop(open(&root));
    let store = Store::open_read_only(&root, Wait::No).unwrap();
    assert!(store.lookup(&key("x")).unwrap().hit().is_none());
    assert!(matches!(store.begin_run(SystemTime::now()), Err(StoreError::ReadOnly { .. })));
    assert!(matches!(store.alias(&key("x"), &key("y")), Err(StoreError::ReadOnly { .. })));
}
