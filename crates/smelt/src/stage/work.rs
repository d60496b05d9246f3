//! Does the work of smelt's own kinds: reads a request, calls one library function, exits with a
//! code the supervisor understands.
//!
//! Runs in a process of its own and writes only into the directory it is given; nothing it leaves
//! is visible to anyone before the supervisor seals it.

use super::request::Request;
use super::worker;
use crate::exit::{Exit, Failed};

pub(crate) fn run(request: &str) -> Result<Exit, Failed> {
    let request: Request = serde_json::from_str(request)
        .map_err(|error| Failed::usage(format!("the stage's request does not read: {error}")))?;
    let worker = worker(request.kind);
    let worker = worker.ok_or_else(|| Failed::usage("a command is a program of its own"))?;
    (worker.run)(&request)?;
    Ok(Exit::Ok)
}
