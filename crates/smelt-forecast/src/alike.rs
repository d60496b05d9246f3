//! What stages took on this machine, and what that says of others like them.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use smelt_exec::{RunReport, StageReport, StageStatus, Took};
use smelt_plan::kind::Values;
use smelt_plan::plan::Stage;
use smelt_plan::{Digest, Kind, Plan};
use smelt_store::{Store, notes};

/// Of stages of one kind and way so many are remembered.
const ALIKE_MAX: usize = 16;
/// A stage that reads over this many times more than one before it is not like it.
const ALIKE_TIMES_MAX: u64 = 8;
/// Files of one input that are counted; engines and checkpoints have a few dozen.
const FILES_MAX: usize = 4096;

/// What stages of every kind took on this machine.
#[derive(Debug, Default)]
pub struct Alike(Vec<Taken>);

/// What one stage took.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Taken {
    kind: Kind,
    /// Its params that decide how it works.
    how: String,
    input_bytes: u64,
    held_bytes: u64,
}

impl Alike {
    /// What is noted in `store`.
    #[must_use]
    pub fn read(store: &Store) -> Self {
        Self(notes::read(store, &note()))
    }

    /// Adds what a run has built.  A note that cannot be kept costs a forecast and nothing else.
    pub fn keep(store: &Store, plan: &Plan, report: &RunReport) {
        let new = taken(plan, report);
        if new.is_empty() {
            return;
        }
        let mut all = Self::read(store);
        new.into_iter().for_each(|taken| all.add(taken));
        notes::keep(store, &note(), &all.0);
    }

    /// The newest count; of one size the last is enough.
    fn add(&mut self, taken: Taken) {
        let is_same = |other: &Taken| (other.kind, &other.how) == (taken.kind, &taken.how);
        self.0.retain(|other| !(is_same(other) && other.input_bytes == taken.input_bytes));
        let same: Vec<usize> = (0..self.0.len()).filter(|&at| is_same(&self.0[at])).collect();
        if same.len() >= ALIKE_MAX {
            self.0.remove(same[0]);
        }
        self.0.push(taken);
    }

    /// From the stage nearest in size: as much for a smaller one, in proportion for a larger one.
    pub(crate) fn of(&self, kind: Kind, how: &str, input_bytes: u64) -> Option<u64> {
        let alike = self.0.iter().filter(|taken| taken.kind == kind && taken.how == how);
        let nearest = alike.min_by_key(|taken| taken.input_bytes.abs_diff(input_bytes))?;
        let base = nearest.input_bytes.max(1);
        if input_bytes / base >= ALIKE_TIMES_MAX {
            return None;
        }
        let scaled = u128::from(nearest.held_bytes) * u128::from(input_bytes) / u128::from(base);
        Some(u64::try_from(scaled).unwrap_or(u64::MAX).max(nearest.held_bytes))
    }
}

/// What the stages took that a run has built; programs are like nothing but themselves.
fn taken(plan: &Plan, report: &RunReport) -> Vec<Taken> {
    let rows: HashMap<&str, &StageReport> =
        report.stages.iter().map(|row| (row.name.as_str(), row)).collect();
    let output = |need| rows.get(plan.stage(need).name.as_str())?.output.as_deref();
    let taken = |(_, stage): (_, &Stage)| {
        let row = rows.get(stage.name.as_str())?;
        let is_built = row.status == StageStatus::Sealed && stage.kind != Kind::Command;
        let took = row.attempts.last().filter(|_| is_built).and_then(Took::of)?;
        Some(Taken {
            kind: stage.kind,
            how: how(stage.kind, &stage.params),
            input_bytes: stage.needs().filter_map(output).map(bytes_below).sum(),
            held_bytes: took.held_bytes,
        })
    };
    plan.stages().filter_map(taken).collect()
}

/// The params that decide how a kind works; deployments that were only written before say nothing of those
/// that are opened and step once.
pub(crate) fn how(kind: Kind, params: &Values) -> String {
    const DECIDING: [&str; 7] =
        ["backend", "dtype", "part", "precision", "scheme", "method", "probe"];
    let said = |name: &&str| params.get(*name).map(|value| format!("{name}={value}"));
    let opens = (kind == Kind::Deployment).then(|| "opens".to_owned());
    DECIDING.iter().filter_map(said).chain(opens).collect::<Vec<_>>().join(" ")
}

fn note() -> Digest {
    Digest::of(b"what stages took")
}

/// The bytes of a file, or of all files below a directory.
pub(crate) fn bytes_below(path: &Path) -> u64 {
    let mut sum = 0;
    let mut left = vec![path.to_owned()];
    for _ in 0..FILES_MAX {
        let Some(path) = left.pop() else { break };
        match fs::metadata(&path) {
            Ok(meta) if meta.is_file() => sum += meta.len(),
            Ok(meta) if meta.is_dir() => {
                let entries = fs::read_dir(&path).into_iter().flatten().flatten();
                left.extend(entries.map(|entry| entry.path()));
            }
            _ => {}
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(how: &str, input_bytes: u64, held_bytes: u64) -> Taken {
        Taken { kind: Kind::EngineBuild, how: how.to_owned(), input_bytes, held_bytes }
    }

    #[test]
    fn a_larger_stage_is_expected_to_take_more_and_a_smaller_one_no_less() {
        let mut alike = Alike::default();
        alike.add(taken("precision=f32", 1000, 400));
        alike.add(taken("precision=f32", 4000, 1000));
        let check = |input, expect| {
            assert_eq!(alike.of(Kind::EngineBuild, "precision=f32", input), expect);
        };
        check(1000, Some(400));
        check(500, Some(400));
        check(2000, Some(800));
        check(6000, Some(1500));
        check(100_000, None);
        assert_eq!(alike.of(Kind::EngineBuild, "precision=int8", 1000), None);
        assert_eq!(alike.of(Kind::Verify, "precision=f32", 1000), None);
    }

    #[test]
    fn of_one_size_the_last_is_remembered_and_of_many_the_newest() {
        let mut alike = Alike::default();
        alike.add(taken("a", 1, 5));
        alike.add(taken("a", 1, 7));
        assert_eq!(alike.of(Kind::EngineBuild, "a", 1), Some(7));
        (0..100).for_each(|n| alike.add(taken("b", 1000 + n, n)));
        assert_eq!(alike.0.len(), 1 + ALIKE_MAX);
        assert_eq!(alike.of(Kind::EngineBuild, "b", 1099), Some(99));
    }
}
