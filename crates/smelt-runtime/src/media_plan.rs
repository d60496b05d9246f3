//! Says what a picture or clip becomes in a prompt: image tokens with their places, and views.
//!
//! Families tell the frames of a clip apart in their own ways: InternVL by words before each,
//! Qwen2.5-VL by places in time, Qwen3-VL by the seconds before each step, SmolVLM2 by minutes and seconds.
//! Knows nothing of templates.

use smelt_backend::grid::Lattice;
use smelt_backend::position_ids;
use smelt_family::{FrameLabels, ModelFamily};

use crate::deployment::Text;
use crate::image::{
    By, Cutting, Image, ImageOptions, ImagePlan, ImageProcessor, MediaItem, Size, View, route,
};
use crate::prepare_error::PrepareError;
use crate::prompt::ImageTokenRun;
use crate::similarity::Asked;

/// How closely a picture or clip is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// What is wished of each frame.
    pub image_options: ImageOptions,
    /// How many of a clip's frames, equally far apart from the first; all there are if that is fewer.
    pub frames: usize,
}

/// A way to look at a picture or clip, and what it costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// How closely.
    pub look: Look,
    /// Tokens of the prompt, those that surround its image tokens included; at most.
    pub cost: usize,
}

/// What stands for one picture or clip.
#[derive(Debug)]
pub struct MediaPlan<'a> {
    frames: Vec<&'a Image>,
    /// Frames a second; nothing of a picture.
    fps: Option<f64>,
    look: Look,
    plan: ImagePlan,
    /// Its image tokens, and what is said between them.
    pub runs: Vec<ImageTokenRun>,
    /// How those lie, for decoders of three positions a token; else none.
    pub lattices: Vec<position_ids::MediaGrid>,
}

impl<'a> MediaPlan<'a> {
    /// Of `shown` as its sender wishes, before any pixel is touched but to score tiles, for which `asked` is
    /// what the conversation wants to know.
    ///
    /// # Errors
    /// [`PrepareError`] if a picture is too long for its width, or cannot be compared with what is asked,
    /// or the model reads text alone.
    pub fn new(text: &Text, shown: &'a MediaItem, asked: Asked<'_>) -> Result<Self, PrepareError> {
        let frames = text.spec.serving.frames.unwrap_or(usize::MAX);
        let look = Look { image_options: shown.image_options.or(&text.image_options), frames };
        Self::looked(text, shown, look, asked)
    }

