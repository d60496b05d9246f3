//! Says what smelt does while it is recorded, what it promises by that, and what outputs hold.
//!
//! The guest tells what smelt said in blocks behind the file system of the same disk, so the log of
//! the disk says what was promised when.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

/// What the guests build.  `fixed` has the same content for every value, `apart` needs nothing and
/// has many files.
pub(super) const PIPELINE: &str = r#"smelt = 1
name = "cuts"

[params]
value = "0"

[stage.first]
kind = "command"
argv = ["sh", "-ec", "yes first-${value} | head -n 20000 > o"]
outputs = ["o"]

[stage.fixed]
kind = "command"
argv = ["sh", "-ec", "mkdir d; wc -l < $SMELT_IN_FIRST/o > d/n; echo fixed > f"]
inputs = ["first"]
outputs = ["f", "d/n"]

[stage.apart]
kind = "command"
argv = ["sh", "-ec", "for n in 1 2 3 4 5 6 7 8; do echo apart-${value}-$n > $n; done"]
outputs = ["1", "2", "3", "4", "5", "6", "7", "8"]

[stage.last]
kind = "command"
argv = ["sh", "-ec", "cat $SMELT_IN_FIXED/f $SMELT_IN_APART/8 $SMELT_IN_FIRST/o > o"]
inputs = ["first", "fixed", "apart"]
outputs = ["o"]
"#;

/// The stages of [`PIPELINE`].
const STAGES: [&str; 4] = ["first", "fixed", "apart", "last"];

/// What the guest does, as lines of its shell.  Values come again, so that results are found and
/// forced anew; what is collected was not built by the run just before.
pub(super) const SCRIPT: &str = "\
run 1
run 2
run 1
run 3 --jobs 2
run 2 --force fixed --force last
collect --max-size 100KiB
run 4
run 1 --only first
run 5 & run 6; wait $!
run 5 --force first --jobs 2
collect --max-size 400KiB
run 7 --check first
run 4
";

/// A value that the recording does not have.
pub(super) const FRESH: u32 = 99;

/// The values of [`SCRIPT`] and [`FRESH`].
const VALUES: [u32; 8] = [1, 2, 3, 4, 5, 6, 7, FRESH];

/// What smelt said in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum GuestEvent {
    /// A stage was built, or its result found.
    Result {
        value: u32,
        stage: String,
    },
    /// A run of the whole pipeline, or of a part, ended well.
    Ended {
        value: u32,
        is_whole: bool,
    },
    /// A collection begins: what the last good run does not need may go.
    Collects,
    Collected,
    /// The script is done.
    Done,
}

impl GuestEvent {
    /// Reads what the guest put into a block.
    pub(super) fn parse(block: &[u8]) -> Result<Self> {
        let text = String::from_utf8_lossy(block);
        let words: Vec<&str> = text.split_whitespace().collect();
        Ok(match words[..] {
            ["result", value, stage] => Self::Result { value: value.parse()?, stage: stage.into() },
            ["ended", value, "0", part] => {
                Self::Ended { value: value.parse()?, is_whole: part == "whole" }
            }
            ["ended", value, code, _] => bail!("the run of value {value} ended with {code}"),
            ["collects"] => Self::Collects,
            ["collected", "0"] => Self::Collected,
            ["collected", code] => bail!("a collection ended with {code}"),
            ["done"] => Self::Done,
            _ => bail!("the guest told of something unknown: {}", text.trim()),
        })
    }
}

/// The stages that must be hits, by value.
pub(super) type Promises = BTreeMap<u32, BTreeSet<String>>;

/// What was promised by all that was told.
pub(super) fn promises(told: &[GuestEvent]) -> Promises {
    let mut promises = Promises::new();
    let mut last_good = None;
    for told in told {
        match told {
            GuestEvent::Result { value, stage } => {
                promises.entry(*value).or_default().insert(stage.clone());
            }
            GuestEvent::Ended { value, is_whole: true } => last_good = Some(*value),
            GuestEvent::Ended { .. } | GuestEvent::Collected | GuestEvent::Done => {}
            GuestEvent::Collects => promises.retain(|value, _| last_good == Some(*value)),
        }
    }
    promises
}

