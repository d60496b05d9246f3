//! Halts the processes of a control group of version 2 and lets them go on.
//!
//! The process that leads them must go on to hear its supervisor, so it steps into a group beside
//! theirs first.  Files are opened beforehand: letting go must work however full the disk is and
//! whatever else fails.  A halted process can still be killed.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A group that can be halted.  What is halted when it is dropped goes on.
#[derive(Debug)]
pub struct Freezer {
    leader: u32,
    switch: File,
    /// Where the group's processes are listed, and joined.
    own: File,
    /// The group beside it.
    aside: PathBuf,
    is_frozen: bool,
}

impl Freezer {
    /// Of the group at `dir`, in which `leader` leads the others.
    pub(crate) fn of(dir: &Path, leader: u32) -> Option<Self> {
        let open = |name: &str| OpenOptions::new().write(true).open(dir.join(name)).ok();
        let mut name = dir.file_name()?.to_owned();
        name.push("-aside");
        let aside = dir.with_file_name(name);
        let (switch, own) = (open("cgroup.freeze")?, open("cgroup.procs")?);
        Some(Self { leader, switch, own, aside, is_frozen: false })
    }

    /// Halts all but the leader.
    pub fn freeze(&mut self) -> io::Result<()> {
        if self.is_frozen {
            return Ok(());
        }
        match fs::create_dir(&self.aside) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => fs::write(self.aside.join("cgroup.procs"), self.leader.to_string())?,
        }
        self.is_frozen = true;
        let frozen = say(&self.switch, "1");
        if frozen.is_err() {
            let _ = self.thaw();
        }
        frozen
    }

    /// Lets them go on.
    pub fn thaw(&mut self) -> io::Result<()> {
        if !self.is_frozen {
            return Ok(());
        }
        say(&self.switch, "0")?;
        self.is_frozen = false;
        // The leader may be gone.
        let _ = say(&self.own, &self.leader.to_string());
        let _ = fs::remove_dir(&self.aside);
        Ok(())
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let _ = self.thaw();
    }
}

fn say(file: &File, what: &str) -> io::Result<()> {
    file.write_at(what.as_bytes(), 0).map(drop)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Child, Command, Stdio};
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::cgroup::{Cgroups, Group};

    /// A leader that says `tick` for ever through its child, and its lines.
    fn ticking(group: &Group) -> (Child, Receiver<String>) {
        let mut leader = Command::new("sh")
            .args(["-c", "read go; sh -c 'while :; do echo tick; sleep 0.01; done'; true"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        group.add(leader.id()).unwrap();
        leader.stdin.take().unwrap().write_all(b"go\n").unwrap();
        let output = BufReader::new(leader.stdout.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || {
            output.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok())
        });
        (leader, lines)
    }

    #[test]
    fn what_is_halted_says_nothing_until_it_is_let_go() {
        let Some(cgroups) = Cgroups::find(Path::new("/")) else { return };
        let Ok(group) = cgroups.create(&format!("frozen/{}", std::process::id())) else { return };
        let (mut leader, lines) = ticking(&group);
        let Some(mut freezer) = group.freezer(leader.id()) else { return };
        let patience = Duration::from_secs(20);
        lines.recv_timeout(patience).unwrap();
        freezer.freeze().unwrap();
        // What was on its way arrives; then there is silence.
        while lines.recv_timeout(Duration::from_millis(300)).is_ok() {}
        freezer.thaw().unwrap();
        lines.recv_timeout(patience).unwrap();
        freezer.freeze().unwrap();
        drop(freezer);
        lines.recv_timeout(patience).expect("what is dropped goes on");
        cgroups.sweep(&format!("frozen/{}", std::process::id()));
        let _ = leader.kill();
        leader.wait().unwrap();
        cgroups.sweep(&format!("frozen/{}", std::process::id()));
    }
}
