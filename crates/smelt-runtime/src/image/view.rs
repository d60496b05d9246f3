//! Says what a picture becomes for the vision engines: parts that they run one at a time.
//!
//! Parts are bytes, since numbers would be four times as large and wait as long.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::eyes::Cutting;
use super::patches::Size;

/// What one run of a vision engine takes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// Which engine: an index of [`Eyes::grids`](super::Eyes::grids).
    pub grid: usize,
    /// `[height, width, 3]` bytes of the engine's size; several where it is a step of a clip.
    pub frames: Vec<Vec<u8>>,
}

impl Part {
    /// The numbers that an engine of `size` reads: `[3, height, width]` of a tile, or
    /// `[patches, values]`.
    pub fn numbers(&self, cutting: &Cutting, size: Size) -> Vec<f32> {
        match cutting {
            Cutting::Tiles(tiling) => {
                let mut numbers = Vec::with_capacity(size.pixels() * 3);
                let tile = self.frames.first().map_or(&[][..], Vec::as_slice);
                tiling.scale.planes(tile, &mut numbers);
                numbers
            }
            Cutting::Patches(patching) => {
                let frames: Vec<&[u8]> = self.frames.iter().map(Vec::as_slice).collect();
                patching.flatten(&frames, size)
            }
        }
    }

    /// A part of `size` that is black all over, to try an engine with.
    pub fn black(grid: usize, size: Size) -> Self {
        Self { grid, frames: vec![vec![0; size.pixels() * 3]] }
    }
}

/// A picture as the vision engines see it.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// Equal for equal pixels that are seen in the same way.
    pub digest: u64,
    /// In the order of their tokens; at least one.
    pub parts: Vec<Part>,
    /// Image tokens of all parts together.
    pub tokens: usize,
}

impl View {
    /// Of parts that give so many image tokens together.
    pub fn new(parts: Vec<Part>, tokens: usize) -> Self {
        let mut hasher = DefaultHasher::new();
        parts.hash(&mut hasher);
        Self { digest: hasher.finish(), parts, tokens }
    }

    /// The same, with a digest of its own for `mark`: what else its tokens depend on.
    #[must_use]
    pub fn marked(mut self, mark: u32) -> Self {
        let mut hasher = DefaultHasher::new();
        (self.digest, mark).hash(&mut hasher);
        self.digest = hasher.finish();
        self
    }

    /// Bytes of all pixels.
    pub fn bytes(&self) -> usize {
        self.parts.iter().flat_map(|part| &part.frames).map(Vec::len).sum()
    }
}
