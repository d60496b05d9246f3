//! Measures scripted servers: good ones, slow ones, and those that break the rules.

mod server;

use std::time::Duration;

use crate::figures::Figures;
use crate::plan::{Case, Lengths, LoadPlan, Mix};
use crate::run::{Endpoint, ImageSource, LoadError, Measurement, Target, measure};
use server::Server;

fn endpoint(server: &Server, model: &str) -> Endpoint {
    Endpoint {
        url: server.url.clone(),
        model: (!model.is_empty()).then(|| model.to_owned()),
        key: Some("secret".to_owned()),
        authorities: None,
        is_strict: false,
        timeout: Duration::from_millis(1500),
    }
}

fn plan(streams: usize, pictures: usize) -> LoadPlan {
    let lengths = Lengths { prompt: 65, answer: 8 };
    LoadPlan {
        cases: vec![Case { lengths, streams, pictures }],
        requests: None,
        runs: 2,
        warm_ups: 1,
        ramp: Duration::ZERO,
        per_s: None,
        mix: None,
        seed: 1,
    }
}

fn measured(server: &Server, model: &str, plan: &LoadPlan) -> Result<Measurement, LoadError> {
    measure_all(&[target(endpoint(server, model))], plan)
}

fn target(endpoint: Endpoint) -> Target {
    Target { name: None, endpoint, pid: Some(std::process::id()) }
}

fn measure_all(targets: &[Target], plan: &LoadPlan) -> Result<Measurement, LoadError> {
    measure(targets, plan, &ImageSource::Drawn(28), &mut |_| {})
}

fn figures(model: &str, plan: &LoadPlan) -> Figures {
    let server = Server::start();
    measured(&server, model, plan).unwrap().cases.remove(0).figures
}

#[test]
fn a_good_server_is_measured() {
    let server = Server::start();
    let measurement = measured(&server, "", &plan(3, 0)).unwrap();
    assert_eq!(measurement.servers[0].model, "good", "the first that the server names");
    let figures = &measurement.cases[0].figures;
    // Its words are two tokens each and its frame is five.
    assert_eq!(figures.prompt_tokens.unwrap().median, 65.0);
    assert_eq!(figures.answer_tokens.unwrap().min, 8.0);
    assert_eq!((figures.requests, figures.errors.len()), (24, 0));
    assert!(figures.is_counted && figures.is_streamed);
    let first = figures.ttft_ms[0].unwrap();
    assert!(first.median >= 20.0 && first.p99 >= first.median, "{first:?}");
    assert!(figures.tpot_ms.unwrap().median >= 2.0);
    assert!(figures.memory_mib.unwrap()[0] > 1.0);
    let asked = server.asked();
    // Two probes, and twelve requests of each of three runs.
    assert_eq!(asked.len(), 2 + 36);
    assert!(asked.iter().all(|asked| asked.key == "Bearer secret" && asked.ignore_eos));
    let mut texts: Vec<&str> = asked.iter().map(|asked| &asked.text[..]).collect();
    texts.sort_unstable();
    texts.dedup();
    assert_eq!(texts.len(), 38, "no prompt is asked twice");
    assert!(server.most_at_once() <= 3);
}

#[test]
fn more_streams_are_at_once_and_a_ramp_spreads_them() {
    let server = Server::start();
    let long = LoadPlan { runs: 1, warm_ups: 0, ..plan(4, 0) };
    let ramp = LoadPlan { ramp: Duration::from_millis(2000), requests: Some(8), ..long.clone() };
    let figures = &measured(&server, "good", &ramp).unwrap().cases[0].figures;
    assert_eq!(figures.requests, 8);
    // The last of four begins after 1500 ms, and until then the others ask what does not count: a request takes some
    // 40 ms, so that eight of four streams would be 5 a second if their delay counted.
    let rate = figures.requests_per_s.unwrap().median;
    assert!(rate > 8.0 / 1.5, "{rate}");
    let asked = server.asked();
    assert!(asked.len() > 2 + 8 + 8, "{}", asked.len());
    let texts: std::collections::BTreeSet<&str> =
        asked.iter().map(|asked| &asked.text[..]).collect();
    assert_eq!(texts.len(), asked.len(), "no prompt is asked twice");
    let server = Server::start();
    measured(&server, "good", &plan(4, 0)).unwrap();
    assert!(server.most_at_once() > 1);
}

#[test]
fn requests_come_whether_others_are_answered_or_not() {
    let server = Server::start();
    let rate =
        LoadPlan { per_s: Some(400.0), requests: Some(24), runs: 1, warm_ups: 0, ..plan(24, 0) };
    measured(&server, "good", &rate).unwrap();
    assert!(server.most_at_once() > 1);
    // Where one stream must do, who comes meanwhile waits, and that is counted.
    let alone = LoadPlan { cases: plan(1, 0).cases, ..rate };
    let one = &measured(&server, "good", &alone).unwrap().cases[0].figures;
    let [first, _] = one.ttft_ms;
    assert!(first.unwrap().p99 > 10.0 * 20.0, "{first:?}");
}

