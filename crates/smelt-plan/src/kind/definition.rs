//! Says what a kind of stage is, as data: its fields, its version, and what messages and forecasts tell of it.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Kind;

/// The fields of a stage that are no edges, by name.
pub type Values = BTreeMap<String, Value>;

/// What a field of a stage holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// The name of a stage of one of these kinds: an edge.
    Stage(&'static [Kind]),
    /// The same, or a non-empty list of such names: engines for several devices, an edge each.
    Stages(&'static [Kind]),
    /// `hf:ORG/NAME[@REV][:FILE]`, `path:DIR` or `synthetic:NAME`.
    Source,
    /// `path:FILE` or `path:DIR`: an edge.
    Path,
    /// Any text.
    Text,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A whole number in this closed range.
    Count(u64, u64),
    /// `true` or `false`.
    Flag,
    /// A size such as `200MiB`; the worker sees bytes.
    Bytes,
    /// A non-empty list of texts.
    Texts,
    /// A non-empty list of some of these words.
    Words(&'static [&'static str]),
    /// A non-empty list of names of files or directories, relative and without `..`.
    Names,
    /// A non-empty list of files or directories: absolute, from `~`, or relative to the pipeline file.
    Places,
    /// A list of stage names and `path:…` texts: edges.
    Inputs,
    /// A table of texts.
    TextTable,
}

/// What a field is when the file does not give it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absent {
    /// An error.
    Refused,
    /// Nothing; the worker sees no such param.
    Nothing,
    /// This word, as if written.
    Word(&'static str),
    /// This number, as if written.
    Number(u64),
}

/// One field of a stage kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// The key in the pipeline file.
    pub name: &'static str,
    /// What it holds.
    pub takes: Takes,
    /// What its absence means.
    pub absent: Absent,
}

pub(super) const fn field(name: &'static str, takes: Takes, absent: Absent) -> Field {
    Field { name, takes, absent }
}

/// What a stage holds in memory while it works, as far as its params tell before it has run once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryUse {
    /// Blocks of tensors, whatever it reads.
    Streams,
    /// A part of the model that it reads, from whose layers it learns.
    Learns,
    /// What executing the graph that it builds takes.
    Executes,
    /// Nothing tells.
    Unknown,
}

/// Which of a checkpoint's tensors a stage handles, or the stages behind it do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TensorsHandled {
    /// It brings them all, and handles none itself.
    Brings,
    /// All that come to it.
    All,
    /// Those of the vision tower.
    Vision,
    /// All but those of the vision tower.
    Llm,
    /// None that is worth a word.
    None,
}

/// What is wrong with fields that are given together, of which it may ask by name.
type FaultFn = fn(&dyn Fn(&str) -> bool) -> Option<&'static str>;

/// What a kind of stage is.
pub(crate) struct Definition {
    /// The word in the pipeline file.
    pub(super) name: &'static str,
    /// Enters every key of this kind.  Raise it when equal inputs and params would make other
    /// bytes than before; the golden digests in `crates/smelt/tests` fail until that is done.
    pub(super) version: u32,
    /// The fields a stage of this kind takes, besides those that all have.
    pub(super) fields: &'static [Field],
    /// Whether it makes the same bytes from the same inputs, on any machine and any number of threads;
    /// `None` where that is the program's affair.
    pub(super) is_reproducible: Option<bool>,
    /// Whether its params have it depend on what was measured, so that it promises no equal bytes.
    pub(super) is_measured: fn(&Values) -> bool,
    /// Whether it keeps what it has found out where an interrupted attempt leaves that to the next.
    pub(super) keeps: bool,
    /// Fields whose stages the output names by path, instead of holding a copy.
    pub(super) by_path: &'static [&'static str],
    /// Fields that are no edges and enter no key.
    pub(super) unkeyed: &'static [&'static str],
    /// Words of fields that enter no key: what was done before the field was there.
    pub(super) implied: &'static [(&'static str, &'static str)],
    /// What enters the key beside the params that choose it.
    pub(super) made_with: fn(&Values) -> &'static [(&'static str, &'static str)],
    /// What makes a stage smaller that does not fit.
    pub(super) smaller: &'static str,
    /// What it holds in memory.
    pub(super) memory: fn(&Values) -> MemoryUse,
    /// Which tensors it handles.
    pub(super) tensors: fn(&Values) -> TensorsHandled,
    /// What is wrong with the fields that are given together, if anything.
    pub(super) fault: FaultFn,
    /// What does not go together in the params: the field at fault, and why.
    pub(super) conflict: fn(&Values) -> Option<(String, String)>,
}

impl Definition {
    /// Of a kind that makes the same bytes anywhere, and of whose fields any go together.
    pub(super) const fn new(name: &'static str, version: u32, fields: &'static [Field]) -> Self {
        Self {
            name,
            version,
            fields,
            is_reproducible: Some(true),
            is_measured: |_| false,
            keeps: false,
            by_path: &[],
            unkeyed: &[],
            implied: &[],
            made_with: nothing_more,
            smaller: "an escalate step that does less at once",
            memory: unknown_memory,
            tensors: no_tensors,
            fault: no_fault,
            conflict: no_conflict,
        }
    }
}

fn unknown_memory(_: &Values) -> MemoryUse {
    MemoryUse::Unknown
}

fn nothing_more(_: &Values) -> &'static [(&'static str, &'static str)] {
    &[]
}

fn no_tensors(_: &Values) -> TensorsHandled {
    TensorsHandled::None
}

fn no_fault(_: &dyn Fn(&str) -> bool) -> Option<&'static str> {
    None
}

fn no_conflict(_: &Values) -> Option<(String, String)> {
    None
}
