"""RFC 8785 text, digests, and the idempotency key, which is frozen for ever."""

import json
from typing import Any

import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

from stepfence.core.canonical import canonical, digest, fresh_id, parse, step_key
from stepfence.core.errors import Code, Refused

# From RFC 8785 itself: 3.2.2 (literals, strings, numbers), 3.2.3 (sorting by UTF-16 code units), appendix B (numbers).
VECTORS: list[tuple[str, Any, str]] = [
    (
        "3.2.2",
        {
            "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
            "string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"\u002f",
            "literals": [None, True, False],
        },
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}',
    ),
    (
        "3.2.3",
        {"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\U0001f600": 5, "\u0080": 6, "\u00f6": 7},
        '{"\\r":2,"1":4,"\u0080":6,"\u00f6":7,"\u20ac":1,"\U0001f600":5,"\ufb33":3}',
    ),
    ("zero", [0.0, -0.0, 0], "[0,0,0]"),
    ("largest safe integer", [9007199254740991, -9007199254740991], "[9007199254740991,-9007199254740991]"),
    ("64-bit numbers", {"id": 2**63 - 1, "n": [-(2**53), 2**53]}, '{"id":9223372036854775807,"n":[-9007199254740992,9007199254740992]}'),
    (
        "appendix B",
        [5e-324, 1.7976931348623157e308, 1e23, 9.999999999999997e22],
        "[5e-324,1.7976931348623157e+308,1e+23,9.999999999999997e+22]",
    ),
    ("rounding", [333333333.3333332, 333333333.33333325], "[333333333.3333332,333333333.33333325]"),
    ("exponents", [1e21, 1e20, 1e-6, 1e-7], "[1e+21,100000000000000000000,0.000001,1e-7]"),
    ("empty", {"a": {}, "b": [], "c": ""}, '{"a":{},"b":[],"c":""}'),
]


@pytest.mark.parametrize(("name", "value", "text"), VECTORS, ids=[name for name, _, _ in VECTORS])
def test_vectors_of_the_rfc(name: str, value: Any, text: str) -> None:
    assert canonical(value) == text
    assert canonical(parse(text)) == text


RING: list[Any] = [2**60]
RING.append(RING)
NO_JSON = [
    float("nan"),
    float("inf"),
    [2**53, float("nan")],
    "\ud800",
    {"\ud800": 2**53},
    {"a": {1, 2}},
    {1: 2},
    {"a": 2**53, 1: 2},
    b"x",
    10**640,
    -(10**5000),
]


@pytest.mark.parametrize("value", NO_JSON, ids=range(len(NO_JSON)))
def test_what_json_cannot_carry_exactly_is_refused_with_the_name_of_the_field(value: Any) -> None:
    with pytest.raises(Refused, match="payload is no JSON") as refused:
        canonical(value, field="payload")
    assert (refused.value.code, refused.value.field) == (Code.BAD_REQUEST, "payload")


def nested(levels: int, inner: Any = None) -> Any:
    for level in range(levels):
        inner = [inner] if level % 2 else {"a": inner}
    return inner


@pytest.mark.parametrize("inner", [None, 2**60, ["]"] * 100], ids=["null", "a large number", "much beside it"])
def test_a_value_may_have_sixty_four_levels_and_no_more(inner: Any) -> None:
    most = 63 if isinstance(inner, list) else 64
    value = nested(most, inner)
    assert parse(canonical(value)) == value
    with pytest.raises(Refused, match="payload: nested deeper than 64 levels") as refused:
        canonical(nested(most + 1, inner), field="payload")
    assert (refused.value.code, refused.value.field) == (Code.BAD_REQUEST, "payload")


@pytest.mark.parametrize("value", [nested(100_000), nested(100_000, 2**60), RING], ids=["deep", "deep, with a large number", "a ring"])
def test_nesting_without_end_is_refused(value: Any) -> None:
    with pytest.raises(Refused, match="payload: nested deeper than 64 levels"):
        canonical(value, field="payload")


# Every character but halves of pairs, those of private use often: they have stood for something here once.
TEXTS = st.text(max_size=12) | st.text(st.sampled_from('\ue000\uf8ff:wholeé"\\\x00\U0001f600[]{}0'), max_size=12)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
WHOLE = st.integers(-(2**70), 2**70) | st.sampled_from([s * (2**53 + d) for s in (1, -1) for d in (-1, 0, 1)])


