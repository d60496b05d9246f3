//! Puts the values that share a scale on a grid of integers.
//!
//! [`Rounder::fit`] finds the step of a group, trying the clips it was given; [`Rounder::rows`]
//! rounds rows of groups and measures what that costs.  It runs on the widest vectors that this
//! processor has; every step is one correctly rounded operation per element in a fixed order, so
//! the bytes are equal on every machine.  Knows nothing of tensors or files.

use half::f16;
use pulp::{Arch, Simd, WithSimd};

use super::figures::{LANES, Lanes, RowSums, Sums, padded, store};
use crate::scheme::IntGrid;

/// Added to a small f32 and taken away again, it leaves the nearest integer, ties to even:
/// 1.5 * 2^23, above which neighbouring floats are one apart and the low bits are the integer.
const ROUNDER: f32 = 12_582_912.0;

/// No clipping: the largest value of a group is on the grid.
pub(super) const UNCLIPPED: &[f32] = &[1.0];

/// The fractions of the largest value tried where a search pays: random 4-bit groups are best near
/// 0.8, groups with one outlier below; under a half no group of real weights has its best.
pub(crate) const CLIPS: &[f32] = &[
    1.0, 0.98, 0.96, 0.94, 0.92, 0.9, 0.88, 0.86, 0.84, 0.82, 0.8, 0.78, 0.76, 0.74, 0.72, 0.7,
    0.68, 0.66, 0.64, 0.62, 0.6, 0.58, 0.56, 0.54, 0.52, 0.5,
];

/// Where the integers of one group lie: w = (q - zero) * scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct QuantParams {
    pub(super) scale: f32,
    /// The stored integer that means 0.
    pub(super) zero: u8,
    /// What values are divided by: the scale, or 1 where that is 0.
    divisor: f32,
    /// The smallest and the largest integer, zero taken off; both 0 where the scale is.
    low: f32,
    high: f32,
}

impl QuantParams {
    /// Of a group of zeros.
    pub(super) const ZERO: Self = Self { scale: 0.0, zero: 0, divisor: 1.0, low: 0.0, high: 0.0 };

    /// The nearest integer to `value`, zero taken off, plus [`ROUNDER`].
    #[inline(always)]
    fn shifted(self, value: f32) -> f32 {
        let place = value / self.divisor;
        let place = if place > self.high { self.high } else { place };
        let place = if place < self.low { self.low } else { place };
        place + ROUNDER
    }

    /// The stored byte of `value`, and the value it stands for.
    #[inline(always)]
    pub(super) fn round(self, value: f32) -> (u8, f32) {
        let shifted = self.shifted(value);
        let quant = (shifted.to_bits() as u8).wrapping_add(self.zero);
        (quant, (shifted - ROUNDER) * self.scale)
    }

    /// Sum of `importance * (w - ŵ)²`, an importance of 1 where none is given.
    #[inline(always)]
    fn error<S: Simd>(self, simd: S, values: &[f32], importance: Option<&[f32]>) -> f32 {
        let step = StepVectors::new(simd, self);
        let mut sums: Lanes<S> = [simd.splat_f32s(0.0); LANES];
        let weights = importance.map(|importance| importance.as_chunks::<LANES>());
        let (chunks, last) = values.as_chunks();
        for (n, chunk) in chunks.iter().enumerate() {
            step.add_squares(simd, &mut sums, chunk, weights.map(|(weights, _)| &weights[n]));
        }
        if !last.is_empty() {
            let weights = weights.map(|(_, last)| padded(last));
            step.add_squares(simd, &mut sums, &padded(last), weights.as_ref());
        }
        let mut lanes = [0.0; LANES];
        store::<S>(&sums, &mut lanes);
        lanes.iter().sum()
    }
}

/// A step in the processor's registers.
#[derive(Clone, Copy)]
struct StepVectors<S: Simd> {
    scale: S::f32s,
    divisor: S::f32s,
    low: S::f32s,
    high: S::f32s,
    rounder: S::f32s,
}

impl<S: Simd> StepVectors<S> {
    #[inline(always)]
    fn new(simd: S, step: QuantParams) -> Self {
        Self {
            scale: simd.splat_f32s(step.scale),
            divisor: simd.splat_f32s(step.divisor),
            low: simd.splat_f32s(step.low),
            high: simd.splat_f32s(step.high),
            rounder: simd.splat_f32s(ROUNDER),
        }
    }

