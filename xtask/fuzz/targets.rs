//! Takes any bytes as each kind of file that smelt reads, and holds the reader to its word.
//!
//! A reader may refuse; it may not panic, and what it accepts must be what it says.  The fuzzer
//! and the test that replays the corpus call the same functions.  Each process has a folder in
//! memory for the files, since readers take paths.

#![allow(dead_code, reason = "each fuzz target calls one of these")]
#![allow(clippy::unwrap_used, reason = "a failure is a panic")]

use std::fs;
use std::path::{Path, PathBuf};

use smelt_engine::graph::{GraphEngine, Tensor};
use smelt_engine::llm::{LlmEngine, Prompt};
use smelt_fleet::chunk::Index;
use smelt_fleet::dsse::Envelope;
use smelt_fleet::oci::artifact;
use smelt_fleet::oci::delivery::Delivery;
use smelt_fleet::statement::Statement;
use smelt_model::checkpoint::Checkpoint;
use smelt_model::model::Model as Config;
use smelt_model::safetensors::{Reader, Shards, TensorSpec, Writer};
use smelt_onnx::{Model, check, inspect, read_initializer};
use smelt_plan::pipeline::Overrides;
use smelt_plan::plan::{HubPin, Pin};
use smelt_plan::{Digest, Pins, Pipeline, Plan};
use smelt_runtime::image::Image;
use smelt_store::{FileEntry, Manifest};

