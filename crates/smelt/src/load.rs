//! Loads what commands work on: the pipeline file with its pins, the store, finished outputs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use smelt_exec::SHARED;
use smelt_plan::pipeline::Overrides;
use smelt_plan::plan::{From, HubPin, Pin, Stage, StageOrder};
use smelt_plan::share::{self, Led, SharedKeys};
use smelt_plan::text::nearest;
use smelt_plan::{Digest, Kind, Pipeline, Plan, Side, StageId};
use smelt_store::{Lookup, Store, Wait};

use crate::config;
use crate::console::tell;
use crate::exit::{Exit, Failed};
use crate::flags::PipelineFlags;
use crate::pins::{self, Absent, Addresses, Ask};
pub(crate) use crate::reading::read_within;
use crate::shipped;
use crate::table::some;

/// Pipelines are written by people or small programs; a larger file is not one.
const PIPELINE_BYTES_MAX: u64 = 64 << 20;
/// Entries of a folder that are looked at for what was meant.
const NEARBY_MAX: usize = 1000;
/// So many of those are named.
const NEARBY_NAMED_MAX: usize = 4;
/// The kernel gives one environment variable 128 KiB; `SMELT_INPUTS` must fit.
const INPUTS_BYTES_MAX: usize = 128 << 10;

/// A plan and the store its results are in.
pub(crate) struct Loaded {
    pub(crate) plan: Plan,
    pub(crate) store: Store,
    /// Where every `path:` lies, as the file says it: links in it are not followed yet.
    pub(crate) roots: Vec<PathBuf>,
    /// What is on the other side only.
    pub(crate) absent: Absent,
}

/// What a command wants of the store.
pub(crate) enum Access {
    /// To use what was built, on a read-only disk too; what was built last is meant, so nobody is
    /// asked whether there is something newer.
    Use,
    /// To say what a build would do, on a read-only disk too.
    Look,
    /// To build a part of a pipeline.  Hashing ends early when the flag is set.
    Build(Wait, Arc<AtomicBool>, Part),
}

/// What of a pipeline is built.
#[derive(Clone)]
pub(crate) enum Part {
    /// All, or what of it is wanted.
    All,
    /// What the stages of one side need.
    Side(Side),
    /// Stages of which some others are made, whose outputs are given.
    Behind {
        /// The stages.
        only: Vec<String>,
        /// Those that are given.
        given: Vec<String>,
    },
}

impl Part {
    /// The stages that may have to be built.
    fn stages(&self, plan: &Plan) -> Result<BTreeSet<StageId>, Failed> {
        match self {
            Self::All => Ok(plan.wanted(&[])),
            Self::Side(side) => Ok(share::may_build(plan, *side)),
            Self::Behind { only, given } => {
                let find = |name: &String| Ok(plan.find(name)?);
                let only = only.iter().map(find).collect::<Result<Vec<_>, Failed>>()?;
                let given = given.iter().map(|name| Ok((find(name)?, Digest::of(b"given"))));
                let given = given.collect::<Result<BTreeMap<_, _>, Failed>>()?;
                let mut built = plan.closure_but(&only, &given);
                built.retain(|id| !given.contains_key(id));
                Ok(built)
            }
        }
    }
}

impl Access {
    /// Whether all that the pipeline names must be here.
    fn needs_all(&self, pipeline: &Pipeline) -> bool {
        match self {
            Self::Build(_, _, Part::All) => true,
            Self::Build(_, _, Part::Behind { .. }) => false,
            _ => !pipeline.has_sides(),
        }
    }
}

/// Where the store is: `$SMELT_CACHE`, else where the configuration says, else `./cache`.
pub(crate) fn root() -> Result<PathBuf, Failed> {
    let given = std::env::var_os("SMELT_CACHE").filter(|root| !root.is_empty());
    let root = given.map_or_else(config::store, PathBuf::from);
    let absolute = std::path::absolute(&root).unwrap_or_else(|_| root.clone());
    pins::utf8(&absolute, "set SMELT_CACHE to another directory")?;
    Ok(root)
}

