//! The files of a checkpoint that its texts follow from: tokenizer, chat template, tokens that end an answer.

use std::fs;
use std::path::{Path, PathBuf};

use smelt_model::checkpoint::Checkpoint;
use smelt_runtime::deployment::{self, TEXT_FILES};
use smelt_runtime::tokenizer::TOKENIZER_FILE;

use crate::DeployError;

/// Where the files of a GGUF file's own tokenizer lie while they are read, inside of what is made.
pub const MADE_DIR: &str = ".gguf";

/// The directory of a checkpoint's tokenizer, chat template and end tokens.
#[derive(Debug)]
pub struct TextFiles {
    dir: PathBuf,
    /// Made for this time only.
    is_made: bool,
}

impl TextFiles {
    /// Of `checkpoint`: its own directory; of a GGUF file that holds some of these files itself, one inside of
    /// `out` with all of them, which is gone when this is dropped.  `say` hears which of two tokenizers counts.
    ///
    /// # Errors
    /// When the GGUF file's own cannot be read, or a copy cannot be written.
    pub fn of(
        checkpoint: &Checkpoint,
        out: &Path,
        say: &dyn Fn(&str),
    ) -> Result<Self, DeployError> {
        let own = checkpoint.dir();
        let made = checkpoint.made_files().map_err(DeployError::model)?;
        if checkpoint.path() != own && own.join(TOKENIZER_FILE).exists() {
            let file = checkpoint.path().display();
            say(&format!("{TOKENIZER_FILE} beside {file} counts, not the one inside of it"));
        }
        if made.is_empty() {
            return Ok(Self { dir: own.to_owned(), is_made: false });
        }
        let dir = out.join(MADE_DIR);
        fs::create_dir_all(&dir).map_err(|error| DeployError::disk("make", &dir, &error))?;
        let files = Self { dir, is_made: true };
        for name in TEXT_FILES.iter().filter(|name| own.join(name).exists()) {
            deployment::copy(&own.join(name), &files.dir.join(name))?;
        }
        for file in made {
            let path = files.dir.join(file.name);
            let written = fs::write(&path, file.text);
            written.map_err(|error| DeployError::disk("write", &path, &error))?;
        }
        Ok(files)
    }

    /// Where they are.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for TextFiles {
    fn drop(&mut self) {
        if self.is_made {
            // What is left over is in nobody's way: it is no declared output.
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}
