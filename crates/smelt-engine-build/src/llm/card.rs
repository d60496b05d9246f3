//! Builds a decoder for GPUs from a checkpoint: weights in the order in which tensor cores take them, kernels beside them.
//!
//! Weights keep their levels and scales wherever a kernel reads such; what none reads is multiplied out into halves.  One
//! strip of 64 rows goes through memory at a time.  Knows nothing of where checkpoints come from, or of cards.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::path::Path;

use smelt_backend::{KvType, Limits};
use smelt_cuda::decoder::{DecoderFile, DecoderWriter, KernelImage};
use smelt_cuda::kernels::form::{WeightForm, WeightPart};
use smelt_cuda::kernels::layout::{STRIP_ROWS, padded_columns, padded_rows};
use smelt_cuda::kernels::pack::{Strip, interleaved, pack_strip};
use smelt_cuda::kernels::page::HeadShape;
use smelt_cuda::kernels::source::KernelSet;
use smelt_cuda::tactics::ProductSize;
use smelt_model::checkpoint::{Checkpoint, CheckpointError};
use smelt_model::decoder::{Decoder, EMBEDDING, LM_HEAD};

use super::build::check_limits;
use crate::BuildError;
use source::{Rows, Source};

mod compare;
mod size;
mod source;

pub use compare::{OtherNumbers, compare_for_card, unlike_for_card};
pub use size::size_for_card;

/// What becomes a tensor of the engine.
enum Content {
    /// Floats as they are.
    Floats(Vec<f32>),
    /// Whole numbers.
    Words(Vec<u32>),
    /// A weight made of the rows of others.
    Weight(Weight),
}

/// A weight made of the rows of others, which are of one form.
struct Weight {
    sources: Vec<Source>,
    /// Whether rows of two sources take turns of eight.
    takes_turns: bool,
}

/// Builds an engine in `out_dir` from the language model of `checkpoint`, for cards that run `kernels`.
///
/// The same checkpoint, limits and kernels give the same bytes on every machine.  `progress` hears what is being done.
///
/// # Errors
/// When the limits are none, the checkpoint cannot be read, or writing fails.
pub fn build_for_card(
    checkpoint: &Checkpoint,
    limits: Limits,
    kernels: KernelImage<'_>,
    out_dir: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), BuildError> {
    let llm = checkpoint.decoder()?;
    check_limits(llm, limits).map_err(|problem| BuildError::Limits { problem })?;
    HeadShape::check(llm.head_dim).map_err(BuildError::Card)?;
    let write_error = |source: io::Error| BuildError::Write { dir: out_dir.to_owned(), source };
    let mut writer = DecoderWriter::create(out_dir).map_err(write_error)?;
    let names = names(checkpoint, llm)?;
    for (done, (name, what)) in names.iter().enumerate() {
        progress(&format!("[{done}/{}] packing {name}", names.len()));
        match what.read(checkpoint)? {
            Content::Floats(floats) => {
                let bytes: Vec<u8> =
                    floats.iter().flat_map(|number| number.to_le_bytes()).collect();
                put(&mut writer, name, "f32", &[floats.len()], &bytes).map_err(write_error)?;
            }
            Content::Words(words) => {
                let bytes: Vec<u8> = words.iter().flat_map(|number| number.to_le_bytes()).collect();
                put(&mut writer, name, "u32", &[words.len()], &bytes).map_err(write_error)?;
            }
            Content::Weight(weight) => {
                put_weight(&mut writer, name, &weight, checkpoint, &write_error)?;
            }
        }
    }
    writer.finish(sizes(llm, checkpoint.scheme_words(), limits), kernels).map_err(write_error)
}

