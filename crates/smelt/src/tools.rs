//! Finds the programs and scripts that `command` stages run, and the libraries by which others build, so that their
//! content enters the keys.
//!
//! What a stage names by path counts: its program, scripts among its arguments and inside of a shell's
//! line, what an interpreter is to read, and the program behind a script's `#!`.  What is found by `PATH` counts where `tool`
//! says so, and with either what `parts` knows of it.  Nothing is started: a program's version is its content.

pub(crate) mod parts;
mod shell;

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};

use serde_json::Value;
use smelt_plan::device::Facts;
use smelt_plan::explain::bounded;
use smelt_plan::kind::engine_build::GraphBackend;
use smelt_plan::kind::verify::RUNTIME;
use smelt_plan::kind::{BACKEND, TOOL, WRITES};
use smelt_plan::pipeline::StageSpec;
use smelt_plan::plan::{Pin, Stage, Tool};
use smelt_plan::{Kind, Pipeline, Plan, StageName};
use smelt_store::{Store, is_disk_failing};

use crate::exit::{Exit, Failed};
use crate::last_run::LastRun;
use crate::pins::{Absent, NoPin, WithUnread, absent_or_failed, digest, real};
use crate::table::some;
use parts::{Parts, VendorTool};
use shell::Started;

/// The kernel reads no more of a script's first line.
const FIRST_LINE_BYTES_MAX: u64 = 256;
/// A line of a shell names no more programs by path than this, or it is no line that a person wrote.
const WORDS_MAX: usize = 256;
/// Programs named in the line of `plan`.
const NAMED_MAX: usize = 5;
/// What the kernel shows as files is no program.
const NOT_FILES: [&str; 3] = ["/dev", "/proc", "/sys"];

/// The tools of every stage that has any and is built on this `device`, and why stages have one that a failing disk does not
/// give; `folder` is where the pipeline lies.  A stage whose tools are not here is put into `absent`, if there is such a list.
///
/// # Errors
/// A tool that is declared and not there, or one that cannot be read for another reason.
pub(crate) fn all(
    pipeline: &Pipeline,
    device: &Facts,
    folder: &Path,
    store: &Store,
    mut absent: Option<&mut Absent>,
) -> Result<WithUnread<StageName, Vec<Tool>>, Failed> {
    let (mut all, mut unread) = (BTreeMap::new(), BTreeMap::new());
    let beside = Beside::of(folder);
    // What builds a stage elsewhere has its own.
    for spec in pipeline.stages.iter().filter(|spec| !spec.is_elsewhere(device)) {
        let (found, why) = match of_stage(spec, &beside, store, &pipeline.file) {
            Ok(found) => found,
            Err(failed) => {
                absent_or_failed(absent.as_deref_mut(), [&spec.name], failed)?;
                continue;
            }
        };
        unread.extend(why.map(|why| (spec.name.clone(), why)));
        if !found.is_empty() {
            all.insert(spec.name.clone(), found);
        }
    }
    Ok((all, unread))
}

/// The tools of one stage, and why one of them is not given by a failing disk.
fn of_stage(
    spec: &StageSpec,
    beside: &Beside<'_>,
    store: &Store,
    file: &str,
) -> Result<(Vec<Tool>, Option<String>), Failed> {
    let named = match spec.kind {
        Kind::Command => named(spec, beside, store.root(), file)?,
        Kind::EngineBuild => builders(spec, file)?,
        Kind::Verify => runtime(spec, beside, file)?,
        _ => Vec::new(),
    };
    let (mut found, mut unread): (Vec<Tool>, _) = (Vec::new(), None);
    for (name, path) in named {
        if found.iter().any(|tool| tool.name == name) {
            continue;
        }
        let say = |why: String| format!("{file}: stage \"{}\": the tool {name}: {why}", spec.name);
        let pin =
            real(&path, say).and_then(|path| Ok(Pin { digest: digest(store, &path, say)?, path }));
        let pin = match pin {
            Ok(pin) => pin,
            Err(NoPin::Refused(failed)) => return Err(failed),
            Err(NoPin::Unread(why)) => {
                unread = Some(why);
                Pin::unread(path)
            }
        };
        found.push(Tool { name, pin });
    }
    Ok((found, unread))
}

