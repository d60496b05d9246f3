//! Pictures that do not fit the context, through the whole command: shown smaller, told once, never refused.

use std::fs;
use std::sync::LazyLock;

use crate::world::{World, anywhere, data, random};
use serde_json::Value;

const DEMO: &str = include_str!("../../../pipelines/demo.toml");

/// The demo, built once for all tests.
static BUILT: LazyLock<World> = LazyLock::new(|| {
    let world = World::new(&anywhere(DEMO));
    fs::copy(data("picture.png"), world.path("picture.png")).unwrap();
    world.run(&[]);
    world
});

const QUESTION: &str = "How many circles are there?";

/// The last line of what `chat` tells about a picture, with these flags.
#[track_caller]
fn chat(flags: &[&str]) -> String {
    let asked = ["chat", "p.toml", QUESTION, "--image", "picture.png", "--max-tokens", "8"];
    let ended = BUILT.smelt(&[&asked[..], flags].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(!ended.stdout.trim().is_empty());
    ended.stderr.lines().last().unwrap().to_owned()
}

/// Tiles that a line of `chat` tells of.
fn tiles(line: &str) -> usize {
    let (_, after) = line.split_once(" prompt tokens (").unwrap();
    after.split_once(" tile").unwrap().0.parse().unwrap()
}

#[test]
fn chat_shows_a_picture_smaller_where_the_context_is_short_and_says_so_once() {
    let whole = chat(&[]);
    assert!(tiles(&whole) > 2 && !whole.contains("shown smaller"), "{whole}");
    let short = chat(&["--max-seq-len", "100"]);
    assert_eq!(tiles(&short), 1, "{short}");
    let says =
        "; the picture is shown smaller to fit the context of 100 tokens: 36 image tokens, not ";
    assert_eq!(short.matches(says).count(), 1, "{short}");
    assert_eq!((tiles(&chat(&["--tiles", "1"])), tiles(&chat(&["--detail", "low"]))), (1, 1));
    // A conversation keeps to the same.
    let mut talk =
        BUILT.command(&["chat", "p.toml", "--image", "picture.png", "--max-seq-len", "140"]);
    let lines = format!("{QUESTION}\nAnd squares?\n");
    fs::write(BUILT.path("lines.txt"), lines).unwrap();
    talk.stdin(fs::File::open(BUILT.path("lines.txt")).unwrap());
    let ended = crate::world::ended(talk.args(["--max-tokens", "8"]));
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let told: Vec<&str> =
        ended.stderr.lines().filter(|line| line.contains("prompt tokens (")).collect();
    assert_eq!(told.len(), 2, "{}", ended.stderr);
    assert!(told.iter().all(|line| line.contains("shown smaller")), "{}", ended.stderr);
    assert!(!told[1].contains("(0 of them read before)"), "the picture is kept: {}", told[1]);
}

#[test]
fn contexts_go_beyond_the_engine_up_to_the_models_positions() {
    let longer = chat(&["--max-seq-len", "600"]);
    assert!(!longer.contains("shown smaller"), "{longer}");
    let asked = ["p.toml", "--max-seq-len", "100000"];
    for command in [["chat", QUESTION], ["serve", "--addr=127.0.0.1:0"]] {
        let ended = BUILT.smelt(&[&command[..1], &asked, &command[1..]].concat());
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        let says = "a context of 100000 tokens is more than the model's 1024 positions";
        assert!(ended.stderr.contains(says), "{}", ended.stderr);
    }
    let question =
        r#"{"images":["picture.png"],"question":"How many circles are there","answer":"2"}"#;
    BUILT.write("q.jsonl", question);
    let bench = ["bench", "accuracy", "p.toml", "--questions", "q.jsonl", "--json"];
    let ended = BUILT.smelt(&[&bench[..], &["--max-seq-len", "120"]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(document["targets"][0]["image_tokens"], 36.0, "{document}");
    assert_eq!(ended.stderr.matches("are shown smaller").count(), 1, "{}", ended.stderr);
    let ended = BUILT.smelt(&[&bench[..], &["--max-seq-len", "2000"]].concat());
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
}

#[test]
fn plan_and_deployment_say_what_photographs_cost() {
    // Tiles of 4 tokens, at most four and a thumbnail.
    let pipeline = random(DEMO).replace("max_seq_len = 512", "max_seq_len = 16");
    let world = World::new(&pipeline);
    let told = "image tokens: a 4:3 photograph 20, a 16:9 photograph 12, 6 of 4:3 120; the context has 16 tokens";
    let warns = "the largest picture has 20 image tokens, which do not fit a context of 16 with an answer of 4: it will be shown smaller; raise max-seq-len or lower tiles";
    let planned = world.smelt(&["plan", "p.toml"]).stdout;
    assert!(planned.contains(&format!("deployment: {told}\n")), "{planned}");
    assert!(planned.contains(&format!("warning: deployment: {warns}\n")), "{planned}");
    // How it is served is said where it is deployed: nothing else is built for it.
    let pipeline = random(DEMO)
        .replace(
            "max_seq_len = 512\nslots = 8\nframes = 32",
            "max_seq_len = 200\nslots = 3\nframes = 5",
        )
        .replace("kind = \"deployment\"", "kind = \"deployment\"\ntiles = 2");
    let world = World::new(&pipeline);
    world.run(&["--only", "deployment"]);
    let deployed = fs::read_to_string(world.out("deployment").join("deployment.json")).unwrap();
    let deployed: Value = serde_json::from_str(&deployed).unwrap();
    let serving = serde_json::json!({ "max_seq_len": 200, "slots": 3, "tiles": 2, "frames": 5 });
    assert_eq!(deployed["serving"], serving);
    let other = ["max_seq_len=900", "slots=4", "frames=4"].map(|set| ["--set", set]);
    assert_eq!(world.to_build(other.as_flattened()), ["deployment"]);
    let ended = world.smelt(&["chat", "p.toml", "w", "--max-seq-len", "2000"]);
    assert!(ended.stderr.contains("the model's 1024 positions"), "{}", ended.stderr);
    let pipeline = pipeline.replace("max_seq_len = 200", "max_seq_len = 2000");
    world.write("p.toml", &pipeline);
    let ended = world.smelt(&["run", "p.toml"]);
    let says = "\"max-seq-len\" is 2000, more than the model's 1024 positions";
    assert!(ended.code != Some(0) && ended.stderr.contains(says), "{}", ended.stderr);
}
