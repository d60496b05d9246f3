//! Finds what a product's kernel does beside: GELU, or the sum with what was there, on its way out.
//!
//! A product and the task behind it in, what both are together out.  Knows no steps and no addresses.

use smelt_engine::graph::plan::{Binary, Home, Linear, Link, LinkInput, Map, Plan, Unary, View};

use crate::kernels::graph::Form;
use crate::kernels::product::Turn;

/// What becomes of a product's results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fused {
    /// Activations that go through an operator.
    Turned(Turn),
    /// They are added to the numbers of an operand, by its index among the task's.
    Sum {
        /// What is added to.
        before: usize,
        /// A row of numbers that they are multiplied with before.
        gains: Option<usize>,
    },
}

/// What `map`, which reads the results of `linear` as operand `result` and puts its own into `form`, does with them; none
/// where no kernel does that.  `is_f32` says of a constant whether kernels read it as that.
pub(super) fn fused(
    plan: &Plan,
    linear: &Linear,
    map: &Map,
    result: usize,
    form: Form,
    is_f32: &dyn Fn(usize) -> bool,
) -> Option<Fused> {
    let numbers = linear.out.len();
    let is_plain = |view: &View| view.is_contiguous() && view.start == 0 && view.len() == numbers;
    if !is_plain(&map.operands[result]) || !is_plain(&map.out) {
        return None;
    }
    match form {
        Form::Activations { .. } => turn(plan, map, result).map(Fused::Turned),
        Form::Rows => {
            let (before, gains) = sum(&map.chain.links, result)?;
            let is_gain = |gain: &View| {
                let is_read = matches!(gain.home, Home::Constant(place) if is_f32(place));
                is_read && gain.start == 0 && is_row(gain, linear.out.shape[1])
            };
            let is_value = !matches!(map.operands[before].home, Home::Constant(_));
            let fits = is_value
                && is_plain(&map.operands[before])
                && gains.is_none_or(|gains| is_gain(&map.operands[gains]));
            fits.then_some(Fused::Sum { before, gains })
        }
    }
}

/// Whether a view is the same `columns` numbers for every row.
fn is_row(view: &View, columns: usize) -> bool {
    let dims = view.shape.iter().zip(&view.steps).filter(|(dim, _)| **dim != 1);
    let mut dims: Vec<_> = dims.collect();
    let is_last = dims.pop() == Some((&columns, &1));
    is_last && dims.into_iter().all(|(_, step)| *step == 0)
}

/// What a chain of operators on operand `result` and numbers is, if kernels have that.
fn turn(plan: &Plan, map: &Map, result: usize) -> Option<Turn> {
    let number = |operand: usize, x: f64| match map.operands[operand].home {
        _ if operand == result => Some(x),
        Home::Constant(place) => plan.scalar(place).map(f64::from),
        Home::Buffer(_) | Home::Input(_) => None,
    };
    turn_of(&map.chain.links, &number)
}

/// How far a chain may be from what it is taken for: graphs in half precision hold the root of 2 as 1.4140625, which the chain
/// is the worse for.  Both kinds of GELU are further apart.
const APART: f64 = 2e-4;

/// The same of links; `number` gives operands where the result is some x.
fn turn_of(links: &[Link], number: &dyn Fn(usize, f64) -> Option<f64>) -> Option<Turn> {
    let is = |turn: &Turn| {
        // Smooth functions of so few operators that are one there are one.
        (-32..=32).map(|at| f64::from(at) / 4.0).all(|x| {
            let found = value(links, x, number);
            found.is_some_and(|found| (found - turned(*turn, x)).abs() <= APART)
        })
    };
    match links {
        [] => Some(Turn::None),
        _ => [Turn::GeluErf, Turn::GeluTanh].into_iter().find(is),
    }
}

/// What a chain makes of `x`; nothing where an operator of it is not smooth, or what it reads no number.
fn value(links: &[Link], x: f64, number: &dyn Fn(usize, f64) -> Option<f64>) -> Option<f64> {
    let mut values: Vec<f64> = Vec::with_capacity(links.len());
    for link in links {
        let of = |input: LinkInput| match input {
            LinkInput::Operand(operand) => number(operand, x),
            LinkInput::Link(at) => values.get(at).copied(),
        };
        values.push(match *link {
            Link::Unary(Unary::Erf, a) => erf(of(a)?),
            Link::Unary(Unary::Tanh, a) => of(a)?.tanh(),
            Link::Unary(Unary::GeluErf, a) => turned(Turn::GeluErf, of(a)?),
            Link::Unary(Unary::GeluTanh, a) => turned(Turn::GeluTanh, of(a)?),
            Link::Binary(Binary::Add, a, b) => of(a)? + of(b)?,
            Link::Binary(Binary::Sub, a, b) => of(a)? - of(b)?,
            Link::Binary(Binary::Mul, a, b) => of(a)? * of(b)?,
            Link::Binary(Binary::Div, a, b) => of(a)? / of(b)?,
            Link::Binary(Binary::Pow, a, b) => of(a)?.powf(of(b)?),
            Link::Unary(..) | Link::Binary(..) | Link::RoundF16(_) | Link::RoundBf16(_) => {
                return None;
            }
        });
    }
    values.pop()
}

