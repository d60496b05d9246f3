//! Opens a checkpoint directory whose configuration and tensors agree, and serves its weights.
//!
//! config.json says which tensors there must be; the safetensors header says which there are.  Any
//! difference is refused at opening, so that readers never meet a missing or misshapen tensor.
//! Rows are widened to f32 on the way out, integers into what they stand for.  Keeps no weight in
//! memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use smelt_tensor::packed::BlockForm;

use crate::decoder::{self, Decoder, DecoderFamily, FIRST_NORM, LM_HEAD};
use crate::dtype::Dtype;
use crate::families::bert::CLASSIFIER;
use crate::families::internvl3::InternVl3;
use crate::foreign::{Expected, recognise};
use crate::model::{Layout, Model, ModelPart, Tile, Vision};
use crate::packed::gguf::names::LAYOUT as GGUF_LAYOUT;
use crate::packed::gguf::{self, Gguf, SideFile};
use crate::packed::quantization::Quantization;
use crate::safetensors::{SafetensorsError, Shards, Tensor};
use crate::scheme::{self, Mark, Scheme};

mod described;
mod error;
mod packed_rows;
mod packing;
#[cfg(test)]
mod tests;
mod weight;

pub use error::CheckpointError;
use packing::{PackedWeight, Packing};
pub(crate) use weight::PackedFacts;
pub use weight::Weight;

/// The one file of weights.
pub const WEIGHTS_FILE: &str = "model.safetensors";

/// What says which file holds which weight where there are several.
pub const INDEX_FILE: &str = "model.safetensors.index.json";

/// The model's configuration.
pub const CONFIG_FILE: &str = "config.json";

/// The longest JSON side file read; real ones are a few KiB, and a wrong path costs no more memory.
pub const JSON_BYTES_MAX: u64 = 4 << 20;

/// The most f32 bytes [`Checkpoint::read_f32`] returns.  Biases, norms and position embeddings fit;
/// a larger tensor belongs in blocks of rows.
pub const WHOLE_TENSOR_BYTES_MAX: usize = 16 << 20;

/// Stored bytes widened at a time.
const CHUNK_BYTES: usize = 256 << 10;

/// The name ending of the scales that belong to a packed weight.
pub(crate) const SCALE_SUFFIX: &str = "_scale";

/// The name ending of its zeros.
pub(crate) const ZERO_SUFFIX: &str = "_zero";

/// The name ending of the order of its columns.
pub(crate) const ORDER_SUFFIX: &str = "_order";

/// The name ending of what is above four bits of its quants.
pub(crate) const HIGH_SUFFIX: &str = "_high";

/// The name ending of the factors that make scales of `_scale`.
pub(crate) const FACTOR_SUFFIX: &str = "_factor";

/// The name ending of its minima.
pub(crate) const MIN_SUFFIX: &str = "_min";

/// The name ending of the factors that make minima of `_min`.
pub(crate) const MIN_FACTOR_SUFFIX: &str = "_min_factor";

/// What may stand beside the quants of a weight, scales first.
const SUFFIXES: [&str; 7] = [
    SCALE_SUFFIX,
    FACTOR_SUFFIX,
    MIN_SUFFIX,
    MIN_FACTOR_SUFFIX,
    HIGH_SUFFIX,
    ZERO_SUFFIX,
    ORDER_SUFFIX,
];

/// An open checkpoint: every tensor its configuration calls for is there, and no other.
#[derive(Debug)]
pub struct Checkpoint {
    /// What was opened: a directory, or a GGUF file.
    path: PathBuf,
    dir: PathBuf,
    model: Model,
    /// The text of the configuration.
    config: String,
    files: Shards,
    /// How `files` names the tensors.
    layout: Layout,
    /// How `files` stores weights that are no floats.
    packing: Packing,
    /// Every tensor of the model, by its canonical name.
    weights: BTreeMap<String, Weight>,
    /// What [`quantize`](crate::quantize::quantize) said of the language model it wrote, which is
    /// all there is then.
    mark: Option<Mark>,
    warnings: Vec<String>,
}

