//! Reads what a guest's disk was told to do, and makes the disk that a power cut leaves.
//!
//! QEMU's driver `blklogwrites` writes the log, in the form of Linux' dm-log-writes: a sector that says
//! how many entries there are, then for each entry a sector of description and the data.  What was
//! written before a flush is on the disk; of what came after, each block may be or not.  Knows
//! nothing of what the data means.

use std::ops::Range;

use anyhow::{Context, Result, bail, ensure};
use smelt_random::Random;

/// From drivers/md/dm-log-writes.c, as are the flags.
const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;

/// The unit of an entry's place and length; the guest is started with it.
pub(super) const SECTOR: usize = 512;

/// What the disk writes all of or nothing; the guest's disk tells that it does.
pub(super) const BLOCK: usize = 4096;

/// What a disk was told to do, in the order in which it was told.
pub(super) struct BlockLog {
    bytes: Vec<u8>,
    pub(super) requests: Vec<Request>,
}

/// One thing that a disk was told.
pub(super) enum Request {
    /// What was written so far must outlast a power cut.
    Flush,
    Write {
        /// In bytes from the disk's start.
        at: usize,
        /// Where in the log the data is.
        data: Range<usize>,
        /// Whether it is flushed by itself.
        is_durable: bool,
    },
}

/// A moment at which the power goes, and what becomes of what was not flushed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cut {
    /// How many requests came before.
    pub(super) after: usize,
    pub(super) unflushed: Unflushed,
}

/// What becomes of blocks that were written and not flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Unflushed {
    Lost,
    /// Each is lost or not, by a draw from this seed.
    Drawn(u64),
}

impl BlockLog {
    pub(super) fn parse(bytes: Vec<u8>) -> Result<Self> {
        ensure!(number(&bytes, 0)? == MAGIC, "it does not begin as dm-log-writes' logs do");
        let sector = number(&bytes, 24)? & u64::from(u32::MAX);
        ensure!(sector == SECTOR as u64, "its sectors are of {sector} bytes");
        let mut requests = Vec::new();
        let mut at = SECTOR;
        for entry in 0..number(&bytes, 16)? {
            at = read_entry(&bytes, at, &mut requests).with_context(|| format!("entry {entry}"))?;
        }
        Ok(Self { bytes, requests })
    }

    pub(super) fn data(&self, data: &Range<usize>) -> &[u8] {
        &self.bytes[data.clone()]
    }

    /// How many of the first `after` requests are durable whatever happens: those before the last
    /// flush among them.
    fn flushed(&self, after: usize) -> usize {
        let flush = self.requests[..after].iter().rposition(|r| matches!(r, Request::Flush));
        flush.map_or(0, |at| at + 1)
    }

    /// Does to `disk` what these requests say.
    fn apply(&self, disk: &mut [u8], requests: Range<usize>) -> Result<()> {
        for request in &self.requests[requests] {
            if let Request::Write { at, data, .. } = request {
                place(disk, *at, data.len())?.copy_from_slice(self.data(data));
            }
        }
        Ok(())
    }

    /// Does to `disk`, which holds all that is flushed, what became of the rest.
    fn scatter(&self, disk: &mut [u8], requests: Range<usize>, seed: Option<u64>) -> Result<()> {
        let mut random = seed.map(Random::new);
        for request in &self.requests[requests] {
            let Request::Write { at, data, is_durable } = request else { continue };
            let target = place(disk, *at, data.len())?;
            for (old, new) in target.chunks_mut(BLOCK).zip(self.data(data).chunks(BLOCK)) {
                if *is_durable || random.as_mut().is_some_and(Random::coin) {
                    old.copy_from_slice(new);
                }
            }
        }
        Ok(())
    }
}

/// Gives the disks that cuts leave; cuts come in order, so that no request is applied twice.
pub(super) struct Replay<'a> {
    log: &'a BlockLog,
    /// What the disk holds when the first `done` requests are on it.
    disk: Vec<u8>,
    done: usize,
}

impl<'a> Replay<'a> {
    /// From the disk as it was before the first request.
    pub(super) fn new(log: &'a BlockLog, disk: Vec<u8>) -> Self {
        Self { log, disk, done: 0 }
    }

    /// What the disk holds after a cut that is no earlier than the last one.
    pub(super) fn after(&mut self, cut: &Cut) -> Result<Vec<u8>> {
        let flushed = self.log.flushed(cut.after);
        self.log.apply(&mut self.disk, self.done..flushed)?;
        self.done = flushed;
        let mut disk = self.disk.clone();
        let seed = match cut.unflushed {
            Unflushed::Lost => None,
            Unflushed::Drawn(seed) => Some(seed),
        };
        self.log.scatter(&mut disk, flushed..cut.after, seed)?;
        Ok(disk)
    }
}

