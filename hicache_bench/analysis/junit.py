"""What the gate found, for CI systems (JUnit XML), for pull requests (markdown) and for terminals."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import msgspec

from hicache_bench.analysis.gate import GateResult

_MARKS = {"pass": "PASS", "fail": "FAIL", "inconclusive": "????"}
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render_junit(found: GateResult) -> str:
    """One test suite; a threshold is a test case. Fail is `failure`; inconclusive is `error`, which no CI system takes
    for a pass; unfit evidence is a case of its own."""
    cases = [(check.name, check.result, check.reason) for check in found.checks]
    cases += [("evidence", "inconclusive", text) for text in found.evidence]
    count = {result: sum(case[1] == result for case in cases) for result in _MARKS}
    suite = ET.Element("testsuite", name="hicache-bench gate", tests=str(len(cases)), failures=str(count["fail"]),
                       errors=str(count["inconclusive"]), skipped="0")  # fmt: skip
    for name, result, reason in cases:
        case = ET.SubElement(suite, "testcase", classname=_clean(f"{found.base} vs {found.new}"), name=_clean(name))
        if result == "pass":
            ET.SubElement(case, "system-out").text = _clean(reason)
        else:
            tag = "failure" if result == "fail" else "error"
            ET.SubElement(case, tag, message=_clean(reason), type="regression" if result == "fail" else "inconclusive")
    whole = ET.Element("testsuites")
    whole.append(suite)
    ET.indent(whole)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(whole, encoding="unicode")


def render_markdown(found: GateResult) -> str:
    """A summary for a pull request."""
    lines = [f"### hicache-bench gate: {found.result}", "", f"`{found.new}` against `{found.base}`", "",
             "| check | result | reason |", "|---|---|---|"]  # fmt: skip
    rows = [(check.name, check.result, check.reason) for check in found.checks]
    rows += [("evidence", "inconclusive", text) for text in found.evidence]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    lines += ["", *(f"* {text}" for text in found.footnotes)] if found.footnotes else []
    return "\n".join(lines)


def render_text(found: GateResult) -> str:
    """One line a check, worst news last."""
    width = max((len(check.name) for check in found.checks), default=0)
    lines = [f"{_MARKS[check.result]}  {check.name:<{width}}  {check.reason}" for check in found.checks]
    lines += [f"????  evidence: {text}" for text in found.evidence]
    lines += [f"! {text}" for text in found.cautions]
    lines += [f"* {text}" for text in found.footnotes]
    return "\n".join([*lines, f"{found.result}: {found.new} against {found.base}"])


def render_json(found: GateResult) -> str:
    """{result, base, new, checks: [{name, result, reason}], evidence, cautions, footnotes}; see `GateResult`."""
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode()


def _clean(text: str) -> str:
    """Without the characters XML 1.0 does not have."""
    return _NOT_XML.sub("?", text)
