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
mod select;
mod settings;

use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use api::{Api, Listing, RemoteFile};
use cache::{Folder, Kept};
use http::Client;
use select::Unfit;

pub use error::HubError;
pub use name::{Address, Commit, FileName, Repo, Revision};
pub use settings::{Settings, Token};

/// Why the hub is not asked when `HF_HUB_OFFLINE` forbids it.
const OFFLINE: &str = "HF_HUB_OFFLINE is set";

/// What a download does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress<'a> {
    /// The hub cannot be asked; what the cache has of the commit is taken for all of it.
    Unasked {
        /// Why not.
        why: &'a str,
    },
    /// A file that is here is read once, to be sure of it.
    Checking {
        /// Its name.
        file: &'a str,
    },
    /// A file that is here is not what its name says; it is removed and fetched again.
    Damaged {
        /// Its name.
        file: &'a str,
        /// The hash of what it holds.
        found: &'a str,
    },
    /// Bytes have arrived.
    Fetching {
        /// The file that is arriving.
        file: &'a str,
        /// Of all files that were missing, what is here.
        done_bytes: u64,
        /// Of all files that were missing, what there will be.
        all_bytes: u64,
    },
}

/// What an address means now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// The commit.
    pub commit: Commit,
    /// Why the cache was asked instead of the hub, where it was: the commit may not be the newest.
    pub remembered: Option<String>,
}

/// A GGUF file of a commit, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufFile {
    /// Its name, with the folders it lies in.
    pub name: String,
    /// Its size.
    pub bytes: u64,
}

/// A hub and its cache.
pub struct Hub {
    settings: Settings,
    client: Client,
    /// The list that the hub gave last: small files are asked for one after another.
    last: Mutex<Option<(Repo, Listing)>>,
}

impl Hub {
    /// The hub that the environment names.
    pub fn from_env() -> Result<Self, HubError> {
        Self::new(Settings::from_env()?)
    }

    /// The hub that `settings` describe.
    pub fn new(settings: Settings) -> Result<Self, HubError> {
        let client = Client::new(&settings)?;
        Ok(Self { settings, client, last: Mutex::new(None) })
    }

    /// The commit that an address names: as the hub says, or, where it is not to be asked or does
    /// not answer, as the cache remembers.  Downloads nothing and writes nothing.
    pub fn resolve(&self, address: &Address) -> Result<Resolved, HubError> {
        let Address { repo, revision, .. } = address;
        let fresh = |commit| Resolved { commit, remembered: None };
        if let Some(commit) = revision.as_commit() {
            return Ok(fresh(commit));
        }
        let known = self.remembered(address);
        let old =
            |why: String| known.clone().map(|commit| Resolved { commit, remembered: Some(why) });
        if self.settings.is_offline {
            return old(OFFLINE.to_owned()).ok_or_else(|| self.not_cached(address.to_string()));
        }
        let patience = match &known {
            Some(_) => self.client.patience_beside_cache(),
            None => self.client.patience(),
        };
        match self.api().listing(repo, revision, patience) {
            Ok(listing) => {
                let commit = listing.commit.clone();
                *self.last() = Some((repo.clone(), listing));
                Ok(fresh(commit))
            }
            Err(error @ HubError::Unreachable { .. }) => old(error.to_string()).ok_or(error),
            Err(error) => Err(error),
        }
    }

    /// The commit that the cache remembers for an address.  Asks nobody.
    pub fn remembered(&self, address: &Address) -> Option<Commit> {
        self.folder(&address.repo).commit_of(&address.revision)
    }

    /// The commit that an address names or the cache remembers.  Asks nobody.
    ///
    /// # Errors
    /// [`HubError::NotFetched`] where the cache remembers none.
    pub fn known(&self, address: &Address) -> Result<Resolved, HubError> {
        let commit = address.revision.as_commit().or_else(|| self.remembered(address));
        let unknown = || HubError::NotFetched {
            what: address.to_string(),
            cache: self.settings.cache.clone(),
        };
        Ok(Resolved { commit: commit.ok_or_else(unknown)?, remembered: None })
    }

    /// Where the files that a checkpoint is read from lie once they are here, and nothing else.
    pub fn view(&self, address: &Address, commit: &Commit) -> PathBuf {
        self.folder(&address.repo).view(commit, address.file.as_ref())
    }

    /// Where the cache keeps all that was fetched of a repository, and how many bytes that is.  Asks nobody.
    pub fn cached(&self, repo: &Repo) -> Option<(PathBuf, u64)> {
        self.folder(repo).all()
    }