    /// [`QuantParams::shifted`].
    #[inline(always)]
    fn shifted(&self, simd: S, values: S::f32s) -> S::f32s {
        let place = simd.div_f32s(values, self.divisor);
        let place = simd.max_f32s(simd.min_f32s(place, self.high), self.low);
        simd.add_f32s(place, self.rounder)
    }

    /// What the integers of `shifted` are short of `values`.
    #[inline(always)]
    fn errors(&self, simd: S, values: S::f32s, shifted: S::f32s) -> S::f32s {
        let quant = simd.sub_f32s(shifted, self.rounder);
        simd.sub_f32s(values, simd.mul_f32s(quant, self.scale))
    }

    /// Adds the squares of the errors of [`LANES`] values, each times its weight where there are weights.
    #[inline(always)]
    fn add_squares(
        &self,
        simd: S,
        sums: &mut Lanes<S>,
        values: &[f32; LANES],
        weights: Option<&[f32; LANES]>,
    ) {
        let weights = weights.map(|weights| S::as_simd_f32s(weights).0);
        for (n, values) in S::as_simd_f32s(values).0.iter().enumerate() {
            let errors = self.errors(simd, *values, self.shifted(simd, *values));
            let mut squares = simd.mul_f32s(errors, errors);
            if let Some(weights) = weights {
                squares = simd.mul_f32s(squares, weights[n]);
            }
            sums[n] = simd.add_f32s(sums[n], squares);
        }
    }
}

/// What a row is rounded to: bytes as they are stored.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Rounded {
    /// Integers, two in a byte where they have 4 bits, the low half first.
    pub(super) quants: Vec<u8>,
    /// Little-endian scales.
    pub(super) scales: Vec<u8>,
    /// Zero points, where the grid has them.
    pub(super) zeros: Vec<u8>,
}

impl Rounded {
    pub(super) fn clear(&mut self) {
        self.quants.clear();
        self.scales.clear();
        self.zeros.clear();
    }

    pub(super) fn append(&mut self, next: &Self) {
        self.quants.extend_from_slice(&next.quants);
        self.scales.extend_from_slice(&next.scales);
        self.zeros.extend_from_slice(&next.zeros);
    }

    /// Writes what the bytes of the one row here stand for.
    pub(super) fn restore(&self, grid: IntGrid, values: &mut [f32]) {
        let group = grid.group.unwrap_or(values.len());
        for (index, values) in values.chunks_mut(group).enumerate() {
            let scale = match grid.group {
                None => f32::from_le_bytes(self.scales.as_chunks().0[index]),
                Some(_) => f16::from_le_bytes(self.scales.as_chunks().0[index]).to_f32(),
            };
            if grid.bits == 4 {
                let zero = self.zeros.get(index).map_or(8, |zero| i16::from(*zero));
                let value = |quant: u8| f32::from(i16::from(quant) - zero) * scale;
                // Groups begin at whole bytes.
                for (pair, byte) in values.chunks_mut(2).zip(&self.quants[index * group / 2..]) {
                    let halves = [value(byte & 15), value(byte >> 4)];
                    pair.copy_from_slice(&halves[..pair.len()]);
                }
            } else {
                for (value, quant) in values.iter_mut().zip(&self.quants[index * group..]) {
                    *value = f32::from(quant.cast_signed()) * scale;
                }
            }
        }
    }
}

/// How groups are put on a grid.
#[derive(Clone, Copy)]
pub(super) struct Rounder {
    pub(super) grid: IntGrid,
    /// Fractions of the largest value to try; the first is taken where none is better.
    pub(super) clips: &'static [f32],
}

impl Rounder {
    /// The step of a group, or nothing if a value is not finite or too large for the scale's type.
    ///
    /// A group whose scale would not be a normal number counts as zeros.
    pub(super) fn fit(self, values: &[f32], importance: Option<&[f32]>) -> Option<QuantParams> {
        Arch::new().dispatch(Fit { rounder: self, values, importance })
    }

