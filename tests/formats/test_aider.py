"""Aider's history: a format for people, whose lines the model can imitate, and which others went over."""

import msgspec
import pytest

from spantail.formats.aider import FORMAT
from spantail.formats.aider.beside import Entry
from spantail.formats.aider.lines import count, local_ns, shown, shown_cost, used
from spantail.formats.aider.reader import History
from spantail.formats.row import AT_REST
from spantail.model import (
    SECOND,
    Context,
    ModelCall,
    Noted,
    Occurred,
    Prompted,
    Record,
    RunEnded,
    Started,
    ToolCall,
    Turn,
    Usage,
)
from spantail.session.sessions import Sessions
from spantail.session.settle import Rules
from spantail.state.ledger import Ledger

STAMP = "2026-03-21 14:30:00"
BEGIN = local_ns(STAMP)
PATH = "/home/x/shop/.aider.chat.history.md"
HEAD = f"""
# aider chat started at {STAMP}

> /usr/bin/aider --model gpt-4o␠
> Aider v0.86.2␠
> Main model: gpt-4o with diff edit format, infinite output␠
> Weak model: gpt-4o-mini␠
"""
TOKENS = "> Tokens: 2.5k sent, 34 received. Cost: $0.0065 message, $0.0065 session.␠\n"
ANSWER = f"\nIt is so.\n\n{TOKENS}"
FAR = 2_000_000_000 * SECOND


def records(text, kind="history", arrival=0, path=PATH):
    for line in text.replace("␠", "  ").splitlines():
        yield Record(kind, path, 0, arrival, line)


