//! Puts pictures together out of packets: RTP (RFC 3550) of H.264 (RFC 6184) and H.265 (RFC 7798).
//!
//! A picture ends where the next one's time begins, since cameras set the mark of its last packet as they like.

use super::sets::Sets;

/// The largest picture that is put together: one of 8K, hardly packed.
const UNIT_BYTES_MAX: usize = 16 << 20;

/// What streams are packed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Codec {
    H264,
    H265,
}

/// What a NAL unit holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    /// A part of a picture; whether it needs no other picture.
    Slice { key: bool },
    /// A parameter set.
    Set,
    /// Several NAL units, each behind its length.
    Many,
    /// A part of a NAL unit.
    Fragment,
    /// What pictures need not.
    Other,
    /// What nobody announced.
    Unknown,
}

impl Codec {
    /// By its name in a description.
    pub(super) fn named(name: &str) -> Option<Self> {
        match &name.to_ascii_uppercase()[..] {
            "H264" => Some(Self::H264),
            "H265" => Some(Self::H265),
            _ => None,
        }
    }

    /// Whether NAL units come in the order in which they are decoded, as the parameters say.
    pub(super) fn is_in_order(self, parameters: &[(&str, &str)]) -> bool {
        let of = |name| parameters.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        match self {
            Self::H264 => of("packetization-mode").is_none_or(|(_, mode)| *mode != "2"),
            Self::H265 => of("sprop-max-don-diff").is_none_or(|(_, most)| *most == "0"),
        }
    }

    /// Whether parameter sets stand behind this name.
    pub(super) fn sets_are_in(self, name: &str) -> bool {
        let names: &[&str] = match self {
            Self::H264 => &["sprop-parameter-sets"],
            Self::H265 => &["sprop-vps", "sprop-sps", "sprop-pps"],
        };
        names.iter().any(|known| known.eq_ignore_ascii_case(name))
    }

    /// Bytes before what a NAL unit holds.
    pub(super) fn header_bytes(self) -> usize {
        match self {
            Self::H264 => 1,
            Self::H265 => 2,
        }
    }

    /// The kind of a NAL unit that begins with this byte.
    pub(super) fn kind(self, first: u8) -> u8 {
        match self {
            Self::H264 => first & 0x1f,
            Self::H265 => first >> 1 & 0x3f,
        }
    }

    fn holds(self, kind: u8) -> Holds {
        match (self, kind) {
            (Self::H264, 1..=5) => Holds::Slice { key: kind == 5 },
            (Self::H264, 7 | 8) | (Self::H265, 32..=34) => Holds::Set,
            (Self::H264, 24) | (Self::H265, 48) => Holds::Many,
            (Self::H264, 28) | (Self::H265, 49) => Holds::Fragment,
            (Self::H264, 6..=23) | (Self::H265, 35..=47) => Holds::Other,
            (Self::H265, 0..=31) => Holds::Slice { key: (16..=23).contains(&kind) },
            _ => Holds::Unknown,
        }
    }
}

/// A packet of a stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Packet<'a> {
    pub(super) payload: u8,
    mark: bool,
    number: u16,
    time: u32,
    bytes: &'a [u8],
}

impl<'a> Packet<'a> {
    /// `None` if it is none.
    pub(super) fn read(bytes: &'a [u8]) -> Option<Self> {
        let (head, mut rest) = bytes.split_at_checked(12)?;
        if head[0] >> 6 != 2 {
            return None;
        }
        rest = rest.get(4 * usize::from(head[0] & 0x0f)..)?;
        if head[0] & 0x10 != 0 {
            let words = u16::from_be_bytes([*rest.get(2)?, *rest.get(3)?]);
            rest = rest.get(4 + 4 * usize::from(words)..)?;
        }
        if head[0] & 0x20 != 0 {
            let padding = usize::from(*rest.last()?);
            rest = rest.get(..rest.len().checked_sub(padding)?)?;
        }
        Some(Self {
            payload: head[1] & 0x7f,
            mark: head[1] & 0x80 != 0,
            number: u16::from_be_bytes([head[2], head[3]]),
            time: u32::from_be_bytes([head[4], head[5], head[6], head[7]]),
            bytes: rest,
        })
    }
}

