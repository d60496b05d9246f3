//! Asks the hub what a revision is: its commit, and its files with their sizes and hashes.

use std::io::Read;
use std::ops::Range;

use serde::Deserialize;

use super::cache::{Hash, SMALL_BYTES_MAX};
use super::error::HubError;
use super::http::{Answer, Client, Failure, From, Patience};
use super::name::{self, Commit, Repo, Revision};

/// A listing of ten thousand files takes three MiB.
const LISTING_BYTES_MAX: u64 = 32 << 20;

/// A revision, as the hub describes it.
pub(super) struct Listing {
    pub(super) commit: Commit,
    /// All of them, sorted by name.
    pub(super) files: Vec<RemoteFile>,
}

/// A file of a commit.
#[derive(Debug)]
pub(super) struct RemoteFile {
    pub(super) name: String,
    pub(super) bytes: Option<u64>,
    pub(super) hash: Option<Hash>,
}

/// The hub at an endpoint.
pub(super) struct Api<'a> {
    pub(super) client: &'a Client,
    pub(super) endpoint: &'a str,
}

#[derive(Deserialize)]
struct Model {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: Option<String>,
    size: Option<u64>,
}

impl Api<'_> {
    /// The commit a revision names now, and its files.
    pub(super) fn listing(
        &self,
        repo: &Repo,
        revision: &Revision,
        mut patience: Patience,
    ) -> Result<Listing, HubError> {
        let at = revision.in_url();
        let url = format!("{}/api/models/{repo}/revision/{at}?blobs=true", self.endpoint);
        let text = loop {
            match self.text(&url, repo, revision) {
                Ok(text) => break text,
                Err(failure) => patience.after(failure, &url)?,
            }
        };
        let bad = |why: String| HubError::BadAnswer { url: url.clone(), why };
        let model: Model = serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
        let commit = Commit::parse(&model.sha)
            .ok_or_else(|| bad("its \"sha\" is no commit of 40 digits".to_owned()))?;
        if let Some(evil) = model.siblings.iter().find(|file| !name::stays_inside(&file.rfilename))
        {
            return Err(bad(format!("it lists a file {:?}", evil.rfilename)));
        }
        let mut files: Vec<RemoteFile> = model.siblings.into_iter().map(remote_file).collect();
        files.sort_by(|a, b| a.name.cmp(&b.name));
        files.dedup_by(|a, b| a.name == b.name);
        Ok(Listing { commit, files })
    }

    fn text(&self, url: &str, repo: &Repo, revision: &Revision) -> Result<Vec<u8>, Failure> {
        let answer = self.client.get(url, From::START)?;
        if answer.status != 200 {
            return Err(Failure::Lasting(self.refusal(&answer, url, repo, revision.as_str(), "")));
        }
        body(answer, url, LISTING_BYTES_MAX)
    }

    /// The text of a small file of a commit; nothing if there is no such file.
    pub(super) fn small_file(
        &self,
        repo: &Repo,
        commit: &Commit,
        file: &str,
        mut patience: Patience,
    ) -> Result<Option<String>, HubError> {
        let url = self.file_url(repo, commit, file);
        let ask = || {
            let answer = self.client.get(&url, From::START)?;
            match answer.status {
                200 => body(answer, &url, SMALL_BYTES_MAX).map(Some),
                _ => match self.refusal(&answer, &url, repo, commit.as_str(), file) {
                    HubError::NoFile { .. } => Ok(None),
                    refusal => Err(Failure::Lasting(refusal)),
                },
            }
        };
        let text = loop {
            match ask() {
                Ok(text) => break text,
                Err(failure) => patience.after(failure, &url)?,
            }
        };
        let text = text.map(String::from_utf8).transpose();
        text.map_err(|error| HubError::BadAnswer { url, why: error.to_string() })
    }

    /// The bytes of a file of a commit in a range that lies inside it.
    pub(super) fn part(
        &self,
        (repo, commit, file): (&Repo, &Commit, &str),
        range: Range<u64>,
        mut patience: Patience,
    ) -> Result<Vec<u8>, HubError> {
        let url = self.file_url(repo, commit, file);
        let count = range.end.saturating_sub(range.start);
        let from = From { offset: range.start, count: Some(count), etag: None };
        let ask = || {
            let answer = self.client.get(&url, from)?;
            match answer.status {
                206 if start_of(&answer) == Some(range.start) => whole_part(answer, &url, count),
                200 | 206 | 416 => Err(Failure::Lasting(HubError::NoParts { url: url.clone() })),
                _ => {
                    let refusal = self.refusal(&answer, &url, repo, commit.as_str(), file);
                    Err(Failure::Lasting(refusal))
                }
            }
        };
        loop {
            match ask() {
                Ok(bytes) => return Ok(bytes),
                Err(failure) => patience.after(failure, &url)?,
            }
        }
    }

    /// Where a file of a commit is.
    pub(super) fn file_url(&self, repo: &Repo, commit: &Commit, file: &str) -> String {
        // Of the characters that a wanted name may hold only this one means something in a URL.
        format!("{}/{repo}/resolve/{commit}/{}", self.endpoint, file.replace('+', "%2B"))
    }

    /// What a status other than success means, in words.
    pub(super) fn refusal(
        &self,
        answer: &Answer,
        url: &str,
        repo: &Repo,
        revision: &str,
        file: &str,
    ) -> HubError {
        let (name, endpoint) = (repo.to_string(), self.endpoint.to_owned());
        let page = format!("{endpoint}/{repo}");
        let has_token = self.client.has_token();
        match (answer.status, answer.header("x-error-code").unwrap_or_default()) {
            (401 | 403, "GatedRepo") => HubError::Gated { repo: name, page },
            (403, _) if has_token => HubError::Gated { repo: name, page },
            (401 | 403, _) => {
                let token = if has_token { "does not open it" } else { "is not set" };
                HubError::NotAllowed { repo: name, endpoint, token }
            }
            (404, "RevisionNotFound") => {
                let page = format!("{page}/tree/main");
                HubError::NoRevision { repo: name, revision: revision.to_owned(), page }
            }
            (404, "EntryNotFound") => {
                HubError::NoFile { repo: name, commit: revision.to_owned(), file: file.to_owned() }
            }
            (404, _) => HubError::NoRepo { repo: name, endpoint },
            (status, _) => HubError::Refused { url: url.to_owned(), status },
        }
    }
}

