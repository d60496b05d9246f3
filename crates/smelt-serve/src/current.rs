//! Keys and certificates as their files are now.
//!
//! Files are looked at every other second and at SIGHUP, and read again where they look otherwise.  What cannot be read
//! changes nothing: who could ask before can still ask, and the log says why.

use std::fmt::Display;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

/// How often files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// What was read at last.  Clones are the same.
#[derive(Debug)]
pub(crate) struct Current<T>(Arc<RwLock<Arc<T>>>);

impl<T> Clone for Current<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Current<T> {
    pub(crate) fn new(first: Arc<T>) -> Self {
        Self(Arc::new(RwLock::new(first)))
    }

    pub(crate) fn get(&self) -> Arc<T> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn set(&self, next: Arc<T>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = next;
    }
}

/// How files look: what changes whenever their contents do.
fn looks(files: &[PathBuf]) -> Vec<Option<[i64; 6]>> {
    let look = |file: &PathBuf| {
        let data = std::fs::metadata(file).ok()?;
        let ids = [data.dev() as i64, data.ino() as i64, data.len() as i64];
        let [device, inode, bytes] = ids;
        Some([device, inode, bytes, data.mtime(), data.mtime_nsec(), data.ctime_nsec()])
    };
    files.iter().map(look).collect()
}

/// Reads `current` again by `read` whenever `files` change or `asked` is notified, for ever.
pub(crate) async fn follow<T: Send + Sync + 'static, E: Display + Send + 'static>(
    what: &'static str,
    current: Current<T>,
    files: Vec<PathBuf>,
    asked: Arc<Notify>,
    read: impl Fn(&T) -> Result<Arc<T>, E> + Send + Sync + 'static,
) {
    let read = Arc::new(read);
    let mut seen = looks(&files);
    loop {
        let is_asked = timeout(LOOK_EVERY, asked.notified()).await.is_ok();
        let now = looks(&files);
        if now == seen && !is_asked {
            continue;
        }
        seen = now;
        let (before, read) = (current.get(), Arc::clone(&read));
        match tokio::task::spawn_blocking(move || read(&before)).await {
            Ok(Ok(next)) => {
                current.set(next);
                tracing::info!("{what} were read again");
            }
            Ok(Err(error)) => tracing::error!("{what} stay as they were: {error}"),
            // A thread that broke has said so.
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paused::paused;

    #[test]
    fn what_is_read_again_takes_its_place_and_what_is_not_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("number");
        std::fs::write(&file, "1").unwrap();
        let runtime = paused();
        runtime.block_on(async {
            let (current, asked) = (Current::new(Arc::new(0)), Arc::new(Notify::new()));
            let path = file.clone();
            let read = move |_: &u32| {
                let text = std::fs::read_to_string(&path).unwrap();
                text.parse().map(Arc::new)
            };
            let files = vec![file.clone()];
            tokio::spawn(follow("numbers", current.clone(), files, Arc::clone(&asked), read));
            let becomes = async |expect: u32| {
                for _ in 0..100 {
                    if *current.get() == expect {
                        return true;
                    }
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                false
            };
            assert!(!becomes(1).await, "nothing has changed");
            asked.notify_one();
            assert!(becomes(1).await, "it is asked for");
            std::fs::write(&file, "22").unwrap();
            assert!(becomes(22).await, "the file has changed");
            std::fs::write(&file, "none").unwrap();
            assert!(!becomes(0).await && *current.get() == 22);
            std::fs::write(&file, "4444").unwrap();
            assert!(becomes(4444).await);
        });
    }
}
