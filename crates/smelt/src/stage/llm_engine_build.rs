//! `llm-engine-build`: a checkpoint's decoder as an engine.

use smelt_backend::KvType;
use smelt_cuda::CudaTarget;
use smelt_cuda::decoder::KernelImage;
use smelt_cuda::kernels::page::HeadShape;
use smelt_cuda::kernels::source::{KernelSet, source};
use smelt_engine_build::llm::{self, Limits};
use smelt_model::checkpoint::Checkpoint;
use smelt_plan::kind::llm_engine_build::LlmEngineBuild;
use smelt_plan::kind::words::DecoderBackend;

use super::request::{Request, say};
use super::{Worker, kernels, refusal};
use crate::exit::Failed;

pub(super) const WORKER: Worker =
    Worker { refusal: Some(refusal::of_decoder), compiles_kernels: true, ..Worker::new(run) };

fn run(request: &Request) -> Result<(), Failed> {
    let checkpoint = request.checkpoint("checkpoint")?;
    let params: LlmEngineBuild = request.typed()?;
    let limits = Limits { max_seq_len: params.max_seq_len, max_slots: params.max_slots };
    match (params.backend, CudaTarget::parse(params.target.word())) {
        (DecoderBackend::Native, None) => {
            let tactics = request.tactics()?;
            let built = llm::build_with(&checkpoint, limits, tactics, &request.out, &mut say);
            built.map_err(Failed::model)
        }
        (DecoderBackend::Native, Some(target)) => for_card(&checkpoint, limits, target, request),
    }
}

/// Compiles the kernels that the checkpoint's weights need, then packs them.
fn for_card(
    checkpoint: &Checkpoint,
    limits: Limits,
    target: CudaTarget,
    request: &Request,
) -> Result<(), Failed> {
    let tactics = request.card_tactics()?;
    let set = llm::kernel_set(checkpoint, KvType::F16).map_err(Failed::model)?;
    let bytes = HeadShape { kind: KvType::Int8, ..set.head };
    let image = compiled(&set, target)?;
    let int8 = compiled(&KernelSet { forms: Vec::new(), head: bytes }, target)?;
    let kernels =
        KernelImage { target, image: &image, int8: Some(&int8), tactics: tactics.as_ref() };
    let built = llm::build_for_card(checkpoint, limits, kernels, &request.out, &mut say);
    built.map_err(Failed::model)
}

/// The code of a set of kernels for a card.
pub(super) fn compiled(set: &KernelSet, target: CudaTarget) -> Result<Vec<u8>, Failed> {
    say(&format!("compiling kernels for {}", target.sm()));
    kernels::compiled("decoder.cu", source(set), target)
}
