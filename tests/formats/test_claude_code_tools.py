"""How Claude Code's tool calls end: results in any order and form, failures, refusals, interruptions, timeouts."""

import pytest
from claude_lines import ns, read, reply, result, user

REJECTED = "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it was a file edit"


def ended(words, told="Error: x", **fields):
    tool = read(
        user(0), reply(1, "m1", "t1"), result(2, "t1", words, error=True, told=told, **fields), reply(3, "m2")
    ).tool("t1")
    return tool.status, tool.error_type, tool.exit_code


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("Exit code 1\ncat: /root/x: Permission denied", 1),
        ("Exit code 28\ncurl: (28) Connection timed out after 3000 ms", 28),
        ("Exit code 1\nThe request was blocked by CORS policy", 1),
        ("Exit code 2\ngrep: [Request interrupted by user: No such file", 2),
        ("Exit code 1\nusage: this command requires approval", 1),
        ([{"type": "text", "text": "Exit code 3\nTraceback"}], 3),
        ("EACCES: permission denied, open '/etc/shadow'", None),
        ("<tool_use_error>InputValidationError: Bash failed</tool_use_error>", None),
    ],
)
def test_what_a_command_printed_does_not_make_it_refused_or_late(words, code):
    """Only what Claude Code itself says does; the exit code stays known."""
    assert ended(words) == ("error", "tool_error", code)


@pytest.mark.parametrize(
    "words",
    [
        "Claude requested permissions to use Bash, but you haven't granted it yet.",
        "Permission to use Bash with command rm -rf / has been denied.",
        "ls in '/etc' was blocked. For security, Claude Code may only list files in the allowed directories",
        "touch in '/w/f' needs approval. The path is inside the working directory",
        "This command requires approval",
        "File is in a directory that is denied by your permission settings.",
        "PreToolUse:Bash hook error: [guard.sh]: no",
    ],
)
def test_a_refusal_is_denied(words):
    """By the permission rules or by a hook: the tool never ran."""
    assert ended(words) == ("error", "denied", None)


@pytest.mark.parametrize(
    "kind", ["user-rejected", "permission-rule", "automode-blocked", "automode-unavailable"]
)
def test_newer_versions_say_a_refusal_in_a_field(kind):
    """Whatever the text is; toolDenialBeforeRun even where the text is that of an interruption."""
    assert ended("no", toolDenialKind=kind) == ("error", "denied", None)
    told = ended(REJECTED, "User rejected tool use", toolDenialKind=kind, toolDenialBeforeRun=True)
    assert told == ("error", "denied", None)


@pytest.mark.parametrize(
    ("words", "told", "code"),
    [
        (REJECTED, "User rejected tool use", None),
        (REJECTED, None, None),  # in a subagent's file
        ("The user doesn't want to take this action right now. STOP what you are doing", "Error: x", None),
        ("[Request interrupted by user for tool use]", "Error: x", None),
        ("Exit code 137\n[Request interrupted by user for tool use]\nhalf", "Error: x", 137),
        ("half\n<error>Command was aborted before completion</error>", {"interrupted": True}, None),
        ("[Tool call interrupted: the process ended", "[Tool call interrupted", None),
    ],
)
def test_a_call_that_was_stopped_is_interrupted(words, told, code):
    """Esc in the prompt or while it ran, in all the ways in which versions say so."""
    assert ended(words, told) == ("interrupted", "interrupted", code)


def test_a_resume_says_what_a_kill_left_open():
    """Its result comes with the resume."""
    assert ended("x", toolDenialKind="interrupted") == ("interrupted", "interrupted", None)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("Exit code 143\nCommand timed out after 2m 0.0s", 143),
        ("Exit code 143\nwarning: slow\nCommand timed out after 2m 0.0s half", 143),
        ("Command timed out after 2m 0.0s", None),
        ("half\nCommand timed out after 2m 0.0s\n<error>Command was aborted before completion</error>", None),
        ("MCP error -32001: Request timed out", None),
        ("timeout of 60000ms exceeded", None),
    ],
)
def test_a_call_that_took_too_long(words, code):
    """The shell's own limit, an MCP server, a fetch."""
    assert ended(words) == ("error", "timeout", code)


def test_a_warm_up_does_not_fail():
    """The tools of a warm-up agent are never run: an error type of its own keeps them apart."""
    assert ended("Warmup") == ("error", "warmup", None)


def test_results_pair_by_id():
    """In any order, before their call's line, with times that run backwards: a span never ends before it starts."""
    found = read(
        user(0),
        result(1, "t3"),
        reply(1.1, "m1", "t1", "t2", "t3"),
        result(4, "t2"),
        result(-3600, "t1"),
        reply(5, "m2"),
    )
    times = {id_: (found.tool(id_).start, found.tool(id_).end) for id_ in ("t1", "t2", "t3")}
    assert times == {"t1": (ns(-3600), ns(-3600)), "t2": (ns(1.1), ns(4)), "t3": (ns(1), ns(1))}
    assert {tool.status for tool in map(found.tool, times)} == {"ok"}
    assert found.turn.status == "ok"


def test_blocks_of_the_provider_are_no_tool_calls():
    """A proxy writes the provider's own tools, with results, into the reply; its input can be a string."""
    line = reply(1, "m1")
    line["message"]["content"] = [
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": "{}"},
        {"type": "tool_result", "tool_use_id": "s1", "content": "x", "is_error": True},
        {"type": "text", "text": "found"},
    ]
    found = read(user(0), line)
    assert (found.turn.tools, found.turn.status) == (0, "ok")


def test_a_result_in_any_form():
    """toolUseResult can be a list (MCP); content can be absent, an image or a reference to a tool."""
    found = read(
        user(0),
        reply(1, "m1", "t1", "t2", "t3", name="Agent"),
        result(2, "t1", [{"type": "image", "source": {}}], told=[{"type": "text", "text": "x"}]),
        result(3, "t2", [{"type": "tool_reference", "tool_name": "x"}], told={"agentId": 7}),
        result(4, "t3", None, error=True),
        reply(5, "m2"),
    )
    assert [found.tool(id_).status for id_ in ("t1", "t2", "t3")] == ["ok", "ok", "error"]
