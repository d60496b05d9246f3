//! Knows what of a tool counts besides its program, and tells its version without starting it.
//!
//! A program that pip installed is a few lines that start its package: what counts is the package's `RECORD`, which holds
//! a SHA-256 of each of its files (PyPA, "Recording installed projects").  A program of the table is a shell around the
//! libraries that it loads: what counts is those.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use smelt_backend::installed;

/// Where packages put libraries for every user.
const LIBRARY_FOLDERS: [&str; 6] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/local/cuda/lib64",
];
/// A table of a package's programs is a few lines; more is not read.
const ENTRY_POINTS_BYTES_MAX: u64 = 1 << 20;

/// A tool of a vendor.
pub(crate) struct VendorTool {
    /// The program.
    name: &'static str,
    /// Where its packages put it, though no `PATH` leads there.
    folder: Option<&'static str>,
    /// The libraries that do its work; the version of the first is its own.
    libraries: &'static [&'static str],
    /// Flags that only some versions know.
    flags: &'static [Flag],
    /// The command that brings it here.
    pub(crate) cure: &'static str,
}

/// A flag, the first version that knows it and the first that does not any more: major and minor numbers.
struct Flag {
    name: &'static str,
    since: Version,
    until: Option<Version>,
}

type Version = (u32, u32);

const TENSORRT: [&str; 3] = ["libnvinfer.so", "libnvinfer_plugin.so", "libnvonnxparser.so"];

const fn since(name: &'static str, version: Version) -> Flag {
    Flag { name, since: version, until: None }
}

const fn until(name: &'static str, version: Version) -> Flag {
    Flag { name, since: (0, 0), until: Some(version) }
}

/// Sources: the file lists of NVIDIA's Debian packages; `sampleOptions.cpp` of TensorRT 8.6 to 11.1; the build guides of TensorRT
/// Edge-LLM and TensorRT-LLM (branch v0.12.0-jetson); llama.cpp's CMake.
const VENDOR_TOOLS: [VendorTool; 6] = [
    VendorTool {
        name: "trtexec",
        folder: Some("/usr/src/tensorrt/bin"),
        libraries: &TENSORRT,
        // Networks are strongly typed from 11 on, so nobody asks for a type.
        flags: &[
            until("--best", (11, 0)),
            until("--calib", (11, 0)),
            until("--fp16", (11, 0)),
            until("--fp8", (11, 0)),
            until("--int4", (11, 0)),
            until("--int8", (11, 0)),
            Flag { name: "--bf16", since: (9, 0), until: Some((11, 0)) },
            since("--skipInference", (8, 6)),
            since("--builderOptimizationLevel", (8, 6)),
            since("--maxAuxStreams", (8, 6)),
            since("--stronglyTyped", (9, 0)),
            since("--remoteAutoTuningConfig", (10, 13)),
            since("--cpuOnly", (10, 15)),
        ],
        cure: "sudo apt update && sudo apt install libnvinfer-bin",
    },
    VendorTool {
        name: "llm_build",
        folder: None,
        libraries: &TENSORRT,
        flags: &[],
        cure: "git clone --recursive https://github.com/NVIDIA/TensorRT-Edge-LLM && cd TensorRT-Edge-LLM && \
               cmake -B build -DTRT_PACKAGE_DIR=/usr && cmake --build build && export PATH=$PWD/build/examples/llm:$PATH",
    },
    VendorTool {
        name: "visual_build",
        folder: None,
        libraries: &TENSORRT,
        flags: &[],
        cure: "git clone --recursive https://github.com/NVIDIA/TensorRT-Edge-LLM && cd TensorRT-Edge-LLM && \
               cmake -B build -DTRT_PACKAGE_DIR=/usr && cmake --build build && export PATH=$PWD/build/examples/multimodal:$PATH",
    },
    VendorTool {
        name: "tensorrt-edgellm-export",
        folder: None,
        libraries: &[],
        flags: &[],
        cure: "python3.12 -m pip install 'tensorrt-edgellm[export]'",
    },
    VendorTool {
        name: "trtllm-build",
        folder: None,
        libraries: &TENSORRT,
        flags: &[],
        cure: "git clone --branch v0.12.0-jetson https://github.com/NVIDIA/TensorRT-LLM && cd TensorRT-LLM && \
               python3 scripts/build_wheel.py --clean --cuda_architectures 87 && python3 -m pip install build/tensorrt_llm-*.whl",
    },
    VendorTool {
        name: "llama-quantize",
        folder: None,
        libraries: &["libllama.so", "libggml.so", "libggml-base.so", "libggml-cpu.so"],
        flags: &[],
        cure: "git clone https://github.com/ggml-org/llama.cpp && cd llama.cpp && cmake -B build && \
               cmake --build build --target llama-quantize && export PATH=$PWD/build/bin:$PATH",
    },
];

