"""From a model's ``config.json`` to its :class:`~cardwise.core.capacity.shape.ModelShape`, one architecture at a time.

An architecture that is not known is refused, and so is a field about attention that no rule reads. A new one is a
function here and a real configuration in the catalogue, whose published count of parameters then tests it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cardwise.core.capacity.families import classic, common, decoders, encoders, latent, vision
from cardwise.core.capacity.families.fields import ConfigError, Fields, seen
from cardwise.core.capacity.shape import ModelShape

__all__ = ["ARCHITECTURES", "ConfigError", "shape_of"]

_SHAPES: Mapping[str, Callable[[Fields], ModelShape]] = {
    **dict.fromkeys(decoders.TRAITS, decoders.shape),
    **dict.fromkeys(latent.ARCHITECTURES, latent.shape),
    **classic.SHAPES,
    **encoders.SHAPES,
    **vision.SHAPES,
}
ARCHITECTURES = tuple(sorted(_SHAPES))
"""Classes of transformers whose configurations are understood."""


def shape_of(config: Mapping[str, object]) -> ModelShape:
    """The shape that a configuration describes. Raises ConfigError that names the field at fault."""
    fields = Fields(config)
    name = common.architecture_of(fields)
    if name not in _SHAPES:
        raise fields.error(
            "architectures", f"is {seen(name)}, which is not known here; known are {', '.join(ARCHITECTURES)}"
        )
    return _SHAPES[name](fields)
