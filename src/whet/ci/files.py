"""The files of a comparison, each written whole."""

from __future__ import annotations

import json

from whet.ci.benchmark_json import benchmark_json
from whet.ci.document import ci_document
from whet.ci.junit import junit_xml
from whet.ci.metrics_json import metrics_json
from whet.ci.options import CiOptions
from whet.ci.result import CiResult
from whet.core.run import Run
from whet.core.store import write_atomic
from whet.report.writers.markdown import render_markdown


def write_files(result: CiResult, candidate: Run, options: CiOptions) -> None:
    """Write what the options name. Raises ``StorageError`` where that cannot be written."""
    if options.junit is not None:
        write_atomic(options.junit, junit_xml(result))
    if options.markdown is not None:
        write_atomic(options.markdown, render_markdown(ci_document(result)))
    if options.benchmark_json is not None:
        write_atomic(options.benchmark_json, _json(benchmark_json(candidate, result.variant)))
    if options.metrics is not None:
        write_atomic(options.metrics, _json(metrics_json(candidate, result)))


def _json(data: object) -> bytes:
    return (json.dumps(data, ensure_ascii=False, indent=1) + "\n").encode()
