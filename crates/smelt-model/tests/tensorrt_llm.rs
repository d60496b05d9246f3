//! Writes decoders for TensorRT-LLM, and reads them back as its kernels do, one number at a time.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use serde_json::{Value, json};
use smelt_model::checkpoint::Checkpoint;
use smelt_model::dtype::Dtype;
use smelt_model::quantize::{Method, Options, Scheme, described, quantize};
use smelt_model::repacked::{self, Format};
use smelt_model::safetensors::{Reader, Tensor, TensorSpec, Writer};
use smelt_model::tensorrt_llm::{RANK_FILE, check, warning, write};
use tempfile::TempDir;

const HIDDEN: usize = 256;
const INNER: usize = 384;
const HEADS: usize = 8;
const KV_WIDTH: usize = 64;
const QKV_WIDTH: usize = HIDDEN + 2 * KV_WIDTH;
const VOCAB: usize = 96;
const LAYERS: usize = 2;

/// What the canonical tensors of a layer are called.
const LAYER: &str = "language_model.model.layers";

/// The linear weights of a layer: theirs, and which of ours lie in it.
const LINEARS: [(&str, &[&str]); 5] = [
    ("attention.qkv", &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
    ("attention.dense", &["self_attn.o_proj"]),
    ("mlp.fc", &["mlp.gate_proj"]),
    ("mlp.gate", &["mlp.up_proj"]),
    ("mlp.proj", &["mlp.down_proj"]),
];

/// Tensors by name: type, shape and bytes.
type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

fn configuration(class: &str) -> Value {
    json!({
        "architectures": [class], "hidden_size": HIDDEN, "intermediate_size": INNER,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": 2,
        "vocab_size": VOCAB, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0,
        "max_position_embeddings": 512,
    })
}

/// A decoder of some class with weights that follow no pattern.
struct Sample {
    dir: TempDir,
    dtype: Dtype,
    config: Value,
    has_head: bool,
    /// A tensor that holds a NaN.
    spoilt: Option<&'static str>,
}

impl Sample {
    fn of(class: &str, dtype: Dtype) -> Self {
        let (dir, config) = (TempDir::new().unwrap(), configuration(class));
        Self { dir, dtype, config, has_head: true, spoilt: None }
    }

    fn qwen() -> Self {
        Self::of("Qwen2ForCausalLM", Dtype::BF16)
    }

    fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let number = |field: &str| self.config[field].as_u64().unwrap() as usize;
        let (hidden, inner) = (number("hidden_size"), number("intermediate_size"));
        let mut all = vec![("model.embed_tokens.weight".to_owned(), vec![VOCAB, hidden])];
        for layer in 0..LAYERS {
            let mut put = |name: &str, shape: &[usize]| {
                all.push((format!("model.layers.{layer}.{name}"), shape.to_vec()));
            };
            let has_bias = self.config["architectures"][0] == "Qwen2ForCausalLM"
                || self.config["attention_bias"] == true;
            for (name, rows) in [("q", hidden), ("k", KV_WIDTH), ("v", KV_WIDTH), ("o", hidden)] {
                put(&format!("self_attn.{name}_proj.weight"), &[rows, hidden]);
                if has_bias && (name != "o" || self.config["attention_bias"] == true) {
                    put(&format!("self_attn.{name}_proj.bias"), &[rows]);
                }
            }
            put("mlp.gate_proj.weight", &[inner, hidden]);
            put("mlp.up_proj.weight", &[inner, hidden]);
            put("mlp.down_proj.weight", &[hidden, inner]);
            put("input_layernorm.weight", &[hidden]);
            put("post_attention_layernorm.weight", &[hidden]);
        }
        all.push(("model.norm.weight".to_owned(), vec![hidden]));
        if self.has_head {
            all.push(("lm_head.weight".to_owned(), vec![VOCAB, hidden]));
        }
        all
    }

    fn save(&self) {
        let tensors = self.tensors();
        let spec = |(name, shape): &(String, Vec<usize>)| TensorSpec {
            name: name.clone(),
            dtype: self.dtype,
            shape: shape.clone(),
        };
        let specs: Vec<TensorSpec> = tensors.iter().map(spec).collect();
        let path = self.dir.path().join("model.safetensors");
        let mut writer = Writer::create(&path, &specs, &BTreeMap::new()).unwrap();
        for (seed, (name, shape)) in (1..).zip(&tensors) {
            let mut numbers = noise(seed, shape.iter().product());
            if self.spoilt == Some(name) {
                *numbers.last_mut().unwrap() = f32::NAN;
            }
            writer.write(&bytes(&numbers, self.dtype)).unwrap();
        }
        writer.finish().unwrap();
        fs::write(self.dir.path().join("config.json"), self.config.to_string()).unwrap();
    }

    fn open(&self) -> Checkpoint {
        self.save();
        Checkpoint::open(self.dir.path()).unwrap()
    }

    /// The same in smelt's own form under `scheme`, the head as it is.
    fn rounded(&self, scheme: Scheme) -> (TempDir, Checkpoint) {
        let (dir, options) = (TempDir::new().unwrap(), plain(scheme));
        quantize(&self.open(), &options, dir.path(), &mut |_| {}).unwrap();
        let packed = Checkpoint::open(dir.path()).unwrap();
        (dir, packed)
    }
}

