//! In which ways a request says what form its answer is held to: OpenAI's, and those of other servers.

use serde::Deserialize;
use serde_json::Value;
use smelt_runtime::grammar::{Grammar, bytes_of_schema, bytes_of_text};

use super::fields::fields;
use super::foreign::Known;
use super::format::Format;
use crate::error::ApiError;

/// The fields that say so, of which one may.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct StructuredOutputFields {
    response_format: Option<Format>,
    /// vLLM's.
    guided_json: Option<Value>,
    guided_regex: Option<String>,
    guided_choice: Option<Vec<String>>,
    guided_grammar: Option<String>,
    structured_outputs: Option<Structured>,
    /// llama-server's.
    grammar: Option<String>,
    json_schema: Option<Value>,
    /// SGLang's.
    regex: Option<String>,
    ebnf: Option<String>,
}

/// vLLM's newer form, one of these.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Structured {
    json: Option<Value>,
    regex: Option<String>,
    choice: Option<Vec<String>>,
    grammar: Option<String>,
    json_object: Option<bool>,
    structural_tag: Option<Value>,
}

/// What an answer is held to, and the field that says so.
pub(crate) type RequestedGrammar = (Grammar, &'static str);

impl StructuredOutputFields {
    /// Reads also these fields of fields.
    pub(crate) fn within(known: Known) -> Known {
        known
            .within("response_format", fields::<Format>())
            .within("response_format.json_schema", ["name", "description", "schema", "strict"])
            .within("structured_outputs", fields::<Structured>())
    }

    /// About how many bytes what is compiled of all this takes, at most.
    pub(crate) fn compiled_bytes(&self) -> usize {
        let schemas = [&self.guided_json, &self.json_schema].into_iter().flatten();
        let texts = [&self.guided_regex, &self.guided_grammar, &self.grammar, &self.regex];
        let texts = texts.into_iter().chain([&self.ebnf]).flatten();
        let choices = self.guided_choice.iter().flatten();
        let of_format = self.response_format.as_ref().map_or(0, Format::compiled_bytes);
        let of_structured = self.structured_outputs.as_ref().map_or(0, Structured::compiled_bytes);
        let of_schemas = schemas.map(of_schema).sum::<usize>();
        let of_texts = texts.chain(choices).map(|text| bytes_of_text(text)).sum::<usize>();
        of_format + of_structured + of_schemas + of_texts
    }

    /// What each answer is held to, if to anything.
    ///
    /// # Errors
    /// Naming the field that is missing or unknown, or the second that says so.
    pub(crate) fn grammar(&self) -> Result<Option<RequestedGrammar>, ApiError> {
        let format = self.response_format.as_ref().map_or(Ok(None), Format::grammar)?;
        let json = |value: &Option<Value>| value.clone().map(schema).transpose();
        let text = |text: &Option<String>| some(text).map(Grammar::of_text);
        let structured = self.structured_outputs.as_ref().map_or(Ok(None), Structured::grammar)?;
        let all = [
            (format, "response_format"),
            (json(&self.guided_json)?, "guided_json"),
            (some(&self.guided_regex).map(Grammar::Regex), "guided_regex"),
            (self.guided_choice.clone().map(Grammar::Choice), "guided_choice"),
            (text(&self.guided_grammar), "guided_grammar"),
            (structured, "structured_outputs"),
            (text(&self.grammar), "grammar"),
            (json(&self.json_schema)?, "json_schema"),
            (some(&self.regex).map(Grammar::Regex), "regex"),
            (text(&self.ebnf), "ebnf"),
        ];
        let mut asked = all.into_iter().filter_map(|(grammar, name)| Some((grammar?, name)));
        let first = asked.next();
        match (&first, asked.next()) {
            (Some((_, first)), Some((_, second))) => {
                let why = format!("is given beside {first}; say once what an answer is held to");
                Err(ApiError::field(second, why))
            }
            _ => Ok(first),
        }
    }
}

impl Structured {
    fn compiled_bytes(&self) -> usize {
        let texts = [&self.regex, &self.grammar].into_iter().flatten();
        let texts = texts.chain(self.choice.iter().flatten());
        let of_texts = texts.map(|text| bytes_of_text(text)).sum::<usize>();
        of_texts + self.json.as_ref().map_or(0, of_schema)
    }

    fn grammar(&self) -> Result<Option<Grammar>, ApiError> {
        let wrong = |why| ApiError::field("structured_outputs", why);
        if self.structural_tag.is_some() {
            return Err(wrong("structural_tag is not understood; use grammar"));
        }
        let all = [
            self.json.clone().map(schema).transpose()?,
            some(&self.regex).map(Grammar::Regex),
            self.choice.clone().map(Grammar::Choice),
            some(&self.grammar).map(Grammar::of_text),
            self.json_object.filter(|is_object| *is_object).map(|_| Grammar::JsonObject),
        ];
        let mut asked = all.into_iter().flatten();
        match (asked.next(), asked.next()) {
            (Some(one), None) => Ok(Some(one)),
            _ => Err(wrong("must say one of json, regex, choice, grammar and json_object")),
        }
    }
}

/// About how many bytes what is compiled of a schema takes, or of the text of one.
fn of_schema(schema: &Value) -> usize {
    match schema {
        Value::String(text) => bytes_of_text(text),
        schema => bytes_of_schema(schema),
    }
}

/// A text that says something.
fn some(text: &Option<String>) -> Option<String> {
    text.clone().filter(|text| !text.is_empty())
}

/// A schema, or the text of one, as vLLM takes it.
fn schema(value: Value) -> Result<Grammar, ApiError> {
    match value {
        Value::String(text) => {
            let parsed = serde_json::from_str(&text);
            let why = |error| ApiError::field("guided_json", format!("is no JSON: {error}"));
            parsed.map(Grammar::JsonSchema).map_err(why)
        }
        schema => Ok(Grammar::JsonSchema(schema)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn held(fields: Value) -> Result<Option<RequestedGrammar>, ApiError> {
        serde_json::from_value::<StructuredOutputFields>(fields).unwrap().grammar()
    }

    #[test]
    fn every_servers_way_is_understood() {
        let schema = json!({ "type": "object" });
        let of_schema = Grammar::JsonSchema(schema.clone());
        let choice = Grammar::Choice(vec!["a".to_owned(), "b".to_owned()]);
        let gbnf = "root ::= \"a\"";
        let of_text = Grammar::Gbnf(gbnf.to_owned());
        let regex = Grammar::Regex("a+".to_owned());
        for (name, value, expect) in [
            ("guided_json", schema.clone(), &of_schema),
            ("guided_json", json!(schema.to_string()), &of_schema),
            ("guided_regex", json!("a+"), &regex),
            ("guided_choice", json!(["a", "b"]), &choice),
            ("guided_grammar", json!(gbnf), &of_text),
            ("structured_outputs", json!({ "json": schema }), &of_schema),
            ("structured_outputs", json!({ "regex": "a+" }), &regex),
            ("structured_outputs", json!({ "choice": ["a", "b"] }), &choice),
            ("structured_outputs", json!({ "grammar": gbnf }), &of_text),
            ("structured_outputs", json!({ "json_object": true }), &Grammar::JsonObject),
            ("grammar", json!(gbnf), &of_text),
            ("json_schema", schema, &of_schema),
            ("regex", json!("a+"), &regex),
            ("ebnf", json!(gbnf), &of_text),
        ] {
            assert_eq!(held(json!({ name: value })), Ok(Some((expect.clone(), name))), "{name}");
        }
        assert_eq!(held(json!({ "grammar": "", "regex": null })), Ok(None));
    }

    #[test]
    fn what_is_compiled_is_counted_wherever_it_is_said() {
        let bytes = |fields: Value| {
            serde_json::from_value::<StructuredOutputFields>(fields).unwrap().compiled_bytes()
        };
        let schema = json!({ "prefixItems": vec![json!({ "type": "object" }); 1000] });
        for fields in [
            json!({ "json_schema": schema }),
            json!({ "guided_json": schema.to_string() }),
            json!({ "structured_outputs": { "json": schema } }),
            json!({ "response_format": { "type": "json_object", "schema": schema } }),
            json!({ "response_format": { "type": "json_schema", "json_schema": { "schema": schema } } }),
            json!({ "regex": "a".repeat(32_000) }),
            json!({ "guided_choice": ["a".repeat(32_000)] }),
        ] {
            assert!((2 << 20..8 << 20).contains(&bytes(fields.clone())), "{fields:.40}");
        }
        assert!(bytes(json!({ "regex": "a+", "json_schema": { "const": 1 } })) < 10_000);
    }

    #[test]
    fn a_form_is_said_once() {
        let both = json!({ "response_format": { "type": "json_object" }, "regex": "a" });
        let error = held(both).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("regex"));
        assert!(error.message.contains("beside response_format"), "{error:?}");
        assert_eq!(
            held(json!({ "response_format": { "type": "text" }, "regex": "a" }))
                .unwrap()
                .unwrap()
                .1,
            "regex"
        );
        for wrong in
            [json!({}), json!({ "regex": "a", "grammar": "b" }), json!({ "structural_tag": {} })]
        {
            let error = held(json!({ "structured_outputs": wrong })).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("structured_outputs"));
        }
    }
}
