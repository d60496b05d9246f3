//! Computes operators that look at one number at a time, or at two that broadcasting pairs.

use half::{bf16, f16};

use super::super::array::{Array, Value, broadcast, broadcast_strides};
use super::super::op::{Binary, CastTo, Unary};
use super::{Inputs, Machine};
use crate::kernels::activation::{erf, exp, gelu_erf, gelu_tanh, sigmoid, tanh};

/// Rounds floats to a narrower type, which is kept in f32; integers and floats become each other.
pub(super) fn cast(to: CastTo, value: Value, machine: Machine<'_>) -> Result<Value, String> {
    Ok(match (value, to) {
        (Value::I64(array), CastTo::I64) => Value::I64(array),
        (Value::I64(array), CastTo::Bool) => Value::I64(map(array, |v| i64::from(v != 0))),
        (Value::I64(array), CastTo::I32) => Value::I64(map(array, |v| i64::from(v as i32))),
        (Value::I64(array), _) => {
            let data = array.data().iter().map(|&value| value as f32).collect();
            round(to, Array::new(array.shape().to_vec(), data), machine)
        }
        // Widening keeps every value, so the weight may stay where it is.
        (value @ (Value::F32(_) | Value::Weight(_)), CastTo::F32) => value,
        (value, CastTo::Bool) => {
            let array = machine.floats(value)?;
            let data = array.data().iter().map(|&value| i64::from(value != 0.0)).collect();
            Value::I64(Array::new(array.shape().to_vec(), data))
        }
        (value, CastTo::I64 | CastTo::I32) => {
            let array = machine.floats(value)?;
            let wide = to == CastTo::I64;
            let whole = |&value: &f32| if wide { value as i64 } else { i64::from(value as i32) };
            let data = array.data().iter().map(whole).collect();
            Value::I64(Array::new(array.shape().to_vec(), data))
        }
        (value, _) => round(to, machine.floats(value)?, machine),
    })
}

fn round(to: CastTo, array: Array<f32>, machine: Machine<'_>) -> Value {
    Value::F32(match to {
        CastTo::F16 => each(array, machine, |v| f16::from_f32(v).to_f32()),
        CastTo::Bf16 => each(array, machine, |v| bf16::from_f32(v).to_f32()),
        CastTo::F32 | CastTo::I32 | CastTo::I64 | CastTo::Bool => array,
    })
}

fn map<T: Copy>(array: Array<T>, function: impl Fn(T) -> T) -> Array<T> {
    let mut array = array;
    array.data_mut().iter_mut().for_each(|value| *value = function(*value));
    array
}

/// One number's cost in multiplications, roughly, when a function is computed.
const FUNCTION_WORK: usize = 16;

/// Applies `function` to every number, in place where nobody else reads them.
fn each(
    array: Array<f32>,
    machine: Machine<'_>,
    function: impl Fn(f32) -> f32 + Sync,
) -> Array<f32> {
    let mut array = array;
    let threads = machine.threads.for_work(array.len() * FUNCTION_WORK);
    threads.rows(array.data_mut(), 1, |_, part| {
        part.iter_mut().for_each(|value| *value = function(*value));
    });
    array
}

pub(super) fn unary(kind: Unary, value: Value, machine: Machine<'_>) -> Result<Value, String> {
    let value = match (kind, value) {
        (Unary::Neg, Value::I64(array)) => return Ok(Value::I64(map(array, i64::wrapping_neg))),
        (Unary::Abs, Value::I64(array)) => return Ok(Value::I64(map(array, i64::wrapping_abs))),
        (_, value) => value,
    };
    let array = machine.floats(value)?;
    Ok(Value::F32(match kind {
        Unary::Abs => each(array, machine, f32::abs),
        Unary::Reciprocal => each(array, machine, f32::recip),
        Unary::Cos => each(array, machine, f32::cos),
        Unary::Sin => each(array, machine, f32::sin),
        Unary::Sqrt => each(array, machine, f32::sqrt),
        Unary::Erf => each(array, machine, erf),
        Unary::Tanh => each(array, machine, tanh),
        Unary::Sigmoid => each(array, machine, sigmoid),
        Unary::Exp => each(array, machine, exp),
        Unary::Neg => each(array, machine, |v| -v),
        Unary::GeluErf => each(array, machine, gelu_erf),
        Unary::GeluTanh => each(array, machine, gelu_tanh),
    }))
}

