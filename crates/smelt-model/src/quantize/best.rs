//! Chooses for each weight the way to its integers that costs its outputs least.
//!
//! Of the activations that were seen of an input, one in [`HELD_EVERY`] is held out: every way is fitted to
//! the others, and then measured by |x(w - ŵ)|² on those.  A sample of the weight's rows decides; the whole
//! weight is rounded by the way that won.  Ways are tried in a fixed order and counted, never timed, so the
//! choice is the same on any machine.  Knows nothing of how a weight is written.

use std::sync::Arc;

use super::QuantizeError;
use super::activations::Activations;
use super::carry::is_square;
use super::eliminate::for_chunks;
use super::gptq::{Basis, Feedback};
use super::group::{Rounded, Rounder};
use super::layer::Source;
use super::targets::Target;
use crate::reference::matmul::{Panels, Target as Sink, View};
use crate::scheme::IntGrid;

/// One activation of so many measures, and is never fitted to.
pub(crate) const HELD_EVERY: usize = 8;

/// Rows of a weight that decide, in runs of [`RUN`] spread over it.
pub(crate) const SAMPLE_ROWS: usize = 256;
const RUN: usize = 16;

/// A way to choose the integers of a weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Way {
    /// Each value to the nearest integer, groups clipped where Σ E[x²] (w - ŵ)² is least.
    Weighted,
    /// GPTQ, the largest inputs first, in groups that stay as they lie; λ is this part of the mean of H's
    /// diagonal.  The fewer activations there are for an input, the larger is the λ that is best.
    Feedback(f64),
}

/// The dampings, those first that win most often on real decoders: small ones where activations are many for
/// the inputs, large ones where they are few.
pub(crate) const DAMPINGS: [f64; 4] = [0.2, 0.05, 0.0125, 0.8];

impl Way {
    /// Its words in the report.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Weighted => "weighted",
            Self::Feedback(0.0125) => "feedback, damping 0.0125",
            Self::Feedback(0.05) => "feedback, damping 0.05",
            Self::Feedback(0.2) => "feedback, damping 0.2",
            Self::Feedback(_) => "feedback, damping 0.8",
        }
    }
}

/// The ways that `budget` pays for: so many dampings, and what costs next to nothing beside them.
fn paid_for(budget: usize) -> Vec<Way> {
    let dampings = DAMPINGS[..budget.clamp(1, DAMPINGS.len())].iter();
    dampings.map(|damping| Way::Feedback(*damping)).chain([Way::Weighted]).collect()
}

/// The ways for one input.
pub(super) struct Trial {
    pub(super) input: String,
    pub(super) grid: IntGrid,
    /// Mean x² of each channel.
    pub(super) importance: Vec<f32>,
    ways: Ways,
    /// The activations held out, `[held, channels]` packed, and how many they are.
    held: Panels,
    held_count: usize,
}

/// A way as it was fitted to what was seen.
type Fitted = (Way, Option<Arc<Feedback>>);

/// Ways, and what they learn from what was seen of an input.
enum Ways {
    /// All of them, as linears that share the input ask one after another.
    Fitted(Vec<Fitted>),
    /// What each is fitted to when its turn comes.  Of wide inputs each holds as much as the activations: of the
    /// 11,008 of a decoder of 3B, 75 MiB.
    InTurns {
        tried: Vec<Way>,
        basis: Basis,
        order: Vec<usize>,
        importance: Vec<f32>,
        threads: usize,
    },
}

impl Ways {
    /// `tried`, to be fitted to `x`, inputs in their own places.
    fn new(
        x: Activations,
        tried: Vec<Way>,
        importance: &[f32],
        (grid, threads): (IntGrid, usize),
    ) -> Self {
        if tried == [Way::Weighted] {
            return Self::Fitted(vec![(Way::Weighted, None)]);
        }
        let order = x.order();
        let is_narrow = is_square(x.inputs(), x.samples);
        let x = x.into_reordered(&order);
        let basis = Basis::new(x, grid.group, threads);
        let ways = Self::InTurns { tried, basis, order, importance: importance.to_vec(), threads };
        if is_narrow { Self::Fitted(ways.all().collect()) } else { ways }
    }

