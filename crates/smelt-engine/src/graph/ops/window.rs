//! Computes operators that look at a picture through windows: Conv, MaxPool.
//!
//! Most convolutions unroll their windows into rows and multiply; one channel by itself is summed tap
//! by tap, without rows.  Each output is summed in an order that the shapes alone give.

use super::super::array::{Array, Value, element_count};
use super::super::op::{Conv, Sliding};
use super::product::Operand;
use super::{Inputs, Machine};
use crate::kernels::matrix::{Elements, Matrix};
use crate::kernels::product::Product;

/// Numbers of unrolled windows held at a time (8 MiB).
const WINDOW_NUMBERS_MAX: usize = 2 << 20;
/// Copying a number into a row of a window, in multiplications, roughly.
const UNROLL_WORK: usize = 2;

/// How a picture `[batch, channels, height, width]` is convolved.
struct Convolution {
    windows: Windows,
    /// `[batch, kernels, down, across]`
    out: [usize; 4],
    groups: usize,
    /// Channels that a kernel looks at.
    depth: usize,
}

/// The shape that a convolution gives.
pub(in super::super) fn convolved(
    conv: &Conv,
    image: &[usize],
    weight: &[usize],
) -> Result<Vec<usize>, String> {
    Ok(Convolution::new(conv, image, weight)?.out.to_vec())
}

impl Convolution {
    fn new(conv: &Conv, image: &[usize], weight: &[usize]) -> Result<Self, String> {
        let fail = || format!("cannot convolve {image:?} with {weight:?}");
        let (&[batch, channels, height, width], &[kernels, depth, high, wide]) = (image, weight)
        else {
            return Err(fail());
        };
        let groups = conv.groups;
        if depth.checked_mul(groups) != Some(channels) || !kernels.is_multiple_of(groups) {
            return Err(fail());
        }
        let windows =
            Windows::new(&conv.windows, [height, width], [high, wide]).ok_or_else(fail)?;
        let out = [batch, kernels, windows.out[0], windows.out[1]];
        Ok(Self { windows, out, groups, depth })
    }

    /// One channel a kernel: each tap adds a multiple of the picture.
    fn by_taps(
        &self,
        image: &[f32],
        weight: &[f32],
        bias: &[f32],
        m: Machine<'_>,
        out: &mut [f32],
    ) {
        let [_, kernels, ..] = self.out;
        let (taps, places) = (self.windows.taps(), self.windows.places());
        let per_group = kernels / self.groups;
        m.threads.for_work(out.len() * taps).rows(out, places, |first, planes| {
            for (index, plane) in planes.chunks_exact_mut(places).enumerate() {
                let (picture, kernel) = ((first + index) / kernels, (first + index) % kernels);
                let channel = picture * self.groups + kernel / per_group;
                let channel = self.windows.channel(image, channel);
                plane.fill(bias.get(kernel).copied().unwrap_or(0.0));
                for tap in 0..taps {
                    let factor = weight[kernel * taps + tap];
                    let add = |sum: &mut f32, pixel: f32| *sum += factor * pixel;
                    m.isa.vectorised(|| self.windows.each(tap, channel, plane, add));
                }
            }
        });
    }

    /// Windows as rows, a block at a time, multiplied with the kernels.
    fn by_rows(&self, image: &[f32], filters: &Operand<'_>, m: Machine<'_>, out: &mut [f32]) {
        let kernels = self.out[1] / self.groups;
        let (row, places) = (self.depth * self.windows.taps(), self.windows.places());
        let block = (WINDOW_NUMBERS_MAX / row.max(1)).clamp(1, places.max(1));
        let mut rows = vec![0.0; block * row];
        let seen = self.depth * self.windows.channel_len();
        let pictures = image.chunks_exact(seen.max(1)).zip(out.chunks_exact_mut(kernels * places));
        for (index, (image, out)) in pictures.enumerate() {
            let filters = filters.matrix(index % self.groups);
            for first in (0..places).step_by(block) {
                let count = block.min(places - first);
                let rows = &mut rows[..count * row];
                let work = rows.len() * UNROLL_WORK;
                m.threads.for_work(work).rows(rows, row, |at, rows| {
                    for (index, row) in rows.chunks_exact_mut(row).enumerate() {
                        self.windows.unroll(image, first + at + index, row);
                    }
                });
                let rows = Matrix::new(Elements::F32(rows), count, row);
                let product = Product { out_stride: places, ..Product::new(filters, rows) };
                product.run(m.isa, m.threads, &mut out[first..]);
            }
        }
    }
}

