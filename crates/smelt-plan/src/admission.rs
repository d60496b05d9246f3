//! Decides whether a stage may start beside what runs, by the memory it is expected to take.  Pure.
//!
//! A stage waits for others of its run to give memory back.  Alone it starts where memory and swap
//! together hold it beside what servers may still take, waits a while for other programs, and is refused where it
//! can never fit.

use std::time::Duration;

use serde::Serialize;

use crate::kind::Kind;

/// A stage alone waits so long for memory that other programs hold.
const PATIENCE: Duration = Duration::from_secs(60);
/// What the kernel and everybody else keep in any case, where nobody asks for more.
const RESERVE_BYTES: u64 = 32 << 20;

/// What a stage is expected to take at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Forecast {
    /// Memory of all its processes together, in RAM or swapped out, that the kernel cannot drop: what it
    /// maps of files does not count.
    pub bytes: u64,
    /// How that is known.
    pub basis: Basis,
}

/// How a forecast is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// It took that when it was built last.
    Learned,
    /// Another stage of its kind took that, in proportion to what it reads.
    Alike,
    /// It follows from the sizes of what it reads.
    Estimated,
    /// Its `limits.memory`: it may take that, and perhaps takes less.
    Declared,
}

impl Basis {
    /// Whether a stage that does not fit by it is refused.  A limit says what a stage may take, and a
    /// likeness what another one took; neither is reason enough.
    fn is_firm(self) -> bool {
        match self {
            Self::Learned | Self::Estimated => true,
            Self::Alike | Self::Declared => false,
        }
    }

    /// The words for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Learned => "as the last time",
            Self::Alike => "as one like it",
            Self::Estimated => "by the sizes of what it reads",
            Self::Declared => "its limits.memory",
        }
    }
}

/// What the machine has, as the control groups above us see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Room {
    /// All memory.
    pub total_bytes: u64,
    /// What can be had without swapping.
    pub available_bytes: u64,
    /// All swap.
    pub swap_total_bytes: u64,
    /// What is free of it.
    pub swap_free_bytes: u64,
    /// What attempts that run are expected to take besides what they have.
    pub promised_bytes: u64,
    /// What servers may take besides what they have.
    pub served_bytes: u64,
    /// What the user wants to stay free for other programs.
    pub kept_bytes: u64,
    /// How many attempts run.
    pub running: usize,
}

impl Room {
    /// What can be had without swapping, and nobody else was promised.
    pub fn free_bytes(&self) -> u64 {
        let promised = self.promised_bytes.saturating_add(self.served_bytes);
        self.available_bytes.saturating_sub(promised)
    }

    /// What there must be for a stage, with what stays free beside it.
    fn needed_bytes(&self, forecast: Forecast) -> u64 {
        forecast.bytes.saturating_add(self.kept_bytes.max(RESERVE_BYTES))
    }
}

/// What becomes of a stage that is to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It starts.
    Start,
    /// It is asked for again.
    Wait,
    /// This device cannot hold it.
    Refuse(Lack),
}

/// Why a stage does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    /// All memory and swap together are less.
    Device,
    /// Other programs hold what it needs.
    Others,
    /// Servers may take what it needs.
    Servers,
}

/// Decides for a stage that has `waited` so long.
pub fn admit(forecast: Forecast, room: &Room, waited: Duration) -> Admission {
    let need = room.needed_bytes(forecast);
    if need <= room.free_bytes() {
        return Admission::Start;
    }
    if room.running > 0 {
        return Admission::Wait;
    }
    let free = room.available_bytes.saturating_add(room.swap_free_bytes);
    if need <= free.saturating_sub(room.served_bytes) {
        return Admission::Start;
    }
    let can_ever = need <= room.total_bytes.saturating_add(room.swap_total_bytes);
    match (forecast.basis.is_firm(), can_ever) {
        (_, true) if waited < PATIENCE => Admission::Wait,
        (false, _) => Admission::Start,
        (true, true) if need <= free => Admission::Refuse(Lack::Servers),
        (true, true) => Admission::Refuse(Lack::Others),
        (true, false) => Admission::Refuse(Lack::Device),
    }
}

