//! Says how much memory keys and values may take, and what fits into it.
//!
//! Plain arithmetic over what was measured after the engines ran once, and over what the decoder says of its own memory: a
//! device's is divided by what is free there, whatever the machine has.  Knows no engine and no file.

use std::fmt;

use smelt_backend::{MemoryPlace, MemoryReport};

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
    /// Where keys and values will be.
    pub(super) place: MemoryPlace,
    /// Bytes that are left there, once the engines have run.
    pub(super) available: u64,
    /// Bytes that this process takes there, weights included.
    pub(super) resident: u64,
    /// Bytes that anybody takes of a device's own memory.
    pub(super) taken: u64,
    /// Bytes that this process may take there at most.
    pub(super) cap: Option<u64>,
    /// Bytes that pictures may take beside keys and values.
    pub(super) pictures: u64,
    /// Bytes that requests may take while they are read and prepared.
    pub(super) preparing: u64,
    /// What keys and values may take of it.
    pub(super) kv: KvMemory,
}

impl Memory {
    /// The same for a decoder that says this of its memory; `kept` are the bytes of pictures that may lie beside its keys
    /// and values.
    ///
    /// A device's own memory is none of the machine's: the cap holds there by itself, and neither pixels nor texts lie there.
    /// Of memory that both use, each knows what is left, and what the device was given is no page of the process.
    pub(super) fn of(self, report: &MemoryReport, kept: u64) -> Self {
        let room = report.room_bytes().unwrap_or(u64::MAX);
        match report.place {
            place @ MemoryPlace::Host => Self { place, ..self },
            place @ MemoryPlace::Unified => Self {
                place,
                available: self.available.min(room),
                resident: self.resident + report.own_bytes,
                ..self
            },
            place @ MemoryPlace::Device => Self {
                place,
                available: room,
                resident: report.own_bytes,
                taken: report.held_bytes().unwrap_or_default(),
                cap: self.cap,
                pictures: self.pictures.min(kept),
                preparing: 0,
                kv: self.kv,
            },
        }
    }
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoesNotFit {
    /// Where they would be.
    pub place: MemoryPlace,
    /// Bytes that are left.
    pub room: u64,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Tokens of a block.
    pub block_tokens: u64,
    /// Bytes that the process takes there without them.
    pub resident: u64,
    /// Bytes that anybody takes of a device's own memory.
    pub taken: u64,
    /// Bytes that pictures may take.
    pub pictures: u64,
    /// Bytes that requests may take while they are prepared.
    pub preparing: u64,
    /// Bytes from which on a cap suffices.
    pub suffices: u64,
}

impl std::error::Error for DoesNotFit {}

impl fmt::Display for DoesNotFit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, room, block_bytes, block_tokens, resident, .. } = *self;
        let Self { taken, pictures, preparing, suffices, .. } = *self;
        let [room, resident, taken, pictures, preparing] =
            [room, resident, taken, pictures, preparing].map(|bytes| bytes >> 20);
        let suffices = suffices.div_ceil(1 << 20);
        let of = if place == MemoryPlace::Device { " of the device's memory" } else { "" };
        let block = block_bytes >> 10;
        write!(
            f,
            "keys and values may take {room} MiB{of}, but one block for {block_tokens} tokens takes {block} KiB and an answer needs two "
        )?;
        match place {
            MemoryPlace::Device => write!(
                f,
                "({taken} MiB of it are taken, {resident} MiB by this process, {pictures} MiB are for pictures): free the device's memory, raise --memory (from {suffices} MiB on it suffices) or --kv-memory, or use --kv int8"
            ),
            MemoryPlace::Host | MemoryPlace::Unified => write!(
                f,
                "(the process takes {resident} MiB, {pictures} MiB are for pictures, {preparing} MiB for requests that are prepared): free memory, raise --memory (from {suffices} MiB on it suffices) or --kv-memory, or use --kv int8"
            ),
        }
    }
}

/// What a process takes of the machine's memory whose decoder has its weights, keys and values in a device's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Beside {
    /// Bytes that it holds and that the kernel cannot drop, as it can the pages of files that were brought to the device.
    pub(super) held: u64,
    /// Bytes that pictures may take.
    pub(super) pictures: u64,
    /// Bytes that requests may take while they are read and prepared.
    pub(super) preparing: u64,
}

impl Beside {
    /// Holds it to what the process may take.
    ///
    /// # Errors
    /// [`OverCap`] if it is more.
    pub(super) fn within(self, cap: Option<u64>) -> Result<(), OverCap> {
        let Self { held, pictures: of_pictures, preparing: of_preparing } = self;
        let Some(cap) = cap else { return Ok(()) };
        let pictures = pictures(of_pictures, Some(cap));
        let preparing = preparing(of_preparing, Some(cap));
        if held.saturating_add(pictures + preparing) <= cap {
            return Ok(());
        }
        let suffices = least_cap(held, of_pictures, of_preparing);
        Err(OverCap { held, pictures, preparing, cap, suffices })
    }
}

