//! `smelt chat`: asks a built model about text and pictures, once or in a conversation.

mod behind;
mod details;
mod looking;
mod talk;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use smelt_backend::{KvOptions, MemoryPlace, RunError};
use smelt_exec::served;
use smelt_runtime::deployment::{Deployment, Text};
use smelt_runtime::generate::{
    Answer, GenerateError, GenerationEvent, Request, SamplingParams, SpeakError, generate_heard,
};
use smelt_runtime::image::{Image, MediaItem};
use smelt_runtime::prepare::{ImageUsage, PrepareError};
use smelt_runtime::prompt::Turn;
use smelt_runtime::sampling::Settings;
use smelt_runtime::service::{DoesNotFit, KvPlan, give_what_is_left, hold_what_is_beside};
use smelt_runtime::stop;
use smelt_runtime::template::Context;
use smelt_serve::films;

pub(super) use self::behind::Behind;
use self::looking::Looking;
use super::consent::Consent;
use super::{open, target};
use crate::cards;
use crate::claim;
use crate::console::{answer, tell, tell_all};
use crate::exit::{Exit, Failed};
use crate::film;
use crate::flags::{ChatFlags, FrameFlags, SamplingFlags};
use crate::loading::Loading;
use crate::speeds;
use crate::table;

pub(crate) fn run(flags: &ChatFlags) -> Result<Exit, Failed> {
    if flags.max_tokens == 0 {
        return Err(Failed::usage("--max-tokens must be at least 1"));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // Only the seed wants a moment that nobody chose.
    let sampling = settings(&flags.sampling, now.as_nanos() as u64 % SEEDS);
    sampling.check().map_err(Failed::usage)?;
    stop::check(&flags.sampling.stop).map_err(Failed::usage)?;
    cards::want(flags.device);
    if let Some(prompt) = &flags.prompt {
        not_a_picture(prompt, &format!("smelt chat {}", flags.target.display()))?;
    }
    let dir = target::ready(&flags.target, &flags.sets, Consent::of(flags.yes));
    let dir = dir.map_err(|failed| turned(flags).unwrap_or(failed))?;
    open::expect(&dir, "chat", &flags.target)?;
    let mut behind = Behind::of(&dir, flags.no_check)?;
    let max_seq_len = flags.max_seq_len.map(|tokens| tokens as usize);
    // However many a server would answer at once: one conversation takes, and tells others that it takes, its own room.
    let kv = KvOptions { kind: flags.kv, max_seq_len, max_slots: Some(1), ..KvOptions::default() };
    let open = |loading: &mut Loading<'_>| -> Result<Deployment, Failed> {
        let deployment = open::deployment(&dir, kv, loading)?;
        let image_options = flags.image_options.wanted();
        let deployment = deployment
            .with_image_options(&image_options)
            .map_err(|why| Failed::usage(format!("--tiles: {why}")))?
            .with_memory_max(flags.memory);
        details::of_model(&dir, &deployment).iter().for_each(tell_all);
        tell_all(details::of_sampling(&sampling));
        Ok(deployment)
    };
    let sampling_params = SamplingParams {
        stop_strings: flags.sampling.stop.clone(),
        sampling: sampling.clone(),
        ..SamplingParams::greedy(flags.max_tokens)
    };
    let Some(prompt) = &flags.prompt else {
        let service = open::shown(&dir, |loading| talk::serve(open(loading)?, loading))?;
        return talk::talk(&service, &sampling_params, flags, &mut behind);
    };
    let pictures = pictures(&flags.image)?;
    let deployment = open::shown(&dir, open)?;
    let films = flags.video.iter().map(|path| film(path, &deployment.text, flags.frames));
    let films = films.collect::<Result<Vec<_>, _>>().map_err(Failed::model)?;
    let answer = ask(deployment, prompt, films, pictures, &sampling_params, &mut behind)?;
    speeds::keep(&dir, &answer);
    behind.end()?;
    Ok(Exit::Ok)
}

