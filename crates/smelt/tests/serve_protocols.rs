//! The protocols that people's tools speak, as their clients speak them.

use std::fs;
use std::sync::LazyLock;

use crate::world::server::{Answer, BUILT, Server, base64, posted};
use crate::world::{World, data, until};
use serde_json::{Value, json};

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
        assert_eq!(shown["details"]["quantization_level"], "int8");
    }
    assert_eq!(server.get("/v1/models").json()["data"][0]["quantization"], "int8");
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
    // Where nothing but the model is asked for, too.
    refused("/api/generate", json!({ "options": { "temperature": 3 } }), 400);
    refused("/api/generate", json!({ "messages": [{ "role": "nobody" }] }), 400);
    refused("/api/chat", json!({ "tools": [1] }), 400);
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

/// The names and data of a stream of events.
fn events(answer: &Answer) -> Vec<(String, Value)> {
    assert!(answer.head.contains("content-type: text/event-stream"), "{}", answer.head);
    let text = unchunked(&answer.body);
    let events = text.split("\n\n").filter_map(|event| event.strip_prefix("event: "));
    let parts = events.map(|event| event.split_once("\ndata: ").unwrap());
    parts.map(|(name, data)| (name.to_owned(), serde_json::from_str(data).unwrap())).collect()
}

/// What is asked of the Responses API about the picture of circles.
fn responses(fields: Value) -> Value {
    let url = format!("data:image/png;base64,{}", circles_picture());
    let content = json!([{ "type": "input_image", "image_url": url },
        { "type": "input_text", "text": "How many circles are there?" }]);
    let mut body = json!({ "input": [{ "role": "user", "content": content }], "temperature": 0 });
    body.as_object_mut().unwrap().extend(fields.as_object().cloned().unwrap());
    body
}

#[test]
fn clients_of_responses_are_answered_whole_and_in_events() {
    let server = Server::start(&[]);
    let whole = post(&server, "/v1/responses", &responses(json!({}))).json();
    assert_eq!(whole["output"][0]["content"][0]["text"], "2", "{whole}");
    assert_eq!((&whole["object"], &whole["status"]), (&json!("response"), &json!("completed")));
    assert!(whole["usage"]["input_tokens_details"]["image_tokens"].as_u64() > Some(30));
    let told = events(&post(&server, "/v1/responses", &responses(json!({ "stream": true }))));
    let (name, last) = told.last().unwrap();
    assert_eq!(
        (&name[..], &last["response"]["output"][0]["content"]),
        ("response.completed", &whole["output"][0]["content"])
    );
    let id = &last["response"]["id"];
    assert_eq!((&told[0].1["response"]["id"], &told[0].0[..]), (id, "response.created"));
    assert!((0..).zip(&told).all(|(number, (_, event))| event["sequence_number"] == number));
    let cut = json!({ "max_output_tokens": 1, "ignore_eos": true });
    let cut = post(&server, "/v1/responses", &responses(cut)).json();
    assert_eq!(cut["incomplete_details"]["reason"], "max_output_tokens");
    let schema = json!({ "type": "object", "properties": { "count": { "enum": [2] } },
        "required": ["count"], "additionalProperties": false });
    let format = json!({ "type": "json_schema", "name": "count", "schema": schema });
    let held = json!({ "text": { "format": format } });
    let held = post(&server, "/v1/responses", &responses(held)).json();
    let text = held["output"][0]["content"][0]["text"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(text).unwrap(), json!({ "count": 2 }));
    for (body, param) in [
        (responses(json!({ "background": true })), "background"),
        (responses(json!({ "max_output_tokens": 0 })), "max_output_tokens"),
        (responses(json!({ "previous_response_id": "resp_0" })), "previous_response_id"),
        (json!({ "input": [{ "role": "robot", "content": "a" }] }), "input[0].role"),
        (
            json!({ "input": [{ "role": "user", "content": [
            { "type": "input_image", "image_url": "data:image/png;base64,AAAA" }] }] }),
            "input[0].content[0].image_url",
        ),
    ] {
        let answer = post(&server, "/v1/responses", &body);
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(param)));
    }
}

