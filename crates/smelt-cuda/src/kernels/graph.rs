//! Launches what graphs compute beside products: norms, heads that attend to everything, operators on single numbers, gathers.
//!
//! Plain data in, a launch out.  Values are f32 that lie anywhere; what only products read are activations, blocks of halves.

use super::layout::{padded_columns, padded_rows};
use super::page::{HeadShape, PAGE_TOKENS};
use super::rows::{NumberKind, ROW_THREADS};
use crate::{DeviceAddress, Function, Launch, LaunchArgs, Processors};

/// Threads of a block of [`map`], and numbers that each takes.
pub(super) const MAP_THREADS: u32 = 128;
pub(super) const MAP_EACH: u32 = 4;
/// Most words of a [`Program`].
pub(super) const MAP_WORDS: usize = 160;
/// Most operands of a chain.
pub const MAP_OPERANDS: usize = 8;
/// Most values of a chain, operands and what its operators give: they lie in shared memory.
const MAP_VALUES: usize = 20;
/// Most dimensions of a value, those that lie in one run taken together.
const MAP_DIMS: usize = 6;
/// Threads of a block that moves numbers.
pub(super) const MOVE_THREADS: u32 = 256;

pub(super) const PACK_HALVES: Function = Function("pack_halves");
pub(super) const NORM_NUMBERS: Function = Function("norm_numbers");
pub(super) const ARRANGE_HEADS: Function = Function("arrange_heads");
pub(super) const ATTEND_ALL: Function = Function("attend_all");
pub(super) const ATTEND_MASKED: Function = Function("attend_masked");
pub(super) const MAP_NUMBERS: Function = Function("map_numbers");
pub(super) const GATHER_NUMBERS: Function = Function("gather_numbers");

/// Numbers that lie somewhere.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Numbers {
    /// The first.
    pub at: DeviceAddress,
    /// How they are kept.
    pub kind: NumberKind,
}

/// Where a result goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// f32, row behind row.
    Rows,
    /// Activations of so many rows and columns, as products take them; what fills columns is zero already, or becomes it.
    Activations {
        /// Rows.
        rows: u32,
        /// Columns that count.
        columns: u32,
    },
}

impl Form {
    /// Blocks of eight rows; none of plain rows.
    const fn eights(self) -> u32 {
        match self {
            Self::Rows => 0,
            Self::Activations { rows, .. } => rows.div_ceil(8),
        }
    }

    /// Columns that count; none of plain rows.
    const fn columns(self) -> u32 {
        match self {
            Self::Rows => 0,
            Self::Activations { columns, .. } => columns,
        }
    }

    /// Columns with what fills them.
    const fn padded(self) -> u32 {
        padded_columns(self.columns() as usize) as u32
    }
}

fn moving(function: Function, count: u64, args: LaunchArgs) -> Launch {
    let blocks = u32::try_from(count.div_ceil(u64::from(MOVE_THREADS))).unwrap_or(u32::MAX);
    let (grid, block) = ([blocks, 1, 1], [MOVE_THREADS, 1, 1]);
    Launch { function, grid, block, cluster: 1, shared_bytes: 0, early: true, args }
}

/// A weight of floats that becomes one of halves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pack {
    /// [`packed_halves`] halves.
    pub out: DeviceAddress,
    /// Its numbers.
    pub from: Numbers,
    /// Rows and columns.
    pub shape: [u32; 2],
    /// Numbers from row to row, and from column to column.
    pub steps: [u64; 2],
}

/// Halves of a packed weight.
pub const fn packed_halves([rows, columns]: [u32; 2]) -> u64 {
    (padded_rows(rows as usize) * padded_columns(columns as usize)) as u64
}

/// Packs a weight.
pub fn pack(pack: Pack) -> Launch {
    let ([rows, columns], [by_row, by_column]) = (pack.shape, pack.steps);
    let count = packed_halves(pack.shape);
    let args = LaunchArgs::new()
        .with(pack.out)
        .with(pack.from.at)
        .with(by_row)
        .with(by_column)
        .with(count)
        .with(pack.from.kind.word())
        .with(rows)
        .with(columns)
        .with(padded_columns(columns as usize) as u32);
    moving(PACK_HALVES, count, args)
}

