//! `smelt export`: parts of a checkpoint as ONNX, without a pipeline.

use std::path::Path;

use smelt_model::checkpoint::Checkpoint;
use smelt_model::dtype::Dtype;
use smelt_model::export::{self, ExportError, LlmInput, probe};
use smelt_model::grid::Grid;
use smelt_model::model::Part;

use crate::exit::{Exit, Failed};
use crate::flags::{self, ExportFlags, FloatType, TokenInput};
use crate::fresh::FreshDir;
use crate::given;
use crate::say::tell;

pub(crate) fn run(flags: &ExportFlags) -> Result<Exit, Failed> {
    if flags.input.is_some() && matches!(flags.part, flags::Part::Vision) {
        return Err(Failed::usage("--input says how tokens enter a decoder; a tower has none"));
    }
    if !flags.grids.is_empty() && matches!(flags.part, flags::Part::Llm | flags::Part::Encoder) {
        return Err(Failed::usage("--grid is for the vision tower"));
    }
    let out = FreshDir::begin(&flags.out)?;
    let given = given::open(&flags.checkpoint, &flags.out)?;
    let checkpoint = &given.checkpoint;
    let order = Order::of(flags);
    let mut say = |line: &str| tell(line);
    match flags.part {
        flags::Part::Vision => order.fill(checkpoint, Part::Vision, out.path(), &mut say),
        flags::Part::Llm => order.fill(checkpoint, Part::Llm, out.path(), &mut say),
        flags::Part::Encoder => order.fill(checkpoint, Part::Encoder, out.path(), &mut say),
        flags::Part::All => {
            PARTS.iter().filter(|(part, _)| checkpoint.has(*part)).try_for_each(|(part, name)| {
                order.fill(checkpoint, *part, &out.path().join(name), &mut say)
            })
        }
    }
    .map_err(Failed::model)?;
    out.finish()?;
    tell(format_args!("wrote {}", flags.out.display()));
    Ok(Exit::Ok)
}

/// What `--part all` exports where it is there, and into which directory.
const PARTS: [(Part, &str); 3] =
    [(Part::Vision, "vision"), (Part::Llm, "llm"), (Part::Encoder, "encoder")];

/// How parts are exported; the stage of a pipeline orders the same.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    pub(crate) dtype: Dtype,
    /// The usual one of the model if none is asked for.
    pub(crate) input: Option<LlmInput>,
    pub(crate) probe: bool,
    /// Sizes of pictures, of a tower that takes any; the usual ones if empty.
    pub(crate) grids: Vec<Grid>,
}

impl Order {
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

    /// Exports `part` to `dir`, after the probe if one is asked for.
    pub(crate) fn fill(
        &self,
        checkpoint: &Checkpoint,
        part: Part,
        dir: &Path,
        say: &mut dyn FnMut(&str),
    ) -> Result<(), ExportError> {
        if self.probe {
            probe::record(checkpoint, part, self.dtype, dir, say)?;
        }
        match part {
            Part::Vision => export::vision_on(checkpoint, &self.grids, self.dtype, dir, say),
            Part::Encoder => export::encoder(checkpoint, self.dtype, dir, say),
            Part::Llm | Part::Head => {
                let input = self.input.unwrap_or_else(|| LlmInput::usual(checkpoint.model()));
                export::llm(checkpoint, self.dtype, input, dir, say)
            }
        }
    }
}
