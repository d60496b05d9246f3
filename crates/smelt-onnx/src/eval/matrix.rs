//! Computes products of matrices.

use super::{Call, Tensor, Why, broadcast, broadcast_source, strides, unravel};

impl Call<'_> {
    pub(super) fn gemm(&self) -> Result<Tensor, Why> {
        let (a, b) = (self.input(0)?, self.input(1)?);
        let ([a_rows, a_columns], [b_rows, b_columns]) = (a.dims(), b.dims()) else {
            return Err("its matrices do not have two dimensions".to_owned());
        };
        let (turn_a, turn_b) = (self.flag("transA", false), self.flag("transB", false));
        let (rows, inner) = if turn_a { (*a_columns, *a_rows) } else { (*a_rows, *a_columns) };
        let (inner_b, columns) = if turn_b { (*b_columns, *b_rows) } else { (*b_rows, *b_columns) };
        if inner != inner_b {
            return Err(format!("shapes {:?} and {:?} do not multiply", a.dims(), b.dims()));
        }
        let (x, y) = (self.floats(0)?, self.floats(1)?);
        let dims = [rows, columns];
        self.fits(&dims)?;
        let alpha = f64::from(self.node.float("alpha").unwrap_or(1.0));
        let beta = f64::from(self.node.float("beta").unwrap_or(1.0));
        let added = self.gemm_addend(&dims)?;
        let mut values = Vec::with_capacity(rows * columns);
        for i in 0..rows {
            for j in 0..columns {
                let product = |k: usize| {
                    let left = if turn_a { x[k * rows + i] } else { x[i * inner + k] };
                    let right = if turn_b { y[j * inner + k] } else { y[k * columns + j] };
                    left * right
                };
                let sum: f64 = (0..inner).map(product).sum();
                values.push(alpha * sum + added.as_ref().map_or(0.0, |c| beta * c(i, j)));
            }
        }
        Ok(Tensor::floats(a.dtype(), &dims, values))
    }

    fn gemm_addend(&self, dims: &[usize]) -> Result<Option<impl Fn(usize, usize) -> f64>, Why> {
        let Some(c) = self.optional(2) else { return Ok(None) };
        if broadcast(c.dims(), dims)? != dims {
            return Err(format!("an addend of shape {:?} does not fit {dims:?}", c.dims()));
        }
        let (values, step) = (self.floats(2)?, strides(c.dims()));
        Ok(Some(move |i, j| values[broadcast_source(c.dims(), &step, &[i, j])]))
    }

    pub(super) fn matmul(&self) -> Result<Tensor, Why> {
        let (a, b) = (self.input(0)?, self.input(1)?);
        let (mut left, mut right) = (a.dims().to_vec(), b.dims().to_vec());
        if left.is_empty() || right.is_empty() || a.dtype() != b.dtype() {
            return Err("its inputs are scalars or of two types".to_owned());
        }
        let (vector_a, vector_b) = (left.len() == 1, right.len() == 1);
        if vector_a {
            left.insert(0, 1);
        }
        if vector_b {
            right.push(1);
        }
        let (outer_a, &[rows, inner]) = left.split_last_chunk().ok_or("no matrix")?;
        let (outer_b, &[inner_b, columns]) = right.split_last_chunk().ok_or("no matrix")?;
        if inner != inner_b {
            return Err(format!("shapes {:?} and {:?} do not multiply", a.dims(), b.dims()));
        }
        let outer = broadcast(outer_a, outer_b)?;
        let (step_a, step_b) = (strides(outer_a), strides(outer_b));
        let (x, y) = (self.floats(0)?, self.floats(1)?);
        let mut dims = [&outer[..], &[rows, columns]].concat();
        let mut values = Vec::with_capacity(self.fits(&dims)?);
        let mut index = vec![0; outer.len()];
        for batch in 0..outer.iter().product() {
            unravel(batch, &outer, &mut index);
            let x = &x[broadcast_source(outer_a, &step_a, &index) * rows * inner..];
            let y = &y[broadcast_source(outer_b, &step_b, &index) * inner * columns..];
            for i in 0..rows {
                for j in 0..columns {
                    values.push((0..inner).map(|k| x[i * inner + k] * y[k * columns + j]).sum());
                }
            }
        }
        if vector_b {
            dims.pop();
        }
        if vector_a {
            dims.remove(outer.len());
        }
        Ok(Tensor::floats(a.dtype(), &dims, values))
    }
}
