//! Stores on other file systems than a disk's own: each works as promised, or is refused with why.
//!
//! These mount in a name space that is gone with the test; where nobody may, they say so.

use std::process::Command;

use crate::world::machine::say;
use crate::world::side::is_root;
use crate::world::{Ended, World, commands, ended, statuses};
use serde_json::Value;

/// Does what `script` says in `disk`, once `mount` has put something there; `None` where it cannot be mounted.
fn run_mounted(world: &World, mount: &str, script: &str) -> Option<Ended> {
    let script = format!(
        "mkdir disk low up work store; {{ {mount}; }} > said 2>&1 || exit 99; \
         export SMELT_CACHE=$PWD/store/cache; cd disk; {script}"
    );
    let mut sh = Command::new("unshare");
    world.prepare(&mut sh);
    sh.env("SMELT", env!("CARGO_BIN_EXE_smelt")).args(["-m", "sh", "-ec", &script]);
    let ended = ended(&mut sh);
    if !matches!(ended.code, Some(99)) && !ended.stderr.contains("unshare") {
        return Some(ended);
    }
    say(&format!("not run: {}{}", ended.stderr, world.read("said")));
    None
}

/// Runs smelt twice on a store in `disk`, and checks what there is.
fn run_on(mount: &str) -> Option<(World, Ended)> {
    let world =
        World::of_commands(&["a::echo a > o; mkdir d; echo b > d/f", "b:a:cat $SMELT_IN_A/o > o"]);
    let script = "export SMELT_CACHE=$PWD/cache; cd ..; \
        $SMELT run p.toml --json > first; $SMELT cache fsck >&2; $SMELT run p.toml --json";
    let ended = run_mounted(&world, mount, script)?;
    Some((world, ended))
}

#[track_caller]
fn works(mount: &str) {
    let Some((world, Ended { code, stdout, stderr })) = run_on(mount) else { return };
    assert_eq!(code, Some(0), "{stderr}");
    let first: Value = serde_json::from_str(&world.read("first")).unwrap();
    assert_eq!(statuses(&first), ["a sealed", "b sealed"], "{stderr}");
    let again: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(statuses(&again), ["a hit", "b hit"], "{stderr}");
}

#[test]
fn a_store_on_an_overlay_works() {
    works(
        "mount -t tmpfs tmpfs work && mkdir work/up work/work && \
        mount -t overlay -o lowerdir=low,upperdir=work/up,workdir=work/work overlay disk",
    );
}

#[test]
fn a_store_on_tmpfs_works_and_is_warned_of() {
    works("mount -t tmpfs tmpfs disk");
    let Some((_, told)) = run_on("mount -t tmpfs tmpfs disk") else { return };
    assert!(told.stderr.contains("is on tmpfs, which is memory"), "{}", told.stderr);
}

#[track_caller]
fn is_refused(mount: &str, words: &str) {
    let world = World::of_commands(&["a::echo a > o"]);
    let script = "export SMELT_CACHE=$PWD/new/cache; cd ..; \
        $SMELT run p.toml || { code=$?; ls -A disk > left; exit $code; }";
    let Some(told) = run_mounted(&world, mount, script) else { return };
    assert_ne!(told.code, Some(0), "{}", told.stderr);
    assert!(told.stderr.contains(words), "{}", told.stderr);
    assert!(!world.read("left").contains("new"), "what is refused leaves nothing");
}

#[test]
fn a_store_on_vfat_is_refused() {
    let mount = "truncate -s 16M image && mkfs.vfat image && mount -o loop image disk";
    is_refused(mount, "cannot be on vfat: it knows no modes");
}

#[test]
fn a_store_on_exfat_is_refused() {
    let mount = "truncate -s 16M image && mkfs.exfat image && mount -t exfat -o loop image disk";
    is_refused(mount, "cannot be on exFAT: it knows no modes");
}

/// A folder that `cargo xtask other-kernel` lends its guest stands for all networks' file systems.
#[test]
fn a_store_on_another_machine_is_refused() {
    let mount = "mount -t 9p -o trans=virtio,version=9p2000.L lent disk";
    is_refused(mount, "cannot be on 9P: it is of the network");
}

