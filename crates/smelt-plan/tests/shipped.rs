//! The pipelines that come with smelt: what all of them let a person turn.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.
#![allow(clippy::disallowed_methods)] // The pipelines are files, which the crate itself does not read.

use std::fs;
use std::path::Path;

use smelt_plan::pipeline::{Overrides, StageSpec};
use smelt_plan::{Kind, Pipeline};

const TARGET: &str = "target";

/// The stages of every pipeline, under some overrides.
fn stages(sets: &[&str]) -> Vec<StageSpec> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../pipelines");
    let mut paths: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let texts = paths.iter().map(|path| (path, fs::read_to_string(path).unwrap()));
    let decoding = texts.filter(|(_, text)| text.contains("\"llm-engine-build\""));
    let overrides = Overrides::parse(sets).unwrap();
    let parsed = decoding.flat_map(|(path, text)| {
        let pipeline = Pipeline::parse(&path.display().to_string(), &text, &overrides);
        pipeline.unwrap_or_else(|error| panic!("{error}")).stages
    });
    parsed.collect()
}

#[test]
fn every_decoder_is_for_processors_or_for_the_card_that_is_asked_for() {
    let (plain, turned) = (stages(&[]), stages(&["target=cuda-sm90"]));
    assert_eq!(plain.len(), turned.len());
    let mut decoders = 0;
    for (plain, mut turned) in plain.into_iter().zip(turned) {
        if plain.kind == Kind::LlmEngineBuild {
            assert_eq!(plain.params[TARGET], "cpu", "{}: keys are as they were", plain.name);
            let target = turned.params.insert(TARGET.to_owned(), "cpu".into());
            assert_eq!(target, Some("cuda-sm90".into()), "{}", plain.name);
            decoders += 1;
        }
        assert_eq!(plain.params, turned.params, "{}: nothing else is another", plain.name);
    }
    assert!(decoders >= 20, "{decoders}");
}
