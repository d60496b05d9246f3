//! Boards that start together, over a line that is counted, by the decisions alone; neighbours in memory that lie, are slow,
//! or have nothing; and a peer on a socket.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::Mutex;

use super::*;
use crate::peer::{PeerOptions, Sealed, Shelf, serve};

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
    for seed in 0..3 {
        for (count, all, chunk) in [(20, 64, 128 << 10), (20, 256, 512 << 10), (3, 64, 128 << 10)] {
            let took = live(count, all * MIB, chunk, USUAL, seed);
            assert!(took.copies <= 1.05 && took.times <= 1.25, "seed {seed}: {count}: {took:?}");
        }
    }
    let took = live(100, 64 * MIB, 128 << 10, USUAL, 1);
    assert!(took.copies <= 1.1 && took.times <= 1.3, "{took:?}");
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

/// How a neighbour in memory behaves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    Honest,
    Lies,
    CutsShort,
    /// Says to have all, and sends nothing.
    SendsNothing,
    /// Says that all comes to it.
    Promises,
    Has(usize),
}

struct Memory {
    blobs: HashMap<Digest, Vec<u8>>,
    order: Vec<Blob>,
    manners: Vec<Manner>,
    left: Mutex<HashSet<usize>>,
}

impl Memory {
    fn sends(&self, manner: Manner, blob: &Blob) -> Option<Vec<u8>> {
        let mut content = self.blobs[&blob.digest].clone();
        match manner {
            Manner::Honest => {}
            Manner::Lies => content[0] ^= 1,
            Manner::CutsShort => content.truncate(9),
            Manner::SendsNothing | Manner::Promises => return None,
            Manner::Has(count) if self.order[..count].contains(blob) => {}
            Manner::Has(_) => return None,
        }
        Some(content)
    }
}

impl Neighbours for Memory {
    fn look(&self, asked: &[Blob]) -> Vec<Seen> {
        let left = self.left.lock().unwrap();
        let here = self.manners.iter().enumerate().filter(|(at, _)| !left.contains(at));
        let one = |(neighbour, manner): (usize, &Manner)| {
            let has = |blob: &Blob| match manner {
                Manner::Has(count) => self.order[..*count].contains(blob),
                manner => *manner != Manner::Promises,
            };
            let comes = vec![*manner == Manner::Promises; asked.len()];
            Seen { neighbour, has: asked.iter().map(has).collect(), comes }
        };
        here.map(one).collect()
    }

    fn read(&self, lists: &[(usize, Vec<Blob>)]) -> Vec<Answer> {
        let one = |(neighbour, blobs): &(usize, Vec<Blob>)| {
            let manner = self.manners[*neighbour];
            let contents = blobs.iter().map(|blob| self.sends(manner, blob)).collect();
            Answer { neighbour: *neighbour, contents, took: Duration::from_millis(1) }
        };
        lists.iter().map(one).collect()
    }

    fn name(&self, neighbour: usize) -> String {
        format!("neighbour-{neighbour}:1")
    }

    fn leave(&self, neighbour: usize) {
        self.left.lock().unwrap().insert(neighbour);
    }
}

/// Keeps some blobs, and counts those that it sends.
#[derive(Default)]
struct Server {
    blobs: HashMap<Digest, Vec<u8>>,
    sent: RefCell<Vec<Blob>>,
    is_gone: bool,
}

impl Remote for Server {
    fn name(&self) -> &str {
        "grpc://memory:1"
    }

    fn instance(&self) -> &str {
        ""
    }

    fn missing(&self, _: &[Blob]) -> Result<Vec<Blob>, RemoteError> {
        unreachable!("nothing is pushed")
    }

    fn read(&self, blobs: &[Blob]) -> Read {
        if self.is_gone {
            let (server, problem) = (self.name().to_owned(), "it is gone".to_owned());
            return Err(RemoteError { server, problem, is_gone: true });
        }
        self.sent.borrow_mut().extend(blobs);
        Ok(blobs.iter().map(|blob| self.blobs.get(&blob.digest).cloned()).collect())
    }

