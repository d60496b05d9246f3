//! Neighbours in memory that lie, cut short, send nothing, promise, or have a part; and a server that counts, or is gone.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use super::*;

/// How a neighbour in memory behaves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
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

    fn read(&self, lists: &[(usize, Vec<Blob>)]) -> Vec<NeighbourAnswer> {
        let one = |(neighbour, blobs): &(usize, Vec<Blob>)| {
            let manner = self.manners[*neighbour];
            let contents = blobs.iter().map(|blob| self.sends(manner, blob)).collect();
            NeighbourAnswer { neighbour: *neighbour, contents, took: Duration::from_millis(1) }
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
pub(super) struct Server {
    blobs: HashMap<Digest, Vec<u8>>,
    sent: RefCell<Vec<Blob>>,
    is_gone: bool,
}

impl Server {
    pub(super) fn of(blobs: HashMap<Digest, Vec<u8>>) -> Self {
        Self { blobs, ..Self::default() }
    }
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

pub(super) struct World {
    server: Server,
    memory: Memory,
    told: RefCell<Vec<String>>,
    stop: AtomicBool,
}

impl World {
    pub(super) fn new(manners: &[Manner]) -> Self {
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

pub(super) fn read_all(
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
