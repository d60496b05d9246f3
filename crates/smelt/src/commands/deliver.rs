//! `smelt deliver`: one deployment by a registry of OCI artifacts, or by a directory of their form.

use std::path::PathBuf;
use std::time::SystemTime;

use serde_json::json;
use smelt_fleet::dsse::Envelope;
use smelt_fleet::keys::{KeyError, SigningKey};
use smelt_fleet::oci::artifact::{self, Artifact, ArtifactError};
use smelt_fleet::oci::delivery::{Delivery, Taken, merged, newest, next_version, remember};
use smelt_fleet::oci::place::Name;
use smelt_fleet::oci::send::{self, Sent};
use smelt_fleet::trust::{Purpose, Trust, TrustedKey};
use smelt_store::Digest;
use smelt_store::bundle::{BundledKey, BundledOutput};

use super::target;
use crate::built;
use crate::console::{answer, tell, warn};
use crate::exit::{Exit, Failed};
use crate::flags::{
    DeliverCommand, DeliverPullFlags, DeliverPushFlags, DeliverShowFlags, DeliverSignFlags,
    PlaceFlags,
};
use crate::fleet::deliver::{Source, Took, check_deployment, of_place};
use crate::fleet::delivered::{self, Delivered};
use crate::fleet::outgoing::outputs;
use crate::fleet::{incoming, now, signer};
use crate::load::{self, Access};
use crate::table::bytes;
use crate::telling::Telling;
use crate::version::BUILDER;

/// What this machine's own key is called, where it is not in the trust file.
const OWN: &str = "this-machine";

pub(crate) fn run(command: &DeliverCommand) -> Result<Exit, Failed> {
    match command {
        DeliverCommand::Push(flags) => push(flags),
        DeliverCommand::Pull(flags) => pull(flags),
        DeliverCommand::Sign(flags) => sign(flags),
        DeliverCommand::Show(flags) => show(flags),
    }
}

fn source(flags: &PlaceFlags, least: Option<u16>) -> Result<Source, Failed> {
    let files = (flags.fleet_trust.as_deref(), flags.fleet_ca.as_deref());
    Source::open(&flags.place, flags.name.as_deref(), files, least)
}

fn push(flags: &DeliverPushFlags) -> Result<Exit, Failed> {
    let source = source(&flags.place, None)?;
    let name = called(&source)?;
    let signer = signer(&flags.key)?;
    let wanted = target::sealed(&flags.target, &flags.sets, false)?;
    if wanted.len() > 1 {
        let message = format!(
            "{} has several deployments; one is delivered at a time: name it as {0}#STAGE",
            flags.target.display()
        );
        return Err(Failed::usage(message));
    }
    let store = load::store(&Access::Look)?;
    let holder = store.begin_hold(SystemTime::now())?;
    holder.hold(&wanted.iter().map(|sealed| sealed.tree).collect::<Vec<_>>())?;
    let outputs: Vec<_> =
        outputs(&store, &wanted)?.into_iter().map(|(it, dir)| (plain(it), dir)).collect();
    let none =
        || Failed::new(Exit::StageFailed, "nothing of that is built; build it with: smelt run");
    let last = &outputs.last().ok_or_else(none)?.0;
    let tree = last.tree;
    check_deployment(Some(last), &flags.target.display())?;
    let artifact = made(&outputs, &name)?;
    let manifest = Digest::of(&artifact.manifest);
    let there = there(&source, &signer)?;
    if let Some(there) = there.as_ref().filter(|it| it.manifest == manifest && it.name == name) {
        tell(format_args!("{} is there already, as version {}", source.reference, there.version));
        return said(&flags.place, &there.delivery(&outputs), Sent::default());
    }
    let taken = delivered::taken(&store)?;
    let version = next_version(&taken, &name, there.map(|it| it.version));
    let delivery = Delivery {
        name: name.clone(),
        version,
        manifest,
        outputs: outputs.iter().map(|(output, _)| output.tree).collect(),
        signed: now(),
        builder: BUILDER.to_owned(),
    };
    let payload = delivery.to_json().map_err(Failed::usage)?;
    let envelope = Envelope::sign(payload, &[&signer]).map_err(of_key)?;
    let sent = sent(&source, &artifact, &outputs, &name)?;
    let put = send::put_statement(&source.place, &artifact.manifest, &envelope);
    put.map_err(|error| of_place(&error))?;
    let put = send::put_tag(&source.place, &source.reference.tag, &artifact.manifest);
    put.map_err(|error| of_place(&error))?;
    delivered::change(&store, |all| {
        remember(all, Taken { name, version, manifest, tree, ran: false, refused: None });
    })?;
    tell(format_args!(
        "{}: version {version}, {} in {} layers, {} of them sent; on each machine that believes {}: smelt deliver pull {0}",
        source.reference,
        bytes(sent.bytes),
        artifact.slices.len(),
        bytes(sent.sent),
        signer.public()
    ));
    said(&flags.place, &delivery, sent)
}