def entry(event, time, **properties):
    body = msgspec.json.encode(
        {"event": event, "properties": properties, "user_id": "u", "time": time // SECOND}
    )
    return Record("log", "/home/x/a.jsonl", 0, 0, msgspec.json.decode(body, type=Entry))


def sent(time, prompt, completion, cost=0.0064925, total=0.0064925, model="gpt-4o"):
    return entry(
        "message_send",
        time,
        main_model=model,
        prompt_tokens=prompt,
        completion_tokens=completion,
        cost=cost,
        total_cost=total,
    )


REST = Record(AT_REST, PATH, 0, 0, None)


def events(*parts, reader=None):
    reader = reader or History()
    made = []
    for part in parts:
        for record in (
            [part] if isinstance(part, Record) else records(part) if isinstance(part, str) else part
        ):
            made += list(reader.read(record))
            msgspec.msgpack.decode(msgspec.msgpack.encode(reader), type=History)
    return made


def of_aider():
    return Sessions(
        Context(agent="aider"),
        Rules(keep_content=True),
        Ledger(),
        lambda *_, **__: None,
        lambda cwd: cwd.rpartition("/")[2],
        lambda _: None,
    )


def settled(*parts, sessions=None):
    sessions = sessions or of_aider()
    sessions.apply(events(*parts, REST))
    sessions.settle(FAR)
    return sessions.take()


def of(kind, outcomes):
    return [outcome for outcome in outcomes if isinstance(outcome, kind)]


def prompts(outcomes):
    return [msgspec.json.decode(turn.content) for turn in of(Turn, outcomes) if turn.human]


def test_a_turn_with_its_call():
    """The numbers are rounded, so they are not final; the folder is the project."""
    out = settled(HEAD, "\n#### why?␠\n", ANSWER)
    (turn,), (call,) = of(Turn, out), of(ModelCall, out)
    assert (turn.status, turn.exit, turn.context.project, turn.context.version) == (
        "ok",
        "success",
        "shop",
        "0.86.2",
    )
    assert (call.model, call.usage, call.cost, call.final) == (
        "gpt-4o",
        Usage(input=2500, output=34),
        0.0065,
        False,
    )
    assert (call.trace, call.parent) == (turn.trace, turn.span)
    assert turn.start == BEGIN


@pytest.mark.parametrize(
    ("line", "usage", "cost"),
    [
        (
            "Tokens: 5,359 sent, 961 received. Cost: $0.03 request, $0.03 session.",
            Usage(input=5359, output=961),
            "0.03",
        ),
        ("Tokens: 12k sent, 1.1k received.", Usage(input=12000, output=1100), ""),
        (
            "Tokens: 9.9k sent, 8.1k cache hit, 34 received. Cost: $0.001 message, $0.002 session.",
            Usage(input=1800, cache_read=8100, output=34),
            "0.001",
        ),
        (
            "Tokens: 9.9k sent, 2.0k cache write, 15k cache hit, 34 received.",
            Usage(input=7900, cache_write=2000, cache_read=15000, output=34),
            "",
        ),
        (
            "13598 prompt tokens, 92 completion tokens, $0.069370 cost",
            Usage(input=13598, output=92),
            "0.069370",
        ),
        ("7778 prompt tokens, 158 completion tokens", Usage(input=7778, output=158), ""),
        ("Tokens: a lot", None, ""),
    ],
)
def test_usage_lines_of_all_versions(line, usage, cost):
    """Thousands with commas or k, "request" for "message", cache parts, no cost; other words before 0.38."""
    found = used(line)
    if usage is None:
        assert found is None
    else:
        assert (found.usage("deepseek/chat"), found.cost) == (usage, cost)


def test_numbers_as_aider_shows_them():
    """Which is how a usage line is known in the log."""
    assert [shown(n) for n in (999, 1950, 2461, 9999, 12_345)] == ["999", "1.9k", "2.5k", "10.0k", "12k"]
    assert [shown_cost(n) for n in (0, 0.0064925, 0.000312, 0.0136)] == ["0.00", "0.0065", "0.00031", "0.01"]
    assert count("?") == 0


def test_the_cost_may_stand_on_a_line_of_its_own():
    """Unquoted, where cache parts or streaming make the report long."""
    for first, cost in (("10k cache write, 8.0k cache hit, ", 0.0123), ("", 0.5)):
        out = settled(
            HEAD,
            "\n#### why?␠\n\nSo.\n\n",
            f"> Tokens: 10k sent, {first}34 received.\n",
            f"Cost: ${cost} message, $0.77 session. Use --no-stream for accurate caching costs.␠\n",
        )
        assert [call.cost for call in of(ModelCall, out)] == [cost]


def test_only_lines_with_a_margin_are_prompts():
    """A heading in the model's text is none, nor is one after text, nor a quoted line of the model's."""
    out = settled(
        HEAD,
        "\n#### one␠\n\n#### A heading\n\ntext\n#### no blank before␠\n",
        "> Tokens are 3 sent\n> Applied edit to nothing\n> ^C\n",
        ANSWER,
        "\n#### two␠\n#### lines␠\n",
        ANSWER,
    )
    assert prompts(out) == ["one", "two\nlines"]
    assert [turn.status for turn in of(Turn, out)] == ["ok", "ok"]
    assert not of(ToolCall, out)


def test_a_file_that_a_formatter_went_over():
    """No line has its margin, and blank lines stand between those of a prompt."""
    out = settled(
        HEAD.replace("␠", ""),
        "\n#### one\n\n#### and more\n\nIt is.\n\n",
        TOKENS.replace("␠", ""),
        "\n#### two\n\nYes.\n\n",
        TOKENS.replace("␠", ""),
    )
    assert prompts(out) == ["one\nand more", "two"]
    assert len(of(ModelCall, out)) == 2


def test_commands_are_no_turns():
    """Nor is empty input; they end the turn before them."""
    out = settled(
        HEAD,
        "\n#### one␠\n",
        ANSWER,
        "\n#### /add x.py␠\n> Added x.py to the chat␠\n> Added y.py to the chat␠\n",
        "\n#### <blank>␠\n",
        "\n#### /clera␠\n> Invalid command: /clera␠\n\n#### !ls␠\n\n#### /Users/me/x.py is broken␠\n",
    )
    assert prompts(out) == ["one"]


def test_a_command_that_the_model_answers_is_a_turn():
    """`/web` has a usage line of its own; `/ask X` is followed by X, which has it."""
    out = settled(
        HEAD,
        "\n#### /web https://x.org␠\n> Scraping https://x.org...␠\n",
        ANSWER,
        "\n#### /ask why?␠\n\n#### why?␠\n",
        ANSWER,
        "\n#### /help me␠\n\n#### # Question: me␠\n#### ␠\n#### docs␠\n",
        ANSWER,
    )
    assert prompts(out) == ["/web https://x.org", "why?", "# Question: me\n\ndocs"]
    assert len({call.trace for call in of(ModelCall, out)}) == 3


def test_the_architects_answer_is_no_prompt():
    """Handed on to the editor it stands there as input: its call is the editor's, in the same turn."""
    out = settled(
        HEAD,
        "> Editor model: gpt-4o-mini with editor-diff edit format␠\n",
        "\n#### plan␠\n\n<thinking-content-7b>\n\nhm\n\n</thinking-content-7b>\n\nDo this:\n\n#### 1. first\n\n",
        TOKENS,
        "\n#### ␠\n#### Do this:␠\n#### ␠\n#### #### 1. first␠\n\nOk.\n\n",
        "> Tokens: 1.8k sent, 99 received.␠\n> Applied edit to a.py␠\n",
    )
    assert prompts(out) == ["plan"]
    assert [call.model for call in of(ModelCall, out)] == ["gpt-4o", "gpt-4o-mini"]
    assert [tool.name for tool in of(ToolCall, out)] == ["edit"]


@pytest.mark.parametrize(
    ("header", "model"),
    [
        ("> Model: gpt-4␠", "gpt-4"),
        ("> Models: claude-3-opus with ♾️ diff edit format, weak model claude-3-haiku␠", "claude-3-opus"),
        ("> Main model: o1 with architect edit format, prompt cache␠", "o1"),
    ],
)
def test_the_model_in_all_headers(header, model):
    """Cut at " with "; it changes with `/model`."""
    out = settled(
        f"\n# aider chat started at {STAMP}\n\n{header}\n\n#### x␠\n",
        ANSWER,
        "\n#### /model y/z␠\n> Model: y/z with whole edit format␠\n\n#### x␠\n",
        ANSWER,
    )
    assert [call.model for call in of(ModelCall, out)] == [model, "y/z"]


def test_a_failed_edit_is_one_failure():
    """It is said in two lines; what was applied all the same is said in a third, unquoted."""
    failure = (
        "> The LLM did not conform to the edit format.␠\n> https://aider.chat/x␠\n"
        "> # 2 SEARCH/REPLACE blocks failed to match!\n\n## SearchReplaceNoExactMatch: x\n<<<<<<< SEARCH\n\n"
        "# The other 2 SEARCH/REPLACE block were applied successfully.\nDon't re-send them.␠\n"
    )
    out = settled(
        HEAD,
        "\n#### x␠\n",
        ANSWER,
        failure,
        ANSWER,
        "> # 1 SEARCH/REPLACE block failed to match!\n\ntext␠\n",
        ANSWER,
        "> Applied edit to a.py␠\n",
    )
    assert [(tool.name, tool.status, tool.source) for tool in of(ToolCall, out)] == [
        ("edit", "error", "estimate"),
        ("edit", "ok", "estimate"),
        ("edit", "ok", "estimate"),
        ("edit", "error", "estimate"),
        ("edit", "ok", "estimate"),
    ]
    (turn,) = of(Turn, out)
    assert (turn.status, turn.errors, len(of(ModelCall, out))) == ("ok", 2, 3)


def test_a_turn_of_an_older_version():
    """The usage line stands before the reply's text, and all of a failure is quoted."""
    out = settled(
        HEAD,
        "\n#### fix it␠\n> 35109 prompt tokens, 65 completion tokens, $0.176520 cost␠\n\nAdd a.py.\n\n",
        "> a.py␠\n> Add these files to the chat? yes␠\n",
        "> 13089 prompt tokens, 213 completion tokens, $0.068640 cost␠\n\nTo fix it:\n\n",
        "> The LLM did not conform to the edit format.␠\n> # 1 SEARCH/REPLACE block failed to match!␠\n>␠\n",
        "> <<<<<<< SEARCH␠\n>         if arg:␠\n> >>>>>>> REPLACE␠\n>␠\n",
        "> # The other 1 SEARCH/REPLACE block were applied successfully.␠\n> Don't re-send them.␠\n",
        "> 13598 prompt tokens, 92 completion tokens, $0.069370 cost␠\n\nHere it is.\n\n> Applied edit to a.py␠\n",
    )
    (turn,) = of(Turn, out)
    assert (turn.status, turn.usage.input, turn.usage.output) == ("ok", 61796, 370)
    assert sum(call.cost for call in of(ModelCall, out)) == pytest.approx(0.31453)
    assert [tool.status for tool in of(ToolCall, out)] == ["error", "ok", "ok"]


def test_a_refused_edit_and_the_end_of_patience():
    """Skipped edits are interrupted; a turn that gives up is an error."""
    out = settled(
        HEAD,
        "\n#### x␠\n",
        ANSWER,
        "> Skipping edits to a.py␠\n> Only 3 reflections allowed, stopping.␠\n",
        "\n#### y␠\n",
    )
    assert [(t.status, t.error_type) for t in of(ToolCall, out)] == [("interrupted", "interrupted")]
    first = of(Turn, out)[0]
    assert (first.status, first.error_type, first.exit) == ("error", "max_reflections", "error")


@pytest.mark.parametrize("answer", ["y", "n"])
def test_lint_and_tests(answer):
    """Only their failures are written, and whether they are to be fixed."""
    out = settled(
        HEAD,
        "\n#### x␠\n",
        ANSWER,
        f"> # Fix any errors below, if possible.␠\n> E999␠\n> Attempt to fix lint errors? (Y)es/(N)o [Yes]: {answer}␠\n",
        f"> Attempt to fix test errors? (Y)es/(N)o [Yes]: {answer}␠\n> ^C again to exit␠\n",
    )
    assert [(t.name, t.status, t.error_type) for t in of(ToolCall, out)] == [
        ("lint", "error", "tool_error"),
        ("test", "error", "tool_error"),
    ]
    assert [turn.status for turn in of(Turn, out)] == ["interrupted" if answer == "y" else "ok"]


def test_shell_commands_are_dated_by_the_input_history():
    """Their starts are; an end is where the next one starts. What the user ran himself is no tool."""
    typed = (
        f"\n# {STAMP[:-2]}05.250000\n+x\n"
        f"\n# {STAMP[:-2]}10.500000\n+/run sleep 2\n"
        f"\n# {STAMP[:-2]}12.750000\n+/run ls\n"
    )
    out = settled(
        list(records(typed, "inputs")),
        HEAD,
        "\n#### x␠\n",
        ANSWER,
        "> sleep 2␠\n> Run shell command? (Y)es/(N)o [Yes]: y␠\n> Running sleep 2␠\n> Added 2 lines␠\n",
        "> Run shell command? (Y)es/(N)o [Yes]: y␠\n> Running ls␠\n> Added 2 lines␠\n",
        "\n#### /run make␠\n\nmaking\n",
    )
    assert [(t.name, t.status, t.start - BEGIN, t.end - BEGIN) for t in of(ToolCall, out)] == [
        ("shell", "ok", 10.5 * SECOND, 12.75 * SECOND),
        ("shell", "ok", 12.75 * SECOND, 12.75 * SECOND),
    ]
    (turn,) = of(Turn, out)
    assert turn.start - BEGIN == 5.25 * SECOND


def test_a_command_that_still_runs_is_pending():
    """Nothing came after it."""
    (tool,) = of(ToolCall, settled(HEAD, "\n#### x␠\n", ANSWER, "> Running make␠\n"))
    assert tool.status == "pending"


@pytest.mark.parametrize(
    ("after", "status", "error_type"),
    [
        ("> ^C again to exit␠\n\nhalf a rep", "interrupted", "interrupted"),
        (f"{ANSWER}> ^C again to exit␠\n> ^C KeyboardInterrupt␠\n", "ok", ""),
        ("> litellm.AuthenticationError: no␠\n> The API provider says no.␠\n", "error", "provider_error"),
        (
            "> litellm.NotFoundError: no␠\n>␠\n>␠\n> ^C again to exit␠\n> ^C KeyboardInterrupt␠\n",
            "error",
            "provider_error",
        ),
        (
            "> litellm.APIError: no␠\n> Retrying in 0.2 seconds...␠\n>␠\n> ^C again to exit␠\n",
            "interrupted",
            "interrupted",
        ),
        (
            f"> litellm.RateLimitError: slow␠\n> rate limited␠\n> Retrying in 0.2 seconds...␠\n{ANSWER}",
            "ok",
            "",
        ),
        ("> Model x has hit a token limit!␠\n> Input tokens: ~9 of 9␠\n", "error", "provider_error"),
        ("\nAn answer of a version that says no usage.\n", "ok", ""),
        ("", "pending", ""),
    ],
)
def test_how_turns_end(after, status, error_type):
    """An interrupt counts while a reply is due; a provider's error unless it is tried again."""
    out = settled(HEAD, "\n#### x␠\n", after, "\n#### /tokens␠\n")
    (turn,) = of(Turn, out)
    assert (turn.status, turn.error_type or "") == (status, error_type)


def test_a_refusal_taken_for_the_end_is_taken_back():
    """The line about the retry may be read a moment later."""
    out = settled(
        HEAD,
        "\n#### x␠\n> litellm.RateLimitError: slow␠\n",
        REST,
        "> Retrying in 0.2 seconds...␠\n",
        ANSWER,
    )
    (turn,) = of(Turn, out)
    assert (turn.status, turn.error_type) == ("ok", "")
    assert [event.name for event in turn.events] == ["provider_error", "retry"]
    assert [(o.kind, o.error_type) for o in of(Occurred, out)] == [("provider_error", "RateLimitError")]


def test_turns_of_which_no_time_is_known_keep_their_order():
    """All of them are in the second of the heading."""
    out = settled(HEAD, *["\n#### x␠\n", ANSWER] * 3)
    starts = [turn.start for turn in of(Turn, out)]
    assert starts == sorted(set(starts))
    assert starts[-1] - BEGIN < SECOND


def test_every_heading_is_a_session():
    """A run without prompts is none; numbers begin anew; the run before has ended."""
    again = HEAD.replace("14:30:00", "14:40:00")
    out = settled(
        HEAD, "\n#### x␠\n", ANSWER, HEAD.replace("14:30:00", "14:35:00"), again, "\n#### x␠\n", ANSWER
    )
    first, second = of(Turn, out)
    assert first.context.conversation.startswith("2026-03-21T14:30:00-")
    assert second.context.conversation.startswith("2026-03-21T14:40:00-")
    assert [run.exit for run in of(RunEnded, out)] == ["success", "success"]
    assert (first.index, second.index) == (1, 1)


def test_a_copied_folder_counts_once():
    """A run is its heading and its first lines, wherever the file lies."""
    sessions = Sessions(Context(agent="aider"), Rules(), Ledger(), lambda *_, **__: None, str, lambda _: None)
    text = HEAD + "\n#### x␠\n" + ANSWER
    assert len(settled(text, sessions=sessions)) > 1
    copied = [Record("history", "/home/x/copy/.aider.chat.history.md", 0, 0, r.body) for r in records(text)]
    again = settled(copied, sessions=sessions)
    assert not of(Turn, again)
    assert not of(ModelCall, again)
    other = settled(text.replace("#### x", "#### y"), sessions=sessions)
    assert len(of(Turn, other)) == 1


def test_work_at_the_start_is_no_turn():
    """A usage line before any prompt has a trace of its own."""
    out = settled(HEAD, TOKENS, "\n#### x␠\n", ANSWER)
    assert [turn.human for turn in of(Turn, out)] == [False, True]


def test_a_file_without_its_beginning_says_nothing():
    """Until the next heading."""
    assert events("\n#### x␠\n", ANSWER, "> Applied edit to y␠\n", REST) == []


# ------------------------------------------------------------------------------------ the log


def test_the_log_has_the_exact_numbers():
    """Whether it is read before the history or after: they replace the rounded ones, with times and model."""
    log = [
        entry("launched", BEGIN + SECOND),
        entry("message_send_starting", BEGIN + 8 * SECOND),
        sent(BEGIN + 11 * SECOND, 2461, 34, model="gpt-4o-2024"),
    ]
    text = HEAD + "\n#### x␠\n" + ANSWER
    for parts in ([log, text], [text, REST, log]):
        (call,) = of(ModelCall, settled(*parts))
        assert (call.usage, call.cost, call.model) == (Usage(input=2461, output=34), 0.0064925, "gpt-4o-2024")
        assert not call.final
        assert (call.start, call.end) == (BEGIN + 8 * SECOND, BEGIN + 11 * SECOND)


def test_numbers_of_the_server_are_final():
    """Without streaming Aider does not count by itself."""
    log = [entry("launched", BEGIN), sent(BEGIN + 3 * SECOND, 2461, 34)]
    out = settled(log, HEAD.replace("--model", "--no-stream --model"), "\n#### x␠\n", ANSWER)
    assert [call.final for call in of(ModelCall, out)] == [True]


def test_the_log_may_tell_after_a_pause():
    """A restart lies between the two, and the history's line is dated long before: its numbers are rounded up, and
    what is counted is never taken back."""
    sessions, reader = of_aider(), History()
    launched = entry("launched", BEGIN)
    sessions.apply(events(launched, HEAD, "\n#### x␠\n", ANSWER, REST, reader=reader))
    sessions.settle(BEGIN + 60 * SECOND)
    sessions.apply(events(sent(BEGIN + 3 * SECOND, 2461, 34), REST, reader=reader))
    sessions.settle(FAR)
    out = sessions.take()
    (call,), (turn,) = of(ModelCall, out), of(Turn, out)
    assert call.usage == turn.usage == Usage(input=2461, output=34)


@pytest.mark.parametrize(
    "log",
    [
        [entry("launched", BEGIN + 100 * SECOND), sent(BEGIN + 110 * SECOND, 2461, 34)],
        [entry("launched", BEGIN), sent(BEGIN + 3 * SECOND, 2661, 34)],
        [entry("launched", BEGIN), sent(BEGIN + 3 * SECOND, 2461, 34, cost=0.02)],
        [sent(BEGIN + 3 * SECOND, 2461, 34)],
    ],
)
def test_what_is_not_surely_the_same_call_is_left_alone(log):
    """Another project's process, or numbers that round to others."""
    (call,) = of(ModelCall, settled(log, HEAD, "\n#### x␠\n", ANSWER))
    assert (call.usage.input, call.cost, call.model) == (2500, 0.0065, "gpt-4o")


def test_a_redacted_model_is_the_headers():
    """The log hides models that have no public price."""
    for word in ("openai/REDACTED", "None"):
        log = [entry("launched", BEGIN), sent(BEGIN + 3 * SECOND, 2461, 34, model=word)]
        (call,) = of(ModelCall, settled(log, HEAD, "\n#### x␠\n", ANSWER))
        assert (call.model, call.usage.input) == ("gpt-4o", 2461)


def test_two_processes_in_one_log():
    """Their entries mix; each call finds its own, and nobody's exit is another's."""
    log = [
        entry("launched", BEGIN),
        entry("launched", BEGIN + 2 * SECOND),
        sent(BEGIN + 5 * SECOND, 7777, 7),
        sent(BEGIN + 6 * SECOND, 2461, 34),
        entry("exit", BEGIN + 7 * SECOND, reason="/exit"),
    ]
    reader = History()
    made = events(log, HEAD, "\n#### x␠\n", ANSWER, REST, reader=reader)
    assert not [event for event in made if type(event).__name__ == "Ended"]
    assert [send.input for send in reader.log.sends] == [7777]


def test_the_exit_in_the_log_ends_the_run():
    """Though it may be read before the last lines of the history."""
    log = [
        entry("launched", BEGIN),
        sent(BEGIN + 6 * SECOND, 2461, 34),
        entry("exit", BEGIN + 9 * SECOND, reason="Completed --message"),
    ]
    out = settled(log, HEAD, "\n#### x␠\n", ANSWER, "> Applied edit to x␠\n")
    (ended,) = of(RunEnded, out)
    assert (ended.exit, ended.time) == ("success", BEGIN + 9 * SECOND)


@pytest.mark.parametrize("hours", [-5, 2, 5.5])
def test_a_history_of_another_time_zone(hours):
    """The log's seconds tell it: a launch a whole number of quarter hours away."""
    away = int(hours * 3600) * SECOND
    log = [
        entry("launched", BEGIN + away),
        entry("message_send_starting", BEGIN + away + 4 * SECOND),
        sent(BEGIN + away + 6 * SECOND, 2461, 34),
    ]
    typed = list(records(f"\n# {STAMP[:-2]}03.500000\n+x\n", "inputs"))
    out = settled(log, typed, HEAD, "\n#### x␠\n", ANSWER)
    (turn,), (call,) = of(Turn, out), of(ModelCall, out)
    assert turn.start == BEGIN + away + 7 * SECOND // 2
    assert (call.start, call.usage.input) == (BEGIN + away + 4 * SECOND, 2461)


def test_a_heading_seen_while_it_is_written_tells_the_zone():
    """Then arrivals are the times, and stamps count from there."""
    now = BEGIN + 7200 * SECOND
    reader = History()
    events(REST, reader=reader)
    made = events(list(records(HEAD + "\n#### x␠\n\n", arrival=now)), reader=reader)
    assert [event.time for event in made if isinstance(event, Prompted)] == [now]
    assert reader.zone == 7200 * SECOND


def test_arrivals_say_nothing_of_what_was_there_before():
    """A file found late: its lines are as old as its heading, and what is added afterwards is new."""
    now = BEGIN + 500 * SECOND
    reader = History()
    rest = Record(AT_REST, PATH, 0, now, None)
    old = events(list(records(HEAD + "\n#### x␠\n" + ANSWER, arrival=now)), rest, reader=reader)
    assert {event.time for event in old} == {BEGIN}
    new = events(list(records("\n#### y␠\n\n", arrival=now)), reader=reader)
    assert {event.time for event in new} == {now}


def test_a_prompt_is_seen_when_it_is_written():
    """The model's answer comes in one piece at its end; until then the turn is open."""
    made = events(HEAD, "\n#### x␠\n#### y␠\n", REST)
    assert [type(event) for event in made] == [Started, Prompted]
    reader = History()
    events(HEAD, "\n#### x␠\n", REST, reader=reader)
    assert not events("#### torn off␠\n\n", reader=reader)


@pytest.mark.parametrize("body", [None, 7, [], {}, b"x", "# aider chat started at 9999-99-99 99:99:99"])
def test_odd_records(body):
    """No value makes the reader fail."""
    for kind in ("history", "inputs", "log", AT_REST):
        assert events(Record(kind, PATH, 0, 0, body)) == []


@pytest.mark.parametrize("value", [None, True, -1, 1e300, "x", [], {}])
def test_odd_entries(value):
    """Any type may stand anywhere."""
    for event in ("launched", "message_send", "exit", value):
        for given in (value, {"prompt_tokens": value, "completion_tokens": 1, "cost": value}):
            reader = History()
            list(reader.read(Record("log", "", 0, 0, Entry(event, given, value))))
            list(reader.read(Record("log", "", 0, 0, Entry(event, given, 1_794_981_108))))
            msgspec.msgpack.encode(reader)


def test_memory_is_bounded():
    """Whatever the files hold."""
    reader = History()
    for i in range(5000):
        list(reader.read(entry("launched", BEGIN + i * SECOND)))
        list(reader.read(sent(BEGIN + i * SECOND, 1, 1)))
        reader.inputs.read(f"# {STAMP}", live=False)
        reader.inputs.read("+x", live=False)
    events(HEAD, "\n" + "#### x␠\n" * 5000, "x" * 100_000, reader=reader)
    events(HEAD, "\n#### x␠\n", *["long line of text\n" * 500] * 20, reader=reader)
    assert len(msgspec.msgpack.encode(reader)) < 400_000


def test_notes_hold_no_text_of_the_provider():
    """Only the kind of error: the message may name keys."""
    made = events(HEAD, "\n#### x␠\n> litellm.AuthenticationError: key sk-123␠\n")
    assert [note.error_type for note in made if isinstance(note, Noted)] == ["AuthenticationError"]
    assert b"sk-123" not in msgspec.msgpack.encode([note for note in made if isinstance(note, Noted)])


def test_the_unit_is_the_file_at_its_first_heading():
    """For the order of a backlog."""
    (files,) = FORMAT.files
    assert files.unit(PATH, HEAD.encode()) == (BEGIN, PATH)
    assert files.unit(PATH, b"") == (0, PATH)
