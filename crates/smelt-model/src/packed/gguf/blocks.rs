//! Takes ggml's quantised blocks apart.
//!
//! A row of Q8_0 is blocks of 32 elements: an f16 scale, then 32 signed bytes.  One of Q4_0: an f16
//! scale, then 16 bytes whose low nibbles are the first 16 elements and whose high nibbles are the
//! last 16, each offset by 8.  Q4_1, Q5_0 and Q5_1 are like it, with a minimum (added) and fifth bits.
//! The K kinds have blocks of 256 elements in groups, whose scales and minima are factors of 6 or 8
//! bits of the block's two f16.  Rows of Llama's query and key projections lie interleaved and are
//! put back.  Source: `block_q4_1` … `block_q6_K` in ggml's `ggml-common.h`, `dequantize_row_*` in its
//! `ggml-quants.c`; `LlamaModel.permute` in llama.cpp's `convert_hf_to_gguf.py`.  Knows nothing of
//! files or names.

use std::ops::Range;

use smelt_tensor::packed::BlockForm;

use crate::dtype::Dtype;
use crate::safetensors::{SafetensorsError, Shards, Tensor};

/// Elements of a block of the plain kinds.
pub(crate) const BLOCK: usize = 32;

/// Elements of a block of the K kinds.
const SUPER_BLOCK: usize = 256;

/// Bytes of a block's scale.
const SCALE_BYTES: usize = 2;

/// Bytes of stored rows read at a time.
const READ_BYTES: usize = 256 << 10;

/// The sign of the second byte of an f16.
const SIGN: u8 = 0x80;

/// How a tensor's elements are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Floats.
    Float(Dtype),
    /// 8-bit blocks.
    Q8_0,
    /// 4-bit blocks.
    Q4_0,
    /// 4-bit blocks with a minimum.
    Q4_1,
    /// 5-bit blocks.
    Q5_0,
    /// 5-bit blocks with a minimum.
    Q5_1,
    /// 4-bit groups of 32 with factors for scale and minimum.
    Q4K,
    /// 5-bit groups of 32 with factors for scale and minimum.
    Q5K,
    /// 6-bit groups of 16 with factors for the scale.
    Q6K,
}

/// The kinds whose elements are read, in words.
pub(crate) const READ: &str = "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K and Q6_K";

