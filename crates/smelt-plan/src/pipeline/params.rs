//! Reads `[params]`, applies `--set`, and puts the values into `${name}`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use serde_json::Value;
use toml::de::DeValue;

use super::matrix::Variant;
use super::table::{Item, Table};
use super::{ParseError, PipelineError, Source};
use crate::text::nearest;

/// `--set name=value`, in the order given; a later one wins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides(Vec<(String, String)>);

impl Overrides {
    /// Splits each `name=value`.
    pub fn parse<S: AsRef<str>>(sets: &[S]) -> Result<Self, ParseError> {
        let pair = |set: &S| {
            let set = set.as_ref();
            let (name, value) = set
                .split_once('=')
                .ok_or_else(|| ParseError::Set(format!("--set takes name=value, not \"{set}\"")))?;
            Ok((name.trim().to_owned(), value.to_owned()))
        };
        sets.iter().map(pair).collect::<Result<_, _>>().map(Self)
    }
}

/// The params with their final values.
pub(super) struct Params {
    values: BTreeMap<String, Value>,
    declared: BTreeMap<String, Declared>,
}

/// Where a param stands in the file.
struct Declared {
    offset: usize,
    /// Whether a stage names it; stages are read by several threads.
    is_used: AtomicBool,
}

/// Reads the table and applies the overrides; each keeps the type the file gave the param.
pub(super) fn read(
    source: &Source<'_>,
    table: Option<Table<'_>>,
    overrides: &Overrides,
) -> Result<Params, ParseError> {
    let mut params = Params { values: BTreeMap::new(), declared: BTreeMap::new() };
    for (offset, item) in table.map(|table| table.items()).unwrap_or_default() {
        if item.key.starts_with(VARIANT) {
            let message = "a param's name does not start with \"variant\", which matrix uses";
            return Err(item.error(message).into());
        }
        params.values.insert(item.key.to_owned(), scalar(&item)?);
        let declared = Declared { offset, is_used: AtomicBool::new(false) };
        params.declared.insert(item.key.to_owned(), declared);
    }
    for (name, text) in &overrides.0 {
        let Some(value) = params.values.get_mut(name) else {
            return Err(unknown_set(source, &params, name));
        };
        *value = retyped(value, text).ok_or_else(|| {
            ParseError::Set(format!(
                "--set {name}={text}: the file gives {name} = {value}, so the value must be of that type"
            ))
        })?;
    }
    Ok(params)
}

fn unknown_set(source: &Source<'_>, params: &Params, name: &str) -> ParseError {
    let known: Vec<&str> = params.values.keys().map(String::as_str).collect();
    let list = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    ParseError::Set(format!("--set {name}: {} has no such param; it has {list}", source.file))
}

/// A text, whole number, fraction or truth.
fn scalar(item: &Item<'_>) -> Result<Value, PipelineError> {
    match item.value {
        DeValue::String(text) => Ok(Value::from(text.as_ref())),
        DeValue::Boolean(truth) => Ok(Value::from(*truth)),
        DeValue::Float(number) => number
            .as_str()
            .parse::<f64>()
            .ok()
            .filter(|number| number.is_finite())
            .map(Value::from)
            .ok_or_else(|| item.error(format!("\"{}\" must be a finite number", item.key))),
        DeValue::Integer(_) => item.whole().map(Value::from).ok_or_else(|| {
            item.error(format!("\"{}\" must be a whole number from 0 to 2^64-1", item.key))
        }),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => {
            Err(item.error(format!("param \"{}\" must be a text, number, true or false", item.key)))
        }
    }
}

/// `text` as a value of the same type as `like`.
fn retyped(like: &Value, text: &str) -> Option<Value> {
    match like {
        Value::String(_) => Some(Value::from(text)),
        Value::Bool(_) => text.parse::<bool>().ok().map(Value::from),
        Value::Number(number) if number.is_u64() => text.parse::<u64>().ok().map(Value::from),
        Value::Number(_) => text.parse::<f64>().ok().filter(|f| f.is_finite()).map(Value::from),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// The params, and the variant of the stage that is read.
pub(super) struct Scope<'a> {
    pub(super) params: &'a Params,
    pub(super) variant: &'a Variant,
}

/// What a param may not be called: `${variant}` is the variant's name.
const VARIANT: &str = "variant";

impl Scope<'_> {
    /// `text` with every `${name}` replaced; a text that is one `${name}` keeps the param's type.
    pub(super) fn fill(
        &self,
        source: &Source<'_>,
        text: &str,
        offset: usize,
    ) -> Result<Value, PipelineError> {
        if let Some(name) = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'))
            && !name.contains('}')
        {
            return self.get(source, name, offset).map(Cow::into_owned);
        }
        let mut filled = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            let (name, after) = after.split_once('}').ok_or_else(|| {
                source.error(offset, format!("\"{text}\" has \"${{\" without \"}}\""))
            })?;
            filled.push_str(before);
            match self.get(source, name, offset)?.as_ref() {
                Value::String(value) => filled.push_str(value),
                value => filled.push_str(&value.to_string()),
            }
            rest = after;
        }
        filled.push_str(rest);
        Ok(Value::from(filled))
    }

    fn get(
        &self,
        source: &Source<'_>,
        name: &str,
        offset: usize,
    ) -> Result<Cow<'_, Value>, PipelineError> {
        if let Some(axis) = name.strip_prefix(VARIANT) {
            let word = self.variant.word(axis).map_err(|why| source.error(offset, why))?;
            return Ok(Cow::Owned(Value::from(word)));
        }
        self.params.get(source, name, offset).map(Cow::Borrowed)
    }
}

impl Params {
    fn get(&self, source: &Source<'_>, name: &str, offset: usize) -> Result<&Value, PipelineError> {
        if let Some(declared) = self.declared.get(name) {
            declared.is_used.store(true, Relaxed);
        }
        self.values.get(name).ok_or_else(|| {
            let near = nearest(name, self.values.keys().map(String::as_str));
            let hint = near.map_or_else(
                || "add it under [params]".to_owned(),
                |near| format!("did you mean ${{{near}}}?"),
            );
            source.error(offset, format!("unknown param ${{{name}}}; {hint}"))
        })
    }

    /// A param that nothing reads is a slip: its author believes it does something.
    pub(super) fn all_used(&self, source: &Source<'_>) -> Result<(), PipelineError> {
        let unused = self.declared.iter().find(|(_, declared)| !declared.is_used.load(Relaxed));
        unused.map_or(Ok(()), |(name, Declared { offset, .. })| {
            let message = format!("param \"{name}\" is used by no stage; remove it or write ${{{name}}} where it belongs");
            Err(source.error(*offset, message))
        })
    }
}
