//! Tells what was measured: Markdown on standard output, JSON and the same Markdown in files.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::protocols::PROTOCOLS;
use super::{KEYS, STEADY_STREAMS};
use crate::bench::measure::median;
use crate::bench::workflow::Check;

/// What is promised: tokens a second of the rival's, at least.
const SPEED_MIN: f64 = 1.15;
/// The 99th percentile to the first text, of the rival's, at most.
const TTFT_MAX: f64 = 0.7;
/// Requests a second of the rival's, from clients that ask again when they were answered, at least.
const REQUESTS_MIN: f64 = 1.5;
/// What serving adds to a token of the engine's, and another protocol to a token of a chat's, in milliseconds, at most.
const OVERHEAD_MS_MAX: f64 = 0.2;
/// What a thousand keys with limits add to a request under one, in milliseconds, at most.
const KEYS_MS_MAX: f64 = 0.1;
/// What a thousand idle clients take, in MiB, at most.
const IDLE_MIB_MAX: f64 = 50.0;

/// The first picture behind the start, of those that follow, at most.
const FIRST_MAX: f64 = 1.2;

/// Everything that was measured, both sides in the order smelt and rival.
pub(super) struct Measurements {
    /// Streams at once, and what both sides did.
    pub(super) rows: Vec<(usize, [Figures; 2])>,
    /// Short texts beside long prompts: the client's rows of each side.
    pub(super) beside_prompts: [Vec<Value>; 2],
    /// Short texts and pictures beside running streams, from clients that ask again when they were answered.
    pub(super) beside_streams: [Vec<Value>; 2],
    /// The same from clients that come so many times a second.
    pub(super) coming: (f64, [Vec<Value>; 2]),
    /// Tokens of a picture, to each side.
    pub(super) picture_tokens: [f64; 2],
    /// Pixels of a side, and the first picture's time of those that follow it.
    pub(super) firsts: Vec<(usize, f64)>,
    /// What a step takes served and alone, in milliseconds.
    pub(super) steps: [f64; 2],
    /// What one token takes in each protocol, in milliseconds.
    pub(super) token_ms: Vec<f64>,
    /// What it takes under one key, and under one of a thousand.
    pub(super) keyed_ms: [f64; 2],
    pub(super) idle_mib: f64,
}

/// One run of one side, or the medians of some.
#[derive(Clone, Copy)]
pub(super) struct Figures {
    tokens_per_s: f64,
    ttft_ms: f64,
    pub(super) tpot_ms: f64,
    rss_mib: f64,
}

impl Figures {
    /// Of a row of the client's document.
    pub(super) fn of(row: &Value) -> Result<Self> {
        Ok(Self {
            tokens_per_s: number(row, "/tokens_per_s/median")?,
            ttft_ms: number(row, "/ttft_text_ms/median")?,
            tpot_ms: number(row, "/tpot_ms/median")?,
            rss_mib: number(row, "/memory_mib/rss")?,
        })
    }

    pub(super) fn medians(all: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| median(all.iter().map(figure));
        Self {
            tokens_per_s: of(|f| f.tokens_per_s),
            ttft_ms: of(|f| f.ttft_ms),
            tpot_ms: of(|f| f.tpot_ms),
            rss_mib: of(|f| f.rss_mib),
        }
    }
}

/// A figure of the client's row.
pub(in crate::bench) fn number(row: &Value, pointer: &str) -> Result<f64> {
    let found = row.pointer(pointer).and_then(Value::as_f64);
    found.with_context(|| format!("no {pointer} in {row}"))
}

/// The median of a figure over rows.
pub(super) fn middle(rows: &[Value], pointer: &str) -> Result<f64> {
    let all: Vec<f64> = rows.iter().map(|row| number(row, pointer)).collect::<Result<_>>()?;
    Ok(median(all))
}

/// One figure of both sides.
struct Line {
    what: String,
    ours: f64,
    theirs: Option<f64>,
    check: Option<Check>,
}