/// Where the machine's tokens are: one place for all users and stores.
pub(crate) fn tokens() -> PathBuf {
    if let Some(named) = std::env::var_os("SMELT_TOKENS").filter(|named| !named.is_empty()) {
        return named.into();
    }
    let places = ["/run/lock", "/tmp"].map(Path::new);
    let place = places.into_iter().find(|place| place.is_dir()).unwrap_or(places[1]);
    place.join("smelt-tokens")
}

/// Opens the store.
pub(crate) fn store(access: &Access) -> Result<Store, Failed> {
    let root = root()?;
    match access {
        Access::Build(wait, stop, _) => {
            not_shared(&root)?;
            let is_new = !root.join("FORMAT").exists();
            let store = Store::open(&root, *wait)?;
            if is_new && store.is_in_memory() {
                tell(format_args!(
                    "warning: the new store {} is on tmpfs, which is memory: a restart takes all that is built, and it takes memory from the stages; SMELT_CACHE names another place",
                    store.root().display()
                ));
            }
            store.stop_on(stop.clone());
            Ok(store)
        }
        // A store that is new, or was cut short while new, is completed by opening it.
        Access::Use | Access::Look => Store::open(&root, Wait::Yes).or_else(|first| {
            let read_only = Store::open_read_only(&root, Wait::Yes);
            read_only.map_err(|_| first.into())
        }),
    }
}

/// A store that every stage may write to protects nothing.
fn not_shared(root: &Path) -> Result<(), Failed> {
    let absolute = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
    // The store may not be there yet: what is there of its path says where links lead.
    let real = absolute.ancestors().find_map(|place| place.canonicalize().ok());
    if !absolute.starts_with(SHARED) && !real.is_some_and(|place| place.starts_with(SHARED)) {
        return Ok(());
    }
    Err(Failed::usage(format!(
        "the store cannot be at {}: stages have {SHARED} to themselves; set SMELT_CACHE to another directory",
        absolute.display()
    )))
}

/// The same store, only to read: nothing is made or completed.
pub(crate) fn store_to_read() -> Result<Store, Failed> {
    Ok(Store::open_read_only(&root()?, Wait::Yes)?)
}

/// The plan of a pipeline whose inputs nobody has looked at: its keys mean nothing.
pub(crate) fn plan_unpinned(flags: &PipelineFlags) -> Result<Plan, Failed> {
    let pipeline = parse(flags)?;
    Ok(Plan::build(&pipeline, &pins::none(&pipeline))?)
}

/// The pipeline in the file, its stages depending on what their back ends do.
pub(crate) fn parse(flags: &PipelineFlags) -> Result<Pipeline, Failed> {
    let (file, text) = (flags.pipeline.display().to_string(), read(&flags.pipeline)?);
    let mut pipeline = Pipeline::parse(&file, &text, &Overrides::parse(&flags.sets)?)?;
    pipeline.depend(crate::device::facts_of);
    Ok(pipeline)
}

/// Reads the pipeline, opens the store, pins every `path:` and plans.
pub(crate) fn plan(flags: &PipelineFlags, access: Access) -> Result<Loaded, Failed> {
    // Journals say where a run was started and of what.
    let place = std::path::absolute(&flags.pipeline).unwrap_or_else(|_| flags.pipeline.clone());
    pins::utf8(&place, "rename it")?;
    let file = flags.pipeline.display().to_string();
    let pipeline = parse(flags)?;
    let addresses = pins::addresses(&pipeline)?;
    // A pipeline that cannot be ordered is refused before gigabytes are hashed.
    let order = StageOrder::of(&pipeline)?;
    let store = store(&access)?;
    let ask = match &access {
        Access::Use => Ask::Cache,
        Access::Look => Ask::Hub,
        Access::Build(_, stop, _) => Ask::HubForRun(stop),
    };
    let asked = match &access {
        Access::Use | Access::Look | Access::Build(_, _, Part::All) => None,
        Access::Build(_, _, part) => Some(pins::hubs_of(&pipeline, |plan| part.stages(plan))?),
    };
    let mut absent = Absent::new();
    let missed = (!access.needs_all(&pipeline)).then_some(&mut absent);
    let addresses = Addresses { all: addresses, asked };
    let pins = pins::all(&pipeline, &flags.pipeline, addresses, ask, &store, missed)?;
    let absolute = |path: &str| std::path::absolute(flags.folder().join(path));
    let roots = pipeline.paths().into_iter().filter_map(|path| absolute(path).ok()).collect();
    let plan = Plan::in_order(pipeline, order, &pins);
    check_inputs(&file, &plan, &store)?;
    Ok(Loaded { plan, store, roots, absent })
}

