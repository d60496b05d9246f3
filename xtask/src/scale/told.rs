//! Reads the report of a run at true size, prints it, and judges it.

use anyhow::{Context, Result};
use serde_json::Value;

/// One stage of a run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Stage {
    pub(super) name: String,
    status: String,
    /// The digest of its output.
    pub(super) digest: Option<String>,
    attempts: Vec<Attempt>,
}

#[derive(Debug, Clone, PartialEq)]
struct Attempt {
    outcome: String,
    class: Option<String>,
    changed: Option<String>,
    wall_s: f64,
    cpu_s: f64,
    /// Mapped files count.
    peak_rss_bytes: u64,
    peak_rss_anon_bytes: u64,
    cgroup_peak_bytes: Option<u64>,
    oom_kills: u64,
}

impl Stage {
    /// Of its processes, by the kernel's count in the groups of its attempts.
    pub(super) fn oom_kills(&self) -> u64 {
        self.attempts.iter().map(|attempt| attempt.oom_kills).sum()
    }
}

/// The stages of what `smelt report --json` prints.
pub(super) fn read(report: &str) -> Result<Vec<Stage>> {
    let report: Value = serde_json::from_str(report).context("smelt report --json")?;
    let stages = report["stages"].as_array().context("a report without stages")?;
    Ok(stages.iter().map(stage).collect())
}

fn stage(stage: &Value) -> Stage {
    let attempts = stage["attempts"].as_array();
    Stage {
        name: text(&stage["name"]).unwrap_or_default(),
        status: text(&stage["status"]).unwrap_or_default(),
        digest: text(&stage["digest"]),
        attempts: attempts.map(|all| all.iter().map(attempt).collect()).unwrap_or_default(),
    }
}