pub(super) fn conv(
    conv: &Conv,
    inputs: &mut Inputs,
    machine: Machine<'_>,
) -> Result<Value, String> {
    let image = machine.floats(inputs.take(0))?;
    let weight = machine.readable(inputs.take(1));
    let bias = inputs.optional(2).map(|bias| machine.floats(bias)).transpose()?;
    let shape = weight.shape().to_vec();
    let convolution = Convolution::new(conv, image.shape(), &shape)?;
    let [_, kernels, ..] = convolution.out;
    if bias.as_ref().is_some_and(|bias| bias.shape() != [kernels]) {
        return Err(format!("its bias does not fit {kernels} channels"));
    }
    let bias = bias.as_ref().map_or(&[][..], |bias| bias.data());
    let mut out = vec![0.0; element_count(&convolution.out)?];
    if out.is_empty() {
        return Ok(Value::F32(Array::new(convolution.out.to_vec(), out)));
    }
    if convolution.depth == 1 && convolution.groups > 1 {
        let weight = machine.floats(weight)?;
        convolution.by_taps(image.data(), weight.data(), bias, machine, &mut out);
    } else {
        let flat = [conv.groups, kernels / conv.groups, shape[1..].iter().product()];
        let filters = Operand::new(&weight, &flat, &machine)?;
        convolution.by_rows(image.data(), &filters, machine, &mut out);
        add_bias(bias, convolution.windows.places(), machine, &mut out);
    }
    Ok(Value::F32(Array::new(convolution.out.to_vec(), out)))
}

/// Adds to each plane of `places` numbers the bias of its kernel.
fn add_bias(bias: &[f32], places: usize, machine: Machine<'_>, out: &mut [f32]) {
    if bias.is_empty() {
        return;
    }
    machine.threads.for_work(out.len()).rows(out, places, |first, planes| {
        for (index, plane) in planes.chunks_exact_mut(places).enumerate() {
            let bias = bias[(first + index) % bias.len()];
            plane.iter_mut().for_each(|value| *value += bias);
        }
    });
}

/// The shape that MaxPool gives.
pub(in super::super) fn pooled(sliding: &Sliding, image: &[usize]) -> Result<Vec<usize>, String> {
    let windows = pool_windows(sliding, image)?;
    Ok(vec![image[0], image[1], windows.out[0], windows.out[1]])
}

fn pool_windows(sliding: &Sliding, image: &[usize]) -> Result<Windows, String> {
    let fail = || format!("cannot look through its windows at {image:?}");
    let (&[_, _, height, width], Some(kernel)) = (image, sliding.kernel) else {
        return Err(fail());
    };
    Windows::new(sliding, [height, width], kernel).ok_or_else(fail)
}

pub(super) fn max_pool(
    sliding: &Sliding,
    value: Value,
    machine: Machine<'_>,
) -> Result<Value, String> {
    let image = machine.floats(value)?;
    let windows = pool_windows(sliding, image.shape())?;
    let shape = pooled(sliding, image.shape())?;
    let mut out = vec![f32::NEG_INFINITY; element_count(&shape)?];
    let work = out.len() * windows.taps();
    let places = windows.places();
    machine.threads.for_work(work).rows(&mut out, places, |first, planes| {
        for (index, plane) in planes.chunks_exact_mut(places).enumerate() {
            let channel = windows.channel(image.data(), first + index);
            for tap in 0..windows.taps() {
                let keep = |most: &mut f32, pixel: f32| *most = most.max(pixel);
                machine.isa.vectorised(|| windows.each(tap, channel, plane, keep));
            }
        }
    });
    Ok(Value::F32(Array::new(shape, out)))
}

/// Windows over the channels of a picture.
struct Windows {
    image: [usize; 2],
    kernel: [usize; 2],
    strides: [usize; 2],
    dilations: [usize; 2],
    /// Rows above and columns left of the image.
    before: [usize; 2],
    /// How many windows there are, down and across.
    out: [usize; 2],
}

