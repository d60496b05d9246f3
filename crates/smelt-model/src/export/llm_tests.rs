//! Exports tiny decoders and evaluates the graphs against what transformers computed.

use std::collections::BTreeSet;
use std::path::Path;

use smelt_onnx::eval::{Tensor, evaluate};
use smelt_onnx::{Data, Dim, ElementType, MODEL_FILE, Model};
use tempfile::TempDir;

use super::{ExportError, LlmInput, llm, probe};
use crate::checkpoint::Checkpoint;
use crate::decoder::EMBEDDING;
use crate::dtype::Dtype;
use crate::golden::{Golden, TEXT, Tensors, check_close};
use crate::model::ModelPart;
use crate::quantize::{Options, Scheme, quantize};

/// The largest errors, as parts of the largest value of an output.
const F32: f64 = 5e-5;
/// Weights and every activation have 11 bits.
const F16: f64 = 5e-3;
/// Weights and every activation have 8 bits.
const BF16: f64 = 4e-2;

struct Exported {
    dir: TempDir,
    model: Model,
}

fn export(checkpoint: &Checkpoint, dtype: Dtype, input: LlmInput) -> Exported {
    let dir = tempfile::tempdir().unwrap();
    llm(checkpoint, dtype, input, dir.path(), &mut |_| {}).unwrap();
    let model = Model::read(&dir.path().join(MODEL_FILE)).unwrap();
    Exported { dir, model }
}

/// The inputs of a case as a graph wants them: without a cache where there is none, floats in the
/// graph's type.
fn inputs(graph: &Exported, checkpoint: &Checkpoint, given: &Tensors) -> Tensors {
    let batch = given["attention_mask"].dims()[0];
    let input = |info: &smelt_onnx::ValueInfo| {
        let tensor = match given.get(&info.name) {
            Some(tensor) => tensor.clone(),
            None if info.name == "inputs_embeds" => embedded(checkpoint, &given["input_ids"]),
            None => no_cache(batch, info.dims.as_ref().unwrap()),
        };
        (info.name.clone(), tensor.cast(info.dtype))
    };
    graph.model.graph.inputs.iter().map(input).collect()
}

fn no_cache(batch: usize, dims: &[Dim]) -> Tensor {
    let [_, Dim::Fixed(heads), _, Dim::Fixed(width)] = dims else { panic!("{dims:?}") };
    Tensor::floats(ElementType::F32, &[batch, *heads, 0, *width], vec![])
}

fn embedded(checkpoint: &Checkpoint, ids: &Tensor) -> Tensor {
    let hidden = checkpoint.decoder().unwrap().hidden;
    let table = checkpoint.read_f32(EMBEDDING).unwrap();
    let row = |id: &i64| table[*id as usize * hidden..][..hidden].iter().map(|x| f64::from(*x));
    let values = ids.as_ints().unwrap().iter().flat_map(row).collect();
    Tensor::floats(ElementType::F32, &[ids.dims(), &[hidden]].concat(), values)
}

/// The elements that belong to tokens.  Places of padding see nothing, so what they hold means
/// nothing.
fn attended(name: &str, tensor: &Tensor, mask: &Tensor) -> Vec<f64> {
    let (dims, values) = (tensor.dims(), tensor.as_floats().unwrap());
    // Rows of `logits` are [batch, tokens], of caches [batch, heads, places].
    let (width, rows) = (dims[dims.len() - 1], dims[dims.len() - 2]);
    let rows_of_one = values.len() / width / dims[0];
    assert!(name == "logits" || name.starts_with("present."), "{name}");
    let (mask, places) = (mask.as_ints().unwrap(), mask.dims()[1]);
    let is_token = |row: usize| {
        let place = places - rows + row % rows;
        mask[row / rows_of_one * places + place] != 0
    };
    let of_tokens = values.chunks(width).enumerate().filter(|(row, _)| is_token(*row));
    of_tokens.flat_map(|(_, values)| values.to_vec()).collect()
}

/// Every case of the golden, evaluated; outputs the golden does not have are not looked at.
#[track_caller]
fn check(name: &str, dtype: Dtype, input: LlmInput, bound: f64) {
    let golden = Golden::open(name);
    let checkpoint = golden.checkpoint();
    let graph = export(&checkpoint, dtype, input);
    for case in golden.cases().iter().filter(|case| case.starts_with("llm")) {
        let given = golden.tensors(case, "in");
        let inputs = inputs(&graph, &checkpoint, &given);
        let outputs = evaluate(&graph.model, graph.dir.path(), &inputs).unwrap();
        let expected = golden.tensors(case, "out");
        assert!(!expected.is_empty(), "{case} expects nothing");
        for (info, found) in graph.model.graph.outputs.iter().zip(&outputs) {
            let what = format!("{name} {dtype} {input:?} {case} {}", info.name);
            // Padding, too: in a cache one NaN would reach every later token.
            assert!(found.as_floats().unwrap().iter().all(|x| x.is_finite()), "{what}");
            if let Some(expect) = expected.get(&info.name) {
                assert_eq!(found.dims(), expect.dims(), "{what}");
                let [found, expect] =
                    [found, expect].map(|t| attended(&info.name, t, &given["attention_mask"]));
                check_close(&what, &found, &expect, bound);
            }
        }
    }
}

