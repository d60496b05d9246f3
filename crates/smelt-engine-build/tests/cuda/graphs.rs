//! Holds graph engines for GPUs to numbers that transformers computed: on a device that needs no GPU, and on a card.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use smelt_backend::grid::Grid;
use smelt_backend::{Graph, GraphInput, Tensor};
use smelt_cuda::driver::{Driver, DriverError};
use smelt_cuda::graph::CudaGraph;
use smelt_cuda::kernels::source::graph_source;
use smelt_cuda::kernels::twin;
use smelt_cuda::nvrtc::{Source, compile};
use smelt_cuda::recording::{Held, RecordingDriver, card};
use smelt_cuda::{CudaTarget, Sm};
use smelt_engine::graph::GraphEngine;
use smelt_engine_build::graph;
use smelt_model::checkpoint::Checkpoint;
use smelt_model::dtype::Dtype;
use smelt_model::export;
use tempfile::TempDir;

use crate::encoders::{golden, tensors};
use crate::golden::Golden;

/// How far numbers may be from transformers', as a part of the largest: products take halves, and so do heads.
const TOLERANCE: f32 = 1e-2;
const TARGET: CudaTarget = CudaTarget::Sm90;
/// What says what a graph has to give.
const CASES: &str = "graph.json";
/// How folders of graphs begin among those of engines.
const FOLDER: &str = "graph-";

/// Every tower that smelt exports, and encoders of texts but CLIP's: the checkpoint, and which part of it.
const ALL: [(&str, &str); 14] = [
    ("internvl3-tiny", "vision"),
    ("internvit6b-tiny", "vision"),
    ("smolvlm-tiny", "vision"),
    ("qwen2_vl-tiny", "vision-24x24"),
    ("qwen2_5_vl-tiny", "vision-16x32"),
    ("qwen2_5_vl-tiny", "vision-40x56"),
    ("qwen3_vl-tiny", "vision-24x40"),
    ("clip-tiny", "vision"),
    ("clip-tiny", "vision-48x40"),
    ("clip-vision-tiny", "vision"),
    ("bert-tiny", "encoder"),
    ("bert-mlm-tiny", "encoder"),
    ("bert-rank-tiny", "classifier"),
    ("bert-labels-tiny", "classifier"),
];

/// Exports the part `case` of a checkpoint.
fn exported(name: &str, case: &str, dtype: Dtype, onnx: &Path) {
    let checkpoint = Checkpoint::open(&golden(name).join("checkpoint")).unwrap();
    match case {
        "encoder" => export::encoder(&checkpoint, dtype, onnx, &mut |_| {}).unwrap(),
        "classifier" => export::classifier(&checkpoint, dtype, onnx, &mut |_| {}).unwrap(),
        case => {
            let grids = case.strip_prefix("vision-").map(|grid| grid.parse::<Grid>().unwrap());
            let grids: Vec<Grid> = grids.into_iter().collect();
            export::vision_on(&checkpoint, &grids, dtype, onnx, &mut |_| {}).unwrap();
        }
    }
}

/// What a case is given, in the order of `inputs`, and what transformers gives, by the names of outputs.
fn case_of(name: &str, case: &str, inputs: &[GraphInput]) -> (Vec<Tensor>, Vec<(String, Tensor)>) {
    if name == "internvl3-tiny" {
        let golden = Golden::open(name);
        let (pixels, embeds) = (golden.floats("pixel_values"), golden.floats("image_embeds"));
        let side = inputs[0].dims[2].unwrap();
        let shape = vec![pixels.len() / (3 * side * side), 3, side, side];
        let found = Tensor::F32 { shape: vec![embeds.len()], data: embeds };
        let pixels = Tensor::F32 { shape, data: pixels };
        return (vec![pixels], vec![("image_embeds".to_owned(), found)]);
    }
    let given = tensors(name, &format!("{case}/in/"));
    let input = |declared: &GraphInput| {
        given.iter().find(|(name, _)| *name == declared.name).unwrap().1.clone()
    };
    (inputs.iter().map(input).collect(), tensors(name, &format!("{case}/out/")))
}

/// An engine for cards whose kernels are what `image` makes for heads of so many numbers; and those numbers.
fn build(onnx: &Path, built: &Path, image: impl Fn(usize) -> Vec<u8>) -> usize {
    let packed = graph::pack_for_card(onnx, built, &mut |_| {}).unwrap();
    let head = packed.head();
    packed.finish(TARGET, &image(head)).unwrap();
    head
}

