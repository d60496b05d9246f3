//! Launches products of packed weights and activations.
//!
//! Which kernel multiplies changes how long it takes and never a bit, so a shape is chosen by sizes and the card, or by
//! whoever timed it.  Plain data in, a launch out.

use std::fmt;

use super::form::{Levels, SPAN_COLUMNS, WeightForm};
use super::layout::{COLUMN_ALIGN, STRIP_ROWS, TILE_ROWS};
use super::table;
use super::wide::{self, WideShape};
use crate::{DeviceAddress, Function, Launch, LaunchArgs, Processors};

/// A kernel for few tokens: blocks of tokens and tiles of rows that a block takes, and its warps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FewShape {
    /// Blocks of eight tokens.
    pub eights: u32,
    /// Tiles of 16 rows.
    pub tiles: u32,
    /// Warps, among which columns are spread.
    pub warps: u32,
    /// Whether it takes the state of one token, and norms it itself.
    pub norms: bool,
}

/// A kernel for many tokens: what a warp takes, and how many warps share a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ManyShape {
    /// Tiles of 16 rows of a warp.
    pub tiles: u32,
    /// Blocks of eight tokens of a warp.
    pub eights: u32,
    /// Warps along rows.
    pub row_warps: u32,
    /// Warps along tokens.
    pub column_warps: u32,
    /// Stages of 64 columns that are copied ahead.
    pub stages: u32,
}

/// How a product is cut into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProductShape {
    /// For few tokens.
    Few(FewShape),
    /// For many.
    Many(ManyShape),
    /// For many on Hopper.
    Wide(WideShape),
}

const fn few(eights: u32, tiles: u32, warps: u32) -> ProductShape {
    ProductShape::Few(FewShape { eights, tiles, warps, norms: false })
}

const fn norming(tiles: u32, warps: u32) -> ProductShape {
    ProductShape::Few(FewShape { eights: 1, tiles, warps, norms: true })
}

const fn many(tiles: u32, eights: u32, stages: u32) -> ProductShape {
    let (row_warps, column_warps) = (2, 2);
    ProductShape::Many(ManyShape { tiles, eights, row_warps, column_warps, stages })
}

const fn wide(eights: u32) -> ProductShape {
    ProductShape::Wide(WideShape::whole(eights))
}

const fn split(eights: u32) -> ProductShape {
    ProductShape::Wide(WideShape::split(eights))
}

/// Bytes of shared memory that a block of a product may have at most: two such blocks fit every card's multiprocessor.
const SHARED_BYTES_MAX: u32 = 80 << 10;

impl fmt::Display for ProductShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl ProductShape {
    /// Every shape of any form.
    pub const EVERY: [Self; 25] = [
        few(1, 1, 8),
        few(1, 1, 16),
        few(1, 2, 8),
        few(1, 2, 16),
        few(2, 1, 8),
        few(2, 2, 8),
        few(4, 1, 4),
        few(4, 1, 8),
        few(4, 2, 8),
        norming(1, 8),
        norming(1, 16),
        norming(2, 8),
        norming(2, 16),
        many(2, 2, 5),
        many(2, 4, 4),
        many(2, 8, 3),
        many(4, 4, 4),
        wide(6),
        wide(9),
        wide(12),
        wide(16),
        wide(17),
        wide(20),
        wide(26),
        split(17),
    ];

    /// The shapes of which a form has kernels, on some card.
    pub fn all(form: WeightForm) -> Vec<Self> {
        Self::EVERY.into_iter().filter(|shape| shape.fits(form)).collect()
    }

    /// Those of this card.
    pub fn all_on(form: WeightForm, processors: Processors) -> Vec<Self> {
        Self::all(form).into_iter().filter(|shape| shape.runs_on(processors)).collect()
    }

    /// Whether such processors have its instructions.
    pub const fn runs_on(self, processors: Processors) -> bool {
        !matches!(self, Self::Wide(_)) || processors.has_wgmma()
    }

