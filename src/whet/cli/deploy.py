"""``whet deploy``: the recommended configuration as files that serve and watch it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from whet.cli.options import OutputOptions, print_json
from whet.core.format import plural
from whet.core.records.codec import encode
from whet.core.redact import message_line
from whet.core.run import Run
from whet.flow.deploy.options import DeployOptions

if TYPE_CHECKING:
    from whet.flow.deploy.bundle import Deployed


def deploy(
    run_dir: Annotated[Path, Parameter(help="Folder of a finished run.")],
    /,
    *,
    options: DeployOptions = DeployOptions(),
    output: OutputOptions = OutputOptions(),
) -> object:
    """Write the recommended variant as a deployment with probes, alerts and dashboards.

    Starts nothing. Exit code 6 if the run is unfinished, 9 if it recommends nothing.
    """
    from whet.flow.deploy.bundle import deploy as write_bundle
    from whet.flow.deploy.folder import steps_of

    deployed = write_bundle(Run.read(run_dir), options)
    steps = steps_of(deployed.bundle, deployed.folder, deployed.previous)
    if output.json:
        previous = None if deployed.previous is None else encode(deployed.previous)
        document = {"directory": str(deployed.folder.resolve()), "steps": steps}
        document |= {"notes": list(deployed.notes), "left_out": encode(deployed.left_out)}
        print_json(document | {"bundle": encode(deployed.bundle), "previous": previous})
    else:
        _print_text(deployed, steps, output)
        output.result(deployed.folder)
    return deployed


def _print_text(deployed: Deployed, steps: dict[str, list[str]], output: OutputOptions) -> None:
    bundle, console = deployed.bundle, output.console

    def line(text: str) -> None:
        console.print(message_line(text), soft_wrap=True)

    line(f"{deployed.folder}: {bundle.variant} at {bundle.load.words}, {bundle.image}")
    for limit in bundle.limits:
        line(f"  Limit: {limit}")
    if bundle.replicas > 1 and bundle.namespace is None:
        servers = plural(bundle.replicas, "server")
        line(f"  The demand takes {servers}; {bundle.target} starts one.")
    for note in deployed.notes:
        line(f"  {note}")
    for each in deployed.left_out:
        line(f"  {each.why}: {', '.join(each.settings)}")
    for name, commands in steps.items():
        for at, command in enumerate(commands):
            line(f"  {'' if at else name:10} {command}")
    if deployed.previous is None:
        line(f"  {'Roll back':10} the next whet deploy keeps this bundle in previous/")
