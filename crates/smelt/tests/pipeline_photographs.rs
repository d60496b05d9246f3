//! Builds every shipped pipeline of a model that sees from its own file, and shows what it deploys thirty pictures of
//! all shapes: each must be answered.

#[path = "../../smelt-runtime/tests/thirty.rs"]
mod thirty;
use std::fs;
use std::path::Path;

use crate::world::{World, ended};
use tempfile::TempDir;

/// A pipeline file.
struct Pipeline {
    name: String,
    text: String,
}

impl Pipeline {
    /// Those whose model is a hub's and sees, of families whose name begins so.
    fn seeing(family: &str) -> Vec<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../pipelines");
        let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let read = |path: std::path::PathBuf| Self {
            name: path.file_name().unwrap().to_str().unwrap().to_owned(),
            text: fs::read_to_string(path).unwrap(),
        };
        let sees = |one: &Self| {
            let has = |words: &str| one.text.contains(words);
            has("\nmodel = \"hf:") && has("\npart = \"vision\"")
        };
        let of_family = |one: &Self| one.synthetic().iter().all(|name| name.starts_with(family));
        let mut all: Vec<Self> = files.map(read).filter(sees).filter(of_family).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// The synthetic models that its comments name.
    fn synthetic(&self) -> Vec<&str> {
        let named = self.text.split("model=synthetic:").skip(1);
        named.map(|rest| rest.split_whitespace().next().unwrap()).collect()
    }

    /// The model of its family for tests.
    fn tiny(&self) -> String {
        let (family, _) = self.synthetic()[0].rsplit_once('-').unwrap();
        format!("{family}-tiny")
    }

    /// The model of its own size, if there is one made of random numbers.
    fn true_size(&self) -> Option<&str> {
        self.synthetic().into_iter().find(|name| !name.ends_with("-tiny"))
    }
}

/// The files of the thirty, by their paths.
fn files() -> (TempDir, Vec<String>) {
    let dir = TempDir::new().unwrap();
    let put = |(name, bytes): (String, Vec<u8>)| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        path.display().to_string()
    };
    let paths: Vec<String> = thirty::pictures().into_iter().map(put).collect();
    assert_eq!(paths.len(), 30);
    (dir, paths)
}

/// Builds a pipeline with these params, and asks one `chat` about each picture by itself.
fn check(pipeline: &Pipeline, pictures: &[String], params: &[String]) {
    let Pipeline { name, text } = pipeline;
    let world = World::new(text);
    let sets: Vec<&str> = params.iter().flat_map(|param| ["--set", param]).collect();
    world.run(&sets);
    // How it is served is said where it is deployed: no engine is built for it.
    let other = ["max_seq_len=900", "slots=4", "frames=4"].map(|set| ["--set", set]);
    let anew = world.to_build(&[&sets[..], other.as_flattened()].concat());
    assert_eq!(anew, ["deployment"], "{name}");
    let lines = pictures.iter().map(|path| format!("/image {path}\nWhat is it?\n/clear\n"));
    world.write("lines.txt", &lines.collect::<String>());
    let mut chat = world.command(&[&["chat", "p.toml", "--max-tokens", "3"], &sets[..]].concat());
    chat.stdin(fs::File::open(world.path("lines.txt")).unwrap());
    let said = ended(&mut chat);
    assert_eq!(said.code, Some(0), "{name}: {}", said.stderr);
    let count = |words: &str| said.stderr.lines().filter(|line| line.contains(words)).count();
    assert_eq!(count(" image tokens"), pictures.len(), "{name}: {}", said.stderr);
    assert_eq!(count(" answered; first token after "), pictures.len(), "{name}: {}", said.stderr);
    // Nothing else is said of them.  Where opening takes long, it is told before how far that is.
    let lines = said.stderr.lines().skip_while(|line| !line.contains(" image tokens"));
    assert_eq!(lines.count(), 2 * pictures.len(), "{name}: {}", said.stderr);
}

fn check_tiny(family: &str, files_of_family: usize) {
    let (_dir, pictures) = files();
    let pipelines = Pipeline::seeing(family);
    assert!(pipelines.len() >= files_of_family, "the pipelines of {family} are found");
    for pipeline in pipelines {
        // Tiny models have few positions.
        let params =
            [format!("model=synthetic:{}", pipeline.tiny()), "max_seq_len=1024".to_owned()];
        check(&pipeline, &pictures, &params);
    }
}

#[test]
fn every_pipeline_of_internvl_answers_pictures_of_all_shapes() {
    check_tiny("internvl", 6);
}

#[test]
fn every_pipeline_of_qwen_vl_answers_pictures_of_all_shapes() {
    check_tiny("qwen", 6);
}

#[test]
fn every_pipeline_of_smolvlm_answers_pictures_of_all_shapes() {
    check_tiny("smolvlm", 2);
}

/// `cargo xtask soak` asks for it.
#[test]
#[ignore = "hours, and up to 30 GB of disk"]
fn every_pipeline_of_true_size_answers_pictures_of_all_shapes() {
    let (_dir, pictures) = files();
    for pipeline in Pipeline::seeing("") {
        // What its makers packed is made of no random numbers.
        let Some(model) = pipeline.true_size() else { continue };
        println!("{} as {model}", pipeline.name);
        check(&pipeline, &pictures, &[format!("model=synthetic:{model}")]);
    }
}
