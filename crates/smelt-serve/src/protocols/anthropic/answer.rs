//! Writes answers as Anthropic's server does: a message of blocks, or events that have names.

use serde::Serialize;
use serde_json::{Map, Value};
use smelt_runtime::dialect::Reader;
use smelt_runtime::generation::Finish;
use smelt_runtime::service::Event;

use super::Why;
use crate::answer::stream::{comment, error};
use crate::answer::{Wire, accumulator, json};
use crate::protocols::events::put;
use crate::protocols::sections::{Kind, Section, SectionEvent, Sections};

/// What tells clients that a silent stream goes on.
const PING: &[u8] = b"event: ping\ndata: {\"type\":\"ping\"}\n\n";

/// An answer as it is told.
pub(crate) struct Answer {
    id: String,
    model: String,
    /// The strings that end it.
    stops: Vec<String>,
    sections: Sections,
    finish: Finish,
    has_begun: bool,
    has_failed: bool,
}

#[derive(Serialize)]
struct Message<'a> {
    id: &'a str,
    r#type: &'static str,
    role: &'static str,
    model: &'a str,
    content: Vec<Block>,
    #[serde(flatten)]
    ended: Ended<'a>,
    usage: Usage,
}

/// A piece of an answer.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block {
    /// Nobody signs here.
    Thinking {
        thinking: String,
        signature: &'static str,
    },
    Text {
        text: String,
    },
    ToolUse {
        id: String,
        name: String,
        input: Value,
    },
}

/// Why an answer ended; nothing as long as it goes on.
#[derive(Clone, Copy, Default, Serialize)]
struct Ended<'a> {
    stop_reason: Option<&'static str>,
    /// The string that ended it.
    stop_sequence: Option<&'a str>,
}

/// Counts of tokens; what was read from the cache is no input there.
#[derive(Clone, Copy, Serialize)]
struct Usage {
    input_tokens: usize,
    cache_creation_input_tokens: usize,
    cache_read_input_tokens: usize,
    output_tokens: usize,
}

impl Usage {
    fn new(prompt_tokens: usize, cached_tokens: usize, output_tokens: usize) -> Self {
        Self {
            input_tokens: prompt_tokens.saturating_sub(cached_tokens),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: cached_tokens,
            output_tokens,
        }
    }

    fn of(usage: crate::answer::Usage) -> Self {
        let cached = usage.prompt_tokens_details.cached_tokens;
        Self::new(usage.prompt_tokens, cached, usage.completion_tokens)
    }
}

