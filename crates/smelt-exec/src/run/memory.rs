//! The part of a run's loop that minds memory: which start waits for it, and who is halted or ended
//! for want of it.  It obeys [`smelt_plan::admission`] and [`smelt_watch::guard`].

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use smelt_plan::StageId;
use smelt_plan::admission::{Admission, Forecast, Room, admit, refusal};
use smelt_plan::{Change, Event, FailureClass};
use smelt_watch::guard::LOOK_PERIOD;
use smelt_watch::{Attended, Counters, Guard, Look, Machine, Verdict};

use super::{ExecError, Loop, Progress, Start};
use crate::classify::Stopped;
use crate::served::{self, Server};

/// What the machine has; what its kernel does not tell is no reason to wait.
pub fn room_of(machine: &Machine) -> Room {
    let total = machine.mem_total_bytes.unwrap_or(u64::MAX);
    Room {
        total_bytes: total,
        available_bytes: machine.mem_available_bytes.unwrap_or(total),
        swap_total_bytes: machine.swap_total_bytes.unwrap_or(0),
        swap_free_bytes: machine.swap_free_bytes.unwrap_or(0),
        ..Room::default()
    }
}

/// A swap file that is turned on before the attempt starts is room as well.
fn with_temporary_swap(changes: &[Change], room: Room) -> Room {
    let bytes = changes.iter().map(|change| match change {
        Change::TemporarySwap(spec) => spec.bytes.unwrap_or(0),
        _ => 0,
    });
    let bytes = bytes.fold(0, u64::saturating_add);
    Room {
        swap_total_bytes: room.swap_total_bytes.saturating_add(bytes),
        swap_free_bytes: room.swap_free_bytes.saturating_add(bytes),
        ..room
    }
}

/// What the loop knows of memory.
#[derive(Debug, Default)]
pub(super) struct Memory {
    guard: Guard<StageId>,
    /// The machine as it was found last.
    reading: Option<(Duration, Machine)>,
    /// The servers that were found with it.
    servers: Vec<Server>,
    /// Nothing new is to begin beside what runs.
    is_strained: bool,
    /// The attempts that run, oldest first.
    running: Vec<StageId>,
    /// What they are expected to take.
    expected: HashMap<StageId, Forecast>,
    waiting: Vec<Waiting>,
}

/// A start that waits for memory, or for tokens of other runs, in the order of the schedule.
#[derive(Debug, Clone)]
struct Waiting {
    start: Start,
    forecast: Option<Forecast>,
    since: Duration,
}

impl Memory {
    pub(super) fn launched(&mut self, stage: StageId) {
        self.running.push(stage);
    }

    pub(super) fn ended(&mut self, stage: StageId) {
        self.running.retain(|&other| other != stage);
        self.expected.remove(&stage);
    }

    /// What an attempt that has begun is expected to take.
    pub(super) fn forecast(&self, stage: StageId) -> Option<Forecast> {
        self.expected.get(&stage).copied()
    }

    /// Forgets a start that waits; whether there was one.
    pub(super) fn gives_up(&mut self, stage: StageId) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|waiting| waiting.start.stage != stage);
        self.waiting.len() < before
    }

    fn waits(&self, stage: StageId) -> bool {
        self.waiting.iter().any(|waiting| waiting.start.stage == stage)
    }

    fn waited(&self, stage: StageId, now: Duration) -> Duration {
        let waiting = self.waiting.iter().find(|waiting| waiting.start.stage == stage);
        waiting.map_or(Duration::ZERO, |waiting| now.saturating_sub(waiting.since))
    }
}

impl<'scope, 'a: 'scope> Loop<'_, 'scope, 'a> {
    /// Starts the attempt if there is memory for it.
    pub(super) fn admit(
        &mut self,
        start: Start,
        forecast: Option<Forecast>,
    ) -> Result<Option<Event>, ExecError> {
        let now = self.hands.now();
        if !self.is_lent(start.stage) {
            self.stand_by(start, now, forecast);
            return Ok(None);
        }
        let room = with_temporary_swap(&start.changes, self.room(now, forecast.is_some()));
        let waited = self.memory.waited(start.stage, now);
        let admission = match forecast {
            _ if self.memory.is_strained && room.running > 0 => Admission::Wait,
            Some(forecast) if !self.runner.overcommit => admit(forecast, &room, waited),
            _ => Admission::Start,
        };
        match admission {
            Admission::Start => {
                self.memory.gives_up(start.stage);
                if let Some(forecast) = forecast {
                    self.memory.expected.insert(start.stage, forecast);
                }
                self.begin(start, waited)
            }
            Admission::Wait => {
                self.wait(start, now, forecast, &room);
                Ok(None)
            }
            Admission::Refuse(lack) => {
                self.memory.gives_up(start.stage);
                let forecast = forecast.expect("refused by its forecast");
                let kind = self.runner.plan.stage(start.stage).kind;
                let servers = served::words(&self.memory.servers);
                let message = refusal(kind, forecast, &room, lack, &servers);
                Ok(Some(self.not_started(start.stage, FailureClass::DoesNotFit, message)))
            }
        }
    }

