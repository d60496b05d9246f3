//! Reads the pipeline file: text to checked stages, every error with its line and column.
//!
//! TOML is parsed with spans and each stage is then read by the fields of its kind, since tagged
//! serde enums lose the place of an error.  Edges are names here; [`crate::plan`] resolves them.

mod fields;
mod matrix;
mod params;
mod resources;
mod retry;
mod strict;
mod table;
mod twice;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::panic::resume_unwind;
use std::time::Duration;
use std::{fmt, thread};

use serde_json::Value;
use toml::de::DeTable;

use crate::device::{self, Facts};
use crate::kind::{BACKEND, Kind, STRICT};
use crate::name::StageName;
use crate::quantity;
use crate::retry::Retry;
use crate::side::Side;
use crate::text::{Lines, SourceLocation, nearest};
use crate::tokens::Capacity;

pub use matrix::VARIANTS_MAX;
use matrix::{Matrix, Variant};
pub use params::Overrides;
use params::Scope;
#[cfg(test)]
pub(crate) use retry::RETRY_KEYS;
use table::{Item, Table};

/// The newest pipeline format this crate reads: the value of `smelt` in the file.
pub const FORMAT: u64 = 1;
/// A pipeline is written by people, or by a program for a sweep; more stages than this is a bug.
pub const STAGES_MAX: usize = 200_000;
/// A stage that failed this often needs a person.
pub const ATTEMPTS_MAX: u64 = 16;
/// What a pipeline has.
pub(crate) const ROOT_KEYS: &[&str] = &["smelt", "name", "params", "resources", "stage", STRICT];
/// What every stage may have, whatever its kind.
pub(crate) const COMMON_KEYS: &[&str] =
    &["kind", "limits", "retry", "matrix", "resources", "device", ON, WHERE, SURVIVES_KILLS, SHARE];
/// Which side builds a stage.
pub(crate) const ON: &str = "on";
/// The key of what must be true of the machine that builds a stage.
pub(crate) const WHERE: &str = "where";
/// Whether a stage may be kept of which the kernel killed a process for want of memory.
pub(crate) const SURVIVES_KILLS: &str = "survives-kills";

/// Whether a stage's result is shared with a fleet.
pub(crate) const SHARE: &str = "share";

/// A pipeline file, read and checked but not yet ordered.
#[derive(Debug, Clone, PartialEq)]
pub struct Pipeline {
    /// The file, as messages name it.
    pub file: String,
    /// The pipeline's own name.
    pub name: String,
    /// How much there is of what stages share: `[resources]`.
    pub resources: BTreeMap<String, Capacity>,
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
    pub place: SourceLocation,
    /// The fields that are no edges.
    pub params: BTreeMap<String, Value>,
    /// The fields that are edges, in the order of the kind's fields.
    pub inputs: Vec<InputSpec>,
    /// Caps on one attempt.
    pub limits: Limits,
    /// How much it takes of what stages share, while it runs.
    pub resources: BTreeMap<String, u64>,
    /// The facts about the device that its result depends on, in the order of the table of facts.
    pub device: Vec<&'static str>,
    /// How often it is tried, and what changes in between.
    pub retry: Retry,
    /// Which side builds it, where it says so.  Enters no key: what it makes is the same.
    pub on: Option<Side>,
    /// What must be true of the machine that builds it.  Enters a key only where this machine is another, and then only as far
    /// as its result depends on it.
    pub machine: Facts,
    /// It minds the kills of its children itself, so what it makes after one is kept.  Enters no key,
    /// as limits do not.
    pub survives_kills: bool,
    /// Whether its result is shared with a fleet, where it says so.  Enters no key.
    pub share: Option<bool>,
}

impl StageSpec {
    /// The back ends that build or tune it, those of later attempts too.
    fn backends(&self) -> impl Iterator<Item = &str> {
        let later = self.retry.escalate.iter().map(|step| &step.params);
        let all = std::iter::once(&self.params).chain(later);
        all.filter_map(|params| params.get(BACKEND)?.as_str())
    }

    /// Whether another machine must build it than the one of which these facts are true.
    pub fn is_elsewhere(&self, here: &Facts) -> bool {
        self.machine.iter().any(|(fact, value)| here.get(fact) != Some(value))
    }
}

