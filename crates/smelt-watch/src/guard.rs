//! Judges the machine and all attempts on it together.  Pure: looks go in, verdicts come out.
//!
//! Pressure alone lies: builds that end well stall now and then, and a thousandfold slow-down on a fast
//! disk is only a fifth of the time.  So nothing is held against an attempt but stalls together with
//! pages going out to swap and coming back, for seconds on end.  Nor is an attempt at its own
//! `limits.memory` held against the machine: it swaps what it asked to be kept from having.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::counters::Counters;
use crate::machine::Machine;

/// Looks that are closer together tell nothing new.
pub const LOOK_PERIOD: Duration = Duration::from_millis(500);

/// Stalls below this part of the time are ordinary reclaim.
const STALLED_MIN: f64 = 0.10;
/// Both ways, per second: 1 MiB of pages of 4 KiB.
const SWAPPED_PAGES_MIN: f64 = 256.0;
/// Where the kernel keeps no account of stalls, faults stand for them.
const FAULTS_MIN: f64 = 500.0;
/// Thrash that is over sooner is somebody starting up.
const THRASH_MIN: Duration = Duration::from_secs(3);
/// Calm that is over sooner is somebody catching their breath.
const CALM_MIN: Duration = Duration::from_secs(5);
/// An attempt that was parked so often is let run, so that it comes to an end.
const PARKS_MAX: u32 = 3;
/// Below these parts of all memory and of all swap nothing is left to give.
const AVAILABLE_MIN: f64 = 0.03;
const SWAP_FREE_MIN: f64 = 0.05;
/// Looks in a row that find nothing left: one may be a moment.
const EXHAUSTED_LOOKS: u32 = 3;
/// Below this part of all memory nothing new is begun.
const ROOM_MIN: f64 = 0.05;
/// Contiguous allocations that fail for so long, with nobody at work meanwhile, will fail for ever.
const CMA_STUCK: Duration = Duration::from_secs(120);
/// Part of one core: below this an attempt is not at work.
const WORK_MIN: f64 = 0.02;

/// One look at everything.
#[derive(Debug, Clone, Default)]
pub struct Look<Id> {
    /// Since the run began.
    pub at: Duration,
    /// What it has left, as the control groups above us see it.
    pub machine: Machine,
    /// What the kernel has counted on it.
    pub counters: Counters,
    /// The attempts that run, oldest first.
    pub attempts: Vec<Attended<Id>>,
}

/// One attempt, as its own watch sees it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Attended<Id> {
    /// Which.
    pub id: Id,
    /// Resident and swapped-out memory of all its processes, in bytes.
    pub held_bytes: u64,
    /// How long its tasks have waited for memory; `None` where the kernel keeps no account.
    pub stalled_us: Option<u64>,
    /// Processor time of its processes, where it is known.
    pub cpu: Option<Duration>,
    /// It has all that its own limit lets it have.
    pub is_at_limit: bool,
    /// It is halted.
    pub is_parked: bool,
}

/// What to do with the attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict<Id> {
    /// Let them run.
    Fine,
    /// Begin nothing new.
    Wait,
    /// Halt this one, so that the others come to an end.
    Park(Id),
    /// Let this one go on.
    Resume(Id),
    /// End this one: memory and swap are used up.
    Exhausted(Id),
    /// End this one: it goes on asking for contiguous memory that is not there.
    CmaStuck(Id),
}

/// Remembers what a single look cannot tell.
#[derive(Debug)]
pub struct Guard<Id> {
    last: Option<Look<Id>>,
    thrash_since: Option<Duration>,
    calm_since: Option<Duration>,
    cma_failing_since: Option<Duration>,
    exhausted_looks: u32,
    parks: BTreeMap<Id, u32>,
}

impl<Id> Default for Guard<Id> {
    fn default() -> Self {
        Self {
            last: None,
            thrash_since: None,
            calm_since: None,
            cma_failing_since: None,
            exhausted_looks: 0,
            parks: BTreeMap::new(),
        }
    }
}

impl<Id: Copy + Ord> Guard<Id> {
    /// Judges what has happened since the last look.
    pub fn judge(&mut self, look: Look<Id>) -> Verdict<Id> {
        let Some(last) = self.last.replace(look.clone()) else { return Verdict::Fine };
        let change = Change::between(&last, &look);
        self.remember(&change, &look);
        if self.exhausted_looks >= EXHAUSTED_LOOKS
            && let Some(youngest) = look.attempts.last()
        {
            self.exhausted_looks = 0;
            return Verdict::Exhausted(youngest.id);
        }
        if let Some(id) = self.stuck(&change, &look) {
            return Verdict::CmaStuck(id);
        }
        if let Some(id) = self.next_parked(&look) {
            return Verdict::Park(id);
        }
        if let Some(id) = self.next_resumed(&look) {
            return Verdict::Resume(id);
        }
        let is_full = look.machine.available_part().is_some_and(|part| part < ROOM_MIN);
        if change.is_thrash || is_full { Verdict::Wait } else { Verdict::Fine }
    }

