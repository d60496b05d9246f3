//! `tune`: how engines are run best on this machine.

use super::BACKEND;
use super::definition::{Absent, Definition, Field, Takes, field};

/// What it finds depends on the machine alone.
const FIELDS: &[Field] = &[field(BACKEND, Takes::Choice(&["native"]), Absent::Word("native"))];

pub(super) const KIND: Definition =
    Definition { is_reproducible: Some(false), ..Definition::new("tune", 1, FIELDS) };
