//! Computes QuantizeLinear and DequantizeLinear: one scale, one along an axis, or one a block.
//!
//! Written from the standard's definitions of operator sets 13 to 21.

use super::{Call, Tensor, Why, axis_of};
use crate::ElementType;

/// Which scale an element of the input takes.
struct Scales {
    /// Elements between two neighbours along the axis.
    step: usize,
    /// Elements along the axis.
    size: usize,
    /// Neighbours that share a scale.
    block: usize,
    /// Scales along the axis.
    blocks: usize,
    /// Whether places off the axis have scales of their own.
    everywhere: bool,
}

impl Scales {
    fn of(&self, flat: usize) -> usize {
        let block = flat / self.step % self.size / self.block;
        if !self.everywhere {
            return block;
        }
        (flat / (self.step * self.size) * self.blocks + block) * self.step + flat % self.step
    }
}

impl Call<'_> {
    pub(super) fn dequantize(&self) -> Result<Tensor, Why> {
        let input = self.input(0)?;
        let scale = self.floats(1)?;
        let zero = self.optional(2).map(|_| self.ints(2)).transpose()?;
        let scales = self.scales(input)?;
        let real = |(flat, value): (usize, &i64)| {
            let at = scales.of(flat);
            (*value - zero.map_or(0, |zero| zero[at])) as f64 * scale[at]
        };
        let values = self.ints(0)?.iter().enumerate().map(real).collect();
        Ok(Tensor::floats(self.input(1)?.dtype(), input.dims(), values))
    }

    pub(super) fn quantize(&self) -> Result<Tensor, Why> {
        let input = self.input(0)?;
        let scale = self.floats(1)?;
        let zero = self.optional(2).map(|_| self.ints(2)).transpose()?;
        let dtype = self.quantised_type()?;
        let (low, high) = limits(dtype)?;
        let scales = self.scales(input)?;
        let code = |(flat, value): (usize, &f64)| {
            let at = scales.of(flat);
            let zero = zero.map_or(0, |zero| zero[at]) as f64;
            ((value / scale[at]).round_ties_even() + zero).clamp(low, high) as i64
        };
        let values = self.floats(0)?.iter().enumerate().map(code).collect();
        Ok(Tensor::ints(dtype, input.dims(), values))
    }

    /// The type QuantizeLinear gives: that of the zero point, else `output_dtype`, else u8.
    fn quantised_type(&self) -> Result<ElementType, Why> {
        if let Some(zero) = self.optional(2) {
            return Ok(zero.dtype());
        }
        match self.node.int("output_dtype") {
            None | Some(0) => Ok(ElementType::U8),
            Some(number) => i32::try_from(number)
                .ok()
                .and_then(ElementType::from_number)
                .ok_or_else(|| format!("it quantises to ONNX type {number}")),
        }
    }

    fn scales(&self, input: &Tensor) -> Result<Scales, Why> {
        let scale = self.input(1)?;
        if let Some(zero) = self.optional(2)
            && zero.elements() != scale.elements()
        {
            return Err("scales and zero points differ in number".to_owned());
        }
        let one = Scales { step: 1, size: 1, block: 1, blocks: 1, everywhere: false };
        let block = self.node.int("block_size").unwrap_or(0);
        if block == 0 && scale.dims().len() <= 1 && scale.elements() == 1 {
            return Ok(one);
        }
        let axis = axis_of(self.node.int("axis").unwrap_or(1), input.dims().len())?;
        let (size, step) = (input.dims()[axis], input.dims()[axis + 1..].iter().product());
        if block == 0 {
            if scale.dims() != [size] {
                return Err(format!("scales {:?} do not fit an axis of {size}", scale.dims()));
            }
            return Ok(Scales { step, size, block: 1, blocks: size, everywhere: false });
        }
        let block = usize::try_from(block).map_err(|_| format!("block size {block}"))?;
        let blocks = size.div_ceil(block);
        let mut expect = input.dims().to_vec();
        expect[axis] = blocks;
        if scale.dims() != expect {
            return Err(format!("scales {:?} are not blocks {expect:?}", scale.dims()));
        }
        Ok(Scales { step, size, block, blocks, everywhere: true })
    }
}

/// The smallest and largest code of a type.
fn limits(dtype: ElementType) -> Result<(f64, f64), Why> {
    use ElementType::{I4, I8, I16, U4, U8, U16};
    match dtype {
        I4 => Ok((-8.0, 7.0)),
        U4 => Ok((0.0, 15.0)),
        I8 => Ok((-128.0, 127.0)),
        U8 => Ok((0.0, 255.0)),
        I16 => Ok((-32768.0, 32767.0)),
        U16 => Ok((0.0, 65535.0)),
        other => Err(format!("it quantises to {other}, which is not known here")),
    }
}
