//! `smelt config`: prints what is configured, and where each value comes from.

use serde_json::{Value, json};

use crate::config::{self, Config, Origin, SETTINGS};
use crate::console::{answer, tell};
use crate::exit::{Exit, Failed};
use crate::flags::ConfigFlags;
use crate::table::{Table, some};

pub(crate) fn run(flags: &ConfigFlags) -> Result<Exit, Failed> {
    let config = config::get();
    let said =
        SETTINGS.iter().map(|setting| (setting.name, config.value(setting.name, config::variable)));
    if flags.json {
        let settings: Vec<Value> =
            said.map(|(name, (value, origin))| as_json(name, &value, origin)).collect();
        let text = json!({ "settings": settings, "files": config.files });
        answer(format_args!("{text}\n"))?;
        return Ok(Exit::Ok);
    }
    let mut table = Table::new(&["Setting", "Value", "From"]);
    for (name, (value, origin)) in said {
        let value = if value.is_empty() { "-".to_owned() } else { value };
        table.row([name.to_owned(), value, words(origin)]);
    }
    answer(table)?;
    if let Some(line) = nothing_read(config) {
        tell(line);
    }
    Ok(Exit::Ok)
}

fn words(origin: Origin<'_>) -> String {
    match origin {
        Origin::Environment(name) => format!("${name}"),
        Origin::File(file) => file.display().to_string(),
        Origin::Default => "default".to_owned(),
    }
}

fn as_json(name: &str, value: &str, origin: Origin<'_>) -> Value {
    let (from, place) = match origin {
        Origin::Environment(name) => ("environment", Some(name.to_owned())),
        Origin::File(file) => ("file", Some(file.display().to_string())),
        Origin::Default => ("default", None),
    };
    let value = Some(value).filter(|value| !value.is_empty());
    json!({ "name": name, "value": value, "from": from, "place": place })
}

/// Where a file would be read, if none is there.
fn nothing_read(config: &Config) -> Option<String> {
    let places: Vec<String> =
        config::places().iter().map(|file| file.display().to_string()).collect();
    let is_none = config.files.is_empty();
    is_none.then(|| {
        format!("smelt: no file of configuration is there: {}", some(&places, places.len()))
    })
}
