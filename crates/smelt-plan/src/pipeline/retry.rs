//! Reads a stage's `retry` table.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::params::Scope;
use super::table::{Item, Table};
use super::{ATTEMPTS_MAX, Escalation, PipelineError, fields, no_conflict, read_limits, strict};
use crate::kind::{Field, Kind, NETWORK, STRICT};
use crate::quantity;
use crate::retry::{Retry, SwapSpec, WarmUp};

/// What a `retry` may have.
pub(crate) const RETRY_KEYS: &[&str] =
    &["attempts", "settle", "drop-caches", "temporary-swap", "warm-up", "escalate", "reboot"];
/// Memory that has not come back within an hour will not.
const SETTLE_MAX: Duration = Duration::from_secs(3600);

/// The `retry` of a stage; without a table there is one attempt.
pub(super) fn read(
    table: Option<Table<'_>>,
    kind: Kind,
    scope: &Scope<'_>,
    values: &BTreeMap<String, Value>,
) -> Result<Retry, PipelineError> {
    let Some(mut table) = table else { return Ok(Retry::default()) };
    table.allow(RETRY_KEYS)?;
    let escalate = steps(&table, kind, scope, values)?;
    let retry = Retry {
        attempts_max: 1,
        settle: table.get("settle").map(|item| settle(&item, scope)).transpose()?,
        drop_caches: is_set(&table, "drop-caches")?,
        temporary_swap: swap(&table, scope)?,
        warm_up: match table.get("warm-up") {
            Some(item) => warm_up(&item, scope)?,
            None => None,
        },
        escalate,
        reboot: is_set(&table, "reboot")?,
    };
    let attempts = match table.get("attempts") {
        Some(value) => value.count(1, ATTEMPTS_MAX)?,
        None => default_attempts(&retry),
    };
    Ok(Retry { attempts_max: attempts as u32, ..retry })
}

/// One more than steps; with rungs alone, two.
fn default_attempts(retry: &Retry) -> u64 {
    let has_rung = retry.settle.is_some()
        || retry.drop_caches
        || retry.temporary_swap.is_some()
        || retry.warm_up.is_some()
        || retry.reboot;
    (retry.escalate.len() as u64 + 1).max(1 + u64::from(has_rung)).min(ATTEMPTS_MAX)
}

fn steps(
    table: &Table<'_>,
    kind: Kind,
    scope: &Scope<'_>,
    values: &BTreeMap<String, Value>,
) -> Result<Vec<Escalation>, PipelineError> {
    let steps = table.tables("escalate")?;
    if steps.len() as u64 >= ATTEMPTS_MAX {
        return Err(table.error(format!("at most {} escalate steps", ATTEMPTS_MAX - 1)));
    }
    steps.into_iter().map(|step| read_step(step, kind, scope, values)).collect()
}

fn read_step(
    mut table: Table<'_>,
    kind: Kind,
    params: &Scope<'_>,
    values: &BTreeMap<String, Value>,
) -> Result<Escalation, PipelineError> {
    table.what = "an escalate step".to_owned();
    // What comes of an attempt that sees more is not what the key of a strict stage says.
    let may_change =
        |field: &Field| !field.takes.is_edge() && ![STRICT, NETWORK].contains(&field.name);
    let fields: Vec<_> = kind.fields().iter().copied().filter(may_change).collect();
    let mut known: Vec<&str> = fields.iter().map(|field| field.name).collect();
    known.push("limits");
    table.allow(&known)?;
    let params = fields::read_given(&table, &fields, params)?;
    let mut together = values.clone();
    together.extend(params.clone());
    no_conflict(kind, &together, &table)?;
    strict::not_free(&together, &table)?;
    Ok(Escalation { text: table.text(), params, limits: read_limits(table.table("limits")?)? })
}

fn settle(item: &Item<'_>, scope: &Scope<'_>) -> Result<Duration, PipelineError> {
    let text = fields::text(item, scope)?;
    let wait = quantity::duration(&text).map_err(|error| item.error(error.to_string()))?;
    if wait > SETTLE_MAX {
        return Err(item.error("\"settle\" is at most \"1h\""));
    }
    Ok(wait)
}

/// `PIPELINE#STAGE`, or `none`, which lets a param say whether there is one.
fn warm_up(item: &Item<'_>, scope: &Scope<'_>) -> Result<Option<WarmUp>, PipelineError> {
    match &*fields::text(item, scope)? {
        "none" => Ok(None),
        text => WarmUp::parse(text).map(Some).map_err(|error| item.error(error)),
    }
}

/// `true`, a size, or a table of size and directory.
fn swap(table: &Table<'_>, scope: &Scope<'_>) -> Result<Option<SwapSpec>, PipelineError> {
    let Some(item) = table.get("temporary-swap") else { return Ok(None) };
    if let Some(wanted) = item.value.as_bool() {
        return Ok(wanted.then(SwapSpec::default));
    }
    if item.value.as_table().is_none() {
        return Ok(Some(SwapSpec { bytes: Some(size(&item, scope)?), dir: None }));
    }
    let mut table = item.table()?;
    table.allow(&["size", "dir"])?;
    let bytes = table.get("size").map(|item| size(&item, scope)).transpose()?;
    let dir = table.get("dir").map(|item| fields::text(&item, scope)).transpose()?;
    Ok(Some(SwapSpec { bytes, dir }))
}

/// Less than this no swap file is worth its trouble, and `mkswap` takes nothing below ten pages.
const SWAP_BYTES_MIN: u64 = 1 << 20;

fn size(item: &Item<'_>, scope: &Scope<'_>) -> Result<u64, PipelineError> {
    let text = fields::text(item, scope)?;
    let bytes = quantity::bytes(&text).map_err(|error| item.error(error.to_string()))?;
    if bytes < SWAP_BYTES_MIN {
        return Err(item.error("a temporary swap file has 1MiB at least"));
    }
    Ok(bytes)
}

/// A key that is `true` or `false`, and false where it is not there.
pub(super) fn is_set(table: &Table<'_>, key: &'static str) -> Result<bool, PipelineError> {
    Ok(flag(table, key)?.unwrap_or(false))
}

/// A key that is `true` or `false`, where it is there.
pub(super) fn flag(table: &Table<'_>, key: &'static str) -> Result<Option<bool>, PipelineError> {
    let Some(item) = table.get(key) else { return Ok(None) };
    let is_set = item.value.as_bool();
    is_set.map(Some).ok_or_else(|| item.error(format!("\"{key}\" must be true or false")))
}
