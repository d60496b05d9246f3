//! Chooses, of several engines that answer alike, the one that this device runs best.
//!
//! Headings and facts in, a place in the list out.  The flag that uses it comes with the first engine for a GPU.

use crate::Heading;

/// What a device has that engines depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Targets that can run here, best first: `cuda-sm87`, `cpu`, …
    pub targets: Vec<String>,
}

/// None of the engines runs here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the engines are for {}, and this device runs {}; build one for it",
    engines.join(", "),
    targets.join(", ")
)]
pub struct NoEngine {
    /// The engines' targets.
    pub engines: Vec<String>,
    /// Targets that this device runs.
    pub targets: Vec<String>,
}

/// Which engine this device runs: the first in the list of those for its best target.
///
/// # Errors
/// [`NoEngine`] where it runs none of them.
pub fn choose(engines: &[Heading], device: &Device) -> Result<usize, NoEngine> {
    let first = |target: &String| engines.iter().position(|engine| engine.target == *target);
    device.targets.iter().find_map(first).ok_or_else(|| NoEngine {
        engines: engines.iter().map(|engine| engine.target.clone()).collect(),
        targets: device.targets.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(engines: &[&str], targets: &[&str], expect: Result<usize, &str>) {
        let engine =
            |target: &&str| Heading { format: 3, kind: "llm".into(), target: (*target).into() };
        let engines: Vec<Heading> = engines.iter().map(engine).collect();
        let device = Device { targets: targets.iter().map(|target| (*target).into()).collect() };
        let found = choose(&engines, &device).map_err(|error| error.to_string());
        assert_eq!(found, expect.map_err(str::to_owned));
    }

    #[test]
    fn the_best_target_of_a_device_is_chosen() {
        let both = ["cpu", "cuda-sm87"];
        check(&both, &["cuda-sm87", "cpu"], Ok(1));
        check(&both, &["cuda-sm110", "cpu"], Ok(0));
        check(&["cpu", "cpu"], &["cpu"], Ok(0));
        check(&["cuda-sm87", "cuda-sm110", "cpu"], &["cuda-sm110", "cuda-sm87", "cpu"], Ok(1));
    }

    #[test]
    fn who_runs_none_is_told_what_there_is() {
        let why =
            "the engines are for cuda-sm87, and this device runs cuda-sm90, cpu; build one for it";
        check(&["cuda-sm87"], &["cuda-sm90", "cpu"], Err(why));
    }
}