    /// Whether there is such a kernel: its block has the shared memory, and its warps the registers.
    fn fits(self, form: WeightForm) -> bool {
        if let Self::Wide(wide) = self {
            return wide.fits(form);
        }
        // Warps of kernels for few tokens have a short group each.
        if form.is_of_graphs() && !self.is_for_many() {
            return false;
        }
        // Two tiles of halves in sixteen warps, or of bytes in groups of 32, need more registers than there are, and so do the
        // scales of short groups, or factors of both scales and minima of bytes, beside the most sums.
        let has_many_scales = form.group == 16
            || form.levels == Levels::Eight
                && form.has_mins
                && form.scales == super::form::ScaleKind::Factors;
        let is_wide = form.levels == Levels::Half
            && (self == few(1, 2, 16) || self == norming(2, 16))
            || form.levels == Levels::Eight && form.group == 32 && self == few(1, 2, 16)
            || has_many_scales && self == many(2, 8, 3);
        // Sums of groups are made of activations that a launch before has written.
        let lacks_sums = form.has_mins && self.norms();
        self.has_room(form, COLUMN_ALIGN as u32) && !is_wide && !lacks_sums
    }

    /// Whether a block has room for so many columns: the shared memory, or the registers.
    pub(crate) fn has_room(self, form: WeightForm, columns: u32) -> bool {
        match self {
            Self::Wide(wide) => wide.has_room(form, columns),
            _ => self.shared_bytes(form, columns) <= SHARED_BYTES_MAX,
        }
    }

    /// The word for it: the tokens or the block, and how it is cut.
    pub fn name(self) -> String {
        match self {
            Self::Few(few) if few.norms => format!("n1_{}x{}", few.tiles, few.warps),
            Self::Few(few) => format!("f{}_{}x{}", few.eights * 8, few.tiles, few.warps),
            Self::Many(_) => format!("g_{}x{}", self.rows(), self.tokens()),
            Self::Wide(wide) => {
                let way = if wide.is_split { 's' } else { 'w' };
                format!("{way}_{}x{}", self.rows(), self.tokens())
            }
        }
    }

    /// The shape of the word `name`.
    pub fn parse(name: &str) -> Option<Self> {
        Self::EVERY.into_iter().find(|shape| shape.name() == name)
    }

    /// Rows of a block.
    pub const fn rows(self) -> u32 {
        match self {
            Self::Few(few) => few.tiles * TILE_ROWS as u32,
            Self::Many(many) => many.tiles * many.row_warps * TILE_ROWS as u32,
            Self::Wide(_) => wide::ROWS,
        }
    }

    /// Tokens of a block; a kernel for few takes no more than one block of them.
    pub const fn tokens(self) -> u32 {
        match self {
            Self::Few(few) if few.norms => 1,
            Self::Few(few) => few.eights * 8,
            Self::Many(many) => many.eights * many.column_warps * 8,
            Self::Wide(wide) => wide.eights * 8,
        }
    }

    /// Whether it is for any number of tokens.
    pub const fn is_for_many(self) -> bool {
        !matches!(self, Self::Few(_))
    }

    /// Whether it takes a state, and norms it.
    pub const fn norms(self) -> bool {
        matches!(self, Self::Few(FewShape { norms: true, .. }))
    }

    const fn threads(self) -> u32 {
        match self {
            Self::Few(few) => few.warps * 32,
            Self::Many(many) => many.row_warps * many.column_warps * 32,
            Self::Wide(_) => wide::THREADS,
        }
    }

    /// Bytes of shared memory of a block that multiplies so many columns.
    pub fn shared_bytes(self, form: WeightForm, columns: u32) -> u32 {
        match self {
            Self::Few(few) => {
                few.rounds(form, columns) * few.round_bytes(form) + few.state_bytes(columns)
            }
            Self::Many(many) => {
                let rows = self.rows() * 64 * form.levels.bits() as u32 / 8;
                many.stages * (rows + self.tokens() * 128)
            }
            Self::Wide(wide) => wide.shared_bytes(form),
        }
    }

    /// Whether it can multiply so many tokens.
    pub const fn takes(self, tokens: u32) -> bool {
        self.is_for_many() || tokens <= self.tokens()
    }
}

impl FewShape {
    /// Bytes of the sums of groups that all warps make of a unit of columns each, and of what they are scaled with.
    fn round_bytes(self, form: WeightForm) -> u32 {
        let groups = self.warps * (COLUMN_ALIGN / form.group) as u32;
        let results = self.tiles * self.eights * 128;
        let rows = self.tiles * TILE_ROWS as u32 * if form.has_mins { 2 } else { 1 };
        groups * (results + rows) * 4
    }