def json_of(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        st.none() | st.booleans() | TEXTS | leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
        max_leaves=12,
    )


JSON = json_of(WHOLE | FLOATS)


@given(JSON)
def test_text_is_the_same_after_each_round_trip(value: Any) -> None:
    text = canonical(value)
    assert canonical(parse(text)) == text
    assert canonical(json.loads(json.dumps(value))) == text


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON: a number that is written as a fraction or an exponent may come back whole."""
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return isinstance(other, int | float) and not isinstance(other, bool) and float(other) == one
    return type(one) is type(other) and bool(one == other)


@given(JSON)
@example({"\ue000whole:5": 2**60})
@example({"\ue000whole:5": "\ue000whole:5", "a": -(2**53)})
@example(["\ue000whole:1", 2**53])
@example({'"\ue000whole:7"': [2**64, -0.0, 5e-324]})
@example({"a": 10**639, "b": 1 - 10**640})
@example([1.2345678901234568e20, 9007199254740993.0])
def test_what_is_written_is_read_back_equal(value: Any) -> None:
    text = canonical(value)
    assert same(value, parse(text))
    assert text.encode().decode() == text


@given(json_of(st.integers(-(2**53) + 1, 2**53 - 1) | FLOATS))
def test_text_is_that_of_the_library_where_the_library_takes_the_value(value: Any) -> None:
    assert canonical(value) == rfc8785.dumps(value).decode()


@given(JSON)
def test_a_large_whole_number_changes_nothing_but_its_own_digits(value: Any) -> None:
    def without(item: Any) -> Any:
        if isinstance(item, dict):
            return {name: without(inner) for name, inner in item.items()}
        if isinstance(item, list):
            return [without(inner) for inner in item]
        return 0 if isinstance(item, int) and abs(item) >= 2**53 else item

    # What is written as a fraction or an exponent is no whole number here; floats that are written whole come back as integers.
    assert canonical(without(parse(canonical(value)))) == rfc8785.dumps(without(parse(canonical(value)))).decode()
    ordered: list[list[str]] = []
    json.loads(canonical(value), object_pairs_hook=lambda pairs: ordered.append([name for name, _ in pairs]))
    assert all(names == sorted(names, key=lambda name: name.encode("utf-16be")) for names in ordered)


def test_the_key_is_frozen() -> None:
    assert step_key("support/refund-4711", "refund") == "sf13195d612c3d89df03c1585666401eb95b5d72"
    assert step_key("support/refund-4711", "notify") == "sf1b1c911292a85f8ec7d6f7ef7434a939067f46"


def test_a_large_whole_number_comes_back_as_what_it_was() -> None:
    assert (
        canonical(parse(canonical([1e20, 9007199254740992.0, 9007199254740991])))
        == "[100000000000000000000,9007199254740992,9007199254740991]"
    )
    assert parse(canonical({"id": 2**63 - 1})) == {"id": 2**63 - 1}


@given(st.text(max_size=60), st.text(max_size=60))
def test_keys_are_forty_characters_that_any_provider_takes(run_id: str, step_id: str) -> None:
    key = step_key(run_id, step_id)
    assert (len(key), key.isascii(), key.isalnum()) == (40, True, True)


def test_keys_of_names_that_read_alike_differ() -> None:
    assert step_key("a/b", "c") != step_key("a", "b/c")


def test_digests_are_over_utf8() -> None:
    assert digest("€") == "sha256:c4cc90ed3d26f12d4b08a75140970a7904035c31cbb4515a83f19b9003c00d1d"


def test_question_ids_follow_from_the_nonce_and_from_nothing_guessable() -> None:
    first = fresh_id("nonce-1", "pay")
    assert (len(first), first) == (10, fresh_id("nonce-1", "pay"))
    assert len({first, fresh_id("nonce-2", "pay"), fresh_id("nonce-1", "other"), fresh_id("nonce-1", "pay", first)}) == 4
    assert set(first) <= set("abcdefghjkmnpqrstvwxyz23456789")
