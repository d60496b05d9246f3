"""Writes the graph of InternVL3's vision tower and projector over weights that lie elsewhere.

Layer by layer, after the model's description; only the number of tiles stays open.
"""

import struct

import wire

F16, I64 = 10, 7
PATCH = "vision_model.embeddings.patch_embedding"


def dims(name, shape):
    """The patch convolution is declared as the matrix it is: its stride is its kernel."""
    return [shape[0], shape[1] * shape[2] * shape[3]] if name == f"{PATCH}.weight" else shape


class Graph:
    def __init__(self):
        self.nodes, self.constants, self.count = [], {}, 0

    def op(self, op, *inputs, outputs=1, epsilon=None, **attributes):
        self.count += 1
        names = [f"/{op}_{self.count}" + (f".{i}" if outputs > 1 else "") for i in range(outputs)]
        body = wire.node(op, inputs, names, attributes.items())
        if epsilon is not None:  # the one float attribute
            value = wire.varint(2 << 3 | 5) + struct.pack("<f", epsilon)
            body += wire.encode([(5, wire.encode([(1, "epsilon"), (20, 1)]) + value)])
        self.nodes.append(body)
        return names if outputs > 1 else names[0]

    def ints(self, *values):
        name = "/ints/" + ",".join(map(str, values))
        raw = struct.pack(f"<{len(values)}q", *values)
        self.constants[name] = wire.encode([(1, len(values)), (2, I64), (8, name), (9, raw)])
        return name

    def scalar(self, value):
        name = f"/scalar/{value}"
        self.constants[name] = wire.encode([(2, F16), (8, name), (9, struct.pack("<e", value))])
        return name

    def reshape(self, x, *shape):
        return self.op("Reshape", x, self.ints(*shape))

    def linear(self, x, name):
        return self.op("Gemm", x, f"{name}.weight", f"{name}.bias", transB=1)

    def norm(self, x, name, epsilon):
        weights = (f"{name}.weight", f"{name}.bias")
        return self.op("LayerNormalization", x, *weights, axis=-1, stash_type=1, epsilon=epsilon)

    def gelu(self, x):
        erf = self.op("Erf", self.op("Div", x, self.scalar(2**0.5)))
        gated = self.op("Mul", x, self.op("Add", erf, self.scalar(1.0)))
        return self.op("Mul", gated, self.scalar(0.5))


def model(config, initializers):
    vision, g = config["vision_config"], Graph()
    side, patch = config["force_image_size"], vision["patch_size"]
    hidden, heads, grid = vision["hidden_size"], vision["num_attention_heads"], side // patch
    positions, eps = grid * grid + 1, vision["layer_norm_eps"]

    cells = g.reshape("pixel_values", 0, 3, grid, patch, grid, patch)
    cells = g.op("Transpose", cells, perm=[0, 2, 4, 1, 3, 5])
    rows = g.reshape(g.linear(g.reshape(cells, -1, 3 * patch * patch), PATCH), -1, grid * grid, hidden)
    places = g.op("Pad", "vision_model.embeddings.class_embedding", g.ints(0, 0, 0, 0, grid * grid, 0))
    places = g.op("Add", places, "vision_model.embeddings.position_embedding")
    x = g.op("Add", g.op("Pad", rows, g.ints(0, 1, 0, 0, 0, 0)), places)
    x = g.reshape(x, -1, hidden)
    for layer in range(vision["num_hidden_layers"]):
        name = f"vision_model.encoder.layers.{layer}"
        qkv = g.linear(g.norm(x, f"{name}.norm1", eps), f"{name}.attn.qkv")
        q, k, v = g.op("Split", qkv, g.ints(hidden, hidden, hidden), outputs=3, axis=1)
        q, k, v = (g.reshape(rows, -1, positions, heads, hidden // heads) for rows in (q, k, v))
        q = g.op("Mul", g.op("Transpose", q, perm=[0, 2, 1, 3]), g.scalar((hidden // heads) ** -0.5))
        shares = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 2, 3, 1]))
        mixed = g.op("MatMul", g.op("Softmax", shares, axis=-1), g.op("Transpose", v, perm=[0, 2, 1, 3]))
        mixed = g.reshape(g.op("Transpose", mixed, perm=[0, 2, 1, 3]), -1, hidden)
        x = g.op("Add", x, g.op("Mul", g.linear(mixed, f"{name}.attn.proj"), f"{name}.ls1"))
        wide = g.gelu(g.linear(g.norm(x, f"{name}.norm2", eps), f"{name}.mlp.fc1"))
        x = g.op("Add", x, g.op("Mul", g.linear(wide, f"{name}.mlp.fc2"), f"{name}.ls2"))
    x = g.reshape(x, -1, positions, hidden)
    x = g.op("Slice", x, g.ints(1), g.ints(2**63 - 1), g.ints(1))
    x = g.reshape(x, -1, grid, grid // 2, 2 * hidden)
    x = g.reshape(g.op("Transpose", x, perm=[0, 2, 1, 3]), -1, grid // 2, grid // 2, 4 * hidden)
    x = g.reshape(g.op("Transpose", x, perm=[0, 2, 1, 3]), -1, 4 * hidden)
    x = g.linear(g.gelu(g.linear(g.norm(x, "mlp1.0", 1e-5), "mlp1.1")), "mlp1.3")
    width = config["llm_config"]["hidden_size"]
    last = g.reshape(x, -1, grid * grid // 4, width)

    pixels = wire.value_info("pixel_values", F16, ["tiles", 3, side, side])
    embeds = wire.value_info(last, F16, ["tiles", grid * grid // 4, width])
    graph = [(1, n) for n in g.nodes] + [(2, "vision")]
    graph += [(5, i) for i in [*initializers, *g.constants.values()]] + [(11, pixels), (12, embeds)]
    return wire.encode([(1, 8), (2, "rival"), (7, wire.encode(graph)), (8, wire.encode([(2, 17)]))])
