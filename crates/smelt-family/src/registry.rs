//! The registry: every family of models that speaks, a row each.
//!
//! Adding a family is a row here; `CONTRIBUTING.md` says what else.  A row's name is written into deployments, so it
//! never changes.

use std::fmt;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::family::{
    ClipFacts, ClipLimits, CutFacts, Family, FrameChoice, FrameLabels, ImageFacts, ImageMarks,
    Normalization, SplitFacts,
};

/// A family of models that speaks; some of them see.
#[derive(Clone, Copy)]
pub struct ModelFamily(&'static Family);

impl ModelFamily {
    /// Every family.
    pub const ALL: [Self; 8] = [
        Self::INTERNVL3,
        Self::QWEN2_5_VL,
        Self::QWEN3_VL,
        Self::SMOLVLM,
        Self::QWEN2_VL,
        Self::QWEN2,
        Self::QWEN3,
        Self::LLAMA,
    ];

    /// InternVL3 and InternVL3.5: tiles, one position a token.
    pub const INTERNVL3: Self = Self(&Family {
        name: "internvl3",
        images: Some(ImageFacts {
            marks: ImageMarks {
                start: "<img>",
                image: "<IMG_CONTEXT>",
                end: "</img>",
                video: None,
            },
            cut: CutFacts::Tiles,
            normalization: Normalization::IMAGENET,
            clips: ClipFacts { frames: FrameChoice::Middles, labels: FrameLabels::Numbers },
        }),
    });

    /// Qwen2.5-VL: patches, three positions a token.
    pub const QWEN2_5_VL: Self = Self(&Family {
        name: "qwen2_5_vl",
        images: Some(ImageFacts {
            marks: QWEN_VL,
            cut: CutFacts::Patches {
                pixels: [56 * 56, 12_845_056],
                clip: ClipLimits { together: false, pixels: [56 * 56, 12_845_056] },
            },
            normalization: Normalization::CLIP,
            clips: ClipFacts { frames: FrameChoice::EndsInSteps, labels: FrameLabels::Positions },
        }),
    });

    /// Qwen3-VL: patches, three positions a token, features of several blocks of the tower.
    pub const QWEN3_VL: Self = Self(&Family {
        name: "qwen3_vl",
        images: Some(ImageFacts {
            marks: QWEN_VL,
            cut: CutFacts::Patches {
                pixels: [256 * 256, 16_777_216],
                clip: ClipLimits { together: true, pixels: [4096, 25_165_824] },
            },
            normalization: Normalization::HALVES,
            clips: ClipFacts { frames: FrameChoice::Ends, labels: FrameLabels::Seconds },
        }),
    });

    /// SmolVLM, SmolVLM2 and Idefics3: tiles by the longest edge, each behind a word of its own, one position a token.
    pub const SMOLVLM: Self = Self(&Family {
        name: "smolvlm",
        images: Some(ImageFacts {
            marks: ImageMarks {
                start: "<fake_token_around_image>",
                image: "<image>",
                end: "<fake_token_around_image>",
                video: Some("<video>"),
            },
            cut: CutFacts::Split(SplitFacts {
                along: 4,
                tile: "<row_{row}_col_{column}>",
                whole: "<global-img>",
            }),
            normalization: Normalization::HALVES,
            clips: ClipFacts { frames: FrameChoice::Inside, labels: FrameLabels::Timestamps },
        }),
    });

    /// Qwen2-VL: patches, three positions a token; steps of a clip are one position apart.
    pub const QWEN2_VL: Self = Self(&Family {
        name: "qwen2_vl",
        images: Some(ImageFacts {
            marks: QWEN_VL,
            cut: CutFacts::Patches {
                pixels: [56 * 56, 12_845_056],
                clip: ClipLimits { together: false, pixels: [56 * 56, 12_845_056] },
            },
            normalization: Normalization::CLIP,
            clips: ClipFacts { frames: FrameChoice::EndsInSteps, labels: FrameLabels::Steps },
        }),
    });

    /// Qwen2 and Qwen2.5: texts alone.
    pub const QWEN2: Self = Self(&Family { name: "qwen2", images: None });

    /// Qwen3: texts alone.
    pub const QWEN3: Self = Self(&Family { name: "qwen3", images: None });

    /// Llama 2 and 3, and what is built as they are: texts alone.
    pub const LLAMA: Self = Self(&Family { name: "llama", images: None });
}

/// The special tokens of Qwen-VL's tokenizers.
const QWEN_VL: ImageMarks = ImageMarks {
    start: "<|vision_start|>",
    image: "<|image_pad|>",
    end: "<|vision_end|>",
    video: Some("<|video_pad|>"),
};

/// The names of all rows, for messages.
const NAMES: [&str; ModelFamily::ALL.len()] = {
    let mut names = [""; ModelFamily::ALL.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = ModelFamily::ALL[at].0.name;
        at += 1;
    }
    names
};

impl ModelFamily {
    /// The family of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.name() == name)
    }

    /// Its word.
    pub const fn name(self) -> &'static str {
        self.0.name
    }

    /// How its models see, if they do.
    pub fn images(self) -> Option<&'static ImageFacts> {
        self.0.images.as_ref()
    }

    /// Whether its models have a tower that sees.
    pub fn sees(self) -> bool {
        self.images().is_some()
    }
}

impl PartialEq for ModelFamily {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for ModelFamily {}

impl fmt::Debug for ModelFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for ModelFamily {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for ModelFamily {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(ByName)
    }
}

/// Reads a family's word.
struct ByName;

impl Visitor<'_> for ByName {
    type Value = ModelFamily;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a family of models")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<ModelFamily, E> {
        ModelFamily::named(name).ok_or_else(|| E::unknown_variant(name, &NAMES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_found_by_its_name_and_written_as_it() {
        for family in ModelFamily::ALL {
            assert_eq!(ModelFamily::named(family.name()), Some(family));
            let text = serde_json::to_string(&family).unwrap();
            assert_eq!(text, format!("{:?}", family.name()));
            assert_eq!(serde_json::from_str::<ModelFamily>(&text).unwrap(), family);
        }
    }

    #[test]
    fn another_family_is_refused_with_those_that_there_are() {
        let error = serde_json::from_str::<ModelFamily>("\"gpt\"").unwrap_err().to_string();
        let words = "unknown variant `gpt`, expected one of `internvl3`, `qwen2_5_vl`, ";
        assert!(error.starts_with(words), "{error}");
        assert!(serde_json::from_str::<ModelFamily>("7").is_err());
    }

    #[test]
    fn names_and_words_are_told_apart() {
        for (at, family) in ModelFamily::ALL.iter().enumerate() {
            assert!(ModelFamily::ALL[at + 1..].iter().all(|other| other != family));
            let Some(images) = family.images() else { continue };
            let ImageMarks { start, image, end, .. } = images.marks;
            assert!(![start, end].contains(&image) && ![start, image, end].contains(&""));
        }
    }
}
