#!/usr/bin/env python3
"""Small files that hold, from which the fuzz targets of the two readers of weights start:
fuzz/seeds/gguf and fuzz/seeds/safetensors.

    .venv/bin/python scripts/make_fuzz_seeds.py
"""
import json
import struct
from pathlib import Path

import gguf
import numpy as np

seeds = Path(__file__).parent.parent / "fuzz/seeds"
for name in ["gguf", "safetensors"]:
    (seeds / name).mkdir(parents=True, exist_ok=True)


def write(name, keys, tensors):
    writer = gguf.GGUFWriter(str(seeds / "gguf" / name), "llama")
    keys(writer)
    for tensor, data, kind in tensors:
        writer.add_tensor(tensor, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def every_key(writer):
    writer.add_uint8("a.u8", 1)
    writer.add_int8("a.i8", -1)
    writer.add_uint16("a.u16", 2)
    writer.add_int16("a.i16", -2)
    writer.add_uint32("a.u32", 3)
    writer.add_int32("a.i32", -3)
    writer.add_float32("a.f32", 0.5)
    writer.add_uint64("a.u64", 2**40)
    writer.add_int64("a.i64", -(2**40))
    writer.add_float64("a.f64", 0.25)
    writer.add_bool("a.bool", True)
    writer.add_string("a.text", "é")
    writer.add_array("a.texts", ["x", "", "yz"])
    writer.add_array("a.floats", [0.5, -1.0])
    writer.add_array("a.wholes", [1, -2, 3])
    writer.add_array("a.bools", [True, False])


values = np.linspace(-1, 1, 256, dtype=np.float32).reshape(1, 256)
write("keys.gguf", every_key, [])
kinds = gguf.GGMLQuantizationType
plain = [("f32", values[:, :8], None), ("f16", values[:, :8].astype(np.float16), None)]
write("plain.gguf", lambda writer: writer.add_custom_alignment(64), plain)
small = [(n, gguf.quants.quantize(values[:, :32], getattr(kinds, n)), getattr(kinds, n))
         for n in ["BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]]
write("blocks.gguf", lambda writer: None, small)
large = [(n, np.zeros((1, gguf.GGML_QUANT_SIZES[getattr(kinds, n)][1]), np.uint8), getattr(kinds, n))
         for n in ["Q4_K", "Q5_K", "Q6_K"]]
write("large_blocks.gguf", lambda writer: None, large)


def safetensors(name, header, data):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (seeds / "safetensors" / name).write_bytes(struct.pack("<Q", len(text)) + text + data)


def tensor(kind, shape, start, end):
    return {"dtype": kind, "shape": shape, "data_offsets": [start, end]}


safetensors("empty.safetensors", {}, b"")
safetensors("three.safetensors", {
    "__metadata__": {"format": "pt"},
    "a": tensor("F32", [2, 2], 0, 16),
    "b": tensor("F16", [3], 16, 22),
    "c": tensor("BF16", [1, 1, 1], 22, 24),
    "d": tensor("I64", [], 24, 32),
}, bytes(range(32)))
