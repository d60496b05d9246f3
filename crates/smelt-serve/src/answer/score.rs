//! Writes the answers of `/v1/score`, `/v1/rerank` and `/predict`.

use serde::Serialize;

use super::{Heading, json};
use crate::api::score::Document;

#[derive(Serialize)]
struct Scores<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    data: Vec<One>,
    usage: Usage,
}

#[derive(Serialize)]
struct One {
    index: usize,
    object: &'static str,
    score: f32,
}

#[derive(Serialize)]
struct Ranking<'a> {
    id: &'a str,
    model: &'a str,
    results: Vec<Ranked<'a>>,
    usage: Usage,
}

#[derive(Serialize)]
struct Ranked<'a> {
    index: usize,
    relevance_score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<Text<'a>>,
}

#[derive(Serialize)]
struct Text<'a> {
    text: &'a str,
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

impl Usage {
    fn of(tokens: usize) -> Self {
        Self { prompt_tokens: tokens, total_tokens: tokens }
    }
}

#[derive(Serialize)]
struct Prediction<'a> {
    score: f32,
    label: &'a str,
}

/// The labels of each text by their scores, the best first, equal ones in their order; a list for each where it `is_batch`,
/// else the only one's.
pub(crate) fn predictions(labels: &[String], scores: &[Vec<f32>], is_batch: bool) -> String {
    let of = |scores: &Vec<f32>| {
        let told = scores.iter().zip(labels);
        let mut told: Vec<_> =
            told.map(|(score, label)| Prediction { score: *score, label }).collect();
        told.sort_by(|one, other| other.score.total_cmp(&one.score));
        told
    };
    let all: Vec<_> = scores.iter().map(of).collect();
    match &all[..] {
        [one] if !is_batch => json(one),
        all => json(&all),
    }
}

/// The scores of pairs in their order.
pub(crate) fn scores(heading: &Heading, scores: &[f32], tokens: usize) -> String {
    let one = |(index, score): (usize, &f32)| One { index, object: "score", score: *score };
    let data = scores.iter().enumerate().map(one).collect();
    let Heading { id, created, model } = heading;
    json(&Scores { id, object: "list", created: *created, model, data, usage: Usage::of(tokens) })
}

/// The `top` best of all documents, best first, equal ones in their order; with their texts where they are given.
pub(crate) fn ranking(
    heading: &Heading,
    scores: &[f32],
    documents: Option<&[Document]>,
    top: usize,
    tokens: usize,
) -> String {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&one, &other| scores[other].total_cmp(&scores[one]));
    order.truncate(top);
    let ranked = |index: usize| {
        let document = documents.map(|documents| Text { text: &documents[index].0 });
        Ranked { index, relevance_score: scores[index], document }
    };
    let results = order.into_iter().map(ranked).collect();
    json(&Ranking { id: &heading.id, model: &heading.model, results, usage: Usage::of(tokens) })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_best_come_first_and_equals_in_their_order() {
        let heading = Heading { id: "rerank-1".to_owned(), created: 7, model: "m".to_owned() };
        let scores = [0.25, 0.5, -1.0, 0.5];
        let told = |texts: Option<&[Document]>, top| -> Value {
            serde_json::from_str(&ranking(&heading, &scores, texts, top, 9)).unwrap()
        };
        let all = told(None, usize::MAX);
        let order: Vec<&Value> =
            all["results"].as_array().unwrap().iter().map(|one| &one["index"]).collect();
        assert_eq!(order, [1, 3, 0, 2]);
        assert_eq!(all["results"][3], json!({ "index": 2, "relevance_score": -1.0 }));
        assert_eq!(all["usage"], json!({ "prompt_tokens": 9, "total_tokens": 9 }));
        let texts = ["a", "b", "c", "d"].map(|text| Document(text.to_owned()));
        let best = told(Some(&texts), 1);
        let expect = json!([{ "index": 1, "relevance_score": 0.5, "document": { "text": "b" } }]);
        assert_eq!(best["results"], expect);
    }

    #[test]
    fn labels_are_told_the_best_first() {
        let labels = ["a", "b", "c"].map(str::to_owned);
        let one = vec![0.25, 0.5, 0.25];
        let told =
            r#"[{"score":0.5,"label":"b"},{"score":0.25,"label":"a"},{"score":0.25,"label":"c"}]"#;
        assert_eq!(predictions(&labels, std::slice::from_ref(&one), false), told);
        assert_eq!(predictions(&labels, std::slice::from_ref(&one), true), format!("[{told}]"));
        assert_eq!(predictions(&labels, &[one.clone(), one], true), format!("[{told},{told}]"));
    }

    #[test]
    fn scores_keep_the_order_of_their_pairs() {
        let heading = Heading { id: "score-1".to_owned(), created: 7, model: "m".to_owned() };
        let told: Value = serde_json::from_str(&scores(&heading, &[0.5, 0.75], 5)).unwrap();
        assert_eq!((&told["object"], &told["created"]), (&json!("list"), &json!(7)));
        assert_eq!(told["data"][1], json!({ "index": 1, "object": "score", "score": 0.75 }));
    }
}