/// Asks with a key.
fn keyed(server: &Server, method: &str, path: &str, body: &Value, key: &str) -> Answer {
    let body = body.to_string();
    let request = posted(path, body.as_bytes(), &format!("x-api-key: {key}\r\n"));
    let request = String::from_utf8(request).unwrap().replacen("POST", method, 1);
    server.exchange(request.as_bytes())
}

#[test]
fn conversations_go_on_from_what_is_kept_for_their_key() {
    BUILT.write("kept-keys", "first\nsecond\n");
    let server = Server::start(&["--api-key-file", "kept-keys"]);
    let ask = |body: &Value, key: &str| keyed(&server, "POST", "/v1/responses", body, key);
    let first = ask(&responses(json!({})), "first").json();
    assert_eq!(first["store"], true);
    let next = json!({ "input": "What is left of the red circle?", "temperature": 0,
        "previous_response_id": first["id"] });
    let gone_on = ask(&next, "first").json();
    assert_eq!(gone_on["previous_response_id"], first["id"]);
    let mut all = responses(json!({}));
    let turns = all["input"].as_array_mut().unwrap();
    turns.extend(first["output"].as_array().unwrap().clone());
    turns.push(json!({ "role": "user", "content": next["input"] }));
    let sent = ask(&all, "first").json();
    assert_eq!(gone_on["output"][0]["content"], sent["output"][0]["content"]);
    assert_eq!(gone_on["usage"]["input_tokens"], sent["usage"]["input_tokens"]);
    // What a client names instead of sending it is the same.
    all["input"][1] = json!({ "type": "item_reference", "id": first["output"][0]["id"] });
    assert_eq!(ask(&all, "first").json()["usage"]["input_tokens"], sent["usage"]["input_tokens"]);
    let other = ask(&next, "second");
    let code = other.json()["error"]["code"].clone();
    assert_eq!((other.status, code), (400, json!("previous_response_not_found")));
    let path = format!("/v1/responses/{}", first["id"].as_str().unwrap());
    let none = json!({});
    assert_eq!(keyed(&server, "GET", &path, &none, "first").json(), first);
    for method in ["GET", "DELETE"] {
        assert_eq!(keyed(&server, method, &path, &none, "second").status, 404);
    }
    assert_eq!(keyed(&server, "DELETE", &path, &none, "first").json()["deleted"], true);
    assert_eq!(keyed(&server, "GET", &path, &none, "first").status, 404);
    assert_eq!(ask(&next, "first").status, 400);
    let not_kept = ask(&responses(json!({ "store": false })), "first").json();
    let path = format!("/v1/responses/{}", not_kept["id"].as_str().unwrap());
    assert_eq!(keyed(&server, "GET", &path, &none, "first").status, 404);
}

#[test]
fn clients_of_responses_call_tools_and_tell_what_came_of_it() {
    let template = data("hermes.jinja").display().to_string();
    let server = Server::start(&["--chat-template", &template]);
    let parameters = json!({ "type": "object", "properties": { "colour": { "enum": ["red"] } },
        "required": ["colour"], "additionalProperties": false });
    let tool = json!({ "type": "function", "name": "find", "parameters": parameters });
    let offered = json!({ "tools": [tool], "tool_choice": "required", "stream": true,
        "parallel_tool_calls": false });
    let told = events(&post(&server, "/v1/responses", &responses(offered)));
    let of_kind = |kind: &'static str| told.iter().filter(move |(name, _)| name.ends_with(kind));
    let arguments: String =
        of_kind("arguments.delta").filter_map(|(_, event)| event["delta"].as_str()).collect();
    let (_, done) = of_kind("arguments.done").next().unwrap();
    assert_eq!(done["arguments"], arguments.as_str());
    assert_eq!(serde_json::from_str::<Value>(&arguments).unwrap(), json!({ "colour": "red" }));
    let response = &told.last().unwrap().1["response"];
    let call = &response["output"][0];
    assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("find")));
    let output =
        json!({ "type": "function_call_output", "call_id": call["call_id"], "output": "left" });
    let next =
        json!({ "previous_response_id": response["id"], "input": [output], "temperature": 0 });
    let answer = post(&server, "/v1/responses", &next).json();
    assert_eq!(answer["status"], "completed", "{answer}");
}

