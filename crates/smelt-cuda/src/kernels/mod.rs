//! The kernels of decoders and graphs: their source, how weights and pages lie for them, and launches as plain data.
//!
//! CUDA C lies in `kernels/`; [`source`](source::source) puts it together for an engine.  Whatever kernel computes a
//! product or attends, a row has the same bits.  Knows no streams, files or models.

pub mod attention;
pub mod choose;
pub mod form;
pub mod graph;
pub mod layout;
#[cfg(test)]
mod on_a_card;
pub mod pack;
pub mod page;
pub mod product;
pub mod rows;
pub mod source;
mod table;
#[cfg(any(test, feature = "recording"))]
pub mod twin;
pub mod wide;
