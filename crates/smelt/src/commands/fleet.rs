//! `smelt fleet`: keys, whom this machine believes, what the server says.  `smelt cache push|pull` too.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use smelt_fleet::keys::{PublicKey, SigningKey};
use smelt_fleet::pull::offer;
use smelt_fleet::push::Pushed;
use smelt_fleet::remote::{Key, Remote as _};
use smelt_fleet::trust::{Purpose, Trust, TrustedKey, date, usual_purposes};
use smelt_plan::StageId;
use smelt_store::Wait;

use crate::console::{answer, tell};
use crate::exit::{Exit, Failed};
use crate::flags::{
    FleetCommand, FleetVerifyFlags, KeygenFlags, PushFlags, ShareFlags, TrustFlags, UntrustFlags,
};
use crate::fleet::counted;
use crate::fleet::pull::{self, Wanted};
use crate::fleet::push::{self, Outcome, Shelf, push_each};
use crate::fleet::vouched;
use crate::fleet::{Fleet, judging_time, key_file, make_folder_of, now, signer, trust, trust_file};
use crate::load::{self, Access, Loaded, Part};
use crate::stop::stop_flag;
use crate::table::{Table, bytes};

const DAY_S: u64 = 24 * 3600;

pub(crate) fn run(command: &FleetCommand) -> Result<Exit, Failed> {
    match command {
        FleetCommand::Keygen(flags) => keygen(flags),
        FleetCommand::Trust(flags) => believe(flags),
        FleetCommand::Untrust(flags) => doubt(flags),
        FleetCommand::Verify(flags) => verify(flags),
        FleetCommand::Status(flags) => super::fleet_status::run(flags),
        FleetCommand::Peer(flags) => super::peer::run(flags),
    }
}

fn keygen(flags: &KeygenFlags) -> Result<Exit, Failed> {
    if let Some(program) = &flags.signer {
        let key = SigningKey::of_program(program).map_err(Failed::usage)?;
        return told(key.public(), format_args!("{} signs for this machine", program.display()));
    }
    let path = key_file(flags.out.as_deref())?;
    let (key, pem) =
        SigningKey::generate().map_err(|error| Failed::new(Exit::StageFailed, error))?;
    make_folder_of(&path)?;
    let failed =
        |error| Failed::new(Exit::StageFailed, format!("cannot write {}: {error}", path.display()));
    let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    let mut file = match created {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let message = format!(
                "{} is there already, and a key is never written over: --out names another file",
                path.display()
            );
            return Err(Failed::usage(message));
        }
        created => created.map_err(failed)?,
    };
    file.write_all(pem.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
    told(key.public(), format_args!("the private key is in {}", path.display()))
}

/// Says how a machine's key is believed elsewhere, and where its secret half is.
fn told(key: PublicKey, secret: fmt::Arguments<'_>) -> Result<Exit, Failed> {
    tell(format_args!(
        "{secret}; on each machine that shall believe it: smelt fleet trust {key} --name NAME"
    ));
    answer(format_args!("{key}\n"))?;
    Ok(Exit::Ok)
}

fn believe(flags: &TrustFlags) -> Result<Exit, Failed> {
    let path = trust_file(flags.fleet_trust.as_deref())?;
    let key: PublicKey = flags.key.parse().map_err(Failed::usage)?;
    let purposes = match flags.purposes.as_slice() {
        [] => usual_purposes(),
        named => named.iter().copied().map(Purpose::from).collect(),
    };
    let fact = |text: &String| {
        let split =
            text.split_once('=').filter(|(name, value)| !name.is_empty() && !value.is_empty());
        let split = split.map(|(name, value)| (name.to_owned(), value.to_owned()));
        split.ok_or_else(|| Failed::usage(format!("--fact {text}: write NAME=VALUE, as in sm=87")))
    };
    let facts = flags.facts.iter().map(fact).collect::<Result<_, _>>()?;
    let until = flags.until.as_deref().map(|text| date(&flags.name, text));
    let until = until.transpose().map_err(Failed::usage)?;
    let name = flags.name.clone();
    let trusted = TrustedKey { name, key, purposes, facts, until, revoked: None };
    change(&path, |trust| trust.add(trusted).map_err(Failed::usage))?;
    tell(format_args!(
        "what {} vouches for is believed from now on ({})",
        flags.name,
        path.display()
    ));
    Ok(Exit::Ok)
}

fn doubt(flags: &UntrustFlags) -> Result<Exit, Failed> {
    let path = trust_file(flags.fleet_trust.as_deref())?;
    // Since today, whatever the hour.
    let today = now() / DAY_S * DAY_S;
    change(&path, |trust| trust.revoke(&flags.name, today).map_err(Failed::usage))?;
    tell(format_args!(
        "nothing that {} vouched for is believed any more; what was taken before is neither asked nor served, and the next run builds or fetches it again: smelt cache fsck lists it",
        flags.name
    ));
    Ok(Exit::Ok)
}

/// Changes the trust file, whole or not at all.
fn change(
    path: &Path,
    change: impl FnOnce(&mut Trust) -> Result<(), Failed>,
) -> Result<(), Failed> {
    let mut all = if path.exists() { trust(Some(path))? } else { Trust::default() };
    change(&mut all)?;
    make_folder_of(path)?;
    let draft = path.with_extension("toml.new");
    let written = fs::write(&draft, all.to_toml())
        .and_then(|()| fs::File::open(&draft)?.sync_all())
        .and_then(|()| fs::rename(&draft, path));
    written.map_err(|error| {
        Failed::new(Exit::StageFailed, format!("cannot write {}: {error}", path.display()))
    })
}

