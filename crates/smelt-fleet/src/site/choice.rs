//! Decides which chunks are asked of whom: a plain function of what is wanted, and of what neighbours say to have.

use crate::remote::Blob;

/// What a neighbour says of the chunks that it was asked after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its number.
    pub neighbour: usize,
    /// Of each chunk, whether it has it.
    pub has: Vec<bool>,
    /// Of each, whether it has asked the server for it.
    pub comes: Vec<bool>,
}

/// What may be asked for at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Bytes of the server; nothing where it is gone.
    pub(crate) server: u64,
    /// Of all neighbours together.
    pub(crate) neighbours: u64,
    /// Whether the server is faster than all neighbours together, so that it helps them.
    pub(crate) helps: bool,
    /// Whether what comes to neighbours is waited for.
    pub(crate) waits: bool,
}

/// Which chunks, by their numbers, are asked of whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) server: Vec<usize>,
    /// Of neighbours by their numbers.
    pub(crate) neighbours: Vec<(usize, Vec<usize>)>,
}

impl Choice {
    pub(crate) fn is_nothing(&self) -> bool {
        self.server.is_empty() && self.neighbours.is_empty()
    }
}

/// Chooses among `asked`, which comes in an order of this board's own: boards that start together ask the server for
/// different chunks.  `rooms` says how many bytes each of `seen` takes.
///
/// What fewest neighbours have is asked for first, each chunk of the one that is asked for least.  The server is asked for
/// what nobody has, nor asks it for.
pub(crate) fn choose(asked: &[Blob], seen: &[Seen], rooms: &[u64], room: Room) -> Choice {
    let count = |at| seen.iter().filter(|it| it.has[at]).count();
    let holders: Vec<usize> = (0..asked.len()).map(count).collect();
    let mut held: Vec<usize> = (0..asked.len()).filter(|at| holders[*at] > 0).collect();
    // Equals stay in the board's own order.
    held.sort_by_key(|at| holders[*at]);
    let mut lists: Vec<Vec<usize>> = vec![Vec::new(); seen.len()];
    let (mut taken, mut all, mut left) = (vec![0; seen.len()], 0, Vec::new());
    for at in held {
        let bytes = u64::from(asked[at].bytes);
        let may = |it: &usize| seen[*it].has[at] && fits(taken[*it], bytes, rooms[*it]);
        // Whoever is asked for least; among equals another one for each chunk.
        let turn = |it: &usize| (taken[*it], (it + at) % seen.len());
        match (0..seen.len()).filter(may).min_by_key(turn) {
            Some(to) if fits(all, bytes, room.neighbours) => {
                lists[to].push(at);
                taken[to] += bytes;
                all += bytes;
            }
            _ => left.push(at),
        }
    }
    let neighbours = seen.iter().map(|it| it.neighbour).zip(lists);
    let neighbours = neighbours.filter(|(_, list)| !list.is_empty()).collect();
    let is_waited_for = |at: usize| room.waits && seen.iter().any(|it| it.comes[at]);
    let nobodys = (0..asked.len()).filter(|at| holders[*at] == 0 && !is_waited_for(*at));
    let mut server = within(nobodys, asked, room.server);
    if server.is_empty() && room.helps {
        server = within(left.into_iter(), asked, room.server);
    }
    Choice { server, neighbours }
}

/// Whether so many bytes more are not too many; a chunk that is larger than the room goes alone.
fn fits(taken: u64, bytes: u64, room: u64) -> bool {
    taken + bytes <= room || (taken == 0 && room > 0)
}

/// The first of these chunks that fit.
fn within(numbers: impl Iterator<Item = usize>, asked: &[Blob], room: u64) -> Vec<usize> {
    let mut sum = 0;
    let is_in = |at: &usize| {
        let bytes = u64::from(asked[*at].bytes);
        let is_in = fits(sum, bytes, room);
        sum += bytes;
        is_in
    };
    numbers.take_while(is_in).collect()
}