impl VendorTool {
    /// The row of a program, by its name or its path.
    pub(crate) fn of(program: &str) -> Option<&'static Self> {
        let name = Path::new(program).file_name()?.to_str()?;
        VENDOR_TOOLS.iter().find(|tool| tool.name == name)
    }

    /// Where its packages put it.
    pub(crate) fn folder(&self) -> Option<&'static Path> {
        self.folder.map(Path::new)
    }

    /// Why a version of it does not take an argument, to go on from its name.
    pub(crate) fn refuses(&self, argument: &str, version: &str) -> Option<String> {
        let name = argument.split('=').next()?;
        let here = numbers(version)?;
        let flag = self.flags.iter().find(|flag| flag.name == name)?;
        let words = |(major, minor): Version| format!("{major}.{minor}");
        match flag.until {
            _ if here < flag.since => {
                Some(format!("has no {name}, which {} brought", words(flag.since)))
            }
            Some(until) if here >= until => {
                Some(format!("has no {name}, which {} took away", words(until)))
            }
            _ => None,
        }
    }
}

/// Major and minor number of `10.3.0.30`.
pub(crate) fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next().flatten().unwrap_or(0)))
}

/// What of a tool counts besides its program.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    /// What each is called, and its file.
    pub(crate) files: Vec<(String, PathBuf)>,
    /// The version that they are of.
    pub(crate) version: Option<String>,
}

impl Parts {
    /// Of a program; `libraries` is what the stage's `LD_LIBRARY_PATH` holds.
    pub(crate) fn of(program: &Path, libraries: Option<&str>) -> Self {
        let Some(name) = program.file_name().and_then(|name| name.to_str()) else {
            return Self::default();
        };
        let mut parts = package(program, name).unwrap_or_default();
        let names = VendorTool::of(name).map_or(&[][..], |tool| tool.libraries);
        let folders = folders(program, libraries);
        for name in names {
            let library = folders.iter().find_map(|folder| installed::library(folder, name));
            let Some(library) = library.and_then(|library| library.canonicalize().ok()) else {
                continue;
            };
            parts.version = parts.version.or_else(|| version_of_library(&library, name));
            parts.files.push(((*name).to_owned(), library));
        }
        parts
    }
}

/// Where a program's libraries are looked for: where it is told, beside it, where all are.
fn folders(program: &Path, libraries: Option<&str>) -> Vec<PathBuf> {
    let variable = |name: &str| match name {
        "LD_LIBRARY_PATH" => libraries.map(OsString::from),
        _ => None,
    };
    let mut folders = installed::listed(&variable);
    let real = program.canonicalize().unwrap_or_else(|_| program.to_owned());
    if let Some(beside) = real.parent() {
        folders.extend([beside.to_owned(), beside.join("../lib")]);
    }
    folders.extend(LIBRARY_FOLDERS.map(PathBuf::from));
    folders.retain(|folder| folder.is_absolute());
    folders
}

/// `libnvinfer.so.10.3.0` is 10.3.0.
fn version_of_library(library: &Path, name: &str) -> Option<String> {
    let version = library.file_name()?.to_str()?.strip_prefix(name)?.strip_prefix('.')?;
    Some(version.to_owned())
}

