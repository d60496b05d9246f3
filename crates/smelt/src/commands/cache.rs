//! `smelt cache`: how much the store holds, what may go, and whether it is sound.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use smelt_exec::clear_dead_runs;
use smelt_fleet::held::held;
use smelt_store::{
    Checkup, Collection, Damage, Digest, Inventory, Limits, OutputItem, Store, StoreError, Victim,
    Wait, What, Why, choose,
};

use crate::console::{answer, tell, warn};
use crate::exit::{Exit, Failed};
use crate::flags::{CacheCommand, DuFlags, FsckFlags, GcFlags, LsFlags, PinFlags, PinsFlags};
use crate::fleet::vouched::{self, Doubted};
use crate::fleet::{Fleet, judging_time};
use crate::leftovers::left_behind;
use crate::load;
use crate::stop::stop_flag;
use crate::table::{Table, ago, bytes};

/// Whoever fetches goes on within a week, or begins anew.
const PULLS_AGE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Outputs of which the fleet is asked whether it has them: those unused for the longest time of a store of years.
const ASKED_MAX: usize = 4096;

pub(crate) fn run(command: &CacheCommand) -> Result<Exit, Failed> {
    let root = load::root()?;
    match command {
        CacheCommand::Du(flags) => du(&root, flags),
        CacheCommand::Ls(flags) => ls(&root, flags),
        CacheCommand::Gc(flags) => gc(&root, flags),
        CacheCommand::Fsck(flags) => fsck(&root, flags),
        CacheCommand::Pin(flags) => pin(&root, flags),
        CacheCommand::Unpin(flags) => unpin(&root, flags),
        CacheCommand::Pins(flags) => pins(&root, flags),
        CacheCommand::Push(flags) => super::fleet::push(flags),
        CacheCommand::Pull(flags) => super::fleet::pull(flags),
    }
}

/// Only looks, on a read-only disk too; a store that is not there is not made.
fn look(root: &Path) -> Result<Inventory, Failed> {
    Ok(Store::open_read_only(root, Wait::Yes)?.inventory()?)
}

/// Asking about a store makes none.
fn is_there(root: &Path) -> Result<(), StoreError> {
    Store::open_read_only(root, Wait::Yes)?;
    Ok(())
}

fn du(root: &Path, flags: &DuFlags) -> Result<Exit, Failed> {
    let inventory = look(root)?;
    let held = inventory.outputs.iter().filter(|output| output.is_held);
    let outputs_held: u64 = held.map(|output| output.bytes).sum();
    let sum = |sizes: &mut dyn Iterator<Item = u64>| sizes.sum::<u64>();
    let outputs = sum(&mut inventory.outputs.iter().map(|output| output.bytes));
    let runs = sum(&mut inventory.runs.iter().map(|run| run.bytes));
    let runs_held = sum(&mut inventory.runs.iter().filter(|r| r.is_held).map(|run| run.bytes));
    let quarantine = sum(&mut inventory.quarantined.iter().map(|item| item.bytes));
    if flags.json {
        let text = json!({
            "store": root,
            "bytes": inventory.bytes(),
            "outputs": { "count": inventory.outputs.len(), "bytes": outputs, "held_bytes": outputs_held },
            "runs": { "count": inventory.runs.len(), "bytes": runs, "held_bytes": runs_held },
            "quarantine": { "count": inventory.quarantined.len(), "bytes": quarantine },
            "work_bytes": inventory.work_bytes,
            "index_bytes": inventory.index_bytes,
        });
        answer(format_args!("{text}\n"))?;
        return Ok(Exit::Ok);
    }
    let mut table = Table::new(&["What", "Number", "Size", "Needed"]);
    let mut row = |what: &str, number: Option<usize>, size: u64, held: Option<u64>| {
        let number = number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        table.row([what.to_owned(), number, bytes(size), held.map_or("-".to_owned(), bytes)]);
    };
    row("outputs", Some(inventory.outputs.len()), outputs, Some(outputs_held));
    row("journals and logs", Some(inventory.runs.len()), runs, Some(runs_held));
    row("quarantine", Some(inventory.quarantined.len()), quarantine, None);
    row("work", None, inventory.work_bytes, None);
    row("indices", None, inventory.index_bytes, None);
    row("together", None, inventory.bytes(), Some(outputs_held + runs_held));
    answer(table)?;
    Ok(Exit::Ok)
}

