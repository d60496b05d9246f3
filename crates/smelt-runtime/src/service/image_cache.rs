//! Says which picture the vision engine looks at next, and keeps what it said of earlier ones.
//!
//! Requests that show the same picture share its embeddings, also while they are being made.  Parts go
//! to the engine one at a time, those of the picture with the fewest left first ([`line`]).  Knows no
//! engine and no thread.
//!
//! [`line`]: crate::schedule::next_in_line

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use smelt_backend::Features;

use crate::identity::Identity;
use crate::image::{View, VisionInput};
use crate::schedule::{Standing, TaskId, is_passed, next_in_line};
use crate::vision::Embedded;

/// A picture that is being looked at.
#[derive(Debug)]
struct Pending {
    parts: Vec<VisionInput>,
    order: u64,
    passed: u32,
    so_far: Embedded,
    seen: usize,
    /// Requests that show it.
    wanted_by: Vec<TaskId>,
}

impl Pending {
    fn standing(&self) -> Standing {
        let left = self.parts.len() - self.seen;
        Standing { left, order: self.order, passed: self.passed }
    }
}

/// What the engine said of a picture.
#[derive(Debug)]
struct Kept {
    embedded: Arc<Embedded>,
    used: u64,
}

/// Pictures to look at, and pictures that were looked at.
#[derive(Debug)]
pub(super) struct ImageCache {
    pending: BTreeMap<Identity, Pending>,
    kept: HashMap<Identity, Kept>,
    kept_bytes: usize,
    /// Embeddings of pictures that nobody shows now may take so much.
    bytes_max: usize,
    clock: u64,
}

impl ImageCache {
    pub(super) fn new(bytes_max: usize) -> Self {
        let (pending, kept) = Default::default();
        Self { pending, kept, kept_bytes: 0, bytes_max, clock: 0 }
    }

    /// Bytes of the embeddings that are kept.
    pub(super) fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    /// Pictures that are still to be looked at.
    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// What was said of the view, if it was looked at; else it will be, for `task`.
    pub(super) fn want(&mut self, task: TaskId, view: &mut View) -> Option<Arc<Embedded>> {
        self.clock += 1;
        if let Some(kept) = self.kept.get_mut(&view.identity) {
            kept.used = self.clock;
            return Some(Arc::clone(&kept.embedded));
        }
        let pending = self.pending.entry(view.identity).or_insert_with(|| Pending {
            parts: std::mem::take(&mut view.parts),
            order: self.clock,
            passed: 0,
            so_far: Embedded::default(),
            seen: 0,
            wanted_by: Vec::new(),
        });
        pending.wanted_by.push(task);
        None
    }

    /// The task does not wait any more; what only it wanted is not looked at.
    pub(super) fn leave(&mut self, task: TaskId) {
        self.pending.retain(|_, pending| {
            pending.wanted_by.retain(|other| *other != task);
            !pending.wanted_by.is_empty()
        });
    }

    /// The view of which a part is to be looked at now.
    pub(super) fn next(&mut self) -> Option<Identity> {
        let line: Vec<Standing> = self.pending.values().map(Pending::standing).collect();
        let place = next_in_line(&line)?;
        let order = line[place].order;
        for pending in self.pending.values_mut() {
            pending.passed += u32::from(is_passed(pending.order, order));
        }
        let (identity, next) = self.pending.iter_mut().find(|(_, one)| one.order == order)?;
        next.passed = 0;
        Some(*identity)
    }

    /// The next part of a view that is still to be looked at.
    pub(super) fn part(&self, identity: Identity) -> Option<&VisionInput> {
        let pending = self.pending.get(&identity)?;
        pending.parts.get(pending.seen)
    }

    /// How many parts were looked at of a view that is still to be looked at.
    pub(super) fn seen(&self, identity: Identity) -> usize {
        self.pending.get(&identity).map_or(0, |pending| pending.seen)
    }

    /// What was said of the next part of a view.  Gives the whole and who waits for it when that was
    /// the last one; a view that nobody wants any more is forgotten.
    pub(super) fn saw(
        &mut self,
        identity: Identity,
        part: Features,
    ) -> Option<(Arc<Embedded>, Vec<TaskId>)> {
        let pending = self.pending.get_mut(&identity)?;
        pending.so_far.push(part);
        pending.seen += 1;
        if pending.seen < pending.parts.len() {
            return None;
        }
        let Pending { so_far, wanted_by, .. } = self.pending.remove(&identity)?;
        let embedded = Arc::new(so_far);
        self.keep(identity, &embedded);
        Some((embedded, wanted_by))
    }

    /// The engine failed on a view: it is forgotten.  Gives who waited for it.
    pub(super) fn fail(&mut self, identity: Identity) -> Vec<TaskId> {
        self.pending.remove(&identity).map_or_else(Vec::new, |pending| pending.wanted_by)
    }