fn plain(scheme: Scheme) -> Options<'static> {
    Options { head: Some(Scheme::None), ..Options::plain(scheme) }
}

fn noise(seed: u32, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_769);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..len).map(|_| next()).collect()
}

fn bytes(numbers: &[f32], dtype: Dtype) -> Vec<u8> {
    let of = |number: &f32| match dtype {
        Dtype::BF16 => bf16::from_f32(*number).to_le_bytes().to_vec(),
        Dtype::F16 => f16::from_f32(*number).to_le_bytes().to_vec(),
        _ => number.to_le_bytes().to_vec(),
    };
    numbers.iter().flat_map(of).collect()
}

/// The numbers of a tensor of halves.
fn numbers((dtype, _, bytes): &(Dtype, Vec<usize>, Vec<u8>)) -> Vec<f32> {
    let of = |half: &[u8; 2]| match dtype {
        Dtype::BF16 => bf16::from_le_bytes(*half).to_f32(),
        _ => f16::from_le_bytes(*half).to_f32(),
    };
    bytes.as_chunks::<2>().0.iter().map(of).collect()
}

fn read(path: &Path) -> Tensors {
    let reader = Reader::open(path).unwrap();
    let load = |tensor: &Tensor| {
        let mut bytes = vec![0; tensor.size_bytes() as usize];
        reader.read_at(tensor, 0, &mut bytes).unwrap();
        (tensor.name.clone(), (tensor.dtype, tensor.shape.clone(), bytes))
    };
    reader.tensors().map(load).collect()
}

/// What is written of `ckpt`: its tensors and its configuration.
fn written(ckpt: &Checkpoint) -> (Tensors, Value) {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("out");
    check(ckpt).unwrap();
    write(ckpt, &out, &mut |_| {}).unwrap();
    let config = fs::read_to_string(out.join("config.json")).unwrap();
    (read(&out.join(RANK_FILE)), serde_json::from_str(&config).unwrap())
}

/// The numbers of the canonical tensors `sources` of a layer, one after another.
fn floats(ckpt: &Checkpoint, layer: usize, sources: &[&str], end: &str) -> Vec<f32> {
    let read = |source: &&str| ckpt.read_f32(&format!("{LAYER}.{layer}.{source}{end}")).unwrap();
    sources.iter().flat_map(read).collect()
}

