//! A strict stage sees its inputs, its tools and the system, as root's and as a user's, by Landlock and by
//! mount name spaces.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};

use crate::world::side::{PYTHON, Side};
use crate::world::{Ended, World, commands, ended};
use serde_json::Value;

/// Each side and way that a machine may have.
const ALL: [(Side, &str); 4] = [
    (Side::Root, "landlock"),
    (Side::User, "landlock"),
    (Side::Root, "mounts"),
    (Side::User, "mounts"),
];

/// A folder with an input that links out of itself, a tool and what is nobody's business.  `script` is that of
/// a strict stage behind another.
fn world(side: Side, script: &str, more: &str) -> World {
    let world = World::new("");
    let text = commands(&["made::echo made > o", &format!("a:made in:{script}")]);
    let (head, tail) = text.split_at(text.find("[stage.a]").unwrap());
    let kind = "kind = \"command\"\n";
    let tail = tail.replace(kind, &format!("{kind}strict = true\n{more}"));
    let tail = tail.replace("\"in\"", "\"path:in\"");
    world.write("p.toml", &format!("{head}{tail}"));
    fs::create_dir(world.path("in")).unwrap();
    world.write("blob", "linked\n");
    symlink("../blob", world.path("in/link")).unwrap();
    world.write("secret", "not yours\n");
    world.write("tool.sh", "#!/bin/sh\necho by the tool\n");
    fs::set_permissions(world.path("tool.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    for name in ["", "p.toml", "in", "blob", "secret", "tool.sh"] {
        side.give(&world.path(name));
    }
    world
}

/// The strict stage of a run's report.  `None` where this machine cannot hold it so.
fn run(world: &World, (side, way): (Side, &str)) -> Option<(Value, String)> {
    let mut smelt = world.command(&["run", "p.toml", "--json"]);
    side.start(smelt.env("SMELT_CONFINE", way));
    let Ended { stdout, stderr, .. } = ended(&mut smelt);
    let report: Value = serde_json::from_str(&stdout).unwrap_or_default();
    if report["stages"][0]["attempts"][0]["writes"] == "unwatched" {
        println!("not run: this machine has no {way} for {side:?}");
        return None;
    }
    Some((report["stages"][1].clone(), stderr))
}

#[test]
fn what_is_declared_is_seen() {
    for case @ (side, way) in ALL.into_iter().filter(|(side, _)| side.is_here()) {
        let script = "set -- $SMELT_INPUTS; cat $1/o $2/link > o; WORLD/tool.sh >> o; ls /usr /dev > /dev/null; \
            tr '\\0' '\\n' < $SMELT_INPUTS_FILE | wc -l >> o; echo x > $TMPDIR/t; cat $TMPDIR/t >> o; \
            PYTHON -c 'import socket, json; socket.socketpair(); print(len(open(\"/proc/self/stat\").read()) > 9)' >> o; \
            head -c 1 /dev/zero > /dev/null";
        let world = world(side, "", "");
        let here = world.path("").display().to_string();
        let script = script.replace("WORLD/", &here).replace("PYTHON", PYTHON);
        let text = world.read("p.toml").replace("''''''", &format!("'''{script}'''"));
        world.write("p.toml", &text);
        let Some((stage, said)) = run(&world, case) else { continue };
        assert_eq!(stage["status"], "sealed", "{case:?}: {stage} {said}");
        let attempt = &stage["attempts"][0];
        let network = if (side, way) == (Side::User, "landlock") { "filter" } else { "name-space" };
        assert_eq!(attempt["network"], network, "{case:?}");
        let out = fs::read_to_string(world.out("a").join("o")).unwrap();
        assert_eq!(out, "made\nlinked\nby the tool\n2\nx\nTrue\n", "{case:?}");
        let told = world.smelt(&["report"]).stdout;
        assert!(told.contains("Strict ones read what they declare and had no network"), "{told}");
    }
}

#[test]
fn what_is_not_declared_is_refused_and_named() {
    for case in ALL.into_iter().filter(|(side, _)| side.is_here()) {
        for hidden in ["secret", "cache/ac.log", "p.toml"] {
            let world = world(case.0, "", "");
            let path = world.path(hidden);
            let script = format!("'''cat {} > o'''", path.display());
            world.write("p.toml", &world.read("p.toml").replace("''''''", &script));
            let Some((stage, said)) = run(&world, case) else { continue };
            assert_eq!(stage["class"], "undeclared-read", "{case:?}: {stage} {said}");
            let message = stage["message"].as_str().unwrap();
            assert!(message.contains(path.to_str().unwrap()), "{case:?}: {message}");
        }
    }
}

/// The kernel tells the program alone, but what it was asked for can be read.
#[test]
fn what_is_refused_in_silence_is_named_where_arguments_do() {
    for case in ALL.into_iter().filter(|(side, _)| side.is_here()) {
        for (exit, class) in [("", "tool-rejected"), ("; rm o", "output-missing")] {
            let world = world(case.0, "", "");
            let path = world.path("secret").display().to_string();
            let go_on = if exit.is_empty() { "" } else { "set +e; " };
            let script = format!("'''{go_on}cat {path} > o 2> /dev/null{exit}'''");
            world.write("p.toml", &world.read("p.toml").replace("''''''", &script));
            let Some((stage, said)) = run(&world, case) else { continue };
            assert_eq!(stage["class"], class, "{case:?}: {stage} {said}");
            let message = stage["message"].as_str().unwrap();
            let words = format!("its arguments name {path}, which it does not declare");
            assert!(message.contains(&words), "{case:?}: {message}");
        }
    }
}

/// Neither by what lies above it, nor by other processes, nor by what is under a mount.
#[test]
fn there_is_no_way_around() {
    let script = "for path in /proc/$PPID/root /proc/$PPID/cwd /proc/1/root ''; do \
        cat $path/SECRET > leaked 2> /dev/null && echo $path >> o; done; \
        ls WORLD > /dev/null 2>&1 && echo listed >> o; \
        unshare -Ur sh -c 'umount -l /tmp; umount -l /work; cat SECRET' > leaked 2> /dev/null && echo name space >> o; \
        ln -s SECRET l; cat l 2> /dev/null && echo link >> o; rm -f l leaked; echo none >> o";
    for case in ALL.into_iter().filter(|(side, _)| side.is_here()) {
        let world = world(case.0, "", "");
        let (secret, here) = (world.path("secret"), world.path(""));
        // A folder that holds what may be seen can be listed in a name space: it is another.
        let here = if case.1 == "mounts" { "/nowhere".into() } else { here };
        let script = script.replace("SECRET", secret.to_str().unwrap());
        let script = script.replace("WORLD", here.to_str().unwrap());
        world.write("p.toml", &world.read("p.toml").replace("''''''", &format!("'''{script}'''")));
        let Some((stage, said)) = run(&world, case) else { continue };
        assert_eq!(stage["status"], "sealed", "{case:?}: {stage} {said}");
        let out = fs::read_to_string(world.out("a").join("o")).unwrap();
        assert_eq!(out, "none\n", "{case:?}");
    }
}

/// What others keep in the machine's shared memory is not to be seen, where it does not name it; what it makes there itself is its own.
#[test]
fn shared_memory_is_none_of_others() {
    let left = format!("smelt-strict-{}", std::process::id());
    let path = std::path::Path::new("/dev/shm").join(&left);
    fs::write(&path, "not yours\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    let script = format!(
        "(cd /dev/shm; cat {left}) > /dev/null 2>&1 && echo seen > o || echo no > o; \
         (cd /dev/shm; echo x > {left}) 2> /dev/null || true"
    );
    for case in ALL.into_iter().filter(|(side, _)| side.is_here()) {
        let world = world(case.0, &script, "");
        let Some((stage, said)) = run(&world, case) else { continue };
        assert_eq!(stage["status"], "sealed", "{case:?}: {stage} {said}");
        assert_eq!(fs::read_to_string(world.out("a").join("o")).unwrap(), "no\n", "{case:?}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "not yours\n", "{case:?}");
    }
    fs::remove_file(path).unwrap();
}

#[test]
fn the_network_is_declared() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let script = format!(
        "{PYTHON} -c 'import socket; socket.create_connection((\"127.0.0.1\", {port}))' 2> said \
         && echo yes > o || echo no > o; rm said"
    );
    for case in ALL.into_iter().filter(|(side, _)| side.is_here()) {
        for (more, answer) in [("", "no\n"), ("network = true\n", "yes\n")] {
            let world = world(case.0, &script, more);
            let Some((stage, said)) = run(&world, case) else { continue };
            assert_eq!(stage["status"], "sealed", "{case:?}: {stage} {said}");
            assert_eq!(fs::read_to_string(world.out("a").join("o")).unwrap(), answer, "{case:?}");
        }
    }
}

/// Sockets that no network name space holds: those that have a name in the file system, and those between machines and
/// their hosts.  Where it may have sockets at all, those of its own do.
#[test]
fn other_sockets_are_out_of_reach() {
    let script = "python - > o <<'END'
import socket
def tried(what):
    try:
        return what() or 'yes'
    except OSError as error:
        return type(error).__name__
def outside():
    socket.socket(socket.AF_UNIX).connect('WORLD/socket')
def between():
    socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).settimeout(1)
def own():
    server = socket.socket(socket.AF_UNIX)
    server.bind('own')
    server.listen()
    socket.socket(socket.AF_UNIX).connect('own')
print(tried(outside), tried(between), tried(own), tried(lambda: socket.socketpair() and None))
END
rm -f own";
    for case in ALL.into_iter().filter(|(side, _)| side.is_here()) {
        let world = world(case.0, "", "");
        let _listens = std::os::unix::net::UnixListener::bind(world.path("socket")).unwrap();
        fs::set_permissions(world.path("socket"), fs::Permissions::from_mode(0o777)).unwrap();
        let script = script.replace("python", PYTHON);
        let script = script.replace("WORLD/", &world.path("").display().to_string());
        let text = world.read("p.toml").replace("''''''", &format!("'''{script}'''"));
        world.write("p.toml", &text);
        let Some((stage, said)) = run(&world, case) else { continue };
        assert_eq!(stage["status"], "sealed", "{case:?}: {stage} {said}");
        let out = fs::read_to_string(world.out("a").join("o")).unwrap();
        let expect = match case {
            // Nothing covers what lies elsewhere, so there are none.
            (Side::User, "landlock") => "PermissionError PermissionError PermissionError yes\n",
            _ => "FileNotFoundError PermissionError yes yes\n",
        };
        assert_eq!(out, expect, "{case:?}");
    }
}

