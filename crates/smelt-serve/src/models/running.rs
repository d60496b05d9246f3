//! Holds what answers for a model: a language model, or an encoder of texts or of pairs.

use smelt_runtime::embed::EmbedService;
use smelt_runtime::handle::Gate;
use smelt_runtime::score::CrossEncoder;
use smelt_runtime::service::{ReplicaState, Service};
use smelt_runtime::tokenizer::Tokenizer;

/// The threads of a model that is loaded.
#[derive(Clone, Debug)]
pub enum Running {
    /// It speaks, and sees if it has an engine for that.
    Speaks(Service),
    /// It gives embeddings of texts.
    Embeds(EmbedService),
    /// It scores pairs of texts, or classifies texts.
    Scores(EmbedService<CrossEncoder>),
}

impl Running {
    fn gate(&self) -> &Gate {
        match self {
            Self::Speaks(service) => service.gate(),
            Self::Embeds(service) => service.gate(),
            Self::Scores(service) => service.gate(),
        }
    }

    /// Requests that were taken and have not ended.
    pub(crate) fn live(&self) -> usize {
        self.gate().live()
    }

    /// Whether this is the only handle.
    pub(crate) fn is_last(&self) -> bool {
        match self {
            Self::Speaks(service) => service.is_last(),
            Self::Embeds(service) => service.is_last(),
            Self::Scores(service) => service.is_last(),
        }
    }

    /// Whether the threads are there.
    pub(crate) fn is_alive(&self) -> bool {
        match self {
            Self::Speaks(service) => service.is_alive(),
            Self::Embeds(service) => service.is_alive(),
            Self::Scores(service) => service.is_alive(),
        }
    }

    /// Takes nothing new from now on; what was taken is answered.
    pub(crate) fn drain(&self) {
        self.gate().close();
    }

    /// Whether it lives in a device's own memory; encoders live in the machine's.
    pub(crate) fn is_on_device(&self) -> bool {
        match self {
            Self::Speaks(service) => service.is_on_device(),
            Self::Embeds(_) | Self::Scores(_) => false,
        }
    }

    /// How each of its replicas stands; none of encoders, which are one.
    pub(crate) fn replicas(&self) -> Vec<ReplicaState> {
        match self {
            Self::Speaks(service) => service.replicas(),
            Self::Embeds(_) | Self::Scores(_) => Vec::new(),
        }
    }

    /// Bytes of the machine's memory that it may take besides what it has; what encoders compute in is gone behind each text.
    pub(crate) fn may_take_bytes(&self) -> u64 {
        match self {
            Self::Speaks(service) => service.may_take_bytes(),
            Self::Embeds(_) | Self::Scores(_) => 0,
        }
    }

    /// What it has room for, in words.
    pub(crate) fn room(&self) -> String {
        match self {
            Self::Speaks(service) => {
                let plan = service.plan();
                format!("{} contexts of {} tokens at once", plan.batch_max, plan.context_max)
            }
            Self::Embeds(_) => format!("texts of {} tokens", self.tokens_max()),
            Self::Scores(_) => format!("pairs of {} tokens", self.tokens_max()),
        }
    }

    /// What it does, and where it is asked to.
    pub(crate) fn does(&self) -> (&'static str, &'static str) {
        match self {
            Self::Speaks(_) => ("continues conversations", "/v1/chat/completions"),
            Self::Embeds(_) => ("gives embeddings of texts", "/v1/embeddings"),
            Self::Scores(service) if service.encoder().spec().classifies() => {
                ("classifies texts", "/predict")
            }
            Self::Scores(_) => ("scores pairs of texts", "/v1/rerank or /v1/score"),
        }
    }

    /// What it takes, in words.
    pub(crate) fn takes(&self) -> &'static [&'static str] {
        match self {
            Self::Speaks(service) if service.text().image_processor.is_some() => {
                &["text", "image", "video"]
            }
            Self::Speaks(_) | Self::Embeds(_) | Self::Scores(_) => &["text"],
        }
    }

    /// How its weights are rounded, by the word pipelines use, where it is made known.
    pub(crate) fn scheme(&self) -> Option<&str> {
        match self {
            Self::Speaks(service) => Some(&service.text().scheme),
            Self::Embeds(_) | Self::Scores(_) => None,
        }
    }

    /// What turns its texts into tokens.
    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        match self {
            Self::Speaks(service) => &service.text().tokenizer,
            Self::Embeds(service) => service.encoder().tokenizer(),
            Self::Scores(service) => service.encoder().tokenizer(),
        }
    }

    /// Most tokens of a prompt and its answer, or of a text.
    pub(crate) fn tokens_max(&self) -> usize {
        match self {
            // What keys and values have room for, which may be less than the model takes.
            Self::Speaks(service) => service.plan().context_max as usize,
            Self::Embeds(service) => service.encoder().spec().max_tokens,
            Self::Scores(service) => service.encoder().spec().max_tokens,
        }
    }
}
