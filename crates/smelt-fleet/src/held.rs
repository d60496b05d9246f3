//! Says which outputs a server holds whole, each with the word of somebody who is believed.
//!
//! An entry may be there without its bytes: servers remove what was not asked for, and not all of them look at both.

use std::collections::{BTreeSet, HashSet};

use smelt_store::Digest;

use crate::chunk::Index;
use crate::dsse::Envelope;
use crate::judge::{Asked, judge};
use crate::pull::is_too_large;
use crate::remote::{Blob, Entry, Key, Remote, RemoteError};
use crate::statement::Statement;
use crate::trust::Trust;

/// Keys whose entries, statements and lists of chunks are in memory together: up to 9 MiB each.
const KEYS_AT_ONCE: usize = 8;

/// Of outputs those that could be had again by what this board believes: the server has their statements and every blob.
/// `now` is in seconds of the Unix era.
///
/// # Errors
/// If the server does not answer.
pub fn held(
    remote: &dyn Remote,
    trees: &[Digest],
    trust: &Trust,
    now: u64,
) -> Result<BTreeSet<Digest>, RemoteError> {
    let mut all = BTreeSet::new();
    for some in trees.chunks(KEYS_AT_ONCE) {
        let keys: Vec<Key> = some.iter().map(|tree| Key::Tree(*tree)).collect();
        let led = led_to(remote, &keys, trust, now)?;
        all.extend(led.into_iter().flatten());
    }
    Ok(all)
}

/// Whether an output can be had under every key of its statement.
///
/// # Errors
/// If the server does not answer.
pub fn is_published(
    remote: &dyn Remote,
    statement: &Statement,
    trust: &Trust,
    now: u64,
) -> Result<bool, RemoteError> {
    let own = [Key::Content(statement.key), Key::Tree(statement.tree)];
    let recipes = statement.recipes.iter().map(|recipe| Key::Recipe(*recipe));
    let keys: Vec<Key> = own.into_iter().chain(recipes).collect();
    let led = led_to(remote, &keys, trust, now)?;
    Ok(led.iter().all(|tree| *tree == Some(statement.tree)))
}

/// The outputs to which keys lead, where those are there as a whole and somebody vouches for them.
fn led_to(
    remote: &dyn Remote,
    keys: &[Key],
    trust: &Trust,
    now: u64,
) -> Result<Vec<Option<Digest>>, RemoteError> {
    let found = remote.entries(keys)?;
    let found: Vec<Option<Entry>> = found.into_iter().map(|it| it.ok().flatten()).collect();
    let all: BTreeSet<Blob> = found.iter().flatten().flat_map(Entry::blobs).collect();
    let missing = remote.missing(&all.into_iter().collect::<Vec<_>>())?;
    let whole = whole(found, &missing.into_iter().collect());
    let said: Vec<Blob> = whole.iter().flatten().flat_map(|it| [it.statement, it.index]).collect();
    let read = remote.read(&said)?;
    // What has another digest is not what the entry names.
    let read = said.iter().zip(read).map(|(blob, it)| it.filter(|it| Blob::of(it) == *blob));
    let mut read = read.collect::<Vec<_>>().into_iter();
    let judged = keys.iter().zip(whole).map(|(key, entry)| {
        entry?;
        let (statement, index) = (read.next()?, read.next()?);
        let asked = Asked { key: *key, instance: remote.instance(), least: 1 };
        let envelope = Envelope::from_json(&statement?).ok()?;
        let statement = judge(trust, &envelope, &asked, now).ok()?.statement;
        Index::read(&index?, &statement.files).ok().map(|_| statement.tree)
    });
    Ok(judged.collect())
}

/// The entries that lack nothing.
fn whole(found: Vec<Option<Entry>>, missing: &HashSet<Blob>) -> Vec<Option<Entry>> {
    let is_whole = |entry: &Entry| entry.blobs().all(|blob| !missing.contains(&blob));
    let is_whole = |entry: &Entry| !is_too_large(entry) && is_whole(entry);
    found.into_iter().map(|entry| entry.filter(is_whole)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_lacks_one_blob_is_not_whole() {
        let blob = |name: &str| Blob::of(name.as_bytes());
        let (pieces, chunks) = (Some(blob("p")), vec![blob("c")]);
        let entry = Entry { statement: blob("s"), index: blob("i"), pieces, chunks };
        let is_whole = |missing: &[&str]| {
            let missing = missing.iter().map(|name| blob(name)).collect();
            whole(vec![None, Some(entry.clone())], &missing) == [None, Some(entry.clone())]
        };
        assert!(is_whole(&[]) && is_whole(&["another's"]));
        assert!(["s", "i", "p", "c"].iter().all(|lost| !is_whole(&[lost])));
    }
}