pub(crate) fn read(path: &Path) -> Result<String, Failed> {
    let read = read_within(path, "the pipeline", PIPELINE_BYTES_MAX);
    read.map_err(|failed| failed.or(&nearby(path)))
}

/// What could be meant by a path where no pipeline is; empty where one is, and where nobody knows.
fn nearby(path: &Path) -> String {
    if path.is_file() {
        return String::new();
    }
    if path.is_dir() {
        let held = pipelines_in(path);
        let told = || format!("; it holds {}", some(&held, NEARBY_NAMED_MAX));
        return if held.is_empty() { String::new() } else { told() };
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let names = pipelines_in(folder.unwrap_or(Path::new(".")));
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let whole = format!("{}.toml", name.trim_end_matches(".toml"));
    if let Some(found) = nearest(&whole, names.iter().map(String::as_str)) {
        return format!("; {} is there", path.with_file_name(found).display());
    }
    match shipped::models().iter().any(|model| model.is_called(name)) {
        true => format!("; a model is built by its name with: smelt build {name}"),
        false => String::new(),
    }
}

/// The names of what may be pipelines in a folder.
fn pipelines_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().take(NEARBY_MAX);
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".toml")).collect();
    names.sort_unstable();
    names
}

fn check_inputs(file: &str, plan: &Plan, store: &Store) -> Result<(), Failed> {
    // "/out/" and 64 hex digits and a space.
    let sealed = store.root().as_os_str().len() + 70;
    for (_, stage) in plan.stages().filter(|(_, stage)| stage.kind == Kind::Command) {
        let with_space = |path: &Path| path.as_os_str().len() + 1;
        let length = |from: &From| match from {
            From::Stage(id) => plan.stage(*id).outside().map_or(sealed, with_space),
            From::Path(Pin { path, .. }) | From::Hub(HubPin { path, .. }) => with_space(path),
        };
        let bytes: usize = stage.inputs.iter().map(|input| length(&input.from)).sum();
        if bytes > INPUTS_BYTES_MAX {
            let message = format!(
                "{file}: stage \"{}\" has {} inputs, whose paths do not fit the 128 KiB of SMELT_INPUTS; split the stage",
                stage.name,
                stage.inputs.len()
            );
            return Err(Failed::new(Exit::BadPipeline, message));
        }
        if let Some(path) = blank(stage, plan, store).filter(|_| reads_list(stage)) {
            let message = format!(
                "{file}: stage \"{}\": SMELT_INPUTS cannot list {}, whose path holds a blank; read SMELT_INPUTS_FILE, where a NUL ends each path, or SMELT_IN_<NAME>",
                stage.name,
                path.display()
            );
            return Err(Failed::new(Exit::BadPipeline, message));
        }
    }
    Ok(())
}

/// An input whose path holds a blank.
fn blank<'a>(stage: &'a Stage, plan: &'a Plan, store: &'a Store) -> Option<&'a Path> {
    let path = |from: &'a From| match from {
        From::Stage(id) => plan.stage(*id).outside().unwrap_or(store.root()),
        From::Path(Pin { path, .. }) | From::Hub(HubPin { path, .. }) => path,
    };
    let mut paths = stage.inputs.iter().map(|input| path(&input.from));
    paths.find(|path| path.to_string_lossy().contains(char::is_whitespace))
}

