//! Confines what a stage does: the kernel refuses it to write anywhere but in the places given.
//!
//! There are two ways.  Landlock binds a thread and whatever that thread starts, and is never taken
//! back; where the kernel has none that will do, a mount name space of the program's own does it.  Both
//! are entered by a thread that then starts the program and ends, so the shim stays free for the stages
//! after it.  What a build does not need of root's rights is taken away besides.  Reading and the network are
//! confined where a program is strict; modes, owners and times of files not by Landlock, which does not know
//! them.  It knows no stages: who may do what is decided by whoever asks.

pub(crate) mod apart;
mod capabilities;
mod devices;
mod filter;
mod mounts;
mod names;
mod network;
mod queues;
mod system;

pub(crate) use mounts::TMP;
use mounts::View;
pub use network::Network;
use queues::Queues;

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::thread;

use landlock::{
    ABI, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, Scope,
};
use serde::{Deserialize, Serialize};

/// Names the only way to be taken: `landlock`, `mounts` or `none`.
pub(crate) const VARIABLE: &str = "SMELT_CONFINE";

/// Shared memory and semaphores are made here; they are gone with the machine's memory.
pub const SHARED: &str = "/dev/shm";

/// How an attempt's writes were held to what it declares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Writes {
    /// The kernel refused all others.
    Confined,
    /// It declares `/`: it may write anywhere.
    Anywhere,
    /// This kernel has neither Landlock that allows renames between directories (Linux 5.19) nor lets
    /// us mount.
    Unwatched,
}

/// What a strict program may see besides where it may write and the system's directories.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strict {
    /// Files and directories that it may read: its inputs and its tools.
    pub reads: Vec<PathBuf>,
    /// Whether it has a network.
    pub network: bool,
}

/// By what the kernel holds stages to what they declare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Landlock.
    Landlock,
    /// A mount name space, by root's right to mount.
    Mounts,
    /// A mount name space within a user name space.
    UserMounts,
}

impl Way {
    /// As in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Landlock => "landlock",
            Self::Mounts => "mounts",
            Self::UserMounts => "user-mounts",
        }
    }

    /// For a person.
    pub fn words(self) -> &'static str {
        match self {
            Self::Landlock => "Landlock",
            Self::Mounts => "a mount name space",
            Self::UserMounts => "a mount name space in a user name space",
        }
    }
}

/// How what was started is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AppliedConfinement {
    pub(crate) writes: Writes,
    /// By what, where its writes are confined.
    pub(crate) way: Option<Way>,
    /// How its network is, where it is strict.
    pub(crate) network: Option<Network>,
}

/// What a program may do.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Bounds<'a> {
    /// Where it may write; `/` lifts everything.
    pub(crate) places: &'a [&'a Path],
    /// What it needs of root's rights besides the usual ones, by name.
    pub(crate) capabilities: &'a [String],
    /// Whether it is started where no other user's processes are in its reach.
    pub(crate) is_apart: bool,
    /// Whether the `/dev/shm` where it is started is one that nobody else sees.
    pub(crate) has_own_shared: bool,
    /// Whether it sees the machine's shared memory, where it could have its own.
    pub(crate) shares: bool,
    /// What stands at `/tmp`, where that can be told from the machine's.
    pub(crate) tmp: Option<&'a Path>,
    /// Whether shared memory, semaphores and queues without a path are its own already.
    pub(crate) has_own_queues: bool,
    /// It is not to be started where the kernel cannot hold it.
    pub(crate) must_hold: bool,
    /// What it may see, where it does not see everything.
    pub(crate) strict: Option<&'a Strict>,
    /// What it may not write, where it lies in one of those places: it is mounted so.
    pub(crate) store: Option<&'a Path>,
}

/// The way that holds on this machine, for this user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confinement {
    /// The way; `None` where there is none.
    pub way: Option<Way>,
    /// Whether stages may not send signals to others than their own, nor connect to their abstract sockets.
    pub holds_signals: bool,
    /// Whether the kernel refuses them system calls by their arguments, as those that set limits of other processes.
    pub filters_calls: bool,
    /// How a strict stage is kept from the network; `None` where it cannot be.
    pub network: Option<Network>,
}

