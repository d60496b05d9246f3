//! Exports towers over fixed grids: one graph for each, all over the same weights.
//!
//! Weights go to one data file first, then every grid's constants and its graph.  `grids.json`
//! says which file is for which size of picture.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use smelt_onnx::{Graph, IR_VERSION, Initializer, MODEL_FILE, Model, OPSET, check};

use super::weights::WeightStream;
use super::{ExportError, clip, qwen2_5_vl, qwen3_vl, vision};
use crate::checkpoint::Checkpoint;
use crate::dtype::Dtype;
use crate::grid::{GRIDS_MAX, Grid, Lattice, Patching};
use crate::model::{ModelPart, Vision};

/// What says which graph is for which size of picture.
pub const GRIDS_FILE: &str = "grids.json";

/// Version of [`GRIDS_FILE`]'s form.
const FORMAT: u32 = 1;

/// Colours of pictures.
const CHANNELS: usize = 3;

/// The longest [`GRIDS_FILE`] read: as many grids as there may be take 10 KiB.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Why a list of graphs for sizes of pictures cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{} is no list of grids: {problem}; export the model again", path.display())]
pub struct GridsError {
    path: PathBuf,
    problem: String,
}

/// The graphs of an exported model, and the sizes of pictures they are for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GridList {
    /// How they cut pictures.
    pub patching: Patching,
    /// Each with its file beside the list; at least one.
    pub grids: Vec<(Grid, String)>,
}

impl GridList {
    /// Reads [`GRIDS_FILE`] in `dir`.
    ///
    /// # Errors
    /// [`GridsError`] if it cannot be read, is of another version, or names a file elsewhere.
    pub fn read(dir: &Path) -> Result<Self, GridsError> {
        let path = dir.join(GRIDS_FILE);
        let failed = |problem: String| GridsError { path: path.clone(), problem };
        let mut text = String::new();
        let file = fs::File::open(&path).map_err(|error| failed(error.to_string()))?;
        let read = file.take(FILE_BYTES_MAX).read_to_string(&mut text);
        read.map_err(|error| failed(error.to_string()))?;
        let record: Record =
            serde_json::from_str(&text).map_err(|error| failed(error.to_string()))?;
        let patching = record.patching();
        let count = record.grids.len();
        if record.format != FORMAT || !(1..=GRIDS_MAX).contains(&count) {
            let format = record.format;
            return Err(failed(format!("format {format} with {count} grids")));
        }
        let grids: Vec<(Grid, String)> = record.grids.into_iter().map(Entry::named).collect();
        let is_plain = |file: &str| !file.is_empty() && !file.contains(['/', '\\']) && file != "..";
        match grids.iter().enumerate().find(|(at, (grid, file))| {
            !is_plain(file) || grids[..*at].iter().any(|(other, _)| other == grid)
        }) {
            Some((_, (grid, file))) => Err(failed(format!("grid {grid} in file {file:?}"))),
            None => Ok(Self { patching, grids }),
        }
    }
}

/// What [`GRIDS_FILE`] holds.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    format: u32,
    /// Pixels on a side of a patch, patches on a side of an image token, frames of a patch.
    patch_size: usize,
    merge_size: usize,
    temporal_patch_size: usize,
    grids: Vec<Entry>,
}

impl Record {
    fn patching(&self) -> Patching {
        let &Self { patch_size: patch, merge_size: merge, temporal_patch_size: frames, .. } = self;
        Patching { patch, merge, frames, channels: CHANNELS }
    }
}

/// One graph.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    file: String,
    /// The picture, in pixels.
    height: usize,
    width: usize,
    patches: usize,
    tokens: usize,
}

impl Entry {
    fn named(self) -> (Grid, String) {
        (Grid { height: self.height, width: self.width }, self.file)
    }
}