    /// As [`Self::new`], looked at in another way.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn looked(
        text: &Text,
        shown: &'a MediaItem,
        look: Look,
        asked: Asked<'_>,
    ) -> Result<Self, PrepareError> {
        let (image_processor, image_options) = (text.seeing()?, &look.image_options);
        let Thinned { frames, times_s, fps } = thinned(shown, look.frames);
        let Some(first) = frames.first() else { unreachable!("whatever is shown has a frame") };
        let Some(fps) = fps else {
            let score = |by, tiles: &[Vec<u8>], side| score(text, by, (tiles, side), asked);
            let plan = image_processor.plan(first, image_options, &score)?;
            let runs = runs_of(image_processor, &plan);
            let lattices = lattice(image_processor, &plan)
                .map(position_ids::MediaGrid::still)
                .into_iter()
                .collect();
            return Ok(Self { frames, fps, look, plan, runs, lattices });
        };
        let plan = ImagePlan::Whole {
            grid: image_processor.plan_clip(first.size(), frames.len(), image_options)?,
        };
        let (depth, tokens) = (image_processor.frames(), image_processor.tokens(&plan));
        let clip = Clip { frames: frames.len(), depth, fps, tokens, times_s };
        let runs = clip.runs(text.spec.family, whole_word(image_processor));
        let lattice = lattice(image_processor, &plan);
        let places = text.spec.places_per_second;
        let lattices = lattice.map(|lattice| match labels_of(text.spec.family) {
            FrameLabels::Steps => vec![clip.in_steps(lattice)],
            _ => clip.lattices(lattice, places),
        });
        let (fps, lattices) = (Some(fps), lattices.unwrap_or_default());
        Ok(Self { frames, fps, look, plan, runs, lattices })
    }

    /// Its image tokens.
    pub fn tokens(&self) -> usize {
        self.runs.iter().map(|run| run.tokens).sum()
    }

    /// The ways to look at it, from this one to that of the fewest tokens, falling.
    ///
    /// # Errors
    /// When the tokenizer fails on what is said between frames.
    pub fn ways(&self, text: &Text) -> Result<Vec<Way>, PrepareError> {
        let (image_processor, image_options, size) =
            (text.seeing()?, &self.look.image_options, self.frames[0].size());
        let around = Around::of(text, &self.runs)?;
        let mut ways = vec![Way { look: self.look, cost: self.tokens() + around.sum }];
        let (Some(_), ImagePlan::Whole { grid }) = (self.fps, &self.plan) else {
            for (image_options, tokens) in image_processor.lower(size, image_options, &self.plan) {
                let cost = match &image_processor.cutting {
                    // Fewer tiles have fewer words.
                    Cutting::Split(_) => self.split_cost(text, &image_options)?,
                    Cutting::Tiles(_) | Cutting::Patches(_) => tokens + around.sum,
                };
                ways.push(Way { look: Look { image_options, ..self.look }, cost });
            }
            return Ok(ways);
        };
        let (depth, frames) = (image_processor.frames(), self.frames.len());
        let steps = frames.div_ceil(depth);
        let mut least = (*image_options, image_processor.grids[*grid].tokens);
        for (image_options, tokens) in
            image_processor.lower_clip((size, frames), image_options, *grid)
        {
            least = (image_options, tokens);
            ways.push(Way {
                look: Look { image_options, ..self.look },
                cost: steps * tokens + around.sum,
            });
        }
        let (image_options, tokens) = least;
        // However few frames there are, none of them is seen on a larger grid.
        let image_options = ImageOptions { tokens_max: Some(tokens), ..image_options };
        let fewer = (1..steps).rev().map(|steps| Way {
            look: Look { image_options, frames: steps * depth },
            cost: steps * tokens + around.sum.min(around.one * steps.min(self.runs.len())),
        });
        ways.extend(fewer);
        Ok(ways)
    }

    /// What a picture costs by other wishes, of a model whose tiles have words of their own.
    fn split_cost(&self, text: &Text, image_options: &ImageOptions) -> Result<usize, PrepareError> {
        let image_processor = text.seeing()?;
        let no_scores = |_: By, _: &[Vec<u8>], _: usize| Ok::<_, PrepareError>(Vec::new());
        let plan = image_processor.plan(self.frames[0], image_options, &no_scores)?;
        let around = Around::of(text, &runs_of(image_processor, &plan))?;
        Ok(image_processor.tokens(&plan) + around.sum)
    }

    /// The pixels that engines are given, in the order of the tokens.
    pub fn views(&self, image_processor: &ImageProcessor) -> Vec<View> {
        match (self.fps, &self.plan) {
            (Some(_), ImagePlan::Whole { grid }) => {
                // The same frames at another speed stand at other places.
                let interval = self.lattices.first().map_or(0.0, |shown| shown.interval).to_bits();
                let views = image_processor.clip(&self.frames, *grid).into_iter();
                views.map(|view| view.marked(interval)).collect()
            }
            _ => self.frames.iter().map(|frame| image_processor.view(frame, &self.plan)).collect(),
        }
    }
}

/// Tokens around image tokens: of all runs, and of the one that has most.
#[derive(Clone, Copy)]
struct Around {
    sum: usize,
    one: usize,
}

impl Around {
    /// Start, end, labels, and what is said before and behind.
    fn of(text: &Text, runs: &[ImageTokenRun]) -> Result<Self, PrepareError> {
        let count = |words: &str| match words.is_empty() {
            true => Ok(0),
            false => text.tokenizer.encode(words).map(|tokens| tokens.len()),
        };
        let mut around = Self { sum: 0, one: 0 };
        for run in runs {
            // Start and end are a token each.
            let marks = 1 + usize::from(!run.is_open);
            let one = count(&run.lead)? + count(&run.label)? + count(&run.tail)? + marks;
            around = Self { sum: around.sum + one, one: around.one.max(one) };
        }
        Ok(around)
    }
}

/// What is looked at of what is shown.
struct Thinned<'a> {
    frames: Vec<&'a Image>,
    /// When each is shown, where that is known.
    times_s: Vec<f64>,
    /// Frames a second; nothing of a picture.
    fps: Option<f64>,
}

/// At most so many frames of a clip, equally far apart, and how many of them there are in a second: as
/// `BaseVideoProcessor.sample_frames` of transformers takes them.
fn thinned(shown: &MediaItem, most: usize) -> Thinned<'_> {
    let total = shown.frames().len();
    let kept = total.min(most.max(1));
    let places = (0..kept).map(|at| at * total / kept);
    Thinned {
        frames: places.clone().map(|at| &shown.frames()[at]).collect(),
        times_s: places.filter_map(|at| shown.times_s().get(at).copied()).collect(),
        fps: shown.fps().map(|fps| fps * kept as f64 / total as f64),
    }
}

