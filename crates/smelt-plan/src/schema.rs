//! Describes the pipeline file as a JSON Schema (draft 2020-12), so that editors complete and check it.
//!
//! Made from the table of kinds that the parser reads by, so the two cannot drift.  A schema sees
//! one value at a time: that a stage's name is one in the file, or which fields go together, only
//! the parser knows.

use serde_json::{Map, Value, json};

use crate::device::FACTS;
use crate::kind::{Absent, Field, Kind, STRICT, Takes};
use crate::pipeline::{ATTEMPTS_MAX, FORMAT, ON, SHARE, SURVIVES_KILLS, WHERE};
use crate::side::Side;
use crate::tokens::DEVICES_MAX;

/// A text that holds `${name}` may become anything.
const PARAM: &str = "\\$\\{[^}]*\\}";
/// As [`crate::name::StageName`] has it.
const STAGE_NAME: &str = "^[a-z0-9][a-z0-9-]*$";
/// The same, or one of its variants.
const VARIANT_NAME: &str = "^[a-z0-9][a-z0-9-]*(\\.[a-z0-9][a-z0-9-]*)*$";

/// The schema.
pub fn schema() -> Value {
    let kinds: Vec<Value> = Kind::ALL.into_iter().map(stage).collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "smelt pipeline",
        "type": "object",
        "required": ["smelt", "name", "stage"],
        "additionalProperties": false,
        "properties": {
            "smelt": { "const": FORMAT, "description": "format of this file" },
            "name": { "type": "string" },
            "params": {
                "type": "object",
                "description": "values that ${name} stands for and --set overrides",
                "additionalProperties": { "type": ["string", "number", "boolean"] },
            },
            STRICT: {
                "type": "boolean",
                "description": "programs of stages that do not say otherwise see nothing but what they declare",
            },
            "resources": {
                "type": "object",
                "description": "how much there is of what stages share: a number of devices, their ids, or a size",
                "additionalProperties": {
                    "anyOf": [
                        { "type": "integer", "minimum": 1, "maximum": DEVICES_MAX },
                        { "type": "string" },
                        { "type": "array", "minItems": 1, "items": { "type": "string" } },
                    ],
                },
            },
            "stage": {
                "type": "object",
                "minProperties": 1,
                "propertyNames": { "pattern": STAGE_NAME },
                "additionalProperties": {
                    "type": "object",
                    "required": ["kind"],
                    "properties": { "kind": { "enum": Kind::ALL.map(Kind::name) } },
                    "oneOf": kinds,
                },
            },
        },
        "$defs": { "limits": limits() },
    })
}

/// A stage of one kind.
fn stage(kind: Kind) -> Value {
    let fields = kind.fields();
    let mut properties: Map<String, Value> =
        fields.iter().map(|field| (field.name.to_owned(), of_field(field))).collect();
    properties.insert("kind".to_owned(), json!({ "const": kind.name() }));
    properties.insert("limits".to_owned(), json!({ "$ref": "#/$defs/limits" }));
    properties.insert("retry".to_owned(), retry(fields));
    properties.insert("matrix".to_owned(), matrix());
    properties.insert("device".to_owned(), device());
    properties.insert("resources".to_owned(), resources());
    properties.insert(ON.to_owned(), on());
    properties.insert(WHERE.to_owned(), machine());
    properties.insert(SURVIVES_KILLS.to_owned(), survives_kills());
    properties.insert(SHARE.to_owned(), share());
    let needed = fields.iter().filter(|field| field.absent == Absent::Refused);
    let required: Vec<&str> = needed.map(|field| field.name).collect();
    json!({
        "properties": properties,
        // What a matrix gives need not stand in the stage itself.
        "anyOf": [{ "required": required }, { "required": ["matrix"] }],
        "additionalProperties": false,
    })
}

