//! Says how closely each picture and clip of a conversation is looked at, so that all of it fits the
//! context.
//!
//! Plain arithmetic over what each would cost, from what its sender wishes down to the least.  Only the
//! request and the server's settings go in, never what memory or other requests leave, so an answer is
//! the same alone and in company.  Knows no picture and no tokenizer.
//!
//! The rule:
//!
//! 1. What fits as it is wished, with the text and the room for the answer, is shown so.
//! 2. Else the room for pictures is the context without the answer and without the text, whose tokens are
//!    rounded up to the next eighth of the context.  So a conversation may grow by some turns before
//!    another choice is made, and what slots and the picture cache hold stays of use.
//! 3. Turns are taken in order.  Pictures of a new turn share evenly what those of earlier turns have
//!    left; what does not need its part gives it to the others.
//! 4. Where that is less than half of what an even share of all would give the new ones, all share anew.
//!    So do they where the text behind them has outgrown its eighth.
//! 5. The least of everything is shown in any case, as long as the prompt then fits; the answer is as long
//!    as there is room.
//!
//! The room for the answer is as many tokens as the request asks for at most.  Where it does not say, or asks
//! for more than there could be beside the least of everything, it is [`ANSWER_USUAL`], or a quarter of the
//! context if that is less.
//!
//! *The limit:* where all share anew, earlier pictures are looked at again and the prompt is read again from
//! the first of them on.  A client that asks for longer answers from turn to turn makes room for these.

/// The text is counted in such parts of the context.
const PARTS: usize = 8;

/// Tokens that are kept free for an answer of which nobody says how long it may be: some paragraphs.
pub const ANSWER_USUAL: usize = 512;

/// What there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Tokens of prompt and answer together.
    pub context: usize,
    /// Tokens that the answer may take, if the request says so.
    pub answer: Option<usize>,
    /// Tokens of the prompt beside pictures and clips.
    pub text: usize,
}

/// What there is room for, with what is kept for the answer.
#[derive(Clone, Copy, Debug)]
struct Room {
    context: usize,
    answer: usize,
    text: usize,
}

/// A picture or clip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// What it may cost in tokens, from what is wished to the least, falling; at least one.
    pub costs: Vec<usize>,
    /// Which turn shows it; rising.
    pub turn: usize,
    /// Tokens of the prompt before it, those of pictures and clips apart; rising.
    pub text_before: usize,
}

impl Item {
    /// The first cost that is no more than `most`, or the least.
    fn within(&self, most: usize) -> usize {
        self.costs.partition_point(|cost| *cost > most).min(self.costs.len() - 1)
    }

    fn most(&self) -> usize {
        self.costs.first().copied().unwrap_or_default()
    }
}

impl Space {
    /// The same with room for an answer beside pictures of which the least takes so many tokens.
    fn beside(&self, least: usize) -> Room {
        let Self { context, answer, text } = *self;
        let usual = ANSWER_USUAL.min(context / 4);
        let answer = answer.filter(|answer| least.saturating_add(text + answer) <= context);
        Room { context, answer: answer.unwrap_or(usual), text }
    }
}

impl Room {
    /// Whether so many tokens of pictures fit with the text and the answer.
    fn holds(&self, tokens: usize) -> bool {
        tokens + self.text + self.answer <= self.context
    }

    /// Tokens of pictures beside a text of so many tokens and what it may grow by.
    fn left_beside(&self, text: usize) -> usize {
        let part = self.context.div_ceil(PARTS).max(1);
        let rounded = (text / part + 1) * part;
        self.context.saturating_sub(self.answer + rounded)
    }
}

/// Which of its costs each item is shown at: indices of [`Item::costs`].  The least of all that is there
/// is given where nothing more fits, whether that fits or not.
pub fn choose(space: &Space, items: &[Item]) -> Vec<usize> {
    let wished = vec![0; items.len()];
    let least: Vec<usize> = items.iter().map(|item| item.costs.len() - 1).collect();
    let room = space.beside(total(items, &least));
    if room.holds(total(items, &wished)) {
        return wished;
    }
    let kept = turn_by_turn(&room, items);
    if room.holds(total(items, &kept)) {
        return kept;
    }
    evenly(items, room.left_beside(room.text))
}

