//! Stands for NVRTC where programs are linked statically and load no libraries.

use std::path::Path;

/// What a compiler made.
pub(super) struct Made {
    pub(super) image: Vec<u8>,
    pub(super) log: String,
}

/// No library.
pub(super) enum Library {}

impl Library {
    /// Refuses.
    pub(super) fn load(_path: &Path) -> Result<Self, String> {
        let why = "this smelt is linked statically and loads no libraries; use one built for the system's libc";
        Err(why.to_owned())
    }

    /// Never called.
    pub(super) fn compile(&self, _: &str, _: &str, _: &[String]) -> Result<Made, String> {
        match *self {}
    }
}
