//! What a JPEG file says of its picture before the pixels: size, components, tables and scans.

use super::JpegError;

/// Samples along a side of a block.
pub(super) const SIDE: usize = 8;

/// The coefficients of a block, or what they are multiplied with, row by row.
pub(super) type Block = [i16; SIDE * SIDE];

/// The most blocks of a unit of several components (annex B.2.3).
const UNIT_BLOCKS_MAX: usize = 10;

/// Places of coefficients in the order of a file.  Damaged files count beyond the last, by 15 at most.
pub(super) const ORDER: [u8; 80] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20,
    13, 6, 7, 14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59,
    52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63,
    63, 63, 63, 63, 63, 63,
];

/// A plane of samples: brightness, a colour, an ink.
#[derive(Clone, Debug)]
pub(super) struct Component {
    pub(super) id: u8,
    /// Samples across and down, where the finest component has those of [`Frame::finest`].
    pub(super) across: usize,
    pub(super) down: usize,
    /// The number of its table.
    table: usize,
    /// Columns and rows of samples.
    pub(super) width: usize,
    pub(super) height: usize,
    /// What its coefficients are multiplied with, as it was when its first scan began; nothing before.
    pub(super) scales: Option<Box<[u16; 64]>>,
}

impl Component {
    /// The same; zeros for a component of which no scan tells.
    pub(super) fn scales(&self) -> &[u16; 64] {
        self.scales.as_deref().unwrap_or(&[0; 64])
    }

    /// Columns and rows of blocks that hold samples.
    pub(super) fn blocks(&self) -> (usize, usize) {
        (self.width.div_ceil(SIDE), self.height.div_ceil(SIDE))
    }
}

/// The picture and its components.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) is_progressive: bool,
    /// The most samples across and down of a component.
    pub(super) finest: (usize, usize),
    pub(super) components: Vec<Component>,
}

impl Frame {
    /// Reads the segment behind the marker `code`, of those between 0xc0 and 0xcf.
    pub(super) fn read(code: u8, segment: &[u8]) -> Result<Self, JpegError> {
        let is_progressive = match code {
            0xc0 | 0xc1 => false,
            0xc2 => true,
            0xc3 => return Err(JpegError::Kind("without loss")),
            0xc5..=0xc7 => return Err(JpegError::Kind("of several sizes")),
            _ => return Err(JpegError::Kind("in arithmetic coding")),
        };
        const BAD: JpegError = JpegError::Damaged("what it says of its size is wrong");
        let (&[bits, h1, h0, w1, w0, count], parts) = segment.split_first_chunk().ok_or(BAD)?;
        if bits != 8 {
            return Err(JpegError::Kind("of other than 8 bits a sample"));
        }
        let (width, height) = (u16::from_be_bytes([w1, w0]), u16::from_be_bytes([h1, h0]));
        let (parts, rest) = parts.as_chunks();
        if width == 0 || height == 0 || parts.len() != usize::from(count) || !rest.is_empty() {
            return Err(BAD);
        }
        if ![1, 3, 4].contains(&count) {
            return Err(JpegError::Kind("of other than 1, 3 or 4 components"));
        }
        Self {
            width: width.into(),
            height: height.into(),
            is_progressive,
            finest: (1, 1),
            components: Vec::new(),
        }
        .with(parts)
    }

    /// The same with the components that `parts` tell of.
    fn with(mut self, parts: &[[u8; 3]]) -> Result<Self, JpegError> {
        let factors = |sampling: u8| (usize::from(sampling >> 4), usize::from(sampling & 15));
        for [_, sampling, _] in parts {
            let (across, down) = factors(*sampling);
            if !(1..=4).contains(&across) || !(1..=4).contains(&down) {
                return Err(JpegError::Damaged("its components have no such sampling"));
            }
            self.finest = (self.finest.0.max(across), self.finest.1.max(down));
        }
        for &[id, sampling, table] in parts {
            let (across, down) = factors(sampling);
            if !self.finest.0.is_multiple_of(across) || !self.finest.1.is_multiple_of(down) {
                return Err(JpegError::Kind("whose samplings do not divide each other"));
            }
            self.components.push(Component {
                id,
                across,
                down,
                table: table.into(),
                width: (self.width * across).div_ceil(self.finest.0),
                height: (self.height * down).div_ceil(self.finest.1),
                scales: None,
            });
        }
        Ok(self)
    }

    /// Columns and rows of units that hold a part of every component.
    pub(super) fn units(&self) -> (usize, usize) {
        let (across, down) = self.finest;
        (self.width.div_ceil(across * SIDE), self.height.div_ceil(down * SIDE))
    }

