//! A server of results with neighbours beside it, which are asked first: boards of one site share a thin line.
//!
//! Neighbours send chunks and nothing else: what is published, by whom, and what is believed comes from the server alone.
//! Each chunk is compared with its digest, and who sent another one is asked no more.

mod choice;
mod learned;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
mod wire;

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ring::rand::{SecureRandom as _, SystemRandom};
use smelt_store::Digest;

pub use self::choice::Seen;
use self::choice::{Choice, choose};
use self::learned::Learned;
pub use self::wire::Wire;
use crate::remote::{Blob, Entry, Key, Part, Remote, RemoteError};

/// Without anything new, how soon neighbours are asked again.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// What a neighbour sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeighbourAnswer {
    /// Its number.
    pub neighbour: usize,
    /// Of each chunk that it was asked for, as it sent it; `None` where it has none, or others come first.
    pub contents: Vec<Option<Vec<u8>>>,
    /// How long that took.
    pub took: Duration,
}

/// The neighbours of a board.
pub trait Neighbours: Sync {
    /// What each that answers in time says of these chunks.
    fn look(&self, asked: &[Blob]) -> Vec<Seen>;

    /// Asks each of them for its chunks, all at once; one that does not answer in time sends nothing.
    fn read(&self, lists: &[(usize, Vec<Blob>)]) -> Vec<NeighbourAnswer>;

    /// What a neighbour is called.
    fn name(&self, neighbour: usize) -> String;

    /// It lies, and is asked no more.
    fn leave(&self, neighbour: usize);
}

/// What the server said of the chunks that it was asked for.
type Read = Result<Vec<Option<Vec<u8>>>, RemoteError>;

/// A server and the neighbours beside it.
pub struct Site<'a> {
    server: &'a dyn Remote,
    neighbours: &'a dyn Neighbours,
    stop: &'a AtomicBool,
    /// Hears what a person should know, a line each.
    told: &'a dyn Fn(&str),
    begin: Instant,
    learned: RefCell<Learned>,
    /// The server is gone.
    lost: RefCell<Option<RemoteError>>,
}

impl<'a> Site<'a> {
    /// A server with these neighbours.  `seed` is this board's own, so that others choose otherwise; `told` hears of what a
    /// person should know.
    pub fn new(
        server: &'a dyn Remote,
        neighbours: &'a dyn Neighbours,
        seed: u64,
        stop: &'a AtomicBool,
        told: &'a dyn Fn(&str),
    ) -> Self {
        let (begin, learned) = (Instant::now(), RefCell::new(Learned::new(seed)));
        Self { server, neighbours, stop, told, begin, learned, lost: RefCell::new(None) }
    }

    /// Asks neighbours and the server for what was chosen, at once.
    fn ask(
        &self,
        asked: &[Blob],
        choice: &Choice,
        comes: &mut dyn FnMut(&[Blob]),
    ) -> (Option<Read>, Vec<NeighbourAnswer>) {
        let blobs = |numbers: &[usize]| numbers.iter().map(|at| asked[*at]).collect::<Vec<_>>();
        let lists = choice.neighbours.iter().map(|(to, numbers)| (*to, blobs(numbers)));
        let lists: Vec<(usize, Vec<Blob>)> = lists.collect();
        let (wanted, neighbours) = (blobs(&choice.server), self.neighbours);
        thread::scope(|scope| {
            let reading = (!lists.is_empty()).then(|| scope.spawn(|| neighbours.read(&lists)));
            let server = (!wanted.is_empty()).then(|| {
                comes(&wanted);
                let begin = Instant::now();
                let read = self.server.read(&wanted);
                if read.is_ok() {
                    self.learned.borrow_mut().server_sent(&wanted, begin.elapsed());
                }
                read
            });
            let answers = reading.map(|it| it.join().expect("it does not panic"));
            (server, answers.unwrap_or_default())
        })
    }

    /// What neighbours sent of what they were asked for: only what it is called.
    fn checked(&self, asked: &[Blob], choice: &Choice, answers: Vec<NeighbourAnswer>) -> Vec<Part> {
        let mut parts = Vec::new();
        for NeighbourAnswer { neighbour, contents, took } in answers {
            let list = choice.neighbours.iter().find(|(to, _)| *to == neighbour);
            let numbers = list.map_or(&[][..], |(_, numbers)| numbers);
            let wanted: u64 = numbers.iter().map(|at| u64::from(asked[*at].bytes)).sum();
            let mut bytes = 0;
            for (number, content) in numbers.iter().zip(contents) {
                let Some(content) = content else { continue };
                let blob = asked[*number];
                if content.len() != blob.bytes as usize || Digest::of(&content) != blob.digest {
                    self.leave(neighbour);
                    break;
                }
                bytes += u64::from(blob.bytes);
                parts.push(Part { number: *number, content: Some(content), is_neighbours: true });
            }
            let now = self.begin.elapsed();
            self.learned.borrow_mut().neighbour_sent(neighbour, (wanted, bytes), took, now);
        }
        parts
    }

