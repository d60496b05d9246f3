//! `verify` on a model that sees: every engine that is damaged is caught, with a word on what is
//! wrong, and no engine that is whole is.
//!
//! Damage is put in as a buggy builder would do it, its digest right, and as a disk would, the digest
//! left as it was.  A case that fails prints its seed.

use std::fs;
use std::io::Write as _;
use std::ops::Range;
use std::path::Path;
use std::process::Stdio;

use crate::world::{Ended, World, anywhere, copy, data, random, statuses};
use serde_json::{Value, json};
use smelt_plan::Digest;
use smelt_random::Random;

const DEMO: &str = include_str!("../../../pipelines/demo.toml");
const ACCURACY: &str = include_str!("../../../pipelines/shapes-accuracy.toml");

/// Seeds of each damage to each engine where `SMELT_SOAK` does not ask for more.
const SEEDS: u64 = 3;
const SEEDS_OF_SOAK: u64 = 60;
/// Decoder layers of shapes-vl.
const LAYERS: u64 = 4;

/// The demo under a scheme, built, and what its `verify` reads.
struct Built {
    world: World,
    inputs: Value,
}

fn built(scheme: &str) -> Built {
    let int8 = "scheme = \"int8\"";
    assert!(DEMO.contains(int8), "the demo's scheme is a parameter");
    let pipeline = DEMO.replace(int8, &format!("scheme = \"{scheme}\""));
    let world = World::new(&anywhere(&pipeline));
    world.run(&[]);
    let inputs = json!({
        "vision": world.out("vision-engine"),
        "llm": world.out("llm-engine"),
        "against": world.out("checkpoint"),
        "weights": world.out("llm-quant"),
        "prompts": data("shapes-golden"),
    });
    Built { world, inputs }
}

impl Built {
    /// The engine that `verify` finds in `field`.
    fn engine(&self, field: &str) -> Engine {
        Engine::read(Path::new(self.inputs[field].as_str().unwrap()))
    }
}

/// A tensor of an engine.
struct Tensor {
    name: String,
    dtype: String,
    shape: Vec<usize>,
    range: Range<usize>,
}

impl Tensor {
    fn size(&self) -> usize {
        match self.dtype.as_str() {
            "f32" => 4,
            "bf16" | "f16" => 2,
            "i8" | "u8" => 1,
            other => panic!("{other}"),
        }
    }

    /// The bytes of element `index`.
    fn element(&self, index: usize) -> Range<usize> {
        let start = self.range.start + index * self.size();
        start..start + self.size()
    }

    fn count(&self) -> usize {
        self.range.len() / self.size()
    }
}

/// An engine taken apart.
#[derive(Clone)]
struct Engine {
    header: Value,
    weights: Vec<u8>,
}

impl Engine {
    fn read(dir: &Path) -> Self {
        let header = fs::read_to_string(dir.join("engine.json")).unwrap();
        Self {
            header: serde_json::from_str(&header).unwrap(),
            weights: fs::read(dir.join("weights.bin")).unwrap(),
        }
    }

    fn write(&self, dir: &Path) {
        let _ = fs::remove_dir_all(dir);
        fs::create_dir(dir).unwrap();
        fs::write(dir.join("engine.json"), self.header.to_string()).unwrap();
        fs::write(dir.join("weights.bin"), &self.weights).unwrap();
    }

    /// As if the builder had made it so.
    fn with_its_digest(mut self) -> Self {
        self.header["weights"]["sha256"] = json!(Digest::of(&self.weights));
        self.header["weights"]["bytes"] = json!(self.weights.len());
        self
    }

    /// The tensors of weights; what else a graph holds are shapes and the like.
    fn tensors(&self) -> Vec<Tensor> {
        let all = self.header["tensors"].as_array().unwrap().iter();
        let number = |value: &Value| value.as_u64().unwrap() as usize;
        let tensors = all.filter(|tensor| tensor["dtype"] != "i64").map(|tensor| {
            let mut it = Tensor {
                name: tensor["name"].as_str().unwrap().to_owned(),
                dtype: tensor["dtype"].as_str().unwrap().to_owned(),
                shape: tensor["shape"].as_array().unwrap().iter().map(number).collect(),
                range: number(&tensor["offset"])..0,
            };
            it.range.end = it.range.start + it.shape.iter().product::<usize>() * it.size();
            it
        });
        tensors.filter(|tensor| !tensor.name.starts_with('/')).collect()
    }

    /// One of the tensors that `is`.
    fn some(&self, random: &mut Random, is: impl Fn(&Tensor) -> bool) -> Tensor {
        let mut tensors: Vec<Tensor> = self.tensors().into_iter().filter(is).collect();
        tensors.swap_remove(random.below(tensors.len()))
    }

