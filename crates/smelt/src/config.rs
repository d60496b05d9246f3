//! Finds the values that this machine's configuration names, for what neither a flag nor the environment says.
//!
//! They are in two files of TOML, `/etc/smelt/config.toml` and over it the user's own, or in the one alone that `--config`
//! names.  The parser of the command line takes them for its defaults.  None of them enters a key.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use clap::builder::Resettable;
use clap::{Arg, Command, ValueEnum as _};
use smelt_fleet::address::PeerList;
use smelt_plan::quantity;
use smelt_plan::text::nearest;
use toml::{Table, Value};

use crate::arguments::early;
use crate::exit::Failed;
use crate::flags::{self, Push};
use crate::reading::read_within;

/// The machine's own, for all its users.
const MACHINE_FILE: &str = "/etc/smelt/config.toml";
/// What a user's own is called, beside the files of a fleet.
const USER_FILE: &str = "config.toml";
/// Names the only file, as the flag does.
pub(crate) const VARIABLE: &str = "SMELT_CONFIG";
/// People write it: a larger file is something else.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// What may be set.
pub(crate) struct Setting {
    /// Its name, behind that of its table.
    pub(crate) name: &'static str,
    /// The variable that overrules files; empty where there is none.
    pub(crate) variable: &'static str,
    /// The flag that overrules both, by its name in the declarations; empty where there is none.
    flag: &'static str,
    /// Its value where nobody names one.
    default: &'static str,
    form: Form,
}

/// What a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// The path of a file or folder; a relative one begins at the folder of the file that says it.
    Path,
    /// The same of a file with a secret, which the variable holds itself.
    Secret,
    Size,
    Jobs,
    Address,
    LockAddress,
    Heartbeat,
    Peers,
    Worker,
    Push,
    Kinds,
}

impl Form {
    /// Says why a text is no such value.
    fn check(self, text: &str) -> Result<(), String> {
        if text.contains(char::is_control) {
            return Err("it holds a control character".to_owned());
        }
        match self {
            Self::Path | Self::Secret if text.is_empty() => Err("a path is not empty".to_owned()),
            Self::Path | Self::Secret if text.starts_with('~') => {
                Err("no shell reads it: write the whole path instead of ~".to_owned())
            }
            Self::Path | Self::Secret => Ok(()),
            Self::Size => quantity::bytes(text).map(drop).map_err(|error| error.to_string()),
            Self::Jobs => flags::jobs(text).map(drop),
            Self::Address => {
                flags::fleet::address(text).map(drop).map_err(|error| error.to_string())
            }
            Self::LockAddress => {
                flags::fleet::lock_address(text).map(drop).map_err(|error| error.to_string())
            }
            Self::Heartbeat => flags::fleet::heartbeat(text).map(drop),
            Self::Peers => text.parse::<PeerList>().map(drop).map_err(|error| error.to_string()),
            Self::Worker => flags::fleet::worker(text).map(drop).map_err(|error| error.to_string()),
            Self::Kinds => text.split(',').try_for_each(|kind| flags::fleet::kind(kind).map(drop)),
            Self::Push => Push::from_str(text, false)
                .map(drop)
                .map_err(|_| "it is never, sealed or verified".to_owned()),
        }
    }
}

const fn setting(
    name: &'static str,
    variable: &'static str,
    flag: &'static str,
    default: &'static str,
    form: Form,
) -> Setting {
    Setting { name, variable, flag, default, form }
}

