//! Pages and traces of made-up runs; the pages are looked at in a browser.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

use std::time::Duration;

use smelt_exec::{
    AttemptReport, Condition, RunReport, RunStatus, RungReport, StageReport, StageStatus, Way,
    Writes,
};
use smelt_plan::retry::Rung;
use smelt_plan::{FailureClass, Kind};
use smelt_watch::curve::Point;

use super::browser::{RenderedPage, Window, look};
use super::{escape, page};
use crate::trace;

const WIDE: Window = Window { width: 1100, height: 1400, is_dark: false };
const PHONE: Window = Window { width: 400, height: 1400, is_dark: true };

/// What every page is asked: how far it reaches, and what of it has no size.
const MEASURE: &str = "
    const boxes = selector => [...document.querySelectorAll(selector)].map(e => e.getBoundingClientRect());
    const flat = boxes('.bar, .chart svg, .card, h1, h2, td').filter(b => b.width < 2 || b.height < 2);
    const tracks = boxes('.timeline .row:not(.axis) .track');
    const labels = boxes('.time');
    return {
        width: document.documentElement.scrollWidth,
        window: document.documentElement.clientWidth,
        flat: flat.length,
        bars: boxes('.bar').map(b => [b.left, b.right]),
        outside: labels.filter((l, i) => l.left < tracks[i].left - 1 || l.right > tracks[i].right + 1).length,
        charts: boxes('.chart svg').length,
        paths: [...document.querySelectorAll('.chart path')].filter(p => p.getTotalLength() < 1).length,
        text: document.body.innerText.length,
    }";

fn stage(name: &str, status: StageStatus, attempts: Vec<AttemptReport>) -> StageReport {
    let message = attempts.last().and_then(|attempt| attempt.message.clone());
    let kind = Kind::Command;
    let (digest, reproducible) = (None, kind.is_reproducible());
    let name = name.to_owned();
    StageReport {
        class: None,
        name,
        kind,
        status,
        key: None,
        digest,
        output: None,
        reproducible,
        message,
        attempts,
    }
}

/// An attempt whose memory rises and whose machine stalls and lends CMA.
fn attempt(n: u32, began_s: f64, wall_s: f64, outcome: &str) -> AttemptReport {
    let mut attempt = AttemptReport {
        n,
        outcome: outcome.to_owned(),
        began_s,
        wall_s,
        method: "proc".to_owned(),
        ..AttemptReport::default()
    };
    attempt.peaks.peak_rss_bytes = 3 << 30;
    for step in 1..=100_u64 {
        attempt.curve.push(&Point {
            at: Duration::from_secs_f64(wall_s * step as f64 / 100.0),
            rss_bytes: step * (30 << 20),
            swap_bytes: step.saturating_sub(70) * (20 << 20),
            stalled_us: (step % 10) * 1000,
            cma_free_bytes: (250 - 2 * step) << 20,
        });
    }
    if outcome == "failed" {
        attempt.class = Some(FailureClass::OomKilled);
        attempt.message = Some("Killed <b>&</b> gone (signal 9)".to_owned());
        attempt.changed = (n > 1).then(|| "{ workspace = \"512MiB\" }".to_owned());
    }
    attempt
}

fn report(status: RunStatus, wall_s: f64, stages: Vec<StageReport>) -> RunReport {
    let (run, pipeline) = ("20261121-154233-1a2b".to_owned(), "internvl3 <2b> & more".to_owned());
    RunReport {
        run,
        pipeline,
        status,
        wall_s,
        first_failure: None,
        not_written: None,
        is_damaged: false,
        stages,
    }
}

/// The page in both windows; what must hold of every page does.
#[track_caller]
fn seen(report: &RunReport) -> [RenderedPage; 2] {
    let page = page(report, "2026-11-21 15:42:33");
    assert!(!page.contains("<script") && !page.contains("http"), "a page needs nothing else");
    [WIDE, PHONE].map(|window| {
        let seen = look(&page, window, MEASURE);
        assert_eq!(seen.console, [""; 0], "the browser complains");
        assert_eq!(seen.facts["width"], seen.facts["window"], "nothing reaches over the edge");
        assert_eq!(seen.facts["flat"], 0, "everything has a size: {}", seen.facts);
        assert_eq!(seen.facts["outside"], 0, "times stay on their tracks: {}", seen.facts);
        assert_eq!(seen.facts["paths"], 0, "no curve is empty");
        assert!(seen.facts["text"].as_u64().unwrap() > 200);
        let corner = seen.picture.get_pixel(2, 2).0;
        assert_eq!(corner[0] < 128, window.is_dark, "{corner:?}");
        seen
    })
}

