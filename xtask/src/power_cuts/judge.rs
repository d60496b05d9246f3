//! Decides what a power cut did to a store, from what a guest found on the disk.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::Value;

use super::workload::{Files, Promises};

/// What a guest found after one cut; a document that a command did not print is missing.
#[derive(Default)]
pub(super) struct GuestReport {
    /// Whether the file system could be mounted.
    is_mounted: bool,
    /// What lies in `out/`, by name.
    trees: BTreeMap<String, Files>,
    /// What `smelt cache fsck` said first, and what after a run.
    checked: Option<Value>,
    checked_again: Option<Value>,
    /// What `smelt plan` said, by value.
    plans: BTreeMap<u32, Value>,
    /// How a run ended; missing if the guest did not come so far.
    run: Option<i32>,
}

/// Reads what a guest wrote: for each cut its number and lines of a word and what belongs to it.
pub(super) fn read(facts: &str) -> Result<BTreeMap<usize, GuestReport>> {
    let mut cuts: BTreeMap<usize, GuestReport> = BTreeMap::new();
    let mut number = 0;
    for line in facts.lines() {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        if word == "cut" {
            number = rest.parse().with_context(|| line.to_owned())?;
        }
        let found = cuts.entry(number).or_default();
        found.read(word, rest).with_context(|| format!("the guest's line \"{line}\""))?;
    }
    Ok(cuts)
}

impl GuestReport {
    fn read(&mut self, word: &str, rest: &str) -> Result<()> {
        match word {
            "mounted" => self.is_mounted = true,
            "tree" => drop(self.trees.insert(rest.to_owned(), Files::new())),
            "file" => self.read_file(rest)?,
            "checked" => self.checked = serde_json::from_str(rest).ok(),
            "again" => self.checked_again = serde_json::from_str(rest).ok(),
            "plan" => {
                let (value, plan) = rest.split_once(' ').unwrap_or((rest, ""));
                // A plan that is no document counts as none.
                if let Ok(plan) = serde_json::from_str(plan) {
                    self.plans.insert(value.parse()?, plan);
                }
            }
            "run" => self.run = Some(rest.parse()?),
            _ => {}
        }
        Ok(())
    }

    /// A line of sha256sum.
    fn read_file(&mut self, line: &str) -> Result<()> {
        let (sha256, path) = line.split_once("  ").context("no digest")?;
        let (tree, path) = path.split_once('/').unwrap_or((path, ""));
        let files = self.trees.entry(tree.to_owned()).or_default();
        files.push((path.to_owned(), sha256.to_owned()));
        files.sort();
        Ok(())
    }
}

/// What is right and what is wrong after a cut.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// How many promised results are there.
    pub(super) kept: usize,
    /// Promised results that are not hits, or hold something else.
    pub(super) lost: Vec<String>,
    /// Names in `out/` that lead to what no stage made.
    pub(super) half_made: Vec<String>,
    /// Why the store is not sound.
    pub(super) unsound: Vec<String>,
    /// Why smelt cannot go on.
    pub(super) stuck: Vec<String>,
}

impl Verdict {
    pub(super) fn is_good(&self) -> bool {
        let Self { lost, half_made, unsound, stuck, .. } = self;
        [lost, half_made, unsound, stuck].iter().all(|wrongs| wrongs.is_empty())
    }

    pub(super) fn wrongs(&self) -> impl Iterator<Item = String> {
        let kinds = [
            ("lost", &self.lost),
            ("half-made", &self.half_made),
            ("unsound", &self.unsound),
            ("stuck", &self.stuck),
        ];
        kinds
            .into_iter()
            .flat_map(|(kind, wrongs)| wrongs.iter().map(move |w| format!("{kind}: {w}")))
    }
}

