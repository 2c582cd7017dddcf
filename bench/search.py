#!/usr/bin/env python3
"""Runs the trials of a search one after another, each once, and tells what the validation side said.

A trial is a file NAME.toml, as `autoreg train --config` takes it; its first line may be a comment
that says why it is tried. A line of FOLDER/records.jsonl is a finished trial: the configuration, the
best validation loss, the curve, the time; "stopped" marks one that was given up before its end. The
test side is never read.

    bench/search.py FOLDER --autoreg target/release/autoreg --data mail    # run what has no record
    bench/search.py FOLDER --table                                         # a Markdown table
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import tomllib


def records(folder):
    """name -> the record of a finished trial."""
    path = folder / "records.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return {r["trial"]: r for r in map(json.loads, lines)}


def next_trial(folder):
    """The first trial by name without a record; None when all have one."""
    done = records(folder)
    waiting = [p for p in sorted(folder.glob("*.toml")) if p.stem not in done]
    return waiting[0] if waiting else None


def run(path, autoreg, data, threads):
    """Trains one configuration in a folder that is thrown away; its record."""
    text = path.read_text()
    record = {"trial": path.stem, "why": "", "config": tomllib.loads(text)}
    if text.startswith("#"):
        record["why"] = text.splitlines()[0].lstrip("# ")
    with tempfile.TemporaryDirectory() as scratch:
        command = [autoreg, "train", "--data", data, "--config", path, "--out", f"{scratch}/run"]
        command += ["--threads", str(threads), "--quiet", "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return record | {"failed": done.stderr.strip().splitlines()[-1:]}
    result = json.loads(done.stdout)
    kept = ("parameters", "valid_loss_nats", "best_step", "steps", "train_tokens", "train_seconds")
    points = [[p["tokens"], round(p["train_loss"], 4), round(p["valid_loss"], 4)]
              for p in result["curve"]]
    return record | {key: result[key] for key in kept} | {"curve": points}


def table(folder):
    """One line a trial, in the order they were run."""
    print("| trial | why | parameters | epochs | best validation loss, nats/token | "
          "training loss at the end | minutes |\n|---|---|---|---|---|---|---|")
    for name, r in records(folder).items():
        if "failed" in r:
            print(f"| {name} | {r['why']} | | | failed | | |")
            continue
        epochs = r["config"]["train"]["epochs"]
        if "stopped" in r:
            epochs = f"{len(r['curve'])} of {epochs}"
        print(f"| {name} | {r['why']} | {r['parameters']:,} | {epochs} | "
              f"{r['valid_loss_nats']:.4f} | {r['curve'][-1][1]:.3f} | "
              f"{r['train_seconds'] / 60:.1f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--autoreg", default="target/release/autoreg")
    parser.add_argument("--data", default="mail")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="print the records and run nothing")
    asked = parser.parse_args()
    if asked.table:
        return table(asked.folder)
    while path := next_trial(asked.folder):
        record = run(path, asked.autoreg, asked.data, asked.threads)
        with (asked.folder / "records.jsonl").open("a") as out:
            out.write(json.dumps(record) + "\n")
        print(path.stem, record.get("valid_loss_nats", record.get("failed")), flush=True)


if __name__ == "__main__":
    sys.exit(main())
