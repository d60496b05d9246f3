//! Lists the tensors of a checkpoint for TensorRT-LLM, and of which of ours each is made.
//!
//! Names and shapes are those of its `QWenForCausalLM` and `LLaMAForCausalLM`: queries, keys and values are
//! one matrix, and what the activation meets is `mlp.fc`, the other `mlp.gate`.  What the format cannot
//! hold is refused here, before anything is written.  Reads no weights.

use super::TensorRtLlmError;
use super::config::is_qwen;
use super::rows::{FusedRows, Part};
use super::tiles::{TILE, Tiles};
use crate::checkpoint::{Checkpoint, PackedFacts};
use crate::decoder::{Decoder, EMBEDDING, LM_HEAD, PREFIX, Scaling};
use crate::dtype::Dtype;
use crate::safetensors::TensorSpec;

/// Inputs that share a scale where not all do.
pub(super) const GROUP: usize = 128;

/// What is written.
pub(super) struct WritePlan {
    pub(super) kind: Kind,
    /// Of all floats.
    pub(super) dtype: Dtype,
    /// The tensors, in the order of the file.
    pub(super) items: Vec<Item>,
}

/// One tensor.
pub(super) struct Item {
    pub(super) spec: TensorSpec,
    /// The rows of the canonical tensors that it is made of.
    pub(super) rows: FusedRows,
    pub(super) make: Make,
}

/// What becomes of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Make {
    Floats,
    /// Quants in the order of the kernels.
    Tiles(Tiles),
    /// The scale of each row.
    RowScales,
    /// The scales of groups, turned.
    GroupScales,
    /// What the zeros of groups add, turned.
    GroupZeros,
}

/// How the linear weights of the layers are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Floats,
    /// 8 bits, a scale for each output.
    Int8,
    /// 4 bits, a scale for each output.
    Int4,
    /// 4 bits, a scale and a zero for each group of inputs.
    Int4Groups,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Floats, Self::Int8, Self::Int4, Self::Int4Groups];

    /// The word of `quant_algo`.
    pub(super) fn algorithm(self) -> Option<&'static str> {
        match self {
            Self::Floats => None,
            Self::Int8 => Some("W8A16"),
            Self::Int4 => Some("W4A16"),
            Self::Int4Groups => Some("W4A16_GPTQ"),
        }
    }

    /// Whether it holds weights that are packed so.
    fn holds(self, facts: Option<&PackedFacts>) -> bool {
        let Some(facts) = facts else { return self == Self::Floats };
        let PackedFacts { bits, groups, group, has_zeros, shape, .. } = *facts;
        if facts.form.is_some() || facts.order.is_some() {
            return false;
        }
        match self {
            Self::Floats => false,
            Self::Int8 => bits == 8 && groups == 1 && !has_zeros,
            Self::Int4 => bits == 4 && groups == 1 && !has_zeros,
            Self::Int4Groups => bits == 4 && group == GROUP && groups * GROUP == shape[1],
        }
    }
}

/// Why no kind holds weights that are packed so.
fn unheld(facts: &PackedFacts) -> String {
    let PackedFacts { bits, group, ref order, form, .. } = *facts;
    if let Some(form) = form {
        let name = form.name;
        return format!("it is {name}; start from the unquantised checkpoint");
    }
    if order.is_some() {
        return "its columns were sorted (act-order); use another method, or checkpoint".to_owned();
    }
    format!(
        "it has {bits} bits and a scale for {group} inputs; use int8, int4, int4-g128 or int4-g128-asym"
    )
}

