//! Keeps lists in the store's notes: a line of JSON each, of which one that cannot be read is left out.

use crate::Store;
use serde::Serialize;
use serde::de::DeserializeOwned;
use smelt_plan::Digest;

/// The list of that name; nothing where there is no note of it.
pub fn read<T: DeserializeOwned>(store: &Store, name: &Digest) -> Vec<T> {
    let text = store.note(name).unwrap_or_default();
    let lines = text.split(|&byte| byte == b'\n');
    lines.filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

/// Keeps the list in place of the one before.  On a full disk, say, it is not kept; notes may be lost at any time.
pub fn keep<'a, T: Serialize + 'a>(
    store: &Store,
    name: &Digest,
    list: impl IntoIterator<Item = &'a T>,
) {
    let mut text = Vec::new();
    for one in list {
        serde_json::to_writer(&mut text, one).expect("strings and numbers are JSON");
        text.push(b'\n');
    }
    let _ = store.keep_note(name, &text);
}
