//! The values along an axis, in round steps.

/// From where to where an axis goes, and how far its lines are from each other.
pub(crate) struct Scale {
    low: f64,
    high: f64,
    step: f64,
}

/// Steps of an axis, about.
const STEPS: f64 = 5.0;
/// Values that are all 0 have steps too.
const STEP_MIN: f64 = 1e-3;

impl Scale {
    /// A scale of round steps that holds `values` with some room, but nothing below 0 or beyond
    /// `most`.
    pub(crate) fn around(values: impl Iterator<Item = f64>, most: Option<f64>) -> Self {
        let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        let (low, high) = if low <= high { (low, high) } else { (0.0, 1.0) };
        let room = ((high - low) * 0.15).max(high.abs() * 0.005).max(1e-3);
        let (low, high) = ((low - room).max(0.0), (high + room).min(most.unwrap_or(f64::INFINITY)));
        let step = round_step((high - low) / STEPS);
        let low = (low / step).floor() * step;
        let high = (high / step).ceil() * step;
        Self { low, high: most.map_or(high, |most| high.min(most.max(low + step))), step }
    }

    /// A scale of round steps from 0 that holds `values`.
    pub(crate) fn from_zero(values: impl Iterator<Item = f64>) -> Self {
        let most = values.fold(0.0, f64::max);
        let step = round_step((most / STEPS).max(STEP_MIN));
        Self { low: 0.0, high: step * STEPS, step }
    }

    /// How far along the axis a value lies, 0 to 1.
    pub(crate) fn part(&self, value: f64) -> f64 {
        (value - self.low) / (self.high - self.low)
    }

    /// Where lines are drawn, and their names.
    pub(crate) fn ticks(&self) -> Vec<(f64, String)> {
        let digits = (-self.step.log10().floor()).max(0.0) as usize;
        let count = ((self.high - self.low) / self.step).round() as usize;
        let tick = |index| {
            let value = self.low + index as f64 * self.step;
            (value, format!("{value:.digits$}"))
        };
        (0..=count).map(tick).collect()
    }
}

/// The smallest of 1, 2 or 5 times a power of ten that is not below `least`.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0]
        .into_iter()
        .map(|n| n * power)
        .find(|&step| step >= least)
        .unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round() {
        for (least, step) in [(0.9, 1.0), (1.2, 2.0), (3.0, 5.0), (7.0, 10.0), (0.03, 0.05)] {
            assert!((round_step(least) - step).abs() < 1e-9, "{least}");
        }
    }

    fn names(scale: &Scale) -> Vec<String> {
        scale.ticks().into_iter().map(|(_, name)| name).collect()
    }

    #[test]
    fn a_scale_holds_its_values() {
        let close = |values: [f64; 2], most, expected: &[&str]| {
            let scale = Scale::around(values.into_iter(), most);
            assert!(values.iter().all(|&value| (0.0..=1.0).contains(&scale.part(value))));
            assert_eq!(names(&scale), expected);
        };
        close([90.0, 100.0], Some(100.0), &["85", "90", "95", "100"]);
        close([100.0, 100.0], Some(100.0), &["99.5", "99.6", "99.7", "99.8", "99.9", "100.0"]);
        close(
            [0.0, 0.0],
            Some(100.0),
            &["0.0000", "0.0002", "0.0004", "0.0006", "0.0008", "0.0010"],
        );
        close([4.0, 11.0], None, &["2", "4", "6", "8", "10", "12", "14"]);
    }

    #[test]
    fn a_scale_from_zero_holds_the_most() {
        let of = |values: &[f64]| Scale::from_zero(values.iter().copied());
        assert_eq!(names(&of(&[3.0, 40.0])), ["0", "10", "20", "30", "40", "50"]);
        assert!((of(&[3.0, 40.0]).part(40.0) - 0.8).abs() < 1e-9);
        assert_eq!(names(&of(&[])), ["0.000", "0.001", "0.002", "0.003", "0.004", "0.005"]);
    }
}