    fn write(&self, _: &[(Blob, Vec<u8>)]) -> Result<(), RemoteError> {
        unreachable!("nothing is pushed")
    }

    fn entry(&self, _: &Key) -> Result<Option<Entry>, RemoteError> {
        unreachable!("nothing is asked for by key")
    }

    fn publish(&self, _: &Key, _: &Entry) -> Result<(), RemoteError> {
        unreachable!("nothing is pushed")
    }
}

struct World {
    server: Server,
    memory: Memory,
    told: RefCell<Vec<String>>,
    stop: AtomicBool,
}

impl World {
    fn new(manners: &[Manner]) -> Self {
        let content = |at: u32| at.to_le_bytes().repeat(1000);
        let blobs: HashMap<Digest, Vec<u8>> =
            (0..40).map(content).map(|content| (Digest::of(&content), content)).collect();
        let order = (0..40).map(|at| Blob::of(&content(at))).collect();
        let memory = Memory {
            blobs: blobs.clone(),
            order,
            manners: manners.to_vec(),
            left: Mutex::default(),
        };
        let server = Server { blobs, ..Server::default() };
        Self { server, memory, told: RefCell::default(), stop: AtomicBool::new(false) }
    }

    /// Reads all; how many came from neighbours.
    fn read_all(&self) -> Result<usize, RemoteError> {
        read_all(&self.server, &self.memory, &self.memory.order, self)
    }
}

fn read_all(
    server: &Server,
    neighbours: &dyn Neighbours,
    order: &[Blob],
    world: &World,
) -> Result<usize, RemoteError> {
    let told = |line: &str| world.told.borrow_mut().push(line.to_owned());
    let site = Site::new(server, neighbours, 7, &world.stop, &told);
    let (mut wanted, mut of_neighbours, mut asked) = (order.to_vec(), 0, Vec::new());
    while !wanted.is_empty() {
        let parts =
            site.read_some(&wanted, 64 << 10, &mut |comes| asked.extend_from_slice(comes))?;
        let mut came = HashSet::new();
        for part in parts {
            let content = part.content.expect("the server has all");
            assert_eq!(Blob::of(&content), wanted[part.number], "another chunk is taken");
            of_neighbours += usize::from(part.is_neighbours);
            assert!(came.insert(wanted[part.number]), "a chunk comes twice");
        }
        wanted.retain(|blob| !came.contains(blob));
    }
    if !server.is_gone {
        assert_eq!(asked, *server.sent.borrow(), "what is asked for is announced");
    }
    Ok(of_neighbours)
}

#[test]
fn what_neighbours_have_does_not_come_from_the_server() {
    let world = World::new(&[Manner::Has(20), Manner::Has(30), Manner::Has(0)]);
    assert_eq!(world.read_all(), Ok(30));
    assert_eq!(world.server.sent.borrow().len(), 10);
    let alone = World::new(&[]);
    assert_eq!((alone.read_all(), alone.server.sent.borrow().len()), (Ok(0), 40));
}

#[test]
fn who_lies_is_asked_no_more_and_told_of_once() {
    for manner in [Manner::Lies, Manner::CutsShort] {
        let world = World::new(&[manner, Manner::Honest]);
        let of_neighbours = world.read_all().unwrap();
        assert!(of_neighbours >= 35, "{of_neighbours}");
        let told = world.told.borrow();
        assert!(told.len() == 1 && told[0].contains("neighbour-0:1"), "{told:?}");
        let alone = World::new(&[manner]);
        assert_eq!((alone.read_all(), alone.server.sent.borrow().len()), (Ok(0), 40));
    }
}

/// Three seconds, and the line goes on.
#[test]
fn who_sends_nothing_holds_nobody_up_for_long() {
    let world = World::new(&[Manner::SendsNothing]);
    let begin = Instant::now();
    assert_eq!((world.read_all(), world.server.sent.borrow().len()), (Ok(0), 40));
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
}