impl Confinement {
    /// What holds stages here, for a person.
    pub fn words(&self) -> String {
        let Some(way) = self.way else {
            return "nothing confines stages here: the kernel has neither Landlock (Linux 5.19) nor lets us mount"
                .to_owned();
        };
        let unheld: String = self.unheld().into_iter().map(|what| format!("; {what}")).collect();
        format!("stages are confined by {}{unheld}", way.words())
    }

    /// What it does not hold of what other kernels do, for a person.
    pub fn unheld(&self) -> Vec<&'static str> {
        let signals = (!self.holds_signals).then_some("signals are not held (Linux 6.12 does)");
        let calls = (!self.filters_calls).then_some(
            "limits of other processes are not held (the kernel has no filters of system calls)",
        );
        if self.way.is_some() { signals.into_iter().chain(calls).collect() } else { Vec::new() }
    }

    /// What holds strict stages here, for a person.
    pub fn strict_words(&self) -> String {
        let (Some(way), Some(network)) = (self.way, self.network) else {
            return "strict stages cannot be started here: the kernel would not hold them"
                .to_owned();
        };
        format!(
            "strict stages read what they declare, by {}, and have {}",
            way.words(),
            network.words()
        )
    }

    /// Tries what can be tried without starting anything; of user name spaces it reads whether the kernel
    /// allows them.
    ///
    /// # Errors
    /// One line, where the variable that names the way names none.
    pub fn find() -> Result<Self, String> {
        let named = env::var_os(VARIABLE).unwrap_or_default();
        if !["", "landlock", "mounts", "none"].iter().any(|word| named == **word) {
            let named = named.display();
            return Err(format!("{VARIABLE} is landlock, mounts or none, not \"{named}\""));
        }
        let filters_calls = filter::are_there(Path::new("/"));
        if has_landlock() {
            let network = network::find(capabilities::may_mount());
            let way = Some(Way::Landlock);
            return Ok(Self { way, holds_signals: has_scopes(), filters_calls, network });
        }
        let way = match capabilities::may_mount() {
            _ if !is_wanted("mounts") => None,
            true => {
                in_thread(|| mounts::isolate(&[], View::default())).is_ok().then_some(Way::Mounts)
            }
            false => mounts::allows_user_namespaces(Path::new("/")).then_some(Way::UserMounts),
        };
        let network = network::find(way.is_some());
        Ok(Self { way, holds_signals: false, filters_calls, network })
    }
}

/// The name spaces that a process enters before it starts anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// Those that hold what it starts, with a `/dev/shm` of its own.
    Own,
    /// As `Own`, for what is strict: the machine's `/dev/shm` is not to be seen.
    Strict,
    /// Those that hold what it starts, with the machine's `/dev/shm`.
    Shared,
    /// As `Own`, for what declares rights of root's: they are rights over the machine, so it is not set apart from that.
    OwnPrivileged,
    /// As `Shared`, for what declares rights of root's.
    SharedPrivileged,
    /// None: what it starts is held to nothing.
    Free,
}

impl Space {
    /// Each, and the word for it.
    const ALL: [(Self, &'static str); 6] = [
        (Self::Own, "own"),
        (Self::Strict, "strict"),
        (Self::Shared, "shared"),
        (Self::OwnPrivileged, "own-privileged"),
        (Self::SharedPrivileged, "shared-privileged"),
        (Self::Free, "free"),
    ];

    /// The space of a word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == word).map(|(space, _)| *space)
    }

    pub(crate) fn word(self) -> &'static str {
        let found = Self::ALL.iter().find(|(space, _)| *space == self);
        found.expect("the list has them all").1
    }

    /// Whether what it starts has a `/dev/shm` of its own.
    fn is_own(self) -> bool {
        matches!(self, Self::Own | Self::Strict | Self::OwnPrivileged)
    }

    /// Whether what it starts sees the machine's `/dev/shm`, and is held all the same.
    pub(crate) fn shares(self) -> bool {
        matches!(self, Self::Shared | Self::SharedPrivileged)
    }
}

