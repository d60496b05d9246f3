//! Quantises small checkpoints and reads them back; compares with independent rounders.

use super::gptq::DAMPING;
use super::*;
use crate::calibrate;
use crate::checkpoint::scale_name;
use crate::decoder::LM_HEAD;
use crate::dtype::Dtype;
use crate::model::ModelPart;
use crate::reference::compare::{Comparison, compare};
use crate::reference::{self, Prompt};
use crate::sample::{self, Sample, named};

const DOWN: &str = "language_model.model.layers.2.mlp.down_proj.weight";

/// Quantises the checkpoint of `sample` into a directory beside it, and opens the result.
fn quantized(sample: &Sample, scheme: Scheme) -> Checkpoint {
    made(sample, &Options::plain(scheme)).0
}

/// The same under `options`, with what it reported.
fn made(sample: &Sample, options: &Options<'_>) -> (Checkpoint, Report) {
    let words = [options.scheme.name(), options.method.name(), &options.threads.to_string()];
    let out = sample.dir().join(words.join("-"));
    let ckpt = Checkpoint::open(sample.dir()).unwrap();
    let report = quantize(&ckpt, options, &out, &mut |_| {}).unwrap();
    (Checkpoint::open(&out).unwrap(), report)
}

fn refusal(sample: &Sample) -> String {
    let ckpt = Checkpoint::open(sample.dir()).unwrap();
    let out = sample.dir().join("out");
    quantize(&ckpt, &Options::plain(Scheme::Int8), &out, &mut |_| {}).unwrap_err().to_string()
}

#[test]
fn every_int8_weight_lies_within_half_a_step() {
    let sample = Sample::tiny();
    let original = Checkpoint::open(sample.dir()).unwrap();
    let result = quantized(&sample, Scheme::Int8);
    assert_eq!((result.scheme(), result.has(ModelPart::Vision)), (Scheme::Int8, false));
    let names: Vec<_> = result.tensors().filter(|t| t.dtype == Dtype::I8).collect();
    assert_eq!(names.len(), 3 * 7 + 1);
    for tensor in names {
        let width = tensor.shape[1];
        let scales = result.read_f32(&scale_name(&tensor.name)).unwrap();
        let exact = original.read_f32(&tensor.name).unwrap();
        let rounded = result.read_f32(&tensor.name).unwrap();
        for (at, (w, r)) in exact.iter().zip(&rounded).enumerate() {
            let bound = scales[at / width] * 0.5001;
            assert!((w - r).abs() <= bound, "{} {at}: {w} {r}", tensor.name);
        }
        for (row, scale) in exact.chunks_exact(width).zip(scales) {
            let largest = row.iter().fold(0.0_f32, |most, w| most.max(w.abs()));
            assert_eq!(scale, largest / 127.0);
        }
    }
}

#[test]
fn everything_else_keeps_its_bytes() {
    for scheme in Scheme::ALL {
        let sample = Sample::tiny();
        let mut original = sample::load(&sample.weights());
        let result = sample::load(&quantized(&sample, scheme).dir().join(WEIGHTS_FILE));
        for kept in result.iter().filter(|(spec, _)| spec.dtype == Dtype::BF16) {
            assert_eq!(named(&mut original, &kept.0.name), kept);
        }
        let kept = result.iter().filter(|(spec, _)| spec.dtype == Dtype::BF16).count();
        let linears = if scheme == Scheme::None { 0 } else { 3 * 7 + 1 };
        assert_eq!(kept, 1 + 3 * 12 + 1 + 1 - linears);
    }
}

#[test]
fn side_files_are_copied_byte_for_byte() {
    let sample = Sample::tiny();
    let result = quantized(&sample, Scheme::Int8);
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        let read = |dir: &Path| fs::read(dir.join(name)).unwrap();
        assert_eq!(read(sample.dir()), read(result.dir()));
    }
    let mark = fs::read_to_string(result.dir().join("smelt-quantize.json")).unwrap();
    assert!(mark.contains("\"scheme\": \"int8\""), "{mark}");
}

#[test]
fn a_tied_head_becomes_an_int8_copy_of_the_embedding() {
    let sample = Sample::tied();
    let result = quantized(&sample, Scheme::Int8);
    assert_eq!(result.dtype(LM_HEAD).unwrap(), Dtype::I8);
    assert_eq!(result.dtype(EMBEDDING).unwrap(), Dtype::BF16);
    let (head, embedding) =
        (result.read_f32(LM_HEAD).unwrap(), result.read_f32(EMBEDDING).unwrap());
    let worst = head.iter().zip(&embedding).map(|(h, e)| (h - e).abs()).fold(0.0, f32::max);
    assert!(worst > 0.0 && worst < 0.01, "{worst}");
    assert!(!quantized(&sample, Scheme::None).has_lm_head());
}