/// A tool's name in the key, and its file.
type Named = (String, PathBuf);

/// Where the pipeline lies.
struct Beside<'a> {
    folder: &'a Path,
    /// By where its links lead; `None` where there is no such folder.
    real: Option<PathBuf>,
}

impl<'a> Beside<'a> {
    fn of(folder: &'a Path) -> Self {
        let here = if folder == Path::new("") { Path::new(".") } else { folder };
        Self { folder, real: fs::canonicalize(here).ok() }
    }

    fn holds(&self, path: &Path) -> bool {
        self.real.as_ref().is_some_and(|folder| path.starts_with(folder))
    }
}

/// What a stage names by path or declares, each with what interprets it.
fn named(
    spec: &StageSpec,
    beside: &Beside<'_>,
    store: &Path,
    file: &str,
) -> Result<Vec<Named>, Failed> {
    let folder = beside.folder;
    let argv = texts(&spec.params, "argv");
    let mut found = Vec::new();
    if let Some(program) = argv.first().filter(|program| program.contains('/')) {
        found.push(((*program).to_owned(), folder.join(program)));
    }
    let own = texts(&spec.params, WRITES);
    let own: Vec<PathBuf> = own.into_iter().map(|place| plain(&folder.join(place))).collect();
    let is_fit = |path: &Path| {
        let not_files = NOT_FILES.iter().any(|place| path.starts_with(place));
        !not_files && !path.starts_with(store) && !own.iter().any(|place| path.starts_with(place))
    };
    for word in argv.iter().skip(1) {
        let path = Path::new(word);
        let is_beside = beside.holds(path);
        let all = paths_in(word).filter(|path| is_program(path));
        let all = all.chain((is_beside && is_file(path)).then_some(path));
        let all = all.filter(|path| is_fit(path));
        found.extend(all.map(|path| (path.to_string_lossy().into_owned(), path.to_owned())));
    }
    let with_blanks = shell::words_with_blanks(&argv).into_iter();
    let with_blanks = with_blanks.map(|word| (word.clone(), PathBuf::from(word)));
    found.extend(with_blanks.filter(|(_, path)| is_program(path) && is_fit(path)));
    let home = home(&spec.params);
    let started = shell::started(&argv, &where_started(store), home.as_deref());
    let started = started.into_iter().filter_map(|found| match found {
        Started::File(name, path) => Some((name, path)),
        Started::Unknown(_) => None,
    });
    found.extend(started.filter(|(_, path)| is_file(path) && is_fit(path)));
    for name in texts(&spec.params, TOOL) {
        let missing = || missing(file, &spec.name, name);
        let path = on_path(name, folder).or_else(|| at_vendor(name));
        found.push((name.to_owned(), path.ok_or_else(missing)?));
    }
    found.extend(parts_of(spec, &found));
    let interpreters: Vec<Named> = found.iter().filter_map(interpreter).collect();
    found.extend(interpreters);
    Ok(found)
}

/// What runs the engine that a stage asks, where that is another program, and files that it is told by their whole path, as a
/// script is.
fn runtime(spec: &StageSpec, beside: &Beside<'_>, file: &str) -> Result<Vec<Named>, Failed> {
    let words = texts(&spec.params, RUNTIME);
    let Some((&name, arguments)) = words.split_first() else { return Ok(Vec::new()) };
    if name.contains('/') && !Path::new(name).is_absolute() {
        let stage = &spec.name;
        let what = format!(
            "{file}: stage \"{stage}\": \"runtime\" starts {name}: write where it lies, from / on"
        );
        return Err(Failed::new(Exit::BadPipeline, what));
    }
    let missing = || missing(file, &spec.name, name);
    let program = on_path(name, beside.folder).ok_or_else(missing)?;
    let libraries = env::var("LD_LIBRARY_PATH").ok();
    let parts = Parts::of(&program, libraries.as_deref()).files.into_iter();
    let parts = parts.map(|(part, file)| (format!("{name}: {part}"), file));
    let is_script = |path: &&Path| path.is_absolute() && is_file(path);
    let scripts = arguments.iter().map(Path::new).filter(is_script);
    let scripts = scripts.map(|path| (path.to_string_lossy().into_owned(), path.to_owned()));
    let program = [(name.to_owned(), program)].into_iter();
    let mut found: Vec<Named> = program.chain(parts).chain(scripts).collect();
    let interpreters: Vec<Named> = found.iter().filter_map(interpreter).collect();
    found.extend(interpreters);
    Ok(found)
}

