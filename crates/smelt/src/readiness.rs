//! Says of every stage of a pipeline what it needs of this machine besides smelt, and whether that is here.
//!
//! Looked at are files and the environment.  No program is started, no store opened and nothing fetched: a pipeline whose
//! tools are missing has no plan yet.

use std::collections::BTreeMap;
use std::env;
use std::path::Path;

use serde_json::Value;
use smelt_cuda::{CudaTarget, nvrtc};
use smelt_doctor::{Finding, Fix, Severity};
use smelt_engine::onnxruntime;
use smelt_plan::device::{Facts, words};
use smelt_plan::kind::engine_build::GraphBackend;
use smelt_plan::kind::verify::{RUNTIME, WEIGHTS_ONLY};
use smelt_plan::kind::{BACKEND, SECRETS, TARGET, TOOL, WRITES};
use smelt_plan::pipeline::{InputRef, PipelineError, StageSpec};
use smelt_plan::{Kind, Pipeline, Plan, Side, StageId, share};
use smelt_tensorrt::{COMPILER_CURE, LibraryError};

use crate::known_bad::{self, Combination};
use crate::stage::order::place;
use crate::tools::parts::{Parts, VendorTool};
use crate::{cards, device, pins, tools};

/// Something that a stage needs.
struct Need {
    /// What kind of thing it is; stable, for scripts.
    id: &'static str,
    /// What it is called.
    name: String,
    /// What is here, in a word or two, or what is wrong.
    found: Result<String, Lack>,
}

/// What is not here.
struct Lack {
    severity: Severity,
    /// In a line that goes on from the thing's name.
    what: String,
    why: &'static str,
    cure: Option<String>,
}

impl Lack {
    /// Without it the stage fails.
    fn problem(what: impl Into<String>, why: &'static str, cure: Option<String>) -> Self {
        Self { severity: Severity::Problem, what: what.into(), why, cure }
    }
}

/// What is so of each stage that `side` may have to build, in their order: one finding for each thing that lacks, or one
/// that says what is here.
///
/// # Errors
/// When the stages have no order.
pub(crate) fn findings(
    pipeline: &Pipeline,
    side: Option<Side>,
    folder: &Path,
) -> Result<Vec<Finding>, PipelineError> {
    let facts = device::facts(pipeline);
    let plan = Plan::build(pipeline, &pins::none(pipeline))?;
    let whose = share::sides(&plan);
    let built = side.map(|side| share::may_build(&plan, side));
    let ids: BTreeMap<&str, StageId> =
        plan.stages().map(|(id, stage)| (stage.name.as_str(), id)).collect();
    let of = |spec: &StageSpec| {
        let id = ids[spec.name.as_str()];
        let is_built = built.as_ref().is_none_or(|built| built.contains(&id));
        let needs = is_built.then(|| needs(pipeline, &facts, spec, folder))?;
        Some(judged(spec, whose[id.index()], needs))
    };
    Ok(pipeline.stages.iter().filter_map(of).flatten().collect())
}

fn judged(spec: &StageSpec, side: Option<Side>, needs: Vec<Need>) -> Vec<Finding> {
    let (mut findings, mut here) = (Vec::new(), Vec::new());
    for Need { id, name, found } in needs {
        match found {
            Ok(words) if words.is_empty() => here.push(name),
            Ok(words) => here.push(format!("{name} {words}")),
            Err(Lack { severity, what, why, cure }) => {
                let title = format!("stage {}: {name} {what}", spec.name);
                // Each is a person's to decide: it installs, makes or names something of theirs.
                let cure = cure.map(|command| Fix::now(command).by_hand());
                findings.push(Finding::new(severity, id, title).because(why).cured_by(cure));
            }
        }
    }
    if findings.is_empty() {
        let here = if here.is_empty() { "nothing but smelt".to_owned() } else { here.join(", ") };
        let side = side.map_or_else(String::new, |side| format!(", the {side}'s"));
        let title = format!("stage {} ({}{side}) needs {here}", spec.name, spec.kind.name());
        findings.push(Finding::new(Severity::Ok, "stage", title));
    }
    findings
}

