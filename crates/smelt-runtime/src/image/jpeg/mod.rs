//! Decodes JPEG files, every pixel as libjpeg-turbo has it.
//!
//! Models were trained on pictures that Pillow read, which is libjpeg-turbo with its usual settings: the accurate integer
//! transform, interpolated colours, smoothed blocks where a progressive file tells too little.  Other decoders differ by a few
//! levels where colours are coarser than brightness, which cameras' always are, and answers differ with them.  What a damaged
//! file shows is the same, too; but one whose end is missing is refused.

use std::fmt;

mod blocks;
mod colour;
mod entropy;
mod frame;
mod huffman;
mod idct;
mod rows;
mod smooth;
mod stream;
mod upsample;

use blocks::Blocks;
use colour::Signs;
use entropy::{Entropy, Listings};
use frame::{Frame, Scales, Scan};
use rows::Rows;
use smooth::{Known, Smoother};
use stream::{END, Stream};

/// The most scans of a file.  Progressive ones of cameras and the web have some ten, and each is a walk over all blocks.
const SCANS_MAX: usize = 100;

/// Why a JPEG file cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JpegError {
    /// It is of a kind that is not read.
    Kind(&'static str),
    /// It is wrong.
    Damaged(&'static str),
    /// Something is missing at its end.
    Ends,
}

impl fmt::Display for JpegError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(what) => {
                write!(
                    f,
                    "it is a JPEG {what}; save it as an ordinary JPEG, of 8 bits, with Huffman codes"
                )
            }
            Self::Damaged(what) => write!(f, "its JPEG data are damaged: {what}"),
            Self::Ends => f.write_str("its JPEG data end too early"),
        }
    }
}

/// A file whose headers are read up to its first scan.
pub(super) struct Jpeg<'a> {
    stream: Stream<'a>,
    tables: Tables,
    frame: Frame,
    scan: Scan,
}

/// A header that is of a picture.
enum Segment<'a> {
    Frame(Frame),
    /// What is told of a scan.
    Scan(&'a [u8]),
    End,
}

const TWO_SIZES: JpegError = JpegError::Damaged("it has two sizes");

/// What headers tell, which may change from scan to scan.
struct Tables {
    scales: Scales,
    listings: Listings,
    /// Units between restart markers, or zero.
    interval: u16,
    signs: Signs,
    exif: Vec<u8>,
    xmp: Vec<u8>,
}

impl<'a> Jpeg<'a> {
    /// Reads the headers of a file.
    ///
    /// # Errors
    /// [`JpegError`], also for kinds that are not decoded.
    pub(super) fn read(file: &'a [u8]) -> Result<Self, JpegError> {
        let mut stream = Stream::new(file)?;
        let mut tables = Tables {
            scales: Scales::default(),
            listings: Listings::default(),
            interval: 0,
            signs: Signs::default(),
            exif: Vec::new(),
            xmp: Vec::new(),
        };
        let mut frame: Option<Frame> = None;
        loop {
            match (tables.next(&mut stream)?, &frame) {
                (Segment::Frame(found), None) => frame = Some(found),
                (Segment::Scan(segment), Some(found)) => {
                    let (frame, scan) = (found.clone(), found.scan(segment)?);
                    return Ok(Self { stream, tables, frame, scan });
                }
                (Segment::Frame(_), Some(_)) => return Err(TWO_SIZES),
                (Segment::Scan(_), None) => {
                    return Err(JpegError::Damaged("pixels come before their size"));
                }
                (Segment::End, _) => return Err(JpegError::Damaged("it has no pixels")),
            }
        }
    }

    /// Columns and rows of pixels.
    pub(super) fn size(&self) -> (u32, u32) {
        (self.frame.width as u32, self.frame.height as u32)
    }

    /// The tags of its camera, without their mark; empty if there are none.
    pub(super) fn exif(&self) -> &[u8] {
        &self.tables.exif
    }

