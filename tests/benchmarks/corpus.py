"""A history of coding sessions to measure with: as many megabytes as asked for, the same ones every time.

The sessions are what Claude Code leaves behind: one file of JSON lines per session, one line per content
block of a reply with the usage known so far, a line per tool result that holds the output twice (for the
model and for display), and now and then lines that say nothing to us. Four fifths of the bytes are tool
results, most of them short and a few very long. What a perfect reader gets is written to truth.json.

    python tests/benchmarks/corpus.py DIR --mb 500
"""

from __future__ import annotations

import argparse
import json
import random
import string
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

BEGIN = datetime(2026, 1, 5, 8, tzinfo=UTC)
DAYS = 90
SESSION_BYTES = 1_200_000
MODELS = {"claude-opus-4-5-20251101": 30, "claude-sonnet-4-5-20250929": 55, "claude-haiku-4-5-20251001": 15}
TOOLS = {"Bash": 36, "Read": 30, "Edit": 16, "Grep": 12, "WebFetch": 6}
WORDS = [
    "def",
    "class",
    "return",
    "import",
    "self",
    "None",
    "True",
    "for",
    "in",
    "if",
    "else",
    "error",
    "value",
    "module",
    "test",
    "path",
    "file",
    "open",
    "read",
    "write",
    "session",
    "trace",
    "span",
    "token",
    "cache",
    "usage",
    "await",
    "async",
    "struct",
    "match",
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "==",
    "->",
    ":",
    ";",
    "#",
    "TODO",
    "é",
    "→",
    "✓",
    '"quoted"',
]
LETTERS = string.ascii_letters + string.digits


class Corpus:
    """Writes sessions until the wanted size is reached, and counts what it writes."""

    def __init__(self, home: Path, size: int, seed: int) -> None:
        self.home = home
        self.size = size
        self.written = 0
        self.truth: Counter[str] = Counter()
        self.dice = random.Random(seed)
        lines = [" ".join(self.dice.choices(WORDS, k=self.dice.randint(3, 14))) for _ in range(20_000)]
        self._text = "\n".join(lines)
        self._folders = [
            f"/home/dev/{name}-{at}" for at, name in enumerate(("api", "web", "infra", "cli") * 6)
        ]

    def write(self) -> dict[str, int]:
        while self.written < self.size:
            wanted = SESSION_BYTES * min(6.0, self.dice.paretovariate(1.6) / 2.2)
            Session(self).write(int(min(wanted, self.size - self.written)))
        truth = {**self.truth, "bytes": self.written}
        (self.home / "truth.json").write_text(json.dumps(truth, indent=1))
        return truth

    # ---------------------------------------------------------------------- made-up contents

    def text(self, length: float) -> str:
        """A piece of the one long text, repeated where that is too short."""
        length = max(1, int(length))
        at = self.dice.randrange(len(self._text))
        piece = self._text[at : at + length]
        while len(piece) < length:
            piece += self._text[: length - len(piece)]
        return piece

    def uuid(self) -> str:
        return str(UUID(int=self.dice.getrandbits(128), version=4))

    def id(self, prefix: str) -> str:
        return prefix + "".join(self.dice.choices(LETTERS, k=22))

    def pick(self, weights: dict[str, int]) -> str:
        return self.dice.choices([*weights], [*weights.values()])[0]

    def folder(self) -> str:
        return self.dice.choice(self._folders)

    def result_length(self) -> float:
        """Half below 1,500 characters, one in a hundred above 60,000, one in some thousands a megabyte."""
        if self.dice.random() > 0.9996:
            return self.dice.uniform(8e5, 1.2e6)
        return min(1e6, max(12, self.dice.lognormvariate(7.31, 1.586)))


