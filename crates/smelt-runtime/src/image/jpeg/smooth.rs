//! Guesses coefficients that a progressive file never told, from the first ones of the blocks around.
//!
//! libjpeg-turbo smooths the blocks of files that end before their last scans so ("block smoothing").  Where no coefficient
//! but the first is known, even that one is smoothed.

use super::blocks::Blocks;
use super::frame::{Block, Component, Frame};

/// How many coefficients behind the first are guessed, and their places, in the order of the file.
const GUESSED: usize = 9;
const PLACES: [usize; GUESSED] = [1, 8, 16, 9, 2, 3, 10, 17, 24];

/// Weights of the first coefficients of the blocks around, row by row, for each guess: 256 stand for one.
type Kernel = [i32; 25];

/// Where some coefficients behind the first are known, the first five of [`PLACES`] are guessed.
#[rustfmt::skip]
const SHARP: [Kernel; 5] = [
    [0, 0, 0, 0, 0,  0, 0, 0, 0, 0,  -7, 50, 0, -50, 7,  0, 0, 0, 0, 0,  0, 0, 0, 0, 0],
    [0, 0, -7, 0, 0,  0, 0, 50, 0, 0,  0, 0, 0, 0, 0,  0, 0, -50, 0, 0,  0, 0, 7, 0, 0],
    [0, 0, -1, 0, 0,  0, 0, 13, 0, 0,  0, 0, -24, 0, 0,  0, 0, 13, 0, 0,  0, 0, -1, 0, 0],
    [0, -1, 0, 1, 0,  -1, 10, 0, -10, 1,  0, 0, 0, 0, 0,  1, -10, 0, 10, -1,  0, 1, 0, -1, 0],
    [0, 0, 0, 0, 0,  0, 0, 0, 0, 0,  -1, 13, -24, 13, -1,  0, 0, 0, 0, 0,  0, 0, 0, 0, 0],
];

/// Where none is known.
#[rustfmt::skip]
const SOFT: [Kernel; GUESSED] = [
    [-1, -1, 0, 1, 1,  -3, 13, 0, -13, 3,  -3, 38, 0, -38, 3,  -3, 13, 0, -13, 3,  -1, -1, 0, 1, 1],
    [-1, -3, -3, -3, -1,  -1, 13, 38, 13, -1,  0, 0, 0, 0, 0,  1, -13, -38, -13, 1,  1, 3, 3, 3, 1],
    [0, 0, 1, 0, 0,  0, 2, 7, 2, 0,  0, -5, -14, -5, 0,  0, 2, 7, 2, 0,  0, 0, 1, 0, 0],
    [-1, 0, 0, 0, 1,  0, 9, 0, -9, 0,  0, 0, 0, 0, 0,  0, -9, 0, 9, 0,  1, 0, 0, 0, -1],
    [0, 0, 0, 0, 0,  0, 2, -5, 2, 0,  1, 7, -14, 7, 1,  0, 2, -5, 2, 0,  0, 0, 0, 0, 0],
    [0, 0, 0, 0, 0,  0, 1, 0, -1, 0,  0, 2, 0, -2, 0,  0, 1, 0, -1, 0,  0, 0, 0, 0, 0],
    [0, 0, 0, 0, 0,  0, 1, -3, 1, 0,  0, 0, 0, 0, 0,  0, -1, 3, -1, 0,  0, 0, 0, 0, 0],
    [0, 0, 0, 0, 0,  0, 1, 0, -1, 0,  0, -3, 0, 3, 0,  0, 1, 0, -1, 0,  0, 0, 0, 0, 0],
    [0, 0, 0, 0, 0,  0, 1, 2, 1, 0,  0, 0, 0, 0, 0,  0, -1, -2, -1, 0,  0, 0, 0, 0, 0],
];

/// The first coefficient itself, where no other is known.
#[rustfmt::skip]
const FIRST: Kernel = [
    -2, -6, -8, -6, -2,  -6, 6, 42, 6, -6,  -8, 42, 152, 42, -8,  -6, 6, 42, 6, -6,  -2, -6, -8, -6, -2,
];

/// Which bits of the coefficients of a component were told: the lowest one, or -1 where nothing was.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    now: [i8; 64],
    /// Before the last scan of the component; that one may have broken off.
    before: [i8; 64],
}

impl Known {
    /// Nothing was told yet.
    pub(super) fn nothing() -> Self {
        Self { now: [-1; 64], before: [-1; 64] }
    }

