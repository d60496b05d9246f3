//! Reads and writes the directory of a decoder for GPUs: `engine.json`, `weights.bin`, and the kernels beside them.
//!
//! What is written last is `engine.json`, so that a broken build leaves no engine.  Opening checks every range against the
//! size of `weights.bin`, and the digest of the kernels; the weights are not read.  Knows nothing of layers or packing.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use smelt_backend::{ENGINE_FILE, Heading, Limits, OpenError, Witness, files};
use smelt_tensor::decoder::check_sizes;

use crate::CudaTarget;
use crate::driver::{HostBytes, map_file};
use crate::kernels::page::HeadShape;
use crate::tactics::CardTactics;

/// The file that holds the weights.
pub const WEIGHTS_FILE: &str = "weights.bin";
/// Version of the directory's layout; a change of names, meanings or packing raises it.
pub const FORMAT: u32 = 1;
/// Version of the packing that kernels read; a change of theirs raises it.
pub const LAYOUT: u32 = 6;
/// What `engine.json` calls this kind.
pub const KIND: &str = "llm";
/// Where tensors begin: at a multiple of what the device aligns its own memory to.
const TENSOR_ALIGN: u64 = 256;
/// `weights.bin` is whole pages long.
const FILE_ALIGN: u64 = 4096;
/// Bytes read at a time.
const READ_BYTES: usize = 16 << 20;
/// More kernels than any card loads.
const KERNELS_BYTES_MAX: u64 = 64 << 20;

/// The sizes of a decoder, as `engine.json` keeps them.
///
/// What families differ in is in the tensors: a bias or a norm of heads is added where there is one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecoderFile {
    /// The name of its family, for messages.
    pub family: String,
    /// The scheme of its linear weights, by the word pipelines use.
    pub scheme: String,
    /// Numbers in a token's embedding.
    pub hidden: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Numbers of a head.
    pub head_dim: usize,
    /// Numbers inside the MLP.
    pub intermediate: usize,
    /// Tokens it tells apart.
    pub vocab: usize,
    /// Epsilon of the RMSNorms.
    pub eps: f32,
    /// What cosines and sines of places are multiplied with.
    pub rotary_factor: f32,
    /// Whether tokens stand in time, height and width (M-RoPE).
    #[serde(default)]
    pub has_places: bool,
    /// First layers that are followed by adding image features.
    #[serde(default)]
    pub deepstack: usize,
    /// What it is built for.
    pub limits: Limits,
    /// Places that the model was made for: no slot may be longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub positions: Option<usize>,
}

impl DecoderFile {
    /// The first field that is not as in `wanted`, in words.
    pub fn unlike(&self, wanted: &Self) -> Option<String> {
        let fields = |file: &Self| serde_json::to_value(file).unwrap_or_default();
        let (own, wanted) = (fields(self), fields(wanted));
        let names = wanted.as_object().into_iter().chain(own.as_object());
        let mut other = names.flat_map(|all| all.keys()).filter(|&name| own[name] != wanted[name]);
        other.next().map(|name| format!("its {name} is {}, not {}", own[name], wanted[name]))
    }

    /// Whether the sizes can belong to a decoder; tensors are compared with them later.
    fn check(&self) -> Result<(), String> {
        let Self { hidden, layers, heads, kv_heads, head_dim, intermediate, vocab, .. } = *self;
        check_sizes([hidden, layers, heads, kv_heads, head_dim, intermediate, vocab])?;
        HeadShape::check(head_dim)?;
        let (eps, factor) = (self.eps, self.rotary_factor);
        let holds = eps > 0.0 && eps < 1.0 && factor > 0.0 && factor.is_finite();
        if !holds {
            return Err(format!("eps {eps} and rotary_factor {factor} are not those of a decoder"));
        }
        if self.deepstack > layers {
            let deepstack = self.deepstack;
            return Err(format!("deepstack {deepstack} is more than the {layers} layers"));
        }
        self.limits.check()
    }
}

/// Everything that `engine.json` says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    format: u32,
    kind: String,
    target: String,
    /// Bytes of the device's memory that it takes at least.
    #[serde(default)]
    device_bytes: Option<u64>,
    engine: DecoderFile,
    kernels: KernelsEntry,
    /// Those that keep keys and values as bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kernels_int8: Option<KernelsEntry>,
    /// Which kernels are fastest, and on which card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tactics: Option<CardTactics>,
    weights: WeightsEntry,
    tensors: Vec<TensorEntry>,
}