#[test]
fn floats_go_over_with_queries_keys_and_values_as_one() {
    for (class, stored, dtype, has_head) in [
        ("Qwen2ForCausalLM", Dtype::BF16, Dtype::BF16, true),
        ("Qwen2ForCausalLM", Dtype::F32, Dtype::F16, false),
        ("LlamaForCausalLM", Dtype::F16, Dtype::F16, false),
    ] {
        let sample = Sample { has_head, ..Sample::of(class, stored) };
        let ckpt = sample.open();
        let (mut tensors, config) = written(&ckpt);
        let word = if dtype == Dtype::BF16 { "bfloat16" } else { "float16" };
        assert_eq!(
            (&config["dtype"], &config["quantization"]["quant_algo"]),
            (&json!(word), &Value::Null)
        );
        let mut take = |name: &str, shape: &[usize], expect: &[f32]| {
            let (found, its, data) = tensors.remove(name).unwrap_or_else(|| panic!("no {name}"));
            assert_eq!((found, its.as_slice()), (dtype, shape), "{name}");
            assert!(data == bytes(expect, dtype), "{class}: {name} differs");
        };
        let whole = |name: &str| ckpt.read_f32(&format!("language_model.{name}.weight")).unwrap();
        let embedding = whole("model.embed_tokens");
        take("transformer.vocab_embedding.weight", &[VOCAB, HIDDEN], &embedding);
        let head = if has_head { whole("lm_head") } else { embedding };
        take("lm_head.weight", &[VOCAB, HIDDEN], &head);
        take("transformer.ln_f.weight", &[HIDDEN], &whole("model.norm"));
        for layer in 0..LAYERS {
            let name = |module: &str| format!("transformer.layers.{layer}.{module}");
            let sizes = [
                [QKV_WIDTH, HIDDEN],
                [HIDDEN, HIDDEN],
                [INNER, HIDDEN],
                [INNER, HIDDEN],
                [HIDDEN, INNER],
            ];
            for ((module, sources), shape) in LINEARS.iter().zip(sizes) {
                let expect = floats(&ckpt, layer, sources, ".weight");
                take(&name(&format!("{module}.weight")), &shape, &expect);
            }
            if class == "Qwen2ForCausalLM" {
                let expect = floats(&ckpt, layer, LINEARS[0].1, ".bias");
                take(&name("attention.qkv.bias"), &[QKV_WIDTH], &expect);
            }
            for (norm, source) in [
                ("input_layernorm", "input_layernorm"),
                ("post_layernorm", "post_attention_layernorm"),
            ] {
                let expect = floats(&ckpt, layer, &[source], ".weight");
                take(&name(&format!("{norm}.weight")), &[HIDDEN], &expect);
            }
        }
        assert!(tensors.is_empty(), "nobody knows {:?}", tensors.keys());
    }
}

/// Where quant `input`, `output` of a matrix of `inputs` lies: byte and shift.
fn place(bits: usize, inputs: usize, input: usize, output: usize) -> (usize, usize) {
    let block: &[usize] = match bits {
        4 => &[
            0, 1, 8, 9, 16, 17, 24, 25, 2, 3, 10, 11, 18, 19, 26, 27, 4, 5, 12, 13, 20, 21, 28, 29,
            6, 7, 14, 15, 22, 23, 30, 31,
        ],
        _ => &[0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15],
    };
    let moved = block.iter().position(|from| *from == input % block.len()).unwrap();
    let row = input / block.len() * block.len() + moved;
    let (in_word, together) = (32 / bits, 16 / bits);
    let (word, words_in_tile) = (row / in_word, 64 / in_word);
    let word = output / together * together * (inputs / in_word)
        + word / words_in_tile * words_in_tile * together
        + output % together * words_in_tile
        + word % words_in_tile;
    let to = match (bits, row % in_word) {
        (4, even) if even % 2 == 0 => even / 2,
        (4, odd) => 4 + odd / 2,
        (_, 1) => 2,
        (_, 2) => 1,
        (_, outer) => outer,
    };
    let bit = (word * in_word + to) * bits;
    (bit / 8, bit % 8)
}

/// The quants `[out, in]` of the canonical tensors `sources`, the middle being 0.
fn quants(ckpt: &Checkpoint, layer: usize, sources: &[&str], bits: usize) -> Vec<i16> {
    let mut all = Vec::new();
    for source in sources {
        let name = format!("{LAYER}.{layer}.{source}.weight");
        let mut bytes = vec![0; ckpt.shape(&name).unwrap().iter().product::<usize>() * bits / 8];
        ckpt.read_bytes(&name, 0, &mut bytes).unwrap();
        match bits {
            4 => all.extend(
                bytes.iter().flat_map(|byte| [byte & 15, byte >> 4]).map(|q| i16::from(q) - 8),
            ),
            _ => all.extend(bytes.iter().map(|byte| i16::from(byte.cast_signed()))),
        }
    }
    all
}

