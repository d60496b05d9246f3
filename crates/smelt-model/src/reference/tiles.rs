//! Cuts tiles into rows of patches and joins squares of patches to tokens, one tile at a time.
//!
//! Shared by the towers that take square tiles of one size.  Knows no tower and no weights.

use super::ReferenceError;

/// The embeddings of `tiles` tiles of `per_tile` pixel values each, one after another.
///
/// `embeds_of` gives those of one tile, and tells when it is at which of its `layers` layers.
pub(super) fn each_tile(
    (pixels, tiles): (&[f32], usize),
    per_tile: usize,
    layers: usize,
    progress: &mut dyn FnMut(&str),
    mut embeds_of: impl FnMut(&[f32], &mut dyn FnMut(usize)) -> Result<Vec<f32>, ReferenceError>,
) -> Result<Vec<f32>, ReferenceError> {
    if tiles.checked_mul(per_tile) != Some(pixels.len()) {
        return Err(ReferenceError::Pixels { tiles, per_tile, found: pixels.len() });
    }
    let mut embeds = Vec::new();
    for (at, tile) in pixels.chunks(per_tile).enumerate() {
        let all = tiles * layers;
        let mut told =
            |layer: usize| progress(&format!("[{}/{all}] block {layer}", at * layers + layer));
        embeds.extend(embeds_of(tile, &mut told)?);
    }
    Ok(embeds)
}

/// `[channels, side, side]` to `[patches, channels * patch * patch]`, patches row by row; pixels behind the last whole
/// patch are passed over.
pub(super) fn unfold(tile: &[f32], side: usize, patch: usize) -> Vec<f32> {
    let grid = side / patch;
    let mut rows = Vec::with_capacity(tile.len());
    for (top, left) in (0..grid).flat_map(|row| (0..grid).map(move |column| (row, column))) {
        for channel in tile.chunks(side * side) {
            for line in channel.chunks(side).skip(top * patch).take(patch) {
                rows.extend_from_slice(&line[left * patch..][..patch]);
            }
        }
    }
    rows
}

/// The pixel shuffle: `[grid, grid, width]` to `[tokens, side * side * width]`, where a token holds its square of
/// `side` by `side` patches row by row.
pub(super) fn shuffle(x: &[f32], grid: usize, width: usize, side: usize) -> Vec<f32> {
    let mut tokens = Vec::with_capacity(x.len());
    for (row, column) in (0..grid)
        .step_by(side)
        .flat_map(|row| (0..grid).step_by(side).map(move |column| (row, column)))
    {
        for line in row..row + side {
            tokens.extend_from_slice(&x[(line * grid + column) * width..][..side * width]);
        }
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shuffle by 0.5 as InternVL3's own code writes it (`ps_version` v2): two views, two permutations.
    fn shuffle_by_views(x: &[f32], grid: usize, width: usize) -> Vec<f32> {
        let half = grid / 2;
        // [h, w, C] viewed as [h, w/2, 2C], then [w/2, h, 2C].
        let mut first = vec![0.0; x.len()];
        for h in 0..grid {
            for w in 0..half {
                for c in 0..2 * width {
                    first[(w * grid + h) * 2 * width + c] = x[(h * half + w) * 2 * width + c];
                }
            }
        }
        // Viewed as [w/2, h/2, 4C], then [h/2, w/2, 4C].
        let mut second = vec![0.0; x.len()];
        for w in 0..half {
            for h in 0..half {
                for c in 0..4 * width {
                    second[(h * half + w) * 4 * width + c] = first[(w * half + h) * 4 * width + c];
                }
            }
        }
        second
    }

    #[test]
    fn the_shuffle_gathers_squares_of_patches() {
        let x: Vec<f32> = (0..6 * 6 * 3).map(|i| i as f32).collect();
        assert_eq!(shuffle(&x, 6, 3, 2), shuffle_by_views(&x, 6, 3));
    }

    #[test]
    fn squares_of_any_side_are_gathered() {
        let x: Vec<f32> = (0..9 * 2).map(|at| at as f32).collect();
        assert_eq!(shuffle(&x, 3, 2, 3), x);
        let x: Vec<f32> = (0..16).map(|at| at as f32).collect();
        assert_eq!(shuffle(&x, 4, 1, 2)[4..8], [2.0, 3.0, 6.0, 7.0]);
    }

    #[test]
    fn patches_unfold_channel_by_channel() {
        // Two channels of four by four pixels, patches of two by two.
        let tile: Vec<f32> = (0..32).map(|i| i as f32).collect();
        let rows = unfold(&tile, 4, 2);
        assert_eq!(rows[..8], [0.0, 1.0, 4.0, 5.0, 16.0, 17.0, 20.0, 21.0]);
        assert_eq!(rows[24..], [10.0, 11.0, 14.0, 15.0, 26.0, 27.0, 30.0, 31.0]);
    }
}
