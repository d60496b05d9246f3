//! Reads the coefficients of blocks, scan by scan (ISO/IEC 10918-1, annexes F and G).
//!
//! Where data are damaged it goes on as libjpeg does: what cannot be read is zero, until the next restart marker.

use super::JpegError;
use super::frame::{Block, Frame, ORDER, Plane, Scan};
use super::huffman::{Codes, Listing};
use super::stream::{RESTARTS, Stream};

/// The lists of codes that a file has told so far, first coefficients' and others'.
#[derive(Default)]
pub(super) struct Listings {
    firsts: [Option<Listing>; 4],
    others: [Option<Listing>; 4],
}

impl Listings {
    /// Takes the usual ones for those that were not told, as frames of motion JPEG need it.
    pub(super) fn fill_usual(&mut self) {
        for (listings, is_first) in [(&mut self.firsts, true), (&mut self.others, false)] {
            for (listing, is_colour) in listings.iter_mut().zip([false, true]) {
                listing.get_or_insert_with(|| Listing::usual(is_first, is_colour));
            }
        }
    }

    /// Reads a segment of lists.
    pub(super) fn read(&mut self, mut segment: &[u8]) -> Result<(), JpegError> {
        while let Some((&head, rest)) = segment.split_first() {
            let (listing, rest) = Listing::read(rest)?;
            let kind = if head & 0x10 == 0 { &mut self.firsts } else { &mut self.others };
            let named = kind.get_mut(usize::from(head & !0x10));
            *named.ok_or(JpegError::Damaged("a list of its codes has a wrong name"))? =
                Some(listing);
            segment = rest;
        }
        Ok(())
    }

    fn firsts(&self, plane: &Plane) -> Result<Box<Codes>, JpegError> {
        Codes::of_firsts(named(&self.firsts, plane.firsts)?)
    }

    fn others(&self, plane: &Plane) -> Result<Box<Codes>, JpegError> {
        Codes::new(named(&self.others, plane.others)?)
    }
}

fn named(listings: &[Option<Listing>; 4], number: usize) -> Result<&Listing, JpegError> {
    let listing = listings.get(number).and_then(Option::as_ref);
    listing.ok_or(JpegError::Damaged("a list of its codes is missing"))
}

/// What a scan tells of a block.
#[derive(Clone, Copy)]
enum ScanPass {
    /// Everything.
    All,
    /// The first coefficient, without its lowest bits.
    First { to: u8 },
    /// One more bit of the first coefficient.
    FirstBit { to: u8 },
    /// Coefficients behind the first, without their lowest bits.
    Others { from: usize, last: usize, to: u8 },
    /// One more bit of coefficients behind the first.
    OthersBit { from: usize, last: usize, to: u8 },
}

/// The codes of a component in a scan, and the last first coefficient of it.
struct Coder {
    firsts: Option<Box<Codes>>,
    others: Option<Box<Codes>>,
    last: i32,
}

/// A scan that is being read.
pub(super) struct Entropy<'s, 'f> {
    stream: &'s mut Stream<'f>,
    told: ScanPass,
    coders: Vec<Coder>,
    /// Blocks that follow without any more coefficients of the band.
    empty: u32,
    /// Units between restarts, or zero, and before the next.
    interval: u32,
    left: u32,
    /// Number of the next restart marker.
    restart: u8,
    /// Whether the bits ran out before the next restart marker.
    pub(super) is_dry: bool,
}

