//! Builds the engines of one model for several sizes of pictures, over one set of weights.
//!
//! What is equal in all graphs is stored once, under its own name; what is of one size alone
//! (positions, rotary tables, windows) behind the name of that size.  Knows nothing of pictures.

use std::path::Path;

use smelt_backend::Tensor;
use smelt_backend::grid::Grid;
use smelt_engine::engine_file::{EngineWriter, Unsealed};
use smelt_engine::graph::{GRIDS_KIND, GraphEngine, GridFile, GridsFile, ProductFile, grid_prefix};
use smelt_model::export::GridList;
use smelt_onnx::Initializer;

use super::build::{AnyPlan, PlanCheck, Source, Tally, Tried, tell_packing, try_out};
use super::pack::Packing;
use super::{Options, unfit};
use crate::BuildError;

/// Builds the engines of the graphs that the list in `onnx_dir` names; see [`super::build`].
pub(super) fn build(
    onnx_dir: &Path,
    options: &Options,
    out_dir: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), BuildError> {
    let unsealed = tried(onnx_dir, options, out_dir, &mut AnyPlan, progress)?;
    unsealed.seal().map_err(|source| BuildError::Write { dir: out_dir.to_owned(), source })?;
    GraphEngine::open_all(out_dir)?;
    Ok(())
}

/// Packs the graphs that the list in `onnx_dir` names and runs each once; the engine still lacks its `engine.json`.
pub(super) fn tried(
    onnx_dir: &Path,
    options: &Options,
    out_dir: &Path,
    check: &mut dyn PlanCheck,
    progress: &mut dyn FnMut(&str),
) -> Result<Unsealed<GridsFile>, BuildError> {
    let list = GridList::read(onnx_dir)?;
    let read = |entry: &(Grid, String)| {
        Ok((entry.0, Source::read(&onnx_dir.join(&entry.1))?.planned(options, check)))
    };
    let sources = list.grids.iter().map(read).collect::<Result<Vec<_>, BuildError>>()?;
    let paths: Vec<_> = sources.iter().map(|(_, source)| source.path.clone()).collect();
    let write_error = |source| BuildError::Write { dir: out_dir.to_owned(), source };
    let mut writer = EngineWriter::create(out_dir).map_err(write_error)?;
    let mut tally = pack((onnx_dir, out_dir), &sources, options, &mut writer, progress)?;
    let (files, inputs): (Vec<_>, Vec<_>) = sources.into_iter().map(split).unzip();
    let mut unsealed =
        writer.finish(GRIDS_KIND, GridsFile { grids: files }).map_err(write_error)?;

    let engines = GraphEngine::preview_grids(&unsealed)?;
    let grids = unsealed.engine_mut().grids.iter_mut();
    // Larger pictures take longer.
    let of = |tensor: &Tensor| tensor.shape().iter().product::<usize>();
    let numbers = |inputs: &Vec<Tensor>| inputs.iter().map(of).sum::<usize>() as f64;
    let all: f64 = inputs.iter().map(numbers).sum();
    let mut before = 0.0;
    for (((file, (grid, engine)), inputs), path) in grids.zip(&engines).zip(inputs).zip(&paths) {
        check.check(engine, &inputs).map_err(|problem| unfit(path, problem))?;
        let what = format!("running the engine of grid {grid} once");
        progress(&what);
        let own = numbers(&inputs);
        let outputs = try_out(engine, inputs, &mut |said| match said {
            Tried::Takes(line) => progress(&line),
            Tried::Done(done) => tally.tried((before + own * done) / all, &what, progress),
        })?;
        before += own;
        for (file, output) in file.graph.outputs.iter_mut().zip(&outputs) {
            output.shape().clone_into(&mut file.tried);
        }
    }
    Ok(unsealed)
}

fn split((grid, source): (Grid, Source)) -> (GridFile, Vec<Tensor>) {
    let Grid { height, width } = grid;
    (GridFile { height, width, graph: source.graph }, source.inputs)
}

/// Writes every constant that the graphs share, then those of each; gives what says how far it is.
fn pack(
    (onnx_dir, out_dir): (&Path, &Path),
    sources: &[(Grid, Source)],
    options: &Options,
    writer: &mut EngineWriter,
    progress: &mut dyn FnMut(&str),
) -> Result<Tally, BuildError> {
    let prefixes: Vec<String> = sources.iter().map(|(grid, _)| grid_prefix(*grid)).collect();
    let is_packed = |(at, source, constant): &(usize, &Source, &Initializer)| {
        let product = source.graph.products.get(&constant.name);
        *at == 0 || !is_in_all(constant, product, sources)
    };
    let all = sources.iter().enumerate().flat_map(|(at, (_, source))| {
        source.constants.iter().map(move |constant| (at, source, constant))
    });
    let mut tally = Tally::new(all.filter(is_packed).map(|(_, _, constant)| constant));
    for (at, (grid, source)) in sources.iter().enumerate() {
        progress(&format!("grid {grid}"));
        tell_packing(&source.constants, progress);
        for constant in &source.constants {
            let name = &constant.name;
            if prefixes.iter().any(|prefix| name.starts_with(prefix)) {
                let problem = format!("constant {name:?} has the name of another grid's own");
                return Err(unfit(&source.path, problem));
            }
            let product = source.graph.products.get(name);
            let is_shared = is_in_all(constant, product, sources);
            if is_shared && at > 0 {
                continue;
            }
            tally.begin(constant, progress);
            let name = if is_shared { name.clone() } else { format!("{}{name}", prefixes[at]) };
            let packing =
                Packing { constant, dir: onnx_dir, product, precision: options.precision };
            packing.put(&name, (&source.path, out_dir), writer)?;
        }
    }
    Ok(tally)
}

/// Whether all graphs read the same numbers under that name, in the same way.
fn is_in_all(
    constant: &Initializer,
    product: Option<&ProductFile>,
    sources: &[(Grid, Source)],
) -> bool {
    sources.iter().all(|(_, source)| {
        source.constants.contains(constant) && source.graph.products.get(&constant.name) == product
    })
}
