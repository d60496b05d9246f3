//! Draws pictures of shapes with questions whose answers are known.
//!
//! A seed becomes a [`Scene`], a scene becomes pixels and questions.  Everything is whole-number
//! arithmetic, so a seed gives the same bytes on every machine.  Knows nothing of models.

mod canvas;
mod figure;
mod font;
mod question;
mod sample;
mod scene;

pub use canvas::Canvas;
pub use figure::{Colour, Shape, Size};
pub use question::{Question, Task};
pub use sample::{Sample, SampleLayout, Split, scenes};
pub use scene::{Item, Scene, Sign};
