//! The engine's own promises: variants, tokens, explanations, and runs that know they have nothing
//! to do.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::world::{World, commands, statuses};

#[test]
fn variants_are_built_side_by_side_and_joined() {
    let world = World::new(
        "smelt = 1\nname = \"m\"\n\
         [stage.a]\nkind = \"command\"\noutputs = [\"o\"]\nargv = [\"sh\", \"-c\", \"echo $X > o\"]\n\
         env = { X = \"${variant}\" }\n[stage.a.matrix.x]\nsmall = {}\nlarge = { env = { X = \"L\" } }\n\
         [stage.b]\nkind = \"command\"\ninputs = [\"a\"]\noutputs = [\"o\"]\n\
         argv = [\"sh\", \"-c\", \"cat $SMELT_IN_A/o > o; echo ${variant.x} >> o\"]\n\
         [stage.all]\nkind = \"command\"\ninputs = [\"b.*\"]\noutputs = [\"o\"]\n\
         argv = [\"sh\", \"-c\", \"cat $SMELT_IN_B_SMALL/o $SMELT_IN_B_LARGE/o > o\"]\n",
    );
    let report = world.run(&[]);
    let expect =
        ["a.small sealed", "a.large sealed", "b.small sealed", "b.large sealed", "all sealed"];
    assert_eq!(statuses(&report), expect);
    assert_eq!(fs::read_to_string(world.out("all").join("o")).unwrap(), "small\nsmall\nL\nlarge\n");
    let only = world.run(&["--only", "b.large", "--only", "b.small", "--force", "b.small"]);
    assert_eq!(statuses(&only), ["a.small hit", "a.large hit", "b.small sealed", "b.large hit"]);
}

#[test]
fn tokens_are_lent_by_name_and_never_twice() {
    let stage = |name: &str| {
        // Whoever finds the other's mark has met it on the same device.
        format!(
            "[stage.{name}]\nkind = \"command\"\noutputs = [\"o\"]\nwrites = [\".\"]\nresources = {{ gpu = 1, slots = \"1B\" }}\n\
             argv = [\"sh\", \"-ec\", \"test $SMELT_GPU = $CUDA_VISIBLE_DEVICES; mkdir WORLD/busy-$SMELT_GPU; \
             sleep 0.1; rmdir WORLD/busy-$SMELT_GPU; echo {name} $SMELT_GPU $SMELT_SLOTS > o\"]\n"
        )
    };
    let stages: String = ["a", "b", "c", "d", "e"].map(stage).concat();
    let head = "smelt = 1\nname = \"t\"\n[resources]\ngpu = [\"3\", \"7\"]\nslots = \"2B\"\n";
    let world = World::new("");
    let folder = world.path("").display().to_string();
    world.write("p.toml", &format!("{head}{stages}").replace("WORLD/", &folder));
    world.run(&["--jobs", "5"]);
    let used: Vec<String> = ["a", "b", "c", "d", "e"]
        .iter()
        .map(|name| fs::read_to_string(world.out(name).join("o")).unwrap())
        .collect();
    assert!(used.iter().all(|line| line.ends_with(" 1\n")), "{used:?}");
    assert!(used.iter().any(|line| line.contains(" 3 ")), "{used:?}");
    assert!(used.iter().any(|line| line.contains(" 7 ")), "{used:?}");
}

