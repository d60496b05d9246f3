//! Reads the kernel's log as it is written, and picks out what ends stages: kills for want of
//! memory, contiguous allocations refused, NvMap's failures, heat and weak power.
//!
//! A record of `/dev/kmsg` is `priority,number,microseconds,flags;text`, and lines beyond the first
//! are for machines (`Documentation/ABI/testing/dev-kmsg`).  Parsing is pure.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};

/// The kernel writes none longer.
const RECORD_BYTES_MAX: usize = 8 << 10;
/// Records read in one go: more than a kernel's log holds.
const RECORDS_MAX: usize = 1 << 16;
/// Events kept of a run; attempts take theirs when they end.
const KEPT_MAX: usize = 512;
/// Events of one attempt, the last ones: a kernel that complains of the same thing goes on doing so.
const OF_ATTEMPT_MAX: usize = 32;
/// Of names and texts; a task's own name has 15 letters.
const TEXT_CHARS_MAX: usize = 200;

/// Something that the kernel wrote into its log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelEvent {
    /// Microseconds on the kernel's own clock, which begins near zero when it starts.
    pub at_us: u64,
    /// What it was.
    pub what: What,
}

/// What it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum What {
    /// A process was killed since memory had run out.
    OomKill {
        /// Whose limit was reached: `CONSTRAINT_NONE` is the whole machine, `CONSTRAINT_MEMCG` a
        /// control group.
        constraint: String,
        /// The control group the process was in.
        group: Option<String>,
        /// The name of the process, which it can choose.
        task: String,
        /// Its id.
        pid: u32,
    },
    /// A contiguous allocation was refused.
    CmaAllocFailed {
        /// The area, where the kernel names it.
        area: Option<String>,
        /// How much was asked for.
        pages: u64,
        /// The error, as a positive number: 12 is no memory, 16 busy.
        error: u32,
    },
    /// NvMap could not do what the driver asked for.  The large number that such a line has before
    /// its error is the number of a system call's command and says nothing of sizes.
    NvMapFailed {
        /// The function that complains.
        call: String,
        /// The error: 12 is no memory.
        error: u32,
    },
    /// The machine is too hot, or slows down since it is.
    Heat {
        /// The kernel's words.
        text: String,
    },
    /// The supply does not give what is drawn.
    WeakPower {
        /// The kernel's words.
        text: String,
    },
}

impl KernelEvent {
    /// Takes a record apart; `None` where it tells nothing of interest.
    pub fn parse(record: &str) -> Option<Self> {
        let (head, text) = record.split_once(';')?;
        let text = text.lines().next()?;
        let at_us = head.split(',').nth(2)?.parse().ok()?;
        let what = oom_kill(text)
            .or_else(|| cma_alloc_failed(text))
            .or_else(|| nvmap_failed(text))
            .or_else(|| supply(text))?;
        Some(Self { at_us, what })
    }
}

/// `oom-kill:constraint=C,…,task_memcg=/G,task=NAME,pid=N,uid=N`; names may hold commas, so the
/// line is read from its end.
fn oom_kill(text: &str) -> Option<What> {
    let (_, text) = text.split_once("oom-kill:constraint=")?;
    let (left, _) = text.rsplit_once(",uid=")?;
    let (left, pid) = left.rsplit_once(",pid=")?;
    let (left, task) = left.rsplit_once(",task=")?;
    let constraint = left.split(',').next()?;
    let group = left.rsplit_once(",task_memcg=").map(|(_, group)| short(group));
    Some(What::OomKill {
        constraint: short(constraint),
        group,
        task: short(task),
        pid: pid.parse().ok()?,
    })
}

/// `cma: cma_alloc: AREA: alloc failed, req-size: N pages, ret: -E`; newer kernels say `__cma_alloc`,
/// older ones name no area.
fn cma_alloc_failed(text: &str) -> Option<What> {
    let (_, text) = text.split_once("cma_alloc: ")?;
    let (area, text) = text.split_once("alloc failed, req-size: ")?;
    let (pages, text) = text.split_once(" pages, ret: ")?;
    let area = area.trim_end().trim_end_matches(':');
    Some(What::CmaAllocFailed {
        area: (!area.is_empty()).then(|| short(area)),
        pages: pages.parse().ok()?,
        error: text.trim().trim_start_matches('-').parse().ok()?,
    })
}

