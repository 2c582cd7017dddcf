#!/usr/bin/env python3
"""Reading a prompt: transformers on the same GGUF file in bf16 beside `autoreg bench prefill`, tokens/s.

    .venv/bin/pip install -r scripts/requirements-hf.txt accelerate==1.15.0
    .venv/bin/python bench/torch_prefill.py models/smollm2-135m-q4_1.gguf [--tokens 512] [--threads 1] [--json FILE]

transformers takes the file's matrices apart when it loads them and multiplies in bf16. Both sides keep keys
and values, give the last position's logits, and read the prompt once untimed; then the median of five counts.
"""

import argparse
import json
import pathlib
import statistics
import time

import common


def worker(arguments):
    import torch
    import transformers
    torch.set_num_threads(arguments.threads)
    path = pathlib.Path(arguments.model)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.bfloat16)
    kinds = {parameter.dtype for parameter in model.parameters()}
    if kinds != {torch.bfloat16}:
        raise SystemExit(f"{path}: expected weights in bf16, found {kinds}")
    model.eval()
    ids = torch.tensor(common.random_ids(1, arguments.tokens, model.config.get_text_config().vocab_size))
    speeds = []
    with torch.inference_mode():
        for _ in range(6):
            start = time.perf_counter()
            model(ids, use_cache=True, logits_to_keep=1)
            speeds.append(arguments.tokens / (time.perf_counter() - start))
    print(json.dumps(dict(tokens_per_second=dict(median=statistics.median(speeds[1:])),
                          peak_process_bytes=common.process_memory("VmHWM"))))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--tokens", type=int, default=512)
    common.add_arguments(parser, rounds=3)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(arguments)
    common.need(arguments)
    same = ["--tokens", str(arguments.tokens), "--threads", str(arguments.threads)]
    runs = common.alternate(arguments, {
        "torch": common.torch_worker(__file__, arguments.model, *same),
        "autoreg": [arguments.autoreg, "bench", "prefill", arguments.model, *same, "--repeat", "5", "--json"]})
    speeds = {side: [run["tokens_per_second"]["median"] for run in each] for side, each in runs.items()}
    peaks = {side: [run["peak_process_bytes"] / common.MIB for run in each] for side, each in runs.items()}
    results = {side: common.summary(values) for side, values in speeds.items()}
    rows = [["tokens/s", *map(common.spread, speeds.values())], ["peak, MiB", *map(common.spread, peaks.values())]]
    if len(speeds) == 2:
        for row, found in zip(rows, (speeds, peaks)):
            row.append(common.spread(common.ratios(found["autoreg"], found["torch"])))
        results["ratio"] = common.summary(common.ratios(speeds["autoreg"], speeds["torch"]))
    common.table([f"prefill {arguments.tokens}", *speeds, "ratio"][:len(rows[0])], rows)
    common.finish(arguments, "torch_prefill", results)


if __name__ == "__main__":
    main()