#[test]
fn mixtures_have_figures_of_both_kinds() {
    let server = Server::start();
    let mixed = LoadPlan { mix: Some(Mix { text: 3, image: 1 }), requests: Some(8), ..plan(2, 2) };
    let figures = &measured(&server, "good", &mixed).unwrap().cases[0].figures;
    assert!(figures.ttft_ms.iter().all(Option::is_some));
    let pictures: Vec<usize> =
        server.asked().iter().map(|asked| asked.pictures).filter(|count| *count > 0).collect();
    assert_eq!(pictures, [2; 6], "a quarter of eight requests of three runs");
}

#[test]
fn a_server_without_streams_or_counts_is_measured_by_what_it_gives() {
    let whole = figures("document", &plan(1, 0));
    assert!(!whole.is_streamed && whole.is_counted && whole.tpot_ms.is_none());
    assert_eq!(whole.tokens_per_s.map(|spread| spread.min > 0.0), Some(true));
    let untold = figures("untold", &plan(1, 0));
    assert!(!untold.is_counted && untold.prompt_tokens.is_none());
    assert_eq!(untold.answer_tokens.unwrap().median, 8.0, "pieces stand for tokens");
}

#[test]
fn requests_that_fail_are_figures() {
    let check = |model: &str, words: &str| {
        let figures = figures(model, &LoadPlan { requests: Some(2), ..plan(2, 0) });
        let (error, count) = &figures.errors[0];
        assert!(error.contains(words), "{model}: {error}");
        assert_eq!((*count, figures.requests), (4, 4), "{model}");
        assert_eq!(figures.tokens_per_s.unwrap().max, 0.0);
    };
    check("cut", "ended before it was done");
    check("broken", "not JSON");
    check("said", "the server said: out of memory");
    check("busy", "the server answered 429: try later");
    check("hang", "timeout");
    check("closed", "");
    // Every other request is refused; the others count.
    let figures = figures("half", &LoadPlan { requests: Some(6), ..plan(1, 0) });
    assert_eq!((figures.errors[0].1, figures.requests), (6, 12));
    assert!(figures.ttft_ms[0].is_some());
}

#[test]
fn nothing_can_be_measured_without_a_server_a_picture_or_a_process() {
    let server = Server::start();
    let said = |result: Result<Measurement, LoadError>| result.unwrap_err().to_string();
    let asked = |endpoint| said(measure_all(&[target(endpoint)], &plan(1, 0)));
    let nowhere = Endpoint { url: "http://127.0.0.1:1".to_owned(), ..endpoint(&server, "") };
    let error = asked(nowhere);
    assert!(error.starts_with("http://127.0.0.1:1 gives no answer: "), "{error}");
    let error = asked(Endpoint { key: None, ..endpoint(&server, "") });
    assert!(error.ends_with("the server answered 401: no key"), "{error}");
    let error = asked(Endpoint { authorities: Some("none.pem".into()), ..endpoint(&server, "") });
    assert!(error.starts_with("cannot read SSL_CERT_FILE: none.pem: "), "{error}");
    let good = || target(endpoint(&server, ""));
    let none = ImageSource::Files(vec!["none.png".into()]);
    let error = said(measure(&[good()], &plan(1, 1), &none, &mut |_| {}));
    assert!(error.starts_with("cannot read picture none.png"), "{error}");
    let gone = Target { pid: Some(u32::MAX), ..good() };
    let error = said(measure_all(&[gone], &plan(1, 0)));
    assert!(error.starts_with("there is no process"), "{error}");
    let error = said(measure_all(&[good(), good()], &plan(1, 0)));
    assert!(error.starts_with("two servers are called \"good\""), "{error}");
    let error = said(measured(&server, "", &plan(0, 0)));
    assert!(error.contains("streams must be 1 to 512"), "{error}");
}

#[test]
fn servers_take_turns() {
    let server = Server::start();
    let named = |name: &str, model: &str| Target {
        name: Some(name.to_owned()),
        ..target(endpoint(&server, model))
    };
    let targets = [named("a", "good"), named("b", "document")];
    let measurement = measure_all(&targets, &LoadPlan { requests: Some(1), ..plan(1, 0) }).unwrap();
    let rows: Vec<&str> = measurement.cases.iter().map(|row| measurement.name(row)).collect();
    assert_eq!(rows, ["a", "b"]);
    let [a, b] = [0, 1].map(|row| &measurement.cases[row].figures);
    assert!(a.is_streamed && !b.is_streamed);
    // Two probes each, then a run of each in turns.
    let models: Vec<String> =
        server.asked().iter().skip(4).map(|asked| asked.model.clone()).collect();
    assert_eq!(models, ["good", "document", "good", "document", "good", "document"]);
}