/// All, in the order in which they are told.
pub(crate) const SETTINGS: [Setting; 17] = [
    setting(STORE, "SMELT_CACHE", "", "cache", Form::Path),
    setting("jobs", "", "jobs", "1", Form::Jobs),
    setting(KEEP_FREE, "SMELT_KEEP_FREE", "keep_free", "", Form::Size),
    setting("fleet.address", "SMELT_FLEET", "fleet", "", Form::Address),
    setting("fleet.lock", "SMELT_FLEET_LOCK", "fleet_lock", "", Form::LockAddress),
    setting("fleet.heartbeat", "SMELT_FLEET_HEARTBEAT", "heartbeat", "", Form::Heartbeat),
    setting("fleet.peers", "SMELT_FLEET_PEERS", "fleet_peers", "", Form::Peers),
    setting("fleet.worker", "SMELT_WORKER", "worker", "", Form::Worker),
    setting(PUSH, "", "push", "never", Form::Push),
    setting(TRUST, "SMELT_FLEET_TRUST", "fleet_trust", "", Form::Path),
    setting("fleet.key", "SMELT_FLEET_KEY", "fleet_key", "", Form::Path),
    setting("fleet.signer", "SMELT_FLEET_SIGNER", "fleet_signer", "", Form::Path),
    setting("fleet.token-file", "SMELT_FLEET_TOKEN", "fleet_token_file", "", Form::Secret),
    setting("fleet.push-kind", "", "push_kind", "", Form::Kinds),
    setting("fleet.push-max", "", "push_max", "", Form::Size),
    setting("fleet.rate", "SMELT_FLEET_RATE", "fleet_rate", "", Form::Size),
    setting(AUTHORITY, "SMELT_FLEET_CA", "fleet_ca", "", Form::Path),
];
const STORE: &str = "store";
const KEEP_FREE: &str = "keep-free";
const PUSH: &str = "fleet.push";
const TRUST: &str = "fleet.trust";
const AUTHORITY: &str = "fleet.ca";
/// A flag of this name means something else in other commands.
const ONLY_OF_RUNS: &str = "jobs";

/// Where a value comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin<'a> {
    Environment(&'a str),
    File(&'a Path),
    /// Nobody has said anything.
    Default,
}

/// What files say.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Config {
    /// Of a setting its value, and the file that says it.
    values: BTreeMap<&'static str, (String, PathBuf)>,
    /// The files that were read, the one that overrules the others last.
    pub(crate) files: Vec<PathBuf>,
    /// The file that was named, and is the only one.
    pub(crate) named: Option<PathBuf>,
}

static CONFIG: OnceLock<Config> = OnceLock::new();

/// This process's.
pub(crate) fn get() -> &'static Config {
    CONFIG.get_or_init(Config::default)
}

/// Reads what this process goes by: what `named` holds, or what lies where it is looked for.
pub(crate) fn load(named: Option<&Path>) -> Result<(), Failed> {
    let mut config = Config { named: named.map(absolute), ..Config::default() };
    match named {
        Some(file) => config.read(file)?,
        // What is there and cannot be read says something all the same.
        None => places()
            .iter()
            .filter(|file| !is_absent(file))
            .try_for_each(|file| config.read(file))?,
    }
    check_variables(variable).map_err(Failed::usage)?;
    CONFIG.get_or_init(|| config);
    Ok(())
}

/// Whether nothing of that name is there, nor a link.
fn is_absent(file: &Path) -> bool {
    file.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Refuses what a variable says that is no value of its setting; paths are looked at by whoever needs them.
fn check_variables(variable: impl Fn(&str) -> Option<String>) -> Result<(), String> {
    let is_path = |form| matches!(form, Form::Path | Form::Secret);
    for Setting { variable: name, form, .. } in SETTINGS.iter().filter(|it| !is_path(it.form)) {
        if let Some(value) = variable(name) {
            form.check(&value).map_err(|why| format!("{name} = {value:?}: {why}"))?;
        }
    }
    Ok(())
}

/// The file that a command line or the environment names.
pub(crate) fn named(arguments: &[OsString]) -> Option<PathBuf> {
    let variable = || env::var_os(VARIABLE).filter(|file| !file.is_empty());
    early(arguments, "--config").or_else(variable).map(PathBuf::from)
}

/// Where files are looked for.
pub(crate) fn places() -> Vec<PathBuf> {
    let user = own_file(USER_FILE).ok();
    [MACHINE_FILE.into()].into_iter().chain(user).collect()
}

/// Where a user's own files are: `$XDG_CONFIG_HOME/smelt`, else `~/.config/smelt`.
pub(crate) fn own_file(name: &str) -> Result<PathBuf, Failed> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")));
    let base = base.ok_or_else(|| {
        Failed::usage("neither HOME nor XDG_CONFIG_HOME is set; name the file by a flag")
    })?;
    Ok(base.join("smelt").join(name))
}

