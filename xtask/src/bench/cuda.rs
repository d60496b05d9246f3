//! Measures the decoder for GPUs, and a tower of pictures, at true size: makes what a machine with a card runs, and reads what it found.
//!
//! Machines with cards have no compiler, so there are two halves.  Without results this writes a folder with the program,
//! its kernels and PyTorch's side of the tower; with the lines that both printed there it writes a dated page, and holds the
//! figures to targets.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{root, target};

/// Where pages of figures are kept.
const PAGES: &str = "docs/figures";
/// The least that each figure should be on an H200, of weights of a form: what llama.cpp and compiled PyTorch reach there,
/// times what is promised.
const TARGETS: [(&str, &str, f64); 7] = [
    ("i4g128", "1 streams at 512", 1200.0),
    ("i4g128", "8 streams at 512", 7050.0),
    ("i4g128", "32 streams at 512", 14_100.0),
    ("i4g128", "prompt of 2048", 120_000.0),
    ("i4g128", "prompt of 356", 60_000.0),
    ("half", "1 streams at 512", 683.0),
    ("half", "prompt of 2048", 57_400.0),
];
/// The most.
const LIMITS: [(&str, &str, f64); 2] =
    [("i4g128", "open", 1.0), ("i4g128", "memory beside weights", 300.0)];

/// The least that figures should be of others of the same minutes, each a form and a name: long contexts of short ones, and
/// towers of PyTorch's, which are times.
const SHARES: [([&str; 2], [&str; 2], f64); 4] = [
    (["i4g128", "1 streams at 8192"], ["i4g128", "1 streams at 512"], 0.75),
    (["i4g128", "1 streams at 32768"], ["i4g128", "1 streams at 512"], 0.45),
    (["pytorch", "1 tiles"], ["internvit-300m", "1 tiles"], 1.0),
    (["pytorch", "12 tiles"], ["internvit-300m", "12 tiles"], 0.85),
];
/// PyTorch's side of the tower.
const TOWER: &str = include_str!("cuda/tower.py");

/// A line of the program's.
#[derive(Clone, Debug, PartialEq)]
struct Figure {
    form: String,
    name: String,
    value: f64,
    unit: String,
}

/// `cargo xtask bench cuda [FOLDER]`, or `cargo xtask bench cuda --results FILE`.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    match arguments {
        [] => make(&target().join("bench-cuda")),
        ["--results", file] => report(Path::new(file)),
        [folder] if !folder.starts_with('-') => make(&PathBuf::from(folder)),
        _ => bail!("bench cuda takes a folder, or --results FILE"),
    }
}

/// Makes the folder: the program, and kernels that it need not compile.
fn make(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--release", "--locked", "-p", "smelt-engine-build"]);
    cargo.args(["--example", "bench_cuda"]).current_dir(root()).stderr(Stdio::inherit());
    ensure!(cargo.status().context("cannot start cargo")?.success(), "{cargo:?} failed");
    let program = folder.join("bench_cuda");
    fs::copy(target().join("release/examples/bench_cuda"), &program)?;
    let mut compile = Command::new(&program);
    compile.arg("compile").arg(folder).env("SMELT_NVRTC", crate::nvrtc::libraries()?);
    ensure!(compile.status()?.success(), "{compile:?} failed");
    fs::write(folder.join("tower.py"), TOWER)?;
    println!("on a machine with a card, and PyTorch for its side of the tower:");
    println!("  {0}/bench_cuda run {0} > results.jsonl", folder.display());
    println!("  python3 {}/tower.py >> results.jsonl", folder.display());
    Ok(())
}

/// Writes the page of the figures in a file, and fails where one misses its target.
fn report(file: &Path) -> Result<()> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let (card, figures) = read(&text)?;
    let missed = missed(&figures);
    let date = date(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs());
    let commit =
        Command::new("git").args(["rev-parse", "--short", "HEAD"]).current_dir(root()).output()?;
    let commit = String::from_utf8_lossy(&commit.stdout).trim().to_owned();
    let page = page(&card, &date, &commit, &figures);
    let place = root().join(PAGES).join(format!("cuda-{date}.md"));
    fs::create_dir_all(root().join(PAGES))?;
    fs::write(&place, &page).with_context(|| place.display().to_string())?;
    print!("{page}");
    ensure!(missed.is_empty(), "targets missed: {}", missed.join("; "));
    Ok(())
}

/// What the program printed: the card, and figures.
fn read(text: &str) -> Result<(String, Vec<Figure>)> {
    let (mut card, mut figures) = (String::new(), Vec::new());
    for line in text.lines().filter(|line| line.starts_with('{')) {
        let value: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        let word = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
        if value.get("card").is_some() {
            card = format!("{}, CUDA {}", word("card"), word("cuda"));
            continue;
        }
        let number = value["value"].as_f64().with_context(|| line.to_owned())?;
        let (form, name, unit) = (word("form"), word("figure"), word("unit"));
        figures.push(Figure { form, name, value: number, unit });
    }
    ensure!(!card.is_empty() && !figures.is_empty(), "the results name no card or no figure");
    Ok((card, figures))
}

