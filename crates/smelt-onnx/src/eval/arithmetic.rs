//! Computes operators that work number by number, and reductions.

use super::{Call, Tensor, Why, axis_of, broadcast, broadcast_source, strides, unravel};
use crate::ElementType;

impl Call<'_> {
    /// The operator over each number, if it is one.
    pub(super) fn unary(&self) -> Result<Option<Tensor>, Why> {
        let function: fn(f64) -> f64 = match self.node.op.as_str() {
            "Sqrt" => f64::sqrt,
            "Exp" => f64::exp,
            "Log" => f64::ln,
            "Sin" => f64::sin,
            "Cos" => f64::cos,
            "Tanh" => f64::tanh,
            "Erf" => erf,
            "Reciprocal" => f64::recip,
            "Floor" => f64::floor,
            "Ceil" => f64::ceil,
            "Round" => f64::round_ties_even,
            "Sigmoid" => |x| 1.0 / (1.0 + (-x).exp()),
            "Relu" => |x| x.max(0.0),
            "Neg" => |x| -x,
            "Abs" => f64::abs,
            "Gelu" => match self.text("approximate", "none") {
                "none" => |x| x / 2.0 * (1.0 + erf(x / std::f64::consts::SQRT_2)),
                "tanh" => |x| {
                    let root = (2.0 / std::f64::consts::PI).sqrt();
                    x / 2.0 * (1.0 + (root * (x + 0.044715 * x * x * x)).tanh())
                },
                other => return Err(format!("approximation {other:?} is not known here")),
            },
            _ => return Ok(None),
        };
        let input = self.input(0)?;
        if let Some(values) = input.as_floats() {
            let values = values.iter().map(|value| function(*value)).collect();
            return Ok(Some(Tensor::floats(input.dtype(), input.dims(), values)));
        }
        let values = self.ints(0)?.iter();
        let values = match self.node.op.as_str() {
            "Neg" => values.map(|value| value.wrapping_neg()).collect(),
            "Abs" => values.map(|value| value.wrapping_abs()).collect(),
            _ => return Err("its input is no float".to_owned()),
        };
        Ok(Some(Tensor::ints(input.dtype(), input.dims(), values)))
    }

    pub(super) fn not(&self) -> Result<Tensor, Why> {
        let values = self.ints(0)?.iter().map(|flag| i64::from(*flag == 0)).collect();
        Ok(Tensor::ints(ElementType::Bool, self.input(0)?.dims(), values))
    }

    /// The operator over two broadcast tensors; `Min` and `Max` here take exactly two.
    pub(super) fn binary(&self) -> Result<Tensor, Why> {
        let (a, b) = (self.input(0)?, self.input(1)?);
        if self.inputs.len() != 2 {
            return Err("it is computed here over exactly two inputs".to_owned());
        }
        if a.dtype() != b.dtype() && self.node.op != "Pow" {
            return Err(format!("it mixes {} and {}", a.dtype(), b.dtype()));
        }
        let dims = broadcast(a.dims(), b.dims())?;
        self.fits(&dims)?;
        match (a.as_floats(), b.as_floats()) {
            (Some(x), Some(y)) => {
                let pairs = pairs(&dims, a, b).map(|(i, j)| (x[i], y[j]));
                self.of_floats(a.dtype(), &dims, pairs)
            }
            (None, None) => {
                let (x, y) = (self.ints(0)?, self.ints(1)?);
                let pairs = pairs(&dims, a, b).map(|(i, j)| (x[i], y[j]));
                self.of_ints(a.dtype(), &dims, pairs)
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
            "Add" => |x, y| x + y,
            "Sub" => |x, y| x - y,
            "Mul" => |x, y| x * y,
            "Div" => |x, y| x / y,
            "Pow" => f64::powf,
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
            "Add" => (|x, y| Some(x.wrapping_add(y)), dtype),
            "Sub" => (|x, y| Some(x.wrapping_sub(y)), dtype),
            "Mul" => (|x, y| Some(x.wrapping_mul(y)), dtype),
            // C truncates, and so does the standard for integers.
            "Div" => (i64::checked_div, dtype),
            "Mod" if !self.flag("fmod", false) => (floor_mod, dtype),
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
        let fold = |values: &Vec<f64>| match self.node.op.as_str() {
            "ReduceMean" => values.iter().sum::<f64>() / values.len() as f64,
            "ReduceSum" => values.iter().sum(),
            "ReduceMax" => values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            _ => values.iter().copied().fold(f64::INFINITY, f64::min),
        };
        let values = groups.iter().map(fold).collect();
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
        let mut values = self.floats(0)?.to_vec();
        for begin in (0..values.len()).filter(|at| at / step % size.max(1) == 0) {
            let line = || (0..size).map(|k| begin + k * step);
            let peak = line().map(|at| values[at]).fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = line().map(|at| (values[at] - peak).exp()).sum();
            for at in line() {
                values[at] = (values[at] - peak).exp() / total;
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

    pub(super) fn dequantize(&self) -> Result<Tensor, Why> {
        let input = self.input(0)?;
        let values = self.ints(0)?;
        let scale = self.floats(1)?;
        let zero = self.optional(2).map(|_| self.ints(2)).transpose()?;
        let group = self.scale_groups(input, scale.len(), zero.map(<[i64]>::len))?;
        let real = |(flat, value): (usize, &i64)| {
            let at = group(flat);
            (*value - zero.map_or(0, |zero| zero[at])) as f64 * scale[at]
        };
        let values = values.iter().enumerate().map(real).collect();
        Ok(Tensor::floats(self.input(1)?.dtype(), input.dims(), values))
    }

    pub(super) fn quantize(&self) -> Result<Tensor, Why> {
        let input = self.input(0)?;
        let scale = self.floats(1)?;
        let zero = self.optional(2).map(|_| self.ints(2)).transpose()?;
        let dtype = self.optional(2).map_or(ElementType::U8, Tensor::dtype);
        let (low, high) = match dtype {
            ElementType::I8 => (-128.0, 127.0),
            ElementType::U8 => (0.0, 255.0),
            other => return Err(format!("it quantises to {other}, which is not known here")),
        };
        let group = self.scale_groups(input, scale.len(), zero.map(<[i64]>::len))?;
        let code = |(flat, value): (usize, &f64)| {
            let at = group(flat);
            let zero = zero.map_or(0, |zero| zero[at]) as f64;
            ((value / scale[at]).round_ties_even() + zero).clamp(low, high) as i64
        };
        let values = self.floats(0)?.iter().enumerate().map(code).collect();
        Ok(Tensor::ints(dtype, input.dims(), values))
    }

    /// Which scale an element takes: the only one, or that of its place along the axis.
    fn scale_groups(
        &self,
        input: &Tensor,
        scales: usize,
        zeros: Option<usize>,
    ) -> Result<impl Fn(usize) -> usize + use<>, Why> {
        if self.input(1)?.dims().len() > 1 {
            return Err("block scales are not known here".to_owned());
        }
        if zeros.is_some_and(|zeros| zeros != scales) {
            return Err("scales and zero points differ in number".to_owned());
        }
        let (mut size, mut step) = (1, 1);
        if self.input(1)?.dims().len() == 1 && scales != 1 {
            let axis = axis_of(self.node.int("axis").unwrap_or(1), input.dims().len())?;
            (size, step) = (input.dims()[axis], strides(input.dims())[axis]);
            if size != scales {
                return Err(format!("{scales} scales do not fit an axis of {size}"));
            }
        }
        Ok(move |flat: usize| flat / step % size)
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
