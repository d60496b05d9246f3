//! Keeps which deliveries were taken, so that nobody is given an older one: a text, replaced as a whole and durably.
//!
//! Notes may be lost, this may not.  What it says is known by whoever writes it.

use crate::disk::{LockKind, Wait, fault, read_small, replace_file};
use crate::store::{Store, StoreError};

/// A version takes 300 bytes, a name has eight of them: so many are of thousands of names.
const DELIVERIES_BYTES_MAX: u64 = 16 << 20;

impl Store {
    /// What is remembered; nothing where nobody has remembered anything.
    ///
    /// # Errors
    /// If it is there and cannot be read.
    pub fn deliveries(&self) -> Result<Vec<u8>, StoreError> {
        let found = read_small(self.disk(), &self.layout().deliveries(), DELIVERIES_BYTES_MAX)?;
        Ok(found.unwrap_or_default())
    }

    /// Replaces what is remembered by what `change` makes of it, while nobody else does.
    ///
    /// # Errors
    /// If it cannot be read or written; then it is as it was.
    pub fn change_deliveries<E: From<StoreError>>(
        &self,
        change: impl FnOnce(Vec<u8>) -> Result<Vec<u8>, E>,
    ) -> Result<(), E> {
        self.refuse_read_only("remember a delivery")?;
        let path = self.layout().deliveries_lock();
        let lock = self.disk().lock(&path, LockKind::Exclusive, Wait::Briefly);
        let _alone = lock.map_err(|error| StoreError::from(fault("lock", &path)(error)))?;
        let text = change(self.deliveries()?)?;
        let kept = replace_file(self.disk(), &self.layout().deliveries(), &text);
        Ok(kept.map_err(StoreError::from)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_stays() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Wait::No).unwrap();
        assert_eq!(store.deliveries().unwrap(), b"");
        let add = |more: &'static str| {
            store.change_deliveries(|text| Ok::<_, StoreError>([text, more.into()].concat()))
        };
        add("a").unwrap();
        add("b").unwrap();
        drop(store);
        let store = Store::open(dir.path(), Wait::No).unwrap();
        assert_eq!(store.deliveries().unwrap(), b"ab");
        let refused = store.change_deliveries(|_| {
            Err(StoreError::from(fault("read", dir.path())(std::io::Error::other("bad"))))
        });
        assert!(refused.is_err());
        assert_eq!(store.deliveries().unwrap(), b"ab");
    }
}