class Session:
    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        self.dice = corpus.dice
        self.id = corpus.uuid()
        self.cwd = corpus.folder()
        self.time = BEGIN + timedelta(seconds=self.dice.uniform(0, DAYS * 86_400))
        self.model = corpus.pick(MODELS)
        self.context = self.dice.randint(9_000, 16_000)
        self.last: str | None = None

    def write(self, size: int) -> None:
        folder = self.corpus.home / ".claude/projects" / self.cwd.replace("/", "-")
        folder.mkdir(parents=True, exist_ok=True)
        self.corpus.truth["sessions"] += 1
        with (folder / f"{self.id}.jsonl").open("wb") as self.file:
            end = self.corpus.written + size
            while self.corpus.written < end:
                self._turn()

    def _turn(self) -> None:
        corpus, dice = self.corpus, self.dice
        corpus.truth["turns"] += 1
        if dice.random() < 0.15:
            self.model = corpus.pick(MODELS)
        if dice.random() < 0.5:
            self._put({"type": "file-history-snapshot", "messageId": corpus.uuid(), "snapshot": {}})
        prompt = {"role": "user", "content": corpus.text(20 + dice.expovariate(1 / 350))}
        self._line(dice.expovariate(1 / 60), "user", message=prompt, promptId=corpus.uuid())
        calls = min(60, 1 + int(dice.expovariate(1 / 7)))
        for left in range(calls - 1, -1, -1):
            for tool, name in self._reply(last=left == 0):
                self._result(tool, name)
        if dice.random() < 0.3:
            self._line(0.01, "system", subtype="turn_duration", durationMs=1000, isMeta=False)

    def _reply(self, *, last: bool) -> list[tuple[str, str]]:
        """One model call, a line for each block of it. Returns the tools that it asked for."""
        corpus, dice = self.corpus, self.dice
        blocks: list[dict[str, Any]] = []
        if dice.random() < 0.35:
            blocks.append({"type": "thinking", "thinking": corpus.text(dice.expovariate(1 / 900))})
        if last or dice.random() < 0.5:
            blocks.append(
                {"type": "text", "text": corpus.text(10 + dice.expovariate(1 / (900 if last else 160)))}
            )
        tools = []
        if not last:
            tools = [
                (corpus.id("toolu_01"), corpus.pick(TOOLS)) for _ in range(dice.choice((1, 1, 1, 1, 2, 3)))
            ]
        for id_, name in tools:
            wanted = {
                "command": corpus.text(dice.randint(12, 700)),
                "file_path": f"/src/{dice.randint(1, 400)}.py",
            }
            blocks.append({"type": "tool_use", "id": id_, "name": name, "input": wanted})
        fresh, written = dice.randint(1, 12), dice.randint(150, 4_000)
        read, output = self.context, 8 + int(dice.expovariate(1 / 450))
        self.context = 12_000 if dice.random() < 0.004 else min(190_000, self.context + written)
        message = {"id": corpus.id("msg_01"), "type": "message", "role": "assistant", "model": self.model}
        request = corpus.id("req_01")
        for block in blocks:
            final = block is blocks[-1]
            usage = {
                "input_tokens": fresh,
                "cache_creation_input_tokens": written,
                "cache_read_input_tokens": read,
                # Lines before the last know only a part of the output.
                "output_tokens": output if final else min(output, dice.randint(1, 8)),
            }
            stop = None if not final else "end_turn" if last else "tool_use"
            body = {**message, "content": [block], "stop_reason": stop, "usage": usage}
            self._line(dice.uniform(0.05, 4), "assistant", message=body, requestId=request)
        counted = {"input": fresh, "cache_write": written, "cache_read": read, "output": output}
        corpus.truth.update({"model_calls": 1, **counted})
        return tools

    def _result(self, tool: str, name: str) -> None:
        corpus, dice = self.corpus, self.dice
        failed = dice.random() < 0.06
        output = corpus.text(min(corpus.result_length(), 2_000 if failed else 2e6))
        corpus.truth.update({"tool_calls": 1, "tool_errors": int(failed)})
        if name == "Bash" and dice.random() < 0.35:
            progress = {"type": "bash_progress", "output": corpus.text(200)}
            self._line(dice.uniform(0.2, 1), "progress", data=progress, parentToolUseID=tool)
        block = {"type": "tool_result", "tool_use_id": tool, "content": output, "is_error": failed}
        shown: Any = (
            f"Error: {output[:400]}" if failed else {"stdout": output, "stderr": "", "interrupted": False}
        )
        message = {"role": "user", "content": [block]}
        self._line(0.01 + dice.expovariate(1 / 1.2), "user", message=message, toolUseResult=shown)

    # ---------------------------------------------------------------------------- the lines

    def _line(self, after: float, kind: str, **fields: Any) -> None:
        """A line of the conversation, `after` seconds later than the one before."""
        self.time += timedelta(seconds=after)
        parent, self.last = self.last, self.corpus.uuid()
        self._put(
            {
                "parentUuid": parent,
                "isSidechain": False,
                "userType": "external",
                "cwd": self.cwd,
                "sessionId": self.id,
                "version": "2.1.34",
                "gitBranch": "main",
                "type": kind,
                **fields,
                "uuid": self.last,
                "timestamp": self.time.strftime("%Y-%m-%dT%H:%M:%S.")
                + f"{self.time.microsecond // 1000:03d}Z",
            }
        )

    def _put(self, record: dict[str, Any]) -> None:
        line = json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        self.file.write(line)
        self.corpus.written += len(line)
        self.corpus.truth["lines"] += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("home", type=Path)
    parser.add_argument("--mb", type=float, default=50)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    args.home.mkdir(parents=True, exist_ok=True)
    print(json.dumps(Corpus(args.home, int(args.mb * 1e6), args.seed).write(), indent=1))


if __name__ == "__main__":
    main()
