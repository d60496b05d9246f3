//! Reads what a guest told and judges whether smelt saw what happened to contiguous memory.

use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// What begins a fact's line on the console.
const MARK: &str = "fact ";

/// Low is less than this share of what was free before.
const LOW: f64 = 0.5;

/// What a guest told.
#[derive(Debug)]
pub(super) struct Facts {
    /// A stage that could not have what another held.
    exhausted: Case,
    /// A stage whose ordinary memory lay in the area.
    borrowed: Case,
    /// What the kernel said of the area.
    kernel: Vec<String>,
}

/// One run of a pipeline that has one stage.
#[derive(Debug)]
struct Case {
    /// Free of the area when the run began.
    free_kib: u64,
    exit: i32,
    status: String,
    attempts: Vec<Attempt>,
}

/// What the report says of one attempt.
#[derive(Debug)]
struct Attempt {
    outcome: String,
    class: Option<String>,
    message: Option<String>,
    changed: Option<String>,
    /// What was done before it.
    rungs: Vec<String>,
    method: String,
    cma_alloc_fails: Option<u64>,
    cma_free_min_kib: Option<u64>,
}

/// Reads the console of a guest that came to its end.
pub(super) fn read(console: &str) -> Result<Facts> {
    let facts = || console.lines().filter_map(|line| line.trim_end().strip_prefix(MARK));
    ensure!(facts().any(|fact| fact == "end"), "the guest did not come to its end");
    let value = |name: String| {
        let found = facts().find_map(|fact| fact.strip_prefix(&name)?.strip_prefix(' '));
        found.with_context(|| format!("the guest told no {name}"))
    };
    let case = |name: &str| -> Result<Case> {
        let report: Value = serde_json::from_str(value(format!("{name}.report"))?)
            .with_context(|| format!("the report of {name}"))?;
        let stage = &report["stages"][0];
        let attempts = stage["attempts"].as_array().map(|all| all.iter().map(attempt).collect());
        Ok(Case {
            free_kib: value(format!("{name}.free_kib"))?.parse()?,
            exit: value(format!("{name}.exit"))?.parse()?,
            status: text(&stage["status"]).unwrap_or_default(),
            attempts: attempts.unwrap_or_default(),
        })
    };
    Ok(Facts {
        exhausted: case("exhausted")?,
        borrowed: case("borrowed")?,
        kernel: facts()
            .filter_map(|fact| fact.strip_prefix("kernel "))
            .map(str::to_owned)
            .collect(),
    })
}

