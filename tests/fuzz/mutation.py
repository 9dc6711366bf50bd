"""Makes bad records out of good ones: wrong in their bytes, or good JSON that no agent means.

Fast, because a hundred thousand records per format are to be read in seconds: a record is parsed once, changed in
one to three places and written again, or only its bytes are changed. The same seed gives the same records.
"""

from __future__ import annotations

import json
import random
from typing import Any

RAW = "@raw@"
"""Begins a string that is to stand in the JSON without its quotes: what no writer of JSON would write."""

RAWS = {
    f"{RAW}0": "1e400",
    f"{RAW}1": "-0",
    f"{RAW}2": "9" * 400,
    f"{RAW}3": "9" * 5000,
    f"{RAW}4": "NaN",
    f"{RAW}5": "-Infinity",
    f"{RAW}6": "01",
    f"{RAW}7": "[" * 300 + "]" * 300,
    f"{RAW}8": '{"a":' * 900 + "1" + "}" * 900,
    f"{RAW}9": "[" * 100_000,
    f"{RAW}a": '{"id":1,"id":2,"type":"x","type":"y"}',
    f"{RAW}b": "tru",
    f"{RAW}c": '"\\ud83d"',
    f"{RAW}d": '"\\udc00\\ud800 half"',
    f"{RAW}e": '"\\u0000"',
    f"{RAW}f": '"\x01\t"',
    f"{RAW}g": "'single'",
    f"{RAW}h": "1.7976931348623157e308",
    f"{RAW}i": "5e-324",
}
_RAWS = sorted(RAWS)
RARE = {f"{RAW}9", f"{RAW}8", f"{RAW}3"}

VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2**31,
    2**53 + 1,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63) - 1,
    10**30,
    0.1,
    -0.5,
    1e18,
    1e308,
    "",
    " ",
    "\n",
    "0",
    "null",
    "\x00",
    "\x1b[2J",
    "\u202e\u2028",
    "x" * 300,
    "ünïcødé 日本 🙂",
    "../../etc/passwd",
    "2024-13-45T99:99:99Z",
    "9999-12-31T23:59:59.999Z",
    "0001-01-01T00:00:00Z",
    "1969-12-31T23:59:59Z",
    "2026-01-01T00:00:00+23:59",
    "2116-02-29T00:00:00Z",
    "20260101",
    "2026-01-01",
    -86_400_000,
    253_402_300_800_000,
    1_700_000_000,
    [],
    {},
    [None],
    [[]],
    [{}],
    {"": ""},
    {"type": None},
    {"type": "text", "text": 1},
    ["a", 1, None, {"b": []}],
)

Pool = dict[str, list[Any]]
"""Values by key, from all records of a format: what a record may wrongly repeat."""


def pool(bodies: list[Any]) -> Pool:
    found: Pool = {}
    for body in bodies:
        for holder, key in places(body):
            if len(str(holder[key])) < 500:
                kept = found.setdefault(str(key) if isinstance(holder, dict) else "[]", [])
                if len(kept) < 200:
                    kept.append(holder[key])
    return found


