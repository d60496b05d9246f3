//! Opens and writes deployments: engines, tokenizer and preprocessing that belong together.
//!
//! `deployment.json` names the engines' directories and says how pictures and prompts are made;
//! tokenizer and chat template lie beside it.  What does not fit together is refused at opening.
//! Knows nothing of how engines were built.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};
use smelt_backend::{
    Backends, Decoder, ENGINE_FILE, KvOptions, KvType, OpenError, VisionEngine, Witness,
};
pub use smelt_family::ModelFamily;

pub use crate::deployment_error::DeploymentError;
use crate::deployment_error::read_text;
use crate::dialect::Dialect;
pub use crate::engine_dirs::DEPLOYMENT_FILE;
use crate::engine_dirs::EngineDirs;
use crate::grammar::{Compiler, CompilerError};
use crate::identity::{Identity, Naming};
use crate::image::{By, Cutting, ImageOptions, ImageProcessor, Router};
use crate::markup::Marks;
use crate::prompt::ImageTokens;
use crate::similarity::{self, Similarity};
use crate::template::{self, ContentFormat, Template};
use crate::timeline::{Lane, Timeline};
use crate::tokenizer::{TOKENIZER_FILE, Tokenizer};
use crate::vision::Vision;

/// Files of a checkpoint that decide how texts are read and answers end, where it has them.
pub const TEXT_FILES: [&str; 6] = [
    TOKENIZER_FILE,
    template::CONFIG_FILE,
    template::TEMPLATE_FILE,
    template::TEMPLATE_JSON_FILE,
    template::TOOLS_FILE,
    GENERATION_FILE,
];

/// The file of a checkpoint that names the tokens which end an answer.
const GENERATION_FILE: &str = "generation_config.json";

/// The version of [`DEPLOYMENT_FILE`]; a change of names or meanings raises it.
pub const FORMAT: u32 = 2;

/// What `deployment.json` says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// The version of the file: [`FORMAT`].
    pub format: u32,
    /// The kind of model.
    pub family: ModelFamily,
    /// The model's name, as clients ask for it.
    pub model: String,
    /// The directory of the vision engine, or of those for several grids, relative to the deployment; with
    /// `image` and `image_tokens`, or without both where texts alone are read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vision: Option<EngineDirs>,
    /// The language model engine's directory, relative to the deployment.
    pub llm: EngineDirs,
    /// How pictures are prepared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Cutting>,
    /// How tiles are given to the engines of several grids where the sender leaves it open; without it
    /// all go to the largest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub router: Option<Router>,
    /// The CLIP that tells a router by similarity how near tiles are to the question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip: Option<similarity::Spec>,
    /// The special tokens of a picture.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_tokens: Option<ImageTokens>,
    /// Places that a second of a clip takes (Qwen2.5-VL).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub places_per_second: Option<u32>,
    /// The tokens that end an answer.
    pub eos: Vec<u32>,
    /// How it is served where nobody says otherwise.
    #[serde(default, skip_serializing_if = "Serving::is_empty")]
    pub serving: Serving,
    /// How far its engines had been verified when it was made, where more was to follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verified: Option<Verified>,
}

/// How far engines have been verified of which more is to follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verified {
    /// Every weight is the checkpoint's; what is computed with them was not held against the reference.
    Weights,
}

/// How a deployment is served where nobody says otherwise: limits of serving, none of which is built in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Serving {
    /// Tokens of a prompt with its answer; else what the engine was built for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_seq_len: Option<usize>,
    /// Answers at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<usize>,
    /// Most tiles of a picture, the thumbnail apart; else as many as the model was made for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tiles: Option<usize>,
    /// Most frames of a clip.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frames: Option<usize>,
    /// The form of keys and values; else the usual one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv: Option<KvType>,
    /// Bytes that whoever serves it may take, all of its process; else what is free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes_max: Option<u64>,
}

