//! Delivers outputs by registries of OCI artifacts, and by directories of their form (image layouts).
//!
//! A pusher slices files into layers, sends those that the place lacks, then the manifest, then a signed statement of it,
//! and names it by its tag last.  A puller judges that statement before it fetches anything that is large, and writes each
//! layer where it belongs in its file.  Knows nothing of deployments, and changes no store.

pub mod artifact;
pub mod auth;
pub mod delivery;
pub mod document;
pub mod fetch;
pub mod layout;
pub mod place;
pub mod reference;
pub mod registry;
pub mod send;
#[cfg(test)]
mod tests;