/// What builds a stage's engine, where that is a vendor's.
fn builders(spec: &StageSpec, file: &str) -> Result<Vec<Named>, Failed> {
    let backend = spec.params.get(BACKEND).and_then(Value::as_str);
    let is_by = |of: GraphBackend| backend == Some(of.word());
    let named = |name: &str, path| (name.to_owned(), path);
    if is_by(GraphBackend::TensorRt) {
        let program = builder().ok_or_else(|| missing(file, &spec.name, BUILDER))?;
        let libraries = env::var("LD_LIBRARY_PATH").ok();
        let parts = Parts::of(&program, libraries.as_deref()).files.into_iter();
        let parts = parts.map(|(part, file)| (format!("{BUILDER}: {part}"), file));
        return Ok([named(BUILDER, program)].into_iter().chain(parts).collect());
    }
    if !is_by(GraphBackend::TensorRtRtx) {
        return Ok(Vec::new());
    }
    let found = smelt_tensorrt::find(&|name| env::var_os(name)).map_err(|error| {
        Failed::new(Exit::DoesNotFit, format!("{file}: stage \"{}\": {error}", spec.name))
    })?;
    Ok(vec![
        named("libtensorrt_rtx.so", found.core),
        named("libtensorrt_onnxparser_rtx.so", found.parser),
    ])
}

/// TensorRT's program.
pub(crate) const BUILDER: &str = "trtexec";

/// The program that builds engines of `backend = "tensorrt"`: by our `PATH`, or where NVIDIA's packages put it.
pub(crate) fn builder() -> Option<PathBuf> {
    on_path(BUILDER, Path::new("/")).or_else(|| at_vendor(BUILDER))
}

/// A tool that is declared and not here.
fn missing(file: &str, stage: &StageName, name: &str) -> Failed {
    let cure = VendorTool::of(name).map_or_else(
        || "install it, or write where it lies".to_owned(),
        |tool| format!("it comes by: {}", tool.cure),
    );
    let message = format!("{file}: stage \"{stage}\": there is no tool \"{name}\" here; {cure}");
    Failed::new(Exit::DoesNotFit, message)
}

/// What counts of a stage's program and tools besides themselves.
fn parts_of(spec: &StageSpec, found: &[Named]) -> Vec<Named> {
    let declared = texts(&spec.params, TOOL);
    let program = texts(&spec.params, "argv").into_iter().next();
    let is_tool = |name: &str| program == Some(name) || declared.contains(&name);
    let of = |(name, path): &Named| {
        let parts = Parts::of(path, libraries(&spec.params)).files.into_iter();
        let named = |(part, file)| (format!("{name}: {part}"), file);
        parts.map(named).collect::<Vec<_>>()
    };
    found.iter().filter(|(name, _)| is_tool(name)).flat_map(of).collect()
}

/// Where a stage's programs look for libraries.
pub(crate) fn libraries(params: &BTreeMap<String, Value>) -> Option<&str> {
    params.get("env")?.get("LD_LIBRARY_PATH")?.as_str()
}

/// A folder as deep as those in which stages are started.  What lies there is a stage's own; a path may lead out of it.
fn where_started(store: &Path) -> PathBuf {
    store.join("work/run/stage")
}

/// Where `~` leads in a stage: its own `HOME`, or ours, which it has.
fn home(params: &BTreeMap<String, Value>) -> Option<PathBuf> {
    let own = params.get("env").and_then(|table| table.get("HOME")).and_then(Value::as_str);
    let home = own.map(str::to_owned).or_else(|| env::var("HOME").ok())?;
    Some(PathBuf::from(home)).filter(|home| home.is_absolute())
}

