//! Opens deployments for the commands that run them: whole, and with a warning where they run untuned.

use std::fs;
use std::path::{Path, PathBuf};

use smelt_backend::{
    Heading as EngineHeading, KvOptions, MemoryPlace, MemoryReport, OpenError, Witness,
};
use smelt_exec::served;
#[cfg(feature = "build")]
use smelt_runtime::deployment::DEPLOYMENT_FILE;
use smelt_runtime::deployment::{self, Deployment, DeploymentError, Serving};
use smelt_runtime::embed::{self, SentenceEncoder};
use smelt_runtime::engine_dirs::EngineDirs;
use smelt_runtime::score::{self, CrossEncoder};
use smelt_runtime::upstream;
#[cfg(feature = "build")]
use smelt_store::Store;

use crate::built;
use crate::cards::{self, Situation, Verdict};
use crate::console;
use crate::device::{self, BACKENDS};
use crate::exit::{Exit, Failed};
use crate::integrity;
use crate::loading::Loading;
use crate::telling::Telling;

/// What a deployment says of itself, whatever it does.
pub(super) struct Heading {
    /// The model's name.
    pub(super) model: String,
    /// The directories of its engines: of several for other devices those that this one runs.
    pub(super) engines: Vec<PathBuf>,
    /// How it is served where nobody says otherwise.
    pub(super) serving: Serving,
    /// What it does.
    pub(super) does: Does,
}

/// What a deployment does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Does {
    /// It speaks.
    Speaks,
    /// It gives embeddings of texts.
    Embeds,
    /// It scores pairs of texts.
    Scores,
    /// Another program's server answers.
    Relays,
}

/// What the deployment in `dir` says of itself.
pub(super) fn heading(dir: &Path) -> Result<Heading, Failed> {
    let does = match &embed::family(dir)?[..] {
        embed::FAMILY => Does::Embeds,
        score::FAMILY => Does::Scores,
        upstream::FAMILY => Does::Relays,
        _ => Does::Speaks,
    };
    let (model, serving, names) = match does {
        Does::Embeds => {
            let spec = embed::read_spec(dir)?;
            (spec.model, held_to(spec.memory_bytes_max), vec![spec.encoder])
        }
        Does::Scores => {
            let spec = score::read_spec(dir)?;
            (spec.model, held_to(spec.memory_bytes_max), vec![spec.encoder])
        }
        Does::Relays => {
            let spec = upstream::Spec::read(dir)?;
            let engines = vec![spec.engine_dir(dir)];
            // What its server may take is not ours.
            return Ok(Heading { model: spec.model, engines, serving: Serving::default(), does });
        }
        Does::Speaks => {
            let spec = deployment::read_spec(dir)?;
            let clip = spec.clip.into_iter().flat_map(|clip| [clip.vision, clip.text]);
            let names = spec.vision.into_iter().chain([spec.llm]).chain(clip).collect();
            (spec.model, spec.serving, names)
        }
    };
    let chosen = names.iter().map(|dirs: &EngineDirs| dirs.chosen(BACKENDS, dir));
    let chosen = chosen.collect::<Result<Vec<_>, _>>().map_err(DeploymentError::from)?;
    let engines = chosen.into_iter().flat_map(engines).collect();
    Ok(Heading { model, engines, serving, does })
}

/// How an encoder is served, of which nothing else can be said.
fn held_to(memory_bytes_max: Option<u64>) -> Serving {
    Serving { memory_bytes_max, ..Serving::default() }
}

/// Refuses a deployment that `command` does not ask, with the command that does; `target` is what it was called.
pub(super) fn expect(dir: &Path, command: &str, target: &Path) -> Result<(), Failed> {
    // What cannot be read is refused where it is opened.
    let Some(does) = built::does(dir) else { return Ok(()) };
    let (own, target) = (built::asked_by(does), target.display());
    let at = if own == "serve" && does != built::RELAYS { ", at /predict" } else { "" };
    match own == command {
        true => Ok(()),
        false => {
            Err(Failed::model(format!("{target} {does}; ask it with: smelt {own} {target}{at}")))
        }
    }
}

/// Whether the engine of the deployment in `dir` that makes its answers runs where it was asked for; why it does not run on
/// the GPU is told.
pub(super) fn on_device(dir: &Path) -> Result<(), Failed> {
    let engine = match heading(dir)?.does {
        Does::Embeds => embed::read_spec(dir)?.encoder,
        Does::Scores => score::read_spec(dir)?.encoder,
        Does::Speaks => deployment::read_spec(dir)?.llm,
        // What it runs on is its own affair.
        Does::Relays => return Ok(()),
    };
    let target = |dir: &Path| EngineHeading::read(dir).map(|heading| heading.target);
    let chosen = engine.chosen(BACKENDS, dir).and_then(|dir| target(&dir));
    let engines = engine.paths(dir).iter().map(|dir| target(dir)).collect::<Result<Vec<_>, _>>();
    let (chosen, engines) =
        (chosen.map_err(DeploymentError::from)?, engines.map_err(DeploymentError::from)?);
    let wanted = cards::wanted();
    let situation = Situation { wanted, engines: &engines, chosen: &chosen, seen: device::seen() };
    match cards::judge(&situation, cards::card) {
        Verdict::Fine => Ok(()),
        Verdict::Told(why) => {
            console::tell(why);
            Ok(())
        }
        Verdict::Refused(why) => Err(Failed::new(Exit::DoesNotFit, why)),
    }
}

