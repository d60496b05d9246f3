//! Asks about a scene what has one clear answer.
//!
//! A question that two people might answer differently (what lies on a border, what is nearly
//! level) is not asked.

use smelt_random::Random;

use crate::figure::{Colour, Shape};
use crate::scene::{Item, SHAPE, Scene};

/// What a question is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Task {
    /// Everything there is.
    Describe,
    /// How many.
    Count,
    /// Which colour, which shape, which size.
    Attribute,
    /// In which part of the picture.
    Where,
    /// What lies beside another.
    Beside,
    /// What a sign says.
    Read,
    /// Which of several pictures.
    Which,
}

impl Task {
    /// Every task.
    pub const ALL: [Self; 7] = [
        Self::Describe,
        Self::Count,
        Self::Attribute,
        Self::Where,
        Self::Beside,
        Self::Read,
        Self::Which,
    ];

    /// The task in a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Describe => "describe",
            Self::Count => "count",
            Self::Attribute => "attribute",
            Self::Where => "where",
            Self::Beside => "beside",
            Self::Read => "read",
            Self::Which => "which",
        }
    }
}

/// A question with its one answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// What it is about.
    pub task: Task,
    /// What is asked.
    pub text: String,
    /// What is right.
    pub answer: String,
    /// What it is asked of, in the words of [`Scene::shown`]; of everything where there are none.
    pub of: String,
}

impl Question {
    fn new(task: Task, text: impl Into<String>, answer: impl Into<String>) -> Self {
        Self { task, text: text.into(), answer: answer.into(), of: String::new() }
    }

    fn of(self, what: impl Into<String>) -> Self {
        Self { of: what.into(), ..self }
    }

    /// Whether the answer is another where the picture is part of a larger one: places and sizes.
    pub(crate) fn is_relative(&self) -> bool {
        match self.task {
            Task::Describe | Task::Where | Task::Which => true,
            Task::Attribute => ["small", "large"].contains(&self.answer.as_str()),
            Task::Count | Task::Beside | Task::Read => false,
        }
    }
}

/// Shapes described in one sentence, at most.
const DESCRIBED_MAX: usize = 4;

/// Every question of `task` that the scene answers clearly.
pub(crate) fn about(scene: &Scene, task: Task) -> Vec<Question> {
    match task {
        Task::Describe => describe(scene).into_iter().collect(),
        Task::Count => count(scene),
        Task::Attribute => attribute(scene),
        Task::Where => place(scene),
        Task::Beside => beside(scene),
        Task::Read => read(scene),
        Task::Which => Vec::new(),
    }
}

fn with_size(item: &Item) -> String {
    format!("a {} {}", item.size.name(), item.kind())
}

fn article(kind: &str) -> &'static str {
    if kind.starts_with('o') { "an" } else { "a" }
}

/// Questions about one of the `tiles` of a picture whose answers all of it confirms, by task.
pub(crate) fn about_one(tiles: &[Scene], whole: &Scene) -> Vec<Vec<Question>> {
    let clear = |task| {
        let all = about(whole, task);
        let questions = tiles.iter().flat_map(|tile| about(tile, task));
        questions.filter(|question| all.contains(question) && !question.is_relative()).collect()
    };
    [Task::Attribute, Task::Beside, Task::Read].map(clear).into()
}

/// The shapes from left to right, then what is written.
fn describe(scene: &Scene) -> Option<Question> {
    let mut items: Vec<&Item> = scene.items.iter().collect();
    items.sort_by_key(|item| item.x);
    let gap = scene.width / 16;
    if items.len() > DESCRIBED_MAX || items.windows(2).any(|pair| pair[1].x - pair[0].x < gap) {
        return None;
    }
    let mut parts: Vec<String> = items.into_iter().map(with_size).collect();
    parts.extend(scene.sign.as_ref().map(|sign| format!("the {} {}", sign.kind(), sign.text)));
    Some(Question::new(Task::Describe, "Describe this image.", parts.join(", ")))
}

fn count(scene: &Scene) -> Vec<Question> {
    let ask = |what: String, of: &str, count: usize| {
        let text = format!("How many {what} are there?");
        Question::new(Task::Count, text, count.to_string()).of(of)
    };
    let forms = Shape::ALL.map(|form| {
        let count = scene.items.iter().filter(|item| item.form == form).count();
        ask(form.plural().to_owned(), form.name(), count)
    });
    let colours = Colour::ALL.map(|colour| {
        let count = scene.items.iter().filter(|item| item.colour == colour).count();
        ask(format!("{} shapes", colour.name()), colour.name(), count)
    });
    let all = ask("shapes".to_owned(), SHAPE, scene.items.len());
    [all].into_iter().chain(forms).chain(colours).collect()
}

/// The only item that `holds` is true of.
fn only(items: &[Item], holds: impl Fn(&Item) -> bool) -> Option<&Item> {
    let mut found = items.iter().filter(|item| holds(item));
    found.next().filter(|_| found.next().is_none())
}

