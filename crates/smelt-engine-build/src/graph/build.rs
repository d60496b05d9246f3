//! Builds an engine from an ONNX graph: packs it, then loads it and runs it once.
//!
//! The graph is judged before a weight is read; weights then go to `weights.bin` in blocks.  Knows
//! nothing of checkpoints.

use std::path::{Path, PathBuf};

use smelt_backend::{GraphInput, Tensor};
use smelt_engine::engine_file::{EngineWriter, Unsealed};
use smelt_engine::graph::{GraphEngine, GraphFile, KIND};
use smelt_model::export::GRIDS_FILE;
use smelt_onnx::{ElementType, Initializer, MODEL_FILE, Model, located};

use super::convert::{Converted, convert};
use super::pack::{Packing, products};
use super::{Options, grids, unfit};
use crate::BuildError;

/// How the inputs that hold a decoder's cache begin.
const CACHE_INPUT: &str = "past_key_values.";
/// Open dimensions behind an input's first are this large when the engine is tried: a short text.
const TRIED_SIZE: usize = 8;
/// How large they are where that does not run: detectors halve a picture five times.
const TRIED_LARGER: usize = 64;
/// An input of more numbers than this is a broken graph (a picture of 1792 pixels has 10 million).
const INPUT_NUMBERS_MAX: usize = 1 << 26;

/// Builds an engine in `out_dir` from `model.onnx` in `onnx_dir`, or from the graphs that its list of
/// grids names, and runs it once.
///
/// The same graphs and options give the same bytes on every machine.  `progress` hears what is
/// being done.
///
/// # Errors
/// When a graph cannot be read or holds what the engine does not have (the message names the
/// node), when writing fails, or when the finished engine does not run.
pub fn build(
    onnx_dir: &Path,
    options: impl Into<Options>,
    out_dir: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), BuildError> {
    let options = options.into();
    if onnx_dir.join(GRIDS_FILE).exists() {
        return grids::build(onnx_dir, &options, out_dir, progress);
    }
    build_one(&onnx_dir.join(MODEL_FILE), &options, out_dir, progress)
}

/// As [`build`], of the graph in a file of any name, beside which its weights lie.
pub(super) fn build_one(
    model: &Path,
    options: &Options,
    out_dir: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), BuildError> {
    let unsealed = tried(model, options, out_dir, &mut AnyPlan, progress)?;
    unsealed.seal().map_err(|source| BuildError::Write { dir: out_dir.to_owned(), source })?;
    GraphEngine::open(out_dir)?;
    Ok(())
}

/// What looks at each plan of an engine before it runs.
pub(super) trait PlanCheck {
    /// Whether weights of products lie row by row, whoever reads them.
    fn wants_rows(&self) -> bool;

    /// What is wrong with the plan for `inputs`, if anything: one line that names the node.
    fn check(&mut self, engine: &GraphEngine, inputs: &[Tensor]) -> Result<(), String>;
}

/// Every plan that processors run will do.
pub(super) struct AnyPlan;

impl PlanCheck for AnyPlan {
    fn wants_rows(&self) -> bool {
        false
    }

    fn check(&mut self, _engine: &GraphEngine, _inputs: &[Tensor]) -> Result<(), String> {
        Ok(())
    }
}

/// Packs the graph in the file `model` and runs it once; the engine still lacks its `engine.json`.
pub(super) fn tried(
    model: &Path,
    options: &Options,
    out_dir: &Path,
    check: &mut dyn PlanCheck,
    progress: &mut dyn FnMut(&str),
) -> Result<Unsealed<GraphFile>, BuildError> {
    let source = Source::read(model)?.planned(options, check);
    let Source { graph, constants, inputs, path, dir } = source;
    let given = graph.inputs.clone();
    let write_error = |source| BuildError::Write { dir: out_dir.to_owned(), source };
    let mut writer = EngineWriter::create(out_dir).map_err(write_error)?;
    let mut tally = Tally::new(&constants);
    tell_packing(&constants, progress);
    for constant in &constants {
        tally.begin(constant, progress);
        let product = graph.products.get(&constant.name);
        let one = Packing { constant, dir: &dir, product, precision: options.precision };
        one.put(&constant.name, (&path, out_dir), &mut writer)?;
    }
    let mut unsealed = writer.finish(KIND, graph).map_err(write_error)?;

    progress("running the engine once");
    let engine = GraphEngine::preview(&unsealed)?;
    let told = &mut |said| match said {
        Tried::Takes(line) => progress(&line),
        Tried::Done(done) => tally.tried(done, "running the engine once", progress),
    };
    let run = |inputs: Vec<Tensor>| {
        check.check(&engine, &inputs).map_err(|problem| unfit(&path, problem))?;
        run_once(&engine, inputs, told)
    };
    let outputs = finite(try_sizes(&given, inputs, run)?)?;
    for (file, output) in unsealed.engine_mut().outputs.iter_mut().zip(&outputs) {
        output.shape().clone_into(&mut file.tried);
    }
    Ok(unsealed)
}

