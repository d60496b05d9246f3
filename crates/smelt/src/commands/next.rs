//! `smelt` without a command: what is here, and what to do next.

use std::fs;
use std::path::{Path, PathBuf};

use crate::built::{self, Built};
use crate::console::tell_raw;
use crate::exit::{Exit, Failed};
use crate::history::History;
use crate::load;
use crate::table::some;
use crate::unfinished;

/// Where pipelines lie: here, and in the folder of that name.
const FOLDERS: [&str; 2] = ["", "pipelines"];
/// Files that are looked into in a folder: a person keeps fewer pipelines in one.
const FILES_MAX: usize = 1000;
/// Pipelines are short where people write them.
const PIPELINE_BYTES_MAX: u64 = 1 << 20;
/// The least model of texts that is known by name, and one that sees.
const SMALLEST: &str = "smollm2";
const MODEL: &str = "internvl3-1b";
/// So many of a kind are named.
const NAMED_MAX: usize = 2;

/// It is still the command line that is not whole, so it ends as it always did.
pub(crate) fn run() -> Result<Exit, Failed> {
    tell_raw(&advice(&Here::look()));
    Ok(Exit::Usage)
}

/// What is here.
#[derive(Default)]
struct Here {
    /// Whether this smelt builds.
    builds: bool,
    /// The store, as it is named.
    store: PathBuf,
    pipelines: Vec<PathBuf>,
    /// Those of which no deployment is built.
    unbuilt: Vec<PathBuf>,
    /// The deployments by the names to ask them by, those used last first, and what each does.
    built: Vec<(String, String)>,
    /// Pipelines whose last runs did not end.
    unfinished: Vec<String>,
}

impl Here {
    /// What cannot be read is not here: a command that needs it will say why.
    fn look() -> Self {
        let found = FOLDERS.iter().flat_map(|folder| pipelines(Path::new(folder)));
        let pipelines: Vec<PathBuf> = found.collect();
        let unbuilt = pipelines.clone();
        let nothing = Self { builds: cfg!(feature = "build"), ..Self::default() };
        let Ok(store) = load::root() else { return Self { pipelines, unbuilt, ..nothing } };
        if !store.exists() {
            return Self { store, pipelines, unbuilt, ..nothing };
        }
        let all = built::all().unwrap_or_default();
        let unbuilt =
            unbuilt.into_iter().filter(|file| built::of_file(&all, file).is_empty()).collect();
        let name = |built: &Built| (built.name(&all), built.kind.to_owned());
        let built = all.iter().map(name).collect();
        let left = History::open().map(|history| unfinished::all(&history).open);
        let left = left.unwrap_or_default().into_iter();
        let unfinished = left.map(|(_, _, open)| open.pipeline).collect();
        Self { store, pipelines, unbuilt, built, unfinished, ..nothing }
    }
}

/// The pipeline files in a folder, by name: those that fetch nothing from a hub first.
fn pipelines(folder: &Path) -> Vec<PathBuf> {
    let place = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let entries = fs::read_dir(place).into_iter().flatten().flatten().take(FILES_MAX);
    let paths = entries.map(|entry| folder.join(entry.file_name()));
    let read = |path: PathBuf| {
        let text = text_of(&path).filter(|text| text.lines().any(is_version))?;
        Some((text.contains("\"hf:"), path))
    };
    let mut found: Vec<(bool, PathBuf)> = paths.filter_map(read).collect();
    found.sort();
    found.into_iter().map(|(_, path)| path).collect()
}

/// The text of what may be a pipeline.
fn text_of(path: &Path) -> Option<String> {
    let is_toml = path.extension().is_some_and(|extension| extension == "toml") && path.is_file();
    let read = || load::read_within(path, "the pipeline", PIPELINE_BYTES_MAX).ok();
    is_toml.then(read).flatten()
}

