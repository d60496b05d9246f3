//! Reads the pipeline file: text to checked stages, every error with its line and column.
//!
//! TOML is parsed with spans and each stage is then read by the fields of its kind, since tagged
//! serde enums lose the place of an error.  Edges are names here; [`crate::plan`] resolves them.

mod fields;
mod params;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use serde_json::Value;
use toml::de::DeTable;

use crate::kind::Kind;
use crate::name::StageName;
use crate::quantity;
use crate::text::{Lines, Place, nearest};

pub use params::Overrides;
use table::Table;

/// The newest pipeline format this crate reads: the value of `smelt` in the file.
pub const FORMAT: u64 = 1;
/// A pipeline is written by people, or by a program for a sweep; more stages than this is a bug.
pub const STAGES_MAX: usize = 200_000;
/// A stage that failed this often needs a person.
pub const ATTEMPTS_MAX: u64 = 16;
/// What a pipeline has.
pub(crate) const ROOT_KEYS: &[&str] = &["smelt", "name", "params", "stage"];
/// What every stage may have, whatever its kind.
pub(crate) const COMMON_KEYS: &[&str] = &["kind", "limits", "retry"];

/// A pipeline file, read and checked but not yet ordered.
#[derive(Debug, Clone, PartialEq)]
pub struct Pipeline {
    /// The file, as messages name it.
    pub file: String,
    /// The pipeline's own name.
    pub name: String,
    /// The stages in the order of the file.
    pub stages: Vec<StageSpec>,
}

/// One stage as the file gives it, params substituted, defaults filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct StageSpec {
    /// Its name.
    pub name: StageName,
    /// What it does.
    pub kind: Kind,
    /// Where it is in the file.
    pub place: Place,
    /// The fields that are no edges.
    pub params: BTreeMap<String, Value>,
    /// The fields that are edges, in the order of the kind's fields.
    pub inputs: Vec<InputSpec>,
    /// Caps on one attempt.
    pub limits: Limits,
    /// Attempts in all; 1 without `retry`.
    pub attempts_max: u32,
    /// What changes on attempt 2, 3, ….
    pub escalate: Vec<Step>,
}

/// An edge as written.
#[derive(Debug, Clone, PartialEq)]
pub struct InputSpec {
    /// The field that names it.
    pub field: &'static str,
    /// Where it is in the file.
    pub place: Place,
    /// What it points to.
    pub from: InputRef,
}

/// What an edge points to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum InputRef {
    /// The output of a stage.
    Stage(StageName),
    /// A directory or file outside the store, relative to the pipeline file.
    Path(String),
    /// `ORG/NAME[@REV]` of a hub, as written.
    Hub(String),
}

/// Caps on one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Resident bytes of all its processes together.
    pub memory_bytes_max: Option<u64>,
    /// Wall time.
    pub duration_max: Option<Duration>,
}

/// One `escalate` step: what it overrides for its attempt.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Step {
    /// Params that replace the stage's own; tables merge.
    pub params: BTreeMap<String, Value>,
    /// Caps that replace the stage's own, one by one.
    pub limits: Limits,
    /// The step as a person reads it, for the report's `changed`.
    pub text: String,
}

/// What is wrong with a pipeline file, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{}{message}", At(*.place))]
pub struct PipelineError {
    /// The file, as messages name it.
    pub file: String,
    /// The place, where one is known.
    pub place: Option<Place>,
    /// What is wrong and what to do.
    pub message: String,
}

struct At(Option<Place>);

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(place) => write!(f, "{place}: "),
            None => f.write_str(" "),
        }
    }
}

/// Why a pipeline cannot be had: the file is wrong, or the command line is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The file is wrong.
    #[error(transparent)]
    File(#[from] PipelineError),
    /// A `--set` is wrong.
    #[error("{0}")]
    Set(String),
}

impl Pipeline {
    /// Reads `text`, the content of `file`, with the `--set` overrides of its params.
    pub fn parse(file: &str, text: &str, overrides: &Overrides) -> Result<Self, ParseError> {
        let source = Source { file, lines: Lines::of(text) };
        let root = DeTable::parse(text).map_err(|error| source.syntax(&error))?;
        let mut root = Table::new(&source, root.get_ref(), "the pipeline", 0);
        root.allow(ROOT_KEYS)?;
        root.format("smelt", FORMAT)?;
        let name = root.required_text("name")?;
        let params = params::read(&source, root.table("params")?, overrides)?;
        let stages = read_stages(&source, root.table("stage")?, &params)?;
        params.all_used(&source)?;
        Ok(Self { file: file.to_owned(), name, stages })
    }

    /// Every `path:` the pipeline names, without the prefix: what must be pinned before planning.
    pub fn paths(&self) -> BTreeSet<&str> {
        self.named(|from| match from {
            InputRef::Path(path) => Some(path.as_str()),
            InputRef::Stage(_) | InputRef::Hub(_) => None,
        })
    }

    /// Every `hf:` the pipeline names, without the prefix: what must be pinned before planning.
    pub fn hubs(&self) -> BTreeSet<&str> {
        self.named(|from| match from {
            InputRef::Hub(address) => Some(address.as_str()),
            InputRef::Stage(_) | InputRef::Path(_) => None,
        })
    }

    fn named<'a>(&'a self, name: impl Fn(&'a InputRef) -> Option<&'a str>) -> BTreeSet<&'a str> {
        let inputs = self.stages.iter().flat_map(|stage| &stage.inputs);
        inputs.filter_map(|input| name(&input.from)).collect()
    }

    /// An error at `place` of this file.
    pub(crate) fn error(&self, place: Place, message: impl Into<String>) -> PipelineError {
        PipelineError { file: self.file.clone(), place: Some(place), message: message.into() }
    }
}