/// The Python package of a program in the `bin` of an environment, by the table of programs in its metadata.
fn package(program: &Path, name: &str) -> Option<Parts> {
    let bin = program.parent().filter(|folder| folder.ends_with("bin"))?;
    let places = installed::in_pythons(bin.parent()?, "");
    places.into_iter().find_map(|place| {
        let all = installed::entries(&place).into_iter();
        let mut all = all.filter_map(|entry| {
            let (package, version) = entry.strip_suffix(".dist-info")?.split_once('-')?;
            Some((package.to_owned(), version.to_owned(), place.join(&entry)))
        });
        let (package, version, folder) = all.find(|(_, _, folder)| starts(folder, name))?;
        let record = folder.join("RECORD");
        let files = record.is_file().then_some((package, record)).into_iter().collect();
        Some(Parts { files, version: Some(version) })
    })
}

/// Whether a package's table of programs has one of this name.
fn starts(metadata: &Path, program: &str) -> bool {
    let table = metadata.join("entry_points.txt");
    let is_small = fs::metadata(&table).is_ok_and(|meta| meta.len() <= ENTRY_POINTS_BYTES_MAX);
    let text =
        if is_small { fs::read_to_string(&table).unwrap_or_default() } else { String::new() };
    let mut lines = text.lines().filter_map(|line| line.split_once('='));
    lines.any(|(name, _)| name.trim() == program)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn put(root: &Path, name: &str, text: &str) -> PathBuf {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn a_program_that_pip_installed_counts_with_its_package() {
        let root = tempfile::tempdir().unwrap();
        let program = put(root.path(), "bin/trtllm-build", "#!/usr/bin/python3\n");
        let place = "lib/python3.10/site-packages";
        let table = "[console_scripts]\ntrtllm-build = tensorrt_llm.commands.build:main\n";
        let file = |name: &str| format!("{place}/{name}");
        put(root.path(), &file("other-1.dist-info/entry_points.txt"), "[x]\na = b:c\n");
        put(root.path(), &file("tensorrt_llm-0.12.0.dist-info/entry_points.txt"), table);
        let record = put(root.path(), &file("tensorrt_llm-0.12.0.dist-info/RECORD"), "a,b,1\n");
        let parts = package(&program, "trtllm-build").unwrap();
        assert_eq!(parts.version.as_deref(), Some("0.12.0"));
        assert_eq!(parts.files, [("tensorrt_llm".to_owned(), record)]);
        assert_eq!(package(&program, "trtllm"), None, "no beginning of a name");
        assert_eq!(package(&root.path().join("trtllm-build"), "trtllm-build"), None);
    }

    #[test]
    fn a_tool_of_the_table_counts_with_its_libraries_wherever_they_are_told_to_be() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let program = put(&root, "bin/trtexec", "");
        let versions = |folder: &str, version: &str| {
            let library = put(&root, &format!("{folder}/libnvinfer.so.{version}"), "");
            symlink(&library, root.join(folder).join("libnvinfer.so.10")).unwrap();
            library
        };
        let beside = versions("lib", "10.3.0");
        let parts = Parts::of(&program, None);
        assert_eq!(parts.version.as_deref(), Some("10.3.0"));
        assert_eq!(parts.files[0], ("libnvinfer.so".to_owned(), beside));
        let told = versions("told", "10.16.1");
        let parts = Parts::of(&program, root.join("told").to_str());
        assert_eq!((parts.version.as_deref(), &parts.files[0].1), (Some("10.16.1"), &told));
        assert_eq!(Parts::of(&put(&root, "bin/other", ""), None), Parts::default());
    }

    #[test]
    fn flags_are_those_of_a_version() {
        let check = |argument: &str, version: &str, why: Option<&str>| {
            let tool = VendorTool::of("/opt/bin/trtexec").unwrap();
            assert_eq!(tool.refuses(argument, version).as_deref(), why, "{argument} {version}");
        };
        check("--fp16", "10.3.0", None);
        check("--fp16", "11.4.0.106", Some("has no --fp16, which 11.0 took away"));
        check("--cpuOnly=1", "10.3.0", Some("has no --cpuOnly, which 10.15 brought"));
        check("--bf16", "8.6.1", Some("has no --bf16, which 9.0 brought"));
        check("--bf16", "10.3.0", None);
        check("--bf16", "11.1", Some("has no --bf16, which 11.0 took away"));
        check("--cpuOnly", "11.0", None);
        check("--onnx=fp16", "11.0", None);
        check("--fp16", "of nobody", None);
        assert!(VendorTool::of("trtexec2").is_none());
    }
}
