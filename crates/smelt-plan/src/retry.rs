//! Says what changes before a failed stage is tried again: which rungs of its ladder serve which
//! attempt.  Pure; `smelt-exec` performs them.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::failure::FailureClass;
use crate::name::StageName;
use crate::pipeline::Escalation;

/// The `retry` of a stage.
#[derive(Debug, Clone, PartialEq)]
pub struct Retry {
    /// Attempts in all, from 1.
    pub attempts_max: u32,
    /// Wait so long at most until memory is available again.
    pub settle: Option<Duration>,
    /// Drop the page cache and compact memory.
    pub drop_caches: bool,
    /// Swap on a disk while the attempt runs.
    pub temporary_swap: Option<SwapSpec>,
    /// Build a stage of another pipeline first.
    pub warm_up: Option<WarmUp>,
    /// What changes in the stage itself on attempt 2, 3, ….
    pub escalate: Vec<Escalation>,
    /// Reboot the board before the last attempt.
    pub reboot: bool,
}

impl Default for Retry {
    /// One attempt.
    fn default() -> Self {
        Self {
            attempts_max: 1,
            settle: None,
            drop_caches: false,
            temporary_swap: None,
            warm_up: None,
            escalate: Vec::new(),
            reboot: false,
        }
    }
}

/// A temporary swap file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SwapSpec {
    /// How large; as much as the attempt may hold, or the machine has, where the file does not say.
    pub bytes: Option<u64>,
    /// The directory it lies in, as the file names it; the store's own without.
    pub dir: Option<String>,
}

/// A stage of another pipeline, whose building leaves the machine as the next attempt wants it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WarmUp {
    /// The pipeline's file, relative to the one that names it.
    pub pipeline: String,
    /// The stage.
    pub stage: StageName,
}

impl WarmUp {
    /// Reads `PIPELINE#STAGE`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("\"{text}\" is no stage of another pipeline: write PIPELINE#STAGE");
        let (pipeline, stage) = text.rsplit_once('#').ok_or_else(wrong)?;
        if pipeline.is_empty() {
            return Err(wrong());
        }
        let stage = StageName::parse(stage).map_err(|error| error.to_string())?;
        Ok(Self { pipeline: pipeline.to_owned(), stage })
    }
}

/// A rung of the ladder, in the order in which they are climbed for one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rung {
    /// The board was rebooted.
    Reboot,
    /// Memory was waited for.
    Settle,
    /// Another stage was built.
    WarmUp,
    /// Caches were dropped, memory compacted.
    DropCaches,
    /// A swap file was on.
    TemporarySwap,
    /// Params or limits of the stage were others.
    Escalate,
}

impl Rung {
    /// Every rung.
    pub const ALL: [Self; 6] = [
        Self::Reboot,
        Self::Settle,
        Self::WarmUp,
        Self::DropCaches,
        Self::TemporarySwap,
        Self::Escalate,
    ];

    /// The word in pipeline files and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reboot => "reboot",
            Self::Settle => "settle",
            Self::WarmUp => "warm-up",
            Self::DropCaches => "drop-caches",
            Self::TemporarySwap => "temporary-swap",
            Self::Escalate => "escalate",
        }
    }

    /// Whether it can cure a failure of this class.
    fn cures(self, class: FailureClass) -> bool {
        match self {
            Self::Settle | Self::WarmUp | Self::DropCaches | Self::Reboot => class.lacks_memory(),
            // What counts against a limit may lie in swap instead, and swap is room.
            Self::TemporarySwap => {
                let is_limit =
                    matches!(class, FailureClass::MemoryLimit | FailureClass::DoesNotFit);
                class.lacks_memory() || is_limit
            }
            Self::Escalate => class.cured_by_change(),
        }
    }

    /// Whether having done it once is all that it can do: the machine stays warm, or freshly booted.
    fn is_once(self) -> bool {
        matches!(self, Self::WarmUp | Self::Reboot)
    }
}

