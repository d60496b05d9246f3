//! Scores pairs of texts: tokens of both with their kinds, the encoder with its head, one number.
//!
//! How a number is told is what the checkpoint's own files say ([`Recipe`], as sentence-transformers' CrossEncoder
//! does); a deployment keeps it beside the encoder's engine.  Pairs go through the engine one at a time, so that no
//! pair changes another's score.  Knows nothing of how engines are built.

use std::path::Path;

use serde::{Deserialize, Serialize};
use smelt_engine::Executor;
use smelt_engine::engine_file::OpenError;
use smelt_engine::graph::Tensor;

use crate::deployment::{DEPLOYMENT_FILE, DeploymentError, named_from, write_files};
use crate::embed::{self, EmbedError, Reader, TOKENS_MAX, read_json};
use crate::template::CONFIG_FILE as TOKENIZER_CONFIG_FILE;
use crate::tokenizer::{PairTokens, TOKENIZER_FILE, Tokenizer};

/// What `deployment.json` calls this family.
pub const FAMILY: &str = "cross-encoder";

/// What becomes of the head's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    /// 1 / (1 + e⁻ˣ): scores between 0 and 1.
    Sigmoid,
    /// Nothing.
    Identity,
}

impl Activation {
    /// The score of a logit.
    pub fn of(self, logit: f32) -> f32 {
        match self {
            Self::Sigmoid => (1.0 / (1.0 + (-f64::from(logit)).exp())) as f32,
            Self::Identity => logit,
        }
    }

    /// The one that a checkpoint calls by the path of a class of PyTorch.
    fn named(path: &str) -> Option<Self> {
        match path.strip_prefix("torch.nn.")?.rsplit('.').next()? {
            "Sigmoid" => Some(Self::Sigmoid),
            "Identity" => Some(Self::Identity),
            _ => None,
        }
    }
}

/// What `deployment.json` says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// The version of the file: [`FORMAT`](crate::deployment::FORMAT).
    pub format: u32,
    /// The kind of model: [`FAMILY`].
    pub family: String,
    /// The model's name, as clients ask for it.
    pub model: String,
    /// The engine's directory, relative to the deployment.
    pub encoder: String,
    /// Most tokens of a pair, the special ones counted.
    pub max_tokens: usize,
    /// What becomes of the head's number.
    pub activation: Activation,
    /// Whether the model is told which tokens are of the second text; else all are of the first kind.
    pub kinds: bool,
}

impl Spec {
    /// What is wrong with the values, if anything.
    fn fault(&self) -> Option<String> {
        let unfit = || format!("family {:?} scores no pairs; {FAMILY} does", self.family);
        let unfit = (self.family != FAMILY).then(unfit);
        embed::fault(self.format, unfit, &self.encoder, self.max_tokens)
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

/// A pair's score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// Tokens that were seen, special ones included.
    pub tokens: usize,
    /// What the head gave.
    pub logit: f32,
}

/// A cross-encoder ready to score.
#[derive(Debug)]
pub struct CrossEncoder {
    spec: Spec,
    tokenizer: Tokenizer,
    engine: Executor,
}

/// What the engine reads.
const INPUTS: [&str; 3] = ["input_ids", "attention_mask", "token_type_ids"];
/// What the engine gives.
const LOGITS: &str = "logits";

/// Whether an engine of an encoder has a head that classifies.
///
/// # Errors
/// When it does not open.
pub fn is_with_head(engine: &Path) -> Result<bool, OpenError> {
    Ok(Executor::open(engine)?.outputs().iter().any(|output| output.name == LOGITS))
}

impl CrossEncoder {
    /// Opens the deployment in `dir`.
    ///
    /// # Errors
    /// [`DeploymentError`] naming the file or engine and what does not fit.
    pub fn open(dir: &Path) -> Result<Self, DeploymentError> {
        Self::open_at(dir, dir)
    }

