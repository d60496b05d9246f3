//! Turns the items of a conversation into a chat's turns.
//!
//! What an assistant thought, said and called are items of their own, and one turn of a chat.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::api::several::TextOr;
use crate::error::ApiError;
use crate::protocols::field_names::FieldNames;

/// One item of a conversation.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Item {
    /// Without one it is a message, or names an item.
    #[serde(rename = "type")]
    kind: Option<String>,
    role: Option<String>,
    content: Option<TextOr<InputPart>>,
    id: Option<String>,
    call_id: Option<String>,
    name: Option<String>,
    arguments: Option<String>,
    output: Option<TextOr<InputPart>>,
    summary: Option<Vec<InputPart>>,
    encrypted_content: Option<String>,
}

/// A piece of an item.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct InputPart {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    refusal: Option<String>,
    #[serde(default)]
    image_url: Option<String>,
    #[serde(default)]
    detail: Option<String>,
    #[serde(default)]
    file_id: Option<String>,
}

/// A chat's turns so far, and what their fields are called.
#[derive(Debug, Default)]
pub(crate) struct ItemMessages {
    pub(crate) turns: Vec<Value>,
    /// How many there are before these.
    before: usize,
    pub(crate) places: FieldNames,
}

impl ItemMessages {
    /// Turns behind so many, of a chat whose other fields are called so.
    pub(crate) fn behind(before: usize, places: FieldNames) -> Self {
        Self { turns: Vec::new(), before, places }
    }

    /// A user's text.
    pub(crate) fn text(&mut self, at: &str, text: &str) {
        let place = self.before + self.turns.len();
        self.places.note(format!("messages[{place}].content"), at.to_owned());
        self.push(at, json!({ "role": "user", "content": text }));
    }

    /// Adds an item whose field is `at`; `known` gives those that are named.
    ///
    /// # Errors
    /// 400, naming the field that is not understood.
    pub(crate) fn add(
        &mut self,
        at: &str,
        item: &Item,
        known: &dyn Fn(&str) -> Option<Item>,
    ) -> Result<(), ApiError> {
        match item.kind() {
            "message" => self.message(at, item),
            "reasoning" => self.reasoning(at, item),
            "function_call" => self.call(at, item),
            "function_call_output" => self.output(at, item),
            "item_reference" => {
                let id = item.id.as_deref().unwrap_or_default();
                let found = known(id).filter(|found| found.kind() != "item_reference");
                let found = found.ok_or_else(|| {
                    let why = format!("there is no item {id:?}, or not any more; send the item");
                    ApiError::field(format!("{at}.id"), why).code("item_not_found")
                })?;
                self.add(at, &found, known)
            }
            kind => {
                let why = format!(
                    "{kind:?} is not understood, but message, reasoning, function_call, function_call_output and item_reference are"
                );
                Err(ApiError::field(format!("{at}.type"), why))
            }
        }
    }

    fn push(&mut self, at: &str, turn: Value) {
        let place = self.before + self.turns.len();
        self.places.note(format!("messages[{place}]"), at.to_owned());
        self.turns.push(turn);
    }

    fn message(&mut self, at: &str, item: &Item) -> Result<(), ApiError> {
        let Some(role) = &item.role else {
            return Err(ApiError::field(format!("{at}.role"), "is missing"));
        };
        let content = match &item.content {
            Some(content) => self.content(&format!("{at}.content"), content)?,
            None => return Err(ApiError::field(format!("{at}.content"), "is missing")),
        };
        // What was thought stands before what is said.
        let is_thought = |turn: &Map<String, Value>| {
            turn["content"].is_null() && !turn.contains_key("tool_calls")
        };
        match self.turns.last_mut().and_then(Value::as_object_mut) {
            Some(turn) if role == "assistant" && is_thought(turn) => {
                turn.insert("content".to_owned(), content);
            }
            _ => self.push(at, json!({ "role": role, "content": content })),
        }
        Ok(())
    }

