//! Places shapes and a sign on a ground, and draws them.
//!
//! What does not fit is left out, so a scene always comes to be; what a question may ask of it is
//! decided elsewhere.

use std::collections::BTreeSet;

use smelt_random::Random;

use crate::canvas::{Canvas, PIXEL};
use crate::figure::{Colour, Shape, Size};
use crate::font;

/// The side that radii are given for.
const UNIT: i32 = 96;

/// Places tried for one shape before it is left out.
const TRIES: usize = 40;

/// How far a channel may lie from the middle of its colour.
const JITTER: i32 = 14;

/// Grounds that every colour stands out from; the last two are dark and hold nothing black.
const GROUNDS: [[i32; 3]; 7] = [
    [250, 250, 250],
    [225, 225, 225],
    [245, 240, 220],
    [215, 230, 245],
    [225, 242, 225],
    [70, 70, 75],
    [45, 50, 60],
];
const DARK: usize = 5;

/// Words that signs say, besides numbers.
pub(crate) const WORDS: [&str; 64] = [
    "ANT", "APE", "ARM", "BAG", "BED", "BEE", "BOX", "BUS", "CAB", "CAT", "COW", "CUP", "DOG",
    "EAR", "EGG", "EYE", "FAN", "FLY", "FOX", "GAS", "HAT", "HEN", "ICE", "INK", "JAM", "JAR",
    "KEY", "LEG", "LIP", "MAP", "MUD", "NET", "NUT", "OAK", "OIL", "OWL", "PAN", "PEN", "PIG",
    "RAT", "ROD", "RUG", "SEA", "SKY", "SUN", "TEA", "TOY", "URN", "VAN", "WAX", "WEB", "YAK",
    "ZIP", "ZOO", "EXIT", "STOP", "OPEN", "PUSH", "PULL", "TAXI", "HELP", "SALE", "MILK", "FIRE",
];

/// What every shape is, in a word.
pub(crate) const SHAPE: &str = "shape";

/// Shapes in a tile of several, at most.
const ITEMS_MAX_OF_TILE: i32 = 2;

/// A shape in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its shape.
    pub form: Shape,
    /// Its colour.
    pub colour: Colour,
    /// Its size in words.
    pub size: Size,
    /// Its centre, in pixels from the left.
    pub x: i32,
    /// Its centre, in pixels from the top.
    pub y: i32,
    /// Its radius in pixels.
    pub radius: i32,
    /// What its colour is on this picture.
    rgb: [u8; 3],
}

/// A word or a number on the ground.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sign {
    /// What it says.
    pub text: String,
    /// Its left edge in pixels.
    pub left: i32,
    /// Its top edge in pixels.
    pub top: i32,
    /// Pixels to a point of a letter.
    pub point: i32,
    rgb: [u8; 3],
}

/// What a picture shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scene {
    /// Pixels in a row.
    pub width: i32,
    /// Rows.
    pub height: i32,
    ground: [u8; 3],
    is_dark: bool,
    /// The shapes, the lowest first.
    pub items: Vec<Item>,
    /// The sign, if there is one.
    pub sign: Option<Sign>,
}

impl Scene {
    /// A scene of at most `most` shapes on `width` by `height` pixels.
    pub fn new(width: i32, height: i32, most: i32, random: &mut Random) -> Self {
        let mut scene = Self::plain(width, height, random);
        if random.chance(50) {
            scene.sign = scene.place_sign(random);
        }
        let fewest = i32::from(scene.sign.is_none());
        let count = random.between(fewest, most);
        let may_overlap = random.chance(30);
        // A scene of few kinds has something to count.
        let (forms, colours) = (random.chance(35), random.chance(25));
        let (form, colour) = (random.pick(&Shape::ALL), scene.colour(random));
        for _ in 0..count {
            let form = if forms && random.chance(70) { form } else { random.pick(&Shape::ALL) };
            let colour = if colours && random.chance(70) { colour } else { scene.colour(random) };
            scene.place(form, colour, may_overlap, random);
        }
        scene
    }

