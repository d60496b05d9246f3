//! Does the work of smelt's own kinds: reads a request, calls one library function, exits with a
//! code the supervisor understands.
//!
//! Runs in a process of its own and writes only into the directory it is given; nothing it leaves
//! is visible to anyone before the supervisor seals it.

use std::io::{self, Read};

use super::request::Request;
use super::worker;
use crate::exit::{Exit, Failed};

/// A request names a stage's params and directories; the pipeline's own limits keep it small.
const REQUEST_BYTES_MAX: u64 = 16 << 20;

/// Does what the request on standard input asks.
pub(crate) fn run() -> Result<Exit, Failed> {
    let mut request = String::new();
    io::stdin()
        .take(REQUEST_BYTES_MAX)
        .read_to_string(&mut request)
        .map_err(|error| Failed::usage(format!("cannot read the request: {error}")))?;
    let request: Request = serde_json::from_str(&request)
        .map_err(|error| Failed::usage(format!("the stage's request does not read: {error}")))?;
    let worker = worker(request.kind);
    let worker = worker.ok_or_else(|| Failed::usage("a command is a program of its own"))?;
    (worker.run)(&request)?;
    Ok(Exit::Ok)
}
