//! Tests the store as a whole.
//!
//! `crash` and `failure` play a script on the simulated disk with something going wrong at every
//! operation; `collecting` and `checking` do so to collections and repairs; `damage` damages logs;
//! `locks`, `sealing` and `sources` use the real one.

mod checking;
mod collecting;
mod crash;
mod damage;
mod failure;
mod locks;
mod memos;
mod script;
mod sealing;
mod sources;
