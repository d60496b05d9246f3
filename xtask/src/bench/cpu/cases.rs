//! Lists what is measured, and what each case is held to.
//!
//! A case is a model in one type of weights, doing one kind of work with some threads.  Knows nothing
//! of files or processes.

/// A decoder: the name of its published sizes, and of the synthetic checkpoint that has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decoder {
    pub(super) name: &'static str,
    pub(super) checkpoint: &'static str,
}

const SMALL: Decoder = Decoder { name: "qwen2.5-0.5b", checkpoint: "internvl3-1b" };
const MIDDLE: Decoder = Decoder { name: "qwen2.5-1.5b", checkpoint: "internvl3-2b" };
const QWEN3: Decoder = Decoder { name: "qwen3-1.7b", checkpoint: "internvl3_5-2b" };
/// The checkpoint whose vision tower is InternViT-300M for pictures of 448 by 448.
pub(super) const TOWER: Decoder = Decoder { name: "internvit-300m", checkpoint: "internvl3-1b" };

/// The type of a decoder's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weights {
    /// 4 bits in groups of 32, the head 8.
    Q4,
    /// 8 bits in groups of 32.
    Q8,
    Bf16,
}

impl Weights {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Q4 => "q4",
            Self::Q8 => "q8",
            Self::Bf16 => "bf16",
        }
    }
}

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// A prompt of `prefill` tokens for each slot, then `decode` steps of one token a slot.
    Text { decoder: Decoder, weights: Weights, prefill: usize, decode: usize, slots: usize },
    /// One picture, a few times, by our engine of this precision.
    Pictures { precision: &'static str },
}

/// Work done with some threads, and what is promised of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) work: Work,
    pub(super) threads: usize,
    pub(super) targets: Targets,
}

/// Shares of what the best rival does; nothing where nothing is promised.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Targets {
    /// Prompt tokens a second, at least.
    pub(super) prefill_min: Option<f64>,
    /// Tokens or pictures a second, at least.
    pub(super) speed_min: Option<f64>,
    /// Peak resident memory, at most.
    pub(super) rss_max: Option<f64>,
    /// Decoding as a share of what memory gives, at least; with two threads.
    pub(super) bound_min: Option<f64>,
}

/// Thread counts of every case.
const THREADS: [usize; 2] = [1, 2];
/// Slots of the batched cases.
const SLOTS: usize = 8;
/// The longest a slot may grow, on both sides.
pub(super) const LONGEST: usize = 512;
/// A picture's tokens and a question.
const PREFILL: usize = 356;

const fn alone(decoder: Decoder, weights: Weights) -> Work {
    Work::Text { decoder, weights, prefill: PREFILL, decode: 64, slots: 1 }
}

const fn together(decoder: Decoder, weights: Weights) -> Work {
    Work::Text { decoder, weights, prefill: 64, decode: 32, slots: SLOTS }
}

/// Every kind of work; each is done with one thread and with two.
pub(super) const WORKS: [Work; 20] = [
    alone(SMALL, Weights::Q4),
    together(SMALL, Weights::Q4),
    alone(SMALL, Weights::Q8),
    together(SMALL, Weights::Q8),
    alone(SMALL, Weights::Bf16),
    together(SMALL, Weights::Bf16),
    alone(MIDDLE, Weights::Q4),
    together(MIDDLE, Weights::Q4),
    alone(MIDDLE, Weights::Q8),
    together(MIDDLE, Weights::Q8),
    alone(MIDDLE, Weights::Bf16),
    together(MIDDLE, Weights::Bf16),
    alone(QWEN3, Weights::Q4),
    together(QWEN3, Weights::Q4),
    alone(QWEN3, Weights::Q8),
    together(QWEN3, Weights::Q8),
    alone(QWEN3, Weights::Bf16),
    together(QWEN3, Weights::Bf16),
    Work::Pictures { precision: "f32" },
    Work::Pictures { precision: "int8" },
];

/// Every case.
pub(super) fn all() -> impl Iterator<Item = Case> {
    let with = |work: Work| {
        let case = move |threads| Case { work, threads, targets: targets(work) };
        THREADS.into_iter().map(case)
    };
    WORKS.into_iter().flat_map(with)
}

fn targets(work: Work) -> Targets {
    let none = Targets::default();
    match work {
        Work::Text { slots, .. } if slots > 1 => Targets { speed_min: Some(1.3), ..none },
        Work::Text { weights: Weights::Q4, .. } => Targets {
            prefill_min: Some(1.0),
            speed_min: Some(1.15),
            rss_max: Some(0.7),
            bound_min: Some(0.8),
        },
        Work::Text { weights: Weights::Q8, .. } => {
            Targets { prefill_min: Some(1.0), speed_min: Some(1.15), rss_max: Some(1.0), ..none }
        }
        Work::Text { .. } => Targets { prefill_min: Some(1.0), rss_max: Some(1.0), ..none },
        // The better of our precisions is what a user takes.
        Work::Pictures { precision: "int8" } => {
            Targets { speed_min: Some(1.0), rss_max: Some(0.5), ..none }
        }
        Work::Pictures { .. } => none,
    }
}

impl Case {
    /// The word for it on the command line and in the report.
    pub(super) fn name(&self) -> String {
        let threads = self.threads;
        match self.work {
            Work::Text { decoder, weights, slots, .. } => {
                let slots = if slots > 1 { format!("-{slots}slots") } else { String::new() };
                format!("{}-{}{slots}-t{threads}", decoder.name, weights.name())
            }
            Work::Pictures { precision } => format!("{}-{precision}-t{threads}", TOWER.name),
        }
    }
}
