//! Orders a pipeline into a DAG with recipe keys: what would run, before anything does.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::path::{Path, PathBuf};

use petgraph::Direction;
use petgraph::graph::{DiGraph, NodeIndex};
use serde_json::Value;

use crate::device::{self, Facts};
use crate::digest::Digest;
use crate::key::{self, KeyDomain, Recipe, digest};
use crate::kind::{Kind, Takes};
use crate::name::StageName;
use crate::pipeline::{InputRef, InputSpec, Limits, Pipeline, PipelineError, StageSpec};
use crate::retry::Retry;
use crate::side::Side;
use crate::text::nearest;
use crate::tokens::Capacity;

/// A stage's position in its plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StageId(usize);

impl StageId {
    /// The position, for tables kept beside a plan.
    pub const fn index(self) -> usize {
        self.0
    }
}

/// What a `path:` was when the plan was made: where it lies and what it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    /// The absolute path.
    pub path: PathBuf,
    /// The digest of its tree.
    pub digest: Digest,
}

impl Pin {
    /// Of what a disk that fails does not give, or what is not here.  No tree has this digest, so nothing is ever built of it.
    pub fn unread(path: PathBuf) -> Self {
        let digest = key::of_unread(&path);
        Self { path, digest }
    }
}

/// A program or script that a stage runs, as it was when the plan was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tool {
    /// As the stage names it; `NAME #!` for what interprets that.
    pub name: String,
    /// Its file.
    pub pin: Pin,
}

/// What an `hf:` was when the plan was made: a commit, which never changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubPin {
    /// `ORG/NAME`.
    pub repo: String,
    /// The branch, tag or commit that was asked for.  It enters no key: the commit says more.
    pub revision: String,
    /// The commit that it named.
    pub commit: String,
    /// The one GGUF file of several that is meant, where one is named.
    pub file: Option<String>,
    /// Where the commit's files lie once they are here; absolute.
    pub path: PathBuf,
}

/// The pins of all that a pipeline names outside of the store, by the text in the file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pins {
    /// Of every `path:`.
    pub paths: BTreeMap<String, Pin>,
    /// Of every `hf:`.
    pub hubs: BTreeMap<String, HubPin>,
    /// What is true of the device, as far as stages declare that they depend on it.
    pub device: Facts,
    /// Of the stages that run programs which count, these.
    pub tools: BTreeMap<StageName, Vec<Tool>>,
    /// Of the stages that cannot begin, since a disk fails or what they name is on another machine, why: one of their
    /// pins is [`Pin::unread`] or is missing.
    pub unread: BTreeMap<StageName, String>,
}

/// A pipeline in order, with keys.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The pipeline's own name.
    pub name: String,
    /// How much there is of what stages share.
    capacity: BTreeMap<String, Capacity>,
    /// Stages, each after all it needs; ties in the order of the file.
    stages: Vec<Stage>,
}

/// One stage of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Stage {
    /// Its name.
    pub name: StageName,
    /// What it does.
    pub kind: Kind,
    /// The fields that are no edges.
    pub params: BTreeMap<String, Value>,
    /// Its edges, in the order of the kind's fields, lists in the order of the file.
    pub inputs: Vec<Input>,
    /// The facts about the device that its result depends on, and what they are here.
    pub device: Vec<(&'static str, String)>,
    /// The programs and scripts that its result depends on, in the order of their names.
    pub tools: Vec<Tool>,
    /// Why it cannot begin, where a disk fails that it reads, or what it names is on another machine.
    pub unread: Option<String>,
    /// Caps on attempt 1.
    pub limits: Limits,
    /// How much it takes of what stages share, while it runs.
    pub resources: BTreeMap<String, u64>,
    /// How often it is tried, and what changes in between.
    pub retry: Retry,
    /// Which side builds it, where it says so.
    pub on: Option<Side>,
    /// What is true of the machine that builds it, where that is another one than this.
    pub elsewhere: Option<Facts>,
    /// It minds the kills of its children itself.
    pub survives_kills: bool,
    /// Whether its result is shared with a fleet, where it says so.
    pub share: Option<bool>,
    /// The key of the whole sub-recipe, known without running anything.
    pub recipe_key: Digest,
    /// The key of what the pipeline file says of the stage, whatever is on this machine; `None` where no stage of the
    /// pipeline says which side builds it.
    pub spec_key: Option<Digest>,
}

