//! Holds the letters and digits that signs are written in: 5 by 7 points each.

/// Points of a letter's width.
pub(crate) const WIDTH: i32 = 5;

/// Points of a letter's height.
pub(crate) const HEIGHT: i32 = 7;

/// Points from one letter's left edge to the next one's.
pub(crate) const ADVANCE: i32 = WIDTH + 1;

/// Digits, then letters.  Rows from the top; the highest of five bits is the left point.
const GLYPHS: [[u8; 7]; 36] = [
    [14, 17, 19, 21, 25, 17, 14],
    [4, 12, 4, 4, 4, 4, 14],
    [14, 17, 1, 2, 4, 8, 31],
    [31, 2, 4, 2, 1, 17, 14],
    [2, 6, 10, 18, 31, 2, 2],
    [31, 16, 30, 1, 1, 17, 14],
    [6, 8, 16, 30, 17, 17, 14],
    [31, 1, 2, 4, 8, 8, 8],
    [14, 17, 17, 14, 17, 17, 14],
    [14, 17, 17, 15, 1, 2, 12],
    [14, 17, 17, 31, 17, 17, 17],
    [30, 17, 17, 30, 17, 17, 30],
    [14, 17, 16, 16, 16, 17, 14],
    [28, 18, 17, 17, 17, 18, 28],
    [31, 16, 16, 30, 16, 16, 31],
    [31, 16, 16, 30, 16, 16, 16],
    [14, 17, 16, 23, 17, 17, 15],
    [17, 17, 17, 31, 17, 17, 17],
    [14, 4, 4, 4, 4, 4, 14],
    [7, 2, 2, 2, 2, 18, 12],
    [17, 18, 20, 24, 20, 18, 17],
    [16, 16, 16, 16, 16, 16, 31],
    [17, 27, 21, 21, 17, 17, 17],
    [17, 17, 25, 21, 19, 17, 17],
    [14, 17, 17, 17, 17, 17, 14],
    [30, 17, 17, 30, 16, 16, 16],
    [14, 17, 17, 17, 21, 18, 13],
    [30, 17, 17, 30, 20, 18, 17],
    [15, 16, 16, 14, 1, 1, 30],
    [31, 4, 4, 4, 4, 4, 4],
    [17, 17, 17, 17, 17, 17, 14],
    [17, 17, 17, 17, 17, 10, 4],
    [17, 17, 17, 21, 21, 21, 10],
    [17, 17, 10, 4, 10, 17, 17],
    [17, 17, 17, 10, 4, 4, 4],
    [31, 1, 2, 4, 8, 16, 31],
];

/// Whether the point in `column` and `row` of `letter` is set; a letter without a picture has none.
pub(crate) fn is_set(letter: u8, column: i32, row: i32) -> bool {
    let at = match letter {
        b'0'..=b'9' => letter - b'0',
        b'A'..=b'Z' => letter - b'A' + 10,
        _ => return false,
    };
    let inside = (0..WIDTH).contains(&column) && (0..HEIGHT).contains(&row);
    inside && GLYPHS[usize::from(at)][row as usize] >> (WIDTH - 1 - column) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(letter: u8) -> String {
        let rows = (0..HEIGHT).map(|row| {
            let points =
                (0..WIDTH).map(|column| if is_set(letter, column, row) { '#' } else { '.' });
            points.collect::<String>()
        });
        rows.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn letters_look_like_letters() {
        assert_eq!(picture(b'F'), "#####\n#....\n#....\n####.\n#....\n#....\n#....");
        assert_eq!(picture(b'?'), ["....."; 7].join("\n"));
    }

    #[test]
    fn no_two_letters_look_alike() {
        let mut all = GLYPHS.to_vec();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), GLYPHS.len());
    }
}
