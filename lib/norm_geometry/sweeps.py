"""One pass of a model over a text, watched at every norm: interruptible, divisible, and content with any memory."""

import sys
from collections.abc import Callable, Sequence

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import gather
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size
from jaxtyping import Int
from torch import nn
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from norm_geometry import corpus
from norm_geometry.checkpoints import Checkpoint
from norm_geometry.hooks import Record, watch
from norm_geometry.statistics import uniform_and_random

__all__ = ["launched_processes", "sweep"]


def launched_processes() -> PartialState:
    """The processes that `accelerate launch` or `torchrun` has started together, one if there was no such thing."""
    return PartialState(cpu=not torch.accelerator.is_available())


def sweep(
    model: PreTrainedModel,
    chunks: Sequence[Int[np.ndarray, "_"]],
    *,
    batch_size: int = 8,
    directions: Callable[[int], dict[str, np.ndarray]] = uniform_and_random,
    sample_every: int | None = None,
    skip: int = 0,
    seed: int = 0,
    checkpoint: Checkpoint | None = None,
) -> Record:
    """Run `model` over `chunks` of token ids and watch every normalization site. Shows a progress bar.

    The output head is left out: nothing that is measured depends on it. Sites are named as in `model.base_model`.
    A batch too large for the memory is halved, which changes the result by no more than rounding. Under `accelerate
    launch` or `torchrun` every process takes its share of the batches; the record of each is at the end that of all.

    Args:
        sample_every: of how many tokens one has its energy ratios to random directions taken; by default 256, or
            fewer, so that of a short text a thousand are taken.
        skip, seed: see `hooks.watch`.
        checkpoint: the state is saved there as time goes, and where it holds one, the sweep goes on from that.

    Raises:
        ValueError: the model is an encoder-decoder.
        RuntimeError: a single sequence is too large for the memory.
    """
    if model.config.is_encoder_decoder:
        raise ValueError("an encoder-decoder needs two texts: call it under hooks.watch instead")
    body, processes = model.base_model, launched_processes()
    sample_every = sample_every or min(256, max(1, sum(map(len, chunks)) // 1024))
    batches = range(0, len(chunks), batch_size)[processes.process_index :: processes.num_processes]
    counted = np.cumsum([0, *(max(len(chunk) - skip, 0) for chunk in chunks)])  # tokens before each chunk
    tokens = {first: sum(map(len, chunks[first : first + batch_size])) for first in batches}
    state = checkpoint.load() if checkpoint else None
    done = int(state.pop("batches")[0]) if state else 0
    with (
        watch(body, directions, sample_every=sample_every, skip=skip, seed=seed) as record,
        torch.inference_mode(),
        tqdm(
            total=sum(tokens[first] for first in batches),
            initial=sum(tokens[first] for first in batches[:done]),
            desc="measuring",
            unit=" tokens",
            unit_scale=True,
            disable=not processes.is_main_process,
        ) as progress,
    ):
        if state:
            record.merge(state)
        at_once = batch_size
        for i, first in enumerate(batches[done:], start=done + 1):
            batch = chunks[first : first + batch_size]
            at_once = _run(body, record, batch, counted[first : first + batch_size], at_once)
            progress.update(tokens[first])
            if checkpoint and checkpoint.due:
                checkpoint.save(record.state() | {"batches": np.asarray([i])})
    if processes.num_processes > 1:
        _merge_processes(record, processes)
    return record


def _run(body: nn.Module, record: Record, chunks: Sequence[np.ndarray], counted: np.ndarray, at_once: int) -> int:
    """Run the chunks, `at_once` or fewer together, as the memory allows; returns how many it allowed."""
    start = 0
    while start < len(chunks):
        batch = next(corpus.batches(chunks[start : start + at_once], at_once))
        record.position = int(counted[start])
        try:
            body(**{name: torch.from_numpy(ids).to(body.device) for name, ids in batch.items()}, use_cache=False)
            start += at_once
        except RuntimeError as error:
            if not should_reduce_batch_size(error):
                raise
            sequences, length = batch["input_ids"].shape
            if sequences == 1:
                advice = f"a single sequence of {length} tokens is too large for the memory: give a smaller --length"
                raise RuntimeError(advice) from error
            at_once = sequences // 2
            tqdm.write(f"out of memory: from here on {at_once} sequences at once", file=sys.stderr)
        if at_once < len(batch["input_ids"]):
            clear_device_cache()  # not in the handler, where the error still holds the tensors of the failed batch
    return at_once


def _merge_processes(record: Record, processes: PartialState) -> None:
    """Merge into each process's record those of all others."""
    states = {
        name: gather(torch.from_numpy(array)[None].to(processes.device)).cpu().numpy()
        for name, array in record.state().items()
    }
    for process in range(processes.num_processes):
        if process != processes.process_index:
            record.merge({name: array[process] for name, array in states.items()})
