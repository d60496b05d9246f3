//! Says what an output is and what led to it, as a statement of in-toto with a provenance of SLSA.
//!
//! The form is that of <https://in-toto.io/Statement/v1> with the predicate <https://slsa.dev/provenance/v1>, so other
//! tools read it.  The reader is strict: what it does not know might limit what is vouched for.  Knows nothing of
//! signatures.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use smelt_store::{Digest, FileEntry, Manifest, ManifestError};

pub(crate) const TYPE: &str = "https://in-toto.io/Statement/v1";
const PREDICATE_TYPE: &str = "https://slsa.dev/provenance/v1";
/// The form of the parameters; another form gets another number.
const BUILD_TYPE: &str = "urn:smelt:stage:1";
/// What builds is always smelt; who it was is said by the signature, and which version by a field of its own.
const BUILDER_ID: &str = "urn:smelt:builder:1";
const INPUT: &str = "input ";
const TOOL: &str = "tool ";

/// In base64 it must leave an envelope room for all its signatures, which take 4 KiB.
pub const STATEMENT_BYTES_MAX: usize = (12 << 20) - (64 << 10);
/// Records and parameters are a few names; of longer ones no tree is made, which takes a hundred times their bytes.
pub const RECORD_BYTES_MAX: usize = 64 << 10;
/// Of recipes, other outputs, facts, tools and inputs each.  A large stage has a hundred inputs.
pub const LISTED_MAX: usize = 4096;
/// Of a name, never of a file's content.
pub const TEXT_BYTES_MAX: usize = 4096;

const DAY_S: u64 = 24 * 3600;

/// What is vouched for by whoever signs it.
#[derive(Clone, Debug, PartialEq)]
pub struct Statement {
    /// The content key.
    pub key: Digest,
    /// Recipe keys that led to it.
    pub recipes: Vec<Digest>,
    /// The key of its recipe for any device, where it has one.
    pub anywhere: Option<Digest>,
    /// The fleet's name of its instance; for another instance this vouches for nothing.
    pub instance: String,
    /// The output's name: the digest of [`Self::files`].
    pub tree: Digest,
    /// Its files, at least one.
    pub files: Manifest,
    /// Other outputs that it names, and is nothing without.
    pub refers: Vec<Digest>,
    /// What the store keeps beside it.
    pub record: Value,
    /// What led to it.
    pub provenance: Provenance,
    /// When it was made, in seconds of the Unix era.
    pub finished: u64,
    /// What made it: a name, a blank and a version, as `smelt 0.1.0`.
    pub builder: String,
}

/// What led to an output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// The stage's name.
    pub stage: String,
    /// The stage's kind.
    pub kind: String,
    /// The version of that kind.
    pub kind_version: u32,
    /// The pipeline's name.
    pub pipeline: String,
    /// The stage's parameters.
    pub params: BTreeMap<String, Value>,
    /// The facts of the device that the result depends on; none if it is the same everywhere.
    pub device: BTreeMap<String, String>,
    /// The programs that ran, with the digests of their content.
    pub tools: Vec<(String, Digest)>,
    /// What was read, with the digests of its content.
    pub inputs: Vec<(String, Digest)>,
    /// The run's name.
    pub run: String,
}