    /// So many scenes of one or two shapes each, `side` by `side` pixels of one ground; half of the time
    /// one of them has a sign.
    pub(crate) fn tiles(count: usize, side: i32, random: &mut Random) -> Vec<Self> {
        let plain = Self::plain(side, side, random);
        let signed = random.between(0, 2 * count as i32 - 1);
        let tile = |at: i32| {
            let mut scene = plain.clone();
            if at == signed {
                scene.sign = scene.place_sign(random);
            }
            for _ in 0..random.between(1, ITEMS_MAX_OF_TILE) {
                let (form, colour) = (random.pick(&Shape::ALL), scene.colour(random));
                scene.place(form, colour, false, random);
            }
            scene
        };
        (0..count as i32).map(tile).collect()
    }

    /// The picture that `tiles` are, so many in a row; at most one of them has a sign.
    pub(crate) fn joined(tiles: &[Self], columns: usize) -> Self {
        let Self { width, height, .. } = tiles[0];
        let rows = tiles.len() / columns;
        let mut whole = Self {
            width: width * columns as i32,
            height: height * rows as i32,
            items: Vec::new(),
            sign: None,
            ..tiles[0]
        };
        for (at, tile) in tiles.iter().enumerate() {
            let (column, row) = ((at % columns) as i32, (at / columns) as i32);
            let placed = tile.moved(column * width, row * height);
            whole.items.extend(placed.items);
            whole.sign = whole.sign.or(placed.sign);
        }
        whole
    }

    /// The square of `side` pixels at `left` and `top`; what lies outside is still in it, undrawn.
    pub fn window(&self, left: i32, top: i32, side: i32) -> Self {
        Self { width: side, height: side, ..self.moved(-left, -top) }
    }

    /// The same farther to the right and lower by so many pixels.
    fn moved(&self, right: i32, down: i32) -> Self {
        let item = |item: &Item| Item { x: item.x + right, y: item.y + down, ..*item };
        let sign =
            |sign: &Sign| Sign { left: sign.left + right, top: sign.top + down, ..sign.clone() };
        Self {
            items: self.items.iter().map(item).collect(),
            sign: self.sign.as_ref().map(sign),
            ..*self
        }
    }

    /// What it shows, in all words that questions have for it; then the words for what it shows so little
    /// of, being a part of a scene, that nobody need see it there: not its middle.
    pub fn shown(&self) -> [BTreeSet<String>; 2] {
        let mut shown = [BTreeSet::new(), BTreeSet::new()];
        for ([left, top, right, bottom], words) in self.things() {
            let (x, y) = ((left + right) / 2, (top + bottom) / 2);
            if (0..self.width).contains(&x) && (0..self.height).contains(&y) {
                shown[0].extend(words);
            } else if right > 0 && bottom > 0 && left < self.width && top < self.height {
                shown[1].extend(words);
            }
        }
        shown
    }

    /// Bounds and words of every shape and of the sign.
    fn things(&self) -> impl Iterator<Item = ([i32; 4], Vec<String>)> {
        let words = |item: &Item| {
            let words = [SHAPE, item.colour.name(), item.form.name()].map(str::to_owned);
            [words.to_vec(), vec![item.kind()]].concat()
        };
        let items = self.items.iter().map(move |item| (item.bounds(), words(item)));
        let sign = self.sign.iter().map(|sign| (sign.bounds(), vec![sign.kind().to_owned()]));
        items.chain(sign)
    }

    /// Nothing but a ground.
    fn plain(width: i32, height: i32, random: &mut Random) -> Self {
        let ground = random.between(0, GROUNDS.len() as i32 - 1) as usize;
        let is_dark = ground >= DARK;
        let ground = jitter(GROUNDS[ground], 5, random);
        Self { width, height, ground, is_dark, items: Vec::new(), sign: None }
    }