/// A device that needs no GPU and knows the kernels of graphs.
fn device(head: usize) -> (Arc<RecordingDriver>, Arc<dyn Driver>) {
    let twin = Arc::new(RecordingDriver::new(card(Sm(90), 1 << 30, false)));
    twin::teach_graph(&twin, head);
    let driver: Arc<dyn Driver> = Arc::<RecordingDriver>::clone(&twin);
    (twin, driver)
}

fn only(dir: &Path, driver: &Arc<dyn Driver>) -> Box<dyn Graph> {
    let mut graphs = CudaGraph::open_all(dir, driver).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(graphs.len(), 1);
    graphs.remove(0).1
}

/// How far outputs are from what is expected, as a part of the largest number.
fn compare(what: &str, graph: &dyn Graph, found: &[Tensor], expected: &[(String, Tensor)]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (declared, found) in graph.outputs().iter().zip(found) {
        let (_, expect) = expected.iter().find(|(name, _)| *name == declared.name).unwrap();
        let (found, expect) = (found.floats().unwrap(), expect.floats().unwrap());
        assert_eq!(found.len(), expect.len(), "{what}");
        let scale = expect.iter().fold(0.0f32, |most, number| most.max(number.abs()));
        let most = found.iter().zip(expect).fold(0.0f32, |most, (a, b)| {
            let off = (a - b).abs() / scale;
            if off > most || off.is_nan() { off } else { most }
        });
        println!("{what} {}: off by {most:e} of the largest", declared.name);
        assert!(most <= TOLERANCE, "{what} {}: {most:e}", declared.name);
    }
}

/// Three of what a graph of pictures takes, at once and each alone: the same bits.
fn keep_company(what: &str, graph: &dyn Graph, inputs: &[Tensor]) {
    let [Tensor::F32 { shape, data }] = inputs else { return };
    if graph.inputs()[0].dims[0].is_some() {
        return;
    }
    let one: usize = shape[1..].iter().product();
    let of = |count: usize, data: Vec<f32>| {
        vec![Tensor::F32 { shape: [&[count][..], &shape[1..]].concat(), data }]
    };
    let others = [1.0, -0.5, 0.25].map(|by| data[..one].iter().map(|x| x * by).collect::<Vec<_>>());
    let together = graph.run(of(3, others.concat())).unwrap();
    for (index, other) in others.into_iter().enumerate() {
        for (all, alone) in together.iter().zip(graph.run(of(1, other)).unwrap()) {
            let (all, alone) = (all.floats().unwrap(), alone.floats().unwrap());
            let bits = |numbers: &[f32]| numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            let among = &all[index * alone.len()..(index + 1) * alone.len()];
            assert_eq!(bits(among), bits(alone), "{what}: {index} alone");
        }
    }
}

#[test]
fn towers_and_encoders_give_what_transformers_do() {
    for (name, case) in ALL {
        let dir = TempDir::new().unwrap();
        let (onnx, built) = (dir.path().join("onnx"), dir.path().join("engine"));
        exported(name, case, Dtype::F16, &onnx);
        let head = build(&onnx, &built, |_| b"none".to_vec());
        let (twin, driver) = device(head);
        let what = format!("{name} {case}");
        let graph = only(&built, &driver);
        let (inputs, expected) = case_of(name, case, graph.inputs());
        compare(&what, &*graph, &graph.run(inputs.clone()).unwrap(), &expected);
        keep_company(&what, &*graph, &inputs);
        assert_eq!(twin.violations(), [""; 0], "{what}");
        drop(graph);
        assert_eq!(twin.held(), Held::default(), "{what}");
    }
}

#[test]
fn graphs_of_several_sizes_share_their_weights_on_the_card() {
    let dir = TempDir::new().unwrap();
    let (onnx, built) = (dir.path().join("onnx"), dir.path().join("engine"));
    let checkpoint = Checkpoint::open(&golden("qwen3_vl-tiny").join("checkpoint")).unwrap();
    let grids = ["32x32", "24x40", "48x16"].map(|grid| grid.parse::<Grid>().unwrap());
    export::vision_on(&checkpoint, &grids, Dtype::F32, &onnx, &mut |_| {}).unwrap();
    let head = build(&onnx, &built, |_| b"none".to_vec());
    let (twin, driver) = device(head);
    let graphs = CudaGraph::open_all(&built, &driver).unwrap();
    assert_eq!(graphs.iter().map(|(grid, _)| grid.unwrap()).collect::<Vec<_>>(), grids);
    for (grid, graph) in &graphs {
        let case = format!("vision-{}", grid.unwrap());
        let (inputs, expected) = case_of("qwen3_vl-tiny", &case, graph.inputs());
        compare(&case, &**graph, &graph.run(inputs).unwrap(), &expected);
    }
    drop(graphs);
    assert_eq!((twin.violations(), twin.held()), (Vec::new(), Held::default()));
}

