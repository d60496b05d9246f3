//! Keeps a stream's parameter sets, and writes them down as films do: `avcC` and `hvcC` (ISO/IEC 14496-15).

use super::units::Codec;

/// Sets of a kind that are kept: cameras have one, and streams of several sizes a few.
const SETS_MAX: usize = 8;

/// The parameter sets of a stream.
#[derive(Debug)]
pub(super) struct Sets {
    codec: Codec,
    /// Sequences' and pictures' (H.265: videos' before), the newest last, which replaces others of its number.
    kinds: Vec<(u8, Vec<Vec<u8>>)>,
}

impl Sets {
    /// With those that were `told` beforehand.
    pub(super) fn new(codec: Codec, told: Vec<Vec<u8>>) -> Self {
        let kinds: &[u8] = match codec {
            Codec::H264 => &[7, 8],
            Codec::H265 => &[32, 33, 34],
        };
        let kinds = kinds.iter().map(|kind| (*kind, Vec::new())).collect();
        let mut sets = Self { codec, kinds };
        told.iter().for_each(|set| sets.add(set));
        sets
    }

    /// Keeps a set; one too long to be written down is none.
    pub(super) fn add(&mut self, set: &[u8]) {
        let Some(first) = set.first().filter(|_| set.len() <= usize::from(u16::MAX)) else {
            return;
        };
        let kind = self.codec.kind(*first);
        let Some((_, kept)) = self.kinds.iter_mut().find(|(known, _)| *known == kind) else {
            return;
        };
        kept.retain(|one| one != set);
        if kept.len() == SETS_MAX {
            kept.remove(0);
        }
        kept.push(set.to_vec());
    }

    /// What a decoder is told before the first picture; `None` where a set is missing or no set.
    pub(super) fn written(&self) -> Option<Vec<u8>> {
        if self.kinds.iter().any(|(_, sets)| sets.is_empty()) {
            return None;
        }
        match self.codec {
            Codec::H264 => self.avcc(),
            Codec::H265 => self.hvcc(),
        }
    }

    fn of(&self, kind: u8) -> &[Vec<u8>] {
        let found = self.kinds.iter().find(|(known, _)| *known == kind);
        found.map_or(&[], |(_, sets)| sets)
    }

    fn avcc(&self) -> Option<Vec<u8>> {
        let (sequences, pictures) = (self.of(7), self.of(8));
        let profile = sequences.last()?.get(1..4)?;
        // Lengths of four bytes.
        let mut bytes = [&[1][..], profile, &[0xff, 0xe0 | sequences.len() as u8]].concat();
        sequences.iter().for_each(|set| sized(set, &mut bytes));
        bytes.push(pictures.len() as u8);
        pictures.iter().for_each(|set| sized(set, &mut bytes));
        Some(bytes)
    }

    fn hvcc(&self) -> Option<Vec<u8>> {
        let sequence = unescaped(self.of(33).last()?);
        // Behind the header and a byte of layers: space, tier, profile, compatibility, constraints and level.
        let (layers, profile) = (*sequence.get(2)?, sequence.get(3..15)?);
        let layers = ((layers >> 1 & 7) + 1) << 3 | (layers & 1) << 2;
        // Kinds of colour and bits of its depth are left at the usual ones: decoders take them from the sets.
        let rest = [0xf0, 0, 0xfc, 0xfd, 0xf8, 0xf8, 0, 0, layers | 3, self.kinds.len() as u8];
        let mut bytes = [&[1][..], profile, &rest].concat();
        for (kind, sets) in &self.kinds {
            bytes.extend([*kind, 0, sets.len() as u8]);
            sets.iter().for_each(|set| sized(set, &mut bytes));
        }
        Some(bytes)
    }
}

fn sized(set: &[u8], bytes: &mut Vec<u8>) {
    bytes.extend((set.len() as u16).to_be_bytes());
    bytes.extend(set);
}

/// The beginning of a NAL unit without the threes that keep it from looking like one.
fn unescaped(nal: &[u8]) -> Vec<u8> {
    let (mut plain, mut zeros) = (Vec::new(), 0);
    for byte in nal.iter().take(64) {
        let is_escape = zeros >= 2 && *byte == 3;
        zeros = if *byte == 0 { zeros + 1 } else { 0 };
        if !is_escape {
            plain.push(*byte);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_h264_are_written_as_films_have_them() {
        let mut sets = Sets::new(Codec::H264, vec![vec![0x67, 0x64, 0, 0x1f, 9]]);
        assert_eq!(sets.written(), None);
        sets.add(&[0x68, 5]);
        sets.add(&[0x65, 5]);
        let expect = [1, 0x64, 0, 0x1f, 0xff, 0xe1, 0, 5, 0x67, 0x64, 0, 0x1f, 9, 1, 0, 2, 0x68, 5];
        assert_eq!(sets.written().unwrap(), expect);
        let short = Sets::new(Codec::H264, vec![vec![0x67], vec![0x68]]);
        assert_eq!(short.written(), None);
    }

    #[test]
    fn sets_of_h265_are_written_as_films_have_them() {
        let profile = [1, 0x60, 0, 0, 0x90, 0, 0, 0, 0, 0, 0, 93];
        let escaped = [1, 0x60, 0, 0, 3, 0x90, 0, 0, 3, 0, 0, 3, 0, 0, 3, 93];
        let sequence = [&[0x42, 1, 1][..], &escaped].concat();
        let told = vec![vec![0x40, 1], sequence.clone(), vec![0x44, 1]];
        let written = Sets::new(Codec::H265, told).written().unwrap();
        assert_eq!(written[1..13], profile);
        assert_eq!(written[13..23], [0xf0, 0, 0xfc, 0xfd, 0xf8, 0xf8, 0, 0, 0x0f, 3]);
        let sets = [
            &[32, 0, 1, 0, 2, 0x40, 1][..],
            &[33, 0, 1, 0, 19],
            &sequence,
            &[34, 0, 1, 0, 2, 0x44, 1],
        ];
        assert_eq!(written[23..], sets.concat());
    }

    #[test]
    fn the_newest_sets_are_kept() {
        let mut sets = Sets::new(Codec::H264, Vec::new());
        for number in 0..20 {
            sets.add(&[0x68, number % 12]);
        }
        sets.add(&vec![0x68; 1 << 16]);
        let kept: Vec<u8> = sets.of(8).iter().map(|set| set[1]).collect();
        assert_eq!(kept, [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}