/// What a process has that was prepared for starting what its space holds.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) space: Space,
    pub(crate) shared: Shared,
    /// Whether it is in a user name space of its own.
    pub(crate) is_apart: bool,
    /// Those that all it starts have; without, each has its own.
    queues: Option<Queues>,
}

impl Prepared {
    /// Whether what it starts has queues that nothing else sees, and nothing left from before.
    pub(crate) fn has_own_queues(&self) -> bool {
        self.queues.is_some()
    }

    /// Removes what a program left, unless others may keep something there.
    pub(crate) fn empty(&mut self) {
        self.shared.empty();
        if self.queues.as_mut().is_some_and(|queues| !queues.are_empty()) {
            self.queues = Queues::own().ok();
        }
    }
}

/// Prepares this process, which has one thread yet, for starting what its space holds.
///
/// Where a user name space is the only way it enters one; root enters one that the supervisor maps (`is_mapped`), which waits for a word
/// then.  With Landlock it takes a `/dev/shm` of its own where it may mount, for strict programs in a user name space if need be: what a
/// program leaves there can be told from what others keep there, and strict ones do not see the latter.  Where it cannot, what is
/// started is not held, and says so.  System calls are refused here, once for all that it starts: a filter takes longer than many a stage.
/// It has a second thread then.
pub(crate) fn prepare(space: Space, is_mapped: bool) -> Prepared {
    if space == Space::Free {
        return Prepared { space, shared: Shared::Everybodys, is_apart: false, queues: None };
    }
    let is_mapped = is_mapped && apart::enter();
    let (has_landlock, may_mount) = (has_landlock(), capabilities::may_mount());
    let by_mounts = !has_landlock && is_wanted("mounts");
    // Landlock could only refuse all of the machine's shared memory, which programs make their semaphores in.
    let hides =
        has_landlock && space == Space::Strict && mounts::allows_user_namespaces(Path::new("/"));
    let enters = (by_mounts || hides) && !may_mount && mounts::enter_user_namespace().is_ok();
    let may_mount = may_mount || enters;
    let is_own = space.is_own() && has_landlock && may_mount && mounts::own_shared().is_ok();
    // By mounts each program gets name spaces of its own anyhow.
    let has_queues = has_landlock && may_mount && !space.shares();
    let queues = has_queues.then(|| Queues::own().ok()).flatten();
    if has_landlock || by_mounts && may_mount {
        // A kernel without filters has the rest, and `plan` says so.
        let _ = filter::refuse_beyond().and_then(|()| names::allow());
    }
    let shared = if is_own { Shared::Own } else { Shared::Everybodys };
    Prepared { space, shared, is_apart: is_mapped || enters, queues }
}

/// Whose `/dev/shm` this process sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shared {
    /// That of the machine, or each program has one.
    Everybodys,
    /// One that only programs see that this process started.
    Own,
}

impl Shared {
    /// Removes what a program left there, unless others may keep something there.
    pub(crate) fn empty(self) {
        if self == Self::Everybodys {
            return;
        }
        for left in fs::read_dir(SHARED).into_iter().flatten().flatten() {
            let is_dir = left.file_type().is_ok_and(|kind| kind.is_dir());
            let remove = if is_dir { fs::remove_dir_all } else { fs::remove_file };
            // What cannot be removed goes with this process.
            let _ = remove(left.path());
        }
    }
}

/// Starts `command`; it and all it starts do only what `bounds` allow.
pub(crate) fn spawn(
    command: &mut Command,
    bounds: Bounds<'_>,
) -> io::Result<(Child, AppliedConfinement)> {
    if bounds.places.contains(&Path::new("/")) {
        return Ok((
            command.spawn()?,
            AppliedConfinement { writes: Writes::Anywhere, way: None, network: None },
        ));
    }
    let (held, child) = match has_landlock() {
        true => (Some(Way::Landlock), in_thread(|| bound(command, bounds))?),
        false => isolated(command, bounds)?,
    };
    let (network, child) = child;
    let writes = if held.is_some() { Writes::Confined } else { Writes::Unwatched };
    Ok((child, AppliedConfinement { writes, way: held, network }))
}

