"""Everything that can go wrong is said once, counted always, and never with content."""

import io
import json
import sys
import threading
from collections import Counter

import pytest

from spantail.model import Context, Turn, Usage
from spantail.notices import Notices, clean
from spantail.state.families import BY_NAME

NOW = 1_800_000_000_123_456_789


class Heard:
    """Notices with their lines and counters in hand."""

    def __init__(self, **kwargs):
        self.lines, self.counts = [], Counter()
        self.notices = Notices(self.count, write=self.lines.append, clock=lambda: NOW, **kwargs)

    def count(self, family, labels, amount):
        assert len(labels) == len(BY_NAME[family].labels), "the family's own labels, in their order"
        self.counts[family, labels] += amount

    def events(self):
        return [json.loads(line)["event"] for line in self.lines]


@pytest.fixture
def heard():
    return Heard()


def turn(**kwargs) -> Turn:
    fields = {"context": Context("some-agent", project="api"), "trace": b"\x01" * 16, "span": b"\x02" * 8}
    fields |= {"start": 5 * 10**9, "end": 17 * 10**9, "usage": Usage(10, 20, 30, 4), "tools": 3, "cost": 0.5}
    return Turn(**(fields | kwargs))


def test_a_line_for_a_machine(heard):
    """Off a terminal each notice is one JSON object with time, level, event and fields."""
    heard.notices.unreadable("some-agent", "/a/b", "Permission denied")
    (line,) = heard.lines
    assert line.endswith("}\n")
    assert json.loads(line) == {
        "ts": "2027-01-15T08:00:00.123Z",
        "level": "warning",
        "event": "file_unreadable",
        "message": "cannot read /a/b: Permission denied; will try again",
        "agent": "some-agent",
        "path": "/a/b",
        "reason": "Permission denied",
    }


@pytest.mark.parametrize(
    ("terminal", "form", "text"),
    [(True, "auto", True), (False, "auto", False), (True, "json", False), (False, "text", True)],
)
def test_a_line_for_a_person(terminal, form, text):
    """On a terminal it is short text; --log-format decides otherwise."""
    heard = Heard(terminal=terminal, form=form)
    heard.notices.listening("127.0.0.1:9464")
    heard.notices.unreadable("a", "/x", "gone bad")
    assert heard.lines[0].startswith("spantail: metrics on http://127.0.0.1:9464/metrics\n" if text else "{")
    assert heard.lines[1].startswith("spantail: warning: cannot read /x" if text else "{")


def test_bad_records_are_named_once_and_counted_always(heard):
    """Once per file and reason; an oversized one is a result of its own."""
    for offset in range(5):
        heard.notices.bad_record("a", "/x", offset, "json")
    heard.notices.bad_record("a", "/x", 9, "oversized")
    heard.notices.bad_record("a", "/y", 0, "json")
    heard.notices.records("a", 40)
    assert heard.events() == ["bad_record", "bad_record", "bad_record"]
    assert heard.counts == {
        ("spantail_records_total", ("a", "bad")): 6,
        ("spantail_records_total", ("a", "oversized")): 1,
        ("spantail_records_total", ("a", "ok")): 40,
    }


def test_a_file_is_news_again_after_it_could_be_read(heard):
    """Said once while it lasts, also when the reason changes, and again after it worked."""
    notices = heard.notices
    notices.unreadable("a", "/x", "denied")
    notices.unreadable("a", "/x", "denied")
    notices.unreadable("a", "/x", "input/output error")
    notices.readable("/x")
    notices.unreadable("a", "/x", "denied")
    notices.gone("a", "/x")
    notices.unreadable("a", "/x", "denied")
    assert len(heard.lines) == 4
    assert heard.counts["spantail_errors_total", ("file",)] == 5


def test_delivery_is_said_when_it_changes(heard):
    """Down, still down, another reason, up, down again: four changes, four lines of five calls."""
    notices = heard.notices
    notices.delivery_restored()
    notices.delivery_failed("unreachable", "connection refused")
    notices.delivery_failed("unreachable", "connection refused")
    notices.delivery_failed("status", "503")
    notices.delivery_restored()
    notices.delivery_failed("unreachable", "connection refused")
    assert heard.events() == ["delivery_failed", "delivery_failed", "delivery_restored", "delivery_failed"]
    assert heard.counts["spantail_errors_total", ("delivery",)] == 4


def test_bad_credentials_name_the_variable_once(heard):
    """In plain words, until delivery worked again."""
    notices = heard.notices
    notices.auth_failed("401 Unauthorized")
    notices.auth_failed("401 Unauthorized")
    notices.delivery_restored()
    notices.auth_failed("401 Unauthorized")
    assert heard.events() == ["auth_failed", "delivery_restored", "auth_failed"]
    assert "OTEL_EXPORTER_OTLP_HEADERS" in json.loads(heard.lines[0])["message"]


def test_a_backend_that_repeats_credentials(heard):
    """What a backend answers is redacted and cut before it is logged."""
    secret = "sk-ant-api03-" + "aB3dE5gH7j" * 3
    for say in (heard.notices.auth_failed, lambda m: heard.notices.delivery_failed("status", m)):
        say(f"invalid token {secret} " + "x" * 5000)
    heard.notices.spans_refused(3, f"password={secret}")
    assert len(heard.lines) == 3
    for line in heard.lines:
        assert secret[8:] not in line
        assert len(line) < 1500


