//! Disks that run full under programs which do not look at what a write says.
//!
//! These need a user who may mount.  Where that is not so, each says on standard error that it proves
//! nothing; the simulated disk is then all that is tested.

use std::fs;
use std::io::{Write, stderr};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::world::{Ended, World, commands, statuses};
use nix::sys::statvfs::statvfs;
use nix::unistd::syncfs;
use serde_json::Value;

/// A file system of its own in the world, where the user may mount one.
struct Mounted {
    at: PathBuf,
}

impl Mounted {
    fn tmpfs(world: &World, name: &str, options: &str) -> Option<Self> {
        Self::mount(world, name, &["-t", "tmpfs", "-o", options, "tmpfs"])
    }

    /// A disk as boards have one, which finds places for bytes later than it takes them.
    fn ext4(world: &World, name: &str, size: &str) -> Option<Self> {
        let image = world.path(&format!("{name}.image"));
        let mut make = Command::new("mke2fs");
        make.args(["-q", "-t", "ext4", "-m", "0"]).arg(&image).arg(size);
        assert!(make.status().is_ok_and(|status| status.success()), "e2fsprogs makes a disk");
        Self::mount(world, name, &["-o", "loop", image.to_str().unwrap()])
    }

    fn mount(world: &World, name: &str, arguments: &[&str]) -> Option<Self> {
        let at = world.path(name);
        fs::create_dir(&at).unwrap();
        let mut mount = Command::new("mount");
        mount.args(arguments).arg(&at);
        let is_mounted = mount.output().is_ok_and(|output| output.status.success());
        if !is_mounted {
            let _ =
                writeln!(stderr(), "not run: nobody may mount here; a full disk is simulated only");
        }
        is_mounted.then_some(Self { at })
    }

    fn free_kib(&self) -> u64 {
        let found = statvfs(&self.at).unwrap();
        (found.blocks_available() * found.fragment_size()) >> 10
    }