fn matrix() -> Value {
    json!({
        "type": "object",
        "minProperties": 1,
        "description": "variants of the stage, and of all that need it",
        "additionalProperties": {
            "anyOf": [
                {
                    "type": "array",
                    "minItems": 1,
                    "items": { "type": ["string", "integer", "boolean"] },
                    "description": "values of the field of this name",
                },
                {
                    "type": "object",
                    "minProperties": 1,
                    "additionalProperties": { "type": "object" },
                    "description": "named variants, and the keys each replaces",
                },
            ],
        },
    })
}

fn device() -> Value {
    json!({
        "type": "array",
        "items": { "enum": FACTS },
        "description": "facts about the device that the result depends on",
    })
}

fn on() -> Value {
    json!({ "enum": Side::WORDS, "description": "which side builds it: smelt run --on" })
}

fn machine() -> Value {
    let fact = json!({ "type": "string" });
    let facts: Map<String, Value> =
        FACTS.iter().map(|name| ((*name).to_owned(), fact.clone())).collect();
    json!({
        "type": "object",
        "properties": facts,
        "additionalProperties": false,
        "description": "what must be true of the machine that builds it: where this one is another, a worker of the fleet does",
    })
}

fn survives_kills() -> Value {
    json!({
        "type": "boolean",
        "description": "what it makes is kept although the kernel killed a process of it for want of memory: it minds its children itself",
    })
}

fn share() -> Value {
    json!({
        "type": "boolean",
        "description": "whether its result is shared with a fleet: usual for all but a command whose program is not in its key",
    })
}

fn resources() -> Value {
    json!({
        "type": "object",
        "description": "how much it takes of what stages share, while it runs",
        "additionalProperties": {
            "anyOf": [{ "type": "integer", "minimum": 1 }, { "type": "string" }],
        },
    })
}

fn limits() -> Value {
    json!({
        "type": "object",
        "description": "caps on one attempt",
        "additionalProperties": false,
        "properties": {
            "memory": { "type": "string", "description": "of all its processes, as in \"3GiB\"" },
            "timeout": { "type": "string", "description": "wall time, as in \"30m\"" },
        },
    })
}

/// What an attempt may change are the fields that are no edges, and limits.
fn retry(fields: &[Field]) -> Value {
    let own = fields.iter().filter(|field| !field.takes.is_edge());
    let mut step: Map<String, Value> =
        own.map(|field| (field.name.to_owned(), of_field(field))).collect();
    step.insert("limits".to_owned(), json!({ "$ref": "#/$defs/limits" }));
    json!({
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "attempts": { "type": "integer", "minimum": 1, "maximum": ATTEMPTS_MAX },
            "settle": {
                "type": "string",
                "description": "before a retry, wait so long at most until memory is available again, as in \"60s\"",
            },
            "drop-caches": {
                "type": "boolean",
                "description": "before a retry, drop the page cache and compact memory (root, the whole machine)",
            },
            "temporary-swap": temporary_swap(),
            "warm-up": {
                "type": "string",
                "pattern": format!("#|^none$|{PARAM}"),
                "description": "before the first retry, build this stage of another pipeline: PIPELINE#STAGE, or none",
            },
            "reboot": {
                "type": "boolean",
                "description": "before the last attempt, reboot the board and go on afterwards",
            },
            "escalate": {
                "type": "array",
                "maxItems": ATTEMPTS_MAX - 1,
                "description": "what changes on attempt 2, 3, …",
                "items": {
                    "type": "object", "additionalProperties": false, "properties": step,
                },
            },
        },
    })
}

fn temporary_swap() -> Value {
    let size = json!({ "type": "string", "description": "a size, as in \"4GiB\"" });
    json!({
        "description": "while a retry runs, have a swap file on a disk (root)",
        "anyOf": [
            { "type": "boolean" },
            size,
            {
                "type": "object",
                "additionalProperties": false,
                "properties": {
                    "size": size,
                    "dir": { "type": "string", "description": "where the file lies, instead of in the store" },
                },
            },
        ],
    })
}

