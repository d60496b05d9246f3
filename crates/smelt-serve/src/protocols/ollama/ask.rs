//! Turns what Ollama's clients ask into a chat.

use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::api::fields::fields;
use crate::api::foreign::{self, Known};
use crate::api::read::{self, Body};
use crate::api::several::TextOr;
use crate::error::ApiError;
use crate::protocols::field_names::FieldNames;
use crate::protocols::ours::Ours;

/// What `/api/chat` and `/api/generate` are asked, all but options.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Ask {
    pub(crate) model: Option<String>,
    messages: Option<Vec<Message>>,
    prompt: Option<String>,
    system: Option<String>,
    images: Option<Vec<String>>,
    raw: Option<bool>,
    suffix: Option<String>,
    template: Option<String>,
    context: Option<Vec<i64>>,
    tools: Option<Vec<Map<String, Value>>>,
    format: Option<Value>,
    options: Option<Options>,
    stream: Option<bool>,
    think: Option<Think>,
    logprobs: Option<bool>,
    #[serde(skip)]
    ours: Ours,
}

#[derive(Clone, Debug, Deserialize)]
struct Message {
    role: String,
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    thinking: Option<String>,
    #[serde(default)]
    images: Option<Vec<String>>,
    #[serde(default)]
    tool_calls: Option<Vec<Map<String, Value>>>,
    #[serde(default)]
    tool_name: Option<String>,
    #[serde(default)]
    tool_call_id: Option<String>,
}

/// Whether the model thinks: yes, no, or how much.
#[derive(Clone, Debug, PartialEq)]
enum Think {
    Whether(bool),
    Effort(String),
}

impl<'de> Deserialize<'de> for Think {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Bool(thinks) => Ok(Self::Whether(thinks)),
            Value::String(effort) => Ok(Self::Effort(effort)),
            _ => Err(serde::de::Error::custom("must be true, false, low, medium or high")),
        }
    }
}

/// How tokens are chosen.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Options {
    temperature: Option<f64>,
    top_k: Option<i64>,
    top_p: Option<f64>,
    min_p: Option<f64>,
    seed: Option<i64>,
    num_predict: Option<i64>,
    stop: Option<TextOr<String>>,
    repeat_penalty: Option<f64>,
    repeat_last_n: Option<i64>,
    presence_penalty: Option<f64>,
    frequency_penalty: Option<f64>,
}

/// What chats call otherwise.
const NAMES: [(&str, &str); 10] = [
    ("max_tokens", "options.num_predict"),
    ("max_completion_tokens", "options.num_predict"),
    ("temperature", "options.temperature"),
    ("top_p", "options.top_p"),
    ("top_k", "options.top_k"),
    ("stop", "options.stop"),
    ("presence_penalty", "options.presence_penalty"),
    ("frequency_penalty", "options.frequency_penalty"),
    ("response_format", "format"),
    ("reasoning_effort", "think"),
];

/// The fields of `Ask` that `/api/generate` alone has.
const OF_GENERATE: [&str; 4] = ["images", "prompt", "raw", "system"];

/// The fields that are read.
static KNOWN: LazyLock<[Known; 2]> = LazyLock::new(|| {
    [&OF_GENERATE[..], &[]].map(|others| {
        let all = &fields::<Ask>() | &fields::<Ours>();
        Known::new(all.into_iter().filter(|name| !others.contains(name)))
            .within("options", fields::<Options>())
            .within("messages", fields::<Message>())
            .calling(&NAMES)
            // The template writes what stands around a text.
            .doing("add_special_tokens", false.into())
    })
});

/// What Ollama takes where neither a request nor a model says how tokens are chosen.
const TEMPERATURE_USUAL: f64 = 0.8;
const TOP_K_USUAL: i64 = 40;
const TOP_P_USUAL: f64 = 0.9;

/// Which of both routes is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Chat,
    Generate,
}

/// What is wanted of the model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Wanted {
    /// That it is in memory.
    Load,
    /// A chat, in OpenAI's words.
    Chat(Value),
    /// A text that is gone on with, and a chat that says how.
    Raw(String, Value),
}

impl Ask {
    /// Reads a body; gives with it which of its fields nobody knows.
    ///
    /// # Errors
    /// 400, naming the field that is wrong or not understood.
    pub(crate) fn read(body: Body<'_>, route: Route) -> Result<(Self, Vec<String>), ApiError> {
        let ask = Self { ours: read::json(body)?, ..read::json(body)? };
        ask.check()?;
        let [of_chat, of_generate] = &*KNOWN;
        let known = if route == Route::Chat { of_chat } else { of_generate };
        Ok((ask, foreign::passed_over(body, known)?))
    }

