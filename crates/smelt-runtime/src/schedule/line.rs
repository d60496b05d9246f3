//! Says who is next where work is done in small portions.
//!
//! Who has the least left goes first, since that makes waiting short on average; but nobody is
//! passed more than so often, so that what is long comes to its end, too.  Knows nothing of what is
//! done.

/// Portions that others may be given while one that came before them waits.
const PASSES_MAX: u32 = 8;

/// One that waits for its next portion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// How much is left, in any unit that all share.
    pub left: usize,
    /// Smaller is earlier; no two are equal.
    pub order: u64,
    /// How often a later one went first since this one's last portion.
    pub passed: u32,
}

/// The place of the one to go next; nothing if nobody waits.
pub fn next(line: &[Standing]) -> Option<usize> {
    let worn_out = line.iter().enumerate().filter(|(_, one)| one.passed >= PASSES_MAX);
    let next = worn_out.min_by_key(|(_, one)| one.order);
    let next =
        next.or_else(|| line.iter().enumerate().min_by_key(|(_, one)| (one.left, one.order)));
    next.map(|(place, _)| place)
}

/// Whether one of this `order` was passed, now that the one of `next` goes.
pub fn is_passed(order: u64, next: u64) -> bool {
    order < next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_ones_are_passed_and_nobody_else() {
        assert_eq!([1, 2, 3].map(|order| is_passed(order, 2)), [true, false, false]);
    }

    #[track_caller]
    fn check(line: &[(usize, u64, u32)], expect: Option<usize>) {
        let line: Vec<Standing> =
            line.iter().map(|&(left, order, passed)| Standing { left, order, passed }).collect();
        assert_eq!(next(&line), expect);
    }

    #[test]
    fn who_has_the_least_left_is_next() {
        check(&[], None);
        check(&[(5, 1, 0), (3, 2, 0), (4, 3, 0)], Some(1));
        check(&[(5, 2, 0), (5, 1, 0)], Some(1));
    }

    #[test]
    fn who_was_passed_often_goes_before() {
        check(&[(900, 1, PASSES_MAX), (3, 2, 0)], Some(0));
        check(&[(900, 2, PASSES_MAX), (900, 1, PASSES_MAX), (3, 3, 0)], Some(1));
        check(&[(900, 1, PASSES_MAX - 1), (3, 2, 0)], Some(1));
    }

    /// Short ones come without end; the long one gets every ninth portion all the same.
    #[test]
    fn what_is_long_comes_to_its_end() {
        let mut long = Standing { left: 50, order: 0, passed: 0 };
        let mut portions = 0;
        for order in 1.. {
            if long.left == 0 {
                break;
            }
            let short = Standing { left: 1, order, passed: 0 };
            if next(&[long, short]) == Some(0) {
                (long.left, long.passed) = (long.left - 1, 0);
            } else {
                long.passed += u32::from(is_passed(long.order, order));
            }
            portions += 1;
        }
        // The last one is as short as the others, and came before them.
        assert_eq!(portions, 49 * (PASSES_MAX as usize + 1) + 1);
    }
}
