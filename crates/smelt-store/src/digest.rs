//! Names content by its SHA-256, in the type that keys of plans have too.
//!
//! Knows nothing of what the bytes mean: keys, files and whole trees are all digests.

use sha2::{Digest as _, Sha256};
pub use smelt_plan::Digest;
pub use smelt_plan::digest::NotADigest;

/// Ends a running hash.
pub(crate) fn from_hasher(hasher: Sha256) -> Digest {
    Digest::from_bytes(hasher.finalize().into())
}