/// A target by its name: the folder of its corpus, and the function.
pub(crate) type Target = (&'static str, fn(&[u8]));

/// Every target.
pub(crate) const ALL: &[Target] = &[
    ("safetensors", safetensors),
    ("index", index),
    ("onnx", onnx),
    ("pipeline", pipeline),
    ("config", config),
    ("gguf", gguf),
    ("engine", engine),
    ("jpeg", jpeg),
    ("statement", statement),
    ("envelope", envelope),
    ("chunks", chunks),
    ("delivery", delivery),
];

/// A picture of more pixels is too slow to be tried often, and takes more memory than these few bytes should.
const PIXELS_MAX: u64 = 1 << 18;
/// Bytes of the weights that every fuzzed engine has; `engine.json` says it too.
const WEIGHTS_BYTES: usize = 4096;
/// An input of more numbers is too slow to be tried often.
const INPUT_NUMBERS_MAX: usize = 1 << 10;

/// A file of weights: the ranges of what opens tile it, and every tensor reads.
pub(crate) fn safetensors(data: &[u8]) {
    let path = folder("safetensors").join("x.safetensors");
    write(&path, data);
    let Ok(reader) = Reader::open(&path) else { return };
    let header = 8 + u64::from_le_bytes(*data.first_chunk().unwrap());
    let tensors: u64 = reader.tensors().map(|tensor| tensor.size_bytes()).sum();
    assert_eq!(header + tensors, data.len() as u64);
    for tensor in reader.tensors() {
        let size = tensor.elements() * tensor.dtype.size_bytes();
        assert_eq!(size as u64, tensor.size_bytes());
        reader.read_at(tensor, 0, &mut vec![0; size]).unwrap();
        assert_eq!(reader.get(&tensor.name), Some(tensor));
    }
}

/// What a stranger says of an output: its files are those that its name stands for.
pub(crate) fn statement(data: &[u8]) {
    let Ok(statement) = Statement::from_json(data) else { return };
    assert_eq!(statement.files.digest(), statement.tree);
    // Of what was changed by reading it, as long fractions are, nothing is written.
    let Ok(json) = statement.to_json() else { return };
    assert_eq!(Statement::from_json(&json).unwrap(), statement);
}

/// What a registry has: a statement, or a manifest and its config in two lines.  Slices cover files, each once.
pub(crate) fn delivery(data: &[u8]) {
    if let Ok(delivery) = Delivery::from_json(data) {
        assert_eq!(Delivery::from_json(&delivery.to_json().unwrap()).unwrap(), delivery);
    }
    let Some(end) = data.iter().position(|&byte| byte == b'\n') else { return };
    let Ok((manifest, _)) = artifact::config_of(&data[..end]) else { return };
    let Ok((outputs, slices)) = artifact::read(&manifest, &data[end + 1..]) else { return };
    let bytes = outputs.iter().map(|output| output.files.bytes()).sum::<u64>();
    assert_eq!(slices.iter().map(|slice| slice.bytes).sum::<u64>(), bytes);
}

/// An envelope of a stranger's: what is read is what is signed.
pub(crate) fn envelope(data: &[u8]) {
    let Ok(envelope) = Envelope::from_json(data) else { return };
    assert!(envelope.pae().ends_with(&envelope.payload));
    let json = envelope.to_json().unwrap();
    assert_eq!(Envelope::from_json(&json).unwrap(), envelope);
}

/// A list of chunks of two files, one of three bytes and an empty one: what is accepted makes these.
pub(crate) fn chunks(data: &[u8]) {
    let file = |path: &str, content: &[u8]| FileEntry {
        path: path.to_owned(),
        size: content.len() as u64,
        sha256: Digest::of(content),
        executable: false,
    };
    let files = Manifest::new(vec![file("a", b"abc"), file("b", b"")]).unwrap();
    let Ok(index) = Index::read(data, &files) else { return };
    assert_eq!(index.chunks().map(|chunk| u64::from(chunk.bytes)).sum::<u64>(), 3);
}

/// An index over two small shards, `a` and `b` in one and `c` in the other.
pub(crate) fn index(data: &[u8]) {
    let folder = folder("index");
    let path = folder.join("model.safetensors.index.json");
    for (file, names) in [("1.safetensors", &["a", "b"][..]), ("2.safetensors", &["c"])] {
        if !folder.join(file).exists() {
            shard(&folder.join(file), names);
        }
    }
    write(&path, data);
    let Ok(shards) = Shards::indexed(&path) else { return };
    for tensor in shards.tensors() {
        shards.read_at(tensor, 0, &mut [0]).unwrap();
    }
}

fn shard(path: &Path, names: &[&str]) {
    let dtype = smelt_model::dtype::Dtype::I8;
    let spec = |name: &&str| TensorSpec { name: (*name).to_owned(), dtype, shape: vec![1] };
    let specs: Vec<TensorSpec> = names.iter().map(spec).collect();
    let mut writer = Writer::create(path, &specs, &Default::default()).unwrap();
    writer.write(&vec![7; names.len()]).unwrap();
    writer.finish().unwrap();
}

/// A graph: what reads can be described and judged; what is sound is written and reads back the
/// same.
pub(crate) fn onnx(data: &[u8]) {
    let folder = folder("onnx");
    let path = folder.join("read.onnx");
    write(&path, data);
    let Ok(model) = Model::read(&path) else { return };
    let _ = inspect(&model);
    for tensor in &model.graph.initializers {
        let _ = read_initializer(&folder, tensor, 0, &mut [0; 64]);
    }
    if check(&model, &folder).is_err() || model.write(&folder).is_err() {
        return;
    }
    let again = Model::read(&folder.join(smelt_onnx::MODEL_FILE)).unwrap();
    // As text, since a NaN is not equal to itself.
    assert_eq!(format!("{again:?}"), format!("{model:?}"));
}

/// A pipeline file: what parses can be planned or is refused with a place.
pub(crate) fn pipeline(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(pipeline) = Pipeline::parse("p.toml", text, &Overrides::default()) else { return };
    let pin = Pin { path: PathBuf::new(), digest: Digest::from_bytes([0; 32]) };
    let hub = HubPin {
        file: None,
        repo: "a/b".to_owned(),
        revision: "main".to_owned(),
        commit: "0".repeat(40),
        path: PathBuf::new(),
    };
    let (paths, hubs) = (pipeline.paths().into_iter(), pipeline.hubs().into_iter());
    let pins = Pins {
        paths: paths.map(|path| (path.to_owned(), pin.clone())).collect(),
        hubs: hubs.map(|address| (address.to_owned(), hub.clone())).collect(),
        ..Pins::default()
    };
    if let Ok(plan) = Plan::build(&pipeline, &pins) {
        assert_eq!(plan.len(), pipeline.stages.len());
    }
}

/// A model's configuration: what is accepted has tensors whose sizes can be counted.
pub(crate) fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(config) = Config::parse(text, Path::new("config.json")) else { return };
    for (name, shape) in config.tensors(&config.parts()) {
        let elements = shape.iter().try_fold(1_u64, |n, dim| n.checked_mul(*dim as u64));
        assert!(elements.is_some_and(|elements| elements > 0), "{name}: {shape:?}");
    }
}

