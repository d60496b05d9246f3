//! Computes operators that give or read truth, which is the integer 0 or 1.

use super::super::array::{Array, Value, broadcast};
use super::super::op::Compare;
use super::elementwise::Pairing;
use super::{Inputs, Machine, integers};

pub(super) fn compare(
    kind: Compare,
    inputs: &mut Inputs,
    machine: Machine<'_>,
) -> Result<Value, String> {
    let (a, b) = (inputs.take(0), inputs.take(1));
    let array = match (kind, a, b) {
        (Compare::And, a, b) => paired(&integers(a)?, &integers(b)?, |a, b| a != 0 && b != 0),
        (Compare::Or, a, b) => paired(&integers(a)?, &integers(b)?, |a, b| a != 0 || b != 0),
        (kind, Value::I64(a), Value::I64(b)) => paired(&a, &b, |a, b| holds(kind, a, b)),
        (kind, a, b) => paired(&machine.floats(a)?, &machine.floats(b)?, |a, b| holds(kind, a, b)),
    };
    array.map(Value::I64)
}

fn holds<T: PartialOrd>(kind: Compare, a: T, b: T) -> bool {
    match kind {
        Compare::Equal => a == b,
        Compare::Less => a < b,
        Compare::LessOrEqual => a <= b,
        Compare::Greater => a > b,
        Compare::GreaterOrEqual | Compare::And | Compare::Or => a >= b,
    }
}

fn paired<T: Copy>(
    a: &Array<T>,
    b: &Array<T>,
    function: impl Fn(T, T) -> bool,
) -> Result<Array<i64>, String> {
    let pairing = Pairing::new(a.shape(), b.shape())?;
    let mut out = Vec::with_capacity(pairing.len());
    pairing.runs(0..pairing.len(), |_, run| {
        for i in 0..run.len {
            let (a, b) = (a.data()[run.a + i * run.a_step], b.data()[run.b + i * run.b_step]);
            out.push(i64::from(function(a, b)));
        }
    });
    Ok(Array::new(pairing.shape, out))
}

pub(super) fn not(value: Value) -> Result<Value, String> {
    let array = integers(value)?;
    let data = array.data().iter().map(|&value| i64::from(value == 0)).collect();
    Ok(Value::I64(Array::new(array.shape().to_vec(), data)))
}

/// The first value where the condition holds, else the second.
pub(super) fn choose(inputs: &mut Inputs, machine: Machine<'_>) -> Result<Value, String> {
    let condition = integers(inputs.take(0))?;
    match (inputs.take(1), inputs.take(2)) {
        (Value::I64(a), Value::I64(b)) => chosen(&condition, &a, &b).map(Value::I64),
        (a, b) => chosen(&condition, &machine.floats(a)?, &machine.floats(b)?).map(Value::F32),
    }
}

fn chosen<T: Copy>(condition: &Array<i64>, a: &Array<T>, b: &Array<T>) -> Result<Array<T>, String> {
    let both = broadcast(a.shape(), b.shape())?;
    let shape = broadcast(condition.shape(), &both)?;
    let mut out = spread(a, &shape)?;
    let others = spread(b, &shape)?;
    let truths = spread(condition, &shape)?;
    for ((out, other), truth) in out.iter_mut().zip(others).zip(truths) {
        if truth == 0 {
            *out = other;
        }
    }
    Ok(Array::new(shape, out))
}

/// The numbers of `array`, repeated to fill the larger `shape`.
fn spread<T: Copy>(array: &Array<T>, shape: &[usize]) -> Result<Vec<T>, String> {
    let pairing = Pairing::new(array.shape(), shape)?;
    let mut out = Vec::with_capacity(pairing.len());
    pairing.runs(0..pairing.len(), |_, run| {
        out.extend((0..run.len).map(|i| array.data()[run.a + i * run.a_step]));
    });
    Ok(out)
}
