//! Opens the checkpoint that a command is given by name: a directory, or what a pipeline's `from`
//! may say.

use std::path::Path;

use smelt_hub::{Address, Hub, Resolved};
use smelt_model::checkpoint::Checkpoint;
use smelt_model::synthetic;

use crate::atomic_dir::AtomicDir;
use crate::checkpoint;
use crate::console::tell;
use crate::exit::Failed;
use crate::hub;
use crate::telling::Telling;

/// An open checkpoint, and the directory it was made in, where it was made for the occasion.
pub(crate) struct OpenCheckpoint {
    pub(crate) checkpoint: Checkpoint,
    _scratch: Option<AtomicDir>,
}

/// Opens `hf:ORG/NAME[@REV][:FILE]`, `synthetic:NAME`, `path:DIR` or a plain directory.  What must be made
/// is made beside `out`, and gone afterwards.
pub(crate) fn open(name: &Path, out: &Path) -> Result<OpenCheckpoint, Failed> {
    match name.to_str().and_then(|text| text.split_once(':')) {
        Some(("hf", address)) => of_hub(address),
        Some(("synthetic", name)) => made(name, out),
        Some(("path", dir)) => at(Path::new(dir)),
        _ => at(name),
    }
}

fn at(dir: &Path) -> Result<OpenCheckpoint, Failed> {
    let checkpoint = checkpoint::open(dir)?;
    Ok(OpenCheckpoint { checkpoint, _scratch: None })
}

fn of_hub(address: &str) -> Result<OpenCheckpoint, Failed> {
    let failed = |error| hub::failed(&error);
    let address: Address = address.parse().map_err(failed)?;
    let hub = Hub::from_env().map_err(failed)?;
    let Resolved { commit, remembered } = hub.resolve(&address).map_err(failed)?;
    if let Some(why) = remembered {
        tell(hub::not_asked(&address, &commit, &why));
    }
    let mut telling = Telling::new();
    let dir = hub::fetch(&hub, &address, &commit, &mut |line| telling.hear(line));
    drop(telling);
    let dir = dir.map_err(failed)?;
    at(&dir)
}

fn made(name: &str, out: &Path) -> Result<OpenCheckpoint, Failed> {
    let scratch = AtomicDir::scratch(out)?;
    let mut telling = Telling::new();
    let made = synthetic::write(name, scratch.path(), &mut |line| telling.hear(line));
    drop(telling);
    made.map_err(Failed::model)?;
    let checkpoint = Checkpoint::open(scratch.path()).map_err(Failed::model)?;
    Ok(OpenCheckpoint { checkpoint, _scratch: Some(scratch) })
}
