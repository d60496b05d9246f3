//! Stands for a decoder on a machine without its card: says what it is, and runs nothing.
//!
//! Who builds for other machines checks by it what a deployment says of its engine.

use std::path::Path;

use smelt_backend::{
    Answer, Decoder, DecoderFacts, KvBlock, KvOptions, KvUsage, OpenError, RunError, SlotInput,
    Witness,
};

use super::facts;
use super::file::DecoderDir;
use super::pages::PAGE_TOKENS;

/// A decoder that was opened where no card runs it.
#[derive(Debug)]
pub struct DescribedDecoder {
    facts: DecoderFacts,
    dir: DecoderDir,
}

impl DescribedDecoder {
    /// Opens the engine in `dir` without any card.
    ///
    /// # Errors
    /// When the directory holds no decoder for cards, or its parts disagree.
    pub fn open(dir: &Path, kv: KvOptions) -> Result<Self, OpenError> {
        let dir = DecoderDir::open(dir)?;
        Ok(Self { facts: facts(&dir, kv)?, dir })
    }

    fn refused<T>(&self) -> Result<T, RunError> {
        Err(RunError::Device(format!("no card of {} was opened", self.dir.target.word())))
    }
}

impl Decoder for DescribedDecoder {
    fn facts(&self) -> &DecoderFacts {
        &self.facts
    }

    fn kv_usage(&self) -> KvUsage {
        KvUsage { block_tokens: PAGE_TOKENS, block_bytes: 0, blocks_held: 0, blocks_total: 0 }
    }

    fn set_kv_bytes_max(&mut self, _bytes: u64) {}

    fn held(&self, _slot: usize) -> usize {
        0
    }

    fn submit(&mut self, _runs: &[SlotInput<'_>]) -> Result<(), RunError> {
        self.refused()
    }

    fn wait(&mut self) -> Result<Vec<Answer>, RunError> {
        self.refused()
    }

    fn truncate(&mut self, _slot: usize, _len: usize) {}

    fn fork(&mut self, _from: usize, _to: usize, _len: usize) -> Result<(), RunError> {
        self.refused()
    }

    fn block(&self, _slot: usize, _index: usize) -> Result<Option<KvBlock<'_>>, RunError> {
        Ok(None)
    }

    fn put_block(&mut self, _slot: usize, _block: &KvBlock<'_>) -> Result<(), RunError> {
        self.refused()
    }

    fn verify_digest(&self, told: &mut dyn Witness) -> Result<(), OpenError> {
        self.dir.verify_digest(told)
    }
}
