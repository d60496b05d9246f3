//! Names the shapes, colours and sizes, and says which points lie inside a shape.

use crate::canvas::PIXEL;

/// The shapes there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Shape {
    Circle,
    Square,
    Triangle,
    Diamond,
    Cross,
    Ring,
}

impl Shape {
    /// Every shape.
    pub const ALL: [Self; 6] =
        [Self::Circle, Self::Square, Self::Triangle, Self::Diamond, Self::Cross, Self::Ring];

    /// The shape in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Circle => "circle",
            Self::Square => "square",
            Self::Triangle => "triangle",
            Self::Diamond => "diamond",
            Self::Cross => "cross",
            Self::Ring => "ring",
        }
    }

    /// The shape in words, more than one.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Circle => "circles",
            Self::Square => "squares",
            Self::Triangle => "triangles",
            Self::Diamond => "diamonds",
            Self::Cross => "crosses",
            Self::Ring => "rings",
        }
    }

    /// Whether a point lies inside the shape around the origin whose radius is `radius` pixels.
    ///
    /// `x` and `y` are in [`PIXEL`]ths of a pixel, so every product stays far inside 64 bits.
    pub(crate) fn holds(self, radius: i32, x: i32, y: i32) -> bool {
        let [r, x, y] = [radius * PIXEL, x, y].map(i64::from);
        let from_centre = x * x + y * y;
        match self {
            Self::Circle => from_centre <= r * r,
            // 0.88 of the radius gives the square about the circle's area.
            Self::Square => x.abs().max(y.abs()) * 100 <= r * 88,
            // The apex on top, the base at 0.8 of the radius below.
            Self::Triangle => y * 10 <= r * 8 && x.abs() * 18 <= (y + r) * 10,
            Self::Diamond => x.abs() + y.abs() <= r,
            Self::Cross => {
                let (near, far) = (x.abs().min(y.abs()), x.abs().max(y.abs()));
                far <= r && near * 10 <= r * 3
            }
            Self::Ring => from_centre <= r * r && from_centre * 100 >= r * r * 36,
        }
    }
}

/// The colours of shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Colour {
    Red,
    Green,
    Blue,
    Yellow,
    Purple,
    Orange,
    Black,
}

impl Colour {
    /// Every colour.
    pub const ALL: [Self; 7] =
        [Self::Red, Self::Green, Self::Blue, Self::Yellow, Self::Purple, Self::Orange, Self::Black];

    /// The colour in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Red => "red",
            Self::Green => "green",
            Self::Blue => "blue",
            Self::Yellow => "yellow",
            Self::Purple => "purple",
            Self::Orange => "orange",
            Self::Black => "black",
        }
    }

    /// The middle of what counts as this colour.
    pub(crate) fn rgb(self) -> [i32; 3] {
        match self {
            Self::Red => [205, 35, 35],
            Self::Green => [35, 150, 55],
            Self::Blue => [45, 75, 210],
            Self::Yellow => [235, 205, 40],
            Self::Purple => [135, 50, 165],
            Self::Orange => [240, 130, 25],
            Self::Black => [25, 25, 25],
        }
    }
}

/// How large a shape is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Size {
    Small,
    Large,
}

impl Size {
    /// The size in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Large => "large",
        }
    }

    /// Smallest and largest radius, in 96ths of the picture's shorter side.
    pub(crate) fn radii(self) -> [i32; 2] {
        match self {
            Self::Small => [8, 10],
            Self::Large => [16, 19],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_lies_within_its_radius_and_holds_a_good_part_of_it() {
        for form in Shape::ALL {
            let reach = 10 * PIXEL;
            let points =
                (-2 * reach..2 * reach).flat_map(|y| (-2 * reach..2 * reach).map(move |x| (x, y)));
            let inside: Vec<_> = points.filter(|(x, y)| form.holds(10, *x, *y)).collect();
            let square = 4 * reach * reach;
            assert!(inside.iter().all(|(x, y)| x.abs() <= reach && y.abs() <= reach), "{form:?}");
            assert!(inside.len() as i32 * 3 > square, "{form:?} {}", inside.len());
        }
    }
}