/// One edge.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    /// The field that names it.
    pub field: &'static str,
    /// What the key calls it: the field, and in a list also the stage's name, since a program
    /// finds its inputs by name.
    pub label: String,
    /// How programs know it, where that is not the name of the stage it comes from.
    pub known_as: Option<StageName>,
    /// What it points to.
    pub from: From,
}

/// What an edge points to.
#[derive(Debug, Clone, PartialEq)]
pub enum From {
    /// The output of a stage.
    Stage(StageId),
    /// A pinned path outside the store.
    Path(Pin),
    /// A commit of a hub.
    Hub(HubPin),
}

/// One attempt at a stage: its params and caps after `escalate`.
#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    /// The fields that are no edges.
    pub params: BTreeMap<String, Value>,
    /// Caps.
    pub limits: Limits,
    /// What differs from attempt 1, as the file says it.
    pub changed: Option<String>,
}

/// The order in which a pipeline can run, found before anything is pinned.
pub struct StageOrder {
    /// By name, the position in the order.
    positions: HashMap<StageName, StageId>,
    /// Positions in the file, each after all it needs.
    order: Vec<usize>,
}

impl StageOrder {
    /// Resolves names and orders the stages, or says which name or circle is in the way.
    pub fn of(pipeline: &Pipeline) -> Result<Self, PipelineError> {
        let by_name = index_names(pipeline)?;
        check_edges(pipeline, &by_name)?;
        let order = order(pipeline, &by_name)?;
        let position = |(at, &file_index): (usize, &usize)| {
            (pipeline.stages[file_index].name.clone(), StageId(at))
        };
        Ok(Self { positions: order.iter().enumerate().map(position).collect(), order })
    }
}

/// A stage with its edges resolved, but without its key.
fn planned(spec: StageSpec, positions: &HashMap<StageName, StageId>, pins: &Pins) -> Stage {
    let resolve = |input: InputSpec| Input {
        field: input.field,
        label: label(spec.kind, &input),
        known_as: input.known_as,
        from: match input.from {
            InputRef::Stage(name) => From::Stage(positions[&name]),
            InputRef::Path(path) => From::Path(pins.paths[&path].clone()),
            InputRef::Hub(address) => From::Hub(pins.hubs[&address].clone()),
        },
    };
    let elsewhere = spec.is_elsewhere(&pins.device).then_some(spec.machine);
    // What of another machine is not said is not known here.
    let fact = |&fact: &&'static str| match &elsewhere {
        Some(machine) => Some((fact, machine.get(fact)?.clone())),
        None => {
            let value = pins.device.get(fact).map_or(device::ABSENT, String::as_str);
            Some((fact, value.to_owned()))
        }
    };
    let tools = pins.tools.get(&spec.name).filter(|_| elsewhere.is_none());
    let mut tools = tools.cloned().unwrap_or_default();
    tools.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    Stage {
        tools,
        unread: pins.unread.get(&spec.name).cloned(),
        name: spec.name,
        kind: spec.kind,
        inputs: spec.inputs.into_iter().map(resolve).collect(),
        params: spec.params,
        device: spec.device.iter().filter_map(fact).collect(),
        elsewhere,
        limits: spec.limits,
        resources: spec.resources,
        retry: spec.retry,
        on: spec.on,
        survives_kills: spec.survives_kills,
        share: spec.share,
        recipe_key: Digest::from_bytes([0; 32]),
        spec_key: None,
    }
}

/// The key of what the file says of a stage; of the stages that it needs their names alone.
fn spec_key(spec: &StageSpec) -> Digest {
    let labels: Vec<String> = spec.inputs.iter().map(|input| label(spec.kind, input)).collect();
    let said = |input: &InputSpec| match &input.from {
        InputRef::Stage(name) => key::of_text(name.as_str()),
        InputRef::Path(path) => key::of_text(&format!("path:{path}")),
        InputRef::Hub(address) => key::of_text(&format!("hf:{address}")),
    };
    let said = spec.inputs.iter().map(said);
    let inputs: Vec<(&str, Digest)> = labels.iter().map(String::as_str).zip(said).collect();
    let recipe =
        Recipe { kind: spec.kind, params: &spec.params, device: &[], tools: &[], inputs: &inputs };
    digest(KeyDomain::Spec, &recipe)
}

impl Plan {
    /// Orders `pipeline`; `pins` must hold every text of [`Pipeline::paths`] and [`Pipeline::hubs`].
    pub fn build(pipeline: &Pipeline, pins: &Pins) -> Result<Self, PipelineError> {
        let order = StageOrder::of(pipeline)?;
        Ok(Self::in_order(pipeline.clone(), order, pins))
    }