/// What `explain` says of stage `b`.
fn explained(world: &World) -> String {
    let ended = world.smelt(&["explain", "p.toml", "b"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    ended.stdout
}

#[test]
fn explain_names_the_file_and_the_param_that_changed() {
    let world = World::new("");
    let write = |word: &str| {
        let last = format!("b:a:cat $SMELT_IN_A/o > o; echo {word} >> o");
        let text = commands(&["a:@in:cat $SMELT_INPUTS/x > o", &last]);
        world.write("p.toml", &text.replace("@in", "path:in"));
    };
    fs::create_dir(world.path("in")).unwrap();
    world.write("in/x", "one");
    write("one");
    assert!(explained(&world).contains("no run of this pipeline"), "{}", explained(&world));
    world.run(&[]);
    assert!(explained(&world).starts_with("b: hit, built by run "), "{}", explained(&world));
    write("two");
    let said = explained(&world);
    assert!(said.starts_with("b: miss, 1 change since run "), "{said}");
    assert!(said.contains("argv[2]: "), "{said}");
    world.write("in/x", "three");
    world.write("in/y", "new");
    let said = explained(&world);
    assert!(said.starts_with("a: miss, 2 changes since run "), "{said}");
    assert!(said.contains("in: file x changed (3 -> 5 bytes)\n"), "{said}");
    assert!(said.contains("in: file y is new\n"), "{said}");
    assert!(said.contains("b: unknown until a\n"), "{said}");
    let plan = world.smelt(&["plan", "p.toml"]).stdout;
    assert!(plan.contains("in: file x changed (3 -> 5 bytes); and 1 more"), "{plan}");
}

/// When the content of `file` was read last, in the file-stat cache.
fn read_at(world: &World, file: &str) -> u64 {
    let ending = format!("/{file}");
    let stat = world.read("cache/stat");
    let entries = stat.lines().filter_map(|line| line.split_once(' '));
    let entry = entries
        .map(|(_, json)| serde_json::from_str::<serde_json::Value>(json).unwrap())
        .find(|entry| entry["path"].as_str().unwrap().ends_with(&ending));
    entry.expect("the input was hashed")["seen_ns"].as_u64().unwrap()
}

#[test]
fn an_input_counts_by_content_and_is_read_when_it_may_have_changed() {
    let world = World::new("");
    world.write("p.toml", &commands(&["a:@in:cat $SMELT_INPUTS/x > o"]).replace("@in", "path:in"));
    fs::create_dir(world.path("in")).unwrap();
    world.write("in/x", "one");
    // Two changes within a tick of the clock would not show: only what is older is known to stay.
    std::thread::sleep(std::time::Duration::from_millis(2200));
    assert_eq!(statuses(&world.run(&[])), ["a sealed"]);
    let first = read_at(&world, "in/x");
    assert_eq!(statuses(&world.run(&[])), ["a hit"]);
    assert_eq!(read_at(&world, "in/x"), first, "it is not read again");
    let input = fs::File::options().write(true).open(world.path("in/x")).unwrap();
    let then = input.metadata().unwrap().modified().unwrap();
    input.set_modified(std::time::SystemTime::now()).unwrap();
    assert_eq!(statuses(&world.run(&[])), ["a hit"], "touched, and the same");
    assert!(read_at(&world, "in/x") > first, "but that had to be seen");
    // Other content of the same size and time.
    world.write("in/x", "two");
    input.set_modified(then).unwrap();
    assert_eq!(statuses(&world.run(&[])), ["a sealed"]);
    assert_eq!(fs::read_to_string(world.out("a").join("o")).unwrap(), "two");
}

#[test]
fn a_plan_forecasts_what_the_last_time_showed() {
    let world = World::of_commands(&["a::sleep 0.2; echo one > o", "b:a:cat $SMELT_IN_A/o > o"]);
    let plan = |world: &World| world.smelt(&["plan", "p.toml"]).stdout;
    assert!(!plan(&world).contains("forecast, "), "nothing was ever built: {}", plan(&world));
    world.run(&[]);
    assert!(!plan(&world).contains("forecast, "), "nothing is to be built: {}", plan(&world));
    // A run that finds everything takes nothing away of what is known.
    world.run(&[]);
    world.write(
        "p.toml",
        &commands(&["a::sleep 0.2; echo two > o", "b:a:cat $SMELT_IN_A/o > o", "c::echo > o"]),
    );
    let said = plan(&world);
    let a = said.lines().find(|line| line.starts_with("a ")).unwrap();
    assert!(a.contains(" 0.2 s, ") || a.contains(" 0.3 s, "), "{said}");
    let last = said.lines().last().unwrap();
    assert!(last.starts_with("forecast, as the last time: 0."), "{said}");
    assert!(last.ends_with("one after the other; 1 more were never built here"), "{said}");
    let json = world.smelt(&["plan", "p.toml", "--json"]).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(json["stages"][0]["forecast"]["wall_s"].as_f64().unwrap() >= 0.2, "{json}");
    assert!(json["stages"][2]["forecast"].is_null(), "{json}");
}

/// A chain long enough to be remembered.
fn chain() -> Vec<String> {
    let stage = |at: usize| match at {
        0 => "s0::echo 0 > o".to_owned(),
        at => format!("s{at}:s{}:cp $SMELT_INPUTS/o o; echo {at} >> o", at - 1),
    };
    (0..101).map(stage).collect()
}

#[test]
fn a_large_run_without_news_is_remembered_and_never_wrongly() {
    let lines = chain();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let world = World::of_commands(&lines);
    let first = world.run(&["--jobs", "2"]);
    assert_eq!(fs::read_dir(world.path("cache/memo")).unwrap().count(), 1);
    let again = world.run(&[]);
    assert!(statuses(&again).iter().all(|line| line.ends_with(" hit")));
    for (before, now) in
        first["stages"].as_array().unwrap().iter().zip(again["stages"].as_array().unwrap())
    {
        assert_eq!(before["key"], now["key"]);
        assert_eq!(before["output"], now["output"]);
    }
    // A sealed output that was damaged, its size and time kept, is built again.
    let file = world.out("s50").join("o");
    let old = fs::metadata(&file).unwrap();
    let mut bytes = fs::read(&file).unwrap();
    bytes[0] ^= 1;
    fs::remove_file(&file).unwrap();
    fs::write(&file, bytes).unwrap();
    let times = fs::FileTimes::new().set_modified(old.modified().unwrap());
    fs::File::options().write(true).open(&file).unwrap().set_times(times).unwrap();
    assert_eq!(fs::metadata(&file).unwrap().size(), old.size());
    let mended = statuses(&world.run(&[]));
    assert_eq!(mended.iter().filter(|line| line.ends_with(" sealed")).count(), 1, "{mended:?}");
    // Told what to build, a run looks.
    assert_eq!(statuses(&world.run(&["--force", "s100"]))[100], "s100 sealed");
    assert_eq!(statuses(&world.run(&["--only", "s1"])), ["s0 hit", "s1 hit"]);
    world.write("p.toml", &world.read("p.toml").replace("echo 100 >> o", "echo other >> o"));
    assert_eq!(statuses(&world.run(&[]))[100], "s100 sealed");
}

#[test]
fn check_builds_again_and_names_the_file_that_differs() {
    let world = World::of_commands(&["a::echo same > o", "b::date +%N > o; echo same > p"]);
    let good = world.run(&["--check", "a"]);
    assert_eq!(good["stages"][0]["reproducible"], true);
    assert_eq!(good["stages"][0]["attempts"].as_array().unwrap().len(), 2);
    assert_eq!(good["stages"][1]["reproducible"], serde_json::Value::Null);
    let before = fs::read_to_string(world.out("b").join("o")).unwrap();
    let bad = world.smelt(&["run", "p.toml", "--check", "b", "--json"]);
    assert_eq!(bad.code, Some(1), "{}", bad.stderr);
    assert!(bad.stderr.contains("(not-reproducible)"), "{}", bad.stderr);
    assert!(bad.stderr.contains("o has other content"), "{}", bad.stderr);
    let report: serde_json::Value = serde_json::from_str(&bad.stdout).unwrap();
    assert_eq!(report["stages"][1]["reproducible"], false);
    let after = fs::read_to_string(world.out("b").join("o")).unwrap();
    assert_eq!(after, before, "what was sealed stays");
    assert_eq!(world.smelt(&["run", "p.toml", "--check", "c"]).code, Some(2));
}
