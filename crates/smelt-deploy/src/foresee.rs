//! Says what a deployment of a checkpoint will be refused for: all that small files tell before anything is built of them.

use std::path::Path;

use smelt_model::checkpoint::Checkpoint;
use smelt_runtime::deployment::{self, eos_tokens};
use smelt_runtime::prompt::ImageTokens;
use smelt_runtime::tokenizer::{TOKENIZER_FILE, Tokenizer};

use crate::DeployError;
use crate::spec::{cutting, family};
use crate::text_files::TextFiles;

/// What of `checkpoint` a deployment would be refused for, which `sees` or reads text alone.  Files that a GGUF file holds
/// are written below `scratch` while they are read; `say` hears which of two tokenizers counts.
///
/// # Errors
/// The first thing that no deployment can have.
pub fn check(
    checkpoint: &Checkpoint,
    scratch: &Path,
    sees: bool,
    say: &dyn Fn(&str),
) -> Result<(), DeployError> {
    let files = TextFiles::of(checkpoint, scratch, say)?;
    let found = check_in(files.dir(), checkpoint, sees);
    found.map_err(|why| why.renamed(files.dir(), checkpoint.path()))
}

/// The same of a checkpoint whose tokenizer and chat template are in `dir`.
fn check_in(dir: &Path, checkpoint: &Checkpoint, sees: bool) -> Result<(), DeployError> {
    let path = dir.join(TOKENIZER_FILE);
    let tokenizer = Tokenizer::open(&path).map_err(DeployError::model)?;
    let family = family(checkpoint)?;
    if sees {
        cutting(checkpoint)?;
    }
    let words = ImageTokens::of(family).filter(|_| sees);
    let words = words.iter().flat_map(|words| [&words.start, &words.image, &words.end]);
    let bad = |why: String| DeployError::model(format!("{}: {why}", path.display()));
    for word in words {
        if tokenizer.token(word).is_none() {
            return Err(bad(format!("has no token {word:?}, which stands for pictures")));
        }
    }
    let (known, has) = (checkpoint.decoder().map_err(DeployError::model)?.vocab, tokenizer.vocab());
    if has > known {
        return Err(bad(format!("has {has} tokens, but the model knows {known}")));
    }
    eos_tokens(dir, &tokenizer)?;
    check_texts(dir)
}

/// The same of the texts in `dir` alone, without a tokenizer.
///
/// # Errors
/// The first thing that no deployment can have.
pub fn check_texts(dir: &Path) -> Result<(), DeployError> {
    Ok(deployment::check_texts(dir)?)
}
