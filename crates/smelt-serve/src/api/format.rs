//! What form a request wants its answer in.

use serde::Deserialize;
use serde_json::Value;
use smelt_runtime::grammar::{Grammar, bytes_of_schema, bytes_of_text};

use crate::error::ApiError;

/// OpenAI's `response_format`, with two forms of ours: `grammar` and `regex`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Format {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    json_schema: Option<JsonSchema>,
    /// What an object is held to, as in llama-server.
    #[serde(default)]
    schema: Option<Value>,
    #[serde(default)]
    grammar: Option<String>,
    #[serde(default)]
    regex: Option<String>,
}

/// A schema with what OpenAI's API tells of it; it is always held to, as if it were `strict`.
#[derive(Clone, Debug, Deserialize)]
struct JsonSchema {
    schema: Value,
}

impl Format {
    /// About how many bytes what is compiled of it takes, at most.
    pub(crate) fn compiled_bytes(&self) -> usize {
        let named = self.json_schema.as_ref().map(|named| &named.schema);
        let schemas = named.into_iter().chain(&self.schema).map(bytes_of_schema);
        let texts = [&self.grammar, &self.regex].into_iter().flatten();
        schemas.sum::<usize>() + texts.map(|text| bytes_of_text(text)).sum::<usize>()
    }

    /// What the answer is held to, if to anything.
    ///
    /// # Errors
    /// Naming the field that is missing or unknown.
    pub(crate) fn grammar(&self) -> Result<Option<Grammar>, ApiError> {
        let missing =
            |field| ApiError::field(format!("response_format.{field}"), "is missing for this type");
        match self.kind.as_str() {
            "text" => Ok(None),
            "json_object" => match self.schema.clone().filter(|schema| !schema.is_null()) {
                Some(schema) => Ok(Some(Grammar::JsonSchema(schema))),
                None => Ok(Some(Grammar::JsonObject)),
            },
            "json_schema" => {
                let named = self.json_schema.as_ref().map(|named| &named.schema);
                let schema =
                    named.or(self.schema.as_ref()).ok_or_else(|| missing("json_schema"))?;
                Ok(Some(Grammar::JsonSchema(schema.clone())))
            }
            "grammar" => {
                let text = self.grammar.clone().ok_or_else(|| missing("grammar"))?;
                Ok(Some(Grammar::of_text(text)))
            }
            "regex" => {
                let pattern = self.regex.clone().ok_or_else(|| missing("regex"))?;
                Ok(Some(Grammar::Regex(pattern)))
            }
            kind => {
                let why = format!(
                    "{kind:?} is none of text, json_object, json_schema, grammar and regex"
                );
                Err(ApiError::field("response_format.type", why))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(format: &Value, expect: Result<Option<Grammar>, &str>) {
        let format: Format = serde_json::from_value(format.clone()).unwrap();
        let grammar = format.grammar().map_err(|error| error.param.unwrap());
        assert_eq!(grammar, expect.map_err(str::to_owned));
    }

    #[test]
    fn a_form_is_a_grammar() {
        check(&json!({ "type": "text" }), Ok(None));
        check(&json!({ "type": "json_object" }), Ok(Some(Grammar::JsonObject)));
        let schema =
            json!({ "type": "json_schema", "json_schema": { "name": "a", "schema": true } });
        check(&schema, Ok(Some(Grammar::JsonSchema(json!(true)))));
        for kind in ["json_object", "json_schema"] {
            let flat = json!({ "type": kind, "schema": { "const": 1 } });
            check(&flat, Ok(Some(Grammar::JsonSchema(json!({ "const": 1 })))));
        }
        let free = json!({ "type": "json_object", "schema": null });
        check(&free, Ok(Some(Grammar::JsonObject)));
        let gbnf = json!({ "type": "grammar", "grammar": "root ::= \"a\"" });
        check(&gbnf, Ok(Some(Grammar::Gbnf("root ::= \"a\"".to_owned()))));
        check(&json!({ "type": "regex", "regex": "a" }), Ok(Some(Grammar::Regex("a".to_owned()))));
    }

    #[test]
    fn what_is_missing_is_named() {
        check(&json!({ "type": "xml" }), Err("response_format.type"));
        check(&json!({ "type": "json_schema" }), Err("response_format.json_schema"));
        check(&json!({ "type": "grammar" }), Err("response_format.grammar"));
        check(&json!({ "type": "regex" }), Err("response_format.regex"));
    }
}