/// An edge as written.
#[derive(Debug, Clone, PartialEq)]
pub struct InputSpec {
    /// The field that names it.
    pub field: &'static str,
    /// Where it is in the file.
    pub place: SourceLocation,
    /// What it points to.
    pub from: InputRef,
    /// How the file names the stage where it stands for one of its variants: what programs and keys
    /// call it.
    pub known_as: Option<StageName>,
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
pub struct Escalation {
    /// Params that replace the stage's own; tables merge.
    pub params: BTreeMap<String, Value>,
    /// Caps that replace the stage's own, one by one.
    pub limits: Limits,
    /// The step as a person reads it, for the report's `changed`.
    pub text: String,
}

impl Escalation {
    /// An empty step stands for an attempt that changes nothing in the stage itself.
    pub fn changes_something(&self) -> bool {
        !self.params.is_empty() || self.limits != Limits::default()
    }
}

/// What is wrong with a pipeline file, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{}{message}", At(*.place))]
pub struct PipelineError {
    /// The file, as messages name it.
    pub file: String,
    /// The place, where one is known.
    pub place: Option<SourceLocation>,
    /// What is wrong and what to do.
    pub message: String,
}

struct At(Option<SourceLocation>);

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
        let root = DeTable::parse(text).map_err(|error| source.syntax(text, &error))?;
        let mut root = Table::new(&source, root.get_ref(), "the pipeline", 0);
        root.allow(ROOT_KEYS)?;
        root.format("smelt", FORMAT)?;
        let name = root.required_text("name")?;
        let params = params::read(&source, root.table("params")?, overrides)?;
        let resources = resources::capacity(root.table("resources")?)?;
        let is_strict = retry::is_set(&root, STRICT)?;
        let around = Around { source: &source, params: &params, resources: &resources, is_strict };
        let stages = read_stages(&around, root.table("stage")?)?;
        params.all_used(&source)?;
        Ok(Self { file: file.to_owned(), name, resources, stages })
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

    /// Whether any stage says which side builds it.
    pub fn has_sides(&self) -> bool {
        self.stages.iter().any(|stage| stage.on.is_some())
    }

    fn named<'a>(&'a self, name: impl Fn(&'a InputRef) -> Option<&'a str>) -> BTreeSet<&'a str> {
        let inputs = self.stages.iter().flat_map(|stage| &stage.inputs);
        inputs.filter_map(|input| name(&input.from)).collect()
    }

    /// Lets every stage depend on the facts about the device that `facts` names for its back end, besides those that it
    /// declares; one that both name is there once.
    pub fn depend(&mut self, facts: impl Fn(&str) -> BTreeSet<&'static str>) {
        for stage in &mut self.stages {
            let more: BTreeSet<&'static str> = stage.backends().flat_map(&facts).collect();
            let is_named = |fact: &&str| stage.device.contains(fact) || more.contains(fact);
            stage.device = device::FACTS.into_iter().filter(is_named).collect();
        }
    }

    /// An error at `place` of this file.
    pub(crate) fn error(&self, place: SourceLocation, message: impl Into<String>) -> PipelineError {
        PipelineError { file: self.file.clone(), place: Some(place), message: message.into() }
    }
}

/// The text under the errors.
pub(crate) struct Source<'a> {
    file: &'a str,
    lines: Lines<'a>,
}

impl Source<'_> {
    fn place(&self, offset: usize) -> SourceLocation {
        self.lines.place(offset)
    }

    fn error(&self, offset: usize, message: impl Into<String>) -> PipelineError {
        PipelineError {
            file: self.file.to_owned(),
            place: Some(self.place(offset)),
            message: message.into(),
        }
    }

    fn syntax(&self, text: &str, error: &toml::de::Error) -> PipelineError {
        let span = error.span().unwrap_or_default();
        let named = twice::named(text, span.clone(), error.message());
        let message = named.unwrap_or_else(|| error.message().replace('\n', "; "));
        self.error(span.start, message)
    }
}

/// Fewer stages than this are read by one thread sooner than others have begun.
const SHARED_MIN: usize = 4096;
/// The rest of a plan is made by one thread, so that more of them would gain little.
const THREADS_MAX: usize = 4;

