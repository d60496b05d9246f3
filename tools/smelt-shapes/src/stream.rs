//! Writes training batches as bytes, made by several threads in a fixed order.
//!
//! A batch is a header of six u32 (magic, pictures `B`, tiles of each `T`, questions of each `Q`,
//! tokens of each `L`, pixels on a side `S`), then `[B, T, S, S, 3]` u8 pixels, `[B, Q, L]` u16
//! tokens, and for each question three u16: where its answer starts, where it ends, and its task's
//! number.  All numbers are little-endian.

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use smelt_random::Random;
use smelt_runtime::image::{Image, Mosaic, Scale, Tiling, tiles};
use smelt_runtime::prompt::{ImageTokenRun, ImageTokens, Turn, expand};
use smelt_runtime::template::{ContentFormat, Context as Told, Template};
use smelt_runtime::tokenizer::Tokenizer;
use smelt_shapes::{Canvas, Question, Sample, SampleLayout, Split};

/// Starts every batch: "shp1".
const MAGIC: u32 = 0x3170_6873;

/// Tokens of a question with its answer and the words around them, image tokens apart.
const TEXT_TOKENS_MAX: usize = 96;

/// Batches each thread may be ahead.
const AHEAD: usize = 2;

/// What to stream.
#[derive(Debug, clap::Args)]
pub(crate) struct Flags {
    /// A directory that `files` wrote.
    #[arg(long)]
    model: PathBuf,
    /// The first batch's number; a batch is a pure function of it.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Pictures in a batch of single tiles; batches of more tiles have fewer.
    #[arg(long, default_value_t = 240)]
    pictures: usize,
    /// Questions for each.
    #[arg(long, default_value_t = 6)]
    questions: usize,
    /// Threads.
    #[arg(long, default_value_t = 8)]
    threads: usize,
    /// Batches of held-out samples instead of training ones.
    #[arg(long)]
    held_out: bool,
    /// Batches to write; endless if absent.
    #[arg(long)]
    count: Option<u64>,
}

/// Which prompts to write.
#[derive(Debug, clap::Args)]
pub(crate) struct Prompts {
    /// A directory that `files` wrote.
    #[arg(long)]
    model: PathBuf,
    /// Held-out samples.
    #[arg(long, default_value_t = 300)]
    count: u64,
    /// Questions of each, at most.
    #[arg(long, default_value_t = 2)]
    questions: usize,
}

/// What the pictures of one batch are like: all become as many tiles.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// One picture, cut into tiles if it is large: 1, 3 or 5 with the thumbnail.
    Cut(usize),
    /// One picture of any size, seen as one tile.
    Whole,
    /// Several pictures of one tile each.
    Several(usize),
}

/// Sizes of pictures, by the tiles they become.
const SIZES: [(usize, &[(i32, i32)]); 3] = [
    (1, &[(96, 96), (128, 128), (120, 100), (100, 120), (80, 80), (112, 96)]),
    (3, &[(192, 96), (96, 192), (240, 120), (120, 240), (200, 110), (160, 80)]),
    (5, &[(192, 192), (224, 224), (200, 190), (180, 200)]),
];

impl Kind {
    /// Single tiles are cheap and teach most; all others come often enough.
    fn of(batch: u64) -> Self {
        match batch % 16 {
            0..=5 => Self::Cut(1),
            6..=8 => Self::Whole,
            9..=10 => Self::Cut(3),
            11..=12 => Self::Cut(5),
            13 | 14 => Self::Several(2),
            _ => Self::Several(3),
        }
    }

    fn tiles(self) -> usize {
        match self {
            Self::Cut(tiles) | Self::Several(tiles) => tiles,
            Self::Whole => 1,
        }
    }

    fn shown(self, side: usize, random: &mut Random) -> SampleLayout {
        let any = |random: &mut Random| random.pick(&SIZES).1;
        let sizes = match self {
            Self::Several(count) => return SampleLayout::Several(count, side as i32),
            Self::Cut(tiles) => SIZES.iter().find(|(n, _)| *n == tiles).map_or(SIZES[0].1, |s| s.1),
            Self::Whole => any(random),
        };
        let (width, height) = random.pick(sizes);
        SampleLayout::One(width, height)
    }
}

/// The tokens of prompts and answers met before, which are few.
type Known = HashMap<String, Vec<u16>>;

/// What turns samples into what the model reads.
struct Reader {
    template: Template,
    tokenizer: Tokenizer,
    image_tokens: ImageTokens,
    settings: Tiling,
    tokens_per_tile: usize,
}

