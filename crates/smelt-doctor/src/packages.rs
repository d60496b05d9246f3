//! Checks the versions of JetPack, CUDA and TensorRT, and of the kernel beside the one that runs.
//!
//! They are packages of dpkg's data base, `/var/lib/dpkg/status`: paragraphs of `Name: value` lines.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::finding::{Finding, Fix, Severity};
use crate::release::Board;
use crate::tree::Tree;

/// Which of all packages are of interest.
const WANTED: [&str; 5] =
    ["nvidia-jetpack", "nvidia-l4t-core", "nvidia-l4t-kernel", "libnvinfer8", "libnvinfer10"];
/// The runtime of each CUDA that is installed, as `cuda-cudart-12-6`.
const CUDA: &str = "cuda-cudart-";

/// What a release of Jetson Linux comes with: CUDA and TensorRT.  Source: the release notes of
/// JetPack 6.0, 6.1 to 6.2.2, 7.0 and 7.1.
const COMES_WITH: [([u32; 2], &str, &str); 5] = [
    ([36, 3], "12.2", "8.6"),
    ([36, 4], "12.6", "10.3"),
    ([36, 5], "12.6", "10.3"),
    ([38, 2], "13.0", "10.13"),
    ([38, 4], "13.0", "10.13"),
];

/// Installed packages of interest, and their versions.
#[derive(Debug, Clone, Default)]
pub(crate) struct Packages {
    versions: BTreeMap<String, String>,
    /// By `/usr/local/cuda/version.json`, which toolkits of any origin have.
    toolkit: Option<String>,
}

impl Packages {
    pub(crate) fn read(tree: &Tree) -> Self {
        let status = tree.long_text("var/lib/dpkg/status").unwrap_or_default();
        let toolkit = tree.text("usr/local/cuda/version.json").and_then(|text| {
            let json: Value = serde_json::from_str(&text).ok()?;
            json["cuda"]["version"].as_str().map(str::to_owned)
        });
        Self { toolkit, ..Self::parse(&status) }
    }

    /// Takes dpkg's data base apart.
    pub(crate) fn parse(status: &str) -> Self {
        let installed = status.split("\n\n").filter_map(package);
        let versions = installed.map(|(name, version)| (name.to_owned(), version.to_owned()));
        Self { versions: versions.collect(), toolkit: None }
    }

    pub(crate) fn version(&self, name: &str) -> Option<&str> {
        self.versions.get(name).map(String::as_str)
    }

    /// CUDA's version and where that is seen.
    fn cuda(&self) -> Option<(String, String)> {
        if let Some(version) = &self.toolkit {
            return Some((version.clone(), format!("/usr/local/cuda/version.json: {version}")));
        }
        let runtimes = self.versions.iter().filter(|(name, _)| name.starts_with(CUDA));
        let (name, version) = runtimes.max_by_key(|(_, version)| numbers(version))?;
        Some((version.clone(), format!("package {name}: {version}")))
    }

    pub(crate) fn tensorrt(&self) -> Option<(String, String)> {
        ["libnvinfer10", "libnvinfer8"].iter().find_map(|name| {
            let version = self.version(name)?;
            Some((version.to_owned(), format!("package {name}: {version}")))
        })
    }
}

/// A paragraph's package, if it is installed and of interest.
fn package(paragraph: &str) -> Option<(&str, &str)> {
    let field = |name: &str| {
        let lines = paragraph.lines();
        lines.filter_map(|line| line.split_once(": ")).find(|(key, _)| *key == name)
    };
    let name = field("Package")?.1;
    let is_runtime = name.strip_prefix(CUDA).is_some_and(|rest| !rest.starts_with("dev"));
    if !WANTED.contains(&name) && !is_runtime {
        return None;
    }
    let status = field("Status")?.1;
    status.ends_with(" installed").then_some((name, field("Version")?.1))
}