    /// Waits for tokens that others hold.
    fn stand_by(&mut self, start: Start, now: Duration, forecast: Option<Forecast>) {
        if self.memory.waits(start.stage) {
            return;
        }
        self.show(&Progress::Queued(start.stage, self.queued(start.stage)));
        self.memory.waiting.push(Waiting { start, forecast, since: now });
    }

    fn wait(&mut self, start: Start, now: Duration, forecast: Option<Forecast>, room: &Room) {
        if self.memory.waits(start.stage) {
            return;
        }
        let servers = served::words(&self.memory.servers);
        self.show(&Progress::Crowded(start.stage, forecast, *room, &servers));
        self.memory.waiting.push(Waiting { start, forecast, since: now });
    }

    /// What the attempt is expected to take.
    pub(super) fn forecast(&self, start: &Start) -> Option<Forecast> {
        let spec = self.runner.plan.stage(start.stage).attempt(start.n);
        // Its directory is made when it begins.
        (self.runner.forecasts)(&self.task(start.stage, &spec, Path::new("")))
    }

    /// What there is for one more attempt; the machine is asked only where that matters.
    fn room(&mut self, now: Duration, matters: bool) -> Room {
        let running = self.memory.running.len();
        if !matters {
            return Room { running, ..Room::default() };
        }
        let machine = match self.memory.reading {
            Some((at, machine)) if now < at + LOOK_PERIOD => machine,
            _ => self.read_machine(now).0,
        };
        let promised_bytes = self.promised_bytes();
        let served_bytes = served::may_take_bytes(&self.memory.servers);
        let kept_bytes = self.runner.kept_bytes;
        Room { promised_bytes, served_bytes, kept_bytes, running, ..room_of(&machine) }
    }

    /// The machine as it is now; so are its servers.
    fn read_machine(&mut self, now: Duration) -> (Machine, Counters) {
        let (machine, counters) = self.hands.machine();
        self.memory.reading = Some((now, machine));
        self.memory.servers =
            self.runner.tokens.as_deref().map(served::servers).unwrap_or_default();
        (machine, counters)
    }

    /// What those that run will still take.
    fn promised_bytes(&self) -> u64 {
        let growth = |stage: &StageId| {
            let expected = self.memory.expected.get(stage)?;
            let held = self.controls.get(stage)?.seen().map_or(0, |seen| seen.held_bytes());
            Some(expected.bytes.saturating_sub(held))
        };
        self.memory.running.iter().filter_map(growth).fold(0, u64::saturating_add)
    }

    /// Looks at everything every so often, does what the guard says, and asks again for what waits.
    pub(super) fn attend_memory(&mut self) -> Result<(), ExecError> {
        let now = self.hands.now();
        let is_due = self.memory.reading.is_none_or(|(at, _)| now >= at + LOOK_PERIOD);
        if !is_due || (self.memory.running.is_empty() && self.memory.waiting.is_empty()) {
            return Ok(());
        }
        let (machine, counters) = self.read_machine(now);
        let look = Look { at: now, machine, counters, attempts: self.attended() };
        let verdict = self.memory.guard.judge(look);
        self.obey(verdict);
        for waiting in self.memory.waiting.clone() {
            if let Some(event) = self.admit(waiting.start, waiting.forecast)? {
                self.happened(event)?;
            }
        }
        Ok(())
    }

    fn attended(&self) -> Vec<Attended<StageId>> {
        let attended = |&id: &StageId| {
            let controls = self.controls.get(&id)?;
            let seen = controls.seen()?;
            Some(Attended {
                id,
                held_bytes: seen.held_bytes(),
                stalled_us: seen.strain.stalled_us,
                cpu: seen.strain.cpu,
                is_at_limit: seen.strain.is_at_limit,
                is_parked: controls.is_parked(),
            })
        };
        self.memory.running.iter().filter_map(attended).collect()
    }

    fn obey(&mut self, verdict: Verdict<StageId>) {
        self.memory.is_strained = !matches!(verdict, Verdict::Fine);
        let controls = |stage| self.controls.get(&stage);
        match verdict {
            Verdict::Fine | Verdict::Wait => {}
            Verdict::Park(stage) => {
                if controls(stage).is_some_and(|controls| controls.park()) {
                    self.show(&Progress::Parked(stage));
                }
            }
            Verdict::Resume(stage) => {
                controls(stage).into_iter().for_each(|controls| controls.resume());
                self.show(&Progress::Resumed(stage));
            }
            Verdict::Exhausted(stage) => {
                controls(stage).into_iter().for_each(|one| one.kill_for(Stopped::Exhausted));
            }
            Verdict::CmaStuck(stage) => {
                controls(stage).into_iter().for_each(|controls| controls.ask(Stopped::CmaStuck));
            }
        }
    }
}
