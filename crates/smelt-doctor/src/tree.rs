//! Reads files of a device: the one we run on, or a captured tree of another.
//!
//! What is missing is no error, since every kernel and every capture lacks something.  Nothing
//! outside the root is read: a captured tree's links are followed within it, absolute ones too.
//! Files are bounded, so that a hostile capture costs little.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Component, Path, PathBuf};

/// Files of the kernel and of `/etc` that are read have a few KiB.
const TEXT_MAX: u64 = 1 << 20;
/// `dpkg/status` of a full desktop has some 6 MiB.
const LONG_TEXT_MAX: u64 = 32 << 20;
/// As many as the kernel follows.
const LINKS_MAX: usize = 40;
/// More entries than the default limit of process ids; the rest of a larger folder is not seen.
const ENTRIES_MAX: usize = 40_000;

/// A device's file system.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    root: PathBuf,
}

impl Tree {
    pub(crate) fn at(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Whether this is the device we run on.
    pub(crate) fn is_live(&self) -> bool {
        self.root == Path::new("/")
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// A file's text, with what is not UTF-8 replaced; `None` for what is no readable file.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        self.read(path, TEXT_MAX)
    }

    /// The same of a file that may be long.
    pub(crate) fn long_text(&self, path: &str) -> Option<String> {
        self.read(path, LONG_TEXT_MAX)
    }

    /// A file's first line, without what ends strings in device trees; `None` where it is empty.
    pub(crate) fn line(&self, path: &str) -> Option<String> {
        let text = self.text(path)?;
        let line = text.lines().next()?.trim_matches(['\0', ' ', '\t']);
        (!line.is_empty()).then(|| line.to_owned())
    }

    /// A file that holds one whole number.
    pub(crate) fn number<N: std::str::FromStr>(&self, path: &str) -> Option<N> {
        self.line(path)?.parse().ok()
    }

    /// The names in a folder, sorted.
    pub(crate) fn list(&self, path: &str) -> Vec<String> {
        let Some(found) = self.resolve(path) else { return Vec::new() };
        let entries = fs::read_dir(self.root.join(found)).into_iter().flatten().take(ENTRIES_MAX);
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Whether a folder may be listed; a folder that is not there may not.
    pub(crate) fn may_list(&self, path: &str) -> bool {
        self.resolve(path).is_some_and(|found| fs::read_dir(self.root.join(found)).is_ok())
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        self.resolve(path).is_some_and(|found| self.root.join(found).exists())
    }

    /// What a link says, whether or not that exists.
    pub(crate) fn link(&self, path: &str) -> Option<String> {
        let (folder, name) = path.rsplit_once('/')?;
        let folder = self.root.join(self.resolve(folder)?);
        fs::read_link(folder.join(name)).ok()?.to_str().map(str::to_owned)
    }

    /// The path without links, relative to the root; `None` where links go round in circles.
    pub(crate) fn resolve(&self, path: &str) -> Option<PathBuf> {
        let mut left: VecDeque<OsString> = parts(Path::new(path)).collect();
        let mut found = PathBuf::new();
        let mut links = 0;
        while let Some(part) = left.pop_front() {
            if part == ".." {
                found.pop();
                continue;
            }
            found.push(&part);
            let Ok(target) = fs::read_link(self.root.join(&found)) else { continue };
            links += 1;
            if links > LINKS_MAX {
                return None;
            }
            found.pop();
            if target.is_absolute() {
                found.clear();
            }
            left = parts(&target).chain(left).collect();
        }
        Some(found)
    }

    fn read(&self, path: &str, most: u64) -> Option<String> {
        let file = self.root.join(self.resolve(path)?);
        // Opening a pipe would wait for whoever writes it.
        if !fs::symlink_metadata(&file).ok()?.is_file() {
            return None;
        }
        let mut bytes = Vec::new();
        File::open(file).ok()?.take(most).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Names and `..` of a path.
fn parts(path: &Path) -> impl Iterator<Item = OsString> {
    path.components()
        .filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir))
        .map(|part| part.as_os_str().to_owned())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A captured tree: files by path; a text that begins with `->` is a link.
    pub(crate) fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Tree) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            match text.strip_prefix("->") {
                Some(target) => symlink(target, path).unwrap(),
                None => fs::write(path, text).unwrap(),
            }
        }
        let tree = Tree::at(dir.path());
        (dir, tree)
    }

    #[test]
    fn links_stay_in_the_tree() {
        let (_dir, tree) = tree(&[
            ("etc/conf", "->/etc/models/a.conf"),
            ("etc/models/a.conf", "inside\n"),
            ("etc/out", "->../../../../../../../../../../etc/models/a.conf"),
            ("etc/round", "->/etc/round"),
            ("etc/folder", "->models"),
        ]);
        assert_eq!(tree.text("etc/conf").as_deref(), Some("inside\n"));
        assert_eq!(tree.line("etc/out").as_deref(), Some("inside"));
        assert_eq!(tree.line("etc/folder/a.conf").as_deref(), Some("inside"));
        assert_eq!(tree.text("etc/round"), None);
        assert_eq!(tree.link("etc/folder/../conf").as_deref(), Some("/etc/models/a.conf"));
        assert_eq!(tree.list("etc/folder"), ["a.conf"]);
    }

    #[test]
    fn what_is_no_file_is_nothing() {
        let (dir, tree) = tree(&[("proc/x", "7\0\n"), ("proc/bytes", "")]);
        fs::write(dir.path().join("proc/bytes"), [0x41, 0xff, 0x0a]).unwrap();
        assert_eq!(tree.number("proc/x"), Some(7));
        assert_eq!(tree.line("proc/bytes").as_deref(), Some("A\u{fffd}"));
        assert_eq!(tree.text("proc"), None);
        assert_eq!(tree.text("proc/y"), None);
        assert!(tree.list("proc/y").is_empty() && !tree.exists("proc/y"));
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(tree.text("pipe"), None);
    }

    #[test]
    fn a_huge_file_is_cut() {
        let (dir, tree) = tree(&[("huge", "")]);
        File::options()
            .write(true)
            .open(dir.path().join("huge"))
            .unwrap()
            .set_len(1 << 40)
            .unwrap();
        assert_eq!(tree.text("huge").unwrap().len() as u64, TEXT_MAX);
    }
}
