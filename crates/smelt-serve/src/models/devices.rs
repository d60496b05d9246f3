//! Says what is news of the devices that models answer on: which was lost, answers again, or was given up.
//!
//! What was known and what is in, lines out.

use std::collections::BTreeMap;

use smelt_runtime::service::{ReplicaState, ReplicaStatus};

/// A line for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// All is well again.
    Good(String),
    /// Requests failed.
    Bad(String),
    /// It will not be well again.
    Worst(String),
}

/// How devices stood when they were looked at last, by model and name.
#[derive(Debug, Default)]
pub(super) struct Devices(BTreeMap<(String, String), (ReplicaStatus, u64)>);

impl Devices {
    /// Takes note of how they stand now; gives what is news.
    pub(super) fn look(&mut self, now: &[(String, ReplicaState)]) -> Vec<News> {
        let known = std::mem::take(&mut self.0);
        let mut news = Vec::new();
        for (model, state) in now {
            let key = (model.clone(), state.name.clone());
            let before = known.get(&key).copied().unwrap_or_default();
            news.extend(of(state, before));
            self.0.insert(key, (state.status, state.losses));
        }
        news
    }
}

/// What is news of a device.
fn of(state: &ReplicaState, (status, losses): (ReplicaStatus, u64)) -> Vec<News> {
    let ReplicaState { name, why, .. } = state;
    let why = why.as_deref().unwrap_or("nobody knows why");
    let mut news = Vec::new();
    if state.losses > losses {
        let rest = if state.went_on {
            "; others do what it was doing"
        } else {
            ", and the answers that it was giving"
        };
        news.push(News::Bad(format!("{name} was lost{rest}: {why}")));
    }
    if state.status == ReplicaStatus::Lost && status != ReplicaStatus::Lost {
        news.push(News::Worst(format!("{name} is given up: {why}")));
    }
    let was_away = state.losses > losses || status == ReplicaStatus::Reopening;
    if state.status == ReplicaStatus::Ready && was_away {
        news.push(News::Good(format!("{name} was opened anew and answers again")));
    } else if state.status == ReplicaStatus::Ready && status == ReplicaStatus::Lost {
        news.push(News::Good(format!("{name} answers again")));
    }
    news
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(status: ReplicaStatus, losses: u64) -> (String, ReplicaState) {
        let (name, why) = ("cuda:1".to_owned(), (losses > 0).then(|| "gone".to_owned()));
        ("m".to_owned(), ReplicaState { name, status, losses, why, ..ReplicaState::default() })
    }

    #[test]
    fn each_change_is_told_once() {
        let mut devices = Devices::default();
        let mut look = |status, losses| devices.look(&[state(status, losses)]);
        assert_eq!(look(ReplicaStatus::Ready, 0), []);
        let lost = "cuda:1 was lost, and the answers that it was giving: gone".to_owned();
        assert_eq!(look(ReplicaStatus::Reopening, 1), [News::Bad(lost.clone())]);
        assert_eq!(look(ReplicaStatus::Reopening, 1), []);
        let back = "cuda:1 was opened anew and answers again".to_owned();
        assert_eq!(look(ReplicaStatus::Ready, 1), [News::Good(back.clone())]);
        assert_eq!(look(ReplicaStatus::Ready, 1), []);
        let both = [News::Bad(lost.clone()), News::Good(back)];
        assert_eq!(look(ReplicaStatus::Ready, 2), both, "between two looks");
        let given_up = "cuda:1 is given up: gone".to_owned();
        assert_eq!(look(ReplicaStatus::Lost, 3), [News::Bad(lost), News::Worst(given_up)]);
        assert_eq!(look(ReplicaStatus::Lost, 3), []);
    }

    #[test]
    fn what_others_go_on_with_is_not_lost() {
        let (model, mut lost) = state(ReplicaStatus::Lost, 1);
        lost.went_on = true;
        let mut devices = Devices::default();
        let news = devices.look(&[(model.clone(), lost)]);
        let bad = "cuda:1 was lost; others do what it was doing: gone".to_owned();
        let given_up = "cuda:1 is given up: gone".to_owned();
        assert_eq!(news, [News::Bad(bad), News::Worst(given_up)]);
        let (_, back) = state(ReplicaStatus::Ready, 1);
        let again = "cuda:1 answers again".to_owned();
        assert_eq!(devices.look(&[(model, back)]), [News::Good(again)]);
    }
}
