//! Talks to a camera over one connection, which carries its packets too (RTSP, RFC 2326).
//!
//! Nothing that a camera says makes us connect anywhere else.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

use super::super::remote::{Errand, RemoteError};
use super::camera_address::CameraAddress;
use super::failed;
use super::login::Challenge;
use super::message::{self, Answer, Message};

/// How long a camera may take to let us in: it is in this network.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(4);
/// How long it may take to answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
/// How often it is looked whether anybody still waits.
const LOOKS_EVERY: Duration = Duration::from_millis(100);
/// Bytes that are read at once.
const CHUNK_BYTES: usize = 64 << 10;
/// The longest name of a session: it is sent with each question.
const SESSION_BYTES_MAX: usize = 1024;
/// Packets that may come before the answer that they follow; what comes then is left out.
const EARLY_MAX: usize = 4096;

/// A connection to a camera.
pub(super) struct Line<'a> {
    stream: TcpStream,
    place: &'a CameraAddress,
    errand: &'a Errand,
    read: BytesMut,
    chunk: Vec<u8>,
    early: VecDeque<(u8, Bytes)>,
    /// What was asked so far.
    count: u32,
    session: Option<String>,
    challenge: Option<Challenge>,
}

/// What came of listening.
enum Received {
    Message(Message),
    /// The time is over.
    Silence,
    /// The camera has gone.
    Closed,
}

/// What comes of a film.
pub(super) enum Came {
    /// A packet, and its channel.
    Packet(u8, Bytes),
    /// The time is over.
    Silence,
    /// The camera has gone.
    Closed,
}

impl<'a> Line<'a> {
    /// A connection to the first of these addresses that takes it.
    pub(super) fn connect(
        addresses: &[SocketAddr],
        place: &'a CameraAddress,
        errand: &'a Errand,
    ) -> Result<Self, RemoteError> {
        let mut why = failed("the camera has no address");
        for address in addresses {
            let time = errand.left()?.min(CONNECT_TIME_MAX);
            match TcpStream::connect_timeout(address, time) {
                Ok(stream) => return Ok(Self::over(stream, place, errand)),
                Err(error) => why = failed(format!("the camera lets nobody in: {error}")),
            }
        }
        Err(why)
    }

    fn over(stream: TcpStream, place: &'a CameraAddress, errand: &'a Errand) -> Self {
        Self {
            stream,
            place,
            errand,
            read: BytesMut::new(),
            chunk: vec![0; CHUNK_BYTES],
            early: VecDeque::new(),
            count: 0,
            session: None,
            challenge: None,
        }
    }

    /// The answer to a question with `more` lines; who asks is told where the camera wants to know.
    pub(super) fn ask(
        &mut self,
        method: &str,
        url: &str,
        more: &str,
    ) -> Result<Answer, RemoteError> {
        let mut answer = self.answer(method, url, more)?;
        if answer.status == 401 {
            if self.place.login.is_none() {
                let why = "the camera asks who asks; say so: rtsp://USER:PASSWORD@HOST/PATH";
                return Err(failed(why));
            }
            self.challenge = Challenge::best(answer.all("www-authenticate"));
            if self.challenge.is_none() {
                return Err(failed("the camera asks for a kind of login that is not known here"));
            }
            answer = self.answer(method, url, more)?;
        }
        match answer.status {
            200..=299 => Ok(answer),
            300..=399 => {
                Err(failed("the camera sends us elsewhere; name the address that it means"))
            }
            401 | 403 => Err(failed("the camera refuses this user and password")),
            status => Err(failed(format!("the camera answers {method} with status {status}"))),
        }
    }

    /// Remembers the session that the camera names.
    pub(super) fn enter(&mut self, answer: &Answer) -> Result<(), RemoteError> {
        let named = answer.header("session").and_then(|session| session.split(';').next());
        let is_word = |word: &&str| {
            word.len() <= SESSION_BYTES_MAX && word.bytes().all(|byte| byte.is_ascii_graphic())
        };
        let session = named.map(str::trim).filter(is_word);
        self.session = Some(session.ok_or(message::Fault::Garbled)?.to_owned());
        Ok(())
    }

