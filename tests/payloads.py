"""Texts from outside that a file, a shell, a template or a terminal must hold as data only."""

from __future__ import annotations

import shutil
from typing import Any, Final

SHELLS: Final = [name for name in ("sh", "dash", "bash") if shutil.which(name)]
"""Shells in which a written script or command has to run."""
PLAIN: Final = "harmless"
CANARY: Final = "canary"
"""A payload that runs makes a file of this name."""

PAYLOADS: Final = {
    "newline and key": f"x\nengine: {{python: /tmp/{CANARY}}}\n#",
    "newline and command": f"x\ntouch {CANARY}\n",
    "nested key": "x\n    privileged: true\n    pid: host",
    "carriage return": f"x\r\ntouch {CANARY}\rok",
    "substitution": f"$(touch {CANARY})",
    "backticks": f"`touch {CANARY}`",
    "semicolon": f"; touch {CANARY};",
    "and or pipe": f"&& touch {CANARY} || touch {CANARY} | tee {CANARY}",
    "redirection": f"> {CANARY} 2>&1 < /dev/null",
    "double quote": f'" ; touch {CANARY} ; "',
    "single quote": f"' ; touch {CANARY} ; '",
    "quoting of bash": f"$'\\x27; touch {CANARY} #'",
    "parameter": "${HOME} $HOME ${IFS} $$ $1",
    "trailing backslash": f"x\\\n touch {CANARY} \\",
    "here document": f"<<EOF\ntouch {CANARY}\nEOF",
    "workflow expression": "${{ github.token }}",
    "workflow command": "::set-output name=x::y\n::add-mask::x",
    "unit specifier": "%n %h %%i %t",
    "unit line": f"x\nExecStartPre=/bin/touch {CANARY}\n[Service]",
    "jinja expression": "{{ plan.model }}{{ 7 * 7 }}",
    "jinja block": "{% include 'head.j2' %}{# comment #}",
    "format field": "{target} {draft} {0} {plan.model}",
    "prometheus template": '{{ query "up" | first | value }}',
    "end of a selector": '"} or vector(1) or up{job="',
    "yaml tag": f'!!python/object/apply:os.system ["touch {CANARY}"]',
    "anchor": "&a *a <<: *a",
    "comment": "x # y",
    "document end": "x\n---\nkind: ClusterRoleBinding\n...",
    "flow": "[a, {b: c}], }",
    "colon": "a: b",
    "question": "? a\n: b",
    "block scalar": "|+2\n  a",
    "boolean": "no",
    "null": "~",
    "number": "1e3",
    "octal": "0o17",
    "time": "2001-01-01",
    "merge": "<<",
    "nul escape": "\\0 \\x00 \\u0000",
    "escape": "\x1b[31mred\x1b[2J\x1b[8m",
    "hyperlink": "\x1b]8;;http://evil\x07click\x1b]8;;\x07",
    "clipboard": "\x1b]52;c;ZXZpbA==\x07",
    "c1": "\x9b31m\x85\x90q\x9c",
    "backspace": "safe\b\b\b\bevil\x7f",
    "bidi override": "\u202egnp.exe\u202c",
    "bidi isolate": "\u2067x\u2069 \u061c \u200f",
    "line separator": "x\u2028y: z\u2029#",
    "zero width": "ad\u200bmin\u2060\ufeff",
    "tags": "x\U000e0041\U000e007f",
    "fillers": "a\xad\u034fb\u3164\uffa0\u115f\U000e0080",
    "look-alikes": "раypal ﹩(touch) ；",
    "very long": "A" * 20_000,
    "leading dash": "--host=0.0.0.0",
    "short option": "-rf",
    "glob": "* ? [a-z] ~ !",
    "braces": "{a,b}{1..9}",
    "history": "!! !$",
    "script": "<script>alert(1)</script>",
    "attribute": "\" onload='alert(1)'",
    "markdown": "[x](javascript:alert(1)) ![](http://evil/x.png) |",
    "formula": '=cmd|"/c calc"!A0',
    "csv": '"a","b"\n+1',
    "path": "../../etc/passwd",
    "percent": "%s %(x)s %d",
    "surrogate": "x\udcff",
    "line ends": "\n\nx%s\n\n\n",
    "octal digits": "\x0112\\0 '\n7",
    "empty": "",
    "blank": "  x  ",
    "tab": "a\tb",
}


def shape(data: Any) -> Any:
    """Keys and kinds of parsed YAML or JSON, without its texts."""
    if isinstance(data, dict):
        return {key: shape(value) for key, value in data.items()}
    if isinstance(data, list):
        return [shape(item) for item in data]
    return type(data).__name__
