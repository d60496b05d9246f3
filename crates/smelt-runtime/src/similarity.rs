//! Says how near pictures are to words: the cosine of what a CLIP makes of both.
//!
//! A deployment may have such a pair of engines beside its own, so that tiles which have to do with the
//! question are looked at closely.  Whoever prepares a prompt asks, off the threads of the other
//! engines.  Knows nothing of how tiles are cut or routed.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use smelt_backend::{Backends, Graph, GraphError, OpenError, Tensor, Witness};

use crate::deployment_error::DeploymentError;
use crate::engine_dirs::EngineDirs;
use crate::identity::{Identity, Naming, within};
use crate::image::{Image, Scale, resize};
use crate::tokenizer::{Tokenizer, TokenizerError};

/// The file of the CLIP's tokenizer, beside that of the language model.
pub const TOKENIZER: &str = "clip-tokenizer.json";

/// What the engines read and give.
const PIXELS: &str = "pixel_values";
const WORDS: [&str; 2] = ["input_ids", "attention_mask"];
const OF_PICTURES: &str = "image_embeds";
const OF_WORDS: &str = "text_embeds";

/// The longest text in tokens: attention takes memory with its square, and CLIPs read 77.
const TOKENS_MAX: usize = 8192;

/// Rows that are kept of what was seen or read last, twice as many at most: 2 MiB each of 512 numbers.
const KEPT: usize = 1024;

/// What `deployment.json` says of a CLIP.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// The directory of its vision engine, relative to the deployment.
    pub vision: EngineDirs,
    /// The directory of its text engine, relative to the deployment.
    pub text: EngineDirs,
    /// Longer texts are cut after so many tokens, the special ones counted.
    pub max_tokens: usize,
    /// From bytes to what it reads.
    pub scale: Scale,
}

impl Spec {
    /// What is wrong with the values, if anything.
    pub fn fault(&self) -> Option<String> {
        let engines = [("vision", &self.vision), ("text", &self.text)];
        if let Some(fault) = engines.into_iter().find_map(|(field, dirs)| dirs.fault(field)) {
            return Some(format!("clip: {fault}"));
        }
        if !(1..=TOKENS_MAX).contains(&self.max_tokens) {
            let max = self.max_tokens;
            return Some(format!("clip: max_tokens is {max}, not between 1 and {TOKENS_MAX}"));
        }
        self.scale.fault().map(|fault| format!("clip: {fault}"))
    }
}

/// Why nothing can be said of a picture and words.
#[derive(Debug, thiserror::Error)]
pub enum SimilarityError {
    /// The words do not become tokens.
    #[error("the CLIP cannot read the question: {0}")]
    Tokenizer(#[from] TokenizerError),
    /// An engine failed.
    #[error("the CLIP failed: {0}")]
    Run(#[from] GraphError),
    /// An engine gave something else than one row of numbers.
    #[error("the CLIP gave {found:?} instead of a row of {width}")]
    Row {
        /// The shape it gave.
        found: Vec<usize>,
        /// Numbers of a row.
        width: usize,
    },
}

/// What pictures are compared with.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The words of a question.
    pub words: &'a str,
    /// What was seen or read is of use to those who say the same alone.
    pub reuse: Option<Identity>,
}

/// A CLIP ready to compare.
#[derive(Debug)]
pub struct Similarity {
    vision: Box<dyn Graph>,
    text: Box<dyn Graph>,
    tokenizer: Tokenizer,
    /// Longer texts are cut after so many tokens, the special ones counted.
    max_tokens: usize,
    scale: Scale,
    /// Pixels on a side of what it sees.
    side: usize,
    /// Numbers of a row.
    width: usize,
    /// Held while an engine runs: comparing is beside the work, and must not take every processor.
    kept: Mutex<Kept>,
}

impl Similarity {
    /// Opens what `spec` names, with the tokenizer of the deployment `dir`.
    ///
    /// # Errors
    /// [`DeploymentError`] naming the file or engine and what does not fit.
    pub fn open(backends: Backends, dir: &Path, spec: &Spec) -> Result<Self, DeploymentError> {
        Self::open_at(backends, dir, dir, spec)
    }

