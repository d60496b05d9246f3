//! Reads who holds a Jetson's GPU memory: `/sys/kernel/debug/nvmap/iovmm/clients`, for root alone.
//!
//! Lines are `CLIENT PROCESS PID SIZE`, the size with a `K` or `M`, and a last one `total SIZE`.  Some
//! releases have a column of shares before the size.  None of it is in any process's RSS.

use std::path::Path;

use serde::Serialize;

use crate::kernel_file;

/// Those with a GPU context at a time; a device has memory for a handful.
const CLIENTS_MAX: usize = 1024;

/// A process that holds memory of the GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NvmapClient {
    /// The process's id.
    pub pid: u32,
    /// Its name as the driver knows it.
    pub name: String,
    /// What it holds, bytes.
    pub bytes: u64,
}

impl NvmapClient {
    /// Reads the machine whose file system is at `root`, the largest first; empty where there is no
    /// such driver or we may not ask.
    pub fn read(root: &Path) -> Vec<Self> {
        let path = root.join("sys/kernel/debug/nvmap/iovmm/clients");
        Self::parse(&kernel_file::text(path).unwrap_or_default())
    }

    /// Takes the file's text apart; lines that are none are passed over.
    pub fn parse(text: &str) -> Vec<Self> {
        let mut clients: Vec<_> = text.lines().filter_map(client).take(CLIENTS_MAX).collect();
        clients.sort_by_key(|client| std::cmp::Reverse(client.bytes));
        clients
    }
}

/// Names may hold blanks, so the size and the id before it are found from the end.
fn client(line: &str) -> Option<NvmapClient> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let is_size = |word: &&str| bytes(word).is_some() && word.parse::<u64>().is_err();
    // Two where there is a share as well.
    let sizes = words.iter().rev().take_while(|word| is_size(word)).count();
    let at = words.len().checked_sub(sizes + 1).filter(|&at| sizes > 0 && at >= 2)?;
    Some(NvmapClient {
        pid: words[at].parse().ok()?,
        name: words[1..at].join(" "),
        bytes: bytes(words.last()?)?,
    })
}

fn bytes(word: &str) -> Option<u64> {
    let (number, unit) = word.split_at(word.trim_end_matches(|c: char| c.is_alphabetic()).len());
    let shift = match unit {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: &[(u32, &str, u64)]) {
        let found = NvmapClient::parse(text);
        let found: Vec<_> = found.iter().map(|c| (c.pid, c.name.as_str(), c.bytes)).collect();
        assert_eq!(found, expect, "{text}");
    }

    #[test]
    fn clients_come_with_the_largest_first() {
        let text = "CLIENT                        PROCESS      PID        SIZE\n\
                    user                             Xorg     2651      17876K\n\
                    user                  VLLM::EngineCor  1792595   14617792K\n\
                    user                   nvargus-daemon     1012          0K\n\
                    total                                            14635668K\n";
        check(
            text,
            &[
                (1_792_595, "VLLM::EngineCor", 14_617_792 << 10),
                (2651, "Xorg", 17_876 << 10),
                (1012, "nvargus-daemon", 0),
            ],
        );
    }

    #[test]
    fn other_releases_and_odd_names_are_read() {
        check("user tmux: server 77 5M\n", &[(77, "tmux: server", 5 << 20)]);
        check("user python3 77 1024K 2048K\n", &[(77, "python3", 2 << 20)]);
        check(
            "user a 1 2\nuser 77 5K\ntotal 4K\n\nx\nuser p q 5K\nuser p 1 99999999999999999999K\n",
            &[],
        );
        check("user p 5 18446744073709551615G\n", &[]);
    }
}
