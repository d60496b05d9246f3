//! `command`: any program.

use super::definition::{Absent, Definition, Field, Takes, field};
use crate::validity::{self, VALIDATE};

/// Where a program may write besides its working directory.
pub const WRITES: &str = "writes";
/// Programs whose content counts although they are found by name.
pub const TOOL: &str = "tool";
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
    field(TOOL, Takes::Texts, Absent::Nothing),
    field(WRITES, Takes::Places, Absent::Nothing),
    field(NEEDS_CAPABILITIES, Takes::Words(&CAPABILITIES), Absent::Nothing),
    field(STRICT, Takes::Flag, Absent::Nothing),
    field(NETWORK, Takes::Flag, Absent::Nothing),
    field(VALIDATE, Takes::TextTable, Absent::Nothing),
];

/// Where a program may write is the machine's affair, as are limits: a result that is there was made without, or with
/// no need of it.  So is what it needs of root's rights.  Version 2: what it leaves besides its outputs is not sealed.
pub(super) const KIND: Definition = Definition {
    is_reproducible: None,
    unkeyed: &[WRITES, NEEDS_CAPABILITIES],
    conflict: validity::conflict,
    ..Definition::new("command", 2, FIELDS)
};