/// What each turn was given when it was the last one.
fn turn_by_turn(room: &Room, items: &[Item]) -> Vec<usize> {
    let mut chosen: Vec<usize> = Vec::new();
    for new in items.chunk_by(|one, next| one.turn == next.turn) {
        let before = chosen.len();
        let all = &items[..before + new.len()];
        let text = new.last().map_or(0, |item| item.text_before);
        let whole = room.left_beside(text);
        let left = whole.saturating_sub(total(items, &chosen));
        let (beside, shared) = (evenly(new, left), evenly(all, whole));
        let [kept, fair] = [&beside, &shared[before..]].map(|rungs: &[usize]| total(new, rungs));
        if kept <= left && 2 * kept >= fair {
            chosen.extend(beside);
        } else {
            chosen = shared;
        }
    }
    chosen
}

/// The same most for each, as high as `room` allows; what is then left over goes to those that can use
/// it, a step each in turn.  The least of all where `room` has not even that.
fn evenly(items: &[Item], room: usize) -> Vec<usize> {
    let at = |most: usize| items.iter().map(|item| item.within(most)).collect::<Vec<usize>>();
    let (mut low, mut high) = (0, items.iter().map(Item::most).max().unwrap_or_default());
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        match total(items, &at(middle)) <= room {
            true => low = middle,
            false => high = middle - 1,
        }
    }
    let mut chosen = at(low);
    let mut spare = room.saturating_sub(total(items, &chosen));
    // One step each, until nobody can take one more: as many rounds as there are steps at most.
    loop {
        let before = spare;
        for (item, rung) in items.iter().zip(&mut chosen) {
            let Some(better) = rung.checked_sub(1) else { continue };
            let more = item.costs[better] - item.costs[*rung];
            if more <= spare {
                (*rung, spare) = (better, spare - more);
            }
        }
        if spare == before {
            return chosen;
        }
    }
}

/// Tokens of items at such costs; of the first ones, where fewer are given.
fn total(items: &[Item], rungs: &[usize]) -> usize {
    items.iter().zip(rungs).map(|(item, rung)| item.costs[*rung]).sum()
}

#[cfg(test)]
mod tests {
    use smelt_random::Random;

    use super::*;

    /// Tiles of 256 tokens as a 4:3 photograph has them: 13, 9, 7, 5, 3 (with thumbnails) and 1.
    const PHOTOGRAPH: [usize; 5] = [3328, 2304, 1792, 768, 256];

    fn item(costs: &[usize], turn: usize, text_before: usize) -> Item {
        Item { costs: costs.to_vec(), turn, text_before }
    }

    fn photograph(turn: usize, text_before: usize) -> Item {
        item(&PHOTOGRAPH, turn, text_before)
    }

    fn space(context: usize, answer: usize, text: usize) -> Space {
        Space { context, answer: Some(answer), text }
    }

    fn tokens(space: &Space, items: &[Item]) -> Vec<usize> {
        let rungs = choose(space, items);
        items.iter().zip(rungs).map(|(item, rung)| item.costs[rung]).collect()
    }

    #[test]
    fn a_photograph_fits_whatever_the_context_is() {
        for (context, expect) in
            [(32_768, 3328), (4096, 3328), (3000, 2304), (2048, 768), (856, 256), (300, 256)]
        {
            assert_eq!(
                tokens(&space(context, 64, 40), &[photograph(0, 20)]),
                [expect],
                "{context}"
            );
        }
        // What never fits is told by whoever counts the prompt.
        assert_eq!(tokens(&space(100, 64, 40), &[photograph(0, 20)]), [256]);
    }

    #[test]
    fn an_answer_of_any_length_is_no_reason_to_see_nothing() {
        let shown =
            |answer| tokens(&Space { context: 4096, answer, text: 40 }, &[photograph(0, 9)]);
        assert_eq!(shown(None), [3328]);
        assert_eq!(shown(Some(1000)), [2304]);
        assert_eq!(shown(Some(3800)), [256], "all that is asked for has room");
        assert_eq!(shown(Some(4096)), [3328], "that never has");
    }

    #[test]
    fn pictures_of_a_turn_share_evenly_and_small_ones_leave_their_part() {
        let six = vec![photograph(0, 20); 6];
        assert_eq!(tokens(&space(8192, 512, 60), &six), [1792, 1792, 768, 768, 768, 768]);
        let small = item(&[256], 0, 20);
        let mixed = [photograph(0, 20), small.clone(), photograph(0, 20), small];
        assert_eq!(tokens(&space(6144, 512, 60), &mixed), [2304, 256, 1792, 256]);
    }

