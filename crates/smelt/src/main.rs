//! Runs the command line: flags in, one library call, answer out.
//!
//! The only place that turns errors into exit codes and text; see [`exit`].

// They panic when a reader has gone away; `console` does not.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod accuracy;
mod atomic_dir;
mod built;
mod cards;
mod carried;
mod checkpoint;
mod checkpoints;
mod claim;
mod commands;
mod console;
mod device;
mod exit;
mod flags;
mod forecast;
mod graph;
mod history;
mod hub;
mod integrity;
mod ladder;
mod last_run;
mod leases;
mod live;
mod load;
mod memo;
mod open_checkpoint;
mod paint;
mod photographs;
mod pins;
mod price;
mod progress;
mod reboot;
mod refusals;
mod report;
mod resource_needs;
mod sees;
mod stage;
mod table;
mod telling;
mod tools;
mod towers;
mod unfinished;
mod user_signatures;
mod version;
mod view;

use std::env;
use std::ffi::OsString;
use std::process::ExitCode;

use clap::FromArgMatches as _;

use crate::exit::{Exit, Failed};
use crate::flags::{Flags, Subcommand};
use crate::paint::When;

fn main() -> ExitCode {
    exit::report_bugs();
    let flags = read(&env::args_os().collect::<Vec<_>>());
    paint::decide(flags.manner.color);
    console::set_volume(flags.manner.volume());
    let Some(command) = flags.command else { return ended(commands::next::run()) };
    let result = match command {
        Subcommand::Demo(flags) => commands::demo::run(&flags),
        Subcommand::Run(flags) => commands::run::run(&flags),
        Subcommand::Resume(flags) => commands::resume::run(&flags),
        Subcommand::Plan(flags) => commands::plan::run(&flags),
        Subcommand::Explain(flags) => commands::explain::run(&flags),
        Subcommand::Out(flags) => commands::out::run(&flags),
        Subcommand::Runs(flags) => commands::runs::run(&flags),
        Subcommand::Report(flags) => commands::report::run(&flags),
        Subcommand::Graph(flags) => commands::graph::run(&flags),
        Subcommand::Doctor(flags) => commands::doctor::run(&flags),
        Subcommand::Watch(flags) => commands::watch::run(&flags),
        Subcommand::Schema => commands::describe::schema(),
        Subcommand::Completions(flags) => commands::describe::completions(&flags),
        Subcommand::Man(flags) => commands::describe::man(&flags),
        Subcommand::Ls(flags) => commands::ls::run(&flags),
        Subcommand::Rm(flags) => commands::rm::run(&flags),
        Subcommand::Chat(flags) => commands::chat::run(&flags),
        Subcommand::Serve(flags) => commands::serve::run(&flags),
        Subcommand::Embed(flags) => commands::embed::run(&flags),
        Subcommand::Rerank(flags) => commands::rerank::run(&flags),
        Subcommand::Export(flags) => commands::export::run(&flags),
        Subcommand::Calibrate(flags) => commands::calibrate::run(&flags),
        Subcommand::Quantize(flags) => commands::quantize::run(&flags),
        Subcommand::Onnx(command) => commands::onnx::run(&command),
        Subcommand::Cache(command) => commands::cache::run(&command),
        Subcommand::Bench(command) => commands::bench::run(&command),
        Subcommand::Stage(flags) => stage::run(&flags),
    };
    ended(result)
}

/// How smelt ends, after it said why where it did not answer.
fn ended(result: Result<Exit, Failed>) -> ExitCode {
    let exit = match result {
        Ok(exit) => exit,
        Err(error) => {
            console::fail(&error);
            error.exit
        }
    };
    exit.into()
}

/// The flags; a fault of theirs ends smelt.
fn read(arguments: &[OsString]) -> Flags {
    let command = flags::command().color(When::in_arguments(arguments).for_clap());
    let matches = command.get_matches_from(arguments);
    Flags::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}
