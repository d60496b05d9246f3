//! Kernels compiled by the pinned NVRTC for every target, without a GPU.
//!
//! Where it is not (`SMELT_NVRTC`, an active Python environment), the tests say so; `cargo xtask ci` gives them one.

use smelt_cuda::nvrtc::{self, CompileError, Source};
use smelt_cuda::{CudaTarget, Sm};

const TEXT: &str = include_str!("data/facts.cu");

/// The compiler for a target, or a word that it is not here.
fn is_here(target: CudaTarget) -> bool {
    let found = nvrtc::find(target);
    if let Err(why) = &found {
        eprintln!("NOT TESTED: {why}");
    }
    found.is_ok()
}

/// Targets whose compiler is here.
pub(super) fn here() -> impl Iterator<Item = CudaTarget> {
    CudaTarget::ALL.into_iter().filter(|&target| is_here(target))
}

fn source(text: &str) -> Source {
    Source { name: "facts.cu".to_owned(), text: text.to_owned(), defines: Vec::new() }
}

/// The kernels that spill nothing.
fn sound() -> String {
    TEXT.split("extern \"C\" __global__ void __launch_bounds__").next().unwrap().to_owned()
}

#[test]
fn cubins_are_for_the_target_and_the_same_each_time() {
    for target in here() {
        let one = nvrtc::compile(&source(&sound()), target, None).unwrap();
        assert_eq!(one.cubin.sm, target.sm());
        assert_eq!(one.cubin.kernels.keys().collect::<Vec<_>>(), ["add", "shared"]);
        assert_eq!(one.cubin.kernels["shared"].shared_bytes, 256);
        assert_eq!(one.version, target.toolkit().version);
        let other = nvrtc::compile(&source(&sound()), target, None).unwrap();
        assert!(one.image == other.image, "{}: other bytes the second time", target.word());
    }
}

#[test]
fn the_old_targets_get_what_their_drivers_load() {
    // The header's version of CUDA 12, in which drivers of JetPack 6 know cubins.
    for target in here().filter(|target| target.sm() < Sm(100)) {
        let made = nvrtc::compile(&source(&sound()), target, None).unwrap();
        assert_eq!(made.image[8], 7, "{}", target.word());
    }
}

#[test]
fn spills_and_errors_fail_with_one_line() {
    for target in here() {
        let architecture = target.architecture();
        let spills = nvrtc::compile(&source(TEXT), target, None).unwrap_err();
        assert!(matches!(spills, CompileError::Slow { .. }), "{spills}");
        let told = spills.to_string();
        let begins = format!("facts.cu for {architecture}: spilling spills ");
        assert!(told.starts_with(&begins) && told.lines().count() == 1, "{told}");
        let wrong = nvrtc::compile(&source("__global__ void a() { b; }"), target, None);
        let told = wrong.unwrap_err().to_string();
        let begins = format!("facts.cu does not compile for {architecture}: facts.cu(1): error");
        assert!(told.starts_with(&begins) && told.lines().count() == 1, "{told}");
    }
}

#[test]
fn what_was_compiled_is_not_compiled_again() {
    let folder = tempfile::tempdir().unwrap();
    for target in here() {
        let text = source(&sound());
        let one = nvrtc::compile(&text, target, Some(folder.path())).unwrap();
        let files = std::fs::read_dir(folder.path()).unwrap().count();
        let other = nvrtc::compile(&text, target, Some(folder.path())).unwrap();
        assert!(one == other);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), files);
        let defines = vec![("more".to_owned(), "less".to_owned())];
        nvrtc::compile(&Source { defines, ..text }, target, Some(folder.path())).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), files + 1);
    }
}
