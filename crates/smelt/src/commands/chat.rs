//! `smelt chat`: asks a built model about text and pictures.

use std::time::{SystemTime, UNIX_EPOCH};

use smelt_runtime::deployment::Deployment;
use smelt_runtime::generate::{Answer, Request, generate};
use smelt_runtime::image::Picture;
use smelt_runtime::prompt::Turn;

use super::target;
use crate::exit::{Exit, Failed};
use crate::flags::ChatFlags;
use crate::say::{answer, tell};
use crate::table;

pub(crate) fn run(flags: &ChatFlags) -> Result<Exit, Failed> {
    if flags.max_tokens == 0 {
        return Err(Failed::usage("--max-tokens must be at least 1"));
    }
    let dir = target::directory(&flags.target, &flags.sets)?;
    let pictures: Vec<Picture> = flags
        .image
        .iter()
        .map(|path| Picture::open(path))
        .collect::<Result<_, _>>()
        .map_err(Failed::model)?;
    let mut deployment = Deployment::open(&dir).map_err(Failed::model)?;
    let turn = Turn::from_marked("user", &flags.prompt, pictures.len()).map_err(Failed::usage)?;
    let request = Request {
        turns: &[turn],
        pictures: &pictures,
        new_tokens_max: flags.max_tokens,
        now_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
    };
    let mut said = Ok(());
    let result = generate(&mut deployment, &request, &mut |text| {
        // Told at the end, since the answer cannot be stopped half-way.
        said = std::mem::replace(&mut said, Ok(())).and_then(|()| answer(text));
    });
    let result = result.map_err(Failed::model)?;
    said.and_then(|()| answer("\n"))?;
    tell(summary(&result));
    Ok(Exit::Ok)
}

/// What the answer cost.
fn summary(answer: &Answer) -> String {
    let timing = &answer.timing;
    let rate = timing
        .tokens_per_second()
        .map_or_else(String::new, |rate| format!(", then {rate:.1} tokens/s"));
    format!(
        "{} prompt tokens ({} tiles), {} answered; first token after {}{rate}",
        answer.prompt_tokens,
        answer.tiles,
        answer.tokens.len(),
        table::seconds(timing.first_token.as_secs_f64()),
    )
}
