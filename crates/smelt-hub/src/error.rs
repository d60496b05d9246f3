//! What can go wrong between a hub and its cache, each as one line that says what to do.

use std::io;
use std::path::PathBuf;

/// Why a repository could not be had.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The text names no repository or revision.
    #[error("\"{text}\" does not name a repository of a hub: {why}")]
    BadName {
        /// What was given.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A setting in the environment cannot be used.
    #[error("{name} cannot be used: {why}")]
    BadSetting {
        /// The variable, or the file.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// No connection, or the server failed again and again.
    #[error("{url}: {why} ({tries} {})", if *tries == 1 { "try" } else { "tries" })]
    Unreachable {
        /// What was asked for.
        url: String,
        /// What the last try met.
        why: String,
        /// Tries in all.
        tries: u32,
    },
    /// The licence must be accepted first.
    #[error(
        "{repo} is gated: accept its licence at {page}, then set HF_TOKEN to a token of that account"
    )]
    Gated {
        /// The repository.
        repo: String,
        /// Where the licence is.
        page: String,
    },
    /// The hub wants another token, or does not know the repository; it does not tell them apart.
    #[error("{repo} is not on {endpoint}, or is private and HF_TOKEN {token}")]
    NotAllowed {
        /// The repository.
        repo: String,
        /// The hub.
        endpoint: String,
        /// What is the matter with the token.
        token: &'static str,
    },
    /// There is no such repository.
    #[error("{endpoint} has no model {repo}")]
    NoRepo {
        /// The repository.
        repo: String,
        /// The hub.
        endpoint: String,
    },
    /// There is no such revision.
    #[error("{repo} has no revision \"{revision}\"; see {page}")]
    NoRevision {
        /// The repository.
        repo: String,
        /// What was asked for.
        revision: String,
        /// Where its revisions are listed.
        page: String,
    },
    /// The revision has no such file.
    #[error("{repo} has no file {file} at commit {commit}")]
    NoFile {
        /// The repository.
        repo: String,
        /// The commit.
        commit: String,
        /// The file.
        file: String,
    },
    /// The revision holds nothing that a checkpoint is made of.
    #[error("{repo} at commit {commit} holds no config.json or no safetensors weights")]
    NoCheckpoint {
        /// The repository.
        repo: String,
        /// The commit.
        commit: String,
    },
    /// The revision holds weights that only Python can read, by running what is in them.
    #[error(
        "{repo} holds only pickled weights ({file}), which can run any program; convert them to \
         safetensors and use path:"
    )]
    Pickled {
        /// The repository.
        repo: String,
        /// One of the files.
        file: String,
    },
    /// The revision holds several models, and nothing says which is meant.  Parts of one model count each.
    #[error(
        "{repo} holds {count} GGUF models ({files}); name one of them, as in hf:{repo}:{first}"
    )]
    ManyModels {
        /// The repository.
        repo: String,
        /// How many.
        count: usize,
        /// The first of them, in words.
        files: String,
        /// One of them.
        first: String,
    },
    /// A file in the cache is not what its name says, and cannot be fetched again.
    #[error(
        "{file} of {repo} is damaged in the cache: the hash of {} is {found}, not {expected}; it is \
         fetched again when the hub can be asked",
        path.display()
    )]
    Damaged {
        /// The repository.
        repo: String,
        /// The file.
        file: String,
        /// Where it lies.
        path: PathBuf,
        /// What its name says.
        expected: String,
        /// What it holds.
        found: String,
    },
    /// The answer is not what a hub says.
    #[error("{url} does not answer as a hub does: {why}")]
    BadAnswer {
        /// What was asked for.
        url: String,
        /// What is wrong with the answer.
        why: String,
    },
    /// The server refused with a status that has no meaning here.
    #[error("{url} was refused with status {status}")]
    Refused {
        /// What was asked for.
        url: String,
        /// The status.
        status: u16,
    },
    /// The server knows no ranges, so that what a file holds is not known before all of it is here.
    #[error(
        "{url} is sent whole or not at all (no ranges), so its header cannot be read alone; fetch it, and name the file by its path"
    )]
    NoParts {
        /// The file.
        url: String,
    },
    /// The bytes are not those the hub has promised.
    #[error("{file} of {repo} arrived damaged twice: its hash is {found}, not {expected}")]
    WrongHash {
        /// The repository.
        repo: String,
        /// The file.
        file: String,
        /// What the hub promised.
        expected: String,
        /// What came.
        found: String,
    },
    /// The file is larger than any real one, or than the server has said.
    #[error("{file} of {repo} has {bytes} bytes, more than the {bytes_max} that are accepted")]
    TooLarge {
        /// The repository.
        repo: String,
        /// The file.
        file: String,
        /// Its size, as far as it is known.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// The network is not to be used, and the cache does not have it.
    #[error("{what} is not in {}, and HF_HUB_OFFLINE forbids a download", cache.display())]
    Offline {
        /// The repository, and the revision.
        what: String,
        /// The cache.
        cache: PathBuf,
    },
    /// Nothing was fetched of it yet, and nobody was to be asked.
    #[error("nothing was built from {what} yet: {} does not know it", cache.display())]
    NotFetched {
        /// The repository, and the revision.
        what: String,
        /// The cache.
        cache: PathBuf,
    },
    /// The disk cannot hold what is missing.
    #[error(
        "No space left on device: {repo} needs {needed_bytes} more bytes in {}, where {free_bytes} \
         are free; free some, or set HF_HOME to a larger disk",
        path.display()
    )]
    NoSpace {
        /// The repository.
        repo: String,
        /// Where it is to lie.
        path: PathBuf,
        /// Needed, with a margin.
        needed_bytes: u64,
        /// Free.
        free_bytes: u64,
    },
    /// Another process has held a blob's lock for too long.
    #[error("another process has been downloading {file} of {repo} for {hours} hours; its lock is {}", path.display())]
    Locked {
        /// The repository.
        repo: String,
        /// The file.
        file: String,
        /// How long it was waited for.
        hours: u64,
        /// The lock.
        path: PathBuf,
    },
    /// The system refused something in the cache.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl HubError {
    /// Whether the disk was full.
    pub fn is_disk_full(&self) -> bool {
        match self {
            Self::NoSpace { .. } => true,
            Self::Io { source, .. } => source.kind() == io::ErrorKind::StorageFull,
            _ => false,
        }
    }
}

/// Wraps what the system said about `path`.
pub(super) fn fault<'a>(
    what: &'static str,
    path: &'a std::path::Path,
) -> impl FnOnce(io::Error) -> HubError + 'a {
    move |source| HubError::Io { what, path: path.to_owned(), source }
}