impl<'s, 'f> Entropy<'s, 'f> {
    /// Begins a scan.
    pub(super) fn new(
        stream: &'s mut Stream<'f>,
        frame: &Frame,
        scan: &Scan,
        listings: &Listings,
        interval: u16,
    ) -> Result<Self, JpegError> {
        stream.drop_bits();
        let &Scan { first: from, last, to, .. } = scan;
        let told = match (frame.is_progressive, from, scan.from) {
            (false, ..) => ScanPass::All,
            (true, 0, 0) => ScanPass::First { to },
            (true, 0, _) => ScanPass::FirstBit { to },
            (true, _, 0) => ScanPass::Others { from, last, to },
            (true, ..) => ScanPass::OthersBit { from, last, to },
        };
        let coder = |plane: &Plane| {
            let has_firsts = matches!(told, ScanPass::All | ScanPass::First { .. });
            let has_others = !matches!(told, ScanPass::First { .. } | ScanPass::FirstBit { .. });
            Ok(Coder {
                firsts: has_firsts.then(|| listings.firsts(plane)).transpose()?,
                others: has_others.then(|| listings.others(plane)).transpose()?,
                last: 0,
            })
        };
        let coders = scan.planes.iter().map(coder).collect::<Result<_, _>>()?;
        let interval = interval.into();
        Ok(Self {
            stream,
            told,
            coders,
            empty: 0,
            interval,
            left: interval,
            restart: 0,
            is_dry: false,
        })
    }

    /// Begins a unit, the blocks between which a restart may be; returns whether they are to be read.
    pub(super) fn begin_unit(&mut self) -> Result<bool, JpegError> {
        if self.interval > 0 {
            if self.left == 0 {
                self.restart()?;
            }
            self.left -= 1;
        }
        Ok(!self.is_dry)
    }

    /// Ends a unit that was read.
    pub(super) fn end_unit(&mut self) {
        self.is_dry |= self.stream.is_overdrawn();
    }

    /// Whether the file has not ended yet.
    ///
    /// # Errors
    /// [`JpegError::Ends`] if it has: what is read then is nothing of it.
    pub(super) fn check(&self) -> Result<(), JpegError> {
        if self.stream.is_over() { Err(JpegError::Ends) } else { Ok(()) }
    }

    fn restart(&mut self) -> Result<(), JpegError> {
        self.stream.marker = self.restart_marker()?;
        self.restart = (self.restart + 1) & 7;
        self.coders.iter_mut().for_each(|coder| coder.last = 0);
        self.empty = 0;
        self.left = self.interval;
        // Before a marker that is no restart, the units up to the next restart have no bits.
        self.is_dry &= self.stream.marker != 0;
        Ok(())
    }

    /// Takes the restart marker that is due; returns zero, or a marker at which the stream has to stay.
    fn restart_marker(&mut self) -> Result<u8, JpegError> {
        let due = RESTARTS.start() + self.restart;
        loop {
            let found = self.stream.next_marker()?;
            if found == due {
                return Ok(0);
            }
            // How libjpeg finds its way again: a restart that is to come is waited for, a past one is passed over, and of
            // one far away nobody knows which is wrong.
            let ahead = found.wrapping_sub(due) & 7;
            match RESTARTS.contains(&found) {
                _ if found < 0xc0 => {}
                false => return Ok(found),
                true if [1, 2].contains(&ahead) => return Ok(found),
                true if [6, 7].contains(&ahead) => {}
                true => return Ok(0),
            }
        }
    }

    /// Reads what the scan tells of the next block, of the component at `place` in the scan.
    #[inline]
    pub(super) fn block(&mut self, place: usize, block: &mut Block) {
        let Coder { firsts, others, last } = &mut self.coders[place];
        let stream = &mut *self.stream;
        match (self.told, firsts, others) {
            (ScanPass::All, Some(firsts), Some(others)) => {
                block[0] = first(stream, firsts, last) as i16;
                all_others(stream, others, block);
            }
            (ScanPass::First { to }, Some(firsts), _) => {
                block[0] = (first(stream, firsts, last) << to) as i16;
            }
            (ScanPass::FirstBit { to }, ..) => block[0] |= i16::from(stream.bit()) << to,
            (ScanPass::Others { from, last, to }, _, Some(codes)) => match self.empty {
                0 => self.empty = band(stream, codes, from..=last, to, block),
                _ => self.empty -= 1,
            },
            (ScanPass::OthersBit { from, last, to }, _, Some(codes)) => {
                self.empty = refined(stream, codes, self.empty, from..=last, 1 << to, block);
            }
            _ => unreachable!("a scan has the codes of what it tells"),
        }
    }
}