    /// What its editor says of it, in XML; empty if it says nothing.
    pub(super) fn xmp(&self) -> &[u8] {
        &self.tables.xmp
    }

    /// The RGB pixels, row by row.
    ///
    /// # Errors
    /// [`JpegError`], where the data cannot be read on.
    pub(super) fn decode(mut self) -> Result<Vec<u8>, JpegError> {
        if !self.frame.is_progressive {
            self.tables.listings.fill_usual();
        }
        let names: Vec<u8> = self.frame.components.iter().map(|component| component.id).collect();
        let rows = Rows::new(&self.frame, self.tables.signs.colours(&names));
        let is_one_scan = self.scan.planes.len() == self.frame.components.len();
        if is_one_scan && !self.frame.is_progressive {
            self.decode_at_once(rows)
        } else {
            self.decode_scans(rows)
        }
    }

    /// Decodes a file of one scan, block by block.
    fn decode_at_once(mut self, mut rows: Rows) -> Result<Vec<u8>, JpegError> {
        self.tables.scales.give(&mut self.frame, &self.scan)?;
        let Tables { listings, interval, .. } = &self.tables;
        let (frame, scan) = (&self.frame, &self.scan);
        let mut entropy = Entropy::new(&mut self.stream, frame, scan, listings, *interval)?;
        let grid = scan.grid(frame);
        for row in 0..grid.rows {
            let part = row % grid.parts;
            if part == 0 {
                rows.advance();
            }
            for column in 0..grid.columns {
                let is_told = entropy.begin_unit()?;
                for (place, plane) in scan.planes.iter().enumerate() {
                    let component = &frame.components[plane.index];
                    let (across, down) = grid.unit(component);
                    for (y, x) in (0..down).flat_map(|y| (0..across).map(move |x| (y, x))) {
                        let mut block = [0; 64];
                        if is_told {
                            entropy.block(place, &mut block);
                        }
                        let (out, stride) = rows.block(plane.index, part + y, column * across + x);
                        idct::samples(&block, component.scales(), out, stride);
                    }
                }
                if is_told {
                    entropy.end_unit();
                }
            }
            let is_last = row + 1 == grid.rows;
            if is_last || part + 1 == grid.parts {
                rows.make(is_last);
            }
            entropy.check()?;
        }
        let behind = self.stream.rest();
        match self.tables.next(&mut self.stream) {
            Ok(Segment::End) => Ok(rows.into_rgb()),
            Ok(Segment::Frame(_)) => Err(TWO_SIZES),
            Ok(Segment::Scan(_)) => Err(JpegError::Damaged("it goes on behind its last pixel")),
            // What a false marker among the pixels makes of the rest is nothing, but the file is all there.
            Err(JpegError::Ends) if behind.windows(2).any(|two| two == [0xff, END]) => {
                Ok(rows.into_rgb())
            }
            Err(error) => Err(error),
        }
    }

    /// Decodes a file of several scans, whose blocks are kept until the last.
    fn decode_scans(mut self, mut rows: Rows) -> Result<Vec<u8>, JpegError> {
        let mut blocks = Blocks::of(&self.frame);
        let told = self.read_scans(&mut blocks)?;
        let frame = &self.frame;
        let is_smoothed = frame.is_progressive && smooth::is_useful(&frame.components, &told.known);
        for unit_row in 0..frame.units().1 {
            rows.advance();
            for (index, (component, blocks)) in frame.components.iter().zip(&blocks).enumerate() {
                let scales = component.scales();
                let (columns, count) = component.blocks();
                let down = component.down.min(count - unit_row * component.down);
                let smoother = is_smoothed.then(|| {
                    Smoother::new(scales, &told.known[index], unit_row <= told.reached, told.scans)
                });
                for (y, x) in (0..down).flat_map(|y| (0..columns).map(move |x| (y, x))) {
                    let block = &blocks.row(unit_row * component.down + y)[x];
                    let (out, stride) = rows.block(index, y, x);
                    match &smoother {
                        Some(smoother) => {
                            let around = smooth::around(blocks, component, (unit_row, y, x), frame);
                            idct::samples(&smoother.smoothed(block, &around), scales, out, stride);
                        }
                        None => idct::samples(block, scales, out, stride),
                    }
                }
            }
            rows.make(unit_row + 1 == frame.units().1);
        }
        Ok(rows.into_rgb())
    }

