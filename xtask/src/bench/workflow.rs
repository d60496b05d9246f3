//! Measures the engine itself: runs with nothing to do, what a stage costs beside its program,
//! plans, and hashing; ninja and OpenSSL do the same in the same minute.
//!
//! `graph` writes the pipelines, `floor` starts programs and commits files with nothing around
//! them.  CPU seconds are compared, since a busy machine stretches wall time; the command fails
//! where a target is missed.

mod floor;
mod graph;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::measure::{self, Figures};
use super::{parse, remove};
use crate::ci::cargo;
use crate::{debian, target};
use graph::Graph;

pub(crate) use floor::run as floor;

/// Runs of each side when `--runs` does not say.
const RUNS: usize = 9;
/// The graph that has nothing to do.
const BUILT: usize = 10_000;
/// The graph that is built from nothing; small enough to be built again in every round.
const COLD: usize = 1000;
/// The graph that is only planned.
const PLANNED: usize = 100_000;
/// Two files, so that what is parallel over files shows.
const HASHED: [(&str, u64); 2] = [("a", 1 << 30), ("b", 1 << 30)];
const GIB: f64 = (1 << 30) as f64;

/// Something measured, beside a rival where there is one, and the most it may be.
struct Row {
    name: &'static str,
    what: String,
    smelt: Figures,
    rival: Option<(&'static str, Figures)>,
    /// What is promised: the unit, what was found, and the bound.
    checks: Vec<Check>,
}

pub(super) struct Check {
    unit: &'static str,
    found: f64,
    bound: Bound,
}

enum Bound {
    Max(f64),
    Min(f64),
}

impl Check {
    pub(super) fn at_most(unit: &'static str, found: f64, max: f64) -> Self {
        Self { unit, found, bound: Bound::Max(max) }
    }

    pub(super) fn at_least(unit: &'static str, found: f64, min: f64) -> Self {
        Self { unit, found, bound: Bound::Min(min) }
    }

    pub(super) fn is_held(&self) -> bool {
        match self.bound {
            Bound::Max(max) => self.found <= max,
            Bound::Min(min) => self.found >= min,
        }
    }

    pub(super) fn text(&self) -> String {
        let Self { unit, found, .. } = self;
        let (word, bound) = match self.bound {
            Bound::Max(max) => ("at most", max),
            Bound::Min(min) => ("at least", min),
        };
        let verdict = if self.is_held() { "held" } else { "MISSED" };
        format!("{found:.3} {unit}, {word} {bound}: {verdict}")
    }
}

/// Where everything lies.
struct Paths {
    folder: PathBuf,
    smelt: PathBuf,
}

/// `cargo xtask bench workflow [--runs N] [CASE]…`.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    type Case = fn(&Paths, usize) -> Result<Row>;
    const CASES: [(&str, Case); 5] = [
        ("no-op", no_op),
        ("cold", cold),
        ("plan", plan),
        ("hash", hash),
        ("hash-again", hash_again),
    ];
    let (runs, names) = parse(arguments, &CASES.map(|(name, _)| name), RUNS)?;
    cargo(&["build", "--release", "--locked", "--package", "smelt"], &[])?;
    let place =
        Paths { folder: target().join("bench/workflow"), smelt: target().join("release/smelt") };
    fs::create_dir_all(&place.folder).with_context(|| place.folder.display().to_string())?;
    let mut rows = Vec::new();
    for (name, case) in CASES.iter().filter(|(name, _)| names.is_empty() || names.contains(name)) {
        eprintln!("bench: {name}");
        rows.push(case(&place, runs).with_context(|| (*name).to_owned())?);
    }
    report(&rows, runs, &place.folder.join("workflow.json"))
}

impl Paths {
    /// The folder of a graph, written if it is not there.
    fn graph(&self, stages: usize) -> Result<PathBuf> {
        let folder = self.folder.join(format!("graph-{stages}"));
        if !folder.join("build.ninja").exists() {
            Graph(stages).write(&folder)?;
        }
        Ok(folder)
    }

    fn smelt(&self, folder: &Path, arguments: &[&str]) -> Result<Figures> {
        let mut command: Vec<OsString> = vec!["env".into()];
        command.push(assignment("SMELT_CACHE", &folder.join("store")));
        command.push(self.smelt.clone().into());
        command.push(arguments[0].into());
        command.push(folder.join("pipeline.toml").into());
        command.extend(arguments[1..].iter().map(OsString::from));
        measure::run(&command)
    }
}

fn assignment(name: &str, value: &Path) -> OsString {
    let mut text = OsString::from(format!("{name}="));
    text.push(value);
    text
}

