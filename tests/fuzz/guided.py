"""Fuzzing that is guided by what the code does: `python tests/fuzz/guided.py AGENT [-max_total_time=60]`.

Not a part of the tests: it needs atheris (`pip install atheris`) and has no end of its own. Bytes become lines of a
file of that agent, which go through the decoder, the reader and the sessions; the recorded lines are where it begins.
What it finds it writes to the folder it runs in.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

with atheris.instrument_imports(include=["spantail"]):
    from hostile_home import chosen, finder

    from spantail.formats import TABLE
    from spantail.model import Context, Record
    from spantail.session.sessions import Sessions
    from spantail.session.settle import Rules
    from spantail.state.ledger import Ledger
    from spantail.tail.json_lines import REFUSED, LineDecoder

agent = sys.argv.pop(1)
files = next(
    files for row in TABLE if row.agent == agent for files in reversed(row.files) if files.storage == "lines"
)
decoder = LineDecoder(files.line)


def one(data: bytes) -> None:
    reader = files.reader()
    sessions = Sessions(Context(agent=agent), Rules(), Ledger(), lambda *_, **__: None, str, lambda _: None)
    for number, line in enumerate(data.split(b"\n")):
        try:
            bodies = [decoder.quick(line)]
        except REFUSED:
            bodies = [body for _, body in decoder.rescue(line)[0]]
        for body in bodies:
            sessions.apply(reader.read(Record(files.kind, "/home/x/a/b.jsonl", number, 0, body)))
    sessions.settle(1_893_456_000 * 10**9)


with tempfile.TemporaryDirectory() as corpus:
    for case in chosen(agent):
        for source in finder(agent, case / "home").scan():
            if source.files.line is files.line and Path(source.path).stat().st_size < 20_000:
                body = Path(source.path).read_bytes()
                Path(corpus, f"{case.parent.name}-{case.name}-{Path(source.path).stem}").write_bytes(body)
    atheris.Setup([sys.argv[0], corpus, "-max_len=20000", *sys.argv[1:]], one)
    atheris.Fuzz()