    fn reasoning(&mut self, at: &str, item: &Item) -> Result<(), ApiError> {
        if item.encrypted_content.as_ref().is_some_and(|text| !text.is_empty()) {
            let why = "is not understood: nothing is encrypted here; leave the item out";
            return Err(ApiError::field(format!("{at}.encrypted_content"), why));
        }
        let content = match &item.content {
            Some(TextOr::List(parts)) if !parts.is_empty() => parts.as_slice(),
            _ => item.summary.as_deref().unwrap_or_default(),
        };
        let texts: Vec<&str> = content.iter().filter_map(|part| part.text.as_deref()).collect();
        let thought = texts.join("\n");
        if !thought.is_empty() {
            let turn =
                json!({ "role": "assistant", "content": null, "reasoning_content": thought });
            self.push(at, turn);
        }
        Ok(())
    }

    fn call(&mut self, at: &str, item: &Item) -> Result<(), ApiError> {
        let missing = |field: &str| ApiError::field(format!("{at}.{field}"), "is missing");
        let name = item.name.as_ref().ok_or_else(|| missing("name"))?;
        let arguments = item.arguments.as_ref().ok_or_else(|| missing("arguments"))?;
        let id = item.call_id.as_ref().ok_or_else(|| missing("call_id"))?;
        let function = json!({ "name": name, "arguments": arguments });
        let call = json!({ "id": id, "type": "function", "function": function });
        if self.turns.last().is_none_or(|turn| turn["role"] != "assistant") {
            self.push(at, json!({ "role": "assistant", "content": null }));
        }
        if let Some(turn) = self.turns.last_mut().and_then(Value::as_object_mut) {
            let calls = turn.entry("tool_calls").or_insert_with(|| json!([]));
            calls.as_array_mut().into_iter().for_each(|calls| calls.push(call.clone()));
        }
        Ok(())
    }

    fn output(&mut self, at: &str, item: &Item) -> Result<(), ApiError> {
        let missing = |field: &str| ApiError::field(format!("{at}.{field}"), "is missing");
        let id = item.call_id.as_ref().ok_or_else(|| missing("call_id"))?;
        let output = item.output.as_ref().ok_or_else(|| missing("output"))?;
        let content = self.content(&format!("{at}.output"), output)?;
        self.push(at, json!({ "role": "tool", "tool_call_id": id, "content": content }));
        Ok(())
    }

    /// What the next turn says, whose field is `at`.
    fn content(&mut self, at: &str, content: &TextOr<InputPart>) -> Result<Value, ApiError> {
        let parts = match content {
            TextOr::Text(text) => return Ok(text.clone().into()),
            TextOr::List(parts) => parts,
        };
        let turn = self.before + self.turns.len();
        let mut all = Vec::with_capacity(parts.len());
        for (number, part) in parts.iter().enumerate() {
            let at = format!("{at}[{number}]");
            all.push(part.told(&at)?);
            if part.image_url.is_some() {
                let picture = format!("messages[{turn}].content[{number}].image_url");
                self.places.note(format!("{picture}.url"), format!("{at}.image_url"));
                self.places.note(format!("{picture}.detail"), format!("{at}.detail"));
            }
        }
        // All texts: templates that know lists of parts for users alone know texts for all.
        match all.iter().all(|part| part["type"] == "text") {
            true => {
                let texts = all.iter().filter_map(|part| part["text"].as_str());
                Ok(texts.collect::<String>().into())
            }
            false => Ok(all.into()),
        }
    }
}

impl Item {
    fn kind(&self) -> &str {
        match (&self.kind, &self.role) {
            (Some(kind), _) => kind,
            (None, Some(_)) => "message",
            (None, None) => "item_reference",
        }
    }
}

