//! Keeps deliveries in a directory, as an OCI image layout: for a stick, or for tools that carry it on.

use std::fs::{self, File};
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use smelt_store::Digest;

use super::artifact::digest_from;
use super::document::{Descriptor, INDEX_TYPE, Index, MANIFEST_BYTES_MAX, REF_NAME};
use super::place::{Content, Name, PlaceError, failed};

const MARK: &str = "oci-layout";
const MARK_TEXT: &str = r#"{"imageLayoutVersion":"1.0.0"}"#;
const INDEX: &str = "index.json";

/// A directory.
#[derive(Debug)]
pub struct ImageLayout {
    dir: PathBuf,
}

impl ImageLayout {
    pub(crate) fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn is_new(&self) -> bool {
        !self.dir.join(MARK).exists()
    }

    fn blob(&self, digest: Digest) -> PathBuf {
        self.dir.join("blobs/sha256").join(digest.to_string())
    }

    fn wrong(&self, what: &str, why: impl Into<String>) -> PlaceError {
        let place = self.dir.display().to_string();
        PlaceError::Wrong { place, what: what.to_owned(), why: why.into() }
    }

    /// The list of tags; an empty one where nothing is there yet.
    fn index(&self) -> Result<Index, PlaceError> {
        let path = self.dir.join(INDEX);
        let Some(json) = self.read_short(&path)? else { return Ok(Index::default()) };
        Index::from_json(&json).map_err(|why| self.wrong(INDEX, why))
    }

    /// A file of no more than a manifest's length, if it is there.
    fn read_short(&self, path: &Path) -> Result<Option<Vec<u8>>, PlaceError> {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(failed("read", path))?,
        };
        let mut content = Vec::new();
        let read = file.take(MANIFEST_BYTES_MAX + 1).read_to_end(&mut content);
        read.map_err(failed("read", path))?;
        if content.len() as u64 > MANIFEST_BYTES_MAX {
            let why = format!("it is longer than {MANIFEST_BYTES_MAX} bytes");
            return Err(self.wrong(&path.display().to_string(), why));
        }
        Ok(Some(content))
    }

    pub(crate) fn manifest(&self, name: Name<'_>) -> Result<Option<Vec<u8>>, PlaceError> {
        let digest = match name {
            Name::Digest(digest) => digest,
            Name::Tag(tag) => {
                if self.is_new() {
                    return Err(self.wrong(MARK, "no such file, so it is no image layout"));
                }
                let index = self.index()?;
                let is_it =
                    |it: &&Descriptor| it.annotations.get(REF_NAME).is_some_and(|own| own == tag);
                let Some(found) = index.manifests.iter().find(is_it) else { return Ok(None) };
                found.digest.0
            }
        };
        let found = self.read_short(&self.blob(digest))?;
        match found {
            Some(found) if Digest::of(&found) != digest => {
                Err(self.wrong(&format!("blob {}", digest.short()), "it is damaged"))
            }
            None if matches!(name, Name::Tag(_)) => {
                Err(self.wrong(&format!("blob {}", digest.short()), "it is listed and not there"))
            }
            found => Ok(found),
        }
    }

    pub(crate) fn has(&self, digest: Digest, bytes: u64) -> Result<bool, PlaceError> {
        let path = self.blob(digest);
        match fs::metadata(&path) {
            Ok(found) => Ok(found.is_file() && found.len() == bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(failed("look at", &path)(error)),
        }
    }

    pub(crate) fn read(
        &self,
        digest: Digest,
        from: u64,
        bytes: u64,
    ) -> Result<(u64, Box<dyn Read>), PlaceError> {
        let path = self.blob(digest);
        let mut file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(self.wrong(&format!("blob {}", digest.short()), "it is not there"));
            }
            opened => opened.map_err(failed("read", &path))?,
        };
        file.seek(SeekFrom::Start(from)).map_err(failed("read", &path))?;
        Ok((from, Box::new(file.take(bytes.saturating_sub(from)))))
    }

    pub(crate) fn write(&self, digest: Digest, content: Content<'_>) -> Result<(), PlaceError> {
        let _alone = self.lock()?;
        let path = self.blob(digest);
        let draft = path.with_file_name(format!(".{digest}.new"));
        let mut to = File::create(&draft).map_err(failed("write", &draft))?;
        let mut from = content.open()?;
        let (mut hasher, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
        loop {
            let some = from.read(&mut buffer).map_err(failed("read what goes to", &path))?;
            if some == 0 {
                break;
            }
            hasher.update(&buffer[..some]);
            to.write_all(&buffer[..some]).map_err(failed("write", &draft))?;
        }
        if digest_from(hasher) != digest {
            let _ = fs::remove_file(&draft);
            let why = "what is in the store is not what was sealed any more: smelt cache fsck";
            return Err(self.wrong(&format!("blob {}", digest.short()), why));
        }
        to.sync_all().map_err(failed("sync", &draft))?;
        fs::rename(&draft, &path).map_err(failed("put in place", &path))
    }

    pub(crate) fn put_manifest(
        &self,
        name: Name<'_>,
        media_type: &str,
        json: &[u8],
    ) -> Result<(), PlaceError> {
        let digest = Digest::of(json);
        if !self.has(digest, json.len() as u64)? {
            self.write(digest, Content::Text(json))?;
        }
        let Name::Tag(tag) = name else { return Ok(()) };
        let _alone = self.lock()?;
        let mut index = self.index()?;
        index.manifests.retain(|it| it.annotations.get(REF_NAME).is_none_or(|own| own != tag));
        let mut new = Descriptor::of(media_type, json);
        new.annotations.insert(REF_NAME.to_owned(), tag.to_owned());
        index.manifests.push(new);
        debug_assert_eq!(Index::from_json(&index.to_json()).as_ref(), Ok(&index), "{INDEX_TYPE}");
        let (path, draft) = (self.dir.join(INDEX), self.dir.join(".index.json.new"));
        let written = fs::write(&draft, index.to_json());
        written.and_then(|()| File::open(&draft)?.sync_all()).map_err(failed("write", &draft))?;
        fs::rename(&draft, &path).map_err(failed("put in place", &path))?;
        // Some file systems cannot sync a folder; the rename itself has succeeded.
        let _ = File::open(&self.dir).and_then(|dir| dir.sync_all());
        Ok(())
    }

    /// Makes it where it is not there, and keeps others from writing as long as the value lives.
    fn lock(&self) -> Result<File, PlaceError> {
        let (blobs, mark) = (self.dir.join("blobs/sha256"), self.dir.join(MARK));
        let is_new = self.is_new();
        if is_new && fs::read_dir(&self.dir).is_ok_and(|mut inside| inside.next().is_some()) {
            return Err(self.wrong(MARK, "the directory holds something else: name an empty one"));
        }
        fs::create_dir_all(&blobs).map_err(failed("make", &blobs))?;
        if is_new {
            fs::write(&mark, MARK_TEXT).map_err(failed("write", &mark))?;
        }
        let file = File::open(&mark).map_err(failed("read", &mark))?;
        file.lock().map_err(failed("lock", &mark))?;
        Ok(file)
    }
}
