//! Turns a task into a program to run: smelt itself for its own kinds, any program for `command`.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use smelt_cuda::{CudaTarget, driver, nvrtc};
use smelt_engine::onnxruntime;
use smelt_exec::{ProcessSpec, Task};
use smelt_hub::Settings;
use smelt_plan::kind::engine_build::GraphBackend;
use smelt_plan::kind::verify::RUNTIME;
use smelt_plan::kind::{BACKEND, NEEDS_CAPABILITIES, SECRETS, TOOL, WRITES};
use smelt_plan::tokens::Lease;
use smelt_plan::validity::Validity;
use smelt_store::{FILES_MAX, Store};

use super::request::{Fetch, Request, named};
use super::{Worker, strict, worker};
use crate::tools;

/// The program of a stage of the pipeline in `folder`, whose inputs are in `store`.
pub(crate) fn order(task: &Task<'_>, folder: &Path, store: &Store) -> ProcessSpec {
    match worker(task.stage.kind) {
        Some(worker) => native(task, worker, store),
        None => command(task, folder),
    }
}

fn native(task: &Task<'_>, worker: &Worker, store: &Store) -> ProcessSpec {
    let request = Request {
        kind: task.stage.kind,
        params: task.attempt.params.clone(),
        inputs: named(task.inputs.iter().map(|input| (input.field, input.path.as_path()))),
        hashed: task.inputs.iter().flat_map(|input| store.hashed_files(&input.path)).collect(),
        out: task.out.to_owned(),
        fetch: task.stage.fetched().map(|pin| Fetch {
            repo: pin.repo.clone(),
            revision: pin.revision.clone(),
            commit: pin.commit.clone(),
            file: pin.file.clone(),
        }),
        kept: task.kept.map(Path::to_owned),
    };
    let runtime = worker.executes_graphs.then(onnxruntime).flatten();
    let compilers = worker.compiles_kernels.then(compilers).flatten();
    let tensorrt = worker.asks_tensorrt.then(|| tensorrt(task)).into_iter().flatten();
    let libraries = runtime.into_iter().chain(compilers).chain(driver()).chain(tensorrt);
    let libraries = libraries.chain(answering(task));
    let (fetching, mut writes) = if request.fetch.is_some() { hub() } else { Default::default() };
    writes.extend(request.kept.clone());
    ProcessSpec {
        argv: ["/proc/self/exe", "stage", "work", task.stage.name.as_str()]
            .map(str::to_owned)
            .into(),
        env: task.leases.iter().flat_map(lease).chain(fetching).chain(libraries).collect(),
        dir: task.out.to_owned(),
        input: serde_json::to_string(&request).expect("a request holds only plain data"),
        listed: None,
        outputs: Vec::new(),
        validate: Vec::new(),
        writes,
        capabilities: Vec::new(),
        strict: None,
        secrets: Vec::new(),
    }
}

/// Where the worker finds ONNX Runtime, since it has none of our environment to search by.  A name
/// that is wrong it finds wrong too, and says so where it needs the library.
fn onnxruntime() -> Option<(String, String)> {
    let named = env::var_os(onnxruntime::VARIABLE).filter(|name| !name.is_empty());
    let path = named.or_else(|| Some(onnxruntime::find().ok()?.into_os_string()))?;
    let path = std::path::absolute(&path).ok()?.into_os_string();
    Some((onnxruntime::VARIABLE.to_owned(), path.into_string().ok()?))
}

/// Where the worker finds the compilers of kernels, in the same way.
fn compilers() -> Option<(String, String)> {
    let found = || {
        let all: BTreeSet<PathBuf> =
            CudaTarget::ALL.into_iter().filter_map(|target| nvrtc::find(target).ok()).collect();
        (!all.is_empty()).then(|| env::join_paths(all).ok()).flatten()
    };
    let named = env::var_os(nvrtc::VARIABLE).filter(|name| !name.is_empty());
    let paths = named.or_else(found)?;
    let absolute = env::split_paths(&paths).map(|path| std::path::absolute(&path).unwrap_or(path));
    let paths = env::join_paths(absolute).ok()?;
    Some((nvrtc::VARIABLE.to_owned(), paths.into_string().ok()?))
}

/// Where the worker finds TensorRT, its program and compilers of C++ for the one that loads it.
fn tensorrt(task: &Task<'_>) -> impl Iterator<Item = (String, String)> + use<> {
    let found = smelt_tensorrt::find(&|name| env::var_os(name)).ok();
    let folder = found.and_then(|found| Some(found.core.parent()?.to_str()?.to_owned()));
    // A name that is wrong the worker finds wrong too, and says so.
    let named = env::var(smelt_tensorrt::VARIABLE).ok().filter(|name| !name.is_empty());
    let folder = folder.or(named).map(|folder| (smelt_tensorrt::VARIABLE.to_owned(), folder));
    // Its program finds the libraries that count as parts of it by the same variable; of others none is in a key.
    let by_program = task.attempt.params.get(BACKEND).and_then(Value::as_str)
        == Some(GraphBackend::TensorRt.word());
    let names = ["PATH"].into_iter().chain(by_program.then_some("LD_LIBRARY_PATH"));
    let ours = |name: &str| Some((name.to_owned(), env::var(name).ok()?));
    folder.into_iter().chain(names.filter_map(ours))
}

/// What another program is found by, and finds its libraries and models by, where a stage starts one that answers.
fn answering(task: &Task<'_>) -> impl Iterator<Item = (String, String)> + use<> {
    const NAMES: [&str; 3] = ["PATH", "LD_LIBRARY_PATH", "HOME"];
    let is_started = ["server", RUNTIME].iter().any(|name| task.attempt.params.contains_key(*name));
    let names = NAMES.into_iter().filter(move |_| is_started);
    names.filter_map(|name| Some((name.to_owned(), env::var(name).ok()?)))
}