/// The kernels that an engine of the language model of `checkpoint` needs, with keys and values of `kv`.
///
/// # Errors
/// When the checkpoint has no decoder or lacks a tensor.
pub fn kernel_set(checkpoint: &Checkpoint, kv: KvType) -> Result<KernelSet, CheckpointError> {
    let llm = checkpoint.decoder()?;
    let mut forms = BTreeSet::new();
    for (_, what) in names(checkpoint, llm)? {
        forms.extend(what.weight(checkpoint)?.map(|weight| weight.form()));
    }
    let head = HeadShape { dim: llm.head_dim, kind: kv };
    Ok(KernelSet { forms: forms.into_iter().collect(), head })
}

/// The products that an engine of `checkpoint` for GPUs multiplies, each size once.
///
/// # Errors
/// As [`kernel_set`].
pub fn products(checkpoint: &Checkpoint) -> Result<BTreeSet<ProductSize>, CheckpointError> {
    let llm = checkpoint.decoder()?;
    let mut sizes = BTreeSet::new();
    for (name, what) in names(checkpoint, llm)? {
        // Rows of an embedding are looked up, but where it is the head, too.
        let is_multiplied = name != "embedding" || !checkpoint.has_lm_head();
        let weight = what.weight(checkpoint)?.filter(|_| is_multiplied);
        sizes.extend(weight.map(|weight| ProductSize {
            form: weight.form(),
            rows: weight.rows() as u32,
            columns: padded_columns(weight.columns()) as u32,
        }));
    }
    Ok(sizes)
}

/// What a tensor of the engine is made of, before anything is read.
enum What {
    /// A vector, or several behind one another.
    Vectors(Vec<String>),
    Frequencies,
    Axes,
    /// The order of the columns of a weight.
    Order(String),
    Rows(Vec<String>),
    Turns([String; 2]),
}

impl What {
    /// The weight, where it is one.
    fn weight(&self, checkpoint: &Checkpoint) -> Result<Option<Weight>, CheckpointError> {
        match self {
            Self::Rows(names) => Weight::of(checkpoint, names, false).map(Some),
            Self::Turns(names) => Weight::of(checkpoint, names, true).map(Some),
            Self::Vectors(_) | Self::Frequencies | Self::Axes | Self::Order(_) => Ok(None),
        }
    }

    fn read(&self, checkpoint: &Checkpoint) -> Result<Content, CheckpointError> {
        let llm = checkpoint.decoder()?;
        Ok(match self {
            Self::Vectors(names) => {
                let all = names.iter().map(|name| checkpoint.read_f32(name));
                Content::Floats(all.collect::<Result<Vec<_>, _>>()?.concat())
            }
            Self::Frequencies => Content::Floats(llm.rope.frequencies(llm.head_dim)),
            Self::Axes => Content::Words(axes(llm)),
            Self::Order(name) => Content::Words(source::order(checkpoint, name)?),
            Self::Rows(names) => Content::Weight(Weight::of(checkpoint, names, false)?),
            Self::Turns(names) => Content::Weight(Weight::of(checkpoint, names, true)?),
        })
    }
}

/// Every tensor of the engine, in the order in which a pass reads them.
fn names(checkpoint: &Checkpoint, llm: &Decoder) -> Result<Vec<(String, What)>, CheckpointError> {
    let mut all = List { checkpoint, all: Vec::new() };
    all.push("rotary.frequencies", What::Frequencies);
    all.push("rotary.axes", What::Axes);
    all.weight("embedding", &[EMBEDDING.to_owned()])?;
    for index in 0..llm.layers {
        all.layer(llm, index)?;
    }
    all.vectors("norm", &["language_model.model.norm.weight".to_owned()]);
    if checkpoint.has_lm_head() {
        all.weight("head", &[LM_HEAD.to_owned()])?;
    }
    Ok(all.all)
}

struct List<'a> {
    checkpoint: &'a Checkpoint,
    all: Vec<(String, What)>,
}

