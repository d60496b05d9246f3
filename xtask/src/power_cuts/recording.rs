//! Records what smelt in a guest does to a disk, and draws the moments at which power is cut.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use smelt_random::Random;

use super::block_log::{BLOCK, BlockLog, Cut, Request, SECTOR, Unflushed};
use super::machine::syncless;
use super::workload::{GuestEvent, Promises, SCRIPT, all_told, promises};
use crate::guest::Machine;

/// The file system, in blocks; what the script builds fits many times.
const BLOCKS: usize = 15 << 10;
/// Behind it is room for what the guest tells, a block each time.
const TOLD_BLOCKS: usize = 1 << 10;

/// Most of that is QEMU executing instructions one by one on a busy machine.
const LIMIT: Duration = Duration::from_secs(400);

/// How QEMU gives a disk to a guest, so that what it writes in one piece is a block.
pub(super) const DEVICE: &str = "virtio-blk-pci,write-cache=on,discard=off,write-zeroes=off,logical_block_size=4096,physical_block_size=4096";

/// Whether smelt's syncs do anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Syncs {
    Work,
    /// The control: a power cut has to show.
    DoNothing,
}

/// A disk before smelt, and all that it was told since.
pub(super) struct Recording {
    pub(super) name: &'static str,
    pub(super) disk: Vec<u8>,
    pub(super) log: BlockLog,
    /// What smelt said, and after how many requests.
    told: Vec<(usize, GuestEvent)>,
}

impl Recording {
    /// Runs the script in a guest and keeps what its disk was told in `folder`.
    pub(super) fn make(machine: &Machine, folder: &Path, name: &str, syncs: Syncs) -> Result<()> {
        let path = |end: &str| folder.join(format!("{name}.{end}"));
        let (base, disk, log) = (path("base"), path("disk"), path("log"));
        make_file_system(&base)?;
        fs::copy(&base, &disk)?;
        File::create(&log)?;
        // The host's own syncs keep nothing that this test needs.
        let file = |node: &str, path: &Path| {
            format!("driver=file,node-name={node},cache.no-flush=on,filename={}", path.display())
        };
        let logged = format!(
            "driver=blklogwrites,node-name=logged,file=disk,log=log,log-sector-size={SECTOR},log-super-update-interval=1"
        );
        let device = format!("{DEVICE},drive=logged,serial=disk");
        let disks = [&file("disk", &disk), &file("log", &log), &logged]
            .into_iter()
            .flat_map(|node| ["-blockdev".to_owned(), node.clone()])
            .chain(["-device".to_owned(), device])
            .collect::<Vec<_>>();
        let preload = if syncs == Syncs::Work { String::new() } else { syncless() };
        let script = format!("PRELOAD={preload}\nrecord {BLOCKS}\n{SCRIPT}recorded\n");
        machine.run(name, &script, &disks, LIMIT)?;
        fs::remove_file(&disk)?;
        Ok(())
    }

    pub(super) fn load(folder: &Path, name: &'static str) -> Result<Self> {
        let read = |end: &str| {
            let path = folder.join(format!("{name}.{end}"));
            fs::read(&path).with_context(|| path.display().to_string())
        };
        let log = BlockLog::parse(read("log")?).context("the log of the disk")?;
        let told = log.requests.iter().enumerate().filter_map(|(at, request)| match request {
            Request::Write { at: place, data, .. } if *place >= BLOCKS * BLOCK => {
                Some((at + 1, log.data(data)))
            }
            _ => None,
        });
        let told = all_told(told)
            .with_context(|| format!("see {}", folder.join(format!("{name}.console")).display()))?;
        Ok(Self { name, disk: read("base")?, log, told })
    }

    /// What smelt had promised when the power went.
    pub(super) fn promises(&self, cut: &Cut) -> Promises {
        let before = self.told.iter().filter(|(after, _)| *after <= cut.after);
        promises(&before.map(|(_, told)| told.clone()).collect::<Vec<_>>())
    }

    pub(super) fn summary(&self) -> String {
        let flushes = self.flushes().len();
        let writes = self.log.requests.len() - flushes - self.told.len();
        format!("{writes} writes, {flushes} flushes, {} times told", self.told.len())
    }

    fn flushes(&self) -> Vec<usize> {
        let requests = self.log.requests.iter().enumerate();
        requests.filter(|(_, r)| matches!(r, Request::Flush)).map(|(at, _)| at).collect()
    }

    /// Moments in their order, no two alike.
    pub(super) fn draw(&self, points: usize, seed: u64) -> Result<Vec<(Moment, Cut)>> {
        /// A draw that was drawn before does not count; of this many, enough do.
        const DRAWS_PER_POINT: usize = 50;
        let flushes = self.flushes();
        ensure!(!flushes.is_empty(), "the guest flushed nothing");
        let mut random = Random::new(seed);
        let mut drawn = BTreeSet::new();
        for draw in 0..points * DRAWS_PER_POINT {
            if drawn.len() == points {
                break;
            }
            drawn.insert(match Moment::ALL[draw % Moment::ALL.len()] {
                moment @ Moment::BeforeFlush => {
                    let after = flushes[random.below(flushes.len())];
                    (Cut { after, unflushed: Unflushed::Lost }, moment)
                }
                moment @ Moment::Told => {
                    let (after, _) = self.told[random.below(self.told.len())];
                    (Cut { after, unflushed: Unflushed::Lost }, moment)
                }
                moment @ Moment::Between => {
                    let after = 1 + random.below(self.log.requests.len());
                    (Cut { after, unflushed: Unflushed::Drawn(random.next_u64()) }, moment)
                }
            });
        }
        ensure!(drawn.len() == points, "the recording is too short for {points} cuts");
        Ok(drawn.into_iter().map(|(cut, moment)| (moment, cut)).collect())
    }
}

/// Where a cut comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Moment {
    /// When the most is written and not flushed, all of which is lost.
    BeforeFlush,
    /// Anywhere; blocks that were not flushed are lost or not by a draw.
    Between,
    /// Just when smelt has said something; what was not flushed is lost.
    Told,
}

impl Moment {
    pub(super) const ALL: [Self; 3] = [Self::BeforeFlush, Self::Between, Self::Told];

    pub(super) fn text(self) -> &'static str {
        match self {
            Self::BeforeFlush => "before a flush, the unflushed lost",
            Self::Between => "anywhere, some of the unflushed lost",
            Self::Told => "after a word of smelt's, the unflushed lost",
        }
    }
}

/// An empty ext4, and room behind it.
fn make_file_system(path: &Path) -> Result<()> {
    let file = File::create(path).with_context(|| path.display().to_string())?;
    file.set_len(((BLOCKS + TOLD_BLOCKS) * BLOCK) as u64)?;
    // Nothing is left for the guest's kernel to initialise while it is recorded.
    let mut make = Command::new("mke2fs");
    make.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-E"])
        .arg("lazy_itable_init=0,lazy_journal_init=0,nodiscard")
        .arg(path)
        .arg(BLOCKS.to_string());
    ensure!(make.status().context("cannot start mke2fs")?.success(), "{make:?} failed");
    Ok(())
}
