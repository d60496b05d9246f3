//! Runs tests of smelt under kernels that are not this machine's, in guests that see this machine's files.
//!
//! Those kernels are told to have no Landlock, so that mount name spaces alone hold stages, and they know file systems
//! that a machine for development need not know.  One is as old as JetPack 5's.  Whatever a guest writes stays in its memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::debian::{self, Packages};
use crate::guest::{Accelerator, Board, Kernel, Machine, need_qemu};
use crate::{check, root, target};

/// Always the newest of a release's kernels; the one for virtual machines shares no folders.
const KERNEL: &str = "linux-image-amd64";

/// Whose kernels are started: this machine's Debian, and Debian 11, which has Linux 5.10, as JetPack 5 has.
const RELEASES: [Option<&str>; 2] = [None, Some("bullseye")];

/// Where this machine's files come from, what they lie under, and the file systems that tests mount.
const MODULES: [&str; 12] = [
    "virtio_pci",
    "9pnet_virtio",
    "9p",
    "overlay",
    "loop",
    "vfat",
    "nls_cp437",
    "nls_ascii",
    "nls_iso8859_1",
    "exfat",
    "nfsd",
    "nfsv4",
];

/// The server of NFS, and the libraries that Debian's smallest systems lack of it, by what their names begin with.
const NFS_SERVER: &str = "nfs-kernel-server";
const NFS_LIBRARIES: [&str; 2] = ["libtirpc3", "libwrap0"];

/// Of the modules that confine, none but what all kernels have.
const WITHOUT_LANDLOCK: &str = "lsm=capability";

/// The tests of smelt that depend on the kernel.
const PROGRAM: &str = "smelt-integration";
const TESTS: [&str; 3] = ["confinement", "strict", "file_systems"];

const MEMORY_MIB: u32 = 3072;

/// QEMU executes a minute's work in a quarter of an hour where there is no KVM.
const LIMIT: Duration = Duration::from_secs(1800);

/// `cargo xtask other-kernel [--if-possible]`.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    println!("\n$ cargo xtask other-kernel {}", arguments.join(" "));
    let if_possible = match arguments {
        [] => false,
        ["--if-possible"] => true,
        _ => bail!("other-kernel takes --if-possible and nothing else"),
    };
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        println!("NOT RUN: guests are x86-64 Linux, and smelt is not built for that here");
        return Ok(());
    }
    let built = check::built(&["--test", PROGRAM])?.pop();
    let program =
        PathBuf::from(built.with_context(|| format!("cargo built no {PROGRAM}"))?.program);
    let folder = target().join("other-kernel");
    for release in RELEASES {
        let folder = folder.join(release.unwrap_or("own"));
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        match prepare(&folder, &program, release) {
            Err(error) if if_possible => {
                println!("NOT RUN, no other kernel was started: {error:#}");
            }
            machine => run_tests(&machine?)?,
        }
    }
    Ok(())
}

/// Runs the tests in a guest, and prints what they tell.
fn run_tests(machine: &Machine) -> Result<()> {
    let (begin, folder) = (Instant::now(), &machine.folder);
    let console = machine.run("tests", "become\n", &shared(folder)?, LIMIT)?;
    let told = judge(&console)
        .with_context(|| format!("see {}", folder.join("tests.console").display()))?;
    for line in told {
        println!("{line}");
    }
    println!("{WITHOUT_LANDLOCK}, {}, {} s", machine.accelerator.name(), begin.elapsed().as_secs());
    Ok(())
}

/// Fetches what is not here, a kernel of `release` into `folder` and what all guests share beside it, and finds out who executes.
fn prepare(folder: &Path, program: &Path, release: Option<&str>) -> Result<Machine> {
    need_qemu(Board::Pc)?;
    debian::need_alone("busybox-static", || debian::runs("busybox", "--help"))?;
    debian::need_alone("dosfstools", || debian::path_of("mkfs.vfat").is_ok())?;
    debian::need_alone("exfatprogs", || debian::path_of("mkfs.exfat").is_ok())?;
    let busybox = debian::path_of("busybox")?;
    let busybox = fs::read(&busybox).with_context(|| busybox.display().to_string())?;
    let nfs = NfsServer::fetch(&target().join("other-kernel"))?;
    let packages = match release {
        Some(release) => Packages::of_release(release, folder)?,
        None => Packages::own(),
    };
    let mut machine = Machine {
        board: Board::Pc,
        accelerator: Accelerator::Tcg,
        memory_mib: MEMORY_MIB,
        kernel_says: WITHOUT_LANDLOCK,
        kernel: Kernel::fetch(&packages, KERNEL, &MODULES, folder)?,
        files: vec![
            ("bin/busybox".to_owned(), busybox),
            ("order".to_owned(), order(program, &nfs).into_bytes()),
        ],
        functions: include_str!("other_kernel/functions.sh"),
        folder: folder.to_owned(),
    };
    machine.accelerator = machine.choose_accelerator()?;
    Ok(machine)
}