    /// As [`Self::open`], of files in `dir` that will lie at `at`, beside their engine, which is there already.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_at(dir: &Path, at: &Path) -> Result<Self, DeploymentError> {
        let path = dir.join(DEPLOYMENT_FILE);
        let bad = |why: String| DeploymentError::Bad { path: path.clone(), why };
        let spec = read_spec(dir)?;
        let tokenizer = Tokenizer::open(&dir.join(TOKENIZER_FILE))?.for_whole();
        let (max, around) = (spec.max_tokens, tokenizer.around_pair());
        if max <= around {
            return Err(bad(format!("max_tokens is {max}, but {around} go around a pair")));
        }
        let engine = Executor::open(&named_from(at, &spec.encoder))?;
        let reads = engine.inputs().iter().map(|input| (input.name.as_str(), input.integer));
        if !reads.eq(INPUTS.map(|name| (name, true))) {
            return Err(bad(format!("its encoder does not read {}", INPUTS.join(" and "))));
        }
        if !engine.outputs().iter().map(|output| output.name.as_str()).eq([LOGITS]) {
            return Err(bad(format!("its encoder does not give {LOGITS}")));
        }
        Ok(Self { spec, tokenizer, engine })
    }

    /// Compares the engine with its digests; reads all of it.
    ///
    /// # Errors
    /// When it differs.
    pub fn verify_digest(&self) -> Result<(), OpenError> {
        self.engine.verify_digest()
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

    /// The score of a pair, which is cut where it has more tokens than the deployment takes.
    ///
    /// # Errors
    /// [`EmbedError`] when the tokenizer or the encoder fails on it.
    pub fn score(&self, pair: [&str; 2]) -> Result<f32, EmbedError> {
        let tokens = self.tokenizer.encode_pair(pair, usize::MAX, self.spec.max_tokens)?;
        Ok(self.spec.activation.of(self.read(&tokens)?.logit))
    }
}

impl Reader for CrossEncoder {
    type Text = PairTokens;
    type Answer = Score;

    fn model(&self) -> &str {
        &self.spec.model
    }

    fn tokens_max(&self) -> usize {
        self.spec.max_tokens
    }

    fn blank(tokens: usize) -> PairTokens {
        PairTokens { ids: vec![0; tokens], kinds: vec![0; tokens] }
    }

    fn read(&self, pair: &PairTokens) -> Result<Score, EmbedError> {
        let tokens = pair.ids.len();
        let input = |data: Vec<i64>| Tensor::I64 { shape: vec![1, tokens], data };
        let wide = |numbers: &[u32]| numbers.iter().copied().map(i64::from).collect();
        let kinds = if self.spec.kinds { wide(&pair.kinds) } else { vec![0; tokens] };
        let inputs = vec![input(wide(&pair.ids)), input(vec![1; tokens]), input(kinds)];
        let outputs = self.engine.run(inputs)?;
        let logits = outputs.first().map(|logits| (logits.shape(), logits.floats()));
        match logits {
            Some((_, Some(&[logit]))) => Ok(Score { tokens, logit }),
            other => {
                let found = other.map(|(shape, _)| shape.to_vec()).unwrap_or_default();
                Err(EmbedError::Logits { found })
            }
        }
    }

    fn tokens(score: &Score) -> usize {
        score.tokens
    }
}

/// Whether the deployment in `dir` scores pairs.
///
/// # Errors
/// [`DeploymentError`] if it is none.
pub fn is_cross_encoder(dir: &Path) -> Result<bool, DeploymentError> {
    Ok(embed::family(dir)? == FAMILY)
}

/// What the deployment of a cross-encoder in `dir` says of itself.
///
/// # Errors
/// [`DeploymentError`] naming the file and what is wrong with it.
pub fn read_spec(dir: &Path) -> Result<Spec, DeploymentError> {
    let path = &dir.join(DEPLOYMENT_FILE);
    let bad = |why: String| DeploymentError::Bad { path: path.into(), why };
    let family = embed::family(dir)?;
    if family != FAMILY {
        return Err(bad(format!("family {family:?} scores no pairs of texts; {FAMILY} does")));
    }
    let spec: Spec = read_json(path)?;
    spec.fault().map_or(Ok(spec), |why| Err(bad(why)))
}

/// How a checkpoint's pairs become scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// Most tokens of a pair, if the checkpoint says so.
    pub max_tokens: Option<usize>,
    /// What becomes of the head's number.
    pub activation: Activation,
    /// Whether the model is told which tokens are of the second text.
    pub kinds: bool,
}

