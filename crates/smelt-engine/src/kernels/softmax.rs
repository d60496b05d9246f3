//! Turns rows of scores into weights that sum to one.

use super::activation::exp;

/// Softmax of one row, in place.  A row of nothing but -inf gives NaN, as its definition does.
pub(crate) fn softmax(row: &mut [f32]) {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    row.iter_mut().for_each(|value| *value = exp(*value - max));
    let sum: f64 = row.iter().copied().map(f64::from).sum();
    let factor = (1.0 / sum) as f32;
    row.iter_mut().for_each(|value| *value *= factor);
}

#[cfg(test)]
mod tests {
    use smelt_random::Random;

    use super::*;
    use crate::kernels::testing::close;

    #[test]
    fn rows_match_the_definition() {
        let mut random = Random::new(6);
        for len in [1, 2, 17, 1025] {
            let mut row: Vec<f32> = random.noise(len).iter().map(|v| v * 30.0).collect();
            let wide: Vec<f64> = row.iter().map(|&v| f64::from(v).exp()).collect();
            let sum: f64 = wide.iter().sum();
            let expect: Vec<f64> = wide.iter().map(|v| v / sum).collect();
            softmax(&mut row);
            close(&row, &expect, 5e-7, &format!("{len} scores"));
        }
    }

    #[test]
    fn masked_scores_weigh_nothing() {
        let mut row = [f32::NEG_INFINITY, 3.0, f32::NEG_INFINITY, 3.0];
        softmax(&mut row);
        assert_eq!(row, [0.0, 0.5, 0.0, 0.5]);
    }
}
