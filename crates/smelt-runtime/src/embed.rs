//! Turns texts into embeddings: tokens, the encoder's states, one row for each text.
//!
//! How states become a row is what the checkpoint's own files say ([`Pooling`], as
//! sentence-transformers writes them); a deployment keeps it beside the encoder's engine.  Texts go
//! through the engine one at a time, so that no text changes another's numbers.  Knows nothing of
//! how engines are built.

mod service;

pub use service::{EmbedService, Reader, Refused, Reply, RequestGuard, StartError, Stats};

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use smelt_backend::{Backends, Graph, GraphError, OpenError, Tensor, Witness};

use crate::deployment::{DEPLOYMENT_FILE, DeploymentError, FORMAT, write_files};
use crate::deployment_error::read_text;
use crate::engine_dirs::EngineDirs;
use crate::tokenizer::{TOKENIZER_FILE, Tokenizer, TokenizerError};

/// What `deployment.json` calls this family.
pub const FAMILY: &str = "sentence-encoder";

/// The longest text in tokens that a deployment may allow: attention takes memory with its square.
pub const TOKENS_MAX: usize = 8192;

/// The file of a checkpoint that says how rows are made.
pub const MODULES_FILE: &str = "modules.json";

/// How the states of a text's tokens become one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// The first token's.
    Cls,
}

/// What `deployment.json` says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// The version of the file: [`FORMAT`].
    pub format: u32,
    /// The kind of model: [`FAMILY`].
    pub family: String,
    /// The model's name, as clients ask for it.
    pub model: String,
    /// The encoder engine's directory, relative to the deployment.
    pub encoder: EngineDirs,
    /// Longer texts are cut after so many tokens, the special ones counted.
    pub max_tokens: usize,
    /// How states become one row.
    pub pooling: Pooling,
    /// Whether rows are given length 1.
    pub normalize: bool,
    /// Bytes that whoever serves it may take, all of its process; else what is free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes_max: Option<u64>,
}

/// What is wrong with the values that all deployments of encoders have, if anything; `unfit` says why the family is
/// another.
pub(crate) fn fault(
    format: u32,
    unfit: Option<String>,
    encoder: &EngineDirs,
    max_tokens: usize,
) -> Option<String> {
    if format != FORMAT {
        return Some(format!("format {format} is not {FORMAT}; deploy again"));
    }
    if unfit.is_some() {
        return unfit;
    }
    let too_many = || format!("max_tokens is {max_tokens}, not between 1 and {TOKENS_MAX}");
    let is_possible = (1..=TOKENS_MAX).contains(&max_tokens);
    encoder.fault("encoder").or_else(|| (!is_possible).then(too_many))
}

impl Spec {
    /// What is wrong with the values, if anything.
    fn fault(&self) -> Option<String> {
        let unfit = || format!("family {:?} gives no embeddings; {FAMILY} does", self.family);
        let unfit = (self.family != FAMILY).then(unfit);
        fault(self.format, unfit, &self.encoder, self.max_tokens)
    }

    /// Writes the deployment into `dir`, which is made if need be, and copies the `tokenizer`
    /// beside it.
    ///
    /// # Errors
    /// [`DeploymentError`] if a value is wrong or the disk refuses.
    pub fn write(&self, dir: &Path, tokenizer: &Path) -> Result<(), DeploymentError> {
        match self.fault() {
            Some(why) => Err(DeploymentError::Bad { path: dir.join(DEPLOYMENT_FILE), why }),
            None => write_files(dir, self, &[tokenizer.to_owned()]),
        }
    }
}

/// Why texts could not be embedded.
#[derive(Debug, thiserror::Error)]
pub enum EmbedError {
    /// A text does not become tokens.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The encoder failed.
    #[error(transparent)]
    Run(#[from] GraphError),
    /// The encoder gave something else than states.
    #[error("the encoder gave {found:?} instead of the states of {tokens} tokens")]
    States {
        /// The shape it gave.
        found: Vec<usize>,
        /// Tokens of the text.
        tokens: usize,
    },
    /// The encoder gave something else than scores.
    #[error("the encoder gave {found:?} instead of so many scores: {expected}")]
    Logits {
        /// The shape it gave.
        found: Vec<usize>,
        /// How many it should have given.
        expected: usize,
    },
}

/// A text's embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding {
    /// Tokens that were seen, special ones included.
    pub tokens: usize,
    /// The row.
    pub row: Vec<f32>,
}

