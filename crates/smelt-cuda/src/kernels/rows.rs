//! Launches what happens to rows between products: embeddings, norms, rotation, keys and values put into pages.
//!
//! Plain data in, a launch out.

use super::page::HeadShape;
use crate::{DeviceAddress, Function, Launch, LaunchArgs};

/// Threads of a row.
pub(super) const ROW_THREADS: u32 = 256;
/// Threads that turn the places of a token into cosines and sines.
const ROTATION_THREADS: u32 = 64;

pub(super) const EMBED_ROWS: Function = Function("embed_rows");
pub(super) const SCATTER_ROWS: Function = Function("scatter_rows");
pub(super) const NORM_ROWS: Function = Function("norm_rows");
pub(super) const SWIGLU_ROWS: Function = Function("swiglu_rows");
pub(super) const REORDER_COLUMNS: Function = Function("reorder_columns");
pub(super) const GROUP_SUMS: Function = Function("group_sums");
pub(super) const ROTATIONS: Function = Function("rotations");
pub(super) const ROTATE_AND_KEEP: Function = Function("rotate_and_keep");

/// How numbers of a table are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberKind {
    /// Half precision.
    F16,
    /// The upper half of an f32.
    Bf16,
    /// Single precision.
    F32,
}

impl NumberKind {
    /// Bytes of one.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }

    /// The kernels' word for it.
    pub(super) const fn word(self) -> u32 {
        match self {
            Self::F16 => 0,
            Self::Bf16 => 1,
            Self::F32 => 2,
        }
    }

    /// What the kernels' word `word` is.
    #[cfg(any(test, feature = "recording"))]
    pub(super) const fn of_word(word: u32) -> Self {
        match word {
            0 => Self::F16,
            1 => Self::Bf16,
            _ => Self::F32,
        }
    }
}

/// A launch with one block for each of `blocks`.
fn of_blocks(function: Function, blocks: u32, threads: u32, args: LaunchArgs) -> Launch {
    let (grid, block) = ([blocks, 1, 1], [threads, 1, 1]);
    Launch { function, grid, block, cluster: 1, shared_bytes: 0, early: true, args }
}

/// Rows of a table that become those of a pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Embed {
    /// f32 `[tokens, hidden]`.
    pub out: DeviceAddress,
    /// `[vocab, hidden]`.
    pub table: DeviceAddress,
    /// How the table keeps numbers.
    pub kind: NumberKind,
    /// Which rows, u32 `[tokens]`.
    pub ids: DeviceAddress,
    /// Tokens.
    pub tokens: u32,
    /// Numbers of a row.
    pub hidden: u32,
}

/// Begins a pass: row `i` is row `ids[i]` of a table.
pub fn embed(embed: Embed) -> Launch {
    let args = LaunchArgs::new()
        .with(embed.out)
        .with(embed.table)
        .with(embed.ids)
        .with(embed.hidden)
        .with(embed.kind.word());
    of_blocks(EMBED_ROWS, embed.tokens, ROW_THREADS, args)
}

/// Rows of images that go to rows of a pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scatter {
    /// f32 `[tokens, hidden]`.
    pub x: DeviceAddress,
    /// `[images, hidden]`.
    pub from: DeviceAddress,
    /// How they keep numbers.
    pub kind: NumberKind,
    /// Rows of the pass, u32 `[count]`; none twice.
    pub rows: DeviceAddress,
    /// Rows of the images, u32 `[count]`.
    pub sources: DeviceAddress,
    /// How many.
    pub count: u32,
    /// Numbers of a row.
    pub hidden: u32,
    /// Whether they are added (deepstack) rather than put there.
    pub adds: bool,
}

/// Puts rows of images into a pass, or adds them.
pub fn scatter(scatter: Scatter) -> Launch {
    let args = LaunchArgs::new()
        .with(scatter.x)
        .with(scatter.from)
        .with(scatter.rows)
        .with(scatter.sources)
        .with(scatter.hidden)
        .with(scatter.kind.word())
        .with(u32::from(scatter.adds));
    of_blocks(SCATTER_ROWS, scatter.count, ROW_THREADS, args)
}

/// Rows that are normed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// Activations of `columns` columns.
    pub out: DeviceAddress,
    /// f32 `[rows, hidden]`.
    pub x: DeviceAddress,
    /// f32 `[hidden]`.
    pub weight: DeviceAddress,
    /// Which rows of x, u32 `[tokens]`; no place for all in order.
    pub rows: DeviceAddress,
    /// Tokens of the activations.
    pub tokens: u32,
    /// Numbers of a row.
    pub hidden: u32,
    /// Padded columns.
    pub columns: u32,
    /// Added to the mean square.
    pub eps: f32,
}

/// Norms rows by their root mean square.
pub fn norm(norm: Norm) -> Launch {
    let args = LaunchArgs::new()
        .with(norm.out)
        .with(norm.x)
        .with(norm.weight)
        .with(norm.rows)
        .with(norm.tokens)
        .with(norm.hidden)
        .with(norm.columns)
        .with(norm.eps);
    of_blocks(NORM_ROWS, norm.tokens, ROW_THREADS, args)
}

/// Gates and what they are multiplied with, of weights that were multiplied apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwigluRows {
    /// Activations of `columns` columns.
    pub out: DeviceAddress,
    /// f32, and how many numbers are from token to token.
    pub gates: (DeviceAddress, u32),
    /// The same.
    pub ups: (DeviceAddress, u32),
    /// Tokens.
    pub tokens: u32,
    /// Numbers of a row.
    pub width: u32,
    /// Padded columns.
    pub columns: u32,
}

