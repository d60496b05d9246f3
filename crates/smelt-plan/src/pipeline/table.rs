//! Walks a TOML table with the place of every key and value at hand.

use std::borrow::Cow;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::matrix::Overlay;
use super::{PipelineError, Source};
use crate::text::nearest;

/// A table, what to call it in messages, and where it starts.
#[derive(Clone)]
pub(super) struct Table<'a> {
    pub(super) source: &'a Source<'a>,
    table: &'a DeTable<'a>,
    /// What replaces keys of the table, each with its own place.
    over: Overlay<'a>,
    pub(super) what: String,
    offset: usize,
}

/// A value of a table, with the key it was under.
#[derive(Clone, Copy)]
pub(super) struct Item<'a> {
    pub(super) source: &'a Source<'a>,
    pub(super) key: &'a str,
    pub(super) value: &'a DeValue<'a>,
    pub(super) offset: usize,
}

impl<'a> Table<'a> {
    pub(super) fn new(
        source: &'a Source<'a>,
        table: &'a DeTable<'a>,
        what: &str,
        offset: usize,
    ) -> Self {
        Self { source, table, over: Vec::new(), what: what.to_owned(), offset }
    }

    /// The same table with some keys replaced or added.
    pub(super) fn under(&self, over: Overlay<'a>) -> Self {
        Self { over, ..self.clone() }
    }

