"""The networks in PyTorch, as its users write them, with the parameter counts of ours.

`Rnn`: embedding, one tanh layer of nn.RNN with both biases, output with bias.
`Transformer`: token and learned position embeddings, nn.TransformerEncoder layers with norm_first and
GELU, final LayerNorm, untied output with bias. Both return hidden states; `head` makes logits, so that
a loss over padded rows can leave the padding out before the widest product.
`Mid`: a transformer of 30 million parameters, as `autoreg bench --preset mid`.
"""

import torch
from torch import nn


# Weights whose product ends in the residual stream.
RESIDUAL = ("out_proj.weight", "linear2.weight")


class Rnn(nn.Module):
    def __init__(self, vocabulary=4000, embedding=64, hidden=96, dropout=0.0):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.rnn = nn.RNN(embedding, hidden, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, ids):
        return self.dropout(self.rnn(self.dropout(self.embedding(ids)))[0])


class Transformer(nn.Module):
    def __init__(self, vocabulary=4000, hidden=64, layers=2, heads=4, mlp=256, context=64, dropout=0.0):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.positions = nn.Embedding(context, hidden)
        layer = nn.TransformerEncoderLayer(hidden, heads, mlp, dropout=dropout, activation="gelu",
                                           batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(hidden), enable_nested_tensor=False)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(hidden, vocabulary)
        mask = nn.Transformer.generate_square_subsequent_mask(context)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, ids):
        length = ids.shape[1]
        x = self.dropout(self.embedding(ids) + self.positions.weight[:length])
        return self.layers(x, mask=self.mask[:length, :length], is_causal=True)


class MidLayer(nn.Module):
    def __init__(self, hidden, heads, mlp):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(hidden, 1e-5), nn.RMSNorm(hidden, 1e-5)
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.gate_up = nn.Linear(hidden, 2 * mlp, bias=False)
        self.down = nn.Linear(mlp, hidden, bias=False)

    def forward(self, x, cosines, sines):
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = (rotated(part, cosines, sines) for part in parts[:2])
        y = nn.functional.scaled_dot_product_attention(q, k, parts[2], is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(nn.functional.silu(gate) * up)


def rotated(x, cosines, sines):
    """Rotary positions: pairs (i, i + D/2) of each head."""
    first, second = x.chunk(2, -1)
    cosines, sines = cosines.to(x.dtype), sines.to(x.dtype)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), -1)


class Mid(nn.Module):
    """RMSNorm, rotary positions, SwiGLU, no biases, an output of its own."""

    def __init__(self, vocabulary=4000, hidden=512, layers=8, heads=8, mlp=1408, context=256, dropout=0.0):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.layers = nn.ModuleList(MidLayer(hidden, heads, mlp) for _ in range(layers))
        self.norm = nn.RMSNorm(hidden, 1e-5)
        self.head = nn.Linear(hidden, vocabulary, bias=False)
        half = hidden // heads // 2
        angles = torch.outer(torch.arange(context).float(), 10_000.0 ** (-torch.arange(half).float() / half))
        self.register_buffer("cosines", angles.cos(), persistent=False)
        self.register_buffer("sines", angles.sin(), persistent=False)

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x, self.cosines[:ids.shape[1]], self.sines[:ids.shape[1]])
        return self.norm(x)


def make(name, vocabulary=4000, dropout=0.0):
    model = {"rnn": Rnn, "transformer": Transformer, "mid": Mid}[name](vocabulary, dropout=dropout)
    count = sum(parameter.numel() for parameter in model.parameters())
    expected = {"rnn": 659_552, "transformer": 620_192, "mid": 29_794_816}[name]
    if vocabulary == 4000 and count != expected:
        raise SystemExit(f"{name}: {count} parameters, expected {expected}")
    return model


def initialise(model, kind):
    """`torch`: PyTorch's own. `normal`: N(0, 0.02) for every matrix and embedding, biases 0, and the
    products that end in the residual stream smaller by the square root of their number. `same`: the
    distributions that autoreg draws from, so that what is left to differ is the arithmetic and the luck
    of the draw."""
    if kind == "torch":
        return
    {"normal": _normal, "same": _same}[kind](model)


def _normal(model):
    deep = [name for name, _ in model.named_parameters() if name.endswith(RESIDUAL)]
    for name, parameter in model.named_parameters():
        if "norm" in name:
            continue
        if parameter.dim() < 2:
            nn.init.zeros_(parameter)
        elif "rnn" in name:
            continue
        else:
            nn.init.normal_(parameter, std=0.02 / (len(deep) ** 0.5 if name in deep else 1.0))


def _same(model):
    deep = sum(name.endswith(RESIDUAL) for name, _ in model.named_parameters())
    for name, parameter in model.named_parameters():
        if "norm" in name or name.startswith("rnn"):
            continue
        inputs = parameter.shape[-1]
        if parameter.dim() < 2:
            nn.init.zeros_(parameter)
        elif name.startswith(("embedding", "positions")):
            nn.init.normal_(parameter, std=1.0 if isinstance(model, Rnn) else 0.02)
        elif name.startswith("head"):
            nn.init.normal_(parameter, std=0.5 * inputs ** -0.5)
        else:
            nn.init.normal_(parameter, std=(inputs * (deep if name.endswith(RESIDUAL) else 1)) ** -0.5)


def loss_of(model, ids, targets):
    """Mean over real targets; targets below 0 are padding."""
    hidden = model(ids)
    real = targets >= 0
    if bool(real.all()):
        logits, wanted = model.head(hidden).flatten(0, 1), targets.flatten()
    else:
        logits, wanted = model.head(hidden[real]), targets[real]
    return nn.functional.cross_entropy(logits.float(), wanted)


def torch_threads(count):
    torch.set_num_threads(count)
    torch.set_num_interop_threads(1)
