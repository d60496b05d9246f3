//! Carries a plan out: a thread for each stream, each asking again as soon as it was answered, or when the
//! next request comes.
//!
//! Everything that takes time is here; what it means is not.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::arrivals;
pub use crate::ask::Endpoint;
use crate::ask::{AskError, Asked, Caller};
pub use crate::error::LoadError;
use crate::figures::{Figures, LoadRun, Request};
use crate::picture;
use crate::plan::{Case, LoadPlan};
pub use crate::process::Memory;
use crate::process::Watch;
use crate::prompt::{self, PROBES, Rate};
use crate::watts::Meter;

/// What requests show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageSource {
    /// A new one each time, so many pixels wide and high.
    Drawn(u32),
    /// These, in turns.
    Files(Vec<PathBuf>),
}

/// A server that is measured.
#[derive(Clone, Debug)]
pub struct Target {
    /// What it is called in the table; its model's name if nothing is said.
    pub name: Option<String>,
    /// How it is spoken to.
    pub endpoint: Endpoint,
    /// Its process, if that is on this machine and its memory is watched.
    pub pid: Option<u32>,
}

/// A server that was measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// What it is called.
    pub name: String,
    /// Its address.
    pub url: String,
    /// The model that answered.
    pub model: String,
    /// Most tokens of a prompt with its answer, where the server says so.
    pub context: Option<u64>,
    /// The types of the model's weights, where the server says so.
    pub weights: Option<String>,
    /// The server's version, where it says one.
    pub version: Option<String>,
}

/// A case, measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Which server was asked: its place in the measurement.
    pub server: usize,
    /// What was asked.
    pub case: Case,
    /// What came of it.
    pub figures: Figures,
}

/// Everything that was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// In the order they were given.
    pub servers: Vec<Server>,
    /// In the order of the plan, each case of every server.
    pub cases: Vec<Measured>,
}

impl Measurement {
    /// What the server of a row is called.
    pub fn name(&self, row: &Measured) -> &str {
        &self.servers[row.server].name
    }
}

/// Measures every case of `plan` at every target, which take turns: what else the machine does, it does to
/// all.  `hear` is told what is being done.
///
/// # Errors
/// [`LoadError`] where nothing can be measured; single requests that fail are figures.
pub fn measure(
    targets: &[Target],
    plan: &LoadPlan,
    pictures: &ImageSource,
    hear: &mut dyn FnMut(&str),
) -> Result<Measurement, LoadError> {
    plan.check()?;
    let shelf = Shelf::read(pictures)?;
    let known = targets.iter().map(|target| Known::meet(target, plan.seed));
    let known: Vec<Known> = known.collect::<Result<_, _>>()?;
    let servers: Vec<Server> = known.iter().map(Known::server).collect();
    for (index, server) in servers.iter().enumerate() {
        if servers[..index].iter().any(|other| other.name == server.name) {
            return Err(LoadError::Twice(server.name.clone()));
        }
    }
    // Seeds of two plans lie so far apart that no request of one is met in the other.
    let mut seed = plan.seed.wrapping_mul(SEEDS_OF_A_PLAN);
    let mut cases = Vec::with_capacity(plan.cases.len() * targets.len());
    for case in &plan.cases {
        let mut runs = vec![Vec::with_capacity(plan.runs); targets.len()];
        for turn in 0..plan.warm_ups + plan.runs {
            for (known, runs) in known.iter().zip(&mut runs) {
                let run = known.run(plan, case, &shelf, seed)?;
                if turn >= plan.warm_ups {
                    runs.push(run);
                }
            }
            seed = seed.wrapping_add(plan.requests(case) as u64);
        }
        for (server, runs) in runs.iter().enumerate() {
            let figures = Figures::of(runs);
            hear(&format!(
                "{}: {} streams of {}:{} tokens, {} images: {:.1} tokens/s, {} errors",
                servers[server].name,
                case.streams,
                case.lengths.prompt,
                case.lengths.answer,
                case.pictures,
                figures.tokens_per_s.map_or(0.0, |spread| spread.median),
                figures.errors.iter().map(|(_, count)| count).sum::<usize>(),
            ));
            cases.push(Measured { server, case: *case, figures });
        }
    }
    Ok(Measurement { servers, cases })
}