#[test]
fn what_is_promised_is_waited_for_only_so_long() {
    let world = World::new(&[Manner::Promises]);
    let begin = Instant::now();
    assert_eq!((world.read_all(), world.server.sent.borrow().len()), (Ok(0), 40));
    let took = begin.elapsed();
    assert!((10..30).contains(&took.as_secs()), "{took:?}");
}

#[test]
fn without_the_server_neighbours_go_on_as_far_as_they_can() {
    let mut world = World::new(&[Manner::Has(40)]);
    world.server.is_gone = true;
    assert_eq!(world.read_all(), Ok(40));
    assert!(world.told.borrow().is_empty(), "nobody has asked it");
    let mut world = World::new(&[]);
    world.server.is_gone = true;
    assert!(world.read_all().unwrap_err().is_gone);
}

/// A peer on a socket, with a file that it serves.
struct Served {
    _dir: tempfile::TempDir,
    file: std::path::PathBuf,
    order: Vec<Blob>,
    shelf: Arc<Shelf>,
    address: String,
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<crate::peer::Sent>>,
}

impl Served {
    fn new(token: Option<&str>, rate: Option<u64>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut chance = smelt_random::Random::new(5);
        let content: Vec<u8> = (0..3_000_000).map(|_| chance.below(256) as u8).collect();
        let file = dir.path().join("weights");
        std::fs::write(&file, &content).unwrap();
        let order = crate::chunk::cut(&content[..], 3_000_000).map(|it| it.unwrap().0).collect();
        let (tree, folder) = (Digest::of(b"tree"), dir.path().to_owned());
        let sealed = Sealed { tree, folder, files: vec![("weights".to_owned(), 3_000_000)] };
        let (shelf, stop) = (Arc::new(Shelf::default()), Arc::new(AtomicBool::new(false)));
        shelf.set_sealed(&[sealed], &stop);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (token, id) = (token.map(str::to_owned), "here".to_owned());
        let options = PeerOptions { token, bytes_per_s: rate, id };
        let (shelf_too, stop_too) = (shelf.clone(), stop.clone());
        let serving = move || serve(listener, shelf_too, &options, &stop_too).unwrap();
        let thread = Some(thread::spawn(serving));
        Self { _dir: dir, file, order, shelf, address, stop, thread }
    }

    fn wire(&self, token: Option<&str>, own: Option<&str>) -> Wire {
        let list = self.address.parse().unwrap();
        Wire::new(&list, token, own.map(str::to_owned), 1).unwrap()
    }

    /// A server that has the same.
    fn server(&self) -> Server {
        let content = std::fs::read(&self.file).unwrap();
        let cut = crate::chunk::cut(&content[..], 3_000_000).map(|it| it.unwrap());
        let blobs = cut.map(|(chunk, content)| (chunk.digest, content)).collect();
        Server { blobs, ..Server::default() }
    }

    fn read_all(&self, wire: &Wire, server: &Server) -> Result<usize, RemoteError> {
        read_all(server, wire, &self.order, &World::new(&[]))
    }

