//! What `/metrics` says, as Prometheus reads it: strictly, in both formats, by every alert and every panel.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::world::server::{Server, shown};
use crate::world::{data, until};
use serde_json::{Value, json};

/// Samples by their names with labels, as a page has them.
type Page = BTreeMap<String, f64>;

fn page_of(server: &Server, accept: &str) -> (String, String) {
    let request = format!(
        "GET /metrics HTTP/1.1\r\nhost: localhost\r\naccept: {accept}\r\nconnection: close\r\n\r\n"
    );
    let answer = server.exchange(request.as_bytes());
    assert_eq!(answer.status, 200);
    (answer.head, answer.body)
}

/// What is left of a sample's name without what its kind adds.
fn family<'a>(sample: &'a str, kind: &str, is_open: bool) -> Option<&'a str> {
    match kind {
        "gauge" => Some(sample),
        "counter" if is_open => sample.strip_suffix("_total"),
        "counter" => sample.ends_with("_total").then_some(sample),
        "histogram" => {
            ["_bucket", "_sum", "_count"].iter().find_map(|end| sample.strip_suffix(end))
        }
        _ => None,
    }
}

/// Reads a page and holds it to all that its format demands.
fn parsed(text: &str, is_open: bool) -> Page {
    let body = match is_open {
        true => text.strip_suffix("# EOF\n").expect("a page has an end"),
        false => text,
    };
    let (mut page, mut families, mut current) = (Page::new(), BTreeSet::new(), None);
    let mut described = BTreeSet::new();
    assert!(body.ends_with('\n'));
    for line in body.lines() {
        let mut words = line.splitn(4, ' ');
        if let Some(rest) = line.strip_prefix("# ") {
            let (word, name) = (words.nth(1).unwrap(), words.next().unwrap().to_owned());
            let rest = &rest[word.len() + name.len() + 2..];
            match word {
                "HELP" => assert!(described.insert(name), "{line}"),
                "UNIT" if is_open => assert!(name.ends_with(&format!("_{rest}")), "{line}"),
                "TYPE" => {
                    assert!(families.insert(name.clone()), "{name} has two types");
                    current = Some((name, rest.to_owned()));
                }
                _ => panic!("{line}"),
            }
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let name = series.split('{').next().unwrap();
        let (of, kind) = current.as_ref().expect(line);
        assert_eq!(family(name, kind, is_open), Some(&of[..]), "{line} is of another family");
        assert!(page.insert(series.to_owned(), value.parse().unwrap()).is_none(), "{line} twice");
    }
    assert_eq!(families, described);
    histograms_are_whole(&page);
    page
}

/// The bound of a bucket, and its name without it.
fn bound(series: &str) -> Option<(f64, String)> {
    let (before, rest) = series.split_once("le=\"")?;
    let (bound, after) = rest.split_once('"')?;
    let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().unwrap() };
    let others = format!("{before}{after}").replace(",}", "}").replace("{,", "{");
    let others = others.replace("{}", "");
    Some((bound, others.replace("_bucket", "_count")))
}

