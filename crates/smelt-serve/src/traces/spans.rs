//! Makes the spans of a request that ended: one for the request, one for each thing that it waited for.
//!
//! They say what the log says, in the words of OpenTelemetry's conventions for HTTP and generative models, and nothing
//! that anybody wrote.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::http::Method;
use smelt_runtime::service::Times;

use super::context::{Context, new_span};
use super::otlp::{Attribute, KIND_INTERNAL, KIND_SERVER, Span};
use crate::answer::Usage;

/// What a route does with a model, in the conventions' words; nothing for routes that ask none.
pub(crate) fn operation(method: &Method, route: &str) -> Option<&'static str> {
    let operation = match route {
        "/v1/chat/completions" | "/chat/completions" => "chat",
        "/v1/responses" | "/v1/messages" | "/api/chat" => "chat",
        "/v1/completions" | "/completions" | "/api/generate" => "text_completion",
        "/v1/embeddings" | "/embeddings" | "/api/embed" | "/api/embeddings" => "embeddings",
        _ => return None,
    };
    (*method == Method::POST).then_some(operation)
}

/// A request that ended.
#[derive(Clone, Debug)]
pub(crate) struct Answered<'a> {
    pub(crate) context: &'a Context,
    pub(crate) operation: &'static str,
    pub(crate) route: &'a str,
    /// What was answered; nothing where the client had gone.
    pub(crate) status: Option<u16>,
    /// What broke the answer off, in one word.
    pub(crate) broken: Option<&'static str>,
    pub(crate) model: Option<&'a str>,
    pub(crate) key: Option<&'a str>,
    pub(crate) usage: Usage,
    pub(crate) finishes: &'a [&'static str],
    pub(crate) begun: Instant,
    pub(crate) prepared: Option<Instant>,
    pub(crate) ended: Instant,
    /// What each of its prompts went through.
    pub(crate) prompts: Vec<Times>,
}

/// Something that a request waited for.
#[derive(Clone, Debug, PartialEq)]
struct Phase {
    name: &'static str,
    from: Instant,
    to: Instant,
}

impl Answered<'_> {
    /// What it waited for, in order.  What had not ended when the request did ends with it.
    fn phases(&self) -> Vec<Phase> {
        let first = |of: fn(&Times) -> Option<Instant>| self.prompts.iter().filter_map(of).min();
        let last = |of: fn(&Times) -> Option<Instant>| self.prompts.iter().filter_map(of).max();
        let taken = first(|times| Some(times.taken));
        let (looked, seen) = (first(|times| times.looked), last(|times| times.seen));
        let (admitted, read) = (first(|times| times.admitted), first(|times| times.read));
        let embedded = self.prepared.filter(|_| self.operation == "embeddings");
        let phases = [
            ("preparing", Some(self.begun), taken.or(self.prepared)),
            ("embedding", embedded, None),
            ("queue", taken, looked.or(admitted)),
            ("vision", looked, seen),
            ("queue", looked.and(seen), admitted),
            ("prompt", admitted, last(|times| times.read)),
            ("decoding", read, last(|times| times.ended)),
        ];
        let phase = |(name, from, to): (_, Option<Instant>, Option<Instant>)| {
            let from = from?.clamp(self.begun, self.ended);
            let to = to.unwrap_or(self.ended).clamp(from, self.ended);
            Some(Phase { name, from, to })
        };
        phases.into_iter().filter_map(phase).collect()
    }

    /// What kind of error it is, if one: a word of ours, or the status.
    fn error(&self) -> Option<String> {
        let of_status = self.status.filter(|status| *status >= 400);
        let broken = self.broken.map(str::to_owned);
        broken.or_else(|| of_status.map(|status| status.to_string()))
    }

    /// Whether the error is not the client's own, by the conventions for servers.
    fn is_failed(&self) -> bool {
        self.broken.is_some() || self.status.is_some_and(|status| status >= 500)
    }

    fn attributes(&self) -> Vec<Attribute> {
        let text = |key: &str, text: Option<&str>| text.map(|text| Attribute::text(key, text));
        let number = |key: &str, number: usize| Some(Attribute::number(key, number));
        let usage = self.model.map(|_| self.usage);
        let told = |key, of: fn(&Usage) -> usize| usage.as_ref().and_then(|u| number(key, of(u)));
        let finishes = (!self.finishes.is_empty())
            .then(|| Attribute::words("gen_ai.response.finish_reasons", self.finishes));
        let all = [
            text("http.request.method", Some("POST")),
            text("http.route", Some(self.route)),
            text("url.path", Some(self.route)),
            self.status.and_then(|status| number("http.response.status_code", status.into())),
            text("error.type", self.error().as_deref()),
            text("gen_ai.operation.name", Some(self.operation)),
            text("gen_ai.provider.name", Some("smelt")),
            text("gen_ai.request.model", self.model),
            text("gen_ai.response.model", self.model),
            told("gen_ai.usage.input_tokens", |usage| usage.prompt_tokens),
            told("gen_ai.usage.output_tokens", |usage| usage.completion_tokens),
            told("gen_ai.usage.cache_read.input_tokens", |usage| {
                usage.prompt_tokens_details.cached_tokens
            }),
            told("smelt.image_tokens", |usage| usage.prompt_tokens_details.image_tokens),
            finishes,
            text("smelt.key", self.key),
        ];
        all.into_iter().flatten().collect()
    }
}

