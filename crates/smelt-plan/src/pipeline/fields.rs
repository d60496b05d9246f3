//! Reads a stage's fields by the table of its kind.

use std::collections::BTreeMap;

use serde_json::Value;
use toml::de::DeValue;

use super::params::Scope;
use super::table::{Item, Table};
use super::{InputRef, InputSpec, PipelineError};
use crate::kind::{Absent, Field, Takes};
use crate::name::StageName;
use crate::quantity;

type Values = BTreeMap<String, Value>;

/// A command that needs longer lists wants a file; the kernel's limit for one argument is 128 KiB.
const TEXT_BYTES_MAX: usize = 128 << 10;

impl Takes {
    /// Whether the field names other stages or paths.
    pub(crate) fn is_edge(self) -> bool {
        matches!(self, Self::Stage(_) | Self::Stages(_) | Self::Inputs | Self::Source | Self::Path)
    }
}

/// Every field of the stage: the values, and the edges.
pub(super) fn read(
    table: &Table<'_>,
    fields: &'static [Field],
    params: &Scope<'_>,
) -> Result<(Values, Vec<InputSpec>), PipelineError> {
    let mut values = Values::new();
    let mut inputs = Vec::new();
    for field in fields {
        match table.get(field.name) {
            Some(item) => read_field(field, &item, params, &mut values, &mut inputs)?,
            None => fill_absent(table, field, &mut values)?,
        }
    }
    Ok((values, inputs))
}

/// Only the fields that are there, none of them an edge: an `escalate` step.
pub(super) fn read_given(
    table: &Table<'_>,
    fields: &[Field],
    params: &Scope<'_>,
) -> Result<Values, PipelineError> {
    let mut values = Values::new();
    for field in fields {
        if let Some(item) = table.get(field.name) {
            read_field(field, &item, params, &mut values, &mut Vec::new())?;
        }
    }
    Ok(values)
}

fn fill_absent(table: &Table<'_>, field: &Field, values: &mut Values) -> Result<(), PipelineError> {
    let value = match field.absent {
        Absent::Refused => return table.required(field.name).map(|_| ()),
        Absent::Nothing => return Ok(()),
        Absent::Word(word) => Value::from(word),
        Absent::Number(number) => Value::from(number),
    };
    values.insert(field.name.to_owned(), value);
    Ok(())
}

fn read_field(
    field: &Field,
    item: &Item<'_>,
    params: &Scope<'_>,
    values: &mut Values,
    inputs: &mut Vec<InputSpec>,
) -> Result<(), PipelineError> {
    let input = |from| InputSpec {
        field: field.name,
        place: item.source.place(item.offset),
        from,
        known_as: None,
    };
    let value = match field.takes {
        Takes::Stage(_) => {
            inputs.push(input(stage(item, &text(item, params)?)?));
            return Ok(());
        }
        Takes::Stages(_) => {
            inputs.extend(stages(field, item, params)?);
            return Ok(());
        }
        Takes::Source => match source(item, text(item, params)?)? {
            Source::Outside(from) => {
                inputs.push(input(from));
                return Ok(());
            }
            Source::Made(synthetic) => Value::from(synthetic),
        },
        Takes::Path => {
            inputs.push(input(InputRef::Path(path_ref(item, &text(item, params)?)?)));
            return Ok(());
        }
        Takes::Inputs => {
            for item in item.list()? {
                let from = stage_or_path(&item, text(&item, params)?)?;
                inputs.push(InputSpec {
                    field: field.name,
                    place: item.source.place(item.offset),
                    from,
                    known_as: None,
                });
            }
            return Ok(());
        }
        Takes::Text => Value::from(text(item, params)?),
        Takes::Choice(words) => choice(item, text(item, params)?, words)?,
        Takes::Count(min, max) => count(item, params, min, max)?,
        Takes::Flag => flag(item, params)?,
        Takes::Bytes => {
            let bytes = quantity::bytes(&text(item, params)?);
            Value::from(bytes.map_err(|error| item.error(error.to_string()))?)
        }
        Takes::Texts | Takes::Places => Value::from(texts(item, params)?),
        Takes::Words(words) => words_of(item, params, words)?,
        Takes::Names => names(item, params)?,
        Takes::TextTable => text_table(item, params)?,
    };
    values.insert(field.name.to_owned(), value);
    Ok(())
}

pub(super) fn text(item: &Item<'_>, params: &Scope<'_>) -> Result<String, PipelineError> {
    let (raw, offset) = item.text()?;
    let text = match params.fill(item.source, &raw, offset)? {
        Value::String(text) => text,
        value => value.to_string(),
    };
    if text.len() > TEXT_BYTES_MAX || text.contains('\0') {
        return Err(
            item.error(format!("\"{}\" holds a NUL or more than {TEXT_BYTES_MAX} bytes", item.key))
        );
    }
    Ok(text)
}

fn stage(item: &Item<'_>, name: &str) -> Result<InputRef, PipelineError> {
    StageName::parse(name).map(InputRef::Stage).map_err(|error| item.error(error.to_string()))
}

/// A name, or a list of names.
fn stages(
    field: &Field,
    item: &Item<'_>,
    params: &Scope<'_>,
) -> Result<Vec<InputSpec>, PipelineError> {
    let named = |item: &Item<'_>| -> Result<InputSpec, PipelineError> {
        let from = stage(item, &text(item, params)?)?;
        let place = item.source.place(item.offset);
        Ok(InputSpec { field: field.name, place, from, known_as: None })
    };
    if !matches!(item.value, DeValue::Array(_)) {
        return Ok(vec![named(item)?]);
    }
    let list: Vec<InputSpec> = item.list()?.iter().map(named).collect::<Result<_, _>>()?;
    if list.is_empty() {
        return Err(item.error(format!("\"{}\" must not be empty", item.key)));
    }
    Ok(list)
}