/// Holds one linear weight against the canonical ones it is made of.
fn check_linear(
    tensors: &Tensors,
    ckpt: &Checkpoint,
    (layer, module, sources): (usize, &str, &[&str]),
    (algorithm, bits): (&str, usize),
) {
    let part = |part: &str| &tensors[&format!("transformer.layers.{layer}.{module}.{part}")];
    let quants = quants(ckpt, layer, sources, bits);
    let inputs = if module == "mlp.proj" { INNER } else { HIDDEN };
    let outputs = quants.len() / inputs;
    let (dtype, shape, bytes) = part("weight");
    let is_grouped = algorithm == "W4A16_GPTQ";
    let (expect, width) = match (is_grouped, bits) {
        (true, _) => (Dtype::F16, outputs / 4),
        (false, 4) => (Dtype::I8, outputs / 2),
        (false, _) => (Dtype::I8, outputs),
    };
    assert_eq!((*dtype, shape.as_slice()), (expect, &[inputs, width][..]), "{module}");
    for output in 0..outputs {
        for input in 0..inputs {
            let (byte, shift) = place(bits, inputs, input, output);
            let stored = i16::from(bytes[byte] >> shift) & ((1 << bits) - 1);
            let found = stored - (1 << (bits - 1));
            assert_eq!(found, quants[output * inputs + input], "{module} {input} {output}");
        }
    }
    let scales = floats(ckpt, layer, sources, ".weight_scale");
    if !is_grouped {
        let (dtype, shape, bytes) = part("per_channel_scale");
        assert_eq!((*dtype, shape.as_slice()), (Dtype::BF16, &[outputs][..]));
        return assert!(*bytes == self::bytes(&scales, Dtype::BF16), "{module}");
    }
    let groups = inputs / 128;
    let (factors, shifts) = (part("weights_scaling_factor"), part("zero"));
    for tensor in [factors, shifts] {
        assert_eq!((tensor.0, tensor.1.as_slice()), (Dtype::F16, &[groups, outputs][..]));
    }
    // What a quant stands for there is what it stands for here.
    let numbers_here = floats(ckpt, layer, sources, ".weight");
    let (factors, shifts) = (numbers(factors), numbers(shifts));
    for output in 0..outputs {
        for input in 0..inputs {
            let at = input / 128 * outputs + output;
            let (factor, quant) = (factors[at], quants[output * inputs + input]);
            assert_eq!(factor, scales[output * groups + input / 128]);
            let found = f32::from(quant) * factor + shifts[at];
            let error = (found - numbers_here[output * inputs + input]).abs();
            assert!(error <= 0.005 * factor, "{module} {input} {output}: {error}");
        }
    }
}

#[test]
fn every_quant_lies_where_a_kernel_looks_for_it() {
    for (scheme, algorithm, bits) in [
        (Scheme::Int8, "W8A16", 8),
        (Scheme::Int4, "W4A16", 4),
        (Scheme::Int4G128, "W4A16_GPTQ", 4),
        (Scheme::Int4G128Asym, "W4A16_GPTQ", 4),
    ] {
        let (_dir, ckpt) = Sample::qwen().rounded(scheme);
        let (tensors, config) = written(&ckpt);
        assert_eq!(config["quantization"]["quant_algo"], algorithm);
        for layer in 0..LAYERS {
            for (module, sources) in LINEARS {
                check_linear(&tensors, &ckpt, (layer, module, sources), (algorithm, bits));
            }
        }
        let parts = if algorithm == "W4A16_GPTQ" { 3 } else { 2 };
        assert_eq!(tensors.len(), 3 + LAYERS * (3 + 5 * parts), "{scheme}");
        let symmetric = scheme == Scheme::Int4G128;
        let shifts = tensors.iter().filter(|(name, _)| name.ends_with(".zero"));
        assert!(
            shifts.clone().all(|(_, zero)| numbers(zero).iter().all(|z| *z == 0.0) == symmetric)
        );
    }
}

