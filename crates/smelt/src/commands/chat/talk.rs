//! `smelt chat` without a question: a conversation, a line a turn, with history.
//!
//! A service answers, so what a slot holds of the conversation is not read again and a picture is
//! looked at once.  What is said is on standard output, all else on standard error.

use std::io::{self, BufRead, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use smelt_exec::served;
use smelt_runtime::deployment::{Deployment, Text};
use smelt_runtime::generation::{Constraint, SamplingParams};
use smelt_runtime::image::{Image, MediaItem};
use smelt_runtime::media_plan::MediaPlan;
use smelt_runtime::prepare::{Prepared, Question};
use smelt_runtime::prompt::{PromptPart, Turn};
use smelt_runtime::service::{self, Client, Event, Options, Priority, Request, Service, Stats};
use smelt_runtime::similarity::Asked;
use smelt_runtime::template::Context;

use super::behind::Behind;
use super::looking::{EMPTY, Looking};
use super::{film, smaller};
use crate::claim;
use crate::console::{answer, tell, tell_raw};
use crate::exit::{Exit, Failed};
use crate::flags::{ChatFlags, FrameFlags};
use crate::loading::{Loading, WARMING_UP};
use crate::table;

/// How often it is looked whether a check has ended that goes on behind.
const NEWS_PERIOD: Duration = Duration::from_millis(200);

/// The longest line read: more than any context holds.
const LINE_BYTES_MAX: u64 = 16 << 20;

const HELP: &str = "/image FILE and /video FILE show a picture or a film with the next line, /clear begins anew, /quit ends";
/// Of a model that reads text alone.
const HELP_OF_TEXT: &str = "/clear begins anew, /quit ends";

/// Of a model that was trained on single questions.
const FORGETS: &str = "this model sees the pictures of a conversation, but forgets what was said: ask each question whole";

/// What a line asks for.
#[derive(Debug, PartialEq, Eq)]
enum Line<'a> {
    Say(&'a str),
    Image(PathBuf),
    Video(PathBuf),
    Clear,
    Help,
    Quit,
    Nothing,
    Unknown(&'a str),
}

impl<'a> Line<'a> {
    /// A line that begins with a slash is a command; with two, it says what is behind the first.
    fn parse(line: &'a str) -> Self {
        let line = line.trim();
        if let Some(said) = line.strip_prefix('/').filter(|rest| rest.starts_with('/')) {
            return Self::Say(said);
        }
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match (word, rest.trim()) {
            ("", _) => Self::Nothing,
            ("/image", file) if !file.is_empty() => Self::Image(PathBuf::from(file)),
            ("/video", file) if !file.is_empty() => Self::Video(PathBuf::from(file)),
            ("/clear", "") => Self::Clear,
            ("/help", "") => Self::Help,
            ("/quit" | "/exit", "") => Self::Quit,
            (word, _) if word.starts_with('/') => Self::Unknown(line),
            _ => Self::Say(line),
        }
    }
}

/// The conversation so far.
#[derive(Default)]
struct Conversation {
    turns: Vec<Turn>,
    shown: Vec<MediaItem>,
    /// Films and pictures that the next line shows.
    films: Vec<MediaItem>,
    next: Vec<MediaItem>,
}

impl Conversation {
    /// Says `line` behind what was said; what cannot be prepared is not said.
    fn prepare(&mut self, text: &Text, line: &str, answer_max: usize) -> Result<Prepared, String> {
        let turn = Turn::from_marked("user", line, self.next.len());
        let before = self.shown.len();
        self.turns.push(turn.map_err(|error| error.to_string())?.behind_clips(self.films.len()));
        self.shown.append(&mut self.films);
        self.shown.append(&mut self.next);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (turns, shown, context) = (&self.turns, &self.shown, &Context::default());
        let (answer_max, now_s) = (Some(answer_max), now.as_secs());
        let question = Question { turns, shown, context, answer_max, now_s, reuse: None };
        text.prepare(&question).map_err(|error| {
            self.turns.pop();
            self.shown.truncate(before);
            error.to_string()
        })
    }

    /// The model has said `line`, or nothing that can be said again.
    fn heard(&mut self, line: &str) {
        match Turn::from_parts("assistant", &[PromptPart::Text(line)]) {
            Ok(turn) => self.turns.push(turn),
            Err(error) => tell(format_args!("the answer is not kept: {error}")),
        }
    }

    /// Reads a picture for the next line, and tells its cost.
    fn show(&mut self, text: &Text, path: PathBuf) {
        let picture = match Image::open(&path) {
            Ok(picture) => picture,
            Err(error) => return tell(error),
        };
        let what = format!("{}x{}", picture.width(), picture.height());
        if let Some(shown) = counted(text, MediaItem::from(picture), (&path, &what)) {
            self.next.push(shown);
        }
    }

    /// Reads a film for the next line, and tells its cost.
    fn play(&mut self, text: &Text, path: &Path, frames: FrameFlags) {
        match film(path, text, frames) {
            Ok(shown) => self.films.extend(counted(text, shown, (path, "a film"))),
            Err(error) => tell(error),
        }
    }
}

/// What is to be shown, after its cost was told; nothing where it cannot be.
fn counted(text: &Text, shown: MediaItem, (path, what): (&Path, &str)) -> Option<MediaItem> {
    // What will be asked is not known yet.
    let tokens = match MediaPlan::new(text, &shown, Asked { words: "", reuse: None }) {
        Ok(sight) => sight.tokens(),
        Err(error) => {
            tell(error);
            return None;
        }
    };
    tell(format_args!("{}: {what}, {tokens} image tokens", path.display()));
    Some(shown)
}

/// Who answers a conversation.
pub(super) fn serve(deployment: Deployment, loading: &mut Loading<'_>) -> Result<Service, Failed> {
    let options = Options { queue_max: 1, running_max: 1, ..Options::default() };
    let told = &mut |done| loading.runs(done, WARMING_UP);
    Service::start_heard(deployment, options, told).map_err(failed)
}

/// Talks until standard input ends, beginning with the flags' pictures and films.
pub(super) fn talk(
    service: &Service,
    sampling_params: &SamplingParams,
    flags: &ChatFlags,
    behind: &mut Behind,
) -> Result<Exit, Failed> {
    let may_take = service.may_take_bytes();
    let _claim = claim::open(super::NAME, served::own_bytes().saturating_add(may_take));
    behind.begin();
    let mut conversation = Conversation::default();
    let (text, frames) = (service.text(), flags.frames);
    flags.video.iter().for_each(|path| conversation.play(text, path, frames));
    flags.image.iter().for_each(|path| conversation.show(text, path.clone()));
    let help = if service.text().image_processor.is_some() { HELP } else { HELP_OF_TEXT };
    let is_terminal = io::stdin().is_terminal();
    if service.text().template.forgets() {
        tell(FORGETS);
    }
    if is_terminal {
        tell(help);
    }
    let typed = typed();
    loop {
        if is_terminal {
            tell_raw("> ");
        }
        let Some(line) = awaited(&typed, behind, is_terminal)? else { return Ok(Exit::Ok) };
        match Line::parse(&line) {
            Line::Say(line) => turn(service, sampling_params, &mut conversation, line)?,
            Line::Image(path) => conversation.show(service.text(), path),
            Line::Video(path) => conversation.play(service.text(), &path, flags.frames),
            Line::Clear => conversation = Conversation::default(),
            Line::Help => tell(help),
            Line::Quit => return Ok(Exit::Ok),
            Line::Nothing => {}
            Line::Unknown(line) => tell(format_args!("{line:?} is no command; {help}")),
        }
    }
}

/// The lines of standard input as they come, to its end.
fn typed() -> Receiver<io::Result<String>> {
    // What is read ahead is read for nobody where the conversation ends.
    let (sender, typed) = sync_channel(0);
    thread::spawn(move || {
        loop {
            let mut line = String::new();
            let read = io::Read::take(io::stdin().lock(), LINE_BYTES_MAX).read_line(&mut line);
            if matches!(read, Ok(0)) || sender.send(read.map(|_| line)).is_err() {
                return;
            }
        }
    });
    typed
}

/// The next line, unless there is none any more; meanwhile it is told how the check ended that goes on behind.
fn awaited(
    typed: &Receiver<io::Result<String>>,
    behind: &mut Behind,
    is_terminal: bool,
) -> Result<Option<String>, Failed> {
    loop {
        if let Some(news) = told_of(behind, is_terminal)? {
            tell(news);
            if is_terminal {
                tell_raw("> ");
            }
        }
        let patience = if behind.goes_on() { NEWS_PERIOD } else { Duration::MAX };
        match typed.recv_timeout(patience) {
            Ok(Ok(line)) => return Ok(Some(line)),
            Ok(Err(error)) => tell(format_args!("the line is not read: {error}")),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
        }
    }
}

/// How the check ended, if it just has; of a terminal the prompt's line is empty then.
fn told_of(behind: &mut Behind, is_terminal: bool) -> Result<Option<String>, Failed> {
    let news = behind.news();
    if is_terminal && !matches!(news, Ok(None)) {
        tell_raw(EMPTY);
    }
    news
}

/// One line and its answer.
fn turn(
    service: &Service,
    sampling_params: &SamplingParams,
    conversation: &mut Conversation,
    line: &str,
) -> Result<(), Failed> {
    let start = Instant::now();
    let prepared = match conversation.prepare(service.text(), line, sampling_params.new_tokens_max)
    {
        Ok(prepared) => prepared,
        Err(why) => {
            tell(why);
            return Ok(());
        }
    };
    let client = Client::default();
    let (constraint, priority, seen) = (Constraint::default(), Priority::Normal, prepared.seen);
    let choice_params = vec![sampling_params.clone()];
    let request = Request {
        client,
        prepared,
        choice_params,
        constraint,
        priority,
        deadline: None,
        scored: None,
    };
    let before = Steps::of(&service.stats());
    let mut events = service.submit(request).map_err(Failed::usage)?;
    let (mut cost, mut looking) = (Cost::default(), Looking::new());
    let mut said = String::new();
    while let Some(event) = events.wait() {
        match event {
            Event::Looking { part, parts } => looking.at(part, parts),
            Event::Read { prompt_tokens, cached_tokens } => {
                (cost.prompt, cost.cached) = (prompt_tokens, cached_tokens);
                cost.first_s = start.elapsed().as_secs_f64();
            }
            Event::Emitted { text, .. } => {
                looking.clear();
                answer(&text)?;
                said += &text;
            }
            Event::Ended { tokens, .. } => cost.said = tokens,
            Event::Failed(failure) => {
                looking.clear();
                return Err(Failed::model(failure));
            }
            Event::Scored { .. } => {}
        }
    }
    looking.clear();
    cost.steps = Steps::of(&service.stats()).since(before);
    answer("\n")?;
    tell(cost.line() + &smaller(&seen, service.text().max_seq_len));
    conversation.heard(&said);
    Ok(())
}

/// What an answer took.
#[derive(Default)]
struct Cost {
    prompt: usize,
    cached: usize,
    said: usize,
    first_s: f64,
    steps: Steps,
}

/// Steps of the decoder, each a token of the only answer there is, and their seconds.  What is heard comes
/// later and together, if the terminal is slow: its times say nothing of the model's.
#[derive(Clone, Copy, Default)]
struct Steps {
    count: u64,
    seconds: f64,
}

impl Steps {
    fn of(stats: &Stats) -> Self {
        let seconds = stats.step_seconds.sum + stats.choose_seconds.sum;
        Self { count: stats.step_seconds.count(), seconds }
    }

    fn since(self, before: Self) -> Self {
        Self { count: self.count - before.count, seconds: self.seconds - before.seconds }
    }
}

impl Cost {
    fn line(&self) -> String {
        let Self { prompt, cached, said, first_s, steps } = self;
        let rate = table::rate(steps.count, steps.seconds);
        let rate = rate.map_or_else(String::new, |rate| format!(", then {rate}"));
        let first = table::seconds(*first_s);
        format!(
            "{prompt} prompt tokens ({cached} of them read before), {said} answered; first token after {first}{rate}"
        )
    }
}

fn failed(error: service::StartError) -> Failed {
    match error {
        service::StartError::DoesNotFit(why) => Failed::new(Exit::DoesNotFit, why),
        service::StartError::OverCap(why) => Failed::new(Exit::DoesNotFit, why),
        error => Failed::model(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_said_unless_they_begin_with_a_slash() {
        for (line, expect) in [
            ("What is it?\n", Line::Say("What is it?")),
            ("//image is a word", Line::Say("/image is a word")),
            ("/image  my picture.png \n", Line::Image(PathBuf::from("my picture.png"))),
            ("/video a b.mp4", Line::Video(PathBuf::from("a b.mp4"))),
            ("/video", Line::Unknown("/video")),
            ("/clear", Line::Clear),
            ("/help", Line::Help),
            ("/exit\n", Line::Quit),
            ("  \n", Line::Nothing),
            ("/image", Line::Unknown("/image")),
            ("/clear all", Line::Unknown("/clear all")),
            ("/usr/bin", Line::Unknown("/usr/bin")),
        ] {
            assert_eq!(Line::parse(line), expect, "{line:?}");
        }
    }

    #[test]
    fn a_rate_needs_steps() {
        let cost = Cost { prompt: 9, cached: 4, said: 1, first_s: 0.5, steps: Steps::default() };
        assert!(cost.line().ends_with("first token after 0.5 s"), "{}", cost.line());
        let (before, after) = (Steps { count: 5, seconds: 2.0 }, Steps { count: 15, seconds: 3.0 });
        let cost = Cost { said: 11, steps: after.since(before), ..cost };
        assert!(cost.line().ends_with("then 10.0 tokens/s"), "{}", cost.line());
    }
}
