//! Finds the GPU of the device that `fit` is for, and says whether engines for it are built here.

use std::path::Path;

use smelt_cuda::{CardFacts, CudaTarget, Sm, nvrtc};
use smelt_doctor::Facts;
use smelt_fit::Gpu;

use crate::cards::{self, DeviceChoice};
use crate::device;
use crate::exit::{Exit, Failed};

/// The GPU here, the one that is `wanted`; `board` is that of this board where it is known by name.
///
/// # Errors
/// Where a card is asked for by its number and the driver gives none.
pub(crate) fn here(wanted: DeviceChoice, board: Option<Gpu>) -> Result<Option<Gpu>, Failed> {
    let why = match cards::found(wanted) {
        Ok(card) => {
            let free_bytes = free_bytes(&card);
            return Ok(Some(with_engines(Gpu { free_bytes, ..of_driver(&card, board) })));
        }
        Err(why) => why.to_string(),
    };
    if let DeviceChoice::Card(_) = wanted {
        return Err(Failed::new(Exit::DoesNotFit, format!("--device {wanted}: {why}")));
    }
    // Of machines without a GPU there is nothing to say.
    let seen = board.or_else(|| of_files(Path::new("/")));
    Ok(seen.map(|gpu| Gpu { obstacle: Some(why), ..gpu }))
}

/// The GPU of a device whose files are at `root`: as its doctor noted it down, else as its board's name or its files say.
pub(crate) fn captured(root: &Path, board: Option<Gpu>) -> Option<Gpu> {
    let facts = Facts::of_captured(root);
    let noted = facts.measured().gpus.cards.first();
    let noted = noted.map(|card| {
        let known = known(&card.name, Sm(card.sm), card.unified, board.clone());
        Gpu {
            name: card.name.clone(),
            multiprocessors: Some(card.multiprocessors),
            memory_bytes: card.memory_bytes,
            unified: card.unified,
            ..known
        }
    });
    noted.or(board).or_else(|| of_files(root)).map(with_engines)
}

/// A GPU with what engines are built for it here, or why none are.
pub(crate) fn with_engines(gpu: Gpu) -> Gpu {
    let Some(target) = CudaTarget::of(Sm(gpu.sm)) else {
        let obstacle = format!("no engines are built for {}, which is {}", gpu.name, Sm(gpu.sm));
        return Gpu { obstacle: Some(obstacle), ..gpu };
    };
    if gpu.memory_bytes == 0 {
        let obstacle = format!("how much memory {} has is not known", gpu.name);
        return Gpu { obstacle: Some(obstacle), ..gpu };
    }
    let obstacle = nvrtc::find(target).err().map(|why| why.to_string());
    Gpu { target: Some(target.word().to_owned()), obstacle, ..gpu }
}

fn of_driver(card: &CardFacts, board: Option<Gpu>) -> Gpu {
    Gpu {
        name: card.name.clone(),
        multiprocessors: Some(card.multiprocessors),
        memory_bytes: card.memory_bytes,
        unified: card.unified,
        ..known(&card.name, card.sm, card.unified, board)
    }
}

/// What makers state of it.
fn known(name: &str, Sm(sm): Sm, unified: bool, board: Option<Gpu>) -> Gpu {
    board.filter(|_| unified).unwrap_or_else(|| Gpu::of_card(name, sm))
}

/// Bytes that are free on a card with memory of its own.
fn free_bytes(card: &CardFacts) -> Option<u64> {
    let driver = (!card.unified).then(|| smelt_cuda::open(card.ordinal).ok())??;
    Some(driver.memory_info().ok()?.free_bytes)
}

fn of_files(root: &Path) -> Option<Gpu> {
    device::gpu_in(root).map(|(name, Sm(sm))| Gpu::of_card(&name, sm))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn card(sm: u32, unified: bool) -> CardFacts {
        smelt_cuda::recording::card(Sm(sm), 8 << 30, unified)
    }

    #[test]
    fn a_driver_says_what_there_is_and_makers_how_fast_it_is() {
        let board = smelt_fit::DeviceProfile::named("orin-nano-8gb").unwrap().gpu;
        let shared = of_driver(&card(87, true), board.clone());
        assert_eq!((shared.memory_bytes, shared.unified), (8 << 30, true));
        assert!(shared.memory_rate.is_some(), "of the board that is known");
        let own = of_driver(&card(87, false), board);
        assert_eq!((own.unified, own.memory_rate), (false, None), "a card in a board's slot");
    }

    #[test]
    fn no_engine_is_meant_where_none_is_built_or_nothing_is_known() {
        let of = |name: &str, sm| with_engines(Gpu::of_card(name, sm));
        let laptop = of("NVIDIA GeForce RTX 4060 Laptop GPU", 89);
        assert_eq!(laptop.target, None);
        let why = laptop.obstacle.unwrap();
        assert!(why.ends_with("RTX 4060 Laptop GPU, which is sm_89"), "{why}");
        let unknown = of("NVIDIA Z1", 90);
        assert_eq!(unknown.target, None);
        assert_eq!(unknown.obstacle.unwrap(), "how much memory NVIDIA Z1 has is not known");
        assert_eq!(of("NVIDIA H200", 90).target.as_deref(), Some("cuda-sm90"));
    }

    #[test]
    fn a_captured_device_has_the_gpu_that_its_files_name() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(captured(root.path(), None), None);
        let models = root.path().join("proc/driver/nvidia/gpus/0000:01:00.0");
        fs::create_dir_all(&models).unwrap();
        fs::write(models.join("information"), "Model: \t\t NVIDIA H200\n").unwrap();
        let by_files = captured(root.path(), None).unwrap();
        assert_eq!((by_files.sm, by_files.memory_bytes), (90, 143_771 << 20));
        let noted =
            r#"{"gpus": {"cards": [{"name": "NVIDIA H200", "sm": 90, "memory_bytes": 7}]}}"#;
        fs::write(root.path().join("measured.json"), noted).unwrap();
        assert_eq!(captured(root.path(), None).unwrap().memory_bytes, 7);
    }
}