/// `10.3.0.30-1+cuda12.5` is 10, 3, 0, 30.
fn numbers(version: &str) -> Vec<u64> {
    let upstream = version.split(['-', '+']).next().unwrap_or_default();
    upstream.split('.').map_while(|part| part.parse().ok()).collect()
}

fn is_of(version: &str, series: &str) -> bool {
    numbers(version).starts_with(&numbers(series))
}

/// `jetpack`, `cuda` and `tensorrt`.  On what is no Jetson only those that are there.
pub(crate) fn check(board: &Board, packages: &Packages) -> Vec<Finding> {
    let expected = board.release().and_then(|[major, minor, _]| {
        COMES_WITH.iter().find(|(release, _, _)| *release == [major, minor])
    });
    let parts = [
        ("cuda", "CUDA", packages.cuda(), expected.map(|(_, cuda, _)| *cuda)),
        ("tensorrt", "TensorRT", packages.tensorrt(), expected.map(|(_, _, trt)| *trt)),
    ];
    let jetpack = board.is_jetson.then(|| jetpack(packages));
    let parts = parts.into_iter().filter_map(|(id, name, found, expected)| match found {
        Some((version, seen)) => Some(part(id, name, &version, expected).seen(seen)),
        None => board.is_jetson.then(|| missing(id, name)),
    });
    jetpack.into_iter().chain(parts).collect()
}

fn jetpack(packages: &Packages) -> Finding {
    match packages.version("nvidia-jetpack") {
        Some(version) => Finding::new(Severity::Ok, "jetpack", format!("JetPack {version}"))
            .seen(format!("package nvidia-jetpack: {version}")),
        None => Finding::new(Severity::Note, "jetpack", "JetPack is not installed as a whole")
            .seen("/var/lib/dpkg/status: no package nvidia-jetpack")
            .because(
                "Parts of it may be there; the package brings those that were tested together.",
            )
            .cured_by(Fix::now("sudo apt update && sudo apt install nvidia-jetpack")),
    }
}

fn missing(id: &'static str, name: &str) -> Finding {
    Finding::new(Severity::Note, id, format!("{name} is not installed"))
        .seen("/var/lib/dpkg/status: no such package")
        .because(format!(
            "smelt's own engines need none; builders and servers of others need {name}."
        ))
        .cured_by(Fix::now("sudo apt update && sudo apt install nvidia-jetpack"))
}

fn part(id: &'static str, name: &str, version: &str, expected: Option<&str>) -> Finding {
    match expected {
        Some(series) if !is_of(version, series) => Finding::new(
            Severity::Warning,
            id,
            format!("{name} {version} is not the {series} of this release"),
        )
        .because(
            "Plugins and servers for Jetson are made for the release's own versions, and an \
             engine loads only in the version that built it.",
        ),
        _ => Finding::new(Severity::Ok, id, format!("{name} {version}")),
    }
}

