"""What people see: a real Jaeger after the real program has read a home with several agents in it."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import replay
import truth
from program import LONG_AFTER
from servers.jaeger import Jaeger
from servers.server import clean_environ
from spantail.model import SECOND

pytestmark = pytest.mark.servers

CASES = (
    "claude-code/subagent-a",
    "claude-code/tools-a",
    "claude-code/fatal-a",
    "claude-code/sigkill-a",
    "opencode/subagent-a",
    "cline/tools-a",
    "generic/multi-a",
    "generic/tools-a",
    "clido/tools-a",
)
AGENTS = {case.partition("/")[0] for case in CASES}
EARLIEST = 1
YEAR = 365 * 86_400 * SECOND

# The program as it is installed, with another clock: it must be long after the recordings wherever this runs.
PROGRAM = (
    f"import sys, time; time.time_ns = lambda: {LONG_AFTER}; from spantail.cli import main; sys.exit(main())"
)


def send(home: Path, state: Path, environ: dict[str, str]) -> str:
    """The whole home, delivered by a process of its own from an empty state. Returns the page of metrics."""
    page = state / "page.prom"
    command = ["run", "--once", "--since", "all", "--home", home, "--state", state, "--textfile", page]
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, *command, "--new-series-hold", "0"],
        env={**clean_environ(), **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return page.read_text()


class Loaded:
    """A Jaeger that holds the home's spans."""

    def __init__(self, jaeger: Any, home: Path, folder: Path, protocol: str) -> None:
        self.jaeger = jaeger
        self._home, self._folder, self._protocol = home, folder, protocol
        self._sent = 0
        self.page = self.send()

    def send(self) -> str:
        """Everything (once more), as a program does that knows nothing of having sent it before."""
        self._sent += 1
        return send(self._home, self._folder / f"state-{self._sent}", self.jaeger.environ(self._protocol))

    def traces(self, agent: str, **tags: str) -> list[dict[str, Any]]:
        return self.jaeger.search(agent, EARLIEST, LONG_AFTER + YEAR, **tags)

    def all(self) -> dict[str, dict[str, Any]]:
        """Every trace there is, by id, asked for one by one."""
        ids = {trace["traceID"] for agent in AGENTS for trace in self.traces(agent)}
        return {id_: self.jaeger.trace(id_) for id_ in ids}


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """One home in which several agents have worked."""
    folder = tmp_path_factory.mktemp("jaeger")
    for case in CASES:
        part = replay.copied(truth.FIXTURES / case, folder / case)
        subprocess.run(["cp", "-rp", f"{part}/.", folder / "home/"], check=True)
    return folder / "home"


@pytest.fixture(scope="module", params=["grpc", "http/protobuf"])
def loaded(request, jaeger_program, home, tmp_path_factory) -> Iterator[Loaded]:
    """A Jaeger for each protocol, so that what one of them lost is not covered by the other."""
    folder = tmp_path_factory.mktemp("loaded")
    with Jaeger(jaeger_program, folder / "jaeger") as jaeger:
        yield Loaded(jaeger, home, folder, request.param)


def tags(span: dict[str, Any]) -> dict[str, Any]:
    return {tag["key"]: tag["value"] for tag in span["tags"]}


def parent(span: dict[str, Any]) -> str:
    above = [each["spanID"] for each in span["references"] if each["refType"] == "CHILD_OF"]
    assert len(above) <= 1
    return above[0] if above else ""


def warnings(trace: dict[str, Any]) -> list[str]:
    return [said for span in trace["spans"] for said in span["warnings"] or ()]