/// How many pixels have about this colour.
fn pixels(seen: &RenderedPage, [r, g, b]: [u8; 3]) -> usize {
    let near = |a: u8, b: u8| a.abs_diff(b) < 12;
    let is = |pixel: &&image::Rgb<u8>| near(pixel[0], r) && near(pixel[1], g) && near(pixel[2], b);
    seen.picture.pixels().filter(is).count()
}

const RED: [u8; 3] = [0xc4, 0x31, 0x4b];
const BLUE: [u8; 3] = [0x2f, 0x6f, 0xb5];

#[test]
fn a_run_of_hits_says_that_nothing_ran() {
    let stages = ["checkpoint", "vision-onnx", "deployment"]
        .map(|name| stage(name, StageStatus::Hit, vec![]));
    let [wide, _] = seen(&report(RunStatus::Ok, 0.02, stages.into()));
    assert_eq!(
        (wide.facts["charts"].as_u64(), wide.facts["bars"].as_array().map(Vec::len)),
        (Some(0), Some(0))
    );
    assert_eq!(pixels(&wide, RED), 0);
}

#[test]
fn a_failure_shows_its_attempts_and_what_was_said() {
    let attempts = vec![
        attempt(1, 2.0, 30.0, "failed"),
        attempt(2, 32.0, 25.0, "failed"),
        attempt(3, 57.0, 3.0, "failed"),
    ];
    let stages = vec![
        stage("checkpoint", StageStatus::Hit, vec![]),
        stage("vision-engine", StageStatus::Sealed, vec![attempt(1, 0.0, 2.0, "sealed")]),
        stage("llm-engine", StageStatus::Failed, attempts),
        stage("verify", StageStatus::Skipped, vec![]),
    ];
    let report = report(RunStatus::Failed, 60.0, stages);
    let page = page(&report, "now");
    assert!(page.contains("Killed &lt;b&gt;&amp;&lt;/b&gt; gone"), "the tool's words are text");
    assert_eq!(page.matches("oom-killed after").count(), 3);
    let [wide, _] = seen(&report);
    let bars = wide.facts["bars"].as_array().unwrap();
    assert_eq!(bars.len(), 4);
    let [first, second] = [&bars[1], &bars[2]];
    assert!(
        (first[1].as_f64().unwrap() - second[0].as_f64().unwrap()).abs() < 1.5,
        "one follows the other"
    );
    // Memory, stalls and CMA of four attempts.
    assert_eq!(wide.facts["charts"], 12);
    assert!(pixels(&wide, RED) > 2000 && pixels(&wide, BLUE) > 200);
}

#[test]
fn it_says_what_was_changed_and_how_the_machine_stood() {
    let stood =
        |mib: u64| Some(Condition { mem_available_bytes: Some(mib << 20), ..Condition::default() });
    let what = "waited 4.2 s: <enough> is free".to_owned();
    let settled = RungReport { rung: Rung::Settle, done: true, what, wall_s: 4.2 };
    let what = "needs root".to_owned();
    let refused = RungReport { rung: Rung::DropCaches, done: false, what, wall_s: 0.0 };
    let changed = AttemptReport {
        rungs: vec![settled, refused],
        before: stood(100),
        prepared: stood(900),
        after: stood(800),
        ..attempt(2, 32.0, 25.0, "sealed")
    };
    let attempts = vec![attempt(1, 0.0, 30.0, "failed"), changed];
    let report = report(RunStatus::Ok, 60.0, vec![stage("a", StageStatus::Sealed, attempts)]);
    let page = page(&report, "now");
    assert!(page.contains("<b>settle</b> waited 4.2 s: &lt;enough&gt; is free (4.2 s)"), "{page}");
    assert!(page.contains("<b>drop-caches</b> not done: needs root</td>"), "{page}");
    assert!(page.contains("100.0 MiB → 900.0 MiB → 800.0 MiB"), "{page}");
    let [wide, phone] = seen(&report);
    assert!(wide.facts["flat"] == 0 && phone.facts["flat"] == 0, "nothing is squeezed flat");
}