fn said(flags: &PlaceFlags, delivery: &Delivery, sent: Sent) -> Result<Exit, Failed> {
    if flags.json {
        let Delivery { name, version, manifest, outputs, .. } = delivery;
        let text = json!({
            "name": name, "version": version, "manifest": manifest, "outputs": outputs,
            "bytes": sent.bytes, "sent_bytes": sent.sent,
        });
        answer(format_args!("{text}\n"))?;
    }
    Ok(Exit::Ok)
}

/// What a delivery to a place is called; a directory does not say it.
fn called(source: &Source) -> Result<String, Failed> {
    let none = || {
        let message = format!(
            "{}: a directory does not say what is delivered by it: add --name NAME:TAG, as in --name demo:{}",
            source.reference, source.reference.tag
        );
        Failed::usage(message)
    };
    source.called.clone().ok_or_else(none)
}

/// Whoever delivers it vouches for it, and nobody who delivered it before.
fn plain(output: BundledOutput) -> BundledOutput {
    let plain = |key: BundledKey| {
        let mut record = key.record();
        Delivered::take_from(&mut record);
        BundledKey::new(key.key, key.recipes, &record)
    };
    let keys = output.keys.into_iter().map(plain).collect();
    BundledOutput { keys, ..output }
}

fn made(outputs: &[(BundledOutput, PathBuf)], name: &str) -> Result<Artifact, Failed> {
    let all = outputs.iter().map(|(output, _)| output.files.bytes()).sum::<u64>();
    let (mut telling, mut done) = (Telling::new(), 0);
    let artifact = Artifact::of(outputs, &mut |some| {
        done += some;
        telling.hear(&format!("[{done}/{all}] hashing {name}"));
    });
    artifact.map_err(|error| match error {
        error @ ArtifactError::TooMany { .. } => Failed::usage(error),
        error => Failed::new(Exit::StageFailed, error),
    })
}

fn sent(
    source: &Source,
    artifact: &Artifact,
    outputs: &[(BundledOutput, PathBuf)],
    name: &str,
) -> Result<Sent, Failed> {
    let all = artifact.slices.iter().map(|slice| slice.bytes).sum::<u64>();
    let (mut telling, mut done) = (Telling::new(), 0);
    let sent = send::send(&source.place, artifact, outputs, &mut |some| {
        done += some;
        telling.hear(&format!("[{done}/{all}] pushing {name}"));
    });
    sent.map_err(|error| of_place(&error))
}

/// The delivery that a tag leads to now.
struct There {
    manifest: Digest,
    name: String,
    version: u64,
}

impl There {
    fn delivery(&self, outputs: &[(BundledOutput, PathBuf)]) -> Delivery {
        Delivery {
            name: self.name.clone(),
            version: self.version,
            manifest: self.manifest,
            outputs: outputs.iter().map(|(output, _)| output.tree).collect(),
            signed: now(),
            builder: BUILDER.to_owned(),
        }
    }
}

/// What was delivered there last, if anything, by this machine's key or somebody whom it believes.
fn there(source: &Source, signer: &SigningKey) -> Result<Option<There>, Failed> {
    let place = &source.place;
    if place.is_new() {
        return Ok(None);
    }
    let found = place.manifest(Name::Tag(&source.reference.tag));
    let Some(found) = found.map_err(|error| of_place(&error))? else { return Ok(None) };
    let manifest = Digest::of(&found);
    let statements = place.statements(manifest).map_err(|error| of_place(&error))?;
    match newest(&with_own(&source.trust, signer), statements, (manifest, None), 1, now()) {
        Ok(vouched) => {
            let Delivery { name, version, .. } = vouched.delivery;
            Ok(Some(There { manifest, name, version }))
        }
        Err(refusal) => {
            warn(format_args!(
                "what {} leads to now is replaced, and its version is not counted: {refusal}",
                source.reference
            ));
            Ok(None)
        }
    }
}

