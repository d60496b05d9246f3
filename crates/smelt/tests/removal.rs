//! `smelt rm`: what goes with a deployment, what stays, and what is said of it.

use serde_json::Value;

use crate::world::{World, random};

const DEMO: &str = include_str!("../../../pipelines/demo.toml");

/// The stages of the outputs that the store holds, in order.
fn stages(world: &World) -> Vec<String> {
    let listed = world.smelt(&["cache", "ls", "--json"]);
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    let outputs = listed["outputs"].as_array().unwrap().iter();
    let mut stages: Vec<String> =
        outputs.map(|output| output["record"]["stage"].as_str().unwrap().to_owned()).collect();
    stages.sort();
    stages
}

/// The names of the deployments, those used last first.
fn names(world: &World) -> Vec<String> {
    let listed: Value = serde_json::from_str(&world.smelt(&["ls", "--json"]).stdout).unwrap();
    let all = listed["deployments"].as_array().unwrap().iter();
    all.map(|built| built["name"].as_str().unwrap().to_owned()).collect()
}

/// The name of the only one.
#[track_caller]
fn only(world: &World) -> String {
    let mut all = names(world);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

#[test]
fn what_only_a_deployment_needs_goes_with_it_and_who_needs_the_rest_is_told() {
    let world = World::new(&random(DEMO));
    world.run(&[]);
    let int8 = only(&world);
    world.run(&["--set", "scheme=none"]);
    let plain = names(&world).into_iter().find(|name| *name != int8).unwrap();
    let both = world.smelt(&["rm", "shapes-vl"]);
    assert_eq!(both.code, Some(2), "two are called that: {}", both.stderr);

    let removed = world.smelt(&["rm", &int8]);
    assert_eq!(removed.code, Some(0), "{}", removed.stderr);
    assert!(removed.stdout.starts_with(&format!("removed: {int8} (shapes-vl), ")));
    let told = removed.stderr;
    assert!(told.contains("its vision-engine (") && told.contains(&format!("{plain} (shapes-vl)")));
    assert!(told.contains("what demo made on the way stays"), "{told}");
    assert_eq!(only(&world), plain);
    let engines = || stages(&world).iter().filter(|stage| *stage == "llm-engine").count();
    assert_eq!(engines(), 1, "its own is gone");
    let asked = world.smelt(&["chat", "shapes-vl", "Hello"]);
    assert_eq!(asked.code, Some(0), "{}", asked.stderr);

    let removed = world.smelt(&["rm", "shapes-vl"]);
    assert_eq!((removed.code, &removed.stderr[..]), (Some(0), ""), "{}", removed.stdout);
    assert!(names(&world).is_empty());
    // What was made for the other is of no last run any more, and is for a collection.
    let left = stages(&world);
    assert!(left.iter().all(|stage| ["llm-quant", "verify"].contains(&&stage[..])), "{left:?}");
    let again = world.smelt(&["rm", "shapes-vl"]);
    assert_eq!((again.code, again.stderr.lines().count()), (Some(1), 1), "{}", again.stderr);
    assert!(again.stderr.contains("no deployment is called shapes-vl"), "{}", again.stderr);
    // Nothing but time is lost.
    world.run(&["--set", "scheme=none"]);
    assert_eq!(only(&world), plain);
}

#[test]
fn what_is_pinned_stays() {
    let world = World::new(&random(DEMO));
    world.run(&[]);
    let name = &only(&world);
    assert_eq!(world.smelt(&["cache", "pin", name]).code, Some(0));
    let refused = world.smelt(&["rm", name]);
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(1), ""), "{}", refused.stderr);
    assert!(refused.stderr.contains(&format!("smelt cache unpin {name}")), "{}", refused.stderr);
    assert_eq!(world.smelt(&["chat", name, "Hello"]).code, Some(0));
    assert_eq!(world.smelt(&["cache", "unpin", name]).code, Some(0));
    assert_eq!(world.smelt(&["rm", name]).code, Some(0));
    assert!(stages(&world).is_empty(), "{:?}", stages(&world));
}

#[test]
fn nothing_to_remove_makes_no_store() {
    let world = World::new("");
    assert_eq!(world.smelt(&["rm", "absent"]).code, Some(1));
    assert!(!world.path("cache").exists());
    assert_eq!(world.smelt(&["rm"]).code, Some(2));
}