/// ggml's other types by number, for refusals.
const UNSUPPORTED: [(u32, &str); 22] = [
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
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
            3 => Ok(Self::Q4_1),
            6 => Ok(Self::Q5_0),
            7 => Ok(Self::Q5_1),
            8 => Ok(Self::Q8_0),
            12 => Ok(Self::Q4K),
            13 => Ok(Self::Q5K),
            14 => Ok(Self::Q6K),
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
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
        }
    }

    /// The element type, if it is floats.
    pub(crate) fn float(self) -> Option<Dtype> {
        match self {
            Self::Float(dtype) => Some(dtype),
            _ => None,
        }
    }

    /// The form of the weight it makes, where that has more than quants and scales.
    pub(crate) fn form(self) -> Option<BlockForm> {
        match self {
            Self::Float(_) | Self::Q8_0 | Self::Q4_0 => None,
            _ => BlockForm::parse(&self.name().to_ascii_lowercase()),
        }
    }

    /// The element type under which stored bytes are served: blocks are bytes.
    pub(crate) fn stored_dtype(self) -> Dtype {
        self.float().unwrap_or(Dtype::U8)
    }

    /// Elements of a block.
    pub(crate) fn block_elements(self) -> usize {
        match self {
            Self::Float(_) => 1,
            Self::Q4K | Self::Q5K | Self::Q6K => SUPER_BLOCK,
            _ => BLOCK,
        }
    }

    /// Bytes of a block.
    pub(crate) fn block_bytes(self) -> usize {
        match self {
            Self::Float(dtype) => dtype.size_bytes(),
            Self::Q8_0 => 34,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// The quants of one block, a byte each.
    fn quants(self, block: &[u8]) -> [u8; SUPER_BLOCK] {
        let mut quants = [0; SUPER_BLOCK];
        match self {
            Self::Float(_) | Self::Q8_0 => {}
            Self::Q4_0 => halves(&block[2..], &[], &mut quants),
            Self::Q4_1 => halves(&block[4..], &[], &mut quants),
            Self::Q5_0 => halves(&block[6..], &block[2..6], &mut quants),
            Self::Q5_1 => halves(&block[8..], &block[4..8], &mut quants),
            Self::Q4K => pairs_of_groups(&block[16..], &[], &mut quants),
            Self::Q5K => pairs_of_groups(&block[48..], &block[16..48], &mut quants),
            Self::Q6K => quarters(&block[..128], &block[128..192], &mut quants),
        }
        quants
    }

    /// The canonical bytes of one block's quants.
    fn put_quants(self, block: &[u8], out: &mut [u8]) {
        match self {
            Self::Q8_0 => return out.copy_from_slice(&block[SCALE_BYTES..]),
            Self::Q4_0 | Self::Q4_1 => return put_halves(&block[block.len() - BLOCK / 2..], out),
            _ => {}
        }
        let quants = self.quants(block);
        for (out, pair) in out.iter_mut().zip(quants.as_chunks::<2>().0) {
            *out = pair[0] & 15 | (pair[1] & 15) << 4;
        }
    }

    /// The canonical words of what is above four bits of one block's quants; `out` is zero.
    fn put_high(self, block: &[u8], out: &mut [u8]) {
        let Some(form) = self.form() else { return };
        form.put_high(&self.quants(block)[..self.block_elements()], out);
    }

    /// The f16 that scales are, or are multiples of.
    fn scale(self, block: &[u8]) -> [u8; SCALE_BYTES] {
        let at = if self == Self::Q6K { 208 } else { 0 };
        [block[at], block[at + 1]]
    }

    /// The f16 that minima, subtracted, are or are multiples of; plain kinds add theirs.
    fn min(self, block: &[u8]) -> [u8; SCALE_BYTES] {
        let sign = if self.block_elements() == BLOCK { SIGN } else { 0 };
        [block[2], block[3] ^ sign]
    }

    /// The factors of the groups' scales.
    fn put_factors(self, block: &[u8], out: &mut [u8]) {
        if self == Self::Q6K {
            return out.copy_from_slice(&block[192..208]);
        }
        out.iter_mut()
            .enumerate()
            .for_each(|(group, out)| *out = six_bits(&block[4..16], group)[0]);
    }

    /// The factors of the groups' minima.
    fn put_min_factors(block: &[u8], out: &mut [u8]) {
        out.iter_mut()
            .enumerate()
            .for_each(|(group, out)| *out = six_bits(&block[4..16], group)[1]);
    }
}

/// Quants of 32 elements: `low` has the first 16 in its low nibbles, the others in its high ones;
/// `fifth`, where there are such, a bit for each element.
fn halves(low: &[u8], fifth: &[u8], quants: &mut [u8]) {
    for (column, quant) in quants[..BLOCK].iter_mut().enumerate() {
        let high = fifth.get(column / 8).map_or(0, |byte| (byte >> (column % 8)) & 1);
        *quant = (low[column % 16] >> (column / 16 * 4)) & 15 | high << 4;
    }
}

/// Those of `low` alone, in canonical form.
fn put_halves(low: &[u8], out: &mut [u8]) {
    let (first, last) = out.split_at_mut(BLOCK / 4);
    let pairs = low.as_chunks::<2>().0.iter().zip(first.iter_mut().zip(last));
    for (pair, (first, last)) in pairs {
        *first = pair[0] & 15 | pair[1] << 4;
        *last = pair[0] >> 4 | pair[1] & 0xf0;
    }
}

/// Quants of 256 elements: 32 bytes of `low` for two groups of 32, of which the first has the low
/// nibbles; a byte of `fifth`, where there are such, for a column of all eight groups.
fn pairs_of_groups(low: &[u8], fifth: &[u8], quants: &mut [u8]) {
    for (at, quant) in quants.iter_mut().enumerate() {
        let (group, column) = (at / 32, at % 32);
        let high = fifth.get(column).map_or(0, |byte| (byte >> group) & 1);
        *quant = (low[group / 2 * 32 + column] >> (group % 2 * 4)) & 15 | high << 4;
    }
}

/// Quants of 256 elements of 6 bits, halves of 128 for themselves: 64 bytes of `low`, whose low nibbles
/// come first; 32 of `high`, two bits for the same column of each quarter.
fn quarters(low: &[u8], high: &[u8], quants: &mut [u8]) {
    for (at, quant) in quants.iter_mut().enumerate() {
        let (half, inside) = (at / 128, at % 128);
        let nibble = (low[half * 64 + inside % 64] >> (inside / 64 * 4)) & 15;
        *quant = nibble | ((high[half * 32 + inside % 32] >> (inside / 32 * 2)) & 3) << 4;
    }
}

/// The factors of scale and minimum of `group`, six bits each: those of the first four groups in the
/// low bits of bytes 0..4 and 4..8, those of the others in bytes 8..12 and above the first.
fn six_bits(packed: &[u8], group: usize) -> [u8; 2] {
    if group < 4 {
        return [packed[group] & 63, packed[group + 4] & 63];
    }
    let both = packed[group + 4];
    [both & 15 | packed[group - 4] >> 6 << 4, both >> 4 | packed[group] >> 6 << 4]
}

/// What is taken of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Take {
    /// Everything, as it is.
    All,
    /// The quants of blocks, in canonical form: all of them, or their low four bits.
    Quants,
    /// What is above four bits of the quants.
    High,
    /// The scales of blocks, f16.
    Scales,
    /// The factors of the groups' scales.
    Factors,
    /// The minima of blocks, f16, to be subtracted.
    Mins,
    /// The factors of the groups' minima.
    MinFactors,
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
    /// Fills `out`, which is zero, with the canonical bytes of `rows`, `row_bytes` each.
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
        let some = (READ_BYTES / stored_bytes.max(1)).max(1);
        let mut lines = Vec::new();
        for first in rows.clone().step_by(some) {
            let own = first..rows.end.min(first + some);
            let stored = self.stored_rows(&own);
            lines.resize(stored.len() * stored_bytes, 0);
            files.read_at(&self.tensor, (stored.start * stored_bytes) as u64, &mut lines)?;
            let out = &mut out[(first - rows.start) * row_bytes..];
            for (row, out) in own.zip(out.chunks_exact_mut(row_bytes)) {
                let at = (self.stored_row(row) - stored.start) * stored_bytes;
                self.put_row(&lines[at..][..stored_bytes], out);
            }
        }
        Ok(())
    }

    /// Stored rows among which all of `rows` are.
    fn stored_rows(&self, rows: &Range<usize>) -> Range<usize> {
        let Some(width) = self.interleaved else { return rows.clone() };
        rows.start / width * width..rows.end.next_multiple_of(width)
    }

    /// The stored row of row `row`: llama.cpp puts the halves of a head side by side.
    fn stored_row(&self, row: usize) -> usize {
        let Some(width) = self.interleaved else { return row };
        let (head, inside) = (row / width, row % width);
        let (half, index) = (inside / (width / 2), inside % (width / 2));
        head * width + 2 * index + half
    }

    fn put_row(&self, line: &[u8], out: &mut [u8]) {
        let kind = self.kind;
        if self.take == Take::All {
            return out.copy_from_slice(line);
        }
        let blocks = line.chunks_exact(kind.block_bytes());
        let bytes = out.len() / blocks.len().max(1);
        for (block, out) in blocks.zip(out.chunks_exact_mut(bytes.max(1))) {
            match self.take {
                Take::All => {}
                Take::Quants => kind.put_quants(block, out),
                Take::High => kind.put_high(block, out),
                Take::Scales => out.copy_from_slice(&kind.scale(block)),
                Take::Factors => kind.put_factors(block, out),
                Take::Mins => out.copy_from_slice(&kind.min(block)),
                Take::MinFactors => Kind::put_min_factors(block, out),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_parts() {
        for form in BlockForm::ALL {
            let kind = (0..16).find_map(|number| {
                Kind::of_number(number).ok().filter(|kind| kind.form() == Some(form))
            });
            let kind = kind.unwrap();
            let elements = kind.block_elements();
            assert_eq!(elements, form.span.max(BLOCK), "{}", form.name);
            let halves = if form.has_mins { 2 } else { 1 };
            let factors = if !form.has_factors() {
                0
            } else if form.has_mins {
                12
            } else {
                elements / form.group
            };
            let bytes = elements * form.bits as usize / 8 + halves * SCALE_BYTES + factors;
            assert_eq!(kind.block_bytes(), bytes, "{}", form.name);
        }
    }

    #[test]
    fn factors_of_six_bits_lie_as_in_ggml() {
        let mut packed = [0; 12];
        let (scales, mins) = ([1, 2, 3, 63, 17, 33, 50, 62], [9, 60, 5, 31, 48, 7, 21, 40]);
        // The packing of `quantize_row_q4_K_ref`.
        for group in 0..8 {
            let (scale, min): (u8, u8) = (scales[group], mins[group]);
            if group < 4 {
                packed[group] = scale;
                packed[group + 4] = min;
            } else {
                packed[group + 4] = scale & 15 | (min & 15) << 4;
                packed[group - 4] |= scale >> 4 << 6;
                packed[group] |= min >> 4 << 6;
            }
        }
        for group in 0..8 {
            assert_eq!(six_bits(&packed, group), [scales[group], mins[group]], "{group}");
        }
    }
}