fn ninja(folder: &Path) -> Result<Figures> {
    debian::need_alone("ninja-build", || debian::runs("ninja", "--version"))?;
    measure::run(&["ninja".into(), "-j1".into(), "-C".into(), folder.into()])
}

/// One run of each side after the other, `runs` times; medians.
fn beside(
    runs: usize,
    mut ours: impl FnMut() -> Result<Figures>,
    mut theirs: impl FnMut() -> Result<Figures>,
) -> Result<(Figures, Figures)> {
    let (mut smelt, mut rival) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        smelt.push(ours()?);
        rival.push(theirs()?);
    }
    Ok((Figures::medians(&smelt), Figures::medians(&rival)))
}

fn no_op(place: &Paths, runs: usize) -> Result<Row> {
    let folder = place.graph(BUILT)?;
    // Builds what is not built yet, which takes minutes the first time.
    place.smelt(&folder, &["run", "--jobs", "4"])?;
    ninja(&folder)?;
    let (smelt, rival) = beside(runs, || place.smelt(&folder, &["run"]), || ninja(&folder))?;
    Ok(Row {
        name: "no-op",
        what: format!("nothing to do in {BUILT} stages, by content"),
        smelt,
        rival: Some(("ninja, by mtime", rival)),
        checks: vec![
            Check::at_most("CPU s", smelt.cpu_s, 0.06),
            Check::at_most("MiB", smelt.rss_mib, 25.0),
        ],
    })
}

/// What a stage takes besides its program and the durable commit of what it made.
/// What a round made is put aside and not removed: after many files were deleted, making new ones is
/// dear on some disks for half a minute.
fn cold(place: &Paths, runs: usize) -> Result<Row> {
    let folder = place.graph(COLD)?;
    let runs = runs.min(5);
    let (mut ours, mut theirs, mut floors) = (Vec::new(), Vec::new(), Vec::new());
    let aside = folder.join("aside");
    let [store, out, floor] = ["store", "out", "floor"].map(|name| folder.join(name));
    for at in [&aside, &store, &out, &floor] {
        remove(at)?;
    }
    for round in 0..runs {
        let aside = aside.join(round.to_string());
        fs::create_dir_all(&aside)?;
        ours.push(place.smelt(&folder, &["run"])?);
        fs::rename(&store, aside.join("store"))?;
        let _ = fs::remove_file(folder.join(".ninja_log"));
        theirs.push(ninja(&folder)?);
        fs::rename(&out, aside.join("out"))?;
        let count = COLD.to_string().into();
        floors.push(measure::run(&[measure::OWN.into(), "floor".into(), count, (&floor).into()])?);
        fs::rename(&floor, aside.join("floor"))?;
    }
    remove(&aside)?;
    let [smelt, rival, floor] = [ours, theirs, floors].map(|runs| Figures::medians(&runs));
    let own_ms = (smelt.cpu_s - floor.cpu_s) / COLD as f64 * 1e3;
    let floor_ms = floor.cpu_s / COLD as f64 * 1e3;
    Ok(Row {
        name: "cold",
        what: format!(
            "{COLD} stages from nothing; starting the programs and committing durably is \
             {floor_ms:.2} ms CPU a stage"
        ),
        smelt,
        rival: Some(("ninja, nothing durable", rival)),
        checks: vec![Check::at_most("ms CPU a stage above that", own_ms, 0.5)],
    })
}

fn plan(place: &Paths, runs: usize) -> Result<Row> {
    let folder = place.graph(PLANNED)?;
    let dry = || {
        measure::run(&[
            "ninja".into(),
            "-n".into(),
            "--quiet".into(),
            "-C".into(),
            (&folder).into(),
        ])
    };
    let (smelt, rival) = beside(runs, || place.smelt(&folder, &["plan"]), dry)?;
    Ok(Row {
        name: "plan",
        what: format!("a plan of {PLANNED} stages, nothing built"),
        smelt,
        rival: Some(("ninja -n", rival)),
        checks: vec![Check::at_most("CPU s", smelt.cpu_s, 1.0)],
    })
}

fn hash(place: &Paths, runs: usize) -> Result<Row> {
    let folder = hashed(place)?;
    let runs = runs.min(5);
    let fresh = || {
        remove(&folder.join("store"))?;
        place.smelt(&folder, &["plan"])
    };
    let mut theirs: Vec<OsString> = ["openssl", "dgst", "-sha256"].map(OsString::from).into();
    theirs.extend(HASHED.map(|(name, _)| folder.join("input").join(name).into()));
    let (smelt, rival) = beside(runs, fresh, || measure::run(&theirs))?;
    let gib = HASHED.iter().map(|(_, bytes)| *bytes as f64).sum::<f64>() / GIB;
    Ok(Row {
        name: "hash",
        what: format!(
            "{gib} GiB of input hashed for the first time ({:.2} GiB/s of wall time)",
            gib / smelt.wall_s
        ),
        smelt,
        rival: Some(("openssl", rival)),
        checks: vec![Check::at_least("GiB a CPU second", gib / smelt.cpu_s, 1.3)],
    })
}

