//! Writes spans as OTLP has them in JSON.
//!
//! Names are written in hexadecimal digits and 64-bit numbers as texts, as the specification says.

use serde::Serialize;

/// Most bytes of a text in a span or a resource.
const TEXT_BYTES_MAX: usize = 256;

/// A span of the kind that answers somebody else.
pub(super) const KIND_SERVER: u8 = 2;

/// A span within another.
pub(super) const KIND_INTERNAL: u8 = 1;

/// The status of what went wrong.
const STATUS_ERROR: u8 = 2;

/// The flags of a span: sampled, and it is known whether the parent is of another process.
const FLAGS_WITHIN: u32 = 0x101;

/// The same, and it is.
const FLAGS_BENEATH: u32 = 0x301;

/// What a span says of itself.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Attribute {
    key: String,
    value: Value,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
enum Value {
    #[serde(rename = "stringValue")]
    Text(String),
    #[serde(rename = "intValue")]
    Number(String),
    #[serde(rename = "arrayValue")]
    List { values: Vec<Value> },
}

impl Attribute {
    /// A text, cut where it is long.
    pub(super) fn text(key: impl Into<String>, text: &str) -> Self {
        let mut end = text.len().min(TEXT_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        Self { key: key.into(), value: Value::Text(text[..end].to_owned()) }
    }

    /// A number.
    pub(super) fn number(key: &str, number: usize) -> Self {
        Self { key: key.to_owned(), value: Value::Number(number.to_string()) }
    }

    /// Words.
    pub(super) fn words(key: &str, words: &[&str]) -> Self {
        let values = words.iter().map(|word| Value::Text((*word).to_owned())).collect();
        Self { key: key.to_owned(), value: Value::List { values } }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Status {
    code: u8,
}

/// A span as it is sent.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Span {
    pub(super) trace_id: String,
    pub(super) span_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) parent_span_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) trace_state: String,
    pub(super) flags: u32,
    pub(super) name: String,
    pub(super) kind: u8,
    pub(super) start_time_unix_nano: String,
    pub(super) end_time_unix_nano: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) attributes: Vec<Attribute>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) status: Option<Status>,
}

impl Span {
    /// A span with its names alone; a request's parent is of another process.
    pub(super) fn named(trace: u128, span: u64, parent: Option<u64>, state: &str) -> Self {
        Self {
            trace_id: format!("{trace:032x}"),
            span_id: format!("{span:016x}"),
            parent_span_id: parent.map(|parent| format!("{parent:016x}")).unwrap_or_default(),
            trace_state: state.to_owned(),
            flags: FLAGS_WITHIN,
            ..Self::default()
        }
    }

    /// The same, asked for by another process.
    pub(super) fn asked_from_afar(self) -> Self {
        Self { flags: FLAGS_BENEATH, ..self }
    }

    /// The same, where something went wrong.
    pub(super) fn failed(self) -> Self {
        Self { status: Some(Status { code: STATUS_ERROR }), ..self }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Export<'a> {
    resource_spans: [ResourceSpans<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceSpans<'a> {
    resource: Resource<'a>,
    scope_spans: [ScopeSpans<'a>; 1],
}

#[derive(Serialize)]
struct Resource<'a> {
    attributes: &'a [Attribute],
}

#[derive(Serialize)]
struct ScopeSpans<'a> {
    scope: Scope,
    spans: &'a [Span],
}

#[derive(Serialize)]
struct Scope {
    name: &'static str,
    version: &'static str,
}

/// The request that tells a collector of `spans` of `resource`.
pub(super) fn export(resource: &[Attribute], spans: &[Span]) -> Vec<u8> {
    let scope = Scope { name: "smelt", version: env!("CARGO_PKG_VERSION") };
    let resource = Resource { attributes: resource };
    let of_resource = ResourceSpans { resource, scope_spans: [ScopeSpans { scope, spans }] };
    let export = Export { resource_spans: [of_resource] };
    serde_json::to_vec(&export).expect("texts and numbers are JSON")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn spans_are_written_as_the_specification_says() {
        let mut span = Span::named(0xab, 0xcd, Some(0xef), "a=1").asked_from_afar().failed();
        (span.name, span.kind) = ("POST /v1".to_owned(), KIND_SERVER);
        (span.start_time_unix_nano, span.end_time_unix_nano) = ("1".to_owned(), "2".to_owned());
        span.attributes = vec![
            Attribute::text("t", &"é".repeat(200)),
            Attribute::number("n", 3),
            Attribute::words("w", &["stop"]),
        ];
        let resource = [Attribute::text("service.name", "smelt")];
        let json: Value = serde_json::from_slice(&export(&resource, &[span])).unwrap();
        let of_resource = &json["resourceSpans"][0];
        assert_eq!(of_resource["resource"]["attributes"][0]["value"]["stringValue"], "smelt");
        assert_eq!(of_resource["scopeSpans"][0]["scope"]["name"], "smelt");
        let text = "é".repeat(128);
        let expect = json!({
            "traceId": "000000000000000000000000000000ab", "spanId": "00000000000000cd",
            "parentSpanId": "00000000000000ef", "traceState": "a=1", "flags": 0x301,
            "name": "POST /v1", "kind": 2, "startTimeUnixNano": "1", "endTimeUnixNano": "2",
            "attributes": [
                { "key": "t", "value": { "stringValue": text } },
                { "key": "n", "value": { "intValue": "3" } },
                { "key": "w", "value": { "arrayValue": { "values": [{ "stringValue": "stop" }] } } },
            ],
            "status": { "code": 2 },
        });
        assert_eq!(of_resource["scopeSpans"][0]["spans"], json!([expect]));
    }
}
