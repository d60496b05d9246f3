//! Cuts what a camera sends into answers and packets (RFC 2326, of both versions' common part).
//!
//! Nothing is waited for that is too long to be taken.

use bytes::{Buf as _, Bytes, BytesMut};

/// The longest head of an answer: a few lines of words.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// The longest description: cameras' have some hundred bytes.
const BODY_BYTES_MAX: usize = 64 << 10;

/// What a camera says.
#[derive(Debug, PartialEq)]
pub(super) enum Message {
    /// A packet of one of the streams that share the connection.
    Packet { channel: u8, bytes: Bytes },
    /// What it was asked for.
    Answer(Answer),
    /// It asks us, which needs no answer as long as we stay.
    Question,
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Answer {
    pub(super) status: u16,
    headers: Vec<(String, String)>,
    pub(super) body: Bytes,
}

impl Answer {
    /// What stands behind these headers, whose name is in small letters.
    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let named = self.headers.iter().filter(move |(known, _)| known == name);
        named.map(|(_, value)| &value[..])
    }

    /// What stands behind the first of these headers.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let mut named = self.headers.iter().filter(|(known, _)| known == name);
        named.next().map(|(_, value)| &value[..])
    }
}

/// Why nothing more can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    #[error("the camera's answer is no RTSP")]
    Garbled,
    #[error("the camera's answer has more than the {BODY_BYTES_MAX} bytes allowed")]
    TooLong,
}

/// Takes the next message out of what was read; `None` until it is whole.
///
/// # Errors
/// If there is none to come.
pub(super) fn next(read: &mut BytesMut) -> Result<Option<Message>, Fault> {
    while matches!(read.first(), Some(b'\r' | b'\n')) {
        read.advance(1);
    }
    match read.first() {
        None => Ok(None),
        Some(b'$') => Ok(packet(read)),
        Some(_) => worded(read),
    }
}

/// `$`, the channel, the length in two bytes, the packet.
fn packet(read: &mut BytesMut) -> Option<Message> {
    let &[_, channel, high, low, ..] = &read[..] else { return None };
    let length = usize::from(u16::from_be_bytes([high, low]));
    if read.len() < 4 + length {
        return None;
    }
    read.advance(4);
    Some(Message::Packet { channel, bytes: read.split_to(length).freeze() })
}

fn worded(read: &mut BytesMut) -> Result<Option<Message>, Fault> {
    let seen = &read[..read.len().min(HEAD_BYTES_MAX)];
    let Some(head) = memchr::memmem::find(seen, b"\r\n\r\n") else {
        let plausible = seen[0].is_ascii_uppercase() && seen.len() < HEAD_BYTES_MAX;
        return if plausible { Ok(None) } else { Err(Fault::Garbled) };
    };
    let text = String::from_utf8_lossy(&read[..head]).into_owned();
    let (first, lines) = text.split_once("\r\n").unwrap_or((&text, ""));
    let headers = lines.split("\r\n").filter_map(|line| line.split_once(':'));
    let headers =
        headers.map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim().to_owned()));
    let mut answer = Answer { status: 0, headers: headers.collect(), body: Bytes::new() };
    let length = answer.header("content-length").map_or(Ok(0), |text| text.parse::<u64>());
    let length = length.map_err(|_| Fault::Garbled)?;
    if length > BODY_BYTES_MAX as u64 {
        return Err(Fault::TooLong);
    }
    let (from, length) = (head + 4, length as usize);
    if read.len() < from + length {
        return Ok(None);
    }
    read.advance(from);
    answer.body = read.split_to(length).freeze();
    match first.split_once(' ') {
        Some((version, rest)) if version.starts_with("RTSP/") => {
            let status = rest.get(..3).and_then(|status| status.parse().ok());
            answer.status = status.ok_or(Fault::Garbled)?;
            Ok(Some(Message::Answer(answer)))
        }
        Some((_, rest)) if rest.contains(" RTSP/") => Ok(Some(Message::Question)),
        _ => Err(Fault::Garbled),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_wherever_reading_ends() {
        let sent = b"RTSP/1.0 200 OK\r\nCSeq: 1\r\nContent-length: 2\r\n\r\nhi$\x01\0\x03abc\r\nOPTIONS * RTSP/1.0\r\nCSeq: 9\r\n\r\n";
        let (mut read, mut found) = (BytesMut::new(), Vec::new());
        for byte in sent {
            read.extend_from_slice(&[*byte]);
            found.extend(next(&mut read).unwrap());
        }
        let [Message::Answer(answer), packet, Message::Question] = &found[..] else {
            panic!("{found:?}")
        };
        assert_eq!(
            (answer.status, answer.header("cseq"), &answer.body[..]),
            (200, Some("1"), &b"hi"[..])
        );
        assert_eq!(packet, &Message::Packet { channel: 1, bytes: Bytes::from_static(b"abc") });
        assert!(read.is_empty());
    }

    #[test]
    fn what_is_too_long_is_not_waited_for() {
        let fault = |bytes: &[u8]| next(&mut BytesMut::from(bytes)).unwrap_err();
        assert_eq!(fault(b"RTSP/1.0 200 OK\r\nContent-Length: 104857600\r\n\r\n"), Fault::TooLong);
        assert_eq!(fault(b"RTSP/1.0 200 OK\r\nContent-Length: -1\r\n\r\n"), Fault::Garbled);
        assert_eq!(fault(&[b'A'; HEAD_BYTES_MAX]), Fault::Garbled);
        assert_eq!(fault(b"<html>"), Fault::Garbled);
        assert_eq!(fault(b"HTTP/1.1 400 Bad Request\r\n\r\n"), Fault::Garbled);
        assert_eq!(fault(b"RTSP/1.0 \xc3\xa9\xc3\xa9 OK\r\n\r\n"), Fault::Garbled);
    }
}