/// Judges a disk on which `promises` were made; `outputs` are all that can have been built.
pub(super) fn judge(
    found: &GuestReport,
    promises: &Promises,
    outputs: &BTreeMap<(u32, &'static str), Files>,
) -> Verdict {
    let mut verdict = Verdict::default();
    if !found.is_mounted {
        verdict.stuck.push("the file system cannot be mounted".to_owned());
    }
    let results = promises.iter().flat_map(|(value, stages)| stages.iter().map(|s| (*value, s)));
    for (value, stage) in results {
        match missing(found, value, stage, outputs) {
            None => verdict.kept += 1,
            Some(why) => verdict.lost.push(format!("{stage} of value {value}: {why}")),
        }
    }
    let is_known = |files: &Files| outputs.values().any(|known| known == files);
    let strange = found.trees.iter().filter(|(_, files)| !is_known(files));
    verdict.half_made.extend(strange.map(|(tree, files)| format!("{tree} holds {files:?}")));
    // A disk on which nothing was promised need not have a store yet.
    if found.checked.is_some() || !promises.is_empty() {
        verdict.unsound.extend(unsound(found.checked.as_ref()));
    }
    if found.run != Some(0) {
        verdict.stuck.push(format!("a run afterwards ended with {:?}", found.run));
    }
    let again = unsound(found.checked_again.as_ref());
    verdict.unsound.extend(again.map(|why| format!("after a run: {why}")));
    verdict
}

/// Why a promised result is not there.
fn missing(
    found: &GuestReport,
    value: u32,
    stage: &str,
    outputs: &BTreeMap<(u32, &'static str), Files>,
) -> Option<String> {
    let Some(plan) = found.plans.get(&value) else { return Some("smelt plan failed".to_owned()) };
    let mut stages = plan["stages"].as_array().into_iter().flatten();
    let Some(planned) = stages.find(|planned| planned["name"] == stage) else {
        return Some("the plan does not have it".to_owned());
    };
    if planned["status"] != "hit" {
        return Some(format!("{}, {}", planned["status"], planned["reason"]));
    }
    let output = planned["output"].as_str().unwrap_or_default();
    let tree = output.rsplit('/').next().unwrap_or_default();
    let known = outputs.iter().find(|((v, s), _)| (*v, *s) == (value, stage));
    let is_right = known.is_some_and(|(_, files)| found.trees.get(tree) == Some(files));
    (!is_right).then(|| format!("{output} holds {:?}", found.trees.get(tree)))
}

/// Why a store is not sound, by what `smelt cache fsck --json` printed.
fn unsound(checked: Option<&Value>) -> Option<String> {
    let Some(checked) = checked else { return Some("smelt cache fsck failed".to_owned()) };
    let is_sound = checked["sound"] == true && checked["strays"] == 0;
    (!is_sound).then(|| checked.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::power_cuts::workload::{GuestEvent, outputs, promises};

    const SOUND: &str = r#"{"sound":true,"strays":0}"#;

    /// What a guest writes when all is well; `hit` is what the plan says of stage `fixed`.
    fn facts(hit: &str) -> String {
        let files = &outputs()[&(1, "fixed")];
        let lines: Vec<String> =
            files.iter().map(|(path, sha256)| format!("file {sha256}  tt/{path}\n")).collect();
        let stage = format!(r#"{{"name":"fixed","status":"{hit}","output":"/disk/cache/out/tt"}}"#);
        format!(
            "cut 4\nmounted\ntree tt\n{}checked {SOUND}\nplan 1 {{\"stages\":[{stage}]}}\nrun 0\nagain {SOUND}\n",
            lines.concat()
        )
    }

    fn judged(facts: &str) -> Verdict {
        let told = [GuestEvent::Result { value: 1, stage: "fixed".to_owned() }];
        let found = read(facts).unwrap().remove(&4).unwrap();
        judge(&found, &promises(&told), &outputs())
    }

    #[test]
    fn a_good_disk_is_good() {
        assert_eq!(judged(&facts("hit")), Verdict { kept: 1, ..Verdict::default() });
    }

    #[test]
    fn a_promised_result_that_is_a_miss_is_lost() {
        let verdict = judged(&facts("miss"));
        assert_eq!((verdict.kept, verdict.lost.len(), verdict.half_made.len()), (0, 1, 0));
        assert_eq!(judged(&facts("hit").replace("plan 1 {", "plan 1 ")).lost.len(), 1);
    }

    #[test]
    fn a_hit_that_holds_something_else_is_lost_and_half_made() {
        let whole = facts("hit");
        let (cut, _) = whole.split_once("file").unwrap();
        let line = whole.lines().find(|line| line.ends_with("tt/f")).unwrap();
        let shorter = whole.replace(&format!("{line}\n"), "");
        let emptied = format!("{cut}{}", whole.rsplit_once("tt/f\n").unwrap().1);
        for wrong in [shorter, emptied] {
            let verdict = judged(&wrong);
            assert_eq!((verdict.lost.len(), verdict.half_made.len()), (1, 1), "{wrong}");
        }
    }

    #[test]
    fn unsound_stores_and_runs_that_fail_are_seen() {
        let damaged = facts("hit").replace("checked {\"sound\":true", "checked {\"sound\":false");
        assert_eq!(judged(&damaged).unsound.len(), 1);
        assert_eq!(judged(&facts("hit").replace("run 0", "run 70")).stuck.len(), 1);
        assert_eq!(judged(&facts("hit").replace("\"strays\":0", "\"strays\":2")).unsound.len(), 2);
        let nothing = judged("cut 4\n");
        assert!(nothing.lost.len() == 1 && nothing.stuck.len() == 2 && nothing.unsound.len() == 2);
    }
}
