//! Writes a BERT encoder as an ONNX graph: `input_ids`, `attention_mask` -> `last_hidden_state`, or with
//! its classification head: the same and `token_type_ids` -> `logits`.
//!
//! Dimensions come in, a graph over the checkpoint's own tensor names comes out.  The number of
//! texts and their length are open.  Norms are computed in f32 with weights in f32 whatever the
//! type of the graph, since their epsilon of 1e-12 is 0 in f16.

use smelt_onnx::{Dim, ElementType, Graph, GraphBuilder, Initializer, Value};

use super::layers::{Heads, SequenceLayout, hiding, linear};
use crate::families::bert::{Bert, CLASSIFIER, POOLER};

/// Whether tensor `name` stays f32 in every graph.
pub(super) fn is_wide(name: &str) -> bool {
    name.contains("LayerNorm.")
}

/// The graph `input_ids`, `attention_mask` [texts, places] -> `last_hidden_state`
/// [texts, places, hidden] over `weights`.
pub(super) fn graph(bert: &Bert, element_type: ElementType, weights: Vec<Initializer>) -> Graph {
    let g = GraphBuilder::new("bert", element_type, weights);
    let (mut g, states) = encoder(bert, element_type, g, false);
    g.output(states, "last_hidden_state", [&open()[..], &[Dim::Fixed(bert.hidden)]].concat());
    g.finish()
}

/// The graph `input_ids`, `attention_mask`, `token_type_ids` [texts, places] -> `logits`
/// [texts, labels] over `weights`: tanh of the pooled first place, then a number for each label.
pub(super) fn classifier_graph(
    bert: &Bert,
    element_type: ElementType,
    weights: Vec<Initializer>,
) -> Graph {
    let g = GraphBuilder::new("bert-classifier", element_type, weights);
    let (mut g, states) = encoder(bert, element_type, g, true);
    g.scope("classifier");
    let one = g.list(&[1]);
    let first = g.keep_front(&states, 1, &one);
    let rows = g.reshape(&first, &[-1, bert.hidden as i64]);
    let pooled = linear(&mut g, &rows, POOLER);
    let pooled = g.tanh(&pooled);
    let logits = linear(&mut g, &pooled, CLASSIFIER);
    let labels = Dim::Fixed(bert.labels.unwrap_or_default());
    let [texts, _] = open();
    g.output(logits, "logits", vec![texts, labels]);
    g.finish()
}

/// [texts, places].
fn open() -> [Dim; 2] {
    ["batch", "sequence"].map(|name| Dim::Symbol(name.to_owned()))
}

/// Declares the inputs, and gives the states [texts, places, hidden]; all tokens are of the first kind
/// unless they have `kinds`.
fn encoder(
    bert: &Bert,
    element_type: ElementType,
    mut g: GraphBuilder,
    kinds: bool,
) -> (GraphBuilder, Value) {
    let ids = g.integer_input("input_ids", open().to_vec());
    let seen = g.integer_input("attention_mask", open().to_vec());
    let kinds = kinds.then(|| g.integer_input("token_type_ids", open().to_vec()));
    let mut encoder = Encoder {
        heads: Heads::new(bert.hidden, bert.heads, SequenceLayout::Of(ids.to_string())),
        eps: bert.eps,
        g,
    };
    let mut x = encoder.embeddings(&ids, kinds.as_deref());
    let mask = encoder.mask(&seen, element_type);
    for layer in 0..bert.layers {
        x = encoder.layer(layer, &x, &mask);
    }
    let Encoder { mut g, heads, .. } = encoder;
    g.scope("last_hidden_state");
    let states = heads.sequences(&mut g, &x);
    (g, states)
}

struct Encoder {
    g: GraphBuilder,
    heads: Heads,
    eps: f32,
}

impl Encoder {
    /// [texts, places] -> rows: token, kind (the first without `kinds`), position, normed.
    fn embeddings(&mut self, ids: &str, kinds: Option<&str>) -> Value {
        let hidden = self.heads.hidden;
        let g = &mut self.g;
        g.scope("embeddings");
        let tokens = g.gather("embeddings.word_embeddings.weight", ids);
        let table = "embeddings.token_type_embeddings.weight";
        let kind = match kinds {
            Some(kinds) => g.gather(table, kinds),
            None => {
                let one = g.list(&[1]);
                g.keep_front(table, 0, &one)
            }
        };
        let x = g.add(&tokens, &kind);
        let length = g.sizes(ids, &[1]);
        let places = g.keep_front("embeddings.position_embeddings.weight", 0, &length);
        let x = g.add(&x, &places);
        let rows = g.reshape(&x, &[-1, hidden]);
        self.norm(&rows, "embeddings.LayerNorm")
    }

    /// [texts, places] -> [texts, 1, 1, places] to add to scores.
    fn mask(&mut self, seen: &str, element_type: ElementType) -> Value {
        let g = &mut self.g;
        g.scope("mask");
        let seen = g.cast(seen, element_type);
        let seen = g.unsqueeze(&seen, &[1, 2]);
        hiding(g, &seen)
    }

    /// Attention and MLP, each added to what came in and normed after.
    fn layer(&mut self, layer: usize, x: &str, mask: &str) -> Value {
        let name = format!("encoder.layer.{layer}");
        self.g.scope(&format!("layers.{layer}/attention"));
        let names = ["query", "key", "value"].map(|part| format!("{name}.attention.self.{part}"));
        let [q, k, v] = &names;
        let out = format!("{name}.attention.output.dense");
        let branch = self.heads.attention(&mut self.g, x, [q, k, v], &out, Some(mask));
        let x = self.g.add(&branch, x);
        let x = self.norm(&x, &format!("{name}.attention.output.LayerNorm"));

        self.g.scope(&format!("layers.{layer}/mlp"));
        let wide = linear(&mut self.g, &x, &format!("{name}.intermediate.dense"));
        let wide = self.g.gelu(&wide);
        let branch = linear(&mut self.g, &wide, &format!("{name}.output.dense"));
        let x = self.g.add(&branch, &x);
        self.norm(&x, &format!("{name}.output.LayerNorm"))
    }

    fn norm(&mut self, x: &str, name: &str) -> Value {
        let x = self.g.widened(x);
        let x = super::layers::norm(&mut self.g, &x, name, self.eps);
        self.g.narrowed(&x)
    }
}