/// Targets that figures miss, or that were not measured.
fn missed(figures: &[Figure]) -> Vec<String> {
    let find = |form: &str, name: &str| {
        figures.iter().find(|figure| figure.form == form && figure.name == name)
    };
    let judge = |(form, name, bound): (&str, &str, f64), least: bool| match find(form, name) {
        None => Some(format!("{form} {name} was not measured")),
        Some(figure) if (figure.value >= bound) == least || figure.value == bound => None,
        Some(figure) => Some(format!("{form} {name}: {:.1}, not {bound}", figure.value)),
    };
    let share = |(of, by, least): ([&str; 2], [&str; 2], f64)| {
        let [Some(own), Some(other)] = [of, by].map(|[form, name]| find(form, name)) else {
            return Some(format!("{} was not measured beside {}", of.join(" "), by.join(" ")));
        };
        let share = own.value / other.value;
        (share < least).then(|| {
            let (of, by) = (of.join(" "), by.join(" "));
            format!("{of} is {share:.2} of {by}, not {least}")
        })
    };
    let least = TARGETS.into_iter().filter_map(|row| judge(row, true));
    let most = LIMITS.into_iter().filter_map(|row| judge(row, false));
    least.chain(most).chain(SHARES.into_iter().filter_map(share)).collect()
}

fn page(card: &str, date: &str, commit: &str, figures: &[Figure]) -> String {
    let head = format!(
        "# Decoder and tower on a GPU, {date}\n\n{card}; commit {commit}; random weights of the sizes of Qwen3-1.7B and \
         InternViT-300M, medians.\n\n\
         | weights | figure | value |\n|---|---|---|\n"
    );
    let row = |figure: &Figure| {
        let Figure { form, name, value, unit } = figure;
        let digits = if *value < 10.0 { 2 } else { 1 };
        format!("| {form} | {name} | {value:.digits$} {unit} |\n")
    };
    figures.iter().map(row).fold(head, |page, row| page + &row)
}

/// The day of a moment, as `2026-01-31`: the civil calendar of Howard Hinnant's `civil_from_days`.
fn date(seconds: u64) -> String {
    let days = seconds / 86_400 + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(form: &str, name: &str, value: f64) -> Figure {
        Figure { form: form.to_owned(), name: name.to_owned(), value, unit: "tok/s".to_owned() }
    }

    #[test]
    fn lines_of_the_program_are_read_and_noise_is_not() {
        let text = "loading\n{\"card\": \"A1\", \"cuda\": \"12.6\"}\n\
            {\"form\": \"half\", \"figure\": \"open\", \"value\": 0.5, \"unit\": \"tok/s\"}\n";
        let (card, figures) = read(text).unwrap();
        assert_eq!((card.as_str(), figures), ("A1, CUDA 12.6", vec![figure("half", "open", 0.5)]));
        assert!(read("nothing").is_err());
        assert!(
            page("A1", "2026-01-31", "abc", &[figure("half", "open", 0.5)]).contains("| 0.50 ")
        );
    }

    #[test]
    fn figures_are_held_to_what_they_should_be() {
        let good = TARGETS.into_iter().chain(LIMITS);
        let mut figures: Vec<Figure> =
            good.map(|(form, name, bound)| figure(form, name, bound)).collect();
        let beside = [
            ("i4g128", "1 streams at 8192", 900.0),
            ("i4g128", "1 streams at 32768", 540.0),
            ("pytorch", "1 tiles", 2.5),
            ("internvit-300m", "1 tiles", 2.5),
            ("pytorch", "12 tiles", 17.0),
            ("internvit-300m", "12 tiles", 20.0),
        ];
        figures.extend(beside.map(|(form, name, value)| figure(form, name, value)));
        assert_eq!(missed(&figures), [""; 0]);
        figures.last_mut().unwrap().value += 1.0;
        let slow = "pytorch 12 tiles is 0.81 of internvit-300m 12 tiles, not 0.85";
        assert_eq!(missed(&figures), [slow]);
        figures.truncate(TARGETS.len() + LIMITS.len());
        let apart = |line: &String| line.contains("was not measured beside");
        assert_eq!(missed(&figures).iter().filter(|line| apart(line)).count(), SHARES.len());
        figures[0].value -= 1.0;
        figures.last_mut().unwrap().value += 1.0;
        assert_eq!(missed(&figures).len(), 2 + SHARES.len());
        figures.remove(1);
        assert!(missed(&figures).iter().any(|line| line.ends_with("was not measured")));
    }

    #[test]
    fn days_have_dates() {
        assert_eq!((date(0), date(86_400 * 59)), ("1970-01-01".into(), "1970-03-01".into()));
        assert_eq!(
            (date(951_782_400), date(1_767_225_599)),
            ("2000-02-29".into(), "2025-12-31".into())
        );
    }
}
