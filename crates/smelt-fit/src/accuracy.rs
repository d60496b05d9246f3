//! Says what small weights cost models of a family in accuracy, as far as that was measured.
//!
//! The figures are those of `docs/figures.md` and of the demo's model.  Other models of a family may lose more or less,
//! so whose it is is said with each.

use serde::Serialize;

/// What a way of rounding cost a model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MeasuredCost {
    /// Mean divergence (KL) of its distributions from those of the checkpoint, in nats.
    pub kl_nats: f64,
    /// The model that was measured.
    pub of: &'static str,
}

/// The family of a decoder, its scheme, its method, and the divergence.
type Row = (&'static str, &'static str, &'static str, f64);

/// The demo's model, InternVL's shape with a decoder of Qwen2's family: 200 questions about pictures.
const SHAPES: [Row; 5] = [
    ("qwen2", "int8", "rtn", 0.000_004),
    ("qwen2", "int8-g32", "rtn", 0.000_004),
    ("qwen2", "int4-g32", "rtn", 0.000_149),
    ("qwen2", "int4-g128", "rtn", 0.000_280),
    ("qwen2", "int4-g128", "best", 0.000_164),
];

/// SmolLM2-135M-Instruct, of Llama's family: English texts.
const SMOLLM2: [Row; 2] =
    [("llama", "int4-g64", "rtn", 0.446), ("llama", "int4-g64", "best", 0.156)];

/// What rounding by `scheme` and `method` cost a model of the decoder's `family`; nothing where none was measured.
pub fn measured(family: &str, scheme: &str, method: &str) -> Option<MeasuredCost> {
    let of_model = |rows: &[Row], of| {
        let found = rows.iter().find(|row| (row.0, row.1, row.2) == (family, scheme, method));
        found.map(|&(.., kl_nats)| MeasuredCost { kl_nats, of })
    };
    of_model(&SHAPES, "the demo's model").or_else(|| of_model(&SMOLLM2, "SmolLM2-135M"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_is_said_of_whom_and_nothing_else_is() {
        let best = measured("qwen2", "int4-g128", "best").unwrap();
        assert_eq!((best.kl_nats, best.of), (0.000_164, "the demo's model"));
        assert_eq!(measured("llama", "int4-g64", "best").unwrap().of, "SmolLM2-135M");
        assert_eq!(measured("qwen3", "int4-g128", "best"), None);
        assert_eq!(measured("qwen2", "int4-g128", "gptq"), None);
    }
}
