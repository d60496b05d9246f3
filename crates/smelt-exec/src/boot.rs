//! Tells one boot of a machine from another.

use std::fs;

/// The kernel's name of this boot; empty where it has none.
pub fn boot_id() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}