#[test]
fn prompts_and_steps_give_the_logits_and_caches_of_transformers() {
    for name in TEXT {
        check(name, Dtype::F32, LlmInput::Ids, F32);
    }
}

#[test]
fn embeddings_may_come_from_outside() {
    for name in ["qwen2-tiny", "qwen2_5-tiny", "smolvlm-tiny"] {
        check(name, Dtype::F32, LlmInput::Embeds, F32);
    }
}

#[test]
fn tokens_of_three_positions_and_deepstack_give_the_logits_of_transformers() {
    for name in ["qwen2_vl-tiny", "qwen2_5_vl-tiny", "qwen3_vl-tiny"] {
        check(name, Dtype::F32, LlmInput::Embeds, F32);
        check(name, Dtype::F16, LlmInput::Embeds, F16);
        check(name, Dtype::BF16, LlmInput::Embeds, BF16);
    }
}

#[test]
fn narrow_graphs_stay_close() {
    for name in TEXT {
        check(name, Dtype::F16, LlmInput::Ids, F16);
        check(name, Dtype::BF16, LlmInput::Ids, BF16);
    }
}

#[test]
fn a_tied_head_is_stored_once_and_an_unread_embedding_not_at_all() {
    let weights = |name: &str, input| {
        let graph = export(&Golden::open(name).checkpoint(), Dtype::F16, input).model.graph;
        let is_stored = |data: &Data| matches!(data, Data::External { .. });
        let of_vocab = graph.initializers.iter().filter(|t| t.dims.first() == Some(&160));
        let names = of_vocab.filter(|t| is_stored(&t.data)).map(|t| t.name.clone());
        names.collect::<Vec<_>>()
    };
    let head = "language_model.lm_head.weight";
    assert_eq!(weights("qwen2_5-tiny", LlmInput::Ids), [EMBEDDING]);
    assert_eq!(weights("qwen2_5-tiny", LlmInput::Embeds), [EMBEDDING]);
    assert_eq!(weights("qwen2-tiny", LlmInput::Ids), [EMBEDDING, head]);
    assert_eq!(weights("qwen2-tiny", LlmInput::Embeds), [head]);
}

#[test]
fn inputs_and_outputs_are_named_and_open_where_they_should_be() {
    let graph = export(&Golden::open("qwen2-tiny").checkpoint(), Dtype::BF16, LlmInput::Ids);
    let graph = graph.model.graph;
    let words = |infos: &[smelt_onnx::ValueInfo]| {
        let dim = |dim: &Dim| match dim {
            Dim::Symbol(name) => name.clone(),
            Dim::Fixed(size) => size.to_string(),
            other => format!("{other:?}"),
        };
        let dims = |info: &smelt_onnx::ValueInfo| {
            info.dims.iter().flatten().map(dim).collect::<Vec<_>>().join(",")
        };
        let word =
            |info: &smelt_onnx::ValueInfo| format!("{} {} {}", info.name, info.dtype, dims(info));
        infos.iter().map(word).collect::<Vec<_>>()
    };
    let inputs = words(&graph.inputs);
    assert_eq!(
        inputs[..4],
        [
            "input_ids i64 batch,tokens",
            "position_ids i64 batch,tokens",
            "attention_mask i64 batch,total",
            "past_key_values.0.key bf16 batch,2,past,8",
        ]
    );
    assert_eq!(inputs.len(), 3 + 4);
    let outputs = words(&graph.outputs);
    assert_eq!(outputs[0], "logits bf16 batch,tokens,160");
    assert_eq!(outputs[4], "present.1.value bf16 batch,2,total,8");
}

#[test]
fn only_plain_operators_are_used_and_none_is_trigonometry_in_narrow_types() {
    let graph = export(&Golden::open("qwen3-tiny").checkpoint(), Dtype::BF16, LlmInput::Ids);
    let ops: BTreeSet<&str> = graph.model.graph.nodes.iter().map(|node| node.op.as_str()).collect();
    let expect = "Add And Cast Concat Cos Div Expand Gather Gemm GreaterOrEqual MatMul Mul Neg \
                  Range ReduceMean Reshape Shape Sigmoid Sin Softmax Split Sqrt Sub Transpose \
                  Unsqueeze Where";
    assert_eq!(ops.into_iter().collect::<Vec<_>>().join(" "), expect);
}