fn ls(root: &Path, flags: &LsFlags) -> Result<Exit, Failed> {
    let mut inventory = look(root)?;
    inventory.outputs.sort_by_key(|output| std::cmp::Reverse((output.used_ns, output.tree)));
    if flags.json {
        let outputs: Vec<Value> = inventory.outputs.iter().map(|o| as_json(root, o)).collect();
        answer(format_args!("{}\n", json!({ "store": root, "outputs": outputs })))?;
        return Ok(Exit::Ok);
    }
    let mut table = Table::new(&["Output", "Size", "Used", "Needed", "Stage"]);
    for output in &inventory.outputs {
        table.row([
            output.tree.short(),
            bytes(output.bytes),
            ago(inventory.now_ns.saturating_sub(output.used_ns)),
            if output.is_held { "yes" } else { "-" }.to_owned(),
            made_by(output),
        ]);
    }
    answer(table)?;
    Ok(Exit::Ok)
}

fn as_json(root: &Path, output: &OutputItem) -> Value {
    json!({
        "digest": output.tree,
        "path": root.join("out").join(output.tree.to_string()),
        "bytes": output.bytes,
        "used_s": output.used_ns / 1_000_000_000,
        "needed": output.is_held,
        "keys": output.keys,
        "record": output.record,
    })
}

/// What the record says of where the output came from: pipeline and stage.
fn made_by(output: &OutputItem) -> String {
    let word = |name: &str| output.record.get(name).and_then(Value::as_str);
    match (word("pipeline"), word("stage")) {
        (Some(pipeline), Some(stage)) => format!("{pipeline} {stage}"),
        _ => "-".to_owned(),
    }
}

fn gc(root: &Path, flags: &GcFlags) -> Result<Exit, Failed> {
    let limits =
        Limits { bytes_max: flags.max_size, age_max: flags.max_age, takes_open: flags.unfinished };
    if flags.dry_run {
        let store = Store::open_read_only(root, Wait::Yes)?;
        let inventory = store.inventory_for(&limits)?;
        let victims = choose(&inventory, &limits, &elsewhere(flags, &store, &inventory)?);
        let freed: u64 = victims.iter().map(|victim| victim.bytes).sum();
        tell_victims(flags, "would go", &victims, inventory.bytes() - freed)?;
        return Ok(Exit::Ok);
    }
    is_there(root)?;
    let store = Store::open(root, Wait::Yes)?;
    // First: what a power cut left of the lists that these held cannot be read.
    clear_dead_runs(&store, &mut left_behind)?;
    store.clear_pulls(PULLS_AGE_MAX, SystemTime::now())?;
    let elsewhere = elsewhere(flags, &store, &store.inventory_for(&limits)?)?;
    let done = store.collect_beside(&limits, &elsewhere)?;
    tell_victims(flags, "removed", &done.removed, done.bytes_left)?;
    tell_what_stays(flags, &done);
    Ok(Exit::Ok)
}

/// The outputs that the fleet could give again, where one is named and some must go.
fn elsewhere(
    flags: &GcFlags,
    store: &Store,
    inventory: &Inventory,
) -> Result<BTreeSet<Digest>, Failed> {
    let must_go = flags.max_size.is_some_and(|max| inventory.bytes() > max);
    if flags.fleet.fleet.is_none() || !must_go {
        return Ok(BTreeSet::new());
    }
    let asked = Fleet::open(&flags.fleet, &stop_flag()?).and_then(|fleet| {
        let may_go = inventory.outputs.iter().filter(|output| !output.is_held);
        let mut outputs: Vec<&OutputItem> = may_go.collect();
        outputs.sort_by_key(|output| output.used_ns);
        let trees: Vec<Digest> = outputs.iter().take(ASKED_MAX).map(|it| it.tree).collect();
        let held = held(&fleet.client, &trees, &fleet.trust, judging_time(store));
        held.map_err(|error| Failed::new(Exit::NotSeen, error))
    });
    match asked {
        Err(failed) if failed.exit == Exit::NotSeen => {
            warn(format_args!(
                "the fleet is not asked: {failed}; what was unused for the longest time goes first"
            ));
            Ok(BTreeSet::new())
        }
        asked => asked,
    }
}

