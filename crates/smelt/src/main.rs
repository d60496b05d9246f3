//! Runs the command line: flags in, one library call, answer out.
//!
//! The only place that turns errors into exit codes and text; see [`exit`].

mod commands;
mod exit;
mod flags;
mod load;
mod progress;
mod stage;
mod table;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use crate::flags::{Flags, Subcommand};

fn main() -> ExitCode {
    exit::report_bugs();
    let flags = Flags::parse();
    let result = match flags.command {
        Subcommand::Run(flags) => commands::run::run(&flags),
        Subcommand::Plan(flags) => commands::plan::run(&flags),
        Subcommand::Out(flags) => commands::out::run(&flags),
        Subcommand::Chat(flags) => commands::chat::run(&flags),
        Subcommand::Stage(flags) => stage::run(&flags),
    };
    let exit = match result {
        Ok(exit) => exit,
        Err(error) => {
            eprintln!("smelt: {error}");
            error.exit
        }
    };
    // A reader that has gone away (head, a closed pager) is no failure of ours.
    let _ = std::io::stdout().flush();
    exit.into()
}
