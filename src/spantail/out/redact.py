"""No secret leaves with the content: what looks like one is replaced by `[redacted]`.

Works on plain text and on JSON text alike, where a line end is written `\\n` and a quote `\\"`.
It errs on the side of too much: content is there to recognise a call by, not to restore it.

Every pattern is linear: it either fails within a bounded number of characters or consumes what it
read. That is why tokens are one prefix and one character class, why a key block without an end
is cut at the end of the text, and why repeats are possessive (`*+`). Each pattern also begins with
a letter or a set of them, tests of what stands before come after it: so the search runs over
ordinary text at memory speed. Redacting twice gives the same as once.
"""

from __future__ import annotations

import re
from typing import Final

REDACTED: Final = "[redacted]"


def _edge(prefix: str) -> str:
    """The prefix (of fixed width) where a word begins; in JSON text also right after \\n or \\u0022."""
    return prefix + rf"(?:(?<![A-Za-z0-9_-]{prefix})|(?<=\\[bfnrt]{prefix})|(?<=\\u[0-9a-fA-F]{{4}}{prefix}))"


# (a text that must be there for the pattern to be tried, pattern). A token takes the rest of its
# word with it, so that what is glued to it does not become a word of its own.
_TOKENS: Final = tuple(
    (word, re.compile(pattern + r"[A-Za-z0-9_-]*+"))
    for word, pattern in (
        ("sk-", _edge("sk-") + r"[A-Za-z0-9_-]{12,}"),  # OpenAI, Anthropic, OpenRouter and many more
        ("sk-ant-", r"sk-ant-[a-z]{2,6}[0-9]{2}-[A-Za-z0-9_-]{8,}"),  # unmistakable, so also inside a word
        ("gh", r"gh[pousr]_[A-Za-z0-9]{16,}"),
        ("github_pat_", r"github_pat_[A-Za-z0-9_]{16,}"),
        ("gl", r"gl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|soat|oas|ffct)-[A-Za-z0-9_.-]{16,}"),
        ("gl", r"gl(?:sa|c)_[A-Za-z0-9_=+/]{20,}"),  # Grafana
        ("xox", r"xox[a-z](?:\.[a-z]{4})?-[A-Za-z0-9-]{8,}"),
        ("xapp-", r"xapp-[A-Za-z0-9-]{10,}"),
        ("slack.com/", r"(?:services|workflows|triggers)/[TE][A-Z0-9]{6,}/[A-Za-z0-9/_-]{8,}"),
        ("A", r"A(?:KIA|SIA|ROA|IDA|GPA|NPA|NVA|IPA|BIA|CCA)[A-Z0-9]{16,}"),
        ("AIza", r"AIza[A-Za-z0-9_-]{30,}"),
        ("ya29.", r"ya29\.[A-Za-z0-9_.-]{16,}"),
        ("GOCSPX-", r"GOCSPX-[A-Za-z0-9_-]{16,}"),
        ("1//0", _edge("1//0") + r"[A-Za-z0-9_-]{24,}"),
        ("Q~", r"[0-9]Q~[A-Za-z0-9_~.-]{24,}"),  # Azure client secret
        ("k_", _edge("[srp]k_") + r"(?:live|test)_[A-Za-z0-9]{8,}"),  # Stripe
        ("whsec_", r"whsec_[A-Za-z0-9+/=]{16,}"),
        ("npm_", r"npm_[A-Za-z0-9]{24,}"),
        ("pypi-", r"pypi-[A-Za-z0-9_-]{24,}"),
        ("hf_", _edge("hf_") + r"[A-Za-z0-9]{20,}"),
        ("_v1_", r"do[opr]_v1_[a-f0-9]{24,}"),
        ("SG.", r"SG\.[A-Za-z0-9_.-]{24,}"),
        ("xai-", _edge("xai-") + r"[A-Za-z0-9]{20,}"),
        ("gsk_", _edge("gsk_") + r"[A-Za-z0-9]{20,}"),
        ("pplx-", _edge("pplx-") + r"[A-Za-z0-9]{20,}"),
        ("r8_", _edge("r8_") + r"[A-Za-z0-9]{24,}"),
        ("dapi", _edge("dapi") + r"[a-f0-9]{32,}"),
        ("hv", _edge(r"hv[sbr]\.") + r"[A-Za-z0-9_-]{20,}"),
        ("AT", r"AT(?:ATT|BBT|CTT)[A-Za-z0-9_=-]{20,}"),  # Atlassian
        ("lin_api_", r"lin_api_[A-Za-z0-9]{20,}"),
        ("shp", r"shp(?:at|ss|ca|pa)_[a-fA-F0-9]{20,}"),
        ("dckr_", r"dckr_[po]at_[A-Za-z0-9_-]{16,}"),
        ("sbp_", _edge("sbp_") + r"[a-f0-9]{24,}"),
        ("sb_secret_", r"sb_secret_[A-Za-z0-9_-]{16,}"),
        ("secret_", _edge("secret_") + r"[A-Za-z0-9]{32,}"),  # Notion
        ("ntn_", _edge("ntn_") + r"[A-Za-z0-9]{32,}"),
        ("figd_", r"figd_[A-Za-z0-9_-]{24,}"),
        ("pat", _edge("pat") + r"[A-Za-z0-9]{14}\.[a-f0-9]{40,}"),  # Airtable
        ("pscale_", r"pscale_[a-z]{2,8}_[A-Za-z0-9_.=-]{24,}"),
        ("dp.", r"dp\.(?:pt|st|ct|sa|scim|audit)\.[A-Za-z0-9_.-]{24,}"),  # Doppler
        ("NRAK-", r"NRAK-[A-Z0-9]{20,}"),
        ("sntry", r"sntry[su]_[A-Za-z0-9_+/=-]{32,}"),
        ("lsv2_", r"lsv2_[ps][tk]_[a-f0-9]{24,}"),
        ("tvly-", r"tvly-[A-Za-z0-9-]{20,}"),
        ("fw_", _edge("fw_") + r"[A-Za-z0-9]{20,}"),  # Fireworks
        ("atlasv1.", r"atlasv1\.[A-Za-z0-9_=-]{40,}"),
        ("rubygems_", r"rubygems_[a-f0-9]{32,}"),
        ("PMAK-", r"PMAK-[a-f0-9]{24}-[a-f0-9]{20,}"),
        ("nfp_", _edge("nfp_") + r"[A-Za-z0-9]{30,}"),
        ("fm", r"fm[12]_[A-Za-z0-9_+/=,-]{32,}"),  # Fly
        ("CCIP", r"CCIP(?:AT|RJ)_[A-Za-z0-9_]{24,}"),
        ("bkua_", r"bkua_[a-f0-9]{32,}"),
        ("pul-", _edge("pul-") + r"[a-f0-9]{32,}"),
        ("dt0", r"dt0[a-z][0-9]{2}\.[A-Z0-9]{20,}\.[A-Z0-9]{40,}"),
        ("sq0", r"sq0[a-z]{3}-[A-Za-z0-9_-]{20,}"),
        ("EAA", _edge("EAA") + r"[A-Za-z0-9]{40,}"),  # Square, Facebook
        ("access_token$", r"access_token\$[a-z]{4,12}\$[A-Za-z0-9]{16}\$[a-f0-9]{32}"),  # Braintree
        ("key-", _edge("key-") + r"[a-f0-9]{32}"),  # Mailgun
        ("-us", _edge("[a-f0-9]") + r"[a-f0-9]{31}-us[0-9]{1,2}"),  # Mailchimp
        ("SK", _edge("SK") + r"[a-f0-9]{32}"),  # Twilio
        ("APA91b", r"APA91b[A-Za-z0-9_-]{100,}"),
        (
            ".",
            _edge("[MNO][DTjz]") + r"[A-Za-z0-9_-]{22,26}\.[A-Za-z0-9_-]{6,7}\.[A-Za-z0-9_-]{27,}",
        ),  # Discord
        # the hash of a password, as in /etc/shadow
        (
            "$",
            r"\$(?:[1567y]|2[abxy]|gy|apr1|argon2i?d?|scrypt|pbkdf2[a-z0-9-]{0,12})\$[./A-Za-z0-9=,$+-]{16,}",
        ),
        ("AGE-SECRET-KEY-", r"AGE-SECRET-KEY-[A-Z0-9]{20,}"),
        ("api.telegram.org", r"bot[0-9]{6,12}:[A-Za-z0-9_-]{20,}"),
        (":AA", r":AA[A-Za-z0-9_-]{32,}"),  # Telegram
        ("/webhooks/", r"webhooks/[0-9]{10,22}/[A-Za-z0-9_-]{20,}"),  # Discord
        ("LS0tLS1CRUdJTi", r"LS0tLS1CRUdJTi[A-Za-z0-9+/=]{4,}"),  # a PEM block in base64, as in a kubeconfig
        ("eyJ", r"eyJ[A-Za-z0-9_-]{12,}(?:\.[A-Za-z0-9_-]++){0,4}"),  # JWT, also a part of one
    )
)

