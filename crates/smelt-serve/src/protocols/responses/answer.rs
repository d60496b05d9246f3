//! Writes answers as the Responses API does: as one object, or as events that have names and numbers.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use smelt_runtime::dialect::Reader;
use smelt_runtime::generation::Finish;
use smelt_runtime::service::Event;

use super::items::{self, ItemMessages};
use super::kept::{Answered, Kept, Piece};
use super::likely::Likely;
use super::response_object::{
    Asked, ContentLocation, Events, Failure, Incomplete, InputDetails, Item, OutputDetails,
    OutputPart, Response, Status, Tells, Text, response_id,
};
use crate::answer::logprobs::ChatToken;
use crate::answer::stream::{KEEP_ALIVE, comment, error};
use crate::answer::{Usage, Wire, Words, accumulator, json};
use crate::protocols::sections::{Kind, Section, SectionEvent, Sections};
use crate::protocols::thought::Thought;

/// An answer as it is told.
pub(crate) struct Answer {
    /// What its name and its items' have in common.
    of: String,
    response: Response,
    sections: Sections,
    thought: Thought,
    /// How likely its tokens were, where that is told.
    likely: Option<Likely>,
    events: Events,
    keeping: Option<Keeping>,
    has_begun: bool,
}

/// Where an answer is kept that can be gone on from.
pub(crate) struct Keeping {
    pub(crate) kept: Arc<Kept>,
    pub(crate) owner: Option<String>,
    /// The conversation before the answer.
    pub(crate) turns: Vec<Arc<Piece>>,
}

impl Answer {
    /// An answer of the name `of` by `model`, of which nothing is said.
    pub(crate) fn new(
        of: String,
        model: String,
        asked: Asked,
        (reader, words, is_likely): (Reader, Words, bool),
        keeping: Option<Keeping>,
    ) -> Self {
        let likely = is_likely.then(|| Likely::new(Words::clone(&words), reader.clone()));
        let response = Response {
            id: response_id(&of),
            object: "response",
            created_at: now_s(),
            completed_at: None,
            status: Status::InProgress,
            background: false,
            error: None,
            incomplete_details: None,
            model,
            output: Vec::new(),
            usage: None,
            asked: Asked { store: keeping.is_some(), ..asked },
        };
        Self {
            of,
            response,
            sections: Sections::new(reader),
            thought: Thought::new(words),
            likely,
            events: Events::default(),
            keeping,
            has_begun: false,
        }
    }

    fn begin(&mut self, out: &mut Vec<u8>) {
        if std::mem::replace(&mut self.has_begun, true) {
            return;
        }
        for kind in ["response.created", "response.in_progress"] {
            self.events.tell(out, kind, Tells::Response { response: &self.response });
        }
    }

    fn tell(&mut self, steps: Vec<(usize, SectionEvent)>, out: &mut Vec<u8>) {
        for (at, step) in steps {
            let Some(section) = self.sections.all().get(at).cloned() else { continue };
            match step {
                SectionEvent::Begins => self.section_begins(at, &section.kind, out),
                SectionEvent::GoesOn(text) => self.section_goes_on(at, &section.kind, &text, out),
                SectionEvent::Ends => self.section_ends(at, &section, out),
            }
        }
    }

    fn section_begins(&mut self, at: usize, kind: &Kind, out: &mut Vec<u8>) {
        let item = Item::begun(kind, &self.of, at);
        let tells = Tells::Item { output_index: at, item: &item };
        self.events.tell(out, "response.output_item.added", tells);
        if !matches!(kind, Kind::Call(_)) {
            let part = OutputPart::of(kind, "", Vec::new());
            let tells = Tells::Part { place: place(&item, at), part };
            self.events.tell(out, "response.content_part.added", tells);
        }
    }