/// An engine's directory, and those of its grids where it has several.
fn engines(dir: PathBuf) -> Vec<PathBuf> {
    let inside = fs::read_dir(&dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut all: Vec<PathBuf> = inside.filter(|path| path.is_dir()).collect();
    all.push(dir);
    all.sort_unstable();
    all
}

/// Whether the engine in `dir` will live in a device's own memory.
pub(super) fn is_apart(dir: &Path) -> bool {
    BACKENDS.place(dir).is_ok_and(|place| place == MemoryPlace::Device)
}

/// Bytes that are free there for the engines of the deployment in `dir`, as far as that is known.
pub(super) fn device_room(dir: &Path) -> Option<u64> {
    let engines = heading(dir).ok()?.engines;
    let apart = engines.iter().filter(|engine| is_apart(engine));
    apart.filter_map(|engine| BACKENDS.memory(engine).ok()?.room_bytes()).min()
}

/// The most that this process holds of one memory, where the engines of the deployment in `dir` are: of the machine's, with what
/// a card was given of it, or of a card's own.
pub(super) fn held_bytes(dir: &Path) -> u64 {
    let host = served::own_bytes();
    let engines = heading(dir).map(|heading| heading.engines).unwrap_or_default();
    let held = |report: MemoryReport| match report.place {
        MemoryPlace::Unified => host + report.own_bytes,
        MemoryPlace::Device => report.own_bytes.max(host + report.locked_bytes),
        MemoryPlace::Host => report.own_bytes,
    };
    engines.iter().filter_map(|dir| BACKENDS.memory(dir).ok()).map(held).fold(host, u64::max)
}

/// Opens the deployment in `dir`, compares it with its digests once a boot, and tells `loading` how far that is.
pub(super) fn deployment(
    dir: &Path,
    kv: KvOptions,
    loading: &mut Loading<'_>,
) -> Result<Deployment, Failed> {
    on_device(dir)?;
    loading.opens();
    let deployment = Deployment::open_with(BACKENDS, dir, kv)?;
    compare(dir, loading, |told| deployment.verify_digests(told))?;
    warn(deployment.untuned());
    Ok(deployment)
}

/// Opens the encoder in `dir` in the same way.
pub(super) fn encoder(dir: &Path, loading: &mut Loading<'_>) -> Result<SentenceEncoder, Failed> {
    on_device(dir)?;
    loading.opens();
    let encoder = SentenceEncoder::open(BACKENDS, dir)?;
    compare(dir, loading, |told| encoder.verify_digest(told))?;
    warn(encoder.untuned());
    Ok(encoder)
}

/// Opens the cross-encoder in `dir` in the same way.
pub(super) fn cross_encoder(dir: &Path, loading: &mut Loading<'_>) -> Result<CrossEncoder, Failed> {
    on_device(dir)?;
    loading.opens();
    let encoder = CrossEncoder::open(BACKENDS, dir)?;
    compare(dir, loading, |told| encoder.verify_digest(told))?;
    warn(encoder.untuned());
    Ok(encoder)
}

/// Reads what the deployment in `dir` says of another program's server, and compares what that will read in the same way.
pub(super) fn relay(dir: &Path, loading: &mut Loading<'_>) -> Result<upstream::Spec, Failed> {
    let spec = upstream::Spec::read(dir)?;
    let engine = spec.engine_dir(dir);
    compare(dir, loading, |told| spec.verify_files(&engine, told))?;
    Ok(spec)
}

/// Has the deployment in `dir` loaded, and shows how far that is.
pub(super) fn shown<T>(
    dir: &Path,
    load: impl FnOnce(&mut Loading<'_>) -> Result<T, Failed>,
) -> Result<T, Failed> {
    let mut telling = Telling::new();
    let mut hear = |line: &str| telling.hear(line);
    load(&mut Loading::new(bytes(dir), &mut hear))
}

/// The bytes of the engines of the deployment in `dir`, by which its load is told; 0 where it cannot be read, which
/// is told by whoever opens it.
pub(super) fn bytes(dir: &Path) -> u64 {
    heading(dir).map_or(0, |heading| integrity::bytes(&heading.engines))
}

/// Has the engines of the deployment in `dir` compared with their digests, unless that was done since the boot.
fn compare(
    dir: &Path,
    loading: &mut Loading<'_>,
    check: impl FnOnce(&mut dyn Witness) -> Result<(), OpenError>,
) -> Result<(), Failed> {
    integrity::once_a_boot(&heading(dir)?.engines, || {
        loading.compares();
        check(&mut |bytes| loading.has_read(bytes))
    })
}

/// Notes that the engines of the deployment in `dir`, which was built just now, were compared: the stage does that behind
/// writing the deployment's own file, where they did not look otherwise since the store hashed them.
#[cfg(feature = "build")]
pub(super) fn note_compared(store: &Store, dir: &Path) {
    let began = fs::metadata(dir.join(DEPLOYMENT_FILE)).and_then(|stat| stat.modified());
    if let (Ok(began), Ok(heading)) = (began, heading(dir)) {
        integrity::note_compared(store, &heading.engines, began);
    }
}

fn warn(untuned: Option<&str>) {
    if let Some(why) = untuned {
        console::warn(format_args!("{why}; it runs untuned"));
    }
}
