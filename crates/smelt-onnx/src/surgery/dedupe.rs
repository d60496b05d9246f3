//! Stores equal initializers once.
//!
//! Only tensors of one type and shape can be equal, so only those are read, a block at a
//! time, and told apart by SHA-256.

use std::collections::BTreeMap;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::RuleError;
use super::patch::Patch;
use crate::external::{DataError, read_initializer};
use crate::model::{Data, Initializer, Model};
use crate::survey::Survey;

/// Bytes read at a time.
const BLOCK_BYTES: usize = 1 << 20;

/// Makes all nodes read the first of every set of byte-equal initializers, and drops the rest.
///
/// # Errors
/// When a weight cannot be read.
pub fn dedupe(model: &Model, dir: &Path) -> Result<Option<Patch>, RuleError> {
    let survey = Survey::new(&model.graph);
    let mut alike: BTreeMap<(i32, &[usize]), Vec<&Initializer>> = BTreeMap::new();
    for tensor in &model.graph.initializers {
        if survey.constant(&tensor.name).is_some() && !survey.is_output(&tensor.name) {
            alike.entry((tensor.dtype.number(), &tensor.dims)).or_default().push(tensor);
        }
    }
    let mut patch = Patch::default();
    let mut saved = 0;
    for tensors in alike.values().filter(|tensors| tensors.len() > 1) {
        let mut seen: BTreeMap<Vec<u8>, &Initializer> = BTreeMap::new();
        let mut places: BTreeMap<(&str, u64), Vec<u8>> = BTreeMap::new();
        for tensor in tensors {
            let digest = match place(tensor).and_then(|place| places.get(&place)) {
                Some(digest) => digest.clone(),
                None => digest(dir, tensor)
                    .map_err(|error| RuleError { rule: "dedupe", why: error.to_string() })?,
            };
            places.extend(place(tensor).map(|place| (place, digest.clone())));
            let first = *seen.entry(digest).or_insert(tensor);
            if first.name != tensor.name {
                patch.rewire.insert(tensor.name.clone(), first.name.clone());
                patch.remove_initializers.insert(tensor.name.clone());
                saved += tensor.byte_len().unwrap_or(0);
            }
        }
    }
    let count = patch.rewire.len();
    patch.summary = format!("{count} initializers of {saved} bytes are equal to others");
    Ok((count > 0).then_some(patch))
}

fn place(tensor: &Initializer) -> Option<(&str, u64)> {
    match &tensor.data {
        Data::External { location, offset, .. } => Some((location, *offset)),
        Data::Inline(_) => None,
    }
}

fn digest(dir: &Path, tensor: &Initializer) -> Result<Vec<u8>, DataError> {
    let length = tensor.byte_len().unwrap_or(0);
    let mut block = vec![0; length.min(BLOCK_BYTES)];
    let mut hasher = Sha256::new();
    for begin in (0..length).step_by(BLOCK_BYTES) {
        let block = &mut block[..(length - begin).min(BLOCK_BYTES)];
        read_initializer(dir, tensor, begin as u64, block)?;
        hasher.update(&*block);
    }
    Ok(hasher.finalize().to_vec())
}
