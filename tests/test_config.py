"""Flags > environment > file > defaults, and one clear line for everything that is wrong."""

import pytest

from spantail import settings
from spantail.config import Config, project_name, resolve
from spantail.tables import Budget, ConfigError, Limits, Price, Project

SECOND = 10**9
HOME = {"HOME": "/home/me"}
FILE = "/home/me/.config/spantail/config.toml"


def files(**texts):
    """A reader over a made-up disk that holds only the default config file, or what is given."""
    disk = {FILE: texts["toml"]} if "toml" in texts else {}
    disk.update(texts.get("disk", {}))

    def read(path):
        if path not in disk:
            raise FileNotFoundError(path)
        body = disk[path]
        if isinstance(body, Exception):
            raise body
        return body.encode() if isinstance(body, str) else body

    return read


def made(args=None, env=None, toml=None, agents=()) -> Config:
    read = files() if toml is None else files(toml=toml)
    return resolve(args or {}, HOME | (env or {}), read, agents)


def refusal(args=None, env=None, toml=None, agents=()) -> str:
    with pytest.raises(ConfigError) as caught:
        made(args, env, toml, agents)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_defaults_are_those_of_the_help():
    """With nothing said, a run follows the own home for 24 h back and serves on 127.0.0.1:9464."""
    config = made()
    assert config.homes == ("/home/me",)
    assert config.own_home
    assert config.since == 24 * 3600 * SECOND
    assert config.listen == ("127.0.0.1", 9464)
    assert config.state == "/home/me/.local/state/spantail"
    assert (config.idle, config.stale, config.grace) == (1800 * SECOND, 7200 * SECOND, 2 * SECOND)
    assert config.new_series_hold == 90 * SECOND
    assert config.poll is None
    assert config.content == "none"
    assert config.limits == Limits()
    assert config.limits.record_bytes == 64 * 1024 * 1024


def test_help_defaults_agree_with_config():
    """A default that --help shows and a parser can read is the default that Config has."""
    config = made()
    for setting in settings.SETTINGS:
        if setting.key in {
            "since",
            "listen",
            "content",
            "idle",
            "stale",
            "grace",
            "poll",
            "new_series_hold",
            "log_format",
        }:
            assert setting.parse(setting.default) == getattr(config, setting.key), setting.key


def test_flag_beats_variable_beats_file():
    """Each source is used only where the stronger ones say nothing."""
    toml = 'idle = "10m"\nstale = "11m"\ngrace = "12s"'
    config = made({"idle": "1m"}, {"SPANTAIL_IDLE": "5m", "SPANTAIL_STALE": "6m"}, toml)
    assert config.idle == 60 * SECOND
    assert config.stale == 360 * SECOND
    assert config.grace == 12 * SECOND


def test_every_setting_can_be_said_in_each_way():
    """One name everywhere: flag, variable and key are read by the same words."""
    words = {
        "home": "/srv/a",
        "since": "all",
        "once": "true",
        "listen": "none",
        "state": "/s",
        "textfile": "/t",
    }
    words |= {"agent": "x", "exclude": "/e", "content": "full", "idle": "3s", "stale": "4s", "grace": "5s"}
    words |= {
        "poll": "250ms",
        "new_series_hold": "0",
        "created": "true",
        "aider_root": "/r",
        "generic_root": "/g",
        "generic_input": "all",
        "log_format": "json",
    }
    words |= {"trace_url": "http://j/{trace_id}"}
    assert words.keys() == {setting.key for setting in settings.SETTINGS}
    by_variable = made(env={"SPANTAIL_" + key.upper(): word for key, word in words.items()})
    by_key = made(toml="\n".join(f'{key} = "{word}"' for key, word in words.items()))
    by_flag = made(
        {
            k: [w] if k in {"home", "agent", "exclude", "aider_root", "generic_root"} else w
            for k, w in words.items()
        }
    )
    assert by_variable == by_key == by_flag
    assert by_flag.poll == 250_000_000
    assert by_flag.since is None
    assert by_flag.listen is None
    assert by_flag.created
    assert by_flag.once