    fn remember(&mut self, change: &Change, look: &Look<Id>) {
        since(&mut self.thrash_since, change.is_thrash, look.at);
        since(&mut self.calm_since, !change.is_thrash, look.at);
        // Who works gets on without; a failure counts until then.
        if change.working > 0 {
            self.cma_failing_since = None;
        } else if change.cma_fails > 0 {
            self.cma_failing_since.get_or_insert(look.at);
        }
        self.exhausted_looks =
            if look.machine.is_exhausted() { self.exhausted_looks + 1 } else { 0 };
        let is_there = |id: &Id| look.attempts.iter().any(|attempt| attempt.id == *id);
        self.parks.retain(|id, _| is_there(id));
    }

    fn stuck(&self, change: &Change, look: &Look<Id>) -> Option<Id> {
        let is_long = self.cma_failing_since.is_some_and(|since| look.at >= since + CMA_STUCK);
        let still_fails = change.cma_fails > 0;
        look.running().last().filter(|_| is_long && still_fails).map(|attempt| attempt.id)
    }

    /// The youngest of those that run, if they keep each other from getting on.
    fn next_parked(&mut self, look: &Look<Id>) -> Option<Id> {
        self.thrash_since.filter(|&since| look.at >= since + THRASH_MIN)?;
        let running: Vec<_> = look.running().filter(|attempt| !attempt.is_at_limit).collect();
        let [_, .., youngest] = running.as_slice() else { return None };
        let parks = self.parks.entry(youngest.id).or_default();
        if *parks == PARKS_MAX {
            return None;
        }
        *parks += 1;
        self.thrash_since = None;
        Some(youngest.id)
    }

    /// The oldest of the parked, once nobody runs or there is room for it.
    fn next_resumed(&mut self, look: &Look<Id>) -> Option<Id> {
        let oldest = look.attempts.iter().find(|attempt| attempt.is_parked)?;
        let is_calm = self.calm_since.is_some_and(|since| look.at >= since + CALM_MIN);
        let has_room =
            look.machine.mem_available_bytes.is_none_or(|bytes| bytes >= oldest.held_bytes);
        if look.running().next().is_some() && !(is_calm && has_room) {
            return None;
        }
        self.calm_since = None;
        Some(oldest.id)
    }
}

/// What lies between two looks.
struct Change {
    is_thrash: bool,
    cma_fails: u64,
    /// Attempts that used the processor.
    working: usize,
}

impl Change {
    fn between<Id: Copy + Ord>(last: &Look<Id>, look: &Look<Id>) -> Self {
        let seconds = look.at.saturating_sub(last.at).as_secs_f64().max(1e-3);
        let counted = look.counters.since(&last.counters);
        let rate = |count: Option<u64>| count.unwrap_or(0) as f64 / seconds;
        let swaps = rate(counted.swap_in_pages) >= SWAPPED_PAGES_MIN
            && rate(counted.swap_out_pages) >= SWAPPED_PAGES_MIN;
        let pairs = || {
            look.running().filter_map(|now| {
                Some((last.attempts.iter().find(|before| before.id == now.id)?, now))
            })
        };
        let stall = |(before, now): (&Attended<Id>, &Attended<Id>)| {
            let stalled_us = now.stalled_us?.saturating_sub(before.stalled_us?);
            Some(stalled_us as f64 * 1e-6 / seconds)
        };
        let stalls: Vec<f64> =
            pairs().filter(|(_, now)| !now.is_at_limit).filter_map(stall).collect();
        let stalled = if stalls.is_empty() {
            rate(counted.major_faults) >= FAULTS_MIN && pairs().any(|(_, now)| !now.is_at_limit)
        } else {
            stalls.iter().any(|&part| part >= STALLED_MIN)
        };
        // Who cannot be seen to rest is at work.
        let works = |(before, now): &(&Attended<Id>, &Attended<Id>)| {
            before.cpu.zip(now.cpu).is_none_or(|(before, now)| {
                now.saturating_sub(before).as_secs_f64() / seconds >= WORK_MIN
            })
        };
        Self {
            is_thrash: swaps && stalled,
            cma_fails: counted.cma_alloc_fails.unwrap_or(0),
            working: pairs().filter(works).count(),
        }
    }
}

