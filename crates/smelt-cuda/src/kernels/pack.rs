//! Packs rows of weights into strips for tensor cores, and reads strips back.
//!
//! Rows as checkpoints keep them in ([`smelt_tensor::packed`] says how), the bytes of one strip of 64 rows out, part by
//! part; who packs needs no more memory than that.  Rows that fill a strip, and columns, are zero.  Knows no files.

use half::f16;
use smelt_tensor::packed::BlockForm;

use super::form::{Levels, ScaleKind, WeightForm, WeightPart, SPAN_COLUMNS};
use super::layout::{STRIP_ROWS, TILE_ROWS, group_at, level_at, padded_columns, part_bytes};

/// Scales of levels.
#[derive(Clone, Copy, Debug)]
pub enum LevelScales<'a> {
    /// One for each row.
    Rows(&'a [f32]),
    /// Bits of f16, `[rows, ⌈columns / group⌉]`.
    Groups {
        /// The numbers.
        halves: &'a [u16],
        /// Columns of a group.
        group: usize,
    },
}

/// Rows of a weight as a checkpoint keeps them.
#[derive(Clone, Copy, Debug)]
pub enum WeightRows<'a> {
    /// Numbers, `[rows, columns]`.
    Numbers(&'a [f32]),
    /// Levels of four bits, `[rows, ⌈columns / 2⌉]`, the even column in the low half; 8 means 0 without zero points.
    Nibbles {
        /// The levels.
        nibbles: &'a [u8],
        /// Their scales.
        scales: LevelScales<'a>,
        /// Zero points, as many as scales.
        zeros: Option<&'a [u8]>,
    },
    /// Signed levels of eight bits, `[rows, columns]`.
    Bytes {
        /// The levels.
        bytes: &'a [u8],
        /// Their scales.
        scales: LevelScales<'a>,
    },
    /// A form of ggml's blocks.
    Blocks(BlockRows<'a>),
}

/// Rows in a form of ggml's blocks; see [`smelt_tensor::packed`].
#[derive(Clone, Copy, Debug)]
pub struct BlockRows<'a> {
    /// The form.
    pub form: BlockForm,
    /// The low four bits of levels, `[rows, columns / 2]`.
    pub nibbles: &'a [u8],
    /// What is above them; empty where there is nothing.
    pub high: &'a [u8],
    /// Scales.
    pub scales: BlockNumbers<'a>,
    /// Minima.
    pub mins: Option<BlockNumbers<'a>>,
}

/// Numbers of groups: f16, or products of f16 and factors.
#[derive(Clone, Copy, Debug)]
pub struct BlockNumbers<'a> {
    /// Bits of f16, `[rows, columns / span]`.
    pub halves: &'a [u16],
    /// `[rows, columns / group]`, signed.
    pub factors: Option<&'a [u8]>,
}

/// A weight that is to be packed.
#[derive(Clone, Copy, Debug)]
pub struct WeightSource<'a> {
    /// Its columns.
    pub columns: usize,
    /// Its rows.
    pub rows: WeightRows<'a>,
}

/// One strip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strip {
    /// Its parts, in the order of [`WeightForm::parts`].
    pub parts: Vec<(WeightPart, Vec<u8>)>,
}