/// Holds this process, which has one thread, and what it becomes: it reads libraries and `program`, writes nothing, has no
/// network and starts nothing.
///
/// # Errors
/// Where the kernel cannot hold it.
pub(crate) fn enclose(program: &Path) -> io::Result<()> {
    let reading = AccessFs::from_read(ABI::V5);
    let all = AccessFs::from_write(ABI::V5) | reading;
    match is_wanted("landlock").then(|| handle(all).ok()).flatten() {
        Some(mut rules) => {
            for place in system::libraries().chain([program]) {
                let Ok(opened) = PathFd::new(place) else { continue };
                let access =
                    if place.is_dir() { reading } else { reading & AccessFs::from_file(ABI::V5) };
                rules = allow(rules, opened, access)?;
            }
            rules.restrict_self().map_err(io::Error::other)?;
        }
        None => {
            if !capabilities::may_mount() {
                mounts::enter_user_namespace()?;
            }
            let strict = Strict { reads: vec![program.to_owned()], network: false };
            mounts::isolate(&[], View { strict: Some(&strict), ..View::default() })?;
            nix::sys::prctl::set_no_new_privs()?;
        }
    }
    capabilities::drop_all()?;
    network::seal()
}

/// What was started, and how its network is where it is strict.
type Started = (Option<Network>, Child);

/// By Landlock, which knows files and no sockets: what a strict program is not to see is covered besides, where we may.
fn bound(command: &mut Command, bounds: Bounds<'_>) -> io::Result<Started> {
    let may_mount = capabilities::may_mount();
    // Who may mount in a user name space alone has paid for a `/dev/shm` there, and no stage pays for more.
    let is_covered = bounds.strict.is_some() && may_mount && !bounds.is_apart;
    if is_covered {
        let places = real(bounds.places)?;
        let store = store_within(bounds, &places);
        mounts::isolate(&places, View::of(bounds, store.as_deref()))?;
    } else if may_mount && !bounds.shares && !bounds.has_own_queues {
        queues::part();
    }
    let network = bounds.strict.map(|strict| network::hold(strict, is_covered)).transpose()?;
    nix::sys::prctl::set_no_new_privs()?;
    capabilities::drop_but(bounds.capabilities, true)?;
    let has_own_shared = bounds.has_own_shared || is_covered && !bounds.shares;
    rules(Bounds { has_own_shared, ..bounds })?.restrict_self().map_err(io::Error::other)?;
    Ok((network, command.spawn()?))
}

/// By where their links lead, as the kernel's list of mounts has them.
fn real(places: &[&Path]) -> io::Result<Vec<PathBuf>> {
    let real = |place: &&Path| place.canonicalize().map_err(|error| unfit(place, &error));
    places.iter().map(real).collect()
}

/// Where the store really is, if one of the places holds it.
fn store_within(bounds: Bounds<'_>, places: &[PathBuf]) -> Option<PathBuf> {
    let store = bounds.store?.canonicalize().ok()?;
    places.iter().any(|place| store.starts_with(place)).then_some(store)
}

/// In a mount name space of its own, or where that cannot be, as free as it is.
fn isolated(command: &mut Command, bounds: Bounds<'_>) -> io::Result<(Option<Way>, Started)> {
    let places = real(bounds.places)?;
    let store = store_within(bounds, &places);
    let started = in_thread(|| {
        let held = match is_wanted("mounts") {
            true => mounts::isolate(&places, View::of(bounds, store.as_deref())),
            false => Err(io::ErrorKind::Unsupported.into()),
        };
        if let (Err(error), true) = (&held, bounds.must_hold) {
            return Err(io::Error::new(error.kind(), format!("it cannot be confined: {error}")));
        }
        // A thread that is half isolated starts nothing.
        held.is_ok().then(|| free_of_rights(command, bounds, true)).transpose()
    })?;
    match started {
        Some(child) => Ok((Some(mounts::way()), child)),
        None => Ok((None, in_thread(|| free_of_rights(command, bounds, false))?)),
    }
}

