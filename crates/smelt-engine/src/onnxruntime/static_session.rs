//! Stands for ONNX Runtime where programs are linked statically and load no libraries.

use std::path::Path;

use crate::graph::Tensor;

const WHY: &str =
    "this smelt is linked statically and loads no libraries; use one built for the system's libc";

/// Refuses the library at any path.
pub(super) fn load(_path: &Path) -> Result<(), String> {
    Err(WHY.to_owned())
}

/// A graph that nothing reads.
#[derive(Debug)]
pub(super) struct Session;

impl Session {
    /// Refuses.
    pub(super) fn begin(_path: &Path, _threads: Option<usize>) -> Result<Self, String> {
        Err(WHY.to_owned())
    }

    /// Refuses.
    pub(super) fn run(&mut self, _inputs: Vec<Tensor>) -> Result<Vec<Tensor>, String> {
        Err(WHY.to_owned())
    }
}