    /// Whether the answer goes out as it is said.
    pub(crate) fn is_stream(&self) -> bool {
        self.stream.unwrap_or(true)
    }

    /// What is wanted; it may show so many pictures.
    ///
    /// # Errors
    /// 400, naming the field that is not understood, or the first picture too many.
    pub(crate) fn wanted(&self, route: Route, images_max: usize) -> Result<Wanted, ApiError> {
        if route == Route::Generate && self.messages.iter().flatten().next().is_some() {
            let why = "are not understood; send them to /api/chat";
            return Err(ApiError::field("messages", why).code("field_not_supported"));
        }
        self.check_images(route, images_max)?;
        let turns = match route {
            Route::Chat => self.messages.iter().flatten().map(Message::turn).collect::<Vec<_>>(),
            Route::Generate => self.turns(),
        };
        if turns.is_empty() {
            return Ok(Wanted::Load);
        }
        let chat = self.chat(turns)?;
        let is_raw = route == Route::Generate && self.raw.unwrap_or(false);
        match (is_raw, &self.images) {
            (true, Some(images)) if !images.is_empty() => {
                Err(ApiError::field("images", "have no place in a raw prompt"))
            }
            (true, _) => Ok(Wanted::Raw(self.prompt.clone().unwrap_or_default(), chat)),
            (false, _) => Ok(Wanted::Chat(chat)),
        }
    }

    /// Counts pictures before any becomes a part of a chat, which takes far more than a picture of no bytes.
    fn check_images(&self, route: Route, most: usize) -> Result<(), ApiError> {
        let turns = self.messages.iter().flatten().enumerate();
        let of_turns = turns.map(|(at, turn)| (format!("messages[{at}].images"), &turn.images));
        let all: Vec<_> = match route {
            Route::Chat => of_turns.collect(),
            Route::Generate => vec![("images".to_owned(), &self.images)],
        };
        let mut left = most;
        for (at, images) in all {
            let count = images.as_ref().map_or(0, Vec::len);
            if count > left {
                let why = format!("more than {most} pictures and clips; the server allows no more");
                return Err(ApiError::field(format!("{at}[{left}]"), why));
            }
            left -= count;
        }
        Ok(())
    }

    /// The conversation that a prompt is.
    fn turns(&self) -> Vec<Value> {
        let prompt = self.prompt.as_deref().unwrap_or_default();
        let images = self.images.as_deref().unwrap_or_default();
        if prompt.is_empty() && images.is_empty() {
            return Vec::new();
        }
        let system = self.system.as_deref().filter(|system| !system.is_empty());
        let system = system.map(|system| json!({ "role": "system", "content": system }));
        let user = json!({ "role": "user", "content": content(Some(prompt), images) });
        system.into_iter().chain([user]).collect()
    }

    /// What fields of the chat are called here.
    pub(crate) fn places(&self, route: Route) -> FieldNames {
        let mut places = FieldNames::of(&NAMES);
        let has = |is_set: fn(&Options) -> bool| self.options.as_ref().is_some_and(is_set);
        // What is only called otherwise where it is said in Ollama's own words.
        for (is_said, chat, own) in [
            (has(|options| options.min_p.is_some()), "min_p", "options.min_p"),
            (has(|options| options.seed.is_some()), "seed", "options.seed"),
            (
                has(|options| options.repeat_penalty.is_some()),
                "repetition_penalty",
                "options.repeat_penalty",
            ),
            (self.format.is_some(), "response_format.json_schema", "format"),
            (self.format.is_some(), "response_format.json_schema.schema", "format"),
            (self.think.is_some(), "enable_thinking", "think"),
        ] {
            if is_said {
                places.note(chat.to_owned(), own.to_owned());
            }
        }
        match route {
            Route::Chat => {
                for (at, turn) in self.messages.iter().flatten().enumerate() {
                    let own = format!("messages[{at}]");
                    let text = format!("{own}.content");
                    let images = turn.images.as_deref().unwrap_or_default();
                    note_turn(&mut places, at, images, [&format!("{own}.images"), &text]);
                }
            }
            Route::Generate => {
                let is_said = self.system.as_ref().is_some_and(|system| !system.is_empty());
                if is_said {
                    places.note("messages[0]".to_owned(), "system".to_owned());
                    places.note("messages[0].content".to_owned(), "system".to_owned());
                }
                let at = usize::from(is_said);
                places.note("messages".to_owned(), "prompt".to_owned());
                places.note(format!("messages[{at}]"), "prompt".to_owned());
                places.note(format!("messages[{at}].content"), "prompt".to_owned());
                let images = self.images.as_deref().unwrap_or_default();
                note_turn(&mut places, at, images, ["images", "prompt"]);
            }
        }
        places
    }

