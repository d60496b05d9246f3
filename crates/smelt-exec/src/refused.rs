//! Finds in the log of an attempt that it was refused a write, or a read where it is strict.
//!
//! The kernel tells nobody but the program.  Most programs say so, even where they go on and end
//! well; a line that says "permission denied" of a path counts where the path lies outside of what
//! the attempt may write and we, who are not confined, could write there.  One that keeps quiet has
//! written nothing, either.  What a strict one may not read is refused to it or not there, and counts
//! where it is there for us.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Component, Path, PathBuf};

use nix::unistd::{AccessFlags, access};

/// In every spelling: of the C library, Rust, Python, Go and Java.  A mount name space makes all else
/// read-only.
const WORDS: [&str; 2] = ["ermission denied", "ead-only file system"];
/// What a mount name space does not show is not there.
const ABSENT: &str = "o such file or directory";
/// Longer lines are looked at in pieces: nobody writes a path of several KiB.
const LINE_BYTES_MAX: u64 = 16 << 10;
/// A log that is full of complaints is not read to its end.
const COMPLAINTS_MAX: usize = 64;

/// What the confinement kept from an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// Writing there.
    Write(PathBuf),
    /// Seeing what is there.
    Read(PathBuf),
}

/// The first path that a stage in `dir`, which may write to `places`, complains of in its log.  A strict one
/// has `seen` nothing else but that.
pub(crate) fn find(
    log: &Path,
    dir: &Path,
    places: &[&Path],
    seen: Option<&[PathBuf]>,
) -> Option<Refused> {
    let lines = complaints(BufReader::new(File::open(log).ok()?), seen.is_some()).ok()?;
    let shown = seen.map(|seen| seen.iter().map(PathBuf::as_path).collect::<Vec<_>>());
    let mut named = lines.iter().flat_map(|line| paths(line).into_iter().map(move |at| (line, at)));
    named.find_map(|(line, path)| {
        let path = plain(&dir.join(path));
        if is_within(&path, places) {
            return None;
        }
        let is_hidden = shown.as_ref().is_some_and(|shown| !is_within(&path, shown));
        if is_hidden && could_be_read(&path) {
            return Some(Refused::Read(path));
        }
        (is_denied(line) && could_be_written(&path)).then_some(Refused::Write(path))
    })
}

/// The first path that `words`, the arguments of a strict program, name and that it has not `seen`, though we could.
/// Programs that do not say what they lack were mostly told of it.
pub(crate) fn unseen(
    words: &[String],
    dir: &Path,
    places: &[&Path],
    seen: &[PathBuf],
) -> Option<PathBuf> {
    // Nodes of devices are seen or not by their names, and the root is no file.
    let apart = ["/dev", "/proc"].map(Path::new);
    let shown: Vec<_> = seen.iter().map(PathBuf::as_path).chain(apart).collect();
    let mut named = words.iter().flat_map(|word| paths(word)).map(|path| plain(&dir.join(path)));
    named.find(|path| {
        let is_hidden = !is_within(path, places) && !is_within(path, &shown);
        is_hidden && path.parent().is_some() && could_be_read(path)
    })
}

/// The lines that complain, also of what is `absent`.
fn complaints(mut log: impl BufRead, absent: bool) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    let mut line = Vec::new();
    while found.len() < COMPLAINTS_MAX {
        line.clear();
        if (&mut log).take(LINE_BYTES_MAX).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        let text = String::from_utf8_lossy(&line);
        if is_denied(&text) || absent && text.contains(ABSENT) {
            found.push(text.into_owned());
        }
    }
    Ok(found)
}

fn is_denied(line: &str) -> bool {
    WORDS.iter().any(|words| line.contains(words))
}

/// What may be a path in a line, the last first: what stands in quotes, and each word.  A program's own
/// name comes first in a line.
fn paths(line: &str) -> Vec<&str> {
    const QUOTES: [char; 5] = ['\'', '"', '`', '‘', '’'];
    let quoted = line.split(QUOTES).skip(1).step_by(2);
    let words =
        line.split(|c: char| c.is_whitespace() || QUOTES.contains(&c) || "()[],;".contains(c));
    let words = words.map(|word| word.trim_start_matches(':').trim_end_matches([':', '.']));
    let mut paths: Vec<_> = words.chain(quoted).filter(|word| word.contains('/')).collect();
    paths.reverse();
    paths
}

/// Without `.` and `..`, as far as the text says.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

/// Whether the path lies where the attempt may write, by its text or by where links lead.
fn is_within(path: &Path, places: &[&Path]) -> bool {
    let real = existing(path).and_then(|there| there.canonicalize().ok());
    places.iter().any(|place| {
        path.starts_with(place)
            || place
                .canonicalize()
                .is_ok_and(|place| real.as_ref().is_some_and(|real| real.starts_with(&place)))
    })
}

/// The path itself, or of what it is in the nearest that exists.
fn existing(path: &Path) -> Option<&Path> {
    path.ancestors().find(|path| path.symlink_metadata().is_ok())
}

/// Whether it is there, and to be read by us.
fn could_be_read(path: &Path) -> bool {
    access(path, AccessFlags::R_OK).is_ok()
}

