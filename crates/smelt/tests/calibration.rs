//! Quantising by what a model was seen to do: the stage, the commands, and what they refuse.

use std::fs;
use std::path::Path;

use crate::world::{World, data, random, statuses};
use serde_json::Value;

/// The demo, with a decoder quantised by statistics instead.
fn calibrated(extra: &str) -> World {
    let demo = random(include_str!("../../../pipelines/demo.toml"));
    let plain = "scheme = \"${scheme}\"";
    assert!(demo.contains(plain));
    let quantize = format!("{plain}\nmethod = \"awq\"\ncalibration = \"seen\"");
    let stage =
        format!("\n[stage.seen]\nkind = \"calibrate\"\ncheckpoint = \"checkpoint\"\n{extra}");
    World::new(&(demo.replace(plain, &quantize) + &stage))
}

#[test]
fn a_decoder_is_quantised_by_what_it_was_seen_to_do() {
    let picture = data("picture.png").display().to_string();
    let world = calibrated(&format!(
        "texts = [\"What is this?\"]\nprompts = \"path:prompts.txt\"\nimages = \"path:{picture}\"\n\
         vision = \"vision-engine\"\ntokens = 96\n"
    ));
    world.write("prompts.txt", "Count to ten.\n\nName three rivers, and the seas they run into.\n");
    let report = world.run(&[]);
    assert!(statuses(&report).iter().all(|status| status.ends_with("sealed")), "{report}");
    let text = fs::read_to_string(world.out("llm-quant").join("quantize-report.json")).unwrap();
    assert!(text.contains("\"method\": \"awq\""), "{text}");
    let text = fs::read_to_string(world.out("seen").join("calibrate.json")).unwrap();
    assert!(text.contains("\"prompts\": \"given\"") && text.contains("\"rows\": 96"), "{text}");
    assert!(statuses(&world.run(&[])).iter().all(|status| status.ends_with("hit")));
    world.write("prompts.txt", "Count to eleven.\n");
    let again = statuses(&world.run(&[]));
    assert!(again.contains(&"seen sealed".to_owned()), "{again:?}");
}

#[test]
fn the_commands_make_what_the_stages_make() {
    let world = calibrated("tokens = 64\n");
    world.run(&["--only", "llm-quant"]);
    let checkpoint = world.out("checkpoint").display().to_string();
    let same = |arguments: &[&str], stage: &str, made: &str| {
        let ended = world.smelt(arguments);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        for entry in fs::read_dir(world.out(stage)).unwrap() {
            let path = entry.unwrap().path();
            let made = world.path(made).join(path.file_name().unwrap());
            assert!(fs::read(&made).unwrap() == fs::read(&path).unwrap(), "{}", made.display());
        }
        ended.stderr
    };
    let said = same(&["calibrate", &checkpoint, "--tokens", "64", "--out", "seen"], "seen", "seen");
    assert!(said.contains("using the built-in"), "{said}");
    let quantize = ["quantize", &checkpoint, "--scheme", "int8", "--method", "awq"];
    let rest = ["--calibration", "seen", "--threads", "3", "--out", "made"];
    let said = same(&[&quantize[..], &rest].concat(), "llm-quant", "made");
    assert!(said.contains("SNR dB") && said.contains("22 tensors rounded by awq"), "{said}");
}

/// Two questions: one about two pictures, one about none.
const QUESTIONS: &str = r#"{"question":"What is new?","images":["a.png","b.png"],"answer":"the ring"}
{"question":"How many?","answer":"two"}
"#;