    fn section_goes_on(&mut self, at: usize, kind: &Kind, more: &str, out: &mut Vec<u8>) {
        let item = Item::begun(kind, &self.of, at);
        let (place, text) = (place(&item, at), Text::Delta(more));
        let (word, tells) = match kind {
            Kind::Thought => {
                ("response.reasoning_text.delta", Tells::Text { place, text, logprobs: None })
            }
            Kind::Said => {
                let next = self.likely.as_mut().map(|likely| likely.next(at));
                let logprobs = Some(next.unwrap_or_default());
                ("response.output_text.delta", Tells::Text { place, text, logprobs })
            }
            Kind::Call(_) => {
                let (item_id, output_index) = (item.id(), at);
                let tells = Tells::Call { item_id, output_index, name: None, text };
                ("response.function_call_arguments.delta", tells)
            }
        };
        self.events.tell(out, word, tells);
    }

    /// Tokens whose text was held back, and is told no more or was told before, come with an empty delta.
    fn rest_is_told(&mut self, at: usize, kind: &Kind, out: &mut Vec<u8>) {
        let is_told = self.likely.as_ref().is_none_or(|likely| likely.is_told(at));
        if *kind == Kind::Said && !is_told {
            self.section_goes_on(at, kind, "", out);
        }
    }

    fn section_ends(&mut self, at: usize, section: &Section, out: &mut Vec<u8>) {
        self.rest_is_told(at, &section.kind, out);
        let item = self.item(section, at);
        let (place, all) = (place(&item, at), &section.text[..]);
        let text = Text::All(all);
        let (word, tells) = match &section.kind {
            Kind::Thought => {
                ("response.reasoning_text.done", Tells::Text { place, text, logprobs: None })
            }
            Kind::Said => {
                let logprobs = Some(self.likely(at));
                ("response.output_text.done", Tells::Text { place, text, logprobs })
            }
            Kind::Call(name) => {
                let (item_id, text) = (item.id(), Text::Arguments(all));
                let tells = Tells::Call { item_id, output_index: at, name: Some(name), text };
                ("response.function_call_arguments.done", tells)
            }
        };
        self.events.tell(out, word, tells);
        if !matches!(section.kind, Kind::Call(_)) {
            let tells =
                Tells::Part { place, part: OutputPart::of(&section.kind, all, self.likely(at)) };
            self.events.tell(out, "response.content_part.done", tells);
        }
        let tells = Tells::Item { output_index: at, item: &item };
        self.events.tell(out, "response.output_item.done", tells);
    }

    fn likely(&self, at: usize) -> Vec<ChatToken> {
        self.likely.as_ref().map(|likely| likely.all(at)).unwrap_or_default()
    }

    fn item(&self, section: &Section, at: usize) -> Item {
        Item::new(section, (&self.of, at), self.status_of(at), self.likely(at))
    }

    /// Of an answer that was cut off, the last item is not whole.
    fn status_of(&self, at: usize) -> Status {
        let is_last = at + 1 == self.sections.all().len();
        match self.response.status {
            Status::Incomplete if is_last => Status::Incomplete,
            _ => Status::Completed,
        }
    }

    /// Takes note of why the answer ended.
    fn ended(&mut self, reason: &str) {
        let is_whole = reason == Finish::Stop.reason();
        self.response.status = if is_whole { Status::Completed } else { Status::Incomplete };
        self.response.incomplete_details =
            (!is_whole).then_some(Incomplete { reason: "max_output_tokens" });
    }

    /// The whole response, which is kept if it is to be.
    fn finish(&mut self, usage: Usage) {
        let items = self.sections.all().iter().enumerate();
        self.response.output = items.map(|(at, one)| self.item(one, at)).collect();
        self.response.completed_at = (self.response.status == Status::Completed).then(now_s);
        self.response.usage = Some(self.usage(usage));
        if let Some(keeping) = self.keeping.take() {
            self.response.asked.store = keeping.keep(&self.response).is_some();
        }
    }

    fn usage(&self, usage: Usage) -> super::response_object::Usage {
        let details = usage.prompt_tokens_details;
        let thinks = self.sections.all().iter().any(|section| section.kind == Kind::Thought);
        let reasoning_tokens = if thinks { self.thought.tokens() } else { 0 };
        super::response_object::Usage {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: InputDetails {
                cached_tokens: details.cached_tokens,
                cache_write_tokens: 0,
                image_tokens: details.image_tokens,
            },
            output_tokens: usage.completion_tokens,
            output_tokens_details: OutputDetails { reasoning_tokens },
            total_tokens: usage.total_tokens,
        }
    }
}

