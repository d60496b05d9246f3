//! `tune`: which instructions, threads and sizes of work are fastest on this machine.

use smelt_engine::tactics::Tactics;
use smelt_plan::kind::tune::Tune;
use smelt_plan::kind::words::DecoderBackend;

use super::Worker;
use super::request::{Request, say};
use crate::exit::Failed;

pub(super) const WORKER: Worker = Worker::new(run);

fn run(request: &Request) -> Result<(), Failed> {
    let params: Tune = request.typed()?;
    let tactics = match params.backend {
        DecoderBackend::Native => Tactics::tune(&mut say),
    };
    tactics.write(&request.out).map_err(Failed::model)
}
