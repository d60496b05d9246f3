//! Says which kernel modules a guest loads, in which order.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// What a module file says that it needs, behind `depends=` in its section `.modinfo`.
fn needs(module: &[u8]) -> Vec<String> {
    const MARK: &[u8] = b"\0depends=";
    let Some(at) = module.windows(MARK.len()).position(|window| window == MARK) else {
        return Vec::new();
    };
    let rest = &module[at + MARK.len()..];
    let end = rest.iter().position(|&byte| byte == 0).unwrap_or(rest.len());
    let names = String::from_utf8_lossy(&rest[..end]).into_owned();
    names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// The modules `wanted` and all they need, each after what it needs.  What `find` does not know is
/// part of the kernel.
fn order(wanted: &[&str], find: &impl Fn(&str) -> Option<Vec<String>>) -> Vec<String> {
    fn visit(
        name: &str,
        find: &impl Fn(&str) -> Option<Vec<String>>,
        seen: &mut BTreeSet<String>,
        order: &mut Vec<String>,
    ) {
        if !seen.insert(name.to_owned()) {
            return;
        }
        if let Some(needs) = find(name) {
            needs.iter().for_each(|need| visit(need, find, seen, order));
            order.push(name.to_owned());
        }
    }
    let (mut seen, mut order) = (BTreeSet::new(), Vec::new());
    wanted.iter().for_each(|name| visit(name, find, &mut seen, &mut order));
    order
}

/// A module and what it is told when it is loaded.
pub(super) struct Module {
    pub(super) name: String,
    /// As `insmod` takes them: `name=value …`.
    pub(super) options: String,
    pub(super) content: Vec<u8>,
}

/// The modules `wanted` (a name, and behind it options) from under `folder`, and what they need, in
/// the order to load them.
pub(super) fn load(folder: &Path, wanted: &[&str]) -> Result<Vec<Module>> {
    let wanted: Vec<(&str, &str)> =
        wanted.iter().map(|words| words.split_once(' ').unwrap_or((words, ""))).collect();
    let names: Vec<&str> = wanted.iter().map(|(name, _)| *name).collect();
    let mut files = Vec::new();
    list(folder, &mut files)?;
    let path = |name: &str| files.iter().find(|path| is_of(path, name));
    let read = |name: &str| fs::read(path(name)?).ok();
    let order = order(&names, &|name| Some(needs(&read(name)?)));
    let with_content = |name: String| {
        let content = read(&name).with_context(|| format!("cannot read module {name}"))?;
        let options = wanted.iter().find(|(wanted, _)| *wanted == name);
        let options = options.map_or("", |(_, options)| options).to_owned();
        Ok(Module { name, options, content })
    };
    order.into_iter().map(with_content).collect()
}

/// `-` and `_` are one to modules, and their files and those who need them spell either.
fn is_of(path: &Path, module: &str) -> bool {
    let stem = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".ko"));
    stem.is_some_and(|stem| stem.replace('-', "_") == module.replace('-', "_"))
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            list(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_module_comes_after_what_it_needs_and_once() {
        let find = |name: &str| match name {
            "virtio_blk" => Some(vec!["virtio".to_owned(), "virtio_ring".to_owned()]),
            "virtio_pci" => Some(vec!["virtio_ring".to_owned(), "built_in".to_owned()]),
            "virtio_ring" => Some(vec!["virtio".to_owned()]),
            "virtio" => Some(Vec::new()),
            _ => None,
        };
        let order = order(&["virtio_pci", "virtio_blk"], &find);
        assert_eq!(order, ["virtio", "virtio_ring", "virtio_pci", "virtio_blk"]);
    }

    #[test]
    fn needs_are_read_from_the_modules_own_words() {
        assert_eq!(
            needs(b"x\0license=GPL\0depends=virtio,virtio_ring\0y"),
            ["virtio", "virtio_ring"]
        );
        assert!(needs(b"\0depends=\0retpoline=Y\0").is_empty());
        assert!(needs(b"nothing").is_empty());
        assert!(is_of(Path::new("/a/crc32c-intel.ko"), "crc32c_intel"));
        assert!(is_of(Path::new("/a/rc-core.ko"), "rc-core"));
        assert!(!is_of(Path::new("/a/core.ko"), "rc_core"));
    }
}
