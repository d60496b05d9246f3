//! Opens the graphs of one model for several sizes of pictures, over one set of weights.
//!
//! What is equal in all graphs is stored once, under its own name; what is of one size alone
//! (positions, rotary tables, windows) behind the name of that size.  Knows nothing of pictures.

use std::path::Path;

use serde::{Deserialize, Serialize};
use smelt_backend::grid::Grid;

use super::file::GraphFile;
use super::{GraphEngine, OpenError};
use crate::engine_file::EngineFile;

/// What `engine.json` calls this kind.
pub const KIND: &str = "grids";

/// The graphs, as `engine.json` keeps them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GridsFile {
    /// One for each size.
    pub grids: Vec<GridFile>,
}

/// The graph for pictures of one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GridFile {
    /// Pixels from top to bottom.
    pub height: usize,
    /// Pixels from left to right.
    pub width: usize,
    /// What computes them; names of constants of this size alone begin with [`grid_prefix`] in the file.
    pub graph: GraphFile,
}

impl GridFile {
    fn grid(&self) -> Grid {
        Grid { height: self.height, width: self.width }
    }
}

/// What the names of a grid's own constants begin with.
pub fn grid_prefix(grid: Grid) -> String {
    format!("{grid}:")
}

/// Opens the engines in `dir`, with the size of pictures that each is for, in their stored order.
pub(super) fn open(dir: &Path, target: &str) -> Result<Vec<(Grid, GraphEngine)>, OpenError> {
    engines(&EngineFile::open_for(dir, KIND, target)?)
}

/// The engines of an opened file, in its order.
pub(super) fn engines(file: &EngineFile<GridsFile>) -> Result<Vec<(Grid, GraphEngine)>, OpenError> {
    let prefixes: Vec<String> =
        file.engine.grids.iter().map(|grid| grid_prefix(grid.grid())).collect();
    let of = |(entry, own): (&GridFile, &String)| {
        let engine = GraphEngine::new(file.part(entry.graph.clone(), own, &prefixes))?;
        Ok((entry.grid(), engine))
    };
    file.engine.grids.iter().zip(&prefixes).map(of).collect()
}
