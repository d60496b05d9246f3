//! Counts what a service does: plain numbers that whoever asks gets a copy of.

use std::time::Duration;

/// Upper bounds in seconds of what takes milliseconds to minutes.
pub const SECONDS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// Upper bounds of how many answers share a step.
pub const BATCHES: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];

/// How often values of some sizes occurred.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// Upper bounds, rising; values above the last are counted behind it.
    pub bounds: &'static [f64],
    /// Values up to each bound and above the one before; one more than bounds.
    pub counts: Vec<u64>,
    /// Of all values.
    pub sum: f64,
}

impl Histogram {
    /// Without values.
    pub fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    /// Counts a value.
    pub fn observe(&mut self, value: f64) {
        let place = self.bounds.partition_point(|bound| *bound < value);
        self.counts[place] += 1;
        self.sum += value;
    }

    /// Counts a time in seconds.
    pub fn observe_time(&mut self, time: Duration) {
        self.observe(time.as_secs_f64());
    }

    /// How many values there are.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// How requests ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Endings {
    /// Answers that the model, a stop string or token ended.
    pub stop: u64,
    /// Answers that reached the length asked for, or filled the context.
    pub length: u64,
    /// Answers that nobody waited for any more.
    pub cancelled: u64,
    /// Answers whose time was over.
    pub deadline: u64,
    /// Answers on which an engine failed.
    pub failed: u64,
    /// Answers that could not be held to their form any more.
    pub unheld: u64,
}

/// What keys and values take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kv {
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Tokens of a block.
    pub block_tokens: usize,
    /// Blocks in use, those kept for what may come included.
    pub blocks_held: usize,
    /// Blocks that there may be.
    pub blocks_total: usize,
}

/// What a service has done since it was started, and does now.
#[derive(Clone, Debug, PartialEq)]
pub struct Stats {
    /// Requests that were taken.
    pub requests: u64,
    /// Requests that were refused since there were too many.
    pub refused: u64,
    /// Requests whose pictures are being looked at.
    pub looking: usize,
    /// Answers that wait for a slot.
    pub waiting: usize,
    /// Answers whose prompt is being read.
    pub reading: usize,
    /// Answers under way.
    pub saying: usize,
    /// Slots kept for what they hold.
    pub kept_slots: usize,
    /// How answers ended.
    pub endings: Endings,
    /// Keys and values.
    pub kv: Kv,
    /// Tokens of prompts, once for each answer.
    pub prompt_tokens: u64,
    /// Those of them that a slot held already.
    pub cached_tokens: u64,
    /// Tokens of answers.
    pub said_tokens: u64,
    /// Times that an answer gave its slot back to others.
    pub preemptions: u64,
    /// Answers that shared a decode step.
    pub batch: Histogram,
    /// From being taken to a slot, pictures included.
    pub queue_seconds: Histogram,
    /// Of a chunk of a prompt.
    pub chunk_seconds: Histogram,
    /// Of a decode step, without choosing tokens.
    pub step_seconds: Histogram,
    /// Of choosing the tokens of a step and telling them.
    pub choose_seconds: Histogram,
    /// Of the vision engine over one part of a picture.
    pub part_seconds: Histogram,
    /// Pictures that were looked at.
    pub pictures_seen: u64,
    /// Pictures whose embeddings were still there.
    pub pictures_cached: u64,
    /// Bytes of embeddings that are kept.
    pub picture_cache_bytes: usize,
}

impl Stats {
    pub(super) fn new() -> Self {
        let seconds = || Histogram::new(SECONDS);
        Self {
            requests: 0,
            refused: 0,
            looking: 0,
            waiting: 0,
            reading: 0,
            saying: 0,
            kept_slots: 0,
            endings: Endings::default(),
            kv: Kv::default(),
            prompt_tokens: 0,
            cached_tokens: 0,
            said_tokens: 0,
            preemptions: 0,
            batch: Histogram::new(BATCHES),
            queue_seconds: seconds(),
            chunk_seconds: seconds(),
            step_seconds: seconds(),
            choose_seconds: seconds(),
            part_seconds: seconds(),
            pictures_seen: 0,
            pictures_cached: 0,
            picture_cache_bytes: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_up_to_their_bound() {
        let mut batch = Histogram::new(BATCHES);
        [1.0, 2.0, 3.0, 4.0, 300.0].into_iter().for_each(|value| batch.observe(value));
        assert_eq!(batch.counts, [1, 1, 2, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!((batch.count(), batch.sum), (5, 310.0));
    }
}
