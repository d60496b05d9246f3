//! What first users get wrong: for each mistake the exit code and the words that they get, and what these advise, which
//! works.

use std::fs;
use std::process::Command;
use std::sync::LazyLock;

use crate::hub::{HubWorld, Mood};
use crate::rerank::RANKS;
use crate::world::server::BUILT;
use crate::world::{Ended, World, copy, data, ended, random, text_world};

const DEMO: &str = include_str!("../../../pipelines/demo.toml");
/// It stands for a picture in what is typed.
const PICTURE: &str = "PICTURE";

/// What is around who makes a mistake.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Around {
    /// An empty folder.
    Nothing,
    /// A pipeline that was not run yet, and one with a slip in it.
    Pipeline,
    /// A model that sees, built: `shapes-vl`.
    Sees,
    /// A model of texts, built: `tiny`.
    Texts,
    /// A cross-encoder, built: `ranks`.
    Ranks,
    /// Checkpoints that lack something, each in its folder.
    Checkpoints,
    /// A hub in a mood.
    Hub(Mood),
}

struct Mistake {
    around: Around,
    typed: &'static [&'static str],
    code: i32,
    /// What the line says.
    words: &'static [&'static str],
    /// What it advises, if that can be done here.
    then: &'static [&'static str],
}

const fn mistake(
    around: Around,
    typed: &'static [&'static str],
    code: i32,
    words: &'static [&'static str],
    then: &'static [&'static str],
) -> Mistake {
    Mistake { around, typed, code, words, then }
}

use Around::{Checkpoints, Hub, Nothing, Pipeline, Ranks, Sees, Texts};