/// What config.json says of scores: since sentence-transformers 4 in an object, before that in a field.
#[derive(Deserialize)]
struct ConfigFields {
    sentence_transformers: Option<SentenceFields>,
    sbert_ce_default_activation_function: Option<String>,
}

#[derive(Deserialize)]
struct SentenceFields {
    activation_fn: Option<String>,
}

#[derive(Default, Deserialize)]
struct TokenizerFields {
    /// What nobody bounded is 10³⁰ there.
    model_max_length: Option<f64>,
    model_input_names: Option<Vec<String>>,
}

impl Recipe {
    /// Reads config.json and tokenizer_config.json of the checkpoint in `dir`, whose head has one label.
    ///
    /// # Errors
    /// [`DeploymentError`] naming the file, and the activation that is not supported.
    pub fn of_checkpoint(dir: &Path) -> Result<Self, DeploymentError> {
        let path = dir.join("config.json");
        let config: ConfigFields = read_json(&path)?;
        let named = config.sentence_transformers.and_then(|fields| fields.activation_fn);
        let named = named.or(config.sbert_ce_default_activation_function);
        let activation = match named {
            // As sentence-transformers where there is one label.
            None => Activation::Sigmoid,
            Some(name) => Activation::named(&name).ok_or_else(|| DeploymentError::Bad {
                why: format!(
                    "the activation {name:?} is not supported, only torch.nn's Sigmoid and Identity"
                ),
                path,
            })?,
        };
        let path = dir.join(TOKENIZER_CONFIG_FILE);
        let fields: TokenizerFields =
            if path.exists() { read_json(&path)? } else { TokenizerFields::default() };
        let names = fields.model_input_names;
        let kinds = names.is_none_or(|names| names.iter().any(|name| name == INPUTS[2]));
        let bounded = fields.model_max_length.filter(|max| (1.0..=TOKENS_MAX as f64).contains(max));
        Ok(Self { max_tokens: bounded.map(|max| max as usize), activation, kinds })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn recipe(config: &str, tokenizer: &str) -> Result<Recipe, String> {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("config.json"), config).unwrap();
        if !tokenizer.is_empty() {
            fs::write(dir.path().join(TOKENIZER_CONFIG_FILE), tokenizer).unwrap();
        }
        Recipe::of_checkpoint(dir.path()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_checkpoints_files_say_what_becomes_of_the_number() {
        let of = |config: &str| recipe(config, "").unwrap().activation;
        assert_eq!(of("{}"), Activation::Sigmoid);
        let new =
            r#"{"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}"#;
        assert_eq!(of(new), Activation::Identity);
        let old = r#"{"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}"#;
        assert_eq!(of(old), Activation::Identity);
        assert_eq!(of(&old.replace("linear.Identity", "activation.Sigmoid")), Activation::Sigmoid);
        let error = recipe(&old.replace("linear.Identity", "activation.Tanh"), "").unwrap_err();
        assert!(error.contains("config.json: the activation \"torch.nn.modules.activation.Tanh\""));
        assert!(recipe(&old.replace("torch", "mine"), "").is_err());
    }

    #[test]
    fn the_tokenizers_file_says_how_long_pairs_may_be_and_what_of_them_is_told() {
        let of = |tokenizer: &str| recipe("{}", tokenizer).unwrap();
        assert_eq!((of("").max_tokens, of("").kinds), (None, true));
        let short = of(r#"{"model_max_length": 256, "model_input_names": ["input_ids"]}"#);
        assert_eq!((short.max_tokens, short.kinds), (Some(256), false));
        let open = of(r#"{"model_max_length": 1000000000000000019884624838656}"#);
        assert_eq!((open.max_tokens, open.kinds), (None, true));
    }

    #[test]
    fn scores_are_the_sigmoid_of_logits_or_the_logits() {
        assert_eq!(Activation::Identity.of(-3.5), -3.5);
        assert_eq!(Activation::Sigmoid.of(0.0), 0.5);
        assert!((Activation::Sigmoid.of(2.0) - 0.880_797).abs() < 1e-6);
        assert_eq!(Activation::Sigmoid.of(-1000.0), 0.0);
    }
}
