"""Byte-level BPE tokenizer in the tiktoken text format, split by K3's regular expression.

A vocabulary of R ranks is followed by 256 special slots at ids R .. R + 255, at the same offsets as in the full-size vocabulary.
`Tokenizer.encode` never yields a special id, whatever the text says; special ids come from `chat.py` alone.
"""
import base64

import regex

_LETTERS_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LETTERS_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
SPLIT_PATTERN = regex.compile(
    "|".join([
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_LETTERS_UPPER}*{_LETTERS_LOWER}+{_CONTRACTION}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_LETTERS_UPPER}+{_LETTERS_LOWER}*{_CONTRACTION}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]),
    regex.V1,  # set intersection needs version 1 behaviour
)

SPECIAL_SLOTS = 256
SPECIAL_OFFSETS = {
    "[BOS]": 0,
    "[EOS]": 1,
    "<|end_of_msg|>": 2,
    "<|open|>": 3,
    "<|close|>": 4,
    "<|sep|>": 5,
    "[start_header_id]": 6,
    "[end_header_id]": 7,
    "[EOT]": 9,
    "<|media_begin|>": 18,
    "<|media_content|>": 19,
    "<|media_end|>": 20,
    "<|media_pad|>": 21,
    "<osagent_mode>": 65,
    "[UNK]": 254,
    "[PAD]": 255,
}
_CACHED_PIECES = 200_000


def read_ranks(path):
    """Lines `base64(bytes) rank` -> {bytes: rank}"""
    ranks = {}
    with open(path) as file:
        for line in file:
            if line.strip():
                encoded, rank = line.split()
                ranks[base64.b64decode(encoded)] = int(rank)
    return ranks


def write_ranks(path, vocabulary):
    """vocabulary: byte strings in rank order"""
    with open(path, "w") as file:
        for rank, token in enumerate(vocabulary):
            file.write(f"{base64.b64encode(token).decode()} {rank}\n")


class Tokenizer:
    def __init__(self, path):
        self.ranks = read_ranks(path)
        self.first_special = len(self.ranks)
        self.size = self.first_special + SPECIAL_SLOTS
        self.special = {text: self.first_special + offset for text, offset in SPECIAL_OFFSETS.items()}
        self.bos, self.eos, self.pad = self.special["[BOS]"], self.special["[EOS]"], self.special["[PAD]"]
        self.end_of_message = self.special["<|end_of_msg|>"]
        self.open, self.close, self.separator = (self.special[f"<|{name}|>"] for name in ("open", "close", "sep"))
        self._bytes = {rank: token for token, rank in self.ranks.items()}
        for i in range(self.first_special, self.size):
            self._bytes[i] = f"<|reserved_token_{i}|>".encode()
        self._bytes.update({i: text.encode() for text, i in self.special.items()})
        self._pieces = {}

    @property
    def stop_ids(self):
        return {self.end_of_message, self.eos}

    def encode(self, text):
        """Ordinary text -> ids below `first_special`"""
        ids = []
        for piece in SPLIT_PATTERN.findall(text):
            known = self._pieces.get(piece)
            if known is None:
                known = self._merge(piece.encode("utf-8"))
                if len(self._pieces) < _CACHED_PIECES:
                    self._pieces[piece] = known
            ids.extend(known)
        return ids

    def decode(self, ids):
        """Ids -> text; a special id is rendered as its name, broken UTF-8 as U+FFFD"""
        return b"".join(self._bytes[int(i)] for i in ids).decode("utf-8", "replace")

    def _merge(self, piece):
        """Joins the adjacent pair of lowest rank, leftmost first, until no pair is a token."""
        if piece in self.ranks:
            return [self.ranks[piece]]
        parts = [piece[i:i + 1] for i in range(len(piece))]
        while True:
            pairs = [(self.ranks[left + right], i) for i, (left, right) in enumerate(zip(parts, parts[1:])) if left + right in self.ranks]
            if not pairs:
                return [self.ranks[part] for part in parts]
            _, i = min(pairs)
            parts[i:i + 2] = [parts[i] + parts[i + 1]]
