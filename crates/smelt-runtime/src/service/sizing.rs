//! Says how much memory keys and values may take, and what fits into it.
//!
//! Plain arithmetic over what was measured after the engines ran once.  Knows no engine and no file.

/// How much memory keys and values may take.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum KvMemory {
    /// As much as is free, and no more than full slots take.
    #[default]
    Free,
    /// This part of what is free, more than 0 and at most 1.
    Part(f64),
    /// So many bytes.
    Bytes(u64),
}

/// What there is, and what is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Memory {
    /// Bytes that the machine has left, once the engines have run.
    pub(super) available: u64,
    /// Bytes that this process takes, weights included.
    pub(super) resident: u64,
    /// Bytes that this process may take at most.
    pub(super) cap: Option<u64>,
    /// Bytes that pictures may take beside keys and values.
    pub(super) pictures: u64,
    /// Bytes that requests may take while they are read and prepared.
    pub(super) preparing: u64,
    /// What keys and values may take of it.
    pub(super) kv: KvMemory,
}

/// What keys and values of an engine take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KvSizes {
    /// Bytes of a block.
    pub(super) block_bytes: u64,
    /// Tokens of a block.
    pub(super) block_tokens: u64,
    /// Tokens of one context.
    pub(super) max_seq_len: u64,
    /// Contexts at once.
    pub(super) slots: u64,
}

impl KvSizes {
    fn full_blocks(&self) -> u64 {
        self.max_seq_len.div_ceil(self.block_tokens)
    }
}

/// What fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvPlan {
    /// Bytes for keys and values.
    pub bytes: u64,
    /// Bytes of one token.
    pub token_bytes: u64,
    /// Tokens of all contexts together.
    pub tokens: u64,
    /// Tokens of the largest context.
    pub context_max: u64,
    /// Contexts of that size at once.
    pub batch_max: u64,
}

/// Keys and values have no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "keys and values may take {} MiB, but one block for {block_tokens} tokens takes {} KiB and an answer needs two (the process takes {} MiB, {} MiB are for pictures, {} MiB for requests that are prepared): free memory, raise --memory (from {} MiB on it suffices) or --kv-memory, or use --kv int8",
    room >> 20,
    block_bytes >> 10,
    resident >> 20,
    pictures >> 20,
    preparing >> 20,
    suffices.div_ceil(1 << 20)
)]
pub struct DoesNotFit {
    /// Bytes that are left.
    pub room: u64,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Tokens of a block.
    pub block_tokens: u64,
    /// Bytes that the process takes without them.
    pub resident: u64,
    /// Bytes that pictures may take.
    pub pictures: u64,
    /// Bytes that requests may take while they are prepared.
    pub preparing: u64,
    /// Bytes of the whole process from which on a cap suffices.
    pub suffices: u64,
}

/// The part of a cap that pictures may take at most: under a small one they would leave nothing else.
const PICTURES_PART: u64 = 4;

/// Bytes that pictures may take of those that they would, under a cap of the whole process.
pub(super) fn pictures(wanted: u64, cap: Option<u64>) -> u64 {
    cap.map_or(wanted, |cap| wanted.min(cap / PICTURES_PART))
}

/// The part of a cap that requests may take at most while they are read and prepared.
const PREPARING_PART: u64 = 8;

/// Bytes that requests may take while they are read and prepared, of those that they would, under a cap of the whole
/// process.
pub fn preparing(wanted: u64, cap: Option<u64>) -> u64 {
    cap.map_or(wanted, |cap| wanted.min(cap / PREPARING_PART))
}

/// The least cap beneath which `needed` bytes fit beside pictures and preparing that would take so much.
fn least_cap(needed: u64, of_pictures: u64, of_preparing: u64) -> u64 {
    // Each takes what it would or its part of the cap, whatever is less.
    let scaled = |bytes: u64, parts: u64| (bytes * PREPARING_PART).div_ceil(PREPARING_PART - parts);
    let picture_parts = PREPARING_PART / PICTURES_PART;
    [
        needed + of_pictures + of_preparing,
        scaled(needed + of_pictures, 1),
        scaled(needed + of_preparing, picture_parts),
        scaled(needed, picture_parts + 1),
    ]
    .into_iter()
    .fold(u64::MAX, u64::min)
}

/// What is left to others of what is free, unless bytes are asked for: the machine swaps otherwise
/// with the next program that starts.
const LEFT_TO_OTHERS: f64 = 0.1;

