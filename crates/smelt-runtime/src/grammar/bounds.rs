//! Refuses grammars that would take too long to compile or to follow.
//!
//! What can be told from their text alone; the rest is left to the compiler's fuel.  Knows nothing of vocabularies.

use std::borrow::Cow;

use serde_json::Value;

use super::recursion::is_recursive;
use super::{
    ALTERNATIVE_ITEMS, ALTERNATIVES_MAX, GRAMMAR_BYTES_MAX, Grammar, GrammarError, MASK_ROWS,
    MULTIPLES_MAX, OPTIONAL_MAX, PROPERTIES_MAX, PROPERTY_ITEMS, RECURSIVE_ROW_ITEMS_MAX,
    ROW_ITEMS, ROW_ITEMS_MAX, RULES_MAX, TEXT_ROW_ITEMS_MAX,
};

/// The work that an answer may take, in items of the parser: never in time, or answers would differ with the company.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Work {
    /// Items at one place of the answer.
    pub(super) row_items: usize,
    /// Items made for the mask of one token.
    pub(super) mask_items: usize,
}

/// What an answer held to `grammar` may take, if that is within bounds.
///
/// # Errors
/// [`GrammarError`] naming the bound.
pub(super) fn work(grammar: &Grammar) -> Result<Work, GrammarError> {
    let bytes = grammar.bytes();
    if bytes > GRAMMAR_BYTES_MAX {
        return Err(GrammarError::TooLong(bytes));
    }
    let parts = parts(grammar);
    let properties = parts.count(properties);
    check(grammar, &parts, properties)?;
    Ok(allowed(grammar, &parts, properties))
}

/// What an answer may take: more where a schema is wide, which is no ambiguity.
fn allowed(grammar: &Grammar, parts: &Parts<'_>, properties: usize) -> Work {
    let own = match grammar {
        Grammar::Calls(_) => parts.schemas.len(),
        _ => 0,
    };
    let more = match own + parts.count(alternatives) {
        // Wide and ambiguous at once would cost too much.
        many if many > ALTERNATIVES_MAX => ALTERNATIVES_MAX * ALTERNATIVE_ITEMS,
        few => few * ALTERNATIVE_ITEMS + properties * PROPERTY_ITEMS,
    };
    let most = match grammar {
        Grammar::Lark(_) => TEXT_ROW_ITEMS_MAX,
        _ if parts.schemas.iter().any(|schema| is_recursive(schema)) => RECURSIVE_ROW_ITEMS_MAX,
        _ => ROW_ITEMS_MAX,
    };
    let row_items = (ROW_ITEMS + more).min(most);
    Work { row_items, mask_items: row_items * MASK_ROWS }
}

/// Checks that the parts of `grammar`, which names so many properties, are within bounds.
///
/// # Errors
/// [`GrammarError`] naming the bound.
fn check(grammar: &Grammar, parts: &Parts<'_>, properties: usize) -> Result<(), GrammarError> {
    let texts = &parts.texts;
    let rules = match grammar {
        Grammar::Gbnf(text) => text.matches("::=").count(),
        Grammar::Lark(_) | Grammar::Calls(_) => {
            texts.iter().flat_map(|text| text.lines()).filter(|line| line.contains(':')).count()
        }
        Grammar::JsonObject | Grammar::JsonSchema(_) | Grammar::Regex(_) | Grammar::Choice(_) => 0,
    };
    if rules > RULES_MAX {
        return Err(GrammarError::Rules(rules));
    }
    let in_texts: usize = texts.iter().map(|text| in_text(text)).sum();
    let optional = in_texts + parts.count(in_patterns);
    if optional > OPTIONAL_MAX {
        return Err(GrammarError::Optional(optional));
    }
    if properties > PROPERTIES_MAX {
        return Err(GrammarError::Properties(properties));
    }
    let multiples =
        parts.schemas.iter().map(|schema| multiples(schema)).fold(0, u64::saturating_add);
    if multiples > MULTIPLES_MAX { Err(GrammarError::Multiples) } else { Ok(()) }
}

/// What a grammar is made of.
#[derive(Default)]
struct Parts<'a> {
    texts: Vec<&'a str>,
    schemas: Vec<Cow<'a, Value>>,
}

impl Parts<'_> {
    /// What there is of something in all schemas.
    fn count(&self, of: impl Fn(&Value) -> usize) -> usize {
        self.schemas.iter().map(|schema| of(schema)).sum()
    }
}

fn parts(grammar: &Grammar) -> Parts<'_> {
    match grammar {
        Grammar::JsonObject | Grammar::Choice(_) => Parts::default(),
        Grammar::JsonSchema(schema) => {
            Parts { schemas: vec![Cow::Borrowed(schema)], ..Parts::default() }
        }
        Grammar::Regex(text) | Grammar::Gbnf(text) => Parts { texts: vec![text], schemas: vec![] },
        Grammar::Lark(text) | Grammar::Calls(text) => of_lark(text),
    }
}