/// What a script's first line says that it is to be run by.
fn interpreter((name, script): &Named) -> Option<Named> {
    let mut line = Vec::new();
    File::open(script).ok()?.take(FIRST_LINE_BYTES_MAX).read_to_end(&mut line).ok()?;
    let line = line.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    let mut words = line.split_whitespace();
    let first = words.next()?;
    let by_name = words.find(|word| !word.starts_with('-') && !word.contains('='));
    let program = match Path::new(first).file_name() {
        Some(env) if env == "env" => on_path(by_name?, Path::new("/"))?,
        _ => PathBuf::from(first),
    };
    is_file(&program).then(|| (format!("{name} #!"), program))
}

/// The absolute paths in a word, which may be a shell's line.
fn paths_in(word: &str) -> impl Iterator<Item = &Path> {
    let ends = |c: char| c.is_whitespace() || "'\"`;|&()<>={}$,:".contains(c);
    word.split(ends)
        .filter(|part| part.len() > 1 && part.starts_with('/'))
        .take(WORDS_MAX)
        .map(Path::new)
}

/// Whether a file may be executed, or says what executes it.
fn is_program(path: &Path) -> bool {
    let is_script = || {
        let mut begin = [0; 2];
        let read = File::open(path).and_then(|mut file| file.read_exact(&mut begin));
        is_so(read.map(|()| begin == *b"#!"))
    };
    let of =
        |meta: Metadata| meta.is_file() && (meta.permissions().mode() & 0o111 != 0 || is_script());
    is_so(path.metadata().map(of))
}

fn is_file(path: &Path) -> bool {
    is_so(path.metadata().map(|meta| meta.is_file()))
}

/// What was found; a file that a failing disk does not show counts, so that its stage is told why it cannot run.
fn is_so(found: io::Result<bool>) -> bool {
    found.unwrap_or_else(|error| is_disk_failing(&error))
}

/// The file of a tool where its vendor puts it.
pub(crate) fn at_vendor(name: &str) -> Option<PathBuf> {
    let file = VendorTool::of(name)?.folder()?.join(name);
    is_program(&file).then_some(file)
}

/// A stage's `PATH`: ours, and behind it where vendors put the tools that it declares.
pub(crate) fn path_for(tools: &[String]) -> Option<String> {
    let path = env::var("PATH").ok()?;
    let folder = |name: &String| Some(at_vendor(name)?.parent()?.to_str()?.to_owned());
    let folders: BTreeSet<String> = tools.iter().filter_map(folder).collect();
    Some([path].into_iter().chain(folders).collect::<Vec<_>>().join(":"))
}

/// The file of a program: beside the pipeline where it is a path, else by our own `PATH`, which stages have.
pub(crate) fn on_path(name: &str, folder: &Path) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(folder.join(name)).filter(|path| is_file(path));
    }
    let path = env::var_os("PATH")?;
    let files = env::split_paths(&path).filter(|dir| dir.is_absolute()).map(|dir| dir.join(name));
    files.into_iter().find(|file| is_program(file))
}

/// Without `.` and `..`, as far as the text says.
fn plain(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            part => plain.push(part),
        }
    }
    plain
}

/// The texts of a list among a stage's params.
pub(crate) fn texts<'a>(params: &'a BTreeMap<String, Value>, name: &str) -> Vec<&'a str> {
    let list = params.get(name).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Stages that run what they ran before, of which more counts now, a line; `None` where there are none.  The run that follows
/// knows better.
pub(crate) fn count_now(plan: &Plan, last: &LastRun) -> Option<String> {
    let new = |(_, stage)| Some((stage, new_tool(stage, last)?));
    let mut new = plan.stages().filter_map(new);
    let (first, Tool { name: tool, .. }) = new.next()?;
    let rest = match new.count() {
        0 => String::new(),
        rest => format!(" and {rest} more"),
    };
    Some(format!(
        "stage {}{rest}: the content of what it runs counts now ({tool}), so its key is another one",
        first.name
    ))
}

