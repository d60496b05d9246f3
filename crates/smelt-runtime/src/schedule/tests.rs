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

/// Slots for whoever comes.
fn wide() -> Schedule {
    Schedule::new(Capacity { slots: 24, running_max: 24, block_tokens: BLOCK, blocks_total: 1000 })
}

/// A task with a short prompt like no other's.
fn arrive(schedule: &mut Schedule, id: u32, owner: Owner, priority: Priority) {
    schedule.arrive(TaskId::from(id), owner, priority, pieces(id * 1000, 10));
}

/// The tasks that are given slots, in their order.
fn admitted(schedule: &mut Schedule) -> Vec<TaskId> {
    let mut admitted = Vec::new();
    while let Step::Admit { task, .. } = schedule.next(1000) {
        admitted.push(task);
    }
    admitted
}

/// Leaves `pieces` in a slot.
fn keep(schedule: &mut Schedule, slot: usize, owner: Owner, pieces: &[Piece]) {
    schedule.prefixes.append(slot, pieces);
    schedule.slots[slot] = Use::Kept { since: schedule.tick(), is_whole: true };
    schedule.owners[slot] = owner;
}

#[test]
fn those_of_high_priority_go_first_but_eight_in_a_row_at_most() {
    let mut schedule = wide();
    arrive(&mut schedule, 0, Owner::default(), Priority::Normal);
    (1..=10).for_each(|id| arrive(&mut schedule, id, Owner::default(), Priority::High));
    arrive(&mut schedule, 11, Owner::default(), Priority::Normal);
    assert_eq!(admitted(&mut schedule), [1, 2, 3, 4, 5, 6, 7, 8, 0, 9, 10, 11]);
}

#[test]
fn those_of_high_priority_owe_nothing_where_nobody_waited() {
    let mut schedule = wide();
    arrive(&mut schedule, 0, Owner::default(), Priority::Normal);
    assert_eq!(admitted(&mut schedule), [0]);
    (1..=9).for_each(|id| arrive(&mut schedule, id, Owner::default(), Priority::High));
    assert_eq!(admitted(&mut schedule).len(), 9);
    arrive(&mut schedule, 10, Owner::default(), Priority::Normal);
    arrive(&mut schedule, 11, Owner::default(), Priority::High);
    assert_eq!(admitted(&mut schedule), [11, 10]);
}

#[test]
fn owners_with_fewer_slots_go_first_and_none_has_more_than_it_may() {
    let mut schedule = wide();
    let two = Owner { id: 1, slots_max: Some(2), ..Owner::default() };
    (0..3).for_each(|id| arrive(&mut schedule, id, two, Priority::Normal));
    let other = Owner { id: 2, ..Owner::default() };
    (3..5).for_each(|id| arrive(&mut schedule, id, other, Priority::Normal));
    assert_eq!(admitted(&mut schedule), [0, 3, 1, 4]);
}

#[test]
fn as_many_run_as_may() {
    let capacity = Capacity { slots: 2, running_max: 1, block_tokens: BLOCK, blocks_total: 64 };
    let mut schedule = Schedule::new(capacity);
    (0..2).for_each(|id| arrive(&mut schedule, id, Owner::default(), Priority::Normal));
    assert_eq!(admitted(&mut schedule), [0]);
}

#[test]
fn a_prompt_is_given_a_slot_where_it_and_a_token_have_room() {
    let step = |blocks_free| {
        let mut schedule = schedule(64);
        schedule.arrive(0, Owner::default(), Priority::Normal, pieces(0, BLOCK));
        schedule.next(blocks_free)
    };
    assert_eq!(step(1), Step::Rest);
    assert!(matches!(step(2), Step::Admit { .. }));
}

#[test]
fn what_was_promised_to_those_before_is_no_room() {
    // Of 320 tokens and one more 128 are read: four blocks more.  Who comes needs one.
    let mut schedule = reading(320);
    schedule.did_read(0, 128, 1000);
    arrive(&mut schedule, 1, Owner::default(), Priority::Normal);
    assert!(matches!(schedule.next(4), Step::Read { task: 0, .. }));
    assert!(matches!(schedule.next(5), Step::Admit { task: 1, .. }));
}

#[test]
fn what_is_shared_takes_no_room_again() {
    let mut schedule = schedule(64);
    keep(&mut schedule, 0, Owner::default(), &pieces(0, 2 * BLOCK));
    let prompt = [pieces(0, 2 * BLOCK), pieces(5000, 10)].concat();
    schedule.arrive(0, Owner::default(), Priority::Normal, prompt);
    assert!(matches!(schedule.next(1), Step::Admit { from: Some(_), .. }));
}

#[test]
fn what_is_shared_is_forgotten_where_it_alone_is_in_the_way() {
    let mut schedule = schedule(64);
    keep(&mut schedule, 0, Owner::default(), &pieces(0, 2 * BLOCK));
    schedule.arrive(0, Owner::default(), Priority::Normal, pieces(0, 500));
    assert_eq!(schedule.next(5), Step::Forget { slot: 0 });
}

#[test]
fn of_a_prompt_of_one_token_nothing_is_shared() {
    let mut schedule = schedule(64);
    keep(&mut schedule, 0, Owner::default(), &pieces(0, 10));
    schedule.arrive(0, Owner::default(), Priority::Normal, pieces(0, 1));
    assert!(matches!(schedule.next(64), Step::Admit { from: None, .. }));
}

