"""The flags that `whole_runs.py` passes to the programs of this folder."""

import argparse


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for flag in ("--epochs", "--size", "--batch-size", "--workers", "--seed"):
        parser.add_argument(flag, type=int)
    parser.add_argument("--lr", type=float)
    for flag in ("--photos", "--model", "--device"):
        parser.add_argument(flag)
    return parser.parse_args()