/// What is asked of Anthropic's API about the picture of circles.
fn messages(fields: Value) -> Value {
    let source = json!({ "type": "base64", "media_type": "image/png", "data": circles_picture() });
    let content = json!([{ "type": "image", "source": source },
        { "type": "text", "text": "How many circles are there?" }]);
    let mut body = json!({ "model": "shapes-vl", "max_tokens": 400, "temperature": 0,
        "messages": [{ "role": "user", "content": content }] });
    body.as_object_mut().unwrap().extend(fields.as_object().cloned().unwrap());
    body
}

#[test]
fn anthropics_clients_are_answered_whole_and_in_events() {
    let server = Server::start(&[]);
    let ask = |fields: Value| post(&server, "/v1/messages", &messages(fields));
    let whole = ask(json!({})).json();
    assert_eq!(whole["content"], json!([{ "type": "text", "text": "2" }]), "{whole}");
    assert_eq!((&whole["type"], &whole["stop_reason"]), (&json!("message"), &json!("end_turn")));
    let told = events(&ask(json!({ "stream": true })));
    let names: Vec<&str> = told.iter().map(|(name, _)| &name[..]).collect();
    assert_eq!(
        names,
        [
            "message_start",
            "ping",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop"
        ]
    );
    let counted = post(&server, "/v1/messages/count_tokens", &messages(json!({}))).json();
    let usage = &told[0].1["message"]["usage"];
    let read = |field: &str| usage[field].as_u64().unwrap();
    let all = read("input_tokens") + read("cache_read_input_tokens");
    assert_eq!(counted["input_tokens"], all, "{usage}");
    assert!(read("cache_read_input_tokens") > 0, "what was asked before is known");
    let stopped = ask(json!({ "stop_sequences": ["x", "2"] })).json();
    assert_eq!(
        (&stopped["stop_reason"], &stopped["stop_sequence"]),
        (&json!("stop_sequence"), &json!("2"))
    );
    assert_eq!(
        ask(json!({ "max_tokens": 1, "ignore_eos": true })).json()["stop_reason"],
        "max_tokens"
    );
    let refused = |body: Value, status: u16, kind: &str, says: &str| {
        let answer = post(&server, "/v1/messages", &body);
        let error = answer.json();
        assert_eq!((answer.status, &error["type"]), (status, &json!("error")), "{error}");
        assert_eq!(error["error"]["type"], kind);
        assert!(error["error"]["message"].as_str().unwrap().contains(says), "{error}");
    };
    refused(messages(json!({ "max_tokens": null })), 400, "invalid_request_error", "max_tokens");
    refused(messages(json!({ "model": "claude" })), 404, "not_found_error", "claude");
    let source = json!({ "type": "base64", "media_type": "image/png", "data": "AAAA" });
    let blind = json!([{ "role": "user", "content": [{ "type": "image", "source": source }] }]);
    refused(
        messages(json!({ "messages": blind })),
        400,
        "invalid_request_error",
        "messages[0].content[0].source",
    );
    assert_eq!(server.get("/v1/messages").json()["type"], "error");
}

#[test]
fn anthropics_clients_call_tools_and_tell_what_came_of_it() {
    let template = data("hermes.jinja").display().to_string();
    let server = Server::start(&["--chat-template", &template]);
    let schema = json!({ "type": "object", "properties": { "colour": { "enum": ["red"] } },
        "required": ["colour"], "additionalProperties": false });
    let choice = json!({ "type": "any", "disable_parallel_tool_use": true });
    let offered =
        json!({ "tools": [{ "name": "find", "input_schema": schema }], "tool_choice": choice });
    let whole = post(&server, "/v1/messages", &messages(offered)).json();
    let call = &whole["content"][0];
    assert_eq!((&call["type"], &call["input"]), (&json!("tool_use"), &json!({ "colour": "red" })));
    assert_eq!(whole["stop_reason"], "tool_use");
    let result = json!({ "type": "tool_result", "tool_use_id": call["id"], "content": "left" });
    let turns = json!([{ "role": "user", "content": "Find it." },
        { "role": "assistant", "content": whole["content"] },
        { "role": "user", "content": [result] }]);
    let next =
        post(&server, "/v1/messages", &messages(json!({ "messages": turns, "max_tokens": 8 })));
    assert_eq!(next.json()["role"], "assistant", "{}", next.body);
}

