//! Lays out the keys and values of one head over the positions of one block.
//!
//! Keys lie sixteen positions together, number by number (`[4][dim][16]`), so that one vector holds
//! one number of sixteen keys and no sum runs across a vector; values lie row after row, padded to
//! whole vectors.  Rows in, views out.  Knows nothing of slots or layers.

use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use smelt_backend::KvType;

use crate::cast::{Number, slice_of, slice_of_mut};
use crate::kernels::activation::ROUND;
use crate::kernels::lanes::{LANES, Lanes, Stored};

/// Positions in one block.
pub(crate) const BLOCK: usize = 64;
/// Runs of sixteen positions in one block.
pub(super) const STRIPES: usize = BLOCK / LANES;

/// Bytes of a number.
fn number_bytes(kind: KvType) -> usize {
    match kind {
        KvType::F32 => 4,
        KvType::F16 => 2,
        KvType::Int8 => 1,
    }
}

/// Sizes of a head's part of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadShape {
    pub(crate) dim: usize,
    pub(crate) kind: KvType,
}

/// Keys and values of one head over one block, their numbers of type `T`.
#[derive(Clone, Copy)]
pub(crate) struct Head<'a, T> {
    /// `[4][dim]` runs of sixteen positions.
    pub(super) keys: &'a [[T; LANES]],
    /// `[64][units]` runs of sixteen numbers of a position.
    pub(super) values: &'a [[T; LANES]],
    /// What the keys and the values of each position are multiplied with.
    pub(super) scales: Option<Scales<'a>>,
}

#[derive(Clone, Copy)]
pub(super) struct Scales<'a> {
    pub(super) keys: &'a [[f32; LANES]; STRIPES],
    pub(super) values: &'a [[f32; LANES]; STRIPES],
}

/// A head's part of a block in any of the forms.
#[derive(Clone, Copy)]
pub(crate) enum HeadBlock<'a> {
    F32(Head<'a, f32>),
    /// Bits of half precision.
    F16(Head<'a, u16>),
    Int8(Head<'a, i8>),
}

#[cfg(test)]
impl HeadBlock<'_> {
    /// The value of `position`, of f32.
    pub(crate) fn value(&self, position: usize, dim: usize) -> Vec<f32> {
        let Self::F32(head) = self else { panic!("of f32 only") };
        let units = dim.div_ceil(LANES);
        head.values[position * units..][..units].as_flattened()[..dim].to_vec()
    }
}

/// The bytes of a head's part of a block, by what they hold.
#[derive(Default)]
struct Parts<B> {
    keys: B,
    values: B,
    key_scales: B,
    value_scales: B,
}

impl HeadShape {
    fn row_units(self) -> usize {
        self.dim.div_ceil(LANES)
    }

    fn key_bytes(self) -> usize {
        BLOCK * self.dim * number_bytes(self.kind)
    }

    fn value_bytes(self) -> usize {
        BLOCK * self.row_units() * LANES * number_bytes(self.kind)
    }

    /// Bytes of the scales of the keys, or of the values.
    fn scale_bytes(self) -> usize {
        if self.kind == KvType::Int8 { BLOCK * size_of::<f32>() } else { 0 }
    }

    /// Bytes of a head's part of a block: a multiple of 64.
    pub(crate) fn bytes(self) -> usize {
        self.key_bytes() + self.value_bytes() + 2 * self.scale_bytes()
    }

    /// Sees `bytes`, aligned to 64, as a head's part of a block.
    pub(crate) fn view(self, bytes: &[u8]) -> HeadBlock<'_> {
        let (keys, rest) = bytes.split_at(self.key_bytes());
        let (values, rest) = rest.split_at(self.value_bytes());
        let (key_scales, rest) = rest.split_at(self.scale_bytes());
        let value_scales = &rest[..self.scale_bytes()];
        let parts = Parts { keys, values, key_scales, value_scales };
        match self.kind {
            KvType::F32 => HeadBlock::F32(parts.head(slice_of, None)),
            KvType::F16 => HeadBlock::F16(parts.head(slice_of, None)),
            KvType::Int8 => HeadBlock::Int8(parts.head(slice_of, parts.scales())),
        }
    }

    fn parts_mut(self, bytes: &mut [u8]) -> Parts<&mut [u8]> {
        let (keys, rest) = bytes.split_at_mut(self.key_bytes());
        let (values, rest) = rest.split_at_mut(self.value_bytes());
        let (key_scales, rest) = rest.split_at_mut(self.scale_bytes());
        Parts { keys, values, key_scales, value_scales: &mut rest[..self.scale_bytes()] }
    }

    /// Puts the key and the value `[dim]` of `position` of the block into its `bytes`.
    pub(crate) fn store(self, bytes: &mut [u8], position: usize, key: &[f32], value: &[f32]) {
        let parts = self.parts_mut(bytes);
        let rows = [key, value];
        match self.kind {
            KvType::F32 => {
                self.put(
                    parts,
                    position,
                    rows,
                    [|x: &[f32], to: &mut [f32]| to.copy_from_slice(x); 2],
                );
            }
            KvType::F16 => self.put(parts, position, rows, [to_halves; 2]),
            KvType::Int8 => {
                let quants = rows.map(RowQuantizer::of);
                number_slice(parts.key_scales)[position] = quants[0].scale;
                number_slice(parts.value_scales)[position] = quants[1].scale;
                let parts = Parts { keys: parts.keys, values: parts.values, ..Parts::default() };
                self.put(
                    parts,
                    position,
                    rows,
                    quants.map(|of| move |x: &[f32], to: &mut [i8]| of.quants(x, to)),
                );
            }
        }
    }

    /// Writes key and value in their stored form, `RUN` numbers at a time; the padding of values
    /// stays zero.
    fn put<T: Number + Default>(
        self,
        parts: Parts<&mut [u8]>,
        position: usize,
        [key, value]: [&[f32]; 2],
        [key_form, value_form]: [impl Fn(&[f32], &mut [T]); 2],
    ) {
        const RUN: usize = 32;
        let mut run = [T::default(); RUN];
        let lane = position / LANES * self.dim * LANES + position % LANES;
        let keys = &mut number_slice::<T>(parts.keys)[lane..];
        for (part, key) in key.chunks(RUN).enumerate() {
            let run = &mut run[..key.len()];
            key_form(key, run);
            let keys = keys[part * RUN * LANES..].iter_mut().step_by(LANES);
            keys.zip(run).for_each(|(to, from)| *to = *from);
        }
        let start = position * self.row_units() * LANES;
        value_form(value, &mut number_slice(parts.values)[start..start + self.dim]);
    }
}

