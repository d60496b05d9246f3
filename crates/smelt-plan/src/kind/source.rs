//! `source`: a checkpoint of a hub, a directory given by path, or a synthetic one.

use super::definition::{Absent, Definition, Field, Takes, field};

const FIELDS: &[Field] = &[field("from", Takes::Source, Absent::Refused)];

/// Version 2: code that configurations name is fetched.
pub(super) const KIND: Definition = Definition::new("source", 2, FIELDS);
