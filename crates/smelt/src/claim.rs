//! Tells runs of this machine what memory an engine that answers people may hold.

use smelt_exec::ATTEMPT_MARK;
use smelt_exec::served::Claim;

use crate::console::warn;
use crate::load;

/// A note that counts as long as it is held, under the name by which people know this process; `None` where there can
/// be none, or need not: what a stage holds is forecast by its run.
pub(crate) fn open(name: &str, holds_max_bytes: u64) -> Option<Claim> {
    if std::env::var_os(ATTEMPT_MARK).is_some() {
        return None;
    }
    let dir = load::tokens();
    let unknown = |error| {
        let why = format!("runs do not know what memory this may take: {}: {error}", dir.display());
        warn(why);
    };
    Claim::open(&dir, name, holds_max_bytes).map_err(unknown).ok()
}