/// Prints and keeps everything; fails where a target was missed.
pub(super) fn write(
    facts: &Value,
    served: &Value,
    runs: usize,
    found: &Measurements,
    folder: &Path,
) -> Result<()> {
    let lines = lines(found)?;
    let text = markdown(facts, served, runs, &lines);
    print!("{text}");
    let line = |line: &Line| {
        json!({
            "figure": line.what,
            "smelt": line.ours,
            "rival": line.theirs,
            "target": line.check.as_ref().map(Check::text),
            "held": line.check.as_ref().map(Check::is_held),
        })
    };
    let all: Vec<Value> = lines.iter().map(line).collect();
    let kept = json!({ "machine": facts, "served": served, "runs": runs, "figures": all });
    let json = serde_json::to_string_pretty(&kept)? + "\n";
    for (name, text) in [("serve.json", json), ("serve.md", text)] {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| path.display().to_string())?;
        eprintln!("bench: wrote {}", path.display());
    }
    let checks = lines.iter().filter_map(|line| Some((&line.what, line.check.as_ref()?)));
    let missed: Vec<String> = checks
        .filter(|(_, check)| !check.is_held())
        .map(|(what, check)| format!("{what}: {}", check.text()))
        .collect();
    if missed.is_empty() { Ok(()) } else { bail!("targets missed: {}", missed.join("; ")) }
}

fn lines(found: &Measurements) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    let mut both = |what: String, [ours, theirs]: [f64; 2], check| {
        lines.push(Line { what, ours, theirs: Some(theirs), check });
    };
    for (streams, sides) in &found.rows {
        let [ours, theirs] = sides.map(|figures| figures.tokens_per_s);
        let check = Check::at_least("times the rival", ours / theirs, SPEED_MIN);
        let at = |what: &str| format!("{what}, {streams} streams");
        both(at("tokens/s"), [ours, theirs], Some(check));
        both(at("first text, ms"), sides.map(|figures| figures.ttft_ms), None);
        both(at("a token, ms"), sides.map(|figures| figures.tpot_ms), None);
        both(at("peak RSS, MiB"), sides.map(|figures| figures.rss_mib), None);
    }
    both("tokens of a picture".to_owned(), found.picture_tokens, None);
    let asking = "from clients that ask again, beside streams";
    let coming = format!("coming {:.2} times a second, beside streams", found.coming.0);
    // Clients that ask again have the side that answers texts sooner asked for more pictures at once; those
    // that come at a rate ask both sides as much.  Of the first, pictures are promised nothing: a tile is as long a step
    // as the tower takes.
    for (what, name, sides) in [
        ("texts beside long prompts", "text", &found.beside_prompts),
        (&format!("texts {asking}"), "text", &found.beside_streams),
        (&format!("pictures {asking}"), "image", &found.beside_streams),
        (&format!("texts and pictures {asking}"), "all", &found.beside_streams),
        (&format!("texts {coming}"), "text", &found.coming.1),
        (&format!("pictures {coming}"), "image", &found.coming.1),
        (&format!("texts and pictures {coming}"), "all", &found.coming.1),
    ] {
        let of_both = |at: &str| -> Result<[f64; 2]> {
            let at = format!("/ttft_{name}_ms/{at}");
            Ok([middle(&sides[0], &at)?, middle(&sides[1], &at)?])
        };
        both(format!("first text of {what}, ms"), of_both("median")?, None);
        let [ours, theirs] = of_both("p99")?;
        let is_promised = name == "text" || !what.ends_with(asking);
        let check = Check::at_most("of the rival's", ours / theirs, TTFT_MAX);
        both(
            format!("99th percentile of {what}, ms"),
            [ours, theirs],
            is_promised.then_some(check),
        );
    }
    let answered = |side: usize| middle(&found.beside_streams[side], "/requests_per_s/median");
    let [ours, theirs] = [answered(0)?, answered(1)?];
    let check = Check::at_least("times the rival's", ours / theirs, REQUESTS_MIN);
    both(format!("requests/s {asking}"), [ours, theirs], Some(check));
    lines.extend(own_lines(found));
    Ok(lines)
}

