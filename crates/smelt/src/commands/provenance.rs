//! `smelt provenance`: prints what is true of an output, and the chain from it to what it was made of.

use std::collections::BTreeMap;

use smelt_fleet::trust::Trust;
use smelt_plan::plan::From;
use smelt_plan::{Digest, Plan, StageId};
use smelt_store::Output;

use crate::console::answer;
use crate::exit::{Exit, Failed};
use crate::flags::ProvenanceFlags;
use crate::fleet::delivered::Delivered;
use crate::fleet::push::Shelf;
use crate::fleet::vouched::{self, Origin, doubt};
use crate::load::{self, Access};
use crate::table::Table;

pub(crate) fn run(flags: &ProvenanceFlags) -> Result<Exit, Failed> {
    let loaded = load::plan(&flags.pipeline, Access::Use)?;
    let id = loaded.plan.find(&flags.stage)?;
    let shelf = Shelf::of(&loaded, &vouched::believed()?)?;
    let none = || {
        let message = format!("stage {} is not built; build it with: smelt run", flags.stage);
        Failed::new(Exit::StageFailed, message)
    };
    let output = shelf.output(id).ok_or_else(none)?;
    if flags.chain {
        return chain(&loaded.plan, &shelf, id);
    }
    let kept = |why| Failed::new(Exit::StageFailed, format!("stage {}: {why}", flags.stage));
    let statement = match Origin::of(&output.record) {
        // Whoever built it has said what is true of it.
        Some(origin) => origin.and_then(|origin| origin.said()).map_err(kept)?,
        None => shelf.statement_of(id, &flags.instance).ok_or_else(none)?.map_err(kept)?.0,
    };
    let text = statement.to_json().map_err(|error| kept(error.to_string()))?;
    answer(format_args!("{}\n", String::from_utf8_lossy(&text)))?;
    Ok(Exit::Ok)
}

/// Prints a stage's output and all that it was made of, as far as that is known here.
fn chain(plan: &Plan, shelf: &Shelf<'_>, id: StageId) -> Result<Exit, Failed> {
    let (trust, closure) = (vouched::believed()?, plan.closure(&[id]));
    let mut named: BTreeMap<StageId, Digest> = BTreeMap::new();
    let mut table = Table::new(&["Stage", "Output", "From", "Vouched for by"]);
    let mut exit = Exit::Ok;
    for &id in closure.iter().rev() {
        let stage = plan.stage(id);
        let (tree, link) = match (shelf.output(id), stage.given()) {
            (Some(output), _) => (Some(output.digest), Link::of(output, &trust)),
            (None, Some(pin)) => (Some(pin.digest), Link::Given(pin.path.display().to_string())),
            (None, None) => (named.get(&id).copied(), Link::Absent),
        };
        let inputs: BTreeMap<_, _> = shelf.inputs(id).unwrap_or_default().into_iter().collect();
        for input in &stage.inputs {
            if let (From::Stage(of), Some(tree)) = (&input.from, inputs.get(&input.label)) {
                named.insert(*of, *tree);
            }
        }
        if matches!(link, Link::Doubted { .. }) {
            exit = Exit::StageFailed;
        }
        let tree = tree.map_or_else(|| "-".to_owned(), |tree| tree.short());
        let [from, by] = link.words();
        table.row([stage.name.to_string(), tree, from, by]);
    }
    answer(table)?;
    Ok(exit)
}

/// A link of the chain.
enum Link {
    /// It was built in a run of this machine, or of one that this one reached.
    Built { run: String, by: Option<String> },
    /// It came from a server, and these vouch for it.
    Fetched(String, Vec<String>),
    /// It came from a server, and is not vouched for any more.
    Doubted { server: String, why: String },
    /// It lies where the pipeline says.
    Given(String),
    /// It was needed only where it was used.
    Absent,
}

impl Link {
    fn of(output: &Output, trust: &Trust) -> Self {
        let run = output.record["run"].as_str().unwrap_or("-");
        match Delivered::of(&output.record) {
            None => {}
            Some(Err(why)) => return Self::Doubted { server: "a delivery".to_owned(), why },
            Some(Ok(delivered)) => {
                let (server, doubt) =
                    (delivered.place, doubt(&output.digest, &output.record, trust));
                return match doubt {
                    Some(why) => Self::Doubted { server, why },
                    None => Self::Fetched(server, delivered.by),
                };
            }
        }
        match Origin::of(&output.record) {
            None => {
                let by = vouched::built_at(&output.record).map(str::to_owned);
                Self::Built { run: run.to_owned(), by }
            }
            Some(Err(why)) => Self::Doubted { server: "the fleet".to_owned(), why },
            Some(Ok(origin)) => match origin.judge(&output.digest, trust) {
                Ok(vouched) => Self::Fetched(origin.server, vouched.by),
                Err(why) => Self::Doubted { server: origin.server, why },
            },
        }
    }

    /// Where it is from, and who vouches for it.
    fn words(self) -> [String; 2] {
        let dash = "-".to_owned();
        match self {
            Self::Built { run, by } => {
                [format!("run {run}"), by.unwrap_or_else(|| "this machine".to_owned())]
            }
            Self::Fetched(server, by) => [server, by.join(", ")],
            Self::Doubted { server, why } => [server, format!("nobody: {why}")],
            Self::Given(path) => [path, dash],
            Self::Absent => ["not here".to_owned(), dash],
        }
    }
}