    /// What would be asked with any turn: what is wrong with the rest is said before anything is asked.
    ///
    /// # Errors
    /// 400, naming the field that is not understood.
    pub(crate) fn alone(&self) -> Result<Value, ApiError> {
        self.chat(vec![json!({ "role": "user", "content": "" })])
    }

    fn check(&self) -> Result<(), ApiError> {
        let refused =
            |field: &str, why| Err(ApiError::field(field, why).code("field_not_supported"));
        let is_said = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        if is_said(&self.template) {
            return refused("template", "is not understood; start smelt with --chat-template");
        }
        if is_said(&self.suffix) {
            return refused(
                "suffix",
                "is not understood; write the model's own form of filling in, with raw",
            );
        }
        if self.context.as_ref().is_some_and(|tokens| !tokens.is_empty()) {
            return refused("context", "is not understood; send messages to /api/chat");
        }
        if self.logprobs.unwrap_or(false) {
            return refused("logprobs", "are not told here; ask /v1/chat/completions");
        }
        Ok(())
    }

    /// The chat in OpenAI's words.
    fn chat(&self, turns: Vec<Value>) -> Result<Value, ApiError> {
        let mut chat = self.options.clone().unwrap_or_default().fields();
        let mut put = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                chat.insert(name.to_owned(), value);
            }
        };
        put("model", self.model.clone().map(Value::from));
        put("messages", Some(turns.into()));
        put("tools", self.tools.clone().filter(|tools| !tools.is_empty()).map(Value::from));
        put("response_format", self.format()?);
        match &self.think {
            Some(Think::Whether(thinks)) => put("enable_thinking", Some((*thinks).into())),
            Some(Think::Effort(effort)) => {
                put("enable_thinking", Some(true.into()));
                put("reasoning_effort", Some(effort.clone().into()));
            }
            None => {}
        }
        for (name, value) in self.ours.fields() {
            // What Ollama's own words say goes before.
            chat.entry(name).or_insert(value);
        }
        Ok(Value::Object(chat))
    }

    fn format(&self) -> Result<Option<Value>, ApiError> {
        match &self.format {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) if text.is_empty() => Ok(None),
            Some(Value::String(text)) if text == "json" => {
                Ok(Some(json!({ "type": "json_object" })))
            }
            Some(schema @ Value::Object(_)) => {
                let schema = json!({ "name": "format", "schema": schema });
                Ok(Some(json!({ "type": "json_schema", "json_schema": schema })))
            }
            Some(_) => Err(ApiError::field("format", "must be \"json\" or a JSON schema")),
        }
    }
}