/// A graph that can become an engine.
pub(super) struct Source {
    pub(super) graph: GraphFile,
    pub(super) constants: Vec<Initializer>,
    /// What it is tried with.
    pub(super) inputs: Vec<Tensor>,
    pub(super) path: PathBuf,
    /// In which its weights lie.
    pub(super) dir: PathBuf,
}

impl Source {
    /// Reads the graph of a file and judges it; no weight is read.
    pub(super) fn read(model: &Path) -> Result<Self, BuildError> {
        let (path, dir) = located(model);
        let model = Model::read(&path)?;
        smelt_onnx::check(&model, &dir)
            .map_err(|source| BuildError::Check { path: path.clone(), source })?;
        let graph_error = |problem| unfit(&path, problem);
        let Converted { mut graph, constants } = convert(model).map_err(graph_error)?;
        judge(&graph).map_err(graph_error)?;
        graph.products = products(&graph, &constants);
        let inputs = tried_inputs(&graph.inputs).map_err(graph_error)?;
        Ok(Self { graph, constants, inputs, path, dir })
    }

    /// The same, planned by the tactics of `options` and with the products that whoever runs it reads.
    pub(super) fn planned(mut self, options: &Options, check: &dyn PlanCheck) -> Self {
        self.graph.tactics.clone_from(&options.tactics);
        if check.wants_rows() {
            self.graph.products.clear();
        }
        self
    }
}

/// Says how far the packing of a graph's constants is, and then its trial, which takes about as long.
pub(super) struct Tally {
    done: usize,
    packing: usize,
    /// Hundredths of the trial that were told of.
    tried: usize,
}

impl Tally {
    /// Of `constants`, none of which is packed yet.
    pub(super) fn new<'a>(constants: impl IntoIterator<Item = &'a Initializer>) -> Self {
        let packing = constants.into_iter().map(bytes).sum::<usize>().max(1);
        Self { done: 0, packing, tried: 0 }
    }

    /// Says that `constant` comes next.
    pub(super) fn begin(&mut self, constant: &Initializer, progress: &mut dyn FnMut(&str)) {
        self.say(&format!("packing {}", constant.name), progress);
        self.done += bytes(constant);
    }

    /// Says that the share `done` of the trial is over, if that is news.
    pub(super) fn tried(&mut self, done: f64, what: &str, progress: &mut dyn FnMut(&str)) {
        let hundredths = (done.clamp(0.0, 1.0) * 100.0) as usize;
        if hundredths > self.tried {
            self.tried = hundredths;
            self.done = self.packing + (self.packing as f64 * done) as usize;
            self.say(what, progress);
        }
    }

    fn say(&self, what: &str, progress: &mut dyn FnMut(&str)) {
        progress(&format!("[{}/{}] {what}", self.done, 2 * self.packing));
    }
}

fn bytes(constant: &Initializer) -> usize {
    constant.byte_len().unwrap_or(0)
}

/// Says what is about to be packed.
pub(super) fn tell_packing(constants: &[Initializer], progress: &mut dyn FnMut(&str)) {
    progress(&format!("packing {} constants", constants.len()));
    if constants.iter().any(|constant| constant.dtype == ElementType::F16) {
        progress("the graph is f16; processors compute it in f32");
    }
}

/// Finds operators that the engine does not have before any weight is read.
fn judge(graph: &GraphFile) -> Result<(), String> {
    if let Some(input) = graph.inputs.iter().find(|input| input.name.starts_with(CACHE_INPUT)) {
        let name = &input.name;
        return Err(format!(
            "input {name:?} is a decoder's cache; decoders become engines by llm-engine-build, from the checkpoint"
        ));
    }
    graph.check_operators()
}

/// Values to try `inputs` with.
pub(crate) fn tried_inputs(inputs: &[GraphInput]) -> Result<Vec<Tensor>, String> {
    inputs.iter().map(|input| tried_input(input, TRIED_SIZE)).collect()
}