def roots(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return [span for span in trace["spans"] if not parent(span)]


def tree(trace: dict[str, Any]) -> list[Any]:
    """Names, each followed by the list of what is below it, in the order of their starts."""

    def below(id_: str) -> list[Any]:
        out: list[Any] = []
        for span in sorted(trace["spans"], key=lambda span: (span["startTime"], span["operationName"])):
            if parent(span) == id_:
                out.append(span["operationName"])
                if inner := below(span["spanID"]):
                    out.append(inner)
        return out

    return below("")


def of_session(loaded: Loaded, agent: str, tool: str) -> dict[str, Any]:
    """The one trace of the agent that has this tool call."""
    (found,) = loaded.traces(agent, gen_ai__tool__call__id=tool)
    return loaded.jaeger.trace(found["traceID"])


def content(traces: dict[str, dict[str, Any]]) -> dict[str, list[Any]]:
    """All that a trace says, without the numbers that Jaeger gives to processes."""
    return {
        id_: sorted(
            (
                span["spanID"],
                span["operationName"],
                span["startTime"],
                span["duration"],
                sorted((tag["key"], tag["type"], str(tag["value"])) for tag in span["tags"]),
                sorted((each["refType"], each["traceID"], each["spanID"]) for each in span["references"]),
                sorted(str(log) for log in span["logs"]),
                trace["processes"][span["processID"]]["serviceName"],
                span["warnings"],
            )
            for span in trace["spans"]
        )
        for id_, trace in traces.items()
    }


def test_the_services_are_the_agents(loaded):
    """Jaeger's list of services is the list of agents, and nothing else."""
    assert loaded.jaeger.services() == AGENTS


def test_every_span_is_there_once_and_in_its_place(loaded):
    """One root per trace, every parent present, no id twice; as many as the program says it delivered."""
    traces = loaded.all()
    for trace in traces.values():
        ids = Counter(span["spanID"] for span in trace["spans"])
        assert max(ids.values()) == 1
        assert len(roots(trace)) == 1
        assert {parent(span) for span in trace["spans"]} - {""} <= set(ids)
        assert [said for said in warnings(trace) if "parent" in said or "duplicate" in said] == []
    exported = truth.samples(loaded.page)["spantail_exported_spans_total"]
    delivered = {labels["result"]: value for labels, value in exported}
    assert sum(len(trace["spans"]) for trace in traces.values()) == delivered["delivered"]


def test_jaeger_has_nothing_to_remark(loaded):
    """No span has a length that Jaeger mends, none begins before the span around it."""
    assert [said for trace in loaded.all().values() for said in warnings(trace)] == []


def test_there_is_a_trace_for_every_turn(loaded):
    """As many turns and tool calls of each agent as its sessions' truth says."""
    for agent in AGENTS:
        expected = [truth.expected(truth.FIXTURES / case) for case in CASES if case.startswith(f"{agent}/")]
        spans = [tags(span) for trace in loaded.traces(agent) for span in trace["spans"]]
        assert sum("coding_agent.turn.status" in span for span in spans) == sum(e["turns"] for e in expected)
        drawn = Counter(span["gen_ai.tool.name"] for span in spans if "gen_ai.tool.name" in span)
        assert drawn == Counter(tool["name"] for e in expected for tool in e["tools"])


def test_a_subagent_hangs_below_the_call_that_started_it(loaded):
    """Root, its chats and tool calls; below the call the subagent; below that its own chats and tool calls."""
    assert tree(of_session(loaded, "claude-code", "toolu_sa1")) == [
        "invoke_agent claude-code",
        [
            "chat claude-sonnet-4-6",
            "execute_tool Agent",
            [
                "invoke_agent general-purpose",
                [
                    "chat claude-sonnet-4-6",
                    "execute_tool Bash",
                    "chat claude-sonnet-4-6",
                    "execute_tool Bash",
                    "chat claude-sonnet-4-6",
                ],
            ],
            "chat claude-sonnet-4-6",
        ],
    ]


def test_a_subagent_in_a_database_hangs_the_same_way(loaded):
    """An agent that stores sessions as rows gives the same shape."""
    trace = of_session(loaded, "opencode", "call_sa1")
    (name, inside), *rest = [tree(trace)]
    assert rest == []
    assert name == "invoke_agent opencode"
    assert inside[inside.index("execute_tool task") + 1] == [
        "invoke_agent general",
        [
            "chat fake-model-1",
            "execute_tool bash",
            "chat fake-model-1",
            "execute_tool read",
            "chat fake-model-1",
        ],
    ]


@pytest.mark.parametrize("agent", sorted(AGENTS))
def test_failed_tools_are_found_by_their_tag(loaded, agent):
    """error.type=tool_error finds the traces of failed calls, and the failed spans in them are the right ones."""
    failed = {
        tool["id"]
        for case in CASES
        if case.startswith(f"{agent}/")
        for tool in truth.expected(truth.FIXTURES / case)["tools"]
        if tool["status"] == "error"
    }
    found = [
        tags(span)["gen_ai.tool.call.id"]
        for trace in loaded.traces(agent, error__type="tool_error")
        for span in trace["spans"]
        if tags(span).get("error.type") == "tool_error"
    ]
    assert sorted(found) == sorted(failed)


def test_what_was_cut_off_or_failed_says_so(loaded):
    """A call that a kill left open is found as interrupted, a turn that the provider ended as provider_error."""
    (killed,) = [
        trace
        for trace in loaded.traces("claude-code", error__type="interrupted")
        if any(tags(span).get("gen_ai.tool.call.id") == "toolu_ka2" for span in trace["spans"])
    ]
    open_call = [span for span in killed["spans"] if tags(span).get("gen_ai.tool.call.id") == "toolu_ka2"]
    assert [tags(span)["coding_agent.tool.status"] for span in open_call] == ["pending"]
    (fatal,) = loaded.traces("claude-code", error__type="provider_error")
    (root,) = roots(fatal)
    assert tags(root)["coding_agent.exit_status"] == "error"
    assert tags(root)["otel.status_code"] == "ERROR"


def test_old_turns_are_found_by_tag_and_time(loaded):
    """A window around a turn finds it; one that ends before it does not."""
    trace = of_session(loaded, "claude-code", "toolu_ta2")
    (root,) = roots(trace)
    start = root["startTime"] * 1000
    around = loaded.jaeger.search(
        "claude-code", start - SECOND, start + SECOND, coding_agent__turn__status="ok"
    )
    before = loaded.jaeger.search(
        "claude-code", start - YEAR, start - SECOND, gen_ai__tool__call__id="toolu_ta2"
    )
    assert trace["traceID"] in {found["traceID"] for found in around}
    assert before == []


def test_a_turn_follows_from_the_one_before(loaded):
    """A root's link to the previous turn is a FOLLOWS_FROM reference to that turn's root."""
    sessions: dict[str, list[dict[str, Any]]] = {}
    for trace in loaded.traces("generic"):
        (root,) = roots(trace)
        sessions.setdefault(tags(root)["session.id"], []).append(root)
    (turns,) = [found for found in sessions.values() if len(found) == 3]
    turns.sort(key=lambda root: root["startTime"])
    follows = [
        [
            (each["traceID"], each["spanID"])
            for each in root["references"]
            if each["refType"] == "FOLLOWS_FROM"
        ]
        for root in turns
    ]
    assert follows == [[], *([(root["traceID"], root["spanID"])] for root in turns[:-1])]


def test_sending_it_all_again_changes_nothing(loaded):
    """A program that lost its state sends the same ids with the same content: Jaeger shows each span once."""
    before = content(loaded.all())
    loaded.send()
    assert content(loaded.all()) == before
