//! Keeps in a store what its fleet has given it; one that cannot be read begins anew, with a line.

use smelt_fleet::counts::Counts;
use smelt_store::{Store, StoreError, Text};

use crate::console::warn;

/// What was counted so far; nothing where that cannot be read.
pub(crate) fn read(store: &Store) -> Counts {
    match store.text(Text::Counts) {
        Ok(text) => parse(store, &text),
        Err(error) => {
            warn(format_args!("what the fleet gave is not known: {error}"));
            Counts::default()
        }
    }
}

/// Counts more.  A store that cannot keep it loses no more than that.
pub(crate) fn add(store: &Store, more: &Counts) {
    if *more == Counts::default() {
        return;
    }
    let kept = store.change_text(Text::Counts, |text| {
        Ok::<_, StoreError>(parse(store, &text).and(more).to_json())
    });
    if let Err(error) = kept {
        warn(format_args!("what the fleet gave is not counted: {error}"));
    }
}

fn parse(store: &Store, text: &[u8]) -> Counts {
    Counts::from_json(text).unwrap_or_else(|error| {
        let file = store.root().join("counts");
        warn(format_args!(
            "{}, where it is counted what the fleet gave, is damaged and begins anew: {error}",
            file.display()
        ));
        Counts::default()
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use smelt_store::Wait;

    use super::*;

    #[test]
    fn what_is_counted_stays_and_damage_begins_anew() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Wait::No).unwrap();
        let file = dir.path().join("counts");
        add(&store, &Counts::default());
        assert!(!file.exists());
        let one = Counts { hits: 1, ..Counts::default() };
        add(&store, &one);
        add(&store, &one);
        assert_eq!(read(&store).hits, 2);
        fs::write(&file, "{\"hits\":").unwrap();
        assert_eq!(read(&store).hits, 0);
        add(&store, &one);
        assert_eq!(read(&store).hits, 1);
        // What is no file of counts at all is left alone, and told of.
        fs::write(&file, vec![b' '; 5000]).unwrap();
        assert_eq!(read(&store), Counts::default());
        add(&store, &one);
        assert_eq!(read(&store), Counts::default());
    }
}