/// An encoder ready to embed.
#[derive(Debug)]
pub struct SentenceEncoder {
    spec: Spec,
    tokenizer: Tokenizer,
    engine: Box<dyn Graph>,
}

/// What the engine reads.
const INPUTS: [&str; 2] = ["input_ids", "attention_mask"];
/// What the engine gives.
const STATES: &str = "last_hidden_state";

impl SentenceEncoder {
    /// Opens the deployment in `dir`.
    ///
    /// # Errors
    /// [`DeploymentError`] naming the file or engine and what does not fit.
    pub fn open(backends: Backends, dir: &Path) -> Result<Self, DeploymentError> {
        Self::open_at(backends, dir, dir)
    }

    /// As [`Self::open`], of files in `dir` that will lie at `at`, beside their engine, which is there already.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_at(backends: Backends, dir: &Path, at: &Path) -> Result<Self, DeploymentError> {
        let path = dir.join(DEPLOYMENT_FILE);
        let bad = |why: String| DeploymentError::Bad { path: path.clone(), why };
        let spec = read_spec(dir)?;
        let tokenizer = Tokenizer::open(&dir.join(TOKENIZER_FILE))?.for_whole();
        let (max, around) = (spec.max_tokens, tokenizer.around());
        if max <= around {
            return Err(bad(format!("max_tokens is {max}, but {around} go around a text")));
        }
        let engine = backends.graph(&spec.encoder.chosen(backends, at)?)?;
        let reads = engine.inputs().iter().map(|input| (input.name.as_str(), input.integer));
        if !reads.eq(INPUTS.map(|name| (name, true))) {
            return Err(bad(format!("its encoder does not read {}", INPUTS.join(" and "))));
        }
        if engine.outputs().iter().all(|output| output.name != STATES) {
            return Err(bad(format!("its encoder does not give {STATES}")));
        }
        Ok(Self { spec, tokenizer, engine })
    }

    /// Where its engine lies, as its deployment says.
    pub fn engine(&self) -> &EngineDirs {
        &self.spec.encoder
    }

    /// The same encoder on another device, by an engine that was opened there.
    #[must_use]
    pub fn beside(&self, engine: Box<dyn Graph>) -> Self {
        Self { spec: self.spec.clone(), tokenizer: self.tokenizer.clone(), engine }
    }

    /// Compares the engine with its digests; reads all of it, and tells `told` of each piece's bytes.
    ///
    /// # Errors
    /// When it differs.
    pub fn verify_digest(&self, told: &mut dyn Witness) -> Result<(), OpenError> {
        self.engine.verify_digest(told)
    }

    /// What the deployment says.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Text to tokens: never cut.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Why the engine does not follow the tactics it was built with, if it has some and does not.
    pub fn untuned(&self) -> Option<&str> {
        self.engine.untuned()
    }

    /// The tokens of `text`, special ones included; cut where they are more than the deployment takes.
    ///
    /// # Errors
    /// When the tokenizer fails on it.
    pub fn tokens(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.tokenizer.encode_cut(text, self.spec.max_tokens)
    }

    /// The embedding of `text`.
    ///
    /// # Errors
    /// [`EmbedError`] when the tokenizer or the encoder fails on it.
    pub fn embed(&self, text: &str) -> Result<Embedding, EmbedError> {
        self.read(&self.tokens(text)?)
    }
}

impl Reader for SentenceEncoder {
    type Text = Vec<u32>;
    type Answer = Embedding;

    fn model(&self) -> &str {
        &self.spec.model
    }

    fn tokens_max(&self) -> usize {
        self.spec.max_tokens
    }

    fn blank(tokens: usize) -> Vec<u32> {
        vec![0; tokens]
    }

    fn read(&self, tokens: &Vec<u32>) -> Result<Embedding, EmbedError> {
        let ids: Vec<i64> = tokens.iter().copied().map(i64::from).collect();
        let (tokens, shape) = (ids.len(), vec![1, ids.len()]);
        let mask = Tensor::I64 { shape: shape.clone(), data: vec![1; tokens] };
        let outputs = self.engine.run(vec![Tensor::I64 { shape, data: ids }, mask])?;
        let mut named = self.engine.outputs().iter().zip(outputs);
        let states = named.find_map(|(output, value)| (output.name == STATES).then_some(value));
        let states = states.expect("opening found the output");
        let (&[1, rows, width], Some(numbers)) = (states.shape(), states.floats()) else {
            return Err(EmbedError::States { found: states.shape().to_vec(), tokens });
        };
        if rows != tokens || width == 0 {
            return Err(EmbedError::States { found: vec![1, rows, width], tokens });
        }
        let row = match self.spec.pooling {
            Pooling::Mean => mean(numbers, width),
            Pooling::Cls => numbers[..width].to_vec(),
        };
        let row = if self.spec.normalize { normalized(row) } else { row };
        Ok(Embedding { tokens, row })
    }

