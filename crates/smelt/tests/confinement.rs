//! What a stage must not do is tried as root and as a user, held by Landlock, by mount name spaces
//! and by nothing.

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::world::machine::say;
use crate::world::side::{PYTHON, Side, is_root};
use crate::world::{Ended, World, commands, ended, until, writing};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// A process that others may attack: it has `victim` open as 3 and listens, as the user that it is told.
const VICTIM: &str = "import ctypes, os, socket, sys
os.setpgid(0, 0)
os.dup2(os.open(sys.argv[1], os.O_RDWR), 3)
for user in map(int, sys.argv[2:]):
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    # One that was somebody else before is kept from its own user, unless it says otherwise (PR_SET_DUMPABLE).
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
server = socket.socket(socket.AF_UNIX)
server.bind(f'\\0smelt-victim-{os.getpid()}')
server.listen()
print('ready', flush=True)
while True: server.accept()";

/// Gives what it starts a terminal, which no output of it goes to.
const TERMINAL: &str = "import os, pty, sys
out, errors = os.dup(1), os.dup(2)
child, terminal = pty.fork()
if child == 0:
    os.dup2(out, 1)
    os.dup2(errors, 2)
    os.execv(sys.argv[1], sys.argv[1:])
try:
    while os.read(terminal, 4096): pass
except OSError:
    pass
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))";

/// A process that is gone with the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Attacked {
    world: World,
    report: Value,
    done: Vec<String>,
    stderr: String,
}

/// A user who starts nothing but a victim.
const ANOTHER: &str = "65533";

/// A victim of the stage's own user's, or of another's.
fn victim(world: &World, side: Side, another: Option<&str>) -> Killed {
    let mut victim = Command::new(PYTHON);
    victim.args(["-c", VICTIM]).arg(world.path("victim")).args(another).stdout(Stdio::piped());
    if another.is_none() {
        side.start(&mut victim);
    }
    let mut victim = Killed(victim.spawn().unwrap());
    let mut ready = [0; 5];
    std::io::Read::read_exact(victim.0.stdout.as_mut().unwrap(), &mut ready).unwrap();
    victim
}

/// Runs every attack in a stage that is held in this way.  `None` where this machine cannot.
fn attacked(side: Side, way: &str, more: &str) -> Option<Attacked> {
    if !side.is_here() {
        return None;
    }
    let world = World::new("");
    let folder = world.path("").to_str().unwrap().trim_end_matches('/').to_owned();
    fs::write(world.path("attacks.py"), include_str!("attacks.py")).unwrap();
    world.write("victim", "as it was\n");
    world.write("left-open", "");
    world.write("victim.leased", "");
    for name in ["", "attacks.py", "victim", "victim.leased", "left-open", "p.toml"] {
        side.give(&world.path(name));
    }
    let own = victim(&world, side, None);
    let other = is_root().then(|| victim(&world, side, Some(ANOTHER)));
    let other = other.as_ref().map_or_else(String::new, |other| other.0.id().to_string());
    if is_root() {
        let node = world.path("victim.node");
        let status = Command::new("mknod").arg(&node).args(["b", "7", "0"]).status().unwrap();
        assert!(status.success() && node.metadata().unwrap().file_type().is_block_device());
        side.give(&node);
        fs::set_permissions(&node, fs::Permissions::from_mode(0o666)).unwrap();
    }
    give_rights(&world.path("victim.setuid"), side);
    let own = own.0.id();
    let script = format!("{PYTHON} {folder}/attacks.py {folder}/victim {own} . {other}");
    let kind = "kind = \"command\"\n";
    let text = commands(&[&format!("a::{script} > o 2>&1 || {{ cat o; exit 1; }}")]);
    world.write(
        "p.toml",
        &text.replace(kind, &format!("{kind}{more}")).replace("\"o\"", "\"done\""),
    );
    // Whoever starts smelt may leave something open.
    let mut smelt = Command::new("sh");
    world.prepare(&mut smelt);
    smelt.env("SMELT_CONFINE", way).args(["-c", "exec \"$0\" \"$@\" 9>> left-open"]);
    smelt.args([PYTHON, "-c", TERMINAL, env!("CARGO_BIN_EXE_smelt"), "run", "p.toml", "--json"]);
    side.start(&mut smelt);
    let Ended { stdout, stderr, .. } = ended(&mut smelt);
    let report: Value = serde_json::from_str(&stdout).unwrap_or_default();
    let attempt = &report["stages"][0]["attempts"][0];
    if way != "none" && attempt["writes"] == "unwatched" {
        println!("not run: this machine has no {way} for {side:?}");
        return None;
    }
    assert_eq!(report["stages"][0]["status"], "sealed", "{stderr} {stdout}");
    let out = report["stages"][0]["out"].as_str().map(Path::new);
    let out = out.map(Path::to_owned).unwrap_or_else(|| world.path("cache/out"));
    let done = found(&out, "done").unwrap_or_default();
    assert!(done.starts_with("# "), "{done}");
    let done = done.lines().skip(1).map(str::to_owned).collect();
    Some(Attacked { world, report, done, stderr })
}