def places(body: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in it; of long lists the first."""
    found: list[tuple[Any, Any]] = []
    todo = [body]
    while todo and len(found) < 400:
        at = todo.pop()
        if isinstance(at, dict):
            for key, value in at.items():
                found.append((at, key))
                if isinstance(value, dict | list):
                    todo.append(value)
        elif isinstance(at, list):
            for key, value in enumerate(at[:20]):
                found.append((at, key))
                if isinstance(value, dict | list):
                    todo.append(value)
    return found


def own(value: Any) -> Any:
    """A copy: what is put into one record must not change with another."""
    return json.loads(json.dumps(value)) if isinstance(value, dict | list) else value


class Mutator:
    """All choices come from `dice`."""

    def __init__(self, dice: random.Random, values: Pool) -> None:
        self.dice = dice
        self.pool = values
        self.keys = sorted(values)

    # ------------------------------------------------------------------------------ structure

    def value(self) -> Any:
        dice = self.dice
        roll = dice.random()
        if roll < 0.6:
            return own(dice.choice(VALUES))
        if roll < 0.9:
            raw = dice.choice(_RAWS)
            # What is dear to parse is rare, so that the others are many.
            return raw if raw not in RARE or dice.random() < 0.01 else 7
        if roll < 0.97:
            return own(dice.choice(self.pool[dice.choice(self.keys)]))
        return "y" * dice.choice((500, 5_000, 50_000)) if dice.random() < 0.2 else [0] * 50

    def changed(self, body: Any) -> Any:
        """The body with one to three places wrong; itself changed."""
        dice = self.dice
        for _ in range(dice.choice((1, 1, 2, 3))):
            found = places(body)
            if not found:
                return self.value()
            # The outer fields decide what a record is: they are as likely as all others together.
            near = len(body) if isinstance(body, dict | list) else 1
            at = dice.randrange(min(near, len(found))) if dice.random() < 0.4 else dice.randrange(len(found))
            self._change(found, *found[at])
        return self.value() if dice.random() < 0.01 else body

    def _change(self, found: list[tuple[Any, Any]], holder: Any, key: Any) -> None:
        dice = self.dice
        roll = dice.random()
        if roll < 0.35:
            holder[key] = self.value()
        elif roll < 0.5:
            holder.pop(key)
        elif roll < 0.75:
            others = self.pool.get(str(key) if isinstance(holder, dict) else "[]")
            holder[key] = own(dice.choice(others)) if others else None
        elif roll < 0.82:
            other, name = dice.choice(found)
            if (isinstance(other, dict) and name in other) or (
                isinstance(other, list) and isinstance(name, int) and name < len(other)
            ):
                taken = other[name]
                # Not into itself: that would be no JSON.
                if not isinstance(taken, dict | list):
                    holder[key] = taken
        elif roll < 0.88:
            old = holder[key]
            wraps = ([old], {"value": old}, str(old), json.dumps(old), [old, old])
            holder[key] = dice.choice(wraps)
        elif roll < 0.93:
            old = holder[key]
            if isinstance(old, bool) or old is None:
                holder[key] = str(old)
            elif isinstance(old, int | float):
                holder[key] = dice.choice((str(old), -old, float(old), old * 10**9, old * 1000))
            elif isinstance(old, str):
                holder[key] = dice.choice((old[: len(old) // 2], old + "x", old.upper(), len(old), old * 3))
            else:
                holder[key] = dice.choice((None, "", 0))
        elif isinstance(holder, dict) and isinstance(key, str):
            holder[dice.choice((key.upper(), key + "_", "", "type", "id", "timestamp"))] = holder.pop(key)
        else:
            holder.insert(0, self.value()) if isinstance(holder, list) else None

    def written(self, body: Any) -> bytes:
        text = json.dumps(body, ensure_ascii=self.dice.random() < 0.5)
        if RAW in text:
            for name, raw in RAWS.items():
                text = text.replace(f'"{name}"', raw)
        return text.encode("utf-8", "surrogatepass")

    # ---------------------------------------------------------------------------------- bytes

    def torn(self, line: bytes) -> bytes:
        """Its bytes changed: flipped, cut, doubled, with what is no text in between."""
        dice = self.dice
        at = dice.randrange(len(line) + 1)
        end = min(len(line), at + dice.choice((1, 2, 8, 40)))
        roll = dice.random()
        if roll < 0.2 and at < len(line):
            return line[:at] + bytes([line[at] ^ (1 << dice.randrange(8))]) + line[at + 1 :]
        if roll < 0.35:
            return line[:at]
        if roll < 0.5:
            return line[:at] + line[end:]
        if roll < 0.6:
            return line[:at] + line[at:end] * dice.choice((2, 3, 50)) + line[end:]
        if roll < 0.75:
            odd = (
                b"\0",
                b"\xff\xfe",
                b"\r",
                b"\n",
                b"\xed\xa0\x80",
                b"\xef\xbb\xbf",
                b"\x1b",
                b'"',
                b"\\",
                b"{",
            )
            return line[:at] + dice.choice(odd) + line[at:]
        if roll < 0.85:
            return line[:at] + dice.randbytes(dice.choice((1, 4, 200))) + line[end:]
        if roll < 0.93:
            return line[at:] + line
        return dice.choice(
            (b"", b"{}", b"[]", b"null", b"0", b'""', b"\xef\xbb\xbf" + line, line + line, b" " * 200)
        )

    def line(self, line: bytes) -> bytes:
        """A record of JSON, changed in one way or the other; without a line end of its own only by chance."""
        if self.dice.random() < 0.25:
            return self.torn(line)
        try:
            body = json.loads(line)
        except ValueError:
            return self.torn(line)
        return self.written(self.changed(body))
