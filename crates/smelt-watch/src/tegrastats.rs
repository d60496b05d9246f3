//! Reads what `tegrastats` says of a Jetson: its GPU, power and temperatures.
//!
//! A line is words in no fixed order; parts that a board lacks are not there, and cores and engines
//! that sleep are `off`.  Parsing is pure; the program runs as our child as long as somebody wants to
//! know.

use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde::Serialize;

/// Lines have some 500 letters.
const LINE_BYTES_MAX: u64 = 8 << 10;
/// Of boards there are with a dozen of each.
const PARTS_MAX: usize = 64;
const MIB: u64 = 1 << 20;

/// One line.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(default)]
pub struct Tegrastats {
    /// Memory in use, the GPU's included, bytes.
    pub ram_used_bytes: Option<u64>,
    /// All there is, bytes.
    pub ram_total_bytes: Option<u64>,
    /// The size of the largest free blocks, bytes, and how many of them there are (`lfb`).
    pub largest_free: Option<(u64, u64)>,
    /// Swap in use and all there is, bytes; none where nothing is swapped to.
    pub swap: Option<(u64, u64)>,
    /// Load of each core in percent; none for one that is off.
    pub cpus_percent: Vec<Option<u32>>,
    /// Load of the GPU in percent.
    pub gpu_percent: Option<u32>,
    /// The GPU's clock in MHz; the fastest where there are several.
    pub gpu_mhz: Option<u32>,
    /// Load of the memory's bus in percent.
    pub bus_percent: Option<u32>,
    /// Degrees Celsius by sensor; of those that are on.
    pub temperatures_c: Vec<(String, f64)>,
    /// Milliwatts by rail.
    pub power_mw: Vec<(String, u64)>,
}

impl Tegrastats {
    /// Takes a line apart; `None` where it holds nothing that we know.
    pub fn parse(line: &str) -> Option<Self> {
        let mut found = Self::default();
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        for (at, &word) in words.iter().enumerate() {
            let next = words.get(at + 1).copied().unwrap_or_default();
            found.take(word, next);
        }
        (found != Self::default()).then_some(found)
    }

    /// Takes a word, which may be the name of the next one.
    fn take(&mut self, word: &str, next: &str) {
        match word {
            "RAM" => {
                let both = pair_of_mib(next);
                self.ram_used_bytes = both.map(|(used, _)| used);
                self.ram_total_bytes = both.map(|(_, total)| total);
            }
            "(lfb" => self.largest_free = blocks(next),
            "SWAP" => self.swap = pair_of_mib(next),
            "CPU" if next.starts_with('[') => self.cpus_percent = cores(next),
            "EMC_FREQ" => self.bus_percent = percent(next),
            "GR3D_FREQ" => {
                self.gpu_percent = percent(next);
                self.gpu_mhz = clock(next);
            }
            _ => {
                self.temperatures_c.extend(temperature(word));
                self.power_mw.extend(power(word, next));
                self.temperatures_c.truncate(PARTS_MAX);
                self.power_mw.truncate(PARTS_MAX);
            }
        }
    }

    /// The temperature that throttles: of the junction, else the highest.
    pub fn hottest_c(&self) -> Option<f64> {
        let junction = self.temperatures_c.iter().find(|(name, _)| name.eq_ignore_ascii_case("tj"));
        let highest = || self.temperatures_c.iter().max_by(|a, b| a.1.total_cmp(&b.1));
        junction.or_else(highest).map(|(_, degrees)| *degrees)
    }

    /// What the board draws in milliwatts: of its input where there is such a rail, else the sum of
    /// what is measured.
    pub fn drawn_mw(&self) -> Option<u64> {
        const INPUTS: [&str; 3] = ["VDD_IN", "POM_5V_IN", "VIN"];
        let input = self.power_mw.iter().find(|(name, _)| INPUTS.contains(&name.as_str()));
        let sum = || self.power_mw.iter().fold(0_u64, |sum, (_, mw)| sum.saturating_add(*mw));
        (!self.power_mw.is_empty()).then(|| input.map_or_else(sum, |(_, mw)| *mw))
    }
}

/// `519/7607MB`.
fn pair_of_mib(word: &str) -> Option<(u64, u64)> {
    let (used, total) = word.strip_suffix("MB")?.split_once('/')?;
    let mib = |text: &str| text.parse::<u64>().ok()?.checked_mul(MIB);
    Some((mib(used)?, mib(total)?))
}

/// `61x4MB)`: blocks of a size.
fn blocks(word: &str) -> Option<(u64, u64)> {
    let (count, size) = word.trim_end_matches(')').strip_suffix("MB")?.split_once('x')?;
    Some((size.parse::<u64>().ok()?.checked_mul(MIB)?, count.parse().ok()?))
}

/// `[0%@1728,off,…]`.
fn cores(word: &str) -> Vec<Option<u32>> {
    let list = word.trim_matches(['[', ']']);
    list.split(',').take(PARTS_MAX).map(percent).collect()
}

/// `45%@612`, `45%`.
fn percent(word: &str) -> Option<u32> {
    word.split_once('%')?.0.parse().ok().filter(|&percent| percent <= 100)
}

/// `45%@612`, `45%@[612]`, `45%@[612,610]`.
fn clock(word: &str) -> Option<u32> {
    let clocks = word.split_once("%@")?.1.trim_matches(['[', ']']);
    clocks.split(',').filter_map(|clock| clock.parse().ok()).max()
}

/// `cpu@48.906C`; a sensor that is off says -256.
fn temperature(word: &str) -> Option<(String, f64)> {
    let (name, degrees) = word.strip_suffix('C')?.split_once('@')?;
    let degrees: f64 = degrees.parse().ok()?;
    (!name.is_empty() && (-100.0..1000.0).contains(&degrees)).then(|| (name.to_owned(), degrees))
}

