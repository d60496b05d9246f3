//! Cross-encoders, checkpoint to scores: the command and `/v1/rerank`, `/v2/rerank`, `/v1/score`, and of several labels
//! `/predict`, against the numbers of transformers.

use std::fs;
use std::sync::LazyLock;

use crate::world::server::{Answer, Server};
use crate::world::{World, data, until};
use serde_json::{Value, json};

const RERANKER: &str = include_str!("../../../xtask/conformance/reranker.toml");
const CLASSIFIER: &str = include_str!("../../../xtask/conformance/classifier.toml");
const ENCODER: &str = include_str!("../../../xtask/conformance/encoder.toml");

/// Largest difference from the scores of transformers, which are about 1.
const TOLERANCE: f64 = 1e-5;

fn world(pipeline: &str) -> World {
    let here = format!("path:{}/", data("").display());
    World::new(&pipeline.replace("path:../../tests/data/", &here))
}

/// A cross-encoder, built once for all tests.
pub(crate) static RANKS: LazyLock<World> = LazyLock::new(|| {
    let world = world(RERANKER);
    let report = world.run(&[]);
    assert_eq!(report["status"], "ok", "{report}");
    world
});

/// Pairs with their tokens and the scores of transformers, the longer ones cut.
fn pairs() -> Vec<Value> {
    let list = fs::read_to_string(data("golden/bert-rank-tiny/pairs.json")).unwrap();
    serde_json::from_str(&list).unwrap()
}

fn server() -> Server {
    let server = Server::of(&RANKS, &["p.toml"], &[]);
    assert!(until(|| server.get("/health").status == 200));
    server
}

fn post(server: &Server, path: &str, body: &Value) -> Answer {
    server.post(path, body.to_string().as_bytes())
}

#[track_caller]
fn check(found: &Value, expect: &Value) {
    let apart = (found.as_f64().unwrap() - expect.as_f64().unwrap()).abs();
    assert!(apart <= TOLERANCE, "{found} is {apart:e} from {expect}");
}

#[test]
fn pairs_have_the_scores_of_transformers() {
    let pairs = pairs();
    for pair in &pairs {
        let [query, text] = ["query", "text"].map(|name| pair[name].as_str().unwrap());
        let ended = RANKS.smelt(&["rerank", "p.toml", "--json", query, text]);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let told: Value = serde_json::from_str(&ended.stdout).unwrap();
        check(&told["results"][0]["relevance_score"], &pair["score"]);
    }
    let lines = RANKS.smelt(&[
        "rerank",
        "p.toml",
        "how many?",
        "a red square is left of it",
        "two circles",
    ]);
    assert_eq!(lines.stdout, "-0.7619\ttwo circles\n-0.7694\ta red square is left of it\n");

    let server = server();
    // What is asked without a text is refused there.
    let asked: Vec<&Value> = pairs.iter().filter(|pair| pair["query"] != "").collect();
    let column = |name: &str| asked.iter().map(|pair| &pair[name]).collect::<Vec<_>>();
    let body = json!({ "text_1": column("query"), "text_2": column("text"), "truncate_prompt_tokens": -1 });
    let answer = post(&server, "/v1/score", &body).json();
    for (at, pair) in asked.iter().enumerate() {
        assert_eq!(
            (&answer["data"][at]["index"], &answer["data"][at]["object"]),
            (&json!(at), &json!("score"))
        );
        check(&answer["data"][at]["score"], &pair["score"]);
        let alone = json!({ "text_1": pair["query"], "text_2": pair["text"], "truncate_prompt_tokens": -1 });
        let alone = post(&server, "/score", &alone).json();
        assert_eq!(
            alone["data"][0]["score"], answer["data"][at]["score"],
            "company changes no bit"
        );
        assert_eq!(alone["usage"]["prompt_tokens"], pair["tokens"]);
    }
    let tokens: u64 = asked.iter().map(|pair| pair["tokens"].as_u64().unwrap()).sum();
    assert_eq!(answer["usage"], json!({ "prompt_tokens": tokens, "total_tokens": tokens }));
    assert_eq!(server.metric("smelt_embed_texts_total"), 2.0 * asked.len() as f64);
}

#[test]
fn a_reranker_of_random_weights_needs_no_download() {
    let world = World::new(include_str!("../../../pipelines/reranker.toml"));
    let set = "model=synthetic:ms-marco-minilm-tiny";
    world.run(&["--set", set]);
    let ended = world.smelt(&["rerank", "p.toml", "--set", set, "How many?", "two", "a cat"]);
    let scores: Vec<f64> = ended
        .stdout
        .lines()
        .map(|line| line.split('\t').next().unwrap().parse().unwrap())
        .collect();
    assert!(scores.len() == 2 && scores[0] > scores[1], "{} {}", ended.stdout, ended.stderr);
    let server = Server::of(&world, &["p.toml"], &["--set", set]);
    assert!(until(|| server.get("/health").status == 200));
    let body = json!({ "query": "How many?", "documents": ["two", "a cat"] });
    let results = &post(&server, "/v1/rerank", &body).json()["results"];
    assert!((results[0]["relevance_score"].as_f64().unwrap() - scores[0]).abs() < 1e-4);
}

