//! Names the forms of packed weights: the sizes of groups, and what has more than a scale and an integer zero for each.
//!
//! The latter are those of ggml's blocks.  A [`BlockForm`] says which tensors stand beside the quants and
//! how many columns share what; readers, writers and engines ask the same table.  Knows no bytes.
//!
//! A weight `X` `[out, in]` of such a form: `X` U8 `[out, in/2]`, the low four bits of each quant, the
//! low nibble being the even column.  `X_high`, where quants have more: U32 `[out, in/32]` for 5
//! bits, `[out, in/16]` for 6; a word's byte `c` holds what is above four bits of columns `c`, `4 + c`,
//! `8 + c`, … of the word's, the first lowest.  `X_scale` F16 `[out, in/span]`; where groups are smaller
//! than spans `X_factor` I8 `[out, in/group]`, and a group's scale is their product.  `X_min` and
//! `X_min_factor` likewise, where groups have minima: `w = quant * scale - min`.  Without minima
//! `w = (quant - middle) * scale`, the middle being half of the quants.  Products are exact in f32.

/// The columns of a row that share an f16 in the forms with factors.
const SPAN: usize = 256;

/// The group sizes of the canonical form, which is what tells a size from a number of groups.
pub const GROUP_SIZES: [usize; 7] = [16, 32, 64, 128, 256, 512, 1024];

/// The columns that share a scale in a row of `columns` with `groups` scales: all with one, else the
/// size of the canonical form that gives as many groups (the last may be short); nothing if none
/// does.
pub fn group_of(columns: usize, groups: usize) -> Option<usize> {
    if groups == 1 {
        return Some(columns.max(1));
    }
    GROUP_SIZES.into_iter().find(|size| columns.div_ceil(*size) == groups)
}

/// What belongs to the quants of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockForm {
    /// The word for it, ggml's.
    pub name: &'static str,
    /// Bits of a quant.
    pub bits: u32,
    /// Columns that share a scale.
    pub group: usize,
    /// Columns that share the f16 of which scales are multiples; [`BlockForm::group`] where scales are
    /// f16 themselves.
    pub span: usize,
    /// Whether groups have minima.
    pub has_mins: bool,
}

impl BlockForm {
    /// Every form.
    pub const ALL: [Self; 6] = [
        Self { name: "q4_1", bits: 4, group: 32, span: 32, has_mins: true },
        Self { name: "q5_0", bits: 5, group: 32, span: 32, has_mins: false },
        Self { name: "q5_1", bits: 5, group: 32, span: 32, has_mins: true },
        Self { name: "q4_k", bits: 4, group: 32, span: SPAN, has_mins: true },
        Self { name: "q5_k", bits: 5, group: 32, span: SPAN, has_mins: true },
        Self { name: "q6_k", bits: 6, group: 16, span: SPAN, has_mins: false },
    ];

    /// The form of the word `name`.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|form| form.name == name)
    }

    /// The form of quants of `bits` beside which there are factors and minima, or not.
    pub fn of(bits: u32, has_factors: bool, has_mins: bool) -> Option<Self> {
        Self::ALL.into_iter().find(|form| {
            (form.bits, form.has_factors(), form.has_mins) == (bits, has_factors, has_mins)
        })
    }

    /// Whether scales (and minima) are products of an f16 and a factor.
    pub fn has_factors(self) -> bool {
        self.span != self.group
    }

    /// The quant that means 0 where there are no minima.
    pub fn middle(self) -> u8 {
        if self.has_mins { 0 } else { 1 << (self.bits - 1) }
    }

    /// Bits of a quant that lie in `X_high`.
    #[inline]
    pub fn high_bits(self) -> u32 {
        self.bits - 4
    }

    /// Columns whose high bits share a word; `None` where there are none.
    #[inline]
    pub fn word_columns(self) -> Option<usize> {
        u32::BITS.checked_div(self.high_bits()).map(|columns| columns as usize)
    }

    /// The quant of `column`, of a row's nibbles and words.
    #[inline]
    pub fn quant(self, nibbles: &[u8], high: &[u8], column: usize) -> u8 {
        let low = (nibbles[column / 2] >> (4 * (column % 2))) & 15;
        let Some(width) = self.word_columns() else { return low };
        let (word, inside) = (column / width, column % width);
        let byte = high[word * 4 + inside % 4] >> (inside / 4 * self.high_bits() as usize);
        low | (byte & ((1 << self.high_bits()) - 1)) << 4
    }

    /// Puts what is above four bits of `quants`, whole words of columns, into `out`, which is zero.
    pub fn put_high(self, quants: &[u8], out: &mut [u8]) {
        let Some(width) = self.word_columns() else { return };
        for (quants, word) in quants.chunks_exact(width).zip(out.as_chunks_mut::<4>().0) {
            for (column, quant) in quants.iter().enumerate() {
                word[column % 4] |= (quant >> 4) << (column / 4 * self.high_bits() as usize);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_parts_tell_the_forms_apart() {
        for form in BlockForm::ALL {
            assert_eq!(BlockForm::parse(form.name), Some(form));
            assert_eq!(BlockForm::of(form.bits, form.has_factors(), form.has_mins), Some(form));
        }
        assert_eq!(BlockForm::of(6, false, false), None);
        assert_eq!(BlockForm::parse("q2_k"), None);
    }

    #[test]
    fn levels_come_out_of_nibbles_and_words_as_they_went_in() {
        for form in BlockForm::ALL {
            let mask = ((1_u16 << form.bits) - 1) as u8;
            let quants: Vec<u8> = (0..64_u8).map(|at| at.wrapping_mul(37) & mask).collect();
            let nibbles: Vec<u8> =
                quants.chunks(2).map(|two| two[0] & 15 | (two[1] & 15) << 4).collect();
            let mut high = vec![0; form.word_columns().map_or(0, |width| 64 / width * 4)];
            form.put_high(&quants, &mut high);
            let found: Vec<u8> = (0..64).map(|at| form.quant(&nibbles, &high, at)).collect();
            assert_eq!(found, quants, "{}", form.name);
        }
    }
}