    fn tokens(embedding: &Embedding) -> usize {
        embedding.tokens
    }
}

/// The mean of all rows of `width` numbers.
fn mean(states: &[f32], width: usize) -> Vec<f32> {
    let mut sums = vec![0f64; width];
    for state in states.chunks_exact(width) {
        sums.iter_mut().zip(state).for_each(|(sum, &value)| *sum += f64::from(value));
    }
    let count = (states.len() / width) as f64;
    sums.into_iter().map(|sum| (sum / count) as f32).collect()
}

/// The least length that is divided by, as in `torch.nn.functional.normalize`.
const LENGTH_MIN: f64 = 1e-12;

fn normalized(row: Vec<f32>) -> Vec<f32> {
    let length = row.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
    row.into_iter().map(|value| (f64::from(value) / length.max(LENGTH_MIN)) as f32).collect()
}

/// The one field every deployment has.
#[derive(Deserialize)]
struct Heading {
    family: String,
}

/// The family of the deployment in `dir`.
///
/// # Errors
/// [`DeploymentError`] if it is none.
pub fn family(dir: &Path) -> Result<String, DeploymentError> {
    let heading: Heading = read_json(&dir.join(DEPLOYMENT_FILE))?;
    Ok(heading.family)
}

/// What the deployment of an encoder in `dir` says of itself.
///
/// # Errors
/// [`DeploymentError`] naming the file and what is wrong with it.
pub fn read_spec(dir: &Path) -> Result<Spec, DeploymentError> {
    let path = &dir.join(DEPLOYMENT_FILE);
    let bad = |why: String| DeploymentError::Bad { path: path.into(), why };
    let family = family(dir)?;
    if family != FAMILY {
        return Err(bad(format!("family {family:?} gives no embeddings; {FAMILY} does")));
    }
    let spec: Spec = read_json(path)?;
    spec.fault().map_or(Ok(spec), |why| Err(bad(why)))
}

pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, DeploymentError> {
    let bad = |error: serde_json::Error| DeploymentError::Bad {
        path: path.into(),
        why: format!("not what is expected here: {error}"),
    };
    serde_json::from_str(&read_text(path)?).map_err(bad)
}

/// How a checkpoint of sentence-transformers makes one row of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// Longer texts are cut after so many tokens, if the checkpoint says so.
    pub max_tokens: Option<usize>,
    /// How states become one row.
    pub pooling: Pooling,
    /// Whether rows are given length 1.
    pub normalize: bool,
}

/// One entry of modules.json.
#[derive(Deserialize)]
struct Module {
    path: String,
    #[serde(rename = "type")]
    class: String,
}

#[derive(Default, Deserialize)]
struct TransformerFields {
    max_seq_length: Option<usize>,
    #[serde(default)]
    do_lower_case: bool,
}

impl Recipe {
    /// Reads modules.json of the checkpoint in `dir`, and what it names.
    ///
    /// # Errors
    /// [`DeploymentError`] naming the file, and the module or mode that is not supported.
    pub fn of_checkpoint(dir: &Path) -> Result<Self, DeploymentError> {
        let path = dir.join(MODULES_FILE);
        let bad = |why: String| DeploymentError::Bad { path: path.clone(), why };
        let modules: Vec<Module> = read_json(&path)?;
        let class = |module: &Module| module.class.rsplit('.').next().unwrap_or("").to_owned();
        let classes: Vec<String> = modules.iter().map(class).collect();
        let names: Vec<&str> = classes.iter().map(String::as_str).collect();
        let normalize = match names[..] {
            ["Transformer", "Pooling"] => false,
            ["Transformer", "Pooling", "Normalize"] => true,
            _ => {
                let found = names.join(", ");
                return Err(bad(format!(
                    "modules [{found}] are not supported, only Transformer, Pooling and perhaps Normalize"
                )));
            }
        };
        let (first, second) = (&modules[0].path, &modules[1].path);
        if [first, second].iter().any(|path| path.contains("..") || path.starts_with('/')) {
            return Err(bad("a module's path leads outside the checkpoint".to_owned()));
        }
        let max_tokens = max_tokens(&dir.join(first).join("sentence_bert_config.json"))?;
        let pooling = pooling(&dir.join(second).join("config.json"))?;
        Ok(Self { max_tokens, pooling, normalize })
    }
}