    fn leave(&self, neighbour: usize) {
        let name = self.neighbours.name(neighbour);
        (self.told)(&format!(
            "neighbour {name} sent other bytes than those asked for, and is asked no more"
        ));
        self.neighbours.leave(neighbour);
    }

    fn lose(&self, error: RemoteError) {
        if !self.stop.load(Ordering::Relaxed) {
            (self.told)(&format!("{error}; what neighbours have is fetched from them"));
        }
        *self.lost.borrow_mut() = Some(error);
    }

    /// Nothing can be asked for just now: waits, where that may change.
    fn wait(&self, is_alone: bool) -> Result<Vec<Part>, RemoteError> {
        let is_patient = self.learned.borrow().is_patient(self.begin.elapsed());
        match &*self.lost.borrow() {
            Some(lost) if is_alone || !is_patient => return Err(lost.clone()),
            _ if self.stop.load(Ordering::Relaxed) => {}
            _ => thread::sleep(LOOK_AGAIN),
        }
        Ok(Vec::new())
    }
}

impl Remote for Site<'_> {
    fn name(&self) -> &str {
        self.server.name()
    }

    fn instance(&self) -> &str {
        self.server.instance()
    }

    fn missing(&self, blobs: &[Blob]) -> Result<Vec<Blob>, RemoteError> {
        self.server.missing(blobs)
    }

    fn read(&self, blobs: &[Blob]) -> Read {
        self.server.read(blobs)
    }

    fn read_some(
        &self,
        blobs: &[Blob],
        bytes_max: u64,
        comes: &mut dyn FnMut(&[Blob]),
    ) -> Result<Vec<Part>, RemoteError> {
        let numbers = self.learned.borrow_mut().some(blobs);
        let asked: Vec<Blob> = numbers.iter().map(|at| blobs[*at]).collect();
        let seen = self.neighbours.look(&asked);
        let choice = {
            let (learned, now) = (self.learned.borrow(), self.begin.elapsed());
            let rooms: Vec<u64> =
                seen.iter().map(|it| learned.room_of(it.neighbour, now)).collect();
            let server_max = if self.lost.borrow().is_some() { 0 } else { bytes_max };
            choose(&asked, &seen, &rooms, learned.room(server_max, now))
        };
        if choice.is_nothing() {
            return self.wait(seen.is_empty());
        }
        let (server, answers) = self.ask(&asked, &choice, comes);
        let took = answers.iter().map(|it| it.took).max();
        let mut parts = self.checked(&asked, &choice, answers);
        if let Some(took) = took {
            let contents = parts.iter().filter_map(|it| it.content.as_ref());
            let bytes = contents.map(|it| it.len() as u64).sum();
            self.learned.borrow_mut().neighbours_sent(bytes, took, self.begin.elapsed());
        }
        match server {
            None => {}
            Some(Ok(contents)) => {
                let part = |(number, content): (&usize, _)| Part {
                    number: *number,
                    content,
                    is_neighbours: false,
                };
                parts.extend(choice.server.iter().zip(contents).map(part));
            }
            // What neighbours have comes all the same.
            Some(Err(error)) if error.is_gone && !seen.is_empty() => self.lose(error),
            Some(Err(error)) => return Err(error),
        }
        if !parts.is_empty() {
            let of_neighbours = parts.iter().any(|part| part.is_neighbours);
            self.learned.borrow_mut().came(of_neighbours, self.begin.elapsed());
        }
        parts.iter_mut().for_each(|part| part.number = numbers[part.number]);
        Ok(parts)
    }

    fn write(&self, blobs: &[(Blob, Vec<u8>)]) -> Result<(), RemoteError> {
        self.server.write(blobs)
    }

    fn entry(&self, key: &Key) -> Result<Option<Entry>, RemoteError> {
        self.server.entry(key)
    }

    fn publish(&self, key: &Key, entry: &Entry) -> Result<(), RemoteError> {
        self.server.publish(key, entry)
    }
}

/// A seed that other boards do not have.
pub fn seed() -> u64 {
    let mut bytes = [0; 8];
    // Without it this board chooses as another one may, which costs the line more.
    let _ = SystemRandom::new().fill(&mut bytes);
    u64::from_le_bytes(bytes)
}
