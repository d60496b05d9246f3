//! Scales the inputs of a layer's linears, and what makes those inputs, by AWQ's search.
//!
//! A layer's name and its targets come in; what changes in each of its tensors goes out.  A set of
//! linears is scaled only if all of them, and the linear that makes their inputs, become integers.

use std::collections::BTreeMap;

use super::QuantizeError;
use super::awq::{ActivationStats, EXPONENTS, Search, fold, importance};
use super::group::{Rounder, UNCLIPPED};
use super::targets::Target;
use super::tensor::Change;
use crate::calibrate::Calibration;
use crate::checkpoint::Checkpoint;
use crate::dtype::Dtype;
use crate::in_order::in_order;

/// The f32 bytes of a block of rows under search.
const BLOCK_BYTES: usize = 256 << 10;

/// What changes in the tensors of one layer.
#[derive(Default)]
pub(super) struct Changes {
    /// How weights change before they are rounded.
    pub(super) weights: BTreeMap<String, Change>,
    /// The new bytes of norms and biases.
    pub(super) vectors: BTreeMap<String, Vec<u8>>,
    /// What errors of each input cost, where inputs were scaled.
    pub(super) importance: BTreeMap<String, Vec<f32>>,
}

/// Linears that share an input, and what makes it.
struct Set {
    linears: &'static [&'static str],
    /// A norm's weights, or a bias, divided by the scales where it is there.
    vector: &'static str,
    /// A linear whose rows are divided by the scales.
    before: Option<&'static str>,
}

/// The sets of a decoder layer, as AutoAWQ has them for Qwen and Llama.
const SETS: [Set; 4] = [
    Set {
        linears: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        vector: "input_layernorm.weight",
        before: None,
    },
    Set {
        linears: &["self_attn.o_proj"],
        vector: "self_attn.v_proj.bias",
        before: Some("self_attn.v_proj"),
    },
    Set {
        linears: &["mlp.gate_proj", "mlp.up_proj"],
        vector: "post_attention_layernorm.weight",
        before: None,
    },
    Set { linears: &["mlp.down_proj"], vector: "", before: Some("mlp.up_proj") },
];

/// What the search reads.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) ckpt: &'a Checkpoint,
    pub(super) calibration: &'a Calibration,
    pub(super) threads: usize,
}

impl Source<'_> {
    /// What was seen of the input of the weight `linear`, `width` channels wide.
    pub(super) fn seen(
        &self,
        linear: &str,
        width: usize,
    ) -> Result<ActivationStats, QuantizeError> {
        let input = self.calibration.input_of(linear, width)?;
        let mean = self.calibration.mean(input)?;
        let rows = self.calibration.activations(input)?;
        let mut square = vec![0.0; width];
        for row in rows.chunks(width) {
            square.iter_mut().zip(row).for_each(|(sum, x)| *sum += x * x);
        }
        let count = self.calibration.rows() as f32;
        square.iter_mut().for_each(|sum| *sum /= count);
        Ok(ActivationStats { mean, square })
    }

    /// The changes of the layer that `targets` are the tensors of.
    pub(super) fn changes(
        &self,
        layer: &str,
        targets: &[Target],
    ) -> Result<Changes, QuantizeError> {
        let mut changes = Changes::default();
        let find =
            |rest: &str| targets.iter().find(|target| target.name == format!("{layer}.{rest}"));
        for set in &SETS {
            let weight = |name: &&str| find(&format!("{name}.weight"));
            let linears: Option<Vec<&Target>> = set.linears.iter().map(weight).collect();
            let Some(linears) = linears else { continue };
            let before = set.before.map(|name| weight(&name));
            let is_rounded = |target: &&Target| target.grid().is_some();
            let makes_inputs = match before {
                None => true,
                Some(None) => false,
                Some(Some(before)) => is_rounded(&before) && before.shape[0] == linears[0].shape[1],
            };
            if !makes_inputs || !linears.iter().all(is_rounded) {
                continue;
            }
            self.scale(&linears, before.flatten(), find(set.vector), &mut changes)?;
        }
        Ok(changes)
    }

    /// Searches the scales of `linears` and enters what they change.
    fn scale(
        &self,
        linears: &[&Target],
        before: Option<&Target>,
        vector: Option<&Target>,
        changes: &mut Changes,
    ) -> Result<(), QuantizeError> {
        let seen = self.seen(&linears[0].name, linears[0].shape[1])?;
        let search = Search::new(&seen);
        let mut costs = [0.0; EXPONENTS];
        for linear in linears {
            self.weigh(linear, &search, &mut costs)?;
        }
        let mut scales = search.best(&costs);
        if let Some(vector) = vector {
            let mut values = self.ckpt.read_f32(&vector.source)?;
            fold(&mut values, &mut scales, vector.dtype);
            changes.vectors.insert(vector.name.clone(), bytes(vector.dtype, &values));
        }
        let importance = importance(&seen, &scales);
        for linear in linears {
            changes.importance.insert(linear.name.clone(), importance.clone());
            let change = changes.weights.entry(linear.name.clone()).or_default();
            change.columns = Some(scales.clone());
        }
        if let Some(before) = before {
            changes.weights.entry(before.name.clone()).or_default().rows = Some(scales);
        }
        Ok(())
    }

    /// Adds what rounding `linear` costs under each candidate.
    fn weigh(
        &self,
        linear: &Target,
        search: &Search,
        costs: &mut [f64; EXPONENTS],
    ) -> Result<(), QuantizeError> {
        let Some(grid) = linear.grid() else { return Ok(()) };
        let rounder = Rounder { grid, clips: UNCLIPPED };
        let (rows, width) = (linear.shape[0], linear.shape[1]);
        let step = (BLOCK_BYTES / size_of::<f32>() / width).max(1);
        let make = |scratch: &mut (Vec<f32>, [f64; EXPONENTS]), index: usize| {
            let first = index * step;
            self.ckpt.read_rows_f32(
                &linear.source,
                first..rows.min(first + step),
                &mut scratch.0,
            )?;
            scratch.1 = [0.0; EXPONENTS];
            search.weigh(&scratch.0, rounder, &mut scratch.1).map_err(|row| {
                let (tensor, row) = (linear.source.clone(), first + row);
                QuantizeError::NotFinite { tensor, row }
            })
        };
        let take = |scratch: &mut (Vec<f32>, [f64; EXPONENTS])| {
            costs.iter_mut().zip(&scratch.1).for_each(|(cost, part)| *cost += part);
            Ok(())
        };
        in_order(rows.div_ceil(step), self.threads, make, take)
    }
}

fn bytes(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    dtype.narrow(values).expect("a checkpoint's norms and biases are floats").0
}