/// Decides what to write.
pub(super) fn plan(ckpt: &Checkpoint) -> Result<WritePlan, TensorRtLlmError> {
    let llm = ckpt.decoder()?;
    check_decoder(llm).map_err(|why| {
        let path = ckpt.path().into();
        TensorRtLlmError::OtherDecoder { path, why }
    })?;
    let layers: Vec<Linear> = (0..llm.layers).flat_map(|layer| linears(llm, layer)).collect();
    let kind = kind(ckpt, &layers)?;
    let dtype = match ckpt.packed_facts(EMBEDDING)? {
        None if ckpt.dtype(EMBEDDING)? == Dtype::BF16 && kind != Kind::Int4Groups => Dtype::BF16,
        _ => Dtype::F16,
    };
    let mut plan = WritePlan { kind, dtype, items: Vec::new() };
    let matrix = |name: &str| FusedRows { parts: vec![part(name, llm.vocab)], columns: llm.hidden };
    plan.floats("transformer.vocab_embedding.weight", matrix(EMBEDDING));
    for (layer, linears) in layers.chunks(LINEARS).enumerate() {
        plan.layer(llm, layer, linears)?;
    }
    plan.floats("transformer.ln_f.weight", vector(&format!("{PREFIX}.norm.weight"), llm.hidden));
    let head = if ckpt.has_lm_head() { LM_HEAD } else { EMBEDDING };
    plan.floats("lm_head.weight", matrix(head));
    Ok(plan)
}

/// Whether version 0.12 computes what the decoder does.
fn check_decoder(llm: &Decoder) -> Result<(), String> {
    let class = llm.family.architecture;
    if !is_qwen(llm) && class != "LlamaForCausalLM" {
        return Err(format!("it knows Qwen2ForCausalLM and LlamaForCausalLM, not {class}"));
    }
    if llm.q_width() != llm.hidden {
        let (heads, head_dim, hidden) = (llm.heads, llm.head_dim, llm.hidden);
        return Err(format!("its {heads} heads of {head_dim} are not its {hidden} channels"));
    }
    match llm.rope.scaling {
        None => Ok(()),
        Some(Scaling::Linear(factor)) if factor > 1.0 => Ok(()),
        Some(Scaling::Linear(factor)) => {
            Err(format!("its positions are stretched by {factor}, which must be more than 1"))
        }
        Some(Scaling::Llama3(_)) => Err("its positions are stretched by llama3".to_owned()),
        Some(Scaling::Yarn(_)) => Err("its positions are stretched by yarn".to_owned()),
    }
}

/// Linear weights of a layer.
const LINEARS: usize = 5;

/// A linear weight of TensorRT-LLM.
struct Linear {
    /// Its module in a layer.
    module: &'static str,
    /// The canonical modules whose rows it has.
    sources: Vec<String>,
    rows: FusedRows,
    has_bias: bool,
}

/// The linear weights of a layer, in the order of the file.
fn linears(llm: &Decoder, layer: usize) -> [Linear; LINEARS] {
    let (q, kv) = (llm.q_width(), llm.kv_width());
    let linear = |module, sources: &[(&str, usize)], columns, has_bias| {
        let path = |source: &str| format!("{PREFIX}.layers.{layer}.{source}");
        let weight =
            |(source, rows): &(&str, usize)| part(&format!("{}.weight", path(source)), *rows);
        Linear {
            module,
            sources: sources.iter().map(|(source, _)| path(source)).collect(),
            rows: FusedRows { parts: sources.iter().map(weight).collect(), columns },
            has_bias,
        }
    };
    let qkv = [("self_attn.q_proj", q), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv)];
    let (hidden, inner) = (llm.hidden, llm.intermediate);
    [
        linear("attention.qkv", &qkv, hidden, llm.qkv_bias()),
        linear("attention.dense", &[("self_attn.o_proj", hidden)], q, llm.attention_bias),
        linear("mlp.fc", &[("mlp.gate_proj", inner)], hidden, false),
        linear("mlp.gate", &[("mlp.up_proj", inner)], hidden, false),
        linear("mlp.proj", &[("mlp.down_proj", hidden)], inner, false),
    ]
}

/// The one kind that holds all the weights.
fn kind(ckpt: &Checkpoint, layers: &[Linear]) -> Result<Kind, TensorRtLlmError> {
    let mut kinds = Kind::ALL.to_vec();
    for part in layers.iter().flat_map(|linear| &linear.rows.parts) {
        let facts = ckpt.packed_facts(&part.name)?;
        if let Some(facts) = &facts
            && !Kind::ALL.iter().any(|kind| kind.holds(Some(facts)))
        {
            return Err(cannot_hold(&part.name, unheld(facts)));
        }
        kinds.retain(|kind| kind.holds(facts.as_ref()));
        if kinds.is_empty() {
            let why = "it is packed otherwise than the first layer; all layers must be alike";
            return Err(cannot_hold(&part.name, why.to_owned()));
        }
    }
    Ok(kinds[0])
}

