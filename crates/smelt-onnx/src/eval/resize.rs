//! Computes Resize: nearest and linear, by scales or by sizes.
//!
//! Sizes and places are computed in f32, as ONNX Runtime does: roundings show which it was.
//! Cubic and antialiased forms are refused: TensorRT 10.3 has neither, so nothing emits them.

use super::{Call, Tensor, Why, axis_of, strides, unravel};

/// One output place along one axis: up to two source places and their weights.
type Taps = [(usize, f64); 2];

impl Call<'_> {
    pub(super) fn resize(&self) -> Result<Tensor, Why> {
        let input = self.input(0)?;
        if self.flag("antialias", false) || self.optional(1).is_some_and(|roi| roi.elements() > 0) {
            return Err("regions and antialiasing are not known here".to_owned());
        }
        if self.text("keep_aspect_ratio_policy", "stretch") != "stretch" {
            return Err("only stretching is known here".to_owned());
        }
        let (dims, scales) = self.resized(input.dims())?;
        let elements = self.fits(&dims)?;
        let mut axes = Vec::new();
        for (at, size) in dims.iter().enumerate() {
            let taps = |x| self.taps(x, scales[at], input.dims()[at], *size);
            axes.push((0..*size).map(taps).collect::<Result<Vec<Taps>, Why>>()?);
        }
        let values = self.floats(0)?;
        let step = strides(input.dims());
        let mut index = vec![0; dims.len()];
        let mut result = Vec::with_capacity(elements);
        for flat in 0..elements {
            unravel(flat, &dims, &mut index);
            let taps: Vec<Taps> = index.iter().zip(&axes).map(|(i, axis)| axis[*i]).collect();
            result.push(blend(values, &step, &taps));
        }
        Ok(Tensor::floats(input.dtype(), &dims, result))
    }

    /// The result's shape, and the scale of every axis.
    fn resized(&self, from: &[usize]) -> Result<(Vec<usize>, Vec<f64>), Why> {
        let axes: Vec<usize> = match self.node.ints("axes") {
            None => (0..from.len()).collect(),
            Some(axes) => axes.iter().map(|a| axis_of(*a, from.len())).collect::<Result<_, _>>()?,
        };
        let (mut dims, mut scales) = (from.to_vec(), vec![1.0; from.len()]);
        let wrong = || format!("its sizes or scales do not fit {} axes", axes.len());
        if self.optional(2).is_some_and(|scales| scales.elements() > 0) {
            let given = self.floats(2)?;
            for (axis, scale) in axes.iter().zip(given) {
                scales[*axis] = *scale;
                dims[*axis] = (from[*axis] as f32 * *scale as f32) as usize;
            }
            return if given.len() == axes.len() { Ok((dims, scales)) } else { Err(wrong()) };
        }
        let given = self.sizes(3)?;
        for (axis, size) in axes.iter().zip(&given) {
            scales[*axis] = f64::from(*size as f32 / from[*axis] as f32);
            dims[*axis] = *size;
        }
        if given.len() == axes.len() { Ok((dims, scales)) } else { Err(wrong()) }
    }

    fn taps(&self, x: usize, scale: f64, from: usize, to: usize) -> Result<Taps, Why> {
        if from == to && scale == 1.0 {
            return Ok([(x, 1.0), (x, 0.0)]);
        }
        let (x, scale) = (x as f32, scale as f32);
        let place = match self.text("coordinate_transformation_mode", "half_pixel") {
            "half_pixel" => (x + 0.5) / scale - 0.5,
            "pytorch_half_pixel" if to > 1 => (x + 0.5) / scale - 0.5,
            "align_corners" if to > 1 => x * (from as f32 - 1.0) / (to as f32 - 1.0),
            "pytorch_half_pixel" | "align_corners" => 0.0,
            "asymmetric" => x / scale,
            other => return Err(format!("coordinates {other:?} are not known here")),
        };
        let place = f64::from(place);
        let inside = |place: f64| place.clamp(0.0, from as f64 - 1.0);
        match self.text("mode", "nearest") {
            "nearest" => {
                let place = match self.text("nearest_mode", "round_prefer_floor") {
                    "round_prefer_floor" => (place - 0.5).ceil(),
                    "round_prefer_ceil" => (place + 0.5).floor(),
                    "floor" => place.floor(),
                    "ceil" => place.ceil(),
                    other => return Err(format!("nearest mode {other:?} is not known here")),
                };
                Ok([(inside(place) as usize, 1.0), (0, 0.0)])
            }
            "linear" => {
                let (low, part) = (place.floor(), place - place.floor());
                Ok([(inside(low) as usize, 1.0 - part), (inside(low + 1.0) as usize, part)])
            }
            other => Err(format!("mode {other:?} is not known here")),
        }
    }
}

/// The weighted sum over all combinations of taps.
fn blend(values: &[f64], step: &[usize], taps: &[Taps]) -> f64 {
    let Some((first, rest)) = taps.split_first() else { return values[0] };
    let part = |(place, weight): (usize, f64)| match weight {
        0.0 => 0.0,
        _ => weight * blend(&values[place * step[0]..], &step[1..], rest),
    };
    first.iter().map(|tap| part(*tap)).sum()
}