/// What `cargo xtask other-kernel` has its guest serve itself; other machines have nothing there, and mostly no NFS.
const NFS: &str = "grep -qw nfs4 /proc/filesystems || { echo this kernel has no NFS; false; } && \
    mount -i -t nfs4 -o addr=127.0.0.1,clientaddr=127.0.0.1 127.0.0.1:/ disk";

#[test]
fn a_store_on_nfs_is_refused() {
    is_refused(NFS, "cannot be on NFS: it is of the network");
}

/// A pipeline and its input on NFS, the store elsewhere: nothing is written beside them.
#[test]
fn inputs_on_nfs_are_read_and_seen_to_change() {
    let text = commands(&["a:in:cat $SMELT_INPUTS/f > o", "b:a:cat $SMELT_IN_A/o > o"]);
    let world = World::new(&text.replace("\"in\"", "\"path:in\""));
    let script = "mkdir -p lab/in; echo read > lab/in/f; cp ../p.toml lab; cd lab; \
        find . | sort > ../../before; run() { $SMELT run p.toml --json > ../../$1; }; \
        run first; run again; echo changed > in/f; run changed; find . | sort > ../../after; \
        unset SMELT_CACHE; $SMELT run p.toml";
    let Some(Ended { code, stderr, .. }) = run_mounted(&world, NFS, script) else { return };
    for (report, all) in [
        ("first", ["a sealed", "b sealed"]),
        ("again", ["a hit", "b hit"]),
        ("changed", ["a sealed", "b sealed"]),
    ] {
        let report: Value = serde_json::from_str(&world.read(report)).unwrap();
        assert_eq!(statuses(&report), all, "{stderr}");
    }
    let before = world.read("before");
    assert!(before.contains("./in/f"), "{before}");
    assert_eq!(before, world.read("after"), "{stderr}");
    assert_ne!(code, Some(0), "the usual store lies beside the pipeline: {stderr}");
    assert!(stderr.contains("cannot be on NFS"), "{stderr}");
}

/// Stages write shared memory freely, and each has its own.
#[test]
fn a_store_in_shared_memory_is_refused() {
    let world = World::of_commands(&["a::echo x > o"]);
    let at = format!("/dev/shm/smelt-test-{}", std::process::id());
    let refused = ended(world.command(&["run", "p.toml"]).env("SMELT_CACHE", &at));
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("stages have /dev/shm to themselves"), "{}", refused.stderr);
    assert!(!std::path::Path::new(&at).exists());
    std::os::unix::fs::symlink("/dev/shm", world.path("link")).unwrap();
    let linked = world.path("link/store");
    let refused = ended(world.command(&["run", "p.toml"]).env("SMELT_CACHE", &linked));
    assert_eq!((refused.code, linked.exists()), (Some(2), false), "{}", refused.stderr);
}

#[test]
fn what_lies_in_shared_memory_may_be_named() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    std::fs::write(folder.path().join("input"), "held").unwrap();
    let path = format!("path:{}", folder.path().join("input").display());
    let text = commands(&["a::cat $SMELT_INPUTS > o; test -s o"]);
    let text = text.replace("inputs = []", &format!("inputs = [\"{path}\"]"));
    let world = World::new("");
    for more in ["", "writes = [\"/dev/shm\"]\n", "strict = true\n"] {
        let kind = "kind = \"command\"\n";
        world.write("p.toml", &text.replace(kind, &format!("{kind}{more}")));
        for way in ["landlock", "mounts"] {
            let run = ["run", "p.toml", "--json", "--force", "a"];
            let built = ended(world.command(&run).env("SMELT_CONFINE", way));
            if way == "landlock" && built.stderr.contains("cannot be confined: unsupported") {
                say("not run: this machine has no landlock");
                continue;
            }
            assert_eq!(built.code, Some(0), "{more}{way}: {}", built.stderr);
            let report: Value = serde_json::from_str(&built.stdout).unwrap();
            let held = &report["stages"][0]["attempts"][0]["confined_by"];
            // Not every machine has Landlock, or lets users mount.
            println!("{more}{way}: confined by {held}");
            assert!(!is_root() || way != "mounts" || held == "mounts", "{more}{way}: {held}");
        }
    }
}
