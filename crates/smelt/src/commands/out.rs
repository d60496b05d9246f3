//! `smelt out`: prints where a stage's output lies, for scripts.

use crate::console::answer;
use crate::exit::{Exit, Failed};
use crate::flags::OutFlags;
use crate::load::{self, Access};

pub(crate) fn run(flags: &OutFlags) -> Result<Exit, Failed> {
    let loaded = load::plan(&flags.pipeline, Access::Use)?;
    let stage = loaded.plan.find(&flags.stage)?;
    let path = load::output(&flags.pipeline, &loaded, stage)?;
    answer(format_args!("{}\n", path.display()))?;
    Ok(Exit::Ok)
}
