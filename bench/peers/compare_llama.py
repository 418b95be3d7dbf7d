#!/usr/bin/env python3
"""Trireme beside llama.cpp on the same weights, alternating in one run.

    compare_llama.py --trireme build/trireme --model FOLDER --gguf FILE [--rounds 3] [--threads 2] [--prompt 512] [--generate 64]

FOLDER is a checkpoint, FILE the same weights as GGUF. Needs the package llama-cpp-python, built from source for this processor. Each
round runs `trireme bench latency` and then the same work through llama.cpp; the table shows the median of the rounds, tokens a second.
"""
import argparse
import json
import random
import statistics
import subprocess
import time

import llama_cpp


class Peer:
    """llama.cpp with one context of several sequences; token ids only."""

    def __init__(self, path, threads, sequences, tokens):
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = tokens * sequences
        params.n_batch = params.n_ubatch = 512
        params.n_seq_max = sequences
        params.n_threads = params.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise SystemExit("llama.cpp cannot make a context")
        self.vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.random = random.Random(1)

    def clear(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def decode(self, entries):
        """entries: (position, sequence, wants logits) of random tokens -> seconds"""
        batch = llama_cpp.llama_batch_init(len(entries), 0, 1)
        batch.n_tokens = len(entries)
        for i, (position, sequence, logits) in enumerate(entries):
            batch.token[i] = self.random.randrange(self.vocab)
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = logits
        start = time.perf_counter()
        status = llama_cpp.llama_decode(self.context, batch)
        llama_cpp.llama_synchronize(self.context)
        seconds = time.perf_counter() - start
        llama_cpp.llama_batch_free(batch)
        if status != 0:
            raise SystemExit(f"llama_decode failed with {status}")
        return seconds

    def measure(self, prompt, generate, batch):
        """-> prefill tokens/s of one prompt, decode tokens/s of `batch` sequences"""
        self.clear()
        prefill = []
        for sequence in range(batch):
            prefill.append(self.decode([(p, sequence, p == prompt - 1) for p in range(prompt)]))
        steps = [self.decode([(prompt + i, s, True) for s in range(batch)]) for i in range(generate)]
        return prompt / statistics.median(prefill), batch * generate / sum(steps)


def ours(args, batches):
    command = [args.trireme, "bench", "latency", "--model", args.model, "--prompt", str(args.prompt), "--generate", str(args.generate),
               "--batch", ",".join(map(str, batches)), "--threads", str(args.threads), "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trireme", default="build/trireme")
    parser.add_argument("--model", required=True)
    parser.add_argument("--gguf", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--generate", type=int, default=64)
    args = parser.parse_args()
    batches = [1, 8]
    rows = {}
    for _ in range(args.rounds):
        report = ours(args, batches)
        rows.setdefault("prefill", []).append([report["prefill"]["tokens_per_s"]])
        for entry in report["decode"]:
            rows.setdefault(f"decode, batch {entry['batch']}", []).append([entry["tokens_per_s"]])
        peer = Peer(args.gguf, args.threads, max(batches), args.prompt + args.generate + 8)
        for batch in batches:
            prefill, decode = peer.measure(args.prompt, args.generate, batch)
            if batch == 1:
                rows["prefill"][-1].append(prefill)
            rows[f"decode, batch {batch}"][-1].append(decode)
        llama_cpp.llama_free(peer.context)
        llama_cpp.llama_model_free(peer.model)
    print(f"| tokens/s ({args.threads} threads, median of {args.rounds}) | trireme | llama.cpp | ratio |\n|---|---|---|---|")
    for name, pairs in rows.items():
        us, them = (statistics.median(column) for column in zip(*pairs))
        print(f"| {name} | {us:.1f} | {them:.1f} | {us / them:.2f} |")


if __name__ == "__main__":
    main()