impl<'a> Parts<&'a [u8]> {
    fn head<T>(
        &self,
        numbers: impl Fn(&'a [u8]) -> Option<&'a [T]>,
        scales: Option<Scales<'a>>,
    ) -> Head<'a, T> {
        let [keys, values] =
            [self.keys, self.values].map(|bytes| numbers(bytes).expect(ALIGNED).as_chunks().0);
        Head { keys, values, scales }
    }

    fn scales(&self) -> Option<Scales<'a>> {
        let scales = |bytes: &'a [u8]| slice_of::<f32>(bytes)?.as_chunks().0.first_chunk();
        Some(Scales { keys: scales(self.key_scales)?, values: scales(self.value_scales)? })
    }
}

const ALIGNED: &str = "blocks and the sizes of their parts are multiples of 64 bytes";

fn number_slice<T: Number>(bytes: &mut [u8]) -> &mut [T] {
    slice_of_mut(bytes).expect(ALIGNED)
}

/// The nearest halves, ties to even, held inside their range.
fn to_halves(row: &[f32], to: &mut [u16]) {
    const MOST: f32 = 65504.0;
    for (row, to) in row.chunks(8).zip(to.chunks_mut(8)) {
        let mut held = [0.0; 8];
        held.iter_mut().zip(row).for_each(|(held, x)| *held = x.clamp(-MOST, MOST));
        to.reinterpret_cast_mut::<f16>().convert_from_f32_slice(&held[..row.len()]);
    }
}

/// How one row becomes quants: `x ≈ quant * scale`.
#[derive(Clone, Copy)]
struct RowQuantizer {
    scale: f32,
    inverse: f32,
}

impl RowQuantizer {
    /// Largest quant, so that both signs reach equally far.
    const MOST: f32 = 127.0;

    /// The scale that lets the largest number reach the largest quant.  Of a row with a number that
    /// is none it is NaN, so that what comes of it shows.
    fn of(row: &[f32]) -> Self {
        let largest = row.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        let is_sound = row.iter().all(|x| x.is_finite());
        let scale = if is_sound { largest / Self::MOST } else { f32::NAN };
        let inverse = if scale > 0.0 { scale.recip() } else { 0.0 };
        Self { scale, inverse }
    }

    /// The nearest quants, ties to even.
    fn quants(&self, row: &[f32], to: &mut [i8]) {
        for (x, to) in row.iter().zip(to) {
            *to = (x * self.inverse + ROUND - ROUND) as i8;
        }
    }
}

/// A block's numbers in f32, without their scales.
#[derive(Default)]
pub(super) struct Wide {
    keys: Vec<[f32; LANES]>,
    values: Vec<[f32; LANES]>,
}

impl Wide {
    /// Widens `head`, and shows it with the scales it has.
    #[inline(always)]
    pub(super) fn of<'a, L: Lanes, T: Stored>(
        &'a mut self,
        lanes: L,
        head: Head<'a, T>,
    ) -> Head<'a, f32> {
        widen(lanes, head.keys, &mut self.keys);
        widen(lanes, head.values, &mut self.values);
        Head { keys: &self.keys, values: &self.values, scales: head.scales }
    }
}

#[inline(always)]
fn widen<L: Lanes, T: Stored>(lanes: L, from: &[[T; LANES]], to: &mut Vec<[f32; LANES]>) {
    to.resize(from.len(), [0.0; LANES]);
    for (to, from) in to.iter_mut().zip(from) {
        lanes.store(T::load(lanes, from), to);
    }
}
