//! What nothing that a client sends may do to a server, or learn of others.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

mod world;

use std::thread;

use serde_json::json;
use world::machine::Machine;
use world::server::{BUILT, Server, circles};
use world::until;

/// A body of as many bytes as are allowed, of which `begin` and `end` hold a list of `value`.
fn filled(begin: &str, value: &str, end: &str) -> Vec<u8> {
    const BYTES: usize = 32 << 20;
    let count = (BYTES - begin.len() - end.len()) / (value.len() + 1) - 1;
    format!("{begin}{}{value}{end}", format!("{value},").repeat(count)).into_bytes()
}

/// The worst-shaped JSON in every field that takes any, and in those that take many small things.
fn hostile() -> Vec<(&'static str, Vec<u8>)> {
    const CHAT: &str = "/v1/chat/completions";
    const TURNS: &str = r#""messages":[{"role":"user","content":"hi"}]"#;
    let chat = |field: &str, value: &str, end: &str| {
        (CHAT, filled(&format!("{{{TURNS},{field}"), value, &format!("{end}}}")))
    };
    let turn = |begin: &str, value: &str, end: &str| {
        (CHAT, filled(&format!("{{\"messages\":[{begin}"), value, &format!("{end}]}}")))
    };
    vec![
        chat(r#""chat_template_kwargs":{"x":["#, r#"{"":0}"#, "]}"),
        chat(r#""chat_template_kwargs":{"x":["#, "0", "]}"),
        chat(r#""chat_template_kwargs":{"x":["#, "[[]]", "]}"),
        chat(
            r#""response_format":{"type":"json_schema","json_schema":{"schema":{"allOf":["#,
            "{}",
            "]}}}",
        ),
        chat(
            r#""tools":[{"type":"function","function":{"name":"f","parameters":{"enum":["#,
            "0",
            "]}}}]",
        ),
        chat(r#""tools":["#, "0", "]"),
        chat(r#""tool_choice":["#, "{}", "]"),
        chat(r#""functions":["#, "{}", "]"),
        chat(r#""stop":["#, r#""""#, "]"),
        chat(r#""logit_bias":{"1":0,"x":["#, "0", "]}"),
        turn(r#"{"role":"assistant","tool_calls":["#, r#"{"":0}"#, "]}"),
        turn(r#"{"role":"user","content":["#, r#"{"type":"text","text":""}"#, "]}"),
        turn("", r#"{"role":"user"}"#, ""),
        ("/v1/completions", filled(r#"{"prompt":["#, "[1]", "]}")),
        ("/v1/completions", filled(r#"{"prompt":["#, r#""""#, "]}")),
        ("/v1/completions", filled(r#"{"prompt":["#, "1", "]}")),
        ("/tokenize", filled(r#"{"messages":[],"tools":["#, "{}", "]}")),
        ("/detokenize", filled(r#"{"tokens":["#, "1", "]}")),
    ]
}

#[test]
fn no_json_takes_more_than_a_few_times_its_bytes() {
    const CAP_MIB: u64 = 512;
    let flags = ["--memory", "512MiB"];
    let machine = Machine::new((CAP_MIB as usize) << 20);
    let server = match &machine {
        Some(machine) => {
            let arguments = Server::arguments(&["p.toml"], &flags);
            Server::started(&mut machine.smelt(&BUILT, &arguments))
        }
        None => Server::of(&BUILT, &["p.toml"], &flags),
    };
    assert!(until(|| server.get("/health").status == 200));
    server.assert_answers();
    let resident = || server.kib("VmRSS") / 1024;
    let before = resident();
    for (path, body) in hostile() {
        let shape = String::from_utf8_lossy(&body[..100]).into_owned();
        for at_once in [1, 4] {
            let statuses: Vec<u16> = thread::scope(|scope| {
                let asked: Vec<_> =
                    (0..at_once).map(|_| scope.spawn(|| server.post(path, &body).status)).collect();
                asked.into_iter().map(|asked| asked.join().unwrap()).collect()
            });
            assert!(statuses.iter().all(|status| *status == 400), "{statuses:?} {shape}");
        }
        let peak = server.kib("VmHWM") / 1024;
        assert!(peak < CAP_MIB, "{peak} MiB {shape}");
        // A MiB is for what is still being dropped.
        assert!(until(|| resident() <= before * 11 / 10 + 1), "{before} to {} {shape}", resident());
    }
    server.assert_answers();
}

#[test]
fn what_free_form_json_people_send_is_taken() {
    let server = Server::start(&[]);
    let property = |at: usize| (format!("field{at}"), json!({ "type": "string", "maxLength": 9 }));
    let properties: serde_json::Map<_, _> = (0..1000).map(property).collect();
    let schema = json!({ "type": "object", "properties": properties });
    let form = json!({ "type": "json_schema", "json_schema": { "name": "a", "schema": schema } });
    let answer = server.chat(circles(json!({ "response_format": form, "max_tokens": 3 })));
    assert_eq!(answer.status, 200, "{}", answer.body);
}
