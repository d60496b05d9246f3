//! Measures: `/proc` to [`Sample`]s, samples to [`Peaks`] and a [`Verdict`].
//!
//! Reading is thin and separate from judging, which is pure.  Knows nothing of pipelines, stages
//! or retries.

#![forbid(unsafe_code)]

pub mod machine;
pub mod peaks;
pub mod tree;
pub mod verdict;

pub use machine::{Machine, oom_kills};
pub use peaks::Peaks;
pub use tree::{Sample, Tree, is_zombie};
pub use verdict::{Budget, Verdict, Why, judge};
