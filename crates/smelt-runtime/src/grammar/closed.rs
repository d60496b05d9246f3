//! Closes objects of a schema that say nothing of further properties.
//!
//! JSON Schema lets such objects have any; clients that write schemas from types (Pydantic, Zod) mean the ones they
//! name, and a small model that may go on does.  Every object that is left is one of the schema's, so
//! only what is made changes, never what is right.  llama.cpp's and vLLM's grammars close them too.

use serde_json::{Map, Value};

/// Words by which a schema says that several others hold at once: what one names, another one would refuse.
const TOGETHER: [&str; 9] = [
    "allOf",
    "not",
    "if",
    "dependentSchemas",
    "dependencies",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
    "extends",
];

/// Words that say of the properties of an object what `properties` does not.
const OF_OBJECTS: [&str; 6] =
    ["additionalProperties", "patternProperties", "propertyNames", "anyOf", "oneOf", "$ref"];

/// The schema with its objects closed; as it was where several parts of it hold for one object.
pub(super) fn closed(mut schema: Value) -> Value {
    if !holds_together(&schema) {
        close(&mut schema);
    }
    schema
}

fn holds_together(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => {
            let is_beside =
                ["anyOf", "oneOf", "$ref"].iter().any(|word| fields.contains_key(*word))
                    && ["properties", "required"].iter().any(|word| fields.contains_key(*word));
            is_beside
                || TOGETHER.iter().any(|word| fields.contains_key(*word))
                || fields.values().any(holds_together)
        }
        Value::Array(all) => all.iter().any(holds_together),
        _ => false,
    }
}

/// Closes `schema` and what it is made of.
fn close(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    for word in ["properties", "$defs", "definitions"] {
        let inner = fields.get_mut(word).and_then(Value::as_object_mut);
        inner.into_iter().flat_map(Map::values_mut).for_each(close);
    }
    for word in ["anyOf", "oneOf", "prefixItems", "items"] {
        match fields.get_mut(word) {
            Some(Value::Array(all)) => all.iter_mut().for_each(close),
            Some(one) => close(one),
            None => {}
        }
    }
    if let Some(further) = fields.get_mut("additionalProperties") {
        close(further);
    }
    if names_all(fields) {
        fields.insert("additionalProperties".to_owned(), Value::Bool(false));
    }
}

/// Whether an object of the schema can be made of the properties that it names, of which there is one.
fn names_all(fields: &Map<String, Value>) -> bool {
    let Some(named) = fields.get("properties").and_then(Value::as_object) else { return false };
    let required = fields.get("required").and_then(Value::as_array).into_iter().flatten();
    let least = fields.get("minProperties").and_then(Value::as_u64).unwrap_or(0);
    !named.is_empty()
        && !OF_OBJECTS.iter().any(|word| fields.contains_key(*word))
        && required.filter_map(Value::as_str).all(|name| named.contains_key(name))
        && least <= named.len() as u64
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(schema: Value, expect: Value) {
        assert_eq!(closed(schema), expect);
    }

    /// Of schemas that are left as they are.
    #[track_caller]
    fn stays(schema: Value) {
        check(schema.clone(), schema);
    }

    #[test]
    fn objects_that_name_their_properties_have_no_others() {
        let inner = json!({ "type": "object", "properties": { "a": {} } });
        let shut =
            json!({ "type": "object", "properties": { "a": {} }, "additionalProperties": false });
        check(inner.clone(), shut.clone());
        check(json!({ "items": inner }), json!({ "items": shut }));
        check(
            json!({ "anyOf": [inner, { "type": "null" }] }),
            json!({ "anyOf": [shut, { "type": "null" }] }),
        );
        check(
            json!({ "$ref": "#/$defs/a", "$defs": { "a": inner } }),
            json!({ "$ref": "#/$defs/a", "$defs": { "a": shut } }),
        );
    }

    #[test]
    fn who_says_something_else_means_it() {
        stays(json!({ "properties": { "a": {} }, "additionalProperties": true }));
        stays(json!({ "properties": { "a": {} }, "additionalProperties": { "type": "string" } }));
        stays(json!({ "properties": { "a": {} }, "patternProperties": { "^x": {} } }));
        stays(json!({ "properties": {} }));
        stays(json!({ "type": "object" }));
        stays(json!(true));
    }

    #[test]
    fn nothing_becomes_impossible() {
        stays(json!({ "properties": { "a": {} }, "required": ["b"] }));
        stays(json!({ "properties": { "a": {} }, "minProperties": 2 }));
        let a = json!({ "properties": { "a": {} }, "required": ["a"] });
        let b = json!({ "properties": { "b": {} }, "required": ["b"] });
        stays(json!({ "allOf": [a, b] }));
        stays(json!({ "properties": { "a": {} }, "anyOf": [b, { "required": ["a"] }] }));
        stays(json!({ "$defs": { "a": a }, "$ref": "#/$defs/a", "properties": { "b": {} } }));
        stays(json!({ "items": { "properties": { "a": {} }, "if": a, "then": b } }));
    }
}
