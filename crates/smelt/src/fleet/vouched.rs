//! Judges again what came from a fleet: whom this machine believes may have changed since.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
#[cfg(feature = "build")]
use serde_json::json;
use smelt_fleet::dsse::Envelope;
use smelt_fleet::judge::{Asked, Refusal, Vouched, judge};
use smelt_fleet::remote::Key;
use smelt_fleet::statement::Statement;
use smelt_fleet::trust::Trust;
use smelt_plan::{Plan, StageId};
use smelt_store::{Digest, Lookup, OutputItem, Store, Wait};

use super::delivered::Delivered;
use super::trust;
use crate::config;
use crate::exit::{Exit, Failed};

/// Under which name a record says from where an output came.
const FLEET: &str = "fleet";

/// Under which name a record says which machine built an output that was reached by ssh: that alone can vouch for it.
const BUILT_AT: &str = "built_at";

/// Writes into a record which machine built its output, and what of it that depends on.
#[cfg(feature = "build")]
pub(crate) fn put_built_at(record: &mut Value, machine: &str, facts: &BTreeMap<String, String>) {
    if let Some(fields) = record.as_object_mut() {
        fields.insert(BUILT_AT.to_owned(), json!({ "machine": machine, "device": facts }));
    }
}

/// The machine that built an output and was reached by ssh, if one did.
pub(crate) fn built_at(record: &Value) -> Option<&str> {
    record.get(BUILT_AT)?.get("machine")?.as_str()
}

/// From where an output came, as its record says it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Origin {
    pub(crate) server: String,
    /// The server's name of the fleet.
    pub(crate) instance: String,
    /// Who vouched for it when it came.
    pub(crate) by: Vec<String>,
    /// By which time that was judged, in seconds of the Unix era.
    pub(crate) at: u64,
    /// What they signed, as DSSE has it.
    pub(crate) statement: Value,
}

impl Origin {
    /// Of an output's record; nothing of one that was built here.
    pub(crate) fn of(record: &Value) -> Option<Result<Self, String>> {
        let origin = Self::deserialize(record.get(FLEET)?);
        Some(origin.map_err(|_| "its record does not say what was signed of it".to_owned()))
    }

    /// Writes it into a record.
    pub(crate) fn put(&self, record: &mut Value) {
        if let Some(fields) = record.as_object_mut() {
            let origin = serde_json::to_value(self).expect("an origin is plain data");
            fields.insert(FLEET.to_owned(), origin);
        }
    }

    /// Whether an output came from a fleet.
    pub(crate) fn is_in(record: &Value) -> bool {
        record.get(FLEET).is_some()
    }

    /// Who vouches for an output by what is believed now.  A key whose time has run out since is no reason against what came
    /// before: boards would stop on that day.
    pub(crate) fn judge(&self, tree: &Digest, trust: &Trust) -> Result<Vouched, String> {
        self.refusal(tree, trust)?.map_err(|refusal| refusal.to_string())
    }

    /// Why an output that somebody else vouches for is not to be used all the same: who built it is revoked here, or it is
    /// not what was signed.  Whoever delivers it need not be the only one who knows who built it.
    fn objection(&self, tree: &Digest, trust: &Trust) -> Option<String> {
        match self.refusal(tree, trust) {
            Err(why) => Some(why),
            Ok(Err(why @ (Refusal::Revoked { .. } | Refusal::BadSignature { .. }))) => {
                Some(why.to_string())
            }
            Ok(_) => None,
        }
    }

    fn refusal(&self, tree: &Digest, trust: &Trust) -> Result<Result<Vouched, Refusal>, String> {
        let asked = Asked { key: Key::Tree(*tree), instance: &self.instance, least: 1 };
        Ok(judge(trust, &self.envelope()?, &asked, self.at))
    }

    /// What was signed, whoever did.
    pub(crate) fn said(&self) -> Result<Statement, String> {
        Statement::from_json(&self.envelope()?.payload).map_err(|error| error.to_string())
    }

    fn envelope(&self) -> Result<Envelope, String> {
        Envelope::from_json(self.statement.to_string().as_bytes())
            .map_err(|error| error.to_string())
    }
}

/// Whether others vouch for an output: it came from a fleet or by a delivery.
pub(crate) fn is_of_others(record: &Value) -> bool {
    Origin::is_in(record) || Delivered::is_in(record)
}