/// Why a stage was refused, and what would help, in one line; `servers` is who may take `served_bytes`.
pub fn refusal(kind: Kind, forecast: Forecast, room: &Room, lack: Lack, servers: &str) -> String {
    let mib = |bytes: u64| format!("{} MiB", bytes.div_ceil(1 << 20));
    let need = room.needed_bytes(forecast);
    let (has, helps) = match lack {
        Lack::Device => {
            let all = room.total_bytes.saturating_add(room.swap_total_bytes);
            let missing = mib(need.saturating_sub(all));
            (
                format!(
                    "this device has {} and {} of swap",
                    mib(room.total_bytes),
                    mib(room.swap_total_bytes)
                ),
                format!("{missing} more swap on a disk (not zram), or {}", kind.smaller()),
            )
        }
        Lack::Others => (
            format!(
                "of {} and {} of swap other programs leave {} and {}",
                mib(room.total_bytes),
                mib(room.swap_total_bytes),
                mib(room.available_bytes),
                mib(room.swap_free_bytes)
            ),
            "ending other programs (the desktop: systemctl isolate multi-user.target), or more swap on \
             a disk (not zram)"
                .to_owned(),
        ),
        Lack::Servers => (
            format!(
                "of {} and {} of swap {} and {} are free, but {servers}",
                mib(room.total_bytes),
                mib(room.swap_total_bytes),
                mib(room.available_bytes),
                mib(room.swap_free_bytes)
            ),
            "ending that server, or starting it with less (--memory, --kv-memory)".to_owned(),
        ),
    };
    let kept = match room.kept_bytes {
        0 => String::new(),
        kept => format!(", {} are to stay free (--keep-free)", mib(kept)),
    };
    format!(
        "not started: it needs {} ({}){kept}, and {has}; what helps: {helps}; to try all the same, run \
         with --overcommit",
        mib(forecast.bytes),
        forecast.basis.name()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn room(available: u64, running: usize, promised: u64) -> Room {
        Room {
            total_bytes: 1000 * MIB,
            available_bytes: available * MIB,
            swap_total_bytes: 500 * MIB,
            swap_free_bytes: 400 * MIB,
            promised_bytes: promised * MIB,
            served_bytes: 0,
            kept_bytes: 0,
            running,
        }
    }

    /// The same beside servers that may still take so much.
    fn beside(served: u64, room: Room) -> Room {
        Room { served_bytes: served * MIB, ..room }
    }

    #[track_caller]
    fn check(need: u64, basis: Basis, room: Room, waited_s: u64, expect: Admission) {
        let forecast = Forecast { bytes: need * MIB, basis };
        assert_eq!(admit(forecast, &room, Duration::from_secs(waited_s)), expect);
    }

    use Admission::{Refuse, Start, Wait};
    use Basis::{Alike, Declared, Estimated, Learned};

    #[test]
    fn what_is_free_is_given() {
        check(500, Learned, room(600, 0, 0), 0, Start);
        check(500, Learned, room(600, 3, 50), 0, Start);
        check(500, Learned, room(600, 3, 100), 0, Wait);
        check(500, Learned, room(600, 3, 100), 100_000, Wait);
    }

    #[test]
    fn who_is_alone_may_swap() {
        check(900, Learned, room(600, 0, 0), 0, Start);
        check(900, Learned, room(600, 1, 0), 0, Wait);
    }

    #[test]
    fn other_programs_get_a_while_to_end() {
        check(1200, Learned, room(600, 0, 0), 59, Wait);
        check(1200, Learned, room(600, 0, 0), 60, Refuse(Lack::Others));
        check(1200, Declared, room(600, 0, 0), 59, Wait);
        check(1200, Declared, room(600, 0, 0), 60, Start);
    }

    #[test]
    fn what_servers_may_take_is_left_to_them() {
        check(500, Learned, beside(60, room(600, 0, 0)), 0, Start);
        check(500, Learned, beside(70, room(600, 3, 0)), 0, Wait);
        check(500, Learned, beside(40, room(600, 3, 40)), 0, Wait);
        // Alone, swap is of use to it or to them.
        check(900, Learned, beside(60, room(600, 0, 0)), 0, Start);
        check(900, Learned, beside(70, room(600, 0, 0)), 59, Wait);
        check(900, Learned, beside(70, room(600, 0, 0)), 60, Refuse(Lack::Servers));
        check(900, Declared, beside(70, room(600, 0, 0)), 60, Start);
        check(1200, Learned, beside(70, room(600, 0, 0)), 60, Refuse(Lack::Others));
        check(1600, Learned, beside(70, room(900, 0, 0)), 0, Refuse(Lack::Device));
        check(1, Declared, beside(u64::MAX / MIB, room(600, 1, 0)), 0, Wait);
    }

    #[test]
    fn what_is_to_stay_free_stays_free() {
        let keeping = |kept: u64, room: Room| Room { kept_bytes: kept * MIB, ..room };
        check(500, Learned, keeping(100, room(600, 1, 0)), 0, Start);
        check(500, Learned, keeping(101, room(600, 1, 0)), 0, Wait);
        // It stands for what smelt leaves by itself.
        check(500, Learned, keeping(1, room(532, 1, 0)), 0, Start);
        check(500, Learned, keeping(1, room(531, 1, 0)), 0, Wait);
        check(900, Learned, keeping(601, room(600, 0, 0)), 0, Refuse(Lack::Device));
        let forecast = Forecast { bytes: 900 * MIB, basis: Learned };
        let text =
            refusal(Kind::Command, forecast, &keeping(601, room(600, 0, 0)), Lack::Device, "");
        assert!(text.contains("(as the last time), 601 MiB are to stay free"), "{text}");
        assert!(text.contains("1 MiB more swap"), "{text}");
    }

    #[test]
    fn what_can_never_fit_is_refused_at_once_unless_that_is_a_guess() {
        check(1600, Learned, room(900, 0, 0), 0, Refuse(Lack::Device));
        check(1600, Estimated, room(900, 0, 0), 0, Refuse(Lack::Device));
        check(1600, Declared, room(900, 0, 0), 0, Start);
        check(1600, Alike, room(900, 0, 0), 0, Start);
        check(u64::MAX / MIB, Learned, room(900, 0, 0), 0, Refuse(Lack::Device));
    }

    #[test]
    fn a_refusal_has_numbers_and_advice() {
        let forecast = Forecast { bytes: 1600 * MIB, basis: Learned };
        let text = refusal(Kind::Command, forecast, &room(900, 0, 0), Lack::Device, "");
        assert!(text.contains("needs 1600 MiB (as the last time)"), "{text}");
        assert!(text.contains("has 1000 MiB and 500 MiB of swap"), "{text}");
        assert!(text.contains("132 MiB more swap on a disk"), "{text}");
        assert!(text.contains("or an escalate step that does less at once"), "{text}");
        let text = refusal(Kind::Command, forecast, &room(900, 0, 0), Lack::Others, "");
        assert!(text.contains("leave 900 MiB and 400 MiB"), "{text}");
        let server = "http://a:1 (pid 7) may take 90 MiB more";
        let text = refusal(Kind::Command, forecast, &room(900, 0, 0), Lack::Servers, server);
        assert!(text.contains("900 MiB and 400 MiB are free, but http://a:1 (pid 7)"), "{text}");
    }
}