_BEGIN: Final = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_END: Final = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")

# The patterns below are matched against the text in lower case. An empty group marks where the
# secret begins; it goes on to the end of the match.

_KINDS: Final = ("api", "access", "account", "private", "signing", "encryption", "master", "shared")
_OTHER_KINDS: Final = ("storage", "license", "deploy", "service", "client", "secret", "session", "ssh")
_MORE_KINDS: Final = (
    "auth",
    "app",
    "application",
    "subscription",
    "functions",
    "admin",
    "write",
    "preshared",
)
_ALL_KINDS: Final = _KINDS + _OTHER_KINDS + _MORE_KINDS
_NAME: Final = (
    # `key` alone is too common: only with one of these words before it
    r"(?:key(?:" + "|".join(f"(?<={kind}key)|(?<={kind}[_-]key)" for kind in _ALL_KINDS) + ")s?"
    r"|pass(?:word|wd|phrase|code|(?<=[_-]pass)|(?<=dbpass))|pwd|secrets?|token|authorization|credentials?|connection[_-]?string|cookie"
    r"|sharedaccesssignature)"
    r"(?:[_-]?(?:id|key|value|base64|b64|hash|string|file|v?[0-9]{1,2}))?"
)
# key = value, "key": "value", \"key\": \"value\", key: value. A quoted value ends at its own kind of
# quote, one without quotes at a space or sign. Without its end a value runs to the end of the line.
_PAIR: Final = re.compile(
    _NAME + r"\\{0,3}[\"']?\s{0,4}(?:=>|:=|[:=])\s{0,4}"
    r"(?:"
    r"(\\{1,7})\"()(?:(?!(?<!\\)\1\")[^\n])*+"
    r"|\"()(?:[^\"\\\n]|\\.)*+"
    r"|\\{0,3}'()[^'\n]*+"
    r"|()(?:(?:bearer|basic|digest|token|negotiate|apikey|bot|ssws|oauth|geniekey)\s{1,4})?[^\s\"'`,;&|<>(){}\[\]\\][^\s\"'`,;&\\]*+"
    r")"
)
_FLAG: Final = re.compile(
    r"-(?<![\w-]-)-?(?:[a-z]{1,20}-){0,2}" + _NAME + r" {1,4}\\{0,3}[\"']?()(?!-)[^\s\"'\\`;&|<>()\[\]]++"
)
_USER: Final = re.compile(r"-(?<![\w-]-)(?:u|-user)[ =][\"']?[^\s:\"'\\]{1,100}:()[^\s\"'\\\[]++")
_SCHEME: Final = re.compile(
    # prose is told from a credential by a digit or sign in it, or by its length
    r"b(?<!\wb)(?:earer|asic)\s{1,4}()"
    r"(?:(?=[a-z._~-]{0,200}[0-9+/=])[a-z0-9._~+/=-]{8,}|[a-z0-9._~+/=-]{24,})"
)
_URL: Final = re.compile(r"://[^\s/@:\"'\\]{0,200}:()[^\s/\"'\\]{1,400}(?=@)")
# a token in place of the user's name
_LONE: Final = re.compile(r"://()(?=[a-z._~-]{0,100}[0-9])[^\s/@:\"'\\\[]{16,400}+(?=@)")
_QUERY: Final = re.compile(
    r"[?&](?:(?:x-amz-|x-goog-)?sig(?:nature)?=()[^&\s\"'\\\[]++|key=()[^&\s\"'\\\[]{16,}+)"
)

