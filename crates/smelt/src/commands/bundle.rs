//! `smelt bundle`: sealed outputs with their records as one file, for a machine that builds nothing.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::SystemTime;

use smelt_store::bundle::{self, BundleError, BundledKey, BundledOutput, Written};
use smelt_store::{Digest, Inventory, Lookup, Output, OutputItem, Store};

use super::target::{self, Sealed};
use crate::console::tell;
use crate::exit::{Exit, Failed};
use crate::flags::BundleFlags;
use crate::load::{self, Access};
use crate::table::bytes;
use crate::telling::Telling;

pub(crate) fn run(flags: &BundleFlags) -> Result<Exit, Failed> {
    let mut wanted = Vec::new();
    for target in &flags.targets {
        wanted.extend(target::sealed(target, &flags.sets, flags.all)?);
    }
    let store = load::store(&Access::Look)?;
    let trees: Vec<Digest> = wanted.iter().map(|sealed| sealed.tree).collect();
    // A store that only can be read has nobody who collects.
    let holder = store.begin_hold(SystemTime::now()).ok();
    holder.as_ref().map_or(Ok(()), |holder| holder.hold(&trees))?;
    let outputs = outputs(&store, &wanted)?;
    if outputs.is_empty() {
        return Err(Failed::new(
            Exit::StageFailed,
            "nothing of that is built; build it with: smelt run",
        ));
    }
    let all = outputs.iter().map(|(output, _)| output.files.bytes()).sum::<u64>();
    let written = {
        let (mut telling, mut done) = (Telling::new(), 0);
        let out = flags.out.display();
        bundle::write(&outputs, &flags.out, &mut |some| {
            done += some;
            telling.hear(&format!("[{done}/{all}] writing {out}"));
        })
        .map_err(failed)?
    };
    let (out, count, size) = (flags.out.display(), outputs.len(), bytes(all));
    let said = match written {
        Written::Before => "it was there, whole".to_owned(),
        Written::Now { kept: 0 } => "written".to_owned(),
        Written::Now { kept } => format!("written; {} of it were there", bytes(kept)),
    };
    tell(format_args!(
        "{out}: {count} outputs, {size}, {said}; unpack it by: smelt unbundle {out}"
    ));
    Ok(Exit::Ok)
}

/// The outputs that are wanted and all that they refer to, each behind what it refers to, and the folder of each.
pub(super) fn outputs(
    store: &Store,
    wanted: &[Sealed],
) -> Result<Vec<(BundledOutput, PathBuf)>, Failed> {
    let inventory = store.inventory()?;
    let mut recipes: BTreeMap<Digest, Vec<Digest>> = BTreeMap::new();
    for Sealed { tree, recipes: led } in wanted {
        recipes.entry(*tree).or_default().extend(led);
    }
    let order = with_what_they_name(&inventory, wanted);
    order.into_iter().map(|item| output(store, item, &recipes)).collect()
}

/// Depth first.  Nothing refers to itself: the name of an output follows from its content.
fn with_what_they_name<'a>(inventory: &'a Inventory, wanted: &[Sealed]) -> Vec<&'a OutputItem> {
    let items: BTreeMap<Digest, &OutputItem> =
        inventory.outputs.iter().map(|item| (item.tree, item)).collect();
    let (mut order, mut seen) = (Vec::new(), std::collections::BTreeSet::new());
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
    let (smelt_store::Location::Sealed(path) | smelt_store::Location::External(path)) = location;
    let refers = item.refers.clone();
    Ok((BundledOutput { tree: digest, files: manifest, refers, keys }, path))
}

/// What was wrong with the bundle is a bad file; the rest is this machine's.
pub(super) fn failed(error: BundleError) -> Failed {
    let exit = match &error {
        error if error.is_of_bundle() => Exit::BadModel,
        BundleError::Exists { .. } | BundleError::TooMany { .. } => Exit::Usage,
        BundleError::Held { .. } => Exit::Held,
        _ => Exit::StageFailed,
    };
    let full =
        if error.is_disk_full() { "; free some space, then the same command goes on" } else { "" };
    Failed::new(exit, format!("{error}{full}"))
}
