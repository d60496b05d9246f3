//! Brings the files of one commit into the cache: resumed where they were cut, hashed before they
//! are named.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use super::Progress;
use super::api::{Api, RemoteFile, start_of};
use super::cache::{CHUNK_BYTES, Folder, Hash, Kept, publish, size_of};
use super::error::{HubError, fault};
use super::http::{Client, Failure, From, Patience};
use super::name::{Commit, FileName, Repo};
use super::select::{Unfit, is_weights, select};

/// The hub's own limit for one file is 50 GB, of old 500.
const WEIGHTS_BYTES_MAX: u64 = 512 << 30;
/// The largest tokenizers take 40 MiB.
const TEXT_BYTES_MAX: u64 = 256 << 20;
/// Names in one line of text.
const MODELS_SHOWN_MAX: usize = 3;

/// The download of one commit.
pub(super) struct Job<'a> {
    pub(super) api: Api<'a>,
    pub(super) client: &'a Client,
    pub(super) folder: &'a Folder,
    pub(super) repo: &'a Repo,
    pub(super) commit: &'a Commit,
    /// The GGUF file that is meant, where one is named.
    pub(super) file: Option<&'a FileName>,
}

/// A file whose hash and size are known.
struct Wanted {
    name: String,
    url: String,
    hash: Hash,
    bytes: u64,
}

/// Counts what has arrived of all files.
struct Tally<'a> {
    progress: &'a mut dyn FnMut(&Progress<'_>),
    /// Of the files that are done.
    before_bytes: u64,
    all_bytes: u64,
}

impl Tally<'_> {
    fn tell(&mut self, file: &str, bytes: u64) {
        let done_bytes = self.before_bytes + bytes;
        (self.progress)(&Progress::Fetching { file, done_bytes, all_bytes: self.all_bytes });
    }
}

