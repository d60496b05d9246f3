//! Turns rows of samples into rows of pixels as they come.
//!
//! Only the samples that rows of pixels still need are kept: those of a row of units, and one row above.

use super::colour::Colours;
use super::frame::{Component, Frame, SIDE};
use super::upsample::Stretch;

/// Rows of samples of one component.
struct Samples {
    stretch: Stretch,
    /// Columns and rows of samples that count.
    width: usize,
    height: usize,
    /// Rows of samples that become one of units, and rows of pixels that one becomes.
    rows: usize,
    times: usize,
    /// Bytes of a row.
    stride: usize,
    /// Rows that are kept, from the row `first` on.
    kept: Vec<u8>,
    first: usize,
}

impl Samples {
    fn new(component: &Component, frame: &Frame) -> Self {
        Self {
            stretch: Stretch::of(component, frame),
            width: component.width,
            height: component.height,
            rows: component.down * SIDE,
            times: frame.finest.1 / component.down,
            stride: frame.units().0 * component.across * SIDE,
            kept: Vec::new(),
            first: 0,
        }
    }

    /// How many rows there are, those included that are not kept any more.
    fn end(&self) -> usize {
        self.first + self.kept.len() / self.stride
    }

    /// Forgets what is above the row before that of pixels `pixels`, and makes room for a row of units.
    fn advance(&mut self, pixels: usize) {
        let above = (pixels / self.times).saturating_sub(1).min(self.end());
        self.kept.drain(..above.saturating_sub(self.first) * self.stride);
        self.first = self.first.max(above);
        self.kept.resize(self.kept.len() + self.rows * self.stride, 0);
    }

    /// How many rows of pixels can be made: a row of samples whose neighbour below is missing has to wait.
    fn ready(&self) -> usize {
        (self.end() - usize::from(self.stretch.has_neighbours())) * self.times
    }

    fn row(&self, row: usize) -> &[u8] {
        &self.kept[(row.min(self.height - 1) - self.first) * self.stride..][..self.width]
    }

    /// The row of samples that is nearest to a row of pixels, the next nearest, and whether that is below.
    fn nearest(&self, pixels: usize) -> (&[u8], &[u8], bool) {
        let row = pixels / self.times;
        let is_below = pixels % 2 == 1;
        let far = if is_below { row + 1 } else { row.saturating_sub(1) };
        let near = self.row(row);
        (near, if self.stretch.has_neighbours() { self.row(far) } else { near }, is_below)
    }
}

/// A picture whose pixels come row by row.
pub(super) struct Rows {
    colours: Colours,
    samples: Vec<Samples>,
    width: usize,
    height: usize,
    /// RGB pixels, and how many rows of them there are.
    rgb: Vec<u8>,
    done: usize,
    /// A stretched row of each component, and room to make it.
    stretched: Vec<Vec<u8>>,
    sums: Vec<u16>,
}

impl Rows {
    /// Without any pixels yet.
    pub(super) fn new(frame: &Frame, colours: Colours) -> Self {
        let components = frame.components.iter();
        Self {
            colours,
            samples: components.clone().map(|component| Samples::new(component, frame)).collect(),
            width: frame.width,
            height: frame.height,
            rgb: vec![0; frame.width * frame.height * 3],
            done: 0,
            // The last unit may reach beyond the picture.
            stretched: components.map(|_| vec![0; frame.width + 2 * frame.finest.0]).collect(),
            sums: Vec::new(),
        }
    }

    /// Makes room for the samples of the next row of units.
    pub(super) fn advance(&mut self) {
        let done = self.done;
        self.samples.iter_mut().for_each(|samples| samples.advance(done));
    }

    /// Where the samples of a block go, in the newest row of units: its place among the blocks of a component there; and how
    /// far its rows are apart.
    pub(super) fn block(&mut self, index: usize, row: usize, column: usize) -> (&mut [u8], usize) {
        let samples = &mut self.samples[index];
        let stride = samples.stride;
        let newest = samples.kept.len() - samples.rows * stride;
        (&mut samples.kept[newest + row * SIDE * stride + column * SIDE..], stride)
    }

    /// Makes the rows of pixels that can be made of the samples that are there; of all if they are `last`.
    pub(super) fn make(&mut self, is_last: bool) {
        let ready = self.samples.iter().map(Samples::ready).min().unwrap_or_default();
        let end = if is_last { self.height } else { ready.min(self.height) };
        for pixels in self.done..end {
            for (samples, out) in self.samples.iter().zip(&mut self.stretched) {
                let (near, far, is_below) = samples.nearest(pixels);
                if samples.stretch != Stretch::None {
                    samples.stretch.row(near, far, is_below, out, &mut self.sums);
                }
            }
            let mut rows: [&[u8]; 4] = [&[]; 4];
            for ((row, samples), stretched) in
                rows.iter_mut().zip(&self.samples).zip(&self.stretched)
            {
                *row = match samples.stretch {
                    Stretch::None => samples.nearest(pixels).0,
                    _ => &stretched[..self.width],
                };
            }
            let out = &mut self.rgb[pixels * self.width * 3..][..self.width * 3];
            self.colours.row(&rows[..self.samples.len()], out);
        }
        self.done = end;
    }

    /// The pixels, row by row.
    pub(super) fn into_rgb(self) -> Vec<u8> {
        self.rgb
    }
}
