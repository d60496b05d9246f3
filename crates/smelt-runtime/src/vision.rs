//! Encodes views of pictures with a deployment's vision engines.
//!
//! Knows nothing of requests or of what becomes of the embeddings.

use std::ops::Range;

use smelt_backend::{
    FeatureSpan, Features, OpenError, Processors, VisionEngine, VisionError, Witness,
};

use crate::image::{Cutting, Size, VisionInput};
pub use crate::image::{Grid, ImageProcessor};

/// What engines give of an image: the features of its parts, in order.
#[derive(Clone, Debug, Default)]
pub struct Embedded {
    parts: Vec<Features>,
}

impl Embedded {
    /// Puts the features of the next part behind these.
    pub fn push(&mut self, next: Features) {
        self.parts.push(next);
    }

    /// Tokens that they are of.
    pub fn tokens(&self) -> usize {
        self.parts.iter().map(|part| part.tokens).sum()
    }

    /// The stretches of parts that are the tokens of `range`.
    pub fn spans(&self, range: Range<usize>) -> impl Iterator<Item = FeatureSpan<'_>> {
        let mut first = 0;
        let span = move |features: &'_ Features| {
            let start = range.start.clamp(first, first + features.tokens) - first;
            let end = range.end.clamp(first, first + features.tokens) - first;
            first += features.tokens;
            start..end
        };
        let spans = self.parts.iter().zip(self.parts.iter().map(span));
        let spans = spans.map(|(features, tokens)| FeatureSpan { features, tokens });
        spans.filter(|span| !span.tokens.is_empty())
    }

    /// Bytes of all of them, wherever they lie.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(Features::bytes).sum()
    }
}

impl From<Features> for Embedded {
    fn from(part: Features) -> Self {
        Self { parts: vec![part] }
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

    /// From now on the engines share the processors of a decoder, where they are of the same back end.
    pub fn share(&mut self, processors: &Processors) {
        self.engines.iter_mut().for_each(|(_, engine)| engine.share(processors));
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

    /// Compares the weights with the hashes in `engine.json`; reads all of them, and tells `told` of each piece's
    /// bytes.
    ///
    /// # Errors
    /// When they differ.
    pub fn verify_digest(&self, told: &mut dyn Witness) -> Result<(), OpenError> {
        // Engines of one directory share one file, and are all there are.
        self.engines.first().map_or(Ok(()), |(_, engine)| engine.verify_digest(told))
    }

    /// A part of each size that the engines take.
    pub fn samples(&self) -> Vec<VisionInput> {
        let black = |(grid, (size, _)): (usize, &(Size, _))| VisionInput::black(grid, *size);
        self.engines.iter().enumerate().map(black).collect()
    }

    /// Runs the engine of its grid over one part.  Panics if there is no such grid.
    ///
    /// # Errors
    /// When the part does not fit the engine, or the engine fails.
    pub fn encode(&self, part: &VisionInput) -> Result<Features, VisionError> {
        let (size, engine) = &self.engines[part.grid];
        engine.features(part.numbers(&self.cutting, *size))
    }
}