impl Keeping {
    /// Keeps a response, unless there is no room for it.
    fn keep(self, response: &Response) -> Option<()> {
        let (now, told) = (Instant::now(), json(response));
        let turns = turns_of(&json(&response.output));
        let told = self.kept.piece(told, now)?;
        let turns = self.turns.into_iter().chain([self.kept.piece(turns, now)?]).collect();
        let answered = Answered { told, turns };
        self.kept.keep(self.owner.as_deref(), &response.id, answered, now);
        Some(())
    }
}

/// The turns that items of an answer are, as JSON.
fn turns_of(output: &str) -> String {
    let items: Vec<items::Item> =
        serde_json::from_str(output).expect("what was answered can be asked");
    let mut turns = ItemMessages::default();
    for item in &items {
        turns.add("output", item, &|_| None).expect("what was answered can be asked");
    }
    json(&turns.turns)
}

fn place(item: &Item, at: usize) -> ContentLocation<'_> {
    ContentLocation { item_id: item.id(), output_index: at, content_index: 0 }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

impl Wire for Answer {
    fn media_type(&self) -> &'static str {
        "text/event-stream; charset=utf-8"
    }

    fn hear(&mut self, event: &Event, out: &mut Vec<u8>) {
        match event {
            Event::Looking { part, parts } => comment(out, *part, *parts),
            Event::Read { .. } => self.begin(out),
            Event::Scored { .. } => {}
            Event::Emitted { text, tokens, .. } => {
                self.begin(out);
                self.thought.take(tokens);
                self.likely.iter_mut().for_each(|likely| likely.take(tokens));
                let steps = self.sections.push(text);
                self.tell(steps, out);
            }
            Event::Ended { finish, .. } => {
                self.begin(out);
                self.ended(finish.reason());
                self.likely.iter_mut().for_each(Likely::finish);
                let steps = self.sections.finish();
                self.tell(steps, out);
            }
            Event::Failed(failure) => {
                self.begin(out);
                self.response.status = Status::Failed;
                let error = error(failure);
                let code =
                    if error.status.is_client_error() { "invalid_prompt" } else { "server_error" };
                self.response.error = Some(Failure { code, message: error.message });
                let tells = Tells::Response { response: &self.response };
                self.events.tell(out, "response.failed", tells);
            }
        }
    }

    fn end(&mut self, usage: Usage, out: &mut Vec<u8>) {
        let kind = match self.response.status {
            Status::Completed => "response.completed",
            Status::Incomplete => "response.incomplete",
            Status::Failed | Status::InProgress => return,
        };
        self.finish(usage);
        self.events.tell(out, kind, Tells::Response { response: &self.response });
    }

    fn keep_alive(&self) -> &'static [u8] {
        KEEP_ALIVE
    }

    fn whole(&mut self, choices: &[accumulator::Choice], usage: Usage) -> String {
        if let Some(choice) = choices.first() {
            self.thought.take(&choice.tokens);
            if let Some(likely) = &mut self.likely {
                likely.take(&choice.tokens);
                likely.finish();
            }
            self.sections.push(&choice.text);
            self.sections.finish();
            self.ended(choice.reason);
        }
        self.finish(usage);
        json(&self.response)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use smelt_runtime::dialect::{Calls, Dialect};
    use smelt_runtime::prepare::ImageUsage;
    use smelt_runtime::sampling::Logprobs;
    use smelt_runtime::service::{Failure, TokenInfo};

    use super::*;
    use crate::api::weigh::weigh;
    use crate::protocols::events;
    use crate::protocols::responses::ask::Ask;

    const SAID: &str = "<think>\nhm</think>\n\nI look.<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>";

    fn answer(kept: Option<&Arc<Kept>>) -> Answer {
        // Every token is a letter.
        answer_in(kept, Arc::new(|token| vec![token as u8]), false)
    }

    fn answer_in(kept: Option<&Arc<Kept>>, words: Words, is_likely: bool) -> Answer {
        let body = json!({ "input": "a", "metadata": { "k": "v" } }).to_string();
        let (ask, _) = Ask::read(weigh(body.as_bytes()).unwrap()).unwrap();
        let dialect = Dialect { thinks: true, calls: Some(Calls::Hermes) };
        let keeping = kept.map(|kept| {
            let kept = Arc::clone(kept);
            Keeping { kept, owner: Some("k".to_owned()), turns: Vec::new() }
        });
        let (of, model) = ("0f".to_owned(), "m".to_owned());
        let reader = Reader::new(dialect, false);
        Answer::new(of, model, ask.repeated(), (reader, words, is_likely), keeping)
    }

    fn usage() -> Usage {
        Usage::of_prompt(4, 2, ImageUsage::default()).said(3)
    }

    fn letter(letter: char) -> Event {
        let tokens = vec![TokenInfo { token: letter.into(), logprobs: None }];
        Event::Emitted { choice: 0, text: letter.to_string(), tokens }
    }

    /// The events of an answer that is said letter by letter.
    fn streamed(mut answer: Answer, finish: Finish) -> Vec<(String, Value)> {
        let mut out = Vec::new();
        answer.hear(&Event::Read { prompt_tokens: 4, cached_tokens: 2 }, &mut out);
        SAID.chars().for_each(|each| answer.hear(&letter(each), &mut out));
        answer.hear(&Event::Ended { choice: 0, finish, tokens: 3 }, &mut out);
        answer.end(usage(), &mut out);
        events::read(&out)
    }

    #[test]
    fn a_stream_is_the_events_of_each_item_in_order() {
        let events = streamed(answer(None), Finish::Stop);
        let mut kinds: Vec<&str> = events.iter().map(|(name, _)| &name[..]).collect();
        kinds.dedup();
        let expect = [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "reasoning_text.delta",
            "reasoning_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
            "completed",
        ];
        assert_eq!(kinds, expect.map(|kind| format!("response.{kind}")));
        for (number, (name, event)) in events.iter().enumerate() {
            assert_eq!((&event["type"], &event["sequence_number"]), (&json!(name), &json!(number)));
        }
        let joined = |kind: &str| -> String {
            let of_kind = events.iter().filter(|(name, _)| name.ends_with(kind));
            of_kind.filter_map(|(_, event)| event["delta"].as_str()).collect()
        };
        assert_eq!(joined("output_text.delta"), "I look.");
        assert_eq!(joined("reasoning_text.delta"), "hm");
        assert_eq!(joined("arguments.delta"), "{\"a\": 1}");
        let whole = &events.last().unwrap().1["response"];
        assert_eq!(whole["output"][2]["name"], "f");
        assert_eq!(whole["usage"]["input_tokens_details"]["cached_tokens"], 2);
        let thought = "<think>\nhm</think>".len();
        assert_eq!(whole["usage"]["output_tokens_details"]["reasoning_tokens"], thought);
        assert_eq!((&whole["status"], &whole["metadata"]["k"]), (&json!("completed"), &json!("v")));
    }

    #[test]
    fn a_whole_answer_is_what_its_stream_ends_with() {
        for (finish, status) in [(Finish::Stop, "completed"), (Finish::Length, "incomplete")] {
            let told = streamed(answer(None), finish);
            let tokens =
                SAID.chars().map(|letter| TokenInfo { token: letter.into(), logprobs: None });
            let (text, tokens) = (SAID.to_owned(), tokens.collect());
            let choice =
                accumulator::Choice { text, reason: finish.reason(), tokens, ..Default::default() };
            let mut whole: Value =
                serde_json::from_str(&answer(None).whole(&[choice], usage())).unwrap();
            let mut streamed = told.last().unwrap().1["response"].clone();
            for either in [&mut whole, &mut streamed] {
                either["created_at"] = 0.into();
                either["completed_at"] = 0.into();
            }
            assert_eq!(whole, streamed);
            assert_eq!(whole["status"], status);
            assert_eq!(whole["output"][2]["status"], status);
            assert_eq!(whole["output"][1]["status"], "completed");
        }
    }

    /// Tokens are told as they are said, their text when it is certain.
    #[test]
    fn what_is_likely_comes_in_deltas_also_of_text_that_was_held_back() {
        let words: Words =
            Arc::new(|token| [&b"I"[..], b" s", b"to", b"p", b"\xc3"][token as usize].to_vec());
        let token =
            |token| TokenInfo { token, logprobs: Some(Logprobs { chosen: -1.0, top: vec![] }) };
        // Two tokens begin the stop string " stop", with which the answer ends; of a letter only half is said.
        let stopped = (vec![("I", 0), ("", 1), ("", 2), ("", 3)], Finish::Text(0));
        let broken = (vec![("I", 0), ("\u{fffd}", 4)], Finish::Length);
        for (said, finish) in [stopped, broken] {
            let (mut answer, mut out) = (answer_in(None, Words::clone(&words), true), Vec::new());
            let tokens: Vec<TokenInfo> = said.iter().map(|(_, at)| token(*at)).collect();
            for ((text, _), token) in said.iter().zip(&tokens) {
                let (text, tokens) = ((*text).to_owned(), vec![token.clone()]);
                answer.hear(&Event::Emitted { choice: 0, text, tokens }, &mut out);
            }
            answer.hear(&Event::Ended { choice: 0, finish, tokens: said.len() }, &mut out);
            answer.end(usage(), &mut out);
            let events = events::read(&out);
            let deltas = events.iter().filter(|(name, _)| name.ends_with("output_text.delta"));
            let told: Vec<Value> = deltas
                .flat_map(|(_, event)| event["logprobs"].as_array().unwrap().clone())
                .collect();
            let text = said.iter().map(|(text, _)| *text).collect();
            let choice =
                accumulator::Choice { text, reason: finish.reason(), tokens, ..Default::default() };
            let whole = answer_in(None, Words::clone(&words), true).whole(&[choice], usage());
            let whole: Value = serde_json::from_str(&whole).unwrap();
            let all = &whole["output"][0]["content"][0]["logprobs"];
            assert_eq!((&Value::from(told.clone()), told.len()), (all, said.len()));
            let done = events.iter().find(|(name, _)| name.ends_with("output_text.done"));
            assert_eq!(&done.unwrap().1["logprobs"], all);
        }
    }

    #[test]
    fn an_answer_is_kept_with_the_turns_that_it_is() {
        let (kept, now) = (Arc::new(Kept::new(1 << 20)), Instant::now());
        let events = streamed(answer(Some(&kept)), Finish::Stop);
        let answered = kept.find(Some("k"), "resp_0f", now).unwrap();
        let told: Value = serde_json::from_str(&answered.told.text).unwrap();
        assert_eq!(told, events.last().unwrap().1["response"]);
        let turns: Value = serde_json::from_str(&answered.turns[0].text).unwrap();
        assert_eq!(turns[0]["reasoning_content"], "hm");
        assert_eq!(turns[0]["content"], "I look.");
        assert_eq!(turns[0]["tool_calls"][0]["function"]["arguments"], "{\"a\": 1}");
        let full = Arc::new(Kept::new(10));
        let events = streamed(answer(Some(&full)), Finish::Stop);
        assert_eq!(events.last().unwrap().1["response"]["store"], false);
    }

    #[test]
    fn an_answer_that_breaks_off_says_so_and_ends() {
        let (mut answer, mut out) = (answer(None), Vec::new());
        answer.hear(&letter('a'), &mut out);
        answer.hear(&Event::Failed(Failure::Stopped), &mut out);
        answer.end(usage(), &mut out);
        let events = events::read(&out);
        let (name, last) = events.last().unwrap();
        assert_eq!((&name[..], &last["response"]["status"]), ("response.failed", &json!("failed")));
        assert_eq!(last["response"]["error"]["code"], "server_error");
    }
}
