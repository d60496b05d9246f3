//! Carries a small model and a picture in the binary, and seals them into the store as if they had been built here.
//!
//! `model.gz` holds sealed outputs of `demo.toml` beside it, and a picture: for each file a line of its length and its
//! path, then its bytes.  The bytes are the same on every machine, as those of any stage.  They lie in the store under
//! their digests, so `ls`, `chat`, `serve`, `rm` and collections treat them like all else, and what is damaged there is
//! found by a look-up and made anew.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::SystemTime;

use flate2::read::GzDecoder;
use serde_json::json;
use smelt_plan::Digest;
use smelt_store::{Holder, SealError, Store, StoreError, Wait};

use crate::exit::{Exit, Failed};
use crate::load;

/// Made by `cargo xtask demo`.
const MODEL: &[u8] = include_bytes!("../demo/model.gz");

/// What it unpacks to is less than 5 MB.
const BYTES_MAX: u64 = 16 << 20;

/// The outputs that it holds.  The last one names the others by their digests, so it is sealed last.
const OUTPUTS: [&str; 4] = ["picture", "vision", "llm", DEPLOYMENT];
const DEPLOYMENT: &str = "deployment";
/// Their keys, which are of no stage: they were built elsewhere, from a checkpoint that is not here.
static KEYS: LazyLock<[Digest; OUTPUTS.len()]> = LazyLock::new(|| {
    let model = Digest::of(MODEL);
    OUTPUTS.map(|output| Digest::of(format!("carried by smelt\n{output}\n{model}\n").as_bytes()))
});
/// The picture's name in its output.
const PICTURE: &str = "shapes.png";

/// What is carried, in the store.
pub(crate) struct Unpacked {
    /// The deployment's directory.
    pub(crate) deployment: PathBuf,
    /// The picture's file.
    pub(crate) picture: PathBuf,
    /// Keeps collections from it; nobody where the store is only read.
    _holder: Option<Holder>,
}

impl Unpacked {
    fn at([picture, .., deployment]: &Paths, holder: Option<Holder>) -> Self {
        Self { deployment: deployment.clone(), picture: picture.join(PICTURE), _holder: holder }
    }
}

/// Where the outputs are, in their order.
type Paths = [PathBuf; OUTPUTS.len()];

/// A file that is carried.
struct Carried<'a> {
    output: &'a str,
    name: &'a str,
    bytes: &'a [u8],
}

/// Why it is not in the store.
#[derive(Debug)]
enum Problem {
    /// The binary itself is damaged.
    Damaged(String),
    Store(StoreError),
    Seal(SealError),
    Write {
        path: PathBuf,
        source: io::Error,
    },
}

/// Finds in the store what is carried, or seals it there.
pub(crate) fn unpack() -> Result<Unpacked, Failed> {
    let root = load::root()?;
    let why = match in_store(&root) {
        Ok(unpacked) => return Ok(unpacked),
        Err(why) => why,
    };
    // On a disk that is read-only it may lie already.
    let read = Store::open_read_only(&root, Wait::Yes).and_then(|store| found(&store));
    let paths = read.ok().flatten().ok_or_else(|| why.failed())?;
    Ok(Unpacked::at(&paths, None))
}

fn in_store(root: &Path) -> Result<Unpacked, Problem> {
    let store = Store::open(root, Wait::Yes).map_err(Problem::Store)?;
    let hold = || -> Result<Holder, StoreError> {
        let holder = store.begin_hold(SystemTime::now())?;
        holder.hold(KEYS.as_slice())?;
        Ok(holder)
    };
    // Before the look-up: what that finds then stays.
    let holder = hold().map_err(Problem::Store)?;
    let paths = match found(&store).map_err(Problem::Store)? {
        Some(paths) => paths,
        None => seal(&store, &holder)?,
    };
    Ok(Unpacked::at(&paths, Some(holder)))
}

/// Where the outputs are, if the store has all of them, and whole.
fn found(store: &Store) -> Result<Option<Paths>, StoreError> {
    let mut paths = Paths::default();
    for (path, key) in paths.iter_mut().zip(KEYS.iter()) {
        let Some(output) = store.lookup(key)?.hit() else { return Ok(None) };
        *path = output.path().to_owned();
    }
    Ok(Some(paths))
}

