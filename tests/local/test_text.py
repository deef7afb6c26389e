"""Documents are printed as YAML in which nothing stands that a terminal would obey."""

import pytest
import yaml

from stepfence.cli.text import hidden
from stepfence.local.text import as_yaml
from tests.cli.test_text import OBEYED


@pytest.mark.parametrize("around", ["{}", "a\\{}'\"", "- {}: #", "{}\n\n b\n", "Jörg € 😀 {} \t", "\\u202e {}"])
def test_yaml_stays_the_same_and_shows_what_a_terminal_would_obey(around: str) -> None:
    texts = [around.format(character) for character in OBEYED]
    value = {"texts": texts, **dict.fromkeys(texts, "value")}
    text = as_yaml(value)
    assert yaml.safe_load(text) == value
    assert not any(map(hidden, text.replace("\n", "")))


def test_all_else_is_printed_as_before() -> None:
    value = {
        "to": "Jörg €",
        "patch": "kubectl patch " + "x" * 300 + " -p '{\"a\": 1}'",
        "lines": "a\nb\n",
        "n": [1, 1.5, None, True],
        "t": "true",
    }
    assert as_yaml(value) == yaml.safe_dump(value, allow_unicode=True, width=10_000)