    /// The plan of a pipeline that has been ordered; nothing of it is copied.
    pub fn in_order(pipeline: Pipeline, order: StageOrder, pins: &Pins) -> Self {
        let StageOrder { positions, order } = order;
        let has_sides = pipeline.has_sides();
        let Pipeline { name, resources: capacity, stages: specs, .. } = pipeline;
        let mut specs: Vec<Option<StageSpec>> = specs.into_iter().map(Some).collect();
        let mut stages: Vec<Stage> = Vec::with_capacity(order.len());
        for file_index in order {
            let spec = specs[file_index].take().expect("an order names each stage once");
            let spec_key = has_sides.then(|| spec_key(&spec));
            let mut stage = planned(spec, &positions, pins);
            stage.recipe_key = stage.key(KeyDomain::Recipe, |id| stages[id.0].recipe_key);
            stage.spec_key = spec_key;
            stages.push(stage);
        }
        Self { name, capacity, stages }
    }

    /// How much there is of what stages share.
    pub fn capacity(&self) -> &BTreeMap<String, Capacity> {
        &self.capacity
    }

    /// The stages, each after all it needs.
    pub fn stages(&self) -> impl ExactSizeIterator<Item = (StageId, &Stage)> {
        self.stages.iter().enumerate().map(|(at, stage)| (StageId(at), stage))
    }

    /// How many stages.
    pub fn len(&self) -> usize {
        self.stages.len()
    }

    /// Whether there are none; a built plan has at least one.
    pub fn is_empty(&self) -> bool {
        self.stages.is_empty()
    }

    /// One stage.
    pub fn stage(&self, id: StageId) -> &Stage {
        &self.stages[id.0]
    }

    /// The stage of that name, or the name nearest to it.
    pub fn find(&self, name: &str) -> Result<StageId, UnknownStage> {
        self.stages.iter().position(|stage| stage.name.as_str() == name).map(StageId).ok_or_else(
            || UnknownStage {
                name: name.to_owned(),
                near: nearest(name, self.stages.iter().map(|stage| stage.name.as_str()))
                    .map(str::to_owned),
            },
        )
    }

    /// `targets` and everything they need.
    pub fn closure(&self, targets: &[StageId]) -> BTreeSet<StageId> {
        self.closure_but(targets, &BTreeMap::new())
    }

    /// The same, but for what those in `known` need, whose outputs are there.
    pub fn closure_but(
        &self,
        targets: &[StageId],
        known: &BTreeMap<StageId, Digest>,
    ) -> BTreeSet<StageId> {
        let mut needed: BTreeSet<StageId> = targets.iter().copied().collect();
        for at in (0..self.stages.len()).rev().map(StageId) {
            if needed.contains(&at) && !known.contains_key(&at) {
                needed.extend(self.stage(at).needs());
            }
        }
        needed
    }

    /// What a run of `only` is about: all stages where it names none.
    pub fn wanted(&self, only: &[StageId]) -> BTreeSet<StageId> {
        match only {
            [] => (0..self.stages.len()).map(StageId).collect(),
            only => self.closure(only),
        }
    }

    /// The source that the checkpoint of `stage` comes from, however it was quantised on the way.
    pub fn source_of(&self, stage: &Stage) -> Option<StageId> {
        let checkpoint = |stage: &Stage| {
            let input = stage.inputs.iter().find(|input| input.field == "checkpoint")?;
            match input.from {
                From::Stage(id) => Some(id),
                From::Path(_) | From::Hub(_) => None,
            }
        };
        let mut found = checkpoint(stage)?;
        // Each need comes before what needs it, so this ends.
        while self.stage(found).kind != Kind::Source {
            found = checkpoint(self.stage(found))?;
        }
        Some(found)
    }

    /// The model that a stage is made of, as the `from` of a source says it.
    pub fn origin(&self, stage: StageId) -> Option<String> {
        self.stage(self.source_of(self.stage(stage))?).from_text()
    }

    /// The content key of `stage`, once the digests of all it needs are known.
    pub fn content_key(&self, stage: StageId, output: impl Fn(StageId) -> Digest) -> Digest {
        self.stage(stage).key(KeyDomain::Content, output)
    }

