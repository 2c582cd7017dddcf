#!/usr/bin/env python3
"""Blocks of every tensor type that the GGUF reader knows, with the values that the `gguf` package
(pinned in requirements-hf.txt) makes of them: crates/formats/tests/fixtures/blocks.gguf.

    .venv/bin/python scripts/make_gguf_fixture.py

For each type X there are two tensors: `X` (random bytes; halves that are no numbers are avoided)
and `X.values` (F32: what X means).
"""
from pathlib import Path

import gguf
import numpy as np

KINDS = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
# Where the half-precision scales of a block stand.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}

out = Path(__file__).parent.parent / "crates/formats/tests/fixtures/blocks.gguf"
out.parent.mkdir(parents=True, exist_ok=True)
random = np.random.default_rng(7)
writer = gguf.GGUFWriter(str(out), "test")
writer.add_array("test.texts", ["a", "", "é"])
writer.add_array("test.floats", [0.5, -1.0])
writer.add_array("test.wholes", [1, -2, 3])
writer.add_bool("test.yes", True)
writer.add_uint64("test.large", 2**63)
writer.add_int8("test.small", -5)
writer.add_float64("test.double", 0.1)
for name in KINDS:
    kind = getattr(gguf.GGMLQuantizationType, name)
    values, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = 512 // values if values > 1 else 8
    raw = random.integers(0, 256, (2, blocks // 2 * size), dtype=np.uint8)
    scales = random.normal(0, 0.1, (2, blocks)).astype(np.float16)
    if name in HALVES:
        view = raw.reshape(-1, size)
        for i, at in enumerate(HALVES[name]):
            view[:, at:at + 2] = scales[i].reshape(-1, 1).view(np.uint8)
    elif name == "F32":
        raw = scales[:, :4].astype(np.float32).view(np.uint8)
    elif name == "F16":
        raw = np.ascontiguousarray(scales[:, :4]).view(np.uint8)
    else:  # BF16
        raw = np.ascontiguousarray(scales[:, :4].astype(np.float32).view(np.uint16)[:, 1::2]).view(np.uint8)
    plain = {"F32": np.float32, "F16": np.float16}
    data = raw.view(plain[name]) if name in plain else raw
    writer.add_tensor(name, data, raw_dtype=None if name in plain else kind)
    writer.add_tensor(name + ".values", gguf.quants.dequantize(data, kind).astype(np.float32))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
print(out, out.stat().st_size, "bytes")

# What the package's own encoders make of given values, for those that it has:
# crates/formats/tests/fixtures/encoded.gguf, tensor `values` and one of each type.
out = out.with_name("encoded.gguf")
values = random.normal(0, 0.05, (4, 256)).astype(np.float32)
values[1] *= 40
values[2, ::7] = 0
values[3, :64] = 0
values[3, 64:128] = -values[3, 64]
writer = gguf.GGUFWriter(str(out), "test")
writer.add_tensor("values", values)
for name in ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]:
    kind = getattr(gguf.GGMLQuantizationType, name)
    data = gguf.quants.quantize(values, kind)
    writer.add_tensor(name, data, raw_dtype=None if name == "F16" else kind)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
print(out, out.stat().st_size, "bytes")
