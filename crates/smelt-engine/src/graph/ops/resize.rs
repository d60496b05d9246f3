//! Computes Resize: pictures, or anything else, made larger or smaller along some axes.
//!
//! One axis after another: each place of the result is one place of the input, or a blend of two.
//! Places are computed in f32, as ONNX Runtime does, so that roundings fall alike.

use super::super::array::{Array, Value, axis_of, element_count};
use super::super::op::{Blend, Resize, Rounding, Spot};
use super::{Inputs, Machine, list};

/// Up to two places of the input and the weight of the second.
#[derive(Clone, Copy)]
struct Tap {
    low: usize,
    high: usize,
    part: f32,
}

/// The shape that Resize gives, and the scale of every axis.
pub(in super::super) fn resized(
    resize: &Resize,
    from: &[usize],
    scales: Option<&[f32]>,
    sizes: Option<&[i64]>,
) -> Result<(Vec<usize>, Vec<f32>), String> {
    let axes: Vec<usize> = match &resize.axes {
        None => (0..from.len()).collect(),
        Some(axes) => axes.iter().map(|&a| axis_of(a, from.len())).collect::<Result<_, _>>()?,
    };
    let (mut shape, mut all) = (from.to_vec(), vec![1.0; from.len()]);
    let wrong = || format!("its scales or sizes do not fit {} axes", axes.len());
    match (scales, sizes) {
        (Some(scales), None) if scales.len() == axes.len() => {
            for (&axis, &scale) in axes.iter().zip(scales) {
                if !(scale.is_finite() && scale > 0.0) {
                    return Err(format!("{scale} is no scale"));
                }
                (shape[axis], all[axis]) = ((from[axis] as f32 * scale) as usize, scale);
            }
        }
        (None, Some(sizes)) if sizes.len() == axes.len() => {
            for (&axis, &size) in axes.iter().zip(sizes) {
                shape[axis] = super::layout::size(size)?;
                all[axis] = shape[axis] as f32 / from[axis].max(1) as f32;
            }
        }
        _ => return Err(wrong()),
    }
    let is_from_nothing = from.contains(&0) && !shape.contains(&0);
    if is_from_nothing {
        Err(format!("nothing of {from:?} can fill {shape:?}"))
    } else {
        Ok((shape, all))
    }
}

pub(super) fn resize(
    resize: &Resize,
    inputs: &mut Inputs,
    machine: Machine<'_>,
) -> Result<Value, String> {
    let image = machine.floats(inputs.take(0))?;
    // An empty list stands for one left out.
    let scales = inputs.optional(2).map(|scales| machine.floats(scales)).transpose()?;
    let scales = scales.filter(|scales| scales.len() > 0);
    let sizes = inputs.optional(3).map(list).transpose()?.filter(|sizes| !sizes.is_empty());
    let scales = scales.as_ref().map(Array::data);
    let (shape, scales) = resized(resize, image.shape(), scales, sizes.as_deref())?;
    element_count(&shape)?;
    let mut now = image;
    for axis in 0..shape.len() {
        if now.shape()[axis] != shape[axis] || scales[axis] != 1.0 {
            let taps: Vec<Tap> = (0..shape[axis])
                .map(|at| resize.tap(at, scales[axis], now.shape()[axis], shape[axis]))
                .collect();
            now = along(&now, axis, &taps, machine)?;
        }
    }
    Ok(Value::F32(now))
}

/// The array with the taps in the place of the entries of `axis`.
fn along(
    array: &Array<f32>,
    axis: usize,
    taps: &[Tap],
    machine: Machine<'_>,
) -> Result<Array<f32>, String> {
    let mut shape = array.shape().to_vec();
    let (from, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
    shape[axis] = taps.len();
    let mut out = vec![0.0; element_count(&shape)?];
    machine.threads.for_work(out.len()).rows(&mut out, inner, |first, rows| {
        for (index, row) in rows.chunks_exact_mut(inner).enumerate() {
            let (outer, at) = ((first + index) / taps.len(), (first + index) % taps.len());
            let line = |at: usize| &array.data()[(outer * from + at) * inner..][..inner];
            let Tap { low, high, part } = taps[at];
            if part == 0.0 {
                row.copy_from_slice(line(low));
                continue;
            }
            let pairs = line(low).iter().zip(line(high));
            machine.isa.vectorised(|| {
                for (to, (low, high)) in row.iter_mut().zip(pairs) {
                    *to = low * (1.0 - part) + high * part;
                }
            });
        }
    });
    Ok(Array::new(shape, out))
}

impl Resize {
    /// Where place `at` of `to` reads an axis of `from` entries.
    fn tap(&self, at: usize, scale: f32, from: usize, to: usize) -> Tap {
        let last = (from - 1) as f32;
        let spot = self.spot(at as f32, scale, from as f32, to);
        match self.blend {
            Blend::Nearest(rounding) => {
                let spot = match rounding {
                    Rounding::HalfDown => (spot - 0.5).ceil(),
                    Rounding::HalfUp => (spot + 0.5).floor(),
                    Rounding::Down => spot.floor(),
                    Rounding::Up => spot.ceil(),
                };
                let low = spot.clamp(0.0, last) as usize;
                Tap { low, high: low, part: 0.0 }
            }
            Blend::Linear => {
                let spot = spot.clamp(0.0, last);
                let low = spot.floor();
                let high = (low + 1.0).min(last);
                Tap { low: low as usize, high: high as usize, part: spot - low }
            }
        }
    }

    /// The place in the input, between entries perhaps, or outside.
    fn spot(&self, at: f32, scale: f32, from: f32, to: usize) -> f32 {
        match self.spot {
            _ if scale == 1.0 && from == to as f32 => at,
            Spot::Asymmetric => at / scale,
            Spot::HalfPixel => (at + 0.5) / scale - 0.5,
            Spot::TorchHalfPixel if to > 1 => (at + 0.5) / scale - 0.5,
            Spot::AlignedCorners if to > 1 => at * (from - 1.0) / (to as f32 - 1.0),
            Spot::TorchHalfPixel | Spot::AlignedCorners => 0.0,
        }
    }
}
