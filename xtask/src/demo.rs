//! Makes anew what `smelt demo` carries: builds its pipeline, and packs what came of it with a picture.
//!
//! The packed file is in the repository, so that every build of smelt carries the same bytes, whatever it is built for;
//! a test of `smelt` holds it to what the pipeline makes.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::tidy::build_smelt;
use crate::{root, target};

/// Where pipeline and packed file lie.
const FOLDER: &str = "crates/smelt/demo";
/// The stages whose outputs are carried.
const STAGES: [&str; 3] = ["vision", "llm", "deployment"];
/// The picture, and where in the packed file it is.
const PICTURE: [&str; 2] = ["tests/data/shapes-1.png", "picture/shapes.png"];
/// More than this no binary should carry.
const BYTES_MAX: usize = 4_000_000;

pub(crate) fn run() -> Result<()> {
    let smelt = build_smelt()?;
    let cache = target().join("demo-cache");
    let _ = fs::remove_dir_all(&cache);
    let pipeline = root().join(FOLDER).join("demo.toml");
    let command = |word: &str| {
        let mut command = Command::new(&smelt);
        command.current_dir(root()).env("SMELT_CACHE", &cache).arg(word).arg(&pipeline);
        command
    };
    let built = command("run").status()?;
    ensure!(built.success(), "its run ended with {built}");
    let mut bytes = Vec::new();
    for stage in STAGES {
        let output = command("out").arg(stage).output()?;
        ensure!(output.status.success(), "no output of {stage}");
        let dir = PathBuf::from(str::from_utf8(&output.stdout)?.trim());
        for path in files(&dir)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            append(&mut bytes, &format!("{stage}/{name}"), &path)?;
        }
    }
    let [picture, place] = PICTURE;
    append(&mut bytes, place, &root().join(picture))?;
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(&bytes)?;
    let packed = packed.finish()?;
    ensure!(packed.len() <= BYTES_MAX, "{} bytes are more than {BYTES_MAX}", packed.len());
    let place = root().join(FOLDER).join("model.gz");
    fs::write(&place, &packed).with_context(|| place.display().to_string())?;
    println!("{}: {} bytes of {}", place.display(), packed.len(), bytes.len());
    fs::remove_dir_all(&cache).with_context(|| cache.display().to_string())
}

/// The files of an output, by name.
fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).with_context(|| dir.display().to_string())?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.sort();
    Ok(files)
}

/// Adds a file behind a line of its length and its path.
fn append(bytes: &mut Vec<u8>, name: &str, path: &Path) -> Result<()> {
    let file = fs::read(path).with_context(|| path.display().to_string())?;
    bytes.extend(format!("{} {name}\n", file.len()).as_bytes());
    bytes.extend(file);
    Ok(())
}
