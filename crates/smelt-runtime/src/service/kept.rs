//! Writes what an answer left in its slot to a file, and puts it back: keys and values of tokens that need not be read again.
//!
//! A file holds what the tokens were, in the words of [`Piece`], and the blocks of the cache as they lay.  Each part is followed
//! by the hash of all before it, so nothing damaged is put back, and a block at a time is read, written and held.  The
//! engine's thread does a block's work between two steps, and only slots that nobody uses are read and filled: what others
//! are answered, and when, changes by no more than the copying of a block.  Knows nothing of where files lie.

use std::io::{self, Read, Write};
use std::sync::{Arc, mpsc};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use smelt_backend::{KvBlock, MAX_SEQ_LEN_MAX, RunError};

use super::llm::LlmThread;
use super::{Client, ReplicaStatus, Service, ToLlm};
use crate::prefix::{Mark, Piece};
pub use crate::schedule::Named;
use crate::schedule::{Owner, Put};

/// How a file begins.
const MAGIC: &[u8; 16] = b"smelt slot file\n";

/// The version of the file: other bytes, or another meaning of them, raise it.
const FORMAT: u32 = 1;

/// The longest heading; one has some 150 bytes.
const HEADING_BYTES_MAX: u32 = 4096;

/// Bytes of a piece: what it is, and its number or identity.
const PIECE_BYTES: usize = 17;

/// Bytes of a hash.
const HASH_BYTES: usize = 32;

/// What a file says of itself.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Heading {
    format: u32,
    /// The engines that made it, in hexadecimal digits.
    engines: String,
    /// How keys and values are kept.
    kv: String,
    block_tokens: usize,
    block_bytes: usize,
    tokens: usize,
}

/// What was written or put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Tokens.
    pub tokens: usize,
    /// Bytes of the file.
    pub bytes: u64,
}

