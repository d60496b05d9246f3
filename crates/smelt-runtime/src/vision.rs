//! Encodes views of pictures with a deployment's vision engine.
//!
//! Knows nothing of requests or of what becomes of the embeddings.

use smelt_engine::engine_file::OpenError;
use smelt_engine::vision::{RunError, VisionEngine};

use crate::image::{Part, Settings};

/// What the vision engines of a deployment take and give; shared by all who prepare pictures.
#[derive(Clone, Debug, PartialEq)]
pub struct Eyes {
    /// How pictures are cut and normalised.
    pub image: Settings,
    /// Image tokens of one tile.
    pub tokens_per_tile: usize,
}

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
        self.embeds.extend_from_slice(&next.embeds);
        self.deepstack.resize(next.deepstack.len(), Vec::new());
        for (all, next) in self.deepstack.iter_mut().zip(&next.deepstack) {
            all.extend_from_slice(next);
        }
    }

    /// Bytes of all numbers.
    pub fn bytes(&self) -> usize {
        let numbers = self.embeds.len() + self.deepstack.iter().map(Vec::len).sum::<usize>();
        numbers * size_of::<f32>()
    }
}

/// The vision engine of a deployment.
#[derive(Debug)]
pub struct Vision {
    engine: VisionEngine,
}

impl Vision {
    /// Of an engine that is open.
    pub fn new(engine: VisionEngine) -> Self {
        Self { engine }
    }

    /// Why the engine does not follow the tactics it was built with, if it has some and does not.
    pub fn untuned(&self) -> Option<&str> {
        self.engine.untuned()
    }

    /// Edge of a tile in pixels.
    pub fn image_size(&self) -> usize {
        self.engine.image_size()
    }

    /// Image tokens that each tile gives.
    pub fn tokens_per_tile(&self) -> usize {
        self.engine.tokens_per_tile()
    }

    /// Numbers in each token.
    pub fn hidden(&self) -> usize {
        self.engine.hidden()
    }

    /// Compares the weights with the hash in `engine.json`; reads all of them.
    ///
    /// # Errors
    /// When they differ.
    pub fn verify_digest(&self) -> Result<(), OpenError> {
        self.engine.verify_digest()
    }

    /// A part of each size that the engine takes.
    pub fn samples(&self) -> Vec<Part> {
        let side = self.engine.image_size();
        vec![Part { pixels: vec![0.0; self.engine.channels() * side * side] }]
    }

    /// Runs the engine over one part.
    ///
    /// # Errors
    /// When the part does not fit the engine, or the engine fails.
    pub fn encode(&mut self, part: &Part) -> Result<Embedded, RunError> {
        let embeds = self.engine.encode(&part.pixels, 1)?;
        Ok(Embedded { embeds, deepstack: Vec::new() })
    }
}
