//! Finds out what is true of this device, as far as a pipeline's stages, their back ends or engines depend on it.
//!
//! Every fact is one line of text from a file that drivers and packages keep; what is not there is
//! "none".  Nothing is started, so a plan costs no driver calls.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;
use smelt_backend::{
    Backends, Decoder, Device, Graph, Graphs, KvOptions, MemoryPlace, MemoryReport, OpenError,
    Opens, Row, only_graph,
};
use smelt_cuda::decoder::{CudaDecoder, DescribedDecoder, KIND};
use smelt_cuda::graph::CudaGraph;
use smelt_cuda::{CudaTarget, NoCard, Sm};
use smelt_engine::graph;
use smelt_plan::Pipeline;
use smelt_plan::device::{ABSENT, FACTS, Facts};
use smelt_plan::kind::BACKEND;
use smelt_plan::kind::engine_build::GraphBackend;
use smelt_plan::pipeline::StageSpec;
use smelt_watch::Machine;

use crate::cards::{self, DeviceChoice};

/// The back ends, on this device.
pub(crate) const BACKENDS: Backends = Backends::new(&ROWS).on(this);

/// The same for stages that look at engines, which may be for another device: those for cards run nothing.
pub(crate) const LOOKING: Backends = Backends::new(&LOOKING_ROWS).on(this).looking();

/// Engines of three kinds for each target of cards, and those for processors.
const COUNT: usize = 3 * CudaTarget::ALL.len() + smelt_engine::ROWS.len();

const ROWS: [Row; COUNT] = rows(Opens::Decoder(open_on_card), Opens::Graphs(open_graphs_on_card));
const LOOKING_ROWS: [Row; COUNT] =
    rows(Opens::Decoder(describe), Opens::Graphs(CudaGraph::describe_all));

/// Engines for cards before those for processors: of two that run the first is taken.
const fn rows(decoder: Opens, graphs: Opens) -> [Row; COUNT] {
    let mut rows = [on_card(KIND, CudaTarget::Sm87, decoder); COUNT];
    let mut at = 0;
    while at < CudaTarget::ALL.len() {
        let target = CudaTarget::ALL[at];
        rows[3 * at] = on_card(KIND, target, decoder);
        rows[3 * at + 1] = on_card(graph::KIND, target, graphs);
        rows[3 * at + 2] = on_card(graph::GRIDS_KIND, target, graphs);
        at += 1;
    }
    let mut own = 0;
    while own < smelt_engine::ROWS.len() {
        rows[3 * at + own] = smelt_engine::ROWS[own];
        own += 1;
    }
    rows
}

/// Engines for cards: which one runs them is in their target.
const fn on_card(kind: &'static str, target: CudaTarget, opens: Opens) -> Row {
    Row {
        kind,
        target: target.word(),
        backend: "native",
        facts: &[],
        place: place_of_card,
        memory: of_card,
        opens,
    }
}

fn open_on_card(dir: &Path, kv: KvOptions) -> Result<Box<dyn Decoder>, OpenError> {
    let card = cards::card().map_err(|why| OpenError::Library(why.to_string()))?;
    open_on(card.ordinal, dir, kv)
}

/// Opens the decoder in `dir` on the card of a number, in a context of its own.
pub(crate) fn open_on(
    ordinal: u32,
    dir: &Path,
    kv: KvOptions,
) -> Result<Box<dyn Decoder>, OpenError> {
    let missing = |why: NoCard| OpenError::Library(format!("card {ordinal}: {why}"));
    let driver = smelt_cuda::open(ordinal).map_err(missing)?;
    Ok(Box::new(CudaDecoder::open(dir, &driver, kv)?))
}

/// Opens the only graph in `dir` on the card of a number, in a context of its own.
pub(crate) fn open_graph_on(ordinal: u32, dir: &Path) -> Result<Box<dyn Graph>, OpenError> {
    let missing = |why: NoCard| OpenError::Library(format!("card {ordinal}: {why}"));
    let driver = smelt_cuda::open(ordinal).map_err(missing)?;
    only_graph(dir, CudaGraph::open_all(dir, &driver)?, |graph, purpose, problem| {
        graph.unfit(purpose, problem)
    })
}

