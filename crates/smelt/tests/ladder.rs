//! What a stage that failed is tried with: every rung of the ladder on the real machine.  Swap files and
//! other boots need root, as CI has it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::world::{Ended, World, ended, statuses, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// A stage `s` that writes a line into `runs` when it begins, then does what `script` says.
fn stage(script: &str, retry: &str) -> String {
    format!(
        "smelt = 1\nname = \"test\"\n[stage.s]\nkind = \"command\"\nwrites = [\".\"]\noutputs = [\"o\"]\n\
         argv = [\"sh\", \"-ec\", '''echo >> $W/runs; {script}''']\nenv = {{ W = \"FOLDER\" }}\n\
         [stage.s.retry]\n{retry}\n"
    )
}

fn world(script: &str, retry: &str) -> World {
    let world = World::new("");
    let folder = world.path("").display().to_string();
    world.write("p.toml", &stage(script, retry).replace("FOLDER", folder.trim_end_matches('/')));
    world
}

/// The device has no memory until `cured` is there.
const UNTIL_CURED: &str = "if [ ! -e $W/cured ]; then \
    echo 'CUDA error 2 for 622329856-byte allocation'; exit 1; fi; echo ok > o";

fn attempts(report: &Value) -> &Vec<Value> {
    report["stages"][0]["attempts"].as_array().unwrap()
}

/// `rung done` of each rung of an attempt.
fn rungs(attempt: &Value) -> Vec<String> {
    let rungs = attempt["rungs"].as_array().unwrap().iter();
    rungs.map(|rung| format!("{} {}", rung["rung"].as_str().unwrap(), rung["done"])).collect()
}

/// The swap files of this world that are on.
fn swaps(world: &World) -> Vec<String> {
    let table = fs::read_to_string("/proc/swaps").unwrap();
    let folder = world.path("").display().to_string();
    table.lines().filter(|line| line.starts_with(&folder)).map(str::to_owned).collect()
}

