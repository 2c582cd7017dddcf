#!/usr/bin/env python3
"""What 16-bit training does to the learning curve: the email transformer on one data set, several seeds, each
in FP32 and in 16 bits; the spread of FP32's seeds beside the differences.

    target/release/autoreg data prepare --out DATA
    bench/precision.py DATA [--seeds 6] [--epochs 4] [--precisions bf16 f16] [--json FILE]

Losses are validation losses in nats/token at the end of each epoch, as the run itself computed them.
"""

import argparse
import json
import pathlib
import statistics
import tempfile

import common


def curve(arguments, seed, precision, folder):
    run = folder / f"{precision}-{seed}"
    command = [arguments.autoreg, "train", "--data", arguments.data, "--model", "transformer", "--seed", seed,
               "--epochs", arguments.epochs, "--precision", precision, "--out", run, "--json", "--quiet",
               "--threads", arguments.threads]
    result = common.last_json(list(map(str, command)), arguments.threads)
    lost = [json.loads(line).get("lost_update_share") for line in (run / "metrics.jsonl").open()]
    lost = [share for share in lost if share is not None]
    return dict(losses=[point["valid_loss"] for point in result["curve"]],
                overflowed=result["overflowed_steps"], lost=statistics.mean(lost) if lost else None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--autoreg", default=str(common.ROOT / "target/release/autoreg"))
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precisions", nargs="+", default=["bf16"], choices=["bf16", "f16"])
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    precisions = ["f32", *arguments.precisions]
    with tempfile.TemporaryDirectory() as folder:
        runs = {precision: [curve(arguments, seed, precision, pathlib.Path(folder))
                            for seed in range(arguments.seeds)] for precision in precisions}
    rows = []
    for epoch in range(len(runs["f32"][0]["losses"])):
        at = {precision: [run["losses"][epoch] for run in each] for precision, each in runs.items()}
        off = {precision: [a - b for a, b in zip(at[precision], at["f32"])] for precision in precisions[1:]}
        show = lambda values: f"{statistics.mean(values):.4f} ± {statistics.stdev(values):.4f}"
        signed = lambda values: f"{statistics.mean(values):+.4f} ({min(values):+.4f} to {max(values):+.4f})"
        rows.append([epoch + 1, *(show(at[p]) for p in precisions), *(signed(off[p]) for p in off)])
    common.table(["epoch", *precisions, *(f"{p} - f32, same seed" for p in precisions[1:])], rows)
    for precision in precisions[1:]:
        lost = statistics.mean(run["lost"] for run in runs[precision])
        print(f"{precision}: {100 * lost:.0f} % of updates left the 16 bits of a weight as they were; "
              f"{sum(run['overflowed'] for run in runs[precision])} steps skipped for overflow")
    if arguments.json:
        arguments.json.write_text(json.dumps(runs, indent=1) + "\n")


if __name__ == "__main__":
    main()