/// The spans of a request, its own first.
pub(super) fn of(answered: &Answered<'_>) -> Vec<Span> {
    let context = answered.context;
    let now = (Instant::now(), SystemTime::now());
    let place = |span, parent| Span::named(context.trace, span, parent, &context.state);
    let timed = |span: Span, from, to| Span {
        start_time_unix_nano: nanos(now, from).to_string(),
        end_time_unix_nano: nanos(now, to).to_string(),
        ..span
    };
    let own = place(context.span, context.parent);
    let own = if context.parent.is_some() { own.asked_from_afar() } else { own };
    let own = if answered.is_failed() { own.failed() } else { own };
    let own = timed(own, answered.begun, answered.ended);
    let name = format!("POST {}", answered.route);
    let own = Span { name, kind: KIND_SERVER, attributes: answered.attributes(), ..own };
    let within = |Phase { name, from, to }: Phase| Span {
        name: name.to_owned(),
        kind: KIND_INTERNAL,
        ..timed(place(new_span(), Some(context.span)), from, to)
    };
    std::iter::once(own).chain(answered.phases().into_iter().map(within)).collect()
}

/// An instant in nanoseconds since 1970, by a `now` that both clocks tell.
fn nanos(now: (Instant, SystemTime), instant: Instant) -> u128 {
    let since = now.1.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.saturating_sub(now.0.saturating_duration_since(instant)).as_nanos()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::sampler::Sampler;
    use super::*;

    /// A request of which nothing is known but that it took 100 ms.
    fn answered(context: &Context, begun: Instant) -> Answered<'_> {
        Answered {
            context,
            operation: "chat",
            route: "/v1/chat/completions",
            status: Some(200),
            broken: None,
            model: None,
            key: None,
            usage: Usage::default(),
            finishes: &[],
            begun,
            prepared: None,
            ended: begun + Duration::from_millis(100),
            prompts: Vec::new(),
        }
    }

    /// When things happened to a prompt, in milliseconds: looked, seen, admitted, read, ended.
    fn prompt(begun: Instant, taken: u64, rest: [Option<u64>; 5]) -> Times {
        let at = |ms| begun + Duration::from_millis(ms);
        let [looked, seen, admitted, read, ended] = rest.map(|ms| ms.map(at));
        Times { taken: at(taken), looked, seen, admitted, read, ended }
    }

    #[track_caller]
    fn check(prompts: &[(u64, [Option<u64>; 5])], expect: &[(&str, u64, u64)]) {
        let (context, begun) = (Context::begin(None, &Sampler::default()), Instant::now());
        let prompts = prompts.iter().map(|(taken, rest)| prompt(begun, *taken, *rest)).collect();
        let answered = Answered { prompts, ..answered(&context, begun) };
        let ms = |instant: Instant| instant.duration_since(begun).as_millis() as u64;
        let phases = answered.phases();
        let phases = phases.iter().map(|phase| (phase.name, ms(phase.from), ms(phase.to)));
        assert_eq!(phases.collect::<Vec<_>>(), expect);
    }

    #[test]
    fn a_text_waits_is_read_and_is_answered() {
        check(
            &[(10, [None, None, Some(20), Some(30), Some(90)])],
            &[("preparing", 0, 10), ("queue", 10, 20), ("prompt", 20, 30), ("decoding", 30, 90)],
        );
    }

    #[test]
    fn a_picture_waits_is_seen_and_waits_again() {
        let times = [Some(15), Some(40), Some(45), Some(60), Some(99)];
        check(
            &[(10, times)],
            &[
                ("preparing", 0, 10),
                ("queue", 10, 15),
                ("vision", 15, 40),
                ("queue", 40, 45),
                ("prompt", 45, 60),
                ("decoding", 60, 99),
            ],
        );
        // Nobody looks at a picture that is known.
        check(
            &[(10, [None, Some(10), Some(20), Some(30), Some(90)])],
            &[("preparing", 0, 10), ("queue", 10, 20), ("prompt", 20, 30), ("decoding", 30, 90)],
        );
    }

    #[test]
    fn what_is_broken_off_ends_with_the_request() {
        check(&[], &[("preparing", 0, 100)]);
        check(&[(10, [None; 5])], &[("preparing", 0, 10), ("queue", 10, 100)]);
        check(
            &[(10, [Some(20), None, None, None, None])],
            &[("preparing", 0, 10), ("queue", 10, 20), ("vision", 20, 100)],
        );
        // An engine may end its step when the client has gone.
        check(
            &[(10, [None, None, Some(20), Some(130), Some(140)])],
            &[("preparing", 0, 10), ("queue", 10, 20), ("prompt", 20, 100), ("decoding", 100, 100)],
        );
    }

    #[test]
    fn several_prompts_are_told_as_one() {
        check(
            &[
                (10, [None, None, Some(20), Some(30), Some(60)]),
                (11, [None, None, Some(25), Some(50), Some(90)]),
            ],
            &[("preparing", 0, 10), ("queue", 10, 20), ("prompt", 20, 50), ("decoding", 30, 90)],
        );
    }

    #[test]
    fn errors_are_words_of_ours_or_a_status() {
        let (context, begun) = (Context::begin(None, &Sampler::default()), Instant::now());
        let of = |status, broken| {
            let answered = Answered { status, broken, ..answered(&context, begun) };
            (answered.error(), answered.is_failed())
        };
        assert_eq!(of(Some(200), None), (None, false));
        assert_eq!(of(Some(400), None), (Some("400".to_owned()), false));
        assert_eq!(of(Some(429), None), (Some("429".to_owned()), false));
        assert_eq!(of(Some(503), None), (Some("503".to_owned()), true));
        assert_eq!(of(Some(200), Some("timeout")), (Some("timeout".to_owned()), true));
        assert_eq!(of(None, Some("cancelled")), (Some("cancelled".to_owned()), true));
    }

    #[test]
    fn routes_that_ask_a_model_are_told_of() {
        assert_eq!(operation(&Method::POST, "/api/generate"), Some("text_completion"));
        for (method, route) in
            [(Method::GET, "/v1/responses"), (Method::POST, "/tokenize"), (Method::POST, "other")]
        {
            assert_eq!(operation(&method, route), None);
        }
    }
}