#[test]
fn the_bytes_are_the_same_every_time() {
    let (a, b) = (Sample::tiny(), Sample::tiny());
    let bytes = |sample: &Sample| {
        fs::read(quantized(sample, Scheme::Int8).dir().join(WEIGHTS_FILE)).unwrap()
    };
    assert!(bytes(&a) == bytes(&b));
}

#[test]
fn a_row_of_zeros_stays_zeros() {
    let sample = Sample::changed(|all| named(all, DOWN).1[..160 * 2].fill(0));
    let result = quantized(&sample, Scheme::Int8);
    assert_eq!(result.read_f32(&scale_name(DOWN)).unwrap()[0], 0.0);
    let rows = result.read_f32(DOWN).unwrap();
    assert!(rows[..160].iter().all(|&value| value == 0.0));
    assert!(rows[160..320].iter().any(|&value| value != 0.0));
}

#[test]
fn a_weight_that_is_not_finite_is_named() {
    let nan = half::bf16::NAN.to_le_bytes();
    let sample =
        Sample::changed(|all| named(all, DOWN).1[2 * 160 * 3..][..2].copy_from_slice(&nan));
    let error = refusal(&sample);
    assert!(error.contains(DOWN) && error.contains("row 3"), "{error}");
}

#[test]
fn what_is_copied_must_be_finite_too() {
    const NORM: &str = "language_model.model.layers.1.input_layernorm.weight";
    for (tensor, value) in [(NORM, half::bf16::NAN), (EMBEDDING, half::bf16::NEG_INFINITY)] {
        let sample = Sample::changed(|all| {
            named(all, tensor).1[2 * 5..][..2].copy_from_slice(&value.to_le_bytes());
        });
        let error = refusal(&sample);
        assert!(error.contains(tensor) && error.contains("at element 5;"), "{error}");
    }
}

#[test]
fn a_result_is_not_quantised_again() {
    let sample = Sample::tiny();
    let result = quantized(&sample, Scheme::Int8);
    let again =
        quantize(&result, &Options::plain(Scheme::Int8), &sample.dir().join("again"), &mut |_| {});
    let error = again.unwrap_err().to_string();
    assert!(error.contains("already quantised (scheme int8)"), "{error}");
    assert!(!sample.dir().join("again").exists());
}

#[test]
fn a_checkpoint_is_not_quantised_into_itself() {
    let sample = Sample::tiny();
    let before = fs::read(sample.weights()).unwrap();
    let ckpt = Checkpoint::open(sample.dir()).unwrap();
    let error =
        quantize(&ckpt, &Options::plain(Scheme::Int8), sample.dir(), &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("into itself"), "{error}");
    assert!(fs::read(sample.weights()).unwrap() == before);
}

#[test]
fn an_input_cut_off_while_it_is_read_is_called_changed() {
    let sample = Sample::tiny();
    let ckpt = Checkpoint::open(sample.dir()).unwrap();
    let file = fs::File::options().write(true).open(sample.weights()).unwrap();
    file.set_len(file.metadata().unwrap().len() - 10).unwrap();
    let out = sample.dir().join("out");
    let error =
        quantize(&ckpt, &Options::plain(Scheme::Int8), &out, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("it ended inside tensor language_model.lm_head.weight"), "{error}");
    assert!(Checkpoint::open(&out).is_err());
}

#[test]
fn progress_is_heard_once_per_block() {
    let sample = Sample::tiny();
    let ckpt = Checkpoint::open(sample.dir()).unwrap();
    let mut lines = Vec::new();
    let out = sample.dir().join("out");
    quantize(&ckpt, &Options::plain(Scheme::Int8), &out, &mut |line| lines.push(line.to_owned()))
        .unwrap();
    assert_eq!(lines.len(), 1 + 3 + 1 + 1);
    assert!(lines[1].ends_with("] language_model.model.layers.0"), "{lines:?}");
    assert!(lines[0].starts_with("[0/"), "{lines:?}");
    let share = |line: &String| -> usize {
        let (share, _) = line.strip_prefix('[').unwrap().split_once(']').unwrap();
        let (done, all) = share.split_once('/').unwrap();
        let [done, all]: [usize; 2] = [done, all].map(|n| n.parse().unwrap());
        done * 100 / all
    };
    assert!(lines.windows(2).all(|pair| share(&pair[0]) <= share(&pair[1])), "{lines:?}");
    assert!(share(&lines[4]) > 30, "{lines:?}");
}

