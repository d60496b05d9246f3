//! Writes one graph twice: as a pipeline of `command` stages for smelt, as `build.ninja` for ninja.
//!
//! One stage reads a 4 KiB file, chains of stages follow it, one stage joins their ends.  Every
//! stage copies what it reads and adds a line of its own, so that no two make the same content.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// How many stages follow each other; a graph of 10,000 has 200 such chains.
const DEPTH: usize = 50;
/// The paths of a stage's inputs must fit one variable of its environment.
const JOINED_MAX: usize = 500;
/// What the first stage reads.
const SEED_BYTES: usize = 4 << 10;

/// A graph of this many stages.
#[derive(Clone, Copy)]
pub(super) struct Graph(pub(super) usize);

/// What one stage reads.
enum Reads {
    Seed,
    One(usize),
    Ends(Vec<usize>),
}

impl Graph {
    fn reads(self, stage: usize) -> Reads {
        let Self(stages) = self;
        let is_end = |&at: &usize| at % DEPTH == 0 || at == stages - 2;
        match stage {
            0 => Reads::Seed,
            at if at == stages - 1 => {
                let ends = (1..stages - 1).filter(is_end);
                Reads::Ends(ends.rev().take(JOINED_MAX).collect())
            }
            at if at % DEPTH == 1 => Reads::One(0),
            at => Reads::One(at - 1),
        }
    }

    /// Writes the seed, `pipeline.toml` and `build.ninja` into the folder.
    pub(super) fn write(self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        fs::write(folder.join("seed"), vec![b's'; SEED_BYTES])?;
        fs::write(folder.join("pipeline.toml"), self.pipeline())?;
        fs::write(folder.join("build.ninja"), self.ninja())?;
        Ok(())
    }

    fn pipeline(self) -> String {
        let mut text = "smelt = 1\nname = \"graph\"\n".to_owned();
        for stage in 0..self.0 {
            let (inputs, copy) = match self.reads(stage) {
                Reads::Seed => ("\"path:seed\"".to_owned(), "cp $SMELT_INPUTS o"),
                Reads::One(from) => (format!("\"s{from}\""), "cp $SMELT_INPUTS/o o"),
                Reads::Ends(ends) => {
                    let names: Vec<_> = ends.iter().map(|end| format!("\"s{end}\"")).collect();
                    (names.join(", "), "for i in $SMELT_INPUTS; do cat $i/o; done > o")
                }
            };
            let _ = write!(
                text,
                "\n[stage.s{stage}]\nkind = \"command\"\nargv = [\"sh\", \"-c\", \"{copy} && \
                 echo {stage} >> o\"]\ninputs = [{inputs}]\noutputs = [\"o\"]\n"
            );
        }
        text
    }

    fn ninja(self) -> String {
        let mut text = "rule copy\n  command = cp $in $out && echo $n >> $out\n\
                        rule join\n  command = cat $in > $out && echo $n >> $out\n"
            .to_owned();
        for stage in 0..self.0 {
            let (rule, inputs) = match self.reads(stage) {
                Reads::Seed => ("copy", "seed".to_owned()),
                Reads::One(from) => ("copy", format!("out/s{from}")),
                Reads::Ends(ends) => {
                    let names: Vec<_> = ends.iter().map(|end| format!("out/s{end}")).collect();
                    ("join", names.join(" "))
                }
            };
            let _ = write!(text, "build out/s{stage}: {rule} {inputs}\n  n = {stage}\n");
        }
        text
    }
}