#[test]
fn an_engine_for_cards_is_none_for_processors_and_says_what_it_is_without_a_card() {
    let dir = TempDir::new().unwrap();
    let (onnx, built) = (dir.path().join("onnx"), dir.path().join("engine"));
    exported("bert-tiny", "encoder", Dtype::F32, &onnx);
    let head = build(&onnx, &built, |_| b"none".to_vec());
    let error = GraphEngine::open(&built).unwrap_err().to_string();
    assert!(error.contains("target \"cuda-sm90\" is not \"cpu\""), "{error}");
    let graph = CudaGraph::describe_all(&built).unwrap().remove(0).1;
    let (inputs, _) = case_of("bert-tiny", "encoder", graph.inputs());
    let error = graph.run(inputs).unwrap_err().to_string();
    assert!(error.contains("no card of cuda-sm90 was opened"), "{error}");
    graph.verify_digest(&mut |_| {}).unwrap();
    let orin: Arc<dyn Driver> = Arc::new(RecordingDriver::new(card(Sm(87), 1 << 30, true)));
    let error = CudaGraph::open_all(&built, &orin).unwrap_err().to_string();
    assert!(error.contains("its kernels are for sm_90, and recording is sm_87"), "{error}");
    let (_, driver) = device(head);
    let kernels = built.join(TARGET.kernels_file());
    fs::write(&kernels, b"other").unwrap();
    let error = CudaGraph::open_all(&built, &driver).unwrap_err().to_string();
    assert!(error.contains(TARGET.kernels_file()) && !error.contains('\n'), "{error}");
}

#[test]
fn a_graph_that_cards_do_not_run_is_refused_by_its_node() {
    let dir = TempDir::new().unwrap();
    let onnx = dir.path().join("onnx");
    fs::create_dir(&onnx).unwrap();
    fs::copy(golden("yolo-tiny").join("yolo.onnx"), onnx.join("model.onnx")).unwrap();
    let Err(error) = graph::pack_for_card(&onnx, &dir.path().join("engine"), &mut |_| {}) else {
        panic!("a detector was built for cards");
    };
    let error = error.to_string();
    let words = ["node ", "engines for cards do not have this operator", "\"onnxruntime\""];
    assert!(words.iter().all(|word| error.contains(word)) && !error.contains('\n'), "{error}");
}

#[test]
fn whatever_call_fails_nothing_leaks_is_used_late_or_answered_wrong() {
    let dir = TempDir::new().unwrap();
    let (onnx, built) = (dir.path().join("onnx"), dir.path().join("engine"));
    exported("bert-tiny", "encoder", Dtype::F16, &onnx);
    let head = build(&onnx, &built, |_| b"none".to_vec());
    let everything = |driver: &Arc<dyn Driver>| -> Result<Vec<Tensor>, String> {
        let open = || CudaGraph::open_all(&built, driver).map_err(|error| error.to_string());
        // It may be tried again at once.
        let graph = open().or_else(|_| open())?.remove(0).1;
        let (inputs, _) = case_of("bert-tiny", "encoder", graph.inputs());
        let run = || graph.run(inputs.clone()).map_err(|error| error.to_string());
        run().or_else(|_| run())
    };
    let (sound, driver) = device(head);
    let expected = everything(&driver).unwrap();
    let calls: Vec<&str> = sound.calls().iter().map(|call| call.name).collect();
    let lost = DriverError::DeviceLost { call: "launch", problem: "gone".to_owned() };
    let refused = DriverError::Refused { call: "launch", problem: "no".to_owned() };
    let mut went_on = 0;
    for error in [DriverError::NoMemory { bytes: 1 }, refused, lost] {
        for nth in (0..calls.len()).step_by(5) {
            let (twin, driver) = device(head);
            twin.fail_after(nth, error.clone());
            let what = format!("{nth} {} {error}", calls[nth]);
            match everything(&driver) {
                Ok(found) => {
                    assert!(found == expected, "{what}: other numbers");
                    went_on += 1;
                }
                Err(told) => assert!(error.is_sticky() && told.contains("lost"), "{what}: {told}"),
            }
            assert_eq!(twin.violations(), [""; 0], "{what}");
            assert_eq!(twin.held(), Held::default(), "{what}");
        }
    }
    assert!(went_on > calls.len() / 5, "{went_on}");
}

