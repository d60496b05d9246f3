//! Damages logs and small files in every way a disk can, and reads them.
//!
//! Whatever the damage: no panic, no record that was not written, and the next append works.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use smelt_random::Random;

use super::script::{Promises, ROOT, disk_with_model, key, open, play};
use crate::disk::sim::{Failure, Left, SimDisk, Trouble};
use crate::disk::turns::TurnScheduler;
use crate::disk::{Disk, FileKind};
use crate::log::{Log, LogError, RECORD_BYTES_MAX, is_damaged};
use crate::output::Lookup;

const LOG: &str = "/log";

fn open_log(disk: &SimDisk) -> Log {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    Log::open(disk, PathBuf::from(LOG), PathBuf::from("/aside"), 1 << 30).unwrap()
}

fn read(log: &mut Log) -> Vec<String> {
    let mut found = Vec::new();
    log.read_new(&mut |_, text| found.push(text.to_owned())).unwrap();
    found
}

fn append(log: &mut Log, text: &str) -> Vec<String> {
    let mut others = Vec::new();
    log.append(text, &mut |_, text| others.push(text.to_owned())).unwrap();
    others
}

/// A log with these records, as bytes.
fn written(records: &[String]) -> Vec<u8> {
    let disk = SimDisk::new();
    let mut log = open_log(&disk);
    for record in records {
        append(&mut log, record);
    }
    disk.get(Path::new(LOG)).unwrap()
}

fn some_records(chance: &mut Random) -> Vec<String> {
    let count = chance.below(12);
    (0..count)
        .map(|n| format!("{{\"n\":{n},\"x\":\"{}\"}}", "y".repeat(chance.below(90))))
        .collect()
}

/// Changes bytes as bad disks, crashes and people do.
pub(super) fn mutate(bytes: &mut Vec<u8>, chance: &mut Random) {
    let start = chance.below(bytes.len().max(1));
    let end = start + chance.below((bytes.len() - start).max(1));
    match chance.below(9) {
        0 if !bytes.is_empty() => bytes[start] ^= 1 << chance.below(8),
        1 => bytes.truncate(start),
        2 => bytes[start..end].fill(0),
        3 => drop(bytes.drain(start..end)),
        4 => bytes.extend(vec![0; chance.below(200)]),
        5 => bytes.extend((0..chance.below(200)).map(|_| chance.next_u64() as u8)),
        6 => {
            let copied = bytes[start..end].to_vec();
            let at = chance.below(bytes.len().max(1));
            bytes.splice(at..at, copied);
        }
        7 => swap_lines(bytes, chance),
        _ => bytes[start..end].reverse(),
    }
}

fn swap_lines(bytes: &mut Vec<u8>, chance: &mut Random) {
    let mut lines: Vec<&[u8]> = bytes.split_inclusive(|&byte| byte == b'\n').collect();
    let mut any = || chance.below(lines.len().max(1));
    let (a, b) = (any(), any());
    if a < lines.len() && b < lines.len() {
        lines.swap(a, b);
    }
    *bytes = lines.concat();
}

#[test]
fn a_damaged_log_yields_only_what_was_written() {
    let mut chance = Random::new(7);
    let mut shorter = 0;
    for round in 0..4000 {
        let records = some_records(&mut chance);
        let mut bytes = written(&records);
        for _ in 0..=chance.below(3) {
            mutate(&mut bytes, &mut chance);
        }
        let disk = SimDisk::new();
        disk.put(Path::new(LOG), &bytes);
        let mut log = open_log(&disk);
        let found = read(&mut log);
        let mut left = records.iter();
        let is_of_them = found.iter().all(|one| left.any(|record| record == one));
        assert!(is_of_them, "round {round}: {found:?} of {records:?}");
        shorter += usize::from(found.len() < records.len());
        append(&mut log, "\"after\"");
        let again = read(&mut open_log(&disk));
        assert_eq!(again, [&found[..], &["\"after\"".to_owned()]].concat(), "round {round}");
    }
    println!("4000 damaged logs, {shorter} of them lost records");
    assert!(shorter > 1000);
}

