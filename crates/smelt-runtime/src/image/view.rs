//! Says what a picture becomes for the vision engines: parts that they run one at a time.
//!
//! Parts are bytes, since numbers would be four times as large and wait as long.

use super::cutting::Cutting;
use super::patches::Size;
use super::split::Splitting;
use super::tiles::Tiling;
use crate::identity::{Identity, Naming, within};

/// What one run of a vision engine takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VisionInput {
    /// Which engine: an index of [`ImageProcessor::grids`](super::ImageProcessor::grids).
    pub grid: usize,
    /// `[height, width, 3]` bytes of the engine's size; several where it is a step of a clip.
    pub frames: Vec<Vec<u8>>,
}

impl VisionInput {
    /// The numbers that an engine of `size` reads: `[3, height, width]` of a tile, or
    /// `[patches, values]`.
    pub fn numbers(&self, cutting: &Cutting, size: Size) -> Vec<f32> {
        match cutting {
            Cutting::Tiles(Tiling { scale, .. }) | Cutting::Split(Splitting { scale, .. }) => {
                let mut numbers = Vec::with_capacity(size.pixels() * 3);
                let tile = self.frames.first().map_or(&[][..], Vec::as_slice);
                scale.planes(tile, &mut numbers);
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
    /// Equal for equal pixels that are seen in the same way, and for no others.
    pub identity: Identity,
    /// In the order of their tokens; at least one.
    pub parts: Vec<VisionInput>,
    /// Image tokens of all parts together.
    pub tokens: usize,
}

impl View {
    /// Of parts that give so many image tokens together.
    pub fn new(parts: Vec<VisionInput>, tokens: usize) -> Self {
        let of_part = |name: Naming, part: &VisionInput| {
            let name = name.number(part.grid as u64).number(part.frames.len() as u64);
            part.frames.iter().fold(name, |name, frame| name.bytes(frame))
        };
        let identity = parts.iter().fold(Naming::of("picture"), of_part).end();
        Self { identity, parts, tokens }
    }

    /// The same, with an identity of its own for `mark`: what else its tokens depend on.
    #[must_use]
    pub fn marked(self, mark: u32) -> Self {
        let identity = Naming::of("marked").name(self.identity).number(mark.into()).end();
        Self { identity, ..self }
    }

    /// The same, with an identity of its own for those who may know of it.
    #[must_use]
    pub fn within(self, part: Identity) -> Self {
        Self { identity: within(Some(part), self.identity), ..self }
    }

    /// Bytes of all pixels.
    pub fn bytes(&self) -> usize {
        self.parts.iter().flat_map(|part| &part.frames).map(Vec::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};

    use super::*;

    fn view(frames: &[&[u8]]) -> View {
        let frames = frames.iter().map(|frame| frame.to_vec()).collect();
        View::new(vec![VisionInput { grid: 0, frames }], 1)
    }

    /// Found in five minutes by a part of one core.
    const COLLIDING: [[u8; 8]; 2] =
        [[82, 43, 106, 171, 39, 187, 48, 38], [19, 21, 196, 173, 241, 243, 212, 33]];

    #[test]
    fn pictures_that_a_hash_of_64_bits_takes_for_one_are_two() {
        let by_hash = |frame: &[u8]| {
            let mut hasher = DefaultHasher::new();
            vec![(0_usize, vec![frame.to_vec()])].hash(&mut hasher);
            hasher.finish()
        };
        let [one, other] = &COLLIDING;
        assert_eq!(by_hash(one), by_hash(other), "the key that pictures had");
        assert_ne!(view(&[one]).identity, view(&[other]).identity);
        assert_eq!(view(&[one]).identity, view(&[one]).identity);
    }

    #[test]
    fn views_are_named_by_all_that_they_hold() {
        let all = [
            view(&[b"ab"]),
            view(&[b"a", b"b"]),
            view(&[b"ab", b""]),
            view(&[b"ab"]).marked(0),
            view(&[b"ab"]).marked(1),
            view(&[b"ab"]).within([0, 1]),
            view(&[b"ab"]).within([1, 0]),
            View::new(vec![VisionInput { grid: 1, frames: vec![b"ab".to_vec()] }], 1),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(all[at + 1..].iter().all(|other| other.identity != one.identity), "{at}");
        }
    }
}
