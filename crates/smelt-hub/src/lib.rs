//! Fetches checkpoints from a Hugging Face hub into the hub's own cache.
//!
//! A revision is resolved to a commit once; everything after speaks of the commit, so that what is
//! read can never change.  Only files that a checkpoint is made of are fetched.  Every byte is
//! hashed before it gets the name that the cache gives it, and a download that was cut goes on
//! where it ended.  Knows nothing of pipelines or of what the files hold.

mod api;
mod cache;
mod download;
mod error;
mod http;
mod name;
mod settings;

use std::path::PathBuf;

use api::{Api, Listing};
use cache::Folder;
use http::Client;

pub use error::HubError;
pub use name::{Address, Commit, Repo, Revision};
pub use settings::{Settings, Token};

/// How far a download is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress<'a> {
    /// The file that is arriving.
    pub file: &'a str,
    /// Of all files, what is here.
    pub done_bytes: u64,
    /// Of all files, what there will be.
    pub all_bytes: u64,
}

/// A hub and its cache.
pub struct Hub {
    settings: Settings,
    client: Client,
}

impl Hub {
    /// The hub that the environment names.
    pub fn from_env() -> Result<Self, HubError> {
        Self::new(Settings::read(|name| std::env::var_os(name))?)
    }

    /// The hub that `settings` describe.
    pub fn new(settings: Settings) -> Result<Self, HubError> {
        let client = Client::new(&settings)?;
        Ok(Self { settings, client })
    }

    /// The commit that an address names: as the hub says, or, where it is not to be asked or does
    /// not answer, as the cache remembers.  Downloads nothing and writes nothing.
    pub fn resolve(&self, address: &Address) -> Result<Commit, HubError> {
        if let Some(commit) = address.revision.as_commit() {
            return Ok(commit);
        }
        let remembered = || self.folder(&address.repo).commit_of(&address.revision);
        if self.settings.is_offline {
            return remembered().ok_or_else(|| self.not_cached(address.to_string()));
        }
        match self.api().listing(&address.repo, &address.revision) {
            Ok(listing) => Ok(listing.commit),
            Err(error @ HubError::Unreachable { .. }) => remembered().ok_or(error),
            Err(error) => Err(error),
        }
    }

    /// Where a commit's files lie once they are here.
    pub fn snapshot(&self, repo: &Repo, commit: &Commit) -> PathBuf {
        self.folder(repo).snapshot(commit)
    }

    /// The directory of a commit whose configuration and weights are all in the cache.  Asks
    /// nobody.
    pub fn cached(&self, repo: &Repo, commit: &Commit) -> Option<PathBuf> {
        self.folder(repo).complete(commit)
    }

    /// Fetches what is missing of `commit`, to which `address` was resolved, and returns the
    /// directory that holds it.
    pub fn download(
        &self,
        address: &Address,
        commit: &Commit,
        progress: &mut dyn FnMut(&Progress<'_>),
    ) -> Result<PathBuf, HubError> {
        let repo = &address.repo;
        if self.settings.is_offline {
            let what = || self.not_cached(format!("{repo} at commit {commit}"));
            return self.cached(repo, commit).ok_or_else(what);
        }
        let listing = match self.listing_of(repo, commit) {
            Ok(listing) => listing,
            Err(error @ HubError::Unreachable { .. }) => {
                return self.cached(repo, commit).ok_or(error);
            }
            Err(error) => return Err(error),
        };
        let folder = self.folder(repo);
        let job =
            download::Job { api: self.api(), client: &self.client, folder: &folder, repo, commit };
        job.run(listing.files, progress)?;
        folder.note(&address.revision, commit)?;
        Ok(folder.snapshot(commit))
    }

    fn listing_of(&self, repo: &Repo, commit: &Commit) -> Result<Listing, HubError> {
        let listing = self.api().listing(repo, &commit.as_str().parse()?)?;
        if listing.commit != *commit {
            let why = format!("asked for commit {commit}, it lists {}", listing.commit);
            return Err(HubError::BadAnswer { url: self.settings.endpoint.clone(), why });
        }
        Ok(listing)
    }

    fn api(&self) -> Api<'_> {
        Api { client: &self.client, endpoint: &self.settings.endpoint }
    }

    fn folder(&self, repo: &Repo) -> Folder {
        Folder::new(&self.settings.cache, repo)
    }

    fn not_cached(&self, what: String) -> HubError {
        HubError::Offline { what, cache: self.settings.cache.clone() }
    }
}

#[cfg(test)]
mod tests;