/// A program that runs with another user's rights, whoever starts it: root's for a user, a user's for root.  Without root
/// it is nobody else's.
fn give_rights(program: &Path, side: Side) {
    fs::copy("/usr/bin/id", program).unwrap();
    let another = if side == Side::Root { Side::User } else { Side::Root };
    another.give(program);
    fs::set_permissions(program, fs::Permissions::from_mode(0o4755)).unwrap();
}

/// Whether a stage left memory of System V under the key of this world; it is gone then.
fn is_left_in_queues(name: &str) -> bool {
    let bytes = name.as_bytes().last_chunk().unwrap();
    let key = (u32::from_le_bytes(*bytes) & 0x7fff_ffff).to_string();
    let all = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    let is_there = all.lines().any(|line| line.split_whitespace().next() == Some(&key));
    let _ = Command::new("ipcrm").args(["-M", &key]).stderr(Stdio::null()).status();
    is_there
}

/// The file of this name below a folder.
fn found(folder: &Path, name: &str) -> Option<String> {
    if let Ok(text) = fs::read_to_string(folder.join(name)) {
        return Some(text);
    }
    let all = fs::read_dir(folder).ok()?.flatten();
    all.filter(|entry| entry.path().is_dir()).find_map(|entry| found(&entry.path(), name))
}

#[track_caller]
fn is_held(side: Side, way: &str, by: &[&str], known: &[&str]) {
    let Some(Attacked { world, report, done, stderr }) = attacked(side, way, "") else { return };
    let plan = ended(world.command(&["plan", "p.toml"]).env("SMELT_CONFINE", way)).stdout;
    let late = if plan.contains("signals are not held") { &MOUNTS_LEAVE[..] } else { &[] };
    let known = [known, late].concat();
    let odd = |line: &&String| !known.iter().any(|name| line.starts_with(&format!("{name}: ")));
    let odd: Vec<_> = done.iter().filter(odd).collect();
    assert!(odd.is_empty(), "{side:?}, {way}: {odd:?}; {stderr}");
    assert_eq!(world.read("victim"), "as it was\n");
    assert_eq!(world.read("left-open"), "");
    let name = world.path("").file_name().unwrap().to_str().unwrap().to_owned();
    let left = Path::new("/dev/shm").join(format!("smelt-attack-{name}"));
    let is_left = fs::remove_file(left).is_ok();
    // Without a right to mount it cannot be told whose it is.
    let is_everybodys = side == Side::User && way == "landlock";
    assert_eq!(is_left, is_everybodys, "{side:?}, {way}");
    assert_eq!(is_left_in_queues(&name), is_everybodys, "{side:?}, {way}");
    let attempt = &report["stages"][0]["attempts"][0];
    assert_eq!(attempt["writes"], "confined");
    assert!(by.iter().any(|by| attempt["confined_by"] == **by), "{attempt}");
    let told = world.smelt(&["report"]).stdout;
    assert!(told.contains("Stages were confined by"), "{told}");
}

/// Modes, owners and times of files Landlock does not know; threads say by number whose place they set.
const LANDLOCK_LEAVES: [&str; 2] = ["mode", "scheduling_of_another"];
/// Signals and abstract sockets are no files.
const MOUNTS_LEAVE: [&str; 6] = [
    "signal_to_other",
    "signal_by_descriptor",
    "signal_by_owner",
    "stop_of_the_supervisor",
    "abstract_socket",
    "scheduling_of_another",
];