impl Checkpoint {
    /// Opens the checkpoint in `dir`: an original one, one that AWQ, GPTQ or compressed-tensors
    /// quantised, one that [`quantize`](crate::quantize::quantize) wrote, or a GGUF file (its path, or that
    /// of a directory that holds it, all parts of it where it is split, and no other weights).
    ///
    /// # Errors
    /// [`CheckpointError`] naming the file and the field or tensor that is wrong.
    pub fn open(dir: &Path) -> Result<Self, CheckpointError> {
        if let Some(file) = gguf_file(dir)? {
            return Self::open_gguf(&file);
        }
        let path = dir.join(CONFIG_FILE);
        let config = read_text(&path)?;
        let packing = packing_of(&config, &path)?;
        let model = Model::parse(&config, &path)?;
        let mark = read_mark(&dir.join(scheme::MARK_FILE))?;
        let files = open_weights(dir)?;
        // What smelt quantised has the canonical names, whatever configuration was copied to it.
        let (layout, packing) = match mark {
            Some(_) => (Layout::CANONICAL, Packing::Canonical),
            None => (closest_layout(&model, &files), packing),
        };
        let (path, dir) = (dir.to_owned(), dir.to_owned());
        let (weights, warnings) = (BTreeMap::new(), Vec::new());
        let checkpoint =
            Self { path, dir, model, config, files, layout, packing, weights, mark, warnings };
        checkpoint.with_weights()
    }

    /// Opens the GGUF file at `path`.
    fn open_gguf(path: &Path) -> Result<Self, CheckpointError> {
        let (gguf, files) = Gguf::open(path)?;
        let config = gguf.config.clone();
        let model = Model::parse(&config, path)?;
        let head_dim = model.llm.as_ref().map_or(1, |llm| llm.head_dim);
        let checkpoint = Self {
            path: path.to_owned(),
            dir: path
                .parent()
                .filter(|dir| !dir.as_os_str().is_empty())
                .unwrap_or(Path::new("."))
                .to_owned(),
            model,
            config,
            files,
            layout: GGUF_LAYOUT,
            packing: Packing::Gguf(gguf, head_dim),
            weights: BTreeMap::new(),
            mark: None,
            warnings: Vec::new(),
        };
        checkpoint.with_weights()
    }

    fn with_weights(mut self) -> Result<Self, CheckpointError> {
        self.weights = self.find_weights()?;
        Ok(self)
    }

    /// What holds the weights, for messages: the directory, or the GGUF file itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory of the side files; for a GGUF file, the one it lies in.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What the configuration describes.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The text of the configuration; for a GGUF file, one made of its metadata.
    pub fn config(&self) -> &str {
        &self.config
    }

    /// What a GGUF file holds of what other checkpoints have beside their weights: the files of its
    /// tokenizer and chat template.  A file that lies beside it counts instead.
    ///
    /// # Errors
    /// [`CheckpointError::Gguf`] naming the entry that is missing, wrong or not read.
    pub fn made_files(&self) -> Result<Vec<SideFile>, CheckpointError> {
        if !matches!(self.packing, Packing::Gguf(..)) {
            return Ok(Vec::new());
        }
        Ok(gguf::side_files(&self.path, &|name| !self.dir.join(name).exists())?)
    }

    /// What the user should know of the weights, a line each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Whether weights of the language model are stored as integers, whoever made them.
    pub fn is_packed(&self) -> bool {
        self.weights.values().any(|weight| weight.packed.is_some())
    }

    /// The word for how most of the packed linear weights are stored, for example
    /// `int4-g128-asym`; `none` if none is.
    pub fn scheme_words(&self) -> String {
        let linears = self.weights.values().filter(|weight| is_linear(&weight.name));
        let packed = linears.filter_map(|weight| {
            let columns = *weight.logical.last()?;
            weight.packed.as_ref().map(|packed| packed.words(columns))
        });
        let mut counts = BTreeMap::<String, usize>::new();
        packed.for_each(|words| *counts.entry(words).or_default() += 1);
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        most.map_or_else(|| Scheme::None.name().to_owned(), |(words, _)| words)
    }