def test_commits(heard):
    """Said when it begins and when it ends."""
    for _ in range(3):
        heard.notices.commit_failed("disk full")
    heard.notices.commit_restored()
    heard.notices.commit_restored()
    assert heard.events() == ["commit_failed", "commit_restored"]
    assert heard.counts["spantail_errors_total", ("commit",)] == 3


def test_once_per_thing(heard):
    """A model without a price, a newer version, a locked database, a watch that fails, a restart."""
    notices = heard.notices
    for _ in range(3):
        notices.unpriced_model("p", "m")
        notices.newer_schema("a", "/x", "99")
        notices.database_locked("a", "/x")
        notices.watch_failed("no space left on device")
        notices.restarted("a", "/x")
    notices.unpriced_model("p", "")
    assert heard.events() == [
        "unpriced_model",
        "newer_schema",
        "database_locked",
        "watch_failed",
        "file_restarted",
    ]


def test_the_life_of_a_run(heard):
    """Start, address, no traces, a full outbox, a state set aside, stop."""
    notices = heard.notices
    notices.started("1.0", "/state", 9)
    notices.listening("h:1")
    notices.traces_off()
    notices.outbox_full(7)
    notices.state_set_aside("/state/bad", "all")
    notices.stopping()
    notices.stopped(3)
    assert heard.events() == [
        "started",
        "listening",
        "traces_off",
        "outbox_full",
        "state_set_aside",
        "stopping",
        "stopped",
    ]
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in heard.lines[2]
    assert "3 spans wait" in heard.lines[-1]


def test_turns_without_a_terminal(heard):
    """One line per turn of a person, with its numbers and trace id; nothing for other work."""
    heard.notices.turns([turn(), turn(human=False)])
    (line,) = heard.lines
    said = json.loads(line)
    assert (said["event"], said["agent"], said["project"], said["status"]) == (
        "turn",
        "some-agent",
        "api",
        "ok",
    )
    assert (said["seconds"], said["tools"], said["tokens_in"], said["tokens_out"]) == (12.0, 3, 60, 4)
    assert said["trace_id"] == "01" * 16


def fault():
    raise KeyError("a piece of a private record")


def test_our_own_faults_tell_type_and_place_only(heard):
    """The text of an exception may be content: it is not logged. Said once, counted always."""
    for _ in range(2):
        try:
            fault()
        except KeyError as error:
            heard.notices.internal_error("some-agent main", error)
    (line,) = heard.lines
    said = json.loads(line)
    assert said["type"] == "KeyError"
    assert said["place"].startswith("test_notices.py:")
    assert "private" not in line
    assert heard.counts["spantail_errors_total", ("internal",)] == 2


def test_strict_raises_our_own_faults():
    """In tests a fault of ours is not swallowed."""
    with pytest.raises(KeyError):
        Heard(strict=True).notices.internal_error("x", KeyError("y"))


def test_other_threads_do_not_touch_the_counters(heard):
    """Counters belong to the loop: what the sender reports is counted with the loop's next notice."""
    thread = threading.Thread(target=heard.notices.delivery_failed, args=("unreachable", "x"))
    thread.start()
    thread.join()
    assert heard.events() == ["delivery_failed"]
    assert heard.counts == {}
    heard.notices.drain()
    assert heard.counts == {("spantail_errors_total", ("delivery",)): 1}
    thread = threading.Thread(target=heard.notices.auth_failed, args=("x",))
    thread.start()
    thread.join()
    heard.notices.records("a", 1)
    assert heard.counts["spantail_errors_total", ("auth",)] == 1


@pytest.mark.parametrize(
    ("words", "cleaned"),
    [
        ("/a\n\x1b[31m/b", "/a[31m/b"),
        ("a\u202eb\u2028c\ud83d", "abc"),
        ("x" * 400, "…" + "x" * 299),
        ("grün", "grün"),
    ],
)
def test_words_from_files_are_cleaned_and_cut(words, cleaned):
    """No line end, escape or direction sign reaches the log; of a long path the end is kept."""
    assert clean(words) == cleaned


def test_what_files_say_cannot_break_a_line():
    """Neither in text nor in JSON, in no field."""
    evil = "a\nspantail: all is well\x1b[2J\ud83d"
    for form in ("text", "json"):
        heard = Heard(form=form)
        notices = heard.notices
        notices.bad_record("a", evil, 1, evil)
        notices.newer_schema("a", evil, evil)
        notices.unreadable("a", evil, evil)
        notices.unpriced_model(evil, evil)
        notices.delivery_failed(evil, evil)
        notices.commit_failed(evil)
        notices.internal_error(evil, ValueError(evil))
        notices.turns([turn(context=Context("a", project=evil))])
        assert len(heard.lines) == 8
        for line in heard.lines:
            assert line.count("\n") == 1
            assert "\x1b" not in line
            line.encode()


def test_memory_of_what_was_said_has_an_end(heard):
    """A hundred thousand bad files do not grow it for ever."""
    for number in range(25_000):
        heard.notices.restarted("a", f"/{number}")
    assert len(heard.notices._said) <= 10_000


def test_a_closed_stderr_stops_nothing(monkeypatch):
    """Logging to a terminal that went away is not an error."""
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    Notices(lambda *_: None).traces_off()