impl Reader {
    fn open(model: &Path) -> Result<Self> {
        let path = model.join("config.json");
        let text = std::fs::read_to_string(&path);
        let text = text.with_context(|| format!("cannot read {}", path.display()))?;
        let config: serde_json::Value = serde_json::from_str(&text)?;
        let number = |value: &serde_json::Value| {
            let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
            number.with_context(|| format!("{}: a size is no number", path.display()))
        };
        let side = number(&config["vision_config"]["image_size"])?;
        let grid = side / number(&config["vision_config"]["patch_size"])? / 2;
        Ok(Self {
            template: Template::open(model)?,
            tokenizer: Tokenizer::open(&model.join("tokenizer.json"))?,
            image_tokens: ImageTokens {
                start: "<img>".to_owned(),
                image: "<IMG_CONTEXT>".to_owned(),
                end: "</img>".to_owned(),
                video: None,
            },
            settings: Tiling {
                image_size: side,
                min_tiles: number(&config["min_dynamic_patch"])?,
                max_tiles: number(&config["max_dynamic_patch"])?,
                use_thumbnail: true,
                scale: Scale::IMAGENET,
            },
            tokens_per_tile: grid * grid,
        })
    }

    /// The bytes of batch `number`.
    fn batch(&self, number: u64, flags: &Flags, known: &mut Known) -> Result<Vec<u8>> {
        let kind = Kind::of(number);
        let tiles = kind.tiles();
        let pictures = (flags.pictures / tiles).max(1);
        let length = tiles * self.tokens_per_tile + TEXT_TOKENS_MAX;
        let mut out = self.header(pictures, tiles, flags.questions)?;
        let mut text = Text::default();
        for index in 0..pictures as u64 {
            let index = number * flags.pictures as u64 + index;
            let mut random = Random::new(!index);
            let settings = self.settings_for(kind);
            let (sample, seen) = self.sample(index, kind, &settings, flags, &mut random)?;
            out.extend(seen);
            for question in 0..flags.questions {
                // A sample with few questions repeats them.
                let question = &sample.questions[question % sample.questions.len()];
                let both = self.encode(question, &counts(kind), known)?;
                text.push(question, both, length)?;
            }
        }
        out.extend(text.bytes());
        Ok(out)
    }

    /// The sizes that a batch begins with.
    fn header(&self, pictures: usize, tiles: usize, questions: usize) -> Result<Vec<u8>> {
        let length = tiles * self.tokens_per_tile + TEXT_TOKENS_MAX;
        let mut out = MAGIC.to_le_bytes().to_vec();
        for size in [pictures, tiles, questions, length, self.settings.image_size] {
            out.extend(u32::try_from(size)?.to_le_bytes());
        }
        Ok(out)
    }

    /// A held-out sample with its first questions as a batch; nothing if it has none.
    fn prompts(&self, index: u64, most: usize) -> Result<Vec<u8>> {
        let sample = Sample::new(Split::HeldOut, index, SampleLayout::of(index));
        let questions = sample.questions.get(..most).unwrap_or(&sample.questions);
        if questions.is_empty() {
            return Ok(Vec::new());
        }
        let count = |picture: &Canvas| mosaic(picture, &self.settings).1;
        let counts: Vec<usize> = sample.pictures.iter().map(count).collect();
        let tiles = counts.iter().sum::<usize>();
        let mut out = self.header(1, tiles, questions.len())?;
        for picture in &sample.pictures {
            out.extend(pixels(picture, &self.settings)?);
        }
        let (mut text, mut known) = (Text::default(), Known::new());
        for question in questions {
            let both = self.encode(question, &counts, &mut known)?;
            text.push(question, both, tiles * self.tokens_per_tile + TEXT_TOKENS_MAX)?;
        }
        out.extend(text.bytes());
        Ok(out)
    }

    fn settings_for(&self, kind: Kind) -> Tiling {
        let max_tiles = match kind {
            Kind::Whole => 1,
            Kind::Cut(_) | Kind::Several(_) => self.settings.max_tiles,
        };
        Tiling { max_tiles, ..self.settings.clone() }
    }

    /// A sample that has a question, with the pixels of its tiles.
    fn sample(
        &self,
        index: u64,
        kind: Kind,
        settings: &Tiling,
        flags: &Flags,
        random: &mut Random,
    ) -> Result<(Sample, Vec<u8>)> {
        let split = if flags.held_out { Split::HeldOut } else { Split::Train };
        for attempt in 0..100 {
            let shown = kind.shown(settings.image_size, random);
            let sample = Sample::new(split, index * 128 + attempt, shown);
            if sample.questions.is_empty() {
                continue;
            }
            let mut seen = Vec::new();
            for picture in &sample.pictures {
                seen.extend(pixels(picture, settings)?);
            }
            let wanted = kind.tiles() * settings.image_size * settings.image_size * 3;
            ensure!(seen.len() == wanted, "{shown:?} is not cut into {} tiles", kind.tiles());
            return Ok((sample, seen));
        }
        bail!("a hundred samples in a row have no question")
    }

