//! `smelt graph`: draws a pipeline, coloured by what the store has of it.

use smelt_plan::Plan;
use smelt_report::graph::{Drawing, StageMark, dot, mermaid, svg};

use crate::console::{answer, tell};
use crate::exit::{Exit, Failed};
use crate::flags::{GraphFlags, GraphFormat};
use crate::load::{self, Access, Standing};

pub(crate) fn run(flags: &GraphFlags) -> Result<Exit, Failed> {
    // A pipeline that is wrong is refused; one whose inputs are not here is drawn without colours.
    let plan = load::plan_unpinned(&flags.pipeline)?;
    let picture = match marks(flags) {
        Ok((plan, marks)) => Drawing::of(&plan, Some(&marks)),
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

fn marks(flags: &GraphFlags) -> Result<(Plan, Vec<StageMark>), Failed> {
    let loaded = load::plan(&flags.pipeline, Access::Use)?;
    let mark = |(standing, _)| match standing {
        Standing::Hit { .. } => StageMark::Hit,
        Standing::Miss(_) => StageMark::Miss,
        Standing::Unknown { .. } => StageMark::Unknown,
    };
    let marks = load::standings(&loaded)?.into_iter().map(mark).collect();
    Ok((loaded.plan, marks))
}
