"""What a span may say of the content: a short summary of a tool's input, or redacted text.

For the encoder content is one question per attribute, answered with text that is safe to send:
decoded only now, redacted, cut, and always valid UTF-8, whatever the file held (wrong types, cut
emoji, megabytes). Which summary a tool gets is decided by its name's kind and the keys of its
input, so that the tools of all agents need one table and no agent is named here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw

from spantail.out.redact import redact

Mode = Literal["none", "target", "full"]
Fields = Mapping[str, Any]

TARGET_LENGTH: Final = 200
TEXT_LENGTH: Final = 8192
_LONGEST_NAME: Final = 4096
"""Longer than any name or path that is sent."""
_ELLIPSIS: Final = "…"
_WORD_SIGNS: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.~+/="

_decode = msgspec.json.decode
_fields = msgspec.json.Decoder(dict[str, Raw]).decode

# Control characters would break a line or a terminal; what is left of them is one space.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")
_PATCHED: Final = re.compile(r"^\*\*\* (?:Add|Update|Delete) File: (.{1,400})$", re.MULTILINE)

_COMMAND: Final = ("command", "cmd", "commands", "script", "code", "input")
_PATH: Final = (
    "file_path",
    "path",
    "filePath",
    "filepath",
    "absolute_path",
    "notebook_path",
    "file",
    "files",
)
_FOLDER: Final = ("path", "dir_path", "directory", "dir", "folder", "cwd", "include")
_PATTERN: Final = ("pattern", "regex", "query", "glob")
_TYPE: Final = ("subagent_type", "agent_type", "agent_name", "agent", "agentId", "name", "type")
_TASK: Final = ("description", "task", "message", "instructions", "prompt")
_WRITTEN: Final = ("content", "contents", "text", "file_text")


@lru_cache(maxsize=4096)
def public_name(name: str) -> str:
    """A name from a record (of a tool, model, project, branch) as it may be shown: whatever the mode, it leaves the
    machine, and a server or a script may have put a secret into it. Few names come again and again."""
    return redact(name[:_LONGEST_NAME])


class Content:
    """Implements what the encoder asks: `mode`, `name`, `target`, `text`."""

    def __init__(self, mode: Mode = "none") -> None:
        self.mode: Final = mode

    name = staticmethod(public_name)

    def target(self, name: str, input: Raw | None) -> str:  # noqa: A002 - the word of the model
        """What a tool call was about, in a line; "" where there is nothing to say."""
        given = _given(input)
        if given is None or given == "":
            return ""
        summary = _KINDS.get(_plain_name(name))
        if isinstance(given, str):
            words = _of_text(given, summary)
        else:
            words = (summary(given) if summary else "") or _keys(given)
        return _cut(_line(words), TARGET_LENGTH)

    def text(self, raw: Raw | None) -> str:
        """The content itself: a JSON string as its text, anything else as its JSON."""
        return "" if raw is None else _cut(_text(raw), TEXT_LENGTH)


# -------------------------------------------------------------------------------- summaries


def _command(given: Fields) -> str:
    command = _first(given, _COMMAND)
    description = _first(given, ("description",))
    return f"{command} # {description}" if command and description else command


def _read(given: Fields) -> str:
    return _first(given, _PATH)


def _edit(given: Fields) -> str:
    path = _first(given, _PATH)
    return f"{path} (edit)" if path else ""


def _write(given: Fields) -> str:
    path = _first(given, _PATH)
    if not path:
        return ""
    written = _value(next((given[key] for key in _WRITTEN if key in given), None))
    if not isinstance(written, str):
        return path
    return f"{path} ({len(written.encode('utf-8', 'replace'))} bytes)"


def _grep(given: Fields) -> str:
    pattern, folder = _first(given, _PATTERN), _first(given, _FOLDER)
    return f"/{pattern}/ in {folder}" if pattern and folder else f"/{pattern}/" if pattern else ""


def _glob(given: Fields) -> str:
    return _first(given, ("pattern", "glob", "query"))


def _folder(given: Fields) -> str:
    return _first(given, _FOLDER)


def _subagent(given: Fields) -> str:
    kind, task = _first(given, _TYPE), _first(given, _TASK).lstrip().partition("\n")[0]
    return f"[{kind}] {task}".rstrip() if kind else task


def _page(given: Fields) -> str:
    return _first(given, ("url", "urls", "query"))


Summary = Callable[[Fields], str]
_NAMES: Final[tuple[tuple[Summary, str], ...]] = (
    (
        _command,
        "bash shell sh exec execute run command run_command run_commands execute_command exec_command ",
    ),
    (
        _command,
        "run_shell_command local_shell shell_command powershell terminal container_exec run_terminal_cmd",
    ),
    (_read, "read read_file read_files read_many_files view view_file open_file cat notebookread view_image"),
    (_read, "readfile filedeleted listcodedefinitionnames"),
    (_edit, "editedexistingfile"),
    (_write, "newfilecreated"),
    (_grep, "searchfiles"),
    (_folder, "listfilestoplevel listfilesrecursive"),
    (_edit, "edit edit_file multiedit replace replace_in_file str_replace apply_diff notebookedit update"),
    (_edit, "update_file patch apply_patch insert_content search_replace str_replace_editor text_editor"),
    (_write, "write write_file write_to_file create create_file save_file new_file"),
    (
        _grep,
        "grep grep_search search_text search_files search_file_content ripgrep rg search codebase_search",
    ),
    (_glob, "glob find find_files glob_search file_search find_by_name"),
    (_folder, "ls list list_dir list_directory list_files tree"),
    (_subagent, "task agent spawn_agent subagent delegate invoke_agent team_run_task new_task use_subagents"),
    (_page, "webfetch web_fetch fetch websearch web_search google_web_search browse"),
)
_KINDS: Final[Mapping[str, Summary]] = {name: kind for kind, names in _NAMES for name in names.split()}


def _plain_name(name: str) -> str:
    """The tool's name without its server: `developer__shell`, `mcp__fs__read_file`, `fs.read_file`."""
    return re.split(r"__|[.:/]", name.lower())[-1]