/// Whether nothing but the confinement is in the way: neither of writing nor of reading it.
fn could_be_written(path: &Path) -> bool {
    let Some(there) = existing(path) else { return false };
    let is_dir = there.is_dir();
    let mut wanted = AccessFlags::R_OK | AccessFlags::W_OK;
    wanted.set(AccessFlags::X_OK, is_dir);
    // Programs are named more often than written.
    let is_program = !is_dir && access(there, AccessFlags::X_OK).is_ok();
    (is_dir || there == path) && !is_program && access(there, wanted).is_ok()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn paths_are_found_in_the_words_of_many_tools() {
        let check = |line: &str, path: &str| {
            assert!(paths(line).contains(&path), "{line}: {:?}", paths(line));
        };
        check("sh: 1: cannot create /a/b: Permission denied", "/a/b");
        check("bash: line 1: /a/b: Permission denied", "/a/b");
        check("cp: cannot create regular file '../a b': Permission denied", "../a b");
        check("touch: cannot touch ‘/a b/c’: Permission denied", "/a b/c");
        check("PermissionError: [Errno 13] Permission denied: '/a/b'", "/a/b");
        check("open /a/b: permission denied", "/a/b");
        check("cannot write \"/a/b\": Permission denied (os error 13)", "/a/b");
        check("java.io.FileNotFoundException: /a/b (Permission denied)", "/a/b");
        check("EACCES: permission denied, open '/a/b'", "/a/b");
        assert!(paths("Permission denied").is_empty());
        assert_eq!(paths("/bin/sh: 1: cannot create ../b: Permission denied"), ["../b", "/bin/sh"]);
    }

    #[test]
    fn lines_without_end_are_read_in_pieces() {
        let mut text = "x".repeat(100_000).into_bytes();
        text.extend(b"\nno\nopen /a: permission denied\n");
        assert_eq!(complaints(text.as_slice(), false).unwrap(), ["open /a: permission denied\n"]);
        let many = "Permission denied\n".repeat(1000);
        assert_eq!(complaints(many.as_bytes(), false).unwrap().len(), COMPLAINTS_MAX);
    }

    /// What is found of a log with this line, of an attempt in `out` of a folder; `{}` is the folder.
    fn found(line: &str) -> Option<String> {
        match found_of(line, false)? {
            Refused::Write(path) => Some(path.to_str().unwrap().to_owned()),
            Refused::Read(path) => panic!("{path:?} is not read"),
        }
    }

    /// The same; a strict one may read `seen` of the folder and the system's directories.
    fn found_of(line: &str, is_strict: bool) -> Option<Refused> {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        ["out", "more"].iter().for_each(|name| fs::create_dir(at(name)).unwrap());
        symlink(at("more"), at("link")).unwrap();
        let here = folder.path().to_str().unwrap();
        fs::write(at("log"), line.replace("{}", here)).unwrap();
        fs::create_dir(at("seen")).unwrap();
        fs::write(at("seen/f"), "").unwrap();
        let seen = [at("seen"), "/usr".into()];
        let seen = is_strict.then_some(&seen[..]);
        let short = |path: PathBuf| PathBuf::from(path.to_str().unwrap().replace(here, "{}"));
        Some(match find(&at("log"), &at("out"), &[&at("out"), &at("more")], seen)? {
            Refused::Write(path) => Refused::Write(short(path)),
            Refused::Read(path) => Refused::Read(short(path)),
        })
    }

    #[test]
    fn what_a_strict_one_may_not_see_counts() {
        let check = |line: &str, expect: Option<Refused>| {
            assert_eq!(found_of(line, true), expect, "{line}");
        };
        let read = |path: &str| Some(Refused::Read(path.into()));
        check("cat: {}/log: Permission denied", read("{}/log"));
        check("cat: {}/log: No such file or directory", read("{}/log"));
        check("cat: {}/none: No such file or directory", None);
        check("cat: {}/none: Permission denied", Some(Refused::Write("{}/none".into())));
        check("cat: {}/seen/g: No such file or directory", None);
        check("cat: {}/out/g: No such file or directory", None);
        check("cat: /usr/bin: No such file or directory", None);
        assert_eq!(found_of("cat: {}/log: No such file or directory", false), None);
    }

    #[test]
    fn arguments_name_what_a_program_is_silent_of() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        ["out", "seen"].iter().for_each(|name| fs::create_dir(at(name)).unwrap());
        fs::write(at("secret"), "").unwrap();
        let here = folder.path().to_str().unwrap();
        let check = |word: &str, expect: Option<&str>| {
            let words = ["/bin/sh".to_owned(), word.replace("{}", here)];
            let (out, seen) = (at("out"), [at("seen"), "/bin".into(), "/usr".into()]);
            let found = unseen(&words, &out, &[&out], &seen);
            assert_eq!(found, expect.map(at), "{word}");
        };
        check("cat {}/secret > o 2> /dev/null", Some("secret"));
        check("cat '../secret'", Some("secret"));
        check("--from={}/none", None);
        check("cat {}/seen {}/out / ./o; sed s/a/b/", None);
    }

    #[test]
    fn what_only_the_confinement_refuses_counts() {
        let check = |path: &str, expect: Option<&str>| {
            assert_eq!(found(&format!("open {path}: permission denied")).as_deref(), expect);
        };
        check("{}/new", Some("{}/new"));
        check("{}/log", Some("{}/log"));
        check("{}/deep/er", Some("{}/deep/er"));
        check("../x", Some("{}/x"));
        check("{}/out/x", None);
        check("{}/out/../more/x", None);
        check("{}/link/x", None);
        check("{}/log/below-a-file", None);
        assert_eq!(found("/bin/sh: 1: {}/out/x: Permission denied"), None);
        assert_eq!(found("all is well with {}/new"), None);
    }
}
