//! Finds out what is true of this device, as far as a pipeline's stages say that they depend on it.
//!
//! Every fact is one line of text from a file that drivers and packages keep; what is not there is
//! "none".  Nothing is started, so a plan costs no driver calls.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use smelt_plan::Pipeline;
use smelt_plan::device::{ABSENT, FACTS, Facts};
use smelt_plan::pipeline::StageSpec;

/// Files of facts are a few lines; more is not read.
const LINES_MAX: usize = 200;
/// Stages of a warning; more say nothing more.
const STAGES_NAMED_MAX: usize = 3;

/// The facts that stages of `pipeline` declare.
pub(crate) fn facts(pipeline: &Pipeline) -> Facts {
    let declared = pipeline.stages.iter().flat_map(|stage| stage.device.iter().copied());
    let declared: BTreeSet<&str> = declared.collect();
    let wanted = FACTS.into_iter().filter(|fact| declared.contains(fact));
    wanted.map(|fact| (fact, fact_of(fact).unwrap_or_else(|| ABSENT.to_owned()))).collect()
}

fn fact_of(fact: &str) -> Option<String> {
    match fact {
        "arch" => Some(std::env::consts::ARCH.to_owned()),
        "cpu" => cpu(&text("/proc/cpuinfo")),
        "gpu" => gpus(),
        "gpu-driver" => line(&text("/proc/driver/nvidia/version"), "NVRM version:"),
        "cuda" => line(&text("/usr/local/cuda/version.json"), "\"version\" :")
            .or_else(|| link("/usr/local/cuda")),
        "tensorrt" => smelt_doctor::tensorrt(Path::new("/")).or_else(nvinfer),
        "l4t" => text("/etc/nv_tegra_release").lines().next().map(str::to_owned),
        "kernel" => text("/proc/sys/kernel/osrelease").lines().next().map(str::to_owned),
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
    let line = |fact: &str| {
        let names = |stage: &&StageSpec| stage.device.contains(&fact);
        let stages = pipeline.stages.iter().filter(names).map(|stage| stage.name.as_str());
        let stages: Vec<&str> = stages.take(STAGES_NAMED_MAX).collect();
        format!(
            "device = [\"{fact}\"] of {} is \"{ABSENT}\" here: {}",
            stages.join(", "),
            looked_at(fact)
        )
    };
    facts.iter().filter(|(_, value)| *value == ABSENT).map(|(fact, _)| line(fact)).collect()
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
    let listed = fs::read_dir("/proc/driver/nvidia/gpus").into_iter().flatten().flatten();
    let model = |entry: fs::DirEntry| {
        line(&text(&entry.path().join("information").to_string_lossy()), "Model:")
    };
    let mut models: Vec<String> = listed.filter_map(model).collect();
    models.sort();
    if !models.is_empty() {
        return Some(models.join(", "));
    }
    let board = text("/proc/device-tree/model");
    let board = board.trim_matches(['\0', '\n', ' ']);
    (!board.is_empty()).then(|| board.to_owned())
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
    fn only_what_is_declared_is_asked() {
        let text = "smelt = 1\nname = \"d\"\n[stage.a]\nkind = \"command\"\nargv = [\"x\"]\n\
            outputs = [\"o\"]\ndevice = [\"arch\"]\n";
        let pipeline = Pipeline::parse("p.toml", text, &Default::default()).unwrap();
        assert_eq!(facts(&pipeline), [("arch", std::env::consts::ARCH.to_owned())].into());
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