/// Counts do not fall, and the last, of all, is under an infinite bound.
fn histograms_are_whole(page: &Page) {
    let mut all = BTreeMap::<String, Vec<(f64, f64)>>::new();
    for (series, count) in page {
        if let Some((bound, of)) = bound(series) {
            all.entry(of).or_default().push((bound, *count));
        }
    }
    assert!(all.len() >= 10, "{:?}", all.keys());
    for (of, mut buckets) in all {
        buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
        assert!(buckets.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{of}");
        assert_eq!(buckets.last(), Some(&(f64::INFINITY, page[&of])), "{of}");
    }
}

/// A server that was asked, and its pages after one answer and after two.
fn recorded() -> (Server, Page, Page) {
    let server = Server::start(&[]);
    server.assert_answers();
    let open = "application/openmetrics-text";
    let page = || parsed(&page_of(&server, open).1, true);
    // A gauge that falls from one page to the next would be drawn on below zero.
    let is_saying = |series: &str| series.starts_with("smelt_answers_saying");
    let saying = |page: &Page| {
        page.iter().filter(|(series, _)| is_saying(series)).map(|(_, now)| now).sum::<f64>()
    };
    let is_idle = |page: &Page| saying(page) == 0.0;
    assert!(until(|| is_idle(&page())));
    let first = page();
    let picture = fs::read(data("picture.png")).unwrap();
    let fields = json!({ "max_tokens": 3, "ignore_eos": true });
    assert_eq!(server.chat(shown("What is it?", &picture, fields)).status, 200);
    // A request is counted when its connection is told of its end.
    let counted = |page: &Page| page["smelt_completion_tokens_total"];
    let is_done = |page: &Page| is_idle(page) && counted(page) > counted(&first);
    assert!(until(|| is_done(&page())));
    let second = page();
    (server, first, second)
}

#[test]
fn pages_are_what_their_formats_demand() {
    let (server, ..) = recorded();
    let (head, text) = page_of(&server, "application/openmetrics-text;version=1.0.0");
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0"), "{head}");
    let open = parsed(&text, true);
    for accept in ["text/plain", "*/*"] {
        let (head, text) = page_of(&server, accept);
        assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
        let classic = parsed(&text, false);
        assert!(classic.keys().eq(open.keys()), "both say the same");
    }
}

fn operation(file: &str) -> PathBuf {
    data("../../crates/smelt-serve/operation").join(file)
}

/// Series of a page that go on for an hour: each by its step a minute, or as `change` says.
fn series(
    page: &Page,
    step: impl Fn(&str) -> f64,
    change: impl Fn(&str) -> Option<String>,
) -> Vec<Value> {
    let labelled = |series: &str| match series.split_once('{') {
        Some((name, labels)) => format!("{name}{{instance=\"board\",{labels}"),
        None => format!("{series}{{instance=\"board\"}}"),
    };
    let of = |(series, value): (&String, &f64)| {
        let usual = || {
            let step = step(series);
            let sign = if step < 0.0 { '-' } else { '+' };
            format!("{value:.6}{sign}{:.6}x60", step.abs())
        };
        json!({ "series": labelled(series), "values": change(series).unwrap_or_else(usual) })
    };
    page.iter().map(of).collect()
}

/// A test of promtool's: what these expressions give over these series after half an hour.
fn evaluated(series: &[Value], expressions: Vec<(String, Value)>) -> Value {
    let of = |(expr, samples): (String, Value)| json!({ "expr": expr, "eval_time": "30m", "exp_samples": samples });
    let tests: Vec<Value> = expressions.into_iter().map(of).collect();
    json!({ "interval": "1m", "input_series": series, "promql_expr_test": tests })
}

/// Whether Prometheus finds what each test expects, and what it says of it.
fn promtool(tests: &[Value], dir: &Path) -> (bool, String) {
    let file = dir.join("tests.yml");
    let rules = operation("alerts.yml");
    let all = json!({ "rule_files": [rules], "evaluation_interval": "1m", "tests": tests });
    fs::write(&file, all.to_string()).unwrap();
    let output = Command::new("promtool").args(["test", "rules"]).arg(&file).output();
    let output = output.expect("this test needs promtool, of Debian's package prometheus");
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

/// The values of a series in the place of its usual ones, if it has such.
type Change = Box<dyn Fn(&str) -> Option<String>>;

/// How series go on a minute, each alert having one way that makes it fire.
fn alarming() -> Vec<(&'static str, Change)> {
    fn rises(name: &'static str, step: u32) -> Change {
        Box::new(move |series| series.starts_with(name).then(|| format!("0+{step}x60")))
    }
    fn slow(name: &'static str, over: f64) -> Change {
        Box::new(move |series| {
            let (bound, _) = bound(series).filter(|_| series.starts_with(name))?;
            Some(format!("0+{}x60", if bound > over { 60 } else { 0 }))
        })
    }
    fn is(name: &'static str, value: &'static str) -> Change {
        Box::new(move |series| series.starts_with(name).then(|| format!("{value}+0x60")))
    }
    vec![
        ("SmeltNotReady", is("smelt_ready", "0")),
        (
            "SmeltFails",
            Box::new(|series| {
                let is_it = series.starts_with("smelt_requests_total") && series.contains("500");
                is_it.then(|| "0+10x60".to_owned())
            }),
        ),
        ("SmeltEngineFails", rises("smelt_answers_failed_total", 1)),
        ("SmeltDeviceLost", is("smelt_devices_lost", "1")),
        ("SmeltRefuses", rises("smelt_engine_refused_total", 60)),
        ("SmeltQueueLong", slow("smelt_queue_seconds_bucket", 10.0)),
        ("SmeltFirstTokenSlow", slow("smelt_first_token_seconds_bucket", 15.0)),
        ("SmeltKvTight", rises("smelt_preemptions_total", 30)),
        ("SmeltMemoryLow", is("smelt_machine_available_bytes", "100000000")),
        ("SmeltSwapped", is("smelt_process_swapped_bytes", "100000000000")),
        ("SmeltSwapRefused", rises("smelt_model_swaps_refused_total", 1)),
    ]
}

/// What clients bring about by themselves, of which no alert tells.
fn harmless() -> Vec<Change> {
    let late = |series: &str| {
        let is_it = series.starts_with("smelt_requests_total") && series.contains("504");
        is_it.then(|| "0+10x60".to_owned())
    };
    let unheld = |series: &str| {
        series.starts_with("smelt_answers_unheld_total").then(|| "0+10x60".to_owned())
    };
    vec![Box::new(late), Box::new(unheld)]
}

#[test]
fn every_alert_fires_for_its_cause_and_for_no_other() {
    let (_server, mut page, _) = recorded();
    page.insert("smelt_requests_total{route=\"/\",status=\"500\"}".to_owned(), 0.0);
    page.insert("smelt_requests_total{route=\"/\",status=\"504\"}".to_owned(), 0.0);
    // What this machine has at the moment is not the matter.
    page.insert("smelt_machine_available_bytes".to_owned(), 4e9);
    page.insert("smelt_process_swapped_bytes".to_owned(), 0.0);
    let firing = "count by (alertname) (ALERTS{alertstate=\"firing\"})".to_owned();
    let fires = |name: &str| json!([{ "labels": format!("{{alertname=\"{name}\"}}"), "value": 1 }]);
    let quiet = evaluated(&series(&page, |_| 0.0, |_| None), vec![(firing.clone(), json!([]))]);
    let mut tests = vec![quiet];
    for (name, change) in alarming() {
        tests.push(evaluated(&series(&page, |_| 0.0, change), vec![(firing.clone(), fires(name))]));
    }
    for change in harmless() {
        let none = vec![(firing.clone(), json!([]))];
        tests.push(evaluated(&series(&page, |_| 0.0, change), none));
    }
    let rules = fs::read_to_string(operation("alerts.yml")).unwrap();
    let named: BTreeSet<&str> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    let tested: BTreeSet<&str> = alarming().into_iter().map(|(name, _)| name).collect();
    assert_eq!(named, tested, "each alert has a cause here");
    let dir = tempfile::tempdir().unwrap();
    let (is_right, said) = promtool(&tests, dir.path());
    assert!(is_right, "{said}");
}

/// What a dashboard's panels ask Prometheus.
fn panels() -> Vec<String> {
    let board: Value =
        serde_json::from_str(&fs::read_to_string(operation("grafana.json")).unwrap()).unwrap();
    let panels = board["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    let expr = |target: &Value| {
        let expr = target["expr"].as_str().unwrap().replace("$instance", ".*");
        expr.replace("$__rate_interval", "5m")
    };
    targets.map(expr).collect()
}

#[test]
fn every_panel_shows_something() {
    let (_server, first, second) = recorded();
    let step = |series: &str| second.get(series).map_or(0.0, |value| value - first[series]);
    let shows = |expr: String| (format!("count(({expr}) >= 0) > bool 0"), json!([{ "value": 1 }]));
    let panels = panels();
    assert!(panels.len() > 25);
    let all = evaluated(&series(&first, step, |_| None), panels.into_iter().map(shows).collect());
    let dir = tempfile::tempdir().unwrap();
    let (is_right, said) = promtool(&[all], dir.path());
    assert!(is_right, "{said}");
    // A histogram without its last bucket shows nothing, which this would find.
    let cut: Page = first.clone().into_iter().filter(|(name, _)| !name.contains("+Inf")).collect();
    let queue = "histogram_quantile(0.9, sum by (le) (rate(smelt_queue_seconds_bucket[5m])))";
    let queue = vec![shows(queue.to_owned())];
    let (is_right, said) = promtool(&[evaluated(&series(&cut, step, |_| None), queue)], dir.path());
    assert!(!is_right && said.contains("smelt_queue_seconds_bucket"), "{said}");
}
