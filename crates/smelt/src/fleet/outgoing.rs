//! Finds outputs with what they are nothing without and what led to them, to be moved to another machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use smelt_store::bundle::{BundledKey, BundledOutput};
use smelt_store::{Digest, Inventory, Location, Lookup, Output, OutputItem, Store};

use crate::exit::{Exit, Failed};

/// An output of the store, and the recipe and shared keys that led to it, where a pipeline says that.
pub(crate) struct Leaving {
    pub(crate) tree: Digest,
    pub(crate) recipes: Vec<Digest>,
}

/// The outputs that are wanted and all that they refer to, each behind what it refers to, and the folder of each.
pub(crate) fn outputs(
    store: &Store,
    wanted: &[Leaving],
) -> Result<Vec<(BundledOutput, PathBuf)>, Failed> {
    let inventory = store.inventory()?;
    let mut recipes: BTreeMap<Digest, Vec<Digest>> = BTreeMap::new();
    for Leaving { tree, recipes: led } in wanted {
        recipes.entry(*tree).or_default().extend(led);
    }
    let order = with_what_they_name(&inventory, wanted);
    order.into_iter().map(|item| output(store, item, &recipes)).collect()
}

/// Depth first.  Nothing refers to itself: the name of an output follows from its content.
fn with_what_they_name<'a>(inventory: &'a Inventory, wanted: &[Leaving]) -> Vec<&'a OutputItem> {
    let items: BTreeMap<Digest, &OutputItem> =
        inventory.outputs.iter().map(|item| (item.tree, item)).collect();
    let (mut order, mut seen) = (Vec::new(), BTreeSet::new());
    let mut open: Vec<(Digest, bool)> = wanted.iter().rev().map(|it| (it.tree, false)).collect();
    while let Some((tree, is_after)) = open.pop() {
        let Some(&item) = items.get(&tree) else { continue };
        if is_after {
            order.push(item);
        } else if seen.insert(tree) {
            open.push((tree, true));
            open.extend(item.refers.iter().rev().map(|refer| (*refer, false)));
        }
    }
    order
}

/// One output, verified, with every key that leads to it.
fn output(
    store: &Store,
    item: &OutputItem,
    recipes: &BTreeMap<Digest, Vec<Digest>>,
) -> Result<(BundledOutput, PathBuf), Failed> {
    let (mut keys, mut found) = (Vec::new(), None);
    for key in &item.keys {
        match store.lookup(key)? {
            Lookup::Hit(output) if output.digest == item.tree => {
                let recipes = recipes.get(&item.tree).into_iter().flatten();
                let leads_here = |recipe: &&Digest| {
                    store.resolve(recipe).is_ok_and(|led| led.as_ref() == Some(key))
                };
                let recipes = recipes.filter(leads_here).copied().collect();
                keys.push(BundledKey::new(*key, recipes, &output.record));
                found = Some(*output);
            }
            Lookup::Damaged(damage) => {
                let name = item.tree.short();
                let message = format!(
                    "output {name} was damaged in the store: {}; build it again",
                    damage.what
                );
                return Err(Failed::new(Exit::StageFailed, message));
            }
            Lookup::Hit(_) | Lookup::Miss | Lookup::Changed(_) => {}
        }
    }
    let gone = || {
        Failed::new(
            Exit::StageFailed,
            format!("no record leads to output {}: smelt cache fsck", item.tree.short()),
        )
    };
    let Output { digest, manifest, location, .. } = found.ok_or_else(gone)?;
    let (Location::Sealed(path) | Location::External(path)) = location;
    let refers = item.refers.clone();
    Ok((BundledOutput { tree: digest, files: manifest, refers, keys }, path))
}