/// The tensors that the graphs of a tower share, and the shapes they declare.  The patch convolution is
/// declared as the matrix it is, since its stride is its kernel; CLIP's class row as a sequence.
fn weights_of(tower: &Vision, checkpoint: &Checkpoint) -> Vec<(String, Vec<usize>)> {
    if let Vision::InternVit(_) = tower {
        let mut weights = vision::weights(checkpoint.model());
        weights.retain(|(name, _)| name != vision::POSITION_EMBEDDING);
        return weights;
    }
    let mut weights = checkpoint.model().tensors(&[ModelPart::Vision]);
    weights.retain(|(name, _)| ![qwen3_vl::POSITIONS, clip::POSITIONS].contains(&name.as_str()));
    for (name, dims) in &mut weights {
        let patches = [qwen2_5_vl::PATCH_WEIGHT, qwen3_vl::PATCH_WEIGHT, clip::PATCH_WEIGHT];
        match name.as_str() {
            name if patches.contains(&name) => {
                *dims = vec![dims[0], dims[1..].iter().product()];
            }
            clip::CLASS_EMBEDDING => *dims = vec![1, 1, dims[0]],
            _ => {}
        }
    }
    weights
}

/// Writes a tower's graph for one grid over its weights; constants of the grid go to the stream.
pub(super) type GridGraph<'a> =
    dyn Fn(&Lattice, &mut WeightStream<'_>, Vec<Initializer>) -> Result<Graph, ExportError> + 'a;

/// See [`super::vision_on`].
pub(super) fn export(
    checkpoint: &Checkpoint,
    (tower, graph): (&Vision, &GridGraph<'_>),
    grids: &[Grid],
    dtype: Dtype,
    out_dir: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), ExportError> {
    let patching = tower.patching();
    let sizes: Vec<Grid> = tower.grids(grids)?.into_iter().map(|(grid, _)| grid).collect();
    let lattices = patching.lattices(&sizes)?;
    let is_oblong = |(grid, _): &&(Grid, Lattice)| grid.height != grid.width;
    if let (Vision::InternVit(_), Some((grid, _))) = (tower, lattices.iter().find(is_oblong)) {
        return Err(ExportError::NotSquare { grid: *grid });
    }
    let mut stream = WeightStream::create(checkpoint, dtype, out_dir)?;
    let names = weights_of(tower, checkpoint);
    let mut weights = Vec::with_capacity(names.len());
    let numbers = |dims: &[usize]| dims.iter().product::<usize>();
    let (mut done, all) = (0, names.iter().map(|(_, dims)| numbers(dims)).sum::<usize>());
    for (name, dims) in &names {
        progress(&format!("[{done}/{all}] weight {name}"));
        done += numbers(dims);
        weights.push(stream.copy(name, dims)?);
    }
    let mut entries = Vec::with_capacity(lattices.len());
    for (grid, lattice) in &lattices {
        progress(&format!("grid {grid}"));
        let file = if lattices.len() == 1 { MODEL_FILE.to_owned() } else { file_of(*grid) };
        let graph = graph(lattice, &mut stream, weights.clone())?;
        write_graph(graph, out_dir, &file)?;
        let (patches, tokens) = (lattice.patches(), lattice.tokens());
        entries.push(Entry { file, height: grid.height, width: grid.width, patches, tokens });
    }
    write_record(&patching, entries, out_dir)
}

/// The graph of `grid` where there are several.
fn file_of(grid: Grid) -> String {
    format!("grid-{grid}.onnx")
}

fn write_graph(graph: Graph, out_dir: &Path, file: &str) -> Result<(), ExportError> {
    let model = Model {
        ir_version: IR_VERSION,
        opset: OPSET,
        other_opsets: vec![],
        producer: "smelt".to_owned(),
        metadata: vec![],
        graph,
    };
    model.write_as(out_dir, file)?;
    Ok(check(&model, out_dir)?)
}

fn write_record(patching: &Patching, grids: Vec<Entry>, out_dir: &Path) -> Result<(), ExportError> {
    let record = Record {
        format: FORMAT,
        patch_size: patching.patch,
        merge_size: patching.merge,
        temporal_patch_size: patching.frames,
        grids,
    };
    let text = serde_json::to_string_pretty(&record).expect("a record holds only plain data");
    let path = out_dir.join(GRIDS_FILE);
    fs::write(&path, text + "\n").map_err(|source| ExportError::Record { path, source })
}