/// What tiles of so many pixels on a side are worth.
fn score(
    text: &Text,
    by: By,
    (tiles, side): (&[Vec<u8>], usize),
    asked: Asked<'_>,
) -> Result<Vec<f32>, PrepareError> {
    match (by, &text.similarity) {
        (By::Similarity, Some(similarity)) => Ok(similarity.of(tiles, side, asked)?),
        _ => Ok(tiles.iter().map(|tile| route::texture(tile, side)).collect()),
    }
}

/// The image tokens of a picture: all together, or tile by tile where each has a word of its own.
fn runs_of(image_processor: &ImageProcessor, plan: &ImagePlan) -> Vec<ImageTokenRun> {
    let Cutting::Split(splitting) = &image_processor.cutting else {
        return vec![ImageTokenRun::bare(image_processor.tokens(plan))];
    };
    let each = ImageTokenRun::bare(image_processor.grids[0].tokens);
    let whole = ImageTokenRun { label: splitting.whole.clone(), ..each.clone() };
    let ImagePlan::Tiles { mosaic, .. } = plan else { return vec![whole] };
    let tile = |at: usize| {
        let (row, column) = (at / mosaic.columns, at % mosaic.columns);
        let lead = if row > 0 && column == 0 { "\n" } else { "" };
        let (lead, label) = (lead.to_owned(), splitting.word(row, column));
        ImageTokenRun { lead, label, is_open: true, ..each.clone() }
    };
    let whole = ImageTokenRun { lead: "\n\n".to_owned(), ..whole };
    (0..mosaic.tiles()).map(tile).chain([whole]).collect()
}

/// The word before the image tokens of a whole picture, of models that have one.
fn whole_word(image_processor: &ImageProcessor) -> &str {
    match &image_processor.cutting {
        Cutting::Split(splitting) => &splitting.whole,
        Cutting::Tiles(_) | Cutting::Patches(_) => "",
    }
}

/// How the image tokens of a whole picture lie, where that matters.
fn lattice(image_processor: &ImageProcessor, plan: &ImagePlan) -> Option<Lattice> {
    let (Cutting::Patches(patching), ImagePlan::Whole { grid }) = (&image_processor.cutting, plan)
    else {
        return None;
    };
    let Size { height, width } = image_processor.grids[*grid].size;
    let (rows, columns) = (height / patching.patch, width / patching.patch);
    Some(Lattice { rows, columns, merge: patching.merge })
}

/// How a family tells frames apart; families that see nothing are shown nothing.
fn labels_of(family: ModelFamily) -> FrameLabels {
    family.images().map_or(FrameLabels::Positions, |images| images.clips.labels)
}

/// A clip in numbers.
#[derive(Clone, Debug)]
struct Clip {
    frames: usize,
    /// Frames of one step.
    depth: usize,
    fps: f64,
    /// Image tokens of one step.
    tokens: usize,
    /// When each frame is shown, where that is known.
    times_s: Vec<f64>,
}

impl Clip {
    fn steps(&self) -> usize {
        self.frames.div_ceil(self.depth)
    }

    /// Its image tokens, before those of each frame the `label` that whole pictures have.
    fn runs(&self, family: ModelFamily, label: &str) -> Vec<ImageTokenRun> {
        let tokens = self.tokens;
        let run = |lead: String| ImageTokenRun {
            lead,
            label: label.to_owned(),
            ..ImageTokenRun::bare(tokens)
        };
        let steps = 0..self.steps();
        match labels_of(family) {
            FrameLabels::Positions | FrameLabels::Steps => {
                vec![ImageTokenRun::bare(self.steps() * tokens)]
            }
            FrameLabels::Seconds => {
                steps.map(|step| run(format!("<{:.1} seconds>", self.middle_s(step)))).collect()
            }
            FrameLabels::Numbers => {
                let line = |step| if step == 0 { "" } else { "\n" };
                steps.map(|step| run(format!("{}Frame{}: ", line(step), step + 1))).collect()
            }
            FrameLabels::Timestamps => {
                let mut runs: Vec<ImageTokenRun> =
                    steps.map(|step| run(format!("\nFrame from {}:", self.clock(step)))).collect();
                if let Some(first) = runs.first_mut() {
                    first.lead.insert_str(0, &self.introduction());
                }
                if let Some(last) = runs.last_mut() {
                    last.tail = "\n\n".to_owned();
                }
                runs
            }
        }
    }

    /// What SmolVLM2 is told before the frames.
    fn introduction(&self) -> String {
        let frames = in_words(self.frames);
        let seconds = (self.frames as f64 / self.fps) as u64;
        let [hours, minutes, seconds] = [seconds / 3600, seconds / 60 % 60, seconds % 60];
        format!(
            "You are provided the following series of {frames} frames from a {hours}:{minutes:02}:{seconds:02} [H:MM:SS] video.\n"
        )
    }