    /// Each in its turn.
    fn all(&self) -> impl Iterator<Item = Fitted> {
        let count = match self {
            Self::Fitted(all) => all.len(),
            Self::InTurns { tried, .. } => tried.len(),
        };
        (0..count).map(|n| self.fitted(n))
    }

    fn fitted(&self, n: usize) -> Fitted {
        match self {
            Self::Fitted(all) => all[n].clone(),
            Self::InTurns { tried, basis, order, importance, threads } => {
                let fit = |damping| {
                    let feedback = basis.feedback(damping, *threads);
                    Arc::new(feedback.in_places(order.clone(), importance.clone()))
                };
                let feedback = match tried[n] {
                    Way::Weighted => None,
                    Way::Feedback(damping) => Some(fit(damping)),
                };
                (tried[n], feedback)
            }
        }
    }
}

impl Trial {
    /// Fits the first `budget` ways for `target`, the input of which is `input`.
    pub(super) fn find(
        source: Source<'_>,
        target: &Target,
        (input, grid): (&str, IntGrid),
        budget: usize,
    ) -> Result<Self, QuantizeError> {
        let width = target.shape[1];
        let rows = source.calibration.activations(input)?;
        Ok(Self::of_rows(rows, width, (input, grid), (budget, source.threads)))
    }

    /// The same of the activations `rows` `[samples, width]`, which are let go as soon as they can be: at
    /// 2B they are 70 MiB.
    pub(super) fn of_rows(
        rows: Vec<f32>,
        width: usize,
        (input, grid): (&str, IntGrid),
        (budget, threads): (usize, usize),
    ) -> Self {
        let (fit, held) = parted(&rows, width);
        drop(rows);
        let x = Activations::from_rows(&fit, width);
        let count = x.samples as f64;
        let importance: Vec<f32> = x.energy().iter().map(|sum| (sum / count) as f32).collect();
        drop(fit);
        let held_count = held.len() / width;
        let mut panels = Panels::default();
        panels.pack(View::rows(&held, width), held_count, width, threads);
        let tried = if grid.bits == 8 {
            // Eight bits leave nothing for feedback to make up for.
            vec![Way::Weighted]
        } else {
            paid_for(budget)
        };
        let ways = Ways::new(x, tried, &importance, (grid, threads));
        let input = input.to_owned();
        Self { input, grid, importance, ways, held: panels, held_count }
    }

    /// The way that costs the outputs of `target` least, of equals the first.
    pub(super) fn choose(
        &self,
        source: Source<'_>,
        target: &Target,
        rounder: Rounder,
    ) -> Result<Fitted, QuantizeError> {
        if let Ways::Fitted(all) = &self.ways
            && let [only] = all.as_slice()
        {
            return Ok(only.clone());
        }
        let mut sample = Vec::new();
        for run in runs(target.shape[0]) {
            let mut rows = Vec::new();
            source.ckpt.read_rows_f32(&target.source, run.clone(), &mut rows)?;
            sample.push((run.start, rows));
        }
        self.cheapest(&sample, rounder, source.threads).map_err(|row| {
            let tensor = target.source.clone();
            QuantizeError::NotFinite { tensor, row }
        })
    }

