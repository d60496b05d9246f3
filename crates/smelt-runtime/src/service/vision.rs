//! The thread that owns the vision engine: looks at the pictures of requests, then hands them on.
//!
//! It runs beside the language model's thread, so that those who show nothing wait for no picture.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use super::event_stream::{Event, Failure};
use super::image_cache::ImageCache;
use super::replicas::Replicas;
use super::{Job, Over, Shared, ToVision};
use crate::identity::Identity;
use crate::image::View;
use crate::schedule::TaskId;
use crate::timeline::{Lane, Timeline};
use crate::vision::{Embedded, Vision};

/// A request whose pictures are not all seen yet.
struct Looking {
    job: Box<Job>,
    pictures: Vec<RequestImage>,
    /// Bytes of pixels it brought.
    pixel_bytes: usize,
}

struct RequestImage {
    identity: Identity,
    tokens: usize,
    /// Parts that engines look at.
    parts: usize,
    embedded: Option<Arc<Embedded>>,
}

pub(super) struct VisionThread {
    vision: Vision,
    image_cache: ImageCache,
    inbox: Receiver<ToVision>,
    replicas: Arc<Replicas>,
    shared: Arc<Shared>,
    timeline: Option<Arc<Timeline>>,
    looking: Vec<Looking>,
}

impl VisionThread {
    pub(super) fn new(
        vision: Vision,
        cache_bytes: usize,
        (inbox, replicas): (Receiver<ToVision>, Arc<Replicas>),
        (shared, timeline): (Arc<Shared>, Option<Arc<Timeline>>),
    ) -> Self {
        let (image_cache, looking) = (ImageCache::new(cache_bytes), Vec::new());
        Self { vision, image_cache, inbox, replicas, shared, timeline, looking }
    }

    /// Looks at pictures until it is told to stop.
    pub(super) fn run(mut self) {
        while self.receive() {
            self.sweep();
            self.look();
            self.publish();
        }
        for looking in std::mem::take(&mut self.looking) {
            self.let_go(&looking);
            looking.job.asked.sender.send(Event::Failed(Failure::Stopped));
        }
    }

    /// Takes what has come; waits for something if there is nothing to look at.  Returns whether to go on.
    fn receive(&mut self) -> bool {
        if self.image_cache.pending() == 0 {
            match self.inbox.recv() {
                Ok(ToVision::Look(job, views)) => self.take(job, views),
                Ok(ToVision::Stop) | Err(_) => return false,
            }
        }
        while let Ok(message) = self.inbox.try_recv() {
            match message {
                ToVision::Look(job, views) => self.take(job, views),
                ToVision::Stop => return false,
            }
        }
        true
    }

    fn take(&mut self, job: Box<Job>, mut views: Vec<View>) {
        let pixel_bytes = views.iter().map(View::bytes).sum();
        let first = job.first;
        let picture = |view: &mut View| {
            let parts = view.parts.len();
            let embedded = self.image_cache.want(first, view);
            RequestImage { identity: view.identity, tokens: view.tokens, parts, embedded }
        };
        let pictures: Vec<RequestImage> = views.iter_mut().map(picture).collect();
        let cached = pictures.iter().filter(|picture| picture.embedded.is_some()).count();
        self.shared.stats().pictures_cached += cached as u64;
        self.looking.push(Looking { job, pictures, pixel_bytes });
        self.hand_on(&[first]);
    }

    /// Lets those go that need no answer.
    fn sweep(&mut self) {
        let now = Instant::now();
        let over = |looking: &mut Looking| looking.job.is_over(now).is_some();
        let over: Vec<Looking> = self.looking.extract_if(.., over).collect();
        for looking in over {
            self.image_cache.leave(looking.job.first);
            self.let_go(&looking);
            let answers = looking.job.generations.len() as u64;
            match looking.job.is_over(now) {
                Some(Over::Late) => {
                    self.shared.stats().endings.deadline += answers;
                    looking.job.asked.sender.send(Event::Failed(Failure::Deadline));
                }
                _ => self.shared.stats().endings.cancelled += answers,
            }
        }
    }