/// Two sequences of tokens that repeat little.
fn prompts() -> [Vec<u32>; 2] {
    let tokens = |seed: u32, count: u32| (0..count).map(|n| (n * 37 + seed * 101) % 500).collect();
    [tokens(1, 48), tokens(2, 40)]
}

/// A model some inputs of which are far larger than the rest, as those of real ones are, and what
/// was seen of it.
fn loud() -> (Sample, PathBuf) {
    let sample = Sample::changed(|all| {
        for (spec, bytes) in all {
            let norm = ["input_layernorm", "post_attention_layernorm"];
            if !norm.iter().any(|norm| spec.name.contains(norm)) {
                continue;
            }
            for channel in [3, 17, 40] {
                let value = half::bf16::from_f32(6.0).to_le_bytes();
                bytes[2 * channel..][..2].copy_from_slice(&value);
            }
        }
    });
    let seen = watched(&sample);
    (sample, seen)
}

/// What was seen of the checkpoint of `sample`.
fn watched(sample: &Sample) -> PathBuf {
    let seen = sample.dir().join("seen");
    let ckpt = Checkpoint::open(sample.dir()).unwrap();
    let tokens = prompts();
    let prompts = tokens.each_ref().map(|tokens| Prompt::plain(tokens, None));
    let options = calibrate::Options { rows: 64, prompts: "test" };
    calibrate::calibrate(&ckpt, &prompts, options, &seen, &mut |_| {}).unwrap();
    seen
}

fn logits_of(ckpt: &Checkpoint) -> Vec<f32> {
    let tokens = &prompts()[0];
    reference::logits(ckpt, tokens, None, 0..tokens.len(), &mut |_| {}).unwrap()
}

/// Σ(a - b)² / Σa².
fn relative_error(a: &[f32], b: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let error: f64 = a.iter().zip(b).map(|(a, b)| square(a - b)).sum();
    error / a.iter().map(|a| square(*a)).sum::<f64>()
}

/// What rounding cost the outputs of the linears that a norm feeds, on the activations that were
/// seen, over those outputs: Σ|x(w - ŵ)|² / Σ|xw|².  A norm that was divided counts as its weights'.
fn output_error(original: &Checkpoint, result: &Checkpoint, seen: &Path) -> f64 {
    let seen = Calibration::open(seen).unwrap();
    let (mut error, mut square) = (0.0, 0.0);
    for (norm, linear) in [
        ("input_layernorm", "self_attn.q_proj"),
        ("input_layernorm", "self_attn.k_proj"),
        ("input_layernorm", "self_attn.v_proj"),
        ("post_attention_layernorm", "mlp.gate_proj"),
    ] {
        for layer in 0..3 {
            let name = |rest: &str| format!("language_model.model.layers.{layer}.{rest}.weight");
            let read = |ckpt: &Checkpoint, rest: &str| ckpt.read_f32(&name(rest)).unwrap();
            let norms = [original, result].map(|ckpt| read(ckpt, norm));
            let [w, r] = [original, result].map(|ckpt| read(ckpt, linear));
            let x = seen.activations(seen.input_of(&name(linear), 64).unwrap()).unwrap();
            for (w, r) in w.chunks(64).zip(r.chunks(64)) {
                for x in x.chunks(64) {
                    let exact: f32 = x.iter().zip(w).map(|(x, w)| x * w).sum();
                    let divided = norms[1].iter().zip(&norms[0]).map(|(new, old)| new / old);
                    let found: f32 =
                        x.iter().zip(r).zip(divided).map(|((x, r), d)| x * r * d).sum();
                    error += f64::from(exact - found).powi(2);
                    square += f64::from(exact).powi(2);
                }
            }
        }
    }
    error / square
}

#[test]
fn methods_that_saw_activations_do_better_on_them() {
    let (sample, seen) = loud();
    let original = Checkpoint::open(sample.dir()).unwrap();
    for scheme in [Scheme::Int4G32, Scheme::Int4G32Asym] {
        let errors = Method::ALL.map(|method| {
            let calibration = Some(seen.as_path());
            let options = Options { method, calibration, ..Options::plain(scheme) };
            output_error(&original, &made(&sample, &options).0, &seen)
        });
        println!("{scheme}: {errors:?}");
        let [rtn, mse, awq, gptq, ordered, best] = errors;
        assert!(mse < rtn && awq < 0.8 * rtn, "{scheme}: {errors:?}");
        assert!(gptq < 0.5 * rtn, "{scheme}: {errors:?}");
        assert!(ordered < 0.5 * rtn && best < 0.7 * rtn, "{scheme}: {errors:?}");
    }
}