#[test]
fn a_damaged_action_log_never_leads_to_wrong_content() {
    let clean = disk_with_model();
    play(&clean, &mut Promises::default()).unwrap();
    let names = ["vision-onnx", "vision-engine", "vision-onnx-again", "model"];
    let store = open(&clean).unwrap();
    let right = names.map(|name| store.lookup(&key(name)).unwrap().hit().unwrap());
    drop(store);
    let mut chance = Random::new(8);
    let (mut hits, mut misses) = (0, 0);
    for round in 0..400 {
        let disk = clean.copy();
        for name in ["ac.log", "stat"] {
            let path = Path::new(ROOT).join(name);
            let mut bytes = disk.get(&path).unwrap();
            mutate(&mut bytes, &mut chance);
            disk.put(&path, &bytes);
        }
        let store = open(&disk).unwrap();
        for (name, right) in names.iter().zip(&right) {
            match store.lookup(&key(name)).unwrap() {
                Lookup::Hit(output) => {
                    assert_eq!(*output, *right, "round {round}");
                    hits += 1;
                }
                Lookup::Miss => misses += 1,
                other => panic!("round {round}: {other:?}"),
            }
        }
    }
    println!("400 damaged stores: {hits} hits, {misses} misses");
    assert!(hits > 100 && misses > 100, "{hits} {misses}");
}

#[test]
fn a_record_that_contradicts_itself_is_a_miss() {
    let disk = disk_with_model();
    play(&disk, &mut Promises::default()).unwrap();
    let path = Path::new(ROOT).join("ac.log");
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let mut log = Log::open(shared, path, "/aside".into(), 1 << 30).unwrap();
    let mut seals = Vec::new();
    log.read_new(&mut |_, text| seals.extend(text.contains("seal\"").then(|| text.to_owned())))
        .unwrap();
    let tree = |text: &str| {
        let record: serde_json::Value = serde_json::from_str(text).unwrap();
        record["seal"]["tree"].as_str().unwrap().to_owned()
    };
    // The first stage's record with the second one's tree.
    append(&mut log, &seals[0].replace(&tree(&seals[0]), &tree(&seals[1])));
    let store = open(&disk).unwrap();
    assert_eq!(store.lookup(&key("vision-onnx")).unwrap(), Lookup::Miss);
    assert!(store.lookup(&key("vision-engine")).unwrap().hit().is_some());
}

#[test]
fn a_record_is_limited() {
    let disk = SimDisk::new();
    let mut log = open_log(&disk);
    let largest = "x".repeat(RECORD_BYTES_MAX);
    append(&mut log, &largest);
    let refused = log.append(&format!("{largest}x"), &mut |_, _| {});
    assert!(
        matches!(refused, Err(LogError::RecordTooLarge { bytes, .. }) if bytes == 1 + RECORD_BYTES_MAX)
    );
    append(&mut log, "\"next\"");
    assert_eq!(read(&mut open_log(&disk)), [largest, "\"next\"".to_owned()]);
    assert!(!is_damaged(&disk, Path::new(LOG)).unwrap());
}

#[test]
fn a_log_is_limited() {
    let disk = SimDisk::new();
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let mut log = Log::open(shared, LOG.into(), "/aside".into(), 100).unwrap();
    append(&mut log, &"x".repeat(50));
    let refused = log.append(&"x".repeat(50), &mut |_, _| {});
    assert!(matches!(refused, Err(LogError::Full { bytes_max: 100, .. })));
    append(&mut log, "x");
    // A record takes 20 bytes besides its text: two of these fill the log to its last byte.
    let disk = SimDisk::new();
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let mut log = Log::open(shared, LOG.into(), "/aside".into(), 100).unwrap();
    append(&mut log, &"x".repeat(50));
    assert!(log.append(&"x".repeat(11), &mut |_, _| {}).is_err());
    append(&mut log, &"x".repeat(10));
    assert_eq!((log.bytes(), log.records()), (100, 2));
}

#[test]
fn a_line_without_an_end_is_not_read_for_ever() {
    let disk = SimDisk::new();
    disk.put(Path::new(LOG), &vec![b'7'; 3 << 20]);
    assert!(read(&mut open_log(&disk)).is_empty());
}

