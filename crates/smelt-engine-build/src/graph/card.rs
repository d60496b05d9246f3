//! Builds graph engines for GPUs: the engine of processors with weights row by row, and kernels beside it.
//!
//! Which kernels those are is known when the graph was tried, so a build has two halves with the compiling between them.
//! Knows no compiler and no cards.

use std::io;
use std::path::{Path, PathBuf};

use smelt_backend::Tensor;
use smelt_cuda::CudaTarget;
use smelt_cuda::graph::{LAYOUT, check, head_of};
use smelt_engine::engine_file::{KernelsEntry, Unsealed, kernels_entry};
use smelt_engine::graph::{GraphEngine, GraphFile, GridsFile};
use smelt_model::export::GRIDS_FILE;
use smelt_onnx::MODEL_FILE;

use super::build::{self, PlanCheck};
use super::{Options, Precision, grids};
use crate::BuildError;

/// An engine that lacks its kernels.
pub struct PackedForCard {
    dir: PathBuf,
    unsealed: Either,
    head: usize,
}

enum Either {
    One(Box<Unsealed<GraphFile>>),
    Grids(Box<Unsealed<GridsFile>>),
}

/// Packs the graph, or the graphs, in `onnx_dir` for cards, and runs each once on processors.  `progress` hears what is
/// being done.
///
/// # Errors
/// As [`build`](super::build()), and when a graph holds what engines for cards do not have.
pub fn pack_for_card(
    onnx_dir: &Path,
    out_dir: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<PackedForCard, BuildError> {
    let options = Options { precision: Precision::F32, tactics: None };
    let mut heads = Heads { most: 0 };
    let unsealed = if onnx_dir.join(GRIDS_FILE).exists() {
        Either::Grids(Box::new(grids::tried(onnx_dir, &options, out_dir, &mut heads, progress)?))
    } else {
        let model = onnx_dir.join(MODEL_FILE);
        Either::One(Box::new(build::tried(&model, &options, out_dir, &mut heads, progress)?))
    };
    Ok(PackedForCard { dir: out_dir.to_owned(), unsealed, head: heads.most })
}

impl PackedForCard {
    /// Numbers of the largest head that its kernels attend with.
    pub fn head(&self) -> usize {
        self.head
    }

    /// Ends the engine for `target`, with the kernels whose code `image` is.
    ///
    /// # Errors
    /// When writing fails, or the finished engine does not open.
    pub fn finish(self, target: CudaTarget, image: &[u8]) -> Result<(), BuildError> {
        let Self { dir, unsealed, head } = self;
        let written = |source: io::Error| BuildError::Write { dir: dir.clone(), source };
        let file = target.kernels_file();
        let kernels = kernels_entry(&dir, file, image, [LAYOUT as usize, head]).map_err(written)?;
        let word = target.word();
        match unsealed {
            Either::One(unsealed) => seal(*unsealed, word, kernels),
            Either::Grids(unsealed) => seal(*unsealed, word, kernels),
        }
        .map_err(written)?;
        GraphEngine::open_all_for(&dir, word)?;
        Ok(())
    }
}

fn seal<T: serde::Serialize>(
    mut unsealed: Unsealed<T>,
    target: &str,
    kernels: KernelsEntry,
) -> io::Result<()> {
    unsealed.for_card(target, kernels);
    unsealed.seal()
}

/// Looks whether cards run each plan, and how large its heads are.
struct Heads {
    most: usize,
}

impl PlanCheck for Heads {
    fn wants_rows(&self) -> bool {
        true
    }

    fn check(&mut self, engine: &GraphEngine, inputs: &[Tensor]) -> Result<(), String> {
        let plan = engine.compiled(inputs).map_err(|error| error.to_string())?;
        check(engine, &plan, inputs)?;
        self.most = self.most.max(head_of(&plan));
        Ok(())
    }
}