    #[inline(always)]
    fn fit_with<S: Simd>(
        self,
        simd: S,
        values: &[f32],
        importance: Option<&[f32]>,
    ) -> Option<QuantParams> {
        let extent = Extent::of(values, self.grid.has_zero)?;
        let first = self.step(extent, self.clips[0])?;
        if self.clips.len() == 1 || first.scale == 0.0 {
            return Some(first);
        }
        let (mut best, mut least) = (first, first.error(simd, values, importance));
        for clip in &self.clips[1..] {
            let step = self.step(extent, *clip)?;
            let error = step.error(simd, values, importance);
            if step.scale > 0.0 && error < least {
                (best, least) = (step, error);
            }
        }
        Some(best)
    }

    #[inline(always)]
    fn step(self, extent: Extent, clip: f32) -> Option<QuantParams> {
        let Extent { low, high } = extent;
        // Half a step beyond the largest integer rounds to it, so 4 bits reach 7.5 steps.
        let (quants, zero_of_none) = match (self.grid.bits, self.grid.has_zero) {
            (4, true) => (15.0, 0),
            (4, false) => (7.5, 8),
            _ => (127.0, 0),
        };
        let scale = self.stored((high - low) * clip / quants)?;
        let zero = match (self.grid.has_zero, scale > 0.0) {
            (true, true) => (-low * clip / scale).round_ties_even().clamp(0.0, 15.0) as u8,
            _ => zero_of_none,
        };
        if scale == 0.0 {
            return Some(QuantParams { scale, zero, divisor: 1.0, low: 0.0, high: 0.0 });
        }
        let (low, high) = if self.grid.bits == 4 {
            (-f32::from(zero), 15.0 - f32::from(zero))
        } else {
            (-127.0, 127.0)
        };
        Some(QuantParams { scale, zero, divisor: scale, low, high })
    }

    /// The scale as it can be stored.
    #[inline(always)]
    fn stored(self, scale: f32) -> Option<f32> {
        if self.grid.group.is_none() {
            return Some(if scale < f32::MIN_POSITIVE { 0.0 } else { scale });
        }
        let stored = f16::from_f32(scale).to_f32();
        stored.is_finite().then_some(stored)
    }

    /// Appends rows of `width` values to `out` and says what rounding them costs, or which row has a
    /// value that cannot be held.
    ///
    /// `importance`, where given, has one weight per input for the choice of clips.
    pub(super) fn rows(
        self,
        rows: &[f32],
        width: usize,
        importance: Option<&[f32]>,
        out: &mut Rounded,
    ) -> Result<Sums, usize> {
        Arch::new().dispatch(Rows { rounder: self, rows, width, importance, out })
    }

    #[inline(always)]
    fn row<S: Simd>(
        self,
        simd: S,
        row: &[f32],
        importance: Option<&[f32]>,
        out: &mut Rounded,
    ) -> Option<Sums> {
        let width = self.grid.group.unwrap_or(row.len());
        let mut sums = RowSums::default();
        for (index, values) in row.chunks(width).enumerate() {
            let importance = importance.map(|all| &all[index * width..][..values.len()]);
            let step = self.fit_with(simd, values, importance)?;
            self.put_step(step, out);
            round_group(simd, values, (step, self.grid.bits), &mut sums, &mut out.quants);
        }
        Some(sums.sums())
    }

    /// Appends the scale of a group, and its zero point where the grid has them.
    #[inline(always)]
    pub(super) fn put_step(self, step: QuantParams, out: &mut Rounded) {
        match self.grid.group {
            None => out.scales.extend(step.scale.to_le_bytes()),
            Some(_) => out.scales.extend(f16::from_f32(step.scale).to_le_bytes()),
        }
        if self.grid.has_zero {
            out.zeros.push(step.zero);
        }
    }

    /// Appends a row of integers, one a byte, as they are stored.
    pub(super) fn put_quants(self, quants: &[u8], out: &mut Rounded) {
        put_block(quants, self.grid.bits, &mut out.quants);
    }
}

struct Fit<'a> {
    rounder: Rounder,
    values: &'a [f32],
    importance: Option<&'a [f32]>,
}

impl WithSimd for Fit<'_> {
    type Output = Option<QuantParams>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Option<QuantParams> {
        self.rounder.fit_with(simd, self.values, self.importance)
    }
}

