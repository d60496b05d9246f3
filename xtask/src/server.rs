//! Starts servers of this machine and waits until they are ready; a server ends with its value.

use std::fs::File;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How long a server may take until it is ready: mapping and warming 350 MB.
const START: Duration = Duration::from_secs(120);

/// A server of this machine.
pub(crate) struct Server {
    child: Child,
    port: u16,
}

impl Server {
    /// Starts `command` with `arguments`, which say `PORT` where the port goes.
    pub(crate) fn start(command: &mut Command, arguments: &[&str], log: &Path) -> Result<Self> {
        let port = free_port()?;
        let arguments = arguments.iter().map(|word| word.replace("PORT", &port.to_string()));
        let out = File::create(log).with_context(|| log.display().to_string())?;
        command.args(arguments).stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        let name = command.get_program().display().to_string();
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let mut server = Self { child, port };
        server.wait().with_context(|| format!("{name}; its log is {}", log.display()))?;
        Ok(server)
    }

    fn wait(&mut self) -> Result<()> {
        let begin = Instant::now();
        while begin.elapsed() < START {
            if let Some(status) = self.child.try_wait()? {
                bail!("it ended with {status} before it was ready");
            }
            let health = http_get(self.port, "/health").unwrap_or_default();
            if health.starts_with("HTTP/1.1 200") {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(20));
        }
        bail!("it was not ready within {} s", START.as_secs());
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that has ended already need not be ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that nobody listens at now.
pub(crate) fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// What the server says to a question in JSON, status and headers too.
pub(crate) fn http_post(port: u16, path: &str, body: &str) -> std::io::Result<String> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {}",
        body.len()
    );
    http(port, &head, body, Duration::from_secs(60))
}

/// What the server says to a request, status and headers too.
pub(crate) fn http_get(port: u16, path: &str) -> std::io::Result<String> {
    http(port, &format!("GET {path} HTTP/1.1"), "", Duration::from_secs(5))
}

fn http(port: u16, head: &str, body: &str, patience: Duration) -> std::io::Result<String> {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(patience))?;
    write!(stream, "{head}\r\nHost: localhost\r\nConnection: close\r\n\r\n{body}")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}
