//! Reads what stages share: `[resources]` of the file, `resources` of a stage.

use std::collections::BTreeMap;

use toml::de::DeValue;

use super::PipelineError;
use super::table::{Item, Table};
use crate::quantity;
use crate::text::nearest;
use crate::tokens::{Capacity, DEVICES_MAX};

/// How much there is of each: a number of devices (their ids are 0, 1, …), a list of their ids, or
/// a size.
pub(super) fn capacity(
    table: Option<Table<'_>>,
) -> Result<BTreeMap<String, Capacity>, PipelineError> {
    let items = table.map(|table| table.items()).unwrap_or_default();
    let read = |(_, item): (usize, Item<'_>)| Ok((name(&item)?, of(&item)?));
    items.into_iter().map(read).collect()
}

/// Names become variables of the stage's environment, `SMELT_<NAME>`, and some are taken.
fn name(item: &Item<'_>) -> Result<String, PipelineError> {
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_taken =
        ["attempt", "cache", "inputs"].contains(&item.key) || item.key.starts_with("in-");
    if item.key.is_empty() || !item.key.chars().all(legal) || is_taken {
        let message = format!(
            "\"{}\" cannot name a resource: use a-z, 0-9 and -, but not attempt, cache, inputs, in-…",
            item.key
        );
        return Err(item.error(message));
    }
    Ok(item.key.to_owned())
}

fn of(item: &Item<'_>) -> Result<Capacity, PipelineError> {
    match item.value {
        DeValue::String(text) => {
            let bytes = quantity::bytes(text).map_err(|error| item.error(error.to_string()))?;
            Ok(Capacity::Amount(bytes))
        }
        DeValue::Array(_) => ids(item),
        _ => {
            let count = item.count(1, DEVICES_MAX)?;
            Ok(Capacity::Devices((0..count).map(|id| id.to_string()).collect()))
        }
    }
}

fn ids(item: &Item<'_>) -> Result<Capacity, PipelineError> {
    let mut ids: Vec<String> = Vec::new();
    for item in item.list()? {
        let (id, _) = item.text()?;
        let legal = |c: char| c.is_ascii_alphanumeric() || "-_.:/".contains(c);
        if id.is_empty() || !id.chars().all(legal) || ids.contains(&id) {
            let message =
                format!("\"{id}\" is there twice, or is no id: use letters, digits, -_.:/");
            return Err(item.error(message));
        }
        ids.push(id);
    }
    if ids.is_empty() || ids.len() as u64 > DEVICES_MAX {
        return Err(item.error(format!("\"{}\" needs from 1 to {DEVICES_MAX} ids", item.key)));
    }
    Ok(Capacity::Devices(ids))
}

/// What one stage takes; never more than there is.
pub(super) fn wanted(
    table: Option<Table<'_>>,
    capacity: &BTreeMap<String, Capacity>,
) -> Result<BTreeMap<String, u64>, PipelineError> {
    let items = table.map(|table| table.items()).unwrap_or_default();
    let read = |(_, item): (usize, Item<'_>)| {
        let have = capacity.get(item.key).ok_or_else(|| unknown(&item, capacity))?;
        Ok((item.key.to_owned(), amount(&item, have)?))
    };
    items.into_iter().map(read).collect()
}

fn unknown(item: &Item<'_>, capacity: &BTreeMap<String, Capacity>) -> PipelineError {
    let near = nearest(item.key, capacity.keys().map(String::as_str));
    let hint = near.map_or_else(
        || format!("say how much there is, as in [resources] {} = 1", item.key),
        |near| format!("did you mean \"{near}\"?"),
    );
    item.error(format!("no resource \"{}\" is declared; {hint}", item.key))
}

fn amount(item: &Item<'_>, have: &Capacity) -> Result<u64, PipelineError> {
    let (amount, most) = match have {
        Capacity::Devices(ids) => (item.count(1, DEVICES_MAX)?, ids.len().to_string()),
        Capacity::Amount(bytes) => {
            let (text, _) = item.text()?;
            let amount = quantity::bytes(&text).map_err(|error| item.error(error.to_string()))?;
            (amount, format!("{bytes} bytes"))
        }
    };
    if amount > have.amount() {
        let message = format!("takes more \"{}\" than there is: {most}", item.key);
        return Err(item.error(message));
    }
    Ok(amount)
}