fn left_in(world: &World, dir: &str) -> Vec<String> {
    let entries = fs::read_dir(world.path(dir)).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_warm_up_is_really_built_and_cures() {
    let world = world(UNTIL_CURED, "warm-up = \"warm.toml#small\"");
    let folder = world.path("").display().to_string();
    let warm = format!("touch {folder}/cured; echo w >> {folder}/warmed; echo w > o");
    world.write("warm.toml", &crate::world::writing(&[&format!("small::{warm}")]));
    let report = world.run(&[]);
    let attempts = attempts(&report);
    assert_eq!(attempts.len(), 2);
    assert_eq!(attempts[0]["class"], "device-memory");
    assert_eq!(attempts[0]["signature"], "cuda-allocation");
    assert_eq!(attempts[0]["refused_bytes"], 622_329_856);
    assert_eq!(rungs(&attempts[1]), ["warm-up true"], "{}", attempts[1]["rungs"]);
    assert_eq!(attempts[1]["changed"], "warm-up warm.toml#small");
    for moment in ["before", "prepared", "after"] {
        let available = attempts[1][moment]["mem_available_bytes"].as_u64();
        assert!(available.is_some_and(|bytes| bytes > 0), "{moment}");
    }
    // The store has what the warm-up made; it is built again all the same.
    fs::remove_file(world.path("cured")).unwrap();
    world.run(&["--force", "s"]);
    assert_eq!(world.read("warmed"), "w\nw\n");
    let last: Value = serde_json::from_str(&world.smelt(&["report", "--json"]).stdout).unwrap();
    assert_eq!(last["pipeline"], "test", "a warm-up is nobody's last run");
    world.assert_nothing_runs();
}

#[test]
fn whether_the_warm_up_helped_has_an_answer_in_numbers() {
    let world = world(
        UNTIL_CURED,
        "attempts = 3\nwarm-up = \"warm.toml#small\"\nescalate = [{}, { env = { W = \"FOLDER\" } }]",
    );
    let folder = world.path("").display().to_string();
    let warm = format!("small::test ! -e {folder}/helps || touch {folder}/cured; echo w > o");
    world.write("warm.toml", &crate::world::writing(&[&warm]));
    // Twice it is no use, once it helps.
    for _ in 0..2 {
        assert_eq!(world.smelt(&["run", "p.toml"]).code, Some(1));
    }
    world.write("helps", "");
    world.run(&[]);
    let text = world.smelt(&["report", "--arms"]).stdout;
    assert!(text.contains("device-memory"), "{text}");
    assert!(text.contains("1 of 3 (6 to 79 %)"), "{text}");
    let arms: Value =
        serde_json::from_str(&world.smelt(&["report", "--arms", "--json"]).stdout).unwrap();
    let of = |rung: &str| {
        let mut rows = arms["arms"].as_array().unwrap().iter();
        let row = rows.find(|row| row["rung"] == rung).unwrap();
        ["with", "without"].map(|side| (row[side]["sealed"].clone(), row[side]["tried"].clone()))
    };
    let pair = |sealed: u32, tried: u32| (Value::from(sealed), Value::from(tried));
    assert_eq!(of("warm-up"), [pair(1, 3), pair(0, 2)]);
    assert_eq!(of("escalate"), [pair(0, 2), pair(1, 3)]);
}

#[test]
fn a_warm_up_that_fails_costs_the_retry_nothing() {
    let script =
        "test $(wc -l < $W/runs) -gt 1 || { echo 'CUDA out of memory'; exit 1; }; echo ok > o";
    let world = world(script, "warm-up = \"warm.toml#small\"");
    // Its own ladder is not climbed: that could go round in circles.
    let warm = "smelt = 1\nname = \"w\"\n[stage.small]\nkind = \"command\"\noutputs = [\"o\"]\n\
                argv = [\"sh\", \"-c\", \"echo CUDA out of memory; exit 1\"]\n\
                [stage.small.retry]\nattempts = 5\nwarm-up = \"warm.toml#small\"\n";
    world.write("warm.toml", warm);
    let report = world.run(&[]);
    assert_eq!(rungs(&attempts(&report)[1]), ["warm-up false"]);
    let runs: Value = serde_json::from_str(&world.smelt(&["runs", "--json"]).stdout).unwrap();
    assert_eq!(runs["runs"].as_array().unwrap().len(), 2, "one of each pipeline");
}

#[test]
fn a_warm_up_that_cannot_be_is_refused_before_anything_runs() {
    let world = world("echo ok > o", "warm-up = \"warm.toml#smal\"");
    let refused = world.smelt(&["run", "p.toml"]);
    assert_eq!(refused.code, Some(3), "{}", refused.stderr);
    assert!(refused.stderr.contains("cannot read the pipeline warm.toml"), "{}", refused.stderr);
    world.write("warm.toml", &crate::world::commands(&["small::echo w > o"]));
    let refused = world.smelt(&["run", "p.toml"]);
    assert_eq!(refused.code, Some(3));
    assert!(refused.stderr.contains("no stage \"smal\" in warm.toml"), "{}", refused.stderr);
    assert!(!world.path("runs").exists());
}

#[test]
fn a_warm_up_is_stopped_with_the_run() {
    let world = world(UNTIL_CURED, "warm-up = \"warm.toml#small\"");
    let folder = world.path("").display().to_string();
    world.write(
        "warm.toml",
        &crate::world::writing(&[&format!("small::touch {folder}/warming; sleep 600")]),
    );
    for (stop, code) in [(Signal::SIGINT, Some(6)), (Signal::SIGKILL, None)] {
        let _ = fs::remove_file(world.path("warming"));
        let mut smelt = world.start(&["run", "p.toml"]);
        world.wait_for("warming");
        kill(Pid::from_raw(smelt.id().cast_signed()), stop).unwrap();
        assert_eq!(smelt.wait().unwrap().code(), code);
        world.assert_nothing_runs();
    }
    assert_eq!(world.read("runs").lines().count(), 2, "the stage itself was not tried again");
}

/// Swap while the retry runs: the stage sees its file, and afterwards there is none.
#[test]
fn temporary_swap_is_on_for_the_retry_alone() {
    let script = "grep -c \"^$W/cache/swap/smelt-.*swap\" /proc/swaps > o && exit 0; \
                  echo 'CUDA out of memory'; exit 1";
    let world = world(script, "temporary-swap = \"16MiB\"");
    let report = world.run(&[]);
    let attempts = attempts(&report);
    assert_eq!(rungs(&attempts[1]), ["temporary-swap true"], "{}", attempts[1]["rungs"]);
    assert_eq!(fs::read_to_string(world.out("s").join("o")).unwrap(), "1\n");
    let free = |moment: &str| attempts[1][moment]["swap_free_bytes"].as_u64().unwrap();
    assert!(free("prepared") >= free("before") + (15 << 20), "{}", attempts[1]);
    assert_eq!(swaps(&world), [""; 0]);
    assert_eq!(left_in(&world, "cache/swap"), [""; 0]);
}

#[test]
fn temporary_swap_of_a_killed_run_is_removed_by_the_next() {
    let script = "test $(wc -l < $W/runs) -gt 1 || { echo 'CUDA out of memory'; exit 1; }; \
                  touch $W/retried; while [ -e $W/hang ]; do sleep 0.02; done; echo ok > o";
    let world = world(script, "temporary-swap = { size = \"16MiB\", dir = \"there\" }");
    fs::create_dir(world.path("there")).unwrap();
    world.write("hang", "");
    let mut smelt = world.start(&["run", "p.toml"]);
    world.wait_for("retried");
    let on = swaps(&world);
    assert!(on.len() == 1 && on[0].contains("/there/smelt-"), "{on:?}");
    kill(Pid::from_raw(smelt.id().cast_signed()), Signal::SIGKILL).unwrap();
    smelt.wait().unwrap();
    assert_eq!(swaps(&world).len(), 1, "the test needs something left on");
    fs::remove_file(world.path("hang")).unwrap();
    let next = world.smelt(&["run", "p.toml"]);
    assert_eq!(next.code, Some(0), "{}", next.stderr);
    assert!(next.stderr.contains("removed the swap file"), "{}", next.stderr);
    assert!(next.stderr.contains("goes on with attempt 2"), "{}", next.stderr);
    assert_eq!(swaps(&world), [""; 0]);
    assert_eq!((left_in(&world, "there"), left_in(&world, "cache/swap")), (vec![], vec![]));
}

#[test]
fn temporary_swap_is_refused_where_it_is_no_use() {
    let script =
        "test $(wc -l < $W/runs) -gt 1 || { echo 'CUDA out of memory'; exit 1; }; echo ok > o";
    for (retry, words) in [
        ("temporary-swap = { size = \"16MiB\", dir = \"/dev/shm\" }", "tmpfs is memory itself"),
        ("temporary-swap = \"900TiB\"", "ask for less or free some"),
        ("temporary-swap = { size = \"16MiB\", dir = \"nowhere\" }", "cannot look at"),
    ] {
        let world = world(script, retry);
        let report = world.run(&[]);
        let rung = &attempts(&report)[1]["rungs"][0];
        assert_eq!(rung["done"], false);
        assert!(rung["what"].as_str().unwrap().contains(words), "{rung}");
        assert_eq!(left_in(&world, "cache/swap"), [""; 0]);
    }
}

#[test]
fn memory_that_is_there_is_not_waited_for() {
    let script =
        "test $(wc -l < $W/runs) -gt 1 || { echo 'CUDA out of memory'; exit 1; }; echo ok > o";
    let world = world(script, "settle = \"60s\"");
    let report = world.run(&[]);
    let attempt = &attempts(&report)[1];
    assert_eq!(rungs(attempt), ["settle true"]);
    assert!(attempt["rungs"][0]["wall_s"].as_f64().unwrap() < 30.0);
    assert!(attempt["wall_s"].as_f64().unwrap() < 30.0, "waiting is not running");
}

#[test]
fn only_what_a_change_can_cure_is_tried_again() {
    let ladder = "attempts = 4\nsettle = \"1s\"\ntemporary-swap = \"16MiB\"";
    for (script, class) in [
        ("echo no; exit 1", "tool-rejected"),
        ("echo 'No importer registered for op: X'; exit 1", "tool-rejected"),
        ("true", "output-missing"),
    ] {
        let world = world(script, ladder);
        let ended = world.smelt(&["run", "p.toml", "--json"]);
        let report: Value = serde_json::from_str(&ended.stdout).unwrap();
        let classes: Vec<_> = attempts(&report).iter().map(|attempt| &attempt["class"]).collect();
        assert_eq!(classes, [class], "{script}");
    }
}

#[test]
fn users_teach_it_the_words_of_their_tools() {
    let mine = "[[signature]]\nid = \"mine\"\npattern = 'arena of (\\d+) is full'\nclass = \"no-tactic\"\n\
                size = 1\nmeans = \"m\"\nremedy = \"grow it\"\n";
    let world = world("echo arena of 2097152 is full; echo bye; exit 1", "attempts = 1");
    world.write("signatures.toml", mine);
    let beside = world.smelt(&["run", "p.toml"]);
    let words = "arena of 2097152 is full (exit 1): m (2 MiB, 2097152 bytes); to try: grow it";
    assert!(beside.stderr.contains(words), "{}", beside.stderr);
    fs::rename(world.path("signatures.toml"), world.path("other.toml")).unwrap();
    let with = |file: &str| ended(world.command(&["run", "p.toml"]).env("SMELT_SIGNATURES", file));
    assert!(with("other.toml").stderr.contains(words));
    assert_eq!(with("nowhere.toml").code, Some(3));
    world.write("bad.toml", "[[signature]]\nid = 3\n");
    let bad = with("bad.toml");
    assert_eq!(bad.code, Some(3));
    assert!(bad.stderr.contains("bad.toml: line 2"), "{}", bad.stderr);
}

#[test]
fn what_a_program_left_half_done_is_not_sealed() {
    let check = |script: &str, validate: &str, words: Option<&str>| {
        let world = World::new(&format!(
            "smelt = 1\nname = \"t\"\n[stage.s]\nkind = \"command\"\noutputs = [\"o\"]\n\
             argv = [\"sh\", \"-ec\", \"\"\"{script}\"\"\"]\nvalidate = {{ o = \"{validate}\" }}\n"
        ));
        let ended = world.smelt(&["run", "p.toml", "--json"]);
        assert_eq!(ended.code, Some(i32::from(words.is_some())), "{}", ended.stderr);
        assert!(words.is_none_or(|words| ended.stderr.contains(words)), "{}", ended.stderr);
        if words.is_some() {
            let report: Value = serde_json::from_str(&ended.stdout).unwrap();
            assert_eq!(attempts(&report)[0]["class"], "output-invalid");
        }
    };
    // ir_version 8, and a graph of five bytes; then one cut short.
    let whole = "printf '\\\\010\\\\010:\\\\005graph' > o";
    let cut = "printf '\\\\010\\\\010:\\\\005gra' > o";
    check(whole, "onnx", None);
    check(whole, "onnx >= 1KiB", Some("it has 9 bytes, and must have 1024 at least"));
    check(cut, "onnx", Some("\"o\" is not whole: it ends before its own header says"));
    check(whole, "gguf", Some("does not begin as GGUF"));
    check("echo hello > o", "any >= 1KiB", Some("must have 1024 at least"));
    check("echo hello > o", "any", None);
}

/// Runs smelt as if this were another boot: another file lies over the kernel's.
fn in_boot(world: &World, boot: &str, arguments: &[&str]) -> Command {
    world.write(boot, &format!("{boot}\n"));
    let script = "mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"";
    let mut command = Command::new("unshare");
    world.prepare(&mut command);
    command
        .args(["--mount", "sh", "-c", script])
        .arg(world.path(boot))
        .arg(env!("CARGO_BIN_EXE_smelt"))
        .args(arguments);
    command
}

/// Kills everything at once, as a brown-out does.
fn cut_off(world: &World, boot: &str) {
    let _ = fs::remove_file(world.path("running"));
    let mut smelt = in_boot(world, boot, &["run", "p.toml"]).spawn().unwrap();
    world.wait_for("running");
    // The journal is durable when the attempt has gone on for a while.
    let begun = || world.smelt(&["runs", "--json"]).stdout.contains("running");
    assert!(until(begun));
    std::thread::sleep(std::time::Duration::from_millis(700));
    let mut all = smelt_watch::Tree::new(smelt.id()).descendants();
    all.push(smelt.id());
    for pid in all {
        let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
    }
    smelt.wait().unwrap();
}

const HANGING: &str = "touch $W/running; while [ -e $W/hang ]; do sleep 0.02; done; echo ok > o";

#[test]
fn a_board_that_was_reset_is_told_of_and_the_ladder_goes_on() {
    let world = world(HANGING, "attempts = 3");
    world.write("hang", "");
    cut_off(&world, "boot-1");
    fs::remove_file(world.path("hang")).unwrap();
    let next = ended(&mut in_boot(&world, "boot-2", &["run", "p.toml", "--json"]));
    assert_eq!(next.code, Some(0), "{}", next.stderr);
    let words = "was cut off by a reset of the board while it was at s (attempt 1)";
    assert!(next.stderr.contains(words), "{}", next.stderr);
    let report: Value = serde_json::from_str(&next.stdout).unwrap();
    assert_eq!(attempts(&report)[0]["n"], 2, "the attempt that the board went down under counts");
    let runs: Value = serde_json::from_str(&world.smelt(&["runs", "--json"]).stdout).unwrap();
    let first = runs["runs"][1]["run"].as_str().unwrap().to_owned();
    let told: Value =
        serde_json::from_str(&world.smelt(&["report", &first, "--json"]).stdout).unwrap();
    assert_eq!(attempts(&told)[0]["class"], "board-reset");
}

#[test]
fn a_kill_of_smelt_counts_against_no_stage() {
    let world = world(HANGING, "attempts = 3");
    world.write("hang", "");
    cut_off(&world, "boot-1");
    fs::remove_file(world.path("hang")).unwrap();
    let next = ended(&mut in_boot(&world, "boot-1", &["run", "p.toml", "--json"]));
    let report: Value = serde_json::from_str(&next.stdout).unwrap();
    assert_eq!(attempts(&report)[0]["n"], 1);
    assert!(!next.stderr.contains("reset"), "{}", next.stderr);
}

#[test]
fn after_a_boot_nothing_goes_on_for_ever() {
    let world = world(HANGING, "attempts = 2");
    world.write("hang", "");
    let resume = |boot: &str, more: &[&str]| -> Ended {
        ended(&mut in_boot(&world, boot, &[&["resume"], more].concat()))
    };
    cut_off(&world, "boot-1");
    let list = resume("boot-2", &["--list"]);
    assert!(list.stdout.contains("was cut off by a reset of the board"), "{}", list.stdout);
    cut_off(&world, "boot-2");
    let third = resume("boot-3", &["--after-boot"]);
    assert_eq!(third.code, Some(1), "{}", third.stderr);
    assert!(third.stderr.contains("its attempts (2) are used up"), "{}", third.stderr);
    let fourth = resume("boot-4", &["--after-boot"]);
    assert_eq!(fourth.code, Some(0), "{}", fourth.stderr);
    assert!(fourth.stderr.contains("no run in this store waits"), "{}", fourth.stderr);
    // A person who starts it again gets a new ladder.
    fs::remove_file(world.path("hang")).unwrap();
    assert_eq!(statuses(&world.run(&[])), ["s sealed"]);
}

/// A `systemctl` that writes down what it was told.
fn systemctl(world: &World) -> String {
    let bin = world.path("bin");
    fs::create_dir_all(&bin).unwrap();
    let log = world.path("systemctl.log");
    let text = format!("#!/bin/sh\necho \"$@\" >> {}\n", log.display());
    fs::write(bin.join("systemctl"), text).unwrap();
    fs::set_permissions(bin.join("systemctl"), fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:{}", bin.display(), std::env::var("PATH").unwrap())
}

#[test]
fn a_reboot_is_left_to_systemd_and_the_run_goes_on_after_it() {
    let world = world(UNTIL_CURED, "attempts = 2\nreboot = true");
    let path = systemctl(&world);
    let first = ended(in_boot(&world, "boot-1", &["run", "p.toml", "--json"]).env("PATH", &path));
    assert_eq!(first.code, Some(6), "{}", first.stderr);
    let report: Value = serde_json::from_str(&first.stdout).unwrap();
    assert_eq!((&report["status"], attempts(&report).len()), (&"rebooting".into(), 1));
    let log = world.read("systemctl.log");
    let lines: Vec<&str> = log.lines().collect();
    let [enable, "reboot"] = lines[..] else { panic!("{lines:?}") };
    let unit = enable.strip_prefix("enable ").unwrap().to_owned();
    let text = fs::read_to_string(&unit).unwrap();
    assert!(text.contains("resume --after-boot") && text.contains("WantedBy="), "{text}");

    world.write("cured", "");
    let resume = ["resume", "--after-boot"];
    let second = ended(in_boot(&world, "boot-2", &resume).env("PATH", &path));
    assert_eq!(second.code, Some(0), "{}", second.stderr);
    let last: Value = serde_json::from_str(&world.smelt(&["report", "--json"]).stdout).unwrap();
    let attempt = &attempts(&last)[0];
    assert_eq!((&attempt["n"], rungs(attempt)), (&2.into(), vec!["reboot true".to_owned()]));
    assert!(!fs::exists(&unit).unwrap(), "the unit is forgotten");
    assert!(world.read("systemctl.log").contains("disable smelt-resume-"));
}

#[test]
fn without_systemd_the_user_is_told_what_to_do() {
    let world = world(UNTIL_CURED, "attempts = 2\nreboot = true");
    let bin = world.path("bin");
    fs::create_dir(&bin).unwrap();
    fs::write(bin.join("systemctl"), "#!/bin/sh\necho no systemd here >&2; exit 1\n").unwrap();
    fs::set_permissions(bin.join("systemctl"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let first = ended(world.command(&["run", "p.toml"]).env("PATH", path));
    assert_eq!(first.code, Some(6));
    assert!(first.stderr.contains("no systemd here"), "{}", first.stderr);
    assert!(first.stderr.contains("smelt resume --after-boot"), "{}", first.stderr);
    // By hand, and without a reboot: that is said, and the attempt is made.
    world.write("cured", "");
    assert_eq!(world.smelt(&["resume", "--after-boot"]).code, Some(0));
    let last: Value = serde_json::from_str(&world.smelt(&["report", "--json"]).stdout).unwrap();
    assert_eq!(rungs(&attempts(&last)[0]), ["reboot false"]);
}

/// An experiment tells a warm-up that helps from nothing, tries each arm as often as was asked, and leaves nothing to go on with.
#[test]
fn arms_are_compared_by_trials_in_turns() {
    let script = format!("{UNTIL_CURED}; rm $W/cured");
    let world = world(&script, "warm-up = \"warm.toml#small\"");
    let folder = world.path("").display().to_string();
    let warm = format!("touch {folder}/cured; echo w > o");
    world.write("warm.toml", &crate::world::writing(&[&format!("small::{warm}")]));
    let bench = |more: &[&str]| {
        world.smelt(&[&["bench", "arms", "p.toml#s", "--runs", "5", "--seed", "7"], more].concat())
    };
    let ended = bench(&["--arms", "cold,warm-up", "--json"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let found: Value = serde_json::from_str(&ended.stdout).unwrap();
    let [cold, warm] = [0, 1].map(|arm| &found["arms"][arm]);
    assert_eq!((&cold["trials"]["tried"], &cold["trials"]["sealed"]), (&5.into(), &0.into()));
    assert_eq!(cold["failures"], serde_json::json!({ "device-memory": 5 }));
    assert_eq!((&warm["trials"]["tried"], &warm["trials"]["sealed"]), (&5.into(), &5.into()));
    let order: Vec<_> =
        found["trials"].as_array().unwrap().iter().map(|trial| &trial["arm"]).collect();
    assert_eq!(order.len(), 10);
    assert!(order.chunks(2).any(|turn| turn[0] == 1) && order.chunks(2).any(|turn| turn[0] == 0));
    // Each trial was one attempt, and a run of its own.
    assert_eq!(world.read("runs").lines().count(), 10);
    assert!(!world.smelt(&["resume"]).stderr.contains("goes on"), "nobody goes on with a trial");

    let table = bench(&["--arms", "cold,warm-up"]).stdout;
    assert!(table.contains("0 of 5") && table.ends_with("warm-up helps\n"), "{table}");
    let alike = world.smelt(&["bench", "arms", "p.toml#s", "--runs", "1"]);
    match crate::world::side::is_root() {
        true => assert!(alike.stdout.contains("not told apart"), "{}", alike.stdout),
        // Nobody else may drop caches, and a trial without that is none of its arm.
        false => assert!(alike.stderr.contains("drop-caches was not done"), "{}", alike.stderr),
    }
    for (arms, words) in
        [("cold,settle", "stage s says no settle"), ("cold,reboot", "one of settle, warm-up")]
    {
        let ended = bench(&["--arms", arms]);
        assert_ne!(ended.code, Some(0), "{arms}");
        assert!(ended.stderr.contains(words), "{arms}: {}", ended.stderr);
    }
    let missing = world.smelt(&["bench", "arms", "p.toml"]);
    assert!(missing.stderr.contains("PIPELINE#STAGE"), "{}", missing.stderr);
    world.assert_nothing_runs();
}
