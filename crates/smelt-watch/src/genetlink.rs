//! Speaks generic netlink: requests to bytes, datagrams to messages and attributes.
//!
//! The formats are those of `include/uapi/linux/{netlink,genetlink}.h`; all numbers are of the
//! machine's own byte order.  Pure.  What is cut short or lies about its length ends the walk.

/// The family that tells of families.
pub(crate) const CONTROL: u16 = 0x10;
/// A message that is an answer to a request: an error number, or zero.
const ERROR: u16 = 2;
/// A request that is to be answered in any case.
const REQUEST_AND_ACK: u16 = 1 | 4;
const HEADER_BYTES: usize = 16;
const GENERIC_HEADER_BYTES: usize = 4;
const ATTRIBUTE_HEADER_BYTES: usize = 4;
/// The two highest bits of an attribute's type are flags.
const TYPE_MASK: u16 = 0x3fff;

/// What a message says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Message<'a> {
    /// A request was carried out, or refused with this error number.
    Answer(i32),
    /// A command of a family, with its attributes.
    Command {
        /// The number of the family.
        family: u16,
        /// The bytes of its attributes.
        attributes: &'a [u8],
    },
}

/// A request with one attribute, whose bytes are `value`.
pub(crate) fn request(family: u16, command: u8, attribute: u16, value: &[u8]) -> Vec<u8> {
    let length = ATTRIBUTE_HEADER_BYTES + value.len();
    let total = HEADER_BYTES + GENERIC_HEADER_BYTES + aligned(length);
    let mut bytes = Vec::with_capacity(total);
    bytes.extend((total as u32).to_ne_bytes());
    bytes.extend(family.to_ne_bytes());
    bytes.extend(REQUEST_AND_ACK.to_ne_bytes());
    // Sequence number and port: nobody else speaks on our socket.
    bytes.extend([0; 8]);
    // Version 1 of the family's commands, and two reserved bytes.
    bytes.extend([command, 1, 0, 0]);
    bytes.extend((length as u16).to_ne_bytes());
    bytes.extend(attribute.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(total, 0);
    bytes
}

/// The messages of a datagram.
pub(crate) fn messages(mut datagram: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let length = u32_at(datagram, 0)? as usize;
        let body = datagram.get(HEADER_BYTES..length)?;
        let kind = u16_at(datagram, 4)?;
        datagram = datagram.get(aligned(length)..).unwrap_or_default();
        Some(match kind {
            ERROR => Message::Answer(u32_at(body, 0)?.cast_signed()),
            family => {
                let attributes = body.get(GENERIC_HEADER_BYTES..).unwrap_or_default();
                Message::Command { family, attributes }
            }
        })
    })
}

/// The attributes that lie one after the other in `bytes`: type and value.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let value = bytes.get(ATTRIBUTE_HEADER_BYTES..length)?;
        let kind = u16_at(bytes, 2)? & TYPE_MASK;
        bytes = bytes.get(aligned(length)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The first attribute of that type.
pub(crate) fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find_map(|(found, value)| (found == kind).then_some(value))
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|chunk| u16::from_ne_bytes(*chunk))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|chunk| u32::from_ne_bytes(*chunk))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|chunk| u64::from_ne_bytes(*chunk))
}

fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_as_it_was_written() {
        let bytes = request(CONTROL, 3, 2, b"TASKSTATS\0");
        assert_eq!(bytes.len() % 4, 0);
        let Some(Message::Command { family, attributes }) = messages(&bytes).next() else {
            panic!("no message")
        };
        assert_eq!(family, CONTROL);
        assert_eq!(attribute(attributes, 2), Some(&b"TASKSTATS\0"[..]));
        assert_eq!(attribute(attributes, 1), None);
        assert_eq!(messages(&bytes).count(), 1);
    }

    #[test]
    fn several_messages_in_a_datagram_are_told_apart() {
        let refusal = [20u32.to_ne_bytes(), [2, 0, 0, 0], [0; 4], [0; 4], (-1i32).to_ne_bytes()];
        let datagram = [refusal.concat(), request(0x1c, 1, 7, b"abcde")].concat();
        let found: Vec<_> = messages(&datagram).collect();
        assert_eq!(found[0], Message::Answer(-1));
        assert!(matches!(found[1], Message::Command { family: 0x1c, .. }));
    }

    #[test]
    fn lengths_that_lie_end_the_walk() {
        let whole = request(0x1c, 1, 7, b"abcde");
        for length in 0..whole.len() {
            assert_eq!(messages(&whole[..length]).count(), 0, "{length}");
        }
        for length in [0u32, 1, 15, 41, u32::MAX] {
            let mut lies = whole.clone();
            lies[..4].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(messages(&lies).count(), 0, "{length}");
        }
        for length in [0u16, 3, 10, u16::MAX] {
            let mut lies = whole[20..].to_vec();
            lies[..2].copy_from_slice(&length.to_ne_bytes());
            assert!(attributes(&lies).count() <= 1, "{length}");
        }
        assert_eq!(attributes(&[4, 0, 1, 0, 4, 0, 2, 0]).count(), 2, "empty values are values");
    }
}