/// Rows that are normed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormNumbers {
    /// Where they go.
    pub out: DeviceAddress,
    /// In which form.
    pub form: Form,
    /// f32 `[rows, width]`.
    pub x: DeviceAddress,
    /// f32 `[width]` that each is multiplied with; no place for none.
    pub scale: DeviceAddress,
    /// f32 `[width]` that is added; no place for none.
    pub bias: DeviceAddress,
    /// Rows.
    pub rows: u32,
    /// Numbers of a row.
    pub width: u32,
    /// Whether their mean is taken away first.
    pub centred: bool,
    /// Added to the mean square.
    pub eps: f32,
}

/// Norms rows.
pub fn norm(norm: NormNumbers) -> Launch {
    let args = LaunchArgs::new()
        .with(norm.out)
        .with(norm.x)
        .with(norm.scale)
        .with(norm.bias)
        .with(norm.rows)
        .with(norm.width)
        .with(norm.form.padded())
        .with(norm.form.eights())
        .with(u32::from(norm.centred))
        .with(norm.eps);
    let (grid, block) = ([norm.rows.div_ceil(ROW_THREADS / 32), 1, 1], [ROW_THREADS, 1, 1]);
    Launch { function: NORM_NUMBERS, grid, block, cluster: 1, shared_bytes: 0, early: true, args }
}

/// `[batch, heads, rows, numbers]` by steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadsView {
    /// The first number.
    pub from: Numbers,
    /// Its dimensions.
    pub shape: [u32; 4],
    /// Numbers from one to the next in each.
    pub steps: [u64; 4],
}

/// Puts heads into activations of rows `[batch, rows]` and columns `[heads, padded head]`.
pub fn arrange(out: DeviceAddress, view: HeadsView, head: HeadShape) -> Launch {
    let [batch, heads, rows, numbers] = view.shape;
    let eights = (head.padded() / 8) as u64;
    let count = u64::from(batch) * u64::from(heads) * u64::from(rows) * eights;
    let [by_batch, by_head, by_row, by_number] = view.steps;
    let args = LaunchArgs::new()
        .with(out)
        .with(view.from.at)
        .with(by_batch)
        .with(by_head)
        .with(by_row)
        .with(by_number)
        .with(count)
        .with(view.from.kind.word())
        .with(heads)
        .with(rows)
        .with(numbers)
        .with((batch * rows).div_ceil(8));
    moving(ARRANGE_HEADS, count, args)
}

/// Heads in activations of rows `[batch, rows]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadBlocks {
    /// The activations.
    pub halves: DeviceAddress,
    /// Blocks of eight rows.
    pub eights: u32,
    /// Where its columns are.
    pub columns: HeadColumns,
}

/// Columns of heads; both are multiples of 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadColumns {
    /// The first of the first head.
    pub first: u32,
    /// From one to the next.
    pub by_head: u32,
}

/// Queries that attend to all keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttendAll {
    /// `[batch, queries, heads, width]`.
    pub out: DeviceAddress,
    /// In which form.
    pub form: Form,
    /// Queries.
    pub queries: HeadBlocks,
    /// Keys.
    pub keys: HeadBlocks,
    /// Values.
    pub values: HeadBlocks,
    /// What is added to scores, `[batch, heads, queries, keys]`.
    pub mask: Option<HeadsView>,
    /// What scores are multiplied with, not below zero.
    pub scale: f32,
    /// Batch and heads.
    pub heads: [u32; 2],
    /// Queries and keys.
    pub rows: [u32; 2],
    /// Numbers of a query and of a value; what fills eights of them is zero.
    pub numbers: [u32; 2],
    /// A head, as kernels have it.
    pub head: HeadShape,
}

/// Pages of keys and values that lie in shared memory at once: on Hopper products of heads of 64 numbers read one while the next
/// is multiplied and another one comes.
fn pages_at_once(attend: &AttendAll, processors: Processors) -> usize {
    let is_ahead = processors.has_wgmma() && attend.head.padded() == 64 && attend.mask.is_none();
    if is_ahead { 3 } else { 2 }
}

