//! Measures what rounding a tensor has cost.
//!
//! Rows are summed as they are rounded, in a fixed order, so the figures are the same bits for any
//! number of threads and any width of the processor's vectors.  Knows nothing of schemes or files.

use pulp::{Arch, Simd, WithSimd};
use serde::Serialize;

/// Partial sums of a row: value n of a group goes to sum n % LANES.  The widest vectors hold as many;
/// narrower ones take several to the same sums.
pub(super) const LANES: usize = 16;

/// [`LANES`] numbers in the vectors of `S`: the first `LANES / S::F32_LANES` of these.
pub(super) type Lanes<S> = [<S as Simd>::f32s; LANES];

/// The sums of one row, or of many.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sums {
    /// Of w².
    pub(super) square: f64,
    /// Of (w - ŵ)².
    pub(super) error: f64,
    /// Of w(w - ŵ).
    pub(super) cross: f64,
    /// The largest |w - ŵ|.
    pub(super) largest: f32,
}

impl Sums {
    /// Takes the sums of the rows that follow.
    pub(super) fn add(&mut self, next: Self) {
        self.square += next.square;
        self.error += next.error;
        self.cross += next.cross;
        self.largest = self.largest.max(next.largest);
    }

    pub(super) fn figures(&self) -> Figures {
        let Self { square, error, cross, largest } = *self;
        // ŵ = w - e, so Σwŵ and Σŵ² follow from the three sums.
        let (product, rounded) = (square - cross, square - 2.0 * cross + error);
        let norm = (square * rounded).sqrt();
        Figures {
            snr_db: (error > 0.0 && square > 0.0)
                .then(|| decimals(10.0 * (square / error).log10(), 2)),
            cosine: if norm > 0.0 { decimals(product / norm, 7) } else { 1.0 },
            max_abs_error: largest,
        }
    }
}

/// `value` to `places`: the last bits of a logarithm depend on the mathematics library.
fn decimals(value: f64, places: i32) -> f64 {
    let unit = 10.0_f64.powi(places);
    (value * unit).round() / unit
}

/// What rounding a tensor has cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// 10 log10(Σw² / Σ(w - ŵ)²); nothing where there is no error at all.
    pub snr_db: Option<f64>,
    /// Cosine of the angle between the tensor and what it was rounded to.
    pub cosine: f64,
    /// The largest |w - ŵ|.
    pub max_abs_error: f32,
}

/// The sums of a row while it is rounded, [`LANES`] side by side.
#[derive(Default)]
pub(super) struct RowSums {
    square: [f32; LANES],
    error: [f32; LANES],
    cross: [f32; LANES],
    largest: [f32; LANES],
}

/// [`RowSums`] in the processor's registers.
pub(super) struct VectorSums<S: Simd> {
    square: Lanes<S>,
    error: Lanes<S>,
    cross: Lanes<S>,
    largest: Lanes<S>,
}

impl<S: Simd> VectorSums<S> {
    /// Takes the next values of vector `n`, and how far they are from what they are rounded to.
    #[inline(always)]
    pub(super) fn add(&mut self, simd: S, n: usize, values: S::f32s, errors: S::f32s) {
        let add_product = |sum, a, b| simd.add_f32s(sum, simd.mul_f32s(a, b));
        self.square[n] = add_product(self.square[n], values, values);
        self.error[n] = add_product(self.error[n], errors, errors);
        self.cross[n] = add_product(self.cross[n], values, errors);
        self.largest[n] = simd.max_f32s(self.largest[n], simd.abs_f32s(errors));
    }

    /// Takes [`LANES`] values of a row, and what they are rounded to.
    #[inline(always)]
    fn add_part(&mut self, simd: S, values: &[f32; LANES], rounded: &[f32; LANES]) {
        let rounded = S::as_simd_f32s(rounded).0;
        for (n, values) in S::as_simd_f32s(values).0.iter().enumerate() {
            self.add(simd, n, *values, simd.sub_f32s(*values, rounded[n]));
        }
    }
}