    /// The canonical tensors that tensor `name` consists of: itself, and behind it the scales,
    /// zeros, order and whatever else belongs to a packed weight.
    ///
    /// # Errors
    /// [`CheckpointError::UnknownTensor`].
    pub fn parts(&self, name: &str) -> Result<Vec<&Weight>, CheckpointError> {
        let mut parts = vec![self.tensor(name)?];
        parts.extend(SUFFIXES.iter().filter_map(|end| self.weights.get(&format!("{name}{end}"))));
        Ok(parts)
    }

    /// The form of weight `name`, if it is packed in one of those of ggml's blocks.
    ///
    /// # Errors
    /// [`CheckpointError::UnknownTensor`].
    pub fn form(&self, name: &str) -> Result<Option<BlockForm>, CheckpointError> {
        Ok(self.tensor(name)?.packed.as_ref().and_then(|packed| packed.form))
    }

    /// How the weight `name` is packed; nothing if it is floats.
    ///
    /// # Errors
    /// [`CheckpointError::UnknownTensor`].
    pub(crate) fn packed_facts(&self, name: &str) -> Result<Option<PackedFacts>, CheckpointError> {
        let weight = self.tensor(name)?;
        let (Some(packed), &[rows, columns]) = (&weight.packed, weight.logical.as_slice()) else {
            return Ok(None);
        };
        Ok(Some(PackedFacts::of(packed, [rows, columns])))
    }

    /// The names under which another checkpoint of this layout stores the tensor `name`; GGUF's are
    /// known to GGUF files alone, so there they are those of the family.
    pub(crate) fn names_of(&self, name: &str) -> Vec<String> {
        match (&self.packing, self.model.layouts.first()) {
            (Packing::Gguf(..), Some(layout)) => (layout.sources)(name),
            _ => self.sources(name),
        }
    }

    /// The language model's family and sizes.
    ///
    /// # Errors
    /// [`CheckpointError::NoPart`] if the model has none.
    pub fn decoder(&self) -> Result<&Decoder, CheckpointError> {
        self.model.llm.as_ref().ok_or_else(|| self.no_part(ModelPart::Llm))
    }

    /// The vision tower, whether or not its weights are here.
    ///
    /// # Errors
    /// [`CheckpointError::NoPart`] if the model has none.
    pub fn vision(&self) -> Result<&Vision, CheckpointError> {
        self.model.vision.as_ref().ok_or_else(|| self.no_part(ModelPart::Vision))
    }

    /// The tile of a vision tower that takes tiles of one size, whether or not its weights are here.
    ///
    /// # Errors
    /// [`CheckpointError::NoPart`] if the model has no such tower.
    pub fn tile(&self) -> Result<Tile, CheckpointError> {
        self.vision()?.tile().ok_or_else(|| self.no_part(ModelPart::Vision))
    }

    /// The facts of an InternVL3 vision tower, whether or not its weights are here.
    ///
    /// # Errors
    /// [`CheckpointError::NoPart`] if the model has no such tower.
    pub fn internvl3(&self) -> Result<&InternVl3, CheckpointError> {
        match &self.model.vision {
            Some(Vision::InternVit(tower)) => Ok(tower),
            _ => Err(self.no_part(ModelPart::Vision)),
        }
    }

    /// The refusal of a checkpoint whose model lacks `part`.
    pub(crate) fn no_part(&self, part: ModelPart) -> CheckpointError {
        let (path, part, family) = (self.path.clone(), part.words(), self.model.family);
        CheckpointError::NoPart { path, part, family }
    }

    /// Whether the language model's head is stored; if not, the embedding serves as the head.
    ///
    /// The file decides, not `tie_word_embeddings`: published configurations contradict themselves.
    pub fn has_lm_head(&self) -> bool {
        self.is_stored(LM_HEAD)
    }

