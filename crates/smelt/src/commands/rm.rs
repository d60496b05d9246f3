//! `smelt rm`: frees deployments, with what only they needed, and says what stays and who needs it.

use std::collections::BTreeSet;

use smelt_exec::clear_dead_runs;
use smelt_hub::{Address, Hub};
use smelt_plan::Digest;
use smelt_plan::text::nearest;
use smelt_store::{Inventory, OutputItem, Store, Wait};

use super::target;
use crate::built::{self, Built};
use crate::console::{answer, tell};
use crate::exit::{Exit, Failed};
use crate::flags::RmFlags;
use crate::leftovers::left_behind;
use crate::load;
use crate::model_name::{ModelName, Present};
use crate::table::bytes;

pub(crate) fn run(flags: &RmFlags) -> Result<Exit, Failed> {
    let root = load::root()?;
    let mut all = built::all()?;
    // Names are told apart before the first one goes.
    let meant = flags.names.iter().map(|name| find(&all, name));
    let meant = meant.collect::<Result<Vec<_>, _>>()?.concat();
    let meant: BTreeSet<Digest> = meant.into_iter().collect();
    let store = Store::open(&root, Wait::Yes)?;
    // What dead runs held is nobody's.
    clear_dead_runs(&store, &mut left_behind)?;
    for tree in meant {
        let Some(at) = all.iter().position(|built| built.tree == tree) else { continue };
        let built = all.swap_remove(at);
        free(&store, &built, &all)?;
    }
    Ok(Exit::Ok)
}

/// The deployments that somebody calls `name`: one, or what was built again and again of one.
fn find(all: &[Built], name: &str) -> Result<Vec<Digest>, Failed> {
    let mut found = built::meant(all, name);
    if found.is_empty()
        && let Ok(ModelName::Model(source)) = ModelName::read(name, &Present::of(name, all))
    {
        found = target::made_of(all, &source);
    }
    if built::only(&found, name)?.is_none() {
        let near = nearest(name, all.iter().map(|built| built.model.as_str()));
        let near = near.map_or_else(String::new, |near| format!(", but {near}"));
        let why = format!("no deployment is called {name}{near}; `smelt ls` lists those there are");
        return Err(Failed::new(Exit::StageFailed, why));
    }
    Ok(found.iter().map(|built| built.tree).collect())
}

/// Removes a deployment, its engines and, with the last deployment of its pipeline, what else that pipeline's last run
/// made: as far as nothing else needs them.
fn free(store: &Store, built: &Built, others: &[Built]) -> Result<(), Failed> {
    let before = store.inventory()?;
    if store.remove(&[built.tree])?.is_empty() {
        return Err(in_use(store, built)?);
    }
    let of_pipeline = others.iter().find(|other| other.pipeline == built.pipeline);
    if of_pipeline.is_none() {
        store.forget_last(&built.pipeline)?;
    }
    let rest = Rest::of(&built.tree, &before, &store.inventory()?);
    let mut gone = store.remove(&rest.free)?;
    gone.push(built.tree);
    let is_gone = |output: &&OutputItem| gone.contains(&output.tree);
    let freed: u64 = before.outputs.iter().filter(is_gone).map(|output| output.bytes).sum();
    answer(format_args!("removed: {}, {}\n", called(built), bytes(freed)))?;
    for (kept, by) in &rest.needed {
        let by = others.iter().find(|other| other.tree == *by).map_or_else(|| by.short(), called);
        tell(format_args!("its {} stays: {by} needs it", named(&before, kept)));
    }
    for kept in rest.free.iter().filter(|tree| !gone.contains(tree)) {
        let kept = named(&before, kept);
        tell(format_args!("its {kept} stays: a run or a server has it, or it is pinned"));
    }
    if let Some(other) = of_pipeline {
        let pipeline = &built.pipeline;
        tell(format_args!("what {pipeline} made on the way stays: {} is of it", called(other)));
    }
    if !others.iter().any(|other| other.from == built.from) {
        checkpoint_left(built).iter().for_each(tell);
    }
    Ok(())
}

/// That the checkpoint it was made of stays, where the hub's cache has it, and how to be rid of that.
fn checkpoint_left(built: &Built) -> Option<String> {
    let from = built.from.as_ref()?;
    let address: Address = from.strip_prefix("hf:")?.parse().ok()?;
    let (folder, size) = Hub::from_env().ok()?.cached(&address.repo)?;
    let (folder, size) = (folder.display(), bytes(size));
    Some(format!(
        "its checkpoint {from} stays: {size} in a cache that others share; rm -r {folder} frees them"
    ))
}

/// Why a deployment cannot be removed.
fn in_use(store: &Store, built: &Built) -> Result<Failed, Failed> {
    let (name, digest) = (called(built), built.tree.short());
    if store.pins()?.contains(&built.tree) {
        let why = format!("{name} is pinned; `smelt cache unpin {digest}` lets it go");
        return Ok(Failed::new(Exit::StageFailed, why));
    }
    let why = format!("{name} is in use by a run or a server of this store; end that first");
    Ok(Failed::new(Exit::Held, why))
}