/// Attention without an order, on a card of such processors.
pub fn attend(attend: AttendAll, processors: Processors) -> Launch {
    let ([batch, heads], [queries, keys]) = (attend.heads, attend.rows);
    let none = Numbers { at: DeviceAddress::NULL, kind: NumberKind::F32 };
    let mask = attend.mask.unwrap_or(HeadsView { from: none, shape: [0; 4], steps: [0; 4] });
    let [by_batch, by_head, by_query, by_key] = mask.steps;
    let mut args = LaunchArgs::new().with(attend.out);
    for part in [attend.queries, attend.keys, attend.values] {
        let HeadColumns { first, by_head } = part.columns;
        args = args.with(part.halves).with(part.eights).with(first).with(by_head);
    }
    let [depth, width] = attend.numbers;
    let args = args
        .with(mask.from.at)
        .with(by_batch)
        .with(by_head)
        .with(by_query)
        .with(by_key)
        .with(mask.from.kind.word())
        .with(attend.scale * std::f32::consts::LOG2_E)
        .with(queries)
        .with(keys)
        .with(heads)
        .with(depth)
        .with(width)
        .with(attend.form.eights());
    Launch {
        function: if attend.mask.is_some() { ATTEND_MASKED } else { ATTEND_ALL },
        grid: [queries.div_ceil(PAGE_TOKENS as u32), heads, batch],
        block: [128, 1, 1],
        cluster: 1,
        // Queries, and pages of keys and values.
        shared_bytes: ((1 + 2 * pages_at_once(&attend, processors))
            * PAGE_TOKENS
            * attend.head.padded()
            * 2) as u32,
        early: true,
        args,
    }
}

/// An operator of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkOp {
    /// |a|
    Abs = 0,
    /// The root.
    Sqrt = 1,
    /// 1 / a
    Reciprocal = 2,
    /// The cosine.
    Cos = 3,
    /// The sine.
    Sin = 4,
    /// The error function.
    Erf = 5,
    /// The hyperbolic tangent.
    Tanh = 6,
    /// 1 / (1 + exp(-a))
    Sigmoid = 7,
    /// e to the power of a
    Exp = 8,
    /// -a
    Neg = 9,
    /// GELU by the error function.
    GeluErf = 10,
    /// GELU by the hyperbolic tangent.
    GeluTanh = 11,
    /// To f16 and back.
    RoundF16 = 12,
    /// To bf16 and back.
    RoundBf16 = 13,
    /// a + b
    Add = 16,
    /// a - b
    Sub = 17,
    /// a · b
    Mul = 18,
    /// a / b
    Div = 19,
    /// a to the power of b
    Pow = 20,
    /// The smaller.
    Min = 21,
    /// The larger.
    Max = 22,
}

/// What an operator of a chain reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkSource {
    /// An operand.
    Operand(usize),
    /// What an operator before it gave.
    Link(usize),
}

impl LinkSource {
    fn word(self) -> u32 {
        match self {
            Self::Operand(at) => at as u32,
            Self::Link(at) => 16 + at as u32,
        }
    }
}

/// An operand of a chain.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// One number for all.
    Number(f32),
    /// Numbers of a kind, by the steps of each dimension.
    Numbers {
        /// How they are kept.
        kind: NumberKind,
        /// Numbers from one to the next in each dimension.
        steps: Vec<usize>,
    },
}

/// Operators on single numbers, one behind another.
#[derive(Clone, Debug, PartialEq)]
pub struct Chain {
    /// Dimensions of the result.
    pub shape: Vec<usize>,
    /// Steps of the result.
    pub steps: Vec<usize>,
    /// What is read.
    pub operands: Vec<Operand>,
    /// What is computed; one without operators copies its operand.
    pub links: Vec<(LinkOp, LinkSource, LinkSource)>,
}

/// The words of a chain, as the kernel takes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The words.
    pub words: Vec<u32>,
    /// How many numbers it gives.
    pub count: usize,
    values: usize,
}

/// The kernel's word for an operand that is one number.
const ONE_NUMBER: u32 = 3;

