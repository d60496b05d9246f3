//! Writes InternVL3's vision tower as an ONNX graph: patches, encoder, pixel shuffle, projector.
//!
//! Dimensions come in, a graph over the checkpoint's own tensor names comes out.  Only the
//! number of tiles is open; every other size is a constant, so that no back end meets a shape
//! computation.  Activations are 2-D rows for the linear layers and 4-D in attention only.

use smelt_onnx::{Dim, ElementType, Graph, GraphBuilder, Initializer, Value};

use super::ExportError;
use super::layers::pixel_shuffle;
use super::positions::resampled;
use super::weights::WeightStream;
use crate::families::internvl3::{InternVl3, PROJECTOR_EPS, SHUFFLE, Vit};
use crate::grid::Lattice;
use crate::model::{Model, ModelPart};

const CLASS_EMBEDDING: &str = "vision_model.embeddings.class_embedding";
const PATCH_WEIGHT: &str = "vision_model.embeddings.patch_embedding.weight";
const PATCH_BIAS: &str = "vision_model.embeddings.patch_embedding.bias";
pub(super) const POSITION_EMBEDDING: &str = "vision_model.embeddings.position_embedding";

/// The tensors of the graph and the shapes it declares for them, in the order they are stored.
///
/// The patch convolution is declared as the matrix it is: its stride is its kernel.
pub(super) fn weights(model: &Model) -> Vec<(String, Vec<usize>)> {
    let mut weights = model.tensors(&[ModelPart::Vision]);
    for (name, dims) in &mut weights {
        if name == PATCH_WEIGHT {
            *dims = vec![dims[0], dims[1..].iter().product()];
        }
    }
    weights
}

/// The graph `pixel_values` [tiles, channels, side, side] -> `image_embeds`
/// [tiles, tokens, hidden] over `weights`.
pub(super) fn graph(
    config: &InternVl3,
    element_type: ElementType,
    weights: Vec<Initializer>,
) -> Graph {
    let g = GraphBuilder::new("internvl3-vision", element_type, weights);
    let mut tower = Tower { g, vit: &config.vit, sizes: Sizes::of(&config.vit) };
    let tiles = Dim::Symbol("tiles".to_owned());
    let (channels, side) = (config.vit.channels, config.image_size);
    let (tokens, width) = (config.tokens_per_tile(), config.width);

    let tile = [channels, side, side].map(Dim::Fixed);
    let pixels = tower.g.input("pixel_values", [&[tiles.clone()][..], &tile].concat());
    let mut x = tower.embeddings(&pixels);
    for layer in 0..config.vit.layers {
        x = tower.layer(layer, &x);
    }
    let x = tower.pixel_shuffle(&x);
    let x = tower.projector(&x);
    let embeds = tower.g.reshape(&x, &[-1, tokens as i64, width as i64]);
    let dims = vec![tiles, Dim::Fixed(tokens), Dim::Fixed(width)];
    tower.g.output(embeds, "image_embeds", dims);
    tower.g.finish()
}

/// [`graph`] for square tiles of `lattice`, over `weights` and the positions of such tiles, which are
/// put into `stream`: the model's own, resampled (`_get_pos_embed` of InternViT's code).
pub(super) fn grid_graph(
    config: &InternVl3,
    lattice: &Lattice,
    stream: &mut WeightStream<'_>,
    mut weights: Vec<Initializer>,
) -> Result<Graph, ExportError> {
    let (hidden, from, side) = (config.vit.hidden, config.vit.grid(), lattice.rows);
    let dims = [1, lattice.patches() + 1, hidden];
    let positions = if side == from {
        stream.copy(POSITION_EMBEDDING, &dims)?
    } else {
        let table = stream.checkpoint().read_f32(POSITION_EMBEDDING)?;
        let table = resampled(&table, hidden, from, [side, side]);
        stream.constant(POSITION_EMBEDDING, &dims, &table)?
    };
    weights.push(positions);
    let image_size = side * config.vit.patch_size;
    let vit = Vit { image_size, ..config.vit.clone() };
    let config = InternVl3 { vit, image_size, ..config.clone() };
    Ok(graph(&config, stream.element_type(), weights))
}

/// The tower's sizes as shapes hold them.
struct Sizes {
    channels: i64,
    /// Pixels on a side of a patch.
    patch: i64,
    /// Patches on a side of a tile.
    grid: i64,
    /// Positions of a tile: its patches behind the class row.
    positions: i64,
    hidden: i64,
    heads: i64,
    head: i64,
}

impl Sizes {
    fn of(vit: &Vit) -> Self {
        Self {
            channels: vit.channels as i64,
            patch: vit.patch_size as i64,
            grid: vit.grid() as i64,
            positions: vit.patches() as i64 + 1,
            hidden: vit.hidden as i64,
            heads: vit.heads as i64,
            head: (vit.hidden / vit.heads) as i64,
        }
    }
}

struct Tower<'a> {
    g: GraphBuilder,
    vit: &'a Vit,
    sizes: Sizes,
}

