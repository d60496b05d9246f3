use std::sync::Arc;

use smelt_runtime::dialect::{Calls, Dialect, Reader};
use smelt_runtime::generation::Finish;
use smelt_runtime::prepare::ImageUsage;
use smelt_runtime::sampling::Logprobs;

use super::super::accumulator::Accumulator;
use super::super::chat::Chat;
use super::super::completion::Completion;
use super::super::{Heading, Words};
use super::*;
use smelt_runtime::service::{Failure, TokenInfo};

fn heading() -> Heading {
    Heading { id: "id-1".into(), created: 5, model: "m".into() }
}

fn words() -> Words {
    Arc::new(|token| vec![b'a' + token as u8])
}

fn chat(usage: bool) -> Chat {
    told_apart(usage, Dialect::default(), 3)
}

fn told_apart(usage: bool, dialect: Dialect, choices: usize) -> Chat {
    let readers = vec![Reader::new(dialect, false); choices];
    let (heading, words) = (heading(), words());
    Chat { heading, usage, words, dialect, is_thinking: false, readers }
}

fn said(choice: usize, text: &str, tokens: Vec<TokenInfo>) -> Event {
    Event::Emitted { choice, text: text.into(), tokens }
}

fn likely(token: u32) -> TokenInfo {
    let logprobs = Logprobs { chosen: -0.5, top: vec![(token, -0.5), (2, -1.0)] };
    TokenInfo { token, logprobs: Some(logprobs) }
}

fn answer() -> [Event; 3] {
    [
        Event::Read { prompt_tokens: 4, cached_tokens: 2 },
        said(0, "a \"b\"\n", vec![]),
        Event::Ended { choice: 0, finish: Finish::Full, tokens: 3 },
    ]
}

fn written(shape: impl Shape, choices: usize, usage: bool, events: &[Event]) -> String {
    let mut stream = Stream::new(Box::new(shape), choices, usage);
    let mut out = Vec::new();
    for event in events {
        stream.hear(event, &mut out);
    }
    stream.end(
        Usage::of_prompt(4, 2, ImageUsage { tokens: 1, ..ImageUsage::default() }).said(3),
        &mut out,
    );
    String::from_utf8(out).unwrap()
}

#[test]
fn a_chat_is_streamed_in_deltas() {
    let head =
        r#"{"id":"id-1","object":"chat.completion.chunk","created":5,"model":"m","choices":"#;
    let expect = format!(
        "data: {head}[{{\"index\":0,\"delta\":{{\"role\":\"assistant\",\"content\":\"\"}},\"logprobs\":null,\"finish_reason\":null}}]}}\n\n\
         data: {head}[{{\"index\":0,\"delta\":{{\"content\":\"a \\\"b\\\"\\n\"}},\"logprobs\":null,\"finish_reason\":null}}]}}\n\n\
         data: {head}[{{\"index\":0,\"delta\":{{}},\"logprobs\":null,\"finish_reason\":\"length\"}}]}}\n\n\
         data: [DONE]\n\n"
    );
    assert_eq!(written(chat(false), 1, false, &answer()), expect);
}

#[test]
fn usage_is_the_last_part_and_announced_in_all() {
    let text = written(chat(true), 1, true, &answer());
    assert_eq!(text.matches("\"usage\":null").count(), 3);
    let last = "\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":3,\
        \"total_tokens\":7,\"prompt_tokens_details\":{\"cached_tokens\":2,\"image_tokens\":1}}}\n\n\
        data: [DONE]\n\n";
    assert!(text.ends_with(last), "{text}");
}

#[test]
fn every_choice_begins_once() {
    let read = Event::Read { prompt_tokens: 1, cached_tokens: 0 };
    let text = written(chat(false), 3, false, &[read.clone(), read]);
    assert_eq!(text.matches("assistant").count(), 3);
}

#[test]
fn logprobs_name_tokens_by_their_text() {
    let text = written(chat(false), 1, false, &[said(0, "b", vec![likely(1)])]);
    let expect = r#""logprobs":{"content":[{"token":"b","logprob":-0.5,"bytes":[98],"top_logprobs":[{"token":"b","logprob":-0.5,"bytes":[98]},{"token":"c","logprob":-1.0,"bytes":[99]}]}],"refusal":null}"#;
    assert!(text.contains(expect), "{text}");
}

fn completion() -> Completion {
    Completion {
        heading: heading(),
        usage: false,
        words: words(),
        echo: vec!["P".into()],
        offsets: vec![0],
    }
}

#[test]
fn a_completion_has_offsets_that_go_on() {
    let events = [said(0, "b", vec![likely(1)]), said(0, "bb", vec![likely(1), likely(1)])];
    let text = written(completion(), 1, false, &events);
    let of = r#"{"tokens":["b","b"],"token_logprobs":[-0.5,-0.5],"top_logprobs":[{"b":-0.5,"c":-1.0},{"b":-0.5,"c":-1.0}],"text_offset":[1,2]}"#;
    assert!(text.contains(of), "{text}");
}

