//! Keeps how long kernels took, so that a `tune` that was interrupted times none of them again.
//!
//! A file of lines of JSON: first of which card and kernels they are, then one of each kernel, in the order in which they were timed.
//! What is of another card or kernels, or cut off, counts as not there.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use serde::{Deserialize, Serialize};
use smelt_cuda::tactics::{ProductSize, TunedCard};

const FILE: &str = "timings.jsonl";
/// A decoder has some thousand kernels to time, of 100 bytes each.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Of what they are.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Whose {
    card: TunedCard,
    /// The digest of the kernels.
    kernels: String,
    /// How fast the board lets it run, where it says so, and by which driver: times of two of them cannot be compared.
    conditions: Vec<Option<String>>,
}

/// What was timed: form, rows, columns, tokens and the kernel's name.
type Timed = (String, u32, u32, u32, String);

/// How long a kernel took, in seconds; none of one that does not fit.
#[derive(Serialize, Deserialize)]
struct Took(Timed, Option<f64>);

/// The times that are known.
#[derive(Default)]
pub(super) struct Timings {
    known: BTreeMap<Timed, Option<f64>>,
    /// Where more are kept; nothing where that fails, which costs no more than time.
    file: Option<File>,
}

impl Timings {
    /// Those that an earlier attempt has kept in a folder.
    pub(super) fn open(
        folder: Option<&Path>,
        (card, kernels): (&TunedCard, &str),
        conditions: Vec<Option<String>>,
    ) -> Self {
        let Some(folder) = folder else { return Self::default() };
        let whose = Whose { card: card.clone(), kernels: kernels.to_owned(), conditions };
        let path = folder.join(FILE);
        let (known, whole) = read(&path, &whose);
        let mut open = OpenOptions::new();
        let file = open.write(true).create(true).truncate(false).open(&path).ok();
        let mut timings = Self { known, file };
        timings.cut(whole, &whose);
        timings
    }

    /// How many are known.
    pub(super) fn count(&self) -> usize {
        self.known.len()
    }

    /// How long a kernel took, by `time` where nobody has timed it yet.
    pub(super) fn of<E>(
        &mut self,
        (size, tokens, name): (ProductSize, u32, String),
        time: impl FnOnce() -> Result<Option<f64>, E>,
    ) -> Result<Option<f64>, E> {
        let ProductSize { form, rows, columns } = size;
        let timed = (form.name.to_owned(), rows, columns, tokens, name);
        if let Some(took) = self.known.get(&timed) {
            return Ok(*took);
        }
        let took = time()?;
        self.keep(&Took(timed.clone(), took));
        self.known.insert(timed, took);
        Ok(took)
    }

    /// Drops what is behind the whole lines, or all where there is none.
    fn cut(&mut self, whole: u64, whose: &Whose) {
        use std::io::Seek as _;
        let Some(file) = &mut self.file else { return };
        let is_cut = file.set_len(whole).is_ok() && file.seek(std::io::SeekFrom::End(0)).is_ok();
        if !is_cut {
            self.file = None;
        } else if whole == 0 {
            self.keep(whose);
        }
    }

    /// Writes a line, all of it or nothing that counts.
    fn keep(&mut self, what: &impl Serialize) {
        let Some(file) = &mut self.file else { return };
        let mut line = serde_json::to_vec(what).expect("names and numbers are JSON");
        line.push(b'\n');
        if file.write_all(&line).is_err() {
            self.file = None;
        }
    }
}

