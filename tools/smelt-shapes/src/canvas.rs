//! Holds pixels, and fills what a test says lies inside, with smooth edges.

/// Points per pixel and direction at which coverage is tested.
const SAMPLES: i32 = 4;

/// One pixel in the units that tests are asked in.
pub(crate) const PIXEL: i32 = 2 * SAMPLES;

/// A picture of 8-bit red, green and blue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Canvas {
    /// Pixels in a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// `[height, width, 3]`.
    pub rgb: Vec<u8>,
}

/// A rectangle of pixels: left, top, and what lies just outside right and bottom.
pub(crate) type Bounds = [i32; 4];

impl Canvas {
    pub(crate) fn new(width: usize, height: usize, colour: [u8; 3]) -> Self {
        Self { width, height, rgb: colour.repeat(width * height) }
    }

    /// This picture in a tile, counted from the left and the top, of one of so many columns and rows whose
    /// ground is that of its first pixel.
    pub(crate) fn within(
        &self,
        (columns, rows): (usize, usize),
        (column, row): (usize, usize),
    ) -> Self {
        let ground = [self.rgb[0], self.rgb[1], self.rgb[2]];
        let mut canvas = Self::new(columns * self.width, rows * self.height, ground);
        let stride = canvas.width * 3;
        let lines = canvas.rgb.chunks_exact_mut(stride).skip(row * self.height);
        for (line, own) in lines.zip(self.rgb.chunks_exact(self.width * 3)) {
            line[column * own.len()..][..own.len()].copy_from_slice(own);
        }
        canvas
    }

    /// Paints `colour` where `is_inside` says, by the share of each pixel that lies inside.
    ///
    /// The test is asked for points in units of a [`PIXEL`]th of a pixel.
    pub(crate) fn fill(
        &mut self,
        bounds: Bounds,
        colour: [u8; 3],
        is_inside: impl Fn(i32, i32) -> bool,
    ) {
        let [left, top, right, bottom] = bounds;
        for y in top.max(0)..bottom.min(self.height as i32) {
            for x in left.max(0)..right.min(self.width as i32) {
                let share = coverage(x * PIXEL, y * PIXEL, &is_inside);
                self.blend(x as usize, y as usize, colour, share);
            }
        }
    }

    fn blend(&mut self, x: usize, y: usize, colour: [u8; 3], share: i32) {
        let at = (y * self.width + x) * 3;
        let whole = SAMPLES * SAMPLES;
        for (pixel, colour) in self.rgb[at..at + 3].iter_mut().zip(colour) {
            let (old, new) = (i32::from(*pixel), i32::from(colour));
            *pixel = ((old * (whole - share) + new * share + whole / 2) / whole) as u8;
        }
    }
}

/// How many of a pixel's points lie inside.
fn coverage(x: i32, y: i32, is_inside: &impl Fn(i32, i32) -> bool) -> i32 {
    let points = (0..SAMPLES).flat_map(|dy| (0..SAMPLES).map(move |dx| (dx, dy)));
    points.filter(|(dx, dy)| is_inside(x + 2 * dx + 1, y + 2 * dy + 1)).count() as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pixel_half_inside_is_half_painted() {
        let mut canvas = Canvas::new(2, 1, [0, 0, 0]);
        canvas.fill([0, 0, 2, 1], [200, 100, 40], |x, _| x < PIXEL / 2);
        assert_eq!(canvas.rgb, [100, 50, 20, 0, 0, 0]);
    }

    #[test]
    fn bounds_outside_the_picture_are_cut() {
        let mut canvas = Canvas::new(2, 2, [9, 9, 9]);
        canvas.fill([-5, -5, 50, 50], [1, 2, 3], |_, _| true);
        assert_eq!(canvas.rgb, [1, 2, 3].repeat(4));
    }
}
