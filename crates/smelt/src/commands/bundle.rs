//! `smelt bundle`: sealed outputs with their records as one file, for a machine that builds nothing.

use std::time::SystemTime;

use smelt_store::Digest;
use smelt_store::bundle::{self, BundleError, Written};

use super::target;
use crate::console::tell;
use crate::exit::{Exit, Failed};
use crate::flags::BundleFlags;
use crate::fleet::outgoing::outputs;
use crate::load::{self, Access};
use crate::table::bytes;
use crate::telling::Telling;

pub(crate) fn run(flags: &BundleFlags) -> Result<Exit, Failed> {
    let mut wanted = Vec::new();
    for target in &flags.targets {
        wanted.extend(target::sealed(target, &flags.sets, flags.all)?);
    }
    let store = load::store(&Access::Look)?;
    let trees: Vec<Digest> = wanted.iter().map(|sealed| sealed.tree).collect();
    // A store that only can be read has nobody who collects.
    let holder = store.begin_hold(SystemTime::now()).ok();
    holder.as_ref().map_or(Ok(()), |holder| holder.hold(&trees))?;
    let outputs = outputs(&store, &wanted)?;
    if outputs.is_empty() {
        return Err(Failed::new(
            Exit::StageFailed,
            "nothing of that is built; build it with: smelt run",
        ));
    }
    let all = outputs.iter().map(|(output, _)| output.files.bytes()).sum::<u64>();
    let written = {
        let (mut telling, mut done) = (Telling::new(), 0);
        let out = flags.out.display();
        bundle::write(&outputs, &flags.out, &mut |some| {
            done += some;
            telling.hear(&format!("[{done}/{all}] writing {out}"));
        })
        .map_err(failed)?
    };
    let (out, count, size) = (flags.out.display(), outputs.len(), bytes(all));
    let said = match written {
        Written::Before => "it was there, whole".to_owned(),
        Written::Now { kept: 0 } => "written".to_owned(),
        Written::Now { kept } => format!("written; {} of it were there", bytes(kept)),
    };
    tell(format_args!(
        "{out}: {count} outputs, {size}, {said}; unpack it by: smelt unbundle {out}"
    ));
    Ok(Exit::Ok)
}

/// What was wrong with the bundle is a bad file; the rest is this machine's.
pub(super) fn failed(error: BundleError) -> Failed {
    let exit = match &error {
        error if error.is_of_bundle() => Exit::BadModel,
        BundleError::Exists { .. } | BundleError::TooMany { .. } => Exit::Usage,
        BundleError::Held { .. } => Exit::Held,
        _ => Exit::StageFailed,
    };
    let full =
        if error.is_disk_full() { "; free some space, then the same command goes on" } else { "" };
    Failed::new(exit, format!("{error}{full}"))
}
