//! Reads what cargo-mutants says of the mutants that it tried, and counts.
//!
//! Pure but for reading the file: text in, figures out.

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// A mutant: where it is, and what was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mutant {
    /// From the root.
    pub(super) file: String,
    pub(super) line: u32,
    /// As `replace < with <= in Guard<Id>::judge`.
    pub(super) change: String,
}

impl Mutant {
    /// What it is called in the list of survivors, whose lines move.
    pub(super) fn name(&self) -> String {
        format!("{}: {}", self.file, self.change)
    }

    /// A regular expression of the name that cargo-mutants gives it, and of a like one in its line.
    pub(super) fn pattern(&self) -> String {
        format!("^{}:{}:[0-9]+: {}$", escaped(&self.file), self.line, escaped(&self.change))
    }

    /// From the name that cargo-mutants gives it: `file:line:column: change`.
    fn read(name: &str, file: &str) -> Option<Self> {
        let rest = name.strip_prefix(file)?.strip_prefix(':')?;
        let mut parts = rest.splitn(3, ':');
        let line = parts.next()?.parse().ok()?;
        let change = parts.nth(1)?.trim_start();
        Some(Self { file: file.to_owned(), line, change: change.to_owned() })
    }
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.change)
    }
}

/// As a regular expression that means just these words.
fn escaped(words: &str) -> String {
    let means_more = |letter| "\\.+*?()|[]{}^$".contains(letter);
    let escaped = words.chars().flat_map(|letter| {
        let mark = means_more(letter).then_some('\\');
        mark.into_iter().chain([letter])
    });
    escaped.collect()
}

/// What came of mutants.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Outcomes {
    /// A test failed.
    pub(super) caught: usize,
    /// A test did not end, which a person sees too.
    pub(super) timeouts: usize,
    /// They do not compile.
    pub(super) unviable: usize,
    /// All tests held.
    pub(super) missed: Vec<Mutant>,
}

impl Outcomes {
    /// Of a file `outcomes.json`; where there is none, there was nothing to try.
    pub(super) fn read(path: &Path) -> Result<Self> {
        if !path.exists() {
            return Ok(Self::default());
        }
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    fn parse(text: &str) -> Result<Self> {
        let json: Value = serde_json::from_str(text)?;
        let all = json["outcomes"].as_array().context("no outcomes in it")?;
        let mut outcomes = Self::default();
        all.iter().try_for_each(|outcome| outcomes.count(outcome))?;
        Ok(outcomes)
    }

    fn count(&mut self, outcome: &Value) -> Result<()> {
        let summary = outcome["summary"].as_str().context("an outcome without a summary")?;
        if outcome["scenario"] == "Baseline" {
            ensure!(summary == "Success", "without a mutant the tests end as {summary}");
            return Ok(());
        }
        match summary {
            "CaughtMutant" => self.caught += 1,
            "Timeout" => self.timeouts += 1,
            "Unviable" => self.unviable += 1,
            "MissedMutant" => {
                let mutant = &outcome["scenario"]["Mutant"];
                let words = mutant["name"].as_str().zip(mutant["file"].as_str());
                let mutant = words.and_then(|(name, file)| Mutant::read(name, file));
                self.missed.push(mutant.context("a mutant without a name")?);
            }
            _ => bail!("a mutant ends as {summary}"),
        }
        Ok(())
    }

    pub(super) fn add(&mut self, other: Self) {
        self.caught += other.caught;
        self.timeouts += other.timeouts;
        self.unviable += other.unviable;
        self.missed.extend(other.missed);
    }

    /// With what came of those that were missed, asked by more tests.  Whatever else was tried with them counts for nothing:
    /// cargo-mutants 27.1.0 chooses mutants that delete fields whatever names it is given.
    pub(super) fn tried_again(self, again: Self) -> Self {
        let (live, seen): (Vec<_>, Vec<_>) =
            self.missed.into_iter().partition(|one| again.missed.contains(one));
        Self { caught: self.caught + seen.len(), missed: live, ..self }
    }

    /// Those that compile.
    fn viable(&self) -> usize {
        self.caught + self.timeouts + self.missed.len()
    }

    /// Of those that compile, the part that tests see, from 0 to 1; all of none.
    pub(super) fn share(&self) -> f64 {
        match self.viable() {
            0 => 1.0,
            viable => (self.caught + self.timeouts) as f64 / viable as f64,
        }
    }
}

impl fmt::Display for Outcomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { caught, timeouts, unviable, missed } = self;
        let (share, missed) = (self.share() * 100.0, missed.len());
        write!(
            f,
            "{share:5.1} % seen: {caught} caught, {timeouts} timeout, {missed} missed, {unviable} unviable"
        )
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// So many caught, and those missed: files, lines, changes.
    pub(in crate::mutants) fn outcomes(caught: usize, missed: &[(&str, u32, &str)]) -> Outcomes {
        let mutant = |&(file, line, change): &(&str, u32, &str)| Mutant {
            file: file.to_owned(),
            line,
            change: change.to_owned(),
        };
        Outcomes { caught, missed: missed.iter().map(mutant).collect(), ..Outcomes::default() }
    }

