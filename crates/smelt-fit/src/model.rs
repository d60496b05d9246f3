//! Describes a model by the sizes that its headers tell: what each way of building it takes.

/// What is known of a model before it is built.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelFacts {
    /// What a person calls it.
    pub name: String,
    /// The family of its decoder, or of its encoder.
    pub family: String,
    /// Bytes of its weights where it comes from.
    pub fetch_bytes: u64,
    /// The longest sequence that it is for.
    pub positions: usize,
    /// Ways to keep its decoder, the one to be preferred first; none of an encoder of texts.
    pub decoders: Vec<DecoderOption>,
    /// Ways to keep its vision tower, or its encoder of texts; none where it reads text alone.
    pub towers: Vec<TowerOption>,
    /// What keys and values take, the form to be preferred first.
    pub kv: Vec<KvSize>,
    /// The most tiles of a picture where nobody says otherwise: more see more and take longer.
    pub tiles_usual: usize,
    /// What a photograph of 4:3 costs, by the most tiles that it is cut into, the fewest first; none where it sees none.
    pub photographs: Vec<PhotographCost>,
    /// Bytes that pictures may take which wait or are kept, on a device that has them.
    pub pictures_bytes: u64,
    /// The same on GPUs, or in one line why no engines for them are built of it.
    pub on_gpu: Result<GpuWays, String>,
}

/// Ways to keep a model on a GPU, the one to be preferred of each first.
#[derive(Debug, Clone, PartialEq)]
pub struct GpuWays {
    /// Ways to keep its decoder.
    pub decoders: Vec<DecoderOption>,
    /// Ways to keep its tower.
    pub towers: Vec<TowerOption>,
    /// What keys and values take.
    pub kv: Vec<KvSize>,
}

/// A way to keep a decoder.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderOption {
    /// How its weights are quantised.
    pub scheme: String,
    /// How their integers are chosen, where there are any.
    pub method: Option<&'static str>,
    /// Bytes of its engine.
    pub weights_bytes: u64,
    /// Bytes of it that every token of an answer reads.
    pub step_bytes: u64,
    /// Multiplications of a token of a prompt.
    pub prompt_products: u64,
    /// Whether they are of integers.
    pub is_integer: bool,
    /// Layers, between which the device's cores wait for each other.
    pub layers: usize,
    /// Multiplications of a token's queries and scores with each token before it, and those in whose time its keys and values
    /// become floats.
    pub attention_products: u64,
    /// Heads of keys and values: so many cores share the attention of one token.
    pub kv_heads: usize,
    /// Bytes of the quantised checkpoint; none where there is none.
    pub checkpoint_bytes: u64,
    /// The most that a stage holds that makes it.
    pub building_bytes: u64,
}

/// A way to keep a vision tower.
#[derive(Debug, Clone, PartialEq)]
pub struct TowerOption {
    /// How its weights are kept.
    pub precision: &'static str,
    /// Bytes of its engine.
    pub weights_bytes: u64,
    /// What executing it holds besides.
    pub working_bytes: u64,
    /// Multiplications for a patch.
    pub patch_products: u64,
    /// Bytes of the graph that it is built from.
    pub graph_bytes: u64,
}

/// A form of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvSize {
    /// The word for it.
    pub kind: &'static str,
    /// Tokens of a block.
    pub block_tokens: usize,
    /// Bytes of one.
    pub block_bytes: usize,
}

impl KvSize {
    /// Bytes of a context of so many tokens.
    pub fn context_bytes(&self, tokens: usize) -> u64 {
        let blocks = tokens.div_ceil(self.block_tokens.max(1)) as u64;
        blocks.saturating_mul(self.block_bytes as u64)
    }

    /// Bytes of a token.
    pub fn token_bytes(&self) -> u64 {
        self.block_bytes.div_ceil(self.block_tokens.max(1)) as u64
    }
}

/// What a photograph costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PhotographCost {
    /// The most tiles; nothing of a tower that takes sizes of its own.
    pub tiles: Option<usize>,
    /// Image tokens.
    pub tokens: usize,
    /// Patches that the tower sees.
    pub patches: usize,
}