/// Divides memory.
///
/// # Errors
/// [`DoesNotFit`] if not even the shortest context has room.
pub(super) fn plan(memory: &Memory, sizes: &KvSizes) -> Result<KvPlan, DoesNotFit> {
    let Memory { available, resident, cap, pictures: of_pictures, preparing: of_preparing, kv } =
        *memory;
    let (pictures, preparing) = (pictures(of_pictures, cap), preparing(of_preparing, cap));
    let beside = pictures + preparing;
    let under_cap = cap.map_or(u64::MAX, |cap| cap.saturating_sub(resident + beside));
    let free = (available as f64 * (1.0 - LEFT_TO_OTHERS)) as u64;
    let free = free.saturating_sub(beside).min(under_cap);
    let asked = match kv {
        KvMemory::Free => free,
        KvMemory::Part(part) => (free as f64 * part) as u64,
        KvMemory::Bytes(bytes) => bytes.min(under_cap).min(available),
    };
    let KvSizes { block_bytes, block_tokens, max_seq_len, slots } = *sizes;
    let blocks = (asked / block_bytes).min(slots * sizes.full_blocks());
    if blocks < 2 {
        let suffices = least_cap(resident + 2 * block_bytes, of_pictures, of_preparing);
        return Err(DoesNotFit {
            room: asked,
            block_bytes,
            block_tokens,
            resident,
            pictures,
            preparing,
            suffices,
        });
    }
    let tokens = blocks * block_tokens;
    Ok(KvPlan {
        bytes: blocks * block_bytes,
        token_bytes: block_bytes.div_ceil(block_tokens),
        tokens,
        context_max: tokens.min(max_seq_len),
        batch_max: (blocks / sizes.full_blocks()).clamp(1, slots),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const SIZES: KvSizes =
        KvSizes { block_bytes: MIB, block_tokens: 64, max_seq_len: 1000, slots: 8 };

    fn memory(kv: KvMemory) -> Memory {
        let (pictures, preparing) = (10 * MIB, 0);
        Memory { available: 100 * MIB, resident: 50 * MIB, cap: None, pictures, preparing, kv }
    }

    #[track_caller]
    fn check(memory: Memory, mib: u64, context_max: u64, batch_max: u64) {
        let plan = plan(&memory, &SIZES).unwrap();
        assert_eq!(plan.bytes, mib * MIB);
        assert_eq!((plan.context_max, plan.batch_max), (context_max, batch_max));
        assert_eq!((plan.tokens, plan.token_bytes), (mib * 64, 16384));
    }

    #[test]
    fn what_is_free_is_divided() {
        check(memory(KvMemory::Free), 80, 1000, 5);
        check(memory(KvMemory::Part(0.5)), 40, 1000, 2);
        check(memory(KvMemory::Bytes(30 * MIB)), 30, 1000, 1);
        check(memory(KvMemory::Bytes(5 * MIB + 1)), 5, 320, 1);
        check(memory(KvMemory::Bytes(900 * MIB)), 100, 1000, 6);
    }

    #[test]
    fn no_more_is_taken_than_full_slots_take() {
        check(Memory { available: 900 * MIB, ..memory(KvMemory::Free) }, 128, 1000, 8);
    }

    #[test]
    fn a_cap_is_of_the_whole_process() {
        let capped = |kv| Memory { cap: Some(80 * MIB), ..memory(kv) };
        check(capped(KvMemory::Free), 20, 1000, 1);
        check(capped(KvMemory::Part(0.5)), 10, 640, 1);
        check(capped(KvMemory::Bytes(90 * MIB)), 20, 1000, 1);
        let small = Memory { cap: Some(61 * MIB), ..memory(KvMemory::Free) };
        let error = plan(&small, &SIZES).unwrap_err();
        assert!(
            error.to_string().contains("may take 1 MiB, but one block for 64 tokens"),
            "{error}"
        );
        assert_eq!(error.suffices, 62 * MIB);
    }

    #[test]
    fn pictures_leave_most_of_a_small_cap() {
        assert_eq!(pictures(320 * MIB, None), 320 * MIB);
        assert_eq!(pictures(320 * MIB, Some(4096 * MIB)), 320 * MIB);
        assert_eq!(pictures(320 * MIB, Some(200 * MIB)), 50 * MIB);
        let wanting = |cap| Memory {
            cap: Some(cap),
            pictures: 320 * MIB,
            available: 4096 * MIB,
            ..memory(KvMemory::Free)
        };
        let error = plan(&wanting(64 * MIB), &SIZES).unwrap_err();
        assert!(plan(&wanting(error.suffices), &SIZES).is_ok(), "{error}");
        assert!(plan(&wanting(error.suffices - MIB), &SIZES).is_err(), "{error}");
    }
}