/// A process takes more of the machine's memory than it may, whatever it takes of a device's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverCap {
    /// Bytes that it holds.
    pub held: u64,
    /// Bytes that pictures may take.
    pub pictures: u64,
    /// Bytes that requests may take while they are prepared.
    pub preparing: u64,
    /// Bytes that it may take.
    pub cap: u64,
    /// Bytes from which on a cap suffices.
    pub suffices: u64,
}

impl std::error::Error for OverCap {}

impl fmt::Display for OverCap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { held, pictures, preparing, cap, suffices } = *self;
        let [held, pictures, preparing, cap] =
            [held, pictures, preparing, cap].map(|bytes| bytes >> 20);
        let suffices = suffices.div_ceil(1 << 20);
        write!(
            f,
            "beside the device's memory the process takes more of the machine's than memory = {cap} MiB (it holds {held} MiB, {pictures} MiB are for pictures, {preparing} MiB for requests that are prepared): raise --memory (from {suffices} MiB on it suffices)"
        )
    }
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
    let Memory { place, available, resident, taken, cap, kv, .. } = *memory;
    let Memory { pictures: of_pictures, preparing: of_preparing, .. } = *memory;
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
            place,
            room: asked,
            block_bytes,
            block_tokens,
            resident,
            taken,
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
    use smelt_random::Random;

    use super::*;

    const MIB: u64 = 1 << 20;
    const SIZES: KvSizes =
        KvSizes { block_bytes: MIB, block_tokens: 64, max_seq_len: 1000, slots: 8 };

    fn memory(kv: KvMemory) -> Memory {
        let (place, pictures, preparing) = (MemoryPlace::Host, 10 * MIB, 0);
        let (available, resident, cap) = (100 * MIB, 50 * MIB, None);
        Memory { place, available, resident, taken: 0, cap, pictures, preparing, kv }
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

    fn report(place: MemoryPlace, total: u64, free: u64) -> MemoryReport {
        let (total_bytes, free_bytes) = (Some(total * MIB), Some(free * MIB));
        let (largest_bytes, own_bytes, locked_bytes) = (None, 0, 0);
        MemoryReport { place, total_bytes, free_bytes, largest_bytes, own_bytes, locked_bytes }
    }

    #[test]
    fn a_device_is_divided_by_its_own_memory() {
        let host = Memory { preparing: 20 * MIB, ..memory(KvMemory::Free) };
        let device = report(MemoryPlace::Device, 1000, 60);
        // What pictures keep may lie there; what is read and prepared does not.
        check(host.of(&device, 4 * MIB), 50, 1000, 3);
        let little = Memory { available: MIB, resident: 900 * MIB, ..host };
        check(little.of(&device, 4 * MIB), 50, 1000, 3);
        let asked = Memory { kv: KvMemory::Bytes(900 * MIB), ..host };
        check(asked.of(&device, 4 * MIB), 60, 1000, 3);
        let pieces = MemoryReport { largest_bytes: Some(20 * MIB), ..device };
        check(host.of(&pieces, 0), 18, 1000, 1);
        let full = report(MemoryPlace::Device, 1000, 1);
        let error = plan(&host.of(&full, 0), &SIZES).unwrap_err().to_string();
        assert_eq!(
            error,
            "keys and values may take 0 MiB of the device's memory, but one block for 64 tokens takes 1024 KiB and an answer needs two (999 MiB of it are taken, 0 MiB by this process, 0 MiB are for pictures): free the device's memory, raise --memory (from 2 MiB on it suffices) or --kv-memory, or use --kv int8"
        );
    }

    #[test]
    fn a_cap_holds_of_a_device_s_memory_as_of_the_machine_s() {
        let capped = Memory { cap: Some(80 * MIB), ..memory(KvMemory::Free) };
        let of = |place, own_mib: u64| {
            let own_bytes = own_mib * MIB;
            let report = MemoryReport { own_bytes, ..report(place, 1000, 900) };
            plan(&capped.of(&report, 4 * MIB), &SIZES)
        };
        let mib = |plan: Result<KvPlan, DoesNotFit>| plan.unwrap().bytes / MIB;
        // The process takes 50 MiB of the host's beside pictures; of its own memory the device has what engines hold.
        assert_eq!((mib(of(MemoryPlace::Device, 0)), mib(of(MemoryPlace::Device, 60))), (76, 16));
        assert_eq!((mib(of(MemoryPlace::Unified, 0)), mib(of(MemoryPlace::Unified, 15))), (20, 5));
        let error = of(MemoryPlace::Device, 79).unwrap_err();
        assert_eq!((error.resident, error.taken, error.suffices), (79 * MIB, 100 * MIB, 85 * MIB));
        assert_eq!(of(MemoryPlace::Unified, 60).unwrap_err().resident, 110 * MIB);
    }

    /// A process that has opened an H200 and page-locked 1 GiB, as `/proc` told it: RssAnon 37,576 KiB before and behind that,
    /// RssShmem 8,192 and 1,056,768 KiB.
    const ANONYMOUS: u64 = 37_576 << 10;
    const LOCKED: u64 = (1_056_768 - 8192) << 10;

    #[test]
    fn a_cap_holds_of_what_lies_beside_a_device() {
        let within = |held, pictures, cap| {
            let (pictures, preparing) = (pictures * MIB, 64 * MIB);
            Beside { held, pictures, preparing }.within(cap)
        };
        assert_eq!(within(ANONYMOUS + LOCKED, 320, None), Ok(()));
        assert_eq!(within(ANONYMOUS, 0, Some(128 * MIB)), Ok(()));
        assert_eq!(within(ANONYMOUS + LOCKED, 320, Some(2048 * MIB)), Ok(()));
        let over = within(ANONYMOUS + LOCKED, 320, Some(1024 * MIB)).unwrap_err();
        assert_eq!((over.pictures, over.preparing), (256 * MIB, 64 * MIB));
        assert_eq!(
            over.to_string(),
            "beside the device's memory the process takes more of the machine's than memory = 1024 MiB (it holds 1060 MiB, 256 MiB are for pictures, 64 MiB for requests that are prepared): raise --memory (from 1445 MiB on it suffices)"
        );
        assert_eq!(within(ANONYMOUS + LOCKED, 320, Some(over.suffices)), Ok(()));
        assert!(within(ANONYMOUS + LOCKED, 320, Some(over.suffices - 1)).is_err());
        // Under a small cap pictures and requests take their parts of it.
        let small = within(ANONYMOUS, 320, Some(32 * MIB)).unwrap_err();
        assert_eq!((small.pictures, small.preparing), (8 * MIB, 4 * MIB));
        assert_eq!(within(ANONYMOUS, 320, Some(small.suffices)), Ok(()));
    }

    #[test]
    fn memory_that_both_use_is_what_the_tighter_one_has() {
        let host = memory(KvMemory::Free);
        check(host.of(&report(MemoryPlace::Unified, 1000, 60), 0), 44, 1000, 2);
        check(host.of(&report(MemoryPlace::Unified, 1000, 900), 0), 80, 1000, 5);
        let capped = Memory { cap: Some(80 * MIB), ..host };
        check(capped.of(&report(MemoryPlace::Unified, 1000, 900), 0), 20, 1000, 1);
        assert_eq!(host.of(&MemoryReport::HOST, 0), host, "a processor's is the machine's");
    }

    #[test]
    fn no_report_lets_more_be_taken_than_is_there() {
        for seed in 0..20_000 {
            let random = &mut Random::new(seed);
            let mut mib = |end| random.below(end) as u64 * MIB;
            let host = Memory {
                available: mib(2000),
                resident: mib(500),
                pictures: mib(300),
                preparing: mib(100),
                ..memory(KvMemory::Free)
            };
            let (total, free, largest, kept) = (mib(3000), mib(3000), mib(3000), mib(300));
            let own_bytes = mib(500);
            let cap = random.coin().then(|| random.below(2000) as u64 * MIB);
            let part = random.unit().max(0.01).into();
            let kv = random.pick(&[KvMemory::Free, KvMemory::Part(part), KvMemory::Bytes(total)]);
            let place =
                random.pick(&[MemoryPlace::Host, MemoryPlace::Unified, MemoryPlace::Device]);
            let report = MemoryReport {
                place,
                total_bytes: Some(total),
                free_bytes: Some(free.min(total)),
                largest_bytes: random.coin().then_some(largest.min(free.min(total))),
                own_bytes,
                locked_bytes: 0,
            };
            let host = Memory { cap, kv, ..host };
            let Ok(plan) = plan(&host.of(&report, kept), &SIZES) else { continue };
            let room = report.room_bytes().unwrap();
            let is_own = place != MemoryPlace::Host;
            let is_machines = place != MemoryPlace::Device;
            assert!(!is_own || plan.bytes <= room, "seed {seed}: {plan:?} of {report:?}");
            assert!(!is_machines || plan.bytes <= host.available, "seed {seed}: {plan:?}");
            let held = match place {
                MemoryPlace::Host => host.resident,
                MemoryPlace::Unified => host.resident + own_bytes,
                MemoryPlace::Device => own_bytes,
            };
            let left = cap.map_or(u64::MAX, |cap| cap.saturating_sub(held));
            assert!(plan.bytes <= left, "seed {seed}: {plan:?}");
        }
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
