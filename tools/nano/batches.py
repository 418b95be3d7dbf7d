"""Batches of packed documents, and the processes that make them."""
import multiprocessing
import random
from dataclasses import dataclass

import numpy as np
import torch

from configuration import CHUNK, DEVICE
from data import LENGTH_SLACK, training_document
from tokenizer import Tokenizer

PROMPT_WEIGHT = 0.1  # of a label that the model would not produce itself; answers weigh 1
_PAD_DOCUMENT = 1024
_QUEUED_BATCHES = 24


@dataclass
class Batch:
    """N tokens, tensors on the training device. Every document starts at a multiple of 16 and is padded to one."""

    ids: torch.Tensor  # [N] int64, 0 in padding
    labels: torch.Tensor  # [N] int64, the next id of the document
    weights: torch.Tensor  # [N] float32, 0 where there is no label
    positions: torch.Tensor  # [N] int64 in the document
    bounds: torch.Tensor  # [documents + 1] int32
    chunk_bounds: torch.Tensor  # [documents + 1] int32, bounds / 16
    longest: int  # tokens of the longest document

    @property
    def answers(self):
        """[N] bool: the label belongs to an answer"""
        return self.weights == 1


def padded_length(tokens):
    return -(-tokens // CHUNK) * CHUNK


def pack(documents, size):
    """Documents [(ids, mask)] that fit -> dict of numpy arrays. The rest of the row is cut into empty documents."""
    ids, labels, positions = (np.zeros(size, np.int64) for _ in range(3))
    weights = np.zeros(size, np.float32)
    bounds, lengths = [0], []
    for document, mask in documents:
        at, tokens = bounds[-1], len(document)
        ids[at:at + tokens] = document
        labels[at:at + tokens - 1] = document[1:]
        produced = np.asarray(mask[1:], np.float32)
        weights[at:at + tokens - 1] = np.where(produced > 0, produced, PROMPT_WEIGHT)
        lengths.append(padded_length(tokens))
        bounds.append(at + lengths[-1])
    while bounds[-1] < size:
        lengths.append(min(_PAD_DOCUMENT, size - bounds[-1]))
        bounds.append(bounds[-1] + lengths[-1])
    for at, length in zip(bounds, lengths):
        positions[at:at + length] = np.arange(length)
    return dict(ids=ids, labels=labels, weights=weights, positions=positions, bounds=np.asarray(bounds, np.int32), longest=max(lengths))


def to_device(packed):
    """Result of `pack` -> Batch"""
    def move(array):
        tensor = torch.from_numpy(array)
        return tensor.pin_memory().to(DEVICE, non_blocking=True) if DEVICE.type == "cuda" else tensor

    tensors = {name: move(packed[name]) for name in ("weights", "bounds")}
    tensors.update({name: move(packed[name].astype(np.int64)) for name in ("ids", "labels", "positions")})
    return Batch(longest=packed["longest"], chunk_bounds=(tensors["bounds"] // CHUNK).to(torch.int32), **tensors)


def document_length(rng, progress, size):
    """Asked length of the next document: 384 in the first fifth of training, then 1000, 3300 for 6 % behind 45 %.

    At most what a batch of `size` tokens holds.
    """
    length = 384 if progress < 0.2 else 1000
    if progress > 0.45 and rng.random() < 0.06:
        length = 3300
    return min(length, size - LENGTH_SLACK - CHUNK)


def _produce(seed, tokenizer_path, size, queue, progress):
    torch.set_num_threads(1)
    rng, tokenizer = random.Random(seed), Tokenizer(tokenizer_path)
    waiting = None  # a document that did not fit any more
    while True:
        documents, used = [], 0
        while True:
            if waiting is None:
                waiting = training_document(tokenizer, rng, document_length(rng, progress.value, size))
            length = padded_length(len(waiting[0]))
            if used + length > size:
                break
            documents.append(waiting)
            used += length
            waiting = None
        documents.sort(key=lambda document: -len(document[0]))
        packed = pack(documents, size)
        for name in ("ids", "labels", "positions"):  # narrow on the way through the queue
            packed[name] = packed[name].astype(np.int16)
        queue.put(packed)


class Loader:
    """Worker processes that fill a queue. Made before the GPU is touched: the workers are forked and never touch it."""

    def __init__(self, tokenizer_path, size, workers, seed):
        context = multiprocessing.get_context("fork")
        self._queue = context.Queue(_QUEUED_BATCHES)
        self._progress = context.Value("d", 0.0)
        self._processes = [
            context.Process(target=_produce, args=(seed * 1000 + i, tokenizer_path, size, self._queue, self._progress), daemon=True)
            for i in range(workers)
        ]
        for process in self._processes:
            process.start()

    def set_progress(self, progress):
        """Progress of training in [0, 1], on which the lengths depend"""
        self._progress.value = progress

    def next(self):
        return to_device(self._queue.get())

    def stop(self):
        for process in self._processes:
            process.terminate()