impl WeightSource<'_> {
    /// The form that holds it; none where there is none.
    pub fn form(&self) -> Option<WeightForm> {
        let levels = |levels, scales: LevelScales<'_>, has_zeros| {
            let group = match scales {
                LevelScales::Rows(_) => None,
                LevelScales::Groups { group, .. } => Some(group),
            };
            WeightForm::of_levels(levels, group, has_zeros)
        };
        match self.rows {
            WeightRows::Numbers(_) => WeightForm::parse("half"),
            WeightRows::Nibbles { scales, zeros, .. } => {
                levels(Levels::Four, scales, zeros.is_some())
            }
            WeightRows::Bytes { scales, .. } => levels(Levels::Eight, scales, false),
            WeightRows::Blocks(blocks) => WeightForm::of_blocks(blocks.form),
        }
    }

    /// The number that the kernel's level stands for, before scale and minimum: a whole number.
    fn quant(&self, row: usize, column: usize) -> i32 {
        match self.rows {
            WeightRows::Numbers(_) => 0,
            WeightRows::Nibbles { nibbles, .. } => {
                let byte = nibbles[row * self.columns.div_ceil(2) + column / 2];
                i32::from(byte >> (column % 2 * 4) & 15)
            }
            WeightRows::Bytes { bytes, .. } => {
                i32::from(bytes[row * self.columns + column].cast_signed())
            }
            WeightRows::Blocks(blocks) => {
                let (low, high) = (self.columns / 2, blocks.high.len() / self.block_rows());
                let nibbles = &blocks.nibbles[row * low..(row + 1) * low];
                let high = &blocks.high[row * high..(row + 1) * high];
                i32::from(blocks.form.quant(nibbles, high, column))
            }
        }
    }

    /// Rows of a weight in blocks.
    fn block_rows(&self) -> usize {
        match self.rows {
            WeightRows::Blocks(blocks) => (blocks.nibbles.len() * 2 / self.columns.max(1)).max(1),
            _ => 1,
        }
    }

    /// The zero point of `row` in the group of `column`.
    fn zero(&self, row: usize, column: usize) -> i32 {
        match self.rows {
            WeightRows::Nibbles { scales, zeros: Some(zeros), .. } => {
                let at = match scales {
                    LevelScales::Rows(_) => row,
                    LevelScales::Groups { group, .. } => {
                        row * self.columns.div_ceil(group) + column / group
                    }
                };
                i32::from(zeros[at])
            }
            WeightRows::Nibbles { zeros: None, .. } => 8,
            WeightRows::Blocks(blocks) => i32::from(blocks.form.middle()),
            WeightRows::Numbers(_) | WeightRows::Bytes { .. } => 0,
        }
    }

    /// The level that a form keeps of a number.
    fn level(&self, form: WeightForm, row: usize, column: usize) -> u8 {
        let (quant, zero) = (self.quant(row, column), self.zero(row, column));
        match (form.levels, form.has_zeros || form.has_mins) {
            (Levels::Four, true) => quant as u8,
            (Levels::Four, false) => (quant - zero + 8) as u8,
            _ => (quant - zero + 128) as u8,
        }
    }

    /// Bits of the f16 scale of `row` in the group of `column`.
    fn scale_bits(&self, row: usize, column: usize) -> u16 {
        match self.rows {
            WeightRows::Nibbles { scales: LevelScales::Groups { halves, group }, .. }
            | WeightRows::Bytes { scales: LevelScales::Groups { halves, group }, .. } => {
                halves[row * self.columns.div_ceil(group) + column / group]
            }
            WeightRows::Blocks(blocks) => self.block_half(blocks.scales, blocks.form, row, column),
            _ => 0,
        }
    }

    fn block_half(
        &self,
        numbers: BlockNumbers<'_>,
        form: BlockForm,
        row: usize,
        column: usize,
    ) -> u16 {
        numbers.halves[row * (self.columns / form.span) + column / form.span]
    }

    fn factor(&self, numbers: BlockNumbers<'_>, form: BlockForm, row: usize, column: usize) -> u8 {
        let at = row * (self.columns / form.group) + column / form.group;
        numbers.factors.map_or(0, |factors| factors[at])
    }

    /// The scale of a whole row.
    fn row_scale(&self, row: usize) -> f32 {
        match self.rows {
            WeightRows::Numbers(numbers) => {
                row_power(&numbers[row * self.columns..(row + 1) * self.columns]).recip()
            }
            WeightRows::Nibbles { scales: LevelScales::Rows(scales), .. }
            | WeightRows::Bytes { scales: LevelScales::Rows(scales), .. } => scales[row],
            _ => 1.0,
        }
    }
}

