//! Turns what is asked of the Responses API into a chat.

use std::sync::LazyLock;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use super::items::{Item, ItemMessages};
use super::response_object::Asked;
use crate::answer;
use crate::api::fields::fields;
use crate::api::foreign::{self, Known};
use crate::api::read::{self, Body};
use crate::api::several::TextOr;
use crate::error::ApiError;
use crate::protocols::field_names::FieldNames;
use crate::protocols::ours::Ours;

/// What `/v1/responses` is asked.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Ask {
    model: Option<String>,
    input: Option<TextOr<Item>>,
    instructions: Option<String>,
    pub(crate) previous_response_id: Option<String>,
    store: Option<bool>,
    stream: Option<bool>,
    max_output_tokens: Option<usize>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    text: Option<Text>,
    reasoning: Option<Reasoning>,
    metadata: Option<Map<String, Value>>,
    user: Option<String>,
    include: Option<Vec<String>>,
    truncation: Option<String>,
    /// Only of tools that OpenAI's server runs itself.
    max_tool_calls: Option<usize>,
    top_logprobs: Option<usize>,
    /// Only whether parts of a stream are made equally long.
    stream_options: Option<Map<String, Value>>,
    background: Option<bool>,
    conversation: Option<Value>,
    /// Which may be a list of tokens, of which no tree is made.
    prompt: Option<IgnoredAny>,
    context_management: Option<Value>,
    moderation: Option<Value>,
    /// As in chats.
    stop: Option<Value>,
    top_k: Option<Value>,
    #[serde(skip)]
    ours: Ours,
}

/// What form the answer has.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Text {
    format: Option<Map<String, Value>>,
    verbosity: Option<String>,
}

/// How the model thinks.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Reasoning {
    effort: Option<String>,
    summary: Option<String>,
    generate_summary: Option<String>,
}

/// The fields that are read.
static KNOWN: LazyLock<Known> = LazyLock::new(|| {
    Known::new(&fields::<Ask>() | &fields::<Ours>())
        .within("text", fields::<Text>())
        .within("reasoning", fields::<Reasoning>())
        .calling(&NAMES)
        // The template writes what stands around a text.
        .doing("add_special_tokens", false.into())
});

/// What asks for how likely tokens were.
const LOGPROBS: &str = "message.output_text.logprobs";

/// What OpenAI's server takes where nothing is said.
const TEMPERATURE_USUAL: f64 = 1.0;
const TOP_P_USUAL: f64 = 1.0;

/// What chats call otherwise.
const NAMES: [(&str, &str); 9] = [
    ("max_completion_tokens", "max_output_tokens"),
    ("logprobs", "include"),
    ("tool_choice.allowed_tools", "tool_choice"),
    ("messages", "input"),
    ("max_tokens", "max_output_tokens"),
    ("response_format", "text.format"),
    ("response_format.json_schema", "text.format"),
    ("reasoning_effort", "reasoning.effort"),
    ("prompt", "input"),
];

/// A chat, and what its own words are for it.
#[derive(Debug)]
pub(crate) struct Asking {
    /// In OpenAI's older words.
    pub(crate) chat: Value,
    pub(crate) places: FieldNames,
    /// The turns that are new, as JSON, where the answer is to be kept.
    pub(crate) turns: Option<String>,
}

impl Ask {
    /// Reads a body; gives with it which of its fields nobody knows.
    ///
    /// # Errors
    /// 400, naming the field that is wrong or not understood.
    pub(crate) fn read(body: Body<'_>) -> Result<(Self, Vec<String>), ApiError> {
        let ask = Self { ours: read::json(body)?, ..read::json(body)? };
        ask.check()?;
        let mut over = foreign::passed_over(body, &KNOWN)?;
        let reasoning = ask.reasoning.as_ref();
        if reasoning.is_some_and(|of| of.summary.is_some() || of.generate_summary.is_some()) {
            // What the model thinks is told whole.
            over.push("reasoning.summary".to_owned());
        }
        Ok((ask, over))
    }

