//! Speaks with a hub for the command: resolves addresses, fetches commits, tells how far it is.
//!
//! What is fetched, and how, is the library's part; here are its words and exit codes.

use std::time::{Duration, Instant};

use smelt_hub::{Address, Commit, Hub, HubError, Progress};
use smelt_watch::headway::Pace;

use crate::exit::{Exit, Failed};
use crate::table::bytes;

/// How often somebody who waits is told.
const TELL_PERIOD: Duration = Duration::from_secs(1);

/// The exit code of an error: a pipeline that names what is not there is wrong, as is a model that
/// cannot be read; the rest may be otherwise tomorrow.
pub(crate) fn exit_of(error: &HubError) -> Exit {
    match error {
        HubError::BadName { .. }
        | HubError::NoRepo { .. }
        | HubError::NoRevision { .. }
        | HubError::NoFile { .. }
        | HubError::NotAllowed { .. } => Exit::BadPipeline,
        HubError::NoCheckpoint { .. }
        | HubError::Pickled { .. }
        | HubError::ManyModels { .. }
        | HubError::TooLarge { .. } => Exit::BadModel,
        _ => Exit::StageFailed,
    }
}

/// A hub's error without a pipeline around it.
pub(crate) fn failed(error: &HubError) -> Failed {
    let exit = match exit_of(error) {
        Exit::BadPipeline => Exit::Usage,
        other => other,
    };
    Failed::new(exit, format!("{error}{}", way_out(error, "path:DIR")))
}

/// What to do without a hub, `dir` being how a directory is named instead; empty where the hub was there.
pub(crate) fn way_out(error: &HubError, dir: &str) -> String {
    match error {
        HubError::Unreachable { .. } | HubError::Offline { .. } => format!(
            "; without it: HF_ENDPOINT names a mirror, {dir} a checkpoint that lies here, and \
             synthetic:NAME (as in synthetic:internvl3-1b) random weights of a real size"
        ),
        _ => String::new(),
    }
}

/// What the user hears when the hub was not asked.
pub(crate) fn not_asked(address: &Address, commit: &Commit, why: &str) -> String {
    format!("hf:{address}: {why}; going on with commit {commit}, which the cache remembers")
}

/// Fetches what the cache lacks of a commit; returns the directory of its files.
pub(crate) fn fetch(
    hub: &Hub,
    address: &Address,
    commit: &Commit,
    say: &mut dyn FnMut(&str),
) -> Result<std::path::PathBuf, HubError> {
    let mut told: Option<(String, Instant)> = None;
    let (began, mut pace) = (Instant::now(), Pace::default());
    hub.download(address, commit, &mut |progress| {
        let is_due = |file: &str| {
            told.as_ref().is_none_or(|(last, at)| last != file || at.elapsed() >= TELL_PERIOD)
        };
        match progress {
            Progress::Unasked { why } => say(&format!("{why}; using what the cache has")),
            Progress::Checking { file } => say(&format!("checking {file}")),
            Progress::Damaged { file, found } => {
                say(&format!(
                    "{file} is damaged in the cache (its hash is {found}); fetching it again"
                ));
            }
            Progress::Fetching { file, done_bytes, all_bytes } => {
                let counts = [*done_bytes, *all_bytes];
                pace.take(began.elapsed(), share(counts));
                if is_due(file) {
                    say(&fetching(file, counts, pace.speed()));
                    told = Some(((*file).to_owned(), Instant::now()));
                }
            }
        }
    })
}

/// The part of the bytes that is here.
fn share([done, all]: [u64; 2]) -> f64 {
    if all == 0 { 1.0 } else { done as f64 / all as f64 }
}

/// `[34/99] fetching FILE: 12.0 MiB of 99.0 MiB, 3.2 MiB/s`; without a speed as long as it is not known.
fn fetching(file: &str, [done, all]: [u64; 2], speed: Option<f64>) -> String {
    let rate = speed.map(|speed| format!(", {}/s", bytes((speed * all as f64) as u64)));
    let (rate, [have, whole]) = (rate.unwrap_or_default(), [done, all].map(bytes));
    format!("[{done}/{all}] fetching {file}: {have} of {whole}{rate}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_download_says_how_fast_it_is_when_that_is_known() {
        let check = |speed, expect: &str| {
            let line = fetching("m.gguf", [12 << 20, 48 << 20], speed);
            assert_eq!(
                line,
                format!("[12582912/50331648] fetching m.gguf: 12.0 MiB of 48.0 MiB{expect}")
            );
        };
        check(None, "");
        check(Some(0.25), ", 12.0 MiB/s");
        check(Some(0.001), ", 49 KiB/s");
        assert_eq!([share([1, 4]), share([0, 0])], [0.25, 1.0]);
    }
}
