#!/usr/bin/env python3
"""Reference results with the plain float32 model, in four steps:

    evaluate.py questions   --target models/k3-nano --seed 1 --out questions.jsonl
    evaluate.py greedy      --target models/k3-nano --questions questions.jsonl --out greedy.jsonl
    evaluate.py speculative --target models/k3-nano --draft models/k3-nano-dspark --draft models/k3-nano-dflash
                            --questions questions.jsonl --greedy greedy.jsonl --drafts 4,7 --out speculative.jsonl
    evaluate.py collect     --questions questions.jsonl --greedy greedy.jsonl --speculative speculative.jsonl --out reference.jsonl

greedy and speculative run on one thread; --part i/n takes every n-th question, so n of them can run side by side.
"""
import argparse
import json
import os
import time

import torch

from chat import parse_assistant
from data.questions import evaluation_set
from drafts import Draft, replay
from model import Model
from results import summarise
from tokenizer import Tokenizer

_LONGEST_ANSWER = 200


def read_lines(path):
    with open(path) as file:
        return [json.loads(line) for line in file if line.strip()]


def write_lines(path, records):
    """Writes and flushes record by record"""
    with open(path, "w") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            file.flush()


def chosen(records, part, limit):
    """The records of part (index, count), at most `limit` of them, with a line of progress for every tenth"""
    index, count = part
    started = time.time()
    for number, record in enumerate(records[index::count][:limit]):
        if number % 10 == 0:
            print(f"{record['id']} after {time.time() - started:.0f} s", flush=True)
        yield record


def load_tokenizer(folder):
    return Tokenizer(os.path.join(folder, "tiktoken.model"))


def is_correct(answer, message):
    """answer: the exact response text, or the exact calls"""
    if isinstance(answer, str):
        return message["content"] == answer and not message["tool_calls"]
    return message["tool_calls"] == [{"name": call["name"], "arguments": call["arguments"]} for call in answer]


def answer_questions(model, tokenizer, questions):
    for question in questions:
        ids, margins = model.greedy(question["prompt_ids"], _LONGEST_ANSWER, tokenizer.stop_ids)
        message = parse_assistant(tokenizer, ids)
        yield dict(id=question["id"], task=question["task"], correct=is_correct(question["answer"], message), finished=message["finished"],
                   output_ids=ids, min_margin=round(min(margins), 5), margins=[round(margin, 4) for margin in margins],
                   reasoning=message["reasoning"], content=message["content"], tool_calls=message["tool_calls"])


@torch.no_grad()
def replay_answers(model, drafts, questions, answers, draft_counts):
    """drafts: {name: Draft} -> a record for every answer, draft and number of drafts"""
    taps = sorted({layer for draft in drafts.values() for layer in draft.taps})
    for answer in answers:
        prompt, text = questions[answer["id"]]["prompt_ids"], answer["output_ids"]
        _, caught = model.forward(prompt + text, model.new_state(), taps)
        for name, draft in drafts.items():
            for count in draft_counts:
                rounds = replay(draft, len(prompt), text, [caught[layer] for layer in draft.taps], count)
                yield dict(kind="speculative", draft=name, gamma=count, id=answer["id"], task=answer["task"], emitted=len(text) - 1,
                           accepted=[accepted for accepted, _ in rounds], drafts=[tokens for _, tokens in rounds])


# ---------------------------------------------------------------------------------------------- commands
def run_questions(arguments):
    write_lines(arguments.out, evaluation_set(load_tokenizer(arguments.target), arguments.seed))


def run_greedy(arguments):
    questions = chosen(read_lines(arguments.questions), arguments.part, arguments.limit)
    write_lines(arguments.out, answer_questions(Model(arguments.target), load_tokenizer(arguments.target), questions))


def run_speculative(arguments):
    model = Model(arguments.target)
    drafts = {os.path.basename(os.path.normpath(folder)): Draft(folder, model) for folder in arguments.draft}
    questions = {question["id"]: question for question in read_lines(arguments.questions)}
    answers = chosen(read_lines(arguments.greedy), arguments.part, arguments.limit)
    write_lines(arguments.out, replay_answers(model, drafts, questions, answers, arguments.drafts))


def run_collect(arguments):
    questions = {question["id"]: question for question in read_lines(arguments.questions)}
    answers = [answer for path in arguments.greedy for answer in read_lines(path)]
    replays = [record for path in arguments.speculative for record in read_lines(path)]
    order = {name: number for number, name in enumerate(questions)}
    answers.sort(key=lambda answer: order[answer["id"]])
    replays.sort(key=lambda record: (record["draft"], record["gamma"], order[record["id"]]))
    summary = summarise(questions, answers, replays)
    write_lines(arguments.out, [summary] + [dict(kind="greedy", **answer) for answer in answers] + replays)
    print(json.dumps(summary, indent=1))


def _part(text):
    index, _, count = text.partition("/")
    if not (index.isdigit() and count.isdigit() and int(index) < int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form i/n with 0 <= i < n")
    return int(index), int(count)


def _counts(text):
    return [int(count) for count in text.split(",")]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name, run, about, target=True, walks=False):
        sub = commands.add_parser(name, help=about, description=about)
        sub.set_defaults(run=run)
        sub.add_argument("--out", required=True, help="file to write, a JSON object a line")
        if target:
            sub.add_argument("--target", required=True, help="checkpoint folder with its tiktoken.model")
        if walks:
            sub.add_argument("--part", type=_part, default=(0, 1), metavar="i/n", help="every n-th line from line i, counted from 0")
            sub.add_argument("--limit", type=int, help="at most this many")
        return sub

    sub = command("questions", run_questions, "Make an evaluation set of 192 questions.")
    sub.add_argument("--seed", type=int, required=True)
    sub = command("greedy", run_greedy, "Answer the questions greedily.", walks=True)
    sub.add_argument("--questions", required=True)
    sub = command("speculative", run_speculative, "Replay greedy speculation on the answers.", walks=True)
    sub.add_argument("--questions", required=True)
    sub.add_argument("--greedy", required=True)
    sub.add_argument("--draft", action="append", required=True, help="draft folder; may be given several times")
    sub.add_argument("--drafts", type=_counts, default=[4], metavar="N,N", help="numbers of drafts of a round")
    sub = command("collect", run_collect, "Join results into one file with a summary in front.", target=False)
    sub.add_argument("--questions", required=True)
    sub.add_argument("--greedy", nargs="+", required=True)
    sub.add_argument("--speculative", nargs="*", default=[])
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    torch.set_num_threads(1)
    arguments.run(arguments)


if __name__ == "__main__":
    main()