    #[test]
    fn an_earlier_picture_keeps_its_tiles_where_the_new_one_has_half_of_its_share() {
        let both = [photograph(0, 20), photograph(2, 60)];
        assert_eq!(tokens(&space(6144, 64, 90), &both[..1]), [3328]);
        assert_eq!(tokens(&space(6144, 64, 90), &both), [3328, 1792]);
        // There a second one would have next to nothing.
        assert_eq!(tokens(&space(4400, 64, 90), &both[..1]), [3328]);
        assert_eq!(tokens(&space(4400, 64, 90), &both), [1792, 1792]);
    }

    #[test]
    fn a_conversation_that_grows_seldom_changes_its_choice() {
        let mut choices = Vec::new();
        for text in 40..2500 {
            choices.push(tokens(&space(3072, 64, text), &[photograph(0, 20)])[0]);
        }
        assert!(choices.is_sorted_by(|a, b| a >= b), "never closer again");
        choices.dedup();
        assert!(choices.len() <= PARTS, "{choices:?}");
    }

    fn items(random: &mut Random) -> Vec<Item> {
        let (mut turn, mut text_before) = (0, 0);
        let count = 1 + random.below(9);
        (0..count)
            .map(|_| {
                turn += random.below(2);
                text_before += random.below(60);
                let mut cost = 1 + random.below(300);
                let mut costs = vec![cost];
                for _ in 0..random.below(12) {
                    cost += 1 + random.below(400);
                    costs.push(cost);
                }
                costs.reverse();
                Item { costs, turn, text_before }
            })
            .collect()
    }

    #[test]
    fn whatever_is_shown_fits_if_the_least_of_it_does() {
        let mut random = Random::new(7);
        let (mut wished, mut lowered, mut least) = (0, 0, 0);
        for _ in 0..20_000 {
            let items = items(&mut random);
            let text = items.last().unwrap().text_before + 1 + random.below(200);
            let space = space(64 + random.below(12_000), 1 + random.below(600), text);
            let chosen = choose(&space, &items);
            let tokens = total(&items, &chosen);
            let all = |end: &dyn Fn(&Item) -> usize| items.iter().map(end).sum::<usize>();
            let (best, worst) = (all(&Item::most), all(&|item| *item.costs.last().unwrap()));
            let room = space.beside(worst);
            let is_kept = Some(room.answer) == space.answer;
            assert!(is_kept || worst + text + space.answer.unwrap() > space.context);
            assert_eq!(chosen.len(), items.len());
            assert_eq!(chosen, choose(&space, &items), "nothing else decides");
            if room.holds(best) {
                wished += 1;
                assert_eq!(tokens, best, "as wished where that fits");
            } else if room.holds(worst) {
                lowered += 1;
                assert!(room.holds(tokens), "{space:?} {items:?} {chosen:?}");
            } else {
                least += 1;
                assert_eq!(tokens, worst, "the least in any case");
            }
        }
        assert!(wished > 1000 && lowered > 1000 && least > 1000, "{wished} {lowered} {least}");
    }

    #[test]
    fn nobody_has_less_than_an_equal_part_buys_and_nothing_usable_is_left() {
        let mut random = Random::new(11);
        for _ in 0..20_000 {
            let items = items(&mut random);
            let room = random.below(9000);
            let chosen = evenly(&items, room);
            let spare = room.saturating_sub(total(&items, &chosen));
            let part = room / items.len();
            let has_least = items.iter().all(|item| *item.costs.last().unwrap() <= part);
            for (item, rung) in items.iter().zip(&chosen) {
                let better = rung.checked_sub(1).map(|better| item.costs[better]);
                assert!(better.is_none_or(|better| better - item.costs[*rung] > spare));
                assert!(!has_least || *rung <= item.within(part), "{room} {items:?} {chosen:?}");
            }
        }
    }

    #[test]
    fn a_new_turn_of_words_changes_nothing_within_its_eighth() {
        let mut random = Random::new(13);
        for _ in 0..5_000 {
            let items = items(&mut random);
            let part = 512;
            let before = items.last().unwrap().text_before / part * part;
            let at = |text| choose(&space(part * PARTS, 64, text), &items);
            let first = items.last().unwrap().text_before + 1;
            let wished = vec![0; items.len()];
            if at(first) == wished {
                continue;
            }
            let last = before + part - 1;
            if first <= last {
                assert_eq!(at(first), at(last), "{items:?}");
            }
        }
    }
}
