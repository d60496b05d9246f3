//! Says before the work how many products calibrating and rounding a decoder take, how many a core does, and how fast
//! memory is read.
//!
//! Products in f64, as factors need them, count as five of those in f32: they go half as many at once, and
//! wait for memory.  Measured on layers of 0.1 and 2 billion weights the counts are within a third.

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use pulp::bytemuck::cast_slice;
use pulp::{Arch, Simd, WithSimd};

use crate::decoder::Decoder;
use crate::quantize::{BUDGET_MAX, CLIPS, EXPONENTS, HELD_EVERY, Method, SAMPLE_ROWS, is_square};

/// What a product in f64 costs, in products of f32.
const F64: f64 = 5.0;

/// Passes over memory that are timed at least.
const PASSES_MIN: usize = 3;

/// An input of a layer's linears: channels, and the rows of each weight that takes it.
struct Input {
    width: usize,
    rows: Vec<usize>,
}

/// The inputs of one layer.
fn inputs(llm: &Decoder) -> [Input; 4] {
    let kv = llm.kv_width();
    let input = |width, rows: &[usize]| Input { width, rows: rows.to_vec() };
    [
        input(llm.hidden, &[llm.q_width(), kv, kv]),
        input(llm.q_width(), &[llm.hidden]),
        input(llm.hidden, &[llm.intermediate; 2]),
        input(llm.intermediate, &[llm.hidden]),
    ]
}

/// The weights of all layers.
fn weights(llm: &Decoder) -> f64 {
    let of = |input: &Input| input.width * input.rows.iter().sum::<usize>();
    (llm.layers * inputs(llm).iter().map(of).sum::<usize>()) as f64
}

/// The products of running `tokens` tokens through all layers.
pub fn calibrating(llm: &Decoder, tokens: usize) -> f64 {
    weights(llm) * tokens as f64
}

/// The products of rounding all layers by `method` from `samples` activations; `budget` is that of
/// [`Method::Best`].
pub fn rounding(llm: &Decoder, method: Method, budget: usize, samples: usize) -> f64 {
    // Trying a clip or an exponent for a value costs about a product.
    let clips = weights(llm) * CLIPS.len() as f64;
    let layers = llm.layers as f64;
    let carried = |count: usize, samples: usize| {
        inputs(llm).iter().map(|input| carrying(input, count, samples)).sum::<f64>() * layers
    };
    match method {
        Method::Rtn => weights(llm),
        Method::Mse => clips,
        Method::Awq => clips + weights(llm) * EXPONENTS as f64,
        Method::Gptq | Method::GptqActOrder => clips + carried(1, samples),
        Method::Best => {
            let fitted = samples - samples / HELD_EVERY;
            clips * 2.0 + carried(budget.clamp(1, BUDGET_MAX), fitted)
        }
    }
}

/// The products of carrying errors through `input` in `count` ways: finding them, a sample of each weight's
/// rows by all, and every row by one.
fn carrying(input: &Input, count: usize, samples: usize) -> f64 {
    let (k, n) = (input.width as f64, samples as f64);
    let square = is_square(input.width, samples);
    // Where no square is held, each linear that shares the input has all ways fitted anew.
    let fits = if square { count } else { count * input.rows.len() };
    let found = if square { k * k * k / 3.0 } else { 2.0 * n * n * k } * F64 * fits as f64;
    let shared = if square { n * k * k } else { 0.0 };
    let row = if square { k * k / 2.0 } else { 2.0 * n * k };
    let rows = |rows: &usize| (rows + count * (*rows).min(SAMPLE_ROWS)) as f64 * row;
    found + shared + input.rows.iter().map(rows).sum::<f64>()
}

/// About how many of these products one core of this machine does in a second.
///
/// 40 thousand million were measured with vectors of sixteen (a shared core of an EPYC), and others go by their
/// width; where operations are fused in software, 500 million.
pub fn products_a_second() -> f64 {
    struct Lanes;
    impl WithSimd for Lanes {
        type Output = usize;
        fn with_simd<S: Simd>(self, _: S) -> usize {
            S::F32_LANES
        }
    }
    match Arch::new().dispatch(Lanes) {
        1 => 0.5e9,
        lanes => 2.5e9 * lanes as f64,
    }
}

