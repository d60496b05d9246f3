//! Estimates what a protobuf message takes in memory once it is decoded, before it is.
//!
//! Two bytes on the wire can be a struct of 250: an empty attribute, say.  This walks a message by
//! the few fields that hold messages or lists, and counts.  What is no protobuf is left for the
//! decoder to refuse.  Knows nothing of what fields mean.

/// A message by its type, as far as it matters what lies in it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Message {
    Model,
    Graph,
    Node,
    Attribute,
    Tensor,
    Value,
    Type,
    TensorType,
    Shape,
    /// A message without others inside: a dimension, a pair of texts, an operator set.
    Leaf,
}

/// Memory of one decoded message beyond its own lists and texts; the largest has 248 bytes.
const MESSAGE_BYTES: u64 = 256;

/// Memory of any other field beyond its payload: the text's or list's own struct.
const FIELD_BYTES: u64 = 32;

/// Memory of a packed number, by the byte on the wire it takes at least.
const NUMBER_BYTES: u64 = 8;

/// The deepest nesting walked; the decoder refuses what is deeper.
const DEPTH_MAX: usize = 100;

impl Message {
    /// The type of the message in field `number`; nothing for numbers and texts.
    pub(crate) fn child(self, number: u32) -> Option<Self> {
        match (self, number) {
            (Self::Model, 7) | (Self::Attribute, 6) => Some(Self::Graph),
            (Self::Model, 8 | 14) | (Self::Tensor, 13) | (Self::Shape, 1) => Some(Self::Leaf),
            (Self::Graph, 1) => Some(Self::Node),
            (Self::Graph, 5) | (Self::Attribute, 5) => Some(Self::Tensor),
            (Self::Graph, 11 | 12) => Some(Self::Value),
            (Self::Node, 5) => Some(Self::Attribute),
            (Self::Value, 2) => Some(Self::Type),
            (Self::Type, 1) => Some(Self::TensorType),
            (Self::TensorType, 2) => Some(Self::Shape),
            _ => None,
        }
    }

    /// Whether field `number` is a list of numbers, which may come packed.
    fn is_list(self, number: u32) -> bool {
        match self {
            Self::Tensor => matches!(number, 1 | 4 | 5 | 7 | 10 | 11),
            Self::Attribute => matches!(number, 7 | 8),
            _ => false,
        }
    }
}

/// Bytes that field `number` of a `within` takes when decoded, given its `payload`.
pub(crate) fn field(within: Message, number: u32, payload: &[u8]) -> u64 {
    nested(within, number, payload, 0)
}

fn nested(within: Message, number: u32, payload: &[u8], depth: usize) -> u64 {
    let length = payload.len() as u64;
    match within.child(number) {
        Some(_) if depth == DEPTH_MAX => MESSAGE_BYTES,
        Some(message) => MESSAGE_BYTES + content(message, payload, depth + 1),
        None if within.is_list(number) => FIELD_BYTES + length * NUMBER_BYTES,
        None => FIELD_BYTES + length,
    }
}

/// The sum over the fields of a message.
fn content(message: Message, mut bytes: &[u8], depth: usize) -> u64 {
    let mut total = 0;
    while let Some((number, payload, rest)) = next(bytes) {
        total += nested(message, number, payload, depth);
        bytes = rest;
    }
    total
}

/// The first field of `bytes`, its payload if it is bytes, and what follows it.
fn next(bytes: &[u8]) -> Option<(u32, &[u8], &[u8])> {
    let (key, rest) = varint(bytes)?;
    let number = u32::try_from(key >> 3).ok()?;
    let (length, rest) = match key & 7 {
        0 => return Some((number, &[], varint(rest)?.1)),
        1 => (8, rest),
        5 => (4, rest),
        2 => varint(rest)?,
        _ => return None,
    };
    let (payload, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
    Some((number, payload, rest))
}

fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (at, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7F).checked_shl(7 * at as u32)?;
        if *byte < 0x80 {
            return Some((value, &bytes[at + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_messages_cost_what_their_structs_do() {
        // Three empty attributes in a node.
        assert_eq!(field(Message::Graph, 1, &[0x2A, 0, 0x2A, 0, 0x2A, 0]), 4 * MESSAGE_BYTES);
        // A graph in an attribute in a node, with an empty node in it.
        let deep = [0x2A, 4, 0x32, 2, 0x0A, 0];
        assert_eq!(field(Message::Graph, 1, &deep), 4 * MESSAGE_BYTES);
        assert_eq!(field(Message::Graph, 2, b"name"), FIELD_BYTES + 4);
        assert_eq!(field(Message::Tensor, 1, &[1, 2, 3]), FIELD_BYTES + 24);
    }

    #[test]
    fn what_is_no_protobuf_ends_the_count() {
        for bytes in [&[0x2A][..], &[0x2A, 5, 0], &[0xFF; 12], &[0x2F]] {
            assert_eq!(field(Message::Graph, 1, bytes), MESSAGE_BYTES);
        }
    }
}