impl Serving {
    /// What is not said in `kv`, as this says it.
    fn of_kv(&self, kv: KvOptions) -> KvOptions {
        KvOptions {
            kind: kv.kind.or(self.kv),
            max_seq_len: kv.max_seq_len.or(self.max_seq_len),
            max_slots: kv.max_slots.or(self.slots),
            ..kv
        }
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The directories of the engines that a device runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Engines {
    /// That which sees, of models that do.
    pub vision: Option<PathBuf>,
    /// That which speaks.
    pub llm: PathBuf,
}

impl Spec {
    /// Which engines the device of `backends` runs, of a deployment at `at`.
    ///
    /// # Errors
    /// As [`EngineDirs::chosen`].
    pub fn engines(&self, backends: Backends, at: &Path) -> Result<Engines, OpenError> {
        let chosen = |dirs: &EngineDirs| dirs.chosen(backends, at);
        let vision = self.vision.as_ref().map(chosen).transpose()?;
        Ok(Engines { vision, llm: chosen(&self.llm)? })
    }

    /// How its decoder keeps keys and values where `kv` is asked for.
    pub fn kv(&self, kv: KvOptions) -> KvOptions {
        self.serving.of_kv(kv)
    }

    /// What stands for a picture in prompts, of models that see.
    fn picture(&self) -> Option<&str> {
        self.image_tokens.as_ref().map(|tokens| &tokens.image[..])
    }

    /// What is wrong with the values, if anything.
    fn fault(&self) -> Option<String> {
        if self.format != FORMAT {
            return Some(format!("format {} is not {FORMAT}; deploy again", self.format));
        }
        let (family, sees) = (self.family.name(), self.vision.is_some());
        if [self.image.is_some(), self.image_tokens.is_some()] != [sees; 2] {
            return Some("vision, image and image_tokens go together".to_owned());
        }
        if sees && !self.family.sees() {
            return Some(format!("vision: models of {family} read text alone"));
        }
        if self.image.as_ref().is_some_and(|image| !image.is_of(self.family)) {
            return Some(format!("image: pictures of {family} are not cut so"));
        }
        let vision = self.vision.iter().map(|dirs| ("vision", dirs));
        let mut engines = vision.chain([("llm", &self.llm)]);
        if let Some(fault) = engines.find_map(|(field, dirs)| dirs.fault(field)) {
            return Some(fault);
        }
        if self.eos.is_empty() {
            return Some("eos is empty, so no answer would end; name the end token".to_owned());
        }
        let by = self.router.as_ref().map(|router| router.by);
        if self.clip.is_some() != (by == Some(By::Similarity)) {
            return Some("a router by similarity and a clip go together".to_owned());
        }
        if self.router.is_some() && !sees {
            return Some("a router is of models that see".to_owned());
        }
        let clip = self.clip.as_ref().and_then(similarity::Spec::fault);
        let image = || self.image.as_ref()?.fault();
        clip.or_else(|| image().map(|fault| format!("image: {fault}")))
    }
}

/// What turns questions into prompts and tokens into text: all of a deployment but its engines, and
/// so shared by whoever prepares requests.
#[derive(Debug)]
pub struct Text {
    /// What the deployment's file says.
    pub spec: Spec,
    /// Text to tokens.
    pub tokenizer: Tokenizer,
    /// Conversations to text.
    pub template: Template,
    /// How the template takes the content of a message.
    pub content_format: ContentFormat,
    /// The token each image embedding replaces, of models that see.
    pub image_token: Option<u32>,
    /// What the vision engines take, if there are some.
    pub image_processor: Option<ImageProcessor>,
    /// How closely pictures are looked at of which their senders say nothing.
    pub image_options: ImageOptions,
    /// What compares tiles with questions, where the router goes by that.
    pub similarity: Option<Similarity>,
    /// Most tokens of a prompt and its answer.
    pub max_seq_len: usize,
    /// Tokens that the language model knows.
    pub vocab: usize,
    /// How the language model's weights are rounded, by the word pipelines use; `none` where they are not.
    pub scheme: String,
    /// How the model marks the parts of its answers.
    pub dialect: Dialect,
    /// What nobody but the template may write.
    pub marks: Marks,
    /// Where it is kept what is done when, if anybody wants to know.
    pub timeline: Option<Arc<Timeline>>,
    compiler: OnceLock<Result<Compiler, CompilerError>>,
}

impl Text {
    /// Does a part of preparing a request, and keeps how long it took where anybody wants to know.
    pub fn timed<T>(&self, name: &'static str, act: impl FnOnce() -> T) -> T {
        match &self.timeline {
            Some(timeline) => timeline.timed(Lane::Here, name, act),
            None => act(),
        }
    }

    /// What turns grammars into constraints for this vocabulary.  Made when it is first asked for, since
    /// it takes some megabytes and tenths of a second.
    ///
    /// # Errors
    /// [`CompilerError`] if the vocabulary cannot be held to anything.
    pub fn compiler(&self) -> Result<&Compiler, CompilerError> {
        let compiler = || Compiler::new(&self.tokenizer, self.vocab, &self.spec.eos);
        self.compiler.get_or_init(compiler).as_ref().map_err(Clone::clone)
    }
}

/// A model ready to answer.
#[derive(Debug)]
pub struct Deployment {
    /// Questions to prompts, tokens to text.
    pub text: Arc<Text>,
    /// Pictures to embeddings; none where texts alone are read.
    pub vision: Option<Vision>,
    /// Tokens and embeddings to logits.
    pub llm: Box<dyn Decoder>,
    /// What names both, where they were opened from files: with others, keys and values would be others.
    pub engines: Option<Identity>,
}

impl Deployment {
    /// Opens the deployment in `dir`.
    ///
    /// # Errors
    /// [`DeploymentError`] naming the file or engine and what does not fit.
    pub fn open(backends: Backends, dir: &Path) -> Result<Self, DeploymentError> {
        Self::open_with(backends, dir, KvOptions::default())
    }

    /// As [`Self::open`], with the decoder's keys and values kept as `kv` says.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with(
        backends: Backends,
        dir: &Path,
        kv: KvOptions,
    ) -> Result<Self, DeploymentError> {
        Self::open_parts(backends, [dir, dir], kv, None)
    }

    /// As [`Self::open_with`], of files in `dir` that will lie at `at`, beside their engines, which are there
    /// already; its tokenizer has been read.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_at(
        backends: Backends,
        places: [&Path; 2],
        kv: KvOptions,
        tokenizer: Tokenizer,
    ) -> Result<Self, DeploymentError> {
        Self::open_parts(backends, places, kv, Some(tokenizer))
    }