fn of_key(error: KeyError) -> Failed {
    Failed::new(Exit::StageFailed, error)
}

/// Whom a machine believes that counts versions: itself, too.
fn with_own(trust: &Trust, signer: &SigningKey) -> Trust {
    let mut trust = trust.clone();
    let own = signer.public();
    if trust.by_id(own.id()).is_none() {
        let purposes = [Purpose::Delivery].into();
        let (name, facts) = (OWN.to_owned(), Default::default());
        trust.keys.push(TrustedKey { name, key: own, purposes, facts, until: None, revoked: None });
    }
    trust
}

fn pull(flags: &DeliverPullFlags) -> Result<Exit, Failed> {
    let source = source(&flags.place, flags.least)?;
    let store = incoming::store()?;
    let found = source.look(Some(&store))?;
    let took = source.take(&store, &found, flags.allow_older)?;
    if flags.place.json {
        answer(format_args!("{}\n", took.as_json()))?;
    } else {
        tell_took(&took)?;
    }
    Ok(Exit::Ok)
}

fn tell_took(took: &Took) -> Result<(), Failed> {
    let Delivery { name, version, outputs, .. } = &took.delivery;
    let here = match took.fetched.kept {
        0 => String::new(),
        kept => format!(" and {} that were here", bytes(kept)),
    };
    tell(format_args!(
        "{name}, version {version}: {} outputs, {}{here}, vouched for by {}",
        outputs.len(),
        bytes(took.fetched.bytes),
        took.by.join(", ")
    ));
    let all = built::all()?;
    let tree = outputs.last();
    if let Some(built) = all.iter().find(|built| Some(&built.tree) == tree) {
        tell(format_args!("ask it by: smelt {} {}", built.asked_by(), built.name(&all)));
    }
    Ok(())
}

fn sign(flags: &DeliverSignFlags) -> Result<Exit, Failed> {
    let source = source(&flags.place, Some(1))?;
    let signer = signer(&flags.key)?;
    let (found, _) = source.look(None)?;
    let Delivery { name, version, .. } = &found.vouched.delivery;
    let mut envelope = found.vouched.envelope.clone();
    let is_signed =
        |envelope: &Envelope| envelope.signatures.iter().any(|it| it.key == signer.public().id());
    if is_signed(&envelope) {
        tell(format_args!("this machine's key has signed version {version} of {name} already"));
        return Ok(Exit::Ok);
    }
    envelope.countersign(&[&signer]).map_err(of_key)?;
    let put = send::put_statement(&source.place, &found.manifest, &envelope);
    put.map_err(|error| of_place(&error))?;
    // Somebody may have written the list at the same time.
    let manifest = Digest::of(&found.manifest);
    let now_there = source.place.statements(manifest).map_err(|error| of_place(&error))?;
    if !merged(now_there).iter().any(is_signed) {
        let message = format!("somebody else signed {} just now: sign it again", source.reference);
        return Err(Failed::new(Exit::StageFailed, message));
    }
    let count = envelope.signatures.len();
    tell(format_args!("version {version} of {name} is signed by {count} keys now"));
    Ok(Exit::Ok)
}

fn show(flags: &DeliverShowFlags) -> Result<Exit, Failed> {
    let source = source(&flags.place, Some(1))?;
    let (found, _) = source.look(None)?;
    let Delivery { name, version, manifest, outputs, .. } = &found.vouched.delivery;
    let by = &found.vouched.by;
    let layers = artifact::config_of(&found.manifest);
    let (layers, _) = layers.map_err(Failed::model)?;
    let size = layers.layers.iter().map(|layer| layer.size).fold(0, u64::saturating_add);
    if flags.place.json {
        let text = json!({
            "name": name, "version": version, "manifest": manifest, "outputs": outputs, "by": by, "bytes": size,
        });
        answer(format_args!("{text}\n"))?;
    } else {
        answer(format_args!(
            "{name}, version {version}: {} outputs, {}, vouched for by {}\n",
            outputs.len(),
            bytes(size),
            by.join(", ")
        ))?;
    }
    Ok(Exit::Ok)
}
