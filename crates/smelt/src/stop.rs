//! Hears that the user wants out, while nothing runs that would hear it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::exit::{Exit, Failed};

/// Set by SIGINT and SIGTERM from the first moment on, so that hashing gigabytes can be stopped.
pub(crate) fn stop_flag() -> Result<Arc<AtomicBool>, Failed> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, stop.clone()).map_err(|error| {
            Failed::new(Exit::StageFailed, format!("cannot listen for signals: {error}"))
        })?;
    }
    Ok(stop)
}

/// Lets SIGINT and SIGTERM end this process again, as they did before a run listened to them.
pub(crate) fn listen_no_more() -> Result<(), Failed> {
    let always = Arc::new(AtomicBool::new(true));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_default(signal, always.clone()).map_err(
            |error| Failed::new(Exit::StageFailed, format!("cannot leave signals alone: {error}")),
        )?;
    }
    Ok(())
}