    /// Reads the segment that begins a scan of these components.
    pub(super) fn scan(&self, segment: &[u8]) -> Result<Scan, JpegError> {
        const BAD: JpegError = JpegError::Damaged("what it says of a scan is wrong");
        let (&[count], rest) = segment.split_first_chunk().ok_or(BAD)?;
        let (parts, rest) = rest.split_at_checked(usize::from(count) * 2).ok_or(BAD)?;
        let &[first, last, bits] = rest.try_into().map_err(|_| BAD)?;
        if !(1..=4).contains(&count) {
            return Err(BAD);
        }
        let mut planes: Vec<Plane> = Vec::new();
        for (place, &[id, codes]) in parts.as_chunks().0.iter().enumerate() {
            // Where several have one name, each is the next of them.
            let named = |index: &usize| self.components[*index].id == id;
            let index = (place..self.components.len()).find(named).ok_or(BAD)?;
            if planes.iter().any(|plane| plane.index == index) {
                return Err(BAD);
            }
            planes.push(Plane {
                index,
                firsts: usize::from(codes >> 4),
                others: usize::from(codes & 15),
            });
        }
        let blocks = |plane: &Plane| {
            let component = &self.components[plane.index];
            component.across * component.down
        };
        if planes.len() > 1 && planes.iter().map(blocks).sum::<usize>() > UNIT_BLOCKS_MAX {
            return Err(BAD);
        }
        let scan =
            Scan { planes, first: first.into(), last: last.into(), from: bits >> 4, to: bits & 15 };
        if self.is_progressive { scan.checked() } else { Ok(scan) }
    }
}

/// A component in a scan, and the codes that are its own there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plane {
    /// Of the component.
    pub(super) index: usize,
    /// Numbers of the codes of its first coefficients and of the others.
    pub(super) firsts: usize,
    pub(super) others: usize,
}

/// A walk over blocks that tells some of their coefficients, or some bits of them.
#[derive(Clone, Debug)]
pub(super) struct Scan {
    pub(super) planes: Vec<Plane>,
    /// The coefficients told, in the order of the file.  Files that are not progressive tell all, whatever they say here.
    pub(super) first: usize,
    pub(super) last: usize,
    /// The lowest bit that was told before, or zero, and the lowest told here.
    pub(super) from: u8,
    pub(super) to: u8,
}

/// The order in which the blocks of a scan follow each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    /// Columns and rows of units.
    pub(super) columns: usize,
    pub(super) rows: usize,
    /// How many rows make one of units of all components.
    pub(super) parts: usize,
    is_alone: bool,
}

impl Grid {
    /// Columns and rows of blocks of a component in each unit.
    pub(super) fn unit(self, component: &Component) -> (usize, usize) {
        // A component alone has units of one block, and none that only fill up.
        if self.is_alone { (1, 1) } else { (component.across, component.down) }
    }
}

impl Scan {
    /// How its blocks follow each other.
    pub(super) fn grid(&self, frame: &Frame) -> Grid {
        let is_alone = self.planes.len() == 1;
        let first = &frame.components[self.planes[0].index];
        let (columns, rows) = if is_alone { first.blocks() } else { frame.units() };
        Grid { columns, rows, parts: if is_alone { first.down } else { 1 }, is_alone }
    }

    fn checked(self) -> Result<Self, JpegError> {
        let coefficients = match self.first {
            0 => self.last == 0,
            _ => self.first <= self.last && self.last < 64 && self.planes.len() == 1,
        };
        let bits = self.to <= 13 && (self.from == 0 || self.to + 1 == self.from);
        if coefficients && bits {
            Ok(self)
        } else {
            Err(JpegError::Damaged("a scan tells what there is not"))
        }
    }
}

/// What coefficients are multiplied with.
#[derive(Default)]
pub(super) struct Scales([Option<Box<[u16; 64]>>; 4]);

impl Scales {
    /// Reads a segment of tables.
    pub(super) fn read(&mut self, mut segment: &[u8]) -> Result<(), JpegError> {
        const BAD: JpegError = JpegError::Damaged("a table of its scales is wrong");
        while let Some((&head, rest)) = segment.split_first() {
            let is_wide = head >> 4 != 0;
            let (table, rest) = rest.split_at_checked(if is_wide { 128 } else { 64 }).ok_or(BAD)?;
            let mut scales = Box::new([0; 64]);
            for (index, place) in ORDER[..64].iter().enumerate() {
                scales[usize::from(*place)] = match is_wide {
                    true => u16::from_be_bytes([table[2 * index], table[2 * index + 1]]),
                    false => table[index].into(),
                };
            }
            *self.0.get_mut(usize::from(head & 15)).ok_or(BAD)? = Some(scales);
            segment = rest;
        }
        Ok(())
    }

    /// Gives each component of a scan its table, if it is its first scan.
    pub(super) fn give(&self, frame: &mut Frame, scan: &Scan) -> Result<(), JpegError> {
        for plane in &scan.planes {
            let component = &mut frame.components[plane.index];
            if component.scales.is_none() {
                let table = self.0.get(component.table).and_then(Clone::clone);
                let missing = JpegError::Damaged("a table of its scales is missing");
                component.scales = Some(table.ok_or(missing)?);
            }
        }
        Ok(())
    }
}
