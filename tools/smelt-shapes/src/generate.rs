//! Writes samples as files: a PNG for each picture, a line of JSON for each question.

use std::fmt::Write as _;
use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;
use smelt_shapes::{Canvas, Sample, SampleLayout, Split};

/// One question, as a line of `questions.jsonl`.
#[derive(Serialize)]
struct Line<'a> {
    sample: u64,
    task: &'static str,
    images: &'a [String],
    question: &'a str,
    answer: &'a str,
}

/// Pixels on a side of a tile of the models here.
pub(crate) const TILE: i32 = 96;

/// What held-out pictures are like.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ImageKind {
    /// As the models were trained on.
    Any,
    /// Such in one tile of so many columns and rows, the others plain.
    Canvas((usize, usize)),
    /// So many columns and rows of tiles that have something each.
    Mosaic((usize, usize)),
}

/// The numbers of "2x3".
pub(crate) fn columns_and_rows(text: &str) -> Result<(usize, usize), String> {
    let numbers = text.split_once('x').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    let is_sound =
        |&(columns, rows): &(usize, usize)| (1..=8).contains(&columns) && (1..=8).contains(&rows);
    numbers.filter(is_sound).ok_or_else(|| "say COLUMNSxROWS, each 1 to 8".to_owned())
}

/// The held-out sample `index`.
fn sample(index: u64, pictures: ImageKind) -> Sample {
    let sample = |shown| Sample::new(Split::HeldOut, index, shown);
    match pictures {
        ImageKind::Any => sample(SampleLayout::of(index)),
        ImageKind::Canvas(size) => sample(SampleLayout::One(TILE, TILE)).on_canvas(size, index),
        ImageKind::Mosaic(size) => sample(SampleLayout::Mosaic(size, TILE)),
    }
}

pub(crate) fn write(
    samples: Range<u64>,
    questions: usize,
    pictures: ImageKind,
    out: &Path,
) -> Result<()> {
    fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    let mut lines = String::new();
    for index in samples {
        let sample = sample(index, pictures);
        let name = |n: usize| format!("{index:06}-{}.png", n + 1);
        let images: Vec<String> = (0..sample.pictures.len()).map(name).collect();
        for (name, picture) in images.iter().zip(&sample.pictures) {
            save(&out.join(name), picture)?;
        }
        for question in sample.questions.iter().take(questions) {
            let line = Line {
                sample: index,
                task: question.task.name(),
                images: &images,
                question: &question.text,
                answer: &question.answer,
            };
            writeln!(lines, "{}", serde_json::to_string(&line)?)?;
        }
    }
    let path = out.join("questions.jsonl");
    fs::write(&path, lines).with_context(|| format!("cannot write {}", path.display()))
}

fn save(path: &Path, picture: &Canvas) -> Result<()> {
    let (width, height) = (u32::try_from(picture.width)?, u32::try_from(picture.height)?);
    let pixels = image::RgbImage::from_raw(width, height, picture.rgb.clone());
    let pixels = pixels.context("a canvas has three bytes a pixel")?;
    pixels.save(path).with_context(|| format!("cannot write {}", path.display()))
}