impl Job<'_> {
    /// Fetches every file that a checkpoint is read from and that is not there whole; returns where
    /// each lies.
    pub(super) fn run(
        &self,
        files: Vec<RemoteFile>,
        progress: &mut dyn FnMut(&Progress<'_>),
    ) -> Result<Vec<Kept>, HubError> {
        let files = self.choose(files)?;
        self.folder.create(self.commit)?;
        let (mut kept, mut missing) = (Vec::with_capacity(files.len()), Vec::new());
        for file in files {
            let file = self.wanted(file)?;
            match self.present(&file, progress)? {
                Some(path) => kept.push(self.keep(&file, path)?),
                None => missing.push(file),
            }
        }
        self.folder.check_space(missing.iter().map(|file| self.absent_bytes(file)).sum())?;
        let all_bytes = missing.iter().map(|file| file.bytes).sum();
        let mut tally = Tally { progress, before_bytes: 0, all_bytes };
        for file in &missing {
            self.blob(file, &mut tally)?;
            kept.push(self.keep(file, self.folder.blob(&file.hash))?);
            tally.before_bytes += file.bytes;
            tally.tell(&file.name, 0);
        }
        Ok(kept)
    }

    fn choose(&self, files: Vec<RemoteFile>) -> Result<Vec<RemoteFile>, HubError> {
        let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
        let unfit = |unfit| unfit_of(self.repo, self.commit, unfit);
        let chosen = select(&names, self.file).map_err(unfit)?;
        let chosen: BTreeSet<String> = chosen.into_iter().map(str::to_owned).collect();
        Ok(files.into_iter().filter(|file| chosen.contains(&file.name)).collect())
    }

    /// Where the file lies whole, if it does.  What is damaged is removed.
    fn present(
        &self,
        file: &Wanted,
        progress: &mut dyn FnMut(&Progress<'_>),
    ) -> Result<Option<PathBuf>, HubError> {
        for path in self.folder.places(self.commit, &file.name, &file.hash) {
            if size_of(&path) != Some(file.bytes) {
                continue;
            }
            progress(&Progress::Checking { file: &file.name });
            let found = file.hash.of_same_kind_at(&path)?;
            if found == file.hash.as_str() {
                return Ok(Some(path));
            }
            progress(&Progress::Damaged { file: &file.name, found: &found });
            fs::remove_file(&path).map_err(fault("remove", &path))?;
        }
        Ok(None)
    }

    /// Gives the file its name in the snapshot.
    fn keep(&self, file: &Wanted, path: PathBuf) -> Result<Kept, HubError> {
        self.folder.link(self.commit, &file.name, &path)?;
        Ok(Kept { name: file.name.clone(), path, hash: Some(file.hash.clone()) })
    }

    /// Completes what the listing says of a file by asking for the file's own headers.
    fn wanted(&self, file: RemoteFile) -> Result<Wanted, HubError> {
        let url = self.api.file_url(self.repo, self.commit, &file.name);
        let RemoteFile { name, bytes, hash } = file;
        let (hash, bytes) = match (hash, bytes) {
            (Some(hash), Some(bytes)) => (hash, bytes),
            _ => self.headers_of(&url, &name)?,
        };
        let bytes_max = if is_weights(&name) { WEIGHTS_BYTES_MAX } else { TEXT_BYTES_MAX };
        if bytes > bytes_max {
            let repo = self.repo.to_string();
            return Err(HubError::TooLarge { repo, file: name, bytes, bytes_max });
        }
        Ok(Wanted { name, url, hash, bytes })
    }

    fn headers_of(&self, url: &str, name: &str) -> Result<(Hash, u64), HubError> {
        let mut patience = self.client.patience();
        let answer = loop {
            match self.client.head(url) {
                Ok(answer) => break answer,
                Err(failure) => patience.after(failure, url)?,
            }
        };
        if answer.status >= 400 {
            return Err(self.api.refusal(&answer, url, self.repo, self.commit.as_str(), name));
        }
        let hash = answer.hub_etag.as_deref().and_then(Hash::parse);
        let length = answer.header("content-length").and_then(|length| length.parse().ok());
        match (hash, answer.hub_size.or(length)) {
            (Some(hash), Some(bytes)) => Ok((hash, bytes)),
            _ => Err(HubError::BadAnswer {
                url: url.to_owned(),
                why: "it gives no hash or no size, so a download could not be checked".to_owned(),
            }),
        }
    }

    fn absent_bytes(&self, file: &Wanted) -> u64 {
        if size_of(&self.folder.blob(&file.hash)) == Some(file.bytes) {
            return 0;
        }
        file.bytes.saturating_sub(size_of(&self.folder.partial(&file.hash)).unwrap_or(0))
    }

    /// Makes the blob exist.  Bytes that are wrong are fetched once more from the start.
    fn blob(&self, file: &Wanted, tally: &mut Tally<'_>) -> Result<(), HubError> {
        let blob = self.folder.blob(&file.hash);
        let _lock = self.folder.lock(&file.hash, &file.name)?;
        if size_of(&blob) == Some(file.bytes) {
            return Ok(());
        }
        let mut partial = Partial::open(self.folder.partial(&file.hash))?;
        // What an earlier process left may be what is wrong, and is not held against the server.
        let mut is_inherited = partial.bytes > 0;
        let mut damaged = 0;
        loop {
            self.fill(file, &mut partial, tally)?;
            let found = file.hash.of_same_kind(&partial.file);
            let found = found.map_err(fault("read", &partial.path))?;
            if found == file.hash.as_str() {
                return publish(&partial.path, &blob, &mut partial.file);
            }
            partial.reset()?;
            damaged += u32::from(!is_inherited);
            is_inherited = false;
            if damaged == 2 {
                // Nothing of it is worth keeping.
                let _ = fs::remove_file(&partial.path);
                let (repo, file, expected) =
                    (self.repo.to_string(), file.name.clone(), file.hash.as_str().to_owned());
                return Err(HubError::WrongHash { repo, file, expected, found });
            }
        }
    }

    /// Asks for what is missing until nothing is.
    fn fill(
        &self,
        file: &Wanted,
        partial: &mut Partial,
        tally: &mut Tally<'_>,
    ) -> Result<(), HubError> {
        if partial.bytes > file.bytes {
            partial.reset()?;
        }
        let mut patience = self.client.patience();
        let mut seen = DownloadState { etag: None, bytes: partial.bytes };
        while partial.bytes < file.bytes {
            if let Err(failure) = self.fetch(file, partial, &mut seen, &mut patience, tally) {
                patience.after(failure, &file.url)?;
            }
        }
        Ok(())
    }

    /// One connection's worth of the file.
    fn fetch(
        &self,
        file: &Wanted,
        partial: &mut Partial,
        seen: &mut DownloadState,
        patience: &mut Patience,
        tally: &mut Tally<'_>,
    ) -> Result<(), Failure> {
        let from = From { offset: partial.bytes, count: None, etag: seen.etag.as_deref() };
        let answer = self.client.get(&file.url, from)?;
        match answer.status {
            200 => partial.reset().map_err(Failure::Lasting)?,
            206 if start_of(&answer) == Some(partial.bytes) => {}
            206 | 416 => {
                partial.reset().map_err(Failure::Lasting)?;
                return Err(Failure::passing("the server sent another part than was asked for"));
            }
            _ => {
                let commit = self.commit.as_str();
                let refusal = self.api.refusal(&answer, &file.url, self.repo, commit, &file.name);
                return Err(Failure::Lasting(refusal));
            }
        }
        // Only a strong one promises that the bytes are the same.
        seen.etag = answer.header("etag").filter(|etag| etag.starts_with('"')).map(str::to_owned);
        let mut body = answer.body.into_reader();
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let count = match body.read(&mut chunk) {
                Ok(0) if partial.bytes < file.bytes => {
                    return Err(Failure::passing("the connection ended before the file"));
                }
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) => return Err(Failure::passing(error.to_string())),
            };
            self.check_size(file, partial, count as u64)?;
            partial.append(&chunk[..count]).map_err(Failure::Lasting)?;
            if partial.bytes > seen.bytes {
                seen.bytes = partial.bytes;
                patience.renew();
            }
            tally.tell(&file.name, partial.bytes);
        }
    }

    fn check_size(&self, file: &Wanted, partial: &mut Partial, more: u64) -> Result<(), Failure> {
        let bytes = partial.bytes + more;
        if bytes <= file.bytes {
            return Ok(());
        }
        partial.reset().map_err(Failure::Lasting)?;
        let (repo, name, bytes_max) = (self.repo.to_string(), file.name.clone(), file.bytes);
        Err(Failure::Lasting(HubError::TooLarge { repo, file: name, bytes, bytes_max }))
    }
}

