//! Says whether a schema may refer to itself.
//!
//! Places that refer to each other in a circle make of alternatives that begin alike ever more ways to read an answer.
//! Knows nothing of what is done about it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Words that refer to another place; the last two to one that is not known before an answer.
const REFERRING: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];

/// The most values that are looked at, a place as often as something refers to it by another name.
const LOOKED_AT_MAX: usize = 1_000_000;

/// Whether places of `schema` refer to each other in a circle, or in ways that are not looked through.
pub(super) fn is_recursive(schema: &Value) -> bool {
    let mut left = LOOKED_AT_MAX;
    let mut leads = BTreeMap::<&str, BTreeSet<&str>>::new();
    let mut open: Vec<&str> = references(schema, &mut left).into_iter().collect();
    while let Some(place) = open.pop() {
        if leads.contains_key(place) {
            continue;
        }
        let Some(found) = place.strip_prefix('#').and_then(|place| schema.pointer(place)) else {
            return true;
        };
        let inner = references(found, &mut left);
        open.extend(&inner);
        leads.insert(place, inner);
    }
    left == 0 || has_circle(&leads)
}

/// What the values of a place refer to.
fn references<'a>(value: &'a Value, left: &mut usize) -> BTreeSet<&'a str> {
    let (mut found, mut open) = (BTreeSet::new(), vec![value]);
    while let Some(value) = open.pop() {
        *left = left.saturating_sub(1);
        if *left == 0 {
            break;
        }
        match value {
            Value::Object(fields) => {
                let words = REFERRING.iter().filter_map(|word| fields.get(*word)?.as_str());
                found.extend(words);
                open.extend(fields.values());
            }
            Value::Array(all) => open.extend(all),
            _ => {}
        }
    }
    found
}

/// Whether going on from place to place may never end: what nothing leads to is taken away until nothing is left.
fn has_circle(leads: &BTreeMap<&str, BTreeSet<&str>>) -> bool {
    let mut led_to = BTreeMap::<&str, usize>::new();
    for place in leads.values().flatten().copied() {
        *led_to.entry(place).or_default() += 1;
    }
    let is_free = |place: &&str| !led_to.contains_key(place);
    let mut free: Vec<&str> = leads.keys().copied().filter(is_free).collect();
    let mut taken = 0;
    while let Some(place) = free.pop() {
        taken += 1;
        for next in &leads[place] {
            let Some(count) = led_to.get_mut(next) else { continue };
            *count -= 1;
            if *count == 0 {
                free.push(next);
            }
        }
    }
    taken < leads.len()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn circles_are_found() {
        let to = |place: &str| json!({ "$ref": place });
        assert!(is_recursive(&json!({ "items": to("#") })));
        assert!(is_recursive(
            &json!({ "$defs": { "a": { "items": to("#/$defs/a") } }, "anyOf": [to("#/$defs/a")] })
        ));
        let both =
            json!({ "a": { "items": to("#/$defs/b") }, "b": { "anyOf": [to("#/$defs/a")] } });
        assert!(is_recursive(&json!({ "$defs": both, "$ref": "#/$defs/a" })));
        // A part of a place leads to the place.
        let part = json!({ "a": { "properties": { "b": { "items": to("#/$defs/a") } } } });
        assert!(is_recursive(&json!({ "$defs": part, "$ref": "#/$defs/a/properties/b" })));
        for other in ["other.json", "#name", "#/nowhere"] {
            assert!(is_recursive(&to(other)), "{other} is not looked through");
        }
        assert!(is_recursive(&json!({ "$recursiveRef": "#" })));
    }

    #[test]
    fn what_ends_is_no_circle() {
        let to = |place: &str| json!({ "$ref": place });
        assert!(!is_recursive(&json!({ "properties": { "$ref": { "type": "string" } } })));
        let defs = json!({
            "a": { "properties": { "b": to("#/$defs/b"), "c": to("#/$defs/c") } },
            "b": { "items": to("#/$defs/c") },
            "c": { "type": "string" },
        });
        assert!(!is_recursive(
            &json!({ "$defs": defs, "anyOf": [to("#/$defs/a"), to("#/$defs/b")] })
        ));
        let chain: Value = (0..6000)
            .map(|n| (format!("d{n}"), to(&format!("#/$defs/d{}", n + 1))))
            .chain([("d6000".to_owned(), json!({}))])
            .collect();
        assert!(!is_recursive(&json!({ "$defs": chain, "$ref": "#/$defs/d0" })));
    }

    #[test]
    fn what_takes_long_to_look_through_counts_as_a_circle() {
        let deep = (0..100).fold(json!(vec![0; 20_000]), |inner, _| json!({ "a": inner }));
        let all: Vec<Value> =
            (0..100).map(|n| json!({ "$ref": format!("#/b{}", "/a".repeat(n)) })).collect();
        assert!(is_recursive(&json!({ "b": deep, "c": all })));
    }
}
