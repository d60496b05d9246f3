//! Says what differs between two keys: the same walk that is hashed, compared part by part.
//!
//! Pure; where the earlier walk comes from is for the caller to know.

use std::collections::BTreeMap;

use crate::digest::Digest;
use crate::key::Field;

/// A longer value is kept and shown as its digest: what changed is found all the same.
pub const VALUE_BYTES_MAX: usize = 2048;

/// One part that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The part's name, as in `param scheme`, `device gpu` or `input checkpoint`.
    pub name: String,
    /// Its value then; `None` where there was none.
    pub before: Option<String>,
    /// Its value now; `None` where there is none.
    pub now: Option<String>,
}

/// A value short enough to be kept for every stage.
pub fn bounded(value: &str) -> String {
    if value.len() <= VALUE_BYTES_MAX {
        return value.to_owned();
    }
    format!("{} bytes, sha256 {}", value.len(), Digest::of(value.as_bytes()).short())
}

/// What differs, in the order of the walk; parts that are gone come last.
pub fn differences(before: &[Field], now: &[Field]) -> Vec<Difference> {
    let then: BTreeMap<&str, &str> = before.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    let names: BTreeMap<&str, ()> = now.iter().map(|(name, _)| (name.as_str(), ())).collect();
    let changed = now.iter().filter_map(|(name, value)| {
        let value = bounded(value);
        let before = then.get(name.as_str()).map(|before| bounded(before));
        let differs = before.as_ref() != Some(&value);
        differs.then(|| Difference { name: name.clone(), before, now: Some(value) })
    });
    let gone = before.iter().filter(|(name, _)| !names.contains_key(name.as_str()));
    let gone = gone.map(|(name, value)| Difference {
        name: name.clone(),
        before: Some(bounded(value)),
        now: None,
    });
    changed.chain(gone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Vec<Field> {
        let pair = |line: &str| line.split_once('=').map(|(n, v)| (n.to_owned(), v.to_owned()));
        text.split_whitespace().filter_map(pair).collect()
    }

    #[track_caller]
    fn check(before: &str, now: &str, expect: &[(&str, Option<&str>, Option<&str>)]) {
        let found = differences(&fields(before), &fields(now));
        let found: Vec<_> = found
            .iter()
            .map(|d| (d.name.as_str(), d.before.as_deref(), d.now.as_deref()))
            .collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn only_what_differs_is_said() {
        check("a=1 b=2", "a=1 b=2", &[]);
        check("a=1 b=2", "a=1 b=3", &[("b", Some("2"), Some("3"))]);
        check("a=1", "a=1 b=3", &[("b", None, Some("3"))]);
        check("a=1 b=2", "b=2", &[("a", Some("1"), None)]);
    }

    #[test]
    fn long_values_are_told_apart_by_their_digest() {
        let [x, y] = ["x", "y"].map(|end| format!("{}{end}", "a".repeat(VALUE_BYTES_MAX)));
        let of = |value: &str| vec![("p".to_owned(), value.to_owned())];
        assert_eq!(differences(&of(&x), &of(&bounded(&x))), []);
        assert_eq!(differences(&of(&x), &of(&y)).len(), 1);
    }
}
