#!/usr/bin/env python3
"""Golden numbers of one training step, made with PyTorch in f64: see scripts/README.md.

The networks are written with torch.nn.functional so that each formula is in view. The transformer is
also held against nn.TransformerEncoderLayer and the recurrent network is nn.RNN itself, so a slip in
the formulas here fails before a fixture is written.
"""

import argparse
import json
import math
import pathlib
import sys

import torch
import torch.nn.functional as F

TORCH = "2.15.0"
FOLDER = pathlib.Path(__file__).resolve().parent.parent / "crates/models/tests/fixtures"
VOCABULARY, LENGTHS, BOS, EOS = 37, (12, 7, 5), 2, 3
ADAMW = dict(lr=1e-2, betas=(0.9, 0.999), eps=1e-8)
WEIGHT_DECAY, CLIP, STEPS = 0.1, 1.0, 3


def random_parameters(shapes, generator):
    """name -> f64 leaf; multiples of 1/128 so that f32 and f64 read the same number."""
    out = {}
    for name, shape in shapes.items():
        spread = 0.5 if "emb" in name else 0.2 if len(shape) == 1 else 1.2 / math.sqrt(shape[-1])
        values = torch.randn(shape, generator=generator, dtype=torch.float64) * spread
        if "norm" in name and name.endswith("weight"):
            values += 1.0
        out[name] = (torch.round(values * 128) / 128).requires_grad_()
    return out


def random_rows(generator):
    """Sequences that start with <bos>; all but the longest end with <eos>; ids as in a real vocabulary."""
    rows = []
    for length in LENGTHS:
        ids = torch.randint(4, VOCABULARY, (length + 1,), generator=generator).tolist()
        ids[0] = BOS
        if length < max(LENGTHS):
            ids[-1] = EOS
        rows.append((ids[:-1], ids[1:]))
    return rows


def padded(rows):
    """(B, T) inputs with <pad> = 0 and (B, T) targets with -100 where there is none."""
    longest = max(len(inputs) for inputs, _ in rows)
    fill = lambda ids, value: ids + [value] * (longest - len(ids))
    inputs = torch.tensor([fill(i, 0) for i, _ in rows])
    targets = torch.tensor([fill(t, -100) for _, t in rows])
    return inputs, targets


class Transformer:
    """Pre-norm decoder; LayerNorm, GELU (erf), learned positions, biases, untied head."""

    config = dict(kind="transformer", vocabulary=37, hidden=16, layers=2, heads=4, kv_heads=4, mlp=64,
                  context=12, norm="layer_norm", norm_eps=1e-5, mlp_kind="gelu", positions="learned",
                  biases=True, tied=False)

    def shapes(self):
        c, f, v = 16, 64, 37
        out = {"tok_emb.weight": (v, c), "pos_emb.weight": (12, c)}
        for i in range(2):
            for name, shape in (("norm1", (c,)), ("attn.qkv", (3 * c, c)), ("attn.out", (c, c)),
                                ("norm2", (c,)), ("mlp.up", (f, c)), ("mlp.down", (c, f))):
                out[f"layers.{i}.{name}.weight"] = shape
                out[f"layers.{i}.{name}.bias"] = (shape[0],)
        return out | {"norm.weight": (c,), "norm.bias": (c,), "head.weight": (v, c), "head.bias": (v,)}

    def logits(self, p, inputs):
        b, t = inputs.shape
        linear = lambda name, x: F.linear(x, p[name + ".weight"], p[name + ".bias"])
        norm = lambda name, x: F.layer_norm(x, (16,), p[name + ".weight"], p[name + ".bias"], 1e-5)
        x = p["tok_emb.weight"][inputs] + p["pos_emb.weight"][:t]
        for i in range(2):
            at = f"layers.{i}."
            q, k, v = linear(at + "attn.qkv", norm(at + "norm1", x)).view(b, t, 3, 4, 4).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, 16)
            x = x + linear(at + "attn.out", y)
            x = x + linear(at + "mlp.down", F.gelu(linear(at + "mlp.up", norm(at + "norm2", x))))
        return linear("head", norm("norm", x))

    def witness(self, p, inputs):
        """The same logits by nn.TransformerEncoder."""
        t = inputs.shape[1]
        layer = torch.nn.TransformerEncoderLayer(16, 4, 64, dropout=0.0, activation="gelu", batch_first=True,
                                                 norm_first=True, dtype=torch.float64)
        encoder = torch.nn.TransformerEncoder(layer, 2, torch.nn.LayerNorm(16, dtype=torch.float64),
                                              enable_nested_tensor=False)
        theirs = {"attn.qkv.weight": "self_attn.in_proj_weight", "attn.qkv.bias": "self_attn.in_proj_bias",
                  "attn.out": "self_attn.out_proj", "mlp.up": "linear1", "mlp.down": "linear2"}
        state = {}
        for name, value in p.items():
            if name.startswith(("layers.", "norm.")):
                for ours, their in theirs.items():
                    name = name.replace(ours, their)
                state[name] = value.detach()
        encoder.load_state_dict(state)
        mask = torch.nn.Transformer.generate_square_subsequent_mask(t, dtype=torch.float64)
        x = p["tok_emb.weight"][inputs] + p["pos_emb.weight"][:t]
        return F.linear(encoder(x, mask=mask, is_causal=True), p["head.weight"], p["head.bias"])