/// The power of two that brings the largest number of a row to 2^14 or more, and below 2^15.
///
/// Bf16 then becomes f16 without loss but for numbers below 2^-31 of the row's largest, and so does f16.
fn row_power(row: &[f32]) -> f32 {
    let largest = row.iter().fold(0.0_f32, |most, number| most.max(number.abs()));
    if !(largest.is_finite() && largest > 0.0) {
        return 1.0;
    }
    let exponent = (largest.to_bits() >> 23) as i32 - 127;
    f32::from_bits((((14 - exponent).clamp(-126, 126) + 127) as u32) << 23)
}

/// Packs one strip: `row_of` says which row of which source each of the 64 is, none where it fills.  All sources have the
/// columns and the form of the first.
///
/// Panics where a source is shorter than the rows that are asked of it.
pub fn pack_strip<'a>(
    form: WeightForm,
    columns: usize,
    row_of: impl Fn(usize) -> Option<(WeightSource<'a>, usize)>,
) -> Strip {
    let padded = padded_columns(columns);
    let kept = form.parts().into_iter().map(|part| (part, vec![0; part_bytes(form, part, padded)]));
    let mut strip = Strip { parts: kept.collect() };
    for row in 0..STRIP_ROWS {
        let from = row_of(row);
        for (part, bytes) in &mut strip.parts {
            if let Some((source, from)) = &from {
                put_row(form, *part, (source, *from), row, bytes);
            }
            if *part == WeightPart::Levels {
                let first = if from.is_some() { columns } else { 0 };
                let fill = |column| filling_level(form, from.as_ref(), column);
                (first..padded)
                    .for_each(|column| put_level(form.levels, row, column, fill(column), bytes));
            }
        }
    }
    strip
}

