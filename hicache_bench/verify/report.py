"""A suite's result as lines, table, JSON and JUnit XML."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from tabulate import tabulate

from hicache_bench.clock import NS_PER_S
from hicache_bench.errors import StoreError
from hicache_bench.store.rundir import RunDir
from hicache_bench.verify.judge import Finding, Verdict

if TYPE_CHECKING:
    from hicache_bench.verify.suite import CaseResult, Result

_MARK = {"pass": "PASS", "fail": "FAIL", "inconclusive": "????", "error": "ERR ", "skipped": "skip"}
_CONTROL = dict.fromkeys([*range(9), 11, 12, *range(14, 32), *range(0xD800, 0xE000), 0xFFFE, 0xFFFF])
"""Characters that XML 1.0 cannot carry."""


def show_line(finding: Finding) -> str:
    """One finding as one line, and a second one with reason and advice when it is no pass."""
    head = f"{_MARK[finding.verdict]}  {finding.case:<14} {finding.step:<22} {finding.seen or '-':<48} "
    line = (head + (f"expected {finding.expected}" if finding.expected else "")).rstrip()
    more = [text for text in (finding.reason, finding.advice and f"→ {finding.advice}") if text]
    return line + "".join(f"\n      {text}" for text in more)


def render_text(result: Result) -> str:
    """The closing table: one row a case."""
    rows = [(_MARK[case.verdict].strip(), case.name, case.title, len(case.findings) or "-",
             f"{case.elapsed_ns / NS_PER_S:.1f} s" if case.findings else "-", _why(case)) for case in result.cases]
    table = tabulate(rows, headers=("verdict", "case", "what", "checks", "time", "why"), disable_numparse=True,
                     maxcolwidths=[None, None, 44, None, None, 60])
    counts = ", ".join(f"{result.count(verdict)} {word}" for verdict, word in _WORDS if result.count(verdict))
    label = "  [SIMULATED server]" if result.origin == "simulated" else ""
    ratio = f" ({result.elapsed_ns / result.requests_ns:.2f} times that)" if result.requests_ns else ""
    unproven = f"\ninconclusive: {result.unproven}" if result.unproven else ""
    return (f"{table}\n\n{counts or 'nothing was played'}{label}{unproven}\nrequests "
            f"{result.requests_ns / NS_PER_S:.1f} s, all {result.elapsed_ns / NS_PER_S:.1f} s{ratio}\n"
            f"run directory: {result.run_dir}")


_WORDS: tuple[tuple[Verdict, str], ...] = (
    ("pass", "passed"), ("fail", "failed"), ("error", "could not be played"), ("inconclusive", "inconclusive"),
    ("skipped", "skipped"))


def _why(case: CaseResult) -> str:
    worst = [finding for finding in case.findings if finding.verdict == case.verdict and finding.reason]
    return case.reason or (f"{worst[0].step}: {worst[0].reason}" if worst and case.verdict != "pass" else "")


def verdict_json(result: Result) -> dict[str, Any]:
    """`verdict.json`: the exit code, every case with its findings, the profile with the origin of its figures."""
    return {
        "exit_code": result.exit_code,
        "origin": result.origin,
        "server": result.server,
        "profile": msgspec.to_builtins(result.profile),
        "unproven": result.unproven or None,
        "elapsed_ns": result.elapsed_ns,
        "requests_ns": result.requests_ns,
        "cases": [msgspec.to_builtins(case) for case in result.cases],
    }


def render_json(result: Result) -> str:
    """`verdict.json` as text."""
    return msgspec.json.format(msgspec.json.encode({**verdict_json(result), "run_dir": str(result.run_dir)}),
                               indent=1).decode()


def junit_xml(result: Result) -> str:
    """JUnit XML, one test case a case. Inconclusive and skipped are `skipped` there: neither passed nor failed."""
    suite = ET.Element("testsuite", {
        "name": "hicache-bench verify", "tests": str(len(result.cases)), "failures": str(result.count("fail")),
        "errors": str(result.count("error")),
        "skipped": str(result.count("skipped") + result.count("inconclusive")),
        "time": f"{result.elapsed_ns / NS_PER_S:.3f}"})
    for case in result.cases:
        item = ET.SubElement(suite, "testcase", {"classname": f"hicache_bench.verify.{result.profile.name}",
                                                 "name": case.name, "time": f"{case.elapsed_ns / NS_PER_S:.3f}"})
        text = "\n".join(map(show_line, case.findings)).translate(_CONTROL)
        message = _why(case).translate(_CONTROL)
        tag = {"fail": "failure", "error": "error", "inconclusive": "skipped", "skipped": "skipped"}.get(case.verdict)
        if tag is not None:
            words = f"inconclusive: {message}" if case.verdict == "inconclusive" else message
            ET.SubElement(item, tag, {"message": words}).text = text
        elif text:
            ET.SubElement(item, "system-out").text = text
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def write_verdict(rundir: RunDir, result: Result, junit: Path | None) -> None:
    """Put verdict.json and junit.xml into the run directory, and the XML at `junit`, too."""
    rundir.write_json("verdict.json", verdict_json(result))
    text = junit_xml(result)
    rundir.write_text("junit.xml", text)
    if junit is not None:
        try:
            junit.write_text(text, encoding="utf-8")
        except OSError as error:
            raise StoreError(f"cannot write {junit}: {error.strerror or error}") from None