/// Why a slot was not written, emptied or put back.
#[derive(Debug, thiserror::Error)]
pub enum KeptError {
    /// There is nothing of that name.
    #[error("slot {0} holds nothing of yours; ask something with \"id_slot\": {0} before")]
    Nothing(u32),
    /// An answer is still under way.
    #[error("slot {0} is being answered in; wait for the end")]
    Busy(u32),
    /// The room was needed for answers meanwhile.
    #[error("the room of slot {0} was needed for answers; try again")]
    Gone(u32),
    /// There is no room beside the answers that are under way.
    #[error("keys and values have no room beside the answers that are under way; try again")]
    Crowded,
    /// The client may not keep so much, or a slot takes less.
    #[error(
        "{tokens} tokens are more than --max-seq-len, or take more keys and values than are kept for this key or than there is room for"
    )]
    TooMuch {
        /// Tokens of the file.
        tokens: usize,
    },
    /// The file would be too long.
    #[error("{bytes} bytes are more than the {max} that files may still take")]
    TooLong {
        /// Bytes of the file.
        bytes: u64,
        /// Bytes that are left.
        max: u64,
    },
    /// Another engine made it, or it was made otherwise.
    #[error("the file was written with another {0}; read the prompt again and save it anew")]
    Other(&'static str),
    /// It is no such file, or not whole.
    #[error("the file is damaged, or no slot file: {0}")]
    Damaged(String),
    /// The engines have no name.
    #[error("the engines were not opened from files, so nothing would know them again")]
    Nameless,
    /// The service is ending.
    #[error("the service is ending")]
    Ended,
    /// The file cannot be read or written.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl Service {
    /// What the client has, by the names that it gave.
    ///
    /// # Errors
    /// If the service is ending.
    pub fn named(&self, client: &Client) -> Result<Vec<Named>, KeptError> {
        let id = client.id;
        let all = self.on_each(move |llm| llm.schedule.named(id))?;
        Ok(all.into_iter().flat_map(|(_, named)| named).collect())
    }

    /// Forgets what answers of the client left under its name; gives how many tokens that were.
    ///
    /// # Errors
    /// If an answer of that name is under way, or the service is ending.
    pub fn erase(&self, client: &Client) -> Result<usize, KeptError> {
        let Client { id, slot, .. } = *client;
        let erased = self.on_each(move |llm| {
            llm.is_idle(id, slot)?;
            let erased = llm.schedule.erase(id, slot);
            erased.iter().for_each(|(slot, _)| llm.release(*slot));
            Ok(erased.iter().map(|(_, tokens)| tokens).sum::<usize>())
        })?;
        erased.into_iter().map(|(_, erased)| erased).sum()
    }

    /// Writes what the latest answer of the client's name left, in at most `bytes_max` bytes.
    ///
    /// # Errors
    /// [`KeptError`]; then what was written is of no use.
    pub fn save(
        &self,
        client: &Client,
        bytes_max: u64,
        out: &mut impl Write,
    ) -> Result<Moved, KeptError> {
        let Client { id, slot: name, .. } = *client;
        let engines = self.engines()?;
        let kept = self.on_each(move |llm| {
            llm.is_idle(id, name)?;
            let kept = llm.schedule.kept(id, name).filter(|(_, pieces)| !pieces.is_empty());
            let (mark, pieces) = kept.ok_or(KeptError::Nothing(name))?;
            let heading = llm.heading(engines.clone(), pieces.len());
            Ok::<_, KeptError>((mark, Arc::<[Piece]>::from(pieces), heading))
        })?;
        let (at, (mark, pieces, heading)) = first_kept(kept, name)?;
        let bytes = heading.file_bytes();
        if bytes > bytes_max {
            return Err(KeptError::TooLong { bytes, max: bytes_max });
        }
        let mut out = Hashing { inner: out, hash: Sha256::new() };
        out.write_heading(&heading, &pieces)?;
        for end in ends_of(&pieces, heading.block_tokens) {
            let pieces = Arc::clone(&pieces);
            let block = self.on_thread(at, move |llm| llm.block(mark, &pieces[..end]))?;
            let (ends, block) = block.ok_or(KeptError::Gone(name))?;
            ends.iter().try_for_each(|end| out.write(&end.to_le_bytes()))?;
            out.write(&block)?;
            out.write_hash()?;
        }
        Ok(Moved { tokens: pieces.len(), bytes })
    }

    /// Puts back what [`Self::save`] wrote, as if an answer of the client's name had left it.
    ///
    /// # Errors
    /// [`KeptError`]; what was put back until then is kept as any beginning is, under no name.
    pub fn restore(&self, client: &Client, file: &mut impl Read) -> Result<Moved, KeptError> {
        let (client, engines) = (*client, self.engines()?);
        let mut file = Hashing { inner: file, hash: Sha256::new() };
        let heading = file.read_heading()?;
        let (tokens, at) = (heading.tokens, self.0.replicas.least());
        let owner = self.on_thread(at, move |llm| llm.owner(&client))?;
        let (own, longest) = self.on_thread(at, move |llm| {
            (llm.heading(engines, tokens), llm.engine.facts().limits.max_seq_len)
        })?;
        own.check(&heading)?;
        let blocks = tokens.div_ceil(own.block_tokens);
        let is_long = tokens > longest || tokens >= self.0.tokens_max;
        if is_long || owner.kept_blocks_max.is_some_and(|most| blocks > most) {
            return Err(KeptError::TooMuch { tokens });
        }
        let pieces = file.read_pieces(tokens)?;
        let (mut filled, mut begin) = (None, 0);
        for end in ends_of(&pieces, own.block_tokens) {
            let (ends, bytes) = file.read_block(end - begin, own.block_bytes)?;
            let more = pieces[begin..end].to_vec();
            // It has its name when it is whole.
            let name = owner.name.filter(|_| end == tokens);
            let to = Target { filled, owner: Owner { name, ..owner }, called: client.slot };
            let block = KvBlock { ends: ends.into(), bytes: bytes.into() };
            filled = Some(self.on_thread(at, move |llm| llm.put(&to, &more, &block))??);
            begin = end;
        }
        self.0.replicas.note(at, &pieces);
        Ok(Moved { tokens, bytes: own.file_bytes() })
    }

    fn engines(&self) -> Result<String, KeptError> {
        let [high, low] = self.0.engines.ok_or(KeptError::Nameless)?;
        Ok(format!("{high:016x}{low:016x}"))
    }

    /// Has the thread of a replica do something between two steps.
    fn on_thread<T: Send + 'static>(
        &self,
        at: usize,
        act: impl FnOnce(&mut LlmThread) -> T + Send + 'static,
    ) -> Result<T, KeptError> {
        if self.gate().is_closed() {
            return Err(KeptError::Ended);
        }
        let (tell, told) = mpsc::sync_channel(1);
        // Who asked waits for it.
        let act = move |llm: &mut LlmThread| _ = tell.send(act(llm));
        if !self.0.replicas.tell(at, ToLlm::Do(Box::new(act))) {
            return Err(KeptError::Ended);
        }
        told.recv().map_err(|_| KeptError::Ended)
    }

    /// Has the thread of each replica that answers do something, and says which gave what.
    fn on_each<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut LlmThread) -> T + Clone + Send + 'static,
    ) -> Result<Vec<(usize, T)>, KeptError> {
        let states = self.replicas();
        let is_there = |at: &usize| states[*at].status == ReplicaStatus::Ready;
        let there: Vec<usize> = (0..states.len()).filter(is_there).collect();
        there.into_iter().map(|at| Ok((at, self.on_thread(at, act.clone())?))).collect()
    }
}

