//! Measures a site of many boards behind one thin line: how often an output goes over the line, and when the last board has it.
//!
//! Boards, and the server beyond the line, are network name spaces of this machine on one bridge; the server's end sends 20
//! Mbit/s by `tc tbf`.  The rival is each board alone: what one of them takes, as many times.  It needs root.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::succeed;
use crate::ci::cargo;
use crate::fleet::casd_program;
use crate::target;

/// What is fetched, and by how many, where nobody says otherwise.
const MIB: u64 = 256;
const BOARDS: usize = 20;
const LINE: &str = "20mbit";
/// What is asked: copies over the line, and the time of one board by the line.
const COPIES_MAX: f64 = 1.3;
const TIMES_MAX: f64 = 1.5;
/// How long the server may take to start.
const START: Duration = Duration::from_secs(60);
const SERVER: &str = "10.77.0.1";
const PEER_PORT: u16 = 5210;

/// A script is part of the key, so that what it makes is shared.
const PIPELINE: &str = r#"smelt = 1
name = "site"
[stage.large]
kind = "command"
argv = ["./make.sh"]
outputs = ["0", "1", "2", "3"]
"#;

/// `cargo xtask bench site [--boards N] [--mib N] [--mdns] [--program FILE]`: of this smelt, or of one that is built for it.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let (mut boards, mut mib, mut is_found, mut program) = (BOARDS, MIB, false, None);
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut number = || words.next().and_then(|text| text.parse::<u64>().ok());
        match *word {
            "--boards" => {
                boards = number().context("--boards takes a number")?.clamp(1, 200) as usize
            }
            "--mib" => mib = number().context("--mib takes a number")?.max(4),
            "--mdns" => is_found = true,
            "--program" => program = words.next().map(PathBuf::from),
            other => bail!(
                "bench site takes --boards N, --mib N, --mdns and --program FILE, not {other}"
            ),
        }
    }
    if program.is_none() {
        cargo(&["build", "--release", "--locked", "--package", "smelt"], &[])?;
    }
    let smelt = program.unwrap_or_else(|| target().join("release/smelt"));
    let folder = target().join("bench/site");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let site = Site::new(&folder, smelt, boards, mib)?;
    let alone = site.alone()?;
    let all = site.all(is_found)?;
    let (copies, times) = (all.copies(mib), all.seconds / alone.seconds);
    println!("| {mib} MiB, {boards} boards, 20 Mbit/s | s | copies over the line |");
    println!("|---|---|---|");
    println!("| one board, alone | {:.1} | {:.2} |", alone.seconds, alone.copies(mib));
    println!(
        "| {boards} boards, each alone | {:.1} (reckoned) | {boards} |",
        alone.seconds * boards as f64
    );
    println!("| {boards} boards with neighbours | {:.1} | {copies:.2} |", all.seconds);
    println!("the last has it after {times:.2} of the time of one");
    drop(site);
    let _ = fs::remove_dir_all(&folder);
    if copies > COPIES_MAX || times > TIMES_MAX {
        bail!("targets missed: {COPIES_MAX} copies, {TIMES_MAX} of the time of one");
    }
    Ok(())
}

/// What a fetch took.
struct Took {
    seconds: f64,
    /// That the server sent, with all that carries them.
    line_bytes: u64,
}

impl Took {
    fn copies(&self, mib: u64) -> f64 {
        self.line_bytes as f64 / (mib << 20) as f64
    }
}

/// Name spaces, the server and the boards' peers, which end with it.
struct Site {
    folder: PathBuf,
    smelt: PathBuf,
    boards: usize,
    running: Vec<Child>,
}

impl Site {
    fn new(folder: &Path, smelt: PathBuf, boards: usize, mib: u64) -> Result<Self> {
        let mut site = Self { folder: folder.to_owned(), smelt, boards, running: Vec::new() };
        site.lay_network()?;
        let casd = casd_program()?;
        let mut server = site.within("server", casd.as_os_str());
        server
            .args(["--bind", &format!("{SERVER}:5200"), "--quota-high", "20G"])
            .arg(folder.join("cas"));
        site.start(&mut server, "server")?;
        site.publish(mib)?;
        for board in 0..boards {
            let mut peer = site.smelt(&name(board), board);
            peer.args(["fleet", "peer", "--announce", "--listen", &format!("0.0.0.0:{PEER_PORT}")]);
            site.start(&mut peer, &format!("peer-{board}"))?;
        }
        Ok(site)
    }

    /// A bridge in a name space of its own, and one name space at it for each machine.
    fn lay_network(&self) -> Result<()> {
        self.clear_network();
        ip("netns add smelt-bridge")?;
        ip("-n smelt-bridge link add bridge type bridge")?;
        ip("-n smelt-bridge link set bridge up")?;
        self.join("server", 1)?;
        let slow = format!(
            "tc -n smelt-server qdisc add dev eth0 root tbf rate {LINE} burst 32kb latency 400ms"
        );
        shell(&slow)?;
        (0..self.boards).try_for_each(|board| self.join(&name(board), board + 2))
    }

    fn join(&self, name: &str, number: usize) -> Result<()> {
        ip(&format!("netns add smelt-{name}"))?;
        ip(&format!(
            "-n smelt-bridge link add port{number} type veth peer name eth0 netns smelt-{name}"
        ))?;
        ip(&format!("-n smelt-bridge link set port{number} master bridge up"))?;
        ip(&format!("-n smelt-{name} addr add 10.77.0.{number}/24 dev eth0"))?;
        ip(&format!("-n smelt-{name} link set eth0 up"))?;
        ip(&format!("-n smelt-{name} link set lo up"))
    }