/// What every stage is read by.
struct Around<'a> {
    source: &'a Source<'a>,
    params: &'a params::Params,
    resources: &'a BTreeMap<String, Capacity>,
    /// Programs of stages that do not say otherwise see nothing but what they declare.
    is_strict: bool,
}

/// A stage of the file: its name, where that stands, its table.
type Entry<'a> = (&'a str, usize, Option<Table<'a>>);

fn read_stages(
    around: &Around<'_>,
    table: Option<Table<'_>>,
) -> Result<Vec<StageSpec>, PipelineError> {
    let source = around.source;
    let entries = table.map(|table| table.entries()).unwrap_or_default();
    if entries.is_empty() {
        return Err(source.error(
            source.lines.bytes(),
            "the pipeline has no stages; add one, as in [stage.checkpoint]",
        ));
    }
    let mut matrix = Matrix::default();
    let mut own = BTreeMap::new();
    for (name, _, table) in &entries {
        let Some(axes) = table.as_ref().and_then(|table| table.get("matrix")) else { continue };
        own.insert((*name).to_owned(), matrix.declare(name, axes.table()?)?);
    }
    let stages = if matrix.is_empty() {
        read_alone(around, &entries)?
    } else {
        read_variants(around, &entries, &mut matrix, &own)?
    };
    if stages.len() > STAGES_MAX {
        return Err(source.error(0, format!("more than {STAGES_MAX} stages")));
    }
    Ok(stages)
}

/// Reads the stages of a pipeline without variants, those of a large one by several threads.  Of errors
/// the first in the file is told, as if it were read in order.
fn read_alone(around: &Around<'_>, entries: &[Entry<'_>]) -> Result<Vec<StageSpec>, PipelineError> {
    let read = |part: &[Entry<'_>]| {
        let alone = |(name, offset, table): &Entry<'_>| {
            read_stage(around, name, *offset, table.as_ref(), &Variant::default())
        };
        part.iter().map(alone).collect::<Result<Vec<_>, _>>()
    };
    if entries.len() < SHARED_MIN {
        return read(entries);
    }
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX);
    thread::scope(|scope| {
        let parts = entries.chunks(entries.len().div_ceil(threads));
        let parts: Vec<_> = parts.map(|part| scope.spawn(move || read(part))).collect();
        let mut stages = Vec::with_capacity(entries.len());
        for part in parts {
            stages.extend(part.join().unwrap_or_else(|panic| resume_unwind(panic))?);
        }
        Ok(stages)
    })
}

/// Reads every stage once for what it needs, and then each of its variants.
fn read_variants<'a>(
    around: &Around<'a>,
    entries: &[Entry<'a>],
    matrix: &mut Matrix<'a>,
    own: &BTreeMap<String, Vec<usize>>,
) -> Result<Vec<StageSpec>, PipelineError> {
    let mut needs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, offset, table) in entries {
        let needed = needs.entry((*name).to_owned()).or_default();
        let axes = own.get(*name).map_or(&[][..], Vec::as_slice);
        let too_many = || around.source.error(*offset, matrix.too_many(name, axes));
        for choice in matrix.choices(axes).ok_or_else(too_many)? {
            let overlay = matrix.overlay(name, &choice);
            let table = table.as_ref().map(|table| table.under(overlay));
            let variant = Variant::unknown();
            let spec = read_stage(around, name, *offset, table.as_ref(), &variant)?;
            needed.extend(spec.inputs.iter().filter_map(|input| match &input.from {
                InputRef::Stage(name) => Some(name.as_str().to_owned()),
                InputRef::Path(_) | InputRef::Hub(_) => None,
            }));
        }
    }
    matrix.follow(own, &needs);
    let mut stages = Vec::new();
    for (name, offset, table) in entries {
        let axes = matrix.axes_of(name);
        let too_many = || around.source.error(*offset, matrix.too_many(name, axes));
        for choice in matrix.choices(axes).ok_or_else(too_many)? {
            let table = table.as_ref().map(|table| table.under(matrix.overlay(name, &choice)));
            let variant = matrix.variant(&choice);
            let mut spec = read_stage(around, name, *offset, table.as_ref(), &variant)?;
            let long = matrix.name(name, &choice);
            spec.name = StageName::parse(&long)
                .map_err(|error| around.source.error(*offset, error.to_string()))?;
            matrix.resolve(&mut spec, &choice, &|place, message| PipelineError {
                file: around.source.file.to_owned(),
                place: Some(place),
                message,
            })?;
            stages.push(spec);
        }
        // Before a product of products is made.
        if stages.len() > STAGES_MAX {
            return Err(around.source.error(*offset, format!("more than {STAGES_MAX} stages")));
        }
    }
    Ok(stages)
}