fn attribute(scene: &Scene) -> Vec<Question> {
    let mut all = Vec::new();
    for form in Shape::ALL {
        if let Some(item) = only(&scene.items, |item| item.form == form) {
            let text = format!("What colour is the {}?", form.name());
            all.push(Question::new(Task::Attribute, text, item.colour.name()).of(form.name()));
        }
    }
    for colour in Colour::ALL {
        if let Some(item) = only(&scene.items, |item| item.colour == colour) {
            let text = format!("What shape is {}?", colour.name());
            all.push(Question::new(Task::Attribute, text, item.form.name()).of(colour.name()));
        }
    }
    for item in unique(scene) {
        let text = format!("How large is the {}?", item.kind());
        all.push(Question::new(Task::Attribute, text, item.size.name()).of(item.kind()));
    }
    all
}

/// Items that colour and shape name.
fn unique(scene: &Scene) -> impl Iterator<Item = &Item> {
    let same = |item: &Item, other: &Item| item.form == other.form && item.colour == other.colour;
    scene.items.iter().filter(move |item| only(&scene.items, |other| same(item, other)).is_some())
}

/// The third of `length` that `at` lies in, unless it is near a border.
fn third(at: i32, length: i32) -> Option<usize> {
    let near = length / 20;
    let borders = [length / 3, 2 * length / 3];
    let clear = borders.iter().all(|border| (at - border).abs() > near);
    clear.then(|| borders.iter().filter(|border| at > **border).count())
}

const PLACES: [[&str; 3]; 3] = [
    ["top left", "top", "top right"],
    ["left", "centre", "right"],
    ["bottom left", "bottom", "bottom right"],
];

fn place(scene: &Scene) -> Vec<Question> {
    let ask = |item: &Item| {
        let (row, column) = (third(item.y, scene.height)?, third(item.x, scene.width)?);
        let text = format!("Where is the {}?", item.kind());
        Some(Question::new(Task::Where, text, PLACES[row][column]).of(item.kind()))
    };
    unique(scene).filter_map(ask).collect()
}

/// A direction: its words, and how far `b` lies that way from `a`.
type Direction = (&'static str, fn(&Item, &Item) -> i32);

const DIRECTIONS: [Direction; 4] = [
    ("left of", |a, b| a.x - b.x),
    ("right of", |a, b| b.x - a.x),
    ("above", |a, b| a.y - b.y),
    ("below", |a, b| b.y - a.y),
];

fn beside(scene: &Scene) -> Vec<Question> {
    let directions = || DIRECTIONS.iter();
    let ask = |item| directions().filter_map(move |direction| neighbour(scene, item, *direction));
    unique(scene).flat_map(ask).collect()
}

/// What lies in one direction, if it is one thing or nothing, and nothing nearly lies there.
fn neighbour(scene: &Scene, item: &Item, (words, far): Direction) -> Option<Question> {
    let side = scene.width.min(scene.height);
    let (near, clear) = (side / 16, side / 7);
    let others = || scene.items.iter().filter(|other| *other != item);
    if scene.items.len() < 2 || others().any(|other| (near..clear).contains(&far(item, other))) {
        return None;
    }
    let mut there = others().filter(|other| far(item, other) >= clear);
    let answer = match (there.next(), there.next()) {
        (None, _) => "nothing".to_owned(),
        (Some(one), None) => format!("{} {}", article(&one.kind()), one.kind()),
        _ => return None,
    };
    let text = format!("What is {words} the {}?", item.kind());
    Some(Question::new(Task::Beside, text, answer).of(item.kind()))
}

fn read(scene: &Scene) -> Vec<Question> {
    let Some(sign) = &scene.sign else { return Vec::new() };
    let text = format!("What {} is written?", sign.kind());
    vec![Question::new(Task::Read, text, &sign.text).of(sign.kind())]
}

/// Questions about several pictures.
pub(crate) fn which(scenes: &[Scene], random: &mut Random) -> Vec<Question> {
    let mut all = Vec::new();
    let mut ask = |what: String, of: &str, shows: &dyn Fn(&Scene) -> bool| {
        let mut with = (1..).zip(scenes).filter(|(_, scene)| shows(scene));
        if let (Some((number, _)), None) = (with.next(), with.next()) {
            let text = format!("Which picture shows {what}?");
            all.push(Question::new(Task::Which, text, format!("picture {number}")).of(of));
        }
    };
    for form in Shape::ALL {
        let what = format!("{} {}", article(form.name()), form.name());
        ask(what, form.name(), &|scene: &Scene| scene.items.iter().any(|item| item.form == form));
    }
    for colour in Colour::ALL {
        let what = format!("{} {} shape", article(colour.name()), colour.name());
        ask(what, colour.name(), &|scene: &Scene| {
            scene.items.iter().any(|item| item.colour == colour)
        });
    }
    let number = random.between(1, scenes.len() as i32);
    if let Some(described) = describe(&scenes[number as usize - 1]) {
        let text = format!("Describe picture {number}.");
        all.push(Question::new(Task::Which, text, described.answer));
    }
    all
}