    /// The text of a small file of `commit`, such as its configuration: what the cache has of it, else what
    /// the hub says.  Nothing if the commit has no such file.  Writes nothing.
    pub fn small_file(
        &self,
        repo: &Repo,
        commit: &Commit,
        file: &str,
    ) -> Result<Option<String>, HubError> {
        let folder = self.folder(repo);
        if let Some(text) = folder.small_file(commit, file) {
            return Ok(Some(text));
        }
        if folder.complete(commit, None).is_some() {
            return Ok(None);
        }
        match self.lists(repo, commit, file)? {
            true => self.api().small_file(repo, commit, file, self.client.patience_beside_cache()),
            false => Ok(None),
        }
    }

    /// Whether `commit` has a file of this name: as the cache has it whole, else as the hub lists it.
    /// Mirrors answer in many ways to what is not there, so nobody is asked for it.
    pub fn lists(&self, repo: &Repo, commit: &Commit, file: &str) -> Result<bool, HubError> {
        if let Some(kept) = self.folder(repo).complete(commit, None) {
            return Ok(kept.iter().any(|kept| kept.name == file));
        }
        let what = || format!("{file} of {repo} at commit {commit}");
        let is_there = |files: &[RemoteFile]| files.iter().any(|listed| listed.name == file);
        self.in_listing(repo, commit, what, is_there)
    }

    /// Bytes of the weights that a download of `commit` brings, as the hub lists them; nothing where it does not say, or
    /// where no checkpoint can be read from the commit.
    pub fn weights_bytes(
        &self,
        address: &Address,
        commit: &Commit,
    ) -> Result<Option<u64>, HubError> {
        self.in_weights(address, commit, |weights| {
            weights.ok()?.into_iter().map(|listed| listed.bytes).sum()
        })
    }

    /// The GGUF file that a download of `commit` would bring, all parts of it in their order; nothing where its weights are
    /// of another form.
    pub fn gguf_files(
        &self,
        address: &Address,
        commit: &Commit,
    ) -> Result<Option<Vec<GgufFile>>, HubError> {
        let repo = &address.repo;
        let found = self.in_weights(address, commit, |weights| {
            let models = weights?.into_iter().filter(|listed| select::is_gguf(&listed.name));
            Ok(models.map(|listed| (listed.name.clone(), listed.bytes)).collect::<Vec<_>>())
        })?;
        let found = found.map_err(|unfit| download::unfit_of(repo, commit, unfit))?;
        let file = |(name, bytes): (String, Option<u64>)| {
            let url = self.api().file_url(repo, commit, &name);
            let why = "it does not say how large it is".to_owned();
            let bytes = bytes.ok_or(HubError::BadAnswer { url, why })?;
            Ok(GgufFile { name, bytes })
        };
        let files = found.into_iter().map(file).collect::<Result<Vec<_>, HubError>>()?;
        Ok(Some(files).filter(|files| !files.is_empty()))
    }

    /// The bytes of a file of `commit` in a range that lies inside it, as they are sent: nothing holds them against a hash.
    /// Writes nothing.
    ///
    /// # Errors
    /// [`HubError::NoParts`] where the server sends whole files alone.
    pub fn part(
        &self,
        repo: &Repo,
        commit: &Commit,
        file: &str,
        range: Range<u64>,
    ) -> Result<Vec<u8>, HubError> {
        if self.settings.is_offline {
            return Err(self.not_cached(format!("{file} of {repo} at commit {commit}")));
        }
        self.api().part((repo, commit, file), range, self.client.patience())
    }

    /// Bytes that a download of `commit` would still fetch of its weights, as the hub lists them; nothing where it does not
    /// say, or where no checkpoint can be read from the commit.
    pub fn missing_bytes(
        &self,
        address: &Address,
        commit: &Commit,
    ) -> Result<Option<u64>, HubError> {
        let folder = self.folder(&address.repo);
        self.in_weights(address, commit, |weights| {
            let missing = |listed: &RemoteFile| match (&listed.hash, listed.bytes) {
                (Some(hash), Some(bytes)) => {
                    Some(folder.missing_bytes(commit, &listed.name, hash, bytes))
                }
                _ => listed.bytes,
            };
            weights.ok()?.into_iter().map(missing).sum()
        })
    }

