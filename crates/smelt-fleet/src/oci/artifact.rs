//! Makes outputs an artifact: a config that lists them, and the slices of their files as its layers.
//!
//! Each file begins a new layer, and no layer is longer than [`SLICE_BYTES`], so that what was cut short is gone on with at a
//! layer: registries keep no half of one.  Equal outputs make equal bytes.  Pure but for [`Artifact::of`], which reads files.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use smelt_store::bundle::{self, BundledOutput};
use smelt_store::{Digest, FileEntry};

use super::document::{Descriptor, ImageManifest, MANIFEST_BYTES_MAX};

/// What the artifact is.
pub const ARTIFACT_TYPE: &str = "application/vnd.smelt.delivery.v1";
const CONFIG_TYPE: &str = "application/vnd.smelt.delivery.config.v1+json";
const LAYER_TYPE: &str = "application/vnd.smelt.delivery.slice.v1";
/// What goes at once: a registry that was left in the middle of one begins it again.  In tests it is less, so that they need not
/// write gigabytes.
pub const SLICE_BYTES: u64 = if cfg!(test) { 64 << 10 } else { 64 << 20 };
/// A manifest of 4 MiB, which registries take, lists some 25,000; so many slices are a tebibyte.
pub const LAYERS_MAX: usize = 16_384;
/// It lists files, of which there are no more than layers and empty ones; a record has 64 KiB at most.
pub const CONFIG_BYTES_MAX: u64 = 16 << 20;
/// A statement names them all, in 70 bytes each.
pub const OUTPUTS_MAX: usize = 256;
/// What is read and hashed at a time.
const PIECE_BYTES: usize = 1 << 20;

/// The config.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    outputs: Vec<BundledOutput>,
}

/// A part of a file, which is a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The number of the output.
    pub output: usize,
    /// The number of the file in it.
    pub file: usize,
    /// Where in the file it begins.
    pub at: u64,
    /// How long it is.
    pub bytes: u64,
    /// Of its content.
    pub digest: Digest,
}

/// Outputs as an artifact.
#[derive(Debug)]
pub struct Artifact {
    /// The JSON that lists the outputs.
    pub config: Vec<u8>,
    /// The JSON that names config and layers.
    pub manifest: Vec<u8>,
    /// The layers, in their order.
    pub slices: Vec<Slice>,
}

/// Outputs that make no artifact, or an artifact that is none of outputs.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// An output is not what was sealed.
    #[error("{} is not what was sealed any more: smelt cache fsck", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// More than fits one.
    #[error("{count} {what}, and one delivery has at most {most}: make several")]
    TooMany {
        /// How many.
        count: u64,
        /// Of what.
        what: &'static str,
        /// The limit.
        most: u64,
    },
    /// It is none.
    #[error("it is no delivery of this version: {0}")]
    Not(String),
}

/// Where slices of these files are, of outputs in their order.
fn places(outputs: &[BundledOutput]) -> impl Iterator<Item = (usize, usize, u64, u64, &FileEntry)> {
    outputs.iter().enumerate().flat_map(|(output, it)| {
        it.files.files().iter().enumerate().flat_map(move |(file, entry)| {
            let begins = (0..entry.size).step_by(SLICE_BYTES as usize);
            begins.map(move |at| (output, file, at, (entry.size - at).min(SLICE_BYTES), entry))
        })
    })
}

/// How many slices they have, without a list of them: what says that it is larger than any disk makes none.
fn count(outputs: &[BundledOutput]) -> u64 {
    let files = outputs.iter().flat_map(|output| output.files.files());
    files.fold(0, |sum, file| sum.saturating_add(file.size.div_ceil(SLICE_BYTES)))
}

fn check_counts(outputs: &[BundledOutput]) -> Result<(), ArtifactError> {
    for (count, what, most) in [
        (outputs.len() as u64, "outputs", OUTPUTS_MAX as u64),
        (count(outputs), "slices", LAYERS_MAX as u64),
    ] {
        if count > most {
            return Err(ArtifactError::TooMany { count, what, most });
        }
    }
    Ok(())
}

