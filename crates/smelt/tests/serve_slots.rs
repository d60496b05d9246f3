//! What clients of llama-server ask beside answers: what a server can do, what its slots hold, and slots that are saved.

use std::fs;

use crate::world::server::{Answer, BUILT, Server, circles, posted};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// Asks with a key.
fn keyed(server: &Server, method: &str, path: &str, body: &Value, key: &str) -> Answer {
    let body = body.to_string();
    let request = posted(path, body.as_bytes(), &format!("x-api-key: {key}\r\n"));
    let request = String::from_utf8(request).unwrap().replacen("POST", method, 1);
    server.exchange(request.as_bytes())
}

fn got(server: &Server, path: &str, key: &str) -> Value {
    keyed(server, "GET", path, &json!({}), key).json()
}

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

fn code(answer: &Answer) -> (u16, String) {
    let error = answer.json();
    (answer.status, error["error"]["code"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn props_say_what_clients_look_for_and_no_place_of_the_machine() {
    let server = Server::start(&["--batch", "3"]);
    let answer = server.get("/props");
    let props = answer.json();
    assert_eq!(props["total_slots"], 3);
    assert_eq!(
        (&props["model_path"], &props["model_alias"]),
        (&json!("shapes-vl"), &json!("shapes-vl"))
    );
    assert_eq!(props["modalities"], json!({ "vision": true, "video": true, "audio": false }));
    assert!(props["chat_template"].as_str().unwrap().contains("<|im_start|>"), "{props}");
    let listed = server.get("/v1/models").json();
    let settings = &props["default_generation_settings"];
    assert_eq!(settings["n_ctx"], listed["data"][0]["max_model_len"]);
    assert_eq!(settings["params"]["temperature"], 1.0);
    assert!(props["build_info"].as_str().unwrap().starts_with("smelt-"));
    assert!(!answer.body.contains(BUILT.path("").to_str().unwrap()), "{props}");
    assert_eq!(server.get("/props?model=none").status, 404);
    assert_eq!(server.get("/props?autoload=1").json()["error"]["param"], "autoload");
    let told = server.get("/tokenizer_info").json();
    assert_eq!(
        (&told["chat_template"], &told["eos_token"]),
        (&props["chat_template"], &props["eos_token"])
    );
    assert_eq!(told["tokenizer_class"], "PreTrainedTokenizerFast");
    for (method, path) in [("GET", "/slots"), ("POST", "/slots/0?action=save")] {
        let refused = keyed(&server, method, path, &json!({ "filename": "a" }), "");
        assert_eq!(code(&refused), (501, "not_supported".to_owned()), "{path}");
        assert_eq!(refused.json()["error"]["type"], "not_supported_error");
    }
}

#[test]
fn slots_are_a_keys_own_and_outlive_the_server() {
    BUILT.write("slot-keys", "mine name=mine\nother name=other\nless name=less kept=1KiB\n");
    let dir = BUILT.path("slots");
    let flags =
        ["--api-key-file", "slot-keys", "--slots", "--slot-save-path", dir.to_str().unwrap()];
    let mut server = Server::of(&BUILT, &["p.toml"], &flags);
    assert!(crate::world::until(|| server.get("/health").status == 200));
    let asked = circles(json!({ "id_slot": 2, "logprobs": true, "top_logprobs": 3 }));
    let ask = |server: &Server, key| {
        let answer = keyed(server, "POST", "/v1/chat/completions", &asked, key);
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()
    };
    let first = ask(&server, "mine");
    assert_eq!(first["choices"][0]["message"]["content"], "2");
    let (prompt, said) = (&first["usage"]["prompt_tokens"], &first["usage"]["completion_tokens"]);
    let held = prompt.as_u64().unwrap() + said.as_u64().unwrap();
    let slots = got(&server, "/slots", "mine");
    assert_eq!(slots.as_array().unwrap().len(), 8);
    assert_eq!((&slots[2]["n_past"], &slots[2]["is_processing"]), (&json!(held), &json!(false)));
    let others = got(&server, "/slots", "other");
    assert!(others.as_array().unwrap().iter().all(|slot| slot["n_past"] == 0), "{others}");
    assert!(!slots.to_string().contains("circles"), "no text is told");

    let act = |server: &Server, slot: &str, verb: &str, file: Value, key: &str| {
        let path = format!("/slots/{slot}?action={verb}");
        keyed(server, "POST", &path, &json!({ "filename": file }), key)
    };
    let file = json!("circles.bin");
    let saved = act(&server, "2", "save", file.clone(), "mine").json();
    assert_eq!((&saved["n_saved"], &saved["id_slot"]), (&json!(held), &json!(2)), "{saved}");
    let folders = || {
        let entries = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.is_dir()).collect::<Vec<_>>()
    };
    let folder = folders().remove(0);
    assert_eq!(fs::metadata(folder.join("circles.bin")).unwrap().len(), saved["n_written"]);
    let (empty, busy) = ("slot_empty".to_owned(), "slot_file_not_found".to_owned());
    assert_eq!(code(&act(&server, "1", "save", file.clone(), "mine")), (400, empty.clone()));
    assert_eq!(code(&act(&server, "2", "save", file.clone(), "other")), (400, empty));
    assert_eq!(code(&act(&server, "2", "restore", file.clone(), "other")), (400, busy));
    for name in [json!("../circles.bin"), json!(".a"), json!("a/b"), json!(""), Value::Null] {
        for verb in ["save", "restore"] {
            let refused = act(&server, "2", verb, name.clone(), "mine");
            assert_eq!(refused.json()["error"]["param"], "filename", "{verb} {name}");
        }
    }
    for (slot, verb, param) in
        [("8", "save", "id_slot"), ("x", "erase", "id_slot"), ("2", "load", "action")]
    {
        let refused = act(&server, slot, verb, file.clone(), "mine");
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!(param)));
    }
    let wrong = circles(json!({ "id_slot": 8 }));
    let refused = keyed(&server, "POST", "/v1/chat/completions", &wrong, "mine");
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("id_slot")));
    assert_eq!(act(&server, "2", "erase", Value::Null, "mine").json()["n_erased"], held);
    assert_eq!(cached(&ask(&server, "mine")), 0, "it was forgotten");
    server.signal(Signal::SIGTERM);
    assert_eq!(server.ended(), Some(0));

    let server = Server::of(&BUILT, &["p.toml"], &flags);
    assert!(crate::world::until(|| server.get("/health").status == 200));
    let restored = act(&server, "5", "restore", file.clone(), "mine");
    assert_eq!(restored.json()["n_restored"], held, "{}", restored.body);
    assert_eq!(restored.json()["n_read"], saved["n_written"]);
    assert_eq!(got(&server, "/slots", "mine")[5]["n_past"], held);
    // A stranger has nothing of it; the key's own answer is the same to the bit, and all but a token was known.
    let stranger = ask(&server, "other");
    assert_eq!((cached(&stranger), &stranger["choices"]), (0, &first["choices"]));
    let again = ask(&server, "mine");
    assert_eq!(
        (cached(&again), &again["choices"]),
        (prompt.as_u64().unwrap() - 1, &first["choices"])
    );
    // What is not whole is refused, as is more than a key may keep.
    let whole = fs::read(folder.join("circles.bin")).unwrap();
    fs::write(folder.join("cut"), &whole[..whole.len() - 1]).unwrap();
    let refused = act(&server, "2", "restore", json!("cut"), "mine");
    assert_eq!(code(&refused), (400, "slot_file_damaged".to_owned()));
    // A key has a folder since it tried to save.
    assert_eq!(code(&act(&server, "2", "save", file.clone(), "less")).0, 400);
    folders().iter().for_each(|folder| fs::write(folder.join("copy"), &whole).unwrap());
    let refused = act(&server, "2", "restore", json!("copy"), "less");
    assert_eq!(code(&refused), (400, "slot_file_too_large".to_owned()));
    assert_eq!(act(&server, "2", "restore", json!("copy"), "mine").status, 200);
    drop(server);
    let other_kv = Server::of(&BUILT, &["p.toml"], &[&flags[..], &["--kv", "int8"]].concat());
    assert!(crate::world::until(|| other_kv.get("/health").status == 200));
    let refused = act(&other_kv, "2", "restore", file, "mine");
    assert_eq!(code(&refused), (400, "slot_file_of_other_engine".to_owned()));
    assert!(refused.body.contains("another --kv"), "{}", refused.body);
}
