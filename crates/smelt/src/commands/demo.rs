//! `smelt demo`: a first true answer, by a small model that smelt carries, then what to try next.

use smelt_backend::KvOptions;
use smelt_runtime::generate::SamplingParams;

use super::{chat, open};
use crate::carried;
use crate::console::tell;
use crate::exit::{Exit, Failed};
use crate::flags::DemoFlags;

/// What is asked about the picture that is carried.
const PROMPT: &str = "What is left of the red circle?";
/// What is asked about a picture of which nothing is known.
const PROMPT_OF_ANY: &str = "Describe this image.";
/// The model's longest answers are shorter.
const ANSWER_MAX: usize = 64;

const NEXT: &str = "\
This model knows pictures of coloured shapes and signs, and nothing else.  Try next:
  smelt demo \"How many circles are there?\"
  smelt demo --image FILE \"Describe this image.\"   a picture of your own
  smelt chat demo --image FILE                      a conversation
  smelt serve demo                                  a page for the browser, and OpenAI's API
  smelt doctor                                      what would make builds of real models fail here";

pub(crate) fn run(flags: &DemoFlags) -> Result<Exit, Failed> {
    flags.prompt.iter().try_for_each(|prompt| chat::not_a_picture(prompt, "smelt demo"))?;
    let own = (!flags.image.is_empty()).then(|| chat::pictures(&flags.image)).transpose()?;
    let carried = carried::unpack()?;
    let (shown, paths, usual) = match own {
        Some(own) => (own, flags.image.clone(), PROMPT_OF_ANY),
        None => {
            let paths = vec![carried.picture.clone()];
            (chat::pictures(&paths)?, paths, PROMPT)
        }
    };
    let prompt = flags.prompt.as_deref().unwrap_or(usual);
    paths.iter().for_each(|path| tell(format_args!("picture: {}", path.display())));
    tell(format_args!("asked: {prompt}"));
    let kv = KvOptions::default();
    let dir = &carried.deployment;
    let deployment = open::shown(dir, |loading| open::deployment(dir, kv, loading))?;
    let params = SamplingParams::greedy(ANSWER_MAX);
    let behind = &mut chat::Behind::nothing();
    chat::ask(deployment, prompt, Vec::new(), shown, &params, behind)?;
    tell(NEXT);
    Ok(Exit::Ok)
}
