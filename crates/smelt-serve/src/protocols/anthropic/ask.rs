//! Turns what Anthropic's clients ask into a chat.

use std::sync::LazyLock;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use crate::api::fields::fields;
use crate::api::foreign::{self, Known};
use crate::api::read::{self, Body};
use crate::api::several::TextOr;
use crate::error::ApiError;
use crate::protocols::field_names::FieldNames;
use crate::protocols::ours::Ours;

/// What `/v1/messages` and `/v1/messages/count_tokens` are asked.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Ask {
    model: Option<String>,
    messages: Option<Vec<Message>>,
    system: Option<TextOr<Block>>,
    max_tokens: Option<usize>,
    stop_sequences: Option<Vec<String>>,
    stream: Option<bool>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    top_k: Option<i64>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Choice>,
    thinking: Option<Thinking>,
    output_config: Option<OutputConfig>,
    /// What `output_config.format` was before.
    output_format: Option<Format>,
    /// What was read is always kept for who asks again.
    cache_control: Option<IgnoredAny>,
    container: Option<Value>,
    mcp_servers: Option<Value>,
    context_management: Option<Value>,
    #[serde(skip)]
    ours: Ours,
}

/// One turn.
#[derive(Clone, Debug, Deserialize)]
struct Message {
    role: String,
    content: TextOr<Block>,
}

/// A piece of a turn, or of a tool's result.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Block {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    source: Option<Source>,
    thinking: Option<String>,
    id: Option<String>,
    name: Option<String>,
    input: Option<Value>,
    tool_use_id: Option<String>,
    content: Option<TextOr<Block>>,
    is_error: Option<bool>,
}

/// Where a picture is.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Source {
    #[serde(rename = "type")]
    kind: String,
    media_type: Option<String>,
    data: Option<String>,
    url: Option<String>,
}

/// Whether tools must be called.
#[derive(Clone, Debug, Deserialize)]
struct Choice {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    disable_parallel_tool_use: Option<bool>,
}

/// Whether the model thinks, and how long.
#[derive(Clone, Debug, Deserialize)]
struct Thinking {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    budget_tokens: Option<usize>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct OutputConfig {
    effort: Option<String>,
    format: Option<Format>,
}

/// What an answer is held to.
#[derive(Clone, Debug, Deserialize)]
struct Format {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    schema: Option<Value>,
}

/// The fields that are read.
static KNOWN: LazyLock<Known> = LazyLock::new(|| {
    Known::new(&fields::<Ask>() | &fields::<Ours>())
        .within("messages", fields::<Message>())
        .within("messages.content", fields::<Block>())
        .within("thinking", fields::<Thinking>())
        .within("output_config", fields::<OutputConfig>())
        .calling(&NAMES)
        // The template writes what stands around a text.
        .doing("add_special_tokens", false.into())
});

/// What chats call otherwise.
const NAMES: [(&str, &str); 5] = [
    ("stop", "stop_sequences"),
    ("response_format", "output_config.format"),
    ("reasoning_effort", "output_config.effort"),
    ("thinking_budget", "thinking.budget_tokens"),
    ("prompt", "messages"),
];

/// What stands before the result of a tool that failed: templates know no other word for it.
const FAILED: &str = "Error: ";

/// A chat, and what its own words are for it.
#[derive(Debug)]
pub(crate) struct Asking {
    /// In OpenAI's words.
    pub(crate) chat: Value,
    pub(crate) places: FieldNames,
}

impl Ask {
    /// Reads a body; gives with it which of its fields nobody knows.
    ///
    /// # Errors
    /// 400, naming the field that is wrong or not understood.
    pub(crate) fn read(body: Body<'_>) -> Result<(Self, Vec<String>), ApiError> {
        let ask = Self { ours: read::json(body)?, ..read::json(body)? };
        ask.check()?;
        let over = foreign::passed_over(body, &KNOWN)?;
        Ok((ask, over))
    }

