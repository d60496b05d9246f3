//! Makes engines for GPUs, and opens them on a device that needs none.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use smelt_backend::{Decoder, KvOptions, KvType};
use smelt_cuda::decoder::{CudaDecoder, KernelImage};
use smelt_cuda::kernels::form::WeightForm;
use smelt_cuda::kernels::page::HeadShape;
use smelt_cuda::kernels::source::KernelSet;
use smelt_cuda::kernels::twin;
use smelt_cuda::recording::{RecordingDriver, card};
use smelt_cuda::tactics::CardTactics;
use smelt_cuda::{CudaTarget, Driver, Sm};
use smelt_engine_build::llm::{self, Limits};
use smelt_model::checkpoint::Checkpoint;
use smelt_model::quantize::{self, Options, Scheme};
use smelt_model::synthetic;

/// Memory of the device that needs no GPU.
const MEMORY_BYTES: u64 = 1 << 30;

/// A checkpoint of a tiny model, quantised as `scheme` says.
pub(super) fn packed(model: &str, scheme: Scheme, dir: &Path) -> Checkpoint {
    let at = |name: &str| dir.join(name);
    synthetic::write(model, &at("checkpoint"), &mut |_| {}).unwrap();
    let checkpoint = Checkpoint::open(&at("checkpoint")).unwrap();
    quantize::quantize(&checkpoint, &Options::plain(scheme), &at("packed"), &mut |_| {}).unwrap();
    Checkpoint::open(&at("packed")).unwrap()
}

/// An engine of a checkpoint for the device that needs no GPU, which loads any kernels.
pub(super) fn engine(checkpoint: &Checkpoint, limits: Limits, dir: &Path) -> PathBuf {
    tuned_engine(checkpoint, limits, &dir.join("cuda"), None)
}

/// The same, built with tactics, in `engine`.
pub(super) fn tuned_engine(
    checkpoint: &Checkpoint,
    limits: Limits,
    engine: &Path,
    tactics: Option<&CardTactics>,
) -> PathBuf {
    let (image, int8) = (b"none", Some(&b"none"[..]));
    let kernels = KernelImage { target: CudaTarget::Sm90, image, int8, tactics };
    llm::build_for_card(checkpoint, limits, kernels, engine, &mut |_| {}).unwrap();
    engine.to_owned()
}

/// A device that needs no GPU and knows every kernel for heads of `dim` numbers.
pub(super) fn device(dim: usize, memory_bytes: u64, unified: bool) -> Arc<RecordingDriver> {
    device_of(HeadShape { dim, kind: KvType::F16 }, memory_bytes, unified)
}

/// The same for heads that are kept as `head` says.
pub(super) fn device_of(head: HeadShape, memory_bytes: u64, unified: bool) -> Arc<RecordingDriver> {
    let driver = Arc::new(RecordingDriver::new(card(Sm(90), memory_bytes, unified)));
    twin::teach(&driver, &KernelSet { forms: WeightForm::ALL.to_vec(), head });
    driver
}

/// A decoder on a device of its own.
pub(super) struct OnTwin {
    pub(super) device: Arc<RecordingDriver>,
    pub(super) decoder: Box<dyn Decoder>,
}

impl OnTwin {
    pub(super) fn open(engine: &Path, dim: usize, kv: KvOptions) -> Self {
        Self::open_on(device(dim, MEMORY_BYTES, false), engine, kv)
    }

    pub(super) fn open_on(device: Arc<RecordingDriver>, engine: &Path, kv: KvOptions) -> Self {
        let driver: Arc<dyn Driver> = Arc::<RecordingDriver>::clone(&device);
        let decoder = Box::new(CudaDecoder::open(engine, &driver, kv).unwrap());
        Self { device, decoder }
    }
}

/// What a decoder's device saw is right, and nothing is left there when it is gone.
impl Drop for OnTwin {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        assert_eq!(self.device.violations(), [""; 0]);
    }
}