/// What `run` gives for `small` values of `inputs`; for larger ones where it fails and they leave a size open.
///
/// # Errors
/// What it says of the small ones.
pub(crate) fn try_sizes<E>(
    inputs: &[GraphInput],
    small: Vec<Tensor>,
    mut run: impl FnMut(Vec<Tensor>) -> Result<Vec<Tensor>, E>,
) -> Result<Vec<Tensor>, E> {
    let refused = match run(small) {
        Ok(outputs) => return Ok(outputs),
        Err(refused) => refused,
    };
    let is_open = |input: &GraphInput| input.dims.iter().filter(|dim| dim.is_none()).count() > 1;
    if !inputs.iter().any(is_open) {
        return Err(refused);
    }
    let larger = inputs.iter().map(|input| tried_input(input, TRIED_LARGER));
    let larger = larger.collect::<Result<Vec<_>, _>>();
    larger.ok().and_then(|larger| run(larger).ok()).ok_or(refused)
}

/// Values to try an input with whose open dimensions behind its first are of `open` numbers.
fn tried_input(input: &GraphInput, open: usize) -> Result<Tensor, String> {
    let first = input.dims.iter().position(Option::is_none);
    let size = |(axis, dim): (usize, &Option<usize>)| match dim {
        Some(size) => *size,
        None if Some(axis) == first => 1,
        None => open,
    };
    let shape: Vec<usize> = input.dims.iter().enumerate().map(size).collect();
    let count = shape.iter().try_fold(1usize, |count, &dim| count.checked_mul(dim));
    let count = count.filter(|count| (1..=INPUT_NUMBERS_MAX).contains(count));
    let Some(count) = count else {
        return Err(format!("input {:?} of shape {shape:?} cannot be tried", input.name));
    };
    if input.integer {
        // A token that every vocabulary has, and a place that no mask hides.
        return Ok(Tensor::I64 { shape, data: vec![1; count] });
    }
    // A ramp with jumps, in the range of normalised pixels.
    let data = (0..count).map(|index| (index % 251) as f32 / 62.5 - 2.0).collect();
    Ok(Tensor::F32 { shape, data })
}

/// What is heard of an engine that is tried.
pub(super) enum Tried {
    /// What it takes, in words.
    Takes(String),
    /// The share that is done.
    Done(f64),
}

/// Runs the engine once; every number has to be finite.
pub(super) fn try_out(
    engine: &GraphEngine,
    inputs: Vec<Tensor>,
    told: &mut dyn FnMut(Tried),
) -> Result<Vec<Tensor>, BuildError> {
    finite(run_once(engine, inputs, told)?)
}

fn run_once(
    engine: &GraphEngine,
    inputs: Vec<Tensor>,
    told: &mut dyn FnMut(Tried),
) -> Result<Vec<Tensor>, BuildError> {
    let arena = engine.survey(&inputs)?.arena_bytes;
    told(Tried::Takes(format!("results take {} KiB", arena.div_ceil(1024))));
    Ok(engine.run_with_progress(inputs, &mut |done| told(Tried::Done(done)))?)
}

/// The same outputs, each number of which is finite.
fn finite(outputs: Vec<Tensor>) -> Result<Vec<Tensor>, BuildError> {
    let mut numbers = outputs.iter().filter_map(Tensor::floats).flatten();
    match numbers.find(|value| !value.is_finite()) {
        Some(&found) => Err(BuildError::NotFinite { found, tried: "a test input" }),
        None => Ok(outputs),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_inputs_are_tried_where_small_ones_fail() {
        let input = |dims: &[Option<usize>]| GraphInput {
            name: "x".to_owned(),
            integer: false,
            dims: dims.to_vec(),
        };
        let run_from = |least: usize, dims: &[Option<usize>]| {
            let inputs = [input(dims)];
            let small = tried_inputs(&inputs).unwrap();
            try_sizes(&inputs, small, |inputs| {
                let last = inputs[0].shape()[dims.len() - 1];
                if last < least { Err(last) } else { Ok(inputs) }
            })
            .map(|outputs| outputs[0].shape().to_vec())
        };
        let open = [None, Some(3), None, None];
        assert_eq!(run_from(8, &open), Ok(vec![1, 3, 8, 8]));
        assert_eq!(run_from(9, &open), Ok(vec![1, 3, 64, 64]));
        assert_eq!(run_from(65, &open), Err(8), "it is told of the small one");
        assert_eq!(run_from(9, &[None, Some(3)]), Err(3), "only one is open");
    }

    #[test]
    fn a_trial_goes_on_where_packing_ends() {
        let mut tally = Tally { done: 100, packing: 100, tried: 0 };
        let mut said = Vec::new();
        for done in [0.0, 0.004, 0.25, 0.251, 1.0] {
            tally.tried(done, "running", &mut |line| said.push(line.to_owned()));
        }
        assert_eq!(said, ["[125/200] running", "[200/200] running"]);
    }
}