    /// Leaves so much of it free, as far as it can be filled.
    ///
    /// A disk with a journal gives the blocks of a removed file away only after its next commit, though it
    /// counts them as free before, so that a write may be refused and taken a moment later.
    fn leave(&self, kib: u64) {
        let mut filler = fs::File::create(self.at.join("filler")).unwrap();
        for _ in 0..20 {
            syncfs(&filler).unwrap();
            let over = self.free_kib().saturating_sub(kib);
            if over == 0 {
                return;
            }
            let _ = filler.write_all(&vec![7; (over << 10) as usize]);
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}

fn smelt_on(world: &World, disk: &Mounted, arguments: &[&str]) -> Ended {
    let mut command = world.command(arguments);
    command.env("SMELT_CACHE", disk.at.join("cache"));
    crate::world::ended(&mut command)
}

#[track_caller]
fn report_of(ended: &Ended) -> Value {
    serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{}", ended.stderr))
}

/// It succeeded and its output is whole, or it failed as a full disk does; which.
#[track_caller]
fn is_whole_or_failed(ended: &Ended, bytes: u64) -> bool {
    let report = report_of(ended);
    let stage = &report["stages"][0];
    if ended.code == Some(0) {
        let output = Path::new(stage["output"].as_str().unwrap()).join("o");
        assert_eq!(output.metadata().unwrap().len(), bytes, "{report}");
        return true;
    }
    assert_eq!((ended.code, &stage["status"]), (Some(1), &"failed".into()), "{report}");
    let class = &stage["attempts"][0]["class"];
    let is_not_started = stage["message"].as_str().unwrap().starts_with("not started");
    assert!(class == "disk-full" || is_not_started, "{report}");
    false
}

/// A program that writes 3 MiB and does not care how much of it there is.
const CARELESS: &str = "head -c 3M /dev/zero > o 2>/dev/null || true";

#[test]
fn a_torso_is_never_sealed_whatever_is_free() {
    let world = World::new("");
    let Some(disk) = Mounted::tmpfs(&world, "small", "size=24m") else { return };
    no_torso_is_sealed(&world, &disk);
}

#[test]
fn nor_is_it_on_a_disk_with_a_journal() {
    let world = World::new("");
    let Some(disk) = Mounted::ext4(&world, "small", "32M") else { return };
    no_torso_is_sealed(&world, &disk);
}

#[track_caller]
fn no_torso_is_sealed(world: &World, disk: &Mounted) {
    world.write("p.toml", &commands(&["a::echo x > o"]));
    assert_eq!(smelt_on(world, disk, &["run", "p.toml"]).code, Some(0));
    let mut sealed = Vec::new();
    for kib in (0..80).map(|step| step * 128) {
        // Each has a key of its own.
        world.write("p.toml", &commands(&[&format!("a::{CARELESS} # {kib}")]));
        disk.leave(kib);
        let ended = smelt_on(world, disk, &["run", "p.toml", "--json"]);
        if is_whole_or_failed(&ended, 3 << 20) {
            sealed.push(kib);
            disk.leave(9000);
            let gone = smelt_on(world, disk, &["cache", "gc", "--max-size", "0"]);
            assert_eq!(gone.code, Some(0), "{}", gone.stderr);
        }
    }
    assert!(sealed.first().is_some_and(|&kib| kib >= 3 << 10), "{sealed:?}");
    assert!(sealed.contains(&(9 << 10)), "what has room is sealed: {sealed:?}");
    disk.leave(9000);
    let sound = smelt_on(world, disk, &["cache", "fsck"]);
    assert_eq!(sound.code, Some(0), "{}{}", sound.stdout, sound.stderr);
}

/// Every size of free space, for a stage whose disk is another than the store's.
#[test]
fn every_disk_that_it_may_write_to_counts() {
    let world = World::new("");
    let Some(disk) = Mounted::tmpfs(&world, "place", "size=16m") else { return };
    let at = disk.at.display();
    let declared = |text: String| text.replace("outputs =", "writes = [\"place\"]\noutputs =");
    for (name, script) in [
        ("place", format!("head -c 20M /dev/zero > {at}/x 2>/dev/null || true; echo torso > o")),
        (
            "temporary",
            "head -c 20M /dev/zero > $TMPDIR/x 2>/dev/null || true; echo torso > o".into(),
        ),
    ] {
        let mut text = declared(commands(&[&format!("a::{script}")]));
        if name == "temporary" {
            text += &format!("env = {{ TMPDIR = \"{at}\" }}\n");
        }
        world.write("p.toml", &text);
        let ended = world.smelt(&["run", "p.toml", "--json"]);
        assert!(!is_whole_or_failed(&ended, 0), "{name}: {}", ended.stdout);
        let message = report_of(&ended)["stages"][0]["message"].to_string();
        assert!(message.contains(&format!("the disk of {at}")), "{message}");
        // It is short before anything has begun, too.
        let ended = world.smelt(&["run", "p.toml", "--json"]);
        let message = report_of(&ended)["stages"][0]["message"].to_string();
        assert!(message.contains("not started: the disk of"), "{message}");
        fs::remove_file(disk.at.join("x")).unwrap();
    }
    world.write("p.toml", &declared(commands(&[&format!("a::echo x > {at}/x; echo whole > o")])));
    assert_eq!(statuses(&world.run(&[])), ["a sealed"]);
}

#[test]
fn the_store_s_own_directory_for_temporary_files_counts() {
    let world = World::new("");
    let Some(disk) = Mounted::tmpfs(&world, "small", "size=16m") else { return };
    let script = "a::head -c 20M /dev/zero > $TMPDIR/x 2>/dev/null || true; echo torso > o";
    world.write("p.toml", &commands(&[script]));
    let ended = smelt_on(&world, &disk, &["run", "p.toml", "--json"]);
    assert!(!is_whole_or_failed(&ended, 0), "{}", ended.stdout);
    let again = smelt_on(&world, &disk, &["run", "p.toml", "--json"]);
    assert_eq!(statuses(&report_of(&again)), ["a failed"], "it is no hit");
}

#[test]
fn a_disk_without_free_inodes_is_full() {
    let world = World::new("");
    let Some(disk) = Mounted::tmpfs(&world, "small", "size=64m,nr_inodes=400") else { return };
    let script =
        "a::mkdir d; for n in $(seq 600); do : > d/$n; done 2>/dev/null || true; echo x > o";
    world.write("p.toml", &commands(&[script]));
    let ended = smelt_on(&world, &disk, &["run", "p.toml", "--json"]);
    assert!(!is_whole_or_failed(&ended, 0), "{}", ended.stdout);
    let message = report_of(&ended)["stages"][0]["message"].to_string();
    assert!(message.contains("files"), "{message}");
}

/// A stage that fills its disk and goes on is ended before it has run its time.
#[test]
fn a_stage_that_brings_its_disk_under_the_reserve_is_ended() {
    let world = World::new("");
    let Some(disk) = Mounted::tmpfs(&world, "small", "size=16m") else { return };
    let script = "a::head -c 20M /dev/zero > o 2>/dev/null || true; sleep 1000";
    world.write("p.toml", &commands(&[script]));
    let ended = smelt_on(&world, &disk, &["run", "p.toml", "--json"]);
    assert!(!is_whole_or_failed(&ended, 0), "{}", ended.stdout);
    let attempt = &report_of(&ended)["stages"][0]["attempts"][0];
    assert!(
        attempt["message"].as_str().unwrap().starts_with("ended, since the disk of"),
        "{attempt}"
    );
    assert!(attempt["disk_free_min_bytes"].as_u64().unwrap() < 1 << 20, "{attempt}");
}

/// A program that says that a disk was full and ends well, wherever that was.
#[test]
fn a_log_that_says_so_is_believed() {
    let world = World::of_commands(&[
        "a::echo x > o; echo 'tool: write: No space left on device'; echo ok",
    ]);
    let ended = world.smelt(&["run", "p.toml", "--json"]);
    assert!(!is_whole_or_failed(&ended, 0), "{}", ended.stdout);
}

/// Whatever is free, our own records included: the run ends with its report, the stage that needs no
/// room is tried, what the journal says is what the report said, and `resume` does what that promised.
#[test]
fn a_run_ends_with_its_report_whatever_is_free() {
    let world = World::new("");
    let Some(disk) = Mounted::tmpfs(&world, "small", "size=32m") else { return };
    world.write("p.toml", &commands(&["a::echo x > o"]));
    assert_eq!(smelt_on(&world, &disk, &["run", "p.toml"]).code, Some(0));
    for kib in [0, 4, 8, 12, 16, 64, 256, 1024, 2048, 4096, 6144] {
        let script = format!("a::head -c 9M /dev/zero > o # {kib}");
        world.write("p.toml", &commands(&[&script, &format!("b::echo {kib} > o"), "c:a:echo > o"]));
        disk.leave(kib);
        let arguments = ["run", "p.toml", "--json", "--keep-going"];
        let ended = smelt_on(&world, &disk, &arguments);
        let report = report_of(&ended);
        assert_eq!((ended.code, &report["status"]), (Some(1), &"failed".into()), "{kib}: {report}");
        let stages = statuses(&report);
        assert_eq!((&stages[0][..], &stages[2][..]), ("a failed", "c skipped"), "{kib}: {report}");
        assert_eq!(report["stages"][0]["class"], "disk-full", "{kib}: {report}");
        assert!(kib < 6144 || stages[1] == "b sealed", "{kib}: {report}");
        let told = smelt_on(&world, &disk, &["report", "--json"]);
        if report["not_written"].is_null() {
            assert_eq!(statuses(&report_of(&told)), stages, "{kib}: {}", told.stdout);
        }
        let lacks = report["not_written"].as_str().unwrap_or_default();
        let is_known = lacks.contains("`smelt resume` takes the run for one that died");
        let is_unknown = lacks.contains("`smelt resume` does not know it: run the same command");
        assert!(lacks.is_empty() || is_known || is_unknown, "{kib}: {lacks}");
        disk.leave(20 << 10);
        let resumed = smelt_on(&world, &disk, &["resume"]);
        assert_eq!(resumed.code, Some(0), "{kib}: {}", resumed.stderr);
        let goes_on = resumed.stderr.contains("; going on\n");
        assert_eq!(goes_on, is_known, "{kib}: {lacks} {}", resumed.stderr);
        disk.leave(20 << 10);
        let again = smelt_on(&world, &disk, &arguments);
        assert_eq!(again.code, Some(0), "{kib}: {}", again.stderr);
        disk.leave(20 << 10);
        let gone = smelt_on(&world, &disk, &["cache", "gc", "--max-size", "0"]);
        assert_eq!(gone.code, Some(0), "{}", gone.stderr);
    }
}