fn open_graphs_on_card(dir: &Path) -> Result<Graphs, OpenError> {
    let missing = |why: NoCard| OpenError::Library(why.to_string());
    let card = cards::card().map_err(missing)?;
    CudaGraph::open_all(dir, &smelt_cuda::open(card.ordinal).map_err(missing)?)
}

/// Whose memory the card uses: the driver is asked once, and no card is opened for it.
fn place_of_card() -> MemoryPlace {
    match cards::card() {
        Ok(card) if card.unified => MemoryPlace::Unified,
        Ok(_) => MemoryPlace::Device,
        Err(_) => MemoryPlace::Host,
    }
}

/// What the driver says of the card's memory; where the card uses the host's, others measure that.
fn of_card() -> MemoryReport {
    let Ok(card) = cards::card() else { return MemoryReport::HOST };
    if card.unified {
        let own_bytes = smelt_cuda::held_bytes(card.ordinal);
        return MemoryReport { place: MemoryPlace::Unified, own_bytes, ..MemoryReport::HOST };
    }
    let info = smelt_cuda::open(card.ordinal).ok().and_then(|driver| driver.memory_info().ok());
    MemoryReport {
        place: MemoryPlace::Device,
        total_bytes: Some(card.memory_bytes),
        free_bytes: info.map(|info| info.free_bytes),
        largest_bytes: None,
        own_bytes: smelt_cuda::held_bytes(card.ordinal),
        locked_bytes: smelt_cuda::locked_bytes(),
    }
}

fn describe(dir: &Path, kv: KvOptions) -> Result<Box<dyn Decoder>, OpenError> {
    Ok(Box::new(DescribedDecoder::open(dir, kv)?))
}

/// Files of facts are a few lines; more is not read.
const LINES_MAX: usize = 200;
/// Stages of a warning; more say nothing more.
const STAGES_NAMED_MAX: usize = 3;

/// The facts that stages of `pipeline` declare.
pub(crate) fn facts(pipeline: &Pipeline) -> Facts {
    let named = |stage: &StageSpec| {
        stage.device.iter().chain(stage.machine.keys()).copied().collect::<Vec<_>>()
    };
    let declared = pipeline.stages.iter().flat_map(named);
    let declared: BTreeSet<&str> = declared.collect();
    let wanted = FACTS.into_iter().filter(|fact| declared.contains(fact));
    wanted.map(|fact| (fact, value(fact))).collect()
}

/// This device, as far as engines of some back end depend on it.
fn this() -> Device {
    let facts = BACKENDS.facts().into_iter();
    let mut facts: BTreeMap<String, String> =
        facts.map(|fact| (fact.to_owned(), value(fact))).collect();
    let wanted = cards::wanted();
    let card = if wanted == DeviceChoice::Processors { None } else { cards::card().ok() };
    let targets = cards::targets(wanted, card.as_ref());
    if let Some(card) = card {
        let Sm(sm) = card.sm;
        facts.insert("sm".to_owned(), sm.to_string());
        return Device { targets, facts, memory_bytes: Some(card.memory_bytes) };
    }
    // What other GPUs have only their driver tells.
    let memory = has_unified_memory().then(|| Machine::read(Path::new("/")).mem_total_bytes);
    Device { targets, facts, memory_bytes: memory.flatten() }
}

/// Whether the GPU is a part of the chip, and has the machine's memory.
pub(crate) fn has_unified_memory() -> bool {
    sm_of_chip(&chip(Path::new("/"))).is_some()
}

/// The facts about the device that engines of a back end depend on, whether smelt runs them or only has them built.
pub(crate) fn facts_of(backend: &str) -> BTreeSet<&'static str> {
    // TensorRT chooses kernels by the GPU and what drives it.
    const OF_TENSORRT: [&str; 5] = ["gpu-driver", "cuda", "tensorrt", "l4t", "sm"];
    match backend == GraphBackend::TensorRt.word() {
        true => OF_TENSORRT.into(),
        false => BACKENDS.facts_of(backend),
    }
}