    /// As cargo-mutants 27.1.0 writes it, without what is not read.
    fn json(baseline: &str, mutants: &[(&str, &str)]) -> String {
        let mutants = mutants.iter().map(|(change, summary)| {
            let name = format!("src/a.rs:12:5: {change}");
            let mutant = serde_json::json!({"name": name, "package": "a", "file": "src/a.rs", "genre": "FnValue"});
            serde_json::json!({"scenario": {"Mutant": mutant}, "summary": summary, "diff_path": null})
        });
        let baseline = serde_json::json!({"scenario": "Baseline", "summary": baseline});
        let outcomes: Vec<Value> = [baseline].into_iter().chain(mutants).collect();
        serde_json::json!({"outcomes": outcomes, "total_mutants": 1}).to_string()
    }

    #[test]
    fn outcomes_are_counted() {
        let text = json(
            "Success",
            &[
                ("replace f -> u8 with 0", "CaughtMutant"),
                ("replace f -> u8 with 1", "CaughtMutant"),
                ("replace += with *= in f", "Timeout"),
                ("replace f -> T with Default::default()", "Unviable"),
                ("replace a::f -> b::C with c::D", "MissedMutant"),
            ],
        );
        let read = Outcomes::parse(&text).unwrap();
        let missed = [("src/a.rs", 12, "replace a::f -> b::C with c::D")];
        assert_eq!(read, Outcomes { timeouts: 1, unviable: 1, ..outcomes(2, &missed) });
        assert!((read.share() - 0.75).abs() < 1e-9);
        assert_eq!(read.to_string(), " 75.0 % seen: 2 caught, 1 timeout, 1 missed, 1 unviable");
        let mutant = &read.missed[0];
        assert_eq!(mutant.name(), "src/a.rs: replace a::f -> b::C with c::D");
        assert_eq!(mutant.to_string(), "src/a.rs:12: replace a::f -> b::C with c::D");
    }

    #[test]
    fn parts_are_added() {
        let mut all = outcomes(1, &[("a", 1, "x")]);
        all.add(Outcomes { timeouts: 2, unviable: 3, ..outcomes(4, &[("b", 2, "y")]) });
        let sum = outcomes(5, &[("a", 1, "x"), ("b", 2, "y")]);
        assert_eq!(all, Outcomes { timeouts: 2, unviable: 3, ..sum });
        assert!((Outcomes::default().share() - 1.0).abs() < 1e-9, "all of none");
    }

    #[test]
    fn what_more_tests_see_is_caught() {
        let quick = Outcomes { timeouts: 1, ..outcomes(5, &[("a", 1, "x"), ("b", 2, "y")]) };
        let again = outcomes(0, &[("b", 2, "y"), ("c", 3, "of another part")]);
        let both = quick.tried_again(Outcomes { timeouts: 1, ..again });
        assert_eq!(both, Outcomes { timeouts: 1, ..outcomes(6, &[("b", 2, "y")]) });
    }

    #[test]
    fn a_mutant_is_named_by_a_regular_expression() {
        let missed = outcomes(0, &[("src/a.rs", 12, "replace f -> &'a[u32] with *x")]).missed;
        let pattern = r"^src/a\.rs:12:[0-9]+: replace f -> &'a\[u32\] with \*x$";
        assert_eq!(missed[0].pattern(), pattern);
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        for (baseline, summary) in [("Failure", "CaughtMutant"), ("Success", "Failure")] {
            Outcomes::parse(&json(baseline, &[("x", summary)])).unwrap_err();
        }
        for text in ["", "{}", r#"{"outcomes": [{"scenario": "Baseline"}]}"#] {
            Outcomes::parse(text).unwrap_err();
        }
        let nameless = r#"{"outcomes": [{"scenario": {"Mutant": {}}, "summary": "MissedMutant"}]}"#;
        Outcomes::parse(nameless).unwrap_err();
    }

    #[test]
    fn names_of_mutants_have_their_file_and_line() {
        let read = |name| Mutant::read(name, "src/a.rs").map(|mutant| mutant.to_string());
        assert_eq!(
            read("src/a.rs:3:14: delete ! in f").as_deref(),
            Some("src/a.rs:3: delete ! in f")
        );
        for wrong in
            ["src/b.rs:3:14: delete", "src/a.rs:x:1: delete", "src/a.rs:3: delete", "src/a.rs"]
        {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