    /// Runs the engine over the part that is next.
    fn look(&mut self) {
        let Some(identity) = self.image_cache.next() else { return };
        self.tell_of(identity);
        let Some(part) = self.image_cache.part(identity) else { return };
        let start = Instant::now();
        let features = self.vision.encode(part);
        let took = start.elapsed();
        self.shared.stats().part_seconds.observe_time(took);
        if let Some(timeline) = &self.timeline {
            timeline.add((Lane::Vision, "vision"), start, took, None);
        }
        match features {
            Ok(features) => {
                if let Some((whole, tasks)) = self.image_cache.saw(identity, features) {
                    self.seen(identity, &whole);
                    self.hand_on(&tasks);
                }
            }
            Err(error) => {
                let why = format!("the vision engine failed: {error}");
                let tasks = self.image_cache.fail(identity);
                self.fail(&tasks, &why);
            }
        }
    }

    /// Tells all that show a picture that its next part is looked at now, and how far they are.
    fn tell_of(&self, identity: Identity) {
        let shows = |looking: &&Looking| {
            let mut pictures = looking.pictures.iter();
            pictures.any(|picture| picture.identity == identity && picture.embedded.is_none())
        };
        let seen = |picture: &RequestImage| match picture.embedded {
            Some(_) => picture.parts,
            None => self.image_cache.seen(picture.identity),
        };
        for Looking { job, pictures, .. } in self.looking.iter().filter(shows) {
            let part = pictures.iter().map(seen).sum::<usize>() + 1;
            let parts = pictures.iter().map(|picture| picture.parts).sum();
            job.asked.sender.marks().once(|times| &mut times.looked);
            job.asked.sender.send(Event::Looking { part, parts });
        }
    }

    /// Gives a picture's embeddings to all that show it.
    fn seen(&mut self, identity: Identity, whole: &Arc<Embedded>) {
        self.shared.stats().pictures_seen += 1;
        let pictures = self.looking.iter_mut().flat_map(|looking| &mut looking.pictures);
        for picture in pictures.filter(|picture| picture.identity == identity) {
            picture.embedded = Some(Arc::clone(whole));
        }
    }

    /// Hands those of `tasks` on whose pictures are all seen.
    fn hand_on(&mut self, tasks: &[TaskId]) {
        let is_ready = |looking: &mut Looking| {
            let is_asked = tasks.contains(&looking.job.first);
            is_asked && looking.pictures.iter().all(|picture| picture.embedded.is_some())
        };
        let ready: Vec<Looking> = self.looking.extract_if(.., is_ready).collect();
        for mut looking in ready {
            self.let_go(&looking);
            looking.job.asked.sender.marks().once(|times| &mut times.seen);
            for RequestImage { embedded, tokens, .. } in looking.pictures {
                let embedded = embedded.expect("all of them are seen");
                looking.job.asked.images.push(embedded, tokens);
            }
            self.replicas.send(looking.job);
        }
    }

    fn fail(&mut self, tasks: &[TaskId], why: &str) {
        let is_meant = |looking: &mut Looking| tasks.contains(&looking.job.first);
        let failed: Vec<Looking> = self.looking.extract_if(.., is_meant).collect();
        for looking in failed {
            self.image_cache.leave(looking.job.first);
            self.let_go(&looking);
            self.shared.stats().endings.failed += looking.job.generations.len() as u64;
            looking.job.asked.sender.send(Event::Failed(Failure::Engine(why.to_owned())));
        }
    }

    /// Its pixels wait no longer.
    fn let_go(&self, looking: &Looking) {
        self.shared.pixel_bytes.fetch_sub(looking.pixel_bytes, Ordering::AcqRel);
    }

    fn publish(&self) {
        let mut stats = self.shared.stats();
        stats.looking = self.looking.len();
        stats.picture_cache_bytes = self.image_cache.kept_bytes();
    }
}
