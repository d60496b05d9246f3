//! Describes a device's GPU: its instructions, its memory, and how fast it is, as far as that is known.
//!
//! Rates are those that makers state.  Which engines there are for it is told by whoever builds them.

use serde::Serialize;

use crate::rate::{Rate, RateBasis};

/// A GPU of a device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Gpu {
    /// What its maker calls it.
    pub name: String,
    /// The version of its instructions: 87.
    pub sm: u32,
    /// Processors that blocks are spread over; nothing where that is not known.
    pub multiprocessors: Option<u32>,
    /// Bytes of its memory, which are the host's where it is unified; 0 where they are not known.
    pub memory_bytes: u64,
    /// Bytes of it that are free, where its driver says so.
    pub free_bytes: Option<u64>,
    /// Whether its memory is the host's.
    pub unified: bool,
    /// Bytes that it reads from memory in a second.
    pub memory_rate: Option<Rate>,
    /// Multiplications of halves that its tensor cores do in a second at most.
    pub product_rate: Option<Rate>,
    /// What engines for it call their target; nothing where no such engine is built or run.
    pub target: Option<String>,
    /// Why no engine for it is built here, and what to do.
    pub obstacle: Option<String>,
}

/// A board: its name among devices, the multiprocessors of its GPU, and their clock in GHz.
type Board = (&'static str, u32, f64);

/// Jetson Orin, without its faster modes, as the rates of its memory are.
const BOARDS: [Board; 6] = [
    ("orin-nano-4gb", 4, 0.625),
    ("orin-nano-8gb", 8, 0.625),
    ("orin-nx-8gb", 8, 0.765),
    ("orin-nx-16gb", 8, 0.918),
    ("agx-orin-32gb", 14, 0.93),
    ("agx-orin-64gb", 16, 1.3),
];
/// The version of their instructions.
const SM_OF_BOARDS: u32 = 87;
/// Multiplications of halves that a multiprocessor of theirs does in a cycle, without sparsity.
const CYCLE_OF_BOARDS: f64 = 1024.0;

/// A card: words of its name, multiprocessors, MiB of memory, GB a second, and TFLOPS of halves without sparsity.
type Card = (&'static [&'static str], u32, u64, f64, f64);

/// Cards for which engines are built, the more exact names first.
const CARDS: [Card; 6] = [
    (&["H200"], 132, 143_771, 4800.0, 989.0),
    (&["GH200"], 132, 97_871, 4000.0, 989.0),
    (&["H100", "PCIe"], 114, 81_559, 2039.0, 756.0),
    (&["H100", "NVL"], 132, 95_830, 3900.0, 835.0),
    (&["H100"], 132, 81_559, 3350.0, 989.0),
    (&["H20"], 78, 97_871, 4000.0, 148.0),
];

/// What a card's driver keeps of its memory, and others may take meanwhile, where nobody says what is free.
const OTHERS_PART: u64 = 16;

impl Gpu {
    /// The GPU of a board that is known by name, whose kernel hands out so many bytes.
    pub(crate) fn of_board(board: &str, memory_bytes: u64, bandwidth: Rate) -> Option<Self> {
        let &(_, multiprocessors, ghz) = BOARDS.iter().find(|(name, ..)| *name == board)?;
        let products = f64::from(multiprocessors) * ghz * 1e9 * CYCLE_OF_BOARDS;
        // Kernels were compiled for these, and ran on none of them.
        let projected = |per_second| Some(Rate { per_second, basis: RateBasis::Projected });
        Some(Self {
            multiprocessors: Some(multiprocessors),
            memory_bytes,
            unified: true,
            memory_rate: projected(bandwidth.per_second),
            product_rate: projected(products),
            ..Self::unknown("Orin", SM_OF_BOARDS)
        })
    }

    /// A card by its name and the version of its instructions, with what its maker states where it is known.
    pub fn of_card(name: &str, sm: u32) -> Self {
        let words: Vec<&str> = name.split([' ', '-']).collect();
        let is_named = |card: &&Card| card.0.iter().all(|word| words.contains(word));
        let unknown = Self::unknown(name, sm);
        let Some(&(_, multiprocessors, mib, gb_per_s, tflops)) = CARDS.iter().find(is_named) else {
            return unknown;
        };
        let stated = |per_second| Some(Rate { per_second, basis: RateBasis::Stated });
        Self {
            multiprocessors: Some(multiprocessors),
            memory_bytes: mib << 20,
            memory_rate: stated(gb_per_s * 1e9),
            // A multiplication and an addition are two operations.
            product_rate: stated(tflops * 1e12 / 2.0),
            ..unknown
        }
    }

    fn unknown(name: &str, sm: u32) -> Self {
        Self {
            name: name.to_owned(),
            sm,
            multiprocessors: None,
            memory_bytes: 0,
            free_bytes: None,
            unified: false,
            memory_rate: None,
            product_rate: None,
            target: None,
            obstacle: None,
        }
    }

    /// What a model may hold of its own memory; nothing where that is the host's.
    pub fn budget_bytes(&self) -> Option<u64> {
        let usual = self.memory_bytes - self.memory_bytes / OTHERS_PART;
        (!self.unified).then(|| self.free_bytes.unwrap_or(usual))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_known_by_whole_words_of_their_names() {
        let of = |name| {
            let card = Gpu::of_card(name, 90);
            (card.multiprocessors, card.memory_rate.map(|rate| rate.per_second / 1e9))
        };
        assert_eq!(of("NVIDIA H200"), (Some(132), Some(4800.0)));
        assert_eq!(of("NVIDIA H100 80GB HBM3"), (Some(132), Some(3350.0)));
        assert_eq!(of("NVIDIA H100 PCIe"), (Some(114), Some(2039.0)));
        assert_eq!(of("NVIDIA H20"), (Some(78), Some(4000.0)));
        assert_eq!(of("NVIDIA GH200 480GB"), (Some(132), Some(4000.0)));
        assert_eq!(of("NVIDIA Z1"), (None, None));
    }

    #[test]
    fn a_model_may_hold_what_is_free_and_of_the_host_s_memory_no_share_of_its_own() {
        let card = Gpu::of_card("NVIDIA H200", 90);
        assert_eq!(card.budget_bytes(), Some((143_771 << 20) / 16 * 15));
        let busy = Gpu { free_bytes: Some(5), ..card.clone() };
        assert_eq!(busy.budget_bytes(), Some(5));
        assert_eq!(Gpu { unified: true, ..busy }.budget_bytes(), None);
    }
}
