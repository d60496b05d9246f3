//! The facts that a row of the registry holds.
//!
//! Plain data.  Where families need other arithmetic, a row names the kind, and who computes it
//! matches on that.

/// What is true of every model of a family.
#[derive(Debug)]
pub struct Family {
    /// The word in `deployment.json`, in messages, and of the models that checkpoints are read as.
    pub name: &'static str,
    /// How its models see; nothing of a family that reads text alone.
    pub images: Option<ImageFacts>,
}

/// How a family's models see.
#[derive(Debug)]
pub struct ImageFacts {
    /// The words of its tokenizers that surround and stand for a picture.
    pub marks: ImageMarks,
    /// How pictures are cut.
    pub cut: CutFacts,
    /// From bytes to what towers read, where a checkpoint does not say.
    pub normalization: Normalization,
    /// How clips are shown.
    pub clips: ClipFacts,
}

impl ImageFacts {
    /// The word between the token before a whole picture and its image tokens; empty where there is none.
    pub fn label(&self) -> &'static str {
        match self.cut {
            CutFacts::Tiles | CutFacts::Patches { .. } => "",
            CutFacts::Split(facts) => facts.whole,
        }
    }
}

/// The special tokens of pictures and clips, as text.
#[derive(Clone, Copy, Debug)]
pub struct ImageMarks {
    /// Before a picture.
    pub start: &'static str,
    /// For each embedding of a picture.
    pub image: &'static str,
    /// After a picture.
    pub end: &'static str,
    /// What chat templates write for a clip, where that is another token.
    pub video: Option<&'static str>,
}

/// How pictures are cut, and by which limits where a checkpoint names none.
#[derive(Clone, Copy, Debug)]
pub enum CutFacts {
    /// Into square tiles by the closest shape: InternVL.
    Tiles,
    /// Into patches of a grid of any shape: Qwen-VL.
    Patches {
        /// Fewest and most pixels of a picture.
        pixels: [usize; 2],
        /// Those of clips.
        clip: ClipLimits,
    },
    /// Into square tiles by the longest edge, each behind a word of its own: SmolVLM.
    Split(SplitFacts),
}

/// Fewest and most pixels of clips.
#[derive(Clone, Copy, Debug)]
pub struct ClipLimits {
    /// Whether the limits hold for all frames together, or for each.
    pub together: bool,
    /// Fewest and most.
    pub pixels: [usize; 2],
}

/// How a picture is split by its longest edge.
#[derive(Clone, Copy, Debug)]
pub struct SplitFacts {
    /// Tiles along the longest edge, where a checkpoint does not say.
    pub along: usize,
    /// The word of a tile, in which `{row}` and `{column}` count from 1.
    pub tile: &'static str,
    /// The word of the whole picture.
    pub whole: &'static str,
}

/// How the channels of a picture, from 0 to 1, are shifted and stretched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normalization {
    /// Subtracted from each channel.
    pub mean: [f32; 3],
    /// Then divides each channel.
    pub std: [f32; 3],
}

impl Normalization {
    /// The channels' means and deviations on ImageNet.
    pub const IMAGENET: Self = Self { mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225] };
    /// Those of CLIP's pictures.
    pub const CLIP: Self = Self {
        mean: [0.481_454_66, 0.457_827_5, 0.408_210_73],
        std: [0.268_629_55, 0.261_302_6, 0.275_777_1],
    };
    /// From -1 to 1.
    pub const HALVES: Self = Self { mean: [0.5; 3], std: [0.5; 3] };
}

/// How a family's models are shown clips.
#[derive(Clone, Copy, Debug)]
pub struct ClipFacts {
    /// Which frames of a film are looked at.
    pub frames: FrameChoice,
    /// How its frames are told apart in prompts.
    pub labels: FrameLabels,
}

/// Which frames of a film are looked at, as the family's own processor chooses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameChoice {
    /// The middles of equal parts: InternVL.
    Middles,
    /// From the first to the last, two of a second, in steps of two: `qwen-vl-utils`.
    EndsInSteps,
    /// From the first to the last, two of a second: Qwen3-VL.
    Ends,
    /// From the first to the last, one of a second; of long films without the first and last second: SmolVLM2.
    Inside,
}

/// How the frames of a clip are told apart in prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameLabels {
    /// By positions alone, which count on with the seconds between them.
    Positions,
    /// By positions alone, one a step whatever the seconds between them: Qwen2-VL.
    Steps,
    /// By the seconds before each step.
    Seconds,
    /// By numbers before each frame.
    Numbers,
    /// By a sentence about the clip, and minutes and seconds before each frame.
    Timestamps,
}

/// What one model's tower takes, by its checkpoint's own numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TowerInput {
    /// Square tiles of a mosaic.
    Mosaic {
        /// Pixels on a side of a tile.
        side: usize,
        /// Fewest tiles of a picture.
        min_tiles: usize,
        /// Most tiles of a picture, the thumbnail apart.
        max_tiles: usize,
        /// Whether a picture of several tiles is also seen whole.
        use_thumbnail: bool,
    },
    /// Square tiles; how many, the tower does not mind.
    Tile {
        /// Pixels on a side of a tile.
        side: usize,
    },
    /// Patches of pictures of any size.
    Patches {
        /// Pixels on a side of a patch.
        patch: usize,
        /// Patches on a side of an image token.
        merge: usize,
        /// Frames of a patch.
        frames: usize,
    },
}