impl WritePlan {
    fn put(&mut self, name: &str, dtype: Dtype, shape: Vec<usize>, rows: FusedRows, make: Make) {
        let spec = TensorSpec { name: name.to_owned(), dtype, shape };
        self.items.push(Item { spec, rows, make });
    }

    /// Floats of the shape that they have.
    fn floats(&mut self, name: &str, rows: FusedRows) {
        let count = rows.count();
        let shape = if rows.columns == 1 { vec![count] } else { vec![count, rows.columns] };
        self.put(name, self.dtype, shape, rows, Make::Floats);
    }

    fn layer(
        &mut self,
        llm: &Decoder,
        layer: usize,
        linears: &[Linear],
    ) -> Result<(), TensorRtLlmError> {
        let (from, to) =
            (format!("{PREFIX}.layers.{layer}"), format!("transformer.layers.{layer}"));
        for (name, source) in
            [("input_layernorm", "input_layernorm"), ("post_layernorm", "post_attention_layernorm")]
        {
            let norm = vector(&format!("{from}.{source}.weight"), llm.hidden);
            self.floats(&format!("{to}.{name}.weight"), norm);
        }
        for linear in linears {
            self.linear(&format!("{to}.{}", linear.module), linear)?;
        }
        Ok(())
    }

    fn linear(&mut self, module: &str, linear: &Linear) -> Result<(), TensorRtLlmError> {
        let (rows, weight) = (linear.rows.clone(), format!("{module}.weight"));
        let (height, width) = (rows.count(), rows.columns);
        if self.kind != Kind::Floats && !(height.is_multiple_of(TILE) && width.is_multiple_of(TILE))
        {
            let why =
                format!("{height}x{width} is not made of multiples of {TILE}; use --scheme none");
            return Err(cannot_hold(&rows.parts[0].name, why));
        }
        match self.kind {
            Kind::Floats => self.floats(&weight, rows),
            Kind::Int8 => self.by_row(module, rows, Tiles::INT8),
            Kind::Int4 => self.by_row(module, rows, Tiles::INT4),
            Kind::Int4Groups => self.by_group(module, rows),
        }
        if linear.has_bias {
            let bias =
                |(source, weight): (&String, &Part)| part(&format!("{source}.bias"), weight.rows);
            let parts = linear.sources.iter().zip(&linear.rows.parts).map(bias).collect();
            self.floats(&format!("{module}.bias"), FusedRows { parts, columns: 1 });
        }
        Ok(())
    }

    /// Quants with a scale for each row.
    fn by_row(&mut self, module: &str, rows: FusedRows, tiles: Tiles) {
        let (height, dtype) = (rows.count(), self.dtype);
        let shape = vec![rows.columns, tiles.row_bytes(height)];
        self.put(&format!("{module}.weight"), Dtype::I8, shape, rows.clone(), Make::Tiles(tiles));
        let scales = format!("{module}.per_channel_scale");
        self.put(&scales, dtype, vec![height], rows, Make::RowScales);
    }

    /// Quants with scales and zeros for groups, viewed as halves.
    fn by_group(&mut self, module: &str, rows: FusedRows) {
        let (height, dtype, tiles) = (rows.count(), self.dtype, Tiles::INT4);
        let halves = vec![rows.columns, tiles.row_bytes(height) / dtype.size_bytes()];
        self.put(&format!("{module}.weight"), dtype, halves, rows.clone(), Make::Tiles(tiles));
        for (name, make) in
            [("weights_scaling_factor", Make::GroupScales), ("zero", Make::GroupZeros)]
        {
            let shape = vec![rows.columns / GROUP, height];
            self.put(&format!("{module}.{name}"), dtype, shape, rows.clone(), make);
        }
    }
}

fn part(name: &str, rows: usize) -> Part {
    Part { name: name.to_owned(), rows }
}

fn vector(name: &str, length: usize) -> FusedRows {
    FusedRows { parts: vec![part(name, length)], columns: 1 }
}

fn cannot_hold(tensor: &str, why: String) -> TensorRtLlmError {
    TensorRtLlmError::CannotHold { tensor: tensor.to_owned(), why }
}
