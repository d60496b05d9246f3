//! Follows what a tag leads to for a server: takes newer versions beside what it answers, and goes back where one does not run.
//!
//! Whether a version runs is found out by the server, which tells it here.  One that does not is remembered, so that no start
//! begins with it.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use smelt_fleet::oci::delivery::{Delivery, Taken};
use smelt_fleet::oci::reference::Reference;
use smelt_store::{Digest, Store};

use super::deliver::{Source, newest_good};
use super::{delivered, incoming};
use crate::config;
use crate::console::{tell, warn};
use crate::exit::{Exit, Failed};

/// How often the tag is asked for where nobody says otherwise.
pub(crate) const EVERY: Duration = Duration::from_secs(60);

/// A tag that is followed.
pub(crate) struct Following {
    /// The deployment that is to be served now.
    dir: Mutex<PathBuf>,
    /// Wakes whoever looks.
    nudge: SyncSender<()>,
}

impl Following {
    /// Begins with the newest version that is here and ran, else with what the tag leads to, and looks for a newer one from
    /// then on.
    pub(crate) fn begin(reference: &Reference, every: Duration) -> Result<Arc<Self>, Failed> {
        let (trust, authority) = (config::trust(), config::authority());
        let source = Source::open(reference, None, (trust.as_deref(), authority.as_deref()), None)?;
        let store = incoming::store()?;
        let newest = |is_fit: fn(&Taken) -> bool| match &source.called {
            Some(name) => newest_good(&store, name, is_fit),
            None => Ok(None),
        };
        let dir = match newest(|it| it.ran)? {
            Some(dir) => dir,
            None => match first(&source, &store) {
                // What was pulled before is better than nothing.
                Err(failed) if failed.exit == Exit::NotSeen => newest(|_| true)?.ok_or(failed)?,
                dir => dir?,
            },
        };
        let (nudge, nudged) = sync_channel(1);
        let following = Arc::new(Self { dir: Mutex::new(dir), nudge });
        // Dropped, it would hold the store for nobody.
        drop(store);
        let own = Arc::clone(&following);
        let follow = move || own.follow(&source, every, &nudged);
        let thread = thread::Builder::new().name("deliveries".to_owned()).spawn(follow);
        thread.map_err(|error| {
            Failed::new(Exit::StageFailed, format!("cannot start a thread: {error}"))
        })?;
        Ok(following)
    }

    /// The deployment that is to be served now.  Whoever asks has it looked for a newer one.
    pub(crate) fn dir(&self) -> PathBuf {
        // One that is awake already need not be woken.
        let _ = self.nudge.try_send(());
        self.dir.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The deployment in `dir` answers.
    pub(crate) fn ran(&self, dir: &Path) {
        let remembered = incoming::store().and_then(|store| {
            delivered::change(&store, |taken| {
                let of = tree_of(dir);
                taken.iter_mut().filter(|it| Some(it.tree) == of).for_each(|it| it.ran = true);
            })
        });
        if let Err(error) = remembered {
            warn(format_args!("what runs is not remembered: {error}"));
        }
    }

    /// The deployment in `dir` does not run: the one before it is served, now and at the next start.
    pub(crate) fn refused(&self, dir: &Path, why: &Failed) {
        let back = go_back(dir, &why.to_string());
        match back {
            Ok(Some(before)) => {
                *self.dir.lock().unwrap_or_else(PoisonError::into_inner) = before;
            }
            Ok(None) => {}
            Err(error) => warn(format_args!("what was refused is not remembered: {error}")),
        }
    }

    fn follow(&self, source: &Source, every: Duration, nudged: &Receiver<()>) {
        let mut told = String::new();
        loop {
            match self.look(source) {
                Ok(()) => told.clear(),
                Err(error) => {
                    let why = error.to_string();
                    if why != told {
                        warn(format_args!("no newer version is taken; what runs stays: {why}"));
                    }
                    told = why;
                }
            }
            // Each look is one request, and no more than one goes in so short a time.
            thread::sleep(every.min(EVERY) / 2);
            let _ = nudged.recv_timeout(every);
        }
    }

    fn look(&self, source: &Source) -> Result<(), Failed> {
        let store = incoming::store()?;
        let found = source.look(Some(&store))?;
        let Delivery { name, version, manifest, .. } = &found.0.vouched.delivery;
        let taken = delivered::taken(&store)?;
        let known = taken.iter().find(|it| it.manifest == *manifest && it.version == *version);
        if known.is_some_and(|it| it.refused.is_some()) {
            return Ok(());
        }
        let here = known.map(|it| store.root().join("out").join(it.tree.to_string()));
        let dir = match here.filter(|dir| dir.is_dir()) {
            Some(dir) => dir,
            None => {
                let took = source.take(&store, &found, false)?;
                tell(format_args!(
                    "took {name}, version {version}, vouched for by {}",
                    took.by.join(", ")
                ));
                took.dir
            }
        };
        *self.dir.lock().unwrap_or_else(PoisonError::into_inner) = dir;
        Ok(())
    }
}

fn first(source: &Source, store: &Store) -> Result<PathBuf, Failed> {
    let found = source.look(Some(store))?;
    let name = &found.0.vouched.delivery.name;
    // A directory says only now what it holds.
    if let Some(dir) = newest_good(store, name, |it| it.ran)? {
        return Ok(dir);
    }
    Ok(source.take(store, &found, false)?.dir)
}

/// Remembers that a version does not run; where the newest is that does.
fn go_back(dir: &Path, why: &str) -> Result<Option<PathBuf>, Failed> {
    let store = incoming::store()?;
    let Some(tree) = tree_of(dir) else { return Ok(None) };
    let mut name = None;
    delivered::change(&store, |taken| {
        for one in taken.iter_mut().filter(|it| it.tree == tree) {
            one.refused = Some(why.to_owned());
            name = Some(one.name.clone());
        }
    })?;
    match name {
        Some(name) => newest_good(&store, &name, |it| it.ran),
        None => Ok(None),
    }
}

fn tree_of(dir: &Path) -> Option<Digest> {
    dir.file_name()?.to_str()?.parse().ok()
}
