//! Carries a plan out: a thread for each stream, each asking again as soon as it was answered.
//!
//! Everything that takes time is here; what it means is not.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

pub use crate::ask::Endpoint;
use crate::ask::{AskError, Asked, Caller};
use crate::figures::{Figures, Request, Run};
use crate::picture;
use crate::plan::{Case, Plan, PlanError};
pub use crate::process::Memory;
use crate::process::Watch;
use crate::prompt::{self, PROBES, Rate};
use crate::watts::Meter;

/// Why nothing could be measured.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The plan cannot be carried out.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The server gives no answer at all.
    #[error("{url} gives no answer: {why}")]
    Server {
        /// The server's address.
        url: String,
        /// What went wrong.
        why: String,
    },
    /// The server names no model.
    #[error("{0} names no model; say which with --model")]
    NoModel(String),
    /// A picture cannot be sent.
    #[error("cannot read picture {}: {why}", path.display())]
    Picture {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        why: String,
    },
    /// The server's process cannot be watched.
    #[error("there is no process {0} whose memory could be watched")]
    NoProcess(u32),
}

/// What requests show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pictures {
    /// A new one each time, so many pixels wide and high.
    Drawn(u32),
    /// These, in turns.
    Files(Vec<PathBuf>),
}

/// A case, measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// What was asked.
    pub case: Case,
    /// What came of it.
    pub figures: Figures,
}

/// Everything that was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// The model that answered.
    pub model: String,
    /// In the order of the plan.
    pub cases: Vec<Measured>,
}

/// Measures every case of `plan`.  With `pid` that process's memory is watched.  `hear` is told what is
/// being done.
///
/// # Errors
/// [`LoadError`] where nothing can be measured; single requests that fail are figures.
pub fn measure(
    endpoint: &Endpoint,
    plan: &Plan,
    pictures: &Pictures,
    pid: Option<u32>,
    hear: &mut dyn FnMut(&str),
) -> Result<Measurement, LoadError> {
    plan.check()?;
    let caller = Caller::new(endpoint)?;
    let shelf = Shelf::read(pictures)?;
    let rate = calibrate(&caller, &endpoint.url, plan.seed)?;
    // Seeds of two plans lie so far apart that no request of one is met in the other.
    let mut seed = plan.seed.wrapping_mul(SEEDS_OF_A_PLAN);
    let mut cases = Vec::with_capacity(plan.cases.len());
    for case in &plan.cases {
        let mut runs = Vec::with_capacity(plan.runs);
        for turn in 0..plan.warm_ups + plan.runs {
            let watch = |pid| Watch::begin(pid).ok_or(LoadError::NoProcess(pid));
            let watch = pid.map(watch).transpose()?;
            let meter = Meter::begin();
            let asking = Asking { plan, case, rate, shelf: &shelf, seed };
            let mut run = asking.run(&caller);
            run.memory = watch.map(Watch::end);
            run.joules = meter.and_then(Meter::end);
            seed = seed.wrapping_add(plan.requests(case) as u64);
            if turn >= plan.warm_ups {
                runs.push(run);
            }
        }
        let figures = Figures::of(&runs);
        hear(&format!(
            "{} streams of {}:{} tokens, {} images: {:.1} tokens/s, {} errors",
            case.streams,
            case.lengths.prompt,
            case.lengths.answer,
            case.pictures,
            figures.tokens_per_s.map_or(0.0, |spread| spread.median),
            figures.errors.iter().map(|(_, count)| count).sum::<usize>(),
        ));
        cases.push(Measured { case: *case, figures });
    }
    Ok(Measurement { model: caller.model().to_owned(), cases })
}

/// Finds how many words make so many tokens.
fn calibrate(caller: &Caller, url: &str, seed: u64) -> Result<Rate, LoadError> {
    let mut tokens = [None; 2];
    for (words, tokens) in PROBES.iter().zip(&mut tokens) {
        let text = prompt::text(*words, !seed);
        let asked = Asked { text, pictures: Vec::new(), answer_tokens: 1 };
        *tokens = match caller.ask(&asked) {
            Ok(heard) => heard.usage.map(|[prompt, _]| prompt),
            // The only token may have no text.
            Err(AskError::Hear(crate::hear::HearError::Empty)) => None,
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
    fn read(pictures: &Pictures) -> Result<Self, LoadError> {
        Ok(match pictures {
            Pictures::Drawn(side) => Self::Drawn(*side),
            Pictures::Files(paths) => {
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
    plan: &'a Plan,
    case: &'a Case,
    rate: Rate,
    shelf: &'a Shelf,
    seed: u64,
}

impl Asking<'_> {
    fn run(&self, caller: &Caller) -> Run {
        let count = self.plan.requests(self.case);
        // Made beforehand: drawing pictures is no part of a server's time.
        let asked: Vec<Asked> = (0..count).map(|number| self.asked(number)).collect();
        let (next, answered) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(count)));
        let start = Instant::now();
        thread::scope(|scope| {
            for stream in 0..self.case.streams.min(count) {
                let (asked, next, answered, caller) = (&asked, &next, &answered, caller.again());
                scope.spawn(move || {
                    thread::sleep(self.ramp(stream));
                    while let Some(asked) = asked.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let heard = caller.ask(asked).map_err(|error| error.to_string());
                        let request = Request { has_pictures: !asked.pictures.is_empty(), heard };
                        // A thread that panicked has spoilt no request.
                        answered.lock().unwrap_or_else(|poison| poison.into_inner()).push(request);
                    }
                });
            }
        });
        let took = start.elapsed();
        let requests = answered.into_inner().unwrap_or_else(|poison| poison.into_inner());
        Run { took, requests, memory: None, joules: None }
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
