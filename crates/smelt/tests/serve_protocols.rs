//! The protocols that people's tools speak, as their clients speak them.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

mod world;

use std::fs;
use std::sync::LazyLock;

use serde_json::{Value, json};
use world::server::{Answer, BUILT, Server, base64};
use world::{World, data, until};

const ENCODER: &str = include_str!("../../../xtask/conformance/encoder.toml");

/// A sentence encoder, built once for all tests.
static ENCODES: LazyLock<World> = LazyLock::new(|| {
    let here = format!("path:{}/", data("").display());
    let world = World::new(&ENCODER.replace("path:../../tests/data/", &here));
    world.run(&[]);
    world
});

fn circles_picture() -> String {
    base64(&fs::read(data("shapes-1.png")).unwrap())
}

fn post(server: &Server, path: &str, body: &Value) -> Answer {
    server.post(path, body.to_string().as_bytes())
}

/// The lines of an answer that is a stream of them; chunks of the connection are put together.
fn lines(answer: &Answer) -> Vec<Value> {
    assert!(answer.head.contains("content-type: application/x-ndjson"), "{}", answer.head);
    let text = unchunked(&answer.body);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A body without the lengths of its chunks.
fn unchunked(body: &str) -> String {
    let (mut text, mut rest) = (String::new(), body);
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        if size == 0 {
            break;
        }
        text += &after[..size];
        rest = &after[size + 2..];
    }
    text
}

#[test]
fn ollamas_clients_show_pictures_and_hear_lines() {
    let server = Server::start(&[]);
    let question = "How many circles are there?";
    let message = json!({ "role": "user", "content": question, "images": [circles_picture()] });
    let options = json!({ "temperature": 0, "num_ctx": 4096 });
    let chat = json!({ "model": "shapes-vl:latest", "messages": [message], "options": options });
    let lines_of_chat = lines(&post(&server, "/api/chat", &chat));
    let said: String =
        lines_of_chat.iter().filter_map(|line| line["message"]["content"].as_str()).collect();
    assert_eq!(said, "2");
    let last = lines_of_chat.last().unwrap();
    assert_eq!((&last["done"], &last["done_reason"]), (&json!(true), &json!("stop")));
    assert!(last["prompt_eval_count"].as_u64() > Some(36), "{last}");
    assert!(lines_of_chat.iter().all(|line| line["model"] == "shapes-vl:latest"));
    let mut prompt = json!({ "model": "shapes-vl", "prompt": question, "images": [circles_picture()],
        "stream": false, "options": options });
    let whole = post(&server, "/api/generate", &prompt).json();
    assert_eq!((&whole["response"], &whole["done"]), (&json!("2"), &json!(true)));
    prompt["format"] = json!({ "type": "object", "properties": { "count": { "enum": [2] } },
        "required": ["count"], "additionalProperties": false });
    let held = post(&server, "/api/generate", &prompt).json();
    let held: Value = serde_json::from_str(held["response"].as_str().unwrap()).unwrap();
    assert_eq!(held, json!({ "count": 2 }));
    let raw = json!({ "prompt": "a red", "raw": true, "stream": false,
        "options": { "num_predict": 3, "temperature": 0 } });
    let raw = post(&server, "/api/generate", &raw).json();
    let completed =
        json!({ "prompt": "a red", "max_tokens": 3, "temperature": 0, "top_k": 40, "top_p": 0.9 });
    let completed = post(&server, "/v1/completions", &completed).json();
    assert_eq!(raw["response"], completed["choices"][0]["text"]);
    // Who says nothing of what it sends, as curl does, is understood.
    let body =
        json!({ "prompt": "a", "stream": false, "options": { "num_predict": 1 } }).to_string();
    let request = format!(
        "POST /api/generate HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/x-www-form-urlencoded\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    assert_eq!(server.exchange(request.as_bytes()).status, 200);
}

#[test]
fn ollamas_clients_find_models_and_are_refused_in_their_words() {
    let server = Server::start(&[]);
    let tags = server.get("/api/tags").json();
    let model = &tags["models"][0];
    assert_eq!(model["name"], "shapes-vl:latest");
    assert!(model["size"].as_u64() > Some(1000) && model["digest"].as_str().unwrap().len() == 64);
    assert_eq!(server.get("/api/ps").json()["models"][0]["name"], "shapes-vl:latest");
    assert!(server.get("/api/version").json()["version"].is_string());
    for asked in [json!({ "model": "shapes-vl" }), json!({ "name": "shapes-vl:latest" })] {
        let shown = post(&server, "/api/show", &asked).json();
        let able = shown["capabilities"].as_array().unwrap();
        assert!(able.contains(&json!("vision")) && able.contains(&json!("completion")), "{shown}");
    }
    let loaded = post(&server, "/api/generate", &json!({ "model": "shapes-vl", "keep_alive": -1 }));
    assert_eq!(loaded.json()["done_reason"], "load");
    let root = server.exchange(
        b"GET / HTTP/1.1\r\nhost: localhost\r\naccept: application/json\r\nconnection: close\r\n\r\n",
    );
    assert_eq!(root.body, "Ollama is running");
    let refused = |path: &str, body: Value, status: u16| {
        let answer = post(&server, path, &body);
        let error = answer.json();
        assert_eq!(answer.status, status, "{path} {}", answer.body);
        assert!(error["error"].is_string() && error.as_object().unwrap().len() == 1, "{error}");
    };
    refused("/api/pull", json!({ "model": "llava" }), 403);
    refused(
        "/api/chat",
        json!({ "model": "llava", "messages": [{ "role": "user", "content": "a" }] }),
        404,
    );
    refused("/api/chat", json!({ "messages": 3 }), 400);
    refused("/api/generate", json!({ "prompt": "a", "context": [1] }), 400);
    refused("/api/generate", json!({ "prompt": "a", "images": ["no picture"] }), 400);
    refused("/api/nothing", json!({}), 404);
    assert_eq!(server.get("/api/chat").json()["error"].as_str().map(str::is_empty), Some(false));
}

#[test]
fn ollamas_clients_are_given_embeddings() {
    let server = Server::of(&ENCODES, &["p.toml"], &[]);
    assert!(until(|| server.get("/health").status == 200));
    let texts = ["A man is eating food.", "what?"];
    let expect = post(&server, "/v1/embeddings", &json!({ "input": texts })).json();
    let many = post(&server, "/api/embed", &json!({ "model": "letters", "input": texts })).json();
    for at in [0, 1] {
        assert_eq!(many["embeddings"][at], expect["data"][at]["embedding"]);
    }
    assert_eq!(many["prompt_eval_count"], expect["usage"]["prompt_tokens"]);
    let one = json!({ "model": "letters:latest", "prompt": texts[0] });
    assert_eq!(post(&server, "/api/embeddings", &one).json()["embedding"], many["embeddings"][0]);
    let shown = post(&server, "/api/show", &json!({ "model": "letters" })).json();
    assert_eq!(shown["capabilities"], json!(["embedding"]));
}

#[test]
fn keys_and_names_hold_on_every_protocol() {
    BUILT.write("protocol-keys", "sesame\n");
    let server = Server::start(&["--api-key-file", "protocol-keys"]);
    let answer = post(&server, "/api/chat", &json!({ "messages": [] }));
    assert_eq!(answer.status, 401);
    assert!(answer.json()["error"].is_string(), "{}", answer.body);
}