#[test]
fn a_line_longer_than_any_record_is_damage() {
    // Besides its text a record takes up to 39 bytes; one that lacks its end may just be written.
    let disk = SimDisk::new();
    for (bytes, is_damage) in [(RECORD_BYTES_MAX + 39, false), (RECORD_BYTES_MAX + 40, true)] {
        disk.put(Path::new(LOG), &vec![b'7'; bytes]);
        assert_eq!(is_damaged(&disk, Path::new(LOG)).unwrap(), is_damage, "{bytes}");
    }
}

/// The end of the line before is lost too.
#[test]
fn a_record_behind_one_that_reads_as_zeros_is_read() {
    let mut bytes = written(&["1", "2", "3"].map(str::to_owned));
    let line_bytes = bytes.len() / 3;
    bytes[line_bytes..2 * line_bytes].fill(0);
    let disk = SimDisk::new();
    disk.put(Path::new(LOG), &bytes);
    let mut log = open_log(&disk);
    let mut found = Vec::new();
    log.read_new(&mut |place, text| found.push((place, text.to_owned()))).unwrap();
    assert_eq!(found.iter().map(|(_, text)| &**text).collect::<Vec<_>>(), ["1", "3"]);
    for (place, text) in found {
        assert_eq!(log.read_again(place).unwrap(), Some(text));
    }
}

#[test]
fn a_record_that_comes_in_two_reads_is_read_again_whole() {
    let disk = SimDisk::new();
    let mut log = open_log(&disk);
    append(&mut log, "\"the first\"");
    let place = log.append("\"the second\"", &mut |_, _| {}).unwrap();
    disk.plan(Trouble::FailAt(1, Failure::ShortRead));
    assert_eq!(log.read_again(place).unwrap().as_deref(), Some("\"the second\""));
    assert_eq!((disk.met(), disk.operations()), ("read /log".to_owned(), 2));
}

#[test]
fn records_of_others_are_seen() {
    let disk = SimDisk::new();
    let (mut ours, mut theirs) = (open_log(&disk), open_log(&disk));
    append(&mut theirs, "1");
    assert_eq!(read(&mut ours), ["1"]);
    append(&mut theirs, "2");
    assert_eq!(append(&mut ours, "3"), ["2"]);
    assert_eq!(read(&mut theirs), ["3"]);
}

#[test]
fn a_torn_record_is_ignored_then_cut() {
    let disk = SimDisk::new();
    let (mut ours, mut theirs) = (open_log(&disk), open_log(&disk));
    append(&mut ours, "1");
    let whole = disk.get(Path::new(LOG)).unwrap();
    disk.put(Path::new(LOG), &[&whole[..], b"2 0123"].concat());
    assert!(!read(&mut ours).contains(&"2".to_owned()));
    assert_eq!(append(&mut theirs, "2"), ["1"]);
    assert_eq!(read(&mut ours), ["2"]);
    assert_eq!(read(&mut open_log(&disk)), ["1", "2"]);
}

#[test]
fn a_log_that_shrank_under_us_is_read_again() {
    let disk = SimDisk::new();
    let (mut ours, mut theirs) = (open_log(&disk), open_log(&disk));
    for record in ["1", "\"the second\""] {
        append(&mut ours, record);
    }
    damage_the_end(&disk);
    assert_eq!(append(&mut theirs, "2"), ["1"]);
    assert_eq!(read(&mut ours), ["1", "2"]);
    assert_eq!(append(&mut ours, "3"), Vec::<String>::new());
    assert_eq!(read(&mut open_log(&disk)), ["1", "2", "3"]);
}

#[test]
fn an_append_to_a_log_that_shrank_leaves_no_hole() {
    let disk = SimDisk::new();
    let mut ours = open_log(&disk);
    for record in ["1", "\"the second\""] {
        append(&mut ours, record);
    }
    disk.put(Path::new(LOG), &written(&["1".to_owned()]));
    assert_eq!(append(&mut ours, "3"), ["1"]);
    assert_eq!(disk.get(Path::new(LOG)).unwrap(), written(&["1", "3"].map(str::to_owned)));
}

/// Turns the last record into none.
fn damage_the_end(disk: &SimDisk) {
    let mut bytes = disk.get(Path::new(LOG)).unwrap();
    let end = bytes.len() - 3;
    bytes[end] ^= 1;
    disk.put(Path::new(LOG), &bytes);
}

