//! Times products as decoding and prompts have them, and says which choice is best, and how many are done in a second.
//!
//! Choices whose times lie closer than noise are equal, and then the first in a fixed order is taken,
//! so that tuning twice on one machine rarely tells two things.

use std::time::Instant;

use crate::kernels::isa::Isa;
use crate::kernels::matrix::{Elements, Matrix};
use crate::kernels::product::Product;
use crate::kernels::striped::{
    self, Arithmetic, Bits, Input, Job, QuantizedStripes, RUN, STRIPE, Striped,
};
use crate::kernels::threads::Threads;

/// A weight of 4 bits larger than most last caches: 48 MiB, read once a step as in decoding.
const STEP_SHAPE: [usize; 2] = [12_288, 8192];
/// A weight such as a small decoder's layers have, for prompts.
const PROMPT_SHAPE: [usize; 2] = [2048, 2048];
/// Runs of each choice; the fastest counts, since noise only slows.
const RUNS: usize = 5;
/// Runs for rates, which nothing is compared with: over a tenth of a second, since others take the processor for a while.
const RATE_RUNS: usize = 16;
/// A choice must be faster by this share to be preferred to one before it.
const CLEAR: f64 = 0.05;
/// Lengths of a prompt's pieces, in the order of preference: the usual one, then those that take
/// less memory, then those that take more.
const CHUNKS: [usize; 5] = [128, 64, 32, 256, 512];
/// Half precision's bits of 1/1024, so that sums stay small.
const SCALE_BITS: u16 = 0x1400;

/// What was timed of all that is.
pub(super) struct Timed<'a> {
    done: usize,
    all: usize,
    progress: &'a mut dyn FnMut(&str),
}

impl<'a> Timed<'a> {
    /// Nothing yet of what [`step`] and [`chunk`] time.
    pub(super) fn new(progress: &'a mut dyn FnMut(&str)) -> Self {
        Self { done: 0, all: step_choices().len() + CHUNKS.len(), progress }
    }

    fn tell(&mut self, what: &str) {
        self.done += 1;
        (self.progress)(&format!("[{}/{}] {what}", self.done, self.all));
    }
}

/// Instruction sets and numbers of threads; the widest vectors and all processors first: they win unless
/// something is clearly faster.
fn step_choices() -> Vec<(Isa, usize)> {
    let all = super::MachineFacts::here().cores;
    let halves = std::iter::successors(Some(all), |count| Some(count / 2));
    let counts: Vec<usize> = halves.take_while(|&count| count > 0).collect();
    let with = |isa: Isa| counts.iter().map(move |&count| (isa, count));
    Isa::all().into_iter().rev().flat_map(with).collect()
}

/// The instruction set and the number of threads that step fastest.
pub(super) fn step(timed: &mut Timed<'_>) -> (Isa, usize) {
    let weight = Weight::new(STEP_SHAPE);
    let time = |(isa, count): (Isa, usize)| {
        let seconds = weight.seconds(1, isa, &Threads::new(count));
        let (isa_name, ms) = (isa.name(), seconds * 1e3);
        timed.tell(&format!("a step by {isa_name} on {count} threads: {ms:.2} ms"));
        ((isa, count), seconds)
    };
    let choices: Vec<_> = step_choices().into_iter().map(time).collect();
    best(&choices)
}

/// How many tokens of a prompt to compute at a time.
pub(super) fn chunk(isa: Isa, threads: usize, timed: &mut Timed<'_>) -> usize {
    let (weight, threads) = (Weight::new(PROMPT_SHAPE), Threads::new(threads));
    let choices = CHUNKS.map(|tokens| {
        let seconds = weight.seconds(tokens, isa, &threads) / tokens as f64;
        timed.tell(&format!("a token among {tokens}: {:.1} us", seconds * 1e6));
        (tokens, seconds)
    });
    best(&choices)
}

/// The first choice that no later one beats clearly.
fn best<T: Copy>(choices: &[(T, f64)]) -> T {
    let (mut choice, mut seconds) = choices[0];
    for &(other, time) in choices {
        if time < seconds * (1.0 - CLEAR) {
            (choice, seconds) = (other, time);
        }
    }
    choice
}

/// Multiplications that some threads do together in a second.
#[derive(Clone, Copy, Debug)]
pub struct ProductRates {
    /// Of f32 by f32.
    pub floats: f64,
    /// Of quants by rounded activations.
    pub integers: f64,
}