    /// Whether the answer goes out as it is said.
    pub(crate) fn is_stream(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    /// The strings that end the answer.
    pub(crate) fn stops(&self) -> Vec<String> {
        self.stop_sequences.clone().unwrap_or_default()
    }

    /// Refuses a request for an answer that does not say how long it may be, as Anthropic's server does.
    ///
    /// # Errors
    /// 400, naming the field.
    pub(crate) fn check_length(&self) -> Result<(), ApiError> {
        match self.max_tokens {
            None => Err(ApiError::field("max_tokens", "is missing")),
            Some(_) => Ok(()),
        }
    }

    fn check(&self) -> Result<(), ApiError> {
        let refused =
            |field: &str, why: &str| Err(ApiError::field(field, why).code("field_not_supported"));
        if self.container.as_ref().is_some_and(|container| !container.is_null()) {
            return refused("container", "is not understood; nothing is run here");
        }
        if self.mcp_servers.as_ref().is_some_and(|servers| *servers != json!([])) {
            return refused("mcp_servers", "are not asked here; offer their tools in tools");
        }
        let edits = self.context_management.as_ref().map(|of| &of["edits"]);
        let edits = edits.and_then(Value::as_array).into_iter().flatten();
        // Who keeps all thinking has nothing left out.
        match edits.into_iter().any(|edit| edit["keep"] != "all") {
            true => refused("context_management", "is not understood; send fewer messages"),
            false => Ok(()),
        }
    }

    /// The chat.
    ///
    /// # Errors
    /// 400, naming the field that is not understood.
    pub(crate) fn asking(&self) -> Result<Asking, ApiError> {
        let mut turns = MessageBuilder { all: Vec::new(), places: FieldNames::of(&NAMES) };
        if let Some(system) = &self.system {
            let text = system_text("system", system)?;
            turns.places.note("messages[0].content".to_owned(), "system".to_owned());
            turns.push("system", json!({ "role": "system", "content": text }));
        }
        for (at, message) in self.messages.iter().flatten().enumerate() {
            turns.add(&format!("messages[{at}]"), message)?;
        }
        let MessageBuilder { all, places } = turns;
        Ok(Asking { chat: self.chat(all)?, places })
    }

    /// The chat in OpenAI's words.
    fn chat(&self, turns: Vec<Value>) -> Result<Value, ApiError> {
        let (thinks, budget) = self.thinking()?;
        let parallel = self.tool_choice.as_ref().and_then(|of| of.disable_parallel_tool_use);
        let config = self.output_config.as_ref();
        let fields = [
            ("model", self.model.clone().map(Value::from)),
            ("messages", Some(turns.into())),
            ("max_tokens", self.max_tokens.map(Value::from)),
            ("temperature", self.temperature.map(Value::from)),
            ("top_p", self.top_p.map(Value::from)),
            ("top_k", self.top_k.map(Value::from)),
            (
                "stop",
                self.stop_sequences.as_ref().filter(|all| !all.is_empty()).map(|all| json!(all)),
            ),
            ("tools", self.tools()?),
            ("tool_choice", self.choice()?),
            ("parallel_tool_calls", parallel.map(|is_alone| Value::from(!is_alone))),
            ("response_format", self.format()?),
            ("reasoning_effort", config.and_then(|of| of.effort.clone()).map(Value::from)),
            // A field of the same name in `ours` takes its place.
            ("enable_thinking", thinks.map(Value::from)),
            ("thinking_budget", budget.map(Value::from)),
        ];
        let fields = fields.into_iter();
        let told = fields.filter_map(|(name, value)| Some((name.to_owned(), value?)));
        Ok(told.chain(self.ours.fields()).collect())
    }

    /// Whether the model thinks, and for how many tokens: not where nobody asks for it, unless a template is told.
    fn thinking(&self) -> Result<(Option<bool>, Option<usize>), ApiError> {
        let is_told = self.ours.chat_template_kwargs.is_some();
        match self.thinking.as_ref().map(|of| (&of.kind[..], of.budget_tokens)) {
            None => Ok(((!is_told).then_some(false), None)),
            Some(("disabled", _)) => Ok((Some(false), None)),
            Some(("enabled" | "adaptive", budget)) => Ok((Some(true), budget)),
            Some(_) => {
                Err(ApiError::field("thinking.type", "must be enabled, adaptive or disabled"))
            }
        }
    }

    fn tools(&self) -> Result<Option<Value>, ApiError> {
        let tools = self.tools.iter().flatten().enumerate();
        let told = tools.map(|(at, tool)| {
            let wrong = |field: &str, why| ApiError::field(format!("tools[{at}].{field}"), why);
            if !(tool["type"].is_null() || tool["type"] == "custom") {
                return Err(wrong("type", "must be \"custom\"; other tools are not run here"));
            }
            if !tool["name"].is_string() {
                return Err(wrong("name", "must be a string"));
            }
            let mut function = Map::new();
            for (own, chat) in
                [("name", "name"), ("description", "description"), ("input_schema", "parameters")]
            {
                let value = tool.get(own).filter(|value| !value.is_null());
                function.extend(value.map(|value| (chat.to_owned(), value.clone())));
            }
            Ok(json!({ "type": "function", "function": function }))
        });
        let told = told.collect::<Result<Vec<Value>, ApiError>>()?;
        Ok((!told.is_empty()).then(|| told.into()))
    }

    fn choice(&self) -> Result<Option<Value>, ApiError> {
        let Some(choice) = &self.tool_choice else { return Ok(None) };
        match (&choice.kind[..], &choice.name) {
            ("auto", _) => Ok(Some("auto".into())),
            ("any", _) => Ok(Some("required".into())),
            ("none", _) => Ok(Some("none".into())),
            ("tool", Some(name)) => {
                Ok(Some(json!({ "type": "function", "function": { "name": name } })))
            }
            ("tool", None) => Err(ApiError::field("tool_choice.name", "is missing")),
            _ => Err(ApiError::field("tool_choice.type", "must be auto, any, tool or none")),
        }
    }

    fn format(&self) -> Result<Option<Value>, ApiError> {
        let (at, format) = match self.output_config.as_ref().and_then(|of| of.format.as_ref()) {
            Some(format) => ("output_config.format", format),
            None => match &self.output_format {
                Some(format) => ("output_format", format),
                None => return Ok(None),
            },
        };
        match (&format.kind[..], &format.schema) {
            ("json_schema", Some(schema @ (Value::Object(_) | Value::Bool(_)))) => {
                let schema = json!({ "name": "format", "schema": schema });
                Ok(Some(json!({ "type": "json_schema", "json_schema": schema })))
            }
            ("json_schema", Some(_)) => {
                Err(ApiError::field(format!("{at}.schema"), "must be an object"))
            }
            ("json_schema", None) => Err(ApiError::field(format!("{at}.schema"), "is missing")),
            _ => Err(ApiError::field(format!("{at}.type"), "must be json_schema")),
        }
    }
}

/// A chat's turns so far, and what their fields are called.
struct MessageBuilder {
    all: Vec<Value>,
    places: FieldNames,
}

impl MessageBuilder {
    fn push(&mut self, at: &str, turn: Value) {
        self.places.note(format!("messages[{}]", self.all.len()), at.to_owned());
        self.all.push(turn);
    }