    /// The same of a deployment that will lie at `at`, beside its engines.
    pub(crate) fn open_at(
        backends: Backends,
        dir: &Path,
        at: &Path,
        spec: &Spec,
    ) -> Result<Self, DeploymentError> {
        let tokenizer = Tokenizer::open(&dir.join(TOKENIZER))?.for_whole();
        let (seen, read) = (spec.vision.chosen(backends, at)?, spec.text.chosen(backends, at)?);
        let (vision, text) = (backends.graph(&seen)?, backends.graph(&read)?);
        let bad = |path: &PathBuf, why: String| DeploymentError::Bad { path: path.clone(), why };
        let side = side_of(&*vision).map_err(|why| bad(&seen, why))?;
        if !text
            .inputs()
            .iter()
            .map(|input| (&input.name[..], input.integer))
            .eq(WORDS.map(|name| (name, true)))
        {
            return Err(bad(
                &read,
                format!("is no text engine of a CLIP: it does not read {}", WORDS.join(" and ")),
            ));
        }
        let width = width_of(&*vision, OF_PICTURES).map_err(|why| bad(&seen, why))?;
        let other = width_of(&*text, OF_WORDS).map_err(|why| bad(&read, why))?;
        if width != other {
            let why = format!(
                "gives rows of {other} of a text, but the CLIP's vision engine gives {width} of a picture"
            );
            return Err(bad(&read, why));
        }
        let (max_tokens, scale, kept) = (spec.max_tokens, spec.scale, Mutex::default());
        Ok(Self { vision, text, tokenizer, max_tokens, scale, side, width, kept })
    }

    /// Compares both engines with their digests; reads all of them, and tells `told` of each piece's bytes.
    ///
    /// # Errors
    /// When one differs.
    pub fn verify_digest(&self, told: &mut dyn Witness) -> Result<(), OpenError> {
        self.vision.verify_digest(told)?;
        self.text.verify_digest(told)
    }

    /// How near each of `tiles`, `[side, side, 3]` bytes, is to what is `asked`: -1 to 1.  What was seen or read
    /// lately for the same part is not looked at again.
    ///
    /// # Errors
    /// [`SimilarityError`] when the tokenizer or an engine fails.
    pub fn of(
        &self,
        tiles: &[Vec<u8>],
        side: usize,
        Asked { words, reuse }: Asked<'_>,
    ) -> Result<Vec<f32>, SimilarityError> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let name = Naming::of("words").bytes(words.as_bytes()).end();
        let words = kept.row(within(reuse, name), || self.read(words))?;
        let near = |tile: &Vec<u8>| {
            let name = Naming::of("tile").number(side as u64).bytes(tile).end();
            let row = kept.row(within(reuse, name), || self.see(tile, side))?;
            Ok(row.iter().zip(&words[..]).map(|(a, b)| a * b).sum())
        };
        tiles.iter().map(near).collect()
    }

    /// The row of a tile, of length 1.
    fn see(&self, tile: &[u8], side: usize) -> Result<Vec<f32>, SimilarityError> {
        let mut data = Vec::with_capacity(self.side * self.side * 3);
        if side == self.side {
            self.scale.planes(tile, &mut data);
        } else {
            let tile = Image::from_rgb(side, side, tile.to_vec());
            let tile = tile.expect("a tile is a full square");
            self.scale.planes(&resize(&tile, self.side, self.side), &mut data);
        }
        let shape = vec![1, 3, self.side, self.side];
        self.row(&*self.vision, vec![Tensor::F32 { shape, data }], OF_PICTURES)
    }

    /// The row of a text, of length 1.
    fn read(&self, words: &str) -> Result<Vec<f32>, SimilarityError> {
        let data: Vec<i64> =
            self.tokenizer.encode_cut(words, self.max_tokens)?.into_iter().map(i64::from).collect();
        let shape = vec![1, data.len()];
        let mask = Tensor::I64 { shape: shape.clone(), data: vec![1; data.len()] };
        self.row(&*self.text, vec![Tensor::I64 { shape, data }, mask], OF_WORDS)
    }

