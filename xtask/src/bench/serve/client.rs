//! Asks servers with `smelt bench serve`, the client that measures all sides.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::server::Server;

/// The client that measures all sides.
pub(in crate::bench) struct Client {
    /// `smelt`.
    pub(in crate::bench) program: PathBuf,
}

impl Client {
    /// One run; gives the only row of its document, in which nothing failed.
    pub(in crate::bench) fn ask(&self, server: &Server, flags: &[&str]) -> Result<Value> {
        let output = self.command(server, flags).output();
        let output = output.with_context(|| self.cannot())?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "smelt bench serve failed: {said}");
        let document: Value = serde_json::from_slice(&output.stdout)?;
        let row = &document["cases"][0];
        let failed = row["errors"].as_array().is_none_or(|errors| !errors.is_empty());
        ensure!(!failed, "requests failed: {}", row["errors"]);
        Ok(row.clone())
    }

    /// Asks until it is told to end.
    pub(in crate::bench) fn begin(&self, server: &Server, flags: &[&str]) -> Result<Beside> {
        let mut command = self.command(server, flags);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Ok(Beside(child.with_context(|| self.cannot())?))
    }

    fn command(&self, server: &Server, flags: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["bench", "serve", "--json", "--runs", "1", "--warm-ups", "0"]);
        command.args(["--url", &server.url(), "--pid", &server.pid().to_string()]);
        command.args(flags);
        command
    }

    fn cannot(&self) -> String {
        format!("cannot start {}", self.program.display())
    }
}

/// A client beside the one that measures.
pub(in crate::bench) struct Beside(Child);

impl Beside {
    /// Ends it, which must have been asking until now.
    pub(in crate::bench) fn end(mut self) -> Result<()> {
        let ended = self.0.try_wait()?;
        ensure!(ended.is_none(), "the client beside the one that measures ended by itself");
        Ok(())
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // One that has ended already need not be ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
