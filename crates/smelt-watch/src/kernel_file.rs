//! Reads the small files in which the kernel tells of itself.
//!
//! Their size is 0 until they are read, so a general reader begins with 32 bytes and doubles, and
//! the kernel renders a file anew now and then; one read of a page or four is enough for nearly all.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// `vmstat`, the longest that is read often, has 4 KiB.
const USUAL_BYTES: usize = 16 << 10;
/// What no such file has: the reader is mistaken about what it reads.
const BYTES_MAX: u64 = 4 << 20;

/// The whole text, with what is not UTF-8 replaced.
pub(crate) fn text(path: impl AsRef<Path>) -> io::Result<String> {
    let mut bytes = Vec::with_capacity(USUAL_BYTES);
    File::open(path)?.take(BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    })
}
