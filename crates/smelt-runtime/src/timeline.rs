//! Keeps what was done when, and writes it as a trace that Chrome and Perfetto open.
//!
//! Threads add spans by the host's clock; where a device has a clock of its own, what it took stands beside.  What is kept
//! is bounded: the first spans stay, and the file says how many later ones are missing.  No text of requests is in it.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use serde_json::json;

/// Spans that are kept: some 30 MB, which two hours of steps without a pause fill.
const SPANS_MAX: usize = 400_000;

/// Threads that prepare requests and have lanes of their own; more share the last.
const PREPARING_MAX: u32 = 256;

/// Where lanes of those threads begin.
const PREPARING_FIRST: u32 = 1000;

/// Where a span stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Opening and warming up.
    Load,
    /// The thread of the vision engine.
    Vision,
    /// The thread of a replica of the language model.
    Llm(usize),
    /// What that replica's device says that it took.
    Device(usize),
    /// The thread that adds it.
    Here,
}

/// Something that was done.
#[derive(Clone, Copy, Debug)]
struct Span {
    name: &'static str,
    lane: u32,
    from: Duration,
    took: Duration,
    /// What it was done to, and how many.
    count: Option<(&'static str, usize)>,
}

#[derive(Default)]
struct Inner {
    spans: Vec<Span>,
    missing: u64,
    threads: HashMap<ThreadId, u32>,
}

/// What was done when.
pub struct Timeline {
    begun: Instant,
    inner: Mutex<Inner>,
}

impl fmt::Debug for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timeline").finish_non_exhaustive()
    }
}

impl Default for Timeline {
    fn default() -> Self {
        Self { begun: Instant::now(), inner: Mutex::default() }
    }
}

impl Timeline {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps that something was done from `from` on, for so long; `count` says what to, and to how many.
    pub fn add(
        &self,
        (lane, name): (Lane, &'static str),
        from: Instant,
        took: Duration,
        count: Option<(&'static str, usize)>,
    ) {
        let from = from.saturating_duration_since(self.begun);
        let mut inner = self.inner();
        if inner.spans.len() >= SPANS_MAX {
            inner.missing += 1;
            return;
        }
        let lane = inner.lane(lane);
        inner.spans.push(Span { name, lane, from, took, count });
    }

    /// Does something, and keeps how long it took.
    pub fn timed<T>(&self, lane: Lane, name: &'static str, act: impl FnOnce() -> T) -> T {
        let from = Instant::now();
        let done = act();
        self.add((lane, name), from, from.elapsed(), None);
        done
    }

    /// Writes all of it in Chrome's format of trace events.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let inner = self.inner();
        let mut lanes: Vec<u32> = inner.spans.iter().map(|span| span.lane).collect();
        lanes.sort_unstable();
        lanes.dedup();
        let names = lanes.into_iter().map(|lane| {
            let args = json!({ "name": name_of(lane) });
            json!({ "name": "thread_name", "ph": "M", "pid": 1, "tid": lane, "args": args })
        });
        let spans = inner.spans.iter().map(|span| {
            let Span { name, lane, from, took, count } = span;
            let args = count.map_or(json!({}), |(what, count)| json!({ what: count }));
            let [from, took] = [from, took].map(|time| time.as_nanos() as f64 / 1e3);
            json!({
                "name": name, "ph": "X", "pid": 1, "tid": lane, "ts": from, "dur": took,
                "args": args,
            })
        });
        out.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n")?;
        let process =
            json!({ "name": "process_name", "ph": "M", "pid": 1, "args": { "name": "smelt" } });
        serde_json::to_writer(&mut *out, &process)?;
        for event in names.chain(spans) {
            out.write_all(b",\n")?;
            serde_json::to_writer(&mut *out, &event)?;
        }
        writeln!(out, "\n],\"otherData\":{{\"missing\":{}}}}}", inner.missing)?;
        out.flush()
    }
}

impl Inner {
    /// The number of a lane.
    fn lane(&mut self, lane: Lane) -> u32 {
        match lane {
            Lane::Load => 1,
            Lane::Vision => 2,
            Lane::Llm(at) => 10 + 2 * at as u32,
            Lane::Device(at) => 11 + 2 * at as u32,
            Lane::Here => {
                let next = PREPARING_MAX.min(self.threads.len() as u32);
                let thread = std::thread::current().id();
                // Those that come when all lanes are given are not kept apart.
                if next == PREPARING_MAX {
                    return PREPARING_FIRST + self.threads.get(&thread).unwrap_or(&next);
                }
                PREPARING_FIRST + *self.threads.entry(thread).or_insert(next)
            }
        }
    }
}

/// What a lane is called.
fn name_of(lane: u32) -> String {
    match lane {
        1 => "load".to_owned(),
        2 => "vision".to_owned(),
        PREPARING_FIRST.. => format!("preparing {}", lane - PREPARING_FIRST),
        lane if lane % 2 == 0 => format!("llm {}", (lane - 10) / 2),
        lane => format!("device {}", (lane - 10) / 2),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn written(timeline: &Timeline) -> Value {
        let mut out = Vec::new();
        timeline.write(&mut out).unwrap();
        serde_json::from_slice(&out).unwrap()
    }

    #[test]
    fn an_empty_one_is_a_trace_too() {
        let trace = written(&Timeline::default());
        assert_eq!(trace["traceEvents"].as_array().unwrap().len(), 1);
        assert_eq!(trace["otherData"]["missing"], 0);
    }

    #[test]
    fn spans_have_lanes_times_and_counts() {
        let timeline = Timeline::default();
        let (at, took) = (timeline.begun + Duration::from_micros(1500), Duration::from_micros(7));
        timeline.add((Lane::Llm(1), "chunk"), at, took, Some(("tokens", 128)));
        timeline.add((Lane::Device(1), "chunk"), at, took, None);
        assert_eq!(timeline.timed(Lane::Here, "pixels", || 5), 5);
        std::thread::scope(|scope| {
            scope.spawn(|| timeline.timed(Lane::Here, "pixels", || ()));
        });
        let trace = written(&timeline);
        let events = trace["traceEvents"].as_array().unwrap();
        let spans: Vec<&Value> = events.iter().filter(|event| event["ph"] == "X").collect();
        let names = spans.iter().map(|span| span["name"].as_str().unwrap()).collect::<Vec<_>>();
        assert_eq!(names, ["chunk", "chunk", "pixels", "pixels"]);
        assert_eq!((spans[0]["ts"].as_f64(), spans[0]["dur"].as_f64()), (Some(1500.0), Some(7.0)));
        assert_eq!(spans[0]["args"]["tokens"], 128);
        let lanes: Vec<&str> = events
            .iter()
            .filter(|event| event["name"] == "thread_name")
            .map(|event| event["args"]["name"].as_str().unwrap())
            .collect();
        assert_eq!(lanes, ["llm 1", "device 1", "preparing 0", "preparing 1"]);
    }

    #[test]
    fn what_is_kept_is_bounded_and_the_rest_is_counted() {
        let timeline = Timeline::default();
        for _ in 0..SPANS_MAX + 3 {
            timeline.add((Lane::Load, "load"), timeline.begun, Duration::ZERO, None);
        }
        assert_eq!(timeline.inner().spans.len(), SPANS_MAX);
        assert_eq!(timeline.inner().missing, 3);
    }
}
