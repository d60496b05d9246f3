//! Says what is true of a card: what engines for it depend on, and what bounds its launches.

use std::fmt;

/// The version of a GPU's instructions: 87 is Orin, 90 Hopper, 110 Thor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sm(pub u32);

impl fmt::Display for Sm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}", self.0)
    }
}

/// What a driver says of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardFacts {
    /// Its place among the cards of the machine.
    pub ordinal: u32,
    /// What its maker calls it.
    pub name: String,
    /// The version of its instructions.
    pub sm: Sm,
    /// Processors that blocks are spread over.
    pub multiprocessors: u32,
    /// Bytes of all its memory; where that is [`Self::unified`], of the host's.
    pub memory_bytes: u64,
    /// Whether its memory is the host's (Jetson).
    pub unified: bool,
    /// Bytes of shared memory that a block may have at most.
    pub shared_bytes_max: u32,
    /// Bytes of its second cache.
    pub l2_bytes: u64,
    /// The newest CUDA that its driver knows: 1000 times the major version and 10 times the minor one (12060).
    pub driver: u32,
}

/// What of a card hangs on how work is cut into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processors {
    /// Processors that blocks are spread over.
    pub count: u32,
    /// The version of their instructions.
    pub sm: Sm,
}

impl Processors {
    /// Whether four warps multiply at once (`wgmma`).
    pub const fn has_wgmma(self) -> bool {
        self.sm.0 == 90
    }

    /// Whether blocks run in clusters that share memory, of which each has 227 KiB.
    pub const fn has_clusters(self) -> bool {
        self.sm.0 >= 90 && self.sm.0 < 120
    }
}

impl CardFacts {
    /// Its processors.
    pub const fn processors(&self) -> Processors {
        Processors { count: self.multiprocessors, sm: self.sm }
    }

    /// The newest CUDA that the driver knows, as people write it: 12.6.
    pub fn driver_version(&self) -> String {
        format!("{}.{}", self.driver / 1000, self.driver % 1000 / 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drivers_number_reads_as_a_version() {
        let card = |driver| CardFacts {
            ordinal: 0,
            name: "a card".to_owned(),
            sm: Sm(87),
            multiprocessors: 8,
            memory_bytes: 8 << 30,
            unified: true,
            shared_bytes_max: 163 << 10,
            l2_bytes: 2 << 20,
            driver,
        };
        assert_eq!(card(12060).driver_version(), "12.6");
        assert_eq!(card(13000).driver_version(), "13.0");
        assert_eq!(card(0).sm.to_string(), "sm_87");
    }
}
