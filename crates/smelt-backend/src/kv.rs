//! Says how keys and values are kept, and what they take.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::{Limits, OpenError};

/// The form of the numbers in which keys and values are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvType {
    /// As they were computed, 4 bytes a number.
    F32,
    /// Rounded to half precision, 2 bytes a number; beyond ±65504 they are held there.
    #[default]
    F16,
    /// Levels of one byte, and one f32 scale for each position and head.
    Int8,
}

impl KvType {
    /// The type called `word`: `f32`, `f16` or `int8`.
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "f32" => Some(Self::F32),
            "f16" => Some(Self::F16),
            "int8" => Some(Self::Int8),
            _ => None,
        }
    }

    /// What [`Self::parse`] reads.
    pub fn word(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Int8 => "int8",
        }
    }
}

/// How an engine keeps keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvOptions {
    /// The form of the numbers; without it the usual one, [`KvType::default`].
    pub kind: Option<KvType>,
    /// Most bytes of all blocks together; without it, as many as full slots take.
    pub bytes_max: Option<u64>,
    /// Slots, in place of those the engine was built for; an empty one takes nothing.
    pub max_slots: Option<usize>,
    /// Tokens of one slot, in place of those the engine was built for, as many as the model has positions at
    /// most.  Nothing in an engine grows with it.
    pub max_seq_len: Option<usize>,
}

impl KvOptions {
    /// The form of the numbers.
    pub fn form(&self) -> KvType {
        self.kind.unwrap_or_default()
    }

    /// The limits of an engine that is opened so, which was built for some and is of a model with so many positions, where
    /// it says so.  `unfit` is the engine's refusal.
    ///
    /// # Errors
    /// [`OpenError`] where no engine may have them, or the model was not made for them.
    pub fn limits(
        &self,
        built_for: Limits,
        positions: Option<usize>,
        unfit: impl FnOnce(&'static str, String) -> OpenError,
    ) -> Result<Limits, OpenError> {
        let limits = Limits {
            max_seq_len: self.max_seq_len.unwrap_or(built_for.max_seq_len),
            max_slots: self.max_slots.unwrap_or(built_for.max_slots),
        };
        limits.check().map_err(|problem| unfit("these limits", problem))?;
        match positions.filter(|most| limits.max_seq_len > *most) {
            Some(positions) => Err(OpenError::TooLong { asked: limits.max_seq_len, positions }),
            None => Ok(limits),
        }
    }
}

/// What keys and values take at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvUsage {
    /// Tokens of one block.
    pub block_tokens: usize,
    /// Bytes of one block.
    pub block_bytes: usize,
    /// Blocks that slots hold; a block that several share counts once.
    pub blocks_held: usize,
    /// Blocks that there may be.
    pub blocks_total: usize,
}

impl KvUsage {
    /// Blocks that may still be taken.
    pub fn blocks_free(&self) -> usize {
        self.blocks_total - self.blocks_held
    }

    /// Bytes of one token, rounded up where padding does not divide evenly.
    pub fn bytes_per_token(&self) -> usize {
        self.block_bytes.div_ceil(self.block_tokens)
    }
}

/// Keys and values of a block of tokens, as bytes that mean something to the engine alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvBlock<'a> {
    /// The position behind each token, of as many as the block holds.
    pub ends: Cow<'a, [u32]>,
    /// [`KvUsage::block_bytes`] of them.
    pub bytes: Cow<'a, [u8]>,
}
