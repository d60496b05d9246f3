//! The part of a run's loop that has tokens lent across the machine; the schedule lends within the run.

use std::io::ErrorKind;

use smelt_plan::StageId;

use super::{Loop, Progress};
use crate::lending::{Lending, Party, lent};

impl<'scope, 'a: 'scope> Loop<'_, 'scope, 'a> {
    /// Opens the machine's tokens, if any stage takes some.  Without them runs may meet on a device, but
    /// build all the same.
    pub(super) fn share_tokens(&mut self) {
        let Some(dir) = &self.runner.tokens else { return };
        if self.runner.plan.stages().all(|(_, stage)| stage.resources.is_empty()) {
            return;
        }
        let who = Party {
            run: self.runner.run.id().to_string(),
            pipeline: self.runner.plan.name.clone(),
            pid: std::process::id(),
            priority: self.runner.priority,
            ..Party::default()
        };
        match Lending::open(dir, who) {
            Ok(lending) => self.lending = Some(lending),
            Err(error) => {
                let why = format!("cannot use {}: {error}", dir.display());
                self.show(&Progress::LendsAlone(&why));
            }
        }
    }

    /// Whether the stage has its tokens now, as far as other runs are concerned.
    pub(super) fn is_lent(&mut self, stage: StageId) -> bool {
        let plan = self.runner.plan;
        let planned = plan.stage(stage);
        let Some(lending) = &mut self.lending else { return true };
        let was_locked_out = lending.is_locked_out();
        let taken = lending.take(stage, planned.name.as_str(), &planned.resources, plan.capacity());
        match taken {
            Ok(is_lent) => is_lent,
            // Two builds must not meet on a device since a third process was stopped: it is asked for again.
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                if !was_locked_out {
                    self.show(&Progress::TokensLocked(&error.to_string()));
                }
                false
            }
            Err(error) => {
                let why = format!("cannot lock the machine's tokens: {error}");
                self.show(&Progress::LendsAlone(&why));
                // Its own accounts are right in any case.
                self.lending = None;
                true
            }
        }
    }

    /// What a stage waits for, and who has some of it, for a person.
    pub(super) fn queued(&self, stage: StageId) -> String {
        let wants = &self.runner.plan.stage(stage).resources;
        let words: Vec<String> =
            wants.iter().map(|(name, amount)| format!("{amount} of {name}")).collect();
        let held = self.runner.tokens.as_deref().map(lent).unwrap_or_default().held;
        let is_wanted = |what: &str| wants.keys().any(|name| what.split(' ').next() == Some(name));
        let holder = held.iter().find(|(what, _)| is_wanted(what));
        let by = holder.map_or_else(String::new, |(what, who)| {
            format!("; {what} is held by run {} of {}", who.run, who.pipeline)
        });
        format!("{}{by}", words.join(", "))
    }
}
