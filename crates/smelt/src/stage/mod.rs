//! The parts of a stage that run in processes of their own: the shim, and
//! the work of smelt's own kinds.

pub(crate) mod order;
mod phases;
mod request;
mod work;

pub(crate) mod calibrate;
pub(crate) mod deployment;
pub(crate) mod film;
mod source;
mod strict;
mod surgery;
mod verify;

use std::io::{self, Read};

use smelt_exec::call_process;

use crate::exit::{Exit, Failed};
use crate::flags::{StageFlags, StagePart};

/// A request names a stage's params and directories; the pipeline's own limits keep it small.
const REQUEST_BYTES_MAX: u64 = 16 << 20;

pub(crate) fn run(flags: &StageFlags) -> Result<Exit, Failed> {
    match &flags.part {
        StagePart::Shim { space } => {
            call_process("smelt-shim");
            match smelt_exec::shim::main(*space) {
                0 => Ok(Exit::Ok),
                _ => Ok(Exit::StageFailed),
            }
        }
        StagePart::Film { arguments } => film::run(arguments),
        StagePart::Work { name } => {
            call_process(&format!("smelt:{}", name.as_deref().unwrap_or("stage")));
            let mut request = String::new();
            io::stdin()
                .take(REQUEST_BYTES_MAX)
                .read_to_string(&mut request)
                .map_err(|error| Failed::usage(format!("cannot read the request: {error}")))?;
            work::run(&request)
        }
    }
}