    /// Bytes of a normed state, among those of a block of tokens.
    fn state_bytes(self, columns: u32) -> u32 {
        if self.norms { columns * 16 } else { 0 }
    }

    /// Units of columns of a warp before sums of groups meet: all, if there is room for their sums.
    fn rounds(self, form: WeightForm, columns: u32) -> u32 {
        let all = columns.div_ceil(COLUMN_ALIGN as u32 * self.warps);
        let room = SHARED_BYTES_MAX.saturating_sub(self.state_bytes(columns));
        (room / self.round_bytes(form)).clamp(1, all.max(1))
    }
}

/// A packed weight on the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceWeight {
    /// Its form.
    pub form: WeightForm,
    /// Rows that count.
    pub rows: u32,
    /// Padded columns.
    pub columns: u32,
    /// Its parts; no place for those that the form has not.
    pub levels: DeviceAddress,
    /// Scales of groups.
    pub scales: DeviceAddress,
    /// Zero points.
    pub zeros: DeviceAddress,
    /// Minima.
    pub mins: DeviceAddress,
    /// What scales are factors of.
    pub spans: DeviceAddress,
    /// What minima are factors of.
    pub min_spans: DeviceAddress,
    /// Scales of rows.
    pub row_scales: DeviceAddress,
}

impl DeviceWeight {
    /// One of so many rows and padded columns that is nothing but levels.
    pub fn of_levels(form: WeightForm, rows: u32, columns: u32, levels: DeviceAddress) -> Self {
        let none = DeviceAddress::NULL;
        Self {
            form,
            rows,
            columns,
            levels,
            scales: none,
            zeros: none,
            mins: none,
            spans: none,
            min_spans: none,
            row_scales: none,
        }
    }

    pub(super) fn padded_rows(&self) -> u32 {
        self.rows.next_multiple_of(STRIP_ROWS as u32)
    }
}

/// Activations on the device: halves in blocks, of as many columns as the weight has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Activations {
    /// The halves.
    pub halves: DeviceAddress,
    /// Sums of groups, where the weight has minima.
    pub sums: DeviceAddress,
    /// Tokens.
    pub tokens: u32,
}

/// The state of one token on the device, which a product norms by its root mean square.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct State {
    /// f32 `[hidden]`.
    pub numbers: DeviceAddress,
    /// Weights of the norm, f32 `[hidden]`.
    pub norm: DeviceAddress,
    /// Numbers of the state.
    pub hidden: u32,
    /// Added to the mean square.
    pub eps: f32,
}

impl State {
    /// Of a product that norms nothing.
    pub(super) const fn none() -> Self {
        let null = DeviceAddress::NULL;
        Self { numbers: null, norm: null, hidden: 0, eps: 0.0 }
    }
}

/// What becomes of a product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    /// `[tokens, stride]` of f32; the rows that count are written.
    Store {
        /// The first number.
        out: DeviceAddress,
        /// Numbers from token to token.
        stride: u32,
    },
    /// The same, added to what is there.
    Add {
        /// The first number.
        out: DeviceAddress,
        /// Numbers from token to token.
        stride: u32,
    },
    /// f32 `[tokens, stride]` as well: what lies elsewhere, to which rows are added times what each has; of graphs'
    /// weights alone.
    Sum {
        /// The first number.
        out: DeviceAddress,
        /// What is added to, of the same form.
        before: DeviceAddress,
        /// f32 `[rows]` that results are multiplied with; no place for none.
        gains: DeviceAddress,
        /// Numbers from token to token.
        stride: u32,
    },
    /// Activations of as many columns as there are rows, of graphs' weights alone; what fills the last 64 columns is zero.
    Halves {
        /// The halves.
        out: DeviceAddress,
        /// What they are turned by.
        turn: Turn,
    },
    /// Rows are gates and what they are multiplied with, [interleaved](super::pack::interleaved): activations of half as
    /// many columns.
    Swiglu {
        /// The halves.
        out: DeviceAddress,
    },
}

/// An operator on single numbers that activations go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// None.
    None,
    /// GELU by the error function.
    GeluErf,
    /// GELU by the hyperbolic tangent.
    GeluTanh,
}

/// The arguments by which a kernel knows what becomes of a product.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words {
    pub(super) out: DeviceAddress,
    pub(super) stride: u32,
    pub(super) mode: u32,
    before: DeviceAddress,
    gains: DeviceAddress,
}

