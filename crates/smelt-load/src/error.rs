//! Says why nothing could be measured.

use std::path::PathBuf;

use crate::plan::PlanError;

/// Why nothing could be measured.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The plan cannot be carried out.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The server gives no answer at all.
    #[error("{url} gives no answer: {why}")]
    Server {
        /// The server's address.
        url: String,
        /// What went wrong.
        why: String,
    },
    /// The server names no model.
    #[error("{0} names no model; say which with --model")]
    NoModel(String),
    /// A picture cannot be sent.
    #[error("cannot read picture {}: {why}", path.display())]
    Picture {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        why: String,
    },
    /// No certificates to trust.
    #[error("cannot read SSL_CERT_FILE: {0}")]
    Authorities(String),
    /// Rows could not be told apart.
    #[error("two servers are called {0:?}: give them names, as --url NAME=URL")]
    Twice(String),
    /// The server's process cannot be watched.
    #[error("there is no process {0} whose memory could be watched")]
    NoProcess(u32),
}