    fn clear_network(&self) {
        let boards = (0..self.boards).map(name);
        for name in ["bridge", "server"].map(str::to_owned).into_iter().chain(boards) {
            let _ = Command::new("ip").args(["netns", "del", &format!("smelt-{name}")]).output();
        }
    }

    /// A program in the name space of a machine.
    fn within(&self, name: &str, program: &std::ffi::OsStr) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &format!("smelt-{name}")]).arg(program);
        command.current_dir(&self.folder).stdin(Stdio::null());
        command
    }

    /// smelt with the store and the home of a board.
    fn smelt(&self, name: &str, board: usize) -> Command {
        let home = self.folder.join(format!("home-{board}"));
        let mut command = self.within(name, self.smelt.as_os_str());
        command.env("HOME", &home).env("XDG_CONFIG_HOME", home.join("config"));
        command.env("SMELT_CACHE", home.join("cache"));
        command
    }

    fn start(&mut self, command: &mut Command, name: &str) -> Result<()> {
        let log = fs::File::create(self.folder.join(format!("{name}.log")))?;
        command.stdout(log.try_clone()?).stderr(log);
        self.running.push(command.spawn().with_context(|| format!("cannot start {name}"))?);
        Ok(())
    }

    /// Builds and publishes beyond the line; every board believes the builder.
    fn publish(&self, mib: u64) -> Result<()> {
        let script = format!(
            "#!/bin/sh\nfor n in 0 1 2 3; do\n  openssl enc -aes-256-ctr -K 0$n -iv 0 </dev/zero 2>/dev/null | head -c {} >$n\ndone\n",
            (mib << 20) / 4
        );
        fs::write(self.folder.join("p.toml"), PIPELINE)?;
        let path = self.folder.join("make.sh");
        fs::write(&path, script)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        let builder = self.boards;
        succeed(self.smelt("server", builder).args(["run", "p.toml"]))?;
        let key = self.smelt("server", builder).args(["fleet", "keygen"]).output()?;
        let key = String::from_utf8(key.stdout)?;
        let begin = Instant::now();
        loop {
            let mut push = self.smelt("server", builder);
            push.args(["cache", "push", "p.toml", "--fleet", &fleet()]);
            match succeed(&mut push) {
                Err(error) if begin.elapsed() > START => return Err(error),
                Err(_) => thread::sleep(Duration::from_millis(500)),
                Ok(()) => break,
            }
        }
        for board in 0..self.boards {
            let mut trust = self.smelt(&name(board), board);
            succeed(trust.args(["fleet", "trust", key.trim(), "--name", "builder"]))?;
        }
        Ok(())
    }

    /// One board without neighbours, which forgets it then.
    fn alone(&self) -> Result<Took> {
        let mut pull = self.smelt(&name(0), 0);
        pull.env("SMELT_CACHE", self.folder.join("alone"));
        let took = self.measured(vec![self.pull(pull, "")])?;
        fs::remove_dir_all(self.folder.join("alone"))?;
        Ok(took)
    }

    /// All at once.
    fn all(&self, is_found: bool) -> Result<Took> {
        let list: Vec<String> =
            (0..self.boards).map(|board| format!("10.77.0.{}:{PEER_PORT}", board + 2)).collect();
        let peers = if is_found { "mdns".to_owned() } else { list.join(",") };
        let pulls =
            (0..self.boards).map(|board| self.pull(self.smelt(&name(board), board), &peers));
        self.measured(pulls.collect())
    }

    fn pull(&self, mut command: Command, peers: &str) -> Command {
        command.args(["cache", "pull", "p.toml", "--fleet", &fleet(), "--fleet-peers", peers]);
        command.stdout(Stdio::null()).stderr(Stdio::inherit());
        command
    }

    /// Runs commands at once.
    fn measured(&self, commands: Vec<Command>) -> Result<Took> {
        let (before, begin) = (self.line_bytes()?, Instant::now());
        let children = commands.into_iter().map(|mut command| command.spawn());
        let children = children.collect::<Result<Vec<_>, _>>()?;
        for mut child in children {
            let status = child.wait()?;
            ensure!(status.success(), "a pull ended with {status}");
        }
        let seconds = begin.elapsed().as_secs_f64();
        Ok(Took { seconds, line_bytes: self.line_bytes()? - before })
    }

    /// What the server has sent.
    fn line_bytes(&self) -> Result<u64> {
        let mut read = self.within("server", "cat".as_ref());
        let read = read.arg("/sys/class/net/eth0/statistics/tx_bytes").output()?;
        let text = String::from_utf8(read.stdout)?;
        text.trim().parse().context("the server's line is not counted")
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for child in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.clear_network();
    }
}

fn name(board: usize) -> String {
    format!("board{board}")
}

fn fleet() -> String {
    format!("grpc://{SERVER}:5200")
}

fn ip(words: &str) -> Result<()> {
    shell(&format!("ip {words}"))
}

fn shell(line: &str) -> Result<()> {
    let output = Command::new("sh").args(["-c", line]).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{line}: {} (name spaces need root)", said.trim());
    Ok(())
}