#[test]
fn what_cannot_be_held_is_not_started() {
    let world = world(Side::Root, "echo x > o", "");
    let mut smelt = world.command(&["run", "p.toml", "--json"]);
    let ended = ended(smelt.env("SMELT_CONFINE", "none"));
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(report["stages"][1]["class"], "spawn-failed", "{report}");
    let plan =
        crate::world::ended(world.command(&["plan", "p.toml"]).env("SMELT_CONFINE", "none")).stdout;
    assert!(plan.contains("strict stages cannot be started here"), "{plan}");
}

/// A pipeline says it for all its stages, and what was made by looser ones is not taken for theirs.
#[test]
fn strict_results_are_their_own() {
    let world = World::of_commands(&["a::echo a > o", "b::echo b > o"]);
    let keys = |world: &World| {
        let plan: Value =
            serde_json::from_str(&world.smelt(&["plan", "p.toml", "--json"]).stdout).unwrap();
        [0, 1].map(|at| plan["stages"][at]["key"].as_str().unwrap().to_owned())
    };
    let text = world.read("p.toml");
    let loose = keys(&world);
    world.write("p.toml", &text.replace("smelt = 1\n", "smelt = 1\nstrict = false\n"));
    assert_eq!(keys(&world), loose);
    let strict = text.replace("smelt = 1\n", "smelt = 1\nstrict = true\n");
    let strict = strict.replacen("kind = \"command\"\n", "kind = \"command\"\nstrict = false\n", 1);
    world.write("p.toml", &strict);
    let of_pipeline = keys(&world);
    assert!(of_pipeline[0] == loose[0] && of_pipeline[1] != loose[1]);
    let explained = world.smelt(&["plan", "p.toml"]).stdout;
    assert!(explained.contains("strict stages"), "{explained}");
}