def test_homes_are_kept_as_given():
    """A glob is the finder's business; and the agents' own variables no longer apply."""
    config = made({"home": ["/home/*", "/root"]})
    assert config.homes == ("/home/*", "/root")
    assert not config.own_home
    assert made(env={"SPANTAIL_HOME": "/a:/b"}).homes == ("/a", "/b")
    assert made(toml='home = ["/a", "/b"]').homes == ("/a", "/b")


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("250ms", 250000000),
        ("2s", 2 * SECOND),
        ("30m", 1800 * SECOND),
        ("7d", 7 * 86400 * SECOND),
        ("1h30m", 5400 * SECOND),
        ("1.5s", 1500000000),
        ("0", 0),
        ("2w", 14 * 86400 * SECOND),
    ],
)
def test_durations(word, value):
    """Durations are whole nanoseconds."""
    assert settings.duration(word) == value


@pytest.mark.parametrize("word", ["", "5", "s", "-1s", "1 s", "1y", "1e3s", "\u0663s", "1s,", "9999999w"])
def test_no_durations(word):
    """A number without a unit, a sign or anything odd is refused rather than guessed."""
    with pytest.raises(ValueError, match=r"duration|longer"):
        settings.duration(word)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("0.0.0.0:1", ("0.0.0.0", 1)),
        (":9464", ("0.0.0.0", 9464)),
        ("[::1]:80", ("::1", 80)),
        ("none", None),
        ("localhost:0", ("localhost", 0)),
    ],
)
def test_addresses(word, value):
    """Host and port; an IPv6 address stands in brackets."""
    assert settings.listen(word) == value


@pytest.mark.parametrize(
    "word", ["9464", "::1:80", "a:b", "a:70000", "a:-1", "[]:1", "", "a b:1", "a:\u0661"]
)
def test_no_addresses(word):
    """What cannot be listened on is refused at the start."""
    with pytest.raises(ValueError, match=r"address|port"):
        settings.listen(word)


def test_standard_variables_of_the_prometheus_exporter():
    """OTEL_EXPORTER_PROMETHEUS_HOST and _PORT move the default, and yield to our own settings."""
    env = {"OTEL_EXPORTER_PROMETHEUS_HOST": "0.0.0.0", "OTEL_EXPORTER_PROMETHEUS_PORT": "9999"}
    assert made(env=env).listen == ("0.0.0.0", 9999)
    assert made({"listen": "127.0.0.1:1"}, env).listen == ("127.0.0.1", 1)
    assert made(env=env, toml='listen = "none"').listen is None
    assert "OTEL_EXPORTER_PROMETHEUS_PORT" in refusal(env={"OTEL_EXPORTER_PROMETHEUS_PORT": "x"})


