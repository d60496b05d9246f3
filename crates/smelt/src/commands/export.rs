//! `smelt export`: parts of a checkpoint as ONNX, without a pipeline.

use std::fs;
use std::path::Path;

use smelt_model::checkpoint::Checkpoint;
use smelt_model::dtype::Dtype;
use smelt_model::export::LlmInput;
use smelt_model::model::ModelPart;

use crate::atomic_dir::AtomicDir;
use crate::console::tell;
use crate::exit::{Exit, Failed};
use crate::export_options::ExportOptions;
use crate::flags::{self, ExportFlags, FloatType, TokenInput};
use crate::open_checkpoint;
use crate::table::bytes;
use crate::telling::Telling;

pub(crate) fn run(flags: &ExportFlags) -> Result<Exit, Failed> {
    let options = options(flags);
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

fn options(flags: &ExportFlags) -> ExportOptions {
    let dtype = match flags.dtype {
        FloatType::F32 => Dtype::F32,
        FloatType::F16 => Dtype::F16,
        FloatType::Bf16 => Dtype::BF16,
    };
    let input = flags.input.map(|input| match input {
        TokenInput::Ids => LlmInput::Ids,
        TokenInput::Embeds => LlmInput::Embeds,
    });
    ExportOptions { dtype, input, probe: flags.probe, grids: flags.grids.clone() }
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