impl Outcome {
    pub(super) fn words(self) -> Words {
        let null = DeviceAddress::NULL;
        let of = |out, stride, mode| Words { out, stride, mode, before: null, gains: null };
        match self {
            Self::Store { out, stride } => of(out, stride, 0),
            Self::Add { out, stride } => Words { before: out, ..of(out, stride, 1) },
            Self::Sum { out, before, gains, stride } => {
                Words { before, gains, ..of(out, stride, 1) }
            }
            Self::Swiglu { out } => of(out, 0, 2),
            Self::Halves { out, turn } => of(out, 0, 3 + turn as u32),
        }
    }
}

/// What every kernel of products is given.
pub(super) fn arguments(
    weight: &DeviceWeight,
    bias: DeviceAddress,
    (x, state): (Activations, State),
    words: Words,
    rounds: u32,
) -> LaunchArgs {
    LaunchArgs::new()
        .with(weight.levels)
        .with(weight.scales)
        .with(weight.zeros)
        .with(weight.mins)
        .with(weight.spans)
        .with(weight.min_spans)
        .with(weight.row_scales)
        .with(bias)
        .with(x.halves)
        .with(x.sums)
        .with(words.out)
        .with(x.tokens)
        .with(weight.rows)
        .with(weight.padded_rows())
        .with(weight.columns)
        .with(words.stride)
        .with(words.mode)
        .with(rounds)
        .with(state.norm)
        .with(state.hidden)
        .with(state.eps)
        .with(words.before)
        .with(words.gains)
}

/// Multiplies `weight` by `x`, adds `bias` `[rows]` where there is one, and does with it what `outcome` says, on a card of
/// such processors.
///
/// # Panics
/// Where the shape cannot take so many tokens, or norms: whoever chooses one asks [`ProductShape::takes`].
pub fn product(
    weight: &DeviceWeight,
    bias: DeviceAddress,
    x: Activations,
    outcome: Outcome,
    (shape, processors): (ProductShape, Processors),
) -> Launch {
    assert!(shape.takes(x.tokens), "{shape} cannot take {} tokens", x.tokens);
    assert!(!shape.norms(), "{shape} takes a state");
    let launch = launch(weight, bias, (x, State::none()), outcome, shape);
    let [rows, tokens, _] = launch.grid;
    match shape {
        ProductShape::Wide(WideShape { is_split: true, .. }) => {
            Launch { grid: [rows * tokens * 2, 1, 1], cluster: 2, ..launch }
        }
        // A block stays for all its tiles.
        ProductShape::Wide(_) => {
            Launch { grid: [(rows * tokens).min(processors.count.max(1)), 1, 1], ..launch }
        }
        ProductShape::Few(_) | ProductShape::Many(_) => launch,
    }
}

/// Multiplies `weight` by a normed state, with the bits of a norm and a product behind it.
///
/// # Panics
/// Where the shape norms nothing: [`shape_of_state`] gives one that does.
pub fn product_of_state(
    weight: &DeviceWeight,
    bias: DeviceAddress,
    state: State,
    outcome: Outcome,
    shape: ProductShape,
) -> Launch {
    assert!(shape.norms(), "{shape} norms nothing");
    let x = Activations { halves: state.numbers, sums: DeviceAddress::NULL, tokens: 1 };
    launch(weight, bias, (x, state), outcome, shape)
}

fn launch(
    weight: &DeviceWeight,
    bias: DeviceAddress,
    (x, state): (Activations, State),
    outcome: Outcome,
    shape: ProductShape,
) -> Launch {
    let rows = weight.padded_rows().div_ceil(shape.rows());
    let (tokens, rounds) = match shape {
        ProductShape::Few(few) => (1, few.rounds(weight.form, weight.columns)),
        ProductShape::Many(_) | ProductShape::Wide(_) => (x.tokens.div_ceil(shape.tokens()), 0),
    };
    let args = arguments(weight, bias, (x, state), outcome.words(), rounds);
    Launch {
        function: table::product(weight.form, shape),
        grid: [rows, tokens, 1],
        block: [shape.threads(), 1, 1],
        cluster: 1,
        shared_bytes: shape.shared_bytes(weight.form, weight.columns),
        early: true,
        args,
    }
}

