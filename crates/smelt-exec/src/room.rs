//! Says whether the disk has room for a stage, and how much to free.  Pure.

/// Journal, logs and the record of a result; a stage that makes more is known by what it made
/// before, or meets the end of the disk itself.
const RESERVE_BYTES: u64 = 4 << 20;

/// What a file system keeps for itself and never hands out.
const NOTHING_LEFT_BYTES: u64 = 64 << 10;

/// Whether a disk has nothing left, so that nobody knows what the last writes to it came to.
pub(crate) fn is_full(free_bytes: u64) -> bool {
    free_bytes < NOTHING_LEFT_BYTES
}

/// Why a stage should not start, if the disk cannot take what it made the last time; `known_bytes`
/// is asked only where that can matter.
pub(crate) fn shortage<E>(
    free_bytes: u64,
    known_bytes: impl FnOnce() -> Result<u64, E>,
) -> Result<Option<String>, E> {
    let known_bytes = known_bytes()?;
    let needed_bytes = known_bytes.saturating_add(RESERVE_BYTES);
    if needed_bytes <= free_bytes {
        return Ok(None);
    }
    let needs = match known_bytes {
        0 => format!("what a run writes down of a stage takes up to {}", amount(RESERVE_BYTES)),
        known_bytes => format!("its output took {} the last time", amount(known_bytes)),
    };
    Ok(Some(format!(
        "not started: {needs}, and the store's disk has {} free; free at least {} (smelt cache gc \
         removes what nobody needs)",
        amount(free_bytes),
        amount(needed_bytes - free_bytes)
    )))
}

/// What to add to the failure of a stage that filled the disk.
pub(crate) fn advice(written_bytes: u64, free_bytes: u64) -> String {
    let missing = written_bytes.max(RESERVE_BYTES);
    format!(
        "; the store's disk was full with {} of the output written and has {} free: free at least \
         {} more (smelt cache gc removes what nobody needs)",
        amount(written_bytes),
        amount(free_bytes),
        amount(missing)
    )
}

/// In MiB, the unit people free disks in.
fn amount(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(free: u64, known: u64, words: Option<&str>) {
        let said = shortage::<()>(free << 20, || Ok(known << 20)).unwrap();
        assert_eq!(said.is_some(), words.is_some(), "{said:?}");
        assert!(said.is_none_or(|said| said.contains(words.unwrap())));
    }

    #[test]
    fn a_stage_starts_if_what_it_made_before_fits() {
        check(104, 100, None);
        check(103, 100, Some("free at least 1 MiB"));
        check(10, 3000, Some("took 3000 MiB the last time, and the store's disk has 10 MiB free"));
        check(3, 0, Some("free at least 1 MiB"));
        check(3, 0, Some("not started: what a run writes down of a stage takes up to 4 MiB, and"));
    }

    #[test]
    fn a_full_disk_is_told_with_an_amount() {
        assert!(advice(500 << 20, 0).contains("500 MiB of the output written and has 0 MiB free"));
        assert!(advice(0, 0).contains("free at least 4 MiB more"));
    }
}
