//! `smelt embed`: gives the embeddings of texts by a built encoder.

use serde_json::json;
use smelt_runtime::embed::Embedding;

use super::consent::Consent;
use super::{open, target};
use crate::cards;
use crate::console::answer;
use crate::exit::{Exit, Failed};
use crate::flags::EmbedFlags;

pub(crate) fn run(flags: &EmbedFlags) -> Result<Exit, Failed> {
    cards::want(flags.device);
    let dir = target::ready(&flags.target, &flags.sets, Consent::of(flags.yes))?;
    open::expect(&dir, "embed", &flags.target)?;
    let encoder = open::shown(&dir, |loading| open::encoder(&dir, loading))?;
    let mut embeddings = Vec::new();
    for text in &flags.texts {
        let embedding = encoder.embed(text).map_err(Failed::model)?;
        if flags.json {
            embeddings.push(embedding);
        } else {
            answer(format_args!("{}\n", json!(embedding.row)))?;
        }
    }
    if flags.json {
        let of = |(text, embedding): (&String, &Embedding)| json!({ "text": text, "tokens": embedding.tokens, "embedding": embedding.row });
        let all: Vec<_> = flags.texts.iter().zip(&embeddings).map(of).collect();
        answer(format_args!("{}\n", json!({ "model": encoder.spec().model, "embeddings": all })))?;
    }
    Ok(Exit::Ok)
}