/// Groups as wide as a row are groups where others are narrower.
#[test]
fn one_group_a_row_is_a_group_where_other_rows_have_several() {
    let mut sample = Sample::qwen();
    sample.config["hidden_size"] = json!(128);
    sample.config["num_attention_heads"] = json!(4);
    let (tensors, config) = written(&sample.rounded(Scheme::Int4G128).1);
    assert_eq!(config["quantization"]["quant_algo"], "W4A16_GPTQ");
    for (module, shape) in [("attention.qkv", [1, 256]), ("mlp.proj", [3, 128])] {
        let name = format!("transformer.layers.0.{module}.weights_scaling_factor");
        assert_eq!(tensors[&name].1, shape);
    }
}

#[test]
fn a_checkpoint_of_gptq_is_written_as_our_own_rounding_is() {
    for scheme in [Scheme::Int4G128, Scheme::Int4G128Asym] {
        let sample = Sample::qwen();
        let (_dir, packed) = sample.rounded(scheme);
        let gptq = TempDir::new().unwrap();
        repacked::write(&packed, &sample.open(), Format::Gptq, gptq.path(), &mut |_| {}).unwrap();
        let (ours, theirs) = (written(&packed), written(&Checkpoint::open(gptq.path()).unwrap()));
        assert!(ours == theirs, "{scheme}");
    }
}

#[test]
fn the_configuration_has_the_fields_that_the_builder_reads() {
    let expect = |class: &str| {
        json!({
            "architecture": class, "dtype": "bfloat16", "logits_dtype": "float32",
            "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": INNER,
            "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": 2,
            "head_size": 32, "hidden_act": "silu", "norm_epsilon": 1e-6,
            "position_embedding_type": "rope_gpt_neox", "max_position_embeddings": 512,
            "rotary_base": 1_000_000.0, "rotary_scaling": null, "attn_bias": false, "mlp_bias": false,
            "use_parallel_embedding": false, "embedding_sharding_dim": 0,
            "share_embedding_table": false, "disable_weight_only_quant_plugin": false,
            "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
            "quantization": {"quant_algo": null, "kv_cache_quant_algo": null},
        })
    };
    let mut llama = Sample::of("LlamaForCausalLM", Dtype::BF16);
    assert_eq!(written(&llama.open()).1, expect("LlamaForCausalLM"));
    llama.config["rope_scaling"] = json!({"rope_type": "linear", "factor": 2.0});
    llama.config["attention_bias"] = json!(true);
    let (tensors, config) = written(&llama.open());
    assert_eq!(config["rotary_scaling"], json!({"type": "linear", "factor": 2.0}));
    assert_eq!(config["attn_bias"], true);
    assert_eq!(tensors["transformer.layers.1.attention.dense.bias"].1, [HIDDEN]);

    let mut qwen = expect("Qwen2ForCausalLM");
    qwen["attn_bias"] = json!(true);
    qwen["qwen_type"] = json!("qwen2");
    for field in ["moe_intermediate_size", "moe_shared_expert_intermediate_size"] {
        qwen[field] = json!(0);
    }
    assert_eq!(written(&Sample::qwen().open()).1, qwen);
    qwen["dtype"] = json!("float16");
    qwen["quantization"] = json!({
        "quant_algo": "W4A16_GPTQ", "kv_cache_quant_algo": null, "group_size": 128,
        "has_zero_point": true, "pre_quant_scale": false,
    });
    let (_dir, packed) = Sample::qwen().rounded(Scheme::Int4G128);
    assert_eq!(written(&packed).1, qwen);
}

fn golden(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/golden").join(case)
}

/// Of a model that sees the decoder alone goes over, with the words that it speaks.
#[test]
fn decoders_of_models_that_see_go_over_alone() {
    for (case, has_three_positions) in [("internvl3-tiny", false), ("qwen2_vl-tiny", true)] {
        let ckpt = Checkpoint::open(&golden(&format!("{case}/checkpoint"))).unwrap();
        let (tensors, config) = written(&ckpt);
        assert_eq!(config["architecture"], "Qwen2ForCausalLM");
        let ours = |name: &String| name.starts_with("transformer.") || name == "lm_head.weight";
        assert!(tensors.keys().all(ours), "{case}");
        assert_eq!(warning(&ckpt).is_some(), has_three_positions, "{case}");
    }
}

