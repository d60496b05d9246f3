//! Reports what quantising a checkpoint has cost, as JSON and as a table.
//!
//! Figures of tensors come in, in the order of the file.  Holds no time and no path, so that equal
//! inputs give equal bytes.

use serde::Serialize;

use super::figures::{Figures, Sums};
use crate::scheme::{Mark, Scheme};

/// The file beside the weights that says what quantising them has cost.
pub const REPORT_FILE: &str = "quantize-report.json";

/// The version of the report's layout.
const FORMAT: u32 = 1;

/// Tensors the table shows, the worst first: one screen.
const TABLE_ROWS: usize = 10;

/// What quantising one tensor has cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TensorReport {
    /// The tensor.
    pub name: String,
    /// Its scheme's word.
    pub scheme: &'static str,
    /// `[out, in]`.
    pub shape: Vec<usize>,
    /// The way to its integers, where one was chosen for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub way: Option<&'static str>,
    /// The errors.
    #[serde(flatten)]
    pub figures: Figures,
}

/// What quantising a checkpoint has cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    format: u32,
    scheme: &'static str,
    head: &'static str,
    embeddings: &'static str,
    method: String,
    exclude: Vec<String>,
    /// Over all tensors below.
    pub total: Figures,
    /// Each tensor that was rounded, in the order of the file.
    pub tensors: Vec<TensorReport>,
}

/// A report being put together.
#[derive(Default)]
pub(super) struct Draft {
    total: Sums,
    tensors: Vec<TensorReport>,
}

impl Draft {
    pub(super) fn add(
        &mut self,
        name: &str,
        scheme: Scheme,
        shape: &[usize],
        (sums, way): (Sums, Option<&'static str>),
    ) {
        self.total.add(sums);
        let (name, shape) = (name.to_owned(), shape.to_vec());
        let figures = sums.figures();
        self.tensors.push(TensorReport { name, scheme: scheme.name(), shape, way, figures });
    }

    pub(super) fn finish(self, mark: &Mark) -> Report {
        Report {
            format: FORMAT,
            scheme: mark.scheme.name(),
            head: mark.head.name(),
            embeddings: mark.embeddings.name(),
            method: mark.method.clone(),
            exclude: mark.exclude.clone(),
            total: self.total.figures(),
            tensors: self.tensors,
        }
    }
}

impl Report {
    /// The text of [`REPORT_FILE`].
    pub(super) fn text(&self) -> String {
        let text = serde_json::to_string_pretty(self);
        text.expect("a report of text and finite numbers is JSON") + "\n"
    }

    /// The worst tensors first, then a line on all; nothing if no tensor was rounded.
    pub fn table(&self) -> Vec<String> {
        if self.tensors.is_empty() {
            return Vec::new();
        }
        let mut worst: Vec<&TensorReport> = self.tensors.iter().collect();
        let snr = |tensor: &TensorReport| tensor.figures.snr_db.unwrap_or(f64::INFINITY);
        worst.sort_by(|a, b| snr(a).total_cmp(&snr(b)));
        let mut lines = vec![row("SNR dB", "cosine", "max error", "scheme", "tensor")];
        lines.extend(worst.iter().take(TABLE_ROWS).map(|tensor| {
            let [snr, cosine, error] = tensor.figures.words();
            row(&snr, &cosine, &error, tensor.scheme, &tensor.name)
        }));
        let [snr, cosine, error] = self.total.words();
        lines.push(format!(
            "{} tensors rounded by {}: SNR {snr} dB, cosine {cosine}, largest error {error}",
            self.tensors.len(),
            self.method,
        ));
        lines
    }
}

impl Figures {
    fn words(&self) -> [String; 3] {
        let snr = self.snr_db.map_or("exact".to_owned(), |snr| format!("{snr:.2}"));
        [snr, format!("{:.7}", self.cosine), format!("{:.2e}", self.max_abs_error)]
    }
}

fn row(snr: &str, cosine: &str, error: &str, scheme: &str, name: &str) -> String {
    format!("{snr:>7}  {cosine:>9}  {error:>9}  {scheme:<13}  {name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(error: f64) -> Sums {
        Sums { square: 1.0, error, cross: error / 2.0, largest: 0.25 }
    }

    fn report() -> Report {
        let mut draft = Draft::default();
        draft.add("good", Scheme::Int8, &[2, 3], (sums(1e-4), None));
        draft.add("bad", Scheme::Int4G32, &[4, 5], (sums(1e-2), None));
        draft.add("exact", Scheme::Int4G32, &[4, 5], (sums(0.0), None));
        let (scheme, head, embeddings) = (Scheme::Int4G32, Scheme::Int8, Scheme::None);
        draft.finish(&Mark { scheme, head, embeddings, method: "rtn".into(), exclude: vec![] })
    }

    #[test]
    fn the_worst_come_first() {
        let table = report().table();
        assert!(table[1].starts_with("  20.00") && table[1].ends_with("bad"), "{table:?}");
        assert!(table[2].starts_with("  40.00") && table[2].ends_with("good"), "{table:?}");
        assert!(table[3].starts_with("  exact"), "{table:?}");
        assert!(table[4].starts_with("3 tensors rounded by rtn: SNR 24.73 dB"), "{table:?}");
    }

    #[test]
    fn the_file_lists_every_tensor_in_order() {
        let json: serde_json::Value = serde_json::from_str(&report().text()).unwrap();
        assert_eq!(json["tensors"][1]["name"], "bad");
        assert_eq!(json["tensors"][1]["snr_db"], 20.0);
        assert_eq!(json["tensors"][2]["snr_db"], serde_json::Value::Null);
        assert_eq!(
            (&json["head"], &json["total"]["max_abs_error"]),
            (&"int8".into(), &0.25.into())
        );
    }
}
