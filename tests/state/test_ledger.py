"""The ledger knows exactly the ids it was given, however they are kept."""

import random

from spantail.state.ledger import FRESH, MARKS, Ledger


def ids(count, seed):
    rng = random.Random(seed)
    return [rng.randrange(-(2**63), 2**63) for _ in range(count)]


def test_every_id_is_known_and_no_other():
    """In the set and in the arrays, also one whose mark is that of an id that was added."""
    ledger, given = Ledger(), ids(3 * FRESH, 1)
    for id_ in given:
        assert not ledger.known(id_)
        ledger.add(id_)
    assert all(map(ledger.known, given))
    twins = [id_ + MARKS for id_ in given[:1000] if id_ + MARKS < 2**63]
    assert not any(map(ledger.known, [*ids(FRESH, 2), *twins]))
    assert len(ledger) == len(given)


def test_any_of_many():
    """Whether it is among the newest ids or was added long ago."""
    ledger, given, others = Ledger(), ids(3 * FRESH, 1), ids(FRESH, 2)
    assert not ledger.known_any(others)
    for id_ in given:
        ledger.add(id_)
    assert not ledger.known_any(others)
    assert ledger.known_any([*others, given[0]])
    assert ledger.known_any([*others, given[-1]])


def test_a_restart_knows_what_was_stored():
    """In as many pieces as there were commits; what is new since is handed out once."""
    first, given = Ledger(), ids(3 * FRESH, 1)
    stored = []
    for at, id_ in enumerate(given):
        first.add(id_)
        if at % 1000 == 999:
            stored.append(first.take_new())
    stored.append(first.take_new())
    again = Ledger(stored)
    assert all(map(again.known, given))
    assert again.take_new() == first.take_new() == b""
