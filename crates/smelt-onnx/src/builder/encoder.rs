//! Adds the operations of encoders: quick GELU, tables cut to a length, places looked up.
//!
//! Knows nothing of any family.

use super::{GraphBuilder, Value, int};

impl GraphBuilder {
    /// x · sigmoid(1.702 x), elementwise: the approximation of GELU that CLIP was trained with
    /// (Hendrycks & Gimpel 2016).
    pub fn quick_gelu(&mut self, x: &str) -> Value {
        let slope = self.scalar(1.702);
        let steep = self.mul(x, &slope);
        let gate = self.node("Sigmoid", &[&steep], vec![]);
        self.mul(x, &gate)
    }

    /// The first entries of `axis` of `x`; `count` is a list of one integer.
    pub fn keep_front(&mut self, x: &str, axis: i64, count: &str) -> Value {
        let (starts, axes) = (self.list(&[0]), self.list(&[axis]));
        self.node("Slice", &[x, &starts, count, &axes], vec![])
    }

    /// Whether `a` = `b`, broadcast.
    pub fn equal(&mut self, a: &str, b: &str) -> Value {
        self.node("Equal", &[a, b], vec![])
    }

    /// The place of the largest entry along `axis`, the first of equals; the axis stays, with
    /// size 1.
    pub fn arg_max(&mut self, x: &str, axis: i64) -> Value {
        self.node("ArgMax", &[x], vec![int("axis", axis), int("keepdims", 1)])
    }
}
