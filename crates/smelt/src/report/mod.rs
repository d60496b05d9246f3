//! Shows a run's report in other people's programs: a browser, a viewer of traces.
//!
//! Pure but for the tails of logs: a report goes in, text comes out.

pub(crate) mod arms;
pub(crate) mod html;
mod ladder;
pub(crate) mod trace;

mod curves;
mod timeline;

#[cfg(test)]
mod browser;
#[cfg(test)]
mod tests;
