"""How a tool call of Codex ended, in every shape in which versions have written it."""

import json

import msgspec
import pytest
from msgspec import Raw

from spantail.formats.codex.lines import Item, Payload
from spantail.formats.codex.results import of_event, of_item, of_output

OK = ("ok", "", None)
FAILED = ("error", "tool_error", None)
INTERRUPTED = ("interrupted", "interrupted", None)


def raw(value):
    return Raw(json.dumps(value).encode())


def parts(*texts):
    return [{"type": "input_text", "text": text} for text in texts]


@pytest.mark.parametrize(
    ("output", "ending"),
    [
        ("Chunk ID: a\nWall time: 0.1 seconds\nProcess exited with code 0\nOutput:\nx", ("ok", "", 0)),
        (
            "Chunk ID: a\nWall time: 0.1 seconds\nProcess exited with code 3\nOutput:\nx",
            ("error", "tool_error", 3),
        ),
        (
            "Command: /bin/sh -c 'x\ny'\nChunk ID: a\nProcess exited with code 7\nOutput:\n",
            ("error", "tool_error", 7),
        ),
        ("Exit code: 0\nWall time: 0 seconds\nOutput:\nfine", ("ok", "", 0)),
        ("Exit code: 2\nWall time: 0 seconds\nOutput:\nbad", ("error", "tool_error", 2)),
        (
            "Exit code: 124\nWall time: 10 seconds\nOutput:\ncommand timed out after 10000 milliseconds\n",
            ("error", "timeout", 124),
        ),
        (json.dumps({"output": "x", "metadata": {"exit_code": 0, "duration_seconds": 0.1}}), ("ok", "", 0)),
        (
            json.dumps({"output": "x", "metadata": {"exit_code": 5, "duration_seconds": 0.1}}),
            ("error", "tool_error", 5),
        ),
        (json.dumps({"metadata": {"exit_code": 6}, "output": "y" * 40_000}), ("error", "tool_error", 6)),
        (json.dumps({"content": [], "isError": True}), FAILED),
        (json.dumps({"content": [], "is_error": True}), FAILED),
        (json.dumps({"agent_id": "x"}), OK),
        ("{not json", OK),
        ("Chunk ID: a\nWall time: 0.3 seconds\nProcess running with session ID 5\nOutput:\n", OK),
        (parts("Script completed\nWall time 0.2 seconds\nOutput:\n", '{"exit_code":2}'), OK),
        (parts("Script failed\nWall time 0.0 seconds\nOutput:\n", "Script error:"), FAILED),
        (parts("Exit code: 4\nWall time: 0 seconds\nOutput:", "x"), ("error", "tool_error", 4)),
        (parts("Wall time: 0.0049 seconds\nOutput:", "calc failure"), OK),
        ("execution error: Io(Os { code: 2 })", FAILED),
        ("failed in sandbox LinuxSeccomp with execution error: denied", FAILED),
        ("collab spawn failed: no thread", FAILED),
        ("agent with id 01a1 not found", FAILED),
        ("approval policy is Never; reject command — you should not ask", ("error", "denied", None)),
        ("user cancelled MCP tool call", ("error", "denied", None)),
        ("failed to parse exec_command arguments: missing field `cmd`", FAILED),
        ("Agent depth limit reached. Solve the task yourself.", FAILED),
        ("resources/read failed: unknown server", FAILED),
        ("image path `x` is not a file", FAILED),
        ("request_user_input is unavailable in Default mode", FAILED),
        ("collab tool failed: x", FAILED),
        ("unable to locate image at `x.png`: No such file", FAILED),
        ("unsupported call: add", FAILED),
        ("unsupported custom tool call: exec", FAILED),
        ("apply_patch verification failed: no such file", FAILED),
        ("aborted by user after 2.0s", INTERRUPTED),
        ("Wall time: 2.0 seconds\naborted by user", INTERRUPTED),
        ("exec command rejected by user", ("error", "denied", None)),
        ({"content": "nothing to do", "success": False}, FAILED),
        ({"content": "unsupported call: x", "success": True}, FAILED),
        ("Plan updated", OK),
        ("", OK),
        (None, OK),
        (17, OK),
        ([1, "x"], OK),
    ],
)
def test_an_outputs_header_says_how_the_call_ended(output, ending):
    """All shapes carry the exit code in text; a list is joined first; other types say nothing."""
    assert of_output(raw(output)) == ending