    /// Whether the tensors of `part` are stored.
    pub fn has(&self, part: ModelPart) -> bool {
        match part {
            ModelPart::Head => self.has_lm_head(),
            ModelPart::Llm => self.model.llm.is_some(),
            ModelPart::Vision => self.model.vision.is_some() && !self.is_quantized(),
            ModelPart::Encoder => self.model.encoder.is_some() && !self.is_quantized(),
            ModelPart::Classifier => {
                self.model.parts().contains(&part)
                    && self.is_stored(&format!("{CLASSIFIER}.weight"))
            }
        }
    }

    /// Whether [`quantize`](crate::quantize::quantize) wrote it.
    pub fn is_quantized(&self) -> bool {
        self.mark.is_some()
    }

    /// How the language model's linear weights are stored.
    pub fn scheme(&self) -> Scheme {
        self.mark.as_ref().map_or(Scheme::None, |mark| mark.scheme)
    }

    /// The tensors of the model by name, in canonical form, a packed weight's scales, zeros and
    /// order included.
    pub fn tensors(&self) -> impl Iterator<Item = &Weight> {
        self.weights.values()
    }

    /// The shape of tensor `name` in the model: `[out, in]` for a weight, however it is packed.
    ///
    /// # Errors
    /// [`CheckpointError::UnknownTensor`].
    pub fn shape(&self, name: &str) -> Result<&[usize], CheckpointError> {
        Ok(&self.tensor(name)?.logical)
    }

    /// The element type of tensor `name` in canonical form.
    ///
    /// # Errors
    /// [`CheckpointError::UnknownTensor`].
    pub fn dtype(&self, name: &str) -> Result<Dtype, CheckpointError> {
        Ok(self.tensor(name)?.dtype)
    }

    /// Fills `out` with the bytes of tensor `name`, in canonical form, from `byte_offset` on.
    ///
    /// # Errors
    /// [`CheckpointError::UnknownTensor`], or the reader's if the tensor has no such bytes.
    pub fn read_bytes(
        &self,
        name: &str,
        byte_offset: u64,
        out: &mut [u8],
    ) -> Result<(), CheckpointError> {
        self.read_at(self.tensor(name)?, byte_offset, out)
    }

    /// Fills `out` as [`Checkpoint::read_bytes`] does with whole elements, and refuses floats that
    /// are NaN or infinite.
    ///
    /// # Errors
    /// Those of [`Checkpoint::read_bytes`], or [`CheckpointError::NotFinite`].
    pub(crate) fn read_finite(
        &self,
        name: &str,
        byte_offset: u64,
        out: &mut [u8],
    ) -> Result<(), CheckpointError> {
        let weight = self.tensor(name)?;
        self.read_at(weight, byte_offset, out)?;
        let Some(at) = weight.dtype.first_not_finite(out) else { return Ok(()) };
        let element = byte_offset / weight.dtype.size_bytes() as u64 + at as u64;
        let (path, tensor) = (self.files.path().into(), name.to_owned());
        Err(CheckpointError::NotFinite { path, tensor, element })
    }

    fn read_at(&self, weight: &Weight, at: u64, out: &mut [u8]) -> Result<(), CheckpointError> {
        if weight.is_described() {
            let (path, shape) = (self.files.path().into(), weight.logical.clone());
            let tensor = weight.name.clone();
            return Err(CheckpointError::MissingTensor { path, tensor, shape });
        }
        let size = weight.size_bytes();
        let is_outside = at.checked_add(out.len() as u64).is_none_or(|end| end > size);
        if weight.is_made() && is_outside {
            let (path, tensor) = (self.files.path().into(), weight.name.clone());
            let (offset, bytes) = (at, out.len());
            return Err(
                SafetensorsError::OutsideTensor { path, tensor, offset, bytes, size }.into()
            );
        }
        Ok(weight.read_at(&self.files, at, out)?)
    }

