//! Adds up the energy that the machine's sensors tell while something runs.
//!
//! Two kinds are known: counters of joules that processors keep (powercap's RAPL), and the volts and
//! amperes of a board's INA3221.  A machine without either has no figure.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often a sensor is read.
const EVERY: Duration = Duration::from_millis(100);

/// A sensor of the whole machine.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Sensor {
    /// Microjoules so far, of each package; counts up to the second file's number, then from 0.
    Joules(Vec<[PathBuf; 2]>),
    /// Millivolts and milliamperes of the board's supply.
    Supply([PathBuf; 2]),
}

impl Sensor {
    /// The sensor below `/sys`, if there is one that can be read.
    fn find(sys: &Path) -> Option<Self> {
        supply(&sys.join("class/hwmon")).or_else(|| packages(&sys.join("class/powercap")))
    }
}

/// The channel of an INA3221 that feeds the board: `VDD_IN` on a Jetson.
fn supply(hwmon: &Path) -> Option<Sensor> {
    let devices = fs::read_dir(hwmon).ok()?.flatten().map(|entry| entry.path());
    let mut boards = devices.filter(|dir| word(&dir.join("name")).as_deref() == Some("ina3221"));
    let dir = boards.next()?;
    let is_input =
        |channel: &u32| word(&dir.join(format!("in{channel}_label"))).as_deref() == Some("VDD_IN");
    let channel = (1..=3).find(is_input)?;
    let paths = ["in", "curr"].map(|kind| dir.join(format!("{kind}{channel}_input")));
    paths.iter().all(|path| number(path).is_some()).then_some(Sensor::Supply(paths))
}

fn packages(powercap: &Path) -> Option<Sensor> {
    let zones = fs::read_dir(powercap).ok()?.flatten().map(|entry| entry.path());
    let is_package =
        |dir: &PathBuf| word(&dir.join("name")).is_some_and(|name| name.starts_with("package"));
    let mut packages: Vec<[PathBuf; 2]> = zones
        .filter(is_package)
        .map(|dir| [dir.join("energy_uj"), dir.join("max_energy_range_uj")])
        .filter(|[energy, _]| number(energy).is_some())
        .collect();
    packages.sort();
    (!packages.is_empty()).then_some(Sensor::Joules(packages))
}

fn word(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn number(path: &Path) -> Option<u64> {
    word(path)?.parse().ok()
}

/// What a sensor told, added up.
#[derive(Debug, Default)]
struct Sum {
    joules: f64,
    before: Option<(Instant, Vec<u64>)>,
}

impl Sum {
    fn add(&mut self, sensor: &Sensor, now: Instant) {
        let told: Option<Vec<u64>> = match sensor {
            Sensor::Joules(packages) => packages.iter().map(|[energy, _]| number(energy)).collect(),
            Sensor::Supply(paths) => paths.iter().map(|path| number(path)).collect(),
        };
        let Some(told) = told else { return };
        if let Some((then, before)) = &self.before {
            self.joules += match sensor {
                Sensor::Supply(_) => {
                    let watts = |told: &[u64]| told[0] as f64 * told[1] as f64 * 1e-6;
                    f64::midpoint(watts(before), watts(&told)) * (now - *then).as_secs_f64()
                }
                Sensor::Joules(packages) => {
                    let since = |((now, before), [_, most]): ((&u64, &u64), &[PathBuf; 2])| {
                        let lap = if now < before { number(most).unwrap_or(0) } else { 0 };
                        (now + lap).saturating_sub(*before) as f64 * 1e-6
                    };
                    told.iter().zip(before).zip(packages).map(since).sum()
                }
            };
        }
        self.before = Some((now, told));
    }
}

/// Measures until it is asked for the sum.
pub(crate) struct Meter {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<f64>,
}

impl Meter {
    /// Begins, if this machine has a sensor.
    pub(crate) fn begin() -> Option<Self> {
        let sensor = Sensor::find(Path::new("/sys"))?;
        let is_over = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&is_over);
        let thread = thread::spawn(move || {
            let mut sum = Sum::default();
            loop {
                let is_last = end.load(Ordering::Relaxed);
                sum.add(&sensor, Instant::now());
                if is_last {
                    return sum.joules;
                }
                thread::sleep(EVERY);
            }
        });
        Some(Self { is_over, thread })
    }

    /// Joules since it began.
    pub(crate) fn end(self) -> Option<f64> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    #[test]
    fn a_machine_without_sensors_has_no_energy() {
        let sys = tempfile::tempdir().unwrap();
        assert_eq!(Sensor::find(sys.path()), None);
        write(sys.path(), &[("class/hwmon/hwmon0/name", "coretemp\n")]);
        assert_eq!(Sensor::find(sys.path()), None);
    }

    #[test]
    fn volts_times_amperes_times_seconds_are_joules() {
        let sys = tempfile::tempdir().unwrap();
        let files = ["name", "in1_label", "in2_label", "in2_input", "curr2_input"];
        let texts = ["ina3221\n", "VDD_CPU\n", "VDD_IN\n", "5000\n", "1000\n"];
        let at = |name: &str| format!("class/hwmon/hwmon3/{name}");
        for (name, text) in files.iter().zip(texts) {
            write(sys.path(), &[(&at(name), text)]);
        }
        let sensor = Sensor::find(sys.path()).unwrap();
        let (mut sum, start) = (Sum::default(), Instant::now());
        sum.add(&sensor, start);
        write(sys.path(), &[(&at("curr2_input"), "3000\n")]);
        sum.add(&sensor, start + Duration::from_secs(2));
        // From 5 to 15 watts in two seconds.
        assert!((sum.joules - 20.0).abs() < 1e-9, "{}", sum.joules);
    }

    #[test]
    fn counters_that_begin_again_are_followed() {
        let sys = tempfile::tempdir().unwrap();
        let at = |name: &str| format!("class/powercap/intel-rapl:0/{name}");
        let energy = |text: &str| write(sys.path(), &[(&at("energy_uj"), text)]);
        write(
            sys.path(),
            &[(&at("name"), "package-0\n"), (&at("max_energy_range_uj"), "9000000\n")],
        );
        energy("8000000\n");
        let sensor = Sensor::find(sys.path()).unwrap();
        let (mut sum, now) = (Sum::default(), Instant::now());
        for told in ["8000000\n", "8500000\n", "1000000\n"] {
            energy(told);
            sum.add(&sensor, now);
        }
        assert!((sum.joules - 2.0).abs() < 1e-9, "{}", sum.joules);
    }
}