/// In Lark, schemas stand behind `%json`.
fn of_lark(text: &str) -> Parts<'_> {
    let mut pieces = text.split("%json");
    let mut parts = Parts { texts: pieces.next().into_iter().collect(), schemas: Vec::new() };
    for piece in pieces {
        let mut values = serde_json::Deserializer::from_str(piece).into_iter::<Value>();
        match values.next() {
            Some(Ok(schema @ Value::Object(_))) => {
                parts.schemas.push(Cow::Owned(schema));
                parts.texts.push(&piece[values.byte_offset()..]);
            }
            _ => parts.texts.push(piece),
        }
    }
    parts
}

/// What may be left out in the regular expressions of a grammar.
fn in_text(text: &str) -> usize {
    let marks = ["?", "*", "{0", "{,"];
    marks.iter().map(|mark| text.matches(mark).count()).sum()
}

/// What may be left out in the patterns of a schema; what its descriptions say does not matter.
fn in_patterns(schema: &Value) -> usize {
    match schema {
        Value::Object(fields) => {
            let own = fields.get("pattern").and_then(Value::as_str).map_or(0, in_text);
            let names = fields.get("patternProperties").and_then(Value::as_object);
            let names = names.into_iter().flat_map(|all| all.keys());
            let names: usize = names.map(|name| in_text(name)).sum();
            own + names + fields.values().map(in_patterns).sum::<usize>()
        }
        Value::Array(parts) => parts.iter().map(in_patterns).sum(),
        _ => 0,
    }
}

/// The properties that a schema names.
fn properties(schema: &Value) -> usize {
    match schema {
        Value::Object(fields) => {
            let own =
                fields.get("properties").and_then(Value::as_object).map_or(0, |all| all.len());
            own + fields.values().map(properties).sum::<usize>()
        }
        Value::Array(parts) => parts.iter().map(properties).sum(),
        _ => 0,
    }
}

/// The alternatives of which a schema leaves the choice.
fn alternatives(schema: &Value) -> usize {
    match schema {
        Value::Object(fields) => {
            let lists = ["anyOf", "oneOf"].map(|word| fields.get(word).and_then(Value::as_array));
            let own: usize = lists.into_iter().flatten().map(Vec::len).sum();
            own + fields.values().map(alternatives).sum::<usize>()
        }
        Value::Array(parts) => parts.iter().map(alternatives).sum(),
        _ => 0,
    }
}

/// The sum of what numbers must be multiples of, without decimal points.
fn multiples(schema: &Value) -> u64 {
    let all = |values: &mut dyn Iterator<Item = &Value>| {
        values.map(multiples).fold(0, u64::saturating_add)
    };
    match schema {
        Value::Object(fields) => {
            let own = fields.get("multipleOf").filter(|value| value.is_number());
            let own = own.map_or(0, |number| digits(&number.to_string()));
            own.saturating_add(all(&mut fields.values()))
        }
        Value::Array(parts) => all(&mut parts.iter()),
        _ => 0,
    }
}

