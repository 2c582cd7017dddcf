"""The two networks in PyTorch, as its users write them, with the parameter counts of ours.

`Rnn`: embedding, one tanh layer of nn.RNN with both biases, output with bias.
`Transformer`: token and learned position embeddings, nn.TransformerEncoder layers with norm_first and
GELU, final LayerNorm, untied output with bias. Both return hidden states; `head` makes logits, so that
a loss over padded rows can leave the padding out before the widest product.
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


def make(name, vocabulary=4000, dropout=0.0):
    model = {"rnn": Rnn, "transformer": Transformer}[name](vocabulary, dropout=dropout)
    count = sum(parameter.numel() for parameter in model.parameters())
    expected = {"rnn": 659_552, "transformer": 620_192}[name]
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
    return nn.functional.cross_entropy(logits, wanted)


def torch_threads(count):
    torch.set_num_threads(count)
    torch.set_num_interop_threads(1)