/// A part of a file, of which so many bytes were asked for.
fn whole_part(answer: Answer, url: &str, count: u64) -> Result<Vec<u8>, Failure> {
    let bytes = body(answer, url, count)?;
    match bytes.len() as u64 == count {
        true => Ok(bytes),
        false => Err(Failure::passing("the connection ended before the part")),
    }
}

/// The offset that a part of a file says it begins at.
pub(super) fn start_of(answer: &Answer) -> Option<u64> {
    let range = answer.header("content-range")?.strip_prefix("bytes ")?;
    range.split('-').next()?.trim().parse().ok()
}

/// All of an answer, if it has no more than so many bytes.
fn body(answer: Answer, url: &str, bytes_max: u64) -> Result<Vec<u8>, Failure> {
    let mut text = Vec::new();
    let mut body = answer.body.into_reader().take(bytes_max + 1);
    body.read_to_end(&mut text).map_err(|error| Failure::passing(error.to_string()))?;
    if text.len() as u64 > bytes_max {
        let why = format!("more than {bytes_max} bytes");
        return Err(Failure::Lasting(HubError::BadAnswer { url: url.to_owned(), why }));
    }
    Ok(text)
}

fn remote_file(sibling: Sibling) -> RemoteFile {
    let Sibling { rfilename, size, blob_id, lfs } = sibling;
    // Git knows a large file by the blob of its pointer, which is not what is downloaded.
    let (hash, bytes) = match lfs {
        Some(lfs) => (lfs.sha256, lfs.size.or(size)),
        None => (blob_id, size),
    };
    RemoteFile { name: rfilename, bytes, hash: hash.as_deref().and_then(Hash::parse) }
}
