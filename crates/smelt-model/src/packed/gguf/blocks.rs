//! Takes ggml's quantised blocks apart.
//!
//! A row of Q8_0 is blocks of 32 elements: an f16 scale, then 32 signed bytes.  One of Q4_0: an f16
//! scale, then 16 bytes whose low nibbles are the first 16 elements and whose high nibbles are the
//! last 16, each offset by 8.  Rows of Llama's query and key projections lie interleaved and are
//! put back.  Source: `block_q8_0`, `block_q4_0` in ggml's `ggml-common.h`; `LlamaModel.permute` in
//! llama.cpp's `convert_hf_to_gguf.py`.  Knows nothing of files or names.

use std::ops::Range;

use crate::dtype::Dtype;
use crate::safetensors::{SafetensorsError, Shards, Tensor};

/// Elements of a quantised block.
pub(crate) const BLOCK: usize = 32;

/// Bytes of a block's scale.
const SCALE_BYTES: usize = 2;

/// How a tensor's elements are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Floats.
    Float(Dtype),
    /// 8-bit blocks.
    Q8_0,
    /// 4-bit blocks.
    Q4_0,
}

/// ggml's other types by number, for refusals.
const UNSUPPORTED: [(u32, &str); 28] = [
    (3, "Q4_1"),
    (6, "Q5_0"),
    (7, "Q5_1"),
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (12, "Q4_K"),
    (13, "Q5_K"),
    (14, "Q6_K"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
    (40, "NVFP4"),
];

impl Kind {
    /// The kind of ggml's type `number`, or the name of one that is not read.
    pub(crate) fn of_number(number: u32) -> Result<Self, String> {
        match number {
            0 => Ok(Self::Float(Dtype::F32)),
            1 => Ok(Self::Float(Dtype::F16)),
            2 => Ok(Self::Q4_0),
            8 => Ok(Self::Q8_0),
            30 => Ok(Self::Float(Dtype::BF16)),
            other => {
                let known = UNSUPPORTED.iter().find(|(number, _)| *number == other);
                Err(known.map_or_else(|| format!("of type {other}"), |(_, name)| (*name).into()))
            }
        }
    }

    /// ggml's word.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Float(dtype) => dtype.name(),
            Self::Q8_0 => "Q8_0",
            Self::Q4_0 => "Q4_0",
        }
    }

    /// The element type, if it is floats.
    pub(crate) fn float(self) -> Option<Dtype> {
        match self {
            Self::Float(dtype) => Some(dtype),
            Self::Q8_0 | Self::Q4_0 => None,
        }
    }

    /// The element type under which stored bytes are served: blocks are bytes.
    pub(crate) fn stored_dtype(self) -> Dtype {
        self.float().unwrap_or(Dtype::U8)
    }

    /// Elements of a block.
    pub(crate) fn block_elements(self) -> usize {
        if self.float().is_some() { 1 } else { BLOCK }
    }

    /// Bytes of a block.
    pub(crate) fn block_bytes(self) -> usize {
        match self {
            Self::Float(dtype) => dtype.size_bytes(),
            Self::Q8_0 => SCALE_BYTES + BLOCK,
            Self::Q4_0 => SCALE_BYTES + BLOCK / 2,
        }
    }

    /// The canonical bytes of one block's levels.
    fn put_levels(self, block: &[u8], out: &mut [u8]) {
        let stored = &block[SCALE_BYTES..];
        if self == Self::Q8_0 {
            return out.copy_from_slice(stored);
        }
        let level = |column: usize| (stored[column % 16] >> (4 * (column / 16))) & 15;
        for (pair, out) in out.iter_mut().enumerate() {
            *out = level(2 * pair) | level(2 * pair + 1) << 4;
        }
    }
}

/// What is taken of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Take {
    /// Everything, as it is.
    All,
    /// The levels of blocks, in canonical form.
    Levels,
    /// The scales of blocks, f16.
    Scales,
}

/// How canonical rows are made of a GGUF tensor.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    /// The stored rows.
    pub(crate) tensor: Tensor,
    /// What they are made of.
    pub(crate) kind: Kind,
    /// What is taken.
    pub(crate) take: Take,
    /// The width of a head, if rows are interleaved inside heads.
    pub(crate) interleaved: Option<usize>,
}

impl Blocks {
    /// Fills `out` with the canonical bytes of `rows`, `row_bytes` each.
    ///
    /// # Errors
    /// The reader's.
    pub(crate) fn read_rows(
        &self,
        files: &Shards,
        rows: &Range<usize>,
        row_bytes: usize,
        out: &mut [u8],
    ) -> Result<(), SafetensorsError> {
        let stored_rows = self.tensor.shape.first().copied().unwrap_or(1).max(1);
        let stored_bytes = self.tensor.size_bytes() as usize / stored_rows;
        let mut line = vec![0; stored_bytes];
        for (row, out) in rows.clone().zip(out.chunks_exact_mut(row_bytes)) {
            let at = (self.stored_row(row) * stored_bytes) as u64;
            files.read_at(&self.tensor, at, &mut line)?;
            self.put_row(&line, out);
        }
        Ok(())
    }

    /// The stored row of row `row`: llama.cpp puts the halves of a head side by side.
    fn stored_row(&self, row: usize) -> usize {
        let Some(width) = self.interleaved else { return row };
        let (head, inside) = (row / width, row % width);
        let (half, index) = (inside / (width / 2), inside % (width / 2));
        head * width + 2 * index + half
    }

    fn put_row(&self, line: &[u8], out: &mut [u8]) {
        let blocks = line.chunks_exact(self.kind.block_bytes());
        match self.take {
            Take::All => out.copy_from_slice(line),
            Take::Levels => {
                let bytes = if self.kind == Kind::Q4_0 { BLOCK / 2 } else { BLOCK };
                for (block, out) in blocks.zip(out.chunks_exact_mut(bytes)) {
                    self.kind.put_levels(block, out);
                }
            }
            Take::Scales => {
                for (block, out) in blocks.zip(out.chunks_exact_mut(SCALE_BYTES)) {
                    out.copy_from_slice(&block[..SCALE_BYTES]);
                }
            }
        }
    }
}
