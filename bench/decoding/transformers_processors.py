"""Median microseconds of Hugging Face transformers' logits processors, one row, one thread.

Called by `cargo bench -p autoreg-decoding` with a file of f32 rows and the vocabulary size.
Prints one line a chain: its name, a tab, the median. The work timed is what `generate` does
with a row of logits: the processors in its own order, softmax, and one draw (or argmax).
"""

import statistics
import sys
import time

import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

REPEATS = 200
WARM_UP = 20


def main():
    path, vocabulary = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    with open(path, "rb") as file:
        rows = torch.frombuffer(bytearray(file.read()), dtype=torch.float32)
    rows = rows.view(-1, vocabulary)
    seen = (torch.arange(512) * 37).view(1, -1)
    temperature, top_k, top_p = TemperatureLogitsWarper(0.8), TopKLogitsWarper(40), TopPLogitsWarper(0.95)
    chains = {
        "greedy": None,
        "temperature": [temperature],
        "temperature, top-p": [temperature, top_p],
        "temperature, top-k, top-p": [temperature, top_k, top_p],
        "repetition, temperature, top-k, top-p": [
            RepetitionPenaltyLogitsProcessor(1.1),
            temperature,
            top_k,
            top_p,
        ],
    }
    with torch.inference_mode():
        for name, chain in chains.items():
            print(f"{name}\t{median(rows, seen, chain):.1f}", flush=True)


def median(rows, seen, chain):
    processors = LogitsProcessorList(chain or [])
    times = []
    for i in range(WARM_UP + REPEATS):
        row = rows[i % len(rows)].unsqueeze(0)
        start = time.perf_counter()
        if chain is None:
            torch.argmax(row, dim=-1)
        else:
            probabilities = torch.softmax(processors(seen, row), dim=-1)
            torch.multinomial(probabilities, num_samples=1)
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times[WARM_UP:])


if __name__ == "__main__":
    main()
