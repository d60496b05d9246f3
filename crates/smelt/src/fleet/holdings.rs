//! Says what of a store neighbours may have: what came from a fleet or was published to one, and what of it is under way.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use smelt_fleet::peer::{Coming, Sealed};
use smelt_store::{Digest, Store, notes};

use super::vouched::Origin;
use crate::exit::Failed;

/// Outputs that are published from one store, and that are served of it: those used last.
const OUTPUTS_MAX: usize = 500;
/// Files of one of them, and folders in each other.
const FILES_MAX: usize = 100_000;
const DEPTH_MAX: usize = 64;

/// The sealed outputs that somebody has signed for a fleet, those used last first.
pub(crate) fn sealed(store: &Store) -> Result<Vec<Sealed>, Failed> {
    let published: HashSet<Digest> = published(store).into_iter().collect();
    let mut outputs = store.inventory()?.outputs;
    outputs.retain(|it| Origin::is_in(&it.record) || published.contains(&it.tree));
    outputs.sort_by_key(|it| std::cmp::Reverse(it.used_ns));
    Ok(outputs.iter().take(OUTPUTS_MAX).map(|it| output(store, it.tree)).collect())
}

/// An output of a store, with the files that lie there.
pub(crate) fn output(store: &Store, tree: Digest) -> Sealed {
    let folder = store.root().join("out").join(tree.to_string());
    let files = files_below(&folder);
    Sealed { tree, folder, files }
}

/// The pulls of a store that are under way, or were cut short.
pub(crate) fn coming(root: &Path) -> Vec<Coming> {
    let one = |(log, folder)| Coming { log, folder, out: root.join("out") };
    Store::pull_logs(root).into_iter().map(one).collect()
}

/// The paths and sizes of what lies in a folder; what cannot be looked at is left out.
fn files_below(folder: &Path) -> Vec<(String, u64)> {
    let (mut files, mut open) = (Vec::new(), vec![(PathBuf::new(), 0)]);
    while let Some((path, depth)) = open.pop() {
        let Ok(entries) = fs::read_dir(folder.join(&path)) else { continue };
        for entry in entries.flatten() {
            let Ok(stat) = entry.metadata() else { continue };
            let path = path.join(entry.file_name());
            if stat.is_dir() && depth < DEPTH_MAX {
                open.push((path, depth + 1));
            } else if let Some(path) = path.to_str()
                && stat.is_file()
                && files.len() < FILES_MAX
            {
                files.push((path.to_owned(), stat.len()));
            }
        }
    }
    files
}

/// Remembers that outputs were published, so that neighbours may have them; losing that costs no more than that they do not.
pub(crate) fn keep_published(store: &Store, trees: &[Digest]) {
    let mut all = published(store);
    let before = all.len();
    let new = trees.iter().filter(|tree| !all.contains(tree)).copied().collect::<Vec<_>>();
    all.extend(new);
    if all.len() > before {
        let surplus = all.len().saturating_sub(OUTPUTS_MAX);
        notes::keep(store, &published_note(), &all[surplus..]);
    }
}

fn published(store: &Store) -> Vec<Digest> {
    notes::read(store, &published_note())
}

fn published_note() -> Digest {
    Digest::of(b"outputs of this store that were published")
}

/// What this store's own peer is called, where one runs or ran.
pub(crate) fn own_peer(store: &Store) -> Option<String> {
    String::from_utf8(store.note(&peer_note())?).ok()
}

/// Remembers that, so that pulls into this store leave it out.
pub(crate) fn keep_own_peer(store: &Store, id: &str) {
    if own_peer(store).as_deref() != Some(id) {
        let _ = store.keep_note(&peer_note(), id.as_bytes());
    }
}

fn peer_note() -> Digest {
    Digest::of(b"the name of this store's peer")
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use serde_json::{Value, json};
    use smelt_store::Wait;

    use super::*;

    /// What was built here and never published, as a stage that says `share = false`, is nobody else's.
    #[test]
    fn only_what_came_from_a_fleet_or_was_published_is_served() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Wait::No).unwrap();
        let holder = store.begin_hold(SystemTime::now()).unwrap();
        let seal = |name: &str, record: Value| {
            let work = holder.work_dir(name).unwrap();
            fs::create_dir(work.join("deep")).unwrap();
            fs::write(work.join("deep/file"), name).unwrap();
            let key = Digest::of(name.as_bytes());
            store.seal_referring(&key, &work, record, &[]).unwrap().digest
        };
        let own = seal("own", json!({}));
        let fetched = seal("fetched", json!({ "fleet": {} }));
        let published = seal("published", json!({}));
        let served = || sealed(&store).unwrap();
        assert_eq!(served().iter().map(|it| it.tree).collect::<Vec<_>>(), [fetched]);
        assert_eq!(served()[0].files, [("deep/file".to_owned(), 7)]);
        keep_published(&store, &[published, published]);
        let trees: HashSet<Digest> = served().iter().map(|it| it.tree).collect();
        assert!(trees == HashSet::from([fetched, published]) && !trees.contains(&own));
    }
}