#[test]
fn it_says_where_nobody_watched_what_was_written() {
    let page = |writes| {
        let confined_by = (writes == Writes::Confined).then_some(Way::Mounts);
        let ended = attempt(1, 0.0, 1.0, "sealed");
        let attempt = AttemptReport { writes: Some(writes), confined_by, ..ended };
        let stages = vec![stage("a", StageStatus::Sealed, vec![attempt])];
        page(&report(RunStatus::Ok, 1.0, stages), "2026-11-21 15:42:33")
    };
    assert!(page(Writes::Unwatched).contains("was not watched: the kernel has no Landlock"));
    let page = page(Writes::Confined);
    assert!(!page.contains("was not watched") && page.contains("confined by a mount name space."));
}

#[test]
fn a_second_is_seen_beside_an_hour() {
    let stages = vec![
        stage("quick", StageStatus::Sealed, vec![attempt(1, 0.0, 1.0, "sealed")]),
        stage("slow", StageStatus::Sealed, vec![attempt(1, 1.0, 3600.0, "sealed")]),
        stage("last", StageStatus::Sealed, vec![attempt(1, 3601.0, 0.5, "sealed")]),
    ];
    for seen in seen(&report(RunStatus::Ok, 3601.6, stages)) {
        let bars = seen.facts["bars"].as_array().unwrap();
        let width = |at: usize| bars[at][1].as_f64().unwrap() - bars[at][0].as_f64().unwrap();
        assert!(width(0) >= 3.0 && width(2) >= 3.0 && width(1) > 100.0 * width(0), "{bars:?}");
    }
}

#[test]
fn a_page_of_many_stages_stays_a_page() {
    let many = |at: u32| {
        let began_s = f64::from(at) * 0.1;
        stage(&format!("stage-{at}"), StageStatus::Sealed, vec![attempt(1, began_s, 0.1, "sealed")])
    };
    let report = report(RunStatus::Ok, 500.0, (0..5000).map(many).collect());
    let page = page(&report, "now");
    assert!(page.len() < 4 << 20, "{} bytes", page.len());
    assert!(page.contains("4000 more stages are left out"), "it says so");
}

#[test]
fn a_trace_has_every_attempt_in_a_lane_and_its_curve() {
    let stages = vec![
        stage("a", StageStatus::Sealed, vec![attempt(1, 0.0, 2.0, "sealed")]),
        stage(
            "b",
            StageStatus::Sealed,
            vec![attempt(1, 1.0, 2.5, "failed"), attempt(2, 3.5, 1.0, "sealed")],
        ),
    ];
    let trace = trace::events(&report(RunStatus::Ok, 4.5, stages));
    let events = trace["traceEvents"].as_array().unwrap();
    let of = |phase: &str| events.iter().filter(|event| event["ph"] == phase).collect::<Vec<_>>();
    let spans: Vec<_> = of("X")
        .iter()
        .map(|e| {
            (
                e["name"].as_str().unwrap(),
                e["tid"].as_u64().unwrap(),
                e["ts"].as_u64().unwrap(),
                e["dur"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        spans,
        [("a", 0, 0, 2_000_000), ("b", 1, 1_000_000, 2_500_000), ("b", 0, 3_500_000, 1_000_000)]
    );
    let counters = of("C");
    assert_eq!(counters.len(), 3 * (3 * 100 + 1));
    assert!(
        counters.iter().all(|e| e["args"].as_object().unwrap().values().all(|v| v.is_number()))
    );
    // One process name, two lanes.
    assert_eq!(of("M").len(), 3);
}

#[test]
fn text_cannot_become_markup() {
    assert_eq!(escape("<b a=\"1\">&\u{1b}\n"), "&lt;b a=&quot;1&quot;&gt;&amp;\u{FFFD}\n");
}