/// A target that has answered.
struct Known<'a> {
    target: &'a Target,
    caller: Caller,
    rate: Rate,
}

/// What smelt calls its weights; of llama-server the bits of one, from their number and what they take.
fn weights(listed: &Value) -> Option<String> {
    let of = |name: &str| listed["meta"][name].as_f64().filter(|&number| number > 0.0);
    let bits = || Some(format!("{:.2} bits", 8.0 * of("size")? / of("n_params")?));
    listed["quantization"].as_str().map(str::to_owned).or_else(bits)
}

impl<'a> Known<'a> {
    fn meet(target: &'a Target, seed: u64) -> Result<Self, LoadError> {
        let caller = Caller::new(&target.endpoint)?;
        let rate = calibrate(&caller, &target.endpoint.url, seed)?;
        Ok(Self { target, caller, rate })
    }

    fn server(&self) -> Server {
        let model = self.caller.model().to_owned();
        let name = self.target.name.clone().unwrap_or_else(|| model.clone());
        let url = self.target.endpoint.url.clone();
        let listed = self.caller.listed();
        // As vLLM and smelt say it.
        let context = listed["max_model_len"].as_u64();
        Server {
            name,
            url,
            model,
            context,
            weights: weights(&listed),
            version: self.caller.version(),
        }
    }

    fn run(
        &self,
        plan: &LoadPlan,
        case: &Case,
        shelf: &Shelf,
        seed: u64,
    ) -> Result<LoadRun, LoadError> {
        let watch = |pid| Watch::begin(pid).ok_or(LoadError::NoProcess(pid));
        let watch = self.target.pid.map(watch).transpose()?;
        // A sensor counts what is asked while streams begin.
        let meter = plan.ramp.is_zero().then(Meter::begin).flatten();
        let mut run = Asking { plan, case, rate: self.rate, shelf, seed }.run(&self.caller);
        run.memory = watch.map(Watch::end);
        run.joules = meter.and_then(Meter::end);
        Ok(run)
    }
}

/// Finds how many words make so many tokens.
fn calibrate(caller: &Caller, url: &str, seed: u64) -> Result<Rate, LoadError> {
    let mut tokens = [None; 2];
    for (words, tokens) in PROBES.iter().zip(&mut tokens) {
        let text = prompt::text(*words, !seed);
        let asked = Asked { text, pictures: Vec::new(), answer_tokens: 1 };
        *tokens = match caller.ask(&asked) {
            Ok(received) => received.usage.map(|[prompt, _]| prompt),
            // The only token may have no text.
            Err(AskError::Hear(crate::receive::HearError::Empty)) => None,
            Err(error) => {
                return Err(LoadError::Server { url: url.to_owned(), why: error.to_string() });
            }
        };
    }
    Ok(Rate::of(tokens[0].zip(tokens[1]).map(|(few, many)| [few, many])))
}

/// Pictures as they are sent.
enum Shelf {
    Drawn(u32),
    Read(Vec<String>),
}

impl Shelf {
    fn read(pictures: &ImageSource) -> Result<Self, LoadError> {
        Ok(match pictures {
            ImageSource::Drawn(side) => Self::Drawn(*side),
            ImageSource::Files(paths) => {
                let read = |path: &PathBuf| {
                    picture::of_file(path).map_err(|error| LoadError::Picture {
                        path: path.clone(),
                        why: error.to_string(),
                    })
                };
                Self::Read(paths.iter().map(read).collect::<Result<_, _>>()?)
            }
        })
    }

    fn take(&self, count: usize, seed: u64) -> Vec<String> {
        let first = seed.wrapping_mul(PICTURE_SEEDS);
        let numbers = (0..count as u64).map(|index| first.wrapping_add(index));
        match self {
            Self::Drawn(side) => numbers.map(|number| picture::drawn(*side, number)).collect(),
            Self::Read(files) => numbers
                .filter_map(|number| files.get(number as usize % files.len().max(1)).cloned())
                .collect(),
        }
    }
}

/// Seeds of a plan: more than its cases have requests.
const SEEDS_OF_A_PLAN: u64 = 1 << 32;