    fn open_parts(
        backends: Backends,
        [dir, at]: [&Path; 2],
        kv: KvOptions,
        tokenizer: Option<Tokenizer>,
    ) -> Result<Self, DeploymentError> {
        let spec = read_spec(dir)?;
        let Engines { vision: seeing, llm: speaking } = spec.engines(backends, at)?;
        let vision = seeing.as_ref().map(|vision| backends.vision(vision));
        let vision = vision.transpose()?.unwrap_or_default();
        let llm = backends.decoder(&speaking, spec.kv(kv))?;
        let engines = engines_of(seeing.iter().chain([&speaking]))?;
        let clip = spec.clip.as_ref();
        let clip = clip.map(|clip| Similarity::open_at(backends, dir, at, clip)).transpose()?;
        let tokenizer = match tokenizer {
            Some(tokenizer) => tokenizer,
            None => Tokenizer::open(&dir.join(TOKENIZER_FILE))?,
        };
        let opened = Self::of_parts(dir, (spec, tokenizer), vision, llm, clip)?;
        Ok(Self { engines: Some(engines), ..opened })
    }

    /// Writes prompts by another template than the deployment's own.
    #[must_use]
    pub fn with_template(mut self, template: Template) -> Self {
        let text = Arc::get_mut(&mut self.text).expect("nobody else has it before requests come");
        text.dialect = template.dialect();
        text.marks = template.marks(&text.tokenizer);
        text.content_format = template.content_format(text.spec.picture());
        text.template = template;
        self
    }

    /// Holds whoever serves it to so many bytes, whatever the deployment says; without a number to those of the deployment.
    #[must_use]
    pub fn with_memory_max(mut self, bytes: Option<u64>) -> Self {
        let text = Arc::get_mut(&mut self.text).expect("nobody else has it before requests come");
        text.spec.serving.memory_bytes_max = bytes.or(text.spec.serving.memory_bytes_max);
        self
    }

