//! Reads what a checkpoint says of its pictures and clips: `preprocessor_config.json`.
//!
//! The file is other people's, so what is not understood is passed over; what is missing is the
//! family's own.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::scale::Scale;
use crate::deployment_error::{DeploymentError, read_text};

/// The file in its checkpoint.
pub const PROCESSOR_FILE: &str = "preprocessor_config.json";

/// The file of what is said of clips, where that is something else.
const CLIP_FILE: &str = "video_preprocessor_config.json";

/// The file of both in newer checkpoints, which goes before the others: objects of these names.
const BOTH_FILE: &str = "processor_config.json";
const PICTURES: &str = "image_processor";
const CLIPS: &str = "video_processor";

/// What a checkpoint says of its pictures.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PreprocessorConfig {
    /// Fewest pixels of a picture.
    pub min_pixels: Option<usize>,
    /// Most pixels of a picture.
    pub max_pixels: Option<usize>,
    /// Pixels of the longest edge; processors of patches mean those of the whole picture by the same name.
    pub longest_edge: Option<usize>,
    /// Whether pictures are split into tiles, of processors that split some.
    pub splits: Option<bool>,
    /// From bytes to what the model reads.
    pub scale: Option<Scale>,
}

/// The fields, by both of their names.
#[derive(Deserialize)]
struct Fields {
    min_pixels: Option<usize>,
    max_pixels: Option<usize>,
    size: Option<Value>,
    do_image_splitting: Option<bool>,
    image_mean: Option<[f32; 3]>,
    image_std: Option<[f32; 3]>,
}

impl PreprocessorConfig {
    /// Of the checkpoint in `dir`; nothing said where the file is not there.
    ///
    /// # Errors
    /// [`DeploymentError`] naming the file if it cannot be read.
    pub fn of_checkpoint(dir: &Path) -> Result<Self, DeploymentError> {
        Self::of_pictures(&in_dir(dir))
    }

    /// Of files that `read` gives by their names, nothing where there is none.
    ///
    /// # Errors
    /// [`DeploymentError`] naming the file if it cannot be read.
    pub fn of_pictures(read: &Read<'_>) -> Result<Self, DeploymentError> {
        let found = first(read, PICTURES, &[PROCESSOR_FILE])?;
        found.map_or_else(|| Ok(Self::default()), |(path, said)| Self::of_json(path, said))
    }

    /// What the checkpoint in `dir` says of clips: what it says of pictures where it says nothing else.
    ///
    /// # Errors
    /// [`DeploymentError`] naming the file if it cannot be read.
    pub fn of_clips(dir: &Path) -> Result<Self, DeploymentError> {
        let read = in_dir(dir);
        let found = first(&read, CLIPS, &[CLIP_FILE, PROCESSOR_FILE])?;
        found.map_or_else(|| Self::of_pictures(&read), |(path, said)| Self::of_json(path, said))
    }

    fn of_json(path: PathBuf, said: Value) -> Result<Self, DeploymentError> {
        let fields: Fields = serde_json::from_value(said).map_err(|error| unclear(path, &error))?;
        let edge = |name: &str| fields.size.as_ref()?.get(name)?.as_u64()?.try_into().ok();
        let scale = fields.image_mean.zip(fields.image_std);
        Ok(Self {
            min_pixels: fields.min_pixels.or_else(|| edge("shortest_edge")),
            max_pixels: fields.max_pixels.or_else(|| edge("longest_edge")),
            longest_edge: edge("longest_edge"),
            splits: fields.do_image_splitting,
            scale: scale.map(|(mean, std)| Scale { mean, std }),
        })
    }
}

/// The text of a file, and what messages call it; nothing where there is no such file.
pub type Read<'a> = dyn Fn(&str) -> Result<Option<(PathBuf, String)>, DeploymentError> + 'a;