/// The same input once more: known by its facts, not read.
fn hash_again(place: &Paths, runs: usize) -> Result<Row> {
    let folder = hashed(place)?;
    place.smelt(&folder, &["plan"])?;
    let all: Vec<_> = (0..runs).map(|_| place.smelt(&folder, &["plan"])).collect::<Result<_>>()?;
    let smelt = Figures::medians(&all);
    Ok(Row {
        name: "hash-again",
        what: "the same input, unchanged".to_owned(),
        smelt,
        rival: None,
        checks: vec![Check::at_most("CPU s", smelt.cpu_s, 0.06)],
    })
}

/// A pipeline over a directory of large files.
fn hashed(place: &Paths) -> Result<PathBuf> {
    let folder = place.folder.join("hash");
    let input = folder.join("input");
    fs::create_dir_all(&input).with_context(|| input.display().to_string())?;
    // What is no checkpoint by its names is refused before it is hashed.
    fs::write(input.join("config.json"), "{}")?;
    fs::write(
        folder.join("pipeline.toml"),
        "smelt = 1\nname = \"hash\"\n[stage.source]\nkind = \"source\"\nfrom = \"path:input\"\n",
    )?;
    for (name, bytes) in HASHED {
        let path = input.join(name);
        if fs::metadata(&path).is_ok_and(|meta| meta.len() == bytes) {
            continue;
        }
        let mut random = fs::File::open("/dev/urandom").context("/dev/urandom")?;
        let mut file = fs::File::create(&path).with_context(|| path.display().to_string())?;
        std::io::copy(&mut std::io::Read::take(&mut random, bytes), &mut file)?;
    }
    Ok(folder)
}

/// A Markdown table on standard output, JSON in a file; fails where a target was missed.
fn report(rows: &[Row], runs: usize, path: &Path) -> Result<()> {
    println!(
        "| case (medians of {runs}) | smelt: CPU s | peak RSS | wall | rival | CPU s | peak RSS | wall | CPU ratio | targets |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    rows.iter().for_each(|row| println!("{}", markdown(row)));
    let all: Vec<Value> = rows.iter().map(to_json).collect();
    let text = serde_json::to_string_pretty(&json!({ "runs": runs, "cases": all }))?;
    fs::write(path, text + "\n").with_context(|| path.display().to_string())?;
    eprintln!("bench: wrote {}", path.display());
    let missed: Vec<_> = rows
        .iter()
        .flat_map(|row| row.checks.iter().map(move |check| (row.name, check)))
        .filter(|(_, check)| !check.is_held())
        .map(|(name, check)| format!("{name}: {}", check.text()))
        .collect();
    if !missed.is_empty() {
        bail!("targets missed: {}", missed.join("; "));
    }
    Ok(())
}

fn markdown(row: &Row) -> String {
    let side = |figures: &Figures| {
        let Figures { cpu_s, rss_mib, wall_s, .. } = figures;
        format!("{cpu_s:.3} | {rss_mib:.1} MiB | {wall_s:.2} s")
    };
    let (rival, ratio) = match &row.rival {
        Some((name, figures)) => {
            let ratio = row.smelt.cpu_s / figures.cpu_s.max(f64::MIN_POSITIVE);
            (format!("{name} | {}", side(figures)), format!("{ratio:.2}"))
        }
        None => ("| | |".to_owned(), String::new()),
    };
    let checks: Vec<_> = row.checks.iter().map(Check::text).collect();
    let (what, smelt, checks) = (&row.what, side(&row.smelt), checks.join("; "));
    format!("| {what} | {smelt} | {rival} | {ratio} | {checks} |")
}

fn to_json(row: &Row) -> Value {
    let figures = |f: &Figures| json!({ "cpu_s": f.cpu_s, "user_s": f.user_s, "wall_s": f.wall_s, "rss_mib": f.rss_mib });
    let check = |check: &Check| {
        let (max, min) = match check.bound {
            Bound::Max(max) => (Some(max), None),
            Bound::Min(min) => (None, Some(min)),
        };
        json!({ "unit": check.unit, "found": check.found, "max": max, "min": min, "held": check.is_held() })
    };
    json!({
        "name": row.name,
        "what": row.what,
        "smelt": figures(&row.smelt),
        "rival": row.rival.as_ref().map(|(name, f)| json!({ "name": name, "figures": figures(f) })),
        "checks": row.checks.iter().map(check).collect::<Vec<_>>(),
    })
}
