//! Large files, of which a pull fetches parts of chunks.

use std::fs;
use std::path::PathBuf;

use smelt_random::Random;

use super::{Parts, World, sealed};
use crate::local::LocalChunks;
use crate::pieces::PIECE_BYTES;
use crate::pull::{Fetched, Offer, PullError};
use crate::remote::Key;

/// A large file is here in an older version, and three places of the new one are other.
struct LargeVersion {
    world: World,
    local: LocalChunks,
    new: PathBuf,
}

impl LargeVersion {
    const BYTES: usize = 20 << 20;
    const CHANGES: [usize; 3] = [1_000_000, 9_000_000, 19_999_999];
    const CHANGED_BYTES: usize = 1000;

    fn new() -> Self {
        let mut world = World::new();
        let mut chance = Random::new(11);
        let mut content: Vec<u8> = (0..Self::BYTES).map(|_| chance.below(256) as u8).collect();
        world.has_weights(&content);
        let old = world.dir.path().join("old");
        world.push().unwrap();
        world.fetch(&old).unwrap();
        for at in Self::CHANGES {
            content[at..at + Self::CHANGED_BYTES].iter_mut().for_each(|byte| *byte ^= 1);
        }
        world.has_weights(&content);
        world.push().unwrap();
        let local = Offer::local(&[sealed(&old, &["deep/weights.bin"])]);
        let new = world.dir.path().join("new");
        Self { world, local, new }
    }

    fn fetch(&self) -> Result<Fetched, PullError> {
        let found = self.world.offer(Key::Content(self.world.statement.key))?.unwrap();
        found.fetch(&self.world.server, &self.local, (&self.new, None), &mut |_| true)
    }

    /// Fetches all of it anew, by a server that gives out parts like this.
    fn anew(&self, parts: Parts) -> Fetched {
        let _ = fs::remove_dir_all(&self.new);
        self.world.server.parts.set(parts);
        self.world.server.begin(0);
        let fetched = self.fetch().unwrap();
        self.world.check(&self.new);
        let other_files = 900;
        assert_eq!(fetched.bytes + fetched.local, Self::BYTES as u64 + other_files);
        fetched
    }
}

/// Of chunks that are new only the pieces come that are, and whatever a server sends for them is compared.
#[test]
fn of_a_large_file_only_what_changed_is_fetched() {
    let version = LargeVersion::new();
    let whole_chunks = version.anew(Parts::Not).bytes;
    let pieces = version.anew(Parts::AsTheyAre).bytes;
    let most = LargeVersion::CHANGES.len() * 2 * PIECE_BYTES + 900;
    assert!(pieces <= most as u64 && 4 * pieces < whole_chunks, "{pieces}, {whole_chunks}");
    // With the list of pieces, of eight bytes each, and what is asked for in any case.
    let moved = version.world.server.moved.get();
    assert!(moved < pieces + 20_000, "{moved}");
    for wrong in [Parts::Wrong, Parts::Missing] {
        assert_eq!(version.anew(wrong).bytes, whole_chunks);
    }
    // A list that is lost costs what it would have saved.
    version.world.forge(|server, entry| {
        server.blobs.borrow_mut().remove(&entry.pieces.unwrap().digest);
    });
    assert_eq!(version.anew(Parts::AsTheyAre).bytes, whole_chunks);
}

#[test]
fn a_pull_of_pieces_that_is_cut_short_anywhere_is_gone_on_with() {
    let version = LargeVersion::new();
    let server = &version.world.server;
    server.parts.set(Parts::AsTheyAre);
    for call in 1.. {
        let _ = fs::remove_dir_all(&version.new);
        server.begin(call);
        let first = version.fetch();
        let calls = server.calls.get();
        server.begin(0);
        if first.is_err() {
            version.fetch().unwrap();
        }
        version.world.check(&version.new);
        if calls < call {
            assert!(call > 5, "{call}");
            break;
        }
    }
}