/// Reads files of a directory.
fn in_dir(dir: &Path) -> impl Fn(&str) -> Result<Option<(PathBuf, String)>, DeploymentError> {
    move |file: &str| {
        let path = dir.join(file);
        if !path.exists() {
            return Ok(None);
        }
        let text = read_text(&path)?;
        Ok(Some((path, text)))
    }
}

/// What is under `name` in [`BOTH_FILE`], or else the first of `files` that there is.
fn first(
    read: &Read<'_>,
    name: &str,
    files: &[&str],
) -> Result<Option<(PathBuf, Value)>, DeploymentError> {
    for file in [BOTH_FILE].iter().chain(files) {
        let Some((path, text)) = read(file)? else { continue };
        let mut said: Value =
            serde_json::from_str(&text).map_err(|error| unclear(path.clone(), &error))?;
        if *file != BOTH_FILE {
            return Ok(Some((path, said)));
        }
        if said[name].is_object() {
            return Ok(Some((path, said[name].take())));
        }
    }
    Ok(None)
}

fn unclear(path: PathBuf, error: &serde_json::Error) -> DeploymentError {
    let why = format!("not what says how pictures are prepared: {error}");
    DeploymentError::Bad { path, why }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<PreprocessorConfig, String> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(PROCESSOR_FILE), text).unwrap();
        PreprocessorConfig::of_checkpoint(dir.path()).map_err(|error| error.to_string())
    }

    #[test]
    fn limits_have_two_names() {
        // As Qwen2.5-VL and Qwen3-VL are published.
        let old = r#"{"min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}"#;
        let new = r#"{"size": {"longest_edge": 16777216, "shortest_edge": 65536}, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}"#;
        let processor = |min, max, scale| PreprocessorConfig {
            min_pixels: Some(min),
            max_pixels: Some(max),
            scale: Some(scale),
            ..PreprocessorConfig::default()
        };
        assert_eq!(read(old), Ok(processor(3136, 12_845_056, Scale::CLIP)));
        let longest_edge = Some(16_777_216);
        let limits = processor(65_536, 16_777_216, Scale::HALVES);
        assert_eq!(read(new), Ok(PreprocessorConfig { longest_edge, ..limits }));
        let split = read(r#"{"size": {"longest_edge": 2048}, "do_image_splitting": false}"#);
        let PreprocessorConfig { longest_edge, splits, .. } = split.unwrap();
        assert_eq!((longest_edge, splits), (Some(2048), Some(false)));
        assert_eq!(read(r#"{"size": 448}"#), Ok(PreprocessorConfig::default()));
    }

    #[test]
    fn a_missing_file_says_nothing_and_a_broken_one_is_named() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(
            PreprocessorConfig::of_checkpoint(dir.path()).unwrap(),
            PreprocessorConfig::default()
        );
        assert!(read("{").unwrap_err().contains("preprocessor_config.json: not what says"));
    }

    #[test]
    fn clips_have_limits_of_their_own_where_a_file_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let limits = |max| format!(r#"{{"size": {{"longest_edge": {max}, "shortest_edge": 1}}}}"#);
        let found = || {
            let both = [
                PreprocessorConfig::of_checkpoint(dir.path()),
                PreprocessorConfig::of_clips(dir.path()),
            ];
            both.map(|processor| processor.unwrap().max_pixels)
        };
        let write = |file: &str, text: String| std::fs::write(dir.path().join(file), text).unwrap();
        assert_eq!(found(), [None, None]);
        write(PROCESSOR_FILE, limits(5));
        assert_eq!(found(), [Some(5), Some(5)]);
        write(CLIP_FILE, limits(7));
        assert_eq!(found(), [Some(5), Some(7)]);
        write(BOTH_FILE, r#"{"processor_class": "X"}"#.to_owned());
        assert_eq!(found(), [Some(5), Some(7)]);
        let both =
            format!(r#"{{"image_processor": {}, "video_processor": {}}}"#, limits(8), limits(9));
        write(BOTH_FILE, both);
        assert_eq!(found(), [Some(8), Some(9)]);
    }
}
