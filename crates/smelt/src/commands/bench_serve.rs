//! `smelt bench serve`: measures a server as its clients see it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;
use smelt_doctor::Conditions;
use smelt_load::plan::{Case, LoadPlan};
use smelt_load::plot::svg;
use smelt_load::report::{document, markdown};
use smelt_load::run::{Endpoint, ImageSource, LoadError, Target, measure};

use crate::atomic_dir::AtomicDir;
use crate::console::{answer, tell};
use crate::exit::{Exit, Failed};
use crate::flags::BenchServeFlags;
use crate::version;

/// Where a key is looked for that is not on the command line, which others can read.
const KEY_VARIABLE: &str = "SMELT_API_KEY";

/// Names the certificates to trust instead of the public authorities', as other programs have it.
const AUTHORITIES_VARIABLE: &str = "SSL_CERT_FILE";

pub(super) fn run(flags: &BenchServeFlags) -> Result<Exit, Failed> {
    let (targets, plan) = (targets(flags).map_err(Failed::usage)?, plan(flags));
    plan.check().map_err(Failed::usage)?;
    let out = flags.out.as_deref().map(AtomicDir::begin).transpose()?;
    let pictures = match &flags.image[..] {
        [] => ImageSource::Drawn(flags.image_size),
        files => ImageSource::Files(files.to_vec()),
    };
    let mut hear = |line: &str| tell(format_args!("{line}"));
    let measurement = measure(&targets, &plan, &pictures, &mut hear);
    let measurement = measurement.map_err(|error| match error {
        LoadError::Server { .. } => Failed::new(Exit::StageFailed, error.to_string()),
        error => Failed::usage(error),
    })?;
    let conditions = Conditions::read(Path::new("/"));
    let table = markdown(&plan, &measurement) + &asked_from(&conditions);
    let mut json = document(&plan, &measurement);
    json["asked_from"] = json!({ "smelt": version::TEXT, "machine": conditions });
    let json = serde_json::to_string_pretty(&json).expect("plain data is JSON") + "\n";
    if let Some(out) = out {
        for (name, text) in
            [("serve.json", &json), ("serve.md", &table), ("serve.svg", &svg(&measurement))]
        {
            let path = out.path().join(name);
            let failed = |error| {
                Failed::new(Exit::StageFailed, format!("cannot write {}: {error}", path.display()))
            };
            fs::write(&path, text).map_err(failed)?;
        }
        out.finish()?;
    }
    answer(if flags.json { json } else { table })?;
    match measurement.cases.iter().find(|case| case.figures.is_nothing()) {
        None => Ok(Exit::Ok),
        Some(case) => {
            let (name, why) = (measurement.name(case), &case.figures.errors[0].0);
            let why = format!("{name} answered no request of a row: {why}");
            Err(Failed::new(Exit::StageFailed, why))
        }
    }
}

/// From which machine was asked: that of the server, where both are one.
fn asked_from(conditions: &Conditions) -> String {
    format!("\nAsked by smelt {} from: {}.\n", version::TEXT, conditions.line())
}

/// Every server that is named; several models of one server are several.
fn targets(flags: &BenchServeFlags) -> Result<Vec<Target>, String> {
    let count = flags.url.len().max(flags.model.len());
    for (what, given) in
        [("--url", flags.url.len()), ("--model", flags.model.len()), ("--pid", flags.pid.len())]
    {
        if given > 1 && given != count {
            return Err(format!("{what} is given {given} times; give it once or {count} times"));
        }
    }
    if flags.pid.len() < flags.url.len() && !flags.pid.is_empty() {
        return Err("every --url is a process of its own: give a --pid for each".to_owned());
    }
    Ok((0..count).map(|index| target(flags, index)).collect())
}

/// What is given once is for all.
fn nth<T>(all: &[T], index: usize) -> Option<&T> {
    all.get(index).or_else(|| all.first())
}

fn target(flags: &BenchServeFlags, index: usize) -> Target {
    let (name, url) = nth(&flags.url, index).expect("an address has a default");
    let url = url.trim_end_matches('/');
    let endpoint = Endpoint {
        url: url.strip_suffix("/v1").unwrap_or(url).to_owned(),
        model: nth(&flags.model, index).cloned(),
        key: flags.api_key.clone().or_else(|| std::env::var(KEY_VARIABLE).ok()),
        authorities: std::env::var_os(AUTHORITIES_VARIABLE).map(PathBuf::from),
        is_strict: flags.strict,
        timeout: flags.timeout,
    };
    Target { name: name.clone(), endpoint, pid: nth(&flags.pid, index).copied() }
}

/// Every pair of lengths with every number of images and of streams.
fn plan(flags: &BenchServeFlags) -> LoadPlan {
    let mut cases = Vec::new();
    // Who names a picture wants it shown.
    let usual = [usize::from(!flags.image.is_empty())];
    let images = if flags.images.is_empty() { &usual[..] } else { &flags.images };
    for &lengths in &flags.lengths {
        for &pictures in images {
            cases.extend(flags.concurrency.iter().map(|&streams| Case {
                lengths,
                streams,
                pictures,
            }));
        }
    }
    LoadPlan {
        cases,
        requests: flags.requests,
        runs: flags.runs,
        warm_ups: flags.warm_ups,
        ramp: flags.ramp,
        per_s: flags.rate,
        mix: flags.mix,
        seed: flags.seed.map_or_else(clock, u64::from),
    }
}

/// A number that was never here before.
fn clock() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_millis() as u64 & u64::from(u32::MAX)
}