/// The level that stands for zero in a column behind those of a row, or in a row that is none.
fn filling_level(
    form: WeightForm,
    row: Option<&(WeightSource<'_>, usize)>,
    column: usize,
) -> u8 {
    match form.levels {
        Levels::Half => 0,
        Levels::Eight => 128,
        Levels::Four if form.has_mins => 0,
        Levels::Four if !form.has_zeros => 8,
        // The last group may have columns that count; groups behind it have no scale and the zero point 0.
        Levels::Four => row.map_or(0, |(source, from)| {
            let last = source.columns - 1;
            let is_same = column / form.group == last / form.group;
            if is_same { source.zero(*from, last) as u8 } else { 0 }
        }),
    }
}

fn put_level(levels: Levels, row: usize, column: usize, level: u8, bytes: &mut [u8]) {
    let (byte, bit) = level_at(levels, row, column);
    match levels {
        Levels::Half => bytes[byte..byte + 2].fill(level),
        Levels::Eight => bytes[byte] = level,
        Levels::Four => bytes[byte] = bytes[byte] & !(15 << bit) | level << bit,
    }
}

/// Writes row `from` of a source as row `row` of a strip's part.
fn put_row(
    form: WeightForm,
    part: WeightPart,
    (source, from): (&WeightSource<'_>, usize),
    row: usize,
    bytes: &mut [u8],
) {
    let columns = source.columns;
    let groups = || (0..columns.div_ceil(form.group)).map(|group| (group, group * form.group));
    let spans = || (0..columns / SPAN_COLUMNS).map(|span| (span, span * SPAN_COLUMNS));
    match part {
        WeightPart::Levels => put_levels(form, (source, from), row, bytes),
        WeightPart::Zeros => groups().for_each(|(group, column)| {
            bytes[group_at(row, group)] = source.zero(from, column) as u8;
        }),
        WeightPart::RowScales => {
            bytes[row * 4..row * 4 + 4].copy_from_slice(&source.row_scale(from).to_le_bytes());
        }
        WeightPart::Scales if form.scales == ScaleKind::F16 => groups().for_each(|(group, at)| {
            put_half(bytes, group_at(row, group), source.scale_bits(from, at));
        }),
        WeightPart::Scales | WeightPart::Spans | WeightPart::Mins | WeightPart::MinSpans => {
            let WeightRows::Blocks(blocks) = source.rows else { return };
            let is_min = matches!(part, WeightPart::Mins | WeightPart::MinSpans);
            let Some(numbers) = (if is_min { blocks.mins } else { Some(blocks.scales) }) else {
                return;
            };
            let half = |at| source.block_half(numbers, blocks.form, from, at);
            let is_span = matches!(part, WeightPart::Spans | WeightPart::MinSpans);
            if is_span {
                spans().for_each(|(span, at)| put_half(bytes, group_at(row, span), half(at)));
            } else if form.scales == ScaleKind::F16 {
                groups().for_each(|(group, at)| put_half(bytes, group_at(row, group), half(at)));
            } else {
                let factor = |at| source.factor(numbers, blocks.form, from, at);
                groups().for_each(|(group, at)| bytes[group_at(row, group)] = factor(at));
            }
        }
    }
}

fn put_half(bytes: &mut [u8], at: usize, bits: u16) {
    bytes[at * 2..at * 2 + 2].copy_from_slice(&bits.to_le_bytes());
}

fn put_levels(
    form: WeightForm,
    (source, from): (&WeightSource<'_>, usize),
    row: usize,
    bytes: &mut [u8],
) {
    let columns = source.columns;
    let WeightRows::Numbers(numbers) = source.rows else {
        for column in 0..columns {
            put_level(form.levels, row, column, source.level(form, from, column), bytes);
        }
        return;
    };
    let numbers = &numbers[from * columns..(from + 1) * columns];
    let power = row_power(numbers);
    for (column, number) in numbers.iter().enumerate() {
        let (byte, _) = level_at(Levels::Half, row, column);
        bytes[byte..byte + 2].copy_from_slice(&f16::from_f32(number * power).to_le_bytes());
    }
}

/// Which of two weights, gates and what they are multiplied with, and which of its rows, a packed row of both is: tiles have
/// eight rows of each, so that one thread has both results.
pub fn interleaved(row: usize) -> (usize, usize) {
    (row % TILE_ROWS / 8, row / TILE_ROWS * 8 + row % 8)
}

/// Reads the numbers of row `row` of a strip, as products see them, into `out`.
///
/// # Panics
/// Where a part is too short.
pub fn read_row(form: WeightForm, strip: &Strip, row: usize, out: &mut [f32]) {
    let part = |wanted| {
        let found = strip.parts.iter().find(|(part, _)| *part == wanted);
        found.map_or(&[][..], |(_, bytes)| bytes)
    };
    let half = |bytes: &[u8], at: usize| {
        f16::from_le_bytes([bytes[at * 2], bytes[at * 2 + 1]]).to_f32()
    };
    let number = |own, span, group: usize| match form.scales {
        ScaleKind::Row => 1.0,
        ScaleKind::F16 => half(part(own), group_at(row, group)),
        ScaleKind::Factors => {
            let factor = f32::from(part(own)[group_at(row, group)].cast_signed());
            half(part(span), group_at(row, group * form.group / SPAN_COLUMNS)) * factor
        }
    };
    let row_scale = match form.scales {
        ScaleKind::Row => part(WeightPart::RowScales)[row * 4..].first_chunk().copied(),
        ScaleKind::F16 | ScaleKind::Factors => None,
    };
    let row_scale = row_scale.map_or(1.0, f32::from_le_bytes);
    for (column, out) in out.iter_mut().enumerate() {
        let group = column / form.group;
        let level = read_level(form, part(WeightPart::Levels), part(WeightPart::Zeros), row, column);
        let scale = number(WeightPart::Scales, WeightPart::Spans, group) * row_scale;
        let min = if form.has_mins {
            number(WeightPart::Mins, WeightPart::MinSpans, group)
        } else {
            0.0
        };
        *out = level * scale - min;
    }
}

/// The number that a level stands for, before its scale.
pub(super) fn read_level(
    form: WeightForm,
    levels: &[u8],
    zeros: &[u8],
    row: usize,
    column: usize,
) -> f32 {
    let (byte, bit) = level_at(form.levels, row, column);
    match form.levels {
        Levels::Half => f16::from_le_bytes([levels[byte], levels[byte + 1]]).to_f32(),
        Levels::Eight => f32::from(levels[byte]) - 128.0,
        Levels::Four => {
            let zero = match (form.has_zeros, form.has_mins) {
                (true, _) => zeros[group_at(row, column / form.group)],
                (false, true) => 0,
                (false, false) => 8,
            };
            f32::from(levels[byte] >> bit & 15) - f32::from(zero)
        }
    }
}

#[cfg(test)]
mod tests {
    use smelt_random::Random;

    use super::*;

    /// Packs rows 0 to `rows` of a source, and reads each back.
    fn read_back(source: WeightSource<'_>, rows: usize) -> Vec<Vec<f32>> {
        let form = source.form().unwrap();
        let strip = pack_strip(form, source.columns, |row| (row < rows).then_some((source, row)));
        let mut all = vec![vec![f32::NAN; padded_columns(source.columns)]; STRIP_ROWS];
        for (row, out) in all.iter_mut().enumerate() {
            read_row(form, &strip, row, out);
            assert!(out[source.columns..].iter().all(|x| *x == 0.0), "{} fills", form.name);
            assert!(row < rows || out.iter().all(|x| *x == 0.0), "{} fills rows", form.name);
            out.truncate(source.columns);
        }
        all.truncate(rows);
        all
    }

    fn bytes(random: &mut Random, count: usize, end: usize) -> Vec<u8> {
        (0..count).map(|_| random.below(end) as u8).collect()
    }

    fn halves(random: &mut Random, count: usize) -> Vec<u16> {
        (0..count).map(|_| f16::from_f32(random.unit()).to_bits()).collect()
    }

    fn wide(bits: u16) -> f32 {
        f16::from_bits(bits).to_f32()
    }

    #[test]
    fn nibbles_come_back_with_every_group_and_zero_point() {
        let mut random = Random::new(1);
        for (rows, columns) in [(1_usize, 1_usize), (7, 31), (64, 130), (33, 512)] {
            for group in [16, 32, 64, 128, 256] {
                let groups = columns.div_ceil(group);
                let nibbles = bytes(&mut random, rows * columns.div_ceil(2), 256);
                let scales = halves(&mut random, rows * groups);
                let zeros = bytes(&mut random, rows * groups, 16);
                for zeros in [None, Some(&zeros[..])] {
                    let scales = LevelScales::Groups { halves: &scales, group };
                    let rows_in = WeightRows::Nibbles { nibbles: &nibbles, scales, zeros };
                    let found = read_back(WeightSource { columns, rows: rows_in }, rows);
                    for (at, found) in found.concat().into_iter().enumerate() {
                        let (row, column) = (at / columns, at % columns);
                        let byte = nibbles[row * columns.div_ceil(2) + column / 2];
                        let level = if column % 2 == 0 { byte & 15 } else { byte >> 4 };
                        let place = row * groups + column / group;
                        let zero = zeros.map_or(8, |zeros| zeros[place]);
                        let LevelScales::Groups { halves, .. } = scales else { unreachable!() };
                        let expect = (f32::from(level) - f32::from(zero)) * wide(halves[place]);
                        assert_eq!(found, expect, "{rows}x{columns} in {group} at {at}");
                    }
                }
            }
        }
    }

    #[test]
    fn bytes_come_back() {
        let mut random = Random::new(2);
        let (rows, columns) = (5, 70);
        let levels = bytes(&mut random, rows * columns, 256);
        let row_scales: Vec<f32> = (0..rows).map(|_| random.unit()).collect();
        let groups = halves(&mut random, rows * columns.div_ceil(32));
        for scales in [
            LevelScales::Rows(&row_scales),
            LevelScales::Groups { halves: &groups, group: 32 },
        ] {
            let rows_in = WeightRows::Bytes { bytes: &levels, scales };
            let found = read_back(WeightSource { columns, rows: rows_in }, rows).concat();
            for (at, found) in found.into_iter().enumerate() {
                let (row, column) = (at / columns, at % columns);
                let scale = match scales {
                    LevelScales::Rows(scales) => scales[row],
                    LevelScales::Groups { halves, group } => {
                        wide(halves[row * columns.div_ceil(group) + column / group])
                    }
                };
                assert_eq!(found, f32::from(levels[at].cast_signed()) * scale);
            }
        }
    }

    #[test]
    fn bf16_and_f16_lose_nothing() {
        let mut random = Random::new(3);
        let (rows, columns) = (9, 40);
        for narrow in [
            (|x: f32| f16::from_f32(x).to_f32()) as fn(f32) -> f32,
            |x: f32| half::bf16::from_f32(x).to_f32(),
        ] {
            for size in [1e-30, 1e-3, 1.0, 3e4] {
                let numbers: Vec<f32> =
                    random.noise(rows * columns).iter().map(|x| narrow(x * size)).collect();
                let source = WeightSource { columns, rows: WeightRows::Numbers(&numbers) };
                assert_eq!(read_back(source, rows).concat(), numbers, "{size}");
            }
        }
        let zeros = vec![0.0; rows * columns];
        let source = WeightSource { columns, rows: WeightRows::Numbers(&zeros) };
        assert_eq!(read_back(source, rows).concat(), zeros);
    }

    #[test]
    fn blocks_come_back() {
        let mut random = Random::new(4);
        let (rows, columns) = (5, 512);
        for form in BlockForm::ALL {
            let nibbles = bytes(&mut random, rows * columns / 2, 256);
            let words = form.word_columns().map_or(0, |width| columns / width);
            let high = bytes(&mut random, rows * words * 4, 256);
            let spans = columns / form.span;
            let all: Vec<(Vec<u16>, Vec<u8>)> = (0..2)
                .map(|_| {
                    let factors = bytes(&mut random, rows * columns / form.group, 256);
                    (halves(&mut random, rows * spans), factors)
                })
                .collect();
            let numbers = |which: usize| {
                let (halves, factors) = &all[which];
                BlockNumbers { halves, factors: form.has_factors().then_some(&factors[..]) }
            };
            let mins = form.has_mins.then(|| numbers(1));
            let blocks = BlockRows { form, nibbles: &nibbles, high: &high, scales: numbers(0), mins };
            let source = WeightSource { columns, rows: WeightRows::Blocks(blocks) };
            for (at, found) in read_back(source, rows).concat().into_iter().enumerate() {
                let (row, column) = (at / columns, at % columns);
                let own = &nibbles[row * columns / 2..][..columns / 2];
                let words = &high[row * words * 4..][..words * 4];
                let number = |which: usize| {
                    let (halves, factors) = &all[which];
                    let half = wide(halves[row * spans + column / form.span]);
                    let factor = factors[(row * columns + column) / form.group].cast_signed();
                    if form.has_factors() { half * f32::from(factor) } else { half }
                };
                let level = f32::from(form.quant(own, words, column)) - f32::from(form.middle());
                let min = if form.has_mins { number(1) } else { 0.0 };
                assert_eq!(found, level * number(0) - min, "{} at {at}", form.name);
            }
        }
    }

    #[test]
    fn gates_and_what_they_are_multiplied_with_lie_eight_by_eight() {
        assert_eq!([0, 7, 8, 15, 16, 24].map(interleaved), [
            (0, 0),
            (0, 7),
            (1, 0),
            (1, 7),
            (0, 8),
            (1, 8)
        ]);
    }
}
