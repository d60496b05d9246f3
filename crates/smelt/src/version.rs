//! Says which smelt this is: version, commit, target.
//!
//! The build script finds commit and target; a tarball has no commit.

/// `0.1.0 (1a2b3c4d5e6f, x86_64-unknown-linux-gnu)`.
pub(crate) const TEXT: &str =
    concat!(env!("CARGO_PKG_VERSION"), " (", env!("SMELT_COMMIT"), env!("SMELT_TARGET"), ")");