/// The first coefficient of a block, which is told by its difference from that of the block before.
#[inline]
fn first(stream: &mut Stream<'_>, codes: &Codes, last: &mut i32) -> i32 {
    stream.fill();
    let size = codes.symbol(stream);
    *last = last.wrapping_add(stream.signed(size.into()));
    *last
}

/// All coefficients behind the first.
#[inline]
fn all_others(stream: &mut Stream<'_>, codes: &Codes, block: &mut Block) {
    let mut at = 1;
    while at < 64 {
        stream.fill();
        if let Some((value, zeros)) = codes.short_value(stream) {
            at += zeros;
            block[usize::from(ORDER[at])] = value;
            at += 1;
            continue;
        }
        let symbol = codes.symbol(stream);
        let (zeros, size) = (usize::from(symbol >> 4), u32::from(symbol & 15));
        match (zeros, size) {
            (15, 0) => at += 16,
            (_, 0) => break,
            _ => {
                at += zeros;
                block[usize::from(ORDER[at])] = stream.signed(size) as i16;
                at += 1;
            }
        }
    }
}

/// How many blocks from this one on have no more coefficients, by a symbol of `bits`.
fn run(stream: &mut Stream<'_>, bits: usize) -> u32 {
    (1 << bits) + stream.take(bits as u32) as u32
}

/// Coefficients of a band without their lowest bits; returns how many of the next blocks have none.
fn band(
    stream: &mut Stream<'_>,
    codes: &Codes,
    band: std::ops::RangeInclusive<usize>,
    to: u8,
    block: &mut Block,
) -> u32 {
    let (mut at, last) = band.into_inner();
    while at <= last {
        stream.fill();
        if let Some((value, zeros)) = codes.short_value(stream) {
            at += zeros;
            block[usize::from(ORDER[at])] = value << to;
            at += 1;
            continue;
        }
        let symbol = codes.symbol(stream);
        let (zeros, size) = (usize::from(symbol >> 4), u32::from(symbol & 15));
        match (zeros, size) {
            (15, 0) => at += 16,
            (bits, 0) => return run(stream, bits) - 1,
            _ => {
                at += zeros;
                block[usize::from(ORDER[at])] = (stream.signed(size) << to) as i16;
                at += 1;
            }
        }
    }
    0
}

/// One more bit, `bit`, of the coefficients of a band; returns how many of the next blocks get no new ones, given the same
/// number from this block on.
fn refined(
    stream: &mut Stream<'_>,
    codes: &Codes,
    mut empty: u32,
    band: std::ops::RangeInclusive<usize>,
    bit: i16,
    block: &mut Block,
) -> u32 {
    let (mut at, last) = band.into_inner();
    while empty == 0 && at <= last {
        stream.fill();
        let symbol = codes.symbol(stream);
        let (zeros, size) = (usize::from(symbol >> 4), symbol & 15);
        let fresh = match (zeros, size) {
            (15, 0) => 0,
            (bits, 0) => {
                empty = run(stream, bits);
                break;
            }
            // New coefficients are of one bit; any other size is damage.
            _ if stream.bit() => bit,
            _ => -bit,
        };
        at = corrected(stream, at..=last, Some(zeros), bit, block);
        if fresh != 0 {
            block[usize::from(ORDER[at])] = fresh;
        }
        at += 1;
    }
    if empty == 0 {
        return 0;
    }
    corrected(stream, at..=last, None, bit, block);
    empty - 1
}

/// Corrects coefficients by a bit each, up to the zero behind so many `zeros`, whose place is returned, or to the end of the
/// band.
fn corrected(
    stream: &mut Stream<'_>,
    band: std::ops::RangeInclusive<usize>,
    mut zeros: Option<usize>,
    bit: i16,
    block: &mut Block,
) -> usize {
    let (from, last) = band.into_inner();
    for at in from..=last {
        let value = &mut block[usize::from(ORDER[at])];
        if *value != 0 {
            if stream.bit() && *value & bit == 0 {
                *value = value.wrapping_add(if *value >= 0 { bit } else { -bit });
            }
            continue;
        }
        match &mut zeros {
            Some(0) => return at,
            Some(left) => *left -= 1,
            None => {}
        }
    }
    last + 1
}
