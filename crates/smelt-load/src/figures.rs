//! Turns what was heard into figures: percentiles, rates, medians over runs.
//!
//! Plain functions over numbers.  Knows nothing of clocks or servers.

use std::time::Duration;

use crate::process::Memory;
use crate::receive::ReceivedAnswer;

/// The middle of some numbers, and how far they are spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The most.
    pub max: f64,
}

impl Spread {
    /// Of some numbers; nothing of none.
    pub fn of(numbers: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = numbers.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        Some(Self { median: at(&sorted, 0.5), min, max })
    }
}

/// The number below which a `part` of sorted ones lies, between neighbours where it falls between them.
fn at(sorted: &[f64], part: f64) -> f64 {
    let place = part * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

/// How late something was, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Late {
    /// Of half of the requests at most.
    pub median: f64,
    /// Of nine in ten at most.
    pub p90: f64,
    /// Of 99 in a hundred at most.
    pub p99: f64,
}

impl Late {
    /// Of some times; nothing of none.
    pub fn of(times_ms: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = times_ms.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let is_any = !sorted.is_empty();
        is_any.then(|| Self {
            median: at(&sorted, 0.5),
            p90: at(&sorted, 0.9),
            p99: at(&sorted, 0.99),
        })
    }
}

/// One request of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Whether it showed pictures.
    pub has_pictures: bool,
    /// What was heard, or why nothing was.
    pub received: Result<ReceivedAnswer, String>,
}

impl Request {
    fn is_good(&self, has_pictures: bool) -> Option<&ReceivedAnswer> {
        self.received.as_ref().ok().filter(|_| self.has_pictures == has_pictures)
    }
}

/// A run: some streams asking for a while.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadRun {
    /// From the first request to the end of the last answer.
    pub took: Duration,
    /// Every request.
    pub requests: Vec<Request>,
    /// Of the server, if it was watched.
    pub memory: Option<Memory>,
    /// Of the machine, if it has a sensor.
    pub joules: Option<f64>,
}

impl LoadRun {
    fn good(&self) -> impl Iterator<Item = &ReceivedAnswer> {
        self.requests.iter().filter_map(|request| request.received.as_ref().ok())
    }

    fn tokens(&self) -> usize {
        self.good().map(ReceivedAnswer::tokens).sum()
    }

    fn per_second(&self, count: usize) -> f64 {
        count as f64 / self.took.as_secs_f64().max(1e-9)
    }
}

/// What a case took, over all of its runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// Tokens of all answers together, a second.
    pub tokens_per_s: Option<Spread>,
    /// Tokens a second of one stream behind its first.
    pub stream_tokens_per_s: Option<Spread>,
    /// Requests answered in a second.
    pub requests_per_s: Option<Spread>,
    /// Milliseconds to the first text, of requests without pictures and of those with.
    pub ttft_ms: [Option<Late>; 2],
    /// The same of all requests.
    pub ttft_all_ms: Option<Late>,
    /// Milliseconds between tokens.
    pub tpot_ms: Option<Late>,
    /// Milliseconds for the prompt: what the server itself says; else to the first text, less one token,
    /// which has the wait for a slot in it.
    pub prefill_ms: Option<Spread>,
    /// Whether the server itself said it.
    pub is_prefill_told: bool,
    /// Tokens that prompts had, where the server counts.
    pub prompt_tokens: Option<Spread>,
    /// Tokens that answers had.
    pub answer_tokens: Option<Spread>,
    /// Whether the server counted the tokens; else pieces of text were.
    pub is_counted: bool,
    /// Whether all answers came as streams.
    pub is_streamed: bool,
    /// Requests that were sent.
    pub requests: usize,
    /// What went wrong, and how often.
    pub errors: Vec<(String, usize)>,
    /// The most memory of the server, in MiB: resident, and its own.
    pub memory_mib: Option<[f64; 2]>,
    /// Joules for each token of the answers.
    pub joules_per_token: Option<Spread>,
}

impl Figures {
    /// Whether every request failed.
    pub fn is_nothing(&self) -> bool {
        let failed: usize = self.errors.iter().map(|(_, count)| count).sum();
        self.requests > 0 && failed >= self.requests
    }

