//! Resizes RGB pixels with Pillow's bicubic and Lanczos filters, to the bit.
//!
//! The models were trained behind Pillow's `Image.resize`: a filter that widens when
//! it shrinks, weights in 22-bit fixed point, rows first, each pass rounded to bytes (libImaging,
//! `Resample.c`).  Knows nothing of tiles.

use super::Image;

/// Fraction bits of a weight: 32 less the 8 of a sample and 2 for overshoot.
const PRECISION_BITS: u32 = 32 - 8 - 2;

/// How source pixels mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filter {
    /// A cubic with a = -0.5.
    Bicubic,
    /// A sinc, cut off by a wider one.
    Lanczos,
}

impl Filter {
    /// Half its width in source pixels when it does not shrink.
    fn support(self) -> f64 {
        match self {
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    /// Its value at a distance.
    fn at(self, x: f64) -> f64 {
        match self {
            Self::Bicubic => cubic(x),
            Self::Lanczos => lanczos(x),
        }
    }
}

/// Bytes of a pixel.
const CHANNELS: usize = 3;

/// `picture` as `width` by `height` RGB pixels, by the bicubic filter, whatever its own sides are to each other.
pub fn resize(picture: &Image, width: usize, height: usize) -> Vec<u8> {
    resize_by(Filter::Bicubic, picture, width, height)
}

/// `picture` as `width` by `height` RGB pixels.
pub(crate) fn resize_by(filter: Filter, picture: &Image, width: usize, height: usize) -> Vec<u8> {
    let weights = |source, target| Weights::new(filter, source, target);
    let (columns, rows) = (weights(picture.width(), width), weights(picture.height(), height));
    let rgb = picture.rgb();
    match (columns.keeps_size(), rows.keeps_size()) {
        (true, true) => rgb.to_vec(),
        (true, false) => vertically(rgb, width, &rows),
        (false, true) => horizontally(rgb, picture.width(), &columns),
        (false, false) => vertically(&horizontally(rgb, picture.width(), &columns), width, &rows),
    }
}

/// Which source samples make each output sample, along one axis.
struct Weights {
    source: usize,
    spans: Vec<Span>,
}

/// One output sample: the first source sample, and a fixed-point weight for each.
struct Span {
    first: usize,
    weights: Vec<i32>,
}

impl Weights {
    fn new(filter: Filter, source: usize, target: usize) -> Self {
        let scale = source as f64 / target as f64;
        // A shrinking filter covers all source samples it replaces.
        let widened = scale.max(1.0);
        let span = |index| Span::new(filter, source, index, [scale, widened]);
        let spans = (0..target).map(span).collect();
        Self { source, spans }
    }

    fn keeps_size(&self) -> bool {
        self.source == self.spans.len()
    }
}

impl Span {
    fn new(filter: Filter, source: usize, index: usize, [scale, widened]: [f64; 2]) -> Self {
        let center = (index as f64 + 0.5) * scale;
        let support = filter.support() * widened;
        // `as` truncates towards zero and saturates at zero, as the C code's cast and clamp do.
        let first = (center - support + 0.5) as usize;
        let end = ((center + support + 0.5) as usize).min(source);
        let narrowed = widened.recip();
        let at = |x: usize| filter.at((x as f64 - center + 0.5) * narrowed);
        let weights: Vec<f64> = (first..end).map(at).collect();
        let sum: f64 = weights.iter().sum();
        Self { first, weights: weights.iter().map(|weight| fixed(weight / sum)).collect() }
    }
}

/// The cubic convolution kernel with a = -0.5.
fn cubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    let x = x.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

/// The sinc that ends at a distance of 3.
fn lanczos(x: f64) -> f64 {
    if (-3.0..3.0).contains(&x) { sinc(x) * sinc(x / 3.0) } else { 0.0 }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 {
        return 1.0;
    }
    let x = x * std::f64::consts::PI;
    x.sin() / x
}

/// Rounds half away from zero.
fn fixed(weight: f64) -> i32 {
    let scaled = weight * f64::from(1 << PRECISION_BITS);
    (scaled + 0.5_f64.copysign(scaled)) as i32
}

/// A sum of fixed-point products as a byte, rounded half up and clamped.
fn byte(sum: i32) -> u8 {
    (sum >> PRECISION_BITS).clamp(0, 255) as u8
}

/// Half of one in fixed point.
const ROUND: i32 = 1 << (PRECISION_BITS - 1);

fn horizontally(rgb: &[u8], width: usize, columns: &Weights) -> Vec<u8> {
    let rows = rgb.len() / (width * CHANNELS);
    let mut out = Vec::with_capacity(rows * columns.spans.len() * CHANNELS);
    for row in rgb.chunks_exact(width * CHANNELS) {
        let pixels = row.as_chunks::<CHANNELS>().0;
        for span in &columns.spans {
            let [mut red, mut green, mut blue] = [ROUND; CHANNELS];
            for ([r, g, b], weight) in pixels[span.first..].iter().zip(&span.weights) {
                red += i32::from(*r) * weight;
                green += i32::from(*g) * weight;
                blue += i32::from(*b) * weight;
            }
            out.extend_from_slice(&[byte(red), byte(green), byte(blue)]);
        }
    }
    out
}

fn vertically(rgb: &[u8], width: usize, rows: &Weights) -> Vec<u8> {
    let stride = width * CHANNELS;
    let mut out = Vec::with_capacity(rows.spans.len() * stride);
    let mut sums = vec![ROUND; stride];
    for span in &rows.spans {
        sums.fill(ROUND);
        for (row, weight) in rgb.chunks_exact(stride).skip(span.first).zip(&span.weights) {
            for (sum, sample) in sums.iter_mut().zip(row) {
                *sum += i32::from(*sample) * weight;
            }
        }
        out.extend(sums.iter().map(|sum| byte(*sum)));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grey(width: usize, height: usize, samples: &[u8]) -> Image {
        let rgb = samples.iter().flat_map(|sample| [*sample; 3]).collect();
        Image::from_rgb(width, height, rgb).unwrap()
    }

    #[track_caller]
    fn check(picture: &Image, width: usize, height: usize, expect: &[u8]) {
        let out = resize(picture, width, height);
        assert!(out.chunks(3).all(|pixel| pixel[0] == pixel[1] && pixel[1] == pixel[2]));
        assert_eq!(out.iter().step_by(3).copied().collect::<Vec<_>>(), expect);
    }

    #[test]
    fn a_flat_picture_stays_flat() {
        check(&grey(3, 2, &[77; 6]), 5, 7, &[77; 35]);
        check(&grey(9, 5, &[255; 45]), 2, 1, &[255; 2]);
    }

    #[test]
    fn the_same_size_is_a_copy() {
        check(&grey(2, 2, &[1, 2, 3, 4]), 2, 2, &[1, 2, 3, 4]);
    }

    #[test]
    fn weights_sum_to_one_within_rounding() {
        for (source, target) in [(7, 3), (3, 7), (1000, 448), (448, 1000), (1, 5), (5, 1)] {
            for filter in [Filter::Bicubic, Filter::Lanczos] {
                for span in Weights::new(filter, source, target).spans {
                    let sum: i32 = span.weights.iter().sum();
                    assert!((sum - (1 << PRECISION_BITS)).abs() <= span.weights.len() as i32);
                    assert!(span.first + span.weights.len() <= source);
                }
            }
        }
    }

    #[test]
    fn overshoot_is_clamped() {
        // A step seen through a cubic rings below 0 and above 255.
        let out = resize(&grey(4, 1, &[0, 0, 255, 255]), 8, 1);
        let samples: Vec<u8> = out.iter().step_by(3).copied().collect();
        assert_eq!((samples[0], samples[7]), (0, 255));
        assert!(samples.is_sorted());
    }

    #[test]
    fn shrinking_averages_all_samples() {
        // Doubled support: every other sample alone would give 0 or 255.
        let stripes: Vec<u8> = (0..64).map(|x| if x % 2 == 0 { 0 } else { 255 }).collect();
        let out = resize(&grey(64, 1, &stripes), 16, 1);
        assert!(out[12..36].iter().all(|x| x.abs_diff(127) <= 1), "{out:?}");
    }
}