fn tell_victims(
    flags: &GcFlags,
    verb: &str,
    victims: &[Victim],
    bytes_left: u64,
) -> Result<(), Failed> {
    let freed: u64 = victims.iter().map(|victim| victim.bytes).sum();
    if flags.json {
        let rows: Vec<Value> = victims.iter().map(victim_as_json).collect();
        let text = json!({ "dry_run": flags.dry_run, "removed": rows, "freed_bytes": freed, "left_bytes": bytes_left });
        return answer(format_args!("{text}\n"));
    }
    for victim in victims {
        let (what, name) = named(&victim.what);
        answer(format_args!("{verb}: {what} {name}, {}, {}\n", bytes(victim.bytes), why(victim)))?;
    }
    answer(format_args!(
        "{} of {} things, {} are left\n",
        bytes(freed),
        victims.len(),
        bytes(bytes_left)
    ))
}

fn victim_as_json(victim: &Victim) -> Value {
    let (what, name) = named(&victim.what);
    json!({ "what": what, "name": name, "bytes": victim.bytes, "why": why(victim) })
}

fn named(what: &What) -> (&'static str, String) {
    match what {
        What::Output(tree) => ("output", tree.to_string()),
        What::Run(id) => ("run", id.to_string()),
        What::Quarantined(name) => ("damaged", name.clone()),
    }
}

fn why(victim: &Victim) -> &'static str {
    match victim.why {
        Why::Nameless => "nothing leads to it",
        Why::Old => "old",
        Why::Elsewhere => "the fleet has it",
        Why::Room => "unused for the longest time",
    }
}

fn tell_what_stays(flags: &GcFlags, done: &Collection) {
    if !done.spared.is_empty() {
        tell(format_args!("smelt: {} things came into use and stay", done.spared.len()));
    }
    if let Some(max) = flags.max_size.filter(|max| done.bytes_left > *max) {
        tell(format_args!(
            "smelt: {} are left, more than {}: running builds, pins, runs that failed or did not end (--unfinished takes those) and the last good run of every pipeline need {}",
            bytes(done.bytes_left),
            bytes(max),
            bytes(done.bytes_held)
        ));
    }
    if flags.max_size.is_none() && flags.max_age.is_none() {
        tell(
            "smelt: no limit was given; --max-size or --max-age removes outputs that are not needed",
        );
    }
}

fn pin(root: &Path, flags: &PinFlags) -> Result<Exit, Failed> {
    is_there(root)?;
    let store = Store::open(root, Wait::Yes)?;
    let inventory = store.inventory()?;
    for text in &flags.outputs {
        let all = inventory.outputs.iter().map(|output| output.tree);
        let tree = meant(text, all)?.ok_or_else(|| no_output(text))?;
        store.pin(&tree)?;
        // It may have been collected until the pin was there.
        if !store.inventory()?.outputs.iter().any(|output| output.tree == tree) {
            store.unpin(&tree)?;
            return Err(no_output(text));
        }
        answer(format_args!("{tree} is pinned\n"))?;
    }
    Ok(Exit::Ok)
}

fn unpin(root: &Path, flags: &PinFlags) -> Result<Exit, Failed> {
    is_there(root)?;
    let store = Store::open(root, Wait::Yes)?;
    for text in &flags.outputs {
        let none = || Failed::new(Exit::StageFailed, format!("nothing is pinned as {text}"));
        let tree = meant(text, store.pins()?)?.ok_or_else(none)?;
        store.unpin(&tree)?;
        answer(format_args!("{tree} is no longer pinned\n"))?;
    }
    Ok(Exit::Ok)
}

