//! Keeps: sealed outputs, the action log, journals, locks; and takes away what is no longer needed.
//!
//! A [`Store`] is a directory.  A stage works in a private directory, [`Store::seal`] makes that
//! directory permanent under a key, [`Store::lookup`] finds it again, in this run or any other,
//! and a crash or a power cut at any point costs nothing that was acknowledged.  The layout on
//! disk is described in `cache/README.md`.
//!
//! Knows nothing of stages, models or GPUs: keys are digests, records are JSON.

mod actions;
mod ballast;
pub mod bundle;
mod collect;
mod digest;
mod digester;
mod disk;
mod fsck;
mod hashed;
mod inventory;
mod layout;
mod log;
mod manifest;
mod memo;
mod modes;
pub mod notes;
mod output;
mod prune;
mod pulls;
mod roots;
mod run;
mod seal;
mod stat_cache;
mod store;
#[cfg(test)]
mod tests;
mod texts;
mod verify;
mod walk;

pub use collect::{Collection, Limits, Victim, What, Why, choose};
pub use digest::{Digest, NotADigest};
pub use digester::DigestError;
pub use disk::holder::{LockHolder, held_too_long};
pub use disk::{DiskError, Wait, is_disk_failing};
#[cfg(feature = "sim")]
pub use disk::{sim, turns};
pub use fsck::Checkup;
pub use hashed::HashedFile;
pub use inventory::{Inventory, OutputItem, QuarantinedItem, RunItem};
pub use layout::FORMAT_VERSION;
pub use log::{LogError, RECORD_BYTES_MAX};
pub use manifest::{FILES_MAX, FileEntry, Manifest, ManifestError, PATH_BYTES_MAX};
pub use memo::{Basis, Before};
pub use output::{Damage, Location, Lookup, Output};
pub use prune::LeftOut;
pub use roots::Holder;
pub use run::{DeadRun, Journal, NotARunId, Run, RunId, Whole};
pub use seal::SealError;
pub use store::{KeyLock, Store, StoreError};
pub use texts::Text;
pub use walk::WalkError;