impl Options {
    /// The same in OpenAI's words.
    fn fields(self) -> Map<String, Value> {
        let penalty = self.repeat_penalty.filter(|_| self.repeat_last_n != Some(0));
        let stop = self.stop.map(|stop| match stop {
            TextOr::Text(text) => json!([text]),
            TextOr::List(texts) => json!(texts),
        });
        let stop = stop.filter(|stop| stop.as_array().is_some_and(|stops| !stops.is_empty()));
        // Everything that is no number of tokens is as many as there may be.
        let limit = self.num_predict.filter(|limit| *limit > 0);
        let fields = [
            ("temperature", Some(json!(self.temperature.unwrap_or(TEMPERATURE_USUAL)))),
            ("top_k", Some(json!(self.top_k.unwrap_or(TOP_K_USUAL)))),
            ("top_p", Some(json!(self.top_p.unwrap_or(TOP_P_USUAL)))),
            ("min_p", self.min_p.map(Value::from)),
            ("seed", self.seed.map(Value::from)),
            ("max_tokens", limit.map(Value::from)),
            ("stop", stop),
            ("repetition_penalty", penalty.map(Value::from)),
            ("presence_penalty", self.presence_penalty.map(Value::from)),
            ("frequency_penalty", self.frequency_penalty.map(Value::from)),
        ];
        let fields = fields.into_iter();
        fields.filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
}

impl Message {
    fn turn(&self) -> Value {
        let images = self.images.as_deref().unwrap_or_default();
        let mut turn = Map::new();
        turn.insert("role".to_owned(), self.role.clone().into());
        turn.insert("content".to_owned(), content(self.content.as_deref(), images));
        let calls = self.tool_calls.clone().filter(|calls| !calls.is_empty());
        let fields = [
            ("tool_calls", calls.map(Value::from)),
            ("reasoning_content", self.thinking.clone().map(Value::from)),
            ("name", self.tool_name.clone().map(Value::from)),
            ("tool_call_id", self.tool_call_id.clone().map(Value::from)),
        ];
        for (name, value) in fields {
            turn.extend(value.map(|value| (name.to_owned(), value)));
        }
        turn.into()
    }
}

/// Takes note of where the pictures of turn `at` and the text behind them came from.
fn note_turn(places: &mut FieldNames, at: usize, images: &[String], [own, text]: [&str; 2]) {
    if images.is_empty() {
        return;
    }
    for number in 0..images.len() {
        let part = format!("messages[{at}].content[{number}]");
        places.note(format!("{part}.image_url.url"), format!("{own}[{number}]"));
        places.note(part, format!("{own}[{number}]"));
    }
    let part = format!("messages[{at}].content[{}]", images.len());
    places.note(format!("{part}.text"), text.to_owned());
    places.note(part, text.to_owned());
}

/// How long the model is to stay, which changes nothing but what is told where nothing else is asked.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Stay {
    keep_alive: Option<Value>,
}

impl Stay {
    /// Why an answer ends that says nothing: a time of zero lets the model go.
    pub(crate) fn reason(&self) -> &'static str {
        let is_none = match &self.keep_alive {
            Some(Value::Number(seconds)) => seconds.as_f64() == Some(0.0),
            Some(Value::String(time)) => ["0", "0s", "0m", "0h", "0ms"].contains(&&time[..]),
            _ => false,
        };
        if is_none { "unload" } else { "load" }
    }
}

/// What a turn says, its pictures in front, as Ollama puts them.
fn content(text: Option<&str>, images: &[String]) -> Value {
    if images.is_empty() {
        return text.unwrap_or_default().into();
    }
    let picture = |image: &String| {
        let url = match image.starts_with("data:") {
            true => image.clone(),
            // Without a type: what it is shows in its bytes.
            false => format!("data:;base64,{image}"),
        };
        json!({ "type": "image_url", "image_url": { "url": url } })
    };
    let text = text.map(|text| json!({ "type": "text", "text": text }));
    images.iter().map(picture).chain(text).collect()
}

/// The fields of `/api/embed` that are read; none of `options` changes an embedding.
static EMBED_KNOWN: LazyLock<Known> =
    LazyLock::new(|| Known::new(fields::<Embed>().into_iter().chain(["options"])));

/// What `/api/embed` and the older `/api/embeddings` are asked.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Embed {
    pub(crate) model: Option<String>,
    input: Option<TextOr<String>>,
    prompt: Option<String>,
    truncate: Option<bool>,
    dimensions: Option<usize>,
}

impl Embed {
    /// Reads a body; gives with it which of its fields nobody knows.
    ///
    /// # Errors
    /// 400, naming the field that is wrong or not understood.
    pub(crate) fn read(body: Body<'_>) -> Result<(Self, Vec<String>), ApiError> {
        Ok((read::json(body)?, foreign::passed_over(body, &EMBED_KNOWN)?))
    }