pub(super) fn binary(
    kind: Binary,
    inputs: &mut Inputs,
    machine: Machine<'_>,
) -> Result<Value, String> {
    let (a, b) = (inputs.take(0), inputs.take(1));
    if let (Value::I64(a), Value::I64(b)) = (&a, &b) {
        return integers(kind, a, b).map(Value::I64);
    }
    let a = machine.floats(a)?;
    let b = match (kind, b) {
        // The exponent alone may be of another type.
        (Binary::Pow, Value::I64(b)) => {
            let data = b.data().iter().map(|&value| value as f32).collect();
            Array::new(b.shape().to_vec(), data)
        }
        (_, b) => machine.floats(b)?,
    };
    let result = match kind {
        Binary::Add => pairwise(a, b, machine, |a, b| a + b),
        Binary::Sub => pairwise(a, b, machine, |a, b| a - b),
        Binary::Mul => pairwise(a, b, machine, |a, b| a * b),
        Binary::Div => pairwise(a, b, machine, |a, b| a / b),
        Binary::Pow => power(a, b, machine),
        Binary::Min => pairwise(a, b, machine, f32::min),
        Binary::Max => pairwise(a, b, machine, f32::max),
    };
    result.map(Value::F32)
}

/// Powers; the small whole ones that networks use are products.
fn power(a: Array<f32>, b: Array<f32>, machine: Machine<'_>) -> Result<Array<f32>, String> {
    match b.data() {
        [2.0] if b.rank() <= a.rank() => Ok(each(a, machine, |v| v * v)),
        [3.0] if b.rank() <= a.rank() => Ok(each(a, machine, |v| v * v * v)),
        _ => pairwise(a, b, machine, f32::powf),
    }
}

fn integers(kind: Binary, a: &Array<i64>, b: &Array<i64>) -> Result<Array<i64>, String> {
    let pairing = Pairing::new(a.shape(), b.shape())?;
    let mut out = Vec::with_capacity(pairing.len());
    let mut failed = None;
    pairing.runs(0..pairing.len(), |_, run| {
        for i in 0..run.len {
            let a = a.data()[run.a + i * run.a_step];
            let b = b.data()[run.b + i * run.b_step];
            let result = match kind {
                Binary::Add => a.checked_add(b),
                Binary::Sub => a.checked_sub(b),
                Binary::Mul => a.checked_mul(b),
                Binary::Div => a.checked_div(b),
                Binary::Min => Some(a.min(b)),
                Binary::Max => Some(a.max(b)),
                Binary::Pow => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
            };
            if result.is_none() {
                failed = Some((a, b));
            }
            out.push(result.unwrap_or(0));
        }
    });
    match failed {
        Some((a, b)) => Err(format!("{kind:?} of {a} and {b} is no 64-bit integer")),
        None => Ok(Array::new(pairing.shape, out)),
    }
}

/// Applies `function` to every pair; writes over an operand that has the result's shape and no
/// other reader.
fn pairwise(
    mut a: Array<f32>,
    mut b: Array<f32>,
    machine: Machine<'_>,
    function: impl Fn(f32, f32) -> f32 + Sync,
) -> Result<Array<f32>, String> {
    let pairing = Pairing::new(a.shape(), b.shape())?;
    let threads = machine.threads.for_work(pairing.len());
    if a.shape() == pairing.shape && a.is_unshared() {
        let b = b.data();
        threads.rows(a.data_mut(), 1, |first, part| {
            pairing.runs(first..first + part.len(), |at, run| {
                let out = &mut part[at - first..][..run.len];
                zip(out, b, run.b, run.b_step, &function);
            });
        });
        return Ok(a);
    }
    if b.shape() == pairing.shape && b.is_unshared() {
        let a = a.data();
        threads.rows(b.data_mut(), 1, |first, part| {
            pairing.runs(first..first + part.len(), |at, run| {
                let out = &mut part[at - first..][..run.len];
                zip(out, a, run.a, run.a_step, &|b, a| function(a, b));
            });
        });
        return Ok(b);
    }
    let mut out = vec![0.0; pairing.len()];
    let (a, b) = (a.data(), b.data());
    threads.rows(&mut out, 1, |first, part| {
        pairing.runs(first..first + part.len(), |at, run| {
            let out = &mut part[at - first..][..run.len];
            spread(out, a, run.a, run.a_step);
            zip(out, b, run.b, run.b_step, &function);
        });
    });
    Ok(Array::new(pairing.shape, out))
}