#[test]
fn documents_are_ranked() {
    let server = server();
    let documents = json!(["a red square is left of it", { "text": "two circles", "title": "x" }]);
    let body = json!({ "model": "ranks", "query": "how many?", "documents": documents });
    let first = post(&server, "/v1/rerank", &body).json();
    assert_eq!(first["results"][0]["index"], 1);
    assert_eq!(first["results"][1]["document"], json!({ "text": "a red square is left of it" }));
    check(&first["results"][0]["relevance_score"], &json!(-0.761_879));
    assert_eq!(post(&server, "/rerank", &body).json()["results"], first["results"]);
    let second = post(&server, "/v2/rerank", &body).json();
    assert_eq!(second["results"][0].as_object().unwrap().len(), 2, "{second}");
    let with = |path: &str, name: &str, value: Value| {
        let mut body = body.clone();
        body[name] = value;
        post(&server, path, &body)
    };
    assert_eq!(
        with("/v1/rerank", "top_n", json!(1)).json()["results"].as_array().unwrap().len(),
        1
    );
    let told = with("/v1/rerank", "colour", json!(1));
    assert!(
        told.status == 200 && told.head.contains("x-smelt-passed-over: colour"),
        "{}",
        told.head
    );
    // Cohere's clients have what is too long cut, others say so.
    let long = json!(["long ".repeat(20)]);
    assert_eq!(with("/v2/rerank", "documents", long.clone()).json()["usage"]["prompt_tokens"], 32);
    let refused = |path: &str, name: &str, value: Value, param: &str| {
        let answer = with(path, name, value);
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["param"]), (400, &json!(param)), "{}", answer.body);
        error["code"].clone()
    };
    assert_eq!(refused("/v1/rerank", "documents", long, "documents[0]"), "context_length_exceeded");
    refused("/v1/rerank", "documents", json!(["a", ""]), "documents[1]");
    refused("/v1/rerank", "documents", json!([]), "documents");
    refused("/v1/rerank", "documents", json!(vec!["a"; 2049]), "documents");
    refused("/v1/rerank", "query", json!(""), "query");
    refused("/v1/rerank", "rank_fields", json!(["title"]), "rank_fields");
    refused("/v1/rerank", "truncate_prompt_tokens", json!(33), "truncate_prompt_tokens");
    let cut = with("/v1/rerank", "truncate_prompt_tokens", json!(10)).json();
    assert_eq!(cut["usage"]["prompt_tokens"], 20);
    let short = with("/v2/rerank", "max_tokens_per_doc", json!(2)).json();
    assert_eq!(short["usage"]["prompt_tokens"], 2 * (8 + 2 + 3));
}

#[test]
fn models_are_asked_what_they_do() {
    let encodes = world(ENCODER);
    encodes.run(&[]);
    let encoder = encodes.out("deployment").display().to_string();
    let server = Server::of(&RANKS, &["p.toml", &encoder], &[]);
    assert!(until(|| server.get("/health").status == 200));
    let refused = |path: &str, body: Value, words: &str| {
        let answer = post(&server, path, &body);
        assert_eq!(
            (answer.status, &answer.json()["error"]["code"]),
            (400, &json!("model_not_suitable"))
        );
        assert!(answer.body.contains(words), "{}", answer.body);
    };
    let rank = json!({ "model": "letters", "query": "a", "documents": ["b"] });
    refused("/v1/rerank", rank, "ask it at /v1/embeddings");
    refused("/v1/embeddings", json!({ "model": "ranks", "input": "a" }), "ask it at /v1/rerank");
    refused("/predict", json!({ "model": "ranks", "inputs": "a" }), "ask it at /v1/rerank");
    let chat = json!({ "model": "ranks", "messages": [{ "role": "user", "content": "a" }] });
    refused("/v1/chat/completions", chat, "ask it at /v1/rerank");
    let counted = post(&server, "/tokenize", &json!({ "model": "ranks", "prompt": "ab" })).json();
    assert_eq!((&counted["count"], &counted["max_model_len"]), (&json!(4), &json!(32)));
    let plain = json!({ "model": "ranks", "prompt": "ab", "add_special_tokens": false });
    assert_eq!(post(&server, "/tokenize", &plain).json()["count"], 2);
    let shown = post(&server, "/api/show", &json!({ "model": "ranks" })).json();
    assert_eq!(shown["capabilities"], json!(["rerank"]));
    let listed = RANKS.smelt(&["ls"]);
    assert!(listed.stdout.contains("scores pairs of texts"), "{}", listed.stdout);
    let deployed = RANKS.out("deployment").display().to_string();
    let embed = encodes.smelt(&["embed", &deployed, "a"]);
    assert_eq!((embed.code, embed.stderr.lines().count()), (Some(4), 1), "{}", embed.stderr);
}