/// Why no checkpoint can be read from a commit.
pub(super) fn unfit_of(repo: &Repo, commit: &Commit, unfit: Unfit) -> HubError {
    let (repo, commit) = (repo.to_string(), commit.to_string());
    match unfit {
        Unfit::NoWeights | Unfit::TooMany => HubError::NoCheckpoint { repo, commit },
        Unfit::Pickled(file) => HubError::Pickled { repo, file },
        Unfit::NoFile(file) => HubError::NoFile { repo, commit, file },
        Unfit::ManyModels(files) => {
            let count = files.len();
            let shown = &files[..count.min(MODELS_SHOWN_MAX)];
            let first = files.first().cloned().unwrap_or_default();
            HubError::ManyModels { repo, count, files: shown.join(", "), first }
        }
    }
}

/// What connections of this process have met.
struct DownloadState {
    etag: Option<String>,
    /// The most that was ever there; only more than that is progress.
    bytes: u64,
}

/// A file that is arriving.
struct Partial {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl Partial {
    fn open(path: PathBuf) -> Result<Self, HubError> {
        let file = File::options().read(true).append(true).create(true).open(&path);
        let file = file.map_err(fault("open", &path))?;
        let bytes = file.metadata().map_err(fault("read", &path))?.len();
        Ok(Self { path, file, bytes })
    }

    fn reset(&mut self) -> Result<(), HubError> {
        self.bytes = 0;
        self.file.set_len(0).map_err(fault("empty", &self.path))
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), HubError> {
        let path: &Path = &self.path;
        self.file.write_all(bytes).map_err(fault("write", path))?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }
}