const MISTAKES: &[Mistake] = &[
    // The command line.
    mistake(Nothing, &["deom"], 2, &["demo"], &["demo"]),
    mistake(Nothing, &["chat"], 2, &["<TARGET>"], &["chat", "demo", "What?"]),
    mistake(Nothing, &["serve"], 2, &["<TARGET>"], &[]),
    mistake(Nothing, &["--image", "x.png", "What?"], 2, &["--image"], &[]),
    mistake(Nothing, &["chat", "demo", "--max-tokens", "0", "Hi"], 2, &["at least 1"], &[]),
    mistake(
        Nothing,
        &["chat", "demo", "--kv", "q8_0", "Hi"],
        2,
        &["f32, f16 or int8"],
        &["chat", "demo", "--kv", "int8", "Hi"],
    ),
    mistake(Nothing, &["serve", "demo", "--addr", "8000"], 2, &["127.0.0.1:8000"], &[]),
    mistake(
        Nothing,
        &["chat", "What is this?", "demo"],
        2,
        &["the model is named first: smelt chat demo \"What is this?\""],
        &["chat", "demo", "What is this?"],
    ),
    mistake(
        Nothing,
        &["chat", "demo", PICTURE],
        2,
        &["is a picture and no question", "smelt chat demo --image"],
        &["chat", "demo", "--image", PICTURE, "What number is written?"],
    ),
    mistake(
        Nothing,
        &["demo", PICTURE],
        2,
        &["is a picture and no question", "smelt demo --image"],
        &["demo", "--image", PICTURE],
    ),
    mistake(Nothing, &["demo", "--image", "absent.png"], 4, &["absent.png"], &["demo"]),
    mistake(
        Nothing,
        &["embed", "demo", "a"],
        4,
        &["demo answers about pictures and texts; ask it with: smelt chat demo"],
        &["chat", "demo", "a"],
    ),
    // Names.
    mistake(Nothing, &["chat", "smolm2", "Hi"], 2, &["there is smollm2"], &["fit", "smollm2"]),
    mistake(Nothing, &["fit", "intrnvl3-1b"], 2, &["there is internvl3-1b"], &[]),
    mistake(
        Nothing,
        &["chat", "llama3.2:3b", "Hi"],
        2,
        &["no model is called \"llama3.2:3b\"", "hf:ORG/NAME"],
        &[],
    ),
    mistake(Nothing, &["fit", "hf:tiny-model"], 2, &["write ORG/NAME"], &[]),
    mistake(Nothing, &["build", "./absent"], 2, &["./absent is not there"], &[]),
    mistake(Nothing, &["chat", "absent.gguf", "Hi"], 2, &["absent.gguf is not there"], &[]),
    mistake(
        Nothing,
        &["build", "synthetic:internvl3-tny"],
        2,
        &["there is internvl3-tiny"],
        &["fit", "synthetic:internvl3-tiny"],
    ),
    mistake(Nothing, &["run", "smollm2"], 3, &["smelt build smollm2"], &["init", "smollm2"]),
    mistake(
        Nothing,
        &["rm", "shapes"],
        1,
        &["no deployment is called shapes", "smelt ls"],
        &["ls"],
    ),
    // What does not fit.
    mistake(
        Nothing,
        &["build", "synthetic:internvl3-tiny", "--precision", "q4_k_m"],
        2,
        &["int8, int4, bf16"],
        &["build", "synthetic:internvl3-tiny", "--precision", "int8"],
    ),
    mistake(
        Nothing,
        &["init", "synthetic:qwen2_5_vl-3b", "--for", "1GB"],
        5,
        &["nothing fits: ", "it takes a device with "],
        &["init", "synthetic:qwen2_5_vl-3b", "--for", "16GB"],
    ),
    mistake(
        Nothing,
        &["init", "synthetic:internvl3-2b", "--for", "4GB", "--precision", "bf16"],
        5,
        &["it fits with --precision int8"],
        &["init", "synthetic:internvl3-2b", "--for", "4GB", "--precision", "int8"],
    ),
    mistake(
        Nothing,
        &["fit", "synthetic:internvl3-1b", "--for", "toaster"],
        2,
        &["orin-nano-8gb"],
        &["fit", "synthetic:internvl3-1b", "--for", "orin-nano-8gb"],
    ),
    mistake(
        Nothing,
        &["fit", "synthetic:internvl3-tiny", "--memory", "3GB"],
        2,
        &["as in \"512MiB\""],
        &["fit", "synthetic:internvl3-tiny", "--memory", "3GiB"],
    ),
    mistake(
        Nothing,
        &["build", "synthetic:internvl3-tiny", "--kv", "q8_0"],
        2,
        &["f32, f16 or int8"],
        &["build", "synthetic:internvl3-tiny", "--kv", "int8"],
    ),
    mistake(
        Nothing,
        &["fit", "synthetic:internvl3-tiny", "--context", "99999"],
        2,
        &["--context 99999 is more than the 1024 positions"],
        &["fit", "synthetic:internvl3-tiny", "--context", "1024"],
    ),
    // Pipelines.
    mistake(Pipeline, &["run", "p"], 3, &["p.toml is there"], &["plan", "p.toml"]),
    mistake(Pipeline, &["plan", "pp.toml"], 3, &["p.toml is there"], &["plan", "p.toml"]),
    mistake(Pipeline, &["run", "."], 3, &["it holds ", "p.toml"], &["plan", "p.toml"]),
    mistake(Pipeline, &["build", "p.toml"], 2, &["smelt plan p.toml"], &["plan", "p.toml"]),
    mistake(Pipeline, &["chat", "p.toml", "Hi"], 1, &["smelt run p.toml"], &["run", "p.toml"]),
    mistake(
        Pipeline,
        &["run", "p.toml", "--set", "skeme=int8"],
        2,
        &["scheme"],
        &["plan", "p.toml", "--set", "scheme=int8"],
    ),
    mistake(
        Pipeline,
        &["explain", "p.toml", "llm-engin"],
        2,
        &["did you mean \"llm-engine\"?"],
        &["explain", "p.toml", "llm-engine"],
    ),
    mistake(Pipeline, &["plan", "slip.toml"], 3, &["slip.toml:4", "quantize"], &[]),
    mistake(
        Pipeline,
        &["build", "synthetic:internvl3_5-tiny"],
        2,
        &["internvl3_5-tiny.toml is there already", "--out FILE"],
        &["init", "synthetic:internvl3_5-tiny", "--out", "other.toml"],
    ),
    // What is built.
    mistake(
        Sees,
        &["chat", "shapes-vi", "Hi"],
        2,
        &["there is shapes-vl"],
        &["chat", "shapes-vl", "Hi"],
    ),
    mistake(Sees, &["rm", "shapes-vi"], 1, &["shapes-vi, but shapes-vl"], &["ls"]),
    mistake(
        Sees,
        &["chat", "p.toml", "--set", "scheme=none", "Hi"],
        1,
        &["smelt run p.toml --set scheme=none", "(shapes-vl)"],
        &["chat", "shapes-vl", "Hi"],
    ),
    mistake(
        Sees,
        &["embed", "shapes-vl", "a"],
        4,
        &["smelt chat shapes-vl"],
        &["chat", "shapes-vl", "a"],
    ),
    mistake(
        Sees,
        &["chat", "shapes-vl", "--image", "absent.png", "What?"],
        4,
        &["absent.png"],
        &[],
    ),
    mistake(Sees, &["chat", "shapes-vl", "--image", "p.toml", "What?"], 4, &["p.toml"], &[]),
    mistake(
        Sees,
        &["chat", "shapes-vl", "--memory", "1MiB", "Hi"],
        5,
        &["raise --memory"],
        &["chat", "shapes-vl", "--memory", "2GiB", "Hi"],
    ),
    mistake(
        Sees,
        &["chat", "shapes-vl", "--max-seq-len", "999999", "Hi"],
        2,
        &["999999"],
        &["chat", "shapes-vl", "--max-seq-len", "512", "Hi"],
    ),
    mistake(Sees, &["chat", ".", "Hi"], 2, &[". is no deployment", "deployment.json"], &[]),
    mistake(
        Sees,
        &["serve", "shapes-vl", "--model-name", "a", "--model-name", "b"],
        2,
        &["--model-name is given more often"],
        &[],
    ),
    mistake(
        Texts,
        &["chat", "tiny", "--image", PICTURE, "w1"],
        2,
        &["reads text alone; leave pictures and clips out"],
        &["chat", "tiny", "w1"],
    ),
    mistake(
        Ranks,
        &["chat", "ranks", "Hi"],
        4,
        &["ranks scores pairs of texts; ask it with: smelt rerank ranks"],
        &["rerank", "ranks", "a", "b"],
    ),
    // Checkpoints that lack something.
    mistake(Checkpoints, &["build", "empty"], 4, &["empty"], &[]),
    mistake(Checkpoints, &["chat", "empty", "Hi"], 2, &["empty is no deployment"], &[]),
    mistake(Checkpoints, &["build", "neox"], 4, &["GPTNeoXForCausalLM"], &[]),
    mistake(Checkpoints, &["build", "no-config"], 4, &["config.json"], &[]),
    mistake(Checkpoints, &["build", "no-tokenizer"], 4, &["tokenizer.json"], &[]),
    mistake(Checkpoints, &["build", "no-weights"], 4, &["safetensors"], &[]),
    mistake(Checkpoints, &["build", "cut"], 4, &["cut/model.safetensors"], &[]),
    mistake(Checkpoints, &["build", "pickled"], 4, &["safetensors"], &[]),
    // Hubs.
    mistake(
        Hub(Mood::Whole),
        &["chat", "hf:org/tiny-modle", "Hi"],
        2,
        &["has no model org/tiny-modle"],
        &["fit", "hf:org/tiny-model"],
    ),
    mistake(
        Hub(Mood::Whole),
        &["fit", "https://huggingface.co/org/tiny-model/discussions"],
        2,
        &["hf:ORG/NAME"],
        &["fit", "https://huggingface.co/org/tiny-model"],
    ),
    mistake(Hub(Mood::Gated), &["chat", "org/tiny-model", "Hi"], 1, &["HF_TOKEN", "licence"], &[]),
    mistake(Hub(Mood::Private), &["build", "org/tiny-model"], 2, &["HF_TOKEN"], &[]),
    mistake(
        Hub(Mood::NoRevision),
        &["fit", "hf:org/tiny-model@v9"],
        2,
        &["no revision \"v9\""],
        &[],
    ),
    mistake(
        Hub(Mood::Pickled),
        &["build", "org/tiny-model"],
        4,
        &["only pickled weights", "safetensors"],
        &[],
    ),
    mistake(
        Hub(Mood::Unreachable),
        &["build", "org/tiny-model"],
        1,
        &["HF_ENDPOINT names a mirror", "synthetic:internvl3-1b"],
        &["fit", "synthetic:internvl3-1b"],
    ),
    mistake(
        Hub(Mood::Offline),
        &["chat", "org/tiny-model", "Hi"],
        1,
        &["HF_HUB_OFFLINE", "path:DIR"],
        &[],
    ),
    mistake(Hub(Mood::NoRoom), &["build", "org/tiny-model"], 1, &["HF_HOME to a larger disk"], &[]),
    mistake(
        Hub(Mood::NoTokenizer),
        &["build", "org/tiny-model"],
        4,
        &["hf:org/tiny-model has no tokenizer.json"],
        &[],
    ),
];

