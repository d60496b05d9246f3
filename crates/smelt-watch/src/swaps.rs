//! Reads `/proc/swaps`: `NAME TYPE KIB USED PRIORITY` under a line of names.

use std::path::Path;

use serde::Serialize;

use crate::kernel_file;

/// More places to swap to are a mistake; the kernel allows some thirty.
const SWAPS_MAX: usize = 64;

/// A place to swap to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Swap {
    /// Its file, or the file of its device.
    pub name: String,
    /// Whether it is memory itself, compressed.
    pub is_zram: bool,
    /// How much it takes, bytes.
    pub size_bytes: u64,
    /// How much of that is in use, bytes.
    pub used_bytes: u64,
    /// The highest is filled first.
    pub priority: i64,
}

impl Swap {
    /// Reads those of the machine whose file system is at `root`.
    pub fn read(root: &Path) -> Vec<Self> {
        Self::parse(&kernel_file::text(root.join("proc/swaps")).unwrap_or_default())
    }

    /// Takes the file's text apart; lines that are none are passed over.
    pub fn parse(text: &str) -> Vec<Self> {
        text.lines().skip(1).filter_map(line).take(SWAPS_MAX).collect()
    }
}

fn line(line: &str) -> Option<Swap> {
    let mut words = line.split_ascii_whitespace();
    let (name, _kind) = (words.next()?, words.next()?);
    let mut kib = || words.next()?.parse::<u64>().ok()?.checked_mul(1024);
    let (size_bytes, used_bytes) = (kib()?, kib()?);
    Some(Swap {
        name: unescaped(name),
        is_zram: name.starts_with("/dev/zram"),
        size_bytes,
        used_bytes,
        priority: words.next()?.parse().ok()?,
    })
}

/// Blanks in a name are `\040`, so that words are words.
fn unescaped(name: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\134", "\\")]
        .iter()
        .fold(name.to_owned(), |name, (code, letter)| name.replace(code, letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zram_is_told_from_disks() {
        let text = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
                    /dev/zram0                              partition\t649952\t\t12\t\t5\n\
                    /my\\040swap                             file\t\t8388604\t\t0\t\t-2\n";
        let swaps = Swap::parse(text);
        let zram = Swap {
            name: "/dev/zram0".to_owned(),
            is_zram: true,
            size_bytes: 649_952 << 10,
            used_bytes: 12 << 10,
            priority: 5,
        };
        assert_eq!(swaps[0], zram);
        assert_eq!((swaps[1].name.as_str(), swaps[1].is_zram), ("/my swap", false));
        assert_eq!(swaps[1].priority, -2);
    }

    #[test]
    fn what_is_no_line_is_passed_over() {
        let text = "Filename\n\n/a file\n/b file 1 x 2\n/c file 99999999999999999999 0 0\n/d f 18446744073709551615 0 0\n";
        assert_eq!(Swap::parse(text), []);
        assert_eq!(Swap::parse(""), []);
        let many = format!("Filename\n{}", "/a file 1 1 1\n".repeat(900));
        assert_eq!(Swap::parse(&many).len(), SWAPS_MAX);
    }
}
