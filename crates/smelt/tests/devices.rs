//! Which device engines run on: what is asked for and absent, and what is said where the processors take over.
//!
//! No driver of GPUs is found here, wherever the tests run: the variable that names its library names none.

use std::process::Command;
use std::sync::LazyLock;

use crate::world::{World, anywhere, ended, random};

const DEMO: &str = include_str!("../../../pipelines/demo.toml");

/// The demo, built once for all tests.
static BUILT: LazyLock<World> = LazyLock::new(|| {
    let world = World::new(&anywhere(DEMO));
    world.run(&[]);
    world
});

/// smelt where no library of the driver is.
fn without_driver(world: &World, arguments: &[&str]) -> Command {
    let mut command = world.command(arguments);
    command.env("SMELT_LIBCUDA", world.path("nowhere/libcuda.so.1"));
    command
}

const ASK: [&str; 5] = ["chat", "p.toml", "Hello", "--max-tokens", "2"];

#[test]
fn a_card_that_is_asked_for_and_absent_ends_with_5_and_one_line() {
    for (device, name) in [("cuda", "cuda:0"), ("cuda:3", "cuda:3")] {
        let asked = [&ASK[..], &["--device", device]].concat();
        let ended = ended(&mut without_driver(&BUILT, &asked));
        let line = format!("--device {name}: SMELT_LIBCUDA names ");
        assert_eq!((ended.code, ended.stderr.lines().count()), (Some(5), 1), "{}", ended.stderr);
        assert!(ended.stderr.contains(&line), "{}", ended.stderr);
        assert!(ended.stderr.contains("where no libcuda.so.1 is"), "{}", ended.stderr);
    }
    let asked = ["serve", "p.toml", "--addr", "127.0.0.1:0", "--device", "cuda"];
    let ended = ended(&mut without_driver(&BUILT, &asked));
    assert_eq!(ended.code, Some(5), "{}", ended.stderr);
    assert!(ended.stderr.contains("--device cuda:0: "), "{}", ended.stderr);
}

#[test]
fn processors_run_what_is_for_them() {
    let answers = [&["--device", "cpu"][..], &["--device", "auto"], &[]].map(|flags| {
        let asked = [&ASK[..], flags].concat();
        let ended = ended(&mut without_driver(&BUILT, &asked));
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        // Where there is a GPU, `auto` says why it is not taken.
        let is_silent = !ended.stderr.contains("runs on the CPU");
        assert!(is_silent || flags != ["--device", "cpu"], "{}", ended.stderr);
        ended.stdout
    });
    assert!(!answers[0].is_empty() && answers.iter().all(|answer| *answer == answers[0]));
}

#[test]
fn no_other_word_is_a_device() {
    for word in ["gpu", "cuda:", "cuda:0,cuda:1"] {
        let ended = ended(&mut without_driver(&BUILT, &[&ASK[..], &["--device", word]].concat()));
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        assert!(ended.stderr.contains("auto, cpu, cuda or cuda:N"), "{}", ended.stderr);
    }
}

#[test]
fn several_cards_serve_and_each_is_named_once() {
    let serve = |device: &str| {
        let asked = ["serve", "p.toml", "--addr", "127.0.0.1:0", "--device", device];
        ended(&mut without_driver(&BUILT, &asked))
    };
    for (device, says) in [
        ("cuda:0,cuda:0", "cuda:0 is named twice"),
        ("cuda:0,cpu", "several cards as in cuda:0,cuda:1"),
    ] {
        let ended = serve(device);
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        assert!(ended.stderr.contains(says), "{}", ended.stderr);
    }
    let ended = serve("cuda:0,cuda:1");
    assert_eq!(ended.code, Some(5), "{}", ended.stderr);
    assert!(ended.stderr.contains("--device cuda:0: "), "{}", ended.stderr);
}

#[test]
fn a_gpu_is_tuned_for_a_checkpoint_where_it_is() {
    let check = |fields: &str, expect: (i32, &str)| {
        let tune = format!("\n[stage.tune]\nkind = \"tune\"\n{fields}");
        let world = World::new(&format!("{}{tune}", random(DEMO)));
        let ended = world.smelt(&["run", "p.toml", "--only", "tune"]);
        assert_eq!(ended.code, Some(expect.0), "{}", ended.stderr);
        assert!(ended.stderr.contains(expect.1), "{}", ended.stderr);
    };
    // No machine of these tests has a board's GPU.
    check("target = \"cuda-sm87\"\ncheckpoint = \"checkpoint\"\n", (5, ""));
    check("target = \"cuda-sm87\"\n", (1, "name its \"checkpoint\""));
    check("checkpoint = \"checkpoint\"\n", (3, "name its \"target\""));
    let processors = "target = \"cpu\"\ncheckpoint = \"checkpoint\"\n";
    check(processors, (1, "leave out \"checkpoint\""));
}

#[test]
fn a_build_for_gpus_without_the_compiler_says_what_installs_it() {
    let world = World::new(&random(DEMO));
    let target = ["--set", "target=cuda-sm87"];
    let mut run =
        world.command(&[&["run", "p.toml", "--only", "llm-engine"][..], &target].concat());
    let without = ended(run.env("SMELT_NVRTC", world.path("nowhere/libnvrtc.so.12")));
    let line = "kind = \"engine-build\"\n";
    let demo = random(DEMO).replace(line, &format!("{line}target = \"cuda-sm87\"\n"));
    let world = World::new(&demo);
    let mut run = world.command(&["run", "p.toml", "--only", "vision-engine"]);
    let graphs = ended(run.env("SMELT_NVRTC", world.path("nowhere/libnvrtc.so.12")));
    for ended in [without, graphs] {
        assert_eq!(ended.code, Some(5), "{}", ended.stderr);
        assert!(ended.stderr.contains("SMELT_NVRTC names "), "{}", ended.stderr);
    }
}