impl InputPart {
    /// As a chat has it; `at` is its own name.
    fn told(&self, at: &str) -> Result<Value, ApiError> {
        let missing = |field: &str| ApiError::field(format!("{at}.{field}"), "is missing");
        match self.kind.as_str() {
            "input_text" | "output_text" | "text" => {
                let text = self.text.as_ref().ok_or_else(|| missing("text"))?;
                Ok(json!({ "type": "text", "text": text }))
            }
            "refusal" => {
                let text = self.refusal.as_ref().ok_or_else(|| missing("refusal"))?;
                Ok(json!({ "type": "text", "text": text }))
            }
            "input_image" => {
                if self.file_id.is_some() {
                    let why = "is not understood; send the picture in image_url";
                    return Err(ApiError::field(format!("{at}.file_id"), why));
                }
                let mut picture = Map::new();
                let url = self.image_url.clone().ok_or_else(|| missing("image_url"))?;
                picture.insert("url".to_owned(), url.into());
                if let Some(detail) = &self.detail {
                    picture.insert("detail".to_owned(), detail.clone().into());
                }
                Ok(json!({ "type": "image_url", "image_url": picture }))
            }
            kind => {
                let why = format!("{kind:?} is not understood, but input_text and input_image are");
                Err(ApiError::field(format!("{at}.type"), why))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(items: &Value) -> Result<ItemMessages, ApiError> {
        let items: Vec<Item> = serde_json::from_value(items.clone()).unwrap();
        let kept: Item = serde_json::from_value(json!({ "type": "function_call", "call_id": "c",
            "name": "f", "arguments": "{}" }))
        .unwrap();
        let known = |id: &str| (id == "fc_1_0").then(|| kept.clone());
        let mut turns = ItemMessages::behind(2, FieldNames::default());
        for (at, item) in items.iter().enumerate() {
            turns.add(&format!("input[{at}]"), item, &known)?;
        }
        Ok(turns)
    }

    #[test]
    fn items_of_an_assistant_are_one_turn() {
        let items = json!([
            { "role": "user", "content": [{ "type": "input_text", "text": "a" },
                { "type": "input_image", "image_url": "data:,", "detail": "low" }] },
            { "type": "reasoning", "id": "rs_1", "summary": [],
                "content": [{ "type": "reasoning_text", "text": "hm" }] },
            { "type": "message", "role": "assistant", "content":
                [{ "type": "output_text", "text": "b", "annotations": [] }] },
            { "type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}" },
            { "id": "fc_1_0" },
            { "type": "function_call_output", "call_id": "c1", "output": "1" },
        ]);
        let function = json!({ "name": "f", "arguments": "{}" });
        let call = |id: &str| json!({ "id": id, "type": "function", "function": function });
        let picture =
            json!({ "type": "image_url", "image_url": { "url": "data:,", "detail": "low" } });
        let expect = json!([
            { "role": "user", "content": [{ "type": "text", "text": "a" }, picture] },
            { "role": "assistant", "content": "b", "reasoning_content": "hm",
                "tool_calls": [call("c1"), call("c")] },
            { "role": "tool", "tool_call_id": "c1", "content": "1" },
        ]);
        let turns = turns(&items).unwrap();
        assert_eq!(Value::from(turns.turns), expect);
        let named = |field: &str| turns.places.told(ApiError::field(field, "x")).param.unwrap();
        assert_eq!(named("messages[2].content[1].image_url.url"), "input[0].content[1].image_url");
        assert_eq!(named("messages[4].content"), "input[5].content");
    }

    #[track_caller]
    fn check(item: Value, param: &str) {
        let error = turns(&json!([item])).unwrap_err();
        assert_eq!(error.param.as_deref(), Some(param), "{error:?}");
    }

    #[test]
    fn what_is_not_understood_is_named() {
        check(json!({ "type": "computer_call" }), "input[0].type");
        check(json!({ "type": "message", "content": "a" }), "input[0].role");
        check(json!({ "role": "user" }), "input[0].content");
        check(json!({ "type": "function_call", "name": "f" }), "input[0].arguments");
        check(json!({ "type": "function_call_output", "output": "1" }), "input[0].call_id");
        check(json!({ "type": "item_reference", "id": "fc_2_0" }), "input[0].id");
        check(
            json!({ "type": "reasoning", "encrypted_content": "x" }),
            "input[0].encrypted_content",
        );
        let part = |part: Value| json!({ "role": "user", "content": [part] });
        check(part(json!({ "type": "input_file" })), "input[0].content[0].type");
        check(part(json!({ "type": "input_text" })), "input[0].content[0].text");
        check(part(json!({ "type": "input_image" })), "input[0].content[0].image_url");
        let of_file = json!({ "type": "input_image", "file_id": "f" });
        check(part(of_file), "input[0].content[0].file_id");
    }
}