/// The files of an output: path and SHA-256 in hex digits, in the order of the paths.
pub(super) type Files = Vec<(String, String)>;

/// Every output that there can be, by value and stage.
pub(super) fn outputs() -> BTreeMap<(u32, &'static str), Files> {
    let pairs = VALUES.iter().flat_map(|&value| STAGES.map(|stage| (value, stage)));
    pairs.map(|(value, stage)| ((value, stage), output(value, stage))).collect()
}

fn output(value: u32, stage: &str) -> Files {
    let first = format!("first-{value}\n").repeat(20_000);
    let files: Vec<(String, String)> = match stage {
        "first" => vec![("o".into(), first)],
        "fixed" => vec![("d/n".into(), "20000\n".into()), ("f".into(), "fixed\n".into())],
        "apart" => (1..=8).map(|n| (n.to_string(), format!("apart-{value}-{n}\n"))).collect(),
        _ => vec![("o".into(), format!("fixed\napart-{value}-8\n{first}"))],
    };
    files.into_iter().map(|(path, content)| (path, sha256(&content))).collect()
}

fn sha256(content: &str) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Everything the guest told, and after how many requests of the disk.
pub(super) fn all_told<'a>(
    blocks: impl Iterator<Item = (usize, &'a [u8])>,
) -> Result<Vec<(usize, GuestEvent)>> {
    let told: Vec<(usize, GuestEvent)> = blocks
        .map(|(after, block)| Ok((after, GuestEvent::parse(block)?)))
        .collect::<Result<_>>()?;
    let last = told.last().map(|(_, told)| told);
    last.filter(|told| **told == GuestEvent::Done).context("the guest did not come to its end")?;
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(value: u32, stage: &str) -> GuestEvent {
        GuestEvent::Result { value, stage: stage.to_owned() }
    }

    #[test]
    fn what_was_told_of_is_promised_until_a_collection_that_may_take_it() {
        let whole = |value| GuestEvent::Ended { value, is_whole: true };
        let told = [
            result(1, "first"),
            result(1, "last"),
            whole(1),
            result(2, "first"),
            GuestEvent::Ended { value: 2, is_whole: false },
        ];
        let values = |told: &[GuestEvent]| promises(told).into_keys().collect::<Vec<_>>();
        assert_eq!(promises(&told[..2])[&1].len(), 2);
        assert_eq!(values(&told), [1, 2]);
        assert_eq!(values(&[&told[..], &[GuestEvent::Collects]].concat()), [1]);
        assert_eq!(
            values(&[&told[..], &[GuestEvent::Collects, result(2, "first")]].concat()),
            [1, 2]
        );
    }

    #[test]
    fn blocks_are_read_and_failures_told() {
        let parse = |text: &str| GuestEvent::parse(format!("{text:4096}").as_bytes());
        assert_eq!(parse("result 7 fixed").unwrap(), result(7, "fixed"));
        assert_eq!(
            parse("ended 7 0 part").unwrap(),
            GuestEvent::Ended { value: 7, is_whole: false }
        );
        assert!(parse("ended 7 1 whole").is_err());
        assert!(parse("collected 70").is_err());
        assert!(parse("nonsense").is_err());
        assert!(all_told([(0, &b"collects"[..])].into_iter()).is_err());
    }

    /// Which run is the last good one must not hang on which of two ended first.
    #[test]
    fn runs_before_collections_are_alone() {
        let lines: Vec<&str> = SCRIPT.lines().collect();
        for (at, _) in lines.iter().enumerate().filter(|(_, line)| line.starts_with("collect")) {
            let before = lines[at - 1];
            assert!(before.starts_with("run ") && !before.contains(['&', ';']), "{before}");
            assert!(!before.contains("--only"), "{before}");
        }
        let values: BTreeSet<u32> =
            SCRIPT.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        assert!(values.iter().all(|value| VALUES.contains(value) && *value != FRESH));
    }
}
