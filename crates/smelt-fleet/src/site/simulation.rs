//! Boards that start together, over a line that is counted, by the decisions alone.

use super::*;

const MIB: u64 = 1 << 20;
/// 20 Mbit/s.
const LINE: f64 = 2.5e6;
/// A network of 100 Mbit/s at each board.
const LAN: f64 = 12.5e6;
/// A board's message there and back.
const ROUND_TRIP_S: f64 = 0.005;

/// How boards choose.
#[derive(Clone, Copy)]
struct Ways {
    /// Each in an order of its own.
    own_seeds: bool,
    /// What comes to others is waited for.
    waits: bool,
    /// Neighbours are asked at all.
    shares: bool,
}

const USUAL: Ways = Ways { own_seeds: true, waits: true, shares: true };

struct Board {
    learned: Learned,
    wanted: Vec<usize>,
    has: Vec<bool>,
    comes: Vec<bool>,
    /// What it has asked for: of the server when that came, and of neighbours.
    server: (Vec<usize>, Duration),
    neighbours: Vec<usize>,
    done_s: Option<f64>,
}

/// What a site took.
#[derive(Debug)]
struct Took {
    /// Times the output went over the line.
    copies: f64,
    /// Times one board would take alone by the whole line, until the last one had it.
    times: f64,
}

/// `count` boards that fetch an output of so many bytes in chunks of `bytes` each.
fn live(count: usize, all: u64, bytes: u64, ways: Ways, seed: u64) -> Took {
    let chunks: Vec<Blob> = (0..all / bytes)
        .map(|at| Blob { digest: Digest::of(&at.to_le_bytes()), bytes: bytes as u32 })
        .collect();
    let board = |number: u64| Board {
        learned: Learned::new(if ways.own_seeds { seed * 1000 + number } else { seed }),
        wanted: (0..chunks.len()).collect(),
        has: vec![false; chunks.len()],
        comes: vec![false; chunks.len()],
        server: (Vec::new(), Duration::ZERO),
        neighbours: Vec::new(),
        done_s: None,
    };
    let mut boards: Vec<Board> = (0..count as u64).map(board).collect();
    let mut due: Vec<f64> = (0..count).map(|number| number as f64 * 0.01).collect();
    let (mut line_free, mut moved) = (0.0f64, 0.0);
    while boards.iter().any(|board| board.done_s.is_none()) {
        let open = (0..count).filter(|at| boards[*at].done_s.is_none());
        let at = open.min_by(|one, other| due[*one].total_cmp(&due[*other])).unwrap();
        let now = due[at];
        assert!(now < 1e5, "they never end");
        boards[at].receive(&chunks, now);
        if boards[at].wanted.is_empty() {
            boards[at].done_s = Some(now);
            continue;
        }
        let (server, slowest) = ask(&mut boards, at, &chunks, ways, now);
        moved += server;
        let begin = line_free.max(now);
        if server > 0.0 {
            line_free = begin + server / LINE;
        }
        let end = if server > 0.0 { line_free } else { now };
        boards[at].server.1 = Duration::from_secs_f64(end - now);
        let is_idle = server == 0.0 && slowest == 0.0;
        let wait = if is_idle { LOOK_AGAIN.as_secs_f64() } else { slowest };
        due[at] = end.max(now + wait) + ROUND_TRIP_S;
    }
    let last = boards.iter().filter_map(|board| board.done_s).fold(0.0, f64::max);
    Took { copies: moved / all as f64, times: last / (all as f64 / LINE) }
}

