//! Places buffers in one arena, so that those needed at the same time lie apart.
//!
//! Lengths and times in, offsets out; the largest buffers choose first.  Knows nothing of tasks.

/// Offsets are multiples of this many numbers, a cache line of f32.
const ALIGN: usize = 16;

/// How many numbers are needed, from the first to the last moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// How many.
    pub len: usize,
    /// From when.
    pub first: usize,
    /// To when.
    pub last: usize,
}

/// Where each need lies.
#[derive(Debug, PartialEq, Eq)]
pub struct Placed {
    /// Offsets, one for each need.
    pub offsets: Vec<usize>,
    /// Numbers of the arena.
    pub total: usize,
}

/// Gives each need the lowest offset where nothing lies that is needed at the same time.
pub fn place(needs: &[Need]) -> Placed {
    let mut order: Vec<usize> = (0..needs.len()).filter(|&index| needs[index].len > 0).collect();
    order.sort_by_key(|&index| (std::cmp::Reverse(needs[index].len), needs[index].first, index));
    let mut placed = Placed { offsets: vec![0; needs.len()], total: 0 };
    let mut done: Vec<usize> = Vec::with_capacity(order.len());
    for index in order {
        let need = needs[index];
        let meets = |other: &Need| need.first <= other.last && other.first <= need.last;
        let mut taken: Vec<(usize, usize)> = done
            .iter()
            .filter(|&&other| meets(&needs[other]))
            .map(|&other| (placed.offsets[other], placed.offsets[other] + needs[other].len))
            .collect();
        taken.sort_unstable();
        let mut offset = 0;
        for (start, end) in taken {
            if offset + need.len <= start {
                break;
            }
            offset = offset.max(end.next_multiple_of(ALIGN));
        }
        placed.offsets[index] = offset;
        placed.total = placed.total.max(offset + need.len);
        done.push(index);
    }
    placed
}

#[cfg(test)]
mod tests {
    use smelt_random::Random;

    use super::*;

    /// The most numbers that are needed at one moment: no placement can do with fewer.
    fn peak(needs: &[Need]) -> usize {
        let at = |now: usize| {
            let here = needs.iter().filter(|need| (need.first..=need.last).contains(&now));
            here.map(|need| need.len).sum::<usize>()
        };
        (0..=needs.iter().map(|need| need.last).max().unwrap_or(0)).map(at).max().unwrap_or(0)
    }

    fn check(needs: &[Need]) -> f64 {
        let placed = place(needs);
        let range = |index: usize| placed.offsets[index]..placed.offsets[index] + needs[index].len;
        for a in 0..needs.len() {
            assert!(range(a).end <= placed.total);
            assert!(placed.offsets[a].is_multiple_of(ALIGN));
            for b in 0..a {
                let (x, y) = (needs[a], needs[b]);
                let meet = x.first <= y.last && y.first <= x.last && x.len > 0 && y.len > 0;
                let apart = range(a).end <= range(b).start || range(b).end <= range(a).start;
                assert!(!meet || apart, "{x:?} {y:?} overlap");
            }
        }
        let sum: usize = needs.iter().map(|need| need.len.next_multiple_of(ALIGN)).sum();
        assert!(placed.total <= sum, "{} is more than all buffers, {sum}", placed.total);
        placed.total as f64 / peak(needs).max(1) as f64
    }

    #[test]
    fn no_two_needs_of_one_moment_overlap_and_little_is_wasted() {
        let mut random = Random::new(41);
        let mut worst: f64 = 0.0;
        for _ in 0..300 {
            let needs: Vec<Need> = (0..1 + random.below(40))
                .map(|_| {
                    let first = random.below(60);
                    let last = first + random.below(12);
                    Need { len: ALIGN * random.below(64), first, last }
                })
                .collect();
            worst = worst.max(check(&needs));
        }
        assert!(worst < 1.5, "an arena is {worst} of the peak");
    }

    #[test]
    fn a_tower_takes_its_peak() {
        // Residual rows through all layers; norm, projection, mix and MLP in between.
        let mut needs = vec![Need { len: 1024, first: 0, last: 80 }];
        for layer in 0..8 {
            let at = 10 * layer;
            needs.push(Need { len: 1024, first: at + 1, last: at + 2 });
            needs.push(Need { len: 3072, first: at + 2, last: at + 3 });
            needs.push(Need { len: 1024, first: at + 3, last: at + 4 });
            needs.push(Need { len: 1024, first: at + 6, last: at + 7 });
            needs.push(Need { len: 4096, first: at + 7, last: at + 8 });
            needs.push(Need { len: 1024, first: at + 8, last: at + 9 });
        }
        assert_eq!(check(&needs), 1.0);
        assert_eq!(place(&[]), Placed { offsets: vec![], total: 0 });
    }
}
