"""What watching costs: the time of a forward pass under `watch` against the bare one, and peak memory against tokens.

    python benchmarks/watch.py

Bare and watched passes alternate in one run on the same weights and tokens; the ratio is the median over the pairs.
Each sweep whose memory is read runs in a process of its own.
"""

import resource
import statistics
import subprocess
import sys
import time

import torch

from norm_geometry import corpus, hooks, measure, models

PAIRS = 21
SEQUENCES, LENGTH = 8, 512


def seconds(function) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def time_ratio() -> None:
    model, tokenizer, _ = models.load("smollm2-135m", device="cpu")
    chunks = corpus.tokenize(corpus.packaged_wikipedia(), tokenizer, length=LENGTH, tokens=SEQUENCES * LENGTH)
    batch = {name: torch.from_numpy(ids) for name, ids in next(corpus.batches(chunks, SEQUENCES)).items()}
    sites = hooks.find_norms(model.base_model)

    def bare():
        model.base_model(**batch, use_cache=False)

    def watched():
        with hooks.watch(model.base_model, sites=sites):
            bare()

    with torch.inference_mode():
        bare(), watched()
        pairs = []
        for i in range(PAIRS):
            pair = {run: seconds(run) for run in ((bare, watched) if i % 2 else (watched, bare))}
            pairs.append((pair[bare], pair[watched]))
    ratios = sorted(watched / bare for bare, watched in pairs)
    tokens = int(batch["attention_mask"].sum())
    print(f"SmolLM2-135M, {len(sites)} sites before and after, {tokens} tokens, {torch.get_num_threads()} threads")
    print(f"bare     {tokens / statistics.median(b for b, _ in pairs):7.0f} tokens/s")
    print(f"watched  {tokens / statistics.median(w for _, w in pairs):7.0f} tokens/s")
    print(f"ratio    {statistics.median(ratios):.3f}  (of {PAIRS} pairs; {ratios[0]:.3f} to {ratios[-1]:.3f})")


def peak_memory(tokens: int) -> None:
    model, tokenizer, _ = models.load("smollm2-135m", device="cpu")
    chunks = corpus.tokenize(corpus.packaged_wikipedia(), tokenizer, tokens=tokens)
    measure.sweep(model, chunks)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)


if __name__ == "__main__":
    if sys.argv[1:]:
        peak_memory(int(sys.argv[1]))
    else:
        time_ratio()
        for tokens in (8192, 16384, 32768, 65536):
            done = subprocess.run(
                [sys.executable, __file__, str(tokens)], stdout=subprocess.PIPE, text=True, check=True
            )
            print(f"peak memory of a sweep over {tokens:6} tokens: {int(done.stdout)} MiB")
