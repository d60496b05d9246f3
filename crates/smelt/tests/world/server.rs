//! A server of the demo, and what its clients do.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::{World, anywhere, data, until};

pub(crate) const DEMO: &str = include_str!("../../../../pipelines/demo.toml");

/// The demo, built once for all tests.
pub(crate) static BUILT: LazyLock<World> = LazyLock::new(|| {
    let world = World::new(&anywhere(DEMO));
    world.run(&[]);
    world
});

/// How long a test waits for an answer: unoptimised servers of several tests share two cores.
const PATIENCE: Duration = Duration::from_secs(240);

pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) addr: String,
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

impl Server {
    /// Starts a server and waits until it is ready.
    pub(crate) fn start(flags: &[&str]) -> Self {
        let server = Self::loading(flags);
        assert!(until(|| server.get("/health").status == 200));
        server
    }

    pub(crate) fn loading(flags: &[&str]) -> Self {
        Self::of(&BUILT, &["p.toml"], flags)
    }

    /// Serves these targets of a world.
    pub(crate) fn of(world: &World, targets: &[&str], flags: &[&str]) -> Self {
        Self::started(&mut world.command(&Self::arguments(targets, flags)))
    }

    pub(crate) fn arguments<'a>(targets: &[&'a str], flags: &[&'a str]) -> Vec<&'a str> {
        [&["serve"], targets, &["--addr", "127.0.0.1:0"], flags].concat()
    }

    /// The server that `command` starts.
    pub(crate) fn started(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let addr = line.trim().split_once("://").unwrap().1.to_owned();
        Self { child, addr }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.addr).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends bytes as they are, and reads until the server ends the connection.
    pub(crate) fn exchange(&self, bytes: &[u8]) -> Answer {
        let mut stream = self.connect();
        // Who is refused may be cut off before all is sent.
        _ = stream.write_all(bytes);
        read(stream)
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.exchange(
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                .as_bytes(),
        )
    }

    pub(crate) fn post(&self, path: &str, body: &[u8]) -> Answer {
        self.exchange(&posted(path, body, ""))
    }

    pub(crate) fn chat(&self, fields: Value) -> Answer {
        self.post("/v1/chat/completions", fields.to_string().as_bytes())
    }

    /// What the demo's model knows for certain.
    #[track_caller]
    pub(crate) fn assert_answers(&self) {
        let answer = self.chat(circles(json!({})));
        assert_eq!(answer.json()["choices"][0]["message"]["content"], "2", "{}", answer.body);
    }

    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").body;
        let lines = text.lines().filter(|line| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']))
        });
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    }

    /// No answer is under way, and no block of keys and values is held but by slots that are kept.
    #[track_caller]
    pub(crate) fn assert_nothing_is_stuck(&self) {
        let names = ["looking", "waiting", "reading", "saying"];
        let busy = || names.map(|name| self.metric(&format!("smelt_answers_{name}")));
        assert!(until(|| busy() == [0.0; 4]), "{:?}", busy());
        // The request that asks is open itself.
        assert!(until(|| self.metric("smelt_open_requests") == 1.0));
    }

    /// A number of the kernel's about the process, in KiB: `VmRSS`, `VmHWM`.
    pub(crate) fn kib(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap().split_whitespace().next().unwrap().parse().unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    pub(crate) fn ended(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

pub(crate) fn read(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    // A connection that is cut has said all it will.
    _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    Answer { status, head: head.to_lowercase(), body: body.to_owned() }
}

pub(crate) fn posted(path: &str, body: &[u8], headers: &str) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n{headers}\r\n"
    );
    [head.as_bytes(), body].concat()
}

pub(crate) fn base64(bytes: &[u8]) -> String {
    base64::Engine::encode(&base64::engine::general_purpose::STANDARD, bytes)
}

pub(crate) fn shown(question: &str, picture: &[u8], fields: Value) -> Value {
    let url = format!("data:image/png;base64,{}", base64(picture));
    let content = json!([
        { "type": "image_url", "image_url": { "url": url } },
        { "type": "text", "text": question },
    ]);
    let mut all = json!({ "messages": [{ "role": "user", "content": content }], "temperature": 0 });
    all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    all
}

pub(crate) fn circles(fields: Value) -> Value {
    shown("How many circles are there?", &fs::read(data("shapes-1.png")).unwrap(), fields)
}
