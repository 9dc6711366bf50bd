"""Secrets never leave; ordinary text does; and no text takes long."""

import json
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spantail.out.redact import REDACTED, redact

LETTERS = "aB3dE5gH7jK9mN1pQ2sT4vW6xY8z"
HEX = "0123456789abcdef" * 3

SECRETS = {
    "aws": "AKIA" + "IOSFODNN7EXAMPLE",
    "aws temporary": "ASIA" + "IOSFODNN7EXAMPLE",
    "google key": "AIza" + LETTERS + "ABCDEFG",
    "google oauth": "ya29." + LETTERS,
    "azure": "8Q~" + LETTERS + "ABCDEF",
    "github": "ghp_" + LETTERS + "ABCDEFGH",
    "github app": "ghs_" + LETTERS + "ABCDEFGH",
    "github oauth": "gho_" + LETTERS + "ABCDEFGH",
    "github fine": "github_pat_" + LETTERS + "_" + LETTERS,
    "gitlab": "glpat-" + LETTERS[:20],
    "slack": "xoxb-" + "123456789012-" + LETTERS,
    "openai": "sk-proj-" + LETTERS,
    "anthropic": "sk-ant-api03-" + LETTERS + "-AA",
    "stripe": "sk_live_" + LETTERS,
    "npm": "npm_" + LETTERS + "ABCDEFGH",
    "pypi": "pypi-AgEIcHlwaS5vcmc" + LETTERS,
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0." + LETTERS,
    "jwt cut off": "eyJhbGciOiJIUzI1NiJ9.eyJzdWI",
    "hugging face": "hf_" + LETTERS + "ABCDEF",
    "digital ocean": "dop_v1_" + HEX,
}


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize(
    "around", ["{}", "use {} now", "a\n{}\nb", "x={}", '"{}"', "({})", "{},", "--to={} -x"]
)
def test_tokens(name, around):
    """A known kind of token is replaced wherever it stands, in text and in JSON text."""
    secret = SECRETS[name]
    text = around.format(secret)
    for form in (text, json.dumps(text), json.dumps({"a": json.dumps({"b": text})})):
        done = redact(form)
        assert REDACTED in done
        for part in (secret, secret[8:], secret[:-6]):
            assert part not in done


@pytest.mark.parametrize(
    ("text", "done"),
    [
        ("Authorization: Bearer abc.def-123", "Authorization: [redacted]"),
        ("curl -H 'authorization: Basic dXNlcjpwYXNz' u", "curl -H 'authorization: [redacted]' u"),
        ("got Bearer abcd1234efgh from it", "got Bearer [redacted] from it"),
        ("basic dXNlcjpwYXNzd29yZA==", "basic [redacted]"),
        ("X-Api-Key: 12345", "X-Api-Key: [redacted]"),
        ("https://user:hunter2@host/p", "https://user:[redacted]@host/p"),
        ("postgres://u:p%40ss:w@h:5432/d", "postgres://u:[redacted]@h:5432/d"),
        ("curl -u me:hunter2 https://h", "curl -u me:[redacted] https://h"),
        ("https://h/b?sv=1&sig=abc%2F&x=1", "https://h/b?sv=1&sig=[redacted]&x=1"),
        ("password=hunter2 next", "password=[redacted] next"),
        ("DB_PASSWORD='two words' next", "DB_PASSWORD='[redacted]' next"),
        ('{"password": "a \\" b", "x": 1}', '{"password": "[redacted]", "x": 1}'),
        (
            '{"a": "{\\"client_secret\\": \\"a b\\", \\"c\\": 1}"}',
            '{"a": "{\\"client_secret\\": \\"[redacted]\\", \\"c\\": 1}"}',
        ),
        ("api_key: abc, other: 1", "api_key: [redacted], other: 1"),
        ("token => 'abc'", "token => '[redacted]'"),
        ("tool --api-token abc --x y", "tool --api-token [redacted] --x y"),
        ('mysql --password "abc" -h h', 'mysql --password "[redacted]" -h h'),
        ("aws_secret_access_key = wJalr/X+U", "aws_secret_access_key = [redacted]"),
        ("AccountKey=abc+/==;Next=1", "AccountKey=[redacted];Next=1"),
        ('secret: "never closed', 'secret: "[redacted]'),
        ("password=ab(c|d)e end", "password=[redacted] end"),
        ("PASSWORD\u0130=abc İpassword=abc", "PASSWORD\u0130=abc İpassword=[redacted]"),
    ],
)
def test_pairs_and_headers(text, done):
    """Keys whose name says that their value is secret, headers, and passwords in addresses."""
    assert redact(text) == done


KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc=\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "done"),
    [
        (f"a {KEY} b {KEY} c", "a [redacted] b [redacted] c"),
        ("a -----BEGIN PRIVATE KEY-----\\nMIIE", "a [redacted]"),
        ("a -----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl\n", "a [redacted]"),
        ("-----BEGIN PGP PRIVATE KEY BLOCK-----\nx\n-----END PGP PRIVATE KEY BLOCK-----!", "[redacted]!"),
        ("-----BEGIN CERTIFICATE-----\nMIIE", "-----BEGIN CERTIFICATE-----\nMIIE"),
    ],
)
def test_private_keys(text, done):
    """A key goes from BEGIN to END, or to the end of the text if it was cut off."""
    assert redact(text) == done


@pytest.mark.parametrize(
    "text",
    [
        "cd /home/me/task-management-configuration && make -j4 # build it",
        '{"input_tokens": 1500, "max_tokens": 8192, "tokenizer": "fast"}',
        "Bearer authentication and basic auth are explained below",
        "git clone ssh://git@github.com:22/me/repo.git && git log --author=me",
        "for key in keys: print(key)",
        "https://example.com:8443/a?b=c",
        "the password is asked for; secrets are kept elsewhere",
        "def token_count(words): return len(words)",
        "rg 'npm_config_[a-z_]+' --glob '*.ts'",
        "date -u +%F; echo $HOME | sudo tee x; pytest --pass-rate 3; 5 pass: 5, fail: 0; bypass=on",
        "ssh://first.last.name@example.org/x and Monday.at.noon and https://host/@scope/package@1.2.3",
        "fd1a0b9c-us12 d41d8cd98f00b204e9800998ecf8427e https://h/?key=short monkey=banana",
        "",
    ],
)
def test_ordinary_text_stays(text):
    """What is no secret can still be read."""
    assert redact(text) == text


FRAGMENTS = st.sampled_from(
    [
        *SECRETS.values(),
        *(secret[: len(secret) // 2] for secret in SECRETS.values()),
        "password=",
        "token: ",
        '"secret": "',
        '\\"api_key\\": \\"',
        "Bearer ",
        "basic ",
        "-u me:",
        "--token ",
        "://u:",
        "@h/",
        "-----BEGIN PRIVATE KEY-----",
        "-----END PRIVATE KEY-----",
        "?sig=",
        REDACTED,
        "[",
        "]",
        "\\",
        "\\n",
        '"',
        "'",
        " ",
        "\n",
        "=",
        ":",
        "a",
        "Z9",
        "İ",
        "é",
        "…",
        "-",
        "_",
        ".",
        "/",
        "&",
        ";",
    ]
)
TEXTS = st.one_of(
    st.lists(FRAGMENTS, max_size=12).map("".join),
    st.text(max_size=80),
    st.text(string.printable, max_size=80),
)


@settings(max_examples=1500, deadline=None)
@given(TEXTS)
def test_twice_is_once(text):
    """Redacting what is redacted changes nothing."""
    done = redact(text)
    assert redact(done) == done


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(SECRETS)), TEXTS, TEXTS)
def test_a_token_between_any_lines_is_found(name, before, after):
    """Whatever stands in the lines around it."""
    assert SECRETS[name] not in redact(f"{before}\n{SECRETS[name]}\n{after}").split("\n")