    /// Of some runs of one case.
    pub fn of(runs: &[LoadRun]) -> Self {
        let good = || runs.iter().flat_map(LoadRun::good);
        let ttft = |has_pictures: bool| {
            let received = runs.iter().flat_map(|run| &run.requests);
            let firsts = received.filter_map(|request| request.is_good(has_pictures)?.first);
            Late::of(firsts.map(ms))
        };
        let firsts = good().filter_map(|received| received.first);
        let memory = runs.iter().filter_map(|run| run.memory);
        let most = memory.reduce(|a, b| Memory {
            rss_bytes: a.rss_bytes.max(b.rss_bytes),
            anonymous_bytes: a.anonymous_bytes.max(b.anonymous_bytes),
        });
        let energy = runs.iter().filter_map(|run| Some(run.joules? / run.tokens().max(1) as f64));
        Self {
            tokens_per_s: Spread::of(runs.iter().map(|run| run.per_second(run.tokens()))),
            stream_tokens_per_s: Spread::of(good().filter_map(tpot_ms).map(|ms| 1e3 / ms)),
            requests_per_s: Spread::of(runs.iter().map(|run| run.per_second(run.good().count()))),
            ttft_ms: [ttft(false), ttft(true)],
            ttft_all_ms: Late::of(firsts.map(ms)),
            tpot_ms: Late::of(good().filter_map(tpot_ms)),
            prefill_ms: Spread::of(good().filter_map(prefill_ms)),
            is_prefill_told: good().all(|received| received.prompt_ms.is_some()),
            prompt_tokens: Spread::of(
                good().filter_map(|received| Some(received.usage?[0] as f64)),
            ),
            answer_tokens: Spread::of(good().map(|received| received.tokens() as f64)),
            is_counted: good().all(|received| received.usage.is_some()),
            is_streamed: good().all(|received| received.is_streamed),
            requests: runs.iter().map(|run| run.requests.len()).sum(),
            errors: errors(runs),
            memory_mib: most.map(|m| [m.rss_bytes, m.anonymous_bytes].map(mib)),
            joules_per_token: Spread::of(energy),
        }
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Between the tokens of an answer that came as a stream.  A piece may hold several, where a server sends
/// together what the client was too slow to take: those of the first piece took no time that was heard.
fn tpot_ms(received: &ReceivedAnswer) -> Option<f64> {
    let pieces =
        Some(received.pieces as f64).filter(|pieces| *pieces > 1.0 && received.is_streamed)?;
    let took = ms(received.last.checked_sub(received.first?)?);
    let tokens = received.tokens() as f64 * (pieces - 1.0) / pieces;
    (took > 0.0 && tokens > 0.0).then_some(took / tokens)
}

fn prefill_ms(received: &ReceivedAnswer) -> Option<f64> {
    received.prompt_ms.or_else(|| Some((ms(received.first?) - tpot_ms(received)?).max(0.0)))
}

/// Every error once, the most frequent first.
fn errors(runs: &[LoadRun]) -> Vec<(String, usize)> {
    let mut counts: Vec<(String, usize)> = Vec::new();
    for request in runs.iter().flat_map(|run| &run.requests) {
        let Err(error) = &request.received else { continue };
        match counts.iter_mut().find(|(known, _)| known == error) {
            Some((_, count)) => *count += 1,
            None => counts.push((error.clone(), 1)),
        }
    }
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn millis(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    pub(crate) fn received(first: u64, last: u64, tokens: usize) -> ReceivedAnswer {
        ReceivedAnswer {
            first: Some(millis(first)),
            last: millis(last),
            pieces: tokens,
            usage: Some([10, tokens]),
            is_streamed: true,
            ..ReceivedAnswer::default()
        }
    }

    pub(crate) fn run(requests: Vec<Request>) -> LoadRun {
        LoadRun { took: millis(2000), requests, memory: None, joules: None }
    }

    #[test]
    fn percentiles_lie_between_neighbours() {
        let late = Late::of((0..=100).map(f64::from)).unwrap();
        assert_eq!((late.median, late.p90, late.p99), (50.0, 90.0, 99.0));
        assert_eq!(Spread::of([3.0, 1.0]), Some(Spread { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!((Late::of([]), Spread::of([])), (None, None));
    }

    #[test]
    fn figures_are_of_what_was_heard() {
        let good = |has_pictures, received| Request { has_pictures, received: Ok(received) };
        let bad = |why: &str| Request { has_pictures: false, received: Err(why.to_owned()) };
        let mut first = run(vec![
            good(false, received(100, 200, 11)),
            good(true, received(500, 500, 1)),
            bad("busy"),
            bad("cut"),
            bad("busy"),
        ]);
        first.memory = Some(Memory { rss_bytes: 2 << 20, anonymous_bytes: 1 << 20 });
        first.joules = Some(6.0);
        let figures = Figures::of(&[first, run(vec![good(false, received(300, 500, 5))])]);
        assert_eq!(figures.tokens_per_s, Some(Spread { median: 4.25, min: 2.5, max: 6.0 }));
        assert_eq!(figures.requests_per_s.unwrap().max, 1.0);
        assert_eq!(figures.ttft_ms.map(|late| late.unwrap().median), [200.0, 500.0]);
        // 100 ms for 10 steps, 200 for 4.
        assert_eq!(figures.tpot_ms.unwrap().median, 30.0);
        assert_eq!(figures.stream_tokens_per_s.unwrap().max, 100.0);
        assert_eq!(figures.prefill_ms.unwrap().min, 90.0);
        assert_eq!(figures.errors, [("busy".to_owned(), 2), ("cut".to_owned(), 1)]);
        assert_eq!((figures.requests, figures.is_counted, figures.is_streamed), (6, true, true));
        assert_eq!(figures.memory_mib, Some([2.0, 1.0]));
        assert_eq!(figures.joules_per_token.unwrap().median, 0.5);
    }

    #[test]
    fn a_server_that_only_failed_has_no_speed() {
        let request = Request { has_pictures: false, received: Err("refused".to_owned()) };
        let figures = Figures::of(&[run(vec![request])]);
        assert!(figures.is_nothing() && !Figures::of(&[run(Vec::new())]).is_nothing());
        assert_eq!((figures.tpot_ms, figures.ttft_ms), (None, [None, None]));
        assert_eq!(figures.tokens_per_s.unwrap().max, 0.0);
    }
}
