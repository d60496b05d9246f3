//! Boots a virtual machine with smelt in it: Debian's kernel, busybox and nothing else.
//!
//! The kernel's package is unpacked under `target`, never installed.  A guest's only file system is
//! an archive in memory, so whatever is on a disk was put there by the test.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::cpio::Archive;
use super::modules;
use super::workload::PIPELINE;
use crate::debian;

/// Always the newest of Debian's kernels for virtual machines; its dependency has the version.
const KERNEL: &str = "linux-image-cloud-amd64";

/// A library that makes every sync do nothing, and what it is called inside.
const SYNCLESS: &str = "libeatmydata1";
const SYNCLESS_FILE: &str = "libeatmydata.so";

/// Disks are virtio's; ext4 and the console are part of the kernel, or come by their names.
const MODULES: [&str; 4] = ["virtio_pci", "virtio_blk", "ext4", "crc32c_generic"];

const MEMORY: &str = "512";

/// Without random addresses, code that QEMU has translated serves the next process too.
const KERNEL_SAYS: &str = "console=ttyS0 quiet panic=-1 mitigations=off norandmaps nokaslr";

/// A guest that does nothing is over in two seconds; a host whose /dev/kvm starts no guest never is.
const PROBE: Duration = Duration::from_secs(10);

/// Who executes a guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accelerator {
    Kvm,
    /// QEMU itself.
    Tcg,
}

impl Accelerator {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }

    /// Vectors that QEMU executes by itself cost more than they save: it takes a processor that
    /// has few.
    fn processor(self) -> &'static str {
        match self {
            Self::Kvm => "host",
            Self::Tcg => "Nehalem",
        }
    }
}

/// All that guests have in common.
pub(super) struct Guests {
    kernel: PathBuf,
    modules: Vec<(String, Vec<u8>)>,
    /// Programs and libraries, by the path they have in a guest.
    files: Vec<(String, Vec<u8>)>,
    /// Where archives and consoles are written.
    folder: PathBuf,
    pub(super) accelerator: Accelerator,
}

impl Guests {
    /// Fetches what is not here into `folder`, and finds out who executes.
    pub(super) fn prepare(smelt: &Path, folder: &Path) -> Result<Self> {
        let needed = [
            ("qemu-system-x86", "qemu-system-x86_64", "--version"),
            ("e2fsprogs", "mke2fs", "-V"),
            ("busybox-static", "busybox", "--help"),
        ];
        for (package, program, version) in needed {
            debian::need_alone(package, || debian::runs(program, version))?;
        }
        let kernel = debian::unpack(&debian::dependency(KERNEL, "linux-image-")?, folder)?;
        let syncless = debian::unpack(SYNCLESS, folder)?;
        let boot = fs::read_dir(kernel.join("boot"))?.filter_map(|entry| Some(entry.ok()?.path()));
        let is_kernel = |path: &PathBuf| path.to_string_lossy().contains("/vmlinuz-");
        let mut guests = Self {
            kernel: { boot }.find(is_kernel).context("the kernel's package has no kernel")?,
            modules: modules::load(&kernel.join("lib/modules"), &MODULES)?,
            files: files(smelt, &syncless.join("usr/lib/x86_64-linux-gnu"), folder)?,
            folder: folder.to_owned(),
            accelerator: Accelerator::Tcg,
        };
        guests.accelerator = guests.choose()?;
        Ok(guests)
    }

    /// KVM where it can be opened and a guest comes up in it.
    fn choose(&self) -> Result<Accelerator> {
        if File::options().read(true).write(true).open("/dev/kvm").is_err() {
            println!("/dev/kvm cannot be opened: QEMU executes the guests itself (tcg)");
            return Ok(Accelerator::Tcg);
        }
        let mut guest = self.start("probe", Accelerator::Kvm, "poweroff -f\n", &[])?;
        if guest.ends_within(PROBE)? {
            println!("guests run under kvm");
            return Ok(Accelerator::Kvm);
        }
        println!("/dev/kvm brings up no guest: QEMU executes the guests itself (tcg)");
        Ok(Accelerator::Tcg)
    }