    /// What `ask` finds in the weights, as they are listed, that a download of `commit` brings.
    fn in_weights<T>(
        &self,
        Address { repo, file, .. }: &Address,
        commit: &Commit,
        ask: impl FnOnce(Result<Vec<&RemoteFile>, Unfit>) -> T,
    ) -> Result<T, HubError> {
        let what = || format!("the list of files of {repo} at commit {commit}");
        self.in_listing(repo, commit, what, |files| {
            let names: Vec<&str> = files.iter().map(|listed| listed.name.as_str()).collect();
            ask(select::select(&names, file.as_ref()).map(|chosen| {
                let is_it = |listed: &&RemoteFile| {
                    select::is_weights(&listed.name) && chosen.contains(&listed.name.as_str())
                };
                files.iter().filter(is_it).collect()
            }))
        })
    }

    /// What `ask` finds in the list of a commit's files, which the hub is asked for once.
    fn in_listing<T>(
        &self,
        repo: &Repo,
        commit: &Commit,
        what: impl FnOnce() -> String,
        ask: impl FnOnce(&[RemoteFile]) -> T,
    ) -> Result<T, HubError> {
        if self.settings.is_offline {
            return Err(self.not_cached(what()));
        }
        let mut last = self.last();
        let is_known = |(of, listing): &(Repo, Listing)| of == repo && listing.commit == *commit;
        if !last.as_ref().is_some_and(is_known) {
            *last = Some((repo.clone(), self.listing_of(repo, commit, true)?));
        }
        Ok(ask(last.as_ref().map_or(&[], |(_, listing)| listing.files.as_slice())))
    }

    fn last(&self) -> MutexGuard<'_, Option<(Repo, Listing)>> {
        // A list is replaced whole, so it is whole whatever happened to its last holder.
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the cache remember what an address was resolved to, if the commit is in the cache.
    pub fn note(&self, address: &Address, commit: &Commit) -> Result<(), HubError> {
        let folder = self.folder(&address.repo);
        if folder.complete(commit, address.file.as_ref()).is_some() {
            folder.note(&address.revision, commit)?;
        }
        Ok(())
    }

    /// Fetches what is missing of `commit`, to which `address` was resolved, and returns the
    /// directory that holds it.  What was there before is hashed before it is believed.
    pub fn download(
        &self,
        address: &Address,
        commit: &Commit,
        progress: &mut dyn FnMut(&Progress<'_>),
    ) -> Result<PathBuf, HubError> {
        let (repo, file) = (&address.repo, address.file.as_ref());
        let folder = self.folder(repo);
        let kept = if self.settings.is_offline {
            let what = || self.not_cached(format!("{repo} at commit {commit}"));
            let kept = folder.complete(commit, file).ok_or_else(what)?;
            check(repo, kept, OFFLINE, progress)?
        } else {
            match self.listing_of(repo, commit, folder.complete(commit, file).is_some()) {
                Ok(listing) => {
                    let (api, client) = (self.api(), &self.client);
                    let job = download::Job { api, client, folder: &folder, repo, commit, file };
                    job.run(listing.files, progress)?
                }
                Err(error @ HubError::Unreachable { .. }) => {
                    let why = error.to_string();
                    check(repo, folder.complete(commit, file).ok_or(error)?, &why, progress)?
                }
                Err(error) => return Err(error),
            }
        };
        let view = folder.show(commit, file, &kept)?;
        folder.note(&address.revision, commit)?;
        Ok(view)
    }

    fn listing_of(
        &self,
        repo: &Repo,
        commit: &Commit,
        is_cached: bool,
    ) -> Result<Listing, HubError> {
        let patience = match is_cached {
            true => self.client.patience_beside_cache(),
            false => self.client.patience(),
        };
        let listing = self.api().listing(repo, &commit.as_str().parse()?, patience)?;
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

/// Hashes what the cache has, where the hub cannot be asked what it should be.
fn check(
    repo: &Repo,
    kept: Vec<Kept>,
    why: &str,
    progress: &mut dyn FnMut(&Progress<'_>),
) -> Result<Vec<Kept>, HubError> {
    progress(&Progress::Unasked { why });
    for Kept { name, path, hash } in &kept {
        let Some(hash) = hash else { continue };
        progress(&Progress::Checking { file: name });
        let found = hash.of_same_kind_at(path)?;
        if found != hash.as_str() {
            return Err(HubError::Damaged {
                repo: repo.to_string(),
                file: name.clone(),
                path: path.clone(),
                expected: hash.as_str().to_owned(),
                found,
            });
        }
    }
    Ok(kept)
}

#[cfg(test)]
mod tests;
