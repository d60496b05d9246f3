//! Keeps what notes are not enough for, since those may be lost: a few texts, each replaced as a whole and durably.
//!
//! What they say is known by whoever writes them.

use std::path::PathBuf;

use crate::disk::{LockKind, Wait, fault, read_small, replace_file};
use crate::store::{Store, StoreError};

/// Which text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Text {
    /// Which deliveries were taken, so that nobody is given an older one.
    Deliveries,
    /// What a fleet has given this store.
    Counts,
}

impl Text {
    const fn name(self) -> &'static str {
        match self {
            Self::Deliveries => "deliveries",
            Self::Counts => "counts",
        }
    }

    const fn bytes_max(self) -> u64 {
        match self {
            // A version takes 300 bytes, a name has eight of them: so many are of thousands of names.
            Self::Deliveries => 16 << 20,
            // A few names and numbers.
            Self::Counts => 4 << 10,
        }
    }
}

impl Store {
    /// What is remembered; nothing where nobody has remembered anything.
    ///
    /// # Errors
    /// If it is there and cannot be read.
    pub fn text(&self, text: Text) -> Result<Vec<u8>, StoreError> {
        let found = read_small(self.disk(), &self.text_file(text, ""), text.bytes_max())?;
        Ok(found.unwrap_or_default())
    }

    /// Replaces what is remembered by what `change` makes of it, while nobody else does.
    ///
    /// # Errors
    /// If it cannot be read or written; then it is as it was.
    pub fn change_text<E: From<StoreError>>(
        &self,
        text: Text,
        change: impl FnOnce(Vec<u8>) -> Result<Vec<u8>, E>,
    ) -> Result<(), E> {
        self.refuse_read_only("remember anything")?;
        let path = self.text_file(text, ".lock");
        let lock = self.disk().lock(&path, LockKind::Exclusive, Wait::Briefly);
        let _alone = lock.map_err(|error| StoreError::from(fault("lock", &path)(error)))?;
        let changed = change(self.text(text)?)?;
        let kept = replace_file(self.disk(), &self.text_file(text, ""), &changed);
        Ok(kept.map_err(StoreError::from)?)
    }

    fn text_file(&self, text: Text, end: &str) -> PathBuf {
        self.layout().root().join(format!("{}{end}", text.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_stays() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Wait::No).unwrap();
        let read = |store: &Store| store.text(Text::Deliveries).unwrap();
        assert_eq!(read(&store), b"");
        let add = |more: &'static str| {
            store.change_text(Text::Deliveries, |text| {
                Ok::<_, StoreError>([text, more.into()].concat())
            })
        };
        add("a").unwrap();
        add("b").unwrap();
        drop(store);
        let store = Store::open(dir.path(), Wait::No).unwrap();
        assert_eq!(read(&store), b"ab");
        let refused = store.change_text(Text::Deliveries, |_| {
            Err(StoreError::from(fault("read", dir.path())(std::io::Error::other("bad"))))
        });
        assert!(refused.is_err());
        assert_eq!(read(&store), b"ab");
        assert_eq!(store.text(Text::Counts).unwrap(), b"");
    }
}