fn needs(pipeline: &Pipeline, here: &Facts, spec: &StageSpec, folder: &Path) -> Vec<Need> {
    if spec.is_elsewhere(here) {
        let name = format!("a worker with {}", words(&spec.machine));
        return vec![Need { id: "worker", name, found: Ok(String::new()) }];
    }
    let mut needs = inputs(spec, folder);
    match spec.kind {
        Kind::Command => needs.extend(of_command(spec, folder)),
        Kind::EngineBuild | Kind::LlmEngineBuild => {
            needs.extend(compiler(spec).or_else(|| runtime(spec)));
            needs.extend(tensorrt(spec).into_iter().flatten());
            needs.extend(builder(spec));
        }
        Kind::Verify => {
            needs.extend(card(pipeline, spec));
            needs.extend(started(spec, RUNTIME, folder));
        }
        Kind::Deployment => needs.extend(started(spec, "server", folder)),
        _ => {}
    }
    needs.extend(facts(here, spec));
    needs.extend(known_bad::of_stage(&spec.params, folder).into_iter().map(gone_wrong));
    needs
}

/// What is known to go wrong together, though all of it is here.
fn gone_wrong(row: &'static Combination) -> Need {
    let lack = Lack {
        severity: Severity::Warning,
        what: format!("goes wrong: {} ({})", row.means, row.known),
        why: "It was seen to, and this stage is the same as far as can be told before it runs.",
        cure: Some(row.remedy.clone()),
    };
    Need { id: "known-bad", name: row.id.clone(), found: Err(lack) }
}

/// What lies outside of the store.
fn inputs(spec: &StageSpec, folder: &Path) -> Vec<Need> {
    let of = |input: &InputRef| match input {
        InputRef::Stage(_) => None,
        InputRef::Hub(text) => {
            Some(Need { id: "input", name: format!("hf:{text}"), found: Ok(String::new()) })
        }
        InputRef::Path(text) => {
            let why = "The stage reads it, and its content is part of the key.";
            let found = match folder.join(text).exists() {
                true => Ok(String::new()),
                false => Err(Lack::problem("is not there", why, None)),
            };
            Some(Need { id: "input", name: format!("path:{text}"), found })
        }
    };
    spec.inputs.iter().filter_map(|input| of(&input.from)).collect()
}

fn of_command(spec: &StageSpec, folder: &Path) -> Vec<Need> {
    let mut needs: Vec<Need> = programs(spec, folder).collect();
    let of_secret = |name: &str| {
        let why = "The stage is given its value by name, and a run without it ends before anything is built.";
        let cure = || Some(format!("export {name}=…"));
        let lack = |_| Lack::problem("is not in smelt's environment", why, cure());
        let found = env::var(name).map(|_| String::new()).map_err(lack);
        Need { id: "secret", name: format!("the secret {name}"), found }
    };
    needs.extend(tools::texts(&spec.params, SECRETS).into_iter().map(of_secret));
    let of_place = |text: &str| {
        let place = place(text, folder);
        let why = "The kernel lets a stage write to places that are there when it begins.";
        let cure = Some(format!("mkdir -p '{}'", place.display()));
        let found = match place.exists() {
            true => Ok(String::new()),
            false => Err(Lack::problem("is not there", why, cure)),
        };
        Need { id: "writes", name: format!("to write to {text}"), found }
    };
    needs.extend(tools::texts(&spec.params, WRITES).into_iter().map(of_place));
    needs
}