#[test]
fn a_scored_prompt_comes_before_what_follows() {
    let first = TokenInfo { token: 0, logprobs: None };
    let tokens = vec![first, likely(1)];
    let read = Event::Read { prompt_tokens: 2, cached_tokens: 0 };
    let events = [read, Event::Scored { choice: 0, tokens }, said(0, "b", vec![likely(1)])];
    let of_prompt = r#"{"tokens":["a","b"],"token_logprobs":[null,-0.5],"top_logprobs":[null,{"b":-0.5,"c":-1.0}],"text_offset":[0,1]}"#;
    let text = written(completion(), 1, false, &events);
    let (echo, scored) = (text.find(r#""text":"P""#).unwrap(), text.find(of_prompt).unwrap());
    assert!(echo < scored && scored < text.find(r#""text":"b""#).unwrap(), "{text}");
    let mut gathered = Accumulator::new(1);
    events.into_iter().for_each(|event| gathered.hear(event));
    let whole = completion().whole(&gathered.choices, Usage::default());
    let of_all = r#""tokens":["a","b","b"],"token_logprobs":[null,-0.5,-0.5]"#;
    assert!(whole.contains(of_all), "{whole}");
}

#[test]
fn an_echo_comes_first() {
    let text = written(completion(), 1, false, &answer());
    let head = r#"data: {"id":"id-1","object":"text_completion","created":5,"model":"m","choices":[{"text":"P","index":0"#;
    assert!(text.starts_with(head), "{text}");
    let mut gathered = Accumulator::new(1);
    answer().into_iter().for_each(|event| gathered.hear(event));
    let whole = completion().whole(&gathered.choices, Usage::default());
    assert!(whole.contains(r#""text":"Pa \"b\"\n""#), "{whole}");
}

#[test]
fn a_failure_is_told_where_the_answer_would_go_on() {
    let text = written(chat(false), 1, false, &[Event::Failed(Failure::Engine("worn".into()))]);
    assert_eq!(
        text,
        "data: {\"error\":{\"message\":\"worn\",\"type\":\"server_error\",\"param\":null,\"code\":\"engine_failed\"}}\n\ndata: [DONE]\n\n"
    );
}

#[test]
fn a_form_that_cannot_be_held_to_is_who_asked_for_it() {
    let failed = Event::Failed(Failure::Form("too ambiguous".into()));
    let text = written(chat(false), 1, false, &[failed]);
    assert_eq!(
        text,
        "data: {\"error\":{\"message\":\"too ambiguous\",\"type\":\"invalid_request_error\",\"param\":null,\"code\":\"form_not_held\"}}\n\ndata: [DONE]\n\n"
    );
}

#[test]
fn a_whole_chat_is_what_its_stream_says() {
    let mut gathered = Accumulator::new(1);
    answer().into_iter().for_each(|event| gathered.hear(event));
    let whole =
        chat(false).whole(&gathered.choices, Usage::of_prompt(4, 0, ImageUsage::default()).said(3));
    assert_eq!(
        whole,
        "{\"id\":\"id-1\",\"object\":\"chat.completion\",\"created\":5,\"model\":\"m\",\"choices\":[{\"index\":0,\
         \"message\":{\"role\":\"assistant\",\"content\":\"a \\\"b\\\"\\n\",\"refusal\":null},\"logprobs\":null,\
         \"finish_reason\":\"length\"}],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":3,\"total_tokens\":7,\
         \"prompt_tokens_details\":{\"cached_tokens\":0,\"image_tokens\":0}}}"
    );
}

const HERMES: Dialect = Dialect { thinks: true, calls: Some(Calls::Hermes) };

fn calling() -> [Event; 4] {
    [
        Event::Read { prompt_tokens: 4, cached_tokens: 0 },
        said(0, "<think>so</think>\n\nI look.", vec![]),
        said(
            0,
            "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": 1}}\n</tool_call>",
            vec![],
        ),
        Event::Ended { choice: 0, finish: Finish::Stop, tokens: 3 },
    ]
}

#[test]
fn what_is_thought_said_and_called_is_told_apart() {
    let text = written(told_apart(false, HERMES, 1), 1, false, &calling());
    for part in [
        r#""delta":{"content":"I look.","reasoning_content":"so"}"#,
        r#""delta":{"tool_calls":[{"index":0,"id":"call_id-1_0_0","type":"function","function":{"name":"look","arguments":"{\"at\": 1}"}}]}"#,
        r#""delta":{},"logprobs":null,"finish_reason":"tool_calls""#,
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let mut gathered = Accumulator::new(1);
    calling().into_iter().for_each(|event| gathered.hear(event));
    let whole = told_apart(false, HERMES, 1).whole(&gathered.choices, Usage::default());
    let message = r#""message":{"role":"assistant","content":"I look.","refusal":null,"reasoning_content":"so","tool_calls":[{"id":"call_id-1_0_0","type":"function","function":{"name":"look","arguments":"{\"at\": 1}"}}]},"logprobs":null,"finish_reason":"tool_calls""#;
    assert!(whole.contains(message), "{whole}");
}

#[test]
fn tiles_are_told_in_comments_before_anything_is_said() {
    let mut stream = Stream::new(Box::new(chat(false)), 1, false);
    let mut out = Vec::new();
    for event in [Event::Looking { part: 3, parts: 13 }, said(0, "a", Vec::new())] {
        stream.hear(&event, &mut out);
    }
    let text = String::from_utf8(out).unwrap();
    assert!(text.starts_with(": looking at tile 3 of 13\n\ndata: {"), "{text}");
}