/// The kernels that the weights are packed for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct KernelsEntry {
    pub(crate) file: String,
    pub(crate) sha256: String,
    pub(crate) layout: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WeightsEntry {
    bytes: u64,
    sha256: String,
}

/// One tensor of `weights.bin`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorEntry {
    /// What it is called.
    pub name: String,
    /// How its numbers lie, by a word of the packing.
    pub form: String,
    /// Its dimensions before it was packed, outermost first.
    pub shape: Vec<usize>,
    /// Where it begins in `weights.bin`.
    pub offset: u64,
    /// Bytes that it takes there.
    pub bytes: u64,
}

/// The kernels of an engine.
#[derive(Clone, Copy, Debug)]
pub struct KernelImage<'a> {
    /// What they are for.
    pub target: CudaTarget,
    /// The cubin.
    pub image: &'a [u8],
    /// That of what keeps keys and values as bytes, or reads such; without it the engine keeps them as halves alone.
    pub int8: Option<&'a [u8]>,
    /// Which of them are fastest on a card, where that was found out.
    pub tactics: Option<&'a CardTactics>,
}

impl KernelImage<'_> {
    /// Writes a cubin durably, and says what it is.
    fn write(&self, dir: &Path, file: String, image: &[u8]) -> io::Result<KernelsEntry> {
        files::write(&dir.join(&file), image)?;
        Ok(KernelsEntry { file, sha256: files::hex(&Sha256::digest(image)), layout: LAYOUT })
    }

    fn write_all(&self, dir: &Path) -> io::Result<(KernelsEntry, Option<KernelsEntry>)> {
        let file = self.target.kernels_file().to_owned();
        let of_bytes = file.replace(".cubin", ".int8.cubin");
        let int8 = self.int8.map(|image| self.write(dir, of_bytes, image)).transpose()?;
        Ok((self.write(dir, file, self.image)?, int8))
    }
}

/// Bytes of the file in which tensors of so many bytes lie one after another, as [`DecoderWriter`] writes it.
pub fn weights_bytes(tensors: impl IntoIterator<Item = u64>) -> u64 {
    let behind = |at: u64, bytes| at.next_multiple_of(TENSOR_ALIGN) + bytes;
    let end = tensors.into_iter().fold(0, behind);
    end.next_multiple_of(FILE_ALIGN)
}

/// Writes an engine's directory, tensor after tensor.
pub struct DecoderWriter {
    dir: PathBuf,
    out: BufWriter<File>,
    hash: Sha256,
    at: u64,
    tensors: Vec<TensorEntry>,
}

impl DecoderWriter {
    /// Starts the engine in `dir`, which is created where it is missing.
    ///
    /// # Errors
    /// When the system refuses; so for all that writes here.
    pub fn create(dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        Ok(Self {
            dir: dir.to_owned(),
            out: BufWriter::new(File::create(dir.join(WEIGHTS_FILE))?),
            hash: Sha256::new(),
            at: 0,
            tensors: Vec::new(),
        })
    }

    /// Begins the next tensor; its bytes follow through [`Self::write`].
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn begin(&mut self, name: &str, form: &str, shape: &[usize]) -> io::Result<()> {
        self.pad(TENSOR_ALIGN)?;
        self.tensors.push(TensorEntry {
            name: name.to_owned(),
            form: form.to_owned(),
            shape: shape.to_vec(),
            offset: self.at,
            bytes: 0,
        });
        Ok(())
    }

    /// Appends bytes to the tensor that was begun last.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.put(bytes)?;
        if let Some(tensor) = self.tensors.last_mut() {
            tensor.bytes += bytes.len() as u64;
        }
        Ok(())
    }

    /// Ends the engine: writes the kernels, then `engine.json`, durably.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn finish(mut self, engine: DecoderFile, kernels: KernelImage<'_>) -> io::Result<()> {
        self.pad(FILE_ALIGN)?;
        self.out.flush()?;
        self.out.get_ref().sync_all()?;
        let (own, int8) = kernels.write_all(&self.dir)?;
        let manifest = Manifest {
            format: FORMAT,
            kind: KIND.to_owned(),
            target: kernels.target.word().to_owned(),
            device_bytes: Some(self.at),
            engine,
            kernels: own,
            kernels_int8: int8,
            tactics: kernels.tactics.cloned(),
            weights: WeightsEntry { bytes: self.at, sha256: files::hex(&self.hash.finalize()) },
            tensors: self.tensors,
        };
        let text = serde_json::to_string_pretty(&manifest).map_err(io::Error::other)? + "\n";
        files::write(&self.dir.join(ENGINE_FILE), text.as_bytes())
    }

    fn pad(&mut self, align: u64) -> io::Result<()> {
        let missing = self.at.next_multiple_of(align) - self.at;
        self.put(&[0; FILE_ALIGN as usize][..missing as usize])
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.hash.update(bytes);
        self.at += bytes.len() as u64;
        Ok(())
    }
}

