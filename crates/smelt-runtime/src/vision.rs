//! Encodes views of pictures with a deployment's vision engines.
//!
//! Knows nothing of requests or of what becomes of the embeddings.

use std::ops::Range;

use smelt_engine::engine_file::OpenError;
use smelt_engine::vision::{Pause, RunError, Seen, VisionEngine};

use crate::image::{Cutting, Part, Size};
pub use crate::image::{Eyes, Grid};

/// What an engine says of a part.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Embedded {
    /// `[tokens, hidden]`.
    pub embeds: Vec<f32>,
    /// What blocks of the tower say of the same tokens: for each `[tokens, hidden]`.
    pub deepstack: Vec<Vec<f32>>,
}

impl Embedded {
    /// Puts what is said of the next part behind this.
    pub fn append(&mut self, next: &Self) {
        self.append_rows(next, 0..1, 1);
    }

    /// Puts those rows of a part behind this that belong to `range` of its `tokens`, of which there is one
    /// at least.
    pub fn append_rows(&mut self, part: &Self, range: Range<usize>, tokens: usize) {
        let append = |all: &mut Vec<f32>, numbers: &[f32]| {
            let hidden = numbers.len() / tokens;
            all.extend_from_slice(&numbers[range.start * hidden..range.end * hidden]);
        };
        append(&mut self.embeds, &part.embeds);
        self.deepstack.resize(part.deepstack.len(), Vec::new());
        for (all, layer) in self.deepstack.iter_mut().zip(&part.deepstack) {
            append(all, layer);
        }
    }

    /// Bytes of all numbers.
    pub fn bytes(&self) -> usize {
        let numbers = self.embeds.len() + self.deepstack.iter().map(Vec::len).sum::<usize>();
        numbers * size_of::<f32>()
    }
}

/// The vision engines of a deployment, one for each grid.
#[derive(Debug)]
pub struct Vision {
    cutting: Cutting,
    /// From few pixels to many, each with its size.
    engines: Vec<(Size, VisionEngine)>,
}

impl Vision {
    /// Of engines that are open.
    ///
    /// # Errors
    /// One line if there are none, one does not say its size, two are of one size, or their tokens
    /// differ in width.
    pub fn new(cutting: Cutting, engines: Vec<VisionEngine>) -> Result<Self, String> {
        let sized = |engine: VisionEngine| {
            match engine.grid() {
            Some(grid) => Ok((Size { height: grid.height, width: grid.width }, engine)),
            None => Err("the vision engine does not say for which size of pictures it is; build it from what onnx-export wrote".to_owned()),
        }
        };
        let mut engines = engines.into_iter().map(sized).collect::<Result<Vec<_>, _>>()?;
        engines.sort_by_key(|(size, _)| (size.pixels(), size.height));
        for pair in engines.windows(2) {
            let [(size, engine), (other, next)] = pair else { continue };
            if size == other {
                return Err(format!("two vision engines take {size}"));
            }
            if (engine.hidden(), engine.deepstack()) != (next.hidden(), next.deepstack()) {
                return Err(format!("the vision engines of {size} and {other} differ in width"));
            }
        }
        if engines.is_empty() {
            return Err("there is no vision engine".to_owned());
        }
        Ok(Self { cutting, engines })
    }

    /// Calls `pause` before each task of the engines that can be stopped there.
    #[must_use]
    pub fn with_pause(mut self, pause: &Pause) -> Self {
        let engines = self.engines.into_iter();
        self.engines =
            engines.map(|(size, engine)| (size, engine.with_pause(pause.clone()))).collect();
        self
    }

    /// The sizes that the engines take, from few pixels to many.
    pub fn grids(&self) -> Vec<Grid> {
        let grid = |(size, engine): &(Size, VisionEngine)| Grid {
            size: *size,
            tokens: engine.tokens_per_tile(),
        };
        self.engines.iter().map(grid).collect()
    }

    /// Why the engines do not follow the tactics they were built with, if they have some and do not.
    pub fn untuned(&self) -> Option<&str> {
        self.engines.iter().find_map(|(_, engine)| engine.untuned())
    }

    /// Numbers in each token.
    pub fn hidden(&self) -> usize {
        self.engines.first().map_or(0, |(_, engine)| engine.hidden())
    }

    /// How many blocks of the tower say more of the tokens.
    pub fn deepstack(&self) -> usize {
        self.engines.first().map_or(0, |(_, engine)| engine.deepstack())
    }

    /// Compares the weights with the hashes in `engine.json`; reads all of them.
    ///
    /// # Errors
    /// When they differ.
    pub fn verify_digest(&self) -> Result<(), OpenError> {
        // Engines of one directory share one file, and are all there are.
        self.engines.first().map_or(Ok(()), |(_, engine)| engine.verify_digest())
    }

    /// A part of each size that the engines take.
    pub fn samples(&self) -> Vec<Part> {
        let black = |(grid, (size, _)): (usize, &(Size, _))| Part::black(grid, *size);
        self.engines.iter().enumerate().map(black).collect()
    }

    /// Runs the engine of its grid over one part.  Panics if there is no such grid.
    ///
    /// # Errors
    /// When the part does not fit the engine, or the engine fails.
    pub fn encode(&mut self, part: &Part) -> Result<Embedded, RunError> {
        let (size, engine) = &mut self.engines[part.grid];
        let Seen { embeds, deepstack } = engine.see(part.numbers(&self.cutting, *size))?;
        Ok(Embedded { embeds, deepstack })
    }
}
