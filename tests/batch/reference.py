"""A small hybrid model in plain torch: row by row without caches, and batched over a `Batch`.

Attention with rotary positions, sliding-window attention, a short convolution and a gated delta
rule (Yang et al. 2024, "Gated Delta Networks") beside a convolution. Decay is slow, so that a state
that is wrong anywhere shows in every later output. float64: differences are mistakes, not noise.
"""

import torch
from torch.nn import functional

from hybrid_pages.batch import (
    AttentionCache,
    Batch,
    CompositeCache,
    ConvCache,
    LayerCache,
    PagedAttentionCache,
    PagedStorage,
    RecurrentCache,
)

VOCAB, WIDTH, HEADS, HEAD = 32, 16, 2, 8
TAPS, WINDOW = 4, 5
# A token id that is padding: its embedding is NaN, so whatever it touches is NaN too.
PADDING = VOCAB
DTYPE = torch.float64


def rotate(x, positions):
    """Rotary positions (Su et al. 2021). x: [rows, heads, columns, HEAD]."""
    angle = positions[:, None, :, None] * 10000 ** (-torch.arange(HEAD // 2, dtype=DTYPE) / 4)
    first, second = x.chunk(2, dim=-1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


def heads(x):
    return x.unflatten(-1, (HEADS, HEAD)).transpose(1, 2)


class Attention:
    def __init__(self, weight, window=None):
        self.qkv, self.out = weight(WIDTH, 3 * WIDTH), weight(WIDTH, WIDTH)
        self.window = window

    def project(self, x, positions):
        q, k, v = (heads(part) for part in (x @ self.qkv).chunk(3, dim=-1))
        return rotate(q, positions), rotate(k, positions), v

    def mix(self, q, k, v, mask):
        seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return seen.transpose(1, 2).flatten(2) @ self.out

    def alone(self, x):
        position = torch.arange(x.shape[1])
        mask = position[:, None] >= position
        if self.window is not None:
            mask &= position[:, None] < position + self.window
        return self.mix(*self.project(x, position[None].to(DTYPE)), mask)

    def cache(self, size):
        return AttentionCache(size, window=self.window)

    def batched(self, x, cache, step):
        q, k, v = self.project(x, step.positions.to(DTYPE))
        return self.mix(q, *cache.update(k, v, step))


class PagedAttention(Attention):
    """Full attention whose rows are block tables over one storage."""

    def __init__(self, weight, pool):
        super().__init__(weight)
        self.storage = PagedStorage(pool, heads=HEADS, head_dim=HEAD, dtype=DTYPE)
        # What blocks hold before anything is written must not matter.
        self.storage.keys.fill_(torch.nan)
        self.storage.values.fill_(torch.nan)

    def cache(self, size):
        return PagedAttentionCache(self.storage, size)


class Convolution:
    def __init__(self, weight, channels_last=False):
        self.into, self.out, self.taps = (
            weight(WIDTH, WIDTH),
            weight(WIDTH, WIDTH),
            weight(WIDTH, TAPS),
        )
        self.channels_last = channels_last

    def convolve(self, whole, columns):
        """whole: [rows, channels, columns], with at least TAPS - 1 columns before the step."""
        whole = whole[..., -(TAPS - 1 + columns) :]
        return functional.conv1d(whole, self.taps[:, None], groups=WIDTH)

    def alone(self, x):
        past = functional.pad((x @ self.into).transpose(1, 2), (TAPS - 1, 0))
        return self.convolve(past, x.shape[1]).transpose(1, 2) @ self.out

    def cache(self, size):
        width = TAPS - 1 if self.channels_last else TAPS
        return ConvCache(size, width=width, channels_last=self.channels_last)

    def batched(self, x, cache, step):
        x = x @ self.into
        if self.channels_last:
            whole = cache.update(x, step).transpose(1, 2)
        else:
            whole = cache.update(x.transpose(1, 2), step)
        return self.convolve(whole, step.columns).transpose(1, 2) @ self.out


class DeltaRule:
    """A convolution before a gated delta rule; both states in one layer."""

    def __init__(self, weight):
        self.conv = Convolution(weight)
        self.qkv, self.gate, self.out = (
            weight(WIDTH, 3 * WIDTH),
            weight(WIDTH, 2 * HEADS),
            weight(WIDTH, WIDTH),
        )

    def gates(self, x):
        decay, beta = (x @ self.gate).chunk(2, dim=-1)
        return -0.002 * functional.softplus(decay), beta.sigmoid()

    def inputs(self, x):
        q, k, v = (heads(part) for part in (x @ self.qkv).chunk(3, dim=-1))
        return q, functional.normalize(k, dim=-1), v

    def recur(self, state, q, k, v, decay, beta):
        """state: [rows, HEADS, HEAD, HEAD]; decay, beta: [rows, columns, HEADS]."""
        outputs = []
        for t in range(q.shape[2]):
            state = state * decay[:, t, :, None, None].exp()
            read = torch.einsum("rhkv,rhk->rhv", state, k[:, :, t])
            change = (v[:, :, t] - read) * beta[:, t, :, None]
            state = state + k[:, :, t, :, None] * change[:, :, None]
            outputs.append(torch.einsum("rhkv,rhk->rhv", state, q[:, :, t]))
        return state, torch.stack(outputs, dim=1).flatten(2) @ self.out

    def alone(self, x):
        x = self.conv.alone(x)
        state = torch.zeros(x.shape[0], HEADS, HEAD, HEAD, dtype=DTYPE)
        return self.recur(state, *self.inputs(x), *self.gates(x))[1]

    def cache(self, size):
        return CompositeCache({"conv": self.conv.cache(size), "recurrent": RecurrentCache(size)})

    def batched(self, x, cache, step):
        x = self.conv.batched(x, cache["conv"], step)
        q, k, v = (step.fill(part, 0.0, dim=2) for part in self.inputs(x))
        decay, beta = (step.fill(part, 0.0) for part in self.gates(x))
        recurrent = cache["recurrent"]
        state = recurrent.read((HEADS, HEAD, HEAD), dtype=DTYPE, device="cpu")
        state, out = self.recur(state, q, k, v, decay, beta)
        recurrent.write(state, step)
        return out


class AverageCache(LayerCache):
    """A kind that hybrid_pages.batch knows nothing of: the sum of all inputs of a row."""

    def __init__(self, size=1):
        super().__init__(size, total=None)

    def update(self, x, step):
        x = step.fill(x, 0.0)
        past = self.tensors["total"]
        sums = x.cumsum(dim=1) + (0 if past is None else past[:, None])
        self.tensors["total"] = sums[:, -1].clone()
        return sums


class Average:
    def __init__(self, weight):
        self.out = weight(WIDTH, WIDTH)

    def alone(self, x):
        count = torch.arange(1, x.shape[1] + 1)[:, None]
        return x.cumsum(dim=1) / count @ self.out

    def cache(self, size):
        return AverageCache(size)

    def batched(self, x, cache, step):
        return cache.update(x, step) / (step.positions[..., None] + 1) @ self.out


KINDS = {
    "attention": lambda weight, pool: PagedAttention(weight, pool) if pool else Attention(weight),
    "conv": lambda weight, pool: Convolution(weight),
    "conv and recurrence": lambda weight, pool: DeltaRule(weight),
    "window": lambda weight, pool: Attention(weight, window=WINDOW),
    "conv, channels last": lambda weight, pool: Convolution(weight, channels_last=True),
    "unknown": lambda weight, pool: Average(weight),
}


class Model:
    """Layers in turn, each added to what it reads. Outputs are vectors of WIDTH."""

    def __init__(self, seed=0, *, pool=None, layers=None):
        """pool: full attention is paged over it. layers: makers of layers, other than all kinds."""
        generator = torch.Generator().manual_seed(seed)

        def weight(rows, columns):
            return torch.randn(rows, columns, generator=generator, dtype=DTYPE) / rows**0.5

        self.embedding = torch.randn(VOCAB + 1, WIDTH, generator=generator, dtype=DTYPE)
        self.embedding[PADDING] = torch.nan
        self.layers = [make(weight, pool) for make in (layers or KINDS.values())]

    def alone(self, tokens):
        """[tokens, WIDTH]: the outputs of one row, without any cache."""
        x = self.embedding[torch.tensor(tokens)][None]
        for layer in self.layers:
            x = x + layer.alone(functional.normalize(x, dim=-1) * 4)
        return x[0]

    def batch(self, size=1):
        return Batch([layer.cache(size) for layer in self.layers])

    def run(self, batch, ids):
        """One step. ids: [rows, columns]; outputs [rows, columns, WIDTH]."""
        step = batch.step(ids.shape[1])
        x = self.embedding[ids]
        for layer, cache in zip(self.layers, batch.layers, strict=True):
            x = x + layer.batched(functional.normalize(x, dim=-1) * 4, cache, step)
        batch.advance(ids.shape[1])
        return x


def grid(rows, columns, *, left):
    """[rows, columns] token ids with padding at one side."""
    ids = torch.full((len(rows), columns), PADDING)
    for row, tokens in enumerate(rows):
        first = columns - len(tokens) if left else 0
        ids[row, first : first + len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
    return ids


def feed(model, batch, rows, *, left=False, chunk=None, columns=None):
    """Give each row its tokens, in padded steps; the outputs of each row's new tokens."""
    columns = max(columns or 0, *map(len, rows), 1)
    ids = grid(rows, columns, left=left)
    if left:
        batch.prepare(left_padding=[columns - len(tokens) for tokens in rows])
    else:
        batch.prepare(lengths=[len(tokens) for tokens in rows])
    outputs = torch.cat([model.run(batch, part) for part in ids.split(chunk or columns, 1)], 1)
    batch.finalize()
    return [
        out[columns - len(tokens) :] if left else out[: len(tokens)]
        for out, tokens in zip(outputs, rows, strict=True)
    ]


def difference(model, outputs, tokens):
    """The largest deviation of a row's last outputs from those of the row alone; inf for NaN."""
    if len(outputs) == 0:
        return 0.0
    expected = model.alone(tokens)[-len(outputs) :]
    return (outputs - expected).abs().nan_to_num(torch.inf).max().item()
