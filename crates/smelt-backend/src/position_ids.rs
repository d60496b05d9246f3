//! Counts the three positions (time, height, width) of every token of a prompt with pictures.
//!
//! Tokens and the sizes of the pictures come in; places come out, as M-RoPE turns queries and keys
//! by them.  Knows nothing of pixels or of how prompts are made.

use crate::grid::Lattice;

/// Time, height and width of one token.
pub type PositionId = [u32; 3];

/// A picture or a clip whose tokens follow one another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MediaGrid {
    /// How the tokens of one step lie.
    pub lattice: Lattice,
    /// Steps of time; a still has one.
    pub steps: usize,
    /// Places in time from one step to the next, cut off to whole ones where they add up.
    pub interval: f32,
}

impl MediaGrid {
    /// A picture that stands still.
    pub fn still(lattice: Lattice) -> Self {
        Self { lattice, steps: 1, interval: 1.0 }
    }

    /// Its image tokens.
    pub fn tokens(&self) -> usize {
        self.steps * self.lattice.tokens()
    }
}

/// The places of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PositionIds {
    /// One for each token.
    pub tokens: Vec<PositionId>,
    /// The place, in all three directions, of the token after the prompt: behind the furthest.  A
    /// picture takes fewer places than it has tokens, so this is not the number of tokens.
    pub next: u32,
}

/// A prompt whose image tokens are not those of its pictures.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PositionIdsError {
    /// A run of image tokens ends inside a picture.
    #[error(
        "picture {picture} takes {wanted} image tokens, but only {found} follow one another at position {position}"
    )]
    CutShort {
        /// Which picture, from 0.
        picture: usize,
        /// Its image tokens.
        wanted: usize,
        /// The image tokens there are.
        found: usize,
        /// The first of them.
        position: usize,
    },
    /// Image tokens belong to no picture.
    #[error("the image token at position {position} belongs to none of the {pictures} pictures")]
    NoPicture {
        /// Where it is.
        position: usize,
        /// Pictures given.
        pictures: usize,
    },
    /// Pictures have no image tokens.
    #[error("only {placed} of {pictures} pictures have image tokens in the prompt")]
    LeftOver {
        /// Pictures that have.
        placed: usize,
        /// Pictures given.
        pictures: usize,
    },
}

/// The places of `tokens`, in which every run of `image_token` stands for the next of `pictures`
/// (`get_rope_index` of transformers' Qwen2.5-VL; Qwen3-VL's clips are a still for each step).
///
/// Text counts on in all three; the tokens of a step share one time and count rows and columns from
/// the picture's start, and text goes on after the longer side.
///
/// # Errors
/// [`PositionIdsError`] if image tokens and pictures do not match.
pub fn rope_index(
    tokens: &[u32],
    image_token: u32,
    pictures: &[MediaGrid],
) -> Result<PositionIds, PositionIdsError> {
    let mut found = Counted { tokens: Vec::with_capacity(tokens.len()), at: 0 };
    let mut left = pictures.iter();
    while found.tokens.len() < tokens.len() {
        let position = found.tokens.len();
        if tokens[position] != image_token {
            found.tokens.push([found.at; 3]);
            found.at += 1;
            continue;
        }
        let picture = pictures.len() - left.len();
        let Some(shown) = left.next() else {
            return Err(PositionIdsError::NoPicture { position, pictures: pictures.len() });
        };
        let run = tokens[position..].iter().take_while(|token| **token == image_token).count();
        let wanted = shown.tokens();
        if run < wanted {
            return Err(PositionIdsError::CutShort { picture, wanted, found: run, position });
        }
        found.put(shown);
    }
    match left.len() {
        0 => Ok(found.finish()),
        lost => {
            let pictures = pictures.len();
            Err(PositionIdsError::LeftOver { placed: pictures - lost, pictures })
        }
    }
}

/// The places of a prompt, and behind them those of so many tokens of text.
pub fn with_text(prompt: &[PositionId], tokens: usize) -> Vec<PositionId> {
    let behind = (next(prompt)..).take(tokens).map(|at| [at; 3]);
    prompt.iter().copied().chain(behind).collect()
}

/// The place behind the furthest.
fn next(position_ids: &[PositionId]) -> u32 {
    position_ids.iter().flatten().max().map_or(0, |position_id| position_id + 1)
}

/// The places so far.
struct Counted {
    tokens: Vec<PositionId>,
    /// Where text goes on.
    at: u32,
}

impl Counted {
    /// Adds the tokens of one picture or clip.
    fn put(&mut self, shown: &MediaGrid) {
        let MediaGrid { lattice, steps, interval } = shown;
        let (rows, columns) = (lattice.token_rows() as u32, lattice.token_columns() as u32);
        let start = self.at;
        for step in 0..*steps {
            let time = start + (step as f32 * interval) as u32;
            for row in start..start + rows {
                self.tokens.extend((start..start + columns).map(|column| [time, row, column]));
            }
        }
        self.at += rows.max(columns);
    }

