//! Counts what the server does, for Prometheus.
//!
//! Knows nothing of engines; what they count is told by [`Collector`]s.
//!
//! [`Collector`]: prometheus_client::collector::Collector

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::answer::Usage;
use crate::client::Client;

/// How counts are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// What Prometheus asks for first.
    OpenMetrics,
    /// What everything reads that is not Prometheus.
    Classic,
}

impl Format {
    /// The type of the text.
    pub(crate) fn media_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// The format that is wanted most; the classic one where nobody says.
    pub(crate) fn wanted(accept: &str) -> Self {
        let weight = |kind: &str| {
            let of_kind = |range: &str| {
                let mut parts = range.split(';').map(str::trim);
                let is_it = parts.next()?.eq_ignore_ascii_case(kind);
                let weight = parts.find_map(|part| part.strip_prefix("q="));
                is_it.then(|| weight.map_or(Some(1.0), |weight| weight.parse::<f32>().ok()))?
            };
            accept.split(',').filter_map(of_kind).fold(0.0, f32::max)
        };
        let open = weight("application/openmetrics-text");
        if open > 0.0 && open >= weight("text/plain") { Self::OpenMetrics } else { Self::Classic }
    }
}

/// Bounds of times to a first token, in seconds: a short prompt on a fast machine to many pictures on
/// a small one.
const FIRST_TOKEN_BOUNDS_S: [f64; 14] =
    [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0];

/// Bounds of times between tokens, in seconds: 1,000 tokens a second to one in two.
const TOKEN_BOUNDS_S: [f64; 12] =
    [0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.0, 2.0];

/// Bounds of times of whole requests, in seconds.
const REQUEST_BOUNDS_S: [f64; 13] =
    [0.005, 0.02, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];