fn max_tokens(path: &Path) -> Result<Option<usize>, DeploymentError> {
    if !path.exists() {
        return Ok(None);
    }
    let fields: TransformerFields = read_json(path)?;
    if fields.do_lower_case {
        let why = "do_lower_case is true, but only false is supported".to_owned();
        return Err(DeploymentError::Bad { path: PathBuf::from(path), why });
    }
    Ok(fields.max_seq_length)
}

/// The one mode that is set; modes are flags named `pooling_mode_…`.
fn pooling(path: &Path) -> Result<Pooling, DeploymentError> {
    let fields: serde_json::Map<String, serde_json::Value> = read_json(path)?;
    let modes: Vec<&str> = fields
        .iter()
        .filter(|(_, value)| **value == serde_json::Value::Bool(true))
        .filter_map(|(name, _)| name.strip_prefix("pooling_mode_"))
        .collect();
    match modes[..] {
        ["mean_tokens"] => Ok(Pooling::Mean),
        ["cls_token"] => Ok(Pooling::Cls),
        _ => Err(DeploymentError::Bad {
            path: path.into(),
            why: format!(
                "pooling modes [{}] are not supported, only mean_tokens or cls_token alone",
                modes.join(", ")
            ),
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A checkpoint's side files; the refusal must hold `words`.
    fn recipe(modules: &str, pooling: &str, transformer: &str) -> Result<Recipe, String> {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        write("modules.json", modules);
        fs::create_dir(dir.path().join("1_Pooling")).unwrap();
        write("1_Pooling/config.json", pooling);
        if !transformer.is_empty() {
            write("sentence_bert_config.json", transformer);
        }
        Recipe::of_checkpoint(dir.path()).map_err(|error| error.to_string())
    }

    const MODULES: &str = r#"[{"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]"#;
    const MEAN: &str = r#"{"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": false}"#;
    const CUT: &str = r#"{"max_seq_length": 256, "do_lower_case": false}"#;

    #[test]
    fn a_checkpoints_files_say_how_texts_become_rows() {
        let expect = Recipe { max_tokens: Some(256), pooling: Pooling::Mean, normalize: true };
        assert_eq!(recipe(MODULES, MEAN, CUT), Ok(expect));
        let short = format!("{}]", &MODULES[..MODULES.rfind(",\n").unwrap()]);
        let cls = r#"{"pooling_mode_cls_token": true}"#;
        let expect = Recipe { max_tokens: None, pooling: Pooling::Cls, normalize: false };
        assert_eq!(recipe(&short, cls, ""), Ok(expect));
    }

    #[test]
    fn what_is_not_built_here_is_refused_by_name() {
        let refused = |modules: &str, pooling: &str, cut: &str, words: &str| {
            let error = recipe(modules, pooling, cut).unwrap_err();
            assert!(error.contains(words) && !error.contains('\n'), "{error}");
        };
        refused(&MODULES.replace("models.Norm", "models.Dense_"), MEAN, CUT, "Dense_alize");
        refused(&MODULES.replace("1_Pool", "../Pool"), MEAN, CUT, "outside the checkpoint");
        let max = MEAN.replace("mean_tokens", "max_tokens");
        refused(MODULES, &max, CUT, "pooling modes [max_tokens]");
        refused(MODULES, &MEAN.replace("false", "true"), CUT, "mean_tokens, cls_token");
        refused(MODULES, MEAN, &CUT.replace("false", "true"), "do_lower_case");
        refused("{", MEAN, CUT, "modules.json: not what is expected");
    }

    #[test]
    fn rows_are_means_of_length_one() {
        assert_eq!(mean(&[1.0, 2.0, 3.0, 6.0], 2), [2.0, 4.0]);
        assert_eq!(normalized(vec![3.0, 4.0]), [0.6, 0.8]);
        assert_eq!(normalized(vec![0.0, 0.0]), [0.0, 0.0]);
    }
}
