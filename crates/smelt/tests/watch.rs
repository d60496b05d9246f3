//! What `smelt watch` shows: captured boards, a process until its end, a terminal.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::num::NonZero;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::world::{World, commands};
use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

#[test]
fn a_captured_board_is_shown() {
    let world = World::of_commands(&[]);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = root.join("../../tests/data/doctor/orin-nano-as-flashed");
    let root = root.to_str().unwrap();
    let text = world.smelt(&["watch", "--once", "--root", root]);
    assert_eq!((text.code, text.stderr.as_str()), (Some(0), ""));
    for part in ["Memory    ", "zram", "CMA       ", "NvMap     ", "Faults    "] {
        assert!(text.stdout.contains(part), "{part}: {}", text.stdout);
    }
    let json = world.smelt(&["watch", "--once", "--json", "--root", root]);
    let document: Value = serde_json::from_str(&json.stdout).unwrap();
    assert!(document["memory"]["cma_total_bytes"].as_u64() > Some(0));
    assert!(document["nvmap"][0]["bytes"].as_u64() > Some(0));
    assert_eq!(json.stdout.lines().count(), 1);
}

/// What a run shows to a person a program hears as lines: what happens, how far what runs is, the report last.
#[test]
fn a_run_tells_programs_what_happens() {
    let world = World::of_commands(&[]);
    let go = world.path("go").display().to_string();
    let first = format!("a: : echo '[1/4] packing'; cat {go}; echo a > o");
    world.write("p.toml", &commands(&[&first, "b:a:echo b > o"]));
    nix::unistd::mkfifo(&world.path("go"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut run = world.command(&["run", "p.toml", "--events"]);
    let mut run = run.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let lines = BufReader::new(run.stdout.take().unwrap()).lines();
    let mut events = lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let first = events.next().unwrap();
    assert_eq!((&first["event"], &first["detail"]["stage"]), (&json!("start"), &json!("a")));
    let says = |event: &Value| event["event"] == "running" && event["detail"]["done"] == 0.25;
    let running = events.find(says).unwrap();
    let detail = &running["detail"];
    assert_eq!((&detail["stage"], &detail["doing"]), (&json!("a"), &json!("packing")));
    assert!(detail["held_bytes"].is_u64() && detail["rss_bytes"].is_u64(), "{running}");
    assert_eq!(detail["run"]["stages"], 2, "{running}");
    assert_eq!(detail["run"]["stages_untimed"], 2, "nobody has timed them: {running}");
    assert!(detail["run"]["left_s"].is_null(), "{running}");
    std::fs::write(go, "").unwrap();
    let rest: Vec<Value> = events.collect();
    assert_eq!(run.wait().unwrap().code(), Some(0));
    let ended = rest.iter().filter(|event| event["event"] == "ended");
    let ended: Vec<&Value> = ended.map(|event| &event["detail"]["stage"]).collect();
    assert_eq!(ended, ["a", "b"]);
    let last = rest.last().unwrap();
    assert_eq!((&last["event"], &last["detail"]["status"]), (&json!("end"), &json!("ok")));
    // A program that reads the report alone finds it where the journal has it, too.
    let report = world.smelt(&["report", "--json"]).stdout;
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(last["detail"]["stages"], report["stages"]);
    let hits = world.smelt(&["run", "p.toml", "--events"]).stdout;
    let hits = hits.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let hits: Vec<Value> = hits.map(|event| event["event"].clone()).collect();
    assert_eq!(hits, ["hit", "hit", "end"]);
    assert_eq!(world.smelt(&["run", "p.toml", "--events", "--json"]).code, Some(2));
}

#[test]
fn nobody_to_watch_is_one_line() {
    let world = World::of_commands(&[]);
    for (flags, code, expect) in [
        (&["--pid", "99999999999"][..], 2, "99999999999"),
        (&["--pid", "4194305"], 1, "there is no process 4194305"),
        (&["--run", "no-such-run"], 1, "no run no-such-run builds anything now"),
        (&["--root", "/no/such"], 2, "no such directory"),
        (&["--interval", "0.01"], 2, "from 0.1"),
        (&["--interval", "NaN"], 2, "from 0.1"),
    ] {
        let ended = world.smelt(&[&["watch", "--once"], flags].concat());
        assert_eq!(ended.code, Some(code), "{flags:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(expect), "{flags:?}: {}", ended.stderr);
    }
}

#[test]
fn a_process_is_watched_until_it_ends() {
    let world = World::of_commands(&[]);
    // Bash holds 30 MB in a string, in a process below the one that is watched.
    let script = "bash -c 'x=$(head -c 30000000 /dev/zero | tr \"\\0\" x); read end'; true";
    let mut child = Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap();
    let pid = child.id().to_string();
    let flags = ["watch", "--json", "--interval", "0.1", "--pid", &pid];
    let mut watch = world.command(&flags).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let is_large = |line: String| {
        let reading: Value = serde_json::from_str(&line).unwrap();
        reading["watched"]["rss_bytes"].as_u64().unwrap() > 30_000_000
    };
    assert!(lines.any(|line| is_large(line.unwrap())), "it ended before it was large");
    drop(child.stdin.take());
    child.wait().unwrap();
    let rest = lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    if let Some(last) = rest.last() {
        assert!(last["watched"]["peak_rss_bytes"].as_u64().unwrap() > 30_000_000);
        assert!(last["rates"].is_object());
    }
    assert_eq!(watch.wait().unwrap().code(), Some(0));
}

#[test]
fn the_latest_run_is_watched() {
    let world = World::of_commands(&[]);
    let go = world.path("go");
    world.write("p.toml", &commands(&[&format!("a: : echo > o; cat {}", go.display())]));
    nix::unistd::mkfifo(&go, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut run = world.command(&["run", "p.toml"]).stderr(Stdio::null()).spawn().unwrap();
    let name = loop {
        let found = world.smelt(&["runs", "--json"]);
        let runs: Value = serde_json::from_str(&found.stdout).unwrap_or_default();
        let name = runs["runs"][0]["run"].as_str().map(str::to_owned);
        let watched = name.map(|name| (world.smelt(&["watch", "--once", "--run", &name]), name));
        if let Some((seen, name)) = watched
            && seen.code == Some(0)
            && seen.stdout.contains("Watched")
        {
            break name;
        }
        assert!(run.try_wait().unwrap().is_none(), "the run ended");
    };
    // Other tests' runs may be later ones.
    assert_eq!(world.smelt(&["watch", "--once", "--run", "latest"]).code, Some(0));
    let seen = world.smelt(&["watch", "--once", "--json", "--run", &name]);
    let reading: Value = serde_json::from_str(&seen.stdout).unwrap();
    assert_eq!(reading["watched"]["name"], format!("run {name}"));
    let flags = ["watch", "--interval", "0.1", "--run", &name];
    let mut watch = world.command(&flags).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains(&name));
    std::fs::write(go, "").unwrap();
    run.wait().unwrap();
    let last = lines.last().unwrap().unwrap();
    assert!(last.starts_with(&format!("run {name} has ended after ")), "{last}");
    assert_eq!(watch.wait().unwrap().code(), Some(0));
    assert_eq!(world.smelt(&["watch", "--once", "--run", &name]).code, Some(1));
}

/// A board's own tool in the world's folder; the `PATH` that has it.
fn board(world: &World) -> String {
    let tool = world.path("tegrastats");
    let line = "RAM 519/7607MB (lfb 61x4MB) GR3D_FREQ 45%@[1018] tj@49.3C VDD_IN 5971mW/5900mW";
    let script = format!("#!/bin/sh\necho $$ > pid\necho '{line}'\nexec sleep 1000\n");
    std::fs::write(&tool, script).unwrap();
    std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:{}", world.path("").display(), std::env::var("PATH").unwrap())
}

/// What it says while an attempt runs is in the report, and the tool ends with the run.
#[test]
fn an_attempts_report_has_what_the_board_took() {
    let world = World::of_commands(&["a::sleep 1; echo x > o"]);
    let path = board(&world);
    let output = world.command(&["run", "p.toml", "--json"]).env("PATH", path).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let attempt = &report["stages"][0]["attempts"][0];
    let figures = ["gpu_max_percent", "power_max_mw", "temperature_max_c"];
    assert_eq!(figures.map(|name| attempt[name].as_u64().unwrap()), [45, 5971, 49], "{report}");
    assert_eq!(attempt["methods"]["power_max_mw"], "tegrastats");
    let pid = world.read("pid").trim().to_owned();
    assert!(!pid.is_empty() && !Path::new("/proc").join(pid).exists());
}

/// The board's own tool is asked, and ended with us.
#[test]
fn a_jetsons_own_tool_is_asked() {
    let world = World::of_commands(&[]);
    let path = board(&world);
    let output = world.command(&["watch", "--once"]).env("PATH", path).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("GPU       45 % · 1018 MHz"), "{text}");
    assert!(text.contains("6.0 W · 49.3 °C"), "{text}");
    let pid = world.read("pid").trim().to_owned();
    assert!(!pid.is_empty() && !Path::new("/proc").join(pid).exists());
}

#[test]
fn a_terminal_sees_one_screen_and_gets_it_back() {
    let world = World::of_commands(&[]);
    // So low that not all processes fit, however few there are.
    let (rows, columns) = (10, 80);
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let pty = openpty(&size, None).unwrap();
    let mut watch = world
        .command(&["watch", "--interval", "0.1", "--top", "50"])
        .stdout(pty.slave)
        .spawn()
        .unwrap();
    let mut terminal = File::from(pty.master);
    let [high, wide] = [rows, columns].map(|n| NonZero::new(n).unwrap());
    let mut parser = vt100::Parser::new(high, wide, 0);
    let mut bytes = [0; 4096];
    let mut readings = 0;
    // The pty's end is an error once its last writer is gone.
    while let Ok(length @ 1..) = terminal.read(&mut bytes) {
        parser.process(&bytes[..length]);
        assert!((0..rows).all(|row| !parser.screen().row_wrapped(row)), "a line is too wide");
        readings += bytes[..length].windows(4).filter(|text| text == b"Time").count();
        if readings == 3 {
            readings += 1;
            kill(Pid::from_raw(watch.id().cast_signed()), Signal::SIGINT).unwrap();
        }
    }
    assert_eq!(watch.wait().unwrap().code(), Some(0));
    let screen = parser.screen();
    let text = screen.contents();
    assert_eq!(text.matches("Time  ").count(), 1, "{text}");
    assert!(text.contains("Memory  ") && text.contains("more"), "{text}");
    assert_eq!(screen.cursor_position().1, 0, "the prompt begins a line");
    assert!(!screen.hide_cursor());
}

/// A run of one stage that waits until the test has done something; its only attempt's report.
fn attempt_meanwhile(script: &str, act: impl FnOnce()) -> Value {
    let world = World::of_commands(&[]);
    let [go, here] = ["go", "here"].map(|name| world.path(name));
    let mode = nix::sys::stat::Mode::S_IRWXU;
    nix::unistd::mkfifo(&go, mode).unwrap();
    nix::unistd::mkfifo(&here, mode).unwrap();
    let line = format!(
        "a: : cat {} > /dev/null; {script}; echo > o; cat {}",
        here.display(),
        go.display()
    );
    world.write("p.toml", &commands(&[&line]));
    let mut run =
        world.command(&["run", "--json", "p.toml"]).stdout(Stdio::piped()).spawn().unwrap();
    // Returns when the stage has opened it.
    std::fs::write(here, "").unwrap();
    act();
    std::fs::write(go, "").unwrap();
    let mut text = String::new();
    run.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(run.wait().unwrap().success(), "{text}");
    let report: Value = serde_json::from_str(&text).unwrap();
    report["stages"][0]["attempts"][0].clone()
}

/// Processes that are gone before anybody looks, below one that is gone as well.
#[test]
fn peaks_that_no_sample_saw_are_reported() {
    let spike = "(bash -c 'x=$(head -c 60000000 /dev/zero | tr \"\\0\" x); : > s' &); \
                 while [ ! -e s ]; do sleep 0.01; done; rm s";
    let attempt = attempt_meanwhile(spike, || {});
    let method = |figure: &str| attempt["methods"][figure].as_str().unwrap().to_owned();
    if attempt["exits"].is_null() {
        // Whoever may not hear of ends has samples.
        assert_eq!(method("peak_rss_process_bytes"), "proc");
        return;
    }
    assert_eq!(attempt["exits_lost"], 0);
    assert!(attempt["exits"].as_u64() >= Some(5), "{attempt}");
    assert_eq!(method("peak_rss_process_bytes"), "taskstats");
    assert!(attempt["peak_rss_process_bytes"].as_u64() > Some(60_000_000), "{attempt}");
    assert!(attempt["peak_vms_bytes"].as_u64() >= attempt["peak_rss_process_bytes"].as_u64());
}

#[test]
fn what_the_kernel_logs_meanwhile_is_reported() {
    // Whoever may not write there has no log to test with.
    let Ok(mut kmsg) = File::options().write(true).open("/dev/kmsg") else { return };
    let area = format!("test{}", std::process::id());
    let mut log = |pages: u32| {
        let line =
            format!("cma: cma_alloc: {area}: alloc failed, req-size: {pages} pages, ret: -12\n");
        kmsg.write_all(line.as_bytes()).unwrap();
    };
    log(1);
    let attempt = attempt_meanwhile("true", || log(8100));
    log(3);
    let events = attempt["kernel_events"].as_array().unwrap().iter();
    let ours: Vec<_> =
        events.map(|event| &event["what"]).filter(|what| what["area"] == area).collect();
    let expect = json!({ "kind": "cma-alloc-failed", "area": area, "pages": 8100, "error": 12 });
    assert_eq!(ours, [&expect]);
}
