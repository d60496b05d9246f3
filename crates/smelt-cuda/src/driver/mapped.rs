//! Maps a file of the host, so that a device can be let read it where it lies.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::sync::Arc;

use memmap2::Mmap;

use super::HostBytes;

/// The bytes of a file that is not changed any more, from its beginning on.
///
/// # Errors
/// When the system refuses.
pub fn map_file(file: &File) -> io::Result<HostBytes> {
    // SAFETY: the map is read only, and engines are written once and sealed; whoever cuts the file of a running engine
    // ends the process with SIGBUS, which no check here could prevent.
    let map = unsafe { Mmap::map(file) }?;
    Ok(Arc::new(map))
}
