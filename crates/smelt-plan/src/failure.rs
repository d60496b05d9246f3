//! Says how a stage failed, in the words the retry rules and the report share.

use serde::{Deserialize, Serialize};

/// What kind of failure an attempt ended with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureClass {
    /// Its processes together held more than `limits.memory`.
    MemoryLimit,
    /// It ran longer than `limits.timeout`.
    TimedOut,
    /// The kernel's out-of-memory killer ended one of its processes.
    OomKilled,
    /// It was ended because memory and swap of the machine were used up.
    Thrash,
    /// The kernel had no contiguous memory (CMA) for it.
    CmaExhausted,
    /// It needs more memory than this device has; it was not started.
    DoesNotFit,
    /// A signal ended it that neither smelt nor the OOM killer sent.
    KilledExternally,
    /// The disk ran full.
    DiskFull,
    /// A disk could not read or write: it fails, or what it is attached by.
    DiskError,
    /// The tool said no: a non-zero exit.
    ToolRejected,
    /// It said success, but a declared output is not there.
    OutputMissing,
    /// It said success, but an output cannot be kept (a symlink, an empty file, a socket); or
    /// `verify` found that it does not hold what it must.
    OutputInvalid,
    /// It tried to write where it may not: outside of its own directory and of what it declares.
    UndeclaredWrite,
    /// It is strict, and wanted to read what it does not declare.
    UndeclaredRead,
    /// Its process could not be started.
    SpawnFailed,
    /// Built again to be compared, it made other bytes.
    NotReproducible,
    /// The device refused memory: of a GPU that shares the machine's, or of its own.
    DeviceMemory,
    /// An engine builder found no kernel for a node, most often since none got the memory to be tried.
    NoTactic,
    /// The board went down under it: a brown-out, a watchdog, heat.
    BoardReset,
}

impl FailureClass {
    /// All of them, in the order of the enum.
    pub const ALL: [Self; 19] = [
        Self::MemoryLimit,
        Self::TimedOut,
        Self::OomKilled,
        Self::Thrash,
        Self::CmaExhausted,
        Self::DoesNotFit,
        Self::KilledExternally,
        Self::DiskFull,
        Self::DiskError,
        Self::ToolRejected,
        Self::OutputMissing,
        Self::OutputInvalid,
        Self::UndeclaredWrite,
        Self::UndeclaredRead,
        Self::SpawnFailed,
        Self::NotReproducible,
        Self::DeviceMemory,
        Self::NoTactic,
        Self::BoardReset,
    ];

    /// Whether doing the same again, under the conditions of a later moment, can succeed.
    ///
    /// A kill from outside says nothing of the stage, and a reset board has changed more than we could;
    /// everything else would only fail again.
    pub fn passes_by_itself(self) -> bool {
        match self {
            Self::KilledExternally | Self::BoardReset => true,
            Self::DoesNotFit
            | Self::Thrash
            | Self::CmaExhausted
            | Self::MemoryLimit
            | Self::TimedOut
            | Self::OomKilled
            | Self::DiskFull
            | Self::DiskError
            | Self::ToolRejected
            | Self::OutputMissing
            | Self::OutputInvalid
            | Self::UndeclaredWrite
            | Self::UndeclaredRead
            | Self::SpawnFailed
            | Self::NotReproducible
            | Self::DeviceMemory
            | Self::NoTactic => false,
        }
    }

    /// Whether the machine had too little memory for it, so that having more may cure it.
    pub fn lacks_memory(self) -> bool {
        matches!(
            self,
            Self::OomKilled
                | Self::Thrash
                | Self::CmaExhausted
                | Self::DeviceMemory
                | Self::NoTactic
        )
    }

    /// Whether an `escalate` step (other params, other limits) can cure it.
    pub fn cured_by_change(self) -> bool {
        match self {
            Self::MemoryLimit | Self::TimedOut | Self::OomKilled | Self::KilledExternally => true,
            Self::Thrash | Self::CmaExhausted | Self::DoesNotFit => true,
            Self::ToolRejected | Self::OutputMissing | Self::OutputInvalid => true,
            Self::UndeclaredWrite | Self::UndeclaredRead | Self::BoardReset => true,
            Self::DeviceMemory | Self::NoTactic => true,
            Self::DiskFull | Self::DiskError => false,
            Self::SpawnFailed | Self::NotReproducible => false,
        }
    }

    /// The class as the report and the journal write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::MemoryLimit => "memory-limit",
            Self::TimedOut => "timed-out",
            Self::OomKilled => "oom-killed",
            Self::Thrash => "thrash",
            Self::CmaExhausted => "cma-exhausted",
            Self::DoesNotFit => "does-not-fit",
            Self::KilledExternally => "killed-externally",
            Self::DiskFull => "disk-full",
            Self::DiskError => "disk-error",
            Self::ToolRejected => "tool-rejected",
            Self::OutputMissing => "output-missing",
            Self::OutputInvalid => "output-invalid",
            Self::UndeclaredWrite => "undeclared-write",
            Self::UndeclaredRead => "undeclared-read",
            Self::SpawnFailed => "spawn-failed",
            Self::NotReproducible => "not-reproducible",
            Self::DeviceMemory => "device-memory",
            Self::NoTactic => "no-tactic",
            Self::BoardReset => "board-reset",
        }
    }
}

/// A failed attempt: its class and the one line a person reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What kind of failure.
    pub class: FailureClass,
    /// The stage's own exit code, where it had one.
    pub exit: Option<i32>,
    /// One line: what went wrong, in the tool's words where it had any.
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page that people read says of each class what the rules do.
    #[test]
    fn the_table_of_classes_is_what_retries_go_by() {
        let page = include_str!("../../../docs/reports.md");
        let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
        for class in FailureClass::ALL {
            let start = format!("| `{}` |", class.name());
            let found: Vec<_> = rows.iter().filter(|row| row.starts_with(&start)).collect();
            let [row] = found[..] else { panic!("{start} has {} rows", found.len()) };
            assert_eq!(row.contains("the same again"), class.passes_by_itself(), "{row}");
            assert_eq!(row.contains("the memory rungs"), class.lacks_memory(), "{row}");
            assert_eq!(row.contains("`escalate`"), class.cured_by_change(), "{row}");
        }
    }
}
