//! Keeps the logits of one deployment over the tokens of right answers in a file, for others to be
//! compared with.
//!
//! For each question the size of the vocabulary, the answer's tokens, and a row of f32 for each.
//! The file lives as long as one comparison; rows are written and read one at a time.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;

/// Writes the file.
#[derive(Debug)]
pub struct Recorder(BufWriter<File>);

impl Recorder {
    /// Begins the file at `path`.
    ///
    /// # Errors
    /// What the system says.
    pub fn create(path: &Path) -> io::Result<Self> {
        Ok(Self(BufWriter::new(File::create_new(path)?)))
    }

    /// Begins a question whose right answer is `tokens`; a row for each must follow.
    pub(super) fn begin(&mut self, vocab: usize, tokens: &[u32]) -> io::Result<()> {
        self.0.write_all(&(vocab as u64).to_le_bytes())?;
        self.0.write_all(&(tokens.len() as u64).to_le_bytes())?;
        tokens.iter().try_for_each(|token| self.0.write_all(&token.to_le_bytes()))
    }

    pub(super) fn row(&mut self, logits: &[f32]) -> io::Result<()> {
        logits.iter().try_for_each(|logit| self.0.write_all(&logit.to_le_bytes()))
    }

    pub(super) fn finish(mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Reads the file.
#[derive(Debug)]
pub struct Player {
    file: BufReader<File>,
    row: Vec<u8>,
}

impl Player {
    /// Opens the file that a [`Recorder`] finished at `path`.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: BufReader::new(File::open(path)?), row: Vec::new() })
    }

    /// Begins the next question; says whether its rows are over the same tokens.  If they are,
    /// all must be read; if not, they have been stepped over.
    pub(super) fn begin(&mut self, vocab: usize, tokens: &[u32]) -> io::Result<bool> {
        let (row, count) = (self.number()?, self.number()?);
        let is_same = row == vocab as u64 && count == tokens.len() as u64;
        if is_same {
            let mut found = vec![0; tokens.len() * 4];
            self.file.read_exact(&mut found)?;
            if tokens.iter().map(|token| token.to_le_bytes()).eq(found
                .as_chunks()
                .0
                .iter()
                .copied())
            {
                self.row.resize(vocab * 4, 0);
                return Ok(true);
            }
        }
        let rows = row.saturating_mul(count).saturating_mul(4);
        let skipped = if is_same { rows } else { rows.saturating_add(count.saturating_mul(4)) };
        let read = io::copy(&mut self.file.by_ref().take(skipped), &mut io::sink())?;
        if read < skipped { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(false) }
    }

    pub(super) fn row(&mut self) -> io::Result<Vec<f32>> {
        self.file.read_exact(&mut self.row)?;
        Ok(self.row.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect())
    }

    fn number(&mut self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.file.read_exact(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_and_those_of_other_tokens_are_stepped_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("logits");
        let mut recorder = Recorder::create(&path).unwrap();
        for (tokens, first) in [([1, 2], 0.5), ([3, 4], 1.5), ([5, 6], 2.5), ([7, 8], 3.5)] {
            recorder.begin(3, &tokens).unwrap();
            recorder.row(&[first, 0.0, -1.0]).unwrap();
            recorder.row(&[first, 0.0, -2.0]).unwrap();
        }
        recorder.finish().unwrap();
        let mut player = Player::open(&path).unwrap();
        assert!(player.begin(3, &[1, 2]).unwrap());
        assert_eq!(player.row().unwrap(), [0.5, 0.0, -1.0]);
        assert_eq!(player.row().unwrap(), [0.5, 0.0, -2.0]);
        assert!(!player.begin(3, &[3, 9]).unwrap(), "other tokens");
        assert!(!player.begin(4, &[5, 6]).unwrap(), "another vocabulary");
        assert!(player.begin(3, &[7, 8]).unwrap());
        assert_eq!(player.row().unwrap(), [3.5, 0.0, -1.0]);
        player.row().unwrap();
        assert!(player.begin(3, &[1]).is_err(), "there are no more");
    }
}
