//! Holds what every reader of a `config.json` needs: the refusals, the checks of numbers, the list
//! of tensors that follows.
//!
//! Knows no model.

use std::path::PathBuf;

/// The largest size of any one dimension.  Real ones stay below 2^20; the bound keeps products of
/// three of them inside 64 bits.
pub const DIMENSION_MAX: usize = 1 << 21;

/// The most layers of one tower; the largest published model of the families has 80.
pub const LAYERS_MAX: usize = 1024;

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct ConfigError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: ConfigProblem,
}

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigProblem {
    /// It is not JSON, or a field is missing or of the wrong type.
    #[error("not a usable model configuration: {0}")]
    Unreadable(String),
    /// A model class nobody here knows.
    #[error("unknown architecture {found:?}; supported: {supported}")]
    UnknownArchitecture {
        /// The class the file names.
        found: String,
        /// The classes that are read.
        supported: String,
    },
    /// A field has a value that means arithmetic not built here.
    #[error("{field} is {found}, but only {supported} is supported")]
    Unsupported {
        /// The field.
        field: String,
        /// Its value.
        found: String,
        /// The values that work.
        supported: &'static str,
    },
    /// A number is zero, too large, or does not fit another.
    #[error("{field} is {found}: {rule}")]
    BadNumber {
        /// The field.
        field: String,
        /// Its value.
        found: String,
        /// What it must be.
        rule: &'static str,
    },
}

/// The object of a configuration whose fields are checked, for example `llm_config`.
#[derive(Clone, Copy)]
pub(crate) struct Scope(pub(crate) &'static str);

impl Scope {
    fn field(self, name: &str) -> String {
        if self.0.is_empty() { name.to_owned() } else { format!("{}.{name}", self.0) }
    }

    /// A dimension.
    pub(crate) fn size(self, name: &str, found: usize) -> Result<usize, ConfigProblem> {
        if (1..=DIMENSION_MAX).contains(&found) {
            return Ok(found);
        }
        self.bad(name, found, "it must be between 1 and 2097152")
    }

    /// A number of layers.
    pub(crate) fn layers(self, name: &str, found: usize) -> Result<usize, ConfigProblem> {
        if (1..=LAYERS_MAX).contains(&found) {
            return Ok(found);
        }
        self.bad(name, found, "it must be between 1 and 1024")
    }

    /// A norm's epsilon.
    pub(crate) fn epsilon(self, name: &str, found: f64) -> Result<f32, ConfigProblem> {
        if found > 0.0 && found < 1.0 {
            return Ok(found as f32);
        }
        self.bad(name, found, "it must be between 0 and 1")
    }

    /// Refuses `found` unless it `holds`, which only `supported` does.
    pub(crate) fn only(
        self,
        name: &str,
        found: impl ToString,
        supported: &'static str,
        holds: bool,
    ) -> Result<(), ConfigProblem> {
        if holds {
            return Ok(());
        }
        let (field, found) = (self.field(name), found.to_string());
        Err(ConfigProblem::Unsupported { field, found, supported })
    }

    /// Refuses a number.
    pub(crate) fn bad<T>(
        self,
        name: &str,
        found: impl ToString,
        rule: &'static str,
    ) -> Result<T, ConfigProblem> {
        Err(ConfigProblem::BadNumber { field: self.field(name), found: found.to_string(), rule })
    }
}

/// Tensor names and shapes being listed.
#[derive(Default)]
pub(crate) struct List(pub(crate) Vec<(String, Vec<usize>)>);

impl List {
    pub(crate) fn put(&mut self, name: impl Into<String>, shape: &[usize]) {
        self.0.push((name.into(), shape.to_vec()));
    }

    /// A layer normalisation with scale and bias.
    pub(crate) fn norm(&mut self, name: &str, width: usize) {
        self.put(format!("{name}.weight"), &[width]);
        self.put(format!("{name}.bias"), &[width]);
    }

    /// A linear layer with a bias.
    pub(crate) fn linear(&mut self, name: &str, rows: usize, columns: usize) {
        self.put(format!("{name}.weight"), &[rows, columns]);
        self.put(format!("{name}.bias"), &[rows]);
    }
}