    fn row(
        &self,
        engine: &dyn Graph,
        inputs: Vec<Tensor>,
        name: &str,
    ) -> Result<Vec<f32>, SimilarityError> {
        let outputs = engine.run(inputs)?;
        let mut named = engine.outputs().iter().zip(outputs);
        let row = named.find_map(|(output, value)| (output.name == name).then_some(value));
        let row = row.expect("opening found the output");
        match row.floats() {
            Some(numbers) if row.shape() == [1, self.width] => Ok(unit(numbers)),
            _ => Err(SimilarityError::Row { found: row.shape().to_vec(), width: self.width }),
        }
    }
}

/// Pixels on a side of what a CLIP's vision engine sees.
fn side_of(engine: &dyn Graph) -> Result<usize, String> {
    match engine.inputs() {
        [input] if input.name == PIXELS => match input.dims[..] {
            [_, Some(3), Some(height), Some(width)] if height == width => Ok(width),
            ref dims => {
                Err(format!("sees pictures of {dims:?}; a CLIP's are [any, 3, side, side]"))
            }
        },
        _ => Err(format!("is no vision engine of a CLIP: it does not read {PIXELS} alone")),
    }
}

/// Numbers of the row that an engine gives.
fn width_of(engine: &dyn Graph, name: &str) -> Result<usize, String> {
    let output = engine.outputs().iter().find(|output| output.name == name);
    let width = output.and_then(|output| output.tried.last().copied()).filter(|width| *width > 0);
    width.ok_or_else(|| format!("gives no {name}; a CLIP's engines end in a projection"))
}

/// A row of length 1; of zeros, as it is.
fn unit(row: &[f32]) -> Vec<f32> {
    let length = row.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    row.iter().map(|value| (f64::from(*value) / length.max(f64::MIN_POSITIVE)) as f32).collect()
}

/// Rows by the identity of what they are of.  Once `young` is full it becomes `old`, and what is asked for
/// again is young again: the least used are gone first.
#[derive(Debug, Default)]
struct Kept {
    young: HashMap<Identity, Arc<[f32]>>,
    old: HashMap<Identity, Arc<[f32]>>,
}

impl Kept {
    fn row<E>(
        &mut self,
        key: Identity,
        make: impl FnOnce() -> Result<Vec<f32>, E>,
    ) -> Result<Arc<[f32]>, E> {
        if let Some(row) = self.young.get(&key) {
            return Ok(Arc::clone(row));
        }
        let row = match self.old.remove(&key) {
            Some(row) => row,
            None => make()?.into(),
        };
        if self.young.len() >= KEPT {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, Arc::clone(&row));
        Ok(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_length_one() {
        assert_eq!(unit(&[3.0, -4.0]), [0.6, -0.8]);
        assert_eq!(unit(&[0.0, 0.0]), [0.0, 0.0]);
    }

    #[test]
    fn what_is_asked_for_again_is_made_once_and_what_is_not_goes() {
        let mut kept = Kept::default();
        let mut made = 0;
        let mut ask = |key: u64| {
            let mut is_made = false;
            let row: Result<_, ()> = kept.row([key, 0], || {
                is_made = true;
                Ok(vec![key as f32])
            });
            assert_eq!(row.unwrap()[..], [key as f32]);
            assert!(kept.young.len() + kept.old.len() <= 2 * KEPT);
            made += usize::from(is_made);
            is_made
        };
        assert!(ask(0) && !ask(0));
        for key in 1..=3 * KEPT as u64 {
            assert!(ask(key));
            assert!(!ask(0), "it is asked for all the time");
        }
        assert!(ask(1), "it was not asked for");
        assert_eq!(made, 3 * KEPT + 2);
    }

    #[test]
    fn values_that_cannot_work_say_why() {
        let spec = |vision: &str, max_tokens| Spec {
            vision: vision.into(),
            text: "../t".into(),
            max_tokens,
            scale: Scale::CLIP,
        };
        assert_eq!(spec("../v", 77).fault(), None);
        assert!(spec("/v", 77).fault().unwrap().starts_with("clip: vision is \"/v\""));
        assert!(spec("../v", 0).fault().unwrap().contains("max_tokens is 0"));
    }
}
