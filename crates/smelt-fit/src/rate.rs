//! Says how many of something there are in a second, and how that is known.

use serde::Serialize;

/// So many of something in a second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Rate {
    /// How many.
    pub per_second: f64,
    /// How that is known.
    pub basis: RateBasis,
}

/// How a rate is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RateBasis {
    /// It was measured on the device.
    Measured,
    /// It follows from rates that were measured, or from the instructions of its processors.
    Estimated,
    /// Its maker says so.
    Stated,
    /// It follows from what its maker says, and nothing of smelt ran on such a device yet.
    Projected,
}

impl RateBasis {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Estimated => "estimated",
            Self::Stated => "by its maker's figures",
            Self::Projected => "projected",
        }
    }
}