fn of_field(field: &Field) -> Value {
    let mut value = of_value(field.takes);
    match field.absent {
        Absent::Word(word) => value["default"] = json!(word),
        Absent::Number(number) => value["default"] = json!(number),
        Absent::Refused | Absent::Nothing => {}
    }
    value
}

/// What the parser takes for a field; nearly everything may be written as a text with params.
fn of_value(takes: Takes) -> Value {
    let or_param =
        |value: Value| json!({ "anyOf": [value, { "type": "string", "pattern": PARAM }] });
    let texts = json!({ "type": "array", "minItems": 1, "items": { "type": "string" } });
    match takes {
        Takes::Stage(kinds) => {
            let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
            let mut value = or_param(json!({ "type": "string", "pattern": VARIANT_NAME }));
            value["description"] = json!(format!("a stage of kind {}", names.join(" or ")));
            value
        }
        Takes::Stages(kinds) => {
            let one = of_value(Takes::Stage(kinds));
            let what = one["description"].as_str().unwrap_or_default();
            let what = format!("{what}, or a list of such for several devices");
            let several = json!({ "type": "array", "minItems": 1, "items": one });
            json!({ "anyOf": [one, several], "description": what })
        }
        Takes::Source => or_param(json!({ "type": "string", "pattern": "^(hf|path|synthetic):." })),
        Takes::Path => or_param(json!({ "type": "string", "pattern": "^path:." })),
        Takes::Text => json!({ "type": "string" }),
        Takes::Choice(words) => or_param(json!({ "enum": words })),
        Takes::Count(min, max) => {
            or_param(json!({ "type": "integer", "minimum": min, "maximum": max }))
        }
        Takes::Flag => or_param(json!({ "enum": [true, false, "true", "false"] })),
        Takes::Bytes => {
            json!({ "type": "string", "description": "a size, as in \"200MiB\"" })
        }
        Takes::Texts => texts,
        Takes::Names => {
            let mut value = texts;
            value["description"] = json!(
                "files or directories inside the stage's working directory; nothing else is sealed, and they hold 32768 files at most"
            );
            value
        }
        Takes::Places => {
            let mut value = texts;
            value["description"] = json!(
                "files or directories outside of the stage's own that its program writes to; \"/\" is everywhere"
            );
            value
        }
        Takes::Words(words) => {
            let mut value = texts;
            value["items"] = or_param(json!({ "enum": words }));
            value["description"] = json!(
                "capabilities of root's that its program needs besides those that builds use (man 7 capabilities)"
            );
            value
        }
        Takes::Inputs => json!({
            "type": "array",
            "items": { "type": "string" },
            "description": "names of stages, and path:… texts",
        }),
        Takes::TextTable => json!({
            "type": "object",
            "additionalProperties": { "type": "string" },
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::{COMMON_KEYS, RETRY_KEYS, ROOT_KEYS};

    #[track_caller]
    fn check<'a>(properties: &Value, keys: impl Iterator<Item = &'a str>) {
        let mut expect: Vec<&str> = keys.collect();
        expect.sort_unstable();
        let mut found: Vec<&str> =
            properties.as_object().unwrap().keys().map(String::as_str).collect();
        found.sort_unstable();
        assert_eq!(found, expect);
    }

    #[test]
    fn it_has_the_keys_that_the_parser_knows() {
        let schema = schema();
        check(&schema["properties"], ROOT_KEYS.iter().copied());
        let stages = &schema["properties"]["stage"]["additionalProperties"]["oneOf"];
        for (kind, stage) in Kind::ALL.into_iter().zip(stages.as_array().unwrap()) {
            let own = kind.fields().iter().map(|field| field.name);
            check(&stage["properties"], own.chain(COMMON_KEYS.iter().copied()));
            let retry = &stage["properties"]["retry"]["properties"];
            check(retry, RETRY_KEYS.iter().copied());
        }
    }
}