/// What the first of several has of that name; why none has it otherwise.
fn first_kept<T>(
    all: Vec<(usize, Result<T, KeptError>)>,
    name: u32,
) -> Result<(usize, T), KeptError> {
    let mut why = KeptError::Nothing(name);
    for (at, kept) in all {
        match kept {
            Ok(kept) => return Ok((at, kept)),
            Err(KeptError::Nothing(_)) => {}
            Err(other) => why = other,
        }
    }
    Err(why)
}

/// Where a block goes.
struct Target {
    /// The slot that was filled so far.
    filled: Option<Mark>,
    owner: Owner,
    /// What the client calls it.
    called: u32,
}

impl LlmThread {
    /// # Errors
    /// If an answer of that name is under way.
    fn is_idle(&self, owner: u64, name: u32) -> Result<(), KeptError> {
        let is_busy = |named: &Named| named.name == name && named.is_busy;
        match self.schedule.named(owner).iter().any(is_busy) {
            true => Err(KeptError::Busy(name)),
            false => Ok(()),
        }
    }

    fn heading(&self, engines: String, tokens: usize) -> Heading {
        let (usage, kv) = (self.engine.kv_usage(), self.engine.facts().kv.word().to_owned());
        let (block_tokens, block_bytes) = (usage.block_tokens, usage.block_bytes);
        Heading { format: FORMAT, engines, kv, block_tokens, block_bytes, tokens }
    }

    /// The last block of `pieces`, which were held at `mark`; none if they are nowhere any more.
    fn block(&self, mark: Mark, pieces: &[Piece]) -> Option<(Vec<u32>, Vec<u8>)> {
        let slot = self.schedule.holder(mark, pieces)?;
        let block_tokens = self.engine.kv_usage().block_tokens;
        let index = (pieces.len() - 1) / block_tokens;
        let block = self.engine.block(slot, index).ok()??;
        let own = pieces.len() - index * block_tokens;
        Some((block.ends.get(..own)?.to_vec(), block.bytes.into_owned()))
    }

    /// Puts a block of `more` behind what was filled so far; gives how the slot is filled then.
    fn put(&mut self, to: &Target, more: &[Piece], block: &KvBlock<'_>) -> Result<Mark, KeptError> {
        // Each turn but the last empties a slot.
        loop {
            match self.schedule.put(to.filled, self.blocks_free()) {
                Put::Forget(slot) => self.release(slot),
                Put::Crowded => return Err(KeptError::Crowded),
                Put::Gone => return Err(KeptError::Gone(to.called)),
                Put::Into(slot) => {
                    self.engine.put_block(slot, block).map_err(not_put)?;
                    return Ok(self.schedule.did_put(slot, to.owner, more));
                }
            }
        }
    }
}

fn not_put(error: RunError) -> KeptError {
    match error {
        RunError::KvFull { .. } | RunError::NoMemory { .. } => KeptError::Crowded,
        error => KeptError::Damaged(error.to_string()),
    }
}

/// Where each block of `pieces` ends.
fn ends_of(pieces: &[Piece], block_tokens: usize) -> impl Iterator<Item = usize> {
    let tokens = pieces.len();
    (1..=tokens.div_ceil(block_tokens)).map(move |block| tokens.min(block * block_tokens))
}

impl Heading {
    fn json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data is JSON")
    }

    /// Bytes of the whole file.
    fn file_bytes(&self) -> u64 {
        let blocks = self.tokens.div_ceil(self.block_tokens);
        let heading = MAGIC.len() + size_of::<u32>() + self.json().len() + HASH_BYTES;
        let tokens = self.tokens * (PIECE_BYTES + size_of::<u32>());
        (heading + HASH_BYTES + tokens + blocks * (self.block_bytes + HASH_BYTES)) as u64
    }

    /// # Errors
    /// If what a file says is not as it has to be.
    fn check(&self, found: &Self) -> Result<(), KeptError> {
        let other = [
            ("version of smelt", self.format != found.format),
            ("engine", self.engines != found.engines),
            ("--kv", self.kv != found.kv),
            (
                "size of blocks",
                (self.block_tokens, self.block_bytes) != (found.block_tokens, found.block_bytes),
            ),
        ];
        other
            .into_iter()
            .find(|(_, is_other)| *is_other)
            .map_or(Ok(()), |(what, _)| Err(KeptError::Other(what)))
    }
}