fn written(tensor: &Tensor) -> Value {
    match tensor {
        Tensor::F32 { shape, data } => json!({ "shape": shape, "floats": data }),
        Tensor::I64 { shape, data } => json!({ "shape": shape, "integers": data }),
    }
}

fn read(value: &Value) -> Tensor {
    let shape = serde_json::from_value(value["shape"].clone()).unwrap();
    match value.get("floats") {
        Some(data) => Tensor::F32 { shape, data: serde_json::from_value(data.clone()).unwrap() },
        None => {
            let data = serde_json::from_value(value["integers"].clone()).unwrap();
            Tensor::I64 { shape, data }
        }
    }
}

/// Writes every graph with its kernels for the card, and what it has to give, into `folder`.
pub(super) fn write_all(folder: &Path) {
    let compiled = |head: usize| {
        let text = graph_source(head);
        let text = Source { name: "graph.cu".to_owned(), text, defines: Vec::new() };
        let kept = std::env::temp_dir().join("smelt-cubins");
        compile(&text, TARGET, Some(&kept)).unwrap().image
    };
    for (name, case) in ALL {
        let dir = TempDir::new().unwrap();
        let onnx = dir.path().join("onnx");
        exported(name, case, Dtype::F16, &onnx);
        let built = folder.join(format!("{FOLDER}{name}-{case}"));
        build(&onnx, &built, compiled);
        let graph = CudaGraph::describe_all(&built).unwrap().remove(0).1;
        let (inputs, expected) = case_of(name, case, graph.inputs());
        let inputs: Vec<Value> = inputs.iter().map(written).collect();
        let expected: Vec<Value> =
            expected.iter().map(|(name, tensor)| json!([name, written(tensor)])).collect();
        let cases = json!({ "inputs": inputs, "outputs": expected });
        fs::write(built.join(CASES), cases.to_string()).unwrap();
    }
}

/// Whether a folder is that of a graph.
pub(super) fn is_graph(dir: &Path) -> bool {
    dir.file_name().is_some_and(|name| name.to_string_lossy().starts_with(FOLDER))
}

fn try_graph(dir: &Path, driver: &Arc<dyn Driver>) {
    let text = fs::read_to_string(dir.join(CASES)).unwrap();
    let cases: Value = serde_json::from_str(&text).unwrap();
    let inputs: Vec<Tensor> = cases["inputs"].as_array().unwrap().iter().map(read).collect();
    let expected = cases["outputs"].as_array().unwrap().iter();
    let expected = expected.map(|pair| (pair[0].as_str().unwrap().to_owned(), read(&pair[1])));
    let expected: Vec<(String, Tensor)> = expected.collect();
    let (graph, what) = (only(dir, driver), dir.display().to_string());
    compare(&what, &*graph, &graph.run(inputs.clone()).unwrap(), &expected);
    keep_company(&what, &*graph, &inputs);
}

#[test]
#[ignore = "needs a card"]
fn on_a_card_graphs_give_what_transformers_do() {
    let driver = smelt_cuda::open(0).unwrap_or_else(|error| panic!("{error}"));
    let entries = fs::read_dir(super::card::engines()).unwrap();
    let all = entries.map(|entry| entry.unwrap().path());
    let mut dirs: Vec<PathBuf> = all.filter(|dir| is_graph(dir)).collect();
    dirs.sort();
    dirs.iter().for_each(|dir| try_graph(dir, &driver));
    assert!(!dirs.is_empty());
}

mod on_a_card {
    use super::*;

    /// What a sanitizer looks at: a tower and an encoder, once.
    #[test]
    #[ignore = "needs a card"]
    fn small_graphs_run() {
        let driver = smelt_cuda::open(0).unwrap_or_else(|error| panic!("{error}"));
        for name in ["internvl3-tiny-vision", "bert-tiny-encoder"] {
            try_graph(&super::super::card::engines().join(format!("{FOLDER}{name}")), &driver);
        }
    }
}
