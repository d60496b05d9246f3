//! Installs what a check needs of the system, where that is Debian and we may.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Where Debian keeps its releases, and the keys that they are signed with.
const ARCHIVE: &str = "http://deb.debian.org/debian";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Sees to it that `present` runs well, installing `package` if it does not.
pub(crate) fn need(package: &str, present: impl Fn() -> bool) -> Result<()> {
    need_with(&[], package, present)
}

/// As `need`, without the packages that `package` merely recommends.
pub(crate) fn need_alone(package: &str, present: impl Fn() -> bool) -> Result<()> {
    need_with(&["--no-install-recommends"], package, present)
}

fn need_with(flags: &[&str], package: &str, present: impl Fn() -> bool) -> Result<()> {
    let install = |flags: &[&str]| {
        let mut apt = Command::new("apt-get");
        // Nobody is there to be asked.
        apt.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
        // Another check may install something just now.
        apt.args(["-o", "DPkg::Lock::Timeout=300", "install", "-y", "-qq"]);
        succeeds(apt.args(flags).arg(package))
    };
    let has = present() || Packages::own().update() && install(flags) && present();
    ensure!(
        has,
        "this needs {package}, and apt-get could not install it; install it and run again"
    );
    Ok(())
}

/// The packages of one architecture and release.
pub(crate) struct Packages {
    /// What each of apt's programs is told first.
    flags: Vec<String>,
}

impl Packages {
    /// Those of this machine.
    pub(crate) fn own() -> Self {
        Self { flags: Vec::new() }
    }

    /// Those of another architecture, from this machine's own sources.
    pub(crate) fn of(architecture: &str, folder: &Path) -> Result<Self> {
        let more = [
            format!("APT::Architecture={architecture}"),
            format!("APT::Architectures::={architecture}"),
        ];
        Self::apart(&folder.join(format!("apt-{architecture}")), &more)
    }

    /// Those of another release of Debian, by its name, from Debian's own servers.
    pub(crate) fn of_release(release: &str, folder: &Path) -> Result<Self> {
        let sources = folder.join(format!("{release}.list"));
        let text = format!("deb [signed-by={KEYRING}] {ARCHIVE} {release} main\n");
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        fs::write(&sources, text).with_context(|| sources.display().to_string())?;
        let more = [
            format!("Dir::Etc::SourceList={}", sources.display()),
            "Dir::Etc::SourceParts=/dev/null".to_owned(),
        ];
        Self::apart(&folder.join(format!("apt-{release}")), &more)
    }

    /// What apt remembers of them is in `state`, so this machine's lists and architectures stay as they are.
    fn apart(state: &Path, more: &[String]) -> Result<Self> {
        for needed in ["lists/partial", "archives/partial"] {
            let needed = state.join(needed);
            fs::create_dir_all(&needed).with_context(|| needed.display().to_string())?;
        }
        let status = state.join("status");
        fs::write(&status, "").with_context(|| status.display().to_string())?;
        let flags = [
            format!("Dir::State={}", state.display()),
            format!("Dir::State::status={}", status.display()),
            format!("Dir::Cache={}", state.display()),
            "Acquire::Languages=none".to_owned(),
            // Its own user may not write where we may.
            "APT::Sandbox::User=root".to_owned(),
        ];
        let flags = flags.iter().chain(more).map(|flag| format!("-o{flag}"));
        Ok(Self { flags: flags.collect() })
    }

    fn apt(&self, program: &str) -> Command {
        let mut apt = Command::new(program);
        apt.args(&self.flags);
        apt
    }

    fn update(&self) -> bool {
        succeeds(self.apt("apt-get").args(["update", "-qq"]))
    }

    /// The newest package that `package` stands for: the first whose name begins with `prefix`
    /// among those it depends on.
    pub(crate) fn dependency(&self, package: &str, prefix: &str) -> Result<String> {
        let find = || {
            let output = self.apt("apt-cache").args(["depends", package]).output().ok()?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let mut names = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
            names.find(|name| name.starts_with(prefix)).map(str::to_owned)
        };
        let found = find().or_else(|| self.update().then(find).flatten());
        found.with_context(|| format!("this needs {package}, and apt-cache does not know it"))
    }

    /// Unpacks a package into a folder under `folder`, without installing it; says which folder.
    pub(crate) fn unpack(&self, package: &str, folder: &Path) -> Result<PathBuf> {
        let unpacked = folder.join(package);
        if unpacked.exists() {
            return Ok(unpacked);
        }
        let draft = folder.join(format!("{package}.new"));
        if draft.exists() {
            fs::remove_dir_all(&draft).with_context(|| draft.display().to_string())?;
        }
        fs::create_dir_all(&draft).with_context(|| draft.display().to_string())?;
        let download = || {
            let mut apt = self.apt("apt-get");
            let apt = apt.args(["download", "-qq", package]).current_dir(&draft);
            succeeds(apt.stderr(Stdio::null()))
        };
        let is_here = download() || self.update() && download();
        ensure!(is_here, "this needs {package}, and apt-get could not download it");
        for entry in fs::read_dir(&draft)? {
            let deb = entry?.path();
            let mut extract = Command::new("dpkg-deb");
            ensure!(succeeds(extract.arg("-x").arg(&deb).arg(&draft)), "{extract:?} failed");
            fs::remove_file(&deb)?;
        }
        fs::rename(&draft, &unpacked).with_context(|| unpacked.display().to_string())?;
        Ok(unpacked)
    }
}

/// Where a program lies that was asked for with `need`.
pub(crate) fn path_of(program: &str) -> Result<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let mut paths = std::env::split_paths(&folders).map(|folder| folder.join(program));
    paths.find(|path| path.is_file()).with_context(|| format!("{program} is in no folder of PATH"))
}

/// Whether `program --version` (or the words that the program has instead) ends well.
pub(crate) fn runs(program: &str, version: &str) -> bool {
    let version = version.split_whitespace();
    succeeds(Command::new(program).args(version).stdout(Stdio::null()).stderr(Stdio::null()))
}

/// Whether Debian's own Python does what `code` says.
pub(crate) fn proves(code: &str) -> bool {
    let mut python = Command::new("/usr/bin/python3");
    succeeds(python.args(["-c", code]).stdout(Stdio::null()).stderr(Stdio::null()))
}

fn succeeds(command: &mut Command) -> bool {
    command.status().is_ok_and(|status| status.success())
}