    /// The recipe keys that the stages would have if no device and none of its programs counted: by them one finds what
    /// others have made of the same recipe.
    pub fn keys_anywhere(&self) -> Vec<Digest> {
        let mut keys: Vec<Digest> = Vec::with_capacity(self.len());
        for stage in &self.stages {
            let inputs = digests(&stage.inputs, |id| keys[id.0]);
            let recipe = Recipe { device: &[], tools: &[], ..stage.recipe(&inputs) };
            keys.push(digest(KeyDomain::Anywhere, &recipe));
        }
        keys
    }

    /// The content key of `stage` where its inputs, in order, have these digests, whether or not they are here; `None` where
    /// they are not as many as it has, or have other labels.
    pub fn content_key_of(&self, stage: StageId, inputs: &[(String, Digest)]) -> Option<Digest> {
        self.stage(stage).content_key_of(inputs)
    }

    /// The same as a machine has it of which these facts and programs are told.
    pub fn content_key_by(
        &self,
        stage: StageId,
        device: &[(&'static str, String)],
        tools: &[Tool],
        inputs: &[(String, Digest)],
    ) -> Option<Digest> {
        let there =
            Stage { device: device.to_vec(), tools: tools.to_vec(), ..self.stage(stage).clone() };
        there.content_key_of(inputs)
    }

    /// What the content key of `stage` is made of, field by field, for people to compare.
    pub fn content_fields(
        &self,
        stage: StageId,
        output: impl Fn(StageId) -> Digest,
    ) -> Vec<key::Field> {
        let stage = self.stage(stage);
        key::fields(&stage.recipe(&digests(&stage.inputs, output)))
    }
}

/// No stage has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no stage \"{name}\" in this pipeline{}", near.as_ref().map(|near| format!("; did you mean \"{near}\"?")).unwrap_or_default())]
pub struct UnknownStage {
    /// The name asked for.
    pub name: String,
    /// The nearest there is.
    pub near: Option<String>,
}

impl Stage {
    /// Whether it makes the same bytes from the same inputs; `None` where that is a program's affair.
    pub fn is_reproducible(&self) -> Option<bool> {
        if self.kind.is_measured(&self.params) { Some(false) } else { self.kind.is_reproducible() }
    }

    /// Whether others may have its result.  Unless it says so, that of a program which is not in its key is not shared: another
    /// machine would take it for what another program makes.
    pub fn is_shared(&self) -> bool {
        self.share.unwrap_or(self.kind != Kind::Command || !self.tools.is_empty())
    }

    fn content_key_of(&self, inputs: &[(String, Digest)]) -> Option<Digest> {
        let own = self.inputs.iter().map(|input| &input.label);
        if !own.eq(inputs.iter().map(|(label, _)| label)) {
            return None;
        }
        let inputs: Vec<(&str, Digest)> =
            inputs.iter().map(|(label, digest)| (label.as_str(), *digest)).collect();
        Some(digest(KeyDomain::Content, &self.recipe(&inputs)))
    }

    fn recipe<'a>(&'a self, inputs: &'a [(&'a str, Digest)]) -> Recipe<'a> {
        Recipe {
            kind: self.kind,
            params: &self.params,
            device: &self.device,
            tools: &self.tools,
            inputs,
        }
    }

    fn key(&self, domain: KeyDomain, output: impl Fn(StageId) -> Digest) -> Digest {
        digest(domain, &self.recipe(&digests(&self.inputs, output)))
    }

    /// The stages it needs, with repeats where it names one twice.
    pub fn needs(&self) -> impl Iterator<Item = StageId> {
        self.inputs.iter().filter_map(|input| match input.from {
            From::Stage(id) => Some(id),
            From::Path(_) | From::Hub(_) => None,
        })
    }

    /// Which of its inputs is the output of `need`, the first where there are several.
    pub fn needs_at(&self, need: StageId) -> Option<usize> {
        self.inputs.iter().position(|input| matches!(input.from, From::Stage(id) if id == need))
    }

    /// A `path:` source is not built: the pin is its output.
    pub fn given(&self) -> Option<&Pin> {
        match (self.kind, self.inputs.first()) {
            (Kind::Source, Some(Input { from: From::Path(pin), .. })) => {
                self.unread.is_none().then_some(pin)
            }
            _ => None,
        }
    }

    /// What an `hf:` source fetches.  Its output stays where the hub's cache keeps it, and the
    /// store only refers to it.
    pub fn fetched(&self) -> Option<&HubPin> {
        match (self.kind, self.inputs.first()) {
            (Kind::Source, Some(Input { from: From::Hub(pin), .. })) => {
                self.unread.is_none().then_some(pin)
            }
            _ => None,
        }
    }

    /// Where its output lies, where that is known before anything runs: outside of the store.
    pub fn outside(&self) -> Option<&Path> {
        let given = self.given().map(|pin| pin.path.as_path());
        given.or_else(|| Some(self.fetched()?.path.as_path()))
    }

    /// What a source gives, as a `from` says it: `hf:ORG/NAME`, with `@REV` and `:FILE` where they say more,
    /// `path:` with the absolute path, `synthetic:NAME`.
    pub fn from_text(&self) -> Option<String> {
        if let Some(HubPin { repo, revision, file, .. }) = self.fetched() {
            let revision = Some(revision).filter(|revision| *revision != "main");
            let [at, colon] = [("@", revision), (":", file.as_ref())]
                .map(|(mark, text)| text.map_or_else(String::new, |text| format!("{mark}{text}")));
            return Some(format!("hf:{repo}{at}{colon}"));
        }
        if let Some(pin) = self.given() {
            return Some(format!("path:{}", pin.path.display()));
        }
        let is_source = self.kind == Kind::Source;
        let name = is_source.then(|| crate::kind::source::synthetic(&self.params)).flatten();
        name.map(|name| format!("synthetic:{name}"))
    }

    /// The params and caps of attempt `n` (from 1).
    pub fn attempt(&self, n: u32) -> Attempt {
        let mut attempt =
            Attempt { params: self.params.clone(), limits: self.limits, changed: None };
        let Some(last) = (n as usize).checked_sub(2) else { return attempt };
        // The ladder's top rung serves every attempt beyond it.
        let steps = &self.retry.escalate;
        let Some(step) = steps.get(last).or(steps.last()) else { return attempt };
        for (name, value) in &step.params {
            merge(attempt.params.entry(name.clone()).or_insert(Value::Null), value);
        }
        let limits = &mut attempt.limits;
        limits.memory_bytes_max = step.limits.memory_bytes_max.or(limits.memory_bytes_max);
        limits.duration_max = step.limits.duration_max.or(limits.duration_max);
        attempt.changed = Some(step.text.clone());
        attempt
    }
}