@pytest.mark.parametrize(
    ("word", "mode"),
    [
        ("true", "full"),
        ("SPAN_ONLY", "full"),
        ("span_and_event", "full"),
        ("EVENT_ONLY", "none"),
        ("false", "none"),
        ("", "none"),
        ("NO_CONTENT", "none"),
    ],
)
def test_standard_variable_for_content(word, mode):
    """The conventions' own switch is the default of --content, which wins over it."""
    env = {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": word}
    assert made(env=env).content == mode
    assert made({"content": "target"}, env).content == "target"


def test_where_the_state_is():
    """--state, SPANTAIL_STATE, the file, STATE_DIRECTORY, XDG_STATE_HOME, ~/.local/state."""
    env = {"SPANTAIL_STATE": "/b", "STATE_DIRECTORY": "/c:/other", "XDG_STATE_HOME": "/d"}
    assert made({"state": "/a"}, env).state == "/a"
    assert made(env=env, toml='state = "/t"').state == "/b"
    del env["SPANTAIL_STATE"]
    assert made(env=env, toml='state = "~/t"').state == "/home/me/t"
    assert made(env=env).state == "/c"
    del env["STATE_DIRECTORY"]
    assert made(env=env).state == "/d/spantail"
    assert made(env={"XDG_STATE_HOME": "relative"}).state == "/home/me/.local/state/spantail"


def test_where_the_file_is():
    """--config must exist, the default file need not."""
    read = files(disk={"/x.toml": 'idle = "1s"', "/cfg/spantail/config.toml": 'idle = "2s"'})
    assert resolve({"config": "/x.toml"}, HOME, read).idle == SECOND
    assert resolve({}, HOME | {"SPANTAIL_CONFIG": "/x.toml"}, read).idle == SECOND
    assert resolve({}, HOME | {"XDG_CONFIG_HOME": "/cfg"}, read).idle == 2 * SECOND
    with pytest.raises(ConfigError, match=r"--config: /no\.toml: there is no such file"):
        resolve({"config": "/no.toml"}, HOME, read)
    with pytest.raises(ConfigError, match=r"config\.toml: cannot be read: Permission denied"):
        resolve({}, HOME, files(toml=PermissionError(13, "Permission denied")))


def test_tables_of_the_file():
    """Projects, labels, prices, budgets and limits come from the file only."""
    config = made(
        toml="""
        [labels]
        team = "core"
        [limits]
        record_bytes = "1MiB"
        open_sessions = 5
        [[project]]
        match = "/repo/*/api"
        name = "api"
        [[price]]
        model = "my-*"
        input = 1
        output = 2.5
        cache_write_1h = 4
        [[budget]]
        name = "month"
        period = "month"
        limit = 100
        agent = "a"
        model = ["x-*", "y"]
        timezone = "Europe/Berlin"
        """
    )
    assert config.labels == {"team": "core"}
    assert config.limits == Limits(record_bytes=1 << 20, open_sessions=5)
    assert config.projects == (Project("/repo/*/api", "api"),)
    assert config.prices == (Price("my-*", 1.0, 2.5, cache_write_1h=4.0),)
    budget = Budget("month", "month", 100.0, agent=("a",), model=("x-*", "y"), timezone="Europe/Berlin")
    assert config.budgets == (budget,)
    assert budget.covers("a", "any", "x-1", "")
    assert not budget.covers("b", "any", "x-1", "")
    assert not budget.covers("a", "any", "z", "")


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"args": {"idle": "30"}}, "--idle: '30' is no duration"),
        ({"args": {"since": "yesterday"}}, "--since: 'yesterday' is neither"),
        ({"args": {"poll": "1ms"}}, "--poll: '1ms' is too short"),
        ({"args": {"idle": "0"}}, "--idle: '0' is too short"),
        ({"args": {"trace_url": "http://x"}}, "--trace-url: has no {trace_id}"),
        ({"args": {"home": [" "]}}, "--home: is empty"),
        (
            {"args": {"agent": ["nobody"]}, "agents": ["b", "a"]},
            "--agent: 'nobody' is not known; known are a, b",
        ),
        ({"env": {"SPANTAIL_NEW_SERIES_HOLD": "x"}}, "SPANTAIL_NEW_SERIES_HOLD: 'x' is no duration"),
        ({"env": {"SPANTAIL_ONCE": "maybe"}}, "SPANTAIL_ONCE: 'maybe' is neither true nor false"),
        ({"toml": "idle = 30"}, f"{FILE}: idle: '30' is no duration"),
        ({"toml": "home = [[1]]"}, f"{FILE}: home: must be text"),
        ({"toml": 'idel = "1s"'}, f"{FILE}: unknown key 'idel'; did you mean 'idle'?"),
        ({"toml": "x = ["}, f"{FILE}: is not TOML"),
        ({"toml": b"\xff"}, f"{FILE}: is not UTF-8"),
        ({"toml": "[labels]\nagent = 'x'"}, f"{FILE}: [labels]: the label 'agent' is already used"),
        ({"toml": "[labels]\n'a-b' = 'x'"}, "[labels]: 'a-b' is not a label name"),
        ({"toml": "[labels]\nteam = 1"}, "[labels]: team: must be text"),
        ({"toml": "[limits]\nrecord = 1"}, "[limits]: unknown key 'record'"),
        ({"toml": "[limits]\nrecord_bytes = 0"}, "[limits]: record_bytes: must be more than 0"),
        ({"toml": "[limits]\nrecord_bytes = 'much'"}, "[limits]: record_bytes: 'much' is no size"),
        ({"toml": "[limits]\nnesting = 10"}, "[limits]: nesting: must be 50 to 5000"),
        ({"toml": "[limits]\nrecord_bytes = 1.5"}, "[limits]: record_bytes: must be a whole number"),
        ({"toml": "[project]\nmatch = 'x'"}, "project: write each one below a line [[project]]"),
        ({"toml": "[[project]]\nmatch = 'x'"}, "[[project]] 1: name: is missing"),
        ({"toml": "[[price]]\nmodel='m'\ninput=-1\noutput=1"}, "[[price]] 1: input: -1.0 is no price"),
        ({"toml": "[[price]]\nmodel='m'\ninput=nan\noutput=1"}, "[[price]] 1: input: nan is no price"),
        (
            {"toml": "[[budget]]\nname='a'\nperiod='year'\nlimit=1"},
            "[[budget]] 1: period: 'year' is none of day, week, month",
        ),
        ({"toml": "[[budget]]\nname='a'\nperiod='day'"}, "[[budget]] 1: limit: is missing"),
        ({"toml": "[[budget]]\nname='a'\nlimit=1"}, "[[budget]] 1: period: is missing"),
        ({"toml": "[[budget]]\nperiod='day'\nlimit=1"}, "[[budget]] 1: name: is missing"),
        ({"toml": "[[budget]]\nname='a'\nperiod='day'\nlimit='1'"}, "[[budget]] 1: limit: must be a number"),
        ({"toml": "[[budget]]\nname='a'\nperiod='day'\nlimit=inf"}, "[[budget]] 1: limit: inf is no sum"),
        (
            {"toml": "[[budget]]\nname='a'\nperiod='day'\nlimit=1\nuser=1"},
            "[[budget]] 1: user: must be text or a list of texts",
        ),
        (
            {"toml": "[[budget]]\nname='a'\nperiod='day'\nlimit=1\nmodel=['m', 1]"},
            "[[budget]] 1: model: must be text",
        ),
        (
            {"toml": "[[budget]]\nname='a'\nperiod='day'\nlimit=1\nprojects='x'"},
            "[[budget]] 1: unknown key 'projects'; did you mean 'project'?",
        ),
        (
            {"toml": "[[budget]]\nname='a'\nperiod='day'\nlimit=1\nagent='c*'", "agents": ["b", "a"]},
            "[[budget]] 1: agent: 'c*' fits none of the agents a, b",
        ),
        ({"toml": "[budget]\nname='a'"}, "budget: write each one below a line [[budget]]"),
        ({"toml": "[[price]]\nmodel='m'\ninput='1'\noutput=1"}, "[[price]] 1: input: must be a number"),
        (
            {"toml": "[[price]]\nmodel='m'\ninput=1\noutput=1\ncache_read='1'"},
            "[[price]] 1: cache_read: must be a number",
        ),
        ({"toml": "[[budget]]\nname='a'\nperiod='day'\nlimit=0"}, "[[budget]] 1: limit: 0.0 is no sum"),
        ({"toml": "[[budget]]\nname='a'\nperiod='day'\nlimit=1\ntimezone='Mars/X'"}, "timezone: 'Mars/X'"),
        ({"toml": "[[budget]]\nname='a'\nperiod='day'\nlimit=1\ntimezone='../x'"}, "timezone: '../x'"),
        (
            {"toml": "[[budget]]\nname='a'\nperiod='day'\nlimit=1\n" * 2},
            "[[budget]]: the name 'a' is there twice",
        ),
    ],
)
def test_a_bad_value_is_one_line_that_names_its_place(kwargs, says):
    """The user can go straight to the flag, the variable, or the file and key."""
    assert says in refusal(**kwargs)


@pytest.mark.parametrize(
    ("cwd", "name"),
    [
        ("/home/me/app", "app"),
        ("/home/me/app/", "app"),
        ("/home/me/app//", "app"),
        ("", ""),
        ("/", ""),
        ("C:\\x\\y", "y"),
        ("C:\\x\\y\\", "y"),
        ("c:/x/y", "y"),
        ("\\\\host\\share\\y", "y"),
        ("/x/a\\b", "a\\b"),
        ("app", "app"),
    ],
)
def test_project_is_the_last_path_part(cwd, name):
    """Windows paths too; a backslash in a POSIX name stays."""
    assert project_name(cwd) == name


def test_first_project_rule_that_fits_wins():
    """Worktrees become one project, two folders of one name become two."""
    config = made(
        toml="""
        [[project]]
        match = "/w/trees/api-*"
        name = "api"
        [[project]]
        match = "*/two/api"
        name = "second api"
        [[project]]
        match = "C:/src/*"
        name = "win"
        """
    )
    assert config.project_name("/w/trees/api-fix/") == "api"
    assert config.project_name("/w/two/api") == "second api"
    assert config.project_name("C:\\src\\y") == "win"
    assert config.project_name("/w/API") == "API"