impl Chain {
    /// What the kernel is told.
    ///
    /// # Errors
    /// Where there is more of something than it takes, in words.
    pub fn program(&self) -> Result<Program, String> {
        let (shape, steps) = self.runs();
        let (values, dims) = (self.operands.len() + self.links.len(), shape.len());
        let is_small = self.operands.len() <= MAP_OPERANDS && values <= MAP_VALUES;
        let all = steps.iter().flatten().chain(&shape).all(|number| u32::try_from(*number).is_ok());
        let count: usize = self.shape.iter().product();
        if !is_small || dims > MAP_DIMS || !all || u32::try_from(count).is_err() {
            return Err(format!(
                "{} operands, {} operators and {dims} dimensions are more than a kernel takes",
                self.operands.len(),
                self.links.len()
            ));
        }
        let mut words = vec![dims as u32, self.operands.len() as u32, self.links.len() as u32];
        words.extend(shape.iter().map(|len| *len as u32));
        let mut steps = steps.into_iter().map(|steps| steps.into_iter().map(|step| step as u32));
        words.extend(steps.next().into_iter().flatten());
        for (operand, steps) in self.operands.iter().zip(steps) {
            match operand {
                Operand::Number(number) => {
                    words.extend([ONE_NUMBER, number.to_bits()]);
                    words.extend(vec![0; dims - 1]);
                }
                Operand::Numbers { kind, .. } => {
                    words.push(kind.word());
                    words.extend(steps);
                }
            }
        }
        for (op, a, b) in &self.links {
            words.extend([*op as u32, a.word(), b.word()]);
        }
        debug_assert!(words.len() <= MAP_WORDS, "{} words", words.len());
        Ok(Program { words, count, values })
    }

    /// Sizes, and steps of the result and of each operand, where neighbouring dimensions that all step through alike are one;
    /// at least one dimension.
    fn runs(&self) -> (Vec<usize>, Vec<Vec<usize>>) {
        let none = vec![0; self.shape.len()];
        let operand = |operand: &Operand| match operand {
            Operand::Number(_) => none.clone(),
            Operand::Numbers { steps, .. } => steps.clone(),
        };
        let all: Vec<Vec<usize>> =
            [self.steps.clone()].into_iter().chain(self.operands.iter().map(operand)).collect();
        let (mut shape, mut steps) = (Vec::new(), vec![Vec::new(); all.len()]);
        for (axis, &len) in self.shape.iter().enumerate().filter(|(_, len)| **len != 1) {
            let follows = !shape.is_empty()
                && steps.iter().zip(&all).all(|(own, all)| own.last() == Some(&(all[axis] * len)));
            if follows {
                shape.last_mut().into_iter().for_each(|last| *last *= len);
                steps.iter_mut().for_each(|own| _ = own.pop());
            } else {
                shape.push(len);
            }
            steps.iter_mut().zip(&all).for_each(|(own, all)| own.push(all[axis]));
        }
        if shape.is_empty() {
            shape.push(1);
            steps.iter_mut().for_each(|own| own.push(0));
        }
        (shape, steps)
    }
}

/// Operators on single numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Map<'a> {
    /// Where the numbers go: as the chain's steps say, or as activations whose rows are the chain's numbers in order.
    pub out: DeviceAddress,
    /// In which form.
    pub form: Form,
    /// Where each operand begins; no place for one number.
    pub operands: Vec<DeviceAddress>,
    /// The words of what is computed, on the device.
    pub program_at: DeviceAddress,
    /// The same here.
    pub program: &'a Program,
}

/// Computes a chain.
pub fn map(map: &Map<'_>) -> Launch {
    let Program { words, count, values } = map.program;
    let mut args = LaunchArgs::new().with(map.out);
    for operand in 0..MAP_OPERANDS {
        args = args.with(map.operands.get(operand).copied().unwrap_or(DeviceAddress::NULL));
    }
    let args = args
        .with(map.program_at)
        .with(words.len() as u32)
        .with(*count as u32)
        .with(map.form.columns())
        .with(map.form.eights());
    Launch {
        function: MAP_NUMBERS,
        grid: [(*count as u32).div_ceil(MAP_THREADS * MAP_EACH).max(1), 1, 1],
        block: [MAP_THREADS, 1, 1],
        cluster: 1,
        shared_bytes: *values as u32 * MAP_THREADS * MAP_EACH * 4,
        early: true,
        args,
    }
}

/// Rows that are gathered: `out[i, j, k] = from[i, indices[j], k]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatherNumbers {
    /// f32 `[outer, count, inner]`.
    pub out: DeviceAddress,
    /// `[outer, size, inner]`.
    pub from: Numbers,
    /// u32 `[count]`, each below `size`.
    pub indices: DeviceAddress,
    /// The sizes.
    pub outer: u32,
    /// See there.
    pub size: u32,
    /// See there.
    pub count: u32,
    /// See there.
    pub inner: u32,
}

