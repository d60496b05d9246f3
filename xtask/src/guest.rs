//! Boots virtual machines: Debian's kernel, busybox, what a test brings and nothing else.
//!
//! The kernel's package is unpacked under `target`, never installed.  A guest's first file system is
//! an archive in memory, so whatever is on a disk was put there by the test.

mod cpio;
mod modules;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::debian::{self, Packages};
use cpio::Archive;

/// A guest that does nothing is over in two seconds; a host whose /dev/kvm starts no guest never is.
const PROBE: Duration = Duration::from_secs(10);

/// Who executes a guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accelerator {
    Kvm,
    /// QEMU itself.
    Tcg,
}

impl Accelerator {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }
}

/// What a guest is built like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Board {
    /// As this machine may be.
    Pc,
    /// As the boards are that smelt is for.
    Arm64,
}

impl Board {
    fn qemu(self) -> &'static str {
        match self {
            Self::Pc => "qemu-system-x86_64",
            Self::Arm64 => "qemu-system-aarch64",
        }
    }

    fn package(self) -> &'static str {
        match self {
            Self::Pc => "qemu-system-x86",
            Self::Arm64 => "qemu-system-arm",
        }
    }

    fn machine(self) -> &'static str {
        match self {
            Self::Pc => "q35",
            Self::Arm64 => "virt",
        }
    }

    /// Vectors that QEMU executes by itself cost more than they save: it takes a processor that
    /// has few.
    fn processor(self, accelerator: Accelerator) -> &'static str {
        match (accelerator, self) {
            (Accelerator::Kvm, _) => "host",
            (Accelerator::Tcg, Self::Pc) => "Nehalem",
            (Accelerator::Tcg, Self::Arm64) => "cortex-a72",
        }
    }

    /// Without random addresses, code that QEMU has translated serves the next process too.
    fn kernel_says(self) -> &'static str {
        match self {
            Self::Pc => "console=ttyS0 quiet panic=-1 mitigations=off norandmaps nokaslr",
            Self::Arm64 => "console=ttyAMA0 quiet panic=-1 mitigations=off norandmaps nokaslr",
        }
    }
}

/// A machine that guests are started of; each does what its script says.
pub(crate) struct Machine {
    pub(crate) board: Board,
    pub(crate) accelerator: Accelerator,
    pub(crate) memory_mib: u32,
    /// What the kernel is told besides.
    pub(crate) kernel_says: &'static str,
    pub(crate) kernel: Kernel,
    /// By the path that they have in a guest; all may be executed.
    pub(crate) files: Vec<(String, Vec<u8>)>,
    /// What every script begins with.
    pub(crate) functions: &'static str,
    /// Where archives and consoles are written.
    pub(crate) folder: PathBuf,
}

/// A kernel and the modules that are loaded into it, in their order.
pub(crate) struct Kernel {
    image: PathBuf,
    modules: Vec<modules::Module>,
}

impl Kernel {
    /// The newest kernel that the package `newest` stands for, with the modules `wanted`: a name,
    /// and behind it what the module is told.
    pub(crate) fn fetch(
        packages: &Packages,
        newest: &str,
        wanted: &[&str],
        folder: &Path,
    ) -> Result<Self> {
        let package = packages.dependency(newest, "linux-image-")?;
        let unpacked = packages.unpack(&package, folder)?;
        let boot =
            fs::read_dir(unpacked.join("boot"))?.filter_map(|entry| Some(entry.ok()?.path()));
        let is_kernel = |path: &PathBuf| path.to_string_lossy().contains("/vmlinuz-");
        Ok(Self {
            image: { boot }.find(is_kernel).context("the kernel's package has no kernel")?,
            modules: modules::load(&unpacked.join("lib/modules"), wanted)?,
        })
    }
}

/// Installs QEMU for such guests.
pub(crate) fn need_qemu(board: Board) -> Result<()> {
    debian::need_alone(board.package(), || debian::runs(board.qemu(), "--version"))
}

