//! Cuts a buffer into runs of whole rows and gives each run to one thread.
//!
//! Every row is written by one thread in a fixed order, so answers do not depend on how many there
//! are.  Knows nothing of what a row means.

use std::num::NonZero;
use std::thread;

/// How many threads the machine offers; one if it does not say.
pub(super) fn available() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Calls `work(first_row, rows)` for runs of `rows` that together cover `values`.
///
/// `row` is the length of one row; runs are multiples of `step` rows, the last one excepted.
pub(super) fn for_rows(
    threads: usize,
    values: &mut [f32],
    row: usize,
    step: usize,
    work: impl Fn(usize, &mut [f32]) + Sync,
) {
    if values.is_empty() {
        return;
    }
    let rows = values.len() / row;
    let run = rows.div_ceil(threads.max(1)).next_multiple_of(step);
    let work = &work;
    thread::scope(|scope| {
        let mut runs = values.chunks_mut(run * row).enumerate();
        let own = runs.next();
        for (index, rows) in runs {
            scope.spawn(move || work(index * run, rows));
        }
        if let Some((_, rows)) = own {
            work(0, rows);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Marks each row with its own index and says which runs were handed out.
    #[track_caller]
    fn check(threads: usize, rows: usize, step: usize, runs: &[(usize, usize)]) {
        let mut values = vec![-1.0; rows * 3];
        let seen = std::sync::Mutex::new(Vec::new());
        for_rows(threads, &mut values, 3, step, |first, run| {
            seen.lock().unwrap().push((first, run.len() / 3));
            for (index, row) in run.chunks_mut(3).enumerate() {
                row.fill((first + index) as f32);
            }
        });
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable();
        assert_eq!(seen, runs);
        assert!(values.chunks(3).enumerate().all(|(r, row)| row == [r as f32; 3]));
    }

    #[test]
    fn rows_are_shared_out_in_steps() {
        check(2, 10, 4, &[(0, 8), (8, 2)]);
        check(3, 9, 1, &[(0, 3), (3, 3), (6, 3)]);
    }

    #[test]
    fn few_rows_use_few_threads() {
        check(8, 3, 4, &[(0, 3)]);
        check(4, 0, 1, &[]);
    }
}
