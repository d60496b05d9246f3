//! `smelt rerank`: scores texts by how well they answer a query, by a built cross-encoder.

use serde_json::json;

use super::consent::Consent;
use super::{open, target};
use crate::console::answer;
use crate::exit::{Exit, Failed};
use crate::flags::RerankFlags;

pub(crate) fn run(flags: &RerankFlags) -> Result<Exit, Failed> {
    let dir = target::ready(&flags.target, &flags.sets, Consent::of(flags.yes))?;
    open::expect(&dir, "rerank", &flags.target)?;
    let encoder = open::shown(&dir, |loading| open::cross_encoder(&dir, loading))?;
    let mut scores = Vec::new();
    for (index, text) in flags.texts.iter().enumerate() {
        let score = encoder.scores([&flags.query, text]).map_err(Failed::model)?;
        scores.push((index, score[0], text));
    }
    scores.sort_by(|(_, one, _), (_, other, _)| other.total_cmp(one));
    if flags.json {
        let one = |&(index, score, text): &(usize, f32, &String)| json!({ "index": index, "relevance_score": score, "text": text });
        let results: Vec<_> = scores.iter().map(one).collect();
        let all =
            json!({ "model": encoder.spec().model, "query": flags.query, "results": results });
        answer(format_args!("{all}\n"))?;
    } else {
        for (_, score, text) in scores {
            answer(format_args!("{score:.4}\t{text}\n"))?;
        }
    }
    Ok(Exit::Ok)
}