#[test]
fn a_log_that_was_cut_and_grew_past_us_is_read_again() {
    let disk = SimDisk::new();
    let (mut ours, mut theirs) = (open_log(&disk), open_log(&disk));
    append(&mut ours, "\"a\"");
    append(&mut ours, "\"b\"");
    damage_the_end(&disk);
    append(&mut theirs, "\"a long record that reaches over both of the others\"");
    append(&mut theirs, "\"c\"");
    let found = ["\"a\"", "\"a long record that reaches over both of the others\"", "\"c\""];
    // What was read across lines first, the new reading replaces.
    assert!(read(&mut ours).ends_with(&found.map(str::to_owned)));
}

/// Whoever keeps an index hears that a record is gone before the one in its place is whole.
#[test]
fn a_log_that_was_cut_and_ends_past_us_in_a_torn_record_is_read_again() {
    let disk = SimDisk::new();
    let mut ours = open_log(&disk);
    append(&mut ours, "\"a\"");
    append(&mut ours, "\"b\"");
    read(&mut ours);
    let torn = written(&["\"a\"".to_owned(), "y".repeat(90)]);
    disk.put(Path::new(LOG), &torn[..torn.len() - 1]);
    assert_eq!(read(&mut ours), ["\"a\""]);
}

#[test]
fn an_append_past_which_another_tore_a_record_is_read() {
    let disk = SimDisk::new();
    let mut ours = open_log(&disk);
    append(&mut ours, "\"a\"");
    append(&mut ours, "\"b\"");
    let torn = written(&["\"a\"".to_owned(), "y".repeat(90)]);
    disk.put(Path::new(LOG), &torn[..torn.len() - 1]);
    append(&mut ours, "\"c\"");
    assert_eq!(read(&mut open_log(&disk)), ["\"a\"", "\"c\""]);
}

#[test]
fn what_was_read_before_a_torn_end_is_not_read_again() {
    let disk = SimDisk::new();
    let (mut ours, mut theirs) = (open_log(&disk), open_log(&disk));
    append(&mut ours, "\"a\"");
    append(&mut theirs, "\"b\"");
    let whole = written(&["\"a\"", "\"b\"", "\"c\""].map(str::to_owned));
    disk.put(Path::new(LOG), &whole[..whole.len() - 1]);
    assert_eq!(read(&mut ours), ["\"b\""]);
}

#[test]
fn an_append_of_one_that_fell_behind_cuts_nothing_good() {
    let disk = SimDisk::new();
    let (mut ours, mut theirs) = (open_log(&disk), open_log(&disk));
    append(&mut ours, "\"a\"");
    append(&mut ours, "\"b\"");
    damage_the_end(&disk);
    append(&mut theirs, "\"a long record that reaches over both of the others\"");
    append(&mut ours, "\"c\"");
    let found = ["\"a\"", "\"a long record that reaches over both of the others\"", "\"c\""];
    assert_eq!(read(&mut open_log(&disk)), found);
}

/// Who reads has read across the end that another one cuts, and goes on where new records lie.
#[track_caller]
fn check_cut_while_read(damaged_for_good: &[u8]) {
    for seed in 0..200 {
        let disk = SimDisk::new();
        let a = written(&["\"a\"".to_owned()]);
        disk.put(Path::new(LOG), &[damaged_for_good, &a, b"2 no record\n"].concat());
        let turns = Arc::new(TurnScheduler::new(2, seed));
        let mut seen = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _part = turns.begin(0);
                let mut ours = open_log(&disk.for_actor(&turns, 0));
                // The other one has ended long before.
                (0..100).for_each(|_| seen.extend(read(&mut ours)));
            });
            scope.spawn(|| {
                let _part = turns.begin(1);
                let mut theirs = open_log(&disk.for_actor(&turns, 1));
                append(&mut theirs, "\"b, which is longer\"");
                append(&mut theirs, "\"c\"");
            });
        });
        for record in ["\"a\"", "\"b, which is longer\"", "\"c\""] {
            assert!(seen.iter().any(|text| text == record), "seed {seed}: {record} of {seen:?}");
        }
    }
}

#[test]
fn a_log_that_is_cut_and_grows_while_it_is_read_is_read_again() {
    check_cut_while_read(b"");
}

