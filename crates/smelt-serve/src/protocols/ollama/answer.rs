//! Writes answers as Ollama does: lines of JSON, the last of which tells times and counts.

use std::time::Instant;

use serde_json::{Map, Value, json};
use smelt_runtime::dialect::{Delta, Reader};
use smelt_runtime::service::Event;

use super::ask::Route;
use crate::answer::stream::error;
use crate::answer::{Usage, Wire, accumulator};
use crate::protocols::time;

/// An answer to a chat or a prompt.
pub(crate) struct Answer {
    route: Route,
    /// As the client calls the model.
    model: String,
    reader: Reader,
    /// The calls that the model makes, with their arguments so far.
    calls: Vec<(String, String)>,
    reason: &'static str,
    has_failed: bool,
    begun: Instant,
    /// When the prompt was read.
    read: Option<Instant>,
}

impl Answer {
    pub(crate) fn new(route: Route, model: String, reader: Reader, begun: Instant) -> Self {
        let (calls, reason) = (Vec::new(), "stop");
        Self { route, model, reader, calls, reason, has_failed: false, begun, read: None }
    }

    /// One line, with what it says.
    fn line(
        &self,
        thinking: &str,
        content: &str,
        calls: &[Value],
        is_done: bool,
    ) -> Map<String, Value> {
        let mut line = Map::new();
        line.insert("model".to_owned(), self.model.clone().into());
        line.insert("created_at".to_owned(), time::now().into());
        match self.route {
            Route::Chat => {
                let mut message = Map::new();
                message.insert("role".to_owned(), "assistant".into());
                message.insert("content".to_owned(), content.into());
                if !thinking.is_empty() {
                    message.insert("thinking".to_owned(), thinking.into());
                }
                if !calls.is_empty() {
                    message.insert("tool_calls".to_owned(), calls.into());
                }
                line.insert("message".to_owned(), message.into());
            }
            Route::Generate => {
                line.insert("response".to_owned(), content.into());
                if !thinking.is_empty() {
                    line.insert("thinking".to_owned(), thinking.into());
                }
            }
        }
        line.insert("done".to_owned(), is_done.into());
        line
    }

    /// Gathers deltas: what is thought and said; calls are kept until they are whole.
    fn gather(&mut self, deltas: Vec<Delta>) -> (String, String) {
        let (mut thinking, mut content) = (String::new(), String::new());
        for delta in deltas {
            match delta {
                Delta::Reasoning(text) => thinking += &text,
                Delta::Content(text) => content += &text,
                Delta::Call { name, .. } => self.calls.push((name, String::new())),
                Delta::Arguments { text, .. } => {
                    if let Some((_, arguments)) = self.calls.last_mut() {
                        *arguments += &text;
                    }
                }
            }
        }
        (thinking, content)
    }

    /// Calls as Ollama tells them: arguments are an object.
    fn told_calls(&mut self) -> Vec<Value> {
        let calls = std::mem::take(&mut self.calls).into_iter();
        let told = |(name, arguments): (String, String)| {
            let arguments = serde_json::from_str(&arguments).unwrap_or_else(|_| json!({}));
            json!({ "function": { "name": name, "arguments": arguments } })
        };
        calls.map(told).collect()
    }

    /// What the last line tells besides.
    fn ending(&self, line: &mut Map<String, Value>, usage: Usage) {
        let now = Instant::now();
        let nanos = |from: Instant, to: Instant| {
            u64::try_from(to.saturating_duration_since(from).as_nanos()).unwrap_or(u64::MAX)
        };
        let read = self.read.unwrap_or(now);
        let fields = [
            ("done_reason", self.reason.into()),
            ("total_duration", nanos(self.begun, now).into()),
            ("load_duration", 0.into()),
            ("prompt_eval_count", usage.prompt_tokens.into()),
            ("prompt_eval_duration", nanos(self.begun, read).into()),
            ("eval_count", usage.completion_tokens.into()),
            ("eval_duration", nanos(read, now).into()),
        ];
        line.extend(fields.map(|(name, value): (&str, Value)| (name.to_owned(), value)));
    }
}

impl Wire for Answer {
    fn media_type(&self) -> &'static str {
        "application/x-ndjson"
    }

    fn hear(&mut self, event: &Event, out: &mut Vec<u8>) {
        let (thinking, content) = match event {
            Event::Read { .. } => {
                self.read = Some(Instant::now());
                return;
            }
            Event::Emitted { text, .. } => {
                let deltas = self.reader.push(text);
                self.gather(deltas)
            }
            Event::Ended { finish, .. } => {
                self.reason = finish.reason();
                let deltas = self.reader.finish();
                self.gather(deltas)
            }
            Event::Failed(failure) => {
                self.has_failed = true;
                return put(out, &json!({ "error": error(failure).message }));
            }
            Event::Looking { .. } | Event::Scored { .. } => return,
        };
        let is_over = matches!(event, Event::Ended { .. });
        let calls = if is_over { self.told_calls() } else { Vec::new() };
        if !thinking.is_empty() || !content.is_empty() || !calls.is_empty() {
            put(out, &Value::from(self.line(&thinking, &content, &calls, false)));
        }
    }

    fn end(&mut self, usage: Usage, out: &mut Vec<u8>) {
        if self.has_failed {
            return;
        }
        let mut line = self.line("", "", &[], true);
        self.ending(&mut line, usage);
        put(out, &line.into());
    }

    fn keep_alive(&self) -> &'static [u8] {
        // A line without JSON is an error to clients.
        b""
    }

    fn whole(&mut self, choices: &[accumulator::Choice], usage: Usage) -> String {
        let Some(choice) = choices.first() else { return String::new() };
        let mut deltas = self.reader.push(&choice.text);
        deltas.extend(self.reader.finish());
        let (thinking, content) = self.gather(deltas);
        let calls = self.told_calls();
        self.reason = choice.reason;
        let mut line = self.line(&thinking, &content, &calls, true);
        self.ending(&mut line, usage);
        Value::from(line).to_string()
    }
}