    /// Its keys with their values as they stand in the file.
    pub(super) fn spans(&self) -> Overlay<'a> {
        self.table.iter().map(|(key, value)| (key.get_ref().as_ref(), value)).collect()
    }

    pub(super) fn error(&self, message: impl Into<String>) -> PipelineError {
        self.source.error(self.offset, message)
    }

    /// Refuses keys that are not among `known`, the first in the file first.
    pub(super) fn allow(&mut self, known: &[&str]) -> Result<(), PipelineError> {
        let own = self.table.keys().map(|key| (key.get_ref().as_ref(), key.span().start));
        let over = self.over.iter().map(|(key, value)| (*key, value.span().start));
        let unknown = own.chain(over).filter(|(key, _)| !known.contains(key));
        let Some((word, start)) = unknown.min_by_key(|(_, start)| *start) else { return Ok(()) };
        let hint = match nearest(word, known.iter().copied()) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => format!("it takes {}", known.join(", ")),
        };
        let message = format!("unknown key \"{word}\" in {}; {hint}", self.what);
        Err(self.source.error(start, message))
    }

    pub(super) fn get(&self, key: &'a str) -> Option<Item<'a>> {
        let over = self.over.iter().rev().find(|(name, _)| *name == key);
        let value = over.map(|(_, value)| *value).or_else(|| self.table.get(key))?;
        Some(item(self.source, key, value))
    }

    pub(super) fn required(&self, key: &'a str) -> Result<Item<'a>, PipelineError> {
        self.get(key).ok_or_else(|| self.error(format!("{} needs the key \"{key}\"", self.what)))
    }

    pub(super) fn required_text(&self, key: &'a str) -> Result<String, PipelineError> {
        Ok(self.required(key)?.text()?.0)
    }

    /// The value of `key` must be the number `newest`.
    pub(super) fn format(&self, key: &'a str, newest: u64) -> Result<(), PipelineError> {
        let item = self.required(key)?;
        match item.whole() {
            Some(number) if number == newest => Ok(()),
            _ => Err(item.error(format!(
                "\"{key}\" is the format of this file; this smelt reads {key} = {newest}"
            ))),
        }
    }

    pub(super) fn table(&self, key: &'a str) -> Result<Option<Table<'a>>, PipelineError> {
        self.get(key).map(|item| item.table()).transpose()
    }

    /// A list of tables; absent is empty.
    pub(super) fn tables(&self, key: &'a str) -> Result<Vec<Table<'a>>, PipelineError> {
        let Some(item) = self.get(key) else { return Ok(Vec::new()) };
        item.list()?.into_iter().map(|item| item.table()).collect()
    }

    /// The text under `key`, read by `parse`.
    pub(super) fn parsed<T, E: ToString>(
        &self,
        key: &'a str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Result<Option<T>, PipelineError> {
        let Some(item) = self.get(key) else { return Ok(None) };
        let (text, offset) = item.text()?;
        parse(&text).map(Some).map_err(|error| self.source.error(offset, error.to_string()))
    }

    /// Keys in the order of the file; the table is `None` where the value is something else.
    pub(super) fn entries(&self) -> Vec<(&'a str, usize, Option<Table<'a>>)> {
        let mut entries: Vec<_> = self
            .items()
            .into_iter()
            .map(|(offset, item)| (item.key, offset, item.table().ok()))
            .collect();
        entries.sort_by_key(|(_, offset, _)| *offset);
        entries
    }

    /// Every key with its place and value, sorted by key.
    pub(super) fn items(&self) -> Vec<(usize, Item<'a>)> {
        let entry = |(key, value): (&'a Spanned<Cow<'a, str>>, &'a Spanned<DeValue<'a>>)| {
            (key.span().start, item(self.source, key.get_ref(), value))
        };
        self.table.iter().map(entry).collect()
    }

    /// The table on one line, as a person would write it.
    pub(super) fn text(&self) -> String {
        one_line(&DeValue::Table(self.table.clone()))
    }
}

fn item<'a>(source: &'a Source<'a>, key: &'a str, value: &'a Spanned<DeValue<'a>>) -> Item<'a> {
    Item { source, key, value: value.get_ref(), offset: value.span().start }
}

impl<'a> Item<'a> {
    pub(super) fn error(&self, message: impl Into<String>) -> PipelineError {
        self.source.error(self.offset, message)
    }

    fn expected(&self, what: &str) -> PipelineError {
        self.error(format!("\"{}\" must be {what}, not {}", self.key, self.value.type_str()))
    }

    pub(super) fn text(&self) -> Result<(String, usize), PipelineError> {
        let text = self.value.as_str().ok_or_else(|| self.expected("a text in quotes"))?;
        Ok((text.to_owned(), self.offset))
    }

    pub(super) fn whole(&self) -> Option<u64> {
        let number = self.value.as_integer()?;
        u64::from_str_radix(number.as_str(), number.radix()).ok()
    }

    pub(super) fn count(&self, min: u64, max: u64) -> Result<u64, PipelineError> {
        self.whole().filter(|number| (min..=max).contains(number)).ok_or_else(|| {
            self.error(format!("\"{}\" must be a whole number from {min} to {max}", self.key))
        })
    }

    pub(super) fn table(&self) -> Result<Table<'a>, PipelineError> {
        let table = self.value.as_table().ok_or_else(|| self.expected("a table"))?;
        Ok(Table::new(self.source, table, &format!("\"{}\"", self.key), self.offset))
    }

    /// The values of a list as they stand in the file.
    pub(super) fn spans(&self) -> Result<Vec<&'a Spanned<DeValue<'a>>>, PipelineError> {
        Ok(self.value.as_array().ok_or_else(|| self.expected("a list"))?.iter().collect())
    }

    pub(super) fn list(&self) -> Result<Vec<Item<'a>>, PipelineError> {
        let list = self.value.as_array().ok_or_else(|| self.expected("a list"))?;
        Ok(list.iter().map(|value| item(self.source, self.key, value)).collect())
    }
}

/// A value on one line.
fn one_line(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("\"{text}\""),
        DeValue::Integer(number) => number.as_str().to_owned(),
        DeValue::Float(number) => number.as_str().to_owned(),
        DeValue::Boolean(truth) => truth.to_string(),
        DeValue::Datetime(time) => time.to_string(),
        DeValue::Array(list) => {
            let items: Vec<_> = list.iter().map(|item| one_line(item.get_ref())).collect();
            format!("[{}]", items.join(", "))
        }
        DeValue::Table(table) => {
            let pairs: Vec<_> = table
                .iter()
                .map(|(key, value)| format!("{} = {}", key.get_ref(), one_line(value.get_ref())))
                .collect();
            if pairs.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", pairs.join(", ")) }
        }
    }
}
