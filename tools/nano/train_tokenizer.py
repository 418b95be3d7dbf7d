#!/usr/bin/env python3
"""Trains the BPE ranks on generated chats: train_tokenizer.py --out tiktoken.model

Words are those of K3's split; the commonest pair is merged first, ties by the larger bytes. A word with a digit is left out, so digits are
never merged.
"""
import argparse
import random
from collections import Counter, defaultdict

from data import make_sample
from tokenizer import SPLIT_PATTERN, write_ranks


def byte_order():
    """The 256 single bytes, printable ones first, as in GPT-2's vocabulary"""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return printable + [byte for byte in range(256) if byte not in printable]


def _countable_words(texts):
    """-> [[bytes of length 1, ...]], [count]"""
    counts = Counter()
    for text in texts:
        counts.update(SPLIT_PATTERN.findall(text))
    words, numbers = [], []
    for word, count in counts.items():
        raw = word.encode("utf-8")
        if len(raw) >= 2 and not any(ord("0") <= byte <= ord("9") for byte in raw):
            words.append([bytes([byte]) for byte in raw])
            numbers.append(count)
    return words, numbers


def _joined(word, left, right):
    """The word with every occurrence of the pair merged, from the left"""
    merged, i = [], 0
    while i < len(word):
        if word[i:i + 2] == [left, right]:
            merged.append(left + right)
            i += 2
        else:
            merged.append(word[i])
            i += 1
    return merged


def train_bpe(texts, ranks):
    """-> `ranks` byte strings in rank order (fewer if the texts have no pair left that occurs twice)"""
    words, counts = _countable_words(texts)
    pairs, where = Counter(), defaultdict(set)

    def add(i):
        for pair in zip(words[i], words[i][1:]):
            pairs[pair] += counts[i]
            where[pair].add(i)

    for i in range(len(words)):
        add(i)
    vocabulary = [bytes([byte]) for byte in byte_order()]
    while len(vocabulary) < ranks:
        (left, right), count = max(pairs.items(), key=lambda item: (item[1], item[0]))
        if count <= 1:
            break
        vocabulary.append(left + right)
        for i in list(where[left, right]):
            for pair in zip(words[i], words[i][1:]):
                pairs[pair] -= counts[i]
                where[pair].discard(i)
            words[i] = _joined(words[i], left, right)
            add(i)
        pairs.pop((left, right), None)
    return vocabulary


def chat_texts(rng, samples):
    """What users and assistants say in `samples` chats"""
    for _ in range(samples):
        for message in make_sample(rng).messages:
            yield message["content"]
            if message.get("reasoning_content"):
                yield message["reasoning_content"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="tiktoken.model to write")
    parser.add_argument("--ranks", type=int, default=1792, help="vocabulary without the 256 special slots")
    parser.add_argument("--samples", type=int, default=20000, help="chats to count words in")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    vocabulary = train_bpe(chat_texts(random.Random(arguments.seed), arguments.samples), arguments.ranks)
    write_ranks(arguments.out, vocabulary)
    print(f"{len(vocabulary)} ranks in {arguments.out}")


if __name__ == "__main__":
    main()