_REST: Final = r"[\"']?()[^\s\"'\\\[]++"
_NPM: Final = re.compile(r"_auth\s{0,2}=\s{0,2}" + _REST)
_NETRC: Final = re.compile(r"login\s{1,4}[^\s]{1,100}\s{1,4}password\s{1,4}" + _REST)
_SHORT: Final = re.compile(r"sshpass\s{1,4}-p\s{0,4}" + _REST)
_MYSQL: Final = re.compile(
    r"mysql(?:dump|admin|import)?\s(?:[^\s-][^\s]{0,60}\s|-[^p\s][^\s]{0,60}\s){0,6}-p" + _REST
)
_LOGIN: Final = re.compile(r"login\s(?:[^\s]{1,100}\s){0,6}?-p\s{1,4}" + _REST)
_AWS: Final = re.compile(r"aws_(?:secret_access_key|session_token)\s{1,4}(?![:=])" + _REST)
_REDIS: Final = re.compile(r"redis-cli\s(?:[^\s]{1,100}\s){0,8}?-a\s{1,4}" + _REST)
_LDAP: Final = re.compile(r"ldap[a-z]{3,8}\s(?:[^\s]{1,100}\s){0,8}?-w\s{1,4}" + _REST)
_PLINK: Final = re.compile(r"-(?<![\w-]-)pw\s{1,4}" + _REST)
_KEYGEN: Final = re.compile(r"ssh-keygen\s(?:[^\s]{1,100}\s){0,8}?-n\s{1,4}" + _REST)
_OPENSSL: Final = re.compile(r"-pass(?:in|out)?\s{1,4}[\"']?pass:()[^\s\"'\\\[]++")
_SAMBA: Final = re.compile(r"-(?<![\w-]-)u\s{0,2}[\"']?[a-z][^\s%\"'\\]{0,100}%()[^\s\"'\\\[]++")
_PIPED: Final = re.compile(
    r"echo\s{1,4}(?:-[ne]{1,2}\s{1,4})?[\"']?()[^\s\"'\\\[|$]{1,200}+"
    r"(?=[\"']?\s{0,4}\|\s{0,4}(?:sudo|(?:ch)?passwd|docker|podman|helm)\s)"
)
_MNEMONIC: Final = re.compile(
    r"(?:mnemonic|(?:seed|recovery)[ _-]?phrase)[\\\"'\s:=]{1,10}()[a-z]{3,8}(?:\s[a-z]{3,8}){11,23}+"
)
_PUTTY: Final = re.compile(r"private-lines:\s{0,2}()(?:(?!private-mac)[\s\S]){1,20000}+")