/// A text that is no statement, or a statement that nobody would read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum StatementError {
    /// See [`STATEMENT_BYTES_MAX`].
    #[error(
        "a statement of {bytes} bytes, at most {STATEMENT_BYTES_MAX} are taken: pack the files into fewer"
    )]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// No JSON of this form.
    #[error("this is no statement: {problem}")]
    NotAStatement {
        /// What is wrong.
        problem: String,
    },
    /// A statement of another form.
    #[error(
        "its {field} is {found:?}, and this smelt reads {expected:?}: another version may read it"
    )]
    OtherForm {
        /// The field that says so.
        field: &'static str,
        /// What it says.
        found: String,
        /// What it should say.
        expected: &'static str,
    },
    /// Its files are no tree.
    #[error(transparent)]
    Files(#[from] ManifestError),
    /// Nothing that could be fetched.
    #[error("it lists no files")]
    NoFiles,
    /// Its files are other than its name says.
    #[error("its files make the output {}, and it says {}", found.short(), tree.short())]
    OtherTree {
        /// What it says.
        tree: Digest,
        /// What its files make.
        found: Digest,
    },
    /// Its subjects are other than its files.
    #[error("its subjects and its files differ at {name:?}")]
    OtherSubjects {
        /// The first name that differs.
        name: String,
    },
    /// See [`LISTED_MAX`].
    #[error("it lists {count} {what}, at most {LISTED_MAX} are taken")]
    TooMany {
        /// What is listed.
        what: &'static str,
        /// How many.
        count: usize,
    },
    /// See [`TEXT_BYTES_MAX`] and [`RECORD_BYTES_MAX`].
    #[error("its {what} has {bytes} bytes, at most {most} are taken")]
    LongText {
        /// Which text.
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// The limit.
        most: usize,
    },
    /// Neither a tool nor an input.
    #[error("it depends on {name:?}, which is no \"tool NAME\" and no \"input NAME\"")]
    Dependency {
        /// What it says.
        name: String,
    },
    /// Other than a name and a version.
    #[error("its builder is not one name with a version, as \"smelt 0.1.0\"")]
    Builder,
    /// No second of these ten millennia.
    #[error("it was finished at {text:?}, which is no time as 2026-11-28T13:25:00Z")]
    Time {
        /// What it says.
        text: String,
    },
}

/// The JSON of a statement.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Wire {
    #[serde(rename = "_type")]
    form: String,
    subject: Vec<Named>,
    predicate_type: String,
    predicate: Predicate,
}

/// A ResourceDescriptor of in-toto.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) digest: DigestSet,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DigestSet {
    pub(crate) sha256: Digest,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Predicate {
    build_definition: BuildDefinition,
    run_details: RunDetails,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct BuildDefinition {
    build_type: String,
    external_parameters: External,
    internal_parameters: Internal,
    resolved_dependencies: Vec<Named>,
}

/// What a person asked for.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct External {
    stage: String,
    kind: String,
    kind_version: u32,
    pipeline: String,
    params: Box<RawValue>,
}

/// What smelt made of it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Internal {
    key: Digest,
    recipes: Vec<Digest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    anywhere: Option<Digest>,
    instance: String,
    tree: Digest,
    files: Vec<FileRow>,
    refers: Vec<Digest>,
    device: BTreeMap<String, String>,
    record: Box<RawValue>,
}

