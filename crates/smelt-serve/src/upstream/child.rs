//! Starts another program's server, and asks it how it is.

use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use smelt_watch::Tree;

use super::lines::{self, Lines};

/// How long it may take to say how it is.
const HEALTH_TIME_MAX: Duration = Duration::from_secs(2);
/// What it gets to end in order, and its leader to kill it then.
const END_TIME_MAX: Duration = Duration::from_secs(12);
/// What variables begin with that are for smelt alone.
const OWN_VARIABLES: [&[u8]; 2] = [b"SMELT_", b"OTEL_"];
/// How often it is looked whether it has ended.
const END_TICK: Duration = Duration::from_millis(20);

/// A server's processes; they end with this.
#[derive(Debug)]
pub(super) struct ServerChild {
    child: Child,
    pub(super) port: u16,
    lines: Arc<Mutex<Lines>>,
    reader: Option<JoinHandle<()>>,
    agent: ureq::Agent,
}

impl ServerChild {
    /// Starts what `argv` gives for a port that is free now, led by `leader`: that ends it all when its standard input ends.
    pub(super) fn start(
        leader: &[OsString],
        argv: impl FnOnce(u16) -> Vec<String>,
    ) -> io::Result<Self> {
        // Nobody else is given it for a while: the kernel takes others first.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let (program, first) =
            leader.split_first().ok_or_else(|| io::Error::other("no leader is named"))?;
        let (output, writer) = io::pipe()?;
        let mut command = Command::new(program);
        command.args(first).args(argv(port)).stdin(Stdio::piped());
        command.stdout(writer.try_clone()?).stderr(writer);
        for name in own_variables() {
            command.env_remove(name);
        }
        let child = command.spawn()?;
        // It holds the writing ends, and would keep the reader waiting.
        drop(command);
        let lines = Arc::<Mutex<Lines>>::default();
        let heard = Arc::clone(&lines);
        let reader = thread::spawn(move || {
            lines::read(output, |bytes| {
                heard.lock().unwrap_or_else(PoisonError::into_inner).take(bytes);
            });
        });
        let agent = agent(HEALTH_TIME_MAX);
        Ok(Self { child, port, lines, reader: Some(reader), agent })
    }

    /// Where it listens.
    pub(super) fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// How its program ended, with the last that it said; nothing while it runs.
    pub(super) fn ended(&mut self) -> Option<String> {
        let status = match self.child.try_wait() {
            Ok(status) => status?,
            Err(error) => return Some(format!("it cannot be waited for: {error}")),
        };
        // What it said last may not be read yet.
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        let how = match status.code() {
            Some(code) if code > 128 => format!("it was ended by signal {}", code - 128),
            Some(code) => format!("it ended with exit code {code}"),
            None => format!("its leader ended: {status}"),
        };
        Some(match self.last_line() {
            Some(line) => format!("{how}, and said last: {line}"),
            None => how,
        })
    }

    /// The last that it said.
    pub(super) fn last_line(&self) -> Option<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).last()
    }

    /// Whether it says at `path` that it is well; else why not.
    pub(super) fn health(&self, path: &str) -> Result<(), String> {
        let url = format!("http://{}{path}", self.addr());
        match self.agent.get(&url).call() {
            Ok(answer) if answer.status().is_success() => Ok(()),
            Ok(answer) => Err(format!("{path} answers {}", answer.status())),
            Err(error) => Err(format!("{path}: {error}")),
        }
    }

    /// Bytes that its processes hold.
    pub(super) fn memory_bytes(&self) -> u64 {
        Tree::new(self.child.id()).sample().map_or(0, |sample| sample.rss_anon_bytes)
    }

    /// Ends it, and waits until nothing of it is left.
    pub(super) fn end(&mut self) {
        // Its leader hears that, asks it to end, and kills what is left.
        drop(self.child.stdin.take());
        let ticks = END_TIME_MAX.as_millis() / END_TICK.as_millis();
        for _ in 0..ticks {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(END_TICK);
        }
        // A leader that hangs is itself at fault.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What asks servers of this machine, whatever they answer, for so long at most.
pub(super) fn agent(time_max: Duration) -> ureq::Agent {
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(time_max))
        .http_status_as_error(false)
        .max_redirects(0)
        .proxy(None);
    config.build().into()
}

/// Variables that are for smelt, keys among them.
fn own_variables() -> impl Iterator<Item = OsString> {
    let is_own =
        |name: &OsString| OWN_VARIABLES.iter().any(|own| name.as_encoded_bytes().starts_with(own));
    std::env::vars_os().map(|(name, _)| name).filter(is_own)
}

impl Drop for ServerChild {
    fn drop(&mut self) {
        self.end();
    }
}
