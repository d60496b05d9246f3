//! Holds in their stores what a server has loaded and may load, so that no collection removes it.
//!
//! Of each target that is what was found last and what is loaded: the same, but while a newer deployment is
//! tried, or after it was refused.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use smelt_plan::Digest;
use smelt_store::{Holder, Store, Wait};

use crate::console::warn;
use crate::exit::Failed;

/// The deployments of a server.
pub(crate) struct Leases(Mutex<Inner>);

struct Inner {
    /// Of each target, by its place.
    targets: Vec<Used>,
    /// Who holds them, by the root of the store; none where it cannot be written to.
    holders: BTreeMap<PathBuf, Option<Holder>>,
}

#[derive(Clone, Default)]
struct Used {
    found: Option<Sealed>,
    loaded: Option<Sealed>,
}

/// An output in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sealed {
    pub(crate) root: PathBuf,
    pub(crate) tree: Digest,
}

impl Leases {
    /// Of a server of so many targets.
    pub(crate) fn new(targets: usize) -> Self {
        let (targets, holders) = (vec![Used::default(); targets], BTreeMap::new());
        Self(Mutex::new(Inner { targets, holders }))
    }

    /// The deployment in `dir` may be loaded.
    pub(crate) fn found(&self, at: usize, dir: &Path) -> Result<(), Failed> {
        self.change(|targets| targets[at].found = sealed(dir))
    }

    /// The deployment in `dir` is loaded.
    pub(crate) fn loaded(&self, at: usize, dir: &Path) -> Result<(), Failed> {
        self.change(|targets| targets[at].loaded = sealed(dir))
    }

    /// Of each target the output that is loaded, or will be; none of one that lies in no store.
    pub(crate) fn served(&self) -> Vec<Option<Digest>> {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let one = |used: &Used| used.loaded.as_ref().or(used.found.as_ref()).map(|it| it.tree);
        inner.targets.iter().map(one).collect()
    }

    /// Lets go of everything.
    pub(crate) fn end(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).holders.clear();
    }

    fn change(&self, change: impl FnOnce(&mut [Used])) -> Result<(), Failed> {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Inner { targets, holders } = &mut *inner;
        let before = by_store(targets);
        change(targets);
        for (root, trees) in by_store(targets) {
            if before.get(&root) == Some(&trees) {
                continue;
            }
            let holder = match holders.entry(root) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => {
                    let holder = holder(new.key())?;
                    new.insert(holder)
                }
            };
            if let Some(holder) = holder {
                holder.hold(&trees)?;
            }
        }
        Ok(())
    }
}

/// What is used of each store.
fn by_store(targets: &[Used]) -> BTreeMap<PathBuf, Vec<Digest>> {
    let mut stores = BTreeMap::<PathBuf, Vec<Digest>>::new();
    for Sealed { root, tree } in
        targets.iter().flat_map(|used| [&used.found, &used.loaded]).flatten()
    {
        stores.entry(root.clone()).or_default().push(*tree);
    }
    stores
}

/// Where in a store a deployment lies, if in one: `ROOT/out/DIGEST`.
pub(crate) fn sealed(dir: &Path) -> Option<Sealed> {
    let dir = dir.canonicalize().ok()?;
    let tree = dir.file_name()?.to_str()?.parse().ok()?;
    let out = dir.parent().filter(|out| out.file_name().is_some_and(|name| name == "out"))?;
    Some(Sealed { root: out.parent()?.to_owned(), tree })
}

/// Who holds outputs of the store in `root`; nobody where that is read-only, and so not collected from here.
fn holder(root: &Path) -> Result<Option<Holder>, Failed> {
    match Store::open(root, Wait::Yes).and_then(|store| store.begin_hold(SystemTime::now())) {
        Ok(holder) => Ok(Some(holder)),
        Err(first) => match Store::open_read_only(root, Wait::Yes) {
            Ok(_) => {
                warn(format_args!("what is served is not held against collections: {first}"));
                Ok(None)
            }
            Err(_) => Err(first.into()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_in_a_store_is_held() {
        let folder = tempfile::tempdir().unwrap();
        let tree = Digest::of(b"a");
        let inside = folder.path().join("cache/out").join(tree.to_string());
        let outside = folder.path().join("deployment");
        for dir in [&inside, &outside] {
            std::fs::create_dir_all(dir).unwrap();
        }
        let root = folder.path().canonicalize().unwrap().join("cache");
        assert_eq!(sealed(&inside), Some(Sealed { root, tree }));
        assert_eq!(sealed(&outside), None);
        assert_eq!(sealed(&folder.path().join("nothing")), None);
    }
}
