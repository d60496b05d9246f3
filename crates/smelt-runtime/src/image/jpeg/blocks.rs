//! Keeps the coefficients of all blocks, where a file tells them in several scans.

use super::JpegError;
use super::entropy::Entropy;
use super::frame::{Block, Frame, Scan};

/// The blocks of one component, those included that fill up the units at the right and lower edges.
pub(super) struct Blocks {
    across: usize,
    blocks: Vec<Block>,
}

impl Blocks {
    /// Zeros for each component of `frame`.
    pub(super) fn of(frame: &Frame) -> Vec<Self> {
        let (columns, rows) = frame.units();
        let components = frame.components.iter();
        let zeros = components.map(|component| Self {
            across: columns * component.across,
            blocks: vec![[0; 64]; columns * component.across * rows * component.down],
        });
        zeros.collect()
    }

    /// A row of blocks.
    pub(super) fn row(&self, row: usize) -> &[Block] {
        &self.blocks[row * self.across..][..self.across]
    }

    fn block(&mut self, row: usize, column: usize) -> &mut Block {
        &mut self.blocks[row * self.across + column]
    }
}

/// Reads a scan into `all`; returns the last row of units of all components in which there were bits left.
pub(super) fn read(
    entropy: &mut Entropy<'_, '_>,
    frame: &Frame,
    scan: &Scan,
    all: &mut [Blocks],
) -> Result<usize, JpegError> {
    let mut reached = 0;
    let grid = scan.grid(frame);
    for (row, column) in (0..grid.rows).flat_map(|row| (0..grid.columns).map(move |x| (row, x))) {
        if !entropy.is_dry {
            reached = row / grid.parts;
        }
        if !entropy.begin_unit()? {
            continue;
        }
        for (place, plane) in scan.planes.iter().enumerate() {
            let (across, down) = grid.unit(&frame.components[plane.index]);
            for (y, x) in (0..down).flat_map(|y| (0..across).map(move |x| (y, x))) {
                let block = all[plane.index].block(row * down + y, column * across + x);
                entropy.block(place, block);
            }
        }
        entropy.end_unit();
    }
    Ok(reached)
}
