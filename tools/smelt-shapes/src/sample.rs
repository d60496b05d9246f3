//! Makes samples: one picture or several, and questions about them.

use smelt_random::Random;

use crate::canvas::Canvas;
use crate::question::{self, Question, Task};
use crate::scene::Scene;

/// Shapes on one picture, at most.
const ITEMS_MAX: i32 = 6;

/// Shapes on each of several pictures, at most.
const ITEMS_MAX_OF_SEVERAL: i32 = 3;

/// Which samples: a seed of one split is never one of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// What models learn from.
    Train,
    /// What they are asked afterwards.
    HeldOut,
}

/// What a sample shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleLayout {
    /// One picture of this width and height.
    One(i32, i32),
    /// This many square pictures of this side.
    Several(usize, i32),
    /// One picture of this many columns and rows of square tiles of this side, each with a scene of its own.
    Mosaic((usize, usize), i32),
}

/// Pictures, and questions about them in any order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The pictures.
    pub pictures: Vec<Canvas>,
    /// The questions: the tasks take turns, so that the first ones differ in kind.
    pub questions: Vec<Question>,
}

/// The sizes that pictures of held-out samples come in.
const SIZES: [(i32, i32); 8] =
    [(96, 96), (128, 128), (120, 100), (100, 120), (192, 96), (96, 192), (240, 120), (192, 192)];

impl SampleLayout {
    /// What the sample `index` shows where nobody says otherwise: mostly one picture.
    pub fn of(index: u64) -> Self {
        let mut random = Random::new(index);
        if random.chance(15) {
            return Self::Several(random.between(2, 3) as usize, 96);
        }
        let (width, height) = random.pick(&SIZES);
        Self::One(width, height)
    }
}

impl Split {
    fn seed(self, index: u64) -> u64 {
        // Odd and even numbers; the generator scatters neighbours.
        index.wrapping_mul(2).wrapping_add(u64::from(self == Self::HeldOut))
    }
}

impl Sample {
    /// The sample `index` of `split`.
    pub fn new(split: Split, index: u64, shown: SampleLayout) -> Self {
        let (scenes, questions) = scenes(split, index, shown);
        Self { pictures: scenes.iter().map(Scene::draw).collect(), questions }
    }

    /// The same with each picture in a tile, any by `seed`, of a plain one of so many columns and rows;
    /// and the questions whose answers stay right, for places and sizes do not.
    #[must_use]
    pub fn on_canvas(mut self, (columns, rows): (usize, usize), seed: u64) -> Self {
        let tile = Random::new(seed).between(0, (columns * rows) as i32 - 1) as usize;
        let place = (tile % columns, tile / columns);
        let within = |picture: &Canvas| picture.within((columns, rows), place);
        self.pictures = self.pictures.iter().map(within).collect();
        self.questions.retain(|question| !question.is_relative());
        self
    }
}

/// What the pictures of a sample show, and its questions.
pub fn scenes(split: Split, index: u64, shown: SampleLayout) -> (Vec<Scene>, Vec<Question>) {
    let mut random = Random::new(split.seed(index));
    let random = &mut random;
    let (scenes, groups) = match shown {
        SampleLayout::One(width, height) => {
            let scene = Scene::new(width, height, ITEMS_MAX, random);
            let groups = Task::ALL.map(|task| question::about(&scene, task)).into();
            (vec![scene], groups)
        }
        SampleLayout::Several(count, side) => {
            let mut one = || Scene::new(side, side, ITEMS_MAX_OF_SEVERAL, random);
            let scenes: Vec<Scene> = (0..count).map(|_| one()).collect();
            let groups = vec![question::which(&scenes, random)];
            (scenes, groups)
        }
        SampleLayout::Mosaic((columns, rows), side) => {
            let tiles = Scene::tiles(columns * rows, side, random);
            let whole = Scene::joined(&tiles, columns);
            let groups = question::about_one(&tiles, &whole);
            (vec![whole], groups)
        }
    };
    (scenes, in_rounds(groups, random))
}