/// A stage's program and the tools that it declares, each once.
fn programs<'a>(spec: &'a StageSpec, folder: &'a Path) -> impl Iterator<Item = Need> + 'a {
    let argv = tools::texts(&spec.params, "argv");
    let declared = tools::texts(&spec.params, TOOL);
    let program = argv.first().copied().filter(|program| !declared.contains(program));
    let is_declared = program.is_none();
    let arguments = move |name: &str| match is_declared && argv.first() == Some(&name) {
        true => argv.clone(),
        false => Vec::new(),
    };
    let all = program.map(|name| ("program", name)).into_iter();
    let all = all.chain(declared.into_iter().map(|name| ("tool", name)));
    all.flat_map(move |(id, name)| of_program(spec, folder, id, name, &arguments(name)))
}

/// Another program that is to answer by the words of a field, if one is.
fn started(spec: &StageSpec, field: &str, folder: &Path) -> Vec<Need> {
    let words = tools::texts(&spec.params, field);
    let of = |name: &&str| of_program(spec, folder, "program", name, &words);
    words.first().map(of).unwrap_or_default()
}

/// One program, and the flags that its version does not know.
fn of_program(
    spec: &StageSpec,
    folder: &Path,
    id: &'static str,
    name: &str,
    arguments: &[&str],
) -> Vec<Need> {
    let vendor = VendorTool::of(name);
    let need = |found| Need { id, name: name.to_owned(), found };
    // A stage that does not declare a tool has nothing but our own PATH.
    let is_declared = id == "tool";
    let found = tools::on_path(name, folder);
    let Some(path) = found.or_else(|| tools::at_vendor(name).filter(|_| is_declared)) else {
        let why =
            "The stage starts it. A run without a declared tool ends before anything is built.";
        let cure = match tools::at_vendor(name) {
            Some(_) => Some(format!("tool = [\"{name}\"]   # in the stage: {name} is on no PATH")),
            None => vendor.map(|tool| tool.cure.to_owned()),
        };
        return vec![need(Err(Lack::problem("is not here", why, cure)))];
    };
    let parts = Parts::of(&path, tools::libraries(&spec.params));
    let version = parts.version.as_deref().unwrap_or_default();
    let words = format!("{version} {}", path.display());
    let mut needs = vec![need(Ok(words.trim().to_owned()))];
    let refused = arguments.iter().filter_map(|argument| vendor?.refuses(argument, version));
    needs.extend(refused.map(|what| Need {
        id: "flag",
        name: format!("{name} {version}"),
        found: Err(Lack::problem(what, "The tool ends at a flag that it does not know.", None)),
    }));
    needs
}

/// The compiler of an engine's kernels.
fn compiler(spec: &StageSpec) -> Option<Need> {
    let target = target(spec)?;
    let why = "An engine for a GPU holds kernels that are compiled for it where it is built.";
    let found = nvrtc::find(target).map(|path| path.display().to_string());
    let found = found.map_err(|error| Lack::problem(format!("is not here: {error}"), why, None));
    let name = format!("NVRTC {} for {}", target.toolkit().version, target.word());
    Some(Need { id: "compiler", name, found })
}

fn runtime(spec: &StageSpec) -> Option<Need> {
    let backend = spec.params.get(BACKEND)?.as_str()?;
    if backend != GraphBackend::OnnxRuntime.word() {
        return None;
    }
    let why = "It executes the graph, and smelt brings none.";
    let found = onnxruntime::find().map(|path| path.display().to_string());
    let found = found.map_err(|error| Lack::problem(format!("is not here: {error}"), why, None));
    Some(Need { id: "onnxruntime", name: "ONNX Runtime".to_owned(), found })
}