fn pins(root: &Path, flags: &PinsFlags) -> Result<Exit, Failed> {
    let store = Store::open_read_only(root, Wait::Yes)?;
    let inventory = store.inventory()?;
    let of = |tree: &Digest| inventory.outputs.iter().find(|output| output.tree == *tree);
    let pins = store.pins()?;
    if flags.json {
        let row = |tree: &Digest| match of(tree) {
            Some(output) => as_json(root, output),
            None => json!({ "digest": tree, "path": null }),
        };
        let rows: Vec<Value> = pins.iter().map(row).collect();
        answer(format_args!("{}\n", json!({ "store": root, "pins": rows })))?;
        return Ok(Exit::Ok);
    }
    let mut table = Table::new(&["Output", "Size", "Stage"]);
    for tree in &pins {
        let (size, stage) = match of(tree) {
            Some(output) => (bytes(output.bytes), made_by(output)),
            None => ("gone".to_owned(), "-".to_owned()),
        };
        table.row([tree.short(), size, stage]);
    }
    answer(table)?;
    Ok(Exit::Ok)
}

/// The one of `all` that a text means: its digest, a beginning of it, or a path that ends in it.
fn meant(text: &str, all: impl IntoIterator<Item = Digest>) -> Result<Option<Digest>, Failed> {
    let name = Path::new(text).file_name().unwrap_or_default().to_string_lossy();
    let is_meant = |tree: &Digest| !name.is_empty() && tree.to_string().starts_with(&*name);
    let mut found = all.into_iter().filter(is_meant);
    match (found.next(), found.next()) {
        (Some(one), Some(other)) => {
            let (one, other) = (one.short(), other.short());
            Err(Failed::usage(format!("{text} may be {one}, {other} or more; say more of it")))
        }
        (found, _) => Ok(found),
    }
}

fn no_output(text: &str) -> Failed {
    let message = format!("no output {text} in this store; `smelt cache ls` lists them");
    Failed::new(Exit::StageFailed, message)
}

/// Damage is one answer, and not to have seen another.
fn fsck(root: &Path, flags: &FsckFlags) -> Result<Exit, Failed> {
    examine(root, flags).map_err(|error| match error {
        FsckError::Store(error) if is_unseen(&error) => {
            Failed::new(Exit::NotSeen, format!("cannot look at the store: {error}"))
        }
        FsckError::Store(error) => error.into(),
        FsckError::Said(failed) => failed,
    })
}

/// Whether nothing is known of a store: the disk failed, or there is none, or none of ours.
fn is_unseen(error: &StoreError) -> bool {
    use StoreError::{ClosedLog, Disk, NoStore, NotAStore, OtherFormat, Unfit};
    match error {
        ClosedLog { .. } => true,
        Disk(_) => !error.is_stopped(),
        error => {
            matches!(error, NoStore { .. } | NotAStore { .. } | OtherFormat { .. } | Unfit { .. })
        }
    }
}

/// Why a check ended without an answer.
enum FsckError {
    Store(StoreError),
    Said(Failed),
}

impl From<StoreError> for FsckError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<Failed> for FsckError {
    fn from(failed: Failed) -> Self {
        Self::Said(failed)
    }
}

fn examine(root: &Path, flags: &FsckFlags) -> Result<Exit, FsckError> {
    is_there(root).or_else(|error| if flags.repair { Ok(()) } else { Err(error) })?;
    let wait = if flags.no_wait { Wait::No } else { Wait::Yes };
    let checkup = if flags.repair {
        let store = alone(root, wait)?;
        clear_dead_runs(&store, &mut left_behind)?;
        store.repair()?
    } else {
        let store = Store::open(root, wait)?;
        clear_dead_runs(&store, &mut left_behind)?;
        store.check()?
    };
    let outputs = Store::open_read_only(root, wait)?.inventory()?.outputs;
    let vouched = vouched::doubted(outputs.iter());
    if flags.json {
        let mut said = checkup_as_json(flags, &checkup);
        if let Ok((fetched, doubted)) = &vouched {
            said["fetched"] = json!(fetched);
            let row = |it: &Doubted| json!({ "digest": it.tree, "stage": it.stage, "why": it.why });
            said["doubted"] = doubted.iter().map(row).collect();
        }
        answer(format_args!("{said}\n"))?;
    } else {
        tell_checkup(&checkup)?;
        if let Ok((fetched, doubted)) = &vouched {
            tell_doubted(*fetched, doubted)?;
        }
    }
    match (end(flags, &checkup), vouched) {
        // What was read is told, and of who vouches for it nothing is known.
        (_, Err(failed)) => Err(Failed::new(Exit::NotSeen, failed).into()),
        (Exit::Ok, Ok((_, doubted))) if !doubted.is_empty() => Ok(Exit::StageFailed),
        (exit, Ok(_)) => Ok(exit),
    }
}