impl<Id> Look<Id> {
    fn running(&self) -> impl Iterator<Item = &Attended<Id>> {
        self.attempts.iter().filter(|attempt| !attempt.is_parked)
    }
}

impl Machine {
    /// What is available of all memory, from 0 to 1.
    fn available_part(&self) -> Option<f64> {
        part(self.mem_available_bytes, self.mem_total_bytes)
    }

    /// Without swap the kernel is quicker than any judge, and it is left to it.
    fn is_exhausted(&self) -> bool {
        let is_below = |free, all, min| part(free, all).is_some_and(|part| part < min);
        is_below(self.mem_available_bytes, self.mem_total_bytes, AVAILABLE_MIN)
            && is_below(self.swap_free_bytes, self.swap_total_bytes, SWAP_FREE_MIN)
    }
}

fn part(free: Option<u64>, all: Option<u64>) -> Option<f64> {
    let all = all.filter(|&bytes| bytes != 0)?;
    Some(free? as f64 / all as f64)
}

/// Since when something holds without a break.
fn since(start: &mut Option<Duration>, holds: bool, now: Duration) {
    *start = if holds { start.or(Some(now)) } else { None };
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A machine of 512 MiB with 1 GiB of swap, watched every half second.
    struct Scene {
        guard: Guard<u32>,
        look: Look<u32>,
    }

    impl Scene {
        fn new(attempts: u32) -> Self {
            let attempt = |id| Attended {
                id,
                held_bytes: 300 * MIB,
                stalled_us: Some(0),
                cpu: Some(Duration::ZERO),
                ..Attended::default()
            };
            let machine = Machine {
                mem_total_bytes: Some(512 * MIB),
                mem_available_bytes: Some(60 * MIB),
                swap_total_bytes: Some(1024 * MIB),
                swap_free_bytes: Some(700 * MIB),
                ..Machine::default()
            };
            let counters = Counters {
                swap_in_pages: Some(0),
                swap_out_pages: Some(0),
                cma_alloc_fails: Some(0),
                major_faults: Some(0),
                ..Counters::default()
            };
            let attempts = (1..=attempts).map(attempt).collect();
            Self {
                guard: Guard::default(),
                look: Look { at: Duration::ZERO, machine, counters, attempts },
            }
        }

        /// Half a second passes; everybody who runs works, and stalls for `stalled` of the time.
        fn pass(&mut self, swapped_pages: u64, stalled: f64) -> Verdict<u32> {
            self.look.at += LOOK_PERIOD;
            for count in
                [&mut self.look.counters.swap_in_pages, &mut self.look.counters.swap_out_pages]
            {
                *count = count.map(|count| count + swapped_pages);
            }
            let us = (stalled * LOOK_PERIOD.as_micros() as f64) as u64;
            for attempt in self.look.attempts.iter_mut().filter(|attempt| !attempt.is_parked) {
                attempt.stalled_us = attempt.stalled_us.map(|sum| sum + us);
                attempt.cpu = attempt.cpu.map(|cpu| cpu + LOOK_PERIOD / 2);
            }
            let verdict = self.guard.judge(self.look.clone());
            let index = |id: u32| id as usize - 1;
            match verdict {
                Verdict::Park(id) => self.look.attempts[index(id)].is_parked = true,
                Verdict::Resume(id) => self.look.attempts[index(id)].is_parked = false,
                _ => {}
            }
            verdict
        }

        /// What is said, in order, while the same goes on; repetitions are left out.
        fn pass_for(&mut self, seconds: u64, swapped: u64, stalled: f64) -> Vec<Verdict<u32>> {
            let mut said: Vec<_> = (0..seconds * 2).map(|_| self.pass(swapped, stalled)).collect();
            said.dedup();
            said
        }
    }

    use Verdict::{CmaStuck, Exhausted, Fine, Park, Resume, Wait};

    #[test]
    fn the_youngest_of_those_who_thrash_is_parked_and_goes_on_when_the_others_are_done() {
        let mut scene = Scene::new(2);
        assert_eq!(scene.pass_for(10, 5_000, 0.3), [Fine, Wait, Park(2), Wait]);
        // Calm, but no room for what it holds.
        assert_eq!(scene.pass_for(20, 0, 0.0), [Fine]);
        scene.look.attempts.remove(0);
        scene.look.attempts[0].id = 2;
        let verdict = scene.guard.judge(Look { at: scene.look.at * 2, ..scene.look.clone() });
        assert_eq!(verdict, Resume(2));
    }

    #[test]
    fn a_parked_attempt_goes_on_beside_others_once_there_is_room() {
        let mut scene = Scene::new(2);
        scene.pass_for(10, 5_000, 0.3);
        scene.look.machine.mem_available_bytes = Some(400 * MIB);
        assert_eq!(scene.pass_for(10, 0, 0.0), [Fine, Resume(2), Fine]);
    }

    #[test]
    fn stalls_alone_and_swapping_alone_are_no_thrash() {
        assert_eq!(Scene::new(2).pass_for(60, 0, 0.9), [Fine], "reclaim of cached files");
        assert_eq!(Scene::new(2).pass_for(60, 5_000, 0.02), [Fine], "idle pages of others");
    }

    #[test]
    fn a_short_thrash_is_waited_out() {
        let mut scene = Scene::new(2);
        assert_eq!(scene.pass_for(2, 5_000, 0.5), [Fine, Wait]);
        assert_eq!(scene.pass_for(60, 0, 0.0), [Fine]);
    }

    #[test]
    fn who_runs_alone_is_not_parked() {
        assert_eq!(Scene::new(1).pass_for(60, 5_000, 0.9), [Fine, Wait]);
    }

    #[test]
    fn who_swaps_at_its_own_limit_is_not_held_against_the_machine() {
        let mut scene = Scene::new(2);
        scene.look.attempts.iter_mut().for_each(|attempt| attempt.is_at_limit = true);
        assert_eq!(scene.pass_for(60, 5_000, 0.9), [Fine]);
    }

    #[test]
    fn nobody_is_parked_for_ever() {
        let mut scene = Scene::new(2);
        let mut parked = 0;
        for _ in 0..1000 {
            // Thrash while both run, calm and room when one is parked.
            let both = scene.look.attempts.iter().all(|attempt| !attempt.is_parked);
            scene.look.machine.mem_available_bytes = Some(if both { 60 } else { 400 } * MIB);
            let (swapped, stalled) = if both { (5_000, 0.5) } else { (0, 0.0) };
            parked += u32::from(matches!(scene.pass(swapped, stalled), Park(_)));
        }
        assert_eq!(parked, PARKS_MAX);
    }

    #[test]
    fn without_an_account_of_stalls_faults_stand_for_them() {
        let mut scene = Scene::new(2);
        scene.look.attempts.iter_mut().for_each(|attempt| attempt.stalled_us = None);
        let mut said = Vec::new();
        for _ in 0..10 {
            scene.look.counters.major_faults =
                scene.look.counters.major_faults.map(|count| count + 2_000);
            said.push(scene.pass(5_000, 0.0));
        }
        assert!(said.contains(&Park(2)), "{said:?}");
    }

    #[test]
    fn the_youngest_ends_when_memory_and_swap_are_used_up() {
        let mut scene = Scene::new(2);
        scene.look.machine.mem_available_bytes = Some(10 * MIB);
        assert_eq!(scene.pass_for(5, 0, 0.0), [Fine, Wait], "there is swap left");
        scene.look.machine.swap_free_bytes = Some(20 * MIB);
        assert!(scene.pass_for(5, 0, 0.0).contains(&Exhausted(2)));
    }

    #[test]
    fn without_swap_the_kernel_decides() {
        let mut scene = Scene::new(1);
        scene.look.machine.mem_available_bytes = Some(MIB);
        scene.look.machine.swap_total_bytes = Some(0);
        scene.look.machine.swap_free_bytes = Some(0);
        assert_eq!(scene.pass_for(60, 0, 0.0), [Fine, Wait]);
    }

    #[test]
    fn contiguous_memory_that_never_comes_ends_who_waits_for_it() {
        let check = |works: bool, expect: bool| {
            let mut scene = Scene::new(1);
            let mut said = Vec::new();
            for _ in 0..300 {
                scene.look.counters.cma_alloc_fails =
                    scene.look.counters.cma_alloc_fails.map(|count| count + 1);
                let cpu = scene.look.attempts[0].cpu;
                said.push(scene.pass(0, 0.0));
                if !works {
                    scene.look.attempts[0].cpu = cpu;
                }
            }
            assert_eq!(said.contains(&CmaStuck(1)), expect);
        };
        check(true, false);
        check(false, true);
    }

    /// What is said of one who works for `cpu` in each look and is refused contiguous memory in the looks `refused`.
    fn refused_in(refused: std::ops::Range<usize>, cpu: Duration) -> Vec<Verdict<u32>> {
        let mut scene = Scene::new(1);
        let mut look = |at: usize| {
            let fails = u64::from(refused.contains(&at));
            let counters = &mut scene.look.counters;
            counters.cma_alloc_fails = counters.cma_alloc_fails.map(|count| count + fails);
            let before = scene.look.attempts[0].cpu;
            let verdict = scene.pass(0, 0.0);
            scene.look.attempts[0].cpu = before.map(|sum| sum + cpu);
            verdict
        };
        (0..300).map(&mut look).collect()
    }

    #[test]
    fn contiguous_memory_must_fail_for_two_minutes_and_still_fail() {
        let never = |refused| !refused_in(refused, Duration::ZERO).contains(&CmaStuck(1));
        let said = refused_in(0..300, Duration::ZERO);
        // What failed between the first two looks is seen by the second, a second after the start.
        assert_eq!(said.iter().position(|verdict| *verdict == CmaStuck(1)), Some(241));
        assert!(never(0..200), "it is refused no more");
        assert!(never(250..300), "it was idle before, and refused nothing");
    }

    #[test]
    fn a_fiftieth_of_a_core_is_work() {
        let is_stuck =
            |cpu_ms| refused_in(0..300, Duration::from_millis(cpu_ms)).contains(&CmaStuck(1));
        assert!(is_stuck(8) && !is_stuck(12));
    }

    #[test]
    fn pages_that_only_come_or_only_go_are_no_thrash() {
        for way in 0..2 {
            let mut scene = Scene::new(2);
            let mut look = || {
                let counters = &mut scene.look.counters;
                let pages = [&mut counters.swap_in_pages, &mut counters.swap_out_pages];
                let [one, other] = pages;
                let pages = if way == 0 { one } else { other };
                *pages = pages.map(|count| count + 5_000);
                scene.pass(0, 0.9)
            };
            assert!((0..60).all(|_| look() == Fine), "{way}");
        }
    }

    #[test]
    fn pages_and_stalls_count_by_the_second() {
        let is_parked =
            |swapped, stalled| Scene::new(2).pass_for(10, swapped, stalled).contains(&Park(2));
        assert!(is_parked(150, 0.15));
        assert!(!is_parked(100, 0.15) && !is_parked(150, 0.08));
    }

    #[test]
    fn without_an_account_of_stalls_swapping_alone_is_no_thrash() {
        let mut scene = Scene::new(2);
        scene.look.attempts.iter_mut().for_each(|attempt| attempt.stalled_us = None);
        assert_eq!(scene.pass_for(60, 5_000, 0.0), [Fine]);
        // Nor are faults of who is at its own limit.
        scene.look.attempts.iter_mut().for_each(|attempt| attempt.is_at_limit = true);
        for _ in 0..60 {
            let faults = &mut scene.look.counters.major_faults;
            *faults = faults.map(|count| count + 2_000);
            assert_eq!(scene.pass(5_000, 0.0), Fine);
        }
    }

    #[test]
    fn who_is_gone_leaves_no_count_of_parks() {
        let mut scene = Scene::new(2);
        let thrash = |scene: &mut Scene, looks: usize| {
            let mut parked = 0;
            for _ in 0..looks {
                let both = scene.look.attempts.iter().all(|attempt| !attempt.is_parked);
                scene.look.machine.mem_available_bytes = Some(if both { 60 } else { 400 } * MIB);
                let (swapped, stalled) = if both { (5_000, 0.5) } else { (0, 0.0) };
                parked += u32::from(matches!(scene.pass(swapped, stalled), Park(2)));
            }
            parked
        };
        assert_eq!(thrash(&mut scene, 1000), PARKS_MAX);
        let second = scene.look.attempts.pop().unwrap();
        scene.pass(0, 0.0);
        // Another attempt of the same name.
        scene.look.attempts.push(second);
        assert_eq!(thrash(&mut scene, 1000), PARKS_MAX);
    }

    #[test]
    fn what_is_left_must_be_below_its_bounds() {
        let said = |available: u64, swap: u64| {
            let mut scene = Scene::new(1);
            let machine = &mut scene.look.machine;
            (machine.mem_total_bytes, machine.swap_total_bytes) =
                (Some(1000 * MIB), Some(1000 * MIB));
            machine.mem_available_bytes = Some(available * MIB);
            machine.swap_free_bytes = Some(swap * MIB);
            scene.pass_for(10, 0, 0.0)
        };
        assert_eq!(said(50, 10), [Fine], "a twentieth is room");
        assert_eq!(said(49, 10), [Fine, Wait]);
        assert_eq!(said(30, 10), [Fine, Wait], "three in a hundred are something");
        assert_eq!(said(29, 50), [Fine, Wait], "a twentieth of swap is something");
        assert!(said(29, 49).contains(&Exhausted(1)));
    }
}
