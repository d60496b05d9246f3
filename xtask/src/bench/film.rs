//! Measures what showing a film takes beside `ffmpeg` that decodes it and nothing else.
//!
//! Our side is `smelt chat --video` on the demo, whose model is so small that its answer of a word does not
//! count: two passes in a confined child, frames chosen by their times, and the pictures of them.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::measure::{self, Figures};
use super::{parse, succeed};
use crate::ci::cargo;
use crate::{debian, root, target};

/// Runs of each side when `--runs` does not say.
const RUNS: usize = 3;

/// A film that `ffmpeg` draws.
struct Film {
    name: &'static str,
    size: &'static str,
    seconds: u32,
    /// The most of bare `ffmpeg`'s processor time that it may take, where that is promised.
    ratio_max: Option<f64>,
}

const FILMS: [Film; 3] =
    [Film { name: "minute", size: "1280x720", seconds: 60, ratio_max: Some(1.2) }, SHORT, LONG];

/// Films that differ by their length alone, whose memory does not.
const SHORT: Film = Film { name: "small-minute", size: "640x360", seconds: 60, ratio_max: None };
const LONG: Film = Film { name: "ten-minutes", seconds: 600, ..SHORT };

/// The most memory that the longer film may take, of what the shorter takes.
const GROWTH_MAX: f64 = 1.1;

/// `cargo xtask bench film [--runs N] [minute] [small-minute] [ten-minutes]`.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let (runs, names) = parse(arguments, &FILMS.map(|film| film.name), RUNS)?;
    debian::need_alone("ffmpeg", || debian::runs("ffmpeg", "-version"))?;
    cargo(&["build", "--release", "--locked", "--package", "smelt"], &[])?;
    let folder = target().join("bench/film");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let mut demo = Command::new(target().join("release/smelt"));
    demo.arg("run").arg(pipeline()).env("SMELT_CACHE", folder.join("cache"));
    succeed(demo.stdout(Stdio::null()))?;
    println!("| film | smelt: CPU s | peak RSS | ffmpeg: CPU s | ratio |");
    println!("|---|---|---|---|---|");
    let (mut missed, mut peaks) = (Vec::new(), Vec::new());
    for film in FILMS.iter().filter(|film| names.is_empty() || names.contains(&film.name)) {
        let (ratio, rss_mib) = beside(film, &folder, runs)?;
        if film.ratio_max.is_some_and(|max| ratio > max) {
            missed.push(format!("{}: {ratio:.2} of ffmpeg's time", film.name));
        }
        peaks.push((film.name, rss_mib));
    }
    missed.extend(grown(&peaks));
    if !missed.is_empty() {
        bail!("targets missed: {}", missed.join("; "));
    }
    Ok(())
}

/// What is wrong with the memory of films, by their peaks in MiB, where both that are compared were shown.
fn grown(peaks: &[(&str, f64)]) -> Option<String> {
    let of = |film: &Film| peaks.iter().find(|(name, _)| *name == film.name).map(|(_, mib)| *mib);
    let (short, long) = (of(&SHORT)?, of(&LONG)?);
    let why = format!("ten minutes took {long:.0} MiB, one {short:.0}");
    (long > short * GROWTH_MAX).then_some(why)
}

fn pipeline() -> PathBuf {
    root().join("pipelines/demo.toml")
}

/// Shows the film by each side in turn; how much more processor time ours takes, and how much memory, in MiB.
fn beside(film: &Film, folder: &Path, runs: usize) -> Result<(f64, f64)> {
    let path = film.drawn(folder)?;
    let cache = OsString::from(format!("SMELT_CACHE={}", folder.join("cache").display()));
    let smelt = target().join("release/smelt");
    let ours: Vec<OsString> =
        [OsString::from("env"), cache, smelt.into(), "chat".into(), pipeline().into()]
            .into_iter()
            .chain(["--max-tokens", "1", "--video"].map(OsString::from))
            .chain([path.clone().into(), "What is shown?".into()])
            .collect();
    let decoded = ["-nostdin", "-v", "error", "-threads", "1", "-i"].map(OsString::from);
    let theirs: Vec<OsString> = [OsString::from("ffmpeg")]
        .into_iter()
        .chain(decoded)
        .chain([path.into()])
        .chain(["-f", "null", "-"].map(OsString::from))
        .collect();
    let (mut smelt, mut ffmpeg) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        smelt.push(measure::run(&ours)?);
        ffmpeg.push(measure::run(&theirs)?);
    }
    let (smelt, ffmpeg) = (Figures::medians(&smelt), Figures::medians(&ffmpeg));
    let ratio = smelt.cpu_s / ffmpeg.cpu_s;
    let Film { seconds, size, .. } = film;
    println!(
        "| {seconds} s of {size} at 30 frames/s | {:.2} | {:.0} MiB | {:.2} | {ratio:.2} |",
        smelt.cpu_s, smelt.rss_mib, ffmpeg.cpu_s
    );
    Ok((ratio, smelt.rss_mib))
}

impl Film {
    /// Its file, drawn once.
    fn drawn(&self, folder: &Path) -> Result<PathBuf> {
        let path = folder.join(format!("{}.mp4", self.name));
        if path.exists() {
            return Ok(path);
        }
        let half = path.with_extension("half.mp4");
        let source = format!("testsrc2=size={}:rate=30:duration={}", self.size, self.seconds);
        let mut draw = Command::new("ffmpeg");
        draw.args(["-nostdin", "-v", "error", "-y", "-f", "lavfi", "-i", &source]);
        draw.args(["-c:v", "libx264", "-preset", "veryfast", "-pix_fmt", "yuv420p"]).arg(&half);
        succeed(&mut draw)?;
        fs::rename(half, &path)?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_may_not_grow_with_the_length_of_a_film() {
        assert_eq!(grown(&[("small-minute", 100.0), ("ten-minutes", 109.0)]), None);
        assert!(grown(&[("small-minute", 100.0), ("ten-minutes", 111.0)]).is_some());
        assert_eq!(grown(&[("minute", 50.0), ("ten-minutes", 111.0)]), None);
    }
}