    /// Whether the answer goes out as it is said.
    pub(crate) fn is_stream(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    /// Whether the answer is to be kept.
    pub(crate) fn is_kept(&self) -> bool {
        self.store.unwrap_or(true)
    }

    /// Whether it is told how likely tokens were.
    pub(crate) fn is_likely(&self) -> bool {
        self.include.iter().flatten().any(|word| word == LOGPROBS)
    }

    fn check(&self) -> Result<(), ApiError> {
        let refused =
            |field: &str, why: &str| Err(ApiError::field(field, why).code("field_not_supported"));
        let is_said = |value: &Option<Value>| {
            value.as_ref().is_some_and(|value| !value.is_null() && *value != json!([]))
        };
        if self.background.unwrap_or(false) {
            return refused("background", "is not understood; leave it out, or use stream");
        }
        for (field, is_there) in [
            ("conversation", is_said(&self.conversation)),
            ("prompt", self.prompt.is_some()),
            ("context_management", is_said(&self.context_management)),
            ("moderation", is_said(&self.moderation)),
        ] {
            if is_there {
                return refused(field, "is not understood; send the whole in input");
            }
        }
        if self.top_logprobs.unwrap_or(0) > 0 && !self.is_likely() {
            let why = format!("only together with include: [{LOGPROBS:?}]");
            return Err(ApiError::field("top_logprobs", why));
        }
        self.check_words()
    }

    fn check_words(&self) -> Result<(), ApiError> {
        /// What is included anyway, or is of tools that are not offered here.
        const INCLUDED: [&str; 8] = [
            LOGPROBS,
            "reasoning.encrypted_content",
            "file_search_call.results",
            "web_search_call.results",
            "web_search_call.action.sources",
            "message.input_image.image_url",
            "computer_call_output.output.image_url",
            "code_interpreter_call.outputs",
        ];
        let refused =
            |field: &str, why: &str| Err(ApiError::field(field, why).code("field_not_supported"));
        let other = |word: &&String| !INCLUDED.contains(&&word[..]);
        if let Some(word) = self.include.iter().flatten().find(other) {
            return refused("include", &format!("{word:?} is not understood"));
        }
        if !matches!(self.truncation.as_deref(), None | Some("auto" | "disabled")) {
            return refused("truncation", "must be auto or disabled");
        }
        let verbosity = self.text.as_ref().and_then(|text| text.verbosity.as_deref());
        match verbosity {
            None | Some("medium") => Ok(()),
            Some(_) => refused("text.verbosity", "is not understood; say it in instructions"),
        }
    }

    /// The chat, behind the turns of the conversation that it goes on from.
    ///
    /// # Errors
    /// 400, naming the field that is not understood.
    pub(crate) fn asking(
        &self,
        before: Vec<Value>,
        known: &dyn Fn(&str) -> Option<Item>,
    ) -> Result<Asking, ApiError> {
        let system = self.instructions.as_ref().filter(|text| !text.is_empty());
        let system = system.map(|text| json!({ "role": "system", "content": text }));
        let before_all = before.len() + usize::from(system.is_some());
        let mut places = FieldNames::of(&NAMES);
        if system.is_some() {
            places.note("messages[0]".to_owned(), "instructions".to_owned());
            places.note("messages[0].content".to_owned(), "instructions".to_owned());
        }
        let mut new = ItemMessages::behind(before_all, places);
        match &self.input {
            None => return Err(ApiError::field("input", "is missing")),
            Some(TextOr::List(items)) if items.is_empty() => {
                return Err(ApiError::field("input", "must have at least one"));
            }
            Some(TextOr::Text(text)) => new.text("input", text),
            Some(TextOr::List(items)) => {
                for (at, item) in items.iter().enumerate() {
                    new.add(&format!("input[{at}]"), item, known)?;
                }
            }
        }
        let ItemMessages { turns, places, .. } = new;
        let kept = self.is_kept().then(|| answer::json(&turns));
        let all: Vec<Value> = system.into_iter().chain(before).chain(turns).collect();
        Ok(Asking { chat: self.chat(all)?, places, turns: kept })
    }

    /// The chat in OpenAI's older words.
    fn chat(&self, turns: Vec<Value>) -> Result<Value, ApiError> {
        let effort = self.reasoning.as_ref().and_then(|reasoning| reasoning.effort.clone());
        let thinks = effort.as_ref().map(|effort| Value::from(effort != "none"));
        let fields = [
            ("model", self.model.clone().map(Value::from)),
            ("messages", Some(turns.into())),
            ("max_tokens", self.max_output_tokens.map(Value::from)),
            ("temperature", self.temperature.map(Value::from)),
            ("top_p", self.top_p.map(Value::from)),
            ("tools", self.tools()?),
            ("tool_choice", self.choice()?),
            ("parallel_tool_calls", self.parallel_tool_calls.map(Value::from)),
            ("response_format", self.format()),
            ("logprobs", self.is_likely().then_some(Value::Bool(true))),
            ("top_logprobs", self.top_logprobs.filter(|_| self.is_likely()).map(Value::from)),
            ("reasoning_effort", effort.map(Value::from)),
            // A field of the same name in `ours` takes its place.
            ("enable_thinking", thinks),
            ("stop", self.stop.clone()),
            ("top_k", self.top_k.clone()),
        ];
        let fields = fields.into_iter();
        let told = fields.filter_map(|(name, value)| Some((name.to_owned(), value?)));
        Ok(told.chain(self.ours.fields()).collect())
    }

    /// The tools, their fields in an object of their own.
    fn tools(&self) -> Result<Option<Value>, ApiError> {
        let tools = self.tools.iter().flatten().enumerate();
        let nested = tools.map(|(at, tool)| {
            let wrong = |field: &str, why| ApiError::field(format!("tools[{at}].{field}"), why);
            if tool["type"] != "function" {
                return Err(wrong("type", "must be \"function\"; other tools are not run here"));
            }
            if !tool["name"].is_string() {
                return Err(wrong("name", "must be a string"));
            }
            let mut function = tool.as_object().cloned().unwrap_or_default();
            function.shift_remove("type");
            Ok(json!({ "type": "function", "function": function }))
        });
        let nested = nested.collect::<Result<Vec<Value>, ApiError>>()?;
        Ok((!nested.is_empty()).then(|| nested.into()))
    }

    fn choice(&self) -> Result<Option<Value>, ApiError> {
        let Some(choice) = self.tool_choice.as_ref().filter(|choice| !choice.is_null()) else {
            return Ok(None);
        };
        if choice["type"] == "allowed_tools" {
            return Ok(Some(allowed(choice)));
        }
        let is_function = choice["type"] == "function";
        match (choice.as_str(), choice["name"].as_str().filter(|_| is_function)) {
            (Some("none" | "auto" | "required"), _) => Ok(Some(choice.clone())),
            (None, Some(name)) => {
                Ok(Some(json!({ "type": "function", "function": { "name": name } })))
            }
            _ => {
                let why = "must be none, auto, required or {\"type\": \"function\", \"name\": …}";
                Err(ApiError::field("tool_choice", why))
            }
        }
    }

    /// The form of the answer, a schema in an object of its own.
    fn format(&self) -> Option<Value> {
        let format = self.text.as_ref()?.format.as_ref()?;
        if format.get("type").is_none_or(|kind| kind != "json_schema") {
            return Some(format.clone().into());
        }
        let mut schema = format.clone();
        schema.shift_remove("type");
        Some(json!({ "type": "json_schema", "json_schema": schema }))
    }

    /// What an answer repeats of this.
    pub(crate) fn repeated(&self) -> Asked {
        let text = self.text.as_ref().and_then(|text| text.format.clone());
        let reasoning = self.reasoning.as_ref();
        let effort = reasoning.and_then(|reasoning| reasoning.effort.clone());
        Asked {
            instructions: self.instructions.clone(),
            max_output_tokens: self.max_output_tokens,
            max_tool_calls: self.max_tool_calls,
            metadata: self.metadata.clone().unwrap_or_default(),
            parallel_tool_calls: self.parallel_tool_calls.unwrap_or(true),
            previous_response_id: self.previous_response_id.clone(),
            reasoning: json!({ "effort": effort, "summary": null }),
            store: self.is_kept(),
            temperature: self.temperature.unwrap_or(TEMPERATURE_USUAL),
            top_logprobs: self.top_logprobs.unwrap_or(0),
            text: json!({ "format": text.map_or_else(|| json!({ "type": "text" }), Value::from) }),
            tool_choice: self.tool_choice.clone().unwrap_or_else(|| json!("auto")),
            tools: self.tools.clone().unwrap_or_default(),
            top_p: self.top_p.unwrap_or(TOP_P_USUAL),
            truncation: "disabled",
            user: self.user.clone(),
        }
    }
}

/// Some of the tools, their names in objects of their own.
fn allowed(choice: &Value) -> Value {
    let nested =
        |tool: &Value| json!({ "type": tool["type"], "function": { "name": tool["name"] } });
    let tools =
        choice["tools"].as_array().map(|tools| tools.iter().map(nested).collect::<Vec<_>>());
    json!({ "type": "allowed_tools", "allowed_tools": { "mode": choice["mode"], "tools": tools } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::weigh::weigh;
    use crate::ask::chat::Chat;

    fn read(body: Value) -> Result<(Ask, Vec<String>), ApiError> {
        let body = body.to_string();
        Ask::read(weigh(body.as_bytes()).unwrap())
    }

    /// The chat of a request, which must be one.
    fn chat(body: Value) -> Value {
        let (ask, _) = read(body).unwrap();
        let asking = ask.asking(vec![json!({ "role": "user", "content": "before" })], &|_| None);
        let chat = asking.unwrap().chat;
        Chat::read(chat.to_string().as_bytes()).unwrap();
        chat
    }

    #[test]
    fn texts_are_called_as_they_were_sent() {
        let (ask, _) = read(json!({ "input": "a", "instructions": "b" })).unwrap();
        let before = vec![json!({ "role": "user", "content": "before" })];
        let places = ask.asking(before, &|_| None).unwrap().places;
        for (chat, own) in [
            ("messages[0].content", "instructions"),
            ("messages[2].content", "input"),
            ("messages", "input"),
        ] {
            let told = places.told(ApiError::field(chat, "x"));
            assert_eq!(told.param.as_deref(), Some(own), "{chat}");
        }
    }

    #[track_caller]
    fn refused(body: Value, param: &str) {
        let asked = read(body).and_then(|(ask, _)| {
            let asking = ask.asking(Vec::new(), &|_| None)?;
            let chat = Chat::read(asking.chat.to_string().as_bytes());
            let chat = chat.and_then(|chat| chat.held.grammar().map(drop));
            chat.map_err(|error| asking.places.told(error))
        });
        assert_eq!(asked.unwrap_err().param.as_deref(), Some(param));
    }

    #[test]
    fn a_text_is_a_chat_behind_what_was_before() {
        let chat = chat(json!({ "model": "m", "input": "a", "instructions": "s",
            "max_output_tokens": 9, "temperature": 0, "seed": 7, "reasoning": { "effort": "none" } }));
        let roles: Vec<&Value> =
            chat["messages"].as_array().unwrap().iter().map(|turn| &turn["content"]).collect();
        assert_eq!(roles, ["s", "before", "a"]);
        assert_eq!((&chat["max_tokens"], &chat["seed"]), (&json!(9), &json!(7)));
        assert_eq!(chat["enable_thinking"], json!(false));
    }

    #[test]
    fn tools_and_forms_are_nested() {
        let tool = json!({ "type": "function", "name": "f", "description": "d", "strict": true,
            "parameters": { "type": "object" } });
        let schema = json!({ "type": "json_schema", "name": "n", "schema": { "type": "object" } });
        let chat = chat(json!({ "input": "a", "tools": [tool], "text": { "format": schema },
            "tool_choice": { "type": "function", "name": "f" } }));
        assert_eq!(chat["tools"][0]["function"]["name"], "f");
        assert_eq!(chat["tools"][0]["function"].get("type"), None);
        assert_eq!(chat["tool_choice"]["function"]["name"], "f");
        assert_eq!(chat["response_format"]["json_schema"]["schema"]["type"], "object");
    }

    #[test]
    fn likelihoods_and_some_of_the_tools_are_asked_as_chats_do() {
        let tool = |name: &str| json!({ "type": "function", "name": name });
        let chat = chat(json!({ "input": "a", "include": [LOGPROBS], "top_logprobs": 3,
            "tools": [tool("f"), tool("g")],
            "tool_choice": { "type": "allowed_tools", "mode": "required", "tools": [tool("g")] } }));
        assert_eq!((&chat["logprobs"], &chat["top_logprobs"]), (&json!(true), &json!(3)));
        let allowed = &chat["tool_choice"]["allowed_tools"];
        assert_eq!(allowed["tools"][0]["function"]["name"], "g");
        assert_eq!(allowed["mode"], "required");
    }

    #[test]
    fn what_is_not_understood_is_named() {
        refused(json!({}), "input");
        refused(json!({ "input": [] }), "input");
        refused(json!({ "input": [{ "role": "bot", "content": 3 }] }), "input[0].content");
        refused(json!({ "input": "a", "background": true }), "background");
        refused(json!({ "input": "a", "conversation": "c" }), "conversation");
        refused(json!({ "input": "a", "prompt": { "id": "p" } }), "prompt");
        refused(json!({ "input": "a", "top_logprobs": 2 }), "top_logprobs");
        refused(json!({ "input": "a", "include": ["message.output_audio"] }), "include");
        let tool = json!({ "type": "function", "name": "f" });
        let some = json!({ "type": "allowed_tools", "mode": "auto", "tools": [tool, { "type": "function", "name": "g" }] });
        refused(
            json!({ "input": "a", "tools": [tool], "tool_choice": some }),
            "tool_choice.tools[1]",
        );
        refused(json!({ "input": "a", "text": { "verbosity": "low" } }), "text.verbosity");
        refused(
            json!({ "input": "a", "text": { "format": { "type": "xml" } } }),
            "text.format.type",
        );
        refused(json!({ "input": "a", "tools": [{ "type": "web_search" }] }), "tools[0].type");
        refused(json!({ "input": "a", "tool_choice": { "type": "mcp" } }), "tool_choice");
        refused(json!({ "input": "a", "min_tokens": 3 }), "min_tokens");
        refused(json!({ "input": "a", "truncation": "middle" }), "truncation");
    }

    #[test]
    fn what_changes_nothing_passes_and_what_nobody_knows_is_told() {
        let (_, over) = read(json!({ "input": "a", "store": false, "metadata": { "a": "b" },
            "include": ["reasoning.encrypted_content"], "service_tier": "auto", "stroe": 1,
            "text": { "verbosity": "medium" }, "reasoning": { "summary": "auto" } }))
        .unwrap();
        assert_eq!(over, ["stroe", "reasoning.summary"]);
    }
}