/// A tool that was in no key when the stage ran with these arguments last.
fn new_tool<'a>(stage: &'a Stage, last: &LastRun) -> Option<&'a Tool> {
    let before = &last.of(stage.name.as_str())?.fields;
    let then = before.iter().filter(|(name, _)| name.starts_with("param argv["));
    let now = texts(&stage.params, "argv").into_iter().map(|word| bounded(&format!("\"{word}\"")));
    if !then.map(|(_, value)| value.clone()).eq(now) {
        return None;
    }
    let counted = |tool: &Tool| {
        let field = format!("tool {}", tool.name);
        before.iter().any(|(name, _)| *name == field)
    };
    stage.tools.iter().find(|tool| !counted(tool))
}

/// Whether a stage has tools, or would have them if there were other files.
pub(crate) fn may_have(stage: &Stage) -> bool {
    let leads_out = |word: &str| word.contains("../") || word.contains("~/");
    let names_path =
        |word: &&str| word.contains('/') && (paths_in(word).next().is_some() || leads_out(word));
    !stage.tools.is_empty()
        || stage.kind == Kind::Command
            && (stage.params.contains_key(TOOL)
                || texts(&stage.params, "argv").iter().any(names_path))
}

/// Programs that are in no key, a line; `None` where there are none.
pub(crate) fn not_in_keys(plan: &Plan) -> Option<String> {
    let all: BTreeSet<&str> = commands(plan).filter_map(by_name).collect();
    let first = all.first()?;
    let named = some(&all, NAMED_MAX);
    Some(format!(
        "in no key, so results stay when they change: {named} (tool = [\"{first}\"] makes it count)"
    ))
}

/// What stages start that only they know, a line; `None` where there is none.
pub(crate) fn unknown(plan: &Plan) -> Option<String> {
    let folder = where_started(Path::new("/"));
    let of = |stage: &Stage| {
        let argv = texts(&stage.params, "argv");
        let started = shell::started(&argv, &folder, home(&stage.params).as_deref());
        started.into_iter().filter_map(|found| match found {
            Started::File(..) => None,
            Started::Unknown(what) => Some(what),
        })
    };
    let all: BTreeSet<String> = commands(plan).flat_map(of).collect();
    let named = some(&all, NAMED_MAX);
    (!all.is_empty()).then(|| {
        format!(
            "what these start cannot be told beforehand, so results stay when it changes: {named} \
             (files that they read count as inputs = [\"path:…\"])"
        )
    })
}

fn commands(plan: &Plan) -> impl Iterator<Item = &Stage> {
    plan.stages().map(|(_, stage)| stage).filter(|stage| stage.kind == Kind::Command)
}

/// The program of a stage that is found by `PATH` and not declared.
fn by_name(stage: &Stage) -> Option<&str> {
    let program = *texts(&stage.params, "argv").first()?;
    let is_declared = texts(&stage.params, TOOL).contains(&program);
    (!program.contains('/') && !is_declared).then_some(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found_in_a_shell_s_line() {
        let check = |line: &str, expect: &[&str]| {
            let found: Vec<_> = paths_in(line).map(|path| path.to_str().unwrap()).collect();
            assert_eq!(found, expect, "{line}");
        };
        check("/a/tool.sh", &["/a/tool.sh"]);
        check(
            "set -e; X=/a/b '/c d' \"/e\">/f|/g --to=/h",
            &["/a/b", "/c", "/e", "/f", "/g", "/h"],
        );
        check("cat a/b / $HOME/x ../y", &[]);
    }

    #[test]
    fn what_interprets_a_script_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("s");
        let check = |line: &str, expect: Option<&str>| {
            fs::write(&script, line).unwrap();
            let found = interpreter(&("s".to_owned(), script.clone()));
            assert_eq!(
                found.as_ref().map(|(_, path)| path.file_name().unwrap().to_str().unwrap()),
                expect
            );
        };
        check("#!/bin/sh -e\n", Some("sh"));
        check("#! /usr/bin/env -S X=1 sh\n", Some("sh"));
        check("#!/usr/bin/env\n", None);
        check("#!/nowhere/at/all\n", None);
        check("echo x\n", None);
        check("", None);
    }
}
