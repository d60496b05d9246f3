//! Lets several threads go one at a time, in an order that a seed decides.
//!
//! A thread goes on only in its turn.  At each step it may lose the turn to another, so that with one
//! seed the same steps of all come in the same order every time.

#![allow(unreachable_pub)] // Other crates' tests see it too, by the feature `sim`.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use smelt_random::Random;

/// One step in so many gives the turn away.
const STEPS_A_TURN: usize = 12;
/// More steps than any world takes: whoever comes here waits for ever.
const STEPS_MAX: u64 = 2_000_000;

/// Whose turn it is.
pub struct TurnScheduler {
    state: Mutex<State>,
    /// One for each actor, so that only the next one wakes.
    wakes: Vec<Condvar>,
}

struct State {
    current: usize,
    lives: Vec<bool>,
    chance: Random,
    steps: u64,
}

impl TurnScheduler {
    /// For so many actors, of whom the seed chooses the first.
    pub fn new(actors: usize, seed: u64) -> Self {
        let mut chance = Random::new(seed);
        let current = chance.below(actors);
        let state = State { current, lives: vec![true; actors], chance, steps: 0 };
        Self { state: Mutex::new(state), wakes: (0..actors).map(|_| Condvar::new()).collect() }
    }

    /// Waits for the first turn; until the answer is dropped, the actor takes part.
    pub fn begin(&self, actor: usize) -> Actor<'_> {
        drop(self.wait(self.state(), actor));
        Actor { turns: self, actor }
    }

    /// Goes on, or lets another go first.
    pub(crate) fn step(&self, actor: usize) {
        let mut state = self.state();
        state.steps += 1;
        assert!(state.steps < STEPS_MAX, "the actors wait for each other");
        if state.chance.below(STEPS_A_TURN) == 0 {
            self.pass(state, actor);
        }
    }

    /// Lets another go first, if there is another.
    pub fn give_way(&self, actor: usize) {
        let mut state = self.state();
        state.steps += 1;
        assert!(state.steps < STEPS_MAX, "the actors wait for each other");
        self.pass(state, actor);
    }

    fn pass(&self, mut state: MutexGuard<'_, State>, actor: usize) {
        self.choose(&mut state, actor);
        drop(self.wait(state, actor));
    }

    /// Gives the turn to another actor that lives, if there is one.
    fn choose(&self, state: &mut State, actor: usize) {
        let others: Vec<usize> =
            (0..state.lives.len()).filter(|&other| other != actor && state.lives[other]).collect();
        if !others.is_empty() {
            state.current = others[state.chance.below(others.len())];
            self.wakes[state.current].notify_one();
        }
    }

    fn wait<'a>(&self, mut state: MutexGuard<'a, State>, actor: usize) -> MutexGuard<'a, State> {
        while state.current != actor {
            state = self.wakes[actor].wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The part an actor takes; the others go on without it once it is dropped.
pub struct Actor<'a> {
    turns: &'a TurnScheduler,
    actor: usize,
}

impl Drop for Actor<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.state();
        state.lives[self.actor] = false;
        self.turns.choose(&mut state, self.actor);
    }
}
