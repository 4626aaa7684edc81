"""Relative paths of a spec made absolute, and folders of adapters as what they hold."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from whet.core.errors import UsageError
from whet.core.spec.serving import EngineSpec
from whet.core.spec.variants import EVERY_ADAPTER, SpeculationSpec
from whet.core.spec.whole import Spec

_ADAPTER_CONFIG: Final = "adapter_config.json"


def absolute_paths(spec: Spec, base: Path) -> Spec:
    """The spec with its relative paths below ``base``."""

    def below(path: Path | None) -> Path | None:
        return None if path is None else Path(os.path.normpath(base / os.path.expanduser(path)))

    def model(ref: str | None) -> str | None:
        if ref is None:
            return None
        local = base / os.path.expanduser(ref)
        looks_local = ref.startswith((".", "/", "~")) or local.is_dir()
        return str(local.resolve()) if looks_local else ref

    def engine(given: EngineSpec) -> EngineSpec:
        program = given.program
        named = program is None or program.parent == Path()  # a bare name is looked up on PATH
        return given if named else given.model_copy(update={"program": below(program)})

    variants = {
        name: variant.model_copy(
            update={
                "weights": model(variant.weights) if "/" in variant.weights else variant.weights,
                "loras": _every_adapter({key: model(p) for key, p in variant.loras.items()}),
                "speculation": _own_draft(variant.speculation, spec, model),
            }
        )
        for name, variant in spec.variants.items()
    }
    recipes = {
        name: recipe.model_copy(
            update={
                "calibration": recipe.calibration.model_copy(
                    update={"source": below(recipe.calibration.source)}
                )
            }
        )
        for name, recipe in spec.recipes.items()
    }
    variables = {**spec.model.chat_template_kwargs, **spec.quality.chat_template_kwargs}
    quality = {
        "heldout": below(spec.quality.heldout),
        "tasks": below(spec.quality.tasks),
        "chat_template_kwargs": variables,
    }
    return spec.model_copy(
        update={
            "model": spec.model.model_copy(
                update={"target": model(spec.model.target), "draft": model(spec.model.draft)}
            ),
            "recipes": recipes,
            "engine": engine(spec.engine),
            "engines": {name: engine(each) for name, each in spec.engines.items()},
            "variants": variants,
            "traffic": spec.traffic
            and spec.traffic.model_copy(update={"log": below(spec.traffic.log)}),
            "load": spec.load.model_copy(update={"trace": below(spec.load.trace)}),
            "quality": spec.quality.model_copy(update=quality),
        }
    )


def _every_adapter(loras: dict[str, str | None]) -> dict[str, str | None]:
    """Put the adapters of a folder in place of the folder."""
    folder = loras.get(EVERY_ADAPTER)
    if folder is None:
        return loras
    each = {
        file.parent.name: str(file.parent) for file in Path(folder).glob(f"*/{_ADAPTER_CONFIG}")
    }
    if not each:
        raise UsageError(
            f"loras: {folder} holds no folder with an {_ADAPTER_CONFIG}; give the folder of "
            "adapters, or each by its name"
        )
    return dict(sorted(each.items()))


def _own_draft(
    speculation: SpeculationSpec | None, spec: Spec, model: Callable[[str | None], str | None]
) -> SpeculationSpec | None:
    """Make the path of a draft absolute, unless it is a recipe's name or a hub id."""
    if speculation is None or speculation.draft is None or speculation.draft in spec.recipes:
        return speculation
    return speculation.model_copy(update={"draft": model(speculation.draft)})
