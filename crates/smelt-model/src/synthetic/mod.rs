//! Writes checkpoints of true shapes without a download.
//!
//! A name becomes a directory in the layout its family is published in: configuration, tokenizer and one
//! weights file, whose every value is a pure function of (model, tensor, index).  The bytes are the
//! same on every machine.  Weights are written as a stream, so a model of any size needs a few MiB.
//! The answers of such a model mean nothing; its shapes, sizes and arithmetic are the real ones.

pub(crate) mod bert;
pub(crate) mod internvl3;
pub(crate) mod qwen_vl;
mod sizes;
pub(crate) mod tokenizer;
mod weights;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::checkpoint::{CONFIG_FILE, WEIGHTS_FILE};
use crate::families;
use crate::model::ModelPart;
use crate::safetensors::SafetensorsError;
pub(crate) use sizes::{Dimensions, Size, text_files};
pub(crate) use weights::EMBEDDING;

/// Why a synthetic checkpoint could not be written.
#[derive(Debug, thiserror::Error)]
pub enum SyntheticError {
    /// Nobody knows the name.
    #[error("unknown synthetic model {name:?}; known: {known}")]
    UnknownName {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The system refused a file or the directory.
    #[error("cannot write {}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The weights could not be written.
    #[error(transparent)]
    Weights(#[from] SafetensorsError),
}

/// The names [`write()`] knows.
pub fn names() -> impl Iterator<Item = &'static str> {
    families::synthetic().map(|size| size.name)
}

/// Writes the checkpoint `name` into `out_dir`, which is created if absent.
///
/// `progress` hears one line per layer.
///
/// # Errors
/// [`SyntheticError`] naming the file; what was written until then stays.
pub fn write(
    name: &str,
    out_dir: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), SyntheticError> {
    let size = families::synthetic().find(|size| size.name == name).ok_or_else(|| {
        let known = names().collect::<Vec<_>>().join(", ");
        SyntheticError::UnknownName { name: name.to_owned(), known }
    })?;
    fs::create_dir_all(out_dir).map_err(failed(out_dir))?;
    progress("configuration and tokenizer");
    for (file, text) in size.files() {
        let path = out_dir.join(file);
        fs::write(&path, text).map_err(failed(&path))?;
    }
    weights::write(size, &out_dir.join(WEIGHTS_FILE), progress)?;
    Ok(())
}

/// The text of a file that says what the model of that name is, as [`write()`] writes it.
pub fn configuration(name: &str, file: &str) -> Option<String> {
    let size = families::synthetic().find(|size| size.name == name)?;
    match file {
        CONFIG_FILE => Some(size.config_json()),
        sizes::PREPROCESSOR_FILE => size.dimensions.preprocessor_json(),
        _ => None,
    }
}

/// What is stored of the model of that name.
pub(crate) fn parts(name: &str) -> Option<&'static [ModelPart]> {
    families::synthetic().find(|size| size.name == name).map(|size| size.dimensions.parts())
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> SyntheticError {
    move |source| SyntheticError::Io { path: path.into(), source }
}

/// The JSON text of a value that cannot fail to have one.
pub(crate) fn json(value: &impl serde::Serialize) -> String {
    let text = serde_json::to_string_pretty(value);
    text.expect("structs, lists and maps with text keys are JSON") + "\n"
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;
    use crate::checkpoint::Checkpoint;

    fn digest(path: &Path) -> String {
        let digest = Sha256::digest(fs::read(path).unwrap());
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn the_tiny_models_bytes_are_pinned() {
        let dir = tempfile::tempdir().unwrap();
        write("internvl3-tiny", dir.path(), &mut |_| {}).unwrap();
        let mut files: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        let found: Vec<_> =
            files.iter().map(|path| format!("{} {}", digest(path), name(path))).collect();
        assert_eq!(
            found,
            [
                "0966f558771d657567b4791946b999508ac5ab3a4f3a07ecf29fddfeba45427f config.json",
                "7dd76f9eb89cc71fdd62bce2febf852f58c8d9722a359881a1ce1b5b87cd96e9 generation_config.json",
                "4f5fc0757044b6e99842614b66341dedb16dabcf86ea1263ab0f3f59fe2a0b7c model.safetensors",
                "a53c98a3617bf9ce9ed8a4a3c011f60c7c5f5aac10f4ac20c7f463b84d156d1b preprocessor_config.json",
                "4c9b64ac37d8a852b70d03d6df77c8c20ba50401798782c337c8235a72825122 special_tokens_map.json",
                "c3cf86d712d34062b41bf9b414b64a843163e57cbf0624e0e5b7ca50c0fbb925 tokenizer.json",
                "e03460ce0f3939dcb912b178d3e0255274c4c0f6e255b8c0d997a27741830b92 tokenizer_config.json",
            ]
        );
        let bytes: u64 = files.iter().map(|path| fs::metadata(path).unwrap().len()).sum();
        assert!(bytes < 1_000_000, "{bytes}");
    }

    #[test]
    fn a_checkpoint_written_over_another_opens() {
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            write("internvl3-tiny", dir.path(), &mut |_| {}).unwrap();
            Checkpoint::open(dir.path()).unwrap();
        }
        // Of another family, too.
        for name in [
            "qwen2_5_vl-tiny",
            "qwen3_vl-tiny",
            "smolvlm-tiny",
            "qwen2_vl-tiny",
            "ms-marco-minilm-tiny",
        ] {
            let dir = tempfile::tempdir().unwrap();
            write(name, dir.path(), &mut |_| {}).unwrap();
            Checkpoint::open(dir.path()).unwrap();
        }
    }

    #[test]
    fn unknown_names_are_refused_with_the_known_ones() {
        let dir = tempfile::tempdir().unwrap();
        let error = write("internvl3-3b", &dir.path().join("x"), &mut |_| {}).unwrap_err();
        let words = "unknown synthetic model \"internvl3-3b\"; known: internvl3-tiny, internvl3-1b, internvl3-2b, internvl3_5-tiny, internvl3_5-1b, internvl3_5-2b, qwen2_5_vl-tiny, qwen2_5_vl-3b, qwen3_vl-tiny, qwen3_vl-2b, smolvlm-tiny, smolvlm-256m, smolvlm-500m, qwen2_vl-tiny, qwen2_vl-2b, ms-marco-minilm-tiny, ms-marco-minilm-l6";
        assert_eq!(error.to_string(), words);
        assert!(!dir.path().join("x").exists());
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let error = write("internvl3-tiny", &file.join("x"), &mut |_| {}).unwrap_err().to_string();
        assert!(error.starts_with("cannot write ") && error.contains("file/x"), "{error}");
    }

    #[test]
    fn progress_is_heard_once_per_block() {
        let dir = tempfile::tempdir().unwrap();
        let mut lines = 0;
        write("internvl3-tiny", dir.path(), &mut |_| lines += 1).unwrap();
        assert_eq!(lines, 1 + 1 + 2 + 3 + 1 + 3 + 1 + 1);
    }
}
