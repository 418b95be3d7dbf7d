"""Summary of greedy answers and speculative replays."""

_LONG_PROMPT = 1024


def _groups(question):
    """Names under which an answer is counted"""
    task = question["task"]
    names = [task]
    if task == "maths":
        names.append(f"maths {question['steps']} step")
    if task == "retrieval":
        names.append("retrieval up to 1k tokens" if question["prompt_tokens"] <= _LONG_PROMPT else "retrieval above 1k tokens")
    return names


def accuracy(questions, answers):
    """-> {group: [right, all]}"""
    counts = {}
    for answer in answers:
        for name in _groups(questions[answer["id"]]):
            count = counts.setdefault(name, [0, 0])
            count[0] += bool(answer["correct"])
            count[1] += 1
    return counts


def _acceptance_of(records, drafts):
    """Mean acceptance length: emitted tokens of a round, the target's own included, weighted by tokens"""
    rounds = sum(len(record["accepted"]) for record in records)
    emitted = sum(record["emitted"] for record in records)
    histogram, tasks = [0] * (drafts + 1), {}
    for record in records:
        task = tasks.setdefault(record["task"], [0, 0])
        task[0] += record["emitted"]
        task[1] += len(record["accepted"])
        for accepted in record["accepted"]:
            histogram[accepted] += 1
    return dict(rounds=rounds, emitted=emitted, histogram=histogram,
                tasks={name: round(tokens / max(1, count), 4) for name, (tokens, count) in tasks.items()},
                mean_acceptance_length=round(emitted / max(1, rounds), 4))


def acceptance(replays):
    """-> {draft: {number of drafts: rounds, emitted, histogram, tasks, mean_acceptance_length}}"""
    grouped = {}
    for record in replays:
        grouped.setdefault(record["draft"], {}).setdefault(record["gamma"], []).append(record)
    return {name: {str(drafts): _acceptance_of(records, drafts) for drafts, records in by_count.items()}
            for name, by_count in grouped.items()}


def summarise(questions, answers, replays):
    """questions: {id: question}"""
    margins = sorted(answer["min_margin"] for answer in answers)
    return dict(kind="summary", accuracy=accuracy(questions, answers), requests=len(answers), smallest_margins=margins[:8],
                acceptance=acceptance(replays))
