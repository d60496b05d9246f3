//! Computes chains of operators that look at one number of each operand at a time.
//!
//! A chain runs over a few hundred numbers at once, so that what one operator gives the next finds
//! in the first cache.  Each number is what the operators give one by one.  Knows nothing of shapes.

use half::{bf16, f16};

use super::op::{Binary, Unary};
use crate::kernels::activation::{erf, exp, gelu_erf, gelu_tanh, sigmoid, tanh};
use crate::kernels::isa::Isa;

/// Numbers that a chain computes at a time.
pub(crate) const PIECE: usize = 512;

/// Where an operator of a chain reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkInput {
    /// The operand of that index.
    Operand(usize),
    /// What the link of that index gave.
    Link(usize),
}

/// One operator of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Of one number.
    Unary(Unary, LinkInput),
    /// Of two.
    Binary(Binary, LinkInput, LinkInput),
    /// To f16 and back.
    RoundF16(LinkInput),
    /// To bf16 and back.
    RoundBf16(LinkInput),
}

/// Operators, each reading operands and what others before it gave; the last gives the result.
/// Without operators, the one operand is the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// What is computed, in order.
    pub links: Vec<Link>,
}

/// Numbers of one operand for a piece.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lane<'a> {
    /// One for all.
    One(f32),
    /// One each.
    Many(&'a [f32]),
}

impl Chain {
    /// How many numbers [`Self::run`] wants as space.
    pub(crate) fn space(&self) -> usize {
        self.links.len().saturating_sub(1) * PIECE
    }

    /// Computes `out`, at most [`PIECE`] numbers, from the operands' lanes.
    pub(crate) fn run(&self, isa: Isa, lanes: &[Lane<'_>], space: &mut [f32], out: &mut [f32]) {
        let Some(last) = self.links.len().checked_sub(1) else {
            return each(isa, lanes[0], out, |value| value);
        };
        let len = out.len();
        for (index, link) in self.links.iter().enumerate() {
            // What links gave lies before what this one writes.
            let (before, here) = space.split_at_mut(index * PIECE);
            let lane = |source: LinkInput| match source {
                LinkInput::Operand(operand) => lanes[operand],
                LinkInput::Link(link) => Lane::Many(&before[link * PIECE..][..len]),
            };
            let to = if index == last { &mut *out } else { &mut here[..len] };
            match *link {
                Link::Unary(kind, a) => unary(isa, kind, lane(a), to),
                Link::Binary(kind, a, b) => binary(isa, kind, lane(a), lane(b), to),
                Link::RoundF16(a) => each(isa, lane(a), to, |v| f16::from_f32(v).to_f32()),
                Link::RoundBf16(a) => each(isa, lane(a), to, |v| bf16::from_f32(v).to_f32()),
            }
        }
    }
}

/// `out[i] = function(a[i])`
#[inline(always)]
fn each(isa: Isa, a: Lane<'_>, out: &mut [f32], function: impl Fn(f32) -> f32) {
    match a {
        Lane::One(a) => out.fill(function(a)),
        Lane::Many(a) => isa.vectorised(|| {
            out.iter_mut().zip(a).for_each(|(out, &a)| *out = function(a));
        }),
    }
}

/// `out[i] = function(a[i], b[i])`
#[inline(always)]
fn pairs(isa: Isa, a: Lane<'_>, b: Lane<'_>, out: &mut [f32], function: impl Fn(f32, f32) -> f32) {
    match (a, b) {
        (a, Lane::One(b)) => each(isa, a, out, |a| function(a, b)),
        (Lane::One(a), b) => each(isa, b, out, |b| function(a, b)),
        (Lane::Many(a), Lane::Many(b)) => isa.vectorised(|| {
            let pairs = a.iter().zip(b);
            out.iter_mut().zip(pairs).for_each(|(out, (&a, &b))| *out = function(a, b));
        }),
    }
}

fn unary(isa: Isa, kind: Unary, a: Lane<'_>, out: &mut [f32]) {
    match kind {
        Unary::Abs => each(isa, a, out, f32::abs),
        Unary::Reciprocal => each(isa, a, out, f32::recip),
        Unary::Cos => each(isa, a, out, f32::cos),
        Unary::Sin => each(isa, a, out, f32::sin),
        Unary::Sqrt => each(isa, a, out, f32::sqrt),
        Unary::Erf => each(isa, a, out, erf),
        Unary::Tanh => each(isa, a, out, tanh),
        Unary::Sigmoid => each(isa, a, out, sigmoid),
        Unary::Exp => each(isa, a, out, exp),
        Unary::Neg => each(isa, a, out, |v| -v),
        Unary::GeluErf => each(isa, a, out, gelu_erf),
        Unary::GeluTanh => each(isa, a, out, gelu_tanh),
    }
}

fn binary(isa: Isa, kind: Binary, a: Lane<'_>, b: Lane<'_>, out: &mut [f32]) {
    match kind {
        Binary::Add => pairs(isa, a, b, out, |a, b| a + b),
        Binary::Sub => pairs(isa, a, b, out, |a, b| a - b),
        Binary::Mul => pairs(isa, a, b, out, |a, b| a * b),
        Binary::Div => pairs(isa, a, b, out, |a, b| a / b),
        Binary::Min => pairs(isa, a, b, out, f32::min),
        Binary::Max => pairs(isa, a, b, out, f32::max),
        // The small whole powers that networks use are products.
        Binary::Pow => match b {
            Lane::One(2.0) => each(isa, a, out, |v| v * v),
            Lane::One(3.0) => each(isa, a, out, |v| v * v * v),
            b => pairs(isa, a, b, out, f32::powf),
        },
    }
}

#[cfg(test)]
mod tests {
    use smelt_random::Random;

