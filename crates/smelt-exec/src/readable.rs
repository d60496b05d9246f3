//! Waits for what a pipe brings.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Waits for something to read, or the end, for at most `period`.
pub(crate) fn readable(from: &impl AsFd, period: Duration) -> bool {
    let mut fds = [PollFd::new(from.as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(period).unwrap_or(PollTimeout::MAX);
    poll(&mut fds, timeout).is_ok_and(|ready| ready > 0)
}