/// Where the store is.
pub(crate) fn store() -> PathBuf {
    get().value(STORE, variable).0.into()
}

/// The file that says who is believed, where it is another than usual.
pub(crate) fn trust() -> Option<PathBuf> {
    let (file, _) = get().value(TRUST, variable);
    (!file.is_empty()).then(|| file.into())
}

/// The file with an authority of the machine's own, where one is named.
pub(crate) fn authority() -> Option<PathBuf> {
    let (file, _) = get().value(AUTHORITY, variable);
    (!file.is_empty()).then(|| file.into())
}

/// The bytes of memory that stages leave to other programs.
pub(crate) fn keep_free_bytes() -> u64 {
    // Nothing, where nobody names it; what is no size was refused.
    quantity::bytes(&get().value(KEEP_FREE, variable).0).unwrap_or(0)
}

/// A variable of the environment; one that is empty says nothing.
pub(crate) fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

impl Config {
    fn read(&mut self, file: &Path) -> Result<(), Failed> {
        // Nobody may ever write to it.
        if file.metadata().is_ok_and(|meta| meta.file_type().is_fifo()) {
            return Err(Failed::usage(format!(
                "{} is a pipe, and no configuration",
                file.display()
            )));
        }
        let text = read_within(file, "the configuration", FILE_BYTES_MAX).map_err(Failed::usage)?;
        let refused = |why: String| Failed::usage(format!("{}: {why}", file.display()));
        self.add(file, &text).map_err(refused)
    }

    /// Takes what a file says, over what others have said.
    fn add(&mut self, file: &Path, text: &str) -> Result<(), String> {
        for (name, value) in flat(text)? {
            let setting = find(&name)?;
            let value = match value {
                Value::String(text) => text,
                Value::Integer(number) => number.to_string(),
                _ => return Err(format!("{name} must be a text or a whole number")),
            };
            setting.form.check(&value).map_err(|why| format!("{name} = {value:?}: {why}"))?;
            let value = match setting.form {
                Form::Path | Form::Secret => beside(file, &value)?,
                _ => value,
            };
            self.values.insert(setting.name, (value, file.to_owned()));
        }
        self.files.push(file.to_owned());
        Ok(())
    }

    /// A setting's value beside an environment, and where it comes from.
    pub(crate) fn value<'a>(
        &'a self,
        name: &str,
        variable: impl Fn(&str) -> Option<String>,
    ) -> (String, Origin<'a>) {
        let setting =
            SETTINGS.iter().find(|setting| setting.name == name).expect("a setting's name");
        if let Some(value) = variable(setting.variable) {
            let is_shown = setting.form != Form::Secret;
            let shown = if is_shown { value } else { "(not shown)".to_owned() };
            return (shown, Origin::Environment(setting.variable));
        }
        match self.values.get(name) {
            Some((value, file)) => (value.clone(), Origin::File(file)),
            None => (setting.default.to_owned(), Origin::Default),
        }
    }

    /// Whether a file says which results are published.
    pub(crate) fn says_push(&self) -> bool {
        self.values.contains_key(PUSH)
    }

    /// The command line with what the files say for its defaults.
    pub(crate) fn with_defaults(&'static self, command: Command) -> Command {
        let is_of_runs = command.get_name() == "run";
        let command = command.mut_args(|arg| {
            let arg = if says_nothing(&arg) { arg.env(Resettable::Reset) } else { arg };
            match self.default_of(&arg, is_of_runs) {
                Some(value) => arg.default_value(value),
                None => arg,
            }
        });
        command.mut_subcommands(|subcommand| self.with_defaults(subcommand))
    }

    fn default_of(&'static self, arg: &Arg, is_of_runs: bool) -> Option<&'static str> {
        let flag = arg.get_id().as_str();
        let setting = SETTINGS.iter().find(|setting| setting.flag == flag)?;
        let is_meant = match setting.name {
            ONLY_OF_RUNS => is_of_runs,
            // A flag overrules its variable, and a file does not.
            _ => variable(setting.variable).is_none(),
        };
        self.values.get(setting.name).filter(|_| is_meant).map(|(value, _)| value.as_str())
    }
}