#[test]
fn who_shares_more_with_what_is_read_than_with_what_is_kept_waits() {
    let mut schedule = reading(300);
    let alike = [pieces(0, 2), pieces(7000, 50)].concat();
    keep(&mut schedule, 1, Owner::default(), &alike);
    let prompt = [pieces(0, 100), pieces(5000, 100)].concat();
    schedule.arrive(1, Owner::default(), Priority::Normal, prompt);
    assert!(matches!(schedule.next(64), Step::Read { task: 0, .. }));
}

#[test]
fn when_a_prompt_ends_is_known_of_its_last_part_alone() {
    let part = |is_last| Part { task: 0, slot: 0, held: 100, tokens: 50, is_last };
    let mut schedule = reading(150);
    assert_eq!(schedule.ends_in_us(&part(true)), None, "no chunk was read yet");
    schedule.did_read(0, 100, 1000);
    assert_eq!(schedule.ends_in_us(&part(true)), Some(500));
    assert_eq!(schedule.ends_in_us(&part(false)), None);
}

#[test]
fn a_part_is_read_where_its_blocks_are_free() {
    let mut schedule = reading(300);
    schedule.did_read(0, 128, 1000);
    let part = Part { task: 0, slot: 0, held: 128, tokens: 128, is_last: false };
    assert!(matches!(schedule.read(&part, 2), Step::Read { .. }));
    assert_eq!(schedule.read(&part, 1), Step::Full { task: 0 });
    // What the engine found missing counts until a step is done.
    schedule.lack(3);
    assert_eq!(schedule.read(&part, 2), Step::Full { task: 0 });
    schedule.did_say(&[], 1000);
    assert!(matches!(schedule.read(&part, 2), Step::Read { .. }));
}

#[test]
fn an_answer_needs_a_block_where_one_begins() {
    let mut schedule = reading(BLOCK - 1);
    schedule.did_read(0, BLOCK - 1, 1000);
    schedule.chose(0, 7);
    assert_eq!(schedule.say(0), Step::Say(vec![(0, 0)]));
    schedule.did_say(&[(0, 0)], 1000);
    schedule.chose(0, 8);
    assert_eq!(schedule.say(0), Step::Full { task: 0 });
    assert_eq!(schedule.say(1), Step::Say(vec![(0, 0)]));
}

#[test]
fn who_is_read_is_passed_by_later_ones_alone() {
    let mut schedule = wide();
    (0..2).for_each(|id| arrive(&mut schedule, id, Owner::default(), Priority::Normal));
    assert_eq!(admitted(&mut schedule), [0, 1]);
    let passed = |schedule: &Schedule| [0, 1].map(|id| schedule.tasks[&id].passed);
    schedule.did_read(1, 5, 1000);
    assert_eq!(passed(&schedule), [1, 0]);
    schedule.did_read(0, 5, 1000);
    assert_eq!(passed(&schedule), [0, 0]);
}

#[test]
fn a_slot_is_needless_beside_one_that_holds_more_for_the_same() {
    let (own, named) = (Owner::default(), |name| Owner { name: Some(name), ..Owner::default() });
    let is_needless = |older: Owner, younger: Owner, [slot, by]: [usize; 2]| {
        let mut schedule = schedule(64);
        keep(&mut schedule, 0, older, &pieces(0, 10));
        keep(&mut schedule, 1, younger, &pieces(0, 10));
        schedule.is_needless(slot, by)
    };
    assert!(is_needless(own, own, [0, 1]) && is_needless(own, own, [1, 0]));
    assert!(!is_needless(own, own, [0, 0]));
    assert!(!is_needless(own, Owner { id: 1, ..own }, [0, 1]));
    // Of one name the younger is meant.
    assert!(is_needless(named(1), named(1), [0, 1]));
    assert!(!is_needless(named(1), named(1), [1, 0]));
    assert!(!is_needless(named(1), named(2), [0, 1]));
}

#[test]
fn of_what_is_kept_for_an_owner_the_oldest_is_too_much() {
    let too_long = |kept_blocks_max, others| {
        let owner = Owner { kept_blocks_max, ..Owner::default() };
        let mut schedule = schedule(64);
        keep(&mut schedule, 0, owner, &pieces(0, 2 * BLOCK));
        keep(&mut schedule, 1, Owner { id: others, ..owner }, &pieces(5000, 2 * BLOCK));
        schedule.kept_too_long()
    };
    assert_eq!(too_long(Some(3), 0), Some(0));
    assert_eq!(too_long(Some(1), 0), Some(0));
    assert_eq!(too_long(Some(4), 0), None);
    assert_eq!(too_long(None, 0), None);
    assert_eq!(too_long(Some(3), 1), None, "each owner has so many");
}

#[test]
fn the_slot_that_is_of_use_is_not_the_oldest() {
    let mut schedule = schedule(64);
    (0..2).for_each(|slot| keep(&mut schedule, slot, Owner::default(), &pieces(0, 10)));
    assert_eq!(schedule.oldest_kept(None), Some(0));
    assert_eq!(schedule.oldest_kept(Some(0)), Some(1));
}

#[test]
fn who_goes_on_from_all_that_a_slot_holds_is_given_that_slot() {
    let slot = |kept: usize| {
        let mut schedule = wide();
        keep(&mut schedule, 3, Owner::default(), &pieces(0, kept));
        schedule.arrive(0, Owner::default(), Priority::Normal, pieces(0, 200));
        match schedule.next(1000) {
            Step::Admit { slot, from, .. } => (slot, from.map(|from| from.slot)),
            step => panic!("{step:?}"),
        }
    };
    assert_eq!(slot(150), (3, Some(3)));
    // What it holds besides is of use to others.
    assert_eq!(slot(300), (0, Some(3)));
}