/// The SM of the GPU that is here, by what files say: no driver is asked.
pub(crate) fn seen() -> Option<Sm> {
    gpu_in(Path::new("/")).map(|(_, sm)| sm)
}

/// The GPU of the device whose files are at `root`, by its name and its SM.
pub(crate) fn gpu_in(root: &Path) -> Option<(String, Sm)> {
    let models = models(root);
    let sm = sm_of_chip(&chip(root)).or_else(|| sm_of_models(&models))?;
    let name = models.into_iter().next().unwrap_or_else(|| "the board's GPU".to_owned());
    Some((name, Sm(sm.parse().ok()?)))
}

/// What a fact is worth here.
fn value(fact: &str) -> String {
    fact_of(fact).unwrap_or_else(|| ABSENT.to_owned())
}

/// A fact, where the device has it.
pub(crate) fn fact_of(fact: &str) -> Option<String> {
    let root = Path::new("/");
    match fact {
        "arch" => Some(std::env::consts::ARCH.to_owned()),
        "cpu" => cpu(&text("/proc/cpuinfo")),
        "gpu" => gpus(),
        "gpu-driver" => line(&text("/proc/driver/nvidia/version"), "NVRM version:"),
        "cuda" => toolkit("cuda", &text("/usr/local/cuda/version.json"))
            .or_else(|| link("/usr/local/cuda")),
        "tensorrt" => smelt_doctor::tensorrt(root).or_else(nvinfer),
        "l4t" => text("/etc/nv_tegra_release").lines().next().map(str::to_owned),
        "kernel" => text("/proc/sys/kernel/osrelease").lines().next().map(str::to_owned),
        "sm" => sm_of_chip(&chip(root)).or_else(|| sm_of_models(&models(root))),
        "nvcc" => toolkit("cuda_nvcc", &text("/usr/local/cuda/version.json")),
        "soc" => soc(&chip(root)),
        "power-mode" => smelt_doctor::power_mode(root),
        _ => None,
    }
}

/// The library of a TensorRT that no package brought.
fn nvinfer() -> Option<String> {
    let arches = ["x86_64-linux-gnu", "aarch64-linux-gnu"];
    arches.iter().find_map(|arch| link(&format!("/usr/lib/{arch}/libnvinfer.so")))
}

/// A line for each fact that stages declare and this device does not have: most often a driver or a
/// package is missing, and what is built is then shared with every device that lacks it too.
pub(crate) fn absent(pipeline: &Pipeline, facts: &Facts) -> Vec<String> {
    let line = |fact: &&'static str| {
        let names = |stage: &&StageSpec| {
            stage.device.contains(fact) && !is_implied(stage, fact) && !stage.is_elsewhere(facts)
        };
        let stages = pipeline.stages.iter().filter(names).map(|stage| stage.name.as_str());
        let stages: Vec<&str> = stages.take(STAGES_NAMED_MAX).collect();
        (!stages.is_empty()).then(|| {
            format!(
                "device = [\"{fact}\"] of {} is \"{ABSENT}\" here: {}",
                stages.join(", "),
                looked_at(fact)
            )
        })
    };
    let none = facts.iter().filter(|(_, value)| *value == ABSENT).map(|(fact, _)| fact);
    none.filter_map(line).collect()
}

/// Whether a stage depends on a fact by its back end: boards have no driver's file, and other machines no release of L4T, so
/// that one of these is absent says nothing.
pub(crate) fn is_implied(stage: &StageSpec, fact: &str) -> bool {
    let backend = stage.params.get(BACKEND).and_then(Value::as_str);
    backend.is_some_and(|backend| facts_of(backend).contains(fact))
}

/// Why a fact has this value, where it has none.
pub(crate) fn reason_absent(fact: &str, value: &str) -> Option<&'static str> {
    (value == ABSENT).then(|| looked_at(fact))
}