/// Both readings pass over something and come to the same end: how many records they saw differs.
#[test]
fn a_damaged_log_that_is_cut_and_grows_while_it_is_read_is_read_again() {
    check_cut_while_read(b"no record either\n");
}

#[test]
fn a_line_is_the_documented_one() {
    // python3: sha256(pack("<Q", 1) + b'{"n":1}').hexdigest()[:16]
    let records = ["{\"n\":1}".to_owned(), "\"two\"".to_owned()];
    let expect = "1 0aa04e635a40cd01 {\"n\":1}\n2 91fa9540f6839d23 \"two\"\n";
    assert_eq!(String::from_utf8(written(&records)).unwrap(), expect);
}

#[test]
fn a_cut_of_whole_records_is_kept_for_a_look() {
    let disk = SimDisk::new();
    disk.mkdir(Path::new("/aside")).unwrap();
    disk.put(Path::new(LOG), &written(&["1".to_owned(), "2".to_owned()]));
    damage_the_end(&disk);
    append(&mut open_log(&disk), "\"two\"");
    let kept = disk.list(Path::new("/aside")).unwrap();
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert_eq!(disk.lstat(&Path::new("/aside").join(&kept[0])).unwrap().kind, FileKind::File);
}

#[test]
fn a_compaction_keeps_what_it_drops_of_a_bad_end_for_a_look() {
    let disk = SimDisk::new();
    disk.mkdir(Path::new("/aside")).unwrap();
    disk.put(Path::new(LOG), &written(&["1".to_owned(), "2".to_owned()]));
    damage_the_end(&disk);
    compact(&mut open_log(&disk), &[]);
    assert_eq!(read(&mut open_log(&disk)), ["1"]);
    let kept = disk.list(Path::new("/aside")).unwrap();
    assert_eq!(kept.len(), 1, "{kept:?}");
}

/// Keeps every record and adds some.
fn compact(log: &mut Log, added: &[String]) {
    log.compact(|_, _| true, added, &mut |_, _| {}).unwrap();
}

#[test]
fn a_compacted_log_of_more_than_one_write_is_whole() {
    let disk = SimDisk::new();
    let added: Vec<String> = (0..9).map(|n| n.to_string().repeat(1 << 20)).collect();
    compact(&mut open_log(&disk), &added);
    assert!(read(&mut open_log(&disk)) == added);
}

#[test]
fn a_compaction_writes_many_records_at_a_time() {
    let disk = SimDisk::new();
    let mut log = open_log(&disk);
    (0..100).for_each(|n| drop(append(&mut log, &n.to_string())));
    disk.plan(Trouble::Nothing);
    compact(&mut log, &[]);
    assert!(disk.operations() < 50, "{}", disk.operations());
    assert_eq!(read(&mut open_log(&disk)).len(), 100);
}

#[test]
fn who_only_reads_follows_a_compaction_and_changes_nothing() {
    let disk = SimDisk::new();
    let mut theirs = open_log(&disk);
    append(&mut theirs, "1");
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let mut ours = Log::open_to_read(shared, LOG.into()).unwrap().unwrap();
    assert_eq!(read(&mut ours), ["1"]);
    compact(&mut theirs, &["2".to_owned()]);
    disk.plan(Trouble::Nothing);
    assert_eq!(read(&mut ours), ["1", "2"]);
    assert_eq!(disk.changes(), 0);
}

#[test]
fn after_a_failed_sync_a_log_takes_nothing_more() {
    let disk = SimDisk::new();
    let mut log = open_log(&disk);
    append(&mut log, "1");
    disk.plan(Trouble::Nothing);
    append(&mut log, "2");
    let sync = disk.operations();
    disk.plan(Trouble::FailAt(sync, Failure::Eio));
    let refused = log.append("3", &mut |_, _| {});
    assert_eq!(disk.met(), "sync /log");
    assert!(matches!(refused, Err(LogError::Disk(_))), "{refused:?}");
    assert!(matches!(log.append("4", &mut |_, _| {}), Err(LogError::Broken { .. })));
    assert_eq!(read(&mut open_log(&disk)), ["1", "2", "3"], "others may have read the third");
    assert_eq!(read(&mut open_log(&disk.after_crash(Left::Nothing))), ["1", "2"]);
}
