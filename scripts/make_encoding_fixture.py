#!/usr/bin/env python3
"""Token ids of 5,000 random strings by Hugging Face transformers, as hashes of 100 strings each:
tests/fixtures/encodings.json. Needs the models of scripts/fetch-test-models.

    .venv/bin/python scripts/make_encoding_fixture.py [MODELS]

The strings come from a generator that tests/encoding.rs repeats. Control tokens' names are not in
them: whether those are text is a rule of ours.
"""
import hashlib
import json
import sys
from pathlib import Path

from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

ROOT = Path(__file__).parent.parent
MODELS = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "models")
MASK = 2**64 - 1
# (first, last) of ranges that characters are drawn from, and pieces that words are made of.
RANGES = [(0x20, 0x7E), (0x61, 0x7A), (0x61, 0x7A), (0xA0, 0x24F), (0x370, 0x52F), (0x5D0, 0x6FF), (0x900, 0x97F),
          (0xE00, 0xE7F), (0x300, 0x36F), (0x2000, 0x206F), (0x3040, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3),
          (0x1F300, 0x1F6FF), (0x1D400, 0x1D7FF), (0x9, 0xD)]
WORDS = ["the ", " report", "don't", "We'LL ", "  ", "\n", "\n\n", "\t", "12345", " 3.14", "naïve ", "(x) ", "==", "/*",
         " Friday", "https://", "日本", "¿qué? ", "🙂", "e\u0301", "\u00a0", "\r\n", "...", " — ", "<b>", "</s"]


def numbers(state):
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) & MASK
        yield state >> 33


def strings():
    draw = numbers(7)
    for _ in range(5000):
        parts = []
        for _ in range(next(draw) % 24):
            if next(draw) % 2:
                parts.append(WORDS[next(draw) % len(WORDS)])
            else:
                low, high = RANGES[next(draw) % len(RANGES)]
                parts.append("".join(chr(low + next(draw) % (high - low + 1)) for _ in range(1 + next(draw) % 4)))
        yield "".join(parts)


def main():
    texts, out = list(strings()), {}
    for name in ["smollm2-135m-q4_1", "gemma3-270m-q4_k_m"]:
        tokenizer = AutoTokenizer.from_pretrained(MODELS, gguf_file=f"{name}.gguf")
        if name.startswith("smollm2"):
            # transformers does not read how a GGUF file's text is cut; SmolLM2's tokenizer.json, from
            # which the file was made ("smollm"), sets single digits apart first.
            tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
                [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
        hashes = []
        for at in range(0, len(texts), 100):
            hash = hashlib.sha256()
            for text in texts[at:at + 100]:
                ids = tokenizer(text, add_special_tokens=False).input_ids
                hash.update((",".join(map(str, ids)) + "\n").encode())
            hashes.append(hash.hexdigest()[:16])
        out[name] = hashes
    path = ROOT / "tests/fixtures/encodings.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(out, indent=1) + "\n")
    print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