/// What an event tells.
#[derive(Serialize)]
#[serde(untagged)]
enum Tells<'a> {
    Start { message: Message<'a> },
    BlockStart { index: usize, content_block: Block },
    BlockDelta { index: usize, delta: Delta<'a> },
    BlockStop { index: usize },
    Ended { delta: Ended<'a>, usage: Usage },
    Error { error: Why<'a> },
    Nothing {},
}

/// More of a block.
#[derive(Serialize)]
#[serde(tag = "type")]
enum Delta<'a> {
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: &'a str },
    #[serde(rename = "signature_delta")]
    Signature { signature: &'static str },
    #[serde(rename = "text_delta")]
    Text { text: &'a str },
    #[serde(rename = "input_json_delta")]
    Input { partial_json: &'a str },
}

impl Answer {
    /// An answer by `model` of which nothing is said, and which ends at any of `stops`.
    pub(crate) fn new(id: String, model: String, stops: Vec<String>, reader: Reader) -> Self {
        let sections = Sections::new(reader);
        let finish = Finish::Stop;
        Self { id, model, stops, sections, finish, has_begun: false, has_failed: false }
    }

    fn begin(&mut self, usage: Usage, out: &mut Vec<u8>) {
        if std::mem::replace(&mut self.has_begun, true) {
            return;
        }
        let message = self.message(Vec::new(), Ended::default(), usage);
        put(out, "message_start", &Tells::Start { message });
        out.extend_from_slice(PING);
    }

    fn message<'a>(&'a self, content: Vec<Block>, ended: Ended<'a>, usage: Usage) -> Message<'a> {
        let (id, model) = (&self.id[..], &self.model[..]);
        Message { id, r#type: "message", role: "assistant", model, content, ended, usage }
    }

    /// Why it ended.
    fn ended(&self) -> Ended<'_> {
        let calls = self.sections.has_calls();
        let (reason, stop) = match self.finish {
            Finish::Stop if calls => ("tool_use", None),
            Finish::Stop => ("end_turn", None),
            Finish::Text(at) => ("stop_sequence", self.stops.get(at)),
            Finish::Length => ("max_tokens", None),
            Finish::Full => ("model_context_window_exceeded", None),
        };
        Ended { stop_reason: Some(reason), stop_sequence: stop.map(String::as_str) }
    }

    fn tell(&self, steps: Vec<(usize, SectionEvent)>, out: &mut Vec<u8>) {
        for (index, step) in steps {
            let kind = &self.sections.all()[index].kind;
            match step {
                SectionEvent::Begins => {
                    let content_block =
                        self.block(index, &Section { kind: kind.clone(), text: String::new() });
                    put(out, "content_block_start", &Tells::BlockStart { index, content_block });
                }
                SectionEvent::GoesOn(text) => {
                    let delta = more(kind, &text);
                    put(out, "content_block_delta", &Tells::BlockDelta { index, delta });
                }
                SectionEvent::Ends => {
                    if *kind == Kind::Thought {
                        let delta = Delta::Signature { signature: "" };
                        put(out, "content_block_delta", &Tells::BlockDelta { index, delta });
                    }
                    put(out, "content_block_stop", &Tells::BlockStop { index });
                }
            }
        }
    }

    fn block(&self, at: usize, section: &Section) -> Block {
        let text = section.text.clone();
        match &section.kind {
            Kind::Thought => Block::Thinking { thinking: text, signature: "" },
            Kind::Said => Block::Text { text },
            Kind::Call(name) => Block::ToolUse {
                id: format!("toolu_{}_{at}", self.id),
                name: name.clone(),
                // An answer that was cut off leaves half a call.
                input: serde_json::from_str(&text).unwrap_or_else(|_| Map::new().into()),
            },
        }
    }
}

fn more<'a>(kind: &Kind, text: &'a str) -> Delta<'a> {
    match kind {
        Kind::Thought => Delta::Thinking { thinking: text },
        Kind::Said => Delta::Text { text },
        Kind::Call(_) => Delta::Input { partial_json: text },
    }
}

impl Wire for Answer {
    fn media_type(&self) -> &'static str {
        "text/event-stream; charset=utf-8"
    }

    fn hear(&mut self, event: &Event, out: &mut Vec<u8>) {
        match event {
            Event::Looking { part, parts } => comment(out, *part, *parts),
            Event::Read { prompt_tokens, cached_tokens } => {
                self.begin(Usage::new(*prompt_tokens, *cached_tokens, 0), out);
            }
            Event::Scored { .. } => {}
            Event::Emitted { text, .. } => {
                let steps = self.sections.push(text);
                self.tell(steps, out);
            }
            Event::Ended { finish, .. } => {
                self.finish = *finish;
                let steps = self.sections.finish();
                self.tell(steps, out);
            }
            Event::Failed(failure) => {
                self.has_failed = true;
                let error = error(failure);
                let error = Why::new(error.status, &error.message);
                put(out, "error", &Tells::Error { error });
            }
        }
    }

    fn end(&mut self, usage: crate::answer::Usage, out: &mut Vec<u8>) {
        if self.has_failed {
            return;
        }
        let tells = Tells::Ended { delta: self.ended(), usage: Usage::of(usage) };
        put(out, "message_delta", &tells);
        put(out, "message_stop", &Tells::Nothing {});
    }

    fn keep_alive(&self) -> &'static [u8] {
        PING
    }

    fn whole(&mut self, choices: &[accumulator::Choice], usage: crate::answer::Usage) -> String {
        if let Some(choice) = choices.first() {
            self.sections.push(&choice.text);
            self.sections.finish();
            self.finish = choice.finish.unwrap_or(Finish::Stop);
        }
        let blocks = self.sections.all().iter().enumerate();
        let blocks = blocks.map(|(at, section)| self.block(at, section)).collect();
        json(&self.message(blocks, self.ended(), Usage::of(usage)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use smelt_runtime::dialect::{Calls, Dialect};
    use smelt_runtime::prepare::ImageUsage;
    use smelt_runtime::service::Failure;

    use super::*;
    use crate::protocols::events;

    const SAID: &str = "<think>\nhm</think>\n\nI look.<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>";

    fn answer() -> Answer {
        let dialect = Dialect { thinks: true, calls: Some(Calls::Hermes) };
        let reader = Reader::new(dialect, false);
        Answer::new("msg_1".to_owned(), "m".to_owned(), vec!["x".into(), "y".into()], reader)
    }

    fn usage() -> crate::answer::Usage {
        crate::answer::Usage::of_prompt(4, 3, ImageUsage::default()).said(5)
    }

    fn streamed(text: &str, finish: Finish) -> Vec<(String, Value)> {
        let (mut answer, mut out) = (answer(), Vec::new());
        answer.hear(&Event::Read { prompt_tokens: 4, cached_tokens: 3 }, &mut out);
        for letter in text.chars() {
            let text = letter.to_string();
            answer.hear(&Event::Emitted { choice: 0, text, tokens: vec![] }, &mut out);
        }
        answer.hear(&Event::Ended { choice: 0, finish, tokens: 5 }, &mut out);
        answer.end(usage(), &mut out);
        events::read(&out)
    }

    fn whole(text: &str, finish: Finish) -> Value {
        let (text, finish) = (text.to_owned(), Some(finish));
        let choice = accumulator::Choice { text, finish, ..Default::default() };
        serde_json::from_str(&answer().whole(&[choice], usage())).unwrap()
    }

    #[test]
    fn a_stream_is_the_events_of_each_block_in_order() {
        let events = streamed(SAID, Finish::Stop);
        let mut kinds: Vec<&str> = events.iter().map(|(name, _)| &name[..]).collect();
        kinds.dedup();
        let block = ["content_block_start", "content_block_delta", "content_block_stop"];
        let expect = [
            &["message_start", "ping"][..],
            &block,
            &block,
            &block,
            &["message_delta", "message_stop"],
        ]
        .concat();
        assert_eq!(kinds, expect);
        assert!(events.iter().all(|(name, event)| event["type"] == name[..]));
        let joined = |field: &str| -> String {
            events.iter().filter_map(|(_, event)| event["delta"][field].as_str()).collect()
        };
        assert_eq!((&joined("thinking")[..], &joined("text")[..]), ("hm", "I look."));
        assert_eq!(joined("partial_json"), "{\"a\": 1}");
        let start = &events[0].1["message"];
        assert_eq!((&start["content"], &start["stop_reason"]), (&json!([]), &Value::Null));
        assert_eq!(start["usage"]["cache_read_input_tokens"], 3);
        let (_, last) = &events[events.len() - 2];
        assert_eq!(last["delta"], json!({ "stop_reason": "tool_use", "stop_sequence": null }));
        assert_eq!(
            (&last["usage"]["input_tokens"], &last["usage"]["output_tokens"]),
            (&json!(1), &json!(5))
        );
    }

    #[test]
    fn a_whole_answer_is_a_message_of_blocks() {
        let message = whole(SAID, Finish::Stop);
        let content = json!([
            { "type": "thinking", "thinking": "hm", "signature": "" },
            { "type": "text", "text": "I look." },
            { "type": "tool_use", "id": "toolu_msg_1_2", "name": "f", "input": { "a": 1 } },
        ]);
        assert_eq!(message["content"], content);
        assert_eq!((&message["type"], &message["role"]), (&json!("message"), &json!("assistant")));
        let usage = json!({ "input_tokens": 1, "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 3, "output_tokens": 5 });
        assert_eq!(message["usage"], usage);
    }

    #[test]
    fn it_is_told_why_an_answer_ended() {
        for (finish, reason, stop) in [
            (Finish::Stop, "end_turn", json!(null)),
            (Finish::Text(1), "stop_sequence", json!("y")),
            (Finish::Length, "max_tokens", json!(null)),
            (Finish::Full, "model_context_window_exceeded", json!(null)),
        ] {
            let message = whole("a", finish);
            assert_eq!(message["stop_reason"], reason);
            assert_eq!(message["stop_sequence"], stop);
            let events = streamed("a", finish);
            assert_eq!(events[events.len() - 2].1["delta"]["stop_reason"], reason);
        }
    }

    #[test]
    fn an_answer_that_breaks_off_says_so_and_ends() {
        let (mut answer, mut out) = (answer(), Vec::new());
        answer.hear(&Event::Failed(Failure::Deadline), &mut out);
        answer.end(usage(), &mut out);
        let [(name, event)] = &events::read(&out)[..] else { panic!("{out:?}") };
        assert_eq!((&name[..], &event["error"]["type"]), ("error", &json!("timeout_error")));
        assert_eq!(event["type"], "error");
    }
}
