"""The report for people: lines for a terminal, and one HTML page that loads nothing."""

from __future__ import annotations

import html
import json

from kohakutpu import __version__

from .board import Verdict
from .ladder import Report, Result

COLOURS = {
    Verdict.PASSED: "#1a7f37",
    Verdict.NOT_PRESENT: "#57606a",
    Verdict.DOES_NOT_APPLY: "#57606a",
    Verdict.NOT_RUN: "#8c959f",
}
FAILED = "#b42318"
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #1f2328 }
table { border-collapse: collapse; width: 100% }
th, td { border-bottom: 1px solid #d0d7de; padding: .4rem .6rem; text-align: left; vertical-align: top }
td.number, td.time { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
pre { background: #f6f8fa; padding: .6rem; overflow-x: auto; white-space: pre-wrap; font-size: 13px; margin: .3rem 0 }
summary { cursor: pointer; color: #57606a }
.verdict { font-weight: 600; white-space: nowrap }
"""


def measured(result: Result) -> str:
    """The step's plain facts in a line; nested ones are left to the report."""
    plain = {name: fact for name, fact in result.facts.items() if isinstance(fact, (str, int, float, list))}
    texts = {name: ", ".join(map(str, fact)) if isinstance(fact, list) else fact for name, fact in plain.items()}
    return ", ".join(f"{name.replace('_', ' ')} {text}" for name, text in texts.items())


def line(result: Result) -> str:
    """One step for a terminal; what is wrong follows, indented."""
    step = result.step
    text = f"{step.number:2} {step.name:10} {result.verdict.value}"
    if result.verdict is Verdict.PASSED:
        return f"{text:30} {measured(result)}".rstrip()
    return "\n".join([text, *(f"   {part}" for part in result.text.splitlines())])


def elapsed(result: Result, unit: str) -> str:
    if not result.elapsed:
        return ""
    return f"{result.elapsed:,.0f} {unit}" if unit == "cycles" else f"{result.elapsed:,.2f} {unit}"


def row(result: Result, unit: str) -> str:
    """A step as a row of the table."""
    step, colour = result.step, COLOURS.get(result.verdict, FAILED)
    parts = [html.escape(step.title)]
    if result.text:
        parts.append(f"<pre>{html.escape(result.text)}</pre>")
    if result.facts:
        facts = html.escape(json.dumps(result.facts, indent=1))
        parts.append(f"<details><summary>measured</summary><pre>{facts}</pre></details>")
    return (
        f'<tr><td class="number">{step.number}</td><td><code>{step.name}</code></td>'
        f'<td class="verdict" style="color: {colour}">{result.verdict.value}</td><td>{"".join(parts)}</td>'
        f'<td class="time">{elapsed(result, unit)}</td></tr>'
    )


def page(report: Report) -> str:
    """The whole report as one HTML document."""
    title = html.escape(report.summary)
    status = f"{int(report.status)} ({report.status.name.lower().replace('_', ' ')})"
    rows = "\n".join(row(result, report.unit) for result in report.results)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>Bring-up: {title}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n<h1>Bring-up of {html.escape(report.machine.name)}</h1>\n"
        f"<p><strong>{title}</strong></p>\n<p>Exit status {status}. Repetitions {report.runs}, seed {report.seed}. "
        f"Made by kohakutpu {__version__}; docs/bringup.md says what each step does.</p>\n"
        "<table>\n<tr><th>#</th><th>step</th><th>verdict</th><th>what</th><th>time</th></tr>\n"
        f"{rows}\n</table>\n</body>\n</html>\n"
    )
