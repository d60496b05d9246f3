//! Asks a place of deliveries, a registry or a directory, for manifests and blobs, and gives it some.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use smelt_store::Digest;

use super::artifact::Part;
use super::document::{Descriptor, INDEX_TYPE, Index, MANIFEST_BYTES_MAX};
use super::layout::ImageLayout;
use super::reference::{At, REFERRERS_TAG, Reference};
use super::registry::{Access, Registry};
use crate::dsse::Envelope;

/// What artifacts are that say who vouches for a delivery.
pub(crate) const STATEMENT_TYPE: &str = "application/vnd.smelt.delivery.statement.v1";
/// What the layer of such a one is.
pub(crate) const ENVELOPE_TYPE: &str = "application/vnd.dsse.envelope.v1+json";
/// A delivery has a few signatures.  Each statement costs three requests.
pub(crate) const STATEMENTS_MAX: usize = 16;
/// A statement of a delivery has 64 KiB, a third more in base64, and 16 signatures.
pub(crate) const ENVELOPE_BYTES_MAX: u64 = 128 << 10;

/// Something is wrong with a place, or with what it says.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// It cannot be asked; perhaps it can later.
    #[error("{place} cannot be reached: {why}")]
    Gone {
        /// The place.
        place: String,
        /// What went wrong.
        why: String,
    },
    /// It does not do what was asked.
    #[error("{place} refuses {what}: {why}")]
    Refused {
        /// The place.
        place: String,
        /// What was asked.
        what: String,
        /// What it says.
        why: String,
    },
    /// What it answers is not what was asked for.
    #[error("{place}: {what}: {why}")]
    Wrong {
        /// The place.
        place: String,
        /// What was asked for.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// A file of this machine.
    #[error("cannot {verb} {}: {source}", path.display())]
    Io {
        /// What was tried.
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl PlaceError {
    /// Whether free space would cure it.
    pub fn is_disk_full(&self) -> bool {
        let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        matches!(self, Self::Io { source, .. } if full.contains(&source.kind()))
    }
}

pub(crate) fn failed(verb: &'static str, path: &Path) -> impl Fn(io::Error) -> PlaceError {
    move |source| PlaceError::Io { verb, path: path.to_owned(), source }
}

/// What is asked for at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name<'a> {
    /// Whatever has that tag now.
    Tag(&'a str),
    /// The one of that digest.
    Digest(Digest),
}

/// Content that is sent, a file's or text; it is begun again where a connection was cut.
#[derive(Clone, Copy, Debug)]
pub enum Content<'a> {
    /// A text.
    Text(&'a [u8]),
    /// A part of a file.
    Part {
        /// The file.
        path: &'a Path,
        /// Where it begins.
        at: u64,
        /// How long it is.
        bytes: u64,
    },
}

impl Content<'_> {
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Text(text) => text.len() as u64,
            Self::Part { bytes, .. } => *bytes,
        }
    }

    pub(crate) fn open(&self) -> Result<Opened<'_>, PlaceError> {
        match *self {
            Self::Text(text) => Ok(Opened::Text(text)),
            Self::Part { path, at, bytes } => {
                Part::open(path, at, bytes).map(Opened::Part).map_err(failed("read", path))
            }
        }
    }
}

/// Content that is read.
pub(crate) enum Opened<'a> {
    Text(&'a [u8]),
    Part(Part<File>),
}

impl Read for Opened<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Text(text) => text.read(buffer),
            Self::Part(part) => part.read(buffer),
        }
    }
}

/// A place.
#[derive(Debug)]
pub enum Place {
    /// A repository of a registry.
    Registry(Box<Registry>),
    /// A directory.
    Layout(ImageLayout),
}

impl Place {
    /// The one that a reference names.
    ///
    /// # Errors
    /// If the authority of `access` is none.
    pub fn of(reference: &Reference, access: Access) -> Result<Self, PlaceError> {
        Ok(match &reference.at {
            At::Registry { is_secure, host, name } => {
                Self::Registry(Box::new(Registry::new((*is_secure, host, name), access)?))
            }
            At::Layout(dir) => Self::Layout(ImageLayout::new(dir)),
        })
    }

    /// What it is called where something is wrong with it.
    pub fn name(&self) -> String {
        match self {
            Self::Registry(registry) => registry.host().to_owned(),
            Self::Layout(layout) => layout.dir().display().to_string(),
        }
    }

    /// Whether nothing was ever put there, as far as that can be said without asking.
    pub fn is_new(&self) -> bool {
        matches!(self, Self::Layout(layout) if layout.is_new())
    }

    pub(crate) fn wrong(&self, what: impl Into<String>, why: impl Into<String>) -> PlaceError {
        PlaceError::Wrong { place: self.name(), what: what.into(), why: why.into() }
    }

    /// A manifest or a list of them, if there is one.  One that was asked for by its digest has it.
    ///
    /// # Errors
    /// If the place cannot be asked, or answers something else.
    pub fn manifest(&self, name: Name<'_>) -> Result<Option<Vec<u8>>, PlaceError> {
        let found = match self {
            Self::Registry(registry) => registry.manifest(name)?,
            Self::Layout(layout) => layout.manifest(name)?,
        };
        let is_other =
            |found: &Vec<u8>| matches!(name, Name::Digest(it) if Digest::of(found) != it);
        if found.as_ref().is_some_and(is_other) {
            return Err(self.wrong("a manifest", "it is another one than was asked for"));
        }
        Ok(found)
    }