/// What is measured of smelt alone.
fn own_lines(found: &Measurements) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut own = |what: String, ours, check| {
        lines.push(Line { what, ours, theirs: None, check: Some(check) });
    };
    for &(side, ratio) in &found.firsts {
        let check = Check::at_most("of those that follow", ratio, FIRST_MAX);
        own(format!("the first picture of {side} pixels, of the next nine"), ratio, check);
    }
    let [served_ms, alone_ms] = found.steps;
    // A step gives a token to each stream.
    let added = (served_ms - alone_ms) / STEADY_STREAMS as f64;
    let what = format!(
        "serving {STEADY_STREAMS} streams ({served_ms:.2} ms a step) beside the engine alone ({alone_ms:.2}), ms a token"
    );
    own(what, added, Check::at_most("ms a token", added, OVERHEAD_MS_MAX));
    let chat_ms = found.token_ms[0];
    for (protocol, ms) in PROTOCOLS.iter().zip(&found.token_ms).skip(1) {
        let what = format!(
            "one token asked as {} ({ms:.2} ms), beside chats ({chat_ms:.2})",
            protocol.name
        );
        own(what, ms - chat_ms, Check::at_most("ms more", ms - chat_ms, OVERHEAD_MS_MAX));
    }
    let [one_ms, many_ms] = found.keyed_ms;
    let what = format!(
        "one token under one of {KEYS} keys ({many_ms:.2} ms), beside one key ({one_ms:.2})"
    );
    own(what, many_ms - one_ms, Check::at_most("ms more", many_ms - one_ms, KEYS_MS_MAX));
    let check = Check::at_most("MiB", found.idle_mib, IDLE_MIB_MAX);
    own("1,000 idle clients, MiB".to_owned(), found.idle_mib, check);
    lines
}

fn markdown(facts: &Value, served: &Value, runs: usize, lines: &[Line]) -> String {
    let mut text = format!(
        "{facts}\n\n{served}\n\n| figure (medians of {runs}) | smelt serve | llama-server | target |\n|---|---|---|---|\n"
    );
    for Line { what, ours, theirs, check } in lines {
        let theirs = theirs.map_or(String::new(), |theirs| format!("{theirs:.2}"));
        let check = check.as_ref().map_or(String::new(), Check::text);
        let _ = writeln!(text, "| {what} | {ours:.2} | {theirs} | {check} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(tokens_per_s: f64, tpot_ms: f64) -> Figures {
        Figures { tokens_per_s, ttft_ms: 1.0, tpot_ms, rss_mib: 1.0 }
    }

    #[test]
    fn every_promise_has_a_line() {
        let rows = super::super::STREAMS
            .map(|streams| (streams, [figures(12.0, 50.0), figures(10.0, 60.0)]));
        let late = |p99: f64| json!({ "median": 1.0, "p99": p99 });
        let row = |text: f64, image: f64| {
            let all = text.max(image);
            // Who waits less is asked again sooner.
            let per_s = json!({ "median": 1.0 / all });
            json!({ "ttft_text_ms": late(text), "ttft_image_ms": late(image), "ttft_all_ms": late(all), "requests_per_s": per_s })
        };
        let found = Measurements {
            rows: rows.to_vec(),
            beside_prompts: [vec![row(0.8, 1.0)], vec![row(1.0, 1.0)]],
            beside_streams: [vec![row(0.1, 0.6)], vec![row(0.9, 1.0)]],
            coming: (0.5, [vec![row(0.1, 0.6)], vec![row(0.9, 1.0)]]),
            picture_tokens: [258.0, 258.0],
            firsts: vec![(448, 1.1), (896, 1.3)],
            steps: [50.0, 49.0],
            token_ms: vec![20.0, 20.1, 20.0, 20.3],
            keyed_ms: [20.0, 20.2],
            idle_mib: 20.0,
        };
        let lines = lines(&found).unwrap();
        let missed: Vec<&str> = lines
            .iter()
            .filter(|line| line.check.as_ref().is_some_and(|check| !check.is_held()))
            .map(|line| &line.what[..])
            .collect();
        let prompts = "99th percentile of texts beside long prompts, ms";
        let ollama = "one token asked as Ollama (20.30 ms), beside chats (20.00)";
        let keys = "one token under one of 1000 keys (20.20 ms), beside one key (20.00)";
        let first = "the first picture of 896 pixels, of the next nine";
        assert_eq!(missed, [prompts, first, ollama, keys]);
        // Of clients that ask again, pictures are told without a promise.
        let promised = 4 + 5 + 1 + 2 + 1 + 3 + 1 + 1;
        assert_eq!(lines.iter().filter(|line| line.check.is_some()).count(), promised);
        let told = |what: &str| lines.iter().any(|line| line.what.starts_with(what));
        assert!(told("99th percentile of pictures from clients that ask again"));
        let overhead = lines.iter().find(|line| line.what.contains("alone")).unwrap();
        assert!((overhead.ours - 0.125).abs() < 1e-9);
    }

    #[test]
    fn a_row_without_a_figure_is_told() {
        assert!(Figures::of(&json!({})).is_err());
        assert!(middle(&[json!({ "a": 1 }), json!({})], "/a").is_err());
    }
}