    fn swap(&mut self, a: Range<usize>, b: Range<usize>) {
        let other = self.weights[a.clone()].to_vec();
        self.weights.copy_within(b.clone(), a.start);
        self.weights[b].copy_from_slice(&other);
    }
}

/// What is done to an engine, and the tensor that must be named.
type Damage = fn(&mut Engine, &mut Random) -> Option<String>;

/// Up to 4 KiB of a tensor, anywhere.
fn zeroed_block(engine: &mut Engine, random: &mut Random) -> Option<String> {
    let tensor = engine.some(random, |_| true);
    let start = tensor.range.start + random.below(tensor.range.len());
    let end = tensor.range.end.min(start + 1 + random.below(4096));
    engine.weights[start..end].fill(0);
    Some(tensor.name)
}

fn zeroed_tensor(engine: &mut Engine, random: &mut Random) -> Option<String> {
    let tensor = engine.some(random, |tensor| tensor.shape.len() > 1);
    engine.weights[tensor.range.clone()].fill(0);
    Some(tensor.name)
}

/// Two scales of a tensor; where weights are floats, two numbers of a vector.
fn swapped_scales(engine: &mut Engine, random: &mut Random) -> Option<String> {
    let is_packed = engine.tensors().iter().any(|tensor| tensor.name.ends_with("_scale"));
    let tensor = engine.some(random, |tensor| match is_packed {
        true => tensor.name.ends_with("_scale"),
        false => tensor.shape.len() == 1 && tensor.count() > 1,
    });
    let [a, b] = [(); 2].map(|()| random.below(tensor.count()));
    engine.swap(tensor.element(a), tensor.element(b));
    Some(tensor.name)
}

/// The scales of two tensors of a shape.
fn exchanged_tensors(engine: &mut Engine, random: &mut Random) -> Option<String> {
    let first = engine.some(random, |tensor| tensor.name.contains("layers."));
    let second = engine.some(random, |tensor| {
        (&tensor.shape, &tensor.dtype) == (&first.shape, &first.dtype)
            && tensor.name.contains("layers.")
    });
    engine.swap(first.range, second.range);
    Some(first.name)
}

/// The largest bit of the exponent of one float, and some bit of it of another.
fn flipped_exponent(engine: &mut Engine, random: &mut Random) -> Option<String> {
    let tensor = engine.some(random, |tensor| tensor.size() > 1);
    let element = tensor.element(random.below(tensor.count()));
    // Of bf16 and f32 alike the exponent is the low 7 bits of the last byte, and a bit before.
    engine.weights[element.end - 1] ^= 1 << random.below(7);
    Some(tensor.name)
}

/// The file's second half was never written.
fn half_written(engine: &mut Engine, _: &mut Random) -> Option<String> {
    let half = engine.weights.len() / 2;
    engine.weights[half..].fill(0);
    None
}

const DAMAGES: [(&str, Damage); 6] = [
    ("a zeroed block", zeroed_block),
    ("a zeroed tensor", zeroed_tensor),
    ("swapped scales", swapped_scales),
    ("exchanged tensors", exchanged_tensors),
    ("a flipped exponent", flipped_exponent),
    ("a half-written file", half_written),
];

