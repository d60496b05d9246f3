//! Refuses requests that say twice where they end.
//!
//! `Content-Length` beside `Transfer-Encoding` is how a request is hidden in another one's body from who reads the other of
//! both.  hyper passes over the length, whichever comes first, so nobody behind it can tell.  Here bytes are looked at on their
//! way: where one request has both headers, the colon of the second becomes a byte that no header has, and hyper answers 400.
//! Knows of HTTP/1 only where requests and their headers begin.

/// The longest name that matters.
const NAME_BYTES_MAX: usize = 17;

/// Where in a connection's bytes the next one is.
#[derive(Clone, Debug, Default)]
pub(super) struct Framing {
    place: ParseState,
    head: Head,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ParseState {
    /// In the line that says what is asked, of so many bytes so far.
    #[default]
    Asked,
    /// At the beginning of a header's line.
    Line,
    Name,
    Value,
    /// So many bytes of a body are to come.
    Body(u64),
    /// In the line of a chunk's size.
    Size {
        bytes: u64,
        /// Behind the digits.
        is_read: bool,
    },
    /// So many bytes of a chunk are to come, the end of its line among them.
    Chunk(u64),
    /// Behind the last chunk, at the beginning of a line or in one.
    Trailer {
        is_empty: bool,
    },
}

/// What is known of a request's headers.
#[derive(Clone, Debug, Default)]
struct Head {
    has_begun: bool,
    name: Vec<u8>,
    /// The length that is being read, or was.
    length: Option<u64>,
    is_length: bool,
    is_chunked: bool,
}

impl Framing {
    /// Looks at bytes in their order, and makes the second of two headers that contradict each other none.
    pub(super) fn pass(&mut self, bytes: &mut [u8]) {
        let mut at = 0;
        while at < bytes.len() {
            match &mut self.place {
                // Bodies are passed over at once.
                ParseState::Body(left) | ParseState::Chunk(left) if *left > 0 => {
                    let some = (bytes.len() - at).min(usize::try_from(*left).unwrap_or(usize::MAX));
                    *left -= some as u64;
                    at += some;
                    self.end_body();
                }
                _ => {
                    self.step(&mut bytes[at]);
                    at += 1;
                }
            }
        }
    }

    fn end_body(&mut self) {
        self.place = match self.place {
            ParseState::Body(0) => ParseState::Asked,
            ParseState::Chunk(0) => ParseState::Size { bytes: 0, is_read: false },
            place => place,
        };
    }

    fn step(&mut self, byte: &mut u8) {
        self.place = match (self.place, *byte) {
            (ParseState::Asked, b'\n') if self.head.has_begun => ParseState::Line,
            (ParseState::Asked, b'\r' | b'\n') => ParseState::Asked,
            (ParseState::Asked, _) => {
                self.head.has_begun = true;
                ParseState::Asked
            }
            (ParseState::Line, b'\r') => ParseState::Line,
            (ParseState::Line, b'\n') => self.end_head(),
            (ParseState::Line, first) => {
                self.head.name.clear();
                self.head.name.push(first.to_ascii_lowercase());
                ParseState::Name
            }
            (ParseState::Name, b':') => {
                if self.head.names() {
                    *byte = 0;
                }
                ParseState::Value
            }
            (ParseState::Name | ParseState::Value, b'\n') => ParseState::Line,
            (ParseState::Name, letter) => {
                if self.head.name.len() <= NAME_BYTES_MAX {
                    self.head.name.push(letter.to_ascii_lowercase());
                }
                ParseState::Name
            }
            (ParseState::Value, value) => {
                self.head.value(value);
                ParseState::Value
            }
            (ParseState::Size { bytes, .. }, b'\n') => match bytes {
                0 => ParseState::Trailer { is_empty: true },
                bytes => ParseState::Chunk(bytes.saturating_add(2)),
            },
            (ParseState::Size { bytes, is_read: false }, digit) if digit.is_ascii_hexdigit() => {
                let digit = (digit as char).to_digit(16).unwrap_or_default();
                ParseState::Size {
                    bytes: bytes.saturating_mul(16).saturating_add(digit.into()),
                    is_read: false,
                }
            }
            (ParseState::Size { bytes, .. }, _) => ParseState::Size { bytes, is_read: true },
            (ParseState::Trailer { is_empty: true }, b'\n') => {
                self.head = Head::default();
                ParseState::Asked
            }
            (ParseState::Trailer { .. }, b'\n') => ParseState::Trailer { is_empty: true },
            (ParseState::Trailer { is_empty }, other) => {
                ParseState::Trailer { is_empty: is_empty && other == b'\r' }
            }
            (place @ (ParseState::Body(_) | ParseState::Chunk(_)), _) => place,
        };
    }

