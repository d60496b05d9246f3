//! The mutants that may live, and why: a committed list.
//!
//! Two lines are one survivor: its name, without the line that it is on, and indented why it may live.  A name that is
//! listed twice stands for two mutants.  What begins with `#` is for readers.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, bail, ensure};

use super::outcomes::Mutant;
use crate::root;

/// Where the list is.
const LIST: &str = "xtask/mutants/survivors.txt";

/// The names of survivors: `file: change`.
#[derive(Debug, Default)]
pub(super) struct Survivors(Vec<String>);

impl Survivors {
    /// Those of the repository.
    pub(super) fn committed() -> Result<Self> {
        let text = fs::read_to_string(root().join(LIST)).context(LIST)?;
        Self::read(&text).context(LIST)
    }

    pub(super) fn read(text: &str) -> Result<Self> {
        let mut names: Vec<String> = Vec::new();
        let mut is_explained = true;
        for (at, line) in text.lines().enumerate() {
            let at = at + 1;
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            if line.starts_with(' ') {
                ensure!(!names.is_empty(), "line {at}: a reason without a survivor");
                is_explained = true;
                continue;
            }
            ensure!(is_explained, "line {at}: the survivor above has no reason");
            if !line.contains(".rs: ") {
                bail!("line {at}: a survivor is FILE: CHANGE");
            }
            names.push(line.to_owned());
            is_explained = false;
        }
        ensure!(is_explained, "the last survivor has no reason");
        Ok(Self(names))
    }

    /// Those in some files.
    pub(super) fn of(&self, is_wanted: impl Fn(&str) -> bool) -> Vec<String> {
        let file = |name: &str| name.split(": ").next().unwrap_or_default().to_owned();
        self.0.iter().filter(|name| is_wanted(&file(name))).cloned().collect()
    }
}

/// The mutants beyond those that are listed.
pub(super) fn beyond<'a>(missed: &'a [Mutant], listed: &[String]) -> Vec<&'a Mutant> {
    let mut left = counted(listed.iter().cloned());
    missed.iter().filter(|mutant| !take(&mut left, &mutant.name())).collect()
}

/// The listed ones beyond those that were missed.
pub(super) fn gone<'a>(listed: &'a [String], missed: &[Mutant]) -> Vec<&'a String> {
    let mut left = counted(missed.iter().map(Mutant::name));
    listed.iter().filter(|name| !take(&mut left, name)).collect()
}

fn counted(names: impl Iterator<Item = String>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    names.for_each(|name| *counts.entry(name).or_default() += 1);
    counts
}

/// Takes one of a name, if there is one left.
fn take(left: &mut BTreeMap<String, usize>, name: &str) -> bool {
    let Some(count) = left.get_mut(name).filter(|count| **count > 0) else { return false };
    *count -= 1;
    true
}

#[cfg(test)]
mod tests {
    use super::super::outcomes::tests::outcomes;
    use super::*;

    #[test]
    fn a_list_is_names_with_reasons() {
        let text = "# How to read it.\n\na.rs: delete ! in f\n    nobody asks\n    for it\nb.rs: x: y\n  why\n";
        let survivors = Survivors::read(text).unwrap();
        assert_eq!(survivors.of(|_| true), ["a.rs: delete ! in f", "b.rs: x: y"]);
        assert_eq!(survivors.of(|file| file == "b.rs"), ["b.rs: x: y"]);
        for (wrong, why) in [
            ("a.rs: x\n", "the last survivor has no reason"),
            ("a.rs: x\nb.rs: x\n  why\n", "line 2: the survivor above has no reason"),
            ("  why\n", "line 1: a reason without a survivor"),
            ("a.rs\n  why\n", "line 1: a survivor is FILE: CHANGE"),
        ] {
            assert_eq!(Survivors::read(wrong).unwrap_err().to_string(), why);
        }
    }

    #[test]
    fn a_name_stands_for_as_many_as_it_is_listed() {
        let missed = outcomes(0, &[("a.rs", 1, "x"), ("a.rs", 9, "x"), ("b.rs", 2, "y")]).missed;
        let listed = ["a.rs: x", "c.rs: z"].map(str::to_owned);
        let lines = |mutants: Vec<&Mutant>| mutants.iter().map(|one| one.line).collect::<Vec<_>>();
        assert_eq!(lines(beyond(&missed, &listed)), [9, 2]);
        assert_eq!(gone(&listed, &missed), ["c.rs: z"]);
        let twice = ["a.rs: x", "a.rs: x", "b.rs: y"].map(str::to_owned);
        assert_eq!(lines(beyond(&missed, &twice)), [0; 0]);
        assert_eq!(gone(&twice, &missed[1..]), ["a.rs: x"]);
    }
}