/// Where a fact was looked for.
fn looked_at(fact: &str) -> &'static str {
    match fact {
        "cpu" => "/proc/cpuinfo names no processor",
        "gpu" => "there is no /proc/driver/nvidia/gpus, and no board's name in the device tree",
        "gpu-driver" => "there is no /proc/driver/nvidia/version",
        "cuda" => "there is no /usr/local/cuda",
        "tensorrt" => "dpkg knows no libnvinfer, and there is no libnvinfer.so",
        "l4t" => "there is no /etc/nv_tegra_release",
        "sm" => "there is no /proc/driver/nvidia/gpus, and the device tree names no Tegra",
        "nvcc" => "there is no /usr/local/cuda/version.json that names cuda_nvcc",
        "soc" => "there is no device tree, as on a PC",
        "power-mode" => "there is no /etc/nvpmodel.conf that names the mode",
        _ => "the kernel does not say",
    }
}

/// The model's name where the kernel says one, else the parts of an ARM core's identity.
fn cpu(cpuinfo: &str) -> Option<String> {
    line(cpuinfo, "model name").or_else(|| {
        let parts = ["CPU implementer", "CPU part", "CPU variant"];
        let found: Option<Vec<String>> = parts.iter().map(|name| line(cpuinfo, name)).collect();
        Some(found?.join(" "))
    })
}

/// The models of discrete GPUs by the NVIDIA driver's files, else the board, which has its GPU built
/// in.
fn gpus() -> Option<String> {
    let models = models(Path::new("/"));
    if !models.is_empty() {
        return Some(models.join(", "));
    }
    let board = text("/proc/device-tree/model");
    let board = board.trim_matches(['\0', '\n', ' ']);
    (!board.is_empty()).then(|| board.to_owned())
}

/// The models of discrete GPUs, in the order of their names.
fn models(root: &Path) -> Vec<String> {
    let listed = fs::read_dir(root.join("proc/driver/nvidia/gpus")).into_iter().flatten().flatten();
    let model = |entry: fs::DirEntry| {
        line(&text(&entry.path().join("information").to_string_lossy()), "Model:")
    };
    let mut models: Vec<String> = listed.filter_map(model).collect();
    models.sort();
    models
}

/// What the kernel says of a board's chip.
fn chip(root: &Path) -> String {
    fs::read_to_string(root.join("proc/device-tree/compatible")).unwrap_or_default()
}

/// The compute capability of the GPU in each Tegra.
const CHIPS: [(&str, &str); 5] = [
    ("nvidia,tegra210", "53"),
    ("nvidia,tegra186", "62"),
    ("nvidia,tegra194", "72"),
    ("nvidia,tegra234", "87"),
    ("nvidia,tegra264", "110"),
];

/// Compute capabilities, each with words of which one is in the names of its models.
const MODELS: [(&str, &[&str]); 10] = [
    ("70", &["V100"]),
    ("75", &["T4", "2060", "2070", "2080"]),
    ("80", &["A100", "A800", "A30"]),
    (
        "86",
        &[
            "A2", "A10", "A10G", "A16", "A40", "A4000", "A5000", "A6000", "3060", "3070", "3080",
            "3090",
        ],
    ),
    ("89", &["L4", "L40", "L40S", "4060", "4070", "4080", "4090"]),
    ("90", &["H20", "H100", "H200", "H800", "GH200"]),
    ("100", &["B100", "B200", "GB200"]),
    ("103", &["B300", "GB300"]),
    ("120", &["5060", "5070", "5080", "5090"]),
    ("121", &["GB10"]),
];

/// The compute capability of a board's GPU, as compilers write it: `87`.
fn sm_of_chip(compatible: &str) -> Option<String> {
    let chip = |name: &str| CHIPS.into_iter().find(|(chip, _)| *chip == name);
    compatible.split('\0').find_map(chip).map(|(_, sm)| sm.to_owned())
}

