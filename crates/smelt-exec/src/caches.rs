//! Drops the kernel's caches of files and compacts memory, so that large pieces are free again.
//!
//! Concerns the whole machine and needs root, so a pipeline asks for it.  Only clean pages go.

use std::fs;
use std::path::Path;

/// Page cache, and the kernel's own caches of names and inodes.
const DROP: &str = "3";

/// Drops, then compacts, on the machine at `root`; a line on what was done, or why it could not be.
pub(crate) fn drop_and_compact(root: &Path) -> Result<String, String> {
    let write = |name: &str, text: &str| {
        let path = root.join("proc/sys/vm").join(name);
        fs::write(&path, text).map_err(|error| match error.kind() {
            std::io::ErrorKind::PermissionDenied => {
                format!("{} is root's to write; run smelt as root", path.display())
            }
            _ => format!("cannot write {}: {error}", path.display()),
        })
    };
    write("drop_caches", DROP)?;
    // Kernels without compaction have no such file, and dropping was done.
    Ok(match write("compact_memory", "1") {
        Ok(()) => "dropped the caches of files, compacted memory".to_owned(),
        Err(_) => "dropped the caches of files; this kernel does not compact memory".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_writes_what_the_kernel_takes() {
        let root = tempfile::tempdir().unwrap();
        assert!(drop_and_compact(root.path()).unwrap_err().contains("drop_caches"));
        let vm = root.path().join("proc/sys/vm");
        fs::create_dir_all(&vm).unwrap();
        for name in ["drop_caches", "compact_memory"] {
            fs::write(vm.join(name), "").unwrap();
        }
        assert!(drop_and_compact(root.path()).unwrap().contains("compacted"));
        let read = |name: &str| fs::read_to_string(vm.join(name)).unwrap();
        assert_eq!((read("drop_caches").as_str(), read("compact_memory").as_str()), ("3", "1"));
    }
}