    fn add(&mut self, at: &str, message: &Message) -> Result<(), ApiError> {
        let inside = format!("{at}.content");
        match (&message.role[..], &message.content) {
            ("system", content) => {
                let text = system_text(&inside, content)?;
                self.push(at, json!({ "role": "system", "content": text }));
                Ok(())
            }
            (role @ ("user" | "assistant"), TextOr::Text(text)) => {
                self.push(at, json!({ "role": role, "content": text }));
                Ok(())
            }
            ("user", TextOr::List(blocks)) => self.user(at, blocks),
            ("assistant", TextOr::List(blocks)) => self.assistant(at, blocks),
            (role, _) => {
                let why = format!("{role:?} is no role, but user, assistant and system are");
                Err(ApiError::field(format!("{at}.role"), why))
            }
        }
    }

    /// A user's blocks: results of tools are turns of their own.
    fn user(&mut self, at: &str, blocks: &[Block]) -> Result<(), ApiError> {
        let mut parts = Parts::default();
        for (number, block) in blocks.iter().enumerate() {
            let inside = format!("{at}.content[{number}]");
            if block.kind == "tool_result" {
                self.says(at, "user", std::mem::take(&mut parts));
                self.result(&inside, block)?;
            } else {
                parts.add(inside, block)?;
            }
        }
        self.says(at, "user", parts);
        Ok(())
    }

