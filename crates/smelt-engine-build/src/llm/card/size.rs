//! Says what an engine for GPUs of a language model will take, before there is one.
//!
//! The tensors are those that [`super::build_for_card`] packs, so what is said is what is written.  No weight is read, and none
//! need be here.

use smelt_cuda::decoder::weights_bytes;
use smelt_cuda::kernels::layout::{STRIP_ROWS, padded_columns, padded_rows, part_bytes};
use smelt_model::checkpoint::{Checkpoint, CheckpointError};
use smelt_model::decoder::Decoder;

use super::super::size::LlmSize;
use super::{Weight, What, names};

/// What an engine of `checkpoint` for GPUs will take; it is the same for all of them.
///
/// # Errors
/// When the checkpoint has no decoder or lacks a tensor.
pub fn size_for_card(checkpoint: &Checkpoint) -> Result<LlmSize, CheckpointError> {
    let llm = checkpoint.decoder()?;
    let (mut tensors, mut step_bytes) = (Vec::new(), 0);
    for (name, what) in names(checkpoint, llm)? {
        let bytes = what.bytes(checkpoint, llm)?;
        // A row of the embedding is read for a token, or all of it where it is the head, too.
        if name != "embedding" || !checkpoint.has_lm_head() {
            step_bytes += bytes.iter().sum::<u64>();
        }
        tensors.extend(bytes);
    }
    Ok(LlmSize::of(llm, weights_bytes(tensors), step_bytes))
}

impl What {
    /// Bytes of each tensor that it becomes.
    fn bytes(&self, checkpoint: &Checkpoint, llm: &Decoder) -> Result<Vec<u64>, CheckpointError> {
        let numbers = match self {
            Self::Vectors(names) => {
                let counts =
                    names.iter().map(|name| Ok(checkpoint.shape(name)?.iter().product::<usize>()));
                counts.sum::<Result<usize, CheckpointError>>()?
            }
            Self::Frequencies | Self::Axes => llm.head_dim / 2,
            Self::Order(name) => checkpoint.shape(name)?.iter().skip(1).product(),
            Self::Rows(names) => return Ok(Weight::of(checkpoint, names, false)?.bytes()),
            Self::Turns(names) => return Ok(Weight::of(checkpoint, names, true)?.bytes()),
        };
        Ok(vec![numbers as u64 * 4])
    }
}

impl Weight {
    /// Bytes of its levels and of each part beside them.
    fn bytes(&self) -> Vec<u64> {
        let (form, columns) = (self.form(), padded_columns(self.columns()));
        let strips = padded_rows(self.rows()) / STRIP_ROWS;
        let part = |part| (strips * part_bytes(form, part, columns)) as u64;
        form.parts().into_iter().map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use smelt_backend::Limits;
    use smelt_cuda::CudaTarget;
    use smelt_cuda::decoder::KernelImage;
    use smelt_model::quantize::{self, Options, Scheme};
    use smelt_model::synthetic;

    use super::*;
    use crate::llm::build_for_card;

    /// Bytes of the weights of an engine of `checkpoint`, built.
    fn built(checkpoint: &Checkpoint) -> u64 {
        let out = tempfile::tempdir().unwrap();
        let kernels =
            KernelImage { target: CudaTarget::Sm87, image: b"none", int8: None, tactics: None };
        let limits = Limits { max_seq_len: 64, max_slots: 1 };
        build_for_card(checkpoint, limits, kernels, out.path(), &mut |_| {}).unwrap();
        fs::metadata(out.path().join("weights.bin")).unwrap().len()
    }

    #[test]
    fn what_is_said_before_is_what_is_written() {
        for name in ["internvl3-tiny", "qwen2_5_vl-tiny", "qwen3_vl-tiny", "smolvlm-tiny"] {
            let dir = tempfile::tempdir().unwrap();
            synthetic::write(name, dir.path(), &mut |_| {}).unwrap();
            let written = Checkpoint::open(dir.path()).unwrap();
            let described = Checkpoint::described_synthetic(name).unwrap();
            let halves = size_for_card(&described).unwrap();
            assert_eq!(halves.weights_bytes, built(&written), "{name}");
            for scheme in [Scheme::Int8, Scheme::Int4G32, Scheme::Int4G64Asym] {
                let options = Options::plain(scheme);
                let said = quantize::described(&described, &options).unwrap();
                let out = tempfile::tempdir().unwrap();
                quantize::quantize(&written, &options, out.path(), &mut |_| {}).unwrap();
                let quantized = Checkpoint::open(out.path()).unwrap();
                let said = size_for_card(&said).unwrap();
                assert_eq!(said.weights_bytes, built(&quantized), "{name} {scheme}");
                assert!(said.step_bytes < halves.step_bytes, "{name} {scheme}: {said:?}");
            }
        }
    }
}