/// A file, and the hash of all of it so far.
struct Hashing<F> {
    inner: F,
    hash: Sha256,
}

impl<W: Write> Hashing<&mut W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.inner.write_all(bytes)
    }

    fn write_hash(&mut self) -> io::Result<()> {
        let hash = self.hash.clone().finalize();
        self.write(&hash)
    }

    fn write_heading(&mut self, heading: &Heading, pieces: &[Piece]) -> io::Result<()> {
        let json = heading.json();
        self.write(MAGIC)?;
        self.write(&(json.len() as u32).to_le_bytes())?;
        self.write(&json)?;
        self.write_hash()?;
        pieces.iter().try_for_each(|piece| self.write(&bytes_of(*piece)))?;
        self.write_hash()
    }
}

impl<R: Read> Hashing<&mut R> {
    /// # Errors
    /// If the file ends before, or cannot be read.
    fn read<const N: usize>(&mut self) -> Result<[u8; N], KeptError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), KeptError> {
        self.inner.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => KeptError::Damaged("it is cut off".to_owned()),
            _ => error.into(),
        })?;
        self.hash.update(bytes);
        Ok(())
    }

    /// # Errors
    /// If what was read is not what was written.
    fn check_hash(&mut self) -> Result<(), KeptError> {
        let own = self.hash.clone().finalize();
        match self.read::<HASH_BYTES>()? == own[..] {
            true => Ok(()),
            false => Err(KeptError::Damaged("its hash is another".to_owned())),
        }
    }

    fn read_heading(&mut self) -> Result<Heading, KeptError> {
        let damaged = |why: &str| KeptError::Damaged(why.to_owned());
        if self.read()? != *MAGIC {
            return Err(damaged("it does not begin as one"));
        }
        let len = u32::from_le_bytes(self.read()?);
        if len > HEADING_BYTES_MAX {
            return Err(damaged("its heading is too long"));
        }
        let mut json = vec![0; len as usize];
        self.fill(&mut json)?;
        self.check_hash()?;
        let heading: Heading =
            serde_json::from_slice(&json).map_err(|error| damaged(&error.to_string()))?;
        match heading.tokens {
            1..=MAX_SEQ_LEN_MAX => Ok(heading),
            _ => Err(damaged("it is of no tokens, or too many")),
        }
    }

    fn read_pieces(&mut self, tokens: usize) -> Result<Vec<Piece>, KeptError> {
        let pieces = (0..tokens).map(|_| piece_of(self.read()?)).collect::<Result<_, _>>()?;
        self.check_hash()?;
        Ok(pieces)
    }

    /// The ends of so many tokens, and the bytes of their block.
    fn read_block(
        &mut self,
        tokens: usize,
        block_bytes: usize,
    ) -> Result<(Vec<u32>, Vec<u8>), KeptError> {
        let ends = (0..tokens).map(|_| Ok::<_, KeptError>(u32::from_le_bytes(self.read()?)));
        let ends = ends.collect::<Result<_, _>>()?;
        let mut bytes = vec![0; block_bytes];
        self.fill(&mut bytes)?;
        self.check_hash()?;
        Ok((ends, bytes))
    }
}

fn bytes_of(piece: Piece) -> [u8; PIECE_BYTES] {
    let (kind, [first, second]) = match piece {
        Piece::Token(token) => (0, [token.into(), 0]),
        Piece::Picture(identity) => (1, identity),
        Piece::Alone(identity) => (2, identity),
    };
    let mut bytes = [kind; PIECE_BYTES];
    bytes[1..9].copy_from_slice(&first.to_le_bytes());
    bytes[9..].copy_from_slice(&second.to_le_bytes());
    bytes
}

fn piece_of(bytes: [u8; PIECE_BYTES]) -> Result<Piece, KeptError> {
    let number = |at: usize| {
        let eight = bytes[at..at + 8].try_into().expect("a piece has two numbers");
        u64::from_le_bytes(eight)
    };
    let identity = [number(1), number(9)];
    match (bytes[0], identity) {
        (0, [token, 0]) if u32::try_from(token).is_ok() => Ok(Piece::Token(token as u32)),
        (1, identity) => Ok(Piece::Picture(identity)),
        (2, identity) => Ok(Piece::Alone(identity)),
        _ => Err(KeptError::Damaged("it holds what is no token".to_owned())),
    }
}
