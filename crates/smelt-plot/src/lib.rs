//! Draws figures as SVG: plain shapes and text, the same bytes for the same figures.
//!
//! [`lines`] draws values along steps, [`scatter`] what things are worth against what they cost, and [`course`] what became
//! of something over time, for a page that styles it.  Knows nothing of what was measured.

pub mod course;
pub mod lines;
pub mod scatter;

mod labels;
mod panel;
mod scale;
mod svg;
