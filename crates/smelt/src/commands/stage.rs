//! `smelt stage`: the parts of stages and of servers that run in processes of their own.

use smelt_exec::call_process;

use crate::exit::{Exit, Failed};
use crate::film;
use crate::flags::{StageFlags, StagePart};

pub(crate) fn run(flags: &StageFlags) -> Result<Exit, Failed> {
    match &flags.part {
        StagePart::Shim { space, mapped } => {
            call_process("smelt-shim");
            match smelt_exec::shim::main(*space, *mapped) {
                0 => Ok(Exit::Ok),
                _ => Ok(Exit::StageFailed),
            }
        }
        StagePart::Lead { program, arguments } => {
            call_process("smelt-lead");
            // The program's code, whatever it is, is for whoever started it.
            std::process::exit(smelt_exec::lead::main(program, arguments).into())
        }
        StagePart::Film { arguments } => film::run(arguments),
        StagePart::Work { name } => {
            call_process(&format!("smelt:{}", name.as_deref().unwrap_or("stage")));
            work()
        }
    }
}

#[cfg(feature = "build")]
fn work() -> Result<Exit, Failed> {
    crate::stage::work::run()
}

#[cfg(not(feature = "build"))]
fn work() -> Result<Exit, Failed> {
    Err(super::absent::refused("stage work"))
}
