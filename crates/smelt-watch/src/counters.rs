//! Reads what only ever grows (faults, swapping, stalls, kills), so that two readings tell what
//! happened between them.

use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::activity::Activity;
use crate::kernel_file;
use crate::pressure::Pressure;

/// Where the machine's account of events is.
const EVENTS: &str = "proc/vmstat";
/// Where its account of stalls is.
const PRESSURE: &str = "proc/pressure/memory";

/// An attempt that begins when another has just ended counts from the reading that ended that one: the
/// kernel takes longer to render its hundreds of figures than a small stage to start.
const RECENT: Duration = Duration::from_millis(10);

/// The machine's last reading, for all attempts of a run.  Its stalls are not in it, which an attempt's own
/// group mostly tells.
#[derive(Debug, Default)]
pub(crate) struct Recent(Mutex<Option<(Instant, Counters)>>);

impl Recent {
    /// The last reading if it is recent, else one of now.
    pub(crate) fn begin(&self, root: &Path) -> Counters {
        let last = self.0.lock().ok().and_then(|last| *last);
        let recent = last.filter(|(at, _)| at.elapsed() < RECENT);
        recent.map_or_else(|| self.end(root), |(_, counters)| counters)
    }

    /// A reading of now.
    pub(crate) fn end(&self, root: &Path) -> Counters {
        let text = kernel_file::text(root.join(EVENTS)).unwrap_or_default();
        let counters = Counters::parse(&text, "");
        if let Ok(mut last) = self.0.lock() {
            *last = Some((Instant::now(), counters));
        }
        counters
    }
}

/// One reading, or the difference of two; `None` where nobody counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Page faults that had to read from a disk.
    pub major_faults: Option<u64>,
    /// Pages read back from swap.
    pub swap_in_pages: Option<u64>,
    /// Pages written to swap.
    pub swap_out_pages: Option<u64>,
    /// Microseconds in which at least one task waited for memory.
    pub pressure_some_us: Option<u64>,
    /// Microseconds in which every task did.
    pub pressure_full_us: Option<u64>,
    /// Contiguous allocations that the kernel had to refuse.
    pub cma_alloc_fails: Option<u64>,
    /// Processes that the out-of-memory killer ended.
    pub oom_kills: Option<u64>,
    /// Microseconds that tasks waited for pages to be read back from swap, each for itself.
    pub swap_in_wait_us: Option<u64>,
    /// Microseconds that tasks waited for pages that had only just been given up.
    pub thrashing_wait_us: Option<u64>,
}

impl Counters {
    /// Reads the machine whose file system is at `root`.
    pub fn read(root: &Path) -> Self {
        Self::parse(
            &kernel_file::text(root.join(EVENTS)).unwrap_or_default(),
            &kernel_file::text(root.join(PRESSURE)).unwrap_or_default(),
        )
    }

    /// Reads the machine's stalls alone, which is quicker.
    pub fn read_pressure(root: &Path) -> Option<Pressure> {
        Pressure::parse(&kernel_file::text(root.join(PRESSURE)).ok()?)
    }

    /// Takes the two files' texts apart.
    pub fn parse(vmstat: &str, pressure: &str) -> Self {
        let activity = Activity::parse(vmstat);
        Self {
            major_faults: activity.major_faults,
            swap_in_pages: activity.swap_in_pages,
            swap_out_pages: activity.swap_out_pages,
            cma_alloc_fails: activity.cma_alloc_fails,
            oom_kills: activity.oom_kills,
            // Waits are told of tasks that end.
            ..Self::default()
        }
        .with_pressure(Pressure::parse(pressure))
    }

    /// These with stalls that were read apart.
    pub fn with_pressure(self, pressure: Option<Pressure>) -> Self {
        Self {
            pressure_some_us: pressure.map(|pressure| pressure.some_us),
            pressure_full_us: pressure.map(|pressure| pressure.full_us),
            ..self
        }
    }

    /// What happened since `before`; what either reading lacks is unknown.
    pub fn since(&self, before: &Self) -> Self {
        self.with(before, |now, before| Some(now?.saturating_sub(before?)))
    }

    /// These, and where they lack one that of `other`.
    pub fn or(&self, other: &Self) -> Self {
        self.with(other, Option::or)
    }

    fn with(&self, b: &Self, of: fn(Option<u64>, Option<u64>) -> Option<u64>) -> Self {
        Self {
            major_faults: of(self.major_faults, b.major_faults),
            swap_in_pages: of(self.swap_in_pages, b.swap_in_pages),
            swap_out_pages: of(self.swap_out_pages, b.swap_out_pages),
            pressure_some_us: of(self.pressure_some_us, b.pressure_some_us),
            pressure_full_us: of(self.pressure_full_us, b.pressure_full_us),
            cma_alloc_fails: of(self.cma_alloc_fails, b.cma_alloc_fails),
            oom_kills: of(self.oom_kills, b.oom_kills),
            swap_in_wait_us: of(self.swap_in_wait_us, b.swap_in_wait_us),
            thrashing_wait_us: of(self.thrashing_wait_us, b.thrashing_wait_us),
        }
    }

    /// Each figure by the name that reports use.
    pub fn named(&self) -> [(&'static str, Option<u64>); 9] {
        [
            ("major_faults", self.major_faults),
            ("swap_in_pages", self.swap_in_pages),
            ("swap_out_pages", self.swap_out_pages),
            ("pressure_some_us", self.pressure_some_us),
            ("pressure_full_us", self.pressure_full_us),
            ("cma_alloc_fails", self.cma_alloc_fails),
            ("oom_kills", self.oom_kills),
            ("swap_in_wait_us", self.swap_in_wait_us),
            ("thrashing_wait_us", self.thrashing_wait_us),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(oom_kills: Option<u64>, swap_in_pages: Option<u64>) -> Counters {
        Counters { oom_kills, swap_in_pages, ..Counters::default() }
    }

    #[test]
    fn a_kernels_files_are_taken_apart() {
        let vmstat = "pswpin 1\npswpout 2\npgmajfault 3\ncma_alloc_success 9\ncma_alloc_fail 4\n\
                      oom_kill_disable 9\noom_kill 5\n";
        let pressure = "some avg10=0.00 total=6\nfull avg10=0.00 total=7\n";
        let values = Counters::parse(vmstat, pressure).named().map(|(_, value)| value);
        assert_eq!(values[..7], [3, 1, 2, 6, 7, 4, 5].map(Some));
        assert_eq!(Counters::parse("", ""), Counters::default());
    }

    #[test]
    fn a_difference_needs_both_ends() {
        let now = reading(Some(7), Some(3));
        assert_eq!(now.since(&reading(Some(5), None)), reading(Some(2), None));
        assert_eq!(now.or(&reading(None, Some(9))), now);
        assert_eq!(
            reading(None, Some(3)).or(&reading(Some(1), Some(9))),
            reading(Some(1), Some(3))
        );
    }

    #[test]
    fn names_are_those_of_the_fields() {
        let full = Counters::parse("", "").with(&Counters::default(), |_, _| Some(1));
        let json = serde_json::to_value(full).unwrap();
        let names: Vec<_> = full.named().iter().map(|(name, _)| *name).collect();
        let mut fields: Vec<_> = json.as_object().unwrap().keys().map(String::as_str).collect();
        fields.sort_unstable();
        let mut sorted = names.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, fields);
    }
}