/// Asks `prompt` about films and pictures, and says the answer as it grows; ends with what is done behind it.
pub(super) fn ask(
    mut deployment: Deployment,
    prompt: &str,
    films: Vec<MediaItem>,
    pictures: Vec<MediaItem>,
    sampling_params: &SamplingParams,
    behind: &mut Behind,
) -> Result<Answer, Failed> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let memory_max = deployment.text.spec.serving.memory_bytes_max;
    let plan = give_what_is_left(&mut *deployment.llm, memory_max).map_err(too_little)?;
    let held = hold_what_is_beside(&*deployment.llm, memory_max);
    held.map_err(|why| Failed::new(Exit::DoesNotFit, why))?;
    // What a device takes of its own memory is none of the machine's.
    let is_apart = deployment.llm.memory().place == MemoryPlace::Device;
    let may_take = if is_apart { 0 } else { plan.bytes };
    let _claim = claim::open(NAME, served::own_bytes().saturating_add(may_take));
    behind.begin();
    cut(&plan, deployment.text.max_seq_len).iter().for_each(tell);
    tell_all(details::of_memory(plan.bytes, plan.context_max));
    let turn = Turn::from_marked("user", prompt, pictures.len()).map_err(Failed::usage)?;
    let turn = turn.behind_clips(films.len());
    let shown: Vec<MediaItem> = films.into_iter().chain(pictures).collect();
    let (turns, context) = (&[turn], &Context::default());
    let request = Request { turns, shown: &shown, context, sampling_params, now_s: now.as_secs() };
    let (mut said, mut line) = (Ok(()), Looking::new());
    let result = generate_heard(&mut deployment, &request, &mut |heard| match heard {
        GenerationEvent::Looking { part, parts } => line.at(part, parts),
        GenerationEvent::Text(text) => {
            line.clear();
            // Told at the end, since the answer cannot be stopped half-way.
            said = std::mem::replace(&mut said, Ok(())).and_then(|()| answer(text));
        }
    });
    line.clear();
    let result = result.map_err(failed)?;
    said.and_then(|()| answer("\n"))?;
    details::of_answer(&result).iter().for_each(tell_all);
    tell(summary(&result, &sampling_params.sampling, deployment.text.max_seq_len));
    Ok(result)
}

/// Endings of the pictures that are read.
const PICTURES: [&str; 5] = ["png", "jpg", "jpeg", "webp", "gif"];

/// Refuses a question that is a picture's file: it would be asked as a text.
pub(super) fn not_a_picture(prompt: &str, command: &str) -> Result<(), Failed> {
    let path = Path::new(prompt);
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    let is_picture = PICTURES.iter().any(|known| known.eq_ignore_ascii_case(ending));
    match is_picture && path.is_file() {
        true => Err(Failed::usage(format!(
            "{prompt} is a picture and no question; show it with: {command} --image {prompt}"
        ))),
        false => Ok(()),
    }
}

/// That the question stands where the model does, if it is so.
fn turned(flags: &ChatFlags) -> Option<Failed> {
    let (question, model) = (flags.target.to_str()?, flags.prompt.as_ref()?);
    let is_turned = question.contains(char::is_whitespace) && target::is_known(Path::new(model));
    is_turned.then(|| {
        Failed::usage(format!("the model is named first: smelt chat {model} \"{question}\""))
    })
}

/// What runs call it that wait for the memory that it may take.
const NAME: &str = "smelt chat";

/// Reads pictures.
pub(super) fn pictures(paths: &[PathBuf]) -> Result<Vec<MediaItem>, Failed> {
    let pictures = paths.iter().map(|path| Image::open(path).map(MediaItem::from));
    pictures.collect::<Result<_, _>>().map_err(Failed::model)
}

/// What is shown of a film.
fn film(path: &Path, text: &Text, frames: FrameFlags) -> Result<MediaItem, String> {
    films::open(path, text, frames.wanted(), film::COMMAND.map(OsString::from).into())
}

/// Seeds that are drawn from the clock: short enough to be typed again.
const SEEDS: u64 = 1_000_000;

