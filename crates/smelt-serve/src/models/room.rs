//! Says which models leave memory so that others have room.
//!
//! Plain arithmetic.  Knows no model.

/// A model in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Resident {
    /// Bytes of its engines.
    pub(super) bytes: u64,
    /// When it was asked last: larger is later.
    pub(super) used: u64,
    /// Whether it is answering somebody.
    pub(super) is_busy: bool,
    /// Whether it lives in a device's own memory: then the machine gains nothing when it leaves.
    pub(super) is_on_device: bool,
}

/// What stays free for the rest of the machine, as a part of its memory.
const FREE_PART_MIN: f64 = 0.05;

/// The places of models to unload so that `need` bytes more than are `available` come free, in the machine's memory or
/// in a device's own: of those there that answer nobody, the ones that were asked longest ago.  Nothing if that does not
/// suffice.
pub(super) fn make_room(
    loaded: &[Resident],
    is_on_device: bool,
    need: u64,
    available: u64,
) -> Option<Vec<usize>> {
    let (mut free, mut leaving) = (available, Vec::new());
    for at in idle(loaded).into_iter().filter(|at| loaded[*at].is_on_device == is_on_device) {
        if free >= need {
            break;
        }
        free += loaded[at].bytes;
        leaving.push(at);
    }
    (free >= need).then_some(leaving)
}

/// The place of the model to unload since one did not fit beside the others: of those that answer nobody
/// the one that was asked longest ago, and never `stays`.
pub(super) fn make_way(loaded: &[Resident], stays: Option<usize>) -> Option<usize> {
    idle(loaded).into_iter().find(|at| Some(*at) != stays)
}

/// The places of models that answer nobody, those first that were asked longest ago.
fn idle(loaded: &[Resident]) -> Vec<usize> {
    let mut idle: Vec<usize> = (0..loaded.len()).filter(|at| !loaded[*at].is_busy).collect();
    idle.sort_unstable_by_key(|at| loaded[*at].used);
    idle
}

/// The place of the model to unload since the machine runs out of memory, if one may go: the one that
/// was asked last stays.
pub(super) fn relieve(loaded: &[Resident], available: u64, total: u64) -> Option<usize> {
    if available as f64 >= total as f64 * FREE_PART_MIN {
        return None;
    }
    let last = loaded.iter().map(|model| model.used).max();
    let others = loaded.iter().enumerate().filter(|(_, model)| Some(model.used) != last);
    let idle = others.filter(|(_, model)| !model.is_busy && !model.is_on_device);
    idle.min_by_key(|(_, model)| model.used).map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(models: &[(u64, u64, bool)]) -> Vec<Resident> {
        let resident = |&(bytes, used, is_busy): &(u64, u64, bool)| Resident {
            bytes,
            used,
            is_busy,
            is_on_device: false,
        };
        models.iter().map(resident).collect()
    }

    #[track_caller]
    fn check(models: &[(u64, u64, bool)], need: u64, available: u64, expect: Option<&[usize]>) {
        let found = make_room(&loaded(models), false, need, available);
        assert_eq!(found.as_deref(), expect);
    }

    #[test]
    fn who_was_asked_longest_ago_makes_room() {
        check(&[], 5, 5, Some(&[]));
        check(&[], 6, 5, None);
        check(&[(3, 9, false), (3, 7, false), (3, 8, false)], 9, 4, Some(&[1, 2]));
        check(&[(3, 9, false), (3, 7, true), (3, 8, false)], 9, 4, Some(&[2, 0]));
        check(&[(3, 9, false), (3, 7, true)], 9, 4, None);
    }

    #[test]
    fn who_does_not_fit_has_others_leave_while_there_are_idle_ones() {
        let models = loaded(&[(3, 9, false), (3, 7, true), (3, 8, false)]);
        assert_eq!(make_way(&models, None), Some(2));
        assert_eq!(make_way(&models, Some(2)), Some(0));
        assert_eq!(make_way(&models[..2], Some(0)), None, "the other one is busy");
        assert_eq!(make_way(&[], None), None);
    }

    #[test]
    fn what_lives_on_a_device_makes_no_room_in_the_machine() {
        let mut models = loaded(&[(3, 9, false), (3, 7, false), (3, 8, false)]);
        models[1].is_on_device = true;
        assert_eq!(make_room(&models, false, 7, 4), Some(vec![2]));
        assert_eq!(make_room(&models, false, 11, 4), None);
        assert_eq!(make_room(&models, true, 7, 4), Some(vec![1]));
        assert_eq!(make_room(&models, true, 8, 4), None);
        assert_eq!(make_room(&models, true, 4, 4), Some(vec![]), "there is room");
        assert_eq!(relieve(&models, 0, 1000), Some(2));
        assert_eq!(make_way(&models, None), Some(1), "another one may lack the device's memory");
    }

    #[test]
    fn under_pressure_all_but_the_last_may_go() {
        let models = loaded(&[(3, 9, false), (3, 7, true), (3, 8, false)]);
        assert_eq!(relieve(&models, 50, 1000), None);
        assert_eq!(relieve(&models, 49, 1000), Some(2));
        assert_eq!(relieve(&models[..2], 49, 1000), None, "the other one is busy");
        assert_eq!(relieve(&models[..1], 0, 1000), None);
    }
}