    fn end(&mut self) -> crate::peer::Sent {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_peer_serves_what_a_server_has_lost() {
    let mut served = Served::new(None, None);
    let wire = served.wire(None, None);
    let count = served.order.len();
    assert_eq!(served.read_all(&wire, &Server::default()), Ok(count));
    let sent = served.end();
    assert_eq!((sent.chunks as usize, sent.bytes), (count, 3_000_000));
}

/// Its own board and strangers get nothing, and are not held up.
#[test]
fn a_peer_wants_the_token_and_a_board_leaves_itself_out() {
    let served = Served::new(Some("secret"), None);
    let server = served.server();
    let known = served.wire(Some("secret"), Some("elsewhere"));
    assert_eq!(served.read_all(&known, &server), Ok(served.order.len()));
    for (token, own) in [(None, None), (Some("other"), None), (Some("secret"), Some("here"))] {
        let wire = served.wire(token, own);
        assert!(wire.look(&served.order).is_empty(), "{token:?} {own:?}");
        assert_eq!(served.read_all(&wire, &served.server()), Ok(0));
    }
}

#[test]
fn a_damaged_disk_does_not_spread() {
    let served = Served::new(None, None);
    let server = served.server();
    let mut content = std::fs::read(&served.file).unwrap();
    content[0] ^= 1;
    std::fs::write(&served.file, content).unwrap();
    let wire = served.wire(None, None);
    let of_neighbours = served.read_all(&wire, &server).unwrap();
    assert_eq!(of_neighbours, served.order.len() - 1);
    assert_eq!(served.shelf.count(), of_neighbours);
}

#[test]
fn a_peer_that_is_gone_costs_a_moment() {
    let mut served = Served::new(None, None);
    let (wire, server) = (served.wire(None, None), served.server());
    assert_eq!(wire.look(&served.order).len(), 1);
    served.end();
    let begin = Instant::now();
    assert_eq!(served.read_all(&wire, &server), Ok(0));
    assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
}

/// 3 MB at 1 MB/s: not at once, and the server does not help, which is no faster.
#[test]
fn a_peer_sends_no_more_than_its_rate() {
    let served = Served::new(None, Some(1_000_000));
    let begin = Instant::now();
    let count = served.read_all(&served.wire(None, None), &Server::default());
    assert_eq!(count, Ok(served.order.len()));
    let took = begin.elapsed().as_secs_f64();
    assert!((1.5..12.0).contains(&took), "{took}");
}

mod calls {
    //! What a peer answers to calls that no board of ours makes.

    use bazel_remote_apis::build::bazel::remote::execution::v2 as api;
    use tonic::{Code, Status};

    use super::*;
    use api::content_addressable_storage_client::ContentAddressableStorageClient;

    fn call<T>(
        served: &Served,
        call: impl AsyncFnOnce(
            ContentAddressableStorageClient<tonic::transport::Channel>,
        ) -> Result<T, Status>,
    ) -> Result<T, Code> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let address = format!("http://{}", served.address);
        let answer = runtime.block_on(async {
            let client = ContentAddressableStorageClient::connect(address).await.unwrap();
            call(client).await
        });
        answer.map_err(|status| status.code())
    }

    fn digest(hash: &str, size_bytes: i64) -> api::Digest {
        api::Digest { hash: hash.to_owned(), size_bytes }
    }

    fn read(served: &Served, digests: Vec<api::Digest>) -> Result<Vec<i32>, Code> {
        let request = api::BatchReadBlobsRequest { digests, ..Default::default() };
        let answer = call(served, async |mut client| client.batch_read_blobs(request).await)?;
        let codes = answer.into_inner().responses.into_iter();
        Ok(codes.map(|response| response.status.unwrap().code).collect())
    }

    #[test]
    fn it_answers_digests_and_takes_nothing() {
        let served = Served::new(None, None);
        let one = served.order[0];
        let known = digest(&one.digest.to_string(), one.bytes.into());
        assert_eq!(read(&served, vec![known.clone()]), Ok(vec![Code::Ok as i32]));
        let other = Digest::of(b"another").to_string();
        assert_eq!(read(&served, vec![digest(&other, 7)]), Ok(vec![Code::NotFound as i32]));
        // A name of a file is none of a blob.
        for odd in ["../../etc/passwd", "", "weights"] {
            assert_eq!(read(&served, vec![digest(odd, 1)]), Err(Code::InvalidArgument));
        }
        assert_eq!(read(&served, vec![digest(&other, -1)]), Err(Code::InvalidArgument));
        assert_eq!(read(&served, vec![digest(&other, 1 << 31)]), Err(Code::InvalidArgument));
        assert_eq!(read(&served, vec![known; 10_001]), Err(Code::InvalidArgument));
        let update = api::BatchUpdateBlobsRequest::default();
        let taken = call(&served, async |mut client| client.batch_update_blobs(update).await);
        assert_eq!(taken.err(), Some(Code::PermissionDenied));
        let tree = api::GetTreeRequest::default();
        let listed = call(&served, async |mut client| client.get_tree(tree).await);
        assert_eq!(listed.err(), Some(Code::Unimplemented));
    }
}
