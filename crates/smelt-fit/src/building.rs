//! Says what stages of smelt's own hold while they build, by the sizes of what they read.
//!
//! Plans, runs and `fit` ask the same functions.

/// What stages that stream hold at most: one block of a tensor in, one out, and the graph.  Of models of
/// 2B they were measured to hold a quarter of it.
pub const STREAMING_BYTES: u64 = 48 << 20;
/// What compiling an engine's kernels for GPUs holds beside: 155 MiB were measured of NVRTC 12.6, for decoders and for towers.
pub const COMPILING_BYTES: u64 = 160 << 20;
/// What calibrating and rounding by what was seen hold of a model of 2B: activations between two layers, a
/// thousand rows inside one, and what is kept of them.  It grows with the widths of the model, hence by
/// less than its size.
const LEARNING_BYTES: u64 = 512 << 20;
/// The least that they hold: blocks of weights, and the built-in texts.
const LEARNING_BYTES_MIN: u64 = 96 << 20;
/// The bytes of a checkpoint of 2B.
const LEARNT_FROM_BYTES: u64 = 4 << 30;

/// What a stage holds at most that learns from what a model's layers are fed, which it reads with the model.
pub fn learning(input_bytes: u64) -> u64 {
    let share = LEARNING_BYTES.saturating_mul(input_bytes / 1024) / (LEARNT_FROM_BYTES / 1024);
    share.clamp(LEARNING_BYTES_MIN, LEARNING_BYTES)
}

/// What building an engine of a vision tower holds that holds `tower_bytes` while it is executed: weights are packed
/// before it is executed once.
pub fn executing(tower_bytes: u64) -> u64 {
    tower_bytes.saturating_add(STREAMING_BYTES)
}

/// What holding engines against the reference holds beside: what each core's rows of weights take, 2.9 MiB of InternVL3.5-1B
/// and 1.7 of SmolVLM-500M on 2 to 16 cores.
pub(crate) fn referring(cores: usize) -> u64 {
    (cores as u64).saturating_mul(3 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_learns_from_a_model_holds_a_part_of_it() {
        assert_eq!(learning(4 << 30), 512 << 20);
        assert_eq!(learning(1 << 30), 128 << 20);
        assert_eq!(learning(1000), LEARNING_BYTES_MIN);
        assert_eq!(learning(u64::MAX), LEARNING_BYTES);
    }

    #[test]
    fn a_tower_is_executed_beside_what_streams() {
        assert_eq!(executing(100 << 20), 148 << 20);
        assert_eq!(executing(u64::MAX), u64::MAX);
    }
}
