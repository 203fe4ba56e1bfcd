"""A report as one HTML file: the dashboard's page, its style and the report itself as JSON.

The file loads nothing, and its content security policy names the only script that may run: what a job is called
cannot become another one.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpushare import dashboard

__all__ = ["render"]

STATIC = Path(dashboard.__file__).parent / "static"
ESCAPED = str.maketrans({character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"})
"""Characters that could end the element, or a line of a script. In JSON they occur only in strings."""


def render(report: Mapping[str, Any]) -> str:
    """`report` is one of those that web/src/report.ts reads."""
    script, style = _static("app.js"), _static("app.css")
    icon = base64.b64encode(_static("icon.svg").encode()).decode()
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:;"
        " base-uri 'none'; form-action 'none'"
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{html.escape(report["about"]["host"])}: report</title>
<link rel="icon" href="data:image/svg+xml;base64,{icon}" type="image/svg+xml">
<style>{style}</style>
</head>
<body>
<div id="app"><noscript>This report needs JavaScript. It loads nothing from other places.</noscript></div>
<script type="application/json" id="report">{_json(report)}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def _json(report: Mapping[str, Any]) -> str:
    return json.dumps(report, separators=(",", ":"), ensure_ascii=False).translate(ESCAPED)


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _static(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")