fn attempt(attempt: &Value) -> Attempt {
    Attempt {
        outcome: text(&attempt["outcome"]).unwrap_or_default(),
        class: text(&attempt["class"]),
        changed: text(&attempt["changed"]),
        wall_s: attempt["wall_s"].as_f64().unwrap_or_default(),
        cpu_s: attempt["cpu_s"].as_f64().unwrap_or_default(),
        peak_rss_bytes: attempt["peak_rss_bytes"].as_u64().unwrap_or_default(),
        peak_rss_anon_bytes: attempt["peak_rss_anon_bytes"].as_u64().unwrap_or_default(),
        cgroup_peak_bytes: attempt["cgroup_peak_bytes"].as_u64(),
        oom_kills: attempt["oom_kills"].as_u64().unwrap_or_default(),
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// What `smelt plan --json` expects a stage to hold that the kernel cannot drop, in bytes.
pub(super) fn forecast(plan: &str, stage: &str) -> Result<Option<u64>> {
    let plan: Value = serde_json::from_str(plan).context("smelt plan --json")?;
    let stages = plan["stages"].as_array().context("a plan without stages")?;
    let found = stages.iter().find(|found| found["name"] == stage);
    Ok(found.and_then(|found| found["need"]["bytes"].as_u64()))
}

/// A line of the table that [`HEAD`] begins for every attempt.
pub(super) fn lines(stage: &Stage, forecast_bytes: Option<u64>) -> Vec<String> {
    let mib = |bytes: Option<u64>| bytes.map_or("-".to_owned(), |bytes| (bytes >> 20).to_string());
    if stage.attempts.is_empty() {
        return vec![format!("{:14} {}", stage.name, stage.status)];
    }
    let line = |attempt: &Attempt| {
        let more = [&attempt.class, &attempt.changed].into_iter().flatten();
        let more: String = more.map(|text| format!("  {text}")).collect();
        format!(
            "{:14} {:8} {:7.1} {:7.1} {:>9} {:>8} {:>8} {:>9} {:>6}{more}",
            stage.name,
            attempt.outcome,
            attempt.wall_s,
            attempt.cpu_s,
            mib(Some(attempt.peak_rss_bytes)),
            mib(Some(attempt.peak_rss_anon_bytes)),
            mib(attempt.cgroup_peak_bytes),
            mib(forecast_bytes),
            attempt.oom_kills,
        )
    };
    stage.attempts.iter().map(line).collect()
}

/// Seconds and MiB.
pub(super) const HEAD: &str =
    "stage          outcome     wall     cpu  peak RSS     anon    group  forecast  kills";

/// What of a run that nothing should disturb is wrong.
pub(super) fn wrongs(stages: &[Stage]) -> Vec<String> {
    let undone = stages.iter().filter(|stage| stage.status != "sealed" && stage.status != "hit");
    let mut wrongs: Vec<String> =
        undone.map(|stage| format!("{} is {}", stage.name, stage.status)).collect();
    let again = stages.iter().filter(|stage| stage.attempts.len() > 1);
    wrongs.extend(again.map(|stage| format!("{} took more than one attempt", stage.name)));
    let killed = stages.iter().filter(|stage| stage.oom_kills() > 0);
    wrongs.extend(killed.map(|stage| format!("the kernel killed something of {}", stage.name)));
    wrongs
}

/// What of a stage is wrong that was to be killed in its first attempt and done by its second, with
/// the output that it has undisturbed.
pub(super) fn wrongs_of_killed(killed: Option<&Stage>, undisturbed: Option<&Stage>) -> Vec<String> {
    let Some(stage) = killed else { return vec!["the stage is not in the report".to_owned()] };
    let mut wrongs = Vec::new();
    let mut check = |holds: bool, wrong: &str| {
        if !holds {
            wrongs.push(format!("{}: {wrong}", stage.name));
        }
    };
    let first = stage.attempts.first();
    check(
        first.is_some_and(|first| first.oom_kills > 0),
        "the kernel killed nothing in the first attempt",
    );
    check(
        first.and_then(|first| first.class.as_deref()) == Some("oom-killed"),
        "the first attempt is not classed oom-killed",
    );
    check(stage.attempts.len() == 2, "the second attempt was to be the last");
    check(
        stage.attempts.last().is_some_and(|last| last.changed.is_some()),
        "nothing was changed for the last attempt",
    );
    check(stage.status == "sealed", "it is not done");
    let same = undisturbed.is_some_and(|other| other.digest == stage.digest);
    check(same && stage.digest.is_some(), "its output is not that of the undisturbed run");
    wrongs
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn attempt(class: Option<&str>, kills: u64, changed: Option<&str>) -> Value {
        let outcome = if class.is_some() { "failed" } else { "sealed" };
        json!({"outcome": outcome, "class": class, "changed": changed, "oom_kills": kills,
               "wall_s": 28.0, "cpu_s": 3.5, "peak_rss_bytes": 853 << 20,
               "peak_rss_anon_bytes": 12 << 20, "cgroup_peak_bytes": null})
    }

    fn stage(status: &str, digest: &str, attempts: &[Value]) -> Stage {
        let report = json!({"stages": [
            {"name": "llm-engine", "status": status, "digest": digest, "attempts": attempts}]});
        read(&report.to_string()).unwrap().remove(0)
    }

    #[test]
    fn a_stage_that_was_killed_must_be_done_by_its_ladder() {
        let plain = stage("sealed", "d1", &[attempt(None, 0, None)]);
        let (killed, done) =
            (attempt(Some("oom-killed"), 1, None), attempt(None, 0, Some("limits.memory = 1GiB")));
        let check = |status: &str, digest: &str, attempts: &[Value], expect: &[&str]| {
            let wrongs = wrongs_of_killed(Some(&stage(status, digest, attempts)), Some(&plain));
            assert_eq!(wrongs.len(), expect.len(), "{wrongs:?}");
            assert!(wrongs.iter().zip(expect).all(|(a, b)| a.contains(b)), "{wrongs:?}");
        };
        check("sealed", "d1", &[killed.clone(), done.clone()], &[]);
        check("sealed", "d2", &[killed.clone(), done.clone()], &["is not that of"]);
        let limit = attempt(Some("memory-limit"), 0, None);
        check("sealed", "d1", &[limit, done], &["killed nothing", "not classed"]);
        let only_once = ["to be the last", "nothing was changed", "not done"];
        check("failed", "d1", std::slice::from_ref(&killed), &only_once);
        check("sealed", "d1", &[killed, attempt(None, 0, None)], &["nothing was changed"]);
        assert_eq!(wrongs_of_killed(None, Some(&plain)).len(), 1);
    }

    #[test]
    fn an_undisturbed_run_has_one_attempt_of_each() {
        let done = attempt(None, 0, None);
        let good = [stage("sealed", "d", std::slice::from_ref(&done)), stage("hit", "d", &[])];
        assert_eq!(wrongs(&good), Vec::<String>::new());
        let bad = [stage("failed", "d", &[done.clone(), done])];
        assert_eq!(wrongs(&bad), ["llm-engine is failed", "llm-engine took more than one attempt"]);
    }

    #[test]
    fn lines_say_what_is_known() {
        let lines = lines(&stage("sealed", "d", &[attempt(Some("oom-killed"), 1, None)]), None);
        assert_eq!(
            lines,
            [
                "llm-engine     failed      28.0     3.5       853       12        -         -      1  oom-killed"
            ]
        );
        assert_eq!(lines[0].find("failed"), HEAD.find("outcome"));
        let plan = json!({"stages": [{"name": "a", "need": {"bytes": 7}}]}).to_string();
        assert_eq!(forecast(&plan, "a").unwrap(), Some(7));
        assert_eq!(forecast(&plan, "b").unwrap(), None);
    }
}
