//! `llm-engine-build`: a checkpoint's decoder as an engine.

use smelt_engine_build::llm;
use smelt_plan::kind::llm_engine_build::LlmEngineBuild;
use smelt_plan::kind::words::DecoderBackend;

use super::request::{Request, say};
use super::{Worker, refusal};
use crate::exit::Failed;

pub(super) const WORKER: Worker = Worker { refusal: Some(refusal::of_decoder), ..Worker::new(run) };

fn run(request: &Request) -> Result<(), Failed> {
    let checkpoint = request.checkpoint("checkpoint")?;
    let params: LlmEngineBuild = request.typed()?;
    let limits = llm::Limits { max_seq_len: params.max_seq_len, max_slots: params.max_slots };
    let built = match params.backend {
        DecoderBackend::Native => {
            llm::build_with(&checkpoint, limits, request.tactics()?, &request.out, &mut say)
        }
    };
    built.map_err(Failed::model)
}