/// A directory that was opened, and what it says.
#[derive(Debug)]
pub(super) struct DecoderDir {
    dir: PathBuf,
    pub(super) target: CudaTarget,
    pub(super) engine: DecoderFile,
    /// The version of the packing that the kernels read.
    pub(super) layout: u32,
    /// The kernels, whose digest was compared, and those that keep keys and values as bytes.
    pub(super) kernels: Vec<u8>,
    pub(super) kernels_int8: Option<Vec<u8>>,
    pub(super) tactics: Option<CardTactics>,
    tensors: BTreeMap<String, TensorEntry>,
    sha256: String,
    weights: File,
    weights_bytes: u64,
}

impl DecoderDir {
    /// Opens the engine in `dir`; reads `engine.json` and the kernels.
    ///
    /// # Errors
    /// When it is no decoder for GPUs of this version, or its parts disagree.
    pub(super) fn open(dir: &Path) -> Result<Self, OpenError> {
        let manifest = read_manifest(dir)?;
        let damaged = |problem| OpenError::Damaged { path: dir.join(ENGINE_FILE), problem };
        manifest.engine.check().map_err(damaged)?;
        manifest.tactics.as_ref().map(CardTactics::table).transpose().map_err(damaged)?;
        let target = CudaTarget::parse(&manifest.target)
            .ok_or_else(|| damaged(format!("target {:?} is no card's", manifest.target)))?;
        let kernels = read_kernels(dir, &manifest.kernels)?;
        let int8 = manifest.kernels_int8.as_ref().map(|entry| read_kernels(dir, entry));
        let weights = files::open(&dir.join(WEIGHTS_FILE), manifest.weights.bytes)?;
        let tensors = place(manifest.tensors, manifest.weights.bytes).map_err(damaged)?;
        Ok(Self {
            dir: dir.to_owned(),
            target,
            engine: manifest.engine,
            layout: manifest.kernels.layout,
            kernels,
            kernels_int8: int8.transpose()?,
            tactics: manifest.tactics,
            tensors,
            sha256: manifest.weights.sha256,
            weights,
            weights_bytes: manifest.weights.bytes,
        })
    }

    /// All tensors, by name.
    pub(super) fn tensors(&self) -> impl Iterator<Item = &TensorEntry> {
        self.tensors.values()
    }

    /// The tensor called `name`, if there is one.
    pub(super) fn tensor(&self, name: &str) -> Option<&TensorEntry> {
        self.tensors.get(name)
    }

    /// An error about `engine.json`.
    pub(super) fn damaged(&self, problem: String) -> OpenError {
        OpenError::Damaged { path: self.dir.join(ENGINE_FILE), problem }
    }

    /// The refusal of an engine that is whole, but not for `purpose`.
    pub(super) fn unfit(&self, purpose: &'static str, problem: String) -> OpenError {
        OpenError::Unfit { path: self.dir.join(ENGINE_FILE), purpose, problem }
    }

