//! Knows that a run has nothing to do before its pipeline is even parsed.
//!
//! After a run that ended well, the report is kept together with how every file looked that it was
//! based on.  A run of the same text with the same `--set`, in a store and on files that look the
//! same, would find every stage as it was.  Small pipelines are planned as quickly as remembered.

use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

use serde_json::json;
use smelt_exec::{RunReport, RunStatus, StageReport, StageStatus};
use smelt_plan::pipeline::FORMAT;
use smelt_plan::{Digest, Kind};
use smelt_store::{Basis, Location, Lookup, StoreError};

use crate::exit::Failed;
use crate::flags::{Push, RunFlags};
use crate::fleet;
use crate::leftovers::{clear_dead, finish};
use crate::load::{self, Access, Loaded};
use crate::tools;

/// Below this a plan takes a few milliseconds.
const STAGES_MIN: usize = 100;

/// The name under which a run's answer is kept.
pub(crate) struct Memo {
    name: Digest,
}

impl Memo {
    /// `None` for a run that is told which stages to build, or to publish: what a server had it may have removed.
    pub(crate) fn of(flags: &RunFlags) -> Result<Option<Self>, Failed> {
        let named = [&flags.only, &flags.force, &flags.check];
        let publishes = flags.push != Push::Never && flags.fleet.fleet.is_some();
        if publishes || flags.on.is_some() || named.iter().any(|named| !named.is_empty()) {
            return Ok(None);
        }
        let text = load::read(&flags.pipeline.pipeline)?;
        let Ok(file) = fs::canonicalize(&flags.pipeline.pipeline) else { return Ok(None) };
        // One that is no text is refused by whoever plans.
        let Some(file) = file.to_str() else { return Ok(None) };
        let kinds: Vec<_> = Kind::ALL.iter().map(|kind| (kind.name(), kind.version())).collect();
        let sets = &flags.pipeline.sets;
        let all = json!([
            FORMAT,
            env!("CARGO_PKG_VERSION"),
            kinds,
            file,
            sets,
            Digest::of(text.as_bytes()),
            // Whom one believes decides what of a fleet's counts as built.
            fleet::trust_mark(flags.fleet.fleet_trust.as_deref())
        ]);
        Ok(Some(Self { name: Digest::of(all.to_string().as_bytes()) }))
    }

    /// The report of a run with nothing to do, if that is what this is.  It is in the journals like
    /// any other.
    pub(crate) fn recall(&self, access: &Access) -> Result<Option<RunReport>, Failed> {
        if !load::root()?.join("memo").join(self.name.to_string()).exists() {
            return Ok(None);
        }
        let store = load::store(access)?;
        let Some(rows) = store.recall(&self.name).and_then(|bytes| Rows::read(&bytes)) else {
            return Ok(None);
        };
        clear_dead(&store)?;
        let run = match store.begin_run(SystemTime::now()) {
            // The long way has words for it.
            Err(error) if error.is_disk_full() => return Ok(None),
            begun => begun?,
        };
        let mut report = RunReport {
            run: run.id().to_string(),
            pipeline: rows.pipeline,
            status: RunStatus::Ok,
            wall_s: 0.0,
            first_failure: None,
            not_written: None,
            is_damaged: false,
            stages: rows.stages,
        };
        if let Err(error) =
            smelt_exec::journal_without_news(&run, &report, &serde_json::Value::Null)
        {
            report.not_written = Some(format!("this run's journal could not be written: {error}"));
        }
        finish(run);
        Ok(Some(report))
    }

    /// Keeps what a run found or made.  What depends on more than files is not kept: a hub may have
    /// moved on, a driver may have changed, and a program may be there now or lie elsewhere.
    pub(crate) fn keep(&self, loaded: &Loaded, report: &RunReport) -> Result<(), StoreError> {
        let Loaded { plan, store, roots, .. } = loaded;
        let depends_on_more = plan.stages().any(|(_, stage)| {
            stage.fetched().is_some() || !stage.device.is_empty() || tools::may_have(stage)
        });
        if plan.len() < STAGES_MIN || depends_on_more {
            return Ok(());
        }
        let before = store.before()?;
        let mut outputs = Vec::with_capacity(report.stages.len());
        for key in report.stages.iter().filter_map(|stage| stage.key) {
            let Lookup::Hit(output) = store.lookup(&key)? else { return Ok(()) };
            outputs.push(output);
        }
        let mut outside = Vec::with_capacity(roots.len());
        for root in roots {
            let Ok(manifest) = store.digest_tree(root) else { return Ok(()) };
            outside.push((root, manifest));
        }
        let mut basis = Vec::with_capacity(outputs.len() + outside.len());
        for output in &outputs {
            match &output.location {
                Location::Sealed(_) => basis.push(Basis::Sealed(&output.digest, &output.manifest)),
                Location::External(_) => return Ok(()),
            }
        }
        basis.extend(outside.iter().map(|(root, manifest)| Basis::Outside(root, manifest)));
        store.keep_answer(&self.name, &before, &basis, &Rows::text(report)).map(drop)
    }
}

/// The stages of a report as it is kept: the pipeline's name, then five texts for each stage, each
/// ended by a zero byte, which no path holds.
struct Rows {
    pipeline: String,
    stages: Vec<StageReport>,
}

impl Rows {
    fn text(report: &RunReport) -> Vec<u8> {
        let mut text = format!("{}\0", report.pipeline);
        for StageReport { name, kind, key, digest, output, .. } in &report.stages {
            let hex = |digest: &Option<Digest>| digest.map_or_else(String::new, |d| d.to_string());
            let (key, digest) = (hex(key), hex(digest));
            let output = output.as_ref().map_or("".into(), |path| path.to_string_lossy());
            for part in [name, kind.name(), key.as_str(), digest.as_str(), output.as_ref()] {
                text.push_str(part);
                text.push('\0');
            }
        }
        text.into_bytes()
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let mut parts = str::from_utf8(bytes).ok()?.strip_suffix('\0')?.split('\0');
        let pipeline = parts.next()?.to_owned();
        let mut stages = Vec::new();
        while let Some(name) = parts.next() {
            let [kind, key, digest, output] =
                [parts.next()?, parts.next()?, parts.next()?, parts.next()?];
            let kind = Kind::parse(kind)?;
            stages.push(StageReport {
                name: name.to_owned(),
                kind,
                reproducible: kind.is_reproducible(),
                status: StageStatus::Hit,
                key: if key.is_empty() { None } else { Some(key.parse().ok()?) },
                digest: if digest.is_empty() { None } else { Some(digest.parse().ok()?) },
                output: (!output.is_empty()).then(|| PathBuf::from(output)),
                class: None,
                message: None,
                attempts: Vec::new(),
            });
        }
        Some(Self { pipeline, stages })
    }
}