_WORDS: Final = ("key", "pass", "pwd", "secret", "token", "authoriz", "credential", "connection", "cookie")
_PLAIN: Final = (
    (("://",), _URL),
    (("sig", "key="), _QUERY),
    (_WORDS, _PAIR),
    (_WORDS, _FLAG),
    (("-u",), _USER),
    (("bearer", "basic"), _SCHEME),
    (("_auth",), _NPM),
    (("login",), _NETRC),
    (("sshpass",), _SHORT),
    (("mysql",), _MYSQL),
    (("login",), _LOGIN),
    (("://",), _LONE),
    (("aws_",), _AWS),
    (("redis-cli",), _REDIS),
    (("ldap",), _LDAP),
    (("-pw",), _PLINK),
    (("ssh-keygen",), _KEYGEN),
    (("pass:",), _OPENSSL),
    (("%",), _SAMBA),
    (("sudo", "passwd", "docker", "podman", "helm"), _PIPED),
    (("mnemonic", "phrase"), _MNEMONIC),
    (("private-lines",), _PUTTY),
)
# What one pattern took away can let another one see its secret; so until nothing changes any more.
_PASSES: Final = 8
_CAPITALS: Final = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


def redact(text: str) -> str:
    """The text without what looks like a secret."""
    for _ in range(_PASSES):
        done = _once(text)
        if done == text:
            break
        text = done
    return text


def _once(text: str) -> str:
    if "-----BEGIN " in text:
        text = _blocks(text)
    lower = _lower(text)
    for words, pattern in _PLAIN:
        if any(word in lower for word in words):
            changed = _cut(text, lower, pattern)
            if changed is not text:
                text, lower = changed, _lower(changed)
    for word, pattern in _TOKENS:
        if word in text:
            text = pattern.sub(REDACTED, text)
    return text


def _lower(text: str) -> str:
    """In lower case, letter for letter: a few letters become two, then only A to Z are changed."""
    lower = text.lower()
    return lower if len(lower) == len(text) else text.translate(_CAPITALS)


def _cut(text: str, lower: str, pattern: re.Pattern[str]) -> str:
    kept, at = [], 0
    for found in pattern.finditer(lower):
        kept += [text[at : found.end(found.lastindex or 0)], REDACTED]
        at = found.end()
    return "".join([*kept, text[at:]]) if kept else text


def _blocks(text: str) -> str:
    """Private keys from BEGIN to END, or to the end of the text where it was cut off."""
    kept, at = [], 0
    while begin := _BEGIN.search(text, at):
        kept += [text[at : begin.start()], REDACTED]
        end = _END.search(text, begin.end())
        if end is None:
            return "".join(kept)
        at = end.end()
    return "".join(kept) + text[at:]