    /// Pixels to a unit of size, as a fraction of [`UNIT`].
    fn side(&self) -> i32 {
        self.width.min(self.height)
    }

    fn colour(&self, random: &mut Random) -> Colour {
        let colours = if self.is_dark { &Colour::ALL[..6] } else { &Colour::ALL[..] };
        random.pick(colours)
    }

    fn place(&mut self, form: Shape, colour: Colour, may_overlap: bool, random: &mut Random) {
        let size = random.pick(&[Size::Small, Size::Large]);
        let [low, high] = size.radii().map(|radius| radius * self.side() / UNIT);
        let radius = random.between(low, high);
        let rgb = jitter(colour.rgb(), JITTER, random);
        for _ in 0..TRIES {
            let x = random.between(radius + 1, self.width - radius - 2);
            let y = random.between(radius + 1, self.height - radius - 2);
            let item = Item { form, colour, size, x, y, radius, rgb };
            if self.has_room(&item, may_overlap) {
                self.items.push(item);
                return;
            }
        }
    }

    /// Shapes keep apart, or overlap without covering a centre; a sign is never covered.
    fn has_room(&self, item: &Item, may_overlap: bool) -> bool {
        let apart = |other: &Item| {
            let (dx, dy) = (item.x - other.x, item.y - other.y);
            let (less, more) = (item.radius.min(other.radius), item.radius.max(other.radius));
            // A square's corner reaches 1.25 radii.
            let [near, far] = if may_overlap { [40, 130] } else { [110, 110] };
            let reach = (less * near + more * far) / 100 + 2;
            dx * dx + dy * dy >= reach * reach
        };
        let clear = |sign: &Sign| {
            let [left, top, right, bottom] = sign.bounds();
            let dx = (left - item.x).max(item.x - right).max(0);
            let dy = (top - item.y).max(item.y - bottom).max(0);
            dx * dx + dy * dy > (item.radius + 2) * (item.radius + 2)
        };
        self.items.iter().all(apart) && self.sign.as_ref().is_none_or(clear)
    }

    fn place_sign(&self, random: &mut Random) -> Option<Sign> {
        let text = if random.chance(50) {
            random.pick(&WORDS).to_owned()
        } else {
            let digits = random.between(1, 3);
            random.between(0, 10_i32.pow(digits as u32) - 1).to_string()
        };
        let point = (random.between(3, 4) * self.side() / UNIT).max(1);
        let mut sign = Sign { text, left: 0, top: 0, point, rgb: [0; 3] };
        // A long word in large letters is wider than a small picture: it is written smaller.
        while sign.point > 1 && sign.bounds()[2] + 6 > self.width {
            sign.point -= 1;
        }
        let [.., right, bottom] = sign.bounds();
        let (spare_x, spare_y) = (self.width - right - 3, self.height - bottom - 3);
        if spare_x < 3 || spare_y < 3 {
            return None;
        }
        sign.left = random.between(3, spare_x);
        sign.top = random.between(3, spare_y);
        let ink = if self.is_dark { [235, 235, 235] } else { [30, 30, 40] };
        sign.rgb = jitter(ink, JITTER, random);
        Some(sign)
    }

    /// The pixels.
    pub fn draw(&self) -> Canvas {
        let mut canvas = Canvas::new(self.width as usize, self.height as usize, self.ground);
        for item in &self.items {
            let Item { form, x, y, radius, .. } = *item;
            canvas.fill(item.bounds(), item.rgb, |px, py| {
                form.holds(radius, px - x * PIXEL, py - y * PIXEL)
            });
        }
        if let Some(sign) = &self.sign {
            canvas.fill(sign.bounds(), sign.rgb, |px, py| sign.holds(px, py));
        }
        canvas
    }
}

impl Item {
    /// Its colour and shape in words.
    pub(crate) fn kind(&self) -> String {
        format!("{} {}", self.colour.name(), self.form.name())
    }