    /// A scan, the first of the file or not, tells these coefficients down to the bit `to`.
    pub(super) fn tell(&mut self, first: usize, last: usize, to: u8, is_first_scan: bool) {
        for at in first.min(1)..=last.max(GUESSED) {
            self.before[at] = if is_first_scan { 0 } else { self.now[at] };
        }
        self.now[first..=last].fill(to as i8);
    }

    /// What libjpeg looks at: nothing before a first scan.
    fn bits(&self, is_whole: bool, scans: usize) -> [i8; 1 + GUESSED] {
        let bits = match is_whole {
            true => self.now,
            false if scans > 1 => self.before,
            false => [-1; 64],
        };
        std::array::from_fn(|at| bits[at])
    }
}

/// Whether blocks of these components are smoothed: first coefficients are known of all, some others are not of any.
pub(super) fn is_useful(components: &[Component], known: &[Known]) -> bool {
    let places = || std::iter::once(0).chain(PLACES);
    let is_safe = |(component, known): (&Component, &Known)| {
        let scales = component.scales.as_ref();
        known.now[0] >= 0 && scales.is_some_and(|scales| places().all(|place| scales[place] != 0))
    };
    let is_partly = |known: &Known| known.now[1..=GUESSED].iter().any(|bit| *bit != 0);
    components.iter().zip(known).all(is_safe) && known.iter().any(is_partly)
}

/// The first coefficients of the blocks around one of a component, row by row: the block in column `x` and row `y` of a row of
/// units.
pub(super) fn around(
    blocks: &Blocks,
    component: &Component,
    (unit_row, y, x): (usize, usize, usize),
    frame: &Frame,
) -> [i16; 25] {
    let (columns, rows) = component.blocks();
    // libjpeg counts as if all rows of units had as many rows of blocks as this one; the last may have fewer.
    let count = component.down.min(rows - unit_row * component.down);
    let (counted, all) = (unit_row * count + y, frame.units().1 * count);
    let row = unit_row * component.down + y;
    let above = row - usize::from(counted > 0);
    let below = row + usize::from(counted + 1 < all);
    let around = [
        if counted > 1 { row - 2 } else { above },
        above,
        row,
        below,
        if counted + 2 < all { row + 2 } else { below },
    ];
    let firsts = |row: usize| {
        let row = blocks.row(row);
        [x.saturating_sub(2), x.saturating_sub(1), x, x + 1, x + 2]
            .map(|x| row[x.min(columns - 1)][0])
    };
    let firsts = around.map(firsts);
    std::array::from_fn(|at| firsts[at / 5][at % 5])
}

/// What is guessed of the blocks of one component.
pub(super) struct Smoother<'a> {
    scales: &'a [u16; 64],
    bits: [i8; 1 + GUESSED],
}

impl<'a> Smoother<'a> {
    /// Of a component of which that is known after so many `scans`; in a row of units that the last one reached, `is_whole`.
    pub(super) fn new(scales: &'a [u16; 64], known: &Known, is_whole: bool, scans: usize) -> Self {
        Self { scales, bits: known.bits(is_whole, scans) }
    }

    /// `block` with what is guessed by the first coefficients of the blocks around it, row by row.
    pub(super) fn smoothed(&self, block: &Block, around: &[i16; 25]) -> Block {
        let is_soft = self.bits[1..].iter().all(|bit| *bit == -1);
        let kernels: &[Kernel] = if is_soft { &SOFT } else { &SHARP };
        let mut out = *block;
        for ((kernel, place), bits) in kernels.iter().zip(PLACES).zip(&self.bits[1..]) {
            if *bits == 0 || block[place] != 0 {
                continue;
            }
            let guess = self.guess(kernel, around, place);
            // What is more would have been told.
            let most = if *bits > 0 { (1 << *bits) - 1 } else { i64::MAX };
            out[place] = (guess.abs().min(most) * guess.signum()) as i16;
        }
        if is_soft {
            out[0] = self.guess(&FIRST, around, 0) as i16;
        }
        out
    }

    fn guess(&self, kernel: &Kernel, around: &[i16; 25], place: usize) -> i64 {
        let terms = kernel.iter().zip(around).map(|(weight, first)| weight * i32::from(*first));
        let sum = i64::from(self.scales[0]) * i64::from(terms.sum::<i32>());
        let scale = i64::from(self.scales[place]);
        let size = ((scale << 7) + sum.abs()) / (scale << 8);
        if sum < 0 { -size } else { size }
    }
}