/// How many bytes are asked for next, where so many of `room` took so long: about a second's worth, since a longer answer
/// keeps what is in it from neighbours.
pub(crate) fn next_room(room: u64, bytes: u64, seconds: f64, (least, most): (u64, u64)) -> u64 {
    let is_full = bytes * 2 >= room;
    let next = match seconds {
        ..0.5 if is_full => room * 2,
        1.5.. => room / 2,
        _ => room,
    };
    next.clamp(least, most)
}

#[cfg(test)]
mod tests {
    use smelt_store::Digest;

    use super::*;

    const FREE: Room = Room { server: 200, neighbours: 1000, helps: false, waits: true };

    fn blobs(count: usize) -> Vec<Blob> {
        (0..count).map(|it| Blob { digest: Digest::of(&[it as u8]), bytes: 100 }).collect()
    }

    /// Of each neighbour a text: `x` for what it has, `?` for what comes to it.
    fn seen(texts: &[&str]) -> Vec<Seen> {
        let marks = |text: &str, mark| text.chars().map(|one| one == mark).collect();
        let one = |(neighbour, text): (usize, &&str)| Seen {
            neighbour,
            has: marks(text, 'x'),
            comes: marks(text, '?'),
        };
        texts.iter().enumerate().map(one).collect()
    }

    fn chosen(count: usize, texts: &[&str], room: Room) -> Choice {
        choose(&blobs(count), &seen(texts), &vec![300; texts.len()], room)
    }

    #[test]
    fn the_server_is_asked_for_what_nobody_has_and_neighbours_for_the_rest() {
        let choice = chosen(5, &["x.x..", "..x?."], FREE);
        assert_eq!(choice.server, [1, 4]);
        assert_eq!(choice.neighbours, [(0, vec![0]), (1, vec![2])]);
    }

    #[test]
    fn the_rarest_are_asked_for_first() {
        let room = Room { neighbours: 200, ..FREE };
        let choice = chosen(4, &["xxxx", "x.x.", "x.x."], room);
        assert_eq!(choice.neighbours, [(0, vec![1, 3])]);
    }

    #[test]
    fn whoever_is_asked_for_least_is_asked() {
        let choice = chosen(6, &["xxxxxx", "xxxxxx", "xxxxxx"], FREE);
        let counts: Vec<usize> = choice.neighbours.iter().map(|(_, list)| list.len()).collect();
        assert_eq!(counts, [2, 2, 2]);
    }

    #[test]
    fn what_comes_to_a_neighbour_is_waited_for_only_so_long() {
        assert!(chosen(2, &["??"], FREE).is_nothing());
        assert_eq!(chosen(2, &["??"], Room { waits: false, ..FREE }).server, [0, 1]);
        assert!(chosen(2, &["??"], Room { waits: false, server: 0, ..FREE }).is_nothing());
    }

    #[test]
    fn a_server_that_is_faster_takes_what_neighbours_do_not_manage() {
        let slow = |helps| choose(&blobs(4), &seen(&["xxxx"]), &[100], Room { helps, ..FREE });
        assert_eq!(slow(false), Choice { server: vec![], neighbours: vec![(0, vec![0])] });
        assert_eq!(slow(true).server, [1, 2]);
    }

    #[test]
    fn limits_hold_and_a_chunk_that_is_larger_goes_alone() {
        assert_eq!(chosen(4, &["...."], Room { server: 50, ..FREE }).server, [0]);
        assert_eq!(chosen(9, &["xxxxxxxxx"], FREE).neighbours, [(0, vec![0, 1, 2])]);
        assert!(choose(&blobs(1), &seen(&["x"]), &[0], FREE).is_nothing());
        assert_eq!(chosen(3, &[], FREE).server, [0, 1]);
        assert!(chosen(0, &[""], FREE).is_nothing());
    }

    #[test]
    fn windows_follow_the_line() {
        let next = |room, bytes, seconds| next_room(room, bytes, seconds, (100, 1000));
        assert_eq!(next(400, 400, 0.1), 800);
        assert_eq!(next(400, 100, 0.1), 400);
        assert_eq!(next(400, 400, 1.0), 400);
        assert_eq!(next(400, 400, 3.0), 200);
        assert_eq!((next(150, 150, 9.0), next(900, 900, 0.0)), (100, 1000));
    }
}
