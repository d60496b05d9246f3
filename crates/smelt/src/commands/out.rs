//! `smelt out`: prints where a stage's output lies, for scripts.

use smelt_store::Wait;

use crate::exit::{Exit, Failed};
use crate::flags::OutFlags;
use crate::load;

pub(crate) fn run(flags: &OutFlags) -> Result<Exit, Failed> {
    let loaded = load::plan(&flags.pipeline, Wait::Yes)?;
    let stage = loaded.plan.find(&flags.stage)?;
    println!("{}", load::output(&flags.pipeline, &loaded, stage)?.display());
    Ok(Exit::Ok)
}