impl List<'_> {
    fn push(&mut self, name: &str, what: What) {
        self.all.push((name.to_owned(), what));
    }

    fn vectors(&mut self, name: &str, names: &[String]) {
        self.push(name, What::Vectors(names.to_vec()));
    }

    /// The rows of weights behind one another, and the order of their columns, if they have one.
    fn weight(&mut self, name: &str, names: &[String]) -> Result<(), CheckpointError> {
        self.push(name, What::Rows(names.to_vec()));
        self.order(name, &names[0], Source::alike(self.checkpoint, names)?)
    }

    fn order(
        &mut self,
        name: &str,
        first: &str,
        sources: Vec<Source>,
    ) -> Result<(), CheckpointError> {
        if sources.first().is_some_and(|source| source.is_ordered()) {
            self.push(&format!("{name}_order"), What::Order(first.to_owned()));
        }
        Ok(())
    }

    fn layer(&mut self, llm: &Decoder, index: usize) -> Result<(), CheckpointError> {
        let stored = |part: &str| format!("language_model.model.layers.{index}.{part}");
        let own = |part: &str| format!("layers.{index}.{part}");
        self.vectors(&own("input_norm"), &[stored("input_layernorm.weight")]);
        self.projections(llm, index)?;
        if llm.family.qk_norm {
            self.vectors(&own("q_norm"), &[stored("self_attn.q_norm.weight")]);
            self.vectors(&own("k_norm"), &[stored("self_attn.k_norm.weight")]);
        }
        self.weight(&own("output"), &[stored("self_attn.o_proj.weight")])?;
        if llm.attention_bias {
            self.vectors(&own("output_bias"), &[stored("self_attn.o_proj.bias")]);
        }
        self.vectors(&own("mlp_norm"), &[stored("post_attention_layernorm.weight")]);
        let [gate, up] = ["gate", "up"].map(|part| stored(&format!("mlp.{part}_proj.weight")));
        let sources = Source::alike(self.checkpoint, &[gate.clone(), up.clone()])?;
        self.push(&own("gate_up"), What::Turns([gate.clone(), up]));
        self.order(&own("gate_up"), &gate, sources)?;
        self.weight(&own("down"), &[stored("mlp.down_proj.weight")])
    }

    /// Queries, keys and values: one weight where they are of one form, else three.
    fn projections(&mut self, llm: &Decoder, index: usize) -> Result<(), CheckpointError> {
        let parts = ["q", "k", "v"];
        let stored = |part: &str, end: &str| {
            format!("language_model.model.layers.{index}.self_attn.{part}_proj.{end}")
        };
        let weights = parts.map(|part| stored(part, "weight"));
        let biases = parts.map(|part| stored(part, "bias"));
        if Source::are_alike(self.checkpoint, &weights)? {
            self.weight(&format!("layers.{index}.qkv"), &weights)?;
            if llm.qkv_bias() {
                self.vectors(&format!("layers.{index}.qkv_bias"), &biases);
            }
            return Ok(());
        }
        for ((part, weight), bias) in parts.iter().zip(weights).zip(biases) {
            self.weight(&format!("layers.{index}.{part}"), &[weight])?;
            if llm.qkv_bias() {
                self.vectors(&format!("layers.{index}.{part}_bias"), &[bias]);
            }
        }
        Ok(())
    }
}

/// Which position turns each pair of a head.
fn axes(llm: &Decoder) -> Vec<u32> {
    match llm.rope.sections {
        Some(sections) => sections.axes().into_iter().map(|axis| axis as u32).collect(),
        None => vec![0; llm.head_dim / 2],
    }
}

fn put(
    writer: &mut DecoderWriter,
    name: &str,
    form: &str,
    shape: &[usize],
    bytes: &[u8],
) -> io::Result<()> {
    writer.begin(name, form, shape)?;
    writer.write(bytes)
}