/// `verify` on the demo's engines, one of them that in `dir`; the seal on what it says is not asked.
fn verify(Built { world, inputs }: &Built, changes: &[(&str, &Path)]) -> Ended {
    let out = world.path("verified");
    let _ = fs::remove_dir_all(&out);
    fs::create_dir(&out).unwrap();
    let mut inputs = inputs.clone();
    for (field, path) in changes {
        inputs[*field] = json!(path);
    }
    let request = json!({ "kind": "verify", "params": {}, "inputs": inputs, "out": out });
    let mut child = world
        .command(&["stage", "work"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(request.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ended { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// The verdict on a damaged engine: exit 1 and a last line with `words`.
#[track_caller]
fn caught(built: &Built, field: &str, engine: &Engine, words: &str, what: &str) {
    let dir = built.world.path("damaged");
    engine.write(&dir);
    let ended = verify(built, &[(field, &dir)]);
    let line = ended.stderr.lines().last().unwrap_or_default();
    assert_eq!(ended.code, Some(1), "{what}: {}", ended.stderr);
    assert!(line.starts_with("smelt: output invalid: "), "{what}: {line}");
    assert!(line.contains(words), "{what}: not {words:?} but {line}");
}

/// Every damage to the numbers of an engine, under both digests.
fn sweep(built: &Built, field: &str) {
    let whole = built.engine(field);
    let seeds = if std::env::var_os("SMELT_SOAK").is_some() { SEEDS_OF_SOAK } else { SEEDS };
    for (what, damage) in DAMAGES {
        let (mut seed, mut done) = (0, 0);
        while done < seeds {
            seed += 1;
            let (mut engine, mut random) = (whole.clone(), Random::new(seed));
            let name = damage(&mut engine, &mut random).unwrap_or_default();
            if engine.weights == whole.weights {
                // Zeros were zeroed, or equal numbers swapped.
                continue;
            }
            done += 1;
            let what = format!("{what} in {name} of the {field} engine, seed {seed}");
            caught(built, field, &engine, "its sha256 is", &what);
            let parts = ["_scale", "_zero", "_order"];
            let whole = parts.iter().find_map(|part| name.strip_suffix(part)).unwrap_or(&name);
            caught(built, field, &engine.with_its_digest(), whole, &what);
        }
    }
}

#[test]
fn damaged_numbers_are_named_in_engines_of_floats() {
    let built = built("none");
    sweep(&built, "vision");
    sweep(&built, "llm");
}

#[test]
fn damaged_numbers_are_named_in_an_engine_of_bytes() {
    sweep(&built("int8"), "llm");
}

#[test]
fn damaged_numbers_are_named_in_an_engine_of_nibbles() {
    sweep(&built("int4-g32"), "llm");
}

/// A decoder whose layers behind `layer` have moved up by one.
fn without_llm_layer(mut engine: Engine, layer: u64) -> Engine {
    engine.header["engine"]["layers"] = json!(LAYERS - 1);
    let tensors = engine.header["tensors"].as_array_mut().unwrap();
    let prefix = |n: u64| format!("language_model.model.layers.{n}.");
    tensors.retain(|tensor| !tensor["name"].as_str().unwrap().starts_with(&prefix(layer)));
    for tensor in tensors {
        let name = tensor["name"].as_str().unwrap().to_owned();
        let moved = (layer + 1..LAYERS).find_map(|n| {
            name.strip_prefix(&prefix(n)).map(|rest| format!("{}{rest}", prefix(n - 1)))
        });
        tensor["name"] = json!(moved.unwrap_or(name));
    }
    engine.with_its_digest()
}

/// A tower whose graph goes around `layer`.
fn without_vision_layer(mut engine: Engine, layer: usize) -> Engine {
    let nodes = engine.header["engine"]["nodes"].as_array_mut().unwrap();
    let of_layer =
        |node: &Value| node["name"].as_str().unwrap().starts_with(&format!("/layers.{layer}/"));
    let first = nodes.iter().find(|node| of_layer(node)).unwrap();
    let before = first["inputs"][0].clone();
    let last = nodes.iter().rfind(|node| of_layer(node)).unwrap();
    let behind = last["outputs"][0].clone();
    nodes.retain(|node| !of_layer(node));
    for input in nodes.iter_mut().flat_map(|node| node["inputs"].as_array_mut().unwrap()) {
        if *input == behind {
            *input = before.clone();
        }
    }
    engine.with_its_digest()
}

#[test]
fn another_structure_is_named() {
    let built = built("int8");
    let llm = built.engine("llm");
    for layer in 0..LAYERS {
        let engine = without_llm_layer(llm.clone(), layer);
        caught(&built, "llm", &engine, "its layers is 3, not 4", &format!("layer {layer}"));
    }
    for (field, value, words) in
        [("eps", json!(1e-3), "its eps is"), ("rope_theta", json!(20_000.0), "its rope_theta is")]
    {
        let mut engine = llm.clone();
        engine.header["engine"][field] = value;
        caught(&built, "llm", &engine, words, field);
    }
    let mut fewer = llm.clone();
    fewer.header["tensors"].as_array_mut().unwrap().pop();
    caught(&built, "llm", &fewer, "engine.json is damaged", "a tensor less");

    let vision = built.engine("vision");
    let nodes = vision.header["engine"]["nodes"].as_array().unwrap();
    let layers = nodes.iter().filter(|node| node["op"] == "Softmax").count();
    for layer in 0..layers {
        let engine = without_vision_layer(vision.clone(), layer);
        let words = format!("no node reads vision_model.encoder.layers.{layer}.");
        caught(&built, "vision", &engine, &words, &format!("tower layer {layer}"));
    }
    let mut coarse = vision.clone();
    let nodes = coarse.header["engine"]["nodes"].as_array_mut().unwrap();
    let norm = nodes.iter_mut().rfind(|node| node["op"] == "LayerNormalization").unwrap();
    norm["attributes"]["epsilon"] = json!({ "float": 1e-2 });
    caught(&built, "vision", &coarse, "image embeddings have cosine", "another epsilon");

    let mut short = vision.clone();
    short.weights.truncate(vision.weights.len() / 2);
    caught(&built, "vision", &short, "weights.bin is damaged", "half a file");
    caught(&built, "vision", &short.with_its_digest(), "is damaged", "half a file, so declared");
}

#[test]
fn a_wrong_answer_is_told_with_what_was_expected_and_who_is_to_blame() {
    let built = built("int4-g32");
    // The engines are whole, but the model is spoken to in another way than it was taught.
    let model = built.world.path("model");
    copy(&data("shapes-vl"), &model);
    let config = fs::read_to_string(model.join("tokenizer_config.json")).unwrap();
    let turned = config.replace("<|im_start|>assistant", "<|im_end|>assistant");
    assert_ne!(turned, config);
    fs::write(model.join("tokenizer_config.json"), turned).unwrap();
    let ended = verify(&built, &[("against", &model)]);
    let line = ended.stderr.lines().last().unwrap();
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(line.contains("output invalid: golden prompt "), "{line}");
    assert!(line.contains(" and not \""), "{line}");
    assert!(line.contains("the f32 reference says"), "{line}");
    let record = fs::read_to_string(built.world.path("verified/verify.json")).unwrap();
    let record: Value = serde_json::from_str(&record).unwrap();
    assert_eq!(record["prompts"].as_array().unwrap().len(), 8, "all are asked");
    let nothing = built.world.path("nothing");
    fs::create_dir(&nothing).unwrap();
    let ended = verify(&built, &[("prompts", &nothing)]);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("questions.jsonl"), "{}", ended.stderr);
}

/// The accuracy pipeline with a `verify` behind each of its decoders.
fn all_schemes() -> String {
    let prompts = data("shapes-golden").display().to_string();
    let verify = format!(
        "\n[stage.checked]\nkind = \"verify\"\nvision = \"vision\"\nllm = \"llm\"\nagainst = \"checkpoint\"\nweights = \"quant\"\nprompts = \"path:{prompts}\"\n"
    );
    anywhere(ACCURACY) + &verify
}

#[test]
fn no_whole_engine_is_refused_under_any_scheme_and_in_either_layout() {
    let world = World::new(&all_schemes());
    let report = world.run(&["--jobs", "2"]);
    let is_checked = |status: &&String| status.starts_with("checked.");
    assert!(statuses(&report).iter().filter(is_checked).count() >= 10, "{report}");
    let demo = World::new(&anywhere(DEMO));
    demo.run(&["--set", &format!("model=path:{}", data("shapes-vl-3_5").display())]);
}

#[test]
fn a_run_says_that_the_output_is_invalid() {
    let broken = "\n[stage.broken]\nkind = \"command\"\ninputs = [\"llm-engine\"]\noutputs = [\"engine.json\", \"weights.bin\"]\nargv = [\"sh\", \"-ec\", '''\ncp \"$SMELT_IN_LLM_ENGINE\"/* .\nchmod u+w weights.bin\nprintf x | dd of=weights.bin bs=1 seek=70000 conv=notrunc\n''']\n";
    let pipeline = anywhere(DEMO).replace("llm = \"llm-engine\"", "llm = \"broken\"") + broken;
    let world = World::new(&pipeline);
    let ended = world.smelt(&["run", "p.toml", "--json"]);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    let stages = report["stages"].as_array().unwrap();
    let verify = stages.iter().find(|stage| stage["name"] == "verify").unwrap();
    assert_eq!(verify["attempts"][0]["class"], "output-invalid", "{verify}");
    assert!(ended.stderr.contains("its sha256 is"), "{}", ended.stderr);
}

#[test]
fn an_engine_that_holds_no_prompt_is_refused_in_the_words_of_chat() {
    let pipeline = random(DEMO).replace("\nmax-seq-len = 512\n", "\nmax-seq-len = 16\n");
    let ended = World::new(&pipeline).smelt(&["run", "p.toml"]);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let says = " tokens, but the engine holds 16 with the answer; raise max-seq-len of the engine";
    let failed = ended.stderr.lines().find(|line| line.starts_with("smelt: stage verify: "));
    assert!(failed.is_some_and(|line| line.contains(says)), "{}", ended.stderr);
}

/// A folder whose name no seal made serves as well as one in the store.
#[test]
fn whole_engines_pass_wherever_they_lie() {
    let built = built("int8");
    let dir = built.world.path("damaged");
    built.engine("llm").with_its_digest().write(&dir);
    let ended = verify(&built, &[("llm", &dir)]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}
