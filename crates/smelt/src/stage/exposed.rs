//! Finds stages that may write where the store is: what is sealed there is safe from all others.

use std::path::{Path, PathBuf};

use serde_json::Value;
use smelt_exec::Way;
use smelt_plan::Plan;
use smelt_plan::kind::WRITES;
use smelt_plan::plan::Stage;

use super::order::place;

/// A line for each stage of the pipeline in `folder` that could change what the store holds, where the kernel confines it by `way`.
pub(crate) fn lines(plan: &Plan, folder: &Path, store: &Path, way: Option<Way>) -> Vec<String> {
    let Some(way) = way else { return Vec::new() };
    let store = real(store);
    let of = |stage: &Stage| {
        let place = reaching(stage, folder, &store, way)?;
        let (name, store) = (&stage.name, store.display());
        Some(format!(
            "stage {name}: writes = [\"{place}\"] reaches the store {store}, so it can change what is sealed there; name folders beside it"
        ))
    };
    plan.stages().filter_map(|(_, stage)| of(stage)).collect()
}

/// The first place of a stage that leads into the store.  `/` lifts everything, and says so by itself.
fn reaching<'a>(stage: &'a Stage, folder: &Path, store: &Path, way: Way) -> Option<&'a str> {
    let places = stage.params.get(WRITES)?.as_array()?;
    let mut places = places.iter().filter_map(Value::as_str).filter(|&text| text != "/");
    places.find(|text| reaches(&real(&place(text, folder)), store, way))
}

/// Whether who writes to the place can write to the store.  Mounts keep a store read-only that lies in a place, and Landlock knows no exceptions.
fn reaches(place: &Path, store: &Path, way: Way) -> bool {
    let is_within = place.starts_with(store) && place != store;
    is_within || store.starts_with(place) && way == Way::Landlock
}

fn real(path: &Path) -> PathBuf {
    let absolute = || std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    path.canonicalize().unwrap_or_else(|_| absolute())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_reached_from_above_and_from_within() {
        let check = |place: &str, by_landlock: bool, by_mounts: bool| {
            let reaches = |way| reaches(Path::new(place), Path::new("/w/cache"), way);
            assert_eq!(reaches(Way::Landlock), by_landlock, "{place}");
            assert_eq!([Way::Mounts, Way::UserMounts].map(reaches), [by_mounts; 2], "{place}");
        };
        check("/w", true, false);
        check("/w/cache", true, false);
        check("/w/cache/out", true, true);
        check("/w/other", false, false);
        check("/w/cache2", false, false);
    }
}
