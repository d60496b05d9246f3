//! Runs the command line: flags in, one library call, answer out.
//!
//! The only place that turns errors into exit codes and text; see [`exit`].

// They panic when a reader has gone away; `console` does not.
#![warn(clippy::print_stdout, clippy::print_stderr)]
// A smelt that only serves leaves modules out, and has no use for some small functions of those that both have.
#![cfg_attr(not(feature = "build"), allow(dead_code))]

mod accuracy;
mod arguments;
mod atomic_dir;
mod bug;
mod built;
mod cards;
mod carried;
mod check;
mod claim;
mod commands;
mod config;
mod console;
mod device;
mod exit;
mod film;
mod flags;
mod fleet;
mod history;
mod hub;
mod integrity;
mod last_run;
mod leases;
mod leftovers;
mod live;
mod load;
mod loading;
mod model_name;
mod paint;
mod pins;
mod reading;
mod shipped;
mod speeds;
mod stop;
mod story;
mod table;
mod telling;
mod tools;
mod unfinished;
mod upstream;
mod version;
mod view;

// What builds, and what says beforehand how that will go.
#[cfg(feature = "build")]
mod checkpoint;
#[cfg(feature = "build")]
mod checkpoints;
#[cfg(feature = "build")]
mod course;
#[cfg(feature = "build")]
mod device_profile;
#[cfg(feature = "build")]
mod draft;
#[cfg(feature = "build")]
mod events;
#[cfg(feature = "build")]
mod export_options;
#[cfg(feature = "build")]
mod gguf_headers;
#[cfg(feature = "build")]
mod gpu_profile;
#[cfg(feature = "build")]
mod known_bad;
#[cfg(feature = "build")]
mod ladder;
#[cfg(feature = "build")]
mod memo;
#[cfg(feature = "build")]
mod model_facts;
#[cfg(feature = "build")]
mod open_checkpoint;
#[cfg(feature = "build")]
mod price;
#[cfg(feature = "build")]
mod progress;
#[cfg(feature = "build")]
mod readiness;
#[cfg(feature = "build")]
mod reboot;
#[cfg(feature = "build")]
mod refusals;
#[cfg(feature = "build")]
mod resource_needs;
#[cfg(feature = "build")]
mod secrets;
#[cfg(feature = "build")]
mod sees;
#[cfg(feature = "build")]
mod stage;
#[cfg(feature = "build")]
mod user_signatures;

use std::env;
use std::ffi::OsString;
use std::process::ExitCode;

use clap::FromArgMatches as _;
use smelt_exec::containers;

#[cfg(not(feature = "build"))]
use crate::commands::absent as half;
#[cfg(feature = "build")]
use crate::commands::building as half;
use crate::exit::{Exit, Failed};
use crate::flags::{Flags, Subcommand};
use crate::paint::When;

fn main() -> ExitCode {
    bug::report();
    let arguments: Vec<_> = env::args_os().collect();
    if let Some(error) = containers::called(&arguments) {
        let message = format!("a container engine cannot be called: {error}");
        return ended(Err(Failed::new(Exit::StageFailed, message)));
    }
    let configured = configure(&arguments);
    let flags = read(&arguments);
    paint::decide(flags.manner.color);
    console::set_volume(flags.manner.volume());
    if let Err(failed) = configured.or_else(|failed| unless_said(flags.command.as_ref(), failed)) {
        return ended(Err(failed));
    }
    let Some(command) = flags.command else { return ended(commands::next::run()) };
    let result = match command {
        Subcommand::Demo(flags) => commands::demo::run(&flags),
        Subcommand::Pipeline(command) => half::pipeline(&command),
        Subcommand::Explain(flags) => commands::explain::run(&flags),
        Subcommand::Out(flags) => commands::out::run(&flags),
        Subcommand::Runs(flags) => commands::runs::run(&flags),
        Subcommand::Report(flags) => commands::report::run(&flags),
        Subcommand::Graph(flags) => commands::graph::run(&flags),
        Subcommand::Bundle(flags) => commands::bundle::run(&flags),
        Subcommand::Unbundle(flags) => commands::unbundle::run(&flags),
        Subcommand::Deliver(command) => commands::deliver::run(&command),
        Subcommand::Config(flags) => commands::config::run(&flags),
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
        Subcommand::Model(command) => half::model(&command),
        Subcommand::Cache(command) => commands::cache::run(&command),
        Subcommand::Fleet(command) => commands::fleet::run(&command),
        Subcommand::Provenance(flags) => commands::provenance::run(&flags),
        Subcommand::Bench(command) => commands::bench::run(&command),
        Subcommand::Stage(flags) => commands::stage::run(&flags),
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

/// Reads the files of configuration.  What smelt starts itself was told everything.
fn configure(arguments: &[OsString]) -> Result<(), Failed> {
    match arguments.get(1).is_some_and(|word| word == "stage") {
        true => Ok(()),
        false => config::load(config::named(arguments).as_deref()),
    }
}

/// Commands that say what smelt is are of use whatever is configured: shells start with them.
fn unless_said(command: Option<&Subcommand>, failed: Failed) -> Result<(), Failed> {
    use Subcommand::{Completions, Man, Schema};
    match command {
        Some(Completions(_) | Man(_) | Schema) => Ok(()),
        _ => Err(failed),
    }
}

/// The flags; a fault of theirs ends smelt.
fn read(arguments: &[OsString]) -> Flags {
    let command = config::get()
        .with_defaults(flags::command())
        .color(When::in_arguments(arguments).for_clap());
    let matches = command.get_matches_from(arguments);
    Flags::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}
