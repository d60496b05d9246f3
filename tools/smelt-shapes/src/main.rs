//! Makes what a small vision-language model learns from: its configuration and tokenizer, its
//! training data as a stream, and pictures with questions as files.
//!
//! What a model reads is made by the very code that serves it later: template, tokenizer, tiles.

mod files;
mod generate;
mod stream;
mod tiles;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::generate::ImageKind;

/// Pictures of shapes, and what a small vision-language model learns from them.
#[derive(Debug, Parser)]
struct Flags {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write configuration and tokenizer of a model without weights.
    Files {
        /// The family of its decoder: qwen2 (InternVL3) or qwen3 (InternVL3.5).
        #[arg(long, value_parser = ["qwen2", "qwen3"])]
        decoder: String,
        /// The directory, made if absent.
        #[arg(long)]
        out: PathBuf,
    },
    /// Write held-out pictures as PNG, and their questions as `questions.jsonl`.
    Generate {
        /// The first sample's number.
        #[arg(long, default_value_t = 0)]
        first: u64,
        /// How many samples.
        #[arg(long, default_value_t = 100)]
        count: u64,
        /// Questions kept of each sample.
        #[arg(long, default_value_t = 2)]
        questions: usize,
        /// Put each picture into one tile of a plain one of COLUMNSxROWS, and ask what stays true there.
        #[arg(long, value_parser = generate::columns_and_rows)]
        canvas: Option<(usize, usize)>,
        /// Make pictures of COLUMNSxROWS tiles with shapes in each, and ask about one of them.
        #[arg(long, value_parser = generate::columns_and_rows, conflicts_with = "canvas")]
        mosaic: Option<(usize, usize)>,
        /// The directory, made if absent.
        #[arg(long)]
        out: PathBuf,
    },
    /// Write the prompts of held-out samples to standard output, each sample as a batch of its own.
    Prompts(stream::Prompts),
    /// Write training batches to standard output until it closes.
    Stream(stream::Flags),
    /// Write tiles, what each shows and what might be asked, to standard output until it closes.
    Tiles(tiles::Flags),
}

fn main() -> ExitCode {
    let result = match Flags::parse().command {
        Command::Files { decoder, out } => files::write(&decoder, &out),
        Command::Generate { first, count, questions, canvas, mosaic, out } => {
            let pictures = match (canvas, mosaic) {
                (Some(size), _) => ImageKind::Canvas(size),
                (None, Some(size)) => ImageKind::Mosaic(size),
                (None, None) => ImageKind::Any,
            };
            generate::write(first..first + count, questions, pictures, &out)
        }
        Command::Prompts(flags) => stream::write_prompts(&flags),
        Command::Stream(flags) => stream::write(&flags),
        Command::Tiles(flags) => tiles::write(&flags),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("smelt-shapes: {error:#}");
            ExitCode::FAILURE
        }
    }
}