/// TensorRT for RTX, and what compiles the program that loads it.
fn tensorrt(spec: &StageSpec) -> Option<[Need; 2]> {
    let backend = spec.params.get(BACKEND)?.as_str()?;
    if backend != GraphBackend::TensorRtRtx.word() {
        return None;
    }
    let lack = |what: String, why, cure: &str| Lack::problem(what, why, Some(cure.to_owned()));
    let library = smelt_tensorrt::find(&|name| env::var_os(name)).map(|found| {
        let version = smelt_tensorrt::version(&found.core).ok().flatten().unwrap_or_default();
        format!("{version} {}", found.core.display()).trim().to_owned()
    });
    let library = library.map_err(|error| {
        let why = "It parses the graph and builds the plan, and smelt brings none.";
        lack(format!("is not here: {error}"), why, LibraryError::CURE)
    });
    let path = env::var_os("PATH").unwrap_or_default();
    let compiler = smelt_tensorrt::compiler(&path).map(|path| path.display().to_string());
    let compiler = compiler.ok_or_else(|| {
        let why = "It compiles the small program that loads TensorRT, where that runs.";
        lack("is not here".to_owned(), why, COMPILER_CURE)
    });
    let need = |id, name: &str, found| Need { id, name: name.to_owned(), found };
    Some([
        need("tensorrt-rtx", "TensorRT for RTX", library),
        need("c++", "a compiler of C++", compiler),
    ])
}

/// TensorRT's program, which builds on the GPU that the engine is for.
fn builder(spec: &StageSpec) -> Option<Need> {
    let backend = spec.params.get(BACKEND)?.as_str()?;
    if backend != GraphBackend::TensorRt.word() {
        return None;
    }
    let found = tools::builder().map(|path| {
        let version = Parts::of(&path, env::var("LD_LIBRARY_PATH").ok().as_deref()).version;
        format!("{} {}", version.unwrap_or_default(), path.display()).trim().to_owned()
    });
    let found = found.ok_or_else(|| {
        let why = "It builds the plan, on the GPU that the plan is for, and smelt brings none.";
        let cure = VendorTool::of(tools::BUILDER).map(|tool| tool.cure.to_owned());
        Lack::problem("is not here", why, cure)
    });
    Some(Need { id: "tool", name: tools::BUILDER.to_owned(), found })
}

/// The card that runs what is verified; weights alone are compared without one.
fn card(pipeline: &Pipeline, spec: &StageSpec) -> Option<Need> {
    if spec.params.get(WEIGHTS_ONLY).and_then(Value::as_bool) == Some(true) {
        return None;
    }
    let engines = spec.inputs.iter().filter_map(|input| match &input.from {
        InputRef::Stage(name) => pipeline.stages.iter().find(|stage| stage.name == *name),
        InputRef::Path(_) | InputRef::Hub(_) => None,
    });
    let target = engines.filter_map(target).next()?;
    let lack = |what: String| {
        let why = "An engine for a GPU is asked on such a GPU; elsewhere its weights alone can be compared.";
        Lack::problem(what, why, None)
    };
    let found = match cards::card() {
        Ok(card) if card.sm == target.sm() => Ok(card.name),
        Ok(card) => Err(lack(format!("is not here: {} is {}", card.name, card.sm))),
        Err(error) => Err(lack(format!("is not here: {error}; weights-only = true needs none"))),
    };
    Some(Need { id: "card", name: format!("a GPU for {}", target.word()), found })
}

/// The GPU that a stage's engine is for.
fn target(spec: &StageSpec) -> Option<CudaTarget> {
    CudaTarget::parse(spec.params.get(TARGET)?.as_str()?)
}

/// Facts of this device that the stage declares; one that is absent is most often a driver or a package that is missing.
fn facts(here: &Facts, spec: &StageSpec) -> Vec<Need> {
    let of = |fact: &&'static str| {
        let value = here.get(fact)?;
        let why = "It is part of the key all the same, so what is built is shared with every device that lacks it too.";
        let found = match device::reason_absent(fact, value) {
            None => Ok(format!("= {value}")),
            Some(what) => Err(Lack {
                severity: Severity::Warning,
                what: format!("is none here: {what}"),
                why,
                cure: None,
            }),
        };
        Some(Need { id: "fact", name: format!("the fact {fact}"), found })
    };
    let declared = spec.device.iter().filter(|fact| !device::is_implied(spec, fact));
    declared.filter_map(of).collect()
}