/// Writes the rows `ids` `[tokens]` of a packed weight, the embedding, as f32 `[tokens, hidden]`.
pub fn widen(
    weight: &DeviceWeight,
    ids: DeviceAddress,
    tokens: u32,
    out: (DeviceAddress, u32),
) -> Launch {
    let (out, hidden) = out;
    let x = Activations { halves: DeviceAddress::NULL, sums: DeviceAddress::NULL, tokens };
    let words = Outcome::Store { out, stride: hidden }.words();
    let args = arguments(weight, DeviceAddress::NULL, (x, State::none()), words, 0);
    Launch {
        function: table::widen(weight.form),
        grid: [tokens, 1, 1],
        block: [128, 1, 1],
        cluster: 1,
        shared_bytes: 0,
        early: true,
        args: args.with(ids).with(hidden),
    }
}

/// The shape for a product of so many rows and columns where nobody timed it, on a card of such processors.
pub fn default_shape(
    form: WeightForm,
    [rows, columns]: [u32; 2],
    tokens: u32,
    processors: Processors,
) -> ProductShape {
    let multiprocessors = processors.count;
    if let Some(wide) = WideShape::of(form, [rows, columns], tokens, processors) {
        return ProductShape::Wide(wide);
    }
    let wanted: &[&str] = match tokens {
        0..=8 => few_tokens(form, rows, multiprocessors),
        9..=16 => &["f16_2x8", "f16_1x8"],
        // So many rows read their weights at the memory's pace where tiles are copied ahead.
        17..=32 if rows >= 256 * multiprocessors => &["g_64x32"],
        17..=32 if rows <= 16 * multiprocessors => &["f32_1x8", "f32_1x4"],
        17..=32 => &["f32_2x8", "f32_1x8", "f32_1x4"],
        _ => many_tokens(rows, tokens, multiprocessors),
    };
    first_of(form, wanted).unwrap_or(many(2, 2, 5))
}

/// The shape for a product that norms a state of so many columns itself; nothing where the form has none or a block no room.
pub fn shape_of_state(
    form: WeightForm,
    rows: u32,
    columns: u32,
    multiprocessors: u32,
) -> Option<ProductShape> {
    let wanted = few_tokens(form, rows, multiprocessors);
    let names: Vec<String> = wanted.iter().map(|name| name.replace("f8_", "n1_")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    first_of(form, &names).filter(|shape| shape.has_room(form, columns))
}

/// The first of these shapes that a form has.
fn first_of(form: WeightForm, wanted: &[&str]) -> Option<ProductShape> {
    let mut found = wanted.iter().filter_map(|name| ProductShape::parse(name));
    found.find(|shape| shape.fits(form))
}

/// For at most eight tokens: warps share the columns of few rows while all blocks run at once; more rows are many blocks of
/// which several run on a multiprocessor.  Halves are so many bytes that more warps only wait.
fn few_tokens(form: WeightForm, rows: u32, multiprocessors: u32) -> &'static [&'static str] {
    let is_one_wave = |block| rows.div_ceil(block) <= multiprocessors;
    if is_one_wave(16) {
        &["f8_1x16", "f8_1x8"]
    } else if form.levels == Levels::Half {
        &["f8_1x8"]
    } else if is_one_wave(32) {
        &["f8_2x16", "f8_1x16", "f8_1x8"]
    } else {
        &["f8_2x8", "f8_1x16", "f8_1x8"]
    }
}

/// The largest tiles of which there are enough for every multiprocessor: two of the largest, for prompts that fill them.
fn many_tokens(rows: u32, tokens: u32, multiprocessors: u32) -> &'static [&'static str] {
    let blocks = |row, token| rows.div_ceil(row) * tokens.div_ceil(token);
    if tokens >= 512 && blocks(64, 128) * 8 >= multiprocessors * 15 {
        &["g_64x128", "g_128x64", "g_64x64"]
    } else if blocks(64, 64) >= multiprocessors {
        &["g_64x64"]
    } else {
        &["g_64x32"]
    }
}

/// The names of all kernels of a form.
pub fn functions(form: WeightForm) -> Vec<Function> {
    let products = ProductShape::all(form).into_iter().map(|shape| table::product(form, shape));
    products.chain([table::widen(form)]).collect()
}

