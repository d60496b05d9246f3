//! Describes families of decoders: what their layers have, and who turns which frequency.
//!
//! A family is one small file of facts; checkpoint, quantiser, reference and engine all follow
//! them, so a new family that differs in these facts needs no other code.  The layers themselves
//! are of one kind: RMSNorm, grouped-query attention with rotary positions, SwiGLU.
//! Knows nothing of configurations or tensor files.

mod llama;
mod qwen2;
mod qwen3;

/// More numbers than anything in a decoder has: products of two sizes fit any usize.
const SIZE_MAX: usize = 1 << 24;

/// Whether `[hidden, layers, heads, kv_heads, head_dim, intermediate, vocab]` can be the sizes of a decoder.
///
/// # Errors
/// One line naming what cannot be.
pub fn check_sizes(sizes: [usize; 7]) -> Result<(), String> {
    let [_, _, heads, kv_heads, head_dim, _, _] = sizes;
    if !sizes.iter().all(|size| (1..=SIZE_MAX).contains(size)) {
        return Err(format!("sizes {sizes:?} are not those of a decoder"));
    }
    if !heads.is_multiple_of(kv_heads) || !head_dim.is_multiple_of(2) {
        return Err(format!("{heads} heads of {head_dim} do not share {kv_heads} key heads"));
    }
    Ok(())
}

/// What tells one family of decoders from another.
#[derive(Debug, PartialEq)]
pub struct DecoderFamily {
    /// The word engines keep.
    pub name: &'static str,
    /// The class configurations name.
    pub architecture: &'static str,
    /// Whether the query, key and value projections always add a bias.
    qkv_bias: bool,
    /// Whether each head of q and k is normed (RMSNorm over `head_dim`) before it is rotated.
    pub qk_norm: bool,
    /// The width of a head where the configuration names none; else the heads share `hidden`.
    pub head_dim_default: Option<usize>,
    /// The longest sequence where the configuration names none.
    pub max_positions_default: usize,
    /// The base of the rotary frequencies where the configuration may leave it out.
    pub rope_theta_default: Option<f64>,
}

impl DecoderFamily {
    /// Every family there is.
    pub const ALL: [&'static Self; 3] = [&qwen2::QWEN2, &qwen3::QWEN3, &llama::LLAMA];

    /// The family called `name`.
    pub fn named(name: &str) -> Option<&'static Self> {
        Self::ALL.into_iter().find(|family| family.name == name)
    }

    /// The family of the class `architecture`.
    pub fn of_architecture(architecture: &str) -> Option<&'static Self> {
        Self::ALL.into_iter().find(|family| family.architecture == architecture)
    }

    /// Whether the query, key and value projections add a bias, where the configuration says
    /// `attention_bias` or does not.
    pub fn qkv_bias(&self, attention_bias: bool) -> bool {
        self.qkv_bias || attention_bias
    }
}

/// The share of time, height and width in the frequencies of a head (M-RoPE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sections {
    /// Frequencies of time, height and width; together half of `head_dim`.
    pub sizes: [usize; 3],
    /// Whether the three take turns instead of lying one after another: frequency `3k + 1` is
    /// height and `3k + 2` width below three times their size, all others time.
    pub is_interleaved: bool,
}

impl Sections {
    /// Which position turns each frequency of a head: 0 time, 1 height, 2 width.
    pub fn axes(&self) -> Vec<usize> {
        let count = self.sizes.iter().sum();
        let axis = |i: usize| match (self.is_interleaved, i % 3) {
            (true, axis) if axis > 0 && i < 3 * self.sizes[axis] => axis,
            (true, _) => 0,
            (false, _) => (0..2).filter(|n| i >= self.sizes[..=*n].iter().sum()).count(),
        };
        (0..count).map(axis).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_lie_in_a_row_or_take_turns() {
        let contiguous = Sections { sizes: [1, 2, 3], is_interleaved: false };
        assert_eq!(contiguous.axes(), [0, 1, 1, 2, 2, 2]);
        let interleaved = Sections { sizes: [4, 2, 2], is_interleaved: true };
        assert_eq!(interleaved.axes(), [0, 1, 2, 0, 1, 2, 0, 0]);
    }
}