/// Whether a variable is there and empty, which a parser takes for a value.
fn says_nothing(arg: &Arg) -> bool {
    arg.get_env().and_then(env::var_os).is_some_and(|value| value.is_empty())
}

/// The names of a file, with those of their tables, and their values.
fn flat(text: &str) -> Result<Vec<(String, Value)>, String> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = 1 + before.matches('\n').count();
        let words: Vec<&str> = error.message().lines().map(str::trim).collect();
        format!("line {line}: {}", words.join(", "))
    })?;
    let mut all = Vec::new();
    for (name, value) in table {
        match value {
            Value::Table(table) => {
                let inner =
                    table.into_iter().map(|(inner, value)| (format!("{name}.{inner}"), value));
                all.extend(inner);
            }
            value => all.push((name, value)),
        }
    }
    Ok(all)
}

fn find(name: &str) -> Result<&'static Setting, String> {
    let names = || SETTINGS.iter().map(|setting| setting.name);
    SETTINGS.iter().find(|setting| setting.name == name).ok_or_else(|| {
        match nearest(name, names()) {
            Some(meant) => format!("there is no setting {name}; perhaps {meant} is meant"),
            None => format!(
                "there is no setting {name}; there are {}",
                names().collect::<Vec<_>>().join(", ")
            ),
        }
    })
}