/// What the subject of the same name does not say of a file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileRow {
    name: String,
    size: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    executable: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RunDetails {
    builder: Builder,
    metadata: Metadata,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Builder {
    id: String,
    version: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Metadata {
    invocation_id: String,
    finished_on: String,
}

impl Statement {
    /// Writes it, in one line.
    ///
    /// # Errors
    /// If [`Self::from_json`] would refuse what was written: so nobody signs what no one reads.
    pub fn to_json(&self) -> Result<Vec<u8>, StatementError> {
        let json =
            serde_json::to_vec(&self.wire()).expect("digests, texts and JSON values are JSON");
        Self::from_json(&json)?;
        Ok(json)
    }

    /// Reads one.  A float of more than 15 digits may come back with another last bit: serde_json reads them so.
    ///
    /// # Errors
    /// If it has another form or unknown fields, is too long, or contradicts itself.
    pub fn from_json(json: &[u8]) -> Result<Self, StatementError> {
        if json.len() > STATEMENT_BYTES_MAX {
            return Err(StatementError::TooLong { bytes: json.len() });
        }
        let wire: Wire = serde_json::from_slice(json).map_err(not)?;
        wire.check_form()?;
        let statement = wire.statement()?;
        statement.check()?;
        Ok(statement)
    }

    fn wire(&self) -> Wire {
        Wire {
            form: TYPE.to_owned(),
            subject: self.files.files().iter().map(|file| named(&file.path, file.sha256)).collect(),
            predicate_type: PREDICATE_TYPE.to_owned(),
            predicate: Predicate {
                build_definition: BuildDefinition {
                    build_type: BUILD_TYPE.to_owned(),
                    external_parameters: self.provenance.external(),
                    internal_parameters: self.internal(),
                    resolved_dependencies: self.provenance.dependencies(),
                },
                run_details: self.run_details(),
            },
        }
    }

    fn internal(&self) -> Internal {
        let row = |file: &FileEntry| FileRow {
            name: file.path.clone(),
            size: file.size,
            executable: file.executable,
        };
        Internal {
            key: self.key,
            recipes: self.recipes.clone(),
            anywhere: self.anywhere,
            instance: self.instance.clone(),
            tree: self.tree,
            files: self.files.files().iter().map(row).collect(),
            refers: self.refers.clone(),
            device: self.provenance.device.clone(),
            record: to_raw_value(&self.record).expect("JSON values are JSON"),
        }
    }

    fn run_details(&self) -> RunDetails {
        let (name, version) = self.builder.split_once(' ').unwrap_or((&self.builder, ""));
        let version = BTreeMap::from([(name.to_owned(), version.to_owned())]);
        RunDetails {
            builder: Builder { id: BUILDER_ID.to_owned(), version },
            metadata: Metadata {
                invocation_id: self.provenance.run.clone(),
                finished_on: to_rfc3339(self.finished),
            },
        }
    }

    fn check(&self) -> Result<(), StatementError> {
        let found = self.files.digest();
        if self.files.files().is_empty() {
            return Err(StatementError::NoFiles);
        }
        if found != self.tree {
            return Err(StatementError::OtherTree { tree: self.tree, found });
        }
        for (what, count) in self.counts() {
            if count > LISTED_MAX {
                return Err(StatementError::TooMany { what, count });
            }
        }
        self.texts().try_for_each(|(what, text)| check_text(what, text, TEXT_BYTES_MAX))
    }

    fn counts(&self) -> [(&'static str, usize); 5] {
        [
            ("recipes", self.recipes.len()),
            ("other outputs", self.refers.len()),
            ("facts of the device", self.provenance.device.len()),
            ("tools", self.provenance.tools.len()),
            ("inputs", self.provenance.inputs.len()),
        ]
    }

    fn texts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let Provenance { stage, kind, pipeline, device, tools, inputs, run, .. } = &self.provenance;
        let single = [
            ("instance", &self.instance),
            ("stage", stage),
            ("kind", kind),
            ("pipeline", pipeline),
            ("run", run),
            ("builder", &self.builder),
        ];
        let facts = device.iter().flat_map(|(fact, value)| [("fact", fact), ("fact", value)]);
        let tools = tools.iter().map(|(name, _)| ("tool", name));
        let inputs = inputs.iter().map(|(name, _)| ("input", name));
        let all = single.into_iter().chain(facts).chain(tools).chain(inputs);
        all.map(|(what, text)| (what, text.as_str()))
    }
}

impl Provenance {
    fn external(&self) -> External {
        External {
            stage: self.stage.clone(),
            kind: self.kind.clone(),
            kind_version: self.kind_version,
            pipeline: self.pipeline.clone(),
            params: to_raw_value(&self.params).expect("JSON values are JSON"),
        }
    }

    fn dependencies(&self) -> Vec<Named> {
        let tools =
            self.tools.iter().map(|(name, digest)| named(&format!("{TOOL}{name}"), *digest));
        let inputs =
            self.inputs.iter().map(|(name, digest)| named(&format!("{INPUT}{name}"), *digest));
        tools.chain(inputs).collect()
    }
}

impl Wire {
    fn check_form(&self) -> Result<(), StatementError> {
        let Predicate { build_definition, run_details } = &self.predicate;
        for (field, found, expected) in [
            ("_type", &self.form, TYPE),
            ("predicateType", &self.predicate_type, PREDICATE_TYPE),
            ("buildType", &build_definition.build_type, BUILD_TYPE),
            ("builder", &run_details.builder.id, BUILDER_ID),
        ] {
            if found != expected {
                let found = found.chars().take(80).collect();
                return Err(StatementError::OtherForm { field, found, expected });
            }
        }
        Ok(())
    }

    fn statement(self) -> Result<Statement, StatementError> {
        let Predicate { build_definition, run_details } = self.predicate;
        let internal = build_definition.internal_parameters;
        let external = build_definition.external_parameters;
        let (tools, inputs) = dependencies(build_definition.resolved_dependencies)?;
        let RunDetails { builder, metadata } = run_details;
        let finished = from_rfc3339(&metadata.finished_on);
        Ok(Statement {
            key: internal.key,
            recipes: internal.recipes,
            anywhere: internal.anywhere,
            instance: internal.instance,
            tree: internal.tree,
            files: Manifest::new(entries(self.subject, internal.files)?)?,
            refers: internal.refers,
            record: parsed("record", &internal.record)?,
            provenance: Provenance {
                stage: external.stage,
                kind: external.kind,
                kind_version: external.kind_version,
                pipeline: external.pipeline,
                params: parsed("params", &external.params)?,
                device: internal.device,
                tools,
                inputs,
                run: metadata.invocation_id,
            },
            finished: finished.ok_or(StatementError::Time { text: metadata.finished_on })?,
            builder: builder.text()?,
        })
    }
}

impl Builder {
    fn text(self) -> Result<String, StatementError> {
        let mut versions = self.version.into_iter();
        match (versions.next(), versions.next()) {
            (Some((name, version)), None) if !name.contains(' ') && !version.is_empty() => {
                Ok(format!("{name} {version}"))
            }
            _ => Err(StatementError::Builder),
        }
    }
}

fn not(error: serde_json::Error) -> StatementError {
    StatementError::NotAStatement { problem: error.to_string() }
}

/// A name with its digest, as statements have their subjects.
pub(crate) fn named(name: &str, sha256: Digest) -> Named {
    Named { name: name.to_owned(), digest: DigestSet { sha256 } }
}

fn check_text(what: &'static str, text: &str, most: usize) -> Result<(), StatementError> {
    let bytes = text.len();
    if bytes > most { Err(StatementError::LongText { what, bytes, most }) } else { Ok(()) }
}

fn parsed<'a, T: Deserialize<'a>>(
    what: &'static str,
    raw: &'a RawValue,
) -> Result<T, StatementError> {
    check_text(what, raw.get(), RECORD_BYTES_MAX)?;
    serde_json::from_str(raw.get()).map_err(not)
}

/// The files: each has its digest in one list and all else in the other.
fn entries(subjects: Vec<Named>, rows: Vec<FileRow>) -> Result<Vec<FileEntry>, StatementError> {
    let longer = subjects.get(rows.len()).map(|subject| &subject.name);
    let longer = longer.or_else(|| rows.get(subjects.len()).map(|row| &row.name));
    if let Some(name) = longer {
        return Err(StatementError::OtherSubjects { name: name.clone() });
    }
    let entry = |(subject, row): (Named, FileRow)| match subject.name == row.name {
        false => Err(StatementError::OtherSubjects { name: row.name }),
        true => Ok(FileEntry {
            path: row.name,
            size: row.size,
            sha256: subject.digest.sha256,
            executable: row.executable,
        }),
    };
    subjects.into_iter().zip(rows).map(entry).collect()
}

type Dependencies = Vec<(String, Digest)>;

/// Tools and inputs.
fn dependencies(all: Vec<Named>) -> Result<(Dependencies, Dependencies), StatementError> {
    let (mut tools, mut inputs) = (Vec::new(), Vec::new());
    for Named { name, digest: DigestSet { sha256 } } in all {
        if let Some(name) = name.strip_prefix(TOOL) {
            tools.push((name.to_owned(), sha256));
        } else if let Some(name) = name.strip_prefix(INPUT) {
            inputs.push((name.to_owned(), sha256));
        } else {
            return Err(StatementError::Dependency { name: name.chars().take(80).collect() });
        }
    }
    Ok((tools, inputs))
}

/// Writes a second of the Unix era as RFC 3339 has it, in UTC: `2026-11-28T13:25:00Z`.
///
/// The date is Howard Hinnant's [`civil_from_days`](https://howardhinnant.github.io/date_algorithms.html), with years
/// that begin in March.
pub fn to_rfc3339(seconds: u64) -> String {
    let (days, second) = (seconds / DAY_S + 719_468, seconds % DAY_S);
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march + 2) / 5 + 1;
    let month = if march < 10 { march + 3 } else { march - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Reads what [`to_rfc3339`] writes: in UTC, without fractions, from 1970 to 9999.
pub fn from_rfc3339(text: &str) -> Option<u64> {
    let number = |range: Range<usize>| text.get(range)?.parse::<u64>().ok();
    let days = days(number(0..4)?, number(5..7)?, number(8..10)?)?;
    let seconds = days * DAY_S + number(11..13)? * 3600 + number(14..16)? * 60 + number(17..19)?;
    // Days and hours that do not exist are written as others.
    (to_rfc3339(seconds) == text).then_some(seconds)
}

/// Days of the Unix era of a date, by `days_from_civil` of the same page.
fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    let year = if month <= 2 { year.checked_sub(1)? } else { year };
    let (era, of_era) = (year / 400, year % 400);
    let march = if month > 2 { month - 3 } else { month + 9 };
    let of_year = (153 * march + 2) / 5 + day.checked_sub(1)?;
    (era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year).checked_sub(719_468)
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;
    use smelt_random::Random;

    use super::*;

    fn text(random: &mut Random) -> String {
        let letters = ['a', 'B', '7', ' ', '-', '/', '"', '\\', '\n', '\0', 'é', '💎', '\u{2028}'];
        (0..random.below(12)).map(|_| random.pick(&letters)).collect()
    }

    fn digest(random: &mut Random) -> Digest {
        Digest::of(&random.next_u64().to_le_bytes())
    }

    fn list<T>(random: &mut Random, mut one: impl FnMut(&mut Random) -> T) -> Vec<T> {
        (0..random.below(4)).map(|_| one(random)).collect()
    }

    fn value(random: &mut Random, depth: usize) -> Value {
        match random.below(if depth > 2 { 6 } else { 8 }) {
            0 => Value::Null,
            1 => random.coin().into(),
            2 => random.next_u64().into(),
            3 => random.between(i32::MIN, 0).into(),
            4 => (f64::from(random.between(-1000, 1000)) / 16.0).into(),
            5 => text(random).into(),
            6 => list(random, |random| value(random, depth + 1)).into(),
            _ => params(random, depth + 1).into_iter().collect::<serde_json::Map<_, _>>().into(),
        }
    }

    fn params(random: &mut Random, depth: usize) -> BTreeMap<String, Value> {
        list(random, |random| (text(random), value(random, depth))).into_iter().collect()
    }

    fn file(random: &mut Random, number: usize) -> FileEntry {
        let name = text(random).replace(['/', '\0'], "_");
        FileEntry {
            path: format!("{}/{number}{name}", random.pick(&["weights", "é", "a b"])),
            size: random.next_u64() >> random.below(64),
            sha256: digest(random),
            executable: random.coin(),
        }
    }

    fn provenance(random: &mut Random) -> Provenance {
        let named = |random: &mut Random| (text(random), digest(random));
        Provenance {
            stage: text(random),
            kind: text(random),
            kind_version: random.next_u64() as u32,
            pipeline: text(random),
            params: params(random, 0),
            device: list(random, |random| (text(random), text(random))).into_iter().collect(),
            tools: list(random, named),
            inputs: list(random, named),
            run: text(random),
        }
    }

    /// Any statement that is one.
    pub(crate) fn any(random: &mut Random) -> Statement {
        let files = (0..=random.below(5)).map(|number| file(random, number)).collect();
        let files = Manifest::new(files).unwrap();
        Statement {
            key: digest(random),
            recipes: list(random, digest),
            anywhere: random.coin().then(|| digest(random)),
            instance: text(random),
            tree: files.digest(),
            files,
            refers: list(random, digest),
            record: value(random, 0),
            provenance: provenance(random),
            finished: random.next_u64() % 253_402_300_800,
            builder: format!("smelt 0.{}.0 {}", random.below(9), text(random)),
        }
    }

    fn good() -> Statement {
        any(&mut Random::new(3))
    }

    #[track_caller]
    fn refused(statement: &Statement) -> StatementError {
        statement.to_json().unwrap_err()
    }

    /// What it reads where one thing of a good one was changed in JSON.
    fn changed(change: impl Fn(&mut Value)) -> Result<Statement, StatementError> {
        let mut json: Value = serde_json::from_slice(&good().to_json().unwrap()).unwrap();
        change(&mut json);
        Statement::from_json(json.to_string().as_bytes())
    }

    #[test]
    fn any_statement_is_read_as_it_was_written() {
        for seed in 0..2000 {
            let statement = any(&mut Random::new(seed));
            let json = statement.to_json().unwrap();
            assert_eq!(Statement::from_json(&json), Ok(statement.clone()), "seed {seed}");
            assert_eq!(Statement::from_json(&json).unwrap().to_json(), Ok(json), "seed {seed}");
        }
    }

    #[test]
    fn no_damage_makes_it_panic_or_contradict_itself() {
        let json = good().to_json().unwrap();
        for length in 0..json.len() {
            assert!(Statement::from_json(&json[..length]).is_err(), "{length} bytes");
        }
        let mut accepted = 0;
        for seed in 0..6000 {
            let damaged = damaged(&json, &mut Random::new(seed));
            if let Ok(statement) = Statement::from_json(&damaged) {
                accepted += 1;
                assert_eq!(statement.files.digest(), statement.tree, "seed {seed}");
                assert!(!statement.files.files().is_empty(), "seed {seed}");
                statement.to_json().unwrap();
            }
        }
        assert!(accepted > 100, "{accepted}");
    }

    /// Changes, drops or repeats a few bytes somewhere.
    fn damaged(json: &[u8], random: &mut Random) -> Vec<u8> {
        let mut damaged = json.to_vec();
        let begin = random.below(damaged.len());
        let end = (begin + random.below(4)).min(damaged.len());
        match random.below(4) {
            0 => damaged[begin] = random.next_u64() as u8,
            1 => damaged[begin] = random.pick(br#"0123456789abcdef{}[]",:-."#),
            2 => drop(damaged.drain(begin..end)),
            _ => drop(damaged.splice(begin..begin, json[begin..end].to_vec())),
        }
        damaged
    }

    #[test]
    fn other_forms_are_refused() {
        assert_eq!(changed(|_| {}), Ok(good()));
        for (pointer, field) in [
            ("/_type", "_type"),
            ("/predicateType", "predicateType"),
            ("/predicate/buildDefinition/buildType", "buildType"),
            ("/predicate/runDetails/builder/id", "builder"),
        ] {
            let error = changed(|json| *json.pointer_mut(pointer).unwrap() = "other".into());
            let words = error.unwrap_err().to_string();
            assert!(words.starts_with(&format!("its {field} is \"other\"")), "{words}");
        }
    }

    #[test]
    fn unknown_and_missing_fields_are_refused_everywhere() {
        for pointer in [
            "",
            "/subject/0",
            "/subject/0/digest",
            "/predicate",
            "/predicate/buildDefinition",
            "/predicate/buildDefinition/externalParameters",
            "/predicate/buildDefinition/internalParameters",
            "/predicate/buildDefinition/internalParameters/files/0",
            "/predicate/runDetails",
            "/predicate/runDetails/builder",
            "/predicate/runDetails/metadata",
        ] {
            let fields = |json: &mut Value, change: fn(&mut Fields)| {
                change(json.pointer_mut(pointer).unwrap().as_object_mut().unwrap());
            };
            for change in [one_more, one_less] {
                let read = changed(|json| fields(json, change));
                assert!(matches!(read, Err(StatementError::NotAStatement { .. })), "{pointer}");
            }
        }
    }

    type Fields = serde_json::Map<String, Value>;

    fn one_more(fields: &mut Fields) {
        fields.insert("more".to_owned(), 1.into());
    }

    fn one_less(fields: &mut Fields) {
        let first = fields.keys().next().unwrap().clone();
        fields.shift_remove(&first);
    }

    #[test]
    fn files_must_be_those_of_the_tree_and_of_the_subjects() {
        let other = Digest::of(b"other");
        let error = refused(&Statement { tree: other, ..good() });
        assert_eq!(error, StatementError::OtherTree { tree: other, found: good().tree });
        let none = Manifest::new(vec![]).unwrap();
        let error = refused(&Statement { tree: none.digest(), files: none, ..good() });
        assert_eq!(error, StatementError::NoFiles);
        let files = "/predicate/buildDefinition/internalParameters/files";
        let list = |json: &mut Value, at: &str, change: fn(&mut Vec<Value>)| {
            change(json.pointer_mut(at).unwrap().as_array_mut().unwrap());
        };
        for at in ["/subject", files] {
            let name = format!("{at}/0/name");
            let renamed = changed(|json| *json.pointer_mut(&name).unwrap() = "other".into());
            assert!(matches!(renamed, Err(StatementError::OtherSubjects { .. })), "{at}");
            let fewer = changed(|json| list(json, at, |all| drop(all.pop())));
            assert!(matches!(fewer, Err(StatementError::OtherSubjects { .. })), "{at}");
            let more = changed(|json| list(json, at, |all| all.push(all[0].clone())));
            assert!(matches!(more, Err(StatementError::OtherSubjects { .. })), "{at}");
        }
        let size = format!("{files}/0/size");
        let larger = changed(|json| *json.pointer_mut(&size).unwrap() = 7.into());
        assert!(matches!(larger, Err(StatementError::OtherTree { .. })));
        let sha256 = other.to_string();
        let damaged = changed(|json| {
            *json.pointer_mut("/subject/0/digest/sha256").unwrap() = sha256.as_str().into();
        });
        assert!(matches!(damaged, Err(StatementError::OtherTree { .. })));
        let outside = changed(|json| {
            for at in ["/subject/0/name", &format!("{files}/0/name")] {
                *json.pointer_mut(at).unwrap() = "../x".into();
            }
        });
        let bad = ManifestError::BadPath { path: "../x".to_owned() };
        assert_eq!(outside, Err(StatementError::Files(bad)));
    }

    #[test]
    fn lists_are_limited() {
        let with = |count| Statement { recipes: vec![good().key; count], ..good() };
        with(LISTED_MAX).to_json().unwrap();
        let (what, count) = ("recipes", LISTED_MAX + 1);
        assert_eq!(refused(&with(count)), StatementError::TooMany { what, count });
        let mut all = good();
        all.provenance.device = (0..count).map(|at| (at.to_string(), String::new())).collect();
        let what = "facts of the device";
        assert_eq!(refused(&all), StatementError::TooMany { what, count });
    }

    #[test]
    fn texts_are_limited() {
        let with = |bytes| Statement { instance: "x".repeat(bytes), ..good() };
        with(TEXT_BYTES_MAX).to_json().unwrap();
        let (what, bytes, most) = ("instance", TEXT_BYTES_MAX + 1, TEXT_BYTES_MAX);
        assert_eq!(refused(&with(bytes)), StatementError::LongText { what, bytes, most });
        let mut statement = good();
        statement.provenance.inputs.push(("x".repeat(bytes), good().key));
        let what = "input";
        assert_eq!(refused(&statement), StatementError::LongText { what, bytes, most });
    }

    #[test]
    fn records_are_limited() {
        // Two more are its quotes.
        let with = |bytes| Statement { record: "x".repeat(bytes - 2).into(), ..good() };
        with(RECORD_BYTES_MAX).to_json().unwrap();
        let (what, bytes, most) = ("record", RECORD_BYTES_MAX + 1, RECORD_BYTES_MAX);
        assert_eq!(refused(&with(bytes)), StatementError::LongText { what, bytes, most });
        let mut statement = good();
        statement.provenance.params = BTreeMap::from([("x".to_owned(), json!("x".repeat(bytes)))]);
        assert!(matches!(refused(&statement), StatementError::LongText { what: "params", .. }));
    }

    /// As many files as an output may have, with names of 100 bytes.
    #[test]
    fn a_statement_of_many_files_goes_into_an_envelope() {
        let file = |number: usize| FileEntry {
            path: format!("{number:0100}"),
            size: u64::from(u32::MAX),
            sha256: Digest::of(&number.to_le_bytes()),
            executable: false,
        };
        let files = Manifest::new((0..smelt_store::FILES_MAX).map(file).collect()).unwrap();
        let json = Statement { tree: files.digest(), files, ..good() }.to_json().unwrap();
        let keys = [crate::keys::SigningKey::from_seed(&[1; 32])];
        let envelope =
            crate::dsse::Envelope::sign(json, &[&keys[0]; crate::dsse::SIGNATURES_MAX]).unwrap();
        envelope.to_json().unwrap();
        let most = crate::dsse::Envelope::sign(
            vec![0; STATEMENT_BYTES_MAX],
            &[&keys[0]; crate::dsse::SIGNATURES_MAX],
        );
        most.unwrap().to_json().unwrap();
        let bytes = STATEMENT_BYTES_MAX + 1;
        let long = Statement::from_json(&vec![b' '; bytes]);
        assert_eq!(long, Err(StatementError::TooLong { bytes }));
    }

    #[test]
    fn a_builder_is_a_name_and_a_version() {
        for builder in ["smelt 0.1.0", "smelt 0.1.0 (abc)"] {
            Statement { builder: builder.to_owned(), ..good() }.to_json().unwrap();
        }
        for builder in ["", "smelt", "smelt "] {
            let statement = Statement { builder: builder.to_owned(), ..good() };
            assert_eq!(refused(&statement), StatementError::Builder, "{builder:?}");
        }
        let two = changed(|json| {
            json["predicate"]["runDetails"]["builder"]["version"]["more"] = "1".into();
        });
        assert_eq!(two, Err(StatementError::Builder));
    }

    #[test]
    fn dependencies_are_tools_and_inputs() {
        let at = "/predicate/buildDefinition/resolvedDependencies";
        let with = |name: &str| {
            let more = json!([{"name": name, "digest": {"sha256": good().key}}]);
            changed(|json| *json.pointer_mut(at).unwrap() = more.clone())
        };
        let read = with("tool a b").unwrap().provenance;
        assert_eq!((read.tools, read.inputs), (vec![("a b".to_owned(), good().key)], vec![]));
        for name in ["", "tool", "other a"] {
            let error = StatementError::Dependency { name: name.to_owned() };
            assert_eq!(with(name), Err(error));
        }
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_767_225_600, "2026-01-01T00:00:00Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (253_402_300_799, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(to_rfc3339(seconds), text);
            assert_eq!(from_rfc3339(text), Some(seconds));
        }
        let mut random = Random::new(1);
        for _ in 0..2000 {
            let seconds = random.next_u64() % 253_402_300_800;
            assert_eq!(from_rfc3339(&to_rfc3339(seconds)), Some(seconds));
        }
        to_rfc3339(u64::MAX);
    }

    #[test]
    fn times_that_do_not_exist_are_refused() {
        for text in [
            "",
            "2026-11-28",
            "2026-11-28T13:25:00",
            "2026-11-28T13:25:00+00:00",
            "2026-11-28t13:25:00z",
            "2026-11-28T13:25:00.5Z",
            "2026-11-28T24:00:00Z",
            "2026-11-28T13:60:00Z",
            "2026-06-30T23:59:60Z",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-00-01T00:00:00Z",
            "2026-01-00T00:00:00Z",
            "1969-12-31T23:59:59Z",
            "0000-01-01T00:00:00Z",
            "+026-11-28T13:25:00Z",
            "20é6-11-28T13:25:00Z",
            "10000-01-01T00:00:00Z",
        ] {
            assert_eq!(from_rfc3339(text), None, "{text}");
        }
        let late = Statement { finished: 253_402_300_800, ..good() };
        assert!(matches!(refused(&late), StatementError::Time { .. }));
    }
}
