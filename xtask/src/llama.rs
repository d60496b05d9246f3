//! Holds text models to llama.cpp, compiled here: the tokens of ten thousand lines, and a Q4_K_M file of its own
//! quantiser.
//!
//! Vocabularies come with llama.cpp's sources, the model is the one of `pipelines/smollm2.toml`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::bench::{remove, succeed};
use crate::ci::cargo;
use crate::tidy::build_smelt;
use crate::{debian, python, root, target};

/// What llama.cpp is compiled with: for this very processor, without its part for pictures, and by clang: what
/// GCC 12 makes of its tiles of matrices (AMX) faults at the first `ldtilecfg`.
const BUILD: [(&str, &str); 3] =
    [("CMAKE_ARGS", "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF"), ("CC", "clang"), ("CXX", "clang++")];

/// The release whose sources have the vocabularies; `xtask/cpu/requirements-llama.txt` names the same.
const PACKAGE: &str = "llama-cpp-python";
const VERSION: &str = "0.3.36";

/// Names where the test of tokens finds what llama.cpp made.
const WORDS: &str = "SMELT_WORDS";

const PIPELINE: &str = "pipelines/smollm2.toml";
const GGUF: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// Tokens of an answer.
const ANSWER: &str = "24";

/// Answers are compared where llama.cpp found every token this much likelier than the next: below, the ways in
/// which the two round activations decide.
const LEAST: f64 = 0.25;

/// The largest engine, as a part of its file.
const ENGINE_PART_MAX: f64 = 1.1;

/// What `chat` may hold beside the engine it maps: program, tokenizer, keys and values, activations.
const CHAT_BESIDE_KIB_MAX: u64 = 120 << 10;

pub(crate) fn run() -> Result<()> {
    println!("\n$ cargo xtask llama");
    let folder = target().join("llama");
    remove(&folder)?;
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    words(&folder)?;
    q4_k_m(&folder)?;
    remove(&folder)
}

/// The Python that has llama.cpp, compiled once; `bench cpu` measures the same.
pub(crate) fn python() -> Result<PathBuf> {
    let requirements = root().join("xtask/cpu/requirements-llama.txt");
    debian::need("clang", || debian::runs("clang++", "--version"))?;
    debian::need("libomp-dev", || {
        debian::runs("clang", "-fopenmp -include omp.h -x c -fsyntax-only /dev/null")
    })?;
    python::environment_built("llama", &requirements, &BUILD)
}

/// The tokens of ten thousand lines.
fn words(folder: &Path) -> Result<()> {
    let python = python()?;
    let sources = folder.join("sources");
    let mut fetch = Command::new(&python);
    fetch.args(["-m", "pip", "download", "--quiet", "--no-deps", "--dest"]).arg(&sources);
    succeed(fetch.args(["--no-binary", PACKAGE, &format!("{PACKAGE}=={VERSION}")]))?;
    let archive = fs::read_dir(&sources)?.next().context("pip downloaded nothing")??.path();
    let words = folder.join("words");
    fs::create_dir_all(&words)?;
    succeed(Command::new(&python).arg(script("words.py")).arg(archive).arg(&words))?;
    let tests = "smelt-runtime-integration";
    let test =
        ["test", "--workspace", "--locked", "--test", tests, "gguf_words::", "--", "--ignored"];
    cargo(&test, &[(WORDS, words.to_str().context("a path of UTF-8")?)])
}