/// The store for us alone; says what is waited for.
fn alone(root: &Path, wait: Wait) -> Result<Store, StoreError> {
    match Store::open_exclusive(root, Wait::No) {
        Err(StoreError::Held { .. }) if wait == Wait::Yes => {
            tell(
                "smelt: waiting until nobody uses the store: runs, collections and servers must end",
            );
            Store::open_exclusive(root, wait)
        }
        opened => opened,
    }
}

fn end(flags: &FsckFlags, checkup: &Checkup) -> Exit {
    if checkup.is_sound() {
        return Exit::Ok;
    }
    if flags.repair {
        tell("smelt: repaired; what was damaged is built again by the next run that needs it");
        return Exit::Ok;
    }
    let hint = if checkup.log_is_damaged || checkup.lost > 0 || !checkup.bad_roots.is_empty() {
        "repair the store with: smelt cache fsck --repair"
    } else {
        "what is damaged is in the quarantine, and is built again by the next run that needs it"
    };
    tell(format_args!("smelt: the store was damaged; {hint}"));
    Exit::StageFailed
}

fn tell_checkup(checkup: &Checkup) -> Result<(), Failed> {
    let Checkup { trees, bytes: read, nameless, gone, strays, lost, mended, .. } = checkup;
    for Damage { digest, what, .. } in &checkup.damaged {
        answer(format_args!("damaged: output {digest}: {what}\n"))?;
    }
    if checkup.log_is_damaged {
        answer("damaged: the action log has lines that are no records\n")?;
    }
    for path in &checkup.bad_roots {
        answer(format_args!("damaged: {}\n", path.display()))?;
    }
    let counts = [
        (*lost, "results that the action log has lost"),
        (*strays, "files that were put into outputs later, moved to the quarantine"),
        (*nameless, "outputs to which nothing leads; smelt cache gc removes them"),
        (*gone, "results whose output was removed"),
        (*mended, "files and directories whose modes were set back"),
    ];
    for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
        answer(format_args!("{count} {what}\n"))?;
    }
    answer(format_args!("{trees} outputs are whole, {} were read\n", bytes(*read)))
}

/// What came from a fleet, and what of it is not vouched for any more.
fn tell_doubted(fetched: usize, doubted: &[Doubted]) -> Result<(), Failed> {
    for Doubted { tree, stage, why } in doubted {
        answer(format_args!("doubted: output {tree} of stage {stage}: {why}\n"))?;
    }
    if fetched > 0 {
        let good = fetched - doubted.len();
        answer(format_args!(
            "{good} of {fetched} outputs that came from a fleet are vouched for\n"
        ))?;
    }
    if !doubted.is_empty() {
        tell(
            "smelt: what is doubted is neither asked nor served; the next run builds or fetches it again",
        );
    }
    Ok(())
}

fn checkup_as_json(flags: &FsckFlags, checkup: &Checkup) -> Value {
    let damaged = checkup.damaged.iter().map(|damage| {
        json!({ "digest": damage.digest, "what": damage.what, "moved_to": damage.moved_to })
    });
    json!({
        "sound": checkup.is_sound(),
        "repaired": flags.repair && !checkup.is_sound(),
        "outputs": checkup.trees,
        "bytes": checkup.bytes,
        "damaged": damaged.collect::<Vec<_>>(),
        "log_damaged": checkup.log_is_damaged,
        "lost": checkup.lost,
        "nameless": checkup.nameless,
        "gone": checkup.gone,
        "mended": checkup.mended,
        "strays": checkup.strays,
        "bad_roots": checkup.bad_roots,
    })
}