/// Whether the arguments or the environment of a program name the list that is divided by blanks.
fn reads_list(stage: &Stage) -> bool {
    const LIST: &str = "SMELT_INPUTS";
    let names = |text: &str| {
        let rest = |(at, _): (usize, &str)| text[at + LIST.len()..].chars().next();
        let is_longer = |next: char| next == '_' || next.is_ascii_alphanumeric();
        text.match_indices(LIST).any(|found| !rest(found).is_some_and(is_longer))
    };
    let texts = |value: &serde_json::Value| match value {
        serde_json::Value::Array(list) => list.iter().filter_map(|v| v.as_str()).any(names),
        serde_json::Value::Object(table) => table.values().filter_map(|v| v.as_str()).any(names),
        _ => false,
    };
    ["argv", "env"].iter().filter_map(|name| stage.params.get(*name)).any(texts)
}

/// How far the store's results reach into a plan.
pub(crate) enum Standing {
    /// The store has the output.
    Hit {
        /// Where it lies.
        path: PathBuf,
        /// The digest of its files.
        digest: Digest,
    },
    /// The key is known and the store has nothing under it that can be used, with the reason where it
    /// had something.
    Miss(Option<String>),
    /// The key is known only when `until` has been built; the key that this recipe led to the
    /// last time is `last`, where there was one.
    Unknown {
        /// The stage that must be built first: itself where what it names is on another machine.
        until: StageId,
        /// The key that its shared key or the whole recipe led to before.
        last: Option<Digest>,
    },
}

impl Standing {
    /// Where the output lies, if the store has it.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Self::Hit { path, .. } => Some(path),
            Self::Miss(_) | Self::Unknown { .. } => None,
        }
    }

    /// The word of `plan --json`.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Hit { .. } => "hit",
            Self::Miss(_) => "miss",
            Self::Unknown { .. } => "unknown",
        }
    }
}

/// What the store has of a plan.
pub(crate) struct Looked {
    /// Of each stage, how far keys reach, and its content key where that is known.
    pub(crate) standings: Vec<(Standing, Option<Digest>)>,
    /// The shared key of each stage.
    pub(crate) shared: Vec<Option<Digest>>,
    /// The content keys that those and recipes have led to.
    pub(crate) led: Vec<Led>,
}

/// Looks up every stage, as far as keys can be known.
pub(crate) fn standings(loaded: &Loaded) -> Result<Vec<(Standing, Option<Digest>)>, Failed> {
    Ok(look(loaded, None)?.standings)
}

/// Looks up every stage.  What `own` side has to build anew is not what the other side's is to be made of.
pub(crate) fn look(loaded: &Loaded, own: Option<Side>) -> Result<Looked, Failed> {
    let Loaded { plan, store, .. } = loaded;
    let mut digests: Vec<Option<Digest>> = vec![None; plan.len()];
    let mut shared = SharedKeys::new(plan);
    // As `digests`, with what is there by its shared key alone.
    let mut found: Vec<Option<Digest>> = Vec::with_capacity(plan.len());
    let (mut standings, mut led) = (Vec::with_capacity(plan.len()), Vec::with_capacity(plan.len()));
    let recipes = store.resolve_each(plan.stages().map(|(_, stage)| &stage.recipe_key))?;
    for ((id, stage), by_recipe) in plan.stages().zip(recipes) {
        let key = shared.of(id, |need| found[need.index()]);
        let by_shared = key.map(|key| store.resolve(&key)).transpose()?.flatten();
        led.push(Led { by_recipe, by_shared });
        let missing = stage.needs().find(|need| digests[need.index()].is_none());
        let missing = missing.map(|need| root_of(&standings, need));
        let unread = stage.unread.as_ref().map(|_| id);
        let standing = match missing.or(unread) {
            Some(until) => (Standing::Unknown { until, last: by_shared.or(by_recipe) }, None),
            None => standing(loaded, id, |need| digests[need.index()].expect("none is missing"))?,
        };
        digests[id.index()] = match &standing.0 {
            Standing::Hit { digest, .. } => Some(*digest),
            Standing::Miss(_) | Standing::Unknown { .. } => None,
        };
        let is_to_be_built = own.is_some_and(|own| shared.side(id) == Some(own))
            && matches!(standing.0, Standing::Miss(_));
        found.push(match (digests[id.index()], by_shared) {
            (Some(digest), _) => Some(digest),
            (None, Some(key)) if !is_to_be_built => {
                store.lookup(&key)?.hit().map(|output| output.digest)
            }
            (None, _) => None,
        });
        standings.push(standing);
    }
    Ok(Looked { standings, shared: shared.into_keys(), led })
}

