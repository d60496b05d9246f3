//! Measures how many bytes this machine reads from its memory in a second.
//!
//! Every token of an answer reads all weights once, so this is what bounds how fast a model answers.

use std::hint::black_box;
use std::thread;
use std::time::Instant;

/// Beyond the caches of most machines, and no load on a small board.
const BUFFER_BYTES: usize = 128 << 20;
/// The first pass waits for the kernel's pages.
const PASSES: usize = 3;

/// Bytes a second, read by as many threads as there are cores, each its own part.
pub(crate) fn measure(threads: usize) -> f64 {
    let buffer = vec![1u64; BUFFER_BYTES / size_of::<u64>()];
    let part = buffer.len().div_ceil(threads.max(1));
    let pass = |_| {
        let begin = Instant::now();
        thread::scope(|scope| {
            for numbers in buffer.chunks(part) {
                scope.spawn(move || black_box(sum(black_box(numbers))));
            }
        });
        begin.elapsed().as_secs_f64()
    };
    let fastest = (0..PASSES).map(pass).fold(f64::INFINITY, f64::min);
    BUFFER_BYTES as f64 / fastest
}

/// A sum in 64 lanes, so that the loads wait for memory and never for each other.
fn sum(numbers: &[u64]) -> u64 {
    let mut lanes = [0u64; 64];
    for line in numbers.as_chunks::<64>().0 {
        lanes.iter_mut().zip(line).for_each(|(lane, number)| *lane = lane.wrapping_add(*number));
    }
    lanes.iter().fold(0, |all, &lane| all.wrapping_add(lane))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_read() {
        let numbers: Vec<u64> = (0..64 * 100).collect();
        assert_eq!(sum(&numbers), numbers.iter().sum::<u64>());
        assert!(measure(2) > 1e7, "no machine of today is slower than a disk");
    }
}