#[test]
fn root_is_held_by_landlock() {
    is_held(Side::Root, "landlock", &["landlock"], &LANDLOCK_LEAVES);
}

#[test]
fn a_user_is_held_by_landlock() {
    is_held(Side::User, "landlock", &["landlock"], &LANDLOCK_LEAVES);
}

#[test]
fn root_is_held_by_mounts() {
    is_held(Side::Root, "mounts", &["mounts"], &MOUNTS_LEAVE);
}

#[test]
fn a_user_is_held_by_mounts() {
    is_held(Side::User, "mounts", &["user-mounts"], &MOUNTS_LEAVE);
}

/// Where nothing holds it says so, and what root's stages need not is taken all the same.
#[test]
fn without_either_it_says_so() {
    for side in [Side::Root, Side::User] {
        let Some(Attacked { world, report, done, stderr }) = attacked(side, "none", "") else {
            continue;
        };
        let attempt = &report["stages"][0]["attempts"][0];
        assert_eq!(
            (&attempt["writes"], &attempt["confined_by"]),
            (&"unwatched".into(), &Value::Null)
        );
        assert!(done.iter().any(|line| line.starts_with("cut: ")), "{done:?}");
        for name in ["immutable", "device_node", "descriptor", "module", "by_handle"] {
            let is_done = done.iter().any(|line| line.split(": ").next() == Some(name));
            assert!(!is_done, "{side:?}: {done:?}");
        }
        let told = world.smelt(&["report"]).stdout;
        assert!(told.contains("was not watched"), "{told}");
        assert!(stderr.contains("smelt: nothing confined the stages"), "{stderr}");
    }
}

/// Whoever can read a file can lock it, and smelt writes to these.
const LOCKS: &str = "import fcntl, glob, time
held = [open(path) for path in glob.glob('WORLD/cache/*.log') + glob.glob('WORLD/cache/journal/*') + ['WORLD/cache/roots.lock']]
for file in held: fcntl.flock(file, fcntl.LOCK_EX)
open('WORLD/flags/held', 'w').close()
time.sleep(600)";

#[test]
fn a_stage_that_locks_the_store_keeps_nobody_from_ending() {
    let world = World::new("");
    world.write("locks.py", &LOCKS.replace("WORLD", world.path("").to_str().unwrap()));
    fs::create_dir(world.path("flags")).unwrap();
    // Its failure is written down, so it is smelt itself that waits.
    let waits = "until [ -e $FLAGS/held ]; do sleep 0.02; done; exit 1";
    let waits = waits.replace("$FLAGS", world.path("flags").to_str().unwrap());
    let locks = format!("{PYTHON} {}", world.path("locks.py").display());
    let text = commands(&[&format!("a::{locks}"), &format!("b::{waits}")]);
    let kind = "kind = \"command\"\n";
    world.write("p.toml", &text.replace(kind, &format!("{kind}writes = [\"flags\"]\n")));
    let mut smelt = world.command(&["run", "p.toml", "--jobs", "2", "--keep-going"]);
    let mut smelt = smelt.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    world.wait_for("flags/held");
    std::thread::sleep(Duration::from_millis(500));
    let pid = Pid::from_raw(smelt.id().cast_signed());
    let begun = Instant::now();
    kill(pid, Signal::SIGINT).unwrap();
    let has_ended = until(|| smelt.try_wait().unwrap().is_some());
    let _ = kill(pid, Signal::SIGKILL);
    assert!(has_ended, "it waits for a lock that nobody gives");
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    world.assert_nothing_runs();
    let checked = world.smelt(&["cache", "fsck"]);
    assert_eq!(checked.code, Some(0), "{}", checked.stderr);
}