    fn says(&mut self, at: &str, role: &str, parts: Parts) {
        if !parts.all.is_empty() {
            let content = self.content(parts);
            self.push(at, json!({ "role": role, "content": content }));
        }
    }

    /// What the next turn says: a text where there is nothing else, which every template knows.
    fn content(&mut self, parts: Parts) -> Value {
        let turn = self.all.len();
        for (number, (part, at)) in parts.all.iter().zip(&parts.places).enumerate() {
            if part["type"] == "image_url" {
                let picture = format!("messages[{turn}].content[{number}].image_url.url");
                self.places.note(picture, format!("{at}.source"));
            }
        }
        match parts.all.iter().all(|part| part["type"] == "text") {
            true => {
                let texts = parts.all.iter().filter_map(|part| part["text"].as_str());
                texts.collect::<String>().into()
            }
            false => parts.all.into(),
        }
    }

    fn result(&mut self, at: &str, block: &Block) -> Result<(), ApiError> {
        let Some(id) = &block.tool_use_id else {
            return Err(ApiError::field(format!("{at}.tool_use_id"), "is missing"));
        };
        let mut parts = Parts::default();
        if block.is_error.unwrap_or(false) {
            parts.text(at.to_owned(), FAILED);
        }
        match &block.content {
            None => {}
            Some(TextOr::Text(text)) => parts.text(at.to_owned(), text),
            Some(TextOr::List(blocks)) => {
                for (number, block) in blocks.iter().enumerate() {
                    parts.add(format!("{at}.content[{number}]"), block)?;
                }
            }
        }
        let content = self.content(parts);
        self.push(at, json!({ "role": "tool", "tool_call_id": id, "content": content }));
        Ok(())
    }

    fn assistant(&mut self, at: &str, blocks: &[Block]) -> Result<(), ApiError> {
        let (mut parts, mut thought, mut calls) = (Parts::default(), String::new(), Vec::new());
        for (number, block) in blocks.iter().enumerate() {
            let inside = format!("{at}.content[{number}]");
            match &block.kind[..] {
                "thinking" => thought += block.thinking.as_deref().unwrap_or_default(),
                "tool_use" => calls.push(block.call(&inside)?),
                _ => parts.add(inside, block)?,
            }
        }
        let mut turn = Map::new();
        turn.insert("role".to_owned(), "assistant".into());
        turn.insert("content".to_owned(), self.content(parts));
        if !thought.is_empty() {
            turn.insert("reasoning_content".to_owned(), thought.into());
        }
        if !calls.is_empty() {
            turn.insert("tool_calls".to_owned(), calls.into());
        }
        self.push(at, turn.into());
        Ok(())
    }
}

/// Parts of a chat's turn, and where each is from.
#[derive(Default)]
struct Parts {
    all: Vec<Value>,
    places: Vec<String>,
}

impl Parts {
    fn text(&mut self, at: String, text: &str) {
        self.all.push(json!({ "type": "text", "text": text }));
        self.places.push(at);
    }