/// The questions of all groups in any order, one of each after another.
fn in_rounds(mut groups: Vec<Vec<Question>>, random: &mut Random) -> Vec<Question> {
    groups.iter_mut().for_each(|group| random.shuffle(group));
    let mut all = Vec::new();
    while groups.iter().any(|group| !group.is_empty()) {
        random.shuffle(&mut groups);
        all.extend(groups.iter_mut().filter_map(Vec::pop));
    }
    all
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    #[test]
    fn the_bytes_are_pinned() {
        let mut hasher = Sha256::new();
        for index in 0..50 {
            for split in [Split::Train, Split::HeldOut] {
                for shown in [
                    SampleLayout::One(96, 96),
                    SampleLayout::One(192, 130),
                    SampleLayout::Several(3, 96),
                ] {
                    let sample = Sample::new(split, index, shown);
                    sample.pictures.iter().for_each(|picture| hasher.update(&picture.rgb));
                    for question in sample.questions {
                        hasher.update(question.text);
                        hasher.update(question.answer);
                    }
                }
            }
        }
        let digest: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digest, "12b12a737e561fda0df90517aa330d8f0c7c51bef694b68bfe4df41b16847a62");
    }

    #[test]
    fn a_canvas_holds_the_picture_in_one_tile_and_nothing_else() {
        let alone = Sample::new(Split::HeldOut, 3, SampleLayout::One(96, 96));
        let (picture, ground) = (alone.pictures[0].clone(), alone.pictures[0].rgb[..3].to_vec());
        let placed = alone.on_canvas((3, 2), 3);
        let canvas = &placed.pictures[0];
        assert_eq!((canvas.width, canvas.height), (288, 192));
        let tile = |column: usize, row: usize| -> Vec<u8> {
            let lines = canvas.rgb.chunks_exact(288 * 3).skip(row * 96).take(96);
            lines.flat_map(|line| line[column * 288..][..288].to_vec()).collect()
        };
        let tiles: Vec<_> = (0..6).map(|at| tile(at % 3, at / 3)).collect();
        assert_eq!(tiles.iter().filter(|tile| **tile == picture.rgb).count(), 1);
        let is_plain = |tile: &&Vec<u8>| tile.chunks_exact(3).all(|pixel| pixel == ground);
        assert_eq!(tiles.iter().filter(is_plain).count(), 5);
        assert!(!placed.questions.is_empty());
        assert!(placed.questions.iter().all(|question| !question.text.starts_with("How large")));
    }

    #[test]
    fn questions_of_a_mosaic_are_about_one_tile() {
        let mut asked = Vec::new();
        for index in 0..300 {
            let (scenes, questions) =
                scenes(Split::HeldOut, index, SampleLayout::Mosaic((2, 2), 96));
            let tiles = [(0, 0), (1, 0), (0, 1), (1, 1)]
                .map(|(column, row)| scenes[0].window(column * 96, row * 96, 96));
            for question in questions {
                let shows = |tile: &&Scene| tile.shown()[0].contains(&question.of);
                assert_eq!(tiles.iter().filter(shows).count(), 1, "{index} {question:?}");
                asked.push(question.task);
            }
        }
        for task in [Task::Attribute, Task::Beside, Task::Read] {
            let count = asked.iter().filter(|asked| **asked == task).count();
            assert!(count > 100, "{task:?} {count}");
        }
    }

    #[test]
    fn splits_share_no_picture() {
        let show = |split, index| Sample::new(split, index, SampleLayout::One(96, 96)).pictures;
        for index in 0..300 {
            let held_out = show(Split::HeldOut, index);
            assert!((0..3).all(|other| show(Split::Train, index + other) != held_out));
        }
    }

    #[test]
    fn every_task_is_asked_often() {
        let mut asked = Task::ALL.map(|task| (task, 0));
        for index in 0..600 {
            let shown = if index % 3 == 0 {
                SampleLayout::Several(2, 96)
            } else {
                SampleLayout::One(96, 96)
            };
            for question in Sample::new(Split::Train, index, shown).questions {
                let (_, count) = asked.iter_mut().find(|(task, _)| *task == question.task).unwrap();
                *count += 1;
            }
        }
        assert!(asked.iter().all(|(_, count)| *count > 100), "{asked:?}");
    }
}