/// Programs whose files give them rights keep them only where nothing is held.
fn free_of_rights(command: &mut Command, bounds: Bounds<'_>, is_held: bool) -> io::Result<Started> {
    let network = bounds.strict.map(|strict| network::hold(strict, is_held)).transpose()?;
    if is_held {
        nix::sys::prctl::set_no_new_privs()?;
    }
    capabilities::drop_but(bounds.capabilities, bounds.is_apart || !is_held)?;
    Ok((network, command.spawn()?))
}

/// Does it in a thread that ends: what binds a thread binds nobody else.
fn in_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| match thread::Builder::new().spawn_scoped(scope, work) {
        Ok(thread) => thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))),
        Err(error) => Err(error),
    })
}

/// Whether the way of this name may be taken.
fn is_wanted(way: &str) -> bool {
    env::var_os(VARIABLE).is_none_or(|named| named.is_empty() || named == way)
}

/// Asked once: a kernel does not change its mind, and a shim asks for every stage.
fn has_landlock() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| is_wanted("landlock") && handle(AccessFs::from_write(ABI::V2)).is_ok())
}

/// Whether the kernel's Landlock knows signals and abstract sockets (Linux 6.12).
fn has_scopes() -> bool {
    let rules = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    rules.scope(Scope::Signal | Scope::AbstractUnixSocket).and_then(Ruleset::create).is_ok()
}

/// All that a strict program may read but where it may write: what it declares, and the system's directories.
pub(crate) fn seen(strict: &Strict) -> Vec<PathBuf> {
    strict.reads.iter().cloned().chain(system::folders(strict.network)).collect()
}

/// Landlock's form of `bounds`.
fn rules(bounds: Bounds<'_>) -> io::Result<RulesetCreated> {
    let reading = bounds.strict.map_or(BitFlags::EMPTY, |_| AccessFs::from_read(ABI::V5));
    let all = AccessFs::from_write(ABI::V5) | reading;
    let mut rules = handle(all).map_err(io::Error::other)?;
    // Device nodes could be those of disks.
    let files = all & !(AccessFs::MakeBlock | AccessFs::MakeChar | AccessFs::IoctlDev);
    for place in bounds.places {
        let opened = PathFd::new(place).map_err(|_| unfit(place, &io::Error::last_os_error()))?;
        let is_device = place.starts_with("/dev");
        rules = allow(rules, opened, if is_device { all } else { files })?;
    }
    let to_devices = AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev | reading;
    let devices = devices::named().into_iter().map(|path| (path, to_devices));
    let seen = bounds.strict.map(seen).unwrap_or_default();
    let seen = seen.into_iter().map(|path| (path, reading));
    // What lies in it has names that anybody may read.
    let dev = bounds.strict.map(|_| (devices::DEV.into(), AccessFs::ReadDir.into()));
    // Others keep something in the machine's.
    let shared = bounds.strict.is_none() || bounds.has_own_shared;
    let shared = shared.then(|| (SHARED.into(), files));
    for (place, access) in devices.chain(shared).chain(seen).chain(dev) {
        // A container may be without.
        if let Ok(opened) = PathFd::new(place) {
            rules = allow(rules, opened, access)?;
        }
    }
    Ok(rules)
}

/// Renames between directories must be possible.  What only a newer kernel knows is left out: on an
/// older one a file can be cut by its name, wherever it lies, and others be sent signals.
fn handle(all: BitFlags<AccessFs>) -> Result<RulesetCreated, RulesetError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_write(ABI::V2))?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .scope(Scope::Signal | Scope::AbstractUnixSocket)?
        .create()
}

fn allow(
    rules: RulesetCreated,
    place: PathFd,
    access: BitFlags<AccessFs>,
) -> io::Result<RulesetCreated> {
    rules.add_rule(PathBeneath::new(place, access)).map_err(io::Error::other)
}