    fn add(&mut self, at: String, block: &Block) -> Result<(), ApiError> {
        match (&block.kind[..], &block.text, &block.source) {
            ("text", Some(text), _) => self.text(at, text),
            ("text", None, _) => return Err(ApiError::field(format!("{at}.text"), "is missing")),
            ("image", _, Some(source)) => {
                let url = source.url(&at)?;
                self.all.push(json!({ "type": "image_url", "image_url": { "url": url } }));
                self.places.push(at);
            }
            ("image", _, None) => {
                return Err(ApiError::field(format!("{at}.source"), "is missing"));
            }
            (kind, ..) => {
                let why = format!("{kind:?} is not understood here");
                return Err(ApiError::field(format!("{at}.type"), why));
            }
        }
        Ok(())
    }
}

impl Block {
    /// A call of a tool, as a chat has it.
    fn call(&self, at: &str) -> Result<Value, ApiError> {
        let missing = |field: &str| ApiError::field(format!("{at}.{field}"), "is missing");
        let id = self.id.as_ref().ok_or_else(|| missing("id"))?;
        let name = self.name.as_ref().ok_or_else(|| missing("name"))?;
        let input = self.input.as_ref().ok_or_else(|| missing("input"))?;
        let function = json!({ "name": name, "arguments": input.to_string() });
        Ok(json!({ "id": id, "type": "function", "function": function }))
    }
}

impl Source {
    /// Where the picture of the block `at` is.
    fn url(&self, at: &str) -> Result<String, ApiError> {
        let missing = |field: &str| ApiError::field(format!("{at}.source.{field}"), "is missing");
        match &self.kind[..] {
            "base64" => {
                let kind = self.media_type.as_ref().ok_or_else(|| missing("media_type"))?;
                let data = self.data.as_ref().ok_or_else(|| missing("data"))?;
                Ok(format!("data:{kind};base64,{data}"))
            }
            "url" => self.url.clone().ok_or_else(|| missing("url")),
            _ => Err(ApiError::field(format!("{at}.source.type"), "must be base64 or url")),
        }
    }
}

/// The text of a system's turn; blocks are lines of their own.
fn system_text(at: &str, content: &TextOr<Block>) -> Result<String, ApiError> {
    let blocks = match content {
        TextOr::Text(text) => return Ok(text.clone()),
        TextOr::List(blocks) => blocks.iter().enumerate(),
    };
    let texts = blocks.map(|(number, block)| match (&block.kind[..], &block.text) {
        ("text", Some(text)) => Ok(text.clone()),
        _ => Err(ApiError::field(format!("{at}[{number}]"), "must be text")),
    });
    Ok(texts.collect::<Result<Vec<String>, ApiError>>()?.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::weigh::weigh;
    use crate::ask::chat::Chat;

    fn asking(body: &Value) -> Result<Asking, ApiError> {
        let body = body.to_string();
        let (ask, _) = Ask::read(weigh(body.as_bytes())?)?;
        ask.check_length()?;
        let asking = ask.asking()?;
        let chat = Chat::read(asking.chat.to_string().as_bytes());
        chat.map_err(|error| asking.places.told(error))?;
        Ok(asking)
    }

    /// A request with these fields.
    fn with(fields: &Value) -> Value {
        let mut body = json!({ "max_tokens": 9, "messages": [{ "role": "user", "content": "a" }] });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        body
    }

    #[test]
    fn blocks_are_turns_of_a_chat() {
        let source = json!({ "type": "base64", "media_type": "image/png", "data": "QQ==" });
        let picture = json!({ "type": "image", "source": source });
        let messages = json!([
            { "role": "user", "content": [{ "type": "text", "text": "What?",
                "cache_control": { "type": "ephemeral" } }, picture] },
            { "role": "assistant", "content": [
                { "type": "thinking", "thinking": "hm", "signature": "s" },
                { "type": "text", "text": "I look." },
                { "type": "tool_use", "id": "t1", "name": "f", "input": { "b": 1, "a": [2] } }] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "t1", "content": [picture], "is_error": true },
                { "type": "text", "text": "Go on." }] },
        ]);
        let system = json!([{ "type": "text", "text": "s" }, { "type": "text", "text": "t" }]);
        let asking = asking(&with(&json!({ "messages": messages, "system": system }))).unwrap();
        let shown =
            json!({ "type": "image_url", "image_url": { "url": "data:image/png;base64,QQ==" } });
        let text = |text: &str| json!({ "type": "text", "text": text });
        let function = json!({ "name": "f", "arguments": "{\"b\":1,\"a\":[2]}" });
        let expect = json!([
            { "role": "system", "content": "s\nt" },
            { "role": "user", "content": [text("What?"), shown] },
            { "role": "assistant", "content": "I look.", "reasoning_content": "hm",
                "tool_calls": [{ "id": "t1", "type": "function", "function": function }] },
            { "role": "tool", "tool_call_id": "t1", "content": [text("Error: "), shown] },
            { "role": "user", "content": "Go on." },
        ]);
        assert_eq!(asking.chat["messages"], expect);
        let named = |field: &str| asking.places.told(ApiError::field(field, "x")).param.unwrap();
        assert_eq!(named("messages[1].content[1].image_url.url"), "messages[0].content[1].source");
        assert_eq!(
            named("messages[3].content[1].image_url.url"),
            "messages[2].content[0].content[0].source"
        );
        assert_eq!(named("messages[4].content"), "messages[2].content");
        assert_eq!(named("messages[0].content"), "system");
    }