/// A Q4_K_M file: built, and asked what llama.cpp was asked.
fn q4_k_m(folder: &Path) -> Result<()> {
    let smelt = build_smelt()?;
    let cache = folder.join("cache");
    let ask = |arguments: &[&str]| said(Command::new(&smelt).args(arguments), &cache);
    let pipeline = root().join(PIPELINE).display().to_string();
    ask(&["run", &pipeline, "--only", "checkpoint"])?;
    let from = Path::new(ask(&["out", &pipeline, "checkpoint"])?.trim()).join(GGUF);
    let to = folder.join("Q4_K_M.gguf");
    let prompts = root().join("tests/data/golden/smollm2/answers.json");
    let mut theirs = Command::new(python()?);
    theirs.arg(script("k_m.py")).args([&from, &to, &prompts]).arg(ANSWER);
    let theirs: Value = serde_json::from_str(&said(&mut theirs, &cache)?)?;
    println!("llama: a Q4_K_M file of {}", theirs["types"]);
    ensure!(theirs["types"]["Q4_K"].as_u64() > Some(0), "it has no Q4_K");

    let own = folder.join("q4_k_m.toml");
    fs::write(&own, on_path(&fs::read_to_string(&pipeline)?, &to)?)?;
    let own = own.display().to_string();
    ask(&["run", &own])?;
    let engine = PathBuf::from(ask(&["out", &own, "llm-engine"])?.trim());
    let (engine, file) = (bytes_below(&engine)?, fs::metadata(&to)?.len());
    let part = engine as f64 / file as f64;
    println!("llama: the engine has {part:.3} of the file's {file} bytes");
    ensure!(part <= ENGINE_PART_MAX, "the engine is larger than {ENGINE_PART_MAX} of its file");
    let asked: Vec<Value> = serde_json::from_str(&fs::read_to_string(prompts)?)?;
    let answers = theirs["answers"].as_array().context("answers")?;
    let mut compared = 0;
    for (asked, answer) in asked.iter().zip(answers) {
        let question = asked["question"].as_str().context("question")?;
        let (expect, least) = (answer["text"].as_str(), answer["least"].as_f64());
        let found = ask(&["chat", &own, "--max-tokens", ANSWER, question])?;
        let is_same = expect.is_some_and(|expect| expect.trim() == found.trim());
        println!("llama: {question:?}: {:?}, least {least:?}, same: {is_same}", found.trim());
        if least >= Some(LEAST) {
            ensure!(is_same, "{question:?}: llama.cpp says {expect:?}, smelt {found:?}");
            compared += 1;
        }
    }
    ensure!(compared > 0, "every answer was a close call");
    resident(&smelt, &own, &cache, engine)
}

/// Holds what `chat` has resident to the engine that it maps.
fn resident(smelt: &Path, pipeline: &str, cache: &Path, engine: u64) -> Result<()> {
    let mut chat = Command::new("/usr/bin/env");
    let line = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=2); \
                print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)";
    chat.args(["python3", "-c", line]).arg(smelt).args(["chat", pipeline, "Say hello."]);
    let peak: u64 = said(&mut chat, cache)?.trim().parse().context("a peak in KiB")?;
    println!("llama: chat holds {} MiB at most, {} of them the engine", peak >> 10, engine >> 20);
    let most = engine / 1024 + CHAT_BESIDE_KIB_MAX;
    ensure!(peak <= most, "chat holds {peak} KiB, more than {most}");
    Ok(())
}

/// The pipeline with a path in the place of what it fetches.
fn on_path(pipeline: &str, gguf: &Path) -> Result<String> {
    let (before, rest) = pipeline.split_once("[stage.checkpoint]").context("a checkpoint")?;
    let (_, after) = rest.split_once("[stage.llm-engine]").context("an engine")?;
    let from = gguf.display();
    Ok(format!(
        "{before}[stage.checkpoint]\nkind = \"source\"\nfrom = \"path:{from}\"\n[stage.llm-engine]{after}"
    ))
}

fn script(name: &str) -> PathBuf {
    root().join("xtask/llama").join(name)
}

/// What `command` says.
fn said(command: &mut Command, cache: &Path) -> Result<String> {
    let output = command.env("SMELT_CACHE", cache).output().context("cannot start a program")?;
    if !output.status.success() {
        let told = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?} ended with {}\n{}", output.status, told.trim_end());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Bytes of the files in `folder`.
fn bytes_below(folder: &Path) -> Result<u64> {
    let sizes = fs::read_dir(folder)?.map(|entry| Ok(entry?.metadata()?.len()));
    sizes.sum()
}