    /// The way that costs the outputs of `sample` least, of equals the first: runs of rows, and which row is the first
    /// of each.  It fails at a row that holds a value that no scale can.
    fn cheapest(
        &self,
        sample: &[(usize, Vec<f32>)],
        rounder: Rounder,
        threads: usize,
    ) -> Result<Fitted, usize> {
        let mut best: Option<(f64, Fitted)> = None;
        for way in self.ways.all() {
            let mut costs = vec![Ok(0.0); sample.len()];
            for_chunks(threads, &mut costs, 1, |run, cost| {
                let (first, rows) = &sample[run];
                let found = self.cost(way.1.as_deref(), rows, rounder);
                cost[0] = found.map_err(|row| first + row);
            });
            // In the order of the rows, so that the sum depends on no number of threads.
            let cost = costs.into_iter().sum::<Result<f64, usize>>()?;
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                best = Some((cost, way));
            }
        }
        Ok(best.expect("there is a way").1)
    }

    /// |x(w - ŵ)|² of `rows` on the activations held out, rounded with `feedback` or by importance.
    fn cost(
        &self,
        feedback: Option<&Feedback>,
        rows: &[f32],
        rounder: Rounder,
    ) -> Result<f64, usize> {
        let width = self.importance.len();
        let mut missed = match feedback {
            Some(feedback) => feedback.rounded(rows, rounder)?,
            None => self.weighted(rows, rounder)?,
        };
        missed.iter_mut().zip(rows).for_each(|(value, w)| *value = w - *value);
        let mut outputs = vec![0.0; rows.len() / width * self.held_count];
        let mut sink = Sink { values: &mut outputs, stride: self.held_count, column: 0 };
        self.held.add_product(View::rows(&missed, width), &mut sink);
        Ok(outputs.iter().map(|value| f64::from(*value).powi(2)).sum())
    }

    fn weighted(&self, rows: &[f32], rounder: Rounder) -> Result<Vec<f32>, usize> {
        let width = self.importance.len();
        let (mut values, mut one) = (vec![0.0; rows.len()], Rounded::default());
        for (n, (row, values)) in rows.chunks(width).zip(values.chunks_mut(width)).enumerate() {
            one.clear();
            rounder.rows(row, width, Some(&self.importance), &mut one).map_err(|_| n)?;
            one.restore(rounder.grid, values);
        }
        Ok(values)
    }
}

/// Activations to fit to and to measure by; the same ones where there are too few to hold any out.
fn parted(rows: &[f32], width: usize) -> (Vec<f32>, Vec<f32>) {
    if rows.len() / width < HELD_EVERY {
        return (rows.to_vec(), rows.to_vec());
    }
    let (mut fit, mut held) = (Vec::with_capacity(rows.len()), Vec::new());
    for (n, row) in rows.chunks(width).enumerate() {
        let is_held = n % HELD_EVERY == HELD_EVERY - 1;
        if is_held { held.extend_from_slice(row) } else { fit.extend_from_slice(row) }
    }
    (fit, held)
}