/// The chip of a board: its device tree lists the board's own names first, and the chip last.
fn soc(compatible: &str) -> Option<String> {
    let mut names = compatible.split(['\0', '\n']).filter(|name| !name.is_empty());
    names.next_back().map(str::to_owned)
}

/// The compute capabilities of discrete GPUs.  A model that the table lacks stands for its own: then nothing is shared with
/// another model, and nothing wrong is.
fn sm_of_models(models: &[String]) -> Option<String> {
    let sm = |model: &String| {
        let mut words = model.split([' ', '-']);
        let of = |word: &str| MODELS.into_iter().find(|(_, names)| names.contains(&word));
        words.find_map(of).map_or_else(|| format!("that of {model}"), |(sm, _)| sm.to_owned())
    };
    let all: BTreeSet<String> = models.iter().map(sm).collect();
    (!all.is_empty()).then(|| all.into_iter().collect::<Vec<_>>().join(", "))
}

/// The version of a part of a CUDA toolkit, as that writes it down.
fn toolkit(part: &str, version_file: &str) -> Option<String> {
    let parts: Value = serde_json::from_str(version_file).ok()?;
    parts[part]["version"].as_str().map(str::to_owned)
}

/// What follows `name` on the first line that begins with it, without `:` and quotes.
fn line(text: &str, name: &str) -> Option<String> {
    let mut lines = text.lines().take(LINES_MAX).map(str::trim_start);
    let rest = lines.find_map(|line| line.strip_prefix(name))?;
    let value = rest.trim_matches([':', ' ', '\t', '"', ',']);
    (!value.is_empty()).then(|| value.to_owned())
}

/// Where a link leads: libraries and toolkits carry their version in the name.
fn link(path: &str) -> Option<String> {
    let file = fs::canonicalize(path).ok()?;
    Some(file.file_name()?.to_string_lossy().into_owned())
}