/// Tables merge key by key; anything else is replaced.
fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                into.insert(key.clone(), value.clone());
            }
        }
        (into, from) => *into = from.clone(),
    }
}

fn digests(inputs: &[Input], output: impl Fn(StageId) -> Digest) -> Vec<(&str, Digest)> {
    let digest = |input: &Input| match &input.from {
        From::Stage(id) => output(*id),
        From::Path(pin) => pin.digest,
        From::Hub(pin) => key::of_commit(&pin.repo, &pin.commit, pin.file.as_deref()),
    };
    inputs.iter().map(|input| (input.label.as_str(), digest(input))).collect()
}

fn label(kind: Kind, input: &InputSpec) -> String {
    let field = kind.fields().iter().find(|field| field.name == input.field);
    match (field.map(|field| field.takes), &input.from) {
        (Some(Takes::Inputs), InputRef::Stage(name)) => {
            format!("{} {}", input.field, input.known_as.as_ref().unwrap_or(name))
        }
        (Some(Takes::Inputs), InputRef::Path(_)) => format!("{} path", input.field),
        _ => input.field.to_owned(),
    }
}

fn index_names(pipeline: &Pipeline) -> Result<HashMap<&StageName, usize>, PipelineError> {
    let mut by_name = HashMap::with_capacity(pipeline.stages.len());
    for (at, stage) in pipeline.stages.iter().enumerate() {
        if by_name.insert(&stage.name, at).is_some() {
            return Err(
                pipeline.error(stage.place, format!("stage \"{}\" is there twice", stage.name))
            );
        }
    }
    Ok(by_name)
}

/// Every edge names a stage of a kind its field takes.
fn check_edges(
    pipeline: &Pipeline,
    by_name: &HashMap<&StageName, usize>,
) -> Result<(), PipelineError> {
    for stage in &pipeline.stages {
        for input in &stage.inputs {
            let InputRef::Stage(name) = &input.from else { continue };
            let Some(&at) = by_name.get(name) else {
                return Err(unknown_stage(pipeline, stage, input, name));
            };
            check_kind(pipeline, stage, input, &pipeline.stages[at])?;
        }
    }
    Ok(())
}