/// How a stage stands whose inputs are all there.
fn standing(
    loaded: &Loaded,
    id: StageId,
    known: impl Fn(StageId) -> Digest,
) -> Result<(Standing, Option<Digest>), Failed> {
    let Loaded { plan, store, .. } = loaded;
    if let Some(pin) = plan.stage(id).given() {
        let Pin { path, digest } = pin.clone();
        return Ok((Standing::Hit { path, digest }, None));
    }
    let key = plan.content_key(id, known);
    let standing = match store.lookup(&key)? {
        Lookup::Hit(output) => {
            Standing::Hit { path: output.path().to_owned(), digest: output.digest }
        }
        Lookup::Miss => Standing::Miss(None),
        Lookup::Changed(what) => Standing::Miss(Some(format!("not what was recorded: {what}"))),
        Lookup::Damaged(damage) => {
            Standing::Miss(Some(format!("it was damaged in the store: {}", damage.what)))
        }
    };
    Ok((standing, Some(key)))
}

/// The stage that must really be built before the key below it is known.
fn root_of(standings: &[(Standing, Option<Digest>)], stage: StageId) -> StageId {
    match standings[stage.index()].0 {
        Standing::Unknown { until, .. } => until,
        Standing::Hit { .. } | Standing::Miss(_) => stage,
    }
}

/// Params as they are typed: `--set model=… --set …`.
pub(crate) fn settings(sets: &[String]) -> String {
    sets.iter().map(|set| format!("--set {set}")).collect::<Vec<_>>().join(" ")
}

/// The pipeline and its params, as they are typed.
fn asked(flags: &PipelineFlags) -> String {
    let settings = settings(&flags.sets);
    let gap = if settings.is_empty() { "" } else { " " };
    format!("{}{gap}{settings}", flags.pipeline.display())
}

/// The sealed output of one stage, or what to do to have it.
pub(crate) fn output(
    flags: &PipelineFlags,
    loaded: &Loaded,
    stage: StageId,
) -> Result<PathBuf, Failed> {
    outputs(loaded)?.swap_remove(stage.index()).ok_or_else(|| {
        Failed::new(
            Exit::StageFailed,
            format!(
                "stage \"{}\" is not built; build it with: smelt run {}",
                loaded.plan.stage(stage).name,
                asked(flags)
            ),
        )
    })
}

/// Where the output of each stage lies that is there.  What its recipe led to counts although what it was made of is
/// not there, as where it came in a bundle.
pub(crate) fn outputs(loaded: &Loaded) -> Result<Vec<Option<PathBuf>>, Failed> {
    outputs_of(loaded, standings(loaded)?)
}

/// The same of what was looked up.
pub(crate) fn outputs_of(
    loaded: &Loaded,
    standings: Vec<(Standing, Option<Digest>)>,
) -> Result<Vec<Option<PathBuf>>, Failed> {
    let path = |(standing, _)| match standing {
        Standing::Hit { path, .. } => Ok(Some(path)),
        Standing::Unknown { last: Some(key), .. } => {
            let found = loaded.store.lookup(&key)?.hit();
            Ok(found.map(|output| output.path().to_owned()))
        }
        Standing::Miss(_) | Standing::Unknown { last: None, .. } => Ok(None),
    };
    standings.into_iter().map(path).collect()
}