#[test]
fn a_head_that_scores_no_pairs_is_refused_in_one_line() {
    let refused = |pipeline: &str, words: &str| {
        let world = world(pipeline);
        let ended = world.smelt(&["run", "p.toml"]);
        assert_ne!(ended.code, Some(0));
        assert!(ended.stderr.contains(words), "{}", ended.stderr);
    };
    let encoder = RERANKER.replace("part = \"classifier\"", "part = \"encoder\"");
    refused(&encoder, "export part = \"classifier\"");
    let none = RERANKER.replace("golden/bert-rank-tiny", "golden/bert-tiny");
    refused(&none, "is a bert model, which has no classification head");
}

/// A classifier of three labels, of which `sed` makes another.
fn classifier(sed: &str) -> World {
    let world = world(&CLASSIFIER.replace(" .']", &format!(" .; sed -i \"{sed}\" config.json']")));
    let report = world.run(&[]);
    assert_eq!(report["status"], "ok", "{report}");
    world
}

/// Texts and pairs with their tokens and what is told of them, the longer ones cut.
fn labelled() -> Vec<Value> {
    let list = fs::read_to_string(data("golden/bert-labels-tiny/labels.json")).unwrap();
    serde_json::from_str(&list).unwrap()
}

/// The labels come with their scores, best first.
#[track_caller]
fn check_labels(found: &Value, expect: &Value, names: [&str; 3]) {
    let found = found.as_array().unwrap();
    assert_eq!(found.len(), names.len());
    assert!(found.is_sorted_by(|one, next| one["score"].as_f64() >= next["score"].as_f64()));
    for (name, score) in names.iter().zip(expect.as_array().unwrap()) {
        let one = found.iter().find(|one| one["label"] == *name).unwrap();
        check(&one["score"], score);
    }
}

#[test]
fn texts_are_classified_as_transformers_does() {
    let several = r#"s/\"model_type\"/\"problem_type\": \"multi_label_classification\", &/"#;
    for (sed, names, told) in [
        (r#"s/\"LABEL_1\"/\"yes\"/"#, ["LABEL_0", "yes", "LABEL_2"], "softmax"),
        (several, ["LABEL_0", "LABEL_1", "LABEL_2"], "sigmoid"),
    ] {
        let world = classifier(sed);
        let server = Server::of(&world, &["p.toml"], &[]);
        assert!(until(|| server.get("/health").status == 200));
        let all = labelled();
        let texts: Vec<&Value> = all.iter().map(|one| &one["texts"]).collect();
        let body = json!({ "inputs": texts, "truncate": true });
        let batch = post(&server, "/predict", &body).json();
        for (at, one) in all.iter().enumerate() {
            let alone = json!({ "inputs": one["texts"], "truncate": true });
            let alone = post(&server, "/predict", &alone).json();
            check_labels(&alone, &one[told], names);
            assert_eq!(alone, batch[at], "company changes no bit");
            let raw = json!({ "inputs": one["texts"], "truncate": true, "raw_scores": true });
            check_labels(&post(&server, "/predict", &raw).json(), &one["logits"], names);
        }
        let one = &all[0]["texts"][0];
        assert_eq!(post(&server, "/predict", &json!({ "inputs": one })).json(), batch[0]);
    }
}

#[test]
fn a_classifier_ranks_nothing_and_says_where_it_is_asked() {
    let world = classifier("s/a/a/");
    let server = Server::of(&world, &["p.toml"], &[]);
    assert!(until(|| server.get("/health").status == 200));
    let refused = |path: &str, body: Value, param: &str, code: &str| {
        let answer = post(&server, path, &body);
        let error = &answer.json()["error"];
        let found = (answer.status, error["param"].as_str(), error["code"].as_str());
        assert_eq!(found, (400, Some(param), Some(code)), "{}", answer.body);
        error["message"].as_str().unwrap().to_owned()
    };
    let pair = json!({ "text_1": "a", "text_2": "b" });
    let ranked = json!({ "query": "a", "documents": ["b"] });
    let chat = json!({ "messages": [{ "role": "user", "content": "a" }] });
    for (path, body) in [
        ("/v1/score", pair),
        ("/rerank", ranked.clone()),
        ("/v2/rerank", ranked),
        ("/v1/embeddings", json!({ "input": "a" })),
        ("/v1/chat/completions", chat),
    ] {
        let why = refused(path, body, "model", "model_not_suitable");
        assert!(why.contains("\"labels\" classifies texts; ask it at /predict"), "{why}");
    }
    let long = "long ".repeat(20);
    let why = refused("/predict", json!({ "inputs": long }), "inputs", "context_length_exceeded");
    assert!(why.contains("truncate: true"), "{why}");
    let second = json!({ "inputs": [["a"], ["b", long]] });
    refused("/predict", second, "inputs[1][1]", "context_length_exceeded");
    let shown = post(&server, "/api/show", &json!({ "model": "labels" })).json();
    assert_eq!(shown["capabilities"], json!(["classify"]));
    let listed = world.smelt(&["ls"]);
    assert!(listed.stdout.contains("classifies texts"), "{}", listed.stdout);
    let ranked = world.smelt(&["rerank", "p.toml", "a", "b"]);
    assert!(ranked.code == Some(4) && ranked.stderr.contains("/predict"), "{}", ranked.stderr);
}