#[test]
fn questions_with_their_answers_are_what_is_calibrated_with() {
    let world = calibrated("prompts = \"path:asked\"\n");
    fs::create_dir(world.path("asked")).unwrap();
    for picture in ["a.png", "b.png"] {
        fs::copy(data("picture.png"), world.path("asked").join(picture)).unwrap();
    }
    world.write("asked/questions.jsonl", QUESTIONS);
    world.run(&["--only", "seen"]);
    let index = |dir: &Path| -> Value {
        serde_json::from_str(&fs::read_to_string(dir.join("calibrate.json")).unwrap()).unwrap()
    };
    let seen = index(&world.out("seen"));
    assert_eq!(seen["prompts"], "given");
    let checkpoint = world.out("checkpoint").display().to_string();
    let calibrate = ["calibrate", &checkpoint, "--questions", "asked/questions.jsonl", "--out"];
    let made = world.smelt(&[&calibrate[..], &["made"]].concat());
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    assert_eq!(index(&world.path("made")), seen);
    // Without its pictures the first has two tiles less to read.
    let blind = QUESTIONS.replace("\"images\":[\"a.png\",\"b.png\"],", "");
    world.write("asked/questions.jsonl", &blind);
    world.smelt(&[&calibrate[..], &["blind"]].concat());
    let [all, words] =
        [seen, index(&world.path("blind"))].map(|seen| seen["tokens"].as_u64().unwrap());
    assert!(all > words + 2, "{all} {words}");
    world.write("asked/questions.jsonl", &QUESTIONS.replace("b.png", "c.png"));
    let absent = world.smelt(&[&calibrate[..], &["absent"]].concat());
    assert_eq!(absent.code, Some(4), "{}", absent.stderr);
    assert!(absent.stderr.contains("c.png"), "{}", absent.stderr);
}

#[test]
fn a_plan_says_what_processor_time_learning_takes() {
    let int4 = include_str!("../../../pipelines/internvl3-1b-int4.toml");
    let model = "hf:OpenGVLab/InternVL3-1B";
    assert!(int4.contains(model));
    let world = World::new(&int4.replace(model, "synthetic:internvl3-1b"));
    let ended = world.smelt(&["plan", "p.toml"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    for stage in ["calibration", "llm-quant"] {
        let line = ended.stdout.lines().find(|line| line.starts_with(&format!("{stage}: ")));
        let line = line.unwrap_or_else(|| panic!("{stage}: {}", ended.stdout));
        assert!(line.ends_with(" of processor time on cores like these"), "{line}");
    }
    // A tiny model takes next to none.
    let tiny = world.smelt(&["plan", "p.toml", "--set", "model=synthetic:tiny"]);
    assert!(!tiny.stdout.contains("processor time"), "{}", tiny.stdout);
}

#[test]
fn what_cannot_be_calibrated_or_quantised_is_refused_in_one_line() {
    let world = calibrated("");
    world.run(&["--only", "checkpoint"]);
    let checkpoint = world.out("checkpoint").display().to_string();
    let refused = |arguments: &[&str], code: i32, words: &str| {
        let ended = world.smelt(&[arguments, &["--out", "made"]].concat());
        assert_eq!(ended.code, Some(code), "{}", ended.stderr);
        let last = ended.stderr.lines().last().unwrap_or_default();
        assert!(ended.stderr.contains(words), "{last}");
        assert!(!world.path("made").exists());
    };
    let quantize = ["quantize", checkpoint.as_str(), "--scheme", "int4-g32"];
    refused(
        &[&quantize[..], &["--method", "gptq"]].concat(),
        4,
        "needs what `smelt calibrate` saw",
    );
    let elsewhere = ["--method", "gptq", "--calibration", "nowhere"];
    refused(&[&quantize[..], &elsewhere].concat(), 4, "nowhere/calibrate.json");
    let idle = ["--method", "rtn", "--calibration", "nowhere"];
    refused(&[&quantize[..], &idle].concat(), 2, "method rtn reads no --calibration");
    let idle = ["--method", "gptq", "--budget", "2", "--calibration", "nowhere"];
    refused(&[&quantize[..], &idle].concat(), 2, "--budget is for --method best");
    refused(&[&quantize[..], &["--exclude", "*.attn.*"]].concat(), 4, "matches no weight");
    refused(&["quantize", &checkpoint, "--scheme", "int3"], 2, "int4-g128-asym");
    world.write("empty.txt", "\n");
    refused(&["calibrate", &checkpoint, "--text", "empty.txt"], 2, "it holds no prompt");
    world.write("long.txt", &"word ".repeat(80_000));
    refused(&["calibrate", &checkpoint, "--text", "long.txt"], 4, "tokens");
    refused(&["calibrate", &checkpoint, "--image", "empty.txt"], 4, "empty.txt");
}
