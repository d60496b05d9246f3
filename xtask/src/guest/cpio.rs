//! Writes the archive that a kernel unpacks as its first file system.
//!
//! The form is "newc" of Linux' Documentation/driver-api/early-userspace/buffer-format.rst: a header
//! of hex digits, a name and content, the last two padded to four bytes.

/// An archive under construction; directories of a name must be put before it.
pub(super) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

impl Archive {
    pub(super) fn new() -> Self {
        Self { bytes: Vec::new(), entries: 0 }
    }

    pub(super) fn directory(&mut self, name: &str) {
        self.put(name, DIRECTORY, &[]);
    }

    /// A file that may be executed, as all of ours may.
    pub(super) fn file(&mut self, name: &str, content: &[u8]) {
        self.put(name, PROGRAM, content);
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.put("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn put(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let size = u32::try_from(content.len()).expect("nothing of 4 GiB goes into a guest");
        let name_size = u32::try_from(name.len() + 1).expect("names are short");
        // Inode, mode, owner, group, links, time, size, device and special device (two numbers
        // each), the name's size, and a sum that is not used.
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_names_and_contents_begin_at_multiples_of_four() {
        let mut archive = Archive::new();
        archive.directory("d");
        archive.file("d/name", b"content");
        let bytes = archive.finish();
        let headers: Vec<usize> =
            (0..bytes.len()).filter(|&at| bytes[at..].starts_with(b"070701")).collect();
        // 110 bytes of header and 2 of name; 110 and 7 and 3 of padding, then 7 and 1.
        assert_eq!(headers, [0, 112, 112 + 120 + 8]);
        assert_eq!(&bytes[112 + 120..][..8], b"content\0");
        assert_eq!(&bytes[112 + 6 + 6 * 8..][..8], b"00000007");
        assert!(bytes[240..].windows(11).any(|name| name == b"TRAILER!!!\0"));
        assert_eq!(bytes.len() % 4, 0);
    }
}
