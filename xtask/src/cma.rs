//! Exhausts a real contiguous area (CMA) under our own aarch64 binary, in a guest with a stock
//! kernel, and judges by smelt's report whether it saw what happened.
//!
//! The kernel's test camera (`vivid`) takes its buffers from the area, as drivers of boards do.  In
//! the first case a stage needs such buffers while another program has them; in the second the
//! area is low for a harmless reason.

mod judge;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::debian::Packages;
use crate::guest::{Accelerator, Board, Kernel, Machine, need_qemu};
use crate::{cross, root, target};

/// Always the newest of Debian's kernels for boards; its dependency has the version.  The kernel
/// for virtual machines has no test camera.
const KERNEL: &str = "linux-image-arm64";

/// Two cameras that do nothing but take pictures, into contiguous memory.
const MODULES: [&str; 1] =
    ["vivid allocators=1,1 n_devs=2 multiplanar=1,1 node_types=0x1,0x1 no_error_inj=1"];

const MEMORY_MIB: u32 = 1024;
/// Room for eight buffers of 31.6 MiB, less what the kernel's start leaves scattered.
const AREA: &str = "cma=256M";

/// Of the area's buffers, those of the other program; the stage's do not fit beside them.
const HELD: u32 = 5;

/// A guest takes half a minute; most of that is QEMU executing instructions one by one.
const LIMIT: Duration = Duration::from_secs(300);

/// `cargo xtask cma`.
pub(crate) fn run() -> Result<()> {
    println!("\n$ cargo xtask cma");
    let folder = folder()?;
    let machine = prepare(&folder)?;
    let begin = Instant::now();
    let script = format!("hold {HELD}\nrun exhausted\nheld_by_nobody\nrun borrowed\nend\n");
    let console = machine.run("cma", &script, &[], LIMIT)?;
    let facts = judge::read(&console)
        .with_context(|| format!("see {}", folder.join("cma.console").display()))?;
    for line in facts.told() {
        println!("{line}");
    }
    let wrongs = facts.wrongs();
    for wrong in &wrongs {
        println!("WRONG: {wrong}");
    }
    println!("a guest of {MEMORY_MIB} MiB with {AREA}, {} s", begin.elapsed().as_secs());
    ensure!(wrongs.is_empty(), "smelt did not see what happened to contiguous memory");
    Ok(())
}

/// Where all of this lies.
fn folder() -> Result<PathBuf> {
    let folder = target().join("cma");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder)
}

/// Busybox, and the kernel with its modules.
fn fetch_into(folder: &Path) -> Result<(PathBuf, Kernel)> {
    need_qemu(Board::Arm64)?;
    let packages = Packages::of("arm64", folder)?;
    let busybox = packages.unpack("busybox-static", folder)?.join("bin/busybox");
    Ok((busybox, Kernel::fetch(&packages, KERNEL, &MODULES, folder)?))
}

/// Builds and fetches what is not here into `folder`.
fn prepare(folder: &Path) -> Result<Machine> {
    let (busybox, kernel) = fetch_into(folder)?;
    let smelt = cross::build_smelt()?;
    runs_on_this_machine(&smelt)?;
    let client = folder.join("contiguous");
    cross::compile(&root().join("xtask/src/cma/contiguous.c"), &client)?;
    let read = |path: PathBuf| fs::read(&path).with_context(|| path.display().to_string());
    Ok(Machine {
        board: Board::Arm64,
        accelerator: Accelerator::Tcg,
        memory_mib: MEMORY_MIB,
        kernel_says: AREA,
        kernel,
        files: vec![
            ("bin/busybox".to_owned(), read(busybox)?),
            ("bin/smelt".to_owned(), read(smelt)?),
            ("bin/contiguous".to_owned(), read(client)?),
            ("exhausted.toml".to_owned(), include_bytes!("cma/exhausted.toml").to_vec()),
            ("borrowed.toml".to_owned(), include_bytes!("cma/borrowed.toml").to_vec()),
        ],
        functions: include_str!("cma/functions.sh"),
        folder: folder.to_owned(),
    })
}

/// Whether the binary does its work on this machine, where QEMU executes it without a guest.
fn runs_on_this_machine(smelt: &Path) -> Result<()> {
    cross::need_runner()?;
    let cache = target().join("cma/cache");
    let each =
        [&["--version"][..], &["plan", "pipelines/demo.toml"], &["watch", "--once", "--json"]];
    for arguments in each {
        let mut emulator = Command::new("qemu-aarch64");
        emulator.arg(smelt).args(arguments).current_dir(root()).env("SMELT_CACHE", &cache);
        let output = emulator.output().context("cannot start qemu-aarch64")?;
        let arguments = arguments.join(" ");
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "smelt {arguments} failed: {said}");
        let lines = String::from_utf8_lossy(&output.stdout).lines().count();
        ensure!(lines > 0, "smelt {arguments} said nothing");
        println!("aarch64: smelt {arguments} says {lines} lines");
    }
    Ok(())
}