impl Windows {
    /// Nothing where no window fits.
    fn new(sliding: &Sliding, image: [usize; 2], kernel: [usize; 2]) -> Option<Self> {
        let (mut before, mut out) = ([0; 2], [0; 2]);
        if kernel.contains(&0) || sliding.kernel.is_some_and(|declared| declared != kernel) {
            return None;
        }
        for axis in 0..2 {
            let reach = sliding.dilations[axis].checked_mul(kernel[axis] - 1)?.checked_add(1)?;
            let [first, last] = sliding.pads_of(axis, image[axis], reach);
            let seen = image[axis].checked_add(first)?;
            let room = seen.checked_add(last)?.checked_sub(reach)?;
            let stride = sliding.strides[axis];
            let mut count = room / stride + 1;
            // One more that begins in the image or before it, although it ends beyond the pads.
            let is_more = !room.is_multiple_of(stride) && count.checked_mul(stride)? < seen;
            count += usize::from(sliding.ceil && is_more);
            (before[axis], out[axis]) = (first, count);
        }
        let Sliding { strides, dilations, .. } = *sliding;
        Some(Self { image, kernel, strides, dilations, before, out })
    }

    fn taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    fn places(&self) -> usize {
        self.out[0] * self.out[1]
    }

    fn channel_len(&self) -> usize {
        self.image[0] * self.image[1]
    }

    fn channel<'a>(&self, image: &'a [f32], index: usize) -> &'a [f32] {
        &image[index * self.channel_len()..][..self.channel_len()]
    }

    /// The pixel along `axis` that window `place` sees through tap `tap`, if it is in the image.
    fn pixel(&self, axis: usize, place: usize, tap: usize) -> Option<usize> {
        let at = place * self.strides[axis] + tap * self.dilations[axis];
        at.checked_sub(self.before[axis]).filter(|&pixel| pixel < self.image[axis])
    }

    /// Window `place` of the channels in `image` as a row of channel, row, column; zero outside.
    fn unroll(&self, image: &[f32], place: usize, row: &mut [f32]) {
        let (down, across) = (place / self.out[1], place % self.out[1]);
        let wide = self.kernel[1];
        let mut lines = row.chunks_exact_mut(wide);
        for channel in image.chunks_exact(self.channel_len()) {
            for (tap, line) in lines.by_ref().take(self.kernel[0]).enumerate() {
                let Some(y) = self.pixel(0, down, tap) else {
                    line.fill(0.0);
                    continue;
                };
                let pixels = &channel[y * self.image[1]..][..self.image[1]];
                let whole = self.pixel(1, across, 0).zip(self.pixel(1, across, wide - 1));
                match whole {
                    Some((first, last)) if self.dilations[1] == 1 => {
                        line.copy_from_slice(&pixels[first..=last]);
                    }
                    _ => {
                        for (tap, to) in line.iter_mut().enumerate() {
                            *to = self.pixel(1, across, tap).map_or(0.0, |x| pixels[x]);
                        }
                    }
                }
            }
        }
    }

    /// Calls `visit` with the number of `plane` for each window, and the pixel of `channel` that it sees
    /// through `tap`, where that is in the image.
    #[inline(always)]
    fn each(&self, tap: usize, channel: &[f32], plane: &mut [f32], visit: impl Fn(&mut f32, f32)) {
        let (tap_y, tap_x) = (tap / self.kernel[1], tap % self.kernel[1]);
        // The windows across that see a pixel are those from the first that does to the last.
        let sees = |across: &usize| self.pixel(1, *across, tap_x).is_some();
        let Some(first) = (0..self.out[1]).find(sees) else { return };
        let last = (first..self.out[1]).rfind(sees).unwrap_or(first);
        let start = self.pixel(1, first, tap_x).expect("it sees a pixel");
        for (down, line) in plane.chunks_exact_mut(self.out[1]).enumerate() {
            let Some(y) = self.pixel(0, down, tap_y) else { continue };
            let pixels = &channel[y * self.image[1]..][..self.image[1]][start..];
            let line = &mut line[first..=last];
            if self.strides[1] == 1 {
                line.iter_mut().zip(pixels).for_each(|(to, pixel)| visit(to, *pixel));
            } else {
                let pixels = pixels.iter().step_by(self.strides[1]);
                line.iter_mut().zip(pixels).for_each(|(to, pixel)| visit(to, *pixel));
            }
        }
    }
}
