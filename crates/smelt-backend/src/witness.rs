//! Hears how far a comparison of files with their digests is, and may know what some of them are.
//!
//! Knows no engine and no store.

use std::fs::File;
use std::path::Path;

/// Whoever has files compared with their digests.  A closure hears of the bytes, and knows of no file.
pub trait Witness {
    /// So many bytes more are compared.
    fn has_read(&mut self, bytes: u64);

    /// The sha256 of the open file at `path`, in hexadecimal digits, if somebody has hashed it and it certainly has not
    /// changed since: it is not read again.
    fn sha256(&mut self, _path: &Path, _file: &File) -> Option<String> {
        None
    }
}

impl<F: FnMut(u64)> Witness for F {
    fn has_read(&mut self, bytes: u64) {
        self(bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use tempfile::NamedTempFile;

    use super::*;
    use crate::OpenError;
    use crate::files::check_all;

    /// Knows the digest of every file.
    struct KnowsAll(&'static str, u64);

    impl Witness for KnowsAll {
        fn has_read(&mut self, bytes: u64) {
            self.1 += bytes;
        }

        fn sha256(&mut self, _: &Path, _: &File) -> Option<String> {
            Some(self.0.to_owned())
        }
    }

    #[test]
    fn what_is_known_is_compared_and_not_read() {
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(b"12345").unwrap();
        let mut knows = KnowsAll("ab", 0);
        let mut check = |said: &str| check_all(file.path(), (file.as_file(), 5), said, &mut knows);
        check("ab").unwrap();
        assert!(matches!(check("cd"), Err(OpenError::Damaged { .. })));
        assert_eq!(knows.1, 10, "both times all of it counts");
        let read = check_all(file.path(), (file.as_file(), 5), "ab", &mut |_| {});
        assert!(matches!(read, Err(OpenError::Damaged { .. })), "nobody knows it");
    }
}