fn read_stage(
    around: &Around<'_>,
    name: &str,
    offset: usize,
    table: Option<&Table<'_>>,
    variant: &Variant,
) -> Result<StageSpec, PipelineError> {
    let source = around.source;
    let scope = &Scope { params: around.params, variant };
    let name =
        StageName::parse_base(name).map_err(|error| source.error(offset, error.to_string()))?;
    let mut table = table.cloned().ok_or_else(|| {
        source.error(offset, format!("stage \"{name}\" is a table: write [stage.{name}]"))
    })?;
    table.what = format!("stage \"{name}\"");
    let kind = read_kind(source, &table)?;
    table.what = format!("stage \"{name}\" (kind \"{}\")", kind.name());
    let fields = kind.fields();
    let mut known: Vec<&str> = fields.iter().map(|field| field.name).collect();
    known.extend(COMMON_KEYS);
    table.allow(&known)?;
    let (mut values, inputs) = fields::read(&table, fields, scope)?;
    if let Some(fault) = kind.fault(|key| table.get(key).is_some()) {
        return Err(table.error(format!("{}: {fault}", table.what)));
    }
    no_conflict(kind, &values, &table)?;
    if kind == Kind::Command {
        strict::settle(&mut values, around.is_strict, &table)?;
    }
    let retry = retry::read(table.table("retry")?, kind, scope, &values)?;
    Ok(StageSpec {
        name,
        kind,
        place: source.place(offset),
        params: values,
        inputs,
        limits: read_limits(table.table("limits")?)?,
        resources: resources::wanted(table.table("resources")?, around.resources)?,
        device: read_device(&table)?,
        retry,
        on: read_side(&table)?,
        machine: read_machine(&table)?,
        survives_kills: retry::is_set(&table, SURVIVES_KILLS)?,
        share: retry::flag(&table, SHARE)?,
    })
}

/// Which side builds a stage.
fn read_side(table: &Table<'_>) -> Result<Option<Side>, PipelineError> {
    let Some(item) = table.get(ON) else { return Ok(None) };
    let (word, _) = item.text()?;
    let unknown =
        || item.error(format!("\"{ON}\" is one of {}, not {word:?}", Side::WORDS.join(", ")));
    Side::parse(&word).map(Some).ok_or_else(unknown)
}

/// What must be true of the machine that builds a stage.
fn read_machine(table: &Table<'_>) -> Result<Facts, PipelineError> {
    let Some(machine) = table.table(WHERE)? else { return Ok(Facts::new()) };
    let fact = |(_, item): (usize, Item<'_>)| Ok((known_fact(item.key, &item)?, item.text()?.0));
    machine.items().into_iter().map(fact).collect()
}

/// The facts a stage depends on, in the order of the table of facts, so that the order in the file
/// means nothing.
fn read_device(table: &Table<'_>) -> Result<Vec<&'static str>, PipelineError> {
    let Some(list) = table.get("device") else { return Ok(Vec::new()) };
    let mut named = BTreeSet::new();
    for item in list.list()? {
        let (word, _) = item.text()?;
        named.insert(known_fact(&word, &item)?);
    }
    Ok(device::FACTS.into_iter().filter(|fact| named.contains(fact)).collect())
}

/// The fact of that name.
fn known_fact(word: &str, item: &Item<'_>) -> Result<&'static str, PipelineError> {
    device::FACTS.into_iter().find(|fact| *fact == word).ok_or_else(|| {
        let facts = device::FACTS.join(", ");
        item.error(format!("\"{word}\" is no fact about a device; there are {facts}"))
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

#[cfg(test)]
mod tests;