/// How many bytes this machine reads from its memory in a second, by so many threads, each its own part of `buffer_bytes`: the
/// fastest of the passes that `enough` is time for, and of three, since noise only slows.
///
/// Every token of an answer reads all weights once, so this is what bounds how fast a model answers.
pub fn bytes_a_second(threads: usize, buffer_bytes: usize, enough: Duration) -> f64 {
    let threads = threads.max(1);
    let part = buffer_bytes / size_of::<u64>() / threads;
    // The kernel takes longer to give memory than it takes to read it, so each thread has its own part given.
    let parts: Vec<Vec<u64>> = thread::scope(|scope| {
        let given: Vec<_> = (0..threads).map(|_| scope.spawn(|| vec![1u64; part])).collect();
        given.into_iter().map(|part| part.join().expect("numbers are written")).collect()
    });
    let begin = Instant::now();
    let pass = |_| {
        let begin = Instant::now();
        thread::scope(|scope| {
            for numbers in &parts {
                scope.spawn(move || black_box(sum(black_box(numbers))));
            }
        });
        begin.elapsed().as_secs_f64()
    };
    let goes_on = |pass: &usize| *pass < PASSES_MIN || begin.elapsed() < enough;
    let fastest = (0..).take_while(goes_on).map(pass).fold(f64::INFINITY, f64::min);
    (part * threads * size_of::<u64>()) as f64 / fastest
}

/// A sum by the widest vectors, in eight of them, so that the loads wait for memory and never for each other.
fn sum(numbers: &[u64]) -> u64 {
    struct Sum<'a>(&'a [u64]);
    impl WithSimd for Sum<'_> {
        type Output = u64;
        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) -> u64 {
            let (vectors, rest) = S::as_simd_u64s(self.0);
            let (lines, more) = vectors.as_chunks::<8>();
            let mut sums = [simd.splat_u64s(0); 8];
            for line in lines {
                for (sum, numbers) in sums.iter_mut().zip(line) {
                    *sum = simd.add_u64s(*sum, *numbers);
                }
            }
            let whole = more.iter().fold(sums[0], |sum, numbers| simd.add_u64s(sum, *numbers));
            let all = sums[1..].iter().fold(whole, |sum, other| simd.add_u64s(sum, *other));
            let lanes: &[u64] = cast_slice(std::slice::from_ref(&all));
            lanes.iter().chain(rest).fold(0, |sum, &number| sum.wrapping_add(number))
        }
    }
    Arch::new().dispatch(Sum(numbers))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Checkpoint;
    use crate::sample::Sample;

    #[test]
    fn more_ways_more_samples_and_better_methods_cost_more() {
        let sample = Sample::tiny();
        let ckpt = Checkpoint::open(sample.dir()).unwrap();
        let llm = ckpt.decoder().unwrap();
        let of = |method, budget, samples| rounding(llm, method, budget, samples);
        let rising = [
            of(Method::Rtn, 3, 2048),
            of(Method::Mse, 3, 2048),
            of(Method::Awq, 3, 2048),
            of(Method::Gptq, 3, 2048),
            of(Method::Best, 2, 2048),
            of(Method::Best, 3, 2048),
            of(Method::Best, 3, 4096),
        ];
        assert!(rising.is_sorted_by(|a, b| a < b), "{rising:?}");
        assert_eq!(calibrating(llm, 20), 2.0 * calibrating(llm, 10));
        assert!(products_a_second() > 1e8);
    }

    #[test]
    fn every_number_is_read() {
        for count in [0, 1, 63, 64 * 100, 64 * 100 + 37] {
            let numbers: Vec<u64> = (0..count).collect();
            assert_eq!(sum(&numbers), numbers.iter().sum::<u64>(), "{count}");
        }
        assert!(
            bytes_a_second(2, 128 << 20, Duration::ZERO) > 1e7,
            "no machine of today is slower than a disk"
        );
    }
}
