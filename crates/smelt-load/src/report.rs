//! Tells what was measured: a JSON document, and a table in Markdown.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::figures::{Figures, Late, Spread};
use crate::plan::Plan;
use crate::run::{Endpoint, Measured, Measurement};

/// The version of the document.
const VERSION: u32 = 1;

/// Everything as one document.
pub fn document(endpoint: &Endpoint, plan: &Plan, measurement: &Measurement) -> Value {
    json!({
        "version": VERSION,
        "url": endpoint.url,
        "model": measurement.model,
        "runs": plan.runs,
        "warm_ups": plan.warm_ups,
        "ramp_s": plan.ramp.as_secs_f64(),
        "seed": plan.seed,
        "mix": plan.mix.map(|mix| [mix.text, mix.image]),
        "cases": measurement.cases.iter().map(|case| row(plan, case)).collect::<Vec<_>>(),
    })
}

fn row(plan: &Plan, measured: &Measured) -> Value {
    let Measured { case, figures } = measured;
    let late = |late: Option<Late>| {
        late.map(|late| json!({ "median": late.median, "p90": late.p90, "p99": late.p99 }))
    };
    json!({
        "prompt_tokens": case.lengths.prompt,
        "answer_tokens": case.lengths.answer,
        "streams": case.streams,
        "images": case.pictures,
        "requests_a_run": plan.requests(case),
        "prompt_tokens_hit": spread(figures.prompt_tokens),
        "answer_tokens_hit": spread(figures.answer_tokens),
        "tokens_are_counted_by_the_server": figures.is_counted,
        "is_streamed": figures.is_streamed,
        "tokens_per_s": spread(figures.tokens_per_s),
        "stream_tokens_per_s": spread(figures.stream_tokens_per_s),
        "requests_per_s": spread(figures.requests_per_s),
        "ttft_text_ms": late(figures.ttft_ms[0]),
        "ttft_image_ms": late(figures.ttft_ms[1]),
        "ttft_all_ms": late(figures.ttft_all_ms),
        "tpot_ms": late(figures.tpot_ms),
        "prefill_ms": spread(figures.prefill_ms),
        "memory_mib": figures.memory_mib.map(|[rss, own]| json!({ "rss": rss, "anonymous": own })),
        "joules_per_token": spread(figures.joules_per_token),
        "requests": figures.requests,
        "errors": figures.errors.iter().map(|(what, count)| json!({ "error": what, "count": count })).collect::<Vec<_>>(),
    })
}

fn spread(spread: Option<Spread>) -> Value {
    spread.map_or(
        Value::Null,
        |Spread { median, min, max }| json!({ "median": median, "min": min, "max": max }),
    )
}

/// The table.
pub fn markdown(endpoint: &Endpoint, plan: &Plan, measurement: &Measurement) -> String {
    let mut text = format!(
        "{} at {}; medians of {} runs after {} warm-ups, in brackets the least and the most\n\n",
        measurement.model, endpoint.url, plan.runs, plan.warm_ups
    );
    text += "| prompt:answer | streams | images | tokens/s | tokens/s a stream | TTFT, ms: median, p90, p99 | with images | a token, ms: median, p99 | prefill, ms | requests/s | memory, MiB: all, own | J a token | errors |\n";
    text += "|---|---|---|---|---|---|---|---|---|---|---|---|---|\n";
    for Measured { case, figures } in &measurement.cases {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            lengths(figures, case.lengths.prompt, case.lengths.answer),
            case.streams,
            case.pictures,
            ranged(figures.tokens_per_s),
            ranged(figures.stream_tokens_per_s),
            late(figures.ttft_ms[0]),
            late(figures.ttft_ms[1]),
            figures.tpot_ms.map_or_else(none, |l| format!("{}, {}", short(l.median), short(l.p99))),
            ranged(figures.prefill_ms),
            ranged(figures.requests_per_s),
            figures.memory_mib.map_or_else(none, |[all, own]| format!("{all:.0}, {own:.0}")),
            figures.joules_per_token.map_or_else(none, |spread| short(spread.median)),
            errors(figures),
        );
    }
    text + &notes(measurement)
}

