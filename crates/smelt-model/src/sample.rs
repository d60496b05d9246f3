//! Makes small checkpoints for tests, whole or spoilt in one place.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::checkpoint::{INDEX_FILE, WEIGHTS_FILE};
use crate::safetensors::{Reader, TensorSpec, Writer};
use crate::synthetic;

/// A tensor in memory, as tests change it.
pub(crate) type Loaded = (TensorSpec, Vec<u8>);

/// A checkpoint in a directory that goes away with it.
pub(crate) struct Sample(TempDir);

impl Sample {
    /// The tiny synthetic model.
    pub(crate) fn tiny() -> Self {
        Self::named("internvl3-tiny")
    }

    /// The synthetic model `name`.
    pub(crate) fn named(name: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        synthetic::write(name, dir.path(), &mut |_| {}).unwrap();
        Self(dir)
    }

    /// The tiny model after `change` to its tensors.
    pub(crate) fn changed(change: impl FnOnce(&mut Vec<Loaded>)) -> Self {
        let sample = Self::tiny();
        let mut tensors = load(&sample.weights());
        change(&mut tensors);
        save(&sample.weights(), &tensors);
        sample
    }

    /// The tiny model without a head of its own.
    pub(crate) fn tied() -> Self {
        Self::changed(|tensors| tensors.retain(|(spec, _)| !spec.name.contains("lm_head")))
    }

    /// Spreads the weights over `count` files with an index.
    pub(crate) fn shard(&self, count: usize) {
        let tensors = load(&self.weights());
        let mut places = BTreeMap::new();
        for (n, shard) in tensors.chunks(tensors.len().div_ceil(count)).enumerate() {
            let file = format!("model-{}.safetensors", n + 1);
            save(&self.dir().join(&file), shard);
            places.extend(shard.iter().map(|(spec, _)| (spec.name.clone(), file.clone())));
        }
        let index = serde_json::json!({ "metadata": {}, "weight_map": places });
        fs::write(self.dir().join(INDEX_FILE), index.to_string()).unwrap();
        fs::remove_file(self.weights()).unwrap();
    }

    pub(crate) fn dir(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn weights(&self) -> PathBuf {
        self.dir().join(WEIGHTS_FILE)
    }
}

/// The tensor called `name` among `tensors`.
pub(crate) fn named<'a>(tensors: &'a mut [Loaded], name: &str) -> &'a mut Loaded {
    tensors.iter_mut().find(|(spec, _)| spec.name == name).unwrap()
}

/// Every tensor of the file at `path`.
pub(crate) fn load(path: &Path) -> Vec<Loaded> {
    let reader = Reader::open(path).unwrap();
    let load = |tensor: &crate::safetensors::Tensor| {
        let mut bytes = vec![0; tensor.size_bytes() as usize];
        reader.read_at(tensor, 0, &mut bytes).unwrap();
        let (name, shape) = (tensor.name.clone(), tensor.shape.clone());
        (TensorSpec { name, dtype: tensor.dtype, shape }, bytes)
    };
    reader.tensors().map(load).collect()
}

/// Writes `tensors` over the file at `path`.
pub(crate) fn save(path: &Path, tensors: &[Loaded]) {
    let specs: Vec<TensorSpec> = tensors.iter().map(|(spec, _)| spec.clone()).collect();
    let mut writer = Writer::create(path, &specs, &BTreeMap::new()).unwrap();
    for (_, bytes) in tensors {
        writer.write(bytes).unwrap();
    }
    writer.finish().unwrap();
}
