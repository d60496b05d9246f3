//! Normalises rows: LayerNorm and RMSNorm, with sums in f64.

/// Sums that run side by side, so that a vector of them can.
const SUMS: usize = 16;

/// The sum of `of` each number, in an order that depends on the length alone.
#[inline(always)]
fn sum(row: &[f32], of: impl Fn(f64) -> f64) -> f64 {
    let mut sums = [0.0; SUMS];
    let (whole, rest) = row.as_chunks::<SUMS>();
    for values in whole {
        sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += of(f64::from(*value)));
    }
    sums.iter_mut().zip(rest).for_each(|(sum, value)| *sum += of(f64::from(*value)));
    sums.iter().sum()
}

/// Mean and 1/√(variance + eps) of one row.
#[inline(always)]
pub(crate) fn moments(row: &[f32], eps: f32) -> (f32, f32) {
    let count = row.len() as f64;
    let mean = sum(row, |value| value) / count;
    let squares = sum(row, |value| (value - mean) * (value - mean));
    (mean as f32, (1.0 / (squares / count + f64::from(eps)).sqrt()) as f32)
}

/// `(x - mean) / √(variance + eps) * scale + bias` over one row, in place; gives the moments.
#[inline(always)]
pub(crate) fn layer_norm(
    row: &mut [f32],
    scale: &[f32],
    bias: Option<&[f32]>,
    eps: f32,
) -> (f32, f32) {
    let (mean, inverse) = moments(row, eps);
    for (value, scale) in row.iter_mut().zip(scale) {
        *value = (*value - mean) * inverse * scale;
    }
    if let Some(bias) = bias {
        row.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
    }
    (mean, inverse)
}

/// `x / √(mean(x²) + eps) * weight` of one row, into `out`.
#[inline(always)]
pub(crate) fn rms_norm(row: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let squares = sum(row, |value| value * value);
    let inverse = (1.0 / (squares / row.len() as f64 + f64::from(eps)).sqrt()) as f32;
    for ((out, &value), &weight) in out.iter_mut().zip(row).zip(weight) {
        *out = value * inverse * weight;
    }
}

#[cfg(test)]
mod tests {
    use smelt_random::Random;

    use super::*;
    use crate::kernels::testing::close;

    #[test]
    fn both_match_their_definitions() {
        let mut random = Random::new(7);
        for len in [1, 3, 64, 1025] {
            let row: Vec<f32> = random.noise(len).iter().map(|v| v * 5.0 + 100.0).collect();
            let (scale, bias) = (random.noise(len), random.noise(len));
            let wide: Vec<f64> = row.iter().copied().map(f64::from).collect();
            let mean = wide.iter().sum::<f64>() / len as f64;
            let variance = wide.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / len as f64;
            let deviation = (variance + f64::from(1e-5f32)).sqrt();
            let expect: Vec<f64> = (0..len)
                .map(|i| (wide[i] - mean) / deviation * f64::from(scale[i]) + f64::from(bias[i]))
                .collect();
            let mut got = row.clone();
            layer_norm(&mut got, &scale, Some(&bias), 1e-5);
            close(&got, &expect, 5e-6, &format!("layer norm of {len}"));

            let square = wide.iter().map(|v| v * v).sum::<f64>() / len as f64;
            let root = (square + f64::from(1e-6f32)).sqrt();
            let expect: Vec<f64> = (0..len).map(|i| wide[i] / root * f64::from(scale[i])).collect();
            rms_norm(&row, &scale, 1e-6, &mut got);
            close(&got, &expect, 1e-6, &format!("rms norm of {len}"));
        }
    }
}