    fn bounds(&self) -> [i32; 4] {
        let Self { x, y, radius: r, .. } = *self;
        [x - r - 1, y - r - 1, x + r + 2, y + r + 2]
    }
}

impl Sign {
    /// What is written, in a word.
    pub(crate) fn kind(&self) -> &'static str {
        if self.text.as_bytes()[0].is_ascii_digit() { "number" } else { "word" }
    }

    fn bounds(&self) -> [i32; 4] {
        let width = (self.text.len() as i32 * font::ADVANCE - 1) * self.point;
        [self.left, self.top, self.left + width, self.top + font::HEIGHT * self.point]
    }

    /// Whether a point, in [`PIXEL`]ths of a pixel, is ink.
    fn holds(&self, x: i32, y: i32) -> bool {
        let point = |at: i32, edge: i32| (at - edge * PIXEL).div_euclid(self.point * PIXEL);
        let (column, row) = (point(x, self.left), point(y, self.top));
        let letter = column.div_euclid(font::ADVANCE);
        let letter = usize::try_from(letter).ok().and_then(|at| self.text.as_bytes().get(at));
        letter.is_some_and(|letter| font::is_set(*letter, column.rem_euclid(font::ADVANCE), row))
    }
}

fn jitter(rgb: [i32; 3], reach: i32, random: &mut Random) -> [u8; 3] {
    rgb.map(|channel| (channel + random.between(-reach, reach)).clamp(0, 255) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_lies_on_the_picture_and_nothing_hides_another() {
        for seed in 0..2000 {
            let mut random = Random::new(seed);
            let (width, height) = (random.between(80, 200), random.between(80, 200));
            let scene = Scene::new(width, height, 6, &mut random);
            for item in &scene.items {
                assert!(item.x > item.radius && item.x + item.radius < width, "{seed} {item:?}");
                assert!(item.y > item.radius && item.y + item.radius < height, "{seed} {item:?}");
            }
            assert!(scene.sign.is_some() || !scene.items.is_empty(), "{seed} shows nothing");
            let canvas = scene.draw();
            // The centre of a shape shows its colour, whatever overlaps its rim; a ring's is open.
            for item in scene.items.iter().filter(|item| item.form != Shape::Ring) {
                let at = (item.y as usize * canvas.width + item.x as usize) * 3;
                assert_eq!(canvas.rgb[at..at + 3], item.rgb, "{seed} {item:?}");
            }
        }
    }
    /// Tiles of several, and the picture that they are.
    fn mosaic(seed: u64) -> (Vec<Scene>, Scene) {
        let tiles = Scene::tiles(4, 96, &mut Random::new(seed));
        let whole = Scene::joined(&tiles, 2);
        (tiles, whole)
    }

    #[test]
    fn tiles_are_windows_of_what_they_are_joined_to() {
        for seed in 0..200 {
            let (tiles, whole) = mosaic(seed);
            for (at, tile) in (0..).zip(&tiles) {
                let window = whole.window(at % 2 * 96, at / 2 * 96, 96);
                assert_eq!(window.draw(), tile.draw(), "{seed} {at}");
                assert_eq!(window.shown(), tile.shown(), "{seed} {at}");
                assert!(!tile.shown()[0].is_empty() && tile.shown()[1].is_empty(), "{seed} {at}");
            }
        }
    }

    #[test]
    fn a_window_shows_what_has_its_middle_there_and_is_cut_where_a_rim_reaches_in() {
        let (tiles, whole) = mosaic(1);
        let item = tiles[0].items[0];
        let words = |left: i32| {
            let shown = whole.window(left, item.y - 1, 96).shown();
            shown.map(|words| words.contains(&item.kind()))
        };
        assert_eq!(words(item.x - 1), [true, false]);
        assert_eq!(words(item.x + 2), [false, true]);
        assert_eq!(words(item.x + 2 * item.radius), [false, false]);
    }
}