/// Where the next entry begins.
fn read_entry(bytes: &[u8], at: usize, requests: &mut Vec<Request>) -> Result<usize> {
    let sector = usize::try_from(number(bytes, at)?)?;
    let length = usize::try_from(number(bytes, at + 8)?)?;
    let flags = number(bytes, at + 16)?;
    if flags & DISCARD != 0 {
        bail!("the disk was told to discard something, though it had said that it cannot");
    }
    let begin = at + SECTOR;
    let end = length.checked_mul(SECTOR).and_then(|length| begin.checked_add(length));
    let end = end.filter(|&end| end <= bytes.len()).context("it is longer than the log")?;
    if flags & FLUSH != 0 {
        requests.push(Request::Flush);
    }
    if length > 0 {
        let at = sector.checked_mul(SECTOR).context("it is nowhere")?;
        requests.push(Request::Write { at, data: begin..end, is_durable: flags & FUA != 0 });
    }
    Ok(end)
}

fn place(disk: &mut [u8], at: usize, length: usize) -> Result<&mut [u8]> {
    at.checked_add(length)
        .and_then(|end| disk.get_mut(at..end))
        .context("the log writes behind the disk's end")
}

/// Eight bytes, little endian.
fn number(bytes: &[u8], at: usize) -> Result<u64> {
    let found = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>).context("it ends too early")?;
    Ok(u64::from_le_bytes(*found))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log of these entries: the block where something is written, flags, and the byte that fills
    /// `blocks` blocks.
    fn log(entries: &[(u64, u64, usize, u8)]) -> BlockLog {
        let mut bytes = vec![0; SECTOR];
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8] = 1;
        bytes[16] = u8::try_from(entries.len()).unwrap();
        bytes[24..28].copy_from_slice(&512_u32.to_le_bytes());
        for &(block, flags, blocks, fill) in entries {
            let mut header = Vec::new();
            for field in [block * 8, blocks as u64 * 8, flags, 0] {
                header.extend_from_slice(&field.to_le_bytes());
            }
            header.resize(SECTOR, 0);
            bytes.extend_from_slice(&header);
            bytes.extend(vec![fill; blocks * BLOCK]);
        }
        BlockLog::parse(bytes).unwrap()
    }

    /// The first byte of each block after a cut.
    fn left(log: &BlockLog, after: usize, unflushed: Unflushed) -> Vec<u8> {
        let mut replay = Replay::new(log, vec![b'.'; 4 * BLOCK]);
        let disk = replay.after(&Cut { after, unflushed }).unwrap();
        disk.iter().step_by(BLOCK).copied().collect()
    }

    #[test]
    fn what_was_flushed_stays_and_the_rest_is_lost() {
        let log = log(&[(0, 0, 1, b'a'), (0, FLUSH, 0, 0), (1, 0, 2, b'b'), (0, 0, 1, b'c')]);
        assert_eq!(left(&log, 1, Unflushed::Lost), b"....");
        assert_eq!(left(&log, 2, Unflushed::Lost), b"a...");
        assert_eq!(left(&log, 4, Unflushed::Lost), b"a...");
    }

    #[test]
    fn every_block_is_lost_or_not_by_itself_and_the_same_way_for_a_seed() {
        let log = log(&[(0, 0, 4, b'a'), (0, FLUSH, 0, 0), (0, 0, 3, b'b')]);
        let seen: std::collections::BTreeSet<Vec<u8>> =
            (0..100).map(|seed| left(&log, 3, Unflushed::Drawn(seed))).collect();
        assert_eq!(seen.len(), 8, "all subsets of three blocks");
        assert!(seen.iter().all(|blocks| blocks[3] == b'a'));
        assert_eq!(left(&log, 3, Unflushed::Drawn(7)), left(&log, 3, Unflushed::Drawn(7)));
    }

    #[test]
    fn a_write_that_forces_itself_through_stays_and_flushes_nothing_else() {
        let log = log(&[(0, 0, 1, b'a'), (1, FUA, 1, b'b'), (2, FLUSH | FUA, 1, b'c')]);
        assert_eq!(left(&log, 2, Unflushed::Lost), b".b..");
        // The flush of the third entry comes before its data.
        assert_eq!(left(&log, 4, Unflushed::Lost), b"abc.");
    }

    #[test]
    fn replays_go_on_where_the_cut_before_left_off() {
        let log = log(&[(0, FLUSH, 1, b'a'), (1, FLUSH, 1, b'b'), (2, FLUSH, 1, b'c')]);
        let mut replay = Replay::new(&log, vec![b'.'; 3 * BLOCK]);
        let mut at = |after| {
            let disk = replay.after(&Cut { after, unflushed: Unflushed::Lost }).unwrap();
            disk.iter().step_by(BLOCK).copied().collect::<Vec<_>>()
        };
        assert_eq!([at(2), at(3), at(3), at(6)], [b"...", b"a..", b"a..", b"ab."]);
    }

    #[test]
    fn logs_that_lie_are_refused() {
        assert!(BlockLog::parse(vec![0; 1024]).is_err());
        let good = log(&[(0, 0, 1, b'a')]).bytes;
        assert!(BlockLog::parse(good[..good.len() - 1].to_vec()).is_err());
        let mut discards = good.clone();
        discards[SECTOR + 16] = 4;
        assert!(BlockLog::parse(discards).is_err());
        let far = log(&[(1 << 40, FLUSH, 1, b'a'), (0, FLUSH, 0, 0)]);
        let cut = Cut { after: 3, unflushed: Unflushed::Lost };
        assert!(Replay::new(&far, vec![0; BLOCK]).after(&cut).is_err());
    }
}
