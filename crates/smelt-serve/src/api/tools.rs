//! What tools a request offers, and how the model may think.

use serde::Deserialize;
use serde_json::{Map, Value};
use smelt_runtime::dialect::{Demand, Tool};
use smelt_runtime::grammar::bytes_of_schema;

use crate::error::ApiError;

/// The fields of a chat that say so.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ToolFields {
    /// As the client gave them: a chat template is told all of it.
    pub(crate) tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    /// What tools were before, in OpenAI's API.
    functions: Option<Value>,
    function_call: Option<Value>,
    /// What a chat template knows besides; ours, as in vLLM.
    pub(crate) chat_template_kwargs: Option<Map<String, Value>>,
    /// The same as in `chat_template_kwargs`.
    enable_thinking: Option<bool>,
    /// What some templates know, by OpenAI's name.
    reasoning_effort: Option<String>,
    /// The most tokens of thinking; ours.
    pub(crate) thinking_budget: Option<usize>,
}

impl ToolFields {
    /// Whether all is understood: before a chat template is told of it.
    ///
    /// # Errors
    /// Naming the field that is not.
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        if self.functions.is_some() {
            return Err(ApiError::field("functions", "is not understood; use tools"));
        }
        if self.function_call.is_some() {
            return Err(ApiError::field("function_call", "is not understood; use tool_choice"));
        }
        self.tools()?;
        self.demand().map(|_| ())
    }

    /// The tools that may be called.
    ///
    /// # Errors
    /// Naming the tool that is none.
    pub(crate) fn tools(&self) -> Result<Vec<Tool>, ApiError> {
        let all = self.tools.iter().flatten().enumerate().map(|(at, tool)| read(at, tool));
        let all = all.collect::<Result<Vec<Tool>, ApiError>>()?;
        let Some(allowed) = self.allowed() else { return Ok(all) };
        let named = allowed["tools"].as_array().filter(|tools| !tools.is_empty());
        let wrong =
            |at: String, why| ApiError::field(format!("tool_choice.allowed_tools.{at}"), why);
        let named =
            named.ok_or_else(|| wrong("tools".to_owned(), "must be a list of tools".to_owned()))?;
        let mut callable = Vec::new();
        for (at, tool) in named.iter().enumerate() {
            let name = tool["function"]["name"].as_str().filter(|_| tool["type"] == "function");
            let found = all.iter().find(|tool| Some(&tool.name[..]) == name);
            let found = found.ok_or_else(|| {
                let why = "must be {\"type\": \"function\", \"function\": {\"name\": …}} of one of the tools";
                wrong(format!("tools[{at}]"), why.to_owned())
            })?;
            if !callable.contains(found) {
                callable.push(found.clone());
            }
        }
        Ok(callable)
    }

    /// What `tool_choice` says where it allows some of the tools.
    fn allowed(&self) -> Option<&Value> {
        let choice = self.tool_choice.as_ref()?;
        (choice["type"] == "allowed_tools").then(|| &choice["allowed_tools"])
    }

    /// Whether they must be called.
    ///
    /// # Errors
    /// If it is no choice.
    pub(crate) fn demand(&self) -> Result<Demand, ApiError> {
        let Some(choice) = self.tool_choice.as_ref().filter(|choice| !choice.is_null()) else {
            return Ok(Demand::Auto);
        };
        if let Some(allowed) = self.allowed() {
            return match allowed["mode"].as_str() {
                Some("auto") => Ok(Demand::Auto),
                Some("required") => Ok(Demand::Required),
                _ => {
                    let why = "must be auto or required";
                    Err(ApiError::field("tool_choice.allowed_tools.mode", why))
                }
            };
        }
        match (choice.as_str(), choice["function"]["name"].as_str()) {
            (Some("none"), _) => Ok(Demand::None),
            (Some("auto"), _) => Ok(Demand::Auto),
            (Some("required"), _) => Ok(Demand::Required),
            (None, Some(name)) => Ok(Demand::Named(name.to_owned())),
            _ => {
                let why = "must be none, auto, required or {\"type\": \"function\", \"function\": {\"name\": …}}";
                Err(ApiError::field("tool_choice", why))
            }
        }
    }

    /// About how many bytes what is compiled of all arguments' schemas takes, at most.
    pub(crate) fn compiled_bytes(&self) -> usize {
        self.tools.iter().flatten().map(|tool| bytes_of_schema(&tool["function"])).sum()
    }

    /// What is free-form, and told to the chat template.
    pub(crate) fn free(&self) -> impl Iterator<Item = &Value> {
        let variables = self.chat_template_kwargs.iter().flat_map(Map::values);
        self.tools.iter().flatten().chain(variables)
    }

    /// Whether there may be several calls.
    pub(crate) fn is_parallel(&self) -> bool {
        self.parallel_tool_calls.unwrap_or(true)
    }

    /// What the chat template is told besides the turns and tools.
    pub(crate) fn variables(&self) -> Map<String, Value> {
        let mut variables = self.chat_template_kwargs.clone().unwrap_or_default();
        if let Some(thinks) = self.enable_thinking {
            variables.insert("enable_thinking".to_owned(), thinks.into());
        }
        if let Some(effort) = &self.reasoning_effort {
            variables.insert("reasoning_effort".to_owned(), effort.clone().into());
        }
        variables
    }
}

