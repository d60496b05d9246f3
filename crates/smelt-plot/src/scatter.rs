//! Draws what things are worth against what they cost: what is worth its price lies on a line.
//!
//! Two panels over one scale, each with a cost of its own.  A point that no other beats in both is filled and joined to its
//! neighbours.

use crate::labels::labels;
use crate::panel::{BOTTOM, Panel, SIDES, TOP, WIDTH};
use crate::scale::Scale;
use crate::svg::{Place, Svg};

const HEIGHT: f64 = 460.0;
const BLUE: &str = "#2a6fb0";
const RADIUS: f64 = 4.5;

/// What is drawn.
#[derive(Clone, Debug)]
pub struct Scatter<'a> {
    /// What stands above it.
    pub title: &'a str,
    /// All worths, also of what is in neither panel.
    pub worths: Vec<f64>,
    /// The most that something can be worth, if there is such a value.
    pub most: Option<f64>,
    /// The panels, from the left.
    pub costs: [Costs<'a>; 2],
}

/// One panel.
#[derive(Clone, Debug)]
pub struct Costs<'a> {
    /// What its cost is.
    pub label: &'a str,
    /// What has such a cost.
    pub points: Vec<Point<'a>>,
}

/// One thing in one panel.
#[derive(Clone, Debug, PartialEq)]
pub struct Point<'a> {
    /// What it is called.
    pub name: &'a str,
    /// What it costs.
    pub x: f64,
    /// What it is worth.
    pub y: f64,
}

impl Scatter<'_> {
    /// The whole file.
    pub fn svg(&self) -> String {
        let worths = Scale::around(self.worths.iter().copied(), self.most);
        let panels = SIDES.map(|sides| Panel { sides, values: &worths });
        let mut svg = Svg::new(WIDTH, HEIGHT);
        panels[0].title(&mut svg, self.title);
        panels.iter().zip(&self.costs).for_each(|(panel, costs)| costs.draw(&mut svg, panel));
        svg.end()
    }
}

impl Costs<'_> {
    /// Axes, the front, and every point with its name.
    fn draw(&self, svg: &mut Svg, panel: &Panel<'_>) {
        let points = &self.points;
        let costs = Scale::around(points.iter().map(|point| point.x), None);
        panel.frame(svg);
        for (tick, name) in costs.ticks() {
            let x = panel.x(costs.part(tick));
            svg.line([(x, TOP), (x, BOTTOM)], "#eee");
            panel.below(svg, x, &name);
        }
        panel.caption(svg, 42.0, self.label);
        let place = |point: &Point<'_>| panel.place(costs.part(point.x), point.y);
        let places: Vec<Place> = points.iter().map(place).collect();
        let front = front(points);
        front.windows(2).for_each(|pair| svg.line([places[pair[0]], places[pair[1]]], BLUE));
        let names: Vec<&str> = points.iter().map(|point| point.name).collect();
        let labels = labels(&places, &names, panel.sides);
        // Names come last, so that a line which must run through one runs behind it.
        labels.iter().zip(&places).for_each(|(label, &at)| svg.line(label.leader(at), "#999"));
        for (index, &place) in places.iter().enumerate() {
            let fill = if front.contains(&index) { BLUE } else { "white" };
            svg.circle(place, RADIUS, fill, BLUE);
        }
        labels.iter().zip(names).for_each(|(label, name)| label.draw(svg, name));
    }
}

/// The points that no other beats: none is as cheap and better, or cheaper and as good.  From cheap
/// to dear.
fn front(points: &[Point<'_>]) -> Vec<usize> {
    let beats = |a: &Point<'_>, b: &Point<'_>| a.x <= b.x && a.y >= b.y && (a.x < b.x || a.y > b.y);
    let mut front: Vec<usize> = (0..points.len())
        .filter(|&index| !points.iter().any(|other| beats(other, &points[index])))
        .collect();
    front.sort_by(|&a, &b| points[a].x.total_cmp(&points[b].x));
    front
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(values: &[(f64, f64)]) -> Vec<Point<'static>> {
        values.iter().map(|&(x, y)| Point { name: "p", x, y }).collect()
    }

    #[test]
    fn the_front_is_what_nothing_beats() {
        assert_eq!(
            front(&points(&[(9.0, 99.0), (4.0, 97.0), (5.0, 96.0), (2.0, 50.0)])),
            [3, 1, 0]
        );
        assert_eq!(front(&points(&[(3.0, 90.0), (2.0, 90.0), (2.0, 80.0)])), [1]);
        assert_eq!(front(&points(&[(2.0, 90.0), (2.0, 90.0)])), [0, 1], "equals stand together");
    }

    /// The smallest plot, every byte of it.
    #[test]
    fn a_plot_is_these_bytes() {
        let costs = |label, x| Costs { label, points: vec![Point { name: "a<b", x, y: 50.0 }] };
        let worths = vec![50.0];
        let costs = [costs("MiB", 10.0), costs("ms", 20.0)];
        let plot = Scatter { title: "Worth", worths, most: Some(100.0), costs }.svg();
        assert_eq!(plot, include_str!("scatter.svg"));
    }
}
