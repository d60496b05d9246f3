//! A runtime for tests, whose clock goes on by itself where all wait.

use tokio::runtime::{Builder, Runtime};

pub(crate) fn paused() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}