/// `NvMapMemAllocInternalTagged: 1075072515 error 12`, and the same without the command's number.
fn nvmap_failed(text: &str) -> Option<What> {
    let at = text.find("NvMap")?;
    let (call, text) = text.get(at..)?.split_once(':')?;
    let (_, error) = text.rsplit_once("error ")?;
    let error = error.split_ascii_whitespace().next()?.trim_start_matches('-').parse().ok()?;
    (error != 0).then(|| What::NvMapFailed { call: short(call), error })
}

/// Words of thermal zones, of x86's and Jetson's throttling, and of boards that watch their supply.
fn supply(text: &str) -> Option<What> {
    const HEAT: [&str; 4] = [
        "critical temperature reached",
        "temperature too high",
        "temperature above threshold",
        "thermal shutdown",
    ];
    const POWER: [&str; 4] =
        ["undervoltage detected", "under-voltage detected", "oc alarm", "brownout"];
    let lower = text.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    if has(&HEAT) {
        Some(What::Heat { text: short(text) })
    } else if has(&POWER) {
        Some(What::WeakPower { text: short(text) })
    } else {
        None
    }
}

fn short(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).collect()
}

/// The log from some moment on; copies share what they have read.
#[derive(Debug, Clone)]
pub struct KernelLog(Arc<Mutex<Reader>>);

#[derive(Debug)]
struct Reader {
    file: File,
    record: Vec<u8>,
    events: VecDeque<KernelEvent>,
    /// How many events there have been.
    count: u64,
}

/// A moment in the log.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mark(u64);

impl KernelLog {
    /// Reads what is written from now on; an error where we may not.
    pub fn open(root: &Path) -> io::Result<Self> {
        let flags = OFlag::O_NONBLOCK.bits();
        let mut file =
            OpenOptions::new().read(true).custom_flags(flags).open(root.join("dev/kmsg"))?;
        file.seek(SeekFrom::End(0))?;
        let record = vec![0; RECORD_BYTES_MAX];
        let reader = Reader { file, record, events: VecDeque::new(), count: 0 };
        Ok(Self(Arc::new(Mutex::new(reader))))
    }

    /// This moment.
    pub fn mark(&self) -> Mark {
        Mark(self.read().count)
    }

    /// The last events since a moment.
    pub fn since(&self, mark: Mark) -> Vec<KernelEvent> {
        let reader = self.read();
        let new = usize::try_from(reader.count.saturating_sub(mark.0)).unwrap_or(usize::MAX);
        let skipped = reader.events.len().saturating_sub(new.min(OF_ATTEMPT_MAX));
        reader.events.iter().skip(skipped).cloned().collect()
    }

    /// The reader after all that has been written until now.
    fn read(&self) -> MutexGuard<'_, Reader> {
        let mut reader = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        reader.catch_up();
        reader
    }
}

impl Reader {
    fn catch_up(&mut self) {
        for _ in 0..RECORDS_MAX {
            match self.file.read(&mut self.record) {
                Ok(0) => return,
                Ok(length) => self.take(length),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Records were overwritten before we read them; the next one is there.
                Err(error) if error.raw_os_error() == Some(Errno::EPIPE as i32) => {}
                Err(_) => return,
            }
        }
    }

    fn take(&mut self, length: usize) {
        let record = String::from_utf8_lossy(&self.record[..length]);
        let Some(event) = KernelEvent::parse(&record) else { return };
        if self.events.len() == KEPT_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
        self.count += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use smelt_random::Random;

    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Option<What>) {
        let record = format!("6,1234,98765432,-;{text}\n SUBSYSTEM=x\n");
        let expect = expect.map(|what| KernelEvent { at_us: 98_765_432, what });
        assert_eq!(KernelEvent::parse(&record), expect, "{text}");
    }

    fn killed(constraint: &str, group: Option<&str>, task: &str, pid: u32) -> Option<What> {
        let [constraint, task] = [constraint, task].map(str::to_owned);
        Some(What::OomKill { constraint, group: group.map(str::to_owned), task, pid })
    }

    #[test]
    fn kills_name_their_process() {
        check(
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,\
             oom_memcg=/smelt-r.a.1,task_memcg=/smelt-r.a.1,task=hog,pid=4711,uid=0",
            killed("CONSTRAINT_MEMCG", Some("/smelt-r.a.1"), "hog", 4711),
        );
        check(
            "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,\
             global_oom,task_memcg=/,task=a,pid=1,task=b,pid=2,uid=9",
            killed("CONSTRAINT_NONE", Some("/,task=a,pid=1"), "b", 2),
        );
        check("oom-kill:constraint=CONSTRAINT_NONE,task=x,pid=y,uid=0", None);
        check("Out of memory: Killed process 4711 (hog) total-vm:1kB", None);
    }