/// Bounds of numbers of tokens.
const TOKENS_BOUNDS: [f64; 10] =
    [8.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Of {
    route: String,
    status: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfRoute {
    route: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfKey {
    key: String,
}

/// What is counted of requests.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<Of, Counter>,
    open: Gauge,
    request_time: Family<OfRoute, Histogram>,
    first_token: Histogram,
    token: Histogram,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    image_tokens: Counter,
    completion_tokens: Counter,
    prompts: Histogram,
    completions: Histogram,
    key_requests: Family<OfKey, Counter>,
    key_refused: Family<OfKey, Counter>,
    key_tokens: Family<OfKey, Counter>,
    /// What tells the key from others that is called so.
    keys: Mutex<BTreeMap<String, String>>,
}

impl Metrics {
    /// Counts from nothing, and tells what `collectors` know besides.
    pub(crate) fn new(collectors: Vec<Box<dyn Collector>>) -> Self {
        let histogram = |bounds: &'static [f64]| Histogram::new(bounds.iter().copied());
        let mut metrics = Self {
            registry: Registry::with_prefix("smelt"),
            requests: Family::default(),
            open: Gauge::default(),
            request_time: Family::new_with_constructor(|| {
                Histogram::new(REQUEST_BOUNDS_S.iter().copied())
            }),
            first_token: histogram(&FIRST_TOKEN_BOUNDS_S),
            token: histogram(&TOKEN_BOUNDS_S),
            prompt_tokens: Counter::default(),
            cached_tokens: Counter::default(),
            image_tokens: Counter::default(),
            completion_tokens: Counter::default(),
            prompts: histogram(&TOKENS_BOUNDS),
            completions: histogram(&TOKENS_BOUNDS),
            key_requests: Family::default(),
            key_refused: Family::default(),
            key_tokens: Family::default(),
            keys: Mutex::default(),
        };
        metrics.register();
        for collector in collectors {
            metrics.registry.register_collector(collector);
        }
        metrics
    }

    fn register(&mut self) {
        let registry = &mut self.registry;
        let mut counter =
            |name, help, counter: &Counter| registry.register(name, help, counter.clone());
        counter("prompt_tokens", "Tokens of prompts, image tokens included", &self.prompt_tokens);
        counter("cached_tokens", "Tokens of prompts that a slot held already", &self.cached_tokens);
        counter("image_tokens", "Tokens of prompts that stand for pictures", &self.image_tokens);
        counter("completion_tokens", "Tokens of answers", &self.completion_tokens);
        registry.register(
            "requests",
            "Requests that ended, by route and status; 499 where the client went away first",
            self.requests.clone(),
        );
        let mut of_key = |name, help, family: &Family<OfKey, Counter>| {
            registry.register(name, help, family.clone());
        };
        of_key("key_requests", "Requests of each key that ended", &self.key_requests);
        of_key("key_refused", "Those that came too often or found no place", &self.key_refused);
        of_key("key_tokens", "Tokens of prompts and answers of each key", &self.key_tokens);
        registry.register("open_requests", "Requests that have not ended", self.open.clone());
        let mut seconds = |name, help, histogram: &Histogram| {
            registry.register_with_unit(name, help, Unit::Seconds, histogram.clone());
        };
        seconds(
            "first_token",
            "From a request to the first token of its answer",
            &self.first_token,
        );
        seconds("token", "Between tokens of an answer, its mean", &self.token);
        registry.register_with_unit(
            "request",
            "From a request to the end of its answer",
            Unit::Seconds,
            self.request_time.clone(),
        );
        registry.register("tokens_of_prompts", "Tokens of each prompt", self.prompts.clone());
        registry.register(
            "tokens_of_completions",
            "Tokens of each request's answers",
            self.completions.clone(),
        );
    }

    /// A request of this client ended, if its key has a name.
    pub(crate) fn of_key(&self, client: &Client, status: u16, usage: Usage) {
        let (Some(name), Some(identity)) = (client.name(), client.identity()) else { return };
        let of = OfKey { key: name.to_owned() };
        self.belongs_to(&of, identity);
        self.key_requests.get_or_create(&of).inc();
        self.key_refused.get_or_create(&of).inc_by(u64::from(status == 429));
        self.key_tokens.get_or_create(&of).inc_by(usage.total_tokens as u64);
    }

    /// What another key used that was called so is not this one's: a key without a name is called by its place.
    fn belongs_to(&self, of: &OfKey, identity: &str) {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        match keys.get(&of.key) {
            Some(known) if known == identity => return,
            Some(_) => {
                let all = [&self.key_requests, &self.key_refused, &self.key_tokens];
                all.iter().for_each(|family| _ = family.remove(of));
            }
            None => {}
        }
        keys.insert(of.key.clone(), identity.to_owned());
    }

    /// A request began.
    pub(crate) fn begin(&self) {
        self.open.inc();
    }

    /// A request ended.
    pub(crate) fn end(
        &self,
        route: &str,
        status: u16,
        took: Duration,
        first_token: Option<Duration>,
        usage: Usage,
    ) {
        let route = route.to_owned();
        self.open.dec();
        let of_route = OfRoute { route: route.clone() };
        self.requests.get_or_create(&Of { route, status: status.into() }).inc();
        self.request_time.get_or_create(&of_route).observe(took.as_secs_f64());
        if usage.prompt_tokens > 0 {
            self.count(usage);
        }
        let Some(first) = first_token else { return };
        self.first_token.observe(first.as_secs_f64());
        if usage.completion_tokens > 1 {
            let rest = took.saturating_sub(first).as_secs_f64();
            self.token.observe(rest / (usage.completion_tokens - 1) as f64);
        }
    }

    fn count(&self, usage: Usage) {
        let details = usage.prompt_tokens_details;
        self.prompt_tokens.inc_by(usage.prompt_tokens as u64);
        self.cached_tokens.inc_by(details.cached_tokens as u64);
        self.image_tokens.inc_by(details.image_tokens as u64);
        self.completion_tokens.inc_by(usage.completion_tokens as u64);
        self.prompts.observe(usage.prompt_tokens as f64);
        self.completions.observe(usage.completion_tokens as f64);
    }

    /// What may be told to the key of this name, or all of it.
    pub(crate) fn told_to(self: &Arc<Self>, key: Option<&str>, format: Format) -> String {
        let all = self.text(format);
        key.map(|key| of_key_alone(&all, key)).unwrap_or(all)
    }

    /// All of it.
    fn text(self: &Arc<Self>, format: Format) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("a string takes any text");
        match format {
            Format::OpenMetrics => text,
            Format::Classic => classic(&text),
        }
    }
}

/// A page without what other keys than this use.
fn of_key_alone(page: &str, key: &str) -> String {
    let own = format!("key=\"{key}\"");
    let is_own = |line: &&str| !line.starts_with("smelt_key_") || line.contains(&own);
    page.lines().filter(is_own).flat_map(|line| [line, "\n"]).collect()
}

/// A page of OpenMetrics in the older format: counters are called as their samples are, and there are neither units nor an
/// end.
fn classic(page: &str) -> String {
    let counter =
        |line: &str| line.strip_prefix("# TYPE ")?.strip_suffix(" counter").map(str::to_owned);
    let counters: BTreeSet<String> = page.lines().filter_map(counter).collect();
    let mut out = String::with_capacity(page.len());
    for line in page.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next()) {
            (Some("#"), Some("EOF" | "UNIT"), _) => continue,
            (Some("#"), Some(kind), Some(name)) if counters.contains(name) => {
                let rest = words.next().unwrap_or_default();
                out += &format!("# {kind} {name}_total {rest}\n");
            }
            _ => out.extend([line, "\n"]),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use smelt_runtime::prepare::ImageUsage;

    use super::*;
    use crate::client::Limits;

    #[test]
    fn a_request_is_counted_once_in_each_place() {
        let metrics = Arc::new(Metrics::new(Vec::new()));
        metrics.begin();
        metrics.begin();
        let usage =
            Usage::of_prompt(10, 4, ImageUsage { tokens: 3, ..ImageUsage::default() }).said(5);
        let (took, first) = (Duration::from_secs(3), Some(Duration::from_secs(1)));
        metrics.end("/v1/chat/completions", 200, took, first, usage);
        let text = metrics.text(Format::OpenMetrics);
        for line in [
            "smelt_open_requests 1",
            "smelt_requests_total{route=\"/v1/chat/completions\",status=\"200\"} 1",
            "smelt_prompt_tokens_total 10",
            "smelt_cached_tokens_total 4",
            "smelt_image_tokens_total 3",
            "smelt_completion_tokens_total 5",
            "smelt_first_token_seconds_sum 1.0",
            "smelt_token_seconds_sum 0.5",
            "smelt_request_seconds_count{route=\"/v1/chat/completions\"} 1",
            "smelt_tokens_of_prompts_sum 10.0",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
        let text = metrics.text(Format::Classic);
        for line in [
            "# TYPE smelt_prompt_tokens_total counter",
            "smelt_prompt_tokens_total 10",
            "# TYPE smelt_open_requests gauge",
            "# TYPE smelt_token_seconds histogram",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
        assert!(text.contains("# HELP smelt_prompt_tokens_total Tokens of prompts"), "{text}");
        assert!(!text.contains("# EOF") && !text.contains("# UNIT"), "{text}");
    }

    #[test]
    fn a_key_is_told_of_itself_alone() {
        let metrics = Arc::new(Metrics::new(Vec::new()));
        let of = |identity: &str, name: &str| {
            let limits = Limits::default();
            Client::numbered(name.to_owned(), identity.to_owned(), limits)
        };
        for client in [of("1", "a"), of("2", "ab")] {
            metrics.of_key(&client, 200, Usage::default());
        }
        for format in [Format::OpenMetrics, Format::Classic] {
            let all = metrics.told_to(None, format);
            assert_eq!(all, metrics.text(format));
            let own = metrics.told_to(Some("a"), format);
            let missing: Vec<&str> = all.lines().filter(|line| !own.contains(line)).collect();
            assert!(missing.len() == 3 && missing.iter().all(|line| line.contains("\"ab\"")));
            assert!(own.contains("smelt_key_requests_total{key=\"a\"} 1\n"), "{own}");
        }
        let requests = |count| format!("smelt_key_requests_total{{key=\"a\"}} {count}\n");
        for (client, count) in [(of("1", "a"), 2), (of("3", "a"), 1), (of("3", "a"), 2)] {
            metrics.of_key(&client, 200, Usage::default());
            let page = metrics.text(Format::Classic);
            assert!(page.contains(&requests(count)), "{page}");
        }
    }

    #[test]
    fn each_is_given_the_format_it_asks_for() {
        let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        for (accept, expect) in [
            (prometheus, Format::OpenMetrics),
            ("application/openmetrics-text", Format::OpenMetrics),
            ("text/plain;q=0.9, application/openmetrics-text;q=0.5", Format::Classic),
            ("application/openmetrics-text;q=0", Format::Classic),
            ("text/plain", Format::Classic),
            ("*/*", Format::Classic),
            ("", Format::Classic),
        ] {
            assert_eq!(Format::wanted(accept), expect, "{accept}");
        }
    }
}