impl ProductRates {
    /// Times a prompt's products on all of `count` threads, which takes some tenths of a second.
    pub fn measure(count: usize) -> Self {
        Self::of(count, CHUNKS[0], PROMPT_SHAPE)
    }

    fn of(count: usize, tokens: usize, shape: [usize; 2]) -> Self {
        let isa = Isa::all().pop().expect("every processor has a path");
        let threads = Threads::new(count);
        let products = (tokens * shape[0] * shape[1]) as f64;
        let integers = Weight::new(shape).fastest(RATE_RUNS, tokens, isa, &threads);
        Self {
            floats: products / float_seconds(tokens, shape, isa, &threads),
            integers: products / integers,
        }
    }
}

/// The fastest of some products of f32 with so many tokens.
fn float_seconds(tokens: usize, [rows, columns]: [usize; 2], isa: Isa, threads: &Threads) -> f64 {
    let (x, weight) = (vec![0.5; tokens * columns], vec![0.25; rows * columns]);
    let mut out = vec![0.0; tokens * rows];
    let x = Matrix::new(Elements::F32(&x), tokens, columns);
    let weight = Matrix::new(Elements::F32(&weight), rows, columns);
    let run = |_| {
        let begin = Instant::now();
        Product::new(x, weight).run(isa, threads, &mut out);
        begin.elapsed().as_secs_f64()
    };
    (0..RATE_RUNS).map(run).fold(f64::INFINITY, f64::min)
}

/// Quants of 4 bits in groups of 32.
struct Weight {
    shape: [usize; 2],
    quants: Vec<u8>,
    scales: Vec<u16>,
}

impl Weight {
    fn new(shape: [usize; 2]) -> Self {
        let [rows, columns] = shape;
        let stripes = striped::stripes(rows);
        let bytes = stripes * Bits::Four.stripe_bytes(columns);
        // Odd steps meet every byte; what the bytes are is all one to the kernels.
        let quants = (0..bytes).map(|index| (index * 151 % 256) as u8).collect();
        let scales = vec![SCALE_BITS; stripes * columns.div_ceil(RUN) * STRIPE];
        Self { shape, quants, scales }
    }

    /// The fastest of some products with so many tokens.
    fn seconds(&self, tokens: usize, isa: Isa, threads: &Threads) -> f64 {
        self.fastest(RUNS, tokens, isa, threads)
    }

    fn fastest(&self, runs: usize, tokens: usize, isa: Isa, threads: &Threads) -> f64 {
        let [rows, columns] = self.shape;
        let quants = QuantizedStripes {
            bits: Bits::Four,
            quants: &self.quants,
            group_runs: 1,
            scales: Elements::F16(&self.scales),
            zeros: None,
        };
        let weight = Striped::quants(quants, rows, columns);
        let x: Vec<f32> = (0..tokens * columns).map(|index| (index % 17) as f32 - 8.0).collect();
        let (mut input, mut out) = (Input::default(), vec![0.0; tokens * rows]);
        let run = |_| {
            let begin = Instant::now();
            input.fill(&x, columns, weight.rounding(Arithmetic::Integers), isa, threads);
            let job = Job { weight, bias: None, out: &mut out, stride: rows };
            striped::multiply(&input, vec![job], isa, threads);
            begin.elapsed().as_secs_f64()
        };
        (0..runs).map(run).fold(f64::INFINITY, f64::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_choice_stays_unless_another_is_clearly_faster() {
        assert_eq!(best(&[('a', 1.0), ('b', 0.97), ('c', 2.0)]), 'a');
        assert_eq!(best(&[('a', 1.0), ('b', 0.9), ('c', 0.88)]), 'b');
        assert_eq!(best(&[('a', 1.0), ('b', 0.9), ('c', 0.5)]), 'c');
    }

    #[test]
    fn products_are_counted_by_the_second() {
        let ProductRates { floats, integers } = ProductRates::of(2, 3, [20, 70]);
        assert!(floats.is_finite() && floats > 0.0, "{floats}");
        assert!(integers.is_finite() && integers > 0.0, "{integers}");
    }

    #[test]
    fn a_product_takes_time() {
        let weight = Weight::new([20, 70]);
        for isa in Isa::all() {
            let seconds = weight.seconds(3, isa, &Threads::new(2));
            assert!(seconds.is_finite() && seconds > 0.0, "{isa:?}: {seconds}");
        }
    }
}
