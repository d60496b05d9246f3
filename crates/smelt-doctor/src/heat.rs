//! Checks how far the device is from slowing itself down.
//!
//! A zone of `/sys/class/thermal` has a temperature and trip points, in thousandths of a degree
//! Celsius; at a `passive` one the kernel lowers clocks, at a `critical` one it turns the device off.

use crate::finding::{Finding, Severity};
use crate::tree::Tree;

/// Closer to a limit than this, a build of an hour will meet it.
const NEAR_MILLI_C: i64 = 10_000;
/// Where a zone names no limit.
const HOT_MILLI_C: i64 = 85_000;
/// Sensors that are off read as less or more than these.
const CREDIBLE_MILLI_C: std::ops::Range<i64> = -40_000..150_000;
/// More than the zones and points of any device.
const ZONES_MAX: usize = 128;
const TRIPS_MAX: usize = 12;

/// A place whose temperature is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Zone {
    name: String,
    milli_c: i64,
    /// Where it slows down or turns off.
    limit_milli_c: Option<i64>,
}

impl Zone {
    fn limit(&self) -> i64 {
        self.limit_milli_c.unwrap_or(HOT_MILLI_C)
    }

    fn left(&self) -> i64 {
        self.limit().saturating_sub(self.milli_c)
    }
}

pub(crate) fn read(tree: &Tree) -> Vec<Zone> {
    let names = tree.list("sys/class/thermal").into_iter();
    let zones = names.filter(|name| name.starts_with("thermal_zone")).take(ZONES_MAX);
    zones.filter_map(|name| zone(tree, &format!("sys/class/thermal/{name}"))).collect()
}

fn zone(tree: &Tree, folder: &str) -> Option<Zone> {
    let milli_c: i64 = tree.number(&format!("{folder}/temp"))?;
    if !CREDIBLE_MILLI_C.contains(&milli_c) {
        return None;
    }
    let trip = |at: usize| {
        let kind = tree.line(&format!("{folder}/trip_point_{at}_type"))?;
        let limits = matches!(kind.as_str(), "passive" | "hot" | "critical");
        let milli_c: i64 = tree.number(&format!("{folder}/trip_point_{at}_temp"))?;
        (limits && milli_c > 0 && CREDIBLE_MILLI_C.contains(&milli_c)).then_some(milli_c)
    };
    let limit_milli_c = (0..TRIPS_MAX).filter_map(trip).min();
    let name = tree.line(&format!("{folder}/type")).unwrap_or_else(|| "unnamed".to_owned());
    Some(Zone { name, milli_c, limit_milli_c })
}

/// `thermal`: the zone that is closest to its limit; `None` where nothing is measured.
pub(crate) fn thermal(zones: &[Zone]) -> Option<Finding> {
    const ID: &str = "thermal";
    let worst = zones.iter().min_by_key(|zone| zone.left())?;
    let (now, limit) = (worst.milli_c / 1000, worst.limit() / 1000);
    let (severity, title, why) = match worst.left() {
        ..=0 => (
            Severity::Problem,
            format!("{now} °C: the device is slowing itself down"),
            "Builds take longer than their timeouts allow, and at the next limit the device turns \
             off. Let it cool, look after its fan, or use a lower power mode.",
        ),
        1..NEAR_MILLI_C => (
            Severity::Warning,
            format!("{now} °C, and at {limit} °C the device slows itself down"),
            "Under an hour of load it will be there. Look after its fan, or use a lower power mode.",
        ),
        _ => (Severity::Ok, format!("{now} °C where it is closest to its {limit} °C"), ""),
    };
    let seen = format!("/sys/class/thermal, {}: {now} °C of {limit} °C", worst.name);
    Some(Finding::new(severity, ID, title).seen(seen).because(why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::tree;

    #[test]
    fn the_zone_closest_to_its_limit_counts() {
        let zone = |milli_c, limit_milli_c| Zone { name: String::new(), milli_c, limit_milli_c };
        let check = |zones: &[Zone], expect| {
            assert_eq!(thermal(zones).map(|found| found.severity), expect, "{zones:?}");
        };
        check(&[], None);
        check(&[zone(50_000, Some(99_000)), zone(60_000, Some(70_000))], Some(Severity::Ok));
        check(&[zone(50_000, Some(99_000)), zone(60_001, Some(70_000))], Some(Severity::Warning));
        check(&[zone(99_000, Some(99_000))], Some(Severity::Problem));
        check(&[zone(84_999, None)], Some(Severity::Warning));
        check(&[zone(85_000, None)], Some(Severity::Problem));
        check(&[zone(i64::MIN / 2, None)], Some(Severity::Ok));
    }

    #[test]
    fn zones_are_read_with_their_lowest_limit() {
        let zone = "sys/class/thermal/thermal_zone8";
        let files = [
            ("sys/class/thermal/thermal_zone0/temp", "-256000\n"),
            ("sys/class/thermal/thermal_zone1/type", "cv0-thermal\n"),
            ("sys/class/thermal/cooling_device0/temp", "1\n"),
            (&*format!("{zone}/temp"), "49406\n"),
            (&*format!("{zone}/type"), "tj-thermal\n"),
            (&*format!("{zone}/trip_point_0_type"), "active\n"),
            (&*format!("{zone}/trip_point_0_temp"), "51000\n"),
            (&*format!("{zone}/trip_point_1_type"), "critical\n"),
            (&*format!("{zone}/trip_point_1_temp"), "104500\n"),
            (&*format!("{zone}/trip_point_2_type"), "passive\n"),
            (&*format!("{zone}/trip_point_2_temp"), "99000\n"),
        ];
        let expect =
            Zone { name: "tj-thermal".to_owned(), milli_c: 49_406, limit_milli_c: Some(99_000) };
        assert_eq!(read(&tree(&files).1), [expect]);
    }
}
