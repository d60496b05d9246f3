//! What each step decides, where the simulated worlds would take another answer as well.

use super::*;

const BLOCK: usize = 64;

fn pieces(from: u32, count: usize) -> Vec<Piece> {
    (from..).take(count).map(Piece::Token).collect()
}

fn schedule(blocks_total: usize) -> Schedule {
    Schedule::new(Capacity { slots: 2, running_max: 2, block_tokens: BLOCK, blocks_total })
}

/// A schedule with a prompt of so many tokens, task 0, that has been given a slot.
fn reading(tokens: usize) -> Schedule {
    let mut schedule = schedule(64);
    schedule.arrive(0, Owner::default(), Priority::Normal, pieces(0, tokens));
    let admit = Step::Admit { task: 0, slot: 0, from: None };
    assert_eq!(schedule.next(64), admit);
    schedule
}

#[test]
fn a_prompt_fits_with_one_token_more() {
    let schedule = schedule(4);
    assert!(schedule.fits(4 * BLOCK - 1) && !schedule.fits(4 * BLOCK));
}

#[test]
fn tasks_and_slots_are_counted_by_what_they_do() {
    let mut schedule = schedule(4);
    let is = |schedule: &Schedule, counts| assert_eq!(schedule.counts(), counts);
    schedule.arrive(0, Owner::default(), Priority::Normal, pieces(0, 10));
    is(&schedule, Counts { waiting: 1, ..Counts::default() });
    assert!(matches!(schedule.next(4), Step::Admit { .. }));
    is(&schedule, Counts { reading: 1, ..Counts::default() });
    assert_eq!(schedule.next(4), Step::Read { task: 0, slot: 0, tokens: 10, is_last: true });
    schedule.did_read(0, 10, 1);
    is(&schedule, Counts { saying: 1, ..Counts::default() });
    schedule.chose(0, 7);
    is(&schedule, Counts { saying: 1, ..Counts::default() });
    assert_eq!(schedule.next(4), Step::Say(vec![(0, 0)]));
    schedule.did_say(&[(0, 0)], 1);
    schedule.end(0);
    is(&schedule, Counts { kept: 1, ..Counts::default() });
}

/// The tokens of the next chunk of task 0.
fn chunk(schedule: &mut Schedule) -> usize {
    match schedule.next(64) {
        Step::Read { task: 0, tokens, is_last: false, .. } => tokens,
        step => panic!("{step:?}"),
    }
}

#[test]
fn a_chunk_takes_as_long_as_others_can_wait() {
    let second = |time_us: u64| {
        let mut schedule = reading(2000);
        assert_eq!(chunk(&mut schedule), CHUNK_TOKENS_FIRST);
        schedule.did_read(0, CHUNK_TOKENS_FIRST, time_us);
        chunk(&mut schedule)
    };
    // At a millisecond a token there is time for 80, of which whole halves of a block are taken.
    assert_eq!(second(128_000), 64);
    assert_eq!(second(12_800_000), CHUNK_TOKENS_MIN);
    assert_eq!(second(128), CHUNK_TOKENS_MAX);
    assert_eq!(second(0), CHUNK_TOKENS_MAX, "in no time at all");
}

#[test]
fn earlier_chunks_count_for_less() {
    let mut schedule = reading(2000);
    schedule.did_read(0, 128, 128_000);
    // Three quarters of 128 tokens and ms, and 64 tokens in 32 ms: 0.8 ms a token, so 100.
    schedule.did_read(0, 64, 32_000);
    assert_eq!(chunk(&mut schedule), 96);
}

#[test]
fn who_begins_as_one_that_is_read_waits_for_a_block() {
    let step = |shared: usize| {
        let mut schedule = reading(300);
        let prompt = [pieces(0, shared), pieces(5000, 100)].concat();
        schedule.arrive(1, Owner::default(), Priority::Normal, prompt);
        schedule
    };
    assert!(matches!(step(SHARED_TOKENS_MIN - 1).next(64), Step::Admit { task: 1, .. }));
    let mut spared = step(SHARED_TOKENS_MIN);
    assert!(matches!(spared.next(64), Step::Read { task: 0, .. }));
    // Once they are in a slot, there is nothing to wait for.
    spared.did_read(0, 128, 1);
    assert!(matches!(spared.next(64), Step::Admit { task: 1, from: Some(_), .. }));
}
