#!/usr/bin/env python3
"""Picks a few logits rows out of the full reference values of k3-nano, small enough to live in the repository.

    pick_nano_rows.py reference.safetensors tests/golden/k3-nano-rows.safetensors

The input has, for every prompt i, pI.ids (prompt and greedy text), pI.prompt_len, pI.logits and pI.logits_first (row r of the logits
follows id number logits_first + r). The output keeps ids and prompt_len, and the logits rows at the positions pI.rows.
"""
import sys

import numpy as np
from safetensors.numpy import load_file, save_file

ROWS = 4


def main(source, target):
    full, out = load_file(source), {}
    prompts = sorted({int(n[1:].split(".")[0]) for n in full if n.endswith(".ids")})
    for i in prompts:
        p = f"p{i}."
        first, count = int(full[p + "logits_first"][0]), len(full[p + "logits"])
        # The last prompt position, and others spread to the end of the greedy text.
        start = int(full[p + "prompt_len"][0]) - 1
        rows = np.unique(np.linspace(start, first + count - 1, ROWS).astype(np.int32))
        out[p + "ids"], out[p + "prompt_len"] = full[p + "ids"], full[p + "prompt_len"]
        out[p + "rows"] = rows
        out[p + "logits"] = np.ascontiguousarray(full[p + "logits"][rows - first])
    save_file(out, target)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
