//! `smelt export`: parts of a checkpoint as ONNX, without a pipeline.

use std::fs;
use std::path::Path;

use smelt_model::checkpoint::Checkpoint;
use smelt_model::dtype::Dtype;
use smelt_model::export::{self, ExportError, LlmInput, probe};
use smelt_model::grid::Grid;
use smelt_model::model::ModelPart;

use crate::atomic_dir::AtomicDir;
use crate::console::tell;
use crate::exit::{Exit, Failed};
use crate::flags::{self, ExportFlags, FloatType, TokenInput};
use crate::open_checkpoint;
use crate::table::bytes;
use crate::telling::Telling;

pub(crate) fn run(flags: &ExportFlags) -> Result<Exit, Failed> {
    let options = ExportOptions::of(flags);
    let one = match flags.part {
        flags::ExportPart::Vision => Some(ModelPart::Vision),
        flags::ExportPart::Llm => Some(ModelPart::Llm),
        flags::ExportPart::Encoder => Some(ModelPart::Encoder),
        flags::ExportPart::Classifier => Some(ModelPart::Classifier),
        flags::ExportPart::All => None,
    };
    one.map_or(Ok(()), |part| options.check(&[part]))?;
    let out = AtomicDir::begin(&flags.out)?;
    let given = open_checkpoint::open(&flags.checkpoint, &flags.out)?;
    let mut telling = Telling::new();
    let mut say = |line: &str| telling.hear(line);
    match one {
        Some(part) => {
            options.fill(&given.checkpoint, part, out.path(), &mut say).map_err(Failed::model)?
        }
        None => all(&options, &given.checkpoint, out.path(), &mut say)?,
    }
    drop(telling);
    out.finish()?;
    tell(format_args!("wrote {}: {}", flags.out.display(), written(&flags.out)));
    Ok(Exit::Ok)
}

/// What was made, in words: how many files and bytes.
fn written(dir: &Path) -> String {
    let (files, all_bytes) = count(dir);
    format!("{files} files, {}", bytes(all_bytes))
}

/// The files below `dir` and their bytes.
fn count(dir: &Path) -> (usize, u64) {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let of = |entry: fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => count(&entry.path()),
        Ok(meta) => (1, meta.len()),
        Err(_) => (0, 0),
    };
    entries.map(of).fold((0, 0), |(files, bytes), one| (files + one.0, bytes + one.1))
}

/// Exports every part that is there, each into a directory of its own.
fn all(
    options: &ExportOptions,
    checkpoint: &Checkpoint,
    out: &Path,
    say: &mut dyn FnMut(&str),
) -> Result<(), Failed> {
    let here = PARTS.iter().filter(|(part, _)| checkpoint.has(*part));
    options.check(&here.clone().map(|(part, _)| *part).collect::<Vec<_>>())?;
    for (part, name) in here {
        options.fill(checkpoint, *part, &out.join(name), say).map_err(Failed::model)?;
    }
    Ok(())
}

/// What `--part all` exports where it is there, and into which directory.
const PARTS: [(ModelPart, &str); 4] = [
    (ModelPart::Vision, "vision"),
    (ModelPart::Llm, "llm"),
    (ModelPart::Encoder, "encoder"),
    (ModelPart::Classifier, "classifier"),
];

/// How parts are exported; the stage of a pipeline has the same options.
#[derive(Debug, Clone)]
pub(crate) struct ExportOptions {
    pub(crate) dtype: Dtype,
    /// The usual one of the model if none is asked for.
    pub(crate) input: Option<LlmInput>,
    pub(crate) probe: bool,
    /// Sizes of pictures, of a tower that takes any; the usual ones if empty.
    pub(crate) grids: Vec<Grid>,
}

impl ExportOptions {
    fn of(flags: &ExportFlags) -> Self {
        let dtype = match flags.dtype {
            FloatType::F32 => Dtype::F32,
            FloatType::F16 => Dtype::F16,
            FloatType::Bf16 => Dtype::BF16,
        };
        let input = flags.input.map(|input| match input {
            TokenInput::Ids => LlmInput::Ids,
            TokenInput::Embeds => LlmInput::Embeds,
        });
        Self { dtype, input, probe: flags.probe, grids: flags.grids.clone() }
    }

    /// Refuses what none of `parts` takes.
    pub(crate) fn check(&self, parts: &[ModelPart]) -> Result<(), Failed> {
        if self.input.is_some() && !parts.contains(&ModelPart::Llm) {
            return Err(Failed::usage(
                "an input, ids or embeds, is for part llm: it says how tokens enter a decoder",
            ));
        }
        if !self.grids.is_empty() && !parts.contains(&ModelPart::Vision) {
            return Err(Failed::usage("grids are for the vision tower"));
        }
        Ok(())
    }

    /// Exports `part` to `dir`, after the probe if one is asked for.
    pub(crate) fn fill(
        &self,
        checkpoint: &Checkpoint,
        part: ModelPart,
        dir: &Path,
        say: &mut dyn FnMut(&str),
    ) -> Result<(), ExportError> {
        if self.probe {
            probe::record(checkpoint, part, self.dtype, dir, say)?;
        }
        match part {
            ModelPart::Vision => export::vision_on(checkpoint, &self.grids, self.dtype, dir, say),
            ModelPart::Encoder => export::encoder(checkpoint, self.dtype, dir, say),
            ModelPart::Classifier => export::classifier(checkpoint, self.dtype, dir, say),
            ModelPart::Llm | ModelPart::Head => {
                let input = self.input.unwrap_or_else(|| LlmInput::usual(checkpoint.model()));
                export::llm(checkpoint, self.dtype, input, dir, say)
            }
        }
    }
}