    fn finish(self) -> PositionIds {
        PositionIds { next: next(&self.tokens), tokens: self.tokens }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde::Deserialize;

    use super::*;
    use crate::grid::{Grid, Patching};

    #[derive(Deserialize)]
    struct Golden {
        image_token: u32,
        prompts: Vec<Prompt>,
    }

    #[derive(Deserialize)]
    struct Prompt {
        grids: Vec<[usize; 2]>,
        ids: Vec<u32>,
        position_ids: [Vec<u32>; 3],
        delta: i64,
    }

    const PATCHING: Patching = Patching { patch: 4, merge: 2, frames: 2, channels: 3 };

    #[test]
    fn places_are_those_of_transformers() {
        for name in ["qwen2_vl-tiny", "qwen2_5_vl-tiny", "qwen3_vl-tiny"] {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/golden");
            let text = std::fs::read_to_string(root.join(name).join("prompts.json")).unwrap();
            let golden: Golden = serde_json::from_str(&text).unwrap();
            assert_eq!(golden.prompts.len(), 4);
            for prompt in golden.prompts {
                let grid = |&[height, width]: &[usize; 2]| Grid { height, width };
                let shown = |g| MediaGrid::still(PATCHING.lattice(grid(g)).unwrap());
                let pictures: Vec<MediaGrid> = prompt.grids.iter().map(shown).collect();
                let found = rope_index(&prompt.ids, golden.image_token, &pictures).unwrap();
                for (axis, expect) in prompt.position_ids.iter().enumerate() {
                    let found: Vec<u32> =
                        found.tokens.iter().map(|position_id| position_id[axis]).collect();
                    assert_eq!(found, *expect, "{name}");
                }
                let behind = (prompt.ids.len() as i64 + prompt.delta) as u32;
                assert_eq!(found.next, behind);
                let text = with_text(&found.tokens, 2);
                assert_eq!(text[prompt.ids.len()..], [[behind; 3], [behind + 1; 3]]);
            }
        }
    }

    #[derive(Clone, Deserialize)]
    struct Clip {
        /// Steps, rows and columns of patches.
        grid: [usize; 3],
        interval: f32,
        ids: Vec<u32>,
        position_ids: [Vec<u32>; 3],
        delta: i64,
    }

    #[test]
    fn places_in_clips_are_those_of_transformers() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/golden");
        let clips = ["qwen2_5_vl-tiny", "qwen2_vl-tiny"].map(|name| {
            let text = std::fs::read_to_string(root.join(name).join("clips.json")).unwrap();
            let clips: Vec<Clip> = serde_json::from_str(&text).unwrap();
            assert!(clips.len() >= 4);
            clips
        });
        for Clip { grid: [steps, rows, columns], interval, ids, position_ids, delta } in
            clips.concat()
        {
            let lattice = Lattice { rows, columns, merge: 2 };
            let found = rope_index(&ids, 253, &[MediaGrid { lattice, steps, interval }]).unwrap();
            for (axis, expect) in position_ids.iter().enumerate() {
                let found: Vec<u32> =
                    found.tokens.iter().map(|position_id| position_id[axis]).collect();
                assert_eq!(found, *expect, "{steps} steps {interval} apart");
            }
            assert_eq!(i64::from(found.next), ids.len() as i64 + delta);
        }
    }

    #[test]
    fn pictures_may_follow_one_another() {
        let two = [MediaGrid::still(Lattice { rows: 2, columns: 4, merge: 2 }); 2];
        let found = rope_index(&[9, 9, 9, 9, 1], 9, &two).unwrap();
        assert_eq!(found.tokens, [[0, 0, 0], [0, 0, 1], [2, 2, 2], [2, 2, 3], [4, 4, 4]]);
        assert_eq!(found.next, 5);
    }

    #[test]
    fn tokens_that_are_not_the_pictures_are_refused() {
        let one = [MediaGrid::still(Lattice { rows: 2, columns: 6, merge: 2 })];
        let refused = |tokens: &[u32]| rope_index(tokens, 9, &one).unwrap_err().to_string();
        assert_eq!(
            refused(&[1, 9, 9, 1, 9]),
            "picture 0 takes 3 image tokens, but only 2 follow one another at position 1"
        );
        assert_eq!(
            refused(&[9, 9, 9, 9]),
            "the image token at position 3 belongs to none of the 1 pictures"
        );
        assert_eq!(refused(&[1, 2]), "only 0 of 1 pictures have image tokens in the prompt");
    }
}