    /// Puts `rows` of the first dimension of tensor `name` into `out` as f32, row after row with
    /// the other dimensions flattened: `[rows, elements / shape[0]]`.
    ///
    /// `out` is cleared first.  F16 and BF16 are widened; packed weights are multiplied out, in the
    /// order of the input channels.
    ///
    /// # Errors
    /// [`CheckpointError::UnknownTensor`], [`CheckpointError::NoSuchRows`], or the reader's.
    pub fn read_rows_f32(
        &self,
        name: &str,
        rows: Range<usize>,
        out: &mut Vec<f32>,
    ) -> Result<(), CheckpointError> {
        self.read_rows_through(name, rows, &mut Vec::new(), out)
    }

    /// [`Checkpoint::read_rows_f32`] with a buffer for stored bytes that serves many calls.
    pub(crate) fn read_rows_through(
        &self,
        name: &str,
        rows: Range<usize>,
        stored: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<(), CheckpointError> {
        let tensor = self.tensor(name)?;
        let count = tensor.logical.first().copied().unwrap_or(1);
        if rows.start > rows.end || rows.end > count {
            return Err(self.no_such_rows(name, count, rows));
        }
        let width = tensor.logical.iter().skip(1).product::<usize>();
        out.clear();
        out.reserve(rows.len() * width);
        if tensor.packed.is_some() {
            return self.read_packed(tensor, rows, width, stored, out);
        }
        self.read_elements(tensor, rows.start * width..rows.end * width, stored, out)
    }

    /// The values of tensor `name` as f32, for tensors of at most [`WHOLE_TENSOR_BYTES_MAX`].
    ///
    /// # Errors
    /// [`CheckpointError::UnknownTensor`], [`CheckpointError::TooLarge`], or the reader's.
    pub fn read_f32(&self, name: &str) -> Result<Vec<f32>, CheckpointError> {
        let tensor = self.tensor(name)?;
        let elements = tensor.logical.iter().product::<usize>();
        let bytes = elements.saturating_mul(size_of::<f32>());
        if bytes > WHOLE_TENSOR_BYTES_MAX {
            let path = self.files.path().into();
            return Err(CheckpointError::TooLarge { path, tensor: name.to_owned(), bytes });
        }
        let mut out = Vec::new();
        self.read_rows_f32(name, 0..tensor.logical.first().copied().unwrap_or(1), &mut out)?;
        Ok(out)
    }

    /// Appends the elements in `range`, widened, reading one chunk of stored bytes at a time.
    fn read_elements(
        &self,
        tensor: &Weight,
        range: Range<usize>,
        stored: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<(), CheckpointError> {
        let size = tensor.dtype.size_bytes();
        stored.resize(CHUNK_BYTES.min(range.len() * size), 0);
        let (mut at, end) = (range.start * size, range.end * size);
        while at < end {
            let part = stored.len().min(end - at);
            let bytes = &mut stored[..part];
            self.read_at(tensor, at as u64, bytes)?;
            if !tensor.dtype.widen(bytes, out) {
                return Err(self.wrong_dtype(&tensor.name, tensor.dtype, FLOATS));
            }
            at += part;
        }
        Ok(())
    }

    fn tensor(&self, name: &str) -> Result<&Weight, CheckpointError> {
        self.weights.get(name).ok_or_else(|| CheckpointError::UnknownTensor {
            path: self.files.path().into(),
            tensor: name.to_owned(),
        })
    }

    fn no_such_rows(&self, name: &str, rows: usize, asked: Range<usize>) -> CheckpointError {
        let (path, tensor) = (self.files.path().into(), name.to_owned());
        CheckpointError::NoSuchRows { path, tensor, rows, start: asked.start, end: asked.end }
    }

    fn wrong_dtype(&self, name: &str, found: Dtype, expected: &'static str) -> CheckpointError {
        let (path, tensor) = (self.files.path().into(), name.to_owned());
        CheckpointError::WrongDtype { path, tensor, found, expected }
    }

    /// The stored tensors whose rows make the tensor of the canonical `name`.
    fn sources(&self, name: &str) -> Vec<String> {
        (self.layout.sources)(name)
    }

    fn is_stored(&self, name: &str) -> bool {
        let is_found = |source: &String| self.packing.has(&self.files, source);
        // Of what is only described there are weights and no files.
        self.weights.contains_key(name) || self.sources(name).iter().all(is_found)
    }

    /// Finds every tensor there must be, and makes sure that there is no other.
    fn find_weights(&mut self) -> Result<BTreeMap<String, Weight>, CheckpointError> {
        let expected = self.expected();
        let mut claimed = self.idle_biases(&expected)?;
        self.check_family(&claimed)?;
        let (mut weights, mut packed) = (BTreeMap::new(), Vec::new());
        for (name, shape) in expected {
            let sources = self.sources(&name);
            if let Some(found) = self.find_packed(&sources, &shape)? {
                claimed.extend(found.claimed.iter().cloned());
                packed.push((name, shape, found));
                continue;
            }
            let weight = self.find_weight(&name, &sources, shape)?;
            weights.insert(name, weight);
            claimed.extend(sources);
        }
        let is_extra = |tensor: &&Tensor| {
            !claimed.contains(&tensor.name) && !(self.layout.ignores)(&tensor.name)
        };
        if let Some(extra) = self.files.tensors().find(is_extra) {
            let (path, shape) = (self.files.path().into(), extra.shape.clone());
            let tensor = extra.name.clone();
            return Err(CheckpointError::UnexpectedTensor { path, tensor, shape });
        }
        let (made, warning) = self.packing.present(&self.files, packed)?;
        weights.extend(made.into_iter().map(|weight| (weight.name.clone(), weight)));
        let path = self.files.path().display();
        self.warnings.extend(warning.map(|warning| format!("{path}: {warning}")));
        Ok(weights)
    }

    /// The packed weight that makes a tensor; several sources (a fused tensor that is stored in
    /// parts) are floats in every layout.
    fn find_packed(
        &self,
        sources: &[String],
        shape: &[usize],
    ) -> Result<Option<PackedWeight>, CheckpointError> {
        let [source] = sources else { return Ok(None) };
        Ok(self.packing.find(&self.files, source, shape)?)
    }

    /// Stored biases of packed weights that the model does not call for and that add nothing.
    fn idle_biases(
        &self,
        expected: &[(String, Vec<usize>)],
    ) -> Result<BTreeSet<String>, CheckpointError> {
        let names: BTreeSet<&str> = expected.iter().map(|(name, _)| name.as_str()).collect();
        let mut idle = BTreeSet::new();
        for name in &names {
            let Some(module) = name.strip_suffix(".weight") else { continue };
            let is_wanted = names.contains(format!("{module}.bias").as_str());
            for source in self.sources(name) {
                idle.extend(self.packing.idle_bias(&self.files, &source, is_wanted)?);
            }
        }
        Ok(idle)
    }

    fn find_weight(
        &self,
        name: &str,
        sources: &[String],
        shape: Vec<usize>,
    ) -> Result<Weight, CheckpointError> {
        let mut piece = shape.clone();
        if let Some(rows) = piece.first_mut() {
            *rows /= sources.len();
        }
        let find = |source: &String| self.find_piece(source, &piece).cloned();
        let pieces = sources.iter().map(find).collect::<Result<Vec<_>, _>>()?;
        let dtype = pieces[0].dtype;
        if let Some(other) = pieces.iter().find(|piece| piece.dtype != dtype) {
            let rule = "of the same type as its neighbours";
            return Err(self.wrong_dtype(&other.name, other.dtype, rule));
        }
        Ok(Weight::of_pieces(name, dtype, shape, pieces))
    }

    fn find_piece(&self, source: &str, shape: &[usize]) -> Result<&Tensor, CheckpointError> {
        let Some(tensor) = self.files.get(source) else {
            let (path, shape) = (self.files.path().into(), shape.to_vec());
            return Err(CheckpointError::MissingTensor { path, tensor: source.to_owned(), shape });
        };
        self.check_tensor(tensor, shape)?;
        Ok(tensor)
    }

    /// Refuses the weights of one family under the configuration of another, whatever their shapes.
    /// Biases in `idle` do not count.
    fn check_family(&self, idle: &BTreeSet<String>) -> Result<(), CheckpointError> {
        let Some(llm) = &self.model.llm else { return Ok(()) };
        // A file without the decoder's first layer belongs to no family.
        if !self.is_stored(FIRST_NORM) {
            return Ok(());
        }
        let is_idle = |name: &str| self.sources(name).iter().all(|source| idle.contains(source));
        let is_there = |name: &str| self.is_stored(name) && !is_idle(name);
        let telltales = |family: &DecoderFamily| decoder::telltales(family, llm.attention_bias);
        let fits =
            |family: &&DecoderFamily| telltales(family).iter().all(|(t, has)| is_there(t) == *has);
        let named = llm.family;
        let Some(found) = DecoderFamily::ALL.into_iter().find(fits).filter(|_| !fits(&named))
        else {
            return Ok(());
        };
        let all = telltales(found).into_iter().zip(telltales(named));
        let mut differing = all.filter(|((_, has), (_, wants))| has != wants).map(|(here, _)| here);
        let present = |(_, has): &(String, bool)| *has;
        let telltale = differing.clone().find(present).or_else(|| differing.next());
        let (tensor, has) = telltale.expect("two families differ in a tensor");
        Err(CheckpointError::OtherDecoder {
            path: self.files.path().into(),
            tensor: self.sources(&tensor).swap_remove(0),
            presence: if has { "present" } else { "missing" },
            found: found.architecture,
            named: named.architecture,
        })
    }

    fn check_tensor(&self, tensor: &Tensor, shape: &[usize]) -> Result<(), CheckpointError> {
        if tensor.shape != shape {
            return Err(CheckpointError::WrongShape {
                path: self.files.path().into(),
                tensor: tensor.name.clone(),
                expected: shape.to_vec(),
                found: tensor.shape.clone(),
            });
        }
        if tensor.dtype.is_float() {
            return Ok(());
        }
        Err(self.wrong_dtype(&tensor.name, tensor.dtype, FLOATS))
    }

    /// What the configuration, the presence of a head and that of integers call for, in the model's
    /// order.
    fn expected(&self) -> Vec<(String, Vec<usize>)> {
        let is_there = |part: &ModelPart| match part {
            ModelPart::Head => self.has_lm_head(),
            part => self.has(*part),
        };
        let parts: Vec<ModelPart> = self.model.parts().into_iter().filter(is_there).collect();
        self.model.tensors(&parts)
    }
}

/// The dtypes a weight may have, in words.
const FLOATS: &str = "F32, F16 or BF16";

/// The name of the scales of the packed weight `name`.
pub(crate) fn scale_name(name: &str) -> String {
    format!("{name}{SCALE_SUFFIX}")
}

/// Whether `name` is a weight that quantisation touches: a matrix of the language model that
/// multiplies activations.
pub(crate) fn is_linear(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("language_model.") else { return false };
    rest == "lm_head.weight" || rest.ends_with("_proj.weight")
}

/// The layout under which most of the model's tensors are in `files`; the usual one if all fit as
/// well.
fn closest_layout(model: &Model, files: &Shards) -> Layout {
    let names = model.tensors(&model.parts());
    let found = |layout: &Layout| {
        let is_there =
            |name: &String| (layout.sources)(name).iter().all(|n| files.get(n).is_some());
        names.iter().filter(|(name, _)| is_there(name)).count()
    };
    // `max_by_key` gives the last of equals.
    let best = model.layouts.iter().rev().max_by_key(|layout| found(layout));
    best.copied().unwrap_or(Layout::CANONICAL)
}

/// How the weights of a checkpoint with the configuration `text` are packed.
fn packing_of(text: &str, path: &Path) -> Result<Packing, CheckpointError> {
    // What is no JSON is refused with its place by the families.
    let config = serde_json::from_str(text).unwrap_or(serde_json::Value::Null);
    let quantization = Quantization::of(&config, path)?;
    Ok(quantization.map_or(Packing::Floats, Packing::Foreign))
}

/// The GGUF file that `path` means: itself, or the only one of a directory without other weights, of which
/// a split one is its first part.
fn gguf_file(path: &Path) -> Result<Option<PathBuf>, CheckpointError> {
    let is_gguf = |path: &Path| path.extension().is_some_and(|ending| ending == "gguf");
    if path.is_file() {
        return Ok(is_gguf(path).then(|| path.to_owned()));
    }
    let has = |name: &str| path.join(name).exists();
    let is_other = has(CONFIG_FILE) && (has(WEIGHTS_FILE) || has(INDEX_FILE));
    let Some(entries) = fs::read_dir(path).ok().filter(|_| !is_other) else {
        return Ok(None);
    };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| is_gguf(file));
    files.sort();
    if let Some(first) = gguf::split::first_of(&files) {
        return Ok(Some(first.clone()));
    }
    if let [first, second, ..] = files.as_slice() {
        let name = |file: &Path| file.file_name().unwrap_or_default().to_string_lossy().into();
        let (dir, first, second) = (path.into(), name(first), name(second));
        return Err(CheckpointError::SeveralGguf { dir, first, second });
    }
    Ok(files.pop())
}

fn open_weights(dir: &Path) -> Result<Shards, CheckpointError> {
    match Shards::single(&dir.join(WEIGHTS_FILE)) {
        Err(SafetensorsError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            open_shards(dir)
        }
        opened => Ok(opened?),
    }
}

/// Opens what a directory without the one file of weights holds instead, or says what that is.
fn open_shards(dir: &Path) -> Result<Shards, CheckpointError> {
    let index = dir.join(INDEX_FILE);
    if index.exists() {
        return Ok(Shards::indexed(&index)?);
    }
    Err(match first_pickle(dir) {
        Some(file) => CheckpointError::Pickled { dir: dir.into(), file },
        None => CheckpointError::NoWeights { dir: dir.into() },
    })
}

fn first_pickle(dir: &Path) -> Option<String> {
    let names = fs::read_dir(dir).ok()?.flatten().map(|entry| entry.file_name());
    let is_pickle = |name: &String| {
        [".bin", ".pt", ".pth", ".ckpt"].iter().any(|ending| name.ends_with(ending))
    };
    names.filter_map(|name| name.into_string().ok()).filter(is_pickle).min()
}

/// The mark of a directory that [`crate::quantize::quantize`] wrote; nothing for an original one.
fn read_mark(path: &Path) -> Result<Option<Mark>, CheckpointError> {
    let text = match read_text(path) {
        Err(CheckpointError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(None);
        }
        read => read?,
    };
    let bad = |why| CheckpointError::BadMark { path: path.into(), why };
    Mark::parse(&text).map(Some).map_err(bad)
}

fn read_text(path: &Path) -> Result<String, CheckpointError> {
    let failed = |source| CheckpointError::Io { path: path.into(), source };
    let facts = fs::metadata(path).map_err(failed)?;
    if !facts.is_file() || facts.len() > JSON_BYTES_MAX {
        let why = format!("it is no file of at most {JSON_BYTES_MAX} bytes");
        return Err(CheckpointError::BadText { path: path.into(), why });
    }
    let bytes = fs::read(path).map_err(failed)?;
    let not_text = |_| CheckpointError::BadText { path: path.into(), why: "not UTF-8".to_owned() };
    if let Some(what) = recognise(&bytes, Expected::Json) {
        return Err(CheckpointError::BadText { path: path.into(), why: format!("it is {what}") });
    }
    String::from_utf8(bytes).map_err(not_text)
}