/// A path as a file says it.
fn beside(file: &Path, path: &str) -> Result<String, String> {
    let whole = absolute(&file.parent().unwrap_or(Path::new("")).join(path));
    let whole = whole.into_os_string().into_string();
    whole.map_err(|_| "the name of its folder is no text".to_owned())
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches as _;

    use super::*;
    use crate::flags::Flags;

    fn none(_: &str) -> Option<String> {
        None
    }

    fn of(files: &[(&str, &str)]) -> Result<Config, String> {
        let mut config = Config::default();
        files.iter().try_for_each(|(file, text)| config.add(Path::new(file), text))?;
        Ok(config)
    }

    #[test]
    fn the_environment_is_over_the_user_and_the_user_over_the_machine() {
        let machine =
            ("/etc/smelt/config.toml", "store = \"/data\"\njobs = 2\nkeep-free = \"1GiB\"");
        let user = ("/home/u/.config/smelt/config.toml", "jobs = 3\n[fleet]\ntrust = \"t.toml\"");
        let config = of(&[machine, user]).unwrap();
        let says = |name: &str| {
            config.value(name, |variable| (variable == "SMELT_CACHE").then(|| "/mine".to_owned()))
        };
        let (machine, user) = (Path::new(machine.0), Path::new(user.0));
        assert_eq!(says("store"), ("/mine".to_owned(), Origin::Environment("SMELT_CACHE")));
        assert_eq!(says("jobs"), ("3".to_owned(), Origin::File(user)));
        assert_eq!(says("keep-free"), ("1GiB".to_owned(), Origin::File(machine)));
        let trust = "/home/u/.config/smelt/t.toml".to_owned();
        assert_eq!(says("fleet.trust"), (trust, Origin::File(user)));
        assert_eq!(says("fleet.push"), ("never".to_owned(), Origin::Default));
        assert_eq!(config.files, [machine, user]);
    }

    #[test]
    fn a_secret_of_the_environment_is_not_told() {
        let config = Config::default();
        let (value, origin) = config.value("fleet.token-file", |_| Some("s3cret".into()));
        assert_eq!(
            (value.as_str(), origin),
            ("(not shown)", Origin::Environment("SMELT_FLEET_TOKEN"))
        );
    }

    #[test]
    fn what_is_no_setting_is_refused_with_what_is_meant() {
        let refused = |text: &str, why: &str| {
            let said = of(&[("c.toml", text)]).unwrap_err();
            assert!(said.contains(why), "{said}");
        };
        refused("stroe = \"/x\"", "there is no setting stroe; perhaps store is meant");
        refused("[fleet]\ntoken = \"x\"", "there is no setting fleet.token");
        refused("banana = 1", "there are store, jobs, keep-free");
        refused("jobs = 0", "jobs = \"0\": a whole number from 1 to 256");
        refused("jobs = [1]", "jobs must be a text or a whole number");
        refused("keep-free = \"much\"", "keep-free = \"much\"");
        refused("store = \"~/cache\"", "write the whole path");
        refused("store = \"\"", "a path is not empty");
        refused("[fleet]\naddress = \"http://x\"", "fleet.address = \"http://x\"");
        refused("[fleet]\npush = \"all\"", "it is never, sealed or verified");
        refused("jobs = 1\nstore =", "line 2");
        refused("[fleet.more]\na = 1", "there is no setting fleet.more");
    }

    #[test]
    fn a_variable_that_is_no_value_is_refused_and_an_empty_one_says_nothing() {
        let refused =
            check_variables(|name| (name == "SMELT_KEEP_FREE").then(|| "much".to_owned()));
        assert!(refused.unwrap_err().starts_with("SMELT_KEEP_FREE = \"much\""));
        assert_eq!(check_variables(none), Ok(()));
        assert_eq!(
            check_variables(|name| (name == "SMELT_CACHE").then(|| "~/x".to_owned())),
            Ok(())
        );
    }

    #[test]
    fn what_nobody_names_could_be_named() {
        for setting in SETTINGS.iter().filter(|setting| !setting.default.is_empty()) {
            assert_eq!(setting.form.check(setting.default), Ok(()), "{}", setting.name);
        }
    }

    #[test]
    fn every_setting_but_the_store_is_the_default_of_a_flag() {
        let text = "store = \"/s\"\njobs = 2\nkeep-free = \"1GiB\"\n[fleet]\naddress = \"grpc://h:1\"\nlock = \"nats://h:2\"\nheartbeat = \"1m\"\npeers = \"h:3,mdns\"\nworker = \"ssh://h\"\npush = \"sealed\"\n\
                    trust = \"/t\"\nkey = \"/k\"\nsigner = \"/s\"\ntoken-file = \"/f\"\nca = \"/c\"\nrate = \"2MiB\"\n\
                    push-kind = \"deployment,verify\"\npush-max = \"1GiB\"\n";
        let config: &'static Config = Box::leak(Box::new(of(&[("/c.toml", text)]).unwrap()));
        assert_eq!(config.values.len(), SETTINGS.len());
        let command = config.with_defaults(flags::command());
        let matches = command.clone().try_get_matches_from(["smelt", "run", "p.toml"]).unwrap();
        let flags = Flags::from_arg_matches(&matches).unwrap();
        assert!(format!("{flags:?}").contains("push_kind: [Deployment, Verify]"), "{flags:?}");
        let run = command.find_subcommand("run").unwrap();
        for setting in SETTINGS.iter().filter(|setting| !setting.flag.is_empty()) {
            let arg = run.get_arguments().find(|arg| arg.get_id() == setting.flag).unwrap();
            let variable = (!setting.variable.is_empty() && setting.form != Form::Secret)
                .then_some(setting.variable);
            assert_eq!(arg.get_env().and_then(|name| name.to_str()), variable, "{}", setting.name);
            let default = arg.get_default_values().first().and_then(|value| value.to_str());
            assert_eq!(
                default,
                Some(config.value(setting.name, none).0.as_str()),
                "{}",
                setting.name
            );
        }
    }
}
