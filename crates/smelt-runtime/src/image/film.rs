//! Chooses which frames of a film are looked at, as each family's own processor does.
//!
//! Qwen2.5-VL: `qwen-vl-utils`.  Qwen3-VL, InternVL and SmolVLM2: their video processors in transformers.  Knows
//! nothing of files.

use smelt_family::{FrameChoice, ModelFamily};

/// Frames of a second that Qwen's processors look at.
const FPS_QWEN: f64 = 2.0;
/// The least that they look at of short films.
const FRAMES_MIN_QWEN: usize = 4;
/// Frames that Qwen2.5-VL sees as one step.
const STEP_QWEN: usize = 2;

/// Frames of a second that SmolVLM2 looks at.
const FPS_SMOL: f64 = 1.0;
/// The most that it looks at.
const FRAMES_MAX_SMOL: usize = 64;
/// Seconds that it leaves out at both ends of long films.
const SKIPPED_S_SMOL: f64 = 1.0;

/// A film in numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reel {
    /// Frames, at least one.
    pub frames: usize,
    /// Frames a second, on average: more than zero, and finite.
    pub fps: f64,
}

/// What is asked of a film.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wanted {
    /// Frames of a second.
    pub fps: Option<f64>,
    /// Frames in all, which goes before.
    pub frames: Option<usize>,
    /// Most frames, whatever is asked.
    pub frames_max: usize,
}

/// The frames that `family` looks at, by their numbers, rising.
pub fn chosen(family: ModelFamily, reel: Reel, wanted: Wanted) -> Vec<usize> {
    let most = wanted.frames_max.min(reel.frames).max(1);
    let per_second = |fps: f64| (reel.frames as f64 / reel.fps * fps) as usize;
    let usual = || per_second(wanted.fps.unwrap_or(FPS_QWEN)).max(FRAMES_MIN_QWEN);
    // Families that see nothing are shown nothing.
    let choice = family.images().map_or(FrameChoice::EndsInSteps, |images| images.clips.frames);
    match choice {
        FrameChoice::Middles => {
            let frames = wanted.frames.or(wanted.fps.map(per_second));
            middles(reel.frames, frames.unwrap_or(most).clamp(1, most))
        }
        FrameChoice::Ends => ends(reel.frames, wanted.frames.unwrap_or_else(usual).clamp(1, most)),
        FrameChoice::EndsInSteps => {
            let frames = match wanted.frames {
                Some(frames) => {
                    let frames = frames.min(most + STEP_QWEN) as f64;
                    STEP_QWEN * (frames / STEP_QWEN as f64).round_ties_even() as usize
                }
                None => usual(),
            };
            ends_f32(reel.frames, in_steps(frames.clamp(1, most)))
        }
        FrameChoice::Inside => inside(reel, wanted),
    }
}

/// From the first to the last, but of long films without the first and last second, as
/// `SmolVLMVideoProcessor.sample_frames` of transformers; no more frames than seconds, if one of a second is looked at.
fn inside(reel: Reel, wanted: Wanted) -> Vec<usize> {
    let (fps, seconds) = (wanted.fps.unwrap_or(FPS_SMOL), reel.frames as f64 / reel.fps);
    let most = wanted.frames.unwrap_or(FRAMES_MAX_SMOL).min(wanted.frames_max);
    let frames = ((fps * seconds).round_ties_even() as usize).min(most).max(1);
    let last = reel.frames as f64 - 1.0;
    let is_long = seconds - 2.0 * SKIPPED_S_SMOL > most as f64 * fps;
    let (start, end) = match is_long {
        true => {
            let skipped = SKIPPED_S_SMOL * reel.fps;
            (skipped.trunc(), (reel.frames as f64 - skipped).trunc().min(last))
        }
        false => (0.0, last),
    };
    let [start, end] = if start < end { [start, end] } else { [0.0, last] };
    let step = (end - start) / (frames.max(2) - 1) as f64;
    let at = |i: usize| if i > 0 && i + 1 == frames { end } else { i as f64 * step + start };
    let mut chosen: Vec<usize> = (0..frames).map(|i| at(i) as usize).collect();
    chosen.dedup();
    chosen
}

/// Whole steps, if there is one.
fn in_steps(frames: usize) -> usize {
    if frames < STEP_QWEN { frames } else { frames / STEP_QWEN * STEP_QWEN }
}

/// From the first to the last, as `numpy.linspace`.
fn ends(total: usize, wanted: usize) -> Vec<usize> {
    let last = (total - 1) as f64;
    let step = last / (wanted.max(2) - 1) as f64;
    let at = |i: usize| if i > 0 && i + 1 == wanted { last } else { i as f64 * step };
    (0..wanted).map(|i| at(i).round_ties_even() as usize).collect()
}

/// From the first to the last, as `torch.linspace`: in single precision, from both ends.
fn ends_f32(total: usize, wanted: usize) -> Vec<usize> {
    let last = (total - 1) as f32;
    let step = last / (wanted.max(2) - 1) as f32;
    let at = |i: usize| match i < wanted / 2 || wanted == 1 {
        true => step * i as f32,
        false => last - step * (wanted - i - 1) as f32,
    };
    (0..wanted).map(|i| at(i).round_ties_even() as usize).collect()
}

/// The middle of each of equal parts, as `torch.arange` has it in single precision.
fn middles(total: usize, wanted: usize) -> Vec<usize> {
    let step = total as f64 / wanted as f64;
    (0..wanted).map(|i| (step / 2.0 + i as f64 * step) as f32 as usize).collect()
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    /// What the families' own processors choose (`generate.py` beside it).
    const GOLDEN: &str = include_str!("../../../../tests/data/golden/films/chosen.json");

    #[derive(Deserialize)]
    struct Case {
        family: ModelFamily,
        frames: usize,
        fps: f64,
        wanted_fps: Option<f64>,
        wanted_frames: Option<usize>,
        frames_max: usize,
        chosen: Vec<usize>,
    }

    #[test]
    fn frames_are_those_of_the_families_own_processors() {
        let cases: Vec<Case> = serde_json::from_str(GOLDEN).unwrap();
        assert!(cases.len() > 100);
        for case in cases {
            let Case { family, frames, fps, frames_max, .. } = case;
            let wanted = Wanted { fps: case.wanted_fps, frames: case.wanted_frames, frames_max };
            let found = chosen(family, Reel { frames, fps }, wanted);
            assert_eq!(found, case.chosen, "{family:?} {frames} at {fps}, {wanted:?}");
        }
    }

    #[test]
    fn whatever_is_asked_frames_rise_and_have_a_limit() {
        for family in ModelFamily::ALL.into_iter().filter(|family| family.sees()) {
            for (frames, fps) in [(1, 1e-9), (1, 1e9), (2, 30.0), (3, 7.0), (1_000_000, 30.0)] {
                for asked in [None, Some(0), Some(1), Some(5), Some(usize::MAX)] {
                    let wanted =
                        Wanted { fps: asked.map(|n| n as f64), frames: None, frames_max: 8 };
                    for wanted in [wanted, Wanted { fps: None, frames: asked, ..wanted }] {
                        let found = chosen(family, Reel { frames, fps }, wanted);
                        assert!((1..=8).contains(&found.len()), "{found:?}");
                        assert!(found.is_sorted() && *found.last().unwrap() < frames, "{found:?}");
                    }
                }
            }
        }
    }
}
