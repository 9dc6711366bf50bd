"""systemd's and launchd's files, read by systemd itself and by a parser of property lists."""

from __future__ import annotations

import os
import plistlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import replay
import truth
from servers.programs import unavailable

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
USER = DEPLOY / "systemd" / "spantail.service"
HOST = DEPLOY / "systemd" / "spantail-host.service"


def analyze(unit: Path, tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """systemd-analyze on a copy whose program exists here."""
    program = shutil.which("systemd-analyze")
    if program is None:
        unavailable("no systemd-analyze here (Debian: systemd)")
    copy = tmp_path / unit.name
    copy.write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text()))
    return subprocess.run(
        [str(program), *words, copy],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.servers
@pytest.mark.parametrize(("unit", "whose"), [(USER, "--user"), (HOST, "--system")], ids=["user", "host"])
def test_systemd_takes_the_unit(unit, whose, tmp_path):
    """Every key is known and every value can be read."""
    said = analyze(unit, tmp_path, "verify", whose)
    assert said.returncode == 0, said.stderr
    assert said.stderr == ""


@pytest.mark.servers
def test_the_unit_for_all_users_is_well_shut(tmp_path):
    """By systemd's own measure (0 shut, 10 open): below 2, though it has the network and may read all homes."""
    said = analyze(HOST, tmp_path, "security", "--no-pager", "--offline=yes", "--threshold=20")
    assert said.returncode == 0, said.stdout[-300:] + said.stderr


@pytest.mark.parametrize("unit", [USER, HOST], ids=["user", "host"])
def test_a_unit_reads_homes_and_keeps_its_state(unit):
    keys = dict(re.findall(r"(?m)^(\w+)=(.*)$", unit.read_text()))
    assert keys["ProtectHome"] == "read-only"
    assert keys["StateDirectory"] == "spantail"
    assert int(keys["TimeoutStopSec"]) > 10
    # Bad configuration and a state in use do not get better by trying again.
    assert keys["RestartPreventExitStatus"] == "2 75"


def test_launchd_gets_a_property_list():
    with (DEPLOY / "launchd" / "spantail.plist").open("rb") as file:
        job = plistlib.load(file)
    assert job["Label"] == "spantail"
    shell, flag, line = job["ProgramArguments"]
    assert (shell, flag) == ("/bin/sh", "-c")
    subprocess.run([shell, "-n", flag, line], check=True)
    assert job["RunAtLoad"] is True
    assert job["KeepAlive"] == {"SuccessfulExit": False}
    assert job["ExitTimeOut"] > 10
    assert job["Umask"] == 0o077


@pytest.mark.servers
def test_the_capability_of_the_unit_is_enough(tmp_path):
    """A user without rights, with what AmbientCapabilities gives, reads the homes of others and writes its state."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        unavailable("to become another user with one capability needs root and setpriv (Debian: util-linux)")
    assert "\nAmbientCapabilities=CAP_DAC_READ_SEARCH\n" in HOST.read_text()
    for uid, user in ((4321, "ann"), (4322, "bob")):
        home = replay.copied(truth.FIXTURES / "claude-code" / "tools-a", tmp_path / "homes" / user)
        for path in [home, *home.rglob("*")]:
            os.chown(path, uid, uid)
            path.chmod(0o700 if path.is_dir() else 0o600)
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    os.chown(state, 65534, 65534)
    one = "-all,+dac_read_search"
    ended = subprocess.run(
        [
            "setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--no-new-privs",
            "--inh-caps", one, "--ambient-caps", "+dac_read_search", "--bounding-set", one,
            sys.executable, "-m", "spantail", "run", "--once", "--since", "all", "--new-series-hold", "0",
            "--home", tmp_path / "homes" / "*", "--state", state, "--textfile", state / "page.prom",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    turns = truth.samples((state / "page.prom").read_text())["coding_agent_turns_total"]
    assert {labels["user"] for labels, value in turns if value} == {"ann", "bob"}
