use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::*;

/// A machine in memory, whose process may die, or be refused, at any call.
#[derive(Default)]
struct Machine {
    files: BTreeSet<PathBuf>,
    on: BTreeSet<PathBuf>,
    /// What each note says, and whether somebody alive holds it.
    notes: BTreeMap<PathBuf, (PathBuf, bool)>,
    calls: u32,
    /// The call that fails, and whether the process dies there.
    trouble: Option<(u32, Trouble)>,
    is_dead: bool,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Trouble {
    /// Refused; nothing was done.
    Refused,
    /// Died before it was done.
    DiedBefore,
    /// Died when it was done.
    DiedAfter,
}

#[derive(Clone, Default)]
struct Simulated(Rc<RefCell<Machine>>);

struct NoteLock(Simulated, PathBuf);

impl Drop for NoteLock {
    fn drop(&mut self) {
        if let Some((_, held)) = self.0.0.borrow_mut().notes.get_mut(&self.1) {
            *held = false;
        }
    }
}

impl Simulated {
    fn step(&self, act: impl FnOnce(&mut Machine) -> Result<(), String>) -> Result<(), String> {
        let mut machine = self.0.borrow_mut();
        if machine.is_dead {
            return Err("nobody does anything any more".to_owned());
        }
        machine.calls += 1;
        let trouble = machine.trouble.filter(|(at, _)| *at == machine.calls).map(|(_, what)| what);
        match trouble {
            Some(Trouble::Refused) => return Err("refused".to_owned()),
            Some(Trouble::DiedBefore) => machine.is_dead = true,
            Some(Trouble::DiedAfter) => {
                let _ = act(&mut machine);
                machine.is_dead = true;
            }
            None => return act(&mut machine),
        }
        Err("died".to_owned())
    }
}

impl System for Simulated {
    type Held = NoteLock;

    fn note(&self, note: &Path, swap: &Path) -> Result<NoteLock, String> {
        self.step(|machine| {
            machine.notes.insert(note.to_owned(), (swap.to_owned(), true));
            Ok(())
        })?;
        Ok(NoteLock(self.clone(), note.to_owned()))
    }

    fn dead_notes(&self, dir: &Path) -> Vec<(PathBuf, PathBuf, NoteLock)> {
        let notes = self.0.borrow().notes.clone();
        let dead = notes.into_iter().filter(|(note, (_, held))| note.starts_with(dir) && !held);
        dead.map(|(note, (swap, _))| (note.clone(), swap, NoteLock(self.clone(), note))).collect()
    }

    fn allocate(&self, swap: &Path, _: u64) -> Result<(), String> {
        self.step(|machine| {
            machine.files.insert(swap.to_owned());
            Ok(())
        })
    }

    fn format(&self, _: &Path) -> Result<(), String> {
        self.step(|_| Ok(()))
    }

    fn turn_on(&self, swap: &Path) -> Result<(), String> {
        self.step(|machine| {
            machine.on.insert(swap.to_owned());
            Ok(())
        })
    }

    fn is_on(&self, swap: &Path) -> bool {
        self.0.borrow().on.contains(swap)
    }

    fn turn_off(&self, swap: &Path) -> Result<(), String> {
        self.step(|machine| {
            machine.on.remove(swap);
            Ok(())
        })
    }

    fn remove(&self, file: &Path) -> Result<(), String> {
        self.step(|machine| {
            if machine.on.contains(file) {
                return Err("the kernel keeps swap files that are on".to_owned());
            }
            machine.files.remove(file);
            machine.notes.remove(file);
            Ok(())
        })
    }
}

const NOTES: &str = "/store/swap";

fn on(system: &Simulated) -> Result<TemporarySwap<Simulated>, String> {
    TemporarySwap::on(system.clone(), Path::new(NOTES), Path::new("/ssd"), "r.a.2", 1 << 20)
}

fn left(system: &Simulated) -> (usize, usize, usize) {
    let machine = system.0.borrow();
    (machine.on.len(), machine.files.len(), machine.notes.len())
}

#[test]
fn it_is_on_and_then_nothing_is_left() {
    let system = Simulated::default();
    let swap = on(&system).unwrap();
    assert_eq!(left(&system), (1, 1, 1));
    assert_eq!(clear_dead(&system, Path::new(NOTES)), [""; 0], "it is ours, and we live");
    swap.off().unwrap();
    assert_eq!(left(&system), (0, 0, 0));
    drop(on(&system).unwrap());
    assert_eq!(left(&system), (0, 0, 0), "who panics turns it off as well");
}

#[test]
fn whatever_fails_or_kills_us_the_next_start_leaves_nothing() {
    // Seven calls: note, allocate, format, turn on, turn off, remove twice.
    for call in 1..=7 {
        for trouble in [Trouble::Refused, Trouble::DiedBefore, Trouble::DiedAfter] {
            let system = Simulated::default();
            system.0.borrow_mut().trouble = Some((call, trouble));
            let outcome = on(&system).map(|swap| swap.off().is_ok());
            let met = system.0.borrow().calls >= call;
            assert!(met, "call {call} was never made");
            if trouble == Trouble::Refused {
                let expected = if call <= 4 { outcome.is_err() } else { outcome.is_ok() };
                assert!(expected, "call {call}: {outcome:?}");
            }
            let next = Simulated(Rc::clone(&system.0));
            next.0.borrow_mut().is_dead = false;
            next.0.borrow_mut().trouble = None;
            // The dead hold nothing.
            next.0.borrow_mut().notes.values_mut().for_each(|(_, held)| *held = false);
            clear_dead(&next, Path::new(NOTES));
            assert_eq!(left(&next), (0, 0, 0), "call {call}, {trouble:?}");
        }
    }
}

#[test]
fn what_is_no_place_for_swap_is_refused() {
    let ground = |file_system: Result<&'static str, &str>, ram: Option<&str>, mib: u64| Ground {
        file_system: file_system.map_err(str::to_owned),
        ram_device: ram.map(str::to_owned),
        free_bytes: mib << 20,
    };
    let check = |ground: Ground, words: Option<&str>| {
        let said = ground.refuses(Path::new("/d"), 1 << 30);
        assert_eq!(said.is_some(), words.is_some(), "{said:?}");
        assert!(said.is_none_or(|said| said.contains(words.unwrap())));
    };
    check(ground(Ok("ext4"), None, 1536), None);
    check(ground(Ok("ext4"), None, 1535), Some("1535 MiB free, and 1024 MiB of swap want 1536"));
    check(ground(Ok("ext4"), Some("zram1"), 9000), Some("/d is on zram1, which is memory"));
    check(ground(Err("tmpfs is memory"), None, 9000), Some("/d: tmpfs is memory"));
}

#[test]
fn the_size_is_what_is_said_or_follows_from_the_plan() {
    let said = SwapSpec { bytes: Some(5), dir: None };
    assert_eq!(wanted_bytes(&said, Some(7), Some(9)), Some(5));
    assert_eq!(wanted_bytes(&SwapSpec::default(), Some(7), Some(9)), Some(7));
    assert_eq!(wanted_bytes(&SwapSpec::default(), None, Some(9)), Some(9));
}