class Llama:
    """Pre-norm decoder; RMSNorm, SwiGLU, rotary positions (half-split), grouped K/V heads, no biases, tied head."""

    config = dict(kind="transformer", vocabulary=37, hidden=16, layers=2, heads=4, kv_heads=2, mlp=48,
                  context=12, norm="rms_norm", norm_eps=1e-6, mlp_kind="swiglu", positions="rotary",
                  rope_theta=10000.0, biases=False, tied=True)

    def shapes(self):
        c, f, kv = 16, 48, 8
        out = {"tok_emb.weight": (37, c)}
        for i in range(2):
            out |= {f"layers.{i}.{name}.weight": shape for name, shape in (
                ("norm1", (c,)), ("attn.qkv", (c + 2 * kv, c)), ("attn.out", (c, c)),
                ("norm2", (c,)), ("mlp.gate", (f, c)), ("mlp.up", (f, c)), ("mlp.down", (c, f)))}
        return out | {"norm.weight": (c,)}

    @staticmethod
    def rotate(x):
        """x (B, H, T, D): the pair of element j is j + D/2; angle position * theta^(-2j/D)."""
        t, d = x.shape[-2:]
        inverse = 10000.0 ** (-torch.arange(0, d, 2, dtype=x.dtype) / d)
        angle = torch.outer(torch.arange(t, dtype=x.dtype), inverse)
        cos, sin = angle.cos(), angle.sin()
        first, second = x.chunk(2, -1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

    def logits(self, p, inputs):
        b, t = inputs.shape
        linear = lambda name, x: F.linear(x, p[name + ".weight"])
        norm = lambda name, x: F.rms_norm(x, (16,), p[name + ".weight"], 1e-6)
        heads = lambda x: x.view(b, t, -1, 4).transpose(1, 2)
        x = p["tok_emb.weight"][inputs]
        for i in range(2):
            at = f"layers.{i}."
            q, k, v = linear(at + "attn.qkv", norm(at + "norm1", x)).split((16, 8, 8), -1)
            q, k, v = self.rotate(heads(q)), self.rotate(heads(k)), heads(v)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + linear(at + "attn.out", y.transpose(1, 2).reshape(b, t, 16))
            n = norm(at + "norm2", x)
            x = x + linear(at + "mlp.down", F.silu(linear(at + "mlp.gate", n)) * linear(at + "mlp.up", n))
        return F.linear(norm("norm", x), p["tok_emb.weight"])

    def witness(self, p, inputs):
        """The same logits a row at a time, attention written out head by head."""
        return torch.stack([self.one(p, row) for row in inputs])

    def one(self, p, ids):
        rms = lambda name, x: x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * p[name + ".weight"]
        t = len(ids)
        x = p["tok_emb.weight"][ids]
        for i in range(2):
            at = f"layers.{i}."
            qkv = rms(at + "norm1", x) @ p[at + "attn.qkv.weight"].T
            y = torch.zeros(t, 16, dtype=x.dtype)
            for h in range(4):
                part = lambda start: qkv[:, start:start + 4]
                q, k, v = self.turn(part(4 * h)), self.turn(part(16 + 4 * (h // 2))), part(24 + 4 * (h // 2))
                for n in range(t):
                    w = torch.softmax(torch.stack([q[n] @ k[m] / 2.0 for m in range(n + 1)]), 0)
                    y[n, 4 * h:4 * h + 4] = w @ v[:n + 1]
            x = x + y @ p[at + "attn.out.weight"].T
            n = rms(at + "norm2", x)
            g = n @ p[at + "mlp.gate.weight"].T
            x = x + (g / (1 + torch.exp(-g)) * (n @ p[at + "mlp.up.weight"].T)) @ p[at + "mlp.down.weight"].T
        return rms("norm", x) @ p["tok_emb.weight"].T

    @staticmethod
    def turn(x):
        """Rotation as a product of complex numbers, x (T, 4)."""
        z = torch.complex(x[:, :2], x[:, 2:])
        angle = torch.outer(torch.arange(len(x), dtype=x.dtype), torch.tensor([1.0, 0.01], dtype=x.dtype))
        z = z * torch.polar(torch.ones_like(angle), angle)
        return torch.cat((z.real, z.imag), -1)


class Gemma:
    """Norms before and behind the branches and on heads, a window with its own theta, tanh-GELU gate, scaled embeddings, bent logits."""

    config = dict(kind="transformer", vocabulary=37, hidden=16, layers=2, heads=4, kv_heads=2, mlp=48,
                  context=12, norm="rms_norm", norm_eps=1e-6, mlp_kind="geglu_tanh", positions="rotary",
                  rope_theta=10000.0, biases=False, tied=True, qk_norm=True, post_norm=True,
                  embedding_scale=4.0, scores=6.0, window=5, window_layers=[0], window_theta=100.0, soft_cap=3.0)

    def shapes(self):
        c, f, kv = 16, 48, 8
        out = {"tok_emb.weight": (37, c)}
        for i in range(2):
            out |= {f"layers.{i}.{name}.weight": shape for name, shape in (
                ("norm1", (c,)), ("attn.qkv", (c + 2 * kv, c)), ("attn.q_norm", (4,)), ("attn.k_norm", (4,)),
                ("attn.out", (c, c)), ("attn.post_norm", (c,)), ("mlp.post_norm", (c,)), ("norm2", (c,)),
                ("mlp.gate", (f, c)), ("mlp.up", (f, c)), ("mlp.down", (c, f)))}
        return out | {"norm.weight": (c,)}

    @staticmethod
    def rotate(x, theta):
        t, d = x.shape[-2:]
        angle = torch.outer(torch.arange(t, dtype=x.dtype), theta ** (-torch.arange(0, d, 2, dtype=x.dtype) / d))
        first, second = x.chunk(2, -1)
        return torch.cat((first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()), -1)

    def logits(self, p, inputs):
        b, t = inputs.shape
        linear = lambda name, x: F.linear(x, p[name + ".weight"])
        norm = lambda name, x: F.rms_norm(x, x.shape[-1:], p[name + ".weight"], 1e-6)
        heads = lambda x: x.view(b, t, -1, 4).transpose(1, 2)
        place = torch.arange(t)
        behind = place[:, None] - place[None, :]
        x = p["tok_emb.weight"][inputs] * 4.0
        for i in range(2):
            at = f"layers.{i}."
            q, k, v = linear(at + "attn.qkv", norm(at + "norm1", x)).split((16, 8, 8), -1)
            theta, window = (100.0, 5) if i == 0 else (10000.0, 1000)
            q = self.rotate(norm(at + "attn.q_norm", heads(q)), theta)
            k = self.rotate(norm(at + "attn.k_norm", heads(k)), theta)
            seen = (behind >= 0) & (behind < window)
            y = F.scaled_dot_product_attention(q, k, heads(v), attn_mask=seen, scale=6.0 ** -0.5, enable_gqa=True)
            x = x + norm(at + "attn.post_norm", linear(at + "attn.out", y.transpose(1, 2).reshape(b, t, 16)))
            n = norm(at + "norm2", x)
            inner = F.gelu(linear(at + "mlp.gate", n), approximate="tanh") * linear(at + "mlp.up", n)
            x = x + norm(at + "mlp.post_norm", linear(at + "mlp.down", inner))
        return 3.0 * torch.tanh(F.linear(norm("norm", x), p["tok_emb.weight"]) / 3.0)

    def witness(self, p, inputs):
        """The same logits a row at a time, attention written out head by head."""
        return torch.stack([self.one(p, row) for row in inputs])

    def one(self, p, ids):
        rms = lambda name, x: x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * p[name + ".weight"]
        t = len(ids)
        x = p["tok_emb.weight"][ids] * 4.0
        for i in range(2):
            at = f"layers.{i}."
            qkv = rms(at + "norm1", x) @ p[at + "attn.qkv.weight"].T
            base = torch.tensor([1.0, 0.1 if i == 0 else 0.01], dtype=x.dtype)
            y = torch.zeros(t, 16, dtype=x.dtype)
            for h in range(4):
                part = lambda start: qkv[:, start:start + 4]
                q = self.turn(rms(at + "attn.q_norm", part(4 * h)), base)
                k = self.turn(rms(at + "attn.k_norm", part(16 + 4 * (h // 2))), base)
                v = part(24 + 4 * (h // 2))
                for n in range(t):
                    first = max(0, n - 4) if i == 0 else 0
                    w = torch.softmax(torch.stack([q[n] @ k[m] / math.sqrt(6.0) for m in range(first, n + 1)]), 0)
                    y[n, 4 * h:4 * h + 4] = w @ v[first:n + 1]
            x = x + rms(at + "attn.post_norm", y @ p[at + "attn.out.weight"].T)
            n = rms(at + "norm2", x)
            g = n @ p[at + "mlp.gate.weight"].T
            g = 0.5 * g * (1 + torch.tanh(math.sqrt(2 / math.pi) * (g + 0.044715 * g ** 3)))
            x = x + rms(at + "mlp.post_norm", (g * (n @ p[at + "mlp.up.weight"].T)) @ p[at + "mlp.down.weight"].T)
        z = rms("norm", x) @ p["tok_emb.weight"].T
        return 3.0 * (1 - 2 / (1 + torch.exp(2 * z / 3.0)))

    @staticmethod
    def turn(x, base):
        z = torch.complex(x[:, :2], x[:, 2:])
        angle = torch.outer(torch.arange(len(x), dtype=x.dtype), base)
        z = z * torch.polar(torch.ones_like(angle), angle)
        return torch.cat((z.real, z.imag), -1)


class Rnn:
    """Elman network: h(t) = tanh(W_ih x(t) + b_ih + W_hh h(t-1) + b_hh), h(-1) = 0; untied head with bias."""

    config = dict(kind="rnn", vocabulary=37, embedding=16, hidden=24, layers=1, biases=True, tied=False)

    def shapes(self):
        e, h, v = 16, 24, 37
        return {"tok_emb.weight": (v, e), "rnn.w_ih": (h, e), "rnn.w_hh": (h, h), "rnn.b_ih": (h,),
                "rnn.b_hh": (h,), "head.weight": (v, h), "head.bias": (v,)}

    def logits(self, p, inputs):
        x, h, out = p["tok_emb.weight"][inputs], torch.zeros(len(inputs), 24, dtype=torch.float64), []
        for t in range(inputs.shape[1]):
            h = torch.tanh(F.linear(x[:, t], p["rnn.w_ih"], p["rnn.b_ih"]) + F.linear(h, p["rnn.w_hh"], p["rnn.b_hh"]))
            out.append(h)
        return F.linear(torch.stack(out, 1), p["head.weight"], p["head.bias"])

    def witness(self, p, inputs):
        """The same logits by nn.RNN."""
        rnn = torch.nn.RNN(16, 24, batch_first=True, dtype=torch.float64)
        rnn.load_state_dict({f"{kind}_{way}_l0": p[f"rnn.{kind[0]}_{way}"].detach()
                             for kind in ("weight", "bias") for way in ("ih", "hh")})
        return F.linear(rnn(p["tok_emb.weight"][inputs])[0], p["head.weight"], p["head.bias"])


def decays(name, value):
    """Weight decay is for matrices that are not embeddings."""
    return value.dim() == 2 and "emb" not in name


def make(network, seed):
    generator = torch.Generator().manual_seed(seed)
    p = random_parameters(network.shapes(), generator)
    rows = random_rows(generator)
    inputs, targets = padded(rows)

    with torch.no_grad():
        gap = (network.logits(p, inputs) - network.witness(p, inputs))[targets >= 0].abs().max().item()
    if not gap < 1e-12:
        sys.exit(f"{network.config}: two ways to the logits differ by {gap:.3e}")

    loss_of = lambda logits: F.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1), ignore_index=-100)
    places = [(0, 0), (0, 11), (1, 6), (2, 4)]
    before = {name: value.detach().clone() for name, value in p.items()}
    optimizer = torch.optim.AdamW(
        [dict(params=[v for n, v in p.items() if decays(n, v)], weight_decay=WEIGHT_DECAY),
         dict(params=[v for n, v in p.items() if not decays(n, v)], weight_decay=0.0)], **ADAMW)
    steps = []
    for step in range(STEPS):
        optimizer.zero_grad()
        logits = network.logits(p, inputs)
        loss = loss_of(logits)
        loss.backward()
        if step == 0:
            gradients = {name: value.grad.clone() for name, value in p.items()}
            first = [dict(sequence=s, position=t, values=numbers(logits[s, t])) for s, t in places]
        norm = torch.nn.utils.clip_grad_norm_(list(p.values()), CLIP)
        steps.append(dict(loss=number(loss.item()), gradient_norm=number(norm.item())))
        optimizer.step()
    if not steps[0]["gradient_norm"] > CLIP:
        sys.exit(f"{network.config}: the clip does nothing at norm {steps[0]['gradient_norm']}")
    with torch.no_grad():
        after = loss_of(network.logits(p, inputs)).item()

    return dict(
        what=" ".join(network.__doc__.split()),
        made_by=f"scripts/make_torch_fixtures.py, PyTorch {TORCH}, f64",
        config=network.config,
        rows=[dict(inputs=i, targets=t) for i, t in rows],
        parameters=tensors(before), logits=first, loss=steps[0]["loss"],
        gradient_norm=steps[0]["gradient_norm"], gradients=tensors(gradients),
        optimizer=dict(kind="adamw", lr=ADAMW["lr"], beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=WEIGHT_DECAY,
                       clip=CLIP, decayed=[n for n, v in p.items() if decays(n, v)]),
        steps=steps, parameters_after=tensors(p), loss_after=number(after))


MUON = dict(lr=0.02, momentum=0.95, weight_decay=0.05)
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def orthogonalised(x):
    """Five Newton-Schulz steps (https://kellerjordan.github.io/posts/muon/), in x's own precision."""
    a, b, c = NEWTON_SCHULZ
    turned = len(x) > x.shape[1]
    x = (x.T if turned else x) / (x.norm() + 1e-7)
    for _ in range(5):
        g = x @ x.T
        x = a * x + (b * g + c * g @ g) @ x
    return x.T if turned else x


def muon_parts(name, value):
    """The linear maps of a hidden matrix; none for other parameters. Queries, keys and values count apart."""
    if not decays(name, value) or name.startswith("head"):
        return []
    return list(value.chunk(3)) if "attn.qkv" in name else [value]


def muon_step(p, momentum, clip):
    """One step on all hidden matrices, the gradient times `clip`."""
    beta = MUON["momentum"]
    with torch.no_grad():
        for name, value in p.items():
            for i, (w, g) in enumerate(zip(muon_parts(name, value), muon_parts(name, value.grad))):
                m = momentum.setdefault((name, i), torch.zeros_like(w))
                m.lerp_(g * clip, 1 - beta)
                update = orthogonalised((g * clip).lerp(m, beta))
                w.mul_(1 - MUON["lr"] * MUON["weight_decay"])
                w.sub_(MUON["lr"] * max(1.0, len(w) / w.shape[1]) ** 0.5 * update)


def check_against_torch_muon(p):
    """torch.optim.Muon rounds to bfloat16 inside, so its step is met to a few hundredths."""
    for name, value in p.items():
        for w, g in zip(muon_parts(name, value), muon_parts(name, value.grad)):
            theirs = torch.nn.Parameter(w.detach().float().clone())
            theirs.grad = g.float()
            torch.optim.Muon([theirs], lr=1.0, momentum=MUON["momentum"], weight_decay=0.0).step()
            ours = max(1.0, len(w) / w.shape[1]) ** 0.5 * orthogonalised(g * (1 - MUON["momentum"] ** 2))
            gap = (w.detach() - theirs.detach().double() - ours).norm() / ours.norm()
            if not gap < 0.1:
                sys.exit(f"{name}: torch.optim.Muon's step differs by {gap:.3e}")


def make_muon(network, seed):
    """Three steps of Muon on hidden matrices with AdamW on the rest, from the network's own fixture."""
    generator = torch.Generator().manual_seed(seed)
    p = random_parameters(network.shapes(), generator)
    inputs, targets = padded(random_rows(generator))
    rest = {n: v for n, v in p.items() if not muon_parts(n, v)}
    optimizer = torch.optim.AdamW(
        [dict(params=[v for n, v in rest.items() if decays(n, v)], weight_decay=WEIGHT_DECAY),
         dict(params=[v for n, v in rest.items() if not decays(n, v)], weight_decay=0.0)], **ADAMW)
    steps, momentum = [], {}
    for step in range(STEPS):
        for value in p.values():
            value.grad = None
        logits = network.logits(p, inputs)
        loss = F.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1), ignore_index=-100)
        loss.backward()
        if step == 0:
            check_against_torch_muon(p)
        norm = torch.nn.utils.get_total_norm([v.grad for v in p.values()]).item()
        clip = min(1.0, CLIP / (norm + 1e-6))
        steps.append(dict(loss=number(loss.item()), gradient_norm=number(norm)))
        muon_step(p, momentum, clip)
        for value in rest.values():
            value.grad.mul_(clip)
        optimizer.step()
    return dict(what="Three steps of Muon on the hidden matrices of transformer.json, AdamW on the rest",
                made_by=f"scripts/make_torch_fixtures.py, PyTorch {TORCH}, f64",
                optimizer=MUON | dict(kind="muon", adamw=ADAMW, weight_decay_of_the_rest=WEIGHT_DECAY),
                steps=steps, loss=steps[0]["loss"], gradient_norm=steps[0]["gradient_norm"],
                parameters_after=tensors(p), loss_after=steps[-1]["loss"])


def number(x):
    """Nine significant digits."""
    return float(f"{x:.9g}")


def numbers(tensor):
    return [number(x) for x in tensor.detach().reshape(-1).tolist()]


def tensors(named):
    return {name: dict(shape=list(value.shape), values=numbers(value)) for name, value in named.items()}


def text(fixture):
    """JSON with one tensor a line."""
    dump = lambda x: json.dumps(x, separators=(",", ":"))
    lines = []
    for key, value in fixture.items():
        if isinstance(value, dict) and key in ("parameters", "gradients", "parameters_after"):
            inner = ",\n".join(f"  {dump(n)}:{dump(v)}" for n, v in value.items())
            lines.append(f"{dump(key)}:{{\n{inner}\n}}")
        else:
            lines.append(f"{dump(key)}:{dump(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main():
    parser = argparse.ArgumentParser(description="Writes the fixtures of crates/models/tests.")
    parser.add_argument("--check", action="store_true", help="compare with the files and write nothing")
    check = parser.parse_args().check
    if torch.__version__.split("+")[0] != TORCH:
        sys.exit(f"PyTorch {torch.__version__} is installed, {TORCH} is expected: run scripts/setup")
    torch.set_num_threads(1)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, maker, network, seed in (
            ("transformer", make, Transformer(), 11), ("rnn", make, Rnn(), 12), ("llama", make, Llama(), 13),
            ("gemma", make, Gemma(), 14), ("muon", make_muon, Transformer(), 11)):
        path, fixture = FOLDER / f"{name}.json", maker(network, seed)
        new = text(fixture)
        if check and path.read_text() != new:
            sys.exit(f"{path}: differs from what PyTorch says now; run without --check and look at the difference")
        if not check:
            path.write_text(new)
        print(f"{path.name}: {len(new) / 1000:.0f} kB, loss {fixture['loss']:.6f} -> {fixture['loss_after']:.6f}, "
              f"gradient norm {fixture['gradient_norm']:.4f}")


if __name__ == "__main__":
    main()
