//! Says what a picture becomes for the vision engine: parts that it runs one at a time.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::{Picture, Settings, tiles};

/// What one run of a vision engine takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// `[channels, side, side]`, normalised.
    pub pixels: Vec<f32>,
}

/// A picture as the vision engine sees it.
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
    /// The tiles of `picture`, each of so many tokens.
    pub fn of_tiles(picture: &Picture, settings: &Settings, tokens_per_tile: usize) -> Self {
        let cut = tiles(picture, settings);
        let per_tile = cut.pixels.len() / cut.count;
        let parts = cut.pixels.chunks_exact(per_tile).map(|tile| Part { pixels: tile.to_vec() });
        let parts: Vec<Part> = parts.collect();
        Self { digest: digest(&parts), tokens: parts.len() * tokens_per_tile, parts }
    }

    /// Bytes of all pixels.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.pixels.len() * size_of::<f32>()).sum()
    }
}

/// A hash of what the engine is given, so that whatever leads to other numbers has another digest.
fn digest(parts: &[Part]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for part in parts {
        part.pixels.len().hash(&mut hasher);
        part.pixels.iter().for_each(|number| hasher.write_u32(number.to_bits()));
    }
    hasher.finish()
}