fn stage_or_path(item: &Item<'_>, text: String) -> Result<InputRef, PipelineError> {
    match text.strip_prefix("path:") {
        Some(path) => Ok(InputRef::Path(nonempty_path(item, path)?)),
        None => StageName::parse_pattern(&text)
            .map(InputRef::Stage)
            .map_err(|error| item.error(error.to_string())),
    }
}

fn path_ref(item: &Item<'_>, text: &str) -> Result<String, PipelineError> {
    let words =
        || item.error(format!("\"{}\" must be path:FILE or path:DIR, not \"{text}\"", item.key));
    nonempty_path(item, text.strip_prefix("path:").ok_or_else(words)?)
}

/// What a source's `from` says.
enum Source {
    /// Content from outside of the store.
    Outside(InputRef),
    /// The whole text of a `synthetic:`, which the stage itself makes.
    Made(String),
}

fn source(item: &Item<'_>, text: String) -> Result<Source, PipelineError> {
    match text.split_once(':') {
        Some(("path", path)) => Ok(Source::Outside(InputRef::Path(nonempty_path(item, path)?))),
        Some(("hf", address)) if !address.is_empty() => {
            Ok(Source::Outside(InputRef::Hub(address.to_owned())))
        }
        Some(("synthetic", name)) if !name.is_empty() => Ok(Source::Made(text)),
        _ => Err(item.error(format!(
            "\"{}\" must be hf:ORG/NAME[@REV][:FILE], path:DIR or synthetic:NAME, not \"{text}\"",
            item.key
        ))),
    }
}

fn nonempty_path(item: &Item<'_>, path: &str) -> Result<String, PipelineError> {
    if path.is_empty() {
        return Err(item.error("\"path:\" names no file or directory"));
    }
    Ok(path.to_owned())
}

fn choice(item: &Item<'_>, word: String, words: &[&str]) -> Result<Value, PipelineError> {
    if words.contains(&word.as_str()) {
        return Ok(Value::from(word));
    }
    Err(item.error(format!("\"{}\" must be {}, not \"{word}\"", item.key, words.join(" or "))))
}

fn words_of(item: &Item<'_>, params: &Scope<'_>, words: &[&str]) -> Result<Value, PipelineError> {
    let texts = texts(item, params)?;
    let Some(odd) = texts.iter().find(|text| !words.contains(&text.as_str())) else {
        return Ok(Value::from(texts));
    };
    let close = close(odd, words).map(|word| format!("; do you mean \"{word}\"?"));
    let known = || format!("; it takes {}", words.join(", "));
    let hint = close.unwrap_or_else(known);
    Err(item.error(format!("\"{}\" takes no \"{odd}\"{hint}", item.key)))
}

/// The word that ends as `text` does, which may have its system's prefix and letters.
fn close<'a>(text: &str, words: &[&'a str]) -> Option<&'a str> {
    let plain = text.to_ascii_lowercase().replace('_', "-");
    words.iter().copied().find(|word| plain == *word || plain.strip_prefix("cap-") == Some(word))
}

/// A number, or a text that is one `${param}` holding a number.
fn count(item: &Item<'_>, params: &Scope<'_>, min: u64, max: u64) -> Result<Value, PipelineError> {
    if !matches!(item.value, DeValue::String(_)) {
        return item.count(min, max).map(Value::from);
    }
    let (raw, offset) = item.text()?;
    params
        .fill(item.source, &raw, offset)?
        .as_u64()
        .filter(|number| (min..=max).contains(number))
        .map(Value::from)
        .ok_or_else(|| {
            item.error(format!("\"{}\" must be a whole number from {min} to {max}", item.key))
        })
}

fn flag(item: &Item<'_>, params: &Scope<'_>) -> Result<Value, PipelineError> {
    let refused = || item.error(format!("\"{}\" must be true or false", item.key));
    if let DeValue::Boolean(flag) = item.value {
        return Ok(Value::from(*flag));
    }
    let DeValue::String(_) = item.value else { return Err(refused()) };
    match text(item, params)?.as_str() {
        "true" => Ok(Value::from(true)),
        "false" => Ok(Value::from(false)),
        _ => Err(refused()),
    }
}

/// Outputs stay inside the working directory.
fn names(item: &Item<'_>, params: &Scope<'_>) -> Result<Value, PipelineError> {
    let names = texts(item, params)?;
    let is_inside = |name: &String| name.split('/').all(|part| !matches!(part, "" | "." | ".."));
    match names.iter().find(|name| !is_inside(name)) {
        None => Ok(Value::from(names)),
        Some(name) => Err(item.error(format!(
            "\"{}\" must name files or directories inside the stage's working directory, not \"{name}\"",
            item.key
        ))),
    }
}

fn texts(item: &Item<'_>, params: &Scope<'_>) -> Result<Vec<String>, PipelineError> {
    let list: Vec<String> =
        item.list()?.iter().map(|item| text(item, params)).collect::<Result<_, _>>()?;
    if list.is_empty() {
        return Err(item.error(format!("\"{}\" must not be empty", item.key)));
    }
    Ok(list)
}

fn text_table(item: &Item<'_>, params: &Scope<'_>) -> Result<Value, PipelineError> {
    let entries = item.table()?.items();
    let pair = |(_, item): &(usize, Item<'_>)| {
        if item.key.is_empty() || item.key.contains(['=', '\0']) {
            return Err(item.error(format!("\"{}\" cannot name a variable", item.key)));
        }
        Ok((item.key.to_owned(), Value::from(text(item, params)?)))
    };
    entries.iter().map(pair).collect::<Result<serde_json::Map<_, _>, _>>().map(Value::Object)
}
