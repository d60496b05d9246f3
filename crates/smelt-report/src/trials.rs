//! Compares what is done before a stage by trials of it: an experiment, where `arms` only observes.
//!
//! Trials of all arms take turns, in an order that is drawn anew for each turn: what one leaves behind in caches, memory and
//! heat comes to all of them alike.

use std::collections::BTreeMap;

use serde::Serialize;
use smelt_exec::{RunReport, StageStatus};
use smelt_plan::{Digest, FailureClass};

use crate::arms::Count;

/// One trial of an arm.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Trial {
    /// The arm, by its number.
    pub arm: usize,
    /// Whether it led to an output.
    pub sealed: bool,
    /// How it failed, where it did.
    pub class: Option<&'static str>,
    /// Seconds of the stage, without what was done before it.
    pub wall_s: f64,
    /// The most memory of its processes.
    pub peak_rss_bytes: u64,
}

impl Trial {
    /// What a run's report says of a trial of this stage.
    ///
    /// # Errors
    /// Why it is none of this arm: it was not tried, it was stopped, or what was to be done before it was not.
    pub fn of(arm: usize, report: &RunReport, stage: &str) -> Result<Self, String> {
        let row = report.stages.iter().find(|row| row.name == stage);
        let attempt = row.and_then(|row| row.attempts.last());
        let (Some(row), Some(attempt)) = (row, attempt) else {
            let why = row.and_then(|row| row.message.clone());
            return Err(why.unwrap_or_else(|| "it was not tried".to_owned()));
        };
        if let Some(undone) = attempt.rungs.iter().find(|rung| !rung.done) {
            return Err(format!("{} was not done: {}", undone.rung.name(), undone.what));
        }
        let sealed = row.status == StageStatus::Sealed;
        let class = attempt.class.or(row.class).map(FailureClass::name);
        if !sealed && class.is_none() {
            return Err("it was stopped".to_owned());
        }
        let peak_rss_bytes = attempt.peaks.peak_rss_bytes;
        Ok(Self { arm, sealed, class, wall_s: attempt.wall_s, peak_rss_bytes })
    }
}

/// The arms of all trials in their order: each turn has every arm once.
pub fn order(arms: usize, turns: usize, seed: u64) -> Vec<usize> {
    let turn = |turn: usize| {
        // Sorted by digests of seed, turn and arm, which no arm has a say in.
        let lot = |arm: &usize| Digest::of(format!("{seed} {turn} {arm}").as_bytes());
        let mut arms: Vec<usize> = (0..arms).collect();
        arms.sort_by_key(lot);
        arms
    };
    (0..turns).flat_map(turn).collect()
}

/// What came of the trials of one arm.
#[derive(Debug, Clone, PartialEq)]
pub struct ArmOutcome {
    /// How often it was tried, and how often that led to an output.
    pub count: Count,
    /// Seconds of those that led to an output: the least, the median, the most.
    pub wall_s: Option<[f64; 3]>,
    /// The median of the most memory of all.
    pub peak_rss_bytes: Option<u64>,
    /// How often it failed how.
    pub failures: BTreeMap<&'static str, usize>,
}

impl ArmOutcome {
    /// Of one arm's trials among all.
    pub fn of(arm: usize, trials: &[Trial]) -> Self {
        let own = || trials.iter().filter(move |trial| trial.arm == arm);
        let mut walls: Vec<f64> =
            own().filter(|trial| trial.sealed).map(|trial| trial.wall_s).collect();
        walls.sort_by(f64::total_cmp);
        let mut peaks: Vec<u64> = own().map(|trial| trial.peak_rss_bytes).collect();
        peaks.sort_unstable();
        let mut failures = BTreeMap::new();
        for class in own().filter_map(|trial| trial.class) {
            *failures.entry(class).or_default() += 1;
        }
        let count = Count { tried: own().count() as u32, sealed: walls.len() as u32 };
        let wall_s = walls.first().zip(walls.last());
        Self {
            count,
            wall_s: wall_s.map(|(least, most)| [*least, walls[walls.len() / 2], *most]),
            peak_rss_bytes: peaks.get(peaks.len() / 2).copied(),
            failures,
        }
    }
}

/// Whether the intervals of two arms' rates have nothing in common: then one of them is better, as far as so many trials
/// tell.
pub fn differ(one: &ArmOutcome, other: &ArmOutcome) -> bool {
    let ((low, high), (other_low, other_high)) = (one.count.interval(), other.count.interval());
    high < other_low || other_high < low
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(arm: usize, class: Option<&'static str>, wall_s: f64) -> Trial {
        Trial { arm, sealed: class.is_none(), class, wall_s, peak_rss_bytes: wall_s as u64 }
    }

    #[test]
    fn every_turn_has_every_arm_once_and_no_arm_its_place() {
        let turns = 300;
        let all = order(3, turns, 7);
        assert_eq!(all, order(3, turns, 7));
        assert_ne!(all, order(3, turns, 8));
        let mut firsts = [0; 3];
        for turn in all.chunks(3) {
            let mut sorted = turn.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2]);
            firsts[turn[0]] += 1;
        }
        assert!(firsts.iter().all(|&first| (70..=130).contains(&first)), "{firsts:?}");
    }

    #[test]
    fn a_row_is_of_its_arm_alone() {
        let trials = [
            trial(0, Some("oom-killed"), 9.0),
            trial(1, None, 3.0),
            trial(0, None, 5.0),
            trial(1, None, 1.0),
            trial(1, None, 2.0),
            trial(0, Some("oom-killed"), 7.0),
        ];
        let cold = ArmOutcome::of(0, &trials);
        assert_eq!((cold.count.tried, cold.count.sealed), (3, 1));
        assert_eq!(cold.wall_s, Some([5.0, 5.0, 5.0]));
        assert_eq!(cold.peak_rss_bytes, Some(7));
        assert_eq!(cold.failures, [("oom-killed", 2)].into());
        assert_eq!(ArmOutcome::of(1, &trials).wall_s, Some([1.0, 2.0, 3.0]));
        let nothing = ArmOutcome::of(2, &trials);
        assert_eq!((nothing.count.tried, nothing.wall_s), (0, None));
    }

    #[test]
    fn few_trials_tell_nothing_and_many_do() {
        let rows = |turns: usize| {
            let trials =
                (0..turns).flat_map(|_| [trial(0, Some("no-tactic"), 1.0), trial(1, None, 1.0)]);
            let trials: Vec<_> = trials.collect();
            [0, 1].map(|arm| ArmOutcome::of(arm, &trials))
        };
        let [cold, warm] = rows(2);
        assert!(!differ(&cold, &warm));
        let [cold, warm] = rows(8);
        assert!(differ(&cold, &warm) && differ(&warm, &cold));
        assert!(!differ(&warm, &warm));
    }
}
