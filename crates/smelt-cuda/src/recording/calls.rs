//! Writes calls down, and says which of them fail.

use crate::Launch;
use crate::driver::{DriverError, Stream};

/// A call of a driver.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Its name.
    pub name: &'static str,
    /// The stream that it was for.
    pub stream: Option<Stream>,
    /// What it launched.
    pub launch: Option<Launch>,
}

impl Call {
    /// One for no stream.
    pub(super) const fn named(name: &'static str) -> Self {
        Self { name, stream: None, launch: None }
    }

    /// One for a stream.
    pub(super) const fn on(name: &'static str, stream: Stream) -> Self {
        Self { name, stream: Some(stream), launch: None }
    }

    /// A launch.
    pub(super) fn launching(stream: Stream, launch: &Launch) -> Self {
        Self { name: "launch", stream: Some(stream), launch: Some(launch.clone()) }
    }
}

/// Calls that were made, and those that are to fail.
#[derive(Debug, Default)]
pub(super) struct Calls {
    made: Vec<Call>,
    /// Which call fails, counted from the first of all, and how.
    failing: Vec<(usize, DriverError)>,
    /// Why no call succeeds any more.
    lost: Option<DriverError>,
}

impl Calls {
    pub(super) fn made(&self) -> &[Call] {
        &self.made
    }

    pub(super) fn fail_after(&mut self, nth: usize, error: DriverError) {
        self.failing.push((self.made.len() + nth, error));
    }

    pub(super) const fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// No call succeeds from now on.
    pub(super) fn lose(&mut self, error: DriverError) -> DriverError {
        self.lost.get_or_insert(error).clone()
    }

    /// Writes a call down; the error by which it is to fail.
    pub(super) fn begin(&mut self, call: Call) -> Result<(), DriverError> {
        let at = self.made.len();
        self.made.push(call);
        if let Some(lost) = &self.lost {
            return Err(lost.clone());
        }
        let failing = self.failing.iter().find(|(nth, _)| *nth == at);
        match failing.map(|(_, error)| error.clone()) {
            Some(error) if error.is_sticky() => Err(self.lose(error)),
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}