    /// Keeps what is done when.
    #[must_use]
    pub fn with_timeline(mut self, timeline: &Arc<Timeline>) -> Self {
        let text = Arc::get_mut(&mut self.text).expect("nobody else has it before requests come");
        text.timeline = Some(Arc::clone(timeline));
        self
    }

    /// Looks at pictures of which their senders say nothing as `image_options` says; where that says nothing, as the
    /// deployment does.
    ///
    /// # Errors
    /// One line if the model does not see tiles.
    pub fn with_image_options(mut self, image_options: &ImageOptions) -> Result<Self, String> {
        let text = Arc::get_mut(&mut self.text).expect("nobody else has it before requests come");
        if let Some(tiles) = image_options.tiles_max {
            let Some(image_processor) = &mut text.image_processor else {
                return Err("tiles are of models that see; this one reads text alone".to_owned());
            };
            if !image_processor.cutting.allow_tiles(tiles) {
                return Err("tiles are of models that see tiles; this one sees patches".to_owned());
            }
        }
        text.image_options = image_options.or(&text.image_options);
        Ok(self)
    }

    /// Compares all engines with their digests; reads all of them.  `told` hears how many bytes were read, piece by
    /// piece.
    ///
    /// # Errors
    /// When one differs.
    pub fn verify_digests(&self, told: &mut dyn Witness) -> Result<(), OpenError> {
        if let Some(vision) = &self.vision {
            vision.verify_digest(told)?;
        }
        if let Some(similarity) = &self.text.similarity {
            similarity.verify_digest(told)?;
        }
        self.llm.verify_digest(told)
    }

    /// Why the engines do not follow the tactics they were built with, if they have some and do not.
    pub fn untuned(&self) -> Option<&str> {
        self.vision.as_ref().and_then(Vision::untuned).or(self.llm.untuned())
    }

    /// The deployment of engines that are open, with the chat template of `dir`.
    ///
    /// # Errors
    /// [`DeploymentError`] naming the file or engine and what does not fit.
    pub fn of_engines(
        dir: &Path,
        texts: (Spec, Tokenizer),
        vision: Vec<VisionEngine>,
        llm: Box<dyn Decoder>,
    ) -> Result<Self, DeploymentError> {
        Self::of_parts(dir, texts, vision, llm, None)
    }

    fn of_parts(
        dir: &Path,
        (spec, tokenizer): (Spec, Tokenizer),
        vision: Vec<VisionEngine>,
        llm: Box<dyn Decoder>,
        similarity: Option<Similarity>,
    ) -> Result<Self, DeploymentError> {
        let template = Template::open(dir)?;
        let image_token = image_token(dir, &spec, &tokenizer)?;
        let bad = |why| DeploymentError::Bad { path: dir.join(DEPLOYMENT_FILE), why };
        let vision = spec.image.clone().map(|image| Vision::new(image, vision));
        let vision = vision.transpose().map_err(bad)?;
        let image_processor = vision.as_ref().zip(spec.image.clone()).map(|(vision, cutting)| {
            let (grids, router) = (vision.grids(), spec.router.clone());
            ImageProcessor { cutting, grids, router }
        });
        let seen = vision.as_ref().map(|vision| [vision.hidden(), vision.deepstack()]);
        let sizes = Sizes {
            seen,
            heard: [llm.facts().hidden, llm.facts().deepstack],
            llm_vocab: llm.facts().vocab,
            tokenizer_vocab: tokenizer.vocab(),
            eos_max: spec.eos.iter().copied().max().unwrap_or_default(),
        };
        let fault =
            image_processor.as_ref().and_then(ImageProcessor::fault).or_else(|| sizes.fault());
        if let Some(why) = fault {
            return Err(bad(why));
        }
        let facts = llm.facts();
        let (max_seq_len, vocab) = (facts.limits.max_seq_len, facts.vocab);
        let scheme = facts.scheme.clone();
        let (dialect, compiler) = (template.dialect(), OnceLock::new());
        let marks = template.marks(&tokenizer);
        let content_format = template.content_format(spec.picture());
        let image_options =
            ImageOptions { tiles_max: spec.serving.tiles, ..ImageOptions::default() };
        let text = Text {
            image_options,
            spec,
            tokenizer,
            template,
            content_format,
            image_token,
            image_processor,
            similarity,
            max_seq_len,
            vocab,
            scheme,
            dialect,
            marks,
            timeline: None,
            compiler,
        };
        Ok(Self { text: Arc::new(text), vision, llm, engines: None })
    }