#[test]
fn quantised_weights_are_exported_as_the_floats_they_stand_for() {
    let (golden, dir) = (Golden::open("qwen2-tiny"), tempfile::tempdir().unwrap());
    let quantised = dir.path().join("int8");
    quantize(&golden.checkpoint(), &Options::plain(Scheme::Int8), &quantised, &mut |_| {}).unwrap();
    let checkpoint = Checkpoint::open(&quantised).unwrap();
    let graph = export(&checkpoint, Dtype::F32, LlmInput::Ids);
    for name in
        ["language_model.lm_head.weight", "language_model.model.layers.1.mlp.up_proj.weight"]
    {
        assert_eq!(checkpoint.dtype(name).unwrap(), Dtype::I8);
        let tensor = graph.model.graph.initializers.iter().find(|t| t.name == name).unwrap();
        let found = smelt_onnx::eval::load(graph.dir.path(), tensor).unwrap();
        let expect = checkpoint.read_f32(name).unwrap();
        assert!(found.as_floats().unwrap().iter().zip(expect).all(|(f, e)| *f == f64::from(e)));
    }
}

#[test]
fn equal_checkpoints_give_equal_bytes() {
    let bytes = |dir: &Path| {
        ["model.onnx", "model.onnx.data"].map(|file| std::fs::read(dir.join(file)).unwrap())
    };
    let checkpoint = Golden::open("llama3-tied-tiny").checkpoint();
    let [one, two] = [(); 2].map(|()| export(&checkpoint, Dtype::F16, LlmInput::Ids));
    assert!(bytes(one.dir.path()) == bytes(two.dir.path()));
}

/// Multiplies the stored f32 tensor `name` of a copy of the checkpoint.
fn scaled_copy(golden: &Golden, name: &str, factor: f32) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    golden.copy_checkpoint(dir.path());
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        if path.extension().is_none_or(|extension| extension != "safetensors") {
            continue;
        }
        let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let table: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
        let Some(place) = table.get(name).and_then(|tensor| tensor["data_offsets"].as_array())
        else {
            continue;
        };
        let [begin, end] = [0, 1].map(|at| 8 + header + place[at].as_u64().unwrap() as usize);
        for word in bytes[begin..end].as_chunks_mut::<4>().0 {
            *word = (f32::from_le_bytes(*word) * factor).to_le_bytes();
        }
        std::fs::write(&path, bytes).unwrap();
    }
    dir
}

#[test]
fn the_probe_names_the_first_block_that_f16_cannot_hold() {
    let golden = Golden::open("qwen3-tiny");
    let out = tempfile::tempdir().unwrap();
    let record = |checkpoint: &Checkpoint, dtype| {
        probe::record(checkpoint, ModelPart::Llm, dtype, out.path(), &mut |_| {})
    };
    record(&golden.checkpoint(), Dtype::F16).unwrap();
    let text = std::fs::read_to_string(out.path().join(probe::PROBE_FILE)).unwrap();
    let blocks = serde_json::from_str::<serde_json::Value>(&text).unwrap()["blocks"].clone();
    let block = |n: usize| blocks[n]["name"].as_str().unwrap().to_owned();
    let layer = |n: usize| format!("language_model.model.layers.{n}");
    assert_eq!([block(0), block(1)], [layer(0), layer(1)]);
    assert!(blocks[1]["largest"].as_f64().unwrap() > 0.1);

    // Every weight still fits f16.
    let loud = scaled_copy(&golden, "model.layers.1.mlp.down_proj.weight", 2e4);
    let loud = Checkpoint::open(loud.path()).unwrap();
    llm(&loud, Dtype::F16, LlmInput::Ids, &out.path().join("graph"), &mut |_| {}).unwrap();
    let error = record(&loud, Dtype::F16).unwrap_err();
    let ExportError::ActivationBeyondF16 { block, value } = error else { panic!("{error}") };
    assert_eq!(block, layer(1));
    assert!(value > 65504.0, "{value}");
    record(&loud, Dtype::BF16).unwrap();
}

#[test]
fn weights_that_are_no_numbers_are_named_even_where_bytes_are_copied() {
    let golden = Golden::open("qwen3-tiny");
    let name = "model.layers.1.self_attn.q_norm.weight";
    let broken = scaled_copy(&golden, name, f32::NAN);
    let checkpoint = Checkpoint::open(broken.path()).unwrap();
    for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
        let out = tempfile::tempdir().unwrap();
        let error = llm(&checkpoint, dtype, LlmInput::Ids, out.path(), &mut |_| {}).unwrap_err();
        let expect = format!("tensor language_model.{name} holds NaN at element 0");
        assert!(error.to_string().starts_with(&expect), "{error}");
    }
}
