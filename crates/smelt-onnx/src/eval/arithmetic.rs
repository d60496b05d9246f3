//! Computes operators that work number by number, and reductions.

use super::{Call, Tensor, Why, axis_of, broadcast, broadcast_source, one, strides, unravel};
use crate::ElementType;

/// What an operator does to one float.
type Function = Box<dyn Fn(f64) -> f64>;

impl Call<'_> {
    /// The operator over each number, if it is one.
    pub(super) fn unary(&self) -> Result<Option<Tensor>, Why> {
        let Some(function) = self.float_function()? else { return Ok(None) };
        let input = self.input(0)?;
        if let Some(values) = input.as_floats() {
            let values = values.iter().map(|value| function(*value)).collect();
            return Ok(Some(Tensor::floats(input.dtype(), input.dims(), values)));
        }
        let values = self.ints(0)?.iter();
        let values = match self.node.op.as_str() {
            "Neg" => values.map(|value| value.wrapping_neg()).collect(),
            "Abs" => values.map(|value| value.wrapping_abs()).collect(),
            "Sign" => values.map(|value| value.signum()).collect(),
            "Relu" => values.map(|value| (*value).max(0)).collect(),
            _ => return Err("its input is no float".to_owned()),
        };
        Ok(Some(Tensor::ints(input.dtype(), input.dims(), values)))
    }

    /// What the node does to one float, if it goes number by number.
    fn float_function(&self) -> Result<Option<Function>, Why> {
        let alpha = |default: f32| f64::from(self.node.float("alpha").unwrap_or(default));
        let function: Function = match self.node.op.as_str() {
            "Sqrt" => Box::new(f64::sqrt),
            "Exp" => Box::new(f64::exp),
            "Log" => Box::new(f64::ln),
            "Sin" => Box::new(f64::sin),
            "Cos" => Box::new(f64::cos),
            "Tan" => Box::new(f64::tan),
            "Atan" => Box::new(f64::atan),
            "Tanh" => Box::new(f64::tanh),
            "Erf" => Box::new(erf),
            "Reciprocal" => Box::new(f64::recip),
            "Floor" => Box::new(f64::floor),
            "Ceil" => Box::new(f64::ceil),
            "Round" => Box::new(f64::round_ties_even),
            "Sign" => Box::new(|x| if x == 0.0 { 0.0 } else { x.signum() }),
            "Sigmoid" => Box::new(sigmoid),
            "Softplus" => Box::new(|x| x.max(0.0) + (-x.abs()).exp().ln_1p()),
            "HardSwish" => Box::new(|x| x * (x / 6.0 + 0.5).clamp(0.0, 1.0)),
            "Relu" => Box::new(|x| x.max(0.0)),
            "LeakyRelu" => {
                let alpha = alpha(0.01);
                Box::new(move |x| if x < 0.0 { alpha * x } else { x })
            }
            "Elu" => {
                let alpha = alpha(1.0);
                Box::new(move |x| if x < 0.0 { alpha * x.exp_m1() } else { x })
            }
            "Neg" => Box::new(|x| -x),
            "Abs" => Box::new(f64::abs),
            "Gelu" => match self.text("approximate", "none") {
                "none" => Box::new(|x| x / 2.0 * (1.0 + erf(x / std::f64::consts::SQRT_2))),
                "tanh" => Box::new(|x| {
                    let root = (2.0 / std::f64::consts::PI).sqrt();
                    x / 2.0 * (1.0 + (root * (x + 0.044715 * x * x * x)).tanh())
                }),
                other => return Err(format!("approximation {other:?} is not known here")),
            },
            _ => return Ok(None),
        };
        Ok(Some(function))
    }

    pub(super) fn not(&self) -> Result<Tensor, Why> {
        let values = self.ints(0)?.iter().map(|flag| i64::from(*flag == 0)).collect();
        Ok(Tensor::ints(ElementType::Bool, self.input(0)?.dims(), values))
    }

    /// IsNaN, or IsInf of the signs it looks for.
    pub(super) fn is_odd(&self) -> Result<Tensor, Why> {
        let (up, down) = (self.flag("detect_positive", true), self.flag("detect_negative", true));
        let odd = |value: &f64| match self.node.op.as_str() {
            "IsNaN" => value.is_nan(),
            _ => value.is_infinite() && if *value > 0.0 { up } else { down },
        };
        let flags = self.floats(0)?.iter().map(|value| i64::from(odd(value))).collect();
        Ok(Tensor::ints(ElementType::Bool, self.input(0)?.dims(), flags))
    }

    /// Min, Max, Sum or Mean of one or more broadcast tensors.
    pub(super) fn variadic(&self) -> Result<Tensor, Why> {
        let mut result = self.input(0)?.clone();
        for at in 1..self.inputs.len() {
            result = self.two(&result, self.input(at)?)?;
        }
        if self.node.op == "Mean" {
            let count = self.inputs.len() as f64;
            let values = result.as_floats().ok_or("its inputs are no floats")?;
            let values = values.iter().map(|value| value / count).collect();
            return Ok(Tensor::floats(result.dtype(), result.dims(), values));
        }
        Ok(result)
    }

    pub(super) fn clip(&self) -> Result<Tensor, Why> {
        let input = self.input(0)?;
        if let Some(values) = input.as_floats() {
            let bound = |at: usize| self.optional(at).map(|_| one(self.floats(at)?)).transpose();
            let (low, high) = (bound(1)?, bound(2)?);
            let clip = |x: &f64| x.max(low.unwrap_or(*x)).min(high.unwrap_or(f64::INFINITY));
            return Ok(Tensor::floats(
                input.dtype(),
                input.dims(),
                values.iter().map(clip).collect(),
            ));
        }
        let bound = |at: usize| self.optional(at).map(|_| one(self.ints(at)?)).transpose();
        let (low, high) = (bound(1)?.unwrap_or(i64::MIN), bound(2)?.unwrap_or(i64::MAX));
        let values = self.ints(0)?.iter().map(|x| (*x).max(low).min(high)).collect();
        Ok(Tensor::ints(input.dtype(), input.dims(), values))
    }

    /// The operator over two broadcast tensors.
    pub(super) fn binary(&self) -> Result<Tensor, Why> {
        let (a, b) = (self.input(0)?, self.input(1)?);
        if self.inputs.len() != 2 {
            return Err("it is computed here over exactly two inputs".to_owned());
        }
        self.two(a, b)
    }

    fn two(&self, a: &Tensor, b: &Tensor) -> Result<Tensor, Why> {
        if a.dtype() != b.dtype() && self.node.op != "Pow" {
            return Err(format!("it mixes {} and {}", a.dtype(), b.dtype()));
        }
        let dims = broadcast(a.dims(), b.dims())?;
        self.fits(&dims)?;
        match (a.as_floats(), b.as_floats(), a.as_ints(), b.as_ints()) {
            (Some(x), Some(y), ..) => {
                let pairs = pairs(&dims, a, b).map(|(i, j)| (x[i], y[j]));
                self.of_floats(a.dtype(), &dims, pairs)
            }
            (.., Some(x), Some(y)) => {
                let pairs = pairs(&dims, a, b).map(|(i, j)| (x[i], y[j]));
                self.of_ints(a.dtype(), &dims, pairs)
            }
            (Some(x), _, _, Some(y)) if self.node.op == "Pow" => {
                let pairs = pairs(&dims, a, b).map(|(i, j)| (x[i], y[j] as f64));
                self.of_floats(a.dtype(), &dims, pairs)
            }
            _ => Err("it mixes floats and integers".to_owned()),
        }
    }

    fn of_floats(
        &self,
        dtype: ElementType,
        dims: &[usize],
        pairs: impl Iterator<Item = (f64, f64)>,
    ) -> Result<Tensor, Why> {
        let op = self.node.op.as_str();
        let function: fn(f64, f64) -> f64 = match op {
            "Add" | "Sum" | "Mean" => |x, y| x + y,
            "Sub" => |x, y| x - y,
            "Mul" => |x, y| x * y,
            "Div" => |x, y| x / y,
            "Pow" => f64::powf,
            "PRelu" => |x, y| if x < 0.0 { x * y } else { x },
            "Mod" if self.flag("fmod", false) => |x, y| x % y,
            "Min" => f64::min,
            "Max" => f64::max,
            _ => {
                let compare: fn(f64, f64) -> bool = match op {
                    "Equal" => |x, y| x == y,
                    "Less" => |x, y| x < y,
                    "LessOrEqual" => |x, y| x <= y,
                    "Greater" => |x, y| x > y,
                    "GreaterOrEqual" => |x, y| x >= y,
                    _ => return Err("the evaluator does not have this operator".to_owned()),
                };
                let flags = pairs.map(|(x, y)| i64::from(compare(x, y))).collect();
                return Ok(Tensor::ints(ElementType::Bool, dims, flags));
            }
        };
        Ok(Tensor::floats(dtype, dims, pairs.map(|(x, y)| function(x, y)).collect()))
    }

    fn of_ints(
        &self,
        dtype: ElementType,
        dims: &[usize],
        mut pairs: impl Iterator<Item = (i64, i64)>,
    ) -> Result<Tensor, Why> {
        let (function, dtype): (fn(i64, i64) -> Option<i64>, _) = match self.node.op.as_str() {
            "Add" | "Sum" => (|x, y| Some(x.wrapping_add(y)), dtype),
            "Sub" => (|x, y| Some(x.wrapping_sub(y)), dtype),
            "Mul" => (|x, y| Some(x.wrapping_mul(y)), dtype),
            // C truncates, and so does the standard for integers.
            "Div" => (i64::checked_div, dtype),
            "Mod" if !self.flag("fmod", false) => (floor_mod, dtype),
            "Mod" => (i64::checked_rem, dtype),
            "Min" => (|x, y| Some(x.min(y)), dtype),
            "Max" => (|x, y| Some(x.max(y)), dtype),
            "Pow" => (|x, y| x.checked_pow(u32::try_from(y).ok()?), dtype),
            "Equal" => (|x, y| Some((x == y).into()), ElementType::Bool),
            "Less" => (|x, y| Some((x < y).into()), ElementType::Bool),
            "LessOrEqual" => (|x, y| Some((x <= y).into()), ElementType::Bool),
            "Greater" => (|x, y| Some((x > y).into()), ElementType::Bool),
            "GreaterOrEqual" => (|x, y| Some((x >= y).into()), ElementType::Bool),
            "And" => (|x, y| Some(x & y), ElementType::Bool),
            "Or" => (|x, y| Some(x | y), ElementType::Bool),
            "Xor" => (|x, y| Some(x ^ y), ElementType::Bool),
            _ => return Err("the evaluator does not have this operator".to_owned()),
        };
        let values: Option<Vec<i64>> = pairs.by_ref().map(|(x, y)| function(x, y)).collect();
        let values = values.ok_or("it divides by zero or overflows")?;
        Ok(Tensor::ints(dtype, dims, values))
    }

    pub(super) fn where_(&self) -> Result<Tensor, Why> {
        let (condition, a, b) = (self.input(0)?, self.input(1)?, self.input(2)?);
        let flags = self.ints(0)?;
        let both = Tensor::chain(&[a, b]).ok_or("its two choices differ in type")?;
        let dims = broadcast(&broadcast(condition.dims(), a.dims())?, b.dims())?;
        let elements = self.fits(&dims)?;
        let sources = [condition, a, b].map(|tensor| (tensor.dims(), strides(tensor.dims())));
        let mut index = vec![0; dims.len()];
        let picks = (0..elements).map(|flat| {
            unravel(flat, &dims, &mut index);
            let at = |which: usize| broadcast_source(sources[which].0, &sources[which].1, &index);
            Some(if flags[at(0)] != 0 { at(1) } else { a.elements() + at(2) })
        });
        Ok(both.pick(dims.clone(), None, picks.collect::<Vec<_>>().into_iter()))
    }

    /// Mean, sum, largest or smallest along axes.
    pub(super) fn reduce(&self) -> Result<Tensor, Why> {
        let input = self.input(0)?;
        let rank = input.dims().len();
        let axes = self.list(1, "axes")?.filter(|axes| !axes.is_empty());
        if axes.is_none() && self.flag("noop_with_empty_axes", false) {
            return Ok(input.clone());
        }
        let axes = axes.unwrap_or_else(|| (0..rank as i64).collect());
        let axes: Vec<usize> =
            axes.iter().map(|axis| axis_of(*axis, rank)).collect::<Result<_, _>>()?;
        let kept: Vec<usize> =
            (0..rank).map(|at| if axes.contains(&at) { 1 } else { input.dims()[at] }).collect();
        let mut groups = vec![Vec::new(); kept.iter().product()];
        let (into, mut index) = (strides(&kept), vec![0; rank]);
        let wide = input.cast(ElementType::F64);
        for (flat, value) in wide.as_floats().into_iter().flatten().enumerate() {
            unravel(flat, input.dims(), &mut index);
            groups[broadcast_source(&kept, &into, &index)].push(*value);
        }
        let fold = fold(&self.node.op)?;
        let values = groups.iter().map(|group| fold(group)).collect();
        let result = Tensor::floats(ElementType::F64, &kept, values).cast(input.dtype());
        if self.flag("keepdims", true) {
            return Ok(result);
        }
        let dims = (0..rank).filter(|at| !axes.contains(at)).map(|at| kept[at]).collect();
        Ok(result.shaped(dims))
    }

    pub(super) fn softmax(&self) -> Result<Tensor, Why> {
        let input = self.input(0)?;
        let axis = axis_of(self.node.int("axis").unwrap_or(-1), input.dims().len())?;
        let (size, step) = (input.dims()[axis], strides(input.dims())[axis]);
        let log = self.node.op == "LogSoftmax";
        let mut values = self.floats(0)?.to_vec();
        for begin in (0..values.len()).filter(|at| at / step % size.max(1) == 0) {
            let line = || (0..size).map(|k| begin + k * step);
            let peak = line().map(|at| values[at]).fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = line().map(|at| (values[at] - peak).exp()).sum();
            for at in line() {
                let shifted = values[at] - peak;
                values[at] = if log { shifted - total.ln() } else { shifted.exp() / total };
            }
        }
        Ok(Tensor::floats(input.dtype(), input.dims(), values))
    }

    pub(super) fn layer_normalization(&self) -> Result<Tensor, Why> {
        let input = self.input(0)?;
        let dims = input.dims();
        let axis = axis_of(self.node.int("axis").unwrap_or(-1), dims.len())?;
        let epsilon = f64::from(self.node.float("epsilon").unwrap_or(1e-5));
        let size: usize = dims[axis..].iter().product();
        let scale = self.floats(1)?;
        let bias = self.optional(2).map(|_| self.floats(2)).transpose()?;
        if scale.len() != size || bias.is_some_and(|bias| bias.len() != size) {
            return Err(format!("scale and bias do not have {size} elements"));
        }
        let mut values = self.floats(0)?.to_vec();
        for row in values.chunks_mut(size.max(1)) {
            let mean = row.iter().sum::<f64>() / size as f64;
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / size as f64;
            for (at, x) in row.iter_mut().enumerate() {
                let normal = (*x - mean) / (variance + epsilon).sqrt();
                *x = normal * scale[at] + bias.map_or(0.0, |bias| bias[at]);
            }
        }
        Ok(Tensor::floats(input.dtype(), dims, values))
    }
}