/// Packs a weight strip by strip: its levels as they come, and what stands beside them, which is little, behind.
fn put_weight(
    writer: &mut DecoderWriter,
    name: &str,
    weight: &Weight,
    checkpoint: &Checkpoint,
    write_error: &dyn Fn(io::Error) -> BuildError,
) -> Result<(), BuildError> {
    let (form, rows, columns) = (weight.form(), weight.rows(), weight.columns());
    writer.begin(name, form.name, &[rows, columns]).map_err(write_error)?;
    let mut beside: Vec<(WeightPart, Vec<u8>)> = Vec::new();
    for strip in 0..padded_rows(rows) / STRIP_ROWS {
        let packed = weight.strip(checkpoint, strip)?;
        for (part, bytes) in packed.parts {
            if part == WeightPart::Levels {
                writer.write(&bytes).map_err(write_error)?;
                continue;
            }
            match beside.iter_mut().find(|(own, _)| *own == part) {
                Some((_, all)) => all.extend(bytes),
                None => beside.push((part, bytes)),
            }
        }
    }
    for (part, bytes) in beside {
        let name = format!("{name}{}", part.suffix());
        put(writer, &name, form.name, &[rows, columns], &bytes).map_err(write_error)?;
    }
    Ok(())
}

impl Weight {
    fn of(
        checkpoint: &Checkpoint,
        names: &[String],
        takes_turns: bool,
    ) -> Result<Self, CheckpointError> {
        Ok(Self { sources: Source::alike(checkpoint, names)?, takes_turns })
    }

    fn form(&self) -> WeightForm {
        self.sources[0].form
    }

    fn columns(&self) -> usize {
        self.sources[0].columns
    }

    /// Rows of the weight: where two take turns of eight, as many of each as fill those.
    fn rows(&self) -> usize {
        let all = self.sources.iter().map(|source| source.rows);
        if self.takes_turns { all.map(|rows| rows.next_multiple_of(8)).sum() } else { all.sum() }
    }

    /// Which row of which source a row is.
    fn place(&self, row: usize) -> Option<(usize, usize)> {
        let (at, row) = if self.takes_turns { interleaved(row) } else { self.behind(row)? };
        (row < self.sources[at].rows).then_some((at, row))
    }

    /// The same where sources lie behind one another.
    fn behind(&self, row: usize) -> Option<(usize, usize)> {
        let mut first = 0;
        for (at, source) in self.sources.iter().enumerate() {
            if row < first + source.rows {
                return Some((at, row - first));
            }
            first += source.rows;
        }
        None
    }

    /// Which rows of source `at` are in a strip.
    fn rows_in(&self, at: usize, strip: usize) -> Range<usize> {
        let place = |row: usize| self.place(strip * STRIP_ROWS + row);
        let own = (0..STRIP_ROWS).filter_map(place).filter(|(other, _)| *other == at);
        let (mut first, mut end) = (usize::MAX, 0);
        for (_, row) in own {
            (first, end) = (first.min(row), end.max(row + 1));
        }
        first.min(end)..end
    }

    /// Packs one strip.
    fn strip(&self, checkpoint: &Checkpoint, strip: usize) -> Result<Strip, CheckpointError> {
        let place = |row: usize| self.place(strip * STRIP_ROWS + row);
        let mut read = Vec::new();
        for (at, source) in self.sources.iter().enumerate() {
            let rows = self.rows_in(at, strip);
            read.push((rows.start, source.read(checkpoint, rows)?));
        }
        let row_of = |row: usize| {
            let (at, row) = place(row)?;
            let (first, rows): &(usize, Rows) = &read[at];
            Some((rows.view(&self.sources[at]), row - first))
        };
        Ok(pack_strip(self.form(), self.columns(), row_of))
    }
}

/// What `engine.json` says of an engine of `llm`.
fn sizes(llm: &Decoder, scheme: String, limits: Limits) -> DecoderFile {
    DecoderFile {
        family: llm.family.name.to_owned(),
        scheme,
        hidden: llm.hidden,
        layers: llm.layers,
        heads: llm.heads,
        kv_heads: llm.kv_heads,
        head_dim: llm.head_dim,
        intermediate: llm.intermediate,
        vocab: llm.vocab,
        eps: llm.eps,
        rotary_factor: llm.rope.attention_factor(),
        has_places: llm.rope.sections.is_some(),
        deepstack: llm.deepstack,
        limits,
        positions: Some(llm.max_positions),
    }
}
