//! Where the two panels of a plot lie, and the lines behind their values.

use crate::scale::Scale;
use crate::svg::{Place, Svg};

pub(crate) const WIDTH: f64 = 1000.0;
/// The top and bottom of both panels.
pub(crate) const TOP: f64 = 60.0;
pub(crate) const BOTTOM: f64 = 390.0;
/// The left and right of each panel.
pub(crate) const SIDES: [(f64, f64); 2] = [(80.0, 490.0), (570.0, 980.0)];

/// One panel, and the values from its bottom to its top.
pub(crate) struct Panel<'a> {
    pub(crate) sides: (f64, f64),
    pub(crate) values: &'a Scale,
}

impl Panel<'_> {
    /// What stands above it.
    pub(crate) fn title(&self, svg: &mut Svg, words: &str) {
        svg.text((self.sides.0, 28.0), "start", words);
    }

    /// Lines behind round values, and these.
    pub(crate) fn frame(&self, svg: &mut Svg) {
        let (left, right) = self.sides;
        for (tick, name) in self.values.ticks() {
            let y = self.y(tick);
            svg.line([(left, y), (right, y)], "#ddd");
            svg.text((left - 8.0, y + 4.0), "end", &name);
        }
    }

    /// The name of a place along the bottom.
    pub(crate) fn below(&self, svg: &mut Svg, x: f64, name: &str) {
        svg.text((x, BOTTOM + 18.0), "middle", name);
    }

    /// What the bottom is, so far below it.
    pub(crate) fn caption(&self, svg: &mut Svg, far: f64, words: &str) {
        svg.text((self.middle(), BOTTOM + far), "middle", words);
    }

    fn middle(&self) -> f64 {
        f64::midpoint(self.sides.0, self.sides.1)
    }

    pub(crate) fn y(&self, value: f64) -> f64 {
        BOTTOM - self.values.part(value) * (BOTTOM - TOP)
    }

    /// The place of a value that lies so far along the bottom, from 0 to 1.
    pub(crate) fn place(&self, part: f64, value: f64) -> Place {
        (self.x(part), self.y(value))
    }

    pub(crate) fn x(&self, part: f64) -> f64 {
        let (left, right) = self.sides;
        left + part * (right - left)
    }
}