/// For each element of the broadcast shape, the elements of `a` and `b` it reads.
fn pairs<'d>(
    dims: &'d [usize],
    a: &'d Tensor,
    b: &'d Tensor,
) -> impl Iterator<Item = (usize, usize)> + 'd {
    let (of_a, of_b) = (strides(a.dims()), strides(b.dims()));
    let mut index = vec![0; dims.len()];
    (0..dims.iter().product()).map(move |flat| {
        unravel(flat, dims, &mut index);
        (broadcast_source(a.dims(), &of_a, &index), broadcast_source(b.dims(), &of_b, &index))
    })
}

/// What a reduction makes of the numbers it joins.
fn fold(op: &str) -> Result<fn(&[f64]) -> f64, Why> {
    Ok(match op {
        "ReduceMean" => |values| values.iter().sum::<f64>() / values.len() as f64,
        "ReduceSum" => |values| values.iter().sum(),
        "ReduceProd" => |values| values.iter().product(),
        "ReduceL1" => |values| values.iter().map(|x| x.abs()).sum(),
        "ReduceL2" => |values| values.iter().map(|x| x * x).sum::<f64>().sqrt(),
        "ReduceSumSquare" => |values| values.iter().map(|x| x * x).sum(),
        "ReduceLogSum" => |values| values.iter().sum::<f64>().ln(),
        "ReduceLogSumExp" => |values| values.iter().map(|x| x.exp()).sum::<f64>().ln(),
        "ReduceMax" => |values| values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        "ReduceMin" => |values| values.iter().copied().fold(f64::INFINITY, f64::min),
        _ => return Err("the evaluator does not have this operator".to_owned()),
    })
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The remainder with the sign of the divisor, as Python has it.
fn floor_mod(x: i64, y: i64) -> Option<i64> {
    let rest = x.checked_rem(y)?;
    Some(if rest != 0 && (rest < 0) != (y < 0) { rest + y } else { rest })
}

/// The error function: its Maclaurin series below 3, its continued fraction above; both are
/// exact to f64 there (Abramowitz & Stegun 7.1.6, 7.1.14).
fn erf(x: f64) -> f64 {
    let magnitude = x.abs();
    let value = if magnitude.is_nan() {
        f64::NAN
    } else if magnitude < 3.0 {
        let (mut term, mut sum) = (magnitude, magnitude);
        for n in 1..100 {
            term *= 2.0 * magnitude * magnitude / f64::from(2 * n + 1);
            sum += term;
        }
        2.0 / std::f64::consts::PI.sqrt() * (-magnitude * magnitude).exp() * sum
    } else {
        let tail = (1..60).rev().fold(magnitude, |rest, k| magnitude + f64::from(k) / 2.0 / rest);
        1.0 - (-magnitude * magnitude).exp() / (std::f64::consts::PI.sqrt() * tail)
    };
    value.copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_is_exact() {
        for (x, expect) in [
            (0.0, 0.0),
            (0.5, 0.520_499_877_813_046_5),
            (-1.0, -0.842_700_792_949_714_9),
            (2.9, 0.999_958_902_121_900_5),
            (3.1, 0.999_988_351_342_632_8),
            (30.0, 1.0),
        ] {
            assert!((erf(x) - expect).abs() < 1e-15, "{x}: {}", erf(x));
        }
    }
}