struct Rows<'a> {
    rounder: Rounder,
    rows: &'a [f32],
    width: usize,
    importance: Option<&'a [f32]>,
    out: &'a mut Rounded,
}

impl WithSimd for Rows<'_> {
    type Output = Result<Sums, usize>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Result<Sums, usize> {
        let mut sums = Sums::default();
        for (n, row) in self.rows.chunks(self.width).enumerate() {
            let cost = self.rounder.row(simd, row, self.importance, self.out);
            sums.add(cost.ok_or(n)?);
        }
        Ok(sums)
    }
}

/// Values rounded together: a group of them, or what a core's registers and first cache like.
const BLOCK: usize = 128;

/// Appends the stored integers of one group.
#[inline(always)]
fn round_group<S: Simd>(
    simd: S,
    values: &[f32],
    (step, bits): (QuantParams, u8),
    sums: &mut RowSums,
    quants: &mut Vec<u8>,
) {
    let mut rounded = [0; BLOCK];
    for block in values.chunks(BLOCK) {
        let count = block.len();
        if count.is_multiple_of(LANES) {
            round_block(simd, block, step, sums, &mut rounded);
        } else {
            let mut whole = [0.0; BLOCK];
            whole[..count].copy_from_slice(block);
            let whole = &whole[..count.next_multiple_of(LANES)];
            round_block(simd, whole, step, sums, &mut rounded);
        }
        put_block(&rounded[..count], bits, quants);
    }
}

/// Puts the stored bytes of a block of whole lanes into `quants`, one each.
#[inline(always)]
fn round_block<S: Simd>(
    simd: S,
    values: &[f32],
    step: QuantParams,
    sums: &mut RowSums,
    quants: &mut [u8; BLOCK],
) {
    let vectors = StepVectors::new(simd, step);
    let (mut totals, mut shifted) = (sums.load(simd), [0.0; BLOCK]);
    let lanes = values.as_chunks::<LANES>().0.iter().zip(shifted.as_chunks_mut::<LANES>().0);
    for (values, shifted) in lanes {
        let shifted = S::as_mut_simd_f32s(shifted).0;
        for (n, values) in S::as_simd_f32s(values).0.iter().enumerate() {
            shifted[n] = vectors.shifted(simd, *values);
            totals.add(simd, n, *values, vectors.errors(simd, *values, shifted[n]));
        }
    }
    sums.store(&totals);
    for (quant, shifted) in quants.iter_mut().zip(shifted) {
        *quant = (shifted.to_bits() as u8).wrapping_add(step.zero);
    }
}

/// Appends integers as they are stored; 4-bit ones are pairs, the first in the low half.
#[inline(always)]
fn put_block(block: &[u8], bits: u8, quants: &mut Vec<u8>) {
    if bits == 8 {
        return quants.extend_from_slice(block);
    }
    let (pairs, last) = block.as_chunks();
    quants.extend(pairs.iter().map(|[low, high]| low | high << 4));
    quants.extend(last);
}

/// What a group reaches from: all its values and 0 lie between.
#[derive(Clone, Copy)]
struct Extent {
    low: f32,
    high: f32,
}

impl Extent {
    /// The extent of `values`, or nothing if one is not finite; a symmetric one is `0..max|w|`.
    #[inline(always)]
    fn of(values: &[f32], is_signed: bool) -> Option<Self> {
        let largest = largest_magnitude(values)?;
        if !is_signed {
            return Some(Self { low: 0.0, high: largest });
        }
        let orders = values.iter().map(|value| order(value.to_bits().cast_signed()));
        let (low, high) = orders.fold((0, 0), |(low, high), next| (next.min(low), next.max(high)));
        let value = |bits: i32| f32::from_bits(order(bits).cast_unsigned());
        let extent = Self { low: value(low), high: value(high) };
        (extent.high - extent.low).is_finite().then_some(extent)
    }
}

/// Between the bits of a float and an integer that orders as the float does.
#[inline(always)]
fn order(bits: i32) -> i32 {
    bits ^ (bits >> 31 & i32::MAX)
}