fn unfit(place: &Path, why: &io::Error) -> io::Error {
    io::Error::new(
        why.kind(),
        format!(
            "it declares that it writes to {}: {why}; make that first, or declare the directory it is to be in",
            place.display()
        ),
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::process::Stdio;

    use super::*;

    fn to<'a>(places: &'a [&'a Path]) -> Bounds<'a> {
        Bounds { places, ..Bounds::default() }
    }

    /// What a shell says and how it ends that may write only beneath `out`, of a folder that has
    /// `out`, `other` and a file `mark`.  `None` where the kernel has no Landlock.
    fn shell(script: &str, declared: &[&str]) -> Option<(bool, String, tempfile::TempDir)> {
        let folder = tempfile::tempdir().unwrap();
        for name in ["out", "other"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        fs::write(folder.path().join("mark"), "").unwrap();
        let mut command = Command::new("sh");
        command.args(["-ec", script]).current_dir(folder.path().join("out"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let places: Vec<_> =
            ["out"].iter().chain(declared).map(|n| folder.path().join(n)).collect();
        let places: Vec<_> = places.iter().map(PathBuf::as_path).collect();
        let (child, held) = spawn(&mut command, to(&places)).unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        (held.writes == Writes::Confined).then_some((output.status.success(), said, folder))
    }

    #[track_caller]
    fn check(script: &str, declared: &[&str], may: bool) {
        let Some((ended_well, said, folder)) = shell(script, declared) else {
            return println!("not run: no Landlock here");
        };
        assert_eq!(ended_well, may, "{script}: {said}");
        let said_so = ["ermission denied", "cross-device", "not permitted"]
            .iter()
            .any(|words| said.contains(words));
        assert!(may || said_so, "{script}: {said}");
        // Whoever confined another is free.
        fs::write(folder.path().join("free"), "x").unwrap();
    }

    #[test]
    fn its_own_directory_takes_everything() {
        check(
            "mkdir -p a b; echo x > a/f; mv a/f b/g; ln b/g h; ln -s h i; rm h; rm -r b",
            &[],
            true,
        );
        check("mkfifo f; truncate -s 3 g; chmod +x g; (cd /; echo x > $OLDPWD/y)", &[], true);
    }

    #[test]
    fn devices_can_be_written() {
        check(
            "echo x > /dev/null; echo x 2> /dev/null >&2; cat < /dev/zero | head -c 9 > f",
            &[],
            true,
        );
        check("f=/dev/shm/smelt-$$; echo x > $f; rm $f", &[], true);
        check("cat /etc/passwd > f; test -r ../other", &[], true);
    }

    #[test]
    fn all_else_is_refused() {
        for script in [
            "echo x > ../new",
            "echo x >> ../mark",
            "rm ../mark",
            "mkdir ../other/d",
            "rmdir ../other",
            "touch ../other/f",
            "echo x > f; mv f ../f",
            "mv ../mark .",
            "ln ../mark .",
            "touch /dev/smelt-makes-this",
            "echo name > /proc/self/comm",
            "mknod d b 7 200",
            "sh -c 'sh -c \"echo x > ../deep\"'",
        ] {
            check(script, &[], false);
        }
    }

    #[test]
    fn what_is_declared_is_not() {
        check("echo x > ../other/f; mv ../other/f .; mv f ../other/g", &["other"], true);
        check("echo x > ../mark", &["mark"], true);
        check("rm ../mark", &["mark"], false);
        check("echo x > ../mark", &["other"], false);
    }

    #[test]
    fn what_is_declared_must_be_there() {
        let error =
            spawn(&mut Command::new("true"), to(&[Path::new("/nowhere/at/all")])).unwrap_err();
        assert!(error.to_string().contains("/nowhere/at/all: No such file"), "{error}");
    }

    #[test]
    fn the_root_stands_for_no_confinement() {
        let (mut child, held) = spawn(&mut Command::new("true"), to(&[Path::new("/")])).unwrap();
        assert!(child.wait().unwrap().success() && held.writes == Writes::Anywhere);
    }
}
