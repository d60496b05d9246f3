//! Files of configuration: what overrules what, and what a wrong one does.

use serde_json::Value;

use crate::world::{Ended, World, commands, ended, refused, text_world};

const USER_FILE: &str = ".config/smelt/config.toml";

/// Somebody whose home is the world, and whose environment names nothing.
fn at_home(world: &World, arguments: &[&str]) -> Ended {
    let mut command = world.command(arguments);
    for name in ["SMELT_CACHE", "SMELT_CONFIG", "XDG_CONFIG_HOME"] {
        command.env_remove(name);
    }
    ended(command.env("HOME", world.path("")))
}

/// A setting as it is told: its value, and where that is from.
fn setting(said: &Ended, name: &str) -> (Value, Value, Value) {
    let said: Value = serde_json::from_str(&said.stdout).unwrap();
    let mut all = said["settings"].as_array().unwrap().iter();
    let found = all.find(|setting| setting["name"] == name).unwrap();
    (found["value"].clone(), found["from"].clone(), found["place"].clone())
}

#[test]
fn a_run_goes_by_the_users_file_and_its_keys_do_not() {
    let world = World::new(&commands(&["a::echo a > o"]));
    let plain = world.run(&[]);
    world.write(USER_FILE, "store = \"elsewhere\"\njobs = 2\n");
    let run = at_home(&world, &["run", "p.toml", "--json"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(report["stages"][0]["key"], plain["stages"][0]["key"]);
    // A relative path begins where the file is.
    assert!(world.path(".config/smelt/elsewhere/out").is_dir());
    let listed = at_home(&world, &["out", "p.toml", "a"]);
    assert!(listed.stdout.contains(".config/smelt/elsewhere/out/"), "{}", listed.stdout);
}

#[test]
fn each_value_is_told_with_where_it_is_from() {
    let world = World::new("");
    let none = at_home(&world, &["config"]);
    assert_eq!(none.code, Some(0), "{}", none.stderr);
    assert!(none.stderr.contains("/etc/smelt/config.toml") && none.stderr.contains(USER_FILE));
    world.write(USER_FILE, "store = \"/data\"\n[fleet]\naddress = \"grpc://cache:5200\"\n");
    let mut command = world.command(&["config", "--json"]);
    command.env("HOME", world.path("")).env_remove("XDG_CONFIG_HOME").env_remove("SMELT_CONFIG");
    let said = ended(command.env("SMELT_FLEET_TOKEN", "s3cret"));
    let file = world.path(USER_FILE).display().to_string();
    let cache = world.path("cache").display().to_string();
    assert_eq!(setting(&said, "store"), (cache.into(), "environment".into(), "SMELT_CACHE".into()));
    let address = ("grpc://cache:5200".into(), "file".into(), file.into());
    assert_eq!(setting(&said, "fleet.address"), address);
    assert_eq!(setting(&said, "jobs"), ("1".into(), "default".into(), Value::Null));
    assert!(!said.stdout.contains("s3cret"));
}

#[test]
fn what_no_file_may_say_is_refused_before_anything_is_done() {
    let world = text_world("llama3-tied-tiny");
    world.write(USER_FILE, "jobs = 1\nstroe = \"/data\"\n");
    let run = at_home(&world, &["run", "p.toml"]);
    refused(
        &run,
        2,
        ".config/smelt/config.toml: there is no setting stroe; perhaps store is meant",
    );
    assert!(!world.path("cache").exists());
    assert_eq!(at_home(&world, &["--help"]).code, Some(0));
    refused(&at_home(&world, &["--config", "none.toml", "ls"]), 2, "none.toml");
    // The file that is named is the only one.
    world.write("own.toml", "store = \"own\"\n");
    let said = at_home(&world, &["--config=own.toml", "config", "--json"]);
    assert_eq!(setting(&said, "store").0, world.path("own").display().to_string());
}

#[test]
fn memory_that_is_to_stay_free_is_not_given_to_stages() {
    let world = text_world("llama3-tied-tiny");
    world.write(USER_FILE, "keep-free = \"100TiB\"\n");
    let plan = at_home(&world, &["plan", "p.toml"]);
    assert!(plan.stdout.contains("does not fit this device"), "{}", plan.stdout);
    let run = at_home(&world, &["run", "p.toml"]);
    assert_eq!(run.code, Some(5), "{}", run.stderr);
    assert!(run.stderr.contains("104857600 MiB are to stay free (--keep-free)"), "{}", run.stderr);
    let run = at_home(&world, &["run", "p.toml", "--keep-free", "1MiB"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
}