/// A built model of texts.
static TEXTS: LazyLock<World> = LazyLock::new(|| {
    let world = text_world("qwen2-tiny");
    world.run(&[]);
    world
});

/// A pipeline whose kind of stage is misspelt.
const SLIP: &str =
    "smelt = 1\nname = \"slip\"\n[stage.llm-quant]\nkind = \"quantise\"\ncheckpoint = \"path:x\"\n";

fn nothing() -> World {
    let world = World::new("");
    fs::remove_file(world.path("p.toml")).unwrap();
    world
}

fn pipeline() -> World {
    let world = World::new(&random(DEMO));
    world.write("slip.toml", SLIP);
    world.write("internvl3_5-tiny.toml", "smelt = 1\nname = \"mine\"\n");
    world
}

/// A checkpoint in several folders, each without a part of it.
fn checkpoints() -> World {
    let world = nothing();
    let golden = data("golden/internvl3-tiny/checkpoint");
    for name in ["neox", "no-config", "no-tokenizer", "no-weights", "cut", "pickled"] {
        copy(&golden, &world.path(name));
    }
    fs::create_dir(world.path("empty")).unwrap();
    let neox = r#"{"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"]}"#;
    world.write("neox/config.json", neox);
    let without = |name: &str| fs::remove_file(world.path(name)).unwrap();
    without("no-config/config.json");
    without("no-tokenizer/tokenizer.json");
    without("no-weights/model.safetensors");
    without("pickled/model.safetensors");
    world.write("pickled/pytorch_model.bin", "a pickle");
    let weights = fs::read(world.path("cut/model.safetensors")).unwrap();
    fs::write(world.path("cut/model.safetensors"), &weights[..weights.len() / 2]).unwrap();
    world
}