/// Gathers rows.
pub fn gather(gather: GatherNumbers) -> Launch {
    let total = u64::from(gather.outer) * u64::from(gather.count) * u64::from(gather.inner);
    let args = LaunchArgs::new()
        .with(gather.out)
        .with(gather.from.at)
        .with(gather.indices)
        .with(total)
        .with(gather.from.kind.word())
        .with(gather.size)
        .with(gather.count)
        .with(gather.inner);
    moving(GATHER_NUMBERS, total, args)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sm;

    fn numbers(steps: &[usize]) -> Operand {
        Operand::Numbers { kind: NumberKind::F32, steps: steps.to_vec() }
    }

    fn chain(shape: &[usize], steps: &[usize], operands: Vec<Operand>) -> Chain {
        Chain { shape: shape.to_vec(), steps: steps.to_vec(), operands, links: Vec::new() }
    }

    #[test]
    fn dimensions_that_all_step_through_alike_are_one() {
        let same = chain(&[2, 3, 4], &[12, 4, 1], vec![numbers(&[12, 4, 1]), Operand::Number(1.5)]);
        let program = same.program().unwrap();
        assert_eq!(program.words, [1, 2, 0, 24, 1, 2, 1, 3, 1.5_f32.to_bits()]);
        assert_eq!((program.count, program.values), (24, 2));
        let row = chain(&[2, 3, 4], &[12, 4, 1], vec![numbers(&[0, 0, 1])]);
        assert_eq!(row.program().unwrap().words, [2, 1, 0, 6, 4, 4, 1, 2, 0, 1]);
        let one = chain(&[1, 1], &[0, 0], vec![numbers(&[0, 0])]);
        assert_eq!(one.program().unwrap().words[..4], [1, 1, 0, 1]);
    }

    #[test]
    fn as_many_pages_lie_in_shared_memory_as_are_worked_on() {
        let parts = |sm, dim, is_masked: bool| {
            let none = Numbers { at: DeviceAddress::NULL, kind: NumberKind::F32 };
            let columns = HeadColumns { first: 0, by_head: dim as u32 };
            let blocks = HeadBlocks { halves: none.at, eights: 9, columns };
            let attending = AttendAll {
                out: none.at,
                form: Form::Rows,
                queries: blocks,
                keys: blocks,
                values: blocks,
                mask: is_masked.then_some(HeadsView { from: none, shape: [1; 4], steps: [0; 4] }),
                scale: 1.0,
                heads: [1, 2],
                rows: [70; 2],
                numbers: [dim as u32; 2],
                head: HeadShape { dim, kind: smelt_backend::KvType::F16 },
            };
            let launch = attend(attending, Processors { count: 8, sm: Sm(sm) });
            assert_eq!(launch.grid, [2, 2, 1]);
            launch.shared_bytes as usize / (PAGE_TOKENS * dim.next_multiple_of(16) * 2)
        };
        assert_eq!((parts(90, 64, false), parts(90, 64, true), parts(90, 80, false)), (7, 5, 5));
        assert_eq!((parts(87, 64, false), parts(110, 64, false)), (5, 5));
    }

    #[test]
    fn what_is_more_than_a_kernel_takes_is_refused() {
        let many = chain(&[4], &[1], vec![numbers(&[1]); MAP_OPERANDS + 1]);
        assert!(many.program().unwrap_err().contains("9 operands"));
        let shape = [2; 2 * MAP_DIMS];
        let steps: Vec<usize> = (0..shape.len()).map(|axis| 3usize.pow(axis as u32)).collect();
        assert!(chain(&shape, &steps, vec![numbers(&steps)]).program().is_err());
        let links = vec![(LinkOp::Neg, LinkSource::Operand(0), LinkSource::Operand(0)); MAP_VALUES];
        let long = Chain { links, ..chain(&[4], &[1], vec![numbers(&[1])]) };
        assert!(long.program().is_err());
    }

    #[test]
    fn the_longest_program_has_room() {
        const {
            assert!(3 + (2 + MAP_OPERANDS) * MAP_DIMS + MAP_OPERANDS + 3 * MAP_VALUES <= MAP_WORDS);
        }
    }
}