/// A picture, or half of one whose other half is another's of the same time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Unit {
    /// When it is shown, in units of the stream's clock.
    pub(super) time: i64,
    /// NAL units, each behind its length in four bytes.
    pub(super) bytes: Vec<u8>,
    /// Whether it needs no other picture.
    pub(super) is_key: bool,
    /// Whether something before it, or of it, is missing.
    pub(super) is_damaged: bool,
    pub(super) has_slice: bool,
}

/// A picture is too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the camera sends a picture of more than {} MiB", UNIT_BYTES_MAX >> 20)]
pub(super) struct TooLarge;

/// The picture that is being put together.
#[derive(Debug)]
pub(super) struct Units {
    codec: Codec,
    pub(super) sets: Sets,
    unit: Unit,
    /// The number of the packet before, with its time.
    last: Option<(u16, u32)>,
    /// Whether that was the last one of its picture, as it said.
    was_marked: bool,
    /// Where the NAL unit begins that comes in parts.
    open: Option<usize>,
}

impl Units {
    pub(super) fn new(codec: Codec, sets: Sets) -> Self {
        let unit = Unit::default();
        Self { codec, sets, unit, last: None, was_marked: false, open: None }
    }

    /// The picture that ends before `packet`.
    ///
    /// # Errors
    /// If it is too large.
    pub(super) fn push(&mut self, packet: &Packet<'_>) -> Result<Option<Unit>, TooLarge> {
        let mut done = None;
        if let Some((number, time)) = self.last {
            if packet.time != time {
                done = self.end();
                // Time stamps begin anew after 2^32; what is later by more than half of that is earlier.
                self.unit.time += i64::from(packet.time.wrapping_sub(time).cast_signed());
            }
            // What is missing may belong to the picture before or to this one.
            if packet.number != number.wrapping_add(1) {
                self.unit.is_damaged = true;
                if let Some(done) = done.as_mut().filter(|_| !self.was_marked) {
                    done.is_damaged = true;
                }
            }
        }
        self.last = Some((packet.number, packet.time));
        self.was_marked = packet.mark;
        self.add(packet.bytes);
        match self.unit.bytes.len() > UNIT_BYTES_MAX {
            true => Err(TooLarge),
            false => Ok(done),
        }
    }

    /// The last picture, if its last packet said so.
    pub(super) fn last(&mut self) -> Option<Unit> {
        if self.was_marked { self.end() } else { None }
    }

    /// Ends a picture; time goes on from it.
    fn end(&mut self) -> Option<Unit> {
        self.unit.is_damaged |= self.open.take().is_some();
        // Of parameter sets with a time of their own nothing is left to show; a picture of which all is missing damages the next.
        let Unit { time, is_damaged, has_slice, .. } = self.unit;
        let next = Unit { time, is_damaged: is_damaged && !has_slice, ..Unit::default() };
        let unit = std::mem::replace(&mut self.unit, next);
        has_slice.then_some(unit)
    }

    /// Adds what a packet holds.
    fn add(&mut self, bytes: &[u8]) {
        let Some(first) = bytes.first() else { return };
        let kind = self.codec.kind(*first);
        match self.codec.holds(kind) {
            Holds::Fragment => return self.fragment(bytes),
            Holds::Many => self.many(&bytes[self.codec.header_bytes().min(bytes.len())..]),
            _ => self.nal(bytes),
        }
        self.unit.is_damaged |= self.open.take().is_some();
    }

    fn many(&mut self, mut bytes: &[u8]) {
        while let [high, low, rest @ ..] = bytes {
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            let Some((nal, rest)) = rest.split_at_checked(length) else {
                self.unit.is_damaged = true;
                return;
            };
            self.nal(nal);
            bytes = rest;
        }
    }