/// Where a command is typed.
enum Place {
    Own(World),
    Shared(&'static World),
    Hub(HubWorld),
}

impl Place {
    fn of(around: Around) -> Self {
        match around {
            Nothing => Self::Own(nothing()),
            Pipeline => Self::Own(pipeline()),
            Sees => Self::Shared(&BUILT),
            Texts => Self::Shared(&TEXTS),
            Ranks => Self::Shared(&RANKS),
            Checkpoints => Self::Own(checkpoints()),
            Hub(mood) => Self::Hub(HubWorld::in_mood(mood)),
        }
    }

    fn command(&self, words: &[&str]) -> Command {
        match self {
            Self::Own(world) => world.command(words),
            Self::Shared(world) => world.command(words),
            Self::Hub(hub) => hub.command(words, &[]),
        }
    }

    fn smelt(&self, typed: &[&str]) -> Ended {
        let picture = data("shapes-1.png").display().to_string();
        let word =
            |word: &&'_ str| if *word == PICTURE { picture.clone() } else { (*word).to_owned() };
        let words: Vec<String> = typed.iter().map(word).collect();
        let mut command = self.command(&words.iter().map(String::as_str).collect::<Vec<_>>());
        if !matches!(self, Self::Hub(_)) {
            // Whoever asks a hub here, asks none.
            command.env("HF_HUB_OFFLINE", "1");
        }
        ended(&mut command)
    }
}

/// What was said of a mistake that is not as the table has it.
fn wrong(mistake: &Mistake) -> Vec<String> {
    let Mistake { around, typed, code, words, then } = mistake;
    let place = Place::of(*around);
    let said = place.smelt(typed);
    let told = &said.stderr;
    let is_it = |line: &&str| ["smelt: ", "error: "].iter().any(|it| line.starts_with(it));
    let line = told.lines().find(is_it);
    // A stage that fails is a run's report: one line says why, and the next where its log is.
    let is_run = line.is_some_and(|line| line.starts_with("smelt: stage "));
    let mut wrong = Vec::new();
    let mut find = |is_wrong: bool, what: &str| {
        if is_wrong {
            wrong.push(format!("{around:?} {typed:?}: {what}: exit {:?}: {told}", said.code));
        }
    };
    find(said.code != Some(*code), &format!("not exit {code}"));
    find(!said.stdout.is_empty() && !is_run, "it answers");
    find(line.is_none(), "no line says what is wrong");
    let lines = told.lines().filter(|line| line.starts_with("smelt: ")).count();
    find(lines > 1 + usize::from(is_run), "several lines");
    // Those of the command line's own faults show its use.
    let text = if told.starts_with("error: ") { told.as_str() } else { line.unwrap_or_default() };
    for word in words.iter().filter(|word| !text.contains(**word)) {
        find(true, &format!("no {word:?}"));
    }
    if !then.is_empty() {
        let followed = place.smelt(then);
        if followed.code != Some(0) {
            let (code, told) = (followed.code, followed.stderr);
            wrong.push(format!("{around:?} {then:?}: what is advised ends with {code:?}: {told}"));
        }
    }
    wrong
}

#[track_caller]
fn check(is_of: impl Fn(Around) -> bool) {
    let all = MISTAKES.iter().filter(|mistake| is_of(mistake.around));
    let wrong: Vec<String> = all.flat_map(wrong).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn with_nothing_around() {
    check(|around| around == Nothing);
}

#[test]
fn with_a_pipeline_around() {
    check(|around| around == Pipeline);
}

#[test]
fn with_something_built_around() {
    check(|around| [Sees, Texts, Ranks].contains(&around));
}

#[test]
fn with_checkpoints_that_lack_something() {
    check(|around| around == Checkpoints);
}

#[test]
fn with_a_hub_around() {
    check(|around| matches!(around, Hub(_)));
    assert!(MISTAKES.len() >= 40);
}