/// Its name and its model's.
fn called(built: &Built) -> String {
    format!("{} ({})", built.tree.short(), built.model)
}

/// A part by its stage's name, with its size.
fn named(inventory: &Inventory, tree: &Digest) -> String {
    let found = inventory.outputs.iter().find(|output| output.tree == *tree);
    let stage = found.and_then(|output| output.record["stage"].as_str());
    let size = bytes(found.map_or(0, |output| output.bytes));
    format!("{} ({}, {size})", stage.unwrap_or("part"), tree.short())
}

/// What becomes of the parts of a deployment that is gone.
#[derive(Debug, PartialEq)]
struct Rest {
    /// Nothing needs these.
    free: Vec<Digest>,
    /// Parts of it that other outputs need, and which.
    needed: Vec<(Digest, Digest)>,
}

impl Rest {
    /// Of the deployment `tree`: its parts, and what is held no more now that it is gone.
    fn of(tree: &Digest, before: &Inventory, after: &Inventory) -> Self {
        let own = before.outputs.iter().find(|output| output.tree == *tree);
        let mut all: Vec<Digest> = own.map(|own| own.refers.clone()).unwrap_or_default();
        let is_held = |tree: &Digest| {
            after.outputs.iter().any(|output| output.tree == *tree && output.is_held)
        };
        let let_go = before.outputs.iter().filter(|output| output.is_held);
        all.extend(let_go.map(|output| output.tree).filter(|tree| !is_held(tree)));
        all.retain(|part| part != tree && after.outputs.iter().any(|left| left.tree == *part));
        all.sort_unstable();
        all.dedup();
        let needs = |part: &Digest| {
            let stays = |output: &&OutputItem| !all.contains(&output.tree);
            let mut left = after.outputs.iter().filter(stays);
            left.find(|output| output.refers.contains(part)).map(|output| output.tree)
        };
        let (mut free, mut needed) = (Vec::new(), Vec::new());
        for part in &all {
            match needs(part) {
                Some(by) => needed.push((*part, by)),
                None => free.push(*part),
            }
        }
        Self { free, needed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(name: &str) -> Digest {
        Digest::of(name.as_bytes())
    }

    /// An output by name, whether it is held, and what it names.
    type Row = (&'static str, bool, &'static [&'static str]);

    fn of(outputs: &[Row]) -> Inventory {
        let item = |(name, is_held, refers): &Row| OutputItem {
            tree: tree(name),
            bytes: 1,
            used_ns: 0,
            is_held: *is_held,
            keys: Vec::new(),
            refers: refers.iter().map(|name| tree(name)).collect(),
            record: serde_json::Value::Null,
        };
        Inventory { outputs: outputs.iter().map(item).collect(), ..Inventory::default() }
    }

    #[track_caller]
    fn check(before: &Inventory, after: &Inventory, free: &[&str], needed: &[(&str, &str)]) {
        let mut free: Vec<Digest> = free.iter().map(|name| tree(name)).collect();
        free.sort_unstable();
        let needed = needed.iter().map(|(part, by)| (tree(part), tree(by))).collect();
        assert_eq!(Rest::of(&tree("eyes"), before, after), Rest { free, needed });
    }

    #[test]
    fn engines_go_with_the_last_deployment_that_names_them() {
        let engines: [Row; 3] = [("tower", false, &[]), ("llm", false, &[]), ("other", false, &[])];
        let eyes: [Row; 1] = [("eyes", false, &["tower", "llm"])];
        let ears: [Row; 1] = [("ears", false, &["tower"])];
        check(&of(&[&engines[..], &eyes].concat()), &of(&engines), &["tower", "llm"], &[]);
        let before = of(&[&engines[..], &eyes, &ears].concat());
        let after = of(&[&engines[..], &ears].concat());
        check(&before, &after, &["llm"], &[("tower", "ears")]);
    }

    #[test]
    fn what_nobody_holds_any_more_goes_with_it_and_nothing_else() {
        let rest = |onnx| -> [Row; 3] {
            [("onnx", onnx, &[]), ("old", false, &[]), ("another", true, &[])]
        };
        let eyes: [Row; 1] = [("eyes", true, &[])];
        let before = of(&[&rest(true)[..], &eyes].concat());
        check(&before, &of(&rest(false)), &["onnx"], &[]);
        check(&before, &of(&rest(true)), &[], &[]);
        // A deployment of another kind that is let go with it takes its parts along.
        let parts: [Row; 2] = [("part", true, &[]), ("whole", true, &["part"])];
        let let_go: [Row; 2] = [("part", false, &[]), ("whole", false, &["part"])];
        check(&of(&[&parts[..], &eyes].concat()), &of(&let_go), &["part", "whole"], &[]);
    }
}