fn none() -> String {
    "–".to_owned()
}

/// What was asked for, and what was hit where that differs.
fn lengths(figures: &Figures, prompt: usize, answer: usize) -> String {
    let hit = |spread: Option<Spread>, asked: usize| match spread {
        Some(Spread { min, max, .. }) if min != asked as f64 || max != asked as f64 => {
            if min == max { format!(" (hit {min})") } else { format!(" (hit {min} to {max})") }
        }
        _ => String::new(),
    };
    format!(
        "{prompt}{}:{answer}{}",
        hit(figures.prompt_tokens, prompt),
        hit(figures.answer_tokens, answer)
    )
}

fn ranged(spread: Option<Spread>) -> String {
    spread.map_or_else(none, |Spread { median, min, max }| {
        format!("{} [{}, {}]", short(median), short(min), short(max))
    })
}

fn late(late: Option<Late>) -> String {
    late.map_or_else(none, |late| [late.median, late.p90, late.p99].map(short).join(", "))
}

/// Three digits.
fn short(number: f64) -> String {
    let digits = if number >= 100.0 {
        0
    } else if number >= 10.0 {
        1
    } else {
        2
    };
    format!("{number:.digits$}")
}

fn errors(figures: &Figures) -> String {
    let all: usize = figures.errors.iter().map(|(_, count)| count).sum();
    match figures.errors.first() {
        None => "0".to_owned(),
        Some((what, _)) => format!("{all} of {}: {}", figures.requests, what.replace('|', "/")),
    }
}

/// What a reader must know to read the table.
fn notes(measurement: &Measurement) -> String {
    let figures = || measurement.cases.iter().map(|measured| &measured.figures);
    let mut text = String::new();
    if !figures().all(|figures| figures.is_counted) {
        text += "\nThe server does not count tokens everywhere: pieces of text stand for them, and prompts have as many words as tokens were asked for.\n";
    }
    if !figures().all(|figures| figures.is_streamed) {
        text += "\nNot all answers came as streams: the first text of those came with the last.\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::figures::Request;
    use crate::figures::tests::{heard, run};
    use crate::plan::{Case, Lengths};

    pub(crate) fn endpoint() -> Endpoint {
        let timeout = Duration::from_secs(1);
        Endpoint { url: "http://h".to_owned(), model: None, key: None, is_strict: false, timeout }
    }

    #[test]
    fn tables_say_what_was_hit_and_what_failed() {
        let case = Case { lengths: Lengths { prompt: 12, answer: 11 }, streams: 2, pictures: 0 };
        let good = Request { has_pictures: false, heard: Ok(heard(100, 200, 11)) };
        let bad = Request { has_pictures: false, heard: Err("a|b".to_owned()) };
        let figures = Figures::of(&[run(vec![good, bad])]);
        let plan = Plan {
            cases: vec![case],
            requests: None,
            runs: 1,
            warm_ups: 2,
            ramp: Duration::ZERO,
            mix: None,
            seed: 7,
        };
        let measurement =
            Measurement { model: "m".to_owned(), cases: vec![Measured { case, figures }] };
        let text = markdown(&endpoint(), &plan, &measurement);
        let row = "| 12 (hit 10):11 | 2 | 0 | 5.50 [5.50, 5.50] | 100 [100, 100] | 100, 100, 100 | – | 10.0, 10.0 | 90.0 [90.0, 90.0] | 0.50 [0.50, 0.50] | – | – | 1 of 2: a/b |\n";
        assert!(text.ends_with(row), "{text}");
        let document = document(&endpoint(), &plan, &measurement);
        assert_eq!(document["cases"][0]["ttft_text_ms"]["p99"], 100.0);
        assert_eq!(document["cases"][0]["requests_a_run"], 8);
        assert_eq!(document["cases"][0]["errors"][0]["count"], 1);
        assert!(document["cases"][0]["ttft_image_ms"].is_null());
    }
}