/// The largest |value|, or nothing if one is not finite.
///
/// Without their sign, the bits of floats order as the floats do, and everything that is not
/// finite comes last.
#[inline(always)]
fn largest_magnitude(values: &[f32]) -> Option<f32> {
    let magnitude = |value: &f32| (value.to_bits() & 0x7FFF_FFFF).cast_signed();
    let bits = values.iter().map(magnitude).fold(0, i32::max);
    Some(f32::from_bits(bits.cast_unsigned())).filter(|largest| largest.is_finite())
}

#[cfg(test)]
mod tests {
    use pulp::{Scalar, Scalar128b, Scalar512b};

    use super::*;
    use crate::scheme::Scheme;

    /// Numbers most of which are small, as weights are.
    fn noise(seed: u32, len: usize) -> Vec<f32> {
        let even = crate::noise::noise(seed, 3 * len);
        even.as_chunks::<3>().0.iter().map(|[a, b, c]| a * b + c * 0.1).collect()
    }

    fn rounder(scheme: Scheme, clips: &'static [f32]) -> Rounder {
        Rounder { grid: scheme.grid().unwrap(), clips }
    }

    fn schemes() -> impl Iterator<Item = Scheme> {
        Scheme::ALL.into_iter().filter(|scheme| scheme.grid().is_some())
    }

    #[test]
    fn every_value_lies_within_half_a_step_at_any_width() {
        for scheme in schemes() {
            for width in [1, 5, 31, 32, 33, 127, 128, 200, 257] {
                let values = noise(width as u32, width);
                let rounder = rounder(scheme, UNCLIPPED);
                let mut row = Rounded::default();
                let sums = rounder.rows(&values, width, None, &mut row).unwrap();
                assert_eq!(row.quants.len(), rounder.grid.row_bytes(width));
                let group = rounder.grid.group.unwrap_or(width);
                let mut restored = vec![0.0; width];
                row.restore(rounder.grid, &mut restored);
                for (index, (values, restored)) in
                    values.chunks(group).zip(restored.chunks(group)).enumerate()
                {
                    let step = rounder.fit(values, None).unwrap();
                    for (value, restored) in values.iter().zip(restored) {
                        // The zero point and the f16 scale are rounded, too.
                        let slack = if rounder.grid.has_zero { 1.01 } else { 0.505 };
                        let error = (value - restored).abs();
                        assert!(error <= slack * step.scale, "{scheme} {width} {index}: {error}");
                    }
                }
                let mut expect = RowSums::default();
                expect.add_row(&values, &restored);
                assert_eq!(expect.sums().largest, sums.largest, "{scheme} {width}");
                assert!((expect.sums().error - sums.error).abs() <= 1e-6 * sums.error);
            }
        }
    }

    #[test]
    fn a_search_never_costs_more_and_mostly_less() {
        for scheme in schemes() {
            let values = noise(7, 1024);
            let cost = |clips| {
                let mut row = Rounded::default();
                rounder(scheme, clips).rows(&values, values.len(), None, &mut row).unwrap().error
            };
            let (plain, searched) = (cost(UNCLIPPED), cost(CLIPS));
            assert!(searched <= plain, "{scheme}");
            if scheme.grid().unwrap().bits == 4 {
                assert!(searched < 0.99 * plain, "{scheme}: {searched} {plain}");
            }
        }
    }

    #[test]
    fn importance_moves_the_clip() {
        let rounder = rounder(Scheme::Int4G32, CLIPS);
        let mut values = noise(3, 32);
        values[0] = 6.0;
        let mut importance = vec![1.0; 32];
        let held = rounder.fit(&values, Some(&importance)).unwrap();
        importance[0] = 1e-6;
        let let_go = rounder.fit(&values, Some(&importance)).unwrap();
        assert!(let_go.scale < 0.7 * held.scale, "{let_go:?} {held:?}");
    }

    #[test]
    fn integers_reach_both_ends() {
        let ends = |scheme: Scheme, values: &[f32]| {
            let mut row = Rounded::default();
            rounder(scheme, UNCLIPPED).rows(values, values.len(), None, &mut row).unwrap();
            row
        };
        assert_eq!(ends(Scheme::Int8, &[-1.0, 1.0]).quants, [129, 127]);
        assert_eq!(ends(Scheme::Int4G32, &[-7.5, 7.5, 0.0]).quants, [0xF0, 8]);
        let row = ends(Scheme::Int4G32Asym, &[-1.0, 14.0, 0.0]);
        assert_eq!((row.quants, row.zeros), (vec![0xF0, 1], vec![1]));
    }

