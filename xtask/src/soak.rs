//! Runs the sweeps of `ci` without their bounds, then cuts power, then every fuzz target for a minute.

use anyhow::{Context, Result};

use crate::ci::cargo;
use crate::{fuzz, power_cuts};

/// What the tests with a bound look for.
const SOAK: (&str, &str) = ("SMELT_SOAK", "1");

const SWEEPS: [(&str, &[&str]); 2] = [
    ("schedules", &["test", "--locked", "-p", "smelt-plan", "any_world", "--", "--nocapture"]),
    ("store", &["test", "--locked", "-p", "smelt-store", "--", "--nocapture"]),
];

pub(crate) fn run() -> Result<()> {
    for (name, arguments) in SWEEPS {
        cargo(arguments, &[SOAK]).with_context(|| format!("{name} failed"))?;
    }
    power_cuts::run(power_cuts::SOAK)?;
    fuzz::run(&[])
}