/// A number as JSON writes it, times the power of ten that makes it whole.
fn digits(number: &str) -> u64 {
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let mantissa = mantissa.strip_suffix(".0").unwrap_or(mantissa);
    let whole: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    let power = exponent.parse::<i32>().unwrap_or(i32::MAX).max(0).unsigned_abs();
    let whole = whole.parse().unwrap_or(u64::MAX);
    whole.saturating_mul(10_u64.saturating_pow(power))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(grammar: &Grammar) -> Result<(), GrammarError> {
        work(grammar).map(|_| ())
    }

    #[track_caller]
    fn counted(grammar: Grammar, expect: Option<usize>) {
        let found = match check(&grammar) {
            Ok(()) => None,
            Err(GrammarError::Optional(count)) => Some(count),
            Err(error) => panic!("{error}"),
        };
        assert_eq!(found, expect, "{grammar:?}");
    }

    #[test]
    fn a_schema_that_refers_to_itself_may_take_less() {
        let of = |alternatives: Vec<Value>| {
            let schema =
                json!({ "$defs": { "a": { "anyOf": alternatives } }, "$ref": "#/$defs/a" });
            work(&Grammar::JsonSchema(schema)).unwrap().row_items
        };
        let list = |items: Value| json!({ "type": "array", "items": items });
        let (own, other) = (json!({ "$ref": "#/$defs/a" }), json!({ "type": "string" }));
        let wide = ROW_ITEMS + ALTERNATIVES_MAX * ALTERNATIVE_ITEMS;
        assert_eq!(of(vec![list(other); 300]), wide);
        assert_eq!(of(vec![list(own.clone()); 300]), RECURSIVE_ROW_ITEMS_MAX);
        assert_eq!(of(vec![list(own); 10]), ROW_ITEMS + 10 * ALTERNATIVE_ITEMS);
    }

    #[test]
    fn what_may_be_left_out_is_counted_where_it_is_a_pattern() {
        counted(Grammar::Regex("a?".repeat(2000)), None);
        counted(Grammar::Regex("a?".repeat(2001)), Some(2001));
        counted(Grammar::Gbnf("a{0,1}".repeat(2001)), Some(2001));
        let marks = "?".repeat(3000);
        let schema = json!({ "description": marks, "enum": [marks] });
        counted(Grammar::JsonSchema(schema.clone()), None);
        counted(Grammar::Lark(format!("start: \"a\" %json {schema} \"?\"")), None);
        let schema = json!({ "items": [{ "pattern": marks }] });
        counted(Grammar::JsonSchema(schema.clone()), Some(3000));
        counted(Grammar::Lark(format!("start: %json {schema} \"?\"")), Some(3001));
        counted(Grammar::JsonSchema(json!({ "patternProperties": { marks: {} } })), Some(3000));
    }

    #[test]
    fn rules_are_counted() {
        let gbnf = |count| Grammar::Gbnf("a ::= \"b\"\n".repeat(count));
        assert_eq!(check(&gbnf(1000)), Ok(()));
        assert_eq!(check(&gbnf(1001)), Err(GrammarError::Rules(1001)));
        let lark = |count| Grammar::Lark("a: %json {\"a\": 1}\n  | b\n".repeat(count));
        assert_eq!(check(&lark(1000)), Ok(()));
        assert_eq!(check(&lark(1001)), Err(GrammarError::Rules(1001)));
    }

    #[test]
    fn properties_are_counted_wherever_they_are() {
        let all =
            |count: usize| -> Value { (0..count).map(|n| (n.to_string(), json!({}))).collect() };
        let of = |count| json!({ "properties": all(count), "enum": ["properties"] });
        assert_eq!(check(&Grammar::JsonSchema(json!({ "items": of(4000) }))), Ok(()));
        let over = json!({ "items": [of(4000), of(1)] });
        assert_eq!(check(&Grammar::JsonSchema(over)), Err(GrammarError::Properties(4001)));
    }

    #[test]
    fn wide_schemas_may_take_more_work_than_texts() {
        let rows = |grammar: Grammar| work(&grammar).unwrap().row_items;
        let all =
            |count: usize| -> Value { (0..count).map(|n| (n.to_string(), json!({}))).collect() };
        let wide = |count| json!({ "properties": all(count) });
        let many = |count| json!({ "anyOf": vec![json!({}); count] });
        assert_eq!(rows(Grammar::Gbnf("root ::= root root | \"a\"".to_owned())), 300);
        assert_eq!(rows(Grammar::JsonObject), 300);
        assert_eq!(rows(Grammar::JsonSchema(wide(300))), 1500);
        assert_eq!(rows(Grammar::JsonSchema(wide(3000))), 2000);
        assert_eq!(rows(Grammar::JsonSchema(many(100))), 1000);
        // What cannot be told apart gets no more by what else is there.
        let both = json!({ "oneOf": [many(128)], "items": wide(3000) });
        assert_eq!(rows(Grammar::JsonSchema(both)), 300 + 128 * 7);
        let lark = |schema: Value| format!("start: %json {schema}\n");
        assert_eq!(rows(Grammar::Lark(lark(wide(300)))), 500);
        assert_eq!(rows(Grammar::Calls(lark(wide(300)))), 1507);
    }

    #[test]
    fn multiples_are_summed() {
        for (number, expect) in [
            ("5", 5),
            ("0.01", 1),
            ("2.50", 250),
            ("1000.0", 1000),
            ("1e-9", 1),
            ("1e6", 1_000_000),
        ] {
            assert_eq!(digits(number), expect, "{number}");
        }
        let of = |number: u64| json!({ "type": "integer", "multipleOf": number });
        let both = json!({ "properties": { "a": of(60_000), "multipleOf": of(40_000) } });
        assert_eq!(check(&Grammar::JsonSchema(both)), Ok(()));
        let over = json!({ "items": [of(60_000), of(40_001)] });
        assert_eq!(check(&Grammar::JsonSchema(over.clone())), Err(GrammarError::Multiples));
        let lark = format!("start: %json {over}");
        assert_eq!(check(&Grammar::Lark(lark)), Err(GrammarError::Multiples));
    }
}
