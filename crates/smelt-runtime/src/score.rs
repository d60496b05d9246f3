//! Scores pairs of texts, and classifies texts and pairs: tokens with their kinds, the encoder with its head, one number or
//! one for each label.
//!
//! How numbers are told is what the checkpoint's own files say ([`Recipe`]: a score as sentence-transformers' CrossEncoder
//! does, labels as transformers' pipelines do); a deployment keeps it beside the encoder's engine.  Pairs go through the engine one at a time, so that no
//! pair changes another's score.  Knows nothing of how engines are built.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use smelt_backend::{Backends, Graph, OpenError, Tensor, Witness};

use crate::deployment::{DEPLOYMENT_FILE, DeploymentError, write_files};
use crate::embed::{self, EmbedError, Reader, TOKENS_MAX, read_json};
use crate::engine_dirs::EngineDirs;
use crate::template::CONFIG_FILE as TOKENIZER_CONFIG_FILE;
use crate::tokenizer::{PairTokens, TOKENIZER_FILE, Tokenizer};

/// What `deployment.json` calls this family.
pub const FAMILY: &str = "cross-encoder";

/// Most labels of a head; published ones of many have some thousand.
pub const LABELS_MAX: usize = 8192;

/// What becomes of the head's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    /// 1 / (1 + e⁻ˣ): scores between 0 and 1.
    Sigmoid,
    /// eˣ, of all labels' together 1: one label is right.
    Softmax,
    /// Nothing.
    Identity,
}