/// What is changed before an attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Reboot, and go on afterwards.
    Reboot,
    /// Wait so long at most until memory is available again.
    Settle(Duration),
    /// Build this first.
    WarmUp(WarmUp),
    /// Drop caches, compact memory.
    DropCaches,
    /// Have a swap file on meanwhile.
    TemporarySwap(SwapSpec),
    /// The stage's own params or limits, as the file says them.
    Escalate(String),
}

impl Change {
    /// The rung it is.
    pub fn rung(&self) -> Rung {
        match self {
            Self::Reboot => Rung::Reboot,
            Self::Settle(_) => Rung::Settle,
            Self::WarmUp(_) => Rung::WarmUp,
            Self::DropCaches => Rung::DropCaches,
            Self::TemporarySwap(_) => Rung::TemporarySwap,
            Self::Escalate(_) => Rung::Escalate,
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WarmUp(WarmUp { pipeline, stage }) => write!(f, "warm-up {pipeline}#{stage}"),
            Self::Escalate(text) => f.write_str(text),
            other => f.write_str(other.rung().name()),
        }
    }
}

/// What attempts of a stage in runs that did not end have left: the ladder goes on from there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Earlier {
    /// Attempts that count, at least 1.
    pub attempts: u32,
    /// How the last of them failed.
    pub class: FailureClass,
    /// The rungs that were used.
    pub used: BTreeSet<Rung>,
    /// Whether the board was to be rebooted before the next, and that is now.
    pub rebooted: bool,
}

impl Retry {
    /// What changes before attempt `n` (from 2), of a stage whose last attempt failed with `class`
    /// after these rungs; `None` if there is to be none.
    ///
    /// A retry changes something, or answers a failure that says nothing of the stage.
    pub fn changes(
        &self,
        n: u32,
        class: FailureClass,
        used: &BTreeSet<Rung>,
    ) -> Option<Vec<Change>> {
        if n > self.attempts_max {
            return None;
        }
        let is_due = |change: &Change| {
            let rung = change.rung();
            rung.cures(class) && !(rung.is_once() && used.contains(&rung))
        };
        let changes: Vec<Change> = self.declared(n).into_iter().filter(is_due).collect();
        (!changes.is_empty() || class.passes_by_itself()).then_some(changes)
    }

    /// The change of a rung that may come before any attempt, as the file says it; caches may be dropped unsaid.
    pub fn change(&self, rung: Rung) -> Option<Change> {
        match rung {
            Rung::Settle => self.settle.map(Change::Settle),
            Rung::WarmUp => self.warm_up.clone().map(Change::WarmUp),
            Rung::DropCaches => Some(Change::DropCaches),
            Rung::TemporarySwap => self.temporary_swap.clone().map(Change::TemporarySwap),
            Rung::Reboot | Rung::Escalate => None,
        }
    }