#[test]
fn logits_stay_close_by_any_method() {
    let sample = Sample::tiny();
    let seen = watched(&sample);
    let exact = logits_of(&Checkpoint::open(sample.dir()).unwrap());
    for scheme in Scheme::ALL {
        for method in Method::ALL {
            let calibration = Some(seen.as_path());
            let options = Options { method, calibration, ..Options::plain(scheme) };
            let found = logits_of(&made(&sample, &options).0);
            let Comparison { cosine_min, error_max_of_scale, .. } =
                compare(&exact, &found, 512).unwrap();
            println!("{scheme} {}: {cosine_min} {error_max_of_scale}", method.name());
            let is_fine = scheme.grid().is_none_or(|grid| grid.bits == 8);
            let floor = if is_fine { 0.995 } else { 0.6 };
            assert!(cosine_min > floor, "{scheme} {}: {cosine_min}", method.name());
        }
    }
}

#[test]
fn the_report_says_which_way_was_chosen() {
    let (sample, seen) = loud();
    let calibration = Some(seen.as_path());
    let plain = Options::plain(Scheme::Int4G32);
    let options = |budget| Options {
        method: Method::Best,
        calibration,
        budget,
        threads: budget,
        ..plain.clone()
    };
    let way = |budget| made(&sample, &options(budget)).1.tensors;
    let layers = |all: &[TensorReport]| -> Vec<&str> {
        let of = |tensor: &TensorReport| tensor.name.contains("layers").then_some(tensor.way);
        all.iter().filter_map(of).flatten().collect()
    };
    let one = way(1);
    let ways = layers(&one);
    assert_eq!(ways.len(), 3 * 7);
    assert!(ways.iter().all(|way| ["feedback, damping 0.2", "weighted"].contains(way)), "{ways:?}");
    let all = way(BUDGET_MAX);
    assert_eq!(layers(&all).len(), 3 * 7);
    assert_eq!(all.last().unwrap().way, Some("weighted"), "a head of 8 bits");
}

#[test]
fn bytes_do_not_depend_on_threads() {
    let (sample, seen) = loud();
    for method in Method::ALL {
        let bytes = |threads| {
            let calibration = Some(seen.as_path());
            let plain = Options::plain(Scheme::Int4G32Asym);
            let options = Options { method, calibration, threads, ..plain };
            let made = made(&sample, &options).0;
            [WEIGHTS_FILE, REPORT_FILE].map(|name| fs::read(made.dir().join(name)).unwrap())
        };
        let one = bytes(1);
        // Of so many as a thousand each has few rows in hand.
        let mut all = [2, 3, 16, 1024].into_iter();
        assert!(all.all(|threads| bytes(threads) == one), "{}", method.name());
    }
}

#[test]
fn every_scheme_reads_back_close_to_what_it_was() {
    let sample = Sample::tiny();
    let original = Checkpoint::open(sample.dir()).unwrap();
    for scheme in Scheme::ALL {
        let embeddings = Some(scheme);
        let (result, report) = made(&sample, &Options { embeddings, ..Options::plain(scheme) });
        assert_eq!(result.scheme(), scheme);
        let grid = scheme.grid();
        assert_eq!(report.tensors.len(), if grid.is_some() { 3 * 7 + 2 } else { 0 });
        for tensor in &report.tensors {
            assert_eq!(result.shape(&tensor.name).unwrap(), tensor.shape);
            let (w, r) = (original.read_f32(&tensor.name), result.read_f32(&tensor.name));
            let snr = -10.0 * relative_error(&w.unwrap(), &r.unwrap()).log10();
            assert!((snr - tensor.figures.snr_db.unwrap()).abs() < 0.011, "{snr} {tensor:?}");
            let floor = if tensor.scheme.starts_with("int8") { 30.0 } else { 15.0 };
            assert!(snr > floor, "{snr} {tensor:?}");
        }
    }
}