    /// The next packet.
    pub(super) fn packet(&mut self, until: Instant) -> Result<Came, RemoteError> {
        if let Some((channel, bytes)) = self.early.pop_front() {
            return Ok(Came::Packet(channel, bytes));
        }
        loop {
            match self.listen(until)? {
                Received::Message(Message::Packet { channel, bytes }) => {
                    return Ok(Came::Packet(channel, bytes));
                }
                Received::Message(_) => {}
                Received::Silence => return Ok(Came::Silence),
                Received::Closed => return Ok(Came::Closed),
            }
        }
    }

    /// Takes leave, and waits for no answer: the connection ends.
    pub(super) fn leave(&mut self, url: &str) {
        _ = self.send("TEARDOWN", url, "");
    }

    fn answer(&mut self, method: &str, url: &str, more: &str) -> Result<Answer, RemoteError> {
        let until = Instant::now() + ANSWER_TIME_MAX;
        self.send(method, url, more)?;
        let number = self.count.to_string();
        loop {
            match self.listen(until)? {
                Received::Message(Message::Answer(answer))
                    if answer.header("cseq").is_none_or(|own| own == number) =>
                {
                    return Ok(answer);
                }
                Received::Message(Message::Packet { channel, bytes })
                    if self.early.len() < EARLY_MAX =>
                {
                    self.early.push_back((channel, bytes));
                }
                Received::Message(_) => {}
                Received::Closed => return Err(failed(format!("the camera hangs up at {method}"))),
                Received::Silence => {
                    let seconds = ANSWER_TIME_MAX.as_secs();
                    let why = format!("the camera does not answer {method} within {seconds} s");
                    return Err(failed(why));
                }
            }
        }
    }

    fn send(&mut self, method: &str, url: &str, more: &str) -> Result<(), RemoteError> {
        self.count += 1;
        let session = self.session.as_ref().map(|session| format!("Session: {session}\r\n"));
        let both = self.challenge.as_mut().zip(self.place.login.as_ref());
        let login = both.map(|(challenge, login)| {
            // Never used before: the keys of a hasher are the system's randomness.
            let own = format!("{:016x}", RandomState::new().hash_one(0));
            format!("Authorization: {}\r\n", challenge.answer(login, method, url, &own))
        });
        let request = format!(
            "{method} {url} RTSP/1.0\r\nCSeq: {}\r\nUser-Agent: smelt/{}\r\n{}{}{more}\r\n",
            self.count,
            env!("CARGO_PKG_VERSION"),
            session.unwrap_or_default(),
            login.unwrap_or_default(),
        );
        self.write(request.as_bytes(), method)
    }

    /// Sends it all to a camera that takes it in time.
    fn write(&mut self, mut bytes: &[u8], method: &str) -> Result<(), RemoteError> {
        let hangs_up = || failed(format!("the camera hangs up at {method}"));
        let until = Instant::now() + ANSWER_TIME_MAX;
        self.stream.set_write_timeout(Some(LOOKS_EVERY)).map_err(|_| hangs_up())?;
        while !bytes.is_empty() {
            self.errand.left()?;
            if Instant::now() >= until {
                return Err(hangs_up());
            }
            match self.stream.write(bytes).map_err(|error| error.kind()) {
                Ok(0) => return Err(hangs_up()),
                Ok(sent) => bytes = &bytes[sent..],
                Err(ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {}
                Err(_) => return Err(hangs_up()),
            }
        }
        Ok(())
    }

    /// What the camera says next.
    fn listen(&mut self, until: Instant) -> Result<Received, RemoteError> {
        loop {
            if let Some(message) = message::next(&mut self.read)? {
                return Ok(Received::Message(message));
            }
            let left = until.saturating_duration_since(Instant::now()).min(self.errand.left()?);
            if left.is_zero() {
                return Ok(Received::Silence);
            }
            match self.fill(left.min(LOOKS_EVERY)) {
                Ok(0) => return Ok(Received::Closed),
                Ok(bytes) => self.errand.take(bytes)?,
                Err(ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {}
                Err(_) => return Ok(Received::Closed),
            }
        }
    }

    /// Reads what there is, for so long.
    fn fill(&mut self, time: Duration) -> Result<usize, ErrorKind> {
        self.stream.set_read_timeout(Some(time)).map_err(|error| error.kind())?;
        let bytes = self.stream.read(&mut self.chunk).map_err(|error| error.kind())?;
        self.read.extend_from_slice(&self.chunk[..bytes]);
        Ok(bytes)
    }
}