    fn end_head(&mut self) -> ParseState {
        let head = std::mem::take(&mut self.head);
        match head.length {
            _ if head.is_chunked => ParseState::Size { bytes: 0, is_read: false },
            Some(bytes) if bytes > 0 => ParseState::Body(bytes),
            _ => ParseState::Asked,
        }
    }
}

impl Head {
    /// A header's name is read.  Says whether it contradicts an earlier one.
    fn names(&mut self) -> bool {
        self.is_length = self.name == b"content-length";
        let is_coding = self.name == b"transfer-encoding";
        let contradicts = self.is_length && self.is_chunked || is_coding && self.length.is_some();
        self.is_chunked |= is_coding;
        if self.is_length {
            self.length = Some(0);
        }
        contradicts
    }

    fn value(&mut self, byte: u8) {
        if let Some(length) = self.length.filter(|_| self.is_length && byte.is_ascii_digit()) {
            let more = length.saturating_mul(10).saturating_add((byte - b'0').into());
            self.length = Some(more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passes bytes on in pieces of each size; says whether any was changed.
    #[track_caller]
    fn check(text: &str, expect: bool) {
        for size in [1, 2, 3, 7, 1000] {
            let mut framing = Framing::default();
            let mut bytes = text.as_bytes().to_vec();
            bytes.chunks_mut(size).for_each(|piece| framing.pass(piece));
            assert_eq!(bytes != text.as_bytes(), expect, "by {size}: {text:?}");
            let zeros = bytes.iter().filter(|byte| **byte == 0).count();
            assert!(zeros <= 2 && (zeros > 0) == expect);
        }
    }

    const CHUNKED: &str = "Transfer-Encoding: chunked\r\n";
    const LENGTH: &str = "Content-Length: 5\r\n";

    fn post(headers: &str, body: &str) -> String {
        format!("POST /x HTTP/1.1\r\nHost: a\r\n{headers}Accept: b\r\n\r\n{body}")
    }

    #[test]
    fn a_request_ends_in_one_way() {
        check(&post(LENGTH, "12345"), false);
        check(&post(CHUNKED, "5\r\n12345\r\n0\r\n\r\n"), false);
        check(&post(&format!("{LENGTH}{CHUNKED}"), ""), true);
        check(&post(&format!("{CHUNKED}{LENGTH}"), ""), true);
        check(&post(&format!("{CHUNKED}X: y\r\ncontent-LENGTH:0\r\n"), ""), true);
        check(&post(&format!("transfer-encoding: x\n{LENGTH}"), ""), true);
    }

    #[test]
    fn bodies_are_no_headers_and_the_next_request_is_looked_at() {
        let both = post(&format!("{CHUNKED}{LENGTH}"), "");
        let length = format!("Content-Length: {}\r\n", both.len());
        check(&post(&length, &both), false);
        check(&post(CHUNKED, &format!("{:x};a=b\r\n{both}\r\n0\r\n\r\n", both.len())), false);
        let first = [
            post("", ""),
            post(LENGTH, "12345"),
            post("Content-Length: 0\r\n", ""),
            post(CHUNKED, "A\r\n0123456789\r\n3 \r\nabc\r\n0\r\nT: transfer-encoding\r\n\r\n"),
            format!("\r\n{}", post(LENGTH, "1\r\n\r\n")),
        ];
        for first in first {
            check(&format!("{first}{both}"), true);
            check(&format!("{first}{}{}", post(LENGTH, "abcde"), post("", "")), false);
        }
    }

    #[test]
    fn headers_that_are_alike_are_others() {
        check(&post(&format!("X-{LENGTH}{CHUNKED}"), "0\r\n\r\n"), false);
        check(&post(&format!("Content-Lengths: 5\r\n{CHUNKED}"), "0\r\n\r\n"), false);
        check(&post(&format!("X: Content-Length: 5\r\n{CHUNKED}"), "0\r\n\r\n"), false);
    }
}
