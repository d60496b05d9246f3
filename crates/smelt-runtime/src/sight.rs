//! Says what a picture or clip becomes in a prompt: image tokens with their places, and views.
//!
//! Families tell the frames of a clip apart in their own ways: InternVL by words before each,
//! Qwen2.5-VL by places in time, Qwen3-VL by the seconds before each step.  Knows nothing of templates.

use smelt_engine::llm::places;
use smelt_engine::vision::Lattice;

use crate::deployment::{Family, Text};
use crate::image::{By, Cutting, Eyes, Plan, Shown, Size, View, route};
use crate::prepare::PrepareError;
use crate::prompt::Run;

/// What stands for one picture or clip.
#[derive(Debug)]
pub struct Sight<'a> {
    shown: &'a Shown,
    plan: Plan,
    /// Its image tokens, and what is said between them.
    pub runs: Vec<Run>,
    /// How those lie, for decoders of three positions a token; else none.
    pub lattices: Vec<places::Shown>,
}

impl<'a> Sight<'a> {
    /// Of `shown`, before any pixel is touched but to score tiles, for which `asked` is what the
    /// conversation wants to know.
    ///
    /// # Errors
    /// [`PrepareError`] if a picture is too long for its width, or cannot be compared with what is asked.
    pub fn new(text: &Text, shown: &'a Shown, asked: &str) -> Result<Self, PrepareError> {
        let eyes = &text.eyes;
        let Some(first) = shown.frames().first() else {
            unreachable!("whatever is shown has a frame")
        };
        let Some(fps) = shown.fps() else {
            let score = |by, tiles: &[Vec<u8>], side| score(text, by, (tiles, side), asked);
            let plan = eyes.plan(first, &shown.wish, &score)?;
            let runs = vec![Run::bare(eyes.tokens(&plan))];
            let lattices = lattice(eyes, &plan).map(places::Shown::still).into_iter().collect();
            return Ok(Self { shown, plan, runs, lattices });
        };
        let frames = shown.frames().len();
        let plan = Plan::Whole { grid: eyes.plan_clip(first.size(), frames, &shown.wish)? };
        let clip = Clip { frames, depth: eyes.frames(), fps, tokens: eyes.tokens(&plan) };
        let runs = clip.runs(text.spec.family);
        let lattice = lattice(eyes, &plan);
        let lattices = lattice.map(|lattice| clip.lattices(lattice, text.spec.places_per_second));
        Ok(Self { shown, plan, runs, lattices: lattices.unwrap_or_default() })
    }

    /// The pixels that engines are given, in the order of the tokens.
    pub fn views(&self, eyes: &Eyes) -> Vec<View> {
        match (self.shown.fps(), &self.plan) {
            (Some(_), Plan::Whole { grid }) => {
                // The same frames at another speed stand at other places.
                let interval = self.lattices.first().map_or(0.0, |shown| shown.interval).to_bits();
                let views = eyes.clip(self.shown.frames(), *grid).into_iter();
                views.map(|view| view.marked(interval)).collect()
            }
            _ => self.shown.frames().iter().map(|frame| eyes.view(frame, &self.plan)).collect(),
        }
    }
}

/// What tiles of so many pixels on a side are worth.
fn score(
    text: &Text,
    by: By,
    (tiles, side): (&[Vec<u8>], usize),
    asked: &str,
) -> Result<Vec<f32>, PrepareError> {
    match (by, &text.similarity) {
        (By::Similarity, Some(similarity)) => Ok(similarity.of(tiles, side, asked)?),
        _ => Ok(tiles.iter().map(|tile| route::texture(tile, side)).collect()),
    }
}

/// How the image tokens of a whole picture lie, where that matters.
fn lattice(eyes: &Eyes, plan: &Plan) -> Option<Lattice> {
    let (Cutting::Patches(patching), Plan::Whole { grid }) = (&eyes.cutting, plan) else {
        return None;
    };
    let Size { height, width } = eyes.grids[*grid].size;
    let (rows, columns) = (height / patching.patch, width / patching.patch);
    Some(Lattice { rows, columns, merge: patching.merge })
}

/// A clip in numbers.
#[derive(Clone, Copy, Debug)]
struct Clip {
    frames: usize,
    /// Frames of one step.
    depth: usize,
    fps: f64,
    /// Image tokens of one step.
    tokens: usize,
}

impl Clip {
    fn steps(&self) -> usize {
        self.frames.div_ceil(self.depth)
    }

    fn runs(&self, family: Family) -> Vec<Run> {
        let tokens = self.tokens;
        let run = |lead: String| Run { lead, tokens };
        let steps = 0..self.steps();
        match family {
            Family::Qwen25Vl => vec![Run::bare(self.steps() * tokens)],
            Family::Qwen3Vl => {
                steps.map(|step| run(format!("<{:.1} seconds>", self.middle_s(step)))).collect()
            }
            Family::InternVl3 => {
                let line = |step| if step == 0 { "" } else { "\n" };
                steps.map(|step| run(format!("{}Frame{}: ", line(step), step + 1))).collect()
            }
        }
    }

    /// Half-way between the first and the last frame of a step, the clip's last frame repeated.
    fn middle_s(&self, step: usize) -> f64 {
        let at = |frame: usize| frame.min(self.frames - 1) as f64 / self.fps;
        let first = step * self.depth;
        (at(first) + at(first + self.depth - 1)) / 2.0
    }

    fn lattices(&self, lattice: Lattice, places_per_second: Option<u32>) -> Vec<places::Shown> {
        match places_per_second {
            Some(places) => {
                let step_s = (self.depth as f64 / self.fps) as f32;
                let interval = places as f32 * step_s;
                vec![places::Shown { lattice, steps: self.steps(), interval }]
            }
            None => vec![places::Shown::still(lattice); self.steps()],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIP: Clip = Clip { frames: 5, depth: 2, fps: 2.0, tokens: 7 };

    #[track_caller]
    fn check(clip: Clip, family: Family, leads: &[&str], tokens: usize) {
        let runs = clip.runs(family);
        assert_eq!(runs.iter().map(|run| &run.lead[..]).collect::<Vec<_>>(), leads);
        assert!(runs.iter().all(|run| run.tokens == tokens));
    }

    #[test]
    fn families_tell_frames_apart_in_their_own_ways() {
        check(CLIP, Family::Qwen25Vl, &[""], 21);
        // `Qwen3VLProcessor._calculate_timestamps` of transformers gives 0.25, 1.25 and 2.0.
        check(CLIP, Family::Qwen3Vl, &["<0.2 seconds>", "<1.2 seconds>", "<2.0 seconds>"], 7);
        let tiles = Clip { depth: 1, frames: 2, ..CLIP };
        check(tiles, Family::InternVl3, &["Frame1: ", "\nFrame2: "], 7);
    }

    #[test]
    fn steps_lie_apart_in_time_or_one_by_one() {
        let lattice = Lattice { rows: 2, columns: 4, merge: 2 };
        let one = CLIP.lattices(lattice, Some(2));
        assert_eq!(one, [places::Shown { lattice, steps: 3, interval: 2.0 }]);
        assert_eq!(CLIP.lattices(lattice, None), [places::Shown::still(lattice); 3]);
    }
}
