//! `command`: any program.

use serde_json::Value;

use super::definition::{Absent, Definition, Field, Takes, Values, field};
use crate::validity::{self, VALIDATE};

/// Where a program may write besides its working directory.
pub const WRITES: &str = "writes";
/// Programs whose content counts although they are found by name.
pub const TOOL: &str = "tool";
/// Variables of smelt's own environment that a program is given, and whose values nobody else is.
pub const SECRETS: &str = "secrets";
/// Whether a program sees nothing but what it declares.
pub const STRICT: &str = "strict";
/// Whether a strict program has a network.
pub const NETWORK: &str = "network";
/// Which of root's rights a program needs besides those that builds use.
pub const NEEDS_CAPABILITIES: &str = "capabilities";
/// The kernel's capabilities, each at the place of its number; as `capabilities(7)` names them, without
/// `CAP_` and in our letters.
pub const CAPABILITIES: [&str; 41] = [
    "chown",
    "dac-override",
    "dac-read-search",
    "fowner",
    "fsetid",
    "kill",
    "setgid",
    "setuid",
    "setpcap",
    "linux-immutable",
    "net-bind-service",
    "net-broadcast",
    "net-admin",
    "net-raw",
    "ipc-lock",
    "ipc-owner",
    "sys-module",
    "sys-rawio",
    "sys-chroot",
    "sys-ptrace",
    "sys-pacct",
    "sys-admin",
    "sys-boot",
    "sys-nice",
    "sys-resource",
    "sys-time",
    "sys-tty-config",
    "mknod",
    "lease",
    "audit-write",
    "audit-control",
    "setfcap",
    "mac-override",
    "mac-admin",
    "syslog",
    "wake-alarm",
    "block-suspend",
    "audit-read",
    "perfmon",
    "bpf",
    "checkpoint-restore",
];

const FIELDS: &[Field] = &[
    field("argv", Takes::Texts, Absent::Refused),
    field("inputs", Takes::Inputs, Absent::Nothing),
    field("outputs", Takes::Names, Absent::Refused),
    field("env", Takes::TextTable, Absent::Nothing),
    field(SECRETS, Takes::Texts, Absent::Nothing),
    field(TOOL, Takes::Texts, Absent::Nothing),
    field(WRITES, Takes::Places, Absent::Nothing),
    field(NEEDS_CAPABILITIES, Takes::Words(&CAPABILITIES), Absent::Nothing),
    field(STRICT, Takes::Flag, Absent::Nothing),
    field(NETWORK, Takes::Flag, Absent::Nothing),
    field(VALIDATE, Takes::TextTable, Absent::Nothing),
];

/// Where a program may write is the machine's affair, as are limits: a result that is there was made without, or with
/// no need of it.  So are what it needs of root's rights, and secrets, which a key would tell something of.  Version 2: what it
/// leaves besides its outputs is not sealed.
pub(super) const KIND: Definition = Definition {
    is_reproducible: None,
    unkeyed: &[WRITES, NEEDS_CAPABILITIES, SECRETS],
    conflict,
    ..Definition::new("command", 2, FIELDS)
};

/// Variables that smelt itself sets.
const OWN: [&str; 3] = ["PATH", "HOME", "TMPDIR"];
const OWN_PREFIX: &str = "SMELT_";

fn conflict(params: &Values) -> Option<(String, String)> {
    validity::conflict(params).or_else(|| Some((SECRETS.to_owned(), of_secrets(params)?)))
}

fn of_secrets(params: &Values) -> Option<String> {
    let mut names = params.get(SECRETS)?.as_array()?.iter().filter_map(Value::as_str);
    let env = params.get("env").and_then(Value::as_object);
    let fault = |name: &str| {
        let is_given = env.is_some_and(|env| env.contains_key(name));
        match name {
            // What is no name may be a secret, and is not shown.
            _ if !is_variable(name) => Some(format!(
                "\"{SECRETS}\" takes names of variables, as in [\"HF_TOKEN\"]; their values stay out of the file"
            )),
            _ if OWN.contains(&name) || name.starts_with(OWN_PREFIX) => {
                Some(format!("\"{SECRETS}\": smelt sets {name} itself"))
            }
            _ if is_given => Some(format!("\"{SECRETS}\": {name} is in \"env\" as well")),
            _ => None,
        }
    };
    names.find_map(fault)
}

fn is_variable(name: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    name.starts_with(is_letter) && name.chars().all(|c| is_letter(c) || c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(secrets: Value, words: Option<&str>) {
        let params = [("secrets", secrets), ("env", json!({ "A": "1" }))];
        let params = params.map(|(name, value)| (name.to_owned(), value)).into();
        let found = conflict(&params).map(|(field, why)| format!("{field}: {why}"));
        assert_eq!(found.as_deref(), words);
    }

    #[test]
    fn secrets_are_names_of_variables_that_nobody_else_sets() {
        check(json!(["HF_TOKEN", "_x1"]), None);
        let names =
            "takes names of variables, as in [\"HF_TOKEN\"]; their values stay out of the file";
        for name in ["hf_abc.def", "1A", ""] {
            check(json!(["B", name]), Some(&format!("secrets: \"secrets\" {names}")));
        }
        for name in ["PATH", "SMELT_LOG"] {
            let why = format!("secrets: \"secrets\": smelt sets {name} itself");
            check(json!([name]), Some(&why));
        }
        check(json!(["A"]), Some("secrets: \"secrets\": A is in \"env\" as well"));
    }
}