    /// The same in OpenAI's words.
    ///
    /// # Errors
    /// 400, if there is no text.
    pub(crate) fn fields(&self) -> Result<Value, ApiError> {
        let input = match (&self.input, &self.prompt) {
            (Some(TextOr::Text(text)), _) | (None, Some(text)) => json!([text]),
            (Some(TextOr::List(texts)), _) => json!(texts),
            (None, None) => return Err(ApiError::field("input", "is missing")),
        };
        let cut = self.truncate.unwrap_or(true).then_some(-1);
        let dimensions = self.dimensions.filter(|dimensions| *dimensions > 0);
        Ok(json!({ "model": self.model, "input": input, "truncate_prompt_tokens": cut,
            "dimensions": dimensions }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::weigh::weigh;

    fn wanted(route: Route, body: Value) -> Result<Wanted, ApiError> {
        Ask::read(weigh(body.to_string().as_bytes()).unwrap(), route)?.0.wanted(route, 4)
    }

    #[track_caller]
    fn chat(route: Route, body: Value) -> Value {
        match wanted(route, body).unwrap() {
            Wanted::Chat(chat) => chat,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn messages_are_turns_with_their_pictures_in_front() {
        let body = json!({ "model": "m:latest", "messages": [
            { "role": "system", "content": "s" },
            { "role": "user", "content": "What?", "images": ["QUJD", "data:image/png;base64,QQ=="] },
            { "role": "assistant", "content": "", "thinking": "t",
              "tool_calls": [{ "function": { "name": "f", "arguments": { "a": 1 } } }] },
            { "role": "tool", "content": "1", "tool_name": "f" }],
            "tools": [], "think": "high", "keep_alive": "5m" });
        let picture = |url: &str| json!({ "type": "image_url", "image_url": { "url": url } });
        let chat = chat(Route::Chat, body);
        assert_eq!(
            chat["messages"],
            json!([
            { "role": "system", "content": "s" },
            { "role": "user", "content": [picture("data:;base64,QUJD"),
                picture("data:image/png;base64,QQ=="), { "type": "text", "text": "What?" }] },
            { "role": "assistant", "content": "",
              "tool_calls": [{ "function": { "name": "f", "arguments": { "a": 1 } } }],
              "reasoning_content": "t" },
            { "role": "tool", "content": "1", "name": "f" }])
        );
        assert_eq!(
            (&chat["enable_thinking"], &chat["reasoning_effort"]),
            (&json!(true), &json!("high"))
        );
        assert_eq!((&chat["temperature"], &chat["top_k"]), (&json!(0.8), &json!(40)));
        assert_eq!(chat.get("tools"), None);
    }

    #[test]
    fn errors_name_what_the_client_wrote() {
        let named = |route, body: &Value, field: &str| {
            let ask = Ask::read(weigh(body.to_string().as_bytes()).unwrap(), route).unwrap().0;
            ask.places(route).told(ApiError::field(field, "x")).param.unwrap()
        };
        let body = json!({ "system": "s", "prompt": "p", "images": ["", ""], "format": "json",
            "options": { "seed": 1 } });
        for (chat, own) in [
            ("top_p", "options.top_p"),
            ("seed", "options.seed"),
            ("min_p", "min_p"),
            ("response_format", "format"),
            ("response_format.json_schema.schema", "format"),
            ("messages", "prompt"),
            ("messages[0].content", "system"),
            ("messages[1].content", "prompt"),
            ("messages[1].content[1].image_url.url", "images[1]"),
            ("messages[1].content[2].text", "prompt"),
            ("model", "model"),
        ] {
            assert_eq!(named(Route::Generate, &body, chat), own);
        }
        let turn = json!({ "role": "user", "content": "a", "images": [""] });
        let body = json!({ "messages": [{ "role": "system", "content": "s" }, turn] });
        for (chat, own) in [
            ("messages", "messages"),
            ("messages[0].content", "messages[0].content"),
            ("messages[1].content[0].image_url.url", "messages[1].images[0]"),
            ("messages[1].content[1]", "messages[1].content"),
        ] {
            assert_eq!(named(Route::Chat, &body, chat), own);
        }
    }

    #[test]
    fn who_lets_a_model_go_is_told_so() {
        let reason = |body: Value| serde_json::from_value::<Stay>(body).unwrap().reason();
        for body in [json!({ "keep_alive": 0 }), json!({ "keep_alive": "0s" })] {
            assert_eq!(reason(body), "unload");
        }
        for body in [json!({}), json!({ "keep_alive": -1 }), json!({ "keep_alive": "5m" })] {
            assert_eq!(reason(body), "load");
        }
    }

    #[test]
    fn pictures_are_counted_before_they_are_parts() {
        let of = |route, body| wanted(route, body).unwrap_err().param.unwrap();
        let body = json!({ "prompt": "a", "images": vec![""; 5] });
        assert_eq!(of(Route::Generate, body), "images[4]");
        let turn = json!({ "role": "user", "content": "a", "images": ["", "", ""] });
        assert_eq!(of(Route::Chat, json!({ "messages": [turn, turn] })), "messages[1].images[1]");
        assert!(wanted(Route::Chat, json!({ "messages": [turn] })).is_ok());
    }

    #[test]
    fn a_prompt_is_a_conversation_or_raw() {
        let of = |body| chat(Route::Generate, body)["messages"].clone();
        assert_eq!(of(json!({ "prompt": "a" })), json!([{ "role": "user", "content": "a" }]));
        let turns = of(json!({ "prompt": "a", "system": "s", "images": ["QQ=="] }));
        assert_eq!(
            (turns[0]["role"].as_str(), turns[1]["content"][0]["type"].as_str()),
            (Some("system"), Some("image_url"))
        );
        let raw = wanted(Route::Generate, json!({ "prompt": "a", "raw": true })).unwrap();
        assert!(matches!(raw, Wanted::Raw(text, _) if text == "a"));
        for body in [json!({}), json!({ "prompt": "" }), json!({ "model": "m", "keep_alive": 0 })] {
            assert_eq!(wanted(Route::Generate, body), Ok(Wanted::Load));
        }
        assert_eq!(wanted(Route::Chat, json!({ "messages": [] })), Ok(Wanted::Load));
        let turns = json!({ "messages": [{ "role": "user", "content": "a" }] });
        assert!(wanted(Route::Generate, turns).is_err());
    }

    #[test]
    fn options_mean_what_they_mean_there() {
        let options = json!({ "temperature": 0, "top_k": 5, "top_p": 0.5, "min_p": 0.1, "seed": 7,
            "num_predict": 9, "stop": ["x"], "repeat_penalty": 1.2, "num_ctx": 2048, "num_gpu": 1 });
        let chat =
            |options: &Value| chat(Route::Generate, json!({ "prompt": "a", "options": options }));
        let all = chat(&options);
        for (name, value) in [
            ("temperature", json!(0.0)),
            ("top_k", json!(5)),
            ("seed", json!(7)),
            ("max_tokens", json!(9)),
            ("stop", json!(["x"])),
            ("repetition_penalty", json!(1.2)),
        ] {
            assert_eq!(all[name], value, "{name}");
        }
        assert_eq!(chat(&json!({ "num_predict": -1 })).get("max_tokens"), None);
        let without = json!({ "repeat_penalty": 1.2, "repeat_last_n": 0, "stop": [] });
        assert_eq!(chat(&without).get("repetition_penalty"), None);
        assert_eq!(chat(&without).get("stop"), None);
    }

    #[test]
    fn what_is_not_understood_is_named() {
        let refused = |body: Value| wanted(Route::Generate, body).unwrap_err().param.unwrap();
        assert_eq!(refused(json!({ "prompt": "a", "template": "x" })), "template");
        assert_eq!(refused(json!({ "prompt": "a", "suffix": "x" })), "suffix");
        assert_eq!(refused(json!({ "prompt": "a", "context": [1] })), "context");
        assert_eq!(refused(json!({ "prompt": "a", "format": "xml" })), "format");
        assert_eq!(
            refused(json!({ "prompt": "a", "options": { "mirostat": 2 } })),
            "options.mirostat"
        );
        assert_eq!(refused(json!({ "prompt": "a", "raw": true, "images": ["QQ=="] })), "images");
        assert_eq!(refused(json!({ "prompt": "a", "think": 3 })), "think");
        let formats =
            [(json!("json"), "json_object"), (json!({ "type": "object" }), "json_schema")];
        for (format, kind) in formats {
            let chat = chat(Route::Generate, json!({ "prompt": "a", "format": format }));
            assert_eq!(chat["response_format"]["type"], kind);
        }
    }

    #[test]
    fn texts_are_embedded_one_or_many() {
        let of = |body: Value| serde_json::from_value::<Embed>(body).unwrap().fields();
        let expect = json!({ "model": "m", "input": ["a"], "truncate_prompt_tokens": -1, "dimensions": null });
        assert_eq!(of(json!({ "model": "m", "input": "a" })), Ok(expect.clone()));
        assert_eq!(of(json!({ "model": "m", "prompt": "a" })), Ok(expect));
        let whole = of(json!({ "input": ["a", "b"], "truncate": false })).unwrap();
        assert_eq!(
            (&whole["input"], &whole["truncate_prompt_tokens"]),
            (&json!(["a", "b"]), &Value::Null)
        );
        assert!(of(json!({ "model": "m" })).is_err());
    }
}