/// Without the user's word too, and a stage whose result cannot be kept says who is in the way.
#[test]
fn who_locks_the_store_is_named() {
    let world = World::new("");
    world.write("locks.py", &LOCKS.replace("WORLD", world.path("").to_str().unwrap()));
    fs::create_dir(world.path("flags")).unwrap();
    let flags = world.path("flags").display().to_string();
    let waits = format!("until [ -e {flags}/held ]; do sleep 0.02; done; echo x > o");
    let locks = format!("timeout 13 {PYTHON} {}", world.path("locks.py").display());
    let text = commands(&[&format!("a::{locks}"), &format!("b::{waits}")]);
    let kind = "kind = \"command\"\n";
    world.write("p.toml", &text.replace(kind, &format!("{kind}writes = [\"flags\"]\n")));
    let ended = world.smelt(&["run", "p.toml", "--jobs", "2", "--keep-going"]);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("(python3) holds its lock"), "{}", ended.stderr);
    assert_eq!(world.smelt(&["cache", "fsck"]).code, Some(0));
}

#[test]
fn whoever_requires_confinement_is_refused_without() {
    let world = World::of_commands(&["a::echo x > o"]);
    let smelt =
        |way: &str, arguments: &[&str]| ended(world.command(arguments).env("SMELT_CONFINE", way));
    let refused = smelt("none", &["run", "p.toml", "--require-confinement"]);
    assert_eq!(refused.code, Some(5), "{}", refused.stderr);
    assert!(refused.stderr.contains("nothing confines stages here"), "{}", refused.stderr);
    assert!(smelt("none", &["plan", "p.toml"]).stdout.contains("nothing confines stages here"));
    let odd = smelt("nonsense", &["run", "p.toml"]);
    assert_eq!(odd.code, Some(2), "{}", odd.stderr);
    let held = smelt("", &["run", "p.toml", "--require-confinement"]);
    assert!(matches!(held.code, Some(0 | 5)), "{}", held.stderr);
    let kind = "kind = \"command\"\n";
    world
        .write("p.toml", &world.read("p.toml").replace(kind, &format!("{kind}writes = [\"/\"]\n")));
    let free = smelt("", &["run", "p.toml", "--require-confinement"]);
    assert_eq!(free.code, Some(5), "{}", free.stderr);
}

#[test]
fn plan_and_doctor_say_what_holds() {
    let world = World::of_commands(&["a::echo x > o"]);
    for (way, words) in [("landlock", "confined by Landlock"), ("mounts", "mount name space")] {
        let plan = ended(world.command(&["plan", "p.toml"]).env("SMELT_CONFINE", way));
        let doctor = ended(world.command(&["doctor"]).env("SMELT_CONFINE", way));
        if plan.stdout.contains("nothing confines") {
            continue;
        }
        assert!(plan.stdout.contains(words), "{}", plan.stdout);
        assert!(doctor.stdout.contains(words), "{}", doctor.stdout);
        let unheld = "signals are not held (Linux 6.12 does)";
        let is_unheld = [&plan, &doctor].map(|said| said.stdout.contains(unheld));
        assert_eq!(is_unheld[0], is_unheld[1], "{}{}", plan.stdout, doctor.stdout);
        assert!(is_unheld[0] || way == "landlock", "{}", plan.stdout);
    }
}