    /// The tokens of a prompt about pictures of `counts` tiles, and those of its answer.
    fn encode(
        &self,
        question: &Question,
        counts: &[usize],
        known: &mut Known,
    ) -> Result<(Vec<u16>, Vec<u16>)> {
        let name = format!("{counts:?}{}", question.text);
        let asked = match known.get(&name) {
            Some(asked) => asked.clone(),
            None => {
                let turn = Turn::from_marked("user", &question.text, counts.len())?;
                let messages = [turn.message(ContentFormat::Text)];
                let prompt = self.template.render(&messages, true, 0, &Told::default())?;
                let run = |tiles: &usize| vec![ImageTokenRun::bare(tiles * self.tokens_per_tile)];
                let runs: Vec<Vec<ImageTokenRun>> = counts.iter().map(run).collect();
                let asked = self.tokens(&expand(&prompt, &self.image_tokens, &runs)?)?;
                known.insert(name, asked.clone());
                asked
            }
        };
        Ok((asked, self.tokens(&format!("{}<|im_end|>", question.answer))?))
    }

    fn tokens(&self, text: &str) -> Result<Vec<u16>> {
        let tokens = self.tokenizer.encode(text)?;
        Ok(tokens.into_iter().map(u16::try_from).collect::<Result<_, _>>()?)
    }
}

/// What a batch says after its pixels.
#[derive(Default)]
struct Text {
    tokens: Vec<u16>,
    answers: Vec<u16>,
}

impl Text {
    /// A prompt with its answer, filled up to `length` tokens.
    fn push(
        &mut self,
        question: &Question,
        (asked, answered): (Vec<u16>, Vec<u16>),
        length: usize,
    ) -> Result<()> {
        let all = asked.len() + answered.len();
        ensure!(all <= length, "{question:?} takes {all} of {length} tokens");
        self.tokens.extend(asked.iter().chain(&answered));
        self.tokens.extend(std::iter::repeat_n(0, length - all));
        self.answers.extend([asked.len() as u16, all as u16, question.task as u16]);
        Ok(())
    }

    fn bytes(self) -> impl Iterator<Item = u8> {
        self.tokens.into_iter().chain(self.answers).flat_map(u16::to_le_bytes)
    }
}

/// Tiles of each picture.
fn counts(kind: Kind) -> Vec<usize> {
    match kind {
        Kind::Cut(tiles) => vec![tiles],
        Kind::Whole => vec![1],
        Kind::Several(count) => vec![1; count],
    }
}

/// The mosaic a picture is cut into, and how many tiles that are, the thumbnail included.
fn mosaic(canvas: &Canvas, settings: &Tiling) -> (Mosaic, usize) {
    let mosaic = Mosaic::closest(canvas.width, canvas.height, settings);
    (mosaic, mosaic.with_thumbnail(settings))
}

/// The tiles of a picture as the model's preprocessing cuts them: `[tiles, side, side, 3]`.
fn pixels(canvas: &Canvas, settings: &Tiling) -> Result<Vec<u8>> {
    let picture = Image::from_rgb(canvas.width, canvas.height, canvas.rgb.clone())?;
    let (mosaic, count) = mosaic(canvas, settings);
    Ok(tiles(&picture, mosaic, settings.image_size, count).concat())
}

pub(crate) fn write(flags: &Flags) -> Result<()> {
    let reader = Reader::open(&flags.model)?;
    ensure!(flags.threads > 0 && flags.questions > 0, "give at least one thread and question");
    let end = flags.count.map_or(u64::MAX, |count| flags.first + count);
    thread::scope(|scope| {
        let (mut queues, threads) = (Vec::new(), flags.threads as u64);
        for thread in 0..threads {
            let (to, from) = sync_channel(AHEAD);
            let reader = &reader;
            scope.spawn(move || make(reader, flags, flags.first + thread..end, to));
            queues.push(from);
        }
        let mut out = io::stdout().lock();
        for batch in flags.first..end {
            let queue = &queues[((batch - flags.first) % threads) as usize];
            let bytes = queue.recv().context("a thread ended early")??;
            if let Err(error) = out.write_all(&bytes) {
                // Whoever read has enough.
                queues.clear();
                return if error.kind() == io::ErrorKind::BrokenPipe {
                    Ok(())
                } else {
                    Err(error.into())
                };
            }
        }
        Ok(())
    })
}

pub(crate) fn write_prompts(flags: &Prompts) -> Result<()> {
    let reader = Reader::open(&flags.model)?;
    let mut out = io::stdout().lock();
    for index in 0..flags.count {
        out.write_all(&reader.prompts(index, flags.questions)?)?;
    }
    Ok(())
}

/// Makes every batch of a thread, until nobody takes them.
fn make(
    reader: &Reader,
    flags: &Flags,
    range: std::ops::Range<u64>,
    to: SyncSender<Result<Vec<u8>>>,
) {
    let mut known = Known::new();
    for batch in range.step_by(flags.threads) {
        if to.send(reader.batch(batch, flags, &mut known)).is_err() {
            return;
        }
    }
}
