//! Computes operators that look through windows: convolutions as sums, and the largest number in each.
//!
//! Any number of spatial dimensions, with dilations and every kind of pads.

use super::{Call, Tensor, Why, strides, unravel};

/// Windows over the spatial dimensions of an image.
struct Windows<'a> {
    image: &'a [usize],
    window: Vec<usize>,
    steps: Vec<usize>,
    gaps: Vec<usize>,
    /// What lies before the image along each dimension.
    before: Vec<usize>,
    /// How many windows there are along each.
    out: Vec<usize>,
}

impl Windows<'_> {
    fn taps(&self) -> usize {
        self.window.iter().product()
    }

    /// The places that the window at `at` sees: the tap and the element of a channel.
    fn seen(&self, at: &[usize]) -> Vec<(usize, usize)> {
        let step = strides(self.image);
        let mut tap_at = vec![0; self.window.len()];
        let mut seen = Vec::with_capacity(self.taps());
        for tap in 0..self.taps() {
            unravel(tap, &self.window, &mut tap_at);
            let place = |d: usize| {
                let place = at[d] * self.steps[d] + tap_at[d] * self.gaps[d];
                let place = place.checked_sub(self.before[d])?;
                (place < self.image[d]).then(|| place * step[d])
            };
            if let Some(place) = (0..self.image.len()).map(place).sum::<Option<usize>>() {
                seen.push((tap, place));
            }
        }
        seen
    }
}

impl Call<'_> {
    fn windows<'i>(&self, image: &'i [usize], window: Vec<usize>) -> Result<Windows<'i>, Why> {
        let spatial = image.len();
        if window.len() != spatial || window.contains(&0) {
            return Err(format!("windows of {window:?} do not fit an image of {image:?}"));
        }
        let steps = self.spatial_sizes("strides", spatial, 1)?;
        let gaps = self.spatial_sizes("dilations", spatial, 1)?;
        let pads = self.spatial_sizes("pads", 2 * spatial, 0)?;
        let (mut before, mut out) = (Vec::new(), Vec::new());
        for at in 0..spatial {
            let reach = gaps[at] * (window[at] - 1) + 1;
            let step = steps[at].max(1);
            let same = ((image[at].div_ceil(step) - 1) * step + reach).saturating_sub(image[at]);
            let [first, last] = match self.text("auto_pad", "NOTSET") {
                "NOTSET" => [pads[at], pads[spatial + at]],
                "VALID" => [0, 0],
                "SAME_UPPER" => [same / 2, same - same / 2],
                "SAME_LOWER" => [same - same / 2, same / 2],
                other => return Err(format!("pads {other:?} are not known here")),
            };
            let room = (image[at] + first + last).checked_sub(reach);
            let room = room.ok_or("its window does not fit the image")?;
            let mut count = room / step + 1;
            // One more that begins in the image or before it, although it ends beyond the pads.
            if self.flag("ceil_mode", false) && room % step != 0 && count * step < image[at] + first
            {
                count += 1;
            }
            before.push(first);
            out.push(count);
        }
        Ok(Windows { image, window, steps, gaps, before, out })
    }

    fn spatial_sizes(&self, name: &str, count: usize, default: usize) -> Result<Vec<usize>, Why> {
        match self.node.ints(name) {
            None => Ok(vec![default; count]),
            Some(list) if list.len() == count => list
                .iter()
                .map(|size| usize::try_from(*size).map_err(|_| format!("{name} is negative")))
                .collect(),
            Some(_) => Err(format!("{name} does not have {count} numbers")),
        }
    }

    /// A convolution, with groups.
    pub(super) fn conv(&self) -> Result<Tensor, Why> {
        let (input, kernel) = (self.input(0)?, self.input(1)?);
        let (x, w) = (self.floats(0)?, self.floats(1)?);
        let rank = input.dims().len();
        if rank < 3 || kernel.dims().len() != rank {
            return Err("image and kernel do not have the same three or more dimensions".to_owned());
        }
        let windows = self.windows(&input.dims()[2..], kernel.dims()[2..].to_vec())?;
        let groups = self.node.int("group").unwrap_or(1).max(1) as usize;
        let (channels, out_channels) = (input.dims()[1], kernel.dims()[0]);
        if kernel.dims()[1] * groups != channels || out_channels % groups != 0 {
            return Err(format!("kernel {:?} does not fit {channels} channels", kernel.dims()));
        }
        let dims = [&[input.dims()[0], out_channels], &windows.out[..]].concat();
        let bias = self.optional(2).map(|_| self.floats(2)).transpose()?;
        if bias.is_some_and(|bias| bias.len() != out_channels) {
            return Err(format!("its bias does not have {out_channels} numbers"));
        }
        let (step_x, per_group) = (strides(input.dims()), kernel.dims()[1]);
        let taps = windows.taps();
        let mut at = vec![0; rank];
        let mut values = Vec::with_capacity(self.fits(&dims)?);
        for flat in 0..dims.iter().product() {
            unravel(flat, &dims, &mut at);
            let first_channel = at[1] / (out_channels / groups) * per_group;
            let mut sum = bias.map_or(0.0, |bias| bias[at[1]]);
            for (tap, place) in windows.seen(&at[2..]) {
                for channel in 0..per_group {
                    let pixel = at[0] * step_x[0] + (first_channel + channel) * step_x[1] + place;
                    sum += x[pixel] * w[(at[1] * per_group + channel) * taps + tap];
                }
            }
            values.push(sum);
        }
        Ok(Tensor::floats(input.dtype(), &dims, values))
    }

    /// The largest number that each window sees.
    pub(super) fn max_pool(&self) -> Result<Tensor, Why> {
        let (input, x) = (self.input(0)?, self.floats(0)?);
        let rank = input.dims().len();
        if rank < 3 {
            return Err(format!("an image of {:?} has no spatial dimensions", input.dims()));
        }
        let window = self.node.ints("kernel_shape").ok_or("it has no kernel_shape")?.len();
        let window = self.spatial_sizes("kernel_shape", window, 1)?;
        let windows = self.windows(&input.dims()[2..], window)?;
        let dims = [&input.dims()[..2], &windows.out[..]].concat();
        let step_x = strides(input.dims());
        let mut at = vec![0; rank];
        let mut values = Vec::with_capacity(self.fits(&dims)?);
        for flat in 0..dims.iter().product() {
            unravel(flat, &dims, &mut at);
            let channel = at[0] * step_x[0] + at[1] * step_x[1];
            let seen = windows.seen(&at[2..]).into_iter().map(|(_, place)| x[channel + place]);
            values.push(seen.fold(f64::NEG_INFINITY, f64::max));
        }
        Ok(Tensor::floats(input.dtype(), &dims, values))
    }
}
