//! Lists what engines are built for: the words of targets, their SM, and the compiler that makes their kernels.

use crate::Sm;

/// A compiler of kernels, pinned: equal sources make equal bytes only by equal versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Toolkit {
    /// Its version, all of it.
    pub version: &'static str,
    /// What pip installs.
    pub package: &'static str,
    /// The folder of its library in that package.
    pub folder: &'static str,
    /// How its library's name begins.
    pub library: &'static str,
    /// How the name begins of the folder where pip keeps the package's version.
    pub record: &'static str,
}

/// What every driver of JetPack 6 loads.
const CUDA_12: Toolkit = Toolkit {
    version: "12.6.85",
    package: "nvidia-cuda-nvrtc-cu12",
    folder: "nvidia/cuda_nvrtc/lib",
    library: "libnvrtc.so.12",
    record: "nvidia_cuda_nvrtc_cu12-",
};

/// The first that knows Thor, whose drivers are as new.
const CUDA_13: Toolkit = Toolkit {
    version: "13.0.88",
    package: "nvidia-cuda-nvrtc",
    folder: "nvidia/cu13/lib",
    library: "libnvrtc.so.13",
    record: "nvidia_cuda_nvrtc-",
};

/// What an engine is built for: every card with its SM runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CudaTarget {
    /// Jetson Orin.
    Sm87,
    /// Hopper.
    Sm90,
    /// Jetson Thor.
    Sm110,
}

impl CudaTarget {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Sm87, Self::Sm90, Self::Sm110];

    /// The target of that word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|target| target.word() == word)
    }

    /// What cards with this SM run, if engines are built for them.
    pub fn of(sm: Sm) -> Option<Self> {
        Self::ALL.into_iter().find(|target| target.sm() == sm)
    }

    /// Its word in pipelines and engines.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Sm87 => "cuda-sm87",
            Self::Sm90 => "cuda-sm90",
            Self::Sm110 => "cuda-sm110",
        }
    }

    /// The version of the instructions.
    pub const fn sm(self) -> Sm {
        match self {
            Self::Sm87 => Sm(87),
            Self::Sm90 => Sm(90),
            Self::Sm110 => Sm(110),
        }
    }

    /// What the compiler is told: sm_90a has the instructions of Hopper alone (`wgmma`), which no other card runs anyway.
    pub const fn architecture(self) -> &'static str {
        match self {
            Self::Sm87 => "sm_87",
            Self::Sm90 => "sm_90a",
            Self::Sm110 => "sm_110",
        }
    }

    /// Who compiles for it.
    pub const fn toolkit(self) -> Toolkit {
        match self {
            Self::Sm87 | Self::Sm90 => CUDA_12,
            Self::Sm110 => CUDA_13,
        }
    }

    /// The file of its kernels in an engine's directory.
    pub const fn kernels_file(self) -> &'static str {
        match self {
            Self::Sm87 => "kernels.sm87.cubin",
            Self::Sm90 => "kernels.sm90.cubin",
            Self::Sm110 => "kernels.sm110.cubin",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_files_and_architectures_name_the_sm() {
        for target in CudaTarget::ALL {
            let Sm(sm) = target.sm();
            assert_eq!(target.word(), format!("cuda-sm{sm}"));
            assert_eq!(target.kernels_file(), format!("kernels.sm{sm}.cubin"));
            assert!(target.architecture().trim_end_matches('a') == target.sm().to_string());
            assert_eq!(
                (CudaTarget::parse(target.word()), CudaTarget::of(Sm(sm))),
                (Some(target), Some(target))
            );
        }
        assert_eq!((CudaTarget::parse("cpu"), CudaTarget::of(Sm(86))), (None, None));
    }
}
