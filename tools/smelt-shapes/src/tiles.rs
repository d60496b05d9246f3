//! Writes tiles with what they show: what a CLIP learns to tell apart by a question.
//!
//! A tile is a line of JSON, then `[side, side, 3]` u8 pixels, made smaller as a router's CLIP is
//! given them.

use std::io::{self, BufWriter, Write};

use anyhow::Result;
use serde::Serialize;
use smelt_random::Random;
use smelt_runtime::image::{Image, Mosaic, tiles};
use smelt_shapes::{SampleLayout, Scene, Split, scenes};

use crate::generate::TILE;

/// Questions told of each sample.
const QUESTIONS: usize = 6;

/// What to write.
#[derive(Debug, clap::Args)]
pub(crate) struct Flags {
    /// Pixels on a side of a written tile.
    #[arg(long, default_value_t = 48)]
    side: usize,
    /// The first sample's number.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Samples; endless if absent.
    #[arg(long)]
    count: Option<u64>,
    /// The four tiles of held-out mosaics in their order, instead of training tiles of every kind.
    #[arg(long)]
    held_out: bool,
}

/// A tile in words, as its line.
#[derive(Serialize)]
struct Line {
    /// What might be asked of its picture, and what of the picture that asks about.
    questions: Vec<[String; 2]>,
    /// What can be asked about and lies on it, and what only reaches into it.
    shows: Vec<String>,
    cut: Vec<String>,
}

pub(crate) fn write(flags: &Flags) -> Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    let end = flags.count.map_or(u64::MAX, |count| flags.first + count);
    match (flags.first..end).try_for_each(|index| write_sample(flags, index, &mut out)) {
        // Whoever read has enough.
        Err(error) if is_closed(&error) => Ok(()),
        result => result,
    }
}

fn is_closed(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// As many tiles as the sample's pictures have.
fn write_sample(flags: &Flags, index: u64, out: &mut impl Write) -> Result<()> {
    let split = if flags.held_out { Split::HeldOut } else { Split::Train };
    let (scenes, questions) = scenes(split, index, shown(flags, index));
    let told = questions.iter().take(QUESTIONS);
    let told: Vec<_> = told.map(|asked| [asked.text.clone(), asked.of.clone()]).collect();
    let mut random = Random::new(!index);
    for scene in &scenes {
        for tile in cut(scene, flags.held_out, &mut random) {
            let [shows, cut] = tile.shown().map(|words| words.into_iter().collect());
            serde_json::to_writer(&mut *out, &Line { questions: told.clone(), shows, cut })?;
            out.write_all(b"\n")?;
            let canvas = tile.draw();
            let picture = Image::from_rgb(canvas.width, canvas.height, canvas.rgb)?;
            out.write_all(&tiles(&picture, Mosaic::ONE, flags.side, 1).concat())?;
        }
    }
    out.flush()?;
    Ok(())
}

/// Half of what is learnt from are mosaics, the rest what other pictures are cut into.
fn shown(flags: &Flags, index: u64) -> SampleLayout {
    match index % 8 {
        _ if flags.held_out => SampleLayout::Mosaic((2, 2), TILE),
        0..=3 => SampleLayout::Mosaic((2, 2), TILE),
        4 | 5 => SampleLayout::One(2 * TILE, 2 * TILE),
        6 => SampleLayout::One(TILE, TILE),
        _ => SampleLayout::Several(3, TILE),
    }
}

/// The tiles of a picture; of one to learn from, half of them are squares from anywhere on it.
fn cut(scene: &Scene, is_held_out: bool, random: &mut Random) -> Vec<Scene> {
    let (columns, rows) = (scene.width / TILE, scene.height / TILE);
    let tile = |at: i32| {
        if is_held_out || random.chance(50) {
            return scene.window(at % columns * TILE, at / columns * TILE, TILE);
        }
        let left = random.between(0, scene.width - TILE);
        scene.window(left, random.between(0, scene.height - TILE), TILE)
    };
    (0..columns * rows).map(tile).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_tile_is_a_line_and_its_pixels() {
        for held_out in [false, true] {
            let flags = Flags { side: 48, first: 0, count: None, held_out };
            for index in 0..16 {
                let mut bytes = Vec::new();
                write_sample(&flags, index, &mut bytes).unwrap();
                let (mut rest, mut lines) = (&bytes[..], Vec::new());
                while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                    lines.push(serde_json::from_slice::<Value>(&rest[..end]).unwrap());
                    rest = &rest[end + 1 + 48 * 48 * 3..];
                }
                let of_training = [4, 4, 4, 4, 4, 4, 1, 3][index as usize % 8];
                assert_eq!(lines.len(), if held_out { 4 } else { of_training });
                let questions = lines[0]["questions"].as_array().unwrap();
                for of in questions.iter().map(|question| &question[1]).filter(|_| held_out) {
                    let shows = |line: &&Value| line["shows"].as_array().unwrap().contains(of);
                    assert_eq!(lines.iter().filter(shows).count(), 1, "{index} {of}");
                }
            }
        }
    }
}