    #[test]
    fn refused_contiguous_allocations_have_a_size() {
        let failed = |area: Option<&str>, pages, error| {
            Some(What::CmaAllocFailed { area: area.map(str::to_owned), pages, error })
        };
        check(
            "cma: __cma_alloc: reserved: alloc failed, req-size: 8100 pages, ret: -12",
            failed(Some("reserved"), 8100, 12),
        );
        check(
            "cma: cma_alloc: linux,cma: alloc failed, req-size: 1 pages, ret: -16",
            failed(Some("linux,cma"), 1, 16),
        );
        check("cma: cma_alloc: alloc failed, req-size: 32 pages, ret: -12", failed(None, 32, 12));
        check("cma: cma_alloc: alloc failed, req-size: many pages, ret: -12", None);
        check("cma: number of available pages: 92@8356+92@16548", None);
    }

    #[test]
    fn nvmaps_number_is_no_size() {
        let failed = |call: &str, error| Some(What::NvMapFailed { call: call.to_owned(), error });
        let call = "NvMapMemAllocInternalTagged";
        check("NvMapMemAllocInternalTagged: 1075072515 error 12", failed(call, 12));
        check("x NvMapMemAllocInternalTagged: 1075072515 error 12", failed(call, 12));
        check("NvMapMemHandleAlloc: error 12", failed("NvMapMemHandleAlloc", 12));
        check("NvMapMemHandleAlloc: error 0", None);
        let event = KernelEvent::parse("6,1,2,-;NvMapX: 1075072515 error 12").unwrap();
        assert!(!serde_json::to_string(&event).unwrap().contains("1075072515"));
    }

    #[test]
    fn heat_and_weak_power_are_told_apart() {
        let heat =
            "thermal thermal_zone0: cpu-thermal: critical temperature reached, shutting down";
        check(heat, Some(What::Heat { text: heat.to_owned() }));
        let power = "hwmon hwmon1: Undervoltage detected!";
        check(power, Some(What::WeakPower { text: power.to_owned() }));
        let current = "soctherm: OC ALARM 0x00000001";
        check(current, Some(What::WeakPower { text: current.to_owned() }));
        check("thermal_sys: Registered thermal governor 'step_wise'", None);
        check(&"x".repeat(9000), None);
        let Some(KernelEvent { what: What::Heat { text }, .. }) =
            KernelEvent::parse(&format!("6,1,2,-;{}", heat.repeat(90)))
        else {
            panic!("not found")
        };
        assert_eq!(text.chars().count(), TEXT_CHARS_MAX);
    }

    #[test]
    fn no_text_makes_it_panic() {
        let pieces = [
            "6,1,2,-;",
            ";",
            ",",
            "oom-kill:constraint=",
            ",task=",
            ",pid=",
            ",uid=",
            "7",
            "é",
            "cma_alloc: ",
            "alloc failed, req-size: ",
            " pages, ret: ",
            "-12",
            "NvMap",
            ":",
            "error ",
            "\n",
            "\u{0}",
            "18446744073709551616",
            "OC ALARM",
            ",task_memcg=",
        ];
        let mut random = Random::new(7);
        for _ in 0..50_000 {
            let text: String = (0..random.below(11)).map(|_| random.pick(&pieces)).collect();
            let _ = KernelEvent::parse(&text);
        }
    }

    #[test]
    fn an_attempt_gets_what_was_written_meanwhile() {
        // Whoever may not write there has no log to test with.
        let Ok(mut kmsg) = OpenOptions::new().write(true).open("/dev/kmsg") else { return };
        let Ok(log) = KernelLog::open(Path::new("/")) else { return };
        let own = std::process::id();
        let mut write = |pages: u32| {
            let line = format!(
                "cma: cma_alloc: test{own}: alloc failed, req-size: {pages} pages, ret: -12\n"
            );
            kmsg.write_all(line.as_bytes()).unwrap();
        };
        let ours = |mark| {
            let pages = log.since(mark).into_iter().filter_map(|event| match event.what {
                What::CmaAllocFailed { area, pages, .. } if area == Some(format!("test{own}")) => {
                    Some(pages)
                }
                _ => None,
            });
            pages.collect::<Vec<_>>()
        };
        write(1);
        let first = log.mark();
        write(2);
        let second = log.mark();
        write(3);
        assert_eq!((ours(first), ours(second)), (vec![2, 3], vec![3]));
        assert!(ours(log.mark()).is_empty());
    }
}