@pytest.mark.parametrize(
    "printed",
    ["Process exited with code 3", "Exit code: 1", "aborted by user", "Script failed", "unsupported call: x"],
)
def test_what_a_command_prints_is_not_its_end(printed):
    """Words of a log that was printed look like a header, and are none."""
    output = f"Chunk ID: a\nWall time: 0.1 seconds\nProcess exited with code 0\nOutput:\n{printed}\n"
    assert of_output(raw(output)) == ("ok", "", 0)
    assert of_output(raw("x" * 400 + "\n" + printed)) == OK


@pytest.mark.parametrize(
    ("item", "ending"),
    [
        ({"type": "CommandExecution", "status": "completed", "exit_code": 0}, ("ok", "", 0)),
        ({"type": "CommandExecution", "status": "failed", "exit_code": 3}, ("error", "tool_error", 3)),
        ({"type": "CommandExecution", "status": "failed", "exit_code": 137}, ("error", "tool_error", 137)),
        (
            {"type": "CommandExecution", "status": "failed", "exit_code": -1},
            ("interrupted", "interrupted", -1),
        ),
        ({"type": "CommandExecution", "status": "declined"}, ("error", "denied", None)),
        ({"type": "FileChange", "status": "failed"}, FAILED),
        ({"type": "McpToolCall", "status": "completed", "result": {"isError": True}}, FAILED),
        ({"type": "McpToolCall", "status": "failed", "result": None}, FAILED),
        ({"type": "McpToolCall", "status": "completed", "result": [1]}, OK),
        ({"type": "CommandExecution", "status": {"odd": 1}, "exit_code": "x"}, OK),
    ],
)
def test_an_items_status_and_exit_code_decide(item, ending):
    """-1 is how an interrupted command ends; a declined one was not run."""
    assert of_item(msgspec.json.decode(json.dumps(item), type=Item)) == ending


@pytest.mark.parametrize(
    ("event", "ending"),
    [
        ({"type": "exec_command_end", "exit_code": 0, "status": "completed"}, ("ok", "", 0)),
        ({"type": "exec_command_end", "exit_code": 2, "status": "failed"}, ("error", "tool_error", 2)),
        (
            {
                "type": "exec_command_end",
                "exit_code": 124,
                "status": "failed",
                "formatted_output": "command timed out after 10000 milliseconds\n",
            },
            ("error", "timeout", 124),
        ),
        ({"type": "patch_apply_end", "success": False}, FAILED),
        ({"type": "patch_apply_end", "success": False, "status": "declined"}, ("error", "denied", None)),
        ({"type": "patch_apply_end", "success": True, "status": "completed"}, OK),
        ({"type": "dynamic_tool_call_response", "success": False, "error": "gone"}, FAILED),
        ({"type": "dynamic_tool_call_response", "success": True}, OK),
        ({"type": "mcp_tool_call_end", "result": {"Ok": {"isError": False}}}, OK),
        ({"type": "mcp_tool_call_end", "result": {"Ok": {"isError": True}}}, FAILED),
        ({"type": "mcp_tool_call_end", "result": {"Ok": {"is_error": None}}}, OK),
        ({"type": "mcp_tool_call_end", "result": {"Ok": {"is_error": True}}}, FAILED),
        ({"type": "mcp_tool_call_end", "result": {"Err": "gone"}}, FAILED),
    ],
)
def test_older_end_events_decide(event, ending):
    """Before there were items, each kind of tool had an end event of its own."""
    assert of_event(msgspec.json.decode(json.dumps(event), type=Payload)) == ending
