use std::collections::BTreeSet;

use serde_json::Value;

use super::chat::ChatFields;
use super::common::Common;
use super::completion::CompletionFields;
use super::embedding::EmbeddingFields;
use super::fields::fields;
use super::predict::PredictFields;
use super::score::{RerankFields, ScoreFields};
use super::structured_output::StructuredOutputFields;
use super::tools::ToolFields;
use crate::protocols::ours::Ours;
use crate::protocols::{anthropic, ollama, responses};
use crate::routes::OPENAPI;
use crate::routes::slots::Action;

#[track_caller]
fn check(schema: &str, fields: impl IntoIterator<Item = &'static str>) {
    let document: Value = serde_json::from_str(OPENAPI).unwrap();
    let described = document["components"]["schemas"][schema]["properties"].as_object().unwrap();
    let described: BTreeSet<&str> = described.keys().map(String::as_str).collect();
    assert_eq!(described, fields.into_iter().collect());
}

#[test]
fn the_description_has_the_fields_that_are_read() {
    let shared = || fields::<Common>().into_iter().chain(fields::<StructuredOutputFields>());
    let chat = shared().chain(fields::<ChatFields>());
    check("ChatRequest", chat.chain(fields::<ToolFields>()));
    check("CompletionRequest", shared().chain(fields::<CompletionFields>()));
    check("EmbeddingRequest", fields::<EmbeddingFields>());
    check("PredictRequest", fields::<PredictFields>());
    check("RerankRequest", fields::<RerankFields>());
    check("ScoreRequest", fields::<ScoreFields>());
    check("SlotRequest", fields::<Action>());
    check("OllamaRequest", &fields::<ollama::ask::Ask>() | &fields::<Ours>());
    check("OllamaEmbedRequest", fields::<ollama::ask::Embed>());
    check("MessagesRequest", &fields::<anthropic::ask::Ask>() | &fields::<Ours>());
    check("ResponsesRequest", &fields::<responses::ask::Ask>() | &fields::<Ours>());
}