    /// Runs a guest that does what `script` says until it is off.  `disks` are arguments of QEMU.
    pub(super) fn run(
        &self,
        name: &str,
        script: &str,
        disks: &[String],
        limit: Duration,
    ) -> Result<()> {
        let mut guest = self.start(name, self.accelerator, script, disks)?;
        let console = guest.console.clone();
        if !guest.ends_within(limit)? {
            bail!("guest {name} ran past {} s; see {}", limit.as_secs(), console.display());
        }
        Ok(())
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
        let child = Command::new("qemu-system-x86_64")
            .args([
                "-accel",
                accelerator.name(),
                "-machine",
                "q35",
                "-cpu",
                accelerator.processor(),
            ])
            .args([
                "-m",
                MEMORY,
                "-nodefaults",
                "-no-user-config",
                "-no-reboot",
                "-display",
                "none",
            ])
            .args(["-append", KERNEL_SAYS])
            .args([Path::new("-kernel"), &self.kernel, Path::new("-initrd"), &archive])
            .arg("-serial")
            .arg(format!("file:{}", console.display()))
            .args(disks)
            .stdin(Stdio::null())
            .stdout(complaints.try_clone()?)
            .stderr(complaints)
            .spawn()
            .context("cannot start qemu-system-x86_64")?;
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
        for (name, content) in &self.modules {
            archive.file(&format!("modules/{name}.ko"), content);
        }
        let order: String = self.modules.iter().map(|(name, _)| format!("{name}\n")).collect();
        archive.file("modules/order", order.as_bytes());
        archive.file("p.toml", PIPELINE.as_bytes());
        archive.file("init", format!("{}\n{script}", include_str!("init.sh")).as_bytes());
        archive.finish()
    }
}

/// Where a script finds the library that makes syncs do nothing.
pub(super) fn syncless() -> String {
    format!("/lib/{SYNCLESS_FILE}")
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

/// Programs and the libraries they need, by their paths in a guest.
fn files(smelt: &Path, syncless: &Path, folder: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let busybox = debian::path_of("busybox")?;
    // Nine tenths of it tell debuggers of lines.
    let small = folder.join("smelt");
    let mut strip = Command::new("strip");
    strip.arg("-o").arg(&small).arg(smelt);
    ensure!(strip.status().context("cannot start strip")?.success(), "{strip:?} failed");
    let library = fs::canonicalize(syncless.join(format!("{SYNCLESS_FILE}.1")))
        .with_context(|| format!("{SYNCLESS} has no {SYNCLESS_FILE}"))?;
    let mut paths = vec![
        ("bin/busybox".to_owned(), busybox.clone()),
        ("bin/smelt".to_owned(), small.clone()),
        (format!("lib/{SYNCLESS_FILE}"), library.clone()),
    ];
    for program in [&small, &library, &busybox] {
        let output = Command::new("ldd").arg(program).output().context("cannot start ldd")?;
        let libraries = libraries(&String::from_utf8_lossy(&output.stdout));
        paths.extend(libraries.into_iter().map(|path| (path_in_guest(&path), path.into())));
    }
    paths.sort();
    paths.dedup_by(|a, b| a.0 == b.0);
    let read = |(name, path): (String, PathBuf)| {
        let content = fs::read(&path).with_context(|| path.display().to_string())?;
        Ok((name, content))
    };
    paths.into_iter().map(read).collect()
}

/// The paths in what `ldd` prints: `libc.so.6 => /lib/…/libc.so.6 (0x…)`, or the loader's alone.
fn libraries(printed: &str) -> Vec<String> {
    let path =
        |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(str::to_owned);
    printed.lines().filter_map(path).collect()
}

/// The loader is looked for where programs say, which is in `/lib64`; it looks in `/lib`.
fn path_in_guest(library: &str) -> String {
    let name = library.rsplit('/').next().unwrap_or(library);
    let folder = if library.starts_with("/lib64/") { "lib64" } else { "lib" };
    format!("{folder}/{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_from_what_the_loader_says() {
        let printed = "\tlinux-vdso.so.1 (0x00007f)\n\
            \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
            \tlost.so => not found\n\
            \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let paths = libraries(printed);
        assert_eq!(paths, ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]);
        assert_eq!(path_in_guest(&paths[0]), "lib/libc.so.6");
        assert_eq!(path_in_guest(&paths[1]), "lib64/ld-linux-x86-64.so.2");
    }
}
