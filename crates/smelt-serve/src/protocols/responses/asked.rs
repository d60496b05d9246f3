//! Tells what an answer was asked: a chat's turns as the items that they were, a page at a time.

use serde_json::{Map, Value, json};

use crate::error::ApiError;

/// Most items of a page, and as many as there are where nobody says how many, as in OpenAI's API.
const LIMIT_MAX: usize = 100;
const LIMIT_USUAL: usize = 20;

/// Which of the items are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    limit: usize,
    is_rising: bool,
    after: Option<String>,
}

impl Page {
    /// Reads what a query says by `get`.
    ///
    /// # Errors
    /// 400, naming the field that is wrong.
    pub(crate) fn read<'a>(get: impl Fn(&str) -> Option<&'a str>) -> Result<Self, ApiError> {
        let limit = match get("limit").map(str::parse::<usize>) {
            None => LIMIT_USUAL,
            Some(Ok(limit)) if (1..=LIMIT_MAX).contains(&limit) => limit,
            Some(_) => return Err(ApiError::field("limit", format!("must be 1 to {LIMIT_MAX}"))),
        };
        let is_rising = match get("order") {
            None | Some("desc") => false,
            Some("asc") => true,
            Some(_) => return Err(ApiError::field("order", "must be asc or desc")),
        };
        Ok(Self { limit, is_rising, after: get("after").map(str::to_owned) })
    }

    /// The page of `items`, which are in the order in which they were asked.
    ///
    /// # Errors
    /// 400, if there is none behind which it begins.
    pub(crate) fn of(&self, mut items: Vec<Value>) -> Result<Value, ApiError> {
        if !self.is_rising {
            items.reverse();
        }
        if let Some(after) = &self.after {
            let at = items.iter().position(|item| item["id"] == after[..]);
            let why = || ApiError::field("after", format!("there is no item {after:?}"));
            items.drain(..=at.ok_or_else(why)?);
        }
        let has_more = items.len() > self.limit;
        items.truncate(self.limit);
        let id = |item: Option<&Value>| item.map(|item| item["id"].clone());
        Ok(json!({
            "object": "list",
            "first_id": id(items.first()),
            "last_id": id(items.last()),
            "has_more": has_more,
            "data": items,
        }))
    }
}

/// The items that turns are, of the conversation before the answer `of`.
pub(crate) fn asked_items(turns: &[Value], of: &str) -> Vec<Value> {
    let mut items = Vec::new();
    for turn in turns {
        for mut item in items_of(turn) {
            item.insert("id".to_owned(), format!("item_{of}_{}", items.len()).into());
            item.insert("status".to_owned(), "completed".into());
            items.push(Value::Object(item));
        }
    }
    items
}

fn items_of(turn: &Value) -> Vec<Map<String, Value>> {
    let role = turn["role"].as_str().unwrap_or_default();
    let mut items = Vec::new();
    if let Some(thought) = turn["reasoning_content"].as_str() {
        let part = json!({ "type": "reasoning_text", "text": thought });
        items.push(json!({ "type": "reasoning", "summary": [], "content": [part] }));
    }
    if role == "tool" {
        let output = match &turn["content"] {
            Value::Array(_) => parts(turn, role).into(),
            text => text.clone(),
        };
        items.push(json!({ "type": "function_call_output", "call_id": turn["tool_call_id"],
            "output": output }));
    } else if !turn["content"].is_null() {
        items.push(json!({ "type": "message", "role": role, "content": parts(turn, role) }));
    }
    for call in turn["tool_calls"].as_array().into_iter().flatten() {
        let function = &call["function"];
        items.push(json!({ "type": "function_call", "call_id": call["id"],
            "name": function["name"], "arguments": function["arguments"] }));
    }
    items.into_iter().filter_map(|item| item.as_object().cloned()).collect()
}

/// What a turn says, in the words of items.
fn parts(turn: &Value, role: &str) -> Vec<Value> {
    let text = |text: &Value| match role {
        "assistant" => {
            json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
        }
        _ => json!({ "type": "input_text", "text": text }),
    };
    let part = |part: &Value| match part["type"] == "text" {
        true => text(&part["text"]),
        false => {
            let (shown, auto) = (&part["image_url"], json!("auto"));
            let detail = shown.get("detail").unwrap_or(&auto);
            json!({ "type": "input_image", "image_url": shown["url"], "detail": detail })
        }
    };
    match &turn["content"] {
        Value::Array(all) => all.iter().map(part).collect(),
        whole => vec![text(whole)],
    }
}

#[cfg(test)]
mod tests {
    use super::super::items::{Item, ItemMessages};
    use super::*;

    #[test]
    fn turns_are_the_items_that_they_were() {
        let asked = json!([
            { "type": "message", "role": "system", "content": [{ "type": "input_text", "text": "s" }] },
            { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "a" },
                { "type": "input_image", "image_url": "data:,", "detail": "low" }] },
            { "type": "reasoning", "summary": [], "content": [{ "type": "reasoning_text", "text": "hm" }] },
            { "type": "message", "role": "assistant", "content":
                [{ "type": "output_text", "text": "b", "annotations": [], "logprobs": [] }] },
            { "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}" },
            { "type": "function_call_output", "call_id": "c", "output": "1" },
        ]);
        let items: Vec<Item> = serde_json::from_value(asked.clone()).unwrap();
        let mut turns = ItemMessages::default();
        items.iter().for_each(|item| turns.add("input", item, &|_| None).unwrap());
        let mut told = asked_items(&turns.turns, "resp_1");
        for (at, item) in told.iter_mut().enumerate() {
            let item = item.as_object_mut().unwrap();
            assert_eq!(item.remove("id"), Some(json!(format!("item_resp_1_{at}"))));
            assert_eq!(item.remove("status"), Some(json!("completed")));
        }
        assert_eq!(Value::from(told), asked);
    }

    #[test]
    fn pages_follow_each_other() {
        let items: Vec<Value> = (0..5).map(|id| json!({ "id": id.to_string() })).collect();
        let page = |fields: &[(&str, &'static str)]| {
            let get = |name: &str| fields.iter().find(|(field, _)| *field == name).map(|(_, v)| *v);
            Page::read(get).and_then(|page| page.of(items.clone()))
        };
        let ids = |page: &Value| -> String {
            page["data"].as_array().unwrap().iter().filter_map(|item| item["id"].as_str()).collect()
        };
        let first = page(&[("limit", "2")]).unwrap();
        assert_eq!((ids(&first), &first["has_more"]), ("43".to_owned(), &json!(true)));
        assert_eq!((&first["first_id"], &first["last_id"]), (&json!("4"), &json!("3")));
        let last = page(&[("order", "asc"), ("after", "2")]).unwrap();
        assert_eq!((ids(&last), &last["has_more"]), ("34".to_owned(), &json!(false)));
        let none = page(&[("after", "0")]).unwrap();
        assert_eq!((ids(&none), &none["first_id"]), (String::new(), &Value::Null));
        let limits = ["0", "101", ""].map(|limit| ("limit", limit));
        let orders = ["up", ""].map(|order| ("order", order));
        for field in limits.into_iter().chain(orders).chain([("after", "9")]) {
            assert_eq!(page(&[field]).unwrap_err().param.as_deref(), Some(field.0));
        }
    }
}
