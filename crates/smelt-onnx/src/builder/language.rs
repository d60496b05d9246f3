//! Adds the operations of language models: ids and masks, positions, norms computed in f32.
//!
//! Sizes that are open in a decoder (sequences, tokens, cached tokens) come from the shapes of
//! its inputs, by `Shape` and `Gather` alone.  Knows nothing of any family.

use super::{GraphBuilder, Value, int, ints};
use crate::ElementType;
use crate::model::{Dim, ValueInfo};

impl GraphBuilder {
    /// Declares an input of whole numbers: ids, positions, masks.
    pub fn integer_input(&mut self, name: &str, dims: Vec<Dim>) -> Value {
        let info = ValueInfo { name: name.to_owned(), dtype: ElementType::I64, dims: Some(dims) };
        self.graph.inputs.push(info);
        Value(name.to_owned())
    }

    /// `x` `weightᵀ`; x `[rows, in]`, weight `[out, in]`.
    pub fn product(&mut self, x: &str, weight: &str) -> Value {
        self.node("Gemm", &[x, weight], vec![int("transB", 1)])
    }

    /// The element type of the graph, or another, for `x`.
    pub fn cast(&mut self, x: &str, to: ElementType) -> Value {
        self.node("Cast", &[x], vec![int("to", to.number().into())])
    }

    /// `x`, of the graph's type, in f32: the same value where that is its type.
    pub fn widened(&mut self, x: &str) -> Value {
        if self.dtype == ElementType::F32 {
            return Value(x.to_owned());
        }
        self.cast(x, ElementType::F32)
    }

    /// `x`, in f32, in the graph's type: the same value where that is f32.
    pub fn narrowed(&mut self, x: &str) -> Value {
        if self.dtype == ElementType::F32 {
            return Value(x.to_owned());
        }
        self.cast(x, self.dtype)
    }

    /// The rows of `table` that `ids` name.
    pub fn gather(&mut self, table: &str, ids: &str) -> Value {
        self.node("Gather", &[table, ids], vec![int("axis", 0)])
    }

    /// Values one after another along `axis`.
    pub fn concat(&mut self, values: &[&str], axis: i64) -> Value {
        self.node("Concat", values, vec![int("axis", axis)])
    }

    /// `x` with new dimensions of size 1 at `axes` of the result.
    pub fn unsqueeze(&mut self, x: &str, axes: &[i64]) -> Value {
        let axes = self.integers("axes", axes);
        self.node("Unsqueeze", &[x, &axes], vec![])
    }

    /// `x` repeated along its dimensions of size 1; a 1 in `dims` keeps a dimension as it is.
    pub fn expand(&mut self, x: &str, dims: &[i64]) -> Value {
        let dims = self.integers("dims", dims);
        self.node("Expand", &[x, &dims], vec![])
    }

    /// Gives `x` the shape `dims`, a list of integers that the graph computes.
    pub fn reshape_to(&mut self, x: &str, dims: &str) -> Value {
        self.node("Reshape", &[x, dims], vec![])
    }

    /// The sizes of dimensions `axes` of `x`, as a list.
    pub fn sizes(&mut self, x: &str, axes: &[i64]) -> Value {
        let shape = self.node("Shape", &[x], vec![]);
        let axes = self.integers("axes", axes);
        self.gather(&shape, &axes)
    }

    /// The size of dimension `axis` of `x`, as a scalar.
    pub fn size(&mut self, x: &str, axis: i64) -> Value {
        let shape = self.node("Shape", &[x], vec![]);
        let axis = self.integer(axis);
        self.gather(&shape, &axis)
    }

    /// A constant list of integers.
    pub fn list(&mut self, values: &[i64]) -> Value {
        self.integers("list", values)
    }

    /// A whole number.
    pub fn integer(&mut self, value: i64) -> Value {
        let bytes = value.to_le_bytes().to_vec();
        self.constant(format!("/integer/{value}"), ElementType::I64, vec![], bytes)
    }

    /// `start`, `start` + 1, … below `end`; scalars of whole numbers.
    pub fn range(&mut self, start: &str, end: &str) -> Value {
        let step = self.integer(1);
        self.node("Range", &[start, end, &step], vec![])
    }

    /// A constant in f32, whatever the type of the graph; `name` is its own.
    pub fn floats(&mut self, name: &str, dims: &[usize], values: &[f32]) -> Value {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant(format!("/floats/{name}"), ElementType::F32, dims.to_vec(), bytes)
    }

    /// `a` - `b`, broadcast.
    pub fn sub(&mut self, a: &str, b: &str) -> Value {
        self.node("Sub", &[a, b], vec![])
    }

    /// -`x`, elementwise.
    pub fn neg(&mut self, x: &str) -> Value {
        self.node("Neg", &[x], vec![])
    }

    /// The cosine of `x`, elementwise.
    pub fn cos(&mut self, x: &str) -> Value {
        self.node("Cos", &[x], vec![])
    }

    /// The sine of `x`, elementwise.
    pub fn sin(&mut self, x: &str) -> Value {
        self.node("Sin", &[x], vec![])
    }

    /// x · sigmoid(x), elementwise (SiLU: Elfwing et al. 2017).
    pub fn silu(&mut self, x: &str) -> Value {
        let gate = self.node("Sigmoid", &[x], vec![]);
        self.mul(x, &gate)
    }

    /// Whether `a` >= `b`, broadcast.
    pub fn at_least(&mut self, a: &str, b: &str) -> Value {
        self.node("GreaterOrEqual", &[a, b], vec![])
    }

    /// Whether both flags hold, broadcast.
    pub fn both(&mut self, a: &str, b: &str) -> Value {
        self.node("And", &[a, b], vec![])
    }

    /// `yes` where `flags` holds, else `no`, broadcast.
    pub fn choose(&mut self, flags: &str, yes: &str, no: &str) -> Value {
        self.node("Where", &[flags, yes, no], vec![])
    }

    /// The sum over dimension `axis`, which goes.
    pub fn sum(&mut self, x: &str, axis: i64) -> Value {
        let axes = self.integers("axes", &[axis]);
        self.node("ReduceSum", &[x, &axes], vec![int("keepdims", 0)])
    }

    /// x / √(mean(x²) + epsilon) · weight over the last dimension (RMSNorm: Zhang & Sennrich
    /// 2019).
    ///
    /// The squares are taken in f32 with casts of their own, since f16 overflows at 256² and back
    /// ends keep the type of primitive operations.
    pub fn rms_norm(&mut self, x: &str, weight: &str, epsilon: f32) -> Value {
        let x = self.widened(x);
        let squares = self.mul(&x, &x);
        let mean = self.node("ReduceMean", &[&squares], vec![ints("axes", &[-1])]);
        let epsilon = self.floats(&epsilon.to_string(), &[], &[epsilon]);
        let mean = self.add(&mean, &epsilon);
        let root = self.node("Sqrt", &[&mean], vec![]);
        let normal = self.div(&x, &root);
        let normal = self.narrowed(&normal);
        self.mul(&normal, weight)
    }
}