impl RowSums {
    #[inline(always)]
    pub(super) fn load<S: Simd>(&self, simd: S) -> VectorSums<S> {
        VectorSums {
            square: load(simd, &self.square),
            error: load(simd, &self.error),
            cross: load(simd, &self.cross),
            largest: load(simd, &self.largest),
        }
    }

    #[inline(always)]
    pub(super) fn store<S: Simd>(&mut self, sums: &VectorSums<S>) {
        store::<S>(&sums.square, &mut self.square);
        store::<S>(&sums.error, &mut self.error);
        store::<S>(&sums.cross, &mut self.cross);
        store::<S>(&sums.largest, &mut self.largest);
    }

    /// Takes a whole row at once.
    pub(super) fn add_row(&mut self, values: &[f32], rounded: &[f32]) {
        Arch::new().dispatch(AddRow { sums: self, values, rounded });
    }

    pub(super) fn sums(&self) -> Sums {
        let sum = |lanes: [f32; LANES]| lanes.iter().map(|lane| f64::from(*lane)).sum();
        Sums {
            square: sum(self.square),
            error: sum(self.error),
            cross: sum(self.cross),
            largest: self.largest.into_iter().fold(0.0, f32::max),
        }
    }
}

struct AddRow<'a> {
    sums: &'a mut RowSums,
    values: &'a [f32],
    rounded: &'a [f32],
}

impl WithSimd for AddRow<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let mut sums = self.sums.load(simd);
        let (values, last) = self.values.as_chunks();
        let (rounded, last_rounded) = self.rounded.as_chunks();
        for (values, rounded) in values.iter().zip(rounded) {
            sums.add_part(simd, values, rounded);
        }
        sums.add_part(simd, &padded(last), &padded(last_rounded));
        self.sums.store(&sums);
    }
}

#[inline(always)]
pub(super) fn load<S: Simd>(simd: S, from: &[f32; LANES]) -> Lanes<S> {
    let mut lanes = [simd.splat_f32s(0.0); LANES];
    lanes[..LANES / S::F32_LANES].copy_from_slice(S::as_simd_f32s(from).0);
    lanes
}

#[inline(always)]
pub(super) fn store<S: Simd>(from: &Lanes<S>, to: &mut [f32; LANES]) {
    S::as_mut_simd_f32s(to).0.copy_from_slice(&from[..LANES / S::F32_LANES]);
}

/// Fewer than [`LANES`] values, and zeros.
#[inline(always)]
pub(super) fn padded<T: Copy + Default>(values: &[T]) -> [T; LANES] {
    let mut lanes = [T::default(); LANES];
    lanes[..values.len()].copy_from_slice(values);
    lanes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(values: &[f32], rounded: &[f32]) -> Figures {
        let mut row = RowSums::default();
        row.add_row(values, rounded);
        row.sums().figures()
    }

    #[test]
    fn figures_are_those_of_the_definition() {
        let figures = figures(&[3.0, 4.0, 0.0], &[3.0, 3.0, 0.0]);
        // 10 log10(25 / 1), 21 / (5 * sqrt(18)).
        assert_eq!(figures.snr_db, Some(13.98));
        assert_eq!(figures.cosine, 0.9899495);
        assert_eq!(figures.max_abs_error, 1.0);
    }

    #[test]
    fn what_is_exact_has_no_noise() {
        let exact = Figures { snr_db: None, cosine: 1.0, max_abs_error: 0.0 };
        assert_eq!(figures(&[0.5; 9], &[0.5; 9]), exact);
        assert_eq!(figures(&[0.0; 9], &[0.0; 9]), exact);
    }

    #[test]
    fn sums_of_rows_add_up() {
        let mut all = Sums::default();
        for (w, r) in [([1.0, 2.0], [1.0, 1.0]), ([2.0, -2.0], [1.5, -2.0])] {
            let mut row = RowSums::default();
            row.add_row(&w, &r);
            all.add(row.sums());
        }
        assert_eq!(all, Sums { square: 13.0, error: 1.25, cross: 3.0, largest: 1.0 });
    }
}