/// Runs of rows that are spread over `rows`: all of them where there are few.
fn runs(rows: usize) -> Vec<std::ops::Range<usize>> {
    let all = rows.div_ceil(RUN);
    let count = all.min(SAMPLE_ROWS / RUN);
    let start = |n: usize| n * all / count * RUN;
    (0..count).map(|n| start(n)..rows.min(start(n) + RUN)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::noise;
    use crate::quantize::figures::Sums;
    use crate::quantize::group::CLIPS;
    use crate::scheme::Scheme;

    #[test]
    fn the_rows_that_decide_are_spread_and_never_twice() {
        for rows in [1, 15, 16, 17, 255, 256, 257, 300, 1000, 151_674] {
            let runs = runs(rows);
            assert!(runs.iter().all(|run| !run.is_empty() && run.end <= rows), "{rows} {runs:?}");
            assert!(runs.windows(2).all(|pair| pair[0].end <= pair[1].start), "{rows} {runs:?}");
            let sum: usize = runs.iter().map(ExactSizeIterator::len).sum();
            assert!(sum <= SAMPLE_ROWS && sum >= rows.min(SAMPLE_ROWS - RUN), "{rows} {sum}");
        }
    }

    #[test]
    fn what_is_held_out_is_not_fitted_to() {
        let rows: Vec<f32> = (0..20).map(|n| n as f32).collect();
        let (fit, held) = parted(&rows, 1);
        assert_eq!(held, [7.0, 15.0]);
        assert_eq!(fit.len(), 18);
        assert!(!fit.contains(&7.0));
        assert_eq!(parted(&rows[..5], 1), (rows[..5].to_vec(), rows[..5].to_vec()));
    }

    /// Activations of a few directions: what one input gets wrong another can make up for.
    fn related(samples: usize, width: usize) -> Vec<f32> {
        let (causes, mix) = (noise(3, samples * 6), noise(4, 6 * width));
        let row = |n: usize| -> Vec<f32> {
            let at = |k: usize| (0..6).map(|c| causes[n * 6 + c] * mix[c * width + k]).sum();
            (0..width).map(at).collect()
        };
        (0..samples).flat_map(row).collect()
    }

    #[test]
    fn the_way_that_was_chosen_is_the_best_on_activations_that_no_way_knew() {
        let (width, grid) = (128, Scheme::Int4G32.grid().unwrap());
        let rounder = Rounder { grid, clips: CLIPS };
        let all = related(400, width);
        let costs = |trial: &Trial| -> Vec<f64> {
            let rows = noise(8, 24 * width);
            let cost = |way: Fitted| trial.cost(way.1.as_deref(), &rows, rounder).unwrap();
            trial.ways.all().map(cost).collect()
        };
        let trial = Trial::of_rows(all, width, ("x", grid), (DAMPINGS.len(), 2));
        let found = costs(&trial);
        let weighted = found[DAMPINGS.len()];
        assert!(found[..3].iter().all(|cost| *cost < 0.3 * weighted), "{found:?}");
        // Unrelated inputs: nothing to make up for, and little activation to learn noise from.
        let few = noise(5, 40 * width);
        let found = costs(&Trial::of_rows(few, width, ("x", grid), (DAMPINGS.len(), 2)));
        assert!(found[DAMPINGS.len()] < found[2], "{found:?}");
    }

    #[test]
    fn ways_of_wide_inputs_are_fitted_in_turns_and_choose_what_all_together_choose() {
        let (width, grid) = (128, Scheme::Int4G32.grid().unwrap());
        let rounder = Rounder { grid, clips: CLIPS };
        for (samples, is_wide) in [(40, true), (400, false)] {
            let rows = related(samples, width);
            let mut trial = Trial::of_rows(rows, width, ("x", grid), (DAMPINGS.len(), 2));
            assert_eq!(matches!(trial.ways, Ways::InTurns { .. }), is_wide);
            let sample = [(0, noise(8, 24 * width)), (30, noise(9, 24 * width))];
            let in_turns = trial.cheapest(&sample, rounder, 2).unwrap();
            trial.ways = Ways::Fitted(trial.ways.all().collect());
            let together = trial.cheapest(&sample, rounder, 2).unwrap();
            assert_eq!(in_turns.0, together.0);
            let rounded = |way: Fitted| way.1.unwrap().rounded(&sample[1].1, rounder).unwrap();
            assert_eq!(rounded(in_turns), rounded(together));
            let not_finite = [(30, [vec![0.5; width], vec![f32::NAN; width]].concat())];
            assert_eq!(trial.cheapest(&not_finite, rounder, 2).err(), Some(31));
        }
    }

    #[test]
    fn groups_stay_as_they_lie() {
        let (width, grid) = (96, Scheme::Int4G32.grid().unwrap());
        let rounder = Rounder { grid, clips: CLIPS };
        let trial = Trial::of_rows(related(64, width), width, ("x", grid), (1, 1));
        let rows = noise(6, 3 * width);
        let feedback = trial.ways.fitted(0).1.unwrap();
        let (mut out, values) = (Rounded::default(), feedback.rounded(&rows, rounder).unwrap());
        feedback.round(&rows, rounder, &mut out, &mut Sums::default()).unwrap();
        let mut plain = Rounded::default();
        rounder.rows(&rows, width, Some(&trial.importance), &mut plain).unwrap();
        assert_eq!(out.scales, plain.scales, "scales are those of the weights as they were");
        assert_ne!(out.quants, plain.quants);
        for (n, values) in values.chunks(width).enumerate() {
            let mut one =
                Rounded { quants: out.quants[n * 48..][..48].to_vec(), ..Default::default() };
            one.scales = out.scales[n * 6..][..6].to_vec();
            let mut restored = vec![0.0; width];
            one.restore(grid, &mut restored);
            assert_eq!(restored, values);
        }
    }
}
