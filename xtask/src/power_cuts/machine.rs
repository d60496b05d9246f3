//! Says what guests are that power is cut of: a PC with smelt, a pipeline and a disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::workload::PIPELINE;
use crate::debian::{self, Packages};
use crate::guest::{Accelerator, Board, Kernel, Machine, need_qemu};

/// Always the newest of Debian's kernels for virtual machines; its dependency has the version.
const KERNEL: &str = "linux-image-cloud-amd64";

/// A library that makes every sync do nothing, and what it is called inside.
const SYNCLESS: &str = "libeatmydata1";
const SYNCLESS_FILE: &str = "libeatmydata.so";

/// Disks are virtio's; ext4 and the console are part of the kernel, or come by their names.
const MODULES: [&str; 4] = ["virtio_pci", "virtio_blk", "ext4", "crc32c_generic"];

const MEMORY_MIB: u32 = 512;

/// Brings into `folder` what a guest is made of, but for smelt: the kernel, and where what makes syncs do nothing lies.
pub(super) fn fetch(folder: &Path) -> Result<(Kernel, PathBuf)> {
    need_qemu(Board::Pc)?;
    debian::need_alone("e2fsprogs", || debian::runs("mke2fs", "-V"))?;
    debian::need_alone("busybox-static", || debian::runs("busybox", "--help"))?;
    let packages = Packages::own();
    let kernel = Kernel::fetch(&packages, KERNEL, &MODULES, folder)?;
    Ok((kernel, packages.unpack(SYNCLESS, folder)?))
}

/// Fetches what is not here into `folder`, and finds out who executes.
pub(super) fn prepare(smelt: &Path, folder: &Path) -> Result<Machine> {
    let (kernel, syncless) = fetch(folder)?;
    let mut machine = Machine {
        board: Board::Pc,
        accelerator: Accelerator::Tcg,
        memory_mib: MEMORY_MIB,
        kernel_says: "",
        kernel,
        files: files(smelt, &syncless.join("usr/lib/x86_64-linux-gnu"), folder)?,
        functions: include_str!("functions.sh"),
        folder: folder.to_owned(),
    };
    machine.accelerator = machine.choose_accelerator()?;
    Ok(machine)
}

/// Where a script finds the library that makes syncs do nothing.
pub(super) fn syncless() -> String {
    format!("/lib/{SYNCLESS_FILE}")
}

/// The pipeline, programs and the libraries they need, by their paths in a guest.
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
    let pipeline = ("p.toml".to_owned(), PIPELINE.as_bytes().to_owned());
    paths.into_iter().map(read).chain([Ok(pipeline)]).collect()
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