/// An output that came from elsewhere and is no longer vouched for.
pub(crate) struct Doubted {
    pub(crate) tree: Digest,
    pub(crate) stage: String,
    pub(crate) why: String,
}

/// Of `outputs` how many came from elsewhere, and those of them for which nobody who is believed now vouches.
pub(crate) fn doubted<'a>(
    outputs: impl Iterator<Item = &'a OutputItem>,
) -> Result<(usize, Vec<Doubted>), Failed> {
    let fetched: Vec<&OutputItem> = outputs.filter(|it| is_of_others(&it.record)).collect();
    if fetched.is_empty() {
        return Ok((0, Vec::new()));
    }
    let trust = believed()?;
    let of = |item: &&OutputItem| {
        let why = doubt(&item.tree, &item.record, &trust)?;
        let stage = item.record["stage"].as_str().unwrap_or("-").to_owned();
        Some(Doubted { tree: item.tree, stage, why })
    };
    Ok((fetched.len(), fetched.iter().filter_map(of).collect()))
}

/// Whom this machine believes, where no flag names another file.
pub(crate) fn believed() -> Result<Trust, Failed> {
    trust(config::trust().as_deref())
}

/// The stages of a plan whose outputs here came from a fleet and are not vouched for any more, and why.
pub(crate) fn doubted_stages(
    plan: &Plan,
    store: &Store,
    trust: &Trust,
) -> Result<BTreeMap<StageId, String>, Failed> {
    let mut doubted = BTreeMap::new();
    if !store.has_pulls() {
        return Ok(doubted);
    }
    let recipes = store.resolve_each(plan.stages().map(|(_, stage)| &stage.recipe_key))?;
    for ((id, _), key) in plan.stages().zip(recipes) {
        let output = key.map(|key| store.lookup(&key)).transpose()?.and_then(Lookup::hit);
        if let Some(why) = output.and_then(|it| doubt(&it.digest, &it.record, trust)) {
            doubted.insert(id, why);
        }
    }
    Ok(doubted)
}

/// Why an output is not vouched for, if it came from elsewhere.
pub(crate) fn doubt(tree: &Digest, record: &Value, trust: &Trust) -> Option<String> {
    let origin = Origin::of(record);
    let Some(delivered) = Delivered::of(record) else {
        return origin?.and_then(|origin| origin.judge(tree, trust)).err();
    };
    let judged = delivered.and_then(|delivered| delivered.judge(tree, trust));
    judged.err().or_else(|| match origin? {
        Ok(origin) => origin.objection(tree, trust),
        Err(why) => Some(why),
    })
}

/// Refuses a deployment that lies in a store and came from a fleet, if it or what it names is not vouched for any more.
pub(crate) fn check(dir: &Path) -> Result<(), Failed> {
    let Some((root, tree)) = in_a_store(dir) else { return Ok(()) };
    let store = Store::open_read_only(&root, Wait::Yes)?;
    if !store.has_pulls() {
        return Ok(());
    }
    let trust = believed()?;
    for (tree, record) in store.records_of(&tree)? {
        let name = tree.short();
        let record = record.ok_or_else(|| {
            let message = format!("nothing is known of output {name}: smelt cache fsck --repair");
            Failed::new(Exit::StageFailed, message)
        })?;
        if let Some(why) = doubt(&tree, &record, &trust) {
            let file = super::trust_file(config::trust().as_deref())?;
            let (from, cure) = match Delivered::is_in(&record) {
                true => ("by a delivery", "smelt deliver pull takes one that somebody else signed"),
                false => ("from the fleet", "the next run builds or fetches it again"),
            };
            let message = format!(
                "output {name} of stage {} came {from} and is not used: {why} ({}); {cure}",
                record["stage"].as_str().unwrap_or("-"),
                file.display()
            );
            return Err(Failed::new(Exit::StageFailed, message));
        }
    }
    Ok(())
}

/// The store that a directory is an output of, whichever that is.
fn in_a_store(dir: &Path) -> Option<(PathBuf, Digest)> {
    let dir = dir.canonicalize().ok()?;
    let (out, tree) = (dir.parent()?, dir.file_name()?.to_str()?.parse().ok()?);
    let root = out.parent().filter(|root| out.ends_with("out") && root.join("FORMAT").exists())?;
    Some((root.to_owned(), tree))
}