fn spread(out: &mut [f32], from: &[f32], start: usize, step: usize) {
    match step {
        0 => out.fill(from[start]),
        1 => out.copy_from_slice(&from[start..start + out.len()]),
        _ => out.iter_mut().zip(from[start..].iter().step_by(step)).for_each(|(o, &v)| *o = v),
    }
}

/// `out[i] = function(out[i], other[start + i * step])`
fn zip(
    out: &mut [f32],
    other: &[f32],
    start: usize,
    step: usize,
    function: &impl Fn(f32, f32) -> f32,
) {
    match step {
        0 => {
            let other = other[start];
            out.iter_mut().for_each(|out| *out = function(*out, other));
        }
        1 => {
            let other = &other[start..start + out.len()];
            out.iter_mut().zip(other).for_each(|(out, &other)| *out = function(*out, other));
        }
        _ => {
            let other = other[start..].iter().step_by(step);
            out.iter_mut().zip(other).for_each(|(out, &other)| *out = function(*out, other));
        }
    }
}

/// How two shapes pair up, as few loops as possible.
pub(super) struct Pairing {
    pub(super) shape: Vec<usize>,
    loops: Vec<Loop>,
}

#[derive(Clone, Copy)]
struct Loop {
    len: usize,
    a_step: usize,
    b_step: usize,
}

/// Neighbouring results: `len` of them, from `a` and `b` on with their steps.
pub(super) struct ElementSpan {
    pub(super) len: usize,
    pub(super) a: usize,
    pub(super) b: usize,
    pub(super) a_step: usize,
    pub(super) b_step: usize,
}

impl Pairing {
    pub(super) fn new(a: &[usize], b: &[usize]) -> Result<Self, String> {
        let shape = broadcast(a, b)?;
        let steps = broadcast_strides(a, &shape).into_iter().zip(broadcast_strides(b, &shape));
        let mut loops: Vec<Loop> = Vec::new();
        for (&len, (a_step, b_step)) in shape.iter().zip(steps).filter(|(len, _)| **len != 1) {
            match loops.last_mut() {
                // The outer loop steps over exactly the inner one: they are one loop.
                Some(outer) if outer.a_step == a_step * len && outer.b_step == b_step * len => {
                    *outer = Loop { len: outer.len * len, a_step, b_step };
                }
                _ => loops.push(Loop { len, a_step, b_step }),
            }
        }
        if loops.is_empty() {
            loops.push(Loop { len: 1, a_step: 0, b_step: 0 });
        }
        Ok(Self { shape, loops })
    }

    pub(super) fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Visits the results in `range` run by run, with the index of each run's first result.
    pub(super) fn runs(
        &self,
        range: std::ops::Range<usize>,
        mut visit: impl FnMut(usize, ElementSpan),
    ) {
        let Some((inner, outer)) = self.loops.split_last() else { return };
        let mut at = range.start;
        while at < range.end {
            let within = at % inner.len;
            let mut rest = at / inner.len;
            let (mut a, mut b) = (within * inner.a_step, within * inner.b_step);
            for dim in outer.iter().rev() {
                let index = rest % dim.len;
                rest /= dim.len;
                a += index * dim.a_step;
                b += index * dim.b_step;
            }
            let len = (inner.len - within).min(range.end - at);
            visit(at, ElementSpan { len, a, b, a_step: inner.a_step, b_step: inner.b_step });
            at += len;
        }
    }
}
