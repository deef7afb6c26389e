"""What is large, what is not ASCII and what a terminal would obey, from hand to hand through real processes."""

from __future__ import annotations

import json
import sys
import unicodedata
from typing import Any

import pytest
import yaml

from e2e.local.world import World

RUN = ("-n", "support")
ONE = {"steps": [{"id": "a", "action": "Create"}]}
# Larger than an argument or a variable may be, smaller than what can be recorded.
LARGE = 200 * 1024
NAME = "Jörg €😀"
LOCALES = [{"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}, {"PYTHONIOENCODING": "ascii"}]
OBEYED = "\x1b[2J\x85\x9b\u061c\u200e\u202e\u2066"


async def local(world: World, *words: str, **environ: str) -> tuple[int, str]:
    """As `world.local`, with these variables beside the others."""
    told = [f"{name}={value}" for name, value in environ.items()]
    return await world.shell(["/usr/bin/env", *told, sys.executable, "-m", "stepfence.cli", "local", "--state", str(world.state), *words])


@pytest.mark.parametrize("given", ["--payload - <given.json", "--payload @given.json"])
async def test_a_payload_and_a_result_of_200_kib_are_handed_on(given: str, world: World) -> None:
    payload, ran = world.folder / "given.json", world.folder / "ran"
    payload.write_text(json.dumps({"text": "x" * LARGE}))
    option, _, redirected = given.partition("<")
    script = f"""
set -eu
result=$(stepfence exec {option} --payload-in-file --step a --action Create -- sh -c 'cat "$STEPFENCE_PAYLOAD_FILE"; echo ran >>ran' \
    <{redirected or "/dev/null"})
printf '%s' "$result" | stepfence finish --result -
printf '%s' "$result" >result.json
"""
    code, output = await world.local("run", str(world.manifest(["/bin/sh", "-c", script], plan=ONE, backoffLimit=0)))
    assert code == 0, output
    assert (await world.document())["status"]["phase"] == "Succeeded"
    assert json.loads((world.folder / "result.json").read_text()) == {"text": "x" * LARGE}
    assert ran.read_text() == "ran\n"
    assert list(world.folder.glob("*.workers/*/state/payload.*")) == []


@pytest.mark.parametrize("environ", LOCALES, ids=lambda environ: " ".join(f"{name}={value}" for name, value in environ.items()))
async def test_the_locale_changes_nothing(environ: dict[str, str], world: World) -> None:
    """With an encoding of its own the command once ended with 2 after its step was done, and so did each one after it."""
    script = f"""
set -eu
result=$(stepfence exec --step a --action Create -- sh -c 'printf "%s" "$1"' sh '{NAME}')
[ "$result" = '{NAME}' ]
stepfence finish --result "\\"$(stepfence input to)\\""
"""
    folder = world.folder / NAME
    folder.mkdir()
    file = world.manifest(["/bin/sh", "-c", script, NAME], input={"to": NAME}, plan=ONE, backoffLimit=0)
    manifest = yaml.safe_load(file.read_text())
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    container["env"] = [{"name": name, "value": value} for name, value in {**environ, "NAME": NAME}.items()]
    container["workingDir"] = str(folder)
    file = file.rename(folder / "run.yaml")
    file.write_text(yaml.safe_dump(manifest, allow_unicode=True), encoding="utf-8")
    code, output = await local(world, "run", str(file), **environ)
    assert code == 0, output
    code, output = await local(world, *RUN, "get", "refund-4711", **environ)
    assert (code, output) == await world.local(*RUN, "get", "refund-4711")
    found = yaml.safe_load(output)
    assert (found["spec"]["input"], json.loads(found["status"]["result"])) == ({"to": NAME}, NAME)
    patch = json.dumps({"metadata": {"labels": {"to": NAME}}}, ensure_ascii=False)
    assert (await local(world, *RUN, "patch", "refund-4711", "-p", patch, **environ))[0] == 0
    assert (await world.document())["metadata"]["labels"] == {"to": NAME}
    for words in (("list",), (*RUN, "logs", "refund-4711")):
        assert (await local(world, *words, **environ))[0] == 0


async def test_what_a_terminal_would_obey_is_printed_as_its_escape(world: World) -> None:
    value = {f"key{OBEYED}": f"text{OBEYED}"}
    code, output = await world.local("run", str(world.manifest(["/bin/false"], input=value, backoffLimit=0)))
    assert code == 1, output
    for words, read in ((("-o", "yaml"), yaml.safe_load), (("-o", "json"), json.loads)):
        code, output = await world.local(*RUN, "get", *words, "refund-4711")
        assert (code, read(output)["spec"]["input"]) == (0, value)
        assert shows_all(output)
    code, output = await world.local("list", "-o", "json")
    assert shows_all(output)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"kind": f"Agent{OBEYED}"}, "kind: only stepfence.dev/v1alpha1 AgentRun can run here, not stepfence.dev/v1alpha1 Agent\\x1b[2J"),
        ({f"field{OBEYED}": 1}, "field\\x1b[2J\\x85\\x9b\\u061c\\u200e\\u202e\\u2066: unknown field"),
    ],
)
async def test_of_a_manifest_that_is_refused_nothing_is_obeyed(change: dict[str, Any], told: str, world: World) -> None:
    file = world.manifest(["/bin/true"])
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | change))
    code, output = await world.local("run", str(file))
    assert (code, output.count("\n"), shows_all(output)) == (2, 1, True)
    assert told in output


async def test_a_key_that_is_given_twice_is_refused_by_its_name_and_lines(world: World) -> None:
    file = world.manifest(["/bin/true"])
    file.write_text(file.read_text().replace("    order: '4711'\n", "    amount: 10\n    amount: 1000\n"))
    lines = [number for number, line in enumerate(file.read_text().splitlines(), 1) if "amount" in line]
    said = f"stepfence local: {file}: spec.input.amount: given twice (lines {lines[0]} and {lines[1]})\n"
    assert await world.local("run", str(file)) == (2, said)
    patch = '{"spec": {"suspend": true, "suspend": false}}'
    said = "stepfence local: the patch cannot be read: spec.suspend: given twice\n"
    assert await world.local(*RUN, "patch", "refund-4711", "-p", patch) == (2, said)


def shows_all(text: str) -> bool:
    return all(character == "\n" or unicodedata.category(character) not in {"Cc", "Cf", "Zl", "Zp"} for character in text)
