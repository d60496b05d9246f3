//! `smelt graph`: draws a pipeline, coloured by what the store has of it.

use smelt_plan::Plan;

use crate::console::{answer, tell};
use crate::exit::{Exit, Failed};
use crate::flags::{GraphFlags, GraphFormat};
use crate::graph::{Drawing, dot, mermaid, svg};
use crate::load::{self, Access, Standing};

pub(crate) fn run(flags: &GraphFlags) -> Result<Exit, Failed> {
    // A pipeline that is wrong is refused; one whose inputs are not here is drawn without colours.
    let plan = load::plan_unpinned(&flags.pipeline)?;
    let picture = match standings(flags) {
        Ok((plan, standings)) => Drawing::of(&plan, Some(&standings)),
        Err(why) => {
            tell(format_args!("smelt: drawn without what is built: {why}"));
            Drawing::of(&plan, None)
        }
    };
    answer(match flags.format {
        GraphFormat::Dot => dot(&picture),
        GraphFormat::Mermaid => mermaid(&picture),
        GraphFormat::Svg => svg(&picture),
    })?;
    Ok(Exit::Ok)
}

fn standings(flags: &GraphFlags) -> Result<(Plan, Vec<Standing>), Failed> {
    let loaded = load::plan(&flags.pipeline, Access::Use)?;
    let standings = load::standings(&loaded)?.into_iter().map(|(standing, _)| standing).collect();
    Ok((loaded.plan, standings))
}