    /// Sends the bytes of a tensor on, some MiB at a time.  Where `forgets` is set, pages that were read leave the system's
    /// cache: on a board whose memory is the GPU's they would be there twice.
    pub(super) fn read<E>(
        &self,
        tensor: &TensorEntry,
        buffer: &mut Vec<u8>,
        forgets: bool,
        mut take: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E>
    where
        E: From<OpenError>,
    {
        let mut done = 0;
        while done < tensor.bytes {
            let some = (tensor.bytes - done).min(READ_BYTES as u64);
            buffer.resize(some as usize, 0);
            self.read_at(tensor.offset + done, buffer)?;
            if forgets {
                forget(&self.weights, tensor.offset + done, some);
            }
            take(done, buffer)?;
            done += some;
        }
        Ok(())
    }

    /// All of `weights.bin`, mapped and not read.
    ///
    /// # Errors
    /// When the system refuses.
    pub(super) fn map(&self) -> Result<HostBytes, OpenError> {
        let read = |source| OpenError::Read { path: self.dir.join(WEIGHTS_FILE), source };
        map_file(&self.weights).map_err(read)
    }

    /// So many bytes of `weights.bin`.
    pub(super) fn read_piece(&self, at: u64, bytes: usize) -> Result<Vec<u8>, OpenError> {
        let mut out = vec![0; bytes];
        self.read_at(at, &mut out)?;
        Ok(out)
    }

    fn read_at(&self, at: u64, buffer: &mut [u8]) -> Result<(), OpenError> {
        let path = || self.dir.join(WEIGHTS_FILE);
        let read = |source| OpenError::Read { path: path(), source };
        self.weights.read_exact_at(buffer, at).map_err(read)
    }

    /// Reads all of `weights.bin` and compares its hash with `engine.json`; `told` hears how many bytes were read, piece by
    /// piece.
    ///
    /// # Errors
    /// When they differ.
    pub(super) fn verify_digest(&self, told: &mut dyn Witness) -> Result<(), OpenError> {
        let (path, weights) = (self.dir.join(WEIGHTS_FILE), (&self.weights, self.weights_bytes));
        files::check_all(&path, weights, &self.sha256, told)
    }
}

/// Lets the system's cache drop pages that were read.  That it does not costs memory alone.
fn forget(file: &File, at: u64, bytes: u64) {
    let _ = rustix::fs::fadvise(
        file,
        at,
        std::num::NonZeroU64::new(bytes),
        rustix::fs::Advice::DontNeed,
    );
}

fn read_manifest(dir: &Path) -> Result<Manifest, OpenError> {
    let (_, text) = Heading::read_of(dir, FORMAT, KIND)?;
    serde_json::from_str(&text).map_err(|error| {
        let problem = error.to_string();
        OpenError::NotAnEngine { path: dir.join(ENGINE_FILE), problem }
    })
}

/// Reads a cubin beside an engine, and compares its digest.
pub(crate) fn read_kernels(dir: &Path, entry: &KernelsEntry) -> Result<Vec<u8>, OpenError> {
    let damaged = |path: PathBuf, problem| OpenError::Damaged { path, problem };
    let is_plain = Path::new(&entry.file).components().count() == 1 && !entry.file.starts_with('.');
    if !is_plain {
        let problem = format!("{:?} is no file of its directory", entry.file);
        return Err(damaged(dir.join(ENGINE_FILE), problem));
    }
    let path = dir.join(&entry.file);
    let read = |source| OpenError::Read { path: path.clone(), source };
    let bytes = fs::metadata(&path).map_err(read)?.len();
    if bytes > KERNELS_BYTES_MAX {
        let problem = format!("{bytes} bytes are more than {KERNELS_BYTES_MAX}");
        return Err(damaged(path, problem));
    }
    let image = fs::read(&path).map_err(read)?;
    files::check_sha256(&path, &Sha256::digest(&image), &entry.sha256)?;
    Ok(image)
}

fn place(
    entries: Vec<TensorEntry>,
    file_bytes: u64,
) -> Result<BTreeMap<String, TensorEntry>, String> {
    let mut tensors = BTreeMap::new();
    for entry in entries {
        let (name, offset, bytes) = (entry.name.clone(), entry.offset, entry.bytes);
        if offset.checked_add(bytes).is_none_or(|end| end > file_bytes) {
            return Err(format!(
                "tensor {name:?}: {bytes} bytes at {offset} end outside {WEIGHTS_FILE}"
            ));
        }
        if !offset.is_multiple_of(TENSOR_ALIGN) {
            return Err(format!(
                "tensor {name:?}: offset {offset} is no multiple of {TENSOR_ALIGN}"
            ));
        }
        if tensors.insert(name.clone(), entry).is_some() {
            return Err(format!("tensor {name:?} is there twice"));
        }
    }
    Ok(tensors)
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn sizes() -> DecoderFile {
        DecoderFile {
            family: "qwen3".to_owned(),
            scheme: "none".to_owned(),
            hidden: 64,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            intermediate: 96,
            vocab: 100,
            eps: 1e-6,
            rotary_factor: 1.138_629_4,
            has_places: false,
            deepstack: 0,
            limits: Limits { max_seq_len: 300, max_slots: 3 },
            positions: Some(400),
        }
    }

    fn write(dir: &Path) {
        let mut writer = DecoderWriter::create(dir).unwrap();
        writer.begin("a", "f16", &[2, 3]).unwrap();
        writer.write(&[1, 2, 3]).unwrap();
        writer.write(&[4]).unwrap();
        writer.begin("b", "f32", &[1]).unwrap();
        writer.write(&[5; 4]).unwrap();
        let kernels = KernelImage {
            target: CudaTarget::Sm90,
            image: b"elf",
            int8: Some(b"elf8"),
            tactics: None,
        };
        writer.finish(sizes(), kernels).unwrap();
    }

    fn read(dir: &DecoderDir, name: &str) -> Vec<u8> {
        let mut all = Vec::new();
        let tensor = dir.tensor(name).unwrap();
        dir.read(tensor, &mut Vec::new(), true, |at, bytes| {
            assert_eq!(at, all.len() as u64);
            all.extend_from_slice(bytes);
            Ok::<_, OpenError>(())
        })
        .unwrap();
        all
    }

    #[test]
    fn what_is_written_reads_back() {
        let dir = TempDir::new().unwrap();
        write(dir.path());
        let opened = DecoderDir::open(dir.path()).unwrap();
        assert_eq!((&opened.engine, opened.layout), (&sizes(), LAYOUT));
        assert_eq!((opened.target, &opened.kernels[..]), (CudaTarget::Sm90, &b"elf"[..]));
        assert_eq!(opened.kernels_int8.as_deref(), Some(&b"elf8"[..]));
        assert_eq!((read(&opened, "a"), read(&opened, "b")), (vec![1, 2, 3, 4], vec![5; 4]));
        assert_eq!(opened.tensors().count(), 2);
        assert_eq!(opened.weights_bytes, 4096);
        opened.verify_digest(&mut |_| ()).unwrap();
    }

    #[track_caller]
    fn check_edit(from: &str, to: &str, words: &str) {
        let dir = TempDir::new().unwrap();
        write(dir.path());
        let path = dir.path().join(ENGINE_FILE);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{from} is not in {text}");
        fs::write(&path, text.replacen(from, to, 1)).unwrap();
        let error = DecoderDir::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }

    #[test]
    fn lies_in_engine_json_are_found() {
        check_edit("\"format\": 1", "\"format\": 9", "format 9 is not 1");
        check_edit("\"kind\": \"llm\"", "\"kind\": \"graph\"", "is of kind \"graph\"");
        check_edit("\"bytes\": 4096", "\"bytes\": 4097", "4096 bytes where");
        check_edit("\"offset\": 256", "\"offset\": 4095", "end outside");
        check_edit("\"offset\": 256", "\"offset\": 18446744073709551615", "end outside");
        check_edit("\"offset\": 256", "\"offset\": 250", "no multiple");
        check_edit("\"name\": \"b\"", "\"name\": \"a\"", "twice");
        check_edit("\"heads\": 4", "\"heads\": 3", "do not share");
        check_edit("\"vocab\": 100", "\"vocab\": 0", "not those of a decoder");
        check_edit("\"layout\": ", "\"lay\": ", "unknown field");
        check_edit("cuda-sm90", "cuda-sm70", "no card's");
        check_edit("kernels.sm90.cubin", "../kernels.sm90.cubin", "no file of its directory");
    }

    #[test]
    fn damaged_kernels_are_refused_and_damaged_weights_are_found() {
        let dir = TempDir::new().unwrap();
        write(dir.path());
        let (weights, kernels) =
            (dir.path().join(WEIGHTS_FILE), dir.path().join("kernels.sm90.cubin"));
        let mut bytes = fs::read(&weights).unwrap();
        bytes[1] ^= 1;
        fs::write(&weights, &bytes).unwrap();
        let error = DecoderDir::open(dir.path())
            .unwrap()
            .verify_digest(&mut |_| ())
            .unwrap_err()
            .to_string();
        assert!(error.contains("sha256"), "{error}");
        fs::write(&weights, &bytes[..100]).unwrap();
        let error = DecoderDir::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("100 bytes where"), "{error}");
        fs::write(&kernels, b"elv").unwrap();
        let error = DecoderDir::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("kernels.sm90.cubin is damaged"), "{error}");
        fs::remove_file(&kernels).unwrap();
        assert!(matches!(DecoderDir::open(dir.path()), Err(OpenError::Read { .. })));
    }
}