    /// What the file says of attempt `n`, whatever has failed, in the order of [`Rung`].
    fn declared(&self, n: u32) -> Vec<Change> {
        let reboot = (self.reboot && n == self.attempts_max).then_some(Change::Reboot);
        let step = (n as usize).checked_sub(2).and_then(|at| self.escalate.get(at));
        let step = step.filter(|step| step.changes_something());
        [
            reboot,
            self.settle.map(Change::Settle),
            self.warm_up.clone().map(Change::WarmUp),
            self.drop_caches.then_some(Change::DropCaches),
            self.temporary_swap.clone().map(Change::TemporarySwap),
            step.map(|step| Change::Escalate(step.text.clone())),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use FailureClass::*;

    fn step(text: &str) -> Escalation {
        let params = [("x".to_owned(), serde_json::json!(text))].into();
        Escalation { params, text: text.to_owned(), ..Escalation::default() }
    }

    /// Four attempts, every rung, the first step empty.
    fn full() -> Retry {
        Retry {
            attempts_max: 4,
            settle: Some(Duration::from_secs(60)),
            drop_caches: true,
            temporary_swap: Some(SwapSpec::default()),
            warm_up: Some(WarmUp::parse("small.toml#engine").unwrap()),
            escalate: vec![Escalation::default(), step("{ a }"), step("{ b }")],
            reboot: true,
        }
    }

    #[track_caller]
    fn check(retry: &Retry, n: u32, class: FailureClass, used: &[Rung], expect: Option<&str>) {
        let changes = retry.changes(n, class, &used.iter().copied().collect());
        let text = changes
            .map(|changes| changes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "));
        assert_eq!(text.as_deref(), expect, "attempt {n} after {}", class.name());
    }

    #[test]
    fn rungs_serve_the_classes_they_cure() {
        let all = "settle, warm-up small.toml#engine, drop-caches, temporary-swap";
        for class in [OomKilled, Thrash, CmaExhausted, DeviceMemory, NoTactic] {
            check(&full(), 2, class, &[], Some(all));
        }
        check(&full(), 2, MemoryLimit, &[], Some("temporary-swap"));
        check(&full(), 2, DoesNotFit, &[], Some("temporary-swap"));
        check(&full(), 3, MemoryLimit, &[], Some("temporary-swap, { a }"));
        check(&full(), 3, ToolRejected, &[], Some("{ a }"));
        check(&full(), 2, ToolRejected, &[], None);
        check(&full(), 3, TimedOut, &[], Some("{ a }"));
        for class in [DiskFull, DiskError, SpawnFailed, NotReproducible] {
            check(&full(), 3, class, &[], None);
        }
    }

    #[test]
    fn rungs_that_come_before_any_attempt_are_as_the_file_says() {
        for rung in Rung::ALL {
            let change = full().change(rung);
            let is_one = !matches!(rung, Rung::Reboot | Rung::Escalate);
            assert_eq!(change.map(|change| change.rung()), is_one.then_some(rung));
            let undeclared = Retry::default().change(rung).is_some();
            assert_eq!(undeclared, rung == Rung::DropCaches);
        }
    }

    #[test]
    fn what_passes_by_itself_needs_no_change() {
        check(&full(), 2, KilledExternally, &[], Some(""));
        check(&full(), 3, KilledExternally, &[], Some("{ a }"));
        check(&full(), 2, BoardReset, &[], Some(""));
        check(&Retry::default(), 2, KilledExternally, &[], None);
    }

    #[test]
    fn once_is_enough_for_some() {
        let used = [Rung::WarmUp, Rung::Settle];
        check(&full(), 3, OomKilled, &used, Some("settle, drop-caches, temporary-swap, { a }"));
        let last = "reboot, settle, drop-caches, temporary-swap, { b }";
        check(&full(), 4, OomKilled, &used, Some(last));
        let used = [Rung::WarmUp, Rung::Reboot];
        check(&full(), 4, OomKilled, &used, Some("settle, drop-caches, temporary-swap, { b }"));
        check(&full(), 5, OomKilled, &[], None);
    }

    #[test]
    fn a_reboot_alone_is_a_change() {
        let retry = Retry { attempts_max: 2, reboot: true, ..Retry::default() };
        check(&retry, 2, DeviceMemory, &[], Some("reboot"));
        check(&retry, 2, DeviceMemory, &[Rung::Reboot], None);
        check(&retry, 2, ToolRejected, &[], None);
    }

    #[test]
    fn a_warm_up_is_a_stage_of_a_pipeline() {
        let warm_up = WarmUp::parse("../a#b/p.toml#llm-engine").unwrap();
        assert_eq!(
            (warm_up.pipeline.as_str(), warm_up.stage.as_str()),
            ("../a#b/p.toml", "llm-engine")
        );
        for text in ["", "p.toml", "#x", "p.toml#", "p.toml#A b"] {
            assert!(WarmUp::parse(text).is_err(), "{text}");
        }
    }
}
