//! `smelt schema`, `completions` and `man`: describe smelt to editors, shells and readers.

use clap::Command;

use crate::console::answer;
use crate::exit::{Exit, Failed};
use crate::flags::{self, CompletionsFlags, ManFlags};

/// Prints the JSON Schema of the pipeline file.
pub(crate) fn schema() -> Result<Exit, Failed> {
    let text = serde_json::to_string_pretty(&smelt_plan::schema()).expect("plain data is JSON");
    answer(format_args!("{text}\n"))?;
    Ok(Exit::Ok)
}

/// Prints a script that the shell reads.
pub(crate) fn completions(flags: &CompletionsFlags) -> Result<Exit, Failed> {
    let mut text = Vec::new();
    clap_complete::generate(flags.shell, &mut flags::command(), "smelt", &mut text);
    answer(String::from_utf8_lossy(&text))?;
    Ok(Exit::Ok)
}

/// Prints a manual page in roff.
pub(crate) fn man(flags: &ManFlags) -> Result<Exit, Failed> {
    let mut root = flags::command();
    // Names of subcommands' pages: smelt-onnx-check.
    root.build();
    let page = clap_mangen::Man::new(find(&root, &flags.command)?.clone());
    let mut text = Vec::new();
    page.render(&mut text).map_err(|error| {
        Failed::new(Exit::StageFailed, format!("cannot write the page: {error}"))
    })?;
    answer(String::from_utf8_lossy(&text))?;
    Ok(Exit::Ok)
}

fn find<'a>(root: &'a Command, names: &[String]) -> Result<&'a Command, Failed> {
    names.iter().try_fold(root, |command, name| {
        let found = command.get_subcommands().find(|found| found.get_name() == name);
        found.filter(|found| !found.is_hide_set()).ok_or_else(|| {
            Failed::usage(format!("no command \"{}\"; `smelt help` lists them", names.join(" ")))
        })
    })
}
