//! Gives each tile of a picture to the engine that is worth its tokens.
//!
//! Scores of tiles come in, an engine for each comes out: by thresholds, or so that all tiles
//! together keep to a number of tokens.  Plain functions over numbers; a flat sky is not worth what
//! small print is, nor what a question does not ask about.  Knows nothing of engines.

use serde::{Deserialize, Serialize};

/// What tiles are scored by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// How much detail they have: [`texture`].
    #[default]
    Texture,
    /// How near a CLIP finds them to the question, -1 to 1.
    Similarity,
}

impl By {
    /// What a router goes by that does not say.
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The score from which each larger engine is worth its tokens, and how many tokens there are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Router {
    /// What the scores are.
    #[serde(default, skip_serializing_if = "By::is_default")]
    pub by: By,
    /// Rising scores, one fewer than there are engines; without any, all tiles want the largest.
    #[serde(default)]
    pub thresholds: Vec<f32>,
    /// Most image tokens of a picture, as far as the smallest engine can keep to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_max: Option<usize>,
}

impl Router {
    /// Why these thresholds do not choose between `engines`, if they do not.
    pub fn fault(&self, engines: usize) -> Option<String> {
        let Self { thresholds, tokens_max, .. } = self;
        if thresholds.is_empty() && tokens_max.is_some() {
            return None;
        }
        if thresholds.len() + 1 != engines {
            let found = thresholds.len();
            return Some(format!(
                "{found} thresholds do not choose between {engines} vision engines"
            ));
        }
        let is_sound = thresholds.is_sorted() && thresholds.iter().all(|at| at.is_finite());
        (!is_sound).then(|| "thresholds must be finite and rise".to_owned())
    }

    /// The engine of each tile: as many thresholds as its score reaches, or `last` without any.
    pub fn by_thresholds(&self, scores: &[f32], last: usize) -> Vec<usize> {
        let reached = |score: &f32| self.thresholds.partition_point(|at| at <= score);
        let engine = |score| if self.thresholds.is_empty() { last } else { reached(score) };
        scores.iter().map(engine).collect()
    }
}

/// How much detail a tile of `[side, side, 3]` bytes has: the standard deviation of the Laplacian of
/// its grey levels, 0 for one colour, 1020 at most.  A tile of less than three rows has none.
pub fn texture(rgb: &[u8], side: usize) -> f32 {
    // Weights of ITU-R BT.601 in 256ths; integers, so that the score is the same everywhere.
    let grey = |pixel: &[u8]| {
        (77 * i64::from(pixel[0]) + 150 * i64::from(pixel[1]) + 29 * i64::from(pixel[2])) >> 8
    };
    let grey: Vec<i64> = rgb.chunks_exact(3).map(grey).collect();
    let (mut sum, mut squares, mut count) = (0i64, 0i64, 0i64);
    for row in 1..side.saturating_sub(1) {
        for at in row * side + 1..(row + 1) * side - 1 {
            let around = grey[at - 1] + grey[at + 1] + grey[at - side] + grey[at + side];
            let laplacian = around - 4 * grey[at];
            (sum, squares, count) = (sum + laplacian, squares + laplacian * laplacian, count + 1);
        }
    }
    let count = count.max(1) as f64;
    let mean = sum as f64 / count;
    (squares as f64 / count - mean * mean).max(0.0).sqrt() as f32
}

/// Makes the last score a little more than all others: that of a thumbnail, which shows what all tiles
/// show.  Being smaller it looks plainer, but without it a model loses its way (`cargo xtask bench
/// router`), so it pays last.
pub fn lift_last(scores: &mut [f32]) {
    let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if let Some(last) = scores.last_mut() {
        *last = most.next_up();
    }
}

/// `wanted` engines, lowered until all tiles together take no more than `budget` tokens, of which an
/// engine takes `costs`, rising.  The tile of the least score goes down to the smallest engine before
/// the next one does, of equal ones the last first; when all are there, nothing is left to do.
pub fn within(wanted: &[usize], scores: &[f32], costs: &[usize], budget: usize) -> Vec<usize> {
    let mut grids = wanted.to_vec();
    let mut total: usize = grids.iter().map(|grid| costs[*grid]).sum();
    let mut order: Vec<usize> = (0..grids.len()).collect();
    order.sort_by(|a, b| scores[*a].total_cmp(&scores[*b]).then(b.cmp(a)));
    for tile in order {
        while total > budget && grids[tile] > 0 {
            total -= costs[grids[tile]] - costs[grids[tile] - 1];
            grids[tile] -= 1;
        }
    }
    grids
}

#[cfg(test)]
mod tests {
    use smelt_random::Random;

    use super::*;