/// The text under the errors.
pub(crate) struct Source<'a> {
    file: &'a str,
    lines: Lines<'a>,
}

impl Source<'_> {
    fn place(&self, offset: usize) -> Place {
        self.lines.place(offset)
    }

    fn error(&self, offset: usize, message: impl Into<String>) -> PipelineError {
        PipelineError {
            file: self.file.to_owned(),
            place: Some(self.place(offset)),
            message: message.into(),
        }
    }

    fn syntax(&self, error: &toml::de::Error) -> PipelineError {
        let message = error.message().replace('\n', "; ");
        self.error(error.span().map_or(0, |span| span.start), message)
    }
}

fn read_stages(
    source: &Source<'_>,
    table: Option<Table<'_>>,
    params: &params::Params,
) -> Result<Vec<StageSpec>, PipelineError> {
    let entries = table.map(|table| table.entries()).unwrap_or_default();
    if entries.is_empty() {
        return Err(source.error(
            source.lines.bytes(),
            "the pipeline has no stages; add one, as in [stage.checkpoint]",
        ));
    }
    if entries.len() > STAGES_MAX {
        return Err(source.error(0, format!("more than {STAGES_MAX} stages")));
    }
    entries
        .into_iter()
        .map(|(name, offset, table)| read_stage(source, name, offset, table, params))
        .collect()
}

fn read_stage(
    source: &Source<'_>,
    name: &str,
    offset: usize,
    table: Option<Table<'_>>,
    params: &params::Params,
) -> Result<StageSpec, PipelineError> {
    let name = StageName::parse(name).map_err(|error| source.error(offset, error.to_string()))?;
    let mut table = table.ok_or_else(|| {
        source.error(offset, format!("stage \"{name}\" is a table: write [stage.{name}]"))
    })?;
    table.what = format!("stage \"{name}\"");
    let kind = read_kind(source, &table)?;
    table.what = format!("stage \"{name}\" (kind \"{}\")", kind.name());
    let fields = kind.fields();
    let mut known: Vec<&str> = fields.iter().map(|field| field.name).collect();
    known.extend(COMMON_KEYS);
    table.allow(&known)?;
    let (values, inputs) = fields::read(&table, fields, params)?;
    if let Some(fault) = kind.fault(|key| table.get(key).is_some()) {
        return Err(table.error(format!("{}: {fault}", table.what)));
    }
    no_conflict(kind, &values, &table)?;
    let (attempts_max, escalate) = read_retry(table.table("retry")?, kind, params, &values)?;
    Ok(StageSpec {
        name,
        kind,
        place: source.place(offset),
        params: values,
        inputs,
        limits: read_limits(table.table("limits")?)?,
        attempts_max,
        escalate,
    })
}

/// Fields that do not go together are an error where the odd one stands.
fn no_conflict(
    kind: Kind,
    values: &BTreeMap<String, Value>,
    table: &Table<'_>,
) -> Result<(), PipelineError> {
    let Some((field, why)) = kind.conflict(values) else { return Ok(()) };
    match table.get(&field) {
        Some(item) => Err(item.error(why)),
        None => Err(table.error(why)),
    }
}

fn read_kind(source: &Source<'_>, table: &Table<'_>) -> Result<Kind, PipelineError> {
    let (word, offset) = table.required("kind")?.text()?;
    Kind::parse(&word).ok_or_else(|| {
        let names = Kind::ALL.map(Kind::name);
        let meant = nearest(&word, names)
            .map_or(String::new(), |near| format!(" (did you mean \"{near}\"?)"));
        source.error(
            offset,
            format!("unknown kind \"{word}\"{meant}; kinds are {}", names.join(", ")),
        )
    })
}

fn read_limits(table: Option<Table<'_>>) -> Result<Limits, PipelineError> {
    let Some(mut table) = table else { return Ok(Limits::default()) };
    table.allow(&["memory", "timeout"])?;
    Ok(Limits {
        memory_bytes_max: table.parsed("memory", quantity::bytes)?,
        duration_max: table.parsed("timeout", quantity::duration)?,
    })
}

fn read_retry(
    table: Option<Table<'_>>,
    kind: Kind,
    params: &params::Params,
    values: &BTreeMap<String, Value>,
) -> Result<(u32, Vec<Step>), PipelineError> {
    let Some(mut table) = table else { return Ok((1, Vec::new())) };
    table.allow(&["attempts", "escalate"])?;
    let steps: Vec<Step> = table
        .tables("escalate")?
        .into_iter()
        .map(|step| read_step(step, kind, params, values))
        .collect::<Result<_, _>>()?;
    let attempts = match table.get("attempts") {
        Some(value) => value.count(1, ATTEMPTS_MAX)?,
        None => (steps.len() as u64 + 1).min(ATTEMPTS_MAX),
    };
    if steps.len() as u64 >= ATTEMPTS_MAX {
        return Err(table.error(format!("at most {} escalate steps", ATTEMPTS_MAX - 1)));
    }
    Ok((attempts as u32, steps))
}

fn read_step(
    mut table: Table<'_>,
    kind: Kind,
    params: &params::Params,
    values: &BTreeMap<String, Value>,
) -> Result<Step, PipelineError> {
    table.what = "an escalate step".to_owned();
    let fields: Vec<_> =
        kind.fields().iter().copied().filter(|field| !field.takes.is_edge()).collect();
    let mut known: Vec<&str> = fields.iter().map(|field| field.name).collect();
    known.push("limits");
    table.allow(&known)?;
    let params = fields::read_given(&table, &fields, params)?;
    let mut together = values.clone();
    together.extend(params.clone());
    no_conflict(kind, &together, &table)?;
    Ok(Step { text: table.text(), params, limits: read_limits(table.table("limits")?)? })
}

#[cfg(test)]
mod tests;