    fn nal(&mut self, nal: &[u8]) {
        if nal.len() < self.codec.header_bytes() {
            return;
        }
        let begin = self.begin(nal);
        self.ended(begin);
    }

    /// A part of a NAL unit, behind one header for the part and a byte that says which.
    fn fragment(&mut self, bytes: &[u8]) {
        let header = self.codec.header_bytes();
        let Some((&[first, ref second @ ..], [told, part @ ..])) = bytes.split_at_checked(header)
        else {
            self.unit.is_damaged = true;
            return;
        };
        let (begins, ends) = (told & 0x80 != 0, told & 0x40 != 0);
        if begins {
            self.unit.is_damaged |= self.open.is_some();
            let first = match self.codec {
                Codec::H264 => first & 0xe0 | told & 0x1f,
                Codec::H265 => first & 0x81 | (told & 0x3f) << 1,
            };
            let begin = self.begin(&[first]);
            self.unit.bytes.extend_from_slice(second);
            self.open = Some(begin);
        }
        self.unit.is_damaged |= self.open.is_none();
        if let Some(begin) = self.open {
            self.unit.bytes.extend_from_slice(part);
            if ends {
                self.open = None;
                self.ended(begin);
            }
        }
    }

    /// Begins a NAL unit, whose length is filled in when it ends.
    fn begin(&mut self, bytes: &[u8]) -> usize {
        let begin = self.unit.bytes.len();
        self.unit.bytes.extend_from_slice(&[0; 4]);
        self.unit.bytes.extend_from_slice(bytes);
        begin
    }