    /// Writes `spec` into `dir`, which is made if need be, and copies `files` beside it.
    ///
    /// # Errors
    /// [`DeploymentError`] if the spec is wrong, two files share a name, or the disk refuses.
    pub fn write(dir: &Path, spec: &Spec, files: &[PathBuf]) -> Result<(), DeploymentError> {
        match spec.fault() {
            Some(why) => Err(DeploymentError::Bad { path: dir.join(DEPLOYMENT_FILE), why }),
            None => write_files(dir, spec, files),
        }
    }
}

/// Copies a file into a deployment that is written, to `to`, whose folder is made if need be.
///
/// # Errors
/// [`DeploymentError`] naming the file.
pub fn copy(from: &Path, to: &Path) -> Result<(), DeploymentError> {
    let io = |verb, path: &Path| {
        let path = path.to_owned();
        move |source| DeploymentError::Io { verb, path, source }
    };
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).map_err(io("make", folder))?;
    }
    // Bytes only: the copy belongs to the deployment, with its own permissions.
    let mut source = fs::File::open(from).map_err(io("read", from))?;
    let mut target = fs::File::create(to).map_err(io("write", to))?;
    io::copy(&mut source, &mut target).map_err(io("copy", from))?;
    Ok(())
}

/// Writes what `spec` says into `dir`, which is made if need be, and copies `files` beside it.
pub(crate) fn write_files(
    dir: &Path,
    spec: &impl Serialize,
    files: &[PathBuf],
) -> Result<(), DeploymentError> {
    let io = |verb, path: &Path| {
        let path = path.to_owned();
        move |source| DeploymentError::Io { verb, path, source }
    };
    fs::create_dir_all(dir).map_err(io("make", dir))?;
    let mut names = BTreeSet::from([DEPLOYMENT_FILE.into()]);
    for file in files {
        let name = file.file_name().unwrap_or_default().to_owned();
        if name.is_empty() || !names.insert(name.clone()) {
            let why = "there is another file of this name".to_owned();
            return Err(DeploymentError::Bad { path: file.clone(), why });
        }
        copy(file, &dir.join(&name))?;
    }
    let path = dir.join(DEPLOYMENT_FILE);
    let text = serde_json::to_string_pretty(spec).expect("a struct of plain data is JSON");
    fs::write(&path, text + "\n").map_err(io("write", &path))
}

/// The numbers that parts of a deployment must share.
struct Sizes {
    /// Numbers in each token of the vision engines, and blocks of the tower that they tell of.
    seen: Option<[usize; 2]>,
    /// The same, as the llm engine takes them.
    heard: [usize; 2],
    llm_vocab: usize,
    tokenizer_vocab: usize,
    eos_max: u32,
}

impl Sizes {
    fn fault(&self) -> Option<String> {
        let [[vision, told], [llm, heard]] = [self.seen.unwrap_or(self.heard), self.heard];
        if vision != llm {
            return Some(format!(
                "the vision engine gives embeddings of {vision}, but the llm engine takes {llm}"
            ));
        }
        if told != heard {
            return Some(format!(
                "the vision engine tells of {told} blocks (deepstack), but the llm engine hears of {heard}"
            ));
        }
        if self.tokenizer_vocab > self.llm_vocab {
            let (tokenizer, llm) = (self.tokenizer_vocab, self.llm_vocab);
            return Some(format!(
                "the tokenizer has {tokenizer} tokens, but the llm engine knows {llm}"
            ));
        }
        if self.eos_max as usize >= self.llm_vocab {
            let (eos, llm) = (self.eos_max, self.llm_vocab);
            return Some(format!("eos token {eos} is outside the llm engine's {llm} tokens"));
        }
        None
    }
}

