//! Keeps on the timeline what the thread of a replica does: its engine's work, and the host's in between.

use std::sync::Arc;
use std::time::{Duration, Instant};

use smelt_backend::Decoder;

use crate::timeline::{Lane, Timeline};

/// Watches one thread, if anybody wants to know.
#[derive(Debug)]
pub(super) struct Watch {
    /// Which of the replicas it is.
    pub(super) at: usize,
    timeline: Option<Arc<Timeline>>,
    /// When the engine was left last, where there was work for it since.
    left: Option<Instant>,
}

impl Watch {
    pub(super) fn new(at: usize, timeline: Option<&Arc<Timeline>>) -> Self {
        Self { at, timeline: timeline.cloned(), left: None }
    }

    /// Has the engine say what its device takes, where somebody wants to know.
    pub(super) fn begin(&self, engine: &mut dyn Decoder) {
        if self.timeline.is_some() {
            engine.time_steps();
        }
    }

    /// There is no work for the engine.
    pub(super) fn rests(&mut self) {
        self.left = None;
    }

    /// The engine did so many of something.
    pub(super) fn did(
        &mut self,
        name: &'static str,
        (start, took): (Instant, Duration),
        count: (&'static str, usize),
        engine: &dyn Decoder,
    ) {
        let Some(timeline) = &self.timeline else { return };
        let end = start + took;
        if let Some(left) = self.left.replace(end) {
            let gap = start.saturating_duration_since(left);
            timeline.add((Lane::Llm(self.at), "host"), left, gap, None);
        }
        timeline.add((Lane::Llm(self.at), name), start, took, Some(count));
        if let Some(on_device) = engine.step_time().map(|time| time.min(took)) {
            timeline.add((Lane::Device(self.at), name), end - on_device, on_device, Some(count));
        }
    }
}