/// What the flags say; a seed that they do not name is `seed`.
fn settings(flags: &SamplingFlags, seed: u64) -> Settings {
    let neutral = Settings::GREEDY;
    Settings {
        temperature: flags.temperature.unwrap_or(neutral.temperature),
        top_k: flags.top_k.unwrap_or(neutral.top_k),
        top_p: flags.top_p.unwrap_or(neutral.top_p),
        min_p: flags.min_p.unwrap_or(neutral.min_p),
        repetition_penalty: flags.repetition_penalty,
        presence_penalty: flags.presence_penalty,
        frequency_penalty: flags.frequency_penalty,
        logit_bias: flags.logit_bias.clone(),
        seed: flags.seed.unwrap_or(seed),
        top_logprobs: None,
    }
}

/// A setting that only this model refuses is still the command line's fault.
fn failed(error: GenerateError) -> Failed {
    match error {
        GenerateError::Speak(SpeakError::Setting(error)) => Failed::usage(error),
        GenerateError::Prepare(error @ PrepareError::Blind { .. }) => Failed::usage(error),
        error @ (GenerateError::NoRoom { .. }
        | GenerateError::Llm(RunError::KvFull { .. } | RunError::NoMemory { .. })) => {
            Failed::new(Exit::DoesNotFit, error)
        }
        error => Failed::model(error),
    }
}

/// That not even a short answer fits.
fn too_little(DoesNotFit { room, block_bytes, .. }: DoesNotFit) -> Failed {
    let [room, needed] = [room >> 20, (2 * block_bytes).div_ceil(1 << 20)];
    let why = format!(
        "keys and values have {room} MiB of memory, and the shortest answer takes {needed}: free memory, raise --memory, or use --kv int8"
    );
    Failed::new(Exit::DoesNotFit, why)
}

/// That less fits than the context, if so.
fn cut(plan: &KvPlan, context: usize) -> Option<String> {
    let room = plan.context_max;
    (room < context as u64).then(|| {
        format!(
            "a prompt with its answer has room for {room} tokens, not for {context}: free memory, raise --memory, use --kv int8, or say --max-seq-len {room}, and larger pictures are shown smaller"
        )
    })
}

/// What the answer cost.
fn summary(answer: &Answer, sampling: &Settings, context: usize) -> String {
    let timing = &answer.timing;
    let rate = table::rate(timing.decode_steps as u64, timing.decode.as_secs_f64());
    let rate = rate.map_or_else(String::new, |rate| format!(", then {rate}"));
    let seed =
        if sampling.is_greedy() { String::new() } else { format!("; seed {}", sampling.seed) };
    format!(
        "{} prompt tokens{}, {} answered; first token after {}{rate}{seed}{}",
        answer.prompt_tokens,
        tiles(answer.tiles),
        answer.tokens.len(),
        table::seconds(timing.first_token.as_secs_f64()),
        smaller(&answer.seen, context),
    )
}

/// How many tiles were looked at, where there were some.
fn tiles(count: usize) -> String {
    match count {
        0 => String::new(),
        1 => " (1 tile)".to_owned(),
        count => format!(" ({count} tiles)"),
    }
}

/// That pictures were shown smaller than they are, and what to do about it.
fn smaller(seen: &ImageUsage, context: usize) -> String {
    let notice = seen.notice(context);
    notice.map_or_else(String::new, |notice| format!("; {notice} (--max-seq-len makes it longer)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_that_memory_does_not_hold_is_told_of() {
        let plan = KvPlan { bytes: 1, token_bytes: 1, tokens: 320, context_max: 320, batch_max: 1 };
        assert_eq!(cut(&plan, 320), None);
        let told = cut(&plan, 4096).unwrap();
        assert!(told.contains("320 tokens, not for 4096") && told.contains("--kv int8"), "{told}");
    }

    #[test]
    fn tiles_are_counted_where_there_are_some() {
        assert_eq!([0, 1, 7].map(tiles), ["", " (1 tile)", " (7 tiles)"]);
    }

    #[test]
    fn no_memory_for_an_answer_is_no_fault_of_the_model() {
        let error = GenerateError::NoRoom { tokens: 900, room: 320 };
        assert_eq!(failed(error).exit, Exit::DoesNotFit);
        let full = RunError::KvFull { more: 1, held: 5, total: 5 };
        assert_eq!(failed(GenerateError::Llm(full)).exit, Exit::DoesNotFit);
    }
}