/// Whether a line says which version of smelt's pipelines this is.
fn is_version(line: &str) -> bool {
    let value = line.trim_start().strip_prefix("smelt").map(str::trim_start);
    let value = value.and_then(|value| value.strip_prefix('=')).map(str::trim_start);
    value.is_some_and(|value| value.starts_with(|first: char| first.is_ascii_digit()))
}

/// A command, and what it does.
type Row = [String; 2];

fn row(command: impl Into<String>, why: impl Into<String>) -> Row {
    [command.into(), why.into()]
}

/// What there is and what to do about it, in lines.
fn advice(here: &Here) -> String {
    let resume =
        || row("smelt resume", format!("goes on with {}", some(&here.unfinished, NAMED_MAX)));
    let mut rows: Vec<Row> = Vec::new();
    rows.extend((here.builds && !here.unfinished.is_empty()).then(resume));
    rows.extend(of_built(&here.built));
    rows.extend(here.builds.then(|| of_pipelines(&here.unbuilt)).into_iter().flatten());
    let demo = || row("smelt demo", "an answer now, by a model that smelt carries");
    rows.extend(here.built.is_empty().then(demo));
    rows.extend(here.builds.then(|| of_names(here)).into_iter().flatten());
    rows.push(row("smelt doctor", "what would make builds fail or slow on this device"));
    rows.push(row("smelt --help", "every command"));
    let width = rows.iter().map(|[command, _]| command.chars().count()).max().unwrap_or_default();
    let lines = rows.iter().map(|[command, why]| format!("  {command:width$}  {why}\n"));
    format!("{}  What next:\n{}", what(here), lines.collect::<String>())
}

fn of_built(built: &[(String, String)]) -> Vec<Row> {
    let ask = |(name, does): &(String, String)| {
        row(format!("smelt {} {name}", built::asked_by(does)), does.as_str())
    };
    let mut rows: Vec<Row> = built.iter().take(NAMED_MAX).map(ask).collect();
    if built.len() > NAMED_MAX {
        rows.push(row("smelt ls", format!("all {} that are built", built.len())));
    }
    rows
}

/// Models by name, for who has no pipeline to build.
fn of_names(here: &Here) -> Vec<Row> {
    let fit = row(format!("smelt fit {MODEL}"), "what of a model this device can hold");
    let build = row(format!("smelt chat {SMALLEST}"), "builds a small model of texts, and asks it");
    match (here.unbuilt.is_empty(), here.built.is_empty()) {
        (false, _) => Vec::new(),
        (true, true) => vec![build, fit],
        (true, false) => vec![fit],
    }
}

fn of_pipelines(pipelines: &[PathBuf]) -> Vec<Row> {
    let Some((first, others)) = pipelines.split_first() else { return Vec::new() };
    let first = first.display();
    let others = match others.len() {
        0 => String::new(),
        1 => " (another pipeline is here)".to_owned(),
        count => format!(" ({count} more pipelines are here)"),
    };
    vec![
        row(format!("smelt plan {first}"), "what it builds, and whether that fits"),
        row(format!("smelt run {first}"), format!("builds it{others}")),
    ]
}

