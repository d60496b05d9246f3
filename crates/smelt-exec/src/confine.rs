//! Confines what a stage writes: the kernel refuses it everywhere but in the places given.
//!
//! Landlock binds a thread and whatever that thread starts, and is never taken back.  So a program is
//! started from a thread of its own that binds itself first, and the shim stays free for the stages
//! after it.  Reading is not confined, nor are modes, owners and times of files, which Landlock does
//! not know.  It knows no stages: who may write where is decided by whoever asks.

use std::io;
use std::path::Path;
use std::process::{Child, Command};
use std::thread;

use landlock::{
    ABI, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError,
};
use serde::{Deserialize, Serialize};

/// What a program can hardly be without: null and terminals, GPUs, and the names of its threads.
/// Files can be written there, not made.
const DEVICES: [&str; 2] = ["/dev", "/proc"];
/// Shared memory and semaphores are made here; they are gone with the machine's memory.
const SHARED: &str = "/dev/shm";

/// How an attempt's writes were held to what it declares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Writes {
    /// The kernel refused all others.
    Confined,
    /// It declares `/`: it may write anywhere.
    Anywhere,
    /// This kernel has no Landlock that allows renames between directories (Linux 5.19).
    Unwatched,
}

/// Starts `command`; it and all it starts write only beneath `places` and to devices.
pub(crate) fn spawn(command: &mut Command, places: &[&Path]) -> io::Result<(Child, Writes)> {
    if places.contains(&Path::new("/")) {
        return Ok((command.spawn()?, Writes::Anywhere));
    }
    let Some(rules) = rules(places)? else { return Ok((command.spawn()?, Writes::Unwatched)) };
    let bound = move || {
        rules.restrict_self().map_err(io::Error::other)?;
        Ok((command.spawn()?, Writes::Confined))
    };
    thread::scope(|scope| match thread::Builder::new().spawn_scoped(scope, bound) {
        Ok(thread) => thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))),
        Err(error) => Err(error),
    })
}

/// The kernel's form of `places`; `None` where it knows none.
fn rules(places: &[&Path]) -> io::Result<Option<RulesetCreated>> {
    let all = AccessFs::from_write(ABI::V3);
    let Ok(mut rules) = handle(all) else { return Ok(None) };
    for place in places {
        let opened = PathFd::new(place).map_err(|_| unfit(place))?;
        rules = allow(rules, opened, all)?;
    }
    let to_devices = AccessFs::WriteFile | AccessFs::Truncate;
    for (place, access) in [(DEVICES[0], to_devices), (DEVICES[1], to_devices), (SHARED, all)] {
        // A container may be without.
        if let Ok(opened) = PathFd::new(place) {
            rules = allow(rules, opened, access)?;
        }
    }
    Ok(Some(rules))
}

/// Renames between directories must be possible.  What only a newer kernel knows is left out: on an
/// older one a file can be cut by its name, wherever it lies.
fn handle(all: BitFlags<AccessFs>) -> Result<RulesetCreated, RulesetError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_write(ABI::V2))?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .create()
}

fn allow(
    rules: RulesetCreated,
    place: PathFd,
    access: BitFlags<AccessFs>,
) -> io::Result<RulesetCreated> {
    rules.add_rule(PathBeneath::new(place, access)).map_err(io::Error::other)
}

fn unfit(place: &Path) -> io::Error {
    let why = io::Error::last_os_error();
    io::Error::new(
        why.kind(),
        format!(
            "it declares that it writes to {}: {why}; make that first, or declare the directory it is to be in",
            place.display()
        ),
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::process::Stdio;

    use super::*;

    /// What a shell says and how it ends that may write only beneath `out`, of a folder that has
    /// `out`, `other` and a file `mark`.  `None` where the kernel has no Landlock.
    fn shell(script: &str, declared: &[&str]) -> Option<(bool, String, tempfile::TempDir)> {
        let folder = tempfile::tempdir().unwrap();
        for name in ["out", "other"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        fs::write(folder.path().join("mark"), "").unwrap();
        let mut command = Command::new("sh");
        command.args(["-ec", script]).current_dir(folder.path().join("out"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let places: Vec<_> =
            ["out"].iter().chain(declared).map(|n| folder.path().join(n)).collect();
        let places: Vec<_> = places.iter().map(PathBuf::as_path).collect();
        let (child, writes) = spawn(&mut command, &places).unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        (writes == Writes::Confined).then_some((output.status.success(), said, folder))
    }

    #[track_caller]
    fn check(script: &str, declared: &[&str], may: bool) {
        let Some((ended_well, said, folder)) = shell(script, declared) else {
            return println!("not run: no Landlock here");
        };
        assert_eq!(ended_well, may, "{script}: {said}");
        let said_so = ["ermission denied", "cross-device"].iter().any(|words| said.contains(words));
        assert!(may || said_so, "{script}: {said}");
        // Whoever confined another is free.
        fs::write(folder.path().join("free"), "x").unwrap();
    }

    #[test]
    fn its_own_directory_takes_everything() {
        check(
            "mkdir -p a b; echo x > a/f; mv a/f b/g; ln b/g h; ln -s h i; rm h; rm -r b",
            &[],
            true,
        );
        check("mkfifo f; truncate -s 3 g; chmod +x g; (cd /; echo x > $OLDPWD/y)", &[], true);
    }

    #[test]
    fn devices_can_be_written() {
        check(
            "echo x > /dev/null; echo x 2> /dev/null >&2; cat < /dev/zero | head -c 9 > f",
            &[],
            true,
        );
        check("echo name > /proc/self/comm; f=/dev/shm/smelt-$$; echo x > $f; rm $f", &[], true);
        check("cat /etc/passwd > f; test -r ../other", &[], true);
    }

    #[test]
    fn all_else_is_refused() {
        for script in [
            "echo x > ../new",
            "echo x >> ../mark",
            "rm ../mark",
            "mkdir ../other/d",
            "rmdir ../other",
            "touch ../other/f",
            "echo x > f; mv f ../f",
            "mv ../mark .",
            "ln ../mark .",
            "touch /dev/smelt-makes-this",
            "sh -c 'sh -c \"echo x > ../deep\"'",
        ] {
            check(script, &[], false);
        }
    }

    #[test]
    fn what_is_declared_is_not() {
        check("echo x > ../other/f; mv ../other/f .; mv f ../other/g", &["other"], true);
        check("echo x > ../mark", &["mark"], true);
        check("rm ../mark", &["mark"], false);
        check("echo x > ../mark", &["other"], false);
    }

    #[test]
    fn what_is_declared_must_be_there() {
        let error = spawn(&mut Command::new("true"), &[Path::new("/nowhere/at/all")]).unwrap_err();
        assert!(error.to_string().contains("/nowhere/at/all: No such file"), "{error}");
    }

    #[test]
    fn the_root_stands_for_no_confinement() {
        let (mut child, writes) = spawn(&mut Command::new("true"), &[Path::new("/")]).unwrap();
        assert!(child.wait().unwrap().success() && writes == Writes::Anywhere);
    }
}