/// Whether scales of so many columns lie as kernels read them.
pub fn fits(form: WeightForm, columns: usize) -> bool {
    form.scales != super::form::ScaleKind::Factors || columns.is_multiple_of(SPAN_COLUMNS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sm;

    #[test]
    fn words_of_shapes_tell_them_apart() {
        for shape in ProductShape::EVERY {
            assert_eq!(ProductShape::parse(&shape.name()), Some(shape));
        }
    }

    #[test]
    fn every_form_has_a_kernel_for_every_number_of_tokens() {
        for form in WeightForm::every() {
            for tokens in 1..=600 {
                for (rows, count, sm) in
                    [(64, 8, 87), (2048, 132, 90), (12288, 132, 90), (151_936, 8, 87)]
                {
                    let processors = Processors { count, sm: Sm(sm) };
                    let shape = default_shape(form, [rows, 2048], tokens, processors);
                    assert!(shape.takes(tokens) && shape.fits(form), "{} {tokens}", form.name);
                    assert!(shape.runs_on(processors));
                    assert!(!shape.norms());
                }
            }
        }
    }

    #[test]
    fn sums_meet_as_late_as_a_block_has_room_for() {
        let form = WeightForm::parse("i4g128").unwrap();
        let rounds = |name: &str, columns| match ProductShape::parse(name) {
            Some(ProductShape::Few(few)) => few.rounds(form, columns),
            _ => 0,
        };
        assert_eq!(rounds("f8_1x16", 2048), 1);
        assert_eq!(rounds("f8_1x16", 2049), 2);
        assert_eq!(rounds("f8_1x16", 6144), 3);
        assert_eq!(rounds("f32_2x8", 6144), 2);
        for form in WeightForm::ALL {
            for shape in ProductShape::all(form) {
                for columns in [128, 2048, 6144, 18_944] {
                    let bytes = shape.shared_bytes(form, columns);
                    let is_alone = matches!(shape, ProductShape::Wide(_));
                    assert!(
                        bytes <= SHARED_BYTES_MAX || shape.norms() || is_alone,
                        "{shape} {columns}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_state_is_normed_where_a_block_has_room_for_it() {
        let shape = |form, rows, columns| {
            let form = WeightForm::parse(form).unwrap();
            shape_of_state(form, rows, columns, 132).map(ProductShape::name)
        };
        assert_eq!(shape("i4g128", 4096, 2048).as_deref(), Some("n1_2x16"));
        assert_eq!(shape("i4g128", 12_288, 2048).as_deref(), Some("n1_2x8"));
        assert_eq!(shape("half", 12_288, 2048).as_deref(), Some("n1_1x8"));
        assert_eq!(shape("i4g32m", 4096, 2048), None, "groups of activations are added up before");
        assert_eq!(shape("i4g128", 4096, 8192), None, "80 KiB hold no such state");
    }

    #[test]
    fn blocks_cover_every_row_and_token_once() {
        let null = DeviceAddress::NULL;
        for form in WeightForm::every() {
            for shape in ProductShape::all(form) {
                for (rows, tokens) in [(1, 1), (200, 31), (4096, 100)] {
                    if !shape.takes(tokens) {
                        continue;
                    }
                    let weight = DeviceWeight::of_levels(form, rows, 256, null);
                    let x = Activations { halves: null, sums: null, tokens };
                    let outcome = Outcome::Store { out: null, stride: rows };
                    let state = State { numbers: null, norm: null, hidden: 250, eps: 0.0 };
                    let launch = match shape.norms() {
                        true => product_of_state(&weight, null, state, outcome, shape),
                        false => {
                            let processors = Processors { count: 8, sm: Sm(90) };
                            product(&weight, null, x, outcome, (shape, processors))
                        }
                    };
                    assert_eq!(launch.args.args().len(), 23);
                    let [across, down, _] = launch.grid;
                    if let ProductShape::Wide(wide) = shape {
                        let tiles = rows.div_ceil(128) * tokens.div_ceil(shape.tokens());
                        let blocks = if wide.is_split { tiles * 2 } else { tiles.min(8) };
                        assert_eq!(launch.grid, [blocks, 1, 1]);
                        continue;
                    }
                    assert!(
                        across * shape.rows() >= rows
                            && (across - 1) * shape.rows() < rows.next_multiple_of(64)
                    );
                    assert!(
                        down * shape.tokens() >= tokens && (down - 1) * shape.tokens() < tokens
                    );
                    assert!(launch.shared_bytes <= SHARED_BYTES_MAX && launch.block[0] <= 512);
                }
            }
        }
    }
}
