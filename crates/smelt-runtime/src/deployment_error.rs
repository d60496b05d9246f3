//! Why a deployment, or a file of a checkpoint that one carries, cannot be used.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use smelt_backend::OpenError;

use crate::template::TemplateError;
use crate::tokenizer::TokenizerError;

/// The longest `deployment.json` or `generation_config.json` read; real ones are near 1 KiB.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Why a deployment could not be opened or written.
#[derive(Debug, thiserror::Error)]
pub enum DeploymentError {
    /// A file cannot be read or written.
    #[error("cannot {verb} {}: {source}", path.display())]
    Io {
        /// What was tried.
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file says something that cannot be.
    #[error("{}: {why}", path.display())]
    Bad {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// An engine was refused.
    #[error(transparent)]
    Engine(#[from] OpenError),
    /// The tokenizer was refused.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The chat template was refused.
    #[error(transparent)]
    Template(#[from] TemplateError),
}

/// The text of a side file of bounded length.
pub(crate) fn read_text(path: &Path) -> Result<String, DeploymentError> {
    read_text_within(path, FILE_BYTES_MAX)
}

/// The text of a file of so many bytes at most.
pub(crate) fn read_text_within(path: &Path, bytes_max: u64) -> Result<String, DeploymentError> {
    let failed = |source| DeploymentError::Io { verb: "read", path: path.into(), source };
    let mut text = String::new();
    let file = fs::File::open(path).map_err(failed)?;
    file.take(bytes_max + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > bytes_max {
        let why = format!("longer than the {bytes_max} bytes such a file may have");
        return Err(DeploymentError::Bad { path: path.into(), why });
    }
    Ok(text)
}
