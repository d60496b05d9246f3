//! Stands for NVIDIA's driver where programs are linked statically and load no libraries.

use std::sync::Arc;

use super::library::NAME;
use super::{Driver, NoCard};
use crate::CardFacts;

const WHY: &str =
    "this smelt is linked statically and loads no libraries; use one built for the system's libc";

fn unfit() -> NoCard {
    NoCard::Unfit { library: NAME.to_owned(), problem: WHY.to_owned() }
}

/// Refuses.
///
/// # Errors
/// Always.
pub fn cards() -> Result<Vec<CardFacts>, NoCard> {
    Err(unfit())
}

/// Refuses.
///
/// # Errors
/// Always.
pub fn open(_ordinal: u32) -> Result<Arc<dyn Driver>, NoCard> {
    Err(unfit())
}

/// Nothing, of cards that nobody can open.
pub fn held_bytes(_ordinal: u32) -> u64 {
    0
}
