//! Leaves secrets out of what a program writes.

use std::io::{self, Read};

/// What stands where a secret was.
const MARK: &[u8] = b"[secret]";
/// A pipe holds as much.
const CHUNK_BYTES: usize = 64 << 10;

/// Reads what another reader has, with [`MARK`] in the place of each secret.
pub(crate) struct Masked<R> {
    from: R,
    /// None of them is empty.
    secrets: Vec<Vec<u8>>,
    /// What was read and may be the beginning of a secret.
    held: Vec<u8>,
    ready: Vec<u8>,
    given: usize,
    is_over: bool,
}

impl<R: Read> Masked<R> {
    pub(crate) fn new(from: R, secrets: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let secrets = secrets.into_iter().filter(|secret| !secret.is_empty()).collect();
        Self { from, secrets, held: Vec::new(), ready: Vec::new(), given: 0, is_over: false }
    }

    fn refill(&mut self) -> io::Result<()> {
        let before = self.held.len();
        self.held.resize(before + CHUNK_BYTES, 0);
        let read = self.from.read(&mut self.held[before..]);
        self.held.truncate(before + read.as_ref().copied().unwrap_or(0));
        self.is_over = read? == 0;
        (self.ready, self.given) = (Vec::with_capacity(self.held.len()), 0);
        let mut at = 0;
        while let [first, ..] = self.held[at..] {
            let rest = &self.held[at..];
            let goes_on = |secret: &Vec<u8>| secret.len() > rest.len() && secret.starts_with(rest);
            if !self.is_over && self.secrets.iter().any(goes_on) {
                break;
            }
            let here = self.secrets.iter().filter(|secret| rest.starts_with(secret));
            match here.map(Vec::len).max() {
                Some(len) => {
                    self.ready.extend_from_slice(MARK);
                    at += len;
                }
                None => {
                    self.ready.push(first);
                    at += 1;
                }
            }
        }
        self.held.drain(..at);
        Ok(())
    }
}

impl<R: Read> Read for Masked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.given == self.ready.len() && !self.is_over {
            self.refill()?;
        }
        let rest = &self.ready[self.given..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.given += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives a text in pieces.
    struct Pieces<'a>(Vec<&'a str>);

    impl Read for Pieces<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let Some(piece) = self.0.first_mut() else { return Ok(0) };
            let count = piece.len().min(buffer.len());
            buffer[..count].copy_from_slice(&piece.as_bytes()[..count]);
            *piece = &piece[count..];
            if piece.is_empty() {
                self.0.remove(0);
            }
            Ok(count)
        }
    }

    #[track_caller]
    fn check(pieces: &[&str], expect: &str) {
        let secrets = ["hf_abc", "hf_abcdef", "aab", ""].map(|secret| secret.as_bytes().to_vec());
        let mut said = String::new();
        let pieces = pieces.iter().copied().filter(|piece| !piece.is_empty()).collect();
        Masked::new(Pieces(pieces), secrets).read_to_string(&mut said).unwrap();
        assert_eq!(said, expect);
    }

    #[test]
    fn secrets_are_marked_wherever_the_text_is_cut() {
        let text = "token=hf_abcdef, again hf_abc; aaab hf_ab and aa";
        let expect = "token=[secret], again [secret]; a[secret] hf_ab and aa";
        check(&[text], expect);
        check(&text.split_inclusive("").collect::<Vec<_>>(), expect);
        for at in 0..=text.len() {
            let (one, other) = text.split_at(at);
            check(&[one, other], expect);
        }
    }

    #[test]
    fn what_only_begins_like_one_is_given_at_the_end() {
        check(&["x hf_a"], "x hf_a");
        check(&["hf_abc"], "[secret]");
        check(&["hf_abcde"], "[secret]de");
        check(&[], "");
    }
}