    /// Minutes and seconds at which a frame is shown.
    fn clock(&self, frame: usize) -> String {
        let known = self.times_s.get(frame).copied();
        let seconds = known.unwrap_or(frame as f64 / self.fps) as u64;
        format!("{:02}:{:02}", seconds / 60, seconds % 60)
    }

    /// Half-way between the first and the last frame of a step, the clip's last frame repeated.
    fn middle_s(&self, step: usize) -> f64 {
        let at = |frame: usize| {
            let frame = frame.min(self.frames - 1);
            self.times_s.get(frame).copied().unwrap_or(frame as f64 / self.fps)
        };
        let first = step * self.depth;
        (at(first) + at(first + self.depth - 1)) / 2.0
    }

    /// How its tokens lie where steps follow each other a position apart.
    fn in_steps(&self, lattice: Lattice) -> position_ids::MediaGrid {
        position_ids::MediaGrid { lattice, steps: self.steps(), interval: 1.0 }
    }

    fn lattices(
        &self,
        lattice: Lattice,
        places_per_second: Option<u32>,
    ) -> Vec<position_ids::MediaGrid> {
        match places_per_second {
            Some(places) => {
                let step_s = (self.depth as f64 / self.fps) as f32;
                let interval = places as f32 * step_s;
                vec![position_ids::MediaGrid { lattice, steps: self.steps(), interval }]
            }
            None => vec![position_ids::MediaGrid::still(lattice); self.steps()],
        }
    }
}

/// A count below a thousand in words, as the Python package `num2words` writes it.
fn in_words(count: usize) -> String {
    const ONES: [&str; 20] = [
        "zero",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
        "thirteen",
        "fourteen",
        "fifteen",
        "sixteen",
        "seventeen",
        "eighteen",
        "nineteen",
    ];
    const TENS: [&str; 10] =
        ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];
    match (count, count % 10, count % 100) {
        (..20, ..) => ONES[count].to_owned(),
        (..100, 0, _) => TENS[count / 10].to_owned(),
        (..100, ones, _) => format!("{}-{}", TENS[count / 10], ONES[ones]),
        (..1000, _, 0) => format!("{} hundred", ONES[count / 100]),
        (..1000, _, rest) => format!("{} hundred and {}", ONES[count / 100], in_words(rest)),
        // No clip has so many frames.
        _ => count.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIP: Clip = Clip { frames: 5, depth: 2, fps: 2.0, tokens: 7, times_s: Vec::new() };

    #[track_caller]
    fn check(clip: Clip, family: ModelFamily, leads: &[&str], tokens: usize) {
        let runs = clip.runs(family, "");
        assert_eq!(runs.iter().map(|run| &run.lead[..]).collect::<Vec<_>>(), leads);
        assert!(runs.iter().all(|run| run.tokens == tokens));
    }

    #[test]
    fn families_tell_frames_apart_in_their_own_ways() {
        check(CLIP, ModelFamily::QWEN2_5_VL, &[""], 21);
        // `Qwen3VLProcessor._calculate_timestamps` of transformers gives 0.25, 1.25 and 2.0.
        check(CLIP, ModelFamily::QWEN3_VL, &["<0.2 seconds>", "<1.2 seconds>", "<2.0 seconds>"], 7);
        let times_s = vec![0.0, 1.0, 2.2, 3.0, 4.3];
        let film = Clip { times_s, ..CLIP };
        check(film, ModelFamily::QWEN3_VL, &["<0.5 seconds>", "<2.6 seconds>", "<4.3 seconds>"], 7);
        let tiles = Clip { depth: 1, frames: 2, ..CLIP };
        check(tiles, ModelFamily::INTERNVL3, &["Frame1: ", "\nFrame2: "], 7);
    }

    #[test]
    fn counts_are_written_in_words() {
        for (count, words) in [
            (1, "one"),
            (13, "thirteen"),
            (20, "twenty"),
            (64, "sixty-four"),
            (100, "one hundred"),
            (101, "one hundred and one"),
            (768, "seven hundred and sixty-eight"),
        ] {
            assert_eq!(in_words(count), words);
        }
    }

    #[test]
    fn steps_lie_apart_in_time_or_one_by_one() {
        let lattice = Lattice { rows: 2, columns: 4, merge: 2 };
        let one = CLIP.lattices(lattice, Some(2));
        assert_eq!(one, [position_ids::MediaGrid { lattice, steps: 3, interval: 2.0 }]);
        assert_eq!(CLIP.lattices(lattice, None), [position_ids::MediaGrid::still(lattice); 3]);
        let steps = position_ids::MediaGrid { lattice, steps: 3, interval: 1.0 };
        assert_eq!(CLIP.in_steps(lattice), steps);
    }
}