fn turned(turn: Turn, x: f64) -> f64 {
    match turn {
        Turn::None => x,
        Turn::GeluErf => 0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2)),
        Turn::GeluTanh => {
            let root = (2.0 / std::f64::consts::PI).sqrt();
            0.5 * x * (1.0 + (root * (x + 0.044_715 * x * x * x)).tanh())
        }
    }
}

/// The error function, by Abramowitz and Stegun's 7.1.26.
fn erf(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.327_591_1 * x.abs());
    let factors = [1.061_405_429, -1.453_152_027, 1.421_413_741, -0.284_496_736, 0.254_829_592];
    let sum = factors.into_iter().fold(0.0, |sum, factor| sum * t + factor) * t;
    (1.0 - sum * (-x * x).exp()).copysign(x)
}

/// The operands that `result` is added to and multiplied with, where a chain does nothing else.
fn sum(links: &[Link], result: usize) -> Option<(usize, Option<usize>)> {
    let other = |a: LinkInput, b: LinkInput, one: LinkInput| match (a, b) {
        (LinkInput::Operand(other), own) if own == one && a != own => Some(other),
        (own, LinkInput::Operand(other)) if own == one && b != own => Some(other),
        _ => None,
    };
    let own = LinkInput::Operand(result);
    let found = match *links {
        [Link::Binary(Binary::Add, a, b)] => Some((other(a, b, own)?, None)),
        [Link::Binary(Binary::Mul, a, b), Link::Binary(Binary::Add, c, d)] => {
            let gains = other(a, b, own)?;
            Some((other(c, d, LinkInput::Link(0))?, Some(gains)))
        }
        _ => None,
    };
    found.filter(|(before, _)| *before != result)
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: LinkInput = LinkInput::Operand(0);

    /// What a chain over the result and these numbers is.
    fn found(links: &[Link], numbers: &[f64]) -> Option<Turn> {
        let number = |operand: usize, x: f64| match operand {
            0 => Some(x),
            other => numbers.get(other - 1).copied(),
        };
        turn_of(links, &number)
    }

    #[test]
    fn gelu_is_known_in_any_order_of_its_operators() {
        use LinkInput::{Link as L, Operand as O};
        let erf = [
            Link::Binary(Binary::Div, X, O(1)),
            Link::Unary(Unary::Erf, L(0)),
            Link::Binary(Binary::Add, L(1), O(2)),
            Link::Binary(Binary::Mul, X, L(2)),
            Link::Binary(Binary::Mul, L(3), O(3)),
        ];
        let numbers = [std::f64::consts::SQRT_2, 1.0, 0.5];
        assert_eq!(found(&erf, &numbers), Some(Turn::GeluErf));
        assert_eq!(found(&erf, &[1.414_062_5, 1.0, 0.5]), Some(Turn::GeluErf), "in halves");
        assert_eq!(found(&erf, &[1.4, 1.0, 0.5]), None);
        assert_eq!(found(&erf[..3], &numbers), None);
        let other = [
            Link::Binary(Binary::Mul, O(1), X),
            Link::Unary(Unary::Erf, L(0)),
            Link::Binary(Binary::Mul, O(3), X),
            Link::Binary(Binary::Add, O(2), L(1)),
            Link::Binary(Binary::Mul, L(3), L(2)),
        ];
        let numbers = [std::f64::consts::FRAC_1_SQRT_2, 1.0, 0.5];
        assert_eq!(found(&other, &numbers), Some(Turn::GeluErf));
        assert_eq!(found(&[Link::Unary(Unary::GeluErf, X)], &[]), Some(Turn::GeluErf));
        assert_eq!(found(&[Link::Unary(Unary::GeluTanh, X)], &[]), Some(Turn::GeluTanh));
        assert_eq!(found(&[], &[]), Some(Turn::None));
    }

    #[test]
    fn what_is_no_smooth_function_of_the_result_is_left_alone() {
        let least = Link::Binary(Binary::Max, X, LinkInput::Operand(1));
        assert_eq!(found(&[least], &[-100.0]), None);
        assert_eq!(found(&[Link::Binary(Binary::Mul, X, LinkInput::Operand(1))], &[]), None);
        assert_eq!(found(&[Link::RoundF16(X)], &[]), None);
    }

    #[test]
    fn sums_name_what_is_added_to_and_what_is_multiplied_with() {
        use LinkInput::{Link as L, Operand as O};
        let scaled = |a, b| Link::Binary(Binary::Mul, a, b);
        let added = |a, b| Link::Binary(Binary::Add, a, b);
        assert_eq!(sum(&[added(O(1), X)], 0), Some((1, None)));
        assert_eq!(sum(&[scaled(X, O(2)), added(O(1), L(0))], 0), Some((1, Some(2))));
        assert_eq!(sum(&[scaled(O(2), X), added(L(0), O(1))], 0), Some((1, Some(2))));
        assert_eq!(sum(&[added(X, X)], 0), None);
        assert_eq!(sum(&[added(O(1), O(2))], 0), None);
        assert_eq!(sum(&[scaled(X, O(2)), added(X, L(0))], 0), None, "it is read twice");
    }
}
