//! Finds in the log of an attempt that it was refused a write.
//!
//! The kernel tells nobody but the program.  Most programs say so, even where they go on and end
//! well; a line that says "permission denied" of a path counts where the path lies outside of what
//! the attempt may write and we, who are not confined, could write there.  One that keeps quiet has
//! written nothing, either.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Component, Path, PathBuf};

use nix::unistd::{AccessFlags, access};

/// In every spelling: of the C library, Rust, Python, Go and Java.  A mount name space makes all else
/// read-only.
const WORDS: [&str; 2] = ["ermission denied", "ead-only file system"];
/// Longer lines are looked at in pieces: nobody writes a path of several KiB.
const LINE_BYTES_MAX: u64 = 16 << 10;
/// A log that is full of complaints is not read to its end.
const COMPLAINTS_MAX: usize = 64;

/// The first path that a stage in `dir`, which may write to `places`, complains of in its log.
pub(crate) fn find(log: &Path, dir: &Path, places: &[&Path]) -> Option<PathBuf> {
    let lines = complaints(BufReader::new(File::open(log).ok()?)).ok()?;
    let mut paths = lines.iter().flat_map(|line| paths(line)).map(|path| dir.join(path));
    paths.find_map(|path| {
        let path = plain(&path);
        (!is_within(&path, places) && could_be_written(&path)).then_some(path)
    })
}

/// The lines that complain.
fn complaints(mut log: impl BufRead) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    let mut line = Vec::new();
    while found.len() < COMPLAINTS_MAX {
        line.clear();
        if (&mut log).take(LINE_BYTES_MAX).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        let text = String::from_utf8_lossy(&line);
        if WORDS.iter().any(|words| text.contains(words)) {
            found.push(text.into_owned());
        }
    }
    Ok(found)
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
        assert_eq!(complaints(text.as_slice()).unwrap(), ["open /a: permission denied\n"]);
        let many = "Permission denied\n".repeat(1000);
        assert_eq!(complaints(many.as_bytes()).unwrap().len(), COMPLAINTS_MAX);
    }

    /// What is found of a log with this line, of an attempt in `out` of a folder; `{}` is the folder.
    fn found(line: &str) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        ["out", "more"].iter().for_each(|name| fs::create_dir(at(name)).unwrap());
        symlink(at("more"), at("link")).unwrap();
        let here = folder.path().to_str().unwrap();
        fs::write(at("log"), line.replace("{}", here)).unwrap();
        let path = find(&at("log"), &at("out"), &[&at("out"), &at("more")])?;
        Some(path.to_str().unwrap().replace(here, "{}"))
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