/// Where the unpacked programs of a server of NFS lie, which the guest sees there too.
struct NfsServer {
    programs: PathBuf,
    libraries: Vec<PathBuf>,
}

impl NfsServer {
    fn fetch(folder: &Path) -> Result<Self> {
        let packages = Packages::own();
        let server = packages.unpack(NFS_SERVER, folder)?;
        let mut libraries = Vec::new();
        for prefix in NFS_LIBRARIES {
            let unpacked = packages.unpack(&packages.dependency(NFS_SERVER, prefix)?, folder)?;
            let places = ["lib", "usr/lib"].map(|lib| unpacked.join(lib).join("x86_64-linux-gnu"));
            libraries.extend(places.into_iter().filter(|place| place.is_dir()));
        }
        Ok(Self { programs: server.join("usr/sbin"), libraries })
    }

    /// As `LD_LIBRARY_PATH` has them.
    fn library_path(&self) -> String {
        let places = self.libraries.iter().map(|place| place.display().to_string());
        places.collect::<Vec<_>>().join(":")
    }
}

/// The folders that the guest has of this machine: all of it, to read, and one that tests mount again.
fn shared(folder: &Path) -> Result<Vec<String>> {
    let lent = folder.join("lent");
    fs::create_dir_all(&lent).with_context(|| lent.display().to_string())?;
    let share = |path: &Path, tag: &str| {
        let path = path.display();
        format!("local,path={path},mount_tag={tag},security_model=none,multidevs=remap")
    };
    let all = format!("{},readonly=on", share(Path::new("/"), "host"));
    Ok(vec!["-virtfs".to_owned(), all, "-virtfs".to_owned(), share(&lent, "lent")])
}

/// What the guest does when it has become this machine.
fn order(program: &Path, nfs: &NfsServer) -> String {
    let folder = root().join("crates/smelt").display().to_string();
    include_str!("other_kernel/order.sh")
        .replace("nfs=NFS", &format!("nfs={}", nfs.programs.display()))
        .replace("LIBRARIES", &nfs.library_path())
        .replace("FOLDER", &folder)
        .replace("PROGRAM", &program.display().to_string())
        .replace("TESTS", &TESTS.join(" "))
}

/// What the guest's console tells, for a person.
///
/// # Errors
/// A test failed, or was not run for another reason than that there is no Landlock.
fn judge(console: &str) -> Result<Vec<String>> {
    let lines: Vec<&str> = console.lines().map(str::trim).collect();
    let kernel = lines.iter().find_map(|line| line.strip_prefix("kernel: "));
    let lsm = lines.iter().find_map(|line| line.strip_prefix("lsm: "));
    let lsm = lsm.context("the guest did not become this machine")?;
    ensure!(!lsm.contains("landlock"), "the guest's kernel has Landlock: {lsm}");
    for name in TESTS {
        let end = format!("end {name} 0");
        ensure!(lines.contains(&&*end), "{name} failed or did not end");
    }
    let not_run = |line: &&&str| line.contains("not run");
    let skipped: Vec<_> = lines.iter().filter(not_run).collect();
    let odd = skipped.iter().find(|line| !line.contains("this machine has no landlock"));
    if let Some(odd) = odd {
        bail!("a test was not run: {odd}");
    }
    ensure!(!skipped.is_empty(), "Landlock held a stage where there is none");
    let results = lines.iter().filter(|line| line.starts_with("test result: "));
    if let Some(none) = results.clone().find(|line| line.contains(" 0 passed")) {
        bail!("no test has such a name: {none}");
    }
    let kernel = kernel.map(|kernel| format!("Linux {kernel}"));
    let tests = TESTS.iter().zip(results).map(|(name, result)| format!("{name}: {result}"));
    Ok(kernel.into_iter().chain(tests).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn console(lsm: &str, more: &str, end: u8) -> String {
        let test = |name: &str| {
            format!("begin {name}\r\ntest result: ok. 7 passed\r\nend {name} {end}\r\n")
        };
        format!("kernel: 5.10.0\r\nlsm: {lsm}\r\n{more}\r\n{}", TESTS.map(test).concat())
    }

    #[test]
    fn a_guest_that_ran_less_than_all_is_not_well() {
        let known = "not run: this machine has no landlock for Root";
        let told = judge(&console("capability", known, 0)).unwrap();
        assert_eq!(told[0], "Linux 5.10.0");
        assert_eq!(told[2], "strict: test result: ok. 7 passed");
        for (console, why) in [
            (console("capability", known, 101), "confinement failed"),
            (console("landlock,capability", known, 0), "has Landlock"),
            (console("capability", "", 0), "where there is none"),
            (console("capability", "not run: no root, or no python", 0), "no python"),
            (String::new(), "did not become"),
        ] {
            let error = judge(&console).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
