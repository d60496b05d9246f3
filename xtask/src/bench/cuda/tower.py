"""Times InternViT-300M in PyTorch, compiled: what smelt's tower is held to, in the same minutes on the same card.

Prints a line of JSON for each figure, as `bench_cuda` does. Pixels of f32 come from page-locked memory of the host, features
go there as f32; what the card alone takes is told beside that. Needs torch with CUDA, and nothing else.
"""

import json
import statistics
import time

import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention

WIDTH, INNER, LAYERS, HEADS, SIDE, HIDDEN = 1024, 4096, 24, 16, 448, 896
PATCH, GRID = 14, 32
RUNS = 30


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = (nn.LayerNorm(WIDTH, eps=1e-6) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.gains = nn.ParameterList(nn.Parameter(torch.full((WIDTH,), 0.1)) for _ in range(2))

    def forward(self, x):
        batch, tokens, _ = x.shape
        heads = self.qkv(self.before(x)).view(batch, tokens, 3, HEADS, WIDTH // HEADS)
        attended = scaled_dot_product_attention(*heads.permute(2, 0, 3, 1, 4))
        x = x + self.gains[0] * self.out(attended.transpose(1, 2).reshape(x.shape))
        return x + self.gains[1] * self.down(gelu(self.up(self.between(x))))


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.first = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.places = nn.Parameter(torch.zeros(1, GRID * GRID + 1, WIDTH))
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.projector = nn.Sequential(
            nn.LayerNorm(4 * WIDTH), nn.Linear(4 * WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, HIDDEN)
        )

    def forward(self, pixels):
        batch = pixels.shape[0]
        x = self.patches(pixels).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(batch, -1, -1), x], 1) + self.places
        for layer in self.layers:
            x = layer(x)
        x = x[:, 1:].reshape(batch, GRID, GRID // 2, 2 * WIDTH).transpose(1, 2)
        return self.projector(x.reshape(batch, GRID * GRID // 4, 4 * WIDTH))


def median_ms(run):
    took = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        run()
        torch.cuda.synchronize()
        took.append(time.perf_counter() - begin)
    return statistics.median(took) * 1e3


def tell(figure, value):
    print(json.dumps({"form": "pytorch", "figure": figure, "value": value, "unit": "ms"}), flush=True)


@torch.inference_mode()
def main():
    torch.manual_seed(0)
    tower = torch.compile(Tower().half().cuda().eval(), mode="reduce-overhead")
    for tiles in (1, 12):
        host = torch.randn(tiles, 3, SIDE, SIDE).pin_memory()
        card = host.cuda().half()
        # The first runs compile it, and capture what they launch.
        for _ in range(4):
            tower(card)
        torch.cuda.synchronize()
        tell(f"{tiles} tiles", median_ms(lambda: tower(host.cuda(non_blocking=True).half()).float().cpu()))
        tell(f"{tiles} tiles, on the card", median_ms(lambda: tower(card)))


main()