/// Where the driver of GPUs is, if somebody named it; else its usual folders are asked.
fn driver() -> Option<(String, String)> {
    let named = env::var_os(driver::VARIABLE).filter(|name| !name.is_empty())?;
    let path = std::path::absolute(&named).ok()?.into_os_string();
    Some((driver::VARIABLE.to_owned(), path.into_string().ok()?))
}

/// How the worker finds the hub, its cache and the token, and where it writes: what it fetches goes
/// to the cache.  Settings that cannot be read were refused when the run planned.
fn hub() -> (Vec<(String, String)>, Vec<PathBuf>) {
    let Ok(settings) = Settings::from_env() else { return Default::default() };
    let text = |(name, value): (&str, OsString)| Some((name.to_owned(), value.into_string().ok()?));
    let variables = settings.variables(|name| env::var_os(name));
    // What is in its way the worker finds again, and says.
    let _ = fs::create_dir_all(settings.cache());
    (variables.into_iter().filter_map(text).collect(), vec![settings.cache().to_owned()])
}

/// A place that a program may write to, as the pipeline names it.
pub(crate) fn place(text: &str, folder: &Path) -> PathBuf {
    let home = || Some(PathBuf::from(env::var_os("HOME")?));
    let path = match text.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => {
            home().map(|home| home.join(rest.trim_start_matches('/')))
        }
        _ => None,
    };
    let path = path.unwrap_or_else(|| folder.join(text));
    std::path::absolute(&path).unwrap_or(path)
}

fn command(task: &Task<'_>, folder: &Path) -> ProcessSpec {
    let texts = |name: &str| -> Vec<String> {
        let list = task.attempt.params.get(name).and_then(Value::as_array);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        list.map(|list| list.iter().map(text).collect()).unwrap_or_default()
    };
    // What a program of ours cannot do without; the rest of the environment is the stage's.
    let inherited = [("PATH", tools::path_for(&texts(TOOL))), ("HOME", env::var("HOME").ok())];
    let given = |(name, value): (&str, Option<String>)| Some((name.to_owned(), value?));
    let mut env: Vec<(String, String)> = inherited.into_iter().filter_map(given).collect();
    if let Some(table) = task.attempt.params.get("env").and_then(Value::as_object) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        env.extend(table.iter().map(|(name, value)| (name.clone(), text(value))));
    }
    env.extend(inputs(task));
    let secrets = texts(SECRETS);
    env.extend(secrets.iter().filter_map(|name| Some((name.clone(), env::var(name).ok()?))));
    env.extend(task.leases.iter().flat_map(lease));
    let mut argv = texts("argv");
    // A program beside the pipeline; nothing lies in a stage's own directory yet.
    if let Some(program) = argv.first_mut().filter(|program| program.contains('/')) {
        let path = folder.join(&*program);
        let path = std::path::absolute(&path).unwrap_or(path);
        *program = path.into_os_string().into_string().unwrap_or_else(|_| program.clone());
    }
    ProcessSpec {
        argv,
        env,
        dir: task.out.to_owned(),
        input: String::new(),
        listed: Some(paths(task)),
        outputs: texts("outputs"),
        validate: Validity::of(&task.attempt.params),
        writes: texts(WRITES).iter().map(|text| place(text, folder)).collect(),
        capabilities: texts(NEEDS_CAPABILITIES),
        strict: strict::of(task),
        secrets,
    }
}

/// `SMELT_<RESOURCE>` is what the stage holds: the ids of devices, else the amount.  CUDA's own
/// variable hides the GPUs that are lent to others.
fn lease(lease: &Lease) -> Vec<(String, String)> {
    let held = match lease.ids.as_slice() {
        [] => lease.amount.to_string(),
        ids => ids.join(","),
    };
    let name = format!("SMELT_{}", lease.resource.to_ascii_uppercase().replace('-', "_"));
    let cuda = (lease.resource == "gpu" && !lease.ids.is_empty())
        .then(|| ("CUDA_VISIBLE_DEVICES".to_owned(), held.clone()));
    [(name, held)].into_iter().chain(cuda).collect()
}

/// What stands for a list that cannot be read by its blanks: no file can lie there, so whoever opens it
/// is told.
const REFUSED: &str = "/dev/null/a-path-of-SMELT_INPUTS-holds-a-blank,read-SMELT_INPUTS_FILE";

/// `SMELT_IN_<NAME>` for each stage, `SMELT_INPUTS` for all in order, and the most files of an output.
fn inputs(task: &Task<'_>) -> Vec<(String, String)> {
    let path = |input: &smelt_exec::Input<'_>| input.path.to_string_lossy().into_owned();
    let named = task
        .inputs
        .iter()
        .filter_map(|input| Some((format!("SMELT_IN_{}", input.name?.as_variable()), path(input))));
    let all = paths(task);
    let all = match all.iter().any(|path| path.contains(char::is_whitespace)) {
        true => REFUSED.to_owned(),
        false => all.join(" "),
    };
    let files_max = FILES_MAX.to_string();
    named
        .chain([("SMELT_INPUTS".to_owned(), all), ("SMELT_FILES_MAX".to_owned(), files_max)])
        .collect()
}

/// The inputs in order.
fn paths(task: &Task<'_>) -> Vec<String> {
    task.inputs.iter().map(|input| input.path.to_string_lossy().into_owned()).collect()
}