/// What is answered where nothing is asked but that the model is there, or is let go: `reason` says which.
pub(crate) fn loaded(route: Route, model: String, reason: &str) -> String {
    let answer = Answer::new(route, model, Reader::new(Default::default(), false), Instant::now());
    let mut line = answer.line("", "", &[], true);
    line.insert("done_reason".to_owned(), reason.into());
    Value::from(line).to_string()
}

/// JSON of one line is one line.
fn put(out: &mut Vec<u8>, line: &Value) {
    out.extend_from_slice(line.to_string().as_bytes());
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use smelt_runtime::dialect::{Calls, Dialect};
    use smelt_runtime::generation::Finish;
    use smelt_runtime::prepare::ImageUsage;
    use smelt_runtime::service::Failure;

    use super::*;

    const DIALECT: Dialect = Dialect { thinks: true, calls: Some(Calls::Hermes) };
    const SAID: &str = "<think>\nhm</think>\n\nit is <tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>";

    fn answer(route: Route) -> Answer {
        Answer::new(route, "m:latest".to_owned(), Reader::new(DIALECT, false), Instant::now())
    }

    fn usage() -> Usage {
        Usage::of_prompt(4, 2, ImageUsage::default()).said(3)
    }

    /// The lines of an answer that is said letter by letter.
    fn lines(route: Route, text: &str) -> Vec<Value> {
        let (mut answer, mut out) = (answer(route), Vec::new());
        answer.hear(&Event::Read { prompt_tokens: 4, cached_tokens: 2 }, &mut out);
        for letter in text.chars() {
            let text = letter.to_string();
            answer.hear(&Event::Emitted { choice: 0, text, tokens: vec![] }, &mut out);
        }
        let finish = Finish::Length;
        answer.hear(&Event::Ended { choice: 0, finish, tokens: 3 }, &mut out);
        answer.end(usage(), &mut out);
        let text = String::from_utf8(out).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn a_stream_is_lines_of_which_the_last_tells_counts() {
        let lines = lines(Route::Chat, SAID);
        let joined = |field: &str| -> String {
            lines.iter().filter_map(|line| line["message"][field].as_str()).collect()
        };
        assert_eq!((joined("thinking").as_str(), joined("content").trim()), ("hm", "it is"));
        let calls: Vec<&Value> =
            lines.iter().filter_map(|line| line["message"].get("tool_calls")).collect();
        assert_eq!(calls, [&json!([{ "function": { "name": "f", "arguments": { "a": 1 } } }])]);
        let (last, others) = lines.split_last().unwrap();
        assert!(others.iter().all(|line| line["done"] == false && line["model"] == "m:latest"));
        assert_eq!((&last["done"], &last["done_reason"]), (&json!(true), &json!("length")));
        assert_eq!((&last["prompt_eval_count"], &last["eval_count"]), (&json!(4), &json!(3)));
        assert!(last["total_duration"].as_u64() >= last["eval_duration"].as_u64());
    }

    #[test]
    fn a_prompts_answer_is_a_response() {
        let text: String = lines(Route::Generate, "a b")
            .iter()
            .map(|line| line["response"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(text, "a b");
        let choice =
            accumulator::Choice { text: SAID.to_owned(), reason: "stop", ..Default::default() };
        let whole: Value =
            serde_json::from_str(&answer(Route::Chat).whole(&[choice], usage())).unwrap();
        assert_eq!(whole["message"]["thinking"], "hm");
        assert_eq!(whole["message"]["tool_calls"][0]["function"]["arguments"]["a"], 1);
        assert_eq!((&whole["done"], &whole["done_reason"]), (&json!(true), &json!("stop")));
        assert!(loaded(Route::Chat, "m".to_owned(), "load").contains("\"done_reason\":\"load\""));
    }

    #[test]
    fn an_answer_that_breaks_off_says_so_and_ends() {
        let (mut answer, mut out) = (answer(Route::Chat), Vec::new());
        answer.hear(&Event::Failed(Failure::Stopped), &mut out);
        answer.end(usage(), &mut out);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), 1);
        assert!(text.starts_with("{\"error\":"), "{text}");
    }
}
