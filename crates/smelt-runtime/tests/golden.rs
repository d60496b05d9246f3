//! Compares tokenizer and chat template with what transformers gives for the same checkpoint.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use smelt_runtime::template::{self, Context, Template};
use smelt_runtime::tokenizer::{Detokenizer, Tokenizer};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/golden/internvl3-tiny").join(name)
}

fn cases(name: &str) -> Vec<Value> {
    serde_json::from_str(&fs::read_to_string(golden(name)).unwrap()).unwrap()
}

fn tokenizer() -> Tokenizer {
    Tokenizer::open(&golden("checkpoint/tokenizer.json")).unwrap()
}

fn ids(case: &Value) -> Vec<u32> {
    serde_json::from_value(case["ids"].clone()).unwrap()
}

#[test]
fn texts_become_the_same_tokens() {
    let tokenizer = tokenizer();
    for case in cases("tokenizer_golden.json") {
        let text = case["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode(text).unwrap(), ids(&case), "{text:?}");
    }
}

#[test]
fn tokens_become_the_same_texts() {
    let tokenizer = tokenizer();
    for case in cases("tokenizer_golden.json") {
        assert_eq!(tokenizer.decode(&ids(&case), false).unwrap(), case["decoded"]);
        let without = &case["decoded_without_special"];
        assert_eq!(tokenizer.decode(&ids(&case), true).unwrap(), *without);
    }
}

#[test]
fn pieces_join_to_the_whole_text_and_are_whole_themselves() {
    let tokenizer = tokenizer();
    for case in cases("tokenizer_golden.json") {
        let mut pieces = Detokenizer::new(&tokenizer);
        let mut text = String::new();
        for id in ids(&case) {
            let piece = pieces.push(id).unwrap();
            assert!(!piece.contains(char::REPLACEMENT_CHARACTER), "{piece:?}");
            text += &piece;
        }
        text += &pieces.finish().unwrap();
        assert_eq!(text, case["decoded_without_special"]);
    }
}

#[test]
fn bytes_that_never_become_a_code_point_are_shown_in_the_end() {
    let tokenizer = tokenizer();
    // The two bytes of é are two tokens here; only the first is said, ten times.
    let [first, ..] = tokenizer.encode("\u{e9}").unwrap()[..] else { panic!("é has tokens") };
    let cut = [first; 10];
    let mut pieces = Detokenizer::new(&tokenizer);
    let mut text = String::new();
    for token in cut {
        text += &pieces.push(token).unwrap();
    }
    assert!(!text.is_empty(), "pieces are not held back without end");
    text += &pieces.finish().unwrap();
    assert_eq!(text, tokenizer.decode(&cut, true).unwrap());
}

#[test]
fn special_tokens_are_known_by_name() {
    let tokenizer = tokenizer();
    assert_eq!(tokenizer.token("<IMG_CONTEXT>"), Some(383));
    assert_eq!(tokenizer.token("<no such token>"), None);
    assert_eq!(tokenizer.vocab(), 384);
}

#[test]
fn conversations_become_the_same_text() {
    let template = Template::open(&golden("checkpoint")).unwrap();
    for case in cases("template_golden.json") {
        let messages: Vec<template::Value> =
            serde_json::from_value(case["messages"].clone()).unwrap();
        let reply = case["add_generation_prompt"].as_bool().unwrap();
        let text = template.render(&messages, reply, 0, &Context::default()).unwrap();
        assert_eq!(text, case["text"], "{messages:?}");
    }
}

#[test]
fn a_missing_or_broken_tokenizer_is_one_clear_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    let error = Tokenizer::open(&path).unwrap_err().to_string();
    assert!(error.ends_with("copy tokenizer.json from the checkpoint"), "{error}");
    for text in ["", "{}", "{\"model\":", "not json", "[1]"] {
        fs::write(&path, text).unwrap();
        let error = Tokenizer::open(&path).unwrap_err().to_string();
        assert!(error.contains("tokenizer.json is not a usable tokenizer: "), "{error}");
        assert_eq!(error.lines().count(), 1);
    }
}
