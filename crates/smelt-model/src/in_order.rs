//! Shares numbered work out to threads and takes the results in order.
//!
//! A thread that is done before its turn waits with its one result, so no more results exist than
//! threads, and what is taken does not depend on how many there are.  Knows nothing of the work.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Whose turn it is, and what ended the work early.
struct Turn<Take, E> {
    next: usize,
    take: Take,
    failed: Option<E>,
}

/// Calls `make(scratch, index)` for each index below `count` on at most `threads` threads, each with
/// a `scratch` of its own, and `take(scratch)` in order of index, one at a time.
///
/// # Errors
/// The failure of the lowest index; nothing of a higher index is taken.
pub fn in_order<S: Default, E: Send>(
    count: usize,
    threads: usize,
    make: impl Fn(&mut S, usize) -> Result<(), E> + Sync,
    take: impl FnMut(&mut S) -> Result<(), E> + Send,
) -> Result<(), E> {
    let begun = AtomicUsize::new(0);
    let turn = Mutex::new(Turn { next: 0, take, failed: None });
    let changed = Condvar::new();
    let work = || {
        let mut scratch = S::default();
        loop {
            let index = begun.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return;
            }
            let made = make(&mut scratch, index);
            let waits = |turn: &mut Turn<_, _>| turn.next != index && turn.failed.is_none();
            let held = changed.wait_while(locked(&turn), waits);
            let mut turn = held.unwrap_or_else(PoisonError::into_inner);
            if turn.failed.is_some() {
                return;
            }
            turn.failed = made.and_then(|()| (turn.take)(&mut scratch)).err();
            turn.next += 1;
            changed.notify_all();
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.min(count) {
            scope.spawn(work);
        }
        work();
    });
    let failed = locked(&turn).failed.take();
    failed.map_or(Ok(()), Err)
}

/// A panic elsewhere is that thread's to report; the turn itself is never half changed.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(count: usize, threads: usize, bad: Option<usize>) -> (Vec<usize>, Result<(), usize>) {
        let mut taken = Vec::new();
        let make = |scratch: &mut usize, index: usize| {
            // Later ones finish first, if they can.
            thread::sleep(std::time::Duration::from_micros(((count - index) % 7) as u64 * 50));
            *scratch = index;
            if bad.is_some_and(|bad| index >= bad) { Err(index) } else { Ok(()) }
        };
        let take = |scratch: &mut usize| {
            taken.push(*scratch);
            Ok(())
        };
        let result = in_order(count, threads, make, take);
        (taken, result)
    }

    #[test]
    fn results_are_taken_in_order_by_any_number_of_threads() {
        for threads in [1, 2, 3, 8, 100] {
            assert_eq!(run(40, threads, None), ((0..40).collect(), Ok(())));
        }
        assert_eq!(run(0, 4, None), (vec![], Ok(())));
    }

    #[test]
    fn the_first_failure_in_order_is_the_one_told() {
        for threads in [1, 2, 5] {
            assert_eq!(run(40, threads, Some(9)), ((0..9).collect(), Err(9)));
        }
    }

    #[test]
    fn what_cannot_be_taken_ends_the_work() {
        let take = |scratch: &mut usize| if *scratch == 3 { Err("full") } else { Ok(()) };
        let make = |scratch: &mut usize, index| {
            *scratch = index;
            Ok(())
        };
        assert_eq!(in_order(1000, 4, make, take), Err("full"));
    }
}
