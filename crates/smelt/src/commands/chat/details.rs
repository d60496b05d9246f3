//! What `smelt chat -v` tells beside the answer: which model speaks and how, and where the time went.

use std::path::Path;

use smelt_runtime::deployment::Deployment;
use smelt_runtime::generate::Answer;
use smelt_runtime::generation::Finish;
use smelt_runtime::sampling::Settings;

use crate::table::{bytes, rate, seconds};

/// Of the deployment in `dir`, before anything is asked.
pub(super) fn of_model(dir: &Path, deployment: &Deployment) -> Vec<String> {
    let (text, kv) = (&deployment.text, deployment.llm.facts().kv);
    let (model, family) = (&text.spec.model, text.spec.family.name());
    let sees = match &text.image_processor {
        Some(image_processor) => {
            let sizes =
                image_processor.grids.iter().map(|grid| format!("{} ({})", grid.size, grid.tokens));
            let sizes = sizes.collect::<Vec<_>>().join(", ");
            format!("sees pictures of {sizes} image tokens")
        }
        None => "reads text alone".to_owned(),
    };
    vec![
        format!("deployment: {}", dir.display()),
        format!("model: {model}, {family}, weights {}, {sees}", text.scheme),
        format!("context: {} tokens, keys and values in {}", text.max_seq_len, kv.word()),
    ]
}

/// Of keys and values, which take so many bytes of memory.
pub(super) fn of_memory(kv_bytes: u64, room: u64) -> String {
    format!("memory: keys and values may take {}, {room} tokens", bytes(kv_bytes))
}

/// Of the choice of tokens.
pub(super) fn of_sampling(settings: &Settings) -> String {
    match settings.is_greedy() {
        true => "sampling: the likeliest token each time, so no seed".to_owned(),
        false => {
            let Settings { temperature, top_k, top_p, min_p, seed, .. } = settings;
            format!(
                "sampling: temperature {temperature}, top-k {top_k}, top-p {top_p}, min-p {min_p}, seed {seed}"
            )
        }
    }
}

/// Of an answer, when it has ended.
pub(super) fn of_answer(answer: &Answer) -> Vec<String> {
    let timing = &answer.timing;
    let per_second = |count: usize, seconds: f64| {
        rate(count as u64, seconds).map_or_else(String::new, |rate| format!(", {rate}"))
    };
    let part = |what: String, count: usize, time: std::time::Duration| {
        let time = time.as_secs_f64();
        format!("{what} in {}{}", seconds(time), per_second(count, time))
    };
    let looked = (answer.tiles > 0).then(|| {
        let what = format!("pictures: {} parts, {} image tokens", answer.tiles, answer.seen.tokens);
        part(what, answer.seen.tokens, timing.vision)
    });
    let prompt = answer.prompt_tokens;
    let read = part(format!("prompt: {prompt} tokens read"), prompt, timing.prefill);
    let steps = timing.decode_steps;
    let said = part(format!("answer: {steps} steps"), steps, timing.decode);
    let end = match answer.finish {
        Finish::Stop => "the model ended it",
        Finish::Text(_) => "a text of --stop ended it",
        Finish::Length => "--max-tokens ended it",
        Finish::Full => "the end of the context ended it",
    };
    looked.into_iter().chain([read, format!("{said}; {end}")]).collect()
}
