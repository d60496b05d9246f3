//! `smelt calibrate`: what a checkpoint's layers are fed, without a pipeline.

use crate::atomic_dir::AtomicDir;
use crate::console::tell;
use crate::exit::{Exit, Failed};
use crate::flags::CalibrateFlags;
use crate::open_checkpoint;
use crate::stage::calibrate::{Asked, prompts, watch};
use crate::telling::Telling;

pub(crate) fn run(flags: &CalibrateFlags) -> Result<Exit, Failed> {
    let texts = flags.text.as_deref().map(prompts).transpose()?.unwrap_or_default();
    let (pictures, questions) = (flags.image.clone(), flags.questions.clone());
    let asked = Asked { texts, pictures, questions, vision: None, rows: flags.tokens };
    let out = AtomicDir::begin(&flags.out)?;
    let given = open_checkpoint::open(&flags.checkpoint, &flags.out)?;
    let mut telling = Telling::new();
    watch(&given.checkpoint, &asked, out.path(), &mut |line| telling.hear(line))?;
    drop(telling);
    out.finish()?;
    tell(format_args!("wrote {}", flags.out.display()));
    Ok(Exit::Ok)
}
