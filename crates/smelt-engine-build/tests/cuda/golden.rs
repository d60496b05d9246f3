//! Holds the decoder for GPUs to numbers that transformers computed for tiny models, on a device that needs none.
//!
//! Products take halves, so logits are not those of f32; tokens that lead by more than that are.

use smelt_backend::position_ids::PositionId;
use smelt_backend::sampling::GREEDY;
use smelt_backend::{
    Decoder, FeatureSpan, Features, HostFeatures, ImageEmbeds, KvOptions, LogitRows, SlotInput,
};

use super::made::{self, OnTwin};
use crate::golden::{Golden, IMAGE_TOKEN, LIMITS, TEXT, error, golden_dir};

/// Largest error of products of halves, as a part of the largest logit.
const TOLERANCE: f32 = 4e-3;

/// An engine of a golden's checkpoint, on a device that needs no GPU.
fn on_twin(golden: &Golden) -> OnTwin {
    let dim = golden.checkpoint.decoder().unwrap().head_dim;
    let engine = made::engine(&golden.checkpoint, LIMITS, golden.dir.path());
    OnTwin::open(&engine, dim, KvOptions::default())
}

/// The tokens that follow a run, each the likeliest.
pub(super) fn greedy(decoder: &mut dyn Decoder, run: SlotInput<'_>, count: usize) -> Vec<u32> {
    let token = |answer: &smelt_backend::Answer| answer.chosen[0].as_ref().unwrap().token;
    let draws = [GREEDY];
    let mut tokens = vec![token(&decoder.step(&[run.choosing(&draws)]).unwrap()[0])];
    while tokens.len() < count {
        let last = [tokens[tokens.len() - 1]];
        let run = SlotInput::new(run.slot, &last).choosing(&draws);
        tokens.push(token(&decoder.step(&[run]).unwrap()[0]));
    }
    decoder.release(run.slot);
    tokens
}

/// Logits behind every token.
pub(super) fn logits(decoder: &mut dyn Decoder, run: SlotInput<'_>) -> Vec<f32> {
    let found = decoder.step(&[run.showing(LogitRows::All)]).unwrap().remove(0).logits;
    decoder.release(run.slot);
    found
}

#[test]
fn text_models_give_the_logits_of_transformers() {
    for name in TEXT {
        let golden = Golden::open_file(name, "cases.safetensors");
        let mut on = on_twin(&golden);
        let (ids, expect) = (golden.ids("llm/in/input_ids"), golden.floats("llm/out/logits"));
        // The second sequence is padded, which engines never are.
        let found = logits(&mut *on.decoder, SlotInput::new(0, &ids[..ids.len() / 2]));
        let off = error(&found, &expect[..expect.len() / 2]);
        println!("{name}: {off:.2e}");
        assert!(off <= TOLERANCE, "{name} is off by {off}");
    }
}

/// A picture's features, as engines hand them on.
pub(super) fn shown(golden: &Golden) -> Features {
    let hidden = golden.checkpoint.decoder().unwrap().hidden;
    let embeds = golden.floats("image_embeds");
    let tokens = embeds.len() / hidden;
    HostFeatures { embeds, deepstack: Vec::new() }.into_features(tokens)
}

#[test]
fn sixteen_greedy_tokens_behind_texts_and_pictures_are_those_of_transformers() {
    for name in ["internvl3-tiny", "internvl3_5-tiny"] {
        let golden = Golden::open(name);
        let mut on = on_twin(&golden);
        let features = shown(&golden);
        let spans = [FeatureSpan { features: &features, tokens: 0..features.tokens }];
        let image = Some(ImageEmbeds { token: IMAGE_TOKEN, features: &spans });
        for (ids, expect, image) in
            [("text_ids", "greedy_text_ids", None), ("image_ids", "greedy_image_ids", image)]
        {
            let ids_own = golden.ids(ids);
            let run = SlotInput { image, ..SlotInput::new(0, &ids_own) };
            assert_eq!(greedy(&mut *on.decoder, run, 16), golden.ids(expect), "{name} {ids}");
        }
    }
}

#[test]
fn tokens_of_three_positions_and_deepstack_are_those_of_transformers() {
    for (name, grids, blocks) in
        [("qwen2_5_vl-tiny", ["40x56", "16x32"], 0), ("qwen3_vl-tiny", ["24x40", "48x16"], 2)]
    {
        let golden = Golden::open_file(name, "cases.safetensors");
        let mut on = on_twin(&golden);
        let text = std::fs::read_to_string(golden_dir(name).join("prompts.json")).unwrap();
        let prompts: serde_json::Value = serde_json::from_str(&text).unwrap();
        let number = |value: &serde_json::Value| u32::try_from(value.as_u64().unwrap()).unwrap();
        let ids = prompts["prompts"][0]["ids"].as_array().unwrap();
        let tokens: Vec<u32> = ids.iter().map(number).collect();
        let rows = |output: &str| -> Vec<f32> {
            grids.map(|grid| golden.floats(&format!("vision-{grid}/out/{output}"))).concat()
        };
        let embeds = rows("image_embeds");
        let count = embeds.len() / golden.checkpoint.decoder().unwrap().hidden;
        let deepstack = (0..blocks).map(|block| rows(&format!("deepstack_{block}"))).collect();
        let features = HostFeatures { embeds, deepstack }.into_features(count);
        let spans = [FeatureSpan { features: &features, tokens: 0..count }];
        let image = Some(ImageEmbeds { token: number(&prompts["image_token"]), features: &spans });
        let places = golden.ids("llm/in/position_ids");
        let places: Vec<PositionId> = (0..tokens.len())
            .map(|at| [0, 1, 2].map(|axis| places[axis * tokens.len() + at]))
            .collect();
        let run = SlotInput { image, position_ids: Some(&places), ..SlotInput::new(0, &tokens) };
        let off = error(&logits(&mut *on.decoder, run), &golden.floats("llm/out/logits"));
        println!("{name}: {off:.2e}");
        assert!(off <= TOLERANCE, "{name} is off by {off}");
    }
}
