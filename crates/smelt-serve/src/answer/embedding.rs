//! Writes the answers of `/v1/embeddings`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use smelt_runtime::embed::Embedding;

use super::json;
use crate::api::embedding::Encoding;

#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<One<'a>>,
    model: &'a str,
    usage: Usage,
}

#[derive(Serialize)]
struct One<'a> {
    object: &'static str,
    index: usize,
    embedding: Numbers<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Numbers<'a> {
    Float(&'a [f32]),
    Base64(String),
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// Tokens of all texts.
pub(crate) fn tokens(embeddings: &[Embedding]) -> usize {
    embeddings.iter().map(|embedding| embedding.tokens).sum()
}

/// The embeddings that `model` gave, in the order of their texts.
pub(crate) fn whole(model: &str, embeddings: &[Embedding], encoding: Encoding) -> String {
    let data = embeddings.iter().enumerate().map(|(index, embedding)| {
        let embedding = match encoding {
            Encoding::Float => Numbers::Float(&embedding.row),
            Encoding::Base64 => Numbers::Base64(base64(&embedding.row)),
        };
        One { object: "embedding", index, embedding }
    });
    let tokens = tokens(embeddings);
    let usage = Usage { prompt_tokens: tokens, total_tokens: tokens };
    json(&List { object: "list", data: data.collect(), model, usage })
}

fn base64(row: &[f32]) -> String {
    let bytes: Vec<u8> = row.iter().flat_map(|number| number.to_le_bytes()).collect();
    STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(encoding: Encoding, expect: &Value) {
        let row = vec![1.0, -0.5];
        let embeddings = [Embedding { tokens: 3, row: row.clone() }, Embedding { tokens: 4, row }];
        let told: Value = serde_json::from_str(&whole("m", &embeddings, encoding)).unwrap();
        assert_eq!(told["usage"], json!({ "prompt_tokens": 7, "total_tokens": 7 }));
        assert_eq!((&told["object"], &told["model"]), (&json!("list"), &json!("m")));
        let second = json!({ "object": "embedding", "index": 1, "embedding": expect });
        assert_eq!(told["data"][1], second);
    }

    #[test]
    fn numbers_are_a_list_or_their_bytes() {
        check(Encoding::Float, &json!([1.0, -0.5]));
        // 1.0 is 00 00 80 3f, -0.5 is 00 00 00 bf.
        check(Encoding::Base64, &json!("AACAPwAAAL8="));
    }
}
