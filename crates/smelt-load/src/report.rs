//! Tells what was measured: a JSON document, and a table in Markdown.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::figures::{Figures, Late, Spread};
use crate::plan::LoadPlan;
use crate::run::{Measured, Measurement, Server};

/// The version of the document.
const VERSION: u32 = 2;

/// Everything as one document.
pub fn document(plan: &LoadPlan, measurement: &Measurement) -> Value {
    let servers = measurement.servers.iter();
    let server = |s: &Server| {
        json!({
            "name": s.name,
            "url": s.url,
            "model": s.model,
            "context": s.context,
            "weights": s.weights,
            "version": s.version,
        })
    };
    let servers = servers.map(server);
    json!({
        "version": VERSION,
        "servers": servers.collect::<Vec<_>>(),
        "runs": plan.runs,
        "warm_ups": plan.warm_ups,
        "ramp_s": plan.ramp.as_secs_f64(),
        "rate_per_s": plan.per_s,
        "seed": plan.seed,
        "mix": plan.mix.map(|mix| [mix.text, mix.image]),
        "cases": measurement.cases.iter().map(|case| row(plan, measurement, case)).collect::<Vec<_>>(),
    })
}

fn row(plan: &LoadPlan, measurement: &Measurement, measured: &Measured) -> Value {
    let Measured { case, figures, .. } = measured;
    let late = |late: Option<Late>| {
        late.map(|late| json!({ "median": late.median, "p90": late.p90, "p99": late.p99 }))
    };
    json!({
        "server": measurement.name(measured),
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
        "prefill_is_told_by_the_server": figures.is_prefill_told,
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
pub fn markdown(plan: &LoadPlan, measurement: &Measurement) -> String {
    let mut text = String::new();
    for server in &measurement.servers {
        let _ = writeln!(text, "- {}: {} at {}", server.name, server.model, server.url);
    }
    let _ = writeln!(
        text,
        "\nMedians of {} runs after {} warm-ups, in brackets the least and the most.\n",
        plan.runs, plan.warm_ups
    );
    if let Some(per_s) = plan.per_s {
        let _ = writeln!(
            text,
            "Requests come {per_s} times a second, at random (Poisson), whether others are answered or not; \
             times count from when they come.\n"
        );
    }
    text += "| server | prompt:answer | streams | images | tokens/s | tokens/s a stream | TTFT, ms: median, p90, p99 | with images | a token, ms: median, p99 | prefill, ms | requests/s | answer's tokens | memory, MiB: all, own | J a token | errors |\n";
    text += "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n";
    for measured in &measurement.cases {
        let Measured { case, figures, .. } = measured;
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            measurement.name(measured).replace('|', "/"),
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
            figures.answer_tokens.map_or_else(none, counted),
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

/// What was asked for, and how long prompts were where that differs.
fn lengths(figures: &Figures, prompt: usize, answer: usize) -> String {
    match figures.prompt_tokens {
        Some(hit) if hit.min != prompt as f64 || hit.max != prompt as f64 => {
            format!("{prompt} (hit {}):{answer}", counted(hit))
        }
        _ => format!("{prompt}:{answer}"),
    }
}

fn counted(Spread { min, max, .. }: Spread) -> String {
    if min == max { min.to_string() } else { format!("{min} to {max}") }
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
    let is_told = |figures: &Figures| figures.is_prefill_told;
    text += match (figures().any(is_told), figures().all(is_told)) {
        (false, _) => {
            "\nPrefill is the time to the first text less that of a token: where streams wait for a slot, their wait is in it.\n"
        }
        (_, true) => "\nPrefill is what the server says of it.\n",
        _ => {
            "\nPrefill is what a server says of it (timings.prompt_ms); of those that do not, the time to the first text less that of a token, the wait for a slot included.  Compare the times to the first text.\n"
        }
    };
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::figures::Request;
    use crate::figures::tests::{received, run};
    use crate::plan::{Case, Lengths};
    use crate::run::Server;

    #[test]
    fn tables_say_what_was_hit_and_what_failed() {
        let case = Case { lengths: Lengths { prompt: 12, answer: 11 }, streams: 2, pictures: 0 };
        let good = Request { has_pictures: false, received: Ok(received(100, 200, 11)) };
        let bad = Request { has_pictures: false, received: Err("a|b".to_owned()) };
        let figures = Figures::of(&[run(vec![good, bad])]);
        let plan = LoadPlan {
            cases: vec![case],
            requests: None,
            runs: 1,
            warm_ups: 2,
            ramp: Duration::ZERO,
            per_s: None,
            mix: None,
            seed: 7,
        };
        let server = |name: &str| Server {
            name: name.to_owned(),
            url: "http://h".to_owned(),
            model: "m".to_owned(),
            context: Some(512),
            weights: Some("int4-g128".to_owned()),
            version: None,
        };
        let told = Figures { is_prefill_told: true, ..figures.clone() };
        let measurement = Measurement {
            servers: vec![server("int8"), server("int4")],
            cases: vec![
                Measured { server: 1, case, figures },
                Measured { server: 0, case, figures: told },
            ],
        };
        let text = markdown(&plan, &measurement);
        let row = "| int4 | 12 (hit 10):11 | 2 | 0 | 5.50 [5.50, 5.50] | 100 [100, 100] | 100, 100, 100 | – | 10.0, 10.0 | 90.0 [90.0, 90.0] | 0.50 [0.50, 0.50] | 11 | – | – | 1 of 2: a/b |\n| int8 ";
        assert!(text.starts_with("- int8: m at http://h\n- int4: "), "{text}");
        assert!(text.contains(row) && text.contains("Compare the times to the first"), "{text}");
        let document = document(&plan, &measurement);
        assert_eq!(document["servers"][1]["weights"], "int4-g128");
        assert_eq!(document["cases"][0]["server"], "int4");
        assert_eq!(document["cases"][0]["ttft_text_ms"]["p99"], 100.0);
        assert_eq!(document["cases"][0]["requests_a_run"], 8);
        assert_eq!(document["cases"][0]["errors"][0]["count"], 1);
        assert!(document["cases"][0]["ttft_image_ms"].is_null());
    }
}