/// The middle of SwiGLU, where no product does it.
pub fn swiglu_rows(rows: SwigluRows) -> Launch {
    let args = LaunchArgs::new()
        .with(rows.out)
        .with(rows.gates.0)
        .with(rows.ups.0)
        .with(rows.tokens)
        .with(rows.width)
        .with(rows.gates.1)
        .with(rows.ups.1)
        .with(rows.columns);
    of_blocks(SWIGLU_ROWS, rows.tokens, ROW_THREADS, args)
}

/// Activations whose columns get another order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reorder {
    /// Activations.
    pub out: DeviceAddress,
    /// Activations.
    pub x: DeviceAddress,
    /// Which column each becomes, u32 `[columns]`.
    pub order: DeviceAddress,
    /// Tokens.
    pub tokens: u32,
    /// Columns that count.
    pub columns: u32,
    /// Padded columns.
    pub padded_columns: u32,
}

/// Sorts columns as a weight's were sorted.
pub fn reorder(reorder: Reorder) -> Launch {
    let args = LaunchArgs::new()
        .with(reorder.out)
        .with(reorder.x)
        .with(reorder.order)
        .with(reorder.tokens)
        .with(reorder.columns)
        .with(reorder.padded_columns);
    of_blocks(REORDER_COLUMNS, reorder.tokens, ROW_THREADS, args)
}

/// Adds up the groups of activations, for weights that have minima: f32 `[columns / group, tokens in eights]`.
pub fn group_sums(
    sums: DeviceAddress,
    x: DeviceAddress,
    tokens: u32,
    columns: u32,
    group: u32,
) -> Launch {
    let args = LaunchArgs::new().with(sums).with(x).with(tokens).with(columns).with(group);
    let count = columns / group * tokens.next_multiple_of(8);
    of_blocks(GROUP_SUMS, count.div_ceil(ROW_THREADS), ROW_THREADS, args)
}

/// Cosines and sines of the places of a pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rotations {
    /// f32 `[tokens, pairs]`.
    pub cosines: DeviceAddress,
    /// f32 `[tokens, pairs]`.
    pub sines: DeviceAddress,
    /// Time, height and width, u32 `[tokens, 3]`.
    pub places: DeviceAddress,
    /// Angle per position of each pair, f32 `[pairs]`.
    pub frequencies: DeviceAddress,
    /// Which of the three turns each pair, u32 `[pairs]`.
    pub axes: DeviceAddress,
    /// Tokens.
    pub tokens: u32,
    /// Pairs of a head.
    pub pairs: u32,
    /// What cosines and sines are multiplied by.
    pub factor: f32,
}

/// Turns places into cosines and sines, once for all layers.
pub fn rotations(rotations: Rotations) -> Launch {
    let args = LaunchArgs::new()
        .with(rotations.cosines)
        .with(rotations.sines)
        .with(rotations.places)
        .with(rotations.frequencies)
        .with(rotations.axes)
        .with(rotations.pairs)
        .with(rotations.factor);
    of_blocks(ROTATIONS, rotations.tokens, ROTATION_THREADS, args)
}

/// The heads of a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub queries: u32,
    /// Key heads; divides the query heads.
    pub keys: u32,
    /// A head, and how pages keep it.
    pub shape: HeadShape,
}

/// The pages of one layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerPages {
    /// Where this layer's heads of page 0 lie.
    pub pool: DeviceAddress,
    /// Numbers of pages, slot behind slot, u32.
    pub tables: DeviceAddress,
    /// Bytes from page to page.
    pub page_bytes: u64,
}

/// Queries, keys and values of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rotate {
    /// Halves `[tokens, query heads, padded head]`, scaled for [`super::attention`].
    pub queries: DeviceAddress,
    /// Queries, keys and values, f32 `[tokens, stride]`.
    pub all: DeviceAddress,
    /// Numbers from token to token.
    pub stride: u32,
    /// Norms of heads of queries, f32 `[head]`; no place where there is none.
    pub query_norm: DeviceAddress,
    /// The same of keys.
    pub key_norm: DeviceAddress,
    /// From [`rotations`].
    pub cosines: DeviceAddress,
    /// From [`rotations`].
    pub sines: DeviceAddress,
    /// Where each token's pages begin in the tables, u32 `[tokens]`.
    pub row_tables: DeviceAddress,
    /// Each token's position, u32 `[tokens]`.
    pub row_positions: DeviceAddress,
    /// Where keys and values go.
    pub pages: LayerPages,
    /// Tokens.
    pub tokens: u32,
    /// The decoder's heads.
    pub heads: Heads,
    /// Of the norms.
    pub eps: f32,
}

/// What queries are multiplied by, so that scores are exponents of two.
pub fn query_scale(dim: usize) -> f32 {
    (std::f64::consts::LOG2_E / (dim as f64).sqrt()) as f32
}

/// Norms and turns queries and keys, and puts keys and values into their pages.
pub fn rotate_and_keep(rotate: Rotate) -> Launch {
    let Heads { queries, keys, shape } = rotate.heads;
    let args = LaunchArgs::new()
        .with(rotate.queries)
        .with(rotate.all)
        .with(rotate.query_norm)
        .with(rotate.key_norm)
        .with(rotate.cosines)
        .with(rotate.sines)
        .with(rotate.row_tables)
        .with(rotate.row_positions)
        .with(rotate.pages.pool)
        .with(rotate.pages.tables)
        .with(rotate.pages.page_bytes)
        .with(rotate.tokens)
        .with(queries)
        .with(keys)
        .with(shape.dim as u32)
        .with(rotate.stride)
        .with(rotate.eps)
        .with(query_scale(shape.dim));
    let warps = rotate.tokens * (queries + 2 * keys);
    of_blocks(ROTATE_AND_KEEP, warps.div_ceil(ROW_THREADS / 32), ROW_THREADS, args)
}
