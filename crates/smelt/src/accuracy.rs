//! Measures how right a deployment answers questions with known answers: what `smelt bench accuracy` and the stage
//! `accuracy` do alike.

use std::path::Path;
use std::process;

use smelt_backend::KvOptions;
use smelt_runtime::accuracy::distributions::{Player, Recorder};
use smelt_runtime::accuracy::measure::{Against, measure};
use smelt_runtime::accuracy::question::Question;
use smelt_runtime::accuracy::report::Row;
use smelt_runtime::accuracy::score::Tally;
use smelt_runtime::deployment::{Deployment, DeploymentError, Engines};
use smelt_watch::Sample;

use crate::console::tell;
use crate::device::BACKENDS;
use crate::exit::{Exit, Failed};

/// A deployment, and the engines of it that this device runs.
pub(crate) type Opened = (Deployment, Engines);

/// Opens the deployment in `dir`.
pub(crate) fn open(dir: &Path, kv: KvOptions) -> Result<Opened, Failed> {
    let opened = Deployment::open_with(BACKENDS, dir, kv)?;
    let engines = opened.text.spec.engines(BACKENDS, dir).map_err(DeploymentError::from)?;
    Ok((opened, engines))
}

/// The first deployment finds no logits and writes them, the others read them.
pub(crate) fn against(logits: &Path) -> Result<Against, Failed> {
    let against = if logits.exists() {
        Player::open(logits).map(Against::First)
    } else {
        Recorder::create(logits).map(Against::Itself)
    };
    against.map_err(|error| {
        Failed::new(Exit::StageFailed, format!("cannot open {}: {error}", logits.display()))
    })
}

/// Asks all questions, whose pictures are in the folder beside them; the row is called `name`.  Where pictures are shown
/// smaller, `option` is told as what makes the context longer.
pub(crate) fn row(
    (name, option): (&str, &str),
    (mut deployment, engines): Opened,
    questions: (&[Question], &Path),
    against: Against,
    progress: &mut dyn FnMut(Tally),
) -> Result<Row, Failed> {
    let score = measure((&mut deployment, &engines), questions, against, progress);
    let score = score.map_err(Failed::model)?;
    if score.smaller > 0 {
        tell(format_args!(
            "{name}: pictures of {} questions are shown smaller to fit the context of {} tokens; {option} makes it longer",
            score.smaller, deployment.text.max_seq_len
        ));
    }
    let peak = Sample::of(process::id()).map(|sample| sample.rss_process_peak_bytes);
    Ok(Row {
        target: name.to_owned(),
        score,
        peak_rss_bytes: peak.unwrap_or_default(),
        build_rss_bytes: None,
    })
}
