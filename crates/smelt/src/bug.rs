//! Says of a panic that it is a bug of smelt's own.

use crate::console::{fail, is_log};
use crate::exit::Exit;

/// A panic is a bug: it says so, asks for a report, and exits 70 instead of Rust's 101.
pub(crate) fn report() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if is_log() {
            fail(panic)
        } else {
            default(panic)
        }
        fail("this is a bug in smelt; please report it with the lines above");
        // Work under way is in private directories, so leaving at once loses nothing sealed.
        std::process::exit(Exit::Bug as i32);
    }));
}
