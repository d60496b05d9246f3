//! Compares the reference with what transformers gives for tiny checkpoints in float32.

use std::path::{Path, PathBuf};

use super::*;
use crate::golden;
use crate::quantize::{Options, Scheme};
use crate::safetensors::Reader;

/// The largest error, as a part of the largest value.  Common mistakes (a wrong epsilon, the tanh
/// GELU, a transposed shuffle) show at ten times this and more.
const BOUND: f64 = 5e-5;

/// A folder of `tests/data/golden`.
#[derive(Clone, Copy)]
struct Golden(&'static str);

const QWEN2: Golden = Golden("internvl3-tiny");
const QWEN3: Golden = Golden("internvl3_5-tiny");

impl Golden {
    fn path(self, name: &str) -> PathBuf {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/golden");
        root.join(self.0).join(name)
    }

    fn checkpoint(self) -> Checkpoint {
        Checkpoint::open(&self.path("checkpoint")).unwrap()
    }

    fn bytes(self, name: &str) -> Vec<u8> {
        let reader = Reader::open(&self.path("golden.safetensors")).unwrap();
        let tensor = reader.get(name).unwrap();
        let mut bytes = vec![0; tensor.elements() * tensor.dtype.size_bytes()];
        reader.read_at(tensor, 0, &mut bytes).unwrap();
        bytes
    }

    fn floats(self, name: &str) -> Vec<f32> {
        self.bytes(name).as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
    }

    fn tokens(self, name: &str) -> Vec<u32> {
        let words = self.bytes(name);
        words.as_chunks().0.iter().map(|word| i64::from_le_bytes(*word) as u32).collect()
    }

    fn image_logits(self, effort: Effort) -> Vec<f32> {
        let (tokens, embeds) = (self.tokens("image_ids"), self.floats("image_embeds"));
        let image = Some(PromptEmbeds { token: IMAGE_TOKEN, embeds: &embeds });
        let prompt = Prompt::plain(&tokens, image);
        llm::logits(&self.checkpoint(), &prompt, 0..tokens.len(), effort, &mut |_| {}).unwrap()
    }
}

#[track_caller]
fn check(found: &[f32], expect: &[f32]) {
    assert_eq!(found.len(), expect.len());
    let scale = expect.iter().fold(0.0, |scale: f64, x| scale.max(f64::from(x.abs())));
    let pairs = found.iter().zip(expect);
    let error = pairs.fold(0.0, |error: f64, (f, e)| error.max(f64::from((f - e).abs())));
    assert!(error <= BOUND * scale, "error {:e} of scale", error / scale);
}

/// The token that `<IMG_CONTEXT>` is in the tiny tokenizer.
const IMAGE_TOKEN: u32 = 383;

#[test]
fn image_embeddings_are_those_of_transformers() {
    for golden in [QWEN2, QWEN3] {
        let pixels = golden.floats("pixel_values");
        let found = vision_embeds(&golden.checkpoint(), &pixels, 2).unwrap();
        check(&found, &golden.floats("image_embeds"));
    }
}

#[test]
fn logits_after_an_image_are_those_of_transformers() {
    for golden in [QWEN2, QWEN3] {
        check(&golden.image_logits(Effort::whole_machine()), &golden.floats("image_logits"));
    }
}

#[test]
fn logits_of_text_are_those_of_transformers_at_any_positions() {
    for golden in [QWEN2, QWEN3] {
        let (ckpt, tokens) = (golden.checkpoint(), golden.tokens("text_ids"));
        let (vocab, expect) = (ckpt.decoder().unwrap().vocab, golden.floats("text_logits"));
        for positions in [0..tokens.len(), 3..4, tokens.len() - 2..tokens.len()] {
            let found = logits(&ckpt, &tokens, None, positions.clone(), &mut |_| {}).unwrap();
            check(&found, &expect[positions.start * vocab..positions.end * vocab]);
        }
    }
}

#[test]
fn logits_of_text_models_are_those_of_transformers() {
    for name in golden::TEXT {
        let golden = golden::Golden::open(name);
        let (tokens, expect) = golden.first_sequence();
        let all = 0..tokens.len();
        check(&logits(&golden.checkpoint(), &tokens, None, all, &mut |_| {}).unwrap(), &expect);
    }
}

#[test]
fn one_teacher_forced_pass_repeats_the_greedy_answer() {
    for golden in [QWEN2, QWEN3] {
        check_greedy(golden, "text_ids", "greedy_text_ids", false);
        check_greedy(golden, "image_ids", "greedy_image_ids", true);
    }
}

#[track_caller]
fn check_greedy(golden: Golden, prompt: &str, answer: &str, has_image: bool) {
    let ckpt = golden.checkpoint();
    let (mut all, answer) = (golden.tokens(prompt), golden.tokens(answer));
    assert_eq!(answer.len(), 16);
    let start = all.len() - 1;
    all.extend(&answer[..answer.len() - 1]);
    let embeds = golden.floats("image_embeds");
    let image = has_image.then_some(PromptEmbeds { token: IMAGE_TOKEN, embeds: &embeds });
    let found = logits(&ckpt, &all, image, start..all.len(), &mut |_| {}).unwrap();
    let best = found.chunks(ckpt.decoder().unwrap().vocab).map(|row| {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        row.iter().position(|x| *x == largest).unwrap() as u32
    });
    assert_eq!(best.collect::<Vec<_>>(), answer);
}

#[test]
fn neither_threads_nor_blocks_change_a_bit() {
    let pixels = QWEN2.floats("pixel_values");
    let embeds = |effort| {
        let checkpoint = QWEN2.checkpoint();
        tiles_seen(&mut Stream::new(&checkpoint, effort), &pixels, 2, &mut |_| ()).unwrap()
    };
    let one = Effort { threads: 1, block_bytes: BLOCK_BYTES };
    let (logits_of_one, embeds_of_one) = (QWEN2.image_logits(one), embeds(one));
    for (threads, block_bytes) in [(1, 4096), (2, BLOCK_BYTES), (3, 1), (7, 1000)] {
        let effort = Effort { threads, block_bytes };
        assert!(
            QWEN2.image_logits(effort) == logits_of_one,
            "{threads} threads, {block_bytes} bytes"
        );
        assert!(embeds(effort) == embeds_of_one, "{threads} threads, {block_bytes} bytes");
    }
}

#[test]
fn an_int8_copy_is_read_times_its_scales() {
    let dir = std::env::temp_dir().join(format!("smelt-reference-int8-{}", std::process::id()));
    crate::quantize::quantize(
        &QWEN2.checkpoint(),
        &Options::plain(Scheme::Int8),
        &dir,
        &mut |_| {},
    )
    .unwrap();
    let quantised = Checkpoint::open(&dir).unwrap();
    let tokens = QWEN2.tokens("text_ids");
    let found = logits(&quantised, &tokens, None, 0..tokens.len(), &mut |_| {}).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    let compared =
        compare::compare(&QWEN2.floats("text_logits"), &found, quantised.decoder().unwrap().vocab)
            .unwrap();
    // Eight bits cost something, and little.
    assert!(compared.cosine_min > 0.999 && compared.error_max_of_scale > 1e-4, "{compared:?}");
}

#[track_caller]
fn check_error(found: Result<Vec<f32>, ReferenceError>, expect: &str) {
    assert_eq!(found.unwrap_err().to_string(), expect);
}

#[test]
fn input_that_does_not_fit_is_refused() {
    let ckpt = QWEN2.checkpoint();
    let score =
        |tokens: &[u32], image, positions| logits(&ckpt, tokens, image, positions, &mut |_| {});
    check_error(
        score(&[1, 384], None, 0..1),
        "token 384 at position 1 is outside the vocabulary of 384",
    );
    check_error(score(&[1, 2], None, 1..3), "positions 1..3 are not in a prompt of 2 tokens");
    check_error(score(&[], None, 0..0), "positions 0..0 are not in a prompt of 0 tokens");
    let image = Some(PromptEmbeds { token: 2, embeds: &[0.0; 80] });
    check_error(
        score(&[1, 2, 2], image, 0..1),
        "the prompt has 2 image tokens of width 80, but 80 embedding values",
    );
    check_error(
        score(&vec![1; 32_769], None, 0..1),
        "a prompt of 32769 tokens is longer than the model's 32768 positions",
    );
    check_error(
        vision_embeds(&ckpt, &[0.0; 9407], 1),
        "1 tiles of 9408 pixel values need 9408 values, got 9407",
    );
    assert!(vision_embeds(&ckpt, &[], usize::MAX).is_err());
}

/// The case `llm` of a Qwen-VL golden, its images and features out of the cases of the towers.
#[track_caller]
fn check_qwen_vl(name: &str, grids: [&str; 2], blocks: usize) {
    let golden = crate::golden::Golden::open(name);
    let floats = |case: &str, output: &str| -> Vec<f32> {
        let tensor = &golden.tensors(case, "out")[output];
        tensor.as_floats().unwrap().iter().map(|x| *x as f32).collect()
    };
    let rows = |output: &str| grids.map(|grid| floats(&format!("vision-{grid}"), output)).concat();
    let (token, tokens) = golden.prompt();
    let given = &golden.tensors("llm", "in")["position_ids"];
    let (ids, count) = (given.as_ints().unwrap(), tokens.len());
    let place = |at: usize| [0, 1, 2].map(|axis| ids[axis * count + at] as u32);
    let position_ids: Vec<PositionId> = (0..count).map(place).collect();
    let deepstack: Vec<Vec<f32>> =
        (0..blocks).map(|block| rows(&format!("deepstack_{block}"))).collect();
    let embeds = rows("image_embeds");
    let image = Some(PromptEmbeds { token, embeds: &embeds });
    let prompt =
        Prompt { tokens: &tokens, image, position_ids: Some(&position_ids), deepstack: &deepstack };
    let ckpt = golden.checkpoint();
    let found = logits_after(&ckpt, &prompt, 0..count, &mut |_| {}).unwrap();
    check(&found, &floats("llm", "logits"));
    let refused = |prompt: Prompt<'_>| logits_after(&ckpt, &prompt, 0..1, &mut |_| {});
    assert!(refused(Prompt { position_ids: None, ..prompt }).is_err(), "images have places");
    assert!(refused(Prompt { position_ids: Some(&position_ids[1..]), ..prompt }).is_err());
    if blocks > 0 {
        assert!(refused(Prompt { deepstack: &deepstack[1..], ..prompt }).is_err());
    }
}

#[test]
fn tokens_of_three_positions_and_deepstack_are_those_of_transformers() {
    check_qwen_vl("qwen2_vl-tiny", ["40x56", "16x32"], 0);
    check_qwen_vl("qwen2_5_vl-tiny", ["40x56", "16x32"], 0);
    check_qwen_vl("qwen3_vl-tiny", ["24x40", "48x16"], 2);
}

#[test]
fn the_large_intern_vit_is_that_of_transformers() {
    let golden = crate::golden::Golden::open("internvit6b-tiny");
    let floats = |side: &str, name: &str| -> Vec<f32> {
        let tensor = &golden.tensors("vision", side)[name];
        tensor.as_floats().unwrap().iter().map(|x| *x as f32).collect()
    };
    let found = vision_embeds(&golden.checkpoint(), &floats("in", "pixel_values"), 2).unwrap();
    check(&found, &floats("out", "image_embeds"));
}

#[test]
fn smolvlms_tower_and_logits_are_those_of_transformers() {
    let golden = crate::golden::Golden::open("smolvlm-tiny");
    let floats = |case: &str, side: &str, name: &str| -> Vec<f32> {
        let tensor = &golden.tensors(case, side)[name];
        tensor.as_floats().unwrap().iter().map(|x| *x as f32).collect()
    };
    let ckpt = golden.checkpoint();
    let pixels = floats("vision", "in", "pixel_values");
    let embeds = vision_embeds(&ckpt, &pixels, 2).unwrap();
    check(&embeds, &floats("vision", "out", "image_embeds"));
    let one = &pixels[..pixels.len() / 2];
    let seen = see(&ckpt, one, "18x18".parse().unwrap(), &mut |_| ()).unwrap();
    assert_eq!((&seen.embeds[..], seen.deepstack.len()), (&embeds[..embeds.len() / 2], 0));
    assert!(vision_embeds(&ckpt, &pixels[1..], 2).is_err());
    let (token, tokens) = golden.prompt();
    let image = Some(PromptEmbeds { token, embeds: &embeds });
    let found = logits(&ckpt, &tokens, image, 0..tokens.len(), &mut |_| {}).unwrap();
    check(&found, &floats("llm", "out", "logits"));
    assert!(!vision_peaks(&ckpt, one).unwrap().is_empty());
}

/// Every picture of a Qwen-VL golden, windows whole and cut short.
#[track_caller]
fn check_tower(name: &str, blocks: usize) {
    let golden = crate::golden::Golden::open(name);
    let ckpt = golden.checkpoint();
    let cases = golden.cases();
    let grids: Vec<&str> = cases.iter().filter_map(|case| case.strip_prefix("vision-")).collect();
    assert_eq!(grids.len(), 3);
    for grid in grids {
        let floats = |side: &str, name: &str| -> Vec<f32> {
            let tensor = &golden.tensors(&format!("vision-{grid}"), side)[name];
            tensor.as_floats().unwrap().iter().map(|x| *x as f32).collect()
        };
        let (pixels, size) = (floats("in", "pixel_values"), grid.parse().unwrap());
        let seen = see(&ckpt, &pixels, size, &mut |_| ()).unwrap();
        check(&seen.embeds, &floats("out", "image_embeds"));
        assert_eq!(seen.deepstack.len(), blocks);
        for (block, found) in seen.deepstack.iter().enumerate() {
            check(found, &floats("out", &format!("deepstack_{block}")));
        }
        let error = see(&ckpt, &pixels[1..], size, &mut |_| ()).unwrap_err().to_string();
        assert!(error.contains(&format!("got {}", pixels.len() - 1)), "{error}");
    }
    assert!(vision_embeds(&ckpt, &[], 1).is_err(), "this tower takes no tiles");
}

#[test]
fn towers_over_patches_are_those_of_transformers() {
    check_tower("qwen2_vl-tiny", 0);
    check_tower("qwen2_5_vl-tiny", 0);
    check_tower("qwen3_vl-tiny", 2);
}