/// Seals every output; those that the store has stay as they are.
fn seal(store: &Store, holder: &Holder) -> Result<Paths, Problem> {
    let damaged = |why: &str| Problem::Damaged(format!("the model in this smelt {why}"));
    let bytes = inflated(MODEL).map_err(|error| damaged(&error.to_string()))?;
    let files = files(&bytes).ok_or_else(|| damaged("is no list of files"))?;
    let (mut paths, mut parts) = (Paths::default(), Vec::<Digest>::new());
    for ((place, output), key) in paths.iter_mut().zip(OUTPUTS).zip(KEYS.iter()) {
        let work = holder.work_dir(output).map_err(Problem::Store)?;
        for file in files.iter().filter(|file| file.output == output) {
            let path = work.join(file.name);
            fs::write(&path, file.bytes).map_err(|source| Problem::Write { path, source })?;
        }
        let record = json!({ "pipeline": "smelt-demo", "stage": output });
        let refers = if output == DEPLOYMENT { &parts[..] } else { &[] };
        let sealed = store.seal_referring(key, &work, record, refers);
        let sealed = sealed.map_err(Problem::Seal)?;
        *place = sealed.path().to_owned();
        parts.push(sealed.digest);
    }
    Ok(paths)
}

fn inflated(packed: &[u8]) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    GzDecoder::new(packed).take(BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The files in `bytes`, each behind a line of its length and its path, `OUTPUT/NAME`.
fn files(bytes: &[u8]) -> Option<Vec<Carried<'_>>> {
    let (mut files, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() {
        let (line, behind) = rest.split_at_checked(rest.iter().position(|&byte| byte == b'\n')?)?;
        let (length, path) = str::from_utf8(line).ok()?.split_once(' ')?;
        let (output, name) = path.split_once('/')?;
        let (bytes, behind) = behind[1..].split_at_checked(length.parse().ok()?)?;
        files.push(Carried { output, name, bytes });
        rest = behind;
    }
    Some(files)
}

impl Problem {
    fn failed(self) -> Failed {
        const ELSEWHERE: &str = "the demo unpacks 5 MB into the store; another place for it is named as in: SMELT_CACHE=/var/tmp/smelt smelt demo";
        let why = match self {
            Self::Damaged(why) => return Failed::new(Exit::StageFailed, why),
            Self::Store(error @ StoreError::Held { .. }) => return error.into(),
            Self::Store(error) => error.to_string(),
            Self::Seal(error) => error.to_string(),
            Self::Write { path, source } => format!("cannot write {}: {source}", path.display()),
        };
        Failed::new(Exit::StageFailed, format!("{why}; {ELSEWHERE}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_carried_is_small_and_holds_every_output() {
        assert!(MODEL.len() <= 4_000_000, "{} bytes", MODEL.len());
        let bytes = inflated(MODEL).unwrap();
        assert!((bytes.len() as u64) < BYTES_MAX);
        let files = files(&bytes).unwrap();
        for output in OUTPUTS {
            assert!(files.iter().any(|file| file.output == output), "{output}");
        }
        assert!(
            files.iter().all(|file| OUTPUTS.contains(&file.output) && !file.name.contains('/'))
        );
        assert!(files.iter().any(|file| file.output == "picture" && file.name == PICTURE));
    }

    #[test]
    fn files_lie_behind_their_lengths_and_paths() {
        let bytes = b"2 a/x\nhi0 b/y\n1 a/z\n\n";
        let found = files(bytes).unwrap();
        let found: Vec<_> = found.iter().map(|file| (file.output, file.name, file.bytes)).collect();
        let expect: [(&str, &str, &[u8]); 3] =
            [("a", "x", b"hi"), ("b", "y", b""), ("a", "z", b"\n")];
        assert_eq!(found, expect);
        for torn in ["2 a/x\nh", "2 a", "3 a/x\nhi", "x a/x\nhi", "2 x\nhi", "2\nhi"] {
            assert!(files(torn.as_bytes()).is_none(), "{torn:?}");
        }
    }

    #[test]
    fn what_was_taken_or_damaged_is_made_anew() {
        let root = tempfile::tempdir().unwrap();
        let first = in_store(root.path()).unwrap();
        let weights = {
            let spec = fs::read_to_string(first.deployment.join("deployment.json")).unwrap();
            let spec: serde_json::Value = serde_json::from_str(&spec).unwrap();
            first.deployment.join(spec["llm"].as_str().unwrap()).join("weights.bin")
        };
        let whole = fs::read(&weights).unwrap();
        fs::remove_file(&first.picture).unwrap();
        let again = in_store(root.path()).unwrap();
        assert_eq!((&again.deployment, &again.picture), (&first.deployment, &first.picture));
        assert!(again.picture.is_file());
        fs::remove_file(&weights).unwrap();
        fs::write(&weights, &whole[1..]).unwrap();
        in_store(root.path()).unwrap();
        assert_eq!(fs::read(&weights).unwrap(), whole);
        let store = Store::open(root.path(), Wait::No).unwrap();
        assert_eq!(store.inventory().unwrap().work_bytes, 0, "nothing is left of it");
    }
}