    /// Reads all scans.
    fn read_scans(&mut self, blocks: &mut [Blocks]) -> Result<ScanResult, JpegError> {
        let Self { stream, tables, frame, scan, .. } = self;
        let known = vec![Known::nothing(); frame.components.len()];
        let mut told = ScanResult { known, reached: 0, scans: 0 };
        let mut scan = scan.clone();
        loop {
            told.scans += 1;
            if told.scans > SCANS_MAX {
                return Err(JpegError::Kind("of more scans than pictures have"));
            }
            tables.scales.give(frame, &scan)?;
            for plane in scan.planes.iter().filter(|_| frame.is_progressive) {
                told.known[plane.index].tell(scan.first, scan.last, scan.to, told.scans == 1);
            }
            let mut entropy =
                Entropy::new(stream, frame, &scan, &tables.listings, tables.interval)?;
            told.reached = blocks::read(&mut entropy, frame, &scan, blocks)?;
            entropy.check()?;
            scan = match tables.next(stream)? {
                Segment::Scan(segment) => frame.scan(segment)?,
                Segment::Frame(_) => return Err(TWO_SIZES),
                Segment::End => return Ok(told),
            };
        }
    }
}

/// What the scans of a file told.
struct ScanResult {
    known: Vec<Known>,
    /// The last row of units that the last scan reached.
    reached: usize,
    scans: usize,
}

impl Tables {
    /// Reads headers up to the next that is of a picture.
    fn next<'a>(&mut self, stream: &mut Stream<'a>) -> Result<Segment<'a>, JpegError> {
        loop {
            let marker = stream.next_marker()?;
            match marker {
                // For private use, and restarts that come too late.
                0x01 | 0xd0..=0xd7 => {}
                END => return Ok(Segment::End),
                0xc4 => self.listings.read(stream.segment()?)?,
                0xdb => self.scales.read(stream.segment()?)?,
                0xdd => {
                    let interval = stream.segment()?.try_into();
                    let interval =
                        interval.map_err(|_| JpegError::Damaged("its restarts are wrong"))?;
                    self.interval = u16::from_be_bytes(interval);
                }
                0xda => return Ok(Segment::Scan(stream.segment()?)),
                0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf => {
                    return Ok(Segment::Frame(Frame::read(marker, stream.segment()?)?));
                }
                0xcc => return Err(JpegError::Kind("in arithmetic coding")),
                // Heights that come behind the pixels, which libjpeg does not know.
                0xdc | 0xe0..=0xef | 0xfe => self.note(marker, stream.segment()?),
                _ => return Err(JpegError::Damaged("it has a marker that there is not")),
            }
        }
    }

    /// Takes what a segment of a program tells of the whole picture.
    fn note(&mut self, marker: u8, segment: &[u8]) {
        const EXIF: &[u8] = b"Exif\0\0";
        const XMP: &[u8] = b"http://ns.adobe.com/xap/1.0/\0";
        match (marker, segment) {
            (0xe0, [b'J', b'F', b'I', b'F', 0, _, _, _, _, _, _, _, _, _, ..]) => {
                self.signs.is_jfif = true
            }
            (0xee, [b'A', b'd', b'o', b'b', b'e', _, _, _, _, _, _, transform, ..]) => {
                self.signs.adobe = Some(*transform);
            }
            (0xe1, _) => {
                if let Some(tags) = segment.strip_prefix(EXIF) {
                    // Tags that are too long for a segment go on in the next.
                    self.exif.extend(tags);
                } else if let Some(xmp) = segment.strip_prefix(XMP) {
                    self.xmp = xmp.to_vec();
                }
            }
            _ => {}
        }
    }
}
