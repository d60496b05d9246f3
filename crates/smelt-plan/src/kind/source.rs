//! `source`: a checkpoint of a hub, a directory given by path, or a synthetic one.

use serde_json::Value;

use super::definition::{Absent, Definition, Field, Takes, TensorsHandled, Values, field};

const FIELDS: &[Field] = &[field("from", Takes::Source, Absent::Refused)];

/// Version 2: code that configurations name is fetched.
pub(super) const KIND: Definition =
    Definition { tensors: |_| TensorsHandled::Brings, ..Definition::new("source", 2, FIELDS) };

/// The synthetic model that the stage makes, where its checkpoint is none that exists.
pub fn synthetic(params: &Values) -> Option<&str> {
    params.get("from").and_then(Value::as_str)?.strip_prefix("synthetic:")
}