/// Refused for `words` before anything is made.
#[track_caller]
fn refused(ckpt: &Checkpoint, words: &str) {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("out");
    let error = write(ckpt, &out, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains(words), "{words:?} is not in {error:?}");
    assert!(!error.contains('\n') && !out.exists());
    assert_eq!(check(ckpt).unwrap_err().to_string(), error);
}

#[test]
fn decoders_that_it_does_not_compute_are_refused() {
    let open = |case: &str| Checkpoint::open(&golden(&format!("{case}/checkpoint"))).unwrap();
    refused(
        &open("qwen3-tiny"),
        "knows Qwen2ForCausalLM and LlamaForCausalLM, not Qwen3ForCausalLM",
    );
    refused(&open("qwen2-yarn-tiny"), "its positions are stretched by yarn");
    let mut llama = Sample::of("LlamaForCausalLM", Dtype::BF16);
    llama.config["rope_scaling"] = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    });
    refused(&llama.open(), "its positions are stretched by llama3");
    llama.config["rope_scaling"] = json!({"rope_type": "linear", "factor": 1.0});
    refused(&llama.open(), "stretched by 1, which must be more than 1");
}

#[test]
fn weights_that_no_kernel_takes_are_refused() {
    let packed = |scheme| Sample::qwen().rounded(scheme);
    for (scheme, words) in [
        (Scheme::Int4G32, "it has 4 bits and a scale for 32 inputs"),
        (Scheme::Int4G64Asym, "it has 4 bits and a scale for 64 inputs"),
        (Scheme::Int8G32, "it has 8 bits and a scale for 32 inputs; use int8, int4, int4-g128"),
    ] {
        refused(&packed(scheme).1, words);
    }
    let gguf = Checkpoint::open(&golden("packed/blocks-q4_k.gguf")).unwrap();
    assert!(check(&gguf).is_err());
    let order = Checkpoint::open(&golden("packed/gptq-act-order")).unwrap();
    refused(&order, "its columns were sorted (act-order)");

    let ckpt = Sample::qwen();
    let exclude = vec!["*layers.1.mlp.up_proj.weight".to_owned()];
    let mixed = Options { exclude, ..plain(Scheme::Int8) };
    let made = described(&ckpt.open(), &mixed).unwrap();
    refused(&made, "layers.1.mlp.up_proj.weight: it is packed otherwise than the first layer");
    assert_eq!(mixed.method, Method::Rtn);

    let mut odd = Sample::qwen();
    odd.config["intermediate_size"] = json!(416);
    let fits = described(&odd.open(), &plain(Scheme::None)).unwrap();
    assert!(check(&fits).is_ok());
    let made = described(&odd.open(), &plain(Scheme::Int8)).unwrap();
    refused(
        &made,
        "mlp.gate_proj.weight: 416x256 is not made of multiples of 64; use --scheme none",
    );
    odd.config["intermediate_size"] = json!(448);
    assert!(check(&described(&odd.open(), &plain(Scheme::Int8)).unwrap()).is_ok());
    let made = described(&odd.open(), &plain(Scheme::Int4G128)).unwrap();
    refused(&made, "mlp.down_proj.weight: it has 4 bits and a scale for 128 inputs");
}

#[test]
fn half_of_a_checkpoint_opens_nowhere() {
    let spoilt = Some("model.norm.weight");
    let sample = Sample { spoilt, ..Sample::qwen() };
    let dir = TempDir::new().unwrap();
    let error = write(&sample.open(), dir.path(), &mut |_| {}).unwrap_err().to_string();
    assert!(
        error.contains("model.norm.weight has a value in row 255 that is not finite as BF16"),
        "{error}"
    );
    assert!(!dir.path().join("config.json").exists());
    assert!(Reader::open(&dir.path().join(RANK_FILE)).is_err());

    let large = Sample { dtype: Dtype::F32, ..Sample::qwen() };
    large.save();
    let path = large.dir.path().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    // The head comes last.
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&65_536.0_f32.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let ckpt = Checkpoint::open(large.dir.path()).unwrap();
    let error = write(&ckpt, dir.path(), &mut |_| {}).unwrap_err().to_string();
    assert!(
        error.contains("lm_head.weight has a value in row 95 that is not finite as F16"),
        "{error}"
    );
}