    /// Keeps embeddings, in place of those that were of no use for the longest time.
    fn keep(&mut self, identity: Identity, embedded: &Arc<Embedded>) {
        let bytes = embedded.bytes();
        if bytes > self.bytes_max {
            return;
        }
        while self.kept_bytes + bytes > self.bytes_max {
            let oldest = self.kept.iter().min_by_key(|(_, kept)| kept.used);
            let Some(oldest) = oldest.map(|(identity, _)| *identity) else { break };
            if let Some(gone) = self.kept.remove(&oldest) {
                self.kept_bytes -= gone.embedded.bytes();
            }
        }
        self.clock += 1;
        let kept = Kept { embedded: Arc::clone(embedded), used: self.clock };
        self.kept_bytes += bytes;
        if let Some(before) = self.kept.insert(identity, kept) {
            self.kept_bytes -= before.embedded.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use smelt_backend::HostFeatures;

    use super::*;

    fn view(number: u64, parts: usize) -> View {
        let part = |at| VisionInput { grid: 0, frames: vec![vec![number as u8, at as u8]] };
        View { identity: of(number), parts: (0..parts).map(part).collect(), tokens: parts }
    }

    fn of(number: u64) -> Identity {
        [number, 0]
    }

    fn features(embeds: Vec<f32>) -> Features {
        HostFeatures { embeds, deepstack: Vec::new() }.into_features(1)
    }

    fn numbers(embedded: &Embedded) -> Vec<f32> {
        let spans = embedded.spans(0..embedded.tokens());
        spans.flat_map(|span| span.features.to_host().unwrap().embeds).collect()
    }

    /// Looks at parts until all are seen: the order of views, and who was given which whole.
    fn look(image_cache: &mut ImageCache) -> (Vec<u64>, Vec<(u64, Vec<TaskId>)>) {
        let (mut order, mut given) = (Vec::new(), Vec::new());
        while let Some(identity) = image_cache.next() {
            let number = identity[0];
            order.push(number);
            let part = image_cache.part(identity).unwrap();
            let embeds = part.frames[0].iter().copied().map(f32::from).collect();
            if let Some((whole, tasks)) = image_cache.saw(identity, features(embeds)) {
                let embeds = numbers(&whole);
                let numbers = embeds.chunks(2).enumerate();
                assert!(numbers.clone().count() > 0);
                assert!({ numbers }.all(|(at, pair)| *pair == [number as f32, at as f32]));
                given.push((number, tasks));
            }
        }
        (order, given)
    }

    #[test]
    fn the_picture_with_fewest_parts_left_is_next() {
        let mut image_cache = ImageCache::new(1000);
        for (task, view) in [(1, view(70, 3)), (2, view(50, 1)), (3, view(60, 2))] {
            assert!(image_cache.want(task, &mut { view }).is_none());
        }
        let (order, given) = look(&mut image_cache);
        assert_eq!(order, [50, 60, 60, 70, 70, 70]);
        assert_eq!(given, [(50, vec![2]), (60, vec![3]), (70, vec![1])]);
    }

    #[test]
    fn a_picture_is_looked_at_once() {
        let mut image_cache = ImageCache::new(1000);
        assert!(image_cache.want(1, &mut view(7, 2)).is_none());
        assert!(image_cache.want(2, &mut view(7, 2)).is_none());
        assert_eq!(look(&mut image_cache), (vec![7, 7], vec![(7, vec![1, 2])]));
        let known = image_cache.want(3, &mut view(7, 2)).unwrap();
        assert_eq!(numbers(&known), [7.0, 0.0, 7.0, 1.0]);
        assert_eq!((look(&mut image_cache), image_cache.kept_bytes()), ((vec![], vec![]), 16));
    }

    #[test]
    fn what_nobody_wants_is_not_looked_at() {
        let mut image_cache = ImageCache::new(1000);
        image_cache.want(1, &mut view(7, 2));
        image_cache.want(2, &mut view(8, 1));
        image_cache.want(3, &mut view(8, 1));
        image_cache.leave(1);
        image_cache.leave(2);
        assert_eq!(look(&mut image_cache), (vec![8], vec![(8, vec![3])]));
        image_cache.want(4, &mut view(9, 1));
        assert_eq!(image_cache.next(), Some(of(9)));
        assert_eq!(image_cache.fail(of(9)), [4]);
        assert!(image_cache.saw(of(9), features(vec![9.0, 0.0])).is_none());
    }

    #[test]
    fn what_was_of_no_use_for_the_longest_time_is_forgotten() {
        let mut image_cache = ImageCache::new(24);
        for number in [1, 2, 3] {
            image_cache.want(number, &mut view(number, 1));
            look(&mut image_cache);
        }
        assert!(image_cache.want(9, &mut view(1, 1)).is_some());
        image_cache.want(9, &mut view(4, 1));
        look(&mut image_cache);
        assert!(image_cache.want(9, &mut view(2, 1)).is_none(), "2 made room for 4");
        assert!(image_cache.want(9, &mut view(1, 1)).is_some());
        image_cache.want(9, &mut view(5, 9));
        look(&mut image_cache);
        assert_eq!(image_cache.kept_bytes(), 24, "too large to be kept at all");
    }
}