/// `VDD_IN 5971mW/5971mW`: now, and on average; older releases leave the unit out.
fn power(name: &str, value: &str) -> Option<(String, u64)> {
    let is_rail = ["VDD", "VIN", "POM_"].iter().any(|start| name.starts_with(start));
    let (now, _) = value.split_once('/')?;
    let now = now.strip_suffix("mW").unwrap_or(now).parse().ok()?;
    is_rail.then(|| (name.to_owned(), now))
}

/// The program, running.
#[derive(Debug)]
pub struct TegrastatsProcess {
    child: Child,
    latest: Arc<Mutex<Option<Tegrastats>>>,
}

impl TegrastatsProcess {
    /// Starts it; an error where this is no Jetson.
    pub fn start(interval: Duration) -> io::Result<Self> {
        let mut child = Command::new("tegrastats")
            .arg("--interval")
            .arg(interval.as_millis().max(100).to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let latest = Arc::default();
        if let Some(output) = child.stdout.take() {
            let latest = Arc::clone(&latest);
            thread::spawn(move || listen(BufReader::new(output), &latest));
        }
        Ok(Self { child, latest })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it said last; `None` before its first line.
    pub fn latest(&self) -> Option<Tegrastats> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for TegrastatsProcess {
    fn drop(&mut self) {
        // One that has ended by itself needs no killing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Keeps the last line until there are no more.
fn listen(mut output: impl BufRead, latest: &Mutex<Option<Tegrastats>>) {
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut output).take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(1..) => {
                let said = Tegrastats::parse(&String::from_utf8_lossy(&line));
                let mut latest = latest.lock().unwrap_or_else(PoisonError::into_inner);
                *latest = said.or_else(|| latest.take());
            }
            Ok(0) | Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use smelt_random::Random;

    use super::*;

    const R36: &str = "04-19-2026 01:31:10 RAM 519/7607MB (lfb 61x4MB) CPU [0%@1728,12%@729,off,off] \
        EMC_FREQ 3%@3199 GR3D_FREQ 45%@[1018] NVDEC off NVJPG off VIC off OFA off APE 200 \
        cpu@48.906C soc2@46.593C tj@49.312C cv0@-256C VDD_IN 5971mW/5900mW \
        VDD_CPU_GPU_CV 512mW/1944mW VDD_SOC 2720mW/3659mW";

    #[test]
    fn a_line_of_an_orin_is_taken_apart() {
        let found = Tegrastats::parse(R36).unwrap();
        assert_eq!(found.ram_used_bytes, Some(519 << 20));
        assert_eq!(found.ram_total_bytes, Some(7607 << 20));
        assert_eq!(found.largest_free, Some((4 << 20, 61)));
        assert_eq!(found.swap, None, "swap is off");
        assert_eq!(found.cpus_percent, [Some(0), Some(12), None, None]);
        assert_eq!(
            (found.gpu_percent, found.gpu_mhz, found.bus_percent),
            (Some(45), Some(1018), Some(3))
        );
        assert_eq!((found.hottest_c(), found.drawn_mw()), (Some(49.312), Some(5971)));
        assert_eq!(found.temperatures_c.len(), 3, "a sensor that is off is left out");
        assert_eq!(found.power_mw.len(), 3);
    }

    #[test]
    fn other_boards_and_releases_are_read() {
        let agx = "RAM 18207/62841MB (lfb 466x4MB) SWAP 86/31420MB (cached 0MB) CPU [14%@2188,off] \
            EMC_FREQ 3%@2133 GR3D_FREQ 0%@[1300,1299] NVENC 79%@166 VDD_GPU_SOC 2412mW/2412mW \
            VIN_SYS_5V0 4707mW/4707mW NC 0mW/0mW";
        let found = Tegrastats::parse(agx).unwrap();
        assert_eq!(found.swap, Some((86 << 20, 31_420 << 20)));
        assert_eq!((found.gpu_percent, found.gpu_mhz), (Some(0), Some(1300)));
        assert_eq!(found.drawn_mw(), Some(2412 + 4707));
        assert_eq!(found.hottest_c(), None);
        let nano =
            "RAM 2690/3964MB (lfb 6x1MB) GR3D_FREQ 88% GPU@37.5C PMIC@50C POM_5V_IN 2500/2400";
        let found = Tegrastats::parse(nano).unwrap();
        assert_eq!((found.gpu_percent, found.gpu_mhz), (Some(88), None));
        assert_eq!((found.hottest_c(), found.drawn_mw()), (Some(50.0), Some(2500)));
    }

    #[test]
    fn what_is_no_such_line_says_nothing() {
        for line in
            ["", "RAM", "RAM x/yMB", "RAM 1/18446744073709551615MB", "CPU off", "GR3D_FREQ 300%"]
        {
            assert_eq!(Tegrastats::parse(line), None, "{line}");
        }
    }

    #[test]
    fn no_line_makes_it_panic() {
        let mut random = Random::new(3);
        for _ in 0..20_000 {
            let mut line = R36.as_bytes().to_vec();
            for _ in 0..8 {
                let at = random.below(line.len());
                line[at] = random.pick(b" 0%@[],/xMBC-9.\xff");
            }
            let _ = Tegrastats::parse(&String::from_utf8_lossy(&line));
        }
    }

    #[test]
    fn the_last_good_line_stays() {
        let latest = Mutex::default();
        listen(format!("{R36}\nrubbish\n").as_bytes(), &latest);
        assert_eq!(latest.lock().unwrap().as_ref().and_then(|said| said.gpu_percent), Some(45));
        listen("x".repeat(100_000).as_bytes(), &latest);
        assert!(latest.lock().unwrap().is_some());
    }
}