@pytest.mark.parametrize(
    "piece",
    [
        'password="',
        "eyJ",
        "sk-",
        "-----BEGIN PRIVATE KEY-----",
        "-----BEGIN ",
        "a",
        "://a:",
        "token=",
        "\\",
        "bearer ",
        "bearer a",
        'token: \\"',
        "AKIA",
        "ghp_",
        '"',
        " --token ",
        "-u a:",
        "secret",
        "1//0",
        "\\n",
        "://:",
        "?sig=",
        "1Q~",
        "eyJaaaaaaaaaaaaa.",
        'token=\\\\\\"a',
        "api_key",
        " ",
        "'password'",
        "http://" + "a" * 199 + ":" + "b" * 399,
        "://a:@",
        "://a1",
        "?key=",
        "MTaaaaaaaaaaaaaaaaaaaaaa.",
        "pass:",
        "-u a%",
        "echo a | ",
        "redis-cli a ",
        "mnemonic able ",
        "$6$",
    ],
)
def test_a_megabyte_of_anything_ends(piece):
    """No text makes the patterns go back and forth: this would not end in a lifetime."""
    text = (piece * (1_000_000 // len(piece) + 1))[:1_000_000]
    done = redact(text)
    assert redact(done) == done


LINES = {
    "aws secret": ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalrXUtnFEMI"),
    "aws session": (
        "aws_session_token = IQoJb3JpZ2luX2VjEJr//////////wEaCXVzLWVhc3QtMSJIMEYCIQ",
        "IQoJb3JpZ2lu",
    ),
    "gcp sa": (
        '{"type":"service_account","private_key_id":"'
        + HEX[:40]
        + '","private_key":"-----BEGIN PRIVATE KEY-----\\nMIIEvQIBADANBgkqhkiG9w0\\n-----END PRIVATE KEY-----\\n"}',
        "MIIEvQIBADAN",
    ),
    "azure conn": (
        "DefaultEndpointsProtocol=https;AccountName=x;AccountKey=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==;EndpointSuffix=core.windows.net",
        "Eby8vdM02x",
    ),
    "azure sb": (
        "Endpoint=sb://x.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey=abcd1234EFGH5678ijkl=",
        "abcd1234EFGH",
    ),
    "sas": ("https://x.blob.core.windows.net/c?sv=2022&sp=r&sig=abc%2Fdef%3D123", "abc%2Fdef"),
    "gitlab runner": ("glrt-" + LETTERS[:24], LETTERS[:20]),
    "slack hook": (
        "https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX",
        "XXXXXXXXXXXX",
    ),
    "slack app": ("xapp-1-A111-222-abcdef0123456789", "abcdef0123456789"),
    "stripe rk": ("rk_live_" + LETTERS, LETTERS),
    "stripe wh": ("whsec_" + LETTERS, LETTERS),
    "openai": ("sk-proj-" + LETTERS + "_" + LETTERS, LETTERS),
    "openai old": ("sk-" + LETTERS + LETTERS, LETTERS),
    "anthropic oauth": ("sk-ant-oat01-" + LETTERS + LETTERS, LETTERS),
    "npm": ("//registry.npmjs.org/:_authToken=npm_" + LETTERS + "abcdefgh", LETTERS),
    "npmrc old": ("//registry/:_authToken=1234-uuid-5678", "1234-uuid-5678"),
    "npmrc _auth": ("_auth=dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNzd29yZA"),
    "pypirc": ("password = pypi-AgEIcHlwaS5vcmc" + LETTERS, LETTERS),
    "jwt": ("eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJ4In0." + LETTERS, LETTERS),
    "pem": (
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7\nabc\n-----END RSA PRIVATE KEY-----",
        "MIIEpAIBAAKCAQEA7",
    ),
    "openssh": (
        "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n-----END OPENSSH PRIVATE KEY-----",
        "b3BlbnNzaC1rZXk",
    ),
    "pgp": ("-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nlQOYBF\n-----END PGP PRIVATE KEY BLOCK-----", "lQOYBF"),
    "putty": (
        "PuTTY-User-Key-File-2: ssh-rsa\nPrivate-Lines: 8\nAAABAQCx1234secretlines\nPrivate-MAC: deadbeef",
        "AAABAQCx1234secretlines",
    ),
    "url": ("git clone https://me:hunter2x@github.com/x/y", "hunter2x"),
    "url token": ("https://oauth2:" + LETTERS + "@gitlab.com/x.git", LETTERS),
    "url user token": ("https://" + "ghp_" + LETTERS + "abcdefgh@github.com/x", LETTERS),
    "mongodb": ("mongodb+srv://admin:p4ssw0rd!@cluster0.x.mongodb.net/db", "p4ssw0rd!"),
    "redis": ("redis://:p4ssw0rd@host:6379/0", "p4ssw0rd"),
    "postgres kv": ("host=x user=me password=p4ssw0rd dbname=d", "p4ssw0rd"),
    "jdbc": ("jdbc:mysql://h/db?user=me&password=p4ssw0rd", "p4ssw0rd"),
    "mssql": ("Server=x;Database=d;User Id=me;Password=p4ssw0rd;", "p4ssw0rd"),
    "mssql pwd": ("Server=x;Uid=me;Pwd=p4ssw0rd;", "p4ssw0rd"),
    "auth bearer": ("curl -H 'Authorization: Bearer abc123def456ghi' x", "abc123def456ghi"),
    "auth token": ("Authorization: token abc123def456ghi", "abc123def456ghi"),
    "proxy auth": ("Proxy-Authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
    "x-api-key": ("x-api-key: abc123def456", "abc123def456"),
    "cookie": ("Cookie: session=abc123def456; theme=x", "abc123def456"),
    "set-cookie": ("Set-Cookie: sid=abc123def456; HttpOnly", "abc123def456"),
    "env": ("OPENAI_API_KEY=abc123def456", "abc123def456"),
    "env export": ("export STRIPE_SECRET='abc 123 def'", "abc 123 def"),
    "env token": ("export GITHUB_TOKEN=abc123def456", "abc123def456"),
    "env db": ("DATABASE_URL=postgresql://u:p4ssw0rd@h/d", "p4ssw0rd"),
    "yaml": ('  api_key: "abc123def456"\n  x: 1', "abc123def456"),
    "sshpass": ("sshpass -p hunter2x ssh h", "hunter2x"),
    "mysql -p": ("mysql -uroot -phunter2x db", "hunter2x"),
    "docker login": ("docker login -u me -p hunter2x reg", "hunter2x"),
    "curl -u": ("curl -u me:hunter2x https://h", "hunter2x"),
    "huggingface": ("hf_" + LETTERS + "abcdef", LETTERS),
    "twilio": ("TWILIO_AUTH_TOKEN=" + HEX[:32], HEX[:32]),
    "sendgrid": ("SG." + LETTERS + "." + LETTERS, LETTERS),
    "telegram": ("https://api.telegram.org/bot123456789:AAF" + LETTERS + "abcd/getMe", LETTERS),
    "discord": ("https://discord.com/api/webhooks/123456789012345678/" + LETTERS + LETTERS, LETTERS),
    "age": ("AGE-SECRET-KEY-1" + "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L", "QPZRY9X8"),
    "vault": ("hvs." + LETTERS, LETTERS),
    "google oauth": ("ya29." + LETTERS + LETTERS, LETTERS),
    "gcp api": ("AIza" + LETTERS + "ABCDEFG", LETTERS),
    "private json": ('{"client_secret":"abc123def456"}', "abc123def456"),
    "databricks": ("dapi" + HEX[:32], HEX[:32]),
    "azure ad": ("client_secret: abc8Q~" + LETTERS + "ABCDEF", LETTERS),
    "k8s": (
        "users:\n- user:\n    token: abc123def456\n    client-key-data: LS0tLS1CRUdJTiBSU0E",
        "LS0tLS1CRUdJTiBSU0E",
    ),
    "netrc": ("machine h login me password hunter2x", "hunter2x"),
    "terraform": ('password = "hunter2x"', "hunter2x"),
    "aws cli": ("aws configure set aws_secret_access_key wJalrXUtnFEMI7K7MDENG", "wJalrXUtnFEMI7K7"),
    "azure apim": ("Ocp-Apim-Subscription-Key: " + HEX[:32], HEX[:32]),
    "google maps": ("https://maps.googleapis.com/x?q=1&key=" + LETTERS, LETTERS),
    "url lone token": ("git clone https://" + HEX[:40] + "@github.com/x/y", HEX[:40]),
    "url at": ("postgres://u:pa@ssw0rd1@h/db", "ssw0rd1"),
    "discord bot": ("Authorization: Bot " + LETTERS, LETTERS),
    "okta": ("Authorization: SSWS " + LETTERS, LETTERS),
    "discord token": ("MT" + LETTERS[:24] + ".Gabc12." + LETTERS, LETTERS),
    "twilio key": ("SK" + HEX[:32], HEX[:32]),
    "new relic": ("NRAK-" + "ABCDEFGHIJKLMNOPQRSTUVWXYZ0", "ABCDEFGHIJKLMNOP"),
    "doppler": ("dp.pt." + LETTERS, LETTERS),
    "postman": ("PMAK-" + HEX[:24] + "-" + HEX[:34], HEX[:34]),
    "netlify": ("nfp_" + LETTERS + "abcdefgh", LETTERS),
    "fly": ("FlyV1 fm2_" + LETTERS + "abcdefgh", LETTERS),
    "circleci": ("CCIPAT_" + LETTERS + "_" + HEX[:40], LETTERS),
    "buildkite": ("bkua_" + HEX[:40], HEX[:40]),
    "pulumi": ("pul-" + HEX[:40], HEX[:40]),
    "dynatrace": ("dt0c01." + "A1B2C3" * 4 + "." + "D4E5F6" * 11, "D4E5F6D4E5F6"),
    "terraform cloud": ("abcDEF12345678.atlasv1." + LETTERS + LETTERS, LETTERS),
    "rubygems": ("rubygems_" + HEX[:48], HEX[:48]),
    "docker oat": ("dckr_oat_" + LETTERS, LETTERS),
    "sentry": ("sntrys_" + LETTERS + LETTERS, LETTERS),
    "langsmith": ("lsv2_pt_" + HEX[:32] + "_" + HEX[:10], HEX[:32]),
    "tavily": ("tvly-dev-" + LETTERS, LETTERS),
    "fireworks": ("fw_" + LETTERS, LETTERS),
    "notion": ("secret_" + LETTERS + LETTERS, LETTERS),
    "notion new": ("ntn_" + LETTERS + LETTERS, LETTERS),
    "figma": ("figd_" + LETTERS, LETTERS),
    "airtable": ("pat" + LETTERS[:14] + "." + HEX + HEX[:16], HEX[:40]),
    "supabase": ("sb_secret_" + LETTERS, LETTERS),
    "planetscale": ("pscale_tkn_" + LETTERS, LETTERS),
    "mailgun": ("key-" + HEX[:32], HEX[:32]),
    "mailchimp": (HEX[:32] + "-us12", HEX[:32]),
    "square": ("sq0atp-" + LETTERS, LETTERS),
    "facebook": ("EAACEdEose0cBA" + LETTERS + LETTERS, LETTERS),
    "braintree": ("access_token$production$" + "a1b2c3d4e5f6g7h8$" + HEX[:32], HEX[:32]),
    "firebase": ("AAAA:APA91b" + LETTERS * 5, LETTERS),
    "shadow": ("root:$6$salt$" + LETTERS + LETTERS + ":19000:0", LETTERS),
    "htpasswd": ("me:$apr1$abcdefgh$" + LETTERS[:22], LETTERS[:22]),
    "db pass": ("DB_PASS=hunter2x", "hunter2x"),
    "--pass": ("tool --pass hunter2x go", "hunter2x"),
    "plink": ("plink -pw hunter2x host", "hunter2x"),
    "openssl": ("openssl rsa -passin pass:hunter2x", "hunter2x"),
    "samba": ("smbclient -U me%hunter2x //h/s", "hunter2x"),
    "ldap": ("ldapsearch -x -D cn=me -w hunter2x", "hunter2x"),
    "redis-cli": ("redis-cli -h h -a hunter2x ping", "hunter2x"),
    "ssh-keygen": ("ssh-keygen -t ed25519 -N hunter2x", "hunter2x"),
    "sudo": ("echo hunter2x | sudo -S ls", "hunter2x"),
    "docker stdin": ("echo 'hunter2x' | docker login --password-stdin", "hunter2x"),
    "mnemonic": (
        "seed phrase: able about above absent absorb abstract absurd abuse access account acid actor",
        "absorb abstract absurd",
    ),
    "otp uri": ("otpauth://totp/x?secret=JBSWY3DPEHPK3PXP", "JBSWY3DPEHPK3PXP"),
}


@pytest.mark.parametrize("name", LINES)
def test_secrets_as_they_stand_in_files_and_on_command_lines(name):
    """Of each the secret part is gone, in plain text, in JSON, and in JSON inside JSON."""
    text, secret = LINES[name]
    for form in (text, json.dumps(text), json.dumps({"a": json.dumps(text)})):
        done = redact(form)
        assert secret not in done
        assert redact(done) == done
