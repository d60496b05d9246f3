//! Measures how right a deployment is, beside how fast and how large: question by question, one
//! deployment after another, each against the first.
//!
//! [`question`] reads what is asked, [`measure`] asks it, [`distributions`] keeps what the first
//! deployment thought of every answer token, [`score`] holds the figures, [`report`] and [`plot`]
//! show them; [`golden`] only looks for what is wrong.  Knows nothing of pipelines, nor of the process it runs in.

pub mod distributions;
pub mod golden;
pub mod measure;
pub mod plot;
pub mod question;
pub mod report;
pub mod score;