/// Who vouches for what the server has of a pipeline.
fn verify(flags: &FleetVerifyFlags) -> Result<Exit, Failed> {
    let fleet = Fleet::open(&flags.fleet, &stop_flag()?)?;
    let Loaded { plan, store, .. } = load::plan(&flags.pipeline, Access::Look)?;
    let time = judging_time(&store);
    let (mut rows, mut table) = (Vec::new(), Table::new(&["Stage", "Result", "By"]));
    let mut exit = Exit::Ok;
    for (_, stage) in plan.stages().filter(|(_, stage)| stage.given().is_none()) {
        let found = offer(&fleet.client, Key::Recipe(stage.recipe_key), &fleet.trust, time);
        let (result, by, why) = match found {
            Ok(None) => ("absent", Vec::new(), None),
            Ok(Some(offer)) => ("good", offer.vouched.by, None),
            Err(error) => ("refused", Vec::new(), Some(Failed::model(error).to_string())),
        };
        if result == "refused" {
            exit = Exit::StageFailed;
        }
        let told = why.clone().unwrap_or_else(|| by.join(", "));
        table.row([stage.name.to_string(), result.to_owned(), told]);
        rows.push(json!({ "stage": stage.name.as_str(), "result": result, "by": by, "why": why }));
    }
    if flags.json {
        answer(format_args!("{}\n", json!({ "server": fleet.client.name(), "stages": rows })))?;
    } else {
        answer(table)?;
    }
    Ok(exit)
}

/// `smelt cache push PIPELINE`.
pub(crate) fn push(PushFlags { share: flags, limits }: &PushFlags) -> Result<Exit, Failed> {
    let stop = stop_flag()?;
    let (fleet, signer) = (Fleet::open(&flags.fleet, &stop)?, signer(&flags.fleet.key)?);
    let loaded = load::plan(&flags.pipeline, Access::Use)?;
    let shelf = Shelf::of(&loaded, &fleet.trust)?;
    let chosen = match flags.only.as_slice() {
        [] => shelf.stages(),
        only => {
            only.iter().map(|name| Ok(loaded.plan.find(name)?)).collect::<Result<_, Failed>>()?
        }
    };
    let outcomes =
        push_each(&fleet, &loaded, &signer, (&chosen, limits), &|| !stop.load(Ordering::Relaxed))?;
    if outcomes.is_empty() {
        let message = "nothing of that is built; build it with: smelt run";
        return Err(Failed::new(Exit::StageFailed, message));
    }
    if flags.json {
        let rows: Vec<Value> =
            outcomes.iter().map(|(id, outcome)| outcome.as_json(loaded.plan.stage(*id))).collect();
        answer(format_args!("{}\n", json!({ "server": fleet.client.name(), "stages": rows })))?;
    } else {
        answer(pushed_table(&loaded, &outcomes))?;
    }
    Ok(push::exit_of(&outcomes))
}

pub(crate) fn pushed_table(loaded: &Loaded, outcomes: &[(StageId, Outcome)]) -> Table {
    let mut table = Table::new(&["Stage", "Size", "Sent", ""]);
    for (id, outcome) in outcomes {
        let name = loaded.plan.stage(*id).name.to_string();
        let dash = || "-".to_owned();
        table.row(match outcome {
            Outcome::Pushed(Pushed { bytes: all, sent }) => {
                [name, bytes(*all), bytes(*sent), String::new()]
            }
            Outcome::WasThere => [name, dash(), dash(), "it was there".to_owned()],
            Outcome::Kept(why) => [name, dash(), dash(), format!("not shared: {why}")],
            Outcome::Failed(error) => [name, dash(), dash(), error.to_string()],
        });
    }
    table
}

/// `smelt cache pull PIPELINE`.
pub(crate) fn pull(flags: &ShareFlags) -> Result<Exit, Failed> {
    let stop = stop_flag()?;
    let fleet = Fleet::open(&flags.fleet, &stop)?;
    let loaded = load::plan(&flags.pipeline, Access::Build(Wait::Yes, stop.clone(), Part::All))?;
    let only = flags.only.iter().map(|name| Ok(loaded.plan.find(name)?));
    let only = only.collect::<Result<Vec<_>, Failed>>()?;
    let doubted = vouched::doubted_stages(&loaded.plan, &loaded.store, &fleet.trust)?;
    let (force, given) = (&BTreeSet::new(), &BTreeMap::new());
    let wanted = Wanted { only: &only, force, doubted: &doubted, given };
    let pulled = pull::pull(Some(&fleet), &loaded, &wanted, &stop)?;
    counted::add(&loaded.store, &pulled.counts);
    let lacks = pulled.targets.iter().filter(|id| !pulled.known.contains_key(id));
    let lacks: Vec<&str> = lacks.map(|id| loaded.plan.stage(*id).name.as_str()).collect();
    if flags.json {
        let rows: Vec<Value> = pulled.fetched.iter().map(|it| it.as_json(&loaded.plan)).collect();
        answer(format_args!(
            "{}\n",
            json!({ "server": fleet.client.name(), "fetched": rows, "fetched_bytes": pulled.bytes, "neighbour_bytes": pulled.neighbours, "kept_bytes": pulled.kept, "local_bytes": pulled.local, "missing": lacks })
        ))?;
    } else {
        tell(pulled.line(&loaded.plan));
    }
    if lacks.is_empty() {
        return Ok(Exit::Ok);
    }
    if stop.load(Ordering::Relaxed) {
        return Err(Failed::stopped());
    }
    let message = format!(
        "the fleet has no {} of this pipeline that this machine takes; smelt run builds it",
        lacks.join(", ")
    );
    let exit = if pulled.is_lost { Exit::NotSeen } else { Exit::StageFailed };
    Err(Failed::new(exit, message))
}