fn unknown_stage(
    pipeline: &Pipeline,
    stage: &StageSpec,
    input: &InputSpec,
    name: &StageName,
) -> PipelineError {
    let near = nearest(name.as_str(), pipeline.stages.iter().map(|stage| stage.name.as_str()));
    let hint = near.map_or(String::new(), |near| format!("; did you mean \"{near}\"?"));
    let message = format!(
        "stage \"{}\" needs stage \"{name}\" ({}), which is not in the file{hint}",
        stage.name, input.field
    );
    pipeline.error(input.place, message)
}

fn check_kind(
    pipeline: &Pipeline,
    stage: &StageSpec,
    input: &InputSpec,
    found: &StageSpec,
) -> Result<(), PipelineError> {
    let field = stage.kind.fields().iter().find(|field| field.name == input.field);
    let Some(Takes::Stage(kinds) | Takes::Stages(kinds)) = field.map(|field| field.takes) else {
        return Ok(());
    };
    if kinds.contains(&found.kind) {
        return Ok(());
    }
    let names: Vec<_> = kinds.iter().map(|kind| kind.name()).collect();
    let message = format!(
        "\"{}\" of stage \"{}\" takes a stage of kind {}; \"{}\" is of kind {}",
        input.field,
        stage.name,
        names.join(" or "),
        found.name,
        found.kind.name()
    );
    Err(pipeline.error(input.place, message))
}

/// File indices, each after all it needs; among those ready, the first in the file first.
fn order(
    pipeline: &Pipeline,
    by_name: &HashMap<&StageName, usize>,
) -> Result<Vec<usize>, PipelineError> {
    let graph = edges(pipeline, by_name);
    let mut missing: Vec<usize> = graph
        .node_indices()
        .map(|node| graph.neighbors_directed(node, Direction::Incoming).count())
        .collect();
    let mut ready: BinaryHeap<Reverse<usize>> =
        (0..missing.len()).filter(|&at| missing[at] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(missing.len());
    while let Some(Reverse(at)) = ready.pop() {
        order.push(at);
        for next in graph.neighbors(NodeIndex::new(at)) {
            missing[next.index()] -= 1;
            if missing[next.index()] == 0 {
                ready.push(Reverse(next.index()));
            }
        }
    }
    if order.len() == missing.len() { Ok(order) } else { Err(cycle(pipeline, &graph)) }
}

/// An arrow from each stage to each that needs it; two edges between a pair count once each.
fn edges(pipeline: &Pipeline, by_name: &HashMap<&StageName, usize>) -> DiGraph<(), ()> {
    let mut graph = DiGraph::with_capacity(pipeline.stages.len(), pipeline.stages.len());
    for _ in &pipeline.stages {
        graph.add_node(());
    }
    for (at, stage) in pipeline.stages.iter().enumerate() {
        for input in &stage.inputs {
            if let InputRef::Stage(name) = &input.from {
                graph.add_edge(NodeIndex::new(by_name[name]), NodeIndex::new(at), ());
            }
        }
    }
    graph
}

/// Names one cycle, from its first stage in the file round to itself.
fn cycle(pipeline: &Pipeline, graph: &DiGraph<(), ()>) -> PipelineError {
    let knots = petgraph::algo::tarjan_scc(graph);
    let is_cycle = |knot: &&Vec<NodeIndex>| knot.len() > 1 || graph.contains_edge(knot[0], knot[0]);
    let knot: BTreeSet<usize> =
        knots.iter().find(is_cycle).into_iter().flatten().map(|node| node.index()).collect();
    let first = knot.first().copied().unwrap_or(0);
    let mut walk = vec![first];
    // Every stage of a knot needs another of it, so this walk must come back to a stage it saw.
    let round = loop {
        let last = walk[walk.len() - 1];
        let needs = graph.neighbors_directed(NodeIndex::new(last), Direction::Incoming);
        let next =
            needs.map(NodeIndex::index).filter(|at| knot.contains(at)).min().unwrap_or(first);
        if let Some(start) = walk.iter().position(|&at| at == next) {
            walk.push(next);
            break &walk[start..];
        }
        walk.push(next);
    };
    let names: Vec<_> = round.iter().map(|&at| pipeline.stages[at].name.as_str()).collect();
    let message = format!("stages need each other in a circle: {}", names.join(" needs "));
    pipeline.error(pipeline.stages[round[0]].place, message)
}

#[cfg(test)]
mod tests;
