//! `smelt bench serve`: measures a server as its clients see it.

use std::fs;

use smelt_load::plan::{Case, Plan};
use smelt_load::plot::svg;
use smelt_load::report::{document, markdown};
use smelt_load::run::{Endpoint, LoadError, Pictures, measure};

use crate::exit::{Exit, Failed};
use crate::flags::BenchServeFlags;
use crate::fresh::FreshDir;
use crate::say::{answer, tell};

/// Where a key is looked for that is not on the command line, which others can read.
const KEY_VARIABLE: &str = "SMELT_API_KEY";

pub(super) fn run(flags: &BenchServeFlags) -> Result<Exit, Failed> {
    let (endpoint, plan) = (endpoint(flags), plan(flags));
    plan.check().map_err(Failed::usage)?;
    let out = flags.out.as_deref().map(FreshDir::begin).transpose()?;
    let pictures = match &flags.image[..] {
        [] => Pictures::Drawn(flags.image_size),
        files => Pictures::Files(files.to_vec()),
    };
    let mut hear = |line: &str| tell(format_args!("{line}"));
    let measurement = measure(&endpoint, &plan, &pictures, flags.pid, &mut hear);
    let measurement = measurement.map_err(|error| match error {
        LoadError::Server { .. } => Failed::new(Exit::StageFailed, error.to_string()),
        error => Failed::usage(error),
    })?;
    let table = markdown(&endpoint, &plan, &measurement);
    let json = document(&endpoint, &plan, &measurement);
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
    Ok(Exit::Ok)
}

fn endpoint(flags: &BenchServeFlags) -> Endpoint {
    let url = flags.url.trim_end_matches('/');
    Endpoint {
        url: url.strip_suffix("/v1").unwrap_or(url).to_owned(),
        model: flags.model.clone(),
        key: flags.api_key.clone().or_else(|| std::env::var(KEY_VARIABLE).ok()),
        is_strict: flags.strict,
        timeout: flags.timeout,
    }
}

/// Every pair of lengths with every number of images and of streams.
fn plan(flags: &BenchServeFlags) -> Plan {
    let mut cases = Vec::new();
    for &lengths in &flags.lengths {
        for &pictures in &flags.images {
            cases.extend(flags.concurrency.iter().map(|&streams| Case {
                lengths,
                streams,
                pictures,
            }));
        }
    }
    Plan {
        cases,
        requests: flags.requests,
        runs: flags.runs,
        warm_ups: flags.warm_ups,
        ramp: flags.ramp,
        mix: flags.mix,
    }
}
