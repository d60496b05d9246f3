//! Rotates heads by their position (rotary embedding, rotate-half form).

/// Cosines and sines of one position for heads of `2 * len` numbers.
pub(crate) struct Rotation {
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Rotation {
    /// Angles `position * theta^(-2i / head_dim)`, rounded to f32 where the usual implementations
    /// round: the inverse frequency first, then the angle.
    pub(crate) fn new(position: usize, head_dim: usize, theta: f64) -> Self {
        let half = head_dim / 2;
        let angle = |i: usize| {
            let frequency = theta.powf(-(2.0 * i as f64) / head_dim as f64) as f32;
            frequency * position as f32
        };
        let (sin, cos) =
            (0..half).map(|i| (f64::from(angle(i))).sin_cos()).unzip::<f64, f64, Vec<_>, Vec<_>>();
        let narrow = |wide: Vec<f64>| wide.into_iter().map(|value| value as f32).collect();
        Self { cos: narrow(cos), sin: narrow(sin) }
    }

    /// Rotates one head in place: pairs are `(i, i + head_dim / 2)`.
    pub(crate) fn apply(&self, head: &mut [f32]) {
        let (first, second) = head.split_at_mut(self.cos.len());
        for (i, (a, b)) in first.iter_mut().zip(second).enumerate() {
            let (cos, sin) = (self.cos[i], self.sin[i]);
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_zero_changes_nothing() {
        let mut head = [1.0, -2.0, 3.0, 4.0];
        Rotation::new(0, 4, 1e6).apply(&mut head);
        assert_eq!(head, [1.0, -2.0, 3.0, 4.0]);
    }

    #[test]
    fn pairs_are_turned_by_their_angle() {
        let mut head = [1.0, 1.0, 0.0, 0.0];
        Rotation::new(3, 4, 100.0).apply(&mut head);
        let expect = [3f64.cos(), 0.3f64.cos(), 3f64.sin(), 0.3f64.sin()];
        for (got, expect) in head.iter().zip(expect) {
            assert!((f64::from(*got) - expect).abs() < 1e-6);
        }
    }

    #[test]
    fn products_depend_on_the_distance_alone() {
        let turned = |position: usize, head: [f32; 4]| {
            let mut head = head;
            Rotation::new(position, 4, 1e4).apply(&mut head);
            head
        };
        let dot = |a: [f32; 4], b: [f32; 4]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let (q, k) = ([0.3, -1.0, 0.7, 2.0], [1.5, 0.2, -0.4, 0.9]);
        let near = dot(turned(7, q), turned(4, k));
        let far = dot(turned(107, q), turned(104, k));
        assert!((near - far).abs() < 1e-4);
    }
}