impl Machine {
    /// KVM where it can be opened and a guest comes up in it.
    pub(crate) fn choose_accelerator(&self) -> Result<Accelerator> {
        if File::options().read(true).write(true).open("/dev/kvm").is_err() {
            println!("/dev/kvm cannot be opened: QEMU executes the guests itself (tcg)");
            return Ok(Accelerator::Tcg);
        }
        let mut guest = self.start("probe", Accelerator::Kvm, "poweroff -f\n", &[])?;
        // Where KVM is offered and does not work, QEMU may hang or abort.
        if guest.ends_within(PROBE).unwrap_or(false) {
            println!("guests run under kvm");
            return Ok(Accelerator::Kvm);
        }
        println!("/dev/kvm brings up no guest: QEMU executes the guests itself (tcg)");
        Ok(Accelerator::Tcg)
    }

    /// Runs a guest that does what `script` says until it is off.  `disks` are arguments of QEMU.
    /// Returns what was written to its console.
    pub(crate) fn run(
        &self,
        name: &str,
        script: &str,
        disks: &[String],
        limit: Duration,
    ) -> Result<String> {
        let mut guest = self.start(name, self.accelerator, script, disks)?;
        let console = guest.console.clone();
        if !guest.ends_within(limit)? {
            bail!("guest {name} ran past {} s; see {}", limit.as_secs(), console.display());
        }
        let text = fs::read(&console).with_context(|| console.display().to_string())?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    fn start(
        &self,
        name: &str,
        accelerator: Accelerator,
        script: &str,
        disks: &[String],
    ) -> Result<Guest> {
        let archive = self.folder.join(format!("{name}.cpio"));
        fs::write(&archive, self.archive(script)).with_context(|| archive.display().to_string())?;
        let console = self.folder.join(format!("{name}.console"));
        let complaints = File::create(self.folder.join(format!("{name}.qemu")))?;
        let board = self.board;
        let child = Command::new(board.qemu())
            .args(["-accel", accelerator.name()])
            .args(["-machine", board.machine(), "-cpu", board.processor(accelerator)])
            .args(["-m", &self.memory_mib.to_string()])
            .args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"])
            .args(["-append", &format!("{} {}", board.kernel_says(), self.kernel_says)])
            .args([Path::new("-kernel"), &self.kernel.image, Path::new("-initrd"), &archive])
            .arg("-serial")
            .arg(format!("file:{}", console.display()))
            .args(disks)
            .stdin(Stdio::null())
            .stdout(complaints.try_clone()?)
            .stderr(complaints)
            .spawn()
            .with_context(|| format!("cannot start {}", board.qemu()))?;
        Ok(Guest { child, console, archive })
    }

    fn archive(&self, script: &str) -> Vec<u8> {
        let mut archive = Archive::new();
        for folder in ["bin", "lib", "lib64", "modules"] {
            archive.directory(folder);
        }
        for (path, content) in &self.files {
            archive.file(path, content);
        }
        let mut order = String::new();
        for module in &self.kernel.modules {
            archive.file(&format!("modules/{}.ko", module.name), &module.content);
            order.push_str(&format!("{} {}\n", module.name, module.options));
        }
        archive.file("modules/order", order.as_bytes());
        let init = format!("{}\n{}\n{script}", include_str!("guest/init.sh"), self.functions);
        archive.file("init", init.as_bytes());
        archive.finish()
    }
}

/// A virtual machine that runs; it is ended when this is dropped.
struct Guest {
    child: Child,
    console: PathBuf,
    archive: PathBuf,
}

impl Guest {
    fn ends_within(&mut self, limit: Duration) -> Result<bool> {
        let begin = Instant::now();
        while begin.elapsed() < limit {
            if let Some(status) = self.child.try_wait()? {
                let console = self.console.display();
                ensure!(status.success(), "QEMU ended with {status}; see {console} and .qemu");
                return Ok(true);
            }
            sleep(Duration::from_millis(20));
        }
        Ok(false)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // Of a process that has ended, neither does anything.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.archive);
    }
}