def _of_text(given: str, summary: Summary | None) -> str:
    """Of an input that is text: a command is one, a patch names its files; other text stays here."""
    if summary is _command:
        return given
    files = _PATCHED.findall(given[:65_536])
    return f"{', '.join(dict.fromkeys(files))} (edit)" if files else ""


def _keys(given: Fields) -> str:
    return ", ".join(given)


# ---------------------------------------------------------------------------------- decoding


def _given(raw: Raw | None) -> Fields | str | None:
    """An object's fields (still raw), or text; a string that holds an object is that object."""
    if raw is None:
        return None
    try:
        return _fields(raw)
    except (ValueError, RecursionError):
        value = _value(raw)
    if isinstance(value, str) and value.lstrip()[:1] == "{":
        inner = _value(Raw(value.encode("utf-8", "replace")))
        value = inner if isinstance(inner, dict) else value
    return value if isinstance(value, (dict, str)) else None


def _value(given: Any) -> Any:
    """Plain Python of what may still be raw; None for what no parser takes."""
    if not isinstance(given, Raw):
        return given
    try:
        return _decode(given)
    except (ValueError, RecursionError):
        pass
    try:  # lone surrogates and NaN: what agents write and only this parser reads
        return json.loads(bytes(given).decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def _first(given: Fields, keys: tuple[str, ...]) -> str:
    """The first of the keys that has something to say, as words."""
    for key in keys:
        if key in given and (words := _words(_value(given[key]))):
            return words
    return ""


def _words(value: Any) -> str:
    """Text, numbers, lists of them (a command as a list of words), and objects that name a path."""
    if isinstance(value, str):
        return value[: 64 * TARGET_LENGTH]
    if isinstance(value, bool) or value is None:
        return ""
    if isinstance(value, (int, float)):
        return str(value) if -(10**18) < value < 10**18 else ""
    if isinstance(value, list):
        joint = "; " if any(isinstance(v, str) and " " in v for v in value[:1]) else " "
        return joint.join(words for item in value[:50] if (words := _words(item)))
    if isinstance(value, dict):
        return _first(value, ("path", "file_path", "command", "description"))
    return ""


def _text(raw: Raw) -> str:
    """The raw's text; of a long one only the beginning is looked at."""
    body = bytes(memoryview(raw)[: 8 * TEXT_LENGTH])
    whole = len(body) == len(memoryview(raw))
    if body[:1] != b'"':
        return body.decode("utf-8", "replace")
    if whole:
        value = _value(Raw(body))
        return value if isinstance(value, str) else body.decode("utf-8", "replace")
    for shorter in range(len(body), len(body) - 16, -1):  # the cut may lie inside an escape
        value = _value(Raw(body[:shorter] + b'"'))
        if isinstance(value, str):
            return value
    return ""


# ------------------------------------------------------------------------------------ safety


def _line(text: str) -> str:
    return _CONTROL.sub(" ", text).strip()


def _cut(text: str, length: int) -> str:
    """Redacted, then cut with an ellipsis. What lies far beyond the length is not looked at."""
    window = text[: 4 * length]
    if len(window) < len(text):
        # half a secret at the window's end may look like none: its last word is left out
        window = redact(window.rstrip(_WORD_SIGNS) or window) + _ELLIPSIS
    else:
        window = redact(window)
    if len(window) > length:
        window = window[: length - 1] + _ELLIPSIS
    # lone surrogates are no text that any backend takes
    return window.encode("utf-8", "replace").decode("utf-8")
