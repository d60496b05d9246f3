//! Computes products of matrices, and convolutions as sums over their windows.

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

    /// A convolution over any number of spatial dimensions, with groups and dilations.
    pub(super) fn conv(&self) -> Result<Tensor, Why> {
        let (input, kernel) = (self.input(0)?, self.input(1)?);
        let (x, w) = (self.floats(0)?, self.floats(1)?);
        let rank = input.dims().len();
        if rank < 3 || kernel.dims().len() != rank {
            return Err("image and kernel do not have the same three or more dimensions".to_owned());
        }
        if !matches!(self.text("auto_pad", "NOTSET"), "NOTSET" | "VALID") {
            return Err("only explicit pads are known here".to_owned());
        }
        let spatial = rank - 2;
        let sizes = |name: &str, count: usize, default: usize| match self.node.ints(name) {
            None => Ok(vec![default; count]),
            Some(list) if list.len() == count => list
                .iter()
                .map(|size| usize::try_from(*size).map_err(|_| format!("{name} is negative")))
                .collect(),
            Some(_) => Err(format!("{name} does not have {count} numbers")),
        };
        let pads = sizes("pads", 2 * spatial, 0)?;
        let (steps, gaps) = (sizes("strides", spatial, 1)?, sizes("dilations", spatial, 1)?);
        let groups = self.node.int("group").unwrap_or(1).max(1) as usize;
        let (image, window) = (&input.dims()[2..], &kernel.dims()[2..]);
        let (channels, out_channels) = (input.dims()[1], kernel.dims()[0]);
        if kernel.dims()[1] * groups != channels || out_channels % groups != 0 {
            return Err(format!("kernel {:?} does not fit {channels} channels", kernel.dims()));
        }
        let span = |at: usize| {
            let reach = gaps[at] * window[at].checked_sub(1)? + 1;
            let room = (image[at] + pads[at] + pads[spatial + at]).checked_sub(reach)?;
            Some(room.checked_div(steps[at])? + 1)
        };
        let out: Option<Vec<usize>> = (0..spatial).map(span).collect();
        let out = out.ok_or("its window does not fit the image")?;
        let dims = [&[input.dims()[0], out_channels], &out[..]].concat();
        let bias = self.optional(2).map(|_| self.floats(2)).transpose()?;
        if bias.is_some_and(|bias| bias.len() != out_channels) {
            return Err(format!("its bias does not have {out_channels} numbers"));
        }
        let (step_x, per_group) = (strides(input.dims()), kernel.dims()[1]);
        let taps: usize = window.iter().product();
        let mut at = vec![0; rank];
        let mut tap_at = vec![0; spatial];
        let mut values = Vec::with_capacity(self.fits(&dims)?);
        for flat in 0..dims.iter().product() {
            unravel(flat, &dims, &mut at);
            let first_channel = at[1] / (out_channels / groups) * per_group;
            let mut sum = bias.map_or(0.0, |bias| bias[at[1]]);
            for tap in 0..taps {
                unravel(tap, window, &mut tap_at);
                let place = |d: usize| {
                    let place =
                        (at[2 + d] * steps[d] + tap_at[d] * gaps[d]).checked_sub(pads[d])?;
                    (place < image[d]).then(|| place * step_x[2 + d])
                };
                let Some(place) = (0..spatial).map(place).sum::<Option<usize>>() else { continue };
                for channel in 0..per_group {
                    let pixel = at[0] * step_x[0] + (first_channel + channel) * step_x[1] + place;
                    sum += x[pixel] * w[(at[1] * per_group + channel) * taps + tap];
                }
            }
            values.push(sum);
        }
        Ok(Tensor::floats(input.dtype(), &dims, values))
    }
}