#[test]
fn the_head_keeps_eight_bits_unless_told_otherwise() {
    let sample = Sample::tiny();
    let head = |options: &Options<'_>| made(&sample, options).0.dtype(LM_HEAD).unwrap();
    let int4 = Options::plain(Scheme::Int4G32);
    assert_eq!(head(&int4), Dtype::I8);
    let told = |head, threads| Options { head: Some(head), threads, ..int4.clone() };
    assert_eq!(head(&told(Scheme::Int4G128Asym, 5)), Dtype::U8);
    assert_eq!(head(&told(Scheme::None, 6)), Dtype::BF16);
}

#[test]
fn excluded_weights_keep_their_bytes() {
    let sample = Sample::tiny();
    let options = |pattern: &str| Options {
        exclude: vec![pattern.to_owned()],
        ..Options::plain(Scheme::Int4G32)
    };
    let (result, report) = made(&sample, &options("*.layers.2.*"));
    assert_eq!(result.dtype(DOWN).unwrap(), Dtype::BF16);
    assert_eq!(report.tensors.len(), 2 * 7 + 1);
    let ckpt = Checkpoint::open(sample.dir()).unwrap();
    for idle in ["*.layers.7.*", "*norm*", "*embed_tokens*"] {
        let out = sample.dir().join("idle");
        let error = quantize(&ckpt, &options(idle), &out, &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains(idle) && error.contains("matches no weight"), "{error}");
        assert!(!out.exists());
    }
}

#[test]
fn methods_that_need_activations_say_so() {
    let (sample, seen) = loud();
    let ckpt = Checkpoint::open(sample.dir()).unwrap();
    let refused = |calibration: Option<&Path>| {
        let plain = Options::plain(Scheme::Int4G32);
        let options = Options { method: Method::Gptq, calibration, ..plain };
        let out = sample.dir().join("refused");
        quantize(&ckpt, &options, &out, &mut |_| {}).unwrap_err().to_string()
    };
    assert!(refused(None).contains("method gptq needs what `smelt calibrate` saw"));
    assert!(refused(Some(sample.dir())).contains("calibrate.json"));
    let index = seen.join(calibrate::INDEX_FILE);
    let text = fs::read_to_string(&index).unwrap();
    fs::write(&index, text.replace("layers.1.self_attn.k_proj.weight", "other")).unwrap();
    let error = refused(Some(&seen));
    assert!(error.contains("layers.1.self_attn.k_proj.weight") && error.contains("64"), "{error}");
    fs::write(&index, text.replace("\"rows\": 64", "\"rows\": 65")).unwrap();
    let error = refused(Some(&seen));
    assert!(error.contains("q_proj.rows is not BF16 [65, 64]"), "{error}");
}

#[test]
fn a_scaled_norm_and_its_weights_still_make_the_same_product() {
    let (sample, seen) = loud();
    let options =
        Options { method: Method::Awq, calibration: Some(&seen), ..Options::plain(Scheme::Int8) };
    let (original, result) = (Checkpoint::open(sample.dir()).unwrap(), made(&sample, &options).0);
    let layer = "language_model.model.layers.1";
    let read = |ckpt: &Checkpoint, rest: &str| ckpt.read_f32(&format!("{layer}.{rest}.weight"));
    let norms = [&original, &result].map(|ckpt| read(ckpt, "input_layernorm").unwrap());
    assert_ne!(norms[0], norms[1], "nothing was scaled");
    for name in ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"] {
        let product = |ckpt: &Checkpoint, norm: &[f32]| -> Vec<f32> {
            let weights = read(ckpt, name).unwrap();
            weights.chunks(64).flat_map(|row| row.iter().zip(norm).map(|(w, n)| w * n)).collect()
        };
        let [w, r] = [(&original, &norms[0]), (&result, &norms[1])].map(|(c, n)| product(c, n));
        assert!(relative_error(&w, &r) < 1e-3, "{name}: {}", relative_error(&w, &r));
    }
}

/// The golden weights or what an independent rounder made of them.
fn golden(name: &str) -> (Vec<usize>, Vec<u8>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/golden/quantize");
    let mut all = sample::load(&root.join("golden.safetensors"));
    let (spec, bytes) = named(&mut all, name);
    (spec.shape.clone(), bytes.clone())
}