impl Tower<'_> {
    /// [tiles, channels, side, side] -> [tiles · positions, hidden].
    ///
    /// Patch rows are padded with a zero row in front and the class embedding with zero rows
    /// behind, so that every row sees the one addition of its position, as in the model.
    fn embeddings(&mut self, pixels: &str) -> Value {
        let Sizes { channels, patch, grid, positions, hidden, .. } = self.sizes;
        let (g, patches) = (&mut self.g, positions - 1);
        g.scope("embeddings");
        let cells = g.reshape(pixels, &[0, channels, grid, patch, grid, patch]);
        let cells = g.transpose(&cells, &[0, 2, 4, 1, 3, 5]);
        let rows = g.reshape(&cells, &[-1, channels * patch * patch]);
        let rows = g.gemm(&rows, PATCH_WEIGHT, PATCH_BIAS);
        let rows = g.reshape(&rows, &[-1, patches, hidden]);
        let rows = g.pad(&rows, &[0, 1, 0], &[0, 0, 0]);
        let class = g.pad(CLASS_EMBEDDING, &[0, 0, 0], &[0, patches, 0]);
        let places = g.add(&class, POSITION_EMBEDDING);
        let x = g.add(&rows, &places);
        g.reshape(&x, &[-1, hidden])
    }

    /// One encoder layer: attention and MLP, each normed before, scaled after, added to `x`.
    fn layer(&mut self, layer: usize, x: &str) -> Value {
        let name = format!("vision_model.encoder.layers.{layer}");

        self.g.scope(&format!("layers.{layer}/attn"));
        let normed = self.layer_norm(x, &format!("{name}.norm1"));
        let branch = self.attention(&normed, &format!("{name}.attn"));
        let branch = self.g.mul(&branch, &format!("{name}.ls1"));
        let x = self.g.add(x, &branch);

        self.g.scope(&format!("layers.{layer}/mlp"));
        let normed = self.layer_norm(&x, &format!("{name}.norm2"));
        let wide = self.linear(&normed, &format!("{name}.mlp.fc1"));
        let wide = self.g.gelu(&wide);
        let branch = self.linear(&wide, &format!("{name}.mlp.fc2"));
        let branch = self.g.mul(&branch, &format!("{name}.ls2"));
        self.g.add(&x, &branch)
    }

    /// softmax(q · head^-½ · kᵀ) · v over all positions of a tile; rows [tiles · positions, hidden].
    fn attention(&mut self, x: &str, name: &str) -> Value {
        let Sizes { positions, hidden, heads, head, .. } = self.sizes;
        let qkv = if self.vit.qkv_bias {
            self.linear(x, &format!("{name}.qkv"))
        } else {
            self.g.product(x, &format!("{name}.qkv.weight"))
        };
        let (g, eps) = (&mut self.g, self.vit.eps);
        let [mut q, mut k, v] = g.split(&qkv, 1, hidden as usize);
        if self.vit.qk_norm {
            q = g.rms_norm(&q, &format!("{name}.q_norm.weight"), eps);
            k = g.rms_norm(&k, &format!("{name}.k_norm.weight"), eps);
        }
        let [q, k, v] = [q, k, v].map(|rows| g.reshape(&rows, &[-1, positions, heads, head]));
        let q = g.transpose(&q, &[0, 2, 1, 3]);
        let k = g.transpose(&k, &[0, 2, 3, 1]);
        let v = g.transpose(&v, &[0, 2, 1, 3]);
        let scale = g.scalar((head as f64).sqrt().recip() as f32);
        let q = g.mul(&q, &scale);
        let scores = g.matmul(&q, &k);
        let shares = g.softmax(&scores);
        let mixed = g.matmul(&shares, &v);
        let mixed = g.transpose(&mixed, &[0, 2, 1, 3]);
        let rows = g.reshape(&mixed, &[-1, hidden]);
        self.linear(&rows, &format!("{name}.proj"))
    }

    /// [tiles · positions, hidden] -> [tiles · tokens, 4 · hidden]: the class row goes, and each
    /// square of four patches becomes one row (`pixel_shuffle` of `modeling_internvl_chat.py`,
    /// `ps_version` v2).
    fn pixel_shuffle(&mut self, x: &str) -> Value {
        let Sizes { grid, positions, hidden, .. } = self.sizes;
        let g = &mut self.g;
        g.scope("pixel_shuffle");
        let x = g.reshape(x, &[-1, positions, hidden]);
        let x = g.drop_front(&x, 1, 1);
        pixel_shuffle(g, &x, [grid, hidden, SHUFFLE as i64])
    }

    /// Shuffled rows into the language model's space.
    fn projector(&mut self, x: &str) -> Value {
        self.g.scope("mlp1");
        let x = self.norm(x, "mlp1.0", PROJECTOR_EPS);
        let x = self.linear(&x, "mlp1.1");
        let x = self.g.gelu(&x);
        self.linear(&x, "mlp1.3")
    }

    /// The norm of a layer, of the kind the tower has.
    fn layer_norm(&mut self, x: &str, name: &str) -> Value {
        if self.vit.rms_norm {
            return self.g.rms_norm(x, &format!("{name}.weight"), self.vit.eps);
        }
        self.norm(x, name, self.vit.eps)
    }

    fn norm(&mut self, x: &str, name: &str, epsilon: f32) -> Value {
        self.g.layer_norm(x, &format!("{name}.weight"), &format!("{name}.bias"), epsilon)
    }

    fn linear(&mut self, x: &str, name: &str) -> Value {
        self.g.gemm(x, &format!("{name}.weight"), &format!("{name}.bias"))
    }
}
