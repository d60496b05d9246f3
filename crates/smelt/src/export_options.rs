//! How parts of a checkpoint are exported: what `smelt export` and the stage `onnx-export` do alike.

use std::path::Path;

use smelt_model::checkpoint::Checkpoint;
use smelt_model::dtype::Dtype;
use smelt_model::export::{self, ExportError, LlmInput, probe};
use smelt_model::grid::Grid;
use smelt_model::model::ModelPart;

use crate::exit::Failed;

/// The options of an export.
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