    /// Whether it has a blob.
    ///
    /// # Errors
    /// If it cannot be asked.
    pub fn has(&self, digest: Digest, bytes: u64) -> Result<bool, PlaceError> {
        match self {
            Self::Registry(registry) => registry.has(digest, bytes),
            Self::Layout(layout) => layout.has(digest, bytes),
        }
    }

    /// Reads a blob of so many bytes from a place on, or from its beginning: from where it is, is said first.
    pub(crate) fn read(
        &self,
        digest: Digest,
        from: u64,
        bytes: u64,
    ) -> Result<(u64, Box<dyn Read + '_>), PlaceError> {
        match self {
            Self::Registry(registry) => registry.read(digest, from, bytes),
            Self::Layout(layout) => layout.read(digest, from, bytes),
        }
    }

    /// Gives it a blob.
    pub(crate) fn write(&self, digest: Digest, content: Content<'_>) -> Result<(), PlaceError> {
        match self {
            Self::Registry(registry) => registry.write(digest, content),
            Self::Layout(layout) => layout.write(digest, content),
        }
    }

    /// Gives it a manifest, or a list of them; whether it keeps by itself what that is about.
    pub(crate) fn put_manifest(
        &self,
        name: Name<'_>,
        media_type: &str,
        json: &[u8],
    ) -> Result<bool, PlaceError> {
        match self {
            Self::Registry(registry) => registry.put_manifest(name, media_type, json),
            Self::Layout(layout) => layout.put_manifest(name, media_type, json).map(|()| false),
        }
    }

    /// A short blob as a whole, if it is what it is called.
    pub(crate) fn short(&self, wanted: &Descriptor, what: &str) -> Result<Vec<u8>, PlaceError> {
        let (digest, bytes) = (wanted.digest.0, wanted.size);
        let (_, reader) = self.read(digest, 0, bytes)?;
        let mut content = Vec::new();
        let read = reader.take(bytes.saturating_add(1)).read_to_end(&mut content);
        read.map_err(|error| PlaceError::Gone { place: self.name(), why: error.to_string() })?;
        if content.len() as u64 != bytes || Digest::of(&content) != digest {
            return Err(self.wrong(what, "it is damaged or another one than the manifest names"));
        }
        Ok(content)
    }

    /// The lists of what is about a manifest: the registry's own, where it keeps one, or that under a tag.
    fn referrers(&self, manifest: Digest) -> Result<Index, PlaceError> {
        let own = match self {
            Self::Registry(registry) => registry.referrers(manifest)?,
            Self::Layout(_) => None,
        };
        let tag = referrers_tag(manifest);
        let found = match own {
            Some(found) => Some(found),
            None => self.manifest(Name::Tag(&tag))?,
        };
        let Some(found) = found else { return Ok(Index::default()) };
        let index = Index::from_json(&found);
        index.map_err(|why| self.wrong(format!("the list of who vouches ({tag})"), why))
    }

    /// What is signed of a manifest, whoever did.  What is no such statement is passed over: it may be about something else.
    ///
    /// # Errors
    /// If the place cannot be asked, or has not what it lists.
    pub fn statements(&self, manifest: Digest) -> Result<Vec<Envelope>, PlaceError> {
        let index = self.referrers(manifest)?;
        let ours = index.manifests.iter().filter(|it| may_be_statement(it));
        let mut all = Vec::new();
        for listed in ours.take(STATEMENTS_MAX) {
            let what = "a statement of who vouches";
            let Some(json) = self.manifest(Name::Digest(listed.digest.0))? else { continue };
            let found = super::document::ImageManifest::from_json(&json);
            let found = found.map_err(|why| self.wrong(what, why))?;
            if found.artifact_type.as_deref() != Some(STATEMENT_TYPE) {
                continue;
            }
            let layer = match found.layers.as_slice() {
                [layer] if layer.size <= ENVELOPE_BYTES_MAX => layer,
                _ => return Err(self.wrong(what, "it has not one short layer")),
            };
            let envelope = Envelope::from_json(&self.short(layer, what)?);
            all.push(envelope.map_err(|error| self.wrong(what, error.to_string()))?);
        }
        Ok(all)
    }

    /// Lists a statement under the tag of the manifest that it is about.
    pub(crate) fn list_statement(
        &self,
        manifest: Digest,
        statement: Descriptor,
    ) -> Result<(), PlaceError> {
        let tag = referrers_tag(manifest);
        let mut index = match self.manifest(Name::Tag(&tag))? {
            None => Index::default(),
            Some(found) => Index::from_json(&found)
                .map_err(|why| self.wrong(format!("the list of who vouches ({tag})"), why))?,
        };
        index.manifests.retain(|it| it.digest != statement.digest);
        index.manifests.push(statement);
        let count = index.manifests.iter().filter(|it| may_be_statement(it)).count();
        let json = index.to_json();
        if count > STATEMENTS_MAX || json.len() as u64 > MANIFEST_BYTES_MAX {
            let why = format!("{STATEMENTS_MAX} statements are there already");
            return Err(self.wrong("the list of who vouches", why));
        }
        self.put_manifest(Name::Tag(&tag), INDEX_TYPE, &json).map(drop)
    }
}

/// Where registries that keep no list themselves have it, as the distribution specification says.
fn referrers_tag(manifest: Digest) -> String {
    format!("{REFERRERS_TAG}{manifest}")
}

/// Whether what is listed may be one: tools that copy lists leave out of which kind it is.
fn may_be_statement(listed: &Descriptor) -> bool {
    let is_ours = listed.artifact_type.as_deref().is_none_or(|kind| kind == STATEMENT_TYPE);
    is_ours && listed.size <= MANIFEST_BYTES_MAX
}