    #[test]
    fn fields_are_those_of_a_chat() {
        let tool = json!({ "name": "f", "description": "d", "input_schema": { "type": "object" } });
        let chat = |fields: Value| asking(&with(&fields)).unwrap().chat;
        let all = chat(json!({ "stop_sequences": ["x"], "top_k": 5, "tools": [tool],
            "tool_choice": { "type": "any", "disable_parallel_tool_use": true },
            "thinking": { "type": "enabled", "budget_tokens": 1024 },
            "output_config": { "format": { "type": "json_schema", "schema": { "type": "object" } } } }));
        let parameters = json!({ "type": "object" });
        let function = json!({ "name": "f", "description": "d", "parameters": parameters });
        for (name, value) in [
            ("stop", json!(["x"])),
            ("top_k", json!(5)),
            ("max_tokens", json!(9)),
            ("tools", json!([{ "type": "function", "function": function }])),
            ("tool_choice", json!("required")),
            ("parallel_tool_calls", json!(false)),
            ("enable_thinking", json!(true)),
            ("thinking_budget", json!(1024)),
        ] {
            assert_eq!(all[name], value, "{name}");
        }
        assert_eq!(all["response_format"]["json_schema"]["schema"], parameters);
        assert_eq!(chat(json!({}))["enable_thinking"], false);
        assert_eq!(chat(json!({ "chat_template_kwargs": {} })).get("enable_thinking"), None);
        let named =
            chat(json!({ "tools": [tool], "tool_choice": { "type": "tool", "name": "f" } }));
        assert_eq!(named["tool_choice"]["function"]["name"], "f");
    }

    #[track_caller]
    fn refused(fields: Value, param: &str) {
        let error = asking(&with(&fields)).unwrap_err();
        assert_eq!(error.param.as_deref(), Some(param), "{error:?}");
    }

    #[test]
    fn what_is_not_understood_is_named() {
        refused(json!({ "max_tokens": null }), "max_tokens");
        refused(json!({ "messages": [] }), "messages");
        refused(json!({ "messages": [{ "role": "bot", "content": "a" }] }), "messages[0].role");
        refused(json!({ "container": "c" }), "container");
        refused(json!({ "mcp_servers": [{}] }), "mcp_servers");
        let edits = json!([{ "type": "clear_tool_uses_20250919" }]);
        refused(json!({ "context_management": { "edits": edits } }), "context_management");
        refused(json!({ "thinking": { "type": "much" } }), "thinking.type");
        refused(
            json!({ "tools": [{ "type": "web_search_20250305", "name": "w" }] }),
            "tools[0].type",
        );
        refused(json!({ "tool_choice": { "type": "tool" } }), "tool_choice.name");
        refused(
            json!({ "output_config": { "format": { "type": "xml" } } }),
            "output_config.format.type",
        );
        refused(
            json!({ "output_config": { "format": { "type": "json_schema", "schema": 0 } } }),
            "output_config.format.schema",
        );
        refused(json!({ "system": [{ "type": "image" }] }), "system[0]");
        let of = |block: Value| json!({ "messages": [{ "role": "user", "content": [block] }] });
        refused(of(json!({ "type": "document" })), "messages[0].content[0].type");
        refused(of(json!({ "type": "tool_result" })), "messages[0].content[0].tool_use_id");
        let source = json!({ "type": "file", "file_id": "f" });
        refused(
            of(json!({ "type": "image", "source": source })),
            "messages[0].content[0].source.type",
        );
        let body = with(&json!({ "metadata": { "user_id": "u" }, "service_tier": "auto",
            "cache_control": { "type": "ephemeral" }, "stroe": 1,
            "context_management": { "edits": [{ "type": "clear_thinking_20251015", "keep": "all" }] } }))
        .to_string();
        assert_eq!(Ask::read(weigh(body.as_bytes()).unwrap()).unwrap().1, ["stroe"]);
    }
}