impl Activation {
    /// The scores of logits.
    pub fn of(self, logits: &[f32]) -> Vec<f32> {
        let sigmoid = |logit: &f32| (1.0 / (1.0 + (-f64::from(*logit)).exp())) as f32;
        match self {
            Self::Sigmoid => logits.iter().map(sigmoid).collect(),
            Self::Softmax => softmax(logits),
            Self::Identity => logits.to_vec(),
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

fn softmax(logits: &[f32]) -> Vec<f32> {
    // So that no power is infinite.
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers = logits.iter().map(|logit| f64::from(logit - most).exp());
    let sum: f64 = powers.clone().sum();
    powers.map(|power| (power / sum) as f32).collect()
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
    pub encoder: EngineDirs,
    /// Most tokens of a pair, the special ones counted.
    pub max_tokens: usize,
    /// What becomes of the head's numbers.
    pub activation: Activation,
    /// Whether the model is told which tokens are of the second text; else all are of the first kind.
    pub kinds: bool,
    /// What the head's numbers say, in their order; none of one that gives a score.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// Bytes that whoever serves it may take, all of its process; else what is free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes_max: Option<u64>,
}

impl Spec {
    /// What is wrong with the values, if anything.
    fn fault(&self) -> Option<String> {
        let unfit = || format!("family {:?} scores no pairs; {FAMILY} does", self.family);
        let unfit = (self.family != FAMILY).then(unfit).or_else(|| labels_fault(self));
        embed::fault(self.format, unfit, &self.encoder, self.max_tokens)
    }

    /// Whether texts are classified, and no pairs scored.
    pub fn classifies(&self) -> bool {
        !self.labels.is_empty()
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

fn labels_fault(Spec { labels, activation, .. }: &Spec) -> Option<String> {
    match labels.len() {
        0 if *activation == Activation::Softmax => Some("softmax is of several labels".to_owned()),
        1 => Some("labels are several; what has one number gives a score".to_owned()),
        count if count > LABELS_MAX => Some(format!("{count} labels are more than {LABELS_MAX}")),
        _ => None,
    }
}

/// What was found of a text or a pair.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// Tokens that were seen, special ones included.
    pub tokens: usize,
    /// What the head gave: one number, or one for each label.
    pub logits: Vec<f32>,
}

/// A cross-encoder ready to score, or to classify.
#[derive(Debug)]
pub struct CrossEncoder {
    spec: Spec,
    tokenizer: Tokenizer,
    engine: Box<dyn Graph>,
}

/// What the engine reads.
const INPUTS: [&str; 3] = ["input_ids", "attention_mask", "token_type_ids"];
/// What the engine gives.
const LOGITS: &str = "logits";

/// Whether an engine of an encoder has a head that classifies.
///
/// # Errors
/// When it does not open.
pub fn is_with_head(backends: Backends, engine: &Path) -> Result<bool, OpenError> {
    Ok(backends.graph(engine)?.outputs().iter().any(|output| output.name == LOGITS))
}

impl CrossEncoder {
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
        let (max, around) = (spec.max_tokens, tokenizer.around_pair());
        if max <= around {
            return Err(bad(format!("max_tokens is {max}, but {around} go around a pair")));
        }
        let engine = backends.graph(&spec.encoder.chosen(backends, at)?)?;
        let reads = engine.inputs().iter().map(|input| (input.name.as_str(), input.integer));
        if !reads.eq(INPUTS.map(|name| (name, true))) {
            return Err(bad(format!("its encoder does not read {}", INPUTS.join(" and "))));
        }
        if !engine.outputs().iter().map(|output| output.name.as_str()).eq([LOGITS]) {
            return Err(bad(format!("its encoder does not give {LOGITS}")));
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

    /// The scores of a pair, one or one for each label; the pair is cut where it has more tokens than the deployment
    /// takes.
    ///
    /// # Errors
    /// [`EmbedError`] when the tokenizer or the encoder fails on it.
    pub fn scores(&self, pair: [&str; 2]) -> Result<Vec<f32>, EmbedError> {
        let tokens = self.tokenizer.encode_pair(pair, usize::MAX, self.spec.max_tokens)?;
        Ok(self.spec.activation.of(&self.read(&tokens)?.logits))
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
        let expected = self.spec.labels.len().max(1);
        let logits = outputs.first().and_then(|logits| logits.floats());
        match logits.filter(|logits| logits.len() == expected) {
            Some(logits) => Ok(Score { tokens, logits: logits.to_vec() }),
            None => {
                let found = outputs.first().map(|logits| logits.shape().to_vec());
                Err(EmbedError::Logits { found: found.unwrap_or_default(), expected })
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

/// How a checkpoint's pairs become scores, or its texts are classified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// Most tokens of a pair, if the checkpoint says so.
    pub max_tokens: Option<usize>,
    /// What becomes of the head's numbers.
    pub activation: Activation,
    /// Whether the model is told which tokens are of the second text.
    pub kinds: bool,
    /// What its numbers say, where there are several.
    pub labels: Vec<String>,
}

/// What config.json says of labels, and of scores: since sentence-transformers 4 in an object, before that in a field.
#[derive(Deserialize)]
struct ConfigFields {
    sentence_transformers: Option<SentenceFields>,
    sbert_ce_default_activation_function: Option<String>,
    problem_type: Option<String>,
    id2label: Option<BTreeMap<String, Value>>,
}

impl ConfigFields {
    /// The activation of a score; why it is not supported else.
    fn of_score(&self) -> Result<Activation, String> {
        let named = self.sentence_transformers.as_ref().and_then(|it| it.activation_fn.as_ref());
        match named.or(self.sbert_ce_default_activation_function.as_ref()) {
            // As sentence-transformers where there is one label.
            None => Ok(Activation::Sigmoid),
            Some(name) => Activation::named(name).ok_or_else(|| {
                format!(
                    "the activation {name:?} is not supported, only torch.nn's Sigmoid and Identity"
                )
            }),
        }
    }

    /// The activation of labels, as transformers' pipelines have it; why it is not supported else.
    fn of_labels(&self) -> Result<Activation, String> {
        match self.problem_type.as_deref() {
            None | Some("single_label_classification") => Ok(Activation::Softmax),
            Some("multi_label_classification") => Ok(Activation::Sigmoid),
            Some("regression") => Ok(Activation::Identity),
            Some(other) => Err(format!(
                "problem_type is {other:?}, not single_label_classification, multi_label_classification or regression"
            )),
        }
    }

    /// What number `at` says; what transformers calls it where nothing is said.
    fn label(&self, at: usize) -> String {
        match self.id2label.as_ref().and_then(|labels| labels.get(&at.to_string())) {
            Some(Value::String(label)) => label.clone(),
            Some(label) => label.to_string(),
            None => format!("LABEL_{at}"),
        }
    }
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
    /// Reads config.json and tokenizer_config.json of the checkpoint in `dir`, whose head has so many labels.
    ///
    /// # Errors
    /// [`DeploymentError`] naming the file, and the activation that is not supported.
    pub fn of_checkpoint(dir: &Path, labels: usize) -> Result<Self, DeploymentError> {
        let path = dir.join("config.json");
        let config: ConfigFields = read_json(&path)?;
        let activation = if labels == 1 { config.of_score() } else { config.of_labels() };
        let activation = activation.map_err(|why| DeploymentError::Bad { why, path })?;
        let labels = (0..labels).filter(|_| labels > 1).map(|at| config.label(at)).collect();
        let path = dir.join(TOKENIZER_CONFIG_FILE);
        let fields: TokenizerFields =
            if path.exists() { read_json(&path)? } else { TokenizerFields::default() };
        let names = fields.model_input_names;
        let kinds = names.is_none_or(|names| names.iter().any(|name| name == INPUTS[2]));
        let bounded = fields.model_max_length.filter(|max| (1.0..=TOKENS_MAX as f64).contains(max));
        Ok(Self { max_tokens: bounded.map(|max| max as usize), activation, kinds, labels })
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
        Recipe::of_checkpoint(dir.path(), 1).map_err(|error| error.to_string())
    }

    fn classifier(config: &str) -> Result<(Activation, Vec<String>), String> {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("config.json"), config).unwrap();
        let recipe = Recipe::of_checkpoint(dir.path(), 3).map_err(|error| error.to_string())?;
        Ok((recipe.activation, recipe.labels))
    }

    #[test]
    fn labels_are_told_as_the_problem_is() {
        let of = |problem: &str| {
            let labels = r#""id2label": {"0": "no", "2": 7}"#;
            classifier(&format!("{{{problem} {labels}}}"))
        };
        let labels = ["no", "LABEL_1", "7"].map(str::to_owned).to_vec();
        // What is said of scores says nothing of labels.
        let of_scores = r#""sbert_ce_default_activation_function": "torch.nn.Tanh","#;
        assert_eq!(of(of_scores), Ok((Activation::Softmax, labels)));
        for (problem, expect) in [
            ("single_label_classification", Activation::Softmax),
            ("multi_label_classification", Activation::Sigmoid),
            ("regression", Activation::Identity),
        ] {
            let problem = format!("\"problem_type\": \"{problem}\",");
            assert_eq!(of(&problem).unwrap().0, expect);
        }
        let error = of(r#""problem_type": "guess","#).unwrap_err();
        assert!(error.contains("config.json: problem_type is \"guess\""), "{error}");
        assert_eq!(recipe("{}", "").unwrap().labels, [""; 0]);
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
        assert_eq!(Activation::Identity.of(&[-3.5, 1.0]), [-3.5, 1.0]);
        assert_eq!(Activation::Sigmoid.of(&[0.0, -1000.0]), [0.5, 0.0]);
        assert!((Activation::Sigmoid.of(&[2.0])[0] - 0.880_797).abs() < 1e-6);
        assert_eq!(Activation::Softmax.of(&[1000.0, 1000.0, -1000.0]), [0.5, 0.5, 0.0]);
        assert!((Activation::Softmax.of(&[2.0, 0.0])[0] - 0.880_797).abs() < 1e-6);
    }
}