fn golden_f32(name: &str) -> Vec<f32> {
    golden(name).1.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// What is made of the golden weights, and in which order of columns.
fn rounded(scheme: Scheme, method: Method) -> (group::Rounded, Vec<usize>) {
    let (shape, weights) = (golden("weights").0, golden_f32("weights"));
    let clips = if method == Method::Rtn { UNCLIPPED } else { CLIPS };
    let rounder = Rounder { grid: scheme.grid().unwrap(), clips };
    let mut out = group::Rounded::default();
    let mut x = Activations::from_rows(&golden_f32("x"), shape[1]);
    let order = if method.reorders() { x.order() } else { (0..shape[1]).collect() };
    let reorder = |row: &[f32]| order.iter().map(|n| row[*n]).collect::<Vec<_>>();
    let weights: Vec<f32> = weights.chunks(shape[1]).flat_map(reorder).collect();
    if matches!(method, Method::Rtn | Method::Mse) {
        rounder.rows(&weights, shape[1], None, &mut out).unwrap();
    } else {
        x = x.into_reordered(&order);
        Basis::new(x, Some(32), 2)
            .feedback(DAMPING, 2)
            .round(&weights, rounder, &mut out, &mut Sums::default())
            .unwrap();
    }
    (out, order)
}

/// The golden result of a method in the stored form.
fn expected(scheme: Scheme, method: Method) -> (group::Rounded, Vec<usize>) {
    let name = |what: &str| format!("{scheme}/{}/{what}", method.name());
    let quants = golden(&name("levels")).1;
    let quants = quants.as_chunks().0.iter().map(|[low, high]| low | high << 4).collect();
    let scales = golden_f32(&name("scales"));
    let scales = scales.iter().flat_map(|s| half::f16::from_f32(*s).to_le_bytes()).collect();
    let has_zero = scheme.grid().unwrap().has_zero;
    let zeros = if has_zero { golden(&name("zeros")).1 } else { Vec::new() };
    let order = if method.needs_calibration() {
        let order = golden(&name("order")).1;
        order.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b) as usize).collect()
    } else {
        (0..80).collect()
    };
    (group::Rounded { quants, scales, zeros }, order)
}

/// Σ|x(w - ŵ)|² over the golden weights and activations.
fn golden_error(scheme: Scheme, (found, order): &(group::Rounded, Vec<usize>)) -> f64 {
    let (weights, x) = (golden_f32("weights"), golden_f32("x"));
    let scales = found.scales.as_chunks().0.iter().map(|b| half::f16::from_le_bytes(*b).to_f32());
    let (scales, mut row) = (scales.collect::<Vec<_>>(), vec![0.0; 80]);
    let mut error = 0.0;
    for (n, w) in weights.chunks(80).enumerate() {
        let groups = n * 3..n * 3 + 3;
        let zeros = found.zeros.get(groups.clone()).unwrap_or(&[]);
        assert_eq!(zeros.is_empty(), !scheme.grid().unwrap().has_zero);
        let quants = &found.quants[n * 40..][..40];
        for (column, value) in row.iter_mut().enumerate() {
            let quant = (quants[column / 2] >> (column % 2 * 4)) & 15;
            let zero = zeros.get(column / 32).copied().unwrap_or(8);
            *value = (f32::from(quant) - f32::from(zero)) * scales[groups.start + column / 32];
        }
        for x in x.chunks(80) {
            let missed =
                order.iter().zip(&row).map(|(input, r)| f64::from(x[*input] * (w[*input] - r)));
            error += missed.sum::<f64>().powi(2);
        }
    }
    error
}

#[test]
fn integers_are_those_of_independent_rounders() {
    for scheme in [Scheme::Int4G32, Scheme::Int4G32Asym] {
        for method in
            Method::ALL.into_iter().filter(|method| !matches!(method, Method::Awq | Method::Best))
        {
            let (found, expect) = (rounded(scheme, method), expected(scheme, method));
            assert_eq!(found.1, expect.1);
            if !method.needs_calibration() {
                assert_eq!(found.0.quants, expect.0.quants);
                assert_eq!(found.0.scales, expect.0.scales);
                assert_eq!(found.0.zeros, expect.0.zeros);
                continue;
            }
            // Feedback in f32 may tip a value that lies between two integers, and then what follows
            // it in its row; the rest of the rows and the error stay.
            let same = found.0.quants.iter().zip(&expect.0.quants).filter(|(a, b)| a == b).count();
            assert!(same * 100 >= found.0.quants.len() * 97, "{scheme} {}: {same}", method.name());
            let errors = [&found, &expect].map(|result| golden_error(scheme, result));
            assert!(
                (errors[0] / errors[1] - 1.0).abs() < 0.05,
                "{scheme} {}: {errors:?}",
                method.name()
            );
            let plain = golden_error(scheme, &expected(scheme, Method::Rtn));
            assert!(errors[0] < 0.2 * plain, "{scheme} {}: {errors:?} {plain}", method.name());
        }
    }
}
