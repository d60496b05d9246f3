//! Keeps the last lines that a program wrote, however long and many they are.

use std::collections::VecDeque;
use std::io::Read;

/// Lines that are kept, and bytes of each.
const LINES_MAX: usize = 16;
const LINE_BYTES_MAX: usize = 400;
/// Bytes that are read at once.
const READ_BYTES: usize = 4096;

/// The last lines.
#[derive(Debug, Default)]
pub(super) struct Lines {
    kept: VecDeque<String>,
    begun: Vec<u8>,
}

impl Lines {
    /// Takes what was written; bytes of a line beyond the first few hundred are passed over.
    pub(super) fn take(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match byte {
                b'\n' | b'\r' => self.end(),
                byte if self.begun.len() < LINE_BYTES_MAX => self.begun.push(*byte),
                _ => {}
            }
        }
    }

    fn end(&mut self) {
        let line = String::from_utf8_lossy(&self.begun).trim().to_owned();
        self.begun.clear();
        if line.is_empty() {
            return;
        }
        if self.kept.len() == LINES_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back(line);
    }

    /// The last one, in one line of text; one that was begun counts.
    pub(super) fn last(&self) -> Option<String> {
        let begun = String::from_utf8_lossy(&self.begun).trim().to_owned();
        let last = if begun.is_empty() { self.kept.back()?.clone() } else { begun };
        Some(last.replace(char::is_control, "\u{FFFD}"))
    }
}

/// Reads to the end, and has `take` hear of it.
pub(super) fn read(mut from: impl Read, mut take: impl FnMut(&[u8])) {
    let mut buffer = [0; READ_BYTES];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => take(&buffer[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_kept_and_no_more_than_a_little_of_it() {
        let mut lines = Lines::default();
        assert_eq!(lines.last(), None);
        lines.take(b"loading\r\nerror: no \x1b[31mroom\n\n");
        assert_eq!(lines.last().as_deref(), Some("error: no \u{FFFD}[31mroom"));
        lines.take(b"begun");
        assert_eq!(lines.last().as_deref(), Some("begun"));
        (0..1000).for_each(|_| lines.take(&[b'x'; 100_000]));
        assert_eq!(lines.last().unwrap().len(), LINE_BYTES_MAX);
        (0..1000).for_each(|_| lines.take(b"y\n"));
        assert_eq!(lines.kept.len(), LINES_MAX);
    }
}