/// Where a protocol is spoken, how it asks in these words, and what its answer says.
type Speaks = (&'static str, fn(Value) -> Value, fn(&Value) -> Value);

/// All that a conversation can be asked in.
fn speaking() -> [Speaks; 4] {
    fn turn(words: Value) -> Value {
        json!([{ "role": "user", "content": words }])
    }
    [
        (
            "/v1/chat/completions",
            |words| json!({ "messages": turn(words), "temperature": 0 }),
            |answer| answer["choices"][0]["message"]["content"].clone(),
        ),
        (
            "/v1/responses",
            |words| json!({ "input": turn(words), "temperature": 0 }),
            |answer| answer["output"][0]["content"][0]["text"].clone(),
        ),
        (
            "/v1/messages",
            |words| json!({ "messages": turn(words), "temperature": 0, "max_tokens": 40 }),
            |answer| answer["content"][0]["text"].clone(),
        ),
        (
            "/api/chat",
            |words| json!({ "messages": turn(words), "options": { "temperature": 0 }, "stream": false }),
            |answer| answer["message"]["content"].clone(),
        ),
    ]
}

/// What a protocol asks, with these fields beside.
fn with(mut body: Value, fields: &Value) -> Value {
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

#[test]
fn what_other_servers_hold_answers_to_is_done_in_every_protocol() {
    let server = Server::start(&[]);
    let seven = json!({ "const": "seven" });
    for (path, asked, said) in speaking() {
        for fields in [
            json!({ "guided_choice": ["seven"] }),
            json!({ "guided_regex": "seven" }),
            json!({ "guided_grammar": "root ::= \"seven\"" }),
            json!({ "structured_outputs": { "choice": ["seven"] } }),
            json!({ "grammar": "root ::= \"seven\"" }),
            json!({ "regex": "seven" }),
            json!({ "ebnf": "root ::= \"seven\"" }),
        ] {
            let answer = post(&server, path, &with(asked(json!("How many?")), &fields));
            assert_eq!(answer.status, 200, "{path} {fields}: {}", answer.body);
            assert_eq!(said(&answer.json()), "seven", "{path} {fields}");
        }
        for field in ["guided_json", "json_schema"] {
            let answer =
                post(&server, path, &with(asked(json!("How many?")), &json!({ field: seven })));
            assert_eq!(said(&answer.json()), "\"seven\"", "{path} {field}: {}", answer.body);
        }
        let one = with(asked(json!("How many?")), &json!({ "guided_choice": ["seven"] }));
        let stopped = with(one, &json!({ "regex": "a" }));
        let answer = post(&server, path, &stopped);
        assert_eq!(answer.status, 400, "{path}: a form is said once: {}", answer.body);
    }
    let object = json!({ "type": "json_object", "schema": { "type": "object",
        "properties": { "a": { "const": 1 } }, "required": ["a"] } });
    let (path, asked, said) = speaking()[0];
    let answer =
        post(&server, path, &with(asked(json!("a")), &json!({ "response_format": object })));
    let held: Value = serde_json::from_str(said(&answer.json()).as_str().unwrap()).unwrap();
    assert_eq!(held, json!({ "a": 1 }), "llama-server's form of a schema");
}

#[test]
fn no_protocol_drops_a_field_in_silence() {
    let server = Server::start(&[]);
    for (path, asked, _) in speaking() {
        let ask = |fields: Value| post(&server, path, &with(asked(json!("How many?")), &fields));
        for (field, value) in [
            ("min_tokens", json!(5)),
            ("skip_special_tokens", json!(false)),
            ("spaces_between_special_tokens", json!(false)),
            ("add_special_tokens", json!(true)),
            ("mirostat", json!(2)),
        ] {
            let answer = ask(json!({ field: value }));
            assert_eq!(answer.status, 400, "{path} {field}: {}", answer.body);
            assert!(answer.body.contains(field), "{path}: {}", answer.body);
        }
        let done = json!({ "skip_special_tokens": true, "add_special_tokens": false, "user": "u",
            "stroe": 1 });
        let answer = ask(done);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        let head = answer.head;
        assert!(head.contains("x-smelt-passed-over: stroe\r\n"), "{path}: {head}");
    }
    let told = |path: &str, body: Value| {
        let answer = post(&server, path, &body);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        let line = answer.head.lines().find_map(|line| line.strip_prefix("x-smelt-passed-over: "));
        line.unwrap_or_default().to_owned()
    };
    let options = json!({ "temprature": 1, "num_ctx": 512, "num_predict": 1 });
    let turn = json!([{ "role": "user", "content": "a", "naem": "b" }]);
    let chat = json!({ "messages": turn, "options": options, "stream": false, "system": "s",
        "keep_alive": 1 });
    assert_eq!(told("/api/chat", chat.clone()), "messages.naem,options.temprature,system");
    let prompt = json!({ "prompt": "a", "options": options, "stream": false, "system": "s" });
    assert_eq!(told("/api/generate", prompt), "options.temprature");
    let sized = json!({ "messages": turn, "mm_processor_kwargs": { "side": 4 }, "max_tokens": 1 });
    assert_eq!(told("/v1/chat/completions", sized), "messages.naem,mm_processor_kwargs.side");
    let counted = json!({ "messages": turn, "stroe": 1 });
    assert_eq!(told("/v1/messages/count_tokens", counted), "messages.naem,stroe");
    // What chats read and another protocol calls otherwise.
    for (path, body, word) in [
        ("/v1/responses", json!({ "input": "a", "max_tokens": 1 }), "max_output_tokens"),
        ("/api/chat", with(chat.clone(), &json!({ "temperature": 0 })), "options.temperature"),
        (
            "/v1/messages",
            json!({ "messages": turn, "max_tokens": 1, "stop": "a" }),
            "stop_sequences",
        ),
    ] {
        let answer = post(&server, path, &body);
        assert_eq!(answer.status, 400, "{path}: {}", answer.body);
        assert!(answer.body.contains(word), "{path}: {}", answer.body);
    }
    let begun = json!({ "messages": [{ "role": "assistant", "content": "a", "prefix": true }] });
    let answer = post(&server, "/v1/chat/completions", &begun);
    assert!(
        answer.status == 400 && answer.body.contains("continue_final_message"),
        "{}",
        answer.body
    );
}

#[test]
fn a_message_without_content_says_nothing_to_ollama_alone() {
    let server = Server::start(&[]);
    let [empty, missing, null] = [json!({ "content": "" }), json!({}), json!({ "content": null })]
        .map(|fields| with(json!({ "role": "user" }), &fields));
    let ask = |path: &str, turn: &Value| {
        let options = json!({ "num_predict": 4, "temperature": 0 });
        post(&server, path, &json!({ "messages": [turn], "options": options, "stream": false }))
    };
    let same = ask("/api/chat", &empty).json()["message"].clone();
    assert!(same["content"].is_string(), "{same}");
    for turn in [missing, null] {
        assert_eq!(ask("/api/chat", &turn).json()["message"], same);
        let refused = post(&server, "/v1/chat/completions", &json!({ "messages": [turn] }));
        assert_eq!(refused.json()["error"]["param"], "messages[0].content");
    }
}

#[test]
fn routes_are_there_without_their_version() {
    let server = Server::start(&[]);
    let model = |answer: Answer| answer.json()["data"][0]["id"].clone();
    assert_eq!(model(server.get("/models")), model(server.get("/v1/models")));
    let words = json!([{ "role": "user", "content": "How many circles are there?" }]);
    let chat = json!({ "messages": words, "max_tokens": 4, "temperature": 0 });
    let said = |path: &str| post(&server, path, &chat).json()["choices"][0]["message"].clone();
    assert_eq!(said("/chat/completions"), said("/v1/chat/completions"));
    let prompt = post(&server, "/apply-template", &chat).json()["prompt"].clone();
    assert!(prompt.as_str().unwrap().contains("How many circles are there?"), "{prompt}");
    // What was applied is what is read.
    let completed = json!({ "prompt": prompt, "max_tokens": 4, "temperature": 0 });
    let text = |path: &str| post(&server, path, &completed).json()["choices"][0]["text"].clone();
    assert_eq!(text("/completions"), said("/chat/completions")["content"]);
    assert_eq!(text("/v1/completions"), text("/completions"));
    for path in ["/completion", "/embedding"] {
        assert_eq!(post(&server, path, &completed).status, 404, "{path}");
    }
}