fn text(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use smelt_plan::kind::words::EngineTarget;

    use super::*;

    #[test]
    fn a_processor_has_a_name_or_parts() {
        let intel = "processor\t: 0\nmodel name\t: AMD EPYC 7B13\n";
        assert_eq!(cpu(intel).as_deref(), Some("AMD EPYC 7B13"));
        let arm = "CPU implementer\t: 0x41\nCPU variant\t: 0x0\nCPU part\t: 0xd42\n";
        assert_eq!(cpu(arm).as_deref(), Some("0x41 0xd42 0x0"));
        assert_eq!(cpu(""), None);
    }

    #[test]
    fn versions_are_found_in_files() {
        let cuda = "{\n   \"cuda\" : {\n      \"version\" : \"12.6.11\"\n";
        assert_eq!(line(cuda, "\"version\" :").as_deref(), Some("12.6.11"));
    }

    #[test]
    fn a_gpu_has_a_compute_capability_by_its_chip_or_its_model() {
        let orin = "nvidia,p3768-0000+p3767-0005\0nvidia,tegra234\0";
        assert_eq!(sm_of_chip(orin).as_deref(), Some("87"));
        assert_eq!(sm_of_chip("raspberrypi,5-model-b\0brcm,bcm2712\0"), None);
        let of = |models: &[&str]| {
            sm_of_models(&models.iter().map(|model| (*model).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(of(&["NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"]).as_deref(), Some("90"));
        assert_eq!(of(&["NVIDIA A100-SXM4-40GB"]).as_deref(), Some("80"));
        assert_eq!(of(&["NVIDIA GeForce RTX 4090", "Tesla T4"]).as_deref(), Some("75, 89"));
        assert_eq!(of(&["NVIDIA Z1"]).as_deref(), Some("that of NVIDIA Z1"));
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn no_two_compute_capabilities_share_a_model() {
        let words: Vec<&str> = MODELS.iter().flat_map(|(_, words)| *words).copied().collect();
        let once: BTreeSet<&str> = words.iter().copied().collect();
        assert_eq!(once.len(), words.len());
    }

    #[test]
    fn a_device_tree_names_the_chip_last() {
        let orin = "nvidia,p3768-0000+p3767-0005-super\0nvidia,p3767-0005\0nvidia,tegra234\0";
        assert_eq!(soc(orin).as_deref(), Some("nvidia,tegra234"));
        assert_eq!(soc("radxa,rock-5b\0rockchip,rk3588\0").as_deref(), Some("rockchip,rk3588"));
        assert_eq!((soc(""), soc("\0")), (None, None));
    }

    #[test]
    fn the_compiler_is_a_part_of_the_toolkit() {
        let parts = r#"{"cuda": {"version": "12.6.11"}, "cuda_nvcc": {"version": "12.6.68"}}"#;
        assert_eq!(toolkit("cuda_nvcc", parts).as_deref(), Some("12.6.68"));
        assert_eq!((toolkit("cuda_nvcc", "{}"), toolkit("cuda_nvcc", "")), (None, None));
    }

    #[test]
    fn back_ends_depend_on_facts_that_are_known_and_those_of_processors_on_none() {
        assert!(BACKENDS.facts().iter().all(|fact| FACTS.contains(fact)));
        for backend in ["native", "onnxruntime"] {
            assert!(BACKENDS.facts_of(backend).is_empty(), "{backend}: its keys would be others");
        }
        let here = this();
        assert!(BACKENDS.facts().iter().all(|fact| here.facts.contains_key(*fact)));
        assert_eq!(here.targets.last().map(String::as_str), Some(cards::PROCESSORS));
    }

    #[test]
    fn keys_name_the_targets_the_compilers_and_the_layout_that_engines_are_made_with() {
        let layout = smelt_cuda::decoder::LAYOUT.to_string();
        for target in CudaTarget::ALL {
            let word = |known: &&EngineTarget| known.word() == target.word();
            let known = EngineTarget::ALL.iter().find(word).unwrap();
            let compiler = format!("nvrtc {}", target.toolkit().version);
            let expect = [("compiler", compiler.as_str()), ("layout", layout.as_str())];
            assert_eq!(known.made_with(), expect, "{}", target.word());
        }
        assert_eq!(EngineTarget::ALL.len(), CudaTarget::ALL.len() + 1, "and the processors'");
    }

    #[test]
    fn only_what_is_declared_is_asked() {
        let text = "smelt = 1\nname = \"d\"\n[stage.a]\nkind = \"command\"\nargv = [\"x\"]\n\
            outputs = [\"o\"]\ndevice = [\"arch\"]\n";
        let pipeline = Pipeline::parse("p.toml", text, &Default::default()).unwrap();
        assert_eq!(facts(&pipeline), [("arch", std::env::consts::ARCH.to_owned())].into());
    }

    #[test]
    fn a_toolkits_version_is_read_however_its_file_is_written() {
        let file =
            r#"{ "cuda" : { "name" : "CUDA SDK", "version" : "12.6.68" }, "cuda_cccl" : {} }"#;
        assert_eq!(toolkit("cuda", file).as_deref(), Some("12.6.68"));
        assert_eq!(
            toolkit("cuda", &file.replace(',', ",\n").replace('{', "{\n")).as_deref(),
            Some("12.6.68")
        );
        assert_eq!(toolkit("cuda", "CUDA Version 10.2.300"), None);
    }

    #[test]
    fn what_is_not_here_is_told_with_who_asks() {
        let text = "smelt = 1\nname = \"d\"\n[stage.a]\nkind = \"command\"\nargv = [\"x\"]\n\
            outputs = [\"o\"]\ndevice = [\"arch\", \"l4t\"]\n";
        let pipeline = Pipeline::parse("p.toml", text, &Default::default()).unwrap();
        let facts = [("arch", "x".to_owned()), ("l4t", ABSENT.to_owned())].into();
        let lines = absent(&pipeline, &facts);
        let expect = "device = [\"l4t\"] of a is \"none\" here: there is no /etc/nv_tegra_release";
        assert_eq!(lines, [expect]);
    }
}
