//! `smelt fleet peer`: serves neighbours what this machine's store has of a fleet's results.

use std::net::TcpListener;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use smelt_fleet::beat::Role;
use smelt_fleet::mdns::Announcement;
use smelt_fleet::peer::{PeerOptions, Shelf, serve};
use smelt_fleet::site;
use smelt_store::{Store, Wait};

use crate::console::{tell, warn};
use crate::exit::{Exit, Failed};
use crate::flags::PeerFlags;
use crate::fleet::beating::Beating;
use crate::fleet::{holdings, token};
use crate::load;
use crate::stop::stop_flag;
use crate::table::bytes;

/// How soon a pull that begins is served.
const PULLS_TICK: Duration = Duration::from_millis(200);
/// How soon what was sealed or published otherwise is.
const SEALED_TICK: Duration = Duration::from_secs(1);

pub(crate) fn run(flags: &PeerFlags) -> Result<Exit, Failed> {
    let (stop, root) = (stop_flag()?, load::root()?);
    let token = token(flags.fleet_token_file.as_deref())?;
    // What cannot be opened is told before anybody is let in.
    drop(Store::open(&root, Wait::Yes)?);
    let failed = |error| {
        let message =
            format!("cannot listen at {}: {error}; --listen names another address", flags.listen);
        Failed::new(Exit::StageFailed, message)
    };
    let listener = TcpListener::bind(flags.listen).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let _beating = Beating::begin(&flags.heartbeat, Role::Peer, Box::new(Vec::new))?;
    let id = format!("{:016x}", site::seed());
    let announcement = flags.announce.then(|| Announcement::begin(&id, address.port()));
    let announcement = announcement.transpose().map_err(|error| {
        Failed::new(
            Exit::StageFailed,
            format!("cannot announce this peer: {error}; leave --announce out"),
        )
    })?;
    let whom = if token.is_some() {
        "neighbours that know the fleet's token"
    } else {
        "whoever asks: no token is set"
    };
    tell(format_args!("serving chunks by their digests at {address} to {whom}"));
    let shelf = Arc::new(Shelf::default());
    let options = PeerOptions { token, bytes_per_s: flags.rate, id: id.clone() };
    let sent = thread::scope(|scope| {
        scope.spawn(|| watch_sealed(&root, &shelf, &id, &stop));
        scope.spawn(|| watch_pulls(&root, &shelf, &stop));
        let sent = serve(listener, shelf.clone(), &options, &stop);
        // Else the others go on.
        stop.store(true, Ordering::Relaxed);
        sent
    });
    drop(announcement);
    let sent =
        sent.map_err(|error| Failed::new(Exit::StageFailed, format!("cannot serve: {error}")))?;
    tell(format_args!("sent {} chunks, {}", sent.chunks, bytes(sent.bytes)));
    Ok(Exit::Ok)
}

/// Serves what is sealed, and looks again when that may be something else.
fn watch_sealed(root: &Path, shelf: &Shelf, id: &str, stop: &AtomicBool) {
    let (mut looked, mut said) = (None, String::new());
    while !stop.load(Ordering::Relaxed) {
        let looks = looks(root);
        if looked != Some(looks) {
            match look(root, shelf, id, stop) {
                Ok(()) => looked = Some(looks),
                Err(failed) if failed.to_string() == said => {}
                Err(failed) => {
                    said = failed.to_string();
                    warn(format_args!("the store is not looked at: {said}"));
                }
            }
        }
        thread::sleep(SEALED_TICK);
    }
}

fn look(root: &Path, shelf: &Shelf, id: &str, stop: &AtomicBool) -> Result<(), Failed> {
    // It is let go at once: a repair waits until nobody has it.
    let sealed = {
        let store = Store::open(root, Wait::No)?;
        holdings::keep_own_peer(&store, id);
        holdings::sealed(&store)?
    };
    shelf.set_sealed(&sealed, stop);
    Ok(())
}

fn watch_pulls(root: &Path, shelf: &Shelf, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        shelf.set_coming(&holdings::coming(root));
        thread::sleep(PULLS_TICK);
    }
}

/// When outputs, their records and notes were changed last: nothing of them is looked at while that stays.
fn looks(root: &Path) -> [(i64, i64, u64); 3] {
    ["out", "ac.log", "notes"].map(|name| {
        let stat = root.join(name).metadata().ok();
        stat.map_or((0, 0, 0), |stat| (stat.mtime(), stat.mtime_nsec(), stat.len()))
    })
}