/// `kernel`: whether the kernel that was installed last is the one that runs; `None` where that
/// cannot be told.
pub(crate) fn kernel(board: &Board, packages: &Packages) -> Option<Finding> {
    const ID: &str = "kernel";
    let runs = board.kernel.as_deref()?;
    // As 5.15.148-tegra-36.4.7-20250918154033.
    let installed = packages.version("nvidia-l4t-kernel")?;
    let seen = |finding: Finding| {
        finding
            .seen(format!("/proc/sys/kernel/osrelease: {runs}"))
            .seen(format!("package nvidia-l4t-kernel: {installed}"))
    };
    if installed.strip_prefix(runs).is_some_and(|rest| rest.starts_with('-')) {
        return Some(seen(Finding::new(Severity::Ok, ID, format!("{runs}, as installed"))));
    }
    Some(
        seen(Finding::new(Severity::Warning, ID, "another kernel runs than is installed"))
            .because("After an upgrade the GPU's libraries and its driver are of two releases until the board has booted.")
            .cured_by(Fix::at_boot("sudo reboot").by_hand()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, version: &str) -> String {
        format!(
            "Package: {name}\nStatus: install ok installed\nPriority: standard\n\
             Version: {version}\nDescription: x\n y: z\n\n"
        )
    }

    fn board(release: &str) -> Board {
        let line = format!("# R36 (release), REVISION: {release}, GCID: 1");
        Board { is_jetson: true, release_line: Some(line), ..Board::default() }
    }

    #[track_caller]
    fn check_of(board: &Board, packages: &[(&str, &str)], expect: &[(&str, Severity)]) {
        let status: String = packages.iter().map(|(name, version)| entry(name, version)).collect();
        let found = check(board, &Packages::parse(&status));
        let found: Vec<_> = found.iter().map(|finding| (finding.id, finding.severity)).collect();
        assert_eq!(found, expect);
    }

    const JETPACK: [(&str, &str); 3] = [
        ("nvidia-jetpack", "6.2.1+b38"),
        ("cuda-cudart-12-6", "12.6.68-1"),
        ("libnvinfer10", "10.3.0.30-1+cuda12.5"),
    ];

    #[test]
    fn versions_are_those_of_the_release() {
        use Severity::{Note, Ok, Warning};
        let all = [("jetpack", Ok), ("cuda", Ok), ("tensorrt", Ok)];
        check_of(&board("4.7"), &JETPACK, &all);
        // The next release comes with the same, and of an unknown one nothing is demanded.
        check_of(&board("5.0"), &JETPACK, &all);
        check_of(&board("9.0"), &JETPACK, &all);
        let mixed = [JETPACK[0], ("cuda-cudart-12-2", "12.2.140-1"), JETPACK[2]];
        check_of(&board("4.7"), &mixed, &[all[0], ("cuda", Warning), all[2]]);
        let newer = [JETPACK[0], JETPACK[1], ("libnvinfer10", "10.30.1")];
        check_of(&board("4.7"), &newer, &[all[0], all[1], ("tensorrt", Warning)]);
        check_of(&board("4.7"), &[], &[("jetpack", Note), ("cuda", Note), ("tensorrt", Note)]);
    }

    #[test]
    fn a_server_is_asked_for_nothing() {
        check_of(&Board::default(), &[], &[]);
        check_of(&Board::default(), &JETPACK[1..2], &[("cuda", Severity::Ok)]);
    }

    #[test]
    fn the_data_base_is_read_as_dpkg_writes_it() {
        let removed = "Package: libnvinfer10\nStatus: deinstall ok config-files\nVersion: 1\n\n";
        let several =
            entry("cuda-cudart-12-10", "12.10.1-1") + &entry("cuda-cudart-12-9", "12.9.2");
        let dev = entry("cuda-cudart-dev-13-0", "13.0.1-1");
        let packages = Packages::parse(&format!("{removed}{several}{dev}\n\nnonsense\n\n"));
        assert_eq!(packages.tensorrt(), None);
        assert_eq!(packages.cuda().unwrap().0, "12.10.1-1");
    }

    #[test]
    fn a_kernel_that_waits_for_a_boot_is_told() {
        let packages = Packages::parse(
            "Package: nvidia-l4t-kernel\nStatus: install ok installed\n\
             Version: 5.15.185-tegra-36.5.0-20260115194252\n",
        );
        let runs = |kernel: &str| Board { kernel: Some(kernel.to_owned()), ..Board::default() };
        let severity = |board| kernel(&board, &packages).map(|finding| finding.severity);
        assert_eq!(severity(runs("5.15.185-tegra")), Some(Severity::Ok));
        assert_eq!(severity(runs("5.15.148-tegra")), Some(Severity::Warning));
        assert_eq!(severity(runs("5.15.18")), Some(Severity::Warning));
        assert_eq!(severity(Board::default()), None);
        assert_eq!(kernel(&runs("6.1"), &Packages::default()), None);
    }
}
