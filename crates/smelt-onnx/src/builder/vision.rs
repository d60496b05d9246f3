//! Adds the operations of vision towers: an activation, rotation by tables.
//!
//! Knows nothing of any family.

use super::{GraphBuilder, Value};

impl GraphBuilder {
    /// GELU by tanh, x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))) (Hendrycks & Gimpel 2016).
    ///
    /// The cubic is taken as x · (a + b x²): where x² overflows f16, the tanh is ±1 all the same.
    pub fn gelu_tanh(&mut self, x: &str) -> Value {
        let root = (2.0 / std::f64::consts::PI).sqrt();
        let (a, b) = (self.scalar(root as f32), self.scalar((root * 0.044_715) as f32));
        let (one, half) = (self.scalar(1.0), self.scalar(0.5));
        let square = self.mul(x, x);
        let slope = self.mul(&square, &b);
        let slope = self.add(&slope, &a);
        let inner = self.mul(x, &slope);
        let tanh = self.tanh(&inner);
        let gate = self.add(&tanh, &one);
        let gated = self.mul(x, &gate);
        self.mul(&gated, &half)
    }

    /// Turns the halves of the last of three dimensions, of size `width`, by `cos` and `sin`: the
    /// pair (i, i + width/2) as the tables' entry i says.
    pub fn rotate_half(&mut self, x: &str, width: usize, [cos, sin]: [&str; 2]) -> Value {
        let [low, high] = self.split(x, 2, width / 2);
        let (low_cos, high_sin) = (self.mul(&low, cos), self.mul(&high, sin));
        let (high_cos, low_sin) = (self.mul(&high, cos), self.mul(&low, sin));
        let low = self.sub(&low_cos, &high_sin);
        let high = self.add(&high_cos, &low_sin);
        self.concat(&[&low, &high], 2)
    }
}
