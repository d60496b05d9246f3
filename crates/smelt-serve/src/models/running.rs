//! Holds what answers for a model: a language model, or an encoder of texts or of pairs.

use smelt_runtime::embed::EmbedService;
use smelt_runtime::score::CrossEncoder;
use smelt_runtime::service::{ReplicaState, Service};
use smelt_runtime::tokenizer::Tokenizer;

use crate::upstream::Upstream;

/// The threads of a model that is loaded.
#[derive(Clone, Debug)]
pub enum Running {
    /// It speaks, and sees if it has an engine for that.
    Speaks(Service),
    /// It gives embeddings of texts.
    Embeds(EmbedService),
    /// It scores pairs of texts, or classifies texts.
    Scores(EmbedService<CrossEncoder>),
    /// Another program's server answers.
    Relays(Upstream),
}

impl Running {
    /// Requests that were taken and have not ended.
    pub(crate) fn live(&self) -> usize {
        match self {
            Self::Speaks(service) => service.live(),
            Self::Embeds(service) => service.live(),
            Self::Scores(service) => service.live(),
            Self::Relays(upstream) => upstream.live(),
        }
    }

    /// Whether this is the only handle.
    pub(crate) fn is_last(&self) -> bool {
        match self {
            Self::Speaks(service) => service.is_last(),
            Self::Embeds(service) => service.is_last(),
            Self::Scores(service) => service.is_last(),
            Self::Relays(upstream) => upstream.is_last(),
        }
    }

    /// Whether the threads are there.
    pub(crate) fn is_alive(&self) -> bool {
        match self {
            Self::Speaks(service) => service.is_alive(),
            Self::Embeds(service) => service.is_alive(),
            Self::Scores(service) => service.is_alive(),
            Self::Relays(upstream) => upstream.is_alive(),
        }
    }

    /// Takes nothing new from now on; what was taken is answered.
    pub(crate) fn drain(&self) {
        match self {
            Self::Speaks(service) => service.drain(),
            Self::Embeds(service) => service.drain(),
            Self::Scores(service) => service.drain(),
            Self::Relays(upstream) => upstream.close(),
        }
    }

    /// Whether it lives in a device's own memory; encoders live in the machine's.
    pub(crate) fn is_on_device(&self) -> bool {
        match self {
            Self::Speaks(service) => service.is_on_device(),
            Self::Embeds(_) | Self::Scores(_) | Self::Relays(_) => false,
        }
    }

    /// How each of its replicas stands; none of what another program answers.
    pub(crate) fn replicas(&self) -> Vec<ReplicaState> {
        match self {
            Self::Speaks(service) => service.replicas(),
            Self::Embeds(service) => service.replicas(),
            Self::Scores(service) => service.replicas(),
            Self::Relays(_) => Vec::new(),
        }
    }

    /// Bytes of the machine's memory that it may take besides what it has; what encoders compute in is gone behind each text.
    pub(crate) fn may_take_bytes(&self) -> u64 {
        match self {
            Self::Speaks(service) => service.may_take_bytes(),
            Self::Embeds(_) | Self::Scores(_) => 0,
            // What its processes take is theirs.
            Self::Relays(_) => 0,
        }
    }

    /// What it has room for, in words.
    pub(crate) fn room(&self) -> String {
        match self {
            Self::Speaks(service) => {
                let plan = service.plan();
                format!("{} contexts of {} tokens at once", plan.batch_max, plan.context_max)
            }
            Self::Embeds(service) => {
                format!("texts of {} tokens", service.encoder().spec().max_tokens)
            }
            Self::Scores(service) => {
                format!("pairs of {} tokens", service.encoder().spec().max_tokens)
            }
            Self::Relays(upstream) => {
                let spec = upstream.spec();
                format!("{} requests at once, passed on to {}", spec.slots, spec.server[0])
            }
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
            Self::Relays(_) => (
                "is answered by another program's server",
                "/v1/chat/completions, /v1/completions or /v1/embeddings",
            ),
        }
    }

    /// What it takes, in words.
    pub(crate) fn takes(&self) -> &'static [&'static str] {
        match self {
            Self::Speaks(service) if service.text().image_processor.is_some() => {
                &["text", "image", "video"]
            }
            Self::Speaks(_) | Self::Embeds(_) | Self::Scores(_) | Self::Relays(_) => &["text"],
        }
    }

    /// How its weights are rounded, by the word pipelines use, where it is made known.
    pub(crate) fn scheme(&self) -> Option<&str> {
        match self {
            Self::Speaks(service) => Some(&service.text().scheme),
            Self::Embeds(_) | Self::Scores(_) | Self::Relays(_) => None,
        }
    }

    /// What turns its texts into tokens, where that is not another program's affair.
    pub(crate) fn tokenizer(&self) -> Option<&Tokenizer> {
        match self {
            Self::Speaks(service) => Some(&service.text().tokenizer),
            Self::Embeds(service) => Some(service.encoder().tokenizer()),
            Self::Scores(service) => Some(service.encoder().tokenizer()),
            Self::Relays(_) => None,
        }
    }

    /// Most tokens of a prompt and its answer, or of a text, where that is known.
    pub(crate) fn tokens_max(&self) -> Option<usize> {
        match self {
            // What keys and values have room for, which may be less than the model takes.
            Self::Speaks(service) => Some(service.plan().context_max as usize),
            Self::Embeds(service) => Some(service.encoder().spec().max_tokens),
            Self::Scores(service) => Some(service.encoder().spec().max_tokens),
            Self::Relays(_) => None,
        }
    }
}