fn read(at: usize, tool: &Value) -> Result<Tool, ApiError> {
    let wrong = |field: &str, why| Err(ApiError::field(format!("tools[{at}]{field}"), why));
    if tool["type"] != "function" {
        return wrong(".type", "must be \"function\"");
    }
    let Some(name) = tool["function"]["name"].as_str() else {
        return wrong(".function.name", "must be a string");
    };
    match parameters(&tool["function"]["parameters"]) {
        Some(parameters) => Ok(Tool { name: name.to_owned(), parameters }),
        None => wrong(".function.parameters", "must be a JSON schema whose type is \"object\""),
    }
}

/// The schema of a tool's arguments, which are an object also where it says nothing of that.
fn parameters(schema: &Value) -> Option<Value> {
    let mut schema = match schema {
        Value::Null => Map::new(),
        Value::Object(fields) => fields.clone(),
        _ => return None,
    };
    let kind = schema.entry("type").or_insert_with(|| "object".into());
    (kind == "object").then_some(Value::Object(schema))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(json: Value) -> ToolFields {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn tools_are_functions() {
        let tool = json!({ "type": "function", "function": { "name": "look" } });
        let read = fields(json!({ "tools": [tool] })).tools().unwrap();
        let parameters = json!({ "type": "object" });
        assert_eq!(read, [Tool { name: "look".to_owned(), parameters }]);
        let wrong = |tool: Value| fields(json!({ "tools": [tool] })).tools().unwrap_err().param;
        assert_eq!(wrong(json!({ "type": "code" })).as_deref(), Some("tools[0].type"));
        let nameless = json!({ "type": "function", "function": {} });
        assert_eq!(wrong(nameless).as_deref(), Some("tools[0].function.name"));
        assert_eq!(wrong(json!(null)).as_deref(), Some("tools[0].type"));
        let flat = json!({ "type": "function", "name": "look" });
        assert_eq!(wrong(flat).as_deref(), Some("tools[0].function.name"));
    }

    #[test]
    fn arguments_are_an_object() {
        assert_eq!(parameters(&json!(null)), Some(json!({ "type": "object" })));
        assert_eq!(parameters(&json!({})), Some(json!({ "type": "object" })));
        let own = json!({ "type": "object", "properties": {} });
        assert_eq!(parameters(&own), Some(own));
        for other in [json!({ "type": "array" }), json!([]), json!(true), json!("x")] {
            assert_eq!(parameters(&other), None, "{other}");
        }
        let tool = json!({ "type": "function", "function": { "name": "f", "parameters": [] } });
        let error = fields(json!({ "tools": [tool] })).tools().unwrap_err();
        assert_eq!(error.param.as_deref(), Some("tools[0].function.parameters"));
    }

    #[test]
    fn what_tools_were_before_is_named() {
        let check = |json: Value| fields(json).check().map_err(|error| error.param.unwrap());
        assert_eq!(check(json!({ "functions": null, "tools": [] })), Ok(()));
        assert_eq!(check(json!({ "functions": [{ "name": "f" }] })), Err("functions".to_owned()));
        assert_eq!(check(json!({ "function_call": "auto" })), Err("function_call".to_owned()));
        assert_eq!(check(json!({ "tools": [null] })), Err("tools[0].type".to_owned()));
    }

    #[test]
    fn a_choice_is_a_word_or_a_tool() {
        let demand = |choice: Value| fields(json!({ "tool_choice": choice })).demand();
        assert_eq!(demand(json!("none")), Ok(Demand::None));
        assert_eq!(demand(json!(null)), Ok(Demand::Auto));
        assert_eq!(demand(json!("required")), Ok(Demand::Required));
        let named = json!({ "type": "function", "function": { "name": "look" } });
        assert_eq!(demand(named), Ok(Demand::Named("look".to_owned())));
        assert_eq!(demand(json!("any")).unwrap_err().param.as_deref(), Some("tool_choice"));
        assert_eq!(demand(json!(3)).unwrap_err().param.as_deref(), Some("tool_choice"));
    }

    #[test]
    fn some_of_the_tools_may_be_allowed() {
        let tool = |name: &str| json!({ "type": "function", "function": { "name": name } });
        let asked = |allowed: Value| {
            let choice = json!({ "type": "allowed_tools", "allowed_tools": allowed });
            fields(json!({ "tools": [tool("a"), tool("b"), tool("c")], "tool_choice": choice }))
        };
        let some = asked(json!({ "mode": "required", "tools": [tool("c"), tool("a"), tool("c")] }));
        let names: Vec<String> = some.tools().unwrap().into_iter().map(|tool| tool.name).collect();
        assert_eq!(
            (names, some.demand()),
            (vec!["c".to_owned(), "a".to_owned()], Ok(Demand::Required))
        );
        for (allowed, param) in [
            (json!({ "mode": "auto", "tools": [] }), "tools"),
            (json!({ "mode": "auto" }), "tools"),
            (json!({ "mode": "auto", "tools": [tool("a"), tool("d")] }), "tools[1]"),
            (
                json!({ "mode": "auto", "tools": [{ "type": "code", "function": { "name": "a" } }] }),
                "tools[0]",
            ),
            (json!({ "mode": "none", "tools": [tool("a")] }), "mode"),
        ] {
            let refused = asked(allowed).check().unwrap_err();
            assert_eq!(refused.param, Some(format!("tool_choice.allowed_tools.{param}")));
        }
    }

    #[test]
    fn thinking_is_a_variable_of_the_template() {
        let all = json!({ "enable_thinking": false, "chat_template_kwargs": { "style": "short" } });
        let variables = Value::from(fields(all).variables());
        assert_eq!(variables, json!({ "style": "short", "enable_thinking": false }));
    }
}
