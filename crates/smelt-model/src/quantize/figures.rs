//! Measures what rounding a tensor has cost.
//!
//! Rows are summed as they are rounded, in a fixed order, so the figures are the same bits for any
//! number of threads.  Knows nothing of schemes or files.

use serde::Serialize;

/// Lanes of a row's partial sums: two SSE or NEON registers.
pub(super) const LANES: usize = 8;

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

/// Each lane of `sums` by itself, which the compiler does side by side.
#[inline(always)]
fn accumulate(sums: &mut [f32; LANES], next: impl Fn(usize, f32) -> f32) {
    for (lane, sum) in sums.iter_mut().enumerate() {
        *sum = next(lane, *sum);
    }
}

impl RowSums {
    /// Takes the next values of the row and what they are rounded to.
    #[inline(always)]
    pub(super) fn add(&mut self, values: &[f32; LANES], rounded: &[f32; LANES]) {
        let errors: [f32; LANES] = std::array::from_fn(|lane| values[lane] - rounded[lane]);
        accumulate(&mut self.square, |lane, sum| sum + values[lane] * values[lane]);
        accumulate(&mut self.error, |lane, sum| sum + errors[lane] * errors[lane]);
        accumulate(&mut self.cross, |lane, sum| sum + values[lane] * errors[lane]);
        accumulate(&mut self.largest, |lane, most| {
            let size = errors[lane].abs();
            if size > most { size } else { most }
        });
    }

    /// Takes a whole row at once.
    pub(super) fn add_row(&mut self, values: &[f32], rounded: &[f32]) {
        let (values, last) = values.as_chunks::<LANES>();
        let (rounded, last_rounded) = rounded.as_chunks::<LANES>();
        for (values, rounded) in values.iter().zip(rounded) {
            self.add(values, rounded);
        }
        self.add(&padded(last), &padded(last_rounded));
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