impl Artifact {
    /// Of outputs, each with the folder that holds it and behind those that it refers to; `told` hears of bytes as they are
    /// read.  Files of one slice are not read: their digest is known.
    ///
    /// # Errors
    /// If a file cannot be read or there are too many.
    pub fn of(
        outputs: &[(BundledOutput, PathBuf)],
        told: &mut dyn FnMut(u64),
    ) -> Result<Self, ArtifactError> {
        let (listed, folders): (Vec<_>, Vec<_>) = outputs.iter().cloned().unzip();
        check_counts(&listed)?;
        let mut slices = Vec::new();
        let mut reading: Option<(PathBuf, File)> = None;
        for (output, file, at, bytes, entry) in places(&listed) {
            let digest = if entry.size <= SLICE_BYTES {
                entry.sha256
            } else {
                let path = folders[output].join(&entry.path);
                let failed = |source| ArtifactError::Read { path: path.clone(), source };
                let opened = match reading.take().filter(|(open, _)| *open == path) {
                    Some((_, opened)) => opened,
                    None => File::open(&path).map_err(failed)?,
                };
                let digest = digest_of(&opened, at, bytes).map_err(failed)?;
                reading = Some((path, opened));
                digest
            };
            slices.push(Slice { output, file, at, bytes, digest });
            told(bytes);
        }
        let config = serde_json::to_vec(&Config { outputs: listed });
        let config = config.expect("digests, texts and JSON values are JSON");
        let layer = |slice: &Slice| Descriptor::new(LAYER_TYPE, slice.digest, slice.bytes);
        let layers = slices.iter().map(layer).collect();
        let described = Descriptor::of(CONFIG_TYPE, &config);
        let manifest = ImageManifest::new(ARTIFACT_TYPE, described, layers).to_json();
        for (count, what, most) in [
            (config.len() as u64, "bytes of the list of all files", CONFIG_BYTES_MAX),
            (manifest.len() as u64, "bytes of the manifest", MANIFEST_BYTES_MAX),
        ] {
            if count > most {
                return Err(ArtifactError::TooMany { count, what, most });
            }
        }
        Ok(Self { config, manifest, slices })
    }
}

/// The descriptor of the config of a manifest, if that is one of a delivery.
///
/// # Errors
/// What is wrong with it.
pub fn config_of(manifest: &[u8]) -> Result<(ImageManifest, Descriptor), ArtifactError> {
    let manifest = ImageManifest::from_json(manifest).map_err(ArtifactError::Not)?;
    match manifest.artifact_type.as_deref() {
        Some(ARTIFACT_TYPE) => {}
        other => {
            let other: String = other.unwrap_or("image").chars().take(80).collect();
            return Err(ArtifactError::Not(format!("it is a {other:?}, not a {ARTIFACT_TYPE:?}")));
        }
    }
    let config = manifest.config.clone();
    if config.size > CONFIG_BYTES_MAX {
        let problem =
            format!("a config of {} bytes, at most {CONFIG_BYTES_MAX} are read", config.size);
        return Err(ArtifactError::Not(problem));
    }
    Ok((manifest, config))
}

/// The outputs that a config lists, and where the layers of the manifest go.
///
/// # Errors
/// If the two do not fit each other, or no outputs are like that.
pub fn read(
    manifest: &ImageManifest,
    config: &[u8],
) -> Result<(Vec<BundledOutput>, Vec<Slice>), ArtifactError> {
    let not = |problem: String| ArtifactError::Not(problem);
    let config: Config =
        serde_json::from_slice(config).map_err(|error| not(format!("its config: {error}")))?;
    let outputs = config.outputs;
    bundle::check(&outputs).map_err(not)?;
    if outputs.is_empty() {
        return Err(not("it has no outputs".to_owned()));
    }
    check_counts(&outputs)?;
    let (have, need) = (manifest.layers.len() as u64, count(&outputs));
    if have != need {
        return Err(not(format!("its files have {need} slices, and it has {have} layers")));
    }
    let mut slices = Vec::new();
    for ((output, file, at, bytes, entry), layer) in places(&outputs).zip(&manifest.layers) {
        let digest = layer.digest.0;
        let is_whole = entry.size <= SLICE_BYTES;
        if layer.size != bytes || is_whole && digest != entry.sha256 {
            return Err(not(format!("a layer of {} is another one than its file has", entry.path)));
        }
        slices.push(Slice { output, file, at, bytes, digest });
    }
    Ok((outputs, slices))
}

/// Of so many bytes of a file from a place on.
pub(crate) fn digest_of(file: &File, at: u64, bytes: u64) -> io::Result<Digest> {
    let mut reader = Part { file, at, left: bytes };
    let (mut hasher, mut buffer) = (Sha256::new(), vec![0; PIECE_BYTES.min(bytes as usize)]);
    loop {
        match reader.read(&mut buffer)? {
            0 if reader.left > 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            0 => return Ok(digest_from(hasher)),
            some => hasher.update(&buffer[..some]),
        }
    }
}

pub(crate) fn digest_from(hasher: Sha256) -> Digest {
    Digest::from_bytes(hasher.finalize().into())
}

/// Reads a part of a file, whoever else reads in it.
pub(crate) struct Part<F> {
    file: F,
    at: u64,
    left: u64,
}

impl Part<File> {
    pub(crate) fn open(path: &Path, at: u64, bytes: u64) -> io::Result<Self> {
        Ok(Self { file: File::open(path)?, at, left: bytes })
    }
}