/// What is here, in a sentence.
fn what(here: &Here) -> String {
    let store = here.store.display();
    let pipelines = match here.pipelines.len() {
        0 => "no pipeline is here",
        1 => "a pipeline is here",
        _ => "pipelines are here",
    };
    match here.built.len() {
        0 => format!("Nothing that can be asked is built in {store}, and {pipelines}."),
        1 => format!("A deployment is built in {store}, and {pipelines}."),
        count => format!("{count} deployments are built in {store}, and {pipelines}."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shipped;

    fn here(pipelines: &[&str], built: &[(&str, &str)], unfinished: &[&str]) -> Here {
        let text = |text: &&str| (*text).to_owned();
        Here {
            builds: true,
            store: "cache".into(),
            pipelines: pipelines.iter().map(PathBuf::from).collect(),
            unbuilt: pipelines.iter().map(PathBuf::from).collect(),
            built: built.iter().map(|(name, does)| (text(name), text(does))).collect(),
            unfinished: unfinished.iter().map(text).collect(),
        }
    }

    /// The commands that are advised, in order.
    fn commands(here: &Here) -> Vec<String> {
        let text = advice(here);
        let lines = text.lines().skip(1);
        lines.map(|line| line.trim().split("  ").next().unwrap().to_owned()).collect()
    }

    #[test]
    fn a_newcomer_is_shown_the_demo() {
        let nothing = here(&[], &[], &[]);
        let expect = [
            "smelt demo",
            "smelt chat smollm2",
            "smelt fit internvl3-1b",
            "smelt doctor",
            "smelt --help",
        ];
        assert_eq!(commands(&nothing), expect);
        assert!(
            advice(&nothing).starts_with("Nothing that can be asked is built in cache, and no")
        );
    }

    #[test]
    fn a_smelt_that_only_serves_advises_nothing_that_builds() {
        let all = here(&["p.toml"], &[("m", "answers texts")], &["one"]);
        let serves = Here { builds: false, ..all };
        assert_eq!(commands(&serves), ["smelt chat m", "smelt doctor", "smelt --help"]);
        let nothing = Here { builds: false, ..here(&[], &[], &[]) };
        assert_eq!(commands(&nothing), ["smelt demo", "smelt doctor", "smelt --help"]);
    }

    #[test]
    fn what_is_half_made_comes_first_and_then_what_can_be_asked() {
        let texts = "answers texts";
        let built = [("a", "embeds texts"), ("b", texts), ("c", texts)];
        let all = here(&["p.toml", "q.toml"], &built, &["one", "two", "three"]);
        let expect = [
            "smelt resume",
            "smelt embed a",
            "smelt chat b",
            "smelt ls",
            "smelt plan p.toml",
            "smelt run p.toml",
            "smelt doctor",
            "smelt --help",
        ];
        assert_eq!(commands(&all), expect);
        let text = advice(&all);
        assert!(text.contains("goes on with one, two and 1 more"), "{text}");
        assert!(text.contains("builds it (another pipeline is here)"), "{text}");
    }

    #[test]
    fn a_pipeline_that_is_built_is_asked_and_not_built_again() {
        let built =
            Here { unbuilt: Vec::new(), ..here(&["p.toml"], &[("m", "answers texts")], &[]) };
        let expect = ["smelt chat m", "smelt fit internvl3-1b", "smelt doctor", "smelt --help"];
        assert_eq!(commands(&built), expect);
        assert!(advice(&built).contains("and a pipeline is here"), "{}", advice(&built));
        let of_p = Built {
            file: Some(std::path::absolute("p.toml").unwrap()),
            ..built::of_model("m", smelt_plan::Digest::of(b"m"))
        };
        let is_built = |all: &[Built]| !built::of_file(all, Path::new("p.toml")).is_empty();
        assert!(is_built(&[of_p]) && !is_built(&[]));
    }

    #[test]
    fn names_that_are_advised_are_known() {
        for name in [SMALLEST, MODEL] {
            assert!(shipped::models().iter().any(|model| model.is_called(name)), "{name}");
        }
    }

    #[test]
    fn pipelines_are_known_by_a_field_and_those_that_fetch_nothing_come_first() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("b.toml", "# A pipeline.\nsmelt = 1\nname = \"b\"\n");
        write("a.toml", "smelt=1\n");
        write("Cargo.toml", "[package]\nname = \"smelt\"\nsmelt-plan = \"1\"\nsmelt = \"1\"\n");
        write("c.txt", "smelt = 1\n");
        write("0.toml", "smelt = 1\nmodel = \"hf:org/model\"\n");
        let names = ["a.toml", "b.toml", "0.toml"].map(|name| folder.path().join(name));
        assert_eq!(pipelines(folder.path()), names);
        assert!(pipelines(Path::new("/nowhere")).is_empty());
    }
}