/// As `pthread_setname_np` names another thread, and NVIDIA's library, which would make the file, its own.
const NAMES: &str = "import os, threading
done = threading.Event()
thread = threading.Thread(target=done.wait)
thread.start()
for way in (os.O_RDWR | os.O_CLOEXEC, os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
    file = os.open(f'/proc/self/task/{thread.native_id}/comm', way)
    os.write(file, b'named')
    os.close(file)
print(open(f'/proc/self/task/{thread.native_id}/comm').read(), end='')
done.set()";

#[test]
fn programs_name_their_threads() {
    let ways = ["landlock", "mounts"];
    for (side, way) in ways.map(|way| [(Side::Root, way), (Side::User, way)]).concat() {
        if !side.is_here() {
            continue;
        }
        let world = World::new("");
        let names = world.path("names.py");
        let script = format!("a::{PYTHON} {} > o || echo refused > o", names.display());
        world.write("p.toml", &commands(&[&script]));
        fs::write(&names, NAMES).unwrap();
        ["", "p.toml", "names.py"].iter().for_each(|name| side.give(&world.path(name)));
        let mut smelt = world.command(&["run", "p.toml", "--json"]);
        side.start(smelt.env("SMELT_CONFINE", way));
        let run = ended(&mut smelt);
        assert_eq!(run.code, Some(0), "{side:?}, {way}: {}", run.stderr);
        let report: Value = serde_json::from_str(&run.stdout).unwrap();
        if report["stages"][0]["attempts"][0]["writes"] == "unwatched" {
            println!("not run: this machine has no {way} for {side:?}");
            continue;
        }
        let said = fs::read_to_string(world.out("a").join("o")).unwrap();
        assert_eq!(said, "named\n", "{side:?}, {way}: {}", run.stderr);
    }
}

/// A tool that needs more says so.
#[test]
fn rights_of_root_are_declared() {
    if !is_root() {
        return println!("not run: no root");
    }
    let script = "a::touch f; chattr +a f && chattr -a f && echo yes > o || echo no > o";
    let world = World::of_commands(&[script]);
    let said = |world: &World| fs::read_to_string(world.out("a").join("o")).unwrap();
    world.run(&[]);
    let mut chattr = Command::new("sh");
    chattr.args(["-c", "touch f; chattr +a f && chattr -a f && rm f"]);
    let may = chattr.current_dir(world.path("")).status().unwrap().success();
    assert_eq!(said(&world), "no\n");
    let kind = "kind = \"command\"\n";
    let declared = format!("{kind}capabilities = [\"linux-immutable\"]\n");
    world.write("p.toml", &world.read("p.toml").replace(kind, &declared));
    // It is no part of the key.
    world.run(&["--force", "a"]);
    assert!(!may || said(&world) == "yes\n");
    world.write("p.toml", &world.read("p.toml").replace("linux-immutable", "CAP_SYS_ADMIN"));
    let refused = world.smelt(&["run", "p.toml"]);
    assert_eq!(refused.code, Some(3), "{}", refused.stderr);
    assert!(refused.stderr.contains("do you mean \"sys-admin\""), "{}", refused.stderr);
}

/// A place that holds the store opens what is sealed: that is told, and where mounts hold the store is kept out of it.
#[test]
fn a_store_in_a_declared_place_is_told_or_kept() {
    let attack =
        "(chmod u+w $SMELT_IN_A $SMELT_IN_A/o; echo changed > $SMELT_IN_A/o) 2> /dev/null || true;
(mv WORLD/cache WORLD/taken) 2> /dev/null || true";
    for (side, way) in
        [Side::Root, Side::User].map(|side| [(side, "landlock"), (side, "mounts")]).concat()
    {
        if !side.is_here() {
            continue;
        }
        let world = World::new("");
        let is_kept = way == "mounts";
        let attack = if is_kept { attack } else { "true" };
        let script = format!("b:a:{attack}\necho x > WORLD/mark; echo b > o");
        let script = script.replace("WORLD/", &world.path("").display().to_string());
        world.write("p.toml", &writing(&["a::echo a > o", &script]));
        ["", "p.toml"].iter().for_each(|name| side.give(&world.path(name)));
        let smelt = |arguments: &[&str]| {
            let mut smelt = world.command(arguments);
            side.start(smelt.env("SMELT_CONFINE", way));
            ended(&mut smelt)
        };
        let (plan, run) = (smelt(&["plan", "p.toml"]), smelt(&["run", "p.toml", "--json"]));
        if run.stdout.contains("unwatched") {
            println!("not run: this machine has no {way} for {side:?}");
            continue;
        }
        let words = "stage b: writes = [\".\"] reaches the store";
        assert_eq!(plan.stdout.contains(words), !is_kept, "{side:?}, {way}: {}", plan.stdout);
        assert_eq!(run.stderr.contains(words), !is_kept, "{side:?}, {way}: {}", run.stderr);
        assert_eq!(world.read("mark"), "x\n", "{side:?}, {way}: {}", run.stderr);
        let sealed = fs::read_to_string(world.out("a").join("o")).unwrap();
        assert_eq!(sealed, "a\n", "{side:?}, {way}");
    }
}

/// What lies in shared memory is there for whoever names it, and what a stage makes there under a name is gone with it.
#[test]
fn what_a_stage_names_in_shared_memory_is_left_to_nobody() {
    let name = |what: &str| format!("/dev/shm/smelt-{what}-{}", std::process::id());
    let (input, made) = (name("named-input"), name("named-made"));
    fs::write(&input, "input\n").unwrap();
    for (side, way) in [(Side::Root, "landlock"), (Side::Root, "mounts"), (Side::User, "mounts")] {
        for (script, says) in [
            (format!("a::echo made > {made}; cat {made} > o"), "made\n"),
            (format!("a::cat {input} > o"), "input\n"),
        ] {
            let world = World::of_commands(&[&script]);
            ["", "p.toml"].iter().for_each(|name| side.give(&world.path(name)));
            let mut smelt = world.command(&["run", "p.toml", "--json"]);
            if !side.is_here() {
                continue;
            }
            side.start(smelt.env("SMELT_CONFINE", way));
            let run = ended(&mut smelt);
            let report: Value = serde_json::from_str(&run.stdout).unwrap();
            let is_left = fs::remove_file(&made).is_ok();
            if report["stages"][0]["attempts"][0]["writes"] == "unwatched" {
                println!("not run: this machine has no {way} for {side:?}");
                continue;
            }
            assert_eq!(fs::read_to_string(world.out("a").join("o")).unwrap(), says);
            assert!(!is_left, "{side:?}, {way}");
        }
    }
    fs::remove_file(input).unwrap();
}

/// Whoever becomes another user reaches that user's processes: it takes a name space where they are not, or a word.
#[test]
fn root_becomes_others_where_their_processes_are_out_of_reach() {
    let mut has_user_namespaces = Command::new("unshare");
    if !is_root() || !has_user_namespaces.args(["-U", "true"]).status().unwrap().success() {
        return println!("not run: no root, or no user name spaces");
    }
    let script = "a::touch f; chown 65533:65533 f; stat -c %u:%g f > o; rm f
setpriv --reuid=65533 --regid=65533 --clear-groups id -u >> o || echo nobody >> o";
    let check = |way: &str, more: &str, who: &str| {
        let world = World::of_commands(&[script]);
        let kind = "kind = \"command\"\n";
        world.write("p.toml", &world.read("p.toml").replace(kind, &format!("{kind}{more}")));
        let run = ended(world.command(&["run", "p.toml", "--json"]).env("SMELT_CONFINE", way));
        let report: Value = serde_json::from_str(&run.stdout).unwrap();
        if report["stages"][0]["attempts"][0]["confined_by"] != way {
            return println!("not run: this machine has no {way}");
        }
        let said = fs::read_to_string(world.out("a").join("o")).unwrap();
        assert_eq!(said, format!("65533:65533\n{who}\n"), "{way}, {more}: {}", run.stderr);
    };
    check("landlock", "", "65533");
    check("mounts", "", "65533");
    check("landlock", "capabilities = [\"sys-nice\"]\n", "65533");
    check("mounts", "capabilities = [\"sys-nice\"]\n", "nobody");
    check("mounts", "capabilities = [\"setuid\", \"setgid\"]\n", "65533");
}

/// Where smelt is the first process of a container, its group is one of the outside.
#[test]
fn a_stage_has_no_terminal_where_the_group_of_smelt_has_no_number() {
    let ask = "a::if (: < /dev/tty) 2> /dev/null; then echo terminal > o; else echo none > o; fi";
    let world = World::of_commands(&[ask]);
    let inside = |program: &[&str]| {
        let mut python = Command::new(PYTHON);
        world.prepare(&mut python);
        python.args(["-c", TERMINAL, "/usr/bin/unshare", "--pid", "--fork", "--mount-proc"]);
        python.args(if is_root() { &[][..] } else { &["--user", "--map-root-user"] });
        ended(python.args(program))
    };
    let terminal = inside(&["sh", "-c", ": < /dev/tty && ps -o pgid= -p 1"]);
    if terminal.code != Some(0) {
        return say(&format!("not run: {}", terminal.stderr));
    }
    assert_eq!(terminal.stdout.trim(), "0");
    let run = inside(&[env!("CARGO_BIN_EXE_smelt"), "run", "p.toml"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(fs::read_to_string(world.out("a").join("o")).unwrap(), "none\n");
}
