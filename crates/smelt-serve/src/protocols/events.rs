//! Writes server-sent events that have names, as newer protocols have them.

use serde::Serialize;

use crate::answer::json;

#[derive(Serialize)]
struct Event<'a, T> {
    r#type: &'a str,
    #[serde(flatten)]
    tells: &'a T,
}

/// Writes the event `name`, which is its type as well, behind `out`.  JSON of one line is one line of data.
pub(crate) fn put(out: &mut Vec<u8>, name: &str, tells: &impl Serialize) {
    let data = json(&Event { r#type: name, tells });
    out.extend_from_slice(format!("event: {name}\ndata: {data}\n\n").as_bytes());
}

/// The names and data of a stream, for tests.
#[cfg(test)]
pub(crate) fn read(stream: &[u8]) -> Vec<(String, serde_json::Value)> {
    let text = std::str::from_utf8(stream).unwrap();
    let events = text.split("\n\n").filter_map(|event| event.strip_prefix("event: "));
    let parts = events.map(|event| event.split_once("\ndata: ").unwrap());
    parts.map(|(name, data)| (name.to_owned(), serde_json::from_str(data).unwrap())).collect()
}