    fn ended(&mut self, begin: usize) {
        let unit = &mut self.unit;
        let length = (unit.bytes.len() - begin - 4) as u32;
        unit.bytes[begin..begin + 4].copy_from_slice(&length.to_be_bytes());
        let nal = &unit.bytes[begin + 4..];
        match self.codec.holds(self.codec.kind(nal[0])) {
            Holds::Slice { key } => {
                unit.has_slice = true;
                unit.is_key |= key;
            }
            Holds::Set => self.sets.add(nal),
            Holds::Other => {}
            Holds::Many | Holds::Fragment | Holds::Unknown => unit.is_damaged = true,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A packet as it is sent.
    pub(in super::super) fn packet(number: u16, time: u32, mark: bool, bytes: &[u8]) -> Vec<u8> {
        let mark = if mark { 0x80 } else { 0 };
        let head = [&[0x80, mark | 96][..], &number.to_be_bytes(), &time.to_be_bytes(), &[0; 4]];
        [&head.concat(), bytes].concat()
    }

    /// What becomes of packets of these numbers, times and bytes, the last one marked.
    fn units(codec: Codec, packets: &[(u16, u32, &[u8])]) -> Vec<Unit> {
        let mut units = Units::new(codec, Sets::new(codec, Vec::new()));
        let mut done = Vec::new();
        for (at, (number, time, bytes)) in packets.iter().enumerate() {
            let sent = packet(*number, *time, at + 1 == packets.len(), bytes);
            done.extend(units.push(&Packet::read(&sent).unwrap()).unwrap());
        }
        done.extend(units.last());
        done
    }

    #[test]
    fn pictures_are_put_together_from_all_kinds_of_packets() {
        let done = units(
            Codec::H264,
            &[
                (65534, u32::MAX, &[24, 0, 2, 0x67, 1, 0, 2, 0x68, 2]),
                (65535, u32::MAX, &[0x7c, 0x85, 10]),
                (0, u32::MAX, &[0x7c, 0x05, 11]),
                (1, u32::MAX, &[0x7c, 0x45, 12]),
                (2, 2999, &[0x41, 9]),
            ],
        );
        let key =
            [&[0, 0, 0, 2, 0x67, 1][..], &[0, 0, 0, 2, 0x68, 2], &[0, 0, 0, 4, 0x65, 10, 11, 12]];
        assert_eq!(done.len(), 2);
        assert_eq!(done[0].bytes, key.concat());
        assert_eq!((done[0].is_key, done[0].is_damaged, done[0].time), (true, false, 0));
        assert_eq!((done[1].is_key, done[1].is_damaged, done[1].time), (false, false, 3000));
        let done = units(
            Codec::H265,
            &[(1, 0, &[0x62, 1, 0x93, 7]), (2, 0, &[0x62, 1, 0x53, 8]), (3, 9, &[2, 1, 5])],
        );
        assert_eq!(done[0].bytes, [0, 0, 0, 4, 0x26, 1, 7, 8]);
        assert_eq!((done[0].is_key, done[1].is_key), (true, false));
    }

    #[test]
    fn what_is_missing_damages_a_picture() {
        let damaged = |packets: &[(u16, u32, &[u8])]| {
            let done = units(Codec::H264, packets);
            done.iter().map(|unit| unit.is_damaged).collect::<Vec<_>>()
        };
        assert_eq!(damaged(&[(1, 0, &[0x65, 1]), (3, 5, &[0x41, 1])]), [true, true]);
        assert_eq!(damaged(&[(1, 0, &[0x7c, 0x85, 1]), (2, 5, &[0x41, 1])]), [true]);
        assert_eq!(damaged(&[(1, 0, &[0x7c, 0x05, 1]), (2, 0, &[0x41, 1])]), [true]);
        assert_eq!(damaged(&[(1, 0, &[24, 0, 9, 0x65]), (2, 0, &[0x41, 1])]), [true]);
        assert_eq!(damaged(&[(1, 0, &[30, 1]), (2, 0, &[0x41, 1])]), [true]);
        assert_eq!(damaged(&[(1, 0, &[]), (2, 0, &[0x7c]), (3, 0, &[0x41])]), [true]);
        // Without its mark the last one may be half of a picture.
        let mut open = Units::new(Codec::H264, Sets::new(Codec::H264, Vec::new()));
        let sent = packet(1, 0, false, &[0x65, 1]);
        assert_eq!(open.push(&Packet::read(&sent).unwrap()), Ok(None));
        assert_eq!(open.last(), None);
    }

    #[test]
    fn a_picture_without_end_is_too_large() {
        let mut units = Units::new(Codec::H264, Sets::new(Codec::H264, Vec::new()));
        let part = [&[0x7c, 0x05][..], &[0; 60_000]].concat();
        let begin = [&[0x7c, 0x85][..], &[0; 60_000]].concat();
        let mut push = |number, bytes: &[u8]| {
            units.push(&Packet::read(&packet(number, 0, false, bytes)).unwrap())
        };
        push(0, &begin).unwrap();
        let number = (1..400).find(|number| push(*number, &part).is_err());
        assert_eq!(number, Some((UNIT_BYTES_MAX / 60_000) as u16));
    }

    #[test]
    fn packets_are_read_behind_their_extensions() {
        let plain = packet(7, 8, true, &[1, 2]);
        let read = Packet::read(&plain).unwrap();
        assert_eq!((read.number, read.time, read.mark, read.payload), (7, 8, true, 96));
        assert_eq!(read.bytes, [1, 2]);
        let mut full = packet(7, 8, true, &[]);
        full[0] = 0xb1;
        full.extend([9, 9, 9, 9, 0, 0, 0, 1, 5, 5, 5, 5, 1, 2, 0, 2]);
        assert_eq!(Packet::read(&full).unwrap().bytes, [1, 2]);
        for cut in 0..full.len() {
            let _ = Packet::read(&full[..cut]);
        }
        full[27] = 255;
        assert_eq!(Packet::read(&full[..13]), None);
        assert_eq!(Packet::read(&[0; 12]), None);
    }
}