    use super::*;

    #[test]
    fn a_chain_gives_what_its_links_give_one_by_one() {
        let mut random = Random::new(21);
        let (x, y) = (random.noise(PIECE), random.noise(PIECE));
        // x/2 · (1 + erf(x/√2)) + y, rounded.
        let links = vec![
            Link::Binary(Binary::Div, LinkInput::Operand(0), LinkInput::Operand(2)),
            Link::Unary(Unary::Erf, LinkInput::Link(0)),
            Link::Binary(Binary::Add, LinkInput::Link(1), LinkInput::Operand(3)),
            Link::Binary(Binary::Mul, LinkInput::Operand(0), LinkInput::Link(2)),
            Link::Binary(Binary::Add, LinkInput::Link(3), LinkInput::Operand(1)),
            Link::RoundBf16(LinkInput::Link(4)),
        ];
        let chain = Chain { links };
        let root = std::f32::consts::SQRT_2;
        let expect =
            |x: f32, y: f32| bf16::from_f32(x * (erf(x / root) + 1.0) + y).to_f32().to_bits();
        for isa in Isa::all() {
            for len in [1, 17, PIECE] {
                let lanes =
                    [Lane::Many(&x[..len]), Lane::Many(&y[..len]), Lane::One(root), Lane::One(1.0)];
                let (mut space, mut out) = (vec![0.0; chain.space()], vec![7.0; len]);
                chain.run(isa, &lanes, &mut space, &mut out);
                for i in 0..len {
                    assert_eq!(out[i].to_bits(), expect(x[i], y[i]), "{isa:?} {len} {i}");
                }
            }
        }
    }

    #[test]
    fn powers_are_products_where_they_can_be() {
        let power = |x: f32, by: f32| {
            let link = Link::Binary(Binary::Pow, LinkInput::Operand(0), LinkInput::Operand(1));
            let mut out = [0.0];
            let lanes = [Lane::Many(&[x]), Lane::One(by)];
            Chain { links: vec![link] }.run(Isa::detect(), &lanes, &mut [], &mut out);
            out[0]
        };
        assert_eq!((power(-3.0, 2.0), power(-3.0, 3.0)), (9.0, -27.0));
        assert_eq!(power(2.0, 0.5), 2f32.sqrt());
    }
}