    #[test]
    fn flat_tiles_have_no_texture_and_small_print_has() {
        let side = 16;
        let tile = |grey: fn(usize, usize) -> u8| -> Vec<u8> {
            (0..side * side).flat_map(|at| [grey(at % side, at / side); 3]).collect()
        };
        let flat = texture(&tile(|_, _| 200), side);
        let ramp = texture(&tile(|x, _| (x * 10) as u8), side);
        let stripes = texture(&tile(|x, _| if x % 4 < 2 { 0 } else { 255 }), side);
        let chess = texture(&tile(|x, y| if (x + y) % 2 == 0 { 0 } else { 255 }), side);
        assert_eq!((flat, ramp), (0.0, 0.0));
        assert!(stripes > 200.0 && chess > stripes && chess <= 1020.0, "{stripes} {chess}");
        assert_eq!(texture(&[1; 12], 2), 0.0);
    }

    #[test]
    fn scores_reach_thresholds() {
        let router =
            |thresholds: &[f32]| Router { thresholds: thresholds.to_vec(), ..Router::default() };
        let rising = router(&[5.0, 20.0]);
        assert_eq!(
            rising.by_thresholds(&[0.0, 4.9, 5.0, 19.0, 20.0, 400.0], 2),
            [0, 0, 1, 1, 2, 2]
        );
        assert_eq!(rising.fault(3), None);
        assert!(rising.fault(2).is_some());
        assert!(router(&[5.0, 1.0]).fault(3).is_some());
        assert!(router(&[f32::NAN]).fault(2).is_some());
        assert_eq!(router(&[]).by_thresholds(&[0.0, 400.0], 2), [2, 2]);
        assert!(router(&[]).fault(3).is_some());
        let budget = Router { tokens_max: Some(9), ..router(&[]) };
        assert_eq!((budget.fault(3), budget.fault(1)), (None, None));
        assert!(Router { tokens_max: Some(9), ..rising }.fault(2).is_some());
    }

    #[test]
    fn a_router_is_written_as_short_as_it_was() {
        let written = |router: &Router| serde_json::to_string(router).unwrap();
        let plain = Router { thresholds: vec![5.0], ..Router::default() };
        assert_eq!(written(&plain), r#"{"thresholds":[5.0]}"#);
        let all = Router { by: By::Similarity, tokens_max: Some(9), ..plain };
        assert_eq!(written(&all), r#"{"by":"similarity","thresholds":[5.0],"tokens_max":9}"#);
        assert_eq!(serde_json::from_str::<Router>(&written(&all)).unwrap(), all);
    }

    #[test]
    fn a_thumbnail_is_worth_more_than_any_tile() {
        let mut scores = [3.0, 30.0, 7.0];
        lift_last(&mut scores);
        assert_eq!(scores[..2], [3.0, 30.0]);
        assert!(scores[2] > 30.0 && scores[2] < 30.001);
        assert_eq!(within(&[1; 3], &scores, &[9, 36], 60), [0, 0, 1]);
    }

    #[test]
    fn the_plainest_tiles_pay_for_a_budget() {
        let (costs, scores) = ([16, 64, 256], [30.0, 1.0, 90.0, 1.0]);
        let within = |budget| within(&[2; 4], &scores, &costs, budget);
        assert_eq!(within(1024), [2, 2, 2, 2]);
        assert_eq!(within(1000), [2, 2, 2, 1]);
        assert_eq!(within(600), [2, 1, 2, 0]);
        assert_eq!(within(400), [1, 0, 2, 0]);
        assert_eq!(within(0), [0, 0, 0, 0]);
    }

    #[test]
    fn any_budget_is_kept_to_and_no_finer_tile_is_paid_for_by_more_than_it_must() {
        let mut random = Random::new(7);
        let costs = [10, 25, 60, 100];
        for _ in 0..2_000 {
            let count = 1 + random.below(12);
            let wanted: Vec<usize> = (0..count).map(|_| random.below(4)).collect();
            let scores: Vec<f32> = (0..count).map(|_| random.below(50) as f32).collect();
            let budget = random.below(1_000);
            let found = within(&wanted, &scores, &costs, budget);
            let total = |grids: &[usize]| grids.iter().map(|grid| costs[*grid]).sum::<usize>();
            assert!(total(&found) <= budget || found.iter().all(|grid| *grid == 0));
            assert!(found.iter().zip(&wanted).all(|(found, wanted)| found <= wanted));
            if total(&wanted) <= budget {
                assert_eq!(found, wanted);
            }
            for (a, b) in (0..count).flat_map(|a| (0..count).map(move |b| (a, b))) {
                // Whoever paid, did so after all that are plainer had paid all they could.
                let paid = found[a] < wanted[a];
                assert!(!paid || scores[b] >= scores[a] || found[b] == 0, "{scores:?} {found:?}");
            }
        }
    }
}