    #[test]
    fn values_of_one_sign_keep_zero_on_the_grid() {
        for values in [[3.0_f32, 4.0], [-3.0, -4.0]] {
            let step = rounder(Scheme::Int4G128Asym, UNCLIPPED).fit(&values, None).unwrap();
            assert_eq!(step.round(0.0).1, 0.0);
            assert!((step.round(values[0]).1 - values[0]).abs() < step.scale);
        }
    }

    #[test]
    fn rows_round_to_even_and_use_every_level() {
        // Powers of two make the scale exact, so ties are real ties.
        let values: Vec<f32> = (-254..=254).map(|half| half as f32 / 2.0 * 0.25).collect();
        let mut row = Rounded::default();
        rounder(Scheme::Int8, UNCLIPPED).rows(&values, values.len(), None, &mut row).unwrap();
        assert_eq!(row.scales, 0.25_f32.to_le_bytes());
        for (value, quant) in values.iter().zip(row.quants) {
            assert_eq!(f32::from(quant.cast_signed()), (value / 0.25).round_ties_even());
        }
    }

    #[test]
    fn rows_at_the_ends_of_f32_stay_finite() {
        let row = |values: &[f32]| {
            let mut row = Rounded::default();
            rounder(Scheme::Int8, UNCLIPPED).rows(values, values.len(), None, &mut row).ok()?;
            Some((f32::from_le_bytes(row.scales.as_chunks().0[0]), row.quants))
        };
        let tiny = f32::from_bits(1);
        assert_eq!(row(&[tiny, -tiny, 0.0]), Some((0.0, vec![0, 0, 0])));
        assert_eq!(row(&[f32::MAX, -f32::MAX]), Some((f32::MAX / 127.0, vec![127, 129])));
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(row(&[1.0, bad]), None);
            for scheme in schemes() {
                assert!(rounder(scheme, CLIPS).fit(&[0.0, bad], None).is_none());
            }
        }
        assert!(rounder(Scheme::Int4G32, UNCLIPPED).fit(&[1e6], None).is_none());
        assert!(
            rounder(Scheme::Int4G32Asym, UNCLIPPED).fit(&[f32::MAX, -f32::MAX], None).is_none()
        );
        let zeros = rounder(Scheme::Int4G32, CLIPS).fit(&[tiny], None).unwrap();
        assert_eq!(zeros.round(tiny), (8, 0.0));
    }

    #[test]
    fn bytes_and_sums_do_not_depend_on_the_width_of_vectors() {
        fn made<S: Simd>(simd: S, rounder: Rounder, rows: &[f32], width: usize) -> (Rounded, Sums) {
            let (mut out, importance) = (Rounded::default(), noise(9, width));
            let importance = Some(importance.as_slice());
            let rows = Rows { rounder, rows, width, importance, out: &mut out };
            let sums = rows.with_simd(simd).unwrap();
            (out, sums)
        }
        for (scheme, width) in schemes().flat_map(|scheme| [7, 32, 200].map(|w| (scheme, w))) {
            for clips in [UNCLIPPED, CLIPS] {
                let (rounder, rows) = (rounder(scheme, clips), noise(width as u32, 3 * width));
                let one = made(Scalar, rounder, &rows, width);
                assert_eq!(made(Scalar128b, rounder, &rows, width), one);
                assert_eq!(made(Scalar512b, rounder, &rows, width), one);
                let importance = noise(9, width);
                let mut out = Rounded::default();
                let sums = rounder.rows(&rows, width, Some(&importance), &mut out).unwrap();
                assert_eq!((out, sums), one);
            }
        }
    }

    #[test]
    fn packing_puts_the_first_in_the_low_half() {
        let mut packed = Vec::new();
        put_block(&[1, 2, 3, 4, 5, 6, 15, 0], 4, &mut packed);
        assert_eq!(packed, [0x21, 0x43, 0x65, 0x0F]);
    }
}