/// A board chooses: the bytes that it asks of the server, and how long neighbours take.
fn ask(boards: &mut [Board], at: usize, chunks: &[Blob], ways: Ways, now: f64) -> (f64, f64) {
    let wanted: Vec<Blob> = boards[at].wanted.iter().map(|it| chunks[*it]).collect();
    let some = boards[at].learned.some(&wanted);
    let some: Vec<usize> = some.iter().map(|it| boards[at].wanted[*it]).collect();
    let asked: Vec<Blob> = some.iter().map(|it| chunks[*it]).collect();
    let others = boards.iter().enumerate().filter(|(other, _)| *other != at && ways.shares);
    let seen = others.map(|(neighbour, board)| Seen {
        neighbour,
        has: some.iter().map(|it| board.has[*it]).collect(),
        comes: some.iter().map(|it| board.comes[*it]).collect(),
    });
    let seen: Vec<Seen> = seen.collect();
    let (board, since) = (&mut boards[at], Duration::from_secs_f64(now));
    let rooms: Vec<u64> =
        seen.iter().map(|it| board.learned.room_of(it.neighbour, since)).collect();
    let mut room = board.learned.room(12 * MIB, since);
    room.waits &= ways.waits;
    let choice = choose(&asked, &seen, &rooms, room);
    board.server.0 = choice.server.iter().map(|it| some[*it]).collect();
    board.server.0.iter().for_each(|it| board.comes[*it] = true);
    board.neighbours.clear();
    let mut slowest: f64 = 0.0;
    for (to, list) in &choice.neighbours {
        let bytes: u64 = list.iter().map(|it| u64::from(asked[*it].bytes)).sum();
        let took = bytes as f64 / LAN;
        slowest = slowest.max(took);
        board.learned.neighbour_sent(*to, (bytes, bytes), Duration::from_secs_f64(took), since);
        board.neighbours.extend(list.iter().map(|it| some[*it]));
    }
    let bytes = |list: &[usize]| list.iter().map(|it| u64::from(chunks[*it].bytes)).sum::<u64>();
    if slowest > 0.0 {
        let took = Duration::from_secs_f64(slowest);
        board.learned.neighbours_sent(bytes(&board.neighbours), took, since);
    }
    (bytes(&board.server.0) as f64, slowest)
}

impl Board {
    /// What it asked for is there.
    fn receive(&mut self, chunks: &[Blob], now: f64) {
        let (server, took) = std::mem::take(&mut self.server);
        if !server.is_empty() {
            let sent: Vec<Blob> = server.iter().map(|it| chunks[*it]).collect();
            self.learned.server_sent(&sent, took);
        }
        for it in server.iter().chain(&self.neighbours) {
            (self.has[*it], self.comes[*it]) = (true, false);
        }
        if !(server.is_empty() && self.neighbours.is_empty()) {
            self.learned.came(!self.neighbours.is_empty(), Duration::from_secs_f64(now));
        }
        self.neighbours.clear();
        self.wanted.retain(|it| !self.has[*it]);
    }
}

#[test]
fn boards_that_start_together_fetch_little_more_than_one_copy() {
    for (count, all, chunk, seed) in [
        (20, 64, 128 << 10, 1),
        (20, 64, 128 << 10, 2),
        (20, 256, 512 << 10, 3),
        (3, 64, 128 << 10, 4),
        (100, 64, 256 << 10, 5),
    ] {
        let took = live(count, all * MIB, chunk, USUAL, seed);
        assert!(took.copies <= 1.05 && took.times <= 1.25, "{count} boards, {all} MiB: {took:?}");
    }
}

/// Each of the decisions is needed for that.
#[test]
fn without_sharing_waiting_or_an_order_of_ones_own_more_goes_over_the_line() {
    let copies = |ways| live(20, 64 * MIB, 128 << 10, ways, 1).copies;
    let (usual, alone) = (copies(USUAL), copies(Ways { shares: false, ..USUAL }));
    assert!(alone > 19.9, "{alone}");
    let impatient = copies(Ways { waits: false, ..USUAL });
    assert!(impatient > 1.1 * usual, "{impatient}");
    let in_step = copies(Ways { waits: false, own_seeds: false, ..USUAL });
    assert!(in_step > 2.0 * impatient.min(1.5), "{in_step}");
}