/// Seeds between the first pictures of two requests, more than a request may have.
const PICTURE_SEEDS: u64 = 1024;

/// One run of one case.
struct Asking<'a> {
    plan: &'a LoadPlan,
    case: &'a Case,
    rate: Rate,
    shelf: &'a Shelf,
    seed: u64,
}

impl Asking<'_> {
    fn run(&self, caller: &Caller) -> LoadRun {
        let count = self.plan.requests(self.case);
        // Made beforehand: drawing pictures is no part of a server's time.
        let asked: Vec<Asked> = (0..count).map(|number| self.asked(number)).collect();
        let (next, answered) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(count)));
        let due = self.plan.per_s.map(|per_s| arrivals::poisson(per_s, count, self.seed));
        let (streams, begun) = (self.case.streams.min(count), Mutex::new(Vec::new()));
        // Nothing counts before all streams ask: fewer of them are another case.
        let start = Instant::now() + self.ramp(streams.saturating_sub(1));
        thread::scope(|scope| {
            for stream in 0..streams {
                let (asked, next, answered, caller) = (&asked, &next, &answered, caller.again());
                let (due, begun) = (&due, &begun);
                scope.spawn(move || {
                    thread::sleep(self.ramp(stream));
                    self.settle(&caller, stream, start);
                    held(begun).push(Instant::now());
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        let Some(asked) = asked.get(number) else { break };
                        let late = due.as_ref().map_or(Duration::ZERO, |due| {
                            thread::sleep(due[number].saturating_sub(start.elapsed()));
                            start.elapsed().saturating_sub(due[number])
                        });
                        let received = caller.ask(asked).map_err(|error| error.to_string());
                        let received = received.map(|received| received.after(late));
                        let request =
                            Request { has_pictures: !asked.pictures.is_empty(), received };
                        held(answered).push(request);
                    }
                });
            }
        });
        let took = mean_since(&held(&begun));
        let requests = std::mem::take(&mut *held(&answered));
        LoadRun { took, requests, memory: None, joules: None }
    }

    /// Keeps a stream busy until the last has begun.
    fn settle(&self, caller: &Caller, stream: usize, start: Instant) {
        let mut number = stream;
        while Instant::now() < start {
            // What fails is met again by the requests that count.
            let _ = caller.ask(&self.uncounted(number));
            number += self.case.streams;
        }
    }

    /// A request as those that count, of a seed that none of them has.
    fn uncounted(&self, number: usize) -> Asked {
        let apart = (number as u64).wrapping_mul(SEEDS_OF_A_PLAN);
        Self { seed: !self.seed.wrapping_add(apart), ..*self }.asked(0)
    }

    fn asked(&self, number: usize) -> Asked {
        let seed = self.seed.wrapping_add(number as u64);
        let words = self.rate.words(self.case.lengths.prompt);
        Asked {
            text: prompt::text(words, seed),
            pictures: self.shelf.take(self.plan.pictures(self.case, number), seed),
            answer_tokens: self.case.lengths.answer,
        }
    }

    /// When a stream begins.
    fn ramp(&self, stream: usize) -> Duration {
        self.plan.ramp * stream as u32 / self.case.streams.max(1) as u32
    }
}

/// What a mutex guards; a thread that panicked has spoilt no request.
fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long ago some moments were, in the mean: streams that were still busy with what does not count began later.
fn mean_since(moments: &[Instant]) -> Duration {
    let now = Instant::now();
    let since: Duration = moments.iter().map(|moment| now.saturating_duration_since(*moment)).sum();
    since / moments.len().max(1) as u32
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_types_of_weights_are_told_by_each_server_in_its_way() {
        assert_eq!(weights(&json!({ "quantization": "int4-g64" })).as_deref(), Some("int4-g64"));
        let meta = json!({ "meta": { "size": 580_000_000, "n_params": 1_000_000_000 } });
        assert_eq!(weights(&meta).as_deref(), Some("4.64 bits"));
        assert_eq!(
            weights(&json!({ "quantization": null, "meta": { "size": 1, "n_params": 0 } })),
            None
        );
        assert_eq!(weights(&Value::Null), None);
    }
}
