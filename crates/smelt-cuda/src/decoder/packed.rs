//! Reads the weights of an engine back as they are packed, on any machine: no card is asked.
//!
//! Who checks an engine compares by it what the engine holds with what it was built from.

use std::path::Path;

use smelt_backend::{OpenError, Witness};

use super::file::{DecoderDir, DecoderFile, LAYOUT, TensorEntry};
use crate::CudaTarget;
use crate::kernels::form::{WeightForm, WeightPart};
use crate::kernels::layout::{padded_columns, part_bytes};
use crate::kernels::pack::Strip;

/// The weights of an engine that was opened without a card.
#[derive(Debug)]
pub struct PackedWeights {
    dir: DecoderDir,
}

impl PackedWeights {
    /// Opens the engine in `dir`.
    ///
    /// # Errors
    /// When the directory holds no decoder for cards of this layout, or its parts disagree.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        let dir = DecoderDir::open(dir)?;
        if dir.layout != LAYOUT {
            let problem = format!("it is packed in layout {}, not {LAYOUT}", dir.layout);
            return Err(dir.unfit("this version", problem));
        }
        Ok(Self { dir })
    }

    /// What `engine.json` says of the decoder.
    pub fn sizes(&self) -> &DecoderFile {
        &self.dir.engine
    }

    /// Which cards it is for.
    pub fn target(&self) -> CudaTarget {
        self.dir.target
    }

    /// All tensors, by name.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorEntry> {
        self.dir.tensors()
    }

    /// The tensor called `name`, if there is one.
    pub fn tensor(&self, name: &str) -> Option<&TensorEntry> {
        self.dir.tensor(name)
    }

    /// As many bytes of a tensor as numbers of four bytes take.
    ///
    /// # Errors
    /// When there is no such tensor, it has another number of bytes, or the file cannot be read.
    pub fn numbers(&self, name: &str, count: usize) -> Result<Vec<[u8; 4]>, OpenError> {
        let bytes = self.read(name, 0, count * 4, 1)?;
        Ok(bytes.as_chunks::<4>().0.to_vec())
    }

    /// Strip `index` of `strips` of the weight `name`, which has so many columns.
    ///
    /// # Errors
    /// When a part lacks, is of another length, or the file cannot be read.
    pub fn strip(
        &self,
        (name, form, columns): (&str, WeightForm, usize),
        index: usize,
        strips: usize,
    ) -> Result<Strip, OpenError> {
        let read = |part: WeightPart| {
            let bytes = part_bytes(form, part, padded_columns(columns));
            let name = format!("{name}{}", part.suffix());
            Ok((part, self.read(&name, index, bytes, strips)?))
        };
        let parts = form.parts().into_iter().map(read);
        Ok(Strip { parts: parts.collect::<Result<_, OpenError>>()? })
    }

    /// Piece `index` of a tensor that consists of `count` pieces of `bytes` bytes.
    fn read(
        &self,
        name: &str,
        index: usize,
        bytes: usize,
        count: usize,
    ) -> Result<Vec<u8>, OpenError> {
        let wrong = |problem: String| self.dir.damaged(format!("tensor {name:?} {problem}"));
        let entry = self.dir.tensor(name).ok_or_else(|| wrong("is missing".to_owned()))?;
        if entry.bytes != (bytes * count) as u64 || index >= count {
            return Err(wrong(format!("has {} bytes, not {}", entry.bytes, bytes * count)));
        }
        self.dir.read_piece(entry.offset + (index * bytes) as u64, bytes)
    }

    /// Reads all of the weights and compares their hash with `engine.json`; `told` hears how many bytes were read, piece by
    /// piece.
    ///
    /// # Errors
    /// When they differ.
    pub fn verify_digest(&self, told: &mut dyn Witness) -> Result<(), OpenError> {
        self.dir.verify_digest(told)
    }
}