impl<F: std::borrow::Borrow<File>> Read for Part<F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let some = self.file.borrow().read_at(&mut buffer[..most], self.at)?;
        self.at += some as u64;
        self.left -= some as u64;
        Ok(some)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use smelt_store::Manifest;
    use smelt_store::bundle::BundledKey;

    use super::*;

    /// An output of one file, of which only so much is said.
    fn output(size: u64) -> BundledOutput {
        let sha256 = Digest::of(&size.to_le_bytes());
        let entry = FileEntry { path: "weights.bin".to_owned(), size, sha256, executable: false };
        let files = Manifest::new(vec![entry]).unwrap();
        let keys = vec![BundledKey::new(Digest::of(b"key"), vec![], &json!({}))];
        BundledOutput { tree: files.digest(), files, refers: vec![], keys }
    }

    fn config(outputs: &[BundledOutput]) -> Vec<u8> {
        serde_json::to_vec(&Config { outputs: outputs.to_vec() }).unwrap()
    }

    fn manifest(config: &[u8], layers: Vec<Descriptor>) -> ImageManifest {
        ImageManifest::new(ARTIFACT_TYPE, Descriptor::of(CONFIG_TYPE, config), layers)
    }

    fn layer(content: &[u8], size: u64) -> Descriptor {
        Descriptor::new(LAYER_TYPE, Digest::of(content), size)
    }

    #[track_caller]
    fn check(outputs: &[BundledOutput], layers: Vec<Descriptor>, expect: Result<usize, &str>) {
        let config = config(outputs);
        match (read(&manifest(&config, layers), &config), expect) {
            (Ok((_, slices)), Ok(count)) => assert_eq!(slices.len(), count),
            (Err(error), Err(words)) => assert!(error.to_string().contains(words), "{error}"),
            (found, expect) => panic!("{found:?}, not {expect:?}"),
        }
    }

    #[test]
    fn layers_are_the_slices_of_the_files() {
        let small = layer(&7_u64.to_le_bytes(), 7);
        check(&[output(7)], vec![small.clone()], Ok(1));
        check(&[output(0)], vec![], Ok(0));
        let two = [layer(b"a", SLICE_BYTES), layer(b"b", 1)];
        check(&[output(SLICE_BYTES + 1)], two.to_vec(), Ok(2));
        check(&[output(7)], vec![layer(b"other", 7)], Err("another one than its file has"));
        check(&[output(7)], vec![layer(&7_u64.to_le_bytes(), 8)], Err("another one"));
        check(&[output(7)], vec![], Err("1 slices, and it has 0 layers"));
        check(&[output(7)], vec![small.clone(), small.clone()], Err("it has 2 layers"));
        check(&[output(SLICE_BYTES + 1)], [&two[..], &two[..1]].concat(), Err("it has 3 layers"));
        check(&[], vec![], Err("it has no outputs"));
    }

    /// What would take more memory or disk than there is, is refused before a list of it is made.
    #[test]
    fn no_list_is_longer_than_its_limit() {
        let largest = LAYERS_MAX as u64 * SLICE_BYTES;
        assert!(check_counts(&[output(largest)]).is_ok());
        assert!(check_counts(&[output(largest + 1)]).is_err());
        check(&[output(u64::MAX)], vec![], Err("slices, and one delivery has at most"));
        let distinct = |count: u64| (1..=count).map(output).collect::<Vec<_>>();
        assert!(check_counts(&distinct(OUTPUTS_MAX as u64)).is_ok());
        assert!(check_counts(&distinct(OUTPUTS_MAX as u64 + 1)).is_err());
    }

    #[test]
    fn what_is_no_delivery_is_refused() {
        let text = config(&[output(7)]);
        let good = manifest(&text, vec![layer(&7_u64.to_le_bytes(), 7)]);
        assert!(config_of(&good.to_json()).is_ok() && read(&good, &text).is_ok());
        let mut image = good.clone();
        image.artifact_type = None;
        let error = config_of(&image.to_json()).unwrap_err().to_string();
        assert!(error.contains("\"image\""), "{error}");
        let mut long = good.clone();
        long.config.size = CONFIG_BYTES_MAX + 1;
        assert!(config_of(&long.to_json()).is_err());
        for (from, to) in [
            ("\"weights.bin\"", "\"../weights.bin\""),
            ("\"weights.bin\"", "\"/weights.bin\""),
            ("\"size\":7", "\"size\":8"),
            ("\"refers\":[]", "\"refers\":[],\"more\":1"),
        ] {
            let text = String::from_utf8(text.clone()).unwrap();
            assert!(text.contains(from), "{from}");
            assert!(read(&good, text.replace(from, to).as_bytes()).is_err(), "{to}");
        }
    }
}