/// The times of a file that is of these kernels, and how many of its bytes are whole lines.
fn read(path: &Path, whose: &Whose) -> (BTreeMap<Timed, Option<f64>>, u64) {
    let is_small = fs::metadata(path).is_ok_and(|stat| stat.len() <= FILE_BYTES_MAX);
    let text = if is_small { fs::read(path).unwrap_or_default() } else { Vec::new() };
    let mut lines = text.split_inclusive(|byte| *byte == b'\n');
    let (mut known, mut whole) = (BTreeMap::new(), 0);
    let head = lines.next().filter(|line| {
        line.ends_with(b"\n")
            && serde_json::from_slice(line).is_ok_and(|found: Whose| found == *whose)
    });
    let Some(head) = head else { return (known, 0) };
    whole += head.len() as u64;
    for line in lines.take_while(|line| line.ends_with(b"\n")) {
        let Ok(Took(timed, took)) = serde_json::from_slice(line) else { break };
        known.insert(timed, took);
        whole += line.len() as u64;
    }
    (known, whole)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use smelt_cuda::kernels::form::WeightForm;

    use super::*;

    fn card(name: &str) -> TunedCard {
        TunedCard { name: name.to_owned(), target: "cuda-sm87".to_owned(), multiprocessors: 16 }
    }

    fn size(rows: u32) -> ProductSize {
        ProductSize { form: WeightForm::ALL[0], rows, columns: 2048 }
    }

    /// The time of a kernel, and whether it was timed for that.
    fn timed(timings: &mut Timings, rows: u32, took: Option<f64>) -> (Option<f64>, bool) {
        let mut is_timed = false;
        let found = timings.of((size(rows), 8, "f8_2x8".to_owned()), || {
            is_timed = true;
            Ok::<_, Infallible>(took)
        });
        (found.unwrap(), is_timed)
    }

    #[test]
    fn what_was_timed_is_not_timed_again() {
        let dir = tempfile::tempdir().unwrap();
        let open = |name: &str, kernels: &str| {
            Timings::open(Some(dir.path()), (&card(name), kernels), vec![Some("15W".to_owned())])
        };
        let mut first = open("Orin", "k1");
        assert_eq!(timed(&mut first, 64, Some(0.5)), (Some(0.5), true));
        assert_eq!(timed(&mut first, 128, None), (None, true));
        assert_eq!(timed(&mut first, 64, Some(9.0)), (Some(0.5), false));
        drop(first);
        let mut again = open("Orin", "k1");
        assert_eq!(again.count(), 2);
        assert_eq!(timed(&mut again, 64, Some(9.0)), (Some(0.5), false));
        assert_eq!(timed(&mut again, 128, Some(9.0)), (None, false));
        assert_eq!(timed(&mut again, 256, Some(0.25)), (Some(0.25), true));
        drop(again);
        assert_eq!(open("Orin", "k1").count(), 3);
        // Of other kernels, or another card, none counts, and theirs are kept from then on.
        assert_eq!(open("Orin", "k2").count(), 0);
        assert_eq!(open("Orin", "k1").count(), 0);
        assert_eq!(open("Thor", "k1").count(), 0);
        timed(&mut open("Thor", "k1"), 64, Some(0.5));
        let other_mode = vec![Some("MAXN".to_owned())];
        let other_mode = Timings::open(Some(dir.path()), (&card("Thor"), "k1"), other_mode);
        assert_eq!(other_mode.count(), 0, "times of two power modes are not compared");
    }

    #[test]
    fn a_line_that_was_cut_off_is_timed_again_and_harms_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Timings::open(Some(dir.path()), (&card("Orin"), "k"), Vec::new());
        let mut first = open();
        for rows in [64, 128] {
            timed(&mut first, rows, Some(0.5));
        }
        drop(first);
        let path = dir.path().join(FILE);
        let whole = fs::read(&path).unwrap();
        for end in 0..whole.len() {
            fs::write(&path, &whole[..end]).unwrap();
            let mut cut = open();
            assert!(cut.count() < 2, "{end}");
            timed(&mut cut, 64, Some(0.5));
            timed(&mut cut, 128, Some(0.5));
            drop(cut);
            assert!(fs::read(&path).unwrap() == whole, "{end}");
        }
        fs::write(&path, "nonsense\n").unwrap();
        assert_eq!(open().count(), 0);
    }

    #[test]
    fn without_a_folder_all_is_timed() {
        let mut none = Timings::open(None, (&card("Orin"), "k"), Vec::new());
        assert_eq!(timed(&mut none, 64, Some(0.5)), (Some(0.5), true));
        let mut gone = Timings::open(Some(Path::new("/nowhere")), (&card("Orin"), "k"), Vec::new());
        assert_eq!(timed(&mut gone, 64, Some(0.5)), (Some(0.5), true));
    }
}
