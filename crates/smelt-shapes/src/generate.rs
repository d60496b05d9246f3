//! Writes samples as files: a PNG for each picture, a line of JSON for each question.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;
use smelt_shapes::{Canvas, Sample, Shown, Split};

/// One question, as a line of `questions.jsonl`.
#[derive(Serialize)]
struct Line<'a> {
    sample: u64,
    task: &'static str,
    images: &'a [String],
    question: &'a str,
    answer: &'a str,
}

pub(crate) fn write(first: u64, count: u64, questions: usize, out: &Path) -> Result<()> {
    fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    let mut lines = String::new();
    for index in first..first + count {
        let sample = Sample::new(Split::HeldOut, index, Shown::of(index));
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