/// What the deployment in `dir` says of itself.
///
/// # Errors
/// [`DeploymentError`] naming the file and what is wrong with it.
pub fn read_spec(dir: &Path) -> Result<Spec, DeploymentError> {
    let path = dir.join(DEPLOYMENT_FILE);
    let bad = |why: String| DeploymentError::Bad { path: path.clone(), why };
    let spec: Spec = serde_json::from_str(&read_text(&path)?)
        .map_err(|error| bad(format!("not a deployment: {error}")))?;
    match spec.fault() {
        Some(why) => Err(bad(why)),
        None => Ok(spec),
    }
}

/// The name of engines: what they say of themselves, their weights' digests included.
fn engines_of<'a>(
    mut engines: impl Iterator<Item = &'a PathBuf>,
) -> Result<Identity, DeploymentError> {
    engines
        .try_fold(Naming::of("engines"), |naming, dir| {
            let path = dir.join(ENGINE_FILE);
            let read = fs::read(&path);
            let said = read.map_err(|source| DeploymentError::Io { verb: "read", path, source })?;
            Ok(naming.bytes(&said))
        })
        .map(Naming::end)
}

/// The token image embeddings replace, if the model sees; the tokens around it must exist as well.
fn image_token(
    dir: &Path,
    spec: &Spec,
    tokenizer: &Tokenizer,
) -> Result<Option<u32>, DeploymentError> {
    let Some(ImageTokens { start, image, end, .. }) = &spec.image_tokens else { return Ok(None) };
    let token = |word: &String| {
        tokenizer.token(word).ok_or_else(|| DeploymentError::Bad {
            path: dir.join(TOKENIZER_FILE),
            why: format!("has no token {word:?}, which {DEPLOYMENT_FILE} names"),
        })
    };
    token(start)?;
    token(end)?;
    token(image).map(Some)
}

/// The tokens that end an answer, by the checkpoint in `dir`: the tokenizer's `eos_token` and the
/// `eos_token_id`s of generation_config.json, in rising order.
///
/// # Errors
/// [`DeploymentError`] if there are none or a file cannot be read.
pub fn eos_tokens(dir: &Path, tokenizer: &Tokenizer) -> Result<Vec<u32>, DeploymentError> {
    let (mut eos, named) = named_ends(dir)?;
    eos.extend(named.and_then(|word| tokenizer.token(&word)));
    if eos.is_empty() {
        let why = "names no eos_token that the tokenizer has".to_owned();
        return Err(DeploymentError::Bad { path: dir.join(template::CONFIG_FILE), why });
    }
    Ok(eos.into_iter().collect())
}

/// What of the texts in `dir`, a checkpoint's without its tokenizer, no deployment can use: the tokens that
/// end an answer must be named, and the chat template must write what somebody says.
///
/// # Errors
/// [`DeploymentError`] naming the file and what is wrong with it.
pub fn check_texts(dir: &Path) -> Result<(), DeploymentError> {
    let (eos, named) = named_ends(dir)?;
    if eos.is_empty() && named.is_none() {
        let why = "names no eos_token".to_owned();
        return Err(DeploymentError::Bad { path: dir.join(template::CONFIG_FILE), why });
    }
    Ok(Template::open(dir)?.try_once()?)
}

/// The `eos_token_id`s of generation_config.json and the `eos_token` of the tokenizer's configuration.
fn named_ends(dir: &Path) -> Result<(BTreeSet<u32>, Option<String>), DeploymentError> {
    let path = dir.join(GENERATION_FILE);
    let mut eos = BTreeSet::new();
    if path.exists() {
        let bad = |why| DeploymentError::Bad { path: path.clone(), why };
        let config: serde_json::Value = serde_json::from_str(&read_text(&path)?)
            .map_err(|error| bad(format!("not JSON: {error}")))?;
        let field = &config["eos_token_id"];
        for token in field.as_array().map_or(std::slice::from_ref(field), Vec::as_slice) {
            match token.as_u64().map(u32::try_from) {
                Some(Ok(token)) => _ = eos.insert(token),
                None if token.is_null() => {}
                _ => return Err(bad(format!("eos_token_id {token} is no token"))),
            }
        }
    }
    Ok((eos, template::special_token(dir, "eos_token")?))
}