/// A GGUF file: what opens has weights whose every byte and every row reads, as many as they say.
pub(crate) fn gguf(data: &[u8]) {
    let path = folder("gguf").join("x.gguf");
    write(&path, data);
    let Ok(checkpoint) = Checkpoint::open(&path) else { return };
    let mut rows = Vec::new();
    for weight in checkpoint.tensors() {
        let size = weight.shape.iter().product::<usize>() * weight.dtype.size_bytes();
        checkpoint.read_bytes(&weight.name, 0, &mut vec![0; size]).unwrap();
        if weight.shape.len() == 2 && !weight.name.contains(".weight_") {
            let shape = checkpoint.shape(&weight.name).unwrap();
            checkpoint.read_rows_f32(&weight.name, 0..shape[0], &mut rows).unwrap();
            assert_eq!(rows.len(), shape[0] * shape[1]);
        }
    }
}

/// What an engine says about itself, beside weights in which every i64 is 1: what opens takes a
/// token, or numbers, and answers or refuses.
pub(crate) fn engine(data: &[u8]) {
    let folder = folder("engine");
    let weights = folder.join("weights.bin");
    if !weights.exists() {
        write(&weights, &[1, 0, 0, 0, 0, 0, 0, 0].repeat(WEIGHTS_BYTES / 8));
    }
    write(&folder.join("engine.json"), data);
    if let Ok(engine) = LlmEngine::open(&folder) {
        let mut engine = engine.with_threads(1);
        let vocab = engine.vocab();
        if let Ok(logits) = engine.prefill(0, &Prompt::plain(&[0, 1], None)) {
            assert_eq!(logits.len(), vocab);
        }
    }
    if let Ok(engine) = GraphEngine::open(&folder) {
        let engine = engine.with_threads(1);
        if let Some(inputs) = numbers(&engine) {
            let _ = engine.run(inputs);
        }
    }
}

/// A picture: what is decoded has its pixels and an end, and looks the same again.
pub(crate) fn jpeg(data: &[u8]) {
    // Other kinds are other crates' work.
    if !data.starts_with(&[0xFF, 0xD8, 0xFF]) || claims_many_pixels(data) {
        return;
    }
    let Ok(picture) = Image::decode(data) else { return };
    assert_eq!(picture.rgb().len(), picture.width() * picture.height() * 3);
    assert!(!picture.rgb().is_empty());
    assert!(data.windows(2).any(|two| two == [0xFF, 0xD9]), "a picture without an end");
    assert_eq!(Image::decode(data).unwrap(), picture);
}

/// Whether anything that might be a frame's header claims a large picture.
fn claims_many_pixels(data: &[u8]) -> bool {
    let number = |bytes: &[u8]| u64::from(bytes[0]) << 8 | u64::from(bytes[1]);
    data.windows(9).any(|header| {
        let is_frame = header[0] == 0xFF && (0xC0..=0xCF).contains(&header[1]);
        is_frame && number(&header[5..]) * number(&header[7..]) > PIXELS_MAX
    })
}

/// Ones for every input of a graph, if they are not too many.
fn numbers(engine: &GraphEngine) -> Option<Vec<Tensor>> {
    let one = |integer: bool, dims: &[Option<usize>]| {
        let shape: Vec<usize> = dims.iter().map(|dim| dim.unwrap_or(1)).collect();
        let count = shape.iter().try_fold(1_usize, |count, &dim| count.checked_mul(dim))?;
        let count = Some(count).filter(|&count| count <= INPUT_NUMBERS_MAX)?;
        Some(match integer {
            true => Tensor::I64 { shape, data: vec![1; count] },
            false => Tensor::F32 { shape, data: vec![1.0; count] },
        })
    };
    engine.inputs().iter().map(|input| one(input.integer, &input.dims)).collect()
}

/// A folder of this process for `target`, in memory where there is such a place.
fn folder(target: &str) -> PathBuf {
    let memory = Path::new("/dev/shm");
    let base = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let folder = base.join(format!("smelt-fuzz-{}", std::process::id())).join(target);
    if !folder.is_dir() {
        fs::create_dir_all(&folder).unwrap();
    }
    folder
}

fn write(path: &Path, data: &[u8]) {
    fs::write(path, data).unwrap();
}

/// Removes what the targets of this process left.
pub(crate) fn clean_up() {
    let folder = folder("").parent().map(Path::to_owned);
    if let Some(folder) = folder.filter(|folder| folder.is_dir()) {
        let _ = fs::remove_dir_all(folder);
    }
}