fn attempt(report: &Value) -> Attempt {
    let rungs = report["rungs"].as_array();
    Attempt {
        outcome: text(&report["outcome"]).unwrap_or_default(),
        class: text(&report["class"]),
        message: text(&report["message"]),
        changed: text(&report["changed"]),
        rungs: rungs.into_iter().flatten().filter_map(|rung| text(&rung["what"])).collect(),
        method: text(&report["method"]).unwrap_or_default(),
        cma_alloc_fails: report["cma_alloc_fails"].as_u64(),
        cma_free_min_kib: report["cma_free_min_bytes"].as_u64().map(|bytes| bytes >> 10),
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

impl Facts {
    /// A line for every attempt and for every word of the kernel's.
    pub(super) fn told(&self) -> Vec<String> {
        let cases = [("exhausted", &self.exhausted), ("borrowed", &self.borrowed)];
        let lines = cases.iter().flat_map(|(name, case)| case.told(name));
        lines.chain(self.kernel.iter().map(|line| format!("kernel: {line}"))).collect()
    }

    /// What is not as it was made to be; nothing where smelt saw all of it.
    pub(super) fn wrongs(&self) -> Vec<String> {
        let mut wrongs = Vec::new();
        let mut check = |holds: bool, wrong: &str| {
            if !holds {
                wrongs.push(wrong.to_owned());
            }
        };
        check(
            self.kernel.iter().any(|line| line.contains("alloc failed")),
            "the kernel refused nobody, so there was nothing to see",
        );
        let failed = |attempt: &Attempt| attempt.class.as_deref() == Some("cma-exhausted");
        let refused = |attempt: &Attempt| attempt.cma_alloc_fails.is_some_and(|fails| fails > 0);
        let Case { attempts, .. } = &self.exhausted;
        let first_failed = attempts.first().is_some_and(|attempt| attempt.outcome == "failed");
        check(first_failed, "the stage did not fail while the other had the area");
        check(attempts.len() > 1, "the stage was not attempted again");
        let dropped = |attempt: &Attempt| {
            attempt.rungs.iter().any(|what| what.starts_with("dropped the caches"))
        };
        check(attempts.iter().skip(1).all(dropped), "a retry began without caches dropped");
        check(self.exhausted.is_sealed(), "the stage did not succeed after the other had ended");
        for attempt in attempts.iter().filter(|attempt| attempt.outcome == "failed") {
            check(failed(attempt), "a failure for want of the area is not classed cma-exhausted");
            check(refused(attempt), "an attempt does not count what the kernel refused it");
        }
        let Case { attempts, free_kib, .. } = &self.borrowed;
        check(self.borrowed.is_sealed(), "the stage with ordinary memory failed");
        check(attempts.len() == 1, "the stage with ordinary memory was attempted again");
        for attempt in attempts {
            let low =
                attempt.cma_free_min_kib.is_some_and(|low| (low as f64) < LOW * *free_kib as f64);
            check(low, "ordinary memory did not lower CmaFree, so no alarm proves nothing");
            check(!refused(attempt), "the kernel refused the stage with ordinary memory something");
            check(attempt.class.is_none(), "the stage with ordinary memory has a failure class");
        }
        wrongs
    }
}

impl Case {
    fn is_sealed(&self) -> bool {
        self.exit == 0 && self.status == "sealed"
    }

    fn told(&self, name: &str) -> Vec<String> {
        let attempts = self.attempts.iter().zip(1..);
        let line = |(attempt, n): (&Attempt, u32)| {
            let mib = |kib: u64| kib >> 10;
            let mut line = format!(
                "{name:9} attempt {n}: {}, CmaFree {} MiB, at least {} MiB, {} refused, {}",
                attempt.outcome,
                mib(self.free_kib),
                attempt.cma_free_min_kib.map_or("?".to_owned(), |low| mib(low).to_string()),
                attempt.cma_alloc_fails.map_or("?".to_owned(), |fails| fails.to_string()),
                attempt.method,
            );
            let known = [&attempt.class, &attempt.message, &attempt.changed];
            for more in known.into_iter().flatten().chain(&attempt.rungs) {
                let _ = write!(line, "; {more}");
            }
            line
        };
        attempts.map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn attempt(class: Option<&str>, fails: u64, low_mib: u64) -> Value {
        let outcome = if class.is_some() { "failed" } else { "sealed" };
        let rungs = [json!({"rung": "drop-caches", "what": "dropped the caches of files"})];
        json!({"outcome": outcome, "class": class, "method": "cgroup-v2", "rungs": rungs,
               "cma_alloc_fails": fails, "cma_free_min_bytes": low_mib << 20})
    }

    fn console(exhausted: &[Value], borrowed: &[Value], kernel: &str) -> String {
        let report = |attempts: &[Value]| {
            let is_good = attempts.last().is_some_and(|last| last["class"].is_null());
            let status = if is_good { "sealed" } else { "failed" };
            json!({"stages": [{"status": status, "attempts": attempts}]})
        };
        let case = |name: &str, attempts: &[Value]| {
            let report = report(attempts);
            let exit = i32::from(report["stages"][0]["status"] != "sealed");
            format!(
                "fact {name}.free_kib 262144\r\n[1/1] engine started\r\nfact {name}.exit {exit}\r\nfact {name}.report {report}\r\n"
            )
        };
        format!(
            "booting\r\n{}{}fact kernel {kernel}\r\nfact end\r\n",
            case("exhausted", exhausted),
            case("borrowed", borrowed)
        )
    }

    const REFUSED: &str = "cma: cma_alloc: reserved: alloc failed, req-size: 8100 pages, ret: -12";

    #[track_caller]
    fn check(exhausted: &[Value], borrowed: &[Value], kernel: &str, expect: &[&str]) {
        let facts = read(&console(exhausted, borrowed, kernel)).unwrap();
        let wrongs = facts.wrongs();
        assert_eq!(wrongs.len(), expect.len(), "{wrongs:?}");
        for (wrong, expect) in wrongs.iter().zip(expect) {
            assert!(wrong.contains(expect), "{wrong} is not about {expect}");
        }
    }

    #[test]
    fn only_what_was_seen_and_cured_is_right() {
        let (failed, well) = (attempt(Some("cma-exhausted"), 1, 90), attempt(None, 0, 90));
        let low = attempt(None, 0, 70);
        let good = [failed.clone(), well.clone()];
        check(&good, std::slice::from_ref(&low), REFUSED, &[]);
        check(
            &good,
            std::slice::from_ref(&low),
            "cma: Reserved 256 MiB",
            &["the kernel refused nobody"],
        );
        let only_well = ["did not fail", "not attempted again"];
        check(std::slice::from_ref(&well), std::slice::from_ref(&low), REFUSED, &only_well);
        let only_failed = ["not attempted again", "did not succeed"];
        check(std::slice::from_ref(&failed), std::slice::from_ref(&low), REFUSED, &only_failed);
        let other = attempt(Some("tool-rejected"), 1, 90);
        check(&[other, well.clone()], std::slice::from_ref(&low), REFUSED, &["not classed"]);
        let mut bare = well.clone();
        bare["rungs"] = json!([]);
        check(&[failed.clone(), bare], std::slice::from_ref(&low), REFUSED, &["caches dropped"]);
        let uncounted = attempt(Some("cma-exhausted"), 0, 90);
        check(&[uncounted, well], &[low], REFUSED, &["does not count"]);
        check(&good, &[attempt(None, 0, 200)], REFUSED, &["did not lower"]);
        check(&good, &[attempt(None, 1, 70)], REFUSED, &["refused the stage"]);
        let alarmed = [attempt(Some("cma-exhausted"), 0, 70), attempt(None, 0, 70)];
        check(&good, &alarmed, REFUSED, &["attempted again", "has a failure class"]);
    }

    #[test]
    fn a_guest_that_ended_early_is_an_error() {
        assert!(read("fact exhausted.exit 0\n").is_err());
        assert!(read("fact exhausted.exit 0\nfact end\n").is_err());
    }
}
